"""`superinfer cache` lists what is kept and removes what it is told to, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from superinfer.cli.main import app
from superinfer.contracts.errors import UsageError
from superinfer.executor import kept_files


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of one file of each kind, and a package whose folder holds a compiled kernel beside its byte code."""
    package = tmp_path / "package"
    for name in ("profiles/a.json", "models/b/model.safetensors", "weights/c.safetensors"):
        (tmp_path / "cache" / name).parent.mkdir(parents=True)
        (tmp_path / "cache" / name).write_bytes(b"x" * 1000)
    (package / "__pycache__").mkdir(parents=True)
    for name in ("kernels.exp2-97.py311.nbi", "kernels.exp2-97.py311.1.nbc", "kernels.cpython-311.pyc"):
        (package / "__pycache__" / name).write_bytes(b"x" * 10)
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    monkeypatch.setattr(kept_files, "_package_folders", lambda _: [package])
    monkeypatch.setattr(kept_files, "_WITH_KERNELS", ("package",))
    return tmp_path


def listed() -> set[str]:
    result = CliRunner().invoke(app, ["cache", "list", "--json"])
    assert result.exit_code == 0, result.output
    return {row["kind"] for row in json.loads(result.stdout)}


def test_a_clean_removes_kernels_and_packed_weights_and_leaves_the_rest(kept: Path) -> None:
    assert listed() == {"kernels", "weights", "models", "profiles"}
    result = CliRunner().invoke(app, ["cache", "clean", "--json"])
    rows = {row["kind"]: row for row in json.loads(result.stdout)}
    assert (rows["kernels"]["files"], rows["kernels"]["bytes"]) == (2, 20)
    assert listed() == {"models", "profiles"}
    assert [path.name for path in (kept / "package/__pycache__").iterdir()] == ["kernels.cpython-311.pyc"]


def test_numbas_own_folder_is_cleaned_too(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    package = kept / "package"
    folder = kept / "numba" / f"package_{hashlib.sha1(str(package).encode()).hexdigest()}"
    folder.mkdir(parents=True)
    (folder / "kernels.exp2-97.py311.nbi").write_bytes(b"x")
    (kept / "numba/other_0").mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(kept / "numba"))
    assert CliRunner().invoke(app, ["cache", "clean", "kernels"]).exit_code == 0
    assert not list(folder.iterdir())
    assert (kept / "numba/other_0").exists()
    assert listed() == {"weights", "models", "profiles"}


def test_an_unknown_kind_is_one_clear_error(kept: Path) -> None:
    result = CliRunner().invoke(app, ["cache", "clean", "everything"])
    assert isinstance(result.exception, UsageError)
    assert "clean everything: kernels, weights, models, profiles or all is accepted" in str(result.exception)
    assert listed() == {"kernels", "weights", "models", "profiles"}
