"""Simulating while learning: it happens at the same time, and what comes of it does not depend on who is faster."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.collect import schedules
from striderl.collect.actors.base import RandomActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.schedules import InProcess
from striderl.envs.classic_control.cartpole import CartPole
from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.workers.pool import WorkerConfig
from striderl.ops.ramps import Ramp
from striderl.policies.actor_policy import ActorConfig
from striderl.training.plans import OffPolicyPlan
from striderl.training.trainer import Trainer

PLAN = OffPolicyPlan(
    num_steps_per_env=6,
    train_every=2,
    num_updates_per_round=2,
    batch_size=8,
    learning_starts=12,
    buffer_size=200,
    total_iterations=3,
    overlap=True,
)


def make(env: Any = None, plan: OffPolicyPlan = PLAN, seed: int = 0) -> Trainer:
    env = CartPole(3) if env is None else env
    torch.manual_seed(0)
    network = q_policy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(8,)))
    config = DQNConfig(target_every=3, learning_rate=0.05, epsilon=Ramp(start=0.0, end=0.0, num_steps=1))
    algorithm = DQN(network, config)
    return Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=seed)), plan, seed=seed)


def outcome(trainer: Trainer) -> list[torch.Tensor]:
    replay = trainer.regime.storage  # type: ignore[attr-defined]
    weights = list(trainer.algorithm.policy.state_dict().values())
    return [*weights, *replay.frames.arena.blocks.values(), *replay.steps.arena.blocks.values()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(first, second) for first, second in zip(one, other, strict=True))


def test_a_thread_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    threaded = make()
    records = list(threaded)
    assert [record.env_steps for record in records] == [30, 48, 66] and records[-1].num_updates == 18
    monkeypatch.setattr(InProcess, "step_ahead", InProcess.step_async)  # simulate when the step is waited for
    alone = make()
    list(alone)
    assert same(outcome(threaded), outcome(alone))


def test_what_was_chosen_stays_chosen() -> None:
    trainer = make()
    collector, policy = trainer.collector, trainer.algorithm.policy
    trainer.algorithm.explore(0, random=False)
    collector.reset()
    before = policy.act(collector.current_obs, {}, {})[0].mode()
    collector.launch()
    with torch.no_grad():  # the best choice becomes the worst
        for parameter in policy.head.parameters():
            parameter.neg_()
    assert not (policy.act(collector.current_obs, {}, {})[0].mode() == before).any()
    replay = trainer.regime.storage  # type: ignore[attr-defined]
    collector.collect(n_step=3, storage=replay)
    assert torch.equal(replay.steps.arena.data["act"][0], before)


def test_a_saved_run_goes_on_bit_for_bit() -> None:
    whole, first, second = make(), make(), make(seed=5)
    list(whole)
    next(first), next(first)
    second.load_state_dict(first.state_dict())
    list(second)
    assert same(outcome(whole), outcome(second))


class Waiting(CartPole):
    """Ends a step that was begun ahead only when a gradient step was taken since then."""

    def __init__(self) -> None:
        super().__init__(2)
        self.learned, self.num_threaded = threading.Event(), 0

    def step(self, actions: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            assert not torch.is_grad_enabled()
            assert self.learned.wait(timeout=280.0), "the learner waits for the env"
            self.num_threaded += 1
        return super().step(actions)


def test_learning_goes_on_while_the_envs_are_simulated() -> None:
    env = Waiting()
    trainer = make(env)
    update = trainer.algorithm.update

    def learn(*inputs: Any) -> Any:
        numbers = update(*inputs)
        env.learned.set()
        return numbers

    launch = trainer.collector.launch

    def begin() -> None:
        env.learned.clear()
        launch()

    trainer.algorithm.update, trainer.collector.launch = learn, begin
    list(trainer)
    assert env.num_threaded == 6  # three rounds in an iteration: two of them begin beside gradient steps


@pytest.mark.slow
def test_workers_begin_ahead_as_well(caplog: pytest.LogCaptureFixture) -> None:
    outcomes = []
    for num_workers in (2, 0):
        assert "OffPolicyPlan.overlap has no effect" not in caplog.text
        env = GymnasiumEnv("CartPole-v1", 2, workers=WorkerConfig(num_workers=num_workers))
        with make(env) as trainer:
            list(trainer)
            outcomes.append(outcome(trainer))
    assert same(*outcomes)
    assert "OffPolicyPlan.overlap has no effect: these envs are stepped in this process" in caplog.text


class Breaking(CartPole):
    def step(self, actions: Any) -> Any:
        raise OSError("the simulator is gone")


def test_an_error_of_the_thread_is_raised_where_the_step_is_wanted() -> None:
    env = Breaking(2)
    collector = Collector(env, RandomActor(env.action_spec))
    collector.launch()
    with pytest.raises(OSError, match="simulator is gone"):
        collector.collect(n_step=2)


def test_a_step_under_way_is_not_saved_and_can_be_given_up() -> None:
    env = CartPole(2)
    collector = Collector(env, RandomActor(env.action_spec))
    collector.launch()
    collector.launch()  # there is one already
    with pytest.raises(RuntimeError, match="under way"):
        collector.state_dict()
    collector.reset()
    assert not collector.schedule.busy
    assert int(collector.state_dict()["groups"][0]["step"]) == 0
    collector.launch()
    assert collector.collect(n_step=6).num_steps == 6 and not collector.schedule.busy
    assert int(collector.state_dict()["groups"][0]["step"]) == 3


class Slow(CartPole):
    """Waits in a step that was begun ahead until it is let go; tells how many threads were in it at most."""

    def __init__(self) -> None:
        super().__init__(2)
        self.let_go, self.inside, self.most = threading.Event(), 0, 0

    def step(self, actions: Any) -> Any:
        self.inside += 1
        self.most = max(self.most, self.inside)
        if threading.current_thread() is not threading.main_thread():
            assert self.let_go.wait(timeout=280.0)
        step = super().step(actions)
        self.inside -= 1
        return step


def test_after_an_interrupt_the_thread_is_waited_for_and_episodes_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Slow()
    collector = Collector(env, RandomActor(env.action_spec))
    collector.launch()

    def interrupted(running: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(schedules, "wait", interrupted)
        collector.collect(n_step=2)
    assert env.inside == 1 and collector.schedule.busy  # the thread goes on; it is neither forgotten nor saved over
    threading.Timer(0.1, env.let_go.set).start()
    assert collector.collect(n_step=4).num_steps == 4
    assert env.most == 1 and int(collector.state_dict()["groups"][0]["step"]) == 2


def test_after_an_error_of_the_env_episodes_begin_anew() -> None:
    env = CartPole(2)
    collector = Collector(env, RandomActor(env.action_spec))
    collector.collect(n_step=6)
    step, env.step = env.step, Breaking(2).step  # type: ignore[method-assign]
    with pytest.raises(OSError, match="simulator is gone"):
        collector.collect(n_step=2)
    env.step = step  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="has failed"):  # nobody knows how far the envs are
        collector.state_dict()
    collector.collect(n_step=2)
    assert env.episode_length_buf.tolist() == [1, 1]


def test_who_starts_from_elsewhere_gives_up_the_step_under_way() -> None:
    env = CartPole(2)
    collector = Collector(env, RandomActor(env.action_spec))
    collector.launch()
    collector.start_from(collector.current_obs)
    assert collector.collect(n_step=2).num_steps == 2
    assert env.episode_length_buf.tolist() == [2, 2]  # what was given up was simulated all the same


def test_one_round_has_nothing_to_overlap_with() -> None:
    with pytest.raises(ValueError, match="several rounds"):
        OffPolicyPlan(num_steps_per_env=4, train_every=4, overlap=True)
