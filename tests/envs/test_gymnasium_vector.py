"""Vector envs of every autoreset mode behind the adapter: one real transition per env and step (promise 12)."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import pytest
import torch
from chain_reference import chain_builders, chain_vector, check_chain
from faulty_envs import ChainEnv, MaskedEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st

from striderl.data.specs import TensorSpec
from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.vec_env import ContractError


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_every_autoreset_mode_gives_the_same_transitions(kind: str, mode: AutoresetMode):
    with GymnasiumEnv(chain_vector(kind, mode, 3)) as env:
        ended = check_chain(env, 40, {5: [False, True, False], 6: [True, True, True], 20: [True, False, False]})
        assert ended > 10


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    num_envs=st.integers(1, 4),
    masks=st.dictionaries(st.integers(0, 24), st.lists(st.booleans(), min_size=4, max_size=4), max_size=6),
    mode=st.sampled_from(["copies", *AutoresetMode]),
)
def test_any_pattern_of_ends_and_resets(num_envs: int, masks: dict[int, list[bool]], mode: Any):
    source = chain_builders(num_envs) if mode == "copies" else chain_vector("sync", mode, num_envs)
    masks = {number: mask[:num_envs] for number, mask in masks.items()}
    with GymnasiumEnv(source) as env:
        check_chain(env, 25, masks)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vector_envs_of_each_mode_equal_n_copies(mode: AutoresetMode):
    copies = GymnasiumEnv("CartPole-v1", 3)
    vector = GymnasiumEnv(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, autoreset_mode=mode))
    assert torch.equal(copies.reset(11)["obs"], vector.reset(11)["obs"])
    assert copies.max_episode_length == vector.max_episode_length == 500
    ended = 0
    for number in range(120):
        actions = torch.tensor([number % 2, (number // 2) % 2, 1])
        ours, theirs = copies.step(actions), vector.step(actions)
        assert torch.equal(ours.obs["obs"], theirs.obs["obs"])
        assert torch.equal(ours.final_obs["obs"], theirs.final_obs["obs"])
        assert torch.equal(ours.done, theirs.done)
        ended += int(ours.done.sum())
    assert ended > 5


def test_episode_statistics_wrapper_counts_right_in_next_step_mode():
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(chain_vector("sync", AutoresetMode.NEXT_STEP, 2))
    env = GymnasiumEnv(wrapped)
    env.reset(0)
    for _ in range(3):
        env.step(torch.tensor([0, 0]))
    # env 0 ended after 2 steps, env 1 after 3: returns 10 + 20 and 10 + 20 + 30
    assert sorted(wrapped.return_queue) == [30.0, 60.0]
    assert sorted(wrapped.length_queue) == [2, 3]


def test_final_observation_lost_by_gymnasium_is_refused():
    env = GymnasiumEnv(SyncVectorEnv(chain_builders(2), autoreset_mode=AutoresetMode.SAME_STEP))
    env.reset(0)
    env.step(torch.tensor([0, 0]))
    with pytest.raises(ContractError, match="same array every time"):
        env.step(torch.tensor([0, 0]))


def test_native_next_step_vector_env_is_refused():
    native = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    with pytest.raises(ContractError, match="SAME_STEP or DISABLED"):
        GymnasiumEnv(native)


def test_async_without_shared_memory_is_refused_in_next_step_mode():
    vector = AsyncVectorEnv(chain_builders(2), shared_memory=False, autoreset_mode=AutoresetMode.NEXT_STEP)
    try:
        with pytest.raises(ContractError, match="NEXT_STEP"):
            GymnasiumEnv(vector)
    finally:
        vector.close()


def test_vector_env_that_ignores_the_mask_is_found_out():
    class Forgetful(SyncVectorEnv):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return super().reset(seed=seed)

    env = GymnasiumEnv(Forgetful(chain_builders(2), autoreset_mode=AutoresetMode.DISABLED))
    env.reset(0)
    env.step(torch.tensor([0, 0]))
    with pytest.raises(ContractError, match="ignore the mask"):
        env.step(torch.tensor([0, 0]))


@pytest.mark.parametrize("source", ["copies", *AutoresetMode])
def test_age_set_by_a_runner_ends_episodes_early(source: Any):
    def limited(index: int) -> Any:
        return TimeLimit(ChainEnv(index, length=50, reuse=False), 10)

    builders = [functools.partial(limited, index) for index in range(2)]
    env = GymnasiumEnv(builders if source == "copies" else SyncVectorEnv(builders, autoreset_mode=source))
    assert env.max_episode_length == 10
    env.reset(0)
    env.episode_length_buf = torch.tensor([8, 0])
    actions = torch.tensor([0, 0])
    first, second = env.step(actions), env.step(actions)
    assert not first.done.any()
    assert second.truncated.tolist() == [True, False]
    assert second.final_obs["obs"].tolist() == [[0, 0, 2], [1, 0, 2]]  # two real steps
    assert second.obs["obs"].tolist() == [[0, 1, 0], [1, 0, 2]]
    assert env.episode_length_buf.tolist() == [0, 2]
    ends = [env.step(actions).truncated.tolist() for _ in range(10)]
    # env 1 ends by its own limit at its 10th step (8 more), env 0 at the 10th of its new episode
    assert ends.index([False, True]) == 7
    assert ends.index([True, False]) == 9


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_action_masks_of_vector_envs(mode: AutoresetMode):
    env = GymnasiumEnv(SyncVectorEnv([MaskedEnv] * 2, autoreset_mode=mode), action_mask="allowed")
    assert env.reset(0)["allowed"].tolist() == [[False, True, True]] * 2
    for t in range(1, 5):
        step = env.step(torch.tensor([1, 1]))
        assert step.final_obs["allowed"].tolist() == [[position != t % 3 for position in range(3)]] * 2
    assert step.obs["allowed"].tolist() == [[False, True, True]] * 2


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_declared_infos_of_vector_envs_are_those_of_the_step(mode: AutoresetMode):
    env = GymnasiumEnv(chain_vector("sync", mode, 2), info_keys={"height": TensorSpec()})
    env.reset(0)
    heights = [env.step(torch.tensor([0, 0])).info["height"].tolist() for _ in range(4)]
    assert heights == [[1, 1], [2, 2], [1, 3], [2, 1]]
