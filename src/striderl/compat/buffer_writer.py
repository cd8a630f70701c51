"""From the transitions of our `Collector` to the rows of a `ReplayBuffer`, and returns and lengths of episodes.

    direct      every step at once:    one env and one ring, or a VectorReplayBuffer with a ring per env
    by episode  when it has ended:     any number of envs and one ring; an episode lies in it in one piece

A step is left out where a number in it was bad, and where the clock ended an episode of an env that does not tell where
it really ended: no target would be right. What was stored of that episode then ends with the step before.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from striderl.compat.forward_actor import ForwardActor, as_shown, shown
from striderl.data import tree
from striderl.data.batch import Batch
from striderl.data.transition import Transition
from striderl.storage.replay_buffer.buffer import ReplayBuffer
from striderl.storage.replay_buffer.kinds import VectorReplayBuffer

_log = logging.getLogger(__name__)


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
