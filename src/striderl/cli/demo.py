"""`make demo`: the built-in quadruped learns to follow commands to 0.15 m/s, with everything around it.

    train ─▶ evaluate ─▶ video ─▶ plot ─▶ export, checked with onnxruntime ─▶ report ─▶ where everything is

`python -m striderl.cli.demo [--steps N] [--envs N] [--runs FOLDER]`; a picture that cannot be drawn is reported, the
rest continues.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from striderl.cli.options import parse
from striderl.cli.terminal import UsageError, acknowledge, be_patient, complain, say
from striderl.training.signals import StopSignals

if TYPE_CHECKING:
    from striderl.training.experiment.loading import LoadedRun

MAX_SECONDS = 270.0
"""The training ends after this many seconds of collecting and learning at the latest, so that all fits six minutes."""


@dataclass(frozen=True)
class DemoOptions:
    """How large the demonstration is."""

    steps: int = 2_400_000
    """Env steps of training at most; it ends when the tracking error is 0.15 m/s, usually before a million."""
    envs: int = 128
    """How many robots learn together."""
    episodes: int = 32
    """Episodes of the evaluation at the end."""
    video_seconds: float = 10.0
    """How long the video is."""
    runs: str = "runs"
    """Where the folder of the run is made."""


def demo(words: list[str]) -> int:
    """Run all steps, print where the results are, and return the exit code."""
    from striderl.cli.seeing.report import report_at_end
    from striderl.training.experiment.run_folder import RunFolder

    be_patient()
    options = parse(DemoOptions, words, command="demo", description="Teach the built-in quadruped to walk.")
    began = time.perf_counter()
    with StopSignals(acknowledge) as signals:
        code, folder = _train(options, signals)
    if code:
        return code
    _show(folder, options)
    say(f"\nall of it took {time.perf_counter() - began:.0f} s")
    for path in report_at_end(RunFolder(folder)):
        say(f"report: {path}")
    return 0


def _train(options: DemoOptions, signals: StopSignals) -> tuple[int, Path]:
    from striderl.recipes.quadruped import quadruped_demo
    from striderl.training.experiment.run import Run
    from striderl.training.experiment.run_folder import new_run_folder

    config = quadruped_demo()
    config = replace(
        config,
        env=replace(config.env, num_envs=options.envs),
        plan=replace(config.plan, total_steps=options.steps),
        stop=replace(config.stop, max_seconds=MAX_SECONDS),
        evaluation=replace(config.evaluation, num_episodes=options.episodes, num_envs=options.episodes),
    )
    try:
        folder = new_run_folder(config, options.runs)
        run = Run(config, folder, signals=signals)
    except (ImportError, OSError) as error:
        complain(str(error))
        return 1, Path(options.runs)
    say(f"a quadruped with 12 joints learns to follow velocity commands: {folder.path}")
    outcome = run.drive()
    if outcome.exit_code:
        complain(f"{outcome.reason}: saved; 'striderl resume {folder.path}' goes on")
    return outcome.exit_code, folder.path


def _show(folder: Path, options: DemoOptions) -> None:
    """Evaluate, record a video, plot and export; report what is not possible here."""
    from striderl.cli.runs import load
    from striderl.cli.seeing.plot import draw

    loaded = load(folder, "last")
    say("")
    say(_evaluated(loaded, options.episodes))
    places: dict[str, Any] = {
        "config and metrics": lambda: folder,
        "checkpoints": lambda: loaded.folder.checkpoints,
        "video": lambda: _video(loaded, options.video_seconds),
        "learning curves": lambda: draw([folder], loaded.folder.curves),
        "exported policy": lambda: _exported(loaded),
    }
    for name, make in places.items():
        try:
            say(f"{name + ':':<20}{make()}")
        except (UsageError, ImportError, RuntimeError, OSError) as error:
            say(f"{name + ':':<20}not here: {error}")


def _evaluated(loaded: LoadedRun, episodes: int) -> str:
    """Return how well the greedy policy follows its commands, from a seed that training never used."""
    from striderl.collect.actors.policy_actor import GreedyActor
    from striderl.envs.tasks import make
    from striderl.training.evaluation import evaluate

    with make(loaded.env.task, num_envs=episodes, settings=loaded.env.settings) as env:
        numbers = evaluate(env, GreedyActor(loaded.policy), episodes, seed=1).numbers()
        longest = env.max_episode_length
    return (
        f"after {loaded.step:,} steps: tracking error {numbers['tracking_error']:.3f} m/s, "
        f"return {numbers['return_mean']:.2f}, episode length {numbers['length_mean']:.0f} of {longest} "
        f"({episodes} episodes)"
    )


def _video(loaded: LoadedRun, seconds: float) -> Path:
    """Record a video of the robot with the command to walk straight ahead."""
    from striderl.collect.actors.policy_actor import GreedyActor
    from striderl.envs.quadruped.commands import CommandConfig
    from striderl.envs.tasks import make
    from striderl.training.experiment.run import num_video_steps
    from striderl.training.video import record_video

    ahead = CommandConfig(forward=(0.8, 0.8), sideways=(0.0, 0.0), turning=(0.0, 0.0), standing=0.0)
    with make(loaded.env.task, num_envs=1, settings={"commands": ahead}) as env:
        steps = num_video_steps(seconds, env.step_dt)
        path = loaded.folder.videos / "walk.mp4"
        return record_video(env, GreedyActor(loaded.policy), path, steps, 7, trace=True).path


def _exported(loaded: LoadedRun) -> str:
    """Export, let onnxruntime walk the robot for two seconds, and return where the files are and how far it is off."""
    import torch

    from striderl.cli.export import export_loaded
    from striderl.envs.tasks import make
    from striderl.export.exported_policy import load_bundle
    from striderl.training.agent import Agent

    folder = export_loaded(loaded, loaded.folder.export, formats=("onnx",), overwrite=False).folder
    exported, agent, worst = load_bundle(folder), Agent(loaded.policy), 0.0
    with make(loaded.env.task, num_envs=4) as env:
        obs = env.reset(seed=3)
        for _ in range(100):
            arrays = {name: value.numpy() for name, value in obs.items()}
            action = exported.act({name: arrays[name] for name in exported.obs_spec})
            worst = max(worst, float(abs(action - agent.predict(arrays)).max()))
            obs = env.step(torch.from_numpy(action)).obs
    return f"{folder} (onnxruntime differs by {worst:.1g} from the policy over 100 steps)"


def main() -> int:
    """Run the demonstration with the words of the command line."""
    try:
        return demo(sys.argv[1:])
    except UsageError as error:
        complain(str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main())
