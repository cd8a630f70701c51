"""Where episodes begin anew, what was stored before must not seem to go on: resumes, errors, interrupts, rollbacks.

The env counts: a stored step is true when its observation goes on by one in the same episode, with the action taken.
"""

from __future__ import annotations

import itertools

import gymnasium
import numpy as np
import pytest
import torch

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.collect.actors.base import RandomActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.group import NoiseSource
from striderl.data.noise import NoiseSpec
from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.workers.pool import WorkerConfig
from striderl.policies.actor_policy import ActorConfig
from striderl.policies.policy import Policy, PolicyConfig
from striderl.storage.replay.replay import Replay
from striderl.training.plans import OffPolicyPlan, OnPolicyPlan
from striderl.training.trainer import Trainer


class Counting(gymnasium.Env):
    """Shows the number of its episode, of its step, and the last action."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(7)
    episodes = itertools.count()
    failing_resets: set[int] = set()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.at = next(Counting.episodes), 0
        if self.episode in Counting.failing_resets:
            raise ConnectionError("not up yet")
        return np.array([self.episode, 0, -1], np.float32), {}

    def step(self, action):
        self.at += 1
        return np.array([self.episode, self.at, action], np.float32), 1.0, False, self.at >= 50, {}


@pytest.fixture(autouse=True)
def counted_from_zero():
    Counting.episodes, Counting.failing_resets = itertools.count(), set()


def make_trainer(*, overlap=False, prioritized=False, task=Counting):
    env = GymnasiumEnv(task, 2)
    torch.manual_seed(0)
    policy = q_policy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(8,)))
    algorithm = DQN(policy, DQNConfig(prioritized=prioritized))
    plan = OffPolicyPlan(
        num_steps_per_env=12, train_every=2, batch_size=8, learning_starts=12, buffer_size=500, overlap=overlap,
        total_iterations=100,
    )  # fmt: skip
    return Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=0)), plan)


def assert_all_true(replay):
    rows = replay.read.rows(replay.read.chronological())
    obs, following = rows["obs"]["obs"], rows["obs_next"]["obs"]
    assert torch.equal(following[:, 0], obs[:, 0])
    assert torch.equal(following[:, 1], obs[:, 1] + 1)
    assert torch.equal(following[:, 2], rows["act"].float().flatten())


def interrupted(part, name, at):
    """Let one call of a method be interrupted before it does anything."""
    real, calls = getattr(part, name), itertools.count(1)

    def once(*inputs, **settings):
        if next(calls) == at:
            raise KeyboardInterrupt
        return real(*inputs, **settings)

    setattr(part, name, once)


def test_a_resume_without_the_envs_state_cuts_what_was_stored():
    first, second = make_trainer(), make_trainer()
    next(first)
    second.load_state_dict(first.state_dict())
    next(second)
    assert len(second.loop.storage) == 2 * (6 + 24)
    assert_all_true(second.loop.storage)
    assert int(second.loop.storage.steps.arena.data["truncated"].sum()) == 2


@pytest.mark.parametrize("where", ["settle", "add", "update", "launch"])
@pytest.mark.parametrize("overlap", [False, True])
def test_after_an_interrupt_no_step_is_told_wrongly(where, overlap):
    trainer = make_trainer(overlap=overlap)
    next(trainer)
    parts = {
        "settle": trainer.collector.groups[0],
        "add": trainer.loop.storage,
        "update": trainer.algorithm,
        "launch": trainer.collector.schedule,
    }
    interrupted(parts[where], where, at=3)
    with pytest.raises(KeyboardInterrupt):
        next(trainer)
    assert trainer.state_dict()["collector"] is not None  # with overlap, a step may have been under way
    next(trainer)
    assert_all_true(trainer.loop.storage)
    trainer.close()


def test_a_rollback_cuts_the_replay_and_takes_priorities_back():
    trainer = make_trainer(prioritized=True)
    next(trainer)
    sampler = trainer.loop.storage.sampler
    before, update = float(sampler.largest), trainer.algorithm.update

    def broken(*inputs):
        numbers = update(*inputs)
        with torch.no_grad():
            next(trainer.algorithm.policy.parameters()).fill_(torch.inf)
        return {**numbers, "td_error": torch.full_like(numbers["td_error"], 1e30)}

    trainer.algorithm.update = broken
    next(trainer)
    trainer.algorithm.update = update
    assert trainer.loop.guard.num_rollbacks == 1
    assert float(sampler.largest) == before and float(sampler.tree.leaves.max()) == before
    next(trainer)
    assert_all_true(trainer.loop.storage)


def test_a_first_reset_that_fails_may_be_tried_again():
    trainer, other = make_trainer(), make_trainer()
    Counting.failing_resets = {1}
    with pytest.raises(RuntimeError, match="not up yet"):
        next(trainer)
    assert next(trainer).env_steps == next(other).env_steps


def test_steps_that_went_elsewhere_leave_a_seam():
    env = GymnasiumEnv(Counting, 2)
    collector = Collector(env, RandomActor(env.action_spec))
    one, two = (Replay(collector.columns(), 50, 2) for _ in range(2))
    for storage, steps in ((one, 3), (two, 2), (one, 4), (None, 1), (one, 2)):
        collector.collect(n_step=2 * steps, storage=storage)
    for replay, ends in ((one, [2, 6]), (two, [])):
        assert_all_true(replay)
        ended = replay.steps.arena.data["truncated"][:, 0].nonzero().flatten().tolist()
        assert ended == ends


def test_what_waits_is_saved_too():
    env = GymnasiumEnv(Counting, 3, workers=WorkerConfig(num_workers=2, start_method="fork"))
    with env:
        collector = Collector(env, RandomActor(env.action_spec), CollectorConfig(schedule="asynchronous", num_groups=2))
        collector.collect(n_step=4)  # groups of two and one: one more may come than was asked for
        state = collector.state_dict()
    waiting = state["delivery"]["waiting"]
    assert sum(each["rows"][1] - each["rows"][0] for each in waiting) == collector.surplus.num_waiting
    collector.surplus.clear()
    collector.surplus.load_state_dict(state["delivery"])
    for saved, (transition, rows) in zip(waiting, collector.surplus.carried, strict=True):
        assert saved["rows"] == [rows.start, rows.stop]
        assert torch.equal(saved["transition"]["obs"]["obs"], transition.obs["obs"])


def test_an_interrupted_draw_is_drawn_again():
    spec, index = {"noise": NoiseSpec(shape=(2,))}, torch.arange(3)
    source, other = (NoiseSource(spec, seed=0, env_index=index, block=4) for _ in range(2))
    source.blocks_ahead = other.blocks_ahead = 1
    source.at(0)
    interrupted(source, "_draw", at=1)
    with pytest.raises(KeyboardInterrupt):
        source.at(4)
    assert torch.equal(source.at(4)["noise"], other.at(4)["noise"])


@pytest.mark.parametrize("phase", ["prepare", "update", "absorb"])
def test_a_rollout_that_was_saved_is_valued_with_what_followed_it(phase):
    def make():
        env = GymnasiumEnv("Pendulum-v1", 2)
        torch.manual_seed(0)
        policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(8,), critic_hidden_dims=(8,)))
        algorithm = PPO(policy, PPOConfig(num_learning_epochs=1, num_mini_batches=2))
        plan = OnPolicyPlan(num_steps_per_env=8, total_iterations=5)
        return Trainer(algorithm, Collector(env, algorithm.actor()), plan)

    first, second = make(), make()
    next(first)
    while first.phase != phase:
        first.advance()
    second.load_state_dict(first.state_dict())
    for trainer in (first, second):
        while trainer.phase != "consume":
            trainer.advance()
    for one, other in zip(first.algorithm.policy.parameters(), second.algorithm.policy.parameters()):
        assert torch.equal(one, other)


def test_a_stop_iteration_of_an_env_does_not_end_the_loop_in_silence():
    trainer = make_trainer()
    next(trainer)

    def empty(actions):
        raise StopIteration

    trainer.collector.env.step_async = empty
    with pytest.raises(RuntimeError, match="a StopIteration came out of phase 'interact'"):
        list(trainer)
