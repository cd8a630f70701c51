"""Short runs with a logger that has a fault, compared with the same run without loggers.

As a program: fault_runs.py FOLDER FAULT… runs with each logger that writes to the disk, on a disk that has the fault,
and leaves what was found in FOLDER/found.json.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.envs.classic_control import CartPole
from striderl.loggers.file_loggers import CsvLogger, JsonlLogger
from striderl.loggers.table import make_loggers
from striderl.policies.policy import Policy, PolicyConfig
from striderl.training.callbacks.log import Log
from striderl.training.plans import OnPolicyPlan
from striderl.training.trainer import Trainer

ITERATIONS = 6


class Warnings(logging.Handler):
    """Keeps the warnings of the library."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def train(*loggers: Any, at: Any = None) -> dict[str, Any]:
    """Train a few iterations; `at(iteration)` may do harm in between. Weights, warnings and seconds come back."""
    torch.manual_seed(0)
    env = CartPole(4)
    policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(16,), critic_hidden_dims=(16,)))
    ppo = PPO(policy, PPOConfig(num_mini_batches=2, num_learning_epochs=2))
    collector = Collector(env, PolicyActor(policy), CollectorConfig(seed=0))
    plan = OnPolicyPlan(num_steps_per_env=8, total_iterations=ITERATIONS)
    handler = Warnings()
    logging.getLogger("striderl").addHandler(handler)
    try:
        trainer = Trainer(ppo, collector, plan, callbacks=[Log(*loggers)] if loggers else [], seed=0)
        started = time.perf_counter()
        for record in trainer:
            if at is not None:
                at(record.iteration)
        seconds = time.perf_counter() - started
        trainer.close()
        closing = time.perf_counter() - started - seconds
    finally:
        logging.getLogger("striderl").removeHandler(handler)
    weights = {name: value.tolist() for name, value in policy.state_dict().items()}
    return {"weights": weights, "warnings": handler.texts, "seconds": seconds, "closing": closing}


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


ALL_STEPS = [32 * number for number in range(1, ITERATIONS + 1)]


def run_on_disk(folder: Path, name: str, fault: str) -> dict[str, Any]:
    """Prepare the disk, train with the logger there and a healthy one elsewhere, return what was found."""
    place = folder / "disk"
    place.mkdir(parents=True)
    healthy = folder / "healthy.jsonl"
    if fault in MOUNTED:
        assert os.system(f"mount -t tmpfs -o size=64k none {place}") == 0
    if fault == "small disk":
        (place / "filler").write_bytes(b"x" * 60 * 1024)  # one page is left
    if fault == "read-only":
        assert os.system(f"mount -o remount,ro {place}") == 0
    (victim,) = make_loggers([name], place / "run")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def harm(iteration: int) -> None:
        if iteration == 3 and fault == "deleted":
            os.rename(place / "run", place / "gone")  # at once: a logger may write into it while it is emptied
            shutil.rmtree(place / "gone", ignore_errors=True)
        if iteration == 3 and fault == "size limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))

    # the healthy one would suffer from a limit of the whole process
    others = [] if fault == "size limit" else [JsonlLogger(healthy)]
    try:
        found = train(victim, *others, at=harm)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return {**found, "healthy": steps_in(healthy) if others else ALL_STEPS}


MOUNTED = ("small disk", "read-only")
FAULTS = ("size limit", "deleted", *MOUNTED)
ON_DISK = {"jsonl": "JsonlLogger", "csv": "CsvLogger", "tensorboard": "TensorBoardLogger"}


def main(folder: Path, *faults: str) -> None:
    """Try each logger that writes to the disk with each fault."""
    found = {f"{name} {fault}": run_on_disk(folder / name / fault.replace(" ", "_"), name, fault)
             for name in ON_DISK for fault in faults}  # fmt: skip
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    JsonlLogger.patience = CsvLogger.patience = 60.0  # that a busy disk is slow is a fault of its own
    main(Path(sys.argv[1]), *sys.argv[2:])
