"""`RunnerConfig`, the schema that every config is converted to before anything is built.

    v1   {"runner": {…}, "policy": {…}, "algorithm": {…}}       ┐
    v2   {"policy": {"class_name": …}, "algorithm": {…}}        │  config_generations
    v3   … and "obs_groups"                                      ├──────────────────────▶  RunnerConfig ──▶ build
    v4/5 {"actor": {…}, "critic": {…}, "algorithm": {…}}        │
    st_rl {"policy": {…}, "algorithm": {"ppo": {…}}}            ┘

New code passes a `RunnerConfig` with a `PolicyConfig` and a `PPOConfig` in it. A setting of PPO that a dict leaves out
has rsl_rl's default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from striderl.algorithms.on_policy.dagger import DAggerConfig
from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.on_policy.tppo import TPPOConfig
from striderl.algorithms.terms.distill import DISTILL_TARGETS
from striderl.algorithms.terms.estimation import Estimation
from striderl.algorithms.terms.mimic import MimicConfig
from striderl.algorithms.terms.motion_prior import MotionPriorConfig
from striderl.algorithms.terms.rnd import RNDConfig
from striderl.data.checked_fields import check_field_types
from striderl.data.naming import unknown
from striderl.data.registry import LOGGERS
from striderl.policies.policy import PolicyConfig
from striderl.policies.stages import Remember

NO_LOGGER = "none"
"""The logger that writes nothing."""

RSL_RL_DEFAULTS: Mapping[str, Any] = {
    "num_learning_epochs": 1,
    "num_mini_batches": 1,
    "clip_param": 0.2,
    "gamma": 0.998,
    "lam": 0.95,
    "value_loss_coef": 1.0,
    "entropy_coef": 0.0,
    "learning_rate": 1e-3,
    "max_grad_norm": 1.0,
    "clip_networks_apart": False,
    "use_clipped_value_loss": True,
    "clip_min_std": 1e-15,
    "optimizer_class_name": "Adam",
    "schedule": "fixed",
    "desired_kl": 0.01,
    "normalize_advantage_per_mini_batch": False,
}
"""PPO's settings in rsl_rl 1 to 3 and in st_rl, where a config leaves them out; not those of `PPOConfig()`."""

NEWER_RSL_RL_DEFAULTS: Mapping[str, Any] = {
    "num_learning_epochs": 5,
    "num_mini_batches": 4,
    "gamma": 0.99,
    "entropy_coef": 0.01,
    "clip_networks_apart": True,
    "schedule": "adaptive",
}
"""Those of rsl_rl 4 and 5 that differ from them."""


def rsl_rl_ppo_config(**given: Any) -> PPOConfig:
    """Return PPO's settings with rsl_rl's defaults for those that are not given."""
    return PPOConfig(**{**RSL_RL_DEFAULTS, **given})


def without_rsl_rl_defaults(config: PPOConfig) -> PPOConfig:
    """Return the settings for learning without PPO, with no warning for rsl_rl defaults that have no effect there."""
    shared = {each.name for each in fields(DAggerConfig)}
    untouched = [
        name
        for name, value in RSL_RL_DEFAULTS.items()
        if name not in shared and vars(config)[name] in (value, NEWER_RSL_RL_DEFAULTS.get(name, value))
    ]
    return replace(config, **{name: vars(PPOConfig())[name] for name in untouched})


@dataclass(frozen=True, kw_only=True)
class PresetSettings:
    """A policy by the class name of an older library, with that class's settings."""

    class_name: str = "ActorCritic"
    """A name of the table `POLICIES` in `rsl_rl/translate.py`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of that class by name, without the sizes, which come from the env."""
    head_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the Gaussian head that the class has no argument for, such as {'std_type': 'log'}."""
    normalize_actor_obs: bool = False
    """Normalise the actor's observations."""
    normalize_critic_obs: bool = False
    """Normalise the critic's observations."""

    def __post_init__(self) -> None:
        check_field_types(self)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """One network, the actor's or the critic's."""

    hidden_dims: tuple[int, ...] = (256, 256, 256)
    """Hidden layers."""
    activation: str = "elu"
    """The nonlinearity of the hidden layers."""
    obs_normalization: bool = False
    """Normalise the vectors that the network reads; images are unchanged."""
    memory: Remember | None = None
    """A recurrent memory before the hidden layers."""
    encoder: Mapping[str, Any] | None = None
    """Settings of the convolutions over images, as `Conv2dHeadModel` names them."""

    def __post_init__(self) -> None:
        check_field_types(self)


@dataclass(frozen=True, kw_only=True)
class ModelPair:
    """A policy as two separately configured networks."""

    actor: ModelSettings = field(default_factory=ModelSettings)
    """The actor's network."""
    critic: ModelSettings = field(default_factory=ModelSettings)
    """The critic's network."""
    head: str = "gaussian"
    """The distribution of actions, as in `PolicyConfig.head`."""
    head_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the head."""
    share_encoders: bool = False
    """Whether actor and critic encode images with the same weights."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.actor.activation != self.critic.activation:
            raise ValueError(
                "actor and critic have one activation between them, "
                f"found {self.actor.activation!r} and {self.critic.activation!r}"
            )
        if self.share_encoders and self.actor.encoder != self.critic.encoder:
            raise ValueError("share_cnn_encoders wants the same cnn_cfg for actor and critic")


@dataclass(frozen=True, kw_only=True)
class SymmetrySettings:
    """Mirroring by a function of an older library."""

    function: Callable[..., Any]
    """function(env=, obs=, actions=) gives observations and actions with their mirrored copies behind them."""
    augment: bool = True
    """Whether the algorithm also learns from mirrored samples."""
    mirror_loss_weight: float = 0.0
    """Weight of the mirror loss; at 0 it is left out."""
    flat: bool = False
    """Whether the function takes one vector and obs_type= ('policy' or 'critic') in place of a dict of groups."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not callable(self.function):
            raise TypeError(f"symmetry wants a function, found {self.function!r}")


@dataclass(frozen=True, kw_only=True)
class TeacherSettings:
    """A teacher and the distillation settings."""

    teacher: Any
    """A Teacher, a TeacherRouter or a policy; or a dict with 'teacher_ac_path', see `rsl_rl/live_objects.py`."""
    config: TPPOConfig = field(default_factory=TPPOConfig)
    """Distillation settings; `ppo` in it is left out, or equal to the runner's `algorithm`."""

    def __post_init__(self) -> None:
        check_field_types(self)


@dataclass(frozen=True, kw_only=True)
class MotionSettings:
    """Expert motions and the settings of the motion prior."""

    expert: Any = "env"
    """An Expert such as AMPLoader, a tensor [M, F] or an EnvExpert; a list of clips or of their files; or 'env'."""
    prior: MotionPriorConfig = field(default_factory=MotionPriorConfig)
    """Settings of the prior; a policy's own discriminator brings its weights and its penalty."""
    mimic: MimicConfig | None = None
    """A reward for following the env's reference motion."""
    find_window: bool = False
    """Find components and frames that the settings of `prior` leave open: 'ref_obs' or 'motion', by the size."""
    amp_obs_dim: int = 0
    """Size of a motion, where it does not follow from expert or discriminator."""
    loader: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `AMPLoaderConfig` for clips that are given as a list."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.amp_obs_dim < 0:
            raise ValueError(f"amp_obs_dim is not negative, found {self.amp_obs_dim}")


@dataclass(frozen=True, kw_only=True)
class PretrainSettings:
    """Recordings to learn from before the env, for a TwoStageRunner."""

    iterations: int
    """Iterations before training continues in the env; below 0 it never does."""
    dataset: Mapping[str, Any]
    """Settings of `RolloutDataset` by name, without num_envs and device; 'data_dir' is required."""
    target: str = ""
    """How actions are compared with the recorded ones, one of `DISTILL_TARGETS`; empty: TPPO's distill_target, else
    'mse_sum' for real-valued actions and 'max_log_prob' for choices."""
    weight: float = 1.0
    """Weight of that loss next to the critic's; TPPO has its own, distillation_loss_coef."""
    learning_rate: float = 0.0
    """Learning rate of this stage; 0: the algorithm's."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.target and self.target not in DISTILL_TARGETS:
            raise ValueError(unknown("target", self.target, DISTILL_TARGETS, where="PretrainSettings"))
        if self.weight <= 0.0 or self.learning_rate < 0.0:
            raise ValueError(
                f"pretrain weight is positive and learning_rate not negative, found {self.weight}, {self.learning_rate}"
            )
        taken = sorted({"num_envs", "device", "share"} & set(self.dataset))
        if taken:
            raise ValueError(f"pretrain_dataset has {taken}, which the runner knows; leave them out")
        if not self.dataset.get("data_dir"):
            raise ValueError("pretrain_dataset wants 'data_dir', the folder of a recording or several")


@dataclass(frozen=True, kw_only=True)
class RunnerConfig:
    """Everything that a runner is built from, besides the env."""

    policy: PolicyConfig | PresetSettings | ModelPair = field(default_factory=PolicyConfig)
    """The policy."""
    algorithm: PPOConfig = field(default_factory=rsl_rl_ppo_config)
    """PPO's settings; rsl_rl's defaults unless given."""
    rnd: RNDConfig | None = None
    """A reward for novelty."""
    symmetry: SymmetrySettings | None = None
    """Mirrored samples, or a mirror loss."""
    estimation: tuple[Estimation, ...] = ()
    """The losses of stages that predict components."""
    teacher: TeacherSettings | None = None
    """Learn from a teacher as well, or from it alone."""
    motion: MotionSettings | None = None
    """A reward for moving like an expert."""
    pretrain: PretrainSettings | None = None
    """Recordings to learn from first; for a TwoStageRunner."""
    obs_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Observation groups or components of each network: {'actor': ('policy',), 'critic': ('policy', 'critic')}."""
    num_steps_per_env: int = 24
    """Length of a rollout."""
    warmup_steps: int = 0
    """Steps per env before the first rollout, from which only the normalisers learn."""
    max_iterations: int = 0
    """How many iterations `learn` makes by default."""
    save_interval: int = 50
    """A checkpoint every so many iterations; 0 means only the last."""
    log_interval: int = 1
    """Metrics are logged every so many iterations."""
    logger: str = "tensorboard"
    """The logger when there is a log_dir: a name of `striderl.data.registry.LOGGERS`, or 'none'."""
    run_name: str = ""
    """Name of the run in a tracker and in what is printed; the folder's name without one."""
    wandb_project: str = ""
    """Project of Weights & Biases; 'striderl' without one."""
    wandb_entity: str = ""
    """User or team of Weights & Biases; the one that is logged in without one."""
    upload_model: bool = True
    """Whether checkpoints are given to the tracker, where it keeps files."""
    seed: int | None = None
    """Seed of weights, noise and the order of samples; without one, it is drawn from torch's global generator."""
    mode: str = "auto"
    """How steps are run: 'eager', 'compiled', 'graphed', or 'auto': graphed on a CUDA device, eager elsewhere."""
    ckpt_manipulator: str = ""
    """What `load` does to a checkpoint before loading it, such as 'replace_encoder0'."""
    runner_class_name: str = "OnPolicyRunner"
    """Which runner the config was written for."""
    generation: str = "striderl"
    """The form the config came in: 'v1' to 'v5', or 'striderl'."""
    ignored: tuple[str, ...] = ()
    """Settings of the given config that have no meaning for a runner."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not isinstance(self.policy, (PolicyConfig, PresetSettings, ModelPair)):
            raise TypeError(
                f"RunnerConfig.policy: wanted a PolicyConfig, PresetSettings or ModelPair, found {self.policy!r}"
            )
        if not isinstance(self.algorithm, PPOConfig):
            raise TypeError(f"RunnerConfig.algorithm: wanted a PPOConfig, found {type(self.algorithm).__name__}")
        if self.teacher is not None and self.teacher.config.ppo not in (PPOConfig(), self.algorithm):
            raise ValueError("teacher.config.ppo has no effect beside RunnerConfig.algorithm: set the latter alone")
        if self.logger not in (NO_LOGGER, *LOGGERS.names()):
            raise ValueError(unknown("logger", self.logger, (NO_LOGGER, *LOGGERS.names()), where="RunnerConfig"))
        lowest = {
            "num_steps_per_env": (self.num_steps_per_env, 1),
            "log_interval": (self.log_interval, 1),
            "warmup_steps": (self.warmup_steps, 0),
            "max_iterations": (self.max_iterations, 0),
            "save_interval": (self.save_interval, 0),
            "seed": (self.seed or 0, 0),
        }
        for name, (value, least) in lowest.items():
            if value < least:
                raise ValueError(f"RunnerConfig.{name} is at least {least}, found {value}")
