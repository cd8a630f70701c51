"""Agents, distributions, models and algorithms of one's own in rlpyt's words."""

from __future__ import annotations

import enum
import inspect
from typing import Any

import numpy as np
import pytest
import torch
from rlpyt_parts import (
    CountEnv,
    ImageEnv,
    LstmPiModel,
    LstmQModel,
    MuModel,
    PiModel,
    QModel,
    make_sampler,
    started,
)
from torch import Tensor, nn

from striderl.compat import rlpyt
from striderl.compat.rlpyt import (
    A2C,
    DQN,
    PPO,
    R2D1,
    SAC,
    AlternatingRecurrentCategoricalPgAgent,
    AlternatingSampler,
    CategoricalPgAgent,
    Composite,
    CpuWaitResetCollector,
    DqnAgent,
    EnvSpaces,
    FloatBox,
    GaussianPgAgent,
    IntBox,
    MinibatchRl,
    PolicyGradientAlgo,
    R2d1Agent,
    RecurrentCategoricalPgAgent,
    RlAlgorithm,
    RnnState,
    SacAgent,
    save__init__args,
)

SPACES = EnvSpaces(FloatBox(-1, 1, (2,)), IntBox(0, 2))


def built(agent: Any, spaces: Any = SPACES) -> Any:
    agent.initialize(spaces)
    return agent


# -- agents ------------------------------------------------------------------------------------------------------------


@pytest.mark.described("rlpyt", 55, "an agent can be called with [T, B], [B] and single inputs, with the same results")
@pytest.mark.parametrize("lead", [(3, 4), (4,), ()])
def test_an_agent_is_called_with_any_leading_dimensions(lead):
    agent = built(CategoricalPgAgent(ModelCls=PiModel))
    observation, action, reward = torch.randn(3, 4, 2), torch.randint(2, (3, 4)), torch.randn(3, 4)
    loc = {2: (), 1: (0,), 0: (0, 0)}[len(lead)]
    whole, part = agent(observation, action, reward), agent(observation[loc], action[loc], reward[loc])
    torch.testing.assert_close(part.dist_info.prob, whole.dist_info.prob[loc])
    torch.testing.assert_close(part.value, whole.value[loc])
    assert part.value.shape == lead
    (part.value.sum() + part.dist_info.prob[..., 0].sum()).backward()
    assert all(parameter.grad is not None for parameter in agent.parameters())
    step = agent.step(observation[loc], action[loc], reward[loc])
    assert step.action.shape == lead and not step.agent_info.value.requires_grad
    assert not agent.value(observation[loc], action[loc], reward[loc]).requires_grad


@pytest.mark.described("rlpyt", 44, "the model gets the previous action, one-hot, and the previous reward")
def test_the_model_gets_previous_actions_and_rewards():
    agent = CategoricalPgAgent(ModelCls=PiModel)
    sampler = make_sampler(T=3, B=1, env_kwargs={"length": 2})
    sampler.initialize(agent, seed=0)
    agent.model.seen.clear()
    samples, _ = sampler.obtain_samples(0)
    seen = agent.model.seen
    assert [inputs[0].tolist() for inputs in seen] == [[[0, 1]], [[1, 1]], [[0, 1]]]
    first = samples.agent.action[0, 0]
    assert seen[0][1].tolist() == [[0, 0]] or seen[0][1].tolist() == [[1, 0]]  # action 0, one-hot, before the first
    assert seen[1][1][0, first] == 1 and seen[1][2].tolist() == [float(samples.env.reward[0, 0])]
    assert seen[2][1].tolist() == seen[0][1].tolist() and seen[2][2].tolist() == [0.0]  # a new episode
    sampler.shutdown()


@pytest.mark.described("rlpyt", 117, "a convolutional model gets images in their own shape and dtype")
@pytest.mark.parametrize("agent", [rlpyt.AtariFfAgent, rlpyt.AtariLstmAgent, rlpyt.AtariDqnAgent, rlpyt.AtariR2d1Agent])
def test_images_are_not_flattened(agent):
    seen = []

    class Small(agent.default_model):
        def __init__(self, image_shape: Any, output_size: int) -> None:
            assert image_shape == (3, 8, 6) and output_size == 2
            super().__init__(image_shape, output_size, channels=[4], kernel_sizes=[3], strides=[2], paddings=[1])

        def forward(self, image: Tensor, *rest: Any) -> Any:
            seen.append((tuple(image.shape), image.dtype))
            return super().forward(image, *rest)

    made = agent(ModelCls=Small)
    sampler = make_sampler(ImageEnv, T=2, B=2)
    sampler.initialize(made, seed=0)
    samples, _ = sampler.obtain_samples(0)
    assert set(seen) == {((2, 3, 8, 6), torch.uint8)} and samples.env.observation.dtype is torch.uint8
    sampler.shutdown()


@pytest.mark.parametrize(
    ("agent", "model", "action", "fields"),
    [
        (CategoricalPgAgent, PiModel, IntBox(0, 2), ("dist_info", "value")),
        (RecurrentCategoricalPgAgent, LstmPiModel, IntBox(0, 2), ("dist_info", "value", "prev_rnn_state")),
        (GaussianPgAgent, MuModel, FloatBox(-1, 1, (2,)), ("dist_info", "value")),
        (DqnAgent, QModel, IntBox(0, 2), ("q",)),
        (R2d1Agent, LstmQModel, IntBox(0, 2), ("q", "prev_rnn_state")),
        (SacAgent, None, FloatBox(-1, 1, (2,)), ("dist_info",)),
        (rlpyt.DdpgAgent, None, FloatBox(-1, 1, (2,)), ("mu",)),
        (rlpyt.Td3Agent, None, FloatBox(-1, 1, (2,)), ("mu",)),
    ],
)
def test_agents_take_rlpyts_spaces_and_store_rlpyts_fields(agent, model, action, fields):
    made = built(agent() if model is None else agent(ModelCls=model), EnvSpaces(FloatBox(-1, 1, (2,)), action))
    made.sample_mode(0)
    step = made.step(
        torch.randn(3, 2), torch.zeros(3, *action.shape).to(torch.as_tensor(action.sample())), torch.zeros(3)
    )
    assert rlpyt.is_namedarraytuple(step) and step.agent_info._fields == fields
    assert step.action.shape == (3, *action.shape) and step[0].action.shape == action.shape
    state = made.state_dict()
    made.load_state_dict(state)
    assert all(value.shape == made.model.state_dict()[name].shape for name, value in state.get("model", state).items())


def test_a_composite_observation_is_a_named_tuple():
    from collections import namedtuple

    Both = namedtuple("Both", ["near", "far"])

    class Env(CountEnv):
        def __init__(self) -> None:
            super().__init__()
            self._observation_space = Composite([FloatBox(-9, 9, (2,)), FloatBox(-9, 9, (3,))], Both)

        def _observation(self) -> Any:
            return Both(np.full(2, self.count, np.float32), np.full(3, -self.count, np.float32))

    class Model(nn.Module):
        def __init__(self, observation_shape: Any, output_size: int) -> None:
            super().__init__()
            self.pi, self.v = nn.Linear(*observation_shape.near, output_size), nn.Linear(*observation_shape.far, 1)

        def forward(self, observation: Any, prev_action: Any, prev_reward: Any) -> Any:
            return self.pi(observation.near).softmax(-1), self.v(observation.far).squeeze(-1)

    algo = PPO(epochs=1)
    sampler = started(algo, CategoricalPgAgent(ModelCls=Model), Env)
    samples, _ = sampler.obtain_samples(0)
    assert samples.env.observation.far[:, 0, 0].tolist() == [0, -1, -2, -3, -4, 0]
    assert np.isfinite(algo.optimize_agent(0, samples).loss).all()
    sampler.shutdown()


def test_arguments_of_the_model_come_from_the_spaces_or_the_agent():
    class Mine(CategoricalPgAgent):
        def make_env_to_model_kwargs(self, env_spaces: Any) -> dict[str, Any]:
            return {"observation_shape": env_spaces.observation.shape, "output_size": env_spaces.action.n}

    assert built(Mine(ModelCls=PiModel, model_kwargs={"hidden": 3})).model.pi.in_features == 3
    assert built(CategoricalPgAgent(ModelCls=lambda: PiModel((2,), 2))).model.pi.out_features == 2
    initial = PiModel((2,), 2).state_dict()
    loaded = built(CategoricalPgAgent(ModelCls=PiModel, initial_model_state_dict=initial))
    assert all(torch.equal(value, initial[name]) for name, value in loaded.state_dict().items())
    with pytest.raises(TypeError, match="CategoricalPgAgent wants ModelCls"):
        built(CategoricalPgAgent())
    with pytest.raises(TypeError, match="CategoricalPgAgent wants choices"):
        built(CategoricalPgAgent(ModelCls=MuModel), EnvSpaces(FloatBox(-1, 1, (2,)), FloatBox(-1, 1, (2,))))
    with pytest.raises(TypeError, match="GaussianPgAgent wants real-valued actions"):
        built(GaussianPgAgent(ModelCls=PiModel))
    with pytest.raises(TypeError, match=r"QModel.forward must return \(pi, v\), found Tensor"):
        built(CategoricalPgAgent(ModelCls=QModel))(torch.zeros(1, 2), torch.zeros(1).long(), torch.zeros(1))


# -- recurrent ---------------------------------------------------------------------------------------------------------


@pytest.mark.described(
    "rlpyt", 51, "with a recurrent agent the loss gets the state before the batch, and whole sequences"
)
@pytest.mark.parametrize("algo", [PPO, A2C])
def test_a_recurrent_agent_learns_from_whole_sequences(algo):
    states = []

    class Watched(RecurrentCategoricalPgAgent):
        def __call__(self, observation: Any, prev_action: Any, prev_reward: Any, init_rnn_state: Any) -> Any:  # type: ignore[override]
            states.append((tuple(observation.shape), init_rnn_state))
            return super().__call__(observation, prev_action, prev_reward, init_rnn_state)

    agent, learner = Watched(ModelCls=LstmPiModel), algo()
    sampler = started(learner, agent, T=4, B=4, env_kwargs={"length": 6}, CollectorCls=CpuWaitResetCollector)
    for itr in range(2):
        agent.sample_mode(itr)
        samples, _ = sampler.obtain_samples(itr)
        stored = samples.agent.agent_info.prev_rnn_state
        assert stored.h.shape == (4, 4, 1, 8)  # [T, B, N, H]
        if itr == 0:
            assert float(stored.h[0].abs().max()) == 0
        # the stored states are those that the model goes through: so does a pass over the whole sequence
        init = rlpyt.buffer_method(stored[0], "transpose", 0, 1)
        inputs = learner.agent_inputs(samples)
        _, value, _ = RecurrentCategoricalPgAgent.__call__(agent, *inputs, init)
        until = int(samples.env.done[:, 0].float().argmax()) + 1 if samples.env.done[:, 0].any() else 4
        torch.testing.assert_close(value[:until], samples.agent.agent_info.value[:until], atol=1e-5, rtol=1e-4)
        agent.train_mode(itr)
        assert agent.prev_rnn_state is None
        learner.optimize_agent(itr, samples)
    shapes, given = zip(*states)
    assert set(shapes) == ({(4, 1, 2)} if algo is PPO else {(4, 4, 2)})
    assert all(isinstance(state, RnnState) and state.h.shape[::2] == (1, 8) for state in given)
    sampler.shutdown()


def test_the_state_of_an_env_starts_anew_with_its_episode():
    agent = RecurrentCategoricalPgAgent(ModelCls=LstmPiModel)
    sampler = make_sampler(T=6, B=2, env_kwargs={"length": 4})
    sampler.initialize(agent, seed=0)
    samples, _ = sampler.obtain_samples(0)
    norms = samples.agent.agent_info.prev_rnn_state.h.abs().sum((2, 3))
    assert (norms[0] == 0).all() and (norms[4] == 0).all() and (norms[[1, 2, 3, 5]] > 0).all()
    sampler.shutdown()


def test_evaluation_does_not_disturb_the_state_of_sampling():
    agent = RecurrentCategoricalPgAgent(ModelCls=LstmPiModel)
    sampler = make_sampler(T=2, B=2, env_kwargs={"length": 99}, eval_n_envs=3, eval_max_steps=9)
    sampler.initialize(agent, seed=0)
    agent.sample_mode(0)
    sampler.obtain_samples(0)
    before = agent.prev_rnn_state.h.clone()
    agent.eval_mode(1)
    sampler.evaluate_agent(1)
    agent.sample_mode(1)
    assert torch.equal(agent.prev_rnn_state.h, before)
    sampler.shutdown()


@pytest.mark.slow  # worker processes
def test_an_alternating_agent_keeps_the_states_of_both_halves():
    class Remembering(nn.Module):
        """Its state is the number of steps since the start; π and v do not depend on it."""

        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(2))

        def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any, state: Any) -> Any:
            rows = observation.shape[0]
            h = torch.zeros(1, rows, 1) if state is None else state.h
            pi = self.bias.softmax(-1).expand(rows, 2)
            return pi, torch.zeros(rows), RnnState(h + 1, h)

    agent = AlternatingRecurrentCategoricalPgAgent(ModelCls=Remembering)
    sampler = AlternatingSampler(CountEnv, {"length": 3}, 5, 4, max_decorrelation_steps=0)
    sampler.initialize(agent, affinity={"workers_cpus": [0, 0]}, seed=0)
    for itr in range(2):
        samples, _ = sampler.obtain_samples(itr)
        counted = samples.agent.agent_info.prev_rnn_state.h[..., 0, 0]
        torch.testing.assert_close(counted, samples.env.observation[..., 0])  # the env shows the steps as well
        agent.train_mode(itr)
        agent.sample_mode(itr + 1)
    sampler.shutdown()


# -- ε -----------------------------------------------------------------------------------------------------------------


def test_epsilon_falls_between_the_algorithms_iterations():
    agent = DqnAgent(ModelCls=QModel, eps_init=1.0, eps_final=0.1, eps_eval=0.0)
    algo = DQN(min_steps_learn=24, eps_steps=84, replay_size=1e3)
    sampler = started(algo, agent)  # 12 steps per iteration: from iteration 2 to 7
    found = []
    for itr in (0, 2, 3, 7, 50):
        agent.sample_mode(itr)
        found.append(float(agent.distribution.epsilon))
    assert found == pytest.approx([1, 1, 0.82, 0.1, 0.1])
    agent.eval_mode(0)
    assert agent.distribution.epsilon == 1  # an evaluation before the first iteration
    agent.eval_mode(5)
    assert agent.distribution.epsilon == 0
    sampler.shutdown()


def test_each_env_has_its_own_epsilon():
    agent = DqnAgent(ModelCls=QModel, eps_final=0.1, eps_final_min=0.001)
    agent.initialize(SPACES, global_B=4, env_ranks=[1, 3])
    agent.set_epsilon_itr_min_max(0, 1)
    agent.sample_mode(1)
    # 0.001 to 0.1 in four steps, evenly in the logarithm: the second and the fourth
    torch.testing.assert_close(agent.distribution.epsilon, torch.tensor([10 ** (-3 + 2 / 3), 0.1]))


# -- algorithms of one's own -------------------------------------------------------------------------------------------


def test_settings_are_those_of_rlpyt():
    defaults = {
        PPO: {"discount": 0.99, "learning_rate": 0.001, "value_loss_coeff": 1.0, "entropy_loss_coeff": 0.01,
              "clip_grad_norm": 1.0, "gae_lambda": 1, "minibatches": 4, "epochs": 4, "ratio_clip": 0.1,
              "linear_lr_schedule": True, "normalize_advantage": False},
        A2C: {"value_loss_coeff": 0.5, "gae_lambda": 1, "normalize_advantage": False},
        DQN: {"batch_size": 32, "min_steps_learn": 50_000, "delta_clip": 1.0, "replay_size": 1_000_000,
              "replay_ratio": 8, "target_update_tau": 1, "target_update_interval": 312, "n_step_return": 1,
              "learning_rate": 2.5e-4, "clip_grad_norm": 10.0, "eps_steps": 1_000_000, "double_dqn": False,
              "prioritized_replay": False, "pri_alpha": 0.6, "pri_beta_init": 0.4, "pri_beta_final": 1.0},
        R2D1: {"discount": 0.997, "batch_T": 80, "batch_B": 64, "warmup_T": 40, "store_rnn_state_interval": 40,
               "pri_eta": 0.9, "value_scale_eps": 1e-3, "double_dqn": True, "prioritized_replay": True},
        SAC: {"batch_size": 256, "replay_ratio": 256, "target_update_tau": 0.005, "learning_rate": 3e-4,
              "fixed_alpha": None, "target_entropy": "auto", "bootstrap_timelimit": True},
        rlpyt.DDPG: {"batch_size": 64, "target_update_tau": 0.01, "learning_rate": 1e-4, "q_learning_rate": 1e-3},
        rlpyt.TD3: {"batch_size": 100, "replay_ratio": 100, "target_update_interval": 2, "policy_update_interval": 2},
        rlpyt.CategoricalDQN: {"V_min": -10, "V_max": 10},
    }  # fmt: skip
    for kind, wanted in defaults.items():
        found = {name: each.default for name, each in inspect.signature(kind).parameters.items()}
        assert {name: found[name] for name in wanted} == wanted, kind
    with pytest.raises(TypeError, match="gamma"):
        PPO(gamma=0.9)  # type: ignore[call-arg]


class Constant(nn.Module):
    """One parameter, so that an update can be followed by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any) -> Any:
        lead = observation.shape[:-1]
        pi = torch.stack([self.w.sigmoid(), (-self.w).sigmoid()]).expand(*lead, 2)
        return pi, self.w.expand(lead)


def test_an_overridden_loss_decides_what_is_learned():
    class Up(PPO):
        def loss(self, agent_inputs, action, return_, advantage, valid, old_dist_info, init_rnn_state=None):
            _, value = self.agent(*agent_inputs)
            return (value - 3.0).pow(2).mean(), torch.tensor(1.0), torch.tensor(2.0)

    algo = Up(epochs=1, minibatches=1, learning_rate=0.1, OptimCls=torch.optim.SGD, clip_grad_norm=None)
    agent = CategoricalPgAgent(ModelCls=Constant)
    sampler = started(algo, agent)
    opt_info = algo.optimize_agent(0, sampler.obtain_samples(0)[0])
    # (0 - 3)² = 9 with the slope -6; one step of 0.1
    assert opt_info == ([9.0], [6.0], [1.0], [2.0]) and agent.model.w.item() == pytest.approx(0.6)
    sampler.shutdown()


def test_overridden_returns_and_settings_that_are_changed_later_have_an_effect():
    class Doubled(A2C):
        def process_returns(self, samples: Any) -> Any:
            return_, _, valid = super().process_returns(samples)
            return torch.full_like(return_, 4.0), torch.zeros_like(return_), valid

    algo = Doubled(value_loss_coeff=1.0, entropy_loss_coeff=0.0, OptimCls=torch.optim.SGD, clip_grad_norm=None)
    agent = CategoricalPgAgent(ModelCls=Constant)
    sampler = started(algo, agent)
    samples, _ = sampler.obtain_samples(0)
    assert algo.optimize_agent(0, samples).loss == pytest.approx(8.0)  # ½ (0 - 4)²
    algo.value_loss_coeff = 0.0
    assert algo.optimize_agent(0, samples).loss == pytest.approx(0.0)
    sampler.shutdown()


def test_an_optimiser_of_ones_own_goes_on_from_its_state():
    kwargs: dict[str, Any] = {"OptimCls": torch.optim.RMSprop, "optim_kwargs": {"alpha": 0.5}, "learning_rate": 0.02}
    algo, agent = PPO(**kwargs, linear_lr_schedule=False), CategoricalPgAgent(ModelCls=PiModel)
    sampler = started(algo, agent)
    assert isinstance(algo.optimizer, torch.optim.RMSprop) and algo.optimizer.param_groups[0]["alpha"] == 0.5
    algo.optimize_agent(0, sampler.obtain_samples(0)[0])
    saved = algo.optim_state_dict()
    sampler.shutdown()
    second = PPO(**kwargs, initial_optim_state_dict=saved, linear_lr_schedule=False)
    second_sampler = started(second, CategoricalPgAgent(ModelCls=PiModel))
    assert second.optimizer.state_dict()["state"][0]["step"] == 16
    second_sampler.shutdown()


def test_learning_rate_and_clip_fall_over_the_run():
    algo, agent = PPO(learning_rate=0.1, ratio_clip=0.2), CategoricalPgAgent(ModelCls=PiModel)
    sampler = started(algo, agent)  # n_itr is 10
    for itr in range(3):
        algo.optimize_agent(itr, sampler.obtain_samples(itr)[0])
    assert algo.optimizer.param_groups[0]["lr"] == pytest.approx(0.07)
    assert algo.ratio_clip == pytest.approx(0.2 * 0.8)
    sampler.shutdown()


def test_an_algorithm_of_ones_own_with_saved_arguments():
    class Mine(PolicyGradientAlgo):
        def __init__(self, discount=0.9, learning_rate=0.5, clip_grad_norm=1.0):
            save__init__args(locals())

        def optimize_agent(self, itr: int, samples: Any) -> Any:  # type: ignore[override]
            return_, _, _ = self.process_returns(samples)
            self.optimizer.zero_grad()
            _, value = self.agent(*self.agent_inputs(samples))
            loss = (0.5 * (value - return_) ** 2).mean()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.agent.parameters(), self.clip_grad_norm)
            self.optimizer.step()
            self.update_counter += 1
            return rlpyt.OptInfo(loss.item(), norm.item(), 0.0, 1.0)

    algo, agent = Mine(discount=0.8), CategoricalPgAgent(ModelCls=PiModel)
    runner = MinibatchRl(algo=algo, agent=agent, sampler=make_sampler(), n_steps=120, log_interval_steps=24, seed=0)
    runner.train()
    assert (algo.discount, algo.learning_rate) == (0.8, 0.5) and algo.update_counter == 10
    losses = [row["lossAverage"] for row in runner.diagnostics]
    assert losses[-1] < losses[0]


def test_what_an_algorithm_does_not_define_raises():
    with pytest.raises(NotImplementedError):
        RlAlgorithm().optimize_agent(0, None)
    with pytest.raises(NotImplementedError):
        RlAlgorithm().initialize(None, 1, None, True, None)


def test_users_may_choose_the_replay_and_what_is_stored():
    made = []

    class Mine(rlpyt.UniformReplayBuffer):
        def __init__(self, **kwargs: Any) -> None:
            made.append(kwargs)
            super().__init__(**kwargs)

    class Halved(DQN):
        def samples_to_buffer(self, samples: Any) -> Any:
            stored = super().samples_to_buffer(samples)
            return stored._replace(reward=stored.reward * 0.5)

    algo = Halved(replay_size=100, ReplayBufferCls=Mine, discount=0.7, min_steps_learn=0, batch_size=4)
    sampler = started(algo, DqnAgent(ModelCls=QModel))
    samples, _ = sampler.obtain_samples(0)
    algo.optimize_agent(0, samples)
    assert {name: made[0][name] for name in ("size", "B", "discount", "n_step_return")} == {
        "size": 100,
        "B": 2,
        "discount": 0.7,
        "n_step_return": 1,
    }
    torch.testing.assert_close(algo.replay_buffer.samples.reward[:6], samples.env.reward * 0.5)
    sampler.shutdown()


def test_dqn_learns_by_the_targets_of_its_formula():
    algo = DQN(discount=0.5, double_dqn=False, delta_clip=None, min_steps_learn=1e4, replay_size=1e3)
    agent = DqnAgent(ModelCls=QModel)
    sampler = started(algo, agent, T=8, env_kwargs={"length": 4, "by_clock": True})
    algo.optimize_agent(0, sampler.obtain_samples(0)[0])
    batch = algo.replay_buffer.sample_batch(64)
    loss, td_abs_errors = algo.loss(batch)
    q = agent(*batch.agent_inputs).gather(1, batch.action.unsqueeze(1)).squeeze(1)
    y = batch.return_ + 0.5 * agent.target(*batch.target_inputs).max(-1).values
    counts = ~batch.done  # the clock ends every episode here; those steps are left out
    assert bool(batch.done.any()) and torch.equal(batch.timeout_n.bool(), batch.done)
    torch.testing.assert_close(loss, (0.5 * (y - q) ** 2)[counts].mean())
    torch.testing.assert_close(td_abs_errors[counts], (y - q).abs()[counts].detach())
    sampler.shutdown()


@pytest.mark.parametrize("prioritized", [True, False])
def test_sequences_of_the_replay_are_those_of_the_samples(prioritized):
    algo = R2D1(
        discount=0.5,
        batch_T=4,
        batch_B=16,
        warmup_T=2,
        store_rnn_state_interval=2,
        n_step_return=2,
        replay_size=100,
        prioritized_replay=prioritized,
    )
    agent = R2d1Agent(ModelCls=LstmQModel)
    sampler = started(algo, agent, T=4, B=2, env_kwargs={"length": 5})
    actions, rewards, states = [], [], []
    for itr in range(5):
        samples, _ = sampler.obtain_samples(itr)
        algo.optimize_agent(itr, samples)
        actions.append(samples.agent.action.clone())
        rewards.append(samples.env.reward.clone())
        states.append(samples.agent.agent_info.prev_rnn_state.h.clone())
    action, reward, state = torch.cat(actions), torch.cat(rewards), torch.cat(states)
    batch = algo.replay_buffer.sample_batch(16)
    assert batch.all_observation.shape == (8, 16, 2) and batch.return_.shape == (6, 16)
    for b in range(16):
        # which sequence it is: the one with these states and actions
        found = [
            (t, env)
            for t in range(0, 13, 2)
            for env in range(2)
            if torch.equal(batch.all_action[1:, b], action[t : t + 7, env])
            and torch.equal(batch.init_rnn_state.h[b], state[t, env])
        ]
        assert found, "the actions that were taken, also in the last step of an episode"
        t, env = found[0]
        ends = (torch.arange(t, t + 6) + 1) % 5 == 0  # an episode is five steps
        assert batch.done[:, b].tolist() == ends.tolist()
        following = torch.where(ends, 0.0, reward[t + 1 : t + 7, env])
        torch.testing.assert_close(batch.return_[:, b], reward[t : t + 6, env] + 0.5 * following)
        starts_anew = t % 5 == 0
        assert starts_anew == (float(state[t, env].abs().sum()) == 0)
        if starts_anew or t == 0:
            assert batch.all_reward[0, b] == 0 and batch.all_action[0, b] == 0
    loss, td_abs_errors, priorities = algo.loss(batch)
    assert loss.requires_grad and td_abs_errors.shape == (4, 16) and priorities.shape == (16,)
    sampler.shutdown()


def test_runners_may_be_extended():
    class Mine(MinibatchRl):
        logged: list[int] = []

        def log_diagnostics(self, itr: int, *args: Any, **kwargs: Any) -> None:
            rlpyt.logger.record_tabular("Mine", itr)
            super().log_diagnostics(itr, *args, **kwargs)

        def get_traj_info_kwargs(self) -> dict[str, Any]:
            return {"discount": 0.5}

    runner = Mine(
        algo=PPO(epochs=1),
        agent=CategoricalPgAgent(ModelCls=PiModel),
        sampler=make_sampler(),
        n_steps=24,
        log_interval_steps=12,
        seed=0,
    )
    runner.train()
    assert [row["Mine"] for row in runner.diagnostics] == [0, 1]
    info = runner.diagnostics[-1]
    assert info["DiscountedReturnMax"] <= min(info["ReturnMax"], 2.0)


class StackEnv(CountEnv):
    """Images with the last three frames; the first stack of an episode is zeros and one frame, or the frame thrice."""

    def __init__(self, length: int = 5, repeated: bool = False) -> None:
        super().__init__(length)
        self._observation_space = IntBox(0, 256, (3, 2, 2), "uint8")
        self.total, self.repeated = 0, repeated

    def reset(self) -> Any:
        self.stack = [0, 0, 0]
        return super().reset()

    def _observation(self) -> Any:
        self.total = self.total % 250 + 1  # no two frames are alike
        self.stack = [*self.stack[1:], self.total]
        if self.repeated and self.count == 0:
            self.stack = [self.total] * 3
        return np.array(self.stack, np.uint8)[:, None, None].repeat(2, 1).repeat(2, 2)


class StackModel(nn.Module):
    def __init__(self, output_size: int) -> None:
        super().__init__()
        self.q = nn.Linear(12, output_size)

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any) -> Tensor:
        return self.q(observation.flatten(-3).float())


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("prioritized", [False, True])
def test_a_replay_of_stacked_frames_returns_what_was_stored(repeated, prioritized):
    algo = DQN(replay_size=40, min_steps_learn=1e4, prioritized_replay=prioritized)
    env_kwargs = {"length": 7, "repeated": repeated}
    sampler = started(algo, DqnAgent(ModelCls=StackModel), StackEnv, T=6, B=2, env_kwargs=env_kwargs)
    following: dict[tuple[Any, ...], Any] = {}
    last = None
    for itr in range(8):  # 48 rows in a ring of 20
        samples, _ = sampler.obtain_samples(itr)
        algo.optimize_agent(itr, samples)
        for observation in samples.env.observation.clone():
            for env in range(2):
                if last is not None:
                    following[env, *last[env].flatten().tolist()] = observation[env]
            last = observation
        if itr < 1:
            continue
        assert algo.replay_buffer.frames is not None
        batch = algo.replay_buffer.sample_batch(32)
        for now, later in zip(batch.agent_inputs.observation, batch.target_inputs.observation):
            stored = [following.get((env, *now.flatten().tolist())) for env in range(2)]
            assert any(each is not None and torch.equal(each, later) for each in stored)
    sampler.shutdown()


# -- Atari -------------------------------------------------------------------------------------------------------------


class FakeGame:
    """The interface of a game of three lives: a life is lost every third frame, each frame pays 2 and is brighter."""

    def setFloat(self, name: str, value: float) -> None:  # noqa: N802
        assert name == "repeat_action_probability"

    def loadROM(self, path: str) -> None:  # noqa: N802
        assert path == "roms/pong.bin"

    def getMinimalActionSet(self) -> list[Any]:  # noqa: N802
        return [0, 3, enum.Enum("Action", {"LEFT": 4}).LEFT]  # numbers, or members of an enum in newer versions

    def reset_game(self) -> None:
        self.frames = 0

    def act(self, action: int) -> float:
        self.frames += 1
        return 2.0

    def lives(self) -> int:
        return max(0, 3 - self.frames // 6)

    def game_over(self) -> bool:
        return self.lives() == 0

    def getScreenGrayscale(self) -> Any:  # noqa: N802
        return np.full((210, 160), self.frames, np.uint8)


def test_an_atari_env_with_lives_frames_and_scores(monkeypatch):
    import sys
    import types

    roms = types.SimpleNamespace(get_rom_path=lambda name: f"roms/{name}.bin")
    monkeypatch.setitem(sys.modules, "ale_py", types.SimpleNamespace(ALEInterface=FakeGame))
    monkeypatch.setitem(sys.modules, "ale_py.roms", roms)
    env = rlpyt.AtariEnv(game="pong", frame_skip=2, num_img_obs=3, max_start_noops=0)
    assert env.get_action_meanings() == ["NOOP", "RIGHT", "LEFT"]
    assert env.action_space.n == 3 and env.observation_space.shape == (3, 104, 80)
    first = env.reset()
    assert first.dtype == np.uint8 and [frame.max() for frame in first] == [0, 0, 1]  # one idle frame
    steps = [env.step(0) for _ in range(8)]
    assert [step.reward for step in steps] == [1] * 8 and steps[0].env_info.game_score == 4  # clipped, and not
    # frames 3, 5, then 7: a life is lost, one more idle frame is taken, and the old frames are gone
    assert [[frame.max() for frame in step.observation] for step in steps[:3]] == [[0, 1, 3], [1, 3, 5], [0, 0, 8]]
    assert [step.done for step in steps].index(True) == 2 and not steps[2].env_info.traj_done
    over = next(step for step in steps if step.env_info.traj_done)
    assert over.done and not over.env_info.timeout
    short = rlpyt.AtariEnv(frame_skip=2, horizon=2, max_start_noops=0)
    assert [short.step(0).env_info.timeout for _ in range(2)] == [False, True]

    sampler = make_sampler(rlpyt.AtariEnv, T=9, B=1, TrajInfoCls=rlpyt.AtariTrajInfo,
                           env_kwargs={"frame_skip": 2, "max_start_noops": 0})  # fmt: skip
    sampler.initialize(rlpyt.AtariDqnAgent(), seed=0)
    samples, traj_infos = sampler.obtain_samples(0)
    # three lives are three episodes and one game, whose score is that of all of its frames
    assert samples.env.done.sum() >= 3 and len(traj_infos) == 1
    assert traj_infos[0].GameScore == samples.env.env_info.game_score[: traj_infos[0].Length].sum()
    sampler.shutdown()


def test_an_atari_env_names_the_package_it_wants(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ImportError, match="pip install ale-py"):
        rlpyt.AtariEnv()
