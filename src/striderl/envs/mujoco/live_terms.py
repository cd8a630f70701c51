"""All randomisation terms of one env, in the order in which they were given; see `randomize` for a single one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from striderl.envs.mujoco.randomize import LiveTerm, Randomization, Scene
from striderl.envs.mujoco.saving import Arrays, check_names, load_arrays, saved
from striderl.envs.mujoco.simulation import Float, Int


class LiveTerms:
    """The live side of every term, by its name."""

    def __init__(self, randomize: Sequence[Randomization], scene: Scene) -> None:
        """Attach the terms to one env; two of the same name are refused."""
        self._simulation = scene.simulation
        self._terms: dict[str, LiveTerm] = {}
        for term in randomize:
            if term.name in self._terms:
                raise ValueError(f"two randomisation terms are named {term.name!r}; give one of them another name")
            self._terms[term.name] = term.attach(scene)

    def values(self) -> dict[str, Float]:
        """Return what each term has drawn, [N, …]."""
        return {name: term.values for name, term in self._terms.items()}

    def begin(self, ids: Int) -> None:
        """Give these envs the model's own fields again, then let the terms draw for the episodes that begin."""
        if not self._terms:
            return
        self._simulation.restore_fields(ids)
        for term in self._terms.values():
            term.begin(ids)
        self._simulation.update_constants(ids)

    def filter_action(self, actions: Float) -> Float:
        """Return the actions that are applied instead of these."""
        for term in self._terms.values():
            actions = term.filter_action(actions)
        return actions

    def disturb(self, episode_length: Int) -> None:
        """Change the physical state before the physics."""
        for term in self._terms.values():
            term.disturb(episode_length)

    def filter_obs(self, obs: Arrays, rows: slice | Int, *, begun: bool, step_count: int) -> Arrays:
        """Return what is seen instead; `begun` says that `rows` stand at the start of an episode."""
        for term in self._terms.values():
            obs = term.filter_obs(obs, rows, begun=begun, step_count=step_count)
        return obs

    def state_dict(self) -> dict[str, Any]:
        """Return the arrays of every term."""
        return {name: saved(term.memory) for name, term in self._terms.items()}

    def load_state_dict(self, state: Mapping[str, Any], *, where: str) -> None:
        """Go on with the arrays of the same terms; `where` names them in errors."""
        check_names(self._terms, state, where=where)
        for name, term in self._terms.items():
            load_arrays(term.memory, state[name], where=f"randomisation term {name!r}")
