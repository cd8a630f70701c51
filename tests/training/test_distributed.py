"""Several processes learn what one would: the same numbers to rounding, the same bits in each of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from distributed_cases import CASES, ENVS, alone

from free_ports import free_port
from striderl.data import tree
from striderl.training.distributed import Ranks, diverging, fingerprints, setup

HERE = Path(__file__).resolve().parent


def start(command: list[str], count: int = 2) -> list[subprocess.Popen[str]]:
    """Start processes that find each other, as torchrun does."""
    shared = meeting_place(count)
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def meeting_place(count: int) -> dict[str, str]:
    found = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return {**os.environ, **found, "OMP_NUM_THREADS": "1"}


def run_ranks(program: Path, folder: Path, count: int = 2, *, timeout: float = 280.0) -> str:
    """Run a program as several ranks to its end; return what they wrote to stderr."""
    words = [sys.executable, str(HERE / "forked_ranks.py"), str(count), str(program), str(folder)]
    done = subprocess.run(words, env=meeting_place(count), capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(HERE / "distributed_cases.py", folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


PER_ENV = "running_return"


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_two_ranks_with_half_the_envs_are_one_rank(name, two_ranks, in_float64):
    one, (first, second) = alone(name), (each[name] for each in two_ranks)
    parts = dict(tree.items(first["state"])), dict(tree.items(second["state"]))
    for path, wanted in tree.items(one["state"]):
        if path.endswith(PER_ENV):
            found = torch.cat([parts[0][path], parts[1][path]])
        else:
            found = parts[0][path]
            assert tree.equal(found, parts[1][path]), path
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(
                found, wanted, rtol=0.0, atol=1e-12, msg=lambda text, path=path: f"{path} {text}"
            )
        else:
            assert found == wanted
    for ours, theirs, wanted in zip(first["numbers"], second["numbers"], one["numbers"]):
        assert ours.keys() == wanted.keys()
        for number in wanted:
            assert torch.equal(ours[number], theirs[number]) or ours[number].isnan(), number
            if number not in ("ratio_error", "first_ratio_error"):  # the mean of two largest is not the largest of all
                torch.testing.assert_close(ours[number], wanted[number], rtol=0.0, atol=1e-12, equal_nan=True)


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_in_one_rank_is_skipped_by_all(two_ranks):
    for found in (each[name] for each in two_ranks for name in ("broken", "broken in parts")):
        skipped = [int(numbers["skipped_updates"]) for numbers in found["numbers"]]
        # one of the two minibatches of both epochs of the second iteration has the broken sample
        assert skipped == [0, 2]
        assert all(bool(leaf.isfinite().all()) for leaf in tree.leaves(found["state"]["policy"]))


@pytest.mark.slow
def test_the_learning_rate_moved(two_ranks):
    # else the test above would not have shown that ranks agree about it
    assert float(two_ranks[0]["minibatches"]["numbers"][-1]["learning_rate"]) != pytest.approx(1e-3)


MEET = """
import os, sys, time, torch, torch.distributed.nn
from striderl.training.distributed import RankLostError, setup
open(os.path.join(sys.argv[1], os.environ["RANK"]), "w").close()
while len(os.listdir(sys.argv[1])) < 2:  # imports may take longer than the limit, which is for joining too
    time.sleep(0.01)
"""

LOST = """
ranks = setup(device="cpu", timeout=6.0)
for step in range(1000):
    if ranks.rank == 1 and step == 3:
        sys.exit(7) if sys.argv[2] == "dies" else time.sleep(1000)
    before = time.monotonic()
    try:
        ranks.all_reduce_sum(torch.ones(3))
    except RankLostError as error:
        print(time.monotonic() - before, error, flush=True)
        os._exit(3)
"""


@pytest.mark.slow
def test_a_lost_rank_is_named_within_the_timeout(tmp_path):
    pairs = []
    try:
        for how in ("dies", "hangs"):  # both at once: they mostly wait
            (tmp_path / how).mkdir()
            pairs.append(start(["-c", MEET + LOST, str(tmp_path / how), how]))
        for one, _ in pairs:
            seconds, _, said = one.communicate(timeout=280)[0].partition(" ")
            assert one.returncode == 3
            assert said.startswith("rank 1 of 2 no longer answers, says rank 0")
            assert float(seconds) < 60.0  # 5 s until it is given up, 1 s for a sign of life
    finally:
        end(process for pair in pairs for process in pair)


def end(processes):
    for process in processes:
        process.kill()
        process.communicate()


STOPPED = """
ranks = setup(device="cpu", timeout=float(sys.argv[2]))
ranks.all_reduce_sum(torch.ones(3))
print(time.monotonic(), flush=True)
try:
    while True:
        ranks.all_reduce_sum(torch.ones(1_000_000))
except RankLostError as error:
    print(time.monotonic(), error, flush=True)
os._exit(3)
"""


@pytest.mark.slow
def test_a_stopped_rank_is_named_when_the_limit_is_over(tmp_path):
    # stopped in the midst of collectives; rank 0 also holds the store in which the ranks leave their signs of life
    limit, pairs, began = 5.0, [], []
    try:
        for stopped in (0, 1):
            (tmp_path / str(stopped)).mkdir()
            pairs.append(start(["-c", MEET + STOPPED, str(tmp_path / str(stopped)), str(limit)]))
        for stopped, processes in enumerate(pairs):
            for process in processes:
                process.stdout.readline()
            time.sleep(0.3)
            began.append(time.monotonic())
            processes[stopped].send_signal(signal.SIGSTOP)
        for stopped, processes in enumerate(pairs):
            named, _, said = processes[1 - stopped].communicate(timeout=250)[0].partition(" ")
            assert f"rank {stopped} of 2 no longer answers, says rank {1 - stopped}" in said
            # another five seconds for the signs of life, after the limit, would be too many
            assert 0.5 * limit < float(named) - began[stopped] < 1.8 * limit
    finally:
        end(process for pair in pairs for process in pair)


def test_shards_cover_all_envs_once():
    for world in (1, 2, 3, 5):
        pieces = [Ranks(rank=rank, world_size=world).shard(ENVS + 3) for rank in range(world)]
        assert [index for count, first in pieces for index in range(first, first + count)] == list(range(ENVS + 3))
    with pytest.raises(ValueError, match="2 envs cannot be shared by 3 processes"):
        Ranks(rank=0, world_size=3).shard(2)


@pytest.mark.parametrize("wrong", [{"device": "meta"}, {"device": "gpu"}, {"timeout": 0.0}, {"timeout": float("nan")}])
def test_what_cannot_be_joined_with_is_refused(wrong):
    with pytest.raises(ValueError, match=f"found .*{next(iter(wrong.values()))}"):
        setup(**{"device": "cpu", **wrong})


def test_alone_nothing_is_summed(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    ranks = setup(device="cpu")
    assert ranks.reduce is None and ranks.is_main and ranks.shard(5) == (5, 0)
    ranks.require_equal({"a": torch.ones(2)})
    assert ranks.of_main(True) and not ranks.of_main(False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(RuntimeError, match=r"device 'cuda' is wanted, but torch finds no GPU here; use device='cpu'"):
        setup(device="cuda")


def test_missing_variables_are_named(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match=r"WORLD_SIZE is 2, but \['RANK'.* start the script with torchrun"):
        setup(device="cpu")


def test_the_rank_that_differs_is_named():
    same, odd = {"policy": torch.ones(3), "rnd": torch.zeros(2)}, {"policy": torch.ones(3), "rnd": -torch.zeros(2)}
    table = torch.stack([fingerprints(same), fingerprints(same), fingerprints(odd)])
    assert diverging(table, list(same)) == ["rank 2 has other values in 'rnd'"]
    # of two, rank 0 is taken to be right
    assert diverging(table[1:], list(same)) == ["rank 1 has other values in 'rnd'"]
    assert diverging(table[:2], list(same)) == []
