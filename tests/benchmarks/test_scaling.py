"""The scaling benchmark: its work runs, its table says what was measured. Nothing here asserts how long it takes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import scaling  # noqa: E402
import scaling_work  # noqa: E402

sys.path.remove(str(BENCHMARKS))  # or `import data` would find a benchmark


@pytest.mark.parametrize("kind", ["uniform", "3-step", "prioritized"])
def test_a_replay_is_sampled(kind: str) -> None:
    work = scaling_work.replay(kind, 100, 8, "cpu")
    work.call()
    assert work.items == 8


def test_rollouts_and_updates_count_their_samples() -> None:
    rollout = scaling_work.rollout(4, 3, 8, "cpu", "eager")
    update = scaling_work.update(4, 3, 8, 2, "cpu", "eager")
    for work in (rollout, rollout, update, update):
        work.call()
    assert (rollout.items, update.items) == (4 * 3, 4 * 3 * scaling_work.EPOCHS)


def test_every_point_is_timed_in_every_round() -> None:
    curve = scaling.Curve(
        plot="p", name="n", x="rows", item="row", sizes=(10, 20),
        work=lambda size, device, mode: scaling_work.Work(lambda: sum(range(1000)), size),
    )  # fmt: skip
    measured = scaling._measured(curve, "cpu", "eager", rounds=3)
    assert [(point["size"], point["items"], len(point["samples"])) for point in measured["points"]] == [
        (10, 10, 3),
        (20, 20, 3),
    ]
    assert all(point["seconds"] == sorted(point["samples"])[1] > 0.0 for point in measured["points"])


def test_the_table_shows_both_ends_of_a_curve() -> None:
    # 10 rows in 20 µs are 2 µs each; 1,000 rows in 400 µs are 0.4 µs each: 100 times the rows, 20 times the time
    points = [{"size": 10, "items": 10, "seconds": 2e-5}, {"size": 1000, "items": 1000, "seconds": 4e-4}]
    report = {
        "date": "today", "device": "CPU", "mode": "auto", "clock": "cpu", "versions": {"striderl": "1"},
        "machine": {"cpu": "some", "system": "Linux", "python": "3", "load_before": 0.1},
        "curves": [{"plot": "p", "name": "sample", "x": "rows", "item": "row", "points": points}],
    }  # fmt: skip
    row = "| sample | rows | 10: 2 µs per row | 1,000: 0.4 µs per row | 100 × | 20 × |"
    assert row in scaling.to_markdown(report).splitlines()
