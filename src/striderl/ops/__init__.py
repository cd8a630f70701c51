"""Pure functions on tensors: the arithmetic that every algorithm and network shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.ops.losses import clipped_surrogate as clipped_surrogate
    from striderl.ops.losses import explained_variance as explained_variance
    from striderl.ops.losses import normalised as normalised
    from striderl.ops.losses import valid_mean as valid_mean
    from striderl.ops.losses import value_loss as value_loss
    from striderl.ops.ramps import Ramp as Ramp
    from striderl.ops.returns import discounted_returns as discounted_returns
    from striderl.ops.returns import gae as gae
    from striderl.ops.returns import n_step_returns as n_step_returns
    from striderl.ops.returns import vtrace as vtrace
    from striderl.ops.statistics import confidence_interval as confidence_interval
    from striderl.ops.td import huber as huber
    from striderl.ops.td import project_categorical as project_categorical
    from striderl.ops.td import quantile_huber as quantile_huber
    from striderl.ops.td import td_target as td_target
    from striderl.ops.trajectories import split_and_pad_trajectories as split_and_pad_trajectories
    from striderl.ops.trajectories import unpad_trajectories as unpad_trajectories

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "losses": ["clipped_surrogate", "explained_variance", "normalised", "valid_mean", "value_loss"],
        "ramps": ["Ramp"],
        "returns": ["discounted_returns", "gae", "n_step_returns", "vtrace"],
        "statistics": ["confidence_interval"],
        "td": ["huber", "project_categorical", "quantile_huber", "td_target"],
        "trajectories": ["split_and_pad_trajectories", "unpad_trajectories"],
    },
    unlisted={
        "imitation": ["TARGETS"],
        "losses": ["adapted_learning_rate"],
        "ramps": ["TeacherSchedule"],
        "schedules": ["learning_rate_rule"],
    },
)
