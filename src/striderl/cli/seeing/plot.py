"""`striderl plot RUN …`: learning curves as a picture; runs of one task that differ in their seed become one curve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from striderl.cli.options import Overwrite, Runs, output_path, parse
from striderl.cli.runs import find_run
from striderl.cli.terminal import UsageError, message_of, say, showing_progress


@dataclass(frozen=True)
class PlotOptions:
    """Which runs, and where to."""

    runs: Runs
    """Folders of runs; for a folder of several (runs/cartpole) the newest of them."""
    metrics: tuple[str, ...] = ()
    """Numbers of the log to draw, such as evaluate/return_mean; the usual ones if none are named."""
    output: str = ""
    """The picture's file; plots/curves.png in the folder of the first run unless given."""
    overwrite: Overwrite = False


def plot(words: list[str]) -> int:
    """Draw, and print where the picture is."""
    options = parse(PlotOptions, words, command="plot", description="Draw the learning curves of one or several runs.")
    if not options.runs:
        raise UsageError("name at least one run: striderl plot RUN …")
    folders = [find_run(run) for run in options.runs]
    path = output_path(options.output, folders[0] / "plots" / "curves.png", overwrite=options.overwrite)
    with showing_progress("plot"):
        draw(folders, path, options.metrics)
    say(str(path))
    if len(folders) > 1:
        say_comparison(folders)
    return 0


def say_comparison(folders: list[Path]) -> None:
    """Print which of the drawn groups their seeds separate; runs that cannot be compared are only drawn."""
    from striderl.loggers.comparison import compare_runs, sentence

    try:
        found = compare_runs(folders)
    except (ValueError, KeyError):
        return
    for pair in found.pairs:
        say(sentence(pair))


def draw(folders: list[Path], path: Path, metrics: tuple[str, ...] = ()) -> Path:
    """Draw runs into one picture."""
    from striderl.loggers.plots import plot_runs

    try:
        plot_runs(folders, path, metrics)
    except (ImportError, ValueError, KeyError, OSError) as error:
        raise UsageError(f"no plot: {message_of(error)}") from error
    return path
