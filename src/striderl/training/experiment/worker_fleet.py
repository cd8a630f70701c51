"""`Fleet`: the workers of a run as Ray actors; orders rollouts, replaces the dead, explains errors."""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from striderl.collect.schedules import WorkerSettings
from striderl.data.naming import missing_extra
from striderl.envs.vec_env import Obs
from striderl.training.experiment.rollout_worker import RolloutWorker, Shipment, State, running_code
from striderl.training.experiment.run_config import RunConfig

_log = logging.getLogger(__name__)

MAX_DEATHS_IN_A_ROW = 3
"""A worker that dies so often without an answer in between ends the run; deaths of its node do not count."""


class WorkersError(RuntimeError):
    """The workers cannot go on; the message names the worker, its node and the reason."""


class Order(NamedTuple):
    """A rollout that a worker was asked for."""

    number: int
    """Of the worker."""
    actor: Any
    """The actor that was asked; when it is not the worker's any more, it was replaced meanwhile."""
    state: Any
    """Ray's reference to the state after the rollout."""
    wanted: tuple[Any, int, int]
    """Weights, their version, and steps."""


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
        self._states: list[State | None] = [None] * self.num_workers
        """The state of each worker after its last rollout that arrived; here, so that a node's end does not lose it."""
        self._loading: dict[int, Any] = {}
        """New workers that have not answered yet, and the result of loading the state of the dead one, if there was."""
        self._under_way: dict[Any, Order] = {}
        """The rollouts that were ordered and have not arrived, by Ray's reference."""
        self._deaths, self._lost_nodes = [0] * self.num_workers, [self._num_lost_nodes()] * self.num_workers
        """Deaths of each worker since its last answer, and how many nodes were lost when it last died."""
        self.workers: list[Mapping[str, str]] = [{} for _ in range(self.num_workers)]
        """Node, process id and code of each worker, as of its last answer."""
        try:
            self.about = self.call(0, lambda worker: worker.about.remote())
            self._check(0, self.about)
        except BaseException:
            self.close()
            raise

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
            asked = ask(self._actors[number])
            try:
                return self._answer(number, asked)
            except self.ray.exceptions.RayError as error:
                self._replace_or_raise(number, error)

    def call_any(self, ask: Callable[[Any], Any]) -> Any:
        """Ask the first worker that is not waiting for a core, and return the answer; another one where it dies."""
        while True:
            number = next((each for each in range(self.num_workers) if each not in self._loading), 0)
            asked = ask(self._actors[number])
            try:
                return self._answer(number, asked)
            except self.ray.exceptions.RayError as error:
                self._replace_or_raise(number, error)

    def _answer(self, number: int, asked: Any) -> Any:
        """Return an answer; a new worker has loaded the state of the dead one before."""
        if (loading := self._loading.get(number)) is not None:
            self.ray.get(loading)
        answer = self.ray.get(asked)
        self._loading.pop(number, None)
        self._deaths[number] = 0
        return answer

    def _replace_or_raise(self, number: int, error: Exception) -> None:
        """Start a new worker in the place of a dead one, with its last state; raise for every other error."""
        kinds = self.ray.exceptions
        died = (kinds.RayActorError, kinds.OutOfMemoryError, kinds.ObjectLostError, kinds.NodeDiedError)
        lost = self._num_lost_nodes()
        if lost == self._lost_nodes[number] and not isinstance(error, kinds.ActorUnavailableError):
            self._deaths[number] += 1
        self._lost_nodes[number] = lost
        if (
            isinstance(error, kinds.RayTaskError)
            or not isinstance(error, died)
            or getattr(error, "actor_init_failed", False)
            or self._deaths[number] >= MAX_DEATHS_IN_A_ROW
        ):
            raise WorkersError(explained(number, error)) from error
        self.num_replaced += 1
        _log.warning("worker %d is gone and is replaced: %s", number, " ".join(str(error).split())[:300])
        self.ray.kill(self._actors[number])  # one that cannot be reached may live, and would keep its core
        self._actors[number], state = self._start(number), self._states[number]
        # not waited for: the new worker may have to wait for a node to join, while others go on
        self._loading[number] = None if state is None else self._actors[number].load.remote(state)

    def _num_lost_nodes(self) -> int:
        """Return how many nodes the cluster has lost so far."""
        return sum(not node["Alive"] for node in self.ray.nodes())

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
        actor = self._actors[number]
        shipment, state = actor.rollout.options(num_returns=2).remote(weights, version, num_steps)
        self._under_way[shipment] = Order(number, actor, state, (weights, version, num_steps))

    def arrivals(self) -> Iterator[tuple[int, Shipment]]:
        """Yield the rollouts that were ordered, as they arrive; a worker that dies meanwhile repeats its own."""
        while self._under_way:
            (arrived, *_), _ = self.ray.wait(list(self._under_way), num_returns=1, timeout=None)
            order = self._under_way.pop(arrived)
            number = order.number
            if order.actor is not self._actors[number]:  # replaced meanwhile: the new one repeats it
                self.order(number, *order.wanted)
                continue
            try:
                shipment, state = self._answer(number, arrived), self.ray.get(order.state)
            except self.ray.exceptions.RayError as error:
                self._replace_or_raise(number, error)
                self.order(number, *order.wanted)
                continue
            self._states[number] = state
            self._check(number, shipment.code)
            yield number, shipment

    @property
    def busy(self) -> frozenset[int]:
        """The workers that have a rollout under way or waiting."""
        return frozenset(order.number for order in self._under_way.values())

    def states(self) -> list[State]:
        """Return the state of every worker; none may be collecting."""
        return [self.call(number, lambda worker: worker.state.remote()) for number in range(self.num_workers)]

    def load(self, states: Sequence[State]) -> list[tuple[Obs, Any]]:
        """Let every worker go on from a state."""
        found = []
        for number, state in enumerate(states):
            self._states[number] = state
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
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT) if main}
    try:
        if settings.address:
            _initialized(ray, settings.address)
        else:
            _started(ray, settings.num_workers)
    finally:
        for number, handler in handlers.items():  # Ray sets its own, which would end the run without saving it
            signal.signal(number, handler)
    return ray, True


def _started(ray: Any, num_cores: int) -> None:
    """Start Ray on this machine; once more where it was too slow, as on busy cores: Ray gives its parts 15 seconds."""
    try:
        _initialized(ray, "local", num_cpus=num_cores, include_dashboard=False)
    except WorkersError as error:
        _log.warning("%s; trying once more", error)
        ray.shutdown()
        _initialized(ray, "local", num_cpus=num_cores, include_dashboard=False)


def _initialized(ray: Any, address: str, **here: Any) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **here)
    except Exception as error:  # Ray raises a plain one where it cannot start
        what = "start Ray on this machine" if address == "local" else f"connect to Ray at {address!r}"
        raise WorkersError(f"cannot {what}: {' '.join(str(error).split())}") from error


def explained(number: int, error: Exception) -> str:
    """Return an error of Ray as a sentence: what happened, and what to change."""
    kind = type(error).__name__
    place = re.search(r"\bip[=:]\s*([\w.:]+\w)", str(error))
    who = f"worker {number}{f' on {place[1]}' if place else ''}" if number >= 0 else "the learner"
    cause = getattr(error, "cause", None)
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    text = f"{type(cause).__name__}: {cause}" if cause is not None else lines[-1].strip()
    if any(full in kind or full in text for full in ("ObjectStoreFull", "OutOfDisk")):
        return (
            f"{who}: Ray's object store is full, and so is the disk that it moves objects to; start Ray with more "
            "(ray start --object-store-memory BYTES), make room in /tmp/ray, or use fewer workers, envs per worker or "
            "steps per rollout"
        )
    if "RuntimeEnvSetup" in kind:
        return f"{who}: its environment cannot be set up: {text}"
    if isinstance(cause, (ImportError, FileNotFoundError)) or text.startswith(("ModuleNotFound", "FileNotFound")):
        return (
            f"{who} lacks something that the run needs: {text}. Install it or copy it to every node, at the same path"
        )
    return f"{who} has failed: {text}"
