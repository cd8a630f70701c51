"""The packages that export needs and the core does not; nothing here loads torch."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from striderl.data.naming import missing_extra


def require_package(name: str, *, purpose: str) -> Any:
    """Return an optional package, or raise ImportError naming the extra that brings it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(missing_extra(name, "export", purpose=purpose)) from error


def onnx_session(path: Path) -> Any:
    """Open an ONNX file with onnxruntime on the CPU."""
    onnxruntime = require_package("onnxruntime", purpose="running an exported policy")
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
