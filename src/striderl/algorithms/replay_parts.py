"""Small parts shared by off-policy algorithms: updaters, noise, masks, target networks, the temperature.

TargetNetwork    a slow copy of a network, for bootstrapped targets
Temperature      α of maximum-entropy learners, and how it follows the target entropy:
                 loss = log α · mean_B (entropy of the policy - target entropy)      too little entropy: α grows
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.reward_terms import RewardTerms, single_steps
from striderl.collect.actors.behaviours import ExploringActor
from striderl.collect.quarantine import all_true
from striderl.data import tree
from striderl.data.noise import NoiseSpec
from striderl.execution.updater import GroupConfig, ParameterGroup, Updater
from striderl.networks.heads.table import DeterministicHead
from striderl.ops.losses import valid_mean
from striderl.policies.acting import Acting
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.value_functions import ChoiceQFunction, QFunction
from striderl.storage.replay.replay import View
from striderl.storage.replay.samplers import Prioritized, Sampler, Uniform


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """Let gradients flow through the modules without accumulating in their parameters."""
    parameters = [each for module in modules for each in module.parameters() if each.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def sample_noise_spec(policy: Acting) -> NoiseSpec:
    """Return the noise of one sample of a policy with one action tensor."""
    spec = policy.head.noise_spec()
    if not isinstance(spec, NoiseSpec):
        raise TypeError("this learner wants an action that is one tensor, not a dict of them")
    return spec


def module_updater(
    name: str,
    module: nn.Module,
    learning_rate: float,
    max_grad_norm: float,
    mode: str,
    weight_decay: float = 0.0,
    *,
    beta1: float = 0.9,
) -> Updater:
    """Return an updater with one group: all parameters of a module, under Adam, or AdamW with a weight decay."""
    kind = "AdamW" if weight_decay else "Adam"
    group = GroupConfig(
        optimizer=kind,
        learning_rate=learning_rate,
        max_grad_norm=max_grad_norm,
        weight_decay=weight_decay,
        betas=(beta1, 0.999),
    )
    return Updater({name: ParameterGroup(module.parameters(), group)}, mode=mode)


def check_head(policy: ActorPolicy, learner: str, *, deterministic: bool) -> None:
    """Raise for a stochastic policy where a deterministic one is needed, or the other way round."""
    found = isinstance(policy.head, DeterministicHead)
    if found != deterministic:
        wanted = "'deterministic'" if deterministic else "one that draws actions, such as 'squashed_gaussian'"
        name = "'deterministic'" if found else type(policy.head).__name__
        raise ValueError(f"{learner} wants a policy with another head: {wanted}, found {name}")


def sampler_for(seed: int, prioritized: bool, *, alpha: float = 0.6, beta: float = 0.4) -> Sampler:
    """Return a prioritized or uniform sampler."""
    return Prioritized(seed=seed, alpha=alpha, beta=beta) if prioritized else Uniform(seed=seed)


_READ = ("obs", "obs_next", "act", "rew", "discount")
"""The columns of a sample that networks and targets read."""


def cleaned(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample with zeros where it is invalid: NaN there would reach gradients even under a mask.

    'counted' is then what means are taken over: None where all samples are known to be valid.
    """
    valid: Tensor = sample["valid"]
    # on the CPU a check costs less than the work that it saves; on a GPU it would need a sync
    if valid.device.type == "cpu" and all_true(valid):
        return {**sample, "counted": None}

    def zeroed(leaf: Tensor) -> Tensor:
        return torch.where(valid.view(*valid.shape, *[1] * (leaf.dim() - valid.dim())), leaf, torch.zeros_like(leaf))

    return {**sample, "counted": valid, **{name: tree.map(zeroed, sample[name]) for name in _READ if name in sample}}


def counted(minibatch: Mapping[str, Any]) -> Tensor | None:
    """Return which samples of a minibatch means are taken over; None for all."""
    found: Tensor | None = minibatch["counted"] if "counted" in minibatch else minibatch["valid"]
    return found


def save_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of the states of parts by name."""
    return {name: tree.copy(dict(part.state_dict())) for name, part in parts.items()}


def load_parts(parts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Load the saved state of every part by name."""
    for name, part in parts.items():
        part.load_state_dict(state[name])


# -- what learners from replay share -----------------------------------------------------------------------------------


class OffPolicyLearner:
    """What the trainer calls of every learner from replay; a subclass sets the attributes, and adds `update`."""

    config: Any
    """Its settings; `n_step`, `gamma` and `prioritized` are read here."""
    policy: ActorPolicy
    terms: RewardTerms
    num_updates: int
    _actor: ExploringActor

    def actor(self) -> ExploringActor:
        """Return the actor that collects."""
        return self._actor

    def explore(self, env_steps: int, *, random: bool) -> None:
        """Follow the schedule of exploration, or act at random before learning starts."""
        self._actor.random = random
        self._actor.at(env_steps)

    def view(self) -> View:
        """Return n-step samples."""
        return self.terms.view(self.config.n_step, self.config.gamma)

    def sampler(self, seed: int) -> Sampler:
        """Return a uniform or prioritized sampler."""
        return sampler_for(seed, self.config.prioritized)

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the random numbers of one sample in one gradient step: none."""
        return {}

    @torch.no_grad()
    def update_normalization(self, columns: Mapping[str, Any]) -> None:
        """Update the normalisers from samples, rows [B, …] or sequences [T, B, …]."""
        for network in self._observers():
            network.update_normalization(columns["obs"], columns["valid"])
        if len(self.terms):
            self.terms.update_normalization(columns if columns["valid"].dim() == 1 else single_steps(columns))

    def _observers(self) -> Sequence[ActorPolicy | QFunction | ChoiceQFunction]:
        """Return the networks with normalisers of observations."""
        return (self.policy,)

    def _parts(self) -> dict[str, Any]:
        """Return everything that is saved, by the names on disk."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything learned."""
        return {**save_parts(self._parts()), "num_updates": self.num_updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        load_parts(self._parts(), state)
        self.num_updates = int(state["num_updates"])


# -- target networks ---------------------------------------------------------------------------------------------------


ModuleT = TypeVar("ModuleT", bound=nn.Module)


class TargetNetwork(Generic[ModuleT]):
    """A copy that is updated at once, or by a Polyak average in every step."""

    def __init__(self, source: ModuleT) -> None:
        """Copy the network as it is; the copy has no gradients."""
        self.source = source
        self.network: ModuleT = copy.deepcopy(source).requires_grad_(False)
        self._pairs = (
            [parameter.data for parameter in self.network.parameters()],
            [parameter.data for parameter in source.parameters()],
        )
        self._buffers = list(zip(self.network.buffers(), source.buffers()))

    @torch.no_grad()
    def follow(self, tau: float) -> None:
        """Move the copy by the fraction tau; 1 makes it equal. Statistics of normalisers are copied."""
        mine, theirs = self._pairs
        if theirs and theirs[0].data_ptr() != next(self.source.parameters()).data_ptr():
            theirs[:] = [parameter.data for parameter in self.source.parameters()]  # an updater has laid them out anew
        if tau >= 1.0:
            torch._foreach_copy_(mine, theirs)
        else:
            torch._foreach_lerp_(mine, theirs, tau)
        for copied, original in self._buffers:
            copied.copy_(original)

    def state_dict(self) -> dict[str, Any]:
        """Return the copy's weights."""
        copied: dict[str, Any] = tree.copy(dict(self.network.state_dict()))
        return copied

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved weights."""
        self.network.load_state_dict(state)


# -- temperature -------------------------------------------------------------------------------------------------------


class Temperature(nn.Module):
    """α > 0, learned as its logarithm."""

    def __init__(self, value: float) -> None:
        """Start with this α."""
        super().__init__()
        if value <= 0.0:
            raise ValueError(f"a temperature is positive, found {value}")
        self.log_value = nn.Parameter(torch.tensor(value).log())

    def value(self) -> Tensor:
        """Return α."""
        return self.log_value.exp()

    def losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return log α times 'entropy_gap', the entropy minus the target entropy."""
        # no sample enters it, and so the mean over processes is taken: their gradients are summed
        return {"temperature_loss": (1.0, valid_mean(self.log_value * minibatch["entropy_gap"], None))}, {}
