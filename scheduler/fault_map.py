"""The fault-domain map: which domains serve which contract, and which take over when those are down (SPEC S7).

    risk-scoring: [domain-0]                                     # every other domain is a backup, in order
    report-gen: {home: [domain-1, domain-2], backup: [domain-0]}
    fraud-check: {home: [domain-0], backup: []}                  # waits until domain-0 is back
    "*": [domain-1, domain-2]                                    # contracts that no other line covers

An entry holds for the contract, its sub-tasks and its children (ids that go on with `-`), the longest entry first. A
contract runs on its home domains that are up; with all of them down, on the first backup that is up. Once one is back,
what waits goes home, and what runs elsewhere stays there until it ends. Contracts without an entry run anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from superinfer.contracts.errors import UsageError
from superinfer.contracts.naming import did_you_mean

EVERY_OTHER = "*"
SECTION = "fault_domains"
ACCEPTS = "a list of domains, or a mapping with home and backup"


class HomeAndBackup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a contract runs; `backup` None stands for every other domain, in order."""

    home: tuple[str, ...]
    backup: tuple[str, ...] | None = None


FaultMap = dict[str, HomeAndBackup]


class DomainAssignment:
    """Which domains serve each contract now, given those that are up; answers are kept until that changes.

    `permits` says whether a contract may run on a domain at all; one that may not is to it as one that is down.
    """

    def __init__(self, fault_map: Mapping[str, HomeAndBackup], domain_ids: Sequence[str]) -> None:
        self.has_map = bool(fault_map)
        self._map = resolve_fault_map(fault_map, domain_ids, source="scheduler")
        self._domain_ids = list(domain_ids)
        self._up: frozenset[str] = frozenset(domain_ids)
        self._serving: dict[str, tuple[str, ...]] = {}
        self.permits: Callable[[str, str], bool] = lambda contract_id, domain_id: True

    def set_up(self, up: Collection[str]) -> None:
        """From now on these domains are up."""
        self._domain_ids += [domain_id for domain_id in up if domain_id not in self._domain_ids]
        self._up = frozenset(up)
        self._serving.clear()

    def forget(self, contract_id: str) -> None:
        """What the contract permits may have changed."""
        self._serving.pop(contract_id, None)

    def home(self, contract_id: str) -> Sequence[str]:
        """The domains that serve a contract when all are up."""
        entry = entry_of(self._map, contract_id)
        return self._domain_ids if entry is None else entry.home

    def reachable(self, contract_id: str) -> Sequence[str]:
        """The domains that may ever serve a contract: its home and their backups, in order."""
        return [*self.home(contract_id), *self._backups(contract_id)]

    def serving(self, contract_id: str) -> tuple[str, ...]:
        """The domains that may start requests of a contract now; empty where it has to wait."""
        found = self._serving.get(contract_id)
        if found is None:
            found = self._serving[contract_id] = self._serving_now(contract_id)
        return found

    def hidden(self, domain_id: str, contract_ids: Collection[str]) -> frozenset[str]:
        """Those of `contract_ids` that this domain may not start."""
        if not self.has_map:
            return frozenset()
        return frozenset(each for each in contract_ids if domain_id not in self.serving(each))

    def _serving_now(self, contract_id: str) -> tuple[str, ...]:
        if entry_of(self._map, contract_id) is None:
            return tuple(domain_id for domain_id in self._domain_ids if domain_id in self._up)
        home = tuple(each for each in self.home(contract_id) if self._may_serve(contract_id, each))
        return home or tuple(each for each in self._backups(contract_id) if self._may_serve(contract_id, each))[:1]

    def _backups(self, contract_id: str) -> Sequence[str]:
        entry = entry_of(self._map, contract_id)
        if entry is None:
            return ()
        return [each for each in self._domain_ids if each not in entry.home] if entry.backup is None else entry.backup

    def _may_serve(self, contract_id: str, domain_id: str) -> bool:
        return domain_id in self._up and self.permits(contract_id, domain_id)


def entry_of(fault_map: Mapping[str, HomeAndBackup], contract_id: str) -> HomeAndBackup | None:
    """The entry that covers a contract, its own or that of the nearest ancestor; None where it may run anywhere."""
    if contract_id in fault_map:
        return fault_map[contract_id]
    service_id = contract_id.partition("/")[0]
    covering = [key for key in fault_map if service_id == key or service_id.startswith(f"{key}-")]
    return fault_map[max(covering, key=len)] if covering else fault_map.get(EVERY_OTHER)


def resolve_fault_map(
    fault_map: Mapping[str, HomeAndBackup],
    domain_ids: Sequence[str],
    *,
    contract_ids: Collection[str] | None = None,
    source: str,
) -> FaultMap:
    """The map with the engine's own domain ids, for which `domain-0` and `0` are the same.

    UsageError for a domain that does not exist, one given twice, or (where `contract_ids` are given) an entry that
    covers no contract.
    """
    resolved: FaultMap = {}
    for key, entry in fault_map.items():
        if contract_ids is not None and key != EVERY_OTHER and not any(_covers(key, each) for each in contract_ids):
            nearest = did_you_mean(key, contract_ids) or f"; registered: {', '.join(sorted(contract_ids)) or 'none'}"
            raise UsageError(f"fault domains {source}: contract {key!r} is not registered{nearest}")
        home = tuple(_domain_id(each, domain_ids, f"{source}: {key}") for each in entry.home)
        backup = entry.backup
        if backup is not None:
            backup = tuple(_domain_id(each, domain_ids, f"{source}: {key}") for each in backup)
        named = [*home, *(backup or ())]
        if twice := {each for each in named if named.count(each) > 1}:
            raise UsageError(f"fault domains {source}: {key}: domain {min(twice)!r} is given twice; once is accepted")
        resolved[key] = HomeAndBackup(home, backup)
    return resolved


def load_fault_map(path: Path) -> FaultMap:
    """Read a map from YAML or JSON, where it may stand below `fault_domains`. UsageError says what is wrong."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"fault domains {path}: cannot be read ({error})") from None
    return parse_fault_map(text, str(path))


def parse_fault_map(text: str, source: str) -> FaultMap:
    """The map in `text`; `source` is how errors call it."""
    from superinfer.contracts.yaml_reader import read_settings  # workers import this module, and never read YAML

    data = read_settings(text, f"fault domains {source}")
    if isinstance(data, dict) and list(data) == [SECTION]:
        data = data[SECTION]
    return fault_map_from(data, source)


def fault_map_from(data: object, source: str) -> FaultMap:
    """The map in plain data, as a section of a larger file holds it."""
    if not isinstance(data, dict) or not data:
        raise UsageError(f"fault domains {source}: a mapping of contracts to domains is needed, as in a: [domain-0]")
    return {str(key): _entry(value, f"{source}: {key}") for key, value in data.items()}


def _entry(value: object, place: str) -> HomeAndBackup:
    if isinstance(value, dict):
        if unknown := [key for key in value if key not in ("home", "backup")]:
            raise UsageError(f"fault domains {place}: unknown key {unknown[0]!r}; accepted: home, backup")
        backup = _names(value["backup"], f"{place}: backup") if value.get("backup") is not None else None
        home = _names(value.get("home"), f"{place}: home")
    else:
        home, backup = _names(value, place), None
    if not home:
        raise UsageError(f"fault domains {place}: no home domain is named; {ACCEPTS} is accepted")
    return HomeAndBackup(home, backup)


def _names(value: object, place: str) -> tuple[str, ...]:
    """Domain names; YAML reads a bare 0 as a number."""
    is_list = isinstance(value, list) and all(isinstance(each, str) or type(each) is int for each in value)
    if not is_list:
        raise UsageError(f"fault domains {place}: {value!r} is not accepted; expected {ACCEPTS}")
    assert isinstance(value, list)
    return tuple(str(each) for each in value)


def _domain_id(name: str, domain_ids: Sequence[str], place: str) -> str:
    for candidate in (name, f"domain-{name}", name.removeprefix("domain-")):
        if candidate in domain_ids:
            return candidate
    known = [each if each.startswith("domain-") else f"domain-{each}" for each in domain_ids]
    raise UsageError(f"fault domains {place}: domain {name!r} does not exist; accepted: {', '.join(known)}")


def _covers(key: str, contract_id: str) -> bool:
    return contract_id == key or contract_id.startswith((f"{key}-", f"{key}/"))
