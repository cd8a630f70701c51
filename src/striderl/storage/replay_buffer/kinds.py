"""Kinds of replay buffers: many envs, priorities, and a list.

VectorReplayBuffer(total_size, buffer_num)      one ring per env, equal to as many ReplayBuffers
PrioritizedReplayBuffer(size, alpha, beta)      draws in proportion to a priority; batches have `weight`
ListReplayBuffer()                              grows without end; a place to gather steps before `update`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from striderl.data import leaf
from striderl.data.batch import Batch
from striderl.storage.replay_buffer.buffer import ReplayBuffer
from striderl.storage.replay_buffer.places import Priorities
from striderl.storage.replay_buffer.rows import given_step, last_frames, step_of


class VectorReplayBuffer(ReplayBuffer):
    """One ring for each of several envs, filled by one call."""

    def __init__(
        self,
        total_size: int,
        buffer_num: int,
        stack_num: int = 1,
        ignore_obs_next: bool = False,
        save_only_last_obs: bool = False,
        sample_avail: bool = False,
        *,
        seed: int = 0,
        folder: Path | None = None,
        priorities: Priorities | None = None,
    ) -> None:
        """Divide the room for `total_size` steps among the envs."""
        super().__init__(
            total_size,
            stack_num,
            ignore_obs_next,
            save_only_last_obs,
            sample_avail,
            seed=seed,
            folder=folder,
            priorities=priorities,
            num_rings=buffer_num,
        )
        self.buffer_num = buffer_num

    def add(  # type: ignore[override]  # one step of several envs, not of one
        self, batch: Batch | Mapping[str, Any], buffer_ids: Sequence[int] | NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Add one step of each of these envs (all by default), rows [n, …] in their order; return the indices."""
        given = range(self.buffer_num) if buffer_ids is None else buffer_ids
        rings = np.asarray([int(ring) for ring in given], np.int64)
        if len(np.unique(rings)) != len(rings) or (rings < 0).any() or (rings >= self.buffer_num).any():
            raise ValueError(f"buffer_ids are different numbers below {self.buffer_num}, found {rings.tolist()}")
        rows = step_of(dict(batch.items()))
        for key in ("rew", "done"):
            if leaf.shape_of(rows[key])[:1] != (len(rings),):
                raise ValueError(f"{key!r} wants {len(rings)} rows, found shape {leaf.shape_of(rows[key])}")
        return self._append(last_frames(rows) if self.save_only_last_obs else rows, rings)


class PrioritizedReplayBuffer(ReplayBuffer):
    """Draws step i with probability p_i^alpha / sum p^alpha; `update_weight(index, td_error)` sets the priorities."""

    def __init__(
        self,
        size: int,
        alpha: float,
        beta: float,
        stack_num: int = 1,
        ignore_obs_next: bool = False,
        save_only_last_obs: bool = False,
        sample_avail: bool = False,
        *,
        beta_final: float | None = None,
        beta_steps: int = 0,
        seed: int = 0,
        folder: Path | None = None,
    ) -> None:
        """Anneal beta linearly to `beta_final` over `beta_steps` samples, where that is given."""
        super().__init__(
            size,
            stack_num,
            ignore_obs_next,
            save_only_last_obs,
            sample_avail,
            seed=seed,
            folder=folder,
            priorities=Priorities(alpha=alpha, beta=beta, beta_final=beta_final, beta_steps=beta_steps),
        )
        self._alpha, self._beta = alpha, beta

    @property
    def weight(self) -> NDArray[np.float64]:
        """The stored priorities p^alpha of all places [size], read-only; 0 where there is no step."""
        assert self.priorities is not None
        found: NDArray[np.float64] = self.priorities.tree.leaves.numpy()[: self.maxsize].copy()
        found.flags.writeable = False
        return found

    def add(
        self,
        obs: Any,
        act: Any = None,
        rew: Any = None,
        done: Any = None,
        obs_next: Any = None,
        info: Any = None,
        policy: Any = None,
        weight: Any = None,
        *,
        terminated: Any = None,
        truncated: Any = None,
    ) -> int:
        """Add one step with the priority |weight|, or with the largest so far, and return its index."""
        if act is None and isinstance(obs, (Batch, Mapping)) and "weight" in obs:
            obs = dict(obs.items())
            weight = obs.pop("weight")
        if weight is not None and not np.isfinite(leaf.to_array(weight)).all():
            raise ValueError(f"weight is a finite number, found {weight!r}")
        flags = {"terminated": terminated, "truncated": truncated}
        index = super().add(obs, act, rew, done, obs_next, info, policy, **flags)
        if weight is not None:
            self.update_weight(np.array([index]), np.reshape(leaf.to_array(weight), 1))
        return index


class ListReplayBuffer:
    """Steps in Python lists, as many as come; the source of `ReplayBuffer.update`."""

    def __init__(self) -> None:
        self._steps: list[Batch] = []

    def add(
        self,
        obs: Any,
        act: Any = None,
        rew: Any = None,
        done: Any = None,
        obs_next: Any = None,
        info: Any = None,
        policy: Any = None,
        *,
        terminated: Any = None,
        truncated: Any = None,
    ) -> int:
        """Append one step, given as to `ReplayBuffer.add`, and return its index."""
        given = given_step(obs, act, rew, done, obs_next, info, policy, terminated, truncated)
        self._steps.append(step_of(given).copy())
        return len(self._steps) - 1

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: int) -> Batch:
        return self._steps[index]

    def __getattr__(self, key: str) -> list[Any]:
        steps = self.__dict__.get("_steps")
        if key.startswith("_") or not steps or key not in steps[0]:
            raise AttributeError(f"ListReplayBuffer has no key {key!r}")
        return [step.get(key) for step in steps]

    def reset(self) -> None:
        """Drop all steps."""
        self._steps = []

    def sample(self, batch_size: int) -> NoReturn:
        """Raise: a list is a source for `ReplayBuffer.update`, it is not sampled."""
        raise NotImplementedError("ListReplayBuffer is not sampled; move its steps over with ReplayBuffer.update(list)")

    def export_rows(self) -> tuple[NDArray[np.int64], Any, dict[int, Any], Any]:
        """Return (indices in order of time, rows by indices, final observations, which rows nothing follows)."""
        last = len(self._steps) - 1

        def rows(index: NDArray[np.int64]) -> Batch:
            return Batch.stack([self._steps[i] for i in index.tolist()])

        def cut(index: NDArray[np.int64]) -> NDArray[np.bool_]:
            return np.array([i == last and not bool(self._steps[i].done) for i in index.tolist()], np.bool_)

        ends = [i for i, step in enumerate(self._steps) if bool(step.truncated) and not bool(step.terminated)]
        finals = {i: self._steps[i].obs_next for i in ends if "obs_next" in self._steps[i]}
        return np.arange(len(self._steps)), rows, finals, cut
