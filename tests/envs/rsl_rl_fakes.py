"""Fakes of the four rsl_rl generations over one deterministic simulator, with the habits of the real ones.

Two joints, four numbers of observation; row i is env i:

    obs         [x, last action 1, steps in the episode, episode number]
    privileged  [2 x, steps / 8, 7]            teacher  [x + 1]
    x' = x + action 0      reward = x'      falls when x' > 3      times out after 4 + i steps

All numbers are multiples of 1/8, so every form and every sum is exact. What the fakes copy from the real envs: buffers
that are written in place, `extras` that is one dict for ever, flags of various dtypes, `time_outs` that are missing,
old, float or a column, `get_observations()` that recomputes or even resets, wrappers that reset when constructed.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

DONE_DTYPES = (torch.bool, torch.int32, torch.int64, torch.uint8, torch.float32)
TIME_OUTS = ("bool", "float", "column", "only at resets", "absent")
FALL = 3.0


class FakeSimulator:
    """The physics that all fakes share; like a GPU simulator it keeps one set of buffers and writes into them."""

    def __init__(self, num_envs: int = 3, device: str | torch.device = "cpu") -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self.index = torch.arange(num_envs, device=self.device)
        self.x = torch.zeros(num_envs, device=self.device)
        self.last = torch.zeros(num_envs, device=self.device)
        self.length = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self.episode = torch.zeros(num_envs, device=self.device) - 1
        self.limit = 4 + self.index
        self.offset = 0.0
        self.obs = torch.zeros(num_envs, 4, device=self.device)
        self.privileged = torch.zeros(num_envs, 3, device=self.device)
        self.teacher = torch.zeros(num_envs, 1, device=self.device)
        self.reward = torch.zeros(num_envs, device=self.device)
        self.mean_reward = torch.zeros((), device=self.device)
        self.fallen = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self.timed_out = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self.final: dict[str, Tensor] = {}

    def restart(self, mask: Tensor) -> None:
        self.episode += mask
        self.x[:] = torch.where(mask, self.offset + 0.125 * self.index, self.x)
        self.last[:] = self.last.masked_fill(mask, 0.0)
        self.length[:] = self.length.masked_fill(mask, 0)

    def restart_all(self) -> None:
        self.episode[:] = -1
        self.restart(torch.ones_like(self.fallen))
        self.observe()

    def advance(self, actions: Tensor, *, auto_reset: bool = True) -> None:
        self.x += actions[:, 0]
        self.last[:] = actions[:, 1]
        self.length += 1
        self.reward[:] = self.x
        self.mean_reward.copy_(self.x.mean())
        self.fallen[:] = self.x > FALL
        self.timed_out[:] = self.length >= self.limit
        self.observe()
        self.final = {"policy": self.obs.clone(), "critic": self.privileged.clone(), "teacher": self.teacher.clone()}
        if auto_reset:
            self.restart(self.done)
            self.observe()
        actions.fill_(99.0)  # some simulators scale their argument in place; the caller's tensor must not be that one

    @property
    def done(self) -> Tensor:
        return self.fallen | self.timed_out

    def observe(self) -> None:
        self.obs[:] = torch.stack([self.x, self.last, self.length.float(), self.episode], dim=1)
        self.privileged[:] = torch.stack([2 * self.x, self.length / 8, torch.full_like(self.x, 7)], dim=1)
        self.teacher[:] = (self.x + 1)[:, None]


class _Fake:
    """What the fakes have in common: counts, flags in the dtype under test, and the everlasting extras."""

    num_actions = 2
    max_episode_length: Any = 6

    def __init__(
        self,
        *,
        num_envs: int = 3,
        done_dtype: torch.dtype = torch.bool,
        column: bool = False,
        time_outs: str = "bool",
        device: str = "cpu",
    ) -> None:
        self.simulator = FakeSimulator(num_envs, device)
        self.num_envs, self.device = num_envs, device
        self._done_dtype, self._column, self._time_outs = done_dtype, column, time_outs
        self.done_buffer = torch.zeros((num_envs, 1) if column else num_envs, dtype=done_dtype, device=device)
        self.extras: dict[str, Any] = {}
        self.num_asked = 0

    @property
    def episode_length_buf(self) -> Tensor:
        return self.simulator.length

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self.simulator.length = value

    def _flags(self) -> Tensor:
        """Write the flags into the buffer that was handed out last time, and put the time-outs into extras."""
        done, timed_out = self.simulator.done, self.simulator.timed_out
        self.done_buffer[:] = done.reshape(self.done_buffer.shape).to(self._done_dtype)
        if self._time_outs == "bool":
            self.extras["time_outs"] = timed_out
        elif self._time_outs == "float":
            self.extras["time_outs"] = timed_out.float()
        elif self._time_outs == "column":
            self.extras["time_outs"] = timed_out[:, None].int()
        elif self._time_outs == "only at resets" and bool(done.any()):
            self.extras["time_outs"] = timed_out.clone()
        return self.done_buffer

    def _reward(self) -> Tensor:
        return self.simulator.reward[:, None] if self._column else self.simulator.reward


class LeggedGymFake(_Fake):
    """v1: five values from step, privileged observations from a getter of their own, the log under 'episode'."""

    dt = 0.02

    def __init__(self, *, privileged: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self._privileged = privileged
        self.num_obs, self.num_privileged_obs = 4, 3 if privileged else None
        self.max_episode_length = torch.tensor(6.0).numpy()  # np.ceil gives a float

    def get_observations(self) -> Tensor:
        self.num_asked += 1
        return self.simulator.obs

    def get_privileged_observations(self) -> Tensor | None:
        return self.simulator.privileged if self._privileged else None

    def reset(self) -> tuple[Tensor, Tensor | None]:
        self.simulator.restart_all()
        return self.simulator.obs, self.get_privileged_observations()

    def reset_idx(self, env_ids: Tensor) -> None:
        mask = torch.zeros(self.num_envs, dtype=torch.bool)
        mask[env_ids] = True
        self.simulator.restart(mask)

    def compute_observations(self) -> None:
        self.simulator.observe()

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        self.simulator.advance(actions)
        self.extras["episode"] = {"rew_x": self.simulator.mean_reward, "level": 0.5}
        return self.simulator.obs, self.get_privileged_observations(), self._reward(), self._flags(), self.extras


class IsaacLabTwoFake(_Fake):
    """v2: a pair from get_observations, all groups (the policy's too) in extras["observations"]."""

    step_dt = 0.04

    def __init__(self, *, teacher: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._teacher = teacher
        self.max_episode_length = torch.tensor([4, 5, 6])

    @property
    def unwrapped(self) -> IsaacLabTwoFake:
        return self

    def _groups(self) -> dict[str, Any]:
        groups = {"policy": self.simulator.obs, "critic": self.simulator.privileged}
        return {**groups, "teacher": self.simulator.teacher} if self._teacher else groups

    def get_observations(self) -> tuple[Tensor, dict[str, Any]]:
        self.num_asked += 1
        return self.simulator.obs, {"observations": self._groups()}

    def reset(self) -> tuple[Tensor, None]:
        self.simulator.restart_all()
        return self.simulator.obs, None  # as Genesis has it: the rest must be asked for

    def _reset_idx(self, env_ids: Tensor) -> None:
        mask = torch.zeros(self.num_envs, dtype=torch.bool)
        mask[env_ids] = True
        self.simulator.restart(mask)
        self.simulator.observe()

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        self.simulator.advance(actions)
        self.extras["observations"] = self._groups()
        self.extras["log"] = {"rew_x": self.simulator.mean_reward, "level": torch.tensor([0.5])}
        return self.simulator.obs, self._reward(), self._flags(), self.extras


class ManagerFake:
    """The simulator env below the wrapper of v3 and v4, after mjlab's ManagerBasedRlEnv."""

    step_dt = 0.05

    def __init__(self, simulator: FakeSimulator, *, auto_reset: bool, pack: Callable[[Tensor, Tensor], Any]) -> None:
        self.simulator = simulator
        self._pack = pack
        self.cfg = SimpleNamespace(auto_reset=auto_reset)
        self.pending = torch.zeros(simulator.num_envs, dtype=torch.bool)
        self.extras: dict[str, Any] = {}
        self.num_resets = 0

    def seed(self, seed: int) -> int:
        self.simulator.offset = (seed % 8) / 8
        return seed

    def reset(self, *, seed: int | None = None, env_ids: Tensor | None = None) -> tuple[Any, dict[str, Any]]:
        self.extras["log"] = {"resets": 1.0}
        self.num_resets += 1
        if env_ids is None:
            self.simulator.restart_all()
            self.pending[:] = False
        else:
            mask = torch.zeros_like(self.pending)
            mask[env_ids] = True
            self.simulator.restart(mask)
            self.simulator.observe()
            self.pending[env_ids] = False
            # fresh noise for everybody, as mjlab's observation manager draws it in a partial reset
            self.simulator.obs[~mask, 1] += 0.5
        return self._pack(self.simulator.obs, self.simulator.privileged), self.extras


class GroupsFake(_Fake):
    """v3 and v4: a mapping of groups, four values from step, a reset in the constructor, a simulator below."""

    def __init__(
        self,
        *,
        acting_group: str = "policy",
        container: str = "dict",
        auto_reset: bool = True,
        nested: bool = False,
        final_obs: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._acting_group, self._container = acting_group, container
        self._nested, self._final_obs = nested, final_obs
        self.unwrapped: Any = ManagerFake(self.simulator, auto_reset=auto_reset, pack=self._pack)
        self.extras = self.unwrapped.extras
        self.device = torch.device(self.device)
        self.unwrapped.reset()

    @property
    def cfg(self) -> Any:
        return self.unwrapped.cfg

    def seed(self, seed: int = -1) -> int:
        return int(self.unwrapped.seed(seed))

    def _pack(self, policy: Tensor, critic: Tensor) -> Any:
        inner = {"x": policy[:, :1], "rest": policy[:, 1:]} if self._nested else policy
        groups = {self._acting_group: inner, "critic": critic}
        if self._container == "dict":
            return groups
        from tensordict import TensorDict

        return TensorDict(groups, batch_size=[self.num_envs])

    def get_observations(self) -> Any:
        self.num_asked += 1
        self.simulator.observe()
        return self._pack(self.simulator.obs, self.simulator.privileged)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        self.unwrapped.reset()
        return self._pack(self.simulator.obs, self.simulator.privileged), self.extras

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        if not self.cfg.auto_reset and bool(self.unwrapped.pending.any()):
            raise RuntimeError("envs must be reset via reset(env_ids=...) before the next step")
        self.simulator.advance(actions, auto_reset=self.cfg.auto_reset)
        if not self.cfg.auto_reset:
            self.unwrapped.pending[:] = self.simulator.done
        self.extras["log"] = {"rew_x": self.simulator.mean_reward, "level": 0.5}
        if self._final_obs:
            self.extras["final_obs"] = self._pack(self.simulator.final["policy"], self.simulator.final["critic"])
        groups = self._pack(self.simulator.obs, self.simulator.privileged)
        return groups, self._reward(), self._flags(), self.extras


class PlaygroundFake:
    """MuJoCo Playground's wrapper: get_observations() resets, `seed` is a number, no episode_length_buf, no cfg."""

    def __init__(self, num_envs: int = 3, seed: int = 5) -> None:
        self.simulator = FakeSimulator(num_envs)
        self.num_envs, self.num_actions, self.max_episode_length = num_envs, 2, 6
        self.seed = seed
        self.num_resets = 0

    def _groups(self) -> dict[str, Tensor]:
        # dlpack hands out the simulator's own memory
        return {"state": self.simulator.obs, "privileged_state": self.simulator.privileged}

    def reset(self) -> dict[str, Tensor]:
        self.num_resets += 1
        self.simulator.restart_all()
        return self._groups()

    def get_observations(self) -> dict[str, Tensor]:
        return self.reset()

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        self.simulator.advance(actions)
        extras = {
            "time_outs": self.simulator.timed_out.float(),
            "observations": {"critic": self.simulator.privileged},
            "log": {"rew_x": float(self.simulator.mean_reward), "level": 0.5, "note": "text"},
        }
        return self._groups(), self.simulator.reward, self.simulator.done.float(), extras
