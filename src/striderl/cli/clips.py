"""`striderl clips`: make, record, convert and look at motion clips.

striderl clips trot trot.npz --forward 0.6                 a procedural trot of the built-in quadruped
striderl clips record RUN folder                           what a run's greedy policy does, cut at resets
striderl clips import pace.json pace.npz                   from the JSON of AMP_for_hardware and motion_imitation
striderl clips export trot.npz trot.json                   and back
striderl clips show trot.npz                               fields, length, gait
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from striderl.cli.options import Overwrite, Run, Trust, output_path, parse
from striderl.cli.terminal import UsageError, message_of, say
from striderl.data.naming import suggestion, unknown

if TYPE_CHECKING:
    from striderl.datasets.motion.clip import MotionClip

Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
Output = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUTPUT")]


@dataclass(frozen=True)
class TrotOptions:
    """What kind of trot, and where to."""

    output: Output
    """The clip's file, .npz."""
    forward: float = 0.6
    """Speed ahead, m/s."""
    sideways: float = 0.0
    """Speed to the left, m/s."""
    turning: float = 0.0
    """Turning rate to the left, rad/s."""
    frequency: float = 2.0
    """Strides per second."""
    duty_factor: float = 0.6
    """Share of a stride that a foot stands."""
    swing_height: float = 0.07
    """How high a swinging foot is lifted, m."""
    weight: float = 1.0
    """How often it is drawn, compared with other clips."""
    overwrite: Overwrite = False


@dataclass(frozen=True)
class RecordOptions:
    """Which policy, how long, and where to."""

    run: Run
    """The folder of a run of a quadruped task, or of several (the newest of them)."""
    output: Output
    """A folder for the clips; it is made if it is not there."""
    checkpoint: str = "best"
    """'best', 'last', or a number of env steps."""
    seconds: float = 10.0
    """How long each env is played."""
    num_envs: int = 4
    """How many envs are played."""
    skip_seconds: float = 1.0
    """How much of the beginning of each episode is left out."""
    min_seconds: float = 2.0
    """Shorter pieces are dropped."""
    seed: int = 7
    """The seed of the env."""
    trust: Trust = False
    overwrite: Overwrite = False


@dataclass(frozen=True)
class ClipImportOptions:
    """A JSON clip and where it goes."""

    source: Source
    """The JSON file, 19 or 61 numbers per frame."""
    output: Output
    """The clip's file, .npz; its legs are brought into the order FL FR RL RR."""
    quaternion: str = "xyzw"
    """How the root rotation is written: xyzw or wxyz."""
    loop: str = "clamp"
    """clamp, wrap, or file for what the file says."""
    overwrite: Overwrite = False


@dataclass(frozen=True)
class ClipExportOptions:
    """A clip and where its JSON goes."""

    source: Source
    """The clip's file, .npz."""
    output: Output
    """The JSON file; its legs are in the order FR FL RR RL, as AMP_for_hardware has them."""
    overwrite: Overwrite = False


@dataclass(frozen=True)
class ShowOptions:
    """A clip to look at."""

    source: Source
    """The clip's file, .npz."""


def clips(words: list[str]) -> int:
    """Run one of the commands for clips."""
    if not words or words[0] in ("-h", "--help"):
        say(_overview())
        return 0 if words else 2
    if words[0] not in ACTIONS:
        raise UsageError(unknown("action", words[0], ACTIONS, where="striderl clips"))
    from striderl.checkpoint.errors import CheckpointError

    try:
        return ACTIONS[words[0]][1](words[1:])
    except (ValueError, KeyError, ImportError, OSError, RuntimeError, CheckpointError) as error:
        raise UsageError(message_of(error)) from error


def _overview() -> str:
    lines = [f"  {name:<8}{summary}" for name, (summary, _) in ACTIONS.items()]
    return "\n".join(
        [
            "usage: striderl clips ACTION …",
            "",
            "Make, record, convert and look at motion clips, the experts of motion priors.",
            "",
            *lines,
            "",
            "'striderl clips ACTION --help' explains one.",
        ]
    )


def _trot(words: list[str]) -> int:
    options = parse(TrotOptions, words, command="clips trot", description="Make a trot of the built-in quadruped.")
    from striderl.datasets.motion.clip_files import save_clip
    from striderl.envs.quadruped.trot import TrotConfig
    from striderl.recording.motion import trot_clip

    config = TrotConfig(
        forward=options.forward,
        sideways=options.sideways,
        turning=options.turning,
        frequency=options.frequency,
        duty_factor=options.duty_factor,
        swing_height=options.swing_height,
    )
    path = _clip_path(options.output, overwrite=options.overwrite)
    clip = trot_clip(config, name=path.stem, weight=options.weight)
    say(f"{save_clip(path, clip)}: {_summary(clip)}")
    return 0


def _record(words: list[str]) -> int:
    options = parse(RecordOptions, words, command="clips record", description="Record what a run's greedy policy does.")
    from striderl.cli.runs import env_of, load
    from striderl.collect.actors.policy_actor import GreedyActor
    from striderl.datasets.motion.clip_files import save_clip
    from striderl.envs.quadruped.base import MOTION_SPEC
    from striderl.envs.tasks import make
    from striderl.recording.motion import quadruped_recorder_config, record_motion

    folder = Path(options.output)
    for there in sorted(folder.glob("clip_*.npz"))[:1]:
        output_path(str(there), overwrite=options.overwrite)
    loaded = load(options.run, options.checkpoint, trust=options.trust)
    task = loaded.env
    config = quadruped_recorder_config(
        skip_seconds=options.skip_seconds, min_seconds=options.min_seconds, seed=options.seed
    )
    env_of(loaded).close()
    # a run may have been trained without motions, or with some of their fields; all are recorded
    whole = {**task.settings, "observe_motion": True, "motion_fields": MOTION_SPEC.names}
    try:
        moving = make(task.task, num_envs=options.num_envs, settings=whole)
    except (KeyError, TypeError) as error:  # the settings were good a moment ago, without what motions need
        raise UsageError(f"clips are recorded of quadruped tasks; {task.task!r} does not observe motions") from error
    with moving as env:
        num_steps = max(1, round(options.seconds / (env.step_dt or 1.0)))
        found = record_motion(env, GreedyActor(loaded.policy), num_steps, config, name=task.task)
    if not found:
        raise UsageError(f"no episode lasted {options.min_seconds} s without a fall; nothing is written")
    folder.mkdir(parents=True, exist_ok=True)
    for number, clip in enumerate(found):
        say(f"{save_clip(folder / f'clip_{number:03d}.npz', clip)}: {_summary(clip)}")
    return 0


def _import(words: list[str]) -> int:
    options = parse(
        ClipImportOptions, words, command="clips import", description="Turn a JSON clip into one of striderl's."
    )
    from striderl.datasets.motion.clip import left_right
    from striderl.datasets.motion.clip_files import save_clip
    from striderl.datasets.motion.json_clips import JsonLayout, import_json_clip

    _require_file(options.source)
    path = _clip_path(options.output, overwrite=options.overwrite)
    names = JsonLayout().joint_names
    layout = JsonLayout(quaternion=options.quaternion, mirror=left_right(names))
    clip = import_json_clip(options.source, layout, loop=options.loop)
    clip = clip.ordered(sorted(names, key=lambda name: name[:2]), sorted(clip.foot_names))
    say(f"{save_clip(path, clip)}: {_summary(clip)}")
    return 0


def _export(words: list[str]) -> int:
    options = parse(ClipExportOptions, words, command="clips export", description="Write a clip as JSON.")
    from striderl.datasets.motion.clip_files import load_clip
    from striderl.datasets.motion.json_clips import JsonLayout, export_json_clip

    _require_file(options.source)
    path = output_path(options.output, overwrite=options.overwrite)
    clip = load_clip(options.source).ordered(JsonLayout().joint_names, JsonLayout().foot_names)
    say(f"{export_json_clip(path, clip)}: {_summary(clip)}")
    return 0


def _show(words: list[str]) -> int:
    options = parse(ShowOptions, words, command="clips show", description="Print what a clip is made of.")
    from striderl.datasets.motion.clip_files import load_clip
    from striderl.datasets.motion.gait import clip_contacts, measure_gait

    _require_file(options.source)
    clip = load_clip(options.source)
    say(f"{clip.name}: {_summary(clip)}")
    for name, kind in clip.fields.items():
        low, high = clip.values[name].min(), clip.values[name].max()
        say(f"  {name:<18} {kind.size:>3}  {kind.kind:<10} {low:9.3f} to {high:.3f}")
    if "foot_contacts" in clip.fields:
        gait = measure_gait(clip_contacts(clip), clip.frame_duration)
        for place, foot in enumerate(clip.foot_names):
            numbers = f"{gait.frequency[place]:.2f} Hz, duty factor {gait.duty_factor[place]:.2f}"
            say(f"  {foot}: {numbers}, phase {gait.phase[place]:.2f}, {gait.num_strides[place]} strides")
    return 0


def _require_file(name: str) -> None:
    """Raise for a file that is not there; one of nearly that name is suggested."""
    path = Path(name)
    if not path.is_file():
        beside = [str(found) for found in path.parent.glob("*") if found.is_file()]
        raise UsageError(f"there is no file {name!r}. {suggestion(name, beside)}".rstrip())


def _clip_path(name: str, *, overwrite: bool) -> Path:
    """Return where a clip goes; raise for a name that the search for clips would skip, and for one that is taken."""
    if Path(name).suffix != ".npz":
        raise UsageError(f"a clip's file ends in .npz, found {name!r}")
    return output_path(name, overwrite=overwrite)


def _summary(clip: MotionClip) -> str:
    return f"{clip.num_frames} frames of {clip.frame_duration:g} s, weight {clip.weight:g}, {clip.loop}"


ACTIONS: dict[str, tuple[str, Callable[[list[str]], int]]] = {
    "trot": ("make a trot of the built-in quadruped", _trot),
    "record": ("record what a run's policy does", _record),
    "import": ("turn a JSON clip of a legged robot into one of striderl's", _import),
    "export": ("write a clip as JSON", _export),
    "show": ("print what a clip is made of", _show),
}
"""Action -> (what it does, how)."""
