"""Interrupted trainings, to be compared bit for bit with one that was not; `python interrupts.py SEED` has some.

    strike(trainer, place, at)         the `at`-th call at a place raises KeyboardInterrupt, or sends SIGINT
    finished(trainer)                  drive it to its end, going on after every interrupt: records, state, interrupts

As a program it trains one of each kind while a thread sends its own process SIGINT at random times, and prints a line
with what each of them ended with.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from poison import digest
from run_cases import tiny
from training_cases import comparable, make_trainer, without_times

from striderl.envs.tasks import make
from striderl.execution import interrupts
from striderl.execution.parameter_groups import ParameterGroup
from striderl.training.experiment.assembly import build_learner
from striderl.training.trainer import Trainer

KINDS = ("ppo", "ppo_gru", "dqn", "sac")
ITERATIONS = 3


def trainer_of(kind: str, iterations: int = ITERATIONS, callbacks: Any = ()) -> Trainer:
    """A bare trainer of a second: PPO with and without memory, prioritized DQN and SAC, with normalisers."""
    if kind.startswith("ppo"):
        plan = {"total_iterations": iterations, "warmup_steps": 5}
        return make_trainer("gru" if kind == "ppo_gru" else "plain", plan=plan, callbacks=callbacks)
    config = tiny(kind, iterations)
    env = make(config.env.task, num_envs=4, settings={"max_episode_length": 11})
    return build_learner(config, env).trainer(list(callbacks))


@dataclass
class Ended:
    """What a training ended with."""

    digest: str
    """Of everything that it would save, without times."""
    records: list[Any]
    """Every record that its loop was given, without times."""
    num_interrupts: int


def finished(trainer: Trainer, *, most: int = 10_000) -> Ended:
    """Train to the end; after an interrupt the same loop is begun again."""
    records, interrupts = [], 0
    while True:
        try:
            for record in trainer:
                records.append(comparable(record))  # noqa: PERF401  (those before an interrupt are kept)
            break
        except KeyboardInterrupt:
            interrupts += 1
            assert interrupts <= most
    return Ended(digest(without_times(trainer.state_dict())), records, interrupts)


Strike = Callable[[], None]


def raised() -> None:
    raise KeyboardInterrupt


def sent() -> None:
    signal.raise_signal(signal.SIGINT)


@contextmanager
def strike(trainer: Trainer, place: str, at: int, how: Strike, *, before: bool = True) -> Iterator[list[int]]:
    """Interrupt the `at`-th call at a place, before it does its work or after; yields how many calls there were."""
    owner, name = places(trainer)[place]
    real, calls, count = getattr(owner, name), itertools.count(1), [0]

    def struck(*inputs: Any, **settings: Any) -> Any:
        count[0] = next(calls)
        if before and count[0] == at:
            how()
        result = real(*inputs, **settings)
        if not before and count[0] == at:
            how()
        return result

    with mock.patch.object(owner, name, struck):
        yield count


def places(trainer: Trainer) -> dict[str, tuple[Any, str]]:
    """Return where a training can be interrupted: who has which method."""
    algorithm, collector = trainer.algorithm, trainer.collector
    losses = {"PPO": "compute_losses", "SAC": "actor_losses"}.get(type(algorithm).__name__, "losses")
    return {
        "env": (collector.env, "step"),
        "actor": (collector.actor, "act"),
        "losses": (algorithm, losses),
        "optimiser": (ParameterGroup, "step"),
        "absorb": (algorithm, "update_normalization"),
        "settle": (collector, "settle"),
        "storage": (trainer.loop.storage, "add"),
        "statistics": (collector.statistics, "tensors"),
    }


def survived(work: Callable[[], None]) -> None:
    """Do a piece of work again until no KeyboardInterrupt came."""
    while True:
        try:
            work()
            return
        except KeyboardInterrupt:
            continue


def storm(kind: str, seed: int) -> str:
    """Train while a thread sends SIGINT every few milliseconds; return digest, gradient mode and how often."""
    dice, over, sent_signals = random.Random(seed), threading.Event(), itertools.count()
    trainer = trainer_of(kind, 30)

    def shoot() -> None:
        while not over.wait(dice.uniform(0.0, 0.006)):
            if signal.getsignal(signal.SIGINT) is interrupts._note:  # into a phase, not into this program
                next(sent_signals)
                os.kill(os.getpid(), signal.SIGINT)

    def train() -> None:
        for _ in trainer:
            pass
        over.set()

    shooter = threading.Thread(target=shoot)
    shooter.start()
    survived(lambda: survived(train))
    survived(lambda: survived(shooter.join))
    survived(lambda: time.sleep(0.02))  # the last one may still come
    return f"{digest(without_times(trainer.state_dict()))} {torch.is_grad_enabled()} {next(sent_signals)}"


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the parent had
    torch.set_num_threads(1)
    for each in KINDS:
        print(each, storm(each, int(sys.argv[1])))
