"""Does PPO learn the same on a GPU, however its steps are run? Pendulum by mode and precision, several seeds each.

    python benchmarks/gpu_learning.py                    all rows, their runs beside each other
    python benchmarks/gpu_learning.py --render-only      run nothing; rewrite the table

Every run is the recipe of Pendulum-v1 with another device, mode and precision; the greedy policy is tried at the end.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness_markdown import splice_file

HERE = Path(__file__).resolve().parent
NAME = "gpu_learning"
ROWS = (("eager", "fp32"), ("graphed", "fp32"), ("graphed", "tf32"), ("graphed", "bf16"))
STEPS, SEEDS, EPISODES = 150_000, (0, 1, 2), 32


def train(mode: str, precision: str, seed: int, device: str, steps: int) -> dict[str, Any]:
    """Train the recipe and play greedily."""
    import torch

    from striderl.envs.on_device import OnDevice
    from striderl.envs.tasks import make
    from striderl.recipes.table import recipe
    from striderl.training.evaluation import evaluate
    from striderl.training.run import Run
    from striderl.training.run_config import CheckpointSettings, EvaluationSettings, LoggingSettings, StopSettings
    from striderl.training.run_folder import RunFolder

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    config = recipe("pendulum", "ppo")
    config = replace(
        config,
        algorithm=replace(config.algorithm, use_mixed_precision=precision == "bf16"),
        plan=replace(config.plan, total_steps=steps),
        stop=StopSettings(),
        evaluation=EvaluationSettings(every=0),
        checkpoints=CheckpointSettings(every=0, best=""),
        logging=LoggingSettings(console="off"),
        seed=seed,
        device=device,
        mode=mode,
        num_threads=1,
    )
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, RunFolder(folder))
        run.drive()
        seconds = time.perf_counter() - started
        with OnDevice(make("pendulum", num_envs=EPISODES), device) as env:
            result = evaluate(env, run.learner.greedy, EPISODES, seed=10_000)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {"return": result.mean, "seconds": seconds, "device": name, "torch": torch.__version__}


def to_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table: a row per mode and precision."""
    from striderl.ops.statistics import confidence_interval, mean

    good = [row for row in rows if "failed" not in row]
    if not good:
        return "No run is recorded.\n"
    lines = ["| mode | precision | greedy return, seed by seed | mean (95 % interval) |", "| --- | --- | --- | --- |"]
    for mode, precision in ROWS:
        mine = [row for row in rows if (row["mode"], row["precision"]) == (mode, precision)]
        values = [row["return"] for row in mine if "failed" not in row]
        shown = ", ".join(f"{row['return']:.0f}" if "failed" not in row else row["failed"][:60] for row in mine)
        spread = ""
        if len(values) > 1:
            low, high = confidence_interval(values)
            spread = f"**{mean(values):.0f}** ({low:.0f} to {high:.0f})"
        lines.append(f"| {mode} | {precision} | {shown} | {spread} |".replace("-", "−").replace("| −−−", "| ---"))
    conditions = f"{good[0]['date']}; {good[0]['device']}; torch {good[0]['torch']}; {STEPS:,} steps."
    return f"{conditions}\n\n" + "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything side by side, print the table and write it; returns the exit code."""
    parser = argparse.ArgumentParser(description="Train PPO on a GPU in every mode and precision.")
    parser.add_argument("--device", default="cuda", help="where to train")
    parser.add_argument("--steps", type=int, default=STEPS, help="env steps of a run")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds that a run may take")
    parser.add_argument("--render-only", action="store_true", help="run nothing; print and write the table")
    parser.add_argument("--print-only", action="store_true", help="leave README.md as it is")
    parser.add_argument("--results", type=Path, default=HERE / "results" / f"{NAME}.json", help="file of the results")
    parser.add_argument("--readme", type=Path, default=HERE / "README.md", help="file with the markers")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.run:
        mode, precision, seed = options.run
        print(json.dumps(train(mode, precision, int(seed), options.device, options.steps)))
        return 0
    if options.render_only:
        rows = json.loads(options.results.read_text(encoding="utf-8"))["runs"]
    else:
        rows = _run_all(options)
        options.results.parent.mkdir(parents=True, exist_ok=True)
        options.results.write_text(json.dumps({"name": NAME, "runs": rows}, indent=1) + "\n", encoding="utf-8")
    text = to_markdown(rows)
    print(f"\n{text}")
    if not options.print_only:
        splice_file(options.readme, NAME, text)
    return int(any("failed" in row for row in rows))


def _run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    command = [sys.executable, str(Path(__file__).resolve()), "--device", options.device, "--steps", str(options.steps)]
    runs = [(mode, precision, seed) for mode, precision in ROWS for seed in SEEDS]
    started = [
        subprocess.Popen(
            [*command, "--run", mode, precision, str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for mode, precision, seed in runs
    ]
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    rows = []
    for (mode, precision, seed), process in zip(runs, started):
        row = {"mode": mode, "precision": precision, "seed": seed, "date": today}
        try:
            out, error = process.communicate(timeout=options.limit)
            last = (error.strip().splitlines() or ["no message"])[-1]
            found = {"failed": last} if process.returncode else json.loads(out.splitlines()[-1])
        except subprocess.TimeoutExpired:
            process.kill()
            found = {"failed": f"took more than {options.limit:g} s"}
        rows.append({**row, **found})
        print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
