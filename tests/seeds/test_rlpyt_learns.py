"""REINFORCE with a baseline of its own, which the core does not have, written in rlpyt's words alone."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch

from striderl.compat.rlpyt import (
    CategoricalPgAgent,
    MinibatchRl,
    MlpModel,
    RlAlgorithm,
    SerialSampler,
    discount_return,
    gym_make,
    infer_leading_dims,
    restore_leading_dims,
    save__init__args,
    valid_mean,
)

OptInfo = namedtuple("OptInfo", ["piLoss", "baselineLoss", "gradNorm"])


class ReinforceModel(torch.nn.Module):
    """A policy; the value is that of a baseline with layers of its own."""

    def __init__(self, observation_shape, output_size, hidden_sizes=(32,)):
        super().__init__()
        self.pi = MlpModel(observation_shape[0], list(hidden_sizes), output_size, torch.nn.Tanh)
        self.baseline = MlpModel(observation_shape[0], list(hidden_sizes), 1, torch.nn.Tanh)

    def forward(self, observation, prev_action, prev_reward):
        lead_dim, T, B, _ = infer_leading_dims(observation, 1)
        x = observation.view(T * B, -1)
        pi, v = torch.softmax(self.pi(x), dim=-1), self.baseline(x).squeeze(-1)
        return restore_leading_dims((pi, v), lead_dim, T, B)


class ReinforceAgent(CategoricalPgAgent):
    def make_env_to_model_kwargs(self, env_spaces):
        return dict(observation_shape=env_spaces.observation.shape, output_size=env_spaces.action.n)


class Reinforce(RlAlgorithm):
    """Whole episodes, Monte Carlo returns, and two optimisers: of the policy and of the baseline."""

    opt_info_fields = tuple(f for f in OptInfo._fields)

    def __init__(self, discount=0.99, learning_rate=0.02, baseline_learning_rate=0.02, clip_grad_norm=10.0):
        save__init__args(locals())

    def initialize(self, agent, n_itr, batch_spec, mid_batch_reset, examples, world_size=1, rank=0):
        self.agent, self.n_itr = agent, n_itr
        self._batch_size = batch_spec.size
        self.optimizer = torch.optim.Adam(agent.model.pi.parameters(), lr=self.learning_rate)
        self.baseline_optimizer = torch.optim.Adam(agent.model.baseline.parameters(), lr=self.baseline_learning_rate)

    def optimize_agent(self, itr, samples):
        pi_loss, baseline_loss = self.loss(samples)
        self.optimizer.zero_grad()
        self.baseline_optimizer.zero_grad()
        (pi_loss + baseline_loss).backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(self.agent.model.pi.parameters(), self.clip_grad_norm)
        self.optimizer.step()
        self.baseline_optimizer.step()
        self.update_counter += 1
        return OptInfo(piLoss=pi_loss.item(), baselineLoss=baseline_loss.item(), gradNorm=grad_norm.item())

    def loss(self, samples):
        done = samples.env.done.float()
        valid = (
            done.flip(0).cummax(0).values.flip(0)
        )  # steps whose episode ends within the batch: their return is whole
        return_ = discount_return(samples.env.reward, done, 0.0, self.discount) / 100
        dist_info, value = self.agent(samples.env.observation, samples.agent.prev_action, samples.env.prev_reward)
        advantage = (return_ - value).detach()
        advantage = advantage / valid_mean(advantage**2, valid).sqrt()
        logli = self.agent.distribution.log_likelihood(samples.agent.action, dist_info)
        return -valid_mean(logli * advantage, valid), valid_mean((value - return_) ** 2, valid)


def train(seed: int) -> float:
    sampler = SerialSampler(
        EnvCls=gym_make,
        env_kwargs=dict(id="CartPole-v1"),
        batch_T=250,
        batch_B=8,
        max_decorrelation_steps=0,
    )
    runner = MinibatchRl(
        algo=Reinforce(),
        agent=ReinforceAgent(ModelCls=ReinforceModel),
        sampler=sampler,
        n_steps=25 * 2000,
        log_interval_steps=5 * 2000,
        log_traj_window=40,
        seed=seed,
    )
    runner.train()
    returns: list[float] = [row["ReturnAverage"] for row in runner.diagnostics]
    assert runner.diagnostics[-1]["CumUpdates"] == 25
    return max(returns)


@pytest.mark.slow
@pytest.mark.described("rlpyt", 23, "an algorithm of one's own, in rlpyt's words alone, learns CartPole")
def test_reinforce_with_its_own_baseline_learns_cartpole():
    assert train(seed=0) >= 100  # random actions earn 22
