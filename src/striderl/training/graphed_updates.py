"""Whole off-policy gradient steps as CUDA graphs: sample, read, noise, update, targets, totals.

    host     replay position, blocks of random numbers                  means of the metrics, once per iteration
                     │ now and then                                               ▲
    device   sample rows ▶ read them ─▶ noise of the step ─▶ critic, actor, targets ─▶ totals += metrics
             └───────────────────────── one CUDA graph, replayed once per step ───────────────────────┘

One graph per kind of step, not per round: a step of all parts and one without the actor are two, whatever the number of
steps in a round and wherever the round begins. A launch takes the host some ten microseconds, and graphs are replayed
in every round, so a graph of whole rounds would save nothing but that.

The random numbers equal those of eager steps (`UpdateNoise`, `Uniform`); so the learner may change between both at any
step, and a resumed run continues the same.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from striderl.algorithms.reward_terms import RewardTerms
from striderl.execution.background import fall_back
from striderl.execution.graphed import CapturedGraph, together
from striderl.execution.modes import Graphed, Mode
from striderl.storage.replay.device import DeviceSampler, RowsAhead
from striderl.storage.replay.replay import Replay
from striderl.storage.replay.views import NStep
from striderl.training.protocols import ReplayAlgorithm, UpdateNoise

_log = logging.getLogger(__name__)


@runtime_checkable
class GraphedLearner(Protocol):
    """An algorithm whose whole gradient steps can be captured: its Python branches are known beforehand."""

    num_updates: int
    """How many gradient steps were taken; counted by `update` and by replays of its graph."""

    def graph_key(self) -> Hashable:
        """Return the Python branches of the next gradient step; another key captures another graph.

        It follows from `num_updates` and from what no gradient step changes.
        """
        ...


class _Kind:
    """One kind of gradient step: its captured graph and the totals of its metrics."""

    def __init__(self, decided: Hashable) -> None:
        self.decided = decided
        """The Python branches of such a step."""
        self.graph: CapturedGraph | None = None
        self.names: tuple[str, ...] = ()
        self.total: Tensor | None = None
        self.count = 0


class GraphedUpdates:
    """Take gradient steps by replaying CUDA graphs; see the picture at the top of this module."""

    def __init__(
        self, algorithm: ReplayAlgorithm, replay: Replay, batch_size: int, noise: UpdateNoise, mode: Graphed
    ) -> None:
        """Prepare; nothing is captured before the first step. `refusal` returns why it cannot be."""
        self.algorithm, self.replay, self.mode = algorithm, replay, mode
        self._noise = noise
        device = replay.read.device
        self._sampler = DeviceSampler(replay, batch_size)
        self._rows = RowsAhead(device)
        self._read = mode.fuse(self._read_sample)
        self._index = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self._kinds: dict[Hashable, _Kind] = {}
        self._captured_compiled = mode.compiles
        self._given_up = False

    def play(self, number: int) -> bool:
        """Take the gradient step of this number and return True, or return False when it must be run eagerly."""
        if self._given_up or not self.mode.captures or not self.replay.cursor.even or not len(self.replay):
            return False
        learner = self.algorithm
        assert isinstance(learner, GraphedLearner)
        self._sampler.ready()
        of, drawn, row = self._noise.block(number)
        self._rows.load(of, drawn, row)
        decided = learner.graph_key()
        if self._captured_compiled != self.mode.compiles:
            for each in self._kinds.values():
                each.graph = None
            self._captured_compiled = self.mode.compiles
        kind = self._kinds.get(decided)
        if kind is None:
            kind = self._kinds[decided] = _Kind(decided)
        if kind.graph is None and not self._record(kind):
            return False
        assert kind.graph is not None
        taken = learner.num_updates
        kind.graph.play([])
        learner.num_updates = taken + 1
        kind.count += 1
        self._sampler.advanced()
        self._rows.advanced()
        return True

    # -- one step ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _read_sample(self) -> tuple[dict[str, Any], Tensor, dict[str, Tensor]]:
        """Return the sample of this step, its rows, and the noise."""
        return *self._sampler.sample(), self._rows.current()

    def _updated(self, kind: _Kind) -> tuple[Tensor, Tensor]:
        """Take a step; return its metrics as a vector [K], and the sampled rows."""
        learner = self.algorithm
        assert isinstance(learner, GraphedLearner)
        data, index, noise = self._read()
        taken = learner.num_updates
        with together(), torch.enable_grad():
            numbers = learner.update(data, None, noise)
        learner.num_updates = taken  # counted when it is replayed; until then, the next one must branch the same way
        if learner.graph_key() != kind.decided:
            raise RuntimeError(f"what {type(learner).__name__} decides follows from more than its number of updates")
        kind.names = tuple(numbers)
        return torch.stack([number.detach().float() for number in numbers.values()]), index

    def _step(self, kind: _Kind) -> None:
        numbers, index = self._updated(kind)
        assert kind.total is not None
        kind.total.add_(numbers)
        self._index.copy_(index)
        self._sampler.advance()
        self._rows.advance()

    def _warm_up(self, kind: _Kind) -> None:
        """Take a step without counting it, so that one-time compilation and allocation are done."""
        numbers, _ = self._updated(kind)
        if kind.total is None:
            kind.total = torch.zeros_like(numbers, dtype=torch.float64)

    def _record(self, kind: _Kind) -> bool:
        """Capture the graph, or log once why there is none; the learner's state is restored in either case."""
        before = self.algorithm.state_dict()
        self._read_sample()  # caches of views are built now, not during the capture
        try:
            kind.graph = self.mode.graphs.make({}, lambda _: self._warm_up(kind), lambda _: self._step(kind))
        except RuntimeError as error:
            if self.mode.strict:
                raise
            reason = str(error).partition("\n")[0]
            _log.warning(
                "whole gradient steps cannot be recorded, so their parts are: %s. "
                "Mend what it names; with strict=True it raises instead",
                reason,
            )
            self._given_up = True
        finally:
            self.algorithm.load_state_dict(before)  # the warm-up has taken steps
        return not self._given_up

    # -- results -------------------------------------------------------------------------------------------------------

    @property
    def num_recordings(self) -> int:
        """How many kinds of steps were captured."""
        return sum(kind.graph is not None for kind in self._kinds.values())

    def last_sample(self) -> dict[str, Any]:
        """Read the sample of the last step again; rows added since then must not have overwritten it."""
        view, read = self.replay.view, self.replay.read
        return read.rows(self._index) if view is None else view(read, self._index)

    def take_totals(self) -> dict[str, tuple[Tensor, int]]:
        """Return the sum of every metric over the steps since the last call, and their number."""
        found: dict[str, tuple[Tensor, int]] = {}
        for kind in self._kinds.values():
            if kind.total is None or not kind.count:
                continue
            for name, value in zip(kind.names, kind.total.float().unbind()):
                total, count = found.get(name, (torch.zeros_like(value), 0))
                found[name] = (total + value, count + kind.count)
            kind.total.zero_()
            kind.count = 0
        return found


def recorded_updates(
    algorithm: ReplayAlgorithm, replay: Replay, batch_size: int, noise: UpdateNoise, mode: Mode
) -> GraphedUpdates | None:
    """Return the captured gradient steps, or None where they run eagerly; one log line names the choice.

    Nothing is logged in modes without CUDA graphs.
    """
    if not isinstance(mode, Graphed):
        return None
    reason = refusal(algorithm, replay)
    if reason:
        what = "gradient steps are recorded in parts, and samples are read in between"
        if mode.explicit:
            fix = "Put a replay with uniform sampling on the GPU (docs/speed.md), or choose mode='auto'"
            fall_back(what, reason, fix, strict=mode.strict)
        else:
            _log.info("%s: %s", what, reason)
        return None
    _log.info("gradient steps are recorded as a whole, sampling included")
    return GraphedUpdates(algorithm, replay, batch_size, noise, mode)


def refusal(algorithm: ReplayAlgorithm, replay: Replay) -> str:
    """Return why whole gradient steps of this algorithm on this replay cannot be captured; empty when they can."""
    device = next(algorithm.policy.parameters()).device
    if not isinstance(algorithm, GraphedLearner):
        return f"{type(algorithm).__name__} does not say what it decides in Python"
    if replay.read.device != device:
        return f"the replay is on {replay.read.device}, the parameters are on {device}"
    if not replay.sampler.capturable:
        return f"{type(replay.sampler).__name__} picks by what earlier steps have said"
    if isinstance(replay.view, NStep) and replay.view.reward is not None:
        return "a function of somebody's own gives the rewards when samples are read"
    if replay.view is not None and not getattr(replay.view, "capturable", False):
        return f"{type(replay.view).__name__} reads more than steps"
    terms = getattr(algorithm, "terms", None)
    if isinstance(terms, RewardTerms) and len(terms):
        return "terms give their rewards when samples are read"
    return ""


def added(
    sums: Mapping[str, tuple[Tensor, int]], more: Mapping[str, tuple[Tensor, int]]
) -> dict[str, tuple[Tensor, int]]:
    """Return the sums and counts of both by name."""
    found = dict(sums)
    for name, (total, count) in more.items():
        mine, number = found.get(name, (torch.zeros_like(total), 0))
        found[name] = (mine + total, number + count)
    return found
