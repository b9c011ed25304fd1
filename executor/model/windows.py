"""Which layers of a decoder see only the last few tokens, and how many."""

from __future__ import annotations

from superinfer.executor.model.config_fields import ConfigFields
from superinfer.executor.model.families import Family

FULL, SLIDING = "full_attention", "sliding_attention"


def layer_windows(fields: ConfigFields, family: Family, layers: int) -> tuple[int | None, ...]:
    """Tokens that a query sees in each layer, itself included; None where it sees all. Raises ModelError."""
    wanted = fields.flag("use_sliding_window") if family.window_is_optional else True
    if family.window == "none" or not wanted or fields.values.get("sliding_window") is None:
        return (None,) * layers
    window = fields.size("sliding_window")
    kinds = fields.values.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers or set(kinds) - {FULL, SLIDING}:
            raise fields.error(f"layer_types must be a list of {layers} of {FULL} or {SLIDING}, not {kinds!r}")
        return tuple(window if kind == SLIDING else None for kind in kinds)
    border = fields.values.get("max_window_layers", 28)
    if not isinstance(border, int):
        raise fields.error(f"max_window_layers must be an integer, not {border!r}")
    windowed = {
        "all": range(layers),
        "from_layer": range(border, layers),
        "alternating": range(0, min(border, layers), 2),
    }[family.window]
    return tuple(window if layer in windowed else None for layer in range(layers))
