"""The four static dimensions against published figures and against torch's own FLOP counter."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.profiler.architecture import ModelArchitecture, architecture_from_config
from superinfer.profiler.latency_model import StepShape
from superinfer.profiler.static import (
    decode_flops,
    kv_bytes_per_token,
    memory_bytes,
    prefill_flops,
    static_features,
    step_flops,
    step_read_bytes,
)

from .small_config import SMALL_LLAMA

LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
}
LLAMA_3_70B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "max_position_embeddings": 8192,
}
MIXTRAL_8X22B: dict[str, Any] = {
    "model_type": "mixtral",
    "vocab_size": 32768,
    "hidden_size": 6144,
    "num_hidden_layers": 56,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "intermediate_size": 16384,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 65536,
}


@pytest.mark.parametrize(
    ("config", "parameters_1e9", "gflop_per_token", "kv_bytes"),
    [
        (LLAMA_3_8B, 8.03, None, 131_072),
        (LLAMA_3_70B, 70.55, 140.35, 327_680),
        (MIXTRAL_8X22B, 140.63, 78.62, 229_376),
    ],
    ids=["llama-3-8b", "llama-3-70b", "mixtral-8x22b"],
)
def test_known_models_give_their_known_figures(
    config: dict[str, Any], parameters_1e9: float, gflop_per_token: float | None, kv_bytes: int
) -> None:
    features = static_features(architecture_from_config(config), "bfloat16", prefill_tokens=512)
    assert features.compute.parameters / 1e9 == pytest.approx(parameters_1e9, abs=0.005)
    assert features.memory.kv_bytes_per_token == kv_bytes
    assert features.memory.weight_bytes == 2 * features.compute.parameters
    if gflop_per_token is not None:
        assert features.compute.prefill_flops_per_token / 1e9 == pytest.approx(gflop_per_token, abs=0.005)


def tiny(model_type: str = "llama", **extra: Any) -> ModelArchitecture:
    return architecture_from_config({**SMALL_LLAMA, "model_type": model_type, **extra})


def test_prefill_flops_equal_those_torch_counts_on_the_meta_device() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        attn_implementation="sdpa",
    )
    tokens = 48
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
        token_ids = torch.zeros((1, tokens), dtype=torch.long)
        mask = torch.zeros((1, 1, tokens, tokens))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=token_ids, attention_mask=mask, use_cache=False)
    assert prefill_flops(tiny(), tokens) == counter.get_total_flops()


def prefill_step(start: int, count: int, *, samples: bool) -> StepShape:
    shape = StepShape()
    shape.add_prefill(start, count, samples=samples)
    return shape


@given(start=st.integers(0, 2000), first=st.integers(1, 300), second=st.integers(1, 300))
def test_the_flops_of_a_prompt_do_not_depend_on_how_it_is_chunked(start: int, first: int, second: int) -> None:
    whole = step_flops(tiny(), prefill_step(start, first + second, samples=True))
    parts = [prefill_step(start, first, samples=False), prefill_step(start + first, second, samples=True)]
    assert sum(step_flops(tiny(), part) for part in parts) == pytest.approx(whole)


@given(context=st.integers(0, 4000))
def test_a_decode_costs_what_a_one_token_chunk_costs(context: int) -> None:
    decode = StepShape()
    decode.add_decode(context)
    assert decode_flops(tiny(), context) == pytest.approx(step_flops(tiny(), decode))
    assert step_flops(tiny(), prefill_step(context, 1, samples=True)) == pytest.approx(decode_flops(tiny(), context))


def test_a_tied_head_is_stored_once_and_multiplied_all_the_same() -> None:
    tied, untied = tiny(tie_word_embeddings=True), tiny()
    assert untied.parameters - tied.parameters == 512 * 64
    assert decode_flops(tied, 10) == decode_flops(untied, 10)
    embedding_row_bytes = 64 * 4
    for architecture in (tied, untied):
        read = step_read_bytes(architecture, "float32", tokens=1, context=0)
        assert read == 4 * tied.parameters + embedding_row_bytes


def test_decode_reads_weights_and_context_and_prefill_shares_the_weights() -> None:
    near = static_features(tiny(), "bfloat16", decode_context=100).bandwidth
    far = static_features(tiny(), "bfloat16", decode_context=300).bandwidth
    kv_bytes = kv_bytes_per_token(tiny(), "bfloat16")
    assert far.decode_read_bytes_per_token - near.decode_read_bytes_per_token == 200 * kv_bytes
    assert near.decode_write_bytes_per_token == kv_bytes
    assert near.prefill_read_bytes_per_token < near.decode_read_bytes_per_token / 50
    assert near.prefill_flops_per_byte > near.decode_flops_per_byte


@given(tokens=st.integers(1, 400))
def test_a_step_of_a_mixture_reads_its_experts_in_part_and_never_more_than_all(tokens: int) -> None:
    mixture = tiny("mixtral", num_local_experts=8, num_experts_per_tok=2)
    read = step_read_bytes(mixture, "float32", tokens=tokens, context=0) - tokens * 64 * 4
    unread_embedding = 512 * 64 * 4
    assert read <= 4 * mixture.parameters - unread_embedding
    assert read >= 4 * mixture.active_parameters - unread_embedding - 1e-6


def test_communication_grows_with_the_degree_and_only_mixtures_exchange_experts() -> None:
    dense = static_features(tiny(), "bfloat16").communication
    mixture = static_features(tiny("mixtral"), "bfloat16").communication
    assert [c.degree for c in dense] == [2, 4, 8]
    # By two devices: two all-reduces a layer, each device sends 2 · (1/2) of the hidden state.
    assert dense[0].all_reduce_bytes_per_token == 2 * 2 * 64 * 2
    assert dense[0].all_reduce_bytes_per_token < dense[1].all_reduce_bytes_per_token
    assert dense[0].flops_per_byte > dense[2].flops_per_byte
    assert all(c.all_to_all_bytes_per_token == 0 for c in dense)
    # Dispatch and combine of two experts a layer, half of them on the other device.
    assert mixture[0].all_to_all_bytes_per_token == 2 * 2 * 2 * 64 * 2 / 2


LATENT: dict[str, Any] = {
    "q_lora_rank": 48,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}


def test_latent_attention_caches_one_vector_for_all_heads() -> None:
    latent = tiny("deepseek_v3", **LATENT)
    assert kv_bytes_per_token(latent, "bfloat16") == 2 * (24 + 8) * 2
    # A decode works on that vector itself, a prefill on the heads' own keys and values.
    assert decode_flops(latent, 101) - decode_flops(latent, 100) == 2 * 4 * 2 * (24 + 8 + 24)
    more = prefill_flops(latent, 65) / 65 - prefill_flops(latent, 64) / 64
    assert more == pytest.approx(2 * 4 * 2 * (16 + 8 + 12))


def test_deepseek_v3_gives_its_published_figures() -> None:
    published: dict[str, Any] = {
        "model_type": "deepseek_v3",
        "vocab_size": 129280,
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    }
    model = architecture_from_config(published)
    assert model.parameters / 1e9 == pytest.approx(671, rel=1e-3)
    assert model.active_parameters / 1e9 == pytest.approx(37, rel=0.02)
    assert kv_bytes_per_token(model, "bfloat16") == 61 * 576 * 2


def test_tokens_behind_a_sliding_window_are_neither_kept_nor_read() -> None:
    windowed, full = tiny("mistral", sliding_window=100), tiny("mistral")
    assert memory_bytes(windowed, "bfloat16", context=5000, batch=3) == memory_bytes(
        full, "bfloat16", context=100, batch=3
    )
    assert decode_flops(windowed, 5000) == decode_flops(windowed, 99) == decode_flops(full, 99)


@given(first=st.integers(1, 200), more=st.integers(1, 200))
def test_larger_batches_touch_more_experts_up_to_all(first: int, more: int) -> None:
    mixture = tiny("mixtral", num_local_experts=8, num_experts_per_tok=2)
    assert mixture.touched_experts(1) == pytest.approx(2)
    assert mixture.touched_experts(first) < mixture.touched_experts(first + more) + 1e-9 <= 8 + 1e-9


def test_memory_is_weights_and_the_kv_cache_of_every_sequence() -> None:
    model = tiny(max_position_embeddings=8192)
    needs = static_features(model, "bfloat16").memory.needs
    assert {need.context for need in needs} == {2048, 8192}
    for need in needs:
        kv = need.batch * need.context * kv_bytes_per_token(model, "bfloat16")
        assert need.total_bytes == 2 * model.parameters + kv
