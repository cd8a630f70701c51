"""Record `MotionClip`s of any policy: run it and cut its motion at every reset.

    env 0   o o o o o f ┃ o o o o …         f is the final observation: it ends the piece that it belongs to
    env 1   o o o o o o o o f ┃ o …         ┃ reset; the frame after it begins another piece
            └── clip ──┘     └── clip …     pieces shorter than `min_seconds` are dropped

The frames are the env's motion components (a group or component called 'motion' unless named otherwise), one per step
of the env. A step that is not valid, such as one of a simulation that failed, ends its piece too and is left out.

Clips of the built-in quadruped: the procedural trot, for one velocity or for all commanded ones.

loader = AMPLoader([trot_clip()], quadruped_loader_config(env.step_dt))
loader = AMPLoader(trot_clips(env.config.commands), quadruped_loader_config(env.step_dt))
clips  = record_motion(env, actor, 500, quadruped_recorder_config())
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.collect.actors.base import Actor, ScriptedActor
from striderl.collect.collector import Collector
from striderl.collect.schedules import CollectorConfig
from striderl.data.checked_fields import suggests_fields
from striderl.data.specs import ObsSpec
from striderl.data.transition import Transition
from striderl.datasets.motion.amp_loader import AMPLoaderConfig
from striderl.datasets.motion.clip import ClipError, ClipField, MotionClip, standard_fields
from striderl.envs.quadruped.base import MOTION_SPEC
from striderl.envs.quadruped.commands import CommandConfig
from striderl.envs.quadruped.robot import FOOT_NAMES, JOINT_NAMES
from striderl.envs.quadruped.trot import JOINT_MIRROR, TrotConfig, trot
from striderl.envs.vec_env import VecEnv

Frame = NDArray[Any]
Act = Callable[[dict[str, Tensor]], Any]


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class MotionRecorderConfig:
    """What is recorded of an env, and which pieces are kept."""

    fields: Mapping[str, ClipField]
    """What the numbers of the motion observation are, in order; those of the built-in quadruped are
    `quadruped_fields(MOTION_SPEC.names)`."""
    components: tuple[str, ...] = ("motion",)
    """Which components or groups of the observation hold them."""
    also: Mapping[str, ClipField] = field(default_factory=dict)
    """Other components to record as fields of their own names, such as 'foot_contacts'."""
    joint_names: tuple[str, ...] = ()
    """The order of the joints."""
    foot_names: tuple[str, ...] = ()
    """The order of the feet."""
    skip_seconds: float = 0.0
    """How much of the beginning of each episode is left out: standing up is no part of a gait."""
    min_seconds: float = 0.5
    """Shorter pieces are dropped."""
    keep_falls: bool = False
    """Whether a piece that ended because the task terminated is kept."""
    seed: int = 0
    """The seed of the env and of the actor's noise."""

    def __post_init__(self) -> None:
        if not self.fields:
            raise ValueError("MotionRecorderConfig.fields says what is recorded; it is empty")
        if self.skip_seconds < 0.0 or self.min_seconds < 0.0:
            raise ValueError("skip_seconds and min_seconds are not negative")


class MotionRecorder:
    """Take transitions like a storage and cut them into clips; `record_motion` is the short way."""

    balanced = False

    def __init__(self, env: VecEnv, config: MotionRecorderConfig) -> None:
        """Check that the env gives the recorded components; nothing is stepped."""
        if not env.step_dt > 0.0:
            raise ClipError(f"{type(env).__name__} has no time (step_dt is 0), so its steps make no clip")
        self._spec = env.obs_spec.select(config.components)
        wanted = sum(kind.size for kind in config.fields.values())
        if wanted != self._spec.size:
            raise ClipError(
                f"the fields {list(config.fields)} have {wanted} numbers, the components {self._spec} of "
                f"{type(env).__name__} have {self._spec.size}"
            )
        for name, kind in config.also.items():
            if env.obs_spec[name].size != kind.size or name in config.fields:
                raise ClipError(f"{name!r} has {env.obs_spec[name].size} numbers, or is among the fields already")
        self.config, self._step_dt = config, env.step_dt
        self._extra = ObsSpec({name: env.obs_spec[name] for name in config.also})
        self._pieces: list[list[Frame]] = [[] for _ in range(env.num_envs)]
        self._skipped = [0] * env.num_envs
        self._finished: list[tuple[int, list[Frame]]] = []
        self.num_dropped = 0
        """How many pieces were too short, or ended in a fall."""

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Take the next step of these envs."""
        before = self._frames(transition.obs)
        # without final observations, what the env shows after an end belongs to the next episode
        after = self._frames(transition.obs_next())
        done, terminated, valid = (
            each.cpu().numpy() for each in (transition.done, transition.terminated, transition.valid)
        )
        start = 0 if envs is None else envs.start
        for row in range(len(done)):
            env = start + row
            if not valid[row]:
                self._end(env, fell=False)
                continue
            self._append(env, before[row])
            if done[row]:
                # where a non-finite number ended the episode, the final observation repeats the last valid one
                if transition.final_obs is not None and not np.array_equal(after[row], before[row]):
                    self._append(env, after[row])
                self._end(env, fell=bool(terminated[row]))

    def clips(self, name: str = "recorded", about: Mapping[str, Any] | None = None) -> list[MotionClip]:
        """Return the clips so far, open pieces included, env by env.

        A clip weighs as much as it has of the recording's time, so drawing from all of them is uniform in time.
        """
        unfinished = [(env, piece) for env, piece in enumerate(self._pieces) if self._is_long(piece)]
        pieces = sorted([*self._finished, *unfinished], key=lambda each: each[0])
        total = sum(len(piece) - 1 for _, piece in pieces)
        return [
            self._clip(f"{name} {number}", piece, (len(piece) - 1) / total, {**(about or {}), "env_index": env})
            for number, (env, piece) in enumerate(pieces)
        ]

    def _frames(self, obs: Mapping[str, Tensor]) -> Frame:
        parts = [self._spec.flatten({name: obs[name].float() for name in self._spec})]
        if self._extra:
            parts.append(self._extra.flatten({name: obs[name].float() for name in self._extra}))
        return np.asarray(torch.cat(parts, dim=-1).detach().cpu().numpy())

    def _append(self, env: int, frame: Frame) -> None:
        if self._skipped[env] < round(self.config.skip_seconds / self._step_dt):
            self._skipped[env] += 1
        else:
            self._pieces[env].append(frame)

    def _end(self, env: int, *, fell: bool) -> None:
        piece, self._pieces[env], self._skipped[env] = self._pieces[env], [], 0
        if self._is_long(piece) and (self.config.keep_falls or not fell):
            self._finished.append((env, piece))
        elif piece:
            self.num_dropped += 1

    def _is_long(self, piece: list[Frame]) -> bool:
        return len(piece) >= 2 and (len(piece) - 1) * self._step_dt >= self.config.min_seconds - 1e-9

    def _clip(self, name: str, piece: list[Frame], weight: float, about: Mapping[str, Any]) -> MotionClip:
        fields = {**self.config.fields, **self.config.also}
        ends = np.cumsum([kind.size for kind in fields.values()])
        parts = np.split(np.stack(piece), ends[:-1], axis=1)
        return MotionClip(
            name=name,
            frame_duration=self._step_dt,
            fields=fields,
            values=dict(zip(fields, parts, strict=True)),
            weight=weight,
            joint_names=self.config.joint_names,
            foot_names=self.config.foot_names,
            about=about,
        )


def record_motion(
    env: VecEnv, actor: Actor | Act, num_steps: int, config: MotionRecorderConfig, *, name: str = "recorded"
) -> list[MotionClip]:
    """Run an actor, or a function from observations to actions, for so many steps of each env; return the clips.

    The env is reset and left mid-way, so it must not be one that trains.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps is at least 1, found {num_steps}")
    player = actor if isinstance(actor, Actor) else ScriptedActor(actor)
    recorder = MotionRecorder(env, config)
    collector = Collector(env, player, CollectorConfig(seed=config.seed))
    with torch.no_grad():
        collector.reset(config.seed)
        collector.collect(n_step=num_steps * env.num_envs, storage=recorder)
    return recorder.clips(name, {"env": type(env).__name__, "seed": config.seed})


# -- the quadruped -----------------------------------------------------------------------------------------------------


def quadruped_fields(names: Sequence[str] = MOTION_SPEC.names) -> dict[str, ClipField]:
    """Describe fields of the quadruped's motion, with their mirror images; those of its observation unless named."""
    return standard_fields(names, joint_names=JOINT_NAMES, foot_names=FOOT_NAMES, mirror=JOINT_MIRROR)


def trot_clip(config: TrotConfig | None = None, *, name: str = "trot", weight: float = 1.0) -> MotionClip:
    """Make the procedural trot as a clip; one that does not turn wraps."""
    config = config or TrotConfig()
    motion = trot(config)
    settings: dict[str, Any] = {key: value for key, value in asdict(config).items() if key != "robot"}
    return MotionClip(
        name=name,
        frame_duration=motion.frame_duration,
        fields=quadruped_fields(tuple(motion.values)),
        values=motion.values,
        weight=weight,
        loop="wrap" if motion.closed else "clamp",
        joint_names=JOINT_NAMES,
        foot_names=FOOT_NAMES,
        about={"made_by": "striderl trot", **settings},
    )


def trot_clips(
    commands: CommandConfig | None = None, count: int = 32, config: TrotConfig | None = None
) -> list[MotionClip]:
    """Make trots whose velocities fill the ranges of the commands evenly, so that style and task do not contradict.

    A discriminator sees how fast a robot is; with one clip, every other commanded velocity would look wrong.
    """
    commands = commands or CommandConfig()
    ranges = np.array([commands.forward, commands.sideways, commands.turning])
    # Halton's points fill a cube more evenly than random ones
    points = np.array([[_reversed_digits(place, base) for base in (2, 3, 5)] for place in range(1, count + 1)])
    found = []
    for forward, sideways, turning in ranges[:, 0] + points * (ranges[:, 1] - ranges[:, 0]):
        one = replace(config or TrotConfig(), forward=float(forward), sideways=float(sideways), turning=float(turning))
        found.append(trot_clip(one, name=f"trot {forward:.2f} {sideways:.2f} {turning:.2f}"))
    return found


def _reversed_digits(number: int, base: int) -> float:
    """Return 0.cba for the number abc in a base, between 0 and 1."""
    result, share = 0.0, 1.0 / base
    while number:
        number, digit = divmod(number, base)
        result, share = result + digit * share, share / base
    return result


def quadruped_loader_config(
    step_dt: float,
    *,
    fields: Sequence[str] = MOTION_SPEC.names,
    mirror: bool = True,
    num_preload_transitions: int = 0,
    seed: int = 0,
) -> AMPLoaderConfig:
    """Return settings whose windows are two frames of the env's component 'motion', side by side.

    fields: the env's `motion_fields`.
    """
    return AMPLoaderConfig(
        time_between_frames=step_dt,
        fields=tuple(fields),
        mirror=mirror,
        joint_names=JOINT_NAMES,
        foot_names=FOOT_NAMES,
        num_preload_transitions=num_preload_transitions,
        seed=seed,
    )


def quadruped_recorder_config(
    *,
    fields: Sequence[str] = MOTION_SPEC.names,
    skip_seconds: float = 1.0,
    min_seconds: float = 2.0,
    seed: int = 0,
) -> MotionRecorderConfig:
    """Return settings that record the motion observation, of the env's `motion_fields`, and the feet's contacts."""
    return MotionRecorderConfig(
        fields=quadruped_fields(fields),
        also=quadruped_fields(["foot_contacts"]),
        joint_names=JOINT_NAMES,
        foot_names=FOOT_NAMES,
        skip_seconds=skip_seconds,
        min_seconds=min_seconds,
        seed=seed,
    )
