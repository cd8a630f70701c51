"""rlpyt's agents as actors: objects that keep their own memory and draw their own random numbers.

    collector ──obs, state──▶ AgentActor ──observation, prev_action, prev_reward──▶ agent.step ──▶ AgentStep
                   │                         reset_one(row) for rows whose episode is new ──▶ agent
                   └─ {"fresh": [N], "row": [N]}

An agent gets the row of each new episode. The actor finds them in its own state: the collector sets the initial one,
in which `fresh` is true, wherever an episode starts, and the actor returns false.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from striderl.collect.actors.base import Actor, ActorOutput, Noise, Obs
from striderl.collect.samplers.samples import flat, named_observation
from striderl.data import tree
from striderl.data.arena import Columns
from striderl.data.named_tuples import is_namedtuple, namedarraytuple, namedarraytuple_like
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec, TensorSpec, dtype_name
from striderl.data.transition import Transition

AgentStep = namedarraytuple("AgentStep", ["action", "agent_info"])
"""The result of an agent's `step`: actions [B, …], and a namedtuple of [B, …] that is stored with them, or None."""


class SamplerAgent(Protocol):
    """The interface of an agent.

    It may also have `initialize(spaces, share_memory, global_B, env_ranks)`, `collector_initialize(global_B,
    env_ranks)`, `value(observation, prev_action, prev_reward)`, `reset()`, `reset_one(idx)`, `sample_mode(itr)`,
    `eval_mode(itr)` and, to act for alternating halves, `toggle_alt()`; each is called if it exists.
    """

    def step(self, observation: Any, prev_action: Tensor, prev_reward: Tensor) -> Any:
        """Choose actions and return an `AgentStep`, or (action, agent_info)."""


def is_actor(agent: object) -> bool:
    """Return whether an object follows our own `Actor` protocol."""
    return all(hasattr(agent, name) for name in ("act", "columns", "noise", "initial_state"))


class AgentActor:
    """Lets an agent act for N envs in the collector's loop."""

    def __init__(
        self, agent: SamplerAgent, obs_spec: ObsSpec, num_envs: int, *, columns: Columns, alternating: bool
    ) -> None:
        """Wrap an agent that stores these columns, which are leaves of its agent_info by name."""
        if not callable(getattr(agent, "step", None)):
            raise TypeError(
                f"{type(agent).__name__} is neither an agent with step(observation, prev_action, prev_reward) "
                "nor an actor with columns, noise, initial_state and act"
            )
        self.agent: Any = agent
        self._template = named_observation({name: name for name in obs_spec})
        self._num_envs, self._columns = num_envs, columns
        self._next_row = 0
        self._info: Any = None
        self._reset_one = getattr(agent, "reset_one", None)
        self._toggle = getattr(agent, "toggle_alt", None) if alternating else None

    # -- the actor -----------------------------------------------------------------------------------------------------

    def columns(self) -> Columns:
        """Return the leaves of the agent_info."""
        return self._columns

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing: an agent draws its own random numbers."""
        return {}

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return which rows these are, all fresh; groups of envs call it one after the other, first rows first."""
        first = self._next_row
        self._next_row = (first + num_envs) % self._num_envs
        row = torch.arange(first, first + num_envs, device=device)
        return {"fresh": torch.ones_like(row, dtype=torch.bool), "row": row}

    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Pass new episodes to the agent, and return its actions."""
        if self._reset_one is not None:
            for row in state["row"][state["fresh"]].tolist():
                self._reset_one(idx=row)
        action, agent_info = self.agent.step(*self.inputs(obs))
        if self._toggle is not None:
            self._toggle()
        like = obs["prev_action"]
        # a copy: the agent may use its memory again before this step is stored
        chosen = torch.as_tensor(action).to(device=like.device, dtype=like.dtype, copy=True)
        self._info = agent_info
        columns = {name: torch.as_tensor(leaf, device=like.device) for name, leaf in _info_leaves(agent_info).items()}
        return ActorOutput(chosen, {**state, "fresh": torch.zeros_like(state["fresh"])}, columns)

    def agent_info(self, columns: Mapping[str, Any]) -> Any:
        """Return stored columns in the form in which the agent gave them last."""
        return tree.map_with_path(lambda path, _: columns[path or "agent_info"], self._info)

    def inputs(self, obs: Obs) -> tuple[Any, Tensor, Tensor]:
        """Return observation, previous action and previous reward in the agent's layout."""
        return tree.map(obs.__getitem__, self._template), obs["prev_action"], obs["prev_reward"]

    # -- the agent's other calls, each if it exists --------------------------------------------------------------------

    def value(self, obs: Obs) -> Tensor:
        """Return the agent's value of these observations, [N], without changing its memory."""
        if not callable(getattr(self.agent, "value", None)):
            raise TypeError(f"bootstrap_value wants an agent with value(…); {type(self.agent).__name__} has none")
        value = torch.as_tensor(self.agent.value(*self.inputs(obs)))
        if self._toggle is not None:
            self._toggle()
        return value

    def start(self, global_B: int, env_ranks: list[int]) -> None:
        """Pass the agent its env indices, reset its episodes and start sampling mode."""
        if hasattr(self.agent, "collector_initialize"):
            self.agent.collector_initialize(global_B=global_B, env_ranks=env_ranks)
        self.reset()
        self.sample_mode(0)

    def reset(self) -> None:
        """Reset the agent's memory of all episodes."""
        if hasattr(self.agent, "reset"):
            self.agent.reset()

    def sample_mode(self, itr: int) -> None:
        """Switch the agent to exploration."""
        if hasattr(self.agent, "sample_mode"):
            self.agent.sample_mode(itr)

    def eval_mode(self, itr: int) -> None:
        """Switch the agent to evaluation."""
        if hasattr(self.agent, "eval_mode"):
            self.agent.eval_mode(itr)


def _info_leaves(agent_info: Any) -> dict[str, Any]:
    return flat(agent_info, "agent_info")


def agent_info_specs(agent_info: Any) -> Any:
    """Return the structure of an agent_info [B, …] with a `TensorSpec` for each leaf; None when it is empty.

    Named tuples become tuples that are indexed like arrays, as samples are.
    """
    if not _info_leaves(agent_info):
        return None

    def spec(leaf: Any) -> TensorSpec:
        return TensorSpec(shape=tuple(leaf.shape[1:]), dtype=dtype_name(leaf.dtype))

    return _indexable(tree.map(spec, agent_info))


def _indexable(nested: Any) -> Any:
    container = tree.container_of(nested)
    if container is None:
        return nested
    parts = [_indexable(part) for _, part in container.items(nested)]
    return namedarraytuple_like(nested)._make(parts) if is_namedtuple(nested) else container.rebuild(nested, parts)


def as_actor(agent: Any, obs_spec: ObsSpec, num_envs: int, *, agent_info: Any, alternating: bool) -> Actor:
    """Return an actor as it is, and an agent as an actor; `agent_info` is the structure of what is stored of it."""
    if is_actor(agent):
        actor: Actor = agent
        return actor
    columns = _info_leaves(agent_info)
    return AgentActor(agent, obs_spec, num_envs, columns=columns, alternating=alternating)


def value_of_next(actor: Actor, transition: Transition) -> Tensor:
    """Return the value [N] of the true next observation of a step, by an agent's `value` or a policy's critic."""
    from striderl.collect.actors.policy_actor import PolicyActor

    if isinstance(actor, AgentActor):
        return actor.value(transition.obs_next())
    if isinstance(actor, PolicyActor):
        settled = actor.policy.settled(transition.rew)
        return actor.policy.value(transition.obs_next(), transition.next_state, settled)[0]
    raise TypeError(
        "bootstrap_value wants an agent with value(observation, prev_action, prev_reward), or a PolicyActor; "
        f"{type(actor).__name__} knows no values"
    )
