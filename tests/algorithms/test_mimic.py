"""The reward for following a reference: numbers by hand, ends, and PPO."""

from __future__ import annotations

import math

import pytest
import torch
from motion_cases import Drift, make_policy

from striderl.algorithms.terms.mimic import Mimic, MimicConfig
from striderl.algorithms.terms.term import Read
from striderl.data.specs import ObsSpec

SPEC = ObsSpec.from_segments({"place": 2})


def columns(following, reference, **flags):
    """One env; what followed each step and what should have."""
    following = torch.tensor(following)[:, None]
    obs = torch.cat([torch.zeros_like(following[:1]), following[:-1]])
    shape = following.shape[:2]
    nowhere = torch.zeros(shape, dtype=torch.bool)
    found = {
        "obs": {"place": obs},
        "act": torch.zeros(*shape, 1),
        "rew": torch.zeros(shape),
        "terminated": nowhere,
        "truncated": nowhere,
        "valid": ~nowhere,
        "info": {"ref_motion": torch.tensor(reference)[:, None]},
    }
    found |= {name: torch.tensor(value)[:, None] for name, value in flags.items()}
    return Read(found, {"place": following[-1]})


def term(**config):
    return Mimic(obs_spec=SPEC, config=MimicConfig(components=("place",), **config))


def test_distance_by_hand():
    # |(3, 4)| = 5 and |(0, 2)| = 2
    read = columns([[3.0, 4.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, 3.0]])
    found = term(kind="distance", weight=0.5).reward(read)["mimic_reward"]
    assert found.flatten().tolist() == [-2.5, -1.0]


def test_exp_by_hand():
    # squared differences 9 and 16 have the mean 12.5
    read = columns([[3.0, 4.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]])
    found = term(scale=0.1, weight=2.0).reward(read)["mimic_reward"]
    torch.testing.assert_close(found.flatten(), torch.tensor([2.0 * math.exp(-1.25), 2.0]))


def test_an_end_that_nobody_saw_is_paid_like_the_step_before():
    read = columns([[1.0, 0.0], [9.0, 9.0], [2.0, 0.0]], [[0.0, 0.0]] * 3, truncated=[False, True, False])
    assert term(kind="distance").reward(read)["mimic_reward"].flatten().tolist() == [-1.0, -1.0, -2.0]


def test_what_does_not_count_is_worth_nothing_and_does_no_harm():
    read = columns([[math.nan, 0.0], [2.0, 0.0]], [[0.0, 0.0]] * 2, valid=[False, True])
    found = term(kind="distance").reward(read)["mimic_reward"].flatten()
    assert found.tolist() == [0.0, -2.0]


def test_it_has_no_gradient_and_nothing_to_learn():
    mimic = term()
    mimic.check(make_policy(Drift(2)))
    assert not mimic.groups and mimic.losses({}, None) == {} and mimic.state_dict() == {}
    assert mimic.reward_names() == ("mimic_reward",) and mimic.following() == ("place",)
    read = columns([[1.0, 0.0]], [[0.0, 0.0]])
    read.columns["obs"]["place"].requires_grad_()
    assert not mimic.reward(read)["mimic_reward"].requires_grad


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "expo"}, "Did you mean 'exp'"),
        ({"kind": "distance", "scale": 2.0}, "no effect"),
        ({"scale": 0.0}, "positive"),
    ],
)
def test_wrong_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        MimicConfig(**settings)


def test_a_reference_of_another_size_is_named():
    read = columns([[1.0, 0.0]], [[0.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match=r"'ref_motion' has \[3\] numbers per step, wanted 2"):
        term().reward(read)
