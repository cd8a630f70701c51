"""Policies of Tianshou 0.3: the parts of `BasePolicy`, its states, `forward` and `process_fn`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from striderl.compat.tianshou.data import Batch, Collector, PrioritizedReplayBuffer, ReplayBuffer
from striderl.compat.tianshou.env import DummyVectorEnv
from striderl.compat.tianshou.policy import BasePolicy
from striderl.compat.tianshou.trainers import offpolicy_trainer


class OldGym:
    """An env of older Gym: reset returns the observation, step four values; its episodes have five steps."""

    def __init__(self, nested: bool = False) -> None:
        from gymnasium.spaces import Box, Discrete

        self.observation_space, self.action_space = Box(-10, 10, (2,)), Discrete(3)
        self.nested, self.time = nested, 0

    def _obs(self) -> Any:
        obs = np.array([self.time, 1.0], np.float32)
        return {"index": obs, "more": {"twice": 2 * obs}} if self.nested else obs

    def reset(self) -> Any:
        self.time = 0
        return self._obs()

    def step(self, action: Any) -> Any:
        self.time += 1
        return self._obs(), float(action), self.time == 5, {"time": self.time}

    def close(self) -> None:
        return


class Net(BasePolicy):
    """Q-values of a linear network, and what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(2, 3)
        self._gamma = 0.9
        self.states: list[tuple[str, bool, bool]] = []
        self.seen: list[Batch] = []

    def forward(self, batch: Batch, state: Any = None, eps: float = 0.5, **kwargs: Any) -> Batch:
        self.states.append(("forward", self.training, self.updating))
        self.seen.append(batch)
        obs = batch.obs["index"] if isinstance(batch.obs, Batch) else batch.obs
        logits = self.model(torch.as_tensor(obs))
        return Batch(act=logits.argmax(-1), logits=logits, policy=Batch(best=logits.max(-1).values))

    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, float]:
        self.states.append(("learn", self.training, self.updating))
        return {"loss": 1.0}


def filled(buffer: ReplayBuffer, num: int = 12) -> ReplayBuffer:
    """Steps of two numbers, rewards 0, 1, 2 and so on, episodes of four steps."""
    for i in range(num):
        obs = np.array([i, 1.0], np.float32)
        buffer.add(obs=obs, act=i % 3, rew=float(i), done=i % 4 == 3, obs_next=obs + 1, info={})
    return buffer


@pytest.mark.described("tianshou", 148, "An algorithm is a class that derives from BasePolicy.")
@pytest.mark.described("tianshou", 150, "__init__ sets up the policy with the user's own model.")
@pytest.mark.described("tianshou", 151, "forward computes actions of given observations.")
def test_a_class_of_ones_own() -> None:
    policy = Net()
    assert isinstance(policy, nn.Module) and len(list(policy.parameters())) == 2
    batch = Batch(obs=np.zeros((4, 2), np.float32))
    assert policy(batch).act.shape == (4,)
    policy.load_state_dict(policy.state_dict())


@pytest.mark.described(
    "tianshou", 152, "process_fn works on a sample with the buffer before learning, such as for GAE."
)
@pytest.mark.described("tianshou", 153, "learn updates the policy with one Batch.")
@pytest.mark.described("tianshou", 154, "post_process_fn updates the buffer with the Batch, such as its priorities.")
@pytest.mark.described(
    "tianshou", 155, "update samples a Batch and calls process_fn, learn and post_process_fn in order."
)
def test_the_parts_of_an_update() -> None:
    calls: list[Any] = []

    class Own(Net):
        def process_fn(self, batch, buffer, indice):
            calls.append(("process_fn", len(batch), (buffer.rew[indice] == batch.rew).all()))
            batch.returns = batch.rew
            return batch

        def learn(self, batch, scale=1.0, **kwargs):
            calls.append(("learn", "returns" in batch, scale))
            batch.weight = np.full(len(batch.rew), 5.0)
            return {"loss": 2.0, "each": [1.0, 3.0]}

        def post_process_fn(self, batch, buffer, indice):
            calls.append(("post_process_fn", hasattr(buffer, "update_weight")))
            super().post_process_fn(batch, buffer, indice)

    buffer = filled(PrioritizedReplayBuffer(20, alpha=1.0, beta=0.4))
    assert Own().update(6, buffer, scale=3.0) == {"loss": 2.0, "each": [1.0, 3.0]}
    assert calls == [("process_fn", 6, True), ("learn", True, 3.0), ("post_process_fn", True)]
    assert np.isclose(buffer.weight, 5.0).any()
    calls.clear()
    Own().update(0, filled(ReplayBuffer(20)))
    assert calls[0] == ("process_fn", 12, True) and calls[2] == ("post_process_fn", False)


@pytest.mark.described("tianshou", 171, "While data are collected, training is True and updating False.")
@pytest.mark.described("tianshou", 173, "While the policy is updated, training and updating are True.")
@pytest.mark.described("tianshou", 175, "While it is tested, training and updating are False.")
@pytest.mark.described("tianshou", 163, "Training alternates between collecting and updating.")
def test_the_table_of_states() -> None:
    policy = Net()
    train, test = Collector(policy, OldGym(), ReplayBuffer(100)), Collector(policy, OldGym())
    offpolicy_trainer(policy, train, test, 1, 2, 5, 1, 4, verbose=False)
    assert (
        policy.states
        == [("forward", True, False)] * 5
        + [("learn", True, True)]
        + [("forward", True, False)] * 5
        + [("learn", True, True)]
        + [("forward", False, False)] * 5
    )


@pytest.mark.described("tianshou", 178, "updating tells a Q-learning policy when to explore.")
def test_exploring_while_collecting_alone() -> None:
    from striderl.compat.tianshou.net.common import Net as Mlp
    from striderl.compat.tianshou.policy import DQNPolicy

    model = Mlp(0, 2, 3)
    policy = DQNPolicy(model, torch.optim.Adam(model.parameters()))
    policy.set_eps(1.0)
    batch = Batch(obs=np.zeros((300, 2), np.float32))
    assert len(set(policy(batch).act.tolist())) == 3
    policy.updating = True
    assert len(set(policy(batch).act.tolist())) == 1


@pytest.mark.described("tianshou", 185, "forward is (batch, state, …) → batch.")
@pytest.mark.described(
    "tianshou", 187, "The input has observation, reward, done and info, each with the batch size first."
)
@pytest.mark.described("tianshou", 187, "The input comes from Collector.collect or from ReplayBuffer.sample.")
@pytest.mark.described("tianshou", 189, "The output must have act; policy is stored in the buffer; other keys are not.")
def test_what_forward_is_given_and_what_is_stored() -> None:
    policy, buffer = Net(), ReplayBuffer(100)
    collector = Collector(policy, DummyVectorEnv([OldGym, OldGym]), buffer)
    collector.collect(n_step=4)
    shown = policy.seen[2]
    assert shown.obs.shape == (2, 2) and shown.rew.shape == (2,) and shown.done.tolist() == [False, False]
    assert shown.info.time.tolist() == [2, 2] and shown.info.env_id.tolist() == [0, 1]
    sampled, _ = buffer.sample(3)
    assert sampled.policy.best.shape == (3,) and "logits" not in sampled and sampled.info.time.shape == (3,)
    assert policy(sampled).act.shape == (3,)

    class Wrong(Net):
        def forward(self, batch, state=None, **kwargs):
            return Batch(logits=np.zeros(len(batch.obs)))

    with pytest.raises(KeyError, match=r"Wrong\.forward must return a Batch with 'act'"):
        Collector(Wrong(), OldGym()).collect(n_step=1)


@pytest.mark.described("tianshou", 189, "state holds the memory of an RNN; it comes back with the next step.")
def test_memory_goes_through_the_collector() -> None:
    seen = []

    class Counting(Net):
        def forward(self, batch, state=None, **kwargs):
            seen.append(None if state is None else state.copy())
            count = np.ones((len(batch.obs), 1)) if state is None else state + 1
            return Batch(act=np.zeros(len(batch.obs), np.int64), state=count)

    buffer = ReplayBuffer(50)
    Collector(Counting(), OldGym(), buffer).collect(n_step=6)
    assert seen[0] is None and [int(each[0, 0]) for each in seen[1:]] == [1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert buffer.policy._state[:5, 0].tolist() == [1, 2, 3, 4, 5]  # what it returned at each step


@pytest.mark.described("tianshou", 194, "A policy plays an episode in a loop of one's own, with Batch(obs=[obs]).")
@pytest.mark.described("tianshou", 201, "Batch(obs=[obs]) gives every part of the observation a first dimension of 1.")
@pytest.mark.parametrize("nested", [False, True])
def test_the_loop_of_one_episode(nested: bool) -> None:
    env, policy, steps = OldGym(nested), Net(), 0
    obs, done = env.reset(), False
    while not done:
        batch = Batch(obs=[obs])
        act = policy(batch).act[0]
        obs, rew, done, info = env.step(act)
        steps += 1
    assert steps == 5 == info["time"] and rew == float(act)
    if nested:
        assert batch.obs.index.shape == (1, 2) and batch.obs.more.twice.shape == (1, 2)
    else:
        assert batch.obs.shape == (1, 2)


@pytest.mark.described("tianshou", 209, "process_fn computes what depends on time, such as n-step and GAE returns.")
@pytest.mark.described("tianshou", 213, "The 2-step target is r + γ r' + γ² max Q of what followed.")
@pytest.mark.described(
    "tianshou",
    236,
    "A 2-step DQN reads its neighbours in the buffer inside process_fn.",
    difference="self(…) returns a Batch, so the values are its logits and .max(…) gives them as .values",
)
@pytest.mark.described("tianshou", 233, "process_fn is given the replay buffer, the indices and the sampled batch.")
@pytest.mark.described("tianshou", 244, "buffer.obs[i] and buffer[i].obs are the same.")
def test_the_two_step_dqn() -> None:
    class DQN_2step(Net):
        def process_fn(self, batch, buffer, indice):
            buffer_len = len(buffer)
            batch_2 = buffer[(indice + 2) % buffer_len]
            assert (batch_2.obs == buffer.obs[(indice + 2) % buffer_len]).all()
            Q = self(batch_2, eps=0).logits  # shape: (batch_size, action_shape)
            maxQ = Q.max(dim=-1).values.detach().numpy()
            batch.returns = batch.rew + self._gamma * buffer.rew[(indice + 1) % buffer_len] + self._gamma**2 * maxQ
            return batch

    policy, buffer = DQN_2step(), filled(ReplayBuffer(12))
    batch, indice = buffer.sample(8)
    found = policy.process_fn(batch, buffer, indice).returns
    with torch.no_grad():
        following = policy.model(torch.as_tensor(buffer.obs[(indice + 2) % 12])).max(-1).values.numpy()
    expected = buffer.rew[indice] + 0.9 * buffer.rew[(indice + 1) % 12] + 0.81 * following
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.described("tianshou", 252, "The 2-step example does not treat done; compute_nstep_return does.")
def test_two_steps_that_stop_at_the_end_of_an_episode() -> None:
    buffer = filled(ReplayBuffer(12))
    batch, indice = buffer.sample(0)
    out = BasePolicy.compute_nstep_return(
        batch, buffer, indice, lambda buf, last: torch.full((len(last), 1), 10.0), gamma=0.5, n_step=2
    )
    # step 2: 2 + 0.5·3, the episode ends; step 3: 3 alone; step 0: 0 + 0.5·1 + 0.25·10
    assert out.returns.shape == (12,) and out.returns[:4].tolist() == [3.0, 4.5, 3.5, 3.0]


def test_rewards_are_normalised_and_weights_become_tensors() -> None:
    buffer = filled(PrioritizedReplayBuffer(12, alpha=0.6, beta=0.4))
    batch, indice = buffer.sample(5)
    out = BasePolicy.compute_nstep_return(
        batch, buffer, indice, lambda buf, last: torch.zeros(len(last)), 0.9, 1, rew_norm=True
    )
    rewards = np.arange(12.0)
    np.testing.assert_allclose(out.returns, (rewards[indice] - rewards.mean()) / rewards.std(), rtol=1e-5)
    assert isinstance(out.weight, torch.Tensor) and out.weight.dtype == out.returns.dtype
    assert (out.weight * out.returns).shape == (5,)


@pytest.mark.described("tianshou", 215, "γ is in [0, 1].")
def test_discounts_outside_are_refused() -> None:
    from striderl.compat.tianshou.policy import PGPolicy

    model = nn.Linear(2, 2)
    with pytest.raises(AssertionError, match=r"discount_factor is in \[0, 1\], found 1\.5"):
        PGPolicy(model, torch.optim.Adam(model.parameters()), torch.distributions.Categorical, 1.5)
