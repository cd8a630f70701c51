"""The batched locomotion tasks against Gymnasium's own classes, step for step, through ends of episodes."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import torch

from striderl.envs.mujoco.gym_tasks import CONFIGS, TASKS, HalfCheetah, HalfCheetahConfig
from striderl.envs.mujoco.locomotion_base import Locomotion, load_gymnasium_model
from striderl.envs.mujoco.locomotion_spatial import ExternalForces
from striderl.envs.mujoco.simulation import Simulation

IDS = {
    "half_cheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
    "ant": "Ant-v5",
    "humanoid": "Humanoid-v5",
}


@pytest.fixture(autouse=True)
def _mujoco_writes_its_log_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(name: str, **settings: Any) -> Locomotion:
    return TASKS[name](CONFIGS[name](**{"num_envs": 2, "num_threads": 1, **settings}))


class Twin:
    """Gymnasium's env, put into the state of one of ours."""

    def __init__(self, name: str, ours: Locomotion, row: int, **settings: Any) -> None:
        self.env: Any = gymnasium.make(IDS[name], **settings).unwrapped
        self.env.reset(seed=0)
        self.ours, self.row = ours, row

    def follow(self) -> np.ndarray:
        """Start an episode where ours starts one; return the observation."""
        mujoco.mj_resetData(self.env.model, self.env.data)
        self.env.set_state(self.ours.qpos[self.row].copy(), self.ours.qvel[self.row].copy())
        return self.env._get_obs()


def compare(name: str, num_steps: int, limit: int = 1000, **settings: Any) -> dict[str, float]:
    """Step both with random actions; return the largest differences and how many episodes ended."""
    ours = make(name, obs_dtype="float64", max_episode_length=limit, **settings)
    obs = ours.reset(seed=1)["obs"].numpy()
    twins = [Twin(name, ours, row, **settings) for row in range(ours.num_envs)]
    worst = {"reset": max(np.abs(twin.follow() - obs[twin.row]).max() for twin in twins), "obs": 0.0, "reward": 0.0}
    ends, falls = 0, 0
    low, high = ours.action_spec.bounds()
    rng = np.random.default_rng(0)
    for number in range(num_steps):
        actions = rng.uniform(low, high, size=(ours.num_envs, len(low))).astype(np.float32)
        step = ours.step(torch.from_numpy(actions))
        for twin in twins:
            row = twin.row
            wanted, reward, terminated, _, _ = twin.env.step(actions[row])
            worst["obs"] = max(worst["obs"], np.abs(wanted - step.final_obs["obs"][row].numpy()).max())
            worst["reward"] = max(worst["reward"], abs(reward - ours.reward_terms.values[:, row].sum()))
            assert float(step.reward[row]) == pytest.approx(reward, rel=1e-6, abs=1e-6)
            assert bool(step.terminated[row]) == terminated, f"step {number}, env {row}"
            falls += terminated
            if step.done[row]:
                ends += 1
                worst["reset"] = max(worst["reset"], np.abs(twin.follow() - step.obs["obs"][row].numpy()).max())
    return {**worst, "ends": ends, "falls": falls}


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_thousand_steps_are_gymnasiums(name: str):
    found = compare(name, 1000)
    print(name, found)
    assert found["obs"] < 1e-6 and found["reset"] < 1e-6 and found["reward"] < 1e-6
    assert found["ends"] >= 2
    assert (found["falls"] > 0) == (name != "half_cheetah")


WITH_POSITIONS = {"exclude_current_positions_from_observation": False}
OTHER_SETTINGS = {
    "half_cheetah": {"forward_reward_weight": 2.0, "ctrl_cost_weight": 0.7, "frame_skip": 3, **WITH_POSITIONS},
    "hopper": {
        "healthy_reward": 3.0,
        "terminate_when_unhealthy": False,
        "healthy_state_range": (-5.0, 5.0),
        "healthy_angle_range": (-0.1, 0.4),
        **WITH_POSITIONS,
    },
    "walker2d": {"healthy_z_range": (1.1, 1.3), "healthy_angle_range": (-0.2, 0.2), "ctrl_cost_weight": 0.3},
    "ant": {
        "main_body": "front_left_leg",
        "contact_force_range": (-50.0, 3.0),
        "contact_cost_weight": 1e-2,
        "healthy_z_range": (0.4, 0.9),
        **WITH_POSITIONS,
    },
    "humanoid": {
        "include_cvel_in_observation": False,
        "include_qfrc_actuator_in_observation": False,
        "contact_cost_range": (0.02, 0.5),
        "contact_cost_weight": 1e-4,
        "terminate_when_unhealthy": False,
        **WITH_POSITIONS,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_settings_mean_what_they_mean_in_gymnasium(name: str):
    found = compare(name, 150, limit=60, **OTHER_SETTINGS[name])
    assert found["obs"] < 1e-6 and found["reset"] < 1e-6 and found["reward"] < 2e-6


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ant", {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}),
        ("ant", {"include_cfrc_ext_in_observation": False}),
        ("humanoid", {"include_cfrc_ext_in_observation": False, "include_cinert_in_observation": False}),
    ],
)
def test_forces_may_be_left_out(name: str, settings: dict[str, Any]):
    found = compare(name, 60, limit=25, **settings)
    assert found["obs"] < 1e-6 and found["reset"] < 1e-6 and found["reward"] < 1e-6


@pytest.mark.parametrize("name", TASKS)
def test_settings_have_gymnasiums_names_and_defaults(name: str):
    theirs = inspect.signature(gymnasium.make(IDS[name]).unwrapped.__class__.__init__).parameters
    ours = {field.name: field.default for field in fields(CONFIGS[name])}
    rules = [key for key in theirs if key not in ("self", "default_camera_config", "kwargs")]
    assert len(rules) >= 6
    for key in rules:
        assert ours[key] == theirs[key].default, key
    assert ours["max_episode_length"] == gymnasium.spec(IDS[name]).max_episode_steps


@pytest.mark.parametrize("name", TASKS)
def test_spaces_are_gymnasiums(name: str):
    env, theirs = make(name), gymnasium.make(IDS[name])
    assert env.obs_spec["obs"].shape == theirs.observation_space.shape
    low, high = env.action_spec.bounds()
    assert np.array_equal(low, theirs.action_space.low) and np.array_equal(high, theirs.action_space.high)
    assert env.reset(seed=0)["obs"].dtype == torch.float32
    assert env.step_dt == pytest.approx(theirs.unwrapped.dt)


@pytest.mark.parametrize("name", TASKS)
def test_first_states_have_gymnasiums_distribution(name: str):
    env = make(name, num_envs=400)
    env.reset(seed=0)
    scale = env.config.reset_noise_scale
    positions, velocities = env.qpos - env.model.qpos0, env.qvel
    if name in ("half_cheetah", "ant"):
        assert velocities.std() == pytest.approx(scale, rel=0.05), "normal"
        assert np.abs(velocities).max() > 2.5 * scale
    else:
        assert velocities.std() == pytest.approx(scale / np.sqrt(3.0), rel=0.05), "uniform"
        assert np.abs(velocities).max() <= scale
    assert positions.std() == pytest.approx(scale / np.sqrt(3.0), rel=0.05)
    assert np.abs(positions).max() <= scale + 1e-12
    assert np.abs(velocities.mean()) < 0.05 * scale and np.abs(positions.mean()) < 0.05 * scale


@pytest.mark.parametrize("name", TASKS)
def test_saved_and_resumed_bit_for_bit(name: str):
    low, high = make(name).action_spec.bounds()
    actions = torch.from_numpy(np.random.default_rng(1).uniform(low, high, size=(60, 2, len(low))).astype(np.float32))
    env, other = make(name, max_episode_length=25), make(name, max_episode_length=25, num_threads=2)
    env.reset(seed=3)
    for action in actions[:30]:
        env.step(action)
    other.load_state_dict(env.state_dict())
    for action in actions[30:]:
        reference, copy = env.step(action), other.step(action)
        assert torch.equal(reference.obs["obs"], copy.obs["obs"])
        assert torch.equal(reference.final_obs["obs"], copy.final_obs["obs"])
        assert torch.equal(reference.reward, copy.reward)
        assert torch.equal(reference.done, copy.done)


def test_metrics_and_log_name_the_terms():
    env = make("ant")
    env.reset(seed=0)
    low, high = env.action_spec.bounds()
    step = env.step(torch.from_numpy(np.stack([low, high])))
    assert set(step.info["log"]) >= {"reward/forward", "reward/survive", "reward/ctrl", "reward/contact"}
    assert step.info["log"]["reward/ctrl"] == pytest.approx(-0.5 * 8)
    assert step.info["log"]["reward/survive"] == 1.0
    assert env.metrics()["x_velocity"] == pytest.approx(env.reward_terms.values[0], abs=1e-6)


def test_metrics_at_the_end_of_an_episode_are_those_of_its_last_step():
    env = HalfCheetah(HalfCheetahConfig(num_envs=2, max_episode_length=3))
    env.reset(seed=0)
    for _ in range(3):
        step = env.step(torch.ones(2, 6))
    assert step.truncated.all()
    # the envs begin anew within the step, so these are the numbers that an evaluation reads
    assert (env.metrics()["x_velocity"] != 0.0).all()


def test_a_model_that_is_not_there_is_named():
    with pytest.raises(FileNotFoundError, match=r"assets.giraffe\.xml"):
        HalfCheetah(HalfCheetahConfig(xml_file="giraffe.xml"))


def test_loading_is_quiet_and_leaves_mujoco_as_it_was(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    before = mujoco.get_mju_user_warning()
    load_gymnasium_model("half_cheetah.xml")
    assert mujoco.get_mju_user_warning() is before
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_external_forces_want_a_persistent_simulation():
    with pytest.raises(ValueError, match="must be persistent"):
        ExternalForces(Simulation(load_gymnasium_model("ant.xml"), 1))
