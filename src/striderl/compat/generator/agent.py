"""Model, Algorithm, Agent: three layers of an algorithm, of which the fourth is `Trainer`.

Model      value(x, a=None), action(x)             the networks and nothing else
Algorithm  predict(obs), learn(data), sync_target()    tensors in, tensors out
Agent      predict(obs), sample(obs), learn(data)      arrays in, arrays out; counts steps
Trainer    _run_collect, _run_train, __call__          see trainer.py

One of our algorithms:

    agent = Agent(Algorithm(DQN(q_policy(obs_spec, action_spec))))     or one made of a user's model: user_models.py

    Where a subclass overrides them, `Trainer` collects with `Agent.sample`, evaluates with `Agent.predict`, and both
    choose from what `Algorithm.predict` returns: Q-values [B, n] for DQN, or a distribution.

One's own, any class with `predict` and `learn`, derived from `Algorithm` or not:

    class Reinforce(Algorithm):
        def __init__(self, **kwargs):  self.model, self.optimizer = …
        def predict(self, obs):        return Categorical(logits=self.model.action(obs))
        def learn(self, data):         …    data: BufferSamples; return {"loss": loss}

    agent = Agent(Reinforce(…))                                        or Trainer(alg=Reinforce, env="CartPole-v1", …)

    `Algorithm.predict` returns                      Agent.predict       Agent.sample
    a distribution of torch or of ours               its mode            a sample of it
    Q-values [B, n], real numbers of discrete choices    the best        the best, or with `epsilon` any
    actions                                          they                they: override `sample` to explore

    A tuple counts by its first item. An Agent of one's own is any class with `predict`, `sample` and `learn`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.collect.actors.base import ActorOutput, Noise, Obs
from striderl.compat.generator.algorithm import (
    Algorithm,
    Model,
    Rollout,
    check_own,
    core_of,
    device_of,
    predicted_policy,
)
from striderl.compat.generator.own_state import load_state, state_of
from striderl.compat.generator.samples import BufferSamples, as_tensor, logged_numbers, plain
from striderl.compat.parts import Player, as_actions, checked_numbers, components
from striderl.data import tree
from striderl.data.actions import ActionSpec
from striderl.data.arena import Columns
from striderl.data.batch import Batch
from striderl.data.checked_fields import overridden, refuse_assignment
from striderl.data.episode_ends import ends_of
from striderl.data.noise import NoiseSpec
from striderl.data.specs import torch_dtype
from striderl.networks.distributions.base import Distribution
from striderl.networks.heads.base import ActionClip
from striderl.ops.ramps import Ramp
from striderl.storage.replay.replay import ReplaySample

__all__ = ["Agent", "AgentActor", "Algorithm", "Model", "OwnActor", "Rollout"]


class Agent:
    """The algorithm on arrays: greedy in `predict`, exploring in `sample`."""

    sample_step: int = 0
    """Env steps for which actions were sampled."""
    learn_step: int = 0
    """How often `learn` was called."""
    epsilon: float | Ramp = 0.1
    """Own algorithms that return Q-values: how often `sample` takes any action, along `sample_step`."""
    target_network_frequency: int = 0
    """Own algorithms: env steps between two calls of `Algorithm.sync_target`; 0 where `learn` calls it, or nothing."""
    act_space: Any = None
    """Gymnasium's space of one env's action; `Trainer` sets it where it is None."""
    seed: int = 0
    """What `sample` draws."""
    _memory: dict[str, Tensor] | None = None
    _collecting: AgentActor | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_assignment(self, name, parts=("alg", "player"))
        super().__setattr__(name, value)
        if name == "alg":  # also where a subclass has a constructor of its own
            self._take(value)

    def __init__(
        self,
        alg: Any,
        *,
        seed: int = 0,
        epsilon: float | Ramp = 0.1,
        target_network_frequency: int = 0,
        act_space: Any = None,
    ) -> None:
        """Take an `Algorithm`, or an object of one's own with `predict` and `learn`; the rest is described above."""
        core = core_of(alg)
        if core is not None and (epsilon != Agent.epsilon or target_network_frequency):
            raise ValueError(
                "epsilon and target_network_frequency are for algorithms of one's own; "
                f"those of {type(core).__name__} are in its config"
            )
        self.seed, self.epsilon, self.act_space = seed, epsilon, act_space
        self.target_network_frequency = target_network_frequency
        self.alg = alg

    def _take(self, alg: Any) -> None:
        core = core_of(alg)
        if core is None:
            check_own(alg)
            self._random = np.random.default_rng(self.seed)
            return
        self.player = Player(core, self.seed)
        self._clip = ActionClip(core.policy.action_spec)
        if overridden(alg, Algorithm, "predict") or overridden(alg.view, Model, "value", "action"):
            policy = predicted_policy(alg)
            self.player.explorer.policy = self.player.greedy.policy = policy  # type: ignore[attr-defined]

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

        Arrays are `BufferSamples`, or for our algorithms a dict or Batch with obs, act, rew, obs_next and terminated
        (or done, beside which Gym's 'TimeLimit.truncated' in info is read) of B single steps.
        """
        if core_of(self.alg) is None:
            found = self.alg.learn(data.to_tensors(device_of(self.alg)) if isinstance(data, BufferSamples) else data)
            self.learn_step += 1
            return logged_numbers(found, f"{type(self.alg).__name__}.learn")
        if not isinstance(data, (ReplaySample, Rollout)):
            data = self._columns(data)
        numbers = dict(self.alg.learn(data))
        self.learn_step += 1
        error = numbers.pop("td_error", None)
        found = checked_numbers(numbers, "learn")
        return found if error is None else {**found, "td_error": error.cpu().numpy()}

    def state_dict(self) -> dict[str, Any]:
        """Return the learned state, the counters, and what a subclass has put into its attributes."""
        core = core_of(self.alg)
        if core is None:
            return {"own": state_of(self)}
        return {
            "algorithm": core.state_dict(),
            "player": self.player.state_dict(),
            "own": state_of(self, without=("alg", "player", "_clip", "_collecting")),
            "own_algorithm": state_of(self.alg, without=("core", "view", "model", "_noise")),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of an agent that was built in the same way."""
        core = core_of(self.alg)
        if core is not None:
            core.load_state_dict(state["algorithm"])
            self.player.load_state_dict(state["player"])
            load_state(self.alg, state["own_algorithm"], without=("core", "view", "model", "_noise"))
        load_state(self, state["own"])

    # -- algorithms of one's own ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def _own_act(self, obs: Any, *, exploring: bool) -> Any:
        device = device_of(self.alg)
        arrays = dict(obs.items()) if isinstance(obs, Batch) else obs
        found = self.alg.predict(tree.map(lambda value: as_tensor(value, device), arrays))
        actions = self._chosen(found[0] if isinstance(found, tuple) else found, exploring=exploring)
        array = actions.cpu().numpy()
        if exploring:
            before = self.sample_step
            dims = len(self.act_space.shape) if self.act_space is not None and self.act_space.shape else 0
            self.sample_step += len(array) if array.ndim > dims else 1
            every = self.target_network_frequency
            if every and self.sample_step // every > before // every:
                self.alg.sync_target()
        return array

    def _chosen(self, found: Any, *, exploring: bool) -> Tensor:
        if isinstance(found, torch.distributions.Distribution):
            chosen: Tensor = found.sample() if exploring else found.mode
            return chosen
        if isinstance(found, Distribution):
            return self._of_ours(found) if exploring else found.mode()
        if not isinstance(found, (Tensor, np.ndarray)):
            raise TypeError(
                f"{type(self.alg).__name__}.predict must return actions, Q-values [B, n] or a distribution, "
                f"found {type(found).__name__}"
            )
        values = torch.as_tensor(found)
        if not values.is_floating_point():
            return values
        if self.act_space is None:
            raise ValueError(
                f"{type(self.alg).__name__}.predict returned real numbers, which are actions or Q-values; give the "
                "space of the actions: Agent(alg, act_space=env.action_space)"
            )
        if not hasattr(self.act_space, "n"):
            return values
        best = values.argmax(-1)
        epsilon = self.epsilon.at(self.sample_step) if isinstance(self.epsilon, Ramp) else self.epsilon
        if not exploring or not epsilon:
            return best
        anything = self._random.random(best.shape) < epsilon
        other = self._random.integers(values.shape[-1], size=best.shape)
        return torch.where(torch.as_tensor(anything, device=best.device), torch.as_tensor(other).to(best), best)

    def _of_ours(self, found: Distribution[Any]) -> Tensor:
        spec = found.noise_spec()
        leading = found.entropy().shape
        if not isinstance(spec, NoiseSpec):
            raise TypeError(f"{type(self.alg).__name__}.predict: sample() takes one action, found a dict of parts")
        draws: dict[str, Any] = {
            "normal": self._random.standard_normal,
            "uniform": self._random.random,
            "exponential": self._random.standard_exponential,
            "gumbel": lambda size: self._random.gumbel(size=size),
        }
        noise = as_tensor(draws[spec.kind]((*leading, *spec.shape)), device_of(self.alg))
        sampled: Tensor = found.sample(noise)
        return sampled

    # -- our algorithms ------------------------------------------------------------------------------------------------

    def _act(self, obs: Any, *, exploring: bool) -> Any:
        if core_of(self.alg) is None:
            return self._own_act(obs, exploring=exploring)
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
        if isinstance(data, BufferSamples):
            data = {
                "obs": data.observations,
                "act": data.actions,
                "rew": data.rewards,
                "obs_next": data.next_observations,
                "terminated": data.dones,
            }
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
        self._acted: ActorOutput | None = None

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

    def own(self, obs: dict[str, Tensor]) -> ActorOutput:
        """Step the agent's own actor."""
        assert self._given is not None
        acted: ActorOutput = self.actor.act(obs, self._given[1], self._given[2])
        self._acted = acted
        return acted

    @torch.no_grad()
    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Call the agent's method, and keep what it returned as the actions."""
        agent = self.agent
        self._given, self._acted = (obs, state, noise), None
        agent._collecting = self
        shown = plain({name: value.cpu().numpy() for name, value in obs.items()})
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


class OwnActor:
    """Any agent's `sample` or `predict` as the actor of a collector."""

    def __init__(self, agent: Any, action_spec: ActionSpec, *, exploring: bool) -> None:
        """Act by `sample` when exploring, else by `predict`."""
        self.agent, self.action_spec, self.exploring = agent, action_spec, exploring

    def columns(self) -> Columns:
        """Return nothing: values and log-probs are computed again in `learn`."""
        return {}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing: the agent draws for itself."""
        return {}

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return no memory."""
        return ()

    @torch.no_grad()
    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Call the agent's method with arrays."""
        first = next(iter(obs.values()))
        shown = plain({name: value.cpu().numpy() for name, value in obs.items()})
        returned = self.agent.sample(shown) if self.exploring else self.agent.predict(shown)
        where = f"{type(self.agent).__name__}.{'sample' if self.exploring else 'predict'}"
        if isinstance(returned, tuple) or returned is None:
            raise TypeError(
                f"{where} must return the actions of {len(first)} envs, found {type(returned).__name__}; values and "
                "log-probs are computed again in learn, or override Trainer._run_collect and _run_train"
            )
        return ActorOutput(as_actions(returned, self.action_spec, len(first), first.device, where), state, {})
