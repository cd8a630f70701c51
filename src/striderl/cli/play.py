"""`striderl play RUN` and `striderl record RUN`: show a policy in a window or record a video.

The window uses the standard library alone; where there is no display, `NoDisplayError` is raised.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from striderl.cli.options import Env, Overwrite, Run, Trust, output_path, parse
from striderl.cli.runs import env_of, load
from striderl.cli.seeing.report import refresh_report
from striderl.cli.terminal import UsageError, message_of, say, showing_progress

if TYPE_CHECKING:
    from striderl.training.experiment.loading import LoadedRun


@dataclass(frozen=True)
class ViewOptions:
    """What is shown."""

    run: Run
    """The folder of a run, or of several (runs/cartpole: the newest of them)."""
    checkpoint: str = "best"
    """'best', 'last', or a number of env steps."""
    seconds: float = 10.0
    """How long, in seconds of the task's time; 25 steps are a second where it has no unit."""
    seed: int = 7
    """The seed of the env."""
    output: str = ""
    """The video's file, .mp4 or .gif; in the run's folder 'videos' unless given."""
    overwrite: Overwrite = False
    env: Env = ""
    trust: Trust = False


def play(words: list[str]) -> int:
    """Show the policy in a window; without a display, write a video and print its path."""

    options = _options(words, "play", "Watch a run's greedy policy in a window, or as a video without a display.")
    loaded = load(options.run, options.checkpoint, trust=options.trust)
    if not options.output:
        try:
            with Window(f"{loaded.env.task}, {loaded.step:,} steps") as window:
                return _show(loaded, options, window)
        except NoDisplayError as error:
            say(f"no window ({error}); writing a video instead")
    return _film(loaded, options, "play")


def record(words: list[str]) -> int:
    """Write a video."""
    options = _options(words, "record", "Write a video of a run's greedy policy.")
    return _film(load(options.run, options.checkpoint, trust=options.trust), options, "record")


def _options(words: list[str], command: str, description: str) -> ViewOptions:
    options = parse(ViewOptions, words, command=command, description=description)
    if not options.seconds > 0.0:
        raise UsageError(f"--seconds is positive, found {options.seconds}")
    if options.seed < 0:
        raise UsageError(f"--seed is not negative, found {options.seed}")
    if options.output and Path(options.output).suffix not in (".mp4", ".gif"):
        raise UsageError(f"--output ends in .mp4 or .gif, found {options.output!r}")
    return options


def _film(loaded: LoadedRun, options: ViewOptions, name: str) -> int:
    from striderl.collect.actors.policy_actor import GreedyActor
    from striderl.training.experiment.run import num_video_steps
    from striderl.training.video import record_video

    usual = loaded.folder.videos / f"{name}_{loaded.step}.mp4"
    path = output_path(options.output, usual, overwrite=options.overwrite)
    try:
        with env_of(loaded, options.env, filmed=True) as env, showing_progress(name) as progress:
            steps = num_video_steps(options.seconds, env.shown_dt)
            video = record_video(
                env,
                GreedyActor(loaded.policy),
                path,
                steps,
                options.seed,
                trace=not options.output,
                progress=progress,
            )
    except (ImportError, RuntimeError, OSError) as error:
        raise UsageError(f"no video: {message_of(error)}") from error
    say(f"{video.path}: {video.num_frames} frames, {video.num_steps} steps, sum of rewards {video.total_reward:.4g}")
    if not options.output:
        refresh_report(loaded.folder)
    return 0


def _show(loaded: LoadedRun, options: ViewOptions, window: Any) -> int:
    """Step in real time until the time is over or the window is closed."""
    import torch

    from striderl.collect.actors.policy_actor import GreedyActor
    from striderl.training.experiment.run import num_video_steps

    actor = GreedyActor(loaded.policy)
    with env_of(loaded, options.env, filmed=True) as env, torch.no_grad():
        obs, state = env.reset(seed=options.seed), actor.initial_state(1, env.device)
        duration = env.shown_dt or 0.04
        for _ in range(num_video_steps(options.seconds, env.shown_dt)):
            began = time.perf_counter()
            if not window.show(env.render()):
                break
            acted = actor.act(obs, state, {})
            step = env.step(acted.actions)
            obs = step.obs
            state = actor.initial_state(1, env.device) if bool(step.done[0]) else acted.state
            time.sleep(max(0.0, duration - (time.perf_counter() - began)))
    return 0


# -- the window --------------------------------------------------------------------------------------------------------


class NoDisplayError(Exception):
    """There is no window system to open a window in."""


class Window:
    """Shows one frame after the other until it is closed."""

    def __init__(self, title: str) -> None:
        """Open the window; the first frame decides its size."""
        try:
            import tkinter
        except ImportError as error:
            raise NoDisplayError("this Python has no tkinter") from error
        try:
            self._root: Any = tkinter.Tk()
        except tkinter.TclError as error:
            raise NoDisplayError(str(error)) from error
        self._tkinter = tkinter
        self._root.title(title)
        self._label: Any = tkinter.Label(self._root)
        self._label.pack()
        self._open = True
        self._root.protocol("WM_DELETE_WINDOW", self._closed)

    def show(self, frame: np.ndarray[Any, np.dtype[np.uint8]]) -> bool:
        """Show a frame uint8 [height, width, 3]; returns whether the window is still open."""
        if self._open:
            self._picture = self._tkinter.PhotoImage(data=portable_pixmap(frame), format="PPM")
            self._label.configure(image=self._picture)
            self._root.update()
        return self._open

    def _closed(self) -> None:
        self._open = False

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_: object) -> None:
        self._root.destroy()


def portable_pixmap(frame: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """Return a frame as a binary PPM file, which needs no library to write or to read."""
    height, width, _ = frame.shape
    return f"P6 {width} {height} 255\n".encode() + np.ascontiguousarray(frame).tobytes()
