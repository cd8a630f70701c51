"""How soon a run on the CPU is fast: time to the first iteration, to half and to full speed; where an iteration goes.

    python benchmarks/startup.py             results/startup.json and the table in README.md
    python benchmarks/startup.py --trace     docs/trace_cpu.png: one iteration, phase by phase (wants matplotlib)

    seconds   0        import, build    first iteration        half speed            full speed
              │────────────────────────────────│──────────────────────│─────────────────────│─────▶

Each start is a process of its own. The first one has empty caches (programs of striderl, torch's compiler), the second
one those that the first has left. Full speed is the median of the last third of the iterations, in env steps per
second; a speed is reached with the first iteration after which three in a row have it (nine tenths of it for full
speed). CPU seconds are those of the run and of its compilers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness_clock import machine
from harness_rows import answer, read_rows, show, started, table_parser, today, write_rows

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parent / "docs" / "trace_cpu.png"
MODES = ("eager", "auto", "compiled")
TASKS = ("PPO, 128×128, 16 envs × 128 steps, minibatch 256", "SAC, 128×128, batch 256", "PPO, quadruped, 128 envs × 24")
IN_A_ROW = 3
"""How many iterations must have a speed until it counts as reached."""


# -- one start ---------------------------------------------------------------------------------------------------------


def config_of(task: str, mode: str, iterations: int = 0) -> Any:
    """Return the run of a row; without a number of iterations it does not end."""
    from striderl.recipes.quadruped import quadruped_demo
    from striderl.recipes.table import recipe

    if "quadruped" in task:
        config = quadruped_demo()
        plan = replace(config.plan, total_steps=0, total_iterations=iterations)
    elif task.startswith("SAC"):
        config = recipe("pendulum", "sac")
        policy = replace(config.policy, actor_hidden_dims=(128, 128), critic_hidden_dims=(128, 128))
        config = replace(config, policy=policy, num_threads=1)
        plan = replace(config.plan, total_steps=0, total_iterations=iterations)
    else:
        config = recipe("pendulum", "ppo")
        policy = replace(config.policy, actor_hidden_dims=(128, 128), critic_hidden_dims=(128, 128))
        algorithm = replace(config.algorithm, num_learning_epochs=5, num_mini_batches=8)
        config = replace(
            config, policy=policy, algorithm=algorithm, env=replace(config.env, num_envs=16), num_threads=1
        )
        plan = replace(config.plan, num_steps_per_env=128, total_steps=0, total_iterations=iterations)
    return replace(config, mode=mode, switch_at="auto", plan=plan)


def run_start(task: str, mode: str, seconds: float, began: float) -> dict[str, Any]:
    """Train for so long, and return when the speeds were reached, in seconds since the process was started."""
    import torch

    from striderl.envs.tasks import make
    from striderl.training.experiment.assembly import build_learner

    config = config_of(task, mode)
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    env = make(config.env.task, num_envs=config.env.num_envs, settings=config.env.settings)
    trainer = build_learner(config, env).trainer([])
    ends, steps = [], []
    for record in trainer:
        ends.append(time.time() - began)
        steps.append(record.num_steps)
        if ends[-1] > seconds and len(ends) > 2 * IN_A_ROW:
            break
    trainer.close()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {**reached(ends, steps), "cpu": sum(each.ru_utime + each.ru_stime for each in used)}


def reached(ends: list[float], steps: list[int]) -> dict[str, float]:
    """Return when the first iteration, half and full speed were reached, and full speed in steps per second."""
    speeds = [count / (end - before) for count, end, before in zip(steps[1:], ends[1:], ends)]
    full = statistics.median(speeds[-max(1, len(speeds) // 3) :])

    def first_at(wanted: float) -> float:
        for position in range(len(speeds)):
            here = speeds[position : position + IN_A_ROW]
            if min(here) >= wanted:
                return ends[position]
        return ends[-1]

    return {"first": ends[0], "half": first_at(0.5 * full), "full": first_at(0.9 * full), "speed": full}


# -- the table ---------------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Start every row twice, with empty and with filled caches."""
    rows: list[dict[str, Any]] = []
    for task in options.only or TASKS:
        for mode in MODES:
            with tempfile.TemporaryDirectory(prefix="striderl_startup_") as caches:
                os.environ["XDG_CACHE_HOME"] = caches
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(caches) / "inductor")
                for start in ("first", "second"):
                    words = ["--start", task, mode, str(options.seconds), repr(time.time())]
                    found = answer(started(__file__, words), options.limit)
                    rows.append({"task": task, "mode": mode, "start": start, "date": today(), **found})
                    rows[-1]["machine"] = machine()
                    if not options.print_only:
                        write_rows(options.results, "startup", rows)
                    print(f"{task}, {mode}, {start} start: {found}", file=sys.stderr)
    return rows


def to_markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table of all starts."""
    if not rows:
        return "Not measured yet.\n"
    here = rows[-1]["machine"]
    lines = [
        f"{rows[-1]['date']}; {here['cpu']}, {here['cores']} cores, load before the last start {here['load_before']}.",
        "",
        "| run | mode | start | first iteration, s | half speed, s | full speed, s | steps/s then | CPU s in all |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        named = f"| {row['task']} | {row['mode']} | {row['start']} |"
        if "failed" in row:
            lines.append(f"{named} {row['failed']} | | | | |")
            continue
        times = " | ".join(f"{row[name]:.1f}" for name in ("first", "half", "full"))
        lines.append(f"{named} {times} | {row['speed']:,.0f} | {row['cpu']:.0f} |")
    return "\n".join(lines) + "\n"


# -- one iteration -----------------------------------------------------------------------------------------------------


Span = tuple[str, str, float, float]
"""Lane, kind, begin and end in seconds."""


def trace(overlap: bool, iterations: int, num_envs: int) -> list[Span]:
    """Train the quadruped, and return what happened in the iteration that took the least time."""
    from striderl.envs.tasks import make
    from striderl.training.experiment.assembly import build_learner

    config = config_of("quadruped", "eager", iterations)
    config = replace(
        config,
        env=replace(config.env, num_envs=num_envs),
        plan=replace(config.plan, overlap=overlap),
        collector=replace(config.collector, decorrelation_steps=0),
    )
    env: Any = make(config.env.task, num_envs=num_envs)
    learner = build_learner(config, env)
    trainer = learner.trainer([])
    spans: list[Span] = []

    def spanned(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            found = function(*arguments, **named)
            ahead = threading.current_thread() is not threading.main_thread()
            spans.append(("envs, ahead" if ahead else "main thread", kind, began, time.perf_counter()))
            return found

        return call

    algorithm: Any = trainer.algorithm
    env.step = spanned("simulate", env.step)
    trainer.collector.actor.act = spanned("act", trainer.collector.actor.act)
    algorithm.prepare = spanned("targets", algorithm.prepare)
    algorithm.updater.gradient_step = spanned("gradient step", algorithm.updater.gradient_step)
    algorithm.update_normalization = spanned("normalisers", algorithm.update_normalization)
    best: list[Span] = []
    before = time.perf_counter()
    for record in trainer:
        now = time.perf_counter()
        here = [
            (lane, kind, max(begin, before) - before, min(end, now) - before)
            for lane, kind, begin, end in spans
            if end > before and begin < now
        ]
        if record.iteration > 2 and (not best or now - before < max(end for *_, end in best)):
            best = here
        spans[:] = [span for span in spans if span[3] > now]
        before = time.perf_counter()
    trainer.close()
    return best


def draw(traces: dict[str, list[Span]], path: Path) -> Path:
    """Draw the iterations below each other, on one time axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    colors = {
        "simulate": "#4477aa",
        "act": "#ccbb44",
        "targets": "#228833",
        "gradient step": "#ee6677",
        "normalisers": "#aa3377",
    }
    figure, panels = pyplot.subplots(len(traces), 1, figsize=(9, 1.9 * len(traces)), sharex=True, squeeze=False)
    for panel, (title, spans) in zip(panels[:, 0], traces.items()):
        lanes = ["main thread", "envs, ahead"] if any(lane == "envs, ahead" for lane, *_ in spans) else ["main thread"]
        for lane, kind, begin, end in spans:
            panel.broken_barh([(1e3 * begin, 1e3 * (end - begin))], (lanes.index(lane) - 0.4, 0.8), color=colors[kind])
        panel.set_yticks(range(len(lanes)), lanes)
        panel.set_ylim(len(lanes) - 0.4, -0.6)
        length = max(end for *_, end in spans)
        panel.set_title(f"{title}: {1e3 * length:,.0f} ms", loc="left", fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlabel("milliseconds")
    figure.legend(
        handles=[Patch(color=color, label=kind) for kind, color in colors.items()],
        loc="lower center", ncols=len(colors), frameon=False, fontsize=9,
    )  # fmt: skip
    figure.tight_layout(rect=(0.0, 0.07, 1.0, 1.0))
    figure.savefig(path, dpi=120)
    return path


def main() -> int:
    """Measure, draw, or serve one start."""
    parser = table_parser("How soon a run on the CPU is fast.", "startup")
    parser.add_argument("--only", action="append", choices=TASKS, default=[], help="one of the runs; may be repeated")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a start is trained")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a start has failed")
    parser.add_argument("--trace", action="store_true", help="draw one iteration in place of measuring starts")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="file of the drawing")
    parser.add_argument("--envs", type=int, default=128, help="quadrupeds of the drawing")
    parser.add_argument("--start", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        task, mode, seconds, began = options.start
        print(json.dumps(run_start(task, mode, float(seconds), float(began))))
        return 0
    if options.trace:
        kinds = {"one after the other": False, "with overlap": True}
        print(draw({name: trace(kind, 12, options.envs) for name, kind in kinds.items()}, options.picture))
        return 0
    rows = read_rows(options.results) if options.render_only else measure(options)
    show(to_markdown(rows), "startup", options)
    return int(any("failed" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
