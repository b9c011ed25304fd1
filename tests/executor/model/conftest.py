"""Tiny checkpoints saved by transformers, and a driver that feeds a ModelRunner plans like a scheduler would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from superinfer.executor.config import WorkerConfig
from superinfer.executor.model_runner import ModelRunner
from superinfer.scheduler.request import SamplingParams
from superinfer.scheduler.steps import NewSequence, Rotation, SampledToken, SequenceStep, StepPlan

TINY: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2],
    "long_factor": [1.5, 3.0, 6.0],
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 36}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**TINY, tie_word_embeddings=True),
    "llama3": lambda: LlamaConfig(**TINY, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=False),
    "llama-linear": lambda: LlamaConfig(
        **TINY, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    ),
    "llama-biases": lambda: LlamaConfig(**TINY, attention_bias=True, mlp_bias=True),
    "mistral-wide-heads": lambda: MistralConfig(**TINY, head_dim=16, sliding_window=None),
    "llama-yarn": lambda: LlamaConfig(
        **TINY,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 8,
        },
    ),
    "mistral-window": lambda: MistralConfig(**TINY, sliding_window=21),
    "phi3": lambda: Phi3Config(**TINY, pad_token_id=0, original_max_position_embeddings=256),
    "phi3-long": lambda: Phi3Config(
        **TINY,
        pad_token_id=0,
        sliding_window=50,
        original_max_position_embeddings=64,
        rope_parameters={**LONG_ROPE, "partial_rotary_factor": 0.75},
    ),
    "qwen2": lambda: Qwen2Config(**TINY, tie_word_embeddings=True),
    "qwen2-window": lambda: Qwen2Config(**TINY, use_sliding_window=True, sliding_window=19, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**TINY, head_dim=16, tie_word_embeddings=True),
    "mixtral": lambda: MixtralConfig(**TINY, num_local_experts=4, num_experts_per_tok=2),
    "qwen2-moe": lambda: Qwen2MoeConfig(**TINY, **EXPERTS, shared_expert_intermediate_size=28, mlp_only_layers=[0]),
    "qwen3-moe": lambda: Qwen3MoeConfig(**TINY, **EXPERTS, norm_topk_prob=True),
}


@pytest.fixture(params=list(CONFIGS))
def family(request: pytest.FixtureRequest) -> str:
    """Each kind of checkpoint in turn."""
    kind: str = request.param
    return kind


@pytest.fixture
def checkpoint(
    saved_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """`saved_checkpoint`, with a cache for what is packed from it that is not the user's."""
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path_factory.getbasetemp() / "cache-of-checkpoints"))
    return saved_checkpoint


@pytest.fixture(scope="session")
def saved_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """saved_checkpoint(kind, **save options) → directory of a tiny random model; biases not zero, norms not one."""
    made: dict[str, Path] = {}

    def make(kind: str, **options: Any) -> Path:
        key = f"{kind}-{sorted(options.items())}"
        if key not in made:
            torch.manual_seed(sum(kind.encode()))
            model = AutoModelForCausalLM.from_config(CONFIGS[kind]())
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if name.endswith("bias"):
                        parameter.normal_(0.0, 0.5)
                    elif "norm" in name:
                        parameter.uniform_(0.5, 1.5)
            made[key] = tmp_path_factory.mktemp("checkpoint") / kind
            model.save_pretrained(made[key], **options)
        return made[key]

    return make


@dataclass
class Driver:
    """Keeps blocks and positions of each sequence and turns them into plans."""

    runner: ModelRunner
    free: list[int] = field(init=False)
    free_host: list[int] = field(init=False)
    blocks: dict[int, list[int]] = field(default_factory=dict)
    computed: dict[int, int] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    finishes: dict[int, str | None] = field(default_factory=dict)
    rotated: dict[int, list[int]] = field(default_factory=dict)
    left_host: list[int] = field(default_factory=list)
    plan: StepPlan = field(init=False)
    step_id: int = 0

    def __post_init__(self) -> None:
        # A scattered order, so that no test passes thanks to blocks that happen to follow one another.
        self.free = sorted(range(self.runner.kv_blocks), key=lambda block: (block * 7919) % 104729)
        self.free_host = list(range(self.runner._cache.host_blocks))
        self._fresh()

    def _fresh(self) -> None:
        self.step_id += 1
        self.plan = StepPlan(domain_id="d", step_id=self.step_id)

    def add(
        self, sequence_id: int, prompt: list[int], sampling: SamplingParams, committed: list[int] | None = None
    ) -> None:
        committed = committed or []
        new = NewSequence(
            sequence_id=sequence_id,
            token_ids=prompt + committed,
            prompt_length=len(prompt),
            sampling=sampling,
        )
        self.plan.new_sequences.append(new)
        self.blocks[sequence_id], self.computed[sequence_id] = [], 0
        self.lengths[sequence_id] = len(prompt) + len(committed)
        self.tokens[sequence_id], self.finishes[sequence_id] = list(committed), None

    def advance(self, sequence_id: int, count: int | None = None) -> None:
        """Plan a chunk of at most `count` tokens (all that is known by default)."""
        start = self.computed[sequence_id]
        left = self.lengths[sequence_id] - start
        count = left if count is None else min(count, left)
        size = self.runner.block_size
        needed = -(-(start + count) // size) - len(self.blocks[sequence_id])
        new_blocks = [self.free.pop() for _ in range(needed)]
        self.blocks[sequence_id] += new_blocks
        if self.tokens[sequence_id] and left == 1:
            self.plan.decodes.append(sequence_id)
            self.plan.decode_blocks.extend((sequence_id, block) for block in new_blocks)
        else:
            self.plan.sequences.append(
                SequenceStep(sequence_id=sequence_id, start=start, count=count, new_blocks=new_blocks)
            )
        self.computed[sequence_id] += count

    def rotate_out(self, sequence_id: int) -> None:
        hosts = [self.free_host.pop() for _ in self.blocks[sequence_id]]
        pairs = list(zip(self.blocks[sequence_id], hosts, strict=True))
        self.plan.rotate_out.append(Rotation(sequence_id=sequence_id, pairs=pairs))
        self.free += self.blocks[sequence_id]
        self.blocks[sequence_id], self.rotated[sequence_id] = [], hosts

    def rotate_in(self, sequence_id: int) -> None:
        hosts = self.rotated.pop(sequence_id)
        self.blocks[sequence_id] = [self.free.pop(0) for _ in hosts]
        pairs = list(zip(hosts, self.blocks[sequence_id], strict=True))
        self.plan.rotate_in.append(Rotation(sequence_id=sequence_id, pairs=pairs))
        # A plan rotates out before it rotates in, so these may not be written to until the next one.
        self.left_host += hosts

    def forget(self, sequence_id: int) -> None:
        self.plan.finished.append(sequence_id)
        self.free += self.blocks.pop(sequence_id)

    def run(self) -> list[SampledToken]:
        """Execute what was planned since the last call."""
        result = self.runner.execute(self.plan)
        self.free_host += self.left_host
        self.left_host = []
        self._fresh()
        for token in result.tokens:
            assert token.output_index == len(self.tokens[token.sequence_id])
            self.tokens[token.sequence_id].append(token.token_id)
            self.lengths[token.sequence_id] += 1
            self.finishes[token.sequence_id] = token.finish
        return result.tokens

    def finish(self, sequence_id: int, chunk: int | None = None) -> list[int]:
        """Run one sequence alone to its end; returns its output."""
        while self.finishes[sequence_id] is None:
            self.advance(sequence_id, chunk)
            self.run()
        return self.tokens[sequence_id]


@pytest.fixture
def driver(checkpoint: Callable[..., Path]) -> Callable[..., Driver]:
    """driver(kind or directory, **WorkerConfig fields) → Driver."""

    def make(model: str | Path = "llama", **fields: Any) -> Driver:
        directory = model if isinstance(model, Path) else checkpoint(model)
        settings: dict[str, Any] = {
            "dtype": "float32",
            "kv_cache_bytes": 8 * 2**20,
            "max_model_len": 256,
            "block_size": 8,
            "host_blocks": 64,
        }
        settings.update(fields)
        config = WorkerConfig(domain_id="d", model_dir=str(directory), **settings)
        return Driver(ModelRunner(config))

    return make
