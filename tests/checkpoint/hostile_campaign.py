"""Read the whole hostile corpus in another process, and judge every file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from hostile_files import build
from store_cases import Campaign


def read_corpus(folder: Path) -> tuple[Campaign, dict[str, Any]]:
    """Build the corpus, read it in another process, and judge every file."""
    folder.mkdir(parents=True, exist_ok=True)
    canary = folder / "canary"
    stores, files = build(folder, canary)
    torch.save({"model_state_dict": {"actor.0.weight": torch.ones(2, 2)}}, folder / "good.pt")
    corpus = {"stores": {name: str(path) for name, path in stores.items()}}
    corpus["files"] = {name: str(path) for name, path in files.items()}
    corpus |= {"good store": str(folder / "good"), "good file": str(folder / "good.pt")}
    (folder / "corpus.json").write_text(json.dumps(corpus))
    script = Path(__file__).with_name("hostile_reader.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], env=environment, capture_output=True, text=True, timeout=280
    )
    campaign = Campaign("hostile files")
    if done.returncode:
        campaign.bad.append(f"the reader died with {done.returncode}: {done.stderr[-500:]}")
        return campaign, {}
    result = json.loads((folder / "result.json").read_text())
    for file in result["files"]:
        campaign.faults += 1
        what = f"{file['name']!r}: {file['outcome'][:200]}"
        campaign.note(file["outcome"].partition(":")[0])
        if file["outcome"].startswith(("loaded", "UNEXPECTED")) or "not the good one" in file["outcome"]:
            campaign.bad.append(what)
        if file["events"]:
            campaign.bad.append(f"{what}: did {file['events'][:3]}")
        if file["seconds"] > 5.0:
            campaign.bad.append(f"{what}: took {file['seconds']:.1f} s of processor time")
    if canary.exists():
        campaign.bad.append("a payload was run")
    return campaign, result
