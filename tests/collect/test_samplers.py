"""Samplers in one process: batches against tables worked out by hand, trajectories, starts, evaluation, errors."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch
from sampler_parts import AgentInfo, CountingAgent, PlainAgent, scripted

from striderl.collect.actors.base import ActorOutput, RandomActor, ScriptedActor
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.samplers.collectors import decorrelation_lengths
from striderl.collect.samplers.samplers import (
    AgentInputs,
    AgentSamples,
    AgentSamplesBsv,
    BaseCollector,
    BaseSampler,
    EnvSamples,
    EvalCollector,
    ResetCollector,
    Samples,
    SerialSampler,
    TrajInfo,
    WaitResetCollector,
    seen_by_agent,
    valid_from_done,
)
from striderl.data.actions import DiscreteSpec
from striderl.data.specs import TensorSpec
from striderl.envs.classic_control import CartPole
from striderl.envs.toy import Chain, ChainConfig, Counting, CountingConfig, Grid, HybridActions, ProbeConfig, TimeLimit
from striderl.policies.policy import Policy, PolicyConfig

BOTH = pytest.mark.parametrize("CollectorCls", [ResetCollector, WaitResetCollector])
COUNTING = {"config": CountingConfig(max_length=4)}


def serial(EnvCls, env_kwargs=None, T=5, B=2, agent=None, *, seed=1, bootstrap_value=False, **arguments):
    arguments = {"max_decorrelation_steps": 0} | arguments
    sampler = SerialSampler(EnvCls, env_kwargs or {}, T, B, **arguments)
    agent = agent or CountingAgent()
    examples = sampler.initialize(agent, seed=seed, bootstrap_value=bootstrap_value)
    if isinstance(agent, CountingAgent):
        agent.seen.clear()  # what was asked of it for the examples
    return sampler, agent, examples


# -- batches by hand ---------------------------------------------------------------------------------------------------

TWO_ENDS = {
    "reward": [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [11, 12], [13, 14], [15, 16], [17, 18], [19, 20]],
    "terminated": [(1, 0), (6, 0)],
    "truncated": [(3, 1), (4, 0)],
}


def test_reset_collector_by_hand():
    """Env 0 ends after steps 1 (terminated) and 4 (truncated), env 1 after step 3; the next episode follows at once."""
    sampler, _, _ = serial(scripted(**TWO_ENDS), agent=CountingAgent(50))
    samples, infos = sampler.obtain_samples(0)
    env, own = samples.env, samples.agent
    assert env.observation[..., 0].tolist() == [[0, 1], [10, 11], [20, 21], [30, 31], [40, 41]]
    assert env.reward.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]
    assert env.terminated.int().tolist() == [[0, 0], [1, 0], [0, 0], [0, 0], [0, 0]]
    assert env.truncated.int().tolist() == [[0, 0], [0, 0], [0, 0], [0, 1], [1, 0]]
    assert env.done.int().tolist() == [[0, 0], [1, 0], [0, 0], [0, 1], [1, 0]]
    assert bool(env.valid.all())
    # the agent plays the number of the step in its episode: it was told of every new one
    assert own.action.tolist() == [[0, 0], [1, 1], [0, 2], [1, 3], [2, 0]] == own.agent_info.count.tolist()
    assert own.agent_info.value.tolist() == [[0, 0], [0.5, 0.5], [0, 1], [0.5, 1.5], [1, 0]]
    assert own.prev_action.tolist() == [[0, 0], [0, 0], [1, 1], [0, 2], [1, 3]]
    assert env.prev_reward.tolist() == [[0, 0], [1, 2], [3, 4], [5, 6], [7, 8]]
    assert [(info.Length, info.Return) for info in infos] == [(2, 4.0), (4, 20.0), (3, 21.0)]
    assert [info.Length for info in sampler.traj_infos] == [0, 1]


def test_the_next_batch_goes_on():
    sampler, _, _ = serial(scripted(**TWO_ENDS), agent=CountingAgent(50))
    sampler.obtain_samples(0)
    samples, infos = sampler.obtain_samples(1)
    # env 0 starts an episode, so nothing came before; env 1 goes on after action 0 and reward 10
    assert samples.agent.prev_action[0].tolist() == [0, 0] and samples.env.prev_reward[0].tolist() == [0, 10]
    assert samples.agent.action.tolist() == [[0, 1], [1, 2], [0, 3], [1, 4], [2, 5]]
    assert samples.env.observation[:, 0, 0].tolist() == [50, 60, 70, 80, 90]
    assert [(info.Length, info.Return) for info in infos] == [(2, 24.0)]
    assert [info.Return for info in sampler.traj_infos] == [51.0, 90.0]  # 15 + 17 + 19, 10 + 12 + … + 20


def test_wait_reset_collector_by_hand():
    """After its first end a column is zeros, done and not valid; the next batch starts afresh there."""
    info = {"echo": torch.arange(1.0, 21.0).reshape(10, 2)}
    env = scripted(**TWO_ENDS, info=info)
    sampler, _, _ = serial(env, agent=CountingAgent(50), CollectorCls=WaitResetCollector)
    samples, infos = sampler.obtain_samples(0)
    env, own = samples.env, samples.agent
    assert env.valid.int().tolist() == [[1, 1], [1, 1], [0, 1], [0, 1], [0, 0]]
    assert env.done.int().tolist() == [[0, 0], [1, 0], [1, 0], [1, 1], [1, 1]]
    assert env.truncated.int().tolist() == [[0, 0], [0, 0], [0, 0], [0, 1], [0, 0]]  # not that of the hidden episode
    assert env.observation[..., 0].tolist() == [[0, 1], [10, 11], [0, 21], [0, 31], [0, 0]]
    assert env.reward.tolist() == [[1, 2], [3, 4], [0, 6], [0, 8], [0, 0]]
    assert env.env_info.echo.tolist() == [[1, 2], [3, 4], [0, 6], [0, 8], [0, 0]]
    assert own.action.tolist() == [[0, 0], [1, 1], [0, 2], [0, 3], [0, 0]] == own.agent_info.count.tolist()
    assert own.agent_info.value.tolist() == [[0, 0], [0.5, 0.5], [0, 1], [0, 1.5], [0, 0]]
    assert torch.equal(env.valid.float(), valid_from_done(env.done))
    assert [(info.Length, info.Return) for info in infos] == [(2, 4.0), (4, 20.0)]
    samples, infos = sampler.obtain_samples(1)
    assert own.prev_action[0].tolist() == [0, 0] and env.prev_reward[0].tolist() == [0, 0]
    assert env.valid.int().tolist() == [[1, 1], [1, 1], [0, 1], [0, 1], [0, 1]]
    assert own.action.tolist() == [[0, 0], [1, 1], [0, 2], [0, 3], [0, 4]]
    assert [(info.Length, info.Return) for info in infos] == [(2, 24.0)]
    assert sampler.traj_infos[1].Return == 12 + 14 + 16 + 18 + 20 and sampler.traj_infos[0].Length == 0


@BOTH
def test_previous_action_and_reward_are_nothing_after_a_reset(CollectorCls):
    """What the agent was given, step by step, is what `seen_by_agent` makes of the samples."""
    sampler, agent, _ = serial(Counting, COUNTING, T=12, B=5, CollectorCls=CollectorCls)
    for itr in range(3):
        agent.seen.clear()
        samples, _ = sampler.obtain_samples(itr)
        seen = seen_by_agent(samples)
        valid, done = samples.env.valid, samples.env.done
        for t, (observation, action, reward) in enumerate(agent.seen):
            row = valid[t]
            assert torch.equal(observation[row], seen.observation[t][row])
            assert torch.equal(action[row], seen.prev_action[t][row])
            assert torch.equal(reward[row], seen.prev_reward[t][row])
            starts = samples.env.observation[t][:, 2] == 0  # Counting shows the step of the episode
            assert not action[starts & row].any() and not reward[starts & row].any()
        assert bool(done[:-1].any()) and bool(samples.agent.prev_action.any())


@BOTH
def test_the_memory_is_the_same_in_every_batch(CollectorCls):
    sampler, _, _ = serial(Counting, COUNTING, T=4, B=3, bootstrap_value=True, CollectorCls=CollectorCls)
    first, _ = sampler.obtain_samples(0)
    before = first.env.observation.clone()
    second, _ = sampler.obtain_samples(1)
    assert first is second and not torch.equal(before, second.env.observation)
    for samples, other in ((first.agent, sampler.samples_np.agent), (first.env, sampler.samples_np.env)):
        for name, value in samples.items():
            part = value if isinstance(value, torch.Tensor) else value[:].get(0)
            twin = getattr(other, name)
            assert part.data_ptr() == (twin if isinstance(twin, np.ndarray) else twin.get(0)).ctypes.data
    own, env = first.agent, first.env
    own.action[1] = 3
    env.reward[1] = -7.0
    assert own.prev_action[2].tolist() == [3, 3, 3] and env.prev_reward[2].tolist() == [-7, -7, -7]


def test_fields_and_leading_dimensions():
    sampler, _, examples = serial(Counting, COUNTING, T=4, B=3, bootstrap_value=True)
    samples, _ = sampler.obtain_samples(0)
    assert isinstance(samples, Samples) and isinstance(samples.agent, AgentSamplesBsv)
    assert isinstance(samples.env, EnvSamples) and AgentSamples._fields == samples.agent._fields[:3]
    assert samples.agent._fields == ("action", "prev_action", "agent_info", "bootstrap_value")
    assert samples.env._fields[:5] == ("observation", "reward", "prev_reward", "done", "env_info")
    assert set(samples.env._fields[5:]) == {"terminated", "truncated", "valid"}
    assert samples.agent.bootstrap_value.shape == (1, 3) and samples.env.observation.shape == (4, 3, 3)
    assert samples.env[2].observation.shape == (3, 3) and samples.env[:, 1].reward.shape == (4,)
    assert type(samples.agent.agent_info).__name__ == "AgentInfo" and samples.agent.agent_info[1:3].count.shape == (
        2,
        3,
    )
    assert set(examples) == {"observation", "reward", "done", "env_info", "action", "agent_info"}
    assert examples["observation"].shape == (3,) and examples["agent_info"].count.shape == ()
    assert isinstance(examples["agent_info"], AgentInfo) and int(examples["env_info"].action) in range(4)
    assert sampler.batch_spec == (4, 3) and sampler.batch_size == sampler.batch_spec.size == 12
    assert sampler.agent_inputs._fields == AgentInputs._fields == ("observation", "prev_action", "prev_reward")


def test_valid_from_done():
    done = torch.tensor([[0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1]], dtype=torch.bool)
    wanted = [[1, 1, 1, 1], [1, 0, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1]]
    assert valid_from_done(done).tolist() == wanted == valid_from_done(done.float()).tolist()
    assert valid_from_done(done[:1]).tolist() == [[1, 1, 1, 1]]


def test_bootstrap_value_is_that_of_what_really_followed():
    # value = observation + 100 * previous reward; after step 4 env 0 is truncated (final observation 50.5, reward 9),
    # env 1 goes on (observation 51, reward 10)
    sampler, _, _ = serial(scripted(**TWO_ENDS), agent=CountingAgent(50), bootstrap_value=True)
    samples, _ = sampler.obtain_samples(0)
    assert samples.agent.bootstrap_value.tolist() == [[950.5, 1051.0]]
    samples, _ = sampler.obtain_samples(1)
    assert samples.agent.bootstrap_value.tolist() == [[100 + 1900.0, 101 + 2000.0]]


def test_without_final_observations_the_next_one_is_valued():
    sampler, _, _ = serial(scripted(**TWO_ENDS, final=False), agent=CountingAgent(50), bootstrap_value=True)
    samples, _ = sampler.obtain_samples(0)
    assert samples.agent.bootstrap_value.tolist() == [[50.0, 1051.0]]


@BOTH
@pytest.mark.parametrize(("T", "B"), [(1, 1), (1, 3), (6, 1)])
def test_one_step_and_one_env(CollectorCls, T, B):
    """Forty batches hold just the episodes that `Counting` foretells, one after the other."""
    sampler, _, _ = serial(Counting, COUNTING, T, B, bootstrap_value=True, seed=5, CollectorCls=CollectorCls)
    lengths = [[] for _ in range(B)]
    for itr in range(40):
        samples, infos = sampler.obtain_samples(itr)
        assert samples.agent.bootstrap_value.shape == (1, B)
        ended = samples.env.done & samples.env.valid
        steps = samples.env.observation[..., 2].long()
        found = [int(steps[t, b]) + 1 for t in range(T) for b in range(B) if ended[t, b]]
        assert [info.Length for info in infos] == found
        for t, b in ended.nonzero().tolist():
            lengths[b].append((int(samples.env.observation[t, b, 1]), int(steps[t, b]) + 1))
    env = Counting(B, **COUNTING)
    for b, column in enumerate(lengths):
        assert len(column) > 8
        for number, length in column:
            assert int(env.episode(5, torch.tensor(b), torch.tensor(number)).length) == length


def test_wait_reset_changes_nothing_before_the_first_end():
    samplers = [serial(Counting, COUNTING, 6, 4, CollectorCls=kind)[0] for kind in (ResetCollector, WaitResetCollector)]
    mid, wait = (sampler.obtain_samples(0)[0] for sampler in samplers)
    valid = wait.env.valid
    assert torch.equal(mid.env.observation[valid], wait.env.observation[valid]) and not bool(valid.all())
    assert torch.equal(mid.agent.action[valid], wait.agent.action[valid])
    assert [sampler.mid_batch_reset for sampler in samplers] == [True, False]


# -- agents and actors -------------------------------------------------------------------------------------------------


def test_calls_of_an_agent_in_order():
    sampler, agent, _ = serial(Counting, COUNTING, T=2, B=3)
    assert agent.calls[0] == ("initialize", 3, (0, 1, 2)) and agent.calls[1:3] == [("reset",), ("reset",)]
    assert agent.calls[3:] == [("collector_initialize", 3, (0, 1, 2)), ("reset",), ("sample_mode", 0)]
    agent.calls.clear()
    sampler.obtain_samples(7)
    assert agent.calls[0] == ("sample_mode", 7)
    assert agent.spaces.action == DiscreteSpec(n=4) and agent.spaces.observation.shape == (3,)


def test_an_agent_with_step_alone():
    sampler, _, examples = serial(CartPole, {}, 8, 2, PlainAgent())
    samples, _ = sampler.obtain_samples(0)
    assert samples.agent.agent_info is None is examples["agent_info"]
    assert torch.equal(samples.agent.action, (samples.env.observation.sum(-1) > 0).long())


class Remembering:
    """An actor of ours: counts its steps in its state and stores them in nested columns."""

    def columns(self):
        return {"steps": TensorSpec(dtype="int64"), "inner": {"twice": TensorSpec(shape=(2,))}}

    def noise(self):
        return {}

    def initial_state(self, num_envs, device):
        return {"count": torch.zeros(num_envs, dtype=torch.int64, device=device)}

    def act(self, obs, state, noise):
        count = state["count"]
        columns = {"steps": count, "inner": {"twice": torch.stack([count, 2 * count], -1).float()}}
        return ActorOutput(count % 4, {"count": count + 1}, columns)


def test_our_actors_act_and_their_columns_are_the_agent_info():
    sampler, _, examples = serial(Counting, COUNTING, 10, 3, Remembering())
    samples, _ = sampler.obtain_samples(0)
    info = samples.agent.agent_info
    assert torch.equal(info.steps.float(), samples.env.observation[..., 2])
    assert torch.equal(info.inner.twice[..., 1], 2 * samples.env.observation[..., 2])
    assert examples["agent_info"].inner.twice.shape == (2,)
    with pytest.raises(TypeError, match="Remembering knows no values"):
        serial(Counting, COUNTING, 2, 2, Remembering(), bootstrap_value=True)[0].obtain_samples(0)


def test_a_policy_of_ours():
    """A policy samples, its log-probs and values are the agent_info, and its critic gives the bootstrap value."""
    torch.manual_seed(0)
    env = CartPole(3)
    policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(8,), critic_hidden_dims=(8,)))
    sampler, _, _ = serial(CartPole, {}, 6, 3, PolicyActor(policy), bootstrap_value=True, max_decorrelation_steps=4)
    samples, _ = sampler.obtain_samples(0)
    with torch.no_grad():
        output = policy({"obs": samples.env.observation}, {}, {})
        value, _ = policy.value({"obs": sampler.agent_inputs.observation}, {}, {})
    info = samples.agent.agent_info
    assert torch.allclose(info.value, output.value) and set(info._fields) == {"log_prob", "value", "dist"}
    assert torch.allclose(info.log_prob, output.distribution.log_prob(samples.agent.action))
    assert not samples.env.done[-1].any()
    assert torch.allclose(samples.agent.bootstrap_value[0], value)


def test_an_agent_with_numpy_actions_and_arrays():
    Info = namedtuple("Info", ["mean"])

    class NumpyAgent:
        def step(self, observation, prev_action, prev_reward):
            return np.ones(len(prev_reward), np.int32), Info(np.full((len(prev_reward), 2), 0.25, np.float32))

    sampler, _, _ = serial(Counting, COUNTING, 3, 2, NumpyAgent())
    samples, _ = sampler.obtain_samples(0)
    assert samples.agent.action.tolist() == [[1, 1]] * 3 and samples.agent.action.dtype == torch.int64
    assert samples.agent.agent_info.mean.shape == (3, 2, 2) and float(samples.agent.agent_info.mean.min()) == 0.25


def test_an_agent_that_changes_its_info_is_told():
    class Fickle(CountingAgent):
        def step(self, *inputs):
            action, info = super().step(*inputs)
            return action, info._replace(value=info.value.repeat(2)) if len(self.seen) > 2 else info

    sampler, _, _ = serial(Counting, COUNTING, 8, 2, Fickle())
    with pytest.raises(ValueError, match=r"policy 'value' as \[2\], this step has \[4\]"):
        sampler.obtain_samples(0)


def test_several_components_are_named_fields():
    sampler, _, examples = serial(Grid, {}, 4, 2, ScriptedActor(lambda obs: obs["action_mask"].int().argmax(-1)))
    samples, _ = sampler.obtain_samples(0)
    mask = samples.env.observation.action_mask
    assert mask.shape[:2] == (4, 2) and bool(mask.gather(-1, samples.agent.action[..., None]).all())
    assert set(samples.env.observation._fields) == set(Grid(1).obs_spec) == set(examples["observation"]._fields)


def test_values_that_are_not_finite_are_kept_out():
    """A reward of NaN: its sample is not valid, and the trajectory is not reported."""
    tables = {**TWO_ENDS, "reward": [row.copy() for row in TWO_ENDS["reward"]]}
    tables["reward"][0][0] = float("nan")
    sampler, _, _ = serial(scripted(**tables), agent=CountingAgent(50))
    samples, infos = sampler.obtain_samples(0)
    assert (~samples.env.valid).nonzero().tolist() == [[0, 0]] and bool(torch.isfinite(samples.env.reward).all())
    assert [(info.Length, info.Return) for info in infos] == [(4, 20.0), (3, 21.0)]


def test_an_env_in_quarantine_comes_back_with_a_new_trajectory():
    class Sick(Counting):
        calls = 0

        def step(self, actions):
            step = super().step(actions)
            self.calls += 1
            if self.calls == 4:  # the first is for the examples
                step.obs["obs"][1] = float("nan")
            return step

    sampler, _, _ = serial(Sick, {"config": CountingConfig(min_length=8, max_length=8)}, T=6, B=3)
    samples, infos = sampler.obtain_samples(0)
    assert (~samples.env.valid).sum(0).tolist() == [0, 3, 0] and bool(samples.env.truncated[2, 1])
    assert [(info.Length, info.Return) for info in infos] == [(3, 3.0)]
    assert [info.Length for info in sampler.traj_infos] == [6, 0, 6]
    _, infos = sampler.obtain_samples(1)
    assert [info.Length for info in infos] == [8, 8]
    _, infos = sampler.obtain_samples(2)
    assert [info.Length for info in infos] == [8, 8, 8]  # env 1 first: it began with the second batch
    assert [info.Length for info in sampler.traj_infos] == [2, 4, 2]


# -- trajectories ------------------------------------------------------------------------------------------------------


class EchoInfo(TrajInfo):
    """Sums what the env echoes, and keeps where the trajectory ended."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.ActionSum = 0
        self.InfoSum = 0
        self._observations = []

    def step(self, observation, action, reward, done, agent_info, env_info):
        super().step(observation, action, reward, done, agent_info, env_info)
        self.ActionSum += int(env_info.action)
        self.InfoSum += int(agent_info.count)
        self._observations.append(observation.tolist())
        assert int(action) == int(env_info.action)

    def terminate(self, observation):
        self.End = observation.tolist()
        return self


@BOTH
def test_a_subclass_of_traj_info(CollectorCls):
    sampler, _, _ = serial(Counting, COUNTING, T=7, B=4, TrajInfoCls=EchoInfo, CollectorCls=CollectorCls)
    infos = [info for itr in range(6) for info in sampler.obtain_samples(itr)[1]]
    assert len(infos) > 20 and len({info.Length for info in infos}) > 2
    for info in infos:
        assert isinstance(info, EchoInfo)
        env, episode, _ = info._observations[0]
        assert info._observations == [[env, episode, step] for step in range(info.Length)]
        assert info.End == [env, episode, info.Length] and info.Return == sum(range(info.Length))
        assert info.ActionSum == info.InfoSum == sum(range(info.Length))  # the agent plays the step of the episode
        assert set(info.logged()) == {
            *("Length", "Return", "NonzeroRewards", "DiscountedReturn", "ActionSum", "InfoSum", "End")
        }


def test_discount_of_the_trajectories():
    sampler = SerialSampler(Chain, {"config": ChainConfig(num_states=4)}, 9, 1, max_decorrelation_steps=0)
    sampler.initialize(ScriptedActor(lambda obs: torch.ones(1).long()), seed=0, traj_info_kwargs={"discount": 0.5})
    _, infos = sampler.obtain_samples(0)
    assert [(info.Length, info.Return, info.DiscountedReturn) for info in infos] == [(3, 1.0, 0.25)] * 3
    assert TrajInfo._discount == 1.0


# -- starts ------------------------------------------------------------------------------------------------------------

LONG = {"config": ProbeConfig(num_steps=10_000)}


def test_decorrelation_takes_one_to_max_random_steps_per_env():
    sampler, _, _ = serial(TimeLimit, LONG, 2, 400, max_decorrelation_steps=10, agent=RandomActor(DiscreteSpec(n=2)))
    env = sampler.collector.env
    wanted = decorrelation_lengths(env, 10, seed=1)
    assert torch.equal(env.episode_length_buf, wanted)
    counts = torch.bincount(wanted, minlength=11)
    assert counts[0] == 0 and len(counts) == 11 and int(counts[1:].min()) > 15  # 40 of each are expected
    assert [info.Length for info in sampler.traj_infos] == wanted.tolist()  # they are part of the trajectory
    assert sampler.agent_inputs.prev_reward.tolist() == [1.0] * 400
    assert 100 < int(sampler.agent_inputs.prev_action.sum()) < 300
    samples, _ = sampler.obtain_samples(0)
    assert torch.equal(samples.agent.prev_action[0], sampler.samples_pyt.agent.prev_action[0])
    assert samples.env.prev_reward[0].tolist() == [1.0] * 400


def test_decorrelation_hands_its_last_step_to_the_agent():
    sampler, agent, _ = serial(TimeLimit, LONG, 2, 8, max_decorrelation_steps=5)
    inputs = sampler.agent_inputs
    samples, _ = sampler.obtain_samples(0)
    _, action, reward = agent.seen[0]
    assert torch.equal(action, inputs.prev_action) and torch.equal(reward, inputs.prev_reward)
    assert torch.equal(samples.agent.prev_action[0], inputs.prev_action) and bool(inputs.prev_action.any())


def test_decorrelation_that_ends_an_episode_leaves_nothing_before():
    single = {"config": CountingConfig(min_length=1, max_length=1)}
    sampler, _, _ = serial(Counting, single, 2, 6, max_decorrelation_steps=4)
    assert not sampler.agent_inputs.prev_action.any() and not sampler.agent_inputs.prev_reward.any()
    assert [info.Length for info in sampler.traj_infos] == [0] * 6


@pytest.mark.parametrize("max_steps", [0, 1])
def test_decorrelation_none_and_one(max_steps):
    sampler, _, _ = serial(TimeLimit, LONG, 2, 5, max_decorrelation_steps=max_steps)
    assert sampler.collector.env.episode_length_buf.tolist() == [max_steps] * 5


def test_decorrelation_belongs_to_the_env_not_to_the_process():
    """Two ranks with three envs each have the samples of one with six."""

    def samples_of(B, rank, world_size):
        sampler = SerialSampler(CartPole, {}, 20, B, max_decorrelation_steps=15)
        sampler.initialize(RandomActor(DiscreteSpec(n=2)), seed=3, rank=rank, world_size=world_size)
        return sampler.obtain_samples(0)[0], sampler.agent_inputs

    whole, _ = samples_of(6, 0, 1)
    halves = [samples_of(3, rank, 2)[0] for rank in range(2)]
    assert torch.equal(whole.env.observation, torch.cat([half.env.observation for half in halves], 1))
    assert torch.equal(whole.agent.prev_action, torch.cat([half.agent.prev_action for half in halves], 1))


def test_ranks_of_an_env_without_a_first_index_have_other_seeds():
    def make(num_envs):
        return CartPole(num_envs)

    def observations(rank):
        agent = CountingAgent(2)
        sampler = SerialSampler(make, {}, 3, 2, max_decorrelation_steps=0)
        sampler.initialize(agent, seed=3, rank=rank, world_size=2)
        assert ("initialize", 4, (2 * rank, 2 * rank + 1)) in agent.calls
        return sampler.obtain_samples(0)[0].env.observation

    assert not torch.equal(observations(0), observations(1))


def test_same_seed_same_samples():
    def run(seed):
        sampler, _, _ = serial(
            CartPole, {}, 30, 3, RandomActor(DiscreteSpec(n=2)), seed=seed, max_decorrelation_steps=9
        )
        return torch.stack([sampler.obtain_samples(itr)[0].env.observation.clone() for itr in range(2)])

    assert torch.equal(run(1), run(1)) and not torch.equal(run(1), run(2))
    sampler = SerialSampler(CartPole, {}, 3, 2)
    sampler.initialize(PlainAgent())
    first, _ = sampler.seed, sampler.shutdown()
    sampler.initialize(PlainAgent())
    assert sampler.seed != first  # drawn


def test_collector_goes_on_from_episodes_that_others_began():
    env = Counting(4, config=CountingConfig(min_length=6, max_length=6))
    obs = env.reset(2)
    for _ in range(3):
        obs = env.step(torch.zeros(4).long()).obs
    collector = Collector(env, RandomActor(env.action_spec), CollectorConfig(previous_step=True))
    with pytest.raises(RuntimeError, match="call reset first"):
        collector.current_obs  # noqa: B018
    previous = {"prev_action": torch.arange(4), "prev_reward": torch.ones(4)}
    collector.start_from({**obs, **previous}, seed=9)
    assert torch.equal(collector.current_obs["prev_action"], torch.arange(4)) and collector.seed == 9
    collector.collect(n_step=4 * 3)
    assert int(collector.statistics.num_episodes) == 0  # it did not see how these began
    collector.collect(n_step=4 * 6)
    assert int(collector.statistics.num_episodes) == 4 and collector.statistics.read()["length_mean"] == 6
    assert not collector.current_obs["prev_action"].any()


# -- evaluation --------------------------------------------------------------------------------------------------------


def evaluating(agent=None, **arguments):
    arguments = {"eval_n_envs": 3, "eval_max_trajectories": 7} | arguments
    return serial(Counting, COUNTING, 4, 2, agent, **arguments)


def test_evaluation_plays_whole_trajectories_in_equal_shares():
    sampler, agent, _ = evaluating(TrajInfoCls=EchoInfo)
    agent.calls.clear()
    infos = sampler.evaluate_agent(5)
    assert len(infos) == 7 and agent.calls[:2] == [("eval_mode", 5), ("reset",)]
    envs = [int(info._observations[0][0]) for info in infos]
    assert [envs.count(env) for env in range(3)] == [3, 2, 2]
    assert all(info.ActionSum == sum(range(info.Length)) for info in infos)  # memory was fresh for each
    assert [dict(info) for info in sampler.evaluate_agents(5)] == [dict(info) for info in infos]
    other = [info.Length for info in sampler.evaluate_agent(6)]
    assert other != [info.Length for info in infos]  # other episodes
    agent.calls.clear()
    sampler.obtain_samples(6)
    assert agent.calls[0] == ("sample_mode", 6)


def test_evaluation_leaves_the_training_envs_alone():
    actor = Remembering()
    plain, _, _ = serial(Counting, COUNTING, 4, 2, actor)
    sampler, _, _ = evaluating(actor)
    for itr in range(4):
        sampler.evaluate_agent(itr)
        assert torch.equal(sampler.obtain_samples(itr)[0].env.observation, plain.obtain_samples(itr)[0].env.observation)


def test_evaluation_has_its_own_seed_and_settings():
    longer = {"config": CountingConfig(min_length=30, max_length=30)}
    sampler, _, _ = evaluating(eval_env_kwargs=longer)
    assert [info.Length for info in sampler.evaluate_agent(0)] == [30] * 7
    assert sampler.eval_collector.seed != sampler.collector.seed
    assert sampler.eval_collector.env is not sampler.collector.env


@pytest.mark.parametrize(("max_steps", "trajectories"), [(3 * 12, 6), (3 * 13, 9), (3 * 13 + 2, 9), (3 * 3, 0)])
def test_evaluation_stops_after_so_many_steps(max_steps, trajectories):
    # every episode has 4 steps: 12 steps in each of 3 envs are 3 trajectories each, cut by the 9 or 6 wanted
    config = {"config": CountingConfig(min_length=4, max_length=4)}
    wanted = None if trajectories != 6 else 6
    sampler, _, _ = evaluating(eval_env_kwargs=config, eval_max_steps=max_steps, eval_max_trajectories=wanted)
    assert len(sampler.evaluate_agent(0)) == trajectories


def test_an_eval_collector_of_ones_own():
    class Twice(EvalCollector):
        def collect_evaluation(self, itr):
            return super().collect_evaluation(itr) * 2

    sampler, _, _ = evaluating(eval_CollectorCls=Twice)
    assert len(sampler.evaluate_agent(0)) == 14


# -- by hand, without a sampler ----------------------------------------------------------------------------------------


@BOTH
def test_a_collector_driven_by_hand(CollectorCls):
    sampler, _, _ = serial(Counting, COUNTING, 5, 3, CollectorCls=CollectorCls)
    wanted = [sampler.obtain_samples(itr)[0].env.observation.clone() for itr in range(2)]
    memory = serial(Counting, COUNTING, 5, 3)[0].samples_np
    agent = CountingAgent()
    agent.initialize(None, env_ranks=[])
    collector = CollectorCls(0, Counting(3, **COUNTING), memory, 5, TrajInfo, agent, seed=1)
    agent_inputs, traj_infos = collector.start_envs(0)
    collector.start_agent()
    for itr in range(2):
        agent_inputs, traj_infos, _ = collector.collect_batch(agent_inputs, traj_infos, itr)
        assert collector.reset_if_needed(agent_inputs) is None
        assert np.array_equal(memory.env.observation, wanted[itr])
    with pytest.raises(ValueError, match="pass the agent_inputs that came last"):
        collector.collect_batch(sampler.agent_inputs, traj_infos, 2)


def test_a_collector_without_an_agent_acts_at_random():
    memory = serial(Counting, COUNTING, 50, 2, PlainAgent())[0].samples_np
    collector = BaseCollector(rank=0, envs=Counting(2), samples_np=memory, batch_T=50, TrajInfoCls=TrajInfo)
    agent_inputs, traj_infos = collector.start_envs(3)
    collector.start_agent()
    collector.collect_batch(agent_inputs, traj_infos, 0)
    assert set(memory.agent.action.reshape(-1).tolist()) == {0, 1, 2, 3}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@BOTH
def test_envs_on_a_gpu_give_the_samples_of_the_cpu(CollectorCls):
    arguments = {"max_decorrelation_steps": 5, "eval_n_envs": 2, "eval_max_trajectories": 4, "TrajInfoCls": EndInfo}
    arguments |= {"CollectorCls": CollectorCls, "bootstrap_value": True}
    on_cpu, _, _ = serial(Counting, COUNTING, 9, 4, DeviceAgent(), **arguments)
    on_gpu, _, _ = serial(Counting, {**COUNTING, "device": "cuda"}, 9, 4, DeviceAgent(), **arguments)
    for itr in range(3):
        (samples, infos), (wanted, wanted_infos) = on_gpu.obtain_samples(itr), on_cpu.obtain_samples(itr)
        assert samples.env.observation.is_cuda and samples.agent.bootstrap_value.is_cuda
        assert torch.equal(samples.env.observation.cpu(), wanted.env.observation)
        assert torch.equal(samples.agent.prev_action.cpu(), wanted.agent.prev_action)
        assert [dict(info) for info in infos] == [dict(info) for info in wanted_infos]
        assert [dict(info) for info in on_gpu.evaluate_agent(itr)] == [
            dict(info) for info in on_cpu.evaluate_agent(itr)
        ]


class EndInfo(TrajInfo):
    def terminate(self, observation):
        self.End = observation.tolist()
        return self


class DeviceAgent(CountingAgent):
    """Lives on the CPU, as rlpyt's agents show themselves, and values on the device of what it sees."""

    def step(self, observation, prev_action, prev_reward):
        return super().step(observation.cpu(), prev_action.cpu(), prev_reward.cpu())


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="at least one step and one env"):
        SerialSampler(Counting, {}, 0, 1)
    with pytest.raises(ValueError, match="eval_n_envs wants eval_max_steps"):
        SerialSampler(Counting, {}, 1, 1, eval_n_envs=1)
    with pytest.raises(ValueError, match="is not one step for each of 4"):
        SerialSampler(Counting, {}, 1, 1, eval_n_envs=4, eval_max_steps=3)
    sampler = SerialSampler(Counting, {}, 1, 1)
    with pytest.raises(RuntimeError, match="call initialize first"):
        sampler.obtain_samples(0)
    with pytest.raises(RuntimeError, match="eval_n_envs of 1 or more"):
        sampler.evaluate_agent(0)
    with pytest.raises(TypeError, match="neither an agent with step"):
        sampler.initialize(object())
    sampler.initialize(CountingAgent())
    sampler.shutdown()
    sampler.shutdown()
    with pytest.raises(TypeError, match="takes a dict with"):
        SerialSampler(HybridActions, {}, 1, 1).initialize(RandomActor(HybridActions(1).action_spec))
    with pytest.raises(ValueError, match="with neither it would not end"):
        EvalCollector(Counting(1), CountingAgent())
    with pytest.raises(TypeError, match="PlainAgent has none"):
        serial(Counting, {}, 1, 1, PlainAgent(), bootstrap_value=True)[0].obtain_samples(0)
    assert issubclass(SerialSampler, BaseSampler)


def test_mistakes_with_collectors_are_named():
    memory = serial(Counting, COUNTING, 5, 3)[0].samples_np
    with pytest.raises(ValueError, match="worker processes belong to the env"):
        ResetCollector(0, Counting(3), memory, 5, TrajInfo, sync=object())
    with pytest.raises(ValueError, match=r"wanted \[5, 2\] for batch_T and envs, found \[5, 3\]"):
        ResetCollector(0, Counting(2), memory, 5, TrajInfo)
    apart = memory._replace(agent=memory.agent._replace(prev_action=memory.agent.prev_action.copy()))
    with pytest.raises(ValueError, match="to be the same memory"):
        ResetCollector(0, Counting(3), apart, 5, TrajInfo)
