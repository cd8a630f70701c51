"""The notes on rlpyt, line by line: what they describe runs under rlpyt's names."""

from __future__ import annotations

import inspect
import json
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from rlpyt_parts import CountEnv, PiModel, QModel, make_sampler, started

from striderl.compat import rlpyt
from striderl.compat.rlpyt import (
    DQN,
    PPO,
    AgentInputs,
    BaseCollector,
    BaseRunner,
    BaseSampler,
    CategoricalPgAgent,
    CpuResetCollector,
    CpuSampler,
    CpuWaitResetCollector,
    DqnAgent,
    Env,
    GpuSampler,
    MinibatchRl,
    MinibatchRlEval,
    PolicyGradientAlgo,
    RlAlgorithm,
    SerialSampler,
    TrajInfo,
    buffer_from_example,
    logger_context,
    namedarraytuple,
    torchify_buffer,
)

# -- how to run --------------------------------------------------------------------------------------------------------


def build_and_train(
    game: Any = CountEnv, run_ID: int = 0, cuda_idx: int | None = None, log_dir: Any = "example"
) -> Any:
    sampler = SerialSampler(
        EnvCls=game,
        env_kwargs=dict(length=5),
        eval_env_kwargs=dict(length=5),
        batch_T=4,
        batch_B=2,
        max_decorrelation_steps=0,
        eval_n_envs=2,
        eval_max_steps=int(10e3),
        eval_max_trajectories=5,
    )
    algo = DQN(min_steps_learn=1e1, replay_size=1e3)
    agent = DqnAgent(ModelCls=QModel)
    runner = MinibatchRlEval(
        algo=algo,
        agent=agent,
        sampler=sampler,
        n_steps=64,
        log_interval_steps=3e1,
        affinity=dict(cuda_idx=cuda_idx),
    )
    config = dict(game=game)
    name = "dqn_" + game.__name__
    with logger_context(log_dir, run_ID, name, config, snapshot_mode="last"):
        runner.train()
    return runner


@pytest.mark.described("rlpyt", 8, "build_and_train takes the game, the number of the run and the GPU")
@pytest.mark.described("rlpyt", 14, "runner.train() runs sampler, algorithm, agent, runner and config to the end")
def test_build_and_train(tmp_path, capsys):
    runner = build_and_train(run_ID=3, log_dir=tmp_path)
    # 64 steps in batches of 8: 8 iterations, rounded up to 9 for a log every 3; one log before the first
    assert [row["CumSteps"] for row in runner.diagnostics] == [0, 24, 48, 72]
    assert all(row["TrajsInEval"] == 5 and row["LengthAverage"] == 5 for row in runner.diagnostics)
    assert json.loads((tmp_path / "run_3" / "params.json").read_text()) == {
        "game": "CountEnv",
        "name": "dqn_CountEnv",
        "run_ID": 3,
    }
    assert set(torch.load(tmp_path / "run_3" / "params.pkl")["agent_state_dict"]) == {"model", "target"}
    shown = capsys.readouterr().out
    assert "Diagnostics/CumSteps" in shown and "ReturnAverage" in shown and "Training complete." in shown


@pytest.mark.described("rlpyt", 9, "a sampler is made from a class of envs, before anything is built")
@pytest.mark.parametrize("kind", [SerialSampler, CpuSampler, GpuSampler])
def test_make_a_sampler(kind):
    made = kind(EnvCls=CountEnv, env_kwargs={}, batch_T=4, batch_B=2, CollectorCls=CpuResetCollector)
    assert isinstance(made, BaseSampler) and made.batch_spec == (4, 2) and made.batch_spec.size == 8


@pytest.mark.described("rlpyt", 10, "an algorithm is made from its settings alone")
@pytest.mark.described("rlpyt", 11, "an agent is made from its model's class alone")
def test_make_an_algorithm_and_an_agent():
    algo, agent = DQN(discount=0.9, batch_size=8, replay_size=1e3), DqnAgent(ModelCls=QModel)
    assert (algo.discount, algo.batch_size, algo.replay_size) == (0.9, 8, 1000) and agent.model is None


@pytest.mark.described(
    "rlpyt", 12, "a runner is made from the three, and with log_interval_steps logs at that interval"
)
@pytest.mark.described("rlpyt", 13, "a config is written beside the run, with the name and the number of the run")
def test_make_a_runner_and_a_config(tmp_path):
    algo, agent = PPO(epochs=1), CategoricalPgAgent(ModelCls=PiModel)
    runner = MinibatchRl(algo=algo, agent=agent, sampler=make_sampler(), n_steps=50, seed=2, log_interval_steps=24)
    with logger_context(tmp_path, 0, "ppo", {"a": 1}):
        runner.train()
    assert [row["CumSteps"] for row in runner.diagnostics] == [24, 48]  # 12 steps each
    assert json.loads((tmp_path / "run_0" / "params.json").read_text()) == {"a": 1, "name": "ppo", "run_ID": 0}


# -- algorithms --------------------------------------------------------------------------------------------------------


@pytest.mark.described(
    "rlpyt",
    23,
    "initialize takes agent, n_itr, batch_spec, mid_batch_reset, examples, world_size and rank",
    difference="the notes list them for the class; as in rlpyt they are the arguments of initialize, and the class is "
    "RlAlgorithm, of which RLAlgorithm is another name",
)
def test_initialize_of_an_algorithm():
    assert rlpyt.RLAlgorithm is RlAlgorithm
    names = list(inspect.signature(RlAlgorithm.initialize).parameters)
    assert names == ["self", "agent", "n_itr", "batch_spec", "mid_batch_reset", "examples", "world_size", "rank"]
    given: dict[str, Any] = {}

    class Mine(RlAlgorithm):
        opt_info_fields = ("loss",)

        def initialize(self, **arguments: Any) -> None:  # type: ignore[override]
            given.update(arguments)

        def optimize_agent(self, itr: int, samples: Any) -> Any:  # type: ignore[override]
            self.update_counter += 1
            return namedtuple("MyOptInfo", ["loss"])(loss=float(itr))

        def optim_state_dict(self) -> dict[str, Any]:
            return {}

    agent = CategoricalPgAgent(ModelCls=PiModel)
    runner = MinibatchRl(algo=Mine(), agent=agent, sampler=make_sampler(), n_steps=48, log_interval_steps=24, seed=0)
    runner.train()
    assert set(given) == set(names[1:]) and given["agent"] is agent and given["n_itr"] == 4
    assert given["batch_spec"] == (6, 2) and given["mid_batch_reset"] and (given["world_size"], given["rank"]) == (1, 0)
    assert set(given["examples"]) == {"observation", "action", "reward", "done", "agent_info", "env_info"}
    # a number counts as a list of one: iterations 0 and 1, then 2 and 3
    assert [row["lossAverage"] for row in runner.diagnostics] == [0.5, 2.5]
    assert runner.diagnostics[-1]["CumUpdates"] == 4


@pytest.mark.described("rlpyt", 30, "process_returns returns return_, advantage and valid, time-major")
def test_process_returns_by_hand():
    algo = PPO(discount=0.5, gae_lambda=1, minibatches=1)
    sampler = started(algo, CategoricalPgAgent(ModelCls=PiModel), T=3, B=1, env_kwargs={"length": 99})
    samples, _ = sampler.obtain_samples(0)
    samples.env.reward[:, 0] = torch.tensor([1.0, 2.0, 4.0])
    samples.agent.agent_info.value[:, 0] = torch.tensor([1.0, 1.0, 1.0])
    samples.agent.bootstrap_value[:] = 8.0
    return_, advantage, valid = algo.process_returns(samples)
    # 4 + .5·8 = 8; 2 + .5·8 = 6; 1 + .5·6 = 4
    assert return_[:, 0].tolist() == [4.0, 6.0, 8.0] and advantage[:, 0].tolist() == [3.0, 5.0, 7.0] and valid is None
    algo.gae_lambda = 0.5
    _, advantage, _ = algo.process_returns(samples)
    # δ = 4 + .5·8 - 1, 2 + .5·1 - 1, 1 + .5·1 - 1 = 7, 1.5, .5; A = 7, 1.5 + .25·7, .5 + .25·3.25
    assert advantage[:, 0].tolist() == [1.3125, 3.25, 7.0]
    algo.normalize_advantage = True
    normalized = algo.process_returns(samples)[1]
    assert float(normalized.mean()) == pytest.approx(0, abs=1e-6) and float(normalized.std()) == pytest.approx(1)
    sampler.shutdown()


@pytest.mark.described("rlpyt", 30, "valid is 0 after the end of an episode where resets wait for the end of the batch")
def test_valid_ends_with_the_episode():
    algo = PPO()
    agent = CategoricalPgAgent(ModelCls=PiModel)
    sampler = started(algo, agent, T=8, B=2, CollectorCls=CpuWaitResetCollector, env_kwargs={"length": 5})
    samples, _ = sampler.obtain_samples(0)
    _, advantage, valid = algo.process_returns(samples)
    assert valid[:, 0].tolist() == [1, 1, 1, 1, 1, 0, 0, 0]  # the last step of the episode counts
    assert float(advantage[5:].abs().max()) == 0
    before = agent.state_dict()
    opt_info = algo.optimize_agent(0, samples)
    assert np.isfinite(opt_info.loss).all() and any((agent.state_dict()[n] != before[n]).any() for n in before)
    sampler.shutdown()


@pytest.mark.described(
    "rlpyt",
    30,
    "an episode that the clock ended is worth V of its last state afterwards",
    difference="rlpyt takes a time limit for the end of the task, which biases the returns of every task that has one",
)
def test_a_time_limit_is_not_an_end():
    algo = PPO(discount=0.5, minibatches=1)
    found = {}
    for by_clock in (False, True):
        agent = CategoricalPgAgent(ModelCls=PiModel)
        sampler = started(algo, agent, T=3, B=1, env_kwargs={"length": 2, "by_clock": by_clock})
        samples, _ = sampler.obtain_samples(0)
        samples.env.reward[:], samples.agent.agent_info.value[:] = 1.0, 4.0
        found[by_clock] = algo.process_returns(samples)[0][:2, 0].tolist()
        sampler.shutdown()
    assert found == {False: [1.5, 1.0], True: [2.5, 3.0]}  # 1 + .5·1, 1; and 1 + .5·3, 1 + .5·4


@pytest.mark.described("rlpyt", 33, "OptInfo is a named tuple of loss, gradNorm, entropy and perplexity")
@pytest.mark.described("rlpyt", 34, "AgentTrain is a named tuple of dist_info and value")
def test_the_named_tuples_of_policy_gradients():
    # the notes' own lines
    OptInfo = namedtuple("OptInfo", ["loss", "gradNorm", "entropy", "perplexity"])
    AgentTrain = namedtuple("AgentTrain", ["dist_info", "value"])
    assert rlpyt.OptInfo._fields == OptInfo._fields == PolicyGradientAlgo.opt_info_fields
    assert rlpyt.AgentTrain._fields == AgentTrain._fields
    assert PolicyGradientAlgo.bootstrap_value and not RlAlgorithm.bootstrap_value


class Watched(PPO):
    """Notes what `loss` is called with, and what it returns."""

    def loss(self, *inputs: Any, **named: Any) -> Any:
        self.calls = [*getattr(self, "calls", []), inputs]
        self.results = [*getattr(self, "results", []), super().loss(*inputs, **named)]
        return self.results[-1]


@pytest.mark.described("rlpyt", 41, "optimize_agent takes the iteration and the samples")
@pytest.mark.described("rlpyt", 42, "optimize_agent returns an OptInfo with a number per gradient step")
@pytest.mark.described("rlpyt", 46, "PPO goes over the batch `epochs` times")
@pytest.mark.described("rlpyt", 47, "each epoch has `minibatches` minibatches of shuffled samples")
@pytest.mark.described("rlpyt", 49, "every minibatch is one step of the optimiser")
def test_ppo_optimize_agent():
    algo, agent = Watched(epochs=3, minibatches=2, linear_lr_schedule=False), CategoricalPgAgent(ModelCls=PiModel)
    sampler = started(algo, agent)
    samples, _ = sampler.obtain_samples(0)
    opt_info = algo.optimize_agent(0, samples)
    assert [len(field) for field in opt_info] == [6] * 4 and algo.update_counter == len(algo.calls) == 6
    assert opt_info.loss == [loss.item() for loss, _, _ in algo.results]
    for epoch in range(3):
        # the 12 samples of the batch, in halves
        rewards = torch.cat([algo.calls[2 * epoch + half][2] for half in range(2)])
        assert sorted(rewards.tolist()) == pytest.approx(sorted(algo.process_returns(samples)[0].flatten().tolist()))
    assert (
        algo.calls[0][1].tolist() != algo.calls[2][1].tolist() or algo.calls[0][1].tolist() != algo.calls[4][1].tolist()
    )
    sampler.shutdown()


@pytest.mark.described("rlpyt", 44, "agent inputs are observation, previous action and previous reward")
@pytest.mark.described("rlpyt", 45, "the inputs of the loss are one tuple that is indexed as a whole")
@pytest.mark.described(
    "rlpyt",
    51,
    "loss takes agent_inputs, action, return_, advantage, valid, old_dist_info and init_rnn_state",
)
def test_the_inputs_of_the_loss():
    names = list(inspect.signature(PPO.loss).parameters)
    assert names[1:] == ["agent_inputs", "action", "return_", "advantage", "valid", "old_dist_info", "init_rnn_state"]
    assert rlpyt.LossInputs._fields == tuple(names[1:-1])
    algo = Watched(epochs=1, minibatches=1)
    sampler = started(algo, CategoricalPgAgent(ModelCls=PiModel), T=4, B=1, env_kwargs={"length": 3})
    samples, _ = sampler.obtain_samples(0)
    algo.optimize_agent(0, samples)
    inputs, action, _, _, valid, old_dist_info, state = algo.calls[0]
    assert inputs._fields == ("observation", "prev_action", "prev_reward") and valid is None and state is None
    order = inputs.observation[:, 0].long()  # the env shows how often it was stepped: 0, 1, 2 and after the reset 0
    taken, paid = samples.agent.action[:, 0], samples.env.reward[:, 0]
    for row, count in enumerate(order.tolist()):
        if count:
            assert (inputs.prev_action[row], inputs.prev_reward[row]) == (taken[count - 1], paid[count - 1])
        else:
            assert (inputs.prev_action[row], inputs.prev_reward[row]) == (0, 0)  # nothing before an episode
    assert old_dist_info.prob.shape == (4, 2) and action.shape == (4,)
    sampler.shutdown()


@pytest.mark.described("rlpyt", 52, "loss returns the loss, the entropy and the perplexity")
@pytest.mark.described("rlpyt", 55, "dist_info, value = self.agent(*agent_inputs) has gradients")
@pytest.mark.described("rlpyt", 56, "self.agent.distribution has likelihoods and entropies")
@pytest.mark.described("rlpyt", 58, "the loss is the clipped surrogate, the value loss and the entropy bonus")
def test_the_notes_own_loss_is_ours():
    class Notes(PPO):
        """The lines of the notes, and rlpyt's formula."""

        def loss(self, agent_inputs, action, return_, advantage, valid, old_dist_info, init_rnn_state=None):
            dist_info, value = self.agent(*agent_inputs)
            dist = self.agent.distribution

            ratio = dist.likelihood_ratio(action, old_dist_info=old_dist_info, new_dist_info=dist_info)
            clipped_ratio = torch.clamp(ratio, 1.0 - self.ratio_clip, 1.0 + self.ratio_clip)
            pi_loss = -rlpyt.valid_mean(torch.min(ratio * advantage, clipped_ratio * advantage), valid)
            value_loss = self.value_loss_coeff * rlpyt.valid_mean(0.5 * (value - return_) ** 2, valid)
            entropy = dist.mean_entropy(dist_info, valid)
            loss = pi_loss + value_loss - self.entropy_loss_coeff * entropy
            assert dist_info.prob.requires_grad and value.requires_grad
            return loss, entropy, dist.mean_perplexity(dist_info, valid)

    found = []
    for kind in (PPO, Notes):
        rlpyt.set_seed(0)
        algo, agent = kind(), CategoricalPgAgent(ModelCls=PiModel)
        sampler = started(algo, agent)
        for itr in range(3):
            opt_info = algo.optimize_agent(itr, sampler.obtain_samples(itr)[0])
        found.append((opt_info, agent.state_dict()))
        sampler.shutdown()
    assert found[0][0] == found[1][0]
    assert all(torch.equal(value, found[1][1][name]) for name, value in found[0][1].items())


# -- samplers ----------------------------------------------------------------------------------------------------------


@pytest.mark.described(
    "rlpyt",
    69,
    "a sampler takes EnvCls, env_kwargs, batch_T, batch_B and CollectorCls",
    difference="the notes write ensv_kwargs; as in rlpyt the name is env_kwargs",
)
@pytest.mark.described("rlpyt", 68, "a sampler lives in the process that trains, and the runner calls it")
@pytest.mark.described("rlpyt", 71, "obtain_samples takes the iteration and returns samples and ended trajectories")
def test_obtain_samples():
    names = list(inspect.signature(BaseSampler.__init__).parameters)
    assert names[1:6] == ["EnvCls", "env_kwargs", "batch_T", "batch_B", "CollectorCls"]
    sampler = SerialSampler(CountEnv, {"length": 4}, 6, 2, CpuResetCollector, max_decorrelation_steps=0)
    sampler.initialize(CategoricalPgAgent(ModelCls=PiModel), seed=0)
    samples, traj_infos = sampler.obtain_samples(0)
    assert samples.env.observation[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1]
    assert samples.env.done[:, 1].tolist() == [False, False, False, True, False, False]
    assert samples.env.env_info.steps[:, 0].tolist() == [1, 2, 3, 4, 1, 2]
    assert [info.Length for info in traj_infos] == [4, 4]
    assert [info.Return for info in traj_infos] == samples.env.reward[:4].sum(0).tolist()
    sampler.shutdown()


@pytest.mark.described(
    "rlpyt",
    73,
    "evaluate_agents takes the iteration and returns the trajectories of an evaluation",
    difference="rlpyt's name is evaluate_agent; both work",
)
def test_evaluate_agents():
    sampler = make_sampler(eval_n_envs=2, eval_max_trajectories=3, eval_max_steps=50)
    sampler.initialize(CategoricalPgAgent(ModelCls=PiModel), seed=0)
    for evaluate in (sampler.evaluate_agent, sampler.evaluate_agents):
        assert [info["Length"] for info in evaluate(1)] == [5, 5, 5]
    sampler.shutdown()


@pytest.mark.described(
    "rlpyt",
    78,
    "a collector steps through envs",
    difference="worker processes belong to the env; one collector steps all of them and the agent acts once for all",
)
@pytest.mark.described("rlpyt", 79, "a collector takes rank, envs, samples_np, batch_T and TrajInfoCls")
@pytest.mark.described("rlpyt", 80, "start_envs resets the envs and returns the first inputs of the agent")
@pytest.mark.described("rlpyt", 81, "start_agent resets the agent's episodes and lets it sample")
@pytest.mark.described("rlpyt", 83, "collect_batch takes agent_inputs and traj_infos and fills samples_np")
def test_a_collector_by_hand():
    class Steps(TrajInfo):
        def __init__(self, **fields: Any) -> None:
            super().__init__(**fields)
            self.Counts: list[int] = []

        def step(self, observation, action, reward, done, agent_info, env_info) -> None:
            super().step(observation, action, reward, done, agent_info, env_info)
            self.Counts = [*self.Counts, int(env_info.steps)]

    agent = CategoricalPgAgent(ModelCls=PiModel)
    whole = make_sampler(B=2)
    whole.initialize(agent, seed=0)
    samples_np = whole.samples_np
    envs = [CountEnv(length=3), CountEnv(length=4)]
    collector = CpuResetCollector(rank=0, envs=envs, samples_np=samples_np, batch_T=6, TrajInfoCls=Steps, agent=agent)
    assert isinstance(collector, BaseCollector)
    agent_inputs, traj_infos = collector.start_envs()
    assert agent_inputs.observation.tolist() == [[0, 1], [0, 1]] and agent_inputs.prev_action.tolist() == [0, 0]
    collector.start_agent()
    agent_inputs, traj_infos, completed = collector.collect_batch(agent_inputs, traj_infos)
    assert samples_np.env.observation[:, :, 0].T.tolist() == [[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 0, 1]]
    assert [info.Counts for info in completed] == [[1, 2, 3], [1, 2, 3, 4], [1, 2, 3]]
    agent_inputs, traj_infos, completed = collector.collect_batch(agent_inputs, traj_infos, 1)
    # the first that ends began in the batch before, and has all of its steps
    assert sorted(info.Counts for info in completed) == [[1, 2, 3], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4]]
    whole.shutdown()


@pytest.mark.described("rlpyt", 87, "SerialSampler steps its envs in this process, one after the other")
def test_serial_sampler():
    sampler = make_sampler(T=3, B=3)
    examples = sampler.initialize(CategoricalPgAgent(ModelCls=PiModel), seed=0, bootstrap_value=True)
    assert examples["observation"].shape == (2,) and examples["agent_info"].dist_info.prob.shape == (2,)
    samples, _ = sampler.obtain_samples(0)
    assert samples.agent.bootstrap_value.shape == (1, 3)
    assert torch.equal(samples.agent.prev_action[1:], samples.agent.action[:-1])  # the same memory
    samples.agent.action[0, 0] = 1
    assert samples.agent.prev_action[1, 0] == 1
    sampler.shutdown()


# -- envs, runners, utils ----------------------------------------------------------------------------------------------


@pytest.mark.described("rlpyt", 97, "an env has observation_space, action_space, spaces and horizon")
@pytest.mark.described("rlpyt", 99, "step takes an action")
@pytest.mark.described("rlpyt", 100, "step returns observation, reward, done and info")
@pytest.mark.described("rlpyt", 101, "reset starts an episode and returns its observation")
@pytest.mark.described("rlpyt", 102, "close is called when a sampler shuts down")
def test_an_env_of_ones_own():
    made: list[CountEnv] = []

    def build(length: int = 5) -> CountEnv:
        made.append(CountEnv(length))
        return made[-1]

    env = CountEnv(length=2)
    assert env.spaces == (env.observation_space, env.action_space) and env.horizon == 2
    assert env.action_space.n == 2 and env.observation_space.shape == (2,)
    assert env.reset().tolist() == [0, 1]
    observation, reward, done, info = env.step(1)
    assert (observation.tolist(), reward, done, info.steps) == ([1, 1], 1.0, False, 1) and env.step(0).done
    with pytest.raises(NotImplementedError):
        Env().step(0)
    sampler = make_sampler(build)
    sampler.initialize(CategoricalPgAgent(ModelCls=PiModel), seed=0)
    sampler.obtain_samples(0)
    sampler.shutdown()
    assert made and all(each.closed for each in made)


@pytest.mark.described("rlpyt", 112, "a runner of one's own derives from BaseRunner and defines train")
def test_base_runner():
    class Once(BaseRunner):
        def train(self) -> None:
            self.trained = True

    runner = Once()
    runner.train()
    assert runner.trained and isinstance(make_runner(), BaseRunner)
    with pytest.raises(NotImplementedError):
        BaseRunner().train()


def make_runner() -> MinibatchRl:
    return MinibatchRl(algo=PPO(), agent=CategoricalPgAgent(ModelCls=PiModel), sampler=make_sampler(), n_steps=1)


@pytest.mark.described("rlpyt", 117, "the models of rlpyt keep the leading dimensions [T, B], [B] or none")
@pytest.mark.parametrize("lead", [(3, 2), (2,), ()])
def test_models_keep_leading_dimensions(lead):
    image = torch.randint(0, 256, (*lead, 4, 36, 30), dtype=torch.uint8)
    vector, choice = torch.randn(*lead, 5), torch.zeros(*lead, 3)
    action, reward = torch.zeros(*lead, 2), torch.zeros(lead)
    small: dict[str, Any] = {"image_shape": (4, 36, 30), "output_size": 3}
    real: dict[str, Any] = {"observation_shape": (5,), "action_size": 2}
    pi, v = rlpyt.AtariFfModel(**small, fc_sizes=8)(image, choice, reward)
    assert pi.shape == (*lead, 3) and v.shape == lead
    torch.testing.assert_close(pi.sum(-1), torch.ones(lead))
    for dueling in (False, True):
        assert rlpyt.AtariDqnModel(**small, fc_sizes=8, dueling=dueling)(image, choice, reward).shape == (*lead, 3)
        p = rlpyt.AtariCatDqnModel(**small, fc_sizes=8, n_atoms=7, dueling=dueling)(image, choice, reward)
        assert p.shape == (*lead, 3, 7)
        q, state = rlpyt.AtariR2d1Model(**small, fc_size=8, lstm_size=6, head_size=8, dueling=dueling)(
            image, choice, reward, None
        )
        assert q.shape == (*lead, 3) and state.h.shape == (1, lead[-1] if lead else 1, 6)
    pi, v, state = rlpyt.AtariLstmModel(**small, fc_sizes=8, lstm_size=6)(image, choice, reward, state)
    assert pi.shape == (*lead, 3) and v.shape == lead
    for normalize in (False, True):
        model = rlpyt.MujocoFfModel(**real, normalize_observation=normalize)
        model.update_obs_rms(vector)
        mu, log_std, v = model(vector, action, reward)
        assert mu.shape == log_std.shape == (*lead, 2) and v.shape == lead
    mu, _, v, state = rlpyt.MujocoLstmModel(**real, hidden_sizes=[8], lstm_size=6)(vector, action, reward, None)
    assert mu.shape == (*lead, 2) and v.shape == lead and isinstance(state, rlpyt.RnnState)
    assert rlpyt.MuMlpModel(**real, hidden_sizes=[8], output_max=2)(vector, action, reward).abs().max() <= 2
    assert rlpyt.PiMlpModel(**real, hidden_sizes=[8])(vector, action, reward)[1].shape == (*lead, 2)
    assert rlpyt.QofMuMlpModel(**real, hidden_sizes=[8])(vector, action, reward, action).shape == lead
    assert rlpyt.VMlpModel(**real, hidden_sizes=None)(vector, action, reward).shape == lead


@pytest.mark.described("rlpyt", 124, "a namedarraytuple indexes all of its fields at once, in reading and in writing")
def test_namedarraytuple():
    Step = namedarraytuple("Step", ["obs", "reward"])
    buffer = buffer_from_example(Step(obs=np.zeros(3), reward=0.0), (4, 2))
    buffer[1] = Step(obs=np.ones(3), reward=2.0)
    assert buffer[1].reward.tolist() == [2, 2] and buffer[1, 0].obs.tolist() == [1, 1, 1] and len(buffer) == 2
    buffer[2:] = 5
    tensors = torchify_buffer(buffer)
    assert tensors.reward[3].tolist() == [5, 5] and tensors[3]._fields == ("obs", "reward")
    tensors.reward[0] = 7
    assert buffer.reward[0].tolist() == [7, 7]  # the same memory
    inputs = AgentInputs(torch.zeros(2, 3), torch.zeros(2), torch.ones(2))
    assert inputs[0].prev_reward == 1 and rlpyt.AgentStep(torch.ones(2), None)[1].action == 1
