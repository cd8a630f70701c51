"""Agents, algorithms and runners in rlpyt's words."""

from __future__ import annotations

import csv
import json
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from striderl.collect.samplers.samplers import BatchSpec, SerialSampler, WaitResetCollector
from striderl.compat.rlpyt import (
    A2C,
    DQN,
    PPO,
    SAC,
    AgentTrain,
    DqnAgent,
    MinibatchRl,
    MinibatchRlEval,
    PgAgent,
    SacAgent,
    logger_context,
)
from striderl.envs.tasks import make
from striderl.training.guard import DivergedError


class PgModel(nn.Module):
    def __init__(self, observation_shape: tuple[int, ...], output_size: int) -> None:
        super().__init__()
        self.pi, self.v = nn.Linear(observation_shape[0], output_size), nn.Linear(observation_shape[0], 1)

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any) -> tuple[Tensor, ...]:
        return self.pi(observation).softmax(-1), self.v(observation)


class GaussianModel(PgModel):
    def __init__(self, observation_shape: tuple[int, ...], output_size: int) -> None:
        super().__init__(observation_shape, output_size)
        self.log_std = nn.Parameter(torch.zeros(output_size))

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any) -> tuple[Tensor, ...]:
        return self.pi(observation), self.log_std, self.v(observation)


class QModel(nn.Module):
    def __init__(self, observation_shape: tuple[int, ...], output_size: int) -> None:
        super().__init__()
        self.q = nn.Linear(observation_shape[0], output_size)

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any) -> Tensor:
        return self.q(observation)


class QOfActionModel(nn.Module):
    def __init__(self, observation_shape: tuple[int, ...], action_size: int) -> None:
        super().__init__()
        self.q = nn.Linear(observation_shape[0] + action_size, 1)

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any, action: Tensor) -> Tensor:
        return self.q(torch.cat([observation, action], -1))


class MuModel(GaussianModel):
    def __init__(self, observation_shape: tuple[int, ...], action_size: int) -> None:
        super().__init__(observation_shape, action_size)

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any) -> tuple[Tensor, ...]:
        return self.pi(observation), self.log_std


def sampler(task: str = "cartpole", T: int = 8, B: int = 2, **settings: Any) -> SerialSampler:
    return SerialSampler(
        EnvCls=make, env_kwargs={"task": task}, batch_T=T, batch_B=B, max_decorrelation_steps=0, **settings
    )


def start(algo: Any, agent: Any, task: str = "cartpole", T: int = 8, B: int = 2, **settings: Any) -> SerialSampler:
    """Do what a runner does before its loop."""
    torch.manual_seed(0)
    made = sampler(task, T, B, **settings)
    examples = made.initialize(agent, seed=1, bootstrap_value=algo.bootstrap_value)
    algo.initialize(agent, 10, made.batch_spec, made.mid_batch_reset, examples)
    return made


# -- algorithms --------------------------------------------------------------------------------------------------------


def test_ppo_gives_one_number_per_gradient_step():
    algo = PPO(epochs=3, minibatches=2)
    agent = PgAgent(PgModel)
    made = start(algo, agent)
    samples, _ = made.obtain_samples(0)
    before = agent.state_dict()
    opt_info = algo.optimize_agent(0, samples)
    assert opt_info._fields == ("loss", "gradNorm", "entropy", "perplexity")
    assert [len(field) for field in opt_info] == [6] * 4 and algo.update_counter == 6
    np.testing.assert_allclose(opt_info.perplexity, np.exp(opt_info.entropy), rtol=0.05)  # of means, and mean of those
    assert any(not torch.equal(value, before[name]) for name, value in agent.state_dict().items())
    made.shutdown()


def test_process_returns_by_hand():
    algo = A2C(discount=0.5, gae_lambda=1)
    agent = PgAgent(PgModel)
    made = start(algo, agent, T=3, B=2)
    samples, _ = made.obtain_samples(0)
    env, info = samples.env, samples.agent.agent_info
    env.reward[:] = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    info.value[:] = torch.tensor([[0.5, 0.5], [0.25, 8.0], [1.0, 1.0]])
    samples.agent.bootstrap_value[:] = 10.0
    for flag in (env.done, env.terminated, env.truncated):
        flag[:] = False
    env.done[0, 0] = env.done[1, 1] = True
    env.terminated[0, 0], env.truncated[1, 1] = True, True
    return_, advantage, valid = algo.process_returns(samples)
    # column 0 terminates at once: 1 | 2 + .5·(4 + .5·10) | 4 + .5·10; in column 1 the clock stops step 1, worth V = 8
    torch.testing.assert_close(return_, torch.tensor([[1.0, 1 + 0.5 * (2 + 0.5 * 8)], [6.5, 6.0], [9.0, 9.0]]))
    torch.testing.assert_close(advantage, return_ - info.value)
    assert valid is None
    made.shutdown()


def test_valid_after_an_end_when_resets_wait():
    algo = PPO()
    made = start(algo, PgAgent(PgModel), T=60, B=3, CollectorCls=WaitResetCollector)
    samples, _ = made.obtain_samples(0)
    _, advantage, valid = algo.process_returns(samples)
    done = samples.env.done.float()
    expected = torch.cat([torch.ones(1, 3), 1 - done[:-1].cumsum(0).clamp(max=1)])
    assert valid is not None and 0 < float(valid.mean()) < 1
    torch.testing.assert_close(valid, expected)
    assert float(advantage[valid == 0].abs().max()) == 0.0
    algo.optimize_agent(0, samples)
    made.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "algo", "agent"),
    [
        ("cartpole", lambda: PPO(), lambda: PgAgent(PgModel)),
        ("cartpole", lambda: A2C(), lambda: PgAgent(PgModel)),
        ("pendulum", lambda: PPO(), lambda: PgAgent(GaussianModel)),
        ("cartpole", lambda: DQN(batch_size=8, min_steps_learn=20), lambda: DqnAgent(QModel)),
        (
            "pendulum",
            lambda: SAC(batch_size=8, min_steps_learn=20, replay_ratio=2.0),
            lambda: SacAgent(MuModel, QOfActionModel),
        ),
    ],
)
def test_users_models_learn(task, algo, agent):
    algo, agent = algo(), agent()
    made = start(algo, agent, task)
    before = {name: value.clone() for name, value in agent.model.state_dict().items()}
    for itr in range(3):
        opt_info = algo.optimize_agent(itr, made.obtain_samples(itr)[0])
    assert np.size(opt_info[0]) >= 1 and np.isfinite(opt_info[0]).all()
    assert any(not torch.equal(value, before[name]) for name, value in agent.model.state_dict().items())
    made.shutdown()


def test_replay_holds_every_step_with_what_followed():
    algo = DQN(discount=0.9, batch_size=4, min_steps_learn=10_000)
    made = start(algo, DqnAgent(QModel), T=5, B=2)
    actions = []
    for itr in range(3):
        samples, _ = made.obtain_samples(itr)
        actions.append(samples.agent.action.clone())
        assert algo.optimize_agent(itr, samples)._asdict() == {"loss": [], "gradNorm": [], "tdAbsErr": []}
    replay = algo.replay_buffer
    assert len(replay) == 30  # 15 steps of 2 envs
    torch.testing.assert_close(replay.samples.action[:15], torch.cat(actions))
    seen = replay.samples.observation[:15]
    for _ in range(20):
        batch = replay.sample_batch(8)
        for now, later in zip(batch.agent_inputs.observation, batch.target_inputs.observation):
            t, b = (seen == now).all(-1).nonzero()[0].tolist()
            torch.testing.assert_close(later, seen[t + 1, b])  # so the last step, which nothing follows, is not drawn
    made.shutdown()


def test_updates_follow_the_replay_ratio():
    algo = DQN(batch_size=8, min_steps_learn=32, replay_ratio=2.0)
    made = start(algo, DqnAgent(QModel))
    counts = [len(algo.optimize_agent(itr, made.obtain_samples(itr)[0]).loss) for itr in range(4)]
    assert counts == [0, 0, 4, 4]  # 2 · 16 samples / 8 per update, once 32 steps were taken before
    made.shutdown()


def test_what_does_not_fit_is_said():
    with pytest.raises(RuntimeError, match=r"PPO.optimize_agent comes after initialize"):
        PPO().optimize_agent(0, None)
    with pytest.raises(TypeError, match=r"DQN wants an agent with .*target.*; PgAgent lacks target, update_target"):
        DQN().initialize(PgAgent(), 1, BatchSpec(4, 2), True, {})
    with pytest.raises(RuntimeError, match="the agent has no model yet"):
        DQN().initialize(DqnAgent(), 1, BatchSpec(4, 2), True, {})
    with pytest.raises(TypeError, match="DqnAgent wants ModelCls, the class of its network"):
        sampler().initialize(DqnAgent(), seed=0)
    made = sampler()
    with pytest.raises(TypeError, match=r"QModel.forward must return \(pi, v\)"):
        made.initialize(PgAgent(QModel), seed=0)
    algo, agent = PPO(), PgAgent(PgModel)
    made = sampler()
    made.initialize(agent, seed=0)  # without bootstrap_value
    algo.initialize(agent, 1, made.batch_spec, True)
    with pytest.raises(ValueError, match="wants samples with bootstrap_value"):
        algo.optimize_agent(0, made.obtain_samples(0)[0])
    made.shutdown()


# -- pi is a row of probabilities --------------------------------------------------------------------------------------


class Fixed(nn.Module):
    """Chooses with the probabilities of its parameter, whatever it sees."""

    def __init__(self, observation_shape: tuple[int, ...], output_size: int, pi: tuple[float, ...]) -> None:
        super().__init__()
        self.pi, self.v = nn.Parameter(torch.tensor(pi)), nn.Linear(observation_shape[0], 1)

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any) -> tuple[Tensor, ...]:
        return self.pi.expand(*observation.shape[:-1], -1), self.v(observation)


@pytest.mark.slow
@pytest.mark.parametrize("pi", [(0.99, 0.01), (0.3, 0.7), (1.0, 0.0)])
@pytest.mark.parametrize(
    "algo", [lambda: PPO(entropy_loss_coeff=0.0, learning_rate=1e-6), lambda: A2C(learning_rate=1e-6)]
)
def test_pi_are_probabilities_in_acting_learning_and_what_is_stored(pi, algo):
    agent, learner = PgAgent(Fixed, {"pi": pi}), algo()
    made = start(learner, agent, T=250, B=8)
    samples, _ = made.obtain_samples(0)
    action, info = samples.agent.action, samples.agent.agent_info
    # 2,000 choices: four standard deviations of the frequency are 0.041 and 0.009
    assert float((action == 0).float().mean()) == pytest.approx(pi[0], abs=4 * (pi[0] * pi[1] / 2000) ** 0.5 + 1e-9)
    torch.testing.assert_close(info.dist_info.prob, torch.tensor(pi).expand(250, 8, 2), atol=1e-6, rtol=0)
    torch.testing.assert_close(agent(samples.env.observation[0]).dist_info.prob, torch.tensor(pi).expand(8, 2))
    likely = agent.distribution.log_likelihood(action, info.dist_info)
    torch.testing.assert_close(likely, torch.tensor(pi).log()[action], atol=1e-6, rtol=1e-5)
    entropy = -sum(p * np.log(p) for p in pi if p > 0.0)
    assert float(agent.distribution.entropy(info.dist_info)[0, 0]) == pytest.approx(entropy, abs=1e-6)
    if pi[1] > 0.0:
        opt_info = learner.optimize_agent(0, samples)
        assert np.ravel(opt_info.entropy)[0] == pytest.approx(entropy, abs=1e-5)
        assert all(np.isfinite(field).all() for field in opt_info)
    made.shutdown()


@pytest.mark.parametrize("pi", [(1.5, -0.5), (0.0, 0.0), (0.5, 0.4), (2.0, 3.0), (float("nan"), 0.5)])
def test_logits_in_the_place_of_pi_raise_with_the_fix(pi):
    made = sampler()
    with pytest.raises(ValueError, match=r"Fixed.forward must return pi as probabilities.*torch.softmax\(logits"):
        made.initialize(PgAgent(Fixed, {"pi": pi}), seed=0)


def test_pi_that_stops_to_be_probabilities_raises_when_it_is_used():
    agent = PgAgent(Fixed, {"pi": (0.5, 0.5)})
    made = start(PPO(), agent)
    with torch.no_grad():
        agent.model.pi.copy_(torch.tensor([3.0, -1.0]))
    with pytest.raises(ValueError, match=r"pi as probabilities.*-1\.0"):
        agent.step(torch.zeros(2, 4))
    made.shutdown()


# -- agents ------------------------------------------------------------------------------------------------------------


def test_an_agent_says_what_it_stores():
    agent = PgAgent(PgModel)
    made = start(PPO(), agent)
    samples, _ = made.obtain_samples(0)
    info = samples.agent.agent_info
    said = agent(samples.env.observation[0])
    assert isinstance(said, AgentTrain)
    torch.testing.assert_close(said.value, info.value[0])
    torch.testing.assert_close(said.dist_info.prob, info.dist_info.prob[0])
    chosen = said.dist_info.prob.gather(1, samples.agent.action[0].unsqueeze(1)).squeeze(1).log()
    torch.testing.assert_close(chosen, agent.distribution.log_likelihood(samples.agent.action[0], said.dist_info))
    made.shutdown()


def test_evaluation_is_greedy():
    agent = DqnAgent(QModel, eps_eval=0.0)
    made = start(DQN(), agent)
    x = torch.zeros(50, 4)
    agent.sample_mode(0)
    assert len(set(agent.step(x).action.tolist())) == 2  # ε is 1 at first
    agent.eval_mode(1)
    assert set(agent.step(x).action.tolist()) == {int(agent(x)[0].argmax())}
    made.shutdown()


# -- runners -----------------------------------------------------------------------------------------------------------


def test_a_runner_trains_and_reports(tmp_path):
    torch.manual_seed(0)
    algo, agent = PPO(epochs=1, minibatches=2), PgAgent(PgModel)
    runner = MinibatchRl(algo=algo, agent=agent, sampler=sampler(T=16), n_steps=100, seed=3, log_interval_steps=64)
    with logger_context(tmp_path, 7, "ppo", {"game": "cartpole"}, snapshot_mode="last") as folder:
        runner.train()
    # 100 steps are 3 iterations of 32, rounded up to two reports of two iterations each
    assert [row["CumSteps"] for row in runner.diagnostics] == [64, 128]
    assert runner.diagnostics[-1]["CumUpdates"] == 8 and algo.n_itr == 4
    assert {"ReturnAverage", "LengthMax", "lossMedian", "entropyStd", "gradNormMin"} <= set(runner.diagnostics[-1])
    assert json.loads((folder / "params.json").read_text())["game"] == "cartpole"
    with (folder / "progress.csv").open() as file:
        assert [float(row["Diagnostics/CumSteps"]) for row in csv.DictReader(file)] == [64, 128]
    saved = torch.load(folder / "params.pkl")
    assert saved["itr"] == 3
    for name, value in agent.state_dict().items():
        torch.testing.assert_close(saved["agent_state_dict"][name], value)


@pytest.mark.parametrize("learner", ["ppo", "dqn"])
def test_a_run_without_valid_samples_is_no_success(learner):
    broken = []

    class Broken(gymnasium.Wrapper):
        def step(self, action):
            obs, reward, *rest = self.env.step(action)
            return obs, float("nan") if broken else reward, *rest

    def train():
        algo, agent = {
            "ppo": lambda: (PPO(epochs=1, minibatches=2), PgAgent(PgModel)),
            "dqn": lambda: (DQN(batch_size=8, min_steps_learn=16, replay_ratio=1.0), DqnAgent(QModel)),
        }[learner]()
        made = SerialSampler(EnvCls=lambda: Broken(gymnasium.make("CartPole-v1")), env_kwargs={}, batch_T=8, batch_B=2)
        runner = MinibatchRl(algo, agent, made, n_steps=48, seed=0, log_interval_steps=16)
        runner.store_diagnostics = lambda itr, *rest: (
            broken.append(itr) or type(runner).store_diagnostics(runner, itr, *rest)
        )
        runner.train()

    train()  # the first iteration was worth something
    with pytest.raises(DivergedError, match="nothing was learned in 3 iterations in a row: none of their samples"):
        train()


def test_evaluation_before_the_first_iteration_and_at_every_report():
    algo = DQN(batch_size=8, min_steps_learn=16, replay_ratio=1.0)
    agent = DqnAgent(QModel)
    made = sampler(T=8, eval_n_envs=2, eval_max_trajectories=3)
    runner = MinibatchRlEval(algo=algo, agent=agent, sampler=made, n_steps=32, seed=0, log_interval_steps=16)
    runner.train()
    assert [(row["CumSteps"], row["TrajsInEval"]) for row in runner.diagnostics] == [(0, 3), (16, 3), (32, 3)]


def test_the_same_seed_gives_the_same_run():
    def run() -> list[float]:
        torch.manual_seed(0)
        algo = SAC(batch_size=8, min_steps_learn=16, replay_ratio=2.0)
        agent = SacAgent(model_kwargs={"hidden_sizes": [8]}, q_model_kwargs={"hidden_sizes": [8]})
        runner = MinibatchRl(algo, agent, sampler("pendulum", T=8), n_steps=48, seed=5, log_interval_steps=16)
        runner.train()
        return [row.get("q1LossAverage", 0.0) for row in runner.diagnostics]

    first = run()
    assert first[-1] > 0
    np.testing.assert_array_equal(first, run())  # the first row has no updates: NaN


def test_gymnasium_envs_by_name():
    algo, agent = PPO(), PgAgent(PgModel)
    made = SerialSampler(EnvCls="CartPole-v1", env_kwargs={}, batch_T=8, batch_B=2, max_decorrelation_steps=3)
    runner = MinibatchRl(algo, agent, made, n_steps=32, seed=0, log_interval_steps=16)
    runner.train()
    assert len(runner.diagnostics) == 2 and agent.env_spaces.observation.shape == (4,)
