"""The Gymnasium adapter: transitions, specs, seeds, masks, vector envs and bad envs (promises 12, 13 and 20)."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from faulty_envs import ChainEnv, FaultyEnv, HostileEnv, MaskedEnv, NestedEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st

from striderl.data.actions import BoxSpec, DictActionSpec, DiscreteSpec
from striderl.data.specs import TensorSpec
from striderl.envs.gymnasium_env import GymnasiumEnv
from striderl.envs.vec_env import ContractError, StateUnsupportedError, env_seed_sequence
from striderl.envs.worker_errors import EnvCloseWarning, EnvRaised
from striderl.envs.worker_layout import env_seeds


def chain_builders(num_envs: int, length: int = 2, *, reuse: bool = True) -> list[Any]:
    return [functools.partial(ChainEnv, index, length, reuse) for index in range(num_envs)]


def chain_vector(kind: str, mode: AutoresetMode, num_envs: int, length: int = 2) -> Any:
    # Gymnasium itself loses the final observation of an array that an env reuses, in this one mode
    builders = chain_builders(num_envs, length, reuse=mode is not AutoresetMode.SAME_STEP)
    return (AsyncVectorEnv if kind == "async" else SyncVectorEnv)(builders, autoreset_mode=mode)


class ChainReference:
    """What ChainEnv must do, computed by hand: one list entry per env."""

    def __init__(self, num_envs: int, length: int = 2) -> None:
        self.length = length
        self.episode = [0] * num_envs
        self.t = [0] * num_envs

    def obs(self) -> list[list[float]]:
        return [[float(i), float(e), float(t)] for i, (e, t) in enumerate(zip(self.episode, self.t))]

    def step(self, actions: list[int]) -> tuple[Any, ...]:
        rewards, ends, stops, finals = [], [], [], []
        for i, action in enumerate(actions):
            self.t[i] += 1
            rewards.append(10.0 * self.t[i] + action)
            done = self.t[i] >= self.length + i + self.episode[i]
            ends.append(done and self.episode[i] % 2 == 0)
            stops.append(done and self.episode[i] % 2 == 1)
            finals.append([float(i), float(self.episode[i]), float(self.t[i])])
            if done:
                self.reset(i)
        return rewards, ends, stops, finals

    def reset(self, i: int) -> None:
        self.episode[i] += 1
        self.t[i] = 0


def check_chain(env: GymnasiumEnv, num_steps: int, reset_at: dict[int, list[bool]] | None = None) -> int:
    """Step an env of chains beside the reference; returns how many episodes ended."""
    reference = ChainReference(env.num_envs)
    assert env.reset(3)["obs"].tolist() == reference.obs()
    ended = 0
    for number in range(num_steps):
        actions = [(number + i) % 3 for i in range(env.num_envs)]
        step = env.step(torch.tensor(actions))
        rewards, ends, stops, finals = reference.step(actions)
        assert step.reward.tolist() == rewards
        assert step.terminated.tolist() == ends
        assert step.truncated.tolist() == stops
        assert step.obs["obs"].tolist() == reference.obs()
        assert step.final_obs is not None
        assert step.final_obs["obs"].tolist() == finals
        assert step.info["valid"].all()
        assert env.episode_length_buf.tolist() == reference.t
        ended += int(step.done.sum())
        mask = (reset_at or {}).get(number)
        if mask is not None:
            for i, chosen in enumerate(mask):
                if chosen:
                    reference.reset(i)
            assert env.reset_envs(torch.tensor(mask))["obs"].tolist() == reference.obs()
    return ended


# -- transitions ---------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_every_autoreset_mode_gives_the_same_transitions(kind: str, mode: AutoresetMode):
    with GymnasiumEnv(chain_vector(kind, mode, 3)) as env:
        ended = check_chain(env, 40, {5: [False, True, False], 6: [True, True, True], 20: [True, False, False]})
        assert ended > 10


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


# -- specs ---------------------------------------------------------------------------------------------------------


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


def test_box_actions_are_not_clipped():
    seen = []

    class Recorder(ChainEnv):
        action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float64)

        def step(self, action: Any) -> Any:
            seen.append(action)
            return super().step(action.sum())

    env = GymnasiumEnv(Recorder, 1)
    env.reset(0)
    env.step(torch.tensor([[3.0, -4.0]]))
    env.step(torch.tensor([[1.0, 1.0]]))
    assert seen[0].dtype == np.float64
    assert seen[0].tolist() == [3.0, -4.0]  # still what it was then: actions are not reused memory


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


# -- seeds ---------------------------------------------------------------------------------------------------------


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


# -- misuse and bad envs -------------------------------------------------------------------------------------------

HOSTILE = [
    ("observation", np.zeros(3, np.float32), r"env 1.*'obs'.*float32 of shape \(2,\).*found float32 of shape \(3,\)"),
    ("observation", np.zeros(2, np.float64), r"'obs'.*so far given as float32.*found float64"),
    ("observation", np.array(["a", "b"]), r"'obs'.*found <U1"),
    ("observation", [[0.0], [0.0, 1.0]], r"'obs'.*without a shape"),
    ("observation", None, r"'obs'.*found object"),
    ("reward", np.zeros(2), r"'reward'.*array of float64 of shape \(2,\)"),
    ("reward", "much", r"'reward'.*much"),
    ("reward", None, r"'reward'"),
    ("terminated", 0.5, r"'terminated'.*wanted True or False, found 0.5"),
    ("terminated", np.array([True]), r"'terminated'.*array of bool of shape \(1,\)"),
    ("truncated", 2, r"'truncated'.*found 2"),
    ("truncated", None, r"'truncated'.*None"),
    ("step", (1, 2, 3, 4), r"step wants to return.*found 4 values"),
    ("step", None, r"step wants to return.*found NoneType"),
]


@pytest.mark.parametrize(("field", "value", "pattern"), HOSTILE)
def test_an_env_that_changes_its_mind_is_named(field: str, value: Any, pattern: str):
    at = 1000 if field == "observation" else 5
    builders = [HostileEnv, functools.partial(HostileEnv, field, value, at)]
    env = GymnasiumEnv(builders)
    env.reset(0)
    for _ in range(at - 1):
        env.step(torch.tensor([0, 0]))
    with pytest.raises(ContractError, match=pattern) as caught:
        env.step(torch.tensor([0, 0]))
    assert "env 1" in str(caught.value) and f"after {at - 1} steps" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("terminated", 1),
        ("terminated", np.int64(0)),
        ("truncated", np.bool_(True)),
        ("info", None),
        ("reward", np.float32(1)),
    ],
)
def test_harmless_oddities_are_accepted(field: str, value: Any):
    env = GymnasiumEnv(functools.partial(HostileEnv, field, value, 1), 2)
    env.reset(0)
    step = env.step(torch.tensor([0, 0]))
    assert step.terminated.dtype == torch.bool and step.reward.dtype == torch.float32
    if field in ("terminated", "truncated"):
        assert step.done.tolist() == [bool(value)] * 2


def test_bad_resets_and_infos_are_named():
    env = GymnasiumEnv(functools.partial(HostileEnv, "reset", np.zeros(2, np.float32), 0), 2)
    with pytest.raises(ContractError, match=r"env 0, phase reset.*reset wants to return \(observation, info\)"):
        env.reset(0)
    env = GymnasiumEnv(functools.partial(HostileEnv, "info", [1], 1), 1, info_keys={"height": TensorSpec()})
    env.reset(0)
    with pytest.raises(ContractError, match="'info': wanted a dict, found list"):
        env.step(torch.tensor([0]))


def test_one_env_of_another_kind_is_refused_with_the_difference():
    builders = [HostileEnv, HostileEnv, functools.partial(HostileEnv, shape=(3,))]
    with pytest.raises(ContractError, match=r"env 2 has another observation space than env 0.*\(2,\).*\(3,\)"):
        GymnasiumEnv(builders)

    class OtherNested(NestedEnv):
        observation_space = gymnasium.spaces.Dict(
            {**NestedEnv.observation_space.spaces, "camera": gymnasium.spaces.Box(0, 255, (3, 3, 1), np.uint8)}
        )

    with pytest.raises(ContractError, match=r"'camera': wanted Box.*\(2, 2, 1\).*found Box.*\(3, 3, 1\)"):
        GymnasiumEnv([NestedEnv, OtherNested])


def test_missing_and_extra_parts_of_a_nested_observation_are_named():
    class Forgetful(NestedEnv):
        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            del obs["arm"]["q"]
            return obs, *rest

    class Talkative(NestedEnv):
        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return {**obs, "gossip": np.zeros(1)}, *rest

    actions = {"gear": torch.tensor([0]), "torque": torch.zeros(1, 2)}
    for kind, pattern in (
        (Forgetful, r"'arm': wanted the parts \['mode', 'q'\], found \['mode'\]"),
        (Talkative, "gossip"),
    ):
        env = GymnasiumEnv(kind, 1)
        env.reset(0)
        with pytest.raises(ContractError, match=pattern):
            env.step(actions)


def test_wrong_actions_are_refused_before_any_env_steps():
    env = GymnasiumEnv(chain_builders(3))
    env.reset(0)
    for actions in (torch.tensor([0, 0]), torch.zeros(3), torch.zeros(3, 1, dtype=torch.int64), {"a": torch.zeros(3)}):
        with pytest.raises(ValueError, match="actions"):
            env.step(actions)
    assert env.step(torch.tensor([0, 0, 0])).obs["obs"][:, 2].tolist() == [1, 1, 1]
    nested = GymnasiumEnv(NestedEnv, 1)
    nested.reset(0)
    with pytest.raises(ValueError, match=r"\['gear', 'torque'\]"):
        nested.step({"gear": torch.tensor([0])})


def test_calls_in_the_wrong_order_are_refused():
    env = GymnasiumEnv(chain_builders(2))
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step(torch.tensor([0, 0]))
    with pytest.raises(RuntimeError, match="step_async first"):
        env.step_wait()
    env.reset(0)
    env.step_async(torch.tensor([0, 0]))
    with pytest.raises(RuntimeError, match="under way"):
        env.step_async(torch.tensor([0, 0]))
    with pytest.raises(RuntimeError, match="under way"):
        env.reset_envs(torch.tensor([True, False]))
    assert env.is_ready()
    env.step_wait()
    with pytest.raises(ValueError, match="mask"):
        env.reset_envs(torch.tensor([1, 0]))
    env.close()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.reset(0)


def test_wrong_constructions_are_refused():
    for arguments, pattern in (
        (("CartPole-v1",), "1 or more copies"),
        ((chain_builders(2), 3), "2 env builders"),
        (([],), "empty"),
    ):
        with pytest.raises(ValueError, match=pattern):
            GymnasiumEnv(*arguments)
    with pytest.raises(EnvRaised, match="NameNotFound"):
        GymnasiumEnv("NoSuchEnv-v0", 1)
    with pytest.raises(TypeError, match="fixed-size"):
        GymnasiumEnv(type("Wordy", (ChainEnv,), {"observation_space": gymnasium.spaces.Text(5)}), 1)


def test_exceptions_in_process_name_the_env():
    class Failing(ChainEnv):
        def step(self, action: Any) -> Any:
            if self.t == 1 and self.index == 1:
                raise ValueError("too steep")
            return super().step(action)

    env = GymnasiumEnv([functools.partial(Failing, index) for index in range(2)])
    env.reset(8)
    env.step(torch.tensor([0, 0]))
    with pytest.raises(
        EnvRaised, match=r"(?s)env 1 \(phase step, seed 8 .*step 2, episode step 1.*too steep"
    ) as caught:
        env.step(torch.tensor([0, 0]))
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.place.env_index == 1


def test_close_closes_all_envs_and_warns():
    closed = []

    class Sticky(ChainEnv):
        def close(self) -> None:
            closed.append(self.index)
            if self.index == 0:
                raise OSError("stuck")

    env = GymnasiumEnv([functools.partial(Sticky, index) for index in range(3)])
    with pytest.warns(EnvCloseWarning, match="(?s)env 0.*stuck"):
        env.close()
    assert closed == [0, 1, 2]
    env.close()
    assert closed == [0, 1, 2]
