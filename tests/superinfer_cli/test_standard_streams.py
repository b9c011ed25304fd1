from __future__ import annotations

import subprocess
import sys

import pytest

SHOW = (
    "import os, superinfer.cli.console as console;"
    "console.out.print('data'); console.err.print('note');"
    "read, write = os.pipe();"
    "os._exit(0 if min(read, write) > 2 else 9)"
)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_swallows_what_is_written_and_its_number_goes_to_no_file(closed):
    command = ["sh", "-c", f'exec "$0" -P -c "{SHOW}" {closed}', sys.executable]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ("" if ">&-" in closed.split() else "data\n")
    assert ended.stderr == ("" if "2>&-" in closed else "note\n")
