"""What the small closed-form tasks share: counters, endings, resets and saved state, as pure tensor operations.

A task is three functions of a state, a dict of [N, …] tensors; nothing is changed in place and nothing is read back to
the host, so every task runs on any device:

    words [N, W] ──start──▶ state ──observe──▶ obs
                              │
                 actions ─advance─▶ what changes in the state, reward, terminated, truncated
                              │
                done rows: final_obs = observe(state), then state = start(words of the next episode)

The words are 32 random bits each, from the counter-based generator: they depend on the seed, the env's global index and
its episode alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec, DiscreteSpec, PlainActionSpec
from striderl.data.naming import saved_name
from striderl.data.noise import philox, stream_id
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.envs.vec_env import (
    Actions,
    Obs,
    Step,
    VecEnv,
    check_ages,
    check_mask,
    check_saved_task,
    not_ready,
    require_open,
)

State = dict[str, Tensor]


class ToyOutcome(NamedTuple):
    """What a task's `_advance` returns."""

    changes: State
    """The state variables that are different now."""
    reward: Tensor
    """float32 [N]."""
    terminated: Tensor
    """bool [N]."""
    truncated: Tensor
    """bool [N]; the base class adds the time limit."""
    info: dict[str, Tensor]
    """The declared info keys."""


class ToyEnv(VecEnv):
    """N copies of a task that is a few tensor operations; the first `reset` uses seed 0 if it is given none."""

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device,
        *,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        max_episode_length: int,
        first_env_index: int,
        num_words: int = 1,
        info_spec: Mapping[str, TensorSpec] | None = None,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"{type(self).__name__} wants at least one env, found num_envs={num_envs}")
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.obs_spec = obs_spec
        self.action_spec = action_spec
        self.info_spec = dict(info_spec or {})
        self.gives_final_obs = True
        self.max_episode_length = max_episode_length
        self.step_dt = 0.0
        self.first_env_index = first_env_index
        self.env_index = first_env_index + torch.arange(num_envs, device=self.device)
        self._words = EpisodeWords(saved_name(self), num_words, self.env_index)
        self._state: State = {}
        self._closed = False

    # -- what a task fills in ----------------------------------------------------------------------------------------

    @abstractmethod
    def _start(self, words: Tensor) -> State:
        """Turn random words int64 [N, num_words] in [0, 2^32) into the variables with which an episode starts."""

    @abstractmethod
    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        """Return the result of one step; `state` also holds 'episode' and 'length', the steps before this one."""

    @abstractmethod
    def _observe(self, state: State) -> Obs:
        """Return the observation of a state, in new tensors."""

    # -- the contract ------------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env; with a seed, episode 0 of that seed's streams."""
        require_open(self, closed=self._closed)
        if seed is not None or not self._state:
            episode = torch.zeros_like(self.env_index)
            self._words.seek(seed or 0, episode)
        else:
            episode = self._state["episode"] + 1
        self._state = self._first_state(episode)
        return self._observe(self._state)

    def step(self, actions: Actions) -> Step:
        """Advance every env by one step."""
        self._require_reset()
        check_actions(actions, self.action_spec, self.num_envs, type(self).__name__)
        outcome = self._advance(self._state, actions)
        state = {**self._state, **outcome.changes, "length": self._state["length"] + 1}
        truncated = outcome.truncated
        if self.max_episode_length:
            truncated = truncated | (state["length"] >= self.max_episode_length)
        final_obs = self._observe(state)
        obs = dict(final_obs)
        done = outcome.terminated | truncated
        # on the CPU the check costs nothing; elsewhere it would synchronise with the device
        if self.device.type != "cpu" or bool(done.any()):
            state = self._renewed(state, done)
            obs = self._observe(state)
        self._state = state
        return Step(obs, outcome.reward, outcome.terminated, truncated, final_obs, {**outcome.info, "log": {}})

    def reset_envs(self, mask: Tensor) -> Obs:
        """Abandon the masked episodes, start new ones, and return the observation of all envs."""
        self._require_reset()
        check_mask(mask, self.num_envs)
        self._state = self._renewed(self._state, mask.to(self.device))
        return self._observe(self._state)

    @property
    def episode_length_buf(self) -> Tensor:
        """Steps taken so far in each env's episode, int64 [N]; a copy."""
        self._require_reset()
        return self._state["length"].clone()

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self._require_reset()
        check_ages(value, self.num_envs)
        length = value.to(device=self.device, dtype=torch.int64, copy=True)
        self._state = {**self._state, "length": length}

    def state_dict(self) -> dict[str, Any]:
        """Return the state, a tensor per variable, and the seed."""
        self._require_reset()
        variables = {name: value.clone() for name, value in self._state.items()}
        return {"task": saved_name(self), "seed": self._words.seed, "state": variables}

    def load_state_dict(self, state: Mapping[str, Any]) -> Obs:
        """Continue from a saved state of the same task and as many envs."""
        require_open(self, closed=self._closed)
        check_saved_task(state, saved_name(self))
        saved = {name: value.to(self.device, copy=True) for name, value in state["state"].items()}
        if len(saved["episode"]) != self.num_envs:
            raise ValueError(f"{type(self).__name__} has {self.num_envs} envs; {len(saved['episode'])} were saved")
        self._words.seek(int(state["seed"]), saved["episode"])
        self._state = saved
        return self._observe(saved)

    def close(self) -> None:
        """Close the env; later calls raise."""
        self._state, self._closed = {}, True

    # -- endings -----------------------------------------------------------------------------------------------------

    def _first_state(self, episode: Tensor) -> State:
        variables = self._start(self._words.take(episode))
        return {**variables, "episode": episode, "length": torch.zeros_like(episode)}

    def _renewed(self, state: State, mask: Tensor) -> State:
        """Replace the masked rows by the start of their next episode."""
        fresh = self._first_state(state["episode"] + mask)
        return {name: where_rows(mask, fresh[name], value) for name, value in state.items()}

    def _never(self) -> Tensor:
        """Return bool [N], all false."""
        return torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)

    def _require_reset(self) -> None:
        if not self._state:
            raise not_ready(self, closed=self._closed)


class EpisodeWords:
    """Random words for the starts of each env's episodes, drawn `AHEAD` episodes at once.

    An env's episode advances by at most one per call of `take`, so counting the calls on the host shows when the supply
    must be renewed, without a device synchronisation.
    """

    AHEAD = 64

    def __init__(self, name: str, count: int, env_index: Tensor) -> None:
        self.seed = 0
        self._stream, self._env_index = stream_id(name), env_index
        self._position = torch.arange(-(-count // 4), device=env_index.device)
        self._count, self._taken = count, 0
        self._first = self._supply = env_index

    def seek(self, seed: int, episode: Tensor) -> None:
        """Draw the words of the episodes from these on, for this seed."""
        self.seed, self._taken, self._first = seed, 0, episode
        occasion = episode + torch.arange(self.AHEAD, device=episode.device)[:, None]
        counter = (
            self._position,
            self._env_index[:, None],
            occasion[..., None],
            torch.full_like(self._position, self._stream),
        )
        words = torch.stack(philox(counter, seed), dim=-1)
        self._supply = words.flatten(-2)[..., : self._count]

    def take(self, episode: Tensor) -> Tensor:
        """Return int64 [N, count]; each env's episode is the one of the last call, or the next."""
        if self._taken == self.AHEAD - 1:
            self.seek(self.seed, episode)
        self._taken += 1
        return self._supply[episode - self._first, torch.arange(len(episode), device=episode.device)]


def where_rows(mask: Tensor, true: Tensor, false: Tensor) -> Tensor:
    """Choose whole rows by a mask [N]."""
    return torch.where(mask.view(-1, *(1,) * (true.ndim - 1)), true, false)


def one_hot(number: Tensor, size: int) -> Tensor:
    """Return float32 [N, size] with a 1 where the number is; a number outside gives zeros."""
    return (number[:, None] == torch.arange(size, device=number.device)).float()


def check_actions(actions: Actions, spec: ActionSpec, num_envs: int, who: str) -> None:
    """Raise unless the actions have the declared structure, shapes and kinds; numbers are looked at on the CPU only."""
    if isinstance(spec, DictActionSpec):
        if not isinstance(actions, dict) or set(actions) != set(spec.parts):
            found = sorted(actions) if isinstance(actions, dict) else type(actions).__name__
            raise ValueError(f"{who} wants a dict of actions with {sorted(spec.parts)}, found {found}")
        for name, part in spec.parts.items():
            _check_plain(actions[name], part, num_envs, f"{who}, action part {name!r},")
    elif isinstance(actions, dict):
        raise TypeError(f"{who} wants a tensor of actions, found dict")
    else:
        _check_plain(actions, spec, num_envs, who)


def _check_plain(actions: Tensor, spec: PlainActionSpec, num_envs: int, who: str) -> None:
    wanted = (num_envs, *spec.tensor.shape)
    if tuple(actions.shape) != wanted:
        raise ValueError(f"{who} wants actions {list(wanted)}, found {list(actions.shape)}")
    if isinstance(spec, BoxSpec):
        return
    if actions.is_floating_point():
        raise TypeError(f"{who} wants int64 actions, found {str(actions.dtype).removeprefix('torch.')}")
    if actions.is_cpu:
        sizes = torch.tensor(spec.n if isinstance(spec, DiscreteSpec) else spec.nvec)
        bad = ((actions < 0) | (actions >= sizes)).view(num_envs, -1).any(1)
        if bad.any():
            row = int(bad.int().argmax())
            raise ValueError(f"{who} has choices below {sizes.tolist()}; env {row} got {actions[row].tolist()}")
