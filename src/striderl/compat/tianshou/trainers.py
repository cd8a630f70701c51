"""`offpolicy_trainer` and `onpolicy_trainer`: training as one call, in the words of Tianshou.

    epoch:   train_fn ─▶ collect ─▶ stop_fn(return)? then test ─▶ policy.update … ─┐   until there were step_per_epoch
               ▲                                                                   │   gradient steps
               └───────────────────────────────────────────────────────────────────┘
             test_fn ─▶ collect(n_episode=episode_per_test) ─▶ better? save_best_fn ─▶ stop_fn(best return)? the end

Both are made of `policy.update`, `collector.collect` and `test_episode` alone, so a loop of one's own is a copy of one
of them away. With `verbose` every epoch is a progress bar on stderr and a line on stdout.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from striderl.compat.tianshou.arrays import MovAvg
from striderl.compat.tianshou.base_policy import BasePolicy
from striderl.compat.tianshou.collector import Collector
from striderl.envs.vec_env import VecEnv
from striderl.loggers.logger import Logger

__all__ = ["MovAvg", "gather_info", "offpolicy_trainer", "onpolicy_trainer", "test_episode", "tqdm_config"]

tqdm_config = {"dynamic_ncols": True, "ascii": True}
"""What Tianshou hands to tqdm, for loops of one's own."""

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
    episode_per_test: int | Sequence[int],
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
    whole_episodes: bool | None = None,
) -> dict[str, Any]:
    """Train from replay: collect `collect_per_step` steps, take `update_per_step` gradient steps, and so on.

    An epoch is `step_per_epoch` gradient steps, and ends with a test of `episode_per_test` episodes. `stop_fn` is asked
    about the mean return of training episodes, which a test then has to confirm (unless `test_in_train` is false), and
    about the best test. `save_best_fn` (`save_fn`) is given the policy after every test that beats all before.
    `writer` is one of TensorBoard's or a `Logger`. Where the collector collects whole episodes (`whole_episodes` as in
    `Collector.collect`), at least `collect_per_step` steps are collected, and that many times more gradient steps are
    taken.
    """
    _positive(collect_per_step=collect_per_step, update_per_step=update_per_step, batch_size=batch_size)
    run = _Run(policy, train_collector, test_collector, episode_per_test, test_fn, stop_fn, test_in_train)
    run.begin(max_epoch, step_per_epoch, _one_of(save_best_fn, save_fn), Report(writer, log_interval, verbose))
    for epoch in range(1, max_epoch + 1):
        done = 0
        run.progress.begin(epoch, step_per_epoch)
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
                run.progress.show(done)
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
    episode_per_test: int | Sequence[int],
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

    `policy.update(0, buffer, batch_size=…, repeat=repeat_per_collect)` is called with all steps in the order of time;
    those that are in the buffer before are part of the first call, and `batch_size` 0 makes one minibatch of them. An
    epoch is `step_per_epoch` gradient steps: as many as the longest list that `learn` returns, or one. The other
    arguments are those of `offpolicy_trainer`.
    """
    # 0 is all steps at once, and what PSRLPolicy is given
    _positive(collect_per_step=collect_per_step, repeat_per_collect=repeat_per_collect, batch_size=batch_size or 1)
    run = _Run(policy, train_collector, test_collector, episode_per_test, test_fn, stop_fn, test_in_train)
    run.begin(max_epoch, step_per_epoch, _one_of(save_best_fn, save_fn), Report(writer, log_interval, verbose))
    for epoch in range(1, max_epoch + 1):
        done = 0
        run.progress.begin(epoch, step_per_epoch)
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
            run.progress.show(done)
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
    """Whether every epoch is shown."""

    def losses(self, step: int, numbers: dict[str, float]) -> None:
        """Write what `learn` returned: under its own names to a TensorBoard writer, below train/ to a `Logger`."""
        prefix = "train/" if isinstance(self.writer, Logger) else ""
        self(step, {f"{prefix}{name}": value for name, value in numbers.items()})

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
        episode_per_test: int | Sequence[int],
        test_fn: Hook | None,
        stop_fn: Callable[[float], bool] | None,
        test_in_train: bool,
    ) -> None:
        if isinstance(episode_per_test, int):
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
        self.progress = Progress(report.verbose)
        self.train.reset_stat()
        self.test.reset_stat()
        self.started = time.time()

    def collected(self, epoch: int, result: dict[str, float]) -> bool:
        """Count what was collected; tell whether it, and a test, say that the run is at its end."""
        self.env_step += int(result["n/st"])
        if result["n/ep"]:
            self.report(self.env_step, {f"train/{name}": float(value) for name, value in result.items()})
            self.progress.numbers |= {name: float(result[name]) for name in ("rew", "len", "n/ep", "n/st", "v/st")}
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
            means = {name: math.fsum(each) / len(each) for name, each in self._losses.items() if each}
            self.report.losses(self.env_step, means)
            self.progress.numbers |= means
            self._losses = {}

    def tested(self, epoch: int) -> bool:
        """Test at the end of an epoch; return whether the best so far is good enough."""
        self.progress.end()
        found = self._play(epoch)
        self._note_best(found["rew"], epoch)
        if self.report.verbose:
            sys.stdout.write(
                f"Epoch #{epoch}: test_reward: {found['rew']:.6f}, best_reward: {self.best_reward:.6f} in "
                f"#{self.best_epoch}\n"
            )
            sys.stdout.flush()
        return self.stop_fn is not None and bool(self.stop_fn(self.best_reward))

    def _note_best(self, reward: float, epoch: int) -> None:
        if reward > self.best_reward:
            self.best_reward, self.best_epoch = reward, epoch
            if self.save is not None:
                self.save(self.policy)

    def _play(self, epoch: int) -> dict[str, Any]:
        was_training = self.policy.training
        try:
            result = test_episode(
                self.policy, self.test, self.test_fn, epoch, self.episode_per_test, None, self.env_step
            )
        finally:
            self.policy.train(was_training)
        self.report(self.env_step, {f"test/{name}": float(value) for name, value in result.items()})
        return result

    def summary(self) -> dict[str, Any]:
        self.progress.end()
        found = gather_info(self.started, self.train, self.test, self.best_reward)
        return found | {"best_epoch": self.best_epoch, "gradient_step": self.gradient_step}


def test_episode(
    policy: BasePolicy,
    collector: Collector,
    test_fn: Hook | None,
    epoch: int,
    n_episode: int | Sequence[int],
    writer: Writer | None = None,
    global_step: int | None = None,
) -> dict[str, Any]:
    """Test a policy, in evaluation mode, on new episodes; they are shared out evenly among the envs."""
    collector.reset_env()
    collector.reset_buffer()
    policy.eval()
    if test_fn is not None:
        test_fn(epoch, 0 if global_step is None else global_step)
    count = collector.get_env_num()
    if isinstance(n_episode, int) and count > 1 and not isinstance(collector.env, VecEnv):
        n_episode = [n_episode // count + (each < n_episode % count) for each in range(count)]
    result = collector.collect(n_episode=n_episode)
    if writer is not None and global_step is not None:
        for name, value in result.items():
            writer.add_scalar(f"test/{name}", float(value), global_step=global_step)
    return result


test_episode.__test__ = False  # type: ignore[attr-defined]  # its name makes pytest take it for a test


def gather_info(start_time: float, train_c: Collector, test_c: Collector, best_reward: float) -> dict[str, Any]:
    """Return steps, episodes, seconds and speeds of both collectors since `start_time`, in seconds of `time.time`."""
    duration = time.time() - start_time
    return {
        "train_step": train_c.collect_step,
        "train_episode": train_c.collect_episode,
        "train_time/collector": train_c.collect_time,
        "train_time/model": max(0.0, duration - train_c.collect_time - test_c.collect_time),
        "train_speed": train_c.collect_step / max(1e-9, duration - test_c.collect_time),
        "test_step": test_c.collect_step,
        "test_episode": test_c.collect_episode,
        "test_time": test_c.collect_time,
        "test_speed": test_c.collect_step / max(1e-9, test_c.collect_time),
        "best_reward": best_reward,
        "duration": duration,
    }


class Progress:
    """A bar of one epoch on stderr, a few times a second on a terminal, else once at its end."""

    WIDTH, SECONDS = 20, 0.2

    def __init__(self, shown: bool) -> None:
        """Show nothing unless `shown`."""
        self.shown = shown
        self.numbers: dict[str, float] = {}
        self._total = self._done = 0

    def begin(self, epoch: int, total: int) -> None:
        """Begin the bar of an epoch."""
        self._epoch, self._total, self._done, self._next = epoch, total, 0, 0.0
        self._started = time.perf_counter()

    def show(self, done: int) -> None:
        """Show how many gradient steps were taken."""
        self._done = done
        now = time.perf_counter()
        if self.shown and now >= self._next and sys.stderr.isatty():
            self._next = now + self.SECONDS
            self._write("")

    def end(self) -> None:
        """End the bar of the epoch."""
        if self.shown and self._total:
            self._write("\n")
        self._total = 0

    def _write(self, end: str) -> None:
        share = min(1.0, self._done / max(1, self._total))
        bar = "#" * round(share * self.WIDTH)
        speed = self._done / max(1e-9, time.perf_counter() - self._started)
        numbers = ", ".join(f"{name}={value:.3g}" for name, value in self.numbers.items())
        head = f"\rEpoch #{self._epoch}: {share:4.0%}|{bar:<{self.WIDTH}}| {self._done}/{self._total}"
        sys.stderr.write(f"{head} [{speed:.1f}it/s, {numbers}]{end}")
        sys.stderr.flush()


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
