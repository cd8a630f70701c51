"""The folder of a run, and its observation and action specs.

runs/cartpole/2026-01-31_12-00-00/
  config.json            all settings; a resumed run begins with them
  versions.json          of Python and packages; the git commits of the working directory and of striderl's own
                         checkout, and how many files differ from them
  labels.json            tags, the group of runs it was started with, and the command line
  specs.json             observation and action specs: the policy is rebuilt from them without the env
  seal.json              both as the run left them, to detect later changes
  run.lock               names the training process; locked while it trains
  metrics.csv            the metrics of every iteration; metrics.jsonl has the same. After 64 MB rows are written to a
                         new file, and the old ones are metrics.part1.csv, metrics.part2.csv, …
  faults.jsonl           non-finite numbers: component, env, step and value; written with the first one
  faults/                the last second of envs whose numbers were not finite
  evaluation.trace.npz   the first episode of the last evaluation, step by step
  report.html            everything on one page
  checkpoints/  videos/  export/  plots/
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from striderl import __version__
from striderl.checkpoint.layout import describe
from striderl.checkpoint.safe_files import check_folder, check_plain, read_json, write_json
from striderl.checkpoint.trust import remember
from striderl.collect.trace import SUFFIX
from striderl.data.actions import ActionSpec, ActuationSpec, BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.data.naming import unknown
from striderl.data.registry import folder_name
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.export.metadata import current_commit, uncommitted_files
from striderl.loggers.file_loggers import parts_of
from striderl.training.experiment.config_json import ConfigError, from_plain, must_be_known, to_plain
from striderl.training.experiment.run_config import CONFIG_FILE, RunConfig
from striderl.training.experiment.seal import SEAL_FILE, read_sealed, write_sealed
from striderl.training.guard import FAULTS_FILE

VERSIONS_FILE = "versions.json"
LABELS_FILE = "labels.json"
_PACKAGES = ("torch", "numpy", "gymnasium", "mujoco")


@dataclass(frozen=True, kw_only=True)
class RunLabels:
    """What a run was called; nothing of it decides what the run does."""

    tags: tuple[str, ...] = ()
    """Words to find it by: `striderl list runs --tags first`."""
    group: str = ""
    """The name of the runs that were started together (`--seeds`)."""
    command: str = ""
    """The command line that started it."""


class RunFolder:
    """The paths of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def checkpoints(self) -> Path:
        """Where the run is saved."""
        return self.path / "checkpoints"

    @property
    def videos(self) -> Path:
        """Where videos go."""
        return self.path / "videos"

    @property
    def export(self) -> Path:
        """Where the exported policy goes."""
        return self.path / "export"

    @property
    def csv(self) -> Path:
        """The metrics as a table."""
        return self.path / "metrics.csv"

    @property
    def json_lines(self) -> Path:
        """The metrics, one JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def curves(self) -> Path:
        """The picture of the learning curves."""
        return self.path / "plots" / "curves.png"

    @property
    def report(self) -> Path:
        """The page of `striderl report`."""
        return self.path / "report.html"

    @property
    def evaluation(self) -> Path:
        """The steps of the first episode of the last evaluation."""
        return self.path / f"evaluation{SUFFIX}"

    @property
    def faults(self) -> Path:
        """Where the last second of faulty envs goes."""
        return self.path / "faults"

    def write_labels(self, labels: RunLabels) -> None:
        """Write what the run was called."""
        write_json(self.path / LABELS_FILE, to_plain(labels))

    def labels(self) -> RunLabels:
        """Return what the run was called; without a file, or with a damaged one, nothing."""
        try:
            return from_plain(RunLabels, read_json(self.path / LABELS_FILE), LABELS_FILE)
        except (OSError, ValueError):
            return RunLabels()

    def write_config(self, config: RunConfig[Any, Any]) -> None:
        """Write and seal the settings atomically; a config that names a module is registered as made here."""
        content = config.to_dict()
        if must_be_known(content):
            remember(self.path / CONFIG_FILE, content)
        write_sealed(self.path, CONFIG_FILE, content)

    def write_versions(self) -> None:
        """Write the versions of Python, packages and code."""
        versions = {"striderl": __version__, "python": platform.python_version(), "platform": platform.platform()}
        versions |= {package: _version(package) for package in _PACKAGES}
        versions["git_commit"] = current_commit()
        changed = uncommitted_files()
        versions["git_changed_files"] = "" if changed is None else str(changed)
        own = Path(__file__).parent
        if commit := current_commit(own):  # where striderl itself is a checkout, as after an install from a clone
            versions["striderl_git_commit"] = commit
            versions["striderl_git_changed_files"] = str(uncommitted_files(own) or 0)
        write_json(self.path / VERSIONS_FILE, versions)

    def check_files(self) -> None:
        """Raise FileRefused where a file or folder that the run writes to is a link, or anything else than that."""
        for path in (self.checkpoints, self.videos, self.path / "faults", self.export, self.curves.parent):
            check_folder(path)
        for name in (CONFIG_FILE, VERSIONS_FILE, LABELS_FILE, SPECS_FILE, SEAL_FILE):
            check_plain(self.path / name)
        for path in (self.csv, self.json_lines, self.path / FAULTS_FILE):
            for part in parts_of(path):
                check_plain(part)


def new_run_folder(config: RunConfig[Any, Any], root: str | Path = "runs", name: str = "") -> RunFolder:
    """Make the folder <root>/<task>/<time> with the config and the versions; two runs in one second get two.

    A `name` replaces the time; an existing one raises. 'GROUP/NAME' puts it into a folder of runs that belong together.
    """
    task = folder_name(config.env.task)
    parts = name.split("/")
    if name and (len(parts) > 2 or any(not part or part.startswith(".") for part in parts)):
        raise ValueError(f"the name of a run is that of its folder, NAME or GROUP/NAME, found {name!r}")
    stamp = name or time.strftime("%Y-%m-%d_%H-%M-%S")
    parent = Path(root) / task
    if name and (parent / name).exists():
        raise FileExistsError(f"{parent / name} exists; choose another name, or go on: striderl resume {parent / name}")
    (parent / stamp).parent.mkdir(parents=True, exist_ok=True)
    for turn in range(1, 1000):
        folder = RunFolder(parent / (stamp if turn == 1 else f"{stamp}_{turn}"))
        try:
            folder.path.mkdir()
        except FileExistsError:
            continue
        folder.write_config(config)
        folder.write_versions()
        return folder
    raise FileExistsError(f"{parent} has a thousand runs of {stamp}")


def read_config_file(path: str | Path, *, trust: bool = False) -> RunConfig[Any, Any]:
    """Read a file with a whole config: the best of a sweep, or the config.json of a run.

    trust: whether modules that it names are accepted though this user has not made it on this machine.
    """
    try:
        content = read_json(path, constant=float)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no config {str(path)!r}") from None
    return RunConfig.from_stored(content, path, trust=trust)


def write_config_file(path: Path, config: RunConfig[Any, Any]) -> None:
    """Write a config to a file of its own; one that names a module is registered as made here."""
    content = config.to_dict()
    if must_be_known(content):
        remember(path, content)
    write_json(path, content)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def copy_run(run: str | Path, folder: str | Path) -> None:
    """Copy a run to a new folder, whole or not at all; pictures and videos are not copied."""
    source, target = Path(run), Path(folder)
    if os.path.lexists(target):
        raise FileExistsError(f"{str(target)!r} exists; a run is copied to a folder of its own")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as partial:
        whole = Path(partial) / target.name
        left_out = shutil.ignore_patterns("videos", "plots", "*.lock", ".*")
        shutil.copytree(source, whole, ignore=left_out, symlinks=True)
        os.replace(whole, target)


# -- specs.json --------------------------------------------------------------------------------------------------------


SPECS_FILE = "specs.json"
"""The file's name."""

_KINDS: dict[str, type[Any]] = {"box": BoxSpec, "discrete": DiscreteSpec, "multi_discrete": MultiDiscreteSpec}


def run_layout(obs_spec: ObsSpec, action_spec: ActionSpec, *, normalize_obs: bool) -> dict[str, Any]:
    """Return the layout stored in a run's checkpoints; loading another one raises with the differences."""
    seen = [name for name, part in obs_spec.items() if part.dtype.startswith("float")]
    return describe(obs_spec, action_spec, normalized=seen if normalize_obs else [])


def write_specs(
    folder: Path,
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    step_dt: float,
    actuation: ActuationSpec | None = None,
) -> dict[str, Any]:
    """Write both specs, the seconds per step (0 where time has no meaning) and what the env does with actions.

    The file is sealed; its content is returned.
    """
    content = {
        "observation": {name: to_plain(part) for name, part in obs_spec.items()},
        "action": _plain_action(action_spec),
        "step_dt": step_dt,
        "actuation": to_plain(actuation),
    }
    write_sealed(folder, SPECS_FILE, content)
    return content


def read_specs(folder: Path) -> tuple[ObsSpec, ActionSpec, float]:
    """Read observation spec, action spec and seconds per step as the run left them."""
    return specs_of(read_plain_specs(folder), Path(folder) / SPECS_FILE)


def read_plain_specs(folder: Path) -> Any:
    """Read the content of the file as the run left it."""
    if not os.path.lexists(Path(folder) / SPECS_FILE):
        raise FileNotFoundError(f"{str(folder)!r} has no {SPECS_FILE}: this run never got as far as building its env")
    return read_sealed(Path(folder), SPECS_FILE)


def specs_of(content: Any, path: Path) -> tuple[ObsSpec, ActionSpec, float]:
    """Return observation spec, action spec and seconds per step from the file's content."""
    try:
        parts = {str(name): from_plain(ComponentSpec, part, name) for name, part in content["observation"].items()}
        return ObsSpec(parts), _read_action(content["action"]), float(content["step_dt"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is damaged: {error!r}") from error


def actuation_of(content: Mapping[str, Any]) -> ActuationSpec | None:
    """Return how the env processes actions; None where it is not declared, and in files of older versions."""
    plain = content.get("actuation")
    return None if plain is None else from_plain(ActuationSpec, plain, "actuation")


def _plain_action(spec: ActionSpec) -> dict[str, Any]:
    if isinstance(spec, DictActionSpec):
        return {"kind": "dict", "parts": {name: _plain_action(part) for name, part in spec.parts.items()}}
    kind = next(name for name, kind in _KINDS.items() if isinstance(spec, kind))
    return {"kind": kind, **{name: _finite(value) for name, value in to_plain(spec).items()}}


def _read_action(content: Mapping[str, Any]) -> ActionSpec:
    kind = content["kind"]
    if kind == "dict":
        return DictActionSpec({name: _read_action(part) for name, part in content["parts"].items()})  # type: ignore[misc]
    if kind not in _KINDS:
        raise ConfigError(unknown("kind of action", str(kind), [*_KINDS, "dict"], where=SPECS_FILE))
    values = {name: _number(value) for name, value in content.items() if name != "kind"}
    spec: ActionSpec = _KINDS[kind](**values)
    return spec


def _finite(value: Any) -> Any:
    """Return infinities as words, because JSON has none."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_number(item) for item in value)
    return float(value) if value in ("inf", "-inf") else value
