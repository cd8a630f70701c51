"""`Fleet`: the workers of a run as Ray actors; orders rollouts, replaces the dead, explains errors."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from striderl.collect.schedules import WorkerSettings
from striderl.data.naming import missing_extra
from striderl.envs.vec_env import Obs
from striderl.training.experiment.rollout_worker import RolloutWorker, Shipment, State, running_code
from striderl.training.experiment.run_config import RunConfig

_log = logging.getLogger(__name__)

MAX_DEATHS_IN_A_ROW = 3
"""A worker that dies so often without a rollout in between ends the run."""


class WorkersError(RuntimeError):
    """The workers cannot go on; the message names the worker, its node and the reason."""


class Fleet:
    """The workers of a run: starts, replaces and asks them."""

    def __init__(self, config: RunConfig[Any, Any]) -> None:
        """Connect to Ray, or start it on this machine, and start the workers."""
        self.config, self.settings = config, config.workers
        self.ray, self._started_ray = connect(self.settings)
        cores = self.ray.cluster_resources().get("CPU", 0)
        if cores < self.settings.num_workers:
            _log.warning(
                "Ray has %g cores for %d workers; the others wait for nodes to join", cores, self.settings.num_workers
            )
        count, self.num_workers = config.env.num_envs, self.settings.num_workers
        self.rows = [
            slice(count * number // self.num_workers, count * (number + 1) // self.num_workers)
            for number in range(self.num_workers)
        ]
        self.num_replaced = 0
        """How many workers were started in the place of dead ones."""
        self._actors = [self._start(number) for number in range(self.num_workers)]
        self._states: list[Any] = [None] * self.num_workers
        """The state of each worker after its last rollout that arrived, in Ray's object store."""
        self._orders: list[tuple[Any, int, int] | None] = [None] * self.num_workers
        """What each worker was last asked for: weights, version, steps."""
        self._under_way: dict[Any, int] = {}
        self._pending_states: dict[Any, Any] = {}
        self._deaths = [0] * self.num_workers
        self.workers: list[Mapping[str, str]] = [{} for _ in range(self.num_workers)]
        """Node, process id and code of each worker, as of its last answer."""
        self.about = self.call(0, lambda worker: worker.about.remote())
        self._check(0, self.about)

    def _start(self, number: int) -> Any:
        rows = self.rows[number]
        kind = self.ray.remote(num_cpus=1)(RolloutWorker)
        return kind.remote(self.config.to_json(), rows.start, rows.stop - rows.start)

    def _check(self, number: int, about: Mapping[str, Any]) -> None:
        """Keep where a worker is; raise for one that runs other code than the learner."""
        self.workers[number] = {name: value for name, value in about.items() if name != "specs"}
        here = running_code()
        for name, what in (("python", "Python"), ("striderl", "the source of striderl")):
            if about[name] != here[name]:
                raise WorkersError(
                    f"worker {number} on {about['node']} has another version of {what} ({about[name]}) than the "
                    f"learner ({here[name]}); install the same on every node, and restart Ray there"
                )

    def check_all(self) -> None:
        """Raise unless every worker could be built and runs the learner's code; waits for all of them."""
        for number in range(1, self.num_workers):
            self._check(number, self.call(number, lambda worker: worker.about.remote()))

    # -- one question to one worker ------------------------------------------------------------------------------------

    def call(self, number: int, ask: Callable[[Any], Any]) -> Any:
        """Ask a worker and return the answer; a dead one is replaced and asked again."""
        while True:
            try:
                answer = self.ray.get(ask(self._actors[number]))
            except self.ray.exceptions.RayError as error:
                self._replace_or_raise(number, error)
            else:
                self._deaths[number] = 0
                return answer

    def _replace_or_raise(self, number: int, error: Exception) -> None:
        """Start a new worker in the place of a dead one, with its last state; raise for every other error."""
        kinds = self.ray.exceptions
        died = (kinds.RayActorError, kinds.OutOfMemoryError, kinds.ObjectLostError, kinds.NodeDiedError)
        self._deaths[number] += 1
        if (
            isinstance(error, kinds.RayTaskError)
            or not isinstance(error, died)
            or getattr(error, "actor_init_failed", False)
            or self._deaths[number] >= MAX_DEATHS_IN_A_ROW
        ):
            raise WorkersError(explained(number, error)) from error
        self.num_replaced += 1
        _log.warning("worker %d is gone and is replaced: %s", number, str(error).strip().splitlines()[0])
        self._actors[number] = self._start(number)
        if self._states[number] is not None:
            try:
                self.ray.get(self._actors[number].load.remote(self._states[number]))
            except kinds.ObjectLostError:  # the state was on the node that is gone
                _log.warning("the state of worker %d is lost as well; it starts new episodes", number)
                self._states[number] = None
            except kinds.RayError as again:
                self._replace_or_raise(number, again)

    # -- rollouts ------------------------------------------------------------------------------------------------------

    def publish(self, actor: Any, env_steps: int = 0) -> Any:
        """Put the weights of an actor and its exploration into the object store, once for all workers."""
        policy = {name: leaf.detach().cpu() for name, leaf in actor.policy.state_dict().items()}
        explores = {"env_steps": env_steps, "random": getattr(actor, "random", False)}
        own = actor.state_dict() if hasattr(actor, "state_dict") else {}
        try:
            return self.ray.put({"policy": policy, **explores, "actor": own})
        except self.ray.exceptions.RayError as error:
            raise WorkersError(explained(-1, error)) from error

    def order(self, number: int, weights: Any, version: int, num_steps: int) -> None:
        """Let a worker begin a rollout."""
        self._orders[number] = (weights, version, num_steps)
        shipment, state = self._actors[number].rollout.options(num_returns=2).remote(weights, version, num_steps)
        self._under_way[shipment] = number
        self._pending_states[shipment] = state

    def arrivals(self) -> Iterator[tuple[int, Shipment]]:
        """Yield the rollouts that were ordered, as they arrive; a worker that dies meanwhile repeats its own."""
        while self._under_way:
            (arrived, *_), _ = self.ray.wait(list(self._under_way), num_returns=1, timeout=None)
            number, state = self._under_way.pop(arrived), self._pending_states.pop(arrived)
            try:
                shipment = self.ray.get(arrived)
            except self.ray.exceptions.RayError as error:
                self._replace_or_raise(number, error)
                wanted = self._orders[number]
                assert wanted is not None
                self.order(number, *wanted)
                continue
            self._deaths[number], self._states[number] = 0, state
            self._check(number, shipment.code)
            yield number, shipment

    @property
    def busy(self) -> frozenset[int]:
        """The workers that have a rollout under way or waiting."""
        return frozenset(self._under_way.values())

    def states(self) -> list[State]:
        """Return the state of every worker; none may be collecting."""
        return [self.call(number, lambda worker: worker.state.remote()) for number in range(self.num_workers)]

    def load(self, states: Sequence[State]) -> list[tuple[Obs, Any]]:
        """Let every worker go on from a state."""
        found = []
        for number, state in enumerate(states):
            self._states[number] = self.ray.put(dict(state))
            found.append(self.call(number, partial(_loading, dict(state))))
        return found

    def close(self) -> None:
        """End the workers; Ray itself stays as it is for other programs, unless it was started here."""
        for actor in self._actors:
            self.ray.kill(actor)
        self._actors = []
        if self._started_ray:
            self._started_ray = False
            self.ray.shutdown()


def _loading(state: State, worker: Any) -> Any:
    return worker.load.remote(state)


def connect(settings: WorkerSettings) -> tuple[Any, bool]:
    """Connect to the cluster of the settings, or start Ray on this machine; returns the module, and whether it started.

    A program that is connected to Ray already stays so.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(missing_extra("ray", "ray", purpose="Workers of Ray")) from error
    if ray.is_initialized():
        return ray, False
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        here = {} if settings.address else {"num_cpus": settings.num_workers, "include_dashboard": False}
        ray.init(address=settings.address or "local", log_to_driver=False, logging_level=logging.ERROR, **here)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise WorkersError(f"there is no Ray at {settings.address or 'this machine'}: {error}") from error
    finally:
        for number, handler in handlers.items():  # Ray sets its own, which would end the run without saving it
            signal.signal(number, handler)
    return ray, True


def explained(number: int, error: Exception) -> str:
    """Return an error of Ray as a sentence: what happened, and what to change."""
    kind = type(error).__name__
    who = f"worker {number}" if number >= 0 else "the learner"
    cause = getattr(error, "cause", None)
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    text = f"{type(cause).__name__}: {cause}" if cause is not None else lines[-1].strip()
    if "ObjectStoreFull" in kind or "ObjectStoreFull" in text:
        return (
            f"{who}: Ray's object store is full; start Ray with more (ray start --object-store-memory BYTES), or use "
            "fewer workers, envs per worker or steps per rollout"
        )
    if "RuntimeEnvSetup" in kind:
        return f"{who}: its environment cannot be set up: {text}"
    if isinstance(cause, (ImportError, FileNotFoundError)) or text.startswith(("ModuleNotFound", "FileNotFound")):
        return (
            f"{who} lacks something that the run needs: {text}. Install it or copy it to every node, at the same path"
        )
    return f"{who} has failed: {text}"
