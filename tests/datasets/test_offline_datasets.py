"""Datasets: what is in them, that a folder gives back every bit, and that wrong ones are refused with words."""

from __future__ import annotations

import json

import pytest
import torch

from striderl.checkpoint.errors import CheckpointCorrupt, CheckpointMissing, LayoutMismatch
from striderl.collect.actors.base import RandomActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data import tree
from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.specs import ObsSpec
from striderl.datasets.offline import all_steps, dataset_about, load_dataset, replay_of, save_dataset
from striderl.envs.toy import Chain, ChainConfig
from striderl.storage.replay.replay import Replay
from striderl.storage.replay.samplers import Prioritized, Uniform
from striderl.storage.replay.views import NStep

OBS, ACT = ObsSpec.from_flat(2), DiscreteSpec(n=3)


def numbers(*shape, start=0.0):
    count = torch.Size(shape).numel()
    return torch.arange(count, dtype=torch.float32).view(shape) + start


def two_steps():
    """Two steps of two envs; env 0 terminates after the first, env 1 is truncated after the second."""
    obs = numbers(2, 2, 2)
    following = torch.stack([obs[1].clone(), numbers(2, 2, start=50.0)])
    following[0, 0] = 90.0  # where env 0 really ended, not the first observation of its next episode
    return {
        "obs": {"obs": obs},
        "act": torch.tensor([[0, 1], [2, 0]]),
        "rew": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "terminated": torch.tensor([[True, False], [False, False]]),
        "truncated": torch.tensor([[False, False], [False, True]]),
        "obs_next": {"obs": following},
    }


def collected(num_steps=30):
    env = Chain(3, config=ChainConfig(num_states=3, max_episode_length=4))
    collector = Collector(env, RandomActor(env.action_spec), CollectorConfig(seed=1))
    replay = Replay(collector.columns(), num_steps, 3)
    collector.collect(n_step=num_steps, storage=replay)
    return env, replay


def test_steps_come_back_with_what_really_followed():
    rows = all_steps(replay_of(two_steps(), OBS, ACT))
    # env by env: env 0 at t = 0, 1, then env 1
    assert rows["rew"].tolist() == [1.0, 3.0, 2.0, 4.0]
    assert rows["act"].tolist() == [0, 2, 1, 0]
    assert rows["obs_next"]["obs"].tolist() == [[90.0, 90.0], [50.0, 51.0], [6.0, 7.0], [52.0, 53.0]]
    assert rows["terminated"].tolist() == [True, False, False, False]
    assert rows["truncated"].tolist() == [False, False, False, True]


def test_n_step_windows_stop_at_both_kinds_of_end():
    replay = replay_of(two_steps(), OBS, ACT, view=NStep(2, gamma=0.5))
    data = replay.view(replay.read, replay.read.chronological())
    # env 0: 1 | 3, nothing newer yet; env 1: 2 + 0.5 · 4, cut by the clock, and 4
    assert data["rew"].tolist() == [1.0, 3.0, 4.0, 4.0]
    assert data["discount"].tolist() == [0.0, 0.5, 0.25, 0.5]
    assert data["obs_next"]["obs"][2].tolist() == [52.0, 53.0]


def test_plain_transitions_are_one_step_of_many_envs():
    steps = tree.map(lambda leaf: leaf.flatten(0, 1).unsqueeze(0), two_steps())
    rows = all_steps(replay_of(steps, OBS, ACT))
    assert torch.equal(rows["rew"], steps["rew"][0])
    assert torch.equal(rows["obs_next"]["obs"], steps["obs_next"]["obs"][0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda steps: steps.pop("rew"), "missing \\['rew'\\]"),
        (
            lambda steps: steps.update(rew=torch.zeros(2, 3)),
            "'rew' begins with \\[2, 3\\], 'terminated' with \\[2, 2\\]",
        ),
        (lambda steps: steps.update(act=torch.zeros(2, 2, 4)), "act"),
    ],
)
def test_steps_that_do_not_fit_are_named(change, words):
    steps = two_steps()
    change(steps)
    with pytest.raises(ValueError, match=words):
        replay_of(steps, OBS, ACT)


def test_a_folder_gives_every_bit_back(tmp_path):
    env, replay = collected()
    save_dataset(tmp_path / "set", replay, env.obs_spec, env.action_spec, about={"kind": "random", "seed": 1})
    again = load_dataset(tmp_path / "set", env.obs_spec, env.action_spec)
    one, two = all_steps(replay), all_steps(again)
    assert tree.leaves(one) and all(torch.equal(a, b) for a, b in zip(tree.leaves(one), tree.leaves(two)))
    assert bool((one["terminated"] | one["truncated"]).any())
    assert dataset_about(tmp_path / "set") == {"kind": "random", "seed": 1}
    names = [path.name for path in (tmp_path / "set").rglob("*") if path.is_file()]
    assert sorted(names) == ["manifest.json", "state.json", "tensors.safetensors"]


def test_sampling_begins_anew_with_the_given_picker(tmp_path):
    env, replay = collected()
    replay.sample(8)
    save_dataset(tmp_path, replay, env.obs_spec, env.action_spec)
    one = load_dataset(tmp_path, env.obs_spec, env.action_spec, sampler=Uniform(seed=7), view=NStep(1, gamma=0.9))
    two = load_dataset(tmp_path, env.obs_spec, env.action_spec, sampler=Uniform(seed=7), view=NStep(1, gamma=0.9))
    first, second = one.sample(16), two.sample(16)
    assert torch.equal(first.index, second.index) and "discount" in first.data
    other = load_dataset(tmp_path, env.obs_spec, env.action_spec, sampler=Uniform(seed=8)).sample(16)
    assert not torch.equal(first.index, other.index)


def test_priorities_of_a_loaded_dataset_begin_equal_and_leave_out_what_does_not_count(tmp_path):
    steps = two_steps()
    steps["valid"] = torch.tensor([[True, True], [False, True]])
    save_dataset(tmp_path, replay_of(steps, OBS, ACT), OBS, ACT)
    replay = load_dataset(tmp_path, OBS, ACT, sampler=Prioritized(seed=0))
    seen = replay.sample(400)
    assert set(seen.data["rew"].tolist()) == {1.0, 2.0, 4.0}  # not 3, which is not valid
    assert torch.equal(seen.weight, torch.ones(400))


def test_another_layout_is_refused_by_name(tmp_path):
    env, replay = collected()
    save_dataset(tmp_path, replay, env.obs_spec, env.action_spec)
    with pytest.raises(LayoutMismatch, match="observation 'obs': shape is \\[4\\], was \\[3\\]"):
        load_dataset(tmp_path, ObsSpec.from_flat(4), env.action_spec)
    with pytest.raises(LayoutMismatch, match="kind"):
        load_dataset(tmp_path, env.obs_spec, BoxSpec(shape=(1,)))


def test_damaged_foreign_and_empty_ones_are_refused(tmp_path):
    env, replay = collected()
    with pytest.raises(CheckpointMissing):
        load_dataset(tmp_path / "none", env.obs_spec, env.action_spec)
    path = save_dataset(tmp_path / "set", replay, env.obs_spec, env.action_spec)
    content = bytearray((path / "tensors.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "tensors.safetensors").write_bytes(bytes(content))
    with pytest.raises(CheckpointCorrupt):
        load_dataset(tmp_path / "set", env.obs_spec, env.action_spec)
    with pytest.raises(ValueError, match="empty"):
        save_dataset(tmp_path / "other", Replay(replay_columns(env), 6, 3), env.obs_spec, env.action_spec)
    assert not (tmp_path / "other").exists()


def replay_columns(env):
    return Collector(env, RandomActor(env.action_spec)).columns()


def test_a_run_is_not_taken_for_a_dataset(tmp_path):
    from striderl.checkpoint.layout import describe
    from striderl.checkpoint.store import CheckpointStore

    env, _ = collected()
    CheckpointStore(tmp_path).save({"x": 1}, step=1, layout=describe(env.obs_spec, env.action_spec))
    with pytest.raises(CheckpointCorrupt, match="not one that save_dataset"):
        load_dataset(tmp_path, env.obs_spec, env.action_spec)


def test_nothing_in_the_folder_is_code(tmp_path):
    env, replay = collected()
    path = save_dataset(tmp_path, replay, env.obs_spec, env.action_spec)
    for name in ("state.json", "manifest.json"):
        json.loads((path / name).read_text())
    assert b"pickle" not in (path / "tensors.safetensors").read_bytes()


def test_a_folder_of_trajectories_is_named(tmp_path):
    (tmp_path / "shard_000000.trj").write_bytes(b"")
    with pytest.raises(CheckpointMissing, match="it holds trajectories, which RolloutDataset and TwoStageRunner read"):
        dataset_about(tmp_path)
