"""`export_policy`: a trained policy becomes a folder that runs without this library.

    bundle/
      policy.onnx           for onnxruntime; the description is inside as well
      policy.pt2            for torch.export.load
      metadata.json         the description: inputs in order, actions, time step, versions
      trace.safetensors     100 steps of inputs and outputs, to check any runtime against

Every file is checked against the policy before the folder appears under its name: it is written elsewhere and renamed
at the end, so there is never half a bundle and never one that does something else.
"""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from striderl import __version__
from striderl.data.naming import unknown
from striderl.export.golden_trace import GoldenTrace, Step, require_parity, run_trace, trace_inputs
from striderl.export.greedy_step import ExportablePolicy, ExportLayout, GreedyStep, plan_layout
from striderl.export.metadata import (
    FORMAT,
    ExportMetadata,
    as_properties,
    describe_action,
    describe_component,
    describe_state,
)
from striderl.export.packages import require_package

FILES = {"onnx": "policy.onnx", "torch": "policy.pt2"}
"""The file of each format."""
METADATA_FILE, TRACE_FILE = "metadata.json", "trace.safetensors"
OTHER_BATCHES = (1, 7)
"""Numbers of envs that are checked besides the trace's own, so that none is baked in."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What was written."""

    folder: Path
    """Where."""
    files: dict[str, Path]
    """The model of each format."""
    metadata: dict[str, Any]
    """The description, as in the JSON file."""
    parity: dict[str, dict[str, float]]
    """The largest difference from the policy, by format and output."""


def export_policy(
    policy: ExportablePolicy,
    folder: str | Path,
    *,
    metadata: ExportMetadata,
    formats: Sequence[str] = ("onnx", "torch"),
    num_steps: int = 100,
    tolerance: float = 1e-5,
    overwrite: bool = False,
) -> Bundle:
    """Write the deterministic policy as a bundle, after checking every format against it over `num_steps` steps.

    The policy itself is not changed: a copy on the CPU, in eval mode, is exported. Raises ParityError, and writes
    nothing, when any output of any format is further than `tolerance` from the policy's.
    """
    target = Path(folder)
    _require_formats(formats)
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists; choose another folder, or pass overwrite=True to replace it")
    assert isinstance(policy, nn.Module)
    actor = cast("ExportablePolicy", copy.deepcopy(policy).cpu().eval())
    layout = plan_layout(actor)
    description = describe(layout, metadata)
    step = GreedyStep(actor, layout).eval()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with torch.no_grad():
            parity = _write(temporary, step, layout, description, formats, num_steps, tolerance)
        _put_in_place(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    files = {name: target / FILES[name] for name in formats}
    return Bundle(folder=target, files=files, metadata=description, parity=parity)


def describe(layout: ExportLayout, metadata: ExportMetadata) -> dict[str, Any]:
    """Return the description of what is exported; it is filled with the parity at the end."""
    description: dict[str, Any] = {
        "format": FORMAT,
        "striderl": __version__,
        "torch": torch.__version__,
        "commit": metadata.commit,
        "dt": metadata.dt,
        "observations": [describe_component(name, part) for name, part in layout.observations.items()],
        "unused_observations": list(layout.unused),
        "states": [describe_state(name, spec) for name, spec in layout.states.items()],
        "actions": [describe_action(name, spec, metadata) for name, spec in layout.actions.items()],
        "extra": dict(metadata.extra),
    }
    json.dumps(description, allow_nan=False)  # what JSON cannot hold is told before the work begins
    return description


def _write(
    folder: Path,
    step: GreedyStep,
    layout: ExportLayout,
    description: dict[str, Any],
    formats: Sequence[str],
    num_steps: int,
    tolerance: float,
) -> dict[str, dict[str, float]]:
    """Write and check all files; returns the differences."""
    traces = [_golden(step, layout, num_steps, 2)]
    traces += [_golden(step, layout, min(num_steps, 5), batch) for batch in OTHER_BATCHES]
    exported = export_program(step, traces[0], layout)
    parity: dict[str, dict[str, float]] = {}
    for name in formats:
        path = folder / FILES[name]
        if name == "onnx":
            program = onnx_program(exported, layout)
            runner = _onnx_runner(program, path, description)
        else:
            torch.export.save(exported, path)
            runner = _torch_runner(path)
        parity[name] = _checked(runner, layout, traces, tolerance=tolerance, who=path.name)
        if name == "onnx":
            # the parity is part of the description, so the file is written once more with it
            _save_onnx(program, path, {**description, "parity": parity})
    description["parity"] = parity
    (folder / METADATA_FILE).write_text(json.dumps(description, indent=2) + "\n")
    traces[0].save(folder / TRACE_FILE)
    return parity
