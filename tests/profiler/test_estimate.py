"""Predictions for devices that nobody has measured: limits, monotony, and what fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superinfer.contracts.errors import UsageError
from superinfer.profiler.data_sheet import DataSheet, data_sheet, data_sheets
from superinfer.profiler.estimate import DeviceEstimate, PhaseEstimate, estimate
from superinfer.profiler.known_architectures import known_architectures
from superinfer.profiler.static import BYTES_PER_ELEMENT

MODELS = known_architectures()


def predict(model: str, device: str, dtype: str = "bfloat16", degree: int = 1) -> DeviceEstimate:
    return estimate(MODELS[model], data_sheet(device), device=device, dtype=dtype, tensor_parallel=degree)


def step(result: DeviceEstimate, phase: str, tokens: int) -> PhaseEstimate:
    return next(each for each in result.phases if (each.phase, each.tokens) == (phase, tokens))


@given(
    model=st.sampled_from(sorted(MODELS)),
    device=st.sampled_from(sorted(data_sheets())),
    dtype=st.sampled_from(sorted(BYTES_PER_ELEMENT)),
)
def test_no_phase_is_faster_than_the_published_peaks_allow(model: str, device: str, dtype: str) -> None:
    for phase in predict(model, device, dtype).phases:
        assert phase.seconds > phase.least_seconds > 0.0


def test_decodes_wait_for_memory_and_prefills_for_arithmetic() -> None:
    result = predict("llama-3-8b", "H100-SXM5")
    assert step(result, "decode", 1).limit == "memory"
    assert step(result, "prefill", 2048).limit == "arithmetic"
    assert step(result, "decode", 1).flops_per_byte < 2 < step(result, "decode", 32).flops_per_byte


def test_a_slow_link_limits_a_group() -> None:
    assert step(predict("llama-3-70b", "L40S", degree=8), "prefill", 2048).limit == "link"


def test_half_the_bytes_take_about_half_the_time_where_memory_limits() -> None:
    full, half = (predict("llama-3-8b", "H100-SXM5", dtype) for dtype in ("bfloat16", "float8"))
    ratio = step(half, "decode", 1).least_seconds / step(full, "decode", 1).least_seconds
    assert ratio == pytest.approx(0.5, abs=0.01)
    assert half.kv_tokens > 2 * full.kv_tokens


def test_what_does_not_fit_is_marked_and_still_predicted() -> None:
    alone = predict("llama-3-70b", "H100-SXM5")
    assert alone.kv_tokens == 0
    assert not any(phase.fits for phase in alone.phases)
    assert all(phase.fits for phase in predict("llama-3-70b", "H100-SXM5", degree=8).phases)


def test_eight_bit_peaks_come_from_the_sheet_or_are_those_of_bf16() -> None:
    a100, h100 = data_sheet("A100-SXM4-80GB"), data_sheet("H100-SXM5")
    assert a100.peak_tflops("float8") == a100.bf16_tflops
    assert a100.peak_tflops("int8") == 2 * a100.bf16_tflops
    assert h100.peak_tflops("float8") == pytest.approx(2 * h100.bf16_tflops, rel=1e-3)
    assert h100.peak_tflops("float32") == h100.bf16_tflops / 2


def test_heads_that_do_not_divide_are_one_clear_error() -> None:
    with pytest.raises(UsageError, match="tensor_parallel 3"):
        predict("llama-3-8b", "H100-SXM5", degree=3)


@pytest.mark.parametrize(
    "device",
    ["A100-SXM4-80GB", "H100-SXM5", "H100-PCIe", "H200-SXM", "GH200-96GB", "B200", "MI300X", "L40S"],
)
def test_the_devices_that_users_ask_for_have_sheets(device: str) -> None:
    sheet = data_sheet(device)
    assert sheet.source.startswith("https://")
    # A balance outside this range is a slip of a factor of ten or of sparsity.
    assert 100 < sheet.bf16_tflops * 1e3 / sheet.bandwidth_gb_per_s < 500


def test_this_cpu_is_measured_as_one_core() -> None:
    pytest.importorskip("torch")
    from superinfer.profiler.cpu_sheet import MEASURED_EFFICIENCY, measured_sheet

    sheet = measured_sheet()
    assert isinstance(sheet, DataSheet)
    assert 1e-3 < sheet.peak_tflops("float32") <= sheet.peak_tflops("bfloat16") < 10
    assert 0.5 < sheet.bandwidth_gb_per_s < 1000
    result = estimate(MODELS["qwen2-0.5b"], sheet, device="cpu", dtype="float32", efficiency=MEASURED_EFFICIENCY)
    assert step(result, "decode", 1).limit == "memory"
