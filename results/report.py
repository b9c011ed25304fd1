"""The report of a run: one HTML file that holds its table and pictures, and needs nothing else."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from typing import Any

from superinfer.results.table import COLUMNS, table_rows, table_title

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 75rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd; }
th:nth-child(-n+2), td:nth-child(-n+2), th:last-child, td:last-child { text-align: left; }
tr.total td { font-weight: 600; border-bottom: 2px solid #999; }
img { max-width: 100%; } pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: 0.85rem; }
"""


def render_report(summary: Mapping[str, Any], pictures: Mapping[str, bytes], config_text: str) -> str:
    """The page as text; `pictures` are PNG bytes by file name, inlined."""
    title = html.escape(table_title(summary))
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        _table(summary),
        "<p>Attainment is met ÷ all offered; errors and refusals are misses. Latency counts from the "
        "scheduled send time. Intervals are Wilson’s, 95 %.</p>",
        _faults(summary),
        *(
            f'<h2>{html.escape(name)}</h2><img alt="{html.escape(name)}" '
            f'src="data:image/png;base64,{base64.b64encode(png).decode()}">'
            for name, png in pictures.items()
        ),
        f"<h2>config.yaml</h2><pre>{html.escape(config_text)}</pre>",
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part)


def _table(summary: Mapping[str, Any]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in COLUMNS)
    body = []
    for row in table_rows(summary):
        kind = ' class="total"' if row[1] == "all" else ""
        body.append(f"<tr{kind}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _faults(summary: Mapping[str, Any]) -> str:
    items = [
        f"<h3>{html.escape(run['policy'])}</h3><ul>"
        + "".join(f"<li>{html.escape(key)}: {html.escape(str(value))}</li>" for key, value in fault.items())
        + "</ul>"
        for run in summary["runs"]
        for fault in run["faults"]
    ]
    return f"<h2>Faults</h2>{''.join(items)}" if items else ""
