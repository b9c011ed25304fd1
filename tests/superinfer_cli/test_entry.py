"""The script's first second: an interrupt while the command line is still being imported."""

from __future__ import annotations

import signal
import subprocess
import sys

INTERRUPTED_WHILE_IMPORTING = """
import builtins, os, signal
from superinfer.cli import entry

plain_import = builtins.__import__

def interrupted_import(name, *rest):
    if name == "superinfer.cli.main":
        os.kill(os.getpid(), signal.SIGINT)
    return plain_import(name, *rest)

builtins.__import__ = interrupted_import
entry.main()
"""


def test_an_interrupt_while_the_command_line_is_imported_ends_it_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", INTERRUPTED_WHILE_IMPORTING],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""
