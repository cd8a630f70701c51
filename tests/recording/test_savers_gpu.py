"""Recording on a GPU and reading it back there: the same numbers as on the CPU, with policies, clips and datasets."""

from __future__ import annotations

import pytest
import torch
from saver_cases import CountingEnv, ended

from striderl.data import tree
from striderl.datasets.motion.amp_loader import AMPLoader, AMPLoaderConfig
from striderl.datasets.motion.clip import ClipField, MotionClip
from striderl.datasets.playback.dataset import RolloutDataset
from striderl.datasets.trajectories.store import TrajectoryStore
from striderl.envs.on_device import OnDevice
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import Remember
from striderl.recording.dagger import DaggerSaver, Student
from striderl.recording.demonstrations import DemonstrationSaver

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICE = "cuda"


@pytest.fixture(autouse=True)
def full_precision():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def policy_of(env, seed, device, *, privileged=False):
    torch.manual_seed(seed)
    config = PolicyConfig(
        actor_obs=("place", "truth") if privileged else ("place",),
        actor_hidden_dims=(8,),
        critic_hidden_dims=(8,),
        actor=(Remember(hidden_size=4),),
    )
    return Policy(env.obs_spec, env.action_spec, config).to(device)


def demonstrations(folder, device):
    env = OnDevice(CountingEnv(), device)
    saver = DemonstrationSaver(env, policy_of(env, 1, device), folder, 8)
    for step in range(32):
        saver.collect_step(step)
        if (step + 1) % 8 == 0:
            saver.save_steps()
    saver.close()
    return TrajectoryStore(folder)


def assert_same_trajectories(one, two, count):
    assert len(one) == len(two) == count
    for index in range(count):
        for path, (mine, other) in tree.zipped(one.read(index), two.read(index)):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5, msg=path)


def test_demonstrations_of_a_policy_on_the_gpu_are_those_of_the_cpu(tmp_path):
    stores = [demonstrations(tmp_path / device, device) for device in ("cpu", DEVICE)]
    assert_same_trajectories(*stores, len(ended(3, 32)))


def dagger(folder, device):
    env = OnDevice(CountingEnv(), device)
    found = Student(policy_of(env, 2, device), 7, "a")

    def newest(_, known):
        return None if known == "a" else found

    saver = DaggerSaver(
        env,
        policy_of(env, 1, device, privileged=True),
        folder / "demos",
        8,
        training_policy_logdir=folder / "run",
        load_student=newest,
        teacher_act_prob=0.3,
        action_sample_std=0.05,
    )
    for step in range(32):
        if step % 8 == 0:
            saver.check_stop()
        saver.collect_step(step)
    saver.close()
    return TrajectoryStore(folder / "demos")


def test_dagger_with_both_policies_on_the_gpu_is_that_of_the_cpu(tmp_path):
    stores = [dagger(tmp_path / device, device) for device in ("cpu", DEVICE)]
    assert_same_trajectories(*stores, len(ended(3, 32)))
    acted = torch.cat([stores[1].read(index)["policy"]["acted"] for index in range(len(stores[1]))])
    assert 0 < int(acted.sum()) < len(acted), "student and teacher took turns"


def test_a_dataset_on_the_gpu_feeds_a_policy_there(tmp_path):
    demonstrations(tmp_path / "demos", DEVICE)
    datasets = [RolloutDataset(tmp_path / "demos", 4, device=device) for device in ("cpu", DEVICE)]
    env = CountingEnv()
    policy, reference = policy_of(env, 1, DEVICE), policy_of(env, 1, "cpu")
    state, known = policy.initial_state(4), reference.initial_state(4)
    for _ in range(6):
        (wanted, _), (found, _) = (dataset.get_transition_batch() for dataset in datasets)
        assert found.observation["place"].device.type == torch.device(DEVICE).type
        for path, (mine, other) in tree.zipped(tuple(found), tuple(wanted)):
            assert torch.equal(mine.cpu(), other), path
        with torch.no_grad():
            said, state, _ = policy.act(found.observation, state, policy.settled(torch.zeros(4, device=DEVICE)))
            here, known, _ = reference.act(wanted.observation, known, reference.settled(torch.zeros(4)))
        torch.testing.assert_close(said.mode().cpu(), here.mode(), rtol=1e-5, atol=1e-5)


def test_clips_on_the_gpu_are_drawn_as_on_the_cpu():
    def clip(name, start):
        values = {"x": (start + torch.arange(6).double()).unsqueeze(1).repeat(1, 3).numpy()}
        return MotionClip(name=name, frame_duration=0.1, fields={"x": ClipField(size=3)}, values=values)

    config = AMPLoaderConfig(time_between_frames=0.05, num_frames=2)
    clips = [clip("one", 0.0), clip("two", 100.0)]
    here, there = AMPLoader(clips, config), AMPLoader(clips, config, device=DEVICE)
    assert there.device.type == torch.device(DEVICE).type and there.size == 6
    for _ in range(3):
        torch.testing.assert_close(there.sample(64).cpu(), here.sample(64), rtol=1e-6, atol=1e-5)
    numbers = torch.rand(50, dtype=torch.float64)
    torch.testing.assert_close(there.draw(numbers.to(DEVICE)).cpu(), here.draw(numbers), rtol=1e-6, atol=1e-5)
    for mine, other in ((there.mean, here.mean), (there.var, here.var)):
        torch.testing.assert_close(mine.cpu(), other)
