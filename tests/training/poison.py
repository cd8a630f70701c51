"""Bad numbers put into training runs; each has to be equal to the run without that sample (`poisoned_envs.py`)."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from poisoned_envs import Injection, Masked, Poisoned, Wrapped
from run_cases import tiny
from torch import Tensor

from striderl.data import tree
from striderl.envs.tasks import make
from striderl.envs.vec_env import VecEnv
from striderl.execution.parameter_groups import ParameterGroup
from striderl.training.experiment.assembly import build_learner
from striderl.training.guard import FaultReport
from striderl.training.trainer import Trainer

VALUES = (math.nan, math.inf, -math.inf, 1e30, -1e30)
"""What is bad."""
DENORMAL = 1e-40
"""What is not."""
PLACES = ("obs", "final_obs", "reward", "start")
"""Where an env may be wrong; 'start' is the observation of a reset."""
KINDS = ("cartpole", "pendulum_lstm", "dqn", "sac")
"""The runs of `run_cases.tiny`; 'cartpole' is PPO with an MLP."""
ITERATIONS = 4
NUM_ENVS = 4


def heals_after(kind: str) -> Callable[[int], bool]:
    """Tell after which steps of each env a call of `collect` ends in a tiny run."""
    if kind in ("dqn", "sac"):
        return lambda count: count >= 3  # a warm-up of 16 steps in 4 envs, then step by step
    return lambda count: count % 8 == 7


def config_of(kind: str) -> Any:
    config = tiny(kind, ITERATIONS)
    # short episodes, so that there are ends of both kinds
    return replace(config, env=replace(config.env, settings={"max_episode_length": 11}), num_threads=1)


def trainer_on(config: Any, wrap: Callable[[VecEnv], VecEnv]) -> Trainer:
    env = make(config.env.task, num_envs=NUM_ENVS, settings=config.env.settings)
    return build_learner(config, wrap(env)).trainer([])


@dataclass
class Result:
    """What a run ended with."""

    digest: str
    """Of parameters, optimisers, normalisers and counters."""
    finite: bool
    """Whether all of those are finite."""
    metrics: Mapping[str, float]
    """Of the last record."""
    injected: bool = True
    """Whether the place of the injection was reached."""
    lines: list[tuple[Any, ...]] = field(default_factory=list)
    """What was reported: (component, env, step, value)."""


def finish(trainer: Trainer) -> Result:
    """Train to the end."""
    lines: list[tuple[Any, ...]] = []

    def note(self: FaultReport, env_steps: int, num_updates: int, component: str, count: int, **rest: Any) -> None:
        lines.append((component, rest["env"], rest["step"], rest["value"]))

    with mock.patch.object(FaultReport, "_write", note):
        for record in trainer:
            metrics = dict(record.metrics)
    state = trainer.state_dict()["algorithm"]
    env = trainer.collector.env
    injected = env.done if isinstance(env, Wrapped) else True
    trainer.close()
    return Result(digest(state), all_finite(state), metrics, injected, lines)


def digest(state: Any, but: tuple[str, ...] = ("num_skipped",)) -> str:
    """Return the SHA-256 of a state, bit for bit, without some of its names."""
    found = hashlib.sha256()
    for path, leaf in tree.items(state):
        if path.rpartition("/")[2] in but:
            continue
        found.update(path.encode())
        if isinstance(leaf, Tensor):
            found.update(str((leaf.dtype, tuple(leaf.shape))).encode())
            found.update(leaf.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        else:
            found.update(repr(leaf).encode())
    return found.hexdigest()


def all_finite(state: Any) -> bool:
    tensors = [leaf for _, leaf in tree.items(state) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return all(bool(torch.isfinite(leaf).all()) for leaf in tensors)


# -- envs --------------------------------------------------------------------------------------------------------------


def poison_envs(kind: str, place: str, env: int, step: int, values: tuple[float, ...] = VALUES) -> Iterator[str]:
    """Inject each of the values at one place; yield what is wrong, or '' for an injection that was withstood."""
    config, masked = config_of(kind), Injection(place, env, step)
    wanted = finish(trainer_on(config, lambda inner: Masked(inner, masked, heals_after(kind))))
    for value in values:
        injection = replace(masked, value=value)
        found = finish(trainer_on(config, partial(Poisoned, injection=injection)))
        yield _judge(found, wanted, injection, kind)


def _judge(found: Result, wanted: Result, injection: Injection, kind: str) -> str:
    where = f"{kind}, {injection}"
    if not found.injected:
        return f"{where}: the place was never reached"
    if not found.finite:
        return f"{where}: weights, optimiser or normaliser are not finite"
    if found.digest != wanted.digest:
        return f"{where}: the weights differ from those of a run in which that sample was masked"
    if found.metrics["faults/bad_samples"] < 1 or wanted.metrics["faults/bad_samples"] != 0:
        return f"{where}: counted {found.metrics['faults/bad_samples']} in the log"
    component = {"obs": "obs", "start": "obs", "reward": "reward", "final_obs": "final_obs/obs"}[injection.place]
    magnitude = abs(injection.value)
    for name, env, step, value in found.lines:
        same = math.isnan(value) if math.isnan(magnitude) else math.isclose(value, magnitude, rel_tol=1e-6)
        late = injection.place == "final_obs" and step >= injection.step
        if name == component and env == injection.env and same and (late or step == max(injection.step, 0)):
            return ""
    return f"{where}: reported as {found.lines}"


def denormal(kind: str, place: str, env: int, step: int) -> str:
    """Inject a number that is tiny and not bad: nothing is masked, everything stays finite."""
    found = finish(trainer_on(config_of(kind), lambda inner: Poisoned(inner, Injection(place, env, step, DENORMAL))))
    good = found.injected and found.finite and found.metrics["faults/bad_samples"] == 0 and not found.lines
    return "" if good else f"{kind}, {place}, env {env}, step {step}, denormal: {found}"


# -- gradients and parameters ------------------------------------------------------------------------------------------


@contextmanager
def at_step(
    number: int, spoil: Callable[[ParameterGroup], Tensor | None], after: bool = False
) -> Iterator[Counter[str]]:
    """Do something to a group of parameters in one of all gradient steps; a tensor returned takes the step's place."""
    real, seen = ParameterGroup.step, Counter[str]()

    def step(group: ParameterGroup) -> Tensor:
        mine = seen["steps"] == number
        seen["steps"] += 1
        if mine and not after:
            instead = spoil(group)
            if instead is not None:
                return instead
        norm = real(group)
        if mine and after:
            spoil(group)
        return norm

    with mock.patch.object(ParameterGroup, "step", step):
        yield seen


def poison_gradients(kind: str, number: int, values: tuple[float, ...] = VALUES) -> Iterator[str]:
    """Put each value into one gradient; the run is equal to one in which that step was not taken."""
    config = config_of(kind)
    with at_step(number, lambda group: torch.linalg.vector_norm(group.flat.grad)) as seen:
        wanted = finish(trainer_on(config, lambda inner: inner))
    assert seen["steps"] > number, f"{kind} takes {seen['steps']} gradient steps"
    for value in values:

        def spoil(group: ParameterGroup, value: float = value) -> None:
            group.flat.grad[number % group.flat.grad.numel()] = value

        with at_step(number, spoil):
            found = finish(trainer_on(config, lambda inner: inner))
        where = f"{kind}, gradient step {number}, {value}"
        if found.digest != wanted.digest or not found.finite:
            yield f"{where}: the weights differ from those of a run without that step"
        elif found.metrics["faults/skipped_updates"] != 1 or not found.lines[0][0].startswith("gradient of "):
            yield f"{where}: counted {found.metrics['faults/skipped_updates']}, reported {found.lines}"
        else:
            yield ""


def break_parameters(kind: str, number: int, values: tuple[float, ...] = (math.nan, math.inf)) -> Iterator[str]:
    """Let one gradient step break parameters or moments; the iteration's update is taken back as if never made."""
    config = config_of(kind)
    places: list[Callable[[ParameterGroup], Tensor]] = [
        lambda group: group.flat.flat,
        lambda group: group.second_moment,
    ]
    for value, place in itertools.product(values, places):

        def spoil(group: ParameterGroup, value: float = value, place: Any = place) -> None:
            place(group)[number % group.flat.flat.numel()] = value

        with at_step(number, spoil, after=True):
            trainer = trainer_on(config, lambda inner: inner)
            kept = _kept_iterations(trainer)
            found = finish(trainer)
        where = f"{kind}, after gradient step {number}, {value}"
        if not found.finite:
            yield f"{where}: not finite at the end"
        elif found.metrics["faults/rollbacks"] != 1 or ("parameters", None) not in {line[:2] for line in found.lines}:
            yield f"{where}: counted {found.metrics['faults/rollbacks']}, reported {found.lines}"
        elif kept != [True]:
            yield f"{where}: what was learned before is not in place"
        else:
            yield ""


def _kept_iterations(trainer: Trainer) -> list[bool]:
    """Return a list that fills with one entry per update taken back: whether the state before it is back."""
    guard, kept = trainer.loop.guard, list[bool]()
    before, after, digests = guard.before, guard.after, [""]

    def noting() -> None:
        digests[0] = digest(trainer.algorithm.state_dict())
        before()

    def comparing(*arguments: Any, **settings: Any) -> bool:
        taken_back = after(*arguments, **settings)
        if taken_back:
            kept.append(digest(trainer.algorithm.state_dict()) == digests[0])
        return taken_back

    guard.before, guard.after = noting, comparing  # type: ignore[method-assign]
    return kept


# -- many --------------------------------------------------------------------------------------------------------------


def cases(seed: int, count: int) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield named groups of injections until there are at least `count` of them, spread evenly over what there is."""
    dice, made = random.Random(seed), 0
    for turn in itertools.count():
        for kind, place in itertools.product(KINDS, (*PLACES, "gradient", "parameters")):
            if made >= count:
                return
            if place == "start" and turn:
                continue  # there is one start
            name = f"{place} {kind}"
            if place == "gradient":
                made += len(VALUES)
                yield name, poison_gradients(kind, dice.randrange(12))
            elif place == "parameters":
                made += 4
                yield name, break_parameters(kind, dice.randrange(12))
            else:
                made += len(VALUES)
                yield (
                    name,
                    poison_envs(kind, place, dice.randrange(NUM_ENVS), 0 if place == "start" else dice.randrange(19)),
                )
