"""Trajectory infos: small objects that follow one episode each and are returned when it ends.

    steps      t    0   1   2   3          TrajInfo of env 0        returned
    env 0           r   r  end  r    ──▶   step step step ────────▶ terminate(final observation)
                                           new ──▶ step …           goes on in the next batch

Subclass `TrajInfo` to count something else. Fields that start with '_' are the object's own and are not logged.
Episodes with a sample that is not valid are dropped: their return is meaningless.

Transitions of the collector in the form that trajectory infos follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from striderl.collect.samplers.samples import flat, named, named_observation
from striderl.data import tree
from striderl.data.transition import Transition

if TYPE_CHECKING:
    from typing import Self


Array = np.ndarray[Any, Any]


class TrajInfo(dict[str, Any]):
    """Length and return of one trajectory; its fields are attributes and dict entries at once."""

    _discount: float = 1.0
    """The discount of `DiscountedReturn`; a sampler's `traj_info_kwargs={"discount": 0.99}` sets it per object."""

    Length: int
    Return: float
    NonzeroRewards: int
    DiscountedReturn: float
    _cur_discount: float

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make the entries of the dict its attributes, before any `__init__` of a subclass runs."""
        info = super().__new__(cls)
        info.__dict__ = info
        return info

    def __init__(self, **fields: Any) -> None:
        """Start to count; more fields may be given by name."""
        super().__init__(**fields)
        self.Length = 0
        self.Return = 0.0
        self.NonzeroRewards = 0
        self.DiscountedReturn = 0.0
        self._cur_discount = 1.0

    def step(self, observation: Any, action: Any, reward: float, done: bool, agent_info: Any, env_info: Any) -> None:
        """Update with one step.

        Observation, action and infos are arrays of one env. Before the first batch, while actions are random, and for
        agents that have none, `agent_info` is None.
        """
        self.Length += 1
        self.Return += reward
        self.NonzeroRewards += int(reward != 0)
        self.DiscountedReturn += self._cur_discount * reward
        self._cur_discount *= self._discount

    def terminate(self, observation: Any) -> TrajInfo:
        """Finish with the observation in which the trajectory ended, None when the env gives none; return the info."""
        return self

    def logged(self) -> dict[str, Any]:
        """Return the fields that belong in a log: those that do not start with '_'."""
        return {name: value for name, value in self.items() if not name.startswith("_")}

    def __reduce__(self) -> tuple[Any, ...]:
        # the default would save the entries twice, once as the dict and once as the attributes
        return _restored, (type(self), dict(self))


def _restored(kind: type[TrajInfo], fields: Mapping[str, Any]) -> TrajInfo:
    info = kind.__new__(kind)
    info.update(fields)
    return info


@dataclass(frozen=True)
class TrajInfoFactory:
    """Makes trajectory infos of a class with some of its underscore fields set, without changing the class."""

    kind: Callable[[], TrajInfo]
    """`TrajInfo` or a subclass."""
    settings: Mapping[str, Any]
    """Field names without their leading underscore: {"discount": 0.99}."""

    def __call__(self) -> TrajInfo:
        """Return a new info."""
        info = self.kind()
        info.update({f"_{name}": value for name, value in self.settings.items()})
        return info


@dataclass(frozen=True, kw_only=True)
class TrajectorySteps:
    """Steps of B envs as arrays [T, B, …], or nested structures of them."""

    observation: Any
    action: Any
    reward: Array
    done: Array
    """Whether an episode ended in this step, bool."""
    ended: Array
    """Whether the trajectory ended: the same, unless the env distinguishes lives and games (`env_info.traj_done`)."""
    valid: Array
    """Whether the sample is valid; an episode with an invalid one is dropped."""
    counted: Array
    """Whether the step belongs to a trajectory at all; false in columns that wait for a reset."""
    agent_info: Any
    env_info: Any
    final: Callable[[int, int], Any]
    """Returns the observation in which env b ended in step t, as final(t, b); None when it is not known."""


class TrajectoryTracker:
    """Updates one trajectory info per env with the steps."""

    def __init__(self, make_info: Callable[[], TrajInfo], num_envs: int) -> None:
        """Start a trajectory in every env."""
        self._make_info = make_info
        self.infos = [make_info() for _ in range(num_envs)]
        self._spoiled = [False] * num_envs
        kind = type(self.infos[0])
        self._plain = kind.step is TrajInfo.step
        self.wants_finals = kind.terminate is not TrajInfo.terminate
        """Whether the infos read final observations: most do not, and then they need not be stored."""

    def resume(self, infos: Sequence[TrajInfo]) -> None:
        """Continue with these infos, one per env."""
        if len(infos) != len(self.infos):
            raise ValueError(f"wanted {len(self.infos)} trajectory infos, one per env, found {len(infos)}")
        self.infos = list(infos)

    def restart(self, envs: Sequence[int]) -> None:
        """Drop the trajectories in progress in these envs and start new ones."""
        for env in envs:
            self.infos[env], self._spoiled[env] = self._make_info(), False

    def advance(self, steps: TrajectorySteps) -> list[tuple[int, TrajInfo]]:
        """Update with some steps; return (env, info) of every trajectory that ended, in the order in which they did."""
        return self._advance_together(steps) if self._plain else self._advance_one_by_one(steps)

    def _advance_one_by_one(self, steps: TrajectorySteps) -> list[tuple[int, TrajInfo]]:
        """Call each info's own `step`."""
        rewards, dones, ends = steps.reward.tolist(), steps.done.tolist(), steps.ended.tolist()
        valids, counts = steps.valid.tolist(), steps.counted.tolist()
        completed: list[tuple[int, TrajInfo]] = []
        for step in range(len(rewards)):
            for env, info in enumerate(self.infos):
                if not counts[step][env]:
                    continue
                if valids[step][env]:
                    observation, action, agent_info, env_info = self._seen(steps, step, env)
                    info.step(observation, action, rewards[step][env], dones[step][env], agent_info, env_info)
                else:
                    self._spoiled[env] = True
                if ends[step][env]:
                    completed += self._end(steps, step, env)
        return completed

    def _advance_together(self, steps: TrajectorySteps) -> list[tuple[int, TrajInfo]]:
        """Do what `TrajInfo.step` does for all envs at once, with the same arithmetic; faster with many envs."""
        totals = np.array([self._totals(info) for info in self.infos])
        discount = np.array([info._discount for info in self.infos])
        completed: list[tuple[int, TrajInfo]] = []
        for step, (reward, ended) in enumerate(zip(steps.reward.astype(np.float64), steps.ended)):
            counted, valid = steps.counted[step], steps.valid[step]
            live = counted & valid
            gain = np.where(live, reward, 0.0)
            totals[:, 0] += live
            totals[:, 1] += gain
            totals[:, 2] += gain != 0.0
            totals[:, 3] += totals[:, 4] * gain
            totals[:, 4] *= np.where(live, discount, 1.0)
            for env in np.flatnonzero(counted & ~valid).tolist():
                self._spoiled[env] = True
            for env in np.flatnonzero(counted & ended).tolist():
                self._set_totals(env, totals[env])
                completed += self._end(steps, step, env)
                totals[env] = self._totals(self.infos[env])
        for env, row in enumerate(totals):
            self._set_totals(env, row)
        return completed

    def _end(self, steps: TrajectorySteps, step: int, env: int) -> list[tuple[int, TrajInfo]]:
        """Start a new trajectory, and return the one that ended, unless a sample of it is not valid."""
        info, spoiled = self.infos[env], self._spoiled[env]
        self.restart([env])
        if spoiled:
            return []
        return [(env, info.terminate(steps.final(step, env) if self.wants_finals else None))]

    @staticmethod
    def _totals(info: TrajInfo) -> tuple[float, ...]:
        return info.Length, info.Return, info.NonzeroRewards, info.DiscountedReturn, info._cur_discount

    def _set_totals(self, env: int, totals: Array) -> None:
        length, total, nonzero, discounted, discount = totals.tolist()
        info = self.infos[env]
        info.Length, info.Return, info.NonzeroRewards = int(length), total, int(nonzero)
        info.DiscountedReturn, info._cur_discount = discounted, discount

    @staticmethod
    def _seen(steps: TrajectorySteps, step: int, env: int) -> tuple[Any, Any, Any, Any]:
        parts = (steps.observation, steps.action, steps.agent_info, steps.env_info)
        observation, action, agent_info, env_info = (tree.index(part, (step, env)) for part in parts)
        return observation, action, agent_info, env_info


# -- from transitions --------------------------------------------------------------------------------------------------


def transition_steps(
    transition: Transition, counted: Tensor, agent_info: Callable[[dict[str, Any]], Any]
) -> TrajectorySteps:
    """Return one transition [B, …] as steps [1, B, …].

    `counted` [B] marks the envs for which it belongs to a trajectory, `agent_info` converts the actor's columns.
    """
    components = [name for name in transition.obs if name not in ("prev_action", "prev_reward")]
    arrays: Transition = tree.map(lambda leaf: tree.to_numpy(leaf)[None], transition._replace(next_state=()))
    final_obs = arrays.final_obs
    done: Any = arrays.done

    def final(_: int, env: int) -> Any:
        if final_obs is None:
            return None
        return named_observation({name: final_obs[name][0, env] for name in components})

    return TrajectorySteps(
        observation=named_observation({name: arrays.obs[name] for name in components}),
        action=arrays.act,
        reward=np.asarray(arrays.rew),
        done=done,
        ended=arrays.info.get("traj_done", done),
        valid=np.asarray(arrays.valid),
        counted=counted[None].cpu().numpy(),
        agent_info=agent_info(flat(arrays.policy)),
        env_info=named("EnvInfo", flat(arrays.info)),
        final=final,
    )
