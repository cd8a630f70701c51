"""Stepping envs: CPU microseconds per env step, 8 envs, beside those of five peers.

    batched                 N envs as arrays or in native code: striderl's built-in tasks, Gymnasium's vectorised
                            CartPole, envpool (one thread each)
    one process             Gymnasium's own env classes, one after the other: striderl's GymnasiumEnv, SyncVectorEnv,
                            DummyVecEnv, Tianshou's DummyVectorEnv, TorchRL's SerialEnv
    8 worker processes      the same envs, one per process: GymnasiumEnv, AsyncVectorEnv, SubprocVecEnv, Tianshou's
                            ShmemVectorEnv, TorchRL's ParallelEnv
    2 worker processes      four envs per process, which only striderl can do

Actions are drawn at random beforehand, the same for all; every contender makes the same number of calls. Envs of all
contenders have the same wrappers (no env checker), but for OrderEnforcing, which GymnasiumEnv leaves out: it checks the
order of calls itself. CPU time counts worker processes; starting them is not counted.
A step is a transition. Where an episode has ended, SyncVectorEnv, AsyncVectorEnv and envpool spend their next call on
the reset (their default), which is no step; striderl and Stable-Baselines3 reset at once and return a transition from
every call. Tianshou's envs are reset by its collector, which is done here too.

    python benchmarks/envs.py                    all benchmarks of this file
    python benchmarks/envs.py --only quadruped   how striderl's quadruped scales with envs and threads
    python benchmarks/envs.py --only collect     a policy and a buffer in Tianshou's words, beside stepping alone
    python benchmarks/envs.py --only processes   a simulator that waits in Python, in several processes
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import env_processes
import quadruped_scaling
from harness import Benchmark, main
from harness_clock import Sample, can_see_workers, timed_block
from harness_process import UnavailableError
from harness_report import Contender, Table

NUM_ENVS = 8
NUM_ACTIONS = 64
"""How many batches of actions are drawn and used in turn."""
TASKS = ("CartPole-v1", "HalfCheetah-v5")
CALLS = {
    "batched": (2000, 100),
    "one process": (200, 50),
    "8 worker processes": (100, 50),
    "2 worker processes": (100, 50),
}
"""Way of stepping -> calls of `step` in one sample, for each task."""


class Stepper(NamedTuple):
    """What is timed: one call that steps all envs, with the actions to give to it."""

    step: Callable[[Any], Any]
    actions: list[Any]
    close: Callable[[], Any]
    resets_next: bool = False
    """Whether the call after the end of an episode resets the env instead of stepping it."""


def actions_for(task: str) -> list[Any]:
    """Return random actions [8] or [8, 6] as numpy arrays, the same for every contender."""
    import numpy as np

    generator = np.random.default_rng(0)
    if task == "CartPole-v1":
        return [generator.integers(0, 2, NUM_ENVS) for _ in range(NUM_ACTIONS)]
    return [generator.uniform(-1.0, 1.0, (NUM_ENVS, 6)).astype(np.float32) for _ in range(NUM_ACTIONS)]


# -- contenders --------------------------------------------------------------------------------------------------------


def striderl_stepper(task: str, way: str) -> Stepper:
    import torch

    env: Any
    if way == "batched":
        env = _striderl_built_in(task)
    else:
        from striderl.envs.gymnasium.env import GymnasiumEnv
        from striderl.envs.workers.pool import WorkerConfig

        num_workers = 0 if way == "one process" else int(way.split()[0])
        env = GymnasiumEnv(task, NUM_ENVS, workers=WorkerConfig(num_workers=num_workers))
    env.reset(seed=0)
    return Stepper(env.step, [torch.from_numpy(action) for action in actions_for(task)], env.close)


def _striderl_built_in(task: str) -> Any:
    if task == "CartPole-v1":
        from striderl.envs.classic_control import CartPole

        return CartPole(NUM_ENVS)
    from striderl.envs.mujoco.gym_tasks import HalfCheetah, HalfCheetahConfig

    return HalfCheetah(HalfCheetahConfig(num_envs=NUM_ENVS, num_threads=1))


def _make_plain(task: str) -> Callable[[], Any]:
    import gymnasium

    return lambda: gymnasium.make(task, disable_env_checker=True)


def gymnasium_stepper(task: str, way: str) -> Stepper:
    import gymnasium

    env: Any
    if way == "batched" and task == "CartPole-v1":
        env = gymnasium.make_vec(task, NUM_ENVS, vectorization_mode="vector_entry_point")
    elif way == "one process":
        env = gymnasium.vector.SyncVectorEnv([_make_plain(task)] * NUM_ENVS)
    elif way == "8 worker processes":
        env = gymnasium.vector.AsyncVectorEnv([_make_plain(task)] * NUM_ENVS)
    else:
        raise UnavailableError("–")
    env.reset(seed=0)
    return Stepper(env.step, actions_for(task), env.close, resets_next=True)


def sb3_stepper(task: str, way: str) -> Stepper:
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    env: Any
    if way == "one process":
        env = DummyVecEnv([_make_plain(task)] * NUM_ENVS)
    elif way == "8 worker processes":
        env = SubprocVecEnv([_make_plain(task)] * NUM_ENVS, start_method="fork")  # starts fastest; steps are the same
    else:
        raise UnavailableError("–")
    env.seed(0)
    env.reset()
    return Stepper(env.step, actions_for(task), env.close)


def tianshou_stepper(task: str, way: str) -> Stepper:
    from tianshou.env import DummyVectorEnv, ShmemVectorEnv

    env: Any
    if way == "one process":
        env = DummyVectorEnv([_make_plain(task)] * NUM_ENVS)
    elif way == "8 worker processes":
        env = ShmemVectorEnv([_make_plain(task)] * NUM_ENVS)
    else:
        raise UnavailableError("–")
    env.reset(seed=0)

    def step(actions: Any) -> None:
        """Step, and reset what has ended: its collector does so, and its envs do not."""
        import numpy as np

        _, _, terminated, truncated, _ = env.step(actions)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            env.reset(ended)

    return Stepper(step, actions_for(task), env.close)


def torchrl_stepper(task: str, way: str) -> Stepper:
    import torch
    from torchrl.envs import GymEnv, ParallelEnv, SerialEnv

    def make() -> Any:
        return GymEnv(task, categorical_action_encoding=True, disable_env_checker=True)

    if way not in ("one process", "8 worker processes"):
        raise UnavailableError("–")
    env = (SerialEnv if way == "one process" else ParallelEnv)(NUM_ENVS, make)
    env.set_seed(0)
    state = env.reset()

    def step(actions: Any) -> None:
        nonlocal state
        state.set("action", actions)
        _, state = env.step_and_maybe_reset(state)

    return Stepper(step, [torch.from_numpy(action) for action in actions_for(task)], env.close)


def envpool_stepper(task: str, way: str) -> Stepper:
    import envpool
    import numpy as np

    if way != "batched":
        raise UnavailableError("–")
    env = envpool.make(task, env_type="gymnasium", num_envs=NUM_ENVS, num_threads=1, seed=0)
    env.reset()
    dtype = np.dtype(env.action_space.dtype)
    return Stepper(env.step, [action.astype(dtype) for action in actions_for(task)], env.close, resets_next=True)


STEPPERS = {
    "striderl": striderl_stepper,
    "gymnasium": gymnasium_stepper,
    "sb3": sb3_stepper,
    "tianshou": tianshou_stepper,
    "torchrl": torchrl_stepper,
    "envpool": envpool_stepper,
}


# -- measuring ---------------------------------------------------------------------------------------------------------


@contextmanager
def prepare(contender: str, table: str, row: str) -> Iterator[Callable[[], Sample]]:
    """Build the envs of one row and step them for as long as one sample takes."""
    if "worker" in row and not can_see_workers():
        raise UnavailableError("needs Linux to see workers' CPU time")
    if table == "HalfCheetah-v5" and row != "batched" and not importlib.util.find_spec("imageio"):
        raise UnavailableError("not installed: imageio")  # Gymnasium's MuJoCo classes import it
    stepper = STEPPERS[contender](table, row)
    calls = CALLS[row][TASKS.index(table)]

    def block() -> None:
        step, actions = stepper.step, stepper.actions
        for call in range(calls):
            step(actions[call % NUM_ACTIONS])

    try:
        block()
        num_steps = calls * NUM_ENVS - (ends_in(stepper, calls) if stepper.resets_next else 0)
        yield lambda: timed_block(block, num_steps)
    finally:
        stepper.close()


def ends_in(stepper: Stepper, calls: int) -> int:
    """Return how many episodes end in so many calls, which are calls that step nothing: the mean of ten blocks."""
    steps = (stepper.step(stepper.actions[call % NUM_ACTIONS]) for call in range(10 * calls))
    return round(sum(int((terminated | truncated).sum()) for _, _, terminated, truncated, _ in steps) / 10)


ENVS = Benchmark(
    name="envs",
    contenders={
        "striderl": Contender(name="striderl", needs=("striderl", "gymnasium", "mujoco", "torch"), role="subject"),
        "gymnasium": Contender(name="Gymnasium", needs=("gymnasium", "mujoco")),
        "sb3": Contender(name="Stable-Baselines3", needs=("stable-baselines3", "gymnasium", "mujoco")),
        "tianshou": Contender(name="Tianshou", needs=("tianshou", "gymnasium", "mujoco")),
        "torchrl": Contender(name="TorchRL", needs=("torchrl", "gymnasium", "mujoco")),
        "envpool": Contender(name="envpool", needs=("envpool",)),
    },
    tables=[Table(title=task, rows=tuple(CALLS), contenders=tuple(STEPPERS), clocks=("cpu", "wall")) for task in TASKS],
    prepare=prepare,
    also_report=("numpy", "torch"),
    starts=1,
)

# -- a policy and a buffer in Tianshou's words -------------------------------------------------------------------------

COLLECT_TITLE = "`Collector.collect` with an MLP, CartPole-v1"
STEPS_PER_SAMPLE = 4000


@contextmanager
def prepare_collect(contender: str, table: str, row: str) -> Iterator[Callable[[], Sample]]:
    """Build the envs of one row, with a policy of 64 units and a `ReplayBuffer`, or to be stepped alone."""
    num_envs = int(row.split()[0])
    take = collected_steps(num_envs) if contender == "striderl" else plain_steps(num_envs)
    take()

    def sample() -> Sample:
        found: list[int] = []
        whole = timed_block(lambda: found.append(take()), 1)
        return Sample(*(each / found[0] for each in whole))

    yield sample


def collected_steps(num_envs: int) -> Callable[[], int]:
    """Return a call that collects whole episodes and returns how many steps they had."""
    import torch

    from striderl.compat.tianshou.data import Batch, Collector, ReplayBuffer
    from striderl.compat.tianshou.env import DummyVectorEnv
    from striderl.compat.tianshou.policy import BasePolicy

    torch.set_num_threads(1)
    torch.manual_seed(1)

    class Acting(BasePolicy):
        """A small MLP; with this seed its episodes have about thirty steps."""

        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))

        def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
            return Batch(act=self.net(torch.from_numpy(batch.obs)).argmax(-1))

        def learn(self, batch: Batch, **kwargs: Any) -> dict[str, float]:
            return {}

    collector = Collector(Acting(), DummyVectorEnv([_make_plain("CartPole-v1")] * num_envs), ReplayBuffer(50_000))
    return lambda: int(collector.collect(n_step=STEPS_PER_SAMPLE)["n/st"])


def plain_steps(num_envs: int) -> Callable[[], int]:
    """Return a call that steps the envs one after the other with random actions, and resets them."""
    envs = [_make_plain("CartPole-v1")() for _ in range(num_envs)]
    for env in envs:
        env.reset(seed=0)
    actions = actions_for("CartPole-v1")

    def take() -> int:
        for call in range(STEPS_PER_SAMPLE // num_envs):
            for env, action in zip(envs, actions[call % NUM_ACTIONS]):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
        return STEPS_PER_SAMPLE // num_envs * num_envs

    return take


COLLECT = Benchmark(
    name="collect",
    contenders={
        "striderl": Contender(name="striderl", needs=("striderl", "gymnasium", "torch"), role="subject"),
        "gymnasium": Contender(name="Gymnasium, stepping alone", needs=("gymnasium",)),
    },
    tables=[
        Table(
            title=COLLECT_TITLE,
            rows=("1 env", "8 envs"),
            contenders=("striderl", "gymnasium"),
            unit="steps/s",
            ratio_title="stepping alone / collect",
        )
    ],
    prepare=prepare_collect,
    also_report=("numpy", "torch"),
    rounds=8,
    starts=1,
)

if __name__ == "__main__":
    sys.exit(main([ENVS, quadruped_scaling.QUADRUPED, COLLECT, env_processes.PROCESSES], __file__))
