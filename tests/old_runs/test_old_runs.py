"""Run folders, runner checkpoints and trajectories of earlier versions load, and runs go on to the same bits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fingerprints"))
from fingerprint import PORTABLE, ROOT

from striderl.datasets.trajectories.store import TrajectoryStore
from striderl.training.agent import Agent
from striderl.training.experiment.loading import load_run

HERE = Path(__file__).resolve().parent
SETS = sorted(path.name for path in HERE.iterdir() if (path / "expected.json").exists())


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Copies: a resumed run writes into its folder."""
    root = tmp_path_factory.mktemp("old_runs")
    for name in SETS:
        shutil.copytree(HERE / name, root / name)
    return root


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", SETS)
def test_old_runs_go_on_to_the_same_bits(sets, version):
    tests = HERE.parent
    folders = [ROOT / "src", HERE, tests / "fingerprints", tests / "training", tests / "envs"]
    result = subprocess.run(
        [sys.executable, str(HERE / "make.py"), "go_on", str(sets / version)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **PORTABLE, "PYTHONPATH": os.pathsep.join(map(str, folders))},
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.strip().splitlines()[-1])
    assert found == json.loads((HERE / version / "expected.json").read_text())


@pytest.mark.parametrize("version", SETS)
def test_old_policies_act(version):
    for folder in sorted(path.parent for path in (HERE / version).glob("*/config.json")):
        size = 4 if load_run(folder).config.env.task == "cartpole" else 3
        action = Agent.load(folder).predict(np.zeros(size, dtype=np.float32))
        assert np.isfinite(action).all()


@pytest.mark.parametrize("version", SETS)
def test_old_trajectories_are_read(version):
    store = TrajectoryStore(HERE / version / "trajectories")
    assert len(store) == 24
