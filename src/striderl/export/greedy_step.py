"""The deterministic policy as a plain function of tensors: what is exported.

    joints [B, 12] ─┐                                                               ┌─▶ action [B, 12]     the mode
    image [B, …]   ─┤─▶ normalise ─▶ encode ─▶ estimate ─▶ remember ─▶ head ─▶ clip ─┤
    state/… [B, …] ─┘                                                               └─▶ next_state/… [B, …]

Real-valued actions are clipped to the bounds that the description declares.

Which components are inputs is found by probing the policy: one that cannot affect the action or the recurrent state,
such as a critic's privileged component or one that an estimator always replaces, is no input and is zeros inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from striderl.data.actions import ActionSpec, DictActionSpec, PlainActionSpec
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec, torch_dtype
from striderl.networks.distributions.base import Distribution
from striderl.networks.heads.base import ActionClip


class ExportablePolicy(Protocol):
    """Interface of a policy for export, which is also a `torch.nn.Module`."""

    obs_spec: ObsSpec
    """The env's observation."""
    action_spec: ActionSpec
    """The env's action."""
    actor_inputs: ObsSpec
    """The actor's observation."""

    def state_spec(self) -> dict[str, TensorSpec]:
        """Return what one env's memory is made of."""
        ...

    def settled(self, like: Tensor) -> dict[str, Tensor]:
        """Return the stages' decisions in deterministic inference."""
        ...

    def act(
        self, obs: Mapping[str, Tensor], state: Mapping[str, Tensor], stage_draws: Mapping[str, Tensor]
    ) -> tuple[Distribution[Any], dict[str, Tensor], dict[str, Tensor]]:
        """Run the actor alone on one step; returns (distribution, state, aux)."""
        ...


@dataclass(frozen=True, kw_only=True)
class ExportLayout:
    """Inputs and outputs of the exported function, in order."""

    observations: ObsSpec
    """Components that are inputs, in the order of the policy's spec."""
    unused: ObsSpec
    """Components that cannot reach the action; zeros take their place."""
    training: ObsSpec
    """What the policy was trained with: the actor's components, read or not, and masks; flat arrays may be such."""
    states: Mapping[str, TensorSpec]
    """Memory that goes in and comes out."""
    idle_states: Mapping[str, TensorSpec]
    """Memory that the actor only passes on, such as the critic's."""
    actions: Mapping[str, PlainActionSpec]
    """Output name to spec: 'action', or 'action/<part>' for each part of a dict action."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Component names, then 'state/<name>'."""
        return (*self.observations, *(f"state/{name}" for name in self.states))

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """What the inputs are, in the same order."""
        return (*self.observations.values(), *self.states.values())

    @property
    def output_names(self) -> tuple[str, ...]:
        """Action names, then 'next_state/<name>'."""
        return (*self.actions, *(f"next_state/{name}" for name in self.states))


class GreedyStep(nn.Module):
    """One deterministic step with flat inputs and outputs, in the order of the layout."""

    def __init__(self, policy: ExportablePolicy, layout: ExportLayout) -> None:
        super().__init__()
        self.policy = policy
        self.layout = layout
        self.clip = ActionClip(policy.action_spec)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the actions and the next state."""
        layout, batch = self.layout, inputs[0].shape[0]
        num_obs = len(layout.observations)
        given = dict(zip(layout.observations, inputs[:num_obs]))
        obs = {name: given.get(name, zeros(part, batch)) for name, part in self.policy.obs_spec.items()}
        state = dict(zip(layout.states, inputs[num_obs:]))
        idle = {name: zeros(part, batch) for name, part in layout.idle_states.items()}
        stage_draws = self.policy.settled(torch.zeros(batch))
        distribution, new_state, _ = self.policy.act(obs, {**state, **idle}, stage_draws)
        mode = self.clip(distribution.mode())
        parts = (
            {"action": mode} if isinstance(mode, Tensor) else {f"action/{key}": value for key, value in mode.items()}
        )
        return (*(parts[name] for name in layout.actions), *(new_state[name] for name in layout.states))


def zeros(spec: TensorSpec, batch: int) -> Tensor:
    """Return zeros [batch, …] of a spec."""
    return torch.zeros(batch, *spec.shape, dtype=torch_dtype(spec.dtype))


def plan_layout(policy: ExportablePolicy) -> ExportLayout:
    """Find the inputs and the recurrent state of the deterministic policy."""
    action = policy.action_spec
    parts = action.parts if isinstance(action, DictActionSpec) else None
    actions = {"action": action} if parts is None else {f"action/{name}": part for name, part in parts.items()}
    changed = _remembered(policy)
    used = [name for name in policy.obs_spec if _matters(policy, name)]
    layout = ExportLayout(
        observations=policy.obs_spec.select(used),
        unused=policy.obs_spec.select([name for name in policy.obs_spec if name not in used]),
        training=policy.obs_spec.select([*policy.actor_inputs, *used]),
        states={name: spec for name, spec in policy.state_spec().items() if name in changed},
        idle_states={name: spec for name, spec in policy.state_spec().items() if name not in changed},
        actions=actions,  # type: ignore[arg-type]
    )
    names = [*layout.input_names, *layout.output_names]
    if not used or len(set(names)) != len(names):
        raise ValueError(f"cannot export inputs and outputs named {names}: names must differ, and one must be read")
    return layout


_PROBE_BATCH = 16
"""How many envs are tried at once, so that each choice a policy makes is met in some."""


def probe(spec: TensorSpec, *lead: int, generator: torch.Generator) -> Tensor:
    """Return random values [*lead, …] of a spec's kind: normal numbers, bytes, small whole numbers, masks."""
    shape, dtype = (*lead, *spec.shape), torch_dtype(spec.dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if dtype == torch.bool:
        allowed = torch.rand(shape, generator=generator) < 0.7
        allowed[..., 0] = True  # a mask that allows nothing has no meaning
        return allowed
    if isinstance(spec, ComponentSpec) and spec.num_choices:
        counts, starts = torch.tensor(spec.num_choices), torch.tensor(spec.first_choice or (0,) * spec.size)
        drawn = (torch.rand((*lead, spec.size), generator=generator) * counts).long() + starts
        return drawn.reshape(shape).to(dtype)
    return torch.randint(0, 256 if dtype == torch.uint8 else 2, shape, generator=generator).to(dtype)


def _asked(policy: ExportablePolicy, obs: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the parameters of the distribution, in which nothing is hidden as it is in an argmax, and the memory."""
    with torch.no_grad():
        distribution, new_state, _ = policy.act(obs, state, policy.settled(torch.zeros(_PROBE_BATCH)))
    return [*distribution.params().values(), *(value for name, value in new_state.items() if value is not state[name])]


def _probes(policy: ExportablePolicy) -> tuple[dict[str, Tensor], dict[str, Tensor], torch.Generator]:
    generator = torch.Generator().manual_seed(0)
    obs = {name: probe(spec, _PROBE_BATCH, generator=generator) for name, spec in policy.obs_spec.items()}
    state = {name: probe(spec, _PROBE_BATCH, generator=generator) for name, spec in policy.state_spec().items()}
    return obs, state, generator


def _remembered(policy: ExportablePolicy) -> set[str]:
    """Return the memory that acting changes; what comes out as the very tensor that went in is passed on."""
    obs, state, _ = _probes(policy)
    with torch.no_grad():
        _, new_state, _ = policy.act(obs, state, policy.settled(torch.zeros(_PROBE_BATCH)))
    return {name for name, value in new_state.items() if value is not state[name]}


def _matters(policy: ExportablePolicy, name: str) -> bool:
    """Return whether a component can affect the policy's outputs.

    NaN is a dye: it passes weights that are zero and nonlinearities that are flat, but not `torch.where` that chose the
    other side. Comparisons hide it, so other numbers of several sizes are tried as well. Whole numbers cannot be NaN;
    those that the actor observes count as read.
    """
    obs, state, generator = _probes(policy)
    spec = policy.obs_spec[name]
    fresh = probe(spec, _PROBE_BATCH, generator=generator)
    if fresh.is_floating_point():
        others = [torch.full_like(fresh, torch.nan), fresh, 10.0 * fresh, -1000.0 * fresh]
    elif name in policy.actor_inputs:
        return True
    else:
        others = [~obs[name]] if spec.dtype == "bool" else [fresh]
    before = _asked(policy, obs, state)
    return any(
        not torch.equal(one, two)
        for other in others
        for one, two in zip(before, _asked(policy, {**obs, name: other}, state))
    )
