"""The numbers of an iteration under the names that rsl_rl gives them, so that old dashboards go on working.

train/value_loss            Loss/value                 collect/return_mean     Train/mean_reward
train/surrogate_loss        Loss/surrogate             collect/length_mean     Train/mean_episode_length
train/learning_rate         Loss/learning_rate         steps per second        Perf/{total,collection,learning}_fps
train/std                   Policy/mean_std            seconds                 Perf/collection_time, learning_time
train/kl, clip_fraction, …  Policy/…                   the env's own numbers   as they are, or Episode/…
"""

from __future__ import annotations

from collections.abc import Mapping

from striderl.collect.statistics import OF_EPISODES
from striderl.training.record import Record

_LOSSES = {
    "surrogate_loss": "Loss/surrogate",
    "value_loss": "Loss/value",
    "entropy": "Loss/entropy",
    "mirror_loss": "Loss/symmetry",
    "rnd_loss": "Loss/rnd",
    "learning_rate": "Loss/learning_rate",
    "std": "Policy/mean_std",
}
_OF_THE_POLICY = ("kl", "clip_fraction", "ratio_error", "first_ratio_error")
_EPISODES = {"return_mean": "Train/mean_reward", "length_mean": "Train/mean_episode_length"}
_OF_THE_COLLECTOR = ("episodes", "steps", *OF_EPISODES)


def tags_of(record: Record) -> dict[str, float]:
    """Return all numbers of an iteration with rsl_rl's names."""
    found = {_train_tag(name): value for name, value in record.logs("train").items()}
    for name, value in record.logs("collect").items():
        if name in _EPISODES:
            found[_EPISODES[name]] = value
        elif name not in _OF_THE_COLLECTOR:
            found[name if "/" in name else f"Episode/{name}"] = value
    numbers = record.numbers()
    return {
        **found,
        "Perf/total_fps": float(int(record.steps_per_second)),
        "Perf/collection_fps": numbers["time/collection_steps_per_second"],
        "Perf/learning_fps": numbers["time/learning_steps_per_second"],
        "Perf/collection_time": record.collection_seconds,
        "Perf/learning_time": record.learning_seconds,
    }


def tags_over_time(tags: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers that rsl_rl also draws over seconds instead of iterations."""
    return {f"{name}/time": tags[name] for name in _EPISODES.values() if name in tags}


def as_block(title: str, tags: Mapping[str, float], width: int, pad: int) -> str:
    """Return the numbers as lines of text under a title, for the console."""
    lines = ["#" * width, title.center(width)]
    lines += [f"{name + ':':>{pad}} {value:.4g}" for name, value in tags.items()]
    return "\n".join(lines)


def _train_tag(name: str) -> str:
    if name in _LOSSES:
        return _LOSSES[name]
    if name in _OF_THE_POLICY:
        return f"Policy/{name}"
    return f"Rnd/{name.removeprefix('rnd_')}" if name.startswith("rnd_") else f"Loss/{name}"
