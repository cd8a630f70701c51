"""Convert episodes of other libraries to a folder of trajectories, or to a replay.

MinariReader("mujoco/hopper/expert-v0")   ┐             ┌─ store_episodes(reader, "demos") ─▶ RolloutDataset("demos", …)
LeRobotReader("lerobot/pusht")            ┴ episodes ───┴─ replay_of_episodes(reader) ──────▶ offline learning
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from striderl.data import tree
from striderl.data.actions import ActionSpec
from striderl.data.specs import ObsSpec
from striderl.data.transition import transition_columns
from striderl.datasets.offline import replay_of
from striderl.datasets.trajectories.spec import TrajectorySpec
from striderl.datasets.trajectories.store import TrajectoryStore
from striderl.datasets.trajectories.writer import TrajectoryWriter
from striderl.storage.replay.replay import Replay, View
from striderl.storage.replay.samplers import Sampler

STEP_KEYS = ("obs", "act", "rew", "terminated", "truncated")
"""What an episode's steps have."""


class Episode(NamedTuple):
    """One episode, or its beginning; the last step is terminated or truncated."""

    steps: dict[str, Any]
    """obs, act, rew, terminated and truncated, [T, …] each; obs by component."""
    final_obs: dict[str, Tensor] | None
    """The observation after the last step, [1, …] each; None where unknown."""
    about: dict[str, Any]
    """Where it is from, as plain data."""


class EpisodeSource(Protocol):
    """Episodes that all have the same layout."""

    @property
    def obs_spec(self) -> ObsSpec:
        """Components of the observation."""
        ...

    @property
    def action_spec(self) -> ActionSpec:
        """The action spec."""
        ...

    @property
    def has_final_obs(self) -> bool:
        """Whether the observation after the last step is known."""
        ...

    @property
    def about(self) -> dict[str, Any]:
        """Where the episodes are from, as plain data."""
        ...

    def __iter__(self) -> Iterator[Episode]:
        """Read the episodes one after the other."""
        ...


def store_episodes(
    source: EpisodeSource, folder: str | Path, *, codecs: Mapping[str, str] | None = None
) -> TrajectoryStore:
    """Write all episodes to a folder of trajectories and return it, open; what is there already stays.

    `codecs` names the components that are not stored raw: {'images.top': 'zlib'}.
    """
    columns = transition_columns(source.obs_spec, source.action_spec, {}, {})
    spec = TrajectorySpec.from_columns(
        {key: columns[key] for key in STEP_KEYS},
        codecs=codecs,
        final_obs=source.has_final_obs,
        obs_spec=source.obs_spec,
        action_spec=source.action_spec,
    )
    with TrajectoryWriter(folder, spec, about=source.about) as writer:
        for episode in source:
            writer.add(episode.steps, final_obs=episode.final_obs, about=episode.about)
    return TrajectoryStore(folder)


def replay_of_episodes(source: EpisodeSource, *, sampler: Sampler | None = None, view: View | None = None) -> Replay:
    """Fill a replay with all episodes, one behind the other as the steps of one env.

    Where the final observation of an episode is unknown, its last observation is used.
    """
    whole = [_with_following(episode) for episode in source]
    if not whole:
        raise ValueError("there is no episode to read")
    steps = tree.map(lambda leaf: leaf.unsqueeze(1), tree.cat(whole))
    return replay_of(steps, source.obs_spec, source.action_spec, sampler=sampler, view=view)


def _with_following(episode: Episode) -> dict[str, Any]:
    obs, final = episode.steps["obs"], episode.final_obs
    following = {
        name: torch.cat([value[1:], value[-1:] if final is None else final[name]]) for name, value in obs.items()
    }
    return {**episode.steps, "obs_next": following}


def closed(terminated: Tensor, truncated: Tensor) -> Tensor:
    """Return `truncated` with its last step set where the episode has no end there: it was cut."""
    result = truncated.clone()
    result[-1] |= ~terminated[-1]
    return result
