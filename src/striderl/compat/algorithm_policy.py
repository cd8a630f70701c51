"""`AlgorithmPolicy`: DQN, SAC, TD3, PPO and the like as a `BasePolicy`, for `Collector` and the trainer functions.

    policy = AlgorithmPolicy(DQN(q_policy(obs_spec, action_spec)))
    out = policy(Batch(obs=obs), state)            out.act, out.state, out.policy
    policy.update(64, buffer)                      process_fn ─▶ learn ─▶ post_process_fn, all the algorithm's own

In the collecting state (training, not updating) it explores as the algorithm does; otherwise it plays the mode.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from striderl.compat.algorithm_learners import Learner, ReplayLearner, RolloutLearner
from striderl.compat.base_policy import BasePolicy
from striderl.compat.components import components
from striderl.compat.player import Player
from striderl.data import leaf, tree
from striderl.data.batch import Batch
from striderl.data.checked_fields import refuse_assignment, refuse_overrides
from striderl.storage.replay_buffer.buffer import ReplayBuffer
from striderl.training.off_policy import ReplayAlgorithm
from striderl.training.on_policy import OnPolicyAlgorithm

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

    def process_fn(self, batch: Batch, buffer: ReplayBuffer, indices: Array) -> Batch:
        """Add n-step sums and discounts (replay), or returns and advantages (PPO, A2C)."""
        return self._learner.process(batch, buffer, indices)

    def learn(self, batch: Batch, batch_size: int = 0, repeat: int = 0, **kwargs: Any) -> dict[str, Any]:
        """Take the gradient steps of the algorithm on a processed batch and return its numbers.

        For PPO `repeat` passes over minibatches of `batch_size`; 0 means what its settings say.
        """
        return self._learner.learn(batch, batch_size, repeat)

    def post_process_fn(self, batch: Batch, buffer: ReplayBuffer, indices: Array) -> None:
        """Give the errors back as priorities."""
        if buffer.priorities is not None and batch.get("weight") is self._drawn_weight:
            raise ValueError(
                f"{type(self.algorithm).__name__} tells no errors to a prioritized buffer; set prioritized=True in its "
                "config, or use a ReplayBuffer"
            )
        super().post_process_fn(batch, buffer, indices)


def _without_empty(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if not (isinstance(value, dict) and not value)}


def _as_array(value: Tensor) -> Any:
    return value.cpu().numpy()


def _as_tensor(value: Tensor) -> Tensor:
    return value
