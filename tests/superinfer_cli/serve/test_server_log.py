from __future__ import annotations

import asyncio
import logging

import pytest

from superinfer.cli.serve.server import configure_logging


def test_a_request_that_the_server_cut_off_leaves_no_traceback_in_the_log_and_a_bug_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("info")
    log = logging.getLogger("uvicorn.error")
    for error in (asyncio.CancelledError(), ZeroDivisionError("a bug")):
        log.error("Exception in ASGI application", exc_info=error)
    written = capsys.readouterr().err
    assert written.count("Exception in ASGI application") == 1
    assert "ZeroDivisionError: a bug" in written
    assert "CancelledError" not in written
