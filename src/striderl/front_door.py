"""The front door: train on any env with any algorithm, load what was learned, give parts of one's own a name.

    agent = striderl.train("ppo", env="gymnasium:CartPole-v1", steps=100_000)
    action = agent.predict(obs)
    agent.save("runs/mine")
    agent = striderl.load("runs/mine")

    striderl.train("sac", env=PointRobot, steps=50_000, settings={"algorithm.gamma": 0.98, "policy.kind": "mlp"})
    striderl.register("algorithms", "trpo", TRPO)          then striderl.train("trpo", …), --algorithm trpo

What `train` does is what the command line does: a run folder with config, checkpoints and metrics, which `striderl
resume`, `evaluate`, `play`, `export` and `plot` read.
"""

from __future__ import annotations

import difflib
import inspect
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from striderl.training.agent import Agent
    from striderl.training.experiment.run_config import RunConfig


def train(
    algorithm: str | type[Any] = "",
    env: Any = None,
    *,
    steps: float = 0,
    num_envs: int = 0,
    seed: int | None = None,
    device: str = "",
    terms: Iterable[str] | Mapping[str, Any] = (),
    settings: Mapping[str, Any] | None = None,
    objects: Mapping[str, Any] | None = None,
    callbacks: Iterable[Any] = (),
    dataset: str | Path = "",
    runs: str | Path = "runs",
    name: str = "",
    resume: str | Path = "",
    trust: bool = False,
    **unknown: Any,
) -> Agent:
    """Train, and return an agent that plays the best policy of the run; `agent.run` is its folder.

    algorithm: a name (`striderl list algorithms`), 'module:Class', or a class with what `algorithms/building.py` lists;
        empty takes the usual one for the task.
    env: a task's name, an id of Gymnasium, 'module:Class', an env object of Gymnasium, rsl_rl or this library, its
        class, or a function that makes one. An object is trained on as it is, and not evaluated beside the training.
    steps: how long, in steps over all envs, also written 1e6; 0 leaves the recipe's.
    terms: what is learned beside the algorithm: names, or name → table of settings.
    settings: other settings by their place in the config, such as {"algorithm.learning_rate": 1e-3}.
    objects: live parts that a config cannot name: 'teacher', 'expert', 'symmetry'.
    callbacks: functions of a record, which may return numbers to log or a reason to stop; or names of registered ones.
    dataset: the folder that bc, td3_bc, cql, iql and bcq learn from.
    runs, name: the folder of the run is runs/TASK/name, or the time where there is no name.
    resume: go on with this run instead of starting one; `env` and `objects` must be handed over again.
    trust: with `resume`: import modules that the folder names though it was made elsewhere.
    """
    from striderl.training.agent import Agent
    from striderl.training.callbacks.callback import as_callback
    from striderl.training.experiment.run import Run
    from striderl.training.experiment.run_folder import RunFolder, new_run_folder
    from striderl.training.signals import StopSignals

    if unknown:
        raise TypeError(_unknown_argument(unknown, algorithm, env))
    live = dict(objects or {})
    if resume:
        if algorithm or num_envs or seed is not None or dataset or name or tuple(terms):
            raise ValueError("with resume, only steps, settings, env, objects and callbacks can be given")
        from striderl.training.experiment.run_config import read_run_config

        config = read_run_config(resume, trust=trust)
        folder = RunFolder(resume)
        if env is not None:
            live["env"] = env
    else:
        config = _config(algorithm, env, live)
        folder = None
    config = _changed(config, steps, num_envs, seed, device, terms, settings, dataset)
    callbacks = list(callbacks)
    watchers = [as_callback(each) for each in callbacks if not isinstance(each, str)]
    config = replace(config, callbacks=(*config.callbacks, *(each for each in callbacks if isinstance(each, str))))
    if folder is None:
        folder = new_run_folder(config, runs, name)
    main = threading.current_thread() is threading.main_thread()
    with StopSignals() if main else nullcontext(StopSignals()) as signals:
        run = Run(config, folder, signals=signals, watchers=watchers, objects=live)
        if resume:
            run.restore(trust=trust)
            run.trainer.go_on()
        outcome = run.drive()
    if outcome.exit_code == 130:
        raise KeyboardInterrupt(f"stopped; striderl.train(resume={str(folder.path)!r}) goes on")
    if outcome.exit_code:
        raise RuntimeError(f"{folder.path}: {outcome.reason}")
    return Agent.load(folder.path, device=config.device, trust=True)


def load(
    run: str | Path, which: str | int = "best", *, device: str = "cpu", seed: int = 0, trust: bool = False
) -> Agent:
    """Return an agent that plays a run's policy: the 'best', the 'last', or that of a number of env steps.

    trust: whether modules of the run's own algorithm or network are imported from a folder that was made elsewhere.
    """
    from striderl.training.agent import Agent

    return Agent.load(run, which, device=device, seed=seed, trust=trust)


def register(kind: str, name: str, part: Any) -> None:
    """Give a part of one's own a name in this process: an object, a class, or 'module:name'.

    kind: 'algorithms', 'terms', 'envs', 'loggers', 'callbacks' or 'networks'.
    """
    from striderl.data.naming import unknown
    from striderl.data.registry import REGISTRIES

    if kind not in REGISTRIES:
        raise KeyError(unknown("kind of parts", kind, REGISTRIES, where="striderl.register"))
    REGISTRIES[kind].register(name, part)


# -- inside ------------------------------------------------------------------------------------------------------------


def _unknown_argument(given: Mapping[str, Any], algorithm: str | type[Any], env: Any) -> str:
    """Compose the message for an argument that `train` lacks: the settings of that name, or those nearest to it."""
    name, value = next(iter(given.items()))
    arguments = [each for each in inspect.signature(train).parameters if each != "unknown"]
    try:
        places = list(_places(_config(algorithm, env, {}).to_dict()))
    except (KeyError, TypeError, ValueError, ImportError):  # the env or the algorithm is wrong as well
        places = []
    near = difflib.get_close_matches(name, arguments, n=1, cutoff=0.8)
    meant = near[0] if near else _settings_like(name, value, places)
    if meant:
        return f"striderl.train has no argument {name!r}. Did you mean {repr(meant) if near else meant}?"
    return (
        f"striderl.train has no argument {name!r}. It has {', '.join(arguments)}; other settings go by their place in "
        "the config, such as settings={'algorithm.learning_rate': 1e-3} ('striderl train TASK --help' lists them)"
    )


def _settings_like(name: str, value: Any, places: list[str]) -> str:
    """Return how settings of this name, or of the nearest, are given; '' where none is near."""
    by_last = {place.rpartition(".")[2]: place for place in reversed(places)}
    last = [name] if name in by_last else difflib.get_close_matches(name, by_last, n=1, cutoff=0.7)
    short = {"plan.total_steps": f"steps={value!r}", "env.num_envs": f"num_envs={value!r}"}
    found = [place for place in places if place.rpartition(".")[2] in last]
    return " or ".join(short.get(place, f"settings={{{place!r}: {value!r}}}") for place in found[:3])


def _places(table: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _places(value, f"{before}{name}.")
        else:
            yield f"{before}{name}"


def _config(algorithm: str | type[Any], env: Any, live: dict[str, Any]) -> RunConfig[Any, Any]:
    """Return the recipe for an env and an algorithm; live parts are noted by a name that a file can hold."""
    from striderl.data.registry import ALGORITHMS, OBJECT
    from striderl.recipes.table import recipe

    if env is None:
        raise TypeError("train() wants an env: a name such as 'cartpole' or 'CartPole-v1', an env, a class, a function")
    if not isinstance(algorithm, str):
        reference = _reference(algorithm)
        if not reference:
            reference = algorithm.__name__.lower()
            ALGORITHMS.register(reference, algorithm)
        algorithm = reference
    if isinstance(env, str):
        return recipe(env, algorithm)
    task = _reference(env) if inspect.isclass(env) or inspect.isfunction(env) else ""
    live["env"] = env
    if task:
        return recipe(task, algorithm)
    known = env if inspect.isclass(env) or inspect.isfunction(env) else type(env)
    config = recipe(f"{OBJECT}{known.__name__}", algorithm)
    if inspect.isclass(env) or not hasattr(env, "step"):
        return config
    return replace(
        config,
        env=replace(config.env, num_envs=int(getattr(env, "num_envs", 1))),
        evaluation=replace(config.evaluation, every=0, at_end=False),
        checkpoints=replace(config.checkpoints, best=""),
        stop=replace(config.stop, metric=""),
    )


def _reference(part: Any) -> str:
    """Return 'module:name' for a part that another process can import; '' for one that it cannot."""
    if part.__module__ == "__main__" or part.__module__ not in sys.modules or "<" in part.__qualname__:
        return ""
    return f"{part.__module__}:{part.__qualname__}"


def _changed(
    config: RunConfig[Any, Any],
    steps: float,
    num_envs: int,
    seed: int | None,
    device: str,
    terms: Iterable[str] | Mapping[str, Any],
    settings: Mapping[str, Any] | None,
    dataset: str | Path,
) -> RunConfig[Any, Any]:
    """Return the config with what the arguments change, by the same names and checks as in a file."""
    from striderl.training.experiment.config_json import ConfigError
    from striderl.training.experiment.run_config import RunConfig

    plain = config.to_dict()
    changes: dict[str, Any] = {}
    if steps:
        changes["plan.total_steps"] = int(steps) if isinstance(steps, float) and steps.is_integer() else steps
    if num_envs:
        changes["env.num_envs"] = num_envs
    if seed is not None:
        changes["seed"] = seed
    if device:
        changes["device"] = device
    if dataset:
        changes["dataset"] = str(Path(dataset).resolve())
    for term, given in terms.items() if isinstance(terms, Mapping) else ((each, {}) for each in terms):
        changes[f"terms.{term}"] = given
    for place, value in {**changes, **(settings or {})}.items():
        if "." not in place and place not in plain and (meant := _settings_like(place, value, list(_places(plain)))):
            raise ConfigError(f"config has no setting {place!r}. Did you mean {meant}?")
        _set(plain, place, value)
    return RunConfig.from_dict(plain)


def _set(table: dict[str, Any], place: str, value: Any) -> None:
    """Set a value at 'part.part.name' of nested tables; parts that are missing are made, and checked with the rest."""
    from striderl.training.experiment.config_json import to_plain

    *parts, last = place.split(".")
    for part in parts:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ValueError(f"settings: {place!r} goes through {part!r}, which is no table")
    table[last] = to_plain(value)
