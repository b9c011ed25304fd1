"""The shipped feature files against their configs, published counts and torch's own count."""

from __future__ import annotations

from pathlib import Path

import pytest

from superinfer.contracts.errors import ModelError
from superinfer.profiler.feature_library import compute_feature_file, library_names, library_profile, write_library
from superinfer.profiler.known_architectures import known_models
from superinfer.profiler.static_profile import decode_static, encode_static, load_static

NAMES = sorted(known_models())


def test_every_known_model_has_its_file_and_every_file_its_model() -> None:
    folder = Path(__file__).parents[2] / "profiler" / "features"
    assert sorted(path.stem for path in folder.glob("*.json")) == NAMES
    assert sorted(library_names()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_file_is_what_its_config_gives_today(name: str) -> None:
    assert library_profile(name) == compute_feature_file(name, known_models()[name])


@pytest.mark.parametrize("name", NAMES)
def test_parameters_equal_the_published_count(name: str) -> None:
    profile = library_profile(name)
    assert profile.published_parameters is not None
    assert profile.static.compute.parameters == pytest.approx(profile.published_parameters, rel=1e-3)
    assert profile.source.startswith("https://huggingface.co/")


@pytest.mark.parametrize("name", [name for name in NAMES if known_models()[name].config["model_type"] != "phi3small"])
def test_parameters_equal_those_that_transformers_builds_with_fewer_layers(name: str) -> None:
    """Two layers tell as much as eighty: each further one adds the same."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    known = known_models()[name]
    config = {**known.config, "num_hidden_layers": 2, "pad_token_id": 0}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    expected = sum(parameter.numel() for parameter in model.parameters())
    shallow = type(known)(repository="x", published_parameters=1, config=config)
    assert shallow.architecture.parameters == expected


def test_the_known_answers() -> None:
    llama, mixtral, small = (library_profile(name).static for name in ("llama-3-70b", "mixtral-8x22b", "llama-3-8b"))
    assert llama.compute.parameters / 1e9 == pytest.approx(70.55, abs=0.005)
    assert llama.compute.prefill_flops_per_token / 1e9 == pytest.approx(140.35, abs=0.005)
    assert llama.memory.kv_bytes_per_token == 327_680
    assert mixtral.compute.parameters / 1e9 == pytest.approx(140.63, abs=0.005)
    assert mixtral.compute.prefill_flops_per_token / 1e9 == pytest.approx(78.62, abs=0.005)
    assert mixtral.memory.kv_bytes_per_token == 229_376
    assert small.memory.kv_bytes_per_token == 131_072


def test_the_library_is_written_by_one_call_and_read_back(tmp_path: Path) -> None:
    written = write_library(tmp_path / "features")
    assert sorted(path.stem for path in written) == NAMES
    assert load_static(tmp_path / "features" / "llama-3-8b.json") == library_profile("llama-3-8b")


def test_a_file_that_is_no_static_profile_is_one_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"x\.json is not a static profile"):
        decode_static(b"{", "x.json")
    other = encode_static(library_profile("llama-3-8b")).replace(b"static-profile/1", b"static-profile/9")
    with pytest.raises(ModelError, match="static-profile/9"):
        decode_static(other, "x.json")
    with pytest.raises(ModelError, match=r"none\.json cannot be read"):
        load_static(tmp_path / "none.json")
    with pytest.raises(ModelError, match="'llama-9' is not in the feature library"):
        library_profile("llama-9")
