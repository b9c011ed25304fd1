"""List every sub-package under each mapped root; pyproject.toml holds the rest.

`superinfer` is a namespace package without a folder of its own: each top-level folder is one of its members.
"""

from setuptools import find_packages, setup

ROOTS = {
    "superinfer.contracts": "contracts",
    "superinfer.profiler": "profiler",
    "superinfer.scheduler": "scheduler",
    "superinfer.executor": "executor",
    "superinfer.results": "results",
    "superinfer.cli": "superinfer_cli",
}

setup(
    packages=[
        name
        for package, folder in ROOTS.items()
        for name in (package, *(f"{package}.{child}" for child in find_packages(folder)))
    ]
)
