"""POST /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from superinfer.cli.serve.admission import (
    build_jobs,
    check_model,
    encode,
    output_room,
    resolve_contract,
    served_header,
    usage,
)
from superinfer.cli.serve.api_keys import KeyHolder
from superinfer.cli.serve.errors import invalid
from superinfer.cli.serve.event_stream import EventStreamResponse, until_disconnect
from superinfer.cli.serve.generation import Job, collect, generate_all
from superinfer.cli.serve.header_contracts import CONTRACT_HEADER, slo_headers
from superinfer.cli.serve.schema import CompletionBody
from superinfer.cli.serve.state import Service, get_key_holder, get_service

router = APIRouter()

DEFAULT_MAX_TOKENS = 16


@router.post("/v1/completions")
async def create_completion(
    body: CompletionBody,
    request: Request,
    service: Annotated[Service, Depends(get_service)],
    holder: Annotated[KeyHolder | None, Depends(get_key_holder)],
    asked: Annotated[dict[str, str], Depends(slo_headers)],
) -> Response:
    """Continue one or several prompts, each `n` times."""
    check_model(service, body.model)
    contract_id = await resolve_contract(service, asked, holder)
    prompts = [await _prompt_ids(service, prompt) for prompt in body.prompts]
    limits = [output_room(service, len(prompt), body.max_tokens, DEFAULT_MAX_TOKENS, "prompt") for prompt in prompts]
    answer_id = f"cmpl-{uuid.uuid4().hex}"
    jobs = build_jobs(service, body, answer_id=answer_id, contract_id=contract_id, prompts=prompts, max_tokens=limits)
    headers = {CONTRACT_HEADER: contract_id}
    frame = {
        "id": answer_id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": service.settings.model_name,
    }
    if body.stream:
        return EventStreamResponse(_events(service, body, jobs, frame), headers, lambda: served_header(jobs))
    done = await until_disconnect(request.receive, collect(service.engine, service.in_flight, jobs))
    choices = [
        {"index": index, "text": one.text, "logprobs": None, "finish_reason": one.finish_reason}
        for index, one in enumerate(done)
    ]
    total = usage(jobs, body.n or 1, sum(one.output_tokens for one in done))
    return JSONResponse({**frame, "choices": choices, "usage": total}, headers={**headers, **served_header(jobs)})


async def _prompt_ids(service: Service, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, str):
        return await encode(service, prompt)
    vocabulary = service.tokenizer.vocab_size
    for token_id in prompt:
        if not 0 <= token_id < vocabulary:
            raise invalid(
                f"prompt: {token_id} is not a token id; the model's are 0 to {vocabulary - 1}.",
                param="prompt",
                code="invalid_value",
            )
    return prompt


async def _events(
    service: Service, body: CompletionBody, jobs: list[Job], frame: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    no_usage = {"usage": None} if body.include_usage else {}
    output_tokens = [0] * len(jobs)
    async with aclosing(generate_all(service.engine, service.in_flight, jobs)) as pieces:
        async for piece in pieces:
            output_tokens[piece.index] = piece.output_tokens
            if piece.text or piece.finish_reason:
                choice = {
                    "index": piece.index,
                    "text": piece.text,
                    "logprobs": None,
                    "finish_reason": piece.finish_reason,
                }
                yield {**frame, "choices": [choice], **no_usage}
    if body.include_usage:
        yield {**frame, "choices": [], "usage": usage(jobs, body.n or 1, sum(output_tokens))}
