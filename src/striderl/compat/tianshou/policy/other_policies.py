"""Further policies with the constructors of Tianshou 0.3: imitation, several agents, random, posterior sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import nn

from striderl.compat.tianshou.arrays import to_numpy, to_torch
from striderl.compat.tianshou.base_policy import BasePolicy
from striderl.compat.tianshou.policy.on_policy import in_unit
from striderl.data import leaf
from striderl.data.batch import Batch
from striderl.data.naming import AssertedValueError
from striderl.storage.replay_buffer.buffer import ReplayBuffer

Array = np.ndarray[Any, Any]


class ImitationPolicy(BasePolicy):
    """Behaviour cloning: the stored actions are the labels."""

    def __init__(self, model: nn.Module, optim: torch.optim.Optimizer, mode: str = "continuous", **kwargs: Any) -> None:
        """Take a network observation → (action, state), or → (log probabilities, state) for "discrete" actions."""
        super().__init__(**kwargs)
        if mode not in ("continuous", "discrete"):
            raise AssertedValueError(f"mode is 'continuous' or 'discrete', found {mode!r}")
        self.model, self.optim, self.mode = model, optim, mode

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        """Return Batch(logits, act, state)."""
        logits, state = self.model(batch.obs, state=state, info=batch.get("info"))
        return Batch(logits=logits, act=logits.argmax(dim=1) if self.mode == "discrete" else logits, state=state)

    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, float]:
        """Take one gradient step."""
        found = self(batch).logits
        if self.mode == "discrete":
            loss = functional.nll_loss(found, to_torch(batch.act, torch.long, found.device))
        else:
            loss = functional.mse_loss(found, to_torch(batch.act, torch.float32, found.device))
        self.optim.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optim.step()
        return {"loss": loss.item()}


class RandomPolicy(BasePolicy):
    """Chooses among the legal actions of `obs.mask`; learns nothing."""

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        """Return Batch(act)."""
        mask = np.asarray(to_numpy(batch.obs.mask), np.bool_)
        return Batch(act=np.where(mask, np.random.rand(*mask.shape), -1.0).argmax(axis=-1))

    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, float]:
        """Return nothing."""
        return {}


class MultiAgentPolicyManager(BasePolicy):
    """One policy for each agent: `obs.agent_id`, from 1, names whose turn a step is; `rew` has a column for each."""

    def __init__(self, policies: Sequence[BasePolicy], **kwargs: Any) -> None:
        """Take the policies of agents 1, 2 and so on."""
        super().__init__(**kwargs)
        self.policies = list(policies)
        for number, policy in enumerate(self.policies, start=1):
            policy.set_agent_id(number)

    def replace_policy(self, policy: BasePolicy, agent_id: int) -> None:
        """Let another policy play this agent."""
        self.policies[agent_id - 1] = policy
        policy.set_agent_id(agent_id)

    def train(self, mode: bool = True) -> MultiAgentPolicyManager:
        """Set the mode of all policies."""
        super().train(mode)
        for policy in self.policies:
            policy.train(mode)
        return self

    def _turns(self, batch: Batch, policy: BasePolicy) -> Array:
        found: Array = np.flatnonzero(np.asarray(to_numpy(batch.obs.agent_id)) == policy.agent_id)
        return found

    def process_fn(self, batch: Batch, buffer: ReplayBuffer, indice: Array) -> Batch:
        """Return what the `process_fn` of each policy makes of its own steps and rewards, by "agent_1" and so on."""
        found: dict[str, Any] = {}
        for policy in self.policies:
            mine = self._turns(batch, policy)
            name, column = f"agent_{policy.agent_id}", policy.agent_id - 1
            if not len(mine):
                found[name] = Batch()
                continue
            part, seen = batch[mine], buffer
            if leaf.is_array(buffer.rew) and buffer.rew.ndim > 1:
                part.rew, seen = part.rew[:, column], buffer.with_rew(buffer.rew[:, column])
            policy.updating = True
            try:
                found[name] = policy.process_fn(part, seen, indice[mine])
            finally:
                policy.updating = False
        return Batch(found)

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        """Return Batch(act, state, out), where state and out have a part "agent_1", … for each policy."""
        states: dict[str, Any] = {}
        outs: dict[str, Any] = {}
        act: Any = None
        for policy in self.policies:
            mine, name = self._turns(batch, policy), f"agent_{policy.agent_id}"
            states[name], outs[name] = Batch(), Batch()
            if not len(mine):
                continue
            part = batch[mine]
            if isinstance(part.get("rew"), np.ndarray) and part.rew.ndim > 1:
                part.rew = part.rew[:, policy.agent_id - 1]
            out = policy(part, None if state is None else state[name], **kwargs)
            chosen = np.asarray(to_numpy(out.act))
            if act is None:
                act = np.zeros((len(batch.obs.agent_id), *chosen.shape[1:]), chosen.dtype)
            act[mine] = chosen
            outs[name] = out
            states[name] = Batch() if out.get("state") is None else out.state
        return Batch(act=act, out=outs, state=states)

    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, Any]:
        """Let every policy learn from its own steps; return its numbers as "agent_1/loss"."""
        found: dict[str, Any] = {}
        for policy in self.policies:
            name = f"agent_{policy.agent_id}"
            if name not in batch or batch[name].is_empty():
                continue
            policy.updating = True
            try:
                found |= {f"{name}/{key}": value for key, value in policy.learn(batch[name], **kwargs).items()}
            finally:
                policy.updating = False
        return found


class PSRLModel:
    """Beliefs about a small world: Dirichlet for where a step leads, normal for what it pays."""

    def __init__(
        self,
        trans_count_prior: Array,
        rew_mean_prior: Array,
        rew_std_prior: Array,
        discount_factor: float,
        epsilon: float,
    ) -> None:
        """Take the priors [S, A, S], [S, A] and [S, A]; `epsilon` is the precision of value iteration."""
        self.trans_count = np.array(trans_count_prior, np.float64)
        self.n_state, self.n_action = rew_mean_prior.shape
        self.rew_mean, self.rew_std_prior = np.array(rew_mean_prior, np.float64), rew_std_prior
        self.rew_std = np.array(rew_std_prior, np.float64)
        self.rew_count = np.full(self.rew_mean.shape, epsilon)  # the prior has next to no weight
        self.rew_square_sum = self.rew_count * (self.rew_mean**2 + self.rew_std**2)
        self.discount_factor, self.eps = discount_factor, epsilon
        self.policy: Array = np.zeros(self.n_state, np.int64)
        self.value: Array = np.zeros(self.n_state)
        self.updated = False

    def observe(self, trans_count: Array, rew_sum: Array, rew_square_sum: Array, rew_count: Array) -> None:
        """Add counts of transitions and sums of rewards to the beliefs."""
        self.updated = False
        self.trans_count = self.trans_count + trans_count
        total = self.rew_count + rew_count
        self.rew_mean = (self.rew_mean * self.rew_count + rew_sum) / total
        self.rew_square_sum = self.rew_square_sum + rew_square_sum
        variance = np.maximum(self.rew_square_sum / total - self.rew_mean**2, 0.0) + np.finfo(np.float32).eps
        self.rew_std = np.sqrt(1.0 / (total / variance + 1.0 / self.rew_std_prior**2))
        self.rew_count = total

    def sample_trans_prob(self) -> Array:
        """Draw where steps lead [S, A, S]."""
        found: Array = torch.distributions.Dirichlet(torch.from_numpy(self.trans_count)).sample().numpy()
        return found

    def sample_reward(self) -> Array:
        """Draw what steps pay [S, A]."""
        return np.random.normal(self.rew_mean, self.rew_std)

    def solve_policy(self) -> None:
        """Draw a world and find its best policy."""
        self.updated = True
        self.policy, self.value = self.value_iteration(
            self.sample_trans_prob(), self.sample_reward(), self.discount_factor, self.eps, self.value
        )

    @staticmethod
    def value_iteration(
        trans_prob: Array, rew: Array, discount_factor: float, eps: float, value: Array
    ) -> tuple[Array, Array]:
        """Return (best actions [S], values [S]); ties are broken at random."""
        while True:
            q = rew + discount_factor * trans_prob @ value
            better = q.max(axis=1)
            if np.allclose(better, value, eps):
                return (q + eps * np.random.randn(*q.shape)).argmax(axis=1), better
            value = better

    def __call__(self, obs: Array, state: Any = None, info: Any = None) -> Array:
        """Return the actions of the policy for these states."""
        if not self.updated:
            self.solve_policy()
        found: Array = self.policy[np.asarray(obs, np.int64)]
        return found


class PSRLPolicy(BasePolicy):
    """Posterior sampling: play the best policy of a world drawn from the beliefs, then correct them."""

    def __init__(
        self,
        trans_count_prior: Array,
        rew_mean_prior: Array,
        rew_std_prior: Array,
        discount_factor: float = 0.99,
        epsilon: float = 0.01,
        add_done_loop: bool = False,
        **kwargs: Any,
    ) -> None:
        """Take the priors; with `add_done_loop` terminal states lead to themselves."""
        super().__init__(**kwargs)
        gamma = in_unit(discount_factor, "discount_factor")
        self.model = PSRLModel(trans_count_prior, rew_mean_prior, rew_std_prior, gamma, epsilon)
        self._add_done_loop = add_done_loop

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        """Return Batch(act)."""
        return Batch(act=self.model(batch.obs, state=state, info=batch.get("info")))

    def learn(self, batch: Batch, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Count what happened."""
        counts = np.zeros_like(self.model.trans_count)
        shape = self.model.rew_mean.shape
        total, squares, visits = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        obs, act, after = (np.asarray(each, np.int64) for each in (batch.obs, batch.act, batch.obs_next))
        np.add.at(counts, (obs, act, after), 1)
        np.add.at(total, (obs, act), batch.rew)
        np.add.at(squares, (obs, act), batch.rew**2)
        np.add.at(visits, (obs, act), 1)
        if self._add_done_loop:
            for end in after[np.asarray(batch.done, np.bool_)]:
                counts[end, :, end] += 1
                visits[end, :] += 1
        self.model.observe(counts, total, squares, visits)
        return {"psrl/rew_mean": float(self.model.rew_mean.mean()), "psrl/rew_std": float(self.model.rew_std.mean())}
