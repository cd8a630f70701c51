"""The facade repeats the critic's decisions, asks for the critic's vector, and takes arrays as well as tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from policy_cases import build, flat

from striderl.data.actions import BoxSpec
from striderl.data.specs import ObsSpec
from striderl.policies.estimate import Estimate
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.presets.base import ActorCritic, ActorCriticRecurrent
from striderl.policies.transfer.load import TransferError

SPEC = ObsSpec.from_flat(5, {"imu": 3, "velocity": 2})
ESTIMATE = Estimate(obs_components=("imu",), target_components=("velocity",), replace_state_prob=0.5)
SMALL = {"actor_hidden_dims": (8,), "critic_hidden_dims": (8,)}


def deciding_critic() -> StatefulPolicy:
    torch.manual_seed(0)
    return StatefulPolicy(Policy(SPEC, BoxSpec(shape=(2,)), PolicyConfig(critic=(ESTIMATE,), **SMALL)), seed=1)


# -- decisions of the critic -------------------------------------------------------------------------------------------


def test_values_follow_the_decisions_of_the_step():
    model, obs = deciding_critic(), torch.randn(32, 5)
    settled = model.evaluate(obs)
    model.act(obs)
    replaced = model.memo["critic/0_Estimate/replace"]
    assert 0 < int(replaced.sum()) < 32
    wanted = model.policy(SPEC.split(obs), {}, model.memo).value
    values = model.evaluate(obs).squeeze(-1)
    assert torch.equal(values, wanted)
    # where the critic read the truth, the value is another than with the estimate, and the same elsewhere
    assert torch.equal(values != settled.squeeze(-1), ~replaced)


def test_a_minibatch_repeats_the_decisions_it_is_given():
    model, obs = deciding_critic(), torch.randn(4, 8, 5)
    actions, memos, values = [], [], []
    for step in range(4):
        actions.append(model.act(obs[step]))
        memos.append(model.memo)
        values.append(model.evaluate(obs[step]))
    memo = {name: torch.stack([kept[name] for kept in memos]) for name in memos[0]}
    assert torch.allclose(model.evaluate(obs, memo=memo), torch.stack(values), atol=1e-6)
    _, _, again = model.evaluate_actions(obs, torch.stack(actions), memo=memo)
    assert torch.allclose(again, torch.stack(values), atol=1e-6)


def test_decisions_of_other_envs_are_not_taken():
    model = deciding_critic()
    model.act(torch.randn(3, 5))
    with pytest.raises(ValueError, match=r"must repeat the decisions \['critic/0_Estimate/replace'\]"):
        model.evaluate(torch.randn(7, 5))


# -- what the critic sees ----------------------------------------------------------------------------------------------


def test_the_actors_vector_is_not_valued_in_another_layout():
    model = ActorCritic(9, 9, 2, obs_segments={"a": 4, "b": 5}, critic_obs_segments={"c": 5, "d": 4}, **SMALL)
    with pytest.raises(ValueError, match=r"critic sees 9 numbers \(c 5, d 4\).*actor 9 .*give critic_observations"):
        model.forward(torch.zeros(2, 9))
    swapped = ActorCritic(8, 8, 2, obs_segments={"a": 4, "b": 4}, critic_obs_segments={"b": 4, "a": 4}, **SMALL)
    with pytest.raises(ValueError, match="give critic_observations"):
        swapped.forward(torch.zeros(2, 8))


@pytest.mark.parametrize("segments", [None, {"a": 4, "b": 5}])
def test_the_same_layout_is_shared(segments):
    model = ActorCritic(9, 9, 2, obs_segments=segments, critic_obs_segments=segments, **SMALL)
    obs = torch.randn(2, 9)
    assert torch.equal(model.forward(obs)[1], model.forward(obs, obs)[1])


# -- arrays ------------------------------------------------------------------------------------------------------------


def test_arrays_are_read_like_tensors():
    model = build(ActorCritic)
    obs, critic_obs = flat(4)
    wanted, value = model.act_inference(obs), model.evaluate(critic_obs)
    array = obs.double().numpy()
    array.setflags(write=False)
    assert torch.equal(model.act_inference(array), wanted)
    parts = {name: part.numpy() for name, part in model.policy.actor_inputs.split(obs).items()}
    assert torch.equal(model.act_inference(parts), wanted)
    assert torch.equal(model.evaluate(critic_obs.numpy()), value)
    with pytest.raises(TypeError, match="the observation is a list; wanted a tensor or an array"):
        model.act(obs.tolist())


@pytest.mark.parametrize("dones", [[True, False, True], np.array([1, 0, 1]), np.array([1.0, 0.0, 2.0])])
def test_dones_may_be_a_list_or_an_array(dones):
    model = ActorCriticRecurrent(5, 7, 2, rnn_hidden_size=4, **SMALL)
    model.act(torch.randn(3, 5))
    model.reset(dones)
    hidden = model.get_hidden_states().actor.hidden
    assert (hidden[:, [0, 2]] == 0).all() and (hidden[:, 1] != 0).any()


# -- weights -----------------------------------------------------------------------------------------------------------


def test_weights_that_do_not_fit_are_shown_as_a_table():
    model = ActorCritic(5, None, 2, **SMALL)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(TransferError, match=r"actor_body.model.0.weight +\[8, 6\] +\[8, 5\] \(obs 5\)"):
        model.load_state_dict(ActorCritic(6, None, 2, **SMALL).state_dict())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    other = ActorCritic(5, None, 2, **SMALL)
    model.load_state_dict(other.state_dict())
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
    model.load_state_dict({}, strict=False)
