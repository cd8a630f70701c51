"""`striderl train mjlab:TASK` and the other simulators: their own config classes on the command line, our runner.

    striderl train mjlab:Mjlab-Velocity-Flat-Unitree-Go1 --num-envs 4096 --device cuda --agent.max-iterations 500
                                                         └ fields of the client's configs: --env.PLACE, --agent.PLACE

The result is the log_dir of a runner, which `play`, `record`, `evaluate`, `export` and `resume` take.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from striderl.cli.seeing.report import report_at_end
from striderl.cli.terminal import UsageError, complain, message_of, say
from striderl.cli.train_flags import take
from striderl.training.signals import StopSignals

if TYPE_CHECKING:
    from striderl.envs.clients import ClientConfigs

FLAGS = ("--num-envs", "--device", "--runs", "--name", "--max-iterations", "--steps")

MJLAB_ENVS, MJLAB_EPOCHS = 4096, 8
"""How many envs and epochs of mjlab tasks there are on a GPU where the command does not name the number of envs."""

HELP = """usage: striderl train {task} [--num-envs N] [--device cuda] [--max-iterations N | --steps N] [--runs FOLDER]
       [--name NAME] [--env.PLACE VALUE] … [--agent.PLACE VALUE] …

Train a task of a simulator with its own settings of rsl_rl, by this library's runner. --algorithm NAME trains it with
another algorithm of this library instead, with the flags of 'striderl train TASK'.

Fields of its configs, with their present values:
"""


def train_client(task: str, words: list[str], signals: StopSignals) -> int:
    """Train a task of a simulator with the simulator's settings; returns the exit code."""
    from striderl.envs.clients import load_configs
    from striderl.envs.tasks import make
    from striderl.training.experiment.run_folder import RunFolder
    from striderl.training.rsl_rl.build import RUNNERS, build_runner
    from striderl.training.rsl_rl.config_generations import as_dict
    from striderl.training.rsl_rl.config_policy import bare_class_name

    words, given = take(words, *FLAGS)
    try:
        configs = load_configs(task)
        if "-h" in words or "--help" in words:
            say(HELP.format(task=task) + _listed(configs))
            return 0
        of_env, of_agent = _overrides(words, configs)
        train_cfg = _as_settings(configs.agent, as_dict)
        device = given.get("--device", "cpu")
        num_envs = int(given.get("--num-envs", _num_envs(configs)))
        if task.startswith("mjlab:") and device != "cpu" and "--num-envs" not in given:
            num_envs = MJLAB_ENVS
            _learn_more_often(train_cfg, of_agent)
        count = _num_iterations(given, train_cfg, num_envs)
        env = make(task, num_envs=num_envs, device=device, settings=of_env)
        named = str(train_cfg.get("class_name", train_cfg.get("runner_class_name", "OnPolicyRunner")))
        bare = bare_class_name(named, "the runner")
        folder = _folder(task, given)
        runner = build_runner(bare if bare in RUNNERS else "OnPolicyRunner", env, train_cfg, folder, device)
    except (ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(message_of(error)) from error
    say(f"{task}, {num_envs} envs, {count} iterations: {folder}" + (f"; {_shown(of_agent)}" if of_agent else ""))
    runner.should_stop = lambda: bool(signals.received)
    try:
        runner.learn(count, init_at_random_ep_len=bool(runner.vec_env.max_episode_length))
    finally:
        runner.close()
    if signals.received:
        complain(f"{signals.name}: saved; 'striderl resume {folder}' goes on")
        return signals.exit_code
    say(f"ended after {runner.current_learning_iteration} iterations: {folder}")
    say(f"next: striderl play {folder}   |   record, evaluate, export, resume --max-iterations N")
    for page in report_at_end(RunFolder(folder)):
        say(f"report: {page}")
    return 0


def _overrides(words: list[str], configs: ClientConfigs) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read --env.PLACE and --agent.PLACE; those of the agent are set, those of the env are checked and returned."""
    from striderl.envs.clients import override, places

    names = [word.partition("=")[0] for word in words if word.startswith(("--env.", "--agent."))]
    left, given = take(words, *names)
    if left:
        raise UsageError(f"there is no flag {left[0]}; 'striderl train TASK --help' lists the fields of its configs")
    found: dict[str, dict[str, Any]] = {"env": {}, "agent": {}}
    for flag, text in given.items():
        who, _, place = flag.removeprefix("--").partition(".")
        holder = configs.env if who == "env" else configs.agent
        override(holder, place, text, where=who)
        name = place.replace("-", "_")
        found[who][name] = dict(places(holder)).get(name, text)
    return found["env"], found["agent"]


def _listed(configs: ClientConfigs) -> str:
    from striderl.envs.clients import places

    lines = [
        f"  --{who}.{place} {value!r}"
        for who, holder in (("agent", configs.agent), ("env", configs.env))
        for place, value in places(holder)
    ]
    return "\n".join(lines)


def _as_settings(agent: Any, as_dict: Any) -> dict[str, Any]:
    """Return the agent's config as a dict; legged_gym's is nested classes, Playground's a ConfigDict."""
    if isinstance(agent, type) or (not hasattr(agent, "to_dict") and hasattr(agent, "runner")):
        return {name: _plain(value) for name, value in _attributes(agent)}
    return dict(as_dict(agent))


def _plain(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str, tuple, list, dict)) or value is None:
        return value
    return {name: _plain(part) for name, part in _attributes(value)}


def _attributes(value: Any) -> list[tuple[str, Any]]:
    names = [name for name in dir(value) if not name.startswith("_") and name != "init_member_classes"]
    found = [(name, getattr(value, name)) for name in names]
    return [(name, each) for name, each in found if isinstance(each, type) or not callable(each)]


def _num_envs(configs: ClientConfigs) -> int:
    """Return how many envs the client's config has: scene.num_envs, env.num_envs, or env_cfg's."""
    from striderl.envs.clients import places

    found = dict(places(configs.env))
    for place in ("scene.num_envs", "env.num_envs", "num_envs"):
        if isinstance(found.get(place), int):
            return int(found[place])
    return 4096


def _learn_more_often(train_cfg: dict[str, Any], given: dict[str, Any]) -> None:
    """Halve the steps of a rollout and take more epochs, unless they were given.

    An update takes a tenth of rsl_rl's time, so learning twice as often is nearly free: mjlab's Go1 is at reward 40
    after 41 s instead of 59 (benchmarks/gpu_mjlab.py).
    """
    algorithm = train_cfg["algorithm"]
    if "num_steps_per_env" not in given:
        train_cfg["num_steps_per_env"] = max(1, int(train_cfg["num_steps_per_env"]) // 2)
    if "algorithm.num_learning_epochs" not in given:
        algorithm["num_learning_epochs"] = max(MJLAB_EPOCHS, int(algorithm["num_learning_epochs"]))
    say(
        f"{MJLAB_ENVS} envs, rollouts of {train_cfg['num_steps_per_env']} steps, {algorithm['num_learning_epochs']} "
        f"epochs; --num-envs {MJLAB_ENVS} keeps the task's own settings"
    )


def _num_iterations(given: dict[str, str], train_cfg: dict[str, Any], num_envs: int) -> int:
    """Return how many iterations to train: as given, as many as --steps of all envs need, or the client's number."""
    runner = train_cfg.get("runner")
    settings = runner if isinstance(runner, dict) else train_cfg
    if "--steps" in given and "--max-iterations" in given:
        raise ValueError("--steps and --max-iterations both say how long to train; give one of them")
    if "--steps" in given:
        return max(1, math.ceil(int(given["--steps"]) / (num_envs * int(settings["num_steps_per_env"]))))
    value = int(given["--max-iterations"]) if "--max-iterations" in given else settings.get("max_iterations")
    if not isinstance(value, int):
        raise ValueError("the client's config has no max_iterations; give --max-iterations N or --steps N")
    return value


def _folder(task: str, given: dict[str, str]) -> Path:
    """Return a folder that is not there yet: runs/<simulator>-<task>/<time or name>."""
    root = Path(given.get("--runs", "runs")) / task.replace(":", "-").replace("/", "-")
    name = given.get("--name") or time.strftime("%Y-%m-%d_%H-%M-%S")
    folder, number = root / name, 2
    while folder.exists() and "--name" not in given:
        folder, number = root / f"{name}_{number}", number + 1
    if folder.exists():
        raise FileExistsError(f"{folder} is there already; choose another --name, or 'striderl resume {folder}'")
    return folder


def _shown(overrides: dict[str, Any]) -> str:
    return ", ".join(f"agent.{place}={value!r}" for place, value in overrides.items())
