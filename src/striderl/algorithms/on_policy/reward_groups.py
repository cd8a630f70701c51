"""Several rewards, each with a value of its own: how rewards are grouped, and how advantages are combined.

    env reward ─┐                    V_task ──GAE──▶ A_task  ─ normalise ─ · w_task  ─┐
    upright ────┴─▶ group "task"                                                      ├─▶ advantage of the action
    rnd_reward ───▶ group "explore"  V_exp  ──GAE──▶ A_exp   ─ normalise ─ · w_exp   ─┘

Normalised one by one, a group counts by its weight and not by the size of its rewards. Without groups there is one
reward, the env's and all terms' added up, and every value is of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from striderl.data.arena import Columns
from striderl.data.naming import unknown
from striderl.data.specs import TensorSpec
from striderl.ops.losses import explained_variance, normalised, valid_mean

ENV = "env"
"""The env's own reward, among the sources of a group."""


class RewardGroups:
    """Which rewards each value of a critic is of."""

    def __init__(self, groups: Mapping[str, tuple[str, ...]], weights: Mapping[str, float], num_values: int) -> None:
        """Set group → sources and group → weight; there must be a value for each group."""
        self.groups = dict(groups)
        self.weights = tuple(float(weights.get(name, 1.0)) for name in self.groups)
        if self.groups and len(self.groups) != num_values:
            raise ValueError(
                f"{len(self.groups)} reward groups {list(self.groups)} want one value each, the policy predicts "
                f"{num_values}; set PolicyConfig.num_values={len(self.groups)}"
            )
        for name, sources in self.groups.items():
            if not sources:
                raise ValueError(f"reward group {name!r} is empty; name its rewards or leave the group out")
            if len(set(sources)) != len(sources):
                raise ValueError(f"reward group {name!r} names a reward twice: {list(sources)}")

    def check(self, columns: Columns, added: Collection[str] | None) -> None:
        """Raise for a source that does not exist; `added` are the names of the terms' rewards, None if not known."""
        info = columns["info"]
        assert isinstance(info, Mapping)
        for sources in self.groups.values():
            for source in sources:
                if source in info:
                    _check_column(source, info[source])
                elif source != ENV and added is not None and source not in added:
                    raise KeyError(unknown("reward", source, [ENV, *info, *added], where="reward_groups: the rollout"))

    def rewards(self, env_reward: Tensor, info: Mapping[str, Tensor], added: Mapping[str, Tensor]) -> Tensor:
        """Return the reward of every group, [T, N, G] ([T, N] when there is one); `added` are those of the terms."""
        if not self.groups:
            return sum(added.values(), start=env_reward)
        self._check_sources(info, added)
        sources = {ENV: env_reward, **info, **added}
        totals = [torch.stack([sources[name] for name in names]).sum(0) for names in self.groups.values()]
        return totals[0] if len(totals) == 1 else torch.stack(totals, dim=-1)

    def combined(self, advantage: Tensor, valid: Tensor) -> Tensor:
        """Return one normalised advantage [..] from one per value [.., V]; invalid samples become 0."""
        if advantage.dim() == valid.dim():
            weight = self.weights[0] if self.groups else 1.0
            return weight * normalised(advantage, valid)
        if not self.groups:
            return normalised(advantage.sum(dim=-1), valid)
        parts = normalised(advantage, valid).unbind(-1)
        return torch.stack([weight * part for weight, part in zip(self.weights, parts)]).sum(0)

    def reward_numbers(self, reward: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Return the mean reward of each group over valid samples, for the log."""
        parts = reward.unbind(-1) if reward.dim() > valid.dim() else (reward,)
        return {f"reward_group_{name}": valid_mean(part, valid) for name, part in zip(self.groups, parts)}

    def value_numbers(self, value: Tensor, returns: Tensor, counted: Tensor) -> dict[str, Tensor]:
        """Return the explained variance of the returns: the mean over all values, and that of each group."""
        explained = explained_variance(value, returns, counted)
        numbers = {"explained_variance": explained.mean()}
        if explained.dim() and self.groups:
            numbers |= {f"explained_variance_{name}": part for name, part in zip(self.groups, explained.unbind())}
        return numbers

    def _check_sources(self, info: Mapping[str, Tensor], added: Mapping[str, Tensor]) -> None:
        known: Collection[str] = [ENV, *info, *added]
        used = {source for sources in self.groups.values() for source in sources}
        for source in sorted(used):
            if source not in known:
                raise KeyError(unknown("reward", source, known, where="reward_groups: the rollout"))
        for name in added:
            if name not in used:
                raise ValueError(f"the term's reward {name!r} is in none of reward_groups; name it in one of them")
            if name in info:
                raise ValueError(f"both an info column and a term's reward are called {name!r}; rename one of them")


def _check_column(name: str, spec: object) -> None:
    if not isinstance(spec, TensorSpec) or spec.shape != () or not spec.dtype.startswith("float"):
        raise ValueError(f"reward {name!r} must be one real number per env; the info column is {spec}")
