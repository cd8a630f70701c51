"""Datasets to learn from without an env: a filled `Replay`, made from arrays, saved and loaded without pickle.

    steps [T, N, …] ──replay_of──▶ Replay ──save_dataset──▶ folder ──load_dataset──▶ Replay, equal to the bit
                                                            step_…/tensors.safetensors, state.json, manifest.json

T steps of N envs in the order of time; single transitions without a past are T = 1. The next observation is `obs_next`,
which is the final observation where an episode ended. A folder stores the layout of its observations and actions, and
a task with another layout raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl._moved import renamed_arguments
from striderl.checkpoint.errors import CheckpointCorrupt, CheckpointMissing
from striderl.checkpoint.layout import check_layout, describe
from striderl.checkpoint.store import Checkpoint, CheckpointStore
from striderl.data import tree
from striderl.data.actions import ActionSpec
from striderl.data.arena import Placement
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.data.transition import Transition, transition_columns
from striderl.storage.replay.replay import Replay, View
from striderl.storage.replay.resharding import dataset_shard
from striderl.storage.replay.samplers import Sampler

_WANTED = ("obs", "act", "rew", "terminated", "obs_next")


@renamed_arguments({"picker": "sampler"})
def replay_of(
    steps: Mapping[str, Any],
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    *,
    sampler: Sampler | None = None,
    view: View | None = None,
) -> Replay:
    """Fill a replay with steps [T, N, …]: obs, act, rew, terminated, obs_next, and perhaps truncated and valid.

    Where a step did not end its episode, `obs_next` is the observation of the step after it.
    """
    missing = [name for name in _WANTED if name not in steps]
    if missing:
        raise ValueError(f"steps of a dataset want {list(_WANTED)}, missing {missing}")
    terminated: Tensor = torch.as_tensor(steps["terminated"])
    num_steps, num_envs = terminated.shape
    whole = {
        "obs": dict(steps["obs"]),
        "act": steps["act"],
        "rew": steps["rew"],
        "terminated": terminated,
        "truncated": steps.get("truncated", torch.zeros_like(terminated)),
        "valid": steps.get("valid", torch.ones_like(terminated)),
        "obs_next": dict(steps["obs_next"]),
    }
    _check_lengths(whole, (num_steps, num_envs))
    replay = Replay(
        transition_columns(obs_spec, action_spec, {}, {}), num_steps * num_envs, num_envs, sampler=sampler, view=view
    )
    for step in range(num_steps):
        row = tree.index(whole, step)
        following = row.pop("obs_next")
        replay.add(Transition(**row, info={}, policy={}, next_obs=following, final_obs=following))
    return replay


def _check_lengths(whole: Mapping[str, Any], shape: tuple[int, int]) -> None:
    for name, part in whole.items():
        for leaf in tree.leaves(part):
            if tuple(leaf.shape[:2]) != shape:
                raise ValueError(
                    f"{name!r} begins with {list(leaf.shape[:2])}, 'terminated' with {list(shape)}; "
                    "all steps of a dataset are [T, N, …]"
                )


def all_steps(replay: Replay) -> dict[str, Any]:
    """Return every step of a replay with `obs_next`, [n, …] each, env by env in the order of time."""
    return replay.read.rows(replay.read.chronological())


def save_dataset(
    folder: str | Path,
    replay: Replay,
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    *,
    info_spec: Mapping[str, TensorSpec] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Save a dataset in a folder, whole or not at all; `about` is plain data about its origin.

    `info_spec` names the info columns that the replay was made with.
    """
    if not len(replay):
        raise ValueError("the dataset is empty; there is nothing to save")
    if replay.placement.folder is not None:
        raise ValueError("this replay is in files already; keep its folder, or fill one in memory")
    info = {name: {"shape": list(spec.shape), "dtype": spec.dtype} for name, spec in (info_spec or {}).items()}
    return CheckpointStore(folder, keep_last=1).save(
        replay.state_dict(),
        step=len(replay),
        config={"info": info, "about": dict(about or {})},
        layout=describe(obs_spec, action_spec),
    )


@renamed_arguments({"picker": "sampler"})
def load_dataset(
    folder: str | Path,
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    *,
    sampler: Sampler | None = None,
    view: View | None = None,
    placement: Placement | None = None,
    shard: tuple[int, int] = (0, 1),
) -> Replay:
    """Read a saved dataset; another layout of observations or actions is an error that names each difference.

    Sampling restarts with `sampler`; give `sampler=algorithm.sampler(seed)` and `view=algorithm.view()`. `shard` is
    (rank, number of processes): each of them keeps an equal part of the steps.
    """
    saved = _saved(folder)
    check_layout(saved.layout, describe(obs_spec, action_spec), where=f"the dataset {str(folder)!r}")
    try:
        specs = (saved.config or {})["info"]
        info = {name: TensorSpec(shape=tuple(spec["shape"]), dtype=spec["dtype"]) for name, spec in specs.items()}
        state = saved.state if shard[1] == 1 else dataset_shard(saved.state, *shard)
        num_envs, steps_per_env = int(state["num_envs"]), int(state["steps_per_env"])
        columns = transition_columns(obs_spec, action_spec, info, {})
        capacity = num_envs * steps_per_env
        replay = Replay(columns, capacity, num_envs, sampler=sampler, view=view, placement=placement)
        replay.load_state_dict({**state, "picker": replay.sampler.state_dict()})
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorrupt(folder, f"it is not one that save_dataset() made ({error})") from None
    every = torch.arange(replay.read.num_rows, device=replay.read.device)
    replay.sampler.written(replay.read, 0, len(every), replay.read.alive(every) & replay.read.valid(every))
    return replay


def dataset_about(folder: str | Path) -> dict[str, Any]:
    """Return what was written about a dataset when it was saved."""
    config = _saved(folder).config or {}
    about: dict[str, Any] = dict(config.get("about", {}))
    return about


def _saved(folder: str | Path) -> Checkpoint:
    """Read the folder, or raise where it holds no dataset; nothing is created."""
    if not Path(folder).is_dir():
        raise CheckpointMissing(f"there is no dataset {str(folder)!r}")
    try:
        return CheckpointStore(folder).load()
    except CheckpointMissing as error:
        if any(Path(folder).glob("shard_*.trj")):
            raise CheckpointMissing(
                f"{str(folder)!r} is not the folder of a dataset: it holds trajectories, which RolloutDataset and "
                "TwoStageRunner read"
            ) from None
        raise CheckpointMissing(f"{str(folder)!r} is not the folder of a dataset: {error}") from None
