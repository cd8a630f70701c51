"""The Gymnasium adapter: transitions, specs, masks and seeds (promises 12 and 13)."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from chain_reference import chain_builders, check_chain
from faulty_envs import ChainEnv, FaultyEnv, MaskedEnv, NestedEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from striderl.data.actions import BoxSpec, DictActionSpec, DiscreteSpec
from striderl.data.specs import TensorSpec
from striderl.envs.check.checker import check_vec_env
from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.vec_env import ContractError, StateUnsupportedError, env_seed_sequence
from striderl.envs.workers.layout import env_seeds
from striderl.envs.workers.pool import WorkerConfig


def test_first_steps_by_hand():
    # env 0: episode 0 has 2 steps and is terminated, so step 2 ends at t = 2 and episode 1 begins
    env = GymnasiumEnv(
        chain_builders(2), info_keys={"height": TensorSpec(), "pair": TensorSpec(shape=(2,), dtype="int64")}
    )
    assert env.reset(0)["obs"].tolist() == [[0, 0, 0], [1, 0, 0]]
    step = env.step(torch.tensor([1, 2]))
    assert step.reward.tolist() == [11.0, 12.0]
    assert not step.done.any()
    step = env.step(torch.tensor([0, 0]))
    assert step.terminated.tolist() == [True, False]
    assert step.truncated.tolist() == [False, False]
    assert step.final_obs["obs"].tolist() == [[0, 0, 2], [1, 0, 2]]
    assert step.obs["obs"].tolist() == [[0, 1, 0], [1, 0, 2]]
    assert step.info["height"].tolist() == [2.0, 2.0]  # of the step, not of the reset that followed
    assert step.info["pair"].tolist() == [[0, 2], [1, 2]]
    step = env.step(torch.tensor([2, 0]))
    assert step.reward.tolist() == [12.0, 30.0]  # the step after an end is a real transition
    assert step.obs["obs"].tolist() == [[0, 1, 1], [1, 1, 0]]


def test_in_process_chain():
    assert check_chain(GymnasiumEnv(chain_builders(3)), 60) > 20


def test_nothing_handed_out_changes_later():
    env = GymnasiumEnv(chain_builders(2))
    handed = [env.reset(0)["obs"]]
    for _ in range(5):
        step = env.step(torch.tensor([0, 0]))
        handed += [step.obs["obs"], step.final_obs["obs"], step.reward, step.terminated, env.episode_length_buf]
    before = [tensor.clone() for tensor in handed]
    step.obs["obs"].zero_()  # what a user does to his copy does not come back either
    before[-5].zero_()
    for _ in range(5):
        assert env.step(torch.tensor([1, 1])).obs["obs"][0, 0] == 0.0
    assert all(torch.equal(old, new) for old, new in zip(before, handed))
    pointers = [tensor.data_ptr() for tensor in handed]
    assert len(set(pointers)) == len(pointers)


def test_obs_and_final_obs_do_not_share_memory():
    env = GymnasiumEnv(chain_builders(2))
    env.reset(0)
    step = env.step(torch.tensor([0, 0]))
    assert step.obs["obs"].data_ptr() != step.final_obs["obs"].data_ptr()


def test_nested_observations_and_hybrid_actions():
    env = GymnasiumEnv(NestedEnv, 2)
    found = {name: (component.shape, component.dtype) for name, component in env.obs_spec.items()}
    assert found == {
        "arm/mode": ((), "int64"),
        "arm/q": ((2,), "float32"),
        "camera": ((2, 2, 1), "uint8"),
        "pair/0": ((2,), "int8"),
        "pair/1": ((2,), "int64"),
    }
    assert isinstance(env.action_spec, DictActionSpec)
    obs = env.reset(1)
    assert obs["camera"].dtype == torch.uint8 and obs["arm/mode"].shape == (2,)
    step = env.step({"gear": torch.tensor([1, 2]), "torque": torch.tensor([[0.5, 0.25], [0.0, -1.0]])})
    assert step.reward.tolist() == [1.75, 1.0]
    assert step.obs["camera"].unique().tolist() == [1]
    assert step.obs["pair/1"].tolist() == [[1, 1], [1, 1]]


def test_float64_is_kept_on_request():
    env = GymnasiumEnv(NestedEnv, 1, keep_float64=True)
    twin = NestedEnv()
    first = env.reset(4)["arm/q"]
    assert first.dtype == torch.float64
    seed = int(env_seed_sequence(4, 0).generate_state(1)[0])
    assert np.array_equal(twin.reset(seed=seed)[0]["arm"]["q"], first[0].numpy())


def test_specs_of_plain_envs():
    pendulum = GymnasiumEnv("Pendulum-v1", 2)
    assert isinstance(pendulum.action_spec, BoxSpec) and pendulum.action_spec.shape == (1,)
    assert pendulum.max_episode_length == 200 and pendulum.gives_final_obs
    assert dict(pendulum.info_spec) == {"valid": TensorSpec(dtype="bool")}
    cartpole = GymnasiumEnv("CartPole-v1", 2)
    assert cartpole.action_spec == DiscreteSpec(n=2)
    assert GymnasiumEnv(ChainEnv, 1).max_episode_length == 0


def test_box_actions_have_the_dtype_and_bounds_of_the_space():
    seen = []

    class Recorder(ChainEnv):
        action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float64)

        def step(self, action: Any) -> Any:
            seen.append(action)
            return super().step(action.sum())

    env = GymnasiumEnv(Recorder, 1)
    env.reset(0)
    env.step(torch.tensor([[3.0, -4.0]]))
    env.step(torch.tensor([[0.5, 0.5]]))
    assert seen[0].dtype == np.float64
    assert seen[0].tolist() == [1.0, -1.0]  # still what it was then: actions are not reused memory


@pytest.mark.parametrize("in_obs", [False, True])
def test_action_masks_follow_the_observation(in_obs: bool):
    env = GymnasiumEnv(functools.partial(MaskedEnv, in_obs), 2, action_mask="allowed")
    assert env.action_spec == DiscreteSpec(n=3, mask="allowed")
    assert env.obs_spec["allowed"].dtype == "bool" and env.obs_spec["allowed"].group == "action_mask"
    assert env.reset(0)["allowed"].tolist() == [[False, True, True]] * 2
    for t in range(1, 5):
        step = env.step(torch.tensor([1, 1]))
        current = [position != t % 3 for position in range(3)]
        assert step.final_obs["allowed"].tolist() == [current] * 2
    assert step.terminated.all()
    assert step.obs["allowed"].tolist() == [[False, True, True]] * 2  # of the new episode


def test_masks_of_box_actions_are_refused():
    with pytest.raises(ValueError, match="no choices to mask"):
        GymnasiumEnv("Pendulum-v1", 1, action_mask="action_mask")


def test_misspelt_info_key_is_refused_after_one_episode():
    env = GymnasiumEnv(chain_builders(1), info_keys={"hieght": TensorSpec()})
    env.reset(0)
    env.step(torch.tensor([0]))
    with pytest.raises(ContractError, match="hieght"):
        env.step(torch.tensor([0]))


def test_reserved_info_keys_are_refused():
    with pytest.raises(ValueError, match="'valid'"):
        GymnasiumEnv("CartPole-v1", 1, info_keys={"valid": TensorSpec()})


def test_render_and_attributes():
    env = GymnasiumEnv([functools.partial(FaultyEnv, index) for index in range(3)], render_mode="rgb_array")
    env.reset(0)
    assert env.render(2).shape == (4, 5, 3) and env.render(2).max() == 2
    assert env.get_attr("secret") == [40, 41, 42]
    with pytest.raises(RuntimeError, match="rgb_array"):
        GymnasiumEnv("CartPole-v1", 1).render()
    with pytest.raises(StateUnsupportedError):
        env.state_dict()


def test_the_order_of_calls_is_checked_without_a_wrapper():
    env = GymnasiumEnv("CartPole-v1", 2, render_mode="rgb_array")
    assert not env.get_attr("spec")[0].order_enforce
    with pytest.raises(RuntimeError, match="render: the envs have no episode yet"):
        env.render()
    with pytest.raises(RuntimeError, match="step: the envs have no episode yet"):
        env.step(torch.zeros(2, dtype=torch.int64))


class ArrayOfOneNumber(gymnasium.Env):
    """Counts its steps in an array without dimensions."""

    observation_space = gymnasium.spaces.Box(0.0, 9.0, (), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.place = np.zeros((), np.float32)
        return self.place, {}

    def step(self, action):
        self.place = np.asarray(self.place + 1, np.float32)
        return self.place, 0.0, False, bool(self.place == 3), {}


def test_observations_without_dimensions():
    env = GymnasiumEnv(ArrayOfOneNumber, 2)
    env.reset(0)
    steps = [env.step(torch.zeros(2, dtype=torch.int64)) for _ in range(4)]
    assert [step.obs["obs"].tolist() for step in steps] == [[1.0] * 2, [2.0] * 2, [0.0] * 2, [1.0] * 2]
    assert steps[2].final_obs["obs"].tolist() == [3.0, 3.0]


def test_streams_are_those_of_the_contract_and_all_differ():
    first = set()
    for seed in range(20):
        for index in range(64):
            seeds = env_seeds(seed, index)
            assert seeds[0] == env_seed_sequence(seed, index).generate_state(1)[0]
            first.add(int(seeds[0]))
            assert len(set(seeds.tolist())) == 3
    assert len(first) == 20 * 64
    assert env_seeds(0, 3, restart=1)[0] not in first


def test_twenty_seeds_of_64_envs_start_differently():
    env = GymnasiumEnv(FaultyEnv, 64)
    numbers = torch.cat([env.reset(seed)["obs"][:, 2] for seed in range(20)])
    assert numbers.unique().numel() == 20 * 64


def test_a_part_of_the_envs_elsewhere_has_the_same_streams():
    whole, part = GymnasiumEnv("CartPole-v1", 5), GymnasiumEnv("CartPole-v1", 2, first_env_index=3)
    assert torch.equal(whole.reset(9)["obs"][3:], part.reset(9)["obs"])
    for number in range(60):
        actions = torch.full((5,), number % 2)
        assert torch.equal(whole.step(actions).obs["obs"][3:], part.step(actions[3:]).obs["obs"])


def test_spaces_are_seeded_too():
    env = GymnasiumEnv("CartPole-v1", 3)
    env.reset(5)
    samples = [[space.sample() for _ in range(20)] for space in env.get_attr("action_space")]
    env.reset(5)
    assert samples == [[space.sample() for _ in range(20)] for space in env.get_attr("action_space")]
    assert samples[0] != samples[1]


def test_reset_without_seed_goes_on_in_the_stream():
    env = GymnasiumEnv(FaultyEnv, 2)
    first, second = env.reset(1)["obs"], env.reset()["obs"]
    assert not torch.equal(first, second)
    assert torch.equal(env.reset(1)["obs"], first) and torch.equal(env.reset()["obs"], second)
    unseeded = GymnasiumEnv(FaultyEnv, 2)
    assert not torch.equal(unseeded.reset()["obs"], GymnasiumEnv(FaultyEnv, 2).reset()["obs"])


CONTRACT = {
    "discrete": lambda: GymnasiumEnv("CartPole-v1", 4),
    "box": lambda: GymnasiumEnv("Pendulum-v1", 4),
    "nested": lambda: GymnasiumEnv(NestedEnv, 3),
    "masked": lambda: GymnasiumEnv(MaskedEnv, 3, action_mask="allowed"),
    "workers": lambda: GymnasiumEnv(NestedEnv, 3, workers=WorkerConfig(num_workers=2, start_method="fork")),
    "part": lambda: GymnasiumEnv("CartPole-v1", 4).split(2)[1],
    "same step": lambda: GymnasiumEnv(SyncVectorEnv([FaultyEnv] * 3, autoreset_mode=AutoresetMode.SAME_STEP)),
    "next step": lambda: GymnasiumEnv(SyncVectorEnv([FaultyEnv] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)),
    "disabled": lambda: GymnasiumEnv(SyncVectorEnv([FaultyEnv] * 3, autoreset_mode=AutoresetMode.DISABLED)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTRACT)
def test_the_contract_checker_finds_nothing(name: str):
    check_vec_env(CONTRACT[name](), close=True)
