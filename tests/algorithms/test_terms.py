"""Terms in PPO: rewards, losses, groups and state of whatever is in the list, and all of them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from ppo_rollouts import ACTION, USUAL
from term_rollouts import (
    ESTIMATE,
    MEMORY,
    learn,
    make_env,
    make_parts,
    make_policy,
    make_rnd,
    make_symmetry,
    no_terms,
    order,
)

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.terms.estimation import Estimation
from striderl.algorithms.terms.term import Read, Term
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data import tree
from striderl.data.specs import TensorSpec
from striderl.envs.toy import Script, Scripted
from striderl.envs.vec_env import VecEnv
from striderl.execution.updater import GroupConfig, ParameterGroup
from striderl.training.plans import OnPolicyPlan
from striderl.training.trainer import Trainer


class Nothing(Term):
    """A term that does nothing."""

    @property
    def name(self) -> str:
        return "nothing"


class Probe(Term):
    """A number that is pulled to 3, a constant reward, and notes of what it was given."""

    def __init__(self, name: str = "probe", weight: float = 2.0, bonus: float = 0.0, reads: Sequence[str] = ()) -> None:
        self._name, self.weight, self.bonus, self.reads = name, weight, bonus, reads
        self.number = torch.nn.Parameter(torch.zeros(()))
        config = GroupConfig(optimizer="SGD", learning_rate=0.1, max_grad_norm=0.0)
        self._groups = {name: ParameterGroup([self.number], config)}
        self.minibatches: list[Mapping[str, Any]] = []
        self.absorbed = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def groups(self) -> Mapping[str, ParameterGroup]:
        return self._groups

    def columns(self) -> Mapping[str, TensorSpec]:
        return {name: TensorSpec() for name in self.reads}

    def reward(self, read: Read) -> dict[str, torch.Tensor]:
        return {f"{self.name}_reward": torch.full_like(read.columns["rew"], self.bonus)}

    def losses(self, minibatch: Mapping[str, Any], out: Any) -> dict[str, tuple[float, torch.Tensor]]:
        self.minibatches.append(minibatch)
        return {f"{self.name}_loss": (self.weight, (self.number - 3.0).square())}

    def update_normalization(self, columns: Mapping[str, Any]) -> None:
        self.absorbed += len(columns["valid"])

    def numbers(self) -> dict[str, torch.Tensor]:
        return {f"{self.name}_number": self.number.detach().clone()}


# -- nothing changes nothing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recurrent", [False, True])
def test_no_terms_and_terms_that_do_nothing_are_the_same_bits(recurrent):
    stages = (MEMORY,) if recurrent else ()
    results = []
    for terms in (no_terms, lambda env: [Nothing()], lambda env: [Probe()]):
        env = make_env()
        results.append(learn(make_parts(env, make_policy(env, stages, stages), terms)))
    (numbers, without), *others = results
    for found, weights in others:
        assert all(torch.equal(without[name], weights[name]) for name in without)
        # a term's own loss is part of the total, and of nothing else
        same = [name for name in numbers if name != "total_loss" or "probe_loss" not in found]
        assert all(torch.equal(numbers[name], found[name]) for name in same)


# -- one term ----------------------------------------------------------------------------------------------------------


def test_weight_and_learning_rate_are_applied():
    # SGD at 0.1 on 2 (x - 3)²: x ← x - 0.1 · 4 (x - 3); from 0: 1.2, then 1.92
    env = make_env()
    term = Probe()
    parts = make_parts(env, make_policy(env), lambda env: [term], num_learning_epochs=1, num_mini_batches=2)
    numbers, _ = learn(parts)
    assert term.number.item() == pytest.approx(1.92)
    # losses 9 and 1.8² = 3.24, gradients 12 and 7.2, before each step, without the weight in the loss
    assert numbers["probe_loss"].item() == pytest.approx((9.0 + 3.24) / 2)
    assert numbers["probe_grad_norm"].item() == pytest.approx((12.0 + 7.2) / 2)
    assert numbers["probe_number"].item() == 0.0
    assert term.absorbed == 8


def test_a_reward_is_added_once_and_logged():
    env = make_env()
    plain, bonus = (make_parts(env, make_policy(env), lambda env, b=b: [Probe(bonus=b)], gamma=0.0) for b in (0.0, 2.0))
    without, found = plain.collect(), bonus.collect()
    # with gamma 0 a return is its reward
    torch.testing.assert_close(found.returns, without.returns + 2.0)
    assert torch.equal(found.columns["rew"], without.columns["rew"])
    assert bonus.ppo.update(found, order())["probe_reward"].item() == pytest.approx(2.0)


def test_several_rewards_add_up():
    env = make_env()
    parts = make_parts(env, make_policy(env), lambda env: [Probe("one", bonus=2.0), Probe("two", bonus=0.5)], gamma=0.0)
    prepared = parts.collect()
    torch.testing.assert_close(prepared.returns, prepared.columns["rew"] + 2.5)
    assert (prepared.numbers["one_reward"].item(), prepared.numbers["two_reward"].item()) == (2.0, 0.5)


def test_info_columns_come_with_each_minibatch():
    never = torch.zeros(8, 4, dtype=torch.bool)
    height = torch.arange(32.0).view(8, 4)
    script = Script(
        obs={"joints": torch.zeros(9, 4, 3)},
        reward=torch.zeros(8, 4),
        terminated=never,
        truncated=never,
        info={"height": height},
    )
    env = Scripted(script, action_spec=ACTION)
    term = Probe(reads=("height",))
    learn(make_parts(env, make_policy(env), lambda env: [term], num_learning_epochs=1))
    seen = torch.cat([minibatch["info"]["height"] for minibatch in term.minibatches])
    assert sorted(seen.tolist()) == list(range(32))
    parts = make_parts(env, make_policy(env), lambda env: [Probe(reads=("hight",))])
    with pytest.raises(KeyError, match=r"info column 'hight'.*Did you mean 'height'"):
        parts.collect()


def test_a_term_whose_gradient_breaks_is_skipped_alone():
    env = make_env()
    term = Probe(weight=float("inf"))
    policy = make_policy(env)
    before = tree.copy(dict(policy.state_dict()))
    numbers, after = learn(make_parts(env, policy, lambda env: [term]))
    assert term.number.item() == 0.0 and int(numbers["skipped_updates"]) == 4
    assert not tree.equal(before, after) and all(bool(value.isfinite().all()) for value in after.values())


# -- what is refused ---------------------------------------------------------------------------------------------------


class Clash(Nothing):
    """Gives a loss that PPO has already."""

    def losses(self, minibatch: Mapping[str, Any], out: Any) -> dict[str, tuple[float, torch.Tensor]]:
        return {"value_loss": (1.0, torch.zeros(()))}


class Short(Nothing):
    """Gives a reward of the wrong shape."""

    def reward(self, read: Read) -> dict[str, torch.Tensor]:
        return {"short": torch.zeros(3)}


def test_lists_that_cannot_work_are_refused():
    env = make_env()
    policy = make_policy(env)
    with pytest.raises(ValueError, match="two terms are called 'nothing'"):
        PPO(policy, terms=[Nothing(), Nothing()])
    with pytest.raises(TypeError, match="found dict"):
        PPO(policy, terms=[{}])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="group of parameters called 'policy'"):
        PPO(policy, terms=[Probe("policy")])
    with pytest.raises(ValueError, match="loss called 'value_loss'"):
        learn(make_parts(env, policy, lambda env: [Clash()]))
    with pytest.raises(ValueError, match=r"'short' has shape \[3\], wanted \[8, 4\]"):
        make_parts(make_env(), policy, lambda env: [Short()]).collect()


def test_other_terms_than_were_saved_are_refused():
    env = make_env()
    saved = PPO(make_policy(env), terms=[Nothing()]).state_dict()
    with pytest.raises(ValueError, match=r"saved terms \['nothing'\] are not this algorithm's \[\]"):
        PPO(make_policy(env)).load_state_dict(saved)


# -- all at once -------------------------------------------------------------------------------------------------------


def all_terms(env: VecEnv) -> Sequence[Term]:
    schedule = {"weight_schedule": "linear", "final_step": 100, "final_weight": 0.1}
    return [Estimation(weight=0.5), make_rnd(env, **schedule), make_symmetry(mirror_loss_weight=0.2)]


def test_all_terms_at_once_on_a_policy_with_memory():
    env = make_env(16, 6)
    policy = make_policy(env, (ESTIMATE, MEMORY), (MEMORY,))
    parts = make_parts(env, policy, all_terms, num_mini_batches=3)
    for _ in range(2):
        before = tree.copy(dict(policy.named_parameters()))
        numbers, _ = learn(parts)
        assert float(numbers["first_ratio_error"]) < 1e-5
        assert {"estimator_loss", "rnd_loss", "mirror_loss", "rnd_reward", "rnd_weight"} <= numbers.keys()
        assert all(bool(value.isfinite()) for value in numbers.values()) and int(numbers["skipped_updates"]) == 0
        assert all(not torch.equal(before[name], value) for name, value in policy.named_parameters())


def trainer(weights: int = 0) -> Trainer:
    """All terms on a scripted env, with weights that tell two trainers apart."""
    env = make_env(64, 4)
    policy = make_policy(env, (ESTIMATE, MEMORY), (MEMORY,))
    torch.manual_seed(weights)
    terms = all_terms(env)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.01 * weights)
    ppo = PPO(policy, PPOConfig(**{**USUAL, "num_mini_batches": 2, "normalize_values": True}), terms=terms)
    collector = Collector(env, PolicyActor(policy), CollectorConfig(seed=0))
    return Trainer(ppo, collector, OnPolicyPlan(num_steps_per_env=8, total_iterations=8))


def weights_of(one: Trainer) -> Any:
    return tree.copy(one.algorithm.state_dict())


@pytest.mark.slow
def test_a_saved_run_goes_on_bit_for_bit():
    # one iteration and some phases of the second, so that every phase is left and entered
    whole = trainer()
    next(whole)
    saved = []
    for _ in range(6):
        saved.append((tree.copy(whole.state_dict()), weights_of(whole)))
        whole.advance()
    while whole.iteration < 3:
        next(whole)
    assert {"train/rnd_reward", "train/estimator_loss", "train/mirror_loss"} <= whole.record.metrics.keys()
    assert int(whole.algorithm.state_dict()["terms"]["rnd"]["num_steps"]) == 24
    for phases, (state, weights) in enumerate(saved):
        other = trainer(weights=1)
        assert not tree.equal(weights, weights_of(other)), "the test can fail"
        other.load_state_dict(state)
        assert tree.equal(weights, weights_of(other)), phases
        while other.iteration < 3:
            next(other)
        assert tree.equal(weights_of(whole), weights_of(other)), phases
        assert dict(whole.record.metrics) == dict(other.record.metrics), phases


def test_a_saved_state_is_a_copy():
    whole = trainer()
    next(whole)
    saved = whole.algorithm.state_dict()
    kept = tree.copy(saved)
    next(whole)
    assert tree.equal(saved, kept) and not tree.equal(weights_of(whole), kept)


class Labelled(Nothing):
    """A term that makes a label of the whole rollout and looks for it in minibatches."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.shape, self.seen = shape, []

    def following(self) -> tuple[str, ...]:
        return ("joints",)

    def labels(self, read: Read) -> dict[str, torch.Tensor]:
        place = torch.arange(read.columns["rew"].numel()).view_as(read.columns["rew"])
        return {"place": place if not self.shape else torch.zeros(self.shape)}

    def losses(self, minibatch: Mapping[str, Any], out: Any) -> dict[str, Any]:
        self.seen.append(minibatch["labels"]["nothing"]["place"])
        return {}


@pytest.mark.parametrize("stages", [(), (MEMORY,)], ids=["rows", "sequences"])
def test_labels_of_a_rollout_travel_with_its_samples(stages):
    env = make_env()
    term = Labelled()
    parts = make_parts(env, make_policy(env, stages), lambda env: [term])
    assert parts.ppo.terms.following() == ("joints",)
    prepared = parts.collect()
    parts.ppo.update(prepared, order())
    # two epochs of two minibatches: every sample twice, and each with its own label
    assert torch.cat([each.flatten() for each in term.seen]).sort().values.tolist() == sorted([*range(32)] * 2)
    for minibatch in parts.ppo.minibatches(prepared, order(1)):
        rows = minibatch["labels"]["nothing"]["place"].flatten()
        torch.testing.assert_close(minibatch["log_prob"].flatten(), prepared.log_prob.flatten()[rows])


def test_labels_of_another_size_are_refused():
    env = make_env()
    parts = make_parts(env, make_policy(env), lambda env: [Labelled((3, 4))])
    with pytest.raises(ValueError, match=r"label 'place' of term 'nothing' has shape \[3, 4\], wanted \[8, 4, …\]"):
        parts.collect()
