"""What is watched in `striderl view`, without a browser: hot swaps, controls, looking back, two checkpoints, faults."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from view_cases import config_of, made, opened, save_next

from striderl.cli.terminal import UsageError
from striderl.cli.view.controls import MjlabControls, controls_of, pushed_dofs
from striderl.cli.view.fault import FaultSession, fault_traces
from striderl.cli.view.follow import CheckpointFollower
from striderl.cli.view.track import Moment, Picture, Track
from striderl.collect.trace import EnvTrace, read_trace, write_trace
from striderl.envs.quadruped.base import QuadrupedEnv
from striderl.envs.tasks import make
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_folder import new_run_folder


@pytest.fixture(scope="module")
def walker(tmp_path_factory):
    """A run of the quadruped on terrain with levels."""
    terrain = {"kinds": ("rough",), "levels": 4, "patch_size": 4.0, "border": 1.0}
    return made(tmp_path_factory.mktemp("walker"), "quadruped_rough", terrain=terrain)


@pytest.fixture(scope="module")
def balancer(tmp_path_factory):
    return made(tmp_path_factory.mktemp("balancer"), "cartpole")


@pytest.fixture
def copied(balancer, tmp_path):
    return shutil.copytree(balancer, tmp_path / "run")


# -- following ---------------------------------------------------------------------------------------------------------


def test_a_newer_checkpoint_is_swapped_in_between_two_steps(copied):
    session = opened(copied, checkpoint="last")
    first = session.followers[0].loaded.step
    session.advance()
    assert not session.poll()
    save_next(copied, step=first + 100)
    before = session.tracks[0].moments[-1]
    assert session.poll()
    session.advance()
    after = session.tracks[0].moments[-1]
    assert (before.checkpoint, after.checkpoint) == (first, first + 100)
    assert after.returned[0] > before.returned[0] > 0  # cartpole gives 1 a step: the episode goes on
    assert "of step 164" in dict(session.facts())["policy"]
    assert not session.poll()
    session.close()


def test_best_waits_for_a_better_one_and_a_number_stays(copied):
    best, fixed = CheckpointFollower(copied, "best"), CheckpointFollower(copied, "64")
    save_next(copied, step=200, best=True)
    save_next(copied, step=300)
    assert best.poll() and best.loaded.step == 200
    assert not fixed.poll() and fixed.loaded.step == 64
    assert {"best", "last", "64", "200", "300"} <= set(best.choices())
    assert fixed.follow("last") and fixed.loaded.step == 300


def test_a_run_without_a_checkpoint_yet_is_shown_untrained(copied):
    shutil.move(copied / "checkpoints", copied / "away")
    session = opened(copied, checkpoint="last")
    assert session.followers[0].loaded.step == 0
    session.advance()
    shutil.move(copied / "away", copied / "checkpoints")
    assert session.poll() and session.followers[0].loaded.step == 64
    session.close()


def damage_weights(folder):
    save_next(folder, step=500)
    (path,) = (folder / "checkpoints").glob("step_*500/tensors.safetensors")
    path.write_bytes(path.read_bytes()[:-8] + b"\0\0\0\0\0\0\0\1")


def newer_version(folder):
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "version": 999}))


@pytest.mark.parametrize(
    ("harm", "named", "which"),
    [
        (shutil.rmtree, "is gone", "last"),
        (lambda folder: shutil.rmtree(folder / "checkpoints"), "no checkpoint", "64"),
        (damage_weights, "500", "500"),
        (newer_version, "999", "last"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json", "last"),
        (lambda folder: (folder / "specs.json").unlink(), "specs.json", "last"),
    ],
)
def test_a_folder_that_goes_bad_is_named_and_the_policy_goes_on(copied, harm, named, which):
    session = opened(copied, checkpoint="last")
    session.advance()
    harm(copied)
    if which != "last":
        session.follow(which)
    else:
        session.poll()
    assert named in session.problem
    session.advance()
    assert session.followers[0].loaded.step == 64
    session.close()


def test_a_folder_that_comes_back_is_followed_again(copied, tmp_path):
    session = opened(copied, checkpoint="last")
    copied.rename(tmp_path / "elsewhere")
    session.poll()
    assert session.problem
    (tmp_path / "elsewhere").rename(copied)
    save_next(copied, step=400)
    assert session.poll() and not session.problem
    session.close()


def test_a_wrong_checkpoint_name_is_a_mistake_of_the_command_line(balancer):
    with pytest.raises(UsageError, match="Did you mean 'last'"):
        CheckpointFollower(balancer, "lst")
    with pytest.raises(UsageError, match="no checkpoint of step 3"):
        CheckpointFollower(balancer, "3")


# -- time --------------------------------------------------------------------------------------------------------------


def test_pause_step_and_look_back(balancer):
    session = opened(balancer, seconds=0.2)  # ten steps of 0.02 s
    for _ in range(30):
        session.tick()
    track = session.tracks[0]
    assert len(track.moments) == 10 and track.moments[-1].time == pytest.approx(0.6)
    session.paused, session.back = True, 4
    session.tick()
    assert track.at(session.back).time == pytest.approx(0.52)
    assert track.at(100) is track.moments[0]
    session.step_once()
    assert session.paused and session.back == 0 and track.moments[-1].time == pytest.approx(0.62)
    np.testing.assert_allclose(track.times(), np.linspace(-0.18, 0.0, 10), atol=1e-9)
    assert track.observation("obs", 1).shape == (10, 4)
    assert set(track.rewards(0)) == {"reward"}
    session.close()


def test_what_is_shown_is_what_the_policy_and_the_env_did(walker):
    session = opened(walker, seed=5)
    for _ in range(6):
        session.advance()
    run = CheckpointFollower(walker, "best").loaded
    with make(run.env.task, num_envs=2, settings=run.env.settings) as env, torch.no_grad():
        obs = env.reset(seed=5)
        for _ in range(6):
            like = next(iter(obs.values()))
            distribution, _, _ = run.policy.act(obs, {}, run.policy.settled(like.new_zeros(2)))
            step = env.step(distribution.mode())
            obs = step.obs
        moment = session.tracks[0].moments[-1]
        np.testing.assert_array_equal(moment.pose, env.qpos)
        np.testing.assert_allclose(sum(moment.terms.values()), step.reward.numpy(), rtol=1e-5)
        np.testing.assert_array_equal(moment.obs["command"], obs["command"].numpy())
    session.close()


def test_pictures_are_kept_compressed_and_within_a_budget(monkeypatch):
    monkeypatch.setattr("striderl.cli.view.track.PICTURE_BYTES", 3000)
    track, zero = Track("A", dt=0.1, model=None, max_moments=8), np.zeros(1)
    for number in range(12):
        noise = np.random.default_rng(number).integers(0, 255, (20, 16, 3), np.uint8)
        track.add(
            Moment(
                time=0.1 * number, checkpoint=0, obs={}, actions={}, terms={}, reward=zero, returned=zero, done=zero,
                picture=Picture(noise),
            )
        )  # fmt: skip
    kept = [moment.picture for moment in track.moments]
    assert len(kept) == 8 and [picture is None for picture in kept] == 5 * [True] + 3 * [False]
    np.testing.assert_array_equal(kept[-1].frame(), noise)


# -- controls ----------------------------------------------------------------------------------------------------------


def test_a_push_changes_the_velocity_of_the_picked_robot_alone(walker):
    session = opened(walker)
    env = session.controls.env
    session.pick(1)
    before = env.qvel.copy()
    session.push(1.5, -0.5)
    np.testing.assert_allclose(env.qvel[1, :2] - before[1, :2], (1.5, -0.5))
    np.testing.assert_array_equal(env.qvel[0], before[0])
    with pytest.raises(UsageError, match="0 to 1"):
        session.pick(2)
    session.close()


def test_a_held_command_stays_until_it_is_let_go(walker):
    session = opened(walker)
    session.hold_command(np.array([0.5, 0.0, 0.25]))
    for _ in range(3):
        session.advance()
    session.restart()  # a new episode draws a command of its own
    session.advance()
    session.advance()
    shown = session.tracks[0].moments[-1].obs["command"][0]
    np.testing.assert_allclose(shown, np.array([0.5, 0.0, 0.25]) * 2.0, atol=1e-6)  # observed in units of 0.5 m/s
    session.hold_command(None)
    session.restart()
    session.advance()
    assert not np.allclose(session.controls.command(0), [0.5, 0.0, 0.25])
    session.close()


def test_a_terrain_level_is_kept_against_the_curriculum(walker):
    session = opened(walker)
    assert session.abilities.num_levels > 2
    session.set_level(2)
    env = session.controls.env
    patch = env.ground.origin(np.array([2]), env.levels.column[:1])[0]
    assert np.linalg.norm(env.qpos[0, :2] - patch) < 1.0
    session.controls.set_level(0, 0)  # as the env does at the end of an episode that went badly
    session.advance()
    assert session.controls.level(0) == 2
    with pytest.raises(UsageError, match="terrain level 99"):
        session.set_level(99)
    session.close()


def test_two_checkpoints_begin_alike_and_part(copied):
    save_next(copied, step=200)
    session = opened(copied, checkpoint="64", compare="200")
    for _ in range(4):
        session.advance()
    first, second = session.tracks
    np.testing.assert_array_equal(first.moments[0].obs["obs"], second.moments[0].obs["obs"])
    assert (first.moments[-1].checkpoint, second.moments[-1].checkpoint) == (64, 200)
    assert not np.array_equal(first.moments[-1].obs["obs"], second.moments[-1].obs["obs"])
    session.compare("")
    assert len(session.tracks) == 1
    session.compare("last")
    assert len(session.tracks) == 2 and len(session.tracks[0].moments) == 1
    session.close()


@pytest.mark.parametrize(
    ("task", "model", "push"),
    [("half_cheetah", True, True), ("gymnasium:HalfCheetah-v5", True, True), ("gymnasium:CartPole-v1", False, False)],
)
def test_which_env_has_what(task, model, push, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings about a model there
    with make(task, num_envs=2, filmed=True) as env:
        env.reset(seed=1)
        controls = controls_of(env)
        assert (controls.model is not None, controls.can_push) == (model, push)
        if model:
            pose = controls.pose()
            assert pose.shape == (2, controls.model.nq)
            controls.push(1, 2.0, 0.0)
            env.step(torch.zeros(2, 6))
            assert not np.array_equal(pose[1], controls.pose()[1])
        else:
            with pytest.raises(ValueError, match="pushed"):
                controls.push(0, 1.0, 0.0)
            with pytest.raises(ValueError, match="command"):
                controls.set_command(0, np.zeros(3))
            with pytest.raises(ValueError, match="level"):
                controls.set_level(0, 1)


def test_the_managers_of_mjlab_are_read_and_written():
    """The form of mjlab's env, as its own viewer uses it; the real one is `tests/clients`."""
    command, qvel = torch.zeros(3, 3), torch.zeros(3, 8)
    ranges = SimpleNamespace(lin_vel_x=(-2.0, 3.0), lin_vel_y=(-1.0, 1.0), ang_vel_z=(-0.5, 0.5))
    manager = SimpleNamespace(
        active_terms=["twist"],
        get_command=lambda name: command,
        get_term=lambda name: SimpleNamespace(cfg=SimpleNamespace(ranges=ranges)),
    )
    terrain = SimpleNamespace(
        terrain_levels=torch.zeros(3, dtype=torch.long),
        terrain_types=torch.tensor([0, 1, 1]),
        terrain_origins=torch.arange(24.0).view(4, 2, 3),
        env_origins=torch.zeros(3, 3),
    )
    rewards = SimpleNamespace(get_active_iterable_terms=lambda index: [("upright", [0.5 + index]), ("effort", [-0.1])])
    model = SimpleNamespace(nq=9, njnt=1, jnt_type=np.array([0]))
    inner = SimpleNamespace(
        sim=SimpleNamespace(mj_model=model, data=SimpleNamespace(qpos=torch.ones(3, 9), qvel=qvel)),
        scene=SimpleNamespace(terrain=terrain),
        command_manager=manager,
        reward_manager=rewards,
    )
    controls = MjlabControls(SimpleNamespace(unwrapped=inner, num_envs=3))
    assert [(entry.low, entry.high) for entry in controls.command_entries] == [(-2.0, 3.0), (-1.0, 1.0), (-0.5, 0.5)]
    controls.set_command(1, np.array([1.0, 0.5, 0.0]))
    np.testing.assert_array_equal(controls.command(1), [1.0, 0.5, 0.0])
    controls.push(2, 1.0, -1.0)
    assert qvel[2, :2].tolist() == [1.0, -1.0]
    assert controls.num_levels == 4
    controls.set_level(1, 3)
    assert controls.level(1) == 3 and terrain.env_origins[1].tolist() == [21.0, 22.0, 23.0]
    assert controls.reward_terms(None)["upright"].tolist() == [0.5, 1.5, 2.5]
    assert controls.pose().shape == (3, 9)


def test_hinged_roots_are_not_pushed():
    assert pushed_dofs(SimpleNamespace(njnt=1, jnt_type=np.array([3]))) == ()
    assert pushed_dofs(SimpleNamespace(njnt=0, jnt_type=np.zeros(0))) == ()


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_last_second_before_a_bad_number_is_replayed_with_its_poses(tmp_path, monkeypatch):
    right = QuadrupedEnv.observe

    def bad_once(env, rows):
        found = right(env, rows)
        if env.step_count == 9 and isinstance(rows, slice):
            found["joint_vel"][1] = np.nan
        return found

    monkeypatch.setattr(QuadrupedEnv, "observe", bad_once)
    config = config_of("quadruped")
    run = new_run_folder(config, tmp_path, "x")
    Run(config, run).drive()
    folder = run.path
    (path,) = fault_traces(folder)
    trace = read_trace(path)
    assert np.isnan(trace.obs["joint_vel"][-1]).all() and np.isfinite(trace.pose).all()
    with pytest.raises(UsageError, match=f"--fault 2 is not there; the newest is 1: 1 {path.name.split('.')[0]}"):
        FaultSession(folder, 2, model=lambda: None)
    with make("quadruped", num_envs=1) as env:
        session = FaultSession(folder, 1, model=lambda: env.model)
    track, last = session.tracks[0], len(trace.reward) - 1
    assert track.model is not None and last == 8 and session.back == last
    np.testing.assert_array_equal(track.at(0).pose[0], trace.pose[-1])
    for _ in range(last):
        session.tick()
    assert session.back == 0 and ("shown", f"0 of {last} steps before it") in session.facts()
    session.tick()
    assert session.back == last
    session.step_once()
    assert session.paused and session.back == last - 1 and not session.poll()
    other = FaultSession(folder, 1, model=lambda: SimpleNamespace(nq=3))
    assert other.tracks[0].model is None and "only curves" in other.problem


def test_a_trace_without_poses_has_curves_alone(balancer, tmp_path):
    folder = shutil.copytree(balancer, tmp_path / "run")
    with pytest.raises(UsageError, match="no traces of faults"):
        FaultSession(folder, 1, model=lambda: None)
    trace = EnvTrace(
        obs={"obs": np.array([[1.0], [np.nan]])}, actions={}, reward=np.array([0.5, np.nan]), done=np.zeros(2, bool),
        facts={"component": "obs", "env": 3, "value": "nan", "step": 7, "step_dt": 0.1},
    )  # fmt: skip
    path = write_trace(folder / "faults" / "old.trace.npz", trace)
    assert fault_traces(folder) == [path] and read_trace(path).pose is None
    session = FaultSession(folder, 1, model=lambda: pytest.fail("no model is needed"))
    assert session.tracks[0].model is None
    assert dict(session.facts())["bad number"] == "obs of env 3 was nan at step 7"
    path.write_bytes(b"PK\3\4 nothing")
    with pytest.raises(UsageError, match=r"old\.trace\.npz"):
        FaultSession(folder, 1, model=lambda: None)
