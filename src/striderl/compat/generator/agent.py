"""Model, Algorithm, Agent: one of our algorithms in four layers, of which the fourth is `Trainer`.

Model      value(x, a=None), action(x)             the networks and nothing else
Algorithm  predict(obs), learn(data), sync_target()    tensors in, tensors out
Agent      predict(obs), sample(obs), learn(data)      arrays in, arrays out; counts steps
Trainer    _run_collect, _run_train, __call__          see trainer.py

algorithm = Algorithm(DQN(q_policy(obs_spec, action_spec)))          or one made of a user's model: user_models.py
agent = Agent(algorithm)

Where a subclass overrides them, `Trainer` collects with `Agent.sample`, evaluates with `Agent.predict`, and both choose
from what `Algorithm.predict` returns: Q-values [B, n] for DQN, or a distribution.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from striderl.algorithms.value_based.dqn import DQN
from striderl.collect.actors.base import Acted, Noise, Obs
from striderl.compat.parts import Player, checked_numbers, components
from striderl.data import tree
from striderl.data.arena import Columns
from striderl.data.batch import Batch
from striderl.data.checked_fields import overridden, refuse_assignment, refuse_overrides
from striderl.data.episode_ends import ends_of
from striderl.data.noise import NoiseSpec
from striderl.data.specs import torch_dtype
from striderl.networks.distributions.base import Distribution
from striderl.networks.distributions.deterministic import QValues
from striderl.networks.heads.base import ActionClip
from striderl.storage.replay.replay import ReplaySample
from striderl.storage.rollout import RolloutStorage
from striderl.training.protocols import OnPolicyAlgorithm, ReplayAlgorithm, UpdateNoise, order_generator


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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(
            cls, {"sync_target": "learning moves the target by itself, by the algorithm's settings; override learn"}
        )

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_assignment(self, name, parts=("core", "view", "model"))
        super().__setattr__(name, value)

    def __init__(self, core: Any, *, model: nn.Module | None = None, seed: int = 0) -> None:
        """Take DQN, SAC, PPO or the like; `model` is the user's own where the networks were made of one."""
        if not isinstance(core, (ReplayAlgorithm, OnPolicyAlgorithm)):
            raise TypeError(f"Algorithm wants one of our algorithms, such as DQN or PPO, found {type(core).__name__}")
        self.core: Any = core
        self.view = model if isinstance(model, Model) else Model(core)
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

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_assignment(self, name, parts=("alg", "player"))
        super().__setattr__(name, value)

    def __init__(self, alg: Algorithm, *, seed: int = 0) -> None:
        """Take an `Algorithm`; `seed` decides what `sample` draws."""
        if not isinstance(alg, Algorithm):
            raise TypeError(f"Agent wants an Algorithm, found {type(alg).__name__}; wrap it: Agent(Algorithm(…))")
        self.alg = alg
        self.player = Player(alg.core, seed)
        self._clip = ActionClip(alg.core.policy.action_spec)
        if overridden(alg, Algorithm, "predict") or overridden(alg.view, Model, "value", "action"):
            policy = predicted_policy(alg)
            self.player.explorer.policy = self.player.greedy.policy = policy  # type: ignore[attr-defined]
        self.sample_step = 0
        """Env steps for which actions were sampled."""
        self.learn_step = 0
        """How often `learn` was called."""
        self._memory: dict[str, Tensor] | None = None
        self._collecting: AgentActor | None = None

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
        shown = components(arrays, spec, self.alg.device)
        if self._collecting is not None:  # the trainer stores what was chosen; its env clips
            acted = self._collecting.own(shown)
            actions = acted.actions
        else:
            acted = self.player.act(shown, self._memory, exploring=exploring)
            self._memory = acted.state or None
            self.sample_step = self.player.env_step if exploring else self.sample_step
            actions = self._clip(acted.actions)
        actions = tree.map(lambda value: value.cpu().numpy(), actions)
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


class AgentActor:
    """An agent's overridden `sample` or `predict` as the actor of a collector.

    `super().sample(obs)` within it is one step of the agent's own actor, with memory and noise of the collector.
    """

    def __init__(self, agent: Agent, actor: Any, *, exploring: bool) -> None:
        """Act by `sample` when exploring, else by `predict`; `actor` is the agent's own."""
        self.agent, self.actor, self.exploring = agent, actor, exploring
        self._given: tuple[Any, Any, Any] | None = None
        self._acted: Acted | None = None

    def columns(self) -> Columns:
        """Return what the agent's own actor stores."""
        columns: Columns = self.actor.columns()
        return columns

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of the agent's own actor."""
        noise: Mapping[str, NoiseSpec] = self.actor.noise()
        return noise

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return the memory of the agent's own actor."""
        return self.actor.initial_state(num_envs, device)

    def own(self, obs: dict[str, Tensor]) -> Acted:
        """Step the agent's own actor."""
        assert self._given is not None
        acted: Acted = self.actor.act(obs, self._given[1], self._given[2])
        self._acted = acted
        return acted

    @torch.no_grad()
    def act(self, obs: Obs, state: Any, noise: Noise) -> Acted:
        """Call the agent's method, and keep what it returned as the actions."""
        agent = self.agent
        self._given, self._acted = (obs, state, noise), None
        agent._collecting = self
        arrays = {name: value.cpu().numpy() for name, value in obs.items()}
        shown = next(iter(arrays.values())) if len(arrays) == 1 else arrays
        try:
            returned = agent.sample(shown) if self.exploring else agent.predict(shown)
            acted = self._acted or self.own(dict(obs))
        finally:
            agent._collecting = None
        actions = tree.map(lambda own, like: torch.as_tensor(own).to(like), returned, acted.actions)
        if tree.equal(actions, acted.actions):
            return acted
        columns = dict(acted.columns)
        if "log_prob" in columns:
            columns["log_prob"] = agent.alg.core.policy.head.from_params(columns["dist"]).log_prob(actions)
        return acted._replace(actions=actions, columns=columns)


def predicted_policy(alg: Algorithm) -> Any:
    """Return the policy of an algorithm, with the same modules, that acts by what `alg.predict` returns."""
    policy = alg.core.policy
    shadow = copy.copy(policy)

    def distribution(obs: Mapping[str, Tensor]) -> Distribution[Any]:
        found = alg.predict(next(iter(obs.values())) if len(obs) == 1 else dict(obs))
        found = found[0] if isinstance(found, tuple) else found
        if isinstance(found, Tensor) and alg.view.kind == "q":
            return QValues.from_values(found)
        if not isinstance(found, Distribution):
            wanted = "Q-values [B, n] or a distribution" if alg.view.kind == "q" else "a distribution of actions"
            raise TypeError(f"{type(alg).__name__}.predict must return {wanted}, found {type(found).__name__}")
        return found

    def act(obs: Mapping[str, Tensor], state: Any, memo: Any, *sequence: Any) -> Any:
        _, after, aux = policy.act(obs, state, memo, *sequence)
        return distribution({name: obs[name] for name in policy.obs_spec}), after, aux

    def forward(obs: Mapping[str, Tensor], state: Any, memo: Any, *sequence: Any) -> Any:
        return policy(obs, state, memo, *sequence)._replace(distribution=distribution(obs))

    shadow.act, shadow.forward = act, forward
    return shadow
