"""How a pure function is run: the updater, and the check that a part can be captured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.execution.capture import CaptureError as CaptureError
    from striderl.execution.modes import ExecutionConfig as ExecutionConfig
    from striderl.execution.parameter_groups import GroupConfig as GroupConfig
    from striderl.execution.parameter_groups import ParameterGroup as ParameterGroup
    from striderl.execution.updater import Updater as Updater

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "capture": ["CaptureError"],
        "modes": ["ExecutionConfig"],
        "parameter_groups": ["GroupConfig", "ParameterGroup"],
        "updater": ["Updater"],
    },
    unlisted={
        "capture": ["CaptureReport", "check_capture"],
        "updater": ["UpdateProgress"],
    },
)
