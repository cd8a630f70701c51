"""`OnPolicyRunner` of rsl_rl 5: its loop around any algorithm that `construct_algorithm` builds.

    runner = OnPolicyRunner(env, {"algorithm": {"class_name": "my.package:MyPPO", …}, "actor": {…}, …}, "logs/run")
    runner.learn(1500)

    learn ─▶ (alg.act ─▶ env.step ─▶ alg.process_env_step) × num_steps_per_env ─▶ alg.compute_returns
          ─▶ alg.update ─▶ logger.log ─▶ save                                        a subclass may override each

Iterations are counted as in rsl_rl: the first one is 0, `current_learning_iteration` is the last that was finished.

A config of rsl_rl 1 to 4 makes the runner of the same name in `striderl.training`, which takes configs and envs of all
generations.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.checkpoint.foreign import read_torch_archive, write_torch_archive
from striderl.checkpoint.safe_files import check_plain, replacing_path
from striderl.compat.rsl_rl.utils.logger import Logger
from striderl.compat.rsl_rl.utils.utils import check_nan, resolve_callable
from striderl.data import tree
from striderl.training.distributed import join_ranks
from striderl.training.rsl_rl.distillation import DistillationRunner as EarlierDistillationRunner
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner as EarlierOnPolicyRunner


class OnPolicyRunner:
    """Train an algorithm in an env; see the top of this module."""

    alg: Any
    """The algorithm."""

    def __new__(cls, env: Any, train_cfg: Any, *args: Any, **kwargs: Any) -> Any:
        """Make the runner of `striderl.training` for a config of an earlier generation."""
        earlier = {OnPolicyRunner: EarlierOnPolicyRunner, DistillationRunner: EarlierDistillationRunner}.get(cls)
        if earlier is not None and _is_of_earlier_generation(train_cfg):
            return earlier(env, train_cfg, *args, **kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        env: Any,
        train_cfg: dict[str, Any],
        log_dir: str | Path | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Build the algorithm that `train_cfg["algorithm"]["class_name"]` names, and the log."""
        if _is_of_earlier_generation(train_cfg):
            raise KeyError(
                "train_cfg is one of rsl_rl 1 to 4: it has 'policy', or models that are 'stochastic'; derive "
                f"{type(self).__name__} from striderl.training.OnPolicyRunner, which takes configs of all generations, "
                "or from striderl.compat.st_rl.OnPolicyRunner, whose every method may be overridden"
            )
        self.env, self.cfg, self.device = env, train_cfg, device
        self._configure_multi_gpu()
        algorithm = resolve_callable(self.cfg["algorithm"]["class_name"])
        construct = getattr(algorithm, "construct_algorithm", None)
        if construct is None:
            raise TypeError(f"algorithm {algorithm!r} has no construct_algorithm(obs, env, cfg, device)")
        self.alg = construct(env.get_observations(), env, self.cfg, device)
        self.logger = Logger(
            log_dir=log_dir,
            cfg=self.cfg,
            env_cfg=getattr(env, "cfg", None),
            num_envs=env.num_envs,
            is_distributed=self.is_distributed,
            gpu_world_size=self.gpu_world_size,
            gpu_global_rank=self.gpu_global_rank,
            device=device,
        )
        self.current_learning_iteration = 0

    def learn(self, num_learning_iterations: int, init_at_random_ep_len: bool = False) -> None:
        """Train; with a log_dir, write metrics and checkpoints.

        init_at_random_ep_len: begin with episodes of different ages, so that time-outs do not come all at once.
        """
        if init_at_random_ep_len:
            ages, longest = self.env.episode_length_buf, int(torch.as_tensor(self.env.max_episode_length).max())
            self.env.episode_length_buf = torch.randint_like(ages, high=longest)
        obs = self.env.get_observations().to(self.device)
        self.alg.train_mode()
        if self.is_distributed:
            self.alg.broadcast_parameters()
        self.logger.init_logging_writer()
        first = self.current_learning_iteration
        last = first + num_learning_iterations
        for iteration in range(first, last):
            began = time.perf_counter()
            with torch.inference_mode():
                for _ in range(self.cfg["num_steps_per_env"]):
                    obs = self._step(obs)
                collected = time.perf_counter()
                self.alg.compute_returns(obs)
            losses = self.alg.update()
            self.current_learning_iteration = iteration
            self.logger.log(
                it=iteration,
                start_it=first,
                total_it=last,
                collect_time=collected - began,
                learn_time=time.perf_counter() - collected,
                loss_dict=losses,
                learning_rate=self.alg.learning_rate,
                action_std=self._action_std(),
                rnd_weight=self.alg.rnd.weight if self.logger.has_rnd else None,
            )
            if self.logger.writer is not None and iteration % self.cfg["save_interval"] == 0:
                self.save(self._checkpoint(iteration))
        if self.logger.writer is not None:
            self.save(self._checkpoint(self.current_learning_iteration))
            self.logger.stop_logging_writer()

    def _step(self, obs: Any) -> Any:
        """Step all envs once, and return what is seen then."""
        obs, rewards, dones, extras = self.env.step(self.alg.act(obs).to(self.env.device))
        if self.cfg.get("check_for_nan", True):
            check_nan(obs, rewards, dones)
        obs, rewards, dones = (each.to(self.device) for each in (obs, rewards, dones))
        self.alg.process_env_step(obs, rewards, dones, extras)
        novelty = self.alg.intrinsic_rewards if self.logger.has_rnd else None
        self.logger.process_env_step(rewards, dones, extras, novelty)
        return obs

    def _action_std(self) -> Tensor:
        """Return the standard deviation of the last actions; zero of a student without one."""
        policy = self.alg.get_policy()
        if getattr(policy, "distribution", policy) is None:
            return torch.zeros(1)
        return policy.output_std  # type: ignore[no-any-return]

    def _checkpoint(self, iteration: int) -> str:
        return str(Path(self.logger.log_dir or "") / f"model_{iteration}.pt")

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, infos: Any = None) -> None:
        """Write one file: the algorithm's state, 'iter' and 'infos'; it replaces a checkpoint, and nothing else."""
        state = {**self.alg.save(), "iter": self.current_learning_iteration, "infos": infos}
        write_torch_archive(path, state)
        self.logger.save_model(path, self.current_learning_iteration)

    def load(
        self,
        path: str | Path,
        load_cfg: Mapping[str, bool] | None = None,
        strict: bool = True,
        map_location: Any = None,
    ) -> Any:
        """Load a file of rsl_rl or of `save`, and return its infos; nothing in it is run.

        load_cfg: which parts: 'actor', 'critic', 'optimizer', 'rnd', 'iteration'; of a distillation 'student' and
            'teacher'. All without it.
        """
        state = read_torch_archive(path)
        if map_location is not None:
            state = tree.map(lambda leaf: leaf.to(map_location) if isinstance(leaf, Tensor) else leaf, state)
        if self.alg.load(state, load_cfg, strict):
            self.current_learning_iteration = int(state["iter"])
        return state.get("infos")

    def get_inference_policy(self, device: torch.device | str | None = None) -> Any:
        """Return the policy in evaluation mode, on a device."""
        self.alg.eval_mode()
        return self.alg.get_policy().to(device)

    def export_policy_to_jit(self, path: str | Path, filename: str = "policy.pt") -> None:
        """Write the policy as a TorchScript file into a folder."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        program = torch.jit.script(self.alg.get_policy().as_jit().to("cpu"))
        with replacing_path(folder / filename) as place:
            program.save(str(place))

    def export_policy_to_onnx(self, path: str | Path, filename: str = "policy.onnx", verbose: bool = False) -> None:
        """Write the policy as an ONNX file into a folder."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        check_plain(folder / filename)  # the exporter would write through a link
        model = self.alg.get_policy().as_onnx(verbose=verbose).to("cpu").eval()
        torch.onnx.export(
            model,
            model.get_dummy_inputs(),
            str(folder / filename),
            export_params=True,
            opset_version=18,
            verbose=verbose,
            input_names=model.input_names,
            output_names=model.output_names,
        )

    def add_git_repo_to_log(self, repo_file_path: str | Path) -> None:
        """Store the state of the repository of a file with the run, when `learn` begins."""
        self.logger.git_status_repos.append(str(repo_file_path))

    def _configure_multi_gpu(self) -> None:
        """Join the processes that torchrun started, and note them in the config."""
        ranks = join_ranks(torch.device(self.device))
        self.gpu_world_size, self.gpu_global_rank = ranks.world_size, ranks.rank
        self.is_distributed = ranks.world_size > 1
        several = {"global_rank": ranks.rank, "local_rank": ranks.rank, "world_size": ranks.world_size}
        self.cfg["multi_gpu"] = several if self.is_distributed else None


def _is_of_earlier_generation(train_cfg: Mapping[str, Any]) -> bool:
    """Return whether a config has one 'policy' (rsl_rl 1 to 3), or models that are 'stochastic' (rsl_rl 4)."""
    models = [train_cfg.get(name, {}) for name in ("actor", "student")]
    return any("stochastic" in each for each in models) or ("policy" in train_cfg and not any(models))


class DistillationRunner(OnPolicyRunner):
    """Train a student; the teacher's weights must be loaded first."""

    def learn(self, num_learning_iterations: int, init_at_random_ep_len: bool = False) -> None:
        """Train, after `load` gave the teacher."""
        if not self.alg.teacher_loaded:
            raise ValueError("the teacher has no weights yet: runner.load(path of its checkpoint) before learn()")
        super().learn(num_learning_iterations, init_at_random_ep_len)
