"""Our algorithms in the words of seed 003: the same samples and noise give the same steps as the core."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from striderl.algorithms.actor_critic.sac import SAC, SACConfig
from striderl.algorithms.on_policy.a2c import A2C, A2CConfig
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.compat.tianshou.algorithm_policy import AlgorithmPolicy
from striderl.compat.tianshou.collector import Collector
from striderl.compat.tianshou.trainers import offpolicy_trainer, onpolicy_trainer
from striderl.data.actions import DiscreteSpec
from striderl.data.batch import Batch
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.tasks import make
from striderl.ops.ramps import Ramp
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import Remember
from striderl.policies.value_functions import QFunction, QFunctionConfig
from striderl.storage.replay_buffer.buffer import ReplayBuffer
from striderl.storage.replay_buffer.kinds import PrioritizedReplayBuffer, VectorReplayBuffer
from striderl.training.protocols import UpdateNoise

SMALL = ActorConfig(hidden_dims=(16,))


def dqn(**settings: Any) -> DQN:
    env = make("cartpole", num_envs=1)
    return DQN(q_policy(env.obs_spec, env.action_spec, SMALL), DQNConfig(**settings))


def sac() -> SAC:
    env = make("pendulum", num_envs=1)
    policy = ActorPolicy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(16,), head="squashed_gaussian"))
    return SAC(policy, QFunction(env.obs_spec, env.action_spec, QFunctionConfig(hidden_dims=(16,))), SACConfig())


def on_policy(kind: type, **settings: Any) -> Any:
    env = make("cartpole", num_envs=1)
    config = PolicyConfig(actor_hidden_dims=(16,), critic_hidden_dims=(16,))
    made = {PPO: PPOConfig, A2C: A2CConfig}[kind](**settings)
    return kind(Policy(env.obs_spec, env.action_spec, config), made)


@pytest.mark.parametrize(("make_core", "size"), [(dqn, 4), (sac, 3), (lambda: on_policy(PPO), 4)])
def test_forward_gives_act_state_and_policy(make_core, size):
    torch.manual_seed(0)
    policy = AlgorithmPolicy(make_core())
    obs = np.random.default_rng(0).normal(size=(5, size)).astype(np.float32)
    out = policy(Batch(obs=obs))
    assert len(out.act) == 5 and isinstance(out.act, np.ndarray) and out.get("state") is None
    assert policy.env_step == 5
    tensors = policy.eval()(Batch(obs=torch.from_numpy(obs)))
    assert isinstance(tensors.act, torch.Tensor) and policy.env_step == 5
    again = policy(Batch(obs=obs))
    np.testing.assert_array_equal(again.act, tensors.act)  # greedy: nothing is drawn
    single = policy(Batch(obs=[obs[0]])).act[0]
    np.testing.assert_allclose(single, again.act[0], atol=1e-6)


def test_ppo_stores_what_its_update_reads():
    policy = AlgorithmPolicy(on_policy(PPO))
    out = policy(Batch(obs=np.zeros((3, 4), np.float32)))
    assert out.policy.log_prob.shape == (3,) and out.policy.value.shape == (3,)
    assert out.policy.dist.log_probs.shape == (3, 2)


def test_dqn_explores_in_the_collecting_state_only():
    policy = AlgorithmPolicy(dqn(epsilon=Ramp(start=1.0, end=1.0, num_steps=1)))
    batch = Batch(obs=np.zeros((200, 4), np.float32))
    assert 50 < policy(batch).act.sum() < 150
    greedy = policy.eval()(batch).act
    assert len(set(greedy.tolist())) == 1
    policy.train()
    policy.updating = True
    np.testing.assert_array_equal(policy(batch).act, greedy)


def test_an_update_is_the_step_of_the_core():
    torch.manual_seed(3)
    mine, core = dqn(n_step=2, gamma=0.9), dqn(n_step=2, gamma=0.9)
    core.load_state_dict(mine.state_dict())
    policy = AlgorithmPolicy(mine, seed=5)
    buffer = ReplayBuffer(50, seed=1)
    Collector(policy, make("cartpole", num_envs=1), buffer).collect(n_step=40, random=True)
    batch, index = ReplayBuffer.sample(buffer, 0)
    numbers = policy.update(0, buffer)
    # by hand: what two steps give and where they lead
    following = buffer.next(index)
    two = following != index
    sample = {
        "obs": {"state": torch.as_tensor(batch.obs)},
        "obs_next": {"state": torch.as_tensor(buffer.get(following, "obs_next"))},
        "act": torch.as_tensor(batch.act),
        "rew": torch.as_tensor(batch.rew + 0.9 * buffer.rew[following] * two, dtype=torch.float32),
        "discount": torch.as_tensor(np.where(two, 0.81, 0.9) * ~buffer.terminated[following], dtype=torch.float32),
        "valid": torch.ones(len(index), dtype=torch.bool),
    }
    name = next(iter(core.policy.obs_spec))
    sample["obs"], sample["obs_next"] = ({name: sample[key]["state"].reshape(-1, 4)} for key in ("obs", "obs_next"))
    noise = UpdateNoise(core.noise(), len(index), 5, torch.device("cpu")).at(0)
    expected = core.update(sample, None, noise)
    assert numbers["q_loss"] == pytest.approx(float(expected["q_loss"]), rel=1e-5)
    for one, two_ in zip(mine.policy.parameters(), core.policy.parameters()):
        torch.testing.assert_close(one, two_)


def test_priorities_follow_the_errors_or_the_setting_is_named():
    env = make("cartpole", num_envs=1)
    buffer = PrioritizedReplayBuffer(100, alpha=1.0, beta=0.4)
    plain = AlgorithmPolicy(dqn())
    Collector(plain, env, buffer).collect(n_step=50, random=True)
    with pytest.raises(ValueError, match="set prioritized=True"):
        plain.update(16, buffer)
    AlgorithmPolicy(dqn(prioritized=True)).update(0, buffer)
    assert len(np.unique(buffer.sample(0)[0].weight)) > 10


@pytest.mark.parametrize("kind", [PPO, A2C])
def test_advantages_are_gae_over_whole_episodes(kind):
    torch.manual_seed(0)
    algorithm = on_policy(kind, gamma=0.9, lam=0.7)
    policy = AlgorithmPolicy(algorithm)
    buffer = VectorReplayBuffer(400, 2)
    Collector(policy, make("cartpole", num_envs=2), buffer).collect(n_episode=4)
    batch, index = buffer.sample(0)
    policy.process_fn(batch, buffer, index)
    value = batch.policy.value
    advantage = np.zeros(len(index))
    for i in reversed(range(len(index))):
        end = bool(batch.done[i])
        following = 0.0 if batch.terminated[i] else value[i + 1]
        delta = batch.rew[i] + 0.9 * following - value[i]
        advantage[i] = delta + (0.0 if end else 0.9 * 0.7 * advantage[i + 1])
    np.testing.assert_allclose(batch.advantage, advantage, atol=1e-4)
    np.testing.assert_allclose(batch.returns, advantage + value, atol=1e-4)


def test_ppo_takes_the_passes_that_it_is_told():
    algorithm = on_policy(PPO, num_learning_epochs=1, num_mini_batches=1)
    policy = AlgorithmPolicy(algorithm)
    buffer = ReplayBuffer(400)
    Collector(policy, make("cartpole", num_envs=1), buffer).collect(n_episode=3)
    numbers = policy.update(0, buffer, batch_size=10, repeat=3)
    assert len(numbers["surrogate_loss"]) == 3 * (len(buffer) // 10)
    assert numbers["ratio_error"][0] < 1e-5  # the first ratio is 1
    assert len(policy.update(0, buffer)["surrogate_loss"]) == 1  # the algorithm's own settings
    assert algorithm.config.num_learning_epochs == 1


def test_what_cannot_be_done_is_said():
    with pytest.raises(ValueError, match="A2C takes one gradient step"):
        policy = AlgorithmPolicy(on_policy(A2C))
        buffer = ReplayBuffer(100)
        Collector(policy, make("cartpole", num_envs=1), buffer).collect(n_episode=1)
        policy.update(0, buffer, batch_size=2, repeat=1)
    with pytest.raises(ValueError, match="collected with random=True"):
        policy = AlgorithmPolicy(on_policy(PPO))
        buffer = ReplayBuffer(100)
        Collector(policy, make("cartpole", num_envs=1), buffer).collect(n_step=20, random=True)
        policy.update(0, buffer)
    with pytest.raises(TypeError, match="wants an algorithm such as DQN"):
        AlgorithmPolicy(object())
    env = make("cartpole", num_envs=1)
    config = PolicyConfig(actor=(Remember(hidden_size=4),), actor_hidden_dims=(4,), critic_hidden_dims=(4,))
    with pytest.raises(ValueError, match="a policy with memory"):
        AlgorithmPolicy(PPO(Policy(env.obs_spec, env.action_spec, config)))
    with pytest.raises(ValueError, match=r"wants shape \[B, 4\], found \[2, 3\]"):
        AlgorithmPolicy(dqn())(Batch(obs=np.zeros((2, 3))))


@pytest.mark.slow
def test_both_trainers_run_our_algorithms():
    torch.manual_seed(0)
    policy = AlgorithmPolicy(sac())
    train = Collector(policy, make("pendulum", num_envs=2), VectorReplayBuffer(400, 2))
    test = Collector(policy, make("pendulum", num_envs=2))
    train.collect(n_step=40, random=True)
    result = offpolicy_trainer(policy, train, test, 1, 6, 2, 2, 16)
    assert result["train_step"] == 12 and -2000 < result["best_reward"] < 0
    learner = AlgorithmPolicy(on_policy(PPO, learning_rate=3e-3))
    train = Collector(learner, make("cartpole", num_envs=4), VectorReplayBuffer(4000, 4))
    test = Collector(learner, make("cartpole", num_envs=4))
    result = onpolicy_trainer(learner, train, test, 1, 20, 4, 2, 4, 64)
    assert result["gradient_step"] >= 20 and result["best_reward"] > 5


def test_an_observation_that_its_dtype_cannot_hold_is_refused():
    spec = ObsSpec({"cell": ComponentSpec(dtype="int64", num_choices=(4,))})
    policy = AlgorithmPolicy(DQN(q_policy(spec, DiscreteSpec(n=2), SMALL), DQNConfig()))
    assert len(policy(Batch(obs=np.array([1.0, 3.0]))).act) == 2
    with pytest.raises(TypeError, match="'cell' wants int64"):
        policy(Batch(obs=np.array([1.0, 2.7])))  # 2 as a whole number
