"""Agents and envs of rlpyt's kind for the tests of the samplers."""

from __future__ import annotations

from collections import namedtuple

import gymnasium
import numpy as np
import torch

from striderl.data.actions import DiscreteSpec
from striderl.envs.toy import Script, Scripted

AgentStep = namedtuple("AgentStep", ["action", "agent_info"])
AgentInfo = namedtuple("AgentInfo", ["count", "value"])
EnvStep = namedtuple("EnvStep", ["observation", "reward", "done", "env_info"])
GameInfo = namedtuple("GameInfo", ["score", "traj_done", "timeout"])


class CountingAgent:
    """Counts the steps of each env's episode in a memory of its own, plays the count, and notes every call."""

    def __init__(self, num_choices: int = 4) -> None:
        self.num_choices = num_choices
        self.calls: list[tuple] = []
        self.seen: list[tuple] = []
        self.half = 0

    def initialize(self, env_spaces, share_memory=False, global_B=1, env_ranks=None):
        self.spaces = env_spaces
        self.calls.append(("initialize", global_B, tuple(env_ranks)))
        self.counts = torch.zeros(1000, dtype=torch.int64)

    def collector_initialize(self, global_B=1, env_ranks=None):
        self.calls.append(("collector_initialize", global_B, tuple(env_ranks)))

    def rows(self, num_envs):
        return slice(self.half * num_envs, (self.half + 1) * num_envs)

    def step(self, observation, prev_action, prev_reward):
        self.seen.append((observation, prev_action.clone(), prev_reward.clone()))
        rows = self.rows(len(prev_reward))
        count = self.counts[rows].clone()
        self.counts[rows] += 1
        return AgentStep(count % self.num_choices, AgentInfo(count, 0.5 * count.float()))

    def value(self, observation, prev_action, prev_reward):
        return observation.sum(-1) + 100.0 * prev_reward

    def reset(self):
        self.calls.append(("reset",))
        self.counts.zero_()

    def reset_one(self, idx):
        self.calls.append(("reset_one", idx))
        self.counts[idx] = 0

    def sample_mode(self, itr):
        self.calls.append(("sample_mode", itr))

    def eval_mode(self, itr):
        self.calls.append(("eval_mode", itr))


class AlternatingAgent(CountingAgent):
    """The same for two halves of the envs in turn."""

    def toggle_alt(self):
        self.half = 1 - self.half


class PlainAgent:
    """Has `step` and nothing else: the first choice whose number is above the sum of what it sees."""

    def step(self, observation, prev_action, prev_reward):
        return (observation.sum(-1) > 0).long(), None


class LivesEnv:
    """A game of three lives of two steps each, in rlpyt's way; the observation is [game, step of the game]."""

    observation_space = gymnasium.spaces.Box(-10, 100, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    horizon = 6

    def __init__(self, timeout_game: int = -1) -> None:
        self.timeout_game, self.game, self.time, self.seeds, self.closed = timeout_game, -1, 0, [], False

    def seed(self, seed):
        self.seeds.append(seed)
        self.game = -1

    def reset(self):
        self.game, self.time = self.game + 1, 0
        return self.observe()

    def observe(self):
        return np.array([self.game, self.time], np.float32)

    def step(self, action):
        self.time += 1
        over = self.time == 6
        info = GameInfo(score=10.0 * self.time, traj_done=over, timeout=over and self.game == self.timeout_game)
        return EnvStep(self.observe(), 1.0, self.time % 2 == 0, info)

    def close(self):
        self.closed = True


class IntBox:
    """As rlpyt has it: whole numbers from low up to, not including, high."""

    def __init__(self, low, high, shape=(), dtype="int64"):
        self.low, self.high, self.shape, self.dtype = low, high, shape, dtype


class FloatBox:
    def __init__(self, low, high, shape=()):
        self.low, self.high, self.shape, self.dtype = low, high, shape, "float32"


class Composite:
    def __init__(self, spaces, NamedTupleCls):
        self.spaces, self.names = spaces, NamedTupleCls._fields


CameraObs = namedtuple("CameraObs", ["image", "joints"])


class CameraEnv:
    """Observations in two parts, with rlpyt's own kinds of spaces, no env_info and no seed."""

    observation_space = Composite([IntBox(0, 256, (2, 2), "uint8"), FloatBox(-1.0, 1.0, (3,))], CameraObs)
    action_space = IntBox(0, 5)

    def reset(self):
        self.time = 0
        return CameraObs(np.full((2, 2), 7, np.uint8), np.full(3, 0.5, np.float32))

    def step(self, action):
        self.time += 1
        observation = CameraObs(np.full((2, 2), int(action), np.uint8), np.full(3, self.time / 10, np.float32))
        return EnvStep(observation, float(action), self.time == 4, None)


def scripted(reward, terminated, truncated, *, final=True, info=None):
    """A factory of the env that plays these tables [T, N]; its observation in row t of env n is [10 t + n]."""
    reward = torch.tensor(reward, dtype=torch.float32)
    num_steps, num_envs = reward.shape
    obs = (10.0 * torch.arange(num_steps + 1)[:, None] + torch.arange(num_envs))[..., None]

    def flags(places):
        table = torch.zeros(num_steps, num_envs, dtype=torch.bool)
        for place in places:
            table[place] = True
        return table

    script = Script(
        obs={"obs": obs},
        reward=reward,
        terminated=flags(terminated),
        truncated=flags(truncated),
        final_obs={"obs": obs[1:] + 0.5} if final else None,
        info=info,
    )
    return lambda num_envs: Scripted(script, action_spec=DiscreteSpec(n=50))
