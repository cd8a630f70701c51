"""Frames without a display: they show something, follow the robot, and a missing library is named."""

from __future__ import annotations

import ctypes.util
import sys

import numpy as np
import pytest
import torch
from mujoco_slider_task import Slider

from striderl.envs.mujoco import rendering
from striderl.envs.mujoco.base import MujocoConfig
from striderl.envs.mujoco.gym_tasks import CONFIGS, TASKS


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_frame_of_each_task_shows_the_robot(name: str):
    env = TASKS[name](CONFIGS[name](num_envs=2, num_threads=1, render_height=120, render_width=160))
    env.reset(seed=0)
    low, high = env.action_spec.bounds()
    env.step(torch.from_numpy(np.stack([low, high])))
    frame = env.render(1)
    assert (frame.shape, frame.dtype) == ((120, 160, 3), np.uint8)
    assert frame.std() > 20.0 and frame.mean() > 20.0, "not black"
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 100, "not one colour"
    env.qpos[1, 0] += 0.3
    env.qpos[1, 2 if env.model.nq > env.model.nv else 1] += 0.5  # lift it: the picture changes
    assert np.abs(frame.astype(int) - env.render(1)).max() > 20
    env.close()
    env.close()


def test_rendering_changes_nothing():
    seen = []
    for draws in (False, True):
        env = Slider(MujocoConfig(num_envs=2, num_threads=1, render_height=60, render_width=80), persistent=True)
        env.reset(seed=0)
        for _ in range(5):
            step = env.step(torch.ones(2, 1))
            if draws:
                env.render(0)
        seen.append(step)
        env.close()
    assert torch.equal(seen[0].obs["state"], seen[1].obs["state"])
    assert torch.equal(seen[0].obs["place"], seen[1].obs["place"])


def test_each_env_is_drawn_as_it_is():
    with Slider(MujocoConfig(num_envs=2, num_threads=1, render_height=120, render_width=160)) as env:
        env.reset(seed=0)
        env.qpos[1, 1] = 0.5  # its puck lies elsewhere
        assert np.array_equal(env.render(0), env.render(0))
        assert np.abs(env.render(0).astype(int) - env.render(1)).max() > 20


def test_a_camera_that_is_not_there_is_named():
    config = CONFIGS["half_cheetah"](camera="trak")
    env = TASKS["half_cheetah"](config)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"the model has no camera 'trak'. Did you mean 'track'"):
        env.render()


def test_before_a_reset_there_is_nothing_to_draw():
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        Slider(MujocoConfig()).render()


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A Linux machine without a display and without settings."""
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    return monkeypatch


@pytest.mark.parametrize(
    ("libraries", "settings", "wanted"),
    [
        ({"EGL", "OSMesa"}, {}, "egl"),
        ({"OSMesa"}, {}, "osmesa"),
        ({"EGL"}, {"DISPLAY": ":0"}, "glfw"),
        ({"EGL"}, {"WAYLAND_DISPLAY": "wayland-0"}, "glfw"),
        ({"EGL"}, {"MUJOCO_GL": "osmesa"}, "osmesa"),
        ({"EGL"}, {"MUJOCO_GL": "EGL", "DISPLAY": ":0"}, "egl"),
        ({"EGL"}, {"MUJOCO_GL": "on"}, "egl"),
    ],
)
def test_backend_is_chosen_for_the_machine(
    bare_machine: pytest.MonkeyPatch, libraries: set[str], settings: dict[str, str], wanted: str
):
    bare_machine.setattr(ctypes.util, "find_library", lambda name: name if name in libraries else None)
    for name, value in settings.items():
        bare_machine.setenv(name, value)
    assert rendering.choose_backend() == wanted


def test_a_machine_without_opengl_is_told_what_to_install(bare_machine: pytest.MonkeyPatch):
    bare_machine.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(RuntimeError, match="apt-get install libegl1 libegl-mesa0 libgl1 libosmesa6"):
        rendering.make_context(10, 10)


def test_a_backend_that_breaks_is_told_what_to_install(bare_machine: pytest.MonkeyPatch):
    def broken(backend: str) -> None:
        raise AttributeError("'NoneType' object has no attribute 'glGetError'")

    bare_machine.setenv("MUJOCO_GL", "osmesa")
    bare_machine.setattr(rendering, "_context_class", broken)
    with pytest.raises(RuntimeError, match=r"'osmesa' does not work here.*glGetError.*apt-get install"):
        rendering.make_context(10, 10)


@pytest.mark.parametrize(("value", "message"), [("off", "switched off"), ("vulkan", "set egl, osmesa or glfw")])
def test_settings_that_cannot_draw_are_refused(bare_machine: pytest.MonkeyPatch, value: str, message: str):
    bare_machine.setenv("MUJOCO_GL", value)
    with pytest.raises(RuntimeError, match=message):
        rendering.choose_backend()
