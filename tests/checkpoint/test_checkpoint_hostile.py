"""Promise 4: opening a file runs no code and cannot exhaust the machine."""

from __future__ import annotations

import pickle
import sys

import pytest
from hostile_campaign import read_corpus
from hostile_files import Payload

from striderl.checkpoint.folder import sealed
from striderl.checkpoint.store import CheckpointStore


@pytest.mark.slow
def test_no_hostile_file_does_anything(folder):
    campaign, result = read_corpus(folder)
    slowest = max(file["seconds"] for file in result["files"]) if result else 0.0
    print(f"slowest {slowest:.2f} s under {result.get('limit', 0) / 2**20:.0f} MiB of address space")
    campaign.check(60)


def test_the_payload_would_have_been_seen(folder):
    # the harness must be able to fail: unpickled, the same payload makes its canary
    pickle.loads(pickle.dumps(Payload(folder / "canary")))
    assert (folder / "canary").exists()


def test_targets_and_env_ids_in_a_config_stay_text(folder):
    config = {"_target_": "os.system", "env": "no_such_module_here:Env-v0", "class_name": "os:system"}
    store = CheckpointStore(folder)
    store.save({}, step=1, config=config)
    assert store.load().config == config
    assert "no_such_module_here" not in sys.modules


@pytest.mark.parametrize("name", ["../../evil", "/etc", "step_1", "", 7, None])
def test_a_pointer_to_the_best_leads_nowhere_else(folder, name):
    store = CheckpointStore(folder)
    path = store.save({"a": 1}, step=1, best=True)
    (folder / "best.json").write_bytes(sealed({"checkpoint": name, "step": 1}))
    assert store.best() == path  # found again by what its manifest says
    (folder / "best.json").write_bytes(pickle.dumps(name))
    assert store.load("best").path == path
