"""`striderl sweep`: search settings of a task with Optuna, in one process or in many.

    striderl sweep cartpole --space algorithm.learning-rate=1e-4:1e-2:log algorithm.num-mini-batches=2,4,8 --trials 30
                                   └ setting             └ range                                └ choices

Names are those of the flags of `striderl train`, and every end of a range and every choice is checked before the first
trial. The engine is `training/sweep.py`, and `training/population.py` for `--scheduler pbt`.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from striderl.cli.launch import SLURM, base_config, submit_sweep
from striderl.cli.terminal import UsageError, complain, message_of, say
from striderl.cli.train_flags import overridden, take, take_list
from striderl.data.naming import suggestion
from striderl.training.signals import StopSignals

if TYPE_CHECKING:
    from striderl.training.experiment.run_config import RunConfig
    from striderl.training.sweep import SweepSettings

OWN_FLAGS = (
    *("--algorithm", "--config", "--trials", "--seeds", "--sampler", "--pruner", "--scheduler", "--interval"),
    *("--name", "--sweeps", "--resume", "--jobs", SLURM),
)
"""What the command takes besides settings, with a value each."""

SWEEP_HELP = """usage: striderl sweep TASK [--algorithm NAME] --space SETTING=RANGE … [--trials N] [--SETTING VALUE] …
       striderl sweep --config FILE --space FILE …
       striderl sweep --resume FOLDER

Search the settings that learn best. Each trial is an ordinary run, in FOLDER/trials; the journal is Optuna's, so
'optuna-dashboard FOLDER/journal.log' shows it. The same '--resume FOLDER' in further processes, on machines that see
the folder, works on the same sweep; a trial whose process was killed goes on from its checkpoint.

  --space SETTING=RANGE …  what is searched, by the names of 'striderl train TASK --help':
                             algorithm.learning-rate=1e-4:1e-2:log   a range, uniform in the logarithm
                             algorithm.num-mini-batches=1:8          a range of integers; 0:1:0.25 has a step
                             policy.activation=elu,tanh              choices; with spaces in quotes: "64 64,128 128"
                           or a file, .toml or .json, with the same: "algorithm.gamma" = {low = 0.9, high = 0.999}
  --trials 20              how many trials, of all processes together
  --seeds 1                runs per trial, whose mean is its value
  --metrics NAME:max …     what is to be best (default: evaluate/return_mean:max); of several, the Pareto front
  --pruner median          'median', 'hyperband' or 'none': which trials end early, by their evaluations
  --sampler tpe            'tpe' or 'random'
  --scheduler pbt          population-based training: --trials members, compared every --interval env steps; the worst
                           quarter copies a checkpoint of the best and goes on with perturbed settings
  --name NAME              the folder is sweeps/NAME, instead of the time;  --sweeps FOLDER: instead of sweeps
  --slurm KEY=VALUE,…      submit --jobs processes as a Slurm job array instead ('striderl train --help')
  --SETTING VALUE          settings that all trials share, as for 'striderl train'

The best settings are in FOLDER/best.json: 'striderl train --config FOLDER/best.json'."""


def sweep(words: list[str]) -> int:
    """Start a sweep, or work on one that exists; returns the exit code."""
    if not words or words[0] in ("-h", "--help"):
        say(SWEEP_HELP)
        return 0 if words else 2
    with StopSignals() as signals:
        words, given = take(words, *OWN_FLAGS)
        folder, settings, base = _resumed(words, given) if "--resume" in given else _started(words, given)
        if SLURM in given:
            return submit_sweep(given[SLURM], folder, _count(given, "--jobs", 1))
        if "--jobs" in given:
            raise UsageError(f"--jobs has no effect without {SLURM}; start the command several times instead")
        return _work(folder, settings, base, signals)


def _work(folder: Path, settings: SweepSettings, base: RunConfig[Any, Any], signals: StopSignals) -> int:
    from striderl.training.population import Population
    from striderl.training.sweep import Sweep, SweepError

    kind = Population if settings.scheduler == "pbt" else Sweep
    try:
        one = kind(folder, settings, base, _configure(base), signals=signals, report=say)
        say(f"{base.env.task} with {base.algorithm_name}, {settings.trials} trials: {folder}")
        code = one.work()
    except (SweepError, ValueError, ImportError, OSError) as error:
        complain(message_of(error))
        return 1
    if code:
        complain(f"{signals.name}: saved; 'striderl sweep --resume {folder}' goes on")
        return code
    best = one.best_trials()
    if not best:
        complain(f"no trial of {folder} has succeeded")
        return 1
    names = ", ".join(one.name_of(trial) for trial in best)
    files = " | ".join(sorted(str(path) for path in folder.glob("best*.json") if "schedule" not in path.name))
    say(f"best: {names}. Next: striderl train --config {files}")
    return 0


def _started(words: list[str], given: dict[str, str]) -> tuple[Path, SweepSettings, RunConfig[Any, Any]]:
    """Check everything that was asked for, and make the folder of a new sweep."""
    words, spaces = take_list(words, "--space")
    words, metrics = take_list(words, "--metrics")
    trust = "--trust" in words
    if not all("=" in text for text in spaces or []):
        words = [word for word in words if word != "--trust" or "--config" in given]
    words, base = base_config(words, given, command="sweep")

    from striderl.training.sweep import SweepSettings, new_sweep_folder

    base = overridden(base, words, prog="striderl sweep")
    named = [_metric(text) for text in metrics or [f"{base.checkpoints.best or 'evaluate/return_mean'}:max"]]
    plain = len(named) == 1 and given.get("--scheduler", "none") == "none"
    try:
        settings = SweepSettings(
            space=dict(_space(spaces or [], base, trust=trust)),
            trials=_count(given, "--trials", 20),
            seeds=_count(given, "--seeds", 1),
            metrics=tuple(name for name, _ in named),
            modes=tuple(mode for _, mode in named),  # type: ignore[misc]  # checked by the class
            sampler=given.get("--sampler", "tpe"),  # type: ignore[arg-type]
            pruner=given.get("--pruner", "median" if plain else "none"),  # type: ignore[arg-type]
            scheduler=given.get("--scheduler", "none"),  # type: ignore[arg-type]
            interval=_count(given, "--interval", 0),
            seed=base.seed,
        )
        _check_space(settings, base)
        name = given.get("--name", time.strftime("%Y-%m-%d_%H-%M-%S"))
        folder = new_sweep_folder(Path(given.get("--sweeps", "sweeps")) / name, settings, base)
    except (ValueError, TypeError, ImportError, OSError) as error:
        raise UsageError(message_of(error)) from error
    return folder.resolve(), settings, base


def _resumed(words: list[str], given: dict[str, str]) -> tuple[Path, SweepSettings, RunConfig[Any, Any]]:
    """Read the folder of a sweep; --trials makes it longer."""
    from striderl.training.sweep import read_sweep_folder, write_sweep_file

    allowed = ("--resume", "--trials", "--jobs", SLURM)
    wrong = [*(word for word in words if word != "--trust"), *(name for name in given if name not in allowed)]
    if wrong:
        raise UsageError(f"a sweep goes on with the settings it has; besides --trials and --trust found {wrong[0]}")
    folder = Path(given["--resume"])
    try:
        settings, base = read_sweep_folder(folder, trust="--trust" in words)
        if "--trials" in given:
            settings = replace(settings, trials=_count(given, "--trials", settings.trials))
            write_sweep_file(folder, settings)
    except (ValueError, OSError) as error:
        raise UsageError(message_of(error)) from error
    return folder.resolve(), settings, base


def _count(given: Mapping[str, str], flag: str, usual: int) -> int:
    text = given.get(flag, str(usual))
    if not text.isdigit():
        raise UsageError(f"{flag} is a whole number, found {text!r}")
    return int(text)


def _metric(text: str) -> tuple[str, str]:
    name, colon, mode = text.rpartition(":")
    if not colon:
        return text, "max"
    if mode not in ("max", "min"):
        raise UsageError(f"--metrics {text}: NAME:max or NAME:min, found {mode!r}. {suggestion(mode, ('max', 'min'))}")
    return name, mode


# -- the space ---------------------------------------------------------------------------------------------------------


def _configure(base: RunConfig[Any, Any]) -> Callable[[Mapping[str, Any]], RunConfig[Any, Any]]:
    """Return the function that changes settings of a config, by the flags of `striderl train`."""

    def configure(params: Mapping[str, Any]) -> RunConfig[Any, Any]:
        words: list[str] = []
        for name, value in params.items():
            words += [f"--{name.replace('_', '-')}", *(value.split() if isinstance(value, str) else [repr(value)])]
        try:
            return overridden(base, words, prog="striderl train")
        except UsageError as error:  # of a trial: a combination of settings that do not fit each other
            raise ValueError(message_of(error)) from error

    return configure


def _check_space(settings: SweepSettings, base: RunConfig[Any, Any]) -> None:
    """Raise for a setting that does not exist and for a value that it cannot have, before anything is trained."""
    from striderl.training.experiment.assembly import ConfigCheck
    from striderl.training.sweep import distributions_of

    kinds = distributions_of(settings.space)
    lows = {name: kind.choices[0] if hasattr(kind, "choices") else kind.low for name, kind in kinds.items()}
    configure = _configure(base)
    for name in kinds:  # one by one first, so that an error names the setting
        try:
            configure({name: lows[name]})
        except ValueError as error:
            if "there is no flag" in str(error):
                raise ValueError(f"--space {name}: {error}") from error
    corners = [lows, {**lows, **{name: kind.high for name, kind in kinds.items() if hasattr(kind, "high")}}]
    for name, kind in kinds.items():
        corners += [{**lows, name: choice} for choice in getattr(kind, "choices", ())[1:]]
    with ConfigCheck() as check:
        for corner in corners:
            try:
                check(configure(corner))
            except (ValueError, TypeError, KeyError, ImportError, RuntimeError, OSError) as error:
                listed = ", ".join(f"{name}={value}" for name, value in corner.items())
                raise ValueError(f"--space: with {listed}: {message_of(error)}") from error


def _space(texts: list[str], base: RunConfig[Any, Any], *, trust: bool) -> Iterator[tuple[str, Any]]:
    """Yield setting and range of every part of the space: 'SETTING=RANGE', or a file of them."""
    from striderl.checkpoint.trust import require_trust
    from striderl.training.sweep import modules_in_space

    plain = base.to_dict()
    for text in texts:
        name, equals, given = text.partition("=")
        found = {name: given} if equals else dict(_entries(_file(Path(text)), ""))
        for setting, described in found.items():
            setting = setting.removeprefix("--").replace("-", "_")
            try:
                dimension = _range(described) if isinstance(described, str) else described
            except ValueError as error:
                raise UsageError(f"--space {setting}={described}: {error}") from error
            if isinstance(dimension, Mapping) and isinstance(_value_at(plain, setting), float):
                dimension = {k: float(v) if k in ("low", "high", "step") else v for k, v in dimension.items()}
            if not equals:
                require_trust(text, found, modules_in_space({setting: dimension}), trust=trust)
            yield setting, dimension


def _file(path: Path) -> Mapping[str, Any]:
    from striderl.checkpoint.safe_files import read_json, read_text

    try:
        if path.suffix == ".toml":
            return tomllib.loads(read_text(path))
        found = read_json(path)
    except FileNotFoundError:
        raise UsageError(f"--space {path}: neither SETTING=RANGE nor a file that exists") from None
    except (ValueError, OSError) as error:
        raise UsageError(f"--space {path}: {message_of(error)}") from error
    if not isinstance(found, Mapping):
        raise UsageError(f"--space {path}: wanted a table of settings, found {type(found).__name__}")
    return found


def _entries(table: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested tables by their place; a table with low and high is a range."""
    for name, value in table.items():
        if isinstance(value, Mapping) and not {"low", "high"} & set(value):
            yield from _entries(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _range(text: str) -> Any:
    """Read 'low:high', 'low:high:log', 'low:high:step' or 'one,two,three'."""
    if ":" not in text:
        return [_number(each.strip()) for each in text.split(",") if each.strip()]
    low, high, *more = text.split(":")
    ends = {"low": _number(low), "high": _number(high)}
    if len(more) > 1 or any(isinstance(end, str) for end in ends.values()):
        raise ValueError("a range is low:high, low:high:log or low:high:step")
    if not more:
        return ends
    if more[0] == "log":
        return {**ends, "log": True}
    step = _number(more[0])
    if isinstance(step, str):
        raise ValueError(f"behind the ends comes 'log' or a step, found {step!r}")
    return {**ends, "step": step}


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"True": True, "False": False}.get(text, text)


def _value_at(plain: Any, place: str) -> Any:
    for part in place.split("."):
        plain = plain.get(part) if isinstance(plain, Mapping) else None
    return plain
