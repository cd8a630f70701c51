"""Critic ensembles for continuous actions: what a critic predicts, and how the ensemble is reduced.

    kind                  a critic gives     target reads                           actor reads
    ClippedMeans          one value          the least of all                       the least of all
    SubsetMeans (REDQ)    one value          the least of a random few              the mean of all
    TruncatedQuantiles    M quantiles        all of them sorted, the largest cut    the mean of all
    CategoricalReturns    M probabilities    those of the member with the least     the least mean of all
                          of fixed returns   mean, moved by reward and discount

A kind is a part of SAC, TD3 and their relatives; members are [K, B], or [K, B, M] for quantiles and atoms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from striderl.data.noise import NoiseSpec
from striderl.ops.td import project_categorical, quantile_huber, td_target


class CriticKind(Protocol):
    """Reduces the members of a Q-function, and computes their targets and losses."""

    def check(self, num_members: int, num_outputs: int) -> None:
        """Raise when a Q-function has the wrong number of outputs."""
        ...

    def noise(self, num_members: int) -> Mapping[str, NoiseSpec]:
        """Return the random numbers that one sample needs in one gradient step."""
        ...

    def for_target(self, members: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Return the target networks' prediction for the next action: [B], or samples [B, M]."""
        ...

    def bootstrap(
        self, members: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None, noise: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the target: reward + discount · (what follows - cost), [B] or [B, M]; `cost` [B] is α log π."""
        ...

    def target_mean(self, target: Tensor) -> Tensor:
        """Return the mean [B] of targets."""
        ...

    def for_actor(self, members: Tensor) -> Tensor:
        """Return the value [B] that the policy maximises."""
        ...

    def loss(self, members: Tensor, target: Tensor) -> Tensor:
        """Compute the critic loss per sample [B], summed over members."""
        ...

    def means(self, members: Tensor) -> Tensor:
        """Return the mean value [K, B] of each member."""
        ...


class ClippedMeans:
    """Takes the minimum of all members (Fujimoto et al. 2018)."""

    def check(self, num_members: int, num_outputs: int) -> None:
        """Require one value per member."""
        _one_output(num_outputs, "ClippedMeans")

    def noise(self, num_members: int) -> Mapping[str, NoiseSpec]:
        """Return nothing."""
        return {}

    def for_target(self, members: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Return the least."""
        return members.amin(dim=0)

    def bootstrap(
        self, members: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None, noise: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the target of the value."""
        return td_target(reward, discount, after_cost(self.for_target(members, noise), cost))

    def target_mean(self, target: Tensor) -> Tensor:
        """Return the targets."""
        return target

    def for_actor(self, members: Tensor) -> Tensor:
        """Return the least."""
        return members.amin(dim=0)

    def loss(self, members: Tensor, target: Tensor) -> Tensor:
        """Return the squared errors, summed over members."""
        return (members - target).square().sum(dim=0)

    def means(self, members: Tensor) -> Tensor:
        """Return the members."""
        return members


class SubsetMeans(ClippedMeans):
    """Takes the minimum of a random subset of members (Chen et al. 2021); the policy maximises the mean of all."""

    def __init__(self, subset: int = 2) -> None:
        """Set the size of the subset."""
        self.subset = subset

    def check(self, num_members: int, num_outputs: int) -> None:
        """Require one value per member, and as many members as are drawn."""
        _one_output(num_outputs, "SubsetMeans")
        if not 1 <= self.subset <= num_members:
            raise ValueError(f"SubsetMeans draws {self.subset} of {num_members} members; give the Q-function more")

    def noise(self, num_members: int) -> Mapping[str, NoiseSpec]:
        """Return a number per member; the largest few of the first sample select the subset for the whole minibatch."""
        return {"members": NoiseSpec(shape=(num_members,), kind="uniform", of_batch=True)}

    def for_target(self, members: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Return the least of those drawn."""
        chosen = noise["members"][0].topk(self.subset).indices
        return members.index_select(0, chosen).amin(dim=0)

    def for_actor(self, members: Tensor) -> Tensor:
        """Return the mean."""
        return members.mean(dim=0)


class TruncatedQuantiles:
    """Sorts the quantiles of all members and drops the largest (Kuznetsov et al. 2020)."""

    def __init__(self, num_dropped: int = 2, kappa: float = 1.0) -> None:
        """Set how many quantiles are dropped per member, and where the Huber loss becomes linear."""
        self.num_dropped, self.kappa = num_dropped, kappa

    def check(self, num_members: int, num_outputs: int) -> None:
        """Require more quantiles than are dropped."""
        if not 0 <= self.num_dropped < num_outputs or num_outputs < 2:
            raise ValueError(
                f"TruncatedQuantiles drops {self.num_dropped} quantiles per member, and the Q-function has "
                f"num_outputs={num_outputs}; give it more"
            )

    def noise(self, num_members: int) -> Mapping[str, NoiseSpec]:
        """Return nothing."""
        return {}

    def for_target(self, members: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Return the smaller quantiles of all members together, [B, K (M - dropped)]."""
        together = members.permute(1, 0, 2).flatten(1).sort(dim=-1).values
        return together[:, : members.shape[0] * (members.shape[2] - self.num_dropped)]

    def bootstrap(
        self, members: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None, noise: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the target of every quantile."""
        return td_target(
            reward.unsqueeze(-1), discount.unsqueeze(-1), after_cost(self.for_target(members, noise), cost)
        )

    def target_mean(self, target: Tensor) -> Tensor:
        """Return the mean of the quantiles."""
        return target.mean(dim=-1)

    def for_actor(self, members: Tensor) -> Tensor:
        """Return the mean."""
        return members.mean(dim=(0, 2))

    def loss(self, members: Tensor, target: Tensor) -> Tensor:
        """Return the quantile Huber losses, averaged over quantiles and summed over members."""
        count = members.shape[-1]
        middles = (torch.arange(count, dtype=target.dtype, device=target.device) + 0.5) / count
        losses = [quantile_huber(member, target, middles, self.kappa) / count for member in members.unbind(0)]
        return torch.stack(losses).sum(dim=0)

    def means(self, members: Tensor) -> Tensor:
        """Return the mean of each member's quantiles."""
        return members.mean(dim=-1)


class CategoricalReturns:
    """Probabilities of fixed returns (Bellemare et al. 2017), reduced like a double critic; FastTD3 learns with it."""

    def __init__(self, *, low: float, high: float, num_atoms: int = 101) -> None:
        """Set the range of returns and the number of atoms."""
        if num_atoms < 2 or not low < high:
            raise ValueError(f"CategoricalReturns wants 2 atoms and more, low < high; found {num_atoms}, {low}, {high}")
        self.low, self.high, self.num_atoms = low, high, num_atoms

    def check(self, num_members: int, num_outputs: int) -> None:
        """Require one number per atom."""
        if num_outputs != self.num_atoms:
            raise ValueError(f"CategoricalReturns has {self.num_atoms} atoms, the Q-function num_outputs={num_outputs}")

    def noise(self, num_members: int) -> Mapping[str, NoiseSpec]:
        """Return nothing."""
        return {}

    def for_target(self, members: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Return the probabilities [B, M] of the member with the least mean, sample by sample."""
        least = self.means(members).argmin(dim=0)
        index = least.view(1, -1, 1).expand(1, -1, members.shape[-1])
        return members.softmax(dim=-1).gather(0, index).squeeze(0)

    def bootstrap(
        self, members: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None, noise: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the probabilities of reward + discount · (return - cost)."""
        if cost is not None:
            reward = td_target(reward, discount, -cost)
        return project_categorical(reward, discount, self.for_target(members, noise), self._atoms(members))

    def target_mean(self, target: Tensor) -> Tensor:
        """Return the mean of the distribution."""
        return (target * self._atoms(target)).sum(dim=-1)

    def for_actor(self, members: Tensor) -> Tensor:
        """Return the least mean."""
        return self.means(members).amin(dim=0)

    def loss(self, members: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropies, summed over members."""
        return -(target * members.log_softmax(dim=-1)).sum(dim=-1).sum(dim=0)

    def means(self, members: Tensor) -> Tensor:
        """Return the mean of each member's distribution."""
        return (members.softmax(dim=-1) * self._atoms(members)).sum(dim=-1)

    def _atoms(self, like: Tensor) -> Tensor:
        return torch.linspace(self.low, self.high, self.num_atoms, dtype=like.dtype, device=like.device)


def after_cost(value: Tensor, cost: Tensor | None) -> Tensor:
    """Return values [B] or [B, M] less the cost [B] of the action, if it has one."""
    if cost is None:
        return value
    return value - (cost if value.dim() == cost.dim() else cost.unsqueeze(-1))


def _one_output(num_outputs: int, who: str) -> None:
    if num_outputs != 1:
        raise ValueError(f"{who} reads one value per member, the Q-function has num_outputs={num_outputs}")
