"""The collector: exact counts, predictable data, the same for every schedule, nothing bad in the storage."""

from __future__ import annotations

import pytest
import torch

from striderl.collect.actors.base import RandomActor, ScriptedActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.actions import BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.data.noise import draw_all
from striderl.data.transition import Transition
from striderl.envs.classic_control import CartPole
from striderl.envs.toy import Counting, CountingConfig, Grid, GridConfig, HybridActions, Script, Scripted
from striderl.storage.rollout import RolloutStorage


class ListStorage:
    """Keeps every transition, env by env."""

    balanced = False

    def __init__(self, num_envs: int) -> None:
        self.columns: list[list[Transition]] = [[] for _ in range(num_envs)]

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        assert envs is not None
        for offset, env in enumerate(range(envs.start, envs.stop)):
            self.columns[env].append(transition.rows(slice(offset, offset + 1)))

    def __len__(self) -> int:
        return sum(len(column) for column in self.columns)


def counting(num_envs=3, **settings):
    return Counting(num_envs, config=CountingConfig(**settings))


def check_counting_column(column: list[Transition], env: int) -> int:
    """Every transition of a Counting env is known: obs (env, episode, step), reward = step. Return ended episodes."""
    episode = step = 0
    for transition in column:
        assert transition.obs["obs"][0].tolist() == [env, episode, step]
        assert transition.rew.item() == step
        if transition.done.item():
            assert transition.final_obs["obs"][0].tolist() == [env, episode, step + 1]
            assert transition.obs_next()["obs"][0].tolist() == [env, episode, step + 1]
            assert transition.next_obs["obs"][0].tolist() == [env, episode + 1, 0]
            episode, step = episode + 1, 0
        else:
            assert transition.obs_next()["obs"][0].tolist() == [env, episode, step + 1]
            step += 1
    return episode


# -- exact counts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [[6, 6], [4, 4, 4], [1] * 7, [5, 1, 9, 3], [2, 40]])
def test_steps_are_exact_and_nothing_is_lost_between_calls(calls):
    env = counting(3)
    collector = Collector(env, RandomActor(env.action_spec))
    storage = ListStorage(3)
    for n_step in calls:
        before = len(storage)
        assert collector.collect(n_step=n_step, storage=storage).num_steps == n_step
        assert len(storage) - before == n_step
    for number, column in enumerate(storage.columns):
        check_counting_column(column, number)


def test_collecting_without_storage_counts_the_same():
    stored, bare = counting(4), counting(4)
    one = Collector(stored, RandomActor(stored.action_spec))
    two = Collector(bare, RandomActor(bare.action_spec))
    one.collect(n_step=200, storage=ListStorage(4))
    two.collect(n_step=200)
    assert one.statistics.read() == two.statistics.read()


@pytest.mark.parametrize(("num_envs", "n_episode", "quotas"), [(3, 7, [3, 2, 2]), (4, 2, [1, 1, 0, 0]), (1, 5, [5])])
def test_episodes_are_exact_and_whole(num_envs, n_episode, quotas):
    env = counting(num_envs)
    collector = Collector(env, RandomActor(env.action_spec))
    collector.collect(n_step=5 * num_envs)  # leave episodes half-way: they must not be counted
    storage = ListStorage(num_envs)
    collected = collector.collect(n_episode=n_episode, storage=storage)
    assert len(collected.returns) == len(collected.lengths) == n_episode
    assert collected.num_steps == sum(collected.lengths) == len(storage)
    # an episode of L steps returns 0 + 1 + … + (L - 1)
    assert collected.returns == [length * (length - 1) / 2 for length in collected.lengths]
    ended = [sum(int(t.done) for t in column) for column in storage.columns]
    assert ended == quotas
    assert all(not column or bool(column[-1].done) for column in storage.columns)
    assert all(not column or column[0].rew.item() == 0 for column in storage.columns)


def test_episodes_per_env():
    env = counting(3)
    storage = ListStorage(3)
    Collector(env, RandomActor(env.action_spec)).collect(n_episode=[0, 3, 1], storage=storage)
    assert [sum(int(t.done) for t in column) for column in storage.columns] == [0, 3, 1]


def test_short_episodes_are_not_preferred():
    # env lengths differ; with quotas each env gives its share, whichever would have ended first
    env = counting(8, min_length=1, max_length=40)
    collected = Collector(env, RandomActor(env.action_spec)).collect(n_episode=8)
    first = env.episode(0, torch.arange(8), torch.zeros(8, dtype=torch.int64))
    assert collected.lengths == first.length.tolist()


def test_after_episodes_steps_start_fresh():
    env = counting(2)
    collector = Collector(env, RandomActor(env.action_spec))
    collector.collect(n_episode=3)
    storage = ListStorage(2)
    collector.collect(n_step=2, storage=storage)
    assert [column[0].rew.item() for column in storage.columns] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "exactly one of n_step and n_episode"),
        ({"n_step": 1, "n_episode": 1}, "exactly one"),
        ({"n_step": 0}, "at least 1"),
        ({"n_episode": 0}, "n_episode must be at least 1"),
        ({"n_episode": [1]}, "1 numbers for 2 envs"),
        ({"n_episode": [-1, 3]}, "n_episode must be at least 0"),
        ({"n_episode": [0, 0]}, "at least one episode"),
    ],
)
def test_bad_requests(arguments, text):
    env = counting(2)
    with pytest.raises(ValueError, match=text):
        Collector(env, RandomActor(env.action_spec)).collect(**arguments)


def test_bad_settings():
    with pytest.raises(ValueError, match=r"no schedule 'togther'\. Did you mean 'together'"):
        CollectorConfig(schedule="togther")
    with pytest.raises(ValueError, match="no meaning"):
        CollectorConfig(schedule="asynchronous", wait_reset=True)
    env = counting(2)
    with pytest.raises(TypeError, match="which Counting cannot; use 'together'"):
        Collector(env, RandomActor(env.action_spec), CollectorConfig(schedule="alternating"))


# -- rollouts ----------------------------------------------------------------------------------------------------------


def test_rollout_storage_holds_the_steps_time_major():
    env = counting(3)
    collector = Collector(env, RandomActor(env.action_spec))
    storage = RolloutStorage(collector.columns(), 10, 3, final_obs=env.obs_spec)
    collector.collect(n_step=30, storage=storage)
    assert storage.full and len(storage) == 30
    batch = storage.batch()
    reference = ListStorage(3)
    other = counting(3)
    Collector(other, RandomActor(other.action_spec)).collect(n_step=30, storage=reference)
    for env_number, column in enumerate(reference.columns):
        for step, transition in enumerate(column):
            assert torch.equal(batch.obs.obs[step, env_number], transition.obs["obs"][0])
            assert batch.act[step, env_number] == transition.act[0]
            assert batch.terminated[step, env_number] == transition.terminated[0]
    wanted = {
        (step, number): transition.final_obs["obs"][0].tolist()
        for number, column in enumerate(reference.columns)
        for step, transition in enumerate(column)
        if transition.truncated.item() and not transition.terminated.item()
    }
    count = int(storage.finals.count)
    pool = storage.finals.arena.data
    found = {(int(pool["step"][row]), int(pool["env"][row])): pool["obs"]["obs"][row].tolist() for row in range(count)}
    assert wanted and found == wanted
    with pytest.raises(IndexError, match="is full"):
        collector.collect(n_step=3, storage=storage)
    storage.clear()
    collector.collect(n_step=30, storage=storage)


def test_a_full_pool_counts_on_and_keeps_what_it_has():
    env = counting(4, min_length=1, max_length=1)  # every step ends an episode
    collector = Collector(env, RandomActor(env.action_spec))
    storage = RolloutStorage(collector.columns(), 6, 4, final_obs=env.obs_spec, pool_size=2)
    collector.collect(n_step=24, storage=storage)
    truncated = int((storage.data["truncated"] & ~storage.data["terminated"]).sum())
    assert int(storage.finals.count) == truncated > 2


def test_rollout_wants_a_multiple_of_the_envs():
    env = counting(3)
    collector = Collector(env, RandomActor(env.action_spec))
    with pytest.raises(ValueError, match="n_step=10 is not a multiple"):
        collector.collect(n_step=10, storage=RolloutStorage(collector.columns(), 4, 3))


# -- actors ------------------------------------------------------------------------------------------------------------


def test_scripted_actor_and_true_returns():
    env = CartPole(2)
    actor = ScriptedActor(lambda obs: (obs["obs"][:, 2] + obs["obs"][:, 3] > 0).long())
    collected = Collector(env, actor).collect(n_episode=4)
    assert min(collected.lengths) > 100  # pushing towards the fall balances for long
    assert collected.returns == [float(length) for length in collected.lengths]


@pytest.mark.parametrize(
    "spec",
    [
        BoxSpec(shape=(2,), low=(-1.0, 0.0), high=(1.0, 5.0)),
        BoxSpec(shape=(2,), low=-float("inf"), high=(float("inf"), 3.0)),
        DiscreteSpec(n=3),
        MultiDiscreteSpec(nvec=(2, 4)),
        DictActionSpec({"go": DiscreteSpec(n=2), "how": BoxSpec(shape=(1,), low=0.0, high=2.0)}),
    ],
)
def test_random_actions_are_in_bounds_and_cover_them(spec):
    actor = RandomActor(spec)
    noise = draw_all(actor.noise(), seed=1, iteration=0, env_index=torch.arange(2000), num_steps=1)
    actions = actor.act({}, (), {name: value[0] for name, value in noise.items()}).actions
    if isinstance(spec, BoxSpec):
        low, high = (torch.as_tensor(bound) for bound in spec.bounds())
        assert bool(((actions >= low) & (actions <= high)).all()) and bool(torch.isfinite(actions).all())
        bounded = torch.isfinite(high - low)
        assert torch.allclose(actions.mean(0)[bounded], ((low + high) / 2)[bounded], atol=0.15)
    elif isinstance(spec, DiscreteSpec):
        assert torch.bincount(actions, minlength=3).min() > 550
    elif isinstance(spec, MultiDiscreteSpec):
        assert torch.bincount(actions[:, 1], minlength=4).min() > 400 and int(actions[:, 0].max()) == 1
    else:
        assert set(actions) == {"go", "how"} and actions["how"].shape == (2000, 1)


def test_masks_are_respected():
    env = Grid(8, config=GridConfig())
    collector = Collector(env, RandomActor(env.action_spec))
    storage = ListStorage(8)
    collector.collect(n_step=400, storage=storage)
    for column in storage.columns:
        for transition in column:
            assert bool(transition.obs["action_mask"][0, transition.act[0]])


def test_dict_actions_are_stored():
    env = HybridActions(4)
    collector = Collector(env, RandomActor(env.action_spec))
    storage = RolloutStorage(collector.columns(), 5, 4)
    collector.collect(n_step=20, storage=storage)
    assert set(storage.data["act"]) == set(env.action_spec.parts)


class RecurrentCounter:
    """Counts its own steps in its memory and plays the count; stores the count as a column."""

    def columns(self):
        from striderl.data.specs import TensorSpec

        return {"count": TensorSpec(dtype="int64")}

    def noise(self):
        return {}

    def initial_state(self, num_envs, device):
        return {"count": torch.zeros(num_envs, dtype=torch.int64, device=device)}

    def act(self, obs, state, noise):
        from striderl.collect.actors.base import ActorOutput

        count = state["count"]
        return ActorOutput(count % 4, {"count": count + 1}, {"count": count})


def test_memory_starts_afresh_with_every_episode():
    env = counting(5)
    collector = Collector(env, RecurrentCounter())
    storage = RolloutStorage(collector.columns(), 40, 5)
    collector.collect(n_step=200, storage=storage)
    # the actor's own count of steps in the episode is the env's
    assert torch.equal(storage.data["policy"]["count"].float(), storage.data["obs"]["obs"][..., 2])


def test_the_env_cannot_change_what_is_stored():
    class Vandal(Counting):
        def step(self, actions):
            actions.fill_(0)
            return super().step(actions)

    env = Vandal(3, config=CountingConfig())
    collector = Collector(env, RandomActor(env.action_spec))
    storage = RolloutStorage(collector.columns(), 10, 3)
    collector.collect(n_step=30, storage=storage)
    assert int(storage.data["act"].max()) > 0


# -- previous action and reward, waiting, decorrelation ----------------------------------------------------------------


def test_previous_action_and_reward_are_nulled_after_a_reset():
    env = counting(3)
    collector = Collector(env, RandomActor(env.action_spec), CollectorConfig(previous_step=True))
    storage = RolloutStorage(collector.columns(), 30, 3)
    collector.collect(n_step=90, storage=storage)
    data = storage.data
    done = data["terminated"] | data["truncated"]
    expected = torch.where(done[:-1], 0, data["act"][:-1])
    assert torch.equal(data["obs"]["prev_action"][1:], expected) and not data["obs"]["prev_action"][0].any()
    assert torch.equal(data["obs"]["prev_reward"][1:], torch.where(done[:-1], 0.0, data["rew"][:-1]))


def test_wait_reset_blanks_the_rest_of_the_column():
    env = counting(6, min_length=2, max_length=9)
    collector = Collector(env, RandomActor(env.action_spec), CollectorConfig(wait_reset=True))
    storage = RolloutStorage(collector.columns(), 12, 6)
    num_valid = 0
    for _ in range(2):  # the second batch starts with new episodes where the first had ended
        storage.clear()
        collector.collect(n_step=72, storage=storage)
        data = storage.data
        done = (data["terminated"] | data["truncated"]).int()
        ended_before = torch.cat([torch.zeros(1, 6), done.cumsum(0)[:-1]]) > 0
        assert torch.equal(data["valid"], ~ended_before)
        assert bool(done[ended_before].all()) and not data["rew"][ended_before].any()
        assert not data["obs"]["obs"][ended_before].any() and not data["act"][ended_before].any()
        num_valid += int(data["valid"].sum())
        assert bool((data["obs"]["obs"][0, :, 2] == 0).all())  # all episodes are at most 9 long, so all waited
    assert int(collector.statistics.num_episodes) == 12 and int(collector.statistics.num_steps) == num_valid


def test_decorrelation_spreads_the_first_time_outs():
    env = CartPole(64)
    balance = ScriptedActor(lambda obs: (obs["obs"][:, 2] + obs["obs"][:, 3] > 0).long())
    collector = Collector(env, balance, CollectorConfig(decorrelation_steps=499))
    collector.reset()
    ages = env.episode_length_buf
    assert int(ages.min()) < 60 and int(ages.max()) > 440 and len(ages.unique()) > 40
    with pytest.raises(ValueError, match="this env has none"):
        Collector(counting(2), balance, CollectorConfig(decorrelation_steps=5)).reset()


# -- statistics --------------------------------------------------------------------------------------------------------


def test_statistics_are_those_of_the_finished_episodes():
    env = counting(4)
    collector = Collector(env, RandomActor(env.action_spec), CollectorConfig(window=5))
    storage = ListStorage(4)
    collector.collect(n_step=160, storage=storage)
    in_order = [column[step] for step in range(40) for column in storage.columns]
    lengths = [int(transition.rew.item()) + 1 for transition in in_order if bool(transition.done)]
    read = collector.statistics.read()
    last = lengths[-5:]
    assert read["episodes"] == len(lengths) and read["steps"] == 160
    assert read["length_mean"] == pytest.approx(sum(last) / 5)
    assert read["return_mean"] == pytest.approx(sum(n * (n - 1) / 2 for n in last) / 5)


def test_no_host_synchronisation_in_a_rollout():
    """The acting step and its bookkeeping never ask a device for a value (run here on a stand-in for a device)."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class NoSync(TorchDispatchMode):
        armed = False

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = str(function)
            if self.armed and any(word in name for word in ("_local_scalar_dense", "nonzero", "masked_select")):
                raise AssertionError(f"host synchronisation: {name}")
            return function(*args, **(kwargs or {}))

    env = counting(4)
    collector = Collector(env, RecurrentCounter())
    storage = RolloutStorage(collector.columns(), 20, 4)
    collector.reset()
    group = collector.groups[0]
    group.quarantine.on_cpu = collector.statistics.on_cpu = False  # take the way that a GPU takes
    steps = []
    with NoSync() as guard, torch.no_grad():
        for _ in range(20):
            guard.armed = True
            actions = group.act()
            guard.armed = False
            step = env.step(actions)
            guard.armed = True
            transition = collector.settle(group, step)
            storage.add(transition, slice(0, 4))
            guard.armed = False
            steps.append(transition)
    reference = counting(4)
    other = Collector(reference, RecurrentCounter())
    expected = RolloutStorage(other.columns(), 20, 4)
    other.collect(n_step=80, storage=expected)
    for dtype, block in storage.arena.blocks.items():
        assert torch.equal(block, expected.arena.blocks[dtype])


# -- quarantine --------------------------------------------------------------------------------------------------------


def poisoned_script(value: float, where: str, length: int = 8, num_envs: int = 3) -> Script:
    obs = torch.arange((length + 1) * num_envs * 2, dtype=torch.float32).reshape(length + 1, num_envs, 2)
    reward = torch.ones(length, num_envs)
    terminated = torch.zeros(length, num_envs, dtype=torch.bool)
    if where == "obs":
        obs[4, 1, 0] = value
    elif where == "reward":
        reward[3, 1] = value
    return Script(
        obs={"obs": obs},
        reward=reward,
        terminated=terminated,
        truncated=torch.zeros_like(terminated),
        final_obs={"obs": obs[1:]},
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_bad_observation_ends_the_episode_and_the_rest_is_not_valid(value, on_cpu):
    env = Scripted(poisoned_script(value, "obs"))
    collector = Collector(env, RandomActor(env.action_spec))
    collector.reset()
    collector.groups[0].quarantine.on_cpu = on_cpu
    storage = RolloutStorage(collector.columns(), 8, 3, final_obs=env.obs_spec)
    collected = collector.collect(n_step=24, storage=storage)
    data = storage.data
    valid = torch.ones(8, 3, dtype=torch.bool)
    valid[4:, 1] = False  # obs row 4 is what is acted on in step 4
    assert torch.equal(data["valid"], valid)
    assert data["truncated"].nonzero().tolist() == [[3, 1]]
    assert bool(torch.isfinite(data["obs"]["obs"]).all()) and float(data["obs"]["obs"].abs().max()) < 1e3
    pool = storage.finals.arena.data
    assert int(storage.finals.count) == 1
    assert torch.equal(pool["obs"]["obs"][0], data["obs"]["obs"][3, 1])  # the last good observation
    fault = collected.faults[0]
    assert (fault.component, fault.env, fault.step) == ("obs", 1, 3)
    assert fault.value == pytest.approx(abs(value), nan_ok=True)
    assert "obs of env 1" in str(fault)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_bad_reward_spoils_its_own_sample_only(value):
    env = Scripted(poisoned_script(value, "reward"))
    collector = Collector(env, RandomActor(env.action_spec))
    storage = RolloutStorage(collector.columns(), 8, 3)
    collected = collector.collect(n_step=24, storage=storage)
    assert (~storage.data["valid"]).nonzero().tolist() == [[3, 1]]
    assert float(storage.data["rew"].sum()) == 23 and not storage.data["truncated"].any()
    assert collected.faults[0].component == "reward"


def test_a_sick_env_is_reset_between_rollouts_and_comes_back():
    class Sick(Counting):
        calls = 0

        def step(self, actions):
            step = super().step(actions)
            self.calls += 1
            if self.calls == 3:
                step.obs["obs"][1] = float("nan")
            return step

    env = Sick(3, config=CountingConfig(min_length=20, max_length=30))
    collector = Collector(env, RandomActor(env.action_spec))
    storage = RolloutStorage(collector.columns(), 6, 3)
    collector.collect(n_step=18, storage=storage)
    assert (~storage.data["valid"]).sum(0).tolist() == [0, 3, 0]
    storage.clear()
    collector.collect(n_step=18, storage=storage)
    assert bool(storage.data["valid"].all())
    assert storage.data["obs"]["obs"][0, 1].tolist() == [1, 1, 0]  # a new episode


# -- saving ------------------------------------------------------------------------------------------------------------


def test_twenty_steps_are_ten_and_ten():
    def make():
        env = CartPole(4)
        return Collector(env, RandomActor(env.action_spec), CollectorConfig(seed=3))

    whole, first, second = make(), make(), make()
    wanted = RolloutStorage(whole.columns(), 80, 4)
    whole.collect(n_step=320, storage=wanted)
    first.collect(n_step=160)
    second.load_state_dict(first.state_dict())
    rest = RolloutStorage(second.columns(), 40, 4)
    second.collect(n_step=160, storage=rest)
    for dtype, block in rest.arena.blocks.items():
        assert torch.equal(block, wanted.arena.blocks[dtype][40:])
    assert second.statistics.read() == whole.statistics.read()


def test_same_seed_same_bits_and_other_seeds_differ():
    def run(seed):
        env = CartPole(4)
        collector = Collector(env, RandomActor(env.action_spec), CollectorConfig(seed=seed))
        storage = RolloutStorage(collector.columns(), 30, 4)
        collector.collect(n_step=120, storage=storage)
        return storage.arena.blocks["float32"]

    assert torch.equal(run(1), run(1)) and not torch.equal(run(1), run(2))


def test_two_halves_of_the_envs_make_the_whole():
    whole = CartPole(6)
    collector = Collector(whole, RandomActor(whole.action_spec))
    wanted = RolloutStorage(collector.columns(), 25, 6)
    collector.collect(n_step=150, storage=wanted)
    for start, count in ((0, 2), (2, 4)):
        part = CartPole(count, first_env_index=start)
        some = Collector(part, RandomActor(part.action_spec))
        storage = RolloutStorage(some.columns(), 25, count)
        some.collect(n_step=25 * count, storage=storage)
        assert torch.equal(storage.data["obs"]["obs"], wanted.data["obs"]["obs"][:, start : start + count])
