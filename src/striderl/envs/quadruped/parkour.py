"""Parkour: a quadruped runs along a lane of obstacles and observes which skill the next one needs.

    engaging_block [9]   the block that the robot is about to meet or is in

        0          1:6                              6        7      8
        distance   one-hot of the skill             length   size   direction
        m          walk tilt crawl jump leap        m        m      +1 up, -1 down, 0

A block is engaged from `reach` metres before its near edge until the robot has left it behind. While none is, 1:6 and
all that follows are zero: walk. So `engaging_block[..., 1:6]` selects a policy among several (all zero: the first), and
the sign of the last number separates jumping up from jumping down. 'size' is defined for each skill below.

The command is a speed along the lane with a turning rate that leads back to its middle, so a policy that tracks
velocity on flat ground can be used here unchanged. Reaching the end is success and ends the episode.

Lanes of obstacles, all in one model: each env runs along one of them, and envs never meet.

    seen from above                                   seen from the side, one lane

    y ▲  lane 7  ──▢──▢──▢──▢──  level 1, column 3          ▛▀▀▜ bar        ┌────┐ box
      │    ⋮                                          ──────────────────────┘    └───────   ──────▶ x
      │  lane 0  ──▢──▢──▢──▢──  level 0, column 0    start   crawl   jump up, jump down leap  end
      └──▶ x                                                                             pit 1 m deep

    skill   obstacle                           size                                easy   hard
    0 walk  none                               0
    1 tilt  two walls, narrow passage          width between the walls, m          0.60   0.34
    2 crawl bar across the lane                clearance under the bar, m          0.44   0.28
    3 jump  box: up at its front, down at      height of the box, m                0.04   0.30
            its back, two blocks
    4 leap  gap in the floor                   length of the gap, m                0.04   0.50

A *block* is what a robot deals with at one time: [start, end] along the lane, a skill, a size, and +1 (up), -1 (down)
or 0. The lanes of one level have the same obstacles in different orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.data.naming import unknown
from striderl.data.specs import ComponentSpec, TensorSpec
from striderl.envs.mujoco.base import Rows
from striderl.envs.mujoco.simulation import Arrays, Bool, Float, Int
from striderl.envs.mujoco.streams import Range
from striderl.envs.quadruped.base import QuadrupedConfig, QuadrupedEnv
from striderl.envs.quadruped.commands import Levels
from striderl.envs.quadruped.robot import GroundXml
from striderl.envs.quadruped.sight import HeightScan, HeightScanConfig
from striderl.envs.quadruped.terrain import Ground

# -- lanes -------------------------------------------------------------------------------------------------------------


SKILLS = ("walk", "tilt", "crawl", "jump", "leap")
"""The skills; the place of a skill here is its place in the one-hot part of `engaging_block`."""
SIZES: Mapping[str, tuple[float, float]] = {
    "tilt": (0.60, 0.34),
    "crawl": (0.44, 0.28),
    "jump": (0.04, 0.30),
    "leap": (0.04, 0.50),
}
"""What the easiest and the hardest obstacle of a kind measure, m; see the table above."""
PIT = -1.0
"""Height of the ground next to the lanes and in the gaps, m."""

_GRID = 0.02  # every edge along a lane is a multiple of this, so the height table below is exact
_WALL = 0.5  # height of walls and bars, m
_LEAD_IN = 1.0  # free lane before the first obstacle, m
_BEHIND = 2.0  # floor behind the start, m
_AFTER = 2.0  # floor after the end, m


@dataclass(frozen=True, kw_only=True)
class ParkourFieldConfig:
    """What the lanes look like."""

    kinds: tuple[str, ...] = ("jump", "leap", "crawl", "tilt")
    """Which obstacles there are: names in `SKILLS`; 'walk' is a free stretch. One name alone trains one skill."""
    obstacles: int = 4
    """How many obstacles a lane has."""
    sizes: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Other sizes than those of `SIZES`, {kind: (easiest, hardest)}, m; the same twice is one size on all levels."""
    levels: int = 6
    """How many difficulties, from 0 (easy) up."""
    columns: int = 8
    """How many lanes, with different orders of obstacles, each level has."""
    spacing: float = 2.0
    """Length of lane for one obstacle with its run-up, m; at least 2."""
    width: float = 1.6
    """Width of a lane, m."""
    distance: float = 2.4
    """Distance between the middles of neighbouring lanes, m."""
    seed: int = 0
    """Where the order of obstacles comes from."""

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in SKILLS:
                raise ValueError(unknown("kind", kind, SKILLS, where="ParkourFieldConfig.kinds"))
        for kind, ends in self.sizes.items():
            if kind not in SIZES:
                raise ValueError(unknown("kind with a size", kind, SIZES, where="ParkourFieldConfig.sizes"))
            if len(ends) != 2 or min(ends) <= 0.0:
                raise ValueError(f"ParkourFieldConfig.sizes[{kind!r}] is (easiest, hardest) above 0, found {ends}")
        if not self.kinds or min(self.obstacles, self.levels, self.columns) < 1:
            raise ValueError("ParkourFieldConfig wants at least one kind, obstacle, level and column")
        if self.spacing < 2.0 or self.distance < self.width:
            raise ValueError(
                "ParkourFieldConfig wants spacing >= 2 and distance >= width, "
                f"found {self.spacing}, {self.distance} and {self.width}"
            )


class Block(NamedTuple):
    """What a robot deals with at one time."""

    start: float
    """Where it begins along the lane, m."""
    end: float
    """Where it ends, m."""
    skill: int
    """Place in `SKILLS`."""
    size: float
    """See the table above, m."""
    direction: float
    """1 for up, -1 for down, 0 for neither."""


NO_BLOCK = Block(1e6, 1e6, 0, 0.0, 0.0)
"""What comes after the last obstacle."""


class _Box(NamedTuple):
    """A box in a lane: ranges along the lane, across it from the middle, and in height."""

    x: tuple[float, float]
    y: tuple[float, float]
    z: tuple[float, float]


class Lanes(Ground):
    """The field: geoms for the physics, a table of heights, and the blocks of each lane."""

    def __init__(self, config: ParkourFieldConfig) -> None:
        self.config = config
        self.num_levels, self.num_columns = config.levels, config.columns
        self.length = _LEAD_IN + config.obstacles * config.spacing
        """Where a lane ends, m from its start."""
        num_lanes = config.levels * config.columns
        num_points = round((self.length + _BEHIND + _AFTER) / _GRID)
        self._floor = np.full((num_lanes, num_points), PIT, np.float32)
        self._passage = np.full((num_lanes, num_points), np.inf, np.float32)
        lanes = [self._lane(lane) for lane in range(num_lanes)]
        most = max(len(blocks) for _, blocks in lanes) + 1  # every lane ends with one that is never reached
        padded = [[*blocks, *[NO_BLOCK] * (most - len(blocks))] for _, blocks in lanes]
        self.blocks: Float = np.array(padded, np.float64).reshape(num_lanes, most, len(Block._fields))
        boxes = [(lane, box) for lane, (found, _) in enumerate(lanes) for box in found]
        for lane, box in boxes:
            self._draw(lane, box)
        self.xml = GroundXml(
            geoms=f'<geom name="pit" class="ground" type="plane" size="0 0 0.1" pos="0 0 {PIT}" material="floor"/>'
            + "".join(_box_xml(index, lane * config.distance, box) for index, (lane, box) in enumerate(boxes))
        )

    # -- interface of a ground -----------------------------------------------------------------------------------------

    def height(self, x: NDArray[np.floating], y: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the height of floor, boxes, walls or pit; bars, which one passes below, are left out."""
        lane = self.lane_at(y)
        aside = np.abs(y - lane * self.config.distance)
        point = np.floor((x + _BEHIND) * (1.0 / _GRID) + 1e-4).astype(np.int32)
        inside = (point >= 0) & (point < self._floor.shape[1]) & (aside <= 0.5 * self.config.width)
        point = np.clip(point, 0, self._floor.shape[1] - 1)
        floor = np.where(aside > self._passage[lane, point], _WALL, self._floor[lane, point])
        return np.where(inside, floor, PIT).astype(x.dtype)

    def origin(self, level: Int, column: Int) -> Float:
        """Return the start of a lane."""
        return np.stack([np.zeros(len(level)), self.lane(level, column) * self.config.distance], axis=1)

    def outside(self, x: Float, y: Float) -> Bool:
        """Return all false: a robot that leaves a lane falls into the pit."""
        return np.zeros(len(x), np.bool_)

    def lane(self, level: Int, column: Int) -> Int:
        """Return the number of a lane."""
        return np.asarray(level * self.config.columns + column, np.int64)

    def lane_at(self, y: NDArray[np.floating]) -> Int:
        """Return the number of the lane nearest to y."""
        nearest = np.floor(y * (1.0 / self.config.distance) + 0.5).astype(np.int64)
        return np.asarray(np.clip(nearest, 0, len(self._floor) - 1))

    def next_block(self, lane: Int, x: Float, *, behind: float) -> Float:
        """Return the fields of the first block that ends after x - behind, [n, 5], or `NO_BLOCK`."""
        passed = (self.blocks[lane, :, 1] < x[:, None] - behind).sum(axis=1)
        found: Float = self.blocks[lane, passed]
        return found

    # -- building ------------------------------------------------------------------------------------------------------

    def _lane(self, lane: int) -> tuple[list[_Box], list[Block]]:
        """Lay out one lane: its boxes and its blocks in the order in which they come."""
        config = self.config
        level, column = divmod(lane, config.columns)
        random = np.random.default_rng([config.seed, column])
        # whole rounds through the kinds, each one shuffled, so that no kind is left out of a lane that has room
        rounds = -(-config.obstacles // len(config.kinds))
        order = np.concatenate([random.permutation(len(config.kinds)) for _ in range(rounds)])[: config.obstacles]
        boxes: list[_Box] = []
        blocks: list[Block] = []
        floor_from, half = -_BEHIND, 0.5 * config.width
        for place, kind in enumerate(order):
            near = _rounded(_LEAD_IN + place * config.spacing + 0.5)
            name = config.kinds[kind]
            easiest, hardest = {**SIZES, **config.sizes}.get(name, (0.0, 0.0))
            size = _rounded(easiest + (hardest - easiest) * level / max(config.levels - 1, 1))
            found, met = _obstacle(name, near, size, half)
            boxes += found
            blocks += met
            if name == "leap":
                boxes.append(_Box((floor_from, met[0].start), (-half, half), (PIT, 0.0)))
                floor_from = met[0].end
        boxes.append(_Box((floor_from, self.length + _AFTER), (-half, half), (PIT, 0.0)))
        return boxes, blocks

    def _draw(self, lane: int, box: _Box) -> None:
        """Write a box into the tables; one that floats is a bar, one that is narrower than the lane a wall."""
        if box.z[0] > 0.0:
            return
        span = slice(*(round((edge + _BEHIND) / _GRID) for edge in box.x))
        if box.y[1] - box.y[0] < self.config.width - 1e-9:
            self._passage[lane, span] = min(abs(edge) for edge in box.y)
        else:
            self._floor[lane, span] = np.maximum(self._floor[lane, span], box.z[1])


def _obstacle(kind: str, near: float, size: float, half: float) -> tuple[list[_Box], list[Block]]:
    """Return boxes and blocks of one obstacle whose near edge is at `near` in a lane of this half width."""
    skill = SKILLS.index(kind)
    if kind == "tilt":
        inner, far = 0.5 * size, near + 0.8
        walls = [_Box((near, far), (inner, half), (0.0, _WALL)), _Box((near, far), (-half, -inner), (0.0, _WALL))]
        return walls, [Block(near, far, skill, size, 0.0)]
    if kind == "crawl":
        far = near + 0.3
        return [_Box((near, far), (-half, half), (size, size + _WALL))], [Block(near, far, skill, size, 0.0)]
    if kind == "jump":
        far = near + 0.9
        box = _Box((near, far), (-half, half), (0.0, size))
        return [box], [Block(near, near + 0.1, skill, size, 1.0), Block(far, far + 0.1, skill, size, -1.0)]
    if kind == "leap":
        return [], [Block(near, near + size, skill, size, 0.0)]
    return [], []


def _rounded(size: float) -> float:
    """Return a size as a multiple of the grid."""
    return round(size / _GRID) * _GRID


def _box_xml(index: int, middle: float, box: _Box) -> str:
    (x0, x1), (y0, y1), (z0, z1) = box
    looks = 'material="floor"' if z1 <= 0.0 else 'rgba="0.80 0.62 0.42 1"'
    position = f"{0.5 * (x0 + x1):.4f} {middle + 0.5 * (y0 + y1):.4f} {0.5 * (z0 + z1):.4f}"
    size = f"{0.5 * (x1 - x0):.4f} {0.5 * (y1 - y0):.4f} {0.5 * (z1 - z0):.4f}"
    return f'<geom name="lane_{index}" class="ground" type="box" pos="{position}" size="{size}" {looks}/>'


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
    """Range of the commanded speed along the lane, m/s."""
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
    """Group of the height scan: 'policy' or 'critic'."""
    reward_weights: dict[str, float] = field(default_factory=lambda: dict(PARKOUR_REWARDS))
    """Weight per second of each reward term."""


def progress(env: Parkour) -> Float:
    """Return the speed along the lane as a share of the commanded one, at most 1."""
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
        self.lane: Int = self.state_array("lane", dtype=np.int64)
        self.furthest: Float = self.state_array("furthest")
        self._waited: Float = self.state_array("waited")
        self._success_rate: Float = self.state_array("success_rate")
        self._scan = HeightScan(config.scan, self.ground, config.robot.standing_height)

    def start(self, ids: Int) -> tuple[Float, Float]:
        """Begin on the env's lane, about along it."""
        self.levels.begin(ids)
        level, column = self.levels.level[ids], self.levels.column[ids]
        self.lane[ids] = self.ground.lane(level, column)
        numbers = self.uniform("start/place", ids, 4, low=-1.0)
        place = self.ground.origin(level, column) + numbers[:, :2] * (0.3, 0.2)
        self.furthest[ids] = place[:, 0]
        self._waited[ids] = 0.0
        heading = 0.3 * numbers[:, 2]
        low, high = self.config.speed
        self.command[ids, 0] = low + (high - low) * 0.5 * (numbers[:, 3] + 1.0)
        self.command[ids, 1] = 0.0
        self.command[ids, 2] = self._turning(place[:, 1] - self.lane[ids] * self.config.lanes.distance, heading)
        return place, heading

    def aside(self) -> Float:
        """Return how far to the left of its lane's middle each robot is, m, [N]."""
        return np.asarray(self.qpos[:, 1] - self.lane * self.config.lanes.distance)

    def command_next(self) -> None:
        """Command back to the lane's middle, and update progress: two centimetres count."""
        further = self.qpos[:, 0] > self.furthest + 0.02
        self._waited += self.step_dt
        self._waited[further] = 0.0
        self.furthest[further] = self.qpos[further, 0]
        self.command[:, 2] = self._turning(self.aside(), self.robot.heading)

    def has_fallen(self) -> Bool:
        """Return which robots are in a gap or the pit (even a crawling trunk is higher), or stuck."""
        return np.asarray((self.qpos[:, 2] < 0.12) | (self._waited > self.config.patience))

    def success(self) -> Bool:
        """Return which robots have reached the end of the lane, [N]."""
        return np.asarray((self.qpos[:, 0] > self.ground.length) & ~self.fell)

    def info(self) -> Mapping[str, NDArray[Any]]:
        """Return whether the end of the lane was reached in this step."""
        return {"success": self.success()}

    def observe_task(self, rows: Rows) -> Arrays:
        """Return the block ahead and the height scan."""
        return {"engaging_block": self.engaging_block(rows), "height_scan": self._scan.read(self.robot, rows)}

    def engaging_block(self, rows: Rows) -> Float:
        """Return `engaging_block` as drawn at the top of this file, [n, 9]."""
        x = self.qpos[rows, 0]
        # the hind feet are about a quarter of a metre behind the middle of the trunk
        start, end, skill, size, direction = self.ground.next_block(self.lane[rows], x, behind=0.25).T
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
        self.levels.move(ids, up=done, down=self.furthest[ids] < 0.5 * self.ground.length)
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
        """Return which episodes timed out or reached the end of the lane, which is no failure."""
        return super().truncated() | self.success()
