"""Several rewards with a value each: what belongs to which, and how their advantages meet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hand_worked import hand_worked, order
from ppo_rollouts import whole_minibatch

from striderl.algorithms.on_policy.ppo import PPOConfig
from striderl.algorithms.on_policy.reward_groups import RewardGroups
from striderl.algorithms.terms.term import Read, Term
from striderl.data.specs import TensorSpec

# V(s) = 10, 20, 30 for both values; gamma 0.5, lambda 0: R = r + 0.5 V(next)
HAND = {"gamma": 0.5, "lam": 0.0, "learning_rate": 1e-12}
TWO = {"task": ("env",), "style": ("upright",)}


def two_groups(**config: Any) -> Any:
    info = {"upright": [4.0, 14.0]}
    return hand_worked([10, 20, 30], [1, 2], info=info, num_values=2, reward_groups=TWO, **{**HAND, **config})


class Bonus(Term):
    """Rewards 5 in each step."""

    name = "bonus"

    def reward(self, read: Read) -> dict[str, torch.Tensor]:
        return {"bonus_reward": torch.full_like(read.columns["rew"], 5.0)}


def test_returns_of_each_group_by_hand():
    prepared = two_groups().collect()
    # task: 1 + 10, 2 + 15; style: 4 + 10, 14 + 15
    assert prepared.returns[:, 0].tolist() == [[11.0, 14.0], [17.0, 29.0]]


@pytest.mark.parametrize("per_mini_batch", [False, True])
def test_advantages_are_normalised_by_group_and_then_weighed(per_mini_batch):
    # task: 1 and -3 become 1 and -1; style: 4 and 9 become -1 and 1; weights 1 and 0.25
    weights = {"style": 0.25}
    parts = two_groups(reward_group_weights=weights, normalize_advantage_per_mini_batch=per_mini_batch)
    prepared = parts.collect()
    if per_mini_batch:
        assert prepared.advantage[:, 0].tolist() == [[1.0, 4.0], [-3.0, 9.0]]
    _, inter_vars, _ = parts.ppo.compute_losses(whole_minibatch(parts.ppo, prepared))
    assert sorted(inter_vars["advantage"].tolist()) == pytest.approx([-0.75, 0.75])
    # the first step's is the positive one
    first = inter_vars["minibatch"]["obs"]["obs"][:, 0] == 10.0
    assert inter_vars["advantage"][first].item() == pytest.approx(0.75)


def test_value_losses_add_up_and_each_group_is_explained():
    parts = two_groups(use_clipped_value_loss=False)
    losses, _, stats = parts.ppo.compute_losses(whole_minibatch(parts.ppo, parts.collect()))
    # task errors -1 and 3, style errors -4 and -9: mean of 1 + 16 and 9 + 81
    assert losses["value_loss"][1].item() == pytest.approx((17.0 + 90.0) / 2.0)
    # task: residuals 1, -3 have variance 4, returns 11, 17 have 9; style: 4, 9 have 6.25, returns 14, 29 have 56.25
    assert stats["explained_variance_task"].item() == pytest.approx(1.0 - 4.0 / 9.0)
    assert stats["explained_variance_style"].item() == pytest.approx(1.0 - 6.25 / 56.25)
    assert stats["explained_variance"].item() == pytest.approx((5.0 / 9.0 + 50.0 / 56.25) / 2.0)


def test_a_group_may_have_several_rewards_and_those_of_terms():
    groups = {"task": ("env", "upright"), "explore": ("bonus_reward",)}
    info = {"upright": [4.0, 14.0]}
    parts = hand_worked([0, 0, 0], [1, 2], info=info, num_values=2, reward_groups=groups, terms=[Bonus()], **HAND)
    prepared = parts.collect()
    assert prepared.returns[:, 0].tolist() == [[5.0, 5.0], [16.0, 5.0]]
    numbers = parts.ppo.update(prepared, order())
    assert float(numbers["reward_group_task"]) == 10.5 and float(numbers["reward_group_explore"]) == 5.0
    assert float(numbers["bonus_reward"]) == 5.0


def test_one_group_needs_no_second_value():
    parts = hand_worked([10, 20, 30], [1, 2], info={"upright": [4.0, 14.0]}, reward_groups={"a": ("upright",)}, **HAND)
    assert parts.collect().returns[:, 0].tolist() == [14.0, 29.0]


def test_without_groups_every_value_is_of_the_one_reward():
    parts = hand_worked([10, 20, 30], [1, 2], num_values=2, **HAND)
    prepared = parts.collect()
    assert prepared.returns[:, 0].tolist() == [[11.0, 11.0], [17.0, 17.0]]
    assert prepared.advantage[:, 0].tolist() == pytest.approx([1.0, -1.0])
    numbers = parts.ppo.update(prepared, order())
    assert float(numbers["explained_variance"]) == pytest.approx(5.0 / 9.0, rel=1e-4)


def test_a_bad_number_in_a_sample_that_does_not_count_stays_there():
    groups = RewardGroups(TWO, {}, 2)
    valid = torch.tensor([True, True, False])
    advantage = torch.tensor([[1.0, 4.0], [-3.0, 9.0], [float("nan"), float("inf")]])
    assert groups.combined(advantage, valid).tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "num_values", "message"),
    [
        (TWO, 1, r"2 reward groups \['task', 'style'\] want one value each, the policy predicts 1"),
        ({"task": ("env",)}, 2, "PolicyConfig.num_values=1"),
        ({"task": ()}, 1, "reward group 'task' is empty"),
        ({"task": ("env", "env")}, 1, "names a reward twice"),
    ],
)
def test_groups_that_cannot_work_are_refused_at_construction(groups, num_values, message):
    with pytest.raises(ValueError, match=message):
        hand_worked([0, 0], [1], num_values=num_values, reward_groups=groups)


def test_unknown_rewards_are_named():
    info = {"upright": [4.0, 14.0]}
    groups = {"task": ("env", "uprigth")}
    parts = hand_worked([0, 0, 0], [1, 2], info=info, reward_groups=groups)
    message = r"the rollout has no reward 'uprigth'. Did you mean 'upright'\? Available: 'env', 'upright'"
    with pytest.raises(KeyError, match=message):
        parts.ppo.check_rollout(2, 1, parts.collector.columns())
    with pytest.raises(KeyError, match=message):
        parts.collect()
    with_terms = hand_worked([0, 0, 0], [1, 2], info=info, reward_groups=groups, terms=[Bonus()])
    with_terms.ppo.check_rollout(2, 1, parts.collector.columns())
    with pytest.raises(KeyError, match="'bonus_reward'"):
        with_terms.collect()


def test_a_reward_that_nobody_counts_is_refused():
    parts = hand_worked([0, 0, 0], [1, 2], reward_groups={"task": ("env",)}, terms=[Bonus()])
    with pytest.raises(ValueError, match="'bonus_reward' is in none of reward_groups"):
        parts.collect()


@pytest.mark.parametrize("spec", [TensorSpec(shape=(3,)), TensorSpec(dtype="bool")])
def test_a_reward_is_one_real_number(spec):
    with pytest.raises(ValueError, match="reward 'feet' must be one real number per env"):
        RewardGroups({"task": ("feet",)}, {}, 1).check({"info": {"feet": spec}}, added=())


def test_weights_of_groups_are_those_of_the_config():
    config = PPOConfig(reward_groups=TWO, reward_group_weights={"style": 2})
    assert RewardGroups(config.reward_groups, config.reward_group_weights, 2).weights == (1.0, 2.0)
