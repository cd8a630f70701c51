"""Comparisons of runs: what counts as a seed, what is grouped, and when a difference may be claimed."""

from __future__ import annotations

import json

import pytest

from striderl.loggers.comparison import NOT_DISTINGUISHABLE, compare_runs, sentence, table


def write_run(root, name, *, seed, score, clip=0.2, task="cartpole", rows=((100, 0.5), (200, 1.0)), **settings):
    folder = root / name
    folder.mkdir()
    config = {"seed": seed, "env": {"task": task}, "algorithm": {"clip": clip}, **settings}
    (folder / "config.json").write_text(json.dumps(config))
    lines = [json.dumps({"step": step, "evaluate/return_mean": share * score}) for step, share in rows]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def two_groups(root, left, right):
    runs = [write_run(root, f"a{seed}", seed=seed, score=score) for seed, score in enumerate(left)]
    return runs + [write_run(root, f"b{seed}", seed=seed, score=score, clip=0.1) for seed, score in enumerate(right)]


def test_groups_are_named_by_what_differs(tmp_path):
    found = compare_runs(two_groups(tmp_path, [1.0, 2.0, 3.0, 100.0], [4.0]))
    assert [each.label for each in found.candidates] == ["cartpole, algorithm.clip=0.2", "cartpole, algorithm.clip=0.1"]
    assert found.candidates[0].estimate.point == 2.5  # the middle half of 1, 2, 3, 100
    head, rows = table(found)
    assert rows[0][:3] == ["cartpole, algorithm.clip=0.2", "4", "2.500"] and len(head) == len(rows[0])


def test_two_algorithms_are_named_by_their_names(tmp_path):
    runs = [
        write_run(tmp_path, "a", seed=0, score=1.0, algorithm_name="ppo", policy={"a": 1, "b": 1, "c": 1, "d": 1}),
        write_run(tmp_path, "b", seed=0, score=1.0, algorithm_name="a2c", policy={"a": 2, "b": 2, "c": 2, "d": 2}),
        write_run(tmp_path, "c", seed=0, score=1.0, algorithm_name="sac", policy={"a": 2, "b": 2, "c": 2, "d": 2}),
        write_run(tmp_path, "d", seed=0, score=1.0, algorithm_name="sac", policy={"a": 2, "b": 2, "c": 2, "d": 3}),
    ]
    wanted = ["cartpole, ppo", "cartpole, a2c", "cartpole, sac, policy.d=2", "cartpole, sac, policy.d=3"]
    assert [each.label for each in compare_runs(runs).candidates] == wanted


def test_a_run_given_twice_and_a_seed_trained_twice_count_once(tmp_path):
    runs = two_groups(tmp_path, [1.0, 2.0], [3.0, 4.0])
    again = write_run(tmp_path, "again", seed=1, score=4.0)  # clip 0.2 again: seed 1 has 2 and 4
    link = tmp_path / "link"
    link.symlink_to(runs[0], target_is_directory=True)
    found = compare_runs([*runs, runs[0], link, again])
    assert found.candidates[0].seeds == ("0", "1") and found.candidates[0].scores == (1.0, 3.0)
    assert any("count as one" in note for note in found.notes)


def test_what_is_logged_is_no_difference(tmp_path):
    runs = [
        write_run(tmp_path, name, seed=seed, score=1.0, logging={"console": name}) for seed, name in enumerate("xy")
    ]
    assert len(compare_runs(runs).candidates) == 1


@pytest.mark.parametrize(
    ("left", "right", "verdict"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], [11.0, 12.0, 13.0, 14.0, 15.0], "clip=0.1 is better than cartpole"),
        ([11.0, 12.0, 13.0, 14.0, 15.0], [1.0, 2.0, 3.0, 4.0, 5.0], "clip=0.2 is better than cartpole"),
        ([1.0, 2.0, 3.0, 4.0, 5.0], [1.5, 2.5, 3.5, 4.5, 5.5], NOT_DISTINGUISHABLE),
        ([5.0, 5.0, 5.0, 5.0], [5.0, 5.0, 5.0, 5.0], NOT_DISTINGUISHABLE),
        # apart, but two seeds of each prove nothing, whatever the bootstrap finds
        ([1.0, 2.0], [11.0, 12.0], f"{NOT_DISTINGUISHABLE} (2 and 2 seeds are too few"),
        ([1.0], [11.0], f"{NOT_DISTINGUISHABLE} (1 and 1 seeds are too few"),
    ],
)
def test_a_difference_is_claimed_where_the_seeds_separate(tmp_path, left, right, verdict):
    (pair,) = compare_runs(two_groups(tmp_path, left, right)).pairs
    assert verdict in pair.verdict and verdict in sentence(pair)


def test_small_may_be_good(tmp_path):
    runs = two_groups(tmp_path, [1.0, 2.0, 3.0, 4.0, 5.0], [11.0, 12.0, 13.0, 14.0, 15.0])
    (pair,) = compare_runs(runs, smaller_is_better=True).pairs
    assert pair.verdict.startswith("cartpole, algorithm.clip=0.2 is better")


def test_runs_of_other_tasks_are_not_set_against_each_other(tmp_path):
    runs = [
        write_run(tmp_path, "one", seed=0, score=1.0),
        write_run(tmp_path, "two", seed=0, score=1.0, task="pendulum"),
    ]
    assert compare_runs(runs).pairs == ()


def test_scores_at_one_step(tmp_path):
    long = write_run(tmp_path, "long", seed=0, score=10.0, rows=((100, 0.1), (1000, 1.0)))
    short = write_run(tmp_path, "short", seed=0, score=10.0, clip=0.1, rows=((100, 0.3),))
    found = compare_runs([long, short])
    assert [each.scores for each in found.candidates] == [(10.0,), (3.0,)]
    assert any("between 100 and 1,000 env steps" in note for note in found.notes)
    assert [each.scores for each in compare_runs([long, short], at_step=500).candidates] == [(1.0,), (3.0,)]
    with pytest.raises(KeyError, match="up to step 50"):
        compare_runs([long, short], at_step=50)


def test_an_unknown_metric_gets_a_suggestion(tmp_path):
    with pytest.raises(KeyError, match="Did you mean 'evaluate/return_mean'"):
        compare_runs(two_groups(tmp_path, [1.0], [2.0]), "evaluate/retun_mean")
