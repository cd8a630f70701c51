"""rlpyt's algorithms with a replay of choices: DQN, and distributions of Q-values; recurrent ones are in `r2d1.py`.

    optimize_agent(itr, samples):   samples_to_buffer ─▶ replay_buffer.append_samples
                                    updates_per_optimize times: sample_batch ─▶ loss ─▶ gradient step ─▶ priorities
                                    every target_update_interval steps: agent.update_target(target_update_tau)

    updates_per_optimize = replay_ratio · samples per batch / batch_size: how often a sample is used on average

Override `loss`, `samples_to_buffer` with `examples_to_buffer`, or give `ReplayBufferCls`. Steps that the clock ended
are left out of the loss: what followed them in the replay is another episode. rlpyt takes them for ends of the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from striderl.compat.rlpyt import logger
from striderl.compat.rlpyt.algorithms import (
    OptimizerClass,
    RlAlgorithm,
    gradient_step,
    number,
    require_agent,
    require_initialized,
)
from striderl.compat.rlpyt.replays import (
    AsyncPrioritizedReplayBuffer,
    AsyncUniformReplayBuffer,
    PrioritizedReplayBuffer,
    UniformReplayBuffer,
)
from striderl.compat.rlpyt.tensors import select_at_indexes, valid_mean
from striderl.data.named_tuples import namedarraytuple

EPS = 1e-6
SamplesToBuffer = namedarraytuple("SamplesToBuffer", ["observation", "action", "reward", "done"])
SamplesToBufferTl = namedarraytuple("SamplesToBufferTl", [*SamplesToBuffer._fields, "timeout"])


class DqnOptInfo(NamedTuple):
    """What DQN returns of its gradient steps."""

    loss: list[float]
    gradNorm: list[float]  # noqa: N815  (rlpyt's names)
    tdAbsErr: list[float]  # noqa: N815


def unlearned_steps(samples: Any, *, time_limits: bool) -> Tensor:
    """Return the steps that nothing is learned from, bool [T, B]: invalid, waiting for a reset, ended by the clock."""
    env = samples.env
    done = env.done.bool()
    if "truncated" not in env:  # samples of a sampler of one's own
        late = getattr(env.env_info, "timeout", None)
        none: Tensor = done & False
        return none if late is None or not time_limits else late.bool()
    late = (env.truncated & ~env.terminated) if time_limits else done & False
    found: Tensor = late | ~env.valid
    return found


def huber(delta: Tensor, delta_clip: float | None) -> tuple[Tensor, Tensor]:
    """Return the loss of each TD error, linear from `delta_clip` on, and its size for priorities."""
    size, losses = delta.abs(), 0.5 * delta**2
    if delta_clip is None:
        return losses, size.detach()
    linear = delta_clip * (size - delta_clip / 2)
    return torch.where(size <= delta_clip, losses, linear), size.detach().clamp(max=delta_clip)


class ReplayRlAlgorithm(RlAlgorithm):
    """The replay of algorithms off policy; subclasses define `optim_initialize`, the updates and the losses."""

    discount: float
    n_step_return: int
    replay_size: float
    replay_ratio: float
    min_steps_learn: float
    updates_per_sync: int = 1
    bootstrap_timelimit: bool = True
    ReplayBufferCls: Any = None
    replay_buffer: Any

    def initialize(
        self,
        agent: Any,
        n_itr: int,
        batch_spec: Any,
        mid_batch_reset: bool,
        examples: Any,
        world_size: int = 1,
        rank: int = 0,
    ) -> None:
        """Build the replay and the optimisers."""
        self._take(agent, n_itr, batch_spec, mid_batch_reset, examples, world_size)
        self.updates_per_optimize = max(1, round(self.replay_ratio * self.sampler_bs / self.batch_size))
        logger.log(
            f"From sampler batch size {self.sampler_bs}, training batch size {self.batch_size}, and replay ratio "
            f"{self.replay_ratio}, computed {self.updates_per_optimize} updates per iteration."
        )
        self.initialize_replay_buffer(examples, batch_spec)
        self.prepare_agent()
        self.optim_initialize(rank)

    def async_initialize(
        self,
        agent: Any,
        sampler_n_itr: int,
        batch_spec: Any,
        mid_batch_reset: bool,
        examples: Any,
        world_size: int = 1,
    ) -> Any:
        """Build a replay that is written meanwhile; an iteration is `updates_per_sync` gradient steps."""
        self._take(agent, sampler_n_itr, batch_spec, mid_batch_reset, examples, world_size)
        self.updates_per_optimize = self.updates_per_sync
        self.initialize_replay_buffer(examples, batch_spec, async_=True)
        self.prepare_agent()
        return self.replay_buffer

    def _take(
        self, agent: Any, n_itr: int, batch_spec: Any, mid_batch_reset: bool, examples: Any, world_size: int
    ) -> None:
        require_agent(self, agent, *self.agent_methods)
        self.agent, self.n_itr, self.batch_spec, self.mid_batch_reset = agent, n_itr, batch_spec, mid_batch_reset
        self.examples, self.world_size = examples, world_size
        self.sampler_bs = batch_spec.size
        self.min_itr_learn = int(self.min_steps_learn // self.sampler_bs)

    agent_methods: ClassVar[tuple[str, ...]] = ()
    """The methods that the agent must have."""

    def prepare_agent(self) -> None:
        """Pass the agent what it wants before a sampler has a copy of it."""

    def initialize_replay_buffer(self, examples: Any, batch_spec: Any, async_: bool = False) -> None:
        """Build the replay for samples of the form of the examples; `async_` for `AsyncRl`."""
        kwargs = {"example": self.examples_to_buffer(examples), "size": self.replay_size, "B": batch_spec.B}
        kwargs |= {"discount": self.discount, "n_step_return": self.n_step_return, **self.replay_kwargs()}
        self.replay_buffer = (self.ReplayBufferCls or self.replay_class(async_))(**kwargs)

    def replay_class(self, async_: bool = False) -> Any:
        """Return the class of the replay where none is given."""
        return AsyncUniformReplayBuffer if async_ else UniformReplayBuffer

    def replay_kwargs(self) -> dict[str, Any]:
        """Return further arguments of the replay."""
        return {}

    def examples_to_buffer(self, examples: Any) -> Any:
        """Return one example of what is stored."""
        names = ("observation", "action", "reward", "done")
        return SamplesToBufferTl(*(examples[name] for name in names), timeout=examples["done"])

    def samples_to_buffer(self, samples: Any) -> Any:
        """Return what is stored of a batch."""
        env = samples.env
        timeout = unlearned_steps(samples, time_limits=self.bootstrap_timelimit)
        return SamplesToBufferTl(env.observation, samples.agent.action, env.reward, env.done, timeout)

    def valid(self, samples: Any) -> Tensor | None:
        """Return which samples of a batch from the replay count; None for all."""
        return 1 - samples.timeout_n.float() if "timeout_n" in samples else None


class DQN(ReplayRlAlgorithm):
    """Q-learning from a replay, with double Q-learning, n-step returns and priorities where asked for."""

    opt_info_fields: ClassVar[tuple[str, ...]] = DqnOptInfo._fields
    agent_methods: ClassVar[tuple[str, ...]] = ("__call__", "target", "update_target", "set_epsilon_itr_min_max")

    def __init__(
        self,
        discount: float = 0.99,
        batch_size: int = 32,
        min_steps_learn: float = int(5e4),
        delta_clip: float | None = 1.0,
        replay_size: float = int(1e6),
        replay_ratio: float = 8,
        target_update_tau: float = 1,
        target_update_interval: int = 312,
        n_step_return: int = 1,
        learning_rate: float = 2.5e-4,
        OptimCls: OptimizerClass = torch.optim.Adam,
        optim_kwargs: Mapping[str, Any] | None = None,
        initial_optim_state_dict: Any = None,
        clip_grad_norm: float | None = 10.0,
        eps_steps: float = int(1e6),
        double_dqn: bool = False,
        prioritized_replay: bool = False,
        pri_alpha: float = 0.6,
        pri_beta_init: float = 0.4,
        pri_beta_final: float = 1.0,
        pri_beta_steps: float = int(50e6),
        default_priority: float | None = None,
        ReplayBufferCls: Any = None,
        updates_per_sync: int = 1,
    ) -> None:
        """Store the settings.

        `delta_clip` is where the Huber loss becomes linear, None for the squared error. ε of the agent falls until
        `eps_steps` env steps. `updates_per_sync` is the number of gradient steps after which `AsyncRl` sends weights.
        """
        self.discount, self._batch_size, self.min_steps_learn = discount, int(batch_size), min_steps_learn
        self.delta_clip, self.replay_size, self.replay_ratio = delta_clip, int(replay_size), replay_ratio
        self.target_update_tau, self.target_update_interval = target_update_tau, int(target_update_interval)
        self.n_step_return, self.learning_rate, self.OptimCls = n_step_return, learning_rate, OptimCls
        self.optim_kwargs = {"eps": 0.01 / batch_size} if optim_kwargs is None else dict(optim_kwargs)
        self.initial_optim_state_dict, self.clip_grad_norm = initial_optim_state_dict, clip_grad_norm
        self.eps_steps, self.double_dqn, self.prioritized_replay = eps_steps, double_dqn, prioritized_replay
        self.pri_alpha, self.pri_beta_init, self.pri_beta_final = pri_alpha, pri_beta_init, pri_beta_final
        self.pri_beta_steps, self.ReplayBufferCls = pri_beta_steps, ReplayBufferCls
        self.default_priority = (delta_clip or 1.0) if default_priority is None else default_priority
        self.updates_per_sync = updates_per_sync

    def prepare_agent(self) -> None:
        """Set the iterations of the agent's ε."""
        self.agent.set_epsilon_itr_min_max(self.min_itr_learn, max(1, int(self.eps_steps // self.sampler_bs)))

    def optim_initialize(self, rank: int = 0) -> None:
        """Build the optimiser."""
        self.rank = rank
        self.optimizer = self.OptimCls(self.agent.parameters(), lr=self.learning_rate, **self.optim_kwargs)
        if self.initial_optim_state_dict is not None:
            self.load_optim_state_dict(self.initial_optim_state_dict)
        self.pri_beta_itr = max(1, int(self.pri_beta_steps // self.sampler_bs))

    def replay_class(self, async_: bool = False) -> Any:
        """Return the class of the replay where none is given: with priorities or without."""
        if self.prioritized_replay:
            return AsyncPrioritizedReplayBuffer if async_ else PrioritizedReplayBuffer
        return super().replay_class(async_)

    def replay_kwargs(self) -> dict[str, Any]:
        """Return the settings of priorities."""
        if not self.prioritized_replay:
            return {}
        return {"alpha": self.pri_alpha, "beta": self.pri_beta_init, "default_priority": self.default_priority}

    def optimize_agent(self, itr: int, samples: Any = None, sampler_itr: int | None = None) -> Any:
        """Store a batch and, from `min_steps_learn` on, take gradient steps on batches of the replay."""
        require_initialized(self)
        itr = itr if sampler_itr is None else sampler_itr
        if samples is not None:
            self.replay_buffer.append_samples(self.samples_to_buffer(samples))
        opt_info = DqnOptInfo([], [], [])
        if itr < self.min_itr_learn:
            return opt_info
        for _ in range(self.updates_per_optimize):
            loss, td_abs_errors = self.loss(self.replay_buffer.sample_batch(self.batch_size))
            self.take_step(opt_info, loss, td_abs_errors, td_abs_errors)
        self.update_itr_hyperparams(itr)
        return opt_info

    def take_step(self, opt_info: Any, loss: Tensor, td_abs_errors: Tensor, priorities: Tensor) -> None:
        """Take one gradient step, and note its numbers."""
        norm = gradient_step(self.optimizer, loss, self.agent.parameters(), self.clip_grad_norm)
        if self.prioritized_replay:
            self.replay_buffer.update_batch_priorities(priorities)
        opt_info.loss.append(number(loss))
        opt_info.gradNorm.append(norm)
        opt_info.tdAbsErr.extend(td_abs_errors[::8].flatten().tolist())
        self.update_counter += 1
        if self.update_counter % self.target_update_interval == 0:
            self.agent.update_target(self.target_update_tau)

    def loss(self, samples: Any) -> tuple[Tensor, Tensor]:
        """Return the loss of rows [B] and their TD errors without sign."""
        q = select_at_indexes(samples.action, self.agent(*samples.agent_inputs))
        with torch.no_grad():
            target_qs = self.agent.target(*samples.target_inputs)
            chosen = self.agent(*samples.target_inputs) if self.double_dqn else target_qs
            target_q = select_at_indexes(chosen.argmax(-1), target_qs)
        y = samples.return_ + (1 - samples.done_n.float()) * self.discount**self.n_step_return * target_q
        losses, td_abs_errors = huber(y - q, self.delta_clip)
        if self.prioritized_replay:
            losses = losses * samples.is_weights
        return valid_mean(losses, self.valid(samples)), td_abs_errors

    def update_itr_hyperparams(self, itr: int) -> None:
        """Move the exponent of the importance weights."""
        if self.prioritized_replay:
            span = max(1, self.pri_beta_itr - self.min_itr_learn)
            progress = min(1.0, max(0, itr - self.min_itr_learn) / span)
            self.replay_buffer.set_beta(progress * self.pri_beta_final + (1 - progress) * self.pri_beta_init)


class CategoricalDQN(DQN):
    """Q-learning of distributions over atoms between V_min and V_max."""

    agent_methods: ClassVar[tuple[str, ...]] = (*DQN.agent_methods, "give_V_min_max")

    def __init__(self, V_min: float = -10, V_max: float = 10, **kwargs: Any) -> None:
        """Store the values of the first and the last atom; other settings are DQN's."""
        super().__init__(**kwargs)
        self.V_min, self.V_max = V_min, V_max
        if "eps" not in self.optim_kwargs and self.OptimCls is torch.optim.Adam:
            self.optim_kwargs["eps"] = 0.01 / self.batch_size

    def prepare_agent(self) -> None:
        """Set the agent's ε, and the values of its atoms."""
        super().prepare_agent()
        self.agent.give_V_min_max(self.V_min, self.V_max)

    def loss(self, samples: Any) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy with the projected target distribution, and the KL divergences."""
        z = torch.linspace(self.V_min, self.V_max, self.agent.n_atoms, device=samples.return_.device)
        with torch.no_grad():
            target_ps = self.agent.target(*samples.target_inputs)
            chosen = self.agent(*samples.target_inputs) if self.double_dqn else target_ps
            target_p = select_at_indexes((chosen @ z).argmax(-1), target_ps)
            target_p = self._projected(target_p, samples, z)
        p = select_at_indexes(samples.action, self.agent(*samples.agent_inputs)).clamp(EPS, 1)
        losses = -(target_p * p.log()).sum(-1)
        if self.prioritized_replay:
            losses = losses * samples.is_weights
        clear = target_p.clamp(EPS, 1)
        divergence = (clear * (clear.log() - p.detach().log())).sum(-1).clamp(EPS, 1 / EPS)
        return valid_mean(losses, self.valid(samples)), divergence

    def _projected(self, target_p: Tensor, samples: Any, z: Tensor) -> Tensor:
        """Return probabilities [B, P] of r + γ^n z, shared between the neighbouring atoms."""
        factor = self.discount**self.n_step_return * (1 - samples.done_n.float())
        moved: Tensor = (samples.return_.unsqueeze(1) + factor.unsqueeze(1) * z).clamp(self.V_min, self.V_max)
        width = (self.V_max - self.V_min) / (len(z) - 1)
        share = (1 - (moved.unsqueeze(1) - z.view(1, -1, 1)).abs() / width).clamp(0, 1)  # [B, P, P']
        return (share * target_p.unsqueeze(1)).sum(-1)
