"""The table at the end of a bench: policies × contracts, read from a summary; and the same rows as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

COLUMNS = (
    "policy",
    "contract",
    "deadline ms",
    "attainment",
    "95 % CI",
    "e2e p50 ms",
    "e2e p99 ms",
    "ttft p99 ms",
    "met/s",
    "tokens/s",
    "missed by stage",
)


def number(value: float | None, digits: int = 0) -> str:
    """A figure for people; "–" where there is none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """A share in per cent, one decimal."""
    return "–" if value is None else f"{100 * value:.1f} %"


def interval(bounds: list[float] | None) -> str:
    """A confidence interval in per cent."""
    return "–" if bounds is None else f"{100 * bounds[0]:.1f}–{100 * bounds[1]:.1f}"


def table_rows(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row per (policy, contract) and one "all" row per policy, in the order of COLUMNS."""
    rows: list[tuple[str, ...]] = []
    for run in summary["runs"]:
        for service_id, figures in run["contracts"].items():
            rows.append(
                (
                    run["policy"],
                    service_id,
                    number(figures["deadline_ms"]),
                    percent(figures["attainment"]),
                    interval(figures["attainment_ci95"]),
                    number(figures["e2e_ms"]["p50"]),
                    number(figures["e2e_ms"]["p99"]),
                    number(figures["ttft_ms"]["p99"]),
                    "",
                    "",
                    _stages_text(figures["missed_by_stage"]),
                )
            )
        failed = f"{run['failed']} of {run['offered']} not completed" if run["failed"] else ""
        rows.append(
            (
                run["policy"],
                "all",
                "",
                percent(run["attainment"]),
                interval(run["attainment_ci95"]),
                "",
                "",
                "",
                number(run["goodput_rps"], 2),
                number(run["output_tokens_per_s"], 1),
                failed,
            )
        )
    return rows


def table_title(summary: Mapping[str, Any]) -> str:
    """What was run, in one line; a simulated figure is labelled as one."""
    simulated = " · SIMULATED" if summary["simulated"] else ""
    interrupted = " · interrupted" if summary.get("interrupted") else ""
    return f"{summary['scenario']} · {summary['model']} on {summary['device']}{simulated}{interrupted}"


def render_table(summary: Mapping[str, Any]) -> Table:
    """The summary for a terminal of 80 columns or more: each policy with its totals, its contracts below it."""
    table = Table(
        title=Text(table_title(summary)),
        title_justify="left",
        caption=Text(_bound_text(summary)) if summary.get("clairvoyant_bound") else None,
        caption_justify="left",
        box=box.HORIZONTALS,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column(Text("policy\n  contract"), overflow="fold")
    table.add_column(Text("attainment\n(95 % CI)"), justify="right", no_wrap=True)
    for heading in ("deadline\nms", "e2e p50\nms", "e2e p99\nms", "ttft p99\nms"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    table.add_column(Text("throughput,\nmissed by stage"), overflow="fold")
    for run in summary["runs"]:
        failed = f", {run['failed']} not completed" if run["failed"] else ""
        rates = f"{number(run['goodput_rps'], 2)} met/s, {number(run['output_tokens_per_s'], 1)} tok/s{failed}"
        table.add_row(Text(run["policy"]), Text(_with_interval(run)), "", "", "", "", Text(rates), style="bold")
        for service_id, figures in run["contracts"].items():
            cells = [
                _with_interval(figures),
                number(figures["deadline_ms"]),
                number(figures["e2e_ms"]["p50"]),
                number(figures["e2e_ms"]["p99"]),
                number(figures["ttft_ms"]["p99"]),
                _stages_text(figures["missed_by_stage"]),
            ]
            table.add_row(Text(f"  {service_id}"), *(Text(cell) for cell in cells))
        table.add_section()
    return table


def _bound_text(summary: Mapping[str, Any]) -> str:
    """The clairvoyant bound of the load, whole and by contract."""
    bound = summary["clairvoyant_bound"]
    contracts = ", ".join(f"{service_id} {percent(share)}" for service_id, share in bound["contracts"].items())
    return f"clairvoyant bound {percent(bound['attainment'])}: {contracts}"


def _with_interval(figures: Mapping[str, Any]) -> str:
    """Attainment and its interval in one cell: "97.1 % (93–99)"."""
    bounds = figures["attainment_ci95"]
    if bounds is None:
        return "–"
    return f"{percent(figures['attainment'])} ({100 * bounds[0]:.0f}–{100 * bounds[1]:.0f})"


def _stages_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{stage} {count}" for stage, count in counts.items()) or "–"


def summary_csv(summary: Mapping[str, Any]) -> str:
    """One line per (policy, contract) with plain figures, for spreadsheets."""
    lines: list[dict[str, Any]] = []
    for run in summary["runs"]:
        for service_id, figures in run["contracts"].items():
            low, high = figures["attainment_ci95"] or (None, None)
            line = {
                "scenario": summary["scenario"],
                "simulated": summary["simulated"],
                "policy": run["policy"],
                "contract": service_id,
                "offered": figures["offered"],
                "completed": figures["completed"],
                "attainment": figures["attainment"],
                "attainment_ci95_low": low,
                "attainment_ci95_high": high,
                "deadline_ms": figures["deadline_ms"],
            }
            for metric in ("e2e_ms", "ttft_ms", "tpot_ms"):
                for statistic, value in figures[metric].items():
                    line[f"{metric.removesuffix('_ms')}_{statistic}_ms"] = value
            line["run_attainment"] = run["attainment"]
            line["run_goodput_rps"] = run["goodput_rps"]
            line["run_output_tokens_per_s"] = run["output_tokens_per_s"]
            lines.append(line)
    text = io.StringIO()
    if lines:
        writer = csv.DictWriter(text, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return text.getvalue()
