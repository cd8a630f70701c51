"""Train every algorithm with its defaults and tell what it reaches: `python benchmarks/learning.py --defaults`.

    row of learning_defaults.py, seed ─▶ new interpreter ─▶ results/learning_defaults.json ─▶ table in README.md

A run is over when 20 greedy episodes are better than the target, or at the budget; then 32 greedy episodes in new envs,
whose seed training has not seen, are its result. A run that is recorded with the settings of today is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import harness_clock
from harness_process import ONE_THREAD
from harness_rows import HERE, show
from learning import EPISODES, FINAL_SEED, add_run, load_runs

NAME = "learning_defaults"
SEEDS = (0, 1, 2, 3, 4)
EVALUATIONS = 20
"""How often training is looked at within the budget, and greedy episodes each time."""
EVALUATION_SEED = 5_000
Run = dict[str, Any]


# -- one run, in a process of its own ----------------------------------------------------------------------------------


def train(key: str, seed: int, mode: str, device: str) -> Run:
    """Train with the defaults until an evaluation is good or the budget is spent, and play greedily."""
    import torch
    from learning_data import make_env
    from learning_defaults import ROWS, Where

    from striderl.collect import GreedyActor
    from striderl.training import Trainer

    torch.set_num_threads(1)
    row = ROWS[key]
    machine = harness_clock.machine()
    torch.manual_seed(seed)
    env = make_env(row.task, row.num_envs, device)
    algorithm, source, plan = row.build(env, Where(mode, device, seed), row.steps)
    greedy = GreedyActor(algorithm.policy)
    wall, cpu = time.perf_counter(), time.process_time()
    trainer = Trainer(algorithm, source, plan, seed=seed)
    curve: list[list[float]] = []
    steps, due = 0, row.steps / EVALUATIONS
    for record in trainer:
        steps = record.step
        if steps >= due:
            due = steps + row.steps / EVALUATIONS
            curve.append([steps, _mean(_played(row.task, greedy, EVALUATIONS, EVALUATION_SEED, device))])
            if curve[-1][1] >= row.stop:
                break
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    final = _played(row.task, greedy, EPISODES, FINAL_SEED, device)
    return {
        "key": key,
        "seed": seed,
        "steps": steps,
        "value": _mean(final),
        "final": [float(f"{value:.6g}") for value in final],
        "curve": curve,
        "mode": mode,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "wall_seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": machine,
        "versions": {name: importlib.metadata.version(name) for name in ("numpy", "torch")},
        "settings": {"budget": row.steps, "num_envs": row.num_envs, **_settings(algorithm, plan)},
    }


def _played(task: str, greedy: Any, episodes: int, seed: int, device: str) -> tuple[float, ...]:
    from learning_data import make_env

    from striderl.training import evaluate

    with make_env(task, episodes, device) as env:
        returns: tuple[float, ...] = evaluate(env, greedy, episodes, seed=seed).returns
    return returns


def _mean(values: Sequence[float]) -> float:
    return float(f"{sum(values) / len(values):.6g}")


def _settings(algorithm: Any, plan: Any) -> dict[str, Any]:
    """Return the configs of all parts as JSON has them, without the mode, which decides nothing about learning."""
    parts = {"algorithm": algorithm, "policy": algorithm.policy, "critic": vars(algorithm).get("critic")}
    found = {name: vars(part).get("config") for name, part in parts.items() if part is not None}
    found |= {"sequence": vars(algorithm).get("sequence"), "plan": plan}
    plain = {name: dataclasses.asdict(each) for name, each in found.items() if dataclasses.is_dataclass(each)}
    plain["algorithm"].pop("mode", None)
    answer: dict[str, Any] = json.loads(json.dumps(plain, default=str))
    return answer


def same_settings(recorded: Any, today: Any) -> bool:
    """Return whether a run was made with today's settings; one that came later was at its default, as today's are."""
    if isinstance(recorded, dict) and isinstance(today, dict):
        return all(name in today and same_settings(value, today[name]) for name, value in recorded.items())
    return bool(recorded == today)


def settings_today(key: str) -> dict[str, Any]:
    """Return what a run of a row would record as its settings."""
    from learning_data import make_env
    from learning_defaults import ROWS, Where

    row = ROWS[key]
    env = make_env(row.task, row.num_envs)
    algorithm, _, plan = row.build(env, Where(), row.steps)
    return {"budget": row.steps, "num_envs": row.num_envs, **_settings(algorithm, plan)}


# -- all runs ----------------------------------------------------------------------------------------------------------


def train_apart(key: str, seed: int, mode: str, device: str, results: Path) -> str:
    """Train in a new interpreter and record the run; returns what went wrong, or nothing."""
    command = [sys.executable, str(HERE / "learning.py"), "--defaults", "--mode", mode, "--device", device]
    command += ["--train", key, str(seed)]
    done = subprocess.run(command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{key}, seed {seed}: exit code {done.returncode}\n{done.stderr[-3000:]}"
    run: Run = json.loads(done.stdout.splitlines()[-1])
    add_run(results, run, list(_rows()), NAME)
    print(
        f"{key}, seed {seed}: {run['value']:.0f} after {run['steps']:,} steps, {run['cpu_seconds']:.0f} CPU s, "
        f"{run['wall_seconds']:.0f} s",
        flush=True,
    )
    return ""


def train_all(wanted: Sequence[tuple[str, int]], options: argparse.Namespace) -> list[str]:
    """Train and record, so many at a time; returns what went wrong."""
    problems: list[str] = []
    with ThreadPoolExecutor(options.processes) as pool:
        started = [pool.submit(train_apart, *each, options.mode, options.device, options.results) for each in wanted]
        for future in as_completed(started):
            problem = future.result()
            if problem:
                problems.append(problem)
                print(f"FAILED {problem}", file=sys.stderr, flush=True)
    return problems


def main(options: argparse.Namespace) -> int:
    """Run what is asked for, print the table and write it; returns the exit code."""
    if options.train:
        key, seed = options.train
        print(json.dumps(train(key, int(seed), options.mode, options.device)))
        return 0
    problems: list[str] = []
    if not options.render_only:
        from learning_data import make_data

        make_data({task for key in options.tasks if (task := _rows()[key].data)})
        today = {key: settings_today(key) for key in options.tasks}
        recorded = [] if options.again else load_runs(options.results)
        over = {(run["key"], run["seed"]) for run in recorded if same_settings(run["settings"], today.get(run["key"]))}
        # seed by seed, so that an interrupted campaign has a bit of every row
        wanted = [(key, seed) for seed in options.seeds or SEEDS for key in options.tasks if (key, seed) not in over]
        problems = train_all(wanted, options)
    runs = load_runs(options.results)
    if not runs:
        print("no run is recorded, so there is no table", file=sys.stderr)
        return 1
    show(to_markdown(runs), NAME, options)
    return int(bool(problems))


# -- the table ---------------------------------------------------------------------------------------------------------


def _rows() -> Mapping[str, Any]:
    from learning_defaults import ROWS

    return ROWS


def to_markdown(runs: Sequence[Run]) -> str:
    """Return the conditions and a table with a row per algorithm; what was not run is named."""
    head = (
        "| algorithm | task | given | budget | target | final, seed by seed | at the target | steps | run on |\n"
        "| --- | --- | --- | ---: | ---: | --- | --- | --- | --- |"
    )
    rows = _rows()
    by_key = {key: [run for run in runs if run["key"] == key] for key in rows}
    lines = [_row(rows[key], found) for key, found in by_key.items()]
    return "\n\n".join([_conditions(runs), "\n".join([head, *lines])]) + "\n"


def _row(row: Any, runs: Sequence[Run]) -> str:
    envs = "1 env" if row.num_envs == 1 else f"{row.num_envs} envs"
    unit = " updates" if row.given == "expert data" else ""
    good = sum(row.reached(run["value"]) for run in runs)
    places = sorted({f"{run['device']}, {run['mode']}" for run in runs})
    cells = [
        row.title,
        row.task if unit else f"{row.task}, {envs}",
        row.given or "–",
        f"{row.steps:,}{unit}",
        f"≥ {row.target:g}".replace("-", "−"),
        ", ".join(row.text(run["value"]) for run in runs) or "not run yet",
        f"**{good} of {len(runs)}**" if runs else "–",
        ", ".join(f"{run['steps'] / 1000:.0f}k" for run in runs) or "–",
        " / ".join(places) or "–",
    ]
    return f"| {' | '.join(cells)} |"


def _conditions(runs: Sequence[Run]) -> str:
    machines = {f"{run['machine']['cpu']}, {run['machine']['cores']} cores" for run in runs}
    versions = {f"{name} {version}" for run in runs for name, version in run["versions"].items()}
    dates = sorted({run["date"] for run in runs})
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"{days}; {'; '.join(sorted(machines))}; {', '.join(sorted(versions))}."
