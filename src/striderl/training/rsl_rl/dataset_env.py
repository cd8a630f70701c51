"""`DatasetEnv`: a recording as an env that ignores actions, so that the collector can read from disk.

    dataset ──peek──▶ obs, and to the teacher: the recorded action ──▶ actor: label, executed action = recorded one
       └────step────▶ reward, ended, next observation; the actor's own action is ignored

Recurrent state, statistics, quarantine and saving are the collector's, as with any env. After the end of a recording,
its rows are not valid.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.collect.teacher import RecordedTeacher
from striderl.data.arena import Columns
from striderl.data.specs import ObsSpec, TensorSpec, torch_dtype
from striderl.datasets.playback.dataset import RolloutDataset
from striderl.envs.vec_env import Actions, Obs, Step, VecEnv

_log = logging.getLogger(__name__)

VALID = "valid"
PREFIX = "Perf/dataset_"
"""Prefix of the dataset's metrics in the log."""


class DatasetEnv(VecEnv):
    """Play back a dataset; see the picture at the top of this module."""

    def __init__(
        self, dataset: RolloutDataset, like: VecEnv, teacher: RecordedTeacher, blank: Collection[str] = ()
    ) -> None:
        """Give the observations of `like`; the components in `blank` were not recorded and are zeros.

        Waits until something is recorded, and raises where that does not fit.
        """
        check_recording(dataset, like, blank)
        self.dataset, self.teacher = dataset, teacher
        self.num_envs, self.device = dataset.num_envs, dataset.device
        self.obs_spec, self.action_spec = like.obs_spec, like.action_spec
        self.info_spec: Mapping[str, TensorSpec] = {VALID: TensorSpec(dtype="bool")}
        self.gives_final_obs = dataset.spec.final_obs
        self.max_episode_length, self.step_dt, self.first_env_index = 0, like.step_dt, like.first_env_index
        self.actuation = like.actuation
        self._blank = {
            name: torch.zeros((self.num_envs, *part.shape), dtype=torch_dtype(part.dtype), device=self.device)
            for name, part in self.obs_spec.items()
            if name in blank
        }
        self._length = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)

    def reset(self, seed: int | None = None) -> Obs:
        """Restart the dataset; its randomness follows from its own seed."""
        self.dataset.reset()
        return self._shown(torch.ones_like(self._length, dtype=torch.bool))

    def step(self, actions: Actions) -> Step:
        """Return the recorded step, whatever the actions are."""
        if self.dataset.is_over:
            return self._nothing()
        found, _ = self.dataset.get_transition_batch()
        final = self._named(found.final_observation) if self.gives_final_obs else None
        log = {f"{PREFIX}{name}": value for name, value in self.dataset.numbers().items()}
        self._length = self._length + 1
        return Step(
            obs=self._shown(found.done),
            reward=found.reward,
            terminated=found.done & ~found.timeout,
            truncated=found.timeout,
            final_obs=final,
            info={VALID: found.valid, "log": log},
        )

    def reset_envs(self, mask: Tensor) -> Obs:
        """Begin the next trajectories in some envs."""
        self.dataset.reset(mask)
        return self._shown(mask)

    @property
    def episode_length_buf(self) -> Tensor:
        """Steps read so far of each trajectory, int64 [N]; a copy."""
        return self._length.clone()

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        raise RuntimeError("recorded trajectories have the length they have; set starting_frame_range instead")

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the dataset."""
        return {"dataset": self.dataset.state_dict(), "length": self._length.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> Obs:
        """Load a saved position."""
        self.dataset.load_state_dict(state["dataset"])
        self._length = state["length"].to(self.device, copy=True)
        return self._shown(torch.zeros_like(self._length, dtype=torch.bool))

    def _shown(self, begun: Tensor) -> Obs:
        """Set the teacher's next actions, and return the observation; `begun` [N]: a trajectory begins."""
        self._length = torch.where(begun, 0, self._length)
        obs, action, _ = self.dataset.peek()
        self.teacher.tell(action)
        return self._named(obs)

    def _named(self, obs: Mapping[str, Tensor]) -> Obs:
        return {name: self._blank[name].clone() if name in self._blank else obs[name] for name in self.obs_spec}

    def _nothing(self) -> Step:
        """Return a step after the end of a recording."""
        nowhere = torch.zeros_like(self._length, dtype=torch.bool)
        obs = self._shown(nowhere)
        final = dict(obs) if self.gives_final_obs else None
        return Step(obs, torch.zeros_like(self._length).float(), nowhere, nowhere, final, {VALID: nowhere, "log": {}})


def not_recorded(dataset: RolloutDataset, spec: ObsSpec) -> tuple[str, ...]:
    """Return the components of an env that a recording does not have; waits until something is recorded."""
    recorded = dataset.obs_spec
    return tuple(name for name in spec if name not in recorded)


def check_recording(dataset: RolloutDataset, like: VecEnv, blank: Collection[str] = ()) -> None:
    """Raise, with every difference, where a recording is not one of this kind of env."""
    recorded, lines = dataset.obs_spec, []
    for name, part in like.obs_spec.items():
        if name in blank:
            continue
        if name not in recorded:
            lines.append(f"component {name!r} was not recorded")
        elif (recorded[name].shape, recorded[name].dtype) != (part.shape, part.dtype):
            found = f"{recorded[name].dtype} {list(recorded[name].shape)}"
            lines.append(f"component {name!r} was recorded as {found}, the env gives {part.dtype} {list(part.shape)}")
    wanted, found_actions = _plain(like.action_spec.tensor), _plain(dataset.folders.columns()["act"])
    if wanted != found_actions:
        lines.append(f"actions were recorded as {found_actions}, the env takes {wanted}")
    if lines:
        listed = "".join(f"\n  - {line}" for line in lines)
        raise ValueError(f"the recording in {dataset.folders.names()} does not fit {type(like).__name__}:{listed}")


def _plain(spec: TensorSpec | Columns) -> Any:
    """Return shape and dtype, of a dict of actions by name."""
    if isinstance(spec, TensorSpec):
        return f"{spec.dtype} {list(spec.shape)}"
    return {name: _plain(part) for name, part in spec.items()}
