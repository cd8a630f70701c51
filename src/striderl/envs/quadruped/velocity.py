"""A quadruped that follows velocity commands: on flat ground, or on rough terrain with a scan, blind, or with a camera.

task               ground   policy sees besides proprioception          critic alone
Quadruped          plane    true base velocity                          friction, mass, forces, …
QuadrupedRough     field    true base velocity, height_scan             the same
QuadrupedBlind     field    nothing                                     and base velocity, height_scan
QuadrupedDepth     field    forward_depth                               and base velocity, height_scan

env = Quadruped(QuadrupedVelocityConfig(num_envs=256))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from striderl.data.specs import ComponentSpec
from striderl.envs.mujoco.base import Rows
from striderl.envs.mujoco.simulation import Arrays, Bool, Float, Int
from striderl.envs.quadruped.base import QuadrupedConfig, QuadrupedEnv
from striderl.envs.quadruped.commands import CommandConfig, Levels, VelocityCommands
from striderl.envs.quadruped.rewards import ROUGH_REWARDS
from striderl.envs.quadruped.sight import DepthCamera, DepthCameraConfig, HeightScan, HeightScanConfig
from striderl.envs.quadruped.terrain import ROUGH_KINDS, TerrainConfig, build_ground


@dataclass(frozen=True, kw_only=True)
class QuadrupedVelocityConfig(QuadrupedConfig):
    """Settings of velocity tracking on flat ground, and of all tasks below."""

    terrain: TerrainConfig = field(default_factory=TerrainConfig)
    """What the robot walks on."""
    commands: CommandConfig = field(default_factory=CommandConfig)
    """The commanded velocities."""
    first_levels: int = 2
    """Envs begin on this many of the lowest terrain levels."""
    rising: bool = True
    """Whether the terrain level of an env follows its success; else it keeps its first one."""
    scan: HeightScanConfig = field(default_factory=HeightScanConfig)
    """Where the height scan looks."""
    scan_group: str = ""
    """Group of the height scan: 'policy', 'critic', or empty for no scan."""


@dataclass(frozen=True, kw_only=True)
class QuadrupedRoughConfig(QuadrupedVelocityConfig):
    """Settings of rough terrain that the policy sees."""

    terrain: TerrainConfig = field(default_factory=lambda: TerrainConfig(kinds=ROUGH_KINDS))
    """What the robot walks on."""
    scan_group: str = "policy"
    """Group of the height scan."""
    reward_weights: dict[str, float] = field(default_factory=lambda: dict(ROUGH_REWARDS))
    """Weight per second of each reward term."""


@dataclass(frozen=True, kw_only=True)
class QuadrupedBlindConfig(QuadrupedRoughConfig):
    """Settings of rough terrain that only the critic (or a teacher) sees."""

    observe_lin_vel: bool = False
    """Whether the policy sees the true velocity of the trunk."""
    scan_group: str = "critic"
    """Group of the height scan."""


@dataclass(frozen=True, kw_only=True)
class QuadrupedDepthConfig(QuadrupedBlindConfig):
    """Settings of rough terrain that the policy sees through a depth camera."""

    depth: DepthCameraConfig = field(default_factory=DepthCameraConfig)
    """Pose and optics of the depth camera."""


class Quadruped(QuadrupedEnv):
    """Velocity tracking on any terrain, with a height scan if configured."""

    SAVED_NAME: ClassVar[str] = "Quadruped"

    config: QuadrupedVelocityConfig

    def __init__(
        self, config: QuadrupedVelocityConfig, *, components: Mapping[str, ComponentSpec] | None = None
    ) -> None:
        """Build the envs; a subclass may add components."""
        scan = {"height_scan": config.scan.spec(config.scan_group)} if config.scan_group else {}
        super().__init__(config, build_ground(config.terrain), components={**scan, **(components or {})})
        count: Int = self.state_array("command_count", dtype=np.int64)
        self.commands = VelocityCommands(config.commands, self.streams, current=self.command, count=count)
        self._origin: Float = self.state_array("origin", (2,))
        self.asked_distance: Float = self.state_array("asked_distance")
        self.followed_distance: Float = self.state_array("followed_distance")
        self.furthest: Float = self.state_array("furthest")
        self.levels = Levels(
            self.streams,
            level=self.state_array("level", dtype=np.int64),
            num_levels=self.ground.num_levels,
            num_columns=self.ground.num_columns,
            first_levels=config.first_levels,
            rising=config.rising,
        )
        self._scan = HeightScan(config.scan, self.ground, config.robot.standing_height)

    def start(self, ids: Int) -> tuple[Float, Float]:
        """Begin near the middle of the env's patch, facing anywhere, with a first command."""
        self.levels.begin(ids)
        numbers = self.uniform("start/place", ids, 3, low=-1.0)
        place = self.ground.origin(self.levels.level[ids], self.levels.column[ids]) + 0.5 * numbers[:, :2]
        self._origin[ids] = place
        self.asked_distance[ids] = 0.0
        self.followed_distance[ids] = 0.0
        self.furthest[ids] = 0.0
        self.commands.begin(ids)
        return place, np.pi * numbers[:, 2]

    def command_next(self) -> None:
        """Measure how far the command was followed, and draw new ones where it is time."""
        asked = self.command[:, :2]
        speed = np.sqrt(np.square(asked).sum(axis=1))
        self.asked_distance += speed * self.step_dt
        self.followed_distance += (
            (asked * self.robot.lin_vel[:, :2]).sum(axis=1) / np.maximum(speed, 1e-6) * self.step_dt
        )
        away = np.sqrt(np.square(self.qpos[:, :2] - self._origin).sum(axis=1))
        np.maximum(self.furthest, away, out=self.furthest)
        self.commands.advance(self.episode_length)

    def has_fallen(self) -> Bool:
        """Return which robots touch the ground with trunk or head."""
        return self.robot.trunk_contact

    def observe_task(self, rows: Rows) -> Arrays:
        """Return the height scan, if there is one."""
        return {"height_scan": self._scan.read(self.robot, rows)} if self.config.scan_group else {}

    def episode_ended(self, ids: Int) -> Mapping[str, float]:
        """Raise the level of robots that left their patch's middle as commanded, lower that of those that did not."""
        log = dict(super().episode_ended(ids))
        if self.ground.num_levels > 1:
            followed, fell = self.followed_distance[ids], self.fell[ids]
            # a robot that fell is compared with the distance commanded for the whole episode
            share = np.where(fell, self.max_episode_length / np.maximum(self.episode_length[ids], 1), 1.0)
            asked = self.asked_distance[ids] * np.maximum(share, 1.0)
            # the middle of a patch is level, so only robots that left it are counted; not those commanded to stand
            left = self.furthest[ids] > 0.2 * self.config.terrain.patch_size
            up = (followed > 0.75 * asked) & left & ~fell
            self.levels.move(ids, up=up, down=(followed < 0.5 * asked) & (asked > 1.0))
            log["curriculum/level"] = float(self.levels.level.mean())
        return log

    def metrics(self) -> dict[str, Tensor]:
        """Return tracking error, cost of transport, and where there are several the terrain level of each env."""
        found = super().metrics()
        if self.ground.num_levels > 1:
            found["terrain_level"] = torch.from_numpy(self.levels.level.astype(np.float32)).to(self.device)
        return found

    def truncated(self) -> Bool:
        """Return which episodes timed out or left the field: there is no more ground, but no fall."""
        return super().truncated() | self.ground.outside(self.qpos[:, 0], self.qpos[:, 1])


class QuadrupedRough(Quadruped):
    """Velocity tracking on rough terrain with a height scan."""

    SAVED_NAME: ClassVar[str] = "QuadrupedRough"


class QuadrupedBlind(Quadruped):
    """Velocity tracking on rough terrain by proprioception alone."""

    SAVED_NAME: ClassVar[str] = "QuadrupedBlind"


class QuadrupedDepth(Quadruped):
    """Velocity tracking on rough terrain with a depth camera that looks ahead."""

    SAVED_NAME: ClassVar[str] = "QuadrupedDepth"

    config: QuadrupedDepthConfig

    def __init__(self, config: QuadrupedDepthConfig) -> None:
        """Build the envs and the camera."""
        super().__init__(config, components={"forward_depth": config.depth.spec("policy")})
        self.camera = DepthCamera(config.depth, self.ground)
        self._image = self.state_array("forward_depth", self.obs_spec["forward_depth"].shape, np.uint8)

    def look(self, rows: Rows) -> None:
        """Take the pictures that are due: of some envs in each step, and of those that begin an episode."""
        every = self.config.depth.interval
        if isinstance(rows, slice):
            ids = np.flatnonzero((self.episode_length + self.streams.env_index) % every == 0)
        else:
            ids = rows
        if len(ids):
            self._image[ids] = self.camera.pictures(self.robot, ids)

    def observe_task(self, rows: Rows) -> Arrays:
        """Return the newest picture and the height scan for the critic."""
        return {**super().observe_task(rows), "forward_depth": self._image[rows]}
