"""What the parts of a replay hold, and where they live."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from striderl.data.arena import Arena, Columns, Placement
from striderl.data.specs import TensorSpec
from striderl.storage.step_records import RecordArena

FLAGS = ("terminated", "truncated", "valid")
"""The columns that lie first in the block of bools."""


def _word(*flags: bool) -> np.uint32:
    """Return flags as they lie in memory, four bytes read as one number."""
    return np.uint32(np.array([*flags, False], np.bool_).view(np.uint32)[0])


TERMINATED, TRUNCATED, VALID = _word(True, False, False), _word(False, True, False), _word(False, False, True)
ENDS, SEEN = TERMINATED | TRUNCATED, TERMINATED | TRUNCATED | VALID
"""What to look at in the word of a step's flags; a step like most others has `word & SEEN == VALID`."""


def split_columns(columns: Columns) -> tuple[Columns, Columns]:
    """Return the observation columns and the others, flags first: they are then the first three of the bool block."""
    wanted = ("obs", "act", "rew", *FLAGS)
    missing = [name for name in wanted if name not in columns]
    if missing or isinstance(columns["obs"], TensorSpec):
        found = f"missing {missing}" if missing else "'obs' is not a mapping of components"
        raise ValueError(f"a replay wants the columns of transition_columns(…): {found}")
    others = {name: spec for name, spec in columns.items() if name not in ("obs", *FLAGS)}
    unused = sorted(set(others) - {"act", "rew", "info", "policy"})
    if unused:
        raise ValueError(f"columns {unused} are not part of a transition; put them under 'info' or 'policy'")
    flags = TensorSpec(dtype="bool")
    return columns["obs"], {**dict.fromkeys(FLAGS, flags), **others}


def step_arena(columns: Columns, leading: tuple[int, int], placement: Placement) -> Arena:
    """Make room for the columns of steps: records on the CPU; one block per dtype in files and on other devices."""
    in_memory = placement.folder is None and placement.device == "cpu"
    if in_memory and all(spec.dtype != "bfloat16" for spec in _specs(columns)):
        return RecordArena(columns, leading, placement)
    return Arena(columns, leading, part_of(placement, "steps"))


def part_of(placement: Placement, name: str) -> Placement:
    """Return the place of one part: files of its own in a folder of its own."""
    if placement.folder is None:
        return placement
    return Placement(folder=Path(placement.folder) / name)


def sparse(placement: Placement, columns: Columns) -> Placement:
    """Return the place of the final observations, where memory that is never written takes no room if possible."""
    if placement.folder is not None:
        return part_of(placement, "finals")
    if placement.device == "cpu" and all(spec.dtype != "bfloat16" for spec in _specs(columns)):
        return Placement(shared=True)
    return placement


def _specs(columns: Columns) -> list[TensorSpec]:
    found: list[TensorSpec] = []
    for spec in columns.values():
        found += [spec] if isinstance(spec, TensorSpec) else _specs(spec)
    return found
