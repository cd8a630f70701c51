"""One group of envs: its observation, its actor's memory, its envs in quarantine and those that wait for a reset.

A group is stepped as one. Its two halves of a step are pure tensor work on the group's own rows: `act`
before the simulation, `settle` after it. What follows from a step is one pure function, `finish_step`: called here
step by step, and captured into a CUDA graph by `graphed_rollout.py`.

Random numbers for one group of envs, one step at a time, drawn in blocks.

Step k of an env always gets the same numbers, whatever the group, the schedule or the length of the calls: the block
number takes the place of the iteration in the key, and the position in the block that of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.collect.actors.base import Actor, ActorOutput, Noise
from striderl.collect.quarantine import Fault, Healthy, Outcome, Quarantine, all_true, any_true
from striderl.collect.trace import EnvTrace, TracedStep, TraceRecorder
from striderl.data import tree
from striderl.data.noise import NoiseSpec, draw_all
from striderl.data.specs import TensorSpec, torch_dtype
from striderl.data.transition import Transition
from striderl.envs.check.values import check_first_step
from striderl.envs.vec_env import Obs, Step, VecEnv
from striderl.execution.modes import Mode


class StepRule(NamedTuple):
    """The settings of a group that decide what follows from a step; constants of a captured graph."""

    fresh_state: Any
    """The actor's memory at the start of an episode."""
    wait_reset: bool
    """Whether envs with a finished episode wait until the end of the call."""
    previous: bool
    """Whether the actor also observes its last action and reward."""


class StepState(NamedTuple):
    """What the next step of a group starts from."""

    obs: Obs
    state: Any
    """The actor's memory."""
    waiting: Tensor
    """Which envs have ended and wait for the next call of `collect`, bool [N]; only with wait_reset."""


class FinishedStep(NamedTuple):
    """One step of all envs of a group."""

    after: StepState
    transition: Transition
    cut: Tensor
    """Which episodes quarantine cut in this step, bool [N]: their returns are meaningless."""


def finish_step(
    rule: StepRule, now: StepState, acted: ActorOutput, outcome: Outcome, healthy: Healthy, info: Mapping[str, Tensor]
) -> FinishedStep:
    """Return the transition of a step and the state after it; a pure function of tensors.

    `outcome` is what the env returned, `healthy` the same without its bad numbers.
    """
    transition = Transition(
        obs=now.obs,
        act=acted.actions,
        rew=healthy.reward,
        terminated=outcome.terminated,
        truncated=healthy.truncated,
        valid=healthy.valid,
        info=dict(info),
        policy=acted.columns,
        next_obs=healthy.obs,
        final_obs=healthy.final_obs,
        next_state=acted.state,
    )
    cut = healthy.truncated & ~(outcome.truncated | outcome.terminated)
    waiting = now.waiting
    if rule.wait_reset:
        transition, waiting = _blanked(transition, waiting), waiting | transition.done
    if rule.previous:
        transition = _with_previous(transition)
    state = where_env(transition.done, rule.fresh_state, acted.state)
    return FinishedStep(StepState(transition.next_obs, state, waiting), transition, cut)


def _blanked(transition: Transition, waiting: Tensor) -> Transition:
    """Blank the rows of envs that wait for a reset: zeros, done, not valid."""
    live = (transition.obs, transition.act, transition.rew)
    obs, act, rew = where_env(waiting, tree.map(torch.zeros_like, live), live)
    return transition._replace(obs=obs, act=act, rew=rew, terminated=transition.terminated | waiting)


def _with_previous(transition: Transition) -> Transition:
    """Add this step's action and reward to the actor's next observation; zeros where an episode ended."""
    kept: Obs = {"prev_action": transition.act, "prev_reward": transition.rew}
    blank = {name: torch.zeros_like(value) for name, value in kept.items()}
    final = transition.final_obs
    return transition._replace(
        next_obs={**transition.next_obs, **where_env(transition.done, blank, kept)},
        final_obs=None if final is None else {**final, **kept},
    )


def where_env(mask: Tensor, yes: Any, no: Any) -> Any:
    """Choose per env between two nested structures; values are selected, not multiplied, so NaN does not leak."""
    return tree.map(lambda one, two: torch.where(mask.view(-1, *[1] * (one.ndim - 1)), one, two), yes, no)


class EnvGroup:
    """Envs that are stepped together, with everything that belongs to them."""

    def __init__(
        self,
        env: VecEnv,
        rows: slice,
        actor: Actor,
        *,
        compiled: Callable[[Obs, Any, Noise], ActorOutput] | None = None,
        noise: NoiseSource,
        quarantine: Quarantine,
        wait_reset: bool,
        previous: Mapping[str, TensorSpec],
    ) -> None:
        """Prepare for the first reset; `previous` are the components with the last action and reward, if any."""
        self.env, self.rows, self.actor = env, rows, actor
        self.compiled = compiled
        """The actor's compiled `act`; None: as it is written."""
        self.noise, self.quarantine = noise, quarantine
        self.wait_reset, self.previous = wait_reset, previous
        self.obs: Obs = {}
        self.step = 0
        self.fresh_state = actor.initial_state(env.num_envs, env.device)
        self.state = self.fresh_state
        self.waiting = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        """Which envs have ended and wait for the next call of `collect`; only with wait_reset."""
        self.cut = torch.zeros_like(self.waiting)
        """Which episodes quarantine cut in the last step: their returns are meaningless."""
        self.quiet = False
        """Whether nothing ended and no sample was invalid in the last step, as in most steps."""
        self._acted: ActorOutput | None = None
        self.info_names = tuple(name for name in env.info_spec if name != "valid")
        """The keys of the env's info that are stored."""
        self._recent = TraceRecorder(_num_recent(env)) if env.device.type == "cpu" else None
        """The last second, for the trace of a fault; on a GPU looking for one would need a sync in every step."""
        self._traces: dict[int, EnvTrace] = {}
        # on the CPU checking whether a step is quiet costs less than the work it saves; on a GPU it would need a sync
        self.looks = env.device.type == "cpu" and not wait_reset and not previous
        """Whether steps in which nothing happened are found, and take a short way."""
        self._nowhere, self._everywhere = torch.zeros_like(self.waiting), torch.ones_like(self.waiting)
        self._unchecked = True
        """Whether the form of what the env returns is still to be compared with its specs: until its first step."""

    @property
    def rule(self) -> StepRule:
        """What `finish_step` needs of this group."""
        return StepRule(self.fresh_state, self.wait_reset, bool(self.previous))

    def begin(self, obs: Obs) -> None:
        """Start an episode in every env."""
        blank = {
            name: torch.zeros((self.env.num_envs, *spec.shape), dtype=torch_dtype(spec.dtype), device=self.env.device)
            for name, spec in self.previous.items()
        }
        self.obs = {**self.quarantine.check_start(obs, self.step), **blank}
        self.state, self._acted = self.fresh_state, None
        self.waiting = torch.zeros_like(self.waiting)

    def act(self) -> Any:
        """Choose actions and return a copy for the env, which may modify it without changing what is stored."""
        act = self.compiled or self.actor.act
        self._acted = act(self.obs, self.state, self.noise.at(self.step))
        return self.chosen()

    def chosen(self) -> Any:
        """Return another copy of the actions of the step in progress."""
        assert self._acted is not None, "nothing is chosen before act"
        actions = self._acted.actions
        return actions.clone() if isinstance(actions, Tensor) else tree.copy(actions)

    def settle(self, step: Step) -> Transition:
        """Turn the env's step into a transition, and prepare for the next step."""
        acted = self._acted
        assert acted is not None, "settle comes after act"
        if self._unchecked:
            check_first_step(self.env, step)
            self._unchecked = False
        if self._recent is not None:
            traced = (step.obs, acted.actions, step.reward, step.terminated, step.truncated)
            self._recent.add(TracedStep(*traced, pose=self.env.pose()))
        self.quiet = self.looks and self._is_quiet(step)
        if self.quiet:
            return self._settle_quiet(step, acted)
        valid = step.info["valid"] if "valid" in step.info else torch.ones_like(step.terminated)
        counted = valid & ~self.waiting & ~self.quarantine.sick
        outcome = Outcome(step.reward, step.terminated, step.truncated, valid & ~self.waiting, step.obs, step.final_obs)
        healthy = self.quarantine.check(self.obs, outcome, self.step)
        self._keep_traces(counted & (self.quarantine.sick | ~healthy.valid))
        info = {name: step.info[name] for name in self.info_names}
        (self.obs, self.state, self.waiting), transition, self.cut = finish_step(
            self.rule, StepState(self.obs, self.state, self.waiting), acted, outcome, healthy, info
        )
        self.step += 1
        self._acted = None
        return transition

    def _keep_traces(self, bad: Tensor) -> None:
        """Copy the last second of envs whose numbers have just turned bad, of a few between two reports."""
        if self._recent is None or len(self._traces) >= _MOST_TRACES or not any_true(bad):
            return
        for row in bad.nonzero().flatten().tolist()[:_MOST_TRACES]:
            if row not in self._traces:
                self._traces[row] = self._recent.trace(row, step_dt=self.env.step_dt)

    def take_faults(self) -> list[Fault]:
        """Return the first fault of each env and component since the last call, with its trace."""
        traces, self._traces = self._traces, {}
        first = self.quarantine.first_env_index
        return [replace(fault, trace=traces.get(fault.env - first)) for fault in self.quarantine.faults()]

    def _is_quiet(self, step: Step) -> bool:
        if any_true(step.terminated) or any_true(step.truncated):
            return False
        if "valid" in step.info and not all_true(step.info["valid"]):
            return False
        return self.quarantine.all_fine(step.reward, step.obs)

    def _settle_quiet(self, step: Step, acted: ActorOutput) -> Transition:
        """Return what `finish_step` returns where every mask is known; masks equal in all quiet steps are shared."""
        transition = Transition(
            obs=self.obs,
            act=acted.actions,
            rew=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            valid=self._everywhere,
            info={name: step.info[name] for name in self.info_names},
            policy=acted.columns,
            next_obs=step.obs,
            final_obs=step.final_obs,
            next_state=acted.state,
        )
        self.cut = self._nowhere
        self.obs, self.state = step.obs, acted.state
        self.step += 1
        self._acted = None
        return transition

    def restart(self) -> Tensor:
        """Reset the envs in quarantine or waiting and return which they were, bool [N]."""
        mask = self.quarantine.sick | self.waiting
        obs = self.env.reset_envs(mask)
        kept = {name: self.obs[name] for name in self.previous}
        blank = {name: torch.zeros_like(value) for name, value in kept.items()}
        self.obs = {**self.quarantine.check_start(obs, self.step), **where_env(mask, blank, kept)}
        self.state = where_env(mask, self.fresh_state, self.state)
        self.waiting = torch.zeros_like(self.waiting)
        return mask

    def state_dict(self) -> dict[str, Any]:
        """Return the group's observation, memory and flags."""
        return {
            "obs": tree.copy(self.obs),
            "state": tree.copy(self.state),
            "step": self.step,
            "sick": self.quarantine.sick.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another group."""
        self.obs, self.state, self.step = tree.copy(state["obs"]), tree.copy(state["state"]), int(state["step"])
        # saved by itself: it does not follow from the observation, which was replaced by zeros
        self.quarantine.sick = state["sick"].clone()


_RECENT_STEPS, _RECENT_BYTES, _MOST_TRACES = 50, 64_000_000, 4
"""Steps of a second in envs without time, the most that they may take of the memory, and traces of a report."""


def _num_recent(env: VecEnv) -> int:
    """Return how many steps are a second, as far as they fit into some memory."""
    second = round(1.0 / env.step_dt) if env.step_dt else _RECENT_STEPS
    sizes = [part.size * int(torch_dtype(part.dtype).itemsize) for part in env.obs_spec.values()]
    step_bytes = env.num_envs * sum(sizes)
    return max(2, min(second, 4 * _RECENT_STEPS, _RECENT_BYTES // max(1, step_bytes)))


# -- its random numbers ------------------------------------------------------------------------------------------------


_MANY, _MOST_AHEAD = 8192, 16
"""How many numbers, and how many blocks, are drawn at a time at most."""


class NoiseSource:
    """Draws the actor's noise for envs with these global indices."""

    def __init__(
        self,
        specs: Mapping[str, NoiseSpec],
        *,
        seed: int,
        env_index: Tensor,
        block: int = 64,
        mode: Mode | None = None,
    ) -> None:
        """Draw `block` steps at a time, of few envs on the CPU several blocks; a graphed mode captures it."""
        self.specs = dict(specs)
        self.seed = seed
        self.env_index = env_index
        self.block = block
        self._records = mode is not None and mode.records
        self.blocks_ahead = 1 if self._records or env_index.device.type != "cpu" else self._num_blocks()
        self._first = -1
        self._drawn: list[dict[str, Tensor]] = []
        self._draw = self._block if mode is None else mode.wrap(self._block)

    def _num_blocks(self) -> int:
        """Return the number of blocks drawn at a time: operations on few numbers cost the same as on some thousands."""
        numbers = sum(math.prod(spec.shape) for spec in self.specs.values()) * len(self.env_index) * self.block
        return max(1, min(_MOST_AHEAD, _MANY // max(1, numbers)))

    def at(self, step: int) -> dict[str, Tensor]:
        """Return the numbers of one step, [N, …] by name."""
        if not self.specs:
            return {}
        number, position = divmod(step, self.block * self.blocks_ahead)
        if number != self._first:
            drawn = self._draw(self._numbers(number * self.blocks_ahead))
            steps = zip(*(value.unbind(0) for value in drawn.values()))
            self._drawn = [dict(zip(drawn, step)) for step in steps]
            self._first = number  # last: an interrupt may come in between
        return self._drawn[position]

    def _numbers(self, first: int) -> range | Tensor:
        """Return the blocks from this one on; a captured graph reads its number from a tensor."""
        if self._records:
            return torch.full((), first, dtype=torch.int64, device=self.env_index.device)
        return range(first, first + self.blocks_ahead)

    @torch.no_grad()
    def _block(self, number: range | Tensor) -> dict[str, Tensor]:
        return draw_all(self.specs, seed=self.seed, iteration=number, env_index=self.env_index, num_steps=self.block)
