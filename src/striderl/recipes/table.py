"""The recipes by task and algorithm.

config = recipe("cartpole")                          the first algorithm that the table has for the task
config = recipe("cartpole", "a2c")
config = recipe("gymnasium:LunarLander-v3", "sac")   any Gymnasium id, env of one's own, or algorithm: general settings

A family's file is loaded when one of its recipes is used, so the names can be listed at once; the functions are
in the family's own table of the same keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from striderl.data.naming import unknown
from striderl.data.registry import ALGORITHMS, ENVS, GYMNASIUM, OBJECT, colon_hint, full_name, is_reference, task_hint
from striderl.envs.clients import client_of

if TYPE_CHECKING:
    from striderl.training.experiment.run_config import RunConfig

Recipe = Callable[[], "RunConfig[Any, Any]"]
Key = tuple[str, str]
"""Task and algorithm."""
Family = Callable[[], Mapping[Key, Recipe]]


def _classic_control() -> Mapping[Key, Recipe]:
    from striderl.recipes.classic_control import CLASSIC_CONTROL

    return CLASSIC_CONTROL


def _replay() -> Mapping[Key, Recipe]:
    from striderl.recipes.classic_control import CLASSIC_CONTROL_REPLAY

    return CLASSIC_CONTROL_REPLAY


def _offline() -> Mapping[Key, Recipe]:
    from striderl.recipes.classic_control import CLASSIC_CONTROL_OFFLINE

    return CLASSIC_CONTROL_OFFLINE


def _locomotion() -> Mapping[Key, Recipe]:
    from striderl.recipes.locomotion import LOCOMOTION

    return LOCOMOTION


def _locomotion_replay() -> Mapping[Key, Recipe]:
    from striderl.recipes.locomotion import LOCOMOTION_REPLAY

    return LOCOMOTION_REPLAY


def _quadruped() -> Mapping[Key, Recipe]:
    from striderl.recipes.quadruped import QUADRUPED

    return QUADRUPED


RECIPES: dict[Key, Family] = {
    ("cartpole", "ppo"): _classic_control,
    ("cartpole", "a2c"): _classic_control,
    ("cartpole", "reinforce"): _classic_control,
    ("cartpole", "impala"): _classic_control,
    ("cartpole", "dqn"): _replay,
    ("cartpole", "bc"): _offline,
    ("cartpole", "iql"): _offline,
    ("cartpole", "bcq"): _offline,
    ("pendulum", "ppo"): _classic_control,
    ("pendulum", "sac"): _replay,
    ("pendulum", "td3"): _replay,
    ("pendulum", "bc"): _offline,
    ("pendulum", "td3_bc"): _offline,
    ("pendulum", "cql"): _offline,
    ("pendulum", "iql"): _offline,
    ("acrobot", "ppo"): _classic_control,
    ("mountain_car", "ppo"): _classic_control,
    ("mountain_car_continuous", "ppo"): _classic_control,
    ("half_cheetah", "ppo"): _locomotion,
    ("half_cheetah", "sac"): _locomotion_replay,
    ("hopper", "ppo"): _locomotion,
    ("walker2d", "ppo"): _locomotion,
    ("ant", "ppo"): _locomotion,
    ("humanoid", "ppo"): _locomotion,
    ("quadruped", "ppo"): _quadruped,
    ("quadruped_rough", "ppo"): _quadruped,
    ("quadruped_blind", "ppo"): _quadruped,
    ("quadruped_blind", "tppo"): _quadruped,
    ("quadruped_depth", "ppo"): _quadruped,
    ("parkour", "ppo"): _quadruped,
}
"""Every recipe and where it is; of a task with several, the first is what `striderl train TASK` takes."""


def algorithms_for(task: str) -> tuple[str, ...]:
    """Return the algorithms that there are recipes of for a task, the usual one first; none where all are general."""
    return tuple(algorithm for name, algorithm in RECIPES if name == task)


def task_names() -> list[str]:
    """Return the tasks that have a recipe, in the order of the table."""
    return list(dict.fromkeys(task for task, _ in RECIPES))


def recipe(task: str, algorithm: str = "") -> RunConfig[Any, Any]:
    """Return the settings for a task and an algorithm (empty: the usual one); wrong names get a suggestion.

    A pair without a recipe of its own gets the algorithm's defaults around the task's usual envs and evaluations. An
    algorithm from outside that is derived from one of the library begins with the recipe of that one.
    """
    task, algorithm = full_name(task), ALGORITHMS.spelled(algorithm)
    found = algorithms_for(task)
    foreign = task.startswith((GYMNASIUM, OBJECT)) or client_of(task) is not None
    if not found and not foreign and not is_reference(task) and task not in ENVS.names():
        raise KeyError(unknown("task", task, [*task_names(), *ENVS.names()], where="striderl") + task_hint(task))
    if algorithm and algorithm not in ALGORITHMS.names() and not is_reference(algorithm):
        raise KeyError(unknown("algorithm", algorithm, ALGORITHMS.names(), where="striderl") + colon_hint(algorithm))
    key = (task, algorithm or (found[0] if found else "ppo"))
    if key in RECIPES:
        return RECIPES[key]()[key]()
    from striderl.recipes.general import derived, general, general_ppo

    if algorithm and (parent := ALGORITHMS.parent_of(algorithm)):
        return derived(recipe(task, parent), algorithm)
    base = RECIPES[task, found[0]]()[task, found[0]]() if found else general_ppo(task)
    return base if key[1] == base.algorithm_name else general(base, key[1])
