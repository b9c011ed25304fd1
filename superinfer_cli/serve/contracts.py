"""/v1/contracts: register, update and retire contracts at run time, list them with what they get."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request

from superinfer.cli.serve.api_keys import KeyHolder
from superinfer.cli.serve.errors import APIError, forbidden, invalid, not_found
from superinfer.cli.serve.state import Service, engine_stats, get_key_holder, get_service
from superinfer.contracts.contract import SLOContract
from superinfer.contracts.declaration import Declaration
from superinfer.contracts.errors import ContractConflictError, ContractError, ResourceError, UnknownContractError
from superinfer.contracts.loading import parse_declarations
from superinfer.contracts.registry import Change
from superinfer.executor.messages import ContractStats
from superinfer.profiler.feasibility import UnattainableContractError

router = APIRouter()


def may_change_contracts(holder: Annotated[KeyHolder | None, Depends(get_key_holder)]) -> None:
    """FastAPI dependency: 403 for an API key that is bound to some contracts."""
    if holder is not None and not holder.may_change_contracts:
        raise forbidden(
            "This API key is bound to some contracts; changing contracts takes one that may use all.",
            code="contract_changes_not_allowed",
        )


@router.post("/v1/contracts", dependencies=[Depends(may_change_contracts)])
async def register_contracts(request: Request, service: Annotated[Service, Depends(get_service)]) -> dict[str, Any]:
    """Register the contracts of a YAML or JSON body: all of them, or none and one error that says why."""
    declarations = await _declarations(request)
    change = await _change(service, lambda: service.book.register(declarations))
    ids = [declaration.service_id for declaration in declarations]
    return {"status": "success", "contract_id": ids[0], "contract_ids": ids, **_effects(service, change)}


@router.put("/v1/contracts/{contract_id:path}", dependencies=[Depends(may_change_contracts)])
async def update_contract(
    contract_id: str, request: Request, service: Annotated[Service, Depends(get_service)]
) -> dict[str, Any]:
    """Replace a contract by the one of a YAML or JSON body; requests in flight keep the version they have."""
    _check_is_service(contract_id)
    declarations = await _declarations(request)
    ids = [declaration.service_id for declaration in declarations]
    if ids != [contract_id]:
        raise invalid(
            f"The body declares {', '.join(ids)}; expected one contract with service_id {contract_id}, as in the path.",
            param="service_id",
            code="invalid_contract",
        )
    change = await _change(service, lambda: service.book.update(declarations[0]))
    version = service.registry.get(contract_id).version
    return {"status": "success", "contract_id": contract_id, "version": version, **_effects(service, change)}


@router.delete("/v1/contracts/{contract_id:path}", dependencies=[Depends(may_change_contracts)])
async def retire_contract(contract_id: str, service: Annotated[Service, Depends(get_service)]) -> dict[str, Any]:
    """Retire a contract: new requests that name it get 404, those in flight go on under it."""
    _check_is_service(contract_id)
    await _change(service, lambda: service.book.retire(contract_id))
    return {"status": "success", "contract_id": contract_id, "retired": True}


@router.get("/v1/contracts")
async def list_contracts(service: Annotated[Service, Depends(get_service)]) -> dict[str, Any]:
    """Every contract with its live fulfilment."""
    stats = await _stats(service)
    return {"object": "list", "data": [_describe(contract, stats) for contract in service.registry.list()]}


@router.get("/v1/contracts/{contract_id:path}")
async def get_contract(contract_id: str, service: Annotated[Service, Depends(get_service)]) -> dict[str, Any]:
    """One contract, or one of its sub-tasks by "service/sub"."""
    try:
        contract = service.registry.resolve(contract_id)
    except ContractError as error:
        raise not_found(str(error), param="contract_id", code="contract_not_found") from error
    return _describe(contract, await _stats(service), contract_id)


def _check_is_service(contract_id: str) -> None:
    if "/" in contract_id:
        service_id = contract_id.partition("/")[0]
        raise invalid(
            f"{contract_id} is a sub-task; it changes with its service: PUT /v1/contracts/{service_id}.",
            param="contract_id",
            code="invalid_contract",
        )


async def _declarations(request: Request) -> list[Declaration]:
    """What the body declares; 400 where it is malformed."""
    try:
        return parse_declarations((await request.body()).decode(), "body")
    except UnicodeDecodeError as error:
        raise invalid(f"The body is not UTF-8 text: {error}.", code="invalid_contract") from error
    except ContractError as error:
        raise invalid(str(error), code="invalid_contract") from error


async def _change(service: Service, make: Callable[[], Awaitable[Change]]) -> Change:
    """Make a change of contracts here and in the engine, one at a time, or answer why not."""
    async with service.contracts_lock:
        await engine_stats(service)  # an engine that is down would not learn of the change
        try:
            change = await make()
        except UnknownContractError as error:
            raise not_found(str(error), param="contract_id", code="contract_not_found") from error
        except ContractConflictError as error:
            raise APIError(409, str(error), code="contract_conflict") from error
        except UnattainableContractError as error:
            raise invalid(f"{error} (of superinfer serve)", code="unattainable_contract") from error
        except ContractError as error:
            raise invalid(str(error), code="invalid_contract") from error
        except ResourceError as error:
            raise APIError(500, str(error), error_type="server_error", code="contracts_not_saved") from error
        for service_id in change.retired:
            await service.engine.retire_contract(service_id)
        for contract in change.contracts:
            await service.engine.register_contract(contract)
    return change


def _effects(service: Service, change: Change) -> dict[str, Any]:
    """What else a change did: new versions of the contracts it touched, and bounds out of reach that were let in."""
    effects: dict[str, Any] = {"versions": {one.service_id: one.version for one in change.contracts}}
    if short := service.book.shortfalls(change):
        effects["unattainable"] = [str(check) for check in short]
    return effects


@dataclass(frozen=True, slots=True)
class _Live:
    """The engine's counts and reservations by contract id."""

    counts: dict[str, ContractStats]
    reserved: dict[str, dict[str, float]]


async def _stats(service: Service) -> _Live | None:
    """What the engine says of contracts now; None where it does not answer."""
    try:
        stats = await engine_stats(service)
    except APIError:
        return None
    reserved: dict[str, dict[str, float]] = {}
    for domain_id, owners in stats.reserved_gb_per_s.items():
        for contract_id, rate in owners.items():
            reserved.setdefault(contract_id, {})[domain_id] = rate
    return _Live({one.service_id: one for one in stats.contracts}, reserved)


def _describe(contract: SLOContract, stats: _Live | None, contract_id: str | None = None) -> dict[str, Any]:
    """The contract and its fulfilment since the server started; sub-tasks have theirs."""
    contract_id = contract_id or contract.service_id
    described: dict[str, Any] = {"contract_id": contract_id, **msgspec.to_builtins(contract)}
    described["fulfillment"] = _fulfillment(contract, contract_id, stats)
    described["sub_slos"] = {
        name: _describe(sub, stats, f"{contract_id}/{name}") for name, sub in contract.sub_slos.items()
    }
    return described


def _fulfillment(contract: SLOContract, contract_id: str, stats: _Live | None) -> dict[str, Any] | None:
    """Counts, and the share that met the contract: null before the first has finished or where nothing was promised."""
    if stats is None:
        return None
    counts = stats.counts.get(contract_id) or ContractStats(service_id=contract_id)
    rate = None if contract.is_best_effort or not counts.finished else counts.met / counts.finished
    return {
        "finished": counts.finished,
        "met": counts.met,
        "running": counts.running,
        "waiting": counts.waiting,
        "rate": rate,
        "refused": counts.refused,
        "fell_back": counts.fell_back,
        "budget": _budget(counts),
        "reserved_gb_per_s": stats.reserved.get(contract_id, {}),
    }


def _budget(counts: ContractStats) -> dict[str, Any] | None:
    """The error budget by its worst objective and by each; null before anything counted and for best effort."""
    if not counts.budgets:
        return None
    burned = max(state.burned for state in counts.budgets)
    return {
        "burned": burned,
        "left": max(1.0 - burned, 0.0),
        "objectives": msgspec.to_builtins(counts.budgets),
    }
