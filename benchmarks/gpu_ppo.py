"""PPO on a GPU beside rsl_rl: milliseconds of a rollout, of its returns and of an update.

    python benchmarks/gpu_ppo.py                         the usual rows
    python benchmarks/gpu_ppo.py --only mlp tf32         rows whose name has all these words
    python benchmarks/gpu_ppo.py --sizes 1024 4096       one row per number of envs, for how cost grows
    python benchmarks/gpu_ppo.py --render-only           run nothing; rewrite the table

The env is a table of ready tensors. Every row has a process of its own. Numbers go to results/gpu_ppo.json and into
README.md; a row that failed, or a peer that is not installed, says so.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Sequence
from typing import Any

from gpu_tasks import GpuTask
from harness_rows import answer, read_rows, show, started, table_parser, today, write_rows

NAME = "gpu_ppo"

ROWS: tuple[tuple[str, GpuTask], ...] = (
    ("striderl", GpuTask(mode="eager", precision="fp32")),
    ("striderl", GpuTask(mode="eager")),
    ("striderl", GpuTask(mode="graphed")),
    ("striderl", GpuTask(mode="fused", precision="fp32")),
    ("striderl", GpuTask(mode="fused")),
    ("striderl", GpuTask(mode="fused", precision="bf16")),
    ("rsl_rl", GpuTask(mode="eager", precision="fp32")),
    ("rsl_rl", GpuTask(mode="eager")),
    ("rsl_rl", GpuTask(mode="compiled")),
    ("striderl", GpuTask(kind="lstm", mode="eager")),
    ("striderl", GpuTask(kind="lstm", mode="graphed")),
    ("striderl", GpuTask(kind="lstm", mode="fused")),
    ("striderl", GpuTask(kind="lstm", mode="fused", precision="bf16")),
    ("rsl_rl", GpuTask(kind="lstm", mode="eager")),
)
Result = dict[str, Any]


def title(library: str, task: GpuTask) -> str:
    """Return what a row is called."""
    return f"{library} {task.kind} {task.mode} {task.precision} {task.num_envs}x{task.num_steps}"


def run_apart(library: str, task: GpuTask, limit: float) -> Result:
    """Run one row in a new interpreter."""
    row = {"library": library, "task": task.plain(), "date": today()}
    return {**row, **answer(started(__file__, ["--row", library, json.dumps(task.plain())]), limit)}


def run_here(library: str, task: GpuTask) -> Result:
    """Run one row in this process."""
    import torch

    if library == "striderl":
        from gpu_striderl import run
    else:
        from gpu_rsl_rl import run
    found = run(task)
    packages = ("torch", "rsl-rl-lib", "tensordict")
    return {**found, "device": torch.cuda.get_device_name(), "versions": {name: _version(name) for name in packages}}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def to_markdown(results: Sequence[Result]) -> str:
    """Return the conditions and the table."""
    good = [each for each in results if "failed" not in each]
    if not good:
        return "No row is recorded.\n"
    versions = {f"{name} {version}" for each in good for name, version in each["versions"].items()}
    head = (
        "| library | network | mode | precision | envs x steps | rollout ms | returns ms | update ms | first update s "
        "| peak MiB |\n| --- | --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"
    )
    dates = sorted(each["date"] for each in results)
    when = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    conditions = f"{when}; {good[0]['device']}; {', '.join(sorted(versions))}."
    return "\n\n".join([conditions, "\n".join([head, *map(_row, results)])]) + "\n"


def _row(result: Result) -> str:
    task = GpuTask(**result["task"])
    cells = [result["library"], task.kind, task.mode, task.precision, f"{task.num_envs} x {task.num_steps}"]
    if "failed" in result:
        return f"| {' | '.join([*cells, result['failed'].replace('|', '/')[:90], '', '', '', ''])} |"
    medians, ranges = result["median_ms"], result["range_ms"]
    for name in ("rollout", "returns", "update"):
        low, high = ranges[name]
        cells.append(f"{medians[name]:.2f} ({low:.2f}–{high:.2f})")
    cells += [f"{result['first_ms']['update'] / 1e3:.1f}", f"{result['peak_mib']:,.0f}"]
    return f"| {' | '.join(cells)} |"


def merged(old: Sequence[Result], new: Sequence[Result]) -> list[Result]:
    """Return the results, newer ones instead of older ones of the same row, by network and number of envs."""
    found = {title(each["library"], GpuTask(**each["task"])): each for each in [*old, *new]}
    usual = [title(*row) for row in ROWS]

    def place(name: str) -> tuple[bool, int, int]:
        task = GpuTask(**found[name]["task"])
        return task.kind == "lstm", task.num_envs, usual.index(name) if name in usual else len(usual)

    return [found[name] for name in sorted(found, key=place)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for, print the table and write it; returns the exit code."""
    parser = table_parser("Time PPO on a GPU beside rsl_rl.", NAME)
    parser.add_argument("--only", nargs="+", default=[], help="words that the name of a row must have")
    parser.add_argument("--sizes", nargs="+", type=int, default=[], help="numbers of envs: the fused rows for each")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds that a row may take")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.row:
        print(json.dumps(run_here(options.row[0], GpuTask(**json.loads(options.row[1])))))
        return 0
    old = read_rows(options.results)
    new: list[Result] = []
    if not options.render_only:
        rows = [
            (library, GpuTask(num_envs=size, mode=mode, precision=precision)) for size in options.sizes
            for library, mode, precision in (
                ("striderl", "fused", "tf32"), ("striderl", "fused", "bf16"), ("rsl_rl", "eager", "tf32")
            )
        ] or ROWS  # fmt: skip
        for library, task in rows:
            if all(word in title(library, task).split() for word in options.only):
                result = run_apart(library, task, options.limit)
                new.append(result)
                write_rows(options.results, NAME, merged(old, new))
                print(title(library, task), result.get("median_ms", result.get("failed")), flush=True)
    show(to_markdown(merged(old, new)), NAME, options)
    return int(any("failed" in each for each in new))


if __name__ == "__main__":
    sys.exit(main())
