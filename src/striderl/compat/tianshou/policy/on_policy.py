"""Policies that learn from fresh episodes, with the constructors of Tianshou 0.3: `PGPolicy`, `A2CPolicy`, `PPOPolicy`.

    policy = PPOPolicy(actor, critic, optim, torch.distributions.Categorical, eps_clip=0.2)
    policy.update(0, buffer, batch_size=64, repeat=2)         all steps: returns ─▶ minibatches ─▶ losses by name

`dist_fn(logits)`, or `dist_fn(*logits)` where the actor returns several, makes the distribution of actions. Where the
clock ended an episode, the critic's value of what followed is part of the return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from striderl.compat.tianshou.arrays import to_numpy, to_torch_as
from striderl.compat.tianshou.base_policy import SMALL, BasePolicy
from striderl.data.batch import Batch
from striderl.data.naming import AssertedValueError
from striderl.storage.replay_buffer.buffer import ReplayBuffer

Array = np.ndarray[Any, Any]
DistFn = Callable[..., torch.distributions.Distribution]


def in_unit(value: float, name: str) -> float:
    """Return a number in [0, 1], or raise."""
    if not 0.0 <= value <= 1.0:
        raise AssertedValueError(f"{name} is in [0, 1], found {value}")
    return value


class PGPolicy(BasePolicy):
    """REINFORCE: the log probability of each action, weighted by the return that followed it."""

    def __init__(
        self,
        model: nn.Module | None,
        optim: torch.optim.Optimizer,
        dist_fn: DistFn,
        discount_factor: float = 0.99,
        reward_normalization: bool = False,
        **kwargs: Any,
    ) -> None:
        """Take a network observation → (logits, state), its optimiser, and what makes a distribution of logits."""
        super().__init__(**kwargs)
        if model is not None:
            self.model = model
        self.optim, self.dist_fn = optim, dist_fn
        self._gamma = in_unit(discount_factor, "discount_factor")
        self._rew_norm = reward_normalization

    def process_fn(self, batch: Batch, buffer: ReplayBuffer, indice: Array) -> Batch:
        """Add the discounted returns."""
        return self.compute_episodic_return(batch, gamma=self._gamma, gae_lambda=1.0, rew_norm=self._rew_norm)

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        """Return Batch(logits, act, state, dist)."""
        return self._choice(self.model, batch, state)

    def _choice(self, actor: nn.Module, batch: Batch, state: Any) -> Batch:
        logits, state = actor(batch.obs, state=state, info=batch.get("info"))
        dist = self.dist_fn(*logits) if isinstance(logits, tuple) else self.dist_fn(logits)
        return Batch(logits=logits, act=dist.sample(), state=state, dist=dist)

    def learn(self, batch: Batch, batch_size: int = 0, repeat: int = 1, **kwargs: Any) -> dict[str, list[float]]:
        """Take a gradient step on each minibatch, `repeat` times over all steps; return the losses."""
        losses = []
        for part in minibatches(batch, batch_size, repeat):
            dist = self(part).dist
            log_prob = rows(dist.log_prob(to_torch_as(part.act, first_parameter(dist))), len(part.returns))
            loss = -(log_prob * to_torch_as(part.returns, log_prob)).mean()
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
            losses.append(loss.item())
        return {"loss": losses}


class A2CPolicy(PGPolicy):
    """Advantage actor-critic: policy gradient with a learned baseline, value loss and entropy bonus."""

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        optim: torch.optim.Optimizer,
        dist_fn: DistFn,
        discount_factor: float = 0.99,
        vf_coef: float = 0.5,
        ent_coef: float = 0.01,
        max_grad_norm: float | None = None,
        gae_lambda: float = 0.95,
        reward_normalization: bool = False,
        max_batchsize: int = 256,
        **kwargs: Any,
    ) -> None:
        """Take the two networks and one optimiser of both; values are computed `max_batchsize` steps at a time."""
        super().__init__(None, optim, dist_fn, discount_factor, reward_normalization, **kwargs)
        self.actor, self.critic = actor, critic
        self._lambda = in_unit(gae_lambda, "gae_lambda")
        self._w_vf, self._w_ent, self._grad_norm, self._batch = vf_coef, ent_coef, max_grad_norm, max_batchsize

    def process_fn(self, batch: Batch, buffer: ReplayBuffer, indice: Array) -> Batch:
        """Add returns by generalised advantage estimation."""
        with torch.no_grad():
            parts = batch.split(self._batch, shuffle=False, merge_last=True)
            following = np.concatenate([to_numpy(self.critic(part.obs_next)) for part in parts])
        return self.compute_episodic_return(batch, following, self._gamma, self._lambda, self._rew_norm)

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        """Return Batch(logits, act, state, dist)."""
        return self._choice(self.actor, batch, state)

    def learn(self, batch: Batch, batch_size: int = 0, repeat: int = 1, **kwargs: Any) -> dict[str, list[float]]:
        """Take a gradient step on each minibatch, `repeat` times over all steps; return the losses."""
        found: dict[str, list[float]] = {"loss": [], "loss/actor": [], "loss/vf": [], "loss/ent": []}
        for part in minibatches(batch, batch_size, repeat):
            dist, value = self(part).dist, self.critic(part.obs).flatten()
            returns = to_torch_as(part.returns, value)
            log_prob = rows(dist.log_prob(to_torch_as(part.act, value)), len(returns))
            actor_loss = -(log_prob * (returns - value).detach()).mean()
            value_loss, entropy = (returns - value).square().mean(), dist.entropy().mean()
            loss = actor_loss + self._w_vf * value_loss - self._w_ent * entropy
            self._descend(loss, self._grad_norm)
            for name, each in zip(found, (loss, actor_loss, value_loss, entropy)):
                found[name].append(each.item())
        return found

    def _descend(self, loss: Tensor, max_norm: float | None) -> None:
        self.optim.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if max_norm is not None:
            nn.utils.clip_grad_norm_([*self.actor.parameters(), *self.critic.parameters()], max_norm)
        self.optim.step()


class PPOPolicy(A2CPolicy):
    """Proximal policy optimisation, with dual clip and value clip as options."""

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        optim: torch.optim.Optimizer,
        dist_fn: DistFn,
        discount_factor: float = 0.99,
        max_grad_norm: float | None = None,
        eps_clip: float = 0.2,
        vf_coef: float = 0.5,
        ent_coef: float = 0.01,
        action_range: tuple[float, float] | None = None,
        gae_lambda: float = 0.95,
        dual_clip: float | None = None,
        value_clip: bool = True,
        reward_normalization: bool = True,
        max_batchsize: int = 256,
        **kwargs: Any,
    ) -> None:
        """Take the two networks and one optimiser of both; actions are clamped to `action_range`, where given."""
        super().__init__(
            actor,
            critic,
            optim,
            dist_fn,
            discount_factor,
            vf_coef,
            ent_coef,
            max_grad_norm,
            gae_lambda,
            reward_normalization,
            max_batchsize,
            **kwargs,
        )
        if dual_clip is not None and dual_clip <= 1.0:
            raise AssertedValueError(f"dual_clip is above 1, or None, found {dual_clip}")
        self._eps_clip, self._range, self._dual_clip, self._value_clip = eps_clip, action_range, dual_clip, value_clip

    def process_fn(self, batch: Batch, buffer: ReplayBuffer, indice: Array) -> Batch:
        """Add returns, the old values `v` and log probabilities `logp_old`, and advantages `adv`."""
        if self._rew_norm:
            batch.rew = normalised(batch.rew)
        value, following, log_prob = [], [], []
        with torch.no_grad():
            for part in batch.split(self._batch, shuffle=False, merge_last=True):
                value.append(self.critic(part.obs).flatten())
                following.append(self.critic(part.obs_next).flatten())
                log_prob.append(self(part).dist.log_prob(to_torch_as(part.act, value[0])))
        batch.v, batch.logp_old = torch.cat(value), torch.cat(log_prob)
        batch = self.compute_episodic_return(batch, torch.cat(following), self._gamma, self._lambda, self._rew_norm)
        batch.act, batch.returns = to_torch_as(batch.act, batch.v), to_torch_as(batch.returns, batch.v)
        advantage = batch.returns - batch.v
        batch.adv = normalised(advantage) if self._rew_norm else advantage
        return batch

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        """Return Batch(logits, act, state, dist)."""
        found = self._choice(self.actor, batch, state)
        if self._range is not None:
            found.act = found.act.clamp(self._range[0], self._range[1])
        return found

    def learn(self, batch: Batch, batch_size: int = 0, repeat: int = 1, **kwargs: Any) -> dict[str, list[float]]:
        """Take a gradient step on each minibatch, `repeat` times over all steps; return the losses."""
        found: dict[str, list[float]] = {"loss": [], "loss/clip": [], "loss/vf": [], "loss/ent": []}
        for part in minibatches(batch, batch_size, repeat):
            dist, value = self(part).dist, self.critic(part.obs).flatten()
            ratio = rows((dist.log_prob(part.act) - part.logp_old).exp().float(), len(value))
            low, high = 1.0 - self._eps_clip, 1.0 + self._eps_clip
            gain = torch.min(ratio * part.adv, ratio.clamp(low, high) * part.adv)
            if self._dual_clip is not None:
                # only where the advantage is negative: elsewhere the bound would cut ratios that are fine
                gain = torch.where(part.adv < 0, torch.max(gain, self._dual_clip * part.adv), gain)
            clip_loss, entropy = -gain.mean(), dist.entropy().mean()
            value_loss = 0.5 * self._value_errors(value, part).mean()
            loss = clip_loss + self._w_vf * value_loss - self._w_ent * entropy
            self._descend(loss, self._grad_norm)
            for name, each in zip(found, (loss, clip_loss, value_loss, entropy)):
                found[name].append(each.item())
        return found

    def _value_errors(self, value: Tensor, part: Batch) -> Tensor:
        errors: Tensor = (part.returns - value).square()
        if not self._value_clip:
            return errors
        near = part.v + (value - part.v).clamp(-self._eps_clip, self._eps_clip)
        found: Tensor = torch.max(errors, (part.returns - near).square())
        return found


def minibatches(batch: Batch, batch_size: int, repeat: int) -> Iterator[Batch]:
    """Yield minibatches of about `batch_size` steps (0: all), `repeat` times over all."""
    for _ in range(repeat):
        yield from batch.split(batch_size or -1, merge_last=True)


def rows(log_prob: Tensor, count: int) -> Tensor:
    """Return [n, B] out of log probabilities [B] or [B, n], so that weights [B] multiply each of them."""
    return log_prob.reshape(count, -1).transpose(0, 1)


def first_parameter(dist: Any) -> Tensor:
    """Return a tensor of the dtype and device of a distribution: its log probabilities' or its mean."""
    found: Tensor = dist.logits if hasattr(dist, "logits") else dist.mean
    return found


def normalised(values: Any) -> Any:
    """Return numbers with mean 0 and deviation 1; as they are where all are the same."""
    spread = values.std()
    return (values - values.mean()) / spread if float(spread) > SMALL else values
