"""rlpyt's logger: lines and tables on the standard output, and in the folder of a `logger_context`.

    with logger_context("runs", run_ID=0, name="dqn", log_params=config, snapshot_mode="last"):
        runner.train()

    runs/run_0/params.json      the settings, with name and run_ID
    runs/run_0/progress.csv     one row per `dump_tabular`
    runs/run_0/debug.log        every line that was shown
    runs/run_0/params.pkl       the newest snapshot ('last'), or itr_12.pkl each ('all', 'gap'); `torch.load` reads them

    record_tabular("Loss", 0.1); record_tabular_misc_stat("Return", [10, 20]); dump_tabular()

Folders are taken as given: rlpyt would put its own data folder and the date before `log_dir`.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from striderl.checkpoint.safe_files import read_json, read_lines, write_text
from striderl.loggers.file_loggers import CsvLogger, LineFile
from striderl.loggers.logger import Logger
from striderl.loggers.tensorboard_logger import TensorBoardLogger

COLORS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson")
SNAPSHOT_MODES = ("none", "last", "all", "gap", "last+gap")


@dataclass
class LogState:
    """Where lines, rows and snapshots go, and what was recorded since the last row."""

    tables: dict[str, Logger] = field(default_factory=dict)
    texts: dict[str, LineFile] = field(default_factory=dict)
    prefixes: list[str] = field(default_factory=list)
    tabular_prefixes: list[str] = field(default_factory=list)
    tabular: dict[str, Any] = field(default_factory=dict)
    snapshot_dir: Path | None = None
    snapshot_mode: str = "none"
    snapshot_gap: int = 1
    iteration: int = 0
    enabled: bool = True
    tabular_enabled: bool = True
    tabular_only: bool = False
    disable_prefix: bool = False
    summary_writer: Any = None


_state: ContextVar[LogState] = ContextVar("rlpyt log", default=LogState())  # noqa: B039  (one for the process)


@contextmanager
def logger_context(
    log_dir: str | Path,
    run_ID: int | str,
    name: str,
    log_params: Mapping[str, Any] | None = None,
    snapshot_mode: str = "none",
    override_prefix: bool = False,
    use_summary_writer: bool = False,
) -> Iterator[Path]:
    """Write to log_dir/run_ID inside the block; see the top of this module.

    `override_prefix` is for rlpyt's own data folder, which does not exist here. `use_summary_writer` writes event files
    for TensorBoard as well.
    """
    if snapshot_mode not in SNAPSHOT_MODES:
        raise ValueError(f"snapshot_mode is one of {SNAPSHOT_MODES}, found {snapshot_mode!r}")
    path = Path(log_dir) / f"run_{run_ID}"
    path.mkdir(parents=True, exist_ok=True)
    params = {**(log_params or {}), "name": name, "run_ID": run_ID}
    write_text(path / "params.json", json.dumps(params, indent=2, default=_named))
    tables: dict[str, Logger] = {"progress.csv": CsvLogger(path / "progress.csv")}
    if use_summary_writer:
        tables["tensorboard"] = TensorBoardLogger(path)
    texts = {"debug.log": LineFile(path / "debug.log")}
    state = LogState(
        tables=tables, texts=texts, prefixes=[f"{name}_{run_ID} "], snapshot_dir=path, snapshot_mode=snapshot_mode
    )
    token = _state.set(state)
    try:
        yield path
    finally:
        _state.reset(token)
        for table in state.tables.values():
            table.close()
        for text in state.texts.values():
            text.close()


def get_log_dir(experiment_name: str, root_log_dir: str | Path | None = None, date: bool = True) -> Path:
    """Return data/local/yyyymmdd/hhmmss/experiment_name, below the working folder or another root."""
    now = datetime.datetime.now()
    root = (Path("data") if root_log_dir is None else Path(root_log_dir)) / "local"
    return (root / f"{now:%Y%m%d}" / f"{now:%H%M%S}" if date else root).absolute() / experiment_name


def check_progress(exp_dir: str | Path | None = None) -> dict[Path, int]:
    """Show and return the number of rows of every progress.csv below a folder."""
    files = sorted((Path.cwd() if exp_dir is None else Path(exp_dir)).rglob("progress.csv"))
    counts = {path: max(0, sum(1 for _ in read_lines(path)) - 1) for path in files}
    for path, count in counts.items():
        log(f"{count} {path}", with_timestamp=False)
    return counts


def _named(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


def add_exp_param(param_name: str, param_val: Any, exp_dir: str | Path | None = None, overwrite: bool = False) -> None:
    """Put a setting into the params.json of every run below a folder; one that is there stays, unless overwritten."""
    for path in sorted((Path.cwd() if exp_dir is None else Path(exp_dir)).rglob("params.json")):
        params = read_json(path)
        if param_name not in params or overwrite:
            params[param_name] = param_val
            write_text(path, json.dumps(params, indent=2, default=_named))


# -- lines -------------------------------------------------------------------------------------------------------------


def log(s: Any, with_prefix: bool = True, with_timestamp: bool = True, color: str | None = None) -> None:
    """Show a line; `color` is not used."""
    state = _state.get()
    if not state.enabled or state.tabular_only:
        return
    line = f"{''.join(state.prefixes) if with_prefix and not state.disable_prefix else ''}{s}"
    if with_timestamp:
        line = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} | {line}"
    _show(state, line)


def _show(state: LogState, line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    for text in state.texts.values():
        text.append(line)


def push_prefix(prefix: str) -> None:
    """Put a prefix before every line from now on."""
    _state.get().prefixes.append(prefix)


def pop_prefix() -> None:
    """Take the newest prefix off."""
    _state.get().prefixes.pop()


@contextmanager
def prefix(key: str) -> Iterator[None]:
    """Put a prefix before the lines of a block."""
    push_prefix(key)
    try:
        yield
    finally:
        pop_prefix()


def disable() -> None:
    """Show and write nothing from now on."""
    _state.get().enabled = False


def enable() -> None:
    """Show and write again."""
    _state.get().enabled = True


def disable_tabular() -> None:
    """Show and write no tables from now on."""
    _state.get().tabular_enabled = False


def enable_tabular() -> None:
    """Show and write tables again."""
    _state.get().tabular_enabled = True


def set_disable_prefix(disable_prefix: bool) -> None:
    """Leave prefixes of lines away, or put them again."""
    _state.get().disable_prefix = disable_prefix


def get_disable_prefix() -> bool:
    """Return whether prefixes of lines are left away."""
    return _state.get().disable_prefix


def colorize(string: str, color: str, bold: bool = False, highlight: bool = False) -> str:
    """Return a text with the codes of a colour of terminals."""
    code = COLORS.index(color) + (40 if highlight else 30)
    return f"\x1b[{code}{';1' if bold else ''}m{string}\x1b[0m"


def mkdir_p(path: str | Path) -> None:
    """Make a folder and those it lies in."""
    Path(path).mkdir(parents=True, exist_ok=True)


def set_log_tabular_only(log_tabular_only: bool) -> None:
    """Show tables only, or lines as well."""
    _state.get().tabular_only = log_tabular_only


def get_log_tabular_only() -> bool:
    """Return whether tables alone are shown."""
    return _state.get().tabular_only


def set_iteration(iteration: int) -> None:
    """Set the step of the rows from now on."""
    _state.get().iteration = iteration


# -- tables ------------------------------------------------------------------------------------------------------------


def record_tabular(key: str, val: Any) -> None:
    """Record a value for the next row; files hold the numbers among them."""
    state = _state.get()
    state.tabular["".join(state.tabular_prefixes) + str(key)] = val


def record_tabular_misc_stat(key: str, values: Sequence[Any], placement: str = "back") -> None:
    """Record average, standard deviation, median, least and most of values; NaN where there are none."""
    numbers = np.asarray(list(values), dtype=np.float64)
    for name, function in (
        ("Average", np.mean),
        ("Std", np.std),
        ("Median", np.median),
        ("Min", np.min),
        ("Max", np.max),
    ):
        value = float(function(numbers)) if numbers.size else float("nan")
        record_tabular(f"{name}{key}" if placement == "front" else f"{key}{name}", value)


def push_tabular_prefix(key: str) -> None:
    """Put a prefix before every key from now on."""
    _state.get().tabular_prefixes.append(key)


def pop_tabular_prefix() -> None:
    """Take the newest prefix of keys off."""
    _state.get().tabular_prefixes.pop()


@contextmanager
def tabular_prefix(key: str) -> Iterator[None]:
    """Put a prefix before the keys of a block."""
    push_tabular_prefix(key)
    try:
        yield
    finally:
        pop_tabular_prefix()


def dump_tabular(with_prefix: bool = True, with_timestamp: bool = False) -> dict[str, Any]:
    """Show what was recorded as a table, write it as a row, and return it."""
    state = _state.get()
    row, state.tabular = state.tabular, {}
    if not (state.enabled and state.tabular_enabled and row):
        return row
    width = max(len(key) for key in row)
    before = "".join(state.prefixes) if with_prefix else ""
    now = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} | " if with_timestamp else ""
    rule = "-" * (width + 14)
    for line in (rule, *(f"{key.ljust(width)}  {_short(value)}" for key, value in row.items()), rule):
        _show(state, f"{now}{before}{line}")
    numbers = {key: float(value) for key, value in row.items() if isinstance(value, (int, float, np.number))}
    for table in state.tables.values():
        table.log(state.iteration, numbers)
    if state.summary_writer is not None:
        for key, value in numbers.items():
            state.summary_writer.add_scalar(key, value, state.iteration)
    return row


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)


# -- files -------------------------------------------------------------------------------------------------------------


def add_tabular_output(file_name: str | Path) -> None:
    """Write rows to another csv file as well."""
    _state.get().tables[str(file_name)] = CsvLogger(file_name)


def remove_tabular_output(file_name: str | Path) -> None:
    """Close such a file."""
    _state.get().tables.pop(str(file_name)).close()


def add_text_output(file_name: str | Path) -> None:
    """Write lines to another file as well."""
    _state.get().texts[str(file_name)] = LineFile(file_name)


def remove_text_output(file_name: str | Path) -> None:
    """Close such a file."""
    _state.get().texts.pop(str(file_name)).close()


def set_tf_summary_writer(writer_name: Any) -> None:
    """Write rows to a `SummaryWriter` of TensorBoard as well; None for none."""
    _state.get().summary_writer = writer_name


def get_tf_summary_writer() -> Any:
    """Return the `SummaryWriter` that was set."""
    return _state.get().summary_writer


def log_variant(log_file: str | Path, variant_data: Mapping[str, Any]) -> None:
    """Write settings as JSON; classes by their names."""
    mkdir_p(Path(log_file).parent)
    write_text(Path(log_file), json.dumps(variant_data, indent=2, sort_keys=True, default=_named))


def set_snapshot_dir(dir_name: str | Path | None) -> None:
    """Write snapshots to this folder; None for nowhere."""
    _state.get().snapshot_dir = None if dir_name is None else Path(dir_name)


def get_snapshot_dir() -> Path | None:
    """Return the folder of snapshots."""
    return _state.get().snapshot_dir


def set_snapshot_mode(mode: str) -> None:
    """Set which snapshots are written."""
    if mode not in SNAPSHOT_MODES:
        raise ValueError(f"snapshot_mode is one of {SNAPSHOT_MODES}, found {mode!r}")
    _state.get().snapshot_mode = mode


def get_snapshot_mode() -> str:
    """Return which snapshots are written."""
    return _state.get().snapshot_mode


def set_snapshot_gap(gap: int) -> None:
    """Set after how many iterations the mode 'gap' writes a snapshot."""
    _state.get().snapshot_gap = gap


def get_snapshot_gap() -> int:
    """Return after how many iterations the mode 'gap' writes a snapshot."""
    return _state.get().snapshot_gap


def save_itr_params(itr: int, params: Any) -> None:
    """Write the snapshot of an iteration, as the mode asks for; each file is whole or not there.

    A file there is replaced if it is a snapshot; all else raises.
    """
    from striderl.checkpoint.foreign import write_torch_archive

    state = _state.get()
    if state.snapshot_dir is None or state.snapshot_mode == "none":
        return
    due = state.snapshot_mode == "all" or itr == 0 or (itr + 1) % state.snapshot_gap == 0
    names = [f"itr_{itr}.pkl"] if state.snapshot_mode in ("all", "gap", "last+gap") and due else []
    names += ["params.pkl"] if state.snapshot_mode.startswith("last") else []
    for name in names:
        write_torch_archive(state.snapshot_dir / name, params)
