"""Collector, trainer and the whole picture of Tianshou 0.3, and an algorithm of one's own in its words alone."""

from __future__ import annotations

import copy
import logging
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from striderl.compat.tianshou import env_stepping
from striderl.compat.tianshou.data import Batch, Collector, ReplayBuffer, VectorReplayBuffer, to_torch
from striderl.compat.tianshou.env import DummyVectorEnv, SubprocVectorEnv
from striderl.compat.tianshou.exploration import GaussianNoise
from striderl.compat.tianshou.net.common import Net
from striderl.compat.tianshou.policy import BasePolicy, DQNPolicy
from striderl.compat.tianshou.trainers import offpolicy_trainer, onpolicy_trainer
from striderl.envs.classic_control.pendulum import Pendulum
from striderl.envs.workers.errors import EnvError


class Line(gymnasium.Env[Any, Any]):
    """Observation [env, time]; episodes of `size` steps that terminate, reward 1 at the end."""

    def __init__(self, size: int, name: int = 0) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 100, (2,))
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,))
        self.size, self.name, self.actions = size, name, []

    def _obs(self) -> Any:
        return np.array([self.name, self.time], np.float32)

    def reset(self, *, seed=None, options=None) -> Any:
        self.time = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        self.actions.append(float(np.asarray(action).ravel()[0]))
        return self._obs(), float(self.time == self.size), self.time == self.size, False, {"key": 10 * self.time}


class Still(BasePolicy):
    """Does nothing, for any number of envs."""

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        return Batch(act=np.zeros((len(batch.obs), 1), np.float32))

    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, Any]:
        return {"loss": [1.0, 2.0] if "repeat" in kwargs else 1.0}


def lines(*sizes: int, kind: Any = DummyVectorEnv) -> Any:
    return kind([lambda size=size, name=name: Line(size, name) for name, size in enumerate(sizes)])


def episodes(buffer: ReplayBuffer) -> list[list[float]]:
    """The times of the stored observations, episode by episode; every episode is of one env."""
    found, start = [], 0
    for end in np.flatnonzero(buffer.done[: len(buffer)]):
        assert len(set(buffer.obs[start : end + 1, 0])) == 1
        found.append(buffer.obs[start : end + 1, 1].tolist())
        start = int(end) + 1
    assert start == len(buffer)
    return found


@pytest.mark.described(
    "tianshou", 260, "collect lets policy and env interact for at least n_step steps and stores them."
)
@pytest.mark.described(
    "tianshou", 262, "One buffer takes the steps of many envs; each episode is moved in when it ends."
)
def test_at_least_so_many_steps() -> None:
    buffer = ReplayBuffer(100)
    collector = Collector(Still(), lines(2, 3, 4, 5), buffer)
    result = collector.collect(n_step=6)
    assert result["n/st"] == len(buffer) == 11 and result["n/ep"] == 4
    assert episodes(buffer) == [[0, 1], [0, 1, 2], [0, 1], [0, 1, 2, 3]]
    assert buffer.obs_next[:2, 1].tolist() == [1, 2]  # where it really ended
    collector.collect(n_step=1)  # what was under way goes on: the fourth env ends after one more step
    assert episodes(buffer)[4:] == [[0, 1, 2, 3, 4]]
    assert set(result) == {"n/ep", "n/st", "v/st", "v/ep", "rew", "len"} and result["rew"] == 1.0


@pytest.mark.described("tianshou", 260, "collect takes at least n_episode episodes instead; a list for each env.")
def test_at_least_so_many_episodes() -> None:
    buffer = ReplayBuffer(100)
    collector = Collector(Still(), lines(2, 3), buffer)
    assert collector.collect(n_episode=1)["n/ep"] == 1 and len(buffer) == 2
    assert collector.collect(n_episode=2)["n/ep"] == 2  # after 3 and 4 steps in all
    collector.reset()
    assert collector.collect(n_episode=[0, 3])["len"] == 3.0
    assert episodes(buffer) == [[0, 1, 2]] * 3 and set(buffer.obs[:9, 0]) == {1}
    for wrong in ({"n_step": 1, "n_episode": 1}, {}, {"n_step": 0}, {"n_episode": [1]}, {"n_episode": [0, 0]}):
        with pytest.raises(AssertionError):
            collector.collect(**wrong)


def test_processes_give_the_same_steps_as_one() -> None:
    one, two = ReplayBuffer(100), ReplayBuffer(100)
    Collector(Still(), lines(2, 3), one).collect(n_step=9)
    envs = lines(2, 3, kind=SubprocVectorEnv)
    Collector(Still(), envs, two).collect(n_step=9)
    envs.close()
    assert one[:] == two[:]


@pytest.mark.described("tianshou", 54, "The env's info is stored by the collector, and the policy sees it.")
def test_infos_are_kept() -> None:
    buffer = ReplayBuffer(100)
    Collector(Still(), lines(2, 3), buffer).collect(n_step=4)
    assert buffer.info.key[:5].tolist() == [10, 20, 10, 20, 30] and buffer.info.env_id[:5].tolist() == [0, 0, 1, 1, 1]


@pytest.mark.described(
    "tianshou",
    264,
    "An env whose done is never true wants a TimeLimit around it.",
    difference="the step that the clock ended is stored as truncated, and targets go on after it",
)
def test_a_time_limit_ends_episodes() -> None:
    buffer = ReplayBuffer(100)
    endless = gymnasium.wrappers.TimeLimit(Line(1_000_000), max_episode_steps=7)
    result = Collector(Still(), endless, buffer).collect(n_step=10)
    assert result["n/st"] == 14 and result["len"] == 7
    assert buffer.truncated[[6, 13]].all() and not buffer.terminated.any() and buffer.done[6]
    returns = BasePolicy.compute_nstep_return(Batch(), buffer, np.array([6]), lambda b, i: torch.ones(1), 0.5).returns
    assert returns.tolist() == [0.5]


def test_an_env_that_does_not_end_is_named_in_the_log(monkeypatch, caplog) -> None:
    monkeypatch.setattr(env_stepping, "LONG", 20)
    with caplog.at_level(logging.WARNING):
        Collector(Still(), Line(30), ReplayBuffer(50)).collect(n_step=1)
    assert "20 steps without the end of an episode; has the env a time limit?" in caplog.text


@pytest.mark.described("tianshou", 264, "n-step and GAE are simple because an episode lies in the buffer in one piece.")
def test_returns_of_interleaved_envs() -> None:
    buffer = ReplayBuffer(100)
    Collector(Still(), lines(2, 3), buffer).collect(n_episode=2)
    batch, _ = buffer.sample(0)
    found = BasePolicy.compute_episodic_return(batch, None, gamma=0.5, gae_lambda=1.0).returns
    assert found.tolist() == [0.5, 1.0, 0.25, 0.5, 1.0]


# -- what else a collector can do --------------------------------------------------------------------------------------


def test_preprocess_fn_changes_what_is_stored() -> None:
    keys: list[set[str]] = []

    def preprocess(**kwargs: Any) -> Batch:
        keys.append(set(kwargs))
        if "rew" not in kwargs:
            return Batch(obs=kwargs["obs"] + 100)
        return Batch(rew=kwargs["rew"] * 10, obs_next=kwargs["obs_next"] + 100)

    buffer = ReplayBuffer(20)
    result = Collector(Still(), lines(2, 3), buffer, preprocess).collect(n_step=2)
    assert keys[0] == {"obs"} and {"obs", "act", "rew", "done", "obs_next", "info", "policy"} <= keys[1]
    assert buffer.obs[:2].tolist() == [[100, 100], [100, 101]] and buffer.rew[:2].tolist() == [0, 10]
    assert result["rew"] == 10.0


def test_action_noise_is_executed_and_stored() -> None:
    env, buffer = Line(3), ReplayBuffer(20)
    Collector(Still(), env, buffer, action_noise=GaussianNoise(0.5, 0.0)).collect(n_step=3)
    assert env.actions == [0.5] * 3 and buffer.act[:3, 0].tolist() == [0.5] * 3


def test_reward_metric_makes_one_number() -> None:
    class Two(Line):
        def step(self, action: Any) -> Any:
            obs, rew, *rest = super().step(action)
            return obs, np.array([rew, 3 * rew]), *rest

    assert Collector(Still(), Two(2), reward_metric=lambda rew: rew[1]).collect(n_episode=2)["rew"] == 3.0
    with pytest.raises(AssertionError, match="the env gives 2 rewards"):
        Collector(Still(), Two(2)).collect(n_episode=1)


def test_no_grad_random_and_render() -> None:
    modes, shown = [], []

    class Noting(Still):
        def forward(self, batch, state=None, **kwargs):
            modes.append(torch.is_grad_enabled())
            return super().forward(batch)

    class Shown(Line):
        def render(self) -> None:
            shown.append(self.time)

    collector = Collector(Noting(), Shown(2))
    collector.collect(n_step=1)
    collector.collect(n_step=1, no_grad=False)
    assert modes == [False] * 2 + [True] * 2
    collector.collect(n_step=1, random=True, render=1e-4)
    assert len(modes) == 4 and shown == [1, 2]
    assert collector.get_env_num() == 1 and collector.collect_step == 6 and collector.collect_episode == 3
    collector.reset_stat()
    assert collector.collect_step == 0


def test_a_number_that_is_not_finite_ends_its_episode() -> None:
    class Broken(Line):
        def step(self, action: Any) -> Any:
            obs, rew, *rest = super().step(action)
            return obs, np.nan if self.time == 3 and self.name == 1 else rew, *rest

    buffer = ReplayBuffer(50)
    envs = DummyVectorEnv([lambda: Broken(4, 0), lambda: Broken(9, 1)])
    result = Collector(Still(), envs, buffer).collect(n_step=7)
    assert np.isfinite(buffer.rew[: len(buffer)]).all()
    assert result["n/st"] == len(buffer) and result["rew"] == 1.0
    bad = np.flatnonzero(buffer.obs[: len(buffer), 0] == 1)
    assert buffer.obs[bad, 1].tolist()[:2] == [0, 1] and buffer.next(int(bad[1])) == bad[1]  # nothing follows


@pytest.mark.parametrize(
    ("at", "wanted"),
    [
        (1, {"n_step": 7}),
        (1, {"n_step": 7, "whole_episodes": False}),
        (3, {"n_episode": 3}),
        (3, {"n_episode": [1, 1]}),
    ],
)
def test_envs_of_which_nothing_counts_are_an_error(at: int, wanted: Any) -> None:
    class Broken(Line):
        def step(self, action: Any) -> Any:
            obs, rew, *rest = super().step(action)
            return obs, np.nan if self.time == at else rew, *rest

    broken = DummyVectorEnv([lambda: Broken(9, 0), lambda: Broken(9, 1)])
    with pytest.raises(EnvError, match=r"envs 0, 1 spoiled 20 episodes in a row, .*: rewards are not finite"):
        Collector(Still(), broken, VectorReplayBuffer(50, 2)).collect(**wanted)
    if wanted != {"n_episode": [1, 1]}:  # one env that works is enough
        envs = DummyVectorEnv([lambda: Broken(9, 0), lambda: Line(70, 1)])
        assert Collector(Still(), envs, VectorReplayBuffer(300, 2)).collect(**wanted)["n/st"] >= 7
    ever = DummyVectorEnv([lambda: Broken(9, 0)])
    if at == 3:  # each episode breaks off, but its first two steps count
        assert Collector(Still(), ever, ReplayBuffer(300)).collect(n_step=100)["n/st"] == 100


def test_a_vec_env_of_which_nothing_is_valid_is_an_error() -> None:
    class Broken(Pendulum):
        def step(self, actions: Any) -> Any:
            step = super().step(actions)
            return step._replace(reward=step.reward * float("nan"))

    with pytest.raises(EnvError, match=r"no sample of 1000 steps of each env is valid: reward of env 0"):
        Collector(Still(), Broken(2), VectorReplayBuffer(50, 2)).collect(n_step=7, whole_episodes=True)


@pytest.mark.parametrize("wait_num", [1, 2])
def test_envs_that_are_ready_first_are_stepped_first(wait_num: int) -> None:
    buffer = ReplayBuffer(200)
    envs = SubprocVectorEnv([lambda i=i: Line(i + 2, i) for i in range(3)], wait_num=wait_num)
    result = Collector(Still(), envs, buffer).collect(n_episode=8)
    assert result["n/ep"] >= 8 and all(each == list(range(len(each))) for each in episodes(buffer))
    envs.close()


@pytest.mark.described("tianshou", 260, "The collector calls overrides in buffers and vector envs of one's own.")
def test_overrides_are_called() -> None:
    calls: list[str] = []

    class Adding(ReplayBuffer):
        def add(self, obs, act, rew, done, obs_next=None, info={}, policy={}, **kwargs):  # noqa: B006  as in Tianshou
            calls.append("add")
            return super().add(obs, act, 2 * rew, done, obs_next, info, policy, **kwargs)

    class Updating(ReplayBuffer):
        def update(self, buffer):
            calls.append(f"update {len(buffer)}")
            return super().update(buffer)

    class Counting(DummyVectorEnv):
        def step(self, action, id=None):
            calls.append("step")
            return super().step(action, id)

        def reset(self, id=None):
            calls.append("reset")
            return super().reset(id)

    buffer = Adding(10)
    Collector(Still(), Counting([lambda: Line(2)]), buffer).collect(n_step=2)
    assert calls == ["reset", "step", "step", "add", "add", "reset"] and buffer.rew[:2].tolist() == [0, 2]
    assert buffer.info.key[:2].tolist() == [10, 20] and buffer.terminated[:2].tolist() == [False, True]
    calls.clear()
    buffer = Updating(10)
    Collector(Still(), lines(2, 3), buffer).collect(n_step=4)
    assert calls == ["update 2", "update 3"] and episodes(buffer) == [[0, 1], [0, 1, 2]]

    class Resetting(Collector):
        def reset(self):
            self.num_calls = 0
            super().reset()

        def collect(self, *args, **kwargs):
            self.num_calls += 1
            return super().collect(*args, **kwargs)

    collector = Resetting(Still(), lines(2, 3), buffer)  # reset is called, the buffer keeps its steps
    collector.collect(n_step=4)
    assert collector.num_calls == 1 and len(buffer) == 10
    collector.reset()
    assert collector.num_calls == 0 and len(buffer) == 0


# -- the trainer -------------------------------------------------------------------------------------------------------


@pytest.mark.described("tianshou", 272, "A trainer holds the loop of collecting, updating and testing.")
@pytest.mark.described("tianshou", 272, "There are an on-policy and an off-policy trainer.")
@pytest.mark.described("tianshou", 274, "Trainers are functions, not classes.")
def test_both_trainers(capsys) -> None:
    policy, calls = Still(), []
    train, test = Collector(policy, lines(2, 3), ReplayBuffer(100)), Collector(policy, lines(2, 3))
    hooks: Any = {
        "train_fn": lambda epoch, step: calls.append(("train", epoch)),
        "test_fn": lambda epoch, step: calls.append(("test", epoch, policy.training)),
        "save_fn": lambda saved: calls.append("save"),
    }
    result = offpolicy_trainer(policy, train, test, 2, 3, 5, 4, 8, **hooks)
    assert calls[-1] == ("test", 2, False) and ("train", 1) in calls and calls.count("save") == 1
    assert {"train_step", "test_episode", "best_reward", "duration", "train_speed"} <= set(result)
    assert result["test_episode"] == 8  # two of each env in each of two epochs
    shown = capsys.readouterr()
    assert "Epoch #1: test_reward: 1.000000, best_reward: 1.000000 in #1" in shown.out and "Epoch #2:" in shown.err
    stopped = onpolicy_trainer(policy, train, test, 9, 3, 2, 4, 4, 8, stop_fn=lambda rew: rew >= 1.0, verbose=False)
    assert stopped["best_reward"] == 1.0 and capsys.readouterr() == ("", "")


# -- the whole picture -------------------------------------------------------------------------------------------------


@pytest.mark.described("tianshou", 285, "The pseudocode at the end: every line has its counterpart.")
@pytest.mark.described("tianshou", 218, "The loop without Tianshou: act, step, store, every now and then learn.")
def test_the_pseudocode_line_by_line() -> None:
    model = Net(0, 2, 2, hidden_layer_size=8)
    env = Line(4)
    env.action_space = gymnasium.spaces.Discrete(2)
    buffer = ReplayBuffer(size=10000)  # buffer = Buffer(size=10000)
    policy = DQNPolicy(model, torch.optim.Adam(model.parameters()), 0.9, 2, target_update_freq=3)  # agent = DQN()
    collector = Collector(policy, env, buffer)  # s = env.reset(), s_, r, d, _ = env.step(a), buffer.store(…), s = s_
    before = copy.deepcopy(model.state_dict())
    for i in range(20):
        collector.collect(n_step=1)  # a = agent.compute_action(s)
        if i % 5 == 0:
            batch, indice = buffer.sample(16)  # b_s, b_a, b_s_, b_r, b_d = buffer.get(size=64)
            batch = policy.process_fn(batch, buffer, indice)  # b_ret = compute_2_step_return(…)
            assert batch.returns.shape == (16,)
            assert policy.learn(batch)["loss"] >= 0.0  # agent.update(…)
            policy.update(16, buffer)  # the three lines above in one
    assert any((before[name] != value).any() for name, value in model.state_dict().items())


class MunchausenDQN(BasePolicy):
    """Soft Q-learning whose reward has the log probability of the chosen action (arXiv:2007.14430)."""

    def __init__(self, temperature: float = 0.03, share: float = 0.9, gamma: float = 0.95) -> None:
        super().__init__()
        self.model = Net(1, 4, 2, hidden_layer_size=64)
        self.model_old = copy.deepcopy(self.model)
        self.optim = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self._temperature, self._share, self._gamma, self._count, self.eps = temperature, share, gamma, 0, 0.1

    def forward(self, batch: Batch, state: Any = None, input: str = "obs", **kwargs: Any) -> Batch:
        logits, state = self.model(batch[input], state)
        act = logits.argmax(-1).numpy() if not logits.requires_grad else logits.detach().argmax(-1).numpy()
        if self.training and not self.updating:
            act = np.where(np.random.rand(len(act)) < self.eps, np.random.randint(0, 2, len(act)), act)
        return Batch(act=act, logits=logits, state=state)

    def process_fn(self, batch: Batch, buffer: ReplayBuffer, indice: Any) -> Batch:
        tau = self._temperature
        with torch.no_grad():
            now, following = (self.model_old(obs)[0] for obs in (batch.obs, batch.obs_next))
            log_prob = torch.log_softmax(now / tau, -1).gather(1, to_torch(batch.act)[:, None])[:, 0]
            soft = tau * torch.logsumexp(following / tau, -1)
        bonus = self._share * (tau * log_prob).clamp(-1.0, 0.0)
        alive = to_torch(~batch.terminated, torch.float32)
        batch.returns = to_torch(batch.rew, torch.float32) + bonus + self._gamma * alive * soft
        return batch

    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, float]:
        if self._count % 100 == 0:
            self.model_old.load_state_dict(self.model.state_dict())
        self._count += 1
        chosen = self(batch).logits.gather(1, to_torch(batch.act)[:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(chosen, batch.returns)
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        return {"loss": loss.item()}


@pytest.mark.slow
@pytest.mark.described(
    "tianshou", 148, "An algorithm that is not there is written as a class of one's own, and learns."
)
def test_an_algorithm_of_ones_own_learns_cartpole() -> None:
    np.random.seed(0)
    torch.manual_seed(0)
    policy = MunchausenDQN()
    train_envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(8)])
    test_envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(5)])
    train_envs.seed(0)
    test_envs.seed(100)
    train = Collector(policy, train_envs, ReplayBuffer(20_000))
    test = Collector(policy, test_envs)
    train.collect(n_step=1000, random=True)
    result = offpolicy_trainer(
        policy, train, test, 8, 500, 10, 5, 64, stop_fn=lambda rew: rew >= 180.0, test_in_train=False, verbose=False
    )
    assert result["best_reward"] >= 100.0  # random actions reach 22
