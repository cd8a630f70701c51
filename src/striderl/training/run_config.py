"""`RunConfig`: everything that decides what a run does, as plain data; it is `config.json` in the run's folder.

    config = recipe("cartpole", "ppo")                        striderl.recipes: settings that learn
    config = replace(config, seed=3)
    text = config.to_json();  RunConfig.from_json(text) == config

The settings of the algorithm and of the plan have the types that `algorithm_name` stands for in `algorithm_table.py`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from striderl.algorithms.terms.rnd import RNDConfig
from striderl.algorithms.tppo import TPPOConfig
from striderl.checkpoint.errors import FileRefused
from striderl.checkpoint.safe_files import decode_json
from striderl.checkpoint.trust import require_trust
from striderl.collect.schedules import CollectorConfig
from striderl.data.checked_fields import MAY_BE_INFINITE, check_field_types, check_num_threads
from striderl.data.naming import unknown
from striderl.envs.tasks import modules_named
from striderl.execution.modes import MODES
from striderl.training.algorithm_table import algorithm_entry, check_algorithm
from striderl.training.config_json import ConfigError, from_plain, to_plain
from striderl.training.policy_settings import PolicySettings
from striderl.training.seal import differences, read_plain, read_sealed
from striderl.training.teacher_run import TeacherRun

_log = logging.getLogger(__name__)

AlgorithmT = TypeVar("AlgorithmT")
PlanT = TypeVar("PlanT")

CONFIG_FILE = "config.json"
"""The file of a run's folder that this is kept in."""
TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow", "neptune")
"""The loggers that a run may have besides its files and the console."""


@dataclass(frozen=True, kw_only=True)
class EnvSettings:
    """Which task is trained on, and in how many copies."""

    task: str
    """A built-in task (`striderl list tasks`), or 'gymnasium:' and any id of Gymnasium."""
    num_envs: int = 1
    """How many envs are stepped together; 8 to 64 for small tasks, hundreds to thousands for robots."""
    settings: Mapping[str, Any] = field(default_factory=dict, metadata=MAY_BE_INFINITE)
    """Settings of the task by name; on the command line `--env.settings.NAME VALUE`."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.num_envs < 1:
            raise ValueError(f"EnvSettings.num_envs is at least 1, found {self.num_envs}")


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """When the greedy policy is tried out, in envs of its own."""

    every: int = 10
    """Evaluate every so many iterations and at the end; 0 means only at the end."""
    num_episodes: int = 10
    """How many episodes are played."""
    num_envs: int = 10
    """In how many envs they are played; at most one per episode."""
    seed: int = 100
    """The seed of those envs; the same for every evaluation."""
    at_end: bool = True
    """Evaluate after the last iteration as well."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.every < 0 or self.num_episodes < 1 or self.num_envs < 1 or self.seed < 0:
            raise ValueError(
                "EvaluationSettings: every and seed are not negative, num_episodes and num_envs at least 1, found "
                f"{self.every}, {self.seed}, {self.num_episodes} and {self.num_envs}"
            )


@dataclass(frozen=True, kw_only=True)
class StopSettings:
    """When a run ends before its plan does."""

    metric: str = ""
    """A number of the log such as 'evaluate/return_mean'; empty means never."""
    value: float = 0.0
    """The run ends when the metric is at least this (at most, with mode 'min')."""
    mode: Literal["max", "min"] = "max"
    """Whether large ('max') or small ('min') numbers are good."""
    times: int = 1
    """How often in a row that must be so."""
    max_seconds: float = 0.0
    """The run ends after this many seconds of collecting and learning; 0 means no limit."""
    bad_iterations: int = 100
    """The run ends with an error when nothing could be learned in so many iterations in a row, or in all of them: no
    gradient was finite, or next to no sample was valid."""
    min_valid: float = 0.01
    """When no more than this fraction of an iteration's samples is valid, because the rewards or observations of the
    others are bad numbers (faults.jsonl), nothing could be learned in it; 0 means when none is."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.times < 1 or self.max_seconds < 0.0 or self.bad_iterations < 1 or not 0.0 <= self.min_valid < 1.0:
            raise ValueError(
                "StopSettings: times and bad_iterations >= 1, max_seconds >= 0 and min_valid in [0, 1), found "
                f"{self.times}, {self.bad_iterations}, {self.max_seconds} and {self.min_valid}"
            )


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """When a run is saved, and how much of that is kept."""

    every: int = 50
    """Save every so many iterations, and at the end; 0 means only at the end."""
    keep_last: int = 3
    """How many of the newest checkpoints are kept; the best is kept besides them."""
    best: str = "evaluate/return_mean"
    """The number of the log by which a checkpoint is the best; empty means that none is."""
    mode: Literal["max", "min"] = "max"
    """Whether large ('max') or small ('min') numbers are good."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.every < 0 or self.keep_last < 1:
            raise ValueError(
                f"CheckpointSettings: every >= 0 and keep_last >= 1, found {self.every} and {self.keep_last}"
            )


@dataclass(frozen=True, kw_only=True)
class LoggingSettings:
    """Where numbers and videos go; metrics.csv and metrics.jsonl are always written."""

    console: Literal["auto", "rich", "plain", "off"] = "auto"
    """A live table ('rich'), lines ('plain'), nothing ('off'), or what fits the terminal ('auto')."""
    console_every: int = 1
    """How many iterations there are between two lines; the live table shows every iteration."""
    trackers: tuple[str, ...] = ()
    """Further loggers by name: tensorboard, wandb, trackio, mlflow, neptune."""
    video_every: int = 0
    """Film the greedy policy every so many iterations; 0 means never."""
    video_seconds: float = 10.0
    """How long such a video is, in seconds of the task's time."""
    file_megabytes: int = 64
    """After so many megabytes metrics.csv and metrics.jsonl go on in a new file; that before is metrics.part1.csv."""
    max_files: int = 0
    """How many such parts of each are kept, the newest; 0 keeps every row that was logged."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.console_every < 1 or self.video_every < 0 or self.video_seconds <= 0.0:
            raise ValueError(
                "LoggingSettings: console_every >= 1, video_every >= 0 and video_seconds > 0, found "
                f"{self.console_every}, {self.video_every} and {self.video_seconds}"
            )
        if self.file_megabytes < 1 or self.max_files < 0:
            raise ValueError(
                "LoggingSettings: file_megabytes >= 1 and max_files >= 0, found "
                f"{self.file_megabytes} and {self.max_files}"
            )
        for name in self.trackers:
            if name not in TRACKERS:
                raise ValueError(unknown("tracker", name, TRACKERS, where="LoggingSettings"))


@dataclass(frozen=True, kw_only=True)
class RunConfig(Generic[AlgorithmT, PlanT]):
    """Everything that decides what a run does."""

    env: EnvSettings
    """The task."""
    policy: PolicySettings = field(default_factory=PolicySettings)
    """The networks."""
    algorithm_name: str = "ppo"
    """Which algorithm learns (`striderl list algorithms`); on the command line `--algorithm NAME`."""
    algorithm: AlgorithmT
    """Its settings."""
    terms: tuple[str, ...] = ()
    """What is learned beside it: 'rnd' rewards novelty."""
    rnd: RNDConfig = field(default_factory=RNDConfig)
    """Settings of random network distillation, when 'rnd' is among the terms."""
    teacher: TeacherRun = field(default_factory=TeacherRun)
    """Whose actions are learned, by an algorithm that has a teacher."""
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    """How experience is collected; its seed is that of the run."""
    plan: PlanT
    """How much is collected, and how long."""
    dataset: str = ""
    """The folder of a saved dataset (`striderl dataset`), for algorithms that learn from one and step no env."""
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    """When the greedy policy is tried out."""
    stop: StopSettings = field(default_factory=StopSettings)
    """When the run ends before its plan does."""
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    """When the run is saved."""
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    """Where numbers go."""
    seed: int = 0
    """Decides the first weights, the envs, the exploration and the order of samples."""
    device: str = "cpu"
    """Where envs and networks live: 'cpu', 'cuda', 'cuda:1'."""
    num_threads: int = 0
    """Threads of torch on the CPU; 1 is fastest for small networks, 0 leaves torch's own choice."""
    mode: str = "auto"
    """How updates are run: 'eager'; 'compiled', faster in long runs, after tens of seconds of compiling; 'graphed', as
    CUDA graphs; or 'auto', which is graphed on a CUDA device and eager elsewhere, unless the algorithm has a mode."""
    tf32: bool = False
    """Let matrix products on a GPU round their factors to TF32, which has 10 bits where float32 has 23: about twice as
    fast. A switch of torch for the whole process; False leaves it as it is."""

    def __post_init__(self) -> None:
        check_field_types(self)
        check_algorithm(self.algorithm_name, self.algorithm, self.plan, self.dataset)
        if self.seed < 0:
            raise ValueError(f"seed is not negative, found {self.seed}")
        check_num_threads(self.num_threads)
        if self.mode not in MODES:
            raise ConfigError(unknown("mode", self.mode, MODES, where="RunConfig"))
        self._check_mode()
        if self.collector.seed not in (0, self.seed):
            raise ValueError(f"collector.seed={self.collector.seed} has no effect: set the seed of the run")
        if self.collector.previous_step:
            raise ValueError("collector.previous_step is not for runs: evaluation and export show the env's own alone")
        for name in self.terms:
            if name != "rnd":
                raise ValueError(f"there is no term {name!r} that a config can name; available: 'rnd'")
        if "rnd" not in self.terms and self.rnd != RNDConfig():
            raise ValueError("settings of rnd have no effect without it; add 'rnd' to the terms")
        if self.teacher.run and not isinstance(self.algorithm, TPPOConfig):
            raise ValueError(f"teacher.run has no effect: {self.algorithm_name} has no teacher; choose 'tppo'")

    def _check_mode(self) -> None:
        """Raise where the mode of the algorithm is none, or not the run's: one of the two would have no effect."""
        own = getattr(self.algorithm, "mode", "")  # learners from replay have one, others leave it to the run
        if own and own not in MODES:
            raise ConfigError(unknown("mode", own, MODES, where="algorithm.mode: RunConfig"))
        if own and self.mode not in ("auto", own):
            raise ConfigError(
                f"mode={self.mode!r} and algorithm.mode={own!r}: a run has one way of running updates. "
                "Set mode, and leave algorithm.mode empty"
            )

    def to_json(self) -> str:
        """Return the config as text."""
        return json.dumps(to_plain(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> RunConfig[Any, Any]:
        """Read a config; what is not right is named with its place."""
        try:
            data = decode_json(text.encode("utf-8", errors="surrogatepass"), "the config", constant=float)
        except FileRefused as error:
            raise ConfigError(f"the config is not JSON: {error.reason}") from error
        return cls.from_dict(data)

    @classmethod
    def from_stored(cls, data: Any) -> RunConfig[Any, Any]:
        """Build the config of a run from what it has stored, which has every setting of its version.

        Settings that came later are as if they had been off: before `flatten_images` and `one_hot` there were, images
        were flattened and discrete observations entered as numbers.
        """
        if isinstance(data, Mapping) and isinstance(data.get("policy"), Mapping):
            policy = {"flatten_images": True, "one_hot": False, **data["policy"]}
            data = {**data, "policy": policy, "algorithm": _without_old_mode(data)}
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Any) -> RunConfig[Any, Any]:
        """Build a config from plain data."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"a config is a table of settings, found {type(data).__name__} {data!r}")
        name = data.get("algorithm_name", "ppo")
        try:
            entry = algorithm_entry(str(name))
        except KeyError as error:
            raise ConfigError(str(error.args[0])) from error
        given = {
            "algorithm": from_plain(entry.config, data.get("algorithm", {}), "algorithm"),
            "plan": from_plain(entry.plan, data.get("plan", {}), "plan"),
        }
        return from_plain(cls, data, "config", given)


def _without_old_mode(data: Mapping[str, Any]) -> Any:
    """Return the settings of the algorithm; an 'eager' that gave way to the run's mode when it was written does so now.

    Configs of before 'algorithm.mode' could be left empty have that word in every file.
    """
    settings = data.get("algorithm", {})
    if not isinstance(settings, Mapping) or settings.get("mode") != "eager":
        return settings
    mode = data.get("mode", "auto")
    if mode in ("auto", "eager"):
        return settings
    _log.warning("algorithm.mode='eager' of the saved config gives way to mode=%r, as it did when it was written", mode)
    return {**settings, "mode": ""}


def check_same_parts(before: RunConfig[Any, Any], now: RunConfig[Any, Any], *, where: str) -> None:
    """Raise ConfigError where nothing of what was saved with one config would fit another."""
    if before.policy != now.policy:
        listed = "; ".join(differences(to_plain(before.policy), to_plain(now.policy)))
        raise ConfigError(f"{where} goes on with the policy that it has ({listed}); for another one start a new run")
    for name in ("algorithm_name", "terms"):
        had, found = getattr(before, name), getattr(now, name)
        if had != found:
            raise ConfigError(f"{where} goes on with {name} = {had!r}, found {found!r}; start a new run")


def read_run_config(folder: str | Path, *, trust: bool = False, accept_changes: bool = False) -> RunConfig[Any, Any]:
    """Read the config of a run's folder, as the run has left it.

    trust: whether a task of the form 'gymnasium:module:Id' is accepted from a folder that was not made by this user on
        this machine; building it imports the module.
    accept_changes: whether a config that was changed since is read as it is; otherwise it raises RunChangedError.
    """
    folder = Path(folder)
    path = folder / CONFIG_FILE
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no run folder {str(folder)!r}")
    if not os.path.lexists(path):
        raise FileNotFoundError(f"{str(folder)!r} is not the folder of a run: it has no {CONFIG_FILE}")
    content = (read_plain if accept_changes else read_sealed)(folder, CONFIG_FILE)
    try:
        config = RunConfig.from_stored(content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    require_trust(path, content, modules_named(config.env.task, config.env.settings), trust=trust)
    return config
