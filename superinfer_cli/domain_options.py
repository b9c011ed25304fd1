"""Options that `serve` and `bench` have in common: of which kinds their domains are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DomainKindFlags = Annotated[
    list[str] | None,
    typer.Option(
        "--domain-kind",
        help="Precision of so many domains, like int8=1; repeat it for domains of several. Instead of --domains. One "
        "below --dtype serves only contracts that permit a loss of precision.",
        show_default="all in --dtype",
    ),
]
DomainsFile = Annotated[
    Path | None,
    typer.Option(
        help="YAML file of the kinds of domains, with the precision, the number and the limits of each. Instead of "
        "--domains.",
        show_default="none",
    ),
]
