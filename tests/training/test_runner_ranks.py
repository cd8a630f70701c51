"""Two processes with one runner each learn the same, and one of them writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from free_ports import free_port
from striderl.data import tree

SCRIPT = Path(__file__).resolve().parent / "runner_ranks.py"


@pytest.mark.slow
def test_two_runners_learn_as_one(tmp_path):
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path)],
            env={**os.environ, **where, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=280)
        assert process.returncode == 0, output
    one, other = (torch.load(tmp_path / f"said_{rank}.pt", weights_only=True) for rank in (0, 1))
    assert tree.equal(one["weights"], other["weights"]) and torch.equal(one["rate"], other["rate"])
    assert one["ranks"] == (True, 2, 0) and other["ranks"] == (True, 2, 1)
    assert (tmp_path / "log_0" / "model_2.pt").is_file() and not (tmp_path / "log_1").exists()
