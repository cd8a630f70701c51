"""What the calling styles share: an algorithm that acts, a user's observations and returns in the form of the core.

Player                   an algorithm that acts, exploring or greedy, call after call
components               observations of a user's batch as the named components of our policies
checked_batch, …         what a user's policy may return, checked where it comes in; errors name the method
targets_of               columns [T, N, …], returns, advantage ─▶ what PPO or A2C learns from ─▶ gradient_steps
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.algorithms.on_policy.a2c import A2C
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.on_policy_targets import zero_where_not
from striderl.collect.actors.base import Actor, ActorOutput
from striderl.collect.actors.policy_actor import GreedyActor, PolicyActor
from striderl.collect.group import NoiseSource
from striderl.data import leaf, tree
from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec, PlainActionSpec
from striderl.data.arena import Placement
from striderl.data.batch import Batch
from striderl.data.naming import unknown
from striderl.data.specs import ComponentSpec, ObsSpec, torch_dtype
from striderl.data.transition import transition_columns
from striderl.envs.vec_env import VecEnv
from striderl.ops.losses import normalised
from striderl.policies.policy import Policy
from striderl.storage.rollout import RolloutStorage
from striderl.training.protocols import ReplayAlgorithm


class Player:
    """Chooses actions for any number of envs with an algorithm's own exploration, or without."""

    def __init__(self, algorithm: Any, seed: int = 0) -> None:
        """Take an algorithm such as DQN, SAC or PPO; `seed` decides what is drawn."""
        self.algorithm, self.seed = algorithm, seed
        self.explorer: Actor = explorer_of(algorithm)
        self.greedy = GreedyActor(algorithm.policy)
        self.env_step = 0
        """Steps for which exploring actions were chosen; schedules of the exploration follow it."""
        self._source: NoiseSource | None = None
        self._calls = 0

    @torch.no_grad()
    def act(self, obs: Mapping[str, Tensor], memory: Mapping[str, Any] | None, *, exploring: bool) -> ActorOutput:
        """Choose for components [B, …]; memory that is None, or of the other mode, starts anew."""
        first = next(iter(obs.values()))
        count, device = len(first), first.device
        actor = self.explorer if exploring else self.greedy
        start = actor.initial_state(count, device)
        if memory is not None and start:
            start = {name: _given(memory, name, value) for name, value in start.items()}
        if not exploring:
            return actor.act(dict(obs), start, {})
        if isinstance(self.algorithm, ReplayAlgorithm):
            self.algorithm.explore(self.env_step, random=False)
        self.env_step += count
        return actor.act(dict(obs), start, self._noise(count, device))

    def _noise(self, count: int, device: torch.device) -> dict[str, Tensor]:
        if self._source is None or len(self._source.env_index) != count:
            index = torch.arange(count, device=device)
            self._source = NoiseSource(self.explorer.noise(), seed=self.seed, env_index=index)
        self._calls += 1
        return self._source.at(self._calls - 1)

    def state_dict(self) -> dict[str, int]:
        """Return the position of schedules and noise."""
        return {"env_step": self.env_step, "calls": self._calls}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue at a saved position."""
        self.env_step, self._calls = int(state["env_step"]), int(state["calls"])


def explorer_of(algorithm: Any) -> Actor:
    """Return who explores for an algorithm: its own actor, or samples of its policy."""
    replays: Any = algorithm if isinstance(algorithm, ReplayAlgorithm) else None
    own: Actor = PolicyActor(algorithm.policy) if replays is None else replays.actor()
    return own


def _given(memory: Mapping[str, Any], name: str, like: Tensor) -> Tensor:
    value = memory.get(name)
    return like if value is None else torch.as_tensor(value, device=like.device, dtype=like.dtype)


# -- observations ------------------------------------------------------------------------------------------------------


def components(obs: Any, spec: ObsSpec, device: torch.device, *, dims: int = 1) -> dict[str, Tensor]:
    """Return name → tensor [B, …] (`dims` leading dimensions) in the dtypes of the spec, or say what does not fit.

    `obs` is one array where there is one component, or nested arrays by name: a Batch, a dict or a named tuple.
    """
    given: dict[str, Any] = dict(tree.items(dict(obs.items()) if isinstance(obs, Batch) else obs))
    if list(given) == [""]:
        if len(spec) != 1:
            raise ValueError(f"the observation has the components {list(spec)}; give them by name, found one array")
        given = {next(iter(spec)): given[""]}
    found: dict[str, Tensor] = {}
    for name, part in spec.items():
        if name not in given:
            raise KeyError(unknown("component", name, given, where="the observation"))
        raw = torch.as_tensor(given[name], device=device)
        value = raw.to(torch_dtype(part.dtype))
        is_changed = value.dtype != raw.dtype and not value.is_floating_point()
        if is_changed and not torch.equal(value.to(raw.dtype), raw):
            raise TypeError(f"observation {name!r} wants {part.dtype}, found {raw.dtype} that it cannot hold unchanged")
        if tuple(value.shape[dims:]) != part.shape or value.dim() != dims + len(part.shape):
            leading = ["B"] if dims == 1 else ["T", "B"]
            raise ValueError(
                f"observation {name!r} wants shape [{', '.join([*leading, *map(str, part.shape)])}], "
                f"found {list(value.shape)}"
            )
        found[name] = value
    return found


def gymnasium_spaces(env: VecEnv) -> tuple[Any, Any]:
    """Return one env's observations and actions as Gymnasium's spaces; several components become a Dict.

    Bounds of observations are those of a Gymnasium env; other envs declare none.
    """
    from gymnasium import spaces

    from striderl.envs.gymnasium.env import GymnasiumEnv

    declared = dict(_space_leaves(env.observation_space)) if isinstance(env, GymnasiumEnv) else {}
    if list(declared) == [""]:
        declared = {name: declared[""] for name in env.obs_spec}

    def box(name: str, part: ComponentSpec) -> Any:
        kind = np.dtype("float32" if part.dtype == "bfloat16" else part.dtype)
        bounds = declared.get(name)
        if isinstance(bounds, spaces.Box) and bounds.shape == part.shape:
            return spaces.Box(bounds.low.astype(kind), bounds.high.astype(kind), dtype=kind.type)
        if len(part.num_choices) == 1 and not part.shape:
            return spaces.Discrete(part.num_choices[0], start=(part.first_choice or (0,))[0])
        if kind.kind == "b":
            return spaces.Box(0, 1, part.shape, np.int8)
        low, high = (-np.inf, np.inf) if kind.kind == "f" else (np.iinfo(kind).min, np.iinfo(kind).max)
        return spaces.Box(low, high, part.shape, kind.type)

    def actions(spec: PlainActionSpec) -> Any:
        if isinstance(spec, DiscreteSpec):
            return spaces.Discrete(spec.n)
        if isinstance(spec, BoxSpec):
            low, high = (np.asarray(bound, np.float32) for bound in spec.bounds())
            return spaces.Box(low, high, dtype=np.float32)
        return spaces.MultiDiscrete(np.asarray(spec.nvec))

    boxes = {name: box(name, part) for name, part in env.obs_spec.items()}
    obs_space = next(iter(boxes.values())) if len(boxes) == 1 else spaces.Dict(boxes)
    if isinstance(env.action_spec, DictActionSpec):
        return obs_space, spaces.Dict({name: actions(part) for name, part in env.action_spec.parts.items()})
    return obs_space, actions(env.action_spec)


def _space_leaves(space: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ('outer/inner', space) for each leaf, by the names of the components."""
    inner = getattr(space, "spaces", None)
    if inner is None:
        yield prefix, space
        return
    for key, each in inner.items() if isinstance(inner, Mapping) else enumerate(inner):
        yield from _space_leaves(each, f"{prefix}/{key}" if prefix else str(key))


def detached(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tensors without their gradients."""
    copied: dict[str, Any] = tree.map(lambda value: value.detach(), dict(nested))
    return copied


# -- what a user's policy returns --------------------------------------------------------------------------------------


def checked_batch(value: object, who: str) -> Batch:
    """Return a Batch, or say that it is not one."""
    if not isinstance(value, Batch):
        raise TypeError(f"{who} must return a Batch, found {type(value).__name__}")
    return value


def checked_numbers(value: object, who: str) -> dict[str, Any]:
    """Return floats, or lists of them, by name; 0-d tensors are read."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{who} must return a dict of numbers by name, found {type(value).__name__}")
    return {str(name): _number(each, f"{who}: {name!r}") for name, each in value.items()}


def _number(value: Any, who: str) -> float | list[float]:
    if isinstance(value, (list, tuple)):
        return [float(each) for each in value]
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{who} must be a number or a list of numbers, found {value!r}") from error


def checked_forward(result: object, num_rows: int, who: str) -> Batch:
    """Return what `forward` gave: a Batch with `act`, and a row for each observation in all that is kept."""
    batch = checked_batch(result, who)
    if "act" not in batch:
        raise KeyError(f"{who} must return a Batch with 'act'; found {list(batch.keys())}")
    for key in ("act", "state", "policy"):
        if batch.get(key) is None:
            continue
        if key == "policy" and not isinstance(batch.policy, Batch):
            raise TypeError(f"{who}: 'policy' must be a Batch of what is stored, found {type(batch.policy).__name__}")
        for path, value in tree.items(batch[key]):
            name = "/".join(part for part in (key, path) if part)
            if value is None:
                continue
            if not leaf.is_numeric(value):
                raise TypeError(f"{who}: {name!r} must be an array or a tensor, found {type(value).__name__}")
            if tuple(value.shape[:1]) != (num_rows,):
                raise ValueError(
                    f"{who}: {name!r} wants one row for each of {num_rows} observations, found {list(value.shape)}"
                )
    return batch


def as_actions(act: Any, spec: ActionSpec, num_rows: int, device: torch.device, who: str) -> Any:
    """Return actions as the env takes them, or say what is wrong with them."""
    if isinstance(spec, DictActionSpec):
        parts = dict(act.items()) if isinstance(act, (Batch, Mapping)) else {}
        if parts.keys() != spec.parts.keys():
            raise ValueError(f"{who}: 'act' wants the parts {sorted(spec.parts)}, found {sorted(parts)}")
        return {
            name: _plain_actions(parts[name], part, num_rows, device, f"{who}: 'act/{name}'")
            for name, part in spec.parts.items()
        }
    return _plain_actions(act, spec, num_rows, device, f"{who}: 'act'")


def _plain_actions(act: Any, spec: PlainActionSpec, num_rows: int, device: torch.device, who: str) -> Tensor:
    actions = torch.as_tensor(act, device=device).detach()
    wanted = (num_rows, *spec.tensor.shape)
    if tuple(actions.shape) != wanted:
        raise ValueError(f"{who} wants shape {list(wanted)}, found {list(actions.shape)}")
    if not isinstance(spec, BoxSpec):
        if actions.is_floating_point() or actions.dtype is torch.bool:
            raise TypeError(f"{who} wants whole numbers, found {actions.dtype}")
        limit = np.asarray(spec.n if isinstance(spec, DiscreteSpec) else spec.nvec)
        if actions.device.type == "cpu" and bool(((actions < 0) | (actions >= torch.as_tensor(limit))).any()):
            raise ValueError(f"{who} wants choices from 0 to {(limit - 1).tolist()}, found {actions.tolist()}")
    assert isinstance(spec, (BoxSpec, DiscreteSpec, MultiDiscreteSpec))
    return actions.to(torch_dtype(spec.tensor.dtype))


# -- targets that were computed outside --------------------------------------------------------------------------------


OnPolicy = PPO | A2C


def check_plain(algorithm: object) -> OnPolicy:
    """Return an algorithm that can learn from such rollouts, or say why it cannot."""
    if not isinstance(algorithm, (PPO, A2C)):
        raise TypeError(f"wanted PPO or A2C, found {type(algorithm).__name__}")
    reason = "a policy with memory" if algorithm.policy.state_spec() else ""
    if isinstance(algorithm, PPO):
        reason = reason or ("terms" if len(algorithm.terms) else "")
        reason = reason or ("normalize_values" if algorithm.value_normalizer is not None else "")
        reason = reason or ("reward_groups" if algorithm.config.reward_groups else "")
    if algorithm.policy.value_head.num_values != 1:
        reason = reason or "several values"
    if reason:
        raise ValueError(f"{reason} cannot be used in this calling style; train with striderl.training.Trainer")
    return algorithm


def targets_of(algorithm: OnPolicy, columns: Mapping[str, Any], returns: Tensor, advantage: Tensor) -> Any:
    """Put columns [T, N, …] (obs, act, rew, terminated, truncated, valid, policy) and targets [T, N] together.

    Advantages are normalised as the algorithm's settings say.
    """
    valid: Tensor = columns["valid"]
    storage = _storage(algorithm.policy, {**columns, "info": {}})
    last_obs = {name: value[-1] for name, value in storage.data["obs"].items()}
    # its own targets would trust `last_obs`, which is not what followed; they are replaced
    prepared: Any = algorithm.prepare(storage, initial_state={}, last_obs=last_obs, last_state={})
    returns, advantage = zero_where_not(returns, valid), zero_where_not(advantage, valid)
    if isinstance(algorithm, A2C):
        advantage = normalised(advantage, valid) if algorithm.config.normalize_advantage else advantage
        return prepared._replace(returns=returns, advantage=advantage)
    if not algorithm.config.normalize_advantage_per_mini_batch:
        advantage = zero_where_not(algorithm.reward_groups.combined(advantage, valid), valid)
    return prepared._replace(returns=returns, raw_returns=returns, advantage=advantage)


def _storage(policy: Policy, columns: Mapping[str, Any]) -> RolloutStorage:
    specs = transition_columns(policy.obs_spec, policy.action_spec, {}, PolicyActor(policy).columns())
    num_steps, num_envs = columns["valid"].shape
    placement = Placement(device=str(columns["valid"].device))
    storage = RolloutStorage(specs, num_steps, num_envs, placement=placement)
    storage.arena.write((slice(0, num_steps), slice(0, num_envs)), columns)
    return storage


def gradient_steps(algorithm: OnPolicy, prepared: Any, generator: torch.Generator) -> Iterator[dict[str, Tensor]]:
    """Learn from prepared targets as `algorithm.update` does, and yield the numbers of every gradient step."""
    if isinstance(algorithm, A2C):
        yield algorithm.update(prepared, generator)
        return
    algorithm.updater.attach()
    for minibatch in algorithm.minibatches(prepared, generator):
        # what a step is made of is the algorithm's own; the same functions each time, so that they are compiled once
        yield algorithm.updater.step(algorithm.compute_losses, minibatch, algorithm.step_rule)
    algorithm.after_update(prepared)


@contextmanager
def other_minibatches(algorithm: OnPolicy, num_samples: int, batch_size: int, repeat: int) -> Iterator[None]:
    """Let PPO make `repeat` passes over minibatches of about this size; A2C takes one step on all or says so."""
    if isinstance(algorithm, A2C):
        if repeat != 1 or batch_size < num_samples:
            raise ValueError(
                f"A2C takes one gradient step on all {num_samples} samples; set repeat_per_collect=1 and a batch_size "
                f"of {num_samples} or more, found {repeat} and {batch_size}"
            )
        yield
        return
    before = algorithm.config
    count = max(1, num_samples // batch_size)
    algorithm.config = replace(before, num_learning_epochs=repeat, num_mini_batches=count)
    try:
        yield
    finally:
        algorithm.config = before
