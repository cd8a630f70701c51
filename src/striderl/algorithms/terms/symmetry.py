"""`Symmetry`: data augmentation and a mirror loss for left-right symmetric robots.

    minibatch of n samples ──extend──▶  [ s0 s1 … | s0* s1* … ]   2n samples, s* mirrored
                                          collected   added: in all losses with `augment`, else in the mirror loss

    mirror loss = mean of (π(s*) - (π(s))*)²       (π(s))* is the target and gets no gradient

A policy with memory reads whole sequences. Its memory from before the sequence cannot be mirrored, so mirrored
steps count from the first episode that begins inside the sequence; an empty memory counts as such a beginning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.algorithms.building import BuildContext
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.terms.term import Term, collected
from striderl.data import tree
from striderl.data.actions import BoxSpec
from striderl.data.checked_fields import check_field_types
from striderl.data.naming import unknown
from striderl.data.registry import load_reference
from striderl.ops.losses import valid_mean
from striderl.policies.policy import Policy, PolicyOutput

MirrorObs = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | Mapping[str, Callable[[Tensor], Tensor]]
"""A function of all components, or one function (such as a `MirrorTable`) per component."""


class MirrorTable:
    """Mirror a vector: entry i of the result is sign[i] · x[index[i]]. Shape: [.., size] -> the same."""

    def __init__(self, index: Sequence[int], sign: Sequence[float] | None = None) -> None:
        """Set the source of each entry, and +1 or -1 for each (all +1 by default)."""
        self.index = tuple(int(each) for each in index)
        self.sign = tuple(float(each) for each in (sign if sign is not None else [1.0] * len(self.index)))
        if sorted(self.index) != list(range(len(self.index))):
            raise ValueError(f"MirrorTable.index names every entry once, found {list(self.index)}")
        if len(self.sign) != len(self.index) or any(abs(each) != 1.0 for each in self.sign):
            raise ValueError(f"MirrorTable.sign has +1 or -1 for each of {len(self.index)} entries, found {self.sign}")
        for place, source in enumerate(self.index):
            if self.index[source] != place or self.sign[source] != self.sign[place]:
                raise ValueError(
                    f"mirrored twice, entry {place} does not come back: it is read from {source}, which is read from "
                    f"{self.index[source]}; the signs are {self.sign[place]} and {self.sign[source]}"
                )
        self._tensors: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """Return the mirrored vectors; signs are left out where all are +1, so that masks stay masks."""
        index, sign = self._on(x.device)
        turned = x.index_select(-1, index)
        return turned if -1.0 not in self.sign else turned * sign.to(x.dtype)

    def send_to(self, device: torch.device) -> None:
        """Send the tables to a device now, because a captured region must not."""
        self._on(device)

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the tables on a device, sent there once."""
        if device not in self._tensors:
            sign = torch.tensor(self.sign, device=device)
            self._tensors[device] = (torch.tensor(self.index, device=device), sign)
        return self._tensors[device]


@dataclass(frozen=True, kw_only=True)
class SymmetryConfig:
    """Settings of the symmetry term."""

    function: str = ""
    """'module:name' of a function (obs_spec, action_spec) → (mirror_obs, mirror_act), which mirror what is observed and
    done; empty where the task has one."""
    augment: bool = True
    """Whether all losses of the algorithm also count mirrored samples, with the rollout's log-probs and returns."""
    mirror_loss_weight: float = 0.0
    """Weight of the mirror loss; at 0 it is left out."""

    def __post_init__(self) -> None:
        check_field_types(self)


@dataclass(frozen=True, kw_only=True)
class Symmetry(Term):
    """Learn from mirrored samples, or train the policy to be equivariant under mirroring."""

    capturable = True
    learns_in_ranks = True
    Config: ClassVar[type[Any]] = SymmetryConfig
    summary: ClassVar[str] = "learns from mirrored samples, or with a mirror loss"

    @classmethod
    def build(cls, config: SymmetryConfig, context: BuildContext) -> Symmetry:
        """Build the term from its config; the mirror is the config's function, or an object of the run."""
        mirror = load_reference(config.function) if config.function else context.load("symmetry")
        mirror_obs, mirror_act = mirror(context.obs_spec, context.action_spec) if callable(mirror) else mirror
        return cls(
            mirror_obs=mirror_obs,
            mirror_act=mirror_act,
            augment=config.augment,
            mirror_loss_weight=config.mirror_loss_weight,
        )

    mirror_obs: MirrorObs
    """Mirrors the components: a function of all of them, or one per component; every component must be named."""
    mirror_act: Callable[[Any], Any]
    """Mirrors an action, [.., *shape] or a dict of them."""
    augment: bool = True
    """Whether all losses of the algorithm also count mirrored samples, with the rollout's log-probs and returns."""
    mirror_loss_weight: float = 0.0
    """Weight of the mirror loss; at 0 it is left out."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not math.isfinite(self.mirror_loss_weight) or self.mirror_loss_weight < 0.0:
            raise ValueError(f"mirror_loss_weight is finite and not negative, found {self.mirror_loss_weight}")

    @property
    def name(self) -> str:
        """Its name among the terms."""
        return "symmetry"

    def check(self, policy: Policy) -> None:
        """Raise unless all inputs of the policy can be mirrored, and its actions compared."""
        spec = policy.obs_spec
        if isinstance(self.mirror_obs, Mapping):
            for name in [*spec, *self.mirror_obs]:
                if name not in self.mirror_obs:
                    raise KeyError(unknown("component", name, self.mirror_obs, where="Symmetry.mirror_obs"))
                if name not in spec:
                    raise KeyError(unknown("component", name, spec, where="Symmetry mirrors what is not observed: it"))
                _check_width(self.mirror_obs[name], spec[name].shape, f"component {name!r}")
        action = policy.action_spec
        tables = [self.mirror_act, *(self.mirror_obs.values() if isinstance(self.mirror_obs, Mapping) else ())]
        for table in tables:
            if isinstance(table, MirrorTable):
                table.send_to(next(policy.parameters()).device)
        if isinstance(action, BoxSpec):
            _check_width(self.mirror_act, action.shape, "the action")
        elif self.mirror_loss_weight > 0.0:
            raise ValueError(
                "the mirror loss compares real-valued actions and cannot compare choices; "
                "set mirror_loss_weight=0 and use augment"
            )

    def extend(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        """Append the mirrored samples."""
        if not self.augment and self.mirror_loss_weight == 0.0:
            return minibatch
        valid = minibatch["valid"]
        axis = valid.dim() - 1
        state = minibatch["state"]
        # the rest is as in the rollout: a mirrored sample is as likely and worth as much
        twice = tree.map(
            lambda leaf: torch.cat([leaf, leaf], dim=axis), {k: v for k, v in minibatch.items() if k != "state"}
        )
        mirrored = valid & _memory_is_known(minibatch)
        none = torch.zeros_like(valid)
        return {
            **twice,
            "obs": _joined(minibatch["obs"], self._mirrored(minibatch["obs"]), axis),
            "act": _joined(minibatch["act"], self.mirror_act(minibatch["act"]), axis),
            "state": _joined(state, tree.map(torch.zeros_like, state), 0),
            "valid": torch.cat([valid, mirrored if self.augment else none], dim=axis),
            "collected": torch.cat([collected(minibatch), none], dim=axis),
            "mirrored": torch.cat([none, mirrored], dim=axis),
        }

    def losses(self, minibatch: Mapping[str, Any], out: PolicyOutput) -> Losses:
        """Return the mirror loss of an extended minibatch, mean over entries of the action and over samples."""
        if self.mirror_loss_weight == 0.0:
            return {}
        counted: Tensor = minibatch["mirrored"]
        axis = counted.dim() - 1
        here, there = out.distribution.mode().chunk(2, dim=axis)
        wanted = self.mirror_act(here.detach())
        kept = counted.chunk(2, dim=axis)[1]
        error = (there - wanted).square().flatten(axis + 1).mean(dim=-1)
        return {"mirror_loss": (self.mirror_loss_weight, valid_mean(error, kept))}

    def _mirrored(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if not isinstance(self.mirror_obs, Mapping):
            return dict(self.mirror_obs(obs))
        for name in obs:
            if name not in self.mirror_obs:
                raise KeyError(unknown("component", name, self.mirror_obs, where="Symmetry.mirror_obs"))
        return {name: self.mirror_obs[name](value) for name, value in obs.items()}


def _joined(first: Any, second: Any, axis: int) -> Any:
    return tree.map(lambda one, other: torch.cat([one, other], dim=axis), first, second)


def _memory_is_known(minibatch: Mapping[str, Any]) -> Tensor:
    """Return where a mirrored sample's memory holds nothing but mirrored steps, shaped like 'valid'."""
    valid: Tensor = minibatch["valid"]
    known = torch.ones_like(valid)
    leaves = list(minibatch["state"].values())
    if not leaves:
        return known
    empty = torch.ones_like(valid[0])
    for leaf in leaves:
        empty = empty & (leaf == 0).flatten(1).all(dim=1)
    resets: Tensor = minibatch["resets"]
    return (resets.cumsum(0) > 0) | empty


def _check_width(mirror: object, shape: tuple[int, ...], what: str) -> None:
    """Raise when a table does not fit; other functions are not checked."""
    if isinstance(mirror, MirrorTable) and (not shape or shape[-1] != len(mirror.index)):
        raise ValueError(f"{what} has shape {list(shape)}, its MirrorTable is for {len(mirror.index)} entries")
