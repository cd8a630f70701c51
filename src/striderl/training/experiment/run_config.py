"""`RunConfig`: everything that decides what a run does, as plain data; it is `config.json` in the run's folder.

    config = recipe("cartpole", "ppo")                        striderl.recipes: settings that learn
    config = replace(config, seed=3)
    text = config.to_json();  RunConfig.from_json(text) == config

The settings of algorithm, terms and plan have the types that their names stand for (`data/registry.py`).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from striderl.algorithms.building import OFFLINE, facts_of, term_class
from striderl.checkpoint.errors import FileRefused
from striderl.checkpoint.safe_files import decode_json
from striderl.checkpoint.trust import require_trust
from striderl.collect.schedules import CollectorConfig, WorkerSettings
from striderl.data.checked_fields import MAY_BE_INFINITE, check_field_types, check_num_threads
from striderl.data.naming import unknown
from striderl.data.registry import CALLBACKS, LOGGERS, colon_hint, is_reference
from striderl.execution.modes import MODES
from striderl.policies.policy import PolicyConfig
from striderl.policies.settings import PolicySettings
from striderl.training.experiment.config_json import (
    RUNNER,
    TRAIN_CFG,
    ConfigError,
    from_plain,
    policy_from_plain,
    to_be_trusted,
    to_plain,
)
from striderl.training.experiment.seal import differences, read_plain, read_sealed
from striderl.training.plans import OfflinePlan, OffPolicyPlan, OnPolicyPlan

_log = logging.getLogger(__name__)

AlgorithmT = TypeVar("AlgorithmT")
PlanT = TypeVar("PlanT")

CONFIG_FILE = "config.json"
"""The config's file in a run's folder."""
SCHEMA = 2
"""The version of the file: 1 had the settings of one term, RND, and a list of names."""
PLANS: Mapping[str, type[Any]] = {"on_policy": OnPolicyPlan, "off_policy": OffPolicyPlan, "offline": OfflinePlan}
"""The plan of each training loop."""
ALWAYS = ("console", "csv", "jsonl")
"""The loggers that every run has; the others are its trackers."""


@dataclass(frozen=True, kw_only=True)
class EnvSettings:
    """Which task is trained on, and in how many copies."""

    task: str
    """A built-in task (`striderl list tasks`), 'gymnasium:' and any id of Gymnasium, or 'module:Class' of one's own."""
    num_envs: int = 1
    """How many envs are stepped together; 8 to 64 for small tasks, hundreds to thousands for robots."""
    num_processes: int = 0
    """Worker processes that hold the envs of the training, each a part of them; 0 steps them in the trainer's process.
    For simulators whose Python takes time for each env, also on one GPU, where tensors are shared by CUDA IPC."""
    settings: Mapping[str, Any] = field(default_factory=dict, metadata=MAY_BE_INFINITE)
    """Settings of the task by name; on the command line `--env.settings.NAME VALUE`."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.num_envs < 1:
            raise ValueError(f"EnvSettings.num_envs is at least 1, found {self.num_envs}")
        if not 0 <= self.num_processes <= self.num_envs:
            raise ValueError(
                f"EnvSettings.num_processes is 0 to the number of envs, {self.num_envs}, found {self.num_processes}"
            )


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """When the greedy policy is evaluated, in envs of its own."""

    every: int = 10
    """Evaluate every so many iterations and at the end; 0 means only at the end."""
    num_episodes: int = 10
    """How many episodes an evaluation has."""
    num_envs: int = 10
    """How many envs evaluate; at most one per episode."""
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
    """A logged metric such as 'evaluate/return_mean'; empty means never."""
    value: float = 0.0
    """The run ends when the metric is at least this (at most, with mode 'min')."""
    mode: Literal["max", "min"] = "max"
    """Whether large ('max') or small ('min') values are good."""
    times: int = 1
    """How often in a row the metric must reach the value."""
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
    """When a run is saved, and how many checkpoints are kept."""

    every: int = 50
    """Save every so many iterations, and at the end; 0 means only at the end."""
    keep_last: int = 3
    """How many of the newest checkpoints are kept; the best is kept as well."""
    best: str = "evaluate/return_mean"
    """The logged metric that chooses the best checkpoint; empty means that none is."""
    mode: Literal["max", "min"] = "max"
    """Whether large ('max') or small ('min') values are good."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.every < 0 or self.keep_last < 1:
            raise ValueError(
                f"CheckpointSettings: every >= 0 and keep_last >= 1, found {self.every} and {self.keep_last}"
            )


@dataclass(frozen=True, kw_only=True)
class LoggingSettings:
    """Where metrics and videos are logged; metrics.csv and metrics.jsonl are always written."""

    console: Literal["auto", "rich", "plain", "off"] = "auto"
    """A live table ('rich'), lines ('plain'), nothing ('off'), or what fits the terminal ('auto')."""
    console_every: int = 1
    """How many iterations there are between two lines; the live table shows every iteration."""
    trackers: tuple[str, ...] = ()
    """Further loggers by name: tensorboard, wandb, trackio, mlflow, neptune, or 'module:Class' of one's own."""
    video_every: int = 0
    """Film the greedy policy every so many iterations; 0 means never."""
    video_seconds: float = 10.0
    """How long such a video is, in seconds of the task's time."""
    file_megabytes: int = 64
    """After so many megabytes metrics.csv and metrics.jsonl start a new file; the old one is metrics.part1.csv."""
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
        known = [name for name in LOGGERS.names() if name not in ALWAYS]
        for name in self.trackers:
            if name not in known and not is_reference(name):
                raise ValueError(unknown("tracker", name, known, where="LoggingSettings") + colon_hint(name))


@dataclass(frozen=True, kw_only=True)
class TeacherRun:
    """The teacher of a student."""

    run: str = ""
    """The folder of the teacher's run, for algorithms and terms that have a teacher."""
    checkpoint: str = "best"
    """Which of its policies: the 'best', the 'last', or that of a number of env steps."""
    components: Mapping[str, str] = field(default_factory=dict)
    """Names in the student's task of the components that the teacher observes, where they differ."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.checkpoint not in ("best", "last") and not self.checkpoint.isdigit():
            raise ValueError(
                f"teacher.checkpoint is 'best', 'last' or a number of env steps, found {self.checkpoint!r}"
            )
        if not self.run and (self.checkpoint != "best" or self.components):
            raise ValueError("teacher.checkpoint and teacher.components have no effect without teacher.run")


@dataclass(frozen=True, kw_only=True)
class ExpertSettings:
    """The expert data that an adversarial reward imitates."""

    source: str = ""
    """A dataset (`striderl dataset`), files of motion clips such as 'clips/*.npz', or 'env' where it gives them."""
    fields: tuple[str, ...] = ()
    """With clips: which of their fields make a frame, in the env's order; empty takes the first clip's."""
    column: str = "ref_motion"
    """With 'env': the info column that holds the motion."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not self.source and (self.fields or self.column != "ref_motion"):
            raise ValueError("expert.fields and expert.column have no effect without expert.source")


@dataclass(frozen=True, kw_only=True)
class RunConfig(Generic[AlgorithmT, PlanT]):
    """Everything that decides what a run does."""

    env: EnvSettings
    """The task."""
    policy: PolicySettings | PolicyConfig = field(default_factory=PolicySettings)
    """The networks: a few settings, or stage by stage."""
    algorithm_name: str = "ppo"
    """Which algorithm learns (`striderl list algorithms`); on the command line `--algorithm NAME`."""
    algorithm: AlgorithmT
    """Its settings."""
    terms: Mapping[str, Any] = field(default_factory=dict)
    """The terms, name → settings, in order (`striderl list terms`); on the command line `--terms NAME` and
    `--terms.NAME.SETTING`."""
    teacher: TeacherRun = field(default_factory=TeacherRun)
    """The teacher, for algorithms and terms that have one."""
    expert: ExpertSettings = field(default_factory=ExpertSettings)
    """The expert data, for algorithms and terms that imitate some."""
    callbacks: tuple[str, ...] = ()
    """Callbacks of one's own, 'module:Class', built without arguments and called with every record."""
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    """How experience is collected; its seed is that of the run."""
    workers: WorkerSettings = field(default_factory=WorkerSettings)
    """Who collects it: the learner itself, or workers of Ray."""
    plan: PlanT
    """How much is collected, and how long."""
    dataset: str = ""
    """The folder of a saved dataset (`striderl dataset`), for algorithms that learn from one and step no env."""
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    """When the greedy policy is evaluated."""
    stop: StopSettings = field(default_factory=StopSettings)
    """When the run ends before its plan does."""
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    """When the run is saved."""
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    """Where metrics are logged."""
    seed: int = 0
    """Seed of the initial weights, the envs, the exploration and the order of samples."""
    device: str = "cpu"
    """Where envs and networks live: 'cpu', 'cuda', 'cuda:1'."""
    num_threads: int = 0
    """Threads of torch on the CPU; 1 is fastest for small networks, 0 leaves torch's own choice."""
    mode: str = "auto"
    """How updates are run: 'eager'; 'compiled', faster in long runs, after tens of seconds of compiling; 'graphed', as
    CUDA graphs; or 'auto': graphed on a CUDA device (of several processes collection alone), eager on the CPU, and
    compiled after `switch_at`."""
    switch_at: str = "auto"
    """With mode 'auto': the iteration from which on compiled programs run. On the CPU they are compiled beside training
    until then, on a GPU when it is time. 'auto' takes it from the sizes of the run, and does not compile in short runs;
    'ready': as soon as possible, on the CPU with last bits that may differ between runs; 'never': as written."""
    tf32: bool = True
    """Let matrix products on a GPU round their factors to TF32, which has 10 bits where float32 has 23: about twice as
    fast. A switch of torch for the whole process; False leaves it as it is. On a CPU it has no effect."""

    def __post_init__(self) -> None:
        check_field_types(self)
        check_algorithm(self.algorithm_name, self.algorithm, self.plan, self.dataset)
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is not negative and below 2**63, found {self.seed}")
        check_num_threads(self.num_threads)
        if self.mode not in MODES:
            raise ConfigError(unknown("mode", self.mode, MODES, where="RunConfig"))
        self._check_mode()
        if self.switch_at not in ("auto", "ready", "never") and not self.switch_at.isdecimal():
            raise ConfigError(
                f"switch_at is 'auto', 'ready', 'never' or the number of an iteration, found {self.switch_at!r}"
            )
        if self.collector.seed not in (0, self.seed):
            raise ValueError(f"collector.seed={self.collector.seed} has no effect: set the seed of the run")
        if self.collector.previous_step:
            raise ValueError("collector.previous_step is not for runs: evaluation and export show the env's own alone")
        for name, settings in self.terms.items():
            wanted = term_config(name)
            if type(settings) is not wanted:
                raise ValueError(f"terms: {name!r} wants a {wanted.__name__}, found {type(settings).__name__}")
        for name in self.callbacks:
            if name not in CALLBACKS.names() and not is_reference(name):
                raise ValueError(
                    f"callbacks: wanted 'module:Class' or one of {list(CALLBACKS.names())}, found {name!r}"
                )
        self._check_objects()

    def _check_objects(self) -> None:
        """Raise for a teacher or an expert that nothing in the run uses."""
        used = {
            *facts_of(self.algorithm_name).objects,
            *(_TERM_OBJECTS[name] for name in self.terms if name in _TERM_OBJECTS),
        }
        own = [name for name in (self.algorithm_name, *self.terms) if is_reference(name)]  # these may load anything
        if self.teacher.run and "teacher" not in used and not own:
            raise ValueError(
                f"teacher.run has no effect: {self.algorithm_name} has no teacher; choose 'tppo', or add the term "
                "'distill'"
            )
        if self.expert.source and "expert" not in used and not own:
            raise ValueError(
                f"expert.source has no effect: {self.algorithm_name} has no expert; choose 'appo' or 'gail', or add "
                "the term 'motion_prior' or 'adversarial'"
            )

    def _check_mode(self) -> None:
        """Raise where the algorithm's mode is unknown or differs from the run's: one of them would have no effect."""
        own = getattr(self.algorithm, "mode", "")  # off-policy algorithms have one, others use the run's
        if own and own not in MODES:
            raise ConfigError(unknown("mode", own, MODES, where="algorithm.mode: RunConfig"))
        if own and self.mode not in ("auto", own):
            raise ConfigError(
                f"mode={self.mode!r} and algorithm.mode={own!r}: a run has one way of running updates. "
                "Set mode, and leave algorithm.mode empty"
            )

    def to_json(self) -> str:
        """Return the config as text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return the config as plain data, with its version."""
        return {"schema": SCHEMA, **to_plain(self)}

    @classmethod
    def from_json(cls, text: str) -> RunConfig[Any, Any]:
        """Read a config; an error names the setting and its place."""
        try:
            data = decode_json(text.encode("utf-8", errors="surrogatepass"), "the config", constant=float)
        except FileRefused as error:
            raise ConfigError(f"the config is not JSON: {error.reason}") from error
        return cls.from_dict(data)

    @classmethod
    def from_stored(
        cls,
        data: Any,
        path: str | Path,
        *,
        trust: bool = False,
        builds_env: bool = True,
        accepted: RunConfig[Any, Any] | None = None,
    ) -> RunConfig[Any, Any]:
        """Build the config of a run from what a file holds: every setting of its version; those added later are off.

        What it names and `accepted` does not needs `trust`, or a file that this user made; see `read_run_config`.
        """
        found = upgraded(data)
        if isinstance(found, Mapping):
            known = {} if accepted is None else accepted.to_dict()
            require_trust(path, data, *to_be_trusted(found, known, env=builds_env), trust=trust)
            found = {name: value for name, value in found.items() if name not in (RUNNER, TRAIN_CFG)}
        try:
            return cls.from_dict(found)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def from_dict(cls, data: Any) -> RunConfig[Any, Any]:
        """Build a config from plain data."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"a config is a table of settings, found {type(data).__name__} {data!r}")
        schema = data.get("schema", SCHEMA)
        if schema != SCHEMA:
            raise ConfigError(
                f"the config has schema {schema!r}, this striderl reads up to {SCHEMA}; update it to use this run"
            )
        data = {name: value for name, value in data.items() if name != "schema"}
        terms = data.get("terms", {})
        if not isinstance(terms, Mapping):
            raise ConfigError(f"terms: wanted a table name → settings, found {type(terms).__name__} {terms!r}")
        try:
            facts = facts_of(str(data.get("algorithm_name", "ppo")))
            kinds = {str(name): term_config(str(name)) for name in terms}
        except KeyError as error:
            raise ConfigError(str(error.args[0])) from error
        given = {
            "algorithm": from_plain(facts.config, data.get("algorithm", {}), "algorithm"),
            "plan": from_plain(PLANS[facts.loop], data.get("plan", {}), "plan"),
            "terms": {name: from_plain(kind, terms[name], f"terms.{name}") for name, kind in kinds.items()},
        }
        if isinstance(data.get("policy"), Mapping):
            given["policy"] = policy_from_plain(data["policy"])
        return from_plain(cls, data, "config", given)


def term_config(name: str) -> type[Any]:
    """Return the type of a term's settings."""
    kind: type[Any] = term_class(name).Config
    return kind


_TERM_OBJECTS = {"distill": "teacher", "motion_prior": "expert", "adversarial": "expert"}
"""Parts that built-in terms require."""


def check_algorithm(name: str, settings: Any, plan: Any, dataset: str) -> None:
    """Raise unless settings and plan are those of the algorithm, and a dataset is given to those alone that use one."""
    try:
        facts = facts_of(name)
    except KeyError as error:
        raise ValueError(f"algorithm_name: {error.args[0]}") from error
    for what, value, wanted in (("algorithm", settings, facts.config), ("plan", plan, PLANS[facts.loop])):
        if type(value) is not wanted:
            raise ValueError(
                f"{what}: algorithm_name={name!r} wants a {wanted.__name__}, found {type(value).__name__}; "
                "on the command line choose the algorithm with --algorithm"
            )
    if dataset and facts.loop != OFFLINE:
        raise ValueError(f"dataset has no effect with {name}, which learns from an env; bc, cql, iql, … learn from one")


def upgraded(data: Any) -> Any:
    """Return a stored config of any version in the present form; settings added later are off."""
    if not isinstance(data, Mapping) or "schema" in data:
        return data
    data = {**data, "algorithm": _without_old_mode(data)}
    rnd, terms = data.pop("rnd", {}), data.get("terms", ())
    if not isinstance(terms, Mapping):
        data["terms"] = {name: rnd if name == "rnd" else {} for name in terms}
    if isinstance(data.get("policy"), Mapping):
        data["policy"] = {"flatten_images": True, "one_hot": False, **data["policy"]}
    return {"schema": SCHEMA, **data}


def _without_old_mode(data: Mapping[str, Any]) -> Any:
    """Return the settings of the algorithm; an old 'eager' that the run's mode overrode is dropped.

    Configs from before 'algorithm.mode' could be empty all contain that word.
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
    """Raise ConfigError where a checkpoint of one config cannot fit another."""
    if before.policy != now.policy:
        listed = "; ".join(differences(to_plain(before.policy), to_plain(now.policy)))
        raise ConfigError(f"{where} goes on with the policy that it has ({listed}); for another one start a new run")
    for name in ("algorithm_name", "terms"):
        had, found = (
            value if isinstance(value, str) else list(value) for value in (vars(before)[name], vars(now)[name])
        )
        if had != found:
            raise ConfigError(f"{where} goes on with {name} = {had!r}, found {found!r}; start a new run")


def read_run_config(
    folder: str | Path, *, trust: bool = False, accept_changes: bool = False, builds_env: bool = True
) -> RunConfig[Any, Any]:
    """Read the config of a run's folder as the run left it.

    trust: whether modules that the config names ('my_pkg.envs:Robot', 'gymnasium:module:Id') are accepted from a folder
        that was not made by this user on this machine; building the parts imports them.
    builds_env: False where only the policy is built; a module of the env alone then needs no trust.
    accept_changes: whether a config that was changed since is read as it is; otherwise it raises RunChangedError.
    """
    folder = Path(folder)
    path = folder / CONFIG_FILE
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no run folder {str(folder)!r}")
    if not os.path.lexists(path):
        inside = sorted(str(each.parent) for each in Path(folder).glob(f"*/{CONFIG_FILE}"))
        runs = f"; it holds runs, such as {inside[-1]!r}" if inside else ""
        raise FileNotFoundError(f"{str(folder)!r} is not the folder of a run: it has no {CONFIG_FILE}{runs}")
    content = (read_plain if accept_changes else read_sealed)(folder, CONFIG_FILE)
    return RunConfig.from_stored(content, path, trust=trust, builds_env=builds_env)
