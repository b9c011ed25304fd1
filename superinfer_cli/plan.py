"""`superinfer contracts plan`: how a topology is shared among contracts, the frontier, or who clashes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from superinfer.cli.plan_costs import PlanCosts
    from superinfer.cli.plan_sizing import Sizing
    from superinfer.contracts.registry import ContractRegistry
    from superinfer.scheduler.pareto import Allocation, Clash, Plan
    from superinfer.scheduler.pareto_demand import ContractDemand, ModelCosts
    from superinfer.scheduler.topology import Topology

PLAN_SCHEMA = "superinfer.plan/1"
DEFAULT_MODEL = "smollm2-135m-instruct"


def plan(
    path: Annotated[Path, typer.Argument(help="A YAML or JSON contract file, or a directory of them.")],
    topology: Annotated[Path, typer.Option(help="Topology file: nodes, devices, links, and the demands to plan for.")],
    model: Annotated[
        str | None, typer.Option(help=f"Model whose profile on this machine gives the costs. Default: {DEFAULT_MODEL}.")
    ] = None,
    profile: Annotated[Path | None, typer.Option(help="Feature file to take the costs from instead.")] = None,
    size: Annotated[
        bool,
        typer.Option(
            "--size",
            help="Also say how many devices are needed, what batch, and whether all contracts hold, simulated: with "
            "--model known by its shapes, and devices that have data sheets.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="With --size: seed of the simulated arrivals.")] = 0,
    decode_batch: Annotated[
        int, typer.Option(min=1, max=1024, help="Sequences that a decode step is taken to be shared by.")
    ] = 8,
    max_margin: Annotated[float, typer.Option(help="Margin beyond which more counts no more.")] = 10.0,
    time_limit: Annotated[
        float, typer.Option(help="Seconds for the solver; what it has not proven by then is marked.")
    ] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON and nothing else to stdout.")] = False,
    picture: Annotated[Path | None, typer.Option("--out", help="Draw the shares and the frontier to this PNG.")] = None,
) -> None:
    """Share the devices among the contracts so that every bound holds and no margin could rise for free.

    What each service is expected to send stands under `demands` in the topology file. Exits 4 and names the smallest
    set of contracts that clash where not all bounds can hold. The figures are a queueing model's, not measurements.

    With --size the simulator has the last word: exits 4 where not even all devices hold every contract.
    """
    from superinfer.cli.console import err
    from superinfer.cli.plan_costs import measured_costs, predicted_costs
    from superinfer.contracts.errors import ContractError, UsageError
    from superinfer.contracts.loading import load_registry
    from superinfer.scheduler.pareto import Clash, plan_allocation, solve_count
    from superinfer.scheduler.pareto_program import PlanLimits
    from superinfer.scheduler.topology import load_topology

    if picture is not None and picture.suffix != ".png":
        raise UsageError(f"--out {picture}: a file name that ends in .png is needed")
    if not 1.0 <= max_margin <= 1000.0:
        raise UsageError(f"--max-margin {max_margin:g}: between 1 and 1000 is accepted")
    if not 1.0 <= time_limit <= 86400.0:
        raise UsageError(f"--time-limit {time_limit:g}: between 1 and 86400 seconds is accepted")
    registry = load_registry(path)
    place = load_topology(topology)
    if size and profile is not None:
        raise UsageError(f"--size and --profile {profile}: sizes are predicted from data sheets; give --model instead")
    costs = (
        predicted_costs(place, topology, model or DEFAULT_MODEL)
        if size
        else measured_costs(place, model, profile, DEFAULT_MODEL)
    )
    demands = _demands(registry, place, str(topology), costs.costs, decode_batch)
    limits = PlanLimits(
        weights_gb=costs.costs.weight_bytes / 1e9,
        max_margin=max_margin,
        solve_s=time_limit / solve_count(len(demands)),
    )
    devices = costs.devices
    sizing = _size(costs, registry, place, seed) if size else None
    with err.status(f"planning {len(demands)} contracts on {len(devices)} devices"), _solver_output_on_stderr():
        result = plan_allocation(demands, devices, limits)
    heading = {
        "schema": PLAN_SCHEMA,
        "topology": place.name,
        "devices": len(place.devices),
        "model": costs.model,
        "dtype": costs.dtype,
        "profiled_on": costs.origin,
        "decode_batch": decode_batch,
    }
    if sizing is not None:
        _report_sizing(sizing, result, heading, picture, as_json=as_json)
        return
    if isinstance(result, Clash):
        reason = _clash_message(result.names, demands, is_smallest=result.is_smallest, devices=len(devices))
        if as_json:
            clash = {"contracts": result.names, "is_smallest": result.is_smallest}
            _print_json({**heading, "feasible": False, "clash": clash})
        raise ContractError(reason)
    if picture is not None:
        from superinfer.cli.plan_picture import draw_plan

        _write(picture, lambda: draw_plan(result, list(devices), picture, _title(heading)))
    if as_json:
        _print_json({**heading, "feasible": True, **_as_data(result)})
    else:
        _print_plan(result, _title(heading))
    if picture is not None:
        err.print(f"written: {picture}", markup=False, highlight=False, soft_wrap=True)


def _size(costs: PlanCosts, registry: ContractRegistry, topology: Topology, seed: int) -> Sizing:
    """Simulate the demands on ever fewer of the devices."""
    from superinfer.cli.bench.target import with_room_for
    from superinfer.cli.console import err
    from superinfer.cli.plan_sizing import size_cluster
    from superinfer.scheduler.serving_groups import one_kind

    assert costs.target is not None
    longest = max(load.prompt_tokens + load.output_tokens for load in topology.demands.values())
    contracts = {contract.service_id: contract for contract in registry.list()}
    contracts |= {name: registry.resolve(name) for name in topology.demands}
    degree = one_kind(topology)[0].serving.tensor_parallel
    with err.status("simulating") as status:
        return size_cluster(
            with_room_for(costs.target, topology.name, longest),
            degree,
            topology.demands,
            contracts,
            seed=seed,
            on_try=lambda copies: status.update(f"simulating {copies * degree} device(s)"),
        )


def _report_sizing(
    sizing: Sizing, result: Plan | Clash, heading: dict[str, Any], picture: Path | None, *, as_json: bool
) -> None:
    """Everything that a plan with --size says; ContractError where not even all devices hold the contracts."""
    import msgspec

    from superinfer.cli.console import err, out
    from superinfer.cli.plan_sizing_tables import sizing_sentence, sizing_table, verdict_table
    from superinfer.contracts.errors import ContractError
    from superinfer.scheduler.pareto import Clash

    title = _title(heading)
    answer = sizing_sentence(sizing, heading["devices"])
    is_clash = isinstance(result, Clash)
    if picture is not None:
        from superinfer.cli.plan_sizing_picture import draw_sizing

        cluster = f"{heading['topology'] or 'topology'} · {heading['model']} · {heading['dtype']}"
        _write(picture, lambda: draw_sizing(sizing, picture, cluster))
        err.print(f"written: {picture}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        allocation = {} if isinstance(result, Clash) else _as_data(result)
        data = {**heading, "feasible": sizing.needed is not None, **allocation, "sizing": msgspec.to_builtins(sizing)}
        _print_json(data)
    else:
        if not isinstance(result, Clash):
            _print_plan(result, title)
        out.print(sizing_table(sizing))
        out.print(verdict_table(sizing.needed or sizing.tried[-1]))
    if is_clash:
        err.print(
            "note: the queueing model, in which no contract lends another its unused time, finds no allocation; the "
            "simulator's verdict stands",
            highlight=False,
            soft_wrap=True,
        )
    if sizing.needed is None:
        raise ContractError(answer)
    if not as_json:
        out.print(answer, markup=False, highlight=False, soft_wrap=True)


def _demands(
    registry: ContractRegistry, topology: Topology, source: str, costs: ModelCosts, decode_batch: int
) -> list[ContractDemand]:
    """The demand of every contract for which the topology file states a load; a note names those without one."""
    from superinfer.cli.console import err
    from superinfer.contracts.errors import UnknownContractError, UsageError
    from superinfer.scheduler.pareto_demand import contract_demand

    demands = []
    for name, load in topology.demands.items():
        try:
            contract = registry.resolve(name)
        except UnknownContractError as error:
            raise UsageError(f"topology {source}: demands: {error}") from None
        demands.append(contract_demand(contract, name, load, costs, decode_batch=decode_batch))
    if not demands:
        known = ", ".join(contract.service_id for contract in registry.list())
        raise UsageError(
            f"topology {source}: demands: is missing; for each service to plan for, "
            f"{{rate_per_s: …, prompt_tokens: …, output_tokens: …}} is needed (contracts: {known})"
        )
    served = {name.partition("/")[0] for name in topology.demands}
    left_out = [contract.service_id for contract in registry.list() if contract.service_id not in served]
    if left_out:
        err.print(
            f"note: no demand is stated for {', '.join(left_out)}; they get no share",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    return demands


@contextlib.contextmanager
def _solver_output_on_stderr() -> Iterator[None]:
    """HiGHS writes some notes to file descriptor 1 whatever it is told; stdout is for data."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _clash_message(names: tuple[str, ...], demands: list[ContractDemand], *, is_smallest: bool, devices: int) -> str:
    where = f"on {devices} device{'' if devices == 1 else 's'}"
    if len(names) > 1:
        kind = "the smallest set that clashes" if is_smallest else "without any one of them the others could"
        return f"contracts {', '.join(names)} cannot all hold their bounds {where} ({kind})"
    [alone] = [demand for demand in demands if demand.name == names[0]]
    return f"contract {alone.name} cannot hold its bounds {where}, even with all of them to itself"


def _as_data(result: Plan) -> dict[str, Any]:
    return {"chosen": _allocation_data(result.chosen), "frontier": [_allocation_data(each) for each in result.frontier]}


def _allocation_data(allocation: Allocation) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(allocation), "utilisation": allocation.utilisation}


def _print_json(value: object) -> None:
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())


def _title(heading: dict[str, Any]) -> str:
    return (
        f"{heading['topology'] or 'topology'}: {heading['devices']} devices · {heading['model']} · {heading['dtype']}, "
        f"costs from {heading['profiled_on']} · predicted by a queueing model"
    )


def _print_plan(result: Plan, title: str) -> None:
    from superinfer.cli.console import err, out
    from superinfer.cli.plan_tables import NOT_PROVEN, contract_table, device_table, frontier_table

    out.print(title, markup=False, highlight=False, soft_wrap=True)
    out.print(contract_table(result.chosen))
    out.print(device_table(result.chosen))
    out.print(frontier_table(result))
    if not all(point.is_proven for point in result.frontier):
        err.print(
            f"note: {NOT_PROVEN} the solver ran out of time: all bounds hold, but a better allocation may exist",
            highlight=False,
            soft_wrap=True,
        )


def _write(path: Path, write: Any) -> None:
    from superinfer.contracts.errors import UsageError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
