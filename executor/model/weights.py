"""Where weights come from: safetensors files of a Hugging Face directory, or a seeded generator."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from superinfer.contracts.errors import ModelError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class WeightSource(Protocol):
    """Gives the tensors of a checkpoint by their Hugging Face names."""

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor of this name, checked to have this shape; in its stored type."""
        ...

    def has(self, name: str) -> bool:
        """True if the checkpoint holds this name."""
        ...


class SafetensorsWeights:
    """Reads one `model.safetensors` or the shards that `model.safetensors.index.json` lists, tensor by tensor."""

    def __init__(self, directory: Path) -> None:
        """Raises ModelError if there are no weights or a shard is missing or broken."""
        self._directory = directory
        self._files: dict[str, str] = {}
        self._open: dict[str, Any] = {}
        index = directory / INDEX_FILE
        if (directory / SINGLE_FILE).exists():
            self._files = dict.fromkeys(self._handle(SINGLE_FILE).keys(), SINGLE_FILE)
        elif index.exists():
            try:
                self._files = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
            except (ValueError, KeyError, TypeError) as error:
                raise ModelError(f"{index}: not a safetensors index: {error!r}") from error
        else:
            raise ModelError(
                f"{directory}: no weights: neither {SINGLE_FILE} nor {INDEX_FILE} is there; "
                "--random-weights runs a config alone"
            )

    def has(self, name: str) -> bool:
        """True if the checkpoint holds this name."""
        return name in self._files

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor of this name. Raises ModelError if it is missing or of another shape."""
        file = self._files.get(name)
        if file is None:
            raise ModelError(f"{self._directory}: the weights lack {name}")
        try:
            tensor: torch.Tensor = self._handle(file).get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{self._directory / file}: cannot read {name}: {error}") from error
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{self._directory / file}: {name} has shape {tuple(tensor.shape)}; config.json asks for {shape}"
            )
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise ModelError(
                f"{self._directory / file}: {name} is stored as {tensor.dtype}; "
                "supported are float32, float16 and bfloat16"
            )
        return tensor

    def _handle(self, file: str) -> Any:
        if file not in self._open:
            path = self._directory / file
            try:
                self._open[file] = safe_open(path, framework="pt")
            except FileNotFoundError:
                raise ModelError(f"{path}: not found, but {INDEX_FILE} lists it") from None
            except (OSError, SafetensorError) as error:
                raise ModelError(
                    f"{path}: truncated, or not a safetensors file: {error}; download it again. "
                    "superinfer profile MODEL --static needs no weights"
                ) from error
        return self._open[file]


class RandomWeights:
    """Normal weights from a fixed seed, the same for a name whatever the order of the calls; bfloat16."""

    def __init__(self, standard_deviation: float, *, tied_head: bool, seed: int = 0) -> None:
        self._deviation = standard_deviation
        self._tied_head = tied_head
        self._seed = seed

    def has(self, name: str) -> bool:
        """True of every name but a tied head's own weight."""
        return not (self._tied_head and name == "lm_head.weight")

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Ones for norms, zeros for biases, normal values elsewhere."""
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=torch.bfloat16)
        if name.endswith(".bias"):
            return torch.zeros(shape, dtype=torch.bfloat16)
        # numpy's generator: torch's own needs parts of torch that workers do not import.
        generator = np.random.default_rng(zlib.crc32(name.encode()) + self._seed)
        values = generator.standard_normal(shape, np.float32) * np.float32(self._deviation)
        return torch.from_numpy(values).to(torch.bfloat16)
