"""`FaultReport`: what was not finite and where it came from, counted, said once, and written to a file.

    faults.jsonl    {"env_steps": 4096, "num_updates": 640, "component": "obs", "env": 3, "step": 128, "value": "nan",
                     "count": 1}

`component` is an observation component, 'final_obs/…' or 'reward' of an env at its own step; or 'gradient of …' and
'parameters', which belong to no env. Every env has a line of its own with the first fault of each component; what comes
after that is one line for all envs that have theirs, with the first of them. `count` is how many there were since the
line before, of these envs. A run that goes on from a checkpoint drops the lines that are younger than it, because the
same faults will be found again.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from striderl.checkpoint.errors import FileRefused
from striderl.checkpoint.safe_files import decode_json, read_lines
from striderl.collect.quarantine import Fault
from striderl.loggers.file_loggers import LineFile, parts_of

_log = logging.getLogger(__name__)

FAULTS_FILE = "faults.jsonl"
"""The file in a run's folder."""


class FaultReport:
    """Takes faults; each component is named in the log once, every fault goes to the file if there is one."""

    def __init__(self) -> None:
        self.num_bad_samples = 0
        """Bad numbers from envs so far, counted by component and env."""
        self._file: LineFile | None = None
        self._counts: dict[str, dict[int, int]] = {}
        """Bad numbers by component and env; who is in it has a line of its own."""
        self._said: set[str] = set()
        self._cannot_write = False

    def write_to(self, path: Path) -> None:
        """Write what comes from now on to this file; it is made with the first fault."""
        self._file = LineFile(path)

    def add(self, faults: Iterable[Fault], *, env_steps: int, num_updates: int) -> None:
        """Take bad numbers of envs, found when the run had come so far."""
        again: dict[str, list[Fault]] = {}
        for fault in faults:
            self.num_bad_samples += fault.count
            self._say(fault.component, f"bad number, left out: {fault}")
            envs = self._counts.setdefault(fault.component, {})
            if fault.env in envs:
                again.setdefault(fault.component, []).append(fault)
            else:
                self._write_fault(fault, fault.count, env_steps, num_updates)
            envs[fault.env] = envs.get(fault.env, 0) + fault.count
        for pooled in again.values():
            self._write_fault(pooled[0], sum(fault.count for fault in pooled), env_steps, num_updates)

    def _write_fault(self, fault: Fault, count: int, env_steps: int, num_updates: int) -> None:
        self._write(env_steps, num_updates, fault.component, count, env=fault.env, step=fault.step, value=fault.value)

    def most_frequent(self) -> str:
        """Describe the component and env with the most bad numbers; empty where there were none."""
        found = [(count, name, env) for name, envs in self._counts.items() for env, count in envs.items()]
        if not found:
            return ""
        count, name, env = max(found, key=lambda each: each[0])
        others = len({each[2] for each in found}) - 1
        return f"{name} of env {env} ({count} times" + (f"; {others} more envs were bad too)" if others else ")")

    @property
    def path(self) -> Path | None:
        """The file, if there is one."""
        return None if self._file is None else self._file.path

    def add_learned(self, component: str, count: int, said: str, *, env_steps: int, num_updates: int) -> None:
        """Take what went wrong in learning: a gradient or parameters that are not finite."""
        self._say(component, said)
        self._write(env_steps, num_updates, component, count, env=None, step=num_updates, value=math.nan)

    def _say(self, component: str, text: str) -> None:
        if component not in self._said:
            self._said.add(component)
            _log.warning("%s; more of this kind are counted and not said again", text)

    def _write(
        self, env_steps: int, num_updates: int, component: str, count: int, *, env: int | None, step: int, value: float
    ) -> None:
        if self._file is None:
            return
        shown = value if math.isfinite(value) else str(value)  # JSON has no word for them
        line = {"env_steps": env_steps, "num_updates": num_updates, "component": component, "env": env, "step": step}
        try:
            self._file.append(json.dumps({**line, "value": shown, "count": count}, allow_nan=False))
        except (OSError, FileRefused) as error:
            if not self._cannot_write:
                self._cannot_write = True
                _log.warning("%s cannot be written: %s. Training goes on", self._file.path, error)

    def resume_at(self, env_steps: int, num_updates: int) -> None:
        """Drop the lines of the file that are younger than this point of the run."""
        if self._file is None:
            return
        try:
            self._file.keep_while(lambda line: _is_before(line, env_steps, num_updates))
        except OSError as error:
            _log.warning("%s cannot be shortened: %s. It may name faults twice", self._file.path, error)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts; what was written is in the file."""
        counts = [
            {"component": name, "of_env": torch.tensor(sorted(envs.items()), dtype=torch.int64).view(-1, 2)}
            for name, envs in self._counts.items()
        ]
        return {"num_bad_samples": self.num_bad_samples, "counts": counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting; runs that were saved without counts by env begin those anew."""
        self.num_bad_samples = int(state["num_bad_samples"])
        self._counts = {str(each["component"]): dict(each["of_env"].tolist()) for each in state.get("counts", [])}

    def close(self) -> None:
        """Close the file; a later fault opens it again."""
        if self._file is not None:
            self._file.close()


def read_faults(path: str | Path) -> list[dict[str, Any]]:
    """Return the lines of a report, none where nothing was ever wrong."""
    return [decode_json(line, part) for part in parts_of(path) for line in read_lines(part)]


def _is_before(line: str, env_steps: int, num_updates: int) -> bool:
    try:
        found = decode_json(line.encode(), "a fault")
        return int(found["env_steps"]) <= env_steps and int(found["num_updates"]) <= num_updates
    except (ValueError, KeyError, TypeError, OverflowError):
        return True  # a line that somebody else has damaged is kept, not cut with all that follows it
