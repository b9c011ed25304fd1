"""What a model name resolves to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from superinfer.contracts.errors import ModelError

Progress = Callable[[str, int, int], None]
"""Called as (stage, done, total) while a model is fetched; `total` is at least 1."""


@dataclass(frozen=True)
class ModelSource:
    """A directory with config.json, tokenizer files and, where `has_weights`, *.safetensors."""

    name: str
    directory: Path
    has_weights: bool

    def check_weights(self, *, random_weights: bool) -> None:
        """ModelError where there are no weights and `random_weights` may not stand in for them."""
        if not (self.has_weights or random_weights):
            raise ModelError(
                f"model {self.name}: {self.directory} has no *.safetensors to run; --random-weights takes random ones "
                "of its shapes, and `superinfer profile --static-only` needs none"
            )


def no_progress(stage: str, done: int, total: int) -> None:
    """The progress callback of callers that do not show any."""
