"""In which order groups of envs are stepped: together, in alternating halves, or asynchronously.

    together        act ─ simulate all ─ act ─ simulate all ─ …
    alternating     act A ─ act B ─ act A ─ act B ─ …          while the policy acts for A, B is being simulated
                      └─ simulate A ─┘ └─ …
    asynchronous    act for whichever group has finished; no group waits for a slow env

A schedule only sets the order. Data of an env depends on its own seed, steps and actions, so all schedules give
every env the same experience; they differ in how many steps an env gets in a given time.

A step that is launched `ahead` begins at once, also in an env of this process: in a thread, parallel to its owner
until it is waited for. The simulators and torch let other threads run while they work.

The settings of a collector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal

import torch

from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown
from striderl.envs.vec_env import Actions, AsyncVecEnv, ContractError, Obs, Step, VecEnv

SCHEDULES = ("together", "alternating", "asynchronous")


class InProcess:
    """A `VecEnv` with the interface of an asynchronous one: it steps when it is waited for, or in a thread."""

    def __init__(self, env: VecEnv) -> None:
        self.env = env
        self._actions: Actions | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._running: Future[Step] | None = None

    def step_async(self, actions: Actions) -> None:
        """Store the actions."""
        self._actions = actions

    def step_ahead(self, actions: Actions) -> None:
        """Store the actions and start the step in a thread, always the same one."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="striderl-env")
        self._running = self._thread.submit(self._step, actions)

    @torch.no_grad()
    def _step(self, actions: Actions) -> Step:
        return self.env.step(actions)

    def step_wait(self) -> Step:
        """Step, or wait for the thread; errors of the thread are raised here."""
        if self._running is not None:
            wait([running := self._running])  # an interrupt here leaves the thread to `give_up`
            self._running = None
            return running.result()
        assert self._actions is not None
        actions, self._actions = self._actions, None
        return self.env.step(actions)

    def is_ready(self) -> bool:
        """Return whether the thread has finished the step; one that raised is left to `step_wait`."""
        return self._running is not None and self._running.done() and self._running.exception() is None

    def take_again(self, actions: Actions) -> None:
        """Return the actions of a step that has raised, unless its thread is still running."""
        if self._running is None:
            self._actions = actions

    def give_up(self) -> None:
        """Drop the step in progress, once its thread has finished."""
        if self._thread is not None:
            # an interrupt may have come before the step was stored here, so an empty job waits for the thread
            wait([self._thread.submit(int)])
        self._actions = self._running = None

    def close(self) -> None:
        """End the thread; the next step that is taken ahead has another one."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Where experience is collected, other than in the learner's own process."""

    kind: Literal["", "ray"] = ""
    """'ray': by actors of Ray, on this machine or in a cluster; empty: by the learner. Short: `--workers ray`."""
    num_workers: int = 0
    """How many workers share the envs; each takes a core. Short: `--num-workers`."""
    schedule: Literal["synchronous", "asynchronous"] = "synchronous"
    """'synchronous' waits for all workers and equals collecting in one process; 'asynchronous' takes the rollouts that
    are there, which only impala corrects for."""
    batch_workers: int = 0
    """Asynchronous: how many rollouts the learner takes at a time; 0 means half as many as there are workers."""
    max_staleness: int = 8
    """Asynchronous: a rollout of weights that were updated more often since is dropped."""
    address: str = ""
    """The address of a Ray cluster, or 'auto' on one of its machines; empty starts Ray here for the run."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not self.kind:
            if (self.num_workers, self.schedule, self.batch_workers, self.address) != (0, "synchronous", 0, ""):
                raise ValueError("settings of workers have no effect without workers.kind: --workers ray")
            return
        if self.num_workers < 1 or self.max_staleness < 0:
            raise ValueError(
                f"workers: num_workers is at least 1 and max_staleness not negative, found {self.num_workers} and "
                f"{self.max_staleness}; --workers ray --num-workers 4"
            )
        if not 0 <= self.batch_workers <= self.num_workers:
            raise ValueError(f"workers.batch_workers is at most {self.num_workers}, found {self.batch_workers}")
        if self.batch_workers and self.schedule == "synchronous":
            raise ValueError("workers.batch_workers has no effect with the synchronous schedule, which waits for all")

    @property
    def batch(self) -> int:
        """How many rollouts the learner takes at a time."""
        if self.schedule == "synchronous":
            return self.num_workers
        return self.batch_workers or max(1, self.num_workers // 2)


class Schedule:
    """Splits an env into groups and decides which group to wait for next."""

    def __init__(self, env: VecEnv, kind: str, num_groups: int) -> None:
        """Split the env: one group together, two alternating, `num_groups` asynchronous."""
        self.kind = kind
        self._whole = env
        if kind == "together":
            self.envs: list[VecEnv] = [env]
            self._steppers: list[InProcess | AsyncVecEnv] = [env if isinstance(env, AsyncVecEnv) else InProcess(env)]
        else:
            if not isinstance(env, AsyncVecEnv):
                raise TypeError(
                    f"schedule {kind!r} steps parts of the envs on their own, which {type(env).__name__} cannot; "
                    "use 'together', or an env with worker processes"
                )
            parts = env.split(2 if kind == "alternating" else num_groups)
            self.envs, self._steppers = list(parts), list(parts)
        self._flying: list[int] = []
        self._failed: set[int] = set()

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return len(self.envs)

    @property
    def busy(self) -> bool:
        """Whether a step is in progress."""
        return bool(self._flying)

    @property
    def flying(self) -> tuple[int, ...]:
        """The groups with a step in progress."""
        return tuple(self._flying)

    @property
    def failed(self) -> tuple[int, ...]:
        """The groups with a step in progress that has raised."""
        return tuple(sorted(self._failed))

    @property
    def can_retry(self) -> bool:
        """Whether each of those is one env of this process, so that the step that raised can be taken again."""
        return all(isinstance(self._steppers[group], InProcess) for group in self._failed)

    @property
    def is_ready(self) -> bool:
        """Whether `land` would return without waiting."""
        due = self._flying if self.kind == "asynchronous" else self._flying[:1]
        return not self._failed and any(self._steppers[group].is_ready() for group in due)

    def launch(self, group: int, actions: Actions, *, ahead: bool = False) -> None:
        """Start a step of one group; `ahead`: now, although it will be waited for later."""
        self._flying.append(group)  # first: after an interrupt it is not known whether the step has begun
        stepper = self._steppers[group]
        try:
            if ahead and isinstance(stepper, InProcess):
                stepper.step_ahead(actions)
            else:
                stepper.step_async(actions)
        except BaseException:
            self._failed.add(group)
            raise

    def retry(self, group: int, actions: Actions) -> None:
        """Repeat the step of a group that has raised, when it is waited for."""
        stepper = self._steppers[group]
        if not isinstance(stepper, InProcess):
            raise RuntimeError("of these envs some may have taken the step that failed; reset them")
        stepper.take_again(actions)
        self._failed.discard(group)

    def land(self) -> tuple[int, Step]:
        """Wait for the next due group and return its number and step."""
        group = self._flying[0]
        if self.kind == "asynchronous":
            assert isinstance(self._whole, AsyncVecEnv)
            waiting = [self.envs[number] for number in self._flying]
            ready = self._whole.wait_any(_asynchronous(waiting))
            group = next(number for number in self._flying if self.envs[number] is ready[0])
        try:
            step = self._steppers[group].step_wait()
        except BaseException:
            self._failed.add(group)
            raise
        self._flying.remove(group)  # last: after an error or an interrupt it is not known how far the env is
        return group, step

    def give_up(self) -> None:
        """Drop the steps in progress; afterwards no thread is in an env."""
        self._flying.clear()
        self._failed.clear()
        for stepper in self._steppers:
            if isinstance(stepper, InProcess):
                stepper.give_up()

    def close(self) -> None:
        """Drop the steps in progress, and end the threads."""
        self.give_up()
        for stepper in self._steppers:
            if isinstance(stepper, InProcess):
                stepper.close()

    def reset(self, seed: int | None) -> list[Obs]:
        """Reset all envs and return each group's observation; steps in progress are dropped."""
        self.give_up()
        obs = self._whole.reset(seed)
        _check_first_obs(self._whole, obs)
        result, start = [], 0
        for env in self.envs:
            result.append({name: value[start : start + env.num_envs] for name, value in obs.items()})
            start += env.num_envs
        return result


def _check_first_obs(env: VecEnv, obs: Any) -> None:
    """Raise ContractError for a reset that does not return what the spec of the env promises."""
    where = f"{type(env).__name__}.reset"
    if not isinstance(obs, Mapping):
        raise ContractError(f"{where}: wanted a dict from component to tensor, found {type(obs).__name__}; {_CHECK}")
    for name, part in env.obs_spec.items():
        wanted, found = (env.num_envs, *part.shape), tuple(getattr(obs.get(name), "shape", ()))
        if name not in obs or found != wanted:
            has = f"one of shape {found}" if name in obs else f"the components {list(obs)}"
            raise ContractError(f"{where}: wanted component {name!r} of shape {wanted}, found {has}; {_CHECK}")


_CHECK = "striderl.envs.check_vec_env(env) checks the whole contract"


def _asynchronous(envs: Sequence[VecEnv]) -> list[AsyncVecEnv]:
    return [env for env in envs if isinstance(env, AsyncVecEnv)]


# -- settings ----------------------------------------------------------------------------------------------------------


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class CollectorConfig:
    """How experience is collected."""

    seed: int = 0
    """The seed of env resets and of the actor's noise."""
    schedule: str = "together"
    """'together', 'alternating' (two halves, simulation overlaps inference) or 'asynchronous' (first ready first)."""
    num_groups: int = 2
    """How many groups of envs the asynchronous schedule steps on their own."""
    wait_reset: bool = False
    """After an end the env's column is not valid until the next call of `collect`, which starts a new episode."""
    previous_step: bool = False
    """Give the actor its last action and reward as components 'prev_action' and 'prev_reward', zero after a reset."""
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
        if isinstance(self.limit, float) and not 0.0 < self.limit < math.inf:
            raise ValueError(f"CollectorConfig.limit is a positive magnitude, found {self.limit}")
        check_field_types(self)
        lowest = {"seed": 0, "num_groups": 1, "decorrelation_steps": 0, "window": 1, "noise_block": 1}
        for name, value in (
            ("seed", self.seed),
            ("num_groups", self.num_groups),
            ("decorrelation_steps", self.decorrelation_steps),
            ("window", self.window),
            ("noise_block", self.noise_block),
        ):
            if value < lowest[name]:
                raise ValueError(f"CollectorConfig.{name} is at least {lowest[name]}, found {value}")
        if self.limit <= 0:
            raise ValueError(f"CollectorConfig.limit is a positive magnitude, found {self.limit}")
        if self.wait_reset and self.schedule == "asynchronous":
            raise ValueError("wait_reset has no meaning in an asynchronous schedule: envs do not wait for each other")
