"""From the deterministic step to a program file, and from the file back to something that runs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import Tensor

from striderl.export.golden_trace import Step
from striderl.export.greedy_step import ExportLayout, GreedyStep
from striderl.export.packages import onnx_session, require_package


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
    """Say that the first dimension of every input is the number of envs."""
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
    """Leave out what the exporter says every time and nobody here can change.

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
