from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.anyio


async def chat(client, messages=None, **fields):
    body = {"model": "tiny", "messages": messages or [{"role": "user", "content": "Hi"}], **fields}
    return await client.post("/v1/chat/completions", json=body)


async def test_a_chat_answer_has_the_shape_that_clients_expect(client, engine):
    body = (await chat(client, [{"role": "developer", "content": "Be"}, {"role": "user", "content": "Hi"}])).json()
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, world!", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert bytes(engine.requests[0].prompt_token_ids) == b"<system>Be<user>Hi"
    assert body["usage"]["prompt_tokens"] == len("<system>Be<user>Hi")


async def test_without_a_limit_the_answer_may_fill_the_context(client, engine):
    await chat(client)
    request = engine.requests[0]
    assert len(request.prompt_token_ids) + request.sampling.max_tokens == 100


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_both_names_of_the_limit_work(client, name):
    body = (await chat(client, **{name: 4})).json()
    assert body["choices"][0]["message"]["content"] == "Hell"
    assert body["choices"][0]["finish_reason"] == "length"


async def test_text_parts_are_joined(client, engine):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert (await chat(client, [{"role": "user", "content": parts}])).status_code == 200
    assert bytes(engine.requests[0].prompt_token_ids) == b"<user>ab"


async def test_a_stream_begins_with_the_role_and_ends_with_reason_usage_and_done(client):
    answer = await chat(client, stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[1:-2]]
    assert "".join(delta["content"] for delta in deltas) == "Hello, world!"
    assert all("role" not in delta for delta in deltas)
    assert chunks[-2]["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 14


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "messages[0].content"),
        ("Hi", "messages[0]"),
    ],
)
async def test_a_wrong_message_is_named_by_its_place(client, message, param):
    answer = await chat(client, [message])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert param in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"audio": {"voice": "a"}},
    ],
)
async def test_what_is_not_supported_is_refused_by_name(client, fields):
    error = (await chat(client, **fields)).json()["error"]
    assert error["code"] == "unsupported_parameter"
    assert error["param"] == next(iter(fields))


async def test_messages_may_not_be_empty(client):
    answer = await client.post("/v1/chat/completions", json={"model": "tiny", "messages": []})
    assert answer.json()["error"]["param"] == "messages"


async def test_messages_that_the_template_refuses_are_the_clients_mistake(make_app):
    import httpx

    from superinfer.contracts.errors import UsageError

    app = make_app()

    def refuse(messages):
        raise UsageError("the chat template refused the messages: roles must alternate")

    app.state.service.tokenizer.apply_chat_template = refuse
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        answer = await chat(client)
    assert answer.status_code == 400
    assert "alternate" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "messages"


async def test_the_error_of_an_unsupported_content_part_shows_the_form_as_it_is_written(client):
    part = {"type": "image_url", "image_url": {"url": "http://x"}}
    answer = await chat(client, [{"role": "user", "content": [part]}])
    assert answer.status_code == 400
    assert "parts {type: 'text', text: '…'}" in answer.json()["error"]["message"]
