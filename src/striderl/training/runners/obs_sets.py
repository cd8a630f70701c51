"""Who sees what: from the words of a config to the components of an env.

    obs_groups = {"actor": ("policy",), "critic": ("policy", "privileged")}       a set is a list of groups
                     └ components of the env in these groups, or with these names

A set that the config does not name takes the env's group of the same name, else what the actor sees; the actor itself
takes 'actor', 'policy' or 'state', whichever the env has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from striderl.data.naming import suggestion
from striderl.data.specs import ObsSpec

_ACTING = ("actor", "policy", "state")
_PRIVILEGED = ("critic", "privileged_state")


@dataclass(frozen=True, kw_only=True)
class ObsSets:
    """Component names by who reads them."""

    actor: tuple[str, ...]
    """What the actor sees."""
    critic: tuple[str, ...]
    """What the critic sees."""
    rnd: tuple[str, ...]
    """In what novelty counts."""


def resolve_obs_sets(obs_groups: Mapping[str, tuple[str, ...]], spec: ObsSpec, env_name: str) -> ObsSets:
    """Return the components of every set; a group that the env does not have is an error that names both."""
    acting = obs_groups.get("actor") or tuple(name for name in _ACTING if _known(name, spec))[:1]
    if not acting:
        raise KeyError(
            f"which observations does the actor see? {env_name} gives the groups {list(spec.groups)}; "
            "name some in obs_groups['actor']"
        )
    privileged = obs_groups.get("critic") or tuple(name for name in _PRIVILEGED if _known(name, spec))[:1]
    novelty = obs_groups.get("rnd_state") or (("rnd_state",) if _known("rnd_state", spec) else ())
    actor = _components(acting, spec, "actor", env_name)
    return ObsSets(
        actor=actor,
        critic=_components(privileged, spec, "critic", env_name) if privileged else actor,
        rnd=_components(novelty, spec, "rnd_state", env_name) if novelty else actor,
    )


def _known(name: str, spec: ObsSpec) -> bool:
    return name in spec or name in spec.groups


def _components(groups: tuple[str, ...], spec: ObsSpec, who: str, env_name: str) -> tuple[str, ...]:
    for group in groups:
        if not _known(group, spec):
            choices = list(dict.fromkeys([*spec.groups, *spec]))
            raise KeyError(
                f"obs_groups[{who!r}] wants the observation group {group!r}; {env_name} gives {choices}. "
                f"{suggestion(group, choices)}"
            )
    return spec.select(groups).names
