"""What a record hands to loggers."""

from __future__ import annotations

import pytest

from striderl.training.record import Record


def test_speeds_by_hand():
    # 600 steps in 2 seconds of collecting and 1 of learning
    record = Record(
        iteration=2,
        env_steps=1200,
        num_updates=8,
        num_steps=600,
        metrics={"train/kl": 0.01},
        collection_seconds=2.0,
        learning_seconds=1.0,
    )
    assert record.numbers() == {
        "train/kl": 0.01,
        "progress/iteration": 2.0,
        "progress/env_steps": 1200.0,
        "progress/num_updates": 8.0,
        "time/collection_seconds": 2.0,
        "time/learning_seconds": 1.0,
        "time/steps_per_second": pytest.approx(200.0),
        "time/collection_steps_per_second": pytest.approx(300.0),
        "time/learning_steps_per_second": pytest.approx(600.0),
    }
    assert record.logs("train") == {"kl": 0.01}
