"""`superinfer contracts check|show|export`: what contract files mean, before anything serves them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from superinfer.cli import plan

if TYPE_CHECKING:
    from rich.table import Table

    from superinfer.contracts.compile import CompiledContract
    from superinfer.contracts.contract import Bound, SLOContract
    from superinfer.contracts.inheritance import Origin

app = typer.Typer(name="contracts", help="Check, show and export SLO contracts.", no_args_is_help=True)

ContractPath = Annotated[Path, typer.Argument(help="A YAML or JSON contract file, or a directory of them.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON and nothing else to stdout.")]


@app.command()
def check(
    path: ContractPath,
    model: Annotated[
        str | None, typer.Option(help="Also compare every bound with the unloaded time of this profiled model.")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Prompt of a typical request, with --model.")] = 1,
    output_tokens: Annotated[int, typer.Option(min=1, help="Answer of a typical request, with --model.")] = 1,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "int8"], typer.Option(help="Precision that the model was profiled in.")
    ] = "auto",
    allow_unattainable: Annotated[
        bool, typer.Option("--allow-unattainable", help="Exit 0 though bounds are below the unloaded time.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compile the contracts in PATH; exit 4 with every problem, one a line, when any is wrong.

    With --model: exit 4 too when a bound is below what the model takes for one request alone on this machine.
    """
    from superinfer.cli.contracts_feasibility import as_data, cached_profile, check_contracts, feasibility_table
    from superinfer.contracts.errors import ContractError, UsageError
    from superinfer.contracts.loading import load_registry
    from superinfer.contracts.problems import InvalidContractError

    if model is None and (prompt_tokens, output_tokens) != (1, 1):
        raise UsageError("--prompt-tokens and --output-tokens need --model NAME, whose times they decide")
    try:
        contracts = load_registry(path).list()
    except ContractError as error:
        problems = error.problems if isinstance(error, InvalidContractError) else (str(error),)
        _fail(problems, {"ok": False, "problems": list(problems)}, as_json=as_json)
    profile = None if model is None else cached_profile(model, dtype)
    checks = [] if profile is None else check_contracts(contracts, profile, prompt_tokens, output_tokens)
    problems = () if allow_unattainable else tuple(str(one) for one in checks if not one.attainable)
    result: dict[str, Any] = {"ok": not problems, "contracts": [_as_data(contract) for contract in contracts]}
    if profile is not None:
        result.update(problems=list(problems), feasibility=[as_data(one) for one in checks])
    if not as_json:
        from superinfer.cli.console import out

        _print_table(contracts)
        if profile is not None:
            table = _table("service", "bound", "bound ms", "unloaded ms", "bound / unloaded", "attainable")
            out.print(feasibility_table(checks, table))
    if problems:
        _fail(problems, result, as_json=as_json)
    if as_json:
        _write_json(result)


@app.command()
def show(
    path: ContractPath,
    service_id: Annotated[str | None, typer.Argument(help="Only this service.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the effective contracts in PATH and where each term comes from."""
    from superinfer.contracts.loading import load_registry

    registry = load_registry(path)
    ids = [contract.service_id for contract in registry.list()] if service_id is None else [service_id]
    compiled = [registry.compiled(each) for each in ids]
    if as_json:
        _write_json({"contracts": [_with_origins(entry) for entry in compiled]})
        return
    for entry in compiled:
        _print_contract(entry)


@app.command()
def export(
    path: ContractPath,
    form: Annotated[
        Literal["openslo", "sloth"],
        typer.Option("--format", help="openslo: OpenSLO v1; sloth: Sloth prometheus/v1, for Prometheus rules."),
    ],
) -> None:
    """Write the bounds of the contracts in PATH as YAML for monitoring tools, over the metrics of superinfer serve."""
    from superinfer.cli.console import err
    from superinfer.contracts.errors import ContractError
    from superinfer.contracts.loading import load_registry
    from superinfer.contracts.objectives import not_exported
    from superinfer.contracts.openslo import to_openslo
    from superinfer.contracts.sloth import to_sloth

    contracts = load_registry(path).list()
    text = to_openslo(contracts) if form == "openslo" else to_sloth(contracts)
    if not text:
        raise ContractError(f"{path}: no contract bounds latency, ttft or tpot; there is nothing to export")
    typer.echo(text, nl=False)
    left_out = [term for contract in contracts for term in not_exported(contract)]
    if left_out:
        err.print(
            f"note: not exported, since no metric tells the share of requests that holds it: {'; '.join(left_out)}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _fail(problems: Sequence[str], result: object, *, as_json: bool) -> NoReturn:
    """Every problem on stderr, the result on stdout where JSON was asked for, exit code 4."""
    from superinfer.cli.console import err
    from superinfer.contracts.errors import ContractError

    for problem in problems:
        err.print(f"error: {problem}", style="red", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        _write_json(result)
    raise typer.Exit(ContractError.exit_code) from None


def _print_table(contracts: list[SLOContract]) -> None:
    from superinfer.cli.console import out

    table = _table("service", "latency ms", "ttft ms", "tpot ms", "jitter ms", "availability", "fallback")
    for service in contracts:
        for contract in (service, *service.sub_slos.values()):
            table.add_row(
                contract.service_id,
                _bounds(contract.latency),
                _bounds(contract.ttft),
                _bounds(contract.tpot),
                "-" if contract.max_jitter_ms is None else f"{contract.max_jitter_ms:g}",
                "-" if contract.availability is None else f"{contract.availability:g}",
                contract.alternative_service or ("allowed" if contract.fallback_allowed else "never"),
            )
    out.print(table)


def _table(*columns: str) -> Table:
    """A table whose cells wrap in narrow terminals and pipes, never losing a character."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _bounds(bounds: tuple[Bound, ...]) -> str:
    """`p99 150`, one line for each percentile."""
    return "\n".join(f"p{f'{bound.percentile:g}'[2:]:0<2} {bound.bound_ms:g}" for bound in bounds) or "-"


def _print_contract(entry: CompiledContract) -> None:
    from superinfer.cli.console import out

    contract = entry.contract
    parts = [(contract, entry.effective)]
    parts += [(sub, entry.sub_effective[name]) for name, sub in contract.sub_slos.items()]
    for part, effective in parts:
        out.print(part.service_id, style="bold", markup=False, highlight=False, soft_wrap=True)
        if part.description:
            out.print(part.description, markup=False, highlight=False, soft_wrap=True)
        if part.is_best_effort:
            out.print("best effort: no bound on any time", highlight=False)
        table = _table("term", "value", "origin")
        for key, value in effective.terms.items():
            table.add_row(key, _text(value), _origin_text(effective.origins[key]))
        out.print(table)


def _origin_text(origin: Origin) -> str:
    if origin.kind == "own":
        return "own"
    if origin.kind == "inherited":
        return f"inherited from {origin.source}"
    return f"tightened by {origin.source} (declared {_text(origin.declared)})"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _as_data(contract: SLOContract) -> Any:
    import msgspec

    return msgspec.to_builtins(contract)


def _with_origins(entry: CompiledContract) -> dict[str, Any]:
    from dataclasses import asdict

    origins = {key: asdict(origin) for key, origin in entry.origins.items()}
    return {"contract": _as_data(entry.contract), "parent_id": entry.parent_id, "origins": origins}


def _write_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


app.command("plan")(plan.plan)
