"""The classic tasks against Gymnasium's own classes, and the parts of the contract that are theirs."""

from __future__ import annotations

import copy
import math

import gymnasium
import numpy as np
import pytest
import torch

from striderl.data.noise import uniform
from striderl.envs.classic_control import (
    CLASSIC_TASKS,
    Acrobot,
    CartPole,
    CartPoleConfig,
    MountainCar,
    MountainCarConfig,
    MountainCarContinuous,
    MountainCarContinuousConfig,
    Pendulum,
    PendulumConfig,
)
from striderl.envs.classic_control.base import EpisodeStarts
from striderl.envs.vec_env import Step, VecEnv

LIMITS = {
    "CartPole-v1": 500,
    "Pendulum-v1": 200,
    "Acrobot-v1": 500,
    "MountainCar-v0": 200,
    "MountainCarContinuous-v0": 999,
}


def choose(task: str, obs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Pick actions that visit the whole task: half the envs at random, the others by a rule that gets somewhere."""
    num_envs = len(obs)
    skilled = torch.arange(num_envs) % 2 == 0
    if task == "CartPole-v1":
        rule = (obs[:, 2] + 0.5 * obs[:, 3] + 0.1 * obs[:, 0] + 0.2 * obs[:, 1] > 0).long()
        return torch.where(skilled, rule, torch.randint(0, 2, (num_envs,), generator=generator))
    if task == "Acrobot-v1":
        return torch.where(skilled, 2 * (obs[:, 4] < 0).long(), torch.randint(0, 3, (num_envs,), generator=generator))
    if task == "MountainCar-v0":
        return torch.where(skilled, 2 * (obs[:, 1] >= 0).long(), torch.randint(0, 3, (num_envs,), generator=generator))
    # beyond the bounds as often as within them, because clipping is part of the task
    random = 3.0 * torch.randn(num_envs, 1, generator=generator)
    rule = torch.sign(obs[:, -1:] + 1e-9) * (0.5 + torch.rand(num_envs, 1, generator=generator))
    return torch.where(skilled[:, None], rule, random)


def gym_action(task: str, action: torch.Tensor) -> object:
    return action.numpy() if action.ndim else int(action)


def put_state(task: str, single: gymnasium.Env, state: np.ndarray) -> np.ndarray:
    """Begin an episode of Gymnasium's env in our state, and return what it would show."""
    single.reset()
    inner = single.unwrapped
    if task == "Acrobot-v1":
        inner.state = state[:4].astype(np.float32)
        return inner._get_ob()
    inner.state = state[:2].copy() if task == "MountainCarContinuous-v0" else state.copy()
    return inner._get_obs() if task == "Pendulum-v1" else np.array(inner.state, dtype=np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("task", CLASSIC_TASKS)
def test_equals_gymnasium_step_for_step(task: str) -> None:
    num_envs, num_steps = 4, 1300
    ours = CLASSIC_TASKS[task](num_envs)
    theirs = [gymnasium.make(task) for _ in range(num_envs)]
    generator = torch.Generator().manual_seed(1)
    obs = ours.reset(seed=3)["obs"]
    for env, single in enumerate(theirs):
        np.testing.assert_array_equal(obs[env].numpy(), put_state(task, single, ours.state[env]))
    ends = {"terminated": 0, "truncated": 0}
    for t in range(num_steps):
        actions = choose(task, obs, generator)
        step = ours.step(actions)
        state = ours.state
        for env, single in enumerate(theirs):
            seen, reward, terminated, truncated, _ = single.step(gym_action(task, actions[env]))
            where = f"{task}, env {env}, step {t}"
            np.testing.assert_array_equal(step.final_obs["obs"][env].numpy(), seen, err_msg=where)
            assert step.reward[env].item() == float(np.float32(reward)), where
            assert (step.terminated[env].item(), step.truncated[env].item()) == (terminated, truncated), where
            if terminated or truncated:
                ends["terminated"] += terminated
                ends["truncated"] += truncated
                seen = put_state(task, single, state[env])
            else:
                mine = np.asarray(state[env][: len(single.unwrapped.state)])
                np.testing.assert_array_equal(mine, np.asarray(single.unwrapped.state, np.float64), err_msg=where)
            np.testing.assert_array_equal(step.obs["obs"][env].numpy(), seen, err_msg=where)
        obs = step.obs["obs"]
    # the comparison has seen both kinds of ending, where the task has both
    assert ends["truncated"] > 0
    assert ends["terminated"] > 0 or task == "Pendulum-v1"


def test_the_acrobots_first_observation_is_rounded_as_gymnasiums() -> None:
    # float32 sines differ from rounded float64 ones about once in two thousand: only many starts show it
    env = Acrobot(6000)
    obs = env.reset(seed=0)["obs"].numpy()
    single = gymnasium.make("Acrobot-v1").unwrapped
    for row, state in enumerate(env.state):
        single.state = state[:4].astype(np.float32)
        np.testing.assert_array_equal(obs[row], single._get_ob())


def test_the_pendulums_reward_squares_as_gymnasium_does() -> None:
    # almost upright and still, the reward is the torque's alone, and the last bit of its float32 square shows
    env = Pendulum(6000)
    env.reset(seed=0)
    saved = env.state_dict()
    saved["state"] = 1e-6 * saved["state"]
    env.load_state_dict(saved)
    torque = 4.0 * torch.rand(6000, 1, generator=torch.Generator().manual_seed(0)) - 2.0
    states, rewards = env.state, env.step(torque).reward
    single = gymnasium.make("Pendulum-v1").unwrapped
    for row, state in enumerate(states):
        single.state = state.copy()
        reward = single.step(torque[row].numpy())[1]
        assert rewards[row].item() == float(np.float32(reward)), f"env {row}"


def test_settings_equal_gymnasiums() -> None:
    ours = CartPole(1, config=CartPoleConfig(sutton_barto_reward=True))
    ours.reset(seed=0)
    rewards = [ours.step(torch.tensor([1])) for _ in range(20)]
    fell = next(t for t, step in enumerate(rewards) if step.terminated.item())
    assert [step.reward.item() for step in rewards[: fell + 1]] == [0.0] * fell + [-1.0]

    moon = Pendulum(1, config=PendulumConfig(gravity=1.62))
    moon.reset(seed=0)
    theirs = gymnasium.make("Pendulum-v1", g=1.62)
    put_state("Pendulum-v1", theirs, moon.state[0])
    for _ in range(50):
        step = moon.step(torch.tensor([[0.3]]))
        seen, reward, *_ = theirs.step(np.array([0.3], np.float32))
        np.testing.assert_array_equal(step.final_obs["obs"][0].numpy(), seen)
        assert step.reward.item() == float(np.float32(reward))


@pytest.mark.parametrize("make", [
    lambda goal: MountainCar(1, config=MountainCarConfig(goal_velocity=goal)),
    lambda goal: MountainCarContinuous(1, config=MountainCarContinuousConfig(goal_velocity=goal)),
])  # fmt: skip
def test_a_car_must_be_fast_enough_at_the_flag(make) -> None:
    def arrives(env: VecEnv) -> bool:
        obs = env.reset(seed=0)["obs"]
        for _ in range(180):
            right = obs[0, 1] >= 0
            action = (
                torch.tensor([2 if right else 0])
                if isinstance(env, MountainCar)
                else torch.tensor([[1.0 if right else -1.0]])
            )
            step = env.step(action)
            if step.terminated.item():
                return True
            obs = step.obs["obs"]
        return False

    assert arrives(make(0.0))
    assert not arrives(make(0.08))  # faster than any car can go


@pytest.mark.parametrize("task", CLASSIC_TASKS)
def test_time_limits_are_gymnasiums(task: str) -> None:
    env = CLASSIC_TASKS[task](2)
    assert env.max_episode_length == LIMITS[task] == gymnasium.spec(task).max_episode_steps


def test_an_episode_as_old_as_the_limit_less_one_is_truncated_next() -> None:
    env = Pendulum(3)
    env.reset(seed=0)
    zero = torch.zeros(3, 1)
    env.step(zero)
    env.episode_length_buf = torch.tensor([199, 0, 198])
    step = env.step(zero)
    assert step.truncated.tolist() == [True, False, False]
    assert env.episode_length_buf.tolist() == [0, 1, 199]
    assert env.step(zero).truncated.tolist() == [False, False, True]
    assert env.episode_length_buf.tolist() == [1, 2, 0]
    # the others follow 200 steps after their own beginnings: env 1 after 198 more, env 0 after 199, env 2 after 200
    ended = {env_index: t for t in range(1, 201) for env_index in env.step(zero).truncated.nonzero().flatten().tolist()}
    assert ended == {1: 198, 0: 199, 2: 200}


def test_no_limit_means_no_truncation() -> None:
    env = Pendulum(1, config=PendulumConfig(max_episode_length=0))
    env.reset(seed=0)
    assert not any(env.step(torch.zeros(1, 1)).truncated.item() for _ in range(500))
    assert env.episode_length_buf.item() == 500


def walk(env: VecEnv, num_steps: int, seed: int = 0) -> list[Step]:
    """Take the same random actions in every env, whatever the number of envs."""
    generator = torch.Generator().manual_seed(seed)
    shape = env.action_spec.tensor.shape
    steps = []
    for _ in range(num_steps):
        one = torch.randint(0, 2, (1, *shape), generator=generator)
        if shape:
            one = 2.0 * one.float() - 1.0
        steps.append(env.step(one.expand(env.num_envs, *shape)))
    return steps


@pytest.mark.parametrize("task", CLASSIC_TASKS)
def test_an_envs_data_does_not_depend_on_the_others(task: str) -> None:
    make = CLASSIC_TASKS[task]
    whole, part = make(7), make(2, first_env_index=3)
    assert torch.equal(whole.reset(seed=5)["obs"][3:5], part.reset(seed=5)["obs"])
    for env in (whole, part):
        env.episode_length_buf = torch.full((env.num_envs,), env.max_episode_length - 8)
    for all_steps, some in zip(walk(whole, 60), walk(part, 60), strict=True):
        assert torch.equal(all_steps.obs["obs"][3:5], some.obs["obs"])
        assert torch.equal(all_steps.reward[3:5], some.reward)
        assert torch.equal(all_steps.done[3:5], some.done)


def test_starts_are_the_noise_of_seed_env_and_episode() -> None:
    env = CartPole(2, first_env_index=10)
    env.reset(seed=42)
    env.reset_envs(torch.tensor([False, True]))
    env.reset_envs(torch.tensor([False, True]))
    for row, (index, episode) in enumerate([(10, 0), (11, 2)]):
        numbers = uniform("CartPole-v1", seed=42, env_index=np.array([index]), occasion=episode, count=4)
        np.testing.assert_allclose(env.state[row], 0.1 * numbers[0] - 0.05, rtol=0, atol=1e-16)


def test_starts_do_not_depend_on_how_far_ahead_they_are_drawn() -> None:
    num_envs, seed = 5000, 1  # so many envs are supplied six episodes ahead
    starts = EpisodeStarts("x", 3, np.arange(num_envs), lambda draws: draws.T)
    episode = np.zeros(num_envs, np.int64)
    starts.seek(seed, episode)
    random = np.random.default_rng(0)
    for _ in range(30):
        rows = np.flatnonzero(random.random(num_envs) < 0.4)
        episode[rows] += 1
        wanted = uniform("x", seed=seed, env_index=rows, occasion=episode[rows], count=3)
        np.testing.assert_array_equal(starts.take(rows, episode), wanted)
    # a seek into the middle of a life finds the same numbers
    starts.seek(seed, np.full(num_envs, 701))
    wanted = uniform("x", seed=seed, env_index=np.array([7]), occasion=702, count=3)
    np.testing.assert_array_equal(starts.take(np.array([7]), np.full(num_envs, 702)), wanted)


def test_reset_with_and_without_a_seed() -> None:
    env = CartPole(3)
    first = env.reset()["obs"]
    assert torch.equal(first, CartPole(3).reset(seed=0)["obs"])
    second = env.reset()["obs"]
    assert not torch.equal(first, second)
    assert torch.equal(env.reset(seed=0)["obs"], first)
    assert torch.equal(env.reset()["obs"], second)
    assert len({tuple(row) for row in first.tolist()}) == 3


@pytest.mark.parametrize("task", CLASSIC_TASKS)
def test_reset_envs_leaves_the_others_alone(task: str) -> None:
    env, twin = CLASSIC_TASKS[task](4), CLASSIC_TASKS[task](4)
    for each in (env, twin):
        each.reset(seed=2)
        before = walk(each, 5)[-1].obs["obs"]
    after = env.reset_envs(torch.tensor([False, True, False, True]))["obs"]
    assert torch.equal(after[0::2], before[0::2])
    assert (after[1::2] != before[1::2]).any(1).all()
    assert env.episode_length_buf.tolist() == [5, 0, 5, 0]
    for mine, other in zip(walk(env, 5), walk(twin, 5), strict=True):
        assert torch.equal(mine.obs["obs"][0::2], other.obs["obs"][0::2])


@pytest.mark.parametrize("task", CLASSIC_TASKS)
def test_a_saved_state_continues_bit_for_bit(task: str) -> None:
    env = CLASSIC_TASKS[task](3)
    env.reset(seed=9)
    env.episode_length_buf = torch.tensor([env.max_episode_length - 12, 0, 3])
    last = walk(env, 11)[-1]
    for _ in range(2):  # once in the middle of episodes, once just after a reset
        saved = env.state_dict()
        other = CLASSIC_TASKS[task](3)
        assert torch.equal(other.load_state_dict(saved)["obs"], last.obs["obs"])
        for mine, theirs in zip(walk(env, 40), walk(other, 40), strict=True):
            assert torch.equal(mine.obs["obs"], theirs.obs["obs"])
            assert torch.equal(mine.final_obs["obs"], theirs.final_obs["obs"])
            assert torch.equal(mine.done, theirs.done)
        assert torch.equal(env.episode_length_buf, other.episode_length_buf)
        env.load_state_dict(saved)
        last = env.step(torch.zeros(3, *env.action_spec.tensor.shape, dtype=torch.int64))
    assert last.truncated.tolist() == [False, False, False]


def test_a_saved_state_is_not_changed_later() -> None:
    env = CartPole(2)
    env.reset(seed=0)
    saved = env.state_dict()
    before = copy.deepcopy(saved)
    walk(env, 30)
    assert all(torch.equal(saved[key], before[key]) for key in ("state", "episode", "episode_length"))


@pytest.mark.parametrize("task", CLASSIC_TASKS)
def test_what_was_handed_out_never_changes(task: str) -> None:
    env = CLASSIC_TASKS[task](3)
    first = env.reset(seed=0)["obs"]
    kept, clones = [first], [first.clone()]
    env.episode_length_buf = torch.full((3,), env.max_episode_length - 4)
    for step in walk(env, 12):
        for tensor in (step.obs["obs"], step.final_obs["obs"], step.reward, step.terminated, step.truncated):
            kept.append(tensor)
            clones.append(tensor.clone())
    walk(env, 12)
    assert all(torch.equal(tensor, clone) for tensor, clone in zip(kept, clones, strict=True))


@pytest.mark.parametrize("task", CLASSIC_TASKS)
def test_what_a_user_does_to_a_tensor_does_not_reach_the_env(task: str) -> None:
    env, twin = CLASSIC_TASKS[task](2), CLASSIC_TASKS[task](2)
    for each in (env, twin):
        each.reset(seed=0)
    for mine, other in zip(walk(env, 3), walk(twin, 3), strict=True):
        for tensor in (mine.obs["obs"], mine.final_obs["obs"], mine.reward):
            tensor.fill_(777.0)
        mine.terminated.fill_(True)
        assert not other.terminated.any()
    assert torch.equal(walk(env, 1)[0].obs["obs"], walk(twin, 1)[0].obs["obs"])


@pytest.mark.parametrize(
    ("actions", "error", "words"),
    [
        (torch.tensor([0, 1]), ValueError, r"wants actions \[3\], found \[2\]"),
        (torch.tensor([[0], [1], [1]]), ValueError, r"found \[3, 1\]"),
        (torch.tensor([0, 2, 1]), ValueError, "choices 0 to 1; env 1 got 2"),
        (torch.tensor([0, 1, -1]), ValueError, "env 2 got -1"),
        (torch.tensor([0.0, 1.0, 1.0]), TypeError, "wants int64 actions, found float32"),
        ({"a": torch.zeros(3)}, TypeError, "found dict"),
    ],
)
def test_wrong_actions_are_refused_and_change_nothing(actions, error, words) -> None:
    env = CartPole(3)
    env.reset(seed=0)
    before = env.state
    with pytest.raises(error, match=words):
        env.step(actions)
    np.testing.assert_array_equal(env.state, before)
    assert env.episode_length_buf.tolist() == [0, 0, 0]


def test_other_integer_dtypes_and_gradients_are_welcome() -> None:
    env, twin = CartPole(2), CartPole(2)
    for each in (env, twin):
        each.reset(seed=0)
    assert torch.equal(
        env.step(torch.tensor([1, 0], dtype=torch.int32)).obs["obs"], twin.step(torch.tensor([1, 0])).obs["obs"]
    )
    swing = Pendulum(1)
    swing.reset(seed=0)
    assert not swing.step(torch.ones(1, 1, requires_grad=True)).obs["obs"].requires_grad


def saved_state(env: VecEnv) -> dict:
    env.reset(seed=0)
    return env.state_dict()


def test_misuse_is_named() -> None:
    env = Acrobot(2)
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.step(torch.tensor([0, 0]))
    env.reset()
    with pytest.raises(ValueError, match=r"bool mask \[2\]"):
        env.reset_envs(torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="as many envs as were saved"):
        env.load_state_dict(saved_state(Acrobot(3)))
    with pytest.raises(ValueError, match="at least one env"):
        CartPole(0)
    with pytest.raises(ValueError, match="max_episode_length"):
        CartPoleConfig(max_episode_length=-1)
    with pytest.raises(TypeError, match="load its state_dict"):
        copy.deepcopy(env)


@pytest.mark.parametrize("task", CLASSIC_TASKS)
def test_pictures_show_the_env_asked_for(task: str) -> None:
    env = CLASSIC_TASKS[task](2)
    env.reset(seed=0)
    walk(env, 10)
    env.reset_envs(torch.tensor([False, True]))
    first, second = env.render(0), env.render(1)
    assert first.dtype == np.uint8
    assert first.shape[2] == 3
    assert first.std() > 5  # neither black nor blank
    assert (first != second).any()
    assert np.array_equal(first, env.render(0))


def test_cartpole_picture_leans_with_the_pole() -> None:
    env = CartPole(1)
    env.reset(seed=0)
    saved = env.state_dict()
    saved["state"] = torch.tensor([[0.0, 0.0, math.pi / 4, 0.0]], dtype=torch.float64)
    env.load_state_dict(saved)
    brown = (env.render() == (202, 152, 101)).all(-1)
    rows, columns = brown.nonzero()
    assert columns[rows == rows.min()].mean() > 340  # theta > 0 leans to the right of the middle, 300


def test_devices_other_than_the_cpu_get_their_tensors() -> None:
    env = CartPole(2, device="meta")  # a device without memory shows where tensors go, on every machine
    assert env.reset(seed=0)["obs"].device.type == "meta"
    assert env.episode_length_buf.device.type == "meta"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_sees_what_the_cpu_sees() -> None:
    cpu, gpu = CartPole(4), CartPole(4, device="cuda")
    assert torch.equal(cpu.reset(seed=0)["obs"], gpu.reset(seed=0)["obs"].cpu())
    actions = torch.tensor([0, 1, 1, 0])
    for _ in range(30):
        mine, theirs = gpu.step(actions.cuda()), cpu.step(actions)
        assert mine.reward.is_cuda
        assert torch.equal(mine.obs["obs"].cpu(), theirs.obs["obs"])
