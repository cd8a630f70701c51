"""Distillation with rsl_rl's settings: a student imitates a teacher on the states that it visits (DAgger).

    {"student": {…}, "teacher": {…}, "obs_groups": {"student": ["policy"], "teacher": ["policy", "privileged"]},
     "algorithm": {"class_name": "Distillation", "gradient_length": 15, "loss_type": "mse", …}}

rsl_rl takes a gradient step after `gradient_length` steps of all envs, on the sum of their mean losses; here so many
samples are drawn from the whole rollout. Files have rsl_rl's entries: student, teacher and optimiser; the file of a
training by reinforcement is loaded as the teacher.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import torch

from striderl.algorithms.on_policy.dagger import DAgger, DAggerConfig
from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.terms.distill import DistillConfig
from striderl.checkpoint.foreign import read_torch_archive
from striderl.collect.teacher import Teacher
from striderl.data.actions import BoxSpec
from striderl.data.specs import ObsSpec
from striderl.envs.vec_env import VecEnv
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import Remember
from striderl.policies.transfer.rsl_rl_state import ACTOR, CRITIC, RslRlLayout
from striderl.training.experiment.runner_checkpoints import RUN, Manipulator
from striderl.training.experiment.runner_config import ModelPair, ModelSettings, RunnerConfig
from striderl.training.rsl_rl.client_algorithm import EXACT, ClientAlgorithm
from striderl.training.rsl_rl.config_algorithm import OPTIMIZERS
from striderl.training.rsl_rl.config_generations import as_dict, read_distillation_config
from striderl.training.rsl_rl.config_policy import Keys, as_tuple, read_model
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner
from striderl.training.rsl_rl.translate import Translation, model_config, run_config_of

_log = logging.getLogger(__name__)

OF_PPO = (
    *(each.name for each in fields(PPOConfig)),
    *("optimizer", "rnd_cfg", "symmetry_cfg", "share_cnn_encoders", "multi_gpu_cfg"),
)
"""Settings of PPO, which the config classes of clients always have."""
_LOSSES = {"mse": "mse_sum", "huber": "huber"}


class DistillationParts(NamedTuple):
    """What a distillation is made of."""

    student: Translation
    """The student's training."""
    teacher: RslRlLayout
    """The teacher's weights by rsl_rl's names; they are loaded later."""
    orders: dict[str, tuple[str, ...]]
    """The components of the student, and in the critic's place those of the teacher, in rsl_rl's order."""


def translate_distillation(
    cfg: Mapping[str, Any], config: RunnerConfig, env: VecEnv, user_env: Any, seed: int, device: torch.device
) -> DistillationParts:
    """Translate the config of rsl_rl's DistillationRunner; its teacher is built, with weights that are loaded later."""
    given = {name: value for name, value in cfg["algorithm"].items() if name not in ("class_name", "execution")}
    keys = Keys(given, "algorithm")
    for name in ("rnd_cfg", "symmetry_cfg"):
        if keys.take(name) is not None:
            raise ValueError(f"algorithm[{name!r}] has no effect on distillation; leave it away")
    groups = cfg.get("obs_groups") or {}
    student_sees, teacher_sees = (_order(groups.get(who), who, env.obs_spec) for who in ("student", "teacher"))
    student = _model_config(cfg["student"], env, student_sees, teacher_sees, "student")
    taught = _model_config(cfg["teacher"], env, teacher_sees, teacher_sees, "teacher")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        teacher = Teacher(Policy(env.obs_spec, env.action_spec, taught).to(device))
    dagger, distill = _settings(keys, env, student, config.num_steps_per_env)
    run = run_config_of(
        config,
        env,
        user_env,
        policy=student,
        algorithm_name="dagger",
        algorithm=dagger,
        terms={"distill": distill},
        seed=seed,
        device=str(device),
    )
    assert isinstance(teacher.policy, Policy)
    layout = RslRlLayout(teacher.policy, {ACTOR: teacher_sees})
    orders = {ACTOR: student_sees, CRITIC: teacher_sees}
    return DistillationParts(Translation(run, {"teacher": teacher}), layout, orders)


def _order(groups: Any, who: str, spec: ObsSpec) -> tuple[str, ...]:
    """Return the components of a set in the order of its groups; without any, the group of its name or the actor's."""
    names = as_tuple(groups, f"obs_groups[{who!r}]") if groups else ((who,) if spec.resolve(who) else ("policy",))
    return tuple(dict.fromkeys(name for group in names for name in spec.select([group])))


def _model_config(
    given: Mapping[str, Any], env: VecEnv, seen: tuple[str, ...], privileged: tuple[str, ...], who: str
) -> PolicyConfig:
    """Return the policy of a student or a teacher; its critic is small, and never used."""
    model, head, head_settings = read_model(given, who)
    critic = ModelSettings(hidden_dims=(1,), activation=model.activation)
    pair = ModelPair(actor=model, critic=critic, head=head, head_settings=head_settings)
    return model_config(pair, env.obs_spec, actor=seen, critic=privileged)


def _settings(keys: Keys, env: VecEnv, student: PolicyConfig, num_steps: int) -> tuple[DAggerConfig, DistillConfig]:
    """Return the settings of learner and imitation."""
    length = int(keys.take("gradient_length", 15))
    loss = str(keys.take("loss_type", "mse"))
    if loss not in _LOSSES:
        raise ValueError(f"algorithm['loss_type'] is one of {sorted(_LOSSES)}, found {loss!r}")
    optimizer = str(keys.take("optimizer", "adam")).lower()
    remembers = any(isinstance(stage, Remember) for stage in student.actor)
    config = DAggerConfig(
        num_learning_epochs=int(keys.take("num_learning_epochs", 1)),
        num_mini_batches=1 if remembers else max(1, num_steps // length),
        learning_rate=float(keys.take("learning_rate", 1e-3)),
        max_grad_norm=float(keys.take("max_grad_norm") or 0.0),
        optimizer_class_name=OPTIMIZERS.get(optimizer, optimizer),
    )
    ignored = keys.finish(OF_PPO)
    if ignored:
        _log.info("settings that distillation does not have: %s", ", ".join(ignored))
    action = env.action_spec
    assert isinstance(action, BoxSpec)
    weight = length / action.tensor.size
    return config, DistillConfig(target=_LOSSES[loss], weight=weight, teacher_act_prob=0.0)


# -- files -------------------------------------------------------------------------------------------------------------


def save_distillation(saved: Mapping[str, Any], student: RslRlLayout | None, teacher: RslRlLayout) -> dict[str, Any]:
    """Return what `ClientAlgorithm.save` returned with rsl_rl's entries of a distillation."""
    count = 0 if student is None else len(student.pieces[ACTOR])
    optimizer = saved["optimizer_state_dict"]
    groups = [{**each, "params": [at for at in each["params"] if at < count]} for each in optimizer["param_groups"]]
    entries = {at: entry for at, entry in optimizer["state"].items() if at < count}
    return {
        "student_state_dict": saved["actor_state_dict"],
        "teacher_state_dict": teacher.state_dict(ACTOR),
        "optimizer_state_dict": {"state": entries, "param_groups": groups},
        EXACT: saved[EXACT],
    }


class LoadedParts(NamedTuple):
    """What a call of `load` has taken."""

    teacher: bool
    """The teacher's weights."""
    iteration: bool
    """Whether the caller is to take the iteration."""


def load_distillation(
    algorithm: ClientAlgorithm,
    teacher: RslRlLayout,
    loaded: Mapping[str, Any],
    load_cfg: Mapping[str, bool] | None,
    *,
    strict: bool,
) -> LoadedParts:
    """Load a distillation, or the actor of a training by reinforcement as the teacher."""
    from_training = "actor_state_dict" in loaded
    default = {"teacher": True} if from_training else dict.fromkeys(("student", "teacher", "iteration"), True)
    wanted = default if load_cfg is None else load_cfg
    if wanted.get("teacher"):
        weights = loaded.get("teacher_state_dict") or loaded["actor_state_dict"]
        teacher.load(ACTOR, weights, strict=strict)
    exact = loaded.get(EXACT)
    if load_cfg is None and not from_training and exact is not None:
        algorithm.learner.load_state_dict(exact["algorithm"])
        algorithm.load_further_state(exact)
    elif wanted.get("student"):
        algorithm.actor.load_state_dict(loaded["student_state_dict"], strict=strict)
    return LoadedParts(bool(wanted.get("teacher")), bool(wanted.get("iteration", False)))


class DistillationAlgorithm(ClientAlgorithm):
    """The learner of a distillation with rsl_rl's interface."""

    def __init__(self, learner: DAgger, parts: DistillationParts) -> None:
        super().__init__(learner, parts.orders)
        self.teacher, self.teacher_loaded = parts.teacher, False

    def save(self, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return student, teacher and optimiser with rsl_rl's names."""
        return save_distillation(super().save(state), self.layout, self.teacher)

    def load(self, loaded_dict: Mapping[str, Any], load_cfg: Mapping[str, bool] | None, strict: bool = True) -> bool:
        """Load a distillation, or the actor of a training by reinforcement as the teacher."""
        taken = load_distillation(self, self.teacher, loaded_dict, load_cfg, strict=strict)
        self.teacher_loaded = self.teacher_loaded or taken.teacher
        return taken.iteration


# -- the runner --------------------------------------------------------------------------------------------------------


class DistillationRunner(OnPolicyRunner):
    """Train a student to imitate a teacher, with rsl_rl's config of it; load the teacher's checkpoint first."""

    def _read_config(self, train_cfg: Any) -> RunnerConfig:
        return read_distillation_config(train_cfg)

    def _translated(self) -> Translation:
        cfg = as_dict(self._train_cfg)
        self._parts = translate_distillation(cfg, self.config, self.vec_env, self.env, self.seed, self.device)
        return self._parts.student

    def _client_algorithm(self, learner: Any) -> DistillationAlgorithm:
        return DistillationAlgorithm(learner, self._parts)

    def learn(
        self, num_learning_iterations: int | None = None, init_at_random_ep_len: bool = False, trial: Any = None
    ) -> tuple[float | None, float | None]:
        """Train; a teacher has to be loaded before."""
        if not self.alg.teacher_loaded:
            raise ValueError("the teacher has no weights yet; call runner.load with the checkpoint of its training")
        return super().learn(num_learning_iterations, init_at_random_ep_len, trial)

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
        """Load a distillation, or the file of a training by reinforcement as the teacher; return its infos."""
        content = read_torch_archive(path)
        if "student_state_dict" in content and RUN in content and load_cfg is None:
            self.alg.load(content, {"teacher": True}, strict)
            return super().load(path, load_optimizer, map_location, manipulator, strict=strict)
        if self.alg.load(content, load_cfg, strict):
            self.current_learning_iteration = int(content.get("iter", 0))
        return content.get("infos")
