"""Many runs at several loads become one table and one picture."""

from __future__ import annotations

from typing import Any

from superinfer.results.load_sweep import ALL, BOUND, sweep_plot, sweep_points, sweep_table


def summary(load: float, triage: float, report: float, bound: float | None = 0.9) -> dict[str, Any]:
    def run(policy: str, shift: float) -> dict[str, Any]:
        contracts = {
            "triage": {"attainment": triage - shift},
            "report": {"attainment": report - shift},
            "best-effort": {"attainment": None},
        }
        total = (triage + report) / 2 - shift
        return {
            "policy": policy,
            "attainment": total,
            "contracts": contracts,
            "goodput_rps": 2.0 * total,
            "output_tokens_per_s": 30.0,
        }

    bounds = None if bound is None else {"attainment": bound, "contracts": {"triage": 1.0, "report": 0.8}}
    return {"load": load, "runs": [run("slack", 0.0), run("fcfs", 0.2)], "clairvoyant_bound": bounds}


def test_seeds_of_one_load_become_their_median_and_policies_keep_their_order() -> None:
    points = sweep_points([summary(0.9, t, 0.8) for t in (0.9, 1.0, 0.94)] + [summary(0.5, 1.0, 1.0)])
    assert [(p.policy, p.load, p.seeds) for p in points] == [
        ("slack", 0.5, 1), ("slack", 0.9, 3), ("fcfs", 0.5, 1), ("fcfs", 0.9, 3), (BOUND, 0.5, 1), (BOUND, 0.9, 3),
    ]  # fmt: skip
    assert points[1].attainment["triage"] == 0.94
    assert list(points[1].attainment) == ["triage", "report", ALL]
    assert points[-1].goodput_rps is None


def test_the_table_gives_each_policy_as_a_share_of_the_bound() -> None:
    table = sweep_table(sweep_points([summary(0.9, 0.9, 0.72)]))
    assert "| slack | 0.9 | 90.0 % | 72.0 % | 81.0 % | 90.0 % | 1.62 | 30.0 |" in table
    assert f"| {BOUND} | 0.9 | 100.0 % | 80.0 % | 90.0 % | – | – | – |" in table


def test_without_a_bound_there_is_no_share() -> None:
    assert "| slack | 0.9 | 90.0 % | 72.0 % | 81.0 % | – |" in sweep_table(
        sweep_points([summary(0.9, 0.9, 0.72, None)])
    )


def test_the_picture_is_a_png() -> None:
    assert sweep_plot(sweep_points([summary(0.5, 1, 1), summary(0.9, 0.9, 0.8)]), "mixed").startswith(b"\x89PNG")
