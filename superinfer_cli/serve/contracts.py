"""/v1/contracts: register contracts at run time, list them with what they get."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request

from superinfer.cli.serve.errors import APIError, invalid, not_found
from superinfer.cli.serve.state import Service, engine_stats, get_service
from superinfer.contracts.contract import SLOContract
from superinfer.contracts.errors import ContractConflictError, ContractError
from superinfer.contracts.loading import parse_declarations
from superinfer.executor.messages import ContractStats

router = APIRouter()


@router.post("/v1/contracts")
async def register_contracts(request: Request, service: Annotated[Service, Depends(get_service)]) -> dict[str, Any]:
    """Register the contracts of a YAML or JSON body: all of them, or none and one error that says why."""
    try:
        text = (await request.body()).decode()
    except UnicodeDecodeError as error:
        raise invalid(f"The body is not UTF-8 text: {error}.", code="invalid_contract") from error
    async with service.contracts_lock:
        await engine_stats(service)  # an engine that is down would not learn of the contracts
        try:
            declarations = parse_declarations(text, "body")
            changed = service.registry.register(declarations)
        except ContractConflictError as error:
            raise APIError(409, str(error), code="contract_conflict") from error
        except ContractError as error:
            raise invalid(str(error), code="invalid_contract") from error
        for contract in changed:
            await service.engine.register_contract(contract)
    ids = [declaration.service_id for declaration in declarations]
    return {"status": "success", "contract_id": ids[0], "contract_ids": ids}


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


async def _stats(service: Service) -> dict[str, ContractStats] | None:
    """The engine's counts by contract id; None where it does not answer."""
    try:
        stats = await engine_stats(service)
    except APIError:
        return None
    return {one.service_id: one for one in stats.contracts}


def _describe(
    contract: SLOContract, stats: dict[str, ContractStats] | None, contract_id: str | None = None
) -> dict[str, Any]:
    """The contract and its fulfilment since the server started; sub-tasks have theirs."""
    contract_id = contract_id or contract.service_id
    described: dict[str, Any] = {"contract_id": contract_id, **msgspec.to_builtins(contract)}
    described["fulfillment"] = _fulfillment(contract, contract_id, stats)
    described["sub_slos"] = {
        name: _describe(sub, stats, f"{contract_id}/{name}") for name, sub in contract.sub_slos.items()
    }
    return described


def _fulfillment(
    contract: SLOContract, contract_id: str, stats: dict[str, ContractStats] | None
) -> dict[str, Any] | None:
    """Counts, and the share that met the contract: null before the first has finished or where nothing was promised."""
    if stats is None:
        return None
    counts = stats.get(contract_id) or ContractStats(service_id=contract_id)
    rate = None if contract.is_best_effort or not counts.finished else counts.met / counts.finished
    return {
        "finished": counts.finished,
        "met": counts.met,
        "running": counts.running,
        "waiting": counts.waiting,
        "rate": rate,
    }
