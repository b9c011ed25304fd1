from __future__ import annotations

from pathlib import Path

import pytest

from superinfer.contracts.errors import ModelError
from superinfer.executor.models.cache_entry import ensure, is_complete


def write_one(directory: Path) -> None:
    (directory / "data").write_text("whole")


def refuse(directory: Path) -> None:
    raise AssertionError("built although a complete entry was there")


def test_an_entry_is_built_once(tmp_path: Path) -> None:
    entry = ensure(tmp_path / "models" / "a", "1", write_one)
    assert (entry / "data").read_text() == "whole"
    assert ensure(entry, "1", refuse) == entry


def test_a_failed_build_publishes_and_leaves_nothing(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        write_one(directory)
        raise ModelError("no")

    with pytest.raises(ModelError, match="no"):
        ensure(tmp_path / "a", "1", fail)
    assert [child.name for child in tmp_path.iterdir()] == [".a.lock"]


@pytest.mark.parametrize("damage", ["truncate", "remove", "no manifest", "broken manifest", "other recipe"])
def test_a_damaged_or_outdated_entry_is_never_used(tmp_path: Path, damage: str) -> None:
    entry = ensure(tmp_path / "a", "1", write_one)
    match damage:
        case "truncate":
            (entry / "data").write_text("who")
        case "remove":
            (entry / "data").unlink()
        case "no manifest":
            (entry / "manifest.json").unlink()
        case "broken manifest":
            (entry / "manifest.json").write_text("[1")
    recipe = "2" if damage == "other recipe" else "1"
    assert not is_complete(entry, recipe)
    ensure(entry, recipe, write_one)
    assert is_complete(entry, recipe)
    assert (entry / "data").read_text() == "whole"


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".a.partial-xyz" / "content"
    leftover.mkdir(parents=True)
    (leftover / "data").write_text("ha")
    ensure(tmp_path / "a", "1", write_one)
    assert not leftover.parent.exists()


def test_a_cache_that_cannot_be_written_says_which_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"model cache .*/file/models cannot be written: .*SUPERINFER_CACHE"):
        ensure(tmp_path / "file" / "models" / "a", "1", write_one)
