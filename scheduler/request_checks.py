"""What a request must be, whatever the load: refusals that name the field and what is accepted."""

from __future__ import annotations

from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.outputs import Refusal
from superinfer.scheduler.request import Request


def unfit(request: Request, config: SchedulerConfig, largest_domain_blocks: int) -> Refusal | None:
    """Why no domain could ever run this request, or None.

    `largest_domain_blocks` is the size of the largest KV pool among the domains that serve its contract.
    """
    prompt, most = len(request.prompt_token_ids), request.sampling.max_tokens
    if prompt == 0:
        return Refusal(code="empty_prompt", message="the prompt has no tokens")
    if most < 1:
        return Refusal(code="too_long", message=f"max_tokens {most} is not accepted; at least 1 is expected")
    if prompt + most > config.max_model_len:
        return Refusal(
            code="too_long",
            message=f"{prompt} prompt tokens and {most} output tokens exceed the context of "
            f"{config.max_model_len} tokens",
        )
    blocks = -(-(prompt + most) // config.block_size)
    if blocks > largest_domain_blocks:
        return Refusal(
            code="too_long",
            message=f"{prompt} prompt tokens and {most} output tokens need {blocks} KV blocks; "
            f"the largest domain that serves {request.contract_id} has {largest_domain_blocks}",
        )
    return None
