"""Replay buffers of a million steps with the sizes of HalfCheetah: add, sample, priorities, side by side.

    obs float32 [17], act float32 [6], rew float32, flags        1,000,000 steps alive, batches of 256

Every library is fed what it takes natively (arrays, or tensors for TorchRL and skrl) and gives what it gives. striderl
takes both: arrays in the rows of all, tensors in rows with those that take them. All buffers are full before anything
is timed. The prioritized row times one sample followed by one update of the same steps, because libraries differ in
which of the two does the work.

    python benchmarks/replay.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness import Benchmark, main
from harness_clock import Sample, repeated
from harness_process import UnavailableError
from harness_report import Contender, Table

SIZE, BATCH, OBS, ACT = 1_000_000, 256, 17, 6
ROWS = (
    "add a step of 1 env",
    "add a step of 8 envs",
    "add a step of 1 env, tensors",
    "add a step of 8 envs, tensors",
    "sample 256",
    "sample 256, 3-step returns",
    "prioritized: add a step of 1 env",
    "prioritized: sample 256 and update them",
)
Call = Callable[[], Any]
ARRAYS_ALONE = "takes arrays"


def arrays(count: int, seed: int = 0) -> dict[str, Any]:
    """Return random steps [count, …] as arrays."""
    import numpy as np

    generator = np.random.default_rng(seed)
    return {
        "obs": generator.random((count, OBS), np.float32),
        "obs_next": generator.random((count, OBS), np.float32),
        "act": generator.random((count, ACT), np.float32) * 2.0 - 1.0,
        "rew": generator.random(count, np.float32),
        "done": np.zeros(count, np.bool_),
    }


# -- striderl ----------------------------------------------------------------------------------------------------------


def striderl_calls(row: str) -> Call:
    import numpy as np
    import torch

    from striderl.data.actions import BoxSpec
    from striderl.data.specs import ObsSpec
    from striderl.data.transition import Transition, transition_columns
    from striderl.storage.replay.replay import Replay
    from striderl.storage.replay.samplers import Prioritized, Uniform
    from striderl.storage.replay.views import NStep

    envs = 8 if "8 envs" in row else 1
    columns = transition_columns(ObsSpec.from_flat(OBS), BoxSpec(shape=(ACT,), low=-1.0, high=1.0), {}, {})
    sampler = Prioritized() if row.startswith("prioritized") else Uniform()
    view = NStep(3, gamma=0.99) if "3-step" in row else None
    replay = Replay(columns, SIZE, envs, sampler=sampler, view=view)
    for part in (replay.steps, replay.frames):
        part.arena.blocks["float32"].uniform_()
    replay.steps.arena.data["valid"].fill_(True)
    replay.cursor.set(np.full(envs, SIZE // envs), np.zeros(envs))
    for first in range(0, SIZE, 1000):
        sampler.written(replay.read, first, 1000, True)
    given: dict[str, Any] = arrays(envs)
    given |= {"truncated": given["done"].copy(), "valid": ~given["done"]}
    if "tensors" in row:
        given = {key: torch.from_numpy(value) for key, value in given.items()}
    flags = {"terminated": given["done"], "truncated": given["truncated"], "valid": given["valid"]}
    step = Transition(
        obs={"obs": given["obs"]}, act=given["act"], rew=given["rew"], **flags,
        info={}, policy={}, next_obs={"obs": given["obs_next"]}, final_obs={"obs": given["obs_next"]},
    )  # fmt: skip
    if "add" in row:
        return lambda: replay.add(step)
    if not row.startswith("prioritized"):
        return lambda: replay.sample(BATCH)
    error = torch.rand(BATCH)

    def sample_and_update() -> None:
        replay.update_priorities(replay.sample(BATCH).handle, error)

    return sample_and_update


# -- peers -------------------------------------------------------------------------------------------------------------


def tianshou_calls(row: str) -> Call:
    import numpy as np
    from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer, VectorReplayBuffer

    if "tensors" in row:
        raise UnavailableError(ARRAYS_ALONE)
    envs = 8 if "8 envs" in row else 1

    def batch(count: int) -> Any:
        given = arrays(count)
        done = given.pop("done")
        return Batch(**given, terminated=done, truncated=done.copy(), done=done.copy())

    if row.startswith("prioritized"):
        buffer: Any = PrioritizedReplayBuffer(SIZE, alpha=0.6, beta=0.4)
    else:
        buffer = ReplayBuffer(SIZE) if envs == 1 else VectorReplayBuffer(SIZE, envs)
    one = batch(envs)
    step = one if envs > 1 else one[0]
    buffer.add(step)  # lets the buffer make its storage
    if envs == 1:
        buffer.set_batch(batch(SIZE))
        buffer._size = SIZE
        if row.startswith("prioritized"):
            buffer.weight[np.arange(SIZE)] = np.ones(SIZE)
    if "add" in row:
        return lambda: buffer.add(step)
    if "3-step" in row:
        raise UnavailableError("in the algorithm, with its network")
    if not row.startswith("prioritized"):
        return lambda: buffer.sample(BATCH)
    error = np.random.default_rng(1).random(BATCH)

    def sample_and_update() -> None:
        _, index = buffer.sample(BATCH)
        buffer.update_weight(index, error)

    return sample_and_update


def sb3_calls(row: str) -> Call:
    import gymnasium
    import numpy as np
    from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer

    if "tensors" in row:
        raise UnavailableError(ARRAYS_ALONE)
    if row.startswith("prioritized"):
        raise UnavailableError("has no priorities")
    envs = 8 if "8 envs" in row else 1
    spaces = (gymnasium.spaces.Box(-1.0, 1.0, (OBS,)), gymnasium.spaces.Box(-1.0, 1.0, (ACT,)))
    if "3-step" in row:
        buffer: Any = NStepReplayBuffer(SIZE, *spaces, device="cpu", n_envs=envs, n_steps=3, gamma=0.99)
    else:
        buffer = ReplayBuffer(SIZE, *spaces, device="cpu", n_envs=envs)
    random = np.random.default_rng(0)
    for column in (buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards):
        column[...] = random.random(column.shape, np.float32)
    buffer.full = True
    given = arrays(envs)
    step = (given["obs"], given["obs_next"], given["act"], given["rew"], given["done"], [{}] * envs)
    return (lambda: buffer.add(*step)) if "add" in row else (lambda: buffer.sample(BATCH))


def torchrl_calls(row: str) -> Call:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

    def steps(count: int) -> Any:
        given = {key: torch.from_numpy(value) for key, value in arrays(count).items()}
        following = {"observation": given["obs_next"], "reward": given["rew"][:, None], "done": given["done"][:, None]}
        return TensorDict(
            {"observation": given["obs"], "action": given["act"], "next": following}, batch_size=[count]
        )  # fmt: skip

    if "3-step" in row:
        raise UnavailableError("a transform of collected data, not of samples")
    storage = LazyTensorStorage(SIZE)
    if row.startswith("prioritized"):
        try:
            buffer: Any = TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=storage, batch_size=BATCH)
        except RuntimeError as error:  # its compiled tree is built for one version of torch
            raise UnavailableError("its tree does not load with this torch") from error
    else:
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=BATCH)
    buffer.extend(steps(SIZE))
    if "add" in row:
        many = steps(8)
        one = many[0]
        return (lambda: buffer.extend(many)) if "8 envs" in row else (lambda: buffer.add(one))
    if not row.startswith("prioritized"):
        return buffer.sample
    error = torch.rand(BATCH)

    def sample_and_update() -> None:
        drawn = buffer.sample()
        drawn.set("td_error", error)
        buffer.update_tensordict_priority(drawn)

    return sample_and_update


def skrl_calls(row: str) -> Call:
    import torch
    from skrl.memories.torch import RandomMemory

    if row.startswith("prioritized"):
        raise UnavailableError("has no priorities")
    if "3-step" in row:
        raise UnavailableError("–")
    envs = 8 if "8 envs" in row else 1
    # drawing without replacement, its default, shuffles a million numbers for each sample
    memory = RandomMemory(memory_size=SIZE // envs, num_envs=envs, device="cpu", replacement=True)
    sizes = {"observations": OBS, "next_observations": OBS, "actions": ACT, "rewards": 1, "terminated": 1}
    for name, size in sizes.items():
        memory.create_tensor(name=name, size=size, dtype=torch.bool if name == "terminated" else torch.float32)
    given = {key: torch.from_numpy(value) for key, value in arrays(envs).items()}
    columns = (given["obs"], given["obs_next"], given["act"], given["rew"][:, None], given["done"][:, None])
    step: dict[str, Any] = dict(zip(sizes, columns))
    for name in sizes:
        memory.tensors[name].copy_(torch.rand(memory.tensors[name].shape) < 0.5)
    memory.filled = True
    if "add" in row:
        return lambda: memory.add_samples(**step)
    return lambda: memory.sample(list(sizes), batch_size=BATCH)


def cpprb_calls(row: str) -> Call:
    import numpy as np
    from cpprb import PrioritizedReplayBuffer, ReplayBuffer

    if "tensors" in row:
        raise UnavailableError(ARRAYS_ALONE)
    columns: dict[str, Any] = {"obs": {"shape": OBS}, "next_obs": {"shape": OBS}, "act": {"shape": ACT}}
    columns |= {"rew": {}, "done": {}}
    options = {"Nstep": {"size": 3, "gamma": 0.99, "rew": "rew", "next": "next_obs"}} if "3-step" in row else {}
    if row.startswith("prioritized"):
        buffer: Any = PrioritizedReplayBuffer(SIZE, columns, alpha=0.6)
    else:
        buffer = ReplayBuffer(SIZE, columns, **options)

    def steps(count: int) -> dict[str, Any]:
        given = arrays(count)
        return {"next_obs": given.pop("obs_next"), **given}

    if "3-step" in row:
        whole = steps(20_000)
        for _ in range(SIZE // 20_000):
            buffer.add(**whole)
    else:
        buffer.add(**steps(SIZE))
    if "add" in row:
        step = steps(8 if "8 envs" in row else 1)
        return lambda: buffer.add(**step)
    if not row.startswith("prioritized"):
        return lambda: buffer.sample(BATCH)
    error = np.random.default_rng(1).random(BATCH)

    def sample_and_update() -> None:
        drawn = buffer.sample(BATCH, beta=0.4)
        buffer.update_priorities(drawn["indexes"], error)

    return sample_and_update


CALLS = {
    "striderl": striderl_calls,
    "tianshou": tianshou_calls,
    "sb3": sb3_calls,
    "torchrl": torchrl_calls,
    "skrl": skrl_calls,
    "cpprb": cpprb_calls,
}
TITLE = "1,000,000 steps, observations of 17 numbers"


@contextmanager
def prepare(contender: str, table: str, row: str) -> Iterator[Callable[[], Sample]]:
    """Fill a buffer and time one row."""
    yield repeated(CALLS[contender](row))


REPLAY = Benchmark(
    name="replay",
    contenders={
        "striderl": Contender(name="striderl Replay", needs=("striderl", "torch", "numpy"), role="subject"),
        "tianshou": Contender(name="Tianshou", needs=("tianshou", "torch", "numpy")),
        "sb3": Contender(name="Stable-Baselines3", needs=("stable-baselines3", "gymnasium", "torch", "numpy")),
        "torchrl": Contender(name="TorchRL", needs=("torchrl", "tensordict", "torch", "numpy")),
        "skrl": Contender(name="skrl", needs=("skrl", "torch", "numpy")),
        "cpprb": Contender(name="cpprb", needs=("cpprb", "numpy")),
    },
    tables=[Table(title=TITLE, rows=ROWS, contenders=tuple(CALLS), memory=True)],
    prepare=prepare,
)

if __name__ == "__main__":
    sys.exit(main([REPLAY], __file__))
