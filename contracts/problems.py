"""All that is wrong with a contract, one line each: `FILE: slo.latency.p99_ms: -5 is not accepted; expected …`."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from superinfer.contracts.errors import ContractError
from superinfer.contracts.naming import did_you_mean
from superinfer.contracts.printable import printable, shown
from superinfer.contracts.schema import ContractDocument, SubSLO
from superinfer.contracts.short_form import SHORT_KEYS, Path


class InvalidContractError(ContractError):
    """Contracts that cannot be registered; `problems` has one line for each thing that is wrong."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        more = len(self.problems) - 1
        suffix = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
        super().__init__(self.problems[0] + suffix)


def raise_problems(problems: Sequence[str]) -> None:
    """Raise InvalidContractError where there are any."""
    if problems:
        raise InvalidContractError(problems)


def describe(error: ErrorDetails, where: str, written_at: Mapping[Path, Path], *, has_slo: bool) -> str:
    """One schema violation as one line; `where` is the file and the document in it."""
    path = tuple(str(part) for part in error["loc"])
    here = f"{where}: {'.'.join(printable(part) for part in written_at.get(path, path))}:"
    if error["type"] == "extra_forbidden":
        return f"{here} unknown key{_instead_of(path, has_slo=has_slo)}"
    if error["type"] == "missing":
        return f"{here} is missing; expected {accepts(path)}"
    return f"{here} {shown(error['input'])} is not accepted; expected {accepts(path)}"


def accepts(path: Path) -> str:
    """What the field at `path` of the long form takes."""
    if not path:
        return f"a mapping with keys among {', '.join(ContractDocument.model_fields)}"
    model = _model_at(path[:-1])
    nested = _model_at(path)
    if nested is not None:
        return f"a mapping with keys among {', '.join(nested.model_fields)}"
    extra = model.model_fields[path[-1]].json_schema_extra if model and path[-1] in model.model_fields else None
    return str(extra["accepts"]) if isinstance(extra, dict) else "text"


def _instead_of(path: Path, *, has_slo: bool) -> str:
    """What was meant by the unknown key at the end of `path`, or what is accepted in its place."""
    key = path[-1]
    if key in SHORT_KEYS and len(path) == 1:
        return f" beside slo; expected {'.'.join(('slo', *SHORT_KEYS[key]))}"
    model = _model_at(path[:-1])
    keys = [] if model is None else list(model.model_fields)
    takes_short_keys = model is SubSLO or (model is ContractDocument and not has_slo)
    accepted = [*keys, *SHORT_KEYS] if takes_short_keys else keys
    if nearest := did_you_mean(key, accepted):
        return nearest
    return f"; expected one of {', '.join(keys)}" + (", or a short-form key" if takes_short_keys else "")


def _model_at(path: Path) -> type[BaseModel] | None:
    """The schema class that describes the mapping at `path`, or None where that is no such mapping."""
    model: type[BaseModel] | None = ContractDocument
    parts = iter(path)
    for part in parts:
        field = model.model_fields.get(part) if model is not None else None
        if field is None:
            return None
        if part == "sub_slos":
            if next(parts, None) is None:
                return None
            model = SubSLO
            continue
        candidates = [field.annotation, *typing.get_args(field.annotation)]
        model = next((arm for arm in candidates if isinstance(arm, type) and issubclass(arm, BaseModel)), None)
    return model
