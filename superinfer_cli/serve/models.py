"""GET /v1/models: the one model that is served."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from superinfer.cli.serve.admission import check_model
from superinfer.cli.serve.state import Service, get_service

router = APIRouter()


def _describe(service: Service) -> dict[str, Any]:
    return {
        "id": service.settings.model_name,
        "object": "model",
        "created": service.settings.created_s,
        "owned_by": "superinfer",
        "max_model_len": service.settings.max_model_len,
    }


@router.get("/v1/models")
async def list_models(service: Annotated[Service, Depends(get_service)]) -> dict[str, Any]:
    """Every model of this server."""
    return {"object": "list", "data": [_describe(service)]}


@router.get("/v1/models/{model:path}")
async def get_model(model: str, service: Annotated[Service, Depends(get_service)]) -> dict[str, Any]:
    """One model by its id, which may hold slashes."""
    check_model(service, model)
    return _describe(service)
