"""`superinfer cache`: what is kept on disk between runs, and how to be rid of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from superinfer.executor.kept_files import Kept, Kind

app = typer.Typer(no_args_is_help=True, help="Compiled kernels, packed weights, models and profiles kept on disk.")


@app.command("list")
def list_kept(as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False) -> None:
    """Show what is kept where, and its size."""
    from superinfer.executor.kept_files import kept

    _show(kept(), as_json=as_json)


@app.command("clean")
def clean(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(
            help="kernels, weights, models, profiles, or all; models are fetched, profiles measured again on next use.",
            show_default="kernels weights",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Remove compiled kernels and packed weights, or other KINDS; they are made again when they are needed."""
    from superinfer.executor import kept_files

    _show(kept_files.clean(_chosen(kinds or list(kept_files.REBUILT_IN_SECONDS))), as_json=as_json)


def _chosen(names: list[str]) -> tuple[Kind, ...]:
    from superinfer.contracts.errors import UsageError
    from superinfer.executor.kept_files import KINDS

    for name in names:
        if name not in (*KINDS, "all"):
            raise UsageError(f"superinfer cache clean {name}: {', '.join(KINDS)} or all is accepted")
    return tuple(kind for kind in KINDS if kind in names or "all" in names)


def _show(found: list[Kept], *, as_json: bool) -> None:
    if as_json:
        import json

        rows = [
            {"kind": each.kind, "folder": str(each.folder), "files": each.files, "bytes": each.size_bytes}
            for each in found
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    from superinfer.cli.console import out

    table = Table("kind", "folder", "files", "MiB")
    for each in found:
        table.add_row(each.kind, str(each.folder), str(each.files), f"{each.size_bytes / 2**20:.1f}")
    out.print(table)
