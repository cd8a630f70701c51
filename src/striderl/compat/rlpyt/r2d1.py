"""rlpyt's R2D1: recurrent Q-learning from sequences of a replay with priorities.

    ring of the replay      S . . . S . . . S . . . S . . .        S: a recurrent state is stored, a sequence may start
    one sequence            S w w w l l l l t t                    warmup_T steps bring the state up to date, batch_T
                                                                   are learned from, n_step_return are for the targets

Nothing after the first end of an episode within a sequence is learned from. The sampler's resets best wait for the end
of its batch (`CpuWaitResetCollector`), with batch_T of the sampler equal to `store_rnn_state_interval`: episodes then
begin where sequences do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from striderl.collect.samplers.samples import AgentInputs, valid_from_done
from striderl.compat.rlpyt.algorithms import OptimizerClass, require_initialized
from striderl.compat.rlpyt.q_algorithms import DQN, SamplesToBufferTl, huber
from striderl.compat.rlpyt.sequence_replays import (
    AsyncPrioritizedSequenceReplayBuffer,
    AsyncUniformSequenceReplayBuffer,
    PrioritizedSequenceReplayBuffer,
    UniformSequenceReplayBuffer,
)
from striderl.compat.rlpyt.tensors import discount_return_n_step, select_at_indexes, valid_mean
from striderl.data.buffers import buffer_method, buffer_to
from striderl.data.named_tuples import namedarraytuple

SamplesToBufferRnn = namedarraytuple("SamplesToBufferRnn", [*SamplesToBufferTl._fields, "prev_rnn_state"])
PrioritiesSamplesToBuffer = namedarraytuple("PrioritiesSamplesToBuffer", ["priorities", "samples"])


class R2d1OptInfo(NamedTuple):
    """What R2D1 returns of its gradient steps."""

    loss: list[float]
    gradNorm: list[float]  # noqa: N815
    tdAbsErr: list[float]  # noqa: N815
    priority: list[float]


class R2D1(DQN):
    """Recurrent Q-learning from sequences of a replay with priorities, after a warm-up of the state."""

    opt_info_fields: ClassVar[tuple[str, ...]] = R2d1OptInfo._fields

    def __init__(
        self,
        discount: float = 0.997,
        batch_T: int = 80,
        batch_B: int = 64,
        warmup_T: int = 40,
        store_rnn_state_interval: int = 40,
        min_steps_learn: float = int(1e5),
        delta_clip: float | None = None,
        replay_size: float = int(1e6),
        replay_ratio: float = 1,
        target_update_interval: int = 2500,
        n_step_return: int = 5,
        learning_rate: float = 1e-4,
        OptimCls: OptimizerClass = torch.optim.Adam,
        optim_kwargs: Mapping[str, Any] | None = None,
        initial_optim_state_dict: Any = None,
        clip_grad_norm: float | None = 80.0,
        eps_steps: float = int(1e6),
        double_dqn: bool = True,
        prioritized_replay: bool = True,
        pri_alpha: float = 0.6,
        pri_beta_init: float = 0.9,
        pri_beta_final: float = 0.9,
        pri_beta_steps: float = int(50e6),
        pri_eta: float = 0.9,
        default_priority: float | None = None,
        input_priorities: bool = True,
        input_priority_shift: int | None = None,
        value_scale_eps: float = 1e-3,
        ReplayBufferCls: Any = None,
        updates_per_sync: int = 1,
    ) -> None:
        """Store the settings.

        Sequences are `warmup_T` steps that bring the state up to date and `batch_T` that are learned from. States are
        stored every `store_rnn_state_interval` steps (0 for none), and sequences start there. A sequence's priority is
        `pri_eta` times its largest TD error and the rest times their mean.
        """
        super().__init__(
            discount=discount,
            batch_size=(batch_T + warmup_T) * batch_B,
            min_steps_learn=min_steps_learn,
            delta_clip=delta_clip,
            replay_size=replay_size,
            replay_ratio=replay_ratio,
            target_update_interval=target_update_interval,
            n_step_return=n_step_return,
            learning_rate=learning_rate,
            OptimCls=OptimCls,
            optim_kwargs={"eps": 1e-3} if optim_kwargs is None else optim_kwargs,
            initial_optim_state_dict=initial_optim_state_dict,
            clip_grad_norm=clip_grad_norm,
            eps_steps=eps_steps,
            double_dqn=double_dqn,
            prioritized_replay=prioritized_replay,
            pri_alpha=pri_alpha,
            pri_beta_init=pri_beta_init,
            pri_beta_final=pri_beta_final,
            pri_beta_steps=pri_beta_steps,
            default_priority=default_priority,
            ReplayBufferCls=ReplayBufferCls,
            updates_per_sync=updates_per_sync,
        )
        self.batch_T, self.batch_B, self.warmup_T = batch_T, batch_B, warmup_T
        self.store_rnn_state_interval, self.pri_eta = store_rnn_state_interval, pri_eta
        self.input_priorities, self.value_scale_eps = input_priorities, value_scale_eps
        shift = warmup_T // max(1, store_rnn_state_interval)
        self.input_priority_shift = shift if input_priority_shift is None else input_priority_shift

    def replay_class(self, async_: bool = False) -> Any:
        """Return the class of the replay where none is given."""
        if self.prioritized_replay:
            return AsyncPrioritizedSequenceReplayBuffer if async_ else PrioritizedSequenceReplayBuffer
        return AsyncUniformSequenceReplayBuffer if async_ else UniformSequenceReplayBuffer

    def replay_kwargs(self) -> dict[str, Any]:
        """Return the settings of sequences and priorities."""
        kwargs = {"rnn_state_interval": self.store_rnn_state_interval, "batch_T": self.batch_T + self.warmup_T}
        if self.prioritized_replay:
            kwargs |= {"input_priorities": self.input_priorities, "input_priority_shift": self.input_priority_shift}
        return {**super().replay_kwargs(), **kwargs}

    def examples_to_buffer(self, examples: Any) -> Any:
        """Return one example of what is stored: with the recurrent state, where it is."""
        plain = super().examples_to_buffer(examples)
        if not self.store_rnn_state_interval:
            return plain
        return SamplesToBufferRnn(*plain, prev_rnn_state=examples["agent_info"].prev_rnn_state)

    def samples_to_buffer(self, samples: Any) -> Any:
        """Return what is stored of a batch: with the recurrent states and the priorities, where they are."""
        stored = super().samples_to_buffer(samples)
        if self.store_rnn_state_interval:
            stored = SamplesToBufferRnn(*stored, prev_rnn_state=samples.agent.agent_info.prev_rnn_state)
        if not (self.prioritized_replay and self.input_priorities):
            return stored
        return PrioritiesSamplesToBuffer(priorities=self.compute_input_priorities(samples), samples=stored)

    @torch.no_grad()
    def compute_input_priorities(self, samples: Any) -> Tensor:
        """Return one priority per env of a batch, by the Q-values that the agent stored while sampling."""
        q, action, done = samples.agent.agent_info.q, samples.agent.action, samples.env.done
        n = min(self.n_step_return, len(action) - 1)
        if n < 1:
            return torch.full((q.shape[1],), float(self.default_priority))
        return_, done_n = discount_return_n_step(samples.env.reward, done, n, self.discount)
        return_, done_n = return_[: len(q) - n], done_n[: len(q) - n]
        following = self.inv_value_scale(q.max(-1).values[n:])
        y = self.value_scale(return_ + (1 - done_n.float()) * self.discount**n * following)
        delta = (select_at_indexes(action, q)[: len(y)] - y).abs()
        delta = delta if self.delta_clip is None else delta.clamp(max=self.delta_clip)
        return self._priorities(delta, valid_from_done(done[: len(y)]))

    def _priorities(self, td_abs_errors: Tensor, valid: Tensor) -> Tensor:
        largest = (td_abs_errors * valid).max(0).values
        return self.pri_eta * largest + (1 - self.pri_eta) * valid_mean(td_abs_errors, valid, dim=0)

    def optimize_agent(self, itr: int, samples: Any = None, sampler_itr: int | None = None) -> Any:
        """Store a batch and, from `min_steps_learn` on, take gradient steps on sequences of the replay."""
        require_initialized(self)
        itr = itr if sampler_itr is None else sampler_itr
        if samples is not None:
            self.replay_buffer.append_samples(self.samples_to_buffer(samples))
        opt_info = R2d1OptInfo([], [], [], [])
        if itr < self.min_itr_learn:
            return opt_info
        for _ in range(self.updates_per_optimize):
            loss, td_abs_errors, priorities = self.loss(self.replay_buffer.sample_batch(self.batch_B))
            self.take_step(opt_info, loss, td_abs_errors, priorities)
            opt_info.priority.extend(priorities.tolist())
        self.update_itr_hyperparams(itr)
        return opt_info

    def loss(self, samples: Any) -> Any:
        """Return the loss of sequences [T, B], their TD errors without sign, and one priority per sequence."""
        warmup, length = self.warmup_T, self.batch_T
        inputs = AgentInputs(*buffer_to(_inputs_of(samples), self.agent.device))
        state = target_state = self._first_state(samples)
        if warmup > 0:
            with torch.no_grad():
                _, target_state = self.agent.target(*inputs[:warmup], state)
                _, state = self.agent(*inputs[:warmup], state)
            ended = samples.done[:warmup].bool().any(0).to(self.agent.device)
            state, target_state = (_started_anew(each, ended) for each in (state, target_state))
        qs, _ = self.agent(*inputs[warmup : warmup + length], state)
        q = select_at_indexes(samples.all_action[warmup + 1 : warmup + 1 + length], qs)
        with torch.no_grad():
            target_qs, _ = self.agent.target(*inputs[warmup:], target_state)
            chosen = self.agent(*inputs[warmup:], state)[0] if self.double_dqn else target_qs
            target_q = select_at_indexes(chosen.argmax(-1), target_qs)[-length:]
        part = slice(warmup, warmup + length)
        going = (1 - samples.done_n[part].float()) * self.discount**self.n_step_return
        delta = self.value_scale(samples.return_[part] + going * self.inv_value_scale(target_q)) - q
        losses, td_abs_errors = huber(delta, self.delta_clip)
        if self.prioritized_replay:
            losses = losses * samples.is_weights.unsqueeze(0)
        valid = valid_from_done(samples.done[part])
        learned = self.valid(samples)
        valid = valid if learned is None else valid * learned[part]
        return valid_mean(losses, valid), td_abs_errors * valid, self._priorities(td_abs_errors, valid)

    def _first_state(self, samples: Any) -> Any:
        """Return the stored states [B, N, H] as [N, B, H]."""
        if samples.init_rnn_state is None:
            return None
        return buffer_method(buffer_method(samples.init_rnn_state, "transpose", 0, 1), "contiguous")

    def value_scale(self, x: Tensor) -> Tensor:
        """Return values compressed, so that rewards of any size can be learned."""
        return x.sign() * ((x.abs() + 1).sqrt() - 1) + self.value_scale_eps * x

    def inv_value_scale(self, z: Tensor) -> Tensor:
        """Return what `value_scale` compressed."""
        eps = self.value_scale_eps
        root = (1 + 4 * eps * (z.abs() + 1 + eps)).sqrt() - 1
        return z.sign() * ((root / (2 * eps)) ** 2 - 1)


def _inputs_of(samples: Any) -> tuple[Any, ...]:
    """Return what the agent got in each step: no previous action and reward after the end of an episode."""
    ended = torch.zeros(samples.all_reward.shape, dtype=torch.bool, device=samples.done.device)
    ended[1 : 1 + len(samples.done)] = samples.done[: len(ended) - 1].bool()

    def nulled(value: Tensor) -> Tensor:
        return value.masked_fill(ended.view(*ended.shape, *[1] * (value.dim() - 2)), 0)

    return samples.all_observation, nulled(samples.all_action), nulled(samples.all_reward)


def _started_anew(rnn_state: Any, ended: Tensor) -> Any:
    """Return states [N, B, H] with zeros where an episode ended in the warm-up."""
    keep = (~ended).view(1, -1, 1)
    found = [each * keep.to(each.dtype) for each in tuple(rnn_state)] if isinstance(rnn_state, tuple) else rnn_state
    return type(rnn_state)(*found) if isinstance(rnn_state, tuple) else found * keep.to(rnn_state.dtype)
