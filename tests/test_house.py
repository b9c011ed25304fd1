"""The house rules that a reader relies on: imports point one way, the light rooms stay light, every package is
shipped.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "contracts": "contracts",
    "profiler": "profiler",
    "scheduler": "scheduler",
    "executor": "executor",
    "results": "results",
    "superinfer_cli": "cli",
}
MAY_IMPORT = {
    "contracts": {"contracts"},
    "profiler": {"contracts", "profiler"},
    "scheduler": {"contracts", "profiler", "scheduler"},
    "executor": {"contracts", "profiler", "scheduler", "executor"},
    "results": {"contracts", "profiler", "results"},
    "cli": {"contracts", "profiler", "scheduler", "executor", "results", "cli"},
}


def modules(folder: str) -> list[Path]:
    return [path for path in (ROOT / folder).rglob("*.py") if path.name != "__main__.py"]


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            if node.module == "superinfer":
                names.update(f"superinfer.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_point_one_way(folder: str) -> None:
    allowed = MAY_IMPORT[FOLDERS[folder]]
    for path in modules(folder):
        rooms = {name.split(".")[1] for name in imported(path) if name.startswith("superinfer.")}
        assert rooms <= allowed, f"{path.relative_to(ROOT)} imports {sorted(rooms - allowed)}"


@pytest.mark.parametrize("folder", ["contracts", "scheduler"])
def test_contracts_and_scheduler_import_no_torch_no_web_framework_and_read_no_clock(folder: str) -> None:
    for path in modules(folder):
        heavy = {name.split(".")[0] for name in imported(path)}
        assert not heavy & {"torch", "fastapi", "uvicorn", "zmq", "time", "datetime", "asyncio", "threading"}, path


def test_the_scheduler_loads_without_torch() -> None:
    code = "import sys, superinfer.scheduler.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_line_opens_without_torch() -> None:
    code = "import sys, superinfer.cli.main; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_folder_with_modules_is_a_package_that_is_shipped() -> None:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            parent = path.parent
            while parent != ROOT:
                assert (parent / "__init__.py").exists(), f"{parent.relative_to(ROOT)} has modules but no __init__.py"
                parent = parent.parent
