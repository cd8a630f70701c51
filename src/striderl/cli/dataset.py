"""`striderl dataset SOURCE FOLDER`: record a dataset to learn from, of a task or of what a run has learned.

`striderl import-trajectories OLD NEW` converts a recording of pickles to the format of this library.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from striderl.cli.options import Trust, parse
from striderl.cli.runs import env_of, find_run, load
from striderl.cli.terminal import UsageError, complain, message_of, say, showing_progress

if TYPE_CHECKING:
    from striderl.envs.vec_env import VecEnv
    from striderl.storage.replay.replay import Replay

Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
Folder = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


@dataclass(frozen=True)
class DatasetOptions:
    """What is recorded, and where to."""

    source: Source
    """A task, for which a learner is trained and recorded on its way; or the folder of a run, whose policy acts."""
    folder: Folder
    """Where the dataset is saved; it must not exist."""
    kind: str = ""
    """The behaviour policy for a task: random, medium, expert, or mix, a third of each; mix unless given."""
    num_steps: int = 40_000
    """How many steps are recorded, at least."""
    num_envs: int = 10
    """In how many envs."""
    train_steps: int = 8_000
    """Env steps of the learner that is trained for a task: SAC, or DQN where actions are choices."""
    checkpoint: str = "best"
    """'best', 'last', or a number of steps, for a run; its policy is sampled from, not played greedily."""
    seed: int = 0
    """Decides the learner, the envs and the actions."""
    trust: Trust = False


def record_dataset(words: list[str]) -> int:
    """Record, save, and print the returns of the data."""
    options = parse(
        DatasetOptions,
        words,
        command="dataset",
        description="Record a dataset that bc, td3_bc, cql, iql and bcq can learn from.",
    )
    if options.num_steps < 1 or options.num_envs < 1 or options.train_steps < 1_000 or options.seed < 0:
        raise UsageError(
            "num_steps and num_envs are at least 1, train_steps at least 1000, seed is not negative, found "
            f"{options.num_steps}, {options.num_envs}, {options.train_steps} and {options.seed}"
        )
    if Path(options.folder).exists():
        raise UsageError(f"{options.folder!r} exists; a dataset is saved to a folder of its own")
    _make_place(Path(options.folder).parent)
    began = time.perf_counter()
    task, replay, env, about = _of_task(options) if _is_task(options.source) else _of_run(options)
    _save(options.folder, replay, env, about)
    say(f"{options.folder}: {len(replay):,} steps of {task}, {_earned(replay)}, {time.perf_counter() - began:.0f} s")
    learners = _learners(task)
    if learners:
        say(f"next: striderl train {task} --dataset {options.folder} --algorithm {' | '.join(learners)}")
    return 0


def _make_place(folder: Path) -> None:
    """Make the dataset's folder before anything is trained for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"no place for the dataset: {message_of(error)}") from error


def _learners(task: str) -> list[str]:
    """Return the algorithms that there are recipes of for learning the task from a dataset."""
    from striderl.algorithms.building import OFFLINE, facts_of
    from striderl.recipes.table import algorithms_for

    return [name for name in algorithms_for(task) if facts_of(name).loop == OFFLINE]


def _is_task(source: str) -> bool:
    from striderl.data.registry import ENVS, GYMNASIUM, full_name, is_reference
    from striderl.envs.tasks import TASKS

    known = source in TASKS or source in ENVS.names() or is_reference(source)
    return known or full_name(source).startswith(GYMNASIUM)


def _require_source(source: str) -> None:
    """Raise for what is neither a task nor a run; a path was meant to be a run."""
    from striderl.data.naming import suggestion
    from striderl.envs.tasks import TASKS

    try:
        find_run(source)
    except UsageError as error:
        if Path(source).exists() or "/" in source:
            raise
        near = suggestion(source.partition("-v")[0].lower(), TASKS)
        listed = ", ".join(map(repr, TASKS))
        raise UsageError(f"there is neither a task nor a run {source!r}. {near}Tasks: {listed}.") from error


def _of_task(options: DatasetOptions) -> tuple[str, Replay, VecEnv, dict[str, Any]]:
    from striderl.collect.actors.base import Actor, RandomActor
    from striderl.data.naming import unknown
    from striderl.envs.tasks import make
    from striderl.recipes.offline import KINDS, train_behaviours

    kind = options.kind or "mix"
    if kind not in KINDS:
        raise UsageError(unknown("kind", kind, KINDS, where="striderl dataset"))
    about: dict[str, Any] = {"task": options.source, "kind": kind, "seed": options.seed}
    try:
        env = make(options.source, num_envs=options.num_envs)
        if kind == "random":
            actors: list[Actor] = [RandomActor(env.action_spec)]
        else:
            say(f"training a learner of {options.source} for {options.train_steps:,} steps …")
            with showing_progress("training") as progress:
                behaviours = train_behaviours(
                    options.source, total_steps=options.train_steps, seed=options.seed, progress=progress
                )
            about |= {"train_steps": options.train_steps, "returns": dict(behaviours.returns)}
            actors = behaviours.actors(kind)
    except (ImportError, KeyError, ValueError, RuntimeError) as error:
        raise UsageError(message_of(error)) from error
    return options.source, _recorded(env, actors, options), env, about


def _of_run(options: DatasetOptions) -> tuple[str, Replay, VecEnv, dict[str, Any]]:
    _require_source(options.source)
    loaded = load(options.source, options.checkpoint, trust=options.trust)

    from striderl.collect.actors.behaviours import BehaviourActor, Sample

    if options.kind:
        raise UsageError("--kind is for a task; a run has one policy, which --checkpoint chooses")
    env, task = env_of(loaded, num_envs=options.num_envs), loaded.env.task
    replay = _recorded(env, [BehaviourActor(loaded.policy, Sample())], options)
    about = {"task": task, "run": loaded.folder.path.name, "step": loaded.step, "seed": options.seed}
    return task, replay, env, about


def _recorded(env: VecEnv, actors: list[Any], options: DatasetOptions) -> Replay:
    from striderl.recipes.offline import record_steps

    with showing_progress("recording") as progress:
        return record_steps(env, actors, options.num_steps, seed=options.seed, progress=progress)


def _save(folder: str, replay: Replay, env: VecEnv, about: dict[str, Any]) -> None:
    from striderl.checkpoint.errors import CheckpointError
    from striderl.datasets.offline import save_dataset

    try:
        save_dataset(folder, replay, env.obs_spec, env.action_spec, about=about)
    except (CheckpointError, OSError) as error:
        raise UsageError(message_of(error)) from error
    finally:
        env.close()


def _earned(replay: Replay) -> str:
    """Print mean reward and return; the last episode of an env counts in part."""
    from striderl.datasets.offline import all_steps

    steps = all_steps(replay)
    episodes = int((steps["terminated"] | steps["truncated"]).sum())
    total = float(steps["rew"].double().sum())
    return f"reward {total / len(replay):.4g} per step, {total / max(episodes, 1):.4g} per episode"


# -- recordings of before ----------------------------------------------------------------------------------------------


Old = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OLD")]
New = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NEW")]


@dataclass(frozen=True)
class ImportOptions:
    """From where to where."""

    old: Old
    """The folder with trajectory_0/traj_000000_000064.pickle and so on, and metadata.json."""
    new: New
    """The folder that is made."""


def import_trajectories(words: list[str]) -> int:
    """Import, and print the number of trajectories; exit code 1 where something was left out."""
    from striderl.datasets.readers.old_pickles import import_old_trajectories
    from striderl.datasets.trajectories.spec import TrajectoryError

    options = parse(
        ImportOptions,
        words,
        command="import-trajectories",
        description="Bring trajectory_*/traj_*.pickle over; the pickles are read, and nothing in them is run.",
    )
    try:
        done = import_old_trajectories(options.old, options.new)
    except TrajectoryError as error:
        raise UsageError(str(error)) from error
    say(f"{options.new}: {done.num_steps} steps in {done.num_trajectories} trajectories")
    for reason in done.left_out:
        complain(f"left out {reason}")
    return 1 if done.left_out else 0
