"""Short seeded trainings give the kept bits; what differs is named by update and tensor."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "envs"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import fingerprint
from cases import CASES
from fingerprint import difference, digest, measure, read_kept

FAMILIES = ("on policy", "replay", "runners", "facades", "quadruped")
REWRITE = "meant? then `python tests/fingerprints/fingerprint.py --write` keeps the new ones"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_bits_are_the_kept_ones(monkeypatch):
    kept = read_kept()
    assert kept["versions"] == fingerprint.versions(), f"other versions than the kept ones; {REWRITE}"
    monkeypatch.setenv("PYTHONHASHSEED", "7")  # the order of sets and dicts of strings has no part in the bits
    every_case = measure()
    found = {name: every_case[name] for family in FAMILIES for name in CASES[family]}
    moved = [line for name, case in found.items() if (line := difference(name, kept["cases"].get(name), case))]
    assert not moved, "\n".join([*moved, REWRITE])
    # the comparison catches a planted change
    dqn = found["dqn"]
    planted = {**dqn, "updates": [*dqn["updates"][:-1], "0" * 16]}
    assert "differs from update 20 of 20 on" in difference("dqn", kept["cases"]["dqn"], planted)


def test_every_kept_case_belongs_to_a_family_that_is_compared():
    known = {family: list(cases) for family, cases in CASES.items()}
    assert set(known) == set(FAMILIES)
    assert {name for names in known.values() for name in names} == set(read_kept()["cases"])


def test_all_twenty_updates_are_kept_and_each_moves_something():
    for name, case in read_kept()["cases"].items():
        assert len(case["updates"]) == 20, name
        assert len(set(case["updates"])) == 20, f"{name}: an update that changed nothing"


OLD = {"updates": ["a", "b", "c"], "tensors": {"w": "1", "v": "2"}}


@pytest.mark.parametrize(
    ("kept", "found", "words"),
    [
        (OLD, OLD, ""),
        (None, OLD, "x: new, 3 updates"),
        (
            OLD,
            {"updates": ["a", "y", "z"], "tensors": {"w": "1", "v": "3"}},
            "x: differs from update 2 of 3 on; 1 of 2 tensors differ at the end: v",
        ),
        (
            OLD,
            {"updates": ["a", "b", "c"], "tensors": {"w": "1", "u": "2"}},
            "x: same bits under other names; tensors gone: v; tensors added: u",
        ),
        (OLD, {"updates": ["a", "b"], "tensors": {"w": "1", "v": "9"}}, "x: 2 updates, 3 were kept"),
    ],
)
def test_a_difference_is_named(kept, found, words):
    assert difference("x", kept, found) == words


def test_one_bit_in_one_tensor_is_another_digest():
    value = torch.linspace(0.0, 1.0, 7)
    other = value.clone()
    other.view(torch.int32)[3] ^= 1
    assert digest({"w": value}) != digest({"w": other})
    assert digest({"w": value}) == digest({"w": value.clone()})
