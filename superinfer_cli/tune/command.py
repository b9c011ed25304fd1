"""The `superinfer tune` command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import typer


def tune(
    scenario: str = typer.Argument("mixed", help="mixed, jitter, fault, or a scenario file."),
    model: str | None = typer.Option(
        None, help="Model to simulate; by default smollm2-135m-instruct, with --topology llama-3-70b."
    ),
    topology: Path | None = typer.Option(
        None, help="Tune for the cluster of this file, or a shipped one such as h100-4x8, instead of this machine."
    ),
    calibrate_from: list[Path] | None = typer.Option(
        None, help="A run folder of bench --journal: devices take what steps took there. Repeat for several."
    ),
    trials: int = typer.Option(60, min=1, help="Settings to try; the default is the first."),
    seeds: int = typer.Option(3, min=1, help="Training seeds; as many held-out seeds judge (at least 4)."),
    seed: int = typer.Option(0, help="Seed of the search itself."),
    load: float | None = typer.Option(None, min=0.01, help="Offered rate as a share of capacity."),
    requests: int | None = typer.Option(None, min=1, help="Requests per simulated run."),
    dtype: Literal["auto", "float32", "bfloat16", "int8"] = typer.Option("auto", help="Which profile to use."),
    out: Path = typer.Option(Path("slack_decay_profile.yaml"), help="File to write; a .png goes beside it."),
    as_json: bool = typer.Option(False, "--json", help="Print the verdict as JSON on stdout."),
) -> None:
    """Search slack-decay and planner settings in simulation; held-out seeds decide whether they are better."""
    from superinfer.cli.bench.options import CLUSTER_MODEL, DEFAULT_MODEL
    from superinfer.cli.bench.scenario import load_scenario, override
    from superinfer.cli.bench.served_target import FLAG, as_served
    from superinfer.cli.bench.target import cluster_target, local_target
    from superinfer.cli.console import err, progress_bar
    from superinfer.cli.console import out as stdout
    from superinfer.cli.tune import report
    from superinfer.cli.tune.evaluate import prepare
    from superinfer.cli.tune.search import search
    from superinfer.cli.tune.verdict import judge
    from superinfer.contracts.errors import UsageError
    from superinfer.results.run_folder import check_writable
    from superinfer.scheduler.decay import guidance_warning

    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder; give the name of a file")
    check_writable(out)
    changes: dict[str, object] = {"requests": requests} if requests is not None else {}
    if load is not None:
        changes |= {"load": load, "rate_rps": None}
    chosen = override(load_scenario(scenario), changes)
    if topology is None:
        target = local_target(
            model or DEFAULT_MODEL, dtype, domains=chosen.domains, random_weights=False, kv_cache_bytes=None
        )
        target = as_served(target, calibrate_from) if calibrate_from else target
    elif calibrate_from:
        raise UsageError(f"{FLAG}: has no meaning with --topology, whose devices nobody measured")
    else:
        target = cluster_target(model or CLUSTER_MODEL, topology, dtype)
    bench = prepare(chosen, target)
    held_out = list(range(1000, 1000 + max(seeds, 4)))
    with progress_bar() as progress:
        task = progress.add_task("search (simulated)", total=trials)
        found = search(bench, list(range(1, seeds + 1)), trials, seed=seed, on_trial=lambda _: progress.advance(task))
        judging = progress.add_task("held-out seeds", total=2 * len(held_out))
        verdict = judge(bench, found.default, found.best, held_out, lambda: progress.advance(judging))
    winner = found.best if verdict.is_better else found.default
    low, high = verdict.difference_ci95
    tuned = {
        "simulated": True,
        "scenario": chosen.name,
        "model": target.model,
        "device": target.device,
        "rate_rps": round(bench.rate_rps, 3),
        "trials": trials,
        "is_better_than_default": verdict.is_better,
        "held_out_difference": round(verdict.difference, 5),
        "held_out_difference_ci95": [round(low, 5), round(high, 5)],
    }
    report.write_profile(out, report.profile_document(winner, tuned))
    picture = out.with_suffix(".png")
    report.draw(picture, found, verdict, f"{chosen.name} on {target.device} at {bench.rate_rps:.2f} req/s")
    for contract in bench.contracts.values():
        bound_ms = contract.deadline_ms or contract.ttft_deadline_ms
        if bound_ms and (warning := guidance_warning(winner.decay.decay_coefficient, bound_ms)):
            err.print(f"warning: {contract.service_id}: {warning}", style="yellow", highlight=False)
    if as_json:
        changed = [
            dict(zip(("key", "default", "tuned"), row, strict=True))
            for row in report.changes(found.default, found.best)
        ]
        typer.echo(json.dumps({"schema": "superinfer.tune/1", **tuned, "changes": changed, "file": str(out)}))
        return
    stdout.print(report.verdict_table(verdict))
    for key, before, after in report.changes(found.default, found.best):
        stdout.print(f"  {key}: {before} → {after}", highlight=False)
    if verdict.is_better:
        stdout.print(f"Tuned settings are better by {verdict.difference:+.4f} (95 % {low:+.4f} to {high:+.4f}).")
    else:
        stdout.print(
            f"The default is already as good: {verdict.difference:+.4f} (95 % {low:+.4f} to {high:+.4f}); it was kept."
        )
    stdout.print(f"Wrote {out} and {picture}", highlight=False)
