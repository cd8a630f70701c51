"""Promise 3: corruption is always detected and named, never loaded; the previous checkpoint is used."""

from __future__ import annotations

import logging

import pytest
from damage import cut_files, flip_bits, swap_members, zero_pages
from store_cases import run_state, same

from striderl.checkpoint import folder as reader
from striderl.checkpoint.errors import CheckpointCorrupt
from striderl.checkpoint.store import CheckpointStore


@pytest.mark.slow
def test_every_flipped_bit_is_found(folder):
    flip_bits(folder, 2000).check(2000)


def test_every_cut_is_found(folder):
    cut_files(folder, 200).check(200)


def test_every_zeroed_page_is_found(folder):
    zero_pages(folder, 100).check(100)


def test_files_of_another_checkpoint_are_found(folder):
    swap_members(folder).check(20)


@pytest.mark.slow
def test_the_harness_catches_a_store_without_checksums(folder, monkeypatch):
    monkeypatch.setattr(reader, "_check_member", lambda file, path, member: None)
    found = flip_bits(folder / "flips", 2000)
    assert len(found.bad) > 100, found
    assert swap_members(folder / "swaps").bad


def test_a_damaged_last_one_is_named_once_and_the_previous_one_is_used(folder, caplog):
    store = CheckpointStore(folder)
    for step in (1, 2, 3):
        path = store.save(run_state(step), step=step)
    (path / "tensors.safetensors").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        found = store.load("last")
    assert found.step == 2 and same(found.state, run_state(2))
    assert len(caplog.records) == 1
    assert "step_000000000003/tensors.safetensors" in caplog.text and "step_000000000002" in caplog.text
    with pytest.raises(CheckpointCorrupt, match=r"tensors\.safetensors.*0 bytes, \d+ were written"):
        store.load(3)
    with pytest.raises(CheckpointCorrupt, match=r"tensors\.safetensors"):
        store.verify(path)


def test_nothing_good_left_says_what_is_wrong_with_each(folder):
    store = CheckpointStore(folder)
    for step in (1, 2):
        (store.save(run_state(step), step=step) / "manifest.json").unlink()
    with pytest.raises(CheckpointCorrupt, match=r"no good checkpoint is left.*0002/manifest.*0001/manifest"):
        store.load()
