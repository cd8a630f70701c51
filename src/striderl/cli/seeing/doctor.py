"""`striderl doctor ENV | RUN`: watch an env or a run for a while and name what is wrong or suspicious.

    striderl doctor cartpole                          a task, an id of Gymnasium, 'module:Class'
    striderl doctor runs/cartpole --seconds 60        the env of a run with its policy, and its log

Each finding has its evidence and what to change. Exit code 0: nothing is wrong (something may be suspicious); 1:
something is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from striderl.cli.options import Trust, parse
from striderl.cli.runs import env_of, find_run, load
from striderl.cli.terminal import UsageError, message_of, say, showing_progress

if TYPE_CHECKING:
    from torch import Tensor

    from striderl.envs.check.symptoms import Act, Finding
    from striderl.envs.vec_env import Actions, Obs, VecEnv
    from striderl.loggers.plots import RunMetrics
    from striderl.training.experiment.loading import LoadedRun

Patient = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV|RUN")]

_MIN_ROWS = 12


@dataclass(frozen=True)
class DoctorOptions:
    """The env or run to examine, and for how long."""

    patient: Patient
    """A task, an id of Gymnasium, 'module:Class', or the folder of a run."""
    seconds: float = 10.0
    """How long it is watched, at most 60."""
    num_envs: int = 8
    """In how many envs."""
    seed: int = 0
    """The seed of envs and actions."""
    json: bool = False
    """Print the findings as JSON."""
    trust: Trust = False


def doctor(words: list[str]) -> int:
    """Examine, and print the findings."""
    options = parse(
        DoctorOptions, words, command="doctor", description="Watch an env or a run and name what is wrong with it."
    )
    if not 0.0 < options.seconds <= 60.0:
        raise UsageError(f"--seconds is more than 0 and at most 60, found {options.seconds:g}")
    if options.num_envs < 1 or options.seed < 0:
        raise UsageError(
            f"--num-envs is at least 1 and --seed not negative, found {options.num_envs} and {options.seed}"
        )
    run = _run(options.patient)
    findings = _of_env(options) if run is None else _of_run(run, options)
    if options.json:
        say(json.dumps([asdict(each) for each in findings]))
    else:
        for each in findings:
            say(str(each))
        say(f"{options.patient}: {_verdict(findings)}")
    return int(any(each.level == "wrong" for each in findings))


def _verdict(findings: list[Finding]) -> str:
    counts = {level: sum(each.level == level for each in findings) for level in ("wrong", "suspicious")}
    listed = " and ".join(f"{count} things are {level}" for level, count in counts.items() if count)
    return listed.replace("1 things are", "1 thing is") or "nothing is wrong or suspicious"


def _run(patient: str) -> Path | None:
    """Return the folder of a run; None for the name of an env."""
    from striderl.envs.tasks import TASKS

    if patient in TASKS or not Path(patient).is_dir():
        return None
    return find_run(patient)


def _of_env(options: DoctorOptions) -> list[Finding]:
    from striderl.envs.tasks import make

    try:
        env = make(options.patient, num_envs=options.num_envs)
    except (KeyError, ValueError, TypeError, ImportError, RuntimeError) as error:
        raise UsageError(message_of(error)) from error
    except Exception as error:  # whatever an env of the user's own raises
        raise UsageError(f"{options.patient} cannot be built: {type(error).__name__}: {error}") from error
    with env:
        return _watched(env, options, None)


def _watched(env: VecEnv, options: DoctorOptions, act: Act | None) -> list[Finding]:
    from striderl.envs.check.symptoms import examine_env

    with showing_progress(f"watching {options.patient}") as progress:
        found = examine_env(env, seconds=options.seconds, seed=options.seed, act=act, progress=progress)
    if not options.json:
        speed = f"{found.steps_per_second:,.0f} env steps per second"
        say(f"{options.patient}: {speed} in {env.num_envs} envs of one process")
    return list(found.findings)


# -- a run -------------------------------------------------------------------------------------------------------------


def _of_run(folder: Path, options: DoctorOptions) -> list[Finding]:
    from striderl.loggers.plots import read_metrics

    findings: list[Finding] = []
    try:
        findings += log_findings(read_metrics(folder))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder}: {message_of(error)}") from error
    loaded = load(folder, "last", trust=options.trust)
    findings += _of_normalizers(loaded)
    with env_of(loaded, num_envs=options.num_envs) as env:
        return findings + _watched(env, options, _policy_act(loaded, env)) + _at_bounds(loaded, env, options)


def _policy_act(loaded: LoadedRun, env: VecEnv) -> Act:
    """Return the run's greedy policy as a function of observations, with its memory."""
    import torch

    from striderl.collect.actors.policy_actor import GreedyActor
    from striderl.collect.group import where_env

    actor = GreedyActor(loaded.policy)
    fresh_state = actor.initial_state(env.num_envs, env.device)
    kept: dict[str, Any] = {"state": fresh_state}

    def act(obs: Obs, fresh: Tensor) -> Actions:
        state = where_env(fresh, fresh_state, kept["state"])
        with torch.no_grad():
            output = actor.act(obs, state, {})
        kept["state"] = output.state
        actions: Actions = output.actions
        return actions

    return act


def _at_bounds(loaded: LoadedRun, env: VecEnv, options: DoctorOptions) -> list[Finding]:
    """Return whether the policy's actions sit at their bounds."""
    from striderl.envs.check.symptoms import Finding, Survey

    survey = Survey(env)
    survey.walk(
        seconds=min(5.0, options.seconds),
        seed=options.seed + 1,
        max_steps=500,
        act=_policy_act(loaded, env),
        progress=None,
    )
    found = []
    for name, at_bound in survey.actions.items():
        shares = at_bound / max(1, survey.num_steps)
        stuck = (shares > 0.9).nonzero().flatten().tolist()
        if stuck:
            found.append(
                Finding(
                    level="suspicious",
                    what=f"actions {name or ''} sit at their bounds".replace("  ", " "),
                    evidence=f"entries {stuck[:8]} in more than 90 % of {survey.num_steps} steps",
                    fix="widen the bounds, penalise large actions, or lower the learning rate",
                )
            )
    return found


def _of_normalizers(loaded: LoadedRun) -> list[Finding]:
    from striderl.envs.check.symptoms import Finding
    from striderl.networks.normalizers import EmpiricalNormalization

    found = []
    for name, module in loaded.policy.named_modules():
        if not isinstance(module, EmpiricalNormalization):
            continue
        spread = module.std.detach().flatten()
        still, wide = int((spread < 1e-6).sum()), int((spread > 1e4).sum())
        for count, what in ((still, "never changed"), (wide, "were blown up by outliers")):
            if count:
                found.append(
                    Finding(
                        level="suspicious",
                        what=f"the normaliser {name} is saturated",
                        evidence=f"{count} of {spread.numel()} inputs {what}; deviations go from {spread.min():.2g} to "
                        f"{spread.max():.2g}",
                        fix="leave out or scale these components in the env",
                    )
                )
    return found


# -- the log of a run --------------------------------------------------------------------------------------------------


def log_findings(metrics: RunMetrics) -> list[Finding]:
    """Return what the metrics of a run show: faults, KL, explained variance, entropy, clipping, learning rate."""
    from striderl.envs.check.symptoms import Finding

    found: list[Finding] = []

    def add(level: Any, what: str, evidence: str, fix: str) -> None:
        found.append(Finding(level=level, what=what, evidence=evidence, fix=fix))

    for name, what in (("bad_samples", "samples"), ("skipped_updates", "gradients"), ("rollbacks", "updates")):
        values = metrics.curve(f"faults/{name}")[1]
        if len(values) and values[-1] > 0:
            add(
                "wrong",
                f"{what} were not finite",
                f"faults/{name} = {values[-1]:g} at the end",
                "'striderl report' shows the last second before each fault; mend the env, or lower the learning rate",
            )
    late = _late(metrics)
    kl, clipped = late("train/kl"), late("train/clip_fraction")
    if kl is not None and kl > 0.1:
        add(
            "suspicious",
            "updates move the policy far",
            f"train/kl is {kl:.3g} in the last quarter; 0.005 to 0.03 is usual",
            "lower --algorithm.learning-rate or the number of epochs, or use an adaptive learning rate",
        )
    if clipped is not None and clipped > 0.5:
        add(
            "suspicious",
            "most samples are clipped",
            f"train/clip_fraction is {clipped:.2f} in the last quarter; 0.05 to 0.3 is usual",
            "lower --algorithm.learning-rate or the number of epochs",
        )
    explained = late("train/explained_variance")
    if explained is not None and explained < 0.0:
        add(
            "suspicious",
            "the critic predicts worse than a constant",
            f"train/explained_variance is {explained:.2f} in the last quarter; it should come near 1",
            "check that the critic observes what the reward depends on, the scale of rewards, and gamma",
        )
    _of_entropy(metrics, add)
    rate = late("train/learning_rate")
    if rate is not None and 0.0 < rate < 1e-6:
        add(
            "suspicious",
            "the learning rate has vanished",
            f"train/learning_rate is {rate:.2g} in the last quarter",
            "look at the schedule, or at a KL target that is too small",
        )
    return found


def _late(metrics: RunMetrics) -> Callable[[str], float | None]:
    """Return a function that gives the median of a metric in the last quarter of its rows; None for few rows."""
    import numpy as np

    def median(name: str) -> float | None:
        values = metrics.curve(name)[1]
        return float(np.median(values[-(len(values) // 4) :])) if len(values) >= _MIN_ROWS else None

    return median


def _of_entropy(metrics: RunMetrics, add: Callable[[Any, str, str, str], None]) -> None:
    """Name an entropy that collapsed while nothing was learned: at the end of a solved task it is small as well."""
    entropy, returns = metrics.curve("train/entropy")[1], metrics.curve("collect/return_mean")[1]
    if len(entropy) < _MIN_ROWS or len(returns) < _MIN_ROWS or not entropy[0] > 0.0:
        return
    quarter = len(returns) // 4
    gained = returns[-quarter:].mean() - returns[:quarter].mean()
    if entropy[-1] < 0.02 * entropy[0] and gained <= returns[:quarter].std():
        add(
            "suspicious",
            "the entropy has collapsed",
            f"train/entropy fell from {entropy[0]:.3g} to {entropy[-1]:.3g}, and the return did not grow",
            "raise --algorithm.entropy-coef, or lower the learning rate",
        )
