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
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_tasks import GpuTask
from harness_markdown import splice_file

HERE = Path(__file__).resolve().parent
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
    row = {"library": library, "task": task.plain(), "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat()}
    command = [sys.executable, str(Path(__file__).resolve()), "--row", library, json.dumps(task.plain())]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    except subprocess.TimeoutExpired:
        return {**row, "failed": f"took more than {limit:g} s"}
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line]
        return {**row, "failed": lines[-1] if lines else f"exit code {done.returncode}"}
    return {**row, **json.loads(done.stdout.splitlines()[-1])}


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
    dates = sorted({each["date"] for each in results})
    conditions = f"{dates[0]} to {dates[-1]}; {good[0]['device']}; {', '.join(sorted(versions))}."
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
    """Return the results with newer ones in the places of older ones of the same row."""

    def key(each: Result) -> str:
        return title(each["library"], GpuTask(**each["task"]))

    found = {key(each): each for each in [*old, *new]}
    return list(found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for, print the table and write it; returns the exit code."""
    parser = argparse.ArgumentParser(description="Time PPO on a GPU beside rsl_rl.")
    parser.add_argument("--only", nargs="+", default=[], help="words that the name of a row must have")
    parser.add_argument("--sizes", nargs="+", type=int, default=[], help="numbers of envs: the fused rows for each")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds that a row may take")
    parser.add_argument("--render-only", action="store_true", help="run nothing; print and write the table")
    parser.add_argument("--results", type=Path, default=HERE / "results" / f"{NAME}.json", help="file of the results")
    parser.add_argument("--readme", type=Path, default=HERE / "README.md", help="file with the markers")
    parser.add_argument("--print-only", action="store_true", help="leave README.md as it is")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.row:
        print(json.dumps(run_here(options.row[0], GpuTask(**json.loads(options.row[1])))))
        return 0
    old = json.loads(options.results.read_text(encoding="utf-8"))["rows"] if options.results.exists() else []
    new: list[Result] = []
    if not options.render_only:
        rows = [
            (library, GpuTask(num_envs=size, mode=mode)) for size in options.sizes
            for library, mode in (("striderl", "fused"), ("rsl_rl", "eager"))
        ] or ROWS  # fmt: skip
        for library, task in rows:
            if all(word in title(library, task).split() for word in options.only):
                result = run_apart(library, task, options.limit)
                new.append(result)
                print(title(library, task), result.get("median_ms", result.get("failed")), flush=True)
    results = merged(old, new)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"  {json.dumps(each)}" for each in results)
    options.results.write_text(f'{{"name": "{NAME}", "rows": [\n{lines}\n]}}\n', encoding="utf-8")
    text = to_markdown(results)
    print(f"\n{text}")
    if not options.print_only:
        splice_file(options.readme, NAME, text)
    return int(any("failed" in each for each in new))


if __name__ == "__main__":
    sys.exit(main())
