"""Some rows of a Gymnasium back end as a `VecEnv`: torch tensors outside, numpy buffers inside.

    buffers   row 0 ─────────── row 31 │ row 32 ─────────── row 63
              └── EnvRows(0, 32) ──┘     └── EnvRows(32, 64) ──┘        two halves of one env, stepped alternately

Everything returned is a copy: the buffers are written again by the next step, the tensors never.

What an action of a Gymnasium env has to be, and where its rows are stored, clipped to the bounds of its space.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec, PlainActionSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.envs.gymnasium.backend import Backend
from striderl.envs.vec_env import Actions, AsyncVecEnv, ContractError, Obs, Step
from striderl.envs.workers.errors import ContractViolation
from striderl.envs.workers.layout import Array, Layout

Result = TypeVar("Result")
_TRUE = b"\x01"
"""How a true bool lies in memory: looking for it in bytes takes a quarter of the time of numpy's any()."""


@dataclass(frozen=True, kw_only=True)
class EnvFacts:
    """What is the same for an env and all its parts."""

    layout: Layout
    obs_spec: ObsSpec
    action_spec: ActionSpec
    info_spec: Mapping[str, TensorSpec]
    device: torch.device
    max_episode_length: int
    step_dt: float
    render_fps: float
    first_env_index: int
    log_restarts: bool
    has_episode: bytearray
    """One byte per env: 1 once it was reset. Bytes, because numpy takes a microsecond to look at eight of them."""
    under_way: bytearray
    """One byte per env: 1 while a step is under way."""


class EnvRows(AsyncVecEnv):
    """The envs start to stop of a back end."""

    gives_final_obs = True

    def __init__(self, backend: Backend, facts: EnvFacts, start: int, stop: int) -> None:
        self.num_envs = stop - start
        self.device = facts.device
        self.obs_spec = facts.obs_spec
        self.action_spec = facts.action_spec
        self.info_spec = facts.info_spec
        self.max_episode_length = facts.max_episode_length
        self.step_dt, self.render_fps = facts.step_dt, facts.render_fps
        self.first_env_index = facts.first_env_index + start
        self.backend = backend
        self.runs_ahead = backend.runs_ahead
        self._facts = facts
        self._start = start
        self._stop = stop
        self._rows = slice(start, stop)
        on_cpu = facts.device.type == "cpu"
        self._tensor: Callable[[Array], Tensor] = (
            torch.from_numpy if on_cpu else functools.partial(_sent, device=facts.device)
        )
        self._names = tuple(facts.obs_spec)
        buffers = backend.buffers  # views are made once: making one takes as long as a copy of eight rows
        self._reward = buffers.reward[start:stop]
        self._terminated, self._truncated = buffers.terminated[start:stop], buffers.truncated[start:stop]
        self._valid = backend.valid[start:stop]
        self._final_obs = [array[start:stop] for array in buffers.final_obs]
        fixed = [array[0, start:stop] for array in buffers.obs] if backend.num_slots == 1 else []
        self._fixed_obs = list(zip(self._names, fixed, self._final_obs))
        """Names and places of current and final observations; empty where they change their slot with every step."""
        self._infos = [(leaf.name, array[start:stop]) for leaf, array in zip(facts.layout.infos, buffers.infos)]
        spec = self.action_spec
        named = spec.parts if isinstance(spec, DictActionSpec) else {"": spec}
        self._action_parts = {
            name: ActionPart.of(name, part, array[start:stop])
            for (name, part), array in zip(named.items(), buffers.actions)
        }
        self._only_action = self._action_parts.get("") if not isinstance(spec, DictActionSpec) else None
        self._whole: EnvRows | None = None
        """The env that this is a part of, kept from being closed as garbage while the part is in use."""

    @property
    def restarts(self) -> int:
        """How many times worker processes of the whole env were restarted after a failure."""
        return self.backend.restarts

    # -- the contract ----------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env; with a seed, restart all random streams from it.

        The very first reset without a seed draws one, so that the streams are independent and errors can name it.
        """
        if seed is not None and seed < 0:
            raise ValueError(f"seeds are 0 or more, found {seed}")
        if seed is None and 0 in self._facts.has_episode[self._rows]:
            seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> 1)
        self._facts.under_way[self._rows] = bytes(self.num_envs)
        self._call(self.backend.reset, seed, self._start, self._stop)
        self._facts.has_episode[self._rows] = b"\x01" * self.num_envs
        return self._tensors(self._read_obs())

    def step_async(self, actions: Actions) -> None:
        """Send the actions; worker processes start to step at once."""
        self._refuse_unready("step")
        self._write_actions(actions)
        self._facts.under_way[self._rows] = b"\x01" * self.num_envs  # first: an interrupt may come after sending
        try:
            self._call(self.backend.send_step, self._start, self._stop)
        except Exception:
            self._facts.under_way[self._rows] = bytes(self.num_envs)
            raise

    def step_wait(self) -> Step:
        """Return the step that `step_async` started."""
        if 0 in self._facts.under_way[self._rows]:
            raise RuntimeError("step_wait: no step is under way; call step_async first")
        self._facts.under_way[self._rows] = bytes(self.num_envs)
        self._call(self.backend.wait_step, self._start, self._stop)
        return self._read_step()

    def step(self, actions: Actions) -> Step:
        """Advance every env by one step; `step_async` and `step_wait` in one call."""
        self._refuse_unready("step")
        self._write_actions(actions)
        backend, start, stop = self.backend, self._start, self._stop
        if backend.closed:
            raise _closed()
        try:
            backend.send_step(start, stop)
            backend.wait_step(start, stop)
        except ContractViolation as violation:
            raise ContractError(str(violation)) from None
        return self._read_step()

    def is_ready(self) -> bool:
        """Return whether `step_wait` would return, or raise, without waiting."""
        return 0 not in self._facts.under_way[self._rows] and self.backend.is_ready(self._start, self._stop)

    def reset_envs(self, mask: Tensor) -> Obs:
        """Abandon the episode of the envs where mask [N] is true, start new ones, and return the observation of all."""
        self._refuse_unready("reset_envs")
        chosen = mask.detach().to("cpu")
        if chosen.dtype != torch.bool or tuple(chosen.shape) != (self.num_envs,):
            wanted = f"wanted bool [{self.num_envs}]"
            raise ValueError(f"reset_envs: mask: {wanted}, found {chosen.dtype} {list(chosen.shape)}")
        self.backend.buffers.reset_mask[self._rows] = chosen.numpy()
        if bool(chosen.any()):
            self._call(self.backend.reset_masked, self._start, self._stop)
        return self._tensors(self._read_obs())

    @property
    def episode_length_buf(self) -> Tensor:
        """Steps taken so far in each env's episode, int64 [N]."""
        return self._tensor(self.backend.buffers.episode_length[self._rows].copy())

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        """Set the age of the episodes; their end is then counted here, not by the env's own time limit."""
        self._refuse_unready("setting episode_length_buf")
        ages = value.detach().to("cpu", torch.int64).numpy()
        if ages.shape != (self.num_envs,) or (ages < 0).any():
            raise ValueError(f"episode_length_buf: wanted [{self.num_envs}] of 0 or more, found shape {ages.shape}")
        self.backend.buffers.episode_length[self._rows] = ages
        self.backend.buffers.aged[self._rows] = True

    def render(self, env_index: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return one env's picture as uint8 [height, width, 3]; needs render_mode='rgb_array'."""
        mode = self.backend.description.render_mode
        if mode != "rgb_array":
            raise RuntimeError(f"render wants envs with render_mode='rgb_array', found {mode!r}; set it when building")
        if not 0 <= env_index < self.num_envs:
            raise IndexError(f"render: env_index {env_index} is not in 0 to {self.num_envs - 1}")
        if not self._facts.has_episode[self._start + env_index]:
            raise RuntimeError("render: the envs have no episode yet; call reset first")
        return self._call(self.backend.render, self._start + env_index)

    def get_attr(self, name: str) -> list[Any]:
        """Return an attribute of every env, looked up through its wrappers; from workers it must be picklable."""
        return self._call(self.backend.get_attr, name)[self._start : self._stop]

    # -- parts -----------------------------------------------------------------------------------------------------

    def split(self, num_parts: int) -> list[AsyncVecEnv]:
        """Return consecutive parts that can be stepped independently; envs of one worker stay together."""
        borders = [row for row in self.backend.borders if self._start <= row <= self._stop]
        if not 1 <= num_parts < len(borders):
            raise ValueError(
                f"split: wanted 1 to {len(borders) - 1} parts (one worker or more each), found {num_parts}"
            )
        last = len(borders) - 1
        cuts = [borders[last * part // num_parts] for part in range(num_parts + 1)]
        parts = [EnvRows(self.backend, self._facts, start, stop) for start, stop in itertools.pairwise(cuts)]
        for part in parts:
            part._whole = self
        return list(parts)

    def wait_any(self, parts: Sequence[AsyncVecEnv], timeout: float | None = None) -> list[AsyncVecEnv]:
        """Wait until one of these parts with a step under way is ready and return all that are."""
        own: list[EnvRows] = []
        for part in parts:
            if not isinstance(part, EnvRows) or part.backend is not self.backend:
                raise ValueError("wait_any wants parts of this env, as `split` returns them")
            if 0 not in part._facts.under_way[part._rows]:
                own.append(part)
        if not own:
            raise RuntimeError("wait_any: none of these parts has a step under way; call step_async first")
        ready = self._call(self.backend.wait_any, [(part._start, part._stop) for part in own], timeout)
        return [part for part, is_ready in zip(own, ready) if is_ready]

    # -- in and out --------------------------------------------------------------------------------------------------

    def _call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call the back end; a broken contract becomes its public error."""
        if self.backend.closed:
            raise _closed()
        try:
            return function(*arguments)
        except ContractViolation as violation:
            raise ContractError(str(violation)) from None

    def _refuse_unready(self, what: str) -> None:
        if 0 in self._facts.has_episode[self._rows]:
            raise RuntimeError(f"{what}: the envs have no episode yet; call reset first")
        if 1 in self._facts.under_way[self._rows]:
            raise RuntimeError(f"{what}: a step is under way; call step_wait first")

    def _write_actions(self, actions: Actions) -> None:
        parts = self._action_parts
        if self._only_action is not None:
            self._write_action(actions, self._only_action)
            return
        if not isinstance(actions, dict) or actions.keys() != parts.keys():
            found = sorted(actions) if isinstance(actions, dict) else type(actions).__name__
            raise ValueError(f"step: actions: wanted a dict with {sorted(parts)}, found {found}")
        for name, part in parts.items():
            self._write_action(actions[name], part)

    def _write_action(self, action: Any, part: ActionPart) -> None:
        if not isinstance(action, Tensor) or action.shape != part.wanted:
            found = list(action.shape) if isinstance(action, Tensor) else type(action).__name__
            raise ValueError(f"step: {part.name}: wanted a tensor of shape {list(part.wanted)}, found {found}")
        if part.is_whole and action.dtype is not torch.int64 and (action.is_floating_point() or action.is_complex()):
            raise ValueError(f"step: {part.name}: wanted whole numbers (int64), found {action.dtype}")
        if action.requires_grad:
            action = action.detach()
        values: Array = action.numpy() if action.is_cpu else action.cpu().numpy()
        if not part.allows(values):
            self._refuse_choice(values, np.asarray(part.num_choices, np.int64), part.name)
        part.store(values)

    def _refuse_choice(self, values: Array, num_choices: Array, name: str) -> None:
        bad = (values < 0) | (values >= num_choices)
        place = tuple(int(number) for number in np.argwhere(bad)[0])
        where = f", choice {place[1]}" if len(place) > 1 else ""
        highest = int(np.broadcast_to(num_choices, values.shape)[place]) - 1
        raise ValueError(
            f"step: {name}: env {self.first_env_index + place[0]}{where}: wanted a number from 0 to {highest}, "
            f"found {int(values[place])}; no env was stepped"
        )

    def _read_obs(self) -> list[Array]:
        if self._fixed_obs:
            return [array.copy() for _, array, _ in self._fixed_obs]
        pieces = self.backend.pieces(self._start, self._stop)
        if len(pieces) == 1:
            slot, start, stop = pieces[0]
            return [array[slot, start:stop].copy() for array in self.backend.buffers.obs]
        return [
            np.concatenate([array[slot, start:stop] for slot, start, stop in pieces])
            for array in self.backend.buffers.obs
        ]

    def _read_step(self) -> Step:
        tensor = self._tensor
        terminated, truncated = self._terminated.copy(), self._truncated.copy()
        ended = _TRUE in terminated.tobytes() or _TRUE in truncated.tobytes()
        done = (terminated | truncated).nonzero()[0].tolist() if ended else ()
        obs: Obs = {}
        final_obs: Obs = {}
        fixed = self._fixed_obs
        for name, array, ends in fixed or zip(self._names, self._read_obs(), self._final_obs):
            led_to = array.copy()
            for row in done:  # few, if any: quicker one by one than by a mask
                led_to[row] = ends[row]
            obs[name], final_obs[name] = tensor(array.copy() if fixed else array), tensor(led_to)
        info: dict[str, Any] = {"valid": tensor(self._valid.copy())}
        for name, array in self._infos:
            info[name] = tensor(array.copy())
        info["log"] = {"env_restarts": self.backend.restarts} if self._facts.log_restarts else {}
        return Step(obs, tensor(self._reward.copy()), tensor(terminated), tensor(truncated), final_obs, info)

    def _tensors(self, arrays: Sequence[Array]) -> Obs:
        return {name: self._tensor(array) for name, array in zip(self._names, arrays)}


def _closed() -> RuntimeError:
    return RuntimeError("this env is closed; build a new one")


def _sent(array: Array, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)


# -- actions -----------------------------------------------------------------------------------------------------------


_FEW = 32


class ActionPart(NamedTuple):
    """One part of an action: what it has to be, and where its rows are."""

    name: str
    """What it is called in errors."""
    wanted: tuple[int, ...]
    """The shape of a whole batch."""
    is_whole: bool
    """Whether it is int64."""
    num_choices: Array | int | None
    """How many choices there are, uint64 where there are several parts; None for real numbers."""
    rows: Array
    """This env's rows of the buffer, in the dtype of the space."""
    low: Array | None = None
    """The lower bounds; None where nothing is clipped."""
    high: Array | None = None
    """The upper bounds."""

    def store(self, values: Array) -> None:
        """Write actions [N, …] to the rows, clipped where the space is bounded; NaN is passed on as it is."""
        rows = self.rows
        given = values if values.shape == rows.shape else values.reshape(rows.shape)
        if self.low is None or self.high is None:
            rows[...] = given
        elif rows.dtype.kind == "f":
            np.maximum(given, self.low, out=rows, casting="unsafe")
            np.minimum(rows, self.high, out=rows)
        else:
            rows[...] = np.minimum(np.maximum(given, self.low), self.high)

    def allows(self, values: Array) -> bool:
        """Return whether all choices are from 0 to their number; a few are checked one by one, which is quicker."""
        if self.num_choices is None:
            return True
        if isinstance(self.num_choices, int) and len(values) <= _FEW:
            chosen: list[int] = values.tolist()
            return min(chosen) >= 0 and max(chosen) < self.num_choices
        whole = values.astype(np.int64, copy=False).view(np.uint64)  # a negative number is a very large one here
        return _TRUE not in (whole >= self.num_choices).tobytes()

    @classmethod
    def of(cls, name: str, spec: PlainActionSpec, rows: Array) -> ActionPart:
        """Return the part of a spec."""
        tensor = spec.tensor
        shown = f"actions[{name!r}]" if name else "actions"
        low = high = None
        if isinstance(spec, BoxSpec) and spec.is_bounded:
            low, high = spec.clip_bounds(rows.dtype)
        return cls(shown, (len(rows), *tensor.shape), tensor.dtype == "int64", _num_choices(spec), rows, low, high)


def _num_choices(spec: PlainActionSpec) -> Array | int | None:
    """Return how many choices a discrete action has: a number, or uint64 [choices]; None for real numbers."""
    if isinstance(spec, DiscreteSpec):
        return int(spec.n)
    return np.array(spec.nvec, np.uint64) if isinstance(spec, MultiDiscreteSpec) else None
