from __future__ import annotations

import copy
import warnings
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rsl_rl_fakes import (
    DONE_DTYPES,
    TIME_OUTS,
    GroupsFake,
    IsaacLabTwoFake,
    LeggedGymFake,
    PlaygroundFake,
)
from rsl_rl_reference import KINDS, make, reference, rollout, some_actions, two_parts
from torch.utils._python_dispatch import TorchDispatchMode

from striderl.data.specs import TensorSpec
from striderl.envs.rsl_rl.env import RslRlEnv
from striderl.envs.vec_env import ContractError


def test_the_reference_sees_falls_time_outs_and_both_at_once() -> None:
    steps = reference(some_actions())
    kinds = Counter(pair for row in steps for pair in zip(row["fallen"], row["late"]))
    assert min(kinds[(True, False)], kinds[(False, True)], kinds[(True, True)], kinds[(False, False)]) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("column", [False, True], ids=["row", "column"])
@pytest.mark.parametrize("dtype", DONE_DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_all_generations_and_flag_dtypes_give_the_same_steps(kind: str, dtype: torch.dtype, column: bool) -> None:
    actions = some_actions()
    expected = reference(actions)
    for time_outs in TIME_OUTS:
        env = RslRlEnv(make(kind, done_dtype=dtype, column=column, time_outs=time_outs))
        assert env.generation == kind[:2]
        assert not env.gives_final_obs
        for step, row in zip(rollout(env, actions), expected, strict=True):
            acting, privileged = two_parts(step.obs)
            assert acting.tolist() == row["obs"]
            assert privileged.tolist() == row["privileged"]
            assert step.reward.tolist() == row["reward"]
            done = [fallen or late for fallen, late in zip(row["fallen"], row["late"])]
            late = [False] * 3 if time_outs == "absent" else row["late"]
            assert step.truncated.tolist() == late
            assert step.terminated.tolist() == [d and not t for d, t in zip(done, late)]
            assert step.done.tolist() == done
            assert step.reward.dtype == torch.float32
            assert step.terminated.dtype == step.truncated.dtype == torch.bool
            assert step.reward.shape == step.terminated.shape == step.truncated.shape == (3,)
            assert step.final_obs is None
            assert float(step.info["log"]["rew_x"]) == pytest.approx(sum(row["reward"]) / 3)
            assert float(step.info["log"]["level"]) == 0.5
        assert env.episode_length_buf.tolist() == expected[-1]["length"]


@pytest.mark.parametrize("kind", [*KINDS, "playground"])
def test_nothing_that_was_handed_out_changes_later(kind: str) -> None:
    # the fakes write into the same buffers and the same extras in every step
    fake = PlaygroundFake() if kind == "playground" else make(kind)
    extra = {} if kind == "playground" else {"time_outs": TensorSpec(dtype="bool")}
    env = RslRlEnv(fake, info_keys=extra)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        first = env.reset()
    first_copy = copy.deepcopy(first)
    kept, copies = [], []
    lengths, length_copies = [], []
    for action in some_actions():
        kept.append(env.step(action))
        copies.append(copy.deepcopy(kept[-1]))
        lengths.append(env.episode_length_buf)
        length_copies.append(lengths[-1].clone())
    env.reset()
    for before, after in zip(copies, kept, strict=True):
        for name, value in before.obs.items():
            assert torch.equal(value, after.obs[name])
        assert torch.equal(before.reward, after.reward)
        assert torch.equal(before.terminated, after.terminated)
        assert torch.equal(before.truncated, after.truncated)
        assert before.info.keys() == after.info.keys()
        assert before.info["log"] == after.info["log"]
        if extra:
            assert torch.equal(before.info["time_outs"], after.info["time_outs"])
    assert all(torch.equal(value, first[name]) for name, value in first_copy.items())
    assert all(torch.equal(before, after) for before, after in zip(length_copies, lengths, strict=True))
    assert len({id(step.info) for step in kept}) == len(kept)


def test_the_callers_actions_are_not_touched_and_are_clipped_for_the_env() -> None:
    fake = LeggedGymFake()
    env = RslRlEnv(fake, clip_actions=0.5)
    env.reset()
    actions = torch.full((3, 2), 2.0)
    step = env.step(actions)
    assert torch.equal(actions, torch.full((3, 2), 2.0))  # the fake overwrites its argument with 99
    assert step.reward.tolist() == [0.5, 0.625, 0.75]
    assert env.action_spec.shape == (2,)
    assert (env.action_spec.low, env.action_spec.high) == (-0.5, 0.5)
    with pytest.raises(ValueError, match="clip_actions"):
        RslRlEnv(LeggedGymFake(), clip_actions=-1.0)


# -- why an episode ended --------------------------------------------------------------------------------------------


def test_old_time_outs_of_running_episodes_count_for_nothing() -> None:
    fake = LeggedGymFake(time_outs="only at resets")
    env = RslRlEnv(fake)
    env.reset()
    idle = torch.zeros(3, 2)
    steps = [env.step(idle) for _ in range(5)]
    # env 0 times out in its fourth step, env 1 in its fifth; in the fifth, extras were refreshed by env 1's reset
    assert [step.truncated.tolist() for step in steps[3:]] == [[True, False, False], [False, True, False]]
    fake.extras["time_outs"] = torch.ones(3, dtype=torch.bool)  # what stays behind after a step in which all timed out
    fake._time_outs = "absent"
    step = env.step(idle)  # only env 2 ends here
    assert step.truncated.tolist() == [False, False, True]
    assert step.terminated.tolist() == [False, False, False]


def test_the_time_limit_of_gyms_wrapper_is_one_too() -> None:
    fake = LeggedGymFake(time_outs="absent")
    env = RslRlEnv(fake)
    env.reset()
    fake.extras["TimeLimit.truncated"] = torch.tensor([True, False, False])
    idle = torch.zeros(3, 2)
    step = [env.step(idle) for _ in range(4)][3]  # env 0 times out in its fourth step
    assert step.truncated.tolist() == [True, False, False]
    assert step.terminated.tolist() == [False, False, False]


def test_a_fall_in_the_step_of_the_time_limit_is_both_where_the_simulator_tells() -> None:
    fake = make("v4")
    fake.unwrapped.reset_terminated = fake.simulator.fallen
    env = RslRlEnv(fake)
    actions = some_actions()
    seen_both = False
    for step, row in zip(rollout(env, actions), reference(actions), strict=True):
        assert step.terminated.tolist() == row["fallen"]
        assert step.truncated.tolist() == row["late"]
        seen_both |= bool((step.terminated & step.truncated).any())
    assert seen_both


# -- resets, seeds, clocks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_get_observations_is_never_called_in_step(kind: str) -> None:
    fake = make(kind)
    env = RslRlEnv(fake)
    assert fake.num_asked == 1
    env.reset()
    asked = fake.num_asked
    assert asked <= 2
    for action in some_actions():
        env.step(action)
    assert fake.num_asked == asked


@pytest.mark.parametrize("kind", KINDS)
def test_reset_envs_restarts_the_chosen_ones_only(kind: str) -> None:
    fake = make(kind)
    env = RslRlEnv(fake)
    steps = rollout(env, some_actions()[:2])
    before = two_parts(steps[-1].obs)[0]
    after = two_parts(env.reset_envs(torch.tensor([False, True, False])))[0]
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert after[1].tolist() == [0.125, 0.0, 0.0, before[1, 3].item() + 1]
    assert env.episode_length_buf.tolist() == [2, 0, 2]
    assert torch.equal(two_parts(env.reset_envs(torch.zeros(3, dtype=torch.bool)))[0], after)
    step = env.step(torch.zeros(3, 2))
    assert two_parts(step.obs)[0][:, 0].tolist() == after[:, 0].tolist()
    with pytest.raises(ContractError, match=r"reset_envs\(\): mask: wanted flags \[3\], found bool \[2\]"):
        env.reset_envs(torch.zeros(2, dtype=torch.bool))


def test_isaac_style_row_resets_bring_the_simulator_up_to_date() -> None:
    calls: list[str] = []
    fake = IsaacLabTwoFake()
    fake.scene = SimpleNamespace(write_data_to_sim=lambda: calls.append("write"))  # type: ignore[attr-defined]
    fake.sim = SimpleNamespace(forward=lambda: calls.append("forward"))  # type: ignore[attr-defined]
    env = RslRlEnv(fake)
    env.reset()
    env.reset_envs(torch.tensor([True, False, False]))
    assert calls == ["write", "forward"]


def test_row_resets_that_leave_the_old_observation_in_place_are_reported() -> None:
    class GenesisFake(LeggedGymFake):
        compute_observations = None  # type: ignore[assignment]

    env = RslRlEnv(GenesisFake())
    env.reset()
    env.step(torch.ones(3, 2))
    with pytest.warns(UserWarning, match="does not refresh the observations of restarted envs"):
        env.reset_envs(torch.tensor([True, False, False]))
    assert env.episode_length_buf.tolist() == [0, 1, 1]
    assert env.step(torch.zeros(3, 2)).obs["obs"][0].tolist() == [0.0, 0.0, 1.0, 1.0]


def test_seeds_go_to_the_simulator_where_it_takes_one() -> None:
    actions = some_actions()
    env = RslRlEnv(make("v4"))
    for seed in (3, 6, 3):
        for step, row in zip(rollout(env, actions, seed), reference(actions, offset=seed / 8), strict=True):
            assert two_parts(step.obs)[0].tolist() == row["obs"]


def test_parts_of_one_run_get_different_seeds() -> None:
    given: list[int] = []
    fake = make("v4")
    fake.seed = given.append
    env = RslRlEnv(fake)
    for index in (0, 64, 128, 64):
        env.first_env_index = index
        env.reset(seed=7)
    assert given[0] == 7
    assert given[1] == given[3]
    assert len(set(given)) == 3
    assert all(0 <= seed < 2**31 for seed in given)


def test_an_env_without_seed_warns_once() -> None:
    env = RslRlEnv(LeggedGymFake())
    with pytest.warns(UserWarning, match=r"LeggedGymFake offers no seed\(\)"):
        env.reset(seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.reset(seed=2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_episode_lengths_can_be_set_and_move_the_time_outs(kind: str, dtype: torch.dtype) -> None:
    env = RslRlEnv(make(kind))
    env.reset()
    ages = torch.tensor([3, 0, 5], dtype=dtype)
    env.episode_length_buf = ages
    assert env.episode_length_buf.tolist() == [3, 0, 5]
    assert env.episode_length_buf.dtype == torch.int64
    step = env.step(torch.zeros(3, 2))
    assert step.truncated.tolist() == [True, False, True]  # limits are 4, 5 and 6 steps
    assert ages.tolist() == [3, 0, 5]  # the simulator counts in a buffer of its own
    with pytest.raises(ContractError, match=r"episode_length_buf: wanted int64 \[3\], found int64 \[2\]"):
        env.episode_length_buf = torch.zeros(2, dtype=torch.int64)


def test_limits_clocks_and_devices_come_in_many_forms() -> None:
    v1, v2, v4 = RslRlEnv(LeggedGymFake()), RslRlEnv(IsaacLabTwoFake()), RslRlEnv(make("v4"))
    assert (v1.max_episode_length, v2.max_episode_length, v4.max_episode_length) == (6, 6, 6)
    assert (v1.step_dt, v2.step_dt, v4.step_dt) == (0.02, 0.04, 0.05)
    assert v1.device == v2.device == v4.device == torch.device("cpu")
    assert isinstance(v1.max_episode_length, int)
    endless = make("v4")
    endless.max_episode_length = float("inf")
    assert RslRlEnv(endless).max_episode_length == 0
    assert RslRlEnv(make("v4"), device="cpu").reset()["actor"].device == torch.device("cpu")


def test_tensors_move_to_the_device_that_is_asked_for() -> None:
    # 'meta' has no values but real devices and shapes: the adapter may look at nothing else
    env = RslRlEnv(LeggedGymFake(), device="meta")
    step = rollout(env, some_actions()[:1])[0]
    places = {value.device.type for value in (*step.obs.values(), step.reward, step.terminated, step.truncated)}
    assert places == {"meta"}


def test_metrics_unwrapped_and_close_pass_through() -> None:
    fake = make("v4")
    env = RslRlEnv(fake)
    assert env.unwrapped is fake.unwrapped
    assert RslRlEnv(LeggedGymFake()).metrics() == {}
    fake.unwrapped.tracking_error = torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64)
    fake.CoT = lambda: 2.0
    assert {name: value.tolist() for name, value in env.metrics().items()} == {
        "tracking_error": [0.5, 1.0, 1.5],
        "CoT": [2.0, 2.0, 2.0],
    }
    fake.CoT = torch.zeros(2)
    with pytest.raises(ContractError, match=r"CoT: wanted a number or \[3\], found float32 \[2\]"):
        env.metrics()
    closed: list[int] = []
    fake.close = lambda: closed.append(1)
    env.close()
    env.close()
    assert closed == [1]
    RslRlEnv(PlaygroundFake()).close()  # has no close()


# -- Playground ------------------------------------------------------------------------------------------------------


def test_playground_with_all_its_quirks() -> None:
    fake = PlaygroundFake()
    env = RslRlEnv(fake)
    assert env.generation == "v3"
    assert env.obs_spec.names == ("state", "privileged_state")
    assert fake.num_resets == 1
    with pytest.warns(UserWarning, match=r"offers no seed\(\)"):  # its `seed` is a number
        env.reset(seed=3)
    assert fake.num_resets == 2  # reset() answered; get_observations() would have reset once more
    actions = some_actions()
    for action, row in zip(actions, reference(actions), strict=True):
        step = env.step(action)
        assert step.obs["state"].tolist() == row["obs"]
        assert step.truncated.tolist() == row["late"]
        assert set(step.info["log"]) == {"rew_x", "level"}  # text is no number
        assert env.episode_length_buf.tolist() == row["length"]  # counted by the adapter
    assert fake.num_resets == 2
    assert env.step_dt == 0.0
    with pytest.raises(RuntimeError, match="PlaygroundFake cannot restart single envs"):
        env.reset_envs(torch.ones(3, dtype=torch.bool))
    with pytest.warns(UserWarning, match="moves a count, but not the time limit"):
        env.episode_length_buf = torch.tensor([1, 2, 3])
    assert env.episode_length_buf.tolist() == [1, 2, 3]


class WithoutReset(GroupsFake):
    reset = None  # type: ignore[assignment]


def test_an_env_without_reset_is_restarted_below_or_else_read() -> None:
    fake = WithoutReset()
    env = RslRlEnv(fake)
    env.step(torch.ones(3, 2))
    obs = env.reset()  # Isaac Lab's wrapper has no reset() of its own: the simulator's is used
    assert fake.unwrapped.num_resets == 2
    assert obs["policy"].tolist() == [[0.0, 0.0, 0.0, 0.0], [0.125, 0.0, 0.0, 0.0], [0.25, 0.0, 0.0, 0.0]]
    fake.unwrapped = SimpleNamespace(cfg=fake.cfg)
    env = RslRlEnv(fake)
    with pytest.warns(UserWarning, match=r"WithoutReset offers no reset\(\)"):
        again = env.reset()
    assert torch.equal(again["policy"], obs["policy"])


# -- no waiting for the device ---------------------------------------------------------------------------------------


class HostReads(TorchDispatchMode):
    """Record every operation that must wait for a device to bring a value to the host."""

    names = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique", "item")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name.startswith(self.names):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [*KINDS[:4], "v3 final"])
def test_a_step_reads_nothing_back_to_the_host(kind: str) -> None:
    final = kind == "v3 final"
    fake = make("v3", final_obs=True, done_dtype=torch.int64) if final else make(kind, done_dtype=torch.int64)
    env = RslRlEnv(
        fake,
        clip_actions=5.0,
        info_keys={"time_outs": TensorSpec(dtype="bool")},
        final_obs_key="final_obs" if final else None,
    )
    env.reset()
    with HostReads() as reads:
        for action in some_actions():
            env.step(action)
            env.episode_length_buf  # noqa: B018
        assert reads.found == []
        torch.ones(1).item()  # the recorder itself works
        torch.ones(1).nonzero()
    assert reads.found == ["_local_scalar_dense", "nonzero"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS[:4])
def test_a_step_on_the_gpu_never_synchronises(kind: str) -> None:
    env = RslRlEnv(make(kind, device="cuda:0", done_dtype=torch.int64))
    env.reset()
    actions = some_actions().cuda()
    env.step(actions[0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for action in actions[1:]:
            env.step(action)
    finally:
        torch.cuda.set_sync_debug_mode("default")
