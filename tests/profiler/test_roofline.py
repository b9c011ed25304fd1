from __future__ import annotations

import pytest

from superinfer.contracts.errors import UsageError
from superinfer.profiler.data_sheet import data_sheet, data_sheets
from superinfer.profiler.known_architectures import known_architectures
from superinfer.profiler.latency_model import StepShape
from superinfer.profiler.roofline import Efficiency, kv_token_capacity, roofline_model
from superinfer.profiler.static import kv_bytes_per_token, step_flops, step_read_bytes

LLAMA_70B = known_architectures()["llama-3-70b"]
H100 = data_sheet("H100-SXM5")
EFFICIENCY = Efficiency()


def decode(batch: int, context: int) -> StepShape:
    return StepShape(tokens=batch, decodes=batch, decode_context=batch * context, rows=batch)


def test_known_shapes_give_the_published_parameter_counts() -> None:
    billions = {name: a.parameters / 1e9 for name, a in known_architectures().items()}
    assert billions["llama-3-70b"] == pytest.approx(70.55, abs=0.01)
    assert billions["llama-3-8b"] == pytest.approx(8.03, abs=0.01)
    assert billions["qwen2-72b"] == pytest.approx(72.71, abs=0.01)
    assert billions["mixtral-8x7b"] == pytest.approx(46.70, abs=0.01)


def test_every_data_sheet_names_its_source() -> None:
    assert all(sheet.source.startswith("https://") for sheet in data_sheets().values())
    with pytest.raises(UsageError, match="'H99' has no data sheet; known: H100-SXM5"):
        data_sheet("H99")


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_no_step_beats_the_published_peaks(degree: int) -> None:
    model = roofline_model(LLAMA_70B, H100, tensor_parallel=degree)
    few, prefill = decode(4, 1000), StepShape()
    prefill.add_prefill(0, 4096, samples=True)
    read_s = step_read_bytes(LLAMA_70B, "bfloat16", tokens=4, context=4000) / (H100.bandwidth_gb_per_s * 1e9 * degree)
    compute_s = step_flops(LLAMA_70B, prefill) / (H100.bf16_tflops * 1e12 * degree)
    assert read_s < model.step_s(few) < 3 * read_s
    assert compute_s < model.step_s(prefill) < 3 * compute_s


def test_decodes_are_bound_by_bandwidth_and_prefills_by_arithmetic() -> None:
    def scaled(**figures: float) -> tuple[float, float]:
        import msgspec

        sheet = msgspec.structs.replace(H100, **{name: 2 * getattr(H100, name) for name in figures})
        model = roofline_model(LLAMA_70B, sheet, tensor_parallel=8)
        return model.step_s(decode(8, 500)), model.prefill_s(0, 4096)

    decode_s, prefill_s = scaled()
    more_bandwidth, more_arithmetic = scaled(bandwidth_gb_per_s=2), scaled(bf16_tflops=2)
    assert more_bandwidth[0] < 0.75 * decode_s
    assert more_bandwidth[1] == pytest.approx(prefill_s, rel=0.01)
    assert more_arithmetic[0] == pytest.approx(decode_s, rel=0.01)
    assert more_arithmetic[1] < 0.75 * prefill_s


def test_all_reduces_cost_what_a_ring_sends_over_the_link() -> None:
    fast, slow = (roofline_model(LLAMA_70B, H100, tensor_parallel=8, link_gb_per_s=rate) for rate in (450, 45))
    sent_bytes = 2 * LLAMA_70B.layers * 2 * 7 / 8 * 4096 * LLAMA_70B.hidden_size * 2
    difference_s = sent_bytes / (EFFICIENCY.link * 1e9) * (1 / 45 - 1 / 450)
    assert slow.linear_s(4096) - fast.linear_s(4096) == pytest.approx(difference_s)
    alone = roofline_model(known_architectures()["llama-3-8b"], H100, link_gb_per_s=1)
    assert alone.linear_s(4096) == roofline_model(known_architectures()["llama-3-8b"], H100).linear_s(4096)


def test_noise_of_the_model_is_the_documented_sigma() -> None:
    model = roofline_model(LLAMA_70B, H100, tensor_parallel=8, efficiency=Efficiency(residual_sigma=0.08))
    assert model.log_sigma == pytest.approx(0.08)


def test_memory_beside_the_weights_holds_kv() -> None:
    tokens = kv_token_capacity(LLAMA_70B, H100, tensor_parallel=8)
    used = tokens * kv_bytes_per_token(LLAMA_70B, "bfloat16") + LLAMA_70B.parameters * 2
    assert used == pytest.approx(0.9 * 8 * 80e9, rel=1e-3)
    with pytest.raises(UsageError, match="141 GB do not fit into the 72 GB"):
        kv_token_capacity(LLAMA_70B, H100, tensor_parallel=1)


def test_a_degree_that_does_not_divide_the_heads_is_refused() -> None:
    with pytest.raises(UsageError, match="tensor_parallel 7: must divide the model's 64 attention heads"):
        roofline_model(LLAMA_70B, H100, tensor_parallel=7)
