"""Packed weights are kept for exactly the checkpoint they were made from, and a damaged file is as good as none."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
import torch

from superinfer.executor.model import file_checksum
from superinfer.executor.model.file_checksum import CHUNK_BYTES, checksum
from superinfer.executor.model.linear import Linear
from superinfer.executor.model.packed_weights import PackedWeights, packed_weights_path


@pytest.fixture
def model_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SUPERINFER_CACHE", str(tmp_path / "cache"))
    directory = tmp_path / "some-model"
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(b"x" * 100)
    return directory


def test_what_was_kept_comes_back_and_multiplies_the_same(model_dir: Path) -> None:
    path = packed_weights_path(model_dir, torch.float32)
    weight = torch.randn(80, 64).to(torch.bfloat16)
    first = Linear(weight, None, torch.float32, packed=False, panels_only=True)
    assert first.panels is not None
    kept = PackedWeights(path)
    assert kept.get("a", first.panels.numel(), torch.bfloat16) is None
    kept.add("a", first.panels)
    kept.add("b", torch.arange(5, dtype=torch.float32))
    kept.save()
    again = PackedWeights(path)
    panels = again.get("a", first.panels.numel(), torch.bfloat16)
    assert panels is not None
    assert panels.data_ptr() % 64 == 0
    shape_only = torch.empty(80, 64, dtype=torch.bfloat16, device="meta")
    second = Linear(shape_only, None, torch.float32, packed=False, panels_only=True, panels=panels)
    x = torch.randn(3, 64)
    assert torch.equal(first(x), second(x))
    wide = again.get("b", 5, torch.float32)
    assert wide is not None
    assert wide.tolist() == [0, 1, 2, 3, 4]


def test_another_size_or_type_or_a_damaged_file_is_as_good_as_nothing(model_dir: Path) -> None:
    path = packed_weights_path(model_dir, torch.float32)
    kept = PackedWeights(path)
    kept.add("a", torch.zeros(64))
    kept.save()
    assert PackedWeights(path).get("a", 64, torch.float32) is not None
    assert PackedWeights(path).get("a", 63, torch.float32) is None
    assert PackedWeights(path).get("a", 64, torch.bfloat16) is None
    assert PackedWeights(path).get("b", 64, torch.float32) is None
    for damaged in (b"", path.read_bytes()[:4100], b"\xff" * 5000):
        path.write_bytes(damaged)
        assert PackedWeights(path).get("a", 64, torch.float32) is None


def test_a_changed_checkpoint_has_a_file_of_its_own_and_the_old_one_goes(model_dir: Path) -> None:
    old = packed_weights_path(model_dir, torch.float32)
    for number in range(2):
        os.utime(model_dir / "model.safetensors", ns=(number, number))
        kept = PackedWeights(packed_weights_path(model_dir, torch.float32))
        kept.add("a", torch.zeros(8))
        kept.save()
    assert packed_weights_path(model_dir, torch.float32) != old
    assert [path.name for path in old.parent.iterdir()] == [packed_weights_path(model_dir, torch.float32).name]


def test_where_nothing_can_be_written_nothing_is_kept_and_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = PackedWeights(tmp_path / "file" / "weights.packed")
    kept.add("a", torch.zeros(8))
    kept.save()
    PackedWeights(None).save()


def test_an_index_that_points_before_its_file_is_as_good_as_nothing(model_dir: Path) -> None:
    path = packed_weights_path(model_dir, torch.float32)
    path.parent.mkdir(parents=True)
    index = msgspec.msgpack.encode({"a": [-4096, 256, "torch.float32"]})
    content = index.ljust(8192 - 16, b"\0")
    path.write_bytes(len(index).to_bytes(8, "little") + checksum(content, 0).to_bytes(8, "little") + content)
    assert PackedWeights(path).get("a", 64, torch.float32) is None


def test_what_a_killed_writer_left_is_removed_and_what_is_being_written_is_not(model_dir: Path) -> None:
    path = packed_weights_path(model_dir, torch.float32)
    path.parent.mkdir(parents=True)
    abandoned, current = path.parent / "x.partial", path.parent / "y.partial"
    abandoned.touch()
    current.touch()
    os.utime(abandoned, (0, 0))
    kept = PackedWeights(path)
    kept.add("a", torch.zeros(64))
    kept.save()
    assert not abandoned.exists()
    assert current.exists()


@pytest.mark.parametrize("place", [16, 4096, -256, -1])
def test_a_file_with_one_wrong_byte_is_made_again(model_dir: Path, place: int) -> None:
    path = packed_weights_path(model_dir, torch.float32)
    kept = PackedWeights(path)
    kept.add("a", torch.arange(65_536, dtype=torch.float32))
    kept.save()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    kept = PackedWeights(path)
    assert kept.get("a", 65_536, torch.float32) is None
    kept.add("a", torch.arange(65_536, dtype=torch.float32))
    kept.save()
    assert PackedWeights(path).get("a", 65_536, torch.float32) is not None


def test_chunks_that_changed_places_have_another_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    words = torch.arange(8 * CHUNK_BYTES // 4, dtype=torch.int32).numpy()
    swapped = words.reshape(-1, 2, CHUNK_BYTES // 4)[:, ::-1].copy()
    assert checksum(words.tobytes(), 0) != checksum(swapped.tobytes(), 0)
    monkeypatch.setattr(file_checksum, "MOST_BYTES", 2 * CHUNK_BYTES)
    assert checksum(words.tobytes(), 0) != checksum(swapped.tobytes(), 0)
