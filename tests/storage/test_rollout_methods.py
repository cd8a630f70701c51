"""What a rollout does for a hand-written loop: records, returns, minibatches and statistics as methods."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from storage_steps import columns, fill

from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.data.transition import transition_columns
from striderl.storage import minibatches
from striderl.storage.rollout import RolloutStorage
from striderl.storage.rollout_presets import ActionLabelRollout, own_action

SPEC = ObsSpec(
    {
        "joints": ComponentSpec(shape=(2,)),
        "command": ComponentSpec(),
        "terrain": ComponentSpec(shape=(2,), group="critic"),
    }
)
VECTOR = TensorSpec(shape=(1,))
POLICY = {"log_prob": TensorSpec(), "value": TensorSpec(), "dist": {"mean": VECTOR, "std": VECTOR}, "memo": {}}
BOX = BoxSpec(shape=(1,), low=-1.0, high=1.0)


def storage(num_steps: int = 2, spec: ObsSpec = SPEC, policy: Any = POLICY, **more: Any) -> RolloutStorage:
    return RolloutStorage(transition_columns(spec, BOX, {}, policy), num_steps, 2, **more)


def record(number: float = 0.0, *, value: float = 0.0, **fields: Any) -> Any:
    """A filled-in record of two envs."""
    made = RolloutStorage.Transition()
    made.observations = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]) + number
    made.critic_observations = torch.tensor([[7.0, 8.0], [9.0, 10.0]])
    made.actions = torch.tensor([[0.1], [0.2]])
    made.rewards = torch.tensor([1.0, 2.0])
    made.dones = torch.tensor([0, 0])
    made.values = torch.full((2, 1), value)
    made.actions_log_prob = torch.tensor([[-1.0], [-2.0]])
    made.action_mean, made.action_sigma = torch.zeros(2, 1), torch.ones(2, 1)
    for name, column in fields.items():
        assert hasattr(made, name)
        setattr(made, name, column)
    return made


# -- records -----------------------------------------------------------------------------------------------------------


def test_a_record_lands_in_the_columns():
    rollout = storage()
    made = record(dones=torch.tensor([1, 1]), time_outs=torch.tensor([False, True]))
    rollout.add_transitions(made)
    data = rollout.data
    assert data["obs"]["joints"][0].tolist() == [[1.0, 2.0], [4.0, 5.0]]
    assert data["obs"]["command"][0].tolist() == [3.0, 6.0]
    assert data["obs"]["terrain"][0].tolist() == [[7.0, 8.0], [9.0, 10.0]]
    assert data["rew"][0].tolist() == [1.0, 2.0]
    assert data["terminated"][0].tolist() == [True, False] and data["truncated"][0].tolist() == [False, True]
    assert data["valid"][0].tolist() == [True, True]
    assert data["policy"]["log_prob"][0].tolist() == [-1.0, -2.0] and data["policy"]["value"][0].tolist() == [0.0, 0.0]
    assert data["policy"]["dist"]["std"][0].tolist() == [[1.0], [1.0]]
    made.clear()
    assert made.observations is None and made.time_outs is None


def test_components_may_come_by_name():
    rollout = storage()
    named = {"command": torch.tensor([3.0, 6.0]), "joints": torch.zeros(2, 2)}
    rollout.add_transitions(record(observations=named, critic_observations={"terrain": torch.ones(2, 2), "more": None}))
    assert rollout.data["obs"]["command"][0].tolist() == [3.0, 6.0]
    assert rollout.data["obs"]["terrain"][0].tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"rewards": None}, ValueError, "the transition has no rewards"),
        ({"values": None}, ValueError, "has no values"),
        ({"action_sigma": None}, ValueError, "has no action_sigma"),
        ({"critic_observations": None}, ValueError, "has no critic_observations"),
        ({"observations": torch.zeros(2, 4)}, ValueError, r"wants shape \[N, 3\] for \['joints', 'command'\]"),
        ({"observations": {"joints": torch.zeros(2, 2)}}, KeyError, r"has no component \['command'\]"),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_stored(fields, error, message):
    rollout = storage()
    with pytest.raises(error, match=message):
        rollout.add_transitions(record(**fields))
    assert len(rollout) == 0


def test_a_distribution_that_is_no_gaussian_is_refused():
    rollout = storage(policy={**POLICY, "dist": {"log_probs": VECTOR}})
    with pytest.raises(ValueError, match=r"describe a Gaussian, this storage keeps \['log_probs'\]"):
        rollout.add_transitions(record())


def test_subclasses_take_records_too():
    made = ActionLabelRollout(transition_columns(SPEC, BOX, {}, POLICY), 2, 2, label=own_action)
    made.add_transitions(record())
    assert torch.equal(made.data["action_labels"][0], made.data["act"][0])


# -- returns -----------------------------------------------------------------------------------------------------------


def test_returns_by_hand():
    # env 0: V = 10, 20, then 30; rewards 1, 1; gamma 0.5, lambda 0.5: delta = 1, -4; A = 1 - 0.25 · 4 = 0, -4
    # env 1 falls in the first step, rewards 2, 2: delta = 2 - 10 = -8, then 2 + 15 - 20 = -3
    rollout = storage()
    rollout.add_transitions(record(value=10.0, dones=torch.tensor([0, 1])))
    with pytest.raises(ValueError, match="wants a full rollout"):
        rollout.compute_returns(torch.full((2,), 30.0), 0.5, 0.5)
    rollout.add_transitions(record(value=20.0))
    returns, advantages = rollout.compute_returns(torch.full((2, 1), 30.0), 0.5, 0.5)
    assert advantages.tolist() == [[0.0, -8.0], [-4.0, -3.0]]
    assert returns.tolist() == [[10.0, 2.0], [16.0, 17.0]]
    assert rollout.targets["returns"] is returns
    rollout.clear()
    assert rollout.targets == {}


def test_time_outs_are_worth_their_final_observation_where_it_is_known():
    # the clock ends the first step of env 1: V(s_t) = 10 stands for what followed, or the given 40
    def filled(**more: Any) -> RolloutStorage:
        rollout = storage(**more)
        final = {name: torch.zeros(2, *component.shape) for name, component in SPEC.items()} if more else None
        ended = torch.tensor([0, 1])
        rollout.add_transitions(record(value=10.0, dones=ended, time_outs=ended, final_observations=final))
        rollout.add_transitions(record(value=20.0, final_observations=final))
        return rollout

    last = torch.full((2,), 30.0)
    returns, _ = filled().compute_returns(last, 0.5, 0.0)
    assert returns[0].tolist() == [1 + 0.5 * 20, 2 + 0.5 * 10]
    known = filled(final_obs=SPEC, pool_size=3)
    returns, _ = known.compute_returns(last, 0.5, 0.0, final_values=torch.tensor([40.0, 0.0, 0.0, 0.0]))
    assert returns.tolist() == [[1 + 0.5 * 20, 2 + 0.5 * 40], [1 + 0.5 * 30, 2 + 0.5 * 30]]
    assert known.compute_returns(last, 0.5, 0.0)[0][0].tolist() == [11.0, 7.0]
    with pytest.raises(ValueError, match="keeps no final observations"):
        filled().compute_returns(last, 0.5, 0.0, final_values=torch.zeros(4))


def test_several_values_have_several_returns():
    rollout = storage(1, policy={**POLICY, "value": TensorSpec(shape=(2,))})
    rollout.add_transitions(record(values=torch.tensor([[1.0, 2.0], [3.0, 4.0]])))
    returns, _ = rollout.compute_returns(torch.tensor([[10.0, 20.0], [30.0, 40.0]]), 0.5, 0.9)
    assert returns[0].tolist() == [[6.0, 11.0], [17.0, 22.0]]


# -- minibatches -------------------------------------------------------------------------------------------------------


def order() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_methods_give_what_the_functions_give_and_the_targets():
    rollout = storage()
    for value in (10.0, 20.0):
        rollout.add_transitions(record(value, value=value))
    rollout.compute_returns(torch.zeros(2), 0.9, 0.9)
    rows = list(rollout.mini_batch_generator(2, 3, order()))
    wanted = list(minibatches.mini_batch_generator(rollout, 2, 3, order(), targets=rollout.targets))
    assert len(rows) == 6
    for one, other in zip(rows, wanted):
        assert torch.equal(one.returns, other.returns) and torch.equal(one.obs.joints, other.obs.joints)
    flat = rollout.targets["returns"].flatten().tolist()
    assert sorted(torch.cat([rows[0].returns, rows[1].returns]).tolist()) == sorted(flat)
    state = {"memory": torch.tensor([[1.0], [2.0]])}
    sequences = list(rollout.recurrent_mini_batch_generator(2, 1, order(), initial_state=state))
    assert [part.steps.advantages.shape for part in sequences] == [(2, 1), (2, 1)]
    assert sorted(part.state["memory"].item() for part in sequences) == [1.0, 2.0]
    part = rollout.get_minibatch_from_indices(slice(0, 1), slice(1, 2))
    assert part.steps.returns.item() == rollout.targets["returns"][0, 1].item()
    assert rollout.get_statistics().mean_reward.item() == 1.5


def test_the_order_is_torchs_own_unless_given():
    rollout = fill(RolloutStorage(columns(), 6, 4), 6)

    def drawn() -> list[float]:
        return [number for part in rollout.mini_batch_generator(2, 1) for number in part.rew.tolist()]

    torch.manual_seed(3)
    first = drawn()
    assert drawn() != first
    torch.manual_seed(3)
    assert drawn() == first
    assert sorted(first) == sorted(rollout.data["rew"].flatten().tolist())
    assert RolloutStorage.reccurent_mini_batch_generator is RolloutStorage.recurrent_mini_batch_generator
