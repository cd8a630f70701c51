"""Students from folders that a training writes to at the same time, and the old library's examples, corrected."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from striderl.checkpoint.store import CheckpointStore
from striderl.data.actions import BoxSpec
from striderl.datasets.trajectories.store import TrajectoryStore
from striderl.envs.tasks import make
from striderl.policies.policy import Policy
from striderl.policies.presets.base import ActorCritic
from striderl.policies.settings import PolicySettings
from striderl.recipes.table import recipe
from striderl.recording.dagger import DaggerSaver
from striderl.recording.demonstrations import DemonstrationSaver
from striderl.training.demonstrations import RunStudents
from striderl.training.experiment.loading import build_run_policy
from striderl.training.experiment.run_folder import RunFolder, run_layout, write_specs
from striderl.training.experiment.runner_checkpoints import save_state


@pytest.fixture(scope="module")
def env():
    return make("pendulum", num_envs=4)


class TinyRun:
    """The folder of a run, as a training leaves it, without the training."""

    def __init__(self, path: Path, env) -> None:
        config = recipe("pendulum", "ppo")
        settings = PolicySettings(normalize_obs=False, actor_hidden_dims=(4,), critic_hidden_dims=(4,))
        self.config = replace(config, policy=settings)
        self.path, self.env = path, env
        path.mkdir()
        RunFolder(path).write_config(self.config)
        self.store = CheckpointStore(RunFolder(path).checkpoints, keep_last=1)
        self.layout = run_layout(env.obs_spec, env.action_spec, normalize_obs=False)

    def write_specs(self) -> None:
        write_specs(self.path, self.env.obs_spec, self.env.action_spec, 0.05)

    def policy(self, value: float) -> Policy:
        """A policy whose parameters are all one number."""
        policy = build_run_policy(self.config, self.env.obs_spec, self.env.action_spec)
        for parameter in policy.parameters():
            torch.nn.init.constant_(parameter, value)
        return policy

    def save(self, iteration: int) -> Path:
        state = {"algorithm": {"policy": self.policy(iteration / 1000).state_dict()}, "iteration": iteration}
        return self.store.save(state, step=100 * iteration, layout=self.layout)


def value_of(policy) -> float:
    (value,) = {round(float(number), 6) for parameter in policy.parameters() for number in parameter.detach().flatten()}
    return value


def test_the_newest_student_of_a_run(tmp_path, env):
    students = RunStudents(env)
    assert students(tmp_path / "run", "") is None, "no folder yet"
    run = TinyRun(tmp_path / "run", env)
    assert students(run.path, "") is None, "no specs yet"
    run.write_specs()
    assert students(run.path, "") is None, "no checkpoint yet"
    run.save(5)
    first = students(run.path, "")
    assert first is not None and first.iteration == 5 and value_of(first.policy) == 0.005
    assert students(run.path, first.name) is None, "nothing newer"
    damaged = run.save(6)
    (damaged / "tensors.safetensors").write_bytes(b"cut off")
    assert students(run.path, first.name) is None, "one that cannot be read is passed over"
    run.save(7)
    second = students(run.path, first.name)
    assert second is not None and second.iteration == 7 and value_of(second.policy) == 0.007
    assert value_of(first.policy) == 0.005, "a student is not changed behind somebody's back"


@pytest.mark.slow
def test_a_run_that_saves_and_deletes_all_the_time_is_read_without_an_error(tmp_path, env):
    run = TinyRun(tmp_path / "run", env)
    run.write_specs()
    finished = threading.Event()

    def train():
        for iteration in range(1, 31):
            run.save(iteration)
        finished.set()

    thread = threading.Thread(target=train)
    thread.start()
    students, seen, name = RunStudents(env), [], ""
    while not finished.is_set() or not seen or seen[-1] != 30:
        found = students(run.path, name)
        if found is not None:
            assert value_of(found.policy) == pytest.approx(found.iteration / 1000), "whole, never half of another"
            seen.append(found.iteration)
            name = found.name
    thread.join()
    assert seen == sorted(set(seen)) and len(seen) > 1, "each at most once, always forward"


def test_students_of_a_runners_log_dir(tmp_path, env):
    run = TinyRun(tmp_path / "shape", env)
    students = RunStudents(env, run.policy(0.0))
    log_dir = tmp_path / "logs"
    assert students(log_dir, "") is None
    save_state(log_dir / "model_9", {"model_state_dict": run.policy(0.09).state_dict()}, iteration=9)
    (log_dir / ".tmp_model_100").mkdir()
    found = students(log_dir, "")
    assert found is not None and (found.iteration, found.name) == (9, "model_9") and value_of(found.policy) == 0.09
    (log_dir / "model_10.pt").write_bytes(b"PK\x03\x04 is being written")
    assert students(log_dir, "model_9") is None
    torch.save({"model_state_dict": run.policy(0.1).state_dict(), "iter": 10}, log_dir / "model_10.pt")
    found = students(log_dir, "model_9")
    assert found is not None and found.iteration == 10 and value_of(found.policy) == 0.1
    assert students(log_dir, "model_10.pt") is None


def test_a_log_dir_says_what_its_student_is_or_is_told(tmp_path, env):
    train_cfg = {
        "runner": {"policy_class_name": "ActorCritic", "algorithm_class_name": "PPO", "num_steps_per_env": 4},
        "algorithm": {},
        "policy": {"actor_hidden_dims": [4], "critic_hidden_dims": [4], "init_noise_std": 1.0},
    }
    model = RunStudents(env, train_cfg=train_cfg).model(tmp_path)
    save_state(tmp_path / "model_3", {"model_state_dict": model.state_dict()}, iteration=3)
    with pytest.raises(ValueError, match="does not say what its student is made of"):
        RunStudents(env)(tmp_path, "")
    (tmp_path / "config.json").write_text(json.dumps(train_cfg))
    found = RunStudents(env)(tmp_path, "")
    assert found is not None and found.iteration == 3
    assert all(torch.equal(one, two) for one, two in zip(found.policy.parameters(), model.parameters()))
    with pytest.raises(ValueError, match="give one"):
        RunStudents(env, model, train_cfg)


# -- the old library's own examples ------------------------------------------------------------------------------------


def test_the_old_dagger_example(tmp_path, env):
    """As in the reference, with what it left out: the teacher, saving, and how students are read."""
    run = TinyRun(tmp_path / "student_policy", env)
    run.write_specs()
    run.save(2)
    assert isinstance(env.action_spec, BoxSpec)
    teacher = ActorCritic(env.obs_spec.size, env.obs_spec.size, 1, actor_hidden_dims=[4], critic_hidden_dims=[4])

    saver = DaggerSaver(
        env=env,
        policy=teacher,
        save_dir=tmp_path / "dagger_demos",
        training_policy_logdir=tmp_path / "student_policy",
        load_student=RunStudents(env),
        teacher_act_prob="exp",
        action_sample_std=0.1,
        log_to_tensorboard=True,
        min_timesteps=800,
        min_episodes=4,
    )

    saver.init_traj_handlers()
    for i in range(1000):
        teacher_actions, rewards, dones, infos, obs, critic_obs = saver.get_transition()
        saver.add_transition(i, infos)
        if dones.any():
            saver.policy_reset(dones)
            saver.save_steps()
            if saver.check_stop():
                break
    saver.print_log()
    saver.close()

    assert (
        teacher_actions.shape == (4, 1) and rewards.shape == (4,) and set(obs) == set(env.obs_spec) == set(critic_obs)
    )
    store = TrajectoryStore(tmp_path / "dagger_demos")
    assert store.lengths() == [200, 200, 200, 200] and i == 199, "pendulum's episodes, one of each env"
    assert saver.training_policy_iteration == 2


def test_the_old_demonstration_saver(tmp_path, env):
    """`DemonstrationSaver` as the reference describes it: positional arguments, one call."""
    policy = ActorCritic(env.obs_spec.size, env.obs_spec.size, 1, actor_hidden_dims=[4], critic_hidden_dims=[4])
    saver = DemonstrationSaver(env, policy, str(tmp_path), 64, 800, 4, True, False, None, False)
    saver.collect_and_save(config={"env": "pendulum"})
    store = TrajectoryStore(tmp_path)
    assert store.num_steps == 800 and len(store) == 4 and store.about["config"] == {"env": "pendulum"}
