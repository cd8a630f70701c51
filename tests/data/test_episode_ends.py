"""Gym's `done` with its time limit in `info` as terminated and truncated, in every form that an info has."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from striderl.data.batch import Batch
from striderl.data.episode_ends import TIME_LIMIT, ends_of, split_done

LATE = {TIME_LIMIT: True}
FORMS = {
    "arrays": {TIME_LIMIT: np.array([False, True, False])},
    "numbers": {TIME_LIMIT: [0, 1, 0]},
    "tensors": {TIME_LIMIT: torch.tensor([0, 1, 0])},
    "a Batch": Batch({TIME_LIMIT: np.array([False, True, False])}),
    "a Batch of dicts": Batch([{}, LATE, {}]),
    "a list of dicts": [{}, LATE, {TIME_LIMIT: False}],
    "an array of dicts": np.array([{}, LATE, {"other": 1}], dtype=object),
    "gaps as None": {TIME_LIMIT: np.array([None, True, None], dtype=object)},
    "a column": {TIME_LIMIT: np.array([[0.0], [1.0], [0.0]])},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("convert", [np.array, torch.tensor, list])
def test_infos_of_several_envs(form: str, convert: Any) -> None:
    # env 0 fell, env 1 was stopped by the clock, env 2 goes on
    terminated, truncated = split_done(convert([True, True, False]), FORMS[form])
    assert [bool(each) for each in terminated] == [True, False, False]
    assert [bool(each) for each in truncated] == [False, True, False]
    assert torch.is_tensor(terminated) == torch.is_tensor(truncated) == (convert is torch.tensor)


@pytest.mark.parametrize(
    ("done", "info", "expected"),
    [
        (True, LATE, (False, True)),
        (1.0, {TIME_LIMIT: np.True_}, (False, True)),
        (True, {TIME_LIMIT: False}, (True, False)),  # the task ended in the very step of the limit
        (True, {TIME_LIMIT: None}, (True, False)),
        (True, {}, (True, False)),
        (True, None, (True, False)),
        (False, {TIME_LIMIT: False}, (False, False)),
        (True, namedtuple("EnvInfo", "score")(3.0), (True, False)),
    ],
)
def test_one_step(done: Any, info: Any, expected: tuple[bool, bool]) -> None:
    assert tuple(bool(each) for each in split_done(done, info)) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"done": True, "info": LATE}, (False, True)),
        ({"terminated": True, "info": LATE}, (True, False)),  # flags that are given are not overruled
        ({"terminated": True, "truncated": True, "info": LATE}, (True, True)),
        ({"terminated": False, "truncated": False, "info": LATE}, (False, False)),
        ({"done": True, "truncated": False, "info": LATE}, (True, False)),
        ({"done": True, "truncated": True}, (False, True)),
        ({"done": True, "terminated": False}, (False, True)),
        ({"done": True, "terminated": True, "info": LATE}, (True, False)),
    ],
)
def test_explicit_flags_win(given: dict[str, Any], expected: tuple[bool, bool]) -> None:
    assert tuple(bool(each) for each in ends_of(given)) == expected
    assert tuple(bool(each) for each in ends_of(Batch(given))) == expected


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"done": False, "info": LATE}, "is true in a step with done=False"),
        ({"done": [True, False], "info": [{}, LATE]}, "is true in a step with done=False"),
        ({"done": [True, False], "info": [LATE, {}, {}]}, r"wants the shape of done, \(2,\), found \(3,\)"),
        ({"done": False, "terminated": True}, "'done' contradicts"),
        ({"truncated": True}, "wants 'done', or 'terminated'"),
    ],
)
def test_contradictions_raise(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ends_of(given)
