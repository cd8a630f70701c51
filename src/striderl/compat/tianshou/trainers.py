"""`offpolicy_trainer` and `onpolicy_trainer`: training as one call, in the words of Tianshou.

    epoch:   train_fn ─▶ collect ─▶ stop_fn(return)? then test ─▶ policy.update … ─┐   until there were step_per_epoch
               ▲                                                                   │   gradient steps
               └───────────────────────────────────────────────────────────────────┘
             test_fn ─▶ collect(n_episode=episode_per_test) ─▶ better? save_best_fn ─▶ stop_fn(best return)? the end

Both are made of `policy.update` and `collector.collect` alone, so a loop of one's own is a copy of one of them away.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from striderl.compat.tianshou.base_policy import BasePolicy
from striderl.compat.tianshou.collector import Collector
from striderl.loggers.logger import Logger

_log = logging.getLogger(__name__)

Hook = Callable[[int, int], Any]
"""Called with (epoch, env_step)."""


class Writer(Protocol):
    """What a TensorBoard writer has."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> Any:
        """Take one number."""
        ...


def offpolicy_trainer(
    policy: BasePolicy,
    train_collector: Collector,
    test_collector: Collector,
    max_epoch: int,
    step_per_epoch: int,
    collect_per_step: int,
    episode_per_test: int,
    batch_size: int,
    update_per_step: int = 1,
    train_fn: Hook | None = None,
    test_fn: Hook | None = None,
    stop_fn: Callable[[float], bool] | None = None,
    save_best_fn: Callable[[BasePolicy], Any] | None = None,
    writer: Writer | Logger | None = None,
    log_interval: int = 1,
    verbose: bool = True,
    test_in_train: bool = True,
    *,
    save_fn: Callable[[BasePolicy], Any] | None = None,
    whole_episodes: bool = False,
) -> dict[str, Any]:
    """Train from replay: collect `collect_per_step` steps, take `update_per_step` gradient steps, and so on.

    An epoch is `step_per_epoch` gradient steps, and ends with a test of `episode_per_test` episodes. `stop_fn` is asked
    about the mean return of training episodes, which a test then has to confirm (unless `test_in_train` is false), and
    about the best test. `save_best_fn` (`save_fn`) is given the policy after every test that beats all before.
    `writer` is one of TensorBoard's or a `Logger`. With `whole_episodes`, at least `collect_per_step` steps are
    collected, in whole episodes, and that many times more gradient steps are taken.
    """
    _positive(collect_per_step=collect_per_step, update_per_step=update_per_step, batch_size=batch_size)
    run = _Run(policy, train_collector, test_collector, episode_per_test, test_fn, stop_fn, test_in_train)
    run.begin(max_epoch, step_per_epoch, _one_of(save_best_fn, save_fn), Report(writer, log_interval, verbose))
    for epoch in range(1, max_epoch + 1):
        done = 0
        while done < step_per_epoch:
            policy.train()
            if train_fn is not None:
                train_fn(epoch, run.env_step)
            result = train_collector.collect(n_step=collect_per_step, whole_episodes=whole_episodes)
            if run.collected(epoch, result):
                return run.summary()
            rounds = min(int(result["n/st"]) // collect_per_step, step_per_epoch - done)
            for _ in range(update_per_step * rounds):
                run.learned(policy.update(batch_size, train_collector.buffer), 1)
                done += 1
            done += 0 if rounds else 1  # steps may have been left out; an epoch ends all the same
        if run.tested(epoch):
            break
    return run.summary()


def onpolicy_trainer(
    policy: BasePolicy,
    train_collector: Collector,
    test_collector: Collector,
    max_epoch: int,
    step_per_epoch: int,
    collect_per_step: int,
    repeat_per_collect: int,
    episode_per_test: int,
    batch_size: int,
    train_fn: Hook | None = None,
    test_fn: Hook | None = None,
    stop_fn: Callable[[float], bool] | None = None,
    save_best_fn: Callable[[BasePolicy], Any] | None = None,
    writer: Writer | Logger | None = None,
    log_interval: int = 1,
    verbose: bool = True,
    test_in_train: bool = True,
    *,
    save_fn: Callable[[BasePolicy], Any] | None = None,
) -> dict[str, Any]:
    """Train from fresh episodes: collect `collect_per_step` episodes, learn from all of them, forget them.

    `policy.update(0, buffer, batch_size=…, repeat=repeat_per_collect)` is called with all steps in the order of time.
    An epoch is `step_per_epoch` gradient steps: as many as the longest list that `learn` returns, or one. The other
    arguments are those of `offpolicy_trainer`.
    """
    _positive(collect_per_step=collect_per_step, repeat_per_collect=repeat_per_collect, batch_size=batch_size)
    run = _Run(policy, train_collector, test_collector, episode_per_test, test_fn, stop_fn, test_in_train)
    run.begin(max_epoch, step_per_epoch, _one_of(save_best_fn, save_fn), Report(writer, log_interval, verbose))
    train_collector.reset_buffer()
    for epoch in range(1, max_epoch + 1):
        done = 0
        while done < step_per_epoch:
            policy.train()
            if train_fn is not None:
                train_fn(epoch, run.env_step)
            result = train_collector.collect(n_episode=collect_per_step)
            if run.collected(epoch, result):
                return run.summary()
            losses = policy.update(0, train_collector.buffer, batch_size=batch_size, repeat=repeat_per_collect)
            train_collector.reset_buffer()
            steps = max([1, *(len(each) for each in losses.values() if isinstance(each, list))])
            run.learned(losses, steps)
            done += steps
        if run.tested(epoch):
            break
    return run.summary()


@dataclass
class Report:
    """Where the numbers of a run go."""

    writer: Writer | Logger | None = None
    """A TensorBoard writer or a `Logger`."""
    log_interval: int = 1
    """Gradient steps between two reports of losses."""
    verbose: bool = True
    """Whether every epoch is told to the log."""

    def __call__(self, step: int, numbers: dict[str, float]) -> None:
        """Write numbers by name; those that are not numbers are left out."""
        found = {name: value for name, value in numbers.items() if not math.isnan(value)}
        if isinstance(self.writer, Logger):
            self.writer.log(step, found)
        elif self.writer is not None:
            for name, value in found.items():
                self.writer.add_scalar(name, value, global_step=step)


class _Run:
    """Counters and decisions that both trainers share."""

    def __init__(
        self,
        policy: BasePolicy,
        train_collector: Collector,
        test_collector: Collector,
        episode_per_test: int,
        test_fn: Hook | None,
        stop_fn: Callable[[float], bool] | None,
        test_in_train: bool,
    ) -> None:
        _positive(episode_per_test=episode_per_test)
        if train_collector.buffer is None:
            raise ValueError("train_collector has no buffer to learn from; build it as Collector(policy, env, buffer)")
        self.policy, self.train, self.test = policy, train_collector, test_collector
        self.episode_per_test, self.test_fn, self.stop_fn = episode_per_test, test_fn, stop_fn
        self.test_in_train = test_in_train
        self.env_step = self.gradient_step = 0
        self.best_reward, self.best_epoch = -math.inf, 0
        self._losses: dict[str, list[float]] = {}

    def begin(
        self, max_epoch: int, step_per_epoch: int, save: Callable[[BasePolicy], Any] | None, report: Report
    ) -> None:
        _positive(max_epoch=max_epoch, step_per_epoch=step_per_epoch, log_interval=report.log_interval)
        self.save, self.report = save, report
        self.train.reset_stat()
        self.test.reset_stat()
        self.started = time.perf_counter()

    def collected(self, epoch: int, result: dict[str, float]) -> bool:
        """Count what was collected; tell whether it, and a test, say that the run is at its end."""
        self.env_step += int(result["n/st"])
        if result["n/ep"]:
            self.report(self.env_step, {f"train/{name}": result[name] for name in ("rew", "len", "n/ep")})
        if not (self.test_in_train and self.stop_fn and result["n/ep"] and self.stop_fn(result["rew"])):
            return False
        found = self._play(epoch)
        reached = bool(self.stop_fn(found["rew"]))
        if reached:
            self._note_best(found["rew"], epoch)
        return reached

    def learned(self, losses: dict[str, Any], steps: int) -> None:
        """Count gradient steps and report the means of what `learn` returned."""
        for name, value in losses.items():
            self._losses.setdefault(name, []).extend(value if isinstance(value, list) else [value])
        before, self.gradient_step = self.gradient_step, self.gradient_step + steps
        if self.gradient_step // self.report.log_interval > before // self.report.log_interval:
            means = {f"train/{name}": math.fsum(each) / len(each) for name, each in self._losses.items() if each}
            self.report(self.env_step, means)
            self._losses = {}

    def tested(self, epoch: int) -> bool:
        """Test at the end of an epoch; tell whether the best so far is good enough."""
        found = self._play(epoch)
        self._note_best(found["rew"], epoch)
        if self.report.verbose:
            _log.info(
                "epoch %d: %d env steps, %d gradient steps, test return %.2f, best %.2f in epoch %d",
                epoch, self.env_step, self.gradient_step, found["rew"], self.best_reward, self.best_epoch,
            )  # fmt: skip
        return self.stop_fn is not None and bool(self.stop_fn(self.best_reward))

    def _note_best(self, reward: float, epoch: int) -> None:
        if reward > self.best_reward:
            self.best_reward, self.best_epoch = reward, epoch
            if self.save is not None:
                self.save(self.policy)

    def _play(self, epoch: int) -> dict[str, float]:
        was_training = self.policy.training
        self.policy.eval()
        try:
            if self.test_fn is not None:
                self.test_fn(epoch, self.env_step)
            result = self.test.collect(n_episode=self.episode_per_test)
        finally:
            self.policy.train(was_training)
        self.report(self.env_step, {f"test/{name}": result[name] for name in ("rew", "len")})
        return result

    def summary(self) -> dict[str, Any]:
        duration = time.perf_counter() - self.started
        model_time = max(0.0, duration - self.train.collect_time - self.test.collect_time)
        return {
            "train_step": self.train.collect_step,
            "train_episode": self.train.collect_episode,
            "train_time/collector": self.train.collect_time,
            "train_time/model": model_time,
            "train_speed": self.train.collect_step / max(1e-9, duration - self.test.collect_time),
            "test_step": self.test.collect_step,
            "test_episode": self.test.collect_episode,
            "test_time": self.test.collect_time,
            "test_speed": self.test.collect_step / max(1e-9, self.test.collect_time),
            "best_reward": self.best_reward,
            "best_epoch": self.best_epoch,
            "gradient_step": self.gradient_step,
            "duration": duration,
        }


def _one_of(
    save_best_fn: Callable[[BasePolicy], Any] | None, save_fn: Callable[[BasePolicy], Any] | None
) -> Callable[[BasePolicy], Any] | None:
    if save_best_fn is not None and save_fn is not None:
        raise ValueError("save_fn is the old name of save_best_fn; give one of them")
    return save_best_fn or save_fn


def _positive(**counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is a whole number of at least 1, found {value!r}")
