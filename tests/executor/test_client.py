"""What a client of an engine leaves behind."""

from __future__ import annotations

import subprocess
import sys

NEVER_CLOSED = """
import asyncio, gc
from superinfer.contracts.errors import EngineError
from superinfer.executor.client import EngineClient

async def give_up():
    client = EngineClient("ipc:///nowhere/engine.sock")
    try:
        await client.connect(0.1)
    except EngineError as error:
        print(error)

asyncio.run(give_up())
gc.collect()
"""


def test_a_client_that_nobody_closed_does_not_stop_its_process() -> None:
    done = subprocess.run([sys.executable, "-c", NEVER_CLOSED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "no engine answered at ipc:///nowhere/engine.sock within 0.1 s\n"
