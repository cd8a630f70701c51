"""Learners from replay and from datasets in several processes: what one would learn, to 1e-12 in float64."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from replay_rank_cases import BOX, CASES, CHOICE, ENVS, dataset_in, result_of
from test_distributed import start

from striderl.data import tree
from striderl.training.distributed import Ranks

HERE = Path(__file__).resolve().parent
SOME = CASES[::5]
"""The cases of four ranks: of each family one or more."""


def results(count: int, folder: Path) -> list[dict]:
    dataset_in(folder / "box", BOX)
    dataset_in(folder / "choice", CHOICE)
    for process in start([str(HERE / "replay_rank_cases.py"), str(folder)], count):
        _, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(count)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folders = {count: tmp_path_factory.mktemp(f"ranks_{count}") for count in (2, 4)}
    return {count: (folder, results(count, folder)) for count, folder in folders.items()}


@pytest.fixture
def dtype_kept():
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("count", "case"), [*((2, case) for case in CASES), *((4, case) for case in SOME)])
def test_several_ranks_learn_what_one_process_learns_from_their_samples(count, case, ranks, dtype_kept):
    folder, found = ranks[count]
    wanted = result_of(case, Ranks(), folder, strata=count)
    first = found[0][case]
    for other in found[1:]:
        assert tree.equal(other[case]["state"], first["state"])  # the same bits in every rank
    learned = dict(tree.items(first["state"]))
    limit = 1e-5 if "recurrent" in case else 1e-12
    for path, value in tree.items(wanted["state"]):
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(
                learned[path], value, rtol=0.0, atol=limit, msg=lambda text, path=path: f"{path} {text}"
            )
        else:
            assert learned[path] == value, path
    assert (first["env_steps"], first["num_updates"]) == (wanted["env_steps"], wanted["num_updates"])
    for ours, theirs in zip(first["numbers"], wanted["numbers"], strict=True):
        for name in theirs:
            if name.startswith("train/"):
                assert ours[name] == pytest.approx(theirs[name], abs=1e-6), name
    if "num_steps" in first:
        assert [each[case]["num_steps"] for each in found] == [96 // count] * count
    else:
        assert first["env_steps"] == 32 + 2 * 6 * ENVS
