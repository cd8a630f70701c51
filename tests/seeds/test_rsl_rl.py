"""The notes on rsl_rl and parkour: what is not shown by the tests of st_rl already, and rsl_rl's published configs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from cart_pole import CartPole
from torch import Tensor, nn

from striderl.compat.st_rl import (
    PPO,
    ActorCritic,
    ActorCriticRecurrent,
    EmpiricalDiscountedVariationNormalization,
    EmpiricalNormalization,
    Memory,
    OnPolicyRunner,
    RolloutStorage,
)
from striderl.data.buffers import buffer_from_example
from striderl.data.named_tuples import NamedArrayTupleSchema, is_namedarraytuple, namedarraytuple
from striderl.networks import resolve_nn_activation
from striderl.ops.trajectories import split_and_pad_trajectories, unpad_trajectories
from striderl.policies.facade.memory import LstmHiddenState
from striderl.policies.transfer.parts import replace_encoder0
from striderl.training import OnPolicyRunner as TrainingRunner

N = 4


@pytest.mark.described("rsl_rl", 2, "An algorithm takes data of env.step, stores it, and optimises policy and critic.")
@pytest.mark.described("rsl_rl", 9, "The constructor takes the clip parameters; init_storage makes a RolloutStorage.")
@pytest.mark.described("rsl_rl", 14, "update makes batches of the storage and updates the network with them.")
def test_ppo_step_by_step() -> None:
    env = CartPole(N)
    alg = PPO(ActorCritic(4, 4, 1), clip_param=0.1, num_learning_epochs=2, num_mini_batches=2)
    alg.init_storage(N, 3, [4], [None], [1])
    assert alg.clip_param == 0.1 and isinstance(alg.storage, RolloutStorage)
    obs, before = env.reset(), copy.deepcopy(alg.actor_critic.state_dict())
    for _ in range(3):
        actions = alg.act(obs, obs)
        obs, rewards, dones, infos = env.step(actions)
        alg.process_env_step(rewards, dones, infos)
    assert alg.storage.step == 3
    alg.compute_returns(obs)
    losses, _ = alg.update()
    assert {"surrogate_loss", "value_loss", "entropy", "total_loss"} == set(losses) and alg.storage.step == 0
    assert all(
        not torch.equal(value, before[name])
        for name, value in alg.actor_critic.state_dict().items()
        if "weight" in name
    )


@pytest.mark.described("rsl_rl", 90, "resolve_nn_activation returns an activation function.")
@pytest.mark.described("rsl_rl", 91, "split_and_pad_trajectories splits [T, N, …] into one column per trajectory.")
@pytest.mark.described("rsl_rl", 93, "An env may have several trajectories in one rollout.")
def test_utilities() -> None:
    assert isinstance(resolve_nn_activation("elu"), nn.ELU)
    steps = torch.arange(12.0).view(4, 3, 1)
    dones = torch.zeros(4, 3)
    dones[1, 0] = dones[2, 0] = 1
    padded, masks = split_and_pad_trajectories(steps, dones)
    assert padded.shape == (4, 5, 1) and masks.sum(0).tolist() == [2, 1, 1, 4, 4]
    assert torch.equal(unpad_trajectories(padded, masks), steps)


@pytest.mark.described("rsl_rl", 103, "buffer_from_example makes a buffer with leading dimensions, in shared memory.")
def test_buffers() -> None:
    example = namedarraytuple("Step", ["obs", "reward"])(torch.zeros(3), torch.zeros(()))
    buffer = buffer_from_example(example, (5, 2), share_memory=True)
    assert (
        buffer.obs.shape == (5, 2, 3) and buffer.reward.shape == (5, 2) and type(buffer.obs).__name__ == "SharedArray"
    )


@pytest.mark.described("rsl_rl", 107, "replace_encoder0 replaces the encoder of a checkpoint.")
def test_the_manipulator_of_checkpoints() -> None:
    source = {"encoders.0.weight": torch.ones(2), "actor.0.weight": torch.ones(3), "critic_encoders.0.w": torch.ones(1)}
    own = {name: torch.zeros_like(value) for name, value in source.items()}
    found = replace_encoder0({"model_state_dict": source, "iter": 3}, {"model_state_dict": own})["model_state_dict"]
    assert not found["encoders.0.weight"].any() and found["actor.0.weight"].all() and found["critic_encoders.0.w"].all()


@pytest.mark.described("rsl_rl", 110, "namedtuple, namedarraytuple and their schemas.")
@pytest.mark.described("rsl_rl", 117, "A namedarraytuple is turned into a tuple for the network, and back.")
def test_the_namedarraytuple_brochure() -> None:
    class Recurrent:
        def __init__(self) -> None:
            self.rnn, self.hidden_states = nn.LSTM(4, 5), LstmHiddenState(torch.zeros(1, N, 5), torch.zeros(1, N, 5))

        def __call__(self, input: Tensor) -> Tensor:
            if is_namedarraytuple(self.hidden_states):
                self.hidden_states = tuple(self.hidden_states)
            out, self.hidden_states = self.rnn(input.unsqueeze(0), self.hidden_states)
            if isinstance(self.hidden_states, tuple):
                self.hidden_states = LstmHiddenState(*self.hidden_states)
            return out.squeeze(0)

    model = Recurrent()
    assert model(torch.randn(N, 4)).shape == (N, 5) and is_namedarraytuple(model.hidden_states)
    assert model.hidden_states[:, 1].hidden.shape == (1, 5), "indexing reaches every field"
    made = NamedArrayTupleSchema("Step", ["obs", "done"])(torch.zeros(3, 2), torch.zeros(3))
    assert is_namedarraytuple(made) and made[1].obs.shape == (2,)


@pytest.mark.described("rsl_rl", 142, "ActorCriticHiddenState holds the states of two LSTMs; Memory processes them.")
@pytest.mark.described("rsl_rl", 149, "compute_losses hands hidden states of this structure to actor_critic.act.")
def test_hidden_states_have_names() -> None:
    model = ActorCriticRecurrent(4, 4, 2, rnn_hidden_size=5)
    assert isinstance(model.memory_a, Memory)
    model.act(torch.randn(N, 4))
    model.evaluate(torch.randn(N, 4))
    states = model.get_hidden_states()
    assert states.actor.hidden.shape == states.critic.cell.shape == (1, N, 5)
    model.act(torch.randn(3, N, 4), masks=torch.ones(3, N), hidden_states=states.actor)
    assert model.action_mean.shape == (3, N, 2)


@pytest.mark.described("rsl_rl", 154, "A runner's save adds 'iter' and 'infos' to the algorithm's state.")
def test_the_runners_save_of_the_document(tmp_path: Path) -> None:
    class Runner(OnPolicyRunner):
        def save(self, path: Any, infos: Any = None) -> None:
            run_state_dict = self.alg.state_dict()
            run_state_dict.update({"iter": self.current_learning_iteration, "infos": infos})
            torch.save(run_state_dict, path)

    config = {"num_steps_per_env": 2, "policy": {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}, "algorithm": {}}
    runner = Runner(CartPole(N), {**config, "logger": "none"}, tmp_path)
    runner.learn(1)
    other = OnPolicyRunner(CartPole(N), config)
    other.load(tmp_path / "model_1.pt")
    assert other.current_learning_iteration == 1
    torch.testing.assert_close(other.alg.actor_critic.state_dict(), runner.alg.actor_critic.state_dict())


def test_rewards_are_scaled_by_the_spread_of_their_discounted_sums() -> None:
    norm = EmpiricalDiscountedVariationNormalization(shape=[], gamma=0.99)
    torch.manual_seed(0)
    found = [norm(10.0 * torch.randn(64)) for _ in range(400)]
    assert 0.05 < float(torch.stack(found[-50:]).std()) < 0.5, "about 1 / sqrt(1 / (1 - gamma²))"
    fresh = EmpiricalDiscountedVariationNormalization(shape=[]).eval()
    assert fresh(torch.tensor([5.0])).item() == 5.0


def test_normalisers_have_rsl_rls_names_of_weights() -> None:
    assert set(EmpiricalNormalization(3).state_dict()) == {"_mean", "_var", "_std", "count"}


# -- published configs -------------------------------------------------------------------------------------------------


class GroupsEnv:
    """Observations in groups, as rsl_rl 3 on."""

    num_envs, num_actions, device, max_episode_length, step_dt = N, 2, "cpu", 10, 0.02

    def __init__(self) -> None:
        self.episode_length_buf, self.unwrapped = torch.zeros(N, dtype=torch.long), self

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_observations(self) -> dict[str, Tensor]:
        return {"policy": torch.randn(N, 6), "privileged": torch.randn(N, 2)}

    def reset(self) -> Any:
        return self.get_observations(), {}

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        return self.get_observations(), torch.zeros(N), torch.zeros(N, dtype=torch.long), {}


LEARNING: dict[str, Any] = {
    "class_name": "PPO",
    "learning_rate": 0.001,
    "num_learning_epochs": 1,
    "num_mini_batches": 2,
    "schedule": "adaptive",
    "value_loss_coef": 1.0,
    "clip_param": 0.2,
    "use_clipped_value_loss": True,
    "desired_kl": 0.01,
    "entropy_coef": 0.01,
    "gamma": 0.99,
    "lam": 0.95,
    "max_grad_norm": 1.0,
}
RND: dict[str, Any] = {
    "weight": 0.0, "weight_schedule": None, "reward_normalization": False, "learning_rate": 0.001, "num_outputs": 1,
    "predictor_hidden_dims": [-1], "target_hidden_dims": [-1],
}  # fmt: skip
SYMMETRY: dict[str, Any] = {
    "use_data_augmentation": True,
    "use_mirror_loss": False,
    "data_augmentation_func": None,
    "mirror_loss_coeff": 0.0,
}
POLICY: dict[str, Any] = {
    "class_name": "ActorCritic",
    "activation": "elu",
    "actor_hidden_dims": [8],
    "critic_hidden_dims": [8],
    "init_noise_std": 1.0,
}
OLD_RUNNER = {
    "num_steps_per_env": 4, "max_iterations": 3, "save_interval": 50, "experiment_name": "walking", "run_name": "",
    "empirical_normalization": False, "logger": "tensorboard", "neptune_project": "legged_gym", "resume": False,
    "load_run": -1, "resume_path": None, "checkpoint": -1,
}  # fmt: skip
OUTSIDE = {"runner_class_name": "OnPolicyRunner", "seed": 1}
NEW_RUNNER = {
    "class_name": "OnPolicyRunner", "num_steps_per_env": 4, "max_iterations": 3, "seed": 1, "save_interval": 50,
    "experiment_name": "walking", "run_name": "", "logger": "tensorboard", "wandb_project": "legged_gym",
}  # fmt: skip
PRIVILEGED = {"critic": ["policy", "privileged"]}
EXTENDED = {**LEARNING, "normalize_advantage_per_mini_batch": False, "rnd_cfg": RND, "symmetry_cfg": SYMMETRY}
MODEL = {"class_name": "MLPModel", "hidden_dims": [8], "activation": "elu", "obs_normalization": False}
PUBLISHED: dict[str, dict[str, Any]] = {
    "1.0": {
        "algorithm": LEARNING,
        "policy": POLICY,
        "runner": {**OLD_RUNNER, "algorithm_class_name": "PPO", "policy_class_name": "ActorCritic"},
        **OUTSIDE,
    },
    "2.0": {"algorithm": LEARNING, "policy": POLICY, "runner": OLD_RUNNER, **OUTSIDE},
    "2.0 with clearml": {
        "algorithm": LEARNING,
        "policy": POLICY,
        "runner": {**OLD_RUNNER, "clearml_project": "x"},
        **OUTSIDE,
    },
    "2.2": {
        "algorithm": {**LEARNING, "rnd_cfg": {**RND, "gate_normalization": True}, "symmetry_cfg": SYMMETRY},
        "policy": POLICY,
        "runner": OLD_RUNNER,
        **OUTSIDE,
    },
    "2.2.2": {
        "algorithm": {**EXTENDED, "rnd_cfg": {**RND, "gate_normalization": True}},
        "policy": {**POLICY, "std_type": "scalar"},
        "runner": OLD_RUNNER,
        **OUTSIDE,
    },
    "2.3": {
        "algorithm": {**EXTENDED, "rnd_cfg": {**RND, "state_normalization": True}},
        "policy": {**POLICY, "noise_std_type": "scalar"},
        "runner": OLD_RUNNER,
        **OUTSIDE,
    },
    "3.0": {
        "runner": {
            **NEW_RUNNER,
            "obs_groups": {"policy": ["policy"], **PRIVILEGED},
            "policy": {
                **POLICY,
                "actor_obs_normalization": False,
                "critic_obs_normalization": False,
                "noise_std_type": "log",
            },
            "algorithm": EXTENDED,
        }
    },
    "3.1": {
        "runner": {
            **NEW_RUNNER,
            "obs_groups": {"policy": ["policy"], **PRIVILEGED},
            "policy": {**POLICY, "state_dependent_std": False, "critic_obs_normalization": False},
            "algorithm": EXTENDED,
        }
    },
    "4.0": {
        "runner": {
            **NEW_RUNNER,
            "obs_groups": {"actor": ["policy"], **PRIVILEGED},
            "actor": {
                **MODEL,
                "stochastic": True,
                "init_noise_std": 1.0,
                "noise_std_type": "scalar",
                "state_dependent_std": False,
            },
            "critic": {**MODEL, "stochastic": False},
            "algorithm": EXTENDED,
        }
    },
    "4.0 before release": {
        "runner": {
            **NEW_RUNNER,
            "obs_groups": {"actor": ["policy"], **PRIVILEGED},
            "actor": {**MODEL, "stochastic": True, "init_std": 1.0, "std_type": "scalar"},
            "critic": {**MODEL, "stochastic": False},
            "algorithm": EXTENDED,
        }
    },
    "5": {
        "runner": {
            "num_steps_per_env": 4,
            "save_interval": 100,
            "obs_groups": {"actor": ["policy"], **PRIVILEGED},
            "algorithm": {"class_name": "PPO"},
            "actor": {"class_name": "MLPModel", "distribution_cfg": {"class_name": "GaussianDistribution"}},
            "critic": {"class_name": "MLPModel"},
        }
    },
}
"""Configs with the keys of rsl_rl's published yaml files, one for each set of keys."""


@pytest.mark.parametrize("version", PUBLISHED)
def test_a_published_config_builds_a_runner_and_learns(version: str) -> None:
    runner = TrainingRunner(GroupsEnv(), copy.deepcopy(PUBLISHED[version]))
    runner.learn(1)
    grouped = version[0] in "345"
    assert runner.alg.policy.critic_inputs.size == (8 if grouped else 6)


def test_a_whole_config_beside_others_is_refused() -> None:
    with pytest.raises(ValueError, match=r"train_cfg has \['policy'\] beside it"):
        TrainingRunner(GroupsEnv(), {**PUBLISHED["3.0"], "policy": POLICY})


# -- an algorithm of one's own -----------------------------------------------------------------------------------------


class TrustRegion(PPO):
    """PPO with a penalty on the KL divergence in the place of clipping, whose weight follows the divergence."""

    kl_penalty_coef = 1.0

    def compute_losses(self, minibatch: Any) -> Any:
        self.actor_critic.act(minibatch.obs)
        log_prob = self.actor_critic.get_actions_log_prob(minibatch.actions)
        ratio = torch.exp(log_prob - minibatch.old_actions_log_prob.squeeze(-1))
        mean, std = self.actor_critic.action_mean, self.actor_critic.action_std
        old = torch.distributions.Normal(minibatch.old_mu, minibatch.old_sigma)
        kl = torch.distributions.kl_divergence(old, torch.distributions.Normal(mean, std)).sum(-1)
        value = self.actor_critic.evaluate(minibatch.critic_obs)
        losses = {
            "surrogate": -(ratio * minibatch.advantages.squeeze(-1)).mean(),
            "kl_penalty": kl.mean(),
            "value_loss": (value - minibatch.returns).pow(2).mean(),
        }
        return losses, {}, {"kl": kl.mean().detach()}

    def update(self, current_learning_iteration: Any = None) -> Any:
        losses, stats = super().update(current_learning_iteration)
        self.kl_penalty_coef *= 2.0 if float(stats["kl"]) > 0.02 else 0.5
        self.kl_penalty_coef = min(max(self.kl_penalty_coef, 0.1), 100.0)
        return losses, stats


@pytest.mark.slow
def test_an_own_algorithm_in_these_words_learns_cartpole() -> None:
    torch.manual_seed(0)
    env = CartPole(32)
    config = {
        "num_steps_per_env": 32,
        "policy": {"actor_hidden_dims": [32], "critic_hidden_dims": [32], "activation": "tanh", "init_noise_std": 0.5},
        "algorithm": {
            "class_name": TrustRegion,
            "num_learning_epochs": 8,
            "num_mini_batches": 4,
            "learning_rate": 3e-3,
            "gamma": 0.99,
            "clip_min_std": 0.1,
        },
    }
    runner = OnPolicyRunner(env, config)
    runner.learn(3)
    first = env.mean_length()
    runner.learn(50)
    assert first < 60.0 and env.mean_length() > 120.0
