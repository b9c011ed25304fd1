"""Tables have one width in every test, whatever terminal or process the tests run in."""

from __future__ import annotations

import pytest

from superinfer.cli.console import out


@pytest.fixture(autouse=True)
def wide_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_width", 160)
