"""How a `Collector` steps a `VecEnv`: with our own collector, and the policy as its actor.

The stepping is that of `striderl.collect.Collector`, so the same rules hold: envs are seeded, a bad number puts its env
into quarantine, whatever was under way is abandoned before episodes are counted, of which there are exactly as many.

A policy with `forward(batch, state) -> Batch` as an actor of our `Collector`.

    obs {name: [N, …]} ──▶ Batch(obs, rew, done, info) ──policy(batch, state)──▶ Batch(act, state, policy)
                                                              ▲                          │
                                                              └── zero where an episode begins, None where all do

Envs on the CPU show numpy arrays, others tensors. What the policy remembers is kept here, because its form is known
only after the first call.

From the transitions of our `Collector` to the rows of a `ReplayBuffer`, and returns and lengths of episodes.

    direct      every step at once:    one env and one ring, or a VectorReplayBuffer with a ring per env
    by episode  when it has ended:     any number of envs and one ring; an episode lies in it in one piece

A step is left out where a number in it was bad, and where the clock ended an episode of an env that does not tell where
it really ended: no target would be right. What was stored of that episode then ends with the step before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.collect.actors.base import ActorOutput, Noise, Obs, RandomActor
from striderl.collect.collector import Collector as CoreCollector
from striderl.collect.collector import CollectorConfig
from striderl.compat.parts import as_actions, checked_forward
from striderl.compat.tianshou.base_policy import BasePolicy
from striderl.compat.tianshou.env_stepping import LONG, Collected, Request
from striderl.data import leaf, tree
from striderl.data.actions import ActionSpec
from striderl.data.arena import Columns
from striderl.data.batch import Batch
from striderl.data.noise import NoiseSpec
from striderl.data.transition import Transition
from striderl.envs.vec_env import VecEnv
from striderl.envs.workers.errors import EnvError
from striderl.storage.replay_buffer.buffer import ReplayBuffer
from striderl.storage.replay_buffer.kinds import VectorReplayBuffer

_log = logging.getLogger(__name__)

_BARREN = 1000
"""Most steps of all envs, one after another, of which none is valid."""


class VecEnvStepping:
    """Steps a `VecEnv` with our own collector; see the top of this module."""

    def __init__(self, policy: BasePolicy, env: VecEnv, buffer: ReplayBuffer | None, seed: int) -> None:
        """Take the parts; nothing is reset yet."""
        self.env = env
        self._actor = ForwardActor(policy, env.action_spec)
        self._writer = BufferWriter(buffer, env.num_envs, self._actor)
        self._core = CoreCollector(env, self._actor, CollectorConfig(seed=seed))
        self._fresh_next = True

    def collect(self, request: Request) -> Collected:
        """Step the envs until the request is met."""
        writer, n_episode = self._writer, request.n_episode
        by_episode = request.whole_episodes if n_episode is None else not writer.has_rings
        if not by_episode and not writer.has_rings:
            count = self.env.num_envs
            raise ValueError(
                f"steps of {count} envs cannot share one ring as they come: use VectorReplayBuffer(size, {count}), or "
                "collect(n_step=…) without whole_episodes=False"
            )
        if n_episode is not None or by_episode != writer.by_episode or self._fresh_next:
            writer.begin_episodes()
            if n_episode is None:
                self._core.reset()
        writer.by_episode = by_episode
        self._actor.random = request.random
        writer.begin_call()
        # an error on the way leaves it true, so that the next call starts anew
        self._fresh_next = True
        if n_episode is not None:
            self._core.collect(n_episode=n_episode, storage=writer)
        elif by_episode:
            self._collect_at_least(int(request.n_step or 0))
        else:
            self._core.collect(n_step=request.n_step, storage=writer)
        self._fresh_next = n_episode is not None
        return Collected(num_steps=writer.num_steps, returns=writer.returns, lengths=writer.lengths)

    def _collect_at_least(self, n_step: int) -> None:
        """Step all envs until enough steps of finished episodes are stored."""
        quiet, barren, count = 0, 0, self.env.num_envs
        while self._writer.num_steps < n_step:
            before, num_valid = len(self._writer.returns), int(self._core.statistics.num_steps)
            found = self._core.collect(n_step=count, storage=self._writer)
            barren = barren + 1 if int(self._core.statistics.num_steps) == num_valid else 0
            if barren > _BARREN:
                faults = "; ".join(map(str, found.faults[:3])) or "samples were marked not valid"
                raise EnvError(f"no sample of {_BARREN} steps of each env is valid: {faults}")
            quiet = quiet + count if len(self._writer.returns) == before else 0
            if quiet >= LONG and quiet - count < LONG:
                _log.warning("%d steps without the end of an episode; has the env a time limit?", quiet)

    def reset_env(self) -> None:
        """Start new episodes with the next call of `collect`."""
        self._fresh_next = True


# -- the policy as an actor --------------------------------------------------------------------------------------------


class ForwardActor:
    """Lets a `BasePolicy` act; at random while `random` is true."""

    def __init__(self, policy: BasePolicy, action_spec: ActionSpec) -> None:
        """Wrap a policy for envs with these actions."""
        self.policy, self.action_spec = policy, action_spec
        self.random = False
        self.previous: dict[str, Any] = {}
        """Reward, end and info of the step before, by name, which the policy is shown beside the observation."""
        self._random_actor = RandomActor(action_spec)
        self._memory: Any = None

    def columns(self) -> Columns:
        """Return nothing: what a policy wants stored is seen when it comes."""
        return {}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of random actions; a policy draws its own."""
        return self._random_actor.noise()

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return that all episodes begin."""
        return {"fresh": torch.ones(num_envs, dtype=torch.bool, device=device)}

    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Call the policy, or choose at random."""
        fresh: Tensor = state["fresh"]
        after = {"fresh": torch.zeros_like(fresh)}
        if self.random:
            self._memory = None
            return ActorOutput(self._random_actor.act(obs, (), noise).actions, after, {})
        who, count = f"{type(self.policy).__name__}.forward", len(fresh)
        batch = Batch(obs=shown(obs), **(self.previous or _nothing_before(fresh)))
        result = checked_forward(self.policy(batch, self._remembered(fresh)), count, who)
        actions = as_actions(result.act, self.action_spec, count, fresh.device, who)
        self._memory = result.get("state")
        columns = _stored(result.get("policy"))
        if self._memory is not None:
            self._memory = tree.map(_detached, self._memory)
            columns["_state"] = _stored(self._memory) if _is_nested(self._memory) else torch.as_tensor(self._memory)
        return ActorOutput(actions, after, columns)

    def _remembered(self, fresh: Tensor) -> Any:
        if self._memory is None or bool(fresh.all()):
            return None
        return tree.map(lambda value: _zero_where(fresh, value), self._memory) if bool(fresh.any()) else self._memory


def shown(obs: Mapping[str, Tensor]) -> Any:
    """Return an observation as policies see it: the one component 'obs' itself, or several nested by their names."""
    if list(obs) == ["obs"]:
        return as_shown(obs["obs"])
    nested: dict[str, Any] = {}
    for name, value in obs.items():
        *outer, last = name.split("/")
        place = nested
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = as_shown(value)
    return Batch(nested)


def as_shown(value: Tensor) -> Any:
    """Return an array for a tensor on the CPU, and other tensors as they are."""
    return value.numpy() if value.device.type == "cpu" else value


def _nothing_before(fresh: Tensor) -> dict[str, Any]:
    return {"rew": np.zeros(len(fresh), np.float32), "done": np.zeros(len(fresh), np.bool_), "info": Batch()}


def _is_nested(value: Any) -> bool:
    return tree.container_of(value) is not None


def _detached(value: Any) -> Any:
    return value.detach() if leaf.is_tensor(value) else value


def _zero_where(mask: Tensor, value: Any) -> Any:
    shape = (-1, *[1] * (value.ndim - 1))
    if leaf.is_tensor(value):
        return torch.where(mask.to(value.device).view(shape), torch.zeros_like(value), value)
    return np.where(mask.cpu().numpy().reshape(shape), np.zeros_like(value), value)


def _stored(nested: Any) -> dict[str, Any]:
    """Return nested numbers as dicts of tensors, which the collector can take rows of."""
    if nested is None:
        return {}
    container = tree.container_of(nested)
    assert container is not None
    return {
        name: _stored(value) if _is_nested(value) else torch.as_tensor(value).detach()
        for name, value in container.items(nested)
        if value is not None
    }


# -- rows of the buffer ------------------------------------------------------------------------------------------------


class BufferWriter:
    """Takes transitions, as a storage does, and counts what it has stored."""

    balanced = False

    def __init__(self, buffer: ReplayBuffer | None, num_envs: int, actor: ForwardActor) -> None:
        """Write into this buffer, or count only; `actor` is told what came of its actions."""
        self.buffer, self.num_envs, self._actor = buffer, num_envs, actor
        self.by_episode = False
        """Whether steps are stored when their episode has ended."""
        self._waiting: list[list[Batch]] = [[] for _ in range(num_envs)]
        self._running = np.zeros((num_envs, 2))
        self._warned = False
        self.begin_call()

    @property
    def has_rings(self) -> bool:
        """Whether every env has a ring of its own, so that steps can be stored at once."""
        return self.buffer is None or self.num_envs == 1 or isinstance(self.buffer, VectorReplayBuffer)

    def begin_call(self) -> None:
        """Forget what was counted in the last call of `collect`."""
        self.num_steps = 0
        self.returns: list[float] = []
        self.lengths: list[int] = []

    def begin_episodes(self) -> None:
        """Expect new episodes in all envs; what was under way does not go on."""
        self._waiting = [[] for _ in range(self.num_envs)]
        self._running[:] = 0.0
        self._actor.previous = {}
        if self.buffer is not None:
            cut(self.buffer, range(self.num_envs))

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Take the next step of these envs."""
        envs = slice(0, self.num_envs) if envs is None else envs
        rows = self._rows(transition)
        kept = self._kept(transition)
        self._show(rows, envs)
        for offset, env in enumerate(range(envs.start, envs.stop)):
            self._running[env] += (float(rows.rew[offset]), 1.0)
        if not self.by_episode:
            self.num_steps += int(kept.sum())
            self._store(rows, kept, envs)
        for offset, env in enumerate(range(envs.start, envs.stop)):
            if self.by_episode:
                self._keep(env, rows[offset], bool(kept[offset]))
            if bool(rows.terminated[offset] | rows.truncated[offset]):
                self._end(env, bool(transition.valid[offset]))

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _rows(self, transition: Transition) -> Batch:
        policy = tree.map(as_shown, transition.policy)
        return Batch(
            obs=shown(transition.obs),
            act=tree.map(as_shown, transition.act),
            rew=as_shown(transition.rew),
            terminated=as_shown(transition.terminated),
            truncated=as_shown(transition.truncated),
            obs_next=shown(transition.obs_next()),
            info=tree.map(as_shown, transition.info),
            policy=policy,
        )

    def _kept(self, transition: Transition) -> Any:
        kept = transition.valid.cpu().numpy().copy()
        if transition.final_obs is None:
            unknown = (transition.truncated & ~transition.terminated).cpu().numpy()
            if unknown.any() and not self._warned and self.buffer is not None:
                self._warned = True
                _log.warning("the env does not tell where episodes ended that the clock cut: these steps are left out")
            kept &= ~unknown
        return kept

    def _show(self, rows: Batch, envs: slice) -> None:
        """Let the policy see reward, end and info of this step with its next observation."""
        parts = {"rew": rows.rew, "done": rows.terminated | rows.truncated, "info": rows.info}
        if envs.stop - envs.start == self.num_envs:
            self._actor.previous = parts
        elif self._actor.previous:
            parts, some = tree.copy(self._actor.previous), parts
            tree.assign(parts, envs, some)
            self._actor.previous = parts

    def _store(self, rows: Batch, kept: Any, envs: slice) -> None:
        if self.buffer is None:
            return
        numbers = np.arange(envs.start, envs.stop)
        if isinstance(self.buffer, VectorReplayBuffer):
            if kept.all():
                self.buffer.add(rows, buffer_ids=numbers)
            elif kept.any():
                self.buffer.add(rows[kept], buffer_ids=numbers[kept])
        elif kept.all():
            self.buffer.add(rows[0])
        if not kept.all():
            cut(self.buffer, numbers[~kept].tolist())

    def _keep(self, env: int, row: Batch, good: bool) -> None:
        if good:
            self._waiting[env].append(row.copy())
        elif self._waiting[env]:
            self._flush(env)
            if self.buffer is not None:
                cut(self.buffer, [env])

    def _flush(self, env: int) -> None:
        """Move what waits of an env into its ring, or the one ring."""
        steps, self._waiting[env] = self._waiting[env], []
        self.num_steps += len(steps)
        if isinstance(self.buffer, VectorReplayBuffer):
            for step in steps:
                self.buffer.add(Batch.stack([step]), buffer_ids=[env])
        elif self.buffer is not None:
            for step in steps:
                self.buffer.add(step)

    def _end(self, env: int, counts: bool) -> None:
        if self.by_episode:
            self._flush(env)
        total, length = self._running[env].tolist()
        self._running[env] = 0.0
        if counts:
            self.returns.append(total)
            self.lengths.append(int(length))


def cut(buffer: ReplayBuffer, envs: Any) -> None:
    """End what is under way in the rings of these envs: what comes next does not follow it."""
    # a plain buffer holds the steps of all envs in one ring
    buffer.cut(list(envs) if isinstance(buffer, VectorReplayBuffer) else None)
