"""`export_policy`: a trained policy becomes a folder that runs without this library.

    bundle/
      policy.onnx           for onnxruntime; the description is inside as well
      policy.pt2            for torch.export.load
      metadata.json         the description: inputs in order, actions, time step, versions
      trace.safetensors     100 steps of inputs and outputs, to check any runtime against

Every file is checked against the policy before the folder appears under its name: it is written elsewhere and renamed
at the end, so there is never half a bundle, and never one that differs from the policy.

Also here: write the deterministic step as a program file, and load it again.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch._dynamo
from torch import Tensor, nn

from striderl import __version__
from striderl.checkpoint.safe_files import write_json
from striderl.data.naming import unknown
from striderl.export.exported_policy import onnx_session, require_package
from striderl.export.golden_trace import GoldenTrace, Step, golden_trace, random_trace, require_parity, run_trace
from striderl.export.greedy_step import ExportablePolicy, ExportLayout, GreedyStep, plan_layout, zeros
from striderl.export.metadata import (
    FORMAT,
    ExportMetadata,
    as_properties,
    current_commit,
    describe_action,
    describe_component,
    describe_joints,
    describe_state,
)

FILES = {"onnx": "policy.onnx", "torch": "policy.pt2"}
"""The file of each format."""
METADATA_FILE, TRACE_FILE = "metadata.json", "trace.safetensors"
TRACE_ENVS = 2
"""How many envs the stored trace has."""
EXAMPLE_ENVS = 13
"""How many envs are traced with: an unusual number, so that no comparison of sizes takes it for another size."""
OTHER_BATCHES = (1, 7)
"""Numbers of envs that are checked besides the trace's own, so that none is baked in."""


_WORK = {"onnx": 6, "torch": 1}
"""How long a format takes to write, in checks of it."""


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
    trace_obs: Mapping[str, Tensor] | None = None,
    tolerance: float = 1e-5,
    overwrite: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Bundle:
    """Write the deterministic policy as a bundle, after checking every format against it over `num_steps` steps.

    Real-valued actions are clipped to the bounds of the action spec, in every format and in the stored trace. The
    policy itself is not changed: a copy on the CPU, in eval mode, is exported. The steps are random unless `trace_obs`
    [T, B, …] brings those of a real rollout. Raises ParityError, and writes nothing, when any output of any
    format is further than `tolerance` from the policy's. `progress` gets the share that is done, from 0 to 1.
    """
    target = Path(folder)
    _require_formats(formats)
    if os.path.lexists(target) and not overwrite:
        raise FileExistsError(f"{target} exists; choose another folder, or pass overwrite=True to replace it")
    _require_bundle(target)
    if not isinstance(policy, nn.Module):
        raise TypeError(
            f"export_policy wants the pure policy, a torch module, found {type(policy).__name__}; "
            "one that keeps its memory has it as its attribute 'policy'"
        )
    actor = cast("ExportablePolicy", copy.deepcopy(policy).cpu().eval())
    layout = plan_layout(actor)
    description = describe(layout, metadata)
    step = GreedyStep(actor, layout).eval()
    observations = [random_trace(layout, num_steps, TRACE_ENVS) if trace_obs is None else trace_obs]
    observations += [random_trace(layout, 5, num_envs) for num_envs in OTHER_BATCHES]
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with torch.no_grad():
            parity = _write(temporary, step, description, formats, observations, tolerance, progress or _unheard)
        _put_in_place(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    files = {name: target / FILES[name] for name in formats}
    return Bundle(folder=target, files=files, metadata=description, parity=parity)


def describe(layout: ExportLayout, metadata: ExportMetadata) -> dict[str, Any]:
    """Return the description of what is exported."""
    description: dict[str, Any] = {
        "format": FORMAT,
        "striderl": __version__,
        "torch": torch.__version__,
        "commit": metadata.commit or current_commit(),
        "dt": metadata.dt,
        "observations": [describe_component(name, part) for name, part in layout.observations.items()],
        "unused_observations": list(layout.unused),
        "training_layout": [describe_component(name, part) for name, part in layout.training.items()],
        "states": [describe_state(name, spec) for name, spec in layout.states.items()],
        "actions": [describe_action(name, spec, metadata) for name, spec in layout.actions.items()],
        **describe_joints(layout.actions, metadata),
        "observation_names": list(layout.observations),
        "extra": dict(metadata.extra),
    }
    json.dumps(description, allow_nan=False)  # raises for what JSON cannot hold before the work begins
    return description


def _write(
    folder: Path,
    step: GreedyStep,
    description: dict[str, Any],
    formats: Sequence[str],
    observations: Sequence[Mapping[str, Tensor]],
    tolerance: float,
    progress: Callable[[float], None],
) -> dict[str, dict[str, float]]:
    """Write all files, check them over all observations and return the largest differences."""
    layout, done = step.layout, 1
    parts = 1 + sum(_WORK[name] + 1 for name in formats)  # the trace, then each format is written and checked
    traces = [golden_trace(lambda inputs: step(*inputs), layout, obs) for obs in observations]
    program = trace_program(step, [zeros(spec, EXAMPLE_ENVS) for spec in layout.input_specs])
    parity: dict[str, dict[str, float]] = {}
    for name in formats:
        progress(done / parts)
        path = folder / FILES[name]
        if name == "onnx":
            write_onnx(program, layout, as_properties(description), path)
            again = onnx_step(path, layout)
        else:
            torch.export.save(program, path)
            again = torch_step(path)
        done += _WORK[name]
        progress(done / parts)
        parity[name] = _checked(again, layout, traces, tolerance, f"{path.name} ({name})")
        done += 1
    write_json(folder / METADATA_FILE, {**description, "parity": parity})
    traces[0].save(folder / TRACE_FILE)
    return parity


def _unheard(share: float) -> None:
    """Show nothing."""


def _checked(
    step: Step, layout: ExportLayout, traces: list[GoldenTrace], tolerance: float, who: str
) -> dict[str, float]:
    """Return the largest difference of each output over all traces."""
    worst = dict.fromkeys(layout.output_names, 0.0)
    for golden in traces:
        found = run_trace(step, layout, golden.obs, golden.resets)
        for name, value in require_parity(found, golden.outputs, tolerance=tolerance, who=who).items():
            worst[name] = max(worst[name], value)
    return worst


def _require_formats(formats: Sequence[str]) -> None:
    """Raise for unknown formats and missing packages before any work is done."""
    if isinstance(formats, str) or not formats:
        raise ValueError(f"formats wants some of {list(FILES)}, such as ('onnx',), found {formats!r}")
    for name in formats:
        if name not in FILES:
            raise ValueError(unknown("format", name, FILES, where="export_policy"))
    if "onnx" in formats:
        for package in ("onnx", "onnxscript", "onnxruntime"):
            require_package(package, purpose="exporting to ONNX")


def _require_bundle(target: Path) -> None:
    """Raise where something lies there that overwriting would destroy."""
    if os.path.lexists(target) and not _is_bundle(target):
        raise ValueError(
            f"{target} is a file or a link, or has something else than a bundle in it, which overwrite does not "
            "replace; choose another folder, or move it away"
        )


def _is_bundle(folder: Path) -> bool:
    """Return whether a folder is empty, or has our description and files of a bundle alone: nothing else is lost."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    return not names or (METADATA_FILE in names and names <= {*FILES.values(), METADATA_FILE, TRACE_FILE})


def _put_in_place(temporary: Path, target: Path) -> None:
    """Give the finished folder its name; an older bundle is removed only after the new one is complete."""
    _require_bundle(target)  # once more: exporting takes a while
    temporary.chmod(0o755)  # made by mkdtemp for its owner alone
    if not target.exists():
        temporary.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    target.rename(old / target.name)
    temporary.rename(target)
    shutil.rmtree(old)


# -- programs ----------------------------------------------------------------------------------------------------------


def trace_program(step: GreedyStep, example: Sequence[Tensor]) -> torch.export.ExportedProgram:
    """Trace the step with any number of envs; the example has at least two, because one would be baked in.

    A traced program keeps every parameter of its module. The second tracing is without those that the first did not
    touch: the critic is not exported.
    """
    first = _traced(step, example)
    touched = {node.name for node in first.graph.nodes if node.op == "placeholder" and node.users}
    for spec in first.graph_signature.input_specs:
        if spec.target is not None and spec.arg.name not in touched:
            path, _, name = spec.target.rpartition(".")
            module = step.get_submodule(path)
            for table in (module._parameters, module._buffers):
                if name in table:
                    table[name] = None
    return _traced(step, example)


def _traced(step: GreedyStep, example: Sequence[Tensor]) -> torch.export.ExportedProgram:
    try:
        return torch.export.export(step, tuple(example), dynamic_shapes=batch_shapes(len(example)))
    except torch._dynamo.exc.UserError as error:
        raise ValueError(
            f"the policy cannot be traced for any number of envs (it was tried with {example[0].shape[0]}); "
            f"a stage may use len(tensor), which is a plain number: write tensor.shape[0]. torch says: {error}"
        ) from error


def batch_shapes(num_inputs: int) -> dict[str, Any]:
    """Declare the first dimension of every input as the number of envs."""
    batch = torch.export.Dim("batch", min=1)
    return {"inputs": tuple({0: batch} for _ in range(num_inputs))}


def write_onnx(
    program: torch.export.ExportedProgram, layout: ExportLayout, properties: Mapping[str, str], path: Path
) -> None:
    """Write one ONNX file with named inputs and outputs and the description inside."""
    for package in ("onnx", "onnxscript"):
        require_package(package, purpose="exporting to ONNX")
    with _quiet():
        converted = torch.onnx.export(
            program,
            input_names=list(layout.input_names),
            output_names=list(layout.output_names),
            dynamic_shapes=batch_shapes(len(layout.input_names)),
            dynamo=True,
            verbose=False,
        )
    assert converted is not None
    converted.model.metadata_props.update(properties)
    converted.save(str(path), external_data=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's constant warnings, which cannot be avoided here.

    It warns that torchvision is missing, that one name for the batch is enough, and of its own old calls.
    """
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r".*axis name: batch will not be used")
            warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)", category=FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def onnx_step(path: Path, layout: ExportLayout) -> Step:
    """Return one step of an ONNX file by onnxruntime."""
    session = onnx_session(path)

    def step(inputs: Sequence[Tensor]) -> list[Tensor]:
        feeds = {name: value.numpy() for name, value in zip(layout.input_names, inputs)}
        return [torch.from_numpy(value) for value in session.run(list(layout.output_names), feeds)]

    return step


def torch_step(path: Path) -> Step:
    """Return one step of a file that torch.export wrote."""
    module = torch.export.load(path).module()

    def step(inputs: Sequence[Tensor]) -> list[Tensor]:
        return list(module(*inputs))

    return step
