"""The steps of a rollout on a GPU, as CUDA graphs that are replayed once per step.

                  ┌──────────── act ────────────┐                 ┌──────────────── settle ──────────────────┐
    obs, state ─▶ │ policy, value, sample,      │ ─▶ env.step ─▶  │ quarantine, transition, row of the       │ ─▶ obs,
    noise         │ log-prob, acting parts      │                 │ storage, final observations, statistics  │    state
                  └─────────────────────────────┘                 └──────────────────────────────────────────┘

    replays: act ─ env ─ settle + act ─ env ─ settle + act ─ … ─ env ─ settle

Between two calls of the env, the host copies its outcome in and replays one graph. The state that changes with a step
(observations, memory, invalid envs, counts, the row of the storage) lies at fixed addresses, which the graphs read
and write in place. Both halves are the same functions of tensors that run step by step elsewhere; a step is
stored and counted on a side stream during the next acting. A rollout ends without acting: the next one begins with the
policy as updated then.

Whether steps are replayed from graphs: which actors can be captured, and the fallback when capture fails.

Acting as one compiled program: where gradient steps are compiled, acting for a few envs on the CPU is compiled too.

    obs, state, noise ──▶ policy, value, sample, log-prob, acting parts ──▶ actions, state, columns

For eight envs and two small networks, sixty small operations take three times as long as their arithmetic. An actor is
compiled under the conditions of capture on a GPU: no state of its own, and all decisions made in Python in its
`graph_key()`. Other actors, and those that fail to compile, act as they are written.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from striderl.collect.actors.base import Actor, ActorOutput, Noise, Obs
from striderl.collect.group import EnvGroup, StepState, finish_step
from striderl.collect.quarantine import Outcome, Watch, checked, noted_names
from striderl.collect.statistics import Counts, EpisodeStatistics, counted
from striderl.collect.surplus import Storage
from striderl.data import tree
from striderl.data.specs import torch_dtype
from striderl.data.transition import Transition
from striderl.envs.vec_env import Step
from striderl.execution.background import fall_back
from striderl.execution.graphed import CapturedGraph, SideStream
from striderl.execution.modes import Graphed, Mode
from striderl.execution.traced import PureFunction


@runtime_checkable
class GraphedActor(Protocol):
    """An actor that can be captured: it has no state of its own, and whatever changes lies in tensors."""

    def graph_key(self) -> Hashable:
        """Return a key of all decisions made in Python; with another key, acting is captured again."""
        ...


@runtime_checkable
class GraphedStorage(Protocol):
    """A storage with writes that can be captured: the place is a number on the device."""

    def first_place(self) -> int:
        """Return where the next step of all envs goes; raises when envs are not equally far."""
        ...

    def pack(self, transition: Transition) -> Any:
        """Return one step of all envs ready to be written, nested tensors; a pure function."""
        ...

    def put(self, packed: Any, place: Tensor) -> None:
        """Write a packed step at a place, int64 [1], without a device sync."""
        ...

    def next_place(self, place: Tensor) -> Tensor:
        """Return the place after this one, int64 [1]."""
        ...

    def count_steps(self, num_steps: int) -> None:
        """Count on the host the steps of all envs that were written."""
        ...

    def room(self) -> int:
        """Return how many steps of each env may be written now."""
        ...


class _Now(NamedTuple):
    """The state that changes with each step; every tensor keeps its address."""

    group: StepState
    acted: ActorOutput
    watch: Watch
    counts: Counts
    place: Tensor
    """The row of the storage that is written next, int64 [1]."""
    step: Tensor
    """Number of steps taken, int64 [1]."""


class GraphedRollout:
    """Steps one group of envs into one storage, with graphs that are captured in the first rollout."""

    def __init__(
        self, group: EnvGroup, statistics: EpisodeStatistics, storage: GraphedStorage | None, mode: Graphed
    ) -> None:
        """Prepare; nothing is captured before the first step."""
        self.group, self.storage = group, storage
        self._statistics, self._mode = statistics, mode
        self._act, self._settle = mode.fuse(self._act_in_place), mode.fuse(self._settle_in_place)
        # counting is a scan over the envs on one processor; compiled alone, it does not slow down the rest
        self._count = mode.fuse(_count_in_place)
        self._recordings: dict[tuple[str, Hashable, bool], CapturedGraph] = {}
        """By what is done, what the actor decides, and whether it was compiled."""
        self._decided: Hashable = ()
        """The actor's `graph_key()` in this rollout."""
        self._now: _Now | None = None

    @torch.no_grad()
    def prepare(self) -> None:
        """Capture the graphs with example steps in the env's layout; errors are raised, and no state changes.

        Done before the first step, so that no step is lost when capture fails.
        """
        self._begin()
        noise, step = self.group.noise.at(self.group.step), self._example()
        self._recording("act", {"noise": noise})
        self._recording("settle and act", {"step": step, "noise": noise})
        self._recording("settle", {"step": step})

    def _example(self) -> dict[str, Any]:
        """Return inputs with the layout of what the env gives."""
        group, env = self.group, self.group.env
        none = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        shown = {name: group.obs[name] for name in env.obs_spec}
        info = {
            name: torch.zeros((env.num_envs, *spec.shape), dtype=torch_dtype(spec.dtype), device=env.device)
            for name, spec in env.info_spec.items()
        }
        step = Step(
            obs=shown,
            reward=torch.zeros(env.num_envs, device=env.device),
            terminated=none,
            truncated=none,
            final_obs=shown if env.gives_final_obs else None,
            info={**info, "log": {}},
        )
        return self._inputs(step)

    @torch.no_grad()
    def run(self, num_steps: int) -> None:
        """Take `num_steps` steps of all envs."""
        group = self.group
        self._begin()
        self._play("act", {"noise": group.noise.at(group.step)})
        taken = 0
        try:
            while taken < num_steps:
                step = group.env.step(self._actions())
                group.step += 1
                inputs = self._inputs(step)
                if taken + 1 < num_steps:
                    self._play("settle and act", {"step": inputs, "noise": group.noise.at(group.step)})
                else:
                    self._play("settle", {"step": inputs})
                taken += 1
                self._statistics.log(step.info["log"])
        finally:  # steps before an error or an interrupt are counted too
            self._end(taken)

    def _actions(self) -> Any:
        """Return a copy for the env."""
        assert self._now is not None
        actions = self._now.acted.actions
        return actions.clone() if isinstance(actions, Tensor) else tree.copy(actions)

    def _inputs(self, step: Step) -> dict[str, Any]:
        names = self.group.env.obs_spec  # its order, whatever that of the env's dicts: a graph reads fixed addresses
        found: dict[str, Any] = {
            "obs": {name: step.obs[name] for name in names},
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "info": {name: step.info[name] for name in self.group.info_names},
        }
        if step.final_obs is not None:
            found["final_obs"] = {name: step.final_obs[name] for name in names}
        if "valid" in step.info:
            found["valid"] = step.info["valid"]
        return found

    # -- captured graphs ----------------------------------------------------------------------------------------------

    @property
    def is_prepared(self) -> bool:
        """Whether the graphs for the actor's present `graph_key()` are captured."""
        return ("settle", self._what_actor_decides(), self._mode.compiles) in self._recordings

    def _what_actor_decides(self) -> Hashable:
        actor = self.group.actor
        return actor.graph_key() if isinstance(actor, GraphedActor) else ()

    def _play(self, name: str, inputs: dict[str, Any]) -> None:
        self._recording(name, inputs).play(_leaves(inputs))

    def _recording(self, name: str, inputs: dict[str, Any]) -> CapturedGraph:
        key = name, self._decided, self._mode.compiles
        found = self._recordings.get(key)
        if found is None:
            for old in [each for each in self._recordings if each[2] != key[2]]:
                del self._recordings[old]
            found = self._recordings[key] = self._record(inputs)
        return found

    def _record(self, inputs: dict[str, Any]) -> CapturedGraph:
        if self._now is None:
            self._now = self._made(self.group.actor.act(self.group.obs, self.group.state, inputs["noise"]))
        now = self._now

        def body(inputs: dict[str, Any]) -> None:
            if "step" not in inputs:
                self._act(now, inputs["noise"])
                return
            packed, counting = self._settle(now, inputs["step"])
            packed = apart_from(packed, now.acted)  # acting overwrites it, perhaps before it is stored
            beside = SideStream(self.group.env.device)
            with beside.running():
                self._count(now.counts, *counting)
                if self.storage is not None:
                    self.storage.put(packed, now.place)
                    now.place.copy_(self.storage.next_place(now.place))
            if "noise" in inputs:
                self._act(now, inputs["noise"])
            beside.join()  # until here, what the other stream reads must not be freed

        def prepare(inputs: dict[str, Any]) -> None:
            apart = _copied(now)  # compiling and warming up must not change the state
            if "step" in inputs:
                _, counting = self._settle(apart, inputs["step"])
                self._count(apart.counts, *counting)
            if "noise" in inputs:
                self._act(apart, inputs["noise"])

        return self._mode.graphs.make(inputs, prepare, body)

    def _act_in_place(self, now: _Now, noise: dict[str, Tensor]) -> None:
        """Choose actions and store the actor's output."""
        _overwrite(now.acted, self.group.actor.act(now.group.obs, now.group.state, noise))

    def _settle_in_place(self, now: _Now, inputs: dict[str, Any]) -> tuple[Any, tuple[Tensor, ...]]:
        """Do what `EnvGroup.settle` does; return the packed transition, and the statistics' inputs."""
        terminated, truncated = inputs["terminated"], inputs["truncated"]
        valid = inputs["valid"] if "valid" in inputs else torch.ones_like(terminated)
        valid = valid & ~(now.watch.sick | now.group.waiting)
        outcome = Outcome(inputs["reward"], terminated, truncated, valid, inputs["obs"], inputs.get("final_obs"))
        healthy, watch = checked(
            now.watch, previous=now.group.obs, outcome=outcome, limit=self.group.quarantine.limit, step=now.step
        )
        after, transition, cut = finish_step(self.group.rule, now.group, now.acted, outcome, healthy, inputs["info"])
        packed = None if self.storage is None else self.storage.pack(transition)
        _overwrite((now.group, now.watch), (after, watch))
        now.step.copy_(now.step + 1)
        return packed, (transition.rew, transition.done, transition.valid, cut)

    # -- in and out of the group ---------------------------------------------------------------------------------------

    def _made(self, acted: ActorOutput) -> _Now:
        """Allocate the state, and copy that of the group."""
        group, device = self.group, self.group.env.device
        obs = {name: group.obs[name].clone() for name in (*group.env.obs_spec, *group.previous)}
        state = tree.map(lambda _, mine: mine.clone(), group.fresh_state, group.state)
        (actions, next_state, columns), watch = tree.map(torch.clone, (tuple(acted), self._watch()))
        return _Now(
            group=StepState(obs, state, group.waiting.clone()),
            acted=ActorOutput(actions, next_state, columns),
            watch=Watch(*watch),
            counts=self._statistics.counts(),
            place=torch.full((1,), self._first_place(), dtype=torch.int64, device=device),
            step=torch.full((1,), group.step, dtype=torch.int64, device=device),
        )

    def _watch(self) -> Watch:
        env = self.group.env
        obs = {name: self.group.obs[name] for name in env.obs_spec}
        return self.group.quarantine.watch(noted_names(obs, obs if env.gives_final_obs else None))

    def _first_place(self) -> int:
        return 0 if self.storage is None else self.storage.first_place()

    def _begin(self) -> None:
        """Copy the group's state, which may have changed since the last rollout."""
        now, group = self._now, self.group
        self._decided = self._what_actor_decides()
        if now is None:
            return
        begin = StepState(group.obs, group.state, group.waiting)
        for _, (place, value) in tree.zipped((now.group, now.watch), (begin, self._watch())):
            if place is not value:
                place.copy_(value)
        now.place.fill_(self._first_place())
        now.step.fill_(group.step)

    def let_go(self) -> None:
        """Give the group its own copies: references to a step must not change with the next rollout."""
        self.group.obs, self.group.state = tree.copy(self.group.obs), tree.copy(self.group.state)

    def _end(self, num_steps: int) -> None:
        """Copy the state back to the group."""
        now, group = self._now, self.group
        assert now is not None, "there is at least one step"
        group.obs, group.state, group.waiting = dict(now.group.obs), now.group.state, now.group.waiting.clone()
        group.quarantine.go_on(Watch(now.watch.sick, now.watch.notes.clone()))
        if self.storage is not None:
            self.storage.count_steps(num_steps)


def _leaves(nested: dict[str, Any]) -> list[Tensor]:
    """Return the tensors of nested dicts, in order: what `tree.leaves` does, in a fraction of the time."""
    found: list[Tensor] = []
    for value in nested.values():
        if isinstance(value, dict):
            found += _leaves(value)
        else:
            found.append(value)
    return found


def apart_from(values: Any, others: Any) -> Any:
    """Return nested tensors, copied where one lies in the memory of the others."""
    taken = {leaf.untyped_storage().data_ptr() for leaf in tree.leaves(others)}
    return tree.map(lambda leaf: leaf.clone() if leaf.untyped_storage().data_ptr() in taken else leaf, values)


def _count_in_place(counts: Counts, reward: Tensor, done: Tensor, valid: Tensor, cut: Tensor) -> None:
    _overwrite(counts, counted(counts, reward, done, valid, cut))


def _overwrite(places: Any, values: Any) -> None:
    """Copy nested tensors into others of the same structure, in the same order; identical ones are skipped."""
    for place, value in zip(tree.leaves(places), tree.leaves(values), strict=True):
        if place is not value:
            place.copy_(value)


def _copied(now: _Now) -> _Now:
    group, acted, watch, counts, place, step = tree.map(torch.clone, tuple(now))
    return _Now(StepState(*group), ActorOutput(*acted), Watch(*watch), Counts(*counts), place, step)


# -- whether to record -------------------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)


class GraphedCollector:
    """Keeps the captured graphs of one collector: those of the last group and storage."""

    def __init__(self) -> None:
        """Start without graphs."""
        self.rollout: GraphedRollout | None = None
        """The captured steps, once there are some."""
        self.given_up = False
        """Whether steps could not be captured; they are then taken one by one."""

    def play(
        self, mode: Mode, group: EnvGroup, statistics: EpisodeStatistics, storage: Storage | None, num_steps: int
    ) -> bool:
        """Take the steps of all envs by captured graphs and return True, or False if they must be taken one by one."""
        if self.given_up or not isinstance(mode, Graphed) or not mode.captures:
            return False
        if reason := _refusal(group):
            self.given_up = True
            _not_captured(mode, reason)
            return False
        if storage is not None and not (isinstance(storage, GraphedStorage) and num_steps <= storage.room()):
            return False
        steps = self.rollout
        if steps is None or steps.group is not group or steps.storage is not storage:
            steps = self.rollout = GraphedRollout(group, statistics, storage, mode)
        if not steps.is_prepared and not self.prepared(steps, strict=mode.strict):
            return False
        steps.run(num_steps)
        return True

    def prepared(self, steps: GraphedRollout, *, strict: bool) -> bool:
        """Capture the graphs, or log once why there are none; steps one by one give the same results."""
        try:
            steps.prepare()
        except RuntimeError as error:
            if strict:
                raise
            reason = str(error).partition("\n")[0]
            _log.warning(
                "steps of the envs cannot be recorded, so they are taken one by one: %s. Mend what it names, or choose "
                "mode='eager'; strict=True raises instead",
                reason,
            )
            self.given_up, self.rollout = True, None
            return False
        return True

    def let_go(self) -> None:
        """Give the group its own copies: the graphs' memory is overwritten by the next rollout."""
        if self.rollout is not None:
            self.rollout.let_go()


def _refusal(group: EnvGroup) -> str:
    """Return why the steps of these envs cannot be captured; empty where they can."""
    if group.env.device.type != "cuda":
        return f"the env is on {group.env.device}"
    if not isinstance(group.actor, GraphedActor):
        return f"{type(group.actor).__name__} has no graph_key()"
    return ""


def _not_captured(mode: Graphed, reason: str) -> None:
    """Warn where CUDA graphs were asked for; 'auto' takes what works, and a line in the log names it."""
    what = "steps of the envs are taken one by one"
    if mode.explicit:
        fix = "Use an env and an actor that can be captured (docs/speed.md), or mode='auto'"
        fall_back(what, reason, fix, strict=mode.strict)
    else:
        _log.info("%s: %s", what, reason)


# -- acting as one program ---------------------------------------------------------------------------------------------


class CompiledActing:
    """An actor's `act` as compiled programs."""

    def __init__(self, actor: Actor, mode: Mode) -> None:
        """Compile nothing yet."""
        assert isinstance(actor, GraphedActor)
        self._recording = actor.graph_key

        def act(obs: Obs, state: Any, noise: Noise) -> ActorOutput:
            return actor.act(obs, state, noise)  # looked up at each call: it may have been replaced

        self._act = PureFunction("acting", act, switch=mode.switch, strict=mode.strict)

    def __call__(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Choose actions."""
        acted: ActorOutput = self._act(self._recording(), obs, state, noise)
        return acted


def compiled_acting(actor: Actor, mode: Mode, device: torch.device) -> CompiledActing | None:
    """Return the actor's compiled `act`, where the mode compiles and the actor can be compiled; None elsewhere."""
    possible = mode.joint and device.type == "cpu" and isinstance(actor, GraphedActor)
    return CompiledActing(actor, mode) if possible else None
