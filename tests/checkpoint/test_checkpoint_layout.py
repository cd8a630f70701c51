"""Promise 6: a checkpoint for another layout is refused by name, with a readable list of differences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from layout_mutations import ACTION, HYBRID, HYBRID_SWAPPED, in_order, layout, mutate_layouts

from striderl.checkpoint.errors import CheckpointCorrupt, LayoutMismatch
from striderl.checkpoint.layout import check_layout, compare
from striderl.checkpoint.store import CheckpointStore
from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec


def test_every_mutation_is_refused_by_name():
    mutate_layouts().check(30)


def test_parts_of_a_hybrid_action_swapped():
    with pytest.raises(LayoutMismatch, match="action 'gait' is at position 1, was at position 0"):
        check_layout(layout(action=HYBRID), layout(action=HYBRID_SWAPPED))


def test_a_swap_beside_another_change_is_still_seen():
    both = {**in_order("joint_velocity", "joint_position", "command"), "new": ComponentSpec(shape=(1,))}
    lines = compare(layout(), layout(both, normalized=["joint_position"]))
    assert lines[-1].startswith(
        "the order of the observations that both have is ['joint_velocity', 'joint_position'"
    ), lines


def test_the_same_layout_passes_also_after_saving(folder):
    store = CheckpointStore(folder)
    store.save({}, step=1, layout=layout())
    assert compare(store.load().layout, layout()) == []
    check_layout(store.load().layout, layout())


def test_infinite_bounds_are_equal_to_themselves(folder):
    unbounded = layout(action=BoxSpec(shape=(3,)))
    CheckpointStore(folder).save({}, step=1, layout=unbounded)
    check_layout(CheckpointStore(folder).load().layout, unbounded)


def test_one_bound_for_all_equals_the_same_for_each():
    assert layout(action=replace(ACTION, low=(-1.0, -1.0, -1.0))) == layout()


def test_a_checkpoint_without_layout_is_refused():
    with pytest.raises(LayoutMismatch, match="carries no layout"):
        check_layout(None, layout())


def test_something_else_is_not_a_layout():
    for wrong in ({"observations": [1]}, {"observations": 3}, {"observations": [{}]}):
        with pytest.raises(CheckpointCorrupt, match="not one that describe"):
            check_layout(wrong, layout())


def test_unknown_names_are_refused():
    with pytest.raises(KeyError, match="joint_position"):
        layout(normalized=["joint_positions"])
    with pytest.raises(KeyError, match="no component or group 'speed'"):
        layout(bounds={"speed": (0, 1)})


def test_further_entries_are_compared_too():
    assert compare({**layout(), "rate": 50}, {**layout(), "rate": 100}) == ["rate is 100, was 50"]
