"""The learners of this library inside rsl_rl's own runner: one string of an unmodified rsl_rl 5 project.

    agent.algorithm.class_name = "striderl.rsl_rl:PPO"                 or Distillation, FastSAC, FastTD3

    rsl_rl's OnPolicyRunner                      here
    Class.construct_algorithm(obs, env, …)       networks, storage and updates of this library, from rsl_rl's cfg
    alg.act(obs) ─▶ actions                      the collector chooses actions; the client steps its env
    alg.process_env_step(obs, rewards, …)        the step is stored
    alg.compute_returns(obs)                     part of update
    alg.update() ─▶ {"value": 0.1, …}            gradient steps; for replay learners on samples of the replay
    alg.save(), alg.load(…)                      rsl_rl's own checkpoint files, both ways

Loop, logger and files stay rsl_rl's. `algorithm["execution"] = {"mode": "compiled", "strict": True}` sets how steps are
run; without it, CUDA graphs on a GPU and eager on a CPU. rsl_rl and tensordict are not imported here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.algorithms.actor_critic.fast_td3 import FastSAC as _FastSAC
from striderl.algorithms.actor_critic.fast_td3 import FastTD3 as _FastTD3
from striderl.algorithms.building import BuildContext
from striderl.collect.collector import Collector, CollectorConfig
from striderl.envs.rsl_rl.env import RslRlEnv
from striderl.envs.rsl_rl.handed import HandedSteps
from striderl.envs.wrap_env import wrap_env
from striderl.execution.background import Switch, built_with
from striderl.execution.modes import ExecutionConfig, mode_of
from striderl.policies.settings import PolicySettings
from striderl.policies.transfer.rsl_rl_state import ACTOR, CRITIC, RslRlLayout
from striderl.training.distributed import Ranks, join_ranks
from striderl.training.experiment.assembly import build_algorithm, learner_switch, plan_switch
from striderl.training.experiment.run_config import RunConfig
from striderl.training.experiment.runner_config import RunnerConfig
from striderl.training.loops.off_policy import ReplayLearner
from striderl.training.plans import OffPolicyPlan, OnPolicyPlan
from striderl.training.protocols import ReplayAlgorithm, replay_for, storage_for
from striderl.training.rsl_rl.client_algorithm import ClientAlgorithm
from striderl.training.rsl_rl.config_generations import read_train_config
from striderl.training.rsl_rl.config_policy import Keys, as_tuple
from striderl.training.rsl_rl.distillation import (
    OF_PPO,
    load_distillation,
    save_distillation,
    translate_distillation,
)
from striderl.training.rsl_rl.stepping import HandedRollout, ManualRollout
from striderl.training.rsl_rl.translate import component_order, translate
from striderl.training.trainer import Trainer

_log = logging.getLogger(__name__)

_OWN = ("logger", "class_name", "runner_class_name", "upload_model")
"""Settings of rsl_rl's runner, which stays in charge of them."""


@contextmanager
def _normal_tensors() -> Iterator[None]:
    """Leave rsl_rl's inference mode: its tensors can neither be learned from nor be written to later."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class RslRlAlgorithm(ClientAlgorithm):
    """What all learners here have in common: the client's loop through a collector."""

    rollout: HandedRollout
    switch: Switch | None
    """When functions change to compiled programs; None: never, or at once."""

    def act(self, obs: Any) -> Tensor:
        """Sample actions for the observations of all envs."""
        with _normal_tensors():
            return self.rollout.act(obs)

    def compute_returns(self, obs: Any) -> None:
        """Do nothing: targets are computed with the update, from the observation of the last step."""


# -- fresh rollouts ----------------------------------------------------------------------------------------------------


class OnPolicyForRslRl(RslRlAlgorithm):
    """A learner from fresh rollouts in rsl_rl's loop."""

    def __init__(
        self,
        learner: Any,
        env: RslRlEnv,
        steps: HandedSteps,
        config: RunConfig[Any, Any],
        *,
        ranks: Ranks,
        orders: Mapping[str, tuple[str, ...]],
        switch: Switch | None = None,
        max_iterations: int = 0,
    ) -> None:
        """Put storage and collector around a learner for the client's env; `switch` is what it was built with.

        Without a number of iterations nothing is compiled: whether that gains time is not known.
        """
        super().__init__(learner, orders)
        self.switch = switch
        seed, plan = config.seed, OnPolicyPlan(num_steps_per_env=config.plan.num_steps_per_env)
        collector = Collector(env, learner.actor(), CollectorConfig(seed=seed))
        self.storage = storage_for(learner, collector, plan.num_steps_per_env)
        self.trainer = Trainer(learner, collector, plan, storage=self.storage, seed=seed, switch=switch)
        self.rollout, self.ranks = HandedRollout(steps, collector), ranks
        self._max_iterations = max_iterations
        self._plan_switch()
        self.intrinsic_rewards: Tensor | None = None
        """The novelty of the last step, weighted; None without a reward for novelty."""
        self._manual = ManualRollout(self.trainer, self.storage)

    def _plan_switch(self) -> None:
        """Decide when compiled programs take over, counted from the present iteration."""
        env, plan = self.rollout.collector.env, OnPolicyPlan(num_steps_per_env=self.storage.num_steps)
        device, count = torch.device(env.device), self.ranks.world_size
        most, first = self._max_iterations, self.trainer.iteration
        plan_switch(self.switch, plan, env.num_envs, self.learner, most, device, count, first=first)

    def process_env_step(self, obs: Any, rewards: Tensor, dones: Tensor, extras: Mapping[str, Any]) -> None:
        """Store what came of the actions."""
        with _normal_tensors():
            self.rollout.give(obs, rewards, dones, extras)
            self._manual.step(None, None)
            if self.rnd is not None:
                self.intrinsic_rewards = self.rnd.term.reward_of(self.rollout.collector.current_obs)

    def update(self) -> dict[str, float]:
        """Learn from the rollout and return the losses by rsl_rl's names."""
        with torch.inference_mode(False), torch.enable_grad():
            losses, stats = self._manual.learn()
        found = {ours: ({**losses, **stats})[theirs] for ours, theirs in self.loss_names(losses).items()}
        if "dist" in self.storage.data["policy"]:
            self.actor.keep_std(self.storage.data["policy"]["dist"].get("std"))
        # one transfer for all
        values = torch.stack([value.detach().float() for value in found.values()]).tolist()
        return dict(zip(found, values))

    @staticmethod
    def loss_names(losses: Mapping[str, Tensor]) -> dict[str, str]:
        """Return rsl_rl's name and ours of each loss."""
        names = {"value": "value_loss", "surrogate": "surrogate_loss", "entropy": "entropy"}
        further = {"rnd": "rnd_loss", "symmetry": "mirror_loss", "behavior": "distillation_loss"}
        return {theirs: ours for theirs, ours in {**names, **further}.items() if ours in losses}

    def broadcast_parameters(self) -> None:
        """Give every process the parameters of the first."""
        self.ranks.share(self.learner)

    def further_state(self) -> dict[str, Any]:
        """Return the counters of the training and its seed."""
        return {
            "iteration": self.trainer.iteration,
            "env_steps": self.trainer.env_steps,
            "num_updates": self.trainer.num_updates,
            "seed": self.trainer.seed,
        }

    def load_further_state(self, state: Mapping[str, Any]) -> None:
        """Continue counting, with noise that the saved training has not used."""
        if "iteration" in state:
            self.trainer.iteration = int(state["iteration"])
            self.trainer.loop.counters.env_steps = int(state["env_steps"])
            self.trainer.loop.counters.num_updates = int(state["num_updates"])
            self._plan_switch()
            self.rollout.begin_anew(self.trainer.seed + 1 + self.trainer.iteration)


class PPOForRslRl(OnPolicyForRslRl):
    """PPO with novelty, symmetry, memory and images, from rsl_rl's own settings."""

    @classmethod
    def construct_algorithm(cls, obs: Any, env: Any, cfg: dict[str, Any], device: str) -> PPOForRslRl:
        """Build PPO from the config of rsl_rl's runner."""
        execution = _execution(cfg)
        config = read_train_config(_settings(cfg))
        cfg["algorithm"].setdefault("rnd_cfg", None)
        place, ranks = torch.device(device), _ranks(cfg, device)
        steps, vec_env = _vec_env(env, obs, place, ranks)
        seed = _seed(config.seed)
        parts = translate(config, vec_env, env, seed, place)
        switch = learner_switch(execution or config.mode, place, ranks.world_size)
        with built_with(switch):
            learner = build_algorithm(parts.config, vec_env, ranks, parts.objects, execution)
        return cls(
            learner,
            vec_env,
            steps,
            parts.config,
            ranks=ranks,
            orders=component_order(config, vec_env),
            switch=switch,
            max_iterations=config.max_iterations,
        )


class DistillationForRslRl(OnPolicyForRslRl):
    """A student that imitates a teacher on the states that it visits: DAgger with rsl_rl's settings and files."""

    teacher: RslRlLayout
    """The teacher's weights by rsl_rl's names."""
    teacher_loaded: bool = False
    """Whether they have been loaded; rsl_rl's runner checks it before it learns."""

    @classmethod
    def construct_algorithm(cls, obs: Any, env: Any, cfg: dict[str, Any], device: str) -> DistillationForRslRl:
        """Build student and teacher from the config of rsl_rl's DistillationRunner."""
        execution = _execution(cfg)
        place, ranks = torch.device(device), _ranks(cfg, device)
        steps, vec_env = _vec_env(env, obs, place, ranks)
        seed = _seed(cfg.get("seed"))
        config = RunnerConfig(num_steps_per_env=int(cfg["num_steps_per_env"]))
        parts = translate_distillation(cfg, config, vec_env, env, seed, place)
        switch = learner_switch(execution or config.mode, place, ranks.world_size)
        with built_with(switch):
            learner = build_algorithm(parts.student.config, vec_env, ranks, parts.student.objects, execution)
        cfg["algorithm"] |= {"rnd_cfg": None, "symmetry_cfg": None}
        found = cls(
            learner,
            vec_env,
            steps,
            parts.student.config,
            ranks=ranks,
            orders=parts.orders,
            switch=switch,
            max_iterations=int(cfg.get("max_iterations") or 0),
        )
        found.teacher = parts.teacher
        return found

    def save(self, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return student, teacher and optimiser with rsl_rl's names."""
        return save_distillation(super().save(state), self.layout, self.teacher)

    def load(self, loaded_dict: Mapping[str, Any], load_cfg: Mapping[str, bool] | None, strict: bool = True) -> bool:
        """Load a distillation, or the actor of a training by reinforcement as the teacher."""
        taken = load_distillation(self, self.teacher, loaded_dict, load_cfg, strict=strict)
        self.teacher_loaded = self.teacher_loaded or taken.teacher
        return taken.iteration


# -- replay ------------------------------------------------------------------------------------------------------------


class ReplayForRslRl(RslRlAlgorithm):
    """A learner from replay in rsl_rl's loop: steps are stored, and `update` takes gradient steps on samples."""

    algorithm_class: ClassVar[type[Any]]
    """The learner."""

    @classmethod
    def construct_algorithm(cls, obs: Any, env: Any, cfg: dict[str, Any], device: str) -> ReplayForRslRl:
        """Build the learner from the algorithm's dict; settings of PPO in it are left aside.

        Besides the fields of its config: batch_size, num_updates (per step of all envs), learning_starts, buffer_size,
        actor_hidden_dims, critic_hidden_dims, and action_bound, where the client does not clip actions.
        """
        execution = _execution(cfg)
        given = dict(cfg["algorithm"])
        cfg["algorithm"]["rnd_cfg"] = None
        keys = Keys({name: value for name, value in given.items() if name != "class_name"}, "algorithm")
        place = torch.device(device)
        if cfg.get("multi_gpu"):
            raise ValueError(f"{cls.algorithm_class.__name__} learns in one process; start it without torchrun")
        bound = float(keys.take("action_bound", cfg.get("clip_actions") or 1.0))
        steps = HandedSteps(env, obs)
        with _normal_tensors():
            vec_env = RslRlEnv(steps, clip_actions=bound, device=place)
        plan = {
            **cls.algorithm_class.loop_settings(vec_env.num_envs),
            **keys.take_all(("batch_size", "learning_starts")),
        }
        plan |= {"num_updates_per_round": keys.take("num_updates", plan["num_updates_per_round"])}
        plan |= {"buffer_size": keys.take("buffer_size", plan["buffer_size"])}
        networks = {**cls.algorithm_class.policy_settings, **keys.take_all(("actor_hidden_dims", "critic_hidden_dims"))}
        groups = cfg.get("obs_groups", {})
        for field, who in (("actor_obs", ACTOR), ("critic_obs", CRITIC)):
            networks[field] = as_tuple(groups.get(who, groups.get("policy", networks.get(field, ("policy",)))), who)
        own = tuple(each.name for each in fields(cls.algorithm_class.Config))
        config = cls.algorithm_class.Config(**keys.take_all(own))
        others = keys.finish(OF_PPO)
        if others:
            _log.info("settings of PPO that %s does not have: %s", cls.algorithm_class.__name__, ", ".join(others))
        seed = _seed(cfg.get("seed"))
        context = BuildContext(
            obs_spec=vec_env.obs_spec,
            action_spec=vec_env.action_spec,
            policy=PolicySettings(**networks),
            name=cls.algorithm_class.__name__,
            num_envs=vec_env.num_envs,
            device=str(place),
            mode=(execution or ExecutionConfig(mode="auto")).mode,
            seed=seed,
        )
        switch = learner_switch(context.mode, place)
        with built_with(switch):
            learner = cls.algorithm_class.build(config, context)
            found = cls(learner, vec_env, steps, plan, num_steps=cfg["num_steps_per_env"], seed=seed)
        found.compile_later(switch, int(cfg.get("max_iterations") or 0))
        return found

    def __init__(
        self,
        learner: ReplayAlgorithm,
        env: RslRlEnv,
        steps: HandedSteps,
        plan: Mapping[str, Any],
        *,
        num_steps: int,
        seed: int,
    ) -> None:
        """Put replay and collector around a learner for the client's env."""
        super().__init__(learner)
        collector = Collector(env, learner.actor(), CollectorConfig(seed=seed))  # type: ignore[attr-defined]
        device = next(learner.policy.parameters()).device
        mode = collector.mode = mode_of(learner.config.mode, device)
        self.replay = replay_for(collector, learner, int(plan["buffer_size"]), seed)
        self.rollout = HandedRollout(steps, collector)
        self._batch_size = int(plan["batch_size"])
        self._sampling = ReplayLearner(learner, self.replay, self._batch_size, seed, mode=mode)
        self._num_updates_per_iteration = int(plan["num_updates_per_round"]) * num_steps
        self._learning_starts = int(plan["learning_starts"])
        self.switch: Switch | None = None
        self._max_iterations = 0
        self._num_steps = num_steps
        self.env_steps = self.num_updates = 0

    def compile_later(self, switch: Switch | None, max_iterations: int) -> None:
        """Take the switch that the learner was built with, and decide when it is on."""
        self.switch, self._max_iterations = switch, max_iterations
        self._plan_switch()

    def _plan_switch(self) -> None:
        """Decide when compiled programs take over; iterations are counted from the first gradient step."""
        env, updates = self.rollout.collector.env, self._num_updates_per_iteration // self._num_steps
        plan = OffPolicyPlan(
            num_steps_per_env=self._num_steps,
            train_every=1,
            num_updates_per_round=updates,
            batch_size=self._batch_size,
            learning_starts=0,
        )
        most, first = self._max_iterations, self._num_learned
        plan_switch(self.switch, plan, env.num_envs, self.learner, most, torch.device(env.device), first=first)

    @property
    def _num_learned(self) -> int:
        """How many iterations had gradient steps."""
        return self.num_updates // self._num_updates_per_iteration

    def act(self, obs: Any) -> Tensor:
        """Choose actions: at random before learning starts."""
        self.learner.explore(self.env_steps, random=self.env_steps < self._learning_starts)
        return super().act(obs)

    def process_env_step(self, obs: Any, rewards: Tensor, dones: Tensor, extras: Mapping[str, Any]) -> None:
        """Store what came of the actions."""
        with _normal_tensors():
            collector = self.rollout.collector
            self.rollout.give(obs, rewards, dones, extras)
            collector.collect(n_step=collector.env.num_envs, storage=self.replay)
        self.env_steps += collector.env.num_envs

    def update(self) -> dict[str, float]:
        """Take the iteration's gradient steps and return the mean losses; none before learning starts."""
        if self.env_steps < self._learning_starts:
            return {}
        with torch.inference_mode(False), torch.enable_grad():
            self._sampling.begin({})
            for _ in range(self._num_updates_per_iteration):
                self.num_updates += self._sampling.step(self.num_updates)
            means = self._sampling.finish()
        if self.switch is not None:
            self.switch.before_iteration(self._num_learned)
        with _normal_tensors():
            self._keep_std()
        found = {name.removeprefix("train/"): value for name, value in means.items()}
        wanted = {name.removesuffix("_loss"): value for name, value in found.items() if name.endswith("_loss")}
        if not wanted:
            return {}
        return dict(zip(wanted, torch.stack([value.float() for value in wanted.values()]).tolist()))

    def further_state(self) -> dict[str, Any]:
        """Return the counters; the replay is not saved, and is filled anew."""
        return {"env_steps": self.env_steps, "num_updates": self.num_updates, "seed": self.rollout.seed}

    def load_further_state(self, state: Mapping[str, Any]) -> None:
        """Continue counting; actions are the policy's, not random ones, while the replay fills."""
        self.env_steps, self.num_updates = int(state["env_steps"]), int(state["num_updates"])
        if self.switch is not None:
            self.switch.set_iteration(self._num_learned)
            self._plan_switch()
        self.rollout.begin_anew(int(state["seed"]) + 1 + self.env_steps)

    def _keep_std(self) -> None:
        obs, policy = self.rollout.collector.current_obs, self.learner.policy
        count = len(next(iter(obs.values())))
        like = torch.zeros(count, device=next(policy.parameters()).device)
        distribution, _, _ = policy.act(obs, policy.initial_state(count), policy.settled(like))
        self.actor.keep_std(distribution.params().get("std"))


class FastSACForRslRl(ReplayForRslRl):
    """FastSAC in rsl_rl's loop."""

    algorithm_class = _FastSAC


class FastTD3ForRslRl(ReplayForRslRl):
    """FastTD3 in rsl_rl's loop."""

    algorithm_class = _FastTD3


PPO = PPOForRslRl
"""`class_name = "striderl.rsl_rl:PPO"`."""
Distillation = DistillationForRslRl
"""`class_name = "striderl.rsl_rl:Distillation"`."""
FastSAC = FastSACForRslRl
"""`class_name = "striderl.rsl_rl:FastSAC"`."""
FastTD3 = FastTD3ForRslRl
"""`class_name = "striderl.rsl_rl:FastTD3"`."""


# -- from rsl_rl's config ----------------------------------------------------------------------------------------------


def _settings(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that concern a learner, in containers of their own: reading them takes them out."""
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in cfg.items() if name not in _OWN
    }


def _execution(cfg: Mapping[str, Any]) -> ExecutionConfig | None:
    given = cfg["algorithm"].pop("execution", None)
    if given is None:
        return None
    return ExecutionConfig(mode=given) if isinstance(given, str) else ExecutionConfig(**given)


def _ranks(cfg: Mapping[str, Any], device: str) -> Ranks:
    return join_ranks(torch.device(device)) if cfg.get("multi_gpu") else Ranks()


def _vec_env(env: Any, obs: Any, device: torch.device, ranks: Ranks) -> tuple[HandedSteps, RslRlEnv]:
    steps = HandedSteps(env, obs)
    with _normal_tensors():
        found = wrap_env(steps, device=device, first_env_index=ranks.rank * int(env.num_envs))
    assert isinstance(found, RslRlEnv)
    return steps, found


def _seed(given: Any) -> int:
    return int(torch.randint(2**31, ())) if given is None else int(given)
