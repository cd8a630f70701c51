"""Learning from sequences: a task that only memory solves, values along a walk, and exact resume with memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from replay_cases import Setting, build, clock, learned

from striderl.algorithms.actor_critic.recurrent_sac import RecurrentSAC
from striderl.algorithms.actor_critic.sac import SAC, SACConfig
from striderl.algorithms.sequence_learning import SequenceConfig
from striderl.algorithms.terms.adversarial import AdversarialConfig, AdversarialReward
from striderl.algorithms.terms.discriminator import StateAction
from striderl.algorithms.terms.expert import ExpertRows
from striderl.algorithms.terms.term import Term
from striderl.algorithms.value_based.dqn import DQNConfig, Means, q_policy
from striderl.algorithms.value_based.recurrent_dqn import RecurrentDQN
from striderl.collect.actors.policy_actor import GreedyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.toy.base import ToyEnv, ToyOutcome
from striderl.envs.toy.chains import Terminator
from striderl.envs.toy.memory import MemoryCue, MemoryCueConfig
from striderl.ops.ramps import Ramp
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.stages import Remember
from striderl.policies.value_functions import QFunction, QFunctionConfig
from striderl.training.evaluation import evaluate
from striderl.training.plans import OffPolicyPlan
from striderl.training.trainer import Trainer

CUE = MemoryCueConfig(delay=4)


def cue_trainer(*, prioritized: bool = False, iterations: int = 5, weights: int = 0, steps: int = 50) -> Trainer:
    torch.manual_seed(weights)
    env = MemoryCue(16, config=CUE)
    kind = Means(rescale=prioritized)
    stages = (Remember(type="gru", hidden_size=32),)
    network = ActorConfig(obs=("cue", "go"), hidden_dims=(32,), stages=stages)
    policy = q_policy(env.obs_spec, env.action_spec, network, kind)
    config = DQNConfig(
        learning_rate=3e-3,
        target_every=50,
        gamma=0.95,
        n_step=3,
        prioritized=prioritized,
        epsilon=Ramp(start=1.0, end=0.1, num_steps=3000),
    )
    sequence = SequenceConfig(length=10, burn_in=5, state_every=3)
    algorithm = RecurrentDQN(policy, config, kind, sequence=sequence)
    plan = OffPolicyPlan(
        num_steps_per_env=steps,
        batch_size=32,
        learning_starts=16 * steps,
        buffer_size=8000,
        total_iterations=iterations,
    )
    return Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=0)), plan)


@pytest.mark.slow
def test_a_cue_is_remembered():
    trainer = cue_trainer()
    list(trainer)
    result = evaluate(MemoryCue(20, config=CUE), GreedyActor(trainer.algorithm.policy), 40, seed=7)
    assert result.mean >= 0.9  # without memory the most is 1/3


@pytest.mark.slow
def test_a_run_with_memory_and_priorities_goes_on_bit_for_bit():
    whole = cue_trainer(prioritized=True, iterations=3, steps=12)
    list(whole)
    first = cue_trainer(prioritized=True, iterations=3, steps=12)
    next(first)
    second = cue_trainer(prioritized=True, iterations=3, steps=12, weights=3)
    second.load_state_dict(first.state_dict())
    list(second)
    for name, value in whole.algorithm.policy.state_dict().items():
        assert torch.equal(value, second.algorithm.policy.state_dict()[name]), name


@pytest.mark.slow
def test_values_along_a_walk_of_an_episode():
    # 1 + 0.5 + 0.25, 1 + 0.5, 1, with the memory of the steps before
    env = clock("recurrent dqn", Terminator, 3)
    algorithm = learned(build("recurrent dqn", env, Setting()), env, 200)
    policy = algorithm.policy
    with torch.no_grad():
        walk = {"obs": torch.eye(3).unsqueeze(1)}
        distribution, _, _ = policy.act(walk, policy.initial_state(1), {}, torch.zeros(3, 1, dtype=torch.bool))
    scaled = distribution.values.amax(dim=-1).flatten()
    wanted = torch.tensor([1.75, 1.5, 1.0])
    wanted = (wanted + 1.0).sqrt() - 1.0 + 1e-3 * wanted
    assert scaled.tolist() == pytest.approx(wanted.tolist(), abs=0.05)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="length >= 1"):
        SequenceConfig(length=0)


# -- SAC ---------------------------------------------------------------------------------------------------------------


class Recall(ToyEnv):
    """-1 or 1 is shown at step 0; two steps later the action should be that number: 1 - (action - number)²."""

    def __init__(self, num_envs):
        spec = ObsSpec({"number": ComponentSpec(shape=(1,)), "go": ComponentSpec(shape=(1,))})
        action = BoxSpec(shape=(1,), low=-2.0, high=2.0)
        super().__init__(num_envs, "cpu", obs_spec=spec, action_spec=action, max_episode_length=0, first_env_index=0)

    def _start(self, words):
        return {"number": 2.0 * (words[:, 0] % 2).float() - 1.0}

    def _advance(self, state, actions):
        asked = state["length"] >= 2
        reward = torch.where(asked, 1.0 - (actions[:, 0] - state["number"]).square(), 0.0)
        return ToyOutcome({}, reward, asked, self._never(), {})

    def _observe(self, state):
        shown = torch.where(state["length"] == 0, state["number"], 0.0)
        return {"number": shown[:, None], "go": (state["length"] == 2).float()[:, None]}


def recall(memory: bool) -> float:
    """What SAC with or without memory earns after a few hundred gradient steps."""
    torch.manual_seed(0)
    env = Recall(16)
    stages = (Remember(type="gru", hidden_size=16),) if memory else ()
    seen = ("number", "go")
    network = ActorConfig(obs=seen, hidden_dims=(32,), stages=stages, head="squashed_gaussian")
    policy = ActorPolicy(env.obs_spec, env.action_spec, network)
    critic = QFunction(env.obs_spec, env.action_spec, QFunctionConfig(obs=seen, hidden_dims=(32,), stages=stages))
    config = SACConfig(
        gamma=0.9,
        tau=0.05,
        n_step=3,
        actor_learning_rate=5e-3,
        critic_learning_rate=5e-3,
        init_temperature=0.02,
        learn_temperature=False,
    )
    sequence = SequenceConfig(length=6, burn_in=0, state_every=3)
    algorithm: Any = SAC(policy, critic, config)
    if memory:
        algorithm = RecurrentSAC(policy, critic, config, sequence=sequence)
    plan = OffPolicyPlan(num_steps_per_env=50, batch_size=32, learning_starts=480, buffer_size=4000, total_iterations=3)
    list(Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=0)), plan))
    return evaluate(Recall(20), GreedyActor(policy), 40, seed=7).mean


@pytest.mark.slow
def test_sac_recalls_a_number_with_memory_and_cannot_without():
    assert recall(memory=True) >= 0.6  # the best is 1
    assert recall(memory=False) <= 0.3  # without memory the best is to say 0, which pays 0 on average


# -- masks and terms ---------------------------------------------------------------------------------------------------


def sequences(algorithm, resets, terminated, mask):
    """Three steps of one env, which pay 1, 10 and 100."""
    count, memory = len(resets), algorithm.actor().memory_columns()

    def row(values, dtype=torch.float32):
        return torch.tensor(values, dtype=dtype).view(count, 1)

    obs = {"obs": torch.ones(count, 1, 1), "mask": torch.tensor(mask[:count]).view(count, 1, 2)}
    after = {"obs": torch.ones(count, 1, 1), "mask": torch.tensor(mask[1:]).view(count, 1, 2)}
    return {
        "obs": obs,
        "obs_next": after,
        "act": torch.zeros(count, 1, dtype=torch.int64),
        "rew": row([1.0, 10.0, 100.0]),
        "terminated": row(terminated, torch.bool),
        "truncated": row([False] * count, torch.bool),
        "valid": row([True] * count, torch.bool),
        "resets": row(resets, torch.bool),
        "info": {},
        "state": {name: torch.zeros(1, *spec.shape) for name, spec in memory.items()},
    }


def masked_learner(n_step=1, terms=()):
    """Q-values 1 and 5 whatever is seen; the second choice is the better one where it is allowed."""
    torch.manual_seed(0)
    spec = ObsSpec(
        {"obs": ComponentSpec(shape=(1,)), "mask": ComponentSpec(shape=(2,), dtype="bool", group="action_mask")}
    )
    network = ActorConfig(obs=("obs",), hidden_dims=(), stages=(Remember(type="gru", hidden_size=4),))
    policy = q_policy(spec, DiscreteSpec(n=2, mask="mask"), network)
    with torch.no_grad():
        (layer,) = [module for module in policy.head.modules() if isinstance(module, torch.nn.Linear)]
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor([1.0, 5.0]))
    config = DQNConfig(gamma=0.5, n_step=n_step, double=True)
    return RecurrentDQN(policy, config, sequence=SequenceConfig(length=3, burn_in=0), terms=terms)


BOTH, FIRST = [True, True], [True, False]


@pytest.mark.parametrize(
    ("n_step", "wanted"),
    [
        # after step 0 only the first choice is allowed, after step 1 both, and step 2 terminates
        (1, [1.0 + 0.5 * 1.0, 10.0 + 0.5 * 5.0, 100.0]),
        # windows of two steps: 1 + 0.5 · 10 + 0.25 · 5, and 10 + 0.5 · 100 where it ends
        (2, [6.0 + 0.25 * 5.0, 60.0, 100.0]),
    ],
)
def test_targets_of_sequences_leave_out_forbidden_choices(n_step, wanted):
    algorithm = masked_learner(n_step)
    sample = sequences(algorithm, [True, False, False], [False, False, True], [BOTH, FIRST, BOTH, FIRST])
    minibatch = algorithm.minibatch(sample, None, {})
    torch.testing.assert_close(algorithm.targets(minibatch), torch.tensor(wanted))


class Fee(Term):
    """Pays 0.5 for every step that does not terminate, and notes what it is shown."""

    name = "fee"

    def reward(self, read):
        return {"fee": torch.where(read.columns["terminated"], 0.0, 0.5)}

    def losses(self, minibatch, out):
        self.shown = minibatch
        return {}


def test_terms_pay_in_every_step_of_a_sequence():
    algorithm = masked_learner(2, terms=[Fee()])
    sample = sequences(algorithm, [True, False, False], [False, False, True], [BOTH, FIRST, BOTH, FIRST])
    minibatch = algorithm.minibatch(sample, None, {})
    # 1.5 + 0.5 · 10.5 + 0.25 · 5; 10.5 + 0.5 · 100; 100
    torch.testing.assert_close(algorithm.targets(minibatch), torch.tensor([8.0, 60.5, 100.0]))
    assert minibatch["single"]["terminated"].tolist() == [False, False, True]
    assert sample["rew"].flatten().tolist() == [1.0, 10.0, 100.0]  # what was stored stays
    algorithm.update_normalization(sample)


def test_an_adversarial_reward_learns_from_sequences():
    torch.manual_seed(0)
    env = Recall(4)
    memory = (Remember(type="gru", hidden_size=8),)
    seen = ("number", "go")
    network = ActorConfig(obs=seen, hidden_dims=(8,), stages=memory, head="squashed_gaussian")
    policy = ActorPolicy(env.obs_spec, env.action_spec, network)
    critic = QFunction(env.obs_spec, env.action_spec, QFunctionConfig(obs=seen, hidden_dims=(8,), stages=memory))
    features = StateAction(env.obs_spec, env.action_spec)
    term = AdversarialReward(features, ExpertRows(torch.randn(32, features.size)), AdversarialConfig(hidden_dims=(8,)))
    before = [parameter.clone() for parameter in term.judge.network.parameters()]
    algorithm = RecurrentSAC(
        policy, critic, SACConfig(n_step=2), sequence=SequenceConfig(length=4, burn_in=2, state_every=2), terms=[term]
    )
    plan = OffPolicyPlan(num_steps_per_env=6, batch_size=8, learning_starts=48, buffer_size=200, total_iterations=1)
    (record,) = Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=0)), plan)
    assert "train/discriminator_policy_loss" in record.metrics
    assert any(not torch.equal(one, two) for one, two in zip(before, term.judge.network.parameters()))
