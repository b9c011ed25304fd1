"""GET /health: 200 while the engine answers and at least one domain is up."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends
from starlette.responses import JSONResponse, Response

from superinfer.cli.serve.errors import unavailable
from superinfer.cli.serve.state import Service, engine_stats, get_service

router = APIRouter()


@router.get("/health")
async def health(service: Annotated[Service, Depends(get_service)]) -> Response:
    """What a load balancer asks; 503 says why. `domains` says of which kind each is and what it does, `devices` has the
    figures of each that it can measure.
    """
    if service.in_flight.draining:
        raise unavailable("The server is shutting down.", code="shutting_down")
    stats = await engine_stats(service)
    if not stats.domains_up:
        raise unavailable("No domain is up: every worker process is down.", code="no_domain_up")
    return JSONResponse(
        {
            "status": "ok",
            "domains_up": stats.domains_up,
            "domains": [msgspec.structs.asdict(domain) for domain in stats.domains],
            "running": stats.running,
            "waiting": stats.waiting,
            "kv_blocks_free": stats.kv_blocks_free,
            "kv_blocks_total": stats.kv_blocks_total,
            "devices": {} if service.devices is None else service.devices.figures(),
        }
    )
