"""Reward against wall clock on mjlab's Go1 flat task: rsl_rl, and this library as its algorithm, its runner, FastSAC.

    python benchmarks/gpu_mjlab.py [--seconds 100] [--only rsl_rl runner …] [--out FOLDER]

Each contender trains in a process of its own, one after the other. Time runs from the call of `learn`, first iterations
and their compiling included; building the env is not counted. `Train/mean_reward` is read from the TensorBoard files
that both sides write. The first process only steps the env, so that its physics kernels are compiled for all.

mjlab is packed for a machine without a network by `../shared/tools/mjlab_bundle.sh`; packages that only show or upload
things may be missing there, and are replaced by empty modules.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import json
import os
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

TASK = "Mjlab-Velocity-Flat-Unitree-Go1"
SHOWN_ONLY = ("wandb", "torchrunx", "mediapy", "mjviser", "viser", "IPython", "imageio_ffmpeg")
GOALS = (20.0, 30.0, 40.0, 50.0)

CONTENDERS: dict[str, dict[str, Any]] = {
    "rsl_rl": {},
    "hook": {"algorithm": "striderl.rsl_rl:PPO"},
    "runner": {"runner": True},
    "runner 8192x12": {"runner": True, "envs": 8192, "steps": 12},
    "runner 8192x12, 8 epochs": {"runner": True, "envs": 8192, "steps": 12, "epochs": 8},
    "runner 4096x12, 8 epochs": {"runner": True, "envs": 4096, "steps": 12, "epochs": 8},
    "runner 16384x6": {"runner": True, "envs": 16384, "steps": 6},
    "hook 16384x6": {"algorithm": "striderl.rsl_rl:PPO", "envs": 16384, "steps": 6},
    "compiled first": {"runner": True, "execution": {"mode": "graphed"}},
    "rsl_rl 8192x12": {"envs": 8192, "steps": 12},
    "fast_sac": {"algorithm": "striderl.rsl_rl:FastSAC", "envs": 1024},
}


class TimeIsUpError(Exception):
    """Ends `learn` from inside the env."""


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules in place of packages that are not here."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in SHOWN_ONLY:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        # classes are inherited from, and everything else is called
        module.__getattr__ = lambda name: type(name, (), {}) if name[:1].isupper() else MagicMock()  # type: ignore[method-assign]
        return module

    def exec_module(self, module: Any) -> None:
        pass


def build(num_envs: int, device: str) -> tuple[Any, Any]:
    """Return the env as mjlab's train makes it, and the agent's config."""
    sys.meta_path.insert(0, _StandIns())
    import mjlab.tasks
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.rl import RslRlVecEnvWrapper
    from mjlab.tasks.registry import load_env_cfg, load_rl_cfg
    from mjlab.utils.torch import configure_torch_backends

    assert mjlab.tasks is not None
    configure_torch_backends()
    config, agent = load_env_cfg(TASK), load_rl_cfg(TASK)
    config.scene.num_envs, config.seed = num_envs, agent.seed
    return RslRlVecEnvWrapper(ManagerBasedRlEnv(cfg=config, device=device), clip_actions=agent.clip_actions), agent


def train(name: str, seconds: float, folder: Path, device: str) -> None:
    """Train one contender and print its curve as JSON."""
    from dataclasses import asdict

    import torch

    chosen = CONTENDERS.get(name, {})
    env, agent = build(chosen.get("envs", 4096), device)
    if name == "warm up":
        for _ in range(3):
            env.step(torch.zeros(env.num_envs, env.num_actions, device=device))
        print(json.dumps({"name": name}))
        return
    agent.logger, agent.save_interval, agent.upload_model = "tensorboard", 10_000, False
    agent.num_steps_per_env = chosen.get("steps", agent.num_steps_per_env)
    agent.algorithm.num_learning_epochs = chosen.get("epochs", agent.algorithm.num_learning_epochs)
    agent.algorithm.class_name = chosen.get("algorithm", "PPO")
    settings = asdict(agent)
    if "execution" in chosen:
        settings["algorithm"]["execution"] = chosen["execution"]
    if "FastSAC" in agent.algorithm.class_name:
        settings["num_steps_per_env"] = 8
    if chosen.get("runner"):
        from striderl.training import OnPolicyRunner as Runner
    else:
        from mjlab.rl import MjlabOnPolicyRunner as Runner
    runner = Runner(env, settings, str(folder), device)
    inner, begun, steps = env.step, time.time(), 0

    def step(actions: Any) -> Any:
        nonlocal steps
        if time.time() - begun > seconds:
            raise TimeIsUpError
        steps += 1
        return inner(actions)

    env.step = step
    begun = time.time()
    with contextlib.suppress(TimeIsUpError):
        runner.learn(num_learning_iterations=100_000, init_at_random_ep_len=True)
    curve, iterations = read_curve(folder, begun)
    print(json.dumps({
        "name": name, "steps": steps, "envs": env.num_envs, "iterations": iterations, "curve": curve,
        "gpu_gib": torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else 0.0,
    }))  # fmt: skip


def read_curve(folder: Path, begun: float) -> tuple[list[tuple[float, float]], list[float]]:
    """Return (seconds, mean reward) and when iterations ended."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    tags = found.Tags()["scalars"]
    name = "Train/mean_reward"
    curve = [(each.wall_time - begun, each.value) for each in found.Scalars(name)] if name in tags else []
    ends = next((tag for tag in tags if tag.startswith("Loss/")), None)
    return curve, [each.wall_time - begun for each in found.Scalars(ends)] if ends else []


def main() -> None:
    """Run every contender in a process of its own and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS))
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--contender", default="")
    given = parser.parse_args()
    if given.contender:
        with tempfile.TemporaryDirectory() as folder:
            train(given.contender, given.seconds, Path(folder) / "log", given.device)
        return
    rows = []
    for name in ["warm up", *given.only]:
        begun = time.time()
        words = [sys.executable, __file__, "--contender", name, "--seconds", str(given.seconds)]
        done = subprocess.run(
            [*words, "--device", given.device], env={**os.environ, "MUJOCO_GL": "disable"}, text=True,
            capture_output=True,
        )  # fmt: skip
        print(f"{name}: {time.time() - begun:.0f} s, exit {done.returncode}", flush=True)
        if done.returncode:
            print(done.stderr[-3000:], flush=True)
        elif name != "warm up":
            rows.append(json.loads(done.stdout.strip().splitlines()[-1]))
            show(rows[-1])
            warnings = [line for line in done.stderr.splitlines() if "striderl" in line or "warning" in line.lower()]
            print("\n".join(warnings[-5:]), flush=True)
        if given.out is not None:
            (given.out / "mjlab.json").write_text(json.dumps(rows))
    print(
        "| | envs | first iteration, s | iterations | " + " | ".join(f"reward {goal:.0f}, s" for goal in GOALS) + " |"
    )
    print("|---|---:|---:|---:|" + "---:|" * len(GOALS))
    for row in rows:
        print(line_of(row))


def line_of(row: dict[str, Any]) -> str:
    """Return a contender's line of the table."""
    reached = [next((seconds for seconds, reward in row["curve"] if reward >= goal), None) for goal in GOALS]
    first = row["iterations"][0] if row["iterations"] else float("nan")
    cells = [f"{each:.0f}" if each is not None else "–" for each in reached]
    return f"| {row['name']} | {row['envs']} | {first:.1f} | {len(row['iterations'])} | {' | '.join(cells)} |"


def show(row: dict[str, Any]) -> None:
    """Print a curve, thinned."""
    every = max(1, len(row["curve"]) // 15)
    print("   " + "  ".join(f"{seconds:.0f}s:{reward:.1f}" for seconds, reward in row["curve"][::every]), flush=True)
    print("  ", line_of(row), f"{row['gpu_gib']:.1f} GiB, env steps {row['steps']}", flush=True)


if __name__ == "__main__":
    main()
