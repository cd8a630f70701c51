"""Windows of motion frames: one step and one env at a time against all at once, over ends and over rollouts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from motion_cases import Drift, Witness, make_appo, make_policy, make_trainer, prior_of, strides

from striderl.algorithms.actor_critic.sac import SAC
from striderl.algorithms.terms.motion_prior import MotionPrior, MotionPriorConfig
from striderl.algorithms.terms.term import Read
from striderl.collect.collector import Collector, CollectorConfig
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.value_functions import QFunction
from striderl.storage.rollout_presets import SarsaRolloutStorage
from striderl.training.protocols import storage_for


class Walk:
    """Rollouts of the Drift env with everything that happened in them."""

    def __init__(self, frames: int, seed: int = 0, *, num_envs: int = 3, num_steps: int = 5, finals: bool = True):
        self.env = Drift(num_envs, limit=4)
        self.env.gives_final_obs = finals
        self.ppo = make_appo(self.env, make_policy(self.env, weights=seed), frames=frames)
        self.term = prior_of(self.ppo)
        self.collector = Collector(self.env, self.ppo.actor(), CollectorConfig(seed=seed))
        self.storage = storage_for(self.ppo, self.collector, num_steps)
        self.witness = Witness(self.storage)
        self.num_steps = num_steps

    def collect(self):
        """One more rollout, as terms read it."""
        self.storage.clear()
        self.collector.collect(n_step=self.num_steps * self.env.num_envs, storage=self.witness)
        return Read(self.storage.data, self.collector.current_obs)

    def by_hand(self, frames: int, env: int) -> list[list[float] | None]:
        """The window of each step of an env since the beginning; None where there is none."""
        windows, episode = [], []
        for step in self.witness.steps:
            if not episode:
                episode = [step.obs["motion"][env].tolist()]
            done = bool(step.done[env])
            after = (step.final_obs if done else step.next_obs)["motion"][env].tolist()
            episode.append(after)
            whole = len(episode) >= max(frames, 2)
            windows.append([x for frame in episode[-frames:] for x in frame] if whole else None)
            if done:
                episode = []
        return windows


@pytest.mark.slow
@given(frames=st.integers(1, 4), seed=st.integers(0, 1000))
@settings(max_examples=12, deadline=None)
def test_windows_are_those_of_a_loop_over_steps(frames, seed):
    walk = Walk(frames, seed)
    for number in range(3):
        read = walk.collect()
        labels = walk.term.labels(read)
        for env in range(3):
            wanted = walk.by_hand(frames, env)[-walk.num_steps :]
            assert labels["known"][:, env].tolist() == [each is not None for each in wanted], number
            for step, window in enumerate(wanted):
                if window is not None:
                    assert labels["rows"][step, env].tolist() == window


def test_the_cases_hold_both_kinds_of_end():
    walk = Walk(2)
    for _ in range(4):
        walk.collect()
    assert any(bool(step.terminated.any()) for step in walk.witness.steps)
    assert any(bool((step.truncated & ~step.terminated).any()) for step in walk.witness.steps)


def test_the_final_motion_is_scored_and_not_the_first_of_the_next_episode():
    walk = Walk(1)
    ended = torch.zeros(5, 3, dtype=torch.bool)
    while not bool(ended[:-1].any()):
        read = walk.collect()
        ended = read.columns["terminated"] | read.columns["truncated"]
    rows = walk.term.labels(read)["rows"]
    following = torch.cat([read.columns["obs"]["motion"][1:], read.last_obs["motion"].unsqueeze(0)])
    assert torch.equal(rows[~ended], following[~ended])
    finals = torch.stack([step.final_obs["motion"] for step in walk.witness.steps[-5:]])
    assert torch.equal(rows[ended], finals[ended]) and not torch.equal(rows[ended], following[ended])
    # one score for one motion: equal rows, equal rewards
    judge = walk.term.judge
    score = judge.score(judge.seen(finals, torch.ones_like(ended)))
    style = 0.5 * (1.0 - 0.25 * (score - 1.0).square()).clamp(min=0.0)
    torch.testing.assert_close(walk.term.reward(read)["style_reward"][ended], style[ended].detach())


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_without_final_observations_an_end_teaches_nothing_and_is_paid_like_the_step_before(frames):
    walk = Walk(frames, finals=False)
    assert not isinstance(walk.storage, SarsaRolloutStorage)
    for _ in range(3):
        read = walk.collect()
        labels, reward = walk.term.labels(read), walk.term.reward(read)["style_reward"]
        ended = read.columns["terminated"] | read.columns["truncated"]
        assert not bool((labels["known"] & ended).any())
        for env in range(3):
            for step in range(1, 5):
                if ended[step, env] and not ended[step - 1, env]:
                    assert reward[step, env] == (reward[step - 1, env] if labels["known"][step - 1, env] else 0.0)


def test_only_what_is_asked_for_is_stored_twice():
    walk = Walk(2)
    assert isinstance(walk.storage, SarsaRolloutStorage)
    walk.collect()
    assert set(walk.storage.data["obs_next"]) == {"motion"}


def test_frames_go_on_over_rollouts_and_end_with_episodes():
    walk = Walk(4, num_envs=1, num_steps=2)
    lengths = []
    for _ in range(8):
        read = walk.collect()
        stored = read.columns["policy"]["motion_prior"]
        lengths += stored["count"][:, 0].tolist()
    age, wanted = 0, []
    for step in walk.witness.steps:
        wanted.append(min(age, 2))
        age = 0 if bool(step.done[0]) else age + 1
    assert lengths == wanted and 2 in wanted and wanted.count(0) > 1


def test_who_does_not_remember_is_told():
    walk = Walk(3)
    with pytest.raises(ValueError, match=r"collect with algorithm\.actor"):
        walk.term.labels(Read({**walk.collect().columns, "policy": {}}, walk.collector.current_obs))
    policy = ActorPolicy(walk.env.obs_spec, walk.env.action_spec, ActorConfig(head="squashed_gaussian"))
    critic = QFunction(walk.env.obs_spec, walk.env.action_spec)
    with pytest.raises(ValueError, match="take part in acting"):
        SAC(policy, critic, terms=[walk.term])


def test_sizes_that_do_not_fit_are_explained():
    env = Drift(2)
    with pytest.raises(ValueError, match=r"have 6 numbers, the env's 4: 2 frames of 2 \(motion\); AMPLoaderConfig"):
        MotionPrior(env.obs_spec, strides(frames=3), MotionPriorConfig())
    with pytest.raises(TypeError, match="wanted an expert with size, mean, var, draw"):
        MotionPrior(env.obs_spec, [1.0], MotionPriorConfig())


def test_a_rollout_under_way_is_resumed_with_what_followed():
    # saved between collecting and learning: targets are made again from the stored rollout
    env = Drift(3)
    ppo = make_appo(env, make_policy(env), frames=3)
    whole = make_trainer(ppo, env, iterations=3)
    next(whole)
    while whole.phase != "update":
        whole.advance()
    saved = whole.state_dict()
    list(whole)
    other = Drift(3)
    again = make_trainer(make_appo(other, make_policy(other, weights=3), frames=3), other, iterations=3, seed=8)
    again.load_state_dict(saved)
    list(again)
    one, two = (trainer.algorithm.policy.state_dict() for trainer in (whole, again))
    assert all(torch.equal(one[name], two[name]) for name in one)
