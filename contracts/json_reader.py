"""JSON as plain data; duplicate keys and numbers that JSON does not have are refused."""

from __future__ import annotations

import json
from typing import Any

from superinfer.contracts.printable import shown
from superinfer.contracts.problems import raise_problems


def read_json(text: str, source: str) -> Any:
    """The value in `text`. Raises InvalidContractError with line and column."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise_problems([f"{source}: line {error.lineno}, column {error.colno}: is not JSON: {error.msg}"])
    except RecursionError:
        raise_problems([f"{source}: is nested too deeply"])
    except ValueError as error:
        raise_problems([f"{source}: {error}"])
    return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {shown(key)} is given twice; expected it once")
        result[key] = value
    return result


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not accepted; expected a finite number")
