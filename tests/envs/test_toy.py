"""The small tasks do what their formulas say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from striderl.data.actions import DiscreteSpec
from striderl.data.noise import uniform
from striderl.envs import toy
from striderl.envs.toy.base import EpisodeWords, ToyEnv
from striderl.envs.vec_env import Obs, Step


def play(env: ToyEnv, choose, num_steps: int, seed: int = 0) -> list[tuple[Obs, Step]]:
    """Return (observation acted on, step) pairs of a policy `choose(obs)`."""
    obs, pairs = env.reset(seed=seed), []
    for _ in range(num_steps):
        step = env.step(choose(obs))
        pairs.append((obs, step))
        obs = step.obs
    return pairs


def discounted(rewards: list[float], gamma: float) -> float:
    return sum(reward * gamma**t for t, reward in enumerate(rewards))


# -- bandits -----------------------------------------------------------------------------------------------------------


def test_bandit_pays_for_the_best_arm_only() -> None:
    env = toy.Bandit(3, config=toy.BanditConfig(num_arms=4, best_arm=2))
    assert torch.equal(env.reset(seed=0)["obs"], torch.ones(3, 1))
    step = env.step(torch.tensor([2, 0, 3]))
    assert step.reward.tolist() == [1.0, 0.0, 0.0]
    assert step.terminated.all()
    assert not step.truncated.any()
    assert env.episode_length_buf.tolist() == [0, 0, 0]
    assert (env.optimal_return(), env.random_return()) == (1.0, 0.25)


def test_contextual_bandit_shows_the_arm_and_draws_all_arms_equally() -> None:
    env = toy.Bandit(50, config=toy.BanditConfig(num_arms=5, contextual=True))
    pairs = play(env, lambda obs: obs["obs"].argmax(1), 100)
    assert all(step.reward.eq(1.0).all() for _, step in pairs)
    counts = torch.stack([obs["obs"].sum(0) for obs, _ in pairs]).sum(0)
    # 5000 draws: 1000 per arm, a standard deviation is 28
    assert counts.sum() == 5000
    assert ((counts - 1000).abs() < 110).all()
    # and the final observation is the arm of the episode that ended
    assert all(torch.equal(step.final_obs["obs"], obs["obs"]) for obs, step in pairs)


def test_continuous_bandit_pays_one_less_the_squared_distance() -> None:
    env = toy.ContinuousBandit(2, config=toy.ContinuousBanditConfig(target=0.5))
    env.reset(seed=0)
    assert env.step(torch.tensor([[0.5], [-1.0]])).reward.tolist() == [1.0, 1.0 - 2.25]
    shown = toy.ContinuousBandit(100, config=toy.ContinuousBanditConfig(contextual=True))
    obs = shown.reset(seed=0)
    assert shown.step(obs["obs"]).reward.tolist() == [1.0] * 100
    assert -1 <= obs["obs"].min() < -0.9 < 0.9 < obs["obs"].max() < 1


@pytest.mark.parametrize("masked", [False, True])
def test_hybrid_actions_pay_for_both_parts(masked: bool) -> None:
    env = toy.HybridActions(6, config=toy.HybridActionsConfig(masked=masked, max_episode_length=3))
    pairs = play(env, lambda obs: {"choice": obs["choice"].argmax(1), "amount": obs["amount"]}, 6)
    assert all(step.reward.eq(1.0).all() for _, step in pairs)
    assert [bool(step.truncated.all()) for _, step in pairs] == [False, False, True] * 2
    assert env.optimal_return() == 3.0
    obs = env.reset(seed=1)
    wrong = {"choice": (obs["choice"].argmax(1) + 1) % 3, "amount": obs["amount"] + torch.tensor([0.5, 0.0])}
    torch.testing.assert_close(env.step(wrong).reward, torch.full((6,), -0.25))
    if masked:
        assert obs["choice_mask"].gather(1, obs["choice"].argmax(1)[:, None]).all()
        assert not obs["choice_mask"].all()


# -- chains ------------------------------------------------------------------------------------------------------------


def test_chain_values_by_hand() -> None:
    # four states: from 2 the next step pays (1), from 1 the one after (g), from 0 the third (g^2)
    ends = toy.Chain(1, config=toy.ChainConfig(num_states=4))
    assert ends.value(0.9).tolist() == pytest.approx([0.81, 0.9, 1.0, 0.0])
    # without an end 1 is paid for ever after: 10, 9 and 8.1
    stays = toy.Chain(1, config=toy.ChainConfig(num_states=4, terminates=False, max_episode_length=20))
    assert stays.value(0.9).tolist() == pytest.approx([8.1, 9.0, 10.0, 10.0])


@pytest.mark.slow
@given(num_states=st.integers(2, 7), gamma=st.floats(0.1, 0.97), start=st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_chain_values_are_what_always_right_earns(num_states: int, gamma: float, start: int) -> None:
    start = min(start, num_states - 2)
    for terminates in (True, False):
        config = toy.ChainConfig(num_states=num_states, terminates=terminates, max_episode_length=1000)
        env = toy.Chain(1, config=config)
        env.reset(seed=0)
        for _ in range(start):
            env.step(torch.tensor([1]))
        rewards = []
        for _ in range(60):
            step = env.step(torch.tensor([1]))
            rewards.append(step.reward.item())
            if step.done.item():
                break
        # what is left after 60 steps of reward 1 is gamma^60 / (1 - gamma), unless the task ended
        rest = 0.0 if terminates else gamma ** len(rewards) / (1 - gamma)
        assert discounted(rewards, gamma) + rest == pytest.approx(env.value(gamma)[start].item(), rel=1e-6)


def test_chain_ends_by_termination_only_or_truncation_only() -> None:
    right = lambda obs: torch.ones(len(obs["obs"]), dtype=torch.int64)  # noqa: E731
    ends = [step for _, step in play(toy.Chain(2), right, 8)]
    assert [bool(step.terminated.all()) for step in ends] == [False, False, False, True] * 2
    assert not any(step.truncated.any() for step in ends)
    assert ends[3].final_obs["obs"].argmax(1).tolist() == [4, 4]
    assert ends[3].obs["obs"].argmax(1).tolist() == [0, 0]
    stays = toy.Chain(2, config=toy.ChainConfig(num_states=3, terminates=False, max_episode_length=5))
    steps = [step for _, step in play(stays, right, 5)]
    assert [step.reward[0].item() for step in steps] == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert [bool(step.truncated[0]) for step in steps] == [False] * 4 + [True]
    assert not any(step.terminated.any() for step in steps)
    assert stays.optimal_return() == 4.0
    assert toy.Chain(1).optimal_return() == 1.0


def test_left_of_the_first_state_is_the_first_state() -> None:
    env = toy.Chain(1)
    env.reset(seed=0)
    assert env.step(torch.tensor([0])).obs["obs"].argmax(1).item() == 0


def test_a_chain_must_be_able_to_end() -> None:
    with pytest.raises(ValueError, match="never end"):
        toy.ChainConfig(terminates=False)
    with pytest.raises(ValueError, match="at least 2"):
        toy.ChainConfig(num_states=1)


def test_the_time_limit_probe_truncates_and_the_terminator_terminates() -> None:
    any_action = lambda obs: torch.zeros(2, dtype=torch.int64)  # noqa: E731
    limit, end = (kind(2, config=toy.ProbeConfig(num_steps=3)) for kind in (toy.TimeLimit, toy.Terminator))
    for _, step in play(limit, any_action, 7):
        assert step.reward.tolist() == [1.0, 1.0]
        assert not step.terminated.any()
    assert [bool(step.truncated[0]) for _, step in play(limit, any_action, 6)] == [False, False, True] * 2
    pairs = play(end, any_action, 6)
    assert [bool(step.terminated[0]) for _, step in pairs] == [False, False, True] * 2
    assert not any(step.truncated.any() for _, step in pairs)
    assert [obs["obs"][0].argmax().item() for obs, _ in pairs] == [0, 1, 2] * 2
    assert limit.value(0.9) == pytest.approx(10.0)
    # 1 + 0.9 + 0.81 = 2.71; with two steps left 1.9; with one left 1
    assert end.value(0.9).tolist() == pytest.approx([2.71, 1.9, 1.0])
    assert (limit.optimal_return(), end.optimal_return()) == (3.0, 3.0)


# -- the grid ----------------------------------------------------------------------------------------------------------


def test_grid_follows_its_map() -> None:
    env = toy.Grid(1)  # S..#  .#..  ...G
    obs = env.reset(seed=0)
    # up, right, down, left of the start in the corner
    assert obs["action_mask"].tolist() == [[False, True, True, False]]
    obs = env.step(torch.tensor([1])).obs
    assert obs["cell"].argmax(1).item() == 1
    assert obs["action_mask"].tolist() == [[False, True, False, True]]  # a wall below
    stayed = env.step(torch.tensor([2]))
    assert stayed.obs["cell"].argmax(1).item() == 1
    assert stayed.reward.item() == -1.0


def test_the_shortest_path_is_walked_and_valued() -> None:
    env = toy.Grid(2)
    assert env.shortest_path() == 5
    pairs = play(env, env.best_actions, 10)
    assert [bool(step.terminated.all()) for _, step in pairs] == [False, False, False, False, True] * 2
    assert pairs[4][1].final_obs["cell"].argmax(1).tolist() == [11, 11]
    assert env.optimal_return() == -5.0
    # at the goal 0, next to it -1, two away -1.9
    value = env.value(0.9)
    assert [value[11].item(), value[10].item(), value[6].item()] == pytest.approx([0.0, -1.0, -1.9])
    assert value[0].item() == pytest.approx(discounted([-1.0] * 5, 0.9))


@given(data=st.data(), height=st.integers(2, 4), width=st.integers(2, 4))
@settings(max_examples=30, deadline=None)
def test_shortest_paths_equal_value_iteration(data: st.DataObject, height: int, width: int) -> None:
    cells = data.draw(st.lists(st.sampled_from(".#"), min_size=height * width, max_size=height * width))
    cells[0], cells[-1] = "S", "G"
    rows = tuple("".join(cells[row * width : (row + 1) * width]) for row in range(height))
    # an independent way to the distances: relax every edge as often as there are cells
    far = 10**6
    distance = [far] * len(cells)
    distance[-1] = 0
    for _ in cells:
        for cell, kind in enumerate(cells):
            row, column = divmod(cell, width)
            for r, c in ((row - 1, column), (row, column + 1), (row + 1, column), (row, column - 1)):
                if kind != "#" and 0 <= r < height and 0 <= c < width and cells[r * width + c] != "#":
                    distance[cell] = min(distance[cell], distance[r * width + c] + 1)
    if distance[0] >= far:
        with pytest.raises(ValueError, match="no way leads"):
            toy.Grid(1, config=toy.GridConfig(rows=rows))
    else:
        assert toy.Grid(1, config=toy.GridConfig(rows=rows)).shortest_path() == distance[0]


def test_maps_are_checked() -> None:
    with pytest.raises(ValueError, match="one S and one G"):
        toy.GridConfig(rows=("S.", ".."))
    with pytest.raises(ValueError, match="rows of one length"):
        toy.GridConfig(rows=("S.", "G"))


# -- memory ------------------------------------------------------------------------------------------------------------


def test_memory_cue_shows_the_cue_once_and_asks_at_the_end() -> None:
    env = toy.MemoryCue(8, config=toy.MemoryCueConfig(num_cues=3, delay=2))
    obs = env.reset(seed=0)
    cue = obs["cue"].argmax(1)
    assert obs["cue"].sum(1).eq(1).all()
    for t in range(3):
        assert obs["go"].flatten().eq(1.0 if t == 2 else 0.0).all()
        assert t == 0 or obs["cue"].eq(0).all()
        step = env.step(cue)
        assert step.reward.eq(1.0 if t == 2 else 0.0).all()
        assert step.terminated.eq(t == 2).all()
        obs = step.obs
    assert obs["cue"].sum(1).eq(1).all()
    assert env.optimal_return() == 1.0
    assert env.memoryless_return() == pytest.approx(1 / 3)
    for _ in range(2):
        env.step(cue)
    assert env.step((obs["cue"].argmax(1) + 1) % 3).reward.eq(0.0).all()


def test_repeat_obs_wants_the_symbol_of_lag_steps_ago() -> None:
    env = toy.RepeatObs(5, config=toy.RepeatObsConfig(num_symbols=3, lag=2, num_steps=7))
    obs, seen, rewards = env.reset(seed=4), [], []
    for t in range(14):
        if t % 7 == 0:
            seen = []
        seen.append(obs["obs"].argmax(1))
        step = env.step(seen[-3] if len(seen) >= 3 else seen[0])
        rewards.append(step.reward[0].item())
        assert step.terminated.eq(t % 7 == 6).all()
        obs = step.obs
    assert rewards == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0] * 2
    assert env.optimal_return() == 5.0
    assert env.memoryless_return() == pytest.approx(5 / 3)
    assert step.final_obs["obs"].eq(0).all()
    with pytest.raises(ValueError, match="lag"):
        toy.RepeatObsConfig(lag=16, num_steps=16)


# -- probes ------------------------------------------------------------------------------------------------------------


def test_counting_is_predictable_to_the_last_number() -> None:
    env = toy.Counting(3, first_env_index=10, config=toy.CountingConfig(min_length=2, max_length=6))
    obs = env.reset(seed=7)
    place = [(10 + row, 0, 0) for row in range(3)]
    endings = set()
    for t in range(80):
        assert obs["obs"].tolist() == [[float(x) for x in triple] for triple in place]
        actions = torch.tensor([t % 4, (t + 1) % 4, 3])
        step = env.step(actions)
        assert torch.equal(step.info["action"], actions)
        for row, (index, number, count) in enumerate(place):
            length, terminates = env.episode(7, torch.tensor(index), torch.tensor(number))
            over = count + 1 == length.item()
            assert step.reward[row].item() == count
            assert step.terminated[row].item() == (over and terminates.item())
            assert step.truncated[row].item() == (over and not terminates.item())
            assert step.final_obs["obs"][row].tolist() == [index, number, count + 1]
            place[row] = (index, number + 1, 0) if over else (index, number, count + 1)
            if over:
                endings.add((length.item(), terminates.item()))
        obs = step.obs
    # all lengths and both kinds of ending occurred
    assert {length for length, _ in endings} == {2, 3, 4, 5, 6}
    assert {terminates for _, terminates in endings} == {True, False}
    assert env.optimal_return() == 15.0


def test_scripted_plays_its_tables() -> None:
    obs = {"x": torch.arange(8.0).view(4, 2, 1)}
    reward = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    terminated = torch.tensor([[False, False], [True, False], [False, False]])
    truncated = torch.tensor([[False, False], [False, False], [False, True]])
    script = toy.Script(
        obs=obs,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        final_obs={"x": -obs["x"][1:]},
        info={"speed": torch.ones(3, 2, 3)},
    )
    env = toy.Scripted(script, action_spec=DiscreteSpec(n=5))
    assert env.reset(seed=0)["x"].flatten().tolist() == [0.0, 1.0]
    lengths = []
    for t in range(3):
        step = env.step(torch.tensor([t, 4]))
        assert torch.equal(step.obs["x"], obs["x"][t + 1])
        assert torch.equal(step.reward, reward[t])
        assert torch.equal(step.terminated, terminated[t])
        assert torch.equal(step.truncated, truncated[t])
        assert torch.equal(step.final_obs["x"], -obs["x"][t + 1])
        assert step.info["speed"].shape == (2, 3)
        lengths.append(env.episode_length_buf.tolist())
    assert lengths == [[1, 1], [0, 2], [1, 0]]
    assert [received.tolist() for received in env.received] == [[0, 4], [1, 4], [2, 4]]
    with pytest.raises(IndexError, match="3 steps and all were played"):
        env.step(torch.tensor([0, 0]))
    saved = env.state_dict()
    assert env.reset()["x"].flatten().tolist() == [0.0, 1.0]
    assert env.load_state_dict(saved)["x"].flatten().tolist() == [6.0, 7.0]
    assert env.reset_envs(torch.tensor([True, False]))["x"].flatten().tolist() == [6.0, 7.0]
    assert env.episode_length_buf.tolist() == [0, 0]
    assert env.info_spec["speed"].shape == (3,)


def test_scripts_are_checked() -> None:
    flags = torch.zeros(3, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"obs\['x'\] wants \[4, 2, …\], found \[3, 2, 1\]"):
        toy.Script(obs={"x": torch.zeros(3, 2, 1)}, reward=torch.zeros(3, 2), terminated=flags, truncated=flags)
    with pytest.raises(ValueError, match=r"truncated wants \[3, 2, …\]"):
        toy.Script(obs={"x": torch.zeros(4, 2, 1)}, reward=torch.zeros(3, 2), terminated=flags, truncated=flags[:2])
    without = toy.Script(obs={"x": torch.zeros(4, 2, 1)}, reward=torch.zeros(3, 2), terminated=flags, truncated=flags)
    env = toy.Scripted(without)
    env.reset()
    assert not env.gives_final_obs
    assert env.step(torch.tensor([0, 1])).final_obs is None


# -- what all share ----------------------------------------------------------------------------------------------------


def test_words_are_the_shared_noise_and_do_not_depend_on_when_they_are_drawn() -> None:
    index = torch.arange(3, 6)
    words = EpisodeWords("x", 2, index)
    words.seek(9, torch.zeros(3, dtype=torch.int64))
    for episode in range(200):  # three supplies long
        taken = words.take(torch.full((3,), episode))
        # the numpy door to the same generator makes a double of the first two words: 27 bits of one, 26 of the other
        double = uniform("x", seed=9, env_index=index.numpy(), occasion=episode, count=1)[:, 0]
        mine = ((taken[:, 0] >> 5).double() * 2**26 + (taken[:, 1] >> 6).double()) * 2.0**-53
        assert mine.tolist() == double.tolist()


def test_an_envs_episodes_do_not_depend_on_the_others() -> None:
    whole, part = toy.Counting(6), toy.Counting(2, first_env_index=3)
    whole.reset(seed=1)
    part.reset(seed=1)
    for _ in range(300):
        many, few = whole.step(torch.zeros(6, dtype=torch.int64)), part.step(torch.zeros(2, dtype=torch.int64))
        assert torch.equal(many.obs["obs"][3:5], few.obs["obs"])
        assert torch.equal(many.terminated[3:5], few.terminated)


def test_reset_envs_begins_the_next_episode_of_the_masked_envs() -> None:
    env = toy.Counting(3, config=toy.CountingConfig(min_length=9, max_length=9))
    env.reset(seed=0)
    env.step(torch.zeros(3, dtype=torch.int64))
    assert env.reset_envs(torch.tensor([False, True, False]))["obs"].tolist() == [[0, 0, 1], [1, 1, 0], [2, 0, 1]]
    assert env.reset()["obs"].tolist() == [[0, 1, 0], [1, 2, 0], [2, 1, 0]]
    assert env.reset(seed=0)["obs"].tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]


def test_a_users_changes_do_not_reach_the_env() -> None:
    env, twin = (toy.HybridActions(2, config=toy.HybridActionsConfig(masked=True)) for _ in range(2))
    for value in env.reset(seed=0).values():
        value.zero_()
    twin.reset(seed=0)
    action = {"choice": torch.tensor([0, 1]), "amount": torch.zeros(2, 2)}
    mine, other = env.step(action), twin.step(action)
    assert torch.equal(mine.reward, other.reward)
    assert all(torch.equal(value, other.obs[name]) for name, value in mine.obs.items())


@pytest.mark.parametrize(
    ("actions", "error", "words"),
    [
        (torch.tensor([0, 1]), ValueError, r"wants actions \[3\], found \[2\]"),
        (torch.tensor([0, 2, 1]), ValueError, "env 1 got 2"),
        (torch.tensor([0, 1, -1]), ValueError, "env 2 got -1"),
        (torch.tensor([0.0, 1.0, 1.0]), TypeError, "int64 actions, found float32"),
        ({"a": torch.zeros(3)}, TypeError, "found dict"),
    ],
)
def test_wrong_actions_are_refused(actions, error, words) -> None:
    env = toy.Chain(3)
    env.reset(seed=0)
    with pytest.raises(error, match=words):
        env.step(actions)


def test_misuse_is_named() -> None:
    hybrid = toy.HybridActions(2)
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        hybrid.step({})
    hybrid.reset()
    with pytest.raises(ValueError, match=r"wants a dict of actions with \['amount', 'choice'\], found \['choice'\]"):
        hybrid.step({"choice": torch.zeros(2, dtype=torch.int64)})
    with pytest.raises(ValueError, match="at least one env"):
        toy.Chain(0)
    with pytest.raises(ValueError, match="3 were saved"):
        other = toy.Chain(3)
        other.reset()
        toy.Chain(2).load_state_dict(other.state_dict())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", [toy.Bandit, toy.Chain, toy.Grid, toy.MemoryCue, toy.RepeatObs, toy.Counting])
def test_the_gpu_sees_what_the_cpu_sees_without_waiting(kind: type) -> None:
    cpu, gpu = kind(5), kind(5, device="cuda")
    cpu.reset(seed=2)
    gpu.reset(seed=2)
    torch.cuda.set_sync_debug_mode("error")
    try:
        mine = [gpu.step(torch.ones(5, dtype=torch.int64, device="cuda")) for _ in range(80)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for step in mine:
        other = cpu.step(torch.ones(5, dtype=torch.int64))
        assert torch.equal(step.reward.cpu(), other.reward)
        assert all(torch.equal(value.cpu(), other.obs[name]) for name, value in step.obs.items())
