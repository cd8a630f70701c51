"""Do the recipes learn? Train them with several seeds and tell what the greedy policies reach.

    python benchmarks/learning.py                                       the four tasks of the table, all their seeds
    python benchmarks/learning.py --tasks cartpole pendulum --seeds 0 1 2 --processes 2
    python benchmarks/learning.py --defaults                            every algorithm with its own defaults instead
    python benchmarks/learning.py --render-only                         run nothing; rewrite the table

    recipe ─▶ Run, to the last step of the budget ─▶ greedy episodes in new envs ─▶ results/learning.json ─▶ README.md
                └ greedy episodes every so often: steps to the target

A run is the recipe with three changes: it goes on to the last step of the budget instead of stopping at a target,
it saves no checkpoints, and it has one thread. Every run has an interpreter of its own. One that is in the results with
the settings that the recipe has today is not run again, unless --again says so; each is recorded as soon as it is over.

With --defaults the rows are those of learning_defaults.py: no recipe, but `Algorithm(policy)` as it comes, with the
default plan. Such a run ends when an evaluation is better than the target, or at the budget. Results go to
results/learning_defaults.json and into a table of their own.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness_clock
from harness_process import ONE_THREAD
from harness_rows import show, table_parser
from learning_tasks import GOALS, USUAL, Goal

if TYPE_CHECKING:
    from striderl.training.experiment.run_config import RunConfig

NAME = "learning"
EPISODES = 32
"""Greedy episodes after training."""
FINAL_SEED = 10_000
"""The seed of their envs; that of the evaluations during training is another."""
PACKAGES = ("gymnasium", "mujoco", "numpy", "striderl", "torch")
Run = dict[str, Any]
"""One run as plain data: what was trained, what it reached, where and how long."""


# -- one run, in a process of its own ----------------------------------------------------------------------------------


def settings_of(goal: Goal, seed: int) -> RunConfig[Any, Any]:
    """Return the recipe as it is run here."""
    from striderl.recipes.table import recipe
    from striderl.training.experiment.run_config import CheckpointSettings, LoggingSettings, StopSettings

    config = recipe(*goal.recipe)
    return replace(
        config,
        env=replace(config.env, settings={**config.env.settings, **goal.settings}),
        plan=replace(config.plan, total_steps=goal.steps),
        stop=StopSettings(),
        checkpoints=CheckpointSettings(every=0, best=""),
        logging=LoggingSettings(console="off"),
        seed=seed,
        num_threads=1,
    )


def train(key: str, seed: int) -> Run:
    """Train to the budget, play greedily, and return everything worth keeping."""
    from striderl.training.experiment.run import Run as TrainingRun
    from striderl.training.experiment.run_folder import RunFolder

    goal = GOALS[key]
    config = settings_of(goal, seed)
    machine = harness_clock.machine()
    wall, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = TrainingRun(config, RunFolder(folder))
        outcome = run.drive()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        curve = read_curve(RunFolder(folder).json_lines, goal.metric)
    assert outcome.record is not None, "a run with a budget has records"
    final = play(config.env.task, config.env.settings, run.learner.greedy)
    twin = play(f"gymnasium:{goal.gymnasium}", {}, run.learner.greedy) if goal.gymnasium else {}
    return {
        "key": key,
        "seed": seed,
        "steps": outcome.record.env_steps,
        "final": final,
        "gymnasium": twin.get(goal.metric, []),
        "value": sum(final[goal.metric]) / len(final[goal.metric]),
        "curve": curve,
        "wall_seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": machine,
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "settings": plain_settings(config),
    }


def read_curve(path: Path, metric: str) -> list[list[float]]:
    """Return [steps, value] of every greedy evaluation during training."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    name = f"evaluate/{metric}"
    return [[row["progress/env_steps"], float(f"{row[name]:.5g}")] for row in rows if row.get(name) is not None]


def play(task: str, settings: Mapping[str, Any], greedy: Any) -> dict[str, list[float]]:
    """Play the final episodes in new envs; returns what each of them gave, by metric."""
    from striderl.envs.tasks import make
    from striderl.training.evaluation import evaluate

    with make(task, num_envs=EPISODES, settings=settings) as env:
        result = evaluate(env, greedy, EPISODES, seed=FINAL_SEED)
    found = {"return_mean": result.returns, **result.metrics}
    return {name: [float(f"{value:.6g}") for value in values] for name, values in found.items()}


def plain_settings(config: RunConfig[Any, Any]) -> dict[str, Any]:
    """Return what decides how a run learns, as JSON has it."""
    from striderl.training.experiment.config_json import to_plain

    parts = ("env", "policy", "algorithm_name", "algorithm", "terms", "collector", "plan")
    plain = to_plain(config)
    found: dict[str, Any] = json.loads(json.dumps({part: plain[part] for part in parts}))
    return found


# -- all runs ----------------------------------------------------------------------------------------------------------


def load_runs(path: Path) -> list[Run]:
    """Read the runs that are over."""
    if not path.exists():
        return []
    found: list[Run] = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return found


def add_run(path: Path, run: Run, keys: Sequence[str] = tuple(GOALS), name: str = NAME) -> None:
    """Record a run in place of an older one of the same seed, in the order of keys; the file is whole at any time."""
    runs = [old for old in load_runs(path) if (old["key"], old["seed"]) != (run["key"], run["seed"])]
    order = {key: place for place, key in enumerate(keys)}
    runs = sorted([*runs, run], key=lambda each: (order[each["key"]], each["seed"]))
    lines = ",\n".join(f"  {json.dumps(each, ensure_ascii=False)}" for each in runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(f'{{"name": "{name}", "runs": [\n{lines}\n]}}\n', encoding="utf-8")
    os.replace(temporary, path)


def is_over(runs: Sequence[Run], key: str, seed: int) -> bool:
    """Tell whether a run with today's settings is recorded; a setting that did not exist then does not count."""
    today = plain_settings(settings_of(GOALS[key], seed))
    return any((run["key"], run["seed"]) == (key, seed) and _agree(run["settings"], today) for run in runs)


def _agree(recorded: Any, today: Any) -> bool:
    if isinstance(recorded, dict) and isinstance(today, dict):
        return all(name in today and _agree(value, today[name]) for name, value in recorded.items())
    return bool(recorded == today)


def train_apart(key: str, seed: int) -> Run:
    """Train in a new interpreter with one thread; what it says on stderr is shown if it fails."""
    command = [sys.executable, str(Path(__file__).resolve()), "--train", key, str(seed)]
    done = subprocess.run(command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{key}, seed {seed}: exit code {done.returncode}\n{done.stderr}")
    found: Run = json.loads(done.stdout.splitlines()[-1])
    return found


def train_all(wanted: Sequence[tuple[str, int]], num_processes: int, path: Path) -> list[str]:
    """Train and record, so many at a time; returns what went wrong."""
    problems: list[str] = []
    with ThreadPoolExecutor(num_processes) as pool:
        for future in as_completed([pool.submit(train_apart, key, seed) for key, seed in wanted]):
            try:
                run = future.result()
            except RuntimeError as failure:
                problems.append(str(failure))
                print(f"FAILED {failure}", file=sys.stderr)
                continue
            add_run(path, run)
            goal = GOALS[run["key"]]
            print(
                f"{goal.title}, seed {run['seed']}: {goal.text(run['value'])}{goal.unit} after {run['steps']:,} steps, "
                f"{run['cpu_seconds']:.0f} CPU s, {run['wall_seconds']:.0f} s",
                flush=True,
            )
    return problems


# -- the table ---------------------------------------------------------------------------------------------------------


def to_markdown(runs: Sequence[Run]) -> str:
    """Return the conditions and a table with a row per task."""
    head = (
        "| task | steps | target | final, seed by seed | mean (95 % interval) | steps to target | CPU s | wall s |\n"
        "| --- | ---: | ---: | --- | --- | --- | ---: | ---: |"
    )
    by_key = {key: [run for run in runs if run["key"] == key] for key in GOALS}
    rows = [_row(GOALS[key], found) for key, found in by_key.items() if found]
    reached = [_sentence(GOALS[key], found) for key, found in by_key.items() if found]
    return "\n\n".join([_conditions(runs), "\n".join([head, *rows]), "\n".join(reached)]) + "\n"


def _row(goal: Goal, runs: Sequence[Run]) -> str:
    from striderl.ops.statistics import confidence_interval, mean

    values = [run["value"] for run in runs]
    low, high = confidence_interval(values)
    interval = f" ({goal.text(low)} to {goal.text(high)})" if len(values) > 1 else " (one seed)"
    sign = "≤" if goal.lower_is_better else "≥"
    cells = [
        goal.title,
        " / ".join(f"{steps:,}" for steps in sorted({run["settings"]["plan"]["total_steps"] for run in runs})),
        f"{sign} {goal.target:g}{goal.unit}".replace("-", "−"),
        ", ".join(map(goal.text, values)),
        f"**{goal.text(mean(values))}**{interval}",
        ", ".join(_steps_to_target(goal, run) for run in runs),
        f"{mean([run['cpu_seconds'] for run in runs]):.0f}",
        f"{mean([run['wall_seconds'] for run in runs]):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _steps_to_target(goal: Goal, run: Run) -> str:
    """Return when an evaluation during training was first as good as the target."""
    return next((f"{round(steps / 1000):,}k" for steps, value in run["curve"] if goal.reached(value)), "never")


def _sentence(goal: Goal, runs: Sequence[Run]) -> str:
    """Say how many seeds are good, and what the same policies reach in Gymnasium's own env."""
    from striderl.ops.statistics import mean

    good = sum(goal.reached(run["value"]) for run in runs)
    twins = [goal.text(mean(run["gymnasium"])) if run.get("gymnasium") else "not tried" for run in runs]
    also = f" In Gymnasium's own {goal.gymnasium} they reach {', '.join(twins)}." if goal.gymnasium else ""
    return f"- {goal.title}: {good} of {len(runs)} seeds end at the target or better.{also}"


def _conditions(runs: Sequence[Run]) -> str:
    """Return when, where and with what; several of each where runs of several days are in the table."""
    machines = {f"{run['machine']['cpu']}, {run['machine']['cores']} cores" for run in runs}
    pythons = {f"Python {run['machine']['python']}" for run in runs}
    versions = {f"{name} {version}" for run in runs for name, version in run["versions"].items()}
    dates = sorted({run["date"] for run in runs})
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"{days}; {'; '.join(sorted(machines))}, {', '.join(sorted(pythons))}; {', '.join(sorted(versions))}."


# -- command line ------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for, print the table and write it; returns the exit code."""
    options = _parse(arguments)
    if options.defaults:
        import learning_trials

        return learning_trials.main(options)
    if options.train:
        key, seed = options.train
        print(json.dumps(train(key, int(seed))))
        return 0
    problems: list[str] = []
    if not options.render_only:
        wanted = [(key, seed) for key in options.tasks for seed in options.seeds or GOALS[key].seeds]
        recorded = [] if options.again else load_runs(options.results)
        wanted = [each for each in wanted if not is_over(recorded, *each)]
        problems = train_all(wanted, options.processes, options.results)
    runs = load_runs(options.results)
    if not runs:
        print("no run is recorded, so there is no table", file=sys.stderr)
        return 1
    show(to_markdown(runs), NAME, options)
    return int(bool(problems))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = table_parser("Train the recipes with several seeds; tell what they reach.", NAME)
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help=f"rows, of {', '.join(GOALS)}; or of the defaults")
    parser.add_argument("--seeds", nargs="+", type=int, help="instead of each task's own: 0 to 4, or 0 to 2")
    parser.add_argument("--defaults", action="store_true", help="every algorithm with its own defaults")
    parser.add_argument("--mode", default="eager", help="of gradient steps, with --defaults")
    parser.add_argument("--device", default="cpu", help="with --defaults")
    parser.add_argument("--processes", type=int, default=1, help="how many runs at a time")
    parser.add_argument("--again", action="store_true", help="run what is recorded as well")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.processes < 1:
        parser.error(f"--processes is at least 1, found {options.processes}")
    return _with_rows(options, parser)


def _with_rows(options: argparse.Namespace, parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Fill in the rows and the file of the table that is asked for; a row that it does not have is an error."""
    known: Sequence[str] = tuple(GOALS)
    usual: Sequence[str] = USUAL
    if options.defaults:
        from learning_defaults import ROWS

        known = usual = tuple(ROWS)
        if options.results.stem == NAME:
            options.results = options.results.with_stem("learning_defaults")
    elif (options.mode, options.device) != ("eager", "cpu"):
        parser.error("--mode and --device are for --defaults; recipes have their own")
    options.tasks = options.tasks or usual
    unknown = [name for name in options.tasks if name not in known]
    if unknown:
        parser.error(f"--tasks: there is no {unknown[0]!r}; choose from {', '.join(known)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
