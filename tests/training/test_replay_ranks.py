"""Learners from replay and from datasets in several processes: what one would learn, to 1e-12 in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from replay_rank_cases import BOX, CASES, CHOICE, SOME, dataset_in, result_of
from term_rank_cases import DRAWS
from test_distributed import run_ranks

from striderl.data import tree
from striderl.data.registry import ALGORITHMS, TERMS
from striderl.training.distributed import Ranks

HERE = Path(__file__).resolve().parent
PER_ENV = "running_return"


def results(count: int, folder: Path) -> list[dict]:
    dataset_in(folder / "box", BOX)
    dataset_in(folder / "choice", CHOICE)
    run_ranks(HERE / "replay_rank_cases.py", folder, count)
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
    parts = [dict(tree.items(each[case]["state"])) for each in found]
    if case == DRAWS:  # each rank draws expert samples of its own, and keeps its own ring of earlier ones
        shared = [{path: leaf for path, leaf in part.items() if "earlier" not in path} for part in parts]
        assert all(tree.equal(part, shared[0]) for part in shared)
        return
    wanted, first = result_of(case, Ranks(), folder, strata=count), found[0][case]
    limit = 1e-5 if "recurrent" in case else 1e-12
    for path, value in tree.items(wanted["state"]):
        pieces = [part[path] for part in parts]
        if path.endswith(PER_ENV):
            pieces = [torch.cat(pieces)]
        assert all(tree.equal(piece, pieces[0]) for piece in pieces), path  # the same bits in every rank
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(
                pieces[0], value, rtol=0.0, atol=limit, msg=lambda text, path=path: f"{path} {text}"
            )
        else:
            assert pieces[0] == value, path
    for ours, theirs in zip(first["numbers"], wanted["numbers"], strict=True):
        for name in theirs:
            if name.startswith("train/") and "ratio_error" not in name:
                assert ours[name] == pytest.approx(theirs[name], abs=1e-6), name
    assert first["env_steps"] == wanted["env_steps"]
    if "num_steps" in first:
        assert [each[case]["num_steps"] for each in found] == [96 // count] * count


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_built_in_part_is_among_the_cases(ranks):
    names = " ".join(CASES)
    assert not [name for name in TERMS.names() if name not in names]
    everywhere = {name: ALGORITHMS.get(name) for name in ALGORITHMS.names()}
    assert all(part.learns_in_ranks for part in [*everywhere.values(), *(TERMS.get(name) for name in TERMS.names())])
    assert {part.loop for part in everywhere.values()} == {"on_policy", "off_policy", "offline"}
