"""Learning from replay beside the peers: gradient steps per second of CPU time, one torch thread.

    sample a minibatch ─▶ targets ─▶ losses, backward ─▶ optimisers ─▶ target networks

Sizes, data and settings are in off_policy_tasks.py, each contender in off_policy_NAME.py. 'CleanRL style' is a loop in
one file, written for this comparison, because CleanRL is not a package. 'striderl compiled' compiles the losses;
compiling happens before the first sample and is not counted.

    python benchmarks/off_policy.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

from harness import Benchmark, main
from harness_clock import Sample, timed_block
from harness_report import Contender, Table
from off_policy_tasks import TASKS

UPDATE = "Gradient steps from replay"


def _striderl() -> ModuleType:
    import off_policy_striderl

    return off_policy_striderl


def _sb3() -> ModuleType:
    import off_policy_sb3

    return off_policy_sb3


def _tianshou() -> ModuleType:
    import off_policy_tianshou

    return off_policy_tianshou


def _torchrl() -> ModuleType:
    import off_policy_torchrl

    return off_policy_torchrl


def _skrl() -> ModuleType:
    import off_policy_skrl

    return off_policy_skrl


def _cleanrl_style() -> ModuleType:
    import off_policy_cleanrl_style

    return off_policy_cleanrl_style


MODULES: dict[str, Callable[[], ModuleType]] = {
    "striderl": _striderl,
    "compiled": _striderl,
    "auto": _striderl,
    "sb3": _sb3,
    "tianshou": _tianshou,
    "torchrl": _torchrl,
    "skrl": _skrl,
    "cleanrl_style": _cleanrl_style,
}
"""Contender → the module with its `update`; imported in its own process only."""


@contextmanager
def prepare(contender: str, table: str, row: str) -> Iterator[Callable[[], Sample]]:
    """Build a row and run it once, so that nothing is made or compiled while it is timed."""
    import torch

    torch.set_num_threads(1)
    task = TASKS[row]
    mode = {"mode": contender} if contender in ("compiled", "auto") else {}
    work = MODULES[contender]().update(task, **mode)
    work()
    yield lambda: timed_block(work, task.updates_per_sample)


OFF_POLICY = Benchmark(
    name="off_policy",
    contenders={
        "striderl": Contender(name="striderl", needs=("striderl", "torch"), role="subject"),
        "compiled": Contender(name="striderl compiled", needs=("striderl", "torch"), role="information"),
        "auto": Contender(name="striderl auto", needs=("striderl", "torch"), role="information"),
        "sb3": Contender(name="Stable-Baselines3", needs=("stable-baselines3", "gymnasium")),
        "tianshou": Contender(name="Tianshou", needs=("tianshou", "gymnasium")),
        "torchrl": Contender(name="TorchRL", needs=("torchrl",)),
        "skrl": Contender(name="skrl", needs=("skrl", "gymnasium")),
        "cleanrl_style": Contender(name="CleanRL style", needs=("torch",)),
    },
    tables=[Table(title=UPDATE, rows=tuple(TASKS), contenders=tuple(MODULES), unit="steps/s", memory=True)],
    prepare=prepare,
    also_report=("numpy", "torch"),
    rounds=8,
    starts=1,
)

if __name__ == "__main__":
    sys.exit(main([OFF_POLICY], __file__))
