"""`superinfer profile`: the four dimensions without weights, clear refusals, and a measured profile end to end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

from superinfer.cli.profile import ensure_profile, profile
from superinfer.cli.profile_picture import draw_profile
from superinfer.cli.static_tables import quantity
from superinfer.contracts.errors import ModelError, SuperInferError, UsageError
from superinfer.executor.models.source import ModelSource
from superinfer.profiler.architecture import ModelArchitecture, load_architecture
from superinfer.profiler.fit import fit_latency_model
from superinfer.profiler.latency_model import StepShape
from superinfer.profiler.measure import DEFAULT_PASSES
from superinfer.profiler.static import static_features
from superinfer.profiler.store import (
    DeviceFeatures,
    MeasuredPoint,
    Measurement,
    ModelProfile,
    latency_constants,
    load_profile,
)
from superinfer.profiler.sweep_points import ALL_POINTS

LLAMA_3_70B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "max_position_embeddings": 8192,
}
TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

app = typer.Typer()
app.command()(profile)


def write_config(directory: Path, config: dict[str, Any]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def error_of(*arguments: str) -> SuperInferError:
    error = run(*arguments).exception
    assert isinstance(error, SuperInferError), error
    assert "\n" not in str(error)
    return error


def test_static_only_shows_four_dimensions_of_a_model_too_large_to_run(tmp_path: Path) -> None:
    directory = write_config(tmp_path / "llama-3-70b", LLAMA_3_70B)
    result = run(str(directory), "--static-only")
    assert result.exit_code == 0
    for title in ("Compute density", "Bandwidth sensitivity", "Memory pattern", "Compute to communication"):
        assert title in result.stdout
    assert "70.55 G" in result.stdout
    assert "327,680 B" in result.stdout


@pytest.mark.parametrize("target", [".", "config.json"])
def test_static_only_json_is_json_alone_for_a_directory_or_its_config(tmp_path: Path, target: str) -> None:
    directory = write_config(tmp_path / "llama-3-70b", LLAMA_3_70B)
    result = run(str(directory / target), "--static-only", "--json")
    data = json.loads(result.stdout)
    assert data["schema"] == "superinfer.static-profile/1"
    assert data["model"] == "llama-3-70b"
    assert data["dtype"] == "bfloat16"
    assert data["static"]["memory"]["kv_bytes_per_token"] == 327_680


def test_the_stored_precision_is_the_default_and_dtype_overrides_it(tmp_path: Path) -> None:
    directory = write_config(tmp_path / "tiny", {**TINY, "torch_dtype": "float32"})
    default = json.loads(run(str(directory), "--static-only", "--json").stdout)
    chosen = json.loads(run(str(directory), "--static-only", "--json", "--dtype", "bfloat16").stdout)
    assert default["dtype"] == "float32"
    assert chosen["static"]["memory"]["weight_bytes"] * 2 == default["static"]["memory"]["weight_bytes"]


def test_static_only_with_out_writes_what_it_would_print(tmp_path: Path) -> None:
    directory = write_config(tmp_path / "tiny", TINY)
    file = tmp_path / "features" / "tiny.json"
    result = run(str(directory), "--static-only", "--json", "--out", str(file))
    assert json.loads(file.read_text()) == json.loads(result.stdout)
    assert str(file) in result.stderr.replace("\n", "")


def test_a_wrong_flag_is_one_line_that_says_what_is_accepted(tmp_path: Path) -> None:
    directory = str(write_config(tmp_path / "tiny", TINY))
    assert "float32" in str(error_of(directory, "--dtype", "int4"))
    assert "3600" in str(error_of(directory, "--time-budget", "0"))
    assert ".json" in str(error_of(directory, "--static-only", "--out", str(tmp_path / "x.txt")))
    assert "--random-weights" in str(error_of(directory, "--static-only", "--random-weights"))
    (tmp_path / "folder.json").mkdir()
    assert isinstance(error_of(directory, "--out", str(tmp_path / "folder.json")), UsageError)
    (tmp_path / "file").write_text("")
    assert "cannot be written" in str(error_of(directory, "--static-only", "--out", str(tmp_path / "file" / "x.json")))


def test_a_model_that_cannot_be_profiled_is_one_line(tmp_path: Path) -> None:
    assert isinstance(error_of(str(tmp_path / "none"), "--static-only"), ModelError)
    gpt2 = write_config(tmp_path / "gpt2", {"model_type": "gpt2"})
    assert "gpt2" in str(error_of(str(gpt2), "--static-only"))


def test_measuring_without_weights_says_how_to_go_on(tmp_path: Path) -> None:
    message = str(error_of(str(write_config(tmp_path / "tiny", TINY))))
    assert "--random-weights" in message
    assert "--static-only" in message


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [(140.35e9, "FLOP", "140.3 GFLOP"), (999.0, "B", "999 B"), (1000.0, "B", "1 kB"), (2.5e13, "B", "25 TB")],
)
def test_quantities_carry_a_decimal_prefix(value: float, unit: str, expected: str) -> None:
    assert quantity(value, unit) == expected


class Notes:
    """`ensure_profile` of a model directory, and what it said on the console."""

    def __init__(self, directory: Path) -> None:
        self.source = ModelSource(name="tiny", directory=directory, has_weights=False)

    def ensure(self) -> tuple[Path, str]:
        notes = StringIO()
        path = ensure_profile(self.source, "float32", random_weights=True, console=Console(file=notes))
        return path, " ".join(notes.getvalue().split())


@pytest.mark.slow
def test_a_profile_is_measured_on_first_use_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path / "cache"))
    notes = Notes(write_config(tmp_path / "tiny", TINY))
    path, note = notes.ensure()
    first = load_profile(path)
    assert "first use" in note
    assert path.is_relative_to(tmp_path / "cache")
    assert first.architecture == load_architecture(tmp_path / "tiny")
    assert first.latency_model.prefill_s(0, 256) > first.latency_model.prefill_s(0, 16) > 0.0

    again, note = notes.ensure()
    assert again == path
    assert note == ""
    assert load_profile(path).created == first.created


def test_a_cache_that_cannot_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("superinfer.cli.profile._measure", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(UsageError, match=r"tiny--.*\.json cannot be written: Not a directory"):
        Notes(write_config(tmp_path / "tiny", TINY)).ensure()


def test_samples_that_cannot_be_kept_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "p.partial.jsonl").mkdir()
    directory = str(write_config(tmp_path / "tiny", TINY))
    message = str(error_of(directory, "--random-weights", "--out", str(tmp_path / "p.json")))
    assert message == f"{tmp_path / 'p.partial.jsonl'} cannot be written: Is a directory"


@pytest.mark.parametrize("spoil", ["architecture", "file"])
def test_a_cached_profile_that_does_not_fit_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    measured: list[str] = []

    def measure(source: ModelSource, dtype: str, *, random_weights: bool, log_path: Path) -> ModelProfile:
        measured.append(source.name)
        return make_profile(load_architecture(source.directory))

    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("superinfer.cli.profile._measure", measure)
    notes = Notes(write_config(tmp_path / "tiny", TINY))
    path, _ = notes.ensure()
    notes.ensure()
    assert measured == ["tiny"]

    if spoil == "architecture":
        write_config(tmp_path / "tiny", {**TINY, "num_hidden_layers": 3})
    else:
        path.write_text("{}")
    _, note = notes.ensure()
    assert ("another model of this name" if spoil == "architecture" else "has schema") in note
    assert measured == ["tiny", "tiny"]
    assert load_profile(path).architecture == load_architecture(tmp_path / "tiny")


def make_profile(architecture: ModelArchitecture) -> ModelProfile:
    points = [
        MeasuredPoint(
            name=point.name,
            **{field: getattr(point.shape, field) for field in StepShape.__slots__},
            seconds=[0.05 + 0.003 * point.shape.tokens],
        )
        for point in ALL_POINTS
    ]
    fit = fit_latency_model([(point.shape, point.seconds[0]) for point in points])
    return ModelProfile(
        model="tiny",
        dtype="float32",
        device=DeviceFeatures(name="Some CPU", threads=1),
        created="2026-01-01T00:00:00+00:00",
        architecture=architecture,
        static=static_features(architecture, "float32"),
        measured=Measurement(points=points, wall_s=1.0, waited_share=0.0, prefill_gflop_per_s=1.0, decode_gb_per_s=1.0),
        latency=latency_constants(fit.model),
        fit=fit.errors,
    )


def test_the_picture_is_drawn_from_a_profile_with_and_without_known_memory_bandwidth(tmp_path: Path) -> None:
    base = make_profile(load_architecture(write_config(tmp_path / "tiny", TINY)))
    for bandwidth in (None, 12.5):
        device = msgspec.structs.replace(base.device, memory_read_gb_per_s=bandwidth)
        file = tmp_path / f"{bandwidth}.png"
        draw_profile(msgspec.structs.replace(base, device=device), file)
        assert file.read_bytes().startswith(b"\x89PNG")
        assert file.stat().st_size > 10_000


@pytest.mark.slow
def test_a_real_model_is_profiled_within_the_budget_and_its_steps_are_predicted(tmp_path: Path) -> None:
    file = tmp_path / "smollm2.json"
    result = run("smollm2-135m-instruct", "--time-budget", "20", "--out", str(file), "--json")
    assert result.exit_code == 0, result.exception
    measured = load_profile(file)
    assert json.loads(result.stdout) == json.loads(msgspec.json.encode(measured))
    assert file.with_suffix(".png").stat().st_size > 10_000
    assert file.stat().st_size < 50_000

    longest_s = max(max(point.seconds) for point in measured.measured.points)
    assert measured.measured.wall_s < 20 + 30 * longest_s
    assert measured.static.compute.parameters == 134_515_008
    assert measured.fit.median_relative_error < 0.25
    assert measured.measured.decode_gb_per_s > 0
    assert measured.measured.prefill_gflop_per_s > 0

    model = measured.latency_model
    assert model.prefill_s(0, 256) > model.prefill_s(0, 32) > 0
    assert model.decode_step_s(1000) >= model.decode_step_s(16) > 0


@pytest.mark.slow
def test_a_sweep_killed_half_way_goes_on_where_it_was_and_ends_as_well(tmp_path: Path) -> None:
    directory = write_config(tmp_path / "tiny", TINY)
    path, log = tmp_path / "p.json", tmp_path / "p.partial.jsonl"
    command = [sys.executable, "-P", "-m", "superinfer.cli.main", "profile", str(directory)]
    command += ["--random-weights", "--time-budget", "60", "--out", str(path)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 60
    while not log.exists() or log.read_bytes().count(b"\n") < 100:
        assert first.poll() is None, "the sweep ended before it was killed"
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not path.exists()
    taken = log.read_bytes().count(b"\n") - 1

    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert not log.exists()
    found = load_profile(path)
    kept = sum(at_s <= 0.0 for point in found.measured.points for at_s in point.at_s)
    # Of each point's samples the first, cold one is dropped: what is left is as much as an undisturbed sweep takes.
    assert taken - len(found.measured.points) <= kept <= taken
    assert found.fit.shapes == len(found.measured.points)
    assert found.fit.steps == (DEFAULT_PASSES - 1) * found.fit.shapes
    assert found.fit.median_relative_error < 0.4
