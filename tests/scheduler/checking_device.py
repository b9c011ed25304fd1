"""A device that checks every plan against the rules of superinfer.scheduler.steps and gives tokens that prove the
inputs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from superinfer.scheduler.blocks import SEGMENT_BITS, device_pool
from superinfer.scheduler.steps import SampledToken, StepPlan, StepResult


def next_token(tokens: list[int]) -> int:
    """The toy model: a token that depends on everything before it."""
    return sum((i + 1) * t for i, t in enumerate(tokens)) % 9973


@dataclass
class Held:
    tokens: list[int]
    prompt_length: int
    max_tokens: int
    blocks: list[int] = field(default_factory=list)
    host: list[int] = field(default_factory=list)
    computed: int = 0
    finished: bool = False

    @property
    def outputs(self) -> int:
        return len(self.tokens) - self.prompt_length


class CheckingDevice:
    def __init__(
        self,
        domain_id: str,
        kv_blocks: int,
        host_blocks: int,
        block_size: int,
        *,
        memory: dict[int, list[int]] | None = None,
        segment: int = 0,
    ) -> None:
        self.domain_id, self.block_size = domain_id, block_size
        self.kv_blocks, self.host_blocks = kv_blocks, host_blocks
        self.held: dict[int, Held] = {}
        self.rotations = 0
        self.prefilled = self.saved = self.copied = self.moved_in = self.moved_out = 0
        # What the KV of each block stands for: the tokens themselves.
        self.device: dict[int, list[int]] = {} if memory is None else memory
        self.host: dict[int, list[int]] = {} if memory is None else memory
        self.segment = segment

    def execute(self, plan: StepPlan) -> StepResult:
        for source, to in plan.saves:
            self.host[to] = list(self.device[source])
        for source, to, first, end in plan.partial_saves:
            before = self.host[to][:first] if first else []
            assert len(before) == first
            self.host[to] = before + self.device[source][first:end]
        self.saved += len(plan.saves) + len(plan.partial_saves)
        for sequence_id in plan.finished:
            del self.held[sequence_id]
        for rotation in plan.rotate_out:
            held = self.held[rotation.sequence_id]
            sources = [source for source, _ in rotation.pairs]
            # Blocks from the front on that were saved are not moved again.
            assert sources == held.blocks[len(held.blocks) - len(sources) :]
            held.host, held.blocks = [to for _, to in rotation.pairs], []
            self.host.update({to: list(self.device.get(source, [])) for source, to in rotation.pairs})
            self.rotations += 1
            self.moved_out += len(sources)
        for rotation in plan.rotate_in:
            held = self.held[rotation.sequence_id]
            sources = [source for source, _ in rotation.pairs]
            assert sources[len(sources) - len(held.host) :] == held.host
            self.moved_in += len(sources)
            held.blocks, held.host = [to for _, to in rotation.pairs], []
            self.device.update({to: list(self.host[source]) for source, to in rotation.pairs})
        for source, to in plan.copies:
            assert to >> SEGMENT_BITS == device_pool(self.segment) != source >> SEGMENT_BITS
            self.copied += 1
            self.device[to] = list(self.device[source])
        for new in plan.new_sequences:
            assert new.sequence_id not in self.held
            held = self.held[new.sequence_id] = Held(list(new.token_ids), new.prompt_length, new.sampling.max_tokens)
            held.blocks, held.computed = list(new.blocks), new.computed
            self.prefilled += len(new.token_ids) - new.computed
            self.check_content(held, held.computed)
        result = StepResult(domain_id=self.domain_id, step_id=plan.step_id, started_s=0.0, finished_s=0.05)
        at_work = [*plan.decodes, *(step.sequence_id for step in plan.sequences)]
        assert len(set(at_work)) == len(at_work)
        assert {sequence_id for sequence_id, _ in plan.decode_blocks} <= set(plan.decodes)
        for sequence_id, block in plan.decode_blocks:
            self.held[sequence_id].blocks.append(block)
        for sequence_id in plan.decodes:
            held = self.held[sequence_id]
            if not held.finished:
                assert held.outputs > 0
                assert held.computed == len(held.tokens) - 1
                self.compute(sequence_id, held.computed, 1, result)
        for step in plan.sequences:
            self.held[step.sequence_id].blocks.extend(step.new_blocks)
            self.compute(step.sequence_id, step.start, step.count, result)
        self.check_blocks()
        return result

    def compute(self, sequence_id: int, start: int, count: int, result: StepResult) -> None:
        held = self.held[sequence_id]
        if held.finished:
            return
        assert not held.host
        assert start == held.computed
        assert count >= 1
        end = start + count
        assert end <= len(held.tokens)
        assert len(held.blocks) * self.block_size >= end
        self.check_content(held, start)
        self.write_content(held, start, end)
        held.computed = end
        if end == len(held.tokens):
            token = next_token(held.tokens)
            held.tokens.append(token)
            finish = "length" if held.outputs >= held.max_tokens else None
            # Some sequences end early, as on an end-of-sequence token that the scheduler cannot foresee.
            if finish is None and token % 11 == 0:
                finish = "stop"
            held.finished = finish is not None
            result.add(SampledToken(sequence_id, held.outputs - 1, token, finish))

    def lose_device_memory(self) -> None:
        """What an accelerator's worker leaves behind when it dies: the host pool alone."""
        for block in [block for block in self.device if block >> SEGMENT_BITS == device_pool(self.segment)]:
            del self.device[block]

    def check_content(self, held: Held, tokens: int) -> None:
        """The KV that attention reads is that of this sequence's own tokens."""
        size = self.block_size
        for i in range(-(-tokens // size)):
            wanted = held.tokens[i * size : min((i + 1) * size, tokens)]
            assert self.device[held.blocks[i]][: len(wanted)] == wanted

    def write_content(self, held: Held, start: int, end: int) -> None:
        for position in range(start, end):
            block, slot = held.blocks[position // self.block_size], position % self.block_size
            assert block >> SEGMENT_BITS == device_pool(self.segment), "written to another domain's block"
            content = self.device.setdefault(block, [])
            content.extend([0] * (slot + 1 - len(content)))
            content[slot] = held.tokens[position]

    def check_blocks(self) -> None:
        # A finished sequence's blocks may already belong to another: the scheduler reuses them at once.
        live = [held for held in self.held.values() if not held.finished]
        for attribute, total in (("blocks", self.kv_blocks), ("host", self.host_blocks)):
            owned = Counter(block for held in live for block in getattr(held, attribute))
            # Full blocks may have several readers, a block that is still written to has one owner.
            for held in live:
                written = held.blocks[held.computed // self.block_size :] if attribute == "blocks" else held.host
                assert all(owned[block] == 1 for block in written)
            assert all(0 <= block & (1 << SEGMENT_BITS) - 1 < total for block in owned)


def expected_outputs(prompt: list[int], max_tokens: int) -> list[int]:
    """What the toy model gives for a prompt, undisturbed."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens:
        tokens.append(next_token(tokens))
        if tokens[-1] % 11 == 0:
            break
    return tokens[len(prompt) :]
