"""st_rl's savers and rollout files: raw envs, policies of its kind, its pickles."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from striderl.compat.st_rl import ActorCritic, DaggerSaver, export_old_trajectories
from striderl.datasets import RolloutDataset, TrajectoryStore, import_old_trajectories
from striderl.datasets.trajectories.codecs import compress_normalized_image, decompress_normalized_image
from striderl.recording import DemonstrationSaver
from striderl.training import OnPolicyRunner

N, LENGTH = 3, 5


class MotionEnv:
    """An env of st_rl's kind: obs [N, 6], privileged [N, 8], and a motion [N, 12] that the policy does not read."""

    num_envs, num_actions, num_obs, device, max_episode_length = N, 2, 6, "cpu", LENGTH

    def __init__(self) -> None:
        self.episode_length_buf = torch.zeros(N, dtype=torch.long)

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def reset(self) -> Any:
        self.episode_length_buf.zero_()
        return self.get_observations()

    def get_observations(self) -> tuple[Tensor, dict[str, Any]]:
        age = self.episode_length_buf.float().unsqueeze(1)
        motion = torch.full((N, 12), 7.0)
        return age.repeat(1, 6), {"observations": {"critic": age.repeat(1, 8) + 0.5, "ref_obs": motion}}

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        self.episode_length_buf += 1
        late = self.episode_length_buf >= LENGTH
        self.episode_length_buf[late] = 0
        obs, extras = self.get_observations()
        log = {"episode": {"length": torch.tensor(5.0)}} if bool(late.any()) else {}
        return obs, actions.sum(1), late, {**extras, "time_outs": late, **log}


class Teacher:
    """A policy in the document's words."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
        self.resets = 0

    def act(self, obs: Tensor, critic_obs: Tensor) -> Tensor:
        self.calls.append(("act", tuple(obs.shape), tuple(critic_obs.shape)))
        return critic_obs[:, :2]

    def act_inference(self, obs: Tensor, critic_obs: Tensor) -> Tensor:
        self.calls.append(("act_inference", tuple(obs.shape), tuple(critic_obs.shape)))
        return critic_obs[:, :2]

    def reset(self, dones: Tensor) -> None:
        self.resets += int(dones.sum())


@pytest.mark.described("st_rl", 2476, "policy supports act(obs, critic_obs), act_inference(obs, critic_obs) and reset.")
@pytest.mark.described("st_rl", 2487, "demo_by_sample chooses between sampling and inference.")
@pytest.mark.described("st_rl", 2475, "env is a simulation environment with step, reset and get_observations.")
@pytest.mark.parametrize("sample", [False, True])
def test_a_raw_env_and_a_policy_of_the_documents_kind(sample: bool, tmp_path: Path) -> None:
    policy = Teacher()
    saver = DemonstrationSaver(
        env=MotionEnv(), policy=policy, save_dir=tmp_path, rollout_storage_length=10, min_timesteps=30, min_episodes=6,
        demo_by_sample=sample,
    )  # fmt: skip
    saver.collect_and_save()
    name = "act" if sample else "act_inference"
    assert set(policy.calls) == {(name, (N, 6), (N, 8))}, "the motion is no part of the policy's vector"
    assert policy.resets >= 6
    store = TrajectoryStore(tmp_path)
    assert len(store) >= 6 and set(store.lengths()) == {LENGTH}
    assert store.read(0)["act"][:, 0].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]


def test_a_module_of_st_rl_sees_its_six_numbers(tmp_path: Path) -> None:
    model = ActorCritic(6, 8, 2, actor_hidden_dims=[8], critic_hidden_dims=[8])
    DemonstrationSaver(MotionEnv(), model, tmp_path, 5, 15, 3).collect_and_save()
    steps = TrajectoryStore(tmp_path).read(0)
    seen = torch.arange(5.0).unsqueeze(1).repeat(1, 6)
    torch.testing.assert_close(steps["act"], model.act_inference(seen).detach())


@pytest.mark.described("rsl_rl", 128, "compress_normalized_image turns floats in [0, 1] into bytes.")
def test_images_of_numpy_and_torch_are_compressed() -> None:
    image = np.array([[0.0, 0.5, 1.0, 1.5]], np.float32)
    found = compress_normalized_image(image)
    assert isinstance(found, np.ndarray) and found.dtype == np.uint8 and found.tolist() == [[0, 128, 255, 255]]
    assert torch.equal(compress_normalized_image(torch.from_numpy(image)), torch.from_numpy(found))
    back = decompress_normalized_image(found)
    assert isinstance(back, np.ndarray) and float(np.abs(back - image.clip(0, 1)).max()) < 1 / 510 + 1e-6
    with pytest.raises(ValueError, match="found NaN"):
        compress_normalized_image(np.array([np.nan], np.float32))


@pytest.mark.described("st_rl", 2522, "Recordings are stored as pickles, with metadata.json.",
                       difference="shards with checksums, which no reader executes; pickles by export")  # fmt: skip
@pytest.mark.parametrize("mapped", [False, True])
def test_recordings_are_written_back_as_pickles_and_read_again(mapped: bool, tmp_path: Path) -> None:
    segments = {"joints": (2,), "depth": (1, 2, 2)}
    old = tmp_path / "old" / "trajectory_0"
    old.mkdir(parents=True)
    mapping = {"obs_disassemble_mapping": {"depth": "normalized_image"}} if mapped else {}
    (tmp_path / "old" / "metadata.json").write_text(json.dumps({"obs_segments": segments, **mapping}))
    count = np.arange(7, dtype=np.float32)
    depth = np.repeat((count * 25).astype(np.uint8)[:, None], 4, axis=1)
    joints, done = np.stack([count, -count], 1), count == 6
    shown: dict[str, Any] = (
        {"obs_joints": joints, "obs_depth": depth}
        if mapped
        else {"observations": np.concatenate([joints, depth.astype(np.float32) / 255], 1)}
    )
    content = {
        **shown,
        "privileged_observations": joints * 10,
        "actions": joints * 2,
        "rewards": count[:, None],
        "dones": done[:, None].astype(np.uint8),
        "values": np.zeros((7, 1), np.float32),
        "timeouts": done,
    }
    (old / "traj_000000_000007.pickle").write_bytes(pickle.dumps(content))
    import_old_trajectories(tmp_path / "old", tmp_path / "ours")
    assert export_old_trajectories(tmp_path / "ours", tmp_path / "back", chunk_length=4) == 1
    files = sorted(path.name for path in (tmp_path / "back" / "trajectory_0").iterdir())
    assert files == ["traj_000000_000004.pickle", "traj_000004_000007.pickle"]
    chunks = [pickle.loads((tmp_path / "back" / "trajectory_0" / name).read_bytes()) for name in files]
    for name, value in content.items():
        np.testing.assert_allclose(np.concatenate([chunk[name] for chunk in chunks]), value, atol=1e-6, err_msg=name)
    metadata = json.loads((tmp_path / "back" / "metadata.json").read_text())
    assert metadata["obs_segments"] == {"joints": [2], "depth": [1, 2, 2]} and metadata["total_timesteps"] == 7
    import_old_trajectories(tmp_path / "back", tmp_path / "again")
    torch.testing.assert_close(TrajectoryStore(tmp_path / "again").read(0), TrajectoryStore(tmp_path / "ours").read(0))


# -- DAgger ------------------------------------------------------------------------------------------------------------


@pytest.mark.described("st_rl", 2439, "The example records by the calls of its loop, with a student out of its folder.")
@pytest.mark.described("st_rl", 2385, "get_transition mixes actions; the teacher's always label the trajectory.")
@pytest.mark.described("st_rl", 2395, "add_transition saves episode infos, policy_reset resets policies.")
def test_the_dagger_example(tmp_path: Path) -> None:
    policy = {"class_name": "ActorCritic", "actor_hidden_dims": [8], "critic_hidden_dims": [8]}
    config = {"num_steps_per_env": 2, "save_interval": 1, "logger": "none", "policy": policy, "algorithm": {}}
    OnPolicyRunner(MotionEnv(), config, tmp_path / "student_policy").learn(1)
    torch.manual_seed(0)
    from striderl.policies import ActorCritic as TeacherModel

    teacher = TeacherModel(6, 8, 2, actor_hidden_dims=[8], critic_hidden_dims=[8])
    saver = DaggerSaver(
        env=MotionEnv(), policy=teacher, save_dir=tmp_path / "dagger_demos",
        training_policy_logdir=tmp_path / "student_policy", teacher_act_prob="exp", action_sample_std=0.1,
        use_critic_obs=False, rollout_storage_length=5, min_timesteps=30, min_episodes=6,
    )  # fmt: skip
    saver.init_traj_handlers()
    assert saver.training_policy is not None, "read from the runner's folder"
    saver.init_storage_buffer()
    for i in range(1000):
        saver.load_latest_training_policy()
        teacher_actions, _, dones, infos, *_ = saver.get_transition()
        saver.add_transition(i, infos)
        assert teacher_actions.shape == (N, 2)
        if dones.any():
            saver.policy_reset(dones)
        if i % 5 == 4:
            saver.save_steps()
        if saver.check_stop():
            break
    saver.print_log()
    saver.close()
    steps = TrajectoryStore(tmp_path / "dagger_demos").read(0)
    seen = torch.arange(5.0).unsqueeze(1).repeat(1, 6)
    torch.testing.assert_close(steps["act"], teacher.act_inference(seen).detach())
    assert saver.episode_means["length"] == 5.0


# -- rollout files -----------------------------------------------------------------------------------------------------


@pytest.mark.described("st_rl", 2948, "RolloutDataset feeds recorded transitions of several envs.")
@pytest.mark.described("st_rl", 2900, "get_batch returns one transition per env, or a sequence.")
@pytest.mark.described("st_rl", 2908, "get_transition_batch returns a transition and infos with time_outs.")
def test_recordings_are_played_back(tmp_path: Path) -> None:
    DemonstrationSaver(MotionEnv(), Teacher(), tmp_path, 5, 30, 6).collect_and_save()
    dataset = RolloutDataset(
        data_dir=tmp_path, num_envs=2, dataset_loops=1, random_shuffle_traj_order=False, keep_latest_n_trajs=0,
        starting_frame_range=[0, 1], device="cpu",
    )  # fmt: skip
    dataset.reset()
    transition, infos = dataset.get_transition_batch()
    assert transition.action.shape == (2, 2) and infos["time_outs"].shape == (2,)
    ages = [float(transition.action[0, 0])]
    for _ in range(4):
        transition, infos = dataset.get_transition_batch()
        ages.append(float(transition.action[0, 0]))
    assert ages == [0.5, 1.5, 2.5, 3.5, 4.5] and bool(transition.done[0]) and bool(infos["time_outs"][0])
    sequence = dataset.get_batch(3)
    assert sequence.action.shape[:2] == (3, 2)
