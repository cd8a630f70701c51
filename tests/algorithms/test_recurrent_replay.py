"""Learning from sequences: a task that only memory solves, values along a walk, and exact resume with memory."""

from __future__ import annotations

import pytest
import torch
from replay_cases import Setting, build, clock, learned

from striderl.algorithms.dqn import DQNConfig, Means, q_policy
from striderl.algorithms.recurrent_dqn import RecurrentDQN
from striderl.algorithms.sequence_learning import SequenceConfig
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.policy_actor import GreedyActor
from striderl.envs.toy.chains import Terminator
from striderl.envs.toy.memory import MemoryCue, MemoryCueConfig
from striderl.ops.ramps import Ramp
from striderl.policies.actor_policy import ActorConfig
from striderl.policies.stages import Remember
from striderl.training.evaluation import evaluate
from striderl.training.plans import OffPolicyPlan
from striderl.training.trainer import Trainer

CUE = MemoryCueConfig(delay=4)


def cue_trainer(*, prioritized: bool = False, iterations: int = 8, weights: int = 0) -> Trainer:
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
        num_steps_per_env=50,
        batch_size=32,
        learning_starts=800,
        buffer_size=8000,
        total_iterations=iterations,
    )
    return Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=0)), plan)


def test_a_cue_is_remembered():
    trainer = cue_trainer()
    list(trainer)
    result = evaluate(MemoryCue(20, config=CUE), GreedyActor(trainer.algorithm.policy), 40, seed=7)
    assert result.mean >= 0.9  # without memory the most is 1/3


def test_a_run_with_memory_and_priorities_goes_on_bit_for_bit():
    whole = cue_trainer(prioritized=True, iterations=3)
    list(whole)
    first = cue_trainer(prioritized=True, iterations=3)
    next(first)
    second = cue_trainer(prioritized=True, iterations=3, weights=3)
    second.load_state_dict(first.state_dict())
    list(second)
    for name, value in whole.algorithm.policy.state_dict().items():
        assert torch.equal(value, second.algorithm.policy.state_dict()[name]), name


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
