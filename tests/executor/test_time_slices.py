"""Slices of any length are asked for, and given back."""

from __future__ import annotations

import ctypes
import platform

import pytest

from superinfer.executor.time_slices import LONG_S, SHORT_S, _Attributes, ask_for_slices

GET = {"x86_64": 315, "aarch64": 275}


def slice_s() -> float:
    """What the kernel says of this thread's slices."""
    found = _Attributes()
    size = ctypes.sizeof(found)
    assert ctypes.CDLL(None).syscall(GET[platform.machine()], 0, ctypes.byref(found), size, 0) == 0
    return 1e-9 * float(found.runtime_ns)


@pytest.mark.skipif(platform.machine() not in GET, reason="the number of the system call is not known here")
@pytest.mark.parametrize("asked_s", [SHORT_S, LONG_S])
def test_a_slice_is_asked_for_and_given_back(asked_s: float) -> None:
    usual_s = slice_s()
    try:
        if not ask_for_slices(asked_s):
            pytest.skip("this system takes no slices")  # another policy, or a sandbox without the call
        assert slice_s() in (pytest.approx(asked_s), usual_s)  # before Linux 6.12 it changes nothing
    finally:
        ask_for_slices(0.0)
    assert slice_s() == pytest.approx(usual_s)
