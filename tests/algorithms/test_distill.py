"""Distill: who acts and when, what is stored of it, and which samples the policy gradient uses."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from teacher_cases import LENGTH, SMALL, HiddenGoal, Loop, goal_teacher, loop, student

from striderl.algorithms.on_policy.dagger import DAgger
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.terms.distill import Distill, DistillConfig
from striderl.algorithms.terms.symmetry import MirrorTable, Symmetry
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.collect.teacher import Teacher
from striderl.execution.capture import check_capture
from striderl.ops.losses import clipped_surrogate
from striderl.training.protocols import storage_for


def ppo_loop(num_envs: int = 4, num_steps: int = 8, memory: str = "", **settings: Any) -> Loop:
    env = HiddenGoal(num_envs)
    return loop(PPO(student(env, memory), SMALL, [Distill(goal_teacher(), DistillConfig(**settings))]), env, num_steps)


def one_minibatch(parts: Loop, prepared: Any) -> dict[str, Any]:
    return next(iter(parts.algorithm.minibatches(prepared, torch.Generator().manual_seed(0))))


# -- who acts ----------------------------------------------------------------------------------------------------------


def test_defect_28_with_probability_0_the_teacher_never_acts_not_even_first():
    prepared = ppo_loop(64, teacher_act_prob=0.0).collect()
    assert not bool(prepared.columns["policy"]["distill"]["acted"].any())


def test_with_probability_1_every_executed_action_is_the_label():
    columns = ppo_loop(8, teacher_act_prob=1.0).collect().columns
    stored = columns["policy"]["distill"]
    assert bool(stored["acted"].all())
    assert torch.equal(columns["act"], stored["label"])
    # and the label is the goal: that is what this teacher does
    torch.testing.assert_close(stored["label"], columns["obs"]["goal"])


def test_who_acts_is_drawn_once_per_episode():
    columns = ppo_loop(128, 4 * LENGTH, teacher_act_prob=0.5).collect().columns
    acted = columns["policy"]["distill"]["acted"].view(4, LENGTH, 128)
    assert bool((acted == acted[:, :1]).all())  # constant within an episode
    changes = (acted[1:, 0] != acted[:-1, 0]).float().mean()
    assert 0.4 < float(changes) < 0.6  # two fair coins differ half of the time; 384 draws, 4 sigma is 0.1


@pytest.mark.parametrize("probability", [0.2, 0.7])
def test_the_draws_have_the_probability_of_the_schedule(probability):
    columns = ppo_loop(512, 2 * LENGTH, teacher_act_prob=probability).collect().columns
    share = columns["policy"]["distill"]["acted"][::LENGTH].float().mean()
    # 1024 draws: 4 standard deviations
    assert abs(float(share) - probability) < 4 * (probability * (1 - probability) / 1024) ** 0.5


def test_the_probability_falls_with_the_iterations():
    parts = ppo_loop(256, LENGTH, teacher_act_prob="linear", update_times_scale=4.0)
    shares, knobs = [], []
    for iteration in range(6):
        numbers = parts.learn(iteration)
        shares.append(float(numbers["teacher_acted"]))
        knobs.append(float(numbers["teacher_act_prob"]))
    assert knobs == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    assert shares == pytest.approx(knobs, abs=4 * (0.25 / 256) ** 0.5)
    assert shares[0] == 1.0 and shares[4] == shares[5] == 0.0


def test_a_draw_holds_until_the_episode_ends_even_when_the_probability_falls():
    parts = ppo_loop(16, LENGTH // 2, teacher_act_prob="linear", update_times_scale=1.0)
    parts.learn()  # probability 1: half an episode by the teacher
    stored = parts.collect().columns["policy"]["distill"]["acted"]  # probability 0 now, the same episodes
    assert bool(stored.all())
    assert not bool(parts.collect().columns["policy"]["distill"]["acted"].any())  # new episodes


# -- what is stored ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["", "gru"])
def test_defect_27_the_stored_log_prob_is_that_of_the_executed_action(memory):
    parts = ppo_loop(16, 12, memory, teacher_act_prob=0.5)
    columns = parts.collect().columns
    distribution = parts.algorithm.policy.head.from_params(columns["policy"]["dist"])
    acted = columns["policy"]["distill"]["acted"]
    assert bool(acted.any()) and not bool(acted.all())
    torch.testing.assert_close(columns["policy"]["log_prob"], distribution.log_prob(columns["act"]))


@pytest.mark.parametrize("memory", ["", "gru", "lstm"])
@pytest.mark.parametrize("samples", ["leave", "keep"])
def test_the_first_ratio_is_1(memory, samples):
    numbers = ppo_loop(16, 12, memory, teacher_act_prob=0.5, teacher_samples=samples).learn()
    assert float(numbers["first_ratio_error"]) < 1e-5
    assert float(numbers["kl"]) >= 0.0


def test_labels_from_samples_vary_and_are_the_same_for_the_same_seed():
    def labels(sample: bool) -> torch.Tensor:
        parts = ppo_loop(32, 8, teacher_act_prob=0.0, action_labels_from_sample=sample)
        columns = parts.collect().columns
        return columns["policy"]["distill"]["label"] - columns["obs"]["goal"]

    assert float(labels(False).abs().max()) < 1e-6
    assert float(labels(True).std()) == pytest.approx(0.1, abs=0.02)  # the teacher's std; 512 numbers
    assert torch.equal(labels(True), labels(True))


# -- the policy gradient -----------------------------------------------------------------------------------------------


def test_teacher_acted_samples_leave_the_surrogate():
    parts = ppo_loop(16, 8, teacher_act_prob=0.5)
    prepared = parts.collect()
    minibatch = one_minibatch(parts, prepared)
    with torch.no_grad():  # somewhere else than where the data was collected
        next(parts.algorithm.policy.actor_body.parameters()).add_(0.1)
    losses, inter, stats = parts.algorithm.compute_losses(minibatch)
    acted = minibatch["parts"]["distill"]["acted"]
    mine = ~acted
    # PPO on nothing but the student's samples
    log_prob = inter["output"].distribution.log_prob(minibatch["act"])
    wanted, _ = clipped_surrogate(log_prob[mine], minibatch["log_prob"][mine], minibatch["advantage"][mine], 0.2, None)
    torch.testing.assert_close(losses["surrogate_loss"][1], wanted)
    assert bool((inter["ratio"][acted] == 1.0).all()) and bool((inter["ratio"][mine] != 1.0).any())
    assert float(stats["teacher_acted"]) == pytest.approx(float(acted.float().mean()))


def test_advantages_are_normalised_over_the_students_samples():
    prepared = ppo_loop(32, 8, teacher_act_prob=0.5).collect()
    mine = ~prepared.columns["policy"]["distill"]["acted"]
    assert float(prepared.advantage[mine].mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(prepared.advantage[mine].std(unbiased=False)) == pytest.approx(1.0, abs=1e-3)
    assert bool((prepared.advantage[~mine] == 0.0).all())


def test_when_the_teacher_always_acts_there_is_no_policy_gradient_unless_it_is_kept():
    for samples, has_gradient in (("leave", False), ("keep", True)):
        parts = ppo_loop(8, 8, teacher_act_prob=1.0, teacher_samples=samples)
        losses, _, _ = parts.algorithm.compute_losses(one_minibatch(parts, parts.collect()))
        head = list(parts.algorithm.policy.head.parameters())
        grads = torch.autograd.grad(losses["surrogate_loss"][1], head, allow_unused=True)
        found = any(grad is not None and bool((grad != 0).any()) for grad in grads)
        assert found is has_gradient, samples
        value = losses["value_loss"][1]
        assert value.requires_grad and float(value.detach()) > 0  # the critic learns either way


# -- the teacher -------------------------------------------------------------------------------------------------------


def test_the_teacher_is_frozen_and_a_copy():
    given = goal_teacher().policy
    given.requires_grad_(True)
    teacher = Teacher(given)
    env = HiddenGoal(8)
    parts = loop(PPO(student(env), SMALL, [Distill(teacher)]), env)
    before = {name: value.clone() for name, value in teacher.policy.state_dict().items()}
    parts.learn()
    assert all(torch.equal(value, teacher.policy.state_dict()[name]) for name, value in before.items())
    assert all(not p.requires_grad and p.grad is None for p in teacher.policy.parameters())
    assert all(p.requires_grad for p in given.parameters())  # what was given is not touched
    learned = {id(p) for group in parts.algorithm.updater.groups.values() for p in group.flat.parameters}
    assert not learned & {id(p) for p in teacher.policy.parameters()}


def captured_cases() -> list[tuple[str, str]]:
    """Every target, with memory and without; all pairs under the deep profile."""
    if os.environ.get("HYPOTHESIS_PROFILE") == "deep":
        return [(target, memory) for target in ("real", "kl", "max_log_prob") for memory in ("", "gru")]
    return [("real", "gru"), ("kl", ""), ("max_log_prob", "")]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "memory"), captured_cases())
def test_the_losses_can_be_captured(target, memory):
    # a memory is traced step by step, and its third step is like all that follow
    parts = ppo_loop(4, 3, memory, teacher_act_prob=0.5, target=target)

    def numbers(minibatch: dict[str, Any]) -> Any:
        losses, inter, stats = parts.algorithm.compute_losses(minibatch)
        return {name: weight * loss for name, (weight, loss) in losses.items()}, inter["ratio"], stats

    one, two = (one_minibatch(parts, parts.collect()) for _ in range(2))
    report = check_capture(numbers, [one], fresh_inputs=[two], atol=1e-5, rtol=1e-5, name="distill")
    assert report.backward


def test_a_collector_without_the_part_is_named():
    env = HiddenGoal(4)
    algorithm = PPO(student(env), SMALL, [Distill(goal_teacher())])
    collector = Collector(env, PolicyActor(algorithm.policy))
    parts = Loop(algorithm, collector, storage_for(algorithm, collector, 8))
    with pytest.raises(KeyError, match=r"collect with algorithm.actor\(\)"):
        parts.collect()


@pytest.mark.parametrize("name", ["actor", "log_prob"])
def test_a_part_may_not_take_the_policys_names(name, monkeypatch):
    env = HiddenGoal(4)
    part = PPO(student(env), SMALL, [Distill(goal_teacher())]).actor().parts[0]
    policy = student(env)
    with pytest.raises(ValueError, match="which is taken"):
        PolicyActor(policy, [part, part])
    monkeypatch.setattr(type(part), "name", name)
    with pytest.raises(ValueError, match="which is taken"):
        PolicyActor(policy, [part])


@pytest.mark.slow
@pytest.mark.parametrize("target", ["real", "kl", "max_log_prob"])
def test_a_student_that_acts_on_its_mean(target):
    env = HiddenGoal(8)
    policy = student(env, "", deterministic=True)
    parts = loop(
        DAgger(policy, terms=[Distill(goal_teacher(), DistillConfig(target=target, teacher_act_prob=0.0))]), env
    )
    prepared = parts.collect()
    assert torch.equal(prepared.columns["act"], prepared.columns["policy"]["dist"]["mean"])
    order = torch.Generator().manual_seed(0)
    losses = [float(parts.algorithm.update(prepared, order)["distillation_loss"]) for _ in range(4)]
    assert losses[-1] < losses[0]


def test_mirrored_samples_are_not_taught():
    env = HiddenGoal(4)
    keep = {name: MirrorTable(list(range(spec.shape[0]))[::-1]) for name, spec in env.obs_spec.items()}
    mirror = Symmetry(mirror_obs=keep, mirror_act=MirrorTable([1, 0]))
    results = []
    for terms in ([], [mirror]):
        parts = loop(PPO(student(env, ""), SMALL, [*terms, Distill(goal_teacher())]), HiddenGoal(4))
        minibatch = one_minibatch(parts, parts.collect())
        losses, _, stats = parts.algorithm.compute_losses(minibatch)
        results.append((float(losses["distillation_loss"][1].detach()), float(stats["l1distance"])))
    assert results[0] == pytest.approx(results[1])


def test_dagger_wants_something_to_learn():
    with pytest.raises(ValueError, match="terms"):
        DAgger(student(HiddenGoal(2)))
