"""What was declared, updated and retired at run time, kept in one JSON file that survives a kill at any moment."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import msgspec

from superinfer.contracts.declaration import Declaration, declare
from superinfer.contracts.document import to_document
from superinfer.contracts.errors import ContractError, ResourceError
from superinfer.contracts.versions import KnownVersion

STATE_SCHEMA = "superinfer.contracts-state/1"


@dataclass(frozen=True)
class ContractState:
    """Contracts declared at run time by service id, ids retired at run time, and the last version of every contract."""

    declarations: Mapping[str, Declaration] = field(default_factory=dict)
    retired: frozenset[str] = frozenset()
    versions: Mapping[str, KnownVersion] = field(default_factory=dict)

    def with_declared(self, declarations: Iterable[Declaration]) -> ContractState:
        """After these were registered or updated."""
        new = {declaration.service_id: declaration for declaration in declarations}
        return replace(self, declarations={**self.declarations, **new}, retired=self.retired - new.keys())

    def with_retired(self, service_id: str) -> ContractState:
        """After this contract was retired, wherever it was declared."""
        kept = {key: declaration for key, declaration in self.declarations.items() if key != service_id}
        return replace(self, declarations=kept, retired=self.retired | {service_id})

    def with_versions(self, versions: Mapping[str, KnownVersion]) -> ContractState:
        """With these as the last versions."""
        return replace(self, versions=dict(versions))


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    contracts: list[dict[str, Any]]
    retired: list[str]
    versions: dict[str, KnownVersion]


class StateFile:
    """The file, held by one process at a time: a context manager.

    Raises ResourceError where another process holds it or it cannot be written, ContractError where it is corrupt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def __enter__(self) -> StateFile:
        lock = self.path.with_name(f".{self.path.name}.lock")
        try:
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._cannot("be written", error)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._release()
            raise ResourceError(
                f"contracts state {self.path} is in use by another server; give each server its own file"
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def load(self) -> ContractState:
        """What was saved last; nothing where there is no file yet."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return ContractState()
        except OSError as error:
            self._cannot("be read", error)
        try:
            stored = msgspec.json.decode(data, type=_Stored)
            if stored.schema != STATE_SCHEMA:
                self._corrupt(f"its schema is {stored.schema!r}, expected {STATE_SCHEMA!r}")
            declarations = [declare(item, f"contracts[{i}]") for i, item in enumerate(stored.contracts)]
        except (msgspec.MsgspecError, ContractError, UnicodeDecodeError, RecursionError) as error:
            if isinstance(error, CorruptStateError):
                raise
            self._corrupt(str(error))
        by_id = {item.service_id: replace(item, source=f"{self.path}: {item.service_id}") for item in declarations}
        if len(by_id) < len(declarations) or by_id.keys() & set(stored.retired):
            self._corrupt("a service_id is there twice")
        return ContractState(by_id, frozenset(stored.retired), stored.versions)

    def save(self, state: ContractState) -> None:
        """Replace the file. A reader, and whoever starts after a crash, finds the old content or the new one, whole."""
        stored = _Stored(
            schema=STATE_SCHEMA,
            contracts=[to_document(declaration) for declaration in state.declarations.values()],
            retired=sorted(state.retired),
            versions=dict(state.versions),
        )
        text = msgspec.json.format(msgspec.json.encode(stored), indent=1) + b"\n"
        temporary = self.path.with_name(f".{self.path.name}.new")
        try:
            with temporary.open("wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
            self._sync_directory()
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            self._cannot("be written", error)

    def _sync_directory(self) -> None:
        """Make the new name survive a power cut."""
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _cannot(self, what: str, error: OSError) -> NoReturn:
        raise ResourceError(f"contracts state {self.path} cannot {what}: {error.strerror}") from None

    def _corrupt(self, why: str) -> NoReturn:
        raise CorruptStateError(
            f"contracts state {self.path} is corrupt: {why}; restore it from a copy, or move it away to start without "
            "what was registered, updated or retired at run time"
        ) from None


class CorruptStateError(ContractError):
    """A state file that was not written by `StateFile.save`, or was damaged since."""
