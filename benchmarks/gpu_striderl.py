"""striderl in the GPU benchmark: its collector, PPO and trainer, phase by phase."""

from __future__ import annotations

from typing import Any

import torch
from gpu_tasks import ACTIONS, OBS, PRIVILEGED, GpuTask, set_precision, table, timed
from table_env import TableEnv

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.collect.collector import Collector
from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.vec_env import Step
from striderl.execution.background import Switch
from striderl.execution.modes import ExecutionConfig
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import Remember
from striderl.training.plans import OnPolicyPlan
from striderl.training.trainer import Trainer


def table_env(task: GpuTask, *, bounded: bool = False) -> TableEnv:
    """Return the env of a row: observations for the actor, more for the critic."""
    obs_spec = ObsSpec(
        {
            "policy": ComponentSpec(shape=(OBS,)),
            "privileged": ComponentSpec(shape=(PRIVILEGED,), group="critic"),
        }
    )
    action_spec = BoxSpec(shape=(ACTIONS,), low=-1.0, high=1.0) if bounded else BoxSpec(shape=(ACTIONS,))
    rows = [
        Step(
            obs={name: row[name] for name in obs_spec},
            reward=row["reward"],
            terminated=row["terminated"],
            truncated=row["truncated"],
            final_obs=None,
            info={"log": {}},
        )
        for row in table(task)
    ]
    return TableEnv(obs_spec, action_spec, rows)


def make_trainer(task: GpuTask, switch: Switch | None = None) -> Trainer:
    """Return a trainer that never ends."""
    set_precision(task)
    env = table_env(task)
    torch.manual_seed(0)
    stages = (Remember(type="lstm", hidden_size=256),) if task.kind == "lstm" else ()
    config = PolicyConfig(
        actor=stages, critic=stages, actor_hidden_dims=task.hidden, critic_hidden_dims=task.hidden, activation="elu"
    )
    policy = Policy(env.obs_spec, env.action_spec, config).to("cuda")
    settings = PPOConfig(
        num_learning_epochs=5,
        num_mini_batches=4,
        schedule="adaptive",
        entropy_coef=0.01,
        gamma=0.99,
        learning_rate=1e-3,
        value_loss_coef=1.0,
        max_grad_norm=1.0,
        use_clipped_value_loss=True,
        use_mixed_precision=task.precision == "bf16",
    )
    mode = ExecutionConfig(
        mode="graphed" if task.mode == "fused" else task.mode, fuse=task.mode in ("fused", "auto"), strict=True
    )
    algorithm = PPO(policy, settings, mode=mode)
    collector = Collector(env, algorithm.actor())
    plan = OnPolicyPlan(num_steps_per_env=task.num_steps, total_iterations=10**9)
    return Trainer(algorithm, collector, plan, switch=switch)


def run(task: GpuTask) -> dict[str, Any]:
    """Time collecting, preparing and updating; what is left of an iteration (statistics, records) is 'rest'."""
    trainer = make_trainer(task)

    def until(*phases: str) -> Any:
        def work() -> None:
            while trainer.advance() not in phases:
                pass

        return work

    return timed(
        {"rollout": until("collect"), "returns": until("prepare"), "update": until("update"), "rest": until("consume")},
        task,
    )
