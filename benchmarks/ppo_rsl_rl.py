"""rsl_rl 5 in the PPO benchmarks: its `PPO`, models and storage; training on Gymnasium's `SyncVectorEnv`.

It has no head for choices, so there is no row for CartPole. Its update uses one permutation for all epochs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from harness_process import UnavailableError
from ppo_tasks import (
    CLIP,
    GAMMA,
    LAM,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    VALUE_COEF,
    CollectTask,
    Rollout,
    StillEnv,
    TrainTask,
    UpdateTask,
    Work,
    make_plain,
    rollout,
    rollout_of,
)
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

_GROUPS = {"actor": ["policy"], "critic": ["policy"]}


def _learner(
    obs: TensorDict,
    action_size: int,
    num_steps: int,
    hidden: tuple[int, ...],
    activation: str,
    epochs: int,
    minibatches: int,
) -> PPO:
    def model(part: str, size: int, distribution: dict[str, Any] | None) -> MLPModel:
        return MLPModel(obs, _GROUPS, part, size, hidden, activation, distribution_cfg=distribution)

    gaussian = {"class_name": "rsl_rl.modules.distribution:GaussianDistribution", "init_std": 1.0}
    num_envs = obs.batch_size[0]
    return PPO(
        model("actor", action_size, gaussian),
        model("critic", 1, None),
        RolloutStorage("rl", num_envs, num_steps, obs, (action_size,)),
        num_learning_epochs=epochs,
        num_mini_batches=minibatches,
        clip_param=CLIP,
        gamma=GAMMA,
        lam=LAM,
        value_loss_coef=VALUE_COEF,
        entropy_coef=0.0,
        learning_rate=LEARNING_RATE,
        max_grad_norm=MAX_GRAD_NORM,
        use_clipped_value_loss=False,
        schedule="fixed",
    )


def _observed(obs: Any) -> TensorDict:
    tensor = torch.as_tensor(obs, dtype=torch.float32)
    return TensorDict({"policy": tensor}, batch_size=[len(tensor)])


def _filled(algorithm: PPO, data: Rollout) -> None:
    storage = algorithm.storage
    storage.observations["policy"].copy_(torch.from_numpy(data.obs))
    storage.actions.copy_(torch.from_numpy(data.act))
    storage.rewards.copy_(torch.from_numpy(data.rew).unsqueeze(-1))
    storage.dones.copy_(torch.from_numpy(data.done).unsqueeze(-1))
    storage.values.copy_(torch.from_numpy(data.value).unsqueeze(-1))
    storage.actions_log_prob.copy_(torch.from_numpy(data.log_prob).unsqueeze(-1))
    storage.distribution_params = (torch.zeros_like(storage.actions), torch.ones_like(storage.actions))
    storage.step = storage.num_transitions_per_env


def update(task: UpdateTask) -> Work:
    """Return one update of a full storage."""
    torch.manual_seed(0)
    data = rollout_of(task)
    last_obs = _observed(data.last_obs)
    algorithm = _learner(
        last_obs, task.action_size, task.num_steps, task.hidden, task.activation, task.epochs, task.minibatches
    )
    _filled(algorithm, data)

    def work() -> None:
        with torch.inference_mode():
            algorithm.compute_returns(last_obs)
        algorithm.storage.returns = algorithm.storage.returns.clone()
        algorithm.storage.advantages = algorithm.storage.advantages.clone()
        algorithm.update()

    return work


def train(task: TrainTask) -> Work:
    """Return some iterations of its runner's loop: act, step, process, returns, update."""
    if task.env == "CartPole-v1":
        raise UnavailableError("–")
    torch.manual_seed(0)
    env = SyncVectorEnv([make_plain(task.env)] * task.num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    obs = _observed(env.reset(seed=0)[0])
    action_size = int(np.prod(env.single_action_space.shape or ()))
    algorithm = _learner(obs, action_size, task.num_steps, task.hidden, "tanh", task.epochs, task.minibatches)

    def work() -> None:
        nonlocal obs
        for _ in range(task.iterations):
            with torch.inference_mode():
                for _ in range(task.num_steps):
                    actions = algorithm.act(obs)
                    found, reward, terminated, truncated, _ = env.step(actions.numpy())
                    obs = _observed(found)
                    extras = {"time_outs": torch.from_numpy(truncated)}
                    done = torch.from_numpy(terminated | truncated)
                    algorithm.process_env_step(obs, torch.as_tensor(reward, dtype=torch.float32), done, extras)
                algorithm.compute_returns(obs)
            algorithm.update()

    return work


def collect(task: CollectTask) -> Work:
    """Return one rollout of its runner's loop without the update; observations are normalised."""
    torch.manual_seed(0)
    env = StillEnv(task)
    obs = env.get_observations()

    def model(part: str, size: int, distribution: dict[str, Any] | None) -> MLPModel:
        return MLPModel(
            obs, _GROUPS, part, size, task.hidden, "elu", obs_normalization=True, distribution_cfg=distribution
        )

    gaussian = {"class_name": "rsl_rl.modules.distribution:GaussianDistribution", "init_std": 1.0}
    storage = RolloutStorage("rl", task.num_envs, task.num_steps, obs, (task.action_size,))
    algorithm = PPO(model("actor", task.action_size, gaussian), model("critic", 1, None), storage)

    def work() -> None:
        shown = env.get_observations()
        with torch.inference_mode():
            for _ in range(task.num_steps):
                shown, reward, done, extras = env.step(algorithm.act(shown))
                algorithm.process_env_step(shown, reward, done, extras)
        storage.clear()

    return work


def returns(num_steps: int, num_envs: int) -> Work:
    """Return one call of `compute_returns`; it runs the critic on the last observation, here one of a single unit."""
    data = rollout(num_steps, num_envs, 1, 1)
    last_obs = _observed(data.last_obs)
    algorithm = _learner(last_obs, 1, num_steps, (1,), "tanh", 1, 1)
    _filled(algorithm, data)

    def work() -> None:
        with torch.inference_mode():
            algorithm.compute_returns(last_obs)

    return work
