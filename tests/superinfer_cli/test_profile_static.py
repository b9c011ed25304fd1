"""`superinfer profile --static`, `--list` and `--compare`: what they print, write and refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from superinfer.cli.main import app
from superinfer.cli.profile import ensure_profile
from superinfer.contracts.errors import ModelError, SuperInferError
from superinfer.executor.models.catalog import resolve_model
from superinfer.profiler.known_architectures import known_models


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["profile", *arguments])


def error_of(*arguments: str) -> str:
    error = run(*arguments).exception
    assert isinstance(error, SuperInferError), error
    assert "\n" not in str(error)
    return str(error)


def test_list_shows_every_model_of_the_library() -> None:
    result = run("--list")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in known_models())
    data = json.loads(run("--list", "--json").stdout)
    assert [each["model"] for each in data] == list(known_models())


def test_a_library_name_is_analysed_at_the_precision_asked_for() -> None:
    result = run("llama-3-70b", "--static", "--dtype", "float8", "--json")
    data = json.loads(result.stdout)
    assert data["dtype"] == "float8"
    assert data["static"]["memory"]["kv_bytes_per_token"] == 327_680 // 2
    assert data["source"] == "https://huggingface.co/meta-llama/Meta-Llama-3-70B"


def test_prompt_and_context_say_where_the_arithmetic_is_counted() -> None:
    data = json.loads(run("llama-3-8b", "--static", "--json", "--prompt-tokens", "2048", "--context", "4096").stdout)
    compute = data["static"]["compute"]
    assert (compute["prefill_tokens"], compute["decode_context"]) == (2048, 4096)


def test_a_device_is_predicted_and_said_to_be() -> None:
    arguments = ("llama-3-70b", "--static", "--device", "H100-SXM5", "--tensor-parallel", "8")
    result = run(*arguments)
    for words in ("Predicted, not measured: 8 × H100-SXM5", "decode, batch 32", "memory", "https://"):
        assert words in result.stdout
    estimate = json.loads(run(*arguments, "--json").stdout)["estimate"]
    assert estimate["kv_tokens"] > 100_000
    assert all(phase["fits"] for phase in estimate["phases"])


@pytest.mark.parametrize("device", [(), ("--device", "MI300X")])
def test_out_writes_what_json_prints_and_a_picture(tmp_path: Path, device: tuple[str, ...]) -> None:
    file = tmp_path / "mixtral.json"
    result = run("mixtral-8x7b", "--static", "--json", "--out", str(file), *device)
    assert json.loads(file.read_text()) == json.loads(result.stdout)
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_written_profile_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "mixtral.json"
    first = run("mixtral-8x7b", "--static", "--json", "--out", str(file))
    assert json.loads(run(str(file), "--static", "--json").stdout) == json.loads(first.stdout)


def test_two_models_are_compared_figure_by_figure() -> None:
    result = run("--compare", "llama-3-8b", "llama-3-70b")
    assert result.exit_code == 0
    data = json.loads(run("--compare", "llama-3-8b", "llama-3-70b", "--json").stdout)
    rows = {row["figure"]: row for row in data["rows"]}
    assert rows["KV cache per token"]["values"] == [131_072, 327_680]
    assert rows["KV cache per token"]["ratio"] == 2.5
    for figure in rows:
        assert figure.split(",")[0] in result.stdout


def test_wrong_arguments_are_one_line_each() -> None:
    assert "MODEL is missing" in error_of()
    assert "it needs --static" in error_of("llama-3-8b", "--device", "H100-SXM5")
    assert "accepted: cpu, H100-SXM5" in error_of("llama-3-8b", "--static", "--device", "H99")
    assert "float8" in error_of("llama-3-8b", "--static", "--dtype", "int3")
    assert "mixtral-8x22b" in error_of("llama-9", "--static")
    assert "no such file" in error_of("none/config.json", "--static")
    assert "one core" in error_of("llama-3-8b", "--static", "--device", "cpu", "--tensor-parallel", "2")


def test_a_triton_entry_is_profiled_by_the_model_that_it_serves(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf")
    version = tmp_path / "chat" / "1"
    version.mkdir(parents=True)
    (tmp_path / "chat" / "config.pbtxt").write_text('backend: "vllm"')
    (version / "model.json").write_text('{"model": "llama-3-8b"}')
    shutil.copy(tmp_path / "chat" / "config.pbtxt", tmp_path / "chat" / "blue.pbtxt")
    for target in ("chat", "chat/config.pbtxt", "chat/blue.pbtxt"):
        data = json.loads(run(str(tmp_path / target), "--static", "--json").stdout)
        assert data["model"] == "chat"
        assert data["static"]["memory"]["kv_bytes_per_token"] == 131_072


def test_measuring_truncated_weights_says_what_can_be_done_without_them(tmp_path: Path) -> None:
    config = {**known_models()["qwen2-0.5b"].config, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    header = json.dumps({"a": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(31))
    message = error_of(str(tmp_path))
    for words in ("model.safetensors is truncated", "--static", "--random-weights"):
        assert words in message
    assert "truncated" in run(str(tmp_path), "--static").stderr


def test_a_triton_entry_beside_a_config_or_one_that_names_itself_is_not_followed_in_a_circle(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
    }
    (tmp_path / "config.pbtxt").write_text('name: "x"\n')
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert json.loads(run(str(tmp_path), "--static", "--json").stdout)["architecture"]["hidden_size"] == 16
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.pbtxt").write_text('parameters { key: "model_path" value { string_value: "." } }\n')
    assert "config.json does not exist" in error_of(str(tmp_path), "--static")


def test_what_would_be_ignored_is_refused(tmp_path: Path) -> None:
    assert "--list only prints" in error_of("llama-3-8b", "--list")
    assert "--compare only prints" in error_of(
        "--compare", "llama-3-8b", "llama-3-70b", "--out", str(tmp_path / "x.json")
    )
    assert "--tensor-parallel 2: is how many" in error_of("llama-3-8b", "--static", "--tensor-parallel", "2")


def test_a_model_without_weights_is_refused_before_anything_is_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(known_models()["qwen2-0.5b"].config))
    with pytest.raises(ModelError) as refused:  # as serve, bench and tune call it
        ensure_profile(resolve_model(str(tmp_path)), "auto")
    for message in (error_of(str(tmp_path)), str(refused.value)):
        assert "no *.safetensors" in message
        assert "--random-weights" in message
    assert capsys.readouterr().err == ""


def test_a_library_model_that_cannot_be_measured_says_what_can_be_had_without_weights() -> None:
    assert "add --static" in error_of("llama-3.1-405b")
