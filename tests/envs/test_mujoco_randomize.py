"""Domain randomisation: what is drawn, what it does to the physics, and that it can be read."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from mujoco_slider_task import SLIDER_XML, Slider, every_term
from torch import Tensor

from striderl.envs.mujoco.base import MujocoConfig
from striderl.envs.mujoco.disturbances import ActionLatency, ObservationLatency, ObservationNoise, Push
from striderl.envs.mujoco.randomize import ActuatorGain, BodyMass, Friction

STEP_DT = 0.01


def make(*terms: Any, num_envs: int = 4, **settings: Any) -> Slider:
    chosen = {"num_envs": num_envs, "num_threads": 1, "max_episode_length": 0, **settings}
    return Slider(MujocoConfig(**chosen), terms)


def throttle(env: Slider, value: float) -> Tensor:
    return torch.full((env.num_envs, 1), value)


def test_mass_changes_the_acceleration_and_stays_in_its_range():
    env = make(BodyMass(bodies=("block",), scale=(0.5, 2.0)), num_envs=8)
    env.reset(seed=1)
    seen = []
    for _ in range(30):
        mass = env.randomized["body_mass"][:, 0].copy()
        seen.append(mass)
        assert ((mass >= 1.0) & (mass <= 4.0)).all(), "2 kg times 0.5 to 2.0, never times an earlier factor"
        speed = env.step(throttle(env, 1.0)).obs["state"][:, 1].numpy()
        assert speed == pytest.approx(10.0 / mass * STEP_DT, rel=1e-6)
        env.reset_envs(torch.ones(8, dtype=torch.bool))
    drawn = np.stack(seen)
    assert len(np.unique(drawn)) == drawn.size, "no two envs or episodes share a draw"
    assert drawn.mean() == pytest.approx(2.5, abs=0.2)


def test_only_the_envs_that_begin_are_drawn_anew():
    env = make(BodyMass(bodies=("block",), scale=(0.5, 2.0)), Friction())
    env.reset(seed=1)
    before = {name: value.copy() for name, value in env.randomized.items()}
    env.reset_envs(torch.tensor([False, True, False, False]))
    for name, value in env.randomized.items():
        assert (value[[0, 2, 3]] == before[name][[0, 2, 3]]).all()
        assert (value[1] != before[name][1]).all()


def test_masses_compose_and_what_follows_from_them_follows():
    env = make(
        BodyMass(bodies=("block",), add=(1.0, 1.0), name="payload"),
        BodyMass(scale=(2.0, 2.0)),
    )
    env.reset(seed=0)
    # block (2 + 1) · 2 = 6, puck 1 · 2 = 2
    assert env.randomized["payload"].tolist() == [[3.0]] * 4
    assert env.randomized["body_mass"].tolist() == [[6.0, 2.0]] * 4
    batch = env.simulation.batch
    assert batch.expanded("body_subtreemass")[:, 0].tolist() == [8.0] * 4
    inertia = env.model.body_inertia
    assert batch.expanded("body_inertia")[0, 1] == pytest.approx(3.0 * inertia[1])
    assert batch.expanded("body_inertia")[0, 2] == pytest.approx(2.0 * inertia[2])
    assert env.simulation.field("body_mass")[:, 1].tolist() == [6.0] * 4
    assert make().simulation.field("body_mass")[:, 1].tolist() == [2.0] * 4


def test_friction_holds_the_puck_or_lets_it_slide():
    env = make(Friction(sliding=(0.1, 1.0)), num_envs=24)
    env.reset(seed=3)
    for _ in range(30):
        env.step(throttle(env, 0.0))  # let it settle on the floor
    env.bind("qfrc_applied")[:, 1] = 5.0
    for _ in range(20):
        env.step(throttle(env, 0.0))
    friction, speed = env.randomized["friction"][:, 0], env.qvel[:, 1]
    # 5 N against mu · 9.81 N: held above mu = 0.51, else v = (5 - mu · 9.81) · 0.2 s; MuJoCo's contacts are a bit soft
    held, slides = friction > 0.55, friction < 0.45
    assert held.sum() >= 5 and slides.sum() >= 5
    assert (speed[held] < 0.01).all()
    assert speed[slides] == pytest.approx((5.0 - 9.81 * friction[slides]) * 0.2, abs=0.06)


def test_friction_of_named_geoms_one_draw_each():
    env = make(Friction(geoms=("puck", "floor"), together=False))
    env.reset(seed=0)
    model = env.model
    rows = env.simulation.batch.expanded("geom_friction")[:, :, 0]
    assert env.randomized["friction"].shape == (4, 2)
    assert (rows[:, model.geom("puck").id] == env.randomized["friction"][:, 0]).all()
    assert (rows[:, model.geom("floor").id] == env.randomized["friction"][:, 1]).all()
    assert (rows[:, model.geom("block").id] == model.geom("block").friction[0]).all()


def test_gain_of_a_motor_is_its_strength():
    env = make(ActuatorGain(kp=(0.5, 1.5)))
    env.reset(seed=0)
    speed = env.step(throttle(env, 1.0)).obs["state"][:, 1].numpy()
    assert speed == pytest.approx(env.randomized["actuator_gain"][:, 0] * 10.0 / 2.0 * STEP_DT, rel=1e-6)


def test_gains_of_a_servo(monkeypatch: pytest.MonkeyPatch):
    servo = '<position name="motor" joint="rail" kp="100" kv="4"/>'
    xml = SLIDER_XML.replace(SLIDER_XML[SLIDER_XML.index("<motor") : SLIDER_XML.index("</actuator>")], servo)
    monkeypatch.setattr("mujoco_slider_task.SLIDER_XML", xml)
    env = make(ActuatorGain(kp=(0.5, 1.5), kd=(0.2, 3.0)))
    env.reset(seed=0)
    force = env.bind("actuator_force")
    env.qpos[:, 0], env.qvel[:, 0] = 0.1, 0.5
    env.step(throttle(env, 0.3))
    kp, kd = env.randomized["actuator_gain"].T
    assert force[:, 0] == pytest.approx(100 * kp * (0.3 - 0.1) - 4 * kd * 0.5)


def test_pushes_come_in_time_and_are_what_they_say():
    env = make(Push(interval=(3, 6), velocity=(0.25,), dofs=(0,)), num_envs=16)
    env.reset(seed=0)
    last, since, gaps, kicks = np.zeros(16), np.zeros(16, np.int64), [], []
    for _ in range(60):
        speed = env.step(throttle(env, 0.0)).obs["state"][:, 1].numpy().astype(np.float64)
        kick = env.randomized["push"][:, 0]
        assert speed - last == pytest.approx(kick, abs=1e-6), "nothing else moves the block"
        hit = kick != 0.0
        gaps += since[hit].tolist()
        kicks += kick[hit].tolist()
        since = np.where(hit, 1, since + 1)
        last = speed
        env.qpos[:, 0] = 0.0
    assert set(gaps) == {3, 4, 5, 6}
    assert max(np.abs(kicks)) <= 0.25
    assert len(set(kicks)) == len(kicks)
    assert np.mean(kicks) == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize(("setting", "std"), [({"std": 0.2}, 0.2), ({"uniform": 0.3}, 0.3 / np.sqrt(3.0))])
def test_noise_is_new_in_every_step_and_can_be_read(setting: dict[str, float], std: float):
    env = make(ObservationNoise(component="state", **setting), num_envs=50)
    first = env.reset(seed=0)["state"].numpy()
    assert first == pytest.approx(env.randomized["noise/state"], abs=1e-6)
    drawn = [first]
    for _ in range(20):
        seen = env.step(throttle(env, 0.0)).obs
        true = np.stack([env.qpos[:, 0], env.qvel[:, 0]], axis=1)
        assert seen["state"].numpy() - true == pytest.approx(env.randomized["noise/state"], abs=1e-6)
        assert not seen["place"].numpy()[:, 1:2].any(), "other components are left alone"
        drawn.append(env.randomized["noise/state"].copy())
    numbers = np.stack(drawn)
    assert numbers.std() == pytest.approx(std, rel=0.05)
    assert numbers.mean() == pytest.approx(0.0, abs=0.02)
    assert len(np.unique(numbers)) == numbers.size
    if "uniform" in setting:
        assert np.abs(numbers).max() <= 0.3


def test_the_last_observation_and_the_next_first_one_have_noise_of_their_own():
    env = make(ObservationNoise(component="state", std=0.1), max_episode_length=3)
    env.reset(seed=0)
    for _ in range(3):
        step = env.step(throttle(env, 0.0))
    assert step.truncated.all()
    assert (step.final_obs["state"] != step.obs["state"]).all()


def test_late_actions():
    env = make(ActionLatency(min_steps=0, max_steps=3), num_envs=40)
    env.reset(seed=0)
    delay = env.randomized["action_latency"][:, 0].astype(int)
    assert set(delay) == {0, 1, 2, 3}
    values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    for number, value in enumerate(values):
        env.step(throttle(env, value))
        expected = [values[number - late] if number >= late else 0.0 for late in delay]
        assert env.ctrl[:, 0] == pytest.approx(expected)
        assert env.actions[:, 0] == pytest.approx(value), "the task sees what was chosen"
    env.reset_envs(torch.ones(40, dtype=torch.bool))
    late = env.randomized["action_latency"][:, 0] > 0
    env.step(throttle(env, 0.7))
    assert not env.ctrl[late].any(), "a new episode knows nothing of the old one's actions"


def test_late_observations():
    env = make(ObservationLatency(component="state", min_steps=1, max_steps=2), num_envs=20, max_episode_length=6)
    env.start = 0.2
    seen = [env.reset(seed=0)["state"].numpy()]
    true = [seen[0].copy()]
    delay = env.randomized["latency/state"][:, 0].astype(int)
    assert set(delay) == {1, 2}
    for number in range(1, 6):
        step = env.step(throttle(env, 1.0))
        true.append(np.stack([env.qpos[:, 0], env.qvel[:, 0]], axis=1))
        expected = np.stack([true[max(number - late, 0)][env_index] for env_index, late in enumerate(delay)])
        assert step.obs["state"].numpy() == pytest.approx(expected, abs=1e-6)
    step = env.step(throttle(env, 1.0))
    assert step.truncated.all()
    assert step.obs["state"].numpy()[:, 0] == pytest.approx(env.qpos[:, 0], abs=1e-6), "a new episode starts in time"
    assert step.obs["state"].numpy()[:, 1] == pytest.approx(0.0)


def test_a_term_does_not_depend_on_the_others_in_the_list():
    alone, together = make(Friction()), Slider(MujocoConfig(num_envs=4, num_threads=1), [*every_term()])
    alone.reset(seed=6)
    together.reset(seed=6)
    spread = (together.randomized["friction"] - 0.3) / 0.7
    assert (alone.randomized["friction"] - 0.5) / 0.75 == pytest.approx(spread)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"the model has no body 'blok'. Did you mean 'block'"):
        make(BodyMass(bodies=("blok",)))
    with pytest.raises(ValueError, match="negative or zero"):
        make(BodyMass(bodies=("block",), add=(-3.0, 0.0)))
    with pytest.raises(ValueError, match="no mass to change"):
        make(BodyMass(bodies=("world",)))
    with pytest.raises(ValueError, match="two randomisation terms are named 'friction'"):
        make(Friction(), Friction())
    with pytest.raises(ValueError, match=r"Friction\.sliding wants a range"):
        Friction(sliding=(1.0, 0.5))
    with pytest.raises(ValueError, match="no damping of its own"):
        make(ActuatorGain(kd=(0.5, 1.5)))
    with pytest.raises(ValueError, match="degrees of freedom 0 to 2"):
        make(Push(interval=(1, 2), velocity=(1.0,), dofs=(7,)))
    with pytest.raises(ValueError, match="2 velocities for 1 dofs"):
        Push(interval=(1, 2), velocity=(1.0, 1.0), dofs=(0,))
    with pytest.raises(ValueError, match="wants std or uniform"):
        ObservationNoise(component="state")
    with pytest.raises(ValueError, match="has no component 'stat'"):
        make(ObservationNoise(component="stat", std=0.1))
    with pytest.raises(ValueError, match="ActionLatency"):
        ActionLatency(min_steps=2, max_steps=1)


def test_the_models_own_numbers_are_never_touched():
    env = Slider(MujocoConfig(num_envs=2, num_threads=1), every_term())
    env.reset(seed=0)
    env.step(throttle(env, 1.0))
    fresh = mujoco.MjModel.from_xml_string(SLIDER_XML)
    for name in ("body_mass", "body_inertia", "geom_friction", "actuator_gainprm"):
        assert np.array_equal(getattr(env.model, name), getattr(fresh, name)), name
