"""Where the command line writes: data to stdout, progress and notes to stderr. Rich honours NO_COLOR."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from superinfer.cli.standard_streams import open_closed_streams

WIDTH_IN_FILES = 160
"""Characters of a line where stdout is no terminal, so that tables keep their text in a file or a pipe."""

open_closed_streams()  # before either console looks at its stream
out = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_IN_FILES)
err = Console(stderr=True)


def progress_bar() -> Progress:
    """A progress bar on stderr that says what, how far, and for how long."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,  # elsewhere a bar that is gone at its end leaves an empty line
    )
