"""Writing data with a policy: demonstrations, DAgger on disk, motion clips."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.recording.dagger import DaggerSaver as DaggerSaver
    from striderl.recording.demonstrations import DemonstrationSaver as DemonstrationSaver
    from striderl.recording.motion import MotionRecorder as MotionRecorder
    from striderl.recording.motion import MotionRecorderConfig as MotionRecorderConfig
    from striderl.recording.motion import quadruped_loader_config as quadruped_loader_config
    from striderl.recording.motion import quadruped_recorder_config as quadruped_recorder_config
    from striderl.recording.motion import record_motion as record_motion
    from striderl.recording.motion import trot_clip as trot_clip
    from striderl.recording.motion import trot_clips as trot_clips

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "dagger": ["DaggerSaver"],
        "demonstrations": ["DemonstrationSaver"],
        "motion": [
            "MotionRecorder",
            "MotionRecorderConfig",
            "quadruped_loader_config",
            "quadruped_recorder_config",
            "record_motion",
            "trot_clip",
            "trot_clips",
        ],
    },
    unlisted={
        "dagger": ["LoadStudent", "Student"],
        "demonstrations": ["SaverProgress"],
        "motion": ["quadruped_fields"],
    },
)
