"""`Collector`: env times actor gives experience, an exact number of steps or episodes at a time.

    for each step:   obs ──actor(obs, state, noise)──▶ actions ──env──▶ step ──quarantine──▶ transition ──▶ storage
                      ▲                                                        │                     └──▶ statistics
                      └──────────────── next obs, state (fresh where an episode ended) ◀┘

    collect(n_step=12) with 8 envs    16 transitions are made, 12 are handed over, 4 wait and come first next time
    collect(n_episode=3) with 2 envs  env 0 gives two episodes, env 1 gives one, from fresh starts: short episodes are
                                      not preferred, as they would be by taking whichever end first

There is one loop for every back end; how envs are stepped is the schedule's business (`schedules.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from striderl.collect.actors import Acted, Actor
from striderl.collect.noise_source import NoiseSource
from striderl.collect.quarantine import Fault, Quarantine
from striderl.collect.schedules import SCHEDULES, Schedule
from striderl.collect.statistics import EpisodeStatistics
from striderl.data import tree
from striderl.data.actions import DictActionSpec
from striderl.data.arena import Columns
from striderl.data.naming import unknown
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.data.transition import Transition, transition_columns
from striderl.envs.vec_env import Obs, Step, VecEnv


class Storage(Protocol):
    """Where transitions go."""

    balanced: bool
    """Whether every env must deliver the same number of steps."""

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Take the next step of these envs (a range; all by default)."""
        ...


@dataclass(frozen=True, kw_only=True)
class CollectorConfig:
    """How experience is collected."""

    seed: int = 0
    """The seed of env resets and of the actor's noise."""
    schedule: str = "together"
    """'together', 'alternating' (two halves, simulation overlaps inference) or 'asynchronous' (whoever is ready)."""
    num_groups: int = 2
    """How many groups of envs the asynchronous schedule steps on their own."""
    wait_reset: bool = False
    """After an end, wait: the env's column is not valid until the next call of `collect`, which starts a new episode."""
    previous_step: bool = False
    """Show the actor its last action and reward as components 'prev_action' and 'prev_reward', zero after a reset."""
    decorrelation_steps: int = 0
    """Before the first step, age each env by up to this many steps of its time limit, so that time-outs come apart."""
    limit: float = 1e10
    """Numbers beyond this magnitude, like NaN and infinity, put their env into quarantine."""
    window: int = 100
    """Over how many finished episodes the statistics go."""
    noise_block: int = 64
    """For how many steps the actor's noise is drawn at once; changing it changes the numbers."""

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(unknown("schedule", self.schedule, SCHEDULES, where="CollectorConfig"))
        if self.wait_reset and self.schedule == "asynchronous":
            raise ValueError("wait_reset has no meaning in an asynchronous schedule: envs do not wait for each other")


@dataclass(frozen=True)
class Collected:
    """What one call of `collect` did."""

    num_steps: int
    """Transitions handed over."""
    num_episodes: int
    """Episodes finished in this call; exact for n_episode, otherwise counted with the statistics on the next read."""
    seconds: float
    """How long it took."""
    returns: list[float] = field(default_factory=list)
    """With n_episode: each episode's undiscounted return, env by env in order."""
    lengths: list[int] = field(default_factory=list)
    """With n_episode: each episode's length."""
    faults: list[Fault] = field(default_factory=list)
    """The first bad number of each component, if there were any."""


@dataclass
class _Group:
    """One group of envs on its way."""

    env: VecEnv
    rows: slice
    obs: Obs
    state: Any
    fresh_state: Any
    noise: NoiseSource
    quarantine: Quarantine
    waiting: Tensor
    step: int = 0
    acted: Acted | None = None


class Collector:
    """Steps an env with an actor; see the picture at the top of this module."""

    def __init__(self, env: VecEnv, actor: Actor, config: CollectorConfig | None = None) -> None:
        """Prepare; nothing is reset before the first `collect` or `reset`."""
        self.env, self.actor = env, actor
        self.config = config or CollectorConfig()
        self.schedule = Schedule(env, self.config.schedule, self.config.num_groups)
        self.statistics = EpisodeStatistics(env.num_envs, env.device, self.config.window)
        self._groups: list[_Group] = []
        self._carried: list[tuple[Transition, slice]] = []
        self._partial = False

    # -- what is stored ------------------------------------------------------------------------------------------------

    @property
    def obs_spec(self) -> ObsSpec:
        """What the actor sees: the env's components, and the previous action and reward if wanted."""
        if not self.config.previous_step:
            return self.env.obs_spec
        if isinstance(self.env.action_spec, DictActionSpec):
            raise TypeError("previous_step wants an action that is one tensor, not a dict of them")
        action = self.env.action_spec.tensor
        previous = {
            "prev_action": ComponentSpec(shape=action.shape, dtype=action.dtype, group="previous"),
            "prev_reward": ComponentSpec(group="previous"),
        }
        return self.env.obs_spec.merged(ObsSpec(previous))

    def columns(self) -> Columns:
        """Return the columns of one step, for making a storage that fits."""
        info = {name: spec for name, spec in self.env.info_spec.items() if name != "valid"}
        return transition_columns(self.obs_spec, self.env.action_spec, info, self.actor.columns())

    # -- collecting ----------------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> None:
        """Start new episodes everywhere; with a seed, restart all streams from it, else go on with the config's."""
        first = not self._groups
        if first or seed is not None:
            self._seed = self.config.seed if seed is None else seed
            self._groups = self._make_groups(self.schedule.reset(self._seed))
        else:
            for group, obs in zip(self._groups, self.schedule.reset(None)):
                self._begin(group, obs)
        self._carried = []
        self._partial = False
        self.statistics.restart(torch.ones_like(self.statistics.spoiled))
        if first and self.config.decorrelation_steps:
            self._decorrelate()

    @torch.no_grad()
    def collect(
        self,
        *,
        n_step: int | None = None,
        n_episode: int | Sequence[int] | None = None,
        storage: Storage | None = None,
    ) -> Collected:
        """Collect exactly this many steps, or exactly this many whole episodes (a total, or a number for each env)."""
        if (n_step is None) == (n_episode is None):
            raise ValueError(f"collect wants exactly one of n_step and n_episode, found {n_step} and {n_episode}")
        started = time.perf_counter()
        if n_episode is not None:
            quotas = self._quotas(n_episode)
            self.reset()
            returns, lengths, steps = self._collect_episodes(quotas, storage)
            self._partial = True
            faults = self._heal()
            seconds = time.perf_counter() - started
            return Collected(steps, len(returns), seconds, returns, lengths, faults)
        assert n_step is not None
        if n_step < 1:
            raise ValueError(f"n_step must be at least 1, found {n_step}")
        if not self._groups or self._partial:
            self.reset()
        before = int(self.statistics.num_episodes) if self.env.device.type == "cpu" else 0
        self._collect_steps(n_step, storage)
        after = int(self.statistics.num_episodes) if self.env.device.type == "cpu" else 0
        return Collected(n_step, after - before, time.perf_counter() - started, faults=self._heal())

    def _collect_steps(self, n_step: int, storage: Storage | None) -> None:
        remaining = self._hand_over_carried(n_step, storage)
        if remaining == 0:
            return
        balanced = storage is not None and storage.balanced
        if balanced and (remaining % self.env.num_envs or remaining != n_step):
            raise ValueError(
                f"this storage wants the same number of steps from each of {self.env.num_envs} envs, "
                f"but n_step={n_step} is not a multiple of that"
            )
        even = balanced or self.config.schedule != "asynchronous"
        rounds = [-(-remaining // self.env.num_envs)] * len(self._groups)
        launched = 0
        for number, group in enumerate(self._groups):
            if even or launched < remaining:
                launched += self._launch(number)
                rounds[number] -= 1
        while self.schedule.busy:
            number, step = self.schedule.land()
            group = self._groups[number]
            transition = self._settle(group, step)
            remaining = self._hand_over(transition, group.rows, remaining, storage)
            if rounds[number] > 0 if even else launched < n_step:
                launched += self._launch(number)
                rounds[number] -= 1

    def _collect_episodes(self, quotas: list[int], storage: Storage | None) -> tuple[list[float], list[int], int]:
        """Step until every env has its quota; transitions of envs that have theirs are not handed over."""
        finished: list[list[tuple[float, int]]] = [[] for _ in quotas]
        running = [(0.0, 0) for _ in quotas]
        steps = 0
        for number, group in enumerate(self._groups):
            if any(quotas[group.rows]):
                self._launch(number)
        while self.schedule.busy:
            number, step = self.schedule.land()
            group = self._groups[number]
            transition = self._settle(group, step)
            wanted = [len(finished[row]) < quotas[row] for row in range(group.rows.start, group.rows.stop)]
            steps += sum(wanted)
            if storage is not None:
                self._store_wanted(transition, group.rows, wanted, storage)
            rewards, dones, sick = transition.rew.tolist(), transition.done.tolist(), group.quarantine.sick
            for offset, row in enumerate(range(group.rows.start, group.rows.stop)):
                total, length = running[row]
                running[row] = (total + rewards[offset], length + 1)
                if dones[offset]:
                    if wanted[offset]:
                        finished[row].append(running[row])
                    running[row] = (0.0, 0)
            if bool(sick.any()):
                self._reset_sick(group)
            if any(len(finished[row]) < quotas[row] for row in range(group.rows.start, group.rows.stop)):
                self._launch(number)
        episodes = [episode for row in finished for episode in row]
        return [total for total, _ in episodes], [length for _, length in episodes], steps

    # -- one step of one group -----------------------------------------------------------------------------------------

    def _launch(self, number: int) -> int:
        """Let the actor choose for one group and start its step; return how many transitions that will give."""
        group = self._groups[number]
        group.acted = self.actor.act(group.obs, group.state, group.noise.at(group.step))
        # the env gets a copy: whatever it does to the actions, what is stored is what was chosen
        self.schedule.launch(number, tree.copy(group.acted.actions))
        return group.env.num_envs

    def _settle(self, group: _Group, step: Step) -> Transition:
        """Turn a step into a transition, and make the group ready for its next one."""
        acted = group.acted
        assert acted is not None
        previous = {name: group.obs[name] for name in step.obs}
        healthy = group.quarantine.check(
            previous=previous,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            valid=step.info.get("valid", torch.ones_like(step.terminated)) & ~group.waiting,
            obs=step.obs,
            final_obs=step.final_obs,
            step=group.step,
        )
        transition = Transition(
            obs=group.obs,
            act=acted.actions,
            rew=healthy.reward,
            terminated=step.terminated,
            truncated=healthy.truncated,
            valid=healthy.valid,
            info={name: step.info[name] for name in self.env.info_spec if name != "valid"},
            policy=acted.columns,
            next_obs=healthy.obs,
            final_obs=healthy.final_obs,
        )
        if self.config.wait_reset:
            transition = self._wait(group, transition)
        if self.config.previous_step:
            transition = self._with_previous(transition)
        done = transition.done
        self.statistics.update(group.rows, transition.rew, done, transition.valid)
        self.statistics.log(step.info["log"])
        group.obs = transition.next_obs
        group.state = _where_env(done, group.fresh_state, acted.state)
        group.step += 1
        group.acted = None
        return transition

    def _wait(self, group: _Group, transition: Transition) -> Transition:
        """Blank the columns of envs whose episode is over: zeros, done, not valid."""
        waiting = group.waiting
        group.waiting = waiting | transition.done
        zero = {
            name: _where_env(waiting, tree.map(torch.zeros_like, value), value)
            for name, value in {"obs": transition.obs, "act": transition.act, "rew": transition.rew}.items()
        }
        return transition._replace(**zero, terminated=transition.terminated | waiting)

    def _with_previous(self, transition: Transition) -> Transition:
        """Add the action and reward of this step to what the actor sees next; nothing where an episode ended."""
        done = transition.done
        kept: Obs = {"prev_action": transition.act, "prev_reward": transition.rew}
        blank = {name: torch.zeros_like(value) for name, value in kept.items()}
        final = transition.final_obs
        return transition._replace(
            next_obs={**transition.next_obs, **_where_env(done, blank, kept)},
            final_obs=None if final is None else {**final, **kept},
        )

    # -- handing over --------------------------------------------------------------------------------------------------

    def _hand_over_carried(self, n_step: int, storage: Storage | None) -> int:
        """Hand over what the last call left, oldest first; return how many steps are still wanted."""
        carried, self._carried = self._carried, []
        for transition, rows in carried:
            n_step = self._hand_over(transition, rows, n_step, storage)
        return n_step

    def _hand_over(self, transition: Transition, rows: slice, remaining: int, storage: Storage | None) -> int:
        """Store up to `remaining` rows and keep the rest for the next call; return how many are still wanted."""
        count = rows.stop - rows.start
        taken = min(count, remaining)
        if taken < count:
            self._carried.append((transition.rows(slice(taken, count)), slice(rows.start + taken, rows.stop)))
        if taken and storage is not None:
            part = transition if taken == count else transition.rows(slice(0, taken))
            storage.add(part, slice(rows.start, rows.start + taken))
        return remaining - taken

    @staticmethod
    def _store_wanted(transition: Transition, rows: slice, wanted: list[bool], storage: Storage) -> None:
        """Store runs of neighbouring envs that are still wanted."""
        if all(wanted):
            storage.add(transition, rows)
            return
        start = 0
        while start < len(wanted):
            stop = start
            while stop < len(wanted) and wanted[stop]:
                stop += 1
            if stop > start:
                storage.add(transition.rows(slice(start, stop)), slice(rows.start + start, rows.start + stop))
            start = stop + 1

    # -- starts and resets ---------------------------------------------------------------------------------------------

    def _make_groups(self, observations: list[Obs]) -> list[_Group]:
        groups, start = [], 0
        for env, obs in zip(self.schedule.envs, observations):
            rows = slice(start, start + env.num_envs)
            first = self.env.first_env_index + start
            index = torch.arange(first, first + env.num_envs, device=env.device)
            specs = self.actor.noise()
            fresh = self.actor.initial_state(env.num_envs, env.device)
            group = _Group(
                env=env,
                rows=rows,
                obs=obs,
                state=fresh,
                fresh_state=fresh,
                noise=NoiseSource(specs, seed=self._seed, env_index=index, block=self.config.noise_block),
                quarantine=Quarantine(env.num_envs, env.device, first_env_index=first, limit=self.config.limit),
                waiting=torch.zeros(env.num_envs, dtype=torch.bool, device=env.device),
            )
            self._begin(group, obs)
            groups.append(group)
            start += env.num_envs
        return groups

    def _begin(self, group: _Group, obs: Obs) -> None:
        """Stand at the start of an episode in every env of a group."""
        obs = group.quarantine.check_start(obs, group.step)
        if self.config.previous_step:
            missing = {name: spec for name, spec in self.obs_spec.items() if name not in obs}
            blank = {
                name: torch.zeros((group.env.num_envs, *spec.shape), dtype=_dtype(spec), device=group.env.device)
                for name, spec in missing.items()
            }
            obs = {**obs, **blank}
        group.obs, group.state, group.acted = obs, group.fresh_state, None
        group.waiting = torch.zeros_like(group.waiting)

    def _heal(self) -> list[Fault]:
        """Reset the envs that are sick or waiting, and return what was wrong; once per call of `collect`."""
        faults = [fault for group in self._groups for fault in group.quarantine.faults()]
        for group in self._groups:
            if bool((group.quarantine.sick | group.waiting).any()):
                self._reset_sick(group)
        return faults

    def _reset_sick(self, group: _Group) -> None:
        mask = group.quarantine.sick | group.waiting
        obs = group.env.reset_envs(mask)
        healthy = group.quarantine.check_start({**obs}, group.step)
        if self.config.previous_step:
            kept = {name: group.obs[name] for name in ("prev_action", "prev_reward")}
            blank = {name: torch.zeros_like(value) for name, value in kept.items()}
            healthy = {**healthy, **_where_env(mask, blank, kept)}
        group.obs = healthy
        group.state = _where_env(mask, group.fresh_state, group.state)
        group.waiting = torch.zeros_like(group.waiting)
        whole = torch.zeros_like(self.statistics.spoiled)
        whole[group.rows] = mask
        self.statistics.restart(whole)

    def _decorrelate(self) -> None:
        """Give episodes different ages, so that the first time-outs do not come all at once."""
        limit = self.env.max_episode_length
        if not limit:
            raise ValueError("decorrelation_steps ages episodes towards their time limit, but this env has none")
        steps = min(self.config.decorrelation_steps, limit - 1)
        generator = torch.Generator().manual_seed(self._seed)
        ages = torch.randint(0, steps + 1, (self.env.num_envs,), generator=generator)
        self.env.episode_length_buf = ages.to(self.env.device)

    def _quotas(self, n_episode: int | Sequence[int]) -> list[int]:
        """Return how many episodes each env has to give."""
        if not isinstance(n_episode, int):
            quotas = [int(count) for count in n_episode]
            if len(quotas) != self.env.num_envs:
                raise ValueError(f"n_episode has {len(quotas)} numbers for {self.env.num_envs} envs")
        else:
            each, rest = divmod(n_episode, self.env.num_envs)
            quotas = [each + (row < rest) for row in range(self.env.num_envs)]
        if min(quotas) < 0 or sum(quotas) < 1:
            raise ValueError(f"n_episode must ask for at least one episode, found {n_episode}")
        return quotas

    # -- saving --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return where collection stands: env state, observations, actor memory, statistics, noise position."""
        if self._carried:
            raise RuntimeError("state can be saved between calls that took a multiple of num_envs steps, not now")
        return {
            "env": self.env.state_dict(),
            "seed": self._seed,
            "partial": self._partial,
            "statistics": self.statistics.state_dict(),
            "groups": [
                {"obs": tree.copy(group.obs), "state": tree.copy(group.state), "step": group.step}
                for group in self._groups
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue bit for bit where another collector on the same kind of env stood."""
        self._seed = int(state["seed"])
        self._groups = self._make_groups(self.schedule.reset(self._seed))
        self.env.load_state_dict(state["env"])
        for group, saved in zip(self._groups, state["groups"]):
            group.obs, group.state, group.step = tree.copy(saved["obs"]), tree.copy(saved["state"]), int(saved["step"])
            group.quarantine.check_start({name: group.obs[name] for name in self.env.obs_spec}, group.step)
        self.statistics.load_state_dict(dict(state["statistics"]))
        self._partial = bool(state["partial"])
        self._carried = []


def _dtype(spec: ComponentSpec) -> torch.dtype:
    from striderl.data.specs import torch_dtype

    dtype: torch.dtype = torch_dtype(spec.dtype)
    return dtype


def _where_env(mask: Tensor, yes: Any, no: Any) -> Any:
    """Choose per env between two nested structures; values are selected, not multiplied, so NaN does not leak."""
    return tree.map(lambda one, two: torch.where(mask.view(-1, *[1] * (one.ndim - 1)), one, two), yes, no)
