"""An env whose every number says where it is from, and what a saver must have recorded of it, worked out by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.envs.vec_env import Actions, Obs, Step, VecEnv


class CountingEnv(VecEnv):
    """Env i's episode e lasts 2 + (3 i + 5 e) % 7 steps; every third episode fails, the others time out.

    'place' is (env, episode, step); 'depth' is an image of the step; 'truth', for the critic, is ten times the step.
    """

    def __init__(self, num_envs: int = 3, *, final_obs: bool = True, success: bool = False, endless: bool = False):
        self.num_envs, self.device = num_envs, torch.device("cpu")
        self.obs_spec = ObsSpec(
            {
                "place": ComponentSpec(shape=(3,)),
                "depth": ComponentSpec(shape=(1, 2, 2)),
                "truth": ComponentSpec(shape=(1,), group="critic"),
            }
        )
        self.action_spec = BoxSpec(shape=(2,))
        self.info_spec = {"success": TensorSpec(dtype="bool")} if success else {}
        self.gives_final_obs, self.max_episode_length, self.step_dt = final_obs, 0, 0.1
        self.endless, self.poison = endless, (-1, -1)
        self.seeds: list[int | None] = []
        self.executed: list[Tensor] = []
        self.num_steps = 0

    def reset(self, seed: int | None = None) -> Obs:
        self.seeds.append(seed)
        self.episode = torch.zeros(self.num_envs, dtype=torch.int64)
        self.age = torch.zeros_like(self.episode)
        return self._obs()

    def step(self, actions: Actions) -> Step:
        assert isinstance(actions, Tensor)
        self.executed.append(actions.clone())
        self.age = self.age + 1
        done = self.age >= length_of(torch.arange(self.num_envs), self.episode)
        done = done & (not self.endless)
        failed = done & fails(torch.arange(self.num_envs), self.episode)
        reward = self.age.float() + actions.sum(dim=1)
        final = self._obs()
        self.episode, self.age = self.episode + done, torch.where(done, 0, self.age)
        obs = self._obs()
        when, env = self.poison
        if self.num_steps == when:
            obs["place"][env, 0] = torch.nan
        self.num_steps += 1
        info: dict[str, Any] = {"log": {"reward_max": reward.max(), "length": self.age.float().mean()}}
        if self.info_spec:
            info["success"] = done & (self.episode % 2 == 0)  # the opposite of what the flags say, now and then
        return Step(obs, reward, failed, done & ~failed, final if self.gives_final_obs else None, info)

    def _obs(self) -> Obs:
        env = torch.arange(self.num_envs)
        place = torch.stack([env, self.episode, self.age], dim=1).float()
        depth = (self.age % 6).float()[:, None, None, None].expand(-1, 1, 2, 2) / 5.0
        return {"place": place, "depth": depth.clone(), "truth": 10.0 * self.age.float()[:, None]}

    def reset_envs(self, mask: Tensor) -> Obs:
        self.episode, self.age = self.episode + mask, torch.where(mask, 0, self.age)
        return self._obs()

    @property
    def episode_length_buf(self) -> Tensor:
        return self.age

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self.age = value


def length_of(env: Any, episode: Any) -> Any:
    """How long an episode is."""
    return 2 + (3 * env + 5 * episode) % 7


def fails(env: Any, episode: Any) -> Any:
    """Whether an episode fails."""
    return (env + episode) % 3 == 0


class Episode(NamedTuple):
    """An episode that ended."""

    env: int
    number: int
    length: int


def ended(num_envs: int, num_steps: int) -> list[Episode]:
    """Every episode that ends within so many steps, by a loop over envs and steps."""
    found = []
    for env in range(num_envs):
        number, age = 0, 0
        for _ in range(num_steps):
            age += 1
            if age == length_of(env, number):
                found.append(Episode(env, number, age))
                number, age = number + 1, 0
    return found


def script(obs: Obs) -> Tensor:
    """Act by what is seen: (step, ten times the step)."""
    return torch.cat([obs["place"][:, 2:3], obs["truth"]], dim=1)
