"""`Logger`: the metrics of a runner, by rsl_rl's names, to a writer and to the console.

cfg["logger"]    'tensorboard', 'wandb', 'neptune', any logger of this library, or
                 {"class_name": a LogWriter, its further arguments}

process_env_step ─▶ sums of rewards and lengths, the env's own numbers        each step, while there is a writer
log              ─▶ writer.add_scalar(tag, value, iteration), and a block of text
"""

from __future__ import annotations

import logging
import statistics
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.compat.rsl_rl.utils.utils import resolve_class
from striderl.training.experiment.runner_config import RunnerConfig
from striderl.training.rsl_rl.reporting import make_writer, store_code_state

_log = logging.getLogger(__name__)


class LogWriter(ABC):
    """Where metrics go; a subclass implements `add_scalar`, and what else it can keep."""

    @abstractmethod
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Write one number of an iteration."""

    def store_config(self, env_cfg: Any, train_cfg: dict[str, Any]) -> None:  # noqa: B027  (optional)
        """Keep both configs; called when training begins."""

    def save_model(self, model_path: str, it: int) -> None:  # noqa: B027
        """Keep a checkpoint."""

    def save_file(self, path: str) -> None:  # noqa: B027
        """Keep a file."""

    def save_video(self, video: Path, it: int) -> None:  # noqa: B027
        """Keep a video."""

    def flush(self) -> None:  # noqa: B027
        """Write what is held back; called after the numbers of an iteration."""

    def stop(self) -> None:  # noqa: B027
        """Finish the log."""


class LibraryWriter(LogWriter):
    """A logger of this library as a writer; its errors do not end training."""

    uploads: bool = False
    """Whether checkpoints and files are given to the tracker."""

    def __init__(self, log_dir: str, config: RunnerConfig) -> None:
        """Make the logger that the config names."""
        self.logger = make_writer(config, Path(log_dir))
        self._rows: dict[int, dict[str, float]] = {}
        self._videos: set[str] = set()

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Hold one number back until `flush`: those of a step are one row."""
        self._rows.setdefault(int(global_step), {})[tag] = float(scalar_value)

    def flush(self) -> None:
        """Write one row for each step."""
        rows, self._rows = self._rows, {}
        for step, numbers in rows.items():
            self.logger.log(step, numbers)

    def store_config(self, env_cfg: Any, train_cfg: dict[str, Any]) -> None:
        """Keep both configs."""
        self.logger.config({"train_cfg": train_cfg, "env_cfg": _as_dict(env_cfg)})

    def save_model(self, model_path: str, it: int) -> None:
        """Give a checkpoint to the tracker, where it keeps files."""
        self.save_file(model_path)

    def save_file(self, path: str) -> None:
        """Give a file to the tracker, where it keeps files."""
        if self.uploads:
            self.logger.file(Path(path))

    def save_video(self, video: Path, it: int) -> None:
        """Give a video to the logger, each once."""
        if video.name not in self._videos:
            self._videos.add(video.name)
            self.logger.video(it, "video", video)

    def stop(self) -> None:
        """Write what is held back, and close the logger."""
        self.flush()
        self.logger.close()


class WandbLogWriter(LibraryWriter):
    """Weights & Biases."""

    uploads = True

    def __init__(self, log_dir: str, project_name: str) -> None:
        """Begin a run in a project."""
        super().__init__(log_dir, RunnerConfig(logger="wandb", wandb_project=project_name))


class NeptuneLogWriter(LibraryWriter):
    """Neptune, written offline."""

    uploads = True

    def __init__(self, log_dir: str, project_name: str) -> None:
        """Begin a run; it is sent to a project afterwards."""
        super().__init__(log_dir, RunnerConfig(logger="neptune"))
        _log.warning("Neptune's runs are written offline; send them with: neptune sync --project %s", project_name)


class Logger:
    """The metrics of a run; see the top of this module."""

    def __init__(
        self,
        log_dir: str | Path | None,
        cfg: Mapping[str, Any],
        env_cfg: Any,
        num_envs: int,
        is_distributed: bool,
        gpu_world_size: int,
        gpu_global_rank: int,
        device: torch.device | str,
    ) -> None:
        """Make the buffers; the writer comes with `init_logging_writer`."""
        self.log_dir = None if log_dir is None else str(log_dir)
        self.cfg, self.env_cfg = cfg, env_cfg
        self.num_envs, self.gpu_world_size, self.device = num_envs, gpu_world_size, device
        self.git_status_repos: list[str] = []
        self.tot_timesteps, self.tot_time = 0, 0.0
        self.writer: LogWriter | None = None
        self.ep_extras: list[Mapping[str, Any]] = []
        self.rewbuffer, self.lenbuffer = _last_hundred(), _last_hundred()
        self.cur_reward_sum, self.cur_episode_length = self._zeros(), self._zeros()
        self.has_rnd = bool(cfg.get("algorithm", {}).get("rnd_cfg"))
        self.erewbuffer, self.irewbuffer = _last_hundred(), _last_hundred()
        self.cur_ereward_sum, self.cur_ireward_sum = self._zeros(), self._zeros()
        self.disable_logs = is_distributed and gpu_global_rank != 0
        """Only the first process writes."""

    def _zeros(self) -> Tensor:
        return torch.zeros(self.num_envs, dtype=torch.float, device=self.device)

    @property
    def logger_type(self) -> str | None:
        """The writer by name; None without one."""
        given = self.cfg.get("logger", "tensorboard")
        name = given if isinstance(given, str) else str(given["class_name"])
        return None if self.log_dir is None or self.disable_logs else name

    def init_logging_writer(self) -> None:
        """Make the writer, and keep configs and the state of the code."""
        if self.log_dir is None or self.disable_logs:
            return
        if self.writer is None:
            Path(self.log_dir).mkdir(parents=True, exist_ok=True)
            self.writer = self._make_writer(self.log_dir)
        # writers of other libraries (torch's SummaryWriter) have `add_scalar` alone
        if isinstance(self.writer, LogWriter):
            self.writer.store_config(self.env_cfg, dict(self.cfg))
        for path in store_code_state(self.log_dir, self.git_status_repos):
            if isinstance(self.writer, LogWriter):
                self.writer.save_file(str(path))

    def _make_writer(self, log_dir: str) -> LogWriter:
        given = self.cfg.get("logger", "tensorboard")
        if isinstance(given, str):
            if given in ("wandb", "neptune"):
                of_tracker = WandbLogWriter if given == "wandb" else NeptuneLogWriter
                return of_tracker(log_dir, str(self.cfg.get(f"{given}_project") or "rsl_rl"))
            return LibraryWriter(log_dir, RunnerConfig(logger=given))
        kind, settings = resolve_class(given)
        return kind(log_dir=log_dir, **settings)  # type: ignore[no-any-return]

    @torch.no_grad()
    def process_env_step(
        self, rewards: Tensor, dones: Tensor, extras: Mapping[str, Any], intrinsic_rewards: Tensor | None = None
    ) -> None:
        """Add a step of all envs; without a writer nothing is kept."""
        if self.writer is None:
            return
        found = extras.get("episode", extras.get("log"))
        if found is not None:
            self.ep_extras.append(dict(found))
        ended = dones.reshape(-1) > 0
        novelty = torch.zeros_like(rewards) if intrinsic_rewards is None else intrinsic_rewards
        sums = (self.cur_reward_sum, self.cur_episode_length, self.cur_ereward_sum, self.cur_ireward_sum)
        buffers = (self.rewbuffer, self.lenbuffer, self.erewbuffer, self.irewbuffer)
        added = (rewards + novelty, torch.ones_like(rewards), rewards, novelty)
        for total, buffer, value in zip(sums, buffers, added):
            total += value.reshape(-1)
            buffer.extend(total[ended].tolist())
            total[ended] = 0.0

    def log(
        self,
        it: int,
        start_it: int,
        total_it: int,
        collect_time: float,
        learn_time: float,
        loss_dict: Mapping[str, float],
        learning_rate: float,
        action_std: Tensor,
        rnd_weight: float | None,
        print_minimal: bool = False,
        width: int = 80,
        pad: int = 40,
    ) -> None:
        """Write the metrics of an iteration, and print them; without a writer do nothing."""
        if self.writer is None:
            return
        steps = int(self.cfg["num_steps_per_env"]) * self.num_envs * self.gpu_world_size
        self.tot_timesteps += steps
        self.tot_time += collect_time + learn_time
        extras = _means(self.ep_extras)
        self.ep_extras.clear()
        tags = {f"Loss/{name}": float(value) for name, value in loss_dict.items()}
        tags["Loss/learning_rate"] = float(learning_rate)
        tags["Policy/mean_std"] = float(action_std.detach().mean())
        tags["Perf/total_fps"] = float(int(steps / max(collect_time + learn_time, 1e-9)))
        tags |= {"Perf/collection_time": collect_time, "Perf/learning_time": learn_time}
        episodes = self._episodes(rnd_weight)
        for tag, value in {**extras, **tags, **episodes}.items():
            self.writer.add_scalar(tag, value, it)
        for tag in ("Train/mean_reward", "Train/mean_episode_length"):
            if tag in episodes and not isinstance(self.writer, WandbLogWriter):
                self.writer.add_scalar(f"{tag}/time", episodes[tag], int(self.tot_time))
        if hasattr(self.writer, "flush"):
            self.writer.flush()
        shown = {} if print_minimal else extras
        title = f" Learning iteration {it}/{total_it} ".center(width)
        lines = ["#" * width, f"\033[1m{title}\033[0m", ""]
        lines += [f"{label + ':':>{pad}} {text}" for label, text in self._lines(loss_dict, tags, episodes, shown)]
        done = it + 1 - start_it
        left = self.tot_time / max(done, 1) * (total_it - start_it - done)
        times = {
            "Iteration time": f"{collect_time + learn_time:.2f}s",
            "Time elapsed": str(timedelta(seconds=int(self.tot_time))),
            "ETA": str(timedelta(seconds=int(left))),
        }
        lines += ["-" * width, *(f"{label + ':':>{pad}} {text}" for label, text in times.items()), ""]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
        if isinstance(self.writer, LogWriter) and self.log_dir is not None:
            for video in sorted(Path(self.log_dir).rglob("*.mp4")):
                self.writer.save_video(video, it)

    def _episodes(self, rnd_weight: float | None) -> dict[str, float]:
        if not self.rewbuffer:
            return {}
        found: dict[str, float] = {}
        if self.has_rnd:
            found["Rnd/mean_extrinsic_reward"] = statistics.mean(self.erewbuffer)
            found["Rnd/mean_intrinsic_reward"] = statistics.mean(self.irewbuffer)
            found["Rnd/weight"] = float(rnd_weight or 0.0)
        found["Train/mean_reward"] = statistics.mean(self.rewbuffer)
        found["Train/mean_episode_length"] = statistics.mean(self.lenbuffer)
        return found

    def _lines(
        self,
        losses: Mapping[str, float],
        tags: Mapping[str, float],
        episodes: Mapping[str, float],
        extras: Mapping[str, float],
    ) -> Iterable[tuple[str, str]]:
        """Yield label and text of each line of the block."""
        if self.cfg.get("run_name"):
            yield "Run name", str(self.cfg["run_name"])
        yield "Total steps", str(self.tot_timesteps)
        yield "Steps per second", f"{tags['Perf/total_fps']:.0f}"
        yield "Collection time", f"{tags['Perf/collection_time']:.3f}s"
        yield "Learning time", f"{tags['Perf/learning_time']:.3f}s"
        yield from ((f"Mean {name} loss", f"{float(value):.4f}") for name, value in losses.items())
        for tag, value in episodes.items():
            if tag != "Rnd/weight":
                yield tag.rpartition("/")[2].replace("_", " ").capitalize(), f"{value:.2f}"
        yield "Mean action std", f"{tags['Policy/mean_std']:.2f}"
        for tag, value in extras.items():
            yield tag.replace("Episode/", "Mean episode "), f"{value:.4f}"

    def save_model(self, path: str | Path, it: int) -> None:
        """Give a checkpoint to the writer, where it keeps files."""
        if isinstance(self.writer, LogWriter):
            self.writer.save_model(str(path), it)

    def stop_logging_writer(self) -> None:
        """Finish the log."""
        if isinstance(self.writer, LogWriter):
            self.writer.stop()


def _last_hundred() -> deque[float]:
    return deque(maxlen=100)


def _means(extras: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each of the env's own numbers; names without a slash are those of an episode."""
    found: dict[str, list[Tensor]] = {}
    for each in extras:
        for name, value in each.items():
            found.setdefault(name, []).append(torch.as_tensor(value, dtype=torch.float).detach().reshape(-1).cpu())
    means = {name: torch.cat(values) for name, values in found.items()}
    return {
        name if "/" in name else f"Episode/{name}": float(values.mean())
        for name, values in means.items()
        if values.numel()
    }


def _as_dict(config: Any) -> Any:
    if is_dataclass(config) and not isinstance(config, type):
        return asdict(config)
    return config.to_dict() if hasattr(config, "to_dict") else config
