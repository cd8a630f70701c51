"""Rendering without a display: one OpenGL context, made with the first frame.

MuJoCo chooses an OpenGL back end when it is first imported, which is too early: perhaps nothing is ever rendered, or it
was imported before. So the context is made here: by MUJOCO_GL if it is set, with the window system if there is one,
else with EGL, else with OSMesa. Samples and shadows are off: in software they cost seven times the rest.
"""

from __future__ import annotations

import copy
import ctypes.util
import os
import sys
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from striderl.data.naming import unknown

DEBIAN_PACKAGES = "libegl1 libegl-mesa0 libgl1 libosmesa6"
"""Packages for rendering on a Debian or Ubuntu machine without a GPU."""

_MAX_GEOMS = 10000


class FrameRenderer:
    """Draws envs of one model, one at a time, into frames of a fixed size."""

    def __init__(self, model: Any, *, size: tuple[int, int], camera: str = "") -> None:
        """Make the context; `size` is (height, width), `camera` a name in the model or empty."""
        self._height, self._width = size
        # vis and the size of the frame buffer are changed below, so the renderer has a model of its own
        self._model = copy.copy(model)
        self._model.vis.global_.offheight, self._model.vis.global_.offwidth = size
        self._model.vis.quality.offsamples = 0
        self._data = mujoco.MjData(self._model)
        self._camera = _camera(self._model, camera)
        self._context = make_context(self._width, self._height)
        self._context.make_current()
        self._target = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_150.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._target)
        self._scene = mujoco.MjvScene(self._model, _MAX_GEOMS)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0

    def frame(self, batch: Any, env_index: int) -> NDArray[np.uint8]:
        """Draw one simulation of a batch as it is now, uint8 [height, width, 3]."""
        if self._target is None:
            raise RuntimeError("the renderer is closed")
        batch.get_model(env_index, self._model)
        batch.get_data(env_index, self._data)
        mujoco.mj_forward(self._model, self._data)
        self._context.make_current()
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self._model, self._data, mujoco.MjvOption(), None, self._camera, everything, self._scene)
        view = mujoco.MjrRect(0, 0, self._width, self._height)
        mujoco.mjr_render(view, self._scene, self._target)
        pixels = np.empty((self._height, self._width, 3), np.uint8)
        mujoco.mjr_readPixels(pixels, None, view, self._target)
        return pixels[::-1].copy()  # OpenGL's first row is at the bottom

    def close(self) -> None:
        """Free the context; calling it twice is fine."""
        if self._target is not None:
            self._context.make_current()
            self._target.free()
            self._context.free()
            self._target = None


def choose_backend() -> str:
    """Return 'glfw', 'egl' or 'osmesa': from MUJOCO_GL, else what this machine supports."""
    asked = os.environ.get("MUJOCO_GL", "").strip().lower()
    if asked in ("glfw", "egl", "osmesa"):
        return asked
    if asked in ("0", "off", "false", "disable", "disabled"):
        raise RuntimeError(f"rendering is switched off by MUJOCO_GL={asked!r}; unset it, or set egl, osmesa or glfw")
    if asked not in ("", "1", "on", "true", "enable", "enabled"):
        raise RuntimeError(f"MUJOCO_GL={asked!r} is not a way to draw without a window; set egl, osmesa or glfw")
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return "glfw"
    for library, backend in (("EGL", "egl"), ("OSMesa", "osmesa")):
        if ctypes.util.find_library(library):
            return backend
    raise RuntimeError(f"no OpenGL library is installed. {_advice()}")


def make_context(width: int, height: int) -> Any:
    """Make an OpenGL context for off-screen rendering; an error names what to install."""
    backend = choose_backend()
    try:
        return _context_class(backend)(width, height)
    except Exception as error:  # PyOpenGL fails with nearly every type, AttributeError included
        raise RuntimeError(f"the OpenGL backend {backend!r} does not work here: {error}. {_advice()}") from error


def _context_class(backend: str) -> Any:
    if backend == "egl":
        from mujoco.egl import GLContext
    elif backend == "osmesa":
        from mujoco.osmesa import GLContext
    else:
        from mujoco.glfw import GLContext
    return GLContext


def _advice() -> str:
    return (
        f"On Debian or Ubuntu run: apt-get install {DEBIAN_PACKAGES}; "
        "then MUJOCO_GL=egl or MUJOCO_GL=osmesa chooses between them."
    )


def _camera(model: Any, name: str) -> Any:
    """Return the camera of that name, else the one named 'track', else one that follows the first moving body."""
    camera = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, camera)
    names = [model.camera(index).name for index in range(model.ncam)]
    if name and name not in names:
        raise ValueError(unknown("camera", name, filter(None, names), where="the model"))
    if name or "track" in names:
        camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        camera.fixedcamid = names.index(name or "track")
    elif model.nv > 0:
        camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
        camera.trackbodyid = int(model.dof_bodyid[0])
    return camera
