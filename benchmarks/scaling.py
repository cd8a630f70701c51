"""Cost grows as work grows: time against buffer size, batch size, network width, number of envs and of steps.

    python benchmarks/scaling.py                     measure on the CPU: results/scaling_cpu.json, plots/scaling_*.png
    python benchmarks/scaling.py --device cuda       measure on a GPU: results/scaling_cuda.json; the plots show both
    python benchmarks/scaling.py --plot-only         draw what is in results/ (wants matplotlib)

On the CPU, times are CPU times of one thread; on a GPU, they are those of the clock, the device waited for, and
products are in TF32. All points of a curve take turns, several rounds of them, and the median counts: a machine that is
busy for a while then slows all points down, not one of them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness_clock
from harness_markdown import splice_file

HERE = Path(__file__).resolve().parent
SECONDS = 0.02
"""How long a sample takes at least."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of a plot: what is made larger, and the work of each size."""

    plot: str
    """Names the picture."""
    name: str
    """Names the line."""
    x: str
    """What grows."""
    item: str
    """What the time is divided by."""
    sizes: tuple[int, ...]
    work: Callable[[int, str, str], Any]
    """(size, device, mode) → `scaling_work.Work`."""


def curves(on_gpu: bool) -> list[Curve]:
    """Return all lines; a GPU is given larger sizes, and fewer of those that are compiled for."""
    import scaling_work as work

    envs = (1024, 4096, 16384, 65536) if on_gpu else (1, 4, 16, 64, 256, 1024, 4096)
    widths = (64, 128, 256, 512) if on_gpu else (16, 32, 64, 128, 256, 512)
    steps = (4, 16, 64) if on_gpu else (4, 16, 64, 256)
    count = 4096 if on_gpu else 64
    buffers = tuple(10**k for k in range(3, 8 if on_gpu else 7))
    batches = (64, 256, 1024, 4096, 16384) if on_gpu else (16, 64, 256, 1024, 4096)
    found = []
    for kind in ("uniform", "3-step", "prioritized"):
        found += [
            Curve(plot="buffer", name=kind, x="steps in the replay, batches of 256", item="sampled step", sizes=buffers,
                  work=lambda size, device, mode, kind=kind: work.replay(kind, size, 256, device)),
            Curve(plot="batch", name=kind, x="steps in a batch, 100,000 in the replay", item="sampled step",
                  sizes=batches, work=lambda size, device, mode, kind=kind: work.replay(kind, 100_000, size, device)),
        ]  # fmt: skip
    return [
        *found,
        Curve(plot="width", name="PPO update", x="width of two layers", item="sample and epoch",
              sizes=widths,
              work=lambda size, device, mode: work.update(count, 32, size, 4, device, mode)),
        Curve(plot="width", name="rollout", x="width of two layers", item="env step", sizes=widths,
              work=lambda size, device, mode: work.rollout(count, 32, size, device, mode)),
        Curve(plot="envs", name="rollout", x="envs, 16 steps of each", item="env step", sizes=envs,
              work=lambda size, device, mode: work.rollout(size, 16, 64, device, mode)),
        Curve(plot="envs", name="PPO update", x="envs, 16 steps of each", item="sample and epoch",
              sizes=tuple(size for size in envs if size >= 4),
              work=lambda size, device, mode: work.update(size, 16, 64, 4, device, mode)),
        Curve(plot="steps", name="rollout", x=f"steps of each of {count:,} envs", item="env step",
              sizes=steps, work=lambda size, device, mode: work.rollout(count, size, 64, device, mode)),
        Curve(plot="steps", name="PPO update", x=f"steps of each of {count:,} envs", item="sample and epoch",
              sizes=steps, work=lambda size, device, mode: work.update(count, size, 64, 4, device, mode)),
    ]  # fmt: skip


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(device: str, mode: str, rounds: int, only: list[str]) -> dict[str, Any]:
    """Return the report of all curves."""
    import numpy
    import torch

    import striderl

    torch.set_num_threads(1)
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # on a GPU; says nothing to a CPU
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU, one thread",
        "mode": f"{mode}, TF32" if device == "cuda" else mode,
        "clock": "wall" if device == "cuda" else "cpu",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": harness_clock.machine(),
        "versions": {each.__name__: each.__version__ for each in (striderl, torch, numpy)},
        "curves": [],
    }
    for curve in curves(device == "cuda"):
        if only and curve.plot not in only:
            continue
        print(f"{curve.plot}: {curve.name}", file=sys.stderr)
        report["curves"].append(_measured(curve, device, mode, rounds))
    return report


def _measured(curve: Curve, device: str, mode: str, rounds: int) -> dict[str, Any]:
    made = [curve.work(size, device, mode) for size in curve.sizes]
    timers = [_timer(work.call, device) for work in made]
    samples: list[list[float]] = [[] for _ in made]
    for _ in range(rounds):
        for timer, seen in zip(timers, samples):
            seen.append(timer())
    points = [
        {"size": size, "items": work.items, "seconds": sorted(seen)[len(seen) // 2], "samples": seen}
        for size, work, seen in zip(curve.sizes, made, samples)
    ]
    return {"plot": curve.plot, "name": curve.name, "x": curve.x, "item": curve.item, "points": points}


def _timer(call: Callable[[], Any], device: str) -> Callable[[], float]:
    """Return a function that returns the seconds of one call; it is warmed up already."""
    if device != "cuda":
        sampler = harness_clock.repeated(call, SECONDS)
        return lambda: sampler().cpu
    import torch

    def timed(number: int) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(number):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - started) / number

    timed(3)  # compiles, records, and fills caches
    number = max(1, round(SECONDS / timed(1)))
    return lambda: timed(number)


# -- the table ---------------------------------------------------------------------------------------------------------


def to_markdown(report: dict[str, Any]) -> str:
    """Return the smallest and the largest size of every curve as a table."""
    machine, versions = report["machine"], ", ".join(f"{name} {found}" for name, found in report["versions"].items())
    clock = "CPU time" if report["clock"] == "cpu" else "wall clock"
    lines = [
        f"{report['date']}; {report['device']}; {machine['cpu']}, {machine['system']}, Python {machine['python']}, "
        f"load before the run {machine['load_before']}; mode {report['mode']!r}; {clock}; {versions}.",
        "",
        "| what | against | from | to | the size grows | the time grows |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for curve in report["curves"]:
        first, last = curve["points"][0], curve["points"][-1]
        ends = [
            f"{point['size']:,}: {1e6 * point['seconds'] / point['items']:.3g} µs per {curve['item']}"
            for point in (first, last)
        ]
        grown = f"{last['seconds'] / first['seconds']:.3g} ×"
        work = f"{last['size'] / first['size']:,.0f} ×"
        lines.append(f"| {curve['name']} | {curve['x']} | {ends[0]} | {ends[1]} | {work} | {grown} |")
    return "\n".join(lines)


# -- drawing -----------------------------------------------------------------------------------------------------------


def draw(results: Path, plots: Path) -> list[Path]:
    """Draw a picture per plot from all reports that there are: the time of a call, and of each item of it."""
    import matplotlib

    matplotlib.use("Agg")
    reports = [json.loads(path.read_text()) for path in sorted(results.glob("scaling_*.json"))]
    names = list(dict.fromkeys(curve["plot"] for report in reports for curve in report["curves"]))
    plots.mkdir(exist_ok=True)
    return [_drawn(name, reports, plots / f"scaling_{name}.png") for name in names]


def _drawn(name: str, reports: list[dict[str, Any]], path: Path) -> Path:
    from matplotlib import pyplot, ticker

    figure, (whole, each) = pyplot.subplots(1, 2, figsize=(10, 4))
    labels, grown = set(), set()
    for report, style in zip(reports, ("-", "--", ":")):
        for place, curve in enumerate(curve for curve in report["curves"] if curve["plot"] == name):
            sizes = [point["size"] for point in curve["points"]]
            total = [1e6 * point["seconds"] for point in curve["points"]]
            single = [time / point["items"] for time, point in zip(total, curve["points"])]
            label = curve["name"] if len(reports) == 1 else f"{curve['name']}, {report['device']}"
            look = {"marker": "o", "linestyle": style, "color": f"C{place}", "label": label}
            whole.plot(sizes, total, **look)
            each.plot(sizes, single, **look)
            labels.add((curve["x"], curve["item"]))
            grown.update(sizes)
    for axes in (whole, each):
        axes.set(xscale="log", yscale="log", xlabel=sorted(labels)[0][0])
        axes.set_xticks(sorted(grown), [_short(size) for size in sorted(grown)])
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.6g}"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(ticker.NullLocator())
        axes.grid(True, which="major", alpha=0.4)
    whole.set(ylabel="µs per call", title="a call")
    each.set(ylabel="µs per " + " or ".join(sorted({item for _, item in labels})), title="an item")
    each.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _short(size: int) -> str:
    """Return 64, 4k, 1M."""
    for unit, name in ((10**6, "M"), (1024, "Ki"), (1000, "k")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


# -- command line ------------------------------------------------------------------------------------------------------


def main() -> int:
    """Measure, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--mode", default="auto", help="of gradient steps: 'eager', 'compiled', 'graphed' or 'auto'")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", action="append", default=[], metavar="PLOT", help="may be repeated")
    parser.add_argument("--plot-only", action="store_true", help="measure nothing")
    parser.add_argument("--no-plot", action="store_true", help="draw nothing: matplotlib is not needed")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--readme", type=Path, default=HERE / "README.md", help="file with the markers")
    parser.add_argument("--plots", type=Path, default=HERE / "plots")
    options = parser.parse_args()
    if not options.plot_only:
        report = measure(options.device, options.mode, options.rounds, options.only)
        path = options.results / f"scaling_{options.device}.json"
        if options.only and path.exists():  # the other curves stay
            old = json.loads(path.read_text())["curves"]
            kept = [curve for curve in old if curve["plot"] not in options.only]
            order = [(curve.plot, curve.name) for curve in curves(options.device == "cuda")]
            found = kept + report["curves"]
            report["curves"] = sorted(found, key=lambda curve: order.index((curve["plot"], curve["name"])))
        path.write_text(json.dumps(report, indent=1) + "\n")
    tables = [to_markdown(json.loads(path.read_text())) for path in sorted(options.results.glob("scaling_*.json"))]
    text = "\n\n".join(tables).rstrip() + "\n"
    print(text)
    if options.readme.exists():
        splice_file(options.readme, "scaling", text)
    if not options.no_plot:
        for picture in draw(options.results, options.plots):
            print(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
