"""A task that can be computed by hand: a 2 kg block on a rail, pushed by a motor of 10 N.

One substep of 0.01 s at full throttle adds 10 / 2 · 0.01 = 0.05 m/s, and MuJoCo moves the block with the new velocity.
A puck lies on the floor and can slide along it, for friction and contacts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np

from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.envs.mujoco.base import Arrays, Bool, Float, Int, MujocoConfig, MujocoEnv, Rows
from striderl.envs.mujoco.disturbances import ActionLatency, ObservationLatency, ObservationNoise, Push
from striderl.envs.mujoco.randomize import ActuatorGain, BodyMass, Friction, Randomization

SLIDER_XML = """
<mujoco>
  <option timestep="0.01" integrator="Euler"/>
  <worldbody>
    <light pos="0 -2 3"/>
    <geom name="floor" type="plane" size="5 5 0.1"/>
    <body name="block" pos="0 0 1">
      <joint name="rail" type="slide" axis="1 0 0"/>
      <geom name="block" type="box" size="0.1 0.1 0.1" mass="2" rgba="1 0 0 1" contype="0" conaffinity="0"/>
    </body>
    <body name="puck" pos="0 1 0.05">
      <joint name="puck_x" type="slide" axis="1 0 0"/>
      <joint name="puck_z" type="slide" axis="0 0 1"/>
      <geom name="puck" type="box" size="0.1 0.1 0.05" mass="1" rgba="0 0 1 1"/>
    </body>
  </worldbody>
  <equality><joint joint1="rail" active="false"/></equality>
  <actuator><motor name="motor" joint="rail" gear="10" ctrlrange="-1 1" ctrllimited="true"/></actuator>
</mujoco>
"""


class Slider(MujocoEnv):
    """Push the block; the episode ends when it is more than 0.5 m away."""

    def __init__(
        self, config: MujocoConfig, randomize: Sequence[Randomization] = (), *, start: float = 0.0, **settings: Any
    ) -> None:
        spec = ObsSpec({"state": ComponentSpec(shape=(2,)), "place": ComponentSpec(shape=(3,), group="critic")})
        super().__init__(
            mujoco.MjModel.from_xml_string(SLIDER_XML),
            config,
            obs_spec=spec,
            reward_weights={"speed": 1.0, "effort": -0.5},
            info_spec={"pushed": TensorSpec(dtype="float64")},
            randomize=randomize,
            **settings,
        )
        self.start = start
        self.place: Float = self.bind("xpos")[:, 1]
        self.pushed: Float = self.state_array("pushed")
        self.ended: list[int] = []

    def reset_state(self, ids: Int) -> None:
        self.qpos[ids, :1] = self.uniform("x", ids, 1, low=-self.start, high=self.start)
        self.pushed[ids] = 0.0

    def apply_action(self, actions: Float) -> None:
        self.ctrl[:] = actions

    def after_physics(self) -> None:
        self.pushed += np.abs(self.actions[:, 0])

    def observe(self, rows: Rows) -> Arrays:
        state = np.stack([self.qpos[rows, 0], self.qvel[rows, 0]], axis=1)
        return {"state": state, "place": self.place[rows]}

    def terminated(self) -> Bool:
        return np.asarray(np.abs(self.qpos[:, 0]) > 0.5)

    def rewards(self) -> Mapping[str, Float]:
        return {"speed": self.qvel[:, 0], "effort": np.square(self.actions).sum(axis=1)}

    def info(self) -> Mapping[str, Float]:
        return {"pushed": self.pushed}

    def episode_ended(self, ids: Int) -> Mapping[str, float]:
        self.ended.extend(ids.tolist())
        return {"episode/pushed": float(self.pushed[ids].mean())}


def every_term() -> list[Randomization]:
    """One of each kind of randomisation."""
    return [
        BodyMass(bodies=("block",), scale=(0.5, 2.0)),
        Friction(sliding=(0.3, 1.0)),
        ActuatorGain(kp=(0.8, 1.2)),
        Push(interval=(3, 9), velocity=(0.3,), dofs=(0,)),
        ObservationLatency(component="place", min_steps=0, max_steps=3),
        ObservationNoise(component="state", std=0.01),
        ObservationNoise(component="place", uniform=0.02),
        ActionLatency(min_steps=0, max_steps=2),
    ]
