"""`striderl export RUN`: a policy as files that run without striderl, each checked against the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from striderl.cli.options import Run, Trust, parse
from striderl.cli.runs import load
from striderl.cli.seeing.report import refresh_report
from striderl.cli.terminal import UsageError, message_of, say, showing_progress

if TYPE_CHECKING:
    from striderl.export.bundle import Bundle
    from striderl.training.experiment.loading import LoadedRun


@dataclass(frozen=True)
class ExportOptions:
    """What is exported, and where to."""

    run: Run
    """The folder of a run, or of several (runs/cartpole: the newest of them)."""
    checkpoint: str = "best"
    """'best', 'last', or a number of env steps."""
    output: str = ""
    """The folder of the bundle; 'export' in the run's folder unless given."""
    formats: tuple[str, ...] = ("onnx", "torch")
    """'onnx' for onnxruntime, 'torch' for torch.export.load."""
    overwrite: bool = False
    """Replace a bundle that is there already."""
    trust: Trust = False


def export_run(words: list[str]) -> int:
    """Export, and print where the files are and how far they are from the policy."""
    options = parse(
        ExportOptions,
        words,
        command="export",
        description="Write a run's greedy policy as files that run without striderl, after checking each of them.",
    )
    loaded = load(options.run, options.checkpoint, trust=options.trust)
    folder = Path(options.output) if options.output else loaded.folder.export
    with showing_progress(f"export to {' and '.join(options.formats)}") as progress:
        bundle = export_loaded(loaded, folder, formats=options.formats, overwrite=options.overwrite, progress=progress)
    for name, path in bundle.files.items():
        say(f"{path}: differs from the policy by {max(bundle.parity[name].values()):.2g} at most ({name})")
    if folder == loaded.folder.export:
        refresh_report(loaded.folder)
    return 0


def export_loaded(
    loaded: LoadedRun,
    folder: Path,
    *,
    formats: tuple[str, ...],
    overwrite: bool,
    progress: Callable[[float], None] | None = None,
) -> Bundle:
    """Export the policy of a loaded run; `progress` gets the share that is done."""
    from striderl.export.bundle import export_policy
    from striderl.export.golden_trace import ParityError
    from striderl.export.metadata import ExportMetadata

    counted = "num_updates" if loaded.config.dataset else "env_steps"
    extra = {"task": loaded.env.task, counted: loaded.step}
    try:
        return export_policy(
            loaded.policy,
            folder,
            metadata=ExportMetadata(dt=loaded.step_dt or None, actuation=loaded.actuation, extra=extra),
            formats=formats,
            overwrite=overwrite,
            progress=progress,
        )
    except FileExistsError as error:
        raise UsageError(f"{folder} exists; choose another with --output, or --overwrite it") from error
    except (ImportError, ValueError, OSError, ParityError) as error:
        raise UsageError(message_of(error)) from error
