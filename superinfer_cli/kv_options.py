"""Options that `serve` and `bench` have in common: where KV lies, and what of it outlives a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

HostKVMemory = Annotated[
    str | None,
    typer.Option(
        help="Memory of each domain for the KV of requests that give way, like 1GiB; without it, recomputed.",
        show_default="none",
    ),
]
KeepKV = Annotated[
    bool, typer.Option(help="Keep KV in memory that outlives a worker, so that its death loses no computed token.")
]
SaveIntervalMs = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Copy what changed to host memory this often: for worker memory that is lost with its worker.",
        show_default="KV itself outlives the worker",
    ),
]
SaveStrategy = Annotated[
    Literal["incremental", "full"], typer.Option(help="With --save-interval-ms: blocks that changed, or all.")
]
PrefixCache = Annotated[bool, typer.Option(help="Prompts that begin alike share the KV of what they have in common.")]
DecayProfilePath = Annotated[
    Path | None, typer.Option(help="slack_decay_profile.yaml from `superinfer tune`.", show_default="built in")
]
