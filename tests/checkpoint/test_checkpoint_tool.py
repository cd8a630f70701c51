"""The tool that runs all faults: a table, JSON, and an exit code that tells a broken store."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def tool():
    before = list(sys.path)
    path = Path(__file__).resolve().parents[2] / "tools" / "checkpoint_faults.py"
    spec = importlib.util.spec_from_file_location("checkpoint_faults", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


def run(tool, monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["checkpoint_faults.py", *arguments])
    return tool.main()


def test_a_good_store_passes(tool, monkeypatch, tmp_path, capsys):
    assert run(tool, monkeypatch, "--only", "swaps", "layouts", "--json", str(tmp_path / "faults.json")) == 0
    assert "54 faults, 0 broken promises" in capsys.readouterr().out
    rows = json.loads((tmp_path / "faults.json").read_text())["rows"]
    assert [(row["row"], row["faults"]) for row in rows] == [("swapped members", 20), ("layout mutations", 34)]


def test_a_broken_store_fails(tool, monkeypatch, capsys):
    assert run(tool, monkeypatch, "--only", "swaps", "--plant-bug", "checksum") == 1
    assert "loaded as another state" in capsys.readouterr().out


def test_a_row_without_faults_fails(tool, monkeypatch):
    monkeypatch.setattr(tool, "mutate_layouts", lambda: tool.Campaign("nothing"))
    assert run(tool, monkeypatch, "--only", "layouts") == 1


def test_an_unknown_row_is_named(tool, monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        run(tool, monkeypatch, "--only", "flops")
    assert caught.value.code == 2 and "flops" in capsys.readouterr().err
