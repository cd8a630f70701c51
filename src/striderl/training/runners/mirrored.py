"""Mirror functions of rsl_rl as the two functions that the term `Symmetry` wants.

    function(env=, obs={group: [n, …]}, actions=[n, A])  ──▶  ({group: [k·n, …]}, [k·n, A])     k copies, the first is
                                                                the given one; rows n to 2n are mirrored, and used

One mirror is used; a function that gives more than two copies is told so once in the log. The older form (v1, v2) takes
one vector at a time and obs_type= 'policy' or 'critic'.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.terms.symmetry import Symmetry
from striderl.data.specs import ObsSpec
from striderl.training.runners.runner_config import SymmetrySettings

_log = logging.getLogger(__name__)


def symmetry_term(settings: SymmetrySettings, env: Any, spec: ObsSpec) -> Symmetry:
    """Make the term from a config's function, which is handed the user's own env."""
    mirror = GroupMirror(settings, env, spec)
    return Symmetry(
        mirror_obs=mirror.obs,
        mirror_act=mirror.act,
        augment=settings.augment,
        mirror_loss_weight=settings.mirror_loss_weight,
    )


class GroupMirror:
    """Brings components into groups, asks the function, and takes the groups apart again."""

    def __init__(self, settings: SymmetrySettings, env: Any, spec: ObsSpec) -> None:
        self._function, self._flat, self._env = settings.function, settings.flat, env
        self._groups = {group: spec.select([group]) for group in spec.groups}
        self._has_tensordict = importlib.util.find_spec("tensordict") is not None
        self._told = False

    def obs(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all components mirrored, with the leading shape they came in."""
        name, component = next((name, spec[name]) for spec in self._groups.values() for name in spec)
        lead = tuple(obs[name].shape[: obs[name].dim() - len(component.shape)])
        rows = {key: value.reshape(-1, *value.shape[len(lead) :]) for key, value in obs.items()}
        count = next(iter(rows.values())).shape[0]
        found: dict[str, Tensor] = {}
        groups = {group: _joined(spec, rows) for group, spec in self._groups.items()}
        mirrored = self._ask_flat(groups) if self._flat else self._ask(groups, count)
        for group, spec in self._groups.items():
            half = self._second(mirrored[group], count, f"group {group!r}")
            found |= dict(spec.split(half)) if len(spec) > 1 else {spec.names[0]: half}
        return {key: found[key].reshape(*lead, *value.shape[len(lead) :]) for key, value in obs.items()}

    def act(self, actions: Tensor) -> Tensor:
        """Return the actions mirrored, [.., A]."""
        rows = actions.reshape(-1, actions.shape[-1])
        if self._flat:
            _, mirrored = self._function(obs=None, actions=rows, env=self._env, obs_type="policy")
        else:
            _, mirrored = self._function(env=self._env, obs=None, actions=rows)
        return self._second(mirrored, rows.shape[0], "the action").reshape(actions.shape)

    def _ask(self, groups: dict[str, Tensor], count: int) -> Any:
        given: Any = groups
        if self._has_tensordict:  # functions written for rsl_rl call methods of TensorDict
            from tensordict import TensorDict

            given = TensorDict(groups, batch_size=[count])
        mirrored, _ = self._function(env=self._env, obs=given, actions=None)
        missing = [group for group in groups if group not in mirrored.keys()]  # noqa: SIM118  (a TensorDict wants keys())
        if missing:
            raise KeyError(f"the symmetry function returned no observation group {missing}")
        return mirrored

    def _ask_flat(self, groups: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            group: self._function(obs=value, actions=None, env=self._env, obs_type=group)[0]
            for group, value in groups.items()
        }

    def _second(self, value: Tensor, count: int, what: str) -> Tensor:
        copies = value.shape[0] // count
        if copies < 2 or value.shape[0] % count:
            raise ValueError(
                f"the symmetry function wants to return {what} and mirrored copies behind, {count} rows each; "
                f"found {value.shape[0]} rows"
            )
        if copies > 2 and not self._told:
            self._told = True
            _log.warning("the symmetry function gives %d copies; the first mirrored one is used", copies)
        return torch.as_tensor(value[count : 2 * count])


def _joined(spec: ObsSpec, rows: Mapping[str, Tensor]) -> Tensor:
    """Return a group as its only component, or as all of them in one vector."""
    if len(spec) == 1:
        return rows[spec.names[0]]
    flat: Tensor = spec.flatten({name: rows[name] for name in spec})
    return flat
