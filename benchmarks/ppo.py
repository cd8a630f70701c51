"""PPO beside the peers: one update, training end to end, and the returns; CPU time, one torch thread.

    update      returns and advantages of a full rollout, then all gradient steps (random data, the same for all)
    training    collecting and learning; everybody steps the fastest envs it has for the task in one process: striderl
                its own batched tasks, Stable-Baselines3 DummyVecEnv, Tianshou DummyVectorEnv, the others SyncVectorEnv
    returns     generalised advantage estimation alone
    collecting  rollouts from an env of rsl_rl's interface that costs nothing, by `OnPolicyRunner` and by rsl_rl's loop

Sizes and settings are in ppo_tasks.py, each contender in ppo_NAME.py. 'CleanRL style' is a loop in one file, written
for this comparison (ppo_cleanrl_style.py), because CleanRL is not a package. 'striderl' is eager; 'striderl compiled'
compiles the gradient step, and 'striderl auto' is what a run is by default, after its switch; compiling happens before
the first sample and is not counted.

    python benchmarks/ppo.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

from harness import Benchmark, main
from harness_clock import Sample, repeated, timed_block
from harness_process import UnavailableError
from harness_report import Contender, Table
from ppo_tasks import COLLECTIONS, GAE_SIZES, TRAININGS, UPDATES, Work

UPDATE, TRAINING, RETURNS = "PPO update", "PPO training, end to end", "Generalised advantage estimation"
COLLECTING = "Collecting from an env of rsl_rl"


def _striderl() -> ModuleType:
    import ppo_striderl

    return ppo_striderl


def _sb3() -> ModuleType:
    import ppo_sb3

    return ppo_sb3


def _tianshou() -> ModuleType:
    import ppo_tianshou

    return ppo_tianshou


def _cleanrl_style() -> ModuleType:
    import ppo_cleanrl_style

    return ppo_cleanrl_style


def _rsl_rl() -> ModuleType:
    import ppo_rsl_rl

    return ppo_rsl_rl


def _skrl() -> ModuleType:
    import ppo_skrl

    return ppo_skrl


def _torchrl() -> ModuleType:
    import ppo_torchrl

    return ppo_torchrl


MODULES: dict[str, Callable[[], ModuleType]] = {
    "striderl": _striderl,
    "compiled": _striderl,
    "auto": _striderl,
    "sb3": _sb3,
    "tianshou": _tianshou,
    "cleanrl_style": _cleanrl_style,
    "rsl_rl": _rsl_rl,
    "skrl": _skrl,
    "torchrl": _torchrl,
}
"""Contender → the module with its `update`, `train` and `returns`; imported in its own process only."""


MODES = ("compiled", "auto")
"""Contenders that are a mode of striderl."""


def _work(contender: str, table: str, row: str) -> tuple[Work, int]:
    """Return what one sample does, and of how many operations it consists."""
    module = MODULES[contender]()
    mode = {"mode": contender} if contender in MODES else {}
    if table == UPDATE:
        return module.update(UPDATES[row], **mode), 1
    if table == TRAINING:
        return module.train(TRAININGS[row], **mode), TRAININGS[row].steps_per_sample
    if table == COLLECTING:
        return module.collect(COLLECTIONS[row]), COLLECTIONS[row].num_steps
    if contender in MODES:
        raise UnavailableError("–")
    return module.returns(*GAE_SIZES[row]), 1


@contextmanager
def prepare(contender: str, table: str, row: str) -> Iterator[Callable[[], Sample]]:
    """Build a row and run it once, so that nothing is made or compiled while it is timed."""
    import torch

    torch.set_num_threads(1)
    work, operations = _work(contender, table, row)
    work()
    yield repeated(work, 0.02) if table == RETURNS else lambda: timed_block(work, operations)


_ALL = tuple(MODULES)
_GYM = ("gymnasium", "mujoco")

PPO = Benchmark(
    name="ppo",
    contenders={
        "striderl": Contender(name="striderl", needs=("striderl", "mujoco", "torch"), role="subject"),
        "compiled": Contender(name="striderl compiled", needs=("striderl", "mujoco", "torch"), role="information"),
        "auto": Contender(name="striderl auto", needs=("striderl", "mujoco", "torch"), role="information"),
        "sb3": Contender(name="Stable-Baselines3", needs=("stable-baselines3", *_GYM)),
        "tianshou": Contender(name="Tianshou", needs=("tianshou", *_GYM)),
        "cleanrl_style": Contender(name="CleanRL style", needs=("torch", *_GYM)),
        "rsl_rl": Contender(name="rsl_rl", needs=("rsl-rl-lib", *_GYM)),
        "skrl": Contender(name="skrl", needs=("skrl", "gymnasium")),
        "torchrl": Contender(name="TorchRL", needs=("torchrl",)),
    },
    tables=[
        Table(title=UPDATE, rows=tuple(UPDATES), contenders=_ALL, unit="ms", memory=True),
        Table(title=TRAINING, rows=tuple(TRAININGS), contenders=_ALL, unit="steps/s", memory=True),
        Table(title=RETURNS, rows=tuple(GAE_SIZES), contenders=_ALL, unit="µs"),
    ],
    prepare=prepare,
    also_report=("numpy", "torch"),
    rounds=5,
    starts=1,
)

RSL_RL = Benchmark(
    name="ppo_collecting",
    contenders={
        "striderl": Contender(name="striderl", needs=("striderl", "torch", "tensordict"), role="subject"),
        "rsl_rl": Contender(name="rsl_rl", needs=("rsl-rl-lib", "tensordict")),
    },
    tables=[Table(title=COLLECTING, rows=tuple(COLLECTIONS), contenders=("striderl", "rsl_rl"), unit="ms")],
    prepare=prepare,
    also_report=("numpy", "torch"),
    rounds=9,
    starts=1,
)

if __name__ == "__main__":
    sys.exit(main([PPO, RSL_RL], __file__))
