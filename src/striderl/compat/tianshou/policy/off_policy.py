"""Policies that learn from replay, with the constructors of Tianshou 0.3.

    DQNPolicy           Q-learning, with a target network, double Q and n steps
    DDPGPolicy          a deterministic actor and a critic
    TD3Policy           DDPG with two critics, smoothed targets and a slower actor
    SACPolicy           a stochastic actor, two critics, an entropy bonus of fixed or learned weight
    DiscreteSACPolicy   SAC for choices

Where the clock ended an episode, targets go on with the value of what followed: `done` of a time limit is no end of the
task. With a prioritized buffer the losses are weighted, and `batch.weight` becomes the error of each sample.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

from striderl.compat.tianshou.arrays import to_numpy, to_torch, to_torch_as
from striderl.compat.tianshou.base_policy import BasePolicy
from striderl.compat.tianshou.exploration import BaseNoise, GaussianNoise
from striderl.compat.tianshou.policy.on_policy import in_unit
from striderl.data.batch import Batch
from striderl.data.naming import AssertedValueError
from striderl.storage.replay_buffer.buffer import ReplayBuffer

Array = np.ndarray[Any, Any]
Optim = torch.optim.Optimizer
Alpha = float | tuple[float, Tensor, Optim]


class ReplayPolicy(BasePolicy):
    """What the policies of this module share: n-step targets, target networks that stay in evaluation mode."""

    trained: tuple[str, ...] = ()
    """The names of the networks that `train` and `eval` reach."""

    def __init__(
        self, gamma: float, estimation_step: int, reward_normalization: bool, ignore_done: bool = False, **kwargs: Any
    ) -> None:
        """Take the settings of the targets."""
        super().__init__(**kwargs)
        if estimation_step < 1:
            raise AssertedValueError(f"estimation_step is at least 1, found {estimation_step}")
        self._gamma, self._n_step = in_unit(gamma, "the discount factor"), estimation_step
        self._rew_norm, self._ignore_done = reward_normalization, ignore_done

    def train(self, mode: bool = True) -> ReplayPolicy:
        """Set the mode of all networks but the targets."""
        self.training = mode
        for name in self.trained:
            getattr(self, name).train(mode)
        return self

    def process_fn(self, batch: Batch, buffer: ReplayBuffer, indice: Array) -> Batch:
        """Add n-step targets."""
        return self.compute_nstep_return(
            batch,
            buffer,
            indice,
            self._target_q,
            self._gamma,
            self._n_step,
            self._rew_norm,
            ignore_done=self._ignore_done,
        )

    def _target_q(self, buffer: ReplayBuffer, indice: Array) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no targets; override _target_q or process_fn")


class DQNPolicy(ReplayPolicy):
    """Q-learning with exploration by `set_eps`; see the top of this module."""

    trained: tuple[str, ...] = ("model",)

    def __init__(
        self,
        model: nn.Module,
        optim: Optim,
        discount_factor: float = 0.99,
        estimation_step: int = 1,
        target_update_freq: int = 0,
        reward_normalization: bool = False,
        **kwargs: Any,
    ) -> None:
        """Take a network observation → (Q-values, state); it is copied for targets every so many updates, 0: never."""
        super().__init__(discount_factor, estimation_step, reward_normalization, **kwargs)
        self.model, self.optim, self.eps = model, optim, 0.0
        self._target, self._freq, self._cnt = target_update_freq > 0, target_update_freq, 0
        if self._target:
            self.model_old = deepcopy(model).eval()

    def set_eps(self, eps: float) -> None:
        """Set the share of random actions while collecting and testing."""
        self.eps = eps

    def sync_weight(self) -> None:
        """Copy the network to the target network."""
        self.model_old.load_state_dict(self.model.state_dict())

    def _target_q(self, buffer: ReplayBuffer, indice: Array) -> Tensor:
        batch = buffer[indice]  # its obs_next is what followed the last of n steps
        with torch.no_grad():
            result = self(batch, input="obs_next")
            if not self._target:
                best: Tensor = masked(result.logits, batch.obs_next).max(dim=1).values
                return best
            values: Tensor = self(batch, model="model_old", input="obs_next").logits
            return values.gather(1, torch.as_tensor(result.act, device=values.device).long()[:, None])[:, 0]

    def forward(
        self, batch: Batch, state: Any = None, model: str = "model", input: str = "obs", **kwargs: Any
    ) -> Batch:
        """Return Batch(logits, act, state); `obs.mask`, where there is one, is true for legal actions."""
        network: nn.Module = {"model": self.model, "model_old": self.model_old}[model] if self._target else self.model
        obs = batch[input]
        values, state = network(_plain_obs(obs), state=state, info=batch.get("info"))
        legal = masked(values, obs)
        act = to_numpy(legal.argmax(dim=1))
        if self.eps > 0.0 and not self.updating:
            chance = np.random.rand(*legal.shape)
            chance[np.isneginf(to_numpy(legal))] = -1.0
            act = np.where(np.random.rand(len(act)) < self.eps, chance.argmax(axis=1), act)
        return Batch(logits=values, act=act, state=state)

    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, float]:
        """Take one gradient step."""
        if self._target and self._cnt % self._freq == 0:
            self.sync_weight()
        weight = batch.pop("weight", 1.0)
        values = self(batch).logits
        chosen = values.gather(1, torch.as_tensor(batch.act, device=values.device).long()[:, None])[:, 0]
        error = to_torch_as(batch.returns.flatten(), chosen) - chosen
        loss = (error.square() * weight).mean()
        batch.weight = error.detach()
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        self._cnt += 1
        return {"loss": loss.item()}


def _plain_obs(obs: Any) -> Any:
    return obs.obs if isinstance(obs, Batch) and "obs" in obs else obs


def masked(values: Tensor, obs: Any) -> Tensor:
    """Return values with -inf where `obs.mask` is false; as they are without a mask."""
    if not (isinstance(obs, Batch) and "mask" in obs):
        return values
    legal = torch.as_tensor(np.asarray(to_numpy(obs.mask), np.bool_), device=values.device)
    return values.detach().masked_fill(~legal, -torch.inf)


class DDPGPolicy(ReplayPolicy):
    """A deterministic actor and a critic; see the top of this module."""

    trained: tuple[str, ...] = ("actor", "critic")

    def __init__(
        self,
        actor: nn.Module | None,
        actor_optim: Optim | None,
        critic: nn.Module | None,
        critic_optim: Optim | None,
        action_range: tuple[float, float],
        tau: float = 0.005,
        gamma: float = 0.99,
        exploration_noise: BaseNoise | None = GaussianNoise(sigma=0.1),  # noqa: B008  (it has no state)
        reward_normalization: bool = False,
        ignore_done: bool = False,
        estimation_step: int = 1,
        **kwargs: Any,
    ) -> None:
        """Take the networks with their optimisers; targets follow with rate `tau`.

        `ignore_done` lets targets go on after the end of the task too.
        """
        super().__init__(gamma, estimation_step, reward_normalization, ignore_done, **kwargs)
        if actor is not None and actor_optim is not None:
            self.actor, self.actor_old, self.actor_optim = actor, deepcopy(actor).eval(), actor_optim
        if critic is not None and critic_optim is not None:
            self.critic, self.critic_old, self.critic_optim = critic, deepcopy(critic).eval(), critic_optim
        self._tau, self._noise, self._range = in_unit(tau, "tau"), exploration_noise, action_range
        self._action_bias = (action_range[0] + action_range[1]) / 2.0
        self._action_scale = (action_range[1] - action_range[0]) / 2.0

    def set_exp_noise(self, noise: BaseNoise | None) -> None:
        """Set the noise of actions while collecting."""
        self._noise = noise

    def sync_weight(self) -> None:
        """Move the target networks towards the networks."""
        self._follow(self.actor_old, self.actor)
        self._follow(self.critic_old, self.critic)

    @torch.no_grad()
    def _follow(self, old: nn.Module, new: nn.Module) -> None:
        torch._foreach_lerp_(list(old.parameters()), list(new.parameters()), self._tau)
        for mine, other in zip(old.buffers(), new.buffers()):
            mine.copy_(other)

    def _target_q(self, buffer: ReplayBuffer, indice: Array) -> Tensor:
        batch = buffer[indice]
        with torch.no_grad():
            act = self(batch, model="actor_old", input="obs_next").act
            found: Tensor = self.critic_old(batch.obs_next, act)
        return found

    def forward(
        self, batch: Batch, state: Any = None, model: str = "actor", input: str = "obs", **kwargs: Any
    ) -> Batch:
        """Return Batch(act, state), with noise while not updating."""
        network = self.actor if model == "actor" else self.actor_old
        act, state = network(batch[input], state=state, info=batch.get("info"))
        return Batch(act=self._executed(act + self._action_bias), state=state)

    def _executed(self, act: Tensor) -> Tensor:
        if self._noise is not None and not self.updating:
            act = act + to_torch_as(self._noise(act.shape), act)
        return act.clamp(self._range[0], self._range[1])

    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, float]:
        """Take one gradient step with each network."""
        weight = batch.pop("weight", 1.0)
        loss, batch.weight = self._fit(self.critic, self.critic_optim, batch, weight)
        actor_loss = -self.critic(batch.obs, self(batch).act).mean()
        self._descend(actor_loss, self.actor_optim)
        self.sync_weight()
        return {"loss/actor": actor_loss.item(), "loss/critic": loss}

    def _fit(self, critic: nn.Module, optim: Optim, batch: Batch, weight: Any) -> tuple[float, Tensor]:
        """Take one gradient step of a critic; return its loss and the errors [B]."""
        error = self._q_values(critic, batch).flatten() - batch.returns.flatten()
        loss = (error.square() * weight).mean()
        self._descend(loss, optim)
        return loss.item(), error.detach()

    def _q_values(self, critic: nn.Module, batch: Batch) -> Tensor:
        found: Tensor = critic(batch.obs, batch.act)
        return found

    def _descend(self, loss: Tensor, optim: Optim) -> None:
        optim.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optim.step()


class TwinPolicy(DDPGPolicy):
    """An actor with two critics, of which targets take the smaller value."""

    trained: tuple[str, ...] = ("actor", "critic1", "critic2")

    def _take_critics(self, critic1: nn.Module, optim1: Optim, critic2: nn.Module, optim2: Optim) -> None:
        self.critic1, self.critic1_old, self.critic1_optim = critic1, deepcopy(critic1).eval(), optim1
        self.critic2, self.critic2_old, self.critic2_optim = critic2, deepcopy(critic2).eval(), optim2

    def sync_weight(self) -> None:
        """Move the target networks towards the networks."""
        self._follow(self.critic1_old, self.critic1)
        self._follow(self.critic2_old, self.critic2)

    def _fit_both(self, batch: Batch) -> dict[str, float]:
        """Take one gradient step of each critic, and leave the mean of their errors in `batch.weight`."""
        weight = batch.pop("weight", 1.0)
        loss1, error1 = self._fit(self.critic1, self.critic1_optim, batch, weight)
        loss2, error2 = self._fit(self.critic2, self.critic2_optim, batch, weight)
        batch.weight = (error1 + error2) / 2.0
        return {"loss/critic1": loss1, "loss/critic2": loss2}


class TD3Policy(TwinPolicy):
    """DDPG with two critics, smoothed targets and a slower actor; see the top of this module."""

    def __init__(
        self,
        actor: nn.Module,
        actor_optim: Optim,
        critic1: nn.Module,
        critic1_optim: Optim,
        critic2: nn.Module,
        critic2_optim: Optim,
        action_range: tuple[float, float],
        tau: float = 0.005,
        gamma: float = 0.99,
        exploration_noise: BaseNoise | None = GaussianNoise(sigma=0.1),  # noqa: B008  (it has no state)
        policy_noise: float = 0.2,
        update_actor_freq: int = 2,
        noise_clip: float = 0.5,
        reward_normalization: bool = False,
        ignore_done: bool = False,
        estimation_step: int = 1,
        **kwargs: Any,
    ) -> None:
        """Take the networks with their optimisers; the actor learns in every `update_actor_freq`-th update."""
        super().__init__(
            actor,
            actor_optim,
            None,
            None,
            action_range,
            tau,
            gamma,
            exploration_noise,
            reward_normalization,
            ignore_done,
            estimation_step,
            **kwargs,
        )
        self._take_critics(critic1, critic1_optim, critic2, critic2_optim)
        self._policy_noise, self._freq, self._noise_clip = policy_noise, update_actor_freq, noise_clip
        self._cnt, self._last = 0, 0.0

    def sync_weight(self) -> None:
        """Move the target networks towards the networks."""
        super().sync_weight()
        self._follow(self.actor_old, self.actor)

    def _target_q(self, buffer: ReplayBuffer, indice: Array) -> Tensor:
        batch = buffer[indice]
        with torch.no_grad():
            act = self(batch, model="actor_old", input="obs_next").act
            noise = torch.randn_like(act) * self._policy_noise
            if self._noise_clip > 0.0:
                noise = noise.clamp(-self._noise_clip, self._noise_clip)
            act = (act + noise).clamp(self._range[0], self._range[1])
            found: Tensor = torch.min(self.critic1_old(batch.obs_next, act), self.critic2_old(batch.obs_next, act))
        return found

    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, float]:
        """Take one gradient step of the critics and, every so often, of the actor."""
        losses = self._fit_both(batch)
        if self._cnt % self._freq == 0:
            actor_loss = -self.critic1(batch.obs, self(batch).act).mean()
            self._descend(actor_loss, self.actor_optim)
            self._last = actor_loss.item()
            self.sync_weight()
        self._cnt += 1
        return {"loss/actor": self._last, **losses}


class SACPolicy(TwinPolicy):
    """Soft actor-critic; see the top of this module."""

    def __init__(
        self,
        actor: nn.Module,
        actor_optim: Optim,
        critic1: nn.Module,
        critic1_optim: Optim,
        critic2: nn.Module,
        critic2_optim: Optim,
        action_range: tuple[float, float],
        tau: float = 0.005,
        gamma: float = 0.99,
        alpha: Alpha = 0.2,
        reward_normalization: bool = False,
        ignore_done: bool = False,
        estimation_step: int = 1,
        exploration_noise: BaseNoise | None = None,
        **kwargs: Any,
    ) -> None:
        """Take the networks; `alpha` is a number, or (target entropy, log alpha [1], its optimiser) to learn it."""
        super().__init__(
            None,
            None,
            None,
            None,
            action_range,
            tau,
            gamma,
            exploration_noise,
            reward_normalization,
            ignore_done,
            estimation_step,
            **kwargs,
        )
        self.actor, self.actor_optim = actor, actor_optim
        self._take_critics(critic1, critic1_optim, critic2, critic2_optim)
        self._is_auto_alpha = isinstance(alpha, tuple)
        self._alpha: Any = alpha
        if isinstance(alpha, tuple):
            self._target_entropy, self._log_alpha, self._alpha_optim = alpha
            if self._log_alpha.shape != (1,) or not self._log_alpha.requires_grad:
                raise AssertedValueError(f"log alpha is a tensor [1] that requires a gradient, found {self._log_alpha}")
            self._alpha = self._log_alpha.detach().exp()

    def forward(  # type: ignore[override]  # there is no actor of targets
        self, batch: Batch, state: Any = None, input: str = "obs", **kwargs: Any
    ) -> Batch:
        """Return Batch(logits, act, state, dist, log_prob)."""
        logits, state = self.actor(batch[input], state=state, info=batch.get("info"))
        dist: Any = Independent(Normal(*logits), 1)
        drawn = dist.rsample()
        squashed = torch.tanh(drawn)
        slope = self._action_scale * (1.0 - squashed.square()) + torch.finfo(squashed.dtype).eps
        log_prob = dist.log_prob(drawn).unsqueeze(-1) - slope.log().sum(-1, keepdim=True)
        act = self._executed(squashed * self._action_scale + self._action_bias)
        return Batch(logits=logits, act=act, state=state, dist=dist, log_prob=log_prob)

    def _target_q(self, buffer: ReplayBuffer, indice: Array) -> Tensor:
        batch = buffer[indice]
        with torch.no_grad():
            found = self(batch, input="obs_next")
            values = torch.min(self.critic1_old(batch.obs_next, found.act), self.critic2_old(batch.obs_next, found.act))
            target: Tensor = values - self._alpha * found.log_prob
        return target

    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, float]:
        """Take one gradient step of the critics, the actor and, where it is learned, of alpha."""
        losses = self._fit_both(batch)
        actor_loss, log_prob = self._actor_loss(batch)
        self._descend(actor_loss, self.actor_optim)
        losses = {"loss/actor": actor_loss.item(), **losses}
        if self._is_auto_alpha:
            alpha_loss = -(self._log_alpha * (log_prob.detach() + self._target_entropy)).mean()
            self._descend(alpha_loss, self._alpha_optim)
            self._alpha = self._log_alpha.detach().exp()
            losses |= {"loss/alpha": alpha_loss.item(), "alpha": self._alpha.item()}
        self.sync_weight()
        return losses

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss of the actor and the log probability of its actions [B]."""
        found = self(batch)
        values = torch.min(self.critic1(batch.obs, found.act), self.critic2(batch.obs, found.act)).flatten()
        log_prob: Tensor = found.log_prob.flatten()
        return (self._alpha * log_prob - values).mean(), log_prob


class DiscreteSACPolicy(SACPolicy):
    """SAC for choices: the critics return a value for each; see the top of this module."""

    def __init__(
        self,
        actor: nn.Module,
        actor_optim: Optim,
        critic1: nn.Module,
        critic1_optim: Optim,
        critic2: nn.Module,
        critic2_optim: Optim,
        tau: float = 0.005,
        gamma: float = 0.99,
        alpha: Alpha = 0.2,
        reward_normalization: bool = False,
        ignore_done: bool = False,
        estimation_step: int = 1,
        **kwargs: Any,
    ) -> None:
        """Take the networks; there is no range of actions."""
        super().__init__(
            actor,
            actor_optim,
            critic1,
            critic1_optim,
            critic2,
            critic2_optim,
            (-np.inf, np.inf),
            tau,
            gamma,
            alpha,
            reward_normalization,
            ignore_done,
            estimation_step,
            **kwargs,
        )

    def forward(  # type: ignore[override]  # there is no actor of targets
        self, batch: Batch, state: Any = None, input: str = "obs", **kwargs: Any
    ) -> Batch:
        """Return Batch(logits, act, state, dist)."""
        logits, state = self.actor(batch[input], state=state, info=batch.get("info"))
        dist: Any = Categorical(logits=logits)
        return Batch(logits=logits, act=dist.sample(), state=state, dist=dist)

    def _target_q(self, buffer: ReplayBuffer, indice: Array) -> Tensor:
        batch = buffer[indice]
        with torch.no_grad():
            dist = self(batch, input="obs_next").dist
            values = torch.min(self.critic1_old(batch.obs_next), self.critic2_old(batch.obs_next))
            found: Tensor = (dist.probs * values).sum(dim=-1) + self._alpha * dist.entropy()
        return found

    def _q_values(self, critic: nn.Module, batch: Batch) -> Tensor:
        values: Tensor = critic(batch.obs)
        return values.gather(1, to_torch(batch.act, torch.long, values.device)[:, None])

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        dist = self(batch).dist
        with torch.no_grad():
            values = torch.min(self.critic1(batch.obs), self.critic2(batch.obs))
        entropy: Tensor = dist.entropy()
        return -(self._alpha * entropy + (dist.probs * values).sum(dim=-1)).mean(), -entropy
