"""Names on disk are data: every name that a part is saved under is in one list, and the kept old runs use no other."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from striderl.data.naming import saved_name

ROOT = Path(__file__).resolve().parent.parent
OLD_RUNS = ROOT / "tests" / "old_runs"

STAGES = {"NormalizeObs", "Remember", "Override", "Encode", "Estimate", "Adapt"}
CALLBACKS = {"Evaluate", "Log", "Progress", "PoolEpisodes", "KeepTogether", "Save", "Stop", "Video"}
ROBOTS = {"Quadruped", "QuadrupedRough", "QuadrupedBlind", "QuadrupedDepth", "Parkour"}
GYM_ROBOTS = {"Ant", "Humanoid", "HalfCheetah", "Hopper", "Walker2d"}
TOYS = {"Bandit", "ContinuousBandit", "HybridActions", "Chain", "TimeLimit", "Terminator", "Grid", "MemoryCue"}
SAVED_NAMES = STAGES | CALLBACKS | ROBOTS | GYM_ROBOTS | TOYS | {"RepeatObs", "Counting", "OwnNetwork"}
"""Never change one: checkpoints and random streams have it. A new class adds a line."""


def declared() -> list[str]:
    """Every `SAVED_NAME` in the source."""
    return [
        ast.literal_eval(node.value)
        for path in sorted((ROOT / "src").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "SAVED_NAME"
    ]


def test_the_list_is_what_the_source_declares():
    found = declared()
    assert len(found) == len(set(found)), "two classes are saved under one name"
    assert set(found) == SAVED_NAMES


def test_old_runs_use_no_other_name():
    stages, callbacks = set(), set()
    for path in sorted(OLD_RUNS.glob("*/*/**/state.json")):
        text = path.read_text()
        stages |= set(re.findall(r'stages\.\d+_(\w+?)[."]', text)) | set(re.findall(r'"\d+_([A-Z]\w+)"', text))
        state = json.loads(text)
        for found in _values(state, "consumers"):
            if "consumers" in found:
                callbacks |= {re.sub(r"_\d+$", "", name) for name in found["consumers"]}
    assert stages and stages <= STAGES
    assert callbacks and callbacks <= CALLBACKS


def _values(tree, key):
    """Every value under a key, at any depth."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            if name == key and isinstance(value, dict):
                yield value
            yield from _values(value, key)
    elif isinstance(tree, list):
        for value in tree:
            yield from _values(value, key)


def test_a_subclass_is_saved_under_its_own_name():
    class Saved:
        SAVED_NAME = "kept"

    class Other(Saved):
        pass

    assert saved_name(Saved()) == "kept" and saved_name(Other()) == "Other"
