"""Damage to the files of a checkpoint: flipped bits, cut ends, zeroed pages, files of another checkpoint."""

from __future__ import annotations

import logging
import random
from pathlib import Path

from store_cases import Campaign, run_state, same

from striderl.checkpoint.errors import CheckpointCorrupt
from striderl.checkpoint.store import CheckpointStore

FILES = ("manifest.json", "state.json", "tensors.safetensors")
PAGE = 4096


class Patient:
    """A folder with a good checkpoint of step 1 and one of step 2 that is damaged and healed again and again."""

    def __init__(self, folder: Path, *, width: int = 24) -> None:
        self.store = CheckpointStore(folder)
        self.states = {step: run_state(step, width=width) for step in (1, 2)}
        self.paths = {step: self.store.save(state, step=step) for step, state in self.states.items()}
        self.content = {name: (self.paths[2] / name).read_bytes() for name in FILES}

    def suffer(self, campaign: Campaign, name: str, content: bytes, what: str, *, fall_back: bool = False) -> None:
        """Replace a file, load, and put it back; damage must be named, or make no difference."""
        campaign.faults += 1
        (self.paths[2] / name).write_bytes(content)
        try:
            if fall_back:
                self._fall_back(campaign, what)
            elif same(self.store.load(2).state, self.states[2]):
                campaign.note("harmless")
            else:
                campaign.bad.append(f"{what}: loaded as another state")
        except CheckpointCorrupt as error:
            campaign.note("detected")
            if name not in str(error) and "step_000000000002" not in str(error):
                campaign.bad.append(f"{what}: the message names no file: {error}")
        except Exception as error:  # noqa: BLE001  (any other error is what this looks for)
            campaign.bad.append(f"{what}: {type(error).__name__}: {error}")
        finally:
            (self.paths[2] / name).write_bytes(self.content[name])

    def _fall_back(self, campaign: Campaign, what: str) -> None:
        found = self.store.load("last")
        campaign.note(f"fell back to {found.step}")
        if not same(found.state, self.states[found.step]):
            campaign.bad.append(f"{what}: fell back to a state that nobody saved")


def flip_bits(folder: Path, count: int, *, seed: int = 0) -> Campaign:
    """Flip single bits: the headers' and manifest's bytes in turn, the rest at random; every tenth load falls back."""
    patient, campaign, rng = Patient(folder), Campaign("bit flips"), random.Random(seed)
    places = [("manifest.json", at) for at in range(len(patient.content["manifest.json"]))]
    places += [("tensors.safetensors", at) for at in range(1200)]
    places += [("state.json", at) for at in range(0, len(patient.content["state.json"]), 2)]
    places = places[:count]
    while len(places) < count:
        name = rng.choice(FILES)
        places.append((name, rng.randrange(len(patient.content[name]))))
    logging.getLogger("striderl.checkpoint").setLevel(logging.ERROR)
    for number, (name, at) in enumerate(places):
        bad = bytearray(patient.content[name])
        bad[at] ^= 1 << rng.randrange(8)
        patient.suffer(campaign, name, bytes(bad), f"flip in {name} at {at}", fall_back=number % 10 == 0)
    logging.getLogger("striderl.checkpoint").setLevel(logging.NOTSET)
    return campaign


def cut_files(folder: Path, count: int, *, seed: int = 0) -> Campaign:
    """Cut files short, or make them longer."""
    patient, campaign, rng = Patient(folder), Campaign("truncations"), random.Random(seed)
    for number in range(count):
        name = FILES[number % 3]
        content = patient.content[name]
        size = number // 3 if number < 30 else rng.randrange(len(content))
        bad = content + content[:size] + b"\0" if number % 10 == 9 else content[:size]
        patient.suffer(campaign, name, bad, f"{name} cut to {len(bad)} of {len(content)} bytes")
    return campaign


def zero_pages(folder: Path, count: int) -> Campaign:
    """Write zeros over whole pages, as a lost block of a disk does; pages of zeros change nothing."""
    patient, campaign = Patient(folder, width=330), Campaign("zeroed pages")
    pages = [(name, at) for name in FILES for at in range(0, len(patient.content[name]), PAGE)]
    for name, at in [*pages[:4], *pages[4 :: max(1, len(pages) // count)]][:count]:
        bad = bytearray(patient.content[name])
        bad[at : at + PAGE] = bytes(len(bad[at : at + PAGE]))
        patient.suffer(campaign, name, bytes(bad), f"page of {name} at {at} zeroed")
    return campaign


def swap_members(folder: Path) -> Campaign:
    """Put files of other checkpoints, of the same sizes, in place of this one's, and files in each other's place."""
    patient, campaign = Patient(folder), Campaign("swapped members")
    others = {step: CheckpointStore(folder / "other").save(run_state(step), step=step) for step in (1, 2, 3)}
    own = CheckpointStore(folder / "same").save(run_state(2), step=2, config={"another": "run"})
    for name in FILES:
        for path in [patient.paths[1], others[1], others[3], own]:
            patient.suffer(campaign, name, (path / name).read_bytes(), f"{name} of {path}")
        for other in FILES:
            if other != name:
                patient.suffer(campaign, name, patient.content[other], f"{name} replaced by {other}")
    for step in (1, 3):  # all three at once: a good checkpoint of another step under this name
        campaign.faults += 1
        for name in FILES:
            (patient.paths[2] / name).write_bytes((others[step] / name).read_bytes())
        try:
            patient.store.load(2)
            campaign.bad.append(f"the checkpoint of step {step} was loaded as step 2")
        except CheckpointCorrupt:
            campaign.note("detected")
    return campaign
