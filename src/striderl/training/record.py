"""`Record`: counters, metrics and times of one training iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Record:
    """One iteration: counters, metrics and times; nothing in it changes later."""

    iteration: int
    """How many iterations are finished, this one included."""
    env_steps: int
    """How many steps the envs have made so far, over all envs."""
    num_updates: int
    """How many gradient steps were taken so far."""
    num_steps: int
    """How many env steps this iteration made."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics by name: 'collect/return_mean', 'train/kl', 'evaluate/return_mean' and so on."""
    collection_seconds: float = 0.0
    """How long collecting took."""
    learning_seconds: float = 0.0
    """How long learning took, targets included."""
    callback_seconds: Mapping[str, float] = field(default_factory=dict)
    """How long callbacks took, by what they did: 'evaluation', 'video'; 'iteration' is all since the last one."""

    @property
    def step(self) -> int:
        """Step of logs, videos and checkpoints: env steps, or gradient steps where no env is stepped."""
        return self.env_steps or self.num_updates

    @property
    def steps_per_second(self) -> float:
        """Env steps of this iteration per second of collecting and learning."""
        return self.num_steps / max(self.collection_seconds + self.learning_seconds, 1e-9)

    def with_metrics(self, added: Mapping[str, float]) -> Record:
        """Return the record with more metrics."""
        return replace(self, metrics={**self.metrics, **added}) if added else self

    def with_seconds(self, added: Mapping[str, float]) -> Record:
        """Return the record with the times of a callback."""
        return replace(self, callback_seconds={**self.callback_seconds, **added}) if added else self

    def logs(self, log_type: str) -> dict[str, float]:
        """Return the metrics named 'log_type/…', without that prefix."""
        prefix = f"{log_type}/"
        return {name.removeprefix(prefix): value for name, value in self.metrics.items() if name.startswith(prefix)}

    def numbers(self) -> dict[str, float]:
        """Return everything for a log: the metrics, the counters and the times."""
        return {
            **self.metrics,
            "progress/iteration": float(self.iteration),
            "progress/env_steps": float(self.env_steps),
            "progress/num_updates": float(self.num_updates),
            "time/collection_seconds": self.collection_seconds,
            "time/learning_seconds": self.learning_seconds,
            **{f"time/{name}_seconds": value for name, value in self.callback_seconds.items()},
            "time/steps_per_second": self.steps_per_second,
            "time/collection_steps_per_second": self.num_steps / max(self.collection_seconds, 1e-9),
            "time/learning_steps_per_second": self.num_steps / max(self.learning_seconds, 1e-9),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the record as plain data."""
        state = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**state, "metrics": dict(self.metrics), "callback_seconds": dict(self.callback_seconds)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Record:
        """Make a record from plain data."""
        return cls(**{**state, "metrics": dict(state["metrics"])})


Finish = Callable[[dict[str, float]], dict[str, float]]


class PendingNumbers(Mapping[str, float]):
    """Asynchronous copy of metrics to the host: packed in one tensor, waited for when they are read.

    On the CPU they are available at once.
    """

    def __init__(self, tensors: Mapping[str, Tensor], finish: Finish = dict) -> None:
        """Start the copy; `finish` is applied to the metrics when they have arrived."""
        self._names, self._finish = list(tensors), finish
        self._numbers: dict[str, float] | None = None
        self._arrived: torch.cuda.Event | None = None
        self._packed = torch.empty(0)
        if not tensors:
            self._numbers = finish({})
            return
        packed = torch.stack([value.detach().double() for value in tensors.values()])
        if packed.is_cuda:
            self._packed = torch.empty_like(packed, device="cpu", pin_memory=True)
            self._packed.copy_(packed, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()
        else:
            self._numbers = finish(dict(zip(self._names, packed.tolist())))

    @property
    def _all(self) -> dict[str, float]:
        if self._numbers is None:
            if self._arrived is not None:
                self._arrived.synchronize()
            self._numbers = self._finish(dict(zip(self._names, self._packed.tolist())))
        return self._numbers

    def __getitem__(self, name: str) -> float:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return repr(self._all)


def read_later(tensors: Mapping[str, Tensor], finish: Finish = dict) -> Mapping[str, float]:
    """Return 0-d tensors as numbers with one transfer to the host; counts stay exact up to 2^53."""
    return PendingNumbers(tensors, finish)
