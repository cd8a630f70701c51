"""`DemonstrationSaver`: run a policy in an env and record whole episodes.

    saver = DemonstrationSaver(env, policy, "demos", min_timesteps=1e5, min_episodes=100, success_traj_only=True,
                               obs_disassemble_mapping={"depth": "normalized_image"})
    saver.collect_and_save(config={"task": "walk"})

    collect_step × 64 ──▶ buffer [64, N] ──save_steps──▶ open episodes, one per env ──where they end──▶ the folder
                                                                                     └ failures, if only successes count

An episode is written when it ends; those that are under way when recording stops are not. Recording continues an
earlier one, of this process or of others that write to the same folder: the thresholds count what the folder holds.
`TrajectoryStore` and `RolloutDataset` read it.

Also here: `SaverProgress` of a recording, and summary.json, an overview of a folder of trajectories.

Readers need metadata.json and the shards alone. The summary is replaced as a whole each time it is written; its totals
are those of the whole folder.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from striderl.checkpoint.errors import FileRefused
from striderl.checkpoint.safe_files import replacing
from striderl.collect.actors.base import Actor
from striderl.collect.group import EnvGroup, NoiseSource, where_env
from striderl.collect.quarantine import Quarantine
from striderl.data.arena import Columns
from striderl.data.transition import Transition, transition_columns
from striderl.datasets.trajectories.spec import TrajectoryError, TrajectorySpec
from striderl.datasets.trajectories.store import TrajectoryStore
from striderl.datasets.trajectories.writer import TrajectoryWriter
from striderl.envs.vec_env import Step, VecEnv
from striderl.recording.actors import FlatActor, as_vec_env, demonstrator, flat_spec
from striderl.recording.episodes import EpisodeWriter, SavedStep, SaverBuffer

if TYPE_CHECKING:
    from typing import Self


_log = logging.getLogger(__name__)

SUCCESS = "success"
"""The info key of an episode's success."""


class DemonstrationSaver:
    """Record episodes of a policy; see the picture at the top of this module."""

    def __init__(
        self,
        env: Any,
        policy: Any,
        save_dir: str | Path,
        rollout_storage_length: int = 64,
        min_timesteps: float = 1e6,
        min_episodes: float = 10000,
        success_traj_only: bool = False,
        use_critic_obs: bool = False,
        obs_disassemble_mapping: Mapping[str, str] | None = None,
        demo_by_sample: bool = False,
        *,
        seed: int = 0,
        max_trajectory_length: int = 10_000,
        log_interval: int = 10,
        progress: Callable[[SaverProgress], None] | None = None,
    ) -> None:
        """Prepare to record; the folder is made by `init_traj_handlers`, or with the first step.

        env: a VecEnv, a Gymnasium vector env, or an env of any rsl_rl generation.
        policy: a policy of this library, an Agent, an actor, a function of the observation, or an old-style object.
        rollout_storage_length: steps of each env between two visits to the disk.
        min_timesteps, min_episodes: recording stops when the folder holds both.
        success_traj_only: skip episodes that failed. Success is `info['success']` in the last step where the env
            declares it, and otherwise that the episode was not terminated.
        use_critic_obs: give the policy the critic's components as well.
        obs_disassemble_mapping: component → codec, such as {'depth': 'normalized_image'}; others are kept as they are.
        demo_by_sample: act by samples in place of the most likely actions.
        seed: of env and samples; savers that write to one folder at the same time need different ones.
        max_trajectory_length: longer episodes are written in pieces of about so many steps, each of them truncated.
        log_interval: rollouts between two lines of progress.
        progress: called with the numbers of each such line.
        """
        env = as_vec_env(env, type(self).__name__)
        for name, value in (
            ("rollout_storage_length", rollout_storage_length),
            ("max_trajectory_length", max_trajectory_length),
            ("log_interval", log_interval),
        ):
            if value < 1:
                raise ValueError(f"{name} is at least 1, found {value}")
        self.env: VecEnv = env
        self.policy, self.save_dir = policy, Path(save_dir)
        self.rollout_storage_length = rollout_storage_length
        self.min_timesteps, self.min_episodes = min_timesteps, min_episodes
        self.success_traj_only, self.use_critic_obs = success_traj_only, use_critic_obs
        self.obs_disassemble_mapping = dict(obs_disassemble_mapping or {})
        self.demo_by_sample, self.seed = demo_by_sample, seed
        self.max_trajectory_length, self.log_interval = max_trajectory_length, log_interval
        self.metadata: dict[str, Any] = {}
        """Entries of summary.json besides totals."""
        self._progress = progress
        self._actor = self._make_actor()
        self.spec = TrajectorySpec.from_columns(
            self._columns(),
            codecs=self.obs_disassemble_mapping,
            final_obs=env.gives_final_obs,
            obs_spec=env.obs_spec,
            action_spec=env.action_spec,
        )
        self._store = TrajectoryStore(self.save_dir)
        self.writer: TrajectoryWriter | None = None
        self._buffer: SaverBuffer | None = None
        self._group: EnvGroup | None = None
        self._episodes: EpisodeWriter | None = None
        self._transition: Transition | None = None
        self._closed = False
        self._logged_at, self._steps_since = time.perf_counter(), 0

    # -- what a subclass decides ---------------------------------------------------------------------------------------

    def _make_actor(self) -> Actor:
        """Return the actor."""
        return demonstrator(self.policy, self.env, use_critic_obs=self.use_critic_obs, sample=self.demo_by_sample)

    def _columns(self) -> Columns:
        """Return the layout of a recorded step."""
        info = {name: spec for name, spec in self.env.info_spec.items() if name != "valid"}
        return transition_columns(self.env.obs_spec, self.env.action_spec, info, self._actor.columns())

    def _recorded(self, transition: Transition) -> dict[str, Any]:
        """Return the columns of this step, in the layout of `_columns`."""
        return transition.columns()

    def _settings(self) -> dict[str, Any]:
        """Return the settings, for metadata.json and summary.json."""
        return {
            "env": type(self.env).__name__,
            "policy": type(self.policy).__name__,
            "rollout_storage_length": self.rollout_storage_length,
            "min_timesteps": self.min_timesteps,
            "min_episodes": self.min_episodes,
            "success_traj_only": self.success_traj_only,
            "use_critic_obs": self.use_critic_obs,
            "demo_by_sample": self.demo_by_sample,
            "obs_disassemble_mapping": self.obs_disassemble_mapping,
            "seed": self.seed,
        }

    # -- the whole -----------------------------------------------------------------------------------------------------

    def collect_and_save(self, config: Mapping[str, Any] | None = None) -> SaverProgress:
        """Record until the folder holds enough, and return the progress; `config` is kept with the recording."""
        self.init_traj_handlers(config)
        self.init_storage_buffer()
        rollouts = 0
        try:
            while not self.check_stop():
                for step_i in range(self.rollout_storage_length):
                    self.collect_step(step_i)
                self.save_steps()
                rollouts += 1
                if rollouts % self.log_interval == 0:
                    self.print_log()
            return self.print_log()
        finally:
            self.close()

    def init_traj_handlers(self, config: Mapping[str, Any] | None = None) -> None:
        """Make the folder, or check that an existing one has the same layout; calling it twice is fine."""
        if self.writer is not None:
            return
        self.metadata = plain_data({"config": dict(config or {}), **self._settings()})
        self.writer = TrajectoryWriter(self.save_dir, self.spec, about=self.metadata)
        self._episodes = EpisodeWriter(
            self.writer,
            self.env.num_envs,
            success_only=self.success_traj_only,
            first_env_index=self.env.first_env_index,
        )
        self._store.refresh()
        self.dump_metadata()

    def init_storage_buffer(self) -> None:
        """Allocate a rollout and start the first episodes; calling it twice is fine."""
        if self._buffer is not None:
            return
        env = self.env
        self._buffer = SaverBuffer(self._columns(), self.spec, self.rollout_storage_length, env.num_envs, env.device)
        seed = self._session_seed()
        index = torch.arange(env.first_env_index, env.first_env_index + env.num_envs, device=env.device)
        self._group = EnvGroup(
            env,
            slice(0, env.num_envs),
            self._actor,
            noise=NoiseSource(self._actor.noise(), seed=seed, env_index=index),
            quarantine=Quarantine(env.num_envs, env.device, first_env_index=env.first_env_index),
            wait_reset=False,
            previous={},
        )
        self._group.begin(env.reset(seed))

    # -- one step ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def collect_step(self, step_i: int) -> None:
        """Act, step the env and record the step."""
        stepped = self.get_transition()
        self.add_transition(step_i, stepped.infos)
        self.policy_reset(stepped.dones)

    @torch.no_grad()
    def get_policy_actions(self) -> Any:
        """Return a copy of the policy's present action; nothing is stepped."""
        return self._ready().act()

    @torch.no_grad()
    def get_transition(self) -> SavedStep:
        """Act and step the env; `add_transition` records it. A full buffer is saved first."""
        group = self._ready()
        self._require_in_order()
        if self._buffer is not None and self._buffer.count >= self._buffer.num_steps:
            self.save_steps()
        step: Step = self.env.step(self.get_policy_actions())
        self._transition = transition = group.settle(step)
        critic = flat_spec(self.env.obs_spec, critic=True)
        return SavedStep(
            self._recorded(transition)["act"],
            transition.rew,
            transition.done,
            step.info,
            transition.next_obs,
            {name: transition.next_obs[name] for name in critic},
        )

    def add_transition(self, step_i: int, infos: Mapping[str, Any] | None = None) -> None:
        """Write the last step into row `step_i` of the buffer; step numbers that go on count from row 0 again."""
        self._ready()
        buffer, group, transition = self._buffer, self._group, self._transition
        assert buffer is not None and group is not None
        if transition is None:
            raise RuntimeError("there is no step to record; call get_transition first")
        if step_i % buffer.num_steps != buffer.count:
            raise ValueError(f"row {buffer.count} of the buffer is next, found step_i={step_i}")
        buffer.add(self._recorded(transition), transition, self._succeeded(transition), group.cut)
        self._transition = None
        self._steps_since += self.env.num_envs

    def policy_reset(self, dones: Tensor) -> None:
        """Reset the policy's state in envs whose episode ended."""
        group = self._ready()
        if isinstance(self._actor, FlatActor):
            self._actor.policy.reset(dones)
        group.state = where_env(dones.bool(), group.fresh_state, group.state)

    # -- to the disk ---------------------------------------------------------------------------------------------------

    def save_steps(self) -> None:
        """Write the episodes that ended since the last call; keep the others open."""
        episodes, group, buffer = self._recording(), self._ready(), self._buffer
        assert buffer is not None and self.writer is not None
        self._require_in_order()
        if not buffer.count:
            return
        for segment in episodes.begin(buffer.take()):
            steps = slice(segment.start, segment.stop)
            self.dump_to_file(segment.env, steps)
            if segment.ended:
                self.update_traj_handler(segment.env, steps)
        episodes.complete()
        for env_i in episodes.long_ones(self.max_trajectory_length):
            following = {name: value[env_i : env_i + 1] for name, value in group.obs.items()}
            episodes.cut(env_i, buffer.squeezed_obs(following))
        self._restart_sick_ones(group, episodes)
        self.writer.flush()

    def dump_to_file(self, env_i: int, step_slice: slice) -> None:
        """Append steps of the present rollout to an env's episode; `save_steps` calls this for each piece."""
        self._recording().add(env_i, step_slice.start, step_slice.stop)

    def update_traj_handler(self, env_i: int, step_slice: slice) -> None:
        """End an env's episode with these steps and write or skip it; `save_steps` calls this where one ends."""
        self._recording().finish(env_i, step_slice.stop - 1)

    def wrap_up_trajectory(self, env_i: int, step_slice: slice) -> dict[str, Any]:
        """Return steps of an env in the last rollout as a reader gets them."""
        return self._recording().steps(env_i, step_slice.start, step_slice.stop)

    def dump_metadata(self) -> None:
        """Write summary.json: settings and totals."""
        totals = {"total_timesteps": self.total_timesteps, "total_trajectories": self.total_trajectories}
        write_summary(self.save_dir, {**self.metadata, **totals})

    # -- progress ------------------------------------------------------------------------------------------------------

    @property
    def total_timesteps(self) -> int:
        """Steps in the folder at the last `check_stop`."""
        return self._store.num_steps

    @property
    def total_trajectories(self) -> int:
        """Trajectories in the folder at the last `check_stop`."""
        return len(self._store)

    def check_stop(self) -> bool:
        """Return whether the folder holds enough steps and enough episodes."""
        self._store.refresh()
        return self.total_timesteps >= self.min_timesteps and self.total_trajectories >= self.min_episodes

    def print_log(self) -> SaverProgress:
        """Log a line of progress, and return its numbers."""
        now = time.perf_counter()
        self._store.refresh()
        done = fraction_of(self.total_timesteps, self.total_trajectories, self.min_timesteps, self.min_episodes)
        left_out = 0 if self._episodes is None else self._episodes.left_out
        rate = self._steps_since / max(now - self._logged_at, 1e-9)
        numbers = SaverProgress(self.total_timesteps, self.total_trajectories, left_out, rate, done)
        self._logged_at, self._steps_since = now, 0
        _log.info("%s: %s", self.save_dir, numbers)
        if self._progress is not None:
            self._progress(numbers)
        return numbers

    def close(self) -> None:
        """Save ended episodes and release the folder; the env stays open, and calling it twice is fine."""
        if self._closed or (self.writer is None and self._buffer is None):
            return
        try:
            if self._buffer is not None:
                if self._transition is not None:  # interrupted after a step
                    self.add_transition(self._buffer.count, {})
                self.save_steps()
        finally:
            self._closed = True
            if self.writer is not None:
                self.writer.close()
        self._store.refresh()
        self.dump_metadata()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _ready(self) -> EnvGroup:
        self.init_storage_buffer()
        assert self._group is not None
        return self._group

    def _recording(self) -> EpisodeWriter:
        self.init_traj_handlers()
        assert self._episodes is not None
        return self._episodes

    def _require_in_order(self) -> None:
        if self._closed:
            raise RuntimeError("this saver is closed; a new one with the same save_dir goes on with the recording")
        if self._transition is not None:
            raise RuntimeError("the last step is not recorded yet; call add_transition after each get_transition")

    def _session_seed(self) -> int:
        """Return the seed of this session: continuing a recording must not repeat its episodes."""
        before = self._store.num_steps
        if not before:
            return self.seed
        return int(np.random.SeedSequence(self.seed, spawn_key=(before,)).generate_state(1)[0])

    def _succeeded(self, transition: Transition) -> Tensor:
        """Return whether an end in this step would be a success, bool [N]."""
        if SUCCESS in transition.info:
            return transition.info[SUCCESS].reshape(self.env.num_envs) > 0
        return ~transition.terminated

    def _restart_sick_ones(self, group: EnvGroup, episodes: EpisodeWriter) -> None:
        """Reset envs with non-finite numbers, and drop their open episodes."""
        for fault in group.quarantine.faults():
            _log.warning("%s", fault)
        if bool(group.quarantine.sick.any()):
            restarted = group.restart()
            self.policy_reset(restarted)
            for env_i in restarted.nonzero().squeeze(1).tolist():
                episodes.forget(env_i)


# -- summary -----------------------------------------------------------------------------------------------------------


SUMMARY = "summary.json"
"""The file's name."""


class SaverProgress(NamedTuple):
    """Progress of a recording."""

    total_timesteps: int
    """Steps in the folder."""
    total_trajectories: int
    """Trajectories in the folder."""
    left_out: int
    """Episodes that this saver has not written because they failed."""
    steps_per_second: float
    """Steps taken in all envs together, over the time since the last line."""
    fraction: float
    """How far the slower of the two thresholds is reached, in [0, 1]."""

    def __str__(self) -> str:
        return (
            f"{self.total_timesteps} steps in {self.total_trajectories} trajectories ({100 * self.fraction:.0f} %), "
            f"{self.left_out} left out, {self.steps_per_second:.0f} steps/s"
        )


def fraction_of(timesteps: int, trajectories: int, min_timesteps: float, min_episodes: float) -> float:
    """Return how far the slower of two thresholds is reached, in [0, 1]."""
    shares = [
        1.0 if wanted <= 0 else min(1.0, found / wanted)
        for found, wanted in ((timesteps, min_timesteps), (trajectories, min_episodes))
    ]
    return min(shares)


def write_summary(folder: Path, content: Mapping[str, Any]) -> None:
    """Replace the summary, whole or not at all."""
    text = json.dumps(plain_data(content), indent=1) + "\n"
    try:
        with replacing(folder / SUMMARY, several_writers=True) as file:
            file.write(text.encode())
    except (OSError, FileRefused) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TrajectoryError(f"cannot write {str(folder / SUMMARY)!r}: {reason}") from error


def plain_data(value: Any) -> Any:
    """Return settings as JSON has them: tuples as lists, arrays as numbers, what is not finite or unknown as words."""
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_data(item) for item in value]
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return plain_data(value.tolist())
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)


def reduced(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each name over the rows that have it, without NaN; for '_max' and '_min' the extreme."""
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    numbers: dict[str, float] = {}
    for name, found in values.items():
        array = np.array([float(torch.as_tensor(value, dtype=torch.float64).mean()) for value in found])
        array = array[np.isfinite(array)]
        if array.size:
            reduce = np.max if "_max" in name else np.min if "_min" in name else np.mean
            numbers[name] = float(reduce(array))
    return numbers
