"""Contracts from text, a file, or a directory of files: YAML or JSON, one contract, a list, or several documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from superinfer.contracts.compile import compile_declaration
from superinfer.contracts.contract import SLOContract
from superinfer.contracts.declaration import Declaration, declare
from superinfer.contracts.errors import ContractError
from superinfer.contracts.json_reader import read_json
from superinfer.contracts.problems import InvalidContractError, raise_problems
from superinfer.contracts.registry import ContractRegistry
from superinfer.contracts.yaml_reader import read_yaml

SUFFIXES = (".yaml", ".yml", ".json")
MAX_BYTES = 256 * 1024
MAX_CONTRACTS_IN_A_FILE = 1000


def load_contracts(path: Path) -> list[SLOContract]:
    """The effective contracts of a file or directory, by service id. Raises ContractError, nothing half-done."""
    return load_registry(path).list()


def load_registry(path: Path) -> ContractRegistry:
    """A registry of all contracts in a file or directory, with inheritance and its provenance."""
    registry = ContractRegistry()
    registry.register(load_declarations(path))
    return registry


def parse_contract_text(text: str, source: str) -> list[SLOContract]:
    """The contracts in `text` by themselves, without parents. Raises InvalidContractError.

    To register them among others, give `parse_declarations(text, source)` to ContractRegistry.register: what a
    contract leaves unsaid is known only there.
    """
    return [compile_declaration(item, None, {}).contract for item in parse_declarations(text, source)]


def load_declarations(path: Path) -> list[Declaration]:
    """What is declared in a file, or in the *.yaml, *.yml and *.json of a directory; all problems in one error."""
    files = _contract_files(path)
    declarations: list[Declaration] = []
    problems: list[str] = []
    for file in files:
        try:
            declarations += parse_declarations(_read_text(file), str(file), is_json=file.suffix == ".json")
        except InvalidContractError as error:
            problems += error.problems
    raise_problems(problems)
    return declarations


def parse_declarations(text: str, source: str, *, is_json: bool | None = None) -> list[Declaration]:
    """What is declared in `text`; `source` names it in messages. None guesses JSON from the first character."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise_problems([f"{source}: is larger than {MAX_BYTES // 1024} KiB, which no contract is"])
    return _declare_all(_read_documents(text, source, is_json), source)


def _read_documents(text: str, source: str, is_json: bool | None) -> list[Any]:
    if not text.strip():
        return []
    if is_json:
        return [read_json(text, source)]
    if is_json is None and text.lstrip()[0] in "{[":
        try:
            return [read_json(text, source)]
        except InvalidContractError:
            pass  # a YAML flow mapping begins like JSON; if it is neither, YAML's complaint stands
    return read_yaml(text, source)


def _declare_all(documents: list[Any], source: str) -> list[Declaration]:
    places: list[tuple[str, Any]] = []
    for number, document in enumerate(documents, 1):
        place = source if len(documents) == 1 else f"{source}: document {number}"
        if isinstance(document, list):
            places += [(f"{place}: item {position}", item) for position, item in enumerate(document, 1)]
        else:
            places.append((place, document))
    if not places:
        raise_problems([f"{source}: is empty; expected a contract with service_id and slo"])
    if len(places) > MAX_CONTRACTS_IN_A_FILE:
        raise_problems([f"{source}: holds {len(places)} contracts; expected at most {MAX_CONTRACTS_IN_A_FILE}"])
    declarations: list[Declaration] = []
    problems: list[str] = []
    for place, document in places:
        try:
            declarations.append(declare(document, place))
        except InvalidContractError as error:
            problems += error.problems
    raise_problems(problems)
    return declarations


def _contract_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ContractError(f"{path}: does not exist; expected a contract file or a directory of them")
    files = sorted(
        file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file() and not file.name.startswith(".")
    )
    if not files:
        raise ContractError(f"{path}: holds no contract; expected files that end in {', '.join(SUFFIXES)}")
    return files


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as handle:
            data = handle.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidContractError([f"{file}: cannot be read: {error.strerror}"]) from None
    if len(data) > MAX_BYTES:
        raise InvalidContractError([f"{file}: is larger than {MAX_BYTES // 1024} KiB, which no contract is"])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidContractError(
            [f"{file}: is not UTF-8 text (byte {error.start}); expected YAML or JSON in UTF-8"]
        ) from None
