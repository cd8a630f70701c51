"""`striderl import-trajectories OLD NEW`: convert a recording of pickles to the format of this library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from striderl.cli.options import parse
from striderl.cli.terminal import UsageError, complain, say

Old = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OLD")]
New = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NEW")]


@dataclass(frozen=True)
class ImportOptions:
    """From where to where."""

    old: Old
    """The folder with trajectory_0/traj_000000_000064.pickle and so on, and metadata.json."""
    new: New
    """The folder that is made."""


def import_trajectories(words: list[str]) -> int:
    """Import, and print the number of trajectories; exit code 1 where something was left out."""
    from striderl.datasets.readers.old_pickles import import_old_trajectories
    from striderl.datasets.trajectories.spec import TrajectoryError

    options = parse(
        ImportOptions,
        words,
        command="import-trajectories",
        description="Bring trajectory_*/traj_*.pickle over; the pickles are read, and nothing in them is run.",
    )
    try:
        done = import_old_trajectories(options.old, options.new)
    except TrajectoryError as error:
        raise UsageError(str(error)) from error
    say(f"{options.new}: {done.num_steps} steps in {done.num_trajectories} trajectories")
    for reason in done.left_out:
        complain(f"left out {reason}")
    return 1 if done.left_out else 0
