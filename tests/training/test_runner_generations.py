"""Configs of every rsl_rl generation, on envs of every generation: they train, and mean what they meant."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import runner_configs
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "envs"))
from rsl_rl_fakes import GroupsFake, IsaacLabTwoFake, LeggedGymFake, PlaygroundFake

from striderl.algorithms.on_policy.tppo import TPPOConfig
from striderl.networks.heads.gaussian import GaussianHead
from striderl.policies.policy import PolicyConfig
from striderl.policies.stages import NormalizeObs, Remember
from striderl.training.experiment.runner_config import (
    ModelPair,
    PresetSettings,
    RunnerConfig,
    rsl_rl_ppo_config,
    without_rsl_rl_defaults,
)
from striderl.training.rsl_rl.config_generations import read_train_config
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*offers no seed:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*has no episode_length_buf:UserWarning"),
]

ENVS = {
    "v1": lambda dtype: LeggedGymFake(num_envs=4, done_dtype=dtype),
    "v2": lambda dtype: IsaacLabTwoFake(num_envs=4, done_dtype=dtype, time_outs="float"),
    "v3": lambda dtype: GroupsFake(num_envs=4, done_dtype=dtype, container="tensordict"),
    "v4": lambda dtype: GroupsFake(num_envs=4, done_dtype=dtype, acting_group="actor", time_outs="absent"),
}
CONFIGS = {
    "v1": lambda acting: runner_configs.legged_gym(),
    "v2": lambda acting: runner_configs.isaac_lab_two(),
    "v3": runner_configs.isaac_lab_three,
    "v4": runner_configs.rsl_rl_four,
    "v5": runner_configs.mjlab,
}


DTYPES = (torch.bool, torch.int32, torch.int64, torch.float32)


def combinations() -> list[tuple[str, str, torch.dtype]]:
    """Every config with every env, both with every dtype of flags; all three together under the deep profile."""
    every = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
    return [
        (generation, env, dtype)
        for one, generation in enumerate(CONFIGS)
        for two, env in enumerate(ENVS)
        for three, dtype in enumerate(DTYPES)
        if every or (one + two) % len(DTYPES) == three
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("generation", "env", "dtype"), combinations())
def test_every_config_trains_on_every_env(generation, env, dtype):
    config = CONFIGS[generation]("actor" if env == "v4" else "policy")
    given = copy.deepcopy(config)
    runner = OnPolicyRunner(ENVS[env](dtype), config)
    before = {name: value.clone() for name, value in runner.alg.policy.state_dict().items()}
    runner.learn(3, init_at_random_ep_len=True)
    assert runner.config.generation == generation
    assert config == given, "the caller's dict was changed"
    assert runner.current_learning_iteration == 3
    after = runner.alg.policy.state_dict()
    assert any(not torch.equal(after[name], before[name]) for name, _ in runner.alg.policy.named_parameters())
    assert all(math.isfinite(value) for value in runner.trainer.record.logs("train").values())
    assert runner.trainer.record.metrics["train/first_ratio_error"] < 1e-5
    # the policy plays what the env itself shows, in the env's own form
    shown = runner.env.get_observations()
    policy = runner.get_inference_policy()
    actions = policy(shown[0] if isinstance(shown, tuple) else shown)
    assert actions.shape == (4, 2) and torch.isfinite(actions).all()


def test_playground_trains_and_its_policy_reads_a_plain_dict():
    config = runner_configs.isaac_lab_three("state")
    config["obs_groups"] = {"policy": ["state"], "critic": ["privileged_state"]}
    runner = OnPolicyRunner(PlaygroundFake(num_envs=4), config)
    runner.learn(2)
    assert runner.get_inference_policy()({"state": torch.zeros(4, 4)}).shape == (4, 2)


# -- meaning -----------------------------------------------------------------------------------------------------------


def test_the_first_generation_means_what_it_meant():
    config = read_train_config(runner_configs.legged_gym())
    assert config.policy == PresetSettings(
        class_name="ActorCritic",
        settings={
            "init_noise_std": 1.0,
            "actor_hidden_dims": [8, 8],
            "critic_hidden_dims": [8, 8],
            "activation": "elu",
        },
    )
    assert (config.num_steps_per_env, config.max_iterations, config.seed) == (4, 1500, 1)
    assert config.algorithm.gamma == 0.99 and config.algorithm.num_mini_batches == 2
    assert {"experiment_name", "resume", "load_run"} <= set(config.ignored)


def test_steps_are_run_in_the_fastest_way_unless_a_config_asks_for_another():
    for make in (runner_configs.legged_gym, runner_configs.isaac_lab_two, runner_configs.mjlab):
        outer = make()
        inner = outer.get("runner", outer)
        assert read_train_config(copy.deepcopy(outer)).mode == "auto"
        inner["torch_compile_mode"] = "max-autotune"
        assert read_train_config(copy.deepcopy(outer)).mode == "compiled"
        inner["mode"] = "eager"
        assert read_train_config(copy.deepcopy(outer)).mode == "eager"


def test_the_critic_of_old_sees_only_its_own_vector():
    runner = OnPolicyRunner(LeggedGymFake(), runner_configs.legged_gym())
    assert runner.alg.policy.actor_inputs.names == ("obs",)
    assert runner.alg.policy.critic_inputs.names == ("privileged_obs",)


def test_without_privileged_observations_the_critic_sees_what_the_actor_sees():
    runner = OnPolicyRunner(LeggedGymFake(privileged=False), runner_configs.legged_gym())
    assert runner.alg.policy.critic_inputs.names == ("obs",)


def test_empirical_normalization_becomes_a_stage_in_front():
    policy = OnPolicyRunner(IsaacLabTwoFake(), runner_configs.isaac_lab_two()).alg.policy
    assert policy.config.actor == (NormalizeObs(components=("obs",)),)
    assert policy.config.critic == (NormalizeObs(components=("privileged_obs",)),)
    assert policy.head.std_type == "log"


def test_groups_and_memory_of_the_third_generation():
    policy = OnPolicyRunner(GroupsFake(), runner_configs.isaac_lab_three()).alg.policy
    assert policy.actor_inputs.names == ("policy",) and policy.critic_inputs.names == ("policy", "critic")
    assert [type(stage) for stage in policy.config.actor] == [NormalizeObs, Remember]
    assert policy.config.actor[1] == Remember(type="lstm", hidden_size=6)


def test_actor_and_critic_of_the_fifth_generation_are_described_apart():
    config = read_train_config(runner_configs.mjlab())
    assert isinstance(config.policy, ModelPair)
    assert config.policy.actor.memory == Remember(type="gru", hidden_size=6) and config.policy.critic.memory is None
    assert config.policy.head_settings == {"init_std": 1.0, "std_type": "scalar"}
    assert config.generation == "v5"
    assert read_train_config(runner_configs.rsl_rl_four()).policy.head_settings["init_std"] == 0.8


def test_settings_that_are_missing_have_the_defaults_of_their_generation():
    old, new = runner_configs.isaac_lab_two(), runner_configs.mjlab()
    for config in (old, new):
        config["algorithm"] = {"class_name": "PPO"}
    assert read_train_config(old).algorithm.num_learning_epochs == 1
    assert read_train_config(old).algorithm.gamma == 0.998
    assert read_train_config(new).algorithm.num_learning_epochs == 5
    assert read_train_config(new).algorithm.schedule == "adaptive"


def test_the_nested_settings_of_st_rl():
    config = read_train_config(runner_configs.st_rl())
    assert config.algorithm.clip_min_std == (0.1, 0.2) and config.algorithm.clip_param == 0.2
    assert config.policy.normalize_actor_obs and config.policy.normalize_critic_obs
    runner = OnPolicyRunner(IsaacLabTwoFake(num_envs=4), runner_configs.st_rl())
    runner.learn(2)
    twice = runner_configs.st_rl()
    twice["algorithm"]["gamma"] = 0.9
    with pytest.raises(ValueError, match=r"\['gamma'\] twice"):
        read_train_config(twice)


def test_other_distributions():
    config = runner_configs.mjlab("policy")
    config["actor"]["distribution_cfg"] = {"class_name": "HeteroscedasticGaussianDistribution", "init_std": 0.5}
    head = OnPolicyRunner(GroupsFake(), config).alg.policy.head
    assert isinstance(head, GaussianHead) and head.state_dependent_std
    config["actor"]["distribution_cfg"] = {"class_name": "BetaDistribution", "action_range": (-2.0, 2.0)}
    runner = OnPolicyRunner(GroupsFake(num_envs=4), config)
    runner.learn(1)
    assert type(runner.alg.policy.head).__name__ == "BetaHead" and float(runner.alg.policy.head.high.max()) == 2.0


def test_a_camera_goes_through_convolutions():
    class CameraFake(GroupsFake):
        def _pack(self, policy: Any, critic: Any) -> Any:
            groups = dict(super()._pack(policy, critic).items())
            return {**groups, "camera": torch.ones(self.num_envs, 1, 8, 8) * policy[:, :1, None, None]}

    config = runner_configs.mjlab("policy")
    cnn = {"output_channels": (2, 3), "kernel_size": 3, "stride": (1, 2), "activation": "relu", "flatten": True}
    config["obs_groups"]["actor"] = ("policy", "camera")
    config["actor"] |= {"class_name": "CNNModel", "cnn_cfg": cnn}
    runner = OnPolicyRunner(CameraFake(num_envs=4), config)
    runner.learn(2)
    normalize, encode = runner.alg.policy.config.actor
    assert normalize.components == ("policy",) and encode.components == ("camera",)
    config["obs_groups"]["actor"] = ("policy",)
    with pytest.raises(ValueError, match="none of the components"):
        OnPolicyRunner(CameraFake(), config)


def test_novelty_reads_its_own_group_and_the_time_of_a_step():
    config = runner_configs.isaac_lab_two()
    config["algorithm"]["rnd_cfg"] = {
        "weight": 0.5,
        "weight_schedule": {"mode": "linear", "initial_step": 0, "final_step": 100, "final_value": 0.0},
        "reward_normalization": True,
        "state_normalization": False,
        "learning_rate": 1e-3,
        "num_outputs": 2,
        "predictor_hidden_dims": [4],
        "target_hidden_dims": [-1],
        "activation": "elu",
    }
    config["obs_groups"] = {"policy": ["policy"], "rnd_state": ["critic"]}
    runner = OnPolicyRunner(IsaacLabTwoFake(num_envs=4), config)
    term = next(iter(runner.alg.terms))
    assert term.config.obs_components == ("privileged_obs",) and term.config.step_dt == 0.04
    assert term.config.target_hidden_dims == (3,)  # as wide as what it reads
    runner.learn(2)
    # two rollouts of 4 steps: 0.5 · (1 - 8 / 100)
    assert float(term.weight) == pytest.approx(0.46)


def mirror_flat(obs: Any, actions: Any, env: Any, obs_type: str) -> tuple[Any, Any]:
    assert isinstance(env, IsaacLabTwoFake) and obs_type in ("policy", "critic")
    both = lambda x: None if x is None else torch.cat([x, -x])  # noqa: E731
    return both(obs), both(actions)


def mirror_groups(env: Any, obs: Any, actions: Any) -> tuple[Any, Any]:
    if obs is not None:
        obs = torch.cat([obs, obs.apply(lambda x: -x), obs.apply(lambda x: 2 * x)])  # a TensorDict, as rsl_rl hands it
    return obs, None if actions is None else torch.cat([actions, -actions, actions])


@pytest.mark.parametrize("form", ["flat", "groups", "named"])
def test_mirror_functions_of_both_forms(form):
    settings = {"use_data_augmentation": True, "use_mirror_loss": True, "mirror_loss_coeff": 0.5}
    if form == "flat":
        config, env = runner_configs.isaac_lab_two(), IsaacLabTwoFake(num_envs=4)
        settings["data_augmentation_func"] = mirror_flat
    else:
        config, env = runner_configs.rsl_rl_four(), GroupsFake(num_envs=4)
        settings["data_augmentation_func"] = f"{__name__}:mirror_groups" if form == "named" else mirror_groups
    config["algorithm"]["symmetry_cfg"] = settings
    runner = OnPolicyRunner(env, config)
    term = next(iter(runner.alg.terms))
    obs = {name: torch.randn(5, *part.shape) for name, part in runner.vec_env.obs_spec.items()}
    mirrored = term.mirror_obs(obs)
    assert all(torch.equal(mirrored[name], -value) for name, value in obs.items())
    runner.learn(2)
    assert runner.trainer.record.metrics["train/mirror_loss"] > 0


def test_configs_that_are_objects():
    @dataclass
    class Agent:
        num_steps_per_env: int = 4
        policy: Any = None
        algorithm: Any = None

    plain = runner_configs.isaac_lab_two()
    found = read_train_config(Agent(policy=plain["policy"], algorithm=plain["algorithm"]))
    assert found.num_steps_per_env == 4 and found.generation == "v2"

    class WithToDict:
        def to_dict(self) -> dict[str, Any]:
            return plain

    assert read_train_config(WithToDict()) == read_train_config(plain)
    own = RunnerConfig(policy=PolicyConfig())
    assert read_train_config(own) is own


# -- mistakes, at construction -----------------------------------------------------------------------------------------


def changed(config: dict[str, Any], *path: str, value: Any) -> dict[str, Any]:
    inner = config
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return config


V1, V2, V3, V5 = (
    runner_configs.legged_gym,
    runner_configs.isaac_lab_two,
    runner_configs.isaac_lab_three,
    lambda: runner_configs.mjlab("policy"),
)


@pytest.mark.parametrize(
    ("make", "path", "value", "error", "text"),
    [
        (V2, ("algorithm", "clip_parm"), 0.2, KeyError, "Did you mean 'clip_param'"),
        (V2, ("num_step_per_env",), 4, KeyError, "Did you mean 'num_steps_per_env'"),
        (V1, ("runner", "save_intervall"), 4, KeyError, "Did you mean 'save_interval'"),
        (V5, ("actor", "hidden_dim"), (8,), KeyError, "Did you mean 'hidden_dims'"),
        (V5, ("actor", "distribution_cfg", "init_noise"), 1.0, KeyError, "init_noise"),
        (V2, ("policy", "actor_hiden_dims"), [8], TypeError, "Did you mean 'actor_hidden_dims'"),
        (V2, ("policy", "class_name"), "ActorCritc", ValueError, "Did you mean 'ActorCritic'"),
        (V2, ("algorithm", "class_name"), "TRPO", ValueError, "has no algorithm 'TRPO'"),
        (V5, ("actor", "class_name"), "mjlab.rl:SpatialSoftmaxCNNModel", ValueError, "has no network"),
        (V2, ("algorithm", "num_mini_batches"), 100, ValueError, "num_mini_batches=100 cannot be made of 12 samples"),
        (V3, ("algorithm", "num_mini_batches"), 4, ValueError, "cannot be made of 3 envs"),
        (V2, ("algorithm", "gamma"), "high", TypeError, "gamma: wanted float"),
        (V2, ("num_steps_per_env",), 2.5, TypeError, "num_steps_per_env: wanted int"),
        (V2, ("algorithm",), ["PPO"], TypeError, "wanted a dict of settings"),
        (V2, ("algorithm", "optimizer"), "lion", ValueError, "lion"),
        (V2, ("logger",), "tensorbord", ValueError, "Did you mean 'tensorboard'"),
        (V3, ("obs_groups", "critic"), ["polcy"], KeyError, "GroupsFake|RslRlEnv gives.*Did you mean 'policy'"),
        (V3, ("obs_groups", "policy"), 3.5, TypeError, "wanted a list"),
        (V5, ("critic", "activation"), "relu", ValueError, "one activation between them"),
        (V5, ("actor", "cnn_cfg"), {"output_channels": [4]}, ValueError, "no effect on an RNNModel"),
        (V5, ("student",), {}, ValueError, "distillation"),
    ],
)
def test_a_mistake_is_named_before_anything_runs(make, path, value, error, text):
    env = GroupsFake() if make in (V3, V5) else IsaacLabTwoFake()
    with pytest.raises(error, match=text):
        OnPolicyRunner(env, changed(make(), *path, value=value))


def test_things_that_are_no_configs_or_no_envs():
    with pytest.raises(TypeError, match="wanted a RunnerConfig or a dict"):
        OnPolicyRunner(IsaacLabTwoFake(), 3)
    with pytest.raises(ValueError, match="neither 'runner'"):
        OnPolicyRunner(IsaacLabTwoFake(), {"num_steps_per_env": 4})
    with pytest.raises(TypeError, match="wanted an env: a VecEnv"):
        OnPolicyRunner(object(), runner_configs.isaac_lab_two())
    own = RunnerConfig(obs_groups={"actor": ("policy",)})
    with pytest.raises(ValueError, match="obs_groups beside a PolicyConfig"):
        OnPolicyRunner(IsaacLabTwoFake(), own)


# -- rsl_rl's defaults, whatever `PPOConfig()` has ---------------------------------------------------------------------

RSL_RL_ONE = {
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
    "lr_scheduler_class_name": None,
    "lr_scheduler": {},
    "normalize_advantage_per_mini_batch": False,
    "normalize_values": False,
    "use_mixed_precision": False,
    "reward_groups": {},
    "reward_group_weights": {},
}
"""Every setting of PPO in rsl_rl 1 to 3, where a config has none."""
RSL_RL_FIVE = {
    **RSL_RL_ONE,
    "num_learning_epochs": 5,
    "num_mini_batches": 4,
    "gamma": 0.99,
    "entropy_coef": 0.01,
    "clip_networks_apart": True,
    "schedule": "adaptive",
}
"""The same in rsl_rl 4 and 5."""
TEACHER = {"teacher_policy": {"class_name": "ActorCritic", "teacher_ac_path": "somewhere"}}


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"runner": {"policy_class_name": "ActorCritic"}, "policy": {}, "algorithm": {}}, RSL_RL_ONE),
        ({"runner": {"algorithm_class_name": "TPPO"}, "policy": {}, "algorithm": TEACHER}, RSL_RL_ONE),
        ({"policy": {"class_name": "ActorCritic"}, "algorithm": {"class_name": "PPO"}}, RSL_RL_ONE),
        ({"policy": {"class_name": "ActorCritic"}, "algorithm": {"class_name": "PPO", "ppo": {}}}, RSL_RL_ONE),
        ({"policy": {"class_name": "ActorCritic"}, "algorithm": {"class_name": "APPO"}}, RSL_RL_ONE),
        ({"policy": {"class_name": "ActorCritic"}, "algorithm": {"class_name": "EstimatorPPO"}}, RSL_RL_ONE),
        ({"policy": {}, "algorithm": {"class_name": "ATPPO", **TEACHER}}, RSL_RL_ONE),
        ({"policy": {}, "algorithm": {"class_name": "EstimatorTPPO", **TEACHER}}, RSL_RL_ONE),
        ({"policy": {}, "algorithm": {"class_name": "PPO"}, "obs_groups": {"policy": ["policy"]}}, RSL_RL_ONE),
        ({"actor": {}, "critic": {}, "algorithm": {"class_name": "PPO"}}, RSL_RL_FIVE),
        ({"actor": {"distribution_cfg": {"class_name": "GaussianDistribution"}}, "critic": {}}, RSL_RL_FIVE),
    ],
)
def test_settings_of_ppo_that_a_runner_is_not_given_are_those_of_rsl_rl(config, wanted):
    assert dataclasses.asdict(read_train_config(config).algorithm) == wanted


def test_a_runner_config_without_settings_of_ppo_has_those_of_rsl_rl():
    assert dataclasses.asdict(RunnerConfig().algorithm) == RSL_RL_ONE


@pytest.mark.parametrize("defaults", [{}, {"gamma": 0.99, "entropy_coef": 0.01, "schedule": "adaptive"}])
def test_no_default_of_rsl_rl_is_warned_about_without_ppo(defaults):
    config = without_rsl_rl_defaults(rsl_rl_ppo_config(**defaults))
    assert TPPOConfig(using_ppo=False, ppo=config).without_effect() == []
    # what learning without PPO reads is rsl_rl's, and what somebody changed is told
    assert (config.num_learning_epochs, config.max_grad_norm) == (1, 1.0)
    changed = without_rsl_rl_defaults(rsl_rl_ppo_config(**{**defaults, "lam": 0.9}))
    assert TPPOConfig(using_ppo=False, ppo=changed).without_effect() == ["lam"]
