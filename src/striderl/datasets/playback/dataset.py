"""`RolloutDataset`: recorded trajectories for N envs at once, while others may still be recording.

    dataset = RolloutDataset("demos", num_envs=4096, dataset_loops=0, random_shuffle_traj_order=True, device="cuda:0")
    transition, infos = dataset.get_transition_batch()        one step of every env
    transition = dataset.get_batch(24)                        24 of them, [24, 4096, …]

    folders ──▶ order ──▶ cursors ──────▶ cache ──gather──▶ PlayedTransition
    new ones    which     trajectory,     frames on the
    are found   is next   frame per env   device

Cursors are numbers on the host; frames are read once, in whole blocks, and gathered on the device by an index tensor.
Python only handles single envs when their trajectory ends. New recordings become part of the next pass.

Where each env is in its trajectory, and where it will be in the next steps.

    lengths 3, 2, 5; two envs, four steps ahead:

               step 0   step 1   step 2   step 3   then
    env 0      0/0      0/1      0/2 ⏹    2/0      2/1          trajectory / frame, ⏹: the last one
    env 1      1/0      1/1 ⏹    -        -        -            '-': nothing is left, these rows are not valid

Frames between two ends are counted up for all envs at once; Python only handles envs whose trajectory has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from striderl.data import tree
from striderl.data.specs import ObsSpec, TensorSpec, torch_dtype
from striderl.datasets.playback.base import DatasetOver, PlayedTransition, RolloutFileBase
from striderl.datasets.playback.frame_cache import FramePages
from striderl.datasets.playback.sources import Numbers, Share, TrajectoryFolders, TrajectoryOrder
from striderl.datasets.trajectories.spec import TrajectorySpec

CRITIC = "critic"
"""The group of components that are privileged."""

_LONGEST_PAGE = 256
_GIBIBYTE = 2**30


class RolloutDataset(RolloutFileBase):
    """Read trajectories of folders; see the top of this module."""

    def __init__(
        self,
        data_dir: str | Path | Sequence[Any],
        num_envs: int,
        dataset_loops: int = 1,
        random_shuffle_traj_order: bool = False,
        keep_latest_n_trajs: int = 0,
        starting_frame_range: Sequence[int] = (0, 1),
        device: torch.device | str = "cpu",
        *,
        seed: int = 0,
        min_trajs: int = 1,
        wait_timeout: float = 60.0,
        refresh_seconds: float = 1.0,
        cache_bytes: int = _GIBIBYTE,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        """Store the settings; nothing is read yet.

        data_dir: one folder of trajectories, or several, whose trajectories hold the same columns.
        dataset_loops: passes over the dataset; below 1, without end.
        random_shuffle_traj_order: another order in each pass; otherwise that of recording.
        keep_latest_n_trajs: a pass has the newest n only; 0: all.
        starting_frame_range: trajectories begin at a random frame of [low, high), or at their last where they are
            shorter.
        seed: of order and first frames.
        min_trajs, wait_timeout: how many trajectories are waited for, and how many seconds.
        refresh_seconds: how long the listing of the folders is reused, when a pass begins.
        cache_bytes: how much memory frames may take on the device; they are read again when it is too little.
        share: (part, num_parts): that of one process among several; no trajectory is in two parts.
        """
        super().__init__(data_dir, num_envs, device)
        low, high = (int(frame) for frame in starting_frame_range)
        if not 0 <= low < high:
            raise ValueError(f"starting_frame_range is [low, high) with 0 <= low < high, found {starting_frame_range}")
        if keep_latest_n_trajs < 0 or min_trajs < 1 or wait_timeout < 0 or refresh_seconds < 0 or cache_bytes < 1:
            raise ValueError(
                "keep_latest_n_trajs, wait_timeout and refresh_seconds are not negative, min_trajs and cache_bytes at "
                f"least 1, found {keep_latest_n_trajs}, {wait_timeout}, {refresh_seconds}, {min_trajs}, {cache_bytes}"
            )
        self.dataset_loops, self.random_shuffle_traj_order = int(dataset_loops), bool(random_shuffle_traj_order)
        self.keep_latest_n_trajs, self.starting_frame_range = int(keep_latest_n_trajs), (low, high)
        self.seed, self.min_trajs, self.wait_timeout = seed, min_trajs, wait_timeout
        self.refresh_seconds, self.cache_bytes = refresh_seconds, cache_bytes
        self.share = Share(*share)
        if not 0 <= self.share.part < self.share.num_parts:
            raise ValueError(f"share is (part, num_parts) with 0 <= part < num_parts, found {tuple(share)}")
        self._part = self.share
        self._folders: TrajectoryFolders | None = None
        self._refreshed = -float("inf")

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def folders(self) -> TrajectoryFolders:
        """The trajectories that are known."""
        if self._folders is None:
            several = isinstance(self.data_dir, Sequence) and not isinstance(self.data_dir, str)
            self._folders = TrajectoryFolders(list(self.data_dir) if several else [self.data_dir])  # type: ignore[arg-type, list-item]
        return self._folders

    @property
    def spec(self) -> TrajectorySpec:
        """Columns of the trajectories; waits until something is recorded."""
        self._ensure()
        return self.folders.spec

    @property
    def obs_spec(self) -> ObsSpec:
        """Components of the observation, with their groups; waits until something is recorded."""
        return self.spec.obs_spec

    @property
    def num_dataset_looped(self) -> int:
        """How many passes have been handed out to the envs."""
        return self._order.num_finished if self._initialized else 0

    @property
    def num_trajs(self) -> int:
        """How many trajectories are known."""
        return len(self.folders)

    def read_dataset_directory(self) -> bool:
        """Look for new trajectories, and return whether there are at least `min_trajs`."""
        self._refreshed = time.monotonic()
        self.folders.refresh()
        return len(self.folders) >= self.min_trajs

    # -- the four methods ----------------------------------------------------------------------------------------------

    def reset_all(self) -> None:
        """Wait for data and begin the first pass in all envs."""
        folders = self.folders
        folders.wait(self.min_trajs, self.wait_timeout)
        # an endless reader needs trajectories in its own part; one that reads once may have none
        while self.dataset_loops < 1 and not len(folders.in_share(folders.newest(0), self._part)):
            folders.wait(len(folders) + 1, self.wait_timeout)
        self._refreshed = time.monotonic()
        self._make_parts()
        self._cursors.restart(np.arange(self.num_envs))

    def refresh_handlers(self, env_ids: Tensor | Sequence[int]) -> None:
        """Begin the next trajectories in these envs."""
        self._ensure()
        self._cursors.restart(self._numbers(env_ids))

    def get_buffer(self, num_transitions_per_env: int | None = None) -> PlayedTransition:
        """Return zeros of [N, …], or of [T, N, …]."""
        self._ensure()
        steps = () if num_transitions_per_env is None else (num_transitions_per_env,)

        def zeros(spec: TensorSpec) -> Tensor:
            shape = (*steps, self.num_envs, *spec.shape)
            return torch.zeros(shape, dtype=torch_dtype(spec.dtype), device=self.device)

        columns: dict[str, Any] = dict(self.folders.columns())
        obs, critic = self._by_sight(columns["obs"])
        flag = TensorSpec(dtype="bool")
        specs = (obs, critic, columns["act"], columns["rew"], flag, flag, obs, critic, dict(columns["obs"]), flag)
        return PlayedTransition(*(tree.map(zeros, part) for part in specs))

    def fill_transition(self, buffer: PlayedTransition, env_ids: Tensor | Sequence[int] | None = None) -> None:
        """Write the next steps of these envs into the buffer."""
        self._ensure()
        envs = np.arange(self.num_envs) if env_ids is None else self._numbers(env_ids)
        several = buffer.reward.dim() == 2
        found = self._next(len(buffer.reward) if several else None, envs)
        index = torch.from_numpy(envs).to(self.device)
        tree.map(lambda place, value: place.index_copy_(int(several), index, value), buffer, found)

    # -- reading -------------------------------------------------------------------------------------------------------

    def get_batch(self, num_transitions_per_env: int | None = None) -> PlayedTransition:
        """Return the next step of every env, [N, …], or the next few, [T, N, …]; raises DatasetOver at the end."""
        self._ensure()
        return self._next(num_transitions_per_env, np.arange(self.num_envs))

    def get_transition_batch(self) -> tuple[PlayedTransition, dict[str, Any]]:
        """Return one step and infos: 'time_outs', 'valid', 'final_obs' where it was recorded, and numbers to log."""
        transition = self.get_batch()
        infos: dict[str, Any] = {"time_outs": transition.timeout, "valid": transition.valid, **self.numbers()}
        if self.folders.spec.final_obs:
            infos["final_obs"] = transition.final_observation
        return transition, infos

    def peek(self) -> tuple[dict[str, Tensor], Any, Tensor]:
        """Return (observation of all components, action, valid) of the next step, [N, …], without moving on."""
        self._ensure()
        found = self._pages.gather(self._pages.rows(self._cursors.trajectory, self._cursors.frame))
        there = torch.from_numpy(self._cursors.trajectory != NOTHING).to(self.device)
        return dict(found["obs"]), found["act"], there

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to read."""
        return self._initialized and self._cursors.is_over

    def numbers(self) -> dict[str, float]:
        """Return the reading position, for a log."""
        return {
            "num_trajs": float(self.num_trajs),
            "num_trajs_begun": float(self._order.num_taken),
            "num_dataset_looped": float(self.num_dataset_looped),
            "pages_read": float(self._pages.num_reads),
            "cache_bytes": float(self._pages.num_bytes),
        }

    def __iter__(self) -> RolloutDataset:
        """Restart; in a worker of a DataLoader, with this worker's part of the trajectories."""
        worker = get_worker_info()
        self._part = self.share
        if worker is not None:
            if self.device.type != "cpu":
                raise RuntimeError(f"workers of a DataLoader read on the CPU, found device {self.device}; use 'cpu'")
            self._part = Share(worker.id, worker.num_workers).within(self.share)
        self.reset()
        return self

    def close(self) -> None:
        """Release the memory of frames; the next use restarts."""
        self._initialized = False
        for name in ("_pages", "_order", "_cursors"):
            vars(self).pop(name, None)

    # -- saving --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all cursors, and which trajectories they count; {} before the first use."""
        if not self._initialized:
            return {}
        return {
            "known": self.folders.known(),
            "order": self._order.state_dict(),
            "cursors": self._cursors.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the position of a dataset with the same settings; newer recordings come in the next pass."""
        self._initialized = False
        if not state:
            return
        self.folders.restore(state["known"])
        self._make_parts()
        self._order.load_state_dict(state["order"])
        self._cursors.load_state_dict(state["cursors"])
        self._initialized = True

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings; another process reads the folders itself and restarts."""
        kept = {name: value for name, value in vars(self).items() if name not in ("_pages", "_order", "_cursors")}
        return {**kept, "_initialized": False, "_folders": None}

    # -- inside --------------------------------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        folders = self.folders
        self._pages = FramePages(
            folders.columns(),
            folders.read,
            page_frames=int(min(_LONGEST_PAGE, folders.num_frames().max(initial=1))),
            max_bytes=self.cache_bytes,
            device=self.device,
        )
        self._pages.know(folders.num_frames())
        self._order = TrajectoryOrder(
            self._eligible, num_passes=self.dataset_loops, shuffle=self.random_shuffle_traj_order, seed=self.seed
        )
        self._cursors = Cursors(self.num_envs, self._begin)

    def _eligible(self) -> Numbers:
        """Return the trajectories of the pass that begins."""
        folders = self.folders
        if time.monotonic() - self._refreshed >= self.refresh_seconds:
            before = len(folders)
            self.read_dataset_directory()
            self._pages.know(folders.num_frames(before))
        return folders.in_share(folders.newest(self.keep_latest_n_trajs), self._part)

    def _begin(self, count: int) -> tuple[Numbers, Numbers, Numbers]:
        """Return the next trajectories with their first frames and lengths."""
        found = self._order.take(count)
        there = found[found != NOTHING]
        frame, length = np.zeros(count, np.int64), np.zeros(count, np.int64)
        length[: len(there)] = self.folders.lengths[there]
        frame[: len(there)] = self._order.start_frames(length[: len(there)], self.starting_frame_range)
        return found, frame, length

    def _next(self, num_steps: int | None, envs: Numbers) -> PlayedTransition:
        """Advance these envs and return the frames that they pass."""
        if num_steps is not None and num_steps < 1:
            raise ValueError(f"a batch has at least one step per env, found {num_steps}")
        if self._cursors.is_over:
            raise DatasetOver(f"{self.folders.names()} were read {self.num_dataset_looped} times")
        ahead = self._cursors.advance(num_steps or 1, envs)
        transition = self._gathered(ahead)
        if num_steps is None:
            transition = PlayedTransition(*tree.index(tuple(transition), 0))
        return transition

    def _gathered(self, ahead: Ahead) -> PlayedTransition:
        """Read the frames of a plan."""
        has_final, last = self.folders.spec.final_obs, ahead.last
        ended = ahead.trajectory[:-1][last]
        behind = ahead.frame[:-1][last] + int(has_final)  # the frame after the end, or the last one again
        rows = self._pages.rows(
            np.concatenate([ahead.trajectory.reshape(-1), ended]), np.concatenate([ahead.frame.reshape(-1), behind])
        )
        count = ahead.trajectory.size
        found = self._pages.gather(rows[:count].view(ahead.trajectory.shape))
        finals = self._pages.gather(rows[count:])["obs"] if len(ended) else {}
        return self._transition(found, ahead, finals)

    def _transition(self, found: Mapping[str, Any], ahead: Ahead, finals: Mapping[str, Tensor]) -> PlayedTransition:
        steps = tree.index({**found, "obs": {}}, slice(0, -1))
        following = tree.index(found["obs"], slice(1, None))
        ends = torch.from_numpy(ahead.last).to(self.device)
        valid = torch.from_numpy(ahead.trajectory[:-1] != NOTHING).to(self.device)
        obs, critic = self._by_sight(tree.index(found["obs"], slice(0, -1)))
        next_obs, next_critic = self._by_sight(following)
        done = steps["terminated"] | steps["truncated"] | ends
        return PlayedTransition(
            observation=obs,
            privileged_observation=critic,
            action=steps["act"],
            reward=steps["rew"],
            done=done,
            timeout=done & ~steps["terminated"],
            next_observation=next_obs,
            next_privileged_observation=next_critic,
            final_observation=self._with_finals(following, ahead, finals),
            valid=valid & steps["valid"] if "valid" in steps else valid,
        )

    def _with_finals(
        self, following: dict[str, Tensor], ahead: Ahead, finals: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the next observations with the final observations in the places of ends."""
        if not finals:
            return following
        place = torch.from_numpy(np.flatnonzero(ahead.last)).to(self.device)
        flat = {name: value.flatten(0, 1).index_copy(0, place, finals[name]) for name, value in following.items()}
        return {name: value.view_as(following[name]) for name, value in flat.items()}

    def _by_sight(self, obs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the policy's components, and the privileged ones."""
        spec = self.folders.spec.obs_spec
        everybody = {name: value for name, value in obs.items() if spec[name].group != CRITIC}
        return everybody, {name: value for name, value in obs.items() if spec[name].group == CRITIC}

    def _numbers(self, env_ids: Tensor | Sequence[int]) -> Numbers:
        envs = torch.as_tensor(env_ids).reshape(-1).cpu().numpy()
        if envs.dtype == np.bool_:
            if len(envs) != self.num_envs:
                raise ValueError(f"env_ids is a mask of {len(envs)} for {self.num_envs} envs")
            envs = np.flatnonzero(envs)
        envs = envs.astype(np.int64)
        if len(envs) and not 0 <= envs.min() <= envs.max() < self.num_envs:
            raise IndexError(f"env_ids are 0 to {self.num_envs - 1}, found {envs.min()} to {envs.max()}")
        return envs


# -- cursors -----------------------------------------------------------------------------------------------------------


NOTHING = -1
"""In place of a trajectory where none is left."""

_FAR = np.iinfo(np.int64).max

Begin = Callable[[int], tuple[Numbers, Numbers, Numbers]]
"""(count) → the next trajectories, their first frames and their lengths, int64 [count] each; -1: there is none."""


class Ahead(NamedTuple):
    """The next T steps of n envs, and where they are afterwards."""

    trajectory: Numbers
    """int64 [T + 1, n]; -1 where nothing is left."""
    frame: Numbers
    """int64 [T + 1, n]."""
    last: np.ndarray[Any, np.dtype[np.bool_]]
    """bool [T, n]: the last frame of a trajectory."""


class Cursors:
    """One cursor per env."""

    def __init__(self, num_envs: int, begin: Begin) -> None:
        """Start without trajectories; `restart` begins them."""
        self._begin = begin
        self.trajectory: Numbers = np.full(num_envs, NOTHING, np.int64)
        self.frame: Numbers = np.zeros(num_envs, np.int64)
        self.length: Numbers = np.zeros(num_envs, np.int64)

    @property
    def is_over(self) -> bool:
        """Whether no env has anything left."""
        return bool((self.trajectory == NOTHING).all())

    def restart(self, envs: Numbers) -> None:
        """Abandon the trajectories of these envs and begin the next ones, in the order of the envs."""
        self.trajectory[envs], self.frame[envs], self.length[envs] = self._begin(len(envs))

    def advance(self, num_steps: int, envs: Numbers) -> Ahead:
        """Advance these envs by so many steps, and return the frames that they pass."""
        trajectory = np.empty((num_steps + 1, len(envs)), np.int64)
        frame = np.empty_like(trajectory)
        last = np.zeros((num_steps, len(envs)), np.bool_)
        step = 0
        while step < num_steps:
            alive = self.trajectory[envs] != NOTHING
            left = np.where(alive, self.length[envs] - self.frame[envs], _FAR)
            run = int(min(num_steps - step, left.min(initial=_FAR)))
            trajectory[step : step + run] = self.trajectory[envs]
            frame[step : step + run] = self.frame[envs] + np.arange(run)[:, None] * alive
            self.frame[envs] += run * alive
            step += run
            ended = left == run
            if ended.any():
                last[step - 1, ended] = True
                self.restart(envs[ended])
        trajectory[num_steps], frame[num_steps] = self.trajectory[envs], self.frame[envs]
        return Ahead(trajectory, frame, last)

    def state_dict(self) -> dict[str, Any]:
        """Return all cursors."""
        return {
            "trajectory": torch.from_numpy(self.trajectory.copy()),
            "frame": torch.from_numpy(self.frame.copy()),
            "length": torch.from_numpy(self.length.copy()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load saved cursors; another number of envs is an error."""
        if len(state["trajectory"]) != len(self.trajectory):
            raise ValueError(f"{len(state['trajectory'])} cursors were saved, this dataset has {len(self.trajectory)}")
        self.trajectory, self.frame, self.length = (
            state[name].cpu().numpy().astype(np.int64) for name in ("trajectory", "frame", "length")
        )
