"""A deterministic stand-in for a model that obeys StepPlan to the letter and checks what it is told.

The next token is a hash of all the tokens before it, so a lost, doubled or reordered token changes
everything after it. `model_dir` chooses what it does: "toy", optionally followed by ":<seconds a step
takes>".
"""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path

from superinfer.contracts.errors import ModelError, ResourceError
from superinfer.executor.config import WorkerConfig
from superinfer.scheduler.request import SamplingParams
from superinfer.scheduler.steps import SampledToken, StepPlan, StepResult

KV_BLOCKS = 256


def next_token(token_ids: list[int]) -> int:
    return zlib.crc32(b"".join(token.to_bytes(4, "little") for token in token_ids)) % 30_000


def expected_output(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class ToySequence:
    def __init__(self, token_ids: list[int], prompt_length: int, sampling: SamplingParams) -> None:
        self.token_ids = token_ids
        self.prompt_length = prompt_length
        self.sampling = sampling
        self.blocks: list[int] = []
        self.computed = 0
        self.finished = False


class ToyRunner:
    def __init__(self, config: WorkerConfig) -> None:
        mode, _, seconds = config.model_dir.partition(":")
        if mode == "no-model":
            raise ModelError("model 'no-model' does not exist; accepted: toy")
        if mode == "no-memory":
            raise ResourceError("KV cache: 2 GB asked for, 1 GB free")
        if mode == "bug":
            raise RuntimeError("the runner has\na bug")
        if mode == "suicide":
            os._exit(9)
        if mode == "once":  # the rest names a file that the first start leaves behind
            if Path(seconds).exists():
                raise ResourceError("KV cache: 2 GB asked for, 1 GB free")
            Path(seconds).touch()
            seconds = "0.005"
        self.kv_blocks = KV_BLOCKS
        self.max_model_len = config.max_model_len - 8 if mode == "short" else config.max_model_len
        self._fail_token = 29_999 if mode == "failing" else None
        self._hang = mode == "hanging"
        self._step_s = float(seconds or 0)
        self._domain_id = config.domain_id
        self._block_size = config.block_size
        self._sequences: dict[int, ToySequence] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        started_s = time.monotonic()
        for sequence_id in plan.finished:
            self._sequences.pop(sequence_id, None)
        for rotation in plan.rotate_out:
            self._sequences[rotation.sequence_id].blocks = []
        for rotation in plan.rotate_in:
            self._sequences[rotation.sequence_id].blocks = [block for _, block in rotation.pairs]
        for new in plan.new_sequences:
            sequence = ToySequence(list(new.token_ids), new.prompt_length, new.sampling)
            sequence.blocks, sequence.computed = list(new.blocks), new.computed
            self._sequences[new.sequence_id] = sequence
        result = StepResult(domain_id=self._domain_id, step_id=plan.step_id, started_s=started_s, finished_s=0.0)
        for sequence_id, block in plan.decode_blocks:
            self._sequences[sequence_id].blocks.append(block)
        work = [(sequence_id, self._sequences[sequence_id].computed, 1) for sequence_id in plan.decodes]
        for step in plan.sequences:
            self._sequences[step.sequence_id].blocks += step.new_blocks
            work.append((step.sequence_id, step.start, step.count))
        for item in work:
            if token := self._step(*item):
                result.add(token)
        if self._step_s:
            time.sleep(self._step_s)
        while self._hang:
            time.sleep(3600)
        result.finished_s = time.monotonic()
        return result

    def _step(self, sequence_id: int, start: int, count: int) -> SampledToken | None:
        sequence = self._sequences[sequence_id]
        if sequence.finished:
            return None
        if self._fail_token in sequence.token_ids:
            raise RuntimeError("token 29999\nbreaks the toy")
        known = len(sequence.token_ids)
        assert start == sequence.computed, f"computed {sequence.computed}, told to go on at {start}"
        assert start + count <= known, f"{known} tokens known, told to compute [{start}, {start + count})"
        assert len(sequence.blocks) * self._block_size >= start + count, "no block for a token"
        sequence.computed += count
        if start + count < known:
            return None
        token_id = next_token(sequence.token_ids)
        output_index = known - sequence.prompt_length
        sequence.token_ids.append(token_id)
        finish = None
        if output_index + 1 >= sequence.sampling.max_tokens:
            finish = "length"
        elif token_id in sequence.sampling.stop_token_ids:
            finish = "stop"
        sequence.finished = finish is not None
        return SampledToken(sequence_id, output_index, token_id, finish)
