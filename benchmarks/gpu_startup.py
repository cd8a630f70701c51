"""How soon a run on a GPU is fast, and what the GPU does in one iteration.

    python benchmarks/gpu_startup.py                        results/gpu_startup.json and the table in README.md
    python benchmarks/gpu_startup.py --trace FILE.json      record the kernels of one compiled and captured iteration
    python benchmarks/gpu_startup.py --draw FILE.json       docs/trace_gpu.png (wants matplotlib, no GPU)

The task is that of gpu_ppo.py: 4,096 envs x 24 steps on a table of ready tensors. Each start is a process of its own.
'auto' is a run of 500 iterations, too short to be compiled: its first iteration is as written, later ones are captured.
'compiled first' is `--mode graphed`; its second start finds what torch's compiler has left on disk.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_tasks import GpuTask
from harness_rows import answer, read_rows, show, started, table_parser, today, write_rows

NAME = "gpu_startup"
PICTURE = Path(__file__).resolve().parent.parent / "docs" / "trace_gpu.png"
STARTS = (("eager", "first"), ("auto", "first"), ("compiled first", "first"), ("compiled first", "second"))
ITERATIONS = 40
KINDS = {
    "forward": ("_layer",),
    "gradients of layers": ("_layer_backward", "_bend_backward"),
    "gradients of weights": ("cutlass", "nvjet", "cublas", "gemv", "splitK", "sm90_xmma"),
    "the rest": ("",),
}
COLORS = ("#4477aa", "#ee6677", "#ccbb44", "#bbbbbb")


def trainer_of(mode: str) -> Any:
    """Return a trainer on the table env, built as a run builds it."""
    from gpu_striderl import make_trainer

    from striderl.execution.background import Switch, built_with

    if mode != "auto":
        return make_trainer(GpuTask(mode="eager" if mode == "eager" else "fused"))
    switch = Switch(None)
    switch.given_up = "the run is too short to gain from compiling"
    with built_with(switch):
        return make_trainer(GpuTask(mode="auto"), switch=switch)


def run_start(mode: str, began: float) -> dict[str, Any]:
    """Train some iterations; return when the first one was over, since the process began, and how long each took."""
    import torch

    trainer = trainer_of(mode)
    torch.cuda.synchronize()
    built, ends = time.time() - began, []
    for number, _ in enumerate(trainer, 1):
        torch.cuda.synchronize()
        ends.append(time.time() - began)
        if number == ITERATIONS:
            break
    took = [end - before for before, end in zip([built, *ends], ends)]
    return {
        "built": built,
        "first": ends[0],
        "first_iteration": took[0],
        "second_iteration": took[1],
        "iteration_ms": 1e3 * statistics.median(took[ITERATIONS // 2 :]),
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20,
        "device": torch.cuda.get_device_name(),
    }


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run every start."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="striderl_startup_") as caches:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TRITON_CACHE_DIR"] = caches
        for mode, start in STARTS:
            found = answer(started(__file__, ["--start", mode, repr(time.time())]), options.limit)
            rows.append({"mode": mode, "start": start, "date": today(), **found})
            write_rows(options.results, NAME, rows)
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def to_markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table of all starts."""
    if not rows:
        return "Not measured yet.\n"
    lines = [
        f"{rows[-1]['date']}; {rows[0].get('device', 'no GPU')}; PPO, 4,096 envs x 24 steps.",
        "",
        "| mode | start | s until the first is over | first iteration, s | second, s | later ones, ms | peak MiB |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        named = f"| {row['mode']} | {row['start']} |"
        if "failed" in row:
            lines.append(f"{named} {row['failed']} | | | | |")
            continue
        times = " | ".join(f"{row[name]:.2f}" for name in ("first", "first_iteration", "second_iteration"))
        lines.append(f"{named} {times} | {row['iteration_ms']:.1f} | {row['peak_mib']:,.0f} |")
    return "\n".join(lines) + "\n"


# -- one iteration -----------------------------------------------------------------------------------------------------


def record(path: Path) -> None:
    """Write [kind, begin, end] in microseconds of every kernel of one compiled iteration."""
    import torch

    trainer = trainer_of("compiled first")
    for number, _ in enumerate(trainer, 1):
        if number == 8:
            break
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        next(iter(trainer))
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json.gz"
        seen.export_chrome_trace(str(file))
        with gzip.open(file, "rt") as text:
            events = json.load(text)["traceEvents"]
    kernels = [each for each in events if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    begin = min(each["ts"] for each in kernels)
    spans = [
        [kind_of(each["name"]), each["ts"] - begin, each["ts"] + each["dur"] - begin]
        for each in sorted(kernels, key=lambda each: float(each["ts"]))
    ]
    path.write_text(json.dumps({"device": torch.cuda.get_device_name(), "spans": spans}))


def kind_of(name: str) -> str:
    """Return what a kernel is drawn as: the last kind that fits its name, or the rest."""
    fits = [kind for kind, words in KINDS.items() if any(word and word in name for word in words)]
    return fits[-1] if fits else "the rest"


def lanes_of(spans: list[tuple[str, float, float]]) -> list[int]:
    """Return the first lane that is free when each kernel begins; streams of a graph are the driver's choice."""
    free: list[float] = []
    lanes = []
    for _, begin, end in spans:
        lane = next((number for number, until in enumerate(free) if until <= begin), len(free))
        free[lane : lane + 1] = [end]
        lanes.append(lane)
    return lanes


def draw(path: Path, picture: Path) -> Path:
    """Draw the whole iteration, and below it the time of two gradient steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    recorded = json.loads(path.read_text())
    spans = recorded["spans"]
    lanes = lanes_of(spans)
    colors = dict(zip(KINDS, COLORS))
    length = max(end for *_, end in spans)
    figure, panels = pyplot.subplots(2, 1, figsize=(10, 5))
    middle = 0.6 * length
    for panel, (low, high), title in zip(
        panels,
        ((0.0, length), (middle, middle + 1200.0)),
        (f"One iteration of PPO on an {recorded['device']}: {length / 1e3:.1f} ms", "1.2 ms of its update"),
    ):
        for lane, (kind, begin, end) in zip(lanes, spans):
            if end > low and begin < high:
                place = (begin / 1e3, max(end - begin, (high - low) / 3000) / 1e3)
                panel.broken_barh([place], (lane - 0.4, 0.8), color=colors[kind], linewidth=0)
        panel.set_xlim(low / 1e3, high / 1e3)
        panel.set_yticks(range(max(lanes) + 1), [f"{number} at a time" for number in range(1, max(lanes) + 2)])
        panel.set_ylim(max(lanes) + 0.6, -0.6)
        panel.set_title(title, loc="left", fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("milliseconds")
    handles = [Patch(color=color, label=kind) for kind, color in colors.items()]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False, fontsize=9)
    figure.tight_layout(rect=(0.0, 0.06, 1.0, 1.0))
    figure.savefig(picture, dpi=120)
    return picture


def main() -> int:
    """Measure, record, draw, or serve one start."""
    parser = table_parser("How soon a run on a GPU is fast.", NAME)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which a start has failed")
    parser.add_argument("--trace", type=Path, help="record one iteration into this file")
    parser.add_argument("--draw", type=Path, help="draw what was recorded in this file")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="file of the drawing")
    parser.add_argument("--start", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        print(json.dumps(run_start(options.start[0], float(options.start[1]))))
        return 0
    if options.trace:
        record(options.trace)
        return 0
    if options.draw:
        print(draw(options.draw, options.picture))
        return 0
    rows = read_rows(options.results) if options.render_only else measure(options)
    show(to_markdown(rows), NAME, options)
    return int(any("failed" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
