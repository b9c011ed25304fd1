"""Where the command line writes: data to stdout, progress and notes to stderr. Rich honours NO_COLOR."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

out = Console()
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
    )
