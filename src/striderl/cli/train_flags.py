"""Parse flags into a config: the flags of one task, algorithm and list of terms.

    --steps 100000 --num-envs 8          short flags      → --plan.total-steps, --env.num-envs
    --terms rnd symmetry                 terms by name    → --terms.rnd.weight 0.5 --terms.symmetry.augment False
    --env.reward-weights.torque -1e-4    settings of the task, one number of a table included
    --algorithm.learning-rate 1e-3       any field of the config, by its place

The flags are the fields of one dataclass, which is put together here: the fields of `RunConfig` with the task's own
config in the place of `env`, and a field per term.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import shlex
import textwrap
import typing
from collections.abc import Mapping
from dataclasses import MISSING, field, make_dataclass, replace
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from striderl.checkpoint.errors import FileRefused
from striderl.checkpoint.safe_files import decode_json
from striderl.cli.terminal import UsageError, message_of

if TYPE_CHECKING:
    from striderl.training.experiment.run_config import RunConfig

TRAIN_HELP = """usage: striderl train TASK [--algorithm NAME] [--terms NAME …] [--SETTING VALUE] …
       striderl train --config FILE [--SETTING VALUE] …
       striderl train --resume RUN [--SETTING VALUE] …

Train a policy. The recipe of the task has settings that learn; every one of them can be changed by a flag.

  striderl train cartpole                              a minute; the last line names a page that shows the run
  striderl train quadruped --seeds 5 --name first      five seeds side by side, and one summary of them
  striderl train gymnasium:Pendulum-v1 --algorithm sac --steps 20000 --algorithm.learning-rate 1e-3

  TASK                  {tasks},
                        any id of Gymnasium (gymnasium:LunarLander-v3), an env of your own (my_pkg.envs:PointRobot), or
                        a simulator's task with its own settings: mjlab:TASK, isaaclab:TASK, legged_gym:TASK,
                        playground:TASK, genesis:MODULE ('striderl train mjlab:TASK --help' lists them)
  --algorithm NAME      another algorithm than the usual one ('striderl list algorithms'), or my_pkg.trpo:TRPO
  --terms NAME …        what is learned beside it ('striderl list terms'), or my_pkg.terms:MyTerm
  --steps 1000000       how long, in steps over all envs
  --num-envs 64         how many envs learn together
  --seed 1              another seed
  --device cuda         where to train
  --seeds 5             train so many seeds, side by side in a process each; compared at the end
  --jobs 2              how many of them at a time (default: as many as there are cores)
  --name first_try      the name of the run's folder, instead of the time
  --tags WORD …         words to find the run by: 'striderl list runs --tags WORD'
  --view                open a view of the run in the browser for as long as it trains ('striderl view' opens one later)
  --runs FOLDER         where the folder of the run is made (default: runs)
  --config FILE         settings of a file instead of a recipe's: the best of 'striderl sweep', or a run's config.json
  --slurm KEY=VALUE,…   submit a Slurm job instead, such as partition=gpu,time=4:00:00,gpus_per_node=1,cpus_per_task=8,
                        with --seeds an array; a preempted run is requeued and goes on exactly; tasks_per_node=2: ranks
  --workers ray         let --num-workers 8 of Ray collect; --workers.schedule and others ('TASK --help', docs/scale.md)
  --resume RUN          go on with a run that was stopped, instead of starting one; with --trust, --accept-changes as
                        'striderl resume' has them
  --rank-timeout SECONDS  under torchrun: name a process that does not answer for so long (default: 600)
  --SETTING VALUE       any setting by its place in the config; the most useful:
      --env.NAME VALUE                  a setting of the task itself, such as --env.reward-weights.alive 0.2
      --env.settings.NAME VALUE         … of an env of Gymnasium or of your own
      --algorithm.learning-rate 3e-4    settings of the algorithm
      --terms.rnd.weight 0.5            settings of a term
      --policy.kind lstm                a policy with memory
      --teacher.run RUN                 what tppo, estimator_tppo, atppo, dagger and the term distill learn from
      --expert.source FOLDER            what appo, atppo, gail and the terms motion_prior and adversarial imitate
      --dataset FOLDER                  what bc, td3_bc, cql, iql and bcq learn from ('striderl dataset' makes one)
      --logging.trackers tensorboard    further loggers

'striderl train TASK [--algorithm NAME] [--terms NAME …] --help' lists every setting with its meaning and value.

'torchrun --nproc-per-node 2 -m striderl train TASK' trains one run in two processes, and with 'resume RUN' goes on
with it. --num-envs and --steps are those of all processes together, not of each: the run learns what one process with
as many envs would, from minibatches with samples of every process.

The folder runs/TASK/TIME has config.json, metrics.csv, checkpoints and what other commands write. SIGTERM, Ctrl-C and
a terminal that closes (SIGHUP) save the run and end it with exit code 143, 130 or 129; 'striderl resume RUN' goes on
exactly there."""

RESUME_HELP = """usage: striderl resume RUN [--trust] [--accept-changes] [--view] [--SETTING VALUE] …

Go on with a run from its newest good checkpoint, as if it had never been stopped.

  RUN                   the folder of a run, or of several (runs/cartpole: the newest of them)
  --trust               {trust}
  --accept-changes      {accept_changes}
  --SETTING VALUE       change a setting from here on, such as --plan.total-steps 2000000 for a run that has ended

The log_dir of a runner (OnPolicyRunner and the others) is a run as well:

  --max-iterations N    how many iterations there are in all; those of its train_cfg unless given
  --env NAME            the env, where the folder cannot name it: a task, or what makes one, my_pkg.envs:make_env
  --device cuda         where to train"""

SEEDS, JOBS, TAGS = "--seeds", "--jobs", "--tags"
"""Flags of `striderl train` for several runs."""
SHORT = {
    "--steps": "--plan.total-steps",
    "--num-envs": "--env.num-envs",
    "--workers": "--workers.kind",
    "--num-workers": "--workers.num-workers",
}
"""Short flags for what everyone sets; --seed, --device and --name are short already."""
ELSEWHERE = {
    "--total-timesteps": "--steps",
    "--timesteps": "--steps",
    "--n-envs": "--num-envs",
    "--max-iterations": "--plan.total-iterations",
    "--lr": "--algorithm.learning-rate",
    "--algorithm.lr": "--algorithm.learning-rate",
    "--algo": "--algorithm",
}
"""What other libraries call a flag, for the suggestion in the error."""
_STEPS = SHORT["--steps"]
_SETTING = "--env.settings."
_COUNTS = ("num_envs", "num_processes")
"""Settings of every env, whatever its task."""
_GIVEN = ("device", "first_env_index")
"""Fields of a task's config that are not settings: the run gives them."""


def overridden(config: RunConfig[Any, Any], words: list[str], *, prog: str) -> RunConfig[Any, Any]:
    """Return the config with what the flags change; a wrong flag or value raises UsageError."""
    import tyro

    from striderl.cli.options import one_line_errors

    words, names = take_list(words, "--terms")
    words, settings = _settings(_written_out(words, config))
    try:
        if names is not None:
            config = replace(config, terms=_terms(names, config))
        if settings:
            config = replace(config, env=replace(config.env, settings={**config.env.settings, **settings}))
        flags = _Flags(config)
        if flags.settings_are_free:
            _check_env_flags(words, config.env.task)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(message_of(error)) from error
    with one_line_errors(prog):
        found = tyro.cli(
            flags.kind,
            default=flags.default,
            args=words,
            prog=prog,
            description=f"Train {config.env.task} with {config.algorithm_name}. Values in brackets are the recipe's. "
            "Short flags (--steps, --num-envs, --terms, --name, --runs): striderl train --help",
            config=(tyro.conf.FlagConversionOff,),
        )
    try:
        return flags.changed(found)
    except (ValueError, TypeError) as error:
        raise UsageError(message_of(error)) from error


def command_of(config: RunConfig[Any, Any], usual: RunConfig[Any, Any]) -> str:
    """Return the command line that trains this config, where `usual` is the recipe of its task and algorithm."""
    words = ["striderl", "train", config.env.task, "--algorithm", config.algorithm_name]
    if list(config.terms) != list(usual.terms):
        words += ["--terms", *config.terms]
        usual = replace(usual, terms=_terms(list(config.terms), usual))
    wanted, known = config.to_dict(), usual.to_dict()
    settings = {name: value for name, value in wanted["env"].pop("settings").items()}
    before = known["env"].pop("settings")
    words += _changed_flags(wanted, known, "--")
    for name, value in settings.items():
        if name not in before or before[name] != value:
            words += [f"{_SETTING}{name}", json.dumps(value)]
    return " ".join(shlex.quote(word) for word in words)


def _changed_flags(wanted: Mapping[str, Any], known: Mapping[str, Any], prefix: str) -> list[str]:
    """Return the flags of the settings that differ, by their place; lists as several words."""
    words: list[str] = []
    for name, value in wanted.items():
        # a term of one's own is 'module:Class', whose flags have '-' for ':' and '.'
        flag = f"{prefix}{name.replace(':', '_').replace('.', '_').replace('_', '-')}"
        before = known.get(name)
        if isinstance(value, Mapping):
            words += _changed_flags(value, before if isinstance(before, Mapping) else {}, f"{flag}.")
        elif value != before or type(value) is not type(before):
            words += [flag, *map(str, value if isinstance(value, list) else [value])]
    return words


def _terms(names: list[str], config: RunConfig[Any, Any]) -> dict[str, Any]:
    from striderl.training.experiment.run_config import term_config

    return {name: config.terms[name] if name in config.terms else term_config(name)() for name in names}


def _written_out(words: list[str], config: RunConfig[Any, Any]) -> list[str]:
    """Replace short flags by the settings that they stand for."""
    from striderl.training.plans import OfflinePlan

    found, flag = list[str](), ""
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--steps" and isinstance(config.plan, OfflinePlan):
            raise UsageError(
                f"{config.algorithm_name} takes no steps in an env; its length is --plan.total-iterations, of "
                f"{config.plan.num_updates_per_iteration} gradient steps each"
            )
        if word.startswith("--"):
            name = SHORT.get(name.replace("_", "-"), name)
            flag = name.replace("_", "-")
            found.append(f"{name}{equals}{_whole_number(value) if flag == _STEPS else value}")
        else:
            found.append(_whole_number(word) if flag == _STEPS else word)
    return found


def _whole_number(text: str) -> str:
    """Return '1e6' as '1000000'; what is no whole number stays, and is refused by the parser."""
    try:
        return str(int(float(text))) if float(text).is_integer() and not text.isdigit() else text
    except ValueError:
        return text


def check_flags(words: list[str], known: tuple[str, ...]) -> None:
    """Raise for a flag that is nearly one of the command's own; all others are settings, and are checked later."""
    for word in words:
        flag = word.partition("=")[0].replace("_", "-")
        near = get_close_matches(flag, (*known, *SHORT, TAGS), n=1, cutoff=0.85) if "." not in flag else []
        meant = ELSEWHERE.get(flag, near[0] if near else "")
        if meant and flag not in ("--seed", "--terms", *SHORT):
            raise UsageError(f"there is no flag {flag}. Did you mean {meant}?")


def take(words: list[str], *flags: str) -> tuple[list[str], dict[str, str]]:
    """Take flags with one value out of the words, as '--flag value' or '--flag=value'."""
    left, given, position = [], dict[str, str](), 0
    while position < len(words):
        name, equals, value = words[position].partition("=")
        if name in flags:
            if not equals:
                position += 1
                if position == len(words) or words[position].startswith("--"):
                    raise UsageError(f"{name} wants a value")
                value = words[position]
            given[name] = value
        else:
            left.append(words[position])
        position += 1
    return left, given


def take_list(words: list[str], flag: str) -> tuple[list[str], list[str] | None]:
    """Take a flag with any number of values out of the words; None where it is not there."""
    if not any(word.partition("=")[0] == flag for word in words):
        return words, None
    left, values, taking = [], [], False
    for word in words:
        name, equals, value = word.partition("=")
        if name == flag:
            taking = not equals
            values += [value] if equals else []
        elif taking and not word.startswith("--"):
            values.append(word)
        else:
            taking = False
            left.append(word)
    return left, values


def _settings(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Take '--env.settings.NAME VALUE' out of the words; values are JSON, and what is not JSON is text."""
    names = [word.partition("=")[0] for word in words if word.startswith(_SETTING)]
    left, given = take(words, *names)
    return left, {name.removeprefix(_SETTING).replace("-", "_"): _value(text) for name, text in given.items()}


def _check_env_flags(words: list[str], task: str) -> None:
    """Raise for '--env.NAME' of an env whose settings are the arguments of its class, with the flag that is meant."""
    counts = [f"--env.{name.replace('_', '-')}" for name in _COUNTS]
    for word in words:
        flag = word.partition("=")[0]
        if flag.startswith("--env.") and not get_close_matches(flag.replace("_", "-"), counts, cutoff=0.85):
            raise UsageError(
                f"there is no flag {flag}. Did you mean {_SETTING}{flag.removeprefix('--env.')}? The arguments of "
                f"{task} are given as {_SETTING}NAME"
            )


def _value(text: str) -> Any:
    try:
        value = decode_json(text.encode("utf-8", errors="surrogateescape"), "the command line", constant=float)
    except FileRefused:
        return {"True": True, "False": False}.get(text, text)
    return tuple(value) if isinstance(value, list) else value


# -- the dataclass of all flags ----------------------------------------------------------------------------------------


class _Flags:
    """The flags of one config: a dataclass `kind`, its values `default`, and the way back to a config."""

    def __init__(self, config: RunConfig[Any, Any]) -> None:
        from striderl.envs.tasks import task_config

        self.config = config
        self._task = task_config(config.env.task)
        self._usual = None if self._task is None else self._task_defaults()
        self._keys = {name: name.replace(":", "_").replace(".", "_") for name in config.terms}
        env_kind, env = self._env()
        terms_kind = _table({self._keys[name]: value for name, value in config.terms.items()}, "Terms")
        terms = terms_kind()
        own = {"env": (env_kind, env), "terms": (terms_kind, terms)}
        own |= {name: (type(vars(config)[name]), vars(config)[name]) for name in ("algorithm", "plan", "policy")}
        self.kind = _extended(type(config), own)
        values = {each.name: vars(config)[each.name] for each in dataclasses.fields(config)}
        self.default = self.kind(**{**values, **{name: value for name, (_, value) in own.items()}})

    def _task_defaults(self) -> Any:
        from striderl.envs.wrap_env import configured

        assert self._task is not None
        return configured(self._task, self.config.env.settings)

    def _env(self) -> tuple[type[Any], Any]:
        """Return the flags of the env: how many, in how many processes, and the settings of the task."""
        env = self.config.env
        own: dict[str, tuple[Any, Any]] = {
            name: (_described(int, _help(type(env), name)), getattr(env, name)) for name in _COUNTS
        }
        if self._task is None:
            kind = _extended(type(env), own, only=_COUNTS)
            return kind, kind()
        for name in self._names():
            value = getattr(self._usual, name)
            if _is_table(value):
                kind = _table(value, name)
                own[name] = (kind, kind())
        kind = _extended(self._task, own, only=(*_COUNTS, *self._names()))
        values = {name: getattr(self._usual, name) for name in self._names()}
        return kind, kind(**{**values, **{name: value for name, (_, value) in own.items()}})

    @property
    def settings_are_free(self) -> bool:
        """Whether the env's settings are arguments of its class, for which there is no config with flags."""
        return self._task is None

    def _names(self) -> list[str]:
        assert self._task is not None
        given = (*_COUNTS, *_GIVEN)
        return [each.name for each in dataclasses.fields(self._task) if each.name not in given and each.init]

    def changed(self, found: Any) -> RunConfig[Any, Any]:
        """Return the config with the values that were parsed."""
        settings = dict(self.config.env.settings)
        if self._task is not None:
            for name in self._names():
                value, usual = getattr(found.env, name), getattr(self._usual, name)
                value = vars(value) if _is_table(usual) else value
                if value != usual:
                    settings[name] = _plain(value)
        values = {each.name: getattr(found, each.name) for each in dataclasses.fields(self.config)}
        values["terms"] = {name: getattr(found.terms, key) for name, key in self._keys.items()}
        counts = {name: getattr(found.env, name) for name in _COUNTS}
        values["env"] = replace(self.config.env, **counts, settings=settings)
        return replace(self.config, **values)


def _same(value: Any) -> Any:
    return value


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(str(name).isidentifier() for name in value)


def _table(values: Mapping[str, Any], name: str) -> type[Any]:
    """Return a dataclass with a field per entry of a table, whose defaults are the entries."""
    parts = [(key, type(value), field(default_factory=partial(_same, value))) for key, value in values.items()]
    return make_dataclass(name, parts, frozen=True, kw_only=True)


def _extended(kind: type[Any], own: Mapping[str, tuple[Any, Any]], only: tuple[str, ...] = ()) -> type[Any]:
    """Return a dataclass with the fields of another, some with other types; `only` leaves the rest out.

    The texts below the fields of the other class stay their help.
    """
    hints = typing.get_type_hints(kind)
    parts: list[tuple[str, Any, Any]] = []
    names = [each.name for each in dataclasses.fields(kind)]
    for name in [*names, *(name for name in own if name not in names)]:
        if only and name not in only:
            continue
        hint, default = own[name] if name in own else (hints[name], MISSING)
        shown = _described(hint, _help(kind, name))
        parts.append((name, shown, field() if default is MISSING else field(default_factory=partial(_same, default))))
    return make_dataclass(kind.__name__, parts, frozen=True, kw_only=True)


def _described(hint: Any, text: str) -> Any:
    """Return an annotation with the help of its flag."""
    import tyro

    return typing.Annotated[hint, tyro.conf.arg(help=text)] if text else hint


def _plain(value: Any) -> Any:
    """Return a setting as a file can hold it."""
    from striderl.training.experiment.config_json import to_plain

    return to_plain(value) if dataclasses.is_dataclass(value) or isinstance(value, Mapping) else value


_HELP: dict[type[Any], dict[str, str]] = {}


def _help(kind: type[Any], name: str) -> str:
    """Return the text below a field of a dataclass, as it stands in the source."""
    for owner in kind.__mro__:
        if dataclasses.is_dataclass(owner) and name in inspect.get_annotations(owner):
            if owner not in _HELP:
                _HELP[owner] = _texts(owner)
            return _HELP[owner].get(name, "")
    return ""


def _texts(kind: type[Any]) -> dict[str, str]:
    """Return field → text for the fields that a class declares itself."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for statement, following in pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = " ".join(following.value.value.split())
    return found
