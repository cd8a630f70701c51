"""Does PPO learn the same on a GPU, however its steps are run? Learning curves by mode and precision, several seeds.

    python benchmarks/gpu_learning.py                    all rows, a process each, beside each other
    python benchmarks/gpu_learning.py --device cpu       the same on the CPU: eager and compiled
    python benchmarks/gpu_learning.py --render-only      run nothing; rewrite the table, draw the curves

1,024 pendulums on the device (`pendulum_on_device.py`), 32 steps each per iteration. A curve is the mean return of the
last hundred episodes after each iteration; the greedy policy is tried at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness_rows import HERE, answer, read_rows, show, started, table_parser, today, write_rows

NAME = "gpu_learning"
ROWS = (
    ("eager", "fp32"),
    ("compiled", "fp32"),
    ("graphed", "fp32"),
    ("fused", "fp32"),
    ("fused", "tf32"),
    ("fused", "bf16"),
)
NUM_ENVS, NUM_STEPS, ITERATIONS, SEEDS, EPISODES = 1024, 32, 60, (0, 1, 2), 256
SHOWN = (10, 20, 30, 45, 60)
"""The iterations in the table."""


def train(mode: str, precision: str, seed: int, device: str, iterations: int) -> dict[str, Any]:
    """Train, note the curve and play greedily."""
    import torch
    from pendulum_on_device import PendulumOnDevice

    from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
    from striderl.collect.actors.policy_actor import GreedyActor
    from striderl.collect.collector import Collector
    from striderl.execution.modes import ExecutionConfig
    from striderl.policies.policy import Policy, PolicyConfig
    from striderl.training.evaluation import evaluate
    from striderl.training.plans import OnPolicyPlan
    from striderl.training.trainer import Trainer

    allowed = "tf32" if precision != "fp32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.fp32_precision = allowed
    torch.manual_seed(seed)
    env = PendulumOnDevice(NUM_ENVS, device, seed)
    policy = Policy(
        env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(64, 64), critic_hidden_dims=(64, 64))
    )
    config = PPOConfig(
        gamma=0.95,
        lam=0.95,
        learning_rate=1e-3,
        schedule="adaptive",
        entropy_coef=0.0,
        num_learning_epochs=5,
        num_mini_batches=4,
        value_loss_coef=1.0,
        max_grad_norm=1.0,
        use_clipped_value_loss=True,
        normalize_values=True,
        use_mixed_precision=precision == "bf16",
    )
    execution = ExecutionConfig(mode="graphed" if mode == "fused" else mode, fuse=mode == "fused", strict=True)
    algorithm = PPO(policy.to(device), config, mode=execution)
    plan = OnPolicyPlan(num_steps_per_env=NUM_STEPS, total_iterations=iterations)
    collector = Collector(env, algorithm.actor())
    collector.reset(seed=seed)
    began = time.perf_counter()
    trainer = Trainer(algorithm, collector, plan, seed=seed)
    curve = [record.metrics.get("collect/return_mean", float("nan")) for record in trainer]
    seconds = time.perf_counter() - began
    result = evaluate(PendulumOnDevice(EPISODES, device), GreedyActor(policy), EPISODES, seed=10_000)
    return {
        "curve": [round(value, 2) for value in curve],
        "return": round(result.mean, 2),
        "seconds": round(seconds, 1),
    }


def train_all(mode: str, precision: str, device: str, iterations: int) -> dict[str, Any]:
    """Train one row, seed after seed."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    runs = [{"seed": seed, **train(mode, precision, seed, device, iterations)} for seed in SEEDS]
    return {"runs": runs, "device": name, "torch": torch.__version__}


def to_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table: a row per mode and precision."""
    from striderl.ops.statistics import confidence_interval, mean

    good = [row for row in rows if "failed" not in row]
    if not good:
        return "No run is recorded.\n"
    heads = " | ".join(f"at {number}" for number in SHOWN)
    lines = [
        f"| mode | precision | {heads} | greedy at the end, seed by seed | mean (95 % interval) |",
        f"| --- | --- | {' | '.join('---:' for _ in SHOWN)} | --- | --- |",
    ]
    for row in rows:
        begin = f"| {row['mode']} | {row['precision']} |"
        if "failed" in row:
            lines.append(f"{begin} {row['failed'][:90]} {'|' * (len(SHOWN) + 2)}")
            continue
        curves = [run["curve"] for run in row["runs"]]
        passed = [
            _number(mean([curve[number - 1] for curve in curves])) for number in SHOWN if number <= len(curves[0])
        ]
        values = [run["return"] for run in row["runs"]]
        low, high = confidence_interval(values)
        shown = ", ".join(_number(value) for value in values)
        spread = f"**{_number(mean(values))}** ({_number(low)} to {_number(high)})"
        lines.append(f"{begin} {' | '.join(passed)} | {shown} | {spread} |")
    where = f"{good[0]['date']}; {good[0]['device']}; torch {good[0]['torch']}"
    size = f"{NUM_ENVS:,} envs x {NUM_STEPS} steps x {len(good[0]['runs'][0]['curve'])} iterations"
    return f"{where}; {size}, {len(SEEDS)} seeds.\n\n" + "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return f"{value:.0f}".replace("-", "−")


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the curves, a colour per row and a line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for number, row in enumerate(row for row in rows if "failed" not in row):
        for run in row["runs"]:
            label = f"{row['mode']} {row['precision']}" if run is row["runs"][0] else None
            axes.plot(range(1, len(run["curve"]) + 1), run["curve"], color=f"C{number}", linewidth=0.9, label=label)
    axes.set_xlabel(f"iteration ({NUM_ENVS * NUM_STEPS:,} steps each)")
    axes.set_ylabel("mean return of 100 episodes")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything side by side, print the table and write it; returns the exit code."""
    parser = table_parser("Train PPO on a GPU in every mode and precision.", NAME)
    parser.add_argument("--device", default="cuda", help="where to train")
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="iterations of a run")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that a row may take")
    parser.add_argument("--no-plot", action="store_true", help="draw nothing: matplotlib is not needed")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.run:
        print(json.dumps(train_all(*options.run, options.device, options.iterations)))
        return 0
    if options.render_only:
        rows = read_rows(options.results)
    else:
        rows = _run_all(options)
    show(to_markdown(rows), NAME, options)
    if not options.no_plot:
        draw(rows, HERE / "plots" / f"{NAME}.png")
    return int(any("failed" in row for row in rows))


def _run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    words = ["--device", options.device, "--iterations", str(options.iterations), "--run"]
    wanted = [row for row in ROWS if options.device != "cpu" or row[0] in ("eager", "compiled")]
    processes = [started(__file__, [*words, mode, precision]) for mode, precision in wanted]
    rows = []
    for (mode, precision), process in zip(wanted, processes):
        rows.append({"mode": mode, "precision": precision, "date": today(), **answer(process, options.limit)})
        write_rows(options.results, NAME, rows)
        print({name: value for name, value in rows[-1].items() if name != "runs"}, flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
