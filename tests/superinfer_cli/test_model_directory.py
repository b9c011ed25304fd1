"""A model that is not the default one, from a directory, through the commands that users run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig

from superinfer.executor.models.catalog import resolve_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COMMAND = [sys.executable, "-m", "superinfer.cli.main"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small mixture of experts with a window, random weights, and the default model's tokenizer and head shapes."""
    directory = tmp_path_factory.mktemp("model") / "small-moe"
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=49152,
        hidden_size=64,
        head_dim=64,
        intermediate_size=96,
        num_local_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=4096,
        sliding_window=128,
        initializer_range=0.1,
        eos_token_id=2,
    )
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(directory)
    default = resolve_model("smollm2-135m-instruct").directory
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(default / name, directory)
    return directory


def run(*arguments: str | Path, cache: Path) -> str:
    environment = {**os.environ, "SUPERINFER_CACHE": str(cache)}
    command = [*COMMAND, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_model_from_a_directory_is_profiled_benched_and_served(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    profile = json.loads(run("profile", model, "--time-budget", "3", "--json", cache=cache))
    assert profile["architecture"]["experts"] == 4

    arguments = ["--model", model, "--requests", "6", "--policy", "slack", "--slo-scale", "50"]
    summary = json.loads(run("bench", "mixed", *arguments, "--out", tmp_path / "run", "--json", cache=cache))
    assert '"offered": 6' in json.dumps(summary)

    (tmp_path / "contracts.yaml").write_text("service_id: triage\nslo: {latency: {p99_ms: 60000}}\n")
    server = subprocess.Popen(
        [*COMMAND, "serve", str(model), "--port", "0", "--contracts", str(tmp_path / "contracts.yaml")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SUPERINFER_CACHE": str(cache)},
    )
    try:
        assert server.stdout is not None
        url = re.search(r"http://\S+", server.stdout.readline())
        assert url
        body = {"model": "small-moe", "prompt": "The sea", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        first, second = (
            httpx.post(url[0].removesuffix("/v1") + "/v1/completions", json=body, timeout=60) for _ in range(2)
        )
        assert first.json()["usage"]["completion_tokens"] == 4, first.text
        assert first.json()["choices"][0]["text"] == second.json()["choices"][0]["text"]
    finally:
        server.terminate()
        server.wait(30)
