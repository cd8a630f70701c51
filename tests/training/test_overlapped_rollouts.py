"""On-policy overlap: the next rollout is simulated during the update; the bits do not depend on how fast that is."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from training_cases import comparable, make_policy, make_trainer, run, weights_of

from striderl.algorithms.on_policy.a2c import A2C, A2CConfig
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.schedules import InProcess
from striderl.data import tree
from striderl.envs.classic_control.cartpole import CartPole
from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.workers.pool import WorkerConfig
from striderl.execution.background import Switch
from striderl.training.plans import OnPolicyPlan
from striderl.training.trainer import Trainer

OVERLAP: dict[str, Any] = {"overlap": True}


def outcome(trainer: Trainer, count: int) -> tuple[Any, Any]:
    return [comparable(record) for record in run(trainer, count)], weights_of(trainer)


@pytest.mark.parametrize("kind", ["plain", "gru"])
def test_a_thread_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threaded = outcome(make_trainer(kind, plan=OVERLAP), 4)
    monkeypatch.setattr(InProcess, "step_ahead", InProcess.step_async)
    alone = outcome(make_trainer(kind, plan=OVERLAP), 4)
    assert tree.equal(threaded, alone)


def test_a_rollout_is_that_of_the_policy_before_the_last_update() -> None:
    trainer, initial = make_trainer(plan=OVERLAP), make_trainer().algorithm.policy
    first = next(trainer)
    assert first.metrics["train/first_ratio_error"] <= 2e-6
    trainer.advance()  # the second rollout, begun before the first update
    present, stored = trainer.algorithm.policy, trainer.loop.storage.data  # type: ignore[attr-defined]
    obs = {name: value[0] for name, value in stored["obs"].items()}
    with torch.no_grad():
        before, now = initial.act(obs, {}, {})[0], present.act(obs, {}, {})[0]
    # what the ratio is taken with: the policy that acted
    assert torch.allclose(stored["policy"]["log_prob"][0], before.log_prob(stored["act"][0]), atol=1e-6)
    assert not torch.allclose(stored["policy"]["log_prob"][0], now.log_prob(stored["act"][0]), atol=1e-6)
    # what the KL is measured from: the policy before this update
    assert all(torch.allclose(stored["policy"]["dist"][name][0], value) for name, value in now.params().items())
    assert next(trainer).metrics["train/first_ratio_error"] > 1e-4


@pytest.mark.parametrize(("kind", "num_phases"), [*(("plain", count) for count in range(6)), ("gru", 2)])
def test_a_run_saved_in_any_phase_goes_on_bit_for_bit(kind: str, num_phases: int) -> None:
    plan = {**OVERLAP, "warmup_steps": 3, "total_iterations": 4}
    whole, first, second = (make_trainer(kind, plan=plan, seed=seed) for seed in (0, 0, 7))
    records = [comparable(record) for record in whole]
    next(first)
    for _ in range(num_phases):
        first.advance()
    second.load_state_dict(first.state_dict())
    rest = [comparable(record) for record in second]
    assert rest == records[len(records) - len(rest) :]
    assert tree.equal(weights_of(whole), weights_of(second))
    list(first)  # saving has changed nothing
    assert tree.equal(weights_of(whole), weights_of(first))


def test_a_longer_plan_has_the_same_beginning() -> None:
    short, long = (make_trainer(plan={**OVERLAP, "total_iterations": count}) for count in (2, 4))
    wanted, weights = outcome(long, 4)
    list(short)
    resumed = make_trainer(plan={**OVERLAP, "total_iterations": 4}, seed=3)
    resumed.load_state_dict(short.state_dict())
    assert [comparable(record) for record in resumed] == wanted[2:]
    assert tree.equal(weights, weights_of(resumed))


class Watching(Switch):
    """Finds out whether envs are being stepped when functions may be exchanged."""

    def __init__(self) -> None:
        super().__init__(at=2)
        self.trainer: Trainer | None = None
        self.busy: list[bool] = []

    def before_iteration(self, iteration: int) -> None:
        assert self.trainer is not None
        self.busy.append(self.trainer.collector.schedule.busy)


def test_a_rollout_is_finished_before_functions_change_to_compiled_ones() -> None:
    trainer, switch = make_trainer(plan=OVERLAP), Watching()
    trainer.switch, switch.trainer = switch, trainer
    run(trainer, 3)
    assert switch.busy == [False, False, False]


class Waiting(CartPole):
    """Ends a step in a thread only when a gradient step was taken since it began."""

    def __init__(self) -> None:
        super().__init__(2)
        self.learned, self.num_threaded = threading.Event(), 0

    def step(self, actions: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            assert not torch.is_grad_enabled()
            assert self.learned.wait(timeout=280.0), "the learner waits for the env"
            self.num_threaded += 1
        return super().step(actions)


def test_gradient_steps_are_taken_while_the_envs_are_simulated() -> None:
    env = Waiting()
    trainer = make_trainer(env=env, plan={**OVERLAP, "num_steps_per_env": 4})
    updater = trainer.algorithm.updater
    step = updater.gradient_step

    def learn(*inputs: Any) -> Any:
        found = step(*inputs)
        env.learned.set()
        return found

    env.learned.set()  # the first rollout is waited for
    updater.gradient_step = learn
    trainer.advance()
    env.learned.clear()
    trainer.advance()  # prepare: the first step of the next rollout begins, and waits for the learner
    assert env.num_threaded == 1
    run(trainer, 2)
    assert env.num_threaded >= 3


class Failing(CartPole):
    """Raises in one step of a thread, and takes it when it is asked again."""

    def __init__(self, at: int) -> None:
        super().__init__(4)
        self.count, self.at = 0, at

    def step(self, actions: Any) -> Any:
        self.count += 1
        if self.count == self.at:
            raise OSError("the simulator hiccups")
        return super().step(actions)


@pytest.mark.parametrize("at", [3, 9, 14])
def test_an_error_of_the_envs_is_raised_when_their_rollout_is_wanted_and_the_step_taken_again(at: int) -> None:
    wanted = outcome(make_trainer(plan=OVERLAP), 3)
    trainer, phases = make_trainer(env=Failing(at), plan=OVERLAP), []
    while trainer.iteration < 3 or trainer.phase == "consume":
        try:
            trainer.advance()
        except OSError:
            phases.append(trainer.phase)
    assert phases == ["collect"]
    assert tree.equal(weights_of(trainer), wanted[1])


def test_an_update_that_fails_is_repeated_with_the_rollout_that_has_begun() -> None:
    _, wanted = outcome(make_trainer(plan=OVERLAP), 3)
    trainer = make_trainer(plan=OVERLAP)
    updater, count = trainer.algorithm.updater, [0]
    step = updater.gradient_step

    def broken(*inputs: Any) -> Any:
        count[0] += 1
        if count[0] == 7:  # the third gradient step of the second update
            raise FloatingPointError("a bug in a loss")
        return step(*inputs)

    updater.gradient_step = broken
    next(trainer)
    with pytest.raises(FloatingPointError):
        next(trainer)
    assert updater.after_step is None
    run(trainer, 2)
    assert tree.equal(weights_of(trainer), wanted)


def test_closing_waits_for_the_step_under_way() -> None:
    before = set(threading.enumerate())
    trainer = make_trainer(plan=OVERLAP)
    next(trainer)
    assert set(threading.enumerate()) - before  # the one that steps the envs
    trainer.close()
    assert not trainer.collector.schedule.busy
    assert not set(threading.enumerate()) - before


@pytest.mark.slow
def test_worker_processes_overlap_as_well() -> None:
    outcomes = []
    for num_workers in (2, 0):
        env = GymnasiumEnv("CartPole-v1", 4, workers=WorkerConfig(num_workers=num_workers))
        with make_trainer(env=env, plan=OVERLAP) as trainer:
            outcomes.append(outcome(trainer, 3))
    assert tree.equal(*outcomes)


def test_algorithms_that_want_fresh_rollouts_refuse() -> None:
    env = CartPole(4)
    algorithm = A2C(make_policy(env), A2CConfig())
    with pytest.raises(ValueError, match=r"overlap gives rollouts of the policy before .* A2C"):
        Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig()), OnPolicyPlan(overlap=True))
    with pytest.raises(ValueError, match="without normalize_values"):
        make_trainer(plan=OVERLAP, ppo={"normalize_values": True})
