"""Public models whose shapes are known by name, so that they can be predicted without a download."""

from __future__ import annotations

from functools import cache
from importlib import resources

import yaml

from superinfer.profiler.architecture import ModelArchitecture, architecture_from_config


@cache
def known_architectures() -> dict[str, ModelArchitecture]:
    """Architecture by model name, from `architectures.yaml`."""
    text = resources.files("superinfer.profiler").joinpath("architectures.yaml").read_text("utf-8")
    configs = yaml.safe_load(text)
    return {name: architecture_from_config(config, source=name) for name, config in configs.items()}
