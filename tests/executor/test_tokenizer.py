from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from superinfer.contracts.errors import ModelError, UsageError
from superinfer.executor.tokenizer import IncrementalDetokenizer, Tokenizer, load_tokenizer

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}:{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<s>{% endif %}"
)


def write_byte_level_tokenizer(directory: Path, template: str | None) -> None:
    """Every byte is a token, and so are a few merged pairs: characters of several bytes tear as in real models."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "t"), ("Ġt", "h"), ("Ã", "¶"), ("ð", "Ł"), ("e", "ð")]
    vocabulary = {token: index for index, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    backend.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_byte_level_tokenizer(directory, TEMPLATE)
    return load_tokenizer(directory)


TEXT = st.text() | st.text(alphabet="ab the🎉👩‍👧öé漢�", max_size=80)


@given(TEXT, st.data())
@settings(deadline=None)
def test_streamed_text_equals_the_decoded_whole_for_any_split(
    tokenizer: Tokenizer, text: str, data: st.DataObject
) -> None:
    ids = tokenizer.encode(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = [detokenizer.push(ids[a:b]) for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    assert "".join(pieces) + detokenizer.finish() == tokenizer.decode(ids) == text.encode("utf-8", "replace").decode()


@given(st.lists(st.integers(0, 265), max_size=150))
@settings(deadline=None)
def test_streamed_text_equals_the_decoded_whole_for_any_tokens_at_all(tokenizer: Tokenizer, ids: list[int]) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer)
    streamed = "".join(detokenizer.push([token_id]) for token_id in ids) + detokenizer.finish()
    assert streamed == tokenizer.decode(ids)


@given(st.text(alphabet="ab🎉", max_size=40), st.lists(st.text(alphabet="ab🎉", min_size=1, max_size=4), max_size=3))
@settings(deadline=None)
def test_text_ends_before_the_first_stop_string_and_none_of_it_is_ever_sent(
    tokenizer: Tokenizer, text: str, stop: list[str]
) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, stop=stop)
    sent = ""
    for token_id in tokenizer.encode(text):
        sent += detokenizer.push([token_id])
        assert text.startswith(sent)
        assert not any(string in sent for string in stop)
    sent += detokenizer.finish()
    # The stop string that is complete first ends the text, at its beginning.
    ends = [(text.find(string) + len(string), text.find(string)) for string in stop if string in text]
    first_end = min((end for end, _ in ends), default=None)
    expected = text if first_end is None else text[: min(start for end, start in ends if end == first_end)]
    assert sent == expected
    assert detokenizer.stopped == bool(ends)


def test_a_stop_string_across_tokens_is_held_back_and_what_follows_is_dropped(tokenizer: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, stop=["END"])
    assert detokenizer.push(tokenizer.encode("one EN")) == "one "
    assert detokenizer.push(tokenizer.encode("T two")) == "ENT two"
    assert detokenizer.push(tokenizer.encode(" E")) == " "
    assert not detokenizer.stopped
    assert detokenizer.push(tokenizer.encode("ND more")) == ""
    assert detokenizer.stopped
    assert detokenizer.matched_stop == "END"
    assert detokenizer.push(tokenizer.encode("x")) == ""
    assert detokenizer.finish() == ""


def test_a_beginning_of_a_stop_string_is_sent_when_the_output_ends(tokenizer: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, stop=["END"])
    assert detokenizer.push(tokenizer.encode("an EN")) == "an "
    assert detokenizer.finish() == "EN"


def test_a_torn_character_waits_for_its_last_byte(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🎉")
    assert len(ids) > 1
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.push([token_id]) for token_id in ids] == [""] * (len(ids) - 1) + ["🎉"]


def test_special_tokens_stand_for_no_text_however_many_come(tokenizer: Tokenizer) -> None:
    special = tokenizer.eos_token_ids[0]
    ids = tokenizer.encode("ö the")
    detokenizer = IncrementalDetokenizer(tokenizer)
    streamed = detokenizer.push([ids[0], *[special] * 100, *ids[1:]]) + detokenizer.finish()
    assert streamed == "ö the"


def test_the_chat_template_ends_where_the_answer_begins(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.render_chat(messages) == "<s>user:hi<s>"
    ids = tokenizer.apply_chat_template(messages)
    assert ids[0] == ids[-1] == tokenizer.encode("<s>")[0]


def test_lone_surrogates_become_replacement_characters(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a�b"


def test_a_model_without_chat_template_says_so_in_plain_words(tmp_path: Path) -> None:
    write_byte_level_tokenizer(tmp_path, None)
    plain = load_tokenizer(tmp_path)
    assert not plain.has_chat_template
    with pytest.raises(UsageError, match="has no chat template, so it cannot take chat messages"):
        plain.apply_chat_template([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("template", ["{{ raise_exception('roles must alternate') }}", "{{ messages[0]['a']['b'] }}"])
def test_a_template_that_refuses_the_messages_is_a_usage_error(tmp_path: Path, template: str) -> None:
    write_byte_level_tokenizer(tmp_path, template)
    with pytest.raises(UsageError, match="refused the messages"):
        load_tokenizer(tmp_path).apply_chat_template([{"role": "user", "content": "hi"}])


def test_all_end_of_sequence_ids_of_all_files_count(tmp_path: Path) -> None:
    write_byte_level_tokenizer(tmp_path, None)
    own = load_tokenizer(tmp_path).eos_token_ids
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7, "model_type": "llama"}))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 9]}')
    assert load_tokenizer(tmp_path).eos_token_ids == (3, 7, 9, *own)


def test_a_missing_or_damaged_tokenizer_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
