"""`superinfer serve` as users run it: a process, a real model, the official client, signals."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MODEL = "smollm2-135m-instruct"
TRIAGE = "service_id: triage\nslo: {latency: {p99_ms: 60000}}\n"
MESSAGES = [{"role": "user", "content": "Count from one to ten in words."}]
START_S = 600
SERVE = [sys.executable, "-m", "superinfer.cli.main", "serve"]


class ServerProcess:
    """`superinfer serve`, its address once it is ready, and every process it has started."""

    def __init__(self, contracts: Path, *flags: str) -> None:
        self.process = subprocess.Popen(
            [*SERVE, MODEL, "--port", "0", "--kv-cache-memory", "400MiB", "--contracts", str(contracts), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.stderr = ""
        self._reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._reader.start()
        self.ready_line = ""
        self.url = ""
        self.family: list[psutil.Process] = []

    def _read_stderr(self) -> None:
        for line in self.process.stderr:
            self.stderr += line

    def wait_ready(self) -> ServerProcess:
        self.ready_line = self.process.stdout.readline()
        found = re.search(r"http://\S+", self.ready_line)
        assert found, self.ready_line + self.stderr
        self.url = found[0].removesuffix("/v1")
        self.family = psutil.Process(self.process.pid).children(recursive=True)
        return self

    def client(self, **options) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=self.url + "/v1", **{"api_key": "none", "max_retries": 0, "timeout": 120, **options}
        )

    def end(self, timeout_s: float = 30) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(5)
        return code

    def leftovers(self) -> list[psutil.Process]:
        return psutil.wait_procs(self.family, timeout=2)[1]

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@pytest.fixture(scope="module")
def contracts(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("contracts")
    (directory / "triage.yaml").write_text(TRIAGE)
    return directory


@pytest.fixture(scope="module")
def server(contracts):
    process = ServerProcess(contracts)
    try:
        yield process.wait_ready()
    finally:
        process.kill()


@pytest.fixture
def start(contracts):
    started = []

    def make(*flags):
        started.append(ServerProcess(contracts, *flags))
        return started[-1]

    yield make
    for process in started:
        process.kill()


def health(server) -> dict:
    return httpx.get(server.url + "/health", timeout=10).json()


def wait_until(condition, timeout_s: float = 10) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_the_ready_line_says_what_is_served(server):
    for part in (MODEL, server.url, "slack", "1 domain", "1 contract"):
        assert part in server.ready_line


@pytest.mark.parametrize("contract", [None, "triage"])
def test_the_openai_client_streams_what_it_also_gets_whole(server, contract):
    client = server.client()
    headers = {} if contract is None else {"x-slo-contract-id": contract}
    options = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "temperature": 0, "extra_headers": headers}
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    raw = client.chat.completions.with_raw_response.create(**options)
    whole = raw.parse()
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert text.strip()
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    # The second answer begins with the KV of the first one's prompt, in whole blocks of tokens.
    assert 0 < whole.usage.prompt_tokens_details.cached_tokens < whole.usage.prompt_tokens
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert 1 <= whole.usage.completion_tokens <= 24
    assert raw.headers["x-slo-contract-id"] == (contract or "best-effort")
    assert raw.headers["x-request-id"]


def test_requests_under_a_contract_are_counted_as_met(server):
    def finished() -> dict:
        return httpx.get(server.url + "/v1/contracts/triage").json()["fulfillment"]

    before = finished()
    server.client().completions.create(
        model=MODEL, prompt="One", max_tokens=4, extra_headers={"x-slo-contract-id": "triage"}
    )
    after = finished()
    assert after["finished"] == before["finished"] + 1
    assert after["met"] == before["met"] + 1


def test_a_stop_string_cuts_the_answer_and_frees_the_request(server):
    client = server.client()
    options = {"model": MODEL, "prompt": "1, 2, 3, 4,", "temperature": 0, "max_tokens": 40}
    whole = client.completions.create(**options).choices[0].text
    stop = whole[8:11]
    cut = client.completions.create(**options, stop=stop)
    assert cut.choices[0].text == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.usage.completion_tokens < 40
    wait_until(lambda: health(server)["running"] == 0)


def test_a_seed_repeats_the_answer_and_another_changes_it(server):
    def answer(seed: int) -> str:
        return (
            server.client()
            .completions.create(model=MODEL, prompt="Once", max_tokens=16, temperature=1.2, seed=seed)
            .choices[0]
            .text
        )

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


def test_a_broken_contract_gets_one_clear_error_and_the_server_goes_on(server):
    broken = "service_id: has space\nslo: {latency: {p99_ms: 10}}\n"
    answer = httpx.post(server.url + "/v1/contracts", content=broken)
    assert answer.status_code == 400
    assert "service_id" in answer.json()["error"]["message"]
    assert "has space" in answer.json()["error"]["message"]
    good = httpx.post(server.url + "/v1/contracts", content="service_id: later\nslo: {latency: {p99_ms: 60000}}")
    assert good.json()["contract_id"] == "later"
    completion = server.client().completions.create(
        model=MODEL, prompt="One", max_tokens=2, extra_headers={"x-slo-contract-id": "later"}
    )
    assert completion.usage.completion_tokens <= 2


def test_the_openai_client_understands_errors(server):
    with pytest.raises(openai.NotFoundError) as unknown_model:
        server.client().completions.create(model="nobody", prompt="a")
    assert unknown_model.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as too_long:
        server.client().completions.create(model=MODEL, prompt="a", max_tokens=10**6)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown_contract:
        server.client().completions.create(model=MODEL, prompt="a", extra_headers={"x-slo-contract-id": "nobody"})
    assert unknown_contract.value.code == "contract_not_found"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_kv(server, stream):
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": stream}
    with ThreadPoolExecutor(1) as pool, httpx.Client(timeout=httpx.Timeout(60, read=60 if stream else 3)) as client:
        if stream:
            with client.stream("POST", server.url + "/v1/completions", json=body) as answer:
                lines = answer.iter_lines()  # dropping the iterator would close the connection
                assert '"text":' in next(lines)
                wait_until(lambda: health(server)["running"] == 1)
        else:
            answering = pool.submit(client.post, server.url + "/v1/completions", json=body)
            wait_until(lambda: health(server)["running"] == 1)
            with pytest.raises(httpx.ReadTimeout):
                answering.result()
    wait_until(lambda: health(server)["running"] == 0)
    wait_until(lambda: health(server)["kv_blocks_free"] == health(server)["kv_blocks_total"])


def run_serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SERVE, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_port_in_use_is_told_before_a_model_is_loaded(server):
    port = server.url.rpartition(":")[2]
    began_s = time.monotonic()
    ended = run_serve(MODEL, "--port", port)
    assert ended.returncode == 6
    assert f"127.0.0.1:{port}" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert time.monotonic() - began_s < 20


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("no-such-model",), 3, "no-such-model"),
        (("./no-such-directory",), 3, "./no-such-directory"),
        ((MODEL, "--contracts", "no-such-directory"), 4, "no-such-directory"),
        ((MODEL, "--policy", "luck"), 2, "luck"),
        ((MODEL, "--domain-kind", "int8=0"), 2, "--domain-kind 'int8=0'"),
        ((MODEL, "--kv-cache-memory", "lots"), 2, "--kv-cache-memory"),
        ((MODEL, "--max-model-len", "99999999"), 2, "99999999"),
        ((MODEL, "--decay-profile", "nowhere.yaml"), 2, "nowhere.yaml"),
    ],
)
def test_each_wrong_argument_is_one_clear_line_and_its_exit_code(arguments, code, named):
    ended = run_serve(*arguments, "--port", "0")
    assert ended.returncode == code, ended.stderr
    assert named in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_broken_contract_file_is_told_with_its_name(tmp_path):
    (tmp_path / "bad.yaml").write_text("service_id: has space\nslo: {latency: {p99_ms: 10}}\n")
    ended = run_serve(MODEL, "--port", "0", "--contracts", str(tmp_path))
    assert ended.returncode == 4
    assert "bad.yaml" in ended.stderr


def stream_in_background(server, max_tokens: int) -> tuple[threading.Thread, list[str]]:
    """A stream that is read by a thread, once its first event has come."""
    lines: list[str] = []

    def read() -> None:
        body = {"model": MODEL, "prompt": "Once", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        try:
            with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as answer:
                for line in answer.iter_lines():
                    if line:
                        lines.append(line)
        except httpx.HTTPError as error:
            lines.append(f"broken: {error}")

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: lines, 60)
    assert '"text":' in lines[0]
    return thread, lines


def test_sigterm_lets_requests_finish_and_leaves_nothing(start):
    server = start("--domains", "2", "--shutdown-grace", "90").wait_ready()
    assert len(server.family) >= 3
    unix = [connection for one in server.family for connection in one.net_connections(kind="unix")]
    sockets = [Path(connection.laddr) for connection in unix if connection.laddr]
    assert any(path.exists() for path in sockets)
    thread, lines = stream_in_background(server, 64)
    server.process.send_signal(signal.SIGTERM)
    assert server.end(100) == 0, server.stderr
    thread.join(10)
    assert lines[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in lines[-2]
    assert server.leftovers() == []
    assert not [path for path in sockets if path.exists()]


def test_a_second_signal_ends_at_once(start):
    server = start("--shutdown-grace", "60").wait_ready()
    thread, _ = stream_in_background(server, 7000)
    server.process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert server.process.poll() is None
    began_s = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    server.end()
    assert time.monotonic() - began_s < 20
    thread.join(10)
    assert server.leftovers() == []


def test_a_signal_while_the_engine_starts_leaves_nothing(start):
    server = start()
    parent = psutil.Process(server.process.pid)
    wait_until(lambda: len(parent.children(recursive=True)) >= 2, START_S)
    server.family = parent.children(recursive=True)
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 130
    assert server.leftovers() == []


def test_the_end_of_the_engine_ends_the_server_with_its_exit_code(start):
    server = start().wait_ready()
    thread, lines = stream_in_background(server, 7000)
    psutil.Process(server.process.pid).children()[0].kill()
    assert server.end() == 7
    assert "engine" in server.stderr
    thread.join(10)
    assert "error" in lines[-2]
    assert server.leftovers() == []


def test_contracts_changed_over_http_survive_a_kill_and_requests_in_flight_keep_theirs(start, tmp_path):
    state = tmp_path / "state.json"
    server = start("--contracts-state", str(state)).wait_ready()
    url = server.url + "/v1/contracts"
    assert httpx.post(url, content="{service_id: chat, latency_p99_ms: 60000}").status_code == 200
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 48, "ignore_eos": True, "stream": True}
    named = {"x-slo-contract-id": "triage"}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, headers=named, timeout=60) as answer:
        lines = filter(None, answer.iter_lines())
        assert '"text":' in next(lines)
        assert httpx.delete(url + "/triage").json()["retired"] is True
        refused = httpx.post(server.url + "/v1/completions", json={**body, "stream": False}, headers=named)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "contract_not_found")
        *_, last, done = lines
    assert '"finish_reason":"length"' in last
    assert done == "data: [DONE]"
    assert httpx.put(url + "/chat", content="{service_id: chat, latency_p99_ms: 50000}").json()["version"] == 2
    out_of_reach = httpx.post(url, content="{service_id: hasty, ttft_p99_ms: 0.001}")
    assert out_of_reach.json()["error"]["code"] == "unattainable_contract"
    before = httpx.get(url).json()
    shared = run_serve(MODEL, "--port", "0", "--contracts-state", str(state))
    assert shared.returncode == 5
    assert "in use by another server" in shared.stderr

    server.process.kill()
    server.end()
    server = start("--contracts-state", str(state)).wait_ready()
    after = httpx.get(server.url + "/v1/contracts").json()
    assert [(one["contract_id"], one["version"], one["latency"]) for one in after["data"]] == [
        (one["contract_id"], one["version"], one["latency"]) for one in before["data"]
    ]
    assert {one["contract_id"]: one["version"] for one in after["data"]} == {"best-effort": 1, "chat": 2}
    assert "triage" in server.stderr
    assert "was retired at run time" in server.stderr
    headers = {"x-slo-contract-id": "chat"}
    answered = httpx.post(server.url + "/v1/completions", json={**body, "stream": False}, headers=headers, timeout=60)
    assert answered.status_code == 200


def test_a_start_with_contracts_out_of_reach_or_a_damaged_state_is_one_clear_error(tmp_path):
    (tmp_path / "hasty.yaml").write_text("{service_id: hasty, ttft_p99_ms: 0.001}")
    ended = run_serve(MODEL, "--port", "0", "--contracts", str(tmp_path / "hasty.yaml"))
    assert ended.returncode == 4
    assert "'hasty': ttft p99 0.001 ms is below the" in ended.stderr
    (tmp_path / "state.json").write_text("{")
    ended = run_serve(MODEL, "--port", "0", "--contracts-state", str(tmp_path / "state.json"))
    assert ended.returncode == 4
    assert f"{tmp_path / 'state.json'} is corrupt" in ended.stderr
    assert "Traceback" not in ended.stderr
