"""Ray in one process, for tests: actors are objects, calls are run when their result is asked for, deaths are planned.

`Deaths` decides before every call whether the actor dies instead. What Ray does itself (placement, transport, real
processes) is not tested with this; `tools/worker_kills.py` does that with a real Ray.
"""

from __future__ import annotations

import itertools
import pickle
from types import SimpleNamespace


class RayError(Exception):
    cause = None


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class RayActorError(RayError):
    actor_init_failed = False


class InitFailedError(RayActorError):
    actor_init_failed = True


class ActorUnavailableError(RayActorError):
    pass


class ObjectStoreFullError(RayError):
    pass


class ObjectLostError(RayError):
    pass


EXCEPTIONS = SimpleNamespace(
    RayError=RayError,
    RayTaskError=RayTaskError,
    RayActorError=RayActorError,
    ActorUnavailableError=ActorUnavailableError,
    ObjectStoreFullError=ObjectStoreFullError,
    ObjectLostError=ObjectLostError,
    OutOfMemoryError=type("OutOfMemoryError", (RayError,), {}),
    NodeDiedError=type("NodeDiedError", (RayError,), {}),
)


class Ref:
    """The result of a call that is run when it is needed."""

    def __init__(self, work, actor=None):
        self.work, self.actor, self.done, self.value, self.error = work, actor, False, None, None

    def result(self):
        if not self.done:
            self.done = True
            try:
                # as through the object store: nothing that is shared can be changed by the other side
                self.value = pickle.loads(pickle.dumps(self.work()))
            except RayError as error:
                self.error = error
        if self.error is not None:
            raise self.error
        return self.value


class Method:
    def __init__(self, actor, name, num_returns=1):
        self.actor, self.name, self.num_returns = actor, name, num_returns

    def options(self, num_returns):
        return Method(self.actor, self.name, num_returns)

    def remote(self, *arguments):
        whole = Ref(lambda: self.actor.run(self.name, arguments), self.actor)
        if self.num_returns == 1:
            return whole
        return [Ref(lambda k=k: whole.result()[k], self.actor) for k in range(self.num_returns)]


class FakeActor:
    def __init__(self, ray, kind, arguments):
        self.ray, self.kind, self.arguments = ray, kind, arguments
        self.object, self.alive, self.number = None, True, next(ray.numbers)

    def __getattr__(self, name):
        return Method(self, name)

    def run(self, name, arguments):
        self.ray.calls.append((self.number, name))
        if self.ray.dies(self, name):
            self.alive = False
        if not self.alive:
            raise RayActorError("The actor died unexpectedly before finishing this task.")
        try:
            if self.object is None:
                self.object = self.kind(*self.arguments)
        except Exception as error:
            self.alive = False
            raise InitFailedError(
                f"The actor died because of an error raised in its creation task\n{type(error).__name__}: {error}"
            ) from error
        found = [each.result() if isinstance(each, Ref) else each for each in arguments]
        try:
            return getattr(self.object, name)(*found)
        except RayError:
            raise
        except Exception as error:
            raise RayTaskError(error) from error


class FakeRay:
    """The functions of the module `ray` that workers use."""

    exceptions = EXCEPTIONS

    def __init__(self, dies=lambda actor, name: False, order=None, cores=64):
        self.dies, self.order, self.cores = dies, order or (lambda refs: refs), cores
        self.calls, self.numbers = [], itertools.count()
        self.lost_nodes = 0

    def cluster_resources(self):
        return {"CPU": float(self.cores)}

    def nodes(self):
        return [{"Alive": True}, *[{"Alive": False}] * self.lost_nodes]

    def remote(self, **options):
        return lambda kind: SimpleNamespace(remote=lambda *arguments: FakeActor(self, kind, arguments))

    def put(self, value):
        ref = Ref(lambda: value)
        ref.result()
        return ref

    def get(self, ref):
        return ref.result()

    def wait(self, refs, num_returns, timeout):
        first = self.order(list(refs))
        return first[:num_returns], first[num_returns:]

    def kill(self, actor):
        actor.alive = False

    def shutdown(self):
        pass
