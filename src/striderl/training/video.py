"""`record_video`: run an actor in an env and write the rendered frames to a video file.

    reset(seed) ─▶ frame ─▶ step ─▶ frame ─▶ step ─▶ step ─▶ frame …      every k-th step, so that the video runs at
                                                                         the env's own speed with at most `fps` frames
The file appears under its name when it is complete. Beside it the steps that it shows can be kept, 'walk.trace.npz' for
'walk.mp4' (`collect/trace.py`), from which `striderl report` draws the episode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from striderl.checkpoint.safe_files import replacing_path
from striderl.collect.actors.base import Actor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.trace import SUFFIX, TracedStep, TraceRecorder, write_trace
from striderl.data.naming import missing_extra
from striderl.data.transition import Transition
from striderl.envs.vec_env import VecEnv

if TYPE_CHECKING:
    from types import ModuleType

Picture = np.ndarray[Any, np.dtype[np.uint8]]

_KINDS = (".mp4", ".gif")
MOST_TRACED = 2000
"""How many steps of an episode are kept for the report, the newest of a longer one."""


@dataclass(frozen=True, kw_only=True)
class RecordedVideo:
    """What was recorded."""

    path: Path
    """Where the file is."""
    num_steps: int
    """How many steps of the env it shows."""
    num_frames: int
    """How many pictures it has."""
    fps: float
    """Pictures per second."""
    total_reward: float
    """The sum of the recorded env's rewards over these steps."""
    episodes: int
    """How many episodes ended."""


def record_video(
    env: VecEnv,
    actor: Actor,
    path: str | Path,
    num_steps: int,
    seed: int = 0,
    *,
    fps: float = 25.0,
    whole_episode: bool = False,
    trace: bool = False,
    progress: Callable[[float], None] | None = None,
) -> RecordedVideo:
    """Record env 0 for so many steps from the seed, or until its first episode ends, as '.mp4' or '.gif'.

    With `trace`, the steps are written beside it; `progress` gets the share of steps that are recorded.

    The env is reset and left mid-way, so it must not be one that trains. The actor's randomness comes from the seed.
    """
    path = Path(path)
    if num_steps < 1 or not fps > 0.0:
        raise ValueError(f"record_video: num_steps is at least 1 and fps positive, found {num_steps} and {fps}")
    if path.suffix not in _KINDS:
        raise ValueError(f"record_video writes {' and '.join(_KINDS)}, found {path.name!r}")
    imageio = _imageio()
    film = _Film(env, actor, num_steps, seed, fps=fps, whole_episode=whole_episode)
    frames = film.frames()
    first = next(frames)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing_path(path) as temporary, _writer(imageio, temporary, film.fps) as writer:
        writer.append_data(_even(first))
        for frame in frames:
            writer.append_data(_even(frame))
            if progress is not None:
                progress(film.num_steps / num_steps)
    if trace:
        _write_steps(film, path, env, seed)
    return RecordedVideo(
        path=path,
        num_steps=film.num_steps,
        num_frames=film.num_frames,
        fps=film.fps,
        total_reward=film.total_reward,
        episodes=film.episodes,
    )


def _write_steps(film: _Film, path: Path, env: VecEnv, seed: int) -> None:
    facts = {"seed": seed, "step_dt": env.step_dt, "total_reward": film.total_reward}
    write_trace(path.with_suffix(SUFFIX), film.recorder.trace(0, **facts))


class _Film:
    """Step the envs and, in the place of a storage, follow env 0."""

    balanced = False

    def __init__(
        self, env: VecEnv, actor: Actor, most_steps: int, seed: int, *, fps: float, whole_episode: bool
    ) -> None:
        self._env, self._most_steps, self._whole_episode = env, most_steps, whole_episode
        self._collector = Collector(env, actor, CollectorConfig(seed=seed))
        self._every = max(1, round(1.0 / (fps * env.shown_dt))) if env.shown_dt else 1
        self.fps = 1.0 / (env.shown_dt * self._every) if env.shown_dt else fps
        self.num_steps = self.num_frames = self.episodes = 0
        self.total_reward = 0.0
        self.recorder = TraceRecorder(min(most_steps, MOST_TRACED))
        """The steps of the film, the last two thousand of a long one."""

    def frames(self) -> Iterator[Picture]:
        """Yield the first picture, and one after every so many steps."""
        self._collector.reset()
        yield self._picture()
        while self.num_steps < self._most_steps and not (self._whole_episode and self.episodes):
            self._collector.collect(n_step=self._env.num_envs, storage=self)
            # after an end the env renders the next episode, which belongs to another video
            if self.num_steps % self._every == 0 and not (self._whole_episode and self.episodes):
                yield self._picture()

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Count the step of env 0."""
        if envs is None or envs.start == 0:
            self.num_steps += 1
            self.total_reward += float(transition.rew[0])
            self.episodes += bool(transition.done[0])
            self.recorder.add(
                TracedStep(transition.obs, transition.act, transition.rew, transition.terminated, transition.truncated)
            )

    def _picture(self) -> Picture:
        self.num_frames += 1
        frame = np.asarray(self._env.render(0))
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            raise ValueError(
                f"{type(self._env).__name__}.render: wanted uint8 [height, width, 3], "
                f"found {frame.dtype} {list(frame.shape)}"
            )
        return frame


def _imageio() -> ModuleType:
    try:
        import imageio.v2 as imageio
        import imageio_ffmpeg  # noqa: F401  (imageio finds it by itself and says less when it is missing)
    except ImportError as error:
        raise ImportError(missing_extra("imageio", "video", purpose="a video")) from error
    return imageio


def _writer(imageio: ModuleType, path: Path, fps: float) -> Any:
    """Open a file for pictures; sizes are made even by us, so the encoder need not change them."""
    if path.suffix == ".gif":
        return imageio.get_writer(path, duration=1000.0 / fps, loop=0)
    return imageio.get_writer(path, fps=fps, codec="libx264", macro_block_size=1, ffmpeg_log_level="error")


def _even(frame: Picture) -> Picture:
    """Repeat the last row and column of a picture with odd sides: the usual colour format of videos halves both."""
    rows, columns = frame.shape[0] % 2, frame.shape[1] % 2
    return np.pad(frame, ((0, rows), (0, columns), (0, 0)), mode="edge") if rows or columns else frame
