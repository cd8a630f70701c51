"""Rollouts with columns of their own, filled from each step as it comes in.

                         columns of a step        extra columns [T, N, …]               read from
    ActionLabelRollout   obs act rew …            action_labels                         a teacher
    SarsaRolloutStorage  obs act rew …            obs_next                              the step itself
    AmpRolloutStorage    obs act rew …            ref_obs ref_motion action_labels      the env's info, a teacher

The extra columns lie in an arena beside that of the rollout, so a collector or a trainer that checks the columns of a
step finds what it expects; `data` and `batch` show both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from striderl.data import tree
from striderl.data.arena import Arena, Columns, Placement
from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.data.transition import Transition
from striderl.storage.rollout import RolloutStorage

Reader = Callable[[Transition, slice], Mapping[str, Any]]
"""Returns the extra columns of one step of these envs, [n, …] each."""
Labeller = Callable[[Transition, slice], Any]
"""Returns what a teacher would have done in the place of these envs, like `transition.act`."""


class ExtraColumnsRollout(RolloutStorage):
    """A rollout with more columns than a step has."""

    def __init__(
        self,
        columns: Columns,
        num_steps: int,
        num_envs: int,
        *,
        extra: Columns,
        read: Reader,
        placement: Placement | None = None,
        final_obs: ObsSpec | None = None,
        final_state: Columns | None = None,
        pool_size: int | None = None,
    ) -> None:
        """Allocate both kinds of columns; `read` is called with each step that comes in."""
        taken = sorted(set(extra) & set(columns))
        if taken:
            raise ValueError(f"extra columns {taken} are columns of a step already; choose other names")
        super().__init__(
            columns,
            num_steps,
            num_envs,
            placement=placement,
            final_obs=final_obs,
            final_state=final_state,
            pool_size=pool_size,
        )
        self.extra = Arena(extra, (num_steps, num_envs), _beside(placement or Placement()))
        self._read = read

    @property
    def data(self) -> dict[str, Any]:
        """All columns as views, [T, N, …] each."""
        return {**self.arena.data, **self.extra.data}

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Write the next step of these envs (a range of columns; all by default), and what is read from it."""
        envs = slice(0, self.num_envs) if envs is None else envs
        step = self._cursors[envs.start]
        if step < self.num_steps:
            # first, because only `super().add` moves on: a step that does not fit leaves the rollout as it was
            self.extra.write((step, envs), self._read(transition, envs))
        super().add(transition, envs)

    def pack(self, transition: Transition) -> dict[str, Any]:
        """Return a step of all envs, and what is read from it, as `put` takes it."""
        extra = self.extra.pack(self._read(transition, slice(0, self.num_envs)))
        return {**super().pack(transition), "extra": extra}

    def put(self, packed: Mapping[str, Any], place: Tensor) -> None:
        """Write a packed step into the row `place`, int64 [1]."""
        self.extra.put(packed["extra"], place)
        super().put(packed, place)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of everything that is stored."""
        return {**super().state_dict(), "extra": tree.copy(self.extra.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what another storage of the same size and columns held."""
        self.extra.load_state_dict(state["extra"])
        super().load_state_dict(state)


class ActionLabelRollout(ExtraColumnsRollout):
    """A rollout with what a teacher would have done: column `action_labels`, like `act`."""

    def __init__(
        self,
        columns: Columns,
        num_steps: int,
        num_envs: int,
        *,
        label: Labeller,
        placement: Placement | None = None,
        final_obs: ObsSpec | None = None,
        final_state: Columns | None = None,
        pool_size: int | None = None,
    ) -> None:
        """Ask `label` for the labels of each step that comes in."""

        def read(transition: Transition, envs: slice) -> dict[str, Any]:
            return {"action_labels": label(transition, envs)}

        super().__init__(
            columns,
            num_steps,
            num_envs,
            extra={"action_labels": columns["act"]},
            read=read,
            placement=placement,
            final_obs=final_obs,
            final_state=final_state,
            pool_size=pool_size,
        )


class SarsaRolloutStorage(ExtraColumnsRollout):
    """A rollout with the observation that truly followed each step: column `obs_next`, like `obs` or a part of it.

    Where an episode ended that is its final observation, never the first one of the next episode.
    """

    def __init__(
        self,
        columns: Columns,
        num_steps: int,
        num_envs: int,
        *,
        placement: Placement | None = None,
        final_obs: ObsSpec | None = None,
        final_state: Columns | None = None,
        pool_size: int | None = None,
        components: Sequence[str] | None = None,
    ) -> None:
        """Allocate a second set of observations: of all components, or of these."""
        stored = columns["obs"]
        assert isinstance(stored, Mapping)
        names = tuple(stored) if components is None else tuple(components)
        for name in names:
            if name not in stored:
                raise KeyError(unknown("component", name, stored, where="SarsaRolloutStorage: the observation"))

        def read(transition: Transition, envs: slice) -> dict[str, Any]:
            return {"obs_next": _true_next(transition, names)}

        super().__init__(
            columns,
            num_steps,
            num_envs,
            extra={"obs_next": {name: stored[name] for name in names}},
            read=read,
            placement=placement,
            final_obs=final_obs,
            final_state=final_state,
            pool_size=pool_size,
        )


class AmpRolloutStorage(ExtraColumnsRollout):
    """A rollout for adversarial motion priors: columns `ref_obs`, `ref_motion` and `action_labels`.

    The env gives `ref_obs`, what the discriminator sees of the robot, and `ref_motion`, the same of a recorded motion,
    as info keys or observation components, both as they are after the step; frames are laid side by side, so both are
    vectors. `MotionPrior` needs no such storage; this one is for learners that are written by hand.
    """

    def __init__(
        self,
        columns: Columns,
        num_steps: int,
        num_envs: int,
        *,
        amp_obs_dim: int,
        label: Labeller | None = None,
        placement: Placement | None = None,
        final_obs: ObsSpec | None = None,
        final_state: Columns | None = None,
        pool_size: int | None = None,
    ) -> None:
        """Take vectors of this size from each step; without a teacher, each action is its own label."""
        labels = label or own_action

        def read(transition: Transition, envs: slice) -> dict[str, Any]:
            return {
                "ref_obs": _amp_vector(transition, "ref_obs", amp_obs_dim),
                "ref_motion": _amp_vector(transition, "ref_motion", amp_obs_dim),
                "action_labels": labels(transition, envs),
            }

        vector = TensorSpec(shape=(amp_obs_dim,))
        super().__init__(
            columns,
            num_steps,
            num_envs,
            extra={"ref_obs": vector, "ref_motion": vector, "action_labels": columns["act"]},
            read=read,
            placement=placement,
            final_obs=final_obs,
            final_state=final_state,
            pool_size=pool_size,
        )


def own_action(transition: Transition, envs: slice) -> Any:
    """Label a step with what was done in it, as when a recorded expert acts."""
    return transition.act


def _true_next(transition: Transition, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Return what followed, of some components; on the CPU a look whether anything ended saves most of the work."""
    if transition.final_obs is None:
        raise ValueError(
            "SarsaRolloutStorage keeps what truly followed each step, but the env gives no final observations "
            "(gives_final_obs=False)"
        )
    following = {name: transition.next_obs[name] for name in names}
    done = transition.done
    if done.is_cpu and not bool(done.any()):
        return following
    return transition._replace(next_obs=following).obs_next()


def _amp_vector(transition: Transition, name: str, size: int) -> Tensor:
    """Return an info key, or an observation component after the step, as vectors [n, size]."""
    found = transition.info.get(name)
    if found is None and name in transition.next_obs:
        found = transition.obs_next()[name]
    if found is None:
        raise KeyError(
            unknown("key", name, [*transition.info, *transition.obs], where="the env's info and observation")
        )
    flat = found.flatten(1)
    if flat.shape[1] != size:
        raise ValueError(f"{name!r} has {flat.shape[1]} numbers per env, amp_obs_dim is {size}")
    return flat


def _beside(placement: Placement) -> Placement:
    """Return the place of the extra columns: files of their own in a folder of their own."""
    if placement.folder is None:
        return placement
    return Placement(device=placement.device, shared=placement.shared, folder=placement.folder / "extra")
