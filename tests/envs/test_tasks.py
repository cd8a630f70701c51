"""Every built-in task keeps the contract, saves its state, and shows a picture."""

from __future__ import annotations

import pytest
import torch

from striderl.envs.check import check_vec_env
from striderl.envs.check.probe import sample_actions
from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.tasks import TASKS, make


@pytest.mark.slow
@pytest.mark.parametrize("task", list(TASKS))
def test_every_task_keeps_the_contract(task):
    with make(task, num_envs=4) as env:
        report = check_vec_env(env, num_steps=60)
        assert report.ok, str(report)


@pytest.mark.parametrize("task", list(TASKS))
def test_every_task_resumes_to_the_bit(task):
    with make(task, num_envs=3) as env, make(task, num_envs=3) as other:
        generator = torch.Generator().manual_seed(0)
        obs = env.reset(seed=4)
        for _ in range(10):
            obs = env.step(sample_actions(env.action_spec, obs, generator)).obs
        loaded = other.load_state_dict(env.state_dict())
        assert all(torch.equal(loaded[name], obs[name]) for name in obs)
        for _ in range(15):
            actions = sample_actions(env.action_spec, obs, generator)
            one, two = env.step(actions), other.step(actions)
            obs = one.obs
            assert all(torch.equal(one.obs[name], two.obs[name]) for name in obs)
            assert torch.equal(one.reward, two.reward) and torch.equal(one.terminated, two.terminated)


@pytest.mark.slow
@pytest.mark.parametrize("task", list(TASKS))
def test_every_task_has_a_picture_that_is_not_black(task):
    with make(task, num_envs=2) as env:
        env.reset(seed=1)
        frame = env.render(1)
    assert frame.dtype.name == "uint8" and frame.ndim == 3 and frame.shape[2] == 3
    assert frame.std() > 10, "the picture has no contrast"
    assert len({tuple(pixel) for pixel in frame[::8, ::8].reshape(-1, 3)}) > 3


def test_a_gymnasium_id_needs_no_prefix():
    with make("CartPole-v1", num_envs=2) as env:
        assert isinstance(env, GymnasiumEnv) and env.num_envs == 2
    with pytest.raises(KeyError, match=r"no task 'cart_pole'. Did you mean 'cartpole'\?"):
        make("cart_pole")


@pytest.mark.parametrize(
    ("task", "settings", "error", "pattern"),
    [
        ("cartpole", {"num_envs": 4}, ValueError, r"give it as make\('cartpole', num_envs=…\)"),
        ("ant", {"device": "cpu"}, ValueError, r"give it as make\('ant', device=…\)"),
        ("ant", ["device"], TypeError, "settings: wanted a dict"),
        ("ant", {"num_threads": -1}, ValueError, r"num_threads is 0 to \d+ on this machine .*, found -1"),
        ("ant", {"num_threads": "2"}, TypeError, "AntConfig.num_threads: wanted int, found str '2'"),
        ("hopper", {"max_episode_length": True}, TypeError, "HopperConfig.max_episode_length: wanted int, found bool"),
        ("cartpole", {"start_range": "wide"}, TypeError, "CartPoleConfig.start_range: wanted float, found str"),
        ("quadruped", {"rewards": {"nope": 1}}, KeyError, "RewardConfig has no setting 'nope'.*tracking_width"),
        ("quadruped", {"rewards": 1}, TypeError, "rewards: wanted a RewardConfig, found int.*tracking_width"),
        ("quadruped", {"reward_weights": {"nope": 1.0}}, KeyError, "no reward term 'nope'"),
        ("parkour", {"lanes": 3}, TypeError, "ParkourConfig.lanes: wanted a ParkourFieldConfig, found int 3"),
    ],
)
def test_wrong_settings_are_named(task, settings, error, pattern):
    with pytest.raises(error, match=pattern):
        make(task, settings=settings)


def test_a_part_of_a_config_may_be_a_table():
    settings = {"lanes": {"kinds": ("crawl",), "levels": 1, "sizes": {"crawl": (0.3, 0.3)}}}
    with make("parkour", num_envs=1, settings=settings) as env:
        env.reset(seed=0)
        assert env.config.lanes.kinds == ("crawl",) and env.config.lanes.obstacles == 4  # the rest keeps its defaults
        assert env.ground.blocks[:, 0, 3].tolist() == pytest.approx([0.3] * 8)


def test_gymnasium_ids_and_wrong_names():
    with make("gymnasium:CartPole-v1", num_envs=2) as env:
        assert env.num_envs == 2 and env.reset(seed=0)["obs"].shape == (2, 4)
    with pytest.raises(KeyError, match="no task 'cartpol'"):
        make("cartpol")
    with pytest.raises(KeyError, match="Did you mean 'ctrl_cost_weight'"):
        make("half_cheetah", settings={"ctrl_cost_wieght": 0.0})
    with make("half_cheetah", num_envs=2, settings={"max_episode_length": 7}) as env:
        assert env.max_episode_length == 7
