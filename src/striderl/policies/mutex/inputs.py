"""What each policy of a mutex is shown: its own velocity command, and the last action in its own units.

proprioception of the env     [ … |  0.4  | … | a_0 … a_11 ]          a in units of env_action_scale
as policy i is shown it       [ … | v_i s | … | a * env_scale / scale_i ]
                                    9           the last 12
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec
from striderl.policies.mutex.settings import MutexConfig
from striderl.policies.stage import Obs


class MutexInputs(nn.Module):
    """Makes the observation of each policy out of the env's; nothing given is changed."""

    def __init__(self, obs_spec: ObsSpec, action_ratio: Tensor, config: MutexConfig) -> None:
        """Build for scale_i / env_scale as `action_ratio` [K, *action]; settings that do not fit raise."""
        super().__init__()
        self.num_policies, self.config = len(action_ratio), config
        self.last_action_factor: Tensor
        self.low: Tensor
        self.high: Tensor
        self.scales: Tensor
        self.rescales = bool(config.last_action_component) and not bool((action_ratio == 1).all())
        factor = _last_action_factor(obs_spec, action_ratio, config) if self.rescales else torch.ones(())
        self.register_buffer("last_action_factor", factor, persistent=False)
        velocities = {**config.cmd_vel, **_borrowed(config)}
        for index in [*velocities, *config.cmd_vel_like]:
            if not 0 <= index < self.num_policies:
                raise ValueError(
                    f"there is no policy {index} to give a velocity command to: 0 to {len(action_ratio) - 1}"
                )
        self.commanded = frozenset(velocities)
        ranges = [velocities.get(index, 0.0) for index in range(self.num_policies)]
        pairs = [value if isinstance(value, tuple) else (value, value) for value in ranges]
        self.draws = any(low != high for low, high in pairs)
        self.source = [config.cmd_vel_like.get(index, index) for index in range(self.num_policies)]
        self.register_buffer("low", torch.tensor([float(low) for low, _ in pairs]), persistent=False)
        self.register_buffer("high", torch.tensor([float(high) for _, high in pairs]), persistent=False)
        self.register_buffer("scales", _per_policy(config.cmd_scales, self.num_policies), persistent=False)
        self.command_mask: Tensor
        mask = _command_mask(obs_spec, config) if self.commanded else torch.zeros((), dtype=torch.bool)
        self.register_buffer("command_mask", mask, persistent=False)
        if self.rescales and self.commanded:
            _check_apart(obs_spec, action_ratio[0].numel(), config)

    @property
    def fixed(self) -> Tensor:
        """The commands [K] when none is drawn."""
        return self.low

    def commands(self, uniform: Tensor) -> Tensor:
        """Return velocities [.., K] within their ranges for numbers in [0, 1)."""
        shared = torch.stack([uniform[..., source] for source in self.source], dim=-1)
        return self.low + (self.high - self.low) * shared

    def seen_by(self, index: int, obs: Obs, command: Tensor) -> dict[str, Tensor]:
        """Return what policy `index` sees in a step [N, …]; `command` [N, K] are velocities."""
        return self.with_command(index, self.with_last_action(index, obs), command)

    def with_last_action(self, index: int, obs: Obs) -> dict[str, Tensor]:
        """Return the observation with the last action in the units of policy `index`."""
        name = self.config.last_action_component
        if not self.rescales:
            return dict(obs)
        return {**obs, name: obs[name] * self.last_action_factor[index].to(obs[name].dtype)}

    def with_command(self, index: int, obs: Obs, command: Tensor) -> dict[str, Tensor]:
        """Return the observation with the velocity command of policy `index`, if it has one; `command` is [N, K]."""
        if index not in self.commanded:
            return dict(obs)
        old = obs[self.config.cmd_component]
        value = (command[:, index] * self.scales[index]).to(old.dtype).view(-1, *[1] * (old.dim() - 1))
        return {**obs, self.config.cmd_component: torch.where(self.command_mask, value, old)}


def _borrowed(config: MutexConfig) -> dict[int, float | tuple[float, float]]:
    """Return the commands that policies take from others; from one without a command they take none."""
    for policy, other in config.cmd_vel_like.items():
        if policy in config.cmd_vel or other in config.cmd_vel_like:
            raise ValueError(f"policy {policy} has a velocity command of its own, or takes that of one that borrows")
    return {policy: config.cmd_vel[other] for policy, other in config.cmd_vel_like.items() if other in config.cmd_vel}


def _last_action_entries(obs_spec: ObsSpec, size: int, config: MutexConfig) -> range:
    name = config.last_action_component
    if name not in obs_spec:
        raise KeyError(
            unknown("component", name, obs_spec, where="the observation, where the last action is rescaled,")
            + " Set last_action_component, to '' when the last action is not observed."
        )
    width = obs_spec[name].size
    start, stop = config.last_action_entries or (width - size, width)
    if stop - start != size or not 0 <= start < stop <= width:
        raise ValueError(
            f"the last action has {size} entries and is looked for at {start}:{stop} of {name!r}, which has {width}; "
            "set last_action_component and last_action_entries"
        )
    return range(start, stop)


def _last_action_factor(obs_spec: ObsSpec, action_ratio: Tensor, config: MutexConfig) -> Tensor:
    """Return env_scale / scale_i at the entries of the last action and 1 elsewhere, [K, *component]."""
    flat = action_ratio.reshape(len(action_ratio), -1)
    entries = _last_action_entries(obs_spec, flat.shape[1], config)
    component = obs_spec[config.last_action_component]
    factor = torch.ones(len(flat), component.size)
    factor[:, entries.start : entries.stop] = 1.0 / flat
    return factor.view(len(flat), *component.shape)


def _command_mask(obs_spec: ObsSpec, config: MutexConfig) -> Tensor:
    """Return which entry of the component is the command."""
    name = config.cmd_component
    if name not in obs_spec:
        raise KeyError(
            unknown("component", name, obs_spec, where="the observation, where velocity commands are replaced,")
            + " Set cmd_component and cmd_entry."
        )
    component = obs_spec[name]
    if not -component.size <= config.cmd_entry < component.size:
        raise ValueError(
            f"the velocity command is entry {config.cmd_entry} of {name!r}, which has {component.size}; set cmd_entry"
        )
    mask = torch.zeros(component.size, dtype=torch.bool)
    mask[config.cmd_entry] = True
    return mask.view(component.shape)


def _per_policy(value: float | tuple[float, ...], count: int) -> Tensor:
    numbers = torch.as_tensor(value, dtype=torch.float32).reshape(-1)
    if numbers.numel() not in (1, count):
        raise ValueError(f"cmd_scales has {numbers.numel()} numbers for {count} policies")
    return numbers.expand(count).clone()


def _check_apart(obs_spec: ObsSpec, num_actions: int, config: MutexConfig) -> None:
    """Raise when the command would be written into the last action."""
    if config.cmd_component != config.last_action_component:
        return
    entry = config.cmd_entry % obs_spec[config.cmd_component].size
    last_action = _last_action_entries(obs_spec, num_actions, config)
    if entry in last_action:
        raise ValueError(
            f"entry {entry} of {config.cmd_component!r} is the velocity command and lies in the last action, "
            f"{last_action.start}:{last_action.stop}; set cmd_entry or last_action_entries"
        )
