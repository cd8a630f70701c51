"""DAgger on disk: the student acts, the teacher's answer is what is recorded, and newer students take over."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from saver_cases import CountingEnv, ended
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from striderl.data.actions import DiscreteSpec
from striderl.datasets.trajectories.store import TrajectoryStore
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import Remember
from striderl.recording.dagger import DaggerSaver, Student


def policy_of(env: CountingEnv, seed: int, *, privileged: bool = False, memory: bool = False) -> Policy:
    torch.manual_seed(seed)
    config = PolicyConfig(
        actor_obs=("place", "truth") if privileged else ("place",),
        actor_hidden_dims=(8,),
        critic_hidden_dims=(8,),
        actor=(Remember(hidden_size=4),) if memory else (),
    )
    return Policy(env.obs_spec, env.action_spec, config)


def played(policy: Policy, steps) -> torch.Tensor:
    """What a policy does in an episode, step by step, from an empty memory."""
    state, actions = policy.initial_state(1), []
    with torch.no_grad():
        for row in range(len(steps["rew"])):
            obs = {name: value[row : row + 1] for name, value in steps["obs"].items()}
            distribution, state, _ = policy.act(obs, state, policy.settled(torch.zeros(1)))
            actions.append(distribution.mode())
    return torch.cat(actions)


class Shelf:
    """A folder of students that a test fills; remembers what it was asked."""

    def __init__(self, *students: Student) -> None:
        self.students = list(students)
        self.asked: list[str] = []

    def __call__(self, folder: Path, known: str) -> Student | None:
        self.asked.append(known)
        newest = self.students[-1] if self.students else None
        return None if newest is None or newest.name == known else newest


def saver_for(tmp_path: Path, shelf: Shelf, *, teacher: Policy | None = None, num_envs: int = 3, **settings):
    env = CountingEnv(num_envs)
    teacher = policy_of(env, 1, privileged=True) if teacher is None else teacher
    settings = {"rollout_storage_length": 8, **settings}
    return DaggerSaver(
        env, teacher, tmp_path / "demos", training_policy_logdir=tmp_path / "run", load_student=shelf, **settings
    )


def run_for(saver: DaggerSaver, num_steps: int) -> list[dict]:
    """Take so many steps of each env and return the trajectories."""
    for step in range(num_steps):
        if step % saver.rollout_storage_length == 0:
            saver.check_stop()
        saver.collect_step(step)
    saver.close()
    store = TrajectoryStore(saver.save_dir)
    return [store.read(index) for index in range(len(store))]


ENV = CountingEnv()


def test_labels_are_always_the_teachers(tmp_path):
    teacher, student = policy_of(ENV, 1, privileged=True), policy_of(ENV, 2)
    shelf = Shelf(Student(student, 7, "a"))
    saver = saver_for(tmp_path, shelf, teacher=teacher, teacher_act_prob=0.0, action_sample_std=0.05)
    recorded = run_for(saver, 40)
    assert len(recorded) == len(ended(3, 40))
    away = []
    for steps in recorded:
        assert torch.allclose(steps["act"], played(teacher, steps), atol=1e-6), "the label, of what the student saw"
        assert not steps["policy"]["acted"].any()
        away.append(steps["policy"]["executed"] - played(student, steps))
    noise = torch.cat(away).flatten()
    # 150 to 200 numbers: the mean is within 0.012, the width within 15 % of 0.05, each at more than three sigma
    assert abs(noise.mean()) < 0.02 and 0.04 < noise.std() < 0.06
    done = torch.cat([steps["policy"]["executed"] for steps in recorded])
    env_saw = torch.cat(saver.env.executed)
    assert all(any(torch.equal(row, other) for other in env_saw) for row in done), "what the env was given"


def test_without_a_width_the_student_acts_by_its_own_distribution(tmp_path):
    student = policy_of(ENV, 2)
    runs = []
    for name in ("one", "two"):
        saver = saver_for(tmp_path / name, Shelf(Student(student, 0, "a")), teacher_act_prob=0.0, seed=4)
        runs.append(run_for(saver, 16))
    for one, two in zip(*runs):
        assert torch.equal(one["policy"]["executed"], two["policy"]["executed"]), "the seed decides"
    spread = torch.cat([steps["policy"]["executed"] - played(student, steps) for steps in runs[0]])
    assert spread.std() > 0.3, "a fresh policy's own std is 1"


def test_the_teacher_acts_in_whole_episodes(tmp_path):
    teacher, student = policy_of(ENV, 1, privileged=True), policy_of(ENV, 2)
    saver = saver_for(tmp_path, Shelf(Student(student, 0, "a")), teacher=teacher, teacher_act_prob=0.5, num_envs=8)
    recorded = run_for(saver, 60)
    shares = [steps["policy"]["acted"].float().mean().item() for steps in recorded]
    assert set(shares) == {0.0, 1.0}, "drawn once per episode"
    assert 0.3 < sum(shares) / len(shares) < 0.7 and len(shares) > 60
    for steps, share in zip(recorded, shares):
        assert torch.equal(steps["policy"]["executed"], steps["act"]) == (share == 1.0)
    assert saver.use_teacher_act_mask.shape == (8,) and saver.use_teacher_act_mask.dtype == torch.bool


def test_before_there_is_a_student_the_teacher_begins(tmp_path, caplog):
    teacher = policy_of(ENV, 1, privileged=True, memory=True)
    shelf = Shelf()
    saver = saver_for(tmp_path, shelf, teacher=teacher, teacher_act_prob=0.0)
    for step in range(16):
        saver.collect_step(step)
    assert saver.training_policy is None and saver.use_teacher_act_mask.all()
    assert caplog.text.count("there is no student in") == 1 and str(tmp_path / "run") in caplog.text
    shelf.students.append(Student(policy_of(ENV, 2, memory=True), 3, "a"))
    assert saver.load_latest_training_policy() and not saver.load_latest_training_policy()
    recorded = run_for(saver, 40)
    shares = [steps["policy"]["acted"].float().mean().item() for steps in recorded]
    assert set(shares) == {0.0, 1.0}, "episodes that the teacher began are ended by it"
    assert all(torch.allclose(steps["act"], played(teacher, steps), atol=1e-6) for steps in recorded), (
        "the teacher's memory goes on through the change"
    )


def test_a_recurrent_student_forgets_where_episodes_end(tmp_path):
    student = policy_of(ENV, 2, memory=True)
    saver = saver_for(tmp_path, Shelf(Student(student, 0, "a")), teacher_act_prob=0.0, action_sample_std=1e-6)
    for steps in run_for(saver, 30):
        assert torch.allclose(steps["policy"]["executed"], played(student, steps), atol=1e-4)


def test_a_newer_student_takes_over_and_the_teacher_steps_back(tmp_path):
    first, second = policy_of(ENV, 2), policy_of(ENV, 3)
    shelf = Shelf(Student(first, 0, "model_0"))
    saver = saver_for(tmp_path, shelf, update_times_scale=10, action_sample_std=1e-6)
    assert not saver.check_stop() and saver.training_policy_iteration == 0
    assert float(saver.teacher_part.probability) == 1.0
    assert not saver.check_stop() and saver.training_policy is first
    shelf.students.append(Student(second, 20, "model_20"))
    saver.check_stop()
    # 'exp': (1 - 1 / 10)^20 = 0.1216
    assert saver.training_policy is second and saver.training_policy_iteration == 20
    assert float(saver.teacher_part.probability) == pytest.approx(0.1216, abs=1e-4)
    assert shelf.asked == ["", "model_0", "model_0"]
    recorded = [steps for steps in run_for(saver, 24) if not steps["policy"]["acted"].any()]
    assert recorded and all(
        torch.allclose(steps["policy"]["executed"], played(second, steps), atol=1e-4) for steps in recorded
    )


def test_the_numbers_of_episodes_are_logged(tmp_path):
    saver = saver_for(tmp_path, Shelf(Student(policy_of(ENV, 2), 12, "a")), log_to_tensorboard=True)
    saver.init_traj_handlers()
    assert saver.print_log().total_timesteps == 0 and saver.episode_means == {}, "nothing yet is no error"
    for number, largest in enumerate([1.0, 5.0, 3.0]):
        saver.get_transition()
        saver.add_transition(number, {"log": {"reward_max": largest, "length": torch.tensor(largest)}})
    saver.rollout_episode_infos.append({"length": float("nan"), "rare_min": -1.0})
    saver.print_log()
    assert saver.episode_means == {"reward_max": 5.0, "length": 3.0, "rare_min": -1.0}
    saver.close()
    events = EventAccumulator(str(saver.save_dir / "tensorboard")).Reload()
    (scalar,) = events.Scalars("Episode/reward_max")
    assert (scalar.step, scalar.value) == (12, 5.0)
    about = TrajectoryStore(saver.save_dir).about
    assert about["action_sample_std"] == 0.0 and about["training_policy_logdir"].endswith("run")


def test_students_that_do_not_fit_are_refused(tmp_path):
    privileged = policy_of(ENV, 2, privileged=True)
    with pytest.raises(ValueError, match="the student's actor reads 'truth', which only a critic may see"):
        saver_for(tmp_path, Shelf(Student(privileged, 0, "a"))).check_stop()
    other = copy.copy(ENV)
    other.obs_spec = ENV.obs_spec.from_segments({"places": 3})
    stranger = Policy(other.obs_spec, ENV.action_spec, PolicyConfig(actor_hidden_dims=(4,), critic_hidden_dims=(4,)))
    with pytest.raises(KeyError, match="Did you mean 'place'"):
        saver_for(tmp_path, Shelf(Student(stranger, 0, "a"))).check_stop()
    with pytest.raises(TypeError, match=r"load_student.*RunStudents\(env\)"):
        DaggerSaver(ENV, policy_of(ENV, 1), tmp_path, training_policy_logdir=tmp_path)
    with pytest.raises(ValueError, match="set use_critic_obs=True"):
        saver_for(tmp_path, Shelf(), use_critic_obs=False)
    with pytest.raises(ValueError, match="not negative"):
        saver_for(tmp_path, Shelf(), action_sample_std=-1.0)
    with pytest.raises(ValueError, match="probability"):
        saver_for(tmp_path, Shelf(), teacher_act_prob=1.5)
    choosing = CountingEnv()
    choosing.action_spec = DiscreteSpec(n=2)
    with pytest.raises(TypeError, match="real-valued"):
        DaggerSaver(
            choosing,
            policy_of(ENV, 1),
            tmp_path,
            training_policy_logdir=tmp_path,
            load_student=Shelf(),
            action_sample_std=0.1,
        )
