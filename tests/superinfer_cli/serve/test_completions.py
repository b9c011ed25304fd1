from __future__ import annotations

import asyncio
import json

import pytest

pytestmark = pytest.mark.anyio

ROUTE = "/v1/completions"

NOTHING_CACHED = {"prompt_tokens_details": {"cached_tokens": 0}}


def events(text: str) -> list[dict]:
    lines = [line for line in text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def complete(client, **fields):
    return await client.post(ROUTE, json={"model": "tiny", "prompt": "abc", **fields})


async def test_a_completion_has_text_usage_and_reason_and_the_end_token_has_no_text(client):
    answer = await complete(client)
    body = answer.json()
    assert answer.status_code == 200
    assert body["object"] == "text_completion"
    assert body["model"] == "tiny"
    assert body["choices"] == [{"index": 0, "text": "Hello, world!", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 14, "total_tokens": 17, **NOTHING_CACHED}


async def test_max_tokens_ends_with_length(client):
    body = (await complete(client, max_tokens=5)).json()
    assert body["choices"][0]["text"] == "Hello"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 5


async def test_max_tokens_is_16_when_it_is_left_out(client, engine):
    await complete(client)
    assert engine.requests[0].sampling.max_tokens == 16


async def test_sampling_options_reach_the_engine_unchanged(client, engine):
    await complete(
        client,
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=11,
        presence_penalty=0.1,
        frequency_penalty=-0.2,
        repetition_penalty=1.1,
        stop_token_ids=[65, 66],
        ignore_eos=True,
    )
    sampling = engine.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.5, 0.9, 40)
    assert (sampling.min_p, sampling.seed) == (0.05, 11)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (
        0.1,
        -0.2,
        1.1,
    )
    assert sampling.stop_token_ids == (65, 66)
    assert sampling.ignore_eos


async def test_without_a_seed_two_requests_draw_differently(client, engine):
    await complete(client)
    await complete(client)
    first, second = (request.sampling.seed for request in engine.requests)
    assert first != second


async def test_zero_temperature_and_disabled_filters_are_kept(client, engine):
    await complete(client, temperature=0, top_k=-1, top_p=1)
    sampling = engine.requests[0].sampling
    assert sampling.is_greedy
    assert sampling.top_k == 0


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
)
async def test_every_form_of_prompt_is_taken(client, engine, prompt, expected):
    body = (await complete(client, prompt=prompt)).json()
    assert [request.prompt_token_ids for request in engine.requests] == expected
    assert [choice["index"] for choice in body["choices"]] == list(range(len(expected)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, expected))


async def test_choices_keep_their_prompt_and_draw_different_numbers(client, engine):
    engine.answer = lambda request: request.prompt_token_ids
    body = (await complete(client, prompt=["ab", "c"], n=2, seed=5)).json()
    assert [choice["text"] for choice in body["choices"]] == ["ab", "ab", "c", "c"]
    assert sorted(request.sampling.seed for request in engine.requests) == [5, 6, 7, 8]
    assert len({request.request_id for request in engine.requests}) == 4
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9, **NOTHING_CACHED}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_request_in_the_engine_and_usage_counts_up_to_it(client, engine, stream):
    answer = await complete(
        client, stop=["o, w"], stream=stream, **({"stream_options": {"include_usage": True}} if stream else {})
    )
    if stream:
        chunks = events(answer.text)
        text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
        reason, used = chunks[-2]["choices"][0]["finish_reason"], chunks[-1]["usage"]
    else:
        body = answer.json()
        text, reason, used = body["choices"][0]["text"], body["choices"][0]["finish_reason"], body["usage"]
    assert (text, reason) == ("Hell", "stop")
    assert used["completion_tokens"] == len("Hello, w")
    assert engine.aborts == [(engine.requests[0].request_id, "stop")]
    assert not engine.running


async def test_a_stop_token_id_ends_without_its_text(client, engine):
    engine.answer = lambda request: [*b"Hel"]
    body = (await complete(client, stop_token_ids=[ord("l")])).json()
    assert body["choices"][0]["text"] == "He"


async def test_a_stream_says_the_same_as_the_whole_answer(client):
    chunks = events((await complete(client, stream=True)).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello, world!"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all("usage" not in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_characters_of_several_tokens_are_not_torn(client, engine):
    engine.answer = lambda request: [*"é🙂".encode()]
    chunks = events((await complete(client, stream=True)).text)
    assert [text for chunk in chunks if (text := chunk["choices"][0]["text"])] == ["é", "🙂"]


async def test_usage_is_the_last_chunk_when_asked_for(client):
    chunks = events((await complete(client, stream=True, stream_options={"include_usage": True})).text)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 14, "total_tokens": 17, **NOTHING_CACHED}
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


async def test_several_choices_stream_side_by_side(client, engine):
    engine.answer = lambda request: request.prompt_token_ids
    chunks = events((await complete(client, prompt=["abc", "xyz"], stream=True)).text)
    texts = {0: "", 1: ""}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {0: "abc", 1: "xyz"}


async def test_prompt_and_answer_have_to_fit_the_context(client, engine):
    answer = await complete(client, prompt="a" * 90, max_tokens=11)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert "100" in error["message"]
    assert "101" in error["message"]
    assert not engine.requests
    assert (await complete(client, prompt="a" * 90, max_tokens=10)).status_code == 200


async def test_a_prompt_that_fills_the_context_leaves_no_room(client):
    assert (await complete(client, prompt="a" * 100)).json()["error"]["code"] == "context_length_exceeded"
    assert (await complete(client, prompt="a" * 99)).json()["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"seed": 1.5}, "seed"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [257]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"stop_token_ids": [257]}, "stop_token_ids"),
        ({"model": None}, "model"),
        ({"echo": True}, "echo"),
        ({"logprobs": 0}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"max_tokes": 5}, "max_tokes"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"nonsense": True}}, "stream_options.nonsense"),
    ],
)
async def test_a_wrong_field_is_named_in_one_error_and_nothing_runs(client, engine, fields, param):
    answer = await complete(client, **fields)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert param.rpartition(".")[2] in error["message"]
    assert not engine.requests


async def test_a_misspelt_field_is_told_its_likely_name(client):
    assert "max_tokens" in (await complete(client, max_tokes=5)).json()["error"]["message"]


async def test_fields_without_effect_are_accepted(client):
    answer = await complete(
        client,
        user="u",
        metadata={"a": "b"},
        store=True,
        logit_bias=None,
        logprobs=None,
        echo=False,
        best_of=1,
        tools=[],
        response_format={"type": "text"},
        temperature=None,
    )
    assert answer.status_code == 200


async def test_a_missing_prompt_is_named(client):
    error = (await client.post(ROUTE, json={"model": "tiny"})).json()["error"]
    assert error["code"] == "missing_required_parameter"
    assert error["param"] == "prompt"


@pytest.mark.parametrize("content", [b"{", b"[]", b'"text"', b"", b"\xff\xfe", b"[" * 50_000])
async def test_a_body_that_is_no_json_object_is_refused(client, content):
    answer = await client.post(ROUTE, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


async def test_other_models_are_not_found(client):
    answer = await complete(client, model="large")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert "tiny" in answer.json()["error"]["message"]


async def until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pause", [0, 4])
async def test_a_client_that_leaves_ends_its_requests(make_app, engine, stream, pause):
    engine.pause = pause
    body = json.dumps({"model": "tiny", "prompt": ["abc", "xyz"], "stream": stream}).encode()
    left = asyncio.Event()
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive():
        for message in messages:
            return message
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message) -> None:
        pass

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "path": ROUTE,
        "raw_path": ROUTE.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    app = make_app()
    answering = asyncio.create_task(app(scope, receive, send))
    await until(lambda: len(engine.running) == 2)
    await asyncio.sleep(0.01)
    left.set()
    await asyncio.wait_for(answering, 5)
    await until(lambda: not engine.running)
    assert sorted(engine.aborts) == sorted((request.request_id, "abort") for request in engine.requests)
    assert len(app.state.service.in_flight) == 0


async def test_draining_refuses_new_requests_and_cuts_running_ones_with_an_error(make_app, engine):
    import httpx

    engine.pause = 3
    app = make_app()
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        whole = asyncio.create_task(complete(client))
        streamed = asyncio.create_task(complete(client, stream=True))
        await until(lambda: len(engine.running) == 2)
        app.state.service.in_flight.draining = True
        assert (await complete(client)).status_code == 503
        assert (await client.get("/health")).status_code == 503
        assert await app.state.service.in_flight.abort_all(engine) == 2
        assert (await whole).status_code == 503
        assert events((await streamed).text)[-1]["error"]["code"] == "shutting_down"
