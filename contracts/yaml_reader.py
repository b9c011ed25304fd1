"""YAML documents as plain data, and nothing that a file of ours has no use for: no duplicate keys, no deep nesting, no
tags that make objects, and in contracts no aliases."""

from __future__ import annotations

from typing import Any

import yaml

from superinfer.contracts.errors import UsageError
from superinfer.contracts.printable import shown
from superinfer.contracts.problems import raise_problems

MAX_DEPTH = 32


def read_yaml(text: str, source: str) -> list[Any]:
    """All documents in `text`; empty ones are left out. Raises InvalidContractError with line and column."""
    try:
        return [document for document in yaml.load_all(text, Loader=PlainLoader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise_problems([f"{source}: {place}{error.problem or error.context}"])
    except yaml.YAMLError as error:
        raise_problems([f"{source}: is not YAML: {' '.join(str(error).split())}"])
    except (ValueError, OverflowError) as error:
        raise_problems([f"{source}: holds a value that cannot be read: {error}"])
    return []


def read_settings(text: str, source: str) -> Any:
    """The one document in `text`, a file of settings, in which aliases may stand. UsageError begins with `source`."""
    try:
        return yaml.load(text, Loader=SettingsLoader)
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{source}: holds a value that cannot be read: {error}") from None


class PlainLoader(yaml.SafeLoader):
    """Plain data alone; YAMLError for an alias, a key that is given twice, or deep nesting."""

    takes_aliases = False

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) and not self.takes_aliases:
            raise _refusal(f"the alias *{event.anchor} is not accepted; expected the value written out", event)
        if self._depth >= MAX_DEPTH:
            raise _refusal(f"is nested more than {MAX_DEPTH} levels deep", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            try:
                duplicate = key in seen
                seen.add(key)
            except TypeError:
                raise _refusal(f"{shown(key)} is not accepted as a key; expected text", key_node) from None
            if duplicate:
                raise _refusal(f"the key {shown(key)} is given twice; expected it once", key_node)
        return super().construct_mapping(node, deep=deep)


class SettingsLoader(PlainLoader):
    """As PlainLoader, with aliases."""

    takes_aliases = True


def _refusal(problem: str, at: Any) -> yaml.MarkedYAMLError:
    """The error for a node or event that YAML allows and a contract does not."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)
