"""The batched MuJoCo base class: contract, failures, saved state, and independence of threads and splits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from mujoco_slider_task import Slider, every_term
from torch import Tensor

from striderl.data import noise
from striderl.envs.mujoco.base import MujocoConfig
from striderl.envs.mujoco.streams import Streams
from striderl.envs.vec_env import Step

VEL = int(mujoco.mjtStage.mjSTAGE_VEL)


@pytest.fixture(autouse=True)
def _mujoco_writes_its_log_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def config(num_envs: int = 2, **settings: Any) -> MujocoConfig:
    return MujocoConfig(
        **{"num_envs": num_envs, "num_threads": 1, "frame_skip": 2, "max_episode_length": 20, **settings}
    )


def throttle(*values: float) -> Tensor:
    return torch.tensor(values).unsqueeze(1)


def actions_of(num_envs: int, num_steps: int) -> Tensor:
    return torch.rand(num_steps, num_envs, 1, generator=torch.Generator().manual_seed(5)) * 2 - 1


def same(left: Step, right: Step, rows: slice = slice(None)) -> bool:
    pairs = [(left.reward, right.reward), (left.terminated, right.terminated), (left.truncated, right.truncated)]
    pairs += [(left.obs[name], right.obs[name]) for name in left.obs]
    pairs += [(left.final_obs[name], right.final_obs[name]) for name in left.final_obs]
    pairs += [(left.info[name], right.info[name]) for name in ("valid", "pushed")]
    return all(torch.equal(a, b[rows]) for a, b in pairs)


# -- one step by hand ------------------------------------------------------------------------------------------------


def test_two_substeps_by_hand():
    env = Slider(config(2))
    env.reset(seed=0)
    step = env.step(throttle(1.0, -0.5))
    # at full throttle 0.05 m/s per substep: v = 0.05 then 0.10, x = 0.01 · (0.05 + 0.10) = 0.0015
    assert step.obs["state"][0].tolist() == pytest.approx([0.0015, 0.10])
    assert step.obs["state"][1].tolist() == pytest.approx([-0.00075, -0.05])
    # reward = speed - 0.5 · action²: 0.10 - 0.5, and -0.05 - 0.125
    assert step.reward.tolist() == pytest.approx([-0.4, -0.175])
    assert step.info["log"]["reward/speed"] == pytest.approx(0.025)
    assert step.info["log"]["reward/effort"] == pytest.approx(-0.3125)
    assert step.info["pushed"].tolist() == [1.0, 0.5]
    assert step.info["valid"].tolist() == [True, True]
    assert (step.reward.dtype, step.terminated.dtype, step.obs["state"].dtype) == (
        torch.float32,
        torch.bool,
        torch.float32,
    )
    assert env.step_dt == pytest.approx(0.02)


def test_derived_fields_lag_a_substep_unless_a_stage_is_asked_for():
    late, current, kept = Slider(config(1)), Slider(config(1), stage=VEL), Slider(config(1), stage=VEL, persistent=True)
    seen = []
    for env in (late, current, kept):
        env.reset(seed=0)
        seen.append(float(env.step(throttle(1.0)).obs["place"][0, 0]))
    # x after the first of the two substeps is 0.0005, after both 0.0015
    assert seen == pytest.approx([0.0005, 0.0015, 0.0015])


def test_the_end_of_an_episode_is_seen_and_the_next_one_begins():
    env = Slider(config(2, max_episode_length=0))
    env.reset(seed=0)
    for _ in range(200):
        step = env.step(throttle(1.0, 0.0))
        if step.done.any():
            break
    assert step.terminated.tolist() == [True, False]
    assert not step.truncated.any()
    assert step.final_obs["state"][0, 0] > 0.5
    assert step.obs["state"][0].tolist() == [0.0, 0.0]
    assert torch.equal(step.obs["state"][1], step.final_obs["state"][1])
    length = step.info["log"]["episode/length"]
    assert step.info["log"]["episode/pushed"] == pytest.approx(length)
    assert step.info["log"]["episode/reward/effort"] == pytest.approx(-0.5 * length)
    log = step.info["log"]
    assert log["episode/return"] == pytest.approx(log["episode/reward/speed"] + log["episode/reward/effort"])
    assert env.ended == [0]
    assert env.episode_length_buf.tolist() == [0, int(length)]
    # the next episode's sums start from nothing
    env.episode_length_buf = torch.zeros(2, dtype=torch.int64)
    assert env.reward_terms.sums[:, 0].tolist() == [0.0, 0.0]


def test_time_limit_truncates_and_the_clock_can_be_set():
    env = Slider(config(3, max_episode_length=5))
    env.reset(seed=0)
    env.episode_length_buf = torch.tensor([0, 3, 4])
    ends = [env.step(throttle(0.0, 0.0, 0.0)).truncated.tolist() for _ in range(5)]
    assert ends == [
        [False, False, True],
        [False, True, False],
        [False, False, False],
        [False, False, False],
        [True, False, False],
    ]


def test_no_limit_never_truncates():
    env = Slider(config(1, max_episode_length=0))
    env.reset(seed=0)
    assert not any(env.step(throttle(0.0)).done.any() for _ in range(50))


def test_reset_envs_touches_only_the_masked_ones():
    env = Slider(config(3), start=0.1)
    first = env.reset(seed=4)
    moved = env.step(throttle(1.0, 1.0, 1.0)).obs
    obs = env.reset_envs(torch.tensor([False, True, False]))
    assert torch.equal(obs["state"][[0, 2]], moved["state"][[0, 2]])
    assert obs["state"][1, 1] == 0.0
    assert obs["state"][1, 0] != first["state"][1, 0], "episode 1 has other numbers than episode 0"
    assert env.episode_length_buf.tolist() == [1, 0, 1]
    assert torch.equal(env.reset_envs(torch.zeros(3, dtype=torch.bool))["state"], obs["state"])


def test_seeds_restart_the_streams_and_resets_go_on():
    env = Slider(config(4), start=0.1)
    first, second, again = env.reset(seed=4), env.reset(), env.reset(seed=4)
    assert torch.equal(first["state"], again["state"])
    assert not torch.equal(first["state"], second["state"])
    assert not torch.equal(first["state"], env.reset(seed=5)["state"])
    assert len(set(first["state"][:, 0].tolist())) == 4, "every env has a stream of its own"
    unseeded = Slider(config(4), start=0.1).reset()
    assert torch.equal(unseeded["state"], env.reset(seed=0)["state"])


def test_what_was_handed_out_never_changes():
    env = Slider(config(4, max_episode_length=7), every_term(), start=0.4)
    handed: list[tuple[Tensor, Tensor]] = []

    def keep(tensors: Any) -> None:
        handed.extend((tensor, tensor.clone()) for tensor in tensors)

    keep(env.reset(seed=0).values())
    for number, action in enumerate(actions_of(4, 40)):
        step = env.step(action)
        keep([*step.obs.values(), *step.final_obs.values(), step.reward, step.terminated, step.truncated])
        keep([step.info["valid"], step.info["pushed"], env.episode_length_buf])
        if number == 20:
            env.qvel[1] = np.nan
        if number == 25:
            keep(env.reset_envs(torch.tensor([True, False, True, False])).values())
    assert all(torch.equal(tensor, copy) for tensor, copy in handed)


# -- the same data whatever the machine does -------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_threads_and_splits_do_not_change_the_data(persistent: bool):
    settings: dict[str, Any] = {"start": 0.4, "stage": VEL, "persistent": persistent}

    def build(num_envs: int, **more: Any) -> Slider:
        return Slider(config(num_envs, max_episode_length=9, **more), every_term(), **settings)

    whole, threaded = build(6), build(6, num_threads=3)
    halves = [build(3), build(3, first_env_index=3)]
    for env in (whole, threaded, *halves):
        env.reset(seed=11)
    ended = 0
    for action in actions_of(6, 60):
        reference = whole.step(action)
        ended += int(reference.done.sum())
        assert same(threaded.step(action), reference)
        assert same(halves[0].step(action[:3]), reference, slice(0, 3))
        assert same(halves[1].step(action[3:]), reference, slice(3, 6))
    assert ended >= 36


def leaves(state: Any) -> list[Any]:
    if isinstance(state, dict):
        return [leaf for value in state.values() for leaf in leaves(value)]
    return [state]


@pytest.mark.slow
@pytest.mark.parametrize(("persistent", "stage"), [(False, 0), (False, VEL), (True, VEL)])
@pytest.mark.parametrize("used", [False, True], ids=["new object", "used object"])
def test_two_hundred_steps_are_one_hundred_and_a_save_and_one_hundred(persistent: bool, stage: int, used: bool):
    def build() -> Slider:
        return Slider(config(3, max_episode_length=30), every_term(), start=0.4, stage=stage, persistent=persistent)

    env, actions = build(), actions_of(3, 200)
    env.reset(seed=2)
    for action in actions[:100]:
        last = env.step(action)
    state = env.state_dict()
    assert {type(leaf) for leaf in leaves(state)} <= {Tensor, int, float, str}
    other = build()
    if used:
        other.reset(seed=99)
        for action in actions[:13]:
            other.step(action)
    obs = other.load_state_dict(state)
    assert all(torch.equal(obs[name], last.obs[name]) for name in obs)
    assert torch.equal(other.episode_length_buf, env.episode_length_buf)
    ended = 0
    for action in actions[100:]:
        reference, copy = env.step(action), other.step(action)
        assert same(copy, reference)
        assert copy.info["log"] == reference.info["log"]
        ended += int(reference.done.sum())
    assert ended >= 9
    for name, value in env.randomized.items():
        assert np.array_equal(value, other.randomized[name]), name


def test_a_saved_state_does_not_move_with_the_env():
    env = Slider(config(2), every_term())
    env.reset(seed=0)
    state = env.state_dict()
    before = [leaf.clone() for leaf in leaves(state) if isinstance(leaf, Tensor)]
    env.step(throttle(1.0, 1.0))
    assert all(torch.equal(a, b) for a, b in zip(before, (x for x in leaves(state) if isinstance(x, Tensor))))


def test_streams_draw_ahead_without_anybody_noticing():
    streams = Streams(5, first_env_index=100)
    streams.restart(3)
    rng = np.random.default_rng(0)
    for _ in range(50):
        ids = np.flatnonzero(rng.random(5) < 0.9)
        streams.episode[ids] += rng.integers(0, 90, len(ids))
        asked = {"seed": 3, "env_index": 100 + ids, "occasion": streams.episode[ids], "count": 3}
        assert np.array_equal(streams.uniform("a", ids, 3), noise.uniform("a", **asked))
        assert np.array_equal(streams.normal("a", ids, 3), noise.normal("a", **asked))
    nobody = np.zeros(0, np.int64)
    assert streams.uniform("a", nobody, 3).shape == streams.normal("a", nobody, 3, occasion=7).shape == (0, 3)


# -- simulations that fail -------------------------------------------------------------------------------------------


def nan_velocity(env: Slider) -> Callable[[], None]:
    env.qvel[1, 0] = np.nan
    return lambda: None


def huge_position(env: Slider) -> Callable[[], None]:
    env.qpos[1, 2] = 1e12  # beyond MuJoCo's limit: it puts the simulation back to the default state by itself
    return lambda: None


def mujoco_error(env: Slider) -> Callable[[], None]:
    kinds = env.simulation.batch.expand("eq_type")
    kinds[1] = 99  # an unknown kind of constraint: mj_step raises an error
    env.simulation.batch.bind("eq_active")[1] = 1

    def repair() -> None:
        kinds[1] = env.model.eq_type

    return repair


@pytest.mark.parametrize("breakage", [nan_velocity, huge_position, mujoco_error])
def test_a_failed_simulation_ends_alone(breakage: Callable[[Slider], Callable[[], None]]):
    env, healthy = Slider(config(3), start=0.1), Slider(config(3), start=0.1)
    for each in (env, healthy):
        each.reset(seed=0)
        before = each.step(throttle(1.0, 1.0, 1.0))
    repair = breakage(env)
    step, reference = env.step(throttle(0.5, 0.5, 0.5)), healthy.step(throttle(0.5, 0.5, 0.5))
    assert step.info["valid"].tolist() == [True, False, True]
    assert step.terminated.tolist() == [False, True, False]
    assert not step.truncated.any()
    assert step.reward[1] == 0.0
    assert torch.equal(step.final_obs["state"][1], before.obs["state"][1]), "the last observation that was real"
    assert step.obs["state"][1, 1] == 0.0, "a new episode"
    assert env.num_failed == 1
    assert step.info["log"]["simulation/failed"] == 1.0
    for row in (0, 2):
        assert step.reward[row] == reference.reward[row]
        assert torch.equal(step.obs["state"][row], reference.obs["state"][row])
    repair()
    after = env.step(throttle(0.5, 0.5, 0.5))
    assert after.info["valid"].all()
    assert torch.isfinite(after.obs["state"]).all()
    assert env.num_failed == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_action_that_is_no_number_ends_its_env_alone(value: float):
    env = Slider(config(2))
    env.reset(seed=0)
    step = env.step(throttle(value, 1.0))
    assert step.info["valid"].tolist() == [False, True]
    assert step.terminated.tolist() == [True, False]
    assert step.reward.tolist() == pytest.approx([0.0, -0.4])
    assert env.step(throttle(1.0, 1.0)).info["valid"].all()


def test_an_env_that_always_fails_never_raises():
    env = Slider(config(2))
    env.reset(seed=0)
    env.simulation.batch.expand("eq_type")[0] = 99
    for number in range(5):
        env.simulation.batch.bind("eq_active")[0] = 1
        step = env.step(throttle(1.0, 1.0))
        assert step.info["valid"].tolist() == [False, True]
        assert env.num_failed == number + 1


# -- errors teach ----------------------------------------------------------------------------------------------------


def test_wrong_calls_are_told_what_is_wanted():
    env = Slider(config(2))
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.step(throttle(0.0, 0.0))
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.state_dict()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"wants actions \[2, 1\], found \[3, 1\]"):
        env.step(throttle(0.0, 0.0, 0.0))
    with pytest.raises(TypeError, match="wants a tensor"):
        env.step({"a": throttle(0.0, 0.0)})
    with pytest.raises(ValueError, match=r"bool mask \[2\]"):
        env.reset_envs(torch.ones(2))
    with pytest.raises(ValueError, match=r"wants \[2\] numbers"):
        env.episode_length_buf = torch.zeros(3)
    with pytest.raises(ValueError, match="two state arrays named 'pushed'"):
        env.state_array("pushed")
    with pytest.raises(ValueError, match="num_envs and frame_skip"):
        MujocoConfig(num_envs=0)
    with pytest.raises(ValueError, match="max_episode_length"):
        MujocoConfig(max_episode_length=-1)


def test_a_task_that_breaks_its_word_is_told_where(monkeypatch: pytest.MonkeyPatch):
    env = Slider(config(2))
    monkeypatch.setattr(env, "observe", lambda rows: {"state": np.zeros((2, 2))})
    with pytest.raises(KeyError, match=r"Slider\.observe has no component 'place'"):
        env.reset(seed=0)
    monkeypatch.setattr(env, "observe", lambda rows: {"state": np.zeros((2, 3)), "place": np.zeros((2, 3))})
    with pytest.raises(ValueError, match=r"'state' wants \[2, 2\], found \[2, 3\]"):
        env.reset(seed=0)
    monkeypatch.undo()
    env.reset(seed=0)
    monkeypatch.setattr(env, "rewards", lambda: {"speed": np.zeros(2), "efort": np.zeros(2)})
    with pytest.raises(KeyError, match=r"reward_weights has no weight 'efort'\. Did you mean 'effort'"):
        env.step(throttle(0.0, 0.0))
    monkeypatch.setattr(env, "rewards", lambda: {"speed": np.zeros(2)})
    with pytest.raises(KeyError, match="has no term 'effort'"):
        env.step(throttle(0.0, 0.0))


def test_a_state_that_does_not_fit_is_refused():
    env = Slider(config(2))
    env.reset(seed=0)
    state = env.state_dict()
    with pytest.raises(ValueError, match="state rows of shape"):
        Slider(config(3)).load_state_dict(state)
    with pytest.raises(ValueError, match="fields"):
        Slider(config(2), every_term()).load_state_dict(state)
    with pytest.raises(ValueError, match="saved from task 'Other'"):
        env.load_state_dict({**state, "task": "Other"})


def test_action_spec_comes_from_the_motors():
    env = Slider(config(2))
    assert (env.action_spec.shape, env.action_spec.names) == ((1,), ("motor",))
    assert (env.action_spec.low, env.action_spec.high) == ((-1.0,), (1.0,))
    assert dict(env.info_spec) == env.info_spec and set(env.info_spec) == {"valid", "pushed"}
    env.reset(seed=0)
    wanting_gradients = throttle(1.0, 1.0).requires_grad_()
    assert torch.isfinite(env.step(wanting_gradients).reward).all()
