"""TorchRL in the PPO benchmarks: `ClipPPOLoss`, `GAE` and a replay buffer, put together as its PPO examples do.

Training rows are left out; its collectors and transforms would be measured more than its PPO.
"""

from __future__ import annotations

import torch
from harness_process import UnavailableError
from ppo_tasks import (
    CLIP,
    GAMMA,
    LAM,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    VALUE_COEF,
    TrainTask,
    UpdateTask,
    Work,
    rollout,
    rollout_of,
)
from tensordict import TensorDict
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE
from torchrl.objectives.value.functional import vec_generalized_advantage_estimate

_ACTIVATIONS = {"tanh": nn.Tanh, "elu": nn.ELU}


def _models(task: UpdateTask) -> tuple[ProbabilisticActor, ValueOperator]:
    def network(outputs: int) -> MLP:
        return MLP(
            in_features=task.obs_size,
            out_features=outputs,
            num_cells=list(task.hidden),
            activation_class=_ACTIVATIONS[task.activation],
        )

    body = nn.Sequential(network(task.action_size), AddStateIndependentNormalScale(task.action_size))
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )
    return actor, ValueOperator(network(1), in_keys=["observation"])


def update(task: UpdateTask) -> Work:
    """Return one update of a rollout."""
    torch.manual_seed(0)
    actor, critic = _models(task)
    advantage = GAE(gamma=GAMMA, lmbda=LAM, value_network=critic, average_gae=False)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=CLIP,
        entropy_bonus=False,
        critic_coeff=VALUE_COEF,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=LEARNING_RATE)
    samples = task.num_envs * task.num_steps
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(samples), sampler=SamplerWithoutReplacement(), batch_size=task.minibatch_size
    )
    data = _tensordict(task)

    def work() -> None:
        with torch.no_grad():
            with_targets = advantage(data.clone(False))
        buffer.empty()
        buffer.extend(with_targets.reshape(-1))
        for _ in range(task.epochs):
            for minibatch in buffer:
                losses = loss(minibatch)
                (losses["loss_objective"] + losses["loss_critic"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), MAX_GRAD_NORM)
                optimizer.step()
                optimizer.zero_grad()

    return work


def _tensordict(task: UpdateTask) -> TensorDict:
    """Return the rollout as its collectors give it: envs first, time second."""
    data = rollout_of(task)
    obs, act, rew, done, _, log_prob, last_obs, _ = (torch.from_numpy(array) for array in data)
    following = torch.cat([obs[1:], last_obs.unsqueeze(0)])

    def by_env(column: torch.Tensor) -> torch.Tensor:
        return column.transpose(0, 1).contiguous()

    ends = by_env(done).unsqueeze(-1)
    next_step = {
        "observation": by_env(following),
        "reward": by_env(rew).unsqueeze(-1),
        "done": ends,
        "terminated": ends,
    }
    return TensorDict(
        {
            "observation": by_env(obs),
            "action": by_env(act),
            "action_log_prob": by_env(log_prob),
            "next": TensorDict(next_step, batch_size=[task.num_envs, task.num_steps]),
        },
        batch_size=[task.num_envs, task.num_steps],
    )


def train(task: TrainTask) -> Work:
    """Say that there is no such row."""
    raise UnavailableError("–")


def returns(num_steps: int, num_envs: int) -> Work:
    """Return one call of its vectorised GAE, envs first."""
    data = rollout(num_steps, num_envs, 1, 1)
    rew, done, value = (torch.from_numpy(a).t().contiguous().unsqueeze(-1) for a in (data.rew, data.done, data.value))
    last = torch.from_numpy(data.last_value).view(-1, 1, 1)
    following = torch.cat([value[:, 1:], last], dim=1)
    return lambda: vec_generalized_advantage_estimate(GAMMA, LAM, value, following, rew, done, done)
