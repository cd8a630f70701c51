"""Environments on MuJoCo's native batch stepping: the base class, randomisation, rendering and the built-in tasks."""

from __future__ import annotations

from striderl.data.naming import missing_extra

try:
    import mujoco.batch  # noqa: F401  (every module of this package needs it; say so once, in plain words)
except ModuleNotFoundError as error:
    raise ImportError(missing_extra("mujoco>=3.17", "mujoco", purpose="a MuJoCo environment")) from error
