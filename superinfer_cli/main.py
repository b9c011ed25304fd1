"""The `superinfer` command: its sub-commands, and how errors become one line and an exit code."""

from __future__ import annotations

import sys

import typer

from superinfer.cli import cache, contracts, devices, profile
from superinfer.cli.bench import command as bench_command
from superinfer.cli.console import err
from superinfer.cli.serve import command as serve_command
from superinfer.cli.tune import command as tune_command
from superinfer.contracts.errors import SuperInferError

EXIT_CODES = """Exit codes: 0 done, 1 unexpected failure, 2 wrong argument or scenario, 3 model not found or not
supported, 4 malformed or conflicting contract, 5 not enough memory or another resource, 6 address in use,
7 engine failure, 130 interrupted."""

app = typer.Typer(
    name="superinfer",
    help="SLO-aware LLM serving: profile a model, tune the scheduler, bench contracts under load, serve.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("profile")(profile.profile)
app.command("tune")(tune_command.tune)
app.command("bench")(bench_command.bench)
app.command("serve")(serve_command.serve)
app.command("devices")(devices.devices)
app.add_typer(contracts.app, name="contracts")
app.add_typer(cache.app, name="cache")


def main() -> None:
    """Run the command line; a SuperInferError is printed as one line on stderr."""
    try:
        app()
    except SuperInferError as error:
        err.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
