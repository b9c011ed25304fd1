"""Runs the steps of one fault domain on a torch model in this process."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from superinfer.contracts.errors import ResourceError
from superinfer.executor.batch_builder import Chunk, build_batch
from superinfer.executor.config import DType, WorkerConfig
from superinfer.executor.idle_class import IdleClass
from superinfer.executor.kv_cache import (
    BlockStore,
    PrivateCache,
    SharedCache,
    block_bytes,
    block_shape,
    element_type,
    plan_device_blocks,
)
from superinfer.executor.kv_memory import KVMemory
from superinfer.executor.model.architecture import Architecture, load_architecture
from superinfer.executor.model.decoder import Decoder
from superinfer.executor.model.memory import available_memory_bytes, format_bytes
from superinfer.executor.model.packed_weights import PackedWeights, packed_weights_path
from superinfer.executor.model.panel_tiles import tiles_fill_vectors
from superinfer.executor.model.precision import activation_dtype, bfloat16_in_hardware
from superinfer.executor.model.weights import RandomWeights, SafetensorsWeights, WeightSource
from superinfer.executor.pacing import Pace
from superinfer.executor.sampling import greedy, sample
from superinfer.executor.sequence import Sequence
from superinfer.executor.warm_up import load_kernels, warm_up
from superinfer.profiler.architecture import stored_dtype
from superinfer.profiler.static import HELD_BYTES_PER_WEIGHT
from superinfer.scheduler.blocks import SEGMENT_BITS, device_pool
from superinfer.scheduler.steps import Rotation, SampledToken, StepPlan, StepResult


def compute_dtype(dtype: DType) -> torch.dtype:
    """The torch type of a worker's weights and KV cache; "auto" is bfloat16 only where the CPU multiplies it.

    "int8" is of the weights alone: all else is float32.
    """
    if dtype == "auto":
        return torch.bfloat16 if bfloat16_in_hardware() else torch.float32
    return torch.bfloat16 if dtype == "bfloat16" else torch.float32


def weight_dtype(dtype: DType) -> torch.dtype:
    """The torch type to which a worker rounds its weights where they are wider."""
    return torch.int8 if dtype == "int8" else compute_dtype(dtype)


class ModelRunner:
    """Holds the model, the KV cache and the sequences of one domain; implements `scheduler.steps.Executor`.

    `kv_blocks` is the size of the device pool, `max_model_len` the longest prompt plus output in tokens: what was
    asked for, or less where the model itself ends earlier.
    """

    def __init__(self, config: WorkerConfig) -> None:
        """Load the model and set the cache up. Raises ModelError and ResourceError."""
        torch.set_num_threads(config.threads)
        directory = Path(config.model_dir)
        architecture = load_architecture(directory)
        dtype, of_weights = compute_dtype(config.dtype), weight_dtype(config.dtype)
        self.architecture = architecture
        self.dtype = dtype
        self.block_size = config.block_size
        self.max_model_len = min(config.max_model_len, architecture.max_positions)
        _check_weights_fit(architecture, dtype, of_weights, directory)
        with torch.inference_mode():
            weights = _weight_source(config, architecture)
            kept = PackedWeights(None if config.random_weights else packed_weights_path(directory, of_weights))
            self._decoder = Decoder(architecture, weights, dtype, self.max_model_len, kept, of_weights)
        self._cache = _make_cache(config, architecture, dtype, self.max_model_len)
        self.kv_blocks = self._cache.device_blocks
        self._eos_token_ids = frozenset(architecture.eos_token_ids)
        self._sequences: dict[int, Sequence] = {}
        self._idle_class = IdleClass()
        # Now, so that no request waits for it.
        scratch = self._cache.device_base + self.kv_blocks
        warm_up(self._decoder, self._cache.array, scratch, self.block_size, self.max_model_len)

    @staticmethod
    def preload(config: WorkerConfig) -> None:
        """What a process does before workers of this kind are forked from it: load their kernels, build nothing."""
        torch.set_num_threads(1)  # whoever has more cannot be forked
        directory, dtype = Path(config.model_dir), compute_dtype(config.dtype)
        stored = "bfloat16" if config.random_weights else stored_dtype(directory)
        load_kernels(
            load_architecture(directory),
            stored=getattr(torch, stored),
            of_weights=weight_dtype(config.dtype),
            dtype=dtype,
            pool_type=element_type(dtype),
            block_size=config.block_size,
        )

    def execute(self, plan: StepPlan) -> StepResult:
        """Apply the plan's changes, run its tokens through the model, sample; see `scheduler.steps`."""
        started_s = time.monotonic()
        if plan.saves:
            self._cache.rotate_out(plan.saves)
        if plan.partial_saves:
            self._cache.save_slots(plan.partial_saves)
        for sequence_id in plan.finished:
            self._sequences.pop(sequence_id, None)
        for rotation in plan.rotate_out:
            self._rotate_out(rotation)
        for rotation in plan.rotate_in:
            self._rotate_in(rotation)
        if plan.copies:
            self._cache.copy(plan.copies)
        for new in plan.new_sequences:
            self._cache.reach(new.blocks)
            self._sequences[new.sequence_id] = Sequence(new)
        result = StepResult(domain_id=plan.domain_id, step_id=plan.step_id, started_s=started_s, finished_s=started_s)
        self._compute(plan, result)
        result.finished_s = time.monotonic()
        return result

    def _rotate_out(self, rotation: Rotation) -> None:
        sequence = self._sequences.get(rotation.sequence_id)
        if sequence is None or sequence.finish is not None:
            return
        self._cache.rotate_out(rotation.pairs)
        sequence.blocks = []

    def _rotate_in(self, rotation: Rotation) -> None:
        sequence = self._sequences.get(rotation.sequence_id)
        if sequence is None or sequence.finish is not None:
            return
        self._cache.rotate_in(rotation.pairs)
        sequence.blocks = [device_block for _, device_block in rotation.pairs]

    def _compute(self, plan: StepPlan, result: StepResult) -> None:
        """Run the sequences that have not ended, and report their tokens."""
        for sequence_id, block in plan.decode_blocks:
            self._sequences[sequence_id].add_blocks([block])
        decodes = [
            sequence for sequence_id in plan.decodes if (sequence := self._sequences[sequence_id]).finish is None
        ]
        prefills: list[Chunk] = []
        for step in plan.sequences:
            sequence = self._sequences[step.sequence_id]
            if sequence.finish is None:
                sequence.add_blocks(step.new_blocks)
                prefills.append((step, sequence))
        if not decodes and not prefills:
            return
        batch, sampling = build_batch(decodes, prefills, self.block_size)
        with torch.inference_mode(), Pace(plan, self._idle_class) as moved:
            logits = self._decoder.forward(batch, self._cache.array, moved).numpy()
        self._sample(logits, sampling, result)

    def _sample(self, logits: np.ndarray, sequences: list[Sequence], result: StepResult) -> None:
        """One token for each row of the logits; greedy rows are taken all at once."""
        best = greedy(logits)
        for row, sequence in enumerate(sequences):
            params = sequence.sampling
            if params.is_greedy and not params.has_penalties:
                token_id = int(best[row])
            else:
                token_id = sample(logits[row], params, sequence.token_ids, sequence.prompt_length)
            index = sequence.output_count
            finish = sequence.commit(token_id, self._eos_token_ids, self.max_model_len)
            result.add(SampledToken(sequence.sequence_id, index, token_id, finish))


def _make_cache(config: WorkerConfig, architecture: Architecture, dtype: torch.dtype, max_model_len: int) -> BlockStore:
    """The KV cache: in memory that outlives this process where the engine has made pools for it.

    A worker that takes a dead one's place takes its pools as they are.
    """
    memory: KVMemory | None = None
    if config.kv_pools:
        shape = block_shape(architecture, config.block_size)
        memory = KVMemory(config.kv_pools, shape, element_type(dtype))
        blocks = memory.blocks(device_pool(config.segment)) if config.device_outlives else 0
        if blocks > 0:
            return SharedCache(memory, config.segment, device_blocks=blocks - 1, host_blocks=config.host_blocks)
    device_blocks = plan_device_blocks(
        bytes_per_block=block_bytes(architecture, config.block_size, dtype),
        block_size=config.block_size,
        max_model_len=max_model_len,
        host_blocks=config.host_blocks,
        kv_cache_bytes=config.kv_cache_bytes,
        available_bytes=available_memory_bytes() // config.workers,
    )
    if memory is not None:
        most = (1 << SEGMENT_BITS) - 1
        return SharedCache(
            memory,
            config.segment,
            device_blocks=min(device_blocks, most),
            host_blocks=config.host_blocks,
            device_outlives=config.device_outlives,
        )
    return PrivateCache(
        architecture,
        device_blocks=device_blocks,
        host_blocks=config.host_blocks,
        block_size=config.block_size,
        dtype=dtype,
    )


def _weight_source(config: WorkerConfig, architecture: Architecture) -> WeightSource:
    if config.random_weights:
        return RandomWeights(architecture.initializer_range, tied_head=architecture.tied_head)
    return SafetensorsWeights(Path(config.model_dir))


def _check_weights_fit(
    architecture: Architecture, dtype: torch.dtype, of_weights: torch.dtype, directory: Path
) -> None:
    """Refuse a model whose weights alone exceed the memory. Raises ResourceError."""
    # Panels of bfloat16, as checkpoints mostly have them; where these serve small steps only, a float32 copy as well.
    two_copies = activation_dtype(dtype) == torch.float32 and not tiles_fill_vectors()
    element_bytes = 6 if two_copies else 2
    needed = architecture.parameters * element_bytes
    if of_weights == torch.int8:
        # A little over one byte each, but the embedding is looked up in what the checkpoint has.
        looked_up = architecture.vocab_size * architecture.hidden_size
        needed = (
            int(HELD_BYTES_PER_WEIGHT["int8"] * architecture.parameters)
            + (2 if architecture.tied_head else 1) * looked_up
        )
    available = available_memory_bytes()
    if needed > available:
        raise ResourceError(
            f"{directory}: the weights need {format_bytes(needed)} as {str(of_weights).removeprefix('torch.')}, "
            f"but {format_bytes(available)} of memory is available"
        )
