"""rsl_rl 5 in the GPU benchmark: its `PPO`, models and storage, with its runner's loop around them."""

from __future__ import annotations

from typing import Any

import torch
from gpu_tasks import ACTIONS, GpuTask, set_precision, table, timed
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel, RNNModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

_GROUPS = {"actor": ["policy"], "critic": ["policy", "privileged"]}


def _models(task: GpuTask, obs: TensorDict) -> tuple[Any, Any]:
    gaussian = {"class_name": "rsl_rl.modules.distribution:GaussianDistribution", "init_std": 1.0}
    if task.kind == "lstm":
        shape = {"rnn_type": "lstm", "rnn_hidden_dim": 256, "rnn_num_layers": 1}
        actor = RNNModel(obs, _GROUPS, "actor", ACTIONS, task.hidden, "elu", distribution_cfg=gaussian, **shape)
        return actor, RNNModel(obs, _GROUPS, "critic", 1, task.hidden, "elu", **shape)
    actor = MLPModel(obs, _GROUPS, "actor", ACTIONS, task.hidden, "elu", distribution_cfg=gaussian)
    return actor, MLPModel(obs, _GROUPS, "critic", 1, task.hidden, "elu")


def run(task: GpuTask) -> dict[str, Any]:
    """Time collecting, returns and update."""
    if task.precision == "bf16":
        raise ValueError("rsl_rl has no setting for bfloat16")
    set_precision(task)
    rows = table(task)
    shown = [
        TensorDict({name: row[name] for name in ("policy", "privileged")}, batch_size=[task.num_envs], device="cuda")
        for row in rows
    ]
    torch.manual_seed(0)
    actor, critic = _models(task, shown[0])
    algorithm = PPO(
        actor.to("cuda"),
        critic.to("cuda"),
        RolloutStorage("rl", task.num_envs, task.num_steps, shown[0], (ACTIONS,), device="cuda"),
        num_learning_epochs=5,
        num_mini_batches=4,
        clip_param=0.2,
        gamma=0.99,
        lam=0.95,
        value_loss_coef=1.0,
        entropy_coef=0.01,
        learning_rate=1e-3,
        max_grad_norm=1.0,
        use_clipped_value_loss=True,
        schedule="adaptive",
        desired_kl=0.01,
        device="cuda",
    )
    if task.mode == "compiled":
        algorithm.compile("default")
    algorithm.train_mode()
    now = shown[0]

    def rollout() -> None:
        nonlocal now
        with torch.inference_mode():
            for row, obs in zip(rows, shown):
                algorithm.act(now)
                now = obs
                done = row["terminated"] | row["truncated"]
                algorithm.process_env_step(now, row["reward"], done, {"time_outs": row["truncated"]})

    def returns() -> None:
        with torch.inference_mode():
            algorithm.compute_returns(now)

    return timed({"rollout": rollout, "returns": returns, "update": algorithm.update}, task)
