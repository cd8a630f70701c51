"""What every built-in env refuses in the same words: calls after close, envs that are not there, foreign states."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from striderl.envs.check.probe import sample_actions
from striderl.envs.tasks import make
from striderl.envs.toy import Bandit, Chain
from striderl.envs.vec_env import VecEnv

ENVS: dict[str, Callable[[], VecEnv]] = {
    "classic": lambda: make("cartpole", num_envs=2),
    "toy": lambda: Chain(2),
    "mujoco": lambda: make("hopper", num_envs=2),
    "gymnasium": lambda: make("gymnasium:CartPole-v1", num_envs=2),
}


@pytest.mark.parametrize("kind", list(ENVS))
def test_a_closed_env_refuses_everything(kind: str):
    env = ENVS[kind]()
    obs = env.reset(seed=0)
    actions = sample_actions(env.action_spec, obs, torch.Generator().manual_seed(0))
    env.step(actions)
    env.close()
    env.close()
    calls = [lambda: env.reset(), lambda: env.reset(seed=1), lambda: env.step(actions)]
    calls.append(lambda: env.reset_envs(torch.tensor([True, False])))
    for call in calls:
        with pytest.raises(RuntimeError, match="is closed; build a new one"):
            call()


@pytest.mark.parametrize("kind", ["classic", "toy", "mujoco"])
def test_a_closed_env_is_not_woken_by_a_state(kind: str):
    env = ENVS[kind]()
    env.reset(seed=0)
    state = env.state_dict()
    env.close()
    for call in (env.state_dict, lambda: env.load_state_dict(state)):
        with pytest.raises(RuntimeError, match="is closed"):
            call()


@pytest.mark.parametrize("kind", ["classic", "mujoco"])
@pytest.mark.parametrize("index", [9, 2, -1])
def test_a_picture_of_an_env_that_is_not_there_is_refused(kind: str, index: int):
    with ENVS[kind]() as env:
        with pytest.raises(IndexError, match=f"env_index {index} is not in 0 to 1"):
            env.render(index)
        env.reset(seed=0)
        with pytest.raises(IndexError, match=f"env_index {index} is not in 0 to 1"):
            env.render(index)


def test_the_state_of_another_task_is_refused_by_name():
    # both have two numbers per env, so only the name tells them apart
    with make("mountain_car", num_envs=2) as source, make("mountain_car_continuous", num_envs=2) as target:
        source.reset(seed=0)
        state = source.state_dict()
        with pytest.raises(ValueError, match=r"saved from task 'MountainCar-v0'.*into 'MountainCarContinuous-v0'"):
            target.load_state_dict(state)
        del state["task"]
        with pytest.raises(ValueError, match="does not say which task"):
            target.load_state_dict(state)
    toy = Bandit(2)
    toy.reset(seed=0)
    with pytest.raises(ValueError, match="saved from task 'Bandit' and cannot be loaded into 'Chain'"):
        Chain(2).load_state_dict(toy.state_dict())
