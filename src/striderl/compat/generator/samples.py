"""`BufferSamples`: what an own agent learns from, and the buffers that it is read from.

    replay      agent.learn(samples)    arrays [B, …]: single steps, drawn at random, and what truly followed each
    rollout     agent.learn(samples)    arrays [T, N, …]: the last T steps of N envs, in order

    samples.observations   samples.actions   samples.rewards   samples.next_observations   samples.dones   …

`dones` is 1 where the task ended, so that `rewards + gamma * (1 - dones) * value(next_observations)` is the TD target;
where the time limit ended an episode, `truncated` is true, `dones` is 0 and `next_observations` is its last
observation. An observation of several components is a dict of arrays by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from striderl.collect.collector import Collector
from striderl.data import tree
from striderl.data.arena import Placement
from striderl.data.transition import Transition
from striderl.storage.replay.replay import Replay
from striderl.storage.replay.samplers import Uniform
from striderl.storage.rollout_presets import SarsaRolloutStorage


@dataclass(frozen=True, kw_only=True)
class BufferSamples:
    """Steps of the envs by name: arrays in `Agent.learn`, tensors in `Algorithm.learn`."""

    observations: Any
    """What was acted on, [B, …], or [T, N, …] of a rollout."""
    actions: Any
    """What was done, as `Agent.sample` returned it."""
    rewards: Any
    """float32 [B]."""
    next_observations: Any
    """What truly followed; at the end of an episode its last observation."""
    dones: Any
    """float32 [B]: 1 where the task ended, and there is no future reward."""
    truncated: Any
    """bool [B]: the time limit ended the episode here."""
    valid: Any
    """bool [B]: false for steps that an env spoiled, in rollouts only; samples of a replay leave them out."""

    def __len__(self) -> int:
        return len(self.rewards)

    def __getitem__(self, index: Any) -> BufferSamples:
        """Return some of the rows."""
        return self.map(lambda value: value[index])

    def map(self, function: Callable[[Any], Any]) -> BufferSamples:
        """Return the same fields with a function of every array."""
        return BufferSamples(**{each.name: tree.map(function, getattr(self, each.name)) for each in fields(self)})

    def flat(self) -> BufferSamples:
        """Return [T, N, …] as [T · N, …]."""
        return self.map(lambda value: value.reshape(-1, *value.shape[2:]))

    def minibatches(self, batch_size: int, order: Any) -> Iterator[BufferSamples]:
        """Yield the rows in this order, `batch_size` at a time; a shorter rest is the last one."""
        for first in range(0, len(self), batch_size):
            yield self[order[first : first + batch_size]]

    def to_tensors(self, device: torch.device | str = "cpu") -> BufferSamples:
        """Return tensors on a device, real numbers as float32."""
        return self.map(lambda value: as_tensor(value, device))


def as_tensor(value: Any, device: torch.device | str = "cpu") -> Tensor:
    """Return an array as a tensor on a device, real numbers in torch's default dtype."""
    found = torch.as_tensor(value, device=device)
    return found.to(torch.get_default_dtype()) if found.is_floating_point() else found


def plain(components: Mapping[str, Any]) -> Any:
    """Return the one array of an observation with a single component, else the dict of them."""
    return next(iter(components.values())) if len(components) == 1 else dict(components)


def samples_of(columns: Mapping[str, Any]) -> BufferSamples:
    """Return the columns of a replay's sample, or of a rollout, as copies in numpy."""

    def array(value: Any) -> Any:
        return tree.map(lambda each: each.detach().cpu().numpy().copy(), value)

    return BufferSamples(
        observations=array(plain(columns["obs"])),
        actions=array(columns["act"]),
        rewards=array(columns["rew"]),
        next_observations=array(plain(columns["obs_next"])),
        dones=array(columns["terminated"].float()),
        truncated=array(columns["truncated"] & ~columns["terminated"]),
        valid=array(columns["valid"]),
    )


def logged_numbers(found: object, where: str) -> dict[str, Any]:
    """Return what an own `learn` returned for a log: 0-d tensors as floats, without their graphs."""
    if not isinstance(found, Mapping):
        raise TypeError(f"{where} must return a dict of numbers by name, found {type(found).__name__}")
    return {
        str(name): value.item() if isinstance(value, Tensor) and value.numel() == 1 else _without_graph(value)
        for name, value in found.items()
    }


def _without_graph(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value


# -- buffers -----------------------------------------------------------------------------------------------------------


@runtime_checkable
class OwnBuffer(Protocol):
    """A user's replay."""

    def add(self, obs: Any, next_obs: Any, act: Any, rew: Any, done: Any, infos: Any) -> None:
        """Store one step of all envs, arrays [N, …]; `done` is true where the task ended."""
        ...

    def sample(self, batch_size: int) -> Any:
        """Return what `Agent.learn` takes."""
        ...


class OwnStorage:
    """A user's replay as the storage of a collector."""

    balanced = True

    def __init__(self, buffer: OwnBuffer) -> None:
        """Take the replay; steps are handed on as arrays."""
        self.buffer = buffer

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Hand one step of all envs on."""
        step = samples_of({**transition.columns(), "obs_next": transition.obs_next()})
        infos = {name: value.cpu().numpy().copy() for name, value in transition.info.items()}
        ended = step.dones.astype(bool)
        self.buffer.add(step.observations, step.next_observations, step.actions, step.rewards, ended, infos)


def replay_of(collector: Collector, capacity: int, seed: int) -> Replay:
    """Make the replay for single steps."""
    placement = Placement(device=str(collector.env.device))
    return Replay(
        collector.columns(), capacity, collector.env.num_envs, placement=placement, sampler=Uniform(seed=seed)
    )


def rollout_of(collector: Collector, num_steps: int) -> SarsaRolloutStorage:
    """Make the storage for rollouts with true next observations."""
    env = collector.env
    if not env.gives_final_obs:
        raise ValueError(
            f"a rollout has next_observations, but {type(env).__name__} gives no final observations "
            "(gives_final_obs=False); train one of our algorithms, which need none: Agent(Algorithm(PPO(…)))"
        )
    placement = Placement(device=str(env.device))
    return SarsaRolloutStorage(collector.columns(), num_steps, env.num_envs, placement=placement)
