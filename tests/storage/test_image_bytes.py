"""What images cost: a rollout of 4,096 x 24 with 64 x 64 depth images stores bytes, not floats.

Sizes are those of the real thing; on the CPU the blocks are 'meta' tensors, which have a size and no memory.
"""

from __future__ import annotations

import pytest
import torch

from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.data.actions import BoxSpec
from striderl.data.arena import Placement
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.data.transition import transition_columns
from striderl.envs.vec_env import Step, VecEnv
from striderl.execution.modes import Graphed
from striderl.policies.encode import Encode
from striderl.policies.policy import Policy, PolicyConfig
from striderl.storage.replay.replay import Replay
from striderl.storage.rollout import RolloutStorage

ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
ENVS, STEPS, IMAGE = 4096, 24, 64 * 64
SPEC = ObsSpec({"joints": ComponentSpec(shape=(48,)), "depth": ComponentSpec(shape=(1, 64, 64), dtype="uint8")})
ACTIONS = BoxSpec(shape=(12,))
FLOATS = 48 + 12 + 1 + 1 + 1 + 24
"""Of a step: joints, actions, reward, log-probability, value, mean and std of the actions."""
ROLLOUT = STEPS * ENVS * (IMAGE + 4 * FLOATS + 3)
"""Bytes of all columns: a pixel is one, and so is each of three flags."""
POOL = (STEPS * ENVS // 4 + 1) * (IMAGE + 4 * 48 + 2 * 8)
"""Bytes of the pool of final observations: a quarter of the steps, with the step and env of each."""


class Camera(VecEnv):
    """Shows the number of the step in every pixel; episodes never end."""

    episode_length_buf = torch.zeros(0, dtype=torch.int64)

    def __init__(self, num_envs, device):
        self.num_envs, self.device = num_envs, torch.device(device)
        self.obs_spec, self.action_spec, self.info_spec = SPEC, ACTIONS, {}
        self.gives_final_obs, self.max_episode_length, self.step_dt = True, 0, 0.02
        self.now = 0

    def reset(self, seed=None):
        joints = torch.full((self.num_envs, 48), float(self.now), device=self.device)
        return {
            "joints": joints,
            "depth": torch.full_like(joints[:, :1, None, None], self.now).expand(-1, 1, 64, 64).byte(),
        }

    def reset_envs(self, mask):
        return self.reset()

    def step(self, actions):
        self.now += 1
        obs, none = self.reset(), torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        return Step(obs, actions.sum(dim=-1), none, none, obs, {"log": {}})


def make_policy():
    torch.manual_seed(0)
    see = Encode(
        components=("depth",),
        model="Conv2dHeadModel",
        settings={"channels": [2], "kernel_sizes": [8], "strides": [8]},
        output_size=4,
    )
    config = PolicyConfig(actor=(see,), critic=(see,), actor_hidden_dims=(4,), critic_hidden_dims=(4,))
    return Policy(SPEC, ACTIONS, config)


def columns():
    return transition_columns(SPEC, ACTIONS, {}, PolicyActor(make_policy()).columns())


@pytest.mark.slow
def test_a_rollout_of_images_takes_a_byte_per_pixel():
    storage = RolloutStorage(columns(), STEPS, ENVS, placement=Placement(device="meta"), final_obs=SPEC)
    blocks = {dtype: block.numel() * block.element_size() for dtype, block in storage.arena.blocks.items()}
    # 98,304 steps of 4,096 pixels: 384 MiB; as floats they would be 1.5 GiB
    assert blocks == {"uint8": 402_653_184, "float32": STEPS * ENVS * 4 * FLOATS, "bool": STEPS * ENVS * 3}
    assert storage.arena.num_bytes == ROLLOUT == 437_157_888
    assert storage.finals is not None and storage.finals.arena.num_bytes == POOL == 105_779_408


def test_a_replay_of_images_takes_two_bytes_per_pixel():
    # observations once for each of 24 steps and one more, and as many final ones
    storage = Replay(transition_columns(SPEC, ACTIONS, {}, {}), STEPS * ENVS, ENVS, placement=Placement(device="meta"))
    rows = (STEPS + 1) * ENVS
    for part in (storage.frames, storage.finals):
        assert part.arena.num_bytes == rows * (IMAGE + 4 * 48)
    assert storage.steps.arena.num_bytes == rows * (4 * (12 + 1) + 3)


def collected(num_envs, device):
    env = Camera(num_envs, device)
    collector = Collector(env, PolicyActor(make_policy().to(device)))
    if device == "cuda":
        collector.mode = Graphed(strict=True, fused=False)
    storage = RolloutStorage(collector.columns(), STEPS, num_envs, placement=Placement(device=device), final_obs=SPEC)
    collector.collect(n_step=STEPS * num_envs, storage=storage)
    return storage


@pytest.mark.parametrize(("num_envs", "device"), [(2, "cpu"), pytest.param(ENVS, "cuda", marks=ON_GPU)])
def test_pixels_stay_bytes_from_the_env_to_the_storage(num_envs, device):
    storage = collected(num_envs, device)
    depth = storage.data["obs"]["depth"]
    assert depth.dtype is torch.uint8 and depth.shape == (STEPS, num_envs, 1, 64, 64)
    shown = torch.arange(STEPS, dtype=torch.uint8, device=depth.device).view(-1, 1, 1, 1, 1)
    assert bool((depth == shown).all())


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=ON_GPU)])
def test_what_a_gpu_gives_for_a_rollout_of_images(device):
    before = torch.cuda.memory_allocated()
    storage = RolloutStorage(columns(), STEPS, ENVS, placement=Placement(device=device), final_obs=SPEC)
    taken = torch.cuda.memory_allocated() - before
    # the allocator rounds each block up, to 2 MiB at most
    assert ROLLOUT + POOL <= taken <= ROLLOUT + POOL + 8 * 2**21
    assert storage.arena.num_bytes == ROLLOUT
