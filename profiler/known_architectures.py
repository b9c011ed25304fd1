"""Public models whose shapes are known by name, so that they can be analysed without a download."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import msgspec
import yaml

from superinfer.profiler.architecture import architecture_from_config
from superinfer.profiler.decoder_shapes import ModelArchitecture


class KnownModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A public model: the repository whose config.json is quoted, and the parameters that its publisher counts."""

    repository: str
    published_parameters: int
    config: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The page of the config."""
        return f"https://huggingface.co/{self.repository}"

    @property
    def architecture(self) -> ModelArchitecture:
        """The shapes that the config gives."""
        return architecture_from_config(self.config, source=self.repository)


@cache
def known_models() -> dict[str, KnownModel]:
    """Public models by name, from `architectures.yaml`."""
    text = resources.files("superinfer.profiler").joinpath("architectures.yaml").read_text("utf-8")
    return msgspec.convert(yaml.safe_load(text), dict[str, KnownModel])


@cache
def known_architectures() -> dict[str, ModelArchitecture]:
    """Architecture by model name."""
    return {name: known.architecture for name, known in known_models().items()}
