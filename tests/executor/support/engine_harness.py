"""An engine with the toy runner: its configuration, its profile, and requests whose right output is known."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from toy_runner import expected_output

from superinfer.executor.client import EngineClient
from superinfer.executor.config import EngineConfig
from superinfer.executor.launch import EngineProcess
from superinfer.executor.messages import FellBack, Finished, Rejected, Tokens
from superinfer.profiler.architecture import ModelArchitecture
from superinfer.profiler.fit import FitErrors
from superinfer.profiler.latency_model import LatencyModel
from superinfer.profiler.static import static_features
from superinfer.profiler.store import (
    DeviceFeatures,
    Measurement,
    ModelProfile,
    latency_constants,
    save_profile,
)
from superinfer.scheduler.config import SchedulerConfig
from superinfer.scheduler.request import Request, SamplingParams

SUPPORT = Path(__file__).parent
RUNNER = "toy_runner:ToyRunner"
START_S = 120.0
"""The most that an engine takes to be ready; the first one on a machine compiles what plans steps."""


def write_profile(path: Path, step_s: float) -> Path:
    """A profile that predicts `step_s` for every step."""
    architecture = ModelArchitecture(
        model_type="llama",
        vocab_size=30_000,
        hidden_size=64,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate_size=128,
    )
    model = LatencyModel(
        launch_s=step_s,
        linear_points=[(1, 0.0), (256, 1e-6)],
        decode_context_s=0.0,
        decode_s=0.0,
        prefill_pair_s=0.0,
        chunk_s=0.0,
        row_s=0.0,
    )
    profile = ModelProfile(
        model="toy",
        dtype="float32",
        device=DeviceFeatures(name="toy", threads=1),
        created="2026-01-01T00:00:00+00:00",
        architecture=architecture,
        static=static_features(architecture, "float32"),
        measured=Measurement(points=[], wall_s=0.0, waited_share=0.0, prefill_gflop_per_s=1.0, decode_gb_per_s=1.0),
        latency=latency_constants(model),
        fit=FitErrors(steps=0, shapes=0, median_relative_error=0.0, p90_relative_error=0.0),
    )
    save_profile(path, profile)
    return path


def toy_config(directory: Path, *, step_s: float = 0.0, model_dir: str = "", **options) -> EngineConfig:
    profile = write_profile(directory / "profile.json", max(step_s, 1e-4))
    options.setdefault("scheduler", SchedulerConfig(policy="fcfs", max_model_len=512))
    return EngineConfig(model_dir=model_dir or f"toy:{step_s}", profile_path=str(profile), **options)


def toy_engine(config: EngineConfig) -> EngineProcess:
    return EngineProcess(config, runner=RUNNER)


def toy_request(number: int, *, prompt: int = 10, max_tokens: int = 12, prefix: str = "r") -> Request:
    return Request(
        request_id=f"{prefix}{number}",
        contract_id="",
        prompt_token_ids=[(number * 7919 + i * 104_729) % 30_000 for i in range(prompt)],
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
        arrival_s=time.monotonic(),
    )


class Received:
    """Everything a client got of one request. A token index that comes twice or too early is an error at once."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.end: Finished | Rejected | None = None
        self.served: str | None = None


async def collect(client: EngineClient, request: Request, received: Received | None = None) -> Received:
    """All of a request's events; into `received`, for who wants to look at it meanwhile."""
    received = received or Received()
    async for event in await client.submit(request):
        if isinstance(event, Tokens):
            assert event.first_index == len(received.token_ids), "a token index came twice or was left out"
            received.token_ids += event.token_ids
        elif isinstance(event, FellBack):
            assert not received.token_ids
            received.served = event.contract_id
        else:
            received.end = event
    return received


def is_right(request: Request, received: Received) -> bool:
    right = expected_output(request.prompt_token_ids, request.sampling.max_tokens)
    end = received.end
    return isinstance(end, Finished) and end.reason == "length" and received.token_ids == right


def process_is_gone(pid: int, timeout_s: float = 5.0) -> bool:
    """Whether the process ends (or is a zombie of ours) within the time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def add_support_path() -> None:
    if str(SUPPORT) not in sys.path:
        sys.path.insert(0, str(SUPPORT))
