"""`AlgorithmPolicy`: DQN, SAC, TD3, PPO and the like as a `BasePolicy`, for `Collector` and the trainer functions.

    policy = AlgorithmPolicy(DQN(q_policy(obs_spec, action_spec)))
    out = policy(Batch(obs=obs), state)            out.act, out.state, out.policy
    policy.update(64, buffer)                      process_fn ─▶ learn ─▶ post_process_fn, all the algorithm's own

In the collecting state (training, not updating) it explores as the algorithm does; otherwise it plays the mode.

How our algorithms learn from the samples of a `ReplayBuffer`: the second half of `AlgorithmPolicy`.

DQN, SAC, TD3 …   sample(n) ─▶ windows of n steps ─▶ algorithm.update ─▶ td errors ─▶ priorities
PPO, A2C          sample(0) ─▶ values, GAE        ─▶ minibatches of all steps
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from striderl.algorithms.reward_terms import SingleStep
from striderl.compat.parts import Player, check_plain, components, gradient_steps, other_minibatches, targets_of
from striderl.compat.tianshou.base_policy import BasePolicy, episodic_return, gaps_between, windows
from striderl.data import leaf, tree
from striderl.data.batch import Batch
from striderl.data.checked_fields import refuse_assignment, refuse_overrides
from striderl.data.specs import torch_dtype
from striderl.storage.replay.views import NStep
from striderl.storage.replay_buffer.buffer import ReplayBuffer
from striderl.training.protocols import OnPolicyAlgorithm, ReplayAlgorithm, UpdateNoise, order_generator

Array = np.ndarray[Any, Any]


class AlgorithmPolicy(BasePolicy):
    """One of our algorithms in the words of Tianshou; see the top of this module."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        reason = "the algorithm makes its own targets; override process_fn, or its config (n_step, gamma, lam)"
        refuse_overrides(cls, dict.fromkeys(("compute_nstep_return", "compute_episodic_return"), reason))

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_assignment(self, name, parts=("algorithm", "seed"))
        if name == "policy" and "policy" in self._modules:
            raise AttributeError("setting AlgorithmPolicy.policy would have no effect: the algorithm holds it")
        super().__setattr__(name, value)

    def __init__(self, algorithm: Any, *, seed: int = 0) -> None:
        """Take an algorithm; `seed` decides what it draws."""
        super().__init__()
        self._learner: Learner
        if isinstance(algorithm, ReplayAlgorithm):
            self._learner = ReplayLearner(algorithm, seed)
        elif isinstance(algorithm, OnPolicyAlgorithm):
            self._learner = RolloutLearner(algorithm, seed)
        else:
            raise TypeError(
                "AlgorithmPolicy wants an algorithm such as DQN, SAC or PPO, built with its policy, "
                f"found {type(algorithm).__name__}"
            )
        self.algorithm, self.seed = algorithm, seed
        self.policy = algorithm.policy
        self._player = Player(algorithm, seed)

    @property
    def env_step(self) -> int:
        """Steps for which it has chosen exploring actions; schedules of the exploration follow it."""
        return self._player.env_step

    # -- acting --------------------------------------------------------------------------------------------------------

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        """Return Batch(act, state, policy) for `batch.obs` [B, …], in arrays where it is an array, else in tensors."""
        device = next(self.policy.parameters()).device
        obs = components(batch.obs, self.policy.obs_spec, device)
        acted = self._player.act(obs, state, exploring=self.training and not self.updating)
        show = _as_tensor if any(leaf.is_tensor(value) for value in tree.leaves(batch.obs)) else _as_array
        out = Batch(act=tree.map(show, acted.actions), policy=Batch(tree.map(show, _without_empty(acted.columns))))
        if acted.state:
            out.state = Batch(tree.map(show, acted.state))
        return out

    # -- learning ------------------------------------------------------------------------------------------------------

    def process_fn(self, batch: Batch, buffer: ReplayBuffer, indice: Array) -> Batch:
        """Add n-step sums and discounts (replay), or returns and advantages (PPO, A2C)."""
        return self._learner.process(batch, buffer, indice)

    def learn(self, batch: Batch, batch_size: int = 0, repeat: int = 0, **kwargs: Any) -> dict[str, Any]:
        """Take the gradient steps of the algorithm on a processed batch and return its numbers.

        For PPO `repeat` passes over minibatches of `batch_size`; 0 means what its settings say.
        """
        return self._learner.learn(batch, batch_size, repeat)

    def post_process_fn(self, batch: Batch, buffer: ReplayBuffer, indice: Array) -> None:
        """Give the errors back as priorities."""
        if buffer.priorities is not None and batch.get("weight") is self._drawn_weight:
            raise ValueError(
                f"{type(self.algorithm).__name__} tells no errors to a prioritized buffer; set prioritized=True in its "
                "config, or use a ReplayBuffer"
            )
        super().post_process_fn(batch, buffer, indice)


def _without_empty(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if not (isinstance(value, dict) and not value)}


def _as_array(value: Tensor) -> Any:
    return value.cpu().numpy()


def _as_tensor(value: Tensor) -> Tensor:
    return value


# -- learning ----------------------------------------------------------------------------------------------------------


class Learner(Protocol):
    """What `AlgorithmPolicy` asks for."""

    def process(self, batch: Batch, buffer: ReplayBuffer, indice: Array) -> Batch:
        """Add targets."""
        ...

    def learn(self, batch: Batch, batch_size: int, repeat: int) -> dict[str, Any]:
        """Take gradient steps."""
        ...


class ReplayLearner:
    """Feeds samples to an algorithm that learns from replay."""

    def __init__(self, algorithm: ReplayAlgorithm, seed: int) -> None:
        """Read from the algorithm's own view how many steps it looks ahead."""
        view: Any = algorithm.view()
        if not isinstance(view, (SingleStep, NStep)) or (isinstance(view, NStep) and view.reward is not None):
            raise TypeError(
                f"{type(algorithm).__name__} reads samples through {type(view).__name__}; only plain n-step samples "
                "can come from a ReplayBuffer. Train it with striderl.training.Trainer"
            )
        self.algorithm, self.gamma = algorithm, view.gamma
        self.n_step = view.n if isinstance(view, NStep) else 1
        self.num_updates, self._seed = 0, seed
        self._noise: dict[int, UpdateNoise] = {}

    def process(self, batch: Batch, buffer: ReplayBuffer, indice: Array) -> Batch:
        """Replace obs_next by what followed n steps; add `nstep_rew` and `discount`."""
        found = windows(buffer, indice, gamma=self.gamma, n=self.n_step)
        if self.n_step > 1:
            batch.obs_next = buffer.get(found.last, "obs_next")
        batch.nstep_rew, batch.discount = found.reward, found.discount
        return batch

    def learn(self, batch: Batch, batch_size: int, repeat: int) -> dict[str, Any]:
        """Take one gradient step; the errors become `batch.weight` where the algorithm tells them."""
        policy = self.algorithm.policy
        device = next(policy.parameters()).device
        size = len(batch.nstep_rew)

        def floats(values: Any) -> Tensor:
            return torch.as_tensor(values, dtype=torch.float32, device=device)

        def flags(values: Any) -> Tensor:
            return torch.as_tensor(values, dtype=torch.bool, device=device)

        sample = {
            "obs": components(batch.obs, policy.obs_spec, device),
            "obs_next": components(batch.obs_next, policy.obs_spec, device),
            "act": _actions(batch.act, policy.action_spec, device),
            "rew": floats(batch.nstep_rew),
            "discount": floats(batch.discount),
            "terminated": flags(batch.terminated),
            "truncated": flags(batch.truncated),
            "valid": torch.ones(size, dtype=torch.bool, device=device),
            "info": {},
            "policy": {},
        }
        weight = floats(batch.weight) if "weight" in batch else None
        if size not in self._noise:
            self._noise[size] = UpdateNoise(self.algorithm.noise(), size, self._seed, device)
        numbers = dict(self.algorithm.update(sample, weight, self._noise[size].at(self.num_updates)))
        self.num_updates += 1
        self.algorithm.update_normalization(sample)
        if "td_error" in numbers:
            batch.weight = numbers.pop("td_error").cpu().numpy()
        return numbers


class RolloutLearner:
    """Feeds whole rollouts, in the order of time, to PPO or A2C."""

    def __init__(self, algorithm: Any, seed: int) -> None:
        """Refuse what cannot learn from steps in one row."""
        self.algorithm, self._seed = check_plain(algorithm), seed
        self.num_updates = 0

    @torch.no_grad()
    def process(self, batch: Batch, buffer: ReplayBuffer, indice: Array) -> Batch:
        """Add `returns` and `advantage`; what followed is valued now, the rest as it was when it was collected."""
        stored = batch.get("policy")
        if stored is None or "value" not in stored or "log_prob" not in stored:
            raise ValueError(
                "PPO and A2C learn from steps that they collected themselves: these have no 'value' and 'log_prob' "
                "under 'policy'. Were they collected with random=True, or in another mode than training?"
            )
        policy = self.algorithm.policy
        device = next(policy.parameters()).device
        following = components(batch.obs_next, policy.obs_spec, device)
        like = torch.zeros(len(indice), device=device)
        value, _ = policy.value(following, {}, policy.settled(like))
        gamma, lam = self.algorithm.config.gamma, self.algorithm.config.lam
        batch.returns, batch.advantage = episodic_return(
            batch, gaps_between(buffer, indice), value, stored.value, gamma=gamma, lam=lam
        )
        return batch

    def learn(self, batch: Batch, batch_size: int, repeat: int) -> dict[str, Any]:
        """Make `repeat` passes over minibatches; 0 for either means what the algorithm's settings say."""
        policy = self.algorithm.policy
        device = next(policy.parameters()).device

        def column(value: Any) -> Tensor:
            return torch.as_tensor(value, device=device).unsqueeze(1)

        obs = components(batch.obs, policy.obs_spec, device)
        columns = {
            "obs": {name: value.unsqueeze(1) for name, value in obs.items()},
            "act": tree.map(lambda value: value.unsqueeze(1), _actions(batch.act, policy.action_spec, device)),
            "rew": column(batch.rew).float(),
            "terminated": column(batch.terminated),
            "truncated": column(batch.truncated),
            "valid": torch.ones(len(batch.returns), 1, dtype=torch.bool, device=device),
            "policy": {"dist": {}, "memo": {}, **_nested(batch.policy, column)},
        }
        prepared = targets_of(self.algorithm, columns, column(batch.returns), column(batch.advantage))
        generator = order_generator(self._seed, self.num_updates, device)
        self.num_updates += 1
        count = len(batch.returns)
        if batch_size or repeat:
            with other_minibatches(self.algorithm, count, batch_size or count, repeat or 1):
                steps = list(gradient_steps(self.algorithm, prepared, generator))
        else:
            steps = list(gradient_steps(self.algorithm, prepared, generator))
        self.algorithm.update_normalization(columns)
        return {name: [float(step[name]) for step in steps] for name in steps[0]}


def _actions(act: Any, spec: Any, device: torch.device) -> Any:
    given = dict(act.items()) if isinstance(act, Batch) else act
    wanted = spec.tensor
    return tree.map(
        lambda value, part: torch.as_tensor(value, device=device, dtype=torch_dtype(part.dtype)), given, wanted
    )


def _nested(batch: Batch, convert: Any) -> dict[str, Any]:
    """Return a Batch as dicts, leaves converted; memory that policies wanted stored is left out."""
    return {
        name: _nested(value, convert) if isinstance(value, Batch) else convert(value)
        for name, value in batch.items()
        if name != "_state"
    }
