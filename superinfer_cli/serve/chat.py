"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from superinfer.cli.serve.admission import (
    LONG_TEXT_CHARACTERS,
    build_jobs,
    check_model,
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
from superinfer.cli.serve.schema import ChatBody
from superinfer.cli.serve.state import Service, get_key_holder, get_service
from superinfer.contracts.errors import UsageError

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(
    body: ChatBody,
    request: Request,
    service: Annotated[Service, Depends(get_service)],
    holder: Annotated[KeyHolder | None, Depends(get_key_holder)],
    asked: Annotated[dict[str, str], Depends(slo_headers)],
) -> Response:
    """Answer a conversation, `n` times."""
    check_model(service, body.model)
    contract_id = await resolve_contract(service, asked, holder)
    prompt = await _prompt_ids(service, body)
    limit = output_room(service, len(prompt), body.token_limit, None, "messages")
    answer_id = f"chatcmpl-{uuid.uuid4().hex}"
    jobs = build_jobs(service, body, answer_id=answer_id, contract_id=contract_id, prompts=[prompt], max_tokens=[limit])
    headers = {CONTRACT_HEADER: contract_id}
    frame = {"id": answer_id, "created": int(time.time()), "model": service.settings.model_name}
    if body.stream:
        frame["object"] = "chat.completion.chunk"
        return EventStreamResponse(_events(service, body, jobs, frame), headers, lambda: served_header(jobs))
    frame["object"] = "chat.completion"
    done = await until_disconnect(request.receive, collect(service.engine, service.in_flight, jobs))
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": one.text, "refusal": None},
            "logprobs": None,
            "finish_reason": one.finish_reason,
        }
        for index, one in enumerate(done)
    ]
    total = usage(jobs, len(jobs), sum(one.output_tokens for one in done))
    return JSONResponse({**frame, "choices": choices, "usage": total}, headers={**headers, **served_header(jobs)})


async def _prompt_ids(service: Service, body: ChatBody) -> list[int]:
    messages = body.template_messages
    try:
        if sum(len(message["content"]) for message in messages) > LONG_TEXT_CHARACTERS:
            return await asyncio.to_thread(service.tokenizer.apply_chat_template, messages)
        return service.tokenizer.apply_chat_template(messages)
    except UsageError as error:
        raise invalid(str(error), param="messages") from error


async def _events(
    service: Service, body: ChatBody, jobs: list[Job], frame: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    """Per choice a chunk with the role, then its text, then one with the finish reason; usage last when asked."""
    no_usage = {"usage": None} if body.include_usage else {}
    output_tokens = [0] * len(jobs)
    begun: set[int] = set()

    def chunk(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**frame, "choices": [choice], **no_usage}

    async with aclosing(generate_all(service.engine, service.in_flight, jobs)) as pieces:
        async for piece in pieces:
            output_tokens[piece.index] = piece.output_tokens
            if piece.index not in begun:
                begun.add(piece.index)
                yield chunk(piece.index, {"role": "assistant", "content": ""})
            if piece.text:
                yield chunk(piece.index, {"content": piece.text})
            if piece.finish_reason:
                yield chunk(piece.index, {}, piece.finish_reason)
    if body.include_usage:
        yield {**frame, "choices": [], "usage": usage(jobs, len(jobs), sum(output_tokens))}
