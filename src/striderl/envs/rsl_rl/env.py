"""Make an env of any rsl_rl generation a `VecEnv`: legged_gym, parkour, Genesis, Isaac Lab, Playground, mjlab.

    env = RslRlEnv(RslRlVecEnvWrapper(ManagerBasedRlEnv(cfg, device="cuda:0")))

The generation is recognised from what the env returns (`rsl_rl_obs` draws the forms); then all are treated alike:

    actions [N, A] ──copy, clip──▶ env.step ──▶ groups                           named components, copied
                                            ──▶ reward [N] or [N, 1]             float32 [N]
                                            ──▶ dones of any dtype               done = dones != 0
                                            ──▶ extras["time_outs"], Gym's name  truncated  = done & time_outs
                                                or nothing                       terminated = done & ~time_outs

Gym's name is 'TimeLimit.truncated'. `done &` matters: legged_gym refreshes `time_outs` only in steps with a reset, so
flags of long ago stay in extras.
rsl_rl's single `done` cannot express a fall in the very step of the time limit; such a row is only truncated, except
where the simulator reports it (`reset_terminated` of mjlab and Isaac Lab): then it is both, and terminated counts.

Final observations. rsl_rl envs return the next episode's first observation after an end, so `gives_final_obs` is False,
unless the env gives the true last one: in extras (name it with `final_obs_key`), or by mjlab's `auto_reset=False`:
there the adapter reads the last observation first and then restarts the finished envs itself. That mode needs the
indices of finished envs on the host in every step, as mjlab's own step does; otherwise a step never waits for a device.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.data.actions import BoxSpec
from striderl.data.episode_ends import TIME_LIMIT
from striderl.data.naming import unknown
from striderl.data.specs import TensorSpec
from striderl.envs.rsl_rl import control
from striderl.envs.rsl_rl.control import find_actuation
from striderl.envs.rsl_rl.obs import (
    Generation,
    Groups,
    ObsLayout,
    SegmentChoice,
    Segments,
    as_flags,
    as_reward,
    describe,
    first_tensor,
    groups_from,
    look_up,
    read_info,
    read_log,
    recognise,
    split_step,
)
from striderl.envs.vec_env import Actions, ContractError, Obs, Step, VecEnv, env_seed_sequence

logger = logging.getLogger(__name__)

_METRICS = ("tracking_error", "CoT")


class RslRlEnv(VecEnv):
    """An rsl_rl env as a `VecEnv`."""

    generation: Generation
    """'v1' to 'v4', recognised from what the env returns."""

    def __init__(
        self,
        env: Any,
        *,
        clip_actions: float | None = None,
        obs_segments: Segments | None = None,
        privileged_obs_segments: Segments | None = None,
        info_keys: Mapping[str, TensorSpec] | None = None,
        final_obs_key: str | Mapping[str, str] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Recognise the env; calls its `get_observations()` once.

        clip_actions: actions are kept in [-clip_actions, clip_actions] before the env gets them.
        obs_segments, privileged_obs_segments: names and shapes of the pieces of the policy's and the critic's flat
            vector; taken from the env or its cfg where they have them.
        info_keys: per-env values of extras that every step returns, with their shape and dtype; 'outer/inner'
            reaches into nested dicts.
        final_obs_key: where extras hold the true last observation, of all N envs and in every step: one key for a
            value in the env's own form, or one key per group ({"policy": "observations/raw/obs", …}).
        device: where observations and flags are put; the env's own device unless given.
        """
        control.require_rsl_rl(env)
        self._env = env
        self._name = type(env).__name__
        self._warned: set[str] = set()
        self._closed = False
        self._num_steps = 0
        self.num_envs = int(env.num_envs)
        self.max_episode_length = control.episode_limit(env)
        self.step_dt = control.step_seconds(env)
        self.info_spec = dict(info_keys or {})
        self._final_obs_key = final_obs_key
        self._resets_by_hand = control.resets_by_hand(env)
        self.gives_final_obs = self._resets_by_hand or final_obs_key is not None
        self._seed_function = control.find_seed(env)
        self._reset_function = control.find_reset(env)
        self._partial_reset = control.find_partial_reset(env)
        self._length_holder = control.length_holder(env)
        self._describe_actions(clip_actions)
        self._read_layout(
            device,
            _segment_choice(env, "obs_segments", obs_segments, ("policy", "actor")),
            _segment_choice(env, "privileged_obs_segments", privileged_obs_segments, ("critic",)),
        )
        self._lengths = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self._log_what_was_found()

    # -- the contract --------------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env; with a seed, through the simulator's own `seed`, where it has one.

        Most simulators seed the global generators of Python, numpy and torch there.
        """
        if seed is not None:
            self._seed(seed)
        if self._reset_function is None:
            self._warn_once("reset", "offers no reset(); reset() returns what get_observations() says")
        raw = None if self._reset_function is None else self._reset_function()
        self._obs = self._read_or_ask(raw, field="reset()")
        self._lengths = torch.zeros_like(self._lengths)
        return dict(self._obs)

    def step(self, actions: Actions) -> Step:
        """Advance every env by one step; an env whose episode ends starts the next one before this returns."""
        try:
            result = self._advance(self._own_actions(actions))
        except ContractError as error:
            raise ContractError(f"{error} [in step {self._num_steps} since construction]") from None
        self._num_steps += 1
        return result

    def reset_envs(self, mask: Tensor) -> Obs:
        """Restart the envs where mask is true; the observations of the others stay exactly what they were."""
        if self._partial_reset is None:
            raise RuntimeError(
                f"{self._name} cannot restart single envs: it offers none of reset(env_ids=…), reset_idx(ids) and "
                "_reset_idx(ids)"
            )
        chosen = as_flags(mask, self.num_envs, self.device, where="reset_envs(): mask")
        ids = chosen.nonzero().flatten()
        if len(ids) > 0:
            before, (self._obs, _) = self._obs, self._restart(ids, chosen, self._obs)
            if not self._partial_reset.refreshes and all(torch.equal(before[name], self._obs[name]) for name in before):
                self._warn_once("stale", "does not refresh the observations of restarted envs before their next step")
            self._lengths = self._lengths.masked_fill(chosen, 0)
        return dict(self._obs)

    @property
    def episode_length_buf(self) -> Tensor:
        """Steps taken so far in each env's episode, int64 [N], a copy; counted here where the env does not count."""
        if self._length_holder is None:
            return self._lengths.clone()
        own: Tensor = self._length_holder.episode_length_buf
        return own.to(self.device, torch.int64, copy=True)

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        """Set the age of the episodes; an env without such a buffer keeps its own time limit."""
        if tuple(value.shape) != (self.num_envs,):
            raise ContractError(f"episode_length_buf: wanted int64 [{self.num_envs}], found {describe(value)}")
        if self._length_holder is None:
            self._warn_once("length", "has no episode_length_buf: setting it moves a count, but not the time limit")
            self._lengths = value.to(self.device, torch.int64, copy=True)
        else:
            # a new tensor is assigned, as rsl_rl's runner does: a wrapper's property hands it to the simulator
            buffer = self._length_holder.episode_length_buf
            self._length_holder.episode_length_buf = value.to(buffer.device, buffer.dtype, copy=True)

    def metrics(self) -> dict[str, Tensor]:
        """Return `tracking_error` and `CoT` as float [N] where the env offers them; one number holds for all envs."""
        found: dict[str, Tensor] = {}
        for name in _METRICS:
            value = getattr(self._env, name, None)
            value = getattr(self.unwrapped, name, None) if value is None else value
            value = value() if callable(value) else value
            if value is None:
                continue
            numbers = torch.as_tensor(value, dtype=torch.float32, device=self.device).detach().reshape(-1)
            if len(numbers) not in (1, self.num_envs):
                raise ContractError(
                    f"{self._name}.{name}: wanted a number or [{self.num_envs}], found {describe(value)}"
                )
            found[name] = numbers.expand(self.num_envs).clone()
        return found

    def render(self, env_index: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the simulator's picture, where it was made with one; most show one env of their own choice."""
        picture = self.unwrapped.render() if callable(getattr(self.unwrapped, "render", None)) else None
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise RuntimeError(
                f"{self._name} renders no picture [height, width, 3]; make it with render_mode='rgb_array'"
            )
        return picture.astype(np.uint8)

    @property
    def unwrapped(self) -> Any:
        """The simulator's own env."""
        return control.innermost(self._env)

    def close(self) -> None:
        """Close the env where it can be closed; calling it twice is fine."""
        close = getattr(self._env, "close", None)
        if callable(close) and not self._closed:
            self._closed = True
            close()

    # -- one step ------------------------------------------------------------------------------------------------------

    def _advance(self, actions: Tensor) -> Step:
        groups, raw_reward, raw_dones, extras = split_step(self._env.step(actions), env_name=self._name)
        obs = self._layout.read(groups, device=self.device, field="step()")
        reward = as_reward(raw_reward, self.num_envs, self.device, where=f"{self._name}.step(): reward")
        done = self._flags(raw_dones, "dones")
        terminated, truncated = self._split(done, extras)
        info = read_info(extras, self.info_spec, self.num_envs, self.device, env_name=self._name)
        info["log"] = read_log(extras)
        final_obs: Obs | None = None
        if self._resets_by_hand:
            final_obs = obs
            ids = done.nonzero().flatten()
            if len(ids) > 0:
                obs, reset_extras = self._restart(ids, done, final_obs)
                info["log"] |= read_log(reset_extras)
        elif self._final_obs_key is not None:
            final_obs = self._read_final_obs(extras)
        if self._length_holder is None:
            self._lengths = (self._lengths + 1).masked_fill(done, 0)
        if self._num_steps == 0:
            self._warn_about_new_groups(groups)
        self._obs = obs
        return Step(dict(obs), reward, terminated, truncated, final_obs, info)

    def _split(self, done: Tensor, extras: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return why episodes ended: terminated and truncated, bool [N] each."""
        key = TIME_LIMIT if extras.get("time_outs") is None else "time_outs"
        value = extras.get(key)
        time_outs = torch.zeros_like(done) if value is None else self._flags(value, f"extras[{key!r}]")
        fallen = getattr(self.unwrapped, "reset_terminated", None)
        if isinstance(fallen, Tensor):
            return done & (~time_outs | self._flags(fallen, "reset_terminated")), done & time_outs
        return done & ~time_outs, done & time_outs

    def _restart(self, ids: Tensor, mask: Tensor, current: Obs) -> tuple[Obs, Mapping[str, Any]]:
        """Restart the envs with these indices and put their new observations into the rows of the mask.

        The other rows keep the current observation: mjlab draws fresh observation noise for all rows in a partial
        reset, but the running envs have not moved.
        """
        assert self._partial_reset is not None
        raw = self._partial_reset.restart(ids.to(self._action_device))
        fresh = self._read_or_ask(raw, field="a partial reset")
        merged = {
            name: torch.where(mask.reshape(-1, *(1,) * (value.ndim - 1)), value, current[name])
            for name, value in fresh.items()
        }
        extras = raw[1] if isinstance(raw, tuple) and len(raw) == 2 and isinstance(raw[1], Mapping) else {}
        return merged, extras

    def _read_final_obs(self, extras: Mapping[str, Any]) -> Obs:
        keys = self._final_obs_key
        if isinstance(keys, str):
            value = look_up(extras, keys)
            if value is None:
                missing = unknown("final_obs_key", keys, extras.keys(), where="extras")
                raise ContractError(f"{self._name}.step(): {missing}")
            groups = {self._layout.groups[0]: value} if isinstance(value, Tensor) else groups_from(value)
        else:
            groups = {group: look_up(extras, path) for group, path in (keys or {}).items()}
        return self._layout.read(groups, device=self.device, field=f"the final observation at {keys!r}")

    def _final_obs_paths(self) -> Iterable[str]:
        keys = self._final_obs_key
        if keys is None:
            return ()
        return (keys,) if isinstance(keys, str) else keys.values()

    def _flags(self, value: Any, field: str) -> Tensor:
        return as_flags(value, self.num_envs, self.device, where=f"{self._name}.step(): {field}")

    def _own_actions(self, actions: Actions) -> Tensor:
        wanted = (self.num_envs, self._num_actions)
        if not isinstance(actions, Tensor) or tuple(actions.shape) != wanted:
            raise ContractError(
                f"{self._name}.step(): actions: wanted float32 {list(wanted)}, found {describe(actions)}"
            )
        # always a copy: some simulators clip or scale their argument in place
        own = actions.detach().to(self._action_device, torch.float32, copy=True)
        return own if self._clip_actions is None else own.clamp_(-self._clip_actions, self._clip_actions)

    # -- observations --------------------------------------------------------------------------------------------------

    def _read_layout(self, device: torch.device | str | None, *segments: SegmentChoice) -> None:
        raw = self._env.get_observations()
        self.generation = recognise(raw, env_name=self._name)
        groups = self._with_privileged(raw)
        for name in _groups_in(self._final_obs_paths()):
            groups.pop(name, None)
        self._layout = ObsLayout(
            groups,
            env_name=self._name,
            num_envs=self.num_envs,
            flat_names=self.generation in ("v1", "v2"),
            segments=segments,
        )
        self.obs_spec = self._layout.spec
        found = first_tensor(groups).device
        self.device = found if device is None else torch.device(device)
        self._action_device = control.action_device(self._env, found)
        self._obs = self._layout.read(groups, device=self.device, field="get_observations()")

    def _read_or_ask(self, raw: Any, *, field: str) -> Obs:
        """Read what a reset returned, or call `get_observations()` when that is incomplete.

        The call is the second choice because it may have effects: Playground resets all envs there.
        """
        groups = groups_from(raw)
        if not self._layout.covers(groups):
            groups = self._with_privileged(self._env.get_observations())
        return self._layout.read(groups, device=self.device, field=field)

    def _with_privileged(self, raw: Any) -> Groups:
        """Convert the result of `get_observations()` to groups; v1 has a second getter for its privileged part."""
        groups = groups_from(raw)
        getter = getattr(self._env, "get_privileged_observations", None)
        privileged = getter() if isinstance(raw, Tensor) and callable(getter) else None
        return groups if privileged is None else {**groups, "critic": privileged}

    def _warn_about_new_groups(self, groups: Groups) -> None:
        known = {*self._layout.groups, *_groups_in(self._final_obs_paths()), *_groups_in(self.info_spec)}
        ignored = [name for name in groups if name not in known]
        if ignored:
            text = f"gives the observation groups {ignored} in step() but not in get_observations(); they are left out"
            self._warn_once("groups", text)

    # -- the rest ------------------------------------------------------------------------------------------------------

    def _describe_actions(self, clip_actions: float | None) -> None:
        if clip_actions is not None and not clip_actions > 0:
            raise ValueError(f"clip_actions: wanted a number above 0 or None, found {clip_actions}")
        self._clip_actions = clip_actions
        self._num_actions = int(self._env.num_actions)
        bound = float("inf") if clip_actions is None else float(clip_actions)
        self.actuation = find_actuation(self._env, self._num_actions)
        self.action_spec = BoxSpec(shape=(self._num_actions,), low=-bound, high=bound)

    def _log_what_was_found(self) -> None:
        logger.info(
            "%s speaks rsl_rl generation %s: %d envs, %d actions, groups %s; final observations %s; episode lengths %s",
            self._name,
            self.generation,
            self.num_envs,
            self._num_actions,
            ", ".join(self._layout.groups),
            "read before each reset" if self._resets_by_hand else f"at {self._final_obs_key!r}",
            "by the env" if self._length_holder is not None else "counted by the adapter",
        )

    def _seed(self, seed: int) -> None:
        if self._seed_function is None:
            self._warn_once("seed", "offers no seed(): reset(seed) has no effect on its random streams")
            return
        if self.first_env_index > 0:
            # another part of the same run must not see the same random numbers
            seed = int(env_seed_sequence(seed, self.first_env_index).generate_state(1)[0] >> 1)
        self._seed_function(seed)

    def _warn_once(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(f"{self._name} {text}", UserWarning, stacklevel=3)


def _segment_choice(env: Any, name: str, given: Segments | None, groups: tuple[str, ...]) -> SegmentChoice:
    found = control.find_segments(env, name) if given is None else given
    return SegmentChoice(segments=found, explicit=given is not None, groups=groups)


def _groups_in(paths: Iterable[str]) -> frozenset[str]:
    """Return the groups of `extras["observations"]` that these paths reach into."""
    parts = [path.split("/") for path in paths]
    return frozenset(part[1] for part in parts if part[0] == "observations" and len(part) > 1)
