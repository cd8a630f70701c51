"""Policies, collectors and trainer functions in the words of seed 003."""

from __future__ import annotations

import copy
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from striderl.compat.tianshou.base_policy import BasePolicy
from striderl.compat.tianshou.collector import Collector
from striderl.compat.tianshou.trainers import offpolicy_trainer, onpolicy_trainer
from striderl.data.actions import DiscreteSpec
from striderl.data.batch import Batch
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.tasks import make
from striderl.envs.vec_env import Obs, Step, VecEnv
from striderl.storage.replay_buffer.buffer import ReplayBuffer
from striderl.storage.replay_buffer.kinds import ListReplayBuffer, PrioritizedReplayBuffer, VectorReplayBuffer


class Counter(VecEnv):
    """Env i counts steps from 0; its episodes have 3 + i steps; even envs terminate, odd ones are truncated."""

    def __init__(self, num_envs: int = 1) -> None:
        self.num_envs, self.device = num_envs, torch.device("cpu")
        self.obs_spec = ObsSpec({"obs": ComponentSpec(shape=(2,))})
        self.action_spec = DiscreteSpec(n=2)
        self.info_spec, self.gives_final_obs = {}, True
        self.max_episode_length, self.step_dt = 0, 0.0
        self.age = torch.zeros(num_envs)
        self.resets = 0

    def _obs(self) -> Obs:
        return {"obs": torch.stack([torch.arange(self.num_envs).float(), self.age], dim=-1)}

    def reset(self, seed: int | None = None) -> Obs:
        self.resets += 1
        self.age = torch.zeros(self.num_envs)
        return self._obs()

    def step(self, actions: Any) -> Step:
        self.age = self.age + 1
        ended = self.age >= 3 + torch.arange(self.num_envs)
        even = torch.arange(self.num_envs) % 2 == 0
        final = self._obs()
        reward = self.age.clone()
        self.age = torch.where(ended, 0.0, self.age)
        return Step(self._obs(), reward, ended & even, ended & ~even, final, {"log": {}})

    def reset_envs(self, mask: Any) -> Obs:
        self.age = torch.where(mask, 0.0, self.age)
        return self._obs()

    @property
    def episode_length_buf(self) -> Any:
        return self.age.long()

    @episode_length_buf.setter
    def episode_length_buf(self, value: Any) -> None:
        self.age = value.float()


class Fixed(BasePolicy):
    """Returns what it is told to return, and notes what it is shown."""

    def __init__(self, make_result: Any = None) -> None:
        super().__init__()
        self.make_result = make_result
        self.seen: list[tuple[Batch, Any]] = []

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Any:
        self.seen.append((batch, state))
        if self.make_result is not None:
            return self.make_result(len(batch.obs))
        return Batch(act=np.zeros(len(batch.obs), np.int64))

    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, Any]:
        return {"loss": 0.0}


# -- the policy --------------------------------------------------------------------------------------------------------


def test_a_subclass_without_learn_is_refused_by_name():
    class Half(BasePolicy):
        def forward(self, batch, state=None, **kwargs):
            return Batch(act=[0])

    with pytest.raises(TypeError, match="learn"):
        Half()


def filled(num: int = 6, buffer: ReplayBuffer | None = None) -> ReplayBuffer:
    buffer = ReplayBuffer(10) if buffer is None else buffer
    for i in range(num):
        buffer.add(obs=[float(i)], act=0, rew=float(i), done=False, obs_next=[i + 1.0])
    return buffer


def test_update_goes_through_its_three_parts_in_the_updating_state():
    calls: list[tuple[str, bool, bool]] = []

    class Noting(Fixed):
        def process_fn(self, batch, buffer, indices):
            calls.append(("process", self.training, self.updating))
            batch.extra = buffer.rew[indices]
            return batch

        def learn(self, batch, scale=1.0):
            calls.append(("learn", self.training, self.updating))
            return {"sum": torch.tensor(batch.extra.sum() * scale), "each": [1, 2]}

        def post_process_fn(self, batch, buffer, indices):
            calls.append(("post", self.training, self.updating))

    policy = Noting().eval()
    numbers = policy.update(0, filled(), scale=2.0)
    assert calls == [("process", True, True), ("learn", True, True), ("post", True, True)]
    assert numbers == {"sum": 30.0, "each": [1.0, 2.0]}  # 2 · (0 + 1 + 2 + 3 + 4 + 5)
    assert (policy.training, policy.updating) == (False, False)
    assert policy.update(4, None) == {}


def test_flags_come_back_after_an_error():
    class Failing(Fixed):
        def learn(self, batch, **kwargs):
            raise OverflowError("no")

    policy = Failing()
    with pytest.raises(OverflowError):
        policy.update(2, filled())
    assert (policy.training, policy.updating) == (True, False)


@pytest.mark.parametrize(
    ("method", "result", "text"),
    [
        ("process_fn", None, "Wrong.process_fn must return a Batch, found NoneType"),
        ("learn", 3.0, "Wrong.learn must return a dict of numbers by name, found float"),
        ("learn", {"loss": "high"}, "Wrong.learn: 'loss' must be a number"),
    ],
)
def test_wrong_results_name_the_method(method, result, text):
    class Wrong(Fixed):
        pass

    setattr(Wrong, method, lambda self, *args, **kwargs: result)
    with pytest.raises(TypeError, match=text):
        Wrong().update(2, filled())


def test_new_priorities_come_from_the_batch_and_are_asked_for():
    class Erring(Fixed):
        def learn(self, batch, **kwargs):
            if self.tells:
                batch.weight = np.full(len(batch.rew), 7.0)
            return {}

    buffer = filled(buffer=PrioritizedReplayBuffer(10, alpha=1.0, beta=0.5))
    policy = Erring()
    policy.tells = False
    with pytest.raises(ValueError, match=r"Erring.learn was given samples of a prioritized buffer"):
        policy.update(4, buffer)
    policy.tells = True
    policy.update(0, buffer)
    np.testing.assert_allclose(buffer.sample(0)[0].weight, 1.0)  # all the same now


# -- returns -----------------------------------------------------------------------------------------------------------


def test_two_step_returns_by_hand():
    # steps 0 1 2E(terminated) 3 4T(truncated) 5; reward = index, value of obs_next = 10, gamma 0.5
    buffer = ReplayBuffer(10)
    for i in range(6):
        buffer.add(obs=float(i), act=0, rew=float(i), terminated=i == 2, truncated=i == 4, obs_next=i + 1.0)
    out = BasePolicy.compute_nstep_return(
        Batch(), buffer, np.arange(6), lambda buf, last: torch.full((len(last),), 10.0), gamma=0.5, n_step=2
    )
    # 0: 0 + .5·1 + .25·10 | 1: 1 + .5·2, ended | 2: 2 | 3: 3 + .5·4 + .25·10 | 4: 4 + .5·10 | 5: 5 + .5·10
    np.testing.assert_allclose(out.returns, [3.0, 2.0, 2.0, 7.5, 9.0, 10.0])


def test_n_step_windows_stop_before_an_unknown_next_observation():
    buffer = ReplayBuffer(10, ignore_obs_next=True)
    for i in range(3):
        buffer.add(obs=float(i), act=0, rew=1.0, done=False)
    seen = []
    BasePolicy.compute_nstep_return(
        Batch(), buffer, np.array([0, 1]), lambda buf, last: seen.append(last) or np.zeros(2, np.float32), 0.9, 5
    )
    assert seen[0].tolist() == [1, 1]  # step 2 is the newest, and what followed it is not known


def test_episodic_returns_do_not_leak_from_ring_to_ring():
    buffer = VectorReplayBuffer(8, 2)
    for _ in range(2):
        buffer.add(Batch(obs=[0.0, 1.0], act=[0, 0], rew=[1.0, 10.0], done=[False, False], obs_next=[0.0, 1.0]))
    batch, index = buffer.sample(0)
    returns, advantages = BasePolicy.compute_episodic_return(
        batch, buffer, index, np.full(4, 2.0), np.zeros(4), gamma=0.5, gae_lambda=1.0
    )
    # ring 0: r=1, 1 then V=2: second 1 + .5·2 = 2, first 1 + .5·2 + .5·(1 + 1) = 3 with delta form; ring 1 with 10
    deltas = np.array([1 + 0.5 * 2, 1 + 0.5 * 2])
    np.testing.assert_allclose(returns[:2], [deltas[0] + 0.5 * deltas[1], deltas[1]])
    np.testing.assert_allclose(returns[2:], [11 + 0.5 * 11, 11.0])
    np.testing.assert_allclose(advantages, returns)


# three steps, the third ends: v_s = 10, 20, 30, v_s_ = 20, 30, 99, gamma = lambda = 0.5
# terminated  A2 = 3 - 30 = -27,           A1 = 2 + .5·30 - 20 + .25·A2 = -9.75, A0 = 1 + .5·20 - 10 + .25·A1 = -1.4375
# truncated   A2 = 3 + .5·99 - 30 = 22.5,  A1 = -3 + 5.625 = 2.625,              A0 = 1 + .65625 = 1.65625
V_S, V_S_NEXT = np.array([10.0, 20.0, 30.0]), np.array([20.0, 30.0, 99.0])
BY_HAND = {"terminated": [-1.4375, -9.75, -27.0], "truncated": [1.65625, 2.625, 22.5]}


@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize("convert", [np.asarray, lambda v: torch.as_tensor(v).reshape(-1, 1)])
def test_episodic_advantages_by_hand_by_position_and_by_name(end: str, convert: Any) -> None:
    buffer = ReplayBuffer(5)
    for i in range(3):
        buffer.add(obs=i, act=0, rew=i + 1.0, **{"terminated": False, "truncated": False, end: i == 2}, obs_next=i + 1)
    batch, index = buffer.sample(0)
    following, present = convert(V_S_NEXT), convert(V_S)
    calls = (
        BasePolicy.compute_episodic_return(batch, buffer, index, following, present, 0.5, 0.5),  # Tianshou's order
        BasePolicy.compute_episodic_return(
            batch, buffer, index, v_s=present, v_s_=following, gamma=0.5, gae_lambda=0.5
        ),
        BasePolicy.compute_episodic_return(
            batch, buffer=buffer, indices=index, v_s=present, v_s_=following, gamma=0.5, gae_lambda=0.5
        ),
    )
    for returns, advantages in calls:
        np.testing.assert_allclose(advantages, BY_HAND[end])
        np.testing.assert_allclose(returns, advantages + V_S)
    # returns do not depend on v_s; nor does the form of Tianshou 0.3, which has no buffer and no v_s
    returns, _ = BasePolicy.compute_episodic_return(batch, buffer, index, following, None, 0.5, 0.5)
    np.testing.assert_allclose(returns, BY_HAND[end] + V_S)
    out = BasePolicy.compute_episodic_return(batch, following, 0.5, 0.5)
    assert out is batch
    np.testing.assert_allclose(batch.returns, BY_HAND[end] + V_S)
    returned = BasePolicy.compute_episodic_return(batch, v_s_=following, gamma=0.5, gae_lambda=0.5, rew_norm=True)
    plain = BY_HAND[end] + V_S
    np.testing.assert_allclose(returned.returns, (plain - plain.mean()) / plain.std(), rtol=1e-5)


def test_episodic_returns_without_values_and_from_done_alone() -> None:
    # Tianshou 0.3: a batch of one's own; 0.5-discounted sums within episodes of two and one steps, and one under way
    batch = Batch(rew=np.array([1.0, 2.0, 3.0, 4.0]), done=np.array([0, 1, 1, 0]))
    assert BasePolicy.compute_episodic_return(batch, None, gamma=0.5, gae_lambda=1).returns.tolist() == [2, 2, 3, 4]
    late = Batch(rew=[1.0, 2.0], done=[False, True], info=[{}, {"TimeLimit.truncated": True}])
    # the clock ended it: what followed counts, 2 + .5·10
    found = BasePolicy.compute_episodic_return(late, np.array([6.0, 10.0]), 0.5, 1.0)
    np.testing.assert_allclose(found.returns, [1 + 0.5 * 7, 7.0])


@pytest.mark.parametrize(
    "arguments", [(ListReplayBuffer(), np.arange(2), None, None), ({"obs": 0},), (ListReplayBuffer(),)]
)
def test_episodic_return_of_neither_form_names_both(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match=r"\(batch, buffer, indices, v_s_, v_s, .* or \(batch, v_s_, gamma"):
        BasePolicy.compute_episodic_return(Batch(rew=[0.0, 1.0], done=[0, 1]), *arguments)
    with pytest.raises(ValueError, match=r"gae_lambda is 1, found 0\.95"):
        BasePolicy.compute_episodic_return(Batch(rew=[0.0, 1.0], done=[0, 1]))


# -- the collector -----------------------------------------------------------------------------------------------------


def test_exactly_so_many_steps_with_one_env():
    buffer = ReplayBuffer(20)
    collector = Collector(Fixed(), Counter(), buffer)
    result = collector.collect(n_step=7, whole_episodes=False)
    # episodes of three steps with rewards 1 + 2 + 3
    assert (result["n/st"], result["n/ep"], result["rew"], result["len"]) == (7, 2, 6.0, 3.0)
    assert set(result) == {"n/ep", "n/st", "v/st", "v/ep", "rew", "len"}
    assert buffer.obs[:7, 1].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert buffer.obs_next[:7, 1].tolist() == [1, 2, 3, 1, 2, 3, 1]  # where it really ended, not the next start
    assert buffer.terminated[:7].tolist() == [False, False, True, False, False, True, False]
    collector.collect(n_step=2, whole_episodes=False)
    assert buffer.obs[:9, 1].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]


def test_several_envs_have_rings_and_steps_are_exact():
    buffer = VectorReplayBuffer(40, 2)
    collector = Collector(Fixed(), Counter(2), buffer)
    assert collector.collect(n_step=5)["n/st"] == 5
    assert len(buffer) == 5
    collector.collect(n_step=3)
    assert len(buffer) == 8
    assert buffer.obs[:4, 1].tolist() == [0, 1, 2, 0]
    assert buffer.obs[20:24, 1].tolist() == [0, 1, 2, 3]
    assert buffer.truncated[20:24].tolist() == [False, False, False, True]


def test_exactly_so_many_episodes_from_fresh_starts():
    buffer = VectorReplayBuffer(60, 2)
    collector = Collector(Fixed(), Counter(2), buffer)
    collector.collect(n_step=4)
    result = collector.collect(n_episode=[2, 1])
    assert (result["n/ep"], result["n/st"]) == (3, 10)  # 3 + 3 and 4 steps
    assert result["len"] == pytest.approx(10 / 3)
    # what was under way before is not followed by the new episode
    assert buffer.next(1) == 1 and buffer.obs[2, 1] == 0


def test_several_envs_and_one_ring_want_whole_episodes():
    buffer = ReplayBuffer(60)
    collector = Collector(Fixed(), Counter(2), buffer)
    with pytest.raises(ValueError, match="VectorReplayBuffer"):
        collector.collect(n_step=4, whole_episodes=False)
    assert collector.collect(n_episode=3)["n/ep"] == 3
    lengths = np.diff(np.flatnonzero(np.append(True, buffer.done[: len(buffer)])))
    assert sorted(lengths.tolist()) == [3, 3, 4]
    for start in np.flatnonzero(np.append(True, buffer.done[: len(buffer) - 1])):
        assert buffer.obs[start, 1] == 0


def test_one_ring_gets_at_least_so_many_steps_in_whole_episodes_and_goes_on():
    buffer = ReplayBuffer(60)
    collector = Collector(Fixed(), Counter(2), buffer)
    first = collector.collect(n_step=4)
    assert (first["n/st"], first["n/ep"]) == (7, 2)  # after four steps: episodes of 3 and of 4
    second = collector.collect(n_step=1)
    # env 0 had begun a second episode, of which one step was waiting: it is not lost
    assert (second["n/st"], second["len"]) == (3, 3.0)
    assert buffer.obs[7:10].tolist() == [[0, 0], [0, 1], [0, 2]]


def test_random_steps_do_not_ask_the_policy():
    policy = Fixed()
    buffer = ReplayBuffer(200)
    Collector(policy, Counter(), buffer).collect(n_step=100, random=True)
    assert not policy.seen and 20 < buffer.act[:100].sum() < 80


def test_memory_and_what_a_policy_wants_stored():
    def result(count: int) -> Batch:
        return Batch(act=np.zeros(count, np.int64), state=Batch(h=torch.ones(count, 2)), policy=Batch(q=np.ones(count)))

    policy = Fixed(result)
    buffer = VectorReplayBuffer(40, 2)
    Collector(policy, Counter(2), buffer).collect(n_step=8)
    states = [state for _, state in policy.seen]
    assert states[0] is None
    assert states[1].h.tolist() == [[1, 1], [1, 1]]
    assert states[3].h.tolist() == [[0, 0], [1, 1]]  # env 0 began an episode
    assert buffer[0].policy._state.h.tolist() == [1, 1] and buffer[0].policy.q == 1
    batch = policy.seen[3][0]
    assert batch.rew.tolist() == [3, 3] and batch.done.tolist() == [True, False]


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        (lambda n: np.zeros(n), TypeError, "Fixed.forward must return a Batch, found ndarray"),
        (lambda n: Batch(logits=np.zeros(n)), KeyError, "Fixed.forward must return a Batch with 'act'"),
        (lambda n: Batch(act=np.zeros(n + 1, np.int64)), ValueError, "'act' wants one row for each of 1 observations"),
        (lambda n: Batch(act=np.zeros((n, 2), np.int64)), ValueError, r"'act' wants shape \[1\], found \[1, 2\]"),
        (lambda n: Batch(act=np.zeros(n)), TypeError, "'act' wants whole numbers, found torch.float64"),
        (lambda n: Batch(act=np.full(n, 2)), ValueError, "'act' wants choices from 0 to 1"),
        (lambda n: Batch(act=np.zeros(n, np.int64), policy=np.zeros(n)), TypeError, "'policy' must be a Batch"),
        (lambda n: Batch(act=np.zeros(n, np.int64), state=np.zeros(5)), ValueError, "'state' wants one row"),
    ],
)
def test_wrong_forwards_are_named(result, error, text):
    buffer = ReplayBuffer(10)
    collector = Collector(Fixed(result), Counter(), buffer)
    with pytest.raises(error, match=text):
        collector.collect(n_step=1)
    assert len(buffer) == 0


def test_wrong_parts_are_refused():
    with pytest.raises(TypeError, match="AlgorithmPolicy"):
        Collector(object(), Counter())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="buffer_num=3"):
        Collector(Fixed(), Counter(2), VectorReplayBuffer(30, 3))
    with pytest.raises(TypeError, match="found str"):
        Collector(Fixed(), "CartPole-v1")
    with pytest.raises(ValueError, match="exactly one of n_step and n_episode"):
        Collector(Fixed(), Counter()).collect()
    with pytest.raises(ValueError, match="n_step is at least 1"):
        Collector(Fixed(), Counter()).collect(n_step=0)


@pytest.mark.parametrize("kind", ["one", "list", "vector"])
def test_gymnasium_envs(kind):
    env = {
        "one": lambda: gymnasium.make("CartPole-v1"),
        "list": lambda: [gymnasium.make("CartPole-v1") for _ in range(2)],
        "vector": lambda: gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync"),
    }[kind]()
    count = 1 if kind == "one" else 2
    buffer = VectorReplayBuffer(100, count)
    collector = Collector(Fixed(), env, buffer)
    result = collector.collect(n_step=40)
    assert len(buffer) == 40 and result["n/ep"] > 0 and result["rew"] == result["len"]
    collector.close()


def test_an_error_of_the_policy_starts_anew():
    policy = Fixed()
    env = Counter()
    buffer = ReplayBuffer(30)
    collector = Collector(policy, env, buffer)
    collector.collect(n_step=2, whole_episodes=False)
    policy.make_result = lambda n: None
    with pytest.raises(TypeError):
        collector.collect(n_step=1, whole_episodes=False)
    policy.make_result = None
    collector.collect(n_step=2, whole_episodes=False)
    assert buffer.obs[:4, 1].tolist() == [0, 1, 0, 1]
    assert buffer.next(1) == 1  # what was under way is not followed by the new episode


# -- trainers ----------------------------------------------------------------------------------------------------------


class Learning(Fixed):
    """Counts updates and pretends to get better."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[tuple[int, dict[str, Any]]] = []

    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, Any]:
        self.updates.append((len(batch.rew), kwargs))
        return {"loss": [1.0, 2.0] if kwargs else 1.0}


class Lines:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, int | None]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self.rows.append((tag, scalar_value, global_step))


def test_offpolicy_trainer_counts_and_calls():
    policy, calls, writer = Learning(), [], Lines()
    train, test = Collector(policy, Counter(), ReplayBuffer(100)), Collector(policy, Counter())
    modes = []
    result = offpolicy_trainer(
        policy, train, test, max_epoch=2, step_per_epoch=5, collect_per_step=3, episode_per_test=2, batch_size=4,
        update_per_step=2,
        train_fn=lambda epoch, step: calls.append(("train", epoch, step, policy.training)),
        test_fn=lambda epoch, step: modes.append((epoch, step, policy.training, policy.updating)),
        save_fn=lambda saved: calls.append(("save", saved is policy)), writer=writer,
    )  # fmt: skip
    # each round: 3 steps, 2 gradient steps; three rounds make an epoch of (at least) 5
    assert len(policy.updates) == 12 and all(size == 4 for size, _ in policy.updates)
    assert result["train_step"] == 18 and result["gradient_step"] == 12
    assert [call[1:3] for call in calls if call[0] == "train"] == [(1, 0), (1, 3), (1, 6), (2, 9), (2, 12), (2, 15)]
    assert all(call[3] for call in calls if call[0] == "train")
    assert [call for call in calls if call[0] == "save"] == [("save", True)]  # the second test is no better
    assert modes == [(1, 9, False, False), (2, 18, False, False)]
    assert (result["best_reward"], result["best_epoch"], result["test_episode"]) == (6.0, 1, 4)
    assert result["duration"] > 0 and result["train_speed"] > 0
    assert ("test/rew", 6.0, 9) in writer.rows and ("loss", 1.0, 3) in writer.rows


def test_stop_fn_is_confirmed_by_a_test():
    policy, asked, saved = Learning(), [], []
    train, test = Collector(policy, Counter(), ReplayBuffer(100)), Collector(policy, Counter(2))
    # returns in training are 6; tests give (6 + 10) / 2 = 8: training looks good enough at 6, and so does the test

    def stop(reward: float) -> bool:
        asked.append(reward)
        return reward >= 6.0

    result = offpolicy_trainer(policy, train, test, 3, 10, 3, 2, 4, stop_fn=stop, save_best_fn=saved.append)
    assert asked == [6.0, 8.0] and not policy.updates and saved == [policy]
    assert result["best_reward"] == 8.0 and policy.training


def test_onpolicy_trainer_learns_from_all_steps_and_forgets_them():
    policy = Learning()
    buffer = VectorReplayBuffer(100, 2)
    train, test = Collector(policy, Counter(2), buffer), Collector(policy, Counter())
    result = onpolicy_trainer(
        policy, train, test, max_epoch=1, step_per_epoch=3, collect_per_step=4, repeat_per_collect=5,
        episode_per_test=1, batch_size=7,
    )  # fmt: skip
    # four episodes: two of 3 and two of 4 steps; `learn` tells of two gradient steps, so an epoch takes two rounds
    assert policy.updates == [(14, {"batch_size": 7, "repeat": 5})] * 2
    assert len(buffer) == 0 and result["train_episode"] == 8 and result["gradient_step"] == 4


def test_onpolicy_trainer_begins_with_the_steps_that_are_there():
    # PSRL's program in Tianshou: random steps first, then batch_size 0
    policy = Learning()
    train, test = Collector(policy, Counter(), ReplayBuffer(100)), Collector(policy, Counter())
    before = train.collect(n_episode=2, random=True)["n/st"]
    onpolicy_trainer(policy, train, test, 1, 3, 1, 1, 1, 0, verbose=False)
    (first, options), (second, _) = policy.updates
    assert first - before in (3, 4) and second in (3, 4) and options == {"batch_size": 0, "repeat": 1}


def test_trainers_refuse_what_makes_no_sense():
    policy = Learning()
    train, test = Collector(policy, Counter(), ReplayBuffer(100)), Collector(policy, Counter())
    with pytest.raises(ValueError, match="collect_per_step is a whole number of at least 1, found 0"):
        offpolicy_trainer(policy, train, test, 1, 1, 0, 1, 1)
    with pytest.raises(ValueError, match="train_collector has no buffer"):
        offpolicy_trainer(policy, test, test, 1, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="save_fn is the old name"):
        offpolicy_trainer(policy, train, test, 1, 1, 1, 1, 1, save_best_fn=print, save_fn=print)


# -- a user's learner --------------------------------------------------------------------------------------------------


class TwoStepDqn(BasePolicy):
    """A 2-step DQN as a user writes it: right at ends, at the seam and at the newest step."""

    def __init__(self, gamma: float = 0.9) -> None:
        super().__init__()
        self.net = nn.Linear(1, 2)
        self.old = copy.deepcopy(self.net)
        self.optim = torch.optim.Adam(self.net.parameters(), lr=0.05)
        self.gamma, self.eps, self.count = gamma, 0.5, 0
        self.random = np.random.default_rng(0)

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        act = self.net(torch.as_tensor(batch.obs)).argmax(-1).numpy()
        if self.training and not self.updating:
            at_random = self.random.random(len(act)) < self.eps
            act = np.where(at_random, self.random.integers(0, 2, len(act)), act)
        return Batch(act=act)

    def process_fn(self, batch: Batch, buffer: ReplayBuffer, indices: Any) -> Batch:
        following = buffer.next(indices)
        two = following != indices
        with torch.no_grad():
            value = self.old(torch.as_tensor(buffer.get(following, "obs_next"))).max(-1).values.numpy()
        discount = np.where(two, self.gamma**2, self.gamma) * ~buffer.terminated[following]
        batch.returns = batch.rew + np.where(two, self.gamma * buffer.rew[following], 0.0) + discount * value
        return batch

    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, Any]:
        self.count += 1
        q = self.net(torch.as_tensor(batch.obs)).gather(1, torch.as_tensor(batch.act)[:, None])[:, 0]
        loss = (q - torch.as_tensor(batch.returns).float()).square().mean()
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        if self.count % 20 == 0:
            self.old.load_state_dict(self.net.state_dict())
        return {"loss": loss.item()}


@pytest.mark.slow
def test_a_users_two_step_dqn_learns_a_bandit_that_lasts():
    # one state; action 1 gives 1, action 0 nothing; it goes on until the clock stops it after some steps. With the
    # time limit treated as what it is, Q(a) = r(a) + 0.9 · 10: 9 and 10
    class Paying(Counter):
        def __init__(self) -> None:
            super().__init__(1)
            self.obs_spec = ObsSpec({"obs": ComponentSpec(shape=(1,))})

        def _obs(self) -> Obs:
            return {"obs": torch.ones(1, 1)}

        def step(self, actions: Any) -> Step:
            self.age = self.age + 1
            ended = self.age >= 5
            self.age = torch.where(ended, 0.0, self.age)
            return Step(self._obs(), actions.float(), ended & False, ended, self._obs(), {"log": {}})

    torch.manual_seed(0)
    policy = TwoStepDqn()
    train, test = Collector(policy, Paying(), ReplayBuffer(1000)), Collector(policy, Paying())
    train.collect(n_step=100, random=True)
    result = offpolicy_trainer(policy, train, test, 3, 400, 1, 2, 32)
    assert result["best_reward"] == 5.0
    values = policy.net(torch.ones(1, 1))[0].tolist()
    # actions within the two steps are half random, so the target is a little below the greedy 10: 0.9 · 0.25 less
    assert values[1] == pytest.approx(9.5, abs=0.8) and values[1] - values[0] == pytest.approx(1.0, abs=0.3)


def test_a_users_two_step_targets_are_those_of_the_library():
    torch.manual_seed(0)
    policy = TwoStepDqn()
    buffer = VectorReplayBuffer(24, 2)
    collector = Collector(policy, make("cartpole", num_envs=2), buffer)
    policy.net, policy.old = nn.Linear(4, 2), nn.Linear(4, 2)
    collector.collect(n_step=101)  # the rings are over-written several times
    index = np.arange(len(buffer))
    mine = policy.process_fn(buffer[index], buffer, index).returns
    theirs = policy.compute_nstep_return(
        Batch(),
        buffer,
        index,
        lambda buf, last: policy.old(torch.as_tensor(buf.get(last, "obs_next"))).max(-1).values,
        policy.gamma,
        2,
    ).returns
    np.testing.assert_allclose(mine, theirs, atol=1e-5)
    assert not math.isnan(float(mine.sum()))
