"""Non-finite numbers: `Guard` rolls back an update that produced them, `FaultReport` counts and reports them.

    state ──copy──▶ gradient steps ──▶ all finite?  yes: go on
      ▲                                             no:  back to the copy, counted and reported
      └──────────────────────────────────────────────┘

The copy also serves an update that an error or an interrupt ended in the middle: `roll_back` restores it, and the
update is repeated.

A gradient that is not finite is skipped by the optimiser and changes nothing. This is for the rest: finite gradients
whose step overflows, in parameters, optimiser, targets or normalisers. The next iteration learns from other data, so a
run usually recovers; one that does not, for many iterations in a row, ends with `DivergedError` at the last finite
state. So does one whose envs give almost no valid samples. The host reads one small vector per iteration.

    faults/         the last second of an env before its number turned bad (`collect/trace.py`), the newest twenty
    faults.jsonl    {"env_steps": 4096, "num_updates": 640, "component": "obs", "env": 3, "step": 128, "value": "nan",
                     "count": 1}

`component` is an observation component, 'final_obs/…' or 'reward' of an env at its own step; or 'gradient of …' and
'parameters', which belong to no env. Every env has a line of its own with the first fault of each component; later
faults of these envs share one line, with the first of them. `count` is how many there were since the line before, of
these envs. A run that resumes from a checkpoint drops newer lines, because the same faults will be found again.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from striderl.checkpoint.errors import FileRefused
from striderl.checkpoint.safe_files import check_plain, decode_json, read_lines
from striderl.collect.quarantine import Fault
from striderl.collect.trace import SUFFIX, write_trace
from striderl.data import tree
from striderl.loggers.file_loggers import LineFile, parts_of
from striderl.ops.moments import AllReduce

# -- updates -----------------------------------------------------------------------------------------------------------


PATIENCE = 100
"""Default number of iterations in a row that may learn nothing."""

MIN_VALID = 0.01
"""Default fraction of valid samples at or below which an iteration learns nothing."""

_SKIPPED, _COUNT = "num_skipped", "count"
"""Keys of skipped steps and of steps in the state of a parameter group."""


class DivergedError(RuntimeError):
    """Many iterations in a row learned nothing: updates rolled back, no finite gradient, or no valid samples."""


class Learns(Protocol):
    """What a guard watches."""

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the learned state."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state."""
        ...


class _Look(NamedTuple):
    """Check values of a state, still on the device."""

    sums: Tensor
    """The sum of every floating tensor, [K]; not finite where one of its elements is not."""
    skipped: Tensor
    """Skipped gradient steps of every group of parameters, [G]."""
    taken: Tensor
    """Gradient steps of every group, [G]."""
    groups: tuple[str, ...]
    """The names of the groups."""


class Guard:
    """Copy the learned state before an update and restore it if the update made it non-finite."""

    def __init__(
        self,
        algorithm: Learns,
        patience: int = PATIENCE,
        min_valid: float = MIN_VALID,
        reduce: AllReduce | None = None,
    ) -> None:
        """Watch an algorithm; nothing is copied before the first update.

        With `reduce`, an update is rolled back in all processes or in none, and the samples of all are counted.
        """
        self.algorithm, self.patience, self.min_valid, self.reduce = algorithm, patience, min_valid, reduce
        self.num_rollbacks = 0
        """How many updates were rolled back so far."""
        self.num_skipped = 0
        """How many gradients were not finite, and skipped, so far."""
        self.num_fruitless = 0
        """How many iterations in a row, up to now, learned nothing."""
        self.num_samples = self.num_valid = 0
        """Samples of those iterations, and how many of them were valid."""
        self._num_raised = 0
        """How many of them there were when DivergedError was raised last; since then patience begins anew."""
        self._num_bad = 0
        self._faults: FaultReport | None = None
        self._good: dict[str, Any] = {}

    def before(self) -> None:
        """Copy the learned state; called before the first gradient step of an iteration.

        Raises DivergedError when patience is exhausted: here, because between iterations the state is consistent.
        """
        self._raise_again_after(self.patience, self.patience)
        self.keep()

    def check_end(self, num_iterations: int) -> None:
        """Raise DivergedError, once, where `why_fruitless` has a reason at the end of a training."""
        self._raise_again_after(1, num_iterations)

    def _raise_again_after(self, count: int, num_iterations: int) -> None:
        """Raise DivergedError; where it was raised before, only after so many further iterations without learning."""
        reason = self.why_fruitless(num_iterations)
        if reason and self.num_fruitless - self._num_raised >= count:
            self._num_raised = self.num_fruitless
            raise DivergedError(reason)

    def check_piece(self, num_iterations: int) -> None:
        """Raise DivergedError where a piece of a training, these last iterations, had no valid sample.

        A piece with valid samples may be followed by others that learn from theirs.
        """
        if num_iterations and not self.num_valid:
            self.check_end(num_iterations)

    def keep(self) -> None:
        """Copy the learned state, for `roll_back`."""
        self._good = self.algorithm.state_dict()

    @property
    def kept(self) -> Mapping[str, Any]:
        """The copy; empty where there is none."""
        return self._good

    def roll_back(self) -> None:
        """Restore the copy: the interrupted update is repeated."""
        self.algorithm.load_state_dict(self._good)

    def forget(self) -> None:
        """Release the copy."""
        self._good = {}

    def why_fruitless(self, num_iterations: int) -> str:
        """Return why nothing was learned in the last `num_iterations`, or in as many as patience lasts; empty else.

        At the end of a training, given the number of its iterations: a short one ends before patience does.
        """
        count = self.num_fruitless
        if count < max(1, min(self.patience, num_iterations)):
            return ""
        faults, path = ("", None) if self._faults is None else (self._faults.most_frequent(), self._faults.path)
        where = f" See {path}" if path is not None and faults else ""
        if self._has_no_samples(self.num_samples, self.num_valid, bad=bool(faults)):
            marked = "the envs, or the dataset, mark their samples as not valid."
            return (
                f"nothing was learned in {count} iterations in a row: {self.num_valid} of {self.num_samples} samples "
                f"were valid; {f'most often bad: {faults}.' if faults else marked}{where}"
            )
        return (
            f"nothing was learned in {count} iterations in a row: gradients were not finite, or their steps broke "
            "the parameters. The last good state is in place. Look for rewards or observations of extreme size "
            f"({faults or 'faults.jsonl'}), or lower the learning rate.{where}"
        )

    def _has_no_samples(self, number: int, valid: int, *, bad: bool) -> bool:
        """Return whether almost no sample is valid; a few are enough where the others are invalid but finite."""
        return number > 0 and (valid == 0 or (bad and valid <= self.min_valid * number))

    def _begin_anew(self) -> None:
        self.num_fruitless = self.num_samples = self.num_valid = self._num_raised = 0

    def after(
        self,
        faults: FaultReport,
        *,
        env_steps: int,
        num_updates: int,
        valid: Tensor | None = None,
        num_samples: int = 0,
    ) -> bool:
        """Check the state after the gradient steps, roll it back if needed, and return whether it was rolled back.

        `valid` [] is how many of the iteration's new samples, `num_samples`, count.
        """
        present = self.algorithm.state_dict()
        was, now = _look(self._good), _look(present)
        # what was not finite before was not caused by this update
        broken = (torch.isfinite(was.sums) & ~torch.isfinite(now.sums)).any()
        num_bad = faults.num_bad_samples - self._num_bad
        # in float64, where counts are exact
        counts = torch.tensor([num_samples, num_bad], dtype=torch.float64, device=broken.device)
        found = torch.zeros_like(counts[:1]) if valid is None else valid.view(1).double()
        shared = torch.cat([broken.view(1).double(), found, counts])
        if self.reduce is not None:
            shared = self.reduce(shared)
        seen = torch.cat([shared, now.skipped - was.skipped, now.taken - was.taken]).tolist()
        rolled_back, number = bool(seen[0] > 0.0), len(now.groups)
        num_valid, num_samples, num_bad = map(int, seen[1:4])
        skipped, taken = seen[4 : 4 + number], seen[4 + number :]
        at = {"env_steps": env_steps, "num_updates": num_updates}
        for name, count in zip(now.groups, skipped):
            if count:
                self.num_skipped += int(count)
                said = f"{int(count)} gradients of {name} were not finite at update {num_updates}, and skipped"
                faults.add_learned(f"gradient of {name}", int(count), said, **at)
        if rolled_back:
            self.algorithm.load_state_dict(self._good)
            self.num_rollbacks += 1
            said = f"the gradient steps before update {num_updates} broke what was learned and are taken back"
            faults.add_learned("parameters", 1, said, **at)
        else:
            self._good = present
        barren = self._has_no_samples(num_samples, num_valid, bad=num_bad > 0)
        self._faults, self._num_bad = faults, faults.num_bad_samples
        if rolled_back or barren or (sum(skipped) > 0 and sum(taken) == 0):
            self.num_fruitless += 1
            self.num_samples += num_samples
            self.num_valid += num_valid
        else:
            self._begin_anew()
        return rolled_back

    def counts(self) -> dict[str, int]:
        """Return how many steps were skipped and updates rolled back so far."""
        return {"skipped_updates": self.num_skipped, "rollbacks": self.num_rollbacks}

    def state_dict(self) -> dict[str, Any]:
        """Return the counts; between iterations no copy is held."""
        return {
            "num_skipped": self.num_skipped,
            "num_rollbacks": self.num_rollbacks,
            "num_fruitless": self.num_fruitless,
            "num_samples": self.num_samples,
            "num_valid": self.num_valid,
            "num_raised": self._num_raised,
            "num_bad": self._num_bad,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the counts; runs saved without counts of samples start those at 0."""
        self.num_skipped, self.num_rollbacks = int(state["num_skipped"]), int(state["num_rollbacks"])
        self.num_fruitless = int(state["num_fruitless"])
        self.num_samples, self.num_valid = int(state.get("num_samples", 0)), int(state.get("num_valid", 0))
        self._num_bad, self._num_raised = int(state.get("num_bad", 0)), int(state.get("num_raised", 0))
        self._good = {}


def _look(state: Mapping[str, Any]) -> _Look:
    leaves = {path: leaf for path, leaf in tree.items(state) if isinstance(leaf, Tensor)}
    # one where the parameters are; a counter that lives on the host is sent there, which waits for nothing
    device = next((leaf.device for leaf in leaves.values() if leaf.device.type != "cpu"), torch.device("cpu"))
    sums = _sums([leaf for leaf in leaves.values() if leaf.is_floating_point()], device)
    paths = [path for path in leaves if path.rpartition("/")[2] == _SKIPPED]
    return _Look(
        sums,
        _stacked([leaves[path] for path in paths], device),
        _stacked([leaves[f"{path.rpartition('/')[0]}/{_COUNT}"] for path in paths], device),
        tuple(path.split("/")[-2] for path in paths),
    )


def _sums(leaves: list[Tensor], device: torch.device) -> Tensor:
    """Return a sum per tensor [K]: NaN and infinity propagate into it."""
    if device.type == "cpu":
        # one small operation each, and in float64 no infinity can come of it
        return _stacked([leaf.sum(dtype=torch.float64) for leaf in leaves], device)
    # of magnitudes, all in a few kernels; float32 is enough up to 1e38, where nothing learns any more
    return _stacked(list(torch._foreach_norm([leaf.to(device) for leaf in leaves], 1)), device)


def _stacked(numbers: list[Tensor], device: torch.device) -> Tensor:
    if not numbers:
        return torch.zeros(0, dtype=torch.float64, device=device)
    if len({number.dtype for number in numbers}) == 1 and all(number.device == device for number in numbers):
        return torch.stack(numbers).to(torch.float64)
    return torch.stack([number.to(device, torch.float64, non_blocking=True) for number in numbers])


# -- the report --------------------------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)

FAULTS_FILE = "faults.jsonl"
"""The file in a run's folder."""
MAX_TRACES = 20
"""How many traces of faults are kept."""


class FaultReport:
    """Count faults; log each component once, write every fault to the file if there is one."""

    def __init__(self) -> None:
        self.num_bad_samples = 0
        """Non-finite numbers from envs so far, counted by component and env."""
        self._file: LineFile | None = None
        self._counts: dict[str, dict[int, int]] = {}
        """Non-finite numbers by component and env; each entry has a line of its own."""
        self._said: set[str] = set()
        self._cannot_write = False

    def write_to(self, path: Path) -> None:
        """Write later faults to this file and traces to the folder of its name; both are made with the first one."""
        self._file = LineFile(path)

    def add(self, faults: Iterable[Fault], *, env_steps: int, num_updates: int) -> None:
        """Add non-finite numbers of envs, found at this point of the run."""
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
            self._write_trace(fault)
        for pooled in again.values():
            self._write_fault(pooled[0], sum(fault.count for fault in pooled), env_steps, num_updates)

    def _write_fault(self, fault: Fault, count: int, env_steps: int, num_updates: int) -> None:
        self._write(env_steps, num_updates, fault.component, count, env=fault.env, step=fault.step, value=fault.value)

    def _write_trace(self, fault: Fault) -> None:
        """Write the steps before a fault; the oldest traces make place for new ones."""
        if self._file is None or fault.trace is None or not len(fault.trace.reward):
            return
        folder = self._file.path.with_suffix("")
        component = re.sub(r"[^\w.-]", "_", fault.component)[:60]
        facts = {"component": fault.component, "env": fault.env, "step": fault.step, "value": fault.value}
        trace = replace(fault.trace, facts={**facts, **fault.trace.facts})
        try:
            write_trace(folder / f"{component}_env{fault.env}_step{fault.step}{SUFFIX}", trace)
            for old in sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.lstat().st_mtime_ns)[:-MAX_TRACES]:
                check_plain(old)
                old.unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            self._warn_once(folder, error)

    def _warn_once(self, path: Path, error: Exception) -> None:
        if not self._cannot_write:
            self._cannot_write = True
            _log.warning("%s cannot be written: %s. Training goes on", path, error)

    def most_frequent(self) -> str:
        """Describe the component and env with the most non-finite numbers; empty where there were none."""
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
        """Add a fault of learning: a gradient or parameters that are not finite."""
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
        shown = value if math.isfinite(value) else str(value)  # JSON has no such numbers
        line = {"env_steps": env_steps, "num_updates": num_updates, "component": component, "env": env, "step": step}
        try:
            self._file.append(json.dumps({**line, "value": shown, "count": count}, allow_nan=False))
        except (OSError, FileRefused) as error:
            self._warn_once(self._file.path, error)

    def resume_at(self, env_steps: int, num_updates: int) -> None:
        """Drop the lines of the file that are newer than this point of the run."""
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
        """Load the counts; runs saved without counts by env start those at 0."""
        self.num_bad_samples = int(state["num_bad_samples"])
        self._counts = {str(each["component"]): dict(each["of_env"].tolist()) for each in state.get("counts", [])}

    def close(self) -> None:
        """Close the file; a later fault opens it again."""
        if self._file is not None:
            self._file.close()


def read_faults(path: str | Path) -> list[dict[str, Any]]:
    """Return the lines of a report, none without faults."""
    return [decode_json(line, part) for part in parts_of(path) for line in read_lines(part)]


def _is_before(line: str, env_steps: int, num_updates: int) -> bool:
    try:
        found = decode_json(line.encode(), "a fault")
        return int(found["env_steps"]) <= env_steps and int(found["num_updates"]) <= num_updates
    except (ValueError, KeyError, TypeError, OverflowError):
        return True  # a damaged line is kept, not cut with all that follows it
