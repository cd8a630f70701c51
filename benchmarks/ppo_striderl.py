"""striderl in the PPO benchmarks: `PPO`, `Trainer` and its own batched envs, as a user would put them together."""

from __future__ import annotations

from typing import Any

import torch
from ppo_tasks import (
    CLIP,
    GAMMA,
    LAM,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    VALUE_COEF,
    CollectTask,
    StillEnv,
    TrainTask,
    UpdateTask,
    Work,
    rollout,
    rollout_of,
)
from striderl_auto import after_switch, auto

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.data.transition import Transition, transition_columns
from striderl.envs.classic_control import CartPole
from striderl.envs.mujoco.gym_tasks import HalfCheetah, HalfCheetahConfig
from striderl.ops.returns import gae
from striderl.policies.policy import Policy, PolicyConfig
from striderl.storage.rollout import RolloutStorage
from striderl.training.plans import OnPolicyPlan
from striderl.training.protocols import order_generator
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner
from striderl.training.trainer import Trainer


def learner(policy: Policy, epochs: int, minibatches: int, mode: str) -> PPO:
    """Return PPO with the settings of all contenders."""
    config = PPOConfig(
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
    if mode == "eager":
        return PPO(policy, config)
    compiled: PPO = PPO(policy, config, (), mode=mode)
    return compiled


def update(task: UpdateTask, mode: str = "eager") -> Work:
    """Return one update of a full rollout."""
    torch.manual_seed(0)
    obs_spec, action_spec = ObsSpec({"obs": ComponentSpec(shape=(task.obs_size,))}), BoxSpec(shape=(task.action_size,))
    settings = PolicyConfig(actor_hidden_dims=task.hidden, critic_hidden_dims=task.hidden, activation=task.activation)
    policy = Policy(obs_spec, action_spec, settings)
    with auto(mode) as switch:
        algorithm = learner(policy, task.epochs, task.minibatches, mode)
    storage, last_obs = _filled(task, policy, obs_spec, action_spec)
    iteration = 0

    def work() -> None:
        nonlocal iteration
        prepared = algorithm.prepare(storage, initial_state={}, last_obs=last_obs, last_state={})
        numbers = algorithm.update(prepared, order_generator(0, iteration))
        torch.stack([number.double() for number in numbers.values()]).tolist()  # the log reads them all
        iteration += 1

    return after_switch(switch, work)


def _filled(task: UpdateTask, policy: Policy, obs_spec: ObsSpec, action_spec: BoxSpec) -> tuple[RolloutStorage, Any]:
    data = rollout_of(task)
    columns = transition_columns(obs_spec, action_spec, {}, PolicyActor(policy).columns())
    storage = RolloutStorage(columns, task.num_steps, task.num_envs, final_obs=obs_spec)
    tensors = [torch.from_numpy(array) for array in data]
    obs, act, rew, done, value, log_prob, last_obs, _ = tensors
    nowhere = torch.zeros(task.num_envs, dtype=torch.bool)
    for step in range(task.num_steps):
        params = {"mean": torch.zeros_like(act[step]), "std": torch.ones_like(act[step])}
        columns_of_step = {"log_prob": log_prob[step], "value": value[step], "dist": params, "memo": {}}
        following = {"obs": obs[step + 1] if step + 1 < task.num_steps else last_obs}
        storage.add(
            Transition(
                obs={"obs": obs[step]},
                act=act[step],
                rew=rew[step],
                terminated=done[step],
                truncated=nowhere,
                valid=~nowhere,
                info={},
                policy=columns_of_step,
                next_obs=following,
                final_obs=following,
            )
        )
    return storage, {"obs": last_obs}


def train(task: TrainTask, mode: str = "eager") -> Work:
    """Return some iterations of training."""
    torch.manual_seed(0)
    env: Any
    if task.env == "CartPole-v1":
        env = CartPole(task.num_envs)
    else:
        env = HalfCheetah(HalfCheetahConfig(num_envs=task.num_envs, num_threads=1))
    settings = PolicyConfig(actor_hidden_dims=task.hidden, critic_hidden_dims=task.hidden, activation="tanh")
    policy = Policy(env.obs_spec, env.action_spec, settings)
    with auto(mode) as switch:
        trainer = Trainer(
            learner(policy, task.epochs, task.minibatches, mode),
            Collector(env, PolicyActor(policy), CollectorConfig(seed=0)),
            OnPolicyPlan(num_steps_per_env=task.num_steps, total_steps=10**9),
            switch=switch,
        )

    def work() -> None:
        for _ in range(task.iterations):
            next(trainer)

    after_switch(switch, lambda: next(trainer))
    return work


def collect(task: CollectTask) -> Work:
    """Return one rollout of a runner without the update; observations are normalised."""
    network = {"hidden_dims": task.hidden, "activation": "elu", "obs_normalization": True}
    gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"}
    config = {
        "seed": 0,
        "num_steps_per_env": task.num_steps,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {"class_name": "MLPModel", **network, "distribution_cfg": gaussian},
        "critic": {"class_name": "MLPModel", **network},
        "algorithm": {"class_name": "PPO"},
    }
    runner = OnPolicyRunner(StillEnv(task), config)
    collector, storage = runner.trainer.collector, runner.storage
    collector.ready()

    def work() -> None:
        storage.clear()
        collector.collect(n_step=task.num_steps * task.num_envs, storage=storage)

    return work


def returns(num_steps: int, num_envs: int) -> Work:
    """Return one call of GAE, terminated and truncated apart, every sample valid."""
    data = rollout(num_steps, num_envs, 1, 1)
    rew, terminated, value = (torch.from_numpy(array) for array in (data.rew, data.done, data.value))
    last_value = torch.from_numpy(data.last_value)
    truncated, valid = torch.zeros_like(terminated), torch.ones_like(terminated)

    def work() -> None:
        next_value = torch.cat([value[1:], last_value.unsqueeze(0)])
        gae(rew, value, next_value, terminated, truncated, gamma=GAMMA, lam=LAM, valid=valid)

    return work
