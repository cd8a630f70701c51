"""What recordings read: inputs side by side in memory that stays, columns at their own addresses where they last."""

from __future__ import annotations

import pytest
import torch

from striderl.data.specs import ComponentSpec, TensorSpec
from striderl.execution.epochs import OnRows, ShuffledMinibatches
from striderl.execution.graphed import MOST, MOST_IN_ALL, Graphs, StaticInputs, addresses, together
from striderl.execution.modes import Eager, Graphed
from striderl.execution.parameter_groups import GroupConfig, ParameterGroup
from striderl.execution.updater import Updater
from striderl.storage.rollout import RolloutStorage


def test_inputs_of_one_kind_lie_side_by_side_and_are_filled_in_order():
    inputs = {
        "obs": torch.arange(6.0).view(3, 2),
        "flags": {"a": torch.tensor([True, False, True])},
        "rew": torch.ones(3),
    }
    static = StaticInputs(inputs)
    assert static.values["obs"].untyped_storage().data_ptr() == static.values["rew"].untyped_storage().data_ptr()
    assert torch.equal(static.values["obs"], inputs["obs"]) and torch.equal(
        static.values["flags"]["a"], inputs["flags"]["a"]
    )
    static.fill(
        [torch.full((3, 2), 7.0), torch.tensor([False, True, False]), torch.full((3,), 9.0, dtype=torch.float64)]
    )
    assert static.values["obs"].eq(7.0).all() and static.values["rew"].eq(9.0).all()
    assert static.values["flags"]["a"].tolist() == [False, True, False]


def test_columns_that_last_are_read_in_place_and_the_rest_is_copied_to_one_place():
    graphs = Graphs()
    columns = {"obs": torch.rand(4, 2), "returns": torch.rand(4)}
    held = graphs.hold("key", columns, frozenset({"obs"}))
    assert held["obs"] is columns["obs"] and held["returns"] is not columns["returns"]
    later = graphs.hold("key", {"obs": columns["obs"], "returns": torch.ones(4)}, frozenset({"obs"}))
    assert later["returns"] is held["returns"] and later["returns"].eq(1.0).all()
    assert addresses(later) == addresses(held)


def test_inputs_of_another_number_are_refused():
    static = StaticInputs({"obs": torch.zeros(3, 2), "rew": torch.zeros(3)})
    with pytest.raises(ValueError, match="recorded with 2 tensors, found 3"):
        static.fill([torch.zeros(3, 2), torch.zeros(3), torch.zeros(3)])


def test_recordings_and_held_columns_do_not_pile_up(monkeypatch):
    graphs = Graphs()
    monkeypatch.setattr(graphs, "make", lambda inputs, prepare, body, in_place=False: object())
    first = graphs.record("first", torch.zeros(1), None, None)
    for key in range(MOST_IN_ALL - 1):
        graphs.record(key, torch.zeros(1), None, None)
    assert graphs.record("first", torch.zeros(1), None, None) is first
    newest = graphs.record("newest", torch.zeros(1), None, None)
    assert graphs.record("newest", torch.zeros(1), None, None) is newest
    assert graphs.record("first", torch.zeros(1), None, None) is not first
    assert sum(len(each) for each in graphs.graphs_by_key.values()) == MOST_IN_ALL
    sizes = [graphs.record("sizes", torch.zeros(size), None, None) for size in range(1, MOST + 2)]
    assert graphs.record("sizes", torch.zeros(MOST + 1), None, None) is sizes[-1]
    assert graphs.record("sizes", torch.zeros(1), None, None) is not sizes[0]
    for size in range(1, 3 * MOST):
        graphs.hold("key", {"obs": torch.zeros(size)}, frozenset())
    assert len(graphs.held) == MOST


def test_rows_make_the_same_minibatches_as_gathering():
    columns = {"x": {"a": torch.arange(20.0).view(10, 2)}, "y": torch.arange(10)}
    dims = {"x": 0, "y": 0}

    def minibatches():
        order = torch.Generator().manual_seed(3)
        return ShuffledMinibatches(columns, dims, num_mini_batches=3, num_epochs=2, generator=order, padded=True)

    gathered, taken = list(minibatches()), minibatches()
    function = OnRows(lambda minibatch: minibatch, tuple(dims.items()))
    again = [function({"columns": taken.columns, "rows": rows}) for rows in taken.rows()]
    assert len(gathered) == len(again) == 6
    for one, other in zip(gathered, again):
        assert torch.equal(one["x"]["a"], other["x"]["a"]) and torch.equal(one["y"], other["y"])
    assert [rows.tolist() for rows in taken.rows()] == [rows.tolist() for rows in taken.rows()]


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_written_out_adam_takes_the_steps_of_torch(optimizer, decay):
    config = GroupConfig(optimizer=optimizer, learning_rate=0.01, max_grad_norm=1.0, weight_decay=decay, eps=1e-5)
    torch.manual_seed(0)
    begin = torch.randn(50)
    groups = [ParameterGroup([torch.nn.Parameter(begin.clone())], config) for _ in range(2)]
    groups[1].write_out()
    for number in range(6):
        grad = torch.randn(50) * 3.0
        if number == 2:
            grad[4] = torch.nan
        for group in groups:
            group.set_grad([grad])
        norms = [group.step() for group in groups]
        torch.testing.assert_close(norms[0], norms[1], equal_nan=True)
        torch.testing.assert_close(groups[0].flat.flat, groups[1].flat.flat, rtol=1e-5, atol=1e-6)
    assert [int(group.num_skipped) for group in groups] == [1, 1]
    assert groups[0].state_dict()["count"] == groups[1].state_dict()["count"] == 5.0


def test_depth_images_are_stored_as_bytes():
    columns = {"obs": {"depth": ComponentSpec(shape=(64, 64), dtype="uint8")}, "rew": TensorSpec()}
    storage = RolloutStorage(columns, 4, 3)
    assert storage.arena.num_bytes == 4 * 3 * (64 * 64 + 4)


class Noting(Eager):
    """Runs what would be recorded, and notes under which keys."""

    records = True

    def __init__(self):
        self.keys = []

    def play(self, key, inputs, prepare, body):
        self.keys.append(key)
        return body(inputs)


def test_steps_are_recorded_anew_when_a_parameter_is_frozen():
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 2)
    updater = Updater({"policy": ParameterGroup(network.parameters(), GroupConfig(optimizer="SGD", learning_rate=0.1))})
    updater.mode = mode = Noting()

    def losses(minibatch):
        return {"size": (1.0, network(minibatch).square().mean())}, {}

    for frozen in (False, True, True, False):
        network.weight.requires_grad_(not frozen)
        weight, bias = network.weight.detach().clone(), network.bias.detach().clone()
        updater.step(losses, torch.randn(5, 3))
        assert torch.equal(network.weight, weight) == frozen and not torch.equal(network.bias, bias)
    assert mode.keys[0] == mode.keys[3] != mode.keys[1] == mode.keys[2]


def not_recordable(inputs, prepare, body, in_place=False):
    prepare(inputs)
    raise RuntimeError("operation not permitted when stream is capturing\nand more")


@pytest.mark.parametrize("strict", [False, True])
def test_what_cannot_be_recorded_goes_on_step_by_step_with_one_warning(strict, monkeypatch, caplog):
    runs = []
    for mode in (Eager(), Graphed(strict, fused=False)):
        torch.manual_seed(0)
        network = torch.nn.Linear(3, 2)
        updater = Updater({"policy": ParameterGroup(network.parameters(), GroupConfig(learning_rate=0.1))})
        updater.mode = mode
        if isinstance(mode, Graphed):
            monkeypatch.setattr(mode.graphs, "make", not_recordable)

        def losses(minibatch, network=network):
            return {"size": (1.0, network(minibatch["x"]).square().mean())}, {}

        columns = {"x": torch.randn(12, 3, generator=torch.Generator().manual_seed(1))}
        order = torch.Generator().manual_seed(2)
        minibatches = ShuffledMinibatches(columns, {"x": 0}, num_mini_batches=3, num_epochs=2, generator=order)
        if mode.records and strict:
            with pytest.raises(RuntimeError, match="not permitted"):
                updater.run(losses, minibatches)
            return
        progress = updater.run(losses, minibatches)
        runs.append([*network.parameters(), progress.mean["size"], progress.first["size"]])
        assert progress.num_steps == 6
    for one, other in zip(*runs):
        torch.testing.assert_close(one, other)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1 and "operation not permitted when stream is capturing. Mend" in warnings[0]


def test_a_failure_inside_of_a_larger_recording_is_left_to_who_makes_it():
    mode = Graphed(fused=False)

    def fails(inputs):
        raise RuntimeError("operation not permitted when stream is capturing")

    with together(), pytest.raises(RuntimeError, match="not permitted"):
        mode.play("key", torch.zeros(1), fails, fails)
    assert not mode.given_up
