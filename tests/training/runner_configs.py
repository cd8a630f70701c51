"""Config dicts of all rsl_rl generations as launch scripts deliver them, with small networks and short rollouts."""

from __future__ import annotations

from typing import Any

PPO = {
    "value_loss_coef": 1.0,
    "use_clipped_value_loss": True,
    "clip_param": 0.2,
    "entropy_coef": 0.01,
    "num_learning_epochs": 2,
    "num_mini_batches": 2,
    "learning_rate": 1.0e-3,
    "schedule": "adaptive",
    "gamma": 0.99,
    "lam": 0.95,
    "desired_kl": 0.01,
    "max_grad_norm": 1.0,
}


def legged_gym() -> dict[str, Any]:
    """v1: class_to_dict(LeggedRobotCfgPPO)."""
    return {
        "seed": 1,
        "runner_class_name": "OnPolicyRunner",
        "init_member_classes": {},
        "policy": {
            "init_noise_std": 1.0,
            "actor_hidden_dims": [8, 8],
            "critic_hidden_dims": [8, 8],
            "activation": "elu",
        },
        "algorithm": dict(PPO),
        "runner": {
            "policy_class_name": "ActorCritic",
            "algorithm_class_name": "PPO",
            "num_steps_per_env": 4,
            "max_iterations": 1500,
            "save_interval": 50,
            "experiment_name": "rough_a1",
            "run_name": "",
            "resume": False,
            "load_run": -1,
            "checkpoint": -1,
            "resume_path": None,
        },
    }


def isaac_lab_two() -> dict[str, Any]:
    """v2: RslRlOnPolicyRunnerCfg of Isaac Lab 2.0, to_dict()."""
    return {
        "seed": 42,
        "device": "cuda:0",
        "num_steps_per_env": 4,
        "max_iterations": 1500,
        "empirical_normalization": True,
        "policy": {
            "class_name": "ActorCritic",
            "init_noise_std": 1.0,
            "noise_std_type": "log",
            "actor_hidden_dims": [8, 8],
            "critic_hidden_dims": [8, 8],
            "activation": "elu",
        },
        "algorithm": {
            "class_name": "PPO",
            **PPO,
            "normalize_advantage_per_mini_batch": False,
            "symmetry_cfg": None,
            "rnd_cfg": None,
        },
        "clip_actions": None,
        "save_interval": 50,
        "experiment_name": "anymal_c_rough",
        "run_name": "",
        "logger": "tensorboard",
        "neptune_project": "isaaclab",
        "wandb_project": "isaaclab",
        "resume": False,
        "load_run": ".*",
        "load_checkpoint": "model_.*.pt",
    }


def isaac_lab_three(acting: str = "policy") -> dict[str, Any]:
    """v3: Isaac Lab 2.3, recurrent, with groups."""
    config = isaac_lab_two()
    del config["empirical_normalization"]
    config["obs_groups"] = {"policy": [acting], "critic": [acting, "critic"]}
    config["policy"] = {
        "class_name": "ActorCriticRecurrent",
        "init_noise_std": 1.0,
        "noise_std_type": "scalar",
        "state_dependent_std": False,
        "actor_obs_normalization": True,
        "critic_obs_normalization": True,
        "actor_hidden_dims": [8],
        "critic_hidden_dims": [8],
        "activation": "elu",
        "rnn_type": "lstm",
        "rnn_hidden_dim": 6,
        "rnn_num_layers": 1,
    }
    return config


def rsl_rl_four(acting: str = "policy") -> dict[str, Any]:
    """v4: actor and critic apart, the noise among the actor's settings."""
    config = isaac_lab_two()
    del config["empirical_normalization"], config["policy"]
    network = {"hidden_dims": [8, 8], "activation": "elu", "obs_normalization": True}
    config["obs_groups"] = {"actor": [acting], "critic": ["critic"]}
    config["actor"] = {
        "class_name": "rsl_rl.models:MLPModel",
        **network,
        "stochastic": True,
        "init_noise_std": 0.8,
        "noise_std_type": "scalar",
        "state_dependent_std": False,
    }
    config["critic"] = {"class_name": "MLPModel", **network, "stochastic": False}
    config["algorithm"] |= {"optimizer": "adam", "share_cnn_encoders": False}
    config["check_for_nan"] = True
    return config


def mjlab(acting: str = "actor") -> dict[str, Any]:
    """v5: asdict(RslRlOnPolicyRunnerCfg) of mjlab 1.6: tuples, a distribution, None where nothing is set."""
    network = {"hidden_dims": (8, 8), "activation": "elu", "obs_normalization": True, "cnn_cfg": None}
    memory = {"rnn_type": "gru", "rnn_hidden_dim": 6, "rnn_num_layers": 1}
    distribution = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"}
    return {
        "seed": 42,
        "num_steps_per_env": 4,
        "max_iterations": 300,
        "obs_groups": {"actor": (acting,), "critic": ("critic",)},
        "save_interval": 50,
        "experiment_name": "g1_velocity",
        "run_name": "",
        "logger": "tensorboard",
        "wandb_project": "mjlab",
        "wandb_tags": (),
        "resume": False,
        "load_run": ".*",
        "load_checkpoint": "model_.*.pt",
        "clip_actions": None,
        "upload_model": True,
        "class_name": "OnPolicyRunner",
        "actor": {"class_name": "RNNModel", **network, **memory, "distribution_cfg": distribution},
        "critic": {"class_name": "MLPModel", **network, "distribution_cfg": None},
        "algorithm": {"class_name": "PPO", **PPO, "optimizer": "adam", "share_cnn_encoders": False},
    }


def st_rl() -> dict[str, Any]:
    """st_rl: flat, PPO's settings nested, normalisation asked of the algorithm."""
    return {
        "num_steps_per_env": 4,
        "save_interval": 10,
        "log_interval": 2,
        "policy": {"class_name": "ActorCritic", "actor_hidden_dims": [8], "critic_hidden_dims": [8]},
        "algorithm": {"class_name": "PPO", "empirical_normalization": True, "ppo": {**PPO, "clip_min_std": [0.1, 0.2]}},
    }
