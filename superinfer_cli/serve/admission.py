"""From a checked body to engine jobs: the model, the contract, the prompt's tokens, the room for the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from superinfer.cli.serve.api_keys import KeyHolder
from superinfer.cli.serve.errors import forbidden, invalid, not_found
from superinfer.cli.serve.generation import Job
from superinfer.cli.serve.header_contracts import CONTRACT_HEADER, contract_of_headers
from superinfer.cli.serve.schema import MAX_CHOICES, GenerationBody
from superinfer.cli.serve.state import Service
from superinfer.contracts.contract import BEST_EFFORT_ID
from superinfer.contracts.errors import ContractError
from superinfer.executor.tokenizer import IncrementalDetokenizer
from superinfer.scheduler.request import Request

SERVED_HEADER = "x-slo-contract-served"
LONG_TEXT_CHARACTERS = 4096


def check_model(service: Service, model: str) -> None:
    """404 unless `model` is the served name."""
    served = service.settings.model_name
    if model != served:
        raise not_found(
            f"The model '{model}' does not exist here; this server has '{served}'.",
            param="model",
            code="model_not_found",
        )


def resolve_contract_id(service: Service, header: str | None, holder: KeyHolder | None) -> str:
    """The contract that a request names, "service" or "service/sub"; the best-effort one where it names none.

    403 `contract_not_allowed` where the request's API key is not bound to it, whether or not there is such a contract.
    """
    if header is None or not header.strip():
        return BEST_EFFORT_ID
    contract_id = header.strip()
    if holder is not None and not holder.may_use(contract_id):
        raise forbidden(
            f"This API key may not use contract '{contract_id}'.", param=CONTRACT_HEADER, code="contract_not_allowed"
        )
    try:
        service.registry.resolve(contract_id)
    except ContractError as error:
        raise not_found(str(error), param=CONTRACT_HEADER, code="contract_not_found") from error
    return contract_id


async def resolve_contract(service: Service, headers: Mapping[str, str], holder: KeyHolder | None) -> str:
    """The contract of a request: the one it names, else that of the bounds in its headers, else best effort.

    Bounds in headers need a key that may use every contract, and have to be attainable as any contract's.
    """
    named = headers.get(CONTRACT_HEADER, "").strip()
    stated = None if named else contract_of_headers(headers)
    if stated is None:
        return resolve_contract_id(service, named, holder)
    if holder is not None and not holder.may_change_contracts:
        raise forbidden(
            f"This API key is bound to some contracts and may not state other bounds; name one in {CONTRACT_HEADER}.",
            code="contract_not_allowed",
        )
    if short := service.book.unattainable([stated]):
        raise invalid(str(short[0]), code="unattainable_contract")
    is_new, forgotten = service.header_contracts.use(stated)
    for contract_id in forgotten:
        await service.engine.retire_contract(contract_id)
    if is_new:
        await service.engine.register_contract(stated)
    return stated.service_id


async def encode(service: Service, text: str) -> list[int]:
    """Token ids of a text; a long one is encoded beside the event loop, so that streams go on meanwhile."""
    if len(text) > LONG_TEXT_CHARACTERS:
        return await asyncio.to_thread(service.tokenizer.encode, text)
    return service.tokenizer.encode(text)


def output_room(service: Service, prompt_tokens: int, asked: int | None, default: int | None, param: str) -> int:
    """Output tokens that the request may make: what it asked, else `default` or the rest of the context.

    400 `context_length_exceeded` where prompt and answer do not fit the context.
    """
    limit = service.settings.max_model_len
    room = limit - prompt_tokens
    wanted = asked or 0
    if room < max(wanted, 1):
        detail = f"{prompt_tokens} in the prompt" + (f", {wanted} for the answer" if asked else "")
        raise invalid(
            f"This model's maximum context length is {limit} tokens, but the request asks for "
            f"{prompt_tokens + max(wanted, 1)} ({detail}). Shorten the prompt or the answer.",
            param=param,
            code="context_length_exceeded",
        )
    return asked if asked is not None else min(room, default or room)


def build_jobs(
    service: Service,
    body: GenerationBody,
    *,
    answer_id: str,
    contract_id: str,
    prompts: Sequence[list[int]],
    max_tokens: Sequence[int],
) -> list[Job]:
    """One job for each prompt and each of its `n` choices; the choices of the first prompt come first."""
    choices = body.n or 1
    if len(prompts) * choices > MAX_CHOICES:
        raise invalid(
            f"{len(prompts)} prompts with n = {choices} make {len(prompts) * choices} choices; "
            f"at most {MAX_CHOICES} go into one request.",
            param="n",
            code="invalid_value",
        )
    vocabulary = service.tokenizer.vocab_size
    for token_id in body.stop_token_ids or ():
        if token_id >= vocabulary:
            raise invalid(
                f"stop_token_ids: {token_id} is not a token id; the model's go up to {vocabulary - 1}.",
                param="stop_token_ids",
                code="invalid_value",
            )
    end_ids = frozenset(body.stop_token_ids or ())
    if not body.ignore_eos:
        end_ids |= frozenset(service.tokenizer.eos_token_ids)
    arrival_s = time.monotonic()
    jobs: list[Job] = []
    for prompt, limit in zip(prompts, max_tokens, strict=True):
        for _ in range(choices):
            index = len(jobs)
            request = Request(
                request_id=f"{answer_id}-{index}",
                contract_id=contract_id,
                prompt_token_ids=prompt,
                sampling=body.sampling_params(limit, index),
                arrival_s=arrival_s,
            )
            detokenizer = IncrementalDetokenizer(service.tokenizer, stop=body.stop_strings)
            jobs.append(Job(index, request, detokenizer, end_ids))
    return jobs


def served_header(jobs: Sequence[Job]) -> dict[str, str]:
    """The contract that the request is served under: the one it named, or in overload an alternative of it."""
    served = dict.fromkeys(job.alternative_id or job.request.contract_id for job in jobs)
    return {SERVED_HEADER: ", ".join(served)}


def usage(jobs: Sequence[Job], choices_per_prompt: int, output_tokens: int) -> dict[str, Any]:
    """The usage block; a prompt counts once, however many choices it has."""
    prompts = jobs[::choices_per_prompt]
    prompt_tokens = sum(len(job.request.prompt_token_ids) for job in prompts)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(job.cached_tokens for job in prompts)},
    }
