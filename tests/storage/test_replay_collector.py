"""A replay filled by a collector holds what the env gave, ends included."""

from __future__ import annotations

import pytest
import torch

from striderl.collect.actors.base import RandomActor
from striderl.collect.collector import Collector
from striderl.data.transition import Transition
from striderl.envs.classic_control import CartPole
from striderl.storage.replay.replay import Replay


class Both:
    """Hands each step to a replay and keeps it."""

    balanced = False

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.seen: list[tuple[Transition, slice]] = []

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        rows = slice(0, self.replay.num_envs) if envs is None else envs
        self.seen.append((transition, rows))
        self.replay.add(transition, envs)


@pytest.mark.parametrize("n_step", [4, 7])
def test_every_next_observation_is_the_one_the_env_gave(n_step: int) -> None:
    env = CartPole(4)
    collector = Collector(env, RandomActor(env.action_spec))
    both = Both(Replay(collector.columns(), 4 * 60, 4))
    while len(both.replay) < 4 * 60 or n_step * len(both.seen) < 600:
        collector.collect(n_step=n_step, storage=both)
    steps: list[list[tuple[torch.Tensor, torch.Tensor, bool]]] = [[] for _ in range(4)]
    for transition, rows in both.seen:
        (name,) = transition.obs
        following = transition.obs_next()[name]
        for offset, e in enumerate(range(rows.start, rows.stop)):
            done = bool(transition.done[offset])
            steps[e].append((transition.obs[name][offset], following[offset], done))
    read = both.replay.read
    index = read.chronological()
    rows_ = read.rows(index)
    position = read.position(index).tolist()
    ends = 0
    for i, (env_number, p) in enumerate(zip((index % 4).tolist(), position)):
        obs, following, done = steps[env_number][len(steps[env_number]) - 60 + p]
        assert torch.equal(rows_["obs"][name][i], obs)
        assert torch.equal(rows_["obs_next"][name][i], following)
        ends += done
    assert ends > 4  # random play falls after about 20 steps
