"""The library of ready feature files, one a public model: `features/`, computed from `architectures.yaml`.

python -m superinfer.profiler.feature_library [FOLDER]     # writes them all anew
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

from superinfer.contracts.errors import ModelError
from superinfer.profiler.known_architectures import KnownModel, known_models
from superinfer.profiler.static_profile import StaticProfile, decode_static, encode_static, static_profile

LIBRARY_DTYPE = "bfloat16"


def compute_feature_file(name: str, known: KnownModel) -> StaticProfile:
    """What the library's file of this model holds."""
    return static_profile(
        name,
        known.architecture,
        LIBRARY_DTYPE,
        source=known.source,
        published_parameters=known.published_parameters,
        notes=list(known.notes),
    )


def library_names() -> list[str]:
    """Models that the library has."""
    folder = resources.files("superinfer.profiler").joinpath("features")
    stems = {entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")}
    return [name for name in known_models() if name in stems]


def library_profile(name: str) -> StaticProfile:
    """A model's ready features; ModelError names the models there are."""
    if name not in library_names():
        raise ModelError(f"model {name!r} is not in the feature library; known: {', '.join(library_names())}")
    file = resources.files("superinfer.profiler").joinpath(f"features/{name}.json")
    return decode_static(file.read_bytes(), f"features/{name}.json")


def write_library(folder: Path) -> list[Path]:
    """Compute every file of the library; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, known in known_models().items():
        path = folder / f"{name}.json"
        path.write_bytes(encode_static(compute_feature_file(name, known)))
        written.append(path)
    return written


if __name__ == "__main__":
    for file in write_library(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "features"):
        print(file)
