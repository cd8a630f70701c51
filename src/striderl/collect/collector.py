"""`Collector`: env times actor gives experience, an exact number of steps or episodes at a time.

    for each step:   obs ──actor(obs, state, noise)──▶ actions ──env──▶ step ──quarantine──▶ transition ──▶ storage
                      ▲                                                        │                     └──▶ statistics
                      └──────────────── next obs, state (fresh where an episode ended) ◀┘

    collect(n_step=12) with 8 envs    16 transitions are made, 12 are stored, 4 wait and come first next time
    collect(n_episode=3) with 2 envs  env 0 runs two episodes, env 1 runs one, from fresh starts: short episodes are
                                      not preferred, as they would be by taking whichever end first

There is one loop for every back end; the schedule decides how envs are stepped (`schedules.py`).

    collect(n_step=40) … KeyboardInterrupt     steps that are stored stay stored; `interrupted` is true
    resume()                                   collects the rest, bit-identical to an uninterrupted call

    begin(n_step=40)    launches the first step and returns; the envs are stepped in a thread or in their workers
    advance()           takes in a step that has ended and launches the next one; never waits
    resume()            collects the rest: what is collected does not depend on how far it was
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from striderl.collect.actors.base import Actor
from striderl.collect.graphed_rollout import GraphedCollector, compiled_acting
from striderl.collect.group import EnvGroup, NoiseSource
from striderl.collect.quarantine import Fault, Quarantine
from striderl.collect.schedules import CollectorConfig, Schedule
from striderl.collect.statistics import EpisodeStatistics
from striderl.collect.surplus import (
    Collected,
    EpisodeQuota,
    StepsCall,
    Storage,
    SurplusBuffer,
    quotas_of,
    store_some,
    whole_number,
)
from striderl.data import tree
from striderl.data.actions import DictActionSpec
from striderl.data.arena import Columns
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.data.transition import Transition, transition_columns
from striderl.envs.vec_env import Obs, StateUnsupportedError, Step, VecEnv
from striderl.execution.interrupts import check_interrupt, interrupt_waits
from striderl.execution.modes import Eager, Mode

_log = logging.getLogger(__name__)

__all__ = ["Collected", "Collector", "CollectorConfig"]


class Collector:
    """Steps an env with an actor; see the picture at the top of this module."""

    def __init__(self, env: VecEnv, actor: Actor, config: CollectorConfig | None = None) -> None:
        """Prepare; nothing is reset before the first `collect` or `reset`."""
        if not isinstance(env, VecEnv):
            raise TypeError(
                f"Collector wants a VecEnv, found {type(env).__name__}; wrap a Gymnasium env in GymnasiumEnv"
            )
        if not isinstance(actor, Actor):
            raise TypeError(f"Collector wants an actor, found {type(actor).__name__}; wrap a function in ScriptedActor")
        self.env, self.actor = env, actor
        self.config = config or CollectorConfig()
        self.schedule = Schedule(env, self.config.schedule, self.config.num_groups)
        self.statistics = EpisodeStatistics(env.num_envs, env.device, self.config.window)
        self.seed = self.config.seed
        self.groups: list[EnvGroup] = []
        """The envs, in the groups that the schedule steps; empty before the first reset."""
        self.mode = Eager()
        self.graphed = GraphedCollector()
        """The steps as CUDA graphs, where the mode captures them."""
        self.surplus = SurplusBuffer()
        """Transitions that wait for the next call."""
        self._mid_episode = False
        self._call: StepsCall | None = None
        """The call of `collect(n_step=…)` in progress, or the one that did not finish."""
        self._found: list[Fault] = []
        """Faults that are not yet reported: an env may raise while it is reset."""
        self._said_stateless = False

    @property
    def mode(self) -> Mode:
        """How steps are run; the trainer sets that of the algorithm. On a GPU, 'graphed' replays CUDA graphs."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._mode = mode
        self._compiled = compiled_acting(self.actor, mode, self.env.device)
        for group in self.groups:
            group.actor, group.compiled = self.actor, self._compiled

    # -- what is stored ------------------------------------------------------------------------------------------------

    @property
    def obs_spec(self) -> ObsSpec:
        """The actor's observations: the env's components, and the previous action and reward if configured."""
        return self.env.obs_spec.merged(ObsSpec(self._previous()))

    def columns(self) -> Columns:
        """Return the columns of one step, for making a storage that fits."""
        info = {name: spec for name, spec in self.env.info_spec.items() if name != "valid"}
        return transition_columns(self.obs_spec, self.env.action_spec, info, self.actor.columns())

    def _previous(self) -> dict[str, ComponentSpec]:
        if not self.config.previous_step:
            return {}
        if isinstance(self.env.action_spec, DictActionSpec):
            raise TypeError("previous_step wants an action that is one tensor, not a dict of them")
        action = self.env.action_spec.tensor
        return {
            "prev_action": ComponentSpec(shape=action.shape, dtype=action.dtype, group="previous"),
            "prev_reward": ComponentSpec(group="previous"),
        }

    # -- collecting ----------------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> None:
        """Start new episodes in all envs; with a seed, restart all streams from it."""
        first, groups, self._mid_episode, self._call = not self.groups, self.groups, True, None
        if first or seed is not None:
            self.seed = seed = self.seed if seed is None else seed
            groups = self._make_groups()
        for group, obs in zip(groups, self.schedule.reset(seed)):
            group.begin(obs)
        self.groups = groups  # only here: after a first reset that failed, the next one is the first
        self.surplus.clear()
        self._mid_episode = False
        self.statistics.restart(torch.ones_like(self.statistics.spoiled))
        if first and self.config.decorrelation_steps:
            self._decorrelate()

    def ready(self) -> None:
        """Prepare for a step: reset before the first one, or when whole episodes were collected last."""
        if not self.groups or self._mid_episode:
            self.reset()

    def start_from(self, obs: Obs, *, seed: int | None = None) -> None:
        """Continue episodes that were started elsewhere; the env is not reset.

        `obs` is the actor's first observation, [N, …] for every component of `obs_spec`. The statistics leave these
        episodes out, because their first steps are missing.
        """
        self.schedule.give_up()
        self._call = None
        self.seed = self.seed if seed is None else seed
        self.groups = self._make_groups()
        for group in self.groups:
            rows = {name: obs[name][group.rows] for name in self.obs_spec}
            group.begin({name: rows[name] for name in self.env.obs_spec})
            group.obs = {**group.obs, **{name: rows[name] for name in group.previous}}
        self.surplus.clear()
        self._mid_episode = False
        self.statistics.restart(torch.ones_like(self.statistics.spoiled))
        self.statistics.spoiled.fill_(True)

    @property
    def current_obs(self) -> Obs:
        """The actor's next observation, [N, …] per component of `obs_spec`."""
        if not self.groups:
            raise RuntimeError("there is no observation yet; call reset first")
        return {name: torch.cat([group.obs[name] for group in self.groups]) for name in self.obs_spec}

    @property
    def current_state(self) -> Any:
        """The actor's memory before the next step, [N, …] each; a copy."""
        if not self.groups:
            raise RuntimeError("there is no memory yet; call reset first")
        return tree.cat([group.state for group in self.groups])

    @torch.no_grad()
    def collect(
        self,
        *,
        n_step: int | None = None,
        n_episode: int | Sequence[int] | None = None,
        storage: Storage | None = None,
        max_steps: int = 0,
    ) -> Collected:
        """Collect exactly this many steps, or exactly this many whole episodes (a total, or a number for each env).

        Episodes start fresh: episodes in progress before are abandoned, and so are those in progress afterwards. An
        episode that quarantine cut is repeated. With `max_steps`, an env that takes longer for its episodes is
        an error instead of a wait. After an error or an interrupt, the next call starts fresh; where `interrupted` is
        true, `resume` continues instead.
        """
        if (n_step is None) == (n_episode is None):
            raise ValueError(f"collect wants exactly one of n_step and n_episode, found {n_step} and {n_episode}")
        if storage is not None and not isinstance(storage, Storage):
            raise TypeError(f"storage wants add(transition, envs) and balanced, found {type(storage).__name__}")
        started = time.perf_counter()
        quotas = None if n_episode is None else quotas_of(n_episode, self.env.num_envs)
        count = 0 if n_step is None else whole_number("n_step", n_step)
        if quotas is None and storage is not None and storage.balanced:
            self.surplus.check_balance(count, self.env.num_envs, waiting_is_kept=not self._mid_episode)
        try:
            if quotas is not None:
                self.reset()
                self.surplus.join(storage)
                episodes, count = self._collect_episodes(quotas, storage, max_steps)
                self._mid_episode = True
                returns, lengths = [total for total, _ in episodes], [length for _, length in episodes]
                return Collected(count, time.perf_counter() - started, returns, lengths, self._faults())
            self.ready()
            self.surplus.join(storage)
            self._call = self._begin_steps(count, storage)
        except BaseException:  # the envs may be a step ahead of the collector
            self._mid_episode = True
            raise
        return self._finish_call(self._call, started)

    @property
    def interrupted(self) -> bool:
        """Whether a call of `collect(n_step=…)` ended early between two steps, so that `resume` can finish it.

        True after an error of the actor, after Ctrl-C where it waits for the end of a step (`deferred_interrupts`),
        and after an error of `env.step`, which counts as a step that was not taken, unless parts of the envs may
        have taken it (`AsyncVecEnv`).
        """
        return self._call is not None and self._call.whole and self.schedule.can_retry

    @torch.no_grad()
    def resume(self) -> Collected:
        """Finish the call that was interrupted, from its next step on; `seconds` are those of this part alone."""
        call = self._call
        if call is None or not self.interrupted:
            raise RuntimeError("no call of collect(n_step=…) was interrupted between two steps; call collect")
        started, self._mid_episode = time.perf_counter(), False
        for number in self.schedule.failed:
            self.schedule.retry(number, self.groups[number].chosen())
        return self._finish_call(call, started)

    @torch.no_grad()
    def begin(self, *, n_step: int, storage: Storage) -> None:
        """Start a call of `collect(n_step=…)` and return while its first step is simulated; see `advance`, `resume`.

        All actions of the call should come from one policy: how many of them are chosen by a certain time depends on
        how fast the envs are.
        """
        count = whole_number("n_step", n_step)
        if storage.balanced:
            self.surplus.check_balance(count, self.env.num_envs, waiting_is_kept=not self._mid_episode)
        self.ready()
        try:
            self.surplus.join(storage)
            self._call = call = self._begin_steps(count, storage)
            for number in range(len(call.rounds)):
                self._launch_step(call, number, ahead=True)
        except BaseException:
            self._mid_episode = True
            raise

    @torch.no_grad()
    def advance(self) -> None:
        """Take in the steps of a begun call that have ended, and launch the next ones; return where one has not."""
        call = self._call
        if call is None or not call.whole:
            raise RuntimeError("no call was begun; call begin(n_step=…)")
        try:
            while self.schedule.is_ready:
                self._take_step(call, ahead=True)
        except BaseException:
            self._mid_episode = True
            raise

    @torch.no_grad()
    def launch(self, *, ahead: bool = True) -> Any:
        """Choose the next actions and start the envs' step; the next `collect(n_step=…)` finishes it first.

        Meanwhile the caller may update the policy: the actions are fixed, so results do not depend on timing. The
        state cannot be saved until the step is finished. Returns the actions, [N, …]. Without `ahead`, an env of this
        process is stepped only when the step is finished.
        """
        self.ready()
        for number, group in enumerate(self.groups):
            if number in self.schedule.flying:
                continue
            actions = group.act()
            try:
                self.schedule.launch(number, actions, ahead=ahead)
            except BaseException:
                self._mid_episode = True
                raise
        return tree.cat([group.chosen() for group in self.groups])

    def _begin_steps(self, n_step: int, storage: Storage | None) -> StepsCall:
        """Return a call with none of its steps taken, or all of them where CUDA graphs are replayed."""
        num_envs, balanced = self.env.num_envs, storage is not None and storage.balanced
        if self.collect_graphed(n_step, storage):
            return StepsCall(n_step, storage)
        self.graphed.let_go()
        remaining = self.surplus.hand_over_carried(n_step, storage)
        even = balanced or self.config.schedule != "asynchronous"
        unlaunched = -(-remaining // num_envs) * num_envs if even else remaining
        rounds = [unlaunched // num_envs if even else n_step] * len(self.groups)
        for number in self.schedule.flying:
            rounds[number] -= 1
            unlaunched -= self.groups[number].env.num_envs
        return StepsCall(n_step, storage, remaining, unlaunched, rounds)

    def _finish_call(self, call: StepsCall, started: float) -> Collected:
        """Take the remaining steps of a call, and reset the envs in quarantine or waiting."""
        try:
            self._take_steps(call)
            faults = self.heal()
        except BaseException:  # unless `resume` comes next, the envs are reset
            self._mid_episode = True
            raise
        self._call = None
        return Collected(call.n_step, time.perf_counter() - started, faults=faults)

    def _take_steps(self, call: StepsCall) -> None:
        for number in range(len(call.rounds)):
            if number not in self.schedule.flying:
                self._launch_step(call, number)
        while self.schedule.busy:
            self._take_step(call)
        if call.unlaunched > 0:
            check_interrupt()

    def _take_step(self, call: StepsCall, *, ahead: bool = False) -> None:
        """Wait for a step, store it, and start the next one of its group."""
        number, step = self.schedule.land()
        group = self.groups[number]
        call.whole = False  # until it is stored, the call cannot be resumed
        transition = self.settle(group, step)
        call.remaining = self.surplus.hand_over(transition, group.rows, call.remaining, call.storage)
        call.whole = True
        if not interrupt_waits():  # steps in progress are finished
            self._launch_step(call, number, ahead=ahead)

    def _launch_step(self, call: StepsCall, number: int, *, ahead: bool = False) -> None:
        """Start the next step of a group, if the call needs one more of it."""
        if call.rounds[number] > 0 and call.unlaunched > 0:
            actions = self.groups[number].act()
            self.schedule.launch(number, actions, ahead=ahead)
            call.rounds[number] -= 1
            call.unlaunched -= self.groups[number].env.num_envs

    def collect_graphed(self, n_step: int, storage: Storage | None) -> bool:
        """Take the steps by captured graphs, where mode, actor and storage allow it; return whether it did."""
        num_steps, rest = divmod(n_step, self.env.num_envs)
        # compiled before capture, these did not agree with eager steps on a GPU; captured as written they do
        unproved = self.mode.fuses and (self.config.wait_reset or self.config.previous_step)
        if rest or unproved or self.config.schedule != "together" or self.surplus.num_waiting or self.schedule.busy:
            return False
        return self.graphed.play(self.mode, self.groups[0], self.statistics, storage, num_steps)

    def _collect_episodes(
        self, quotas: list[int], storage: Storage | None, max_steps: int
    ) -> tuple[list[tuple[float, int]], int]:
        """Step until every env has its quota; return (return, length) of each episode env by env, and steps stored.

        Nothing is stored of an env that has its quota.
        """
        quota = EpisodeQuota(quotas, max_steps)

        def launch(number: int) -> None:
            if quota.wants(self.groups[number].rows):
                self.schedule.launch(number, self.groups[number].act())

        for number in range(len(self.groups)):
            launch(number)
        while self.schedule.busy:
            number, step = self.schedule.land()
            group = self.groups[number]
            wanted = quota.wanted(group.rows)
            transition = self.settle(group, step, torch.tensor(wanted, device=self.env.device))
            if storage is not None:
                store_some(transition, group.rows, wanted, storage)
            quota.add(group.rows, transition, group.cut, self._faults)
            if bool(group.quarantine.sick.any()) or bool(group.waiting.any()):
                self._restart(group)
            check_interrupt()
            launch(number)
        return quota.episodes(), quota.num_steps

    def settle(self, group: EnvGroup, step: Step, counted: Tensor | None = None) -> Transition:
        """Update the group and the statistics with a step; envs that are not `counted` are left out of the latter."""
        transition = group.settle(step)
        if group.quiet and counted is None:
            self.statistics.update_quiet(group.rows, transition.rew)
        else:
            valid = transition.valid if counted is None else transition.valid & counted
            self.statistics.update(group.rows, transition.rew, transition.done, valid, group.cut)
        self.statistics.log(step.info["log"])
        return transition

    # -- starts and resets ---------------------------------------------------------------------------------------------

    def _make_groups(self) -> list[EnvGroup]:
        groups, start = [], 0
        for env in self.schedule.envs:
            first = self.env.first_env_index + start
            index = torch.arange(first, first + env.num_envs, device=env.device)
            block = self.config.noise_block
            groups.append(
                EnvGroup(
                    env,
                    slice(start, start + env.num_envs),
                    self.actor,
                    compiled=self._compiled,
                    noise=NoiseSource(self.actor.noise(), seed=self.seed, env_index=index, block=block, mode=self.mode),
                    quarantine=Quarantine(env.num_envs, env.device, first_env_index=first, limit=self.config.limit),
                    wait_reset=self.config.wait_reset,
                    previous=self._previous(),
                )
            )
            start += env.num_envs
        return groups

    def _faults(self) -> list[Fault]:
        return [fault for group in self.groups for fault in group.take_faults()]

    def heal(self) -> list[Fault]:
        """Reset the envs in quarantine or waiting, and return the faults; once per call of `collect`."""
        self._found += self._faults()
        for group in self.groups:
            if bool((group.quarantine.sick | group.waiting).any()):
                self._restart(group)
        found, self._found = self._found, []
        return found

    def _restart(self, group: EnvGroup) -> None:
        whole = torch.zeros_like(self.statistics.spoiled)
        whole[group.rows] = group.restart()
        self.statistics.restart(whole)

    def _decorrelate(self) -> None:
        """Give episodes different ages, so that the first time-outs do not coincide."""
        limit = self.env.max_episode_length
        if not limit:
            raise ValueError("decorrelation_steps ages episodes towards their time limit, but this env has none")
        steps = min(self.config.decorrelation_steps, limit - 1)
        generator = torch.Generator().manual_seed(self.seed)
        first = self.env.first_env_index  # the draws before it are those of envs in other processes
        ages = torch.randint(0, steps + 1, (first + self.env.num_envs,), generator=generator)
        self.env.episode_length_buf = ages[first:].to(self.env.device)

    # -- saving --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of collection: env state, observations, actor memory, statistics, noise position."""
        if self.schedule.busy:
            raise RuntimeError("state cannot be saved while a step is under way, or has failed; collect or reset first")
        if not self.groups:
            self.reset()
        return {
            "env": self._env_state(),
            "seed": self.seed,
            "mid_episode": self._mid_episode,
            "delivery": self.surplus.state_dict(),
            "statistics": self.statistics.state_dict(),
            "groups": [group.state_dict() for group in self.groups],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue bit for bit from the state of another collector on the same kind of env."""
        self.seed = int(state["seed"])
        self.reset(self.seed)
        self.statistics.load_state_dict(dict(state["statistics"]))
        self._mid_episode = bool(state["mid_episode"])
        if state["env"] is None:
            self._begin_anew([int(saved["step"]) for saved in state["groups"]])
            return
        self.env.load_state_dict(state["env"])
        for group, saved in zip(self.groups, state["groups"]):
            group.load_state_dict(saved)
        self.surplus.load_state_dict(state.get("delivery", {}))

    def _env_state(self) -> dict[str, Any] | None:
        """Return the env's state, or None when it has none: a resumed run then starts new episodes."""
        try:
            return self.env.state_dict()
        except StateUnsupportedError as reason:
            if not self._said_stateless:  # a run is saved many times; once is enough
                self._said_stateless = True
                _log.warning("%s", reason)
            return None

    def _begin_anew(self, steps: list[int]) -> None:
        """Continue with new episodes, other than those of the first start, and with the next noise."""
        for group, step, obs in zip(self.groups, steps, self.schedule.reset(self.seed + 1 + max(steps))):
            group.step = step
            group.begin(obs)
        self.statistics.restart(torch.ones_like(self.statistics.spoiled))
