"""`striderl evaluate RUN`: evaluate the greedy policy over whole episodes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from striderl.cli.options import Env, Run, Trust, parse
from striderl.cli.runs import env_of, load
from striderl.cli.terminal import UsageError, say, showing_progress


@dataclass(frozen=True)
class EvaluateOptions:
    """How a run is evaluated."""

    run: Run
    """The folder of a run, or of several (runs/cartpole: the newest of them)."""
    checkpoint: str = "best"
    """'best', 'last', or a number of env steps."""
    episodes: int = 20
    """How many episodes are played."""
    num_envs: int = 10
    """In how many envs."""
    seed: int = 1
    """The seed of the envs."""
    json: bool = False
    """Print the numbers as JSON."""
    env: Env = ""
    trust: Trust = False


def evaluate_run(words: list[str]) -> int:
    """Evaluate, and print means and the interval of the mean return."""
    options = parse(
        EvaluateOptions,
        words,
        command="evaluate",
        description="Play whole episodes of a run's greedy policy and print what they gave.",
    )
    if options.episodes < 1 or options.num_envs < 1:
        raise UsageError(f"episodes and num_envs are at least 1, found {options.episodes} and {options.num_envs}")
    if options.seed < 0:
        raise UsageError(f"--seed is not negative, found {options.seed}")
    loaded = load(options.run, options.checkpoint, trust=options.trust)
    numbers = _play(loaded, options)
    if options.json:
        say(json.dumps({"step": loaded.step, **numbers}, allow_nan=True))
        return 0
    low, high = numbers.pop("return_low"), numbers.pop("return_high")
    say(f"{loaded.folder.path} after {loaded.step:,} steps, {options.episodes} episodes, seed {options.seed}:")
    say(f"  return  {numbers.pop('return_mean'):.4g}   95 % interval of the mean [{low:.4g}, {high:.4g}]")
    width = max(len(name) for name in numbers)
    for name, value in numbers.items():
        say(f"  {name:<{width}}  {value:.4g}")
    return 0


def _play(loaded: Any, options: EvaluateOptions) -> dict[str, float]:
    from striderl.collect.actors.policy_actor import GreedyActor
    from striderl.training.evaluation import evaluate

    built = env_of(loaded, options.env, num_envs=min(options.num_envs, options.episodes))
    with built, showing_progress("evaluate") as progress:
        actor = GreedyActor(loaded.policy)
        return evaluate(built, actor, options.episodes, options.seed, progress=progress).numbers()
