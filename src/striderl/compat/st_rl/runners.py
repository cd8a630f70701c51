"""st_rl's runners for st_rl's algorithms: a loop whose every part may be overridden.

    runner = AmpPolicyRunner(env, APPO(cfg, env), log_dir="logs", device="cpu")        with an algorithm
    runner = OnPolicyRunner(env, {"algorithm": {"class_name": MyPPO, …}, "policy": {…}, …}, log_dir="logs")

    learn ──▶ rollout_step × num_steps_per_env ──▶ alg.compute_returns ──▶ alg.update ──▶ evaluation ──▶ log ──▶ save

Checkpoints are single files that `torch.load` reads: `alg.state_dict()` with 'iter' and 'infos'. The runners of
`striderl.training` have the same methods, train with the algorithms of this library, and resume exactly.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.checkpoint.foreign import read_torch_archive, write_torch_archive
from striderl.compat import original_paths
from striderl.compat.st_rl import algorithms, build, relatives
from striderl.compat.st_rl.storage import follow_aliases
from striderl.data.naming import unknown
from striderl.datasets.playback.dataset import RolloutDataset
from striderl.training.experiment.runner_config import RunnerConfig
from striderl.training.rsl_rl.reporting import as_lines, make_writer, memory_tags, report_to_trial, store_code_state

__path__: list[str] = []  # the modules runners.… of st_rl and rsl_rl 1 are below, see compat/original_paths.py
__getattr__ = original_paths.further_names("striderl.compat.st_rl", "runners", original_paths.ST_RL_FURTHER["runners"])

ALGORITHMS: Mapping[str, Any] = {
    kind.__name__: kind
    for kind in (
        algorithms.PPO,
        relatives.TPPO,
        relatives.APPO,
        relatives.ATPPO,
        relatives.EstimatorPPO,
        relatives.EstimatorTPPO,
    )
}
"""Every algorithm that a config may name; a class may stand in the place of a name."""


class OnPolicyRunner:
    """Train an algorithm of st_rl in an env; see the top of this module."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        follow_aliases(cls, OnPolicyRunner)

    def __init__(
        self, env: Any, train_cfg: Any, log_dir: str | Path | None = None, device: torch.device | str = "cpu"
    ) -> None:
        """Take a config, which algorithm and policy are built from, or an algorithm; without log_dir write nothing."""
        self.env, self.device = env, torch.device(device)
        self.alg = train_cfg if isinstance(train_cfg, algorithms.PPO) else _algorithm(train_cfg, env, device)
        if self.alg.storage is None:
            raise ValueError("the algorithm has no storage: build it with (cfg, env), or call init_storage first")
        given = dict(train_cfg) if isinstance(train_cfg, Mapping) else {}
        self.cfg = {**given, **(given["runner"] if isinstance(given.get("runner"), Mapping) else {})}
        self.num_steps_per_env: int = self.alg.storage.num_transitions_per_env
        self.save_interval, self.log_interval = (
            int(self.cfg.get("save_interval", 50)),
            int(self.cfg.get("log_interval", 1)),
        )
        self.log_dir = None if log_dir is None else Path(log_dir)
        self.writer: Any = None
        self.git_status_repos: list[Path] = []
        self.current_learning_iteration, self.tot_timesteps, self.tot_time = 0, 0, 0.0
        self.metrics_velrmsd: float | None = None
        self.metrics_CoT: float | None = None

    # -- training ------------------------------------------------------------------------------------------------------

    def init_writer(self, init_at_random_ep_len: bool) -> None:
        """Make the writer of the log, and age the episodes at random where that is wanted."""
        if self.log_dir is not None and self.writer is None:
            self.log_dir.mkdir(parents=True, exist_ok=True)
            self.writer = make_writer(RunnerConfig(logger=str(self.cfg.get("logger", "tensorboard"))), self.log_dir)
        if init_at_random_ep_len:
            buffer, high = self.env.episode_length_buf, int(self.env.max_episode_length)
            self.env.episode_length_buf = torch.randint_like(buffer, high=high)

    init_writter = init_writer
    """The same, as st_rl spells it."""

    def learn(
        self, num_learning_iterations: int, init_at_random_ep_len: bool = False, trial: Any = None
    ) -> tuple[float | None, float | None]:
        """Train, and return (velocity RMSD, cost of transport) where the env measures them."""
        self.init_writer(init_at_random_ep_len)
        obs, critic_obs = self.first_observations()
        self.train_mode()
        rewbuffer: deque[float] = deque(maxlen=100)
        lenbuffer: deque[float] = deque(maxlen=100)
        ep_infos: list[Mapping[str, Any]] = []
        rframebuffer: deque[float] = deque(maxlen=2000)
        sums, lengths = (torch.zeros(self.env.num_envs, device=self.device) for _ in range(2))
        start_iter = self.current_learning_iteration
        tot_iter = start_iter + num_learning_iterations
        for it in range(start_iter, tot_iter):
            began = time.perf_counter()
            with torch.inference_mode(bool(self.cfg.get("inference_mode_rollout", True))):
                for _ in range(self.num_steps_per_env):
                    obs, critic_obs, rewards, dones, infos = self.rollout_step(obs, critic_obs)
                    ep_infos += [infos[key] for key in ("episode", "log") if infos.get(key)]
                    rframebuffer.append(float(rewards.mean()))
                    sums, lengths = sums + rewards, lengths + 1
                    ended = dones.bool()
                    rewbuffer.extend(sums[ended].tolist())
                    lenbuffer.extend(lengths[ended].tolist())
                    sums, lengths = torch.where(ended, 0.0, sums), torch.where(ended, 0.0, lengths)
            collected = time.perf_counter()
            self.alg.compute_returns(critic_obs)
            losses, stats = self.alg.update(it)
            self.current_learning_iteration = it + 1
            self.evaluation()
            seconds = time.perf_counter() - began
            self.tot_timesteps += self.num_steps_per_env * self.env.num_envs
            self.tot_time += seconds
            pruned = False
            if trial is not None:
                reward = sum(rewbuffer) / len(rewbuffer) if rewbuffer else None
                reported = reward if self.metrics_velrmsd is None else self.metrics_velrmsd
                pruned = report_to_trial(trial, reported, self.current_learning_iteration)
            if self.current_learning_iteration % self.log_interval == 0:
                counters = {"it": it, "start_iter": start_iter, "tot_iter": tot_iter}
                episodes = {"ep_infos": ep_infos, "rewbuffer": rewbuffer, "lenbuffer": lenbuffer}
                running = {"rframebuffer": rframebuffer, "cur_reward_sum": sums, "cur_episode_length": lengths}
                times = {"collection_time": collected - began, "learn_time": seconds - (collected - began)}
                self.log({"losses": losses, "stats": stats, **counters, **episodes, **running, **times})
            ep_infos = []
            if self.log_dir is not None and self.current_learning_iteration % self.save_interval == 0:
                self.save(self.log_dir / f"model_{self.current_learning_iteration}.pt")
            if self.log_dir is not None and it == start_iter:
                store_code_state(self.log_dir, self.git_status_repos)
            if pruned:
                break
        if self.log_dir is not None:
            self.save(self.log_dir / f"model_{self.current_learning_iteration}.pt")
        return self.metrics_velrmsd, self.metrics_CoT

    def first_observations(self) -> tuple[Tensor, Tensor]:
        """Return the present observations of actor and critic, normalised."""
        obs, critic_obs = build.observations_of(self.env)
        return self._normalised(obs, obs if critic_obs is None else critic_obs)

    def rollout_step(self, obs: Tensor, critic_obs: Tensor, **kwargs: Any) -> tuple[Any, Any, Tensor, Tensor, Any]:
        """Act, step the env, and store the step: (obs, critic_obs, rewards, dones, infos)."""
        actions = self.alg.act(obs, critic_obs)
        stepped = self.env.step(actions.clone().to(getattr(self.env, "device", self.device)))
        if len(stepped) == 5:
            next_obs, next_critic, rewards, dones, infos = stepped
        else:
            next_obs, rewards, dones, infos = stepped
            next_obs, next_critic = build.actor_and_critic(next_obs, infos)
        rewards, dones = (torch.as_tensor(each).to(self.device) for each in (rewards, dones))
        next_obs, next_critic = self._normalised(next_obs, next_obs if next_critic is None else next_critic)
        self.alg.process_env_step(rewards, dones, infos)
        return next_obs, next_critic, rewards.reshape(-1).float(), dones.reshape(-1), infos

    def _normalised(self, obs: Tensor, critic_obs: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.alg.obs_normalizer(obs.to(self.device))
        return seen, self.alg.critic_obs_normalizer(critic_obs.to(self.device))

    def evaluation(self) -> None:
        """Read the env's `tracking_error` and `CoT`, where it has them."""
        error, cost = (getattr(self.env, name, None) for name in ("tracking_error", "CoT"))
        self.metrics_velrmsd = None if error is None else float(torch.as_tensor(error).float().square().mean().sqrt())
        self.metrics_CoT = None if cost is None else float(torch.as_tensor(cost).float().mean())

    def log(self, locs: Mapping[str, Any], width: int = 80, pad: int = 35) -> None:
        """Write losses, stats, rewards, speeds, memory and metrics to the writer, and print them.

        locs: what `learn` has at hand: 'losses', 'stats', 'ep_infos', 'rewbuffer', 'lenbuffer', 'it', 'tot_iter', …
        """
        tags = {f"Loss/{name}": float(value) for name, value in locs["losses"].items()}
        tags |= {f"Train/{name}": float(value) for name, value in locs["stats"].items()}
        for name, value in _means(locs["ep_infos"]).items():
            tags[name if "/" in name else f"Episode/{name}"] = value
        tags["Loss/learning_rate"] = float(self.alg.learning_rate)
        tags["Policy/mean_noise_std"] = float(self.alg.actor_critic.action_std.detach().mean())
        tags |= {f"Perf/{name}": float(locs[name]) for name in ("collection_time", "learn_time")}
        steps = self.num_steps_per_env * self.env.num_envs
        tags["Perf/total_fps"] = steps / max(tags["Perf/collection_time"] + tags["Perf/learn_time"], 1e-9)
        tags |= memory_tags(self.device)
        for name, values in (("mean_reward", locs["rewbuffer"]), ("mean_episode_length", locs["lenbuffer"])):
            if values:
                tags[f"Train/{name}"] = sum(values) / len(values)
        measured = {"velrmsd": self.metrics_velrmsd, "CoT": self.metrics_CoT}
        tags |= {f"Metrics/{name}": value for name, value in measured.items() if value is not None}
        self.logged = tags
        if self.writer is not None:
            self.writer.log(self.current_learning_iteration, tags)
        done = self.current_learning_iteration
        title = f" Learning iteration {done}/{locs.get('tot_iter', done)} "
        sys.stdout.write(as_lines(title, tags, width, pad) + "\n")
        sys.stdout.flush()

    def add_git_repo_to_log(self, repo_file_path: str | Path) -> None:
        """Store the state of the repository of a file with the run, when `learn` begins."""
        self.git_status_repos.append(Path(repo_file_path))

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, infos: Any = None) -> None:
        """Write one file: the algorithm's state, 'iter' and 'infos'; it replaces a checkpoint, and nothing else."""
        state = {**self.alg.state_dict(), "iter": self.current_learning_iteration, "infos": infos}
        write_torch_archive(path, state)

    def load(
        self,
        path: str | Path,
        load_optimizer: bool = True,
        map_location: Any = None,
        manipulator: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] | None = None,
    ) -> Any:
        """Load a file and return its infos; `manipulator(source, own)` may choose what is loaded."""
        state: Mapping[str, Any] = read_torch_archive(path)
        if manipulator is not None:
            state = {**state, **manipulator(state, self.alg.state_dict())}
        parts = {name: value for name, value in state.items() if load_optimizer or not name.startswith("optimizer")}
        self.alg.load_state_dict(parts)
        self.current_learning_iteration = int(state.get("iter", 0))
        return state.get("infos")

    def get_inference_policy(self, device: torch.device | str | None = None) -> Callable[[Tensor], Tensor]:
        """Return observations → deterministic actions, with the normaliser; sets everything to evaluation."""
        self.eval_mode()
        if device is not None:
            self.alg.actor_critic.to(device)
            self.alg.obs_normalizer.to(device)

        @torch.no_grad()
        def policy(obs: Tensor) -> Tensor:
            return self.alg.actor_critic.act_inference(self.alg.obs_normalizer(obs))

        return policy

    def train_mode(self) -> None:
        """Set model and normalisers to training."""
        self.alg.train_mode()

    def eval_mode(self) -> None:
        """Set model and normalisers to evaluation."""
        self.alg.eval_mode()


class AmpPolicyRunner(OnPolicyRunner):
    """The runner of adversarial motion priors: the same loop, with an APPO or an ATPPO."""


class TwoStageRunner(OnPolicyRunner):
    """Learn recorded actions first, then in the env; wants a TPPO, whose labels they are."""

    def __init__(
        self, env: Any, train_cfg: Any, log_dir: str | Path | None = None, device: torch.device | str = "cpu"
    ) -> None:
        """Read 'pretrain_iterations' (negative: for ever) and 'pretrain_dataset' of the config."""
        super().__init__(env, train_cfg, log_dir, device)
        if "pretrain_dataset" not in self.cfg:
            raise ValueError("TwoStageRunner wants 'pretrain_dataset' in its config: the arguments of a RolloutDataset")
        if not isinstance(self.alg, relatives.TPPO):
            raise TypeError(f"recorded actions are labels, which a TPPO learns; found {type(self.alg).__name__}")
        self.teacher_alg = self.alg
        self.pretrain_iterations = int(self.cfg.get("pretrain_iterations", -1))
        settings = {"device": self.device, **self.cfg["pretrain_dataset"]}
        self.rollout_dataset = RolloutDataset(num_envs=self.env.num_envs, **settings)
        self._pretrained = False

    @property
    def pretraining(self) -> bool:
        """Whether steps come from the recordings."""
        return self.pretrain_iterations < 0 or self.current_learning_iteration < self.pretrain_iterations

    def rollout_step(self, obs: Tensor, critic_obs: Tensor, **kwargs: Any) -> tuple[Any, Any, Tensor, Tensor, Any]:
        """Store a recorded step, or one of the env afterwards; the change begins with the env's own observation."""
        if self.pretraining:
            self._pretrained = True
            transition, infos = self.rollout_dataset.get_transition_batch()
            self.teacher_alg.collect_transition_from_dataset(transition, infos)
            following, privileged = build.flat(transition.next_observation), transition.next_privileged_observation
            rewards, dones = transition.reward.reshape(-1), transition.done.reshape(-1)
            return following, following if privileged is None else build.flat(privileged), rewards, dones, infos
        if self._pretrained:
            self._pretrained = False
            self.alg.actor_critic.reset()
            obs, critic_obs = self.first_observations()
        return super().rollout_step(obs, critic_obs, **kwargs)


def _algorithm(train_cfg: Any, env: Any, device: torch.device | str) -> algorithms.PPO:
    if not isinstance(train_cfg, Mapping):
        raise TypeError(f"train_cfg is a dict of settings or an algorithm of st_rl, found {type(train_cfg).__name__}")
    runner = train_cfg.get("runner") if isinstance(train_cfg.get("runner"), Mapping) else {}
    name = dict(train_cfg.get("algorithm", {})).get("class_name") or dict(runner or {}).get(
        "algorithm_class_name", "PPO"
    )
    if not isinstance(name, type) and name not in ALGORITHMS:
        raise ValueError(unknown("algorithm", str(name), ALGORITHMS, where="striderl.compat.st_rl"))
    kind = name if isinstance(name, type) else ALGORITHMS[name]
    found: algorithms.PPO = kind({**train_cfg, "device": str(device)}, env)
    return found


def _means(ep_infos: list[Mapping[str, Any]]) -> dict[str, float]:
    """Reduce what envs logged: the largest of names with '_max', the smallest of those with '_min', else the mean."""
    found: dict[str, float] = {}
    for name in dict.fromkeys(key for info in ep_infos for key in info):
        parts = [torch.as_tensor(info[name]).float().reshape(-1).cpu() for info in ep_infos if name in info]
        values = torch.cat(parts)
        reduce = torch.max if "_max" in name else torch.min if "_min" in name else torch.nanmean
        found[name.removeprefix("Episode/")] = float(reduce(values))
    return found
