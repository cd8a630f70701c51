"""Runs of several processes with learners from replay and datasets: resumed exactly, or by another number of them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_run_cases import KINDS, LONG, SHORT, config_of, driven, make_dataset
from test_distributed import run_ranks

from striderl.checkpoint.store import CheckpointStore
from striderl.data import tree
from striderl.data.actions import DiscreteSpec
from striderl.data.specs import ObsSpec
from striderl.data.transition import Transition, transition_columns
from striderl.datasets.offline import all_steps, load_dataset, replay_of, save_dataset
from striderl.storage.replay.replay import Replay
from striderl.storage.replay.resharding import joined_replays, replay_of_envs
from striderl.storage.replay.samplers import Prioritized
from striderl.training.distributed import Ranks

HERE = Path(__file__).resolve().parent


def state_of(path: Path) -> Any:
    return without_times(CheckpointStore(path / "checkpoints").load("last").state)


def without_times(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: without_times(value) for name, value in state.items() if not str(name).endswith("seconds")}
    return [without_times(value) for value in state] if isinstance(state, list) else state


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_dataset(folder)
    for kind in KINDS:
        (folder / kind).mkdir()
        assert driven(config_of(kind, folder, SHORT), folder / kind / "one", Ranks()).exit_code == 0
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(folder / "cache"))  # of compiled programs
        assert "compiling it failed" not in run_ranks(HERE / "rank_run_cases.py", folder, timeout=900)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_of_two_ranks_goes_on_to_the_same_bits(kind, runs):
    whole, cut = (state_of(runs / kind / name) for name in ("whole", "cut"))
    found = dict(tree.items(cut))
    # the cut run was saved once more, which replays count
    differing = [path for path, leaf in tree.items(whole) if not tree.equal(leaf, found[path])]
    assert [path for path in differing if not path.endswith("replay/generation")] == []
    (other,) = whole["ranks"]
    if kind == "iql":
        assert other["dataset"].tolist() != whole["dataset"].tolist()  # another shard
    else:
        assert whole["replay"]["num_envs"] == other["replay"]["num_envs"] == 2
        assert not torch.equal(whole["replay"]["frames"]["float32"], other["replay"]["frames"]["float32"])
    # what was learned is there once; the second rank has nothing of its own but its actor's
    assert all(path.startswith("actor") for path, _ in other["algorithm"])


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_two_ranks_compile_beside_training_and_go_on_to_the_same_bits(runs):
    whole, cut = (state_of(runs / "compiled" / name) for name in ("whole", "cut"))
    assert tree.equal(whole, cut)
    for each in (whole, *whole["ranks"]):
        # acting, the update up to its sums over processes, and the rest of it
        assert each["execution"]["on"] and len(each["execution"]["keys"]) == 3
    # both ranks have as many envs, so each program was compiled once and not by both
    assert len(list((runs / "cache").rglob("*.pt2"))) == 3 and not list((runs / "cache").rglob("*.lock"))


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("kind", KINDS)
def test_one_process_goes_on_with_a_run_of_two_ranks(kind, runs, caplog):
    short = state_of(runs / kind / "short")
    with caplog.at_level(logging.WARNING):
        assert driven(config_of(kind, runs, LONG), runs / kind / "short", Ranks(), resume=True).exit_code == 0
    assert "was trained by 2 processes and goes on with 1" in caplog.text
    state = state_of(runs / kind / "short")
    assert (state["iteration"], short["iteration"]) == (LONG, SHORT) and "ranks" not in state
    if kind != "iql":
        assert state["env_steps"] == 16 + LONG * 8 * 4
        # rows of both shards side by side, and the steps since then behind them, round the end of the ring
        before = [short["replay"], short["ranks"][0]["replay"]]
        rows = int(before[0]["totals"][0])
        kept = torch.cat([part["frames"]["float32"][10:rows] for part in before], dim=1)
        assert torch.equal(state["replay"]["frames"]["float32"][10:rows], kept)
        assert state["replay"]["totals"].tolist() == [rows + (LONG - SHORT) * 8] * 4


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_go_on_with_a_run_of_one_process(kind, runs):
    state = state_of(runs / kind / "one")
    assert state["iteration"] == LONG and len(state["ranks"]) == 1
    if kind != "iql":
        assert state["env_steps"] == 16 + LONG * 8 * 4
        assert state["replay"]["num_envs"] == 2


# -- shards ------------------------------------------------------------------------------------------------------------

SPEC, CHOICE = ObsSpec.from_flat(2), DiscreteSpec(n=3)


def steps_of(num_steps: int, num_envs: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    obs = torch.rand(num_steps + 1, num_envs, 2, generator=generator)
    ended = torch.rand(num_steps, num_envs, generator=generator) < 0.3
    following = torch.where(ended.unsqueeze(-1), -obs[1:], obs[1:])
    return {
        "obs": {"obs": obs[:-1]},
        "act": torch.randint(0, 3, (num_steps, num_envs), generator=generator),
        "rew": torch.rand(num_steps, num_envs, generator=generator),
        "terminated": ended,
        "obs_next": {"obs": following},
    }


@pytest.mark.parametrize(("num_steps", "num_envs"), [(20, 1), (7, 3), (1, 9)])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_the_shards_of_a_dataset_are_its_steps_once_each(num_steps, num_envs, num_ranks, tmp_path):
    whole = replay_of(steps_of(num_steps, num_envs), SPEC, CHOICE)
    save_dataset(tmp_path, whole, SPEC, CHOICE)
    shards = [load_dataset(tmp_path, SPEC, CHOICE, shard=(rank, num_ranks)) for rank in range(num_ranks)]
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1 and sum(sizes) == num_steps * num_envs
    together = tree.map(lambda *leaves: torch.cat(leaves), *(all_steps(shard) for shard in shards))
    assert tree.equal(together, all_steps(whole))
    assert all(shard.capacity <= -(-num_steps * num_envs // num_ranks) + 2 * num_steps for shard in shards)


def test_a_dataset_with_fewer_steps_than_processes_is_refused(tmp_path):
    save_dataset(tmp_path, replay_of(steps_of(3, 1), SPEC, CHOICE), SPEC, CHOICE)
    with pytest.raises(ValueError, match="a dataset of 3 steps cannot be shared by 4 processes"):
        load_dataset(tmp_path, SPEC, CHOICE, shard=(0, 4))


def filled(num_envs: int, first: int, num_steps: int = 9) -> Replay:
    """A prioritized replay of some of six envs, round its end, with episodes and a memory."""
    generator = torch.Generator().manual_seed(4)
    memory = {"memory": ObsSpec.from_flat(2)["obs"]}
    replay = Replay(
        transition_columns(SPEC, CHOICE, {}, {}),
        6 * num_envs,
        num_envs,
        sampler=Prioritized(seed=1),
        state=memory,
        state_every=2,
        episodes=True,
    )
    chosen = slice(first, first + num_envs)
    for _ in range(num_steps):
        drawn = torch.rand(6, 8, generator=generator)
        row = {"obs": drawn[:, :2], "next": drawn[:, 2:4], "final": drawn[:, 4:6]}
        row = {name: value[chosen].contiguous() for name, value in row.items()}
        ended = (drawn[:, 6] < 0.3)[chosen]
        replay.add(
            Transition(
                obs={"obs": row["obs"]},
                act=torch.zeros(num_envs, dtype=torch.int64),
                rew=drawn[chosen, 7],
                terminated=ended,
                truncated=torch.zeros_like(ended),
                valid=torch.ones_like(ended),
                info={},
                policy={},
                next_obs={"obs": row["next"]},
                final_obs={"obs": row["final"]},
                next_state={"memory": row["next"]},
            )
        )
    everywhere = torch.arange(replay.read.num_rows)
    leaves = (10.0 * (everywhere // num_envs) + everywhere % num_envs + first + 1.0).double()
    replay.sampler.tree.load(leaves * replay.read.alive(everywhere))
    return replay


@pytest.mark.parametrize("counts", [(2, 2, 2), (3, 3), (6,), (1, 1, 1, 1, 1, 1)])
def test_replays_are_joined_and_divided_without_a_loss(counts):
    firsts = [sum(counts[:number]) for number in range(len(counts))]
    parts = [filled(count, first).state_dict() for count, first in zip(counts, firsts)]
    whole = filled(6, 0).state_dict()
    assert tree.equal(joined_replays(parts), whole)
    for count, first, part in zip(counts, firsts, parts):
        again = Replay(
            transition_columns(SPEC, CHOICE, {}, {}),
            6 * count,
            count,
            sampler=Prioritized(seed=1),
            state={"memory": ObsSpec.from_flat(2)["obs"]},
            state_every=2,
            episodes=True,
        )
        again.load_state_dict(replay_of_envs(whole, first, count))
        assert tree.equal({**again.state_dict(), "generation": 1}, part)
