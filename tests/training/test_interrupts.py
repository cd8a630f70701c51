"""An interrupted training goes on to the bits of one that was not: errors at any call, and Ctrl-C at any time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from interrupts import KINDS, Ended, finished, raised, sent, strike, trainer_of
from training_cases import comparable, make_trainer

from striderl.collect.collector import Collector
from striderl.envs.classic_control import CartPole
from striderl.envs.gymnasium import GymnasiumEnv
from striderl.execution import interrupts
from striderl.execution.interrupts import check_interrupt, deferred_interrupts, interrupt_waits
from striderl.training.callbacks.callback import NOTHING
from striderl.training.guard import Guard
from striderl.training.loops.off_policy import ReplayLearner

RAISES = (
    ("env", True),
    ("actor", True),
    ("losses", True),
    ("losses", False),
    ("optimiser", True),
    ("optimiser", False),
    ("absorb", False),
)
"""Where an error may come from: before the work of a call, or when it has changed things."""
SENDS = (*RAISES, ("env", False), ("settle", True), ("settle", False), ("storage", False), ("statistics", False))
"""Where Ctrl-C may come: anywhere."""


@pytest.fixture(autouse=True)
def plain_ctrl_c():
    """Python's own handler, whatever the process that started the tests has set."""
    before, threads = signal.signal(signal.SIGINT, signal.default_int_handler), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    signal.signal(signal.SIGINT, before)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Ended]:
    return {kind: finished(trainer_of(kind)) for kind in KINDS}


def points(kind: str, places: tuple[tuple[str, bool], ...], seed: int) -> list[tuple[str, bool, int]]:
    """Every place once, at a random one of its first calls (the normalisers learn three times)."""
    dice = random.Random(f"{kind} {seed}")
    return [
        (place, before, dice.randint(1, 3 if place in ("absorb", "statistics") else 12)) for place, before in places
    ]


def check(kind: str, uninterrupted: dict[str, Ended], point: tuple[str, bool, int], how) -> str:
    place, before, at = point
    trainer = trainer_of(kind)
    with strike(trainer, place, at, how, before=before) as calls:
        ended = finished(trainer)
    if ended.num_interrupts != 1:
        return f"{point}: {ended.num_interrupts} interrupts in {calls[0]} calls"
    if ended.digest != uninterrupted[kind].digest:
        return f"{point}: another state"
    return "" if ended.records == uninterrupted[kind].records else f"{point}: other records"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_after_an_error_anywhere_the_bits_are_the_same(kind, uninterrupted):
    seeds = range(20 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 1)
    found = [check(kind, uninterrupted, point, raised) for seed in seeds for point in points(kind, RAISES, seed)]
    assert found == [""] * 7 * len(seeds)
    assert torch.is_grad_enabled()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_after_ctrl_c_anywhere_the_bits_are_the_same(kind, uninterrupted):
    found = [check(kind, uninterrupted, point, sent) for point in points(kind, SENDS, 7)]
    assert found == [""] * 12
    assert torch.is_grad_enabled() and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture(scope="module")
def storms() -> dict[str, list[str]]:
    """How a training of each kind ended in a process that was sent Ctrl-C all the time."""
    command = [sys.executable, str(Path(__file__).with_name("interrupts.py")), "3"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    return {kind: words for kind, *words in map(str.split, ended.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_storm_of_ctrl_c_changes_no_bit(kind, storms):
    digest, gradients, count = storms[kind]
    wanted = finished(trainer_of(kind, 30))
    assert digest == wanted.digest and gradients == "True" and int(count) >= 21


def test_the_harness_notices_an_update_that_is_not_taken_back(uninterrupted, monkeypatch):
    monkeypatch.setattr(Guard, "roll_back", lambda guard: None)
    assert "another state" in check("ppo", uninterrupted, ("optimiser", False, 2), raised)


def test_the_harness_notices_gradient_steps_that_are_not_made_anew(uninterrupted, monkeypatch):
    monkeypatch.setattr(ReplayLearner, "mend", lambda learner: None)
    assert "another state" in check("sac", uninterrupted, ("optimiser", False, 7), raised)


def test_the_harness_notices_a_rollout_that_begins_anew(uninterrupted, monkeypatch):
    monkeypatch.setattr(Collector, "interrupted", False)
    assert "another state" in check("ppo", uninterrupted, ("env", True, 8), raised)


def test_the_harness_notices_ctrl_c_that_does_not_wait(uninterrupted, monkeypatch):
    monkeypatch.setattr(deferred_interrupts, "__enter__", lambda self: None)
    assert "another state" in check("dqn", uninterrupted, ("storage", False, 9), sent)


# -- callbacks, log_data, modes ----------------------------------------------------------------------------------------


class Striking:
    """A callback that is interrupted in the second iteration, once."""

    def __init__(self, how) -> None:
        self.seen: list[int] = []
        self.how, self.struck = how, False

    def on_iteration(self, record, run):
        self.seen.append(record.iteration)
        if record.iteration == 2 and not self.struck:
            self.struck = True
            self.how()
        return NOTHING

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def close(self):
        pass


@pytest.mark.parametrize(("how", "times"), [(raised, 2), (sent, 1)])
def test_an_interrupted_consumer_takes_the_record_again_and_none_is_lost(how, times, uninterrupted):
    striking, behind = Striking(how), Striking(lambda: None)
    ended = finished(trainer_of("ppo", callbacks=[striking, behind]))
    assert ended.num_interrupts == 1 and ended.records == uninterrupted["ppo"].records
    assert striking.seen == [1, *[2] * times, 3] and behind.seen == [1, 2, 3]


def test_no_record_and_no_log_data_is_lost_when_ctrl_c_comes_at_the_end_of_a_phase():
    last = Striking(sent)
    ended = finished(trainer_of("ppo", callbacks=[last]))  # Ctrl-C in the last callback: the record is ready
    assert [record[0] for record in ended.records] == [1, 2, 3] and ended.num_interrupts == 1
    trainer, seen = trainer_of("ppo", callbacks=[Striking(lambda: None)]), []
    with strike(trainer, "statistics", 2, sent):
        while True:
            try:
                seen.extend(log_data["log_type"] for log_data in trainer())
                break
            except KeyboardInterrupt:
                continue
    assert seen.count("collect") >= 2 and seen.count("train") >= 2
    assert trainer.iteration == 3


def test_torchs_switches_are_after_a_phase_what_they_were_before():
    trainer = trainer_of("ppo")

    def switches() -> None:
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        raise RuntimeError("in the middle")

    with strike(trainer, "absorb", 2, switches, before=False), pytest.raises(RuntimeError, match="in the middle"):
        next(trainer)
    assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32


def test_a_bare_step_of_an_env_that_raises_is_taken_again_with_the_same_actions():
    seen = []

    class Failing(CartPole):
        def step(self, actions):
            seen.append(actions.clone())
            actions.fill_(1)  # what an env does to the actions must not reach the second try
            if len(seen) == 4:
                raise OSError("the simulator does not answer")
            return super().step(seen[-1])

    one, two = make_trainer(env=Failing(4)), make_trainer()
    with pytest.raises(OSError, match="does not answer"):
        next(one)
    assert comparable(next(one)) == comparable(next(two))
    assert torch.equal(seen[3], seen[4])


def test_where_some_envs_may_have_taken_the_step_new_episodes_begin():
    env = GymnasiumEnv("CartPole-v1", 2)
    trainer = make_trainer(env=env)
    real, calls = env.step_wait, []

    def failing():
        calls.append(1)
        if len(calls) == 3:
            raise OSError("gone")
        return real()

    env.step_wait = failing  # type: ignore[method-assign]
    with pytest.raises(OSError, match="gone"):
        next(trainer)
    assert not trainer.collector.interrupted
    assert next(trainer).env_steps == 16
    trainer.close()


# -- the gate ----------------------------------------------------------------------------------------------------------


def test_ctrl_c_waits_until_it_is_looked_for():
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        sent()
        sent()  # a key that was pressed twice
        assert interrupt_waits()
        check_interrupt()
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():  # at the end at the latest
        sent()
    with pytest.raises(KeyboardInterrupt) as found, deferred_interrupts():  # an error does not swallow it
        sent()
        raise ValueError("meanwhile")
    assert isinstance(found.value.__cause__, ValueError)
    check_interrupt()


def test_a_second_ctrl_c_does_not_wait_for_a_step_that_hangs(monkeypatch):
    monkeypatch.setattr(interrupts, "PATIENCE_SECONDS", 0.0)
    reached = False
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        sent()
        sent()
        reached = True
    assert not reached and not interrupt_waits()


def test_other_handlers_and_other_threads_are_left_alone():
    noted = []
    signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    with deferred_interrupts():
        sent()
    assert noted == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def elsewhere() -> None:
        with deferred_interrupts():
            noted.append(signal.getsignal(signal.SIGINT))
        check_interrupt()

    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        sent()
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert interrupt_waits()  # it is the main thread's
    with deferred_interrupts(), deferred_interrupts():  # the inner one is none
        pass
