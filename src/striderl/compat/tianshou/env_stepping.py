"""How a `Collector` steps the vector envs of Tianshou: one call of the policy and one of the envs per step.

    data = Batch(obs, act, rew, done, info) ──policy(data, state)──▶ act ──env.step──▶ obs_next, rew, done, info
      ▲                                                                                  │ preprocess_fn
      └── obs_next, reset where an episode ended ◀── steps wait per env ◀────────────────┘
                                                        │ the episode has ended
                                                        ▼
                                          one ReplayBuffer: an episode lies in it in one piece

Envs may be stepped in part: those that still owe episodes, or with `wait_num` those that are ready. Then the rows of
the others stay as they are in `data`. A step with a number that is not finite ends its episode: the steps before it are
stored, and nothing follows them.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from striderl.collect.surplus import MAX_SPOILED
from striderl.compat.parts import checked_forward
from striderl.compat.tianshou.arrays import to_numpy
from striderl.compat.tianshou.base_policy import BasePolicy
from striderl.compat.tianshou.env import BaseVectorEnv
from striderl.compat.tianshou.exploration import BaseNoise
from striderl.compat.tianshou.step_history import StepHistory
from striderl.data import leaf, tree
from striderl.data.batch import Batch
from striderl.data.batch_ops import from_store
from striderl.data.episode_ends import TIME_LIMIT, ends_of
from striderl.envs.workers.errors import EnvError
from striderl.storage.replay_buffer.buffer import ReplayBuffer
from striderl.storage.replay_buffer.kinds import ListReplayBuffer, VectorReplayBuffer
from striderl.storage.replay_buffer.rows import plan_rows

_log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
_sum = np.add.reduce
_NUMBER_KINDS = frozenset((bool, int, float))

LONG = 100_000
"""Steps without the end of an episode after which the log says that an env may never end."""


@dataclass
class Collected:
    """What one call of `collect` has stored."""

    num_steps: int = 0
    """Steps that are in the buffer, or would be."""
    returns: list[Any] = field(default_factory=list)
    """The return of every episode that ended; an array where there are several rewards."""
    lengths: list[int] = field(default_factory=list)
    """The length of every episode that ended."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a call of `collect` asks for."""

    n_step: int | None = None
    """So many steps."""
    n_episode: int | Sequence[int] | None = None
    """So many episodes, in all or for each env."""
    random: bool = False
    """Whether actions are sampled from the action spaces."""
    render: float | None = None
    """Seconds to wait after every frame that is rendered; None or 0 renders nothing."""
    no_grad: bool = True
    """Whether the policy acts without gradients."""
    whole_episodes: bool = True
    """Whether steps are stored when their episode has ended."""


class EnvStepping:
    """Steps a `BaseVectorEnv`; see the top of this module."""

    def __init__(
        self,
        policy: BasePolicy,
        env: BaseVectorEnv,
        buffer: ReplayBuffer | None,
        preprocess_fn: Callable[..., Any] | None = None,
        action_noise: BaseNoise | None = None,
    ) -> None:
        """Take the parts; envs are reset by the first call of `collect`."""
        self.policy, self.env, self.buffer = policy, env, buffer
        self.preprocess_fn, self.action_noise = preprocess_fn, action_noise
        self.num_envs = len(env)
        self.data = Batch()
        self._state: Any = None
        self._chosen = Batch()
        self._ready = list(range(self.num_envs))
        self._history = StepHistory(self.num_envs)
        self._total: Any = 0.0
        self._length: Array = np.zeros(self.num_envs, np.int64)
        self._spoiled: Array = np.zeros(self.num_envs, np.int64)
        """How many episodes of each env a bad number ended, since the last one that counts."""
        self._begins = self._by_episode = True
        self._checked = self._wants_episodes = False

    # -- starting ------------------------------------------------------------------------------------------------------

    def reset_env(self) -> None:
        """Begin new episodes with the next call of `collect`."""
        self._begins = True

    def _begin(self) -> None:
        while self.env.waiting_id:
            self.env.step(None)  # steps that were under way are not stored
        self._ready = list(range(self.num_envs))
        self._history.clear()
        self._total, self._length[:], self._spoiled[:] = 0.0, 0, 0
        self._state, self._begins, self._chosen = None, False, Batch()
        self.data = Batch(obs=self._first(None), act=Batch(), rew=Batch(), done=Batch(), info=Batch())
        if self.buffer is not None:
            self.buffer.cut()

    def _first(self, ids: Any) -> Any:
        obs = self.env.reset(ids)
        if self.preprocess_fn is not None:
            changed = self.preprocess_fn(obs=obs)
            obs = changed.get("obs", obs) if changed is not None else obs
        return _parsed(obs)

    # -- collecting ----------------------------------------------------------------------------------------------------

    def collect(self, request: Request) -> Collected:
        """Step the envs until the request is met."""
        if self._begins or self._by_episode != request.whole_episodes:
            self._begin()
        self._by_episode, self._wants_episodes = request.whole_episodes, request.n_episode is not None
        self._begins = True  # an error on the way leaves it so, and the next call starts anew
        quota = None if request.n_episode is None or isinstance(request.n_episode, int) else list(request.n_episode)
        done_with = [] if quota is None else [each for each in self._ready if quota[each] <= 0]
        ready = [each for each in self._ready if each not in done_with]
        found, per_env, warned = Collected(), [0] * self.num_envs, False
        while True:
            if not request.whole_episodes and request.n_step is not None:
                ready = self._for_last_steps(ready, request.n_step - found.num_steps)
            ready, ended = self._step(ready, request, found, per_env, quota)
            if ended and quota is not None:
                done_with += [each for each in ready if per_env[each] >= quota[each]]
                ready = [each for each in ready if per_env[each] < quota[each]]
            if request.n_step is not None:
                if found.num_steps >= request.n_step:
                    break
            elif all(map(int.__ge__, per_env, quota)) if quota is not None else sum(per_env) >= request.n_episode:  # type: ignore[operator]
                break
            if not warned and not found.returns and int(self._length.sum()) >= LONG:
                warned = True
                _log.warning("%d steps without the end of an episode; has the env a time limit?", LONG)
        self._ready = list(range(self.num_envs)) if not self.env.is_async else ready + done_with
        self._begins = False
        return found

    def _for_last_steps(self, ready: list[int], left: int) -> list[int]:
        """Return at most so many envs; of those that the last step left out, too, where one gave a bad number."""
        ready = ready if self.env.is_async else list(range(self.num_envs))
        return ready if len(ready) <= left else sorted(sorted(ready, key=self._spoiled.__getitem__)[:left])

    def _step(
        self, ids: list[int], request: Request, found: Collected, per_env: list[int], quota: list[int] | None
    ) -> tuple[list[int], bool]:
        """Step these envs once; return the envs that are ready then, and whether an episode ended."""
        whole = len(ids) == self.num_envs and not self.env.is_async
        shown = self.data if whole else self.data[ids]
        act, policy, state = self._act(shown, ids, request, whole)
        if whole:
            obs_next, rew, done, infos = self.env.step(act)
            back, obs = ids, shown.obs
        else:
            chosen = {"obs": shown.obs, "act": act, "policy": policy} | ({} if state is None else {"state": state})
            self._chosen = with_rows(self._chosen, ids, chosen, self.num_envs)
            obs_next, rew, done, infos = self.env.step(act, ids)
            back = [int(each["env_id"]) for each in infos]
            mine = self._chosen[back]
            obs, act, policy, state = mine.obs, mine.act, mine.get("policy", Batch()), mine.get("state")
        if request.render:
            self.env.render()
            time.sleep(request.render)
        if rew.dtype.kind in "iub":
            rew = rew.astype(np.float64)
        data = from_store(
            Batch,
            {
                "obs": obs,
                "act": act,
                "rew": rew,
                "done": done,
                "obs_next": _parsed(obs_next),
                "info": info_rows(infos),
                "policy": _with_state(policy, state),
            },
        )
        if self.preprocess_fn is not None:
            self._preprocess(data, state)
        ended = self._store(data, back, rew, done, found, per_env, quota)
        self._advance(data, back, state, ended, whole)
        return back, bool(ended)

    def _act(self, shown: Batch, ids: list[int], request: Request, whole: bool) -> tuple[Any, Any, Any]:
        """Return (act, policy, state) rows for these envs."""
        if request.random:
            spaces = self.env.action_space
            act = Batch(act=[spaces[each].sample() for each in ids]).act
            policy, self._state = Batch(), None
            return act, policy, None
        state = self._state if whole or self._state is None else _rows(self._state, ids)
        grad: Any = torch.no_grad() if request.no_grad else contextlib.nullcontext()
        with grad:
            result = self.policy(shown, state)
        if not self._checked or result.__class__ is not Batch or len(result.act) != len(ids):
            result = checked_forward(result, len(ids), f"{type(self.policy).__name__}.forward")
            self._checked = True
        act = result.act
        if act.__class__ is torch.Tensor and act.device.type == "cpu":
            act = np.array(act.detach().numpy())
        else:
            act = np.array(to_numpy(act)) if act.__class__ is not Batch else to_numpy(act)
        if self.action_noise is not None:
            act = act + self.action_noise(act.shape)
        after, policy = result.get("state"), result.get("policy")
        if policy is None or not policy.__dict__:
            policy = Batch()
        elif not request.no_grad:
            policy = tree.map(_detached, policy)
        if after is not None and after.__class__ is Batch and after.is_empty(recurse=True):
            after = None
        return act, policy, after if request.no_grad or after is None else tree.map(_detached, after)

    def _preprocess(self, data: Batch, state: Any) -> None:
        """Let the user's function change what is stored."""
        assert self.preprocess_fn is not None
        shown = dict(data.items()) | {"state": Batch() if state is None else state}
        changed = self.preprocess_fn(**shown)
        if changed is None:
            return
        for key, value in changed.items():
            if key != "state":
                data[key] = value

    # -- storing -------------------------------------------------------------------------------------------------------

    def _store(
        self,
        data: Batch,
        back: list[int],
        rew: Array,
        done: Array,
        found: Collected,
        per_env: list[int],
        quota: list[int] | None,
    ) -> list[int]:
        """Keep the steps of these envs, count episodes that ended, and return the rows where new ones begin."""
        good = finite_rows(data)
        counted = rew if self.buffer is None else np.asarray(data.rew)
        whole = len(back) == self.num_envs and not self.env.is_async
        if self._total.__class__ is float:
            self._total = np.zeros((self.num_envs, *counted.shape[1:]))
        if whole:
            self._total += counted
            self._length += 1
        else:
            self._total[back] += counted
            self._length[back] += 1
        if not self._by_episode:
            self._write(data, back, good)
            found.num_steps += len(back) if good is None else int(good.sum())
        elif self.buffer is not None:
            self._history.append(data, None if whole else back)
        ended = done if good is None else done.astype(np.bool_) | ~good
        rows: list[int] = ended.nonzero()[0].tolist()
        for row in rows:
            env = back[row]
            if good is not None and not good[row]:
                self._abandon(env, found)
            elif quota is None or per_env[env] < quota[env]:
                per_env[env] += 1
                self._end(env, found)
            self._total[env], self._length[env] = 0.0, 0
            self._history.skip(env)
        if good is not None and (self._spoiled[back] > MAX_SPOILED).any():
            self._check_spoiled(data, per_env, quota)
        if rows:
            self._history.tidy()
        return rows

    def _end(self, env: int, found: Collected) -> None:
        total, length, self._spoiled[env] = self._total[env], int(self._length[env]), 0
        found.returns.append(np.array(total))
        found.lengths.append(length)
        if self._by_episode:
            found.num_steps += length
            self._flush(env)

    def _abandon(self, env: int, found: Collected) -> None:
        """Keep what came before a bad number, and let nothing follow it."""
        counts = self._length[env] > 1 and not self._wants_episodes  # steps do, an episode that is broken off does not
        self._spoiled[env] = 1 if counts else self._spoiled[env] + 1
        _log.warning("env %d gave a number that is not finite: its episode ends with the step before", env)
        if self._by_episode:
            found.num_steps += int(self._length[env]) - 1
            self._flush(env, without_last=True)
        if self.buffer is not None:
            self.buffer.cut([env] if isinstance(self.buffer, VectorReplayBuffer) else None)

    def _check_spoiled(self, data: Batch, per_env: list[int], quota: list[int] | None) -> None:
        """Raise EnvError where no env that is still wanted gives anything that counts."""
        owed = [env for env in range(self.num_envs) if quota is None or per_env[env] < quota[env]]
        if (self._spoiled[owed] > MAX_SPOILED).all():
            bad = "observations" if np.isfinite(data.rew).all() else "rewards"
            raise EnvError(
                f"envs {', '.join(map(str, owed))} spoiled {MAX_SPOILED} episodes in a row, none can be counted: "
                f"{bad} are not finite"
            )

    def _flush(self, env: int, without_last: bool = False) -> None:
        """Move the steps of an env into the buffer."""
        rows = None if self.buffer is None else self._history.take(env, without_last=without_last)
        if self.buffer is None or rows is None:
            return
        rows = _step_rows(rows)
        if isinstance(self.buffer, VectorReplayBuffer):
            for row in range(len(rows.done)):
                self.buffer.add(rows[row : row + 1], buffer_ids=[env])
        elif type(self.buffer).update.__module__.startswith("striderl."):
            self.buffer.extend(rows)
        else:  # a user's program overrides it
            steps = ListReplayBuffer()
            for row in range(len(rows.done)):
                steps.add(rows[row])
            self.buffer.update(steps)

    def _write(self, data: Batch, back: list[int], good: Array | None) -> None:
        if self.buffer is None:
            return
        rows, envs = _step_rows(data), np.asarray(back)
        if good is not None:
            rows, envs = rows[good], envs[good]
        if isinstance(self.buffer, VectorReplayBuffer):
            self.buffer.add(rows, buffer_ids=envs)
        elif len(envs):
            self.buffer.add(rows[0])

    def _advance(self, data: Batch, back: list[int], state: Any, ended: list[int], whole: bool) -> None:
        """Take the next observations, of new episodes where they begin, and clear the memory there."""
        obs = data.obs_next
        if ended:
            first = self._first([back[row] for row in ended])
            obs = obs.copy() if obs.__class__ is np.ndarray else tree.copy(obs)
            obs[ended] = first if obs.__class__ is Batch else leaf.like(first, obs)
            state = None if state is None else tree.map(lambda value: _cleared(value, ended), state)
        after = {"obs": obs, "act": data.act, "rew": data.rew, "done": data.done, "info": data.info}
        if whole:
            self.data, self._state = from_store(Batch, after), state
            return
        self.data = with_rows(self.data, back, after, self.num_envs)
        if state is not None:
            kept = Batch() if self._state is None else Batch(state=self._state)
            self._state = with_rows(kept, back, {"state": state}, self.num_envs).state


# -- rows --------------------------------------------------------------------------------------------------------------


def with_rows(data: Batch, ids: list[int], rows: dict[str, Any], num_envs: int) -> Batch:
    """Return the rows of all envs with these of some of them written; steps that wait keep their own arrays."""
    place = np.asarray(ids, np.int64)
    holder = Batch({"policy": tree.copy(data)})
    plan_rows(holder, Batch({"policy": Batch(rows)}), len(ids), num_envs, None).run(place)
    return from_store(Batch, dict(holder.policy.items()))


def _step_rows(rows: Batch) -> Batch:
    """Return rows in the columns of a buffer, with terminated and truncated told apart."""
    store = rows.__dict__
    done, late = np.asarray(store["done"]), store["info"].__dict__.get(TIME_LIMIT)
    if done.dtype != np.bool_ or (late is not None and (late.dtype != np.bool_ or (late & ~done).any())):
        terminated, truncated = ends_of(rows)
    elif late is None:
        terminated, truncated = done, np.zeros(len(done), np.bool_)
    else:
        terminated, truncated = done & ~late, late
    flags = {"done": terminated | truncated, "terminated": terminated, "truncated": truncated}
    order = ("obs", "act", "rew", "done", "terminated", "truncated", "obs_next", "info", "policy")
    return from_store(Batch, {key: flags[key] if key in flags else store[key] for key in order})


def info_rows(infos: Any) -> Batch:
    """Return the infos of N envs as columns [N, …]; what some envs lack is 0, or None for objects."""
    keys = infos[0].keys()
    for each in infos:
        if each.keys() != keys:
            return _any_infos(infos)
    out: dict[str, Any] = {}
    for key in keys:
        values = [each[key] for each in infos]
        if values[0].__class__ not in _NUMBER_KINDS:
            return _any_infos(infos)
        column = out[key] = np.array(values)
        if column.ndim != 1 or column.dtype.kind not in leaf.NUMERIC:
            return _any_infos(infos)
    return from_store(Batch, out)


def _any_infos(infos: Any) -> Batch:
    try:
        return Batch([dict(each) for each in infos])
    except (TypeError, ValueError):  # values of different shapes, or of different kinds: kept as objects
        out = Batch()
        for key in dict.fromkeys(name for each in infos for name in each):
            values = [each.get(key) for each in infos]
            try:
                out[key] = Batch([{"one": each} if each is not None else {} for each in values]).one
            except (TypeError, ValueError, AttributeError):
                column = np.empty(len(values), object)
                column[:] = values
                out.__dict__[key] = column
        return out


def _parsed(obs: Any) -> Any:
    """Return observations of N envs as a Batch holds them."""
    plain = obs.__class__ is np.ndarray and obs.dtype.kind in leaf.NUMERIC
    return obs if plain else Batch(obs=obs).obs


def finite_rows(data: Batch) -> Array | None:
    """Return which rows of reward and next observation are finite, or None for all."""
    bad: Array | None = None
    after = data.obs_next
    for value in (data.rew, *((after,) if after.__class__ is np.ndarray else tree.leaves(after))):
        if value.__class__ is not np.ndarray or value.dtype.kind != "f" or math.isfinite(_sum(value, None)):
            continue
        fine = np.isfinite(value).reshape(len(value), -1).all(axis=1)
        if not fine.all():
            bad = np.asarray(fine if bad is None else bad & fine)
    return bad


def _rows(state: Any, ids: list[int]) -> Any:
    return state[ids] if state.__class__ is Batch or leaf.is_array(state) else tree.index(state, ids)


def _with_state(policy: Batch, state: Any) -> Batch:
    """Return what the policy wants stored, with a copy of its memory, which it may change in place."""
    if state is None:
        return policy
    return Batch(policy, _state=tree.copy(state))


def _detached(value: Any) -> Any:
    return value.detach() if leaf.is_tensor(value) else value


def _cleared(value: Any, rows: list[int]) -> Any:
    """Return a copy with 0, or None for objects, in these rows."""
    if value is None:
        return None
    value = leaf.copied(value)
    value[rows] = 0 if leaf.is_numeric(value) else None
    return value
