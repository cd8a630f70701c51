"""Terms on replay: rewards follow what a term knows now, in every step of a window, and terms learn and are saved."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from striderl.algorithms.actor_critic.fast_td3 import fast_sac, fast_settings, fast_td3
from striderl.algorithms.reward_terms import RewardTerms, SingleStep
from striderl.algorithms.terms.rnd import RandomNetworkDistillation, RNDConfig
from striderl.algorithms.terms.term import Term
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data import tree
from striderl.envs.classic_control.pendulum import Pendulum
from striderl.envs.toy.chains import ProbeConfig, Terminator
from striderl.execution.updater import GroupConfig, ParameterGroup
from striderl.policies.actor_policy import ActorConfig
from striderl.storage.replay.views import NStep
from striderl.training.loops.off_policy import ReplayLearner
from striderl.training.plans import OffPolicyPlan
from striderl.training.protocols import replay_for
from striderl.training.trainer import Trainer


class Toll(Term):
    """Pays `rate` for every step, and learns the rate towards 3; a stand-in for an adversarial reward."""

    def __init__(self):
        self.module = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.module.weight, 0.5)
        self._group = ParameterGroup(self.module.parameters(), GroupConfig(learning_rate=0.1, max_grad_norm=0.0))
        self.absorbed = 0

    @property
    def name(self):
        return "toll"

    @property
    def groups(self):
        return {"toll": self._group}

    @property
    def rate(self):
        return self.module.weight.detach().squeeze()

    def reward(self, read):
        assert read.columns["rew"].dim() == 2 and next(iter(read.last_obs.values())).dim() == 2
        return {"toll": torch.where(read.columns["valid"], self.rate, 0.0)}

    def losses(self, minibatch, out):
        return {"toll_loss": (1.0, (self.module.weight - 3.0).square().mean())}

    def update_normalization(self, columns):
        self.absorbed += columns["valid"].numel()

    def state_dict(self):
        return {"module": tree.copy(dict(self.module.state_dict()))}

    def load_state_dict(self, state):
        self.module.load_state_dict(state["module"])


def parts(n_step=3, term=None):
    torch.manual_seed(0)
    env = Terminator(2, config=ProbeConfig(num_steps=4))
    term = term or Toll()
    policy = q_policy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(8,)))
    algorithm = DQN(policy, DQNConfig(gamma=0.5, n_step=n_step, learning_rate=1e-2), terms=[term])
    collector = Collector(env, algorithm.actor(), CollectorConfig(seed=0))
    replay = replay_for(collector, algorithm, 64, 0)
    collector.collect(n_step=32, storage=replay)
    return algorithm, term, replay


def test_every_step_of_a_window_has_todays_reward():
    _, term, replay = parts()
    step = replay.sample(64).data
    # an episode has four steps: windows of 3, 3, 2, 1 steps, each worth 1 + 0.5: 1.5 · (1 + 1/2 + 1/4) = 2.625 …
    assert {round(value, 4) for value in step["rew"].tolist()} == {2.625, 2.25, 1.5}
    nn.init.constant_(term.module.weight, 1.0)
    assert {round(value, 4) for value in replay.sample(64).data["rew"].tolist()} == {3.5, 3.0, 2.0}
    assert set(replay.read.column(("rew",), torch.arange(4)).tolist()) == {1.0}, "the env's reward stays as it is"


def test_terms_learn_and_are_saved():
    algorithm, term, replay = parts()
    learner = ReplayLearner(algorithm, replay, 8, 0)
    for number in range(5):
        learner.step(number)
    numbers = learner.finish()
    assert 0.5 < term.rate.item() < 3.0 and "train/toll_loss" in numbers and term.absorbed == 8
    other, theirs, _ = parts()
    other.load_state_dict(algorithm.state_dict())
    assert theirs.rate.item() == term.rate.item()
    sample = replay.sample(8)
    algorithm.update(sample.data, sample.weight, {})
    other.update(sample.data, sample.weight, {})
    assert theirs.rate.item() == term.rate.item(), "its optimiser goes on too"


def test_values_include_the_rewards_of_terms():
    # the last step pays 1, and the toll of 0.5
    algorithm, _, replay = parts(n_step=1, term=Fixed())
    learner = ReplayLearner(algorithm, replay, 32, 0)
    for number in range(150):
        learner.step(number)
    with torch.no_grad():
        values = algorithm.policy.act({"obs": torch.eye(4)[3:]}, {}, {})[0].values
    assert values.amax().item() == pytest.approx(1.5, abs=0.1)


class Fixed(Toll):
    """A toll that learns nothing."""

    groups = {}

    def losses(self, minibatch, out):
        return {}


def test_the_short_view_is_that_of_one_step():
    env = Terminator(3, config=ProbeConfig(num_steps=2))
    algorithm = DQN(q_policy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(8,))))
    assert isinstance(algorithm.view(), SingleStep)
    assert isinstance(RewardTerms([], algorithm.policy).view(2, 0.9), NStep)
    collector = Collector(env, algorithm.actor(), CollectorConfig(seed=0))
    replay = replay_for(collector, algorithm, 30, 0)
    collector.collect(n_step=30, storage=replay)
    index = replay.read.chronological()
    one, other = SingleStep(0.9)(replay.read, index), NStep(1, gamma=0.9)(replay.read, index)
    for path, leaf in tree.items(one):
        assert torch.equal(leaf, dict(tree.items(other))[path]), path


@pytest.mark.parametrize("make", [fast_td3, fast_sac])
def test_fast_settings_run(make):
    env = Pendulum(16)
    torch.manual_seed(0)
    small = {"num_atoms": 11, "actor_hidden_dims": (8,), "critic_hidden_dims": (8,)}
    algorithm, settings = make(env.obs_spec, env.action_spec, num_envs=16, **small)
    assert settings.batch_size == 256 and settings.learning_starts == 160
    plan = OffPolicyPlan(**{**settings._asdict(), "num_steps_per_env": 2, "buffer_size": 1600}, total_iterations=2)
    records = list(Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=0)), plan))
    assert records[-1].num_updates == 4 * settings.num_updates_per_round
    assert all(torch.isfinite(value).all() for value in algorithm.policy.state_dict().values())
    assert fast_settings(4096).batch_size == 32_768


# -- novelty -----------------------------------------------------------------------------------------------------------


def novelty(**settings):
    env = Terminator(2, config=ProbeConfig(num_steps=4))
    config = RNDConfig(predictor_hidden_dims=(8,), **settings)
    return RandomNetworkDistillation(env.obs_spec, env.num_envs, config)


@pytest.mark.slow
def test_novelty_of_replayed_steps_is_learned_away():
    algorithm, _, replay = parts(n_step=2, term=novelty(normalize_reward=False, learning_rate=1e-2))
    before = replay.sample(32).data["rew"].clone()
    learner = ReplayLearner(algorithm, replay, 16, 0)
    for number in range(100):
        learner.step(number)
    assert "train/rnd_loss" in learner.finish()
    after = replay.sample(32).data["rew"]
    stored = 1.5  # two steps of 1 under gamma 0.5; what is above that is novelty
    assert float(before.amax()) > stored + 0.05 and float(after.amax()) < 0.5 * (float(before.amax()) + stored)


def test_novelty_that_wants_rollouts_is_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"wants normalize_reward=False.*in no order"):
        parts(term=novelty())
    ramp = {"weight_schedule": "linear", "final_step": 10}
    with pytest.raises(ValueError, match="wants weight_schedule='constant'"):
        parts(term=novelty(normalize_reward=False, **ramp))
