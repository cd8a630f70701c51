"""Tasks whose every transition is known beforehand, to check collectors and storages: one counts, one plays tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from striderl.data.actions import ActionSpec, DiscreteSpec
from striderl.data.naming import saved_name
from striderl.data.noise import philox, stream_id
from striderl.data.specs import ObsSpec, TensorSpec, dtype_name
from striderl.envs.toy.base import State, ToyEnv, ToyOutcome, check_actions, where_rows
from striderl.envs.vec_env import Actions, Obs, Step, VecEnv


@dataclass(frozen=True, kw_only=True)
class CountingConfig:
    """ProbeEpisode lengths of a `Counting` env."""

    min_length: int = 1
    """The shortest episode."""
    max_length: int = 12
    """The longest episode."""
    num_choices: int = 4
    """How many actions there are; they change nothing but are echoed in info['action']."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_length <= self.max_length:
            raise ValueError(f"episode lengths want 1 <= min <= max, found {self.min_length} to {self.max_length}")


class ProbeEpisode(NamedTuple):
    """The predicted length and ending of an episode of `Counting`."""

    length: Tensor
    """Its number of steps, int64."""
    terminates: Tensor
    """Whether it ends by termination; otherwise by truncation."""


class Counting(ToyEnv):
    """Observation: global env index, episode number, step number; reward: the step number.

        env 7, episode 2, of 3 steps:    obs (7,2,0) -> reward 0 -> (7,2,1) -> 1 -> (7,2,2) -> 2, done
                                         final_obs (7,2,3), obs (7,3,0)

    An episode of L steps returns L (L - 1) / 2, whatever is done. How long each episode is and how it ends follows from
    `Counting.episode(seed, env, number)`, so a test can predict all data of a run.
    """

    SAVED_NAME: ClassVar[str] = "Counting"

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        *,
        config: CountingConfig | None = None,
        first_env_index: int = 0,
    ) -> None:
        self.config = config or CountingConfig()
        super().__init__(
            num_envs,
            device,
            obs_spec=ObsSpec.from_flat(3),
            action_spec=DiscreteSpec(n=self.config.num_choices),
            max_episode_length=0,
            first_env_index=first_env_index,
            num_words=2,
            info_spec={"action": TensorSpec(dtype="int64")},
        )

    def episode(self, seed: int, env_index: Tensor, number: Tensor) -> ProbeEpisode:
        """Predict episodes by their seed, global env index and number; the tensors broadcast."""
        stream = torch.full_like(env_index, stream_id(saved_name(self)))
        words = philox((torch.zeros_like(env_index), env_index, number, stream), seed)
        return self._read(torch.stack(words[:2], dim=-1))

    def optimal_return(self) -> float:
        """Return the longest episode's return, the most there is to get."""
        return self.config.max_length * (self.config.max_length - 1) / 2.0

    def _read(self, words: Tensor) -> ProbeEpisode:
        span = self.config.max_length - self.config.min_length + 1
        return ProbeEpisode(self.config.min_length + words[..., 0] % span, words[..., 1] % 2 == 0)

    def _start(self, words: Tensor) -> State:
        length, terminates = self._read(words)
        return {"planned": length, "terminates": terminates}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        assert isinstance(actions, Tensor)
        over = state["length"] + 1 >= state["planned"]
        reward = state["length"].float()
        return ToyOutcome(
            {}, reward, over & state["terminates"], over & ~state["terminates"], {"action": actions.clone()}
        )

    def _observe(self, state: State) -> Obs:
        return {"obs": torch.stack([self.env_index, state["episode"], state["length"]], dim=1).float()}


@dataclass(frozen=True, kw_only=True)
class Script:
    """The tables of a `Scripted` env: row t is what step t returns."""

    obs: Mapping[str, Tensor]
    """[T + 1, N, …] per component: row 0 is what reset returns, row t + 1 what step t does."""
    reward: Tensor
    """[T, N]."""
    terminated: Tensor
    """bool [T, N]."""
    truncated: Tensor
    """bool [T, N]."""
    final_obs: Mapping[str, Tensor] | None = None
    """[T, N, …] per component, or None for an env that does not give final observations."""
    info: Mapping[str, Tensor] | None = None
    """[T, N, …] per declared info key."""

    def __post_init__(self) -> None:
        steps, envs = self.reward.shape
        tables = {"terminated": self.terminated, "truncated": self.truncated}
        tables |= {f"info[{name!r}]": table for name, table in (self.info or {}).items()}
        tables |= {f"final_obs[{name!r}]": table for name, table in (self.final_obs or {}).items()}
        for name, table in tables.items():
            if tuple(table.shape[:2]) != (steps, envs):
                raise ValueError(f"script: {name} wants [{steps}, {envs}, …] like reward, found {list(table.shape)}")
        for name, table in self.obs.items():
            if tuple(table.shape[:2]) != (steps + 1, envs):
                raise ValueError(f"script: obs[{name!r}] wants [{steps + 1}, {envs}, …], found {list(table.shape)}")
        if self.final_obs is not None and set(self.final_obs) != set(self.obs):
            raise ValueError(f"script: final_obs has {sorted(self.final_obs)}, obs has {sorted(self.obs)}")


class Scripted(VecEnv):
    """Return rows of explicit tables, whatever the actions are, which are kept in `received` for tests.

    `reset` goes back to row 0 and ignores its seed. `reset_envs` zeroes the masked episode lengths and nothing else.
    A step beyond the last row is an error.
    """

    def __init__(
        self,
        script: Script,
        *,
        action_spec: ActionSpec | None = None,
        device: str | torch.device = "cpu",
        max_episode_length: int = 0,
        first_env_index: int = 0,
    ) -> None:
        self.device = torch.device(device)
        self.script = script
        self.num_steps, self.num_envs = script.reward.shape
        self.obs_spec = ObsSpec.from_tensors(script.obs, batch_dims=2)
        self.action_spec = action_spec or DiscreteSpec(n=2)
        self.info_spec = {
            name: TensorSpec(shape=tuple(table.shape[2:]), dtype=dtype_name(table.dtype))
            for name, table in (script.info or {}).items()
        }
        self.gives_final_obs = script.final_obs is not None
        self.max_episode_length = max_episode_length
        self.step_dt = 0.0
        self.first_env_index = first_env_index
        self.received: list[Actions] = []
        self._row = 0
        self._length = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)

    def reset(self, seed: int | None = None) -> Obs:
        """Go back to the first row."""
        self._row = 0
        self._length = torch.zeros_like(self._length)
        return self._rows(self.script.obs, 0)

    def step(self, actions: Actions) -> Step:
        """Return the next row of the tables."""
        check_actions(actions, self.action_spec, self.num_envs, "Scripted")
        row = self._row
        if row >= self.num_steps:
            raise IndexError(f"the script has {self.num_steps} steps and all were played; reset() starts it again")
        self._row += 1
        copy = {name: part.clone() for name, part in actions.items()} if isinstance(actions, dict) else actions.clone()
        self.received.append(copy)
        terminated, truncated = self._table(self.script.terminated, row), self._table(self.script.truncated, row)
        self._length = torch.where(terminated | truncated, 0, self._length + 1)
        final_obs = None if self.script.final_obs is None else self._rows(self.script.final_obs, row)
        info = {**self._rows(self.script.info or {}, row), "log": {}}
        reward = self._table(self.script.reward, row).float()
        return Step(self._rows(self.script.obs, row + 1), reward, terminated, truncated, final_obs, info)

    def reset_envs(self, mask: Tensor) -> Obs:
        """Zero the masked episode lengths; the tables continue as written."""
        self._length = where_rows(mask.to(self.device), torch.zeros_like(self._length), self._length)
        return self._rows(self.script.obs, self._row)

    @property
    def episode_length_buf(self) -> Tensor:
        """Steps since the last ending in the tables, int64 [N]; a copy."""
        return self._length.clone()

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self._length = value.to(device=self.device, dtype=torch.int64, copy=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the tables."""
        return {"row": self._row, "length": self._length.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> Obs:
        """Go to a position in the tables."""
        self._row = int(state["row"])
        self._length = state["length"].to(self.device, copy=True)
        return self._rows(self.script.obs, self._row)

    def _rows(self, tables: Mapping[str, Tensor], row: int) -> Obs:
        return {name: self._table(table, row) for name, table in tables.items()}

    def _table(self, table: Tensor, row: int) -> Tensor:
        return table[row].to(self.device, copy=True)
