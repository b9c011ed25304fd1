"""API keys and the contracts that each may use.

    sk-triage-desk: [hospital-core-emergency-triage]   # this contract and its sub-tasks
    sk-reports: [report-gen, customer-assistant]
    sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08: ["*"]   # every contract, and changing them

Whoever may name a contract may claim its urgency; hence keys are bound. Best effort is open to every key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from superinfer.contracts.contract import BEST_EFFORT_ID
from superinfer.contracts.errors import UsageError
from superinfer.contracts.naming import did_you_mean
from superinfer.contracts.yaml_reader import PlainLoader

EVERY = "*"
DIGEST_PREFIX = "sha256:"
HASHED = re.compile(DIGEST_PREFIX + r"([0-9a-f]{64})")
ACCEPTS = "a list of contract ids, or ['*'] for all"


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """What a key may use; `contract_ids` None stands for every contract, and for changing them."""

    digest: bytes = field(repr=False)
    contract_ids: frozenset[str] | None = None

    @property
    def may_change_contracts(self) -> bool:
        """Whether it may register, update and retire contracts."""
        return self.contract_ids is None

    def may_use(self, contract_id: str) -> bool:
        """Whether it may send requests of a contract, or of a sub-task of one."""
        if self.contract_ids is None or contract_id == BEST_EFFORT_ID:
            return True
        return contract_id in self.contract_ids or contract_id.partition("/")[0] in self.contract_ids


def unbound(key: str) -> KeyHolder:
    """The holder of a key that may use every contract."""
    return KeyHolder(_digest(key))


def find_holder(holders: Iterable[KeyHolder], key: str) -> KeyHolder | None:
    """Whose key this is. All are compared, at one length, so that the time taken tells nothing about a key."""
    given = _digest(key)
    found = None
    for holder in holders:
        if hmac.compare_digest(given, holder.digest):
            found = holder
    return found


def load_api_keys(path: Path, contract_ids: Collection[str]) -> tuple[KeyHolder, ...]:
    """Read a file of keys. UsageError says what is wrong, and never shows a key."""
    try:
        data: Any = yaml.load(path.read_text("utf-8"), Loader=PlainLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--api-keys {path}: cannot be read ({error})") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise UsageError(f"--api-keys {path}: {line}this is not valid YAML, or a key that is there already") from None
    except (yaml.YAMLError, ValueError, OverflowError):
        raise UsageError(f"--api-keys {path}: is not valid YAML") from None
    if not isinstance(data, dict) or not data:
        raise UsageError(f"--api-keys {path}: a mapping of keys to contracts is needed, as in KEY: [a-contract]")
    holders: dict[bytes, KeyHolder] = {}
    for number, (key, allowed) in enumerate(data.items(), 1):
        place = f"--api-keys {path}: entry {number}"
        if not isinstance(key, str) or not key or any(character.isspace() for character in key):
            raise UsageError(f"{place}: the key is empty, a number or holds white space; one word is accepted")
        if key.startswith(DIGEST_PREFIX) and not HASHED.fullmatch(key):
            raise UsageError(f"{place}: after {DIGEST_PREFIX} 64 lower-case hexadecimal digits are needed")
        holder = KeyHolder(_stored_digest(key), _allowed(allowed, contract_ids, place))
        if holder.digest in holders:
            raise UsageError(f"{place}: the key is there twice; once is accepted")
        holders[holder.digest] = holder
    return tuple(holders.values())


def _allowed(value: object, contract_ids: Collection[str], place: str) -> frozenset[str] | None:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
        raise UsageError(f"{place}: {value!r} is not accepted; expected {ACCEPTS}")
    if EVERY in value:
        return None
    for each in value:
        if each not in contract_ids:
            nearest = did_you_mean(each, contract_ids) or f"; registered: {', '.join(sorted(contract_ids)) or 'none'}"
            raise UsageError(f"{place}: contract {each!r} is not registered{nearest}")
    return frozenset(value)


def _stored_digest(key: str) -> bytes:
    hashed = HASHED.fullmatch(key)
    return bytes.fromhex(hashed[1]) if hashed else _digest(key)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
