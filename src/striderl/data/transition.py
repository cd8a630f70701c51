"""One step of experience, with the same names everywhere: in rollouts, replay, datasets and on disk.

    obs_t ──policy──▶ act_t ──env──▶ rew_t, terminated_t, truncated_t, info_t, next_obs_t
                                     final_obs_t where the episode ended

`rew` is the env's own and is never changed after it was written. `policy` holds what policy and exploration store
(log-prob, value, distribution parameters, stage draws). `valid` is false for samples that must not count in any mean:
quarantined, padded, after the end of a column that waits for its reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.data import tree
from striderl.data.actions import ActionSpec
from striderl.data.arena import Columns
from striderl.data.specs import ObsSpec, TensorSpec


class Transition(NamedTuple):
    """One step of N envs; every tensor is [N, …]."""

    obs: dict[str, Tensor]
    act: Any
    rew: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    info: dict[str, Tensor]
    policy: dict[str, Any]
    next_obs: dict[str, Tensor]
    """What to act on next; after an end, the first observation of the next episode."""
    final_obs: dict[str, Tensor] | None
    """The observation at the end of an episode, meaningful in rows that are done; None when the env gives none."""

    next_state: Any = ()
    """The actor's recurrent state after this step, before resets; used for the value of `final_obs`."""

    @property
    def done(self) -> Tensor:
        """Whether an episode ended in this step, bool [N]."""
        return self.terminated | self.truncated

    def obs_next(self) -> dict[str, Tensor]:
        """Return the true next observation: `final_obs` where the episode ended, `next_obs` elsewhere."""
        if self.final_obs is None:
            return self.next_obs
        done = self.done
        final = self.final_obs
        return {
            name: torch.where(done.view(-1, *[1] * (value.ndim - 1)), final[name], value)
            for name, value in self.next_obs.items()
        }

    def columns(self) -> dict[str, Any]:
        """Return what is stored of this step, in the layout of `transition_columns`."""
        return {
            "obs": self.obs,
            "act": self.act,
            "rew": self.rew,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "valid": self.valid,
            "info": self.info,
            "policy": self.policy,
        }

    def rows(self, index: Any) -> Transition:
        """Return some of the envs."""
        return Transition(*tree.index(tuple(self), index))


def transition_columns(
    obs_spec: ObsSpec, action_spec: ActionSpec, info_spec: Mapping[str, TensorSpec], policy_columns: Columns
) -> Columns:
    """Return the storage columns of a step; only declared info keys are stored."""
    return {
        "obs": dict(obs_spec.components),
        "act": action_spec.tensor,
        "rew": TensorSpec(),
        "terminated": TensorSpec(dtype="bool"),
        "truncated": TensorSpec(dtype="bool"),
        "valid": TensorSpec(dtype="bool"),
        "info": dict(info_spec),
        "policy": dict(policy_columns),
    }
