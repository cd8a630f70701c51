"""Parkour: a quadruped runs along a lane of obstacles and is told which skill the next one asks for.

    engaging_block [9]   the block that the robot is about to meet or is in

        0          1:6                              6        7      8
        distance   one-hot of the skill             length   size   direction
        m          walk tilt crawl jump leap        m        m      +1 up, -1 down, 0

A block is engaged from `reach` metres before its near edge until the robot has left it behind. While none is, 1:6 and
all that follows are zero: walk. So `engaging_block[..., 1:6]` selects a policy among several (all zero: the first), and
the sign of the last number tells jumping up from jumping down. What 'size' is for each skill stands in `parkour_field`.

The command is a speed along the lane with a turning rate that leads back to its middle, so a policy that tracks
velocity on flat ground can be put to work here unchanged. Whoever reaches the end has success: the episode ends there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.data.specs import ComponentSpec, TensorSpec
from striderl.envs.mujoco.base import Arrays, Bool, Float, Int, Rows
from striderl.envs.mujoco.height_scan import HeightScan, HeightScanConfig
from striderl.envs.mujoco.levels import Levels
from striderl.envs.mujoco.parkour_field import SKILLS, Lanes, ParkourFieldConfig
from striderl.envs.mujoco.quadruped_base import QuadrupedConfig, QuadrupedEnv
from striderl.envs.mujoco.streams import Range

ENGAGING_BLOCK = ComponentSpec(shape=(1 + len(SKILLS) + 3,))
"""The component `engaging_block`; its layout is drawn above."""

PARKOUR_REWARDS: dict[str, float] = {
    "progress": 3.0,
    "tracking_ang_vel": 0.75,
    "alive": 0.5,
    "feet_air_time": 0.2,
    "off_centre": -0.5,
    "lin_vel_z": -0.3,
    "ang_vel_xy": -0.03,
    "orientation": -0.3,
    "torques": -1.0e-4,
    "dof_acc": -2.5e-7,
    "action_rate": -0.01,
    "collision": -0.3,
    "trunk_contact": -0.3,
    "stumble": -0.2,
    "dof_pos_limits": -5.0,
    "hip_deviation": -0.2,
    "pose_deviation": -0.02,
    "fall": -2.0,
}
"""Weights per second: go on along the lane, and leave the body free to do what an obstacle takes."""


@dataclass(frozen=True, kw_only=True)
class ParkourConfig(QuadrupedConfig):
    """Settings of the parkour field."""

    max_episode_length: int = 1200
    """Steps after which an episode is truncated: 24 s, for 9 m of lane."""
    lanes: ParkourFieldConfig = field(default_factory=ParkourFieldConfig)
    """What the lanes look like."""
    speed: Range = (0.5, 1.0)
    """Range of the speed along the lane that is asked for in an episode, m/s."""
    reach: float = 1.2
    """How far before an obstacle it begins to be engaged, m from the middle of the trunk."""
    patience: float = 4.0
    """Seconds without getting further along the lane after which a robot is stuck, which counts as a fall."""
    first_levels: int = 1
    """Envs begin on this many of the lowest levels."""
    rising: bool = True
    """Whether the level of an env follows its success; else it keeps its first one."""
    scan: HeightScanConfig = field(
        default_factory=lambda: HeightScanConfig(ahead=(-0.4, 1.2), aside=(-0.4, 0.4), size=(17, 9))
    )
    """Where the height scan looks; it cannot see bars."""
    scan_group: str = "critic"
    """Who sees the height scan: 'policy' or 'critic'."""
    reward_weights: dict[str, float] = field(default_factory=lambda: dict(PARKOUR_REWARDS))
    """Weight per second of each reward term."""


def progress(env: Parkour) -> Float:
    """Return the speed along the lane as a share of what is asked for, at most 1."""
    return np.minimum(env.robot.world_vel[:, 0] / env.now.command[:, 0], 1.0)


def off_centre(env: Parkour) -> Float:
    """Return the distance from the lane's middle, m."""
    return np.abs(env.aside())


class Parkour(QuadrupedEnv):
    """N quadrupeds on lanes of obstacles."""

    SAVED_NAME: ClassVar[str] = "Parkour"

    config: ParkourConfig
    ground: Lanes
    task_rewards = {"progress": progress, "off_centre": off_centre}

    def __init__(self, config: ParkourConfig) -> None:
        """Build the envs."""
        if config.speed[0] <= 0.0:
            raise ValueError(f"ParkourConfig.speed wants speeds above 0, found {config.speed}")
        components = {"engaging_block": ENGAGING_BLOCK, "height_scan": config.scan.spec(config.scan_group)}
        super().__init__(
            config, Lanes(config.lanes), components=components, info_spec={"success": TensorSpec(dtype="bool")}
        )
        self.levels = Levels(
            self.streams,
            level=self.state_array("level", dtype=np.int64),
            num_levels=config.lanes.levels,
            num_columns=config.lanes.columns,
            first_levels=config.first_levels,
            rising=config.rising,
        )
        self._lane: Int = self.state_array("lane", dtype=np.int64)
        self._furthest: Float = self.state_array("furthest")
        self._waited: Float = self.state_array("waited")
        self._success_rate: Float = self.state_array("success_rate")
        self._scan = HeightScan(config.scan, self.ground, config.robot.standing_height)

    def start(self, ids: Int) -> tuple[Float, Float]:
        """Begin on the env's lane, about along it."""
        self.levels.begin(ids)
        level, column = self.levels.level[ids], self.levels.column[ids]
        self._lane[ids] = self.ground.lane(level, column)
        numbers = self.uniform("start/place", ids, 4, low=-1.0)
        place = self.ground.origin(level, column) + numbers[:, :2] * (0.3, 0.2)
        self._furthest[ids] = place[:, 0]
        self._waited[ids] = 0.0
        heading = 0.3 * numbers[:, 2]
        low, high = self.config.speed
        self.command[ids, 0] = low + (high - low) * 0.5 * (numbers[:, 3] + 1.0)
        self.command[ids, 1] = 0.0
        self.command[ids, 2] = self._turning(place[:, 1] - self._lane[ids] * self.config.lanes.distance, heading)
        return place, heading

    def aside(self) -> Float:
        """Return how far to the left of its lane's middle each robot is, m, [N]."""
        return np.asarray(self.qpos[:, 1] - self._lane * self.config.lanes.distance)

    def command_next(self) -> None:
        """Lead back to the lane's middle, and notice who gets further: two centimetres count."""
        further = self.qpos[:, 0] > self._furthest + 0.02
        self._waited += self.step_dt
        self._waited[further] = 0.0
        self._furthest[further] = self.qpos[further, 0]
        self.command[:, 2] = self._turning(self.aside(), self.robot.heading)

    def has_fallen(self) -> Bool:
        """Return who lies in a gap or in the pit (even a crawling robot has its trunk higher), and who is stuck."""
        return np.asarray((self.qpos[:, 2] < 0.12) | (self._waited > self.config.patience))

    def success(self) -> Bool:
        """Return who has reached the end of the lane, [N]."""
        return np.asarray((self.qpos[:, 0] > self.ground.length) & ~self.fell)

    def info(self) -> Mapping[str, NDArray[Any]]:
        """Return whether the end of the lane was reached in this step."""
        return {"success": self.success()}

    def observe_task(self, rows: Rows) -> Arrays:
        """Return the block ahead and the height scan."""
        return {"engaging_block": self.engaging_block(rows), "height_scan": self._scan.read(self.robot, rows)}

    def engaging_block(self, rows: Rows) -> Float:
        """Return what the picture at the top of this file shows, [n, 9]."""
        x = self.qpos[rows, 0]
        # the hind feet are about a quarter of a metre behind the middle of the trunk
        start, end, skill, size, direction = self.ground.next_block(self._lane[rows], x, behind=0.25).T
        distance = start - x
        engaged = distance < self.config.reach
        result = np.zeros((len(x), *ENGAGING_BLOCK.shape))
        result[:, 0] = np.minimum(distance, self.config.reach)
        result[np.arange(len(x)), 1 + skill.astype(np.int64)] = engaged
        result[:, 6] = (end - start) * engaged
        result[:, 7] = size * engaged
        result[:, 8] = direction * engaged
        return result

    def episode_ended(self, ids: Int) -> Mapping[str, float]:
        """Move robots that reached the end a level up, and those that did not reach the middle a level down."""
        log = dict(super().episode_ended(ids))
        done = self.success()[ids]
        self._success_rate[ids] += 0.2 * (done - self._success_rate[ids])
        self.levels.move(ids, up=done, down=self._furthest[ids] < 0.5 * self.ground.length)
        log["episode/success"] = float(done.mean())
        log["curriculum/level"] = float(self.levels.level.mean())
        return log

    def metrics(self) -> dict[str, Tensor]:
        """Return tracking error, cost of transport, level, and the success rate of each env's last episodes."""
        found = super().metrics()
        for name, value in (("level", self.levels.level), ("success_rate", self._success_rate)):
            found[name] = torch.from_numpy(value.astype(np.float32)).to(self.device)
        return found

    def _turning(self, aside: Float, heading: Float) -> Float:
        """Return the turning rate that leads back to the middle of the lane."""
        wanted = -np.arctan(1.5 * aside)
        error = (wanted - heading + np.pi) % (2.0 * np.pi) - np.pi
        return np.clip(1.5 * error, -0.8, 0.8)

    def truncated(self) -> Bool:
        """Return whose time is over, and who has reached the end: there is no more lane, but nothing bad happened."""
        return super().truncated() | self.success()
