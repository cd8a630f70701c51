"""TPPO and DAgger: students that reach their teacher, exact resume, old rollouts, random memories, presets."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest
import torch
from teacher_cases import LENGTH, SMALL, HiddenGoal, goal_teacher, greedy_return, loop, student

from striderl.algorithms.on_policy import tppo as module
from striderl.algorithms.on_policy.dagger import DAgger, DAggerConfig
from striderl.algorithms.on_policy.estimator_ppo import EstimatorPPO
from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.on_policy.tppo import TPPO, EstimatorTPPO, TPPOConfig
from striderl.algorithms.terms.distill import Distill
from striderl.algorithms.terms.estimation import Estimation
from striderl.algorithms.terms.resample_memory import ResampleMemory
from striderl.algorithms.terms.term import TermList
from striderl.collect.actors.policy_actor import GreedyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.teacher import Teacher
from striderl.data import tree
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.policy import Policy
from striderl.policies.stages import Remember
from striderl.storage.rollout_presets import QueueRolloutStorage
from striderl.training.plans import OnPolicyPlan
from striderl.training.trainer import Trainer

GRU = Remember(type="gru", hidden_size=8)

# -- learning ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("using_ppo", "iterations"), [(True, 30), (False, 15)], ids=["tppo", "dagger"])
def test_a_student_with_a_memory_reaches_its_privileged_teacher(using_ppo, iterations):
    env = HiddenGoal(64)
    policy = student(env)
    ppo = PPOConfig(num_learning_epochs=4, num_mini_batches=2, learning_rate=5e-3, gamma=0.9)
    settings = {"teacher_act_prob": "linear", "update_times_scale": 10.0, "distill_target": "mse_sum"}
    before = greedy_return(policy)
    parts = loop(
        TPPO(policy, goal_teacher(), TPPOConfig(ppo=_shared(ppo, using_ppo), using_ppo=using_ppo, **settings)),
        env,
        2 * LENGTH,
    )
    teacher_return = float(LENGTH)  # it names the goal in each of eight steps
    for iteration in range(iterations):
        numbers = parts.learn(iteration)
        if iteration % 3 == 2 and not numbers["teacher_acted"] and greedy_return(policy) > 0.9 * teacher_return:
            break
    assert before < 0.6 * teacher_return
    assert greedy_return(policy) > 0.9 * teacher_return
    assert float(numbers["teacher_acted"]) == 0.0  # by now the student is on its own


def _shared(ppo: PPOConfig, using_ppo: bool) -> PPOConfig:
    """Without what DAgger would warn about."""
    return ppo if using_ppo else dataclasses.replace(ppo, gamma=PPOConfig().gamma)


# -- resume ------------------------------------------------------------------------------------------------------------


def make_trainer(seed: int = 0, **settings: Any) -> Trainer:
    env = HiddenGoal(6)
    policy = student(env, "lstm", 6)
    recurrent = student(env, "gru", 4, actor_obs=("goal",))
    config = TPPOConfig(ppo=SMALL, teacher_act_prob="linear", update_times_scale=6.0, **settings)
    algorithm = TPPO(policy, Teacher(recurrent), config)
    collector = Collector(env, algorithm.actor(), CollectorConfig(seed=seed))
    return Trainer(algorithm, collector, OnPolicyPlan(num_steps_per_env=5), seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"hidden_state_resample_prob": 0.3, "action_labels_from_sample": True},
        {"using_ppo": False, "buffer_dilation_ratio": 2.5},
    ],
    ids=["tppo", "dagger"],
)
def test_a_resumed_run_goes_on_bit_for_bit(settings):
    whole = make_trainer(**settings)
    for _ in range(6):
        next(whole)
    first = make_trainer(**settings)
    for _ in range(3):
        next(first)
    saved = tree.copy(first.state_dict())
    second = make_trainer(seed=9, **settings)
    with torch.no_grad():  # as if the teacher's file had changed: the saved one must come back
        for parameter in _distill(second).teacher.policy.parameters():
            parameter.add_(1.0)
    second.load_state_dict(saved)
    for _ in range(3):
        next(second)
    one, other = whole.state_dict(), second.state_dict()
    assert tree.equal(one["algorithm"], other["algorithm"])
    assert tree.equal(one["collector"], other["collector"])  # the draws and the teacher's memory are in it


def _distill(trainer: Trainer) -> Distill:
    return next(term for term in trainer.algorithm.terms if isinstance(term, Distill))


# -- old rollouts ------------------------------------------------------------------------------------------------------


def test_defect_dilated_buffers_are_for_dagger_only():
    with pytest.raises(ValueError, match="using_ppo=False"):
        TPPOConfig(buffer_dilation_ratio=2.0)


@pytest.mark.parametrize("memory", ["", "lstm"])
def test_a_dilated_buffer_keeps_the_newest_rollouts_in_order(memory):
    env = HiddenGoal(3)
    once = PPOConfig(num_learning_epochs=1, num_mini_batches=1)
    config = TPPOConfig(ppo=once, using_ppo=False, buffer_dilation_ratio=2.5, teacher_act_prob=0.5)
    parts = loop(TPPO(student(env, memory), goal_teacher(), config), env, 4)
    assert isinstance(parts.storage, QueueRolloutStorage)
    rows, lengths = [], []
    for iteration in range(4):
        prepared = parts.collect()
        lengths.append(len(prepared.whole["valid"]))
        rows.append(prepared.columns["obs"]["goal"][-4:].clone())
        parts.algorithm.update(prepared, torch.Generator().manual_seed(iteration))
    assert lengths == [4, 8, 10, 10]
    everything = torch.cat(rows)
    assert torch.equal(prepared.columns["obs"]["goal"], everything[-10:])  # the newest ten, oldest first


def test_the_memory_of_an_old_rollout_is_the_one_it_was_collected_with():
    env = HiddenGoal(3)
    config = TPPOConfig(using_ppo=False, buffer_dilation_ratio=2.0, teacher_act_prob=0.0)
    parts = loop(TPPO(student(env, "lstm"), goal_teacher(), config), env, 4)
    for _ in range(3):
        prepared = parts.collect()
    policy = parts.algorithm.policy
    # nothing was learned in between, so the sequence from that memory is what was said while collecting
    whole = prepared.whole
    output = policy(whole["obs"], prepared.initial_state, whole["memo"], whole["resets"], whole["readable"])
    torch.testing.assert_close(output.distribution.mode(), prepared.columns["policy"]["dist"]["mean"])
    assert any(bool((value != 0).any()) for value in prepared.initial_state.values())


# -- random memories ---------------------------------------------------------------------------------------------------


def test_auto_is_eager_where_trajectories_vary_in_number(caplog):
    policy = student(HiddenGoal(2), "gru")
    with caplog.at_level(logging.INFO):
        assert TermList([ResampleMemory(probability=0.25)], policy).possible_mode("auto") == "eager"
    assert "terms cut rollouts into a varying number of trajectories (mode='auto')" in caplog.text
    assert TermList([], policy).possible_mode("auto") == "auto"
    assert TermList([ResampleMemory(probability=0.25)], policy).possible_mode("graphed") == "graphed"


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_part_of_the_trajectories_begins_with_a_random_memory(memory):
    policy = student(HiddenGoal(2), memory)
    state = {name: torch.full((1000, *spec.shape), 7.0) for name, spec in policy.state_spec().items()}
    new, chosen = ResampleMemory(probability=0.25).memory(state, torch.Generator().manual_seed(0))
    assert 0.2 < float(chosen.float().mean()) < 0.3
    assert set(new) == set(state) and len(new) == {"gru": 1, "lstm": 2}[memory]
    for name, value in new.items():
        assert value.shape == state[name].shape
        assert bool((value[~chosen] == 7.0).all())
        drawn = value[chosen]
        assert -1.0 <= float(drawn.min()) < -0.95 and 0.95 < float(drawn.max()) <= 1.0
        assert abs(float(drawn.mean())) < 0.05  # every number by itself, not one per trajectory
        assert float(drawn.std()) == pytest.approx(3**-0.5, abs=0.02)


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_what_follows_from_a_random_memory_leaves_the_surrogate(memory):
    env = HiddenGoal(8)
    config = TPPOConfig(
        ppo=dataclasses.replace(SMALL, num_mini_batches=1),
        hidden_state_resample_prob=0.5,
        teacher_act_prob=0.0,
    )
    parts = loop(TPPO(student(env, memory), goal_teacher(), config), env, 12)
    parts.learn()
    prepared = parts.collect()  # begins in the middle of episodes, which end after four more steps; then eight more
    minibatch = next(iter(parts.algorithm.minibatches(prepared, torch.Generator().manual_seed(3))))
    valid, other = minibatch["valid"], minibatch["other_memory"]
    assert valid.sum(dim=0).sort().values.tolist() == [4] * 8 + [8] * 8  # two trajectories in each of eight envs
    chosen = other.any(dim=0)
    assert torch.equal(other, valid & chosen) and 3 <= int(chosen.sum()) <= 13  # 16 fair coins
    _, inter, stats = parts.algorithm.compute_losses(minibatch)
    assert bool((inter["ratio"][other] == 1.0).all())
    assert float(stats["ratio_error"]) < 1e-5  # what is left in the surrogate has its own memory
    again = inter["output"].distribution.log_prob(minibatch["act"]).detach()
    assert float((again - minibatch["log_prob"])[other].abs().max()) > 1e-3  # the rest has not


def test_random_memories_and_compiled_updates_do_not_go_together():
    env = HiddenGoal(4)
    algorithm = TPPO(student(env), goal_teacher(), TPPOConfig(hidden_state_resample_prob=0.5), mode="compiled")
    with pytest.raises(ValueError, match="mode='eager'"):
        Trainer(algorithm, Collector(env, algorithm.actor()), OnPolicyPlan(num_steps_per_env=8))


def test_a_student_without_a_memory_has_nothing_to_resample():
    with pytest.raises(ValueError, match="no memory"):
        TPPO(student(HiddenGoal(2), ""), goal_teacher(), TPPOConfig(hidden_state_resample_prob=0.1))


# -- presets -----------------------------------------------------------------------------------------------------------


def test_defect_24_every_loss_has_one_weight_with_one_name():
    for name in ("dagger_loss_coef", "bc_loss_coef"):
        with pytest.raises(TypeError, match=name):
            TPPOConfig(**{name: 1.0})
    env = HiddenGoal(4)
    algorithm = TPPO(student(env), goal_teacher(), TPPOConfig(ppo=SMALL, distillation_loss_coef=0.25))
    parts = loop(algorithm, env)
    minibatch = next(iter(algorithm.minibatches(parts.collect(), torch.Generator().manual_seed(0))))
    losses, _, _ = algorithm.compute_losses(minibatch)
    assert float(losses["distillation_loss"][0]) == 0.25


def test_defect_25_the_t_is_for_teacher():
    assert "Teacher PPO" in (module.__doc__ or "") and "teacher PPO" in (TPPO.__doc__ or "")


def test_the_presets_put_parts_together():
    env = HiddenGoal(4)
    assert isinstance(TPPO(student(env), goal_teacher()), PPO)
    assert isinstance(TPPO(student(env), goal_teacher(), TPPOConfig(using_ppo=False)), DAgger)
    names = [term.name for term in TPPO(student(env), goal_teacher(), TPPOConfig(hidden_state_resample_prob=0.1)).terms]
    assert names == ["resample_memory", "distill"]


def test_settings_that_dagger_does_not_read_are_named(caplog):
    with caplog.at_level(logging.WARNING):
        TPPO(student(HiddenGoal(2)), goal_teacher(), TPPOConfig(using_ppo=False, ppo=PPOConfig(gamma=0.5)))
    assert "gamma" in caplog.text


@pytest.mark.slow
def test_the_learning_rate_of_dagger_follows_a_scheduler():
    env = HiddenGoal(4)
    ppo = PPOConfig(learning_rate=0.1, lr_scheduler_class_name="StepLR", lr_scheduler={"step_size": 1, "gamma": 0.5})
    parts = loop(TPPO(student(env), goal_teacher(), TPPOConfig(using_ppo=False, ppo=ppo)), env)
    assert [float(parts.learn()["learning_rate"]) for _ in range(3)] == pytest.approx([0.1, 0.05, 0.025])


def test_dagger_leaves_the_critic_alone():
    env = HiddenGoal(4)
    parts = loop(TPPO(student(env), goal_teacher(), TPPOConfig(using_ppo=False)), env)
    policy = parts.algorithm.policy
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    parts.learn()
    changed = {
        name.partition(".")[0] for name, value in policy.state_dict().items() if not torch.equal(value, before[name])
    }
    assert changed == {"actor", "actor_body", "head"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_mini_batches": 0}, "at least 1"),
        ({"buffer_dilation_ratio": 0.5}, "at least 1"),
        ({"optimizer_class_name": "Adm"}, "Did you mean 'Adam"),
        ({"lr_scheduler": {"gamma": 0.1}}, "no effect"),
    ],
)
def test_settings_of_dagger_that_make_no_sense(settings, words):
    with pytest.raises(ValueError, match=words):
        DAggerConfig(**settings)


# -- estimators --------------------------------------------------------------------------------------------------------


def estimator(path: str) -> tuple[Any, ...]:
    """The three ways of an estimator: without memory, with one of its own, on the actor's."""
    target = {"target_components": ("goal",), "hidden_sizes": (8,)}
    if path == "feed-forward":
        return (Estimate(obs_components=("cue", "first"), **target),)
    if path == "own memory":
        return (Estimate(obs_components=("cue", "first"), memory=GRU, **target), GRU)
    return (GRU, Estimate(use_actor_rnn=True, **target))


def estimating(env: HiddenGoal, path: str) -> Policy:
    return student(env, "", actor=estimator(path))


@pytest.mark.slow
@pytest.mark.parametrize("path", ["feed-forward", "own memory", "actor memory"])
@pytest.mark.parametrize("preset", ["EstimatorPPO", "EstimatorTPPO", "dagger"])
def test_defect_30_estimators_learn_on_all_three_memory_paths(path, preset):
    env = HiddenGoal(8)
    policy = estimating(env, path)
    if preset == "EstimatorPPO":
        algorithm: PPO | DAgger = EstimatorPPO(policy, SMALL)
    else:
        algorithm = EstimatorTPPO(policy, goal_teacher(), TPPOConfig(ppo=_lr(), using_ppo=preset != "dagger"))
    parts = loop(algorithm, env, 2 * LENGTH)
    losses = [float(parts.learn(iteration)["estimator_loss"]) for iteration in range(7)]
    assert losses[-1] < 0.9 * losses[0]


def _lr() -> PPOConfig:
    return PPOConfig(learning_rate=1e-2, num_learning_epochs=2, num_mini_batches=2)


@pytest.mark.parametrize("path", ["feed-forward", "own memory", "actor memory"])
def test_defect_30_greedy_actions_are_deterministic(path):
    env = HiddenGoal(4)
    policy = estimating(env, path)
    plays = []
    for seed in (1, 2):
        collector = Collector(HiddenGoal(4), GreedyActor(policy), CollectorConfig(seed=seed))
        collector.reset(seed=0)
        actor = collector.actor
        state, obs, played = actor.initial_state(4, torch.device("cpu")), collector.current_obs, []
        for _ in range(3):
            acted = actor.act(obs, state, {})
            state = acted.state
            played.append(acted.actions)
        plays.append(torch.stack(played))
    assert torch.equal(*plays)


def test_a_policy_with_an_adaptor_gets_a_second_loss():
    env = HiddenGoal(4)
    both = (
        Adapt(obs_components=("cue",), target_components=("goal",), hidden_sizes=(4,)),
        Estimate(obs_components=("first",), target_components=("cue",), hidden_sizes=(4,)),
    )
    algorithm = EstimatorPPO(student(env, "", actor=both), SMALL, estimation=Estimation(loss="l1_loss", weight=0.5))
    assert [(term.name, term.loss, term.weight) for term in algorithm.terms] == [
        ("estimator_loss", "l1_loss", 0.5),
        ("adaptor_loss", "l1_loss", 0.5),
    ]
    numbers = loop(algorithm, env).learn()
    assert float(numbers["estimator_loss"]) > 0 and float(numbers["adaptor_loss"]) > 0


def test_an_estimator_preset_wants_an_estimator():
    with pytest.raises(ValueError, match="finds no such stage"):
        EstimatorPPO(student(HiddenGoal(2)))
