"""The mixture of experts of a decoder, read from its `config.json`."""

from __future__ import annotations

from dataclasses import dataclass

from superinfer.executor.model.config_fields import ConfigFields
from superinfer.executor.model.families import Family


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """`count` experts of which each token takes `per_token`; sizes in elements.

    `normalised`: a token's expert weights sum to 1. `shared_size` is the intermediate size of an expert that every
    token takes, 0 where there is none. `layers` are the layers that have experts; the others have a plain MLP.
    """

    count: int
    per_token: int
    intermediate_size: int
    normalised: bool
    shared_size: int
    layers: frozenset[int]
    prefix: str
    names: tuple[str, str, str]

    def parameters(self, hidden_size: int) -> int:
        """Elements of one layer's experts, shared expert, its gate, and router."""
        shared = 3 * self.shared_size * hidden_size + (hidden_size if self.shared_size else 0)
        return self.count * (3 * self.intermediate_size + 1) * hidden_size + shared


def read_experts(fields: ConfigFields, family: Family, layers: int) -> ExpertShape | None:
    """None for a family without experts. Raises ModelError."""
    if family.experts_prefix is None:
        return None
    # Newer transformers write `num_local_experts` where models were published with `num_experts`.
    name = "num_experts" if fields.values.get("num_experts") is not None else "num_local_experts"
    count, per_token = fields.size(name), fields.size("num_experts_per_tok")
    if per_token > count:
        raise fields.error(f"num_experts_per_tok {per_token} exceeds {name} {count}")
    return ExpertShape(
        count=count,
        per_token=per_token,
        intermediate_size=fields.size(family.expert_size_field),
        normalised=family.normalise_experts or fields.flag("norm_topk_prob"),
        shared_size=fields.size("shared_expert_intermediate_size") if family.shared_expert else 0,
        layers=_sparse_layers(fields, layers),
        prefix=family.experts_prefix,
        names=family.expert_names,
    )


def _sparse_layers(fields: ConfigFields, layers: int) -> frozenset[int]:
    """All but `mlp_only_layers`, of these each `decoder_sparse_step`-th."""
    dense = fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise fields.error(f"mlp_only_layers must be a list of layers, not {dense!r}")
    step = fields.size("decoder_sparse_step", 1)
    return frozenset(layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)
