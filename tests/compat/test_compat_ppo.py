"""The facade for hand-written loops: the same bits as a runner, the old names, the old mistakes left out."""

from __future__ import annotations

import copy
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "envs"))
from rsl_rl_fakes import GroupsFake, LeggedGymFake

from striderl.algorithms.on_policy import ppo as core
from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.terms.distill import Distill
from striderl.algorithms.terms.rnd import RandomNetworkDistillation, RNDConfig
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.teacher import Teacher
from striderl.compat.st_rl.ppo import PPO
from striderl.data import tree
from striderl.envs.classic_control.pendulum import Pendulum, PendulumConfig
from striderl.envs.rsl_rl.env import RslRlEnv
from striderl.envs.vec_env import Obs, Step, VecEnv
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.presets.base import ActorCritic, ActorCriticRecurrent
from striderl.policies.stages import NormalizeObs, Remember
from striderl.storage.rollout import RolloutStorage
from striderl.training.experiment.runner_config import RunnerConfig
from striderl.training.plans import OnPolicyPlan
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner
from striderl.training.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*offers no seed:UserWarning")

T, N, ITERATIONS = 6, 4, 3


class WithoutFinals(Pendulum):
    """The same task, but what was seen at the end of an episode is not told."""

    def __init__(self, num_envs: int, *, config: PendulumConfig) -> None:
        super().__init__(num_envs, config=config)
        self.gives_final_obs = False

    def step(self, actions: Any) -> Step:
        return super().step(actions)._replace(final_obs=None)


def pendulum(finals: bool) -> VecEnv:
    # episodes of 5 steps: every rollout of 6 has one time-out in each env
    return (Pendulum if finals else WithoutFinals)(N, config=PendulumConfig(max_episode_length=5))


def runner_config(kind: str, **settings: Any) -> RunnerConfig:
    stages: tuple[Any, ...] = (NormalizeObs(),)
    if kind != "mlp":
        stages = (*stages, Remember(type=kind, hidden_size=5))
    return RunnerConfig(
        policy=PolicyConfig(actor=stages, critic=stages, actor_hidden_dims=(8,), critic_hidden_dims=(8,)),
        algorithm=PPOConfig(num_learning_epochs=2, num_mini_batches=2, schedule="adaptive", entropy_coef=0.01),
        num_steps_per_env=T,
        seed=5,
        **settings,
    )


def facade_of(runner: OnPolicyRunner, **settings: Any) -> PPO:
    """A facade with the weights that the runner has now."""
    return PPO(copy.deepcopy(runner.alg.policy), config=runner.config.algorithm, seed=runner.seed, **settings)


def weights_of(policy: Policy) -> dict[str, Any]:
    return {name: value.clone() for name, value in policy.state_dict().items()}


def hand_loop(alg: PPO, env: VecEnv, iterations: int, *, seed: int, inference_mode: bool = False) -> list[Any]:
    """The loop as its users write it, on the dones of old envs."""
    obs: Obs = env.reset(seed)
    said = []
    for iteration in range(iterations):
        with torch.inference_mode(inference_mode):
            for _ in range(T):
                step = env.step(alg.act(obs))
                infos: dict[str, Any] = {"time_outs": (step.truncated & ~step.terminated).float()}
                if step.final_obs is not None:
                    infos["final_obs"] = step.final_obs
                alg.process_env_step(step.reward, step.done.long(), infos)
                obs = step.obs
            alg.compute_returns(obs)
        said.append(alg.update(iteration))
    return said


def loops() -> list[tuple[str, bool, bool]]:
    """Every two of kind, final observations and inference mode; all three together under the deep profile."""
    every = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
    return [
        (kind, finals, inference_mode)
        for number, kind in enumerate(("mlp", "lstm", "gru"))
        for finals in (True, False)
        for inference_mode in (False, True)
        if every or (number + finals + inference_mode) % 2
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "finals", "inference_mode"), loops())
def test_a_hand_written_loop_equals_the_runner_bit_for_bit(kind, finals, inference_mode):
    runner = OnPolicyRunner(pendulum(finals), runner_config(kind))
    alg = facade_of(runner)
    env = pendulum(finals)
    alg.init_storage(N, T, [3], [3], [1])
    runner.learn(ITERATIONS)
    said = hand_loop(alg, env, ITERATIONS, seed=5, inference_mode=inference_mode)
    assert tree.equal(weights_of(alg.policy), weights_of(runner.alg.policy))
    record = runner.trainer.record.logs("train")
    losses, stats = said[-1]
    assert float(losses["value_loss"]) == record["value_loss"]
    assert float(stats["kl"]) == record["kl"]
    assert {*losses, *stats} == set(record)


def test_the_loop_of_the_first_generation_equals_the_runner():
    # flat observations, a privileged critic, five values from step, long dones, buffers that the env writes over
    config = {
        "seed": 3,
        "runner": {"policy_class_name": "ActorCriticRecurrent", "num_steps_per_env": T, "save_interval": 0},
        "policy": {"actor_hidden_dims": [8], "critic_hidden_dims": [8], "rnn_hidden_size": 5},
        "algorithm": {"num_learning_epochs": 2, "num_mini_batches": 2},
    }
    runner = OnPolicyRunner(LeggedGymFake(done_dtype=torch.int64), config)
    alg = facade_of(runner)
    env = LeggedGymFake(done_dtype=torch.int64)
    alg.init_storage(3, T, [4], [3], [2])
    runner.learn(ITERATIONS)
    obs, privileged = env.reset()
    for iteration in range(ITERATIONS):
        for _ in range(T):
            obs, privileged, rewards, dones, infos = env.step(alg.act(obs, privileged))
            alg.process_env_step(rewards, dones, infos)
        alg.compute_returns(privileged)
        alg.update(iteration)
    assert tree.equal(weights_of(alg.policy), weights_of(runner.alg.policy))


def test_groups_with_true_last_observations_equal_the_runner():
    # mjlab's auto_reset=False: the adapter knows what was seen last, in both ways of training
    config = runner_config("lstm")
    config = RunnerConfig(
        policy=PolicyConfig(actor_obs=("actor",), critic_obs=("critic",), actor_hidden_dims=(8,)),
        algorithm=config.algorithm,
        num_steps_per_env=T,
        seed=5,
    )
    make = lambda: RslRlEnv(GroupsFake(num_envs=N, acting_group="actor", auto_reset=False))  # noqa: E731
    runner = OnPolicyRunner(make(), config)
    alg = facade_of(runner)
    alg.init_storage(N, T)
    runner.learn(ITERATIONS)
    hand_loop(alg, make(), ITERATIONS, seed=5)
    assert tree.equal(weights_of(alg.policy), weights_of(runner.alg.policy))


def test_a_term_beside_it_equals_the_runner():
    rnd = RNDConfig(num_outputs=2, predictor_hidden_dims=(4,), target_hidden_dims=(4,))
    runner = OnPolicyRunner(pendulum(True), runner_config("mlp", rnd=rnd))
    term = RandomNetworkDistillation(pendulum(True).obs_spec, N, rnd)
    term.load_state_dict(runner.alg.terms.state_dict()["rnd"])
    alg = facade_of(runner, terms=[term])
    alg.init_storage(N, T)
    runner.learn(ITERATIONS)
    hand_loop(alg, pendulum(True), ITERATIONS, seed=5)
    assert tree.equal(weights_of(alg.policy), weights_of(runner.alg.policy))


@pytest.mark.slow
def test_a_teacher_that_acts_beside_it_equals_the_trainer():
    env = pendulum(True)
    settings = PolicyConfig(actor=(Remember(hidden_size=5),), actor_hidden_dims=(8,), critic_hidden_dims=(8,))
    teacher = Teacher(Policy(env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(4,))))
    policy, config = Policy(env.obs_spec, env.action_spec, settings), PPOConfig(num_mini_batches=2)
    alg = PPO(copy.deepcopy(policy), config=config, seed=5, terms=[Distill(teacher)])
    alg.init_storage(N, T)
    learner = core.PPO(policy, config, [Distill(teacher)])
    collector = Collector(env, learner.actor(), CollectorConfig(seed=5))
    trainer = Trainer(learner, collector, OnPolicyPlan(num_steps_per_env=T, total_iterations=ITERATIONS), seed=5)
    records = list(trainer)
    said = hand_loop(alg, pendulum(True), ITERATIONS, seed=5)
    assert tree.equal(weights_of(alg.policy), weights_of(policy))
    losses, _ = said[-1]
    assert float(losses["distillation_loss"]) == records[-1].metrics["train/distillation_loss"]


# -- what the calls do -------------------------------------------------------------------------------------------------


def make_alg(recurrent: bool = False, **settings: Any) -> PPO:
    torch.manual_seed(0)
    kind = ActorCriticRecurrent if recurrent else ActorCritic
    more = {"rnn_hidden_size": 5} if recurrent else {}
    model = kind(4, 3, 2, actor_hidden_dims=(8,), critic_hidden_dims=(8,), **more)
    alg = PPO(model, num_learning_epochs=2, num_mini_batches=2, **settings)
    alg.init_storage(N, T, [4], [3], [2])
    return alg


def fill(alg: PPO, infos: dict[str, Any] | None = None, dones: Any = None) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(T):
        alg.act(torch.randn(N, 4, generator=generator), torch.randn(N, 3, generator=generator))
        alg.process_env_step(torch.randn(N, generator=generator), torch.zeros(N) if dones is None else dones, infos)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.float32])
def test_dones_of_any_type_reset_the_memory_of_the_right_env(dtype):
    alg = make_alg(recurrent=True)
    alg.act(torch.ones(N, 4), torch.ones(N, 3))
    alg.process_env_step(torch.zeros(N), torch.tensor([0, 0, 1, 0]).to(dtype), {})
    for value in alg._state.values():
        assert value[2].abs().sum() == 0
        assert all(value[row].abs().sum() > 0 for row in (0, 1, 3))


def test_valuing_the_last_observation_is_not_a_step():
    alg = make_alg(recurrent=True)
    fill(alg)
    before = tree.copy(alg._state)
    alg.compute_returns(torch.ones(N, 3))
    assert tree.equal(before, alg._state)


def test_the_transition_has_the_old_names_between_the_two_calls():
    alg = make_alg(recurrent=True)
    assert isinstance(alg.transition, RolloutStorage.Transition)
    obs, critic_obs = torch.ones(N, 4), torch.zeros(N, 3)
    actions = alg.act(obs, critic_obs)
    record = alg.transition
    assert record.observations is obs and record.critic_observations is critic_obs
    assert torch.equal(record.actions, actions)
    assert record.values.shape == (N, 1) and record.actions_log_prob.shape == (N,)
    assert record.action_mean.shape == record.action_sigma.shape == (N, 2)
    assert record.hidden_states.actor.hidden.shape == (1, N, 5)
    alg.process_env_step(torch.zeros(N), torch.zeros(N), {})
    assert record.actions is None


def test_time_outs_are_valued_with_v_of_s_t_and_that_is_said_once(caplog):
    # gamma 0.5, one env falls out of time in step 0 with reward 1: its return is 1 + 0.5 V(s_0), lam plays no role
    alg = make_alg(gamma=0.5)
    with caplog.at_level(logging.WARNING):
        for step in range(T):
            alg.act(torch.ones(N, 4), torch.ones(N, 3))
            done = torch.tensor([step == 0, False, False, False])
            alg.process_env_step(torch.ones(N), done, {"time_outs": done.clone()})
    alg.compute_returns(torch.ones(N, 3))
    value = alg.storage.data["policy"]["value"][0, 0]
    assert float(alg._prepared.returns[0, 0]) == pytest.approx(float(1.0 + 0.5 * value))
    assert sum("V(s_t)" in message for message in caplog.messages) == 1


def test_the_time_limit_of_gym_stands_for_time_outs():
    alg = make_alg()
    ended = torch.tensor([True, True, False, False])
    late = [False, True, False, False]
    infos = ({"TimeLimit.truncated": late}, {"TimeLimit.truncated": late, "time_outs": ~torch.tensor(late)})
    for each in infos:
        alg.act(torch.ones(N, 4), torch.ones(N, 3))
        alg.process_env_step(torch.ones(N), ended, each)
    assert alg.storage.data["truncated"][:2].int().tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]  # time_outs go before
    assert alg.storage.data["terminated"][:2].int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]


def test_final_observations_are_used_for_the_critic():
    alg = make_alg(gamma=0.5)
    last = torch.full((N, 3), 2.0)
    for step in range(T):
        alg.act(torch.ones(N, 4), torch.ones(N, 3))
        done = torch.tensor([step == 0, False, False, False])
        # as Gymnasium does, the key is there only when an episode ended
        finals = {"final_obs": torch.zeros(N, 4), "final_critic_obs": last} if step == 0 else {}
        alg.process_env_step(torch.ones(N), done, {"time_outs": done, **finals})
    alg.compute_returns(torch.ones(N, 3))
    with torch.no_grad():
        value, _ = alg.policy.value({"obs": torch.zeros(N, 4), "privileged_obs": last}, {}, {})
    assert float(alg._prepared.returns[0, 0]) == pytest.approx(float(1.0 + 0.5 * value[0]))


def test_a_bad_number_does_not_reach_the_weights():
    alg = make_alg()
    for step in range(T):
        obs, rewards = torch.ones(N, 4), torch.ones(N)
        if step == 2:
            obs[1, 0], rewards[3] = torch.nan, torch.inf
        alg.act(obs, torch.ones(N, 3))
        alg.process_env_step(rewards, torch.zeros(N), {})
    alg.compute_returns(torch.ones(N, 3))
    alg.update()
    assert alg.storage.num_envs == N
    assert all(torch.isfinite(parameter).all() for parameter in alg.policy.parameters())


@pytest.mark.parametrize("recurrent", [False, True])
def test_an_episode_that_turns_bad_is_cut_before(recurrent):
    # gamma 0.5, rewards 1: what follows step 1 of env 1 and the last step of env 2 is NaN, so both are 1 + 0.5 V(s_t)
    alg = make_alg(recurrent, gamma=0.5, lam=0.0)
    for step in range(T):
        obs = torch.full((N, 4), float(step))
        if step == 2:
            obs[1, 0] = torch.nan
        alg.act(obs, torch.ones(N, 3))
        alg.process_env_step(torch.ones(N), torch.zeros(N), {})
    last = torch.ones(N, 3)
    last[2, 1] = torch.inf
    alg.compute_returns(last)
    value, returns = alg.storage.data["policy"]["value"], alg._prepared.returns
    assert alg.storage.data["truncated"].nonzero().tolist() == [[1, 1], [T - 1, 2]]
    assert float(returns[1, 1]) == pytest.approx(float(1.0 + 0.5 * value[1, 1]))
    assert float(returns[T - 1, 2]) == pytest.approx(float(1.0 + 0.5 * value[T - 1, 2]))
    assert float(returns[1, 0]) == pytest.approx(float(1.0 + 0.5 * value[2, 0]))
    _, stats = alg.update(0)
    assert int(stats["skipped_updates"]) == 0 and float(stats["first_ratio_error"]) <= 2e-6


def test_counts_that_do_not_fit_are_named():
    for given in (
        {"rewards": torch.ones(N - 1)},
        {"dones": torch.zeros(N + 1)},
        {"infos": {"time_outs": torch.zeros(1)}},
    ):
        alg = make_alg()
        alg.act(torch.ones(N, 4), torch.ones(N, 3))
        with pytest.raises(ValueError, match=r"(rewards|dones|time_outs'\]) has \d entries for 4 envs"):
            alg.process_env_step(**{"rewards": torch.ones(N), "dones": torch.zeros(N), **given})


def test_saving_and_loading_goes_on_bit_for_bit():
    one, other = make_alg(recurrent=True), make_alg(recurrent=True)
    fill(one)
    one.compute_returns(torch.ones(N, 3))
    one.update()
    other.load_state_dict(one.state_dict())
    for alg in (one, other):
        fill(alg)
        alg.compute_returns(torch.ones(N, 3))
        alg.update()
    assert tree.equal(one.state_dict(), other.state_dict())
    assert {"model_state_dict", "optimizer_state_dict"} <= one.state_dict().keys()


def test_weights_alone_can_be_loaded():
    one, other = make_alg(), make_alg()
    fill(one)
    one.compute_returns(torch.ones(N, 3))
    one.update()
    other.load_state_dict({"model_state_dict": one.state_dict()["model_state_dict"]})
    assert tree.equal(weights_of(one.policy), weights_of(other.policy))
    with pytest.raises(KeyError, match="model_state_dict"):
        other.load_state_dict({"weights": {}})


def test_modes_and_the_settings_of_old():
    alg = make_alg(clip_param=0.3, schedule="adaptive", learning_rate=2e-3, clip_min_std=[0.1, 0.2])
    assert alg.learner.config.clip_param == 0.3 and alg.learning_rate == pytest.approx(2e-3)
    alg.test_mode()
    assert not alg.policy.training
    alg.train_mode()
    assert alg.policy.training


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_calls_in_the_wrong_order_say_what_comes_first():
    model = ActorCritic(4, 3, 2, actor_hidden_dims=(8,), critic_hidden_dims=(8,))
    alg = PPO(model)
    with pytest.raises(RuntimeError, match="init_storage"):
        alg.act(torch.ones(N, 4), torch.ones(N, 3))
    alg.init_storage(N, T)
    with pytest.raises(RuntimeError, match="after act"):
        alg.process_env_step(torch.ones(N), torch.ones(N), {})
    with pytest.raises(RuntimeError, match="0 of 24 samples"):
        alg.compute_returns(torch.ones(N, 3))
    with pytest.raises(RuntimeError, match="after compute_returns"):
        alg.update()


def test_wrong_settings_are_named():
    model = ActorCritic(4, 3, 2, actor_hidden_dims=(8,), critic_hidden_dims=(8,))
    with pytest.raises(TypeError, match="Did you mean 'clip_param'"):
        PPO(model, clip_parm=0.3)
    with pytest.raises(ValueError, match="NormalizeObs"):
        PPO(model, empirical_normalization=True)
    with pytest.raises(TypeError, match="wants a Policy"):
        PPO(torch.nn.Linear(2, 2))
    alg = PPO(model, num_mini_batches=25)
    with pytest.raises(ValueError, match="num_mini_batches=25"):
        alg.init_storage(N, T)
    with pytest.raises(ValueError, match=r"critic_obs_shape=\[5\] has 5 numbers, the policy has 3"):
        alg.init_storage(N, 100, [4], [5], [2])


def test_settings_that_are_not_given_are_those_of_rsl_rl():
    policy = Policy(pendulum(True).obs_spec, pendulum(True).action_spec)
    assert PPO(policy).learner.config == RunnerConfig().algorithm
    assert PPO(policy, gamma=0.9).learner.config == replace(RunnerConfig().algorithm, gamma=0.9)
    assert PPO(policy, config=PPOConfig()).learner.config == PPOConfig()
