"""An engine has room for the files it opens, or says in one line what is missing."""

from __future__ import annotations

import resource

import pytest

from superinfer.contracts.errors import ResourceError
from superinfer.executor.open_files import FILES, FILES_PER_DOMAIN, allow_open_files


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """The limits as the system would keep them; `now` is (soft, hard)."""
    kept = {"now": (20, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: kept["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: kept.update(now=limits))
    return kept


def test_a_low_soft_limit_is_raised_to_what_is_needed(limits: dict[str, tuple[int, int]]) -> None:
    allow_open_files(2)
    assert limits["now"] == (FILES + 2 * FILES_PER_DOMAIN, 4096)
    allow_open_files(1)
    assert limits["now"] == (FILES + 2 * FILES_PER_DOMAIN, 4096)


def test_more_domains_than_the_hard_limit_has_files_for_are_refused(limits: dict[str, tuple[int, int]]) -> None:
    with pytest.raises(ResourceError, match=r"1000000 fault domains need .* may have 4096; .*ulimit -n"):
        allow_open_files(1_000_000)
    assert limits["now"] == (20, 4096)


def test_without_a_limit_nothing_is_set(limits: dict[str, tuple[int, int]]) -> None:
    limits["now"] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    allow_open_files(1_000_000)
    assert limits["now"][0] == resource.RLIM_INFINITY
