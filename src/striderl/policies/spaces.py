"""Sizes and segments of an env, as older libraries pass them, converted to specs.

    num_actor_obs=48, obs_segments={"proprioception": 45, "command": 3}       flat vectors, in named pieces or whole
    num_critic_obs=60, critic_obs_segments={"proprioception": 45, "friction": 15}

        obs        proprioception [45], command [3]                 group 'policy'
                   critic/proprioception [45], friction [15]        group 'critic'

Names are those that the adapter of rsl_rl envs gives: 'obs' and 'privileged_obs' without segments, and the group in
front of a critic's segment whose name the actor has too. In place of numbers, specs may be given, for envs with named
components: `ActorCritic(env.obs_spec.select(["policy"]), env.obs_spec, env.action_spec)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec
from striderl.policies.arguments import as_names

Segments = Mapping[str, int | Sequence[int]]
"""Name to size or shape of the consecutive pieces of a flat vector."""


@dataclass(frozen=True, kw_only=True)
class Spaces:
    """The components of actor and critic, and the action."""

    obs: ObsSpec
    """All components."""
    action: ActionSpec
    """The action."""
    actor: tuple[str, ...]
    """The components that the actor reads."""
    critic: tuple[str, ...]
    """The components that the critic reads."""
    critic_names: Mapping[str, str]
    """The critic's name of a segment to its component: 'proprioception' to 'critic/proprioception', also of specs."""

    def for_actor(self, names: str | Sequence[str], what: str) -> tuple[str, ...]:
        """Return the actor's components of these names."""
        return tuple(
            self._known(name, dict(zip(self.actor, self.actor)), what, "obs_segments") for name in as_names(names, what)
        )

    def for_critic(self, names: str | Sequence[str], what: str) -> tuple[str, ...]:
        """Return the critic's components of these names."""
        return tuple(
            self._known(name, self.critic_names, what, "critic_obs_segments") for name in as_names(names, what)
        )

    def targets(self, names: str | Sequence[str], what: str) -> tuple[str, ...]:
        """Return the components to predict: the actor's components of these names, else the critic's."""
        known = {**self.critic_names, **dict(zip(self.actor, self.actor))}
        return tuple(
            self._known(name, known, what, "obs_segments or critic_obs_segments") for name in as_names(names, what)
        )

    def truths(self, names: str | Sequence[str], what: str) -> tuple[str, ...]:
        """Return where its true values are: in the critic's components of these names, else in the actor's."""
        known = {**dict(zip(self.actor, self.actor)), **self.critic_names}
        return tuple(
            self._known(name, known, what, "obs_segments or critic_obs_segments") for name in as_names(names, what)
        )

    def _known(self, name: str, known: Mapping[str, str], what: str, where: str) -> str:
        if name not in known:
            raise KeyError(f"{what}: {unknown('component', name, known, where=where)}")
        return known[name]


def make_spaces(
    num_actor_obs: int | ObsSpec,
    num_critic_obs: int | ObsSpec | None,
    num_actions: int | ActionSpec,
    obs_segments: Segments | None,
    critic_obs_segments: Segments | None,
) -> Spaces:
    """Describe an env from sizes and segments, or specs; a critic without a size reads the actor's components."""
    action = _action(num_actions)
    actor = _flat(num_actor_obs, obs_segments, "obs", "policy", "obs_segments")
    if num_critic_obs is None:
        if critic_obs_segments is not None:
            raise ValueError("critic_obs_segments without num_critic_obs: say how many numbers the critic sees")
        critic, names = actor, dict(zip(actor, actor))
    else:
        given = _flat(num_critic_obs, critic_obs_segments, "privileged_obs", "critic", "critic_obs_segments")
        critic, names = _side_stream(actor, given, own=not isinstance(num_critic_obs, ObsSpec))
    obs = ObsSpec({**actor, **critic})
    masks = _masks(action)
    return Spaces(
        obs=obs,
        action=action,
        actor=tuple(name for name in actor if name not in masks),
        critic=tuple(name for name in critic if name not in masks),
        critic_names=names,
    )


def _action(given: Any) -> ActionSpec:
    """Return the spec of so many real numbers, or the spec that was given."""
    if isinstance(given, (BoxSpec, DiscreteSpec, MultiDiscreteSpec, DictActionSpec)):
        return given
    return BoxSpec(shape=(_whole(given, "num_actions", "an action spec"),))


def _whole(given: Any, argument: str, other: str) -> int:
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise TypeError(f"{argument} is a whole number or {other}, found {given!r}")
    return int(given)


def _flat(size: int | ObsSpec, segments: Segments | None, name: str, group: str, argument: str) -> ObsSpec:
    if isinstance(size, ObsSpec):
        if segments is not None:
            raise ValueError(f"{argument} beside a spec: the spec has the names already, leave {argument} away")
        return size
    size = _whole(size, "num_actor_obs" if argument == "obs_segments" else "num_critic_obs", "an observation spec")
    try:
        return ObsSpec.from_flat(size, {name: size} if segments is None else segments, group=group)
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from None


def _side_stream(actor: ObsSpec, critic: ObsSpec, *, own: bool) -> tuple[ObsSpec, dict[str, str]]:
    """Return the critic's components with names of their own, and how they are called in its segments."""
    if own:
        names = {name: f"critic/{name}" if name in actor else name for name in critic}
        return ObsSpec({names[name]: part for name, part in critic.items()}), names
    for name in critic:
        if name in actor and actor[name] != critic[name]:
            raise ValueError(f"{name!r} is {actor[name]} for the actor and {critic[name]} for the critic; rename one")
    short = {name.removeprefix("critic/"): name for name in critic}
    return critic, {**short, **dict(zip(critic, critic))}


def _masks(action: ActionSpec) -> tuple[str, ...]:
    """Return the action masks: the head reads them, the networks do not."""
    parts: Sequence[Any] = list(action.parts.values()) if isinstance(action, DictActionSpec) else [action]
    return tuple(part.mask for part in parts if not isinstance(part, BoxSpec) and part.mask)
