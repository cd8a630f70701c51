"""What a sampler's EnvCls may be: envs of ours, Gymnasium's and rlpyt's, in this process and in workers."""

from __future__ import annotations

import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from sampler_parts import (
    AlternatingAgent,
    CameraEnv,
    Composite,
    CountingAgent,
    FloatBox,
    IntBox,
    LivesEnv,
    PlainAgent,
)

from striderl.collect.actors.base import RandomActor
from striderl.collect.samplers.env_adapter import SingleEnvAdapter, gymnasium_space
from striderl.collect.samplers.samplers import (
    AlternatingSampler,
    BaseCollector,
    CpuSampler,
    GpuSampler,
    ResetCollector,
    SerialSampler,
    TrajInfo,
    WaitResetCollector,
)
from striderl.data.actions import DiscreteSpec
from striderl.envs.classic_control import CartPole
from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.toy import Chain
from striderl.envs.workers.pool import WorkerConfig

TWO = DiscreteSpec(n=2)
FORKED = WorkerConfig(num_workers=3, start_method="fork")
PAIR = WorkerConfig(num_workers=2, start_method="fork")


class ScoreInfo(TrajInfo):
    def __init__(self, **fields):
        super().__init__(**fields)
        self.GameScore = 0.0

    def step(self, observation, action, reward, done, agent_info, env_info):
        super().step(observation, action, reward, done, agent_info, env_info)
        self.GameScore = float(env_info.score)


class DictEnv(gymnasium.Env):
    """Nested observations; the second part of a Tuple has a name that is no field name."""

    observation_space = gymnasium.spaces.Dict(
        {
            "arm": gymnasium.spaces.Dict({"joints": gymnasium.spaces.Box(-9, 9, (2,), np.float32)}),
            "pair": gymnasium.spaces.Tuple(
                [gymnasium.spaces.Discrete(9), gymnasium.spaces.Box(-9, 9, (1,), np.float32)]
            ),
        }
    )
    action_space = gymnasium.spaces.Discrete(2)

    def observe(self):
        return {
            "arm": {"joints": np.full(2, self.time, np.float32)},
            "pair": (self.time, np.full(1, -self.time, np.float32)),
        }

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return self.observe(), {}

    def step(self, action):
        self.time += 1
        return self.observe(), 1.0, False, self.time == 8, {}


class WhereEnv(gymnasium.Env):
    """Shows the processors that its process is tied to."""

    observation_space = gymnasium.spaces.Box(0, 4096, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def observe(self):
        cpus = os.sched_getaffinity(0)
        return np.array([len(cpus), min(cpus)], np.float32)

    def reset(self, *, seed=None, options=None):
        return self.observe(), {}

    def step(self, action):
        return self.observe(), 0.0, False, False, {}


def started(Sampler, EnvCls, env_kwargs=None, T=8, B=2, agent=None, *, affinity=None, seed=1, **arguments):
    arguments = {"max_decorrelation_steps": 0} | arguments
    sampler = Sampler(EnvCls, env_kwargs or {}, T, B, **arguments)
    sampler.initialize(agent or PlainAgent(), affinity=affinity, seed=seed)
    return sampler


# -- kinds of envs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("EnvCls", "env_kwargs"),
    [
        ("CartPole-v1", {}),
        (gymnasium.make, {"id": "CartPole-v1"}),
        (gymnasium.spec("CartPole-v1"), {}),
        (lambda num_envs: GymnasiumEnv("CartPole-v1", num_envs), {}),
        (lambda: GymnasiumEnv("CartPole-v1", 2), {}),
        (CartPole, {}),
    ],
)
def test_the_same_task_however_it_is_given(EnvCls, env_kwargs):
    sampler = started(SerialSampler, EnvCls, env_kwargs, T=90, agent=RandomActor(TWO))
    samples, infos = sampler.obtain_samples(0)
    assert samples.env.observation.shape == (90, 2, 4) and len(infos) >= 1
    if EnvCls is not CartPole:  # our own starts differ from Gymnasium's
        reference = started(SerialSampler, "CartPole-v1", T=90, agent=RandomActor(TWO)).obtain_samples(0)[0]
        assert torch.equal(samples.env.observation, reference.env.observation)
    sampler.shutdown()


@pytest.mark.slow
def test_cartpole_with_a_random_agent():
    """Ten batches are what Gymnasium's own env gives for the same actions, and the infos are its episodes."""
    sampler = started(SerialSampler, "CartPole-v1", T=50, B=3, agent=RandomActor(TWO), seed=4)
    batches = [tree_clone(sampler.obtain_samples(itr)) for itr in range(10)]
    found = sorted(info.Length for _, infos in batches for info in infos)
    wanted = []
    for b in range(3):
        env = gymnasium.make("CartPole-v1")
        seed = np.random.SeedSequence(4, spawn_key=(b,)).generate_state(3)[0]
        observation, _ = env.reset(seed=int(seed))
        length = 0
        for samples, _ in batches:
            for t in range(50):
                assert np.array_equal(samples.env.observation[t, b].numpy(), observation)
                observation, reward, terminated, truncated, _ = env.step(int(samples.agent.action[t, b]))
                length += 1
                assert (reward, terminated) == (float(samples.env.reward[t, b]), bool(samples.env.terminated[t, b]))
                if terminated or truncated:
                    wanted.append(length)
                    observation, length = env.reset()[0], 0
    assert found == sorted(wanted) and len(wanted) > 50


def tree_clone(result):
    samples, infos = result
    clone = samples.env._make(None if part is None else part.clone() for part in samples.env)
    return samples._replace(env=clone, agent=samples.agent._replace(action=samples.agent.action.clone())), infos


def test_nested_observations():
    sampler = started(SerialSampler, DictEnv, agent=RandomActor(TWO))
    samples, _ = sampler.obtain_samples(0)
    observation = samples.env.observation
    assert observation.arm.joints[:, 0, 1].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert observation.pair["0"][:, 1].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert observation[3].pair["1"].tolist() == [[-3.0], [-3.0]]
    assert bool(samples.env.truncated[7].all()) and not samples.env.terminated.any()


def test_spaces_are_told_to_the_agent():
    class Asking(PlainAgent):
        def initialize(self, env_spaces, share_memory, global_B, env_ranks):
            self.spaces = env_spaces

    for EnvCls, kind in (
        ("CartPole-v1", gymnasium.spaces.Discrete),
        (LivesEnv, gymnasium.spaces.Discrete),
        (CartPole, DiscreteSpec),
    ):
        agent = Asking()
        started(SerialSampler, EnvCls, agent=agent).shutdown()
        assert isinstance(agent.spaces.action, kind) and tuple(agent.spaces.observation.shape) in ((4,), (2,))


# -- rlpyt's envs ------------------------------------------------------------------------------------------------------


def test_lives_end_episodes_and_games_end_trajectories():
    """Two steps a life, three lives a game: done every second step, a trajectory every sixth."""
    agent = CountingAgent(3)
    sampler = started(SerialSampler, LivesEnv, T=14, B=2, agent=agent, TrajInfoCls=ScoreInfo)
    samples, infos = sampler.obtain_samples(0)
    env = samples.env
    assert env.done[:, 0].int().tolist() == [0, 1] * 7 and torch.equal(env.done, env.terminated)
    assert env.observation[:, 1, 1].tolist() == [0, 1, 2, 3, 4, 5] * 2 + [0, 1]  # a life lost does not start a game
    assert env.observation[:, 0, 0].tolist() == [0] * 6 + [1] * 6 + [2] * 2
    assert env.env_info.score[:7, 0].tolist() == [10, 20, 30, 40, 50, 60, 10]
    assert env.env_info.traj_done[:, 0].nonzero().flatten().tolist() == [5, 11]
    assert samples.agent.action[:, 0].tolist() == [0, 1] * 7  # the agent forgets with every life
    assert [(info.Length, info.Return, info.GameScore) for info in infos] == [(6, 6.0, 60.0)] * 4
    assert [info.Length for info in sampler.traj_infos] == [2, 2]


@pytest.mark.parametrize("T", [2, 5])
def test_lives_in_columns_that_wait(T):
    sampler = started(SerialSampler, LivesEnv, T=T, B=1, CollectorCls=WaitResetCollector)
    for itr in range(2):
        samples, infos = sampler.obtain_samples(itr)
        assert samples.env.valid[:, 0].int().tolist() == [1, 1, 0, 0, 0][:T] and not infos
        assert samples.env.observation[:2, 0].tolist() == [[itr, 0], [itr, 1]]  # a new game in every batch
        assert sampler.traj_infos[0].Length == 0  # the game was given up


def test_time_outs_are_truncations():
    sampler = started(SerialSampler, LivesEnv, {"timeout_game": 1}, T=14, B=1)
    samples, _ = sampler.obtain_samples(0)
    assert samples.env.truncated[:, 0].nonzero().flatten().tolist() == [11]  # the end of game 1
    assert samples.env.terminated[:, 0].nonzero().flatten().tolist() == [1, 3, 5, 7, 9, 13]


class GymTimeLimit:
    """An env as Gym's `TimeLimit` wraps it: episodes of three steps, every second one ends by itself just then."""

    observation_space, action_space = FloatBox(0.0, 9.0, (1,)), IntBox(0, 2)

    def __init__(self, always_told: bool = True) -> None:
        self.always_told, self.episode = always_told, -1

    def reset(self):
        self.episode, self.time = self.episode + 1, 0
        return np.zeros(1, np.float32)

    def step(self, action):
        self.time += 1
        late = self.time == 3 and self.episode % 2 == 0
        info = {"TimeLimit.truncated": late} if self.always_told or self.time == 3 else {}
        return np.full(1, self.time, np.float32), 1.0, self.time == 3, info


@pytest.mark.parametrize("always_told", [True, False])
def test_the_time_limit_of_gym_is_a_truncation(always_told):
    adapter = SingleEnvAdapter(GymTimeLimit(always_told))
    ends = []
    for _ in range(2):
        adapter.reset()
        ends += [adapter.step(0)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True), (False, False), (False, False), (True, False)]
    sampler = started(SerialSampler, GymTimeLimit, {"always_told": always_told}, T=6, B=1)
    env = sampler.obtain_samples(0)[0].env
    ends = [each[:, 0].nonzero().flatten().tolist() for each in (env.truncated, env.terminated)]
    assert sorted(ends) == [[2], [5]]  # one of each; which comes first depends on the resets before


def test_a_game_over_without_done_is_a_truncation():
    class Endless(LivesEnv):
        def step(self, action):
            step = super().step(action)
            return step._replace(done=False)

    adapter = SingleEnvAdapter(Endless())
    adapter.reset(seed=3)
    ends = [adapter.step(0)[2:4] for _ in range(6)]
    assert ends == [(False, False)] * 5 + [(False, True)] and adapter.env.seeds == [3]


def test_a_seed_starts_a_new_game():
    adapter = SingleEnvAdapter(LivesEnv())
    adapter.reset(seed=1)
    adapter.step(0)
    adapter.step(0)  # a life is lost
    assert adapter.reset()[0].tolist() == [0, 2]
    adapter.step(0)
    adapter.step(0)
    assert adapter.reset(seed=1)[0].tolist() == [0, 0]
    adapter.close()
    assert adapter.env.closed


def test_observations_in_parts_and_own_spaces():
    sampler = started(SerialSampler, CameraEnv, T=6, B=2, agent=RandomActor(DiscreteSpec(n=5)))
    samples, infos = sampler.obtain_samples(0)
    observation = samples.env.observation
    assert observation.image.dtype == torch.uint8 and observation.image.shape == (6, 2, 2, 2)
    assert observation.joints[:, 0, 0].tolist() == pytest.approx([0.5, 0.1, 0.2, 0.3, 0.5, 0.1])
    assert torch.equal(observation.image[1, :, 0, 0].long(), samples.agent.action[0])
    assert samples.env.env_info is None and [info.Length for info in infos] == [4, 4]


def test_spaces_of_rlpyt():
    box = gymnasium_space(FloatBox(-1.0, [1.0, 2.0], (2,)))
    assert box == gymnasium.spaces.Box(np.array([-1, -1], np.float32), np.array([1, 2], np.float32))
    assert gymnasium_space(IntBox(0, 256, (3,), "uint8")) == gymnasium.spaces.Box(0, 255, (3,), np.uint8)
    assert gymnasium_space(IntBox(0, 4)) == gymnasium.spaces.Discrete(4)
    assert gymnasium_space(IntBox(0, 4, (2,)), for_actions=True) == gymnasium.spaces.MultiDiscrete([4, 4])

    class GymSpaceWrapper:
        space = gymnasium.spaces.Discrete(3)

    assert gymnasium_space(GymSpaceWrapper()) == gymnasium.spaces.Discrete(3)
    parts = gymnasium_space(CameraEnv.observation_space)
    assert list(parts.spaces) == ["image", "joints"] and isinstance(CameraEnv.observation_space, Composite)
    with pytest.raises(ValueError, match="choices start at 0"):
        gymnasium_space(IntBox(1, 4), for_actions=True)
    with pytest.raises(TypeError, match="space object is not known"):
        gymnasium_space(object())


@pytest.mark.parametrize("make", [LivesEnv, lambda: gymnasium.make("CartPole-v1")])
def test_a_collector_takes_a_list_of_envs(make):
    memory = started(SerialSampler, make, T=7, B=3).samples_np
    collector = BaseCollector(0, [make() for _ in range(3)], memory, 7, TrajInfo, PlainAgent())
    collector.collect_batch(*collector.start_envs(2), 0)
    assert bool(memory.env.valid.all()) and memory.env.reward.min() == 1.0


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="built 2 envs, wanted 3"):
        started(SerialSampler, lambda: GymnasiumEnv("CartPole-v1", 2), B=3)
    with pytest.raises(TypeError, match="should build a VecEnv; it built a dict"):
        started(SerialSampler, lambda num_envs: {})
    with pytest.raises(TypeError, match=r"made a dict, which is no VecEnv.*without \['reset', 'step'"):
        started(SerialSampler, dict)
    with pytest.raises(TypeError, match="Chain steps all of its envs in this process: use SerialSampler"):
        started(CpuSampler, Chain)
    with pytest.raises(ValueError, match="SerialSampler has no worker processes"):
        SerialSampler("CartPole-v1", {}, 1, 1, workers=FORKED)
    with pytest.raises(ValueError, match="wanted 1 to 1 parts"):
        started(AlternatingSampler, "CartPole-v1", B=1, workers=FORKED)


# -- worker processes --------------------------------------------------------------------------------------------------


def batches_of(Sampler, EnvCls, agent, CollectorCls, **arguments):
    sampler = started(Sampler, EnvCls, T=12, B=6, agent=agent, CollectorCls=CollectorCls, **arguments)
    result = []
    for itr in range(3):
        samples, infos = sampler.obtain_samples(itr)
        leaves = [samples.agent.action, samples.agent.prev_action, *samples.env]
        values = [leaf.clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        result.append((values, [dict(info) for info in infos]))
    sampler.shutdown()
    return result


@pytest.mark.slow
@pytest.mark.parametrize("CollectorCls", [ResetCollector, WaitResetCollector])
@pytest.mark.parametrize("Sampler", [CpuSampler, GpuSampler, AlternatingSampler])
def test_all_samplers_give_the_same(Sampler, CollectorCls):
    """Same seed, same bits, same trajectories, with random starts, wherever the envs run."""
    for EnvCls, make in (("CartPole-v1", lambda: RandomActor(TWO)), (LivesEnv, PlainAgent)):
        wanted = batches_of(SerialSampler, EnvCls, make(), CollectorCls, max_decorrelation_steps=6)
        found = batches_of(Sampler, EnvCls, make(), CollectorCls, max_decorrelation_steps=6, workers=FORKED)
        for (values, infos), (other, other_infos) in zip(wanted, found):
            assert all(torch.equal(one, two) for one, two in zip(values, other))
            assert infos == other_infos


@pytest.mark.slow
def test_the_default_workers_start():
    sampler = started(CpuSampler, "CartPole-v1", T=3, B=2, agent=RandomActor(TWO), eval_n_envs=1, eval_max_steps=400)
    assert sampler.obtain_samples(0)[0].env.observation.shape == (3, 2, 4)
    assert sampler.collector.env.restarts == 0 and sampler.evaluate_agent(0)
    sampler.shutdown()


def test_alternating_agent_acts_for_halves():
    """The agent is told of new episodes by their row among all envs, and its two memories do not mix."""
    agent = AlternatingAgent(3)
    sampler = started(
        AlternatingSampler, LivesEnv, T=5, B=6, agent=agent, workers=WorkerConfig(num_workers=2, start_method="fork")
    )
    agent.seen.clear()
    samples, _ = sampler.obtain_samples(0)
    assert [len(reward) for _, _, reward in agent.seen] == [3] * 10  # five times two halves
    assert samples.agent.action[:, 4].tolist() == [0, 1, 0, 1, 0] == samples.agent.action[:, 1].tolist()
    told = [row for name, *rest in agent.calls if name == "reset_one" for row in rest]
    assert set(told) == set(range(6))
    sampler.shutdown()


def test_bootstrap_value_of_halves():
    class Sided(AlternatingAgent):
        def value(self, *inputs):
            return super().value(*inputs) + 1000.0 * self.half

    sampler = AlternatingSampler(LivesEnv, {}, 5, 4, max_decorrelation_steps=0, workers=PAIR)
    sampler.initialize(Sided(3), seed=1, bootstrap_value=True)
    for itr, value in enumerate((105.0, 105.0)):  # 0 + 5 + 100 times a reward of 1; then game 1, step 4
        samples, _ = sampler.obtain_samples(itr)
        assert samples.agent.bootstrap_value.tolist() == [[value, value, 1000 + value, 1000 + value]]
    sampler.shutdown()


@pytest.mark.slow
def test_an_agent_may_use_its_memory_again():
    """One half's actions are still to be stored when the agent writes those of the other over them."""

    class Reusing(AlternatingAgent):
        memory = torch.zeros(2, dtype=torch.int64)

        def step(self, *inputs):
            action, info = super().step(*inputs)
            self.memory.copy_((action + self.half) % 3)
            return self.memory, info

    sampler = started(AlternatingSampler, LivesEnv, T=4, B=4, agent=Reusing(3), workers=PAIR)
    samples, _ = sampler.obtain_samples(0)
    assert samples.agent.action.tolist() == [[0, 0, 1, 1], [1, 1, 2, 2]] * 2
    sampler.shutdown()


@pytest.mark.slow
def test_affinity_says_how_many_workers_and_where():
    cpus = sorted(os.sched_getaffinity(0))
    one, other = cpus[0], cpus[-1]
    affinity = {"workers_cpus": [one, [other]], "cuda_idx": None}
    sampler = started(GpuSampler, WhereEnv, T=1, B=5, affinity=affinity, workers=WorkerConfig(start_method="fork"))
    samples, _ = sampler.obtain_samples(0)
    # two workers with envs 0 and 1, and 2 to 4
    assert samples.env.observation[0].tolist() == [[1, one]] * 2 + [[1, other]] * 3
    assert sorted(os.sched_getaffinity(0)) == cpus
    sampler.shutdown()


def test_worker_processes_do_not_load_torch_for_the_adapter():
    program = "import sys, striderl.collect.samplers.env_adapter; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=280)
