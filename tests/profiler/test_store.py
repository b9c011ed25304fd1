"""The feature file: what is saved is what is loaded, and a bad file is one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from superinfer.contracts.errors import ModelError
from superinfer.profiler.architecture import ModelArchitecture
from superinfer.profiler.latency_model import LatencyModel, StepShape
from superinfer.profiler.static import static_features
from superinfer.profiler.store import (
    PROFILE_SCHEMA,
    DeviceFeatures,
    FitErrors,
    MeasuredPoint,
    Measurement,
    ModelProfile,
    latency_constants,
    load_profile,
    profile_path,
    save_profile,
)

MODEL = LatencyModel(
    launch_s=0.01,
    linear_points=[(1.0, 0.0), (64.0, 0.2), (256.0, 0.7)],
    decode_context_s=1e-6,
    decode_s=1e-4,
    prefill_pair_s=1e-7,
    chunk_s=1e-3,
    row_s=2e-3,
    residual_quantiles={0.5: 1.0, 0.9: 1.08, 0.99: 1.2},
)


def make_profile(points: int = 60) -> ModelProfile:
    architecture = ModelArchitecture(
        model_type="llama",
        vocab_size=512,
        hidden_size=64,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate_size=128,
    )
    return ModelProfile(
        model="tiny",
        dtype="float32",
        device=DeviceFeatures(name="Some CPU", threads=1, memory_read_gb_per_s=12.5),
        created="2026-01-01T00:00:00+00:00",
        architecture=architecture,
        static=static_features(architecture, "float32"),
        measured=Measurement(
            points=[
                MeasuredPoint(
                    name=f"decode 1 x {i}",
                    tokens=1,
                    decodes=1,
                    decode_context=i,
                    prefill_pairs=0.0,
                    rows=1,
                    chunks=0,
                    seconds=[0.01234567, 0.0123, 0.0125],
                )
                for i in range(points)
            ],
            wall_s=30.0,
            waited_share=0.01,
            prefill_gflop_per_s=55.0,
            decode_gb_per_s=9.0,
        ),
        latency=latency_constants(MODEL),
        fit=FitErrors(steps=180, shapes=60, median_relative_error=0.02, p90_relative_error=0.08),
    )


def test_a_saved_profile_loads_equal_and_predicts_the_same(tmp_path: Path) -> None:
    path = tmp_path / "profiles" / "tiny.json"
    save_profile(path, make_profile())
    loaded = load_profile(path)
    assert loaded == make_profile()
    shape = StepShape(tokens=40, decodes=8, decode_context=900, prefill_pairs=700.0, rows=9, chunks=1)
    assert loaded.latency_model.step_s(shape) == MODEL.step_s(shape)
    assert loaded.latency_model.residual_quantiles == MODEL.residual_quantiles


def test_the_file_names_its_schema_and_stays_below_50_kb(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    save_profile(path, make_profile(points=80))
    assert json.loads(path.read_text())["schema"] == PROFILE_SCHEMA == "superinfer.profile/1"
    assert path.stat().st_size < 50_000


def test_saving_replaces_the_file_and_leaves_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text("old")
    save_profile(path, make_profile())
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.json"]
    assert load_profile(path).model == "tiny"


def test_each_latency_model_of_a_profile_has_its_own_correction() -> None:
    profile = make_profile()
    corrected = profile.latency_model
    corrected.observe(StepShape(tokens=1, decodes=1, rows=1), 1.0)
    assert corrected.correction > 1.0
    assert profile.latency_model.correction == 1.0


def changed(key: str, value: Any) -> str:
    data = {"schema": PROFILE_SCHEMA, "model": "tiny"}
    return json.dumps({**data, key: value})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("not json", "not valid"),
        ("[]", "not valid"),
        (changed("schema", "superinfer.profile/9"), "superinfer.profile/9"),
        ("{}", "schema"),
        (changed("model", "tiny"), "dtype"),
    ],
)
def test_a_bad_file_is_one_error_that_names_it_and_the_remedy(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ModelError) as caught:
        load_profile(path)
    message = str(caught.value)
    assert str(path) in message
    assert expected in message
    assert "superinfer profile MODEL" in message
    assert "\n" not in message


def test_a_missing_file_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        load_profile(tmp_path / "none.json")


def test_a_latency_model_that_could_not_be_used_is_refused_on_loading(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    save_profile(path, make_profile())
    data = json.loads(path.read_text())
    data["latency"]["linear_points"] = [[1.0, 0.1]]
    path.write_text(json.dumps(data))
    with pytest.raises(ModelError, match="linear_points"):
        load_profile(path)


def test_profile_paths_are_plain_file_names_and_differ_by_every_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path))
    base = profile_path("org/Model 1B", "AMD EPYC", "float32", 1)
    assert base.parent == tmp_path / "profiles"
    others = {
        profile_path("org/Model 2B", "AMD EPYC", "float32", 1),
        profile_path("org/Model 1B", "Intel Xeon", "float32", 1),
        profile_path("org/Model 1B", "AMD EPYC", "bfloat16", 1),
        profile_path("org/Model 1B", "AMD EPYC", "float32", 2),
    }
    assert len(others | {base}) == 5
