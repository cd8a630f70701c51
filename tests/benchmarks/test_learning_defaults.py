"""The table of defaults: every public algorithm has a row, and a row changes no setting of it."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import learning  # noqa: E402
import learning_trials  # noqa: E402
from learning_data import make_env  # noqa: E402
from learning_defaults import ROWS, Where  # noqa: E402

sys.path.remove(str(BENCHMARKS))  # or `import data` would find a benchmark

import striderl.algorithms as algorithms  # noqa: E402

PARTS = {
    # not algorithms: what is handed to one
    "BuildContext",
    "build_actor",
    "build_actor_critic",
    "build_critics",
    "Distill",
    "EnvExpert",
    "Estimation",
    "Expert",
    "ExpertRows",
    "InfoVector",
    "Mimic",
    "MirrorTable",
    "MotionPrior",
    "RandomNetworkDistillation",
    "ResampleMemory",
    "RewardGroups",
    "StateAction",
    "StatePair",
    "Symmetry",
    "Term",
    "as_expert",
    "expert_rows",
    "Means",
    "q_policy",
}
ONLINE = [key for key, row in ROWS.items() if not row.data]


def test_every_algorithm_has_a_row():
    public = {name for name in algorithms.__all__ if not name.endswith("Config")}
    covered = [name for row in ROWS.values() for name in row.covers]
    assert public - PARTS == set(covered)
    assert len(covered) == len(set(covered))


@pytest.mark.parametrize("key", ONLINE)
def test_a_row_changes_no_setting(key):
    row = ROWS[key]
    parts = row.build(make_env(row.task, row.num_envs), Where(mode="eager"), row.steps)
    made = type(parts.algorithm.config)()
    if key in ("ddpg", "rainbow", "fast_td3", "fast_sac"):
        return  # presets of TD3, DQN and SAC: their settings are what the preset is
    given = parts.algorithm.config
    assert (dataclasses.replace(given, mode=made.mode) if hasattr(made, "mode") else given) == made
    own = parts.algorithm.loop_settings(row.num_envs) if hasattr(parts.algorithm, "loop_settings") else {}
    plan = dataclasses.replace(parts.plan, total_steps=0)
    assert plan == type(plan)(**own)  # what an algorithm itself fills in is a default too


@pytest.mark.slow
def test_the_recorded_runs_are_of_todays_rows():
    runs = learning.load_runs(BENCHMARKS / "results" / "learning_defaults.json")
    assert {run["key"] for run in runs} <= set(ROWS)
    today = {key: learning_trials.settings_today(key) for key in ONLINE}
    for run in runs:
        if run["key"] in today:
            assert learning_trials.same_settings(run["settings"], json.loads(json.dumps(today[run["key"]]))), run["key"]


def test_the_table_names_how_many_seeds_are_good():
    run = {
        "seed": 0,
        "value": 480.0,
        "steps": 12_000,
        "mode": "eager",
        "device": "cpu",
        "date": "2026-01-31",
        "machine": {"cpu": "some CPU", "cores": 2},
        "versions": {"torch": "2.13"},
        "settings": learning_trials.settings_today("ppo"),
    }
    text = learning_trials.to_markdown([{**run, "key": "ppo"}, {**run, "key": "ppo", "seed": 1, "value": 100.0}])
    assert "| PPO | cartpole, 8 envs | – | 100,000 | ≥ 475 | 480, 100 | **1 of 2** | 12k, 12k | cpu, eager |" in text


def test_an_unknown_row_is_refused(capsys):
    with pytest.raises(SystemExit):
        learning.main(["--defaults", "--tasks", "pppo", "--render-only"])
    assert "there is no 'pppo'" in capsys.readouterr().err
