"""Hidden-state tuples: the nesting older loops expect, and back without loss."""

from __future__ import annotations

import pickle

import pytest
import torch
from policy_cases import CASES, build

from striderl.data.actions import BoxSpec
from striderl.data.named_tuples import is_namedarraytuple
from striderl.data.specs import ObsSpec
from striderl.policies.facade.memory import (
    ActorCriticHiddenState,
    AdaptorActorHiddenState,
    EstimatorActorHiddenState,
    LstmHiddenState,
    actor_state,
    critic_state,
    from_hidden_states,
    to_hidden_states,
)
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.presets.base import ActorCriticRecurrent
from striderl.policies.presets.state import PrivilegeStateAcRecurrent, StateAcRecurrent
from striderl.policies.stages import Remember

RECURRENT = [kind for kind in CASES if "rnn_type" in CASES[kind]]


def random_state(policy: Policy, num_envs: int = 3) -> dict[str, torch.Tensor]:
    return {name: torch.randn(num_envs, *spec.shape) for name, spec in policy.state_spec().items()}


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_there_and_back(kind, rnn_type):
    policy = build(kind, rnn_type=rnn_type, rnn_num_layers=2).policy
    state = random_state(policy)
    hidden = to_hidden_states(policy, state)
    back = from_hidden_states(policy, hidden)
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)
    again = {**actor_state(policy, hidden), **critic_state(policy, hidden)}
    parts = {**actor_state(policy, hidden.actor), **critic_state(policy, hidden.critic)}
    assert again.keys() == parts.keys() == state.keys()


def test_layers_come_first_as_in_older_libraries():
    policy = build(ActorCriticRecurrent, rnn_num_layers=2).policy
    state = random_state(policy)
    hidden = to_hidden_states(policy, state)
    assert isinstance(hidden, ActorCriticHiddenState) and isinstance(hidden.actor, LstmHiddenState)
    assert hidden.actor.hidden.shape == hidden.critic.cell.shape == (2, 3, 5)
    assert torch.equal(hidden.actor.hidden[1, 2], state["actor/0_Remember/hidden"][2, 1])
    assert torch.equal(hidden[:, 1:2].critic.cell, hidden.critic.cell[:, 1:2]), "one index slices every leaf"


def test_a_gru_has_a_bare_tensor():
    policy = build(ActorCriticRecurrent, rnn_type="gru").policy
    assert to_hidden_states(policy, random_state(policy)).actor.shape == (1, 3, 5)


def test_estimator_and_adaptor_wrap_the_actor():
    policy = build(StateAcRecurrent).policy
    actor = to_hidden_states(policy, random_state(policy)).actor
    assert isinstance(actor, EstimatorActorHiddenState)
    assert isinstance(actor.estimator, LstmHiddenState) and isinstance(actor.actor, LstmHiddenState)

    policy = build(PrivilegeStateAcRecurrent).policy
    hidden = to_hidden_states(policy, random_state(policy))
    assert isinstance(hidden.actor, AdaptorActorHiddenState)
    assert isinstance(hidden.actor.actor, EstimatorActorHiddenState)
    assert isinstance(hidden.critic, LstmHiddenState)


def test_with_the_actors_memory_there_is_no_second_one():
    policy = build(StateAcRecurrent, use_actor_rnn=True, replace_state_prob=0.0, estimator_obs_components=[]).policy
    assert isinstance(to_hidden_states(policy, random_state(policy)).actor, LstmHiddenState)


def test_torchs_own_pair_is_understood():
    policy = build(ActorCriticRecurrent).policy
    pair = (torch.randn(1, 3, 5), torch.randn(1, 3, 5))
    state = actor_state(policy, pair)
    assert torch.equal(state["actor/0_Remember/cell"][:, 0], pair[1][0])


def test_the_tuples_are_namedarraytuples_and_can_be_pickled():
    hidden = ActorCriticHiddenState(LstmHiddenState(torch.zeros(1, 2, 3), torch.ones(1, 2, 3)), None)
    assert is_namedarraytuple(hidden) and hidden[0].critic is None
    again = pickle.loads(pickle.dumps(hidden))
    assert isinstance(again, ActorCriticHiddenState) and torch.equal(again.actor.cell, hidden.actor.cell)


def test_memories_that_do_not_fit_are_named():
    config = PolicyConfig(actor=(Remember(hidden_size=3), Remember(hidden_size=3)))
    policy = Policy(ObsSpec.from_flat(4), BoxSpec(shape=(2,)), config)
    with pytest.raises(ValueError, match="'1_Remember', do not fit hidden-state tuples"):
        to_hidden_states(policy, random_state(policy))
