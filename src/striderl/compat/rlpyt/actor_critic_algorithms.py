"""rlpyt's algorithms with a replay of real-valued actions: SAC, DDPG and TD3.

    SAC     loss(samples) ─▶ (q1_loss, q2_loss, pi_loss, alpha_loss), (q1, q2, pi_mean, pi_log_std)
    DDPG    q_loss(samples, valid), mu_loss(samples, valid)
    TD3     the same, with the smaller of two target critics; the actor moves every policy_update_interval steps

Each loss may be overridden. With `bootstrap_timelimit` steps that the clock ended are left out of all losses, because
what followed them in the replay is another episode; without it they count as ends of the task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from striderl.compat.rlpyt.algorithms import OptimizerClass, gradient_step, number, require_initialized
from striderl.compat.rlpyt.distributions import Gaussian, GaussianDistInfo
from striderl.compat.rlpyt.q_algorithms import ReplayRlAlgorithm
from striderl.compat.rlpyt.synchronize import average_gradient
from striderl.compat.rlpyt.tensors import valid_mean
from striderl.data import tree
from striderl.data.checked_fields import refuse_overrides


class SacOptInfo(NamedTuple):
    """What SAC returns of its gradient steps."""

    q1Loss: list[float]  # noqa: N815  (rlpyt's names)
    q2Loss: list[float]  # noqa: N815
    piLoss: list[float]  # noqa: N815
    q1GradNorm: list[float]  # noqa: N815
    q2GradNorm: list[float]  # noqa: N815
    piGradNorm: list[float]  # noqa: N815
    q1: list[float]
    q2: list[float]
    piMu: list[float]  # noqa: N815
    piLogStd: list[float]  # noqa: N815
    qMeanDiff: list[float]  # noqa: N815
    alpha: list[float]


class SacVOptInfo(NamedTuple):
    """What SAC_V returns of its gradient steps."""

    q1Loss: list[float]  # noqa: N815  (rlpyt's names)
    q2Loss: list[float]  # noqa: N815
    vLoss: list[float]  # noqa: N815
    piLoss: list[float]  # noqa: N815
    q1GradNorm: list[float]  # noqa: N815
    q2GradNorm: list[float]  # noqa: N815
    vGradNorm: list[float]  # noqa: N815
    piGradNorm: list[float]  # noqa: N815
    q1: list[float]
    q2: list[float]
    v: list[float]
    piMu: list[float]  # noqa: N815
    piLogStd: list[float]  # noqa: N815
    qMeanDiff: list[float]  # noqa: N815


class DdpgOptInfo(NamedTuple):
    """What DDPG and TD3 return of their gradient steps."""

    muLoss: list[float]  # noqa: N815  (rlpyt's names)
    qLoss: list[float]  # noqa: N815
    muGradNorm: list[float]  # noqa: N815
    qGradNorm: list[float]  # noqa: N815


def _note(opt_info: Any, numbers: Iterable[tuple[str, Any]]) -> None:
    """Append losses and norms by their names."""
    for name, value in numbers:
        getattr(opt_info, name).append(number(value))


def _spread(opt_info: Any, **values: Tensor) -> None:
    """Append every tenth row of values by their names, and how far the critics are apart."""
    for name, value in values.items():
        getattr(opt_info, name).extend(value[::10].flatten().tolist())
    opt_info.qMeanDiff.append(float((values["q1"] - values["q2"]).abs().mean()))


class SAC(ReplayRlAlgorithm):
    """Soft actor-critic."""

    opt_info_class: ClassVar[Any] = SacOptInfo
    opt_info_fields: ClassVar[tuple[str, ...]] = SacOptInfo._fields
    agent_methods: ClassVar[tuple[str, ...]] = ("pi", "q", "target_q", "update_target", "give_min_itr_learn")

    def __init__(
        self,
        discount: float = 0.99,
        batch_size: int = 256,
        min_steps_learn: float = int(1e4),
        replay_size: float = int(1e6),
        replay_ratio: float = 256,
        target_update_tau: float = 0.005,
        target_update_interval: int = 1,
        learning_rate: float = 3e-4,
        fixed_alpha: float | None = None,
        OptimCls: OptimizerClass = torch.optim.Adam,
        optim_kwargs: Mapping[str, Any] | None = None,
        initial_optim_state_dict: Any = None,
        action_prior: str = "uniform",
        reward_scale: float = 1,
        target_entropy: float | str | None = "auto",
        reparameterize: bool = True,
        clip_grad_norm: float | None = 1e9,
        n_step_return: int = 1,
        updates_per_sync: int = 1,
        bootstrap_timelimit: bool = True,
        ReplayBufferCls: Any = None,
    ) -> None:
        """Store the settings.

        `fixed_alpha` of None learns the temperature for `target_entropy`, by default minus the number of entries of an
        action. `updates_per_sync` is the number of gradient steps after which `AsyncRl` sends weights.
        """
        if action_prior not in ("uniform", "gaussian"):
            raise ValueError(f"action_prior is 'uniform' or 'gaussian', found {action_prior!r}")
        if not reparameterize:
            raise NotImplementedError("SAC learns through its samples: reparameterize must be True, as in rlpyt")
        self.discount, self._batch_size, self.min_steps_learn = discount, int(batch_size), min_steps_learn
        self.replay_size, self.replay_ratio = int(replay_size), replay_ratio
        self.target_update_tau, self.target_update_interval = target_update_tau, int(target_update_interval)
        self.learning_rate, self.fixed_alpha, self.OptimCls = learning_rate, fixed_alpha, OptimCls
        self.optim_kwargs, self.initial_optim_state_dict = dict(optim_kwargs or {}), initial_optim_state_dict
        self.action_prior, self.reward_scale = action_prior, reward_scale
        self.target_entropy, self.reparameterize = target_entropy, reparameterize
        self.clip_grad_norm, self.n_step_return = clip_grad_norm, n_step_return
        self.bootstrap_timelimit, self.ReplayBufferCls = bootstrap_timelimit, ReplayBufferCls
        self.updates_per_sync = updates_per_sync

    def prepare_agent(self) -> None:
        """Set the iteration from which the agent uses its learned std."""
        self.agent.give_min_itr_learn(self.min_itr_learn)

    def optim_initialize(self, rank: int = 0) -> None:
        """Build the optimisers of actor, critics and temperature."""
        self.rank = rank
        self.pi_optimizer, self.q1_optimizer, self.q2_optimizer = (
            self.OptimCls(parameters, lr=self.learning_rate, **self.optim_kwargs)
            for parameters in (self.agent.pi_parameters(), self.agent.q1_parameters(), self.agent.q2_parameters())
        )
        start = 0.0 if self.fixed_alpha is None else math.log(self.fixed_alpha)
        self._log_alpha = torch.tensor([start], requires_grad=self.fixed_alpha is None)
        self.alpha_optimizer: Any = None
        if self.fixed_alpha is None:
            if self.world_size > 1:
                self._log_alpha.register_post_accumulate_grad_hook(average_gradient)
            self.alpha_optimizer = self.OptimCls([self._log_alpha], lr=self.learning_rate, **self.optim_kwargs)
        size = math.prod(self.agent.env_spaces.action.shape)
        if self.target_entropy == "auto":
            self.target_entropy = -float(size)
        self._prior = Gaussian(dim=size, std=1.0)
        if self.initial_optim_state_dict is not None:
            self.load_optim_state_dict(self.initial_optim_state_dict)

    @property
    def alpha(self) -> Tensor:
        """The temperature of now."""
        return self._log_alpha.detach().exp()

    def optimize_agent(self, itr: int, samples: Any = None, sampler_itr: int | None = None) -> Any:
        """Store a batch and, from `min_steps_learn` on, take gradient steps on batches of the replay."""
        require_initialized(self)
        itr = itr if sampler_itr is None else sampler_itr
        if samples is not None:
            self.replay_buffer.append_samples(self.samples_to_buffer(samples))
        opt_info = self.opt_info_class(*([] for _ in self.opt_info_fields))
        if itr < self.min_itr_learn:
            return opt_info
        for _ in range(self.updates_per_optimize):
            losses, values = self.loss(self.replay_buffer.sample_batch(self.batch_size))
            self.append_opt_info_(opt_info, losses, self._take_steps(*losses), values)
            self.update_counter += 1
            if self.update_counter % self.target_update_interval == 0:
                self.agent.update_target(self.target_update_tau)
        return opt_info

    def _take_steps(self, q1_loss: Tensor, q2_loss: Tensor, pi_loss: Tensor, alpha_loss: Tensor | None) -> Any:
        """Take one gradient step of everything; return the norms of the gradients."""
        if alpha_loss is not None:
            gradient_step(self.alpha_optimizer, alpha_loss, [self._log_alpha], None)
        return self._actor_and_critics(q1_loss, q2_loss, pi_loss)

    def _actor_and_critics(self, q1_loss: Tensor, q2_loss: Tensor, pi_loss: Tensor) -> tuple[float, float, float]:
        clip, agent = self.clip_grad_norm, self.agent
        # the actor first: its loss goes through the critics as they were when it was computed
        pi_norm = gradient_step(self.pi_optimizer, pi_loss, agent.pi_parameters(), clip)
        q1_norm = gradient_step(self.q1_optimizer, q1_loss, agent.q1_parameters(), clip)
        return q1_norm, gradient_step(self.q2_optimizer, q2_loss, agent.q2_parameters(), clip), pi_norm

    def loss(self, samples: Any) -> tuple[Any, Any]:
        """Return the losses of critics, actor and temperature; and values for logs."""
        valid, alpha = self.valid(samples), self.alpha.to(samples.return_.device)
        q1, q2 = self.agent.q(*samples.agent_inputs, samples.action)
        with torch.no_grad():
            target_action, target_log_pi, _ = self.agent.pi(*samples.target_inputs)
            target_value = torch.min(*self.agent.target_q(*samples.target_inputs, target_action))
            target_value = target_value - alpha * target_log_pi
            going = (1 - samples.done_n.float()) * self.discount**self.n_step_return
            y = self.reward_scale * samples.return_ + going * target_value
        q1_loss = 0.5 * valid_mean((y - q1) ** 2, valid)
        q2_loss = 0.5 * valid_mean((y - q2) ** 2, valid)
        action, log_pi, (pi_mean, pi_log_std) = self.agent.pi(*samples.agent_inputs)
        value = torch.min(*self.agent.q(*samples.agent_inputs, action))
        pi_loss = valid_mean(alpha * log_pi - value - self.get_action_prior(action).to(value.device), valid)
        alpha_loss = None
        if self.target_entropy is not None and self.fixed_alpha is None:
            log_alpha = self._log_alpha.to(log_pi.device)
            alpha_loss = valid_mean(-log_alpha * (log_pi.detach() + float(self.target_entropy)), valid)
        values = tuple(each.detach() for each in (q1, q2, pi_mean, pi_log_std))
        return (q1_loss, q2_loss, pi_loss, alpha_loss), values

    def get_action_prior(self, action: Tensor) -> Tensor:
        """Return the log-likelihood of actions under the prior, up to a constant."""
        if self.action_prior == "uniform":
            return torch.zeros(action.shape[:-1], device=action.device)
        return self._prior.log_likelihood(action, GaussianDistInfo(mean=torch.zeros_like(action)))

    def append_opt_info_(self, opt_info: Any, losses: Any, grad_norms: Any, values: Any) -> None:
        """Note the numbers of a gradient step."""
        q1, q2, pi_mean, pi_log_std = values
        _note(opt_info, zip(SacOptInfo._fields[:6], (*losses[:3], *grad_norms)))
        _spread(opt_info, q1=q1, q2=q2, piMu=pi_mean, piLogStd=pi_log_std)
        opt_info.alpha.append(float(self.alpha))

    def optim_state_dict(self) -> Any:
        """Return the states of all optimisers and the temperature, as copies."""
        alpha = None if self.alpha_optimizer is None else self.alpha_optimizer.state_dict()
        return tree.copy(
            {
                "pi_optimizer": self.pi_optimizer.state_dict(),
                "q1_optimizer": self.q1_optimizer.state_dict(),
                "q2_optimizer": self.q2_optimizer.state_dict(),
                "alpha_optimizer": alpha,
                "log_alpha": number(self._log_alpha),
            }
        )

    def load_optim_state_dict(self, state_dict: Any) -> None:
        """Go on with saved states."""
        for name in ("pi_optimizer", "q1_optimizer", "q2_optimizer"):
            getattr(self, name).load_state_dict(state_dict[name])
        if self.alpha_optimizer is not None and state_dict["alpha_optimizer"] is not None:
            self.alpha_optimizer.load_state_dict(state_dict["alpha_optimizer"])
        with torch.no_grad():
            self._log_alpha.fill_(state_dict["log_alpha"])


class SAC_V(SAC):  # noqa: N801  (rlpyt's name)
    """Soft actor-critic of the first kind, with a model of V and a temperature of 1; its agent is `SacVAgent`."""

    opt_info_class: ClassVar[Any] = SacVOptInfo
    opt_info_fields: ClassVar[tuple[str, ...]] = SacVOptInfo._fields
    agent_methods: ClassVar[tuple[str, ...]] = ("pi", "q", "v", "target_v", "update_target", "give_min_itr_learn")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, {"alpha": "SAC_V has a temperature of 1; give reward_scale"})

    def __init__(
        self,
        discount: float = 0.99,
        batch_size: int = 256,
        min_steps_learn: float = int(1e4),
        replay_size: float = int(1e6),
        replay_ratio: float = 256,
        target_update_tau: float = 0.005,
        target_update_interval: int = 1,
        learning_rate: float = 3e-4,
        OptimCls: OptimizerClass = torch.optim.Adam,
        optim_kwargs: Mapping[str, Any] | None = None,
        initial_optim_state_dict: Any = None,
        action_prior: str = "uniform",
        reward_scale: float = 1,
        reparameterize: bool = True,
        clip_grad_norm: float | None = 1e9,
        policy_output_regularization: float = 0.001,
        n_step_return: int = 1,
        updates_per_sync: int = 1,
        bootstrap_timelimit: bool = True,
        ReplayBufferCls: Any = None,
    ) -> None:
        """Store the settings; without `reparameterize` the actor learns by the likelihood of its samples."""
        super().__init__(
            discount=discount,
            batch_size=batch_size,
            min_steps_learn=min_steps_learn,
            replay_size=replay_size,
            replay_ratio=replay_ratio,
            target_update_tau=target_update_tau,
            target_update_interval=target_update_interval,
            learning_rate=learning_rate,
            fixed_alpha=1.0,
            OptimCls=OptimCls,
            optim_kwargs=optim_kwargs,
            initial_optim_state_dict=initial_optim_state_dict,
            action_prior=action_prior,
            reward_scale=reward_scale,
            clip_grad_norm=clip_grad_norm,
            n_step_return=n_step_return,
            updates_per_sync=updates_per_sync,
            bootstrap_timelimit=bootstrap_timelimit,
            ReplayBufferCls=ReplayBufferCls,
        )
        self.reparameterize, self.policy_output_regularization = reparameterize, policy_output_regularization

    def optim_initialize(self, rank: int = 0) -> None:
        """Build the optimisers of actor, critics and V."""
        self.v_optimizer = self.OptimCls(self.agent.v_parameters(), lr=self.learning_rate, **self.optim_kwargs)
        super().optim_initialize(rank)

    def _take_steps(self, q1_loss: Tensor, q2_loss: Tensor, v_loss: Tensor, pi_loss: Tensor | None) -> Any:
        assert pi_loss is not None
        v_norm = gradient_step(self.v_optimizer, v_loss, self.agent.v_parameters(), self.clip_grad_norm)
        q1_norm, q2_norm, pi_norm = self._actor_and_critics(q1_loss, q2_loss, pi_loss)
        return q1_norm, q2_norm, v_norm, pi_norm

    def loss(self, samples: Any) -> tuple[Any, Any]:
        """Return the losses of critics, V and actor; and values for logs."""
        valid = self.valid(samples)
        q1, q2 = self.agent.q(*samples.agent_inputs, samples.action)
        with torch.no_grad():
            going = (1 - samples.done_n.float()) * self.discount**self.n_step_return
            y = self.reward_scale * samples.return_ + going * self.agent.target_v(*samples.target_inputs)
        q1_loss = 0.5 * valid_mean((y - q1) ** 2, valid)
        q2_loss = 0.5 * valid_mean((y - q2) ** 2, valid)
        v = self.agent.v(*samples.agent_inputs)
        action, log_pi, (pi_mean, pi_log_std) = self.agent.pi(*samples.agent_inputs)
        action = action if self.reparameterize else action.detach()
        value = torch.min(*self.agent.q(*samples.agent_inputs, action))
        v_target = (value - log_pi + self.get_action_prior(action).to(value.device)).detach()
        v_loss = 0.5 * valid_mean((v - v_target) ** 2, valid)
        pi_losses = log_pi - value if self.reparameterize else log_pi * (v - v_target).detach()
        spread = 0.5 * pi_mean**2 + 0.5 * pi_log_std**2
        pi_loss = valid_mean(pi_losses + self.policy_output_regularization * spread.mean(-1), valid)
        values = tuple(each.detach() for each in (q1, q2, v, pi_mean, pi_log_std))
        return (q1_loss, q2_loss, v_loss, pi_loss), values

    def append_opt_info_(self, opt_info: Any, losses: Any, grad_norms: Any, values: Any) -> None:
        """Note the numbers of a gradient step."""
        q1, q2, v, pi_mean, pi_log_std = values
        _note(opt_info, zip(SacVOptInfo._fields[:8], (*losses, *grad_norms)))
        _spread(opt_info, q1=q1, q2=q2, v=v, piMu=pi_mean, piLogStd=pi_log_std)

    def optim_state_dict(self) -> Any:
        """Return the states of all optimisers, as copies."""
        return {**super().optim_state_dict(), "v_optimizer": tree.copy(self.v_optimizer.state_dict())}

    def load_optim_state_dict(self, state_dict: Any) -> None:
        """Go on with saved states."""
        self.v_optimizer.load_state_dict(state_dict["v_optimizer"])
        super().load_optim_state_dict({"alpha_optimizer": None, "log_alpha": 0.0, **state_dict})


class DDPG(ReplayRlAlgorithm):
    """Deep deterministic policy gradients."""

    opt_info_fields: ClassVar[tuple[str, ...]] = DdpgOptInfo._fields
    agent_methods: ClassVar[tuple[str, ...]] = ("q", "q_at_mu", "target_q_at_mu", "update_target", "mu_parameters")

    def __init__(
        self,
        discount: float = 0.99,
        batch_size: int = 64,
        min_steps_learn: float = int(1e4),
        replay_size: float = int(1e6),
        replay_ratio: float = 64,
        target_update_tau: float = 0.01,
        target_update_interval: int = 1,
        policy_update_interval: int = 1,
        learning_rate: float = 1e-4,
        q_learning_rate: float = 1e-3,
        OptimCls: OptimizerClass = torch.optim.Adam,
        optim_kwargs: Mapping[str, Any] | None = None,
        initial_optim_state_dict: Any = None,
        clip_grad_norm: float | None = 1e8,
        q_target_clip: float = 1e6,
        n_step_return: int = 1,
        updates_per_sync: int = 1,
        bootstrap_timelimit: bool = True,
        ReplayBufferCls: Any = None,
    ) -> None:
        """Store the settings; `updates_per_sync` gradient steps are one iteration of `AsyncRl`."""
        self.discount, self._batch_size, self.min_steps_learn = discount, int(batch_size), min_steps_learn
        self.replay_size, self.replay_ratio = int(replay_size), replay_ratio
        self.target_update_tau, self.target_update_interval = target_update_tau, int(target_update_interval)
        self.policy_update_interval = int(policy_update_interval)
        self.learning_rate, self.q_learning_rate = learning_rate, q_learning_rate
        self.OptimCls, self.optim_kwargs = OptimCls, dict(optim_kwargs or {})
        self.initial_optim_state_dict, self.clip_grad_norm = initial_optim_state_dict, clip_grad_norm
        self.q_target_clip, self.n_step_return = q_target_clip, n_step_return
        self.bootstrap_timelimit, self.ReplayBufferCls = bootstrap_timelimit, ReplayBufferCls
        self.updates_per_sync = updates_per_sync

    def optim_initialize(self, rank: int = 0) -> None:
        """Build the optimisers of actor and critics."""
        self.rank = rank
        self.mu_optimizer = self.OptimCls(self.agent.mu_parameters(), lr=self.learning_rate, **self.optim_kwargs)
        self.q_optimizer = self.OptimCls(self.agent.q_parameters(), lr=self.q_learning_rate, **self.optim_kwargs)
        if self.initial_optim_state_dict is not None:
            self.load_optim_state_dict(self.initial_optim_state_dict)

    def optimize_agent(self, itr: int, samples: Any = None, sampler_itr: int | None = None) -> Any:
        """Store a batch and, from `min_steps_learn` on, take gradient steps on batches of the replay."""
        require_initialized(self)
        itr = itr if sampler_itr is None else sampler_itr
        if samples is not None:
            self.replay_buffer.append_samples(self.samples_to_buffer(samples))
        opt_info = DdpgOptInfo([], [], [], [])
        if itr < self.min_itr_learn:
            return opt_info
        for _ in range(self.updates_per_optimize):
            batch = self.replay_buffer.sample_batch(self.batch_size)
            valid = self.valid(batch)
            q_loss = self.q_loss(batch, valid)
            norm = gradient_step(self.q_optimizer, q_loss, self.agent.q_parameters(), self.clip_grad_norm)
            opt_info.qLoss.append(number(q_loss))
            opt_info.qGradNorm.append(norm)
            self.update_counter += 1
            if self.update_counter % self.policy_update_interval == 0:
                mu_loss = self.mu_loss(batch, valid)
                norm = gradient_step(self.mu_optimizer, mu_loss, self.agent.mu_parameters(), self.clip_grad_norm)
                opt_info.muLoss.append(number(mu_loss))
                opt_info.muGradNorm.append(norm)
            if self.update_counter % self.target_update_interval == 0:
                self.agent.update_target(self.target_update_tau)
        return opt_info

    def mu_loss(self, samples: Any, valid: Tensor | None) -> Tensor:
        """Return minus the value of the actor's actions."""
        return -valid_mean(self.agent.q_at_mu(*samples.agent_inputs), valid)

    def q_loss(self, samples: Any, valid: Tensor | None) -> Tensor:
        """Return the squared error of the critic."""
        q = self.agent.q(*samples.agent_inputs, samples.action)
        with torch.no_grad():
            y = self.td_target(samples, self.agent.target_q_at_mu(*samples.target_inputs))
        return valid_mean(0.5 * (y - q) ** 2, valid)

    def td_target(self, samples: Any, target_q: Tensor) -> Tensor:
        """Return r + γ^n q, within ±`q_target_clip`."""
        going = (1 - samples.done_n.float()) * self.discount**self.n_step_return
        target: Tensor = (samples.return_ + going * target_q).clamp(-self.q_target_clip, self.q_target_clip)
        return target

    def optim_state_dict(self) -> Any:
        """Return the states of both optimisers, as copies."""
        return tree.copy({"q": self.q_optimizer.state_dict(), "mu": self.mu_optimizer.state_dict()})

    def load_optim_state_dict(self, state_dict: Any) -> None:
        """Go on with saved states."""
        self.q_optimizer.load_state_dict(state_dict["q"])
        self.mu_optimizer.load_state_dict(state_dict["mu"])


class TD3(DDPG):
    """Twin delayed DDPG."""

    agent_methods: ClassVar[tuple[str, ...]] = (*DDPG.agent_methods, "give_min_itr_learn")

    def __init__(
        self,
        batch_size: int = 100,
        replay_ratio: float = 100,
        target_update_tau: float = 0.005,
        target_update_interval: int = 2,
        policy_update_interval: int = 2,
        mu_learning_rate: float = 1e-3,
        q_learning_rate: float = 1e-3,
        **kwargs: Any,
    ) -> None:
        """Store the settings; others are DDPG's. `mu_learning_rate` is that of the actor."""
        super().__init__(
            batch_size=batch_size,
            replay_ratio=replay_ratio,
            target_update_tau=target_update_tau,
            target_update_interval=target_update_interval,
            policy_update_interval=policy_update_interval,
            q_learning_rate=q_learning_rate,
            **{"learning_rate": mu_learning_rate, **kwargs},
        )
        self.mu_learning_rate = self.learning_rate

    def prepare_agent(self) -> None:
        """Set the iteration from which the agent explores with `action_std`."""
        self.agent.give_min_itr_learn(self.min_itr_learn)

    def q_loss(self, samples: Any, valid: Tensor | None) -> Tensor:
        """Return the squared errors of both critics against the smaller target."""
        q1, q2 = self.agent.q(*samples.agent_inputs, samples.action)
        with torch.no_grad():
            y = self.td_target(samples, torch.min(*self.agent.target_q_at_mu(*samples.target_inputs)))
        return valid_mean(0.5 * (y - q1) ** 2 + 0.5 * (y - q2) ** 2, valid)
