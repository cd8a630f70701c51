"""`MutexPolicy`: several trained policies in one, of which one acts at a time in each env.

    obs ─▶ selection ─▶ recent [N, L, K] ─▶ weight [N, K]: the share of each policy in the last L choices

    obs ─┬─▶ last action * env_scale / scale_0, its command ─▶ policy 0 ─▶ * scale_0 / env_scale * weight_0 ─┐
         ├─▶ …                                                                                             sum ─▶ action
         └─▶ last action * env_scale / scale_K, its command ─▶ policy K ─▶ * scale_K / env_scale * weight_K ─┘

Each policy gets its own velocity command, and the last action in its own units:

    proprioception of the env     [ … |  0.4  | … | a_0 … a_11 ]          a in units of env_action_scale
    as policy i gets it           [ … | v_i s | … | a * env_scale / scale_i ]
                                        9           the last 12

State of one env: the memory of every policy's actor, `recent` and `command`. All of it begins as zeros and is reset by
zeroing. A row of `recent` that is zero was never chosen in, so the mean is taken over the rows that are not: two steps
after a reset with L = 4

    recent   [[0, 1], [1, 0], [0, 0], [0, 0]]      newest first; weight = [1/2, 1/2], and the first action is whole

and an env without any such row is at its first step, where its velocity commands are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from striderl.data.actions import BoxSpec
from striderl.data.naming import unknown
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.networks.distributions.base import Distribution
from striderl.networks.distributions.deterministic import Deterministic
from striderl.networks.distributions.gaussian import DiagonalGaussian
from striderl.policies.mutex.settings import MutexConfig, Scale, check_sub_policies, one_hot, scale_tensor
from striderl.policies.policy import Policy
from striderl.policies.stage import Memo, Obs, State, inner, outer


class _Step(NamedTuple):
    """The outputs of one step."""

    mean: Tensor
    """[N, *action]."""
    std: Tensor | None
    """[N, *action], when all policies are Gaussian."""
    state: dict[str, Tensor]
    aux: dict[str, Tensor]


class MutexPolicy(nn.Module):
    """Sub-policies, their action scales, and the rule that chooses; see the picture at the top of this module.

    All sub-policies run on all envs, so shapes never change and memories stay up to date. They act as
    in inference, without exploration inside; the action is a Gaussian where all of theirs are,
    with the spread of the sum of independent ones, and deterministic otherwise. There is no critic.
    """

    def __init__(
        self,
        obs_spec: ObsSpec,
        sub_policies: Sequence[Policy],
        action_scales: Sequence[Scale],
        config: MutexConfig | None = None,
    ) -> None:
        """Join policies for these observations; `action_scales` are what their envs multiplied actions by."""
        super().__init__()
        self.config = config = config or MutexConfig()
        shape = check_sub_policies(obs_spec, sub_policies, action_scales)
        self.num_policies = len(sub_policies)
        if config.selection is not None:
            config.selection.check(obs_spec, self.num_policies)
        self.obs_spec = self.actor_inputs = obs_spec
        first = sub_policies[0].action_spec
        self.action_spec = BoxSpec(shape=shape, names=first.names if isinstance(first, BoxSpec) else ())
        self.sub_policies = nn.ModuleList(sub_policies)
        self.action_ratio: Tensor
        scales = torch.stack([scale_tensor(scale, shape, "a sub-policy's action scale") for scale in action_scales])
        ratio = scales / scale_tensor(config.env_action_scale, shape, "env_action_scale")
        self.register_buffer("action_ratio", ratio, persistent=False)
        self.inputs = MutexInputs(obs_spec, ratio, config)

    # -- what is declared ----------------------------------------------------------------------------------------------

    def state_spec(self) -> dict[str, TensorSpec]:
        """Return the spec of one env's memory; it starts as zeros."""
        own = {"recent": TensorSpec(shape=(self.config.smoothing_len, self.num_policies))}
        if self.inputs.draws:
            own["command"] = TensorSpec(shape=(self.num_policies,))
        subs = {
            f"{_name(index)}/{key}": spec
            for index, policy in enumerate(self.policies())
            for key, spec in policy.state_spec().items()
            if not key.startswith("critic/")
        }
        return {**own, **subs}

    def stage_draw_spec(self) -> dict[str, TensorSpec]:
        """Return the random decisions of a step: the commands that an env at its first step takes."""
        return {"command": TensorSpec(shape=(self.num_policies,))} if self.inputs.draws else {}

    def noise(self) -> dict[str, NoiseSpec]:
        """Return the random numbers needed for each env and step; only those of first steps are used."""
        return {"command": NoiseSpec(shape=(self.num_policies,), kind="uniform")} if self.inputs.draws else {}

    def initial_state(self, num_envs: int, device: torch.device | None = None) -> dict[str, Tensor]:
        """Return the memory at the start of an episode."""
        device = device or self.action_ratio.device
        return {name: torch.zeros(num_envs, *spec.shape, device=device) for name, spec in self.state_spec().items()}

    def decide(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn the noise of one step into velocity commands within their ranges."""
        return {"command": self.inputs.commands(noise["command"])} if self.inputs.draws else {}

    def settled(self, like: Tensor) -> dict[str, Tensor]:
        """Return the commands of deterministic inference, the middle of each range."""
        if not self.inputs.draws:
            return {}
        middle = torch.full((*like.shape, self.num_policies), 0.5, device=self.action_ratio.device)
        return {"command": self.inputs.commands(middle)}

    # -- running -------------------------------------------------------------------------------------------------------

    def act(
        self,
        obs: Obs,
        state: State,
        stage_draws: Memo,
        resets: Tensor | None = None,
        valid: Tensor | None = None,
        selection: Tensor | None = None,
    ) -> tuple[Distribution[Any], dict[str, Tensor], dict[str, Tensor]]:
        """Act on one step [N, …] or on a sequence [T, N, …]; returns (distribution, state, aux).

        `selection` [.., K], one-hot, replaces the selection by the observation. Nothing given is changed.
        """
        self.obs_spec.require(obs)
        name, spec = next(iter(self.obs_spec.items()))
        if obs[name].dim() - len(spec.shape) == 1:
            step = self._step(obs, state, stage_draws, resets, valid, selection)
            return self._distribution(step.mean, step.std), step.state, step.aux
        steps: list[_Step] = []
        for at in range(len(obs[name])):
            now = [None if given is None else given[at] for given in (resets, valid, selection)]
            steps.append(self._step(_at(obs, at), state, _at(stage_draws, at), *now))
            state = steps[-1].state
        mean = torch.stack([step.mean for step in steps])
        stds = [step.std for step in steps if step.std is not None]
        aux = {key: torch.stack([step.aux[key] for step in steps]) for key in steps[0].aux}
        return self._distribution(mean, torch.stack(stds) if stds else None), steps[-1].state, aux

    forward = act

    def _step(
        self,
        obs: Obs,
        state: State,
        stage_draws: Memo,
        resets: Tensor | None,
        valid: Tensor | None,
        selection: Tensor | None,
    ) -> _Step:
        dead = None if valid is None else ~valid.bool()
        state = _forgotten(state, _either(None if resets is None else resets.bool(), dead))
        obs = _forgotten(obs, dead)
        chosen = self._chosen(obs, selection)
        command = self._command(state, stage_draws)
        recent = torch.cat([chosen.unsqueeze(1), state["recent"][:, :-1]], dim=1)
        weight = recent.sum(1) / recent.sum((1, 2)).unsqueeze(-1)
        like = torch.zeros_like(weight[:, 0])
        new_state = {"recent": recent, **({"command": command} if self.inputs.draws else {})}
        acted: list[Distribution[Any]] = []
        for index, policy in enumerate(self.policies()):
            seen = self.inputs.seen_by(index, obs, command)
            memory = inner(state, _name(index))
            distribution, memory, _ = policy.act(seen, memory, policy.settled(like), None, valid)
            acted.append(distribution)
            new_state |= outer(_forgotten(memory, self._let_go(index, recent)), _name(index))
        mean, std = self._mixed(acted, weight)
        aux = {"selection": chosen, "weight": weight, "command": command}
        return _Step(mean, std, _forgotten(new_state, dead), aux)

    def _chosen(self, obs: Obs, selection: Tensor | None) -> Tensor:
        if selection is not None:
            return one_hot(selection.to(torch.float32).argmax(-1), self.num_policies)
        if self.config.selection is None:
            raise ValueError(
                "nothing says which policy acts: give `selection`, one-hot [N, K], or build the mutex with a selection "
                "by an observation component (ActorCriticFieldMutex)"
            )
        return self.config.selection.choose(obs, self.num_policies)

    def _command(self, state: State, stage_draws: Memo) -> Tensor:
        """Return the velocity commands [N, K]: the drawn ones at first steps, then the kept ones."""
        recent = state["recent"]
        if not self.inputs.draws:
            return self.inputs.fixed.expand(recent.shape[0], -1)
        if "command" not in stage_draws:
            raise KeyError(
                "velocity commands are drawn from a range and the memo does not have them; give "
                "policy.decide(noise), or policy.settled(like) for the middle of each range"
            )
        first = recent.sum((1, 2)) == 0
        return torch.where(first.unsqueeze(-1), stage_draws["command"], state["command"])

    def _let_go(self, index: int, recent: Tensor) -> Tensor | None:
        """Return the envs [N] in which a policy's memory is reset after this step."""
        unused = recent.sum(1) == 0
        if self.config.reset_non_selected == "all":
            return unused[:, index]
        if self.config.reset_non_selected == "when_skill" and index > 0:
            return unused[:, index] & unused[:, 0]
        return None

    def _mixed(self, acted: list[Distribution[Any]], weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the weighted sum of the scaled actions and, for Gaussians, its standard deviation."""
        means: list[Tensor] = []
        variances: list[Tensor] = []
        for index, distribution in enumerate(acted):
            share = weight[:, index].view(-1, *[1] * len(self.action_spec.shape)) * self.action_ratio[index]
            # a policy that does not act may return anything, NaN included: select, do not multiply by zero
            means.append(torch.where(share != 0, distribution.mode() * share, 0.0))
            if isinstance(distribution, DiagonalGaussian):
                variances.append(torch.where(share != 0, (distribution.std * share).square(), 0.0))
        gaussian = len(variances) == len(acted)
        return torch.stack(means).sum(0), torch.stack(variances).sum(0).sqrt() if gaussian else None

    def _distribution(self, mean: Tensor, std: Tensor | None) -> Distribution[Any]:
        event_dims = len(self.action_spec.shape)
        return Deterministic(mean, event_dims) if std is None else DiagonalGaussian(mean, std, event_dims)

    def policies(self) -> list[Policy]:
        """Return the sub-policies."""
        found: list[Policy] = []
        for policy in self.sub_policies:
            assert isinstance(policy, Policy)
            found.append(policy)
        return found


def _name(index: int) -> str:
    return f"sub_{index}"


def _at(values: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
    return {name: value[step] for name, value in values.items()}


def _either(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one | other


def _forgotten(values: Mapping[str, Tensor], where: Tensor | None) -> dict[str, Tensor]:
    """Zero the rows where the mask [N] is true: `where`, because NaN times zero is NaN."""
    if where is None:
        return dict(values)
    return {
        name: torch.where(where.view(-1, *[1] * (value.dim() - 1)), torch.zeros_like(value), value)
        for name, value in values.items()
    }


# -- what each policy is shown -----------------------------------------------------------------------------------------


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
        """Return the observation of policy `index` in a step [N, …]; `command` [N, K] are velocities."""
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
