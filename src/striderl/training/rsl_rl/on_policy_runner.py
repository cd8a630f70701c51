"""`OnPolicyRunner`: train a policy from an env and one config, with the interface of rsl_rl and st_rl.

    runner = OnPolicyRunner(env, train_cfg, log_dir="logs/walk", device="cuda:0")
    velrmsd, CoT = runner.learn(1500, init_at_random_ep_len=True)
    policy = runner.get_inference_policy()

    learn ──▶ next(trainer) ──▶ evaluation ──▶ trial ──▶ log ──▶ save          once per iteration

`runner.trainer` is the trainer itself: `for record in runner.trainer` is the same training without logs and files.
`AmpPolicyRunner` is the same for adversarial motion priors: train_cfg["algorithm"] is an 'APPO' or an 'ATPPO', and
`runner.metrics_velrmsd` and `runner.metrics_CoT` keep the metrics. Under torchrun each process is one rank.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.terms.motion_prior import MotionPrior
from striderl.data.checked_fields import refuse_overrides
from striderl.envs.vec_env import VecEnv
from striderl.envs.wrap_env import wrap_env
from striderl.policies.facade.inputs import Observations
from striderl.policies.run_reader import WEIGHTS
from striderl.training.callbacks.callback import Callback
from striderl.training.checks import require_device
from striderl.training.distributed import join_ranks
from striderl.training.experiment.assembly import build_learner, plan_switch
from striderl.training.experiment.log_dir import plain_settings, write_log_dir
from striderl.training.experiment.run_lock import FolderLock
from striderl.training.experiment.runner_checkpoints import (
    PARTS,
    Manipulator,
    Wanted,
    check_weights,
    checkpoint_path,
    is_foreign,
    load_foreign,
    load_some,
    load_state,
    load_weights,
    resolve_manipulator,
    save_file,
    save_state,
    wanted_parts,
    weights_in,
)
from striderl.training.experiment.runner_config import RunnerConfig
from striderl.training.loops.on_policy import OnPolicyLoop
from striderl.training.record import Record
from striderl.training.rsl_rl.client_algorithm import ClientAlgorithm
from striderl.training.rsl_rl.client_files import (
    export_beside,
    restore_env_state,
    robot_facts,
    with_env_state,
    write_jit,
    write_onnx,
)
from striderl.training.rsl_rl.config_generations import as_dict, read_train_config
from striderl.training.rsl_rl.live_objects import motion_info
from striderl.training.rsl_rl.reporting import (
    METRICS,
    LearnProgress,
    Metric,
    RunnerLogger,
    as_block,
    make_table,
    memory_tags,
    report_to_trial,
    store_code_state,
    tags_of,
    tags_over_time,
)
from striderl.training.rsl_rl.stepping import InferencePolicy, ManualRollout, Stepped, age_episodes
from striderl.training.rsl_rl.translate import Translation, component_order, translate
from striderl.training.trainer import Trainer

_log = logging.getLogger(__name__)

_BY_HAND = "learn() steps runner.trainer; override learn as well, add a term to the algorithm, or wrap the env"
REFUSED: Mapping[str, str] = dict.fromkeys(("rollout_step", "learn_from_rollout"), _BY_HAND)
"""Methods a subclass may not override unless it overrides `learn`, with the reason and the alternative."""


class OnPolicyRunner:
    """Train with PPO; see the top of this module."""

    learns_from_recordings: bool = False
    """Whether there is a stage before the env; without one its settings raise."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = OnPolicyRunner.init_writer
        aliases = [name for name, each in vars(OnPolicyRunner).items() if each is own and name != own.__name__]
        refuse_overrides(cls, dict.fromkeys(aliases, "learn() calls init_writer; override that"))
        refuse_overrides(cls, {} if "learn" in vars(cls) else REFUSED)

    def __init__(
        self,
        env: Any,
        train_cfg: Any,
        log_dir: str | Path | None = None,
        device: torch.device | str = "cpu",
        registry_name: str | None = None,
    ) -> None:
        """Build everything from the config; parts that do not fit together raise here, before anything runs.

        env: a VecEnv, a Gymnasium vector env, or an env of any rsl_rl generation.
        train_cfg: a RunnerConfig, or a dict of any rsl_rl generation; see `config_generations.py`.
        log_dir: where metrics and checkpoints are written; without one nothing is written.
        registry_name: an artifact of the tracker that the run uses, such as a motion.
        """
        self._train_cfg = train_cfg
        self.config = config = self._read_config(train_cfg)
        if config.runner_class_name not in (type(self).__name__, OnPolicyRunner.__name__):
            _log.warning(
                "train_cfg names the runner %s, this is %s: build_runner(name, …) builds the one that is named",
                config.runner_class_name,
                type(self).__name__,
            )
        if config.pretrain is not None and not self.learns_from_recordings:
            raise ValueError(
                f"train_cfg has settings of pretraining, which {type(self).__name__} does not do; use TwoStageRunner"
            )
        self.cfg = train_cfg if isinstance(train_cfg, Mapping) else as_dict(train_cfg)
        require_device(str(device))
        self.env, self.device = env, torch.device(device)
        self.log_dir = None if log_dir is None else Path(log_dir)
        self.ranks = ranks = join_ranks(self.device)
        self.is_distributed = ranks.world_size > 1
        self.gpu_world_size, self.gpu_global_rank = ranks.world_size, ranks.rank
        first = ranks.rank * int(getattr(env, "num_envs", 0))
        self.vec_env = wrap_env(env, device=self.device, info=motion_info(config), first_env_index=first)
        self.seed = int(torch.randint(2**31, ())) if config.seed is None else config.seed
        self.trainer: Trainer
        """Trains; the same as `for record in runner.trainer`, without logs and files."""
        self.alg: ClientAlgorithm
        """The algorithm with rsl_rl's interface; `alg.learner`, and what else it has, is this library's."""
        parts = self._translated()
        self.run_config = parts.config
        """The same settings as those of any other run; they are in the log_dir's config.json."""
        self._learn_with(parts, self.vec_env)
        self.metric_hooks: dict[str, Metric] = dict(METRICS)
        """What `evaluation` measures, by name; entries may be added."""
        self.metrics: dict[str, float | None] = {}
        """The last measured metrics; None where the env does not measure them."""
        self.should_stop: Callable[[], bool] = lambda: False
        """Called after every iteration; when it returns True, `learn` saves and returns."""
        self.logger = RunnerLogger(config, self.log_dir if ranks.is_main else None)
        self.writer = self.logger.writer
        self._registry_name = registry_name
        self._table = make_table(self.log_dir if ranks.is_main else None)
        self.writes = ranks.is_main and self.log_dir is not None
        self._lock: FolderLock | None = None
        self._repositories: list[Path] = []
        self._seconds = 0.0
        if config.ignored:
            _log.info("settings that a runner does not use: %s", ", ".join(config.ignored))

    def _read_config(self, train_cfg: Any) -> RunnerConfig:
        """Read the config; a runner of another kind has its own."""
        return read_train_config(train_cfg)

    def _translated(self) -> Translation:
        """Return the config as a run's, with live objects; a runner of another kind has its own."""
        return translate(self.config, self.vec_env, self.env, self.seed, self.device)

    def _client_algorithm(self, learner: Any) -> ClientAlgorithm:
        """Return a learner with rsl_rl's interface."""
        return ClientAlgorithm(learner, component_order(self.config, self.vec_env))

    def _learn_with(self, parts: Translation, env: VecEnv, callbacks: Sequence[Callback] = ()) -> None:
        """Build learner, collector and trainer around an env, as for any other run."""
        learner = build_learner(parts.config, env, self.ranks, parts.objects)
        self.ranks.share(learner.algorithm)
        self.trainer = learner.trainer(callbacks)
        # on the CPU `learn` decides: a process that compiles costs more than a few steps by hand would gain
        self._plan_switch(self.config.max_iterations if self.device.type == "cuda" else 0)
        self.alg = self._client_algorithm(learner.algorithm)
        assert isinstance(self.trainer.loop, OnPolicyLoop)
        self.storage = self.trainer.loop.storage
        self._manual = ManualRollout(self.trainer, self.storage)

    def _plan_switch(self, num_iterations: int) -> None:
        """Decide when compiled programs take over, of so many further iterations."""
        trainer, plan = self.trainer, self.run_config.plan
        sizes = (self.vec_env.num_envs, trainer.algorithm, num_iterations, self.device, self.ranks.world_size)
        plan_switch(trainer.switch, plan, *sizes, first=trainer.iteration)

    # -- training ------------------------------------------------------------------------------------------------------

    def learn(
        self, num_learning_iterations: int | None = None, init_at_random_ep_len: bool = False, trial: Any = None
    ) -> tuple[float | None, float | None]:
        """Train, and return (velocity RMSD, cost of transport); each is None where the env does not measure it.

        DivergedError where no sample of these iterations was valid; the last checkpoint is written before.

        init_at_random_ep_len: begin with episodes of different ages, so that time-outs do not come all at once.
        trial: an Optuna trial, to which the velocity RMSD, or without one the mean reward, is reported each iteration.
        """
        count = self.config.max_iterations if num_learning_iterations is None else num_learning_iterations
        if type(count) is not int or count < 0:
            raise ValueError(f"num_learning_iterations is a whole number of at least 0, found {count!r}")
        with self._locked_log_dir():
            self.train_mode()
            self.init_writer(init_at_random_ep_len)
            if self.device.type == "cpu":
                self._plan_switch(count)
            first, before = self.trainer.iteration, self._seconds
            for left in reversed(range(count)):
                record = next(self.trainer)
                self._seconds += record.collection_seconds + record.learning_seconds
                self.evaluation()
                if record.iteration % self.config.log_interval == 0 or not left:
                    at = LearnProgress(record.iteration - 1, first, first + count, self._seconds - before)
                    self.log({"record": record, "progress": at})
                pruned = trial is not None and report_to_trial(trial, self._objective(record), record.iteration)
                ends = pruned or not left or self.should_stop()
                if self.writes and self._is_save_due(record.iteration, last=ends):
                    self.save(checkpoint_path(self.log_dir or "", record.iteration))
                if ends:
                    break
            self.trainer.loop.guard.check_piece(self.trainer.iteration - first)
        return self.metrics_velrmsd, self.metrics_CoT

    def init_writer(self, init_at_random_ep_len: bool = False) -> None:
        """Make the folder of the run, and age the episodes where that is wanted; `learn` begins with it.

        The writer itself is made with the runner. Call this first when stepping by hand with `rollout_step`.
        """
        if init_at_random_ep_len:
            age_episodes(self.trainer, self.seed)
        if self.writes and self.log_dir is not None:
            # a folder that cannot be made is better found now than after the first hours
            self.log_dir.mkdir(parents=True, exist_ok=True)
            self._describe_run(self.log_dir)
            for path in store_code_state(self.log_dir, self._repositories):
                self.logger.save_model(path, self.trainer.iteration)
            self.writer.config({"runner_cfg": plain_settings(self.cfg)})

    init_writter = init_writer
    """The same, as st_rl spells it."""

    def rollout_step(self, obs: Observations | None = None, critic_obs: Observations | None = None, /) -> Stepped:
        """Step all envs once into the storage: (obs, critic_obs, rewards, dones, infos).

        When it is full, `learn_from_rollout` is the other half of an iteration; `learn` does both by itself.
        """
        return self._manual.step(obs, critic_obs)

    def learn_from_rollout(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Learn from what `rollout_step` collected and return (losses, stats)."""
        return self._manual.learn()

    def evaluation(self) -> dict[str, float | None]:
        """Read the env's metrics and keep them in `metrics`."""
        self.metrics = {name: hook(self.vec_env) for name, hook in self.metric_hooks.items()}
        return self.metrics

    @property
    def metrics_velrmsd(self) -> float | None:
        """The velocity error at the last `evaluation`, m/s; None where the env does not measure it."""
        return self.metrics.get("velrmsd")

    @property
    def metrics_CoT(self) -> float | None:  # noqa: N802  (the name is public API of the seeds)
        """The cost of transport at the last `evaluation`; None where the env does not measure it."""
        return self.metrics.get("CoT")

    @property
    def current_learning_iteration(self) -> int:
        """How many iterations are finished."""
        return self.trainer.iteration

    @current_learning_iteration.setter
    def current_learning_iteration(self, value: int) -> None:
        self.trainer.iteration = int(value)

    def train_mode(self) -> None:
        """Set all modules to train mode."""
        self.alg.policy.train()

    def eval_mode(self) -> None:
        """Set all modules to eval mode."""
        self.alg.policy.eval()

    @property
    def tot_timesteps(self) -> int:
        """How many steps the envs have made, over all envs."""
        return self.trainer.env_steps

    @property
    def tot_time(self) -> float:
        """How long collecting and learning have taken, s."""
        return self._seconds

    def close(self) -> None:
        """Finish the log and close the envs; calling it twice is fine."""
        self.writer.close()
        self._table.close()
        self.trainer.close()

    # -- the log -------------------------------------------------------------------------------------------------------

    def log(self, locs: Mapping[str, Any], width: int = 80, pad: int = 40) -> None:
        """Write the metrics of `locs["record"]`, or of the last iteration, and print them as rsl_rl does.

        Without a log_dir they go to the logging module.
        """
        record = locs.get("record", self.trainer.record)
        if record is None:
            raise ValueError("there is nothing to log before the first iteration")
        measured = {f"Metrics/{name}": value for name, value in self.metrics.items() if value is not None}
        tags = {**tags_of(record), **memory_tags(self.device), **measured}
        self.writer.log(record.iteration, tags)
        self._table.log(record.env_steps, record.metrics)
        if self.config.logger == "tensorboard":
            self.writer.log(int(self._seconds), tags_over_time(tags))
        now = record.iteration - 1
        at = locs.get("progress", LearnProgress(now, now, now + 1, self._seconds))
        block = as_block(record, tags, at, width=width, pad=pad, name=self.config.run_name)
        if self.writes:
            sys.stdout.write(f"{block}\n")
            sys.stdout.flush()
        elif self.ranks.is_main:
            _log.info("%s", block)

    def add_git_repo_to_log(self, repo_file_path: str | Path) -> None:
        """Store the state of the git repository that this file is in with the run, when `learn` begins."""
        self._repositories.append(Path(repo_file_path))

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, infos: Any = None) -> None:
        """Save everything that another runner needs to resume exactly; `infos` is plain data that `load` returns.

        A name that ends in .pt is one file, which rsl_rl's loaders read as well; any other is a directory.
        """
        infos = with_env_state(self.env, infos)
        state = self.checkpoint(infos)
        if Path(path).suffix != ".pt":
            save_state(path, state, iteration=self.current_learning_iteration)
            return
        models = self.alg.save(state["trainer"]["algorithm"])
        number = max(0, self.current_learning_iteration - 1)
        save_file(path, {**models, "iter": number, "infos": infos}, state)
        self.logger.save_model(path, number)
        if self._registry_name is not None:
            self.writer.artifact(self._registry_name)
            self._registry_name = None
        if self.log_dir is not None and Path(path).resolve().parent == self.log_dir.resolve():
            exported = export_beside(self.alg.get_policy(), self.env, Path(path), self.config.run_name or "local")
            if exported is not None:
                self.logger.save_model(exported, number)

    def export_policy_to_jit(self, path: str | Path, filename: str = "policy.pt") -> None:
        """Write the deterministic policy as a TorchScript program, path/filename."""
        write_jit(self.alg.get_policy(), Path(path) / filename)

    def export_policy_to_onnx(self, path: str | Path, filename: str = "policy.onnx", verbose: bool = False) -> None:
        """Write the deterministic policy as an ONNX file, path/filename, with the facts of the robot that are known."""
        facts = robot_facts(self.env, self.config.run_name or "local")
        write_onnx(self.alg.get_policy(), Path(path) / filename, facts or {}, verbose=verbose)

    def checkpoint(self, infos: Any = None) -> dict[str, Any]:
        """Return the state of the whole training."""
        return {
            "trainer": self.trainer.state_dict(),
            WEIGHTS: dict(self.alg.policy.state_dict()),
            "iter": self.current_learning_iteration,
            "infos": infos,
            "seconds": self._seconds,
        }

    def load(
        self,
        path: str | Path,
        load_optimizer: bool | Mapping[str, bool] = True,
        map_location: Any = None,
        manipulator: Manipulator | str | None = None,
        *,
        load_cfg: Mapping[str, bool] | None = None,
        strict: bool = True,
    ) -> Any:
        """Load a checkpoint and return its infos.

        load_optimizer: without it, weights, terms and the iteration are taken, and the optimiser stays fresh.
        manipulator: a function of (source checkpoint, own checkpoint), or a name, that chooses the weights to load;
            'ckpt_manipulator' in the config is the default. The result is saved again where there is a log_dir.
        path: a checkpoint of ours, or a '.pt' file of any rsl_rl generation, of which weights, normalisers and the
            iteration are taken, of generations 4 and 5 the optimiser as well.
        load_cfg: rsl_rl 5's way to choose: {"actor": True, "critic": False, "optimizer": …, "iteration": …, "rnd": …}.
        strict: whether weights that do not fit are an error; otherwise they are left out.
        """
        state = load_state(path, map_location)
        wanted = wanted_parts(load_optimizer, load_cfg)
        change = resolve_manipulator(manipulator or self.config.ckpt_manipulator)
        if change is not None:
            self._load_changed(change, state, strict=strict)
        elif set(state) & {"actor_state_dict", "student_state_dict"} and self.alg.layout is not None:
            self._load_models(state, load_cfg, wanted, strict=strict)
        elif is_foreign(state, self.alg.policy):
            load_foreign(self.trainer, path, wanted)
        elif wanted.everything and strict and "trainer" in state:
            check_weights(self.alg.policy, weights_in(state))
            self.trainer.load_state_dict(state["trainer"])
            self.seed, self._seconds = self.trainer.seed, float(state["seconds"])
            self.writer.resume_at(self.current_learning_iteration)
            self._table.resume_at(self.trainer.env_steps)
        else:
            load_some(self.trainer, state, wanted, strict=strict)
        infos = state.get("infos")
        restore_env_state(self.env, infos)
        return infos

    def get_inference_policy(self, device: torch.device | str | None = None) -> InferencePolicy:
        """Return the deterministic policy, on another device as a copy; sets the runner to `eval_mode`."""
        self.eval_mode()
        return InferencePolicy(self.alg.get_policy().to(device).policy)

    # -- inside --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _locked_log_dir(self) -> Iterator[None]:
        """Lock the log_dir while this training writes to it."""
        if not self.writes or self.log_dir is None or self._lock is not None:
            yield
            return
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(self.log_dir)
        try:
            yield
        finally:
            self._lock.release()
            self._lock = None

    def _describe_run(self, log_dir: Path) -> None:
        """Write what `striderl evaluate`, `play`, `export` and `resume` read of the log_dir besides its checkpoints."""
        given = self._train_cfg
        write_log_dir(
            log_dir,
            self.run_config,
            self.vec_env,
            runner=type(self).__name__,
            train_cfg=given if isinstance(given, RunnerConfig) else as_dict(given),
        )

    def _load_models(self, state: Mapping[str, Any], load_cfg: Any, wanted: Wanted, *, strict: bool) -> None:
        """Load a file of rsl_rl 4 or 5, or of 'striderl.rsl_rl:PPO'."""
        chosen = load_cfg
        if load_cfg is None and not wanted.everything:
            chosen = {name: getattr(wanted, name) for name in PARTS}  # its fields
        if self.alg.load(state, chosen, strict):
            self.trainer.iteration = int(state.get("striderl", {}).get("iteration", state.get("iter", 0)))

    def _load_changed(self, change: Manipulator, state: Mapping[str, Any], *, strict: bool) -> None:
        source = {WEIGHTS: weights_in(state), "iter": state.get("iter", 0), "infos": state.get("infos")}
        changed = change(source, {WEIGHTS: dict(self.alg.policy.state_dict())})
        load_weights(self.alg.policy, weights_in(changed), strict=strict)
        self.current_learning_iteration = int(changed.get("iter", 0))
        if self.writes and self.log_dir is not None:
            self.save(checkpoint_path(self.log_dir, self.current_learning_iteration), state.get("infos"))

    def _is_save_due(self, iteration: int, *, last: bool) -> bool:
        interval = self.config.save_interval
        return last or (interval > 0 and (iteration - 1) % interval == 0)

    def _objective(self, record: Record) -> float | None:
        """The metric for a trial: the velocity error, or the mean return where the env does not measure it."""
        return record.metrics.get("collect/return_mean") if self.metrics_velrmsd is None else self.metrics_velrmsd


# -- motion priors -----------------------------------------------------------------------------------------------------


class AmpPolicyRunner(OnPolicyRunner):
    """Train with PPO and a motion prior."""

    def _read_config(self, train_cfg: Any) -> RunnerConfig:
        config = super()._read_config(train_cfg)
        if config.motion is None:
            raise ValueError(
                "AmpPolicyRunner learns from motions: set algorithm['class_name'] to 'APPO' or 'ATPPO', or "
                "RunnerConfig.motion; without them use OnPolicyRunner"
            )
        return config

    @property
    def prior(self) -> MotionPrior:
        """The motion prior, with its discriminator and its normaliser (`judge.network`, `judge.normalizer`)."""
        return next(term for term in self.alg.terms if isinstance(term, MotionPrior))
