"""`examine_env` finds every planted bug and is silent about healthy envs."""

from __future__ import annotations

import time

import gymnasium
import numpy as np
import pytest
import torch

from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs import toy
from striderl.envs.check.symptoms import examine_env
from striderl.envs.tasks import make
from striderl.envs.toy.bandits import unit_interval
from striderl.envs.toy.base import ToyEnv, ToyOutcome


class Point(gymnasium.Env):
    """A healthy env of a user: a point on a line is pushed about, for thirty steps at most."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.speed, self.time = float(self.np_random.uniform(-1, 1)), 0.0, 0
        return self.seen(), {}

    def step(self, action):
        self.speed = 0.9 * self.speed + 0.2 * float(action[0])
        self.place += self.speed
        self.time += 1
        return self.seen(), self.reward(), abs(self.place) > 3.0, self.time >= 30, {}

    def seen(self):
        return np.array([self.place, self.speed, self.time / 30], np.float32)

    def reward(self):
        return -abs(self.place)


class NeverReset(Point):
    def reset(self, *, seed=None, options=None):
        if not hasattr(self, "place"):
            return super().reset(seed=seed)
        self.time = 0
        self.seen = lambda: np.array([self.place, self.speed, 0.5], np.float32)
        return self.seen(), {}


class ConstantEntry(Point):
    def seen(self):
        return np.array([self.place, 7.0, self.time / 30], np.float32)


class ConstantObservation(Point):
    def seen(self):
        return np.zeros(3, np.float32)


class Millimetres(Point):
    def seen(self):
        return np.array([1000.0 * self.place, self.speed, self.time / 30], np.float32)


class NoReward(Point):
    def reward(self):
        return 0.0


class HugeReward(Point):
    def reward(self):
        return -5000.0 * abs(self.place)


class LateNan(Point):
    def seen(self):
        with np.errstate(invalid="ignore"):
            return np.array([np.sqrt(np.float32(self.place + 1.0)), self.speed, self.time / 30], np.float32)


class OneStep(Point):
    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, True, truncated, info


class Endless(Point):
    def step(self, action):
        obs, reward, _, _, info = super().step(np.clip(action - 0.1 * self.place, -1, 1))
        return obs, reward, False, False, info


class TimeLimitAsTermination(Point):
    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, truncated, False, info


class Unseeded(Point):
    def step(self, action):
        return super().step(action + 0.1 * np.random.default_rng().normal(size=1))


class DeafToActions(Point):
    def step(self, action):
        return super().step(np.full(1, 0.1))


class WideActions(Point):
    action_space = gymnasium.spaces.Box(-400.0, 400.0, (1,), np.float32)

    def step(self, action):
        return super().step(action / 400.0)


class Sleepy(Point):
    def step(self, action):
        time.sleep(0.002)
        return super().step(action)


class Slow(Point):
    """Computes for long at full thrust, which chance hardly ever chooses: `full_thrust` does in the survey."""

    def step(self, action):
        until = time.process_time() + 0.02 * (abs(action[0]) == 1.0)
        while time.process_time() < until:  # it computes, so it does not wait
            pass
        return super().step(action)


def full_thrust(obs, fresh):
    return torch.ones(len(fresh), 1)


class Raises(Point):
    def step(self, action):
        if self.time > 25:
            raise ZeroDivisionError("the motor is gone")
        return super().step(action)


class Slider(ToyEnv):
    """A VecEnv of a user that declares what it likes."""

    def __init__(self, num_envs=4, *, dtype="float32", final_obs=True):
        super().__init__(
            num_envs,
            "cpu",
            obs_spec=ObsSpec({"place": ComponentSpec(shape=(2,), dtype=dtype)}),
            action_spec=BoxSpec(shape=(2,), low=-1.0, high=1.0),
            max_episode_length=8,
            first_env_index=0,
            num_words=2,
        )
        self.dtype, self.gives_final_obs = getattr(torch, dtype), final_obs

    def step(self, actions):
        step = super().step(actions)
        log = {"reward/near": float(step.reward.mean()), "reward/smooth": 0.0, "reward/alive": 1e-6}
        step = step._replace(info={**step.info, "log": log})
        return step if self.gives_final_obs else step._replace(final_obs=None)

    def _start(self, words):
        return {"place": unit_interval(words)}

    def _advance(self, state, actions):
        place = state["place"] + 0.3 * actions
        return ToyOutcome({"place": place}, -place.abs().sum(1), self._never(), self._never(), {})

    def _observe(self, state):
        return {"place": state["place"].to(self.dtype)}


PLANTED = {
    "a reset changes nothing": NeverReset,
    "1 of 3 entries of observation 'obs' never change": ConstantEntry,
    "observation 'obs' never changes": ConstantObservation,
    "observation 'obs' is badly scaled": Millimetres,
    "the reward is always zero": NoReward,
    "rewards are large": HugeReward,
    "observation 'obs' is not finite": LateNan,
    "every episode has one step": OneStep,
    "no episode ever ends": Endless,
    "time-outs look like terminations": TimeLimitAsTermination,
    "reset(seed=0) breaks the contract": Unseeded,
    "actions change nothing": DeafToActions,
    "bounds of the action": WideActions,
    "the env waits instead of simulating": Sleepy,
    "the env is slow for this machine": Slow,
    "the env raised an error": Raises,
    "observation 'place' is float64": lambda: Slider(dtype="float64"),
    "time-outs without final observations": lambda: Slider(final_obs=False),
    "reward terms that are always zero": Slider,
    "one reward term dominates": Slider,
}


@pytest.mark.parametrize("what", PLANTED)
def test_planted_bugs_are_found(what):
    kind = PLANTED[what]
    of_gymnasium = isinstance(kind, type) and issubclass(kind, gymnasium.Env)
    env = make(kind, num_envs=4) if of_gymnasium else kind()
    most = 1000 if kind is Endless else 60 if kind is Sleepy else 8 if kind is Slow else 120
    with env:
        act = full_thrust if kind is Slow else None
        found = examine_env(env, seconds=60.0, max_steps=most, act=act).findings
    named = [each for each in found if each.what.startswith(what)]
    assert named, [str(each) for each in found]
    assert named[0].evidence and named[0].fix


HEALTHY = [
    *("cartpole", "pendulum", "acrobot", "mountain_car", "mountain_car_continuous"),
    *("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCarContinuous-v0", "FrozenLake-v1", "InvertedPendulum-v5"),
    *(toy.Chain, toy.Grid, toy.MemoryCue, toy.RepeatObs, toy.HybridActions, Point),
]


@pytest.mark.parametrize("task", HEALTHY, ids=str)
def test_healthy_envs_have_no_findings(task):
    env = task(4) if isinstance(task, type) and issubclass(task, ToyEnv) else make(task, num_envs=4)
    with env:
        assert [str(each) for each in examine_env(env, seconds=60.0, max_steps=120).findings] == []


def test_the_time_is_kept():
    shares = []
    with make("cartpole", num_envs=2) as env:
        began = time.monotonic()
        examine_env(env, seconds=0.3, max_steps=10**9, progress=shares.append)
        assert time.monotonic() - began < 60.0
    assert shares == sorted(shares) and 0.0 < shares[0] <= 1.0
