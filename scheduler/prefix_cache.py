"""Names for full KV blocks by what is in them, so that a prompt that begins like another one shares its blocks.

A block's name is a digest of its tokens and of the name of the block before it: equal names mean equal prefixes, since
the keys and values of a token depend on all tokens before it. Chained block names after vLLM's prefix caching.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from superinfer.scheduler.blocks import Kept, Key
from superinfer.scheduler.domain import DomainState
from superinfer.scheduler.sequence import SequenceState

NAME_BYTES = 16


def extend_names(names: list[bytes], token_ids: Sequence[int], block_size: int) -> None:
    """Append the names of the full blocks of `token_ids` that `names` does not have yet."""
    for block in range(len(names), len(token_ids) // block_size):
        content = array("q", token_ids[block * block_size : (block + 1) * block_size]).tobytes()
        before = names[-1] if names else b""
        names.append(hashlib.blake2b(before + content, digest_size=NAME_BYTES).digest())


def find_prefix(sequence: SequenceState, domain: DomainState, block_size: int) -> Kept | None:
    """The longest prefix of a waiting sequence that the domain can read; the last token is left to be computed, since
    the next one is sampled from it. What was computed in another precision than the domain's is not what it looks for.
    """
    blocks: list[int] = []
    names: list[Key] = []
    for of_tokens in sequence.block_names[: (sequence.prefill_target - 1) // block_size]:
        name = domain.precision + of_tokens
        block = domain.find(name)
        if block is None:
            break
        blocks.append(block)
        names.append(name)
    if not blocks:
        return None
    return Kept(blocks, names, len(blocks) * block_size, domain.memory)


def share(sequence: SequenceState, domain: DomainState, computed: int, block_size: int) -> None:
    """Let others find the full blocks that hold the KV of a sequence's first `computed` tokens.

    No step in flight may still change them. Where some of it was computed in another precision they are not what they
    would be taken for, and not shared.
    """
    if sequence.precision != domain.precision:
        return
    full = min(computed // block_size, len(sequence.blocks))
    if full > sequence.shared_blocks:
        if full > len(sequence.block_names):
            tokens = [*sequence.request.prompt_token_ids, *sequence.outputs]
            extend_names(sequence.block_names, tokens, block_size)
        for block in range(sequence.shared_blocks, min(full, len(sequence.block_names))):
            domain.name(sequence.blocks[block], domain.precision + sequence.block_names[block])
        sequence.shared_blocks = full
