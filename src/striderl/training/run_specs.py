"""What a run's policy sees and does, as a file of the run's folder: a policy is rebuilt from it without the env."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from striderl.checkpoint.layout import describe
from striderl.data.actions import ActionSpec, ActuationSpec, BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.data.naming import unknown
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.training.config_json import ConfigError, from_plain, to_plain
from striderl.training.seal import read_sealed, write_sealed

SPECS_FILE = "specs.json"
"""The file's name."""

_KINDS: dict[str, type[Any]] = {"box": BoxSpec, "discrete": DiscreteSpec, "multi_discrete": MultiDiscreteSpec}


def run_layout(obs_spec: ObsSpec, action_spec: ActionSpec, *, normalize_obs: bool) -> dict[str, Any]:
    """Return the layout that a run's checkpoints carry; one that differs is refused by name."""
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
    """Read observation, action and seconds per step, as the run has left them."""
    return specs_of(read_plain_specs(folder), Path(folder) / SPECS_FILE)


def read_plain_specs(folder: Path) -> Any:
    """Read the content of the file, as the run has left it."""
    if not os.path.lexists(Path(folder) / SPECS_FILE):
        raise FileNotFoundError(f"{str(folder)!r} has no {SPECS_FILE}: this run never got as far as building its env")
    return read_sealed(Path(folder), SPECS_FILE)


def specs_of(content: Any, path: Path) -> tuple[ObsSpec, ActionSpec, float]:
    """Return observation, action and seconds per step out of the content of the file."""
    try:
        parts = {str(name): from_plain(ComponentSpec, part, name) for name, part in content["observation"].items()}
        return ObsSpec(parts), _read_action(content["action"]), float(content["step_dt"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is damaged: {error!r}") from error


def actuation_of(content: Mapping[str, Any]) -> ActuationSpec | None:
    """Return what the env does with actions; None where it did not state it, and in files of older versions."""
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
