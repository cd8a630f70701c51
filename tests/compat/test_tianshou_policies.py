"""Policies, networks, noise and conversions in the words of Tianshou: constructors, losses, what they store."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from striderl.compat.tianshou.data import (
    Batch,
    Collector,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    SegmentTree,
    to_numpy,
    to_torch,
    to_torch_as,
)
from striderl.compat.tianshou.env import DummyVectorEnv, MultiAgentEnv
from striderl.compat.tianshou.exploration import GaussianNoise, OUNoise
from striderl.compat.tianshou.net import continuous, discrete
from striderl.compat.tianshou.net.common import Net, Recurrent
from striderl.compat.tianshou.policy import (
    A2CPolicy,
    BasePolicy,
    DDPGPolicy,
    DiscreteSACPolicy,
    DQNPolicy,
    ImitationPolicy,
    MultiAgentPolicyManager,
    PGPolicy,
    PPOPolicy,
    PSRLPolicy,
    RandomPolicy,
    SACPolicy,
    TD3Policy,
)
from striderl.compat.tianshou.trainers import MovAvg


def adam(*nets: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([each for net in nets for each in net.parameters()], lr=1e-3)


def features(num_inputs: int = 4, **settings: Any) -> Net:
    return Net(0, num_inputs, hidden_layer_size=16, **settings)


def on_policy(kind: Any, **settings: Any) -> Any:
    actor = discrete.Actor(features(), 2, 16)
    if kind is PGPolicy:
        return PGPolicy(actor, adam(actor), Categorical, **settings)
    critic = discrete.Critic(features(), 16)
    return kind(actor, critic, adam(actor, critic), Categorical, **settings)


def twin(kind: Any, **settings: Any) -> Any:
    def critic() -> nn.Module:
        return continuous.Critic(features(3, action_shape=1, concat=True), hidden_layer_size=16)

    one, two = critic(), critic()
    if kind is SACPolicy:
        actor: Any = continuous.ActorProb(features(3), 1, 2.0, unbounded=True, hidden_layer_size=16)
    else:
        actor = continuous.Actor(features(3), 1, 2.0, hidden_layer_size=16)
    parts = (one, adam(one)) if kind is DDPGPolicy else (one, adam(one), two, adam(two))
    return kind(actor, adam(actor), *parts, (-2.0, 2.0), **settings)


def discrete_sac() -> DiscreteSACPolicy:
    actor, one, two = discrete.Actor(features(), 2, 16, softmax_output=False), Net(0, 4, 2), Net(0, 4, 2)

    class Values(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, obs: Any) -> Any:
            return self.net(obs)[0]

    critics = Values(one), Values(two)
    return DiscreteSACPolicy(actor, adam(actor), critics[0], adam(one), critics[1], adam(two), alpha=0.1)


def dqn(**settings: Any) -> DQNPolicy:
    model = Net(0, 4, 2, hidden_layer_size=16)
    return DQNPolicy(model, adam(model), **settings)


CARTPOLE = {
    "pg": lambda: on_policy(PGPolicy),
    "a2c": lambda: on_policy(A2CPolicy, max_grad_norm=0.5),
    "ppo": lambda: on_policy(PPOPolicy, dual_clip=5.0),
    "ppo, plain": lambda: on_policy(PPOPolicy, value_clip=False, reward_normalization=False, max_grad_norm=0.5),
    "dqn": lambda: dqn(estimation_step=3, target_update_freq=2),
    "dqn without target": lambda: dqn(reward_normalization=True),
    "discrete sac": discrete_sac,
}
PENDULUM = {
    "ddpg": lambda: twin(DDPGPolicy, ignore_done=True),
    "td3": lambda: twin(TD3Policy, policy_noise=0.1, update_actor_freq=2),
    "sac": lambda: twin(SACPolicy, alpha=0.2, estimation_step=2),
    "sac with learned alpha": lambda: twin(SACPolicy, alpha=learned_alpha()),
}


def learned_alpha() -> Any:
    log_alpha = torch.zeros(1, requires_grad=True)
    return -1.0, log_alpha, torch.optim.Adam([log_alpha], lr=1e-3)


def collected(policy: BasePolicy, task: str, buffer: ReplayBuffer) -> ReplayBuffer:
    short = {"max_episode_steps": 12}
    envs = DummyVectorEnv([lambda: gymnasium.make(task, **short) for _ in range(2)])
    envs.seed(0)
    Collector(policy, envs, buffer).collect(n_step=24)
    envs.close()
    return buffer


def changes(policy: BasePolicy, buffer: ReplayBuffer, **kwargs: Any) -> dict[str, Any]:
    """Update once, check that parameters moved and numbers are finite, and return the numbers."""
    before = [value.clone() for value in policy.parameters()]
    numbers = policy.update(0 if kwargs else 16, buffer, **kwargs)
    assert any((one != two).any() for one, two in zip(before, policy.parameters()))
    assert all(np.isfinite(value).all() for value in numbers.values())
    return numbers


@pytest.mark.parametrize("name", [*CARTPOLE, *PENDULUM])
def test_policies_collect_and_learn(name: str) -> None:
    policy: Any = (CARTPOLE | PENDULUM)[name]()
    buffer = collected(policy, "CartPole-v1" if name in CARTPOLE else "Pendulum-v1", ReplayBuffer(200))
    if isinstance(policy, PGPolicy):
        losses = changes(policy, buffer, batch_size=8, repeat=2)
        assert all(len(each) == 2 * (len(buffer) // 8) for each in losses.values())
    else:
        changes(policy, buffer)
    assert policy.eval().training is False and policy.train().training


@pytest.mark.parametrize("kind", ["dqn", "ddpg", "td3", "sac"])
def test_priorities_follow_the_errors(kind: str) -> None:
    policy: Any = (CARTPOLE | PENDULUM)[kind]()
    task = "CartPole-v1" if kind == "dqn" else "Pendulum-v1"
    buffer = collected(policy, task, PrioritizedReplayBuffer(200, alpha=0.6, beta=0.4))
    assert len(np.unique(buffer.weight[: len(buffer)])) == 1
    changes(policy, buffer)
    assert len(np.unique(buffer.weight[: len(buffer)])) > 5


def test_targets_stay_in_evaluation_and_follow() -> None:
    policy = dqn(target_update_freq=2)
    assert not policy.train().model_old.training and policy.model.training
    soft = twin(DDPGPolicy, tau=0.25)
    old, new = (next(net.parameters()) for net in (soft.critic_old, soft.critic))
    with torch.no_grad():
        new.add_(1.0)
    expected = 0.75 * old.detach() + 0.25 * new.detach()
    soft.sync_weight()
    torch.testing.assert_close(old, expected)


def test_ignore_done_goes_on_after_the_end_of_the_task() -> None:
    buffer = ReplayBuffer(4)
    buffer.add(np.ones(3, np.float32), np.zeros(1, np.float32), 1.0, True, np.ones(3, np.float32), {})
    for ignore in (False, True):
        policy = twin(DDPGPolicy, ignore_done=ignore, gamma=0.5)
        policy._target_q = lambda buffer, last: torch.full((len(last), 1), 8.0)
        batch, index = buffer.sample(2)
        assert policy.process_fn(batch, buffer, index).returns.tolist() == ([5.0, 5.0] if ignore else [1.0, 1.0])


def test_masked_actions_are_never_chosen() -> None:
    policy = dqn()
    mask = np.tile([False, True], (50, 1))
    batch = Batch(obs=Batch(obs=np.random.randn(50, 4).astype(np.float32), mask=mask))
    for eps in (0.0, 1.0):
        policy.set_eps(eps)
        assert (policy(batch).act == 1).all()
    assert (RandomPolicy()(batch).act == 1).all()


def test_noise_while_collecting_and_within_the_range() -> None:
    policy = twin(DDPGPolicy, exploration_noise=GaussianNoise(sigma=50.0))
    batch = Batch(obs=np.zeros((40, 3), np.float32))
    noisy = policy(batch).act
    assert set(noisy.abs().flatten().tolist()) == {2.0}
    policy.updating = True
    assert len(set(policy(batch).act.flatten().tolist())) == 1
    policy.updating = False
    policy.set_exp_noise(None)
    assert len(set(policy(batch).act.flatten().tolist())) == 1


def test_imitation_of_both_kinds() -> None:
    class LogProbs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(0, 4, 2)

        def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
            return self.net(obs)[0].log_softmax(-1), state

    model = LogProbs()
    policy = ImitationPolicy(model, torch.optim.Adam(model.parameters(), lr=0.01), mode="discrete")
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    batch = Batch(obs=obs, act=(obs[:, 0] > 0).astype(np.int64))
    losses = [policy.learn(batch)["loss"] for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0] and (policy(batch).act.numpy() == batch.act).mean() > 0.8
    line = Net(0, 4, 1)
    regression = ImitationPolicy(line, torch.optim.Adam(line.parameters(), lr=0.01))
    batch = Batch(obs=obs, act=obs[:, :1])
    losses = [regression.learn(batch)["loss"] for _ in range(60)]
    assert losses[-1] < 0.3 * losses[0]
    with pytest.raises(AssertionError, match="'continuous' or 'discrete', found 'both'"):
        ImitationPolicy(line, adam(line), mode="both")


class Turns(MultiAgentEnv):
    """Two agents move in turn, three times each; agent 1 gets what agent 2 loses."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 9, (4,))
        self.action_space = gymnasium.spaces.Discrete(2)

    def _obs(self) -> Any:
        return {"agent_id": self.time % 2 + 1, "obs": np.full(4, self.time, np.float32), "mask": np.array([True, True])}

    def reset(self) -> Any:
        self.time = 0
        return self._obs()

    def step(self, action: Any) -> Any:
        self.time += 1
        return self._obs(), np.array([1.0, -1.0]), self.time == 6, {}


def test_several_agents_take_turns() -> None:
    policies = [dqn(discount_factor=0.0), RandomPolicy()]
    manager = MultiAgentPolicyManager(policies)
    assert [policy.agent_id for policy in policies] == [1, 2]
    buffer = ReplayBuffer(50)
    envs = DummyVectorEnv([Turns, Turns])
    result = Collector(manager, envs, buffer, reward_metric=lambda rew: rew[0]).collect(n_episode=2)
    assert result["rew"] == 6.0 and buffer.rew.shape == (50, 2)
    batch, index = buffer.sample(0)
    out = manager.process_fn(batch, buffer, index)
    assert out.agent_1.returns.tolist() == [1.0] * 6 and out.agent_2.rew.tolist() == [-1.0] * 6
    assert buffer.rew.shape == (50, 2)  # the buffer is as it was
    assert set(manager.update(0, buffer)) == {"agent_1/loss"}
    manager.replace_policy(RandomPolicy(), 1)
    assert manager.update(0, buffer) == {}


def test_posterior_sampling_finds_the_end_of_a_chain() -> None:
    # five states; action 0 goes on, and pays 10 in the last one; action 1 goes back to the first and pays 2
    class Chain(gymnasium.Env[Any, Any]):
        observation_space, action_space = gymnasium.spaces.Discrete(5), gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.state, self.time = 0, 0
            return self.state, {}

        def step(self, action: Any) -> Any:
            self.time += 1
            reward = 2.0 if action == 1 else 10.0 * (self.state == 4)
            self.state = 0 if action == 1 else min(self.state + 1, 4)
            return self.state, reward, False, self.time == 50, {}

    np.random.seed(0)
    policy = PSRLPolicy(np.ones((5, 2, 5)), np.full((5, 2), 5.0), np.full((5, 2), 3.0), 0.95, 0.01)
    buffer = ReplayBuffer(2000)
    collector = Collector(policy, Chain(), buffer)
    returns = []
    for _ in range(20):
        returns.append(collector.collect(n_episode=1)["rew"])
        policy.update(0, buffer)
        buffer.reset()
    assert max(returns[-5:]) > 300  # going back all the time pays 100, going on 460


# -- networks and small parts ------------------------------------------------------------------------------------------


def test_networks_have_the_shapes_and_names_of_tianshou() -> None:
    obs = np.random.randn(7, 3, 2)
    assert Net(2, (3, 2), (4,), norm_layer=nn.LayerNorm)(obs)[0].shape == (7, 4)
    dueling = Net(1, (3, 2), 4, dueling=(1, 2), softmax=True)
    assert torch.allclose(dueling(obs)[0].sum(-1), torch.ones(7)) and {"Q", "V", "model"} <= set(
        dict(dueling.named_children())
    )
    logits, memory = Recurrent(2, 3, 4, hidden_layer_size=8)(np.random.randn(7, 5, 3))
    assert logits.shape == (7, 4) and memory["h"].shape == memory["c"].shape == (7, 2, 8)
    again, _ = Recurrent(2, 3, 4, hidden_layer_size=8)(np.random.randn(7, 3), Batch(memory))
    assert again.shape == (7, 4)
    (mean, deviation), _ = continuous.RecurrentActorProb(1, (3,), (2,), max_action=0.5, hidden_layer_size=8)(
        np.random.randn(7, 3)
    )
    assert mean.shape == deviation.shape == (7, 2) and mean.abs().max() <= 0.5
    critic = continuous.RecurrentCritic(1, (3,), (2,), hidden_layer_size=8)
    assert critic(np.random.randn(7, 4, 3), np.random.randn(7, 2)).shape == (7, 1)
    with pytest.raises(ValueError, match=r"stacks of steps \[B, T, …\], found \[7, 3\]"):
        critic(np.random.randn(7, 3))
    assert discrete.DQN(1, 44, 36, 3)(np.zeros((2, 1, 44, 36)))[0].shape == (2, 3)
    assert set(continuous.ActorProb(features(3), 1, hidden_layer_size=16).state_dict()) == {
        "sigma", "preprocess.model.0.weight", "preprocess.model.0.bias", "mu.weight", "mu.bias"
    }  # fmt: skip


def test_memory_of_a_network_in_a_stacking_buffer() -> None:
    net = Recurrent(1, 4, 2, hidden_layer_size=8)
    policy = DQNPolicy(net, adam(net), estimation_step=2, target_update_freq=2)
    buffer = collected(policy, "CartPole-v1", ReplayBuffer(200, stack_num=3, ignore_obs_next=True))
    assert buffer.sample(5)[0].obs.shape == (5, 3, 4)
    changes(policy, buffer)


def test_normal_policies_have_one_ratio_per_action() -> None:
    actor = continuous.ActorProb(features(3), 1, 2.0, unbounded=True, hidden_layer_size=16)
    critic = continuous.Critic(features(3), hidden_layer_size=16)
    for dist_fn in (Normal, lambda *logits: Independent(Normal(*logits), 1)):
        policy = PPOPolicy(actor, critic, adam(actor, critic), dist_fn, action_range=(-2.0, 2.0))
        buffer = collected(policy, "Pendulum-v1", ReplayBuffer(200))
        assert np.abs(buffer.act[: len(buffer)]).max() <= 2.0
        losses = changes(policy, buffer, batch_size=12, repeat=1)
        assert set(losses) == {"loss", "loss/clip", "loss/vf", "loss/ent"}


def test_noise_of_both_kinds() -> None:
    np.random.seed(0)
    assert abs(GaussianNoise(3.0, 0.1)((1000,)).mean() - 3.0) < 0.02
    noise = OUNoise(sigma=0.0, theta=1.0, dt=0.5, mu=8.0)
    assert noise((2,)).tolist() == [4, 4] and noise((2,)).tolist() == [6, 6]  # half of the way each time
    noise.reset()
    assert noise((2,)).tolist() == [4, 4]
    with pytest.raises(AssertionError, match="sigma is 0 or more"):
        GaussianNoise(sigma=-1.0)


def test_conversions() -> None:
    nested = {"a": [torch.ones(2), torch.zeros(2)], "b": Batch(c=torch.ones(1)), "d": 3}
    arrays = to_numpy(nested)
    assert arrays["a"].shape == (2, 2) and isinstance(arrays["b"].c, np.ndarray) and arrays["d"].item() == 3
    assert isinstance(nested["b"].c, torch.Tensor)  # a copy
    ragged = to_torch([np.zeros(2), np.zeros(3)], torch.float32)
    assert isinstance(ragged, list) and ragged[1].dtype is torch.float32
    assert to_torch(np.float32(1.5)).dtype is torch.float32
    assert to_torch_as(np.arange(2), torch.zeros(1, dtype=torch.float64)).dtype is torch.float64
    for wrong in (None, np.array([{}, "2"], object)):
        with pytest.raises(TypeError):
            to_torch(wrong)


def test_sums_over_a_tree() -> None:
    tree, plain = SegmentTree(5), np.zeros(5)
    random = np.random.default_rng(0)
    for _ in range(50):
        index = random.integers(0, 5, 3)
        tree[index] = plain[index] = random.random(3)[random.integers(0, 3, 3) * 0]
        start, stop = sorted(random.integers(0, 6, 2))
        assert tree.reduce(start, stop) == pytest.approx(plain[start:stop].sum())
    assert tree.reduce(end=-1) == pytest.approx(plain[:-1].sum()) and len(tree) == 5
    sums = plain.cumsum()
    found = tree.get_prefix_sum_idx(np.linspace(0.0, 0.999 * sums[-1], 40))
    assert found.tolist() == [int(np.searchsorted(sums, each)) for each in np.linspace(0.0, 0.999 * sums[-1], 40)]
    with pytest.raises(IndexError):
        tree[5]
    with pytest.raises(AssertionError):
        tree.get_prefix_sum_idx(sums[-1])


def test_moving_averages() -> None:
    stat = MovAvg(3)
    assert stat.get() == stat.std() == 0.0
    assert stat.add([1, 2, np.inf]) == 1.5 and stat.add(torch.tensor([3.0, np.nan])) == 2.0
    assert stat.add(7) == 4.0 and stat.mean() == 4.0 and stat.std() == pytest.approx(np.std([2, 3, 7]))
