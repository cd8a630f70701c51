"""Model, Algorithm, Agent: one of our algorithms in four layers, of which the fourth is `Trainer`.

Model      value(x, a=None), action(x)             the networks and nothing else
Algorithm  predict(obs), learn(data), sync_target()    tensors in, tensors out
Agent      predict(obs), sample(obs), learn(data)      arrays in, arrays out; counts steps
Trainer    _run_collect, _run_train, __call__          see generator_trainer.py

algorithm = Algorithm(DQN(q_policy(obs_spec, action_spec)))          or one made of a user's model: user_models.py
agent = Agent(algorithm)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from striderl.algorithms.dqn import DQN
from striderl.compat.components import components
from striderl.compat.player import Player
from striderl.compat.policy_checks import checked_numbers
from striderl.data import tree
from striderl.data.batch import Batch
from striderl.data.episode_ends import ends_of
from striderl.data.specs import torch_dtype
from striderl.storage.replay import ReplaySample
from striderl.storage.rollout import RolloutStorage
from striderl.training.off_policy import ReplayAlgorithm, UpdateNoise
from striderl.training.on_policy import OnPolicyAlgorithm, order_generator


class Rollout(NamedTuple):
    """A full rollout with where it began and where it stopped: what PPO and A2C learn from."""

    storage: RolloutStorage
    initial_state: dict[str, Tensor]
    last_obs: dict[str, Tensor]
    last_state: dict[str, Tensor]


class Model(nn.Module):
    """The networks of an algorithm, as `value` and `action`."""

    def __init__(self, algorithm: Any) -> None:
        """Show the networks of an algorithm; they are not copied."""
        super().__init__()
        self.policy = algorithm.policy
        replays: Any = algorithm if isinstance(algorithm, ReplayAlgorithm) else None
        self.critic: Any = getattr(replays, "critic", None)
        self.kind = "q" if isinstance(algorithm, DQN) else "critic" if self.critic is not None else "value"

    def value(self, x: Any, a: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return DQN's Q-values [B, n]; the values [B] of (x, a) by each critic; or PPO's value [B]."""
        obs = self._obs(x)
        if self.kind == "critic":
            if a is None:
                raise ValueError("this model values actions: call value(x, a)")
            return tuple(self.critic(obs, a).unbind(0))
        if self.kind == "q":
            return (self.action(x).params()["values"],)
        like = next(iter(obs.values()))
        memo = self.policy.settled(like.new_zeros(like.shape[0]))
        return (self.policy.value(obs, self.policy.initial_state(len(like), like.device), memo)[0],)

    def action(self, x: Any) -> Any:
        """Return the distribution of actions; for DQN its mode is the greedy choice."""
        obs = self._obs(x)
        like = next(iter(obs.values()))
        memo = self.policy.settled(like.new_zeros(like.shape[0]))
        return self.policy.act(obs, self.policy.initial_state(len(like), like.device), memo)[0]

    def _obs(self, x: Any) -> dict[str, Tensor]:
        return components(x, self.policy.obs_spec, next(self.policy.parameters()).device)


class Algorithm:
    """Updates of a model, and what its outputs mean; tensors in, tensors out."""

    def __init__(self, core: Any, *, model: nn.Module | None = None, seed: int = 0) -> None:
        """Take DQN, SAC, PPO or the like; `model` is the user's own where the networks were made of one."""
        if not isinstance(core, (ReplayAlgorithm, OnPolicyAlgorithm)):
            raise TypeError(f"Algorithm wants one of our algorithms, such as DQN or PPO, found {type(core).__name__}")
        self.core: Any = core
        self.view = Model(core)
        self.model: Any = self.view if model is None else model
        self.on_policy = not isinstance(core, ReplayAlgorithm)
        self.num_updates, self.seed = 0, seed
        self._noise: dict[int, UpdateNoise] = {}

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        parameter: Tensor = next(self.core.policy.parameters())
        return parameter.device

    @torch.no_grad()
    def predict(self, obs: Any) -> Any:
        """Return Q-values [B, n] (DQN), or the distribution of actions."""
        return self.view.value(obs)[0] if self.view.kind == "q" else self.view.action(obs)

    def learn(self, data: Any) -> dict[str, Any]:
        """Learn from a `ReplaySample`, or a dict of its columns, or a `Rollout`; return numbers.

        The errors of the samples are among them as 'td_error' [B] where the algorithm tells them.
        """
        numbers = self._learn_rollout(data) if self.on_policy else self._learn_sample(data)
        self.num_updates += 1
        return {name: value.detach() for name, value in numbers.items()}

    def _learn_sample(self, data: Any) -> dict[str, Tensor]:
        columns = data.data if isinstance(data, ReplaySample) else data
        if not isinstance(columns, Mapping) or "discount" not in columns:
            raise TypeError(f"{self._name}: learn wants a ReplaySample or its columns, found {type(data).__name__}")
        size = len(columns["rew"])
        if size not in self._noise:
            self._noise[size] = UpdateNoise(self.core.noise(), size, self.seed, self.device)
        weight = data.weight if isinstance(data, ReplaySample) else columns.get("weight")
        numbers: dict[str, Tensor] = dict(self.core.update(columns, weight, self._noise[size].at(self.num_updates)))
        self.core.absorb(columns)
        return numbers

    def _learn_rollout(self, data: Any) -> dict[str, Tensor]:
        if not isinstance(data, Rollout):
            raise TypeError(f"{self._name}: learn wants a Rollout, found {type(data).__name__}")
        prepared = self.core.prepare(
            data.storage, initial_state=data.initial_state, last_obs=data.last_obs, last_state=data.last_state
        )
        numbers: dict[str, Tensor] = self.core.update(
            prepared, order_generator(self.seed, self.num_updates, self.device)
        )
        self.core.absorb(data.storage.data)
        return numbers

    @property
    def _name(self) -> str:
        return type(self.core).__name__

    def sync_target(self) -> None:
        """Make the target network equal to the model; algorithms without one have nothing to do.

        Learning moves targets by itself, as the algorithm's settings say.
        """
        target = getattr(self.core, "target", None)
        if target is not None:
            target.follow(1.0)


class Agent:
    """The algorithm on arrays: greedy in `predict`, exploring in `sample`."""

    def __init__(self, alg: Algorithm, *, seed: int = 0) -> None:
        """Take an `Algorithm`; `seed` decides what `sample` draws."""
        if not isinstance(alg, Algorithm):
            raise TypeError(f"Agent wants an Algorithm, found {type(alg).__name__}; wrap it: Agent(Algorithm(…))")
        self.alg = alg
        self.player = Player(alg.core, seed)
        self.sample_step = 0
        """Env steps for which actions were sampled."""
        self.learn_step = 0
        """How often `learn` was called."""
        self._memory: dict[str, Tensor] | None = None

    def predict(self, obs: Any) -> Any:
        """Return the actions for evaluation, for one observation or a batch of them."""
        return self._act(obs, exploring=False)

    def sample(self, obs: Any) -> Any:
        """Return the actions for training, for one observation or a batch of them."""
        return self._act(obs, exploring=True)

    def reset(self) -> None:
        """Forget the episodes that are under way."""
        self._memory = None

    def learn(self, data: Any) -> dict[str, Any]:
        """Learn from what `Algorithm.learn` takes, or from arrays; return floats, and 'td_error' as an array.

        Arrays are a dict or Batch with obs, act, rew, obs_next and terminated (or done, beside which Gym's
        'TimeLimit.truncated' in info is read) of B single steps.
        """
        if not isinstance(data, (ReplaySample, Rollout)):
            data = self._columns(data)
        numbers = self.alg.learn(data)
        self.learn_step += 1
        error = numbers.pop("td_error", None)
        found = checked_numbers(numbers, "learn")
        return found if error is None else {**found, "td_error": error.cpu().numpy()}

    def _act(self, obs: Any, *, exploring: bool) -> Any:
        policy = self.alg.core.policy
        spec, arrays = policy.obs_spec, obs
        first = next(iter(spec.values()))
        leaf = next(iter(tree.leaves(dict(obs.items()) if isinstance(obs, Batch) else obs)))
        single = np.ndim(leaf) == len(first.shape)
        if single:
            arrays = tree.map(lambda value: np.asarray(value)[None], obs)
        acted = self.player.act(components(arrays, spec, self.alg.device), self._memory, exploring=exploring)
        self._memory = acted.state or None
        if exploring:
            self.sample_step = self.player.env_step
        actions = tree.map(lambda value: value.cpu().numpy(), acted.actions)
        return tree.map(lambda value: value[0], actions) if single else actions

    def _columns(self, data: Any) -> dict[str, Any]:
        """Turn arrays of single steps into the columns of a sample."""
        if self.alg.on_policy or not isinstance(data, (Mapping, Batch)):
            raise TypeError(
                f"Agent.learn: wanted a {'Rollout' if self.alg.on_policy else 'sample'}, found {type(data)}"
            )
        wanted = ("obs", "act", "rew", "obs_next")
        missing = [name for name in wanted if data.get(name) is None]
        if missing or (data.get("terminated") is None and data.get("done") is None):
            raise KeyError(f"Agent.learn wants {[*wanted, 'terminated']}, missing {missing or ['terminated']}")
        policy, device = self.alg.core.policy, self.alg.device
        terminated, truncated = (torch.as_tensor(each, device=device) for each in ends_of(data))
        rew = torch.as_tensor(data["rew"], device=device, dtype=torch.float32)
        act = torch.as_tensor(data["act"], device=device, dtype=torch_dtype(policy.action_spec.tensor.dtype))
        return {
            "obs": components(data["obs"], policy.obs_spec, device),
            "obs_next": components(data["obs_next"], policy.obs_spec, device),
            "act": act,
            "rew": rew,
            "terminated": terminated,
            "truncated": truncated,
            "valid": torch.ones_like(terminated),
            "discount": self.alg.core.config.gamma * (~terminated).float(),
            "info": {},
            "policy": {},
        }
