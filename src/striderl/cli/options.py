"""From a dataclass of options to flags with help: what every command but `train` uses."""

from __future__ import annotations

from typing import Annotated, TypeVar

import tyro

from striderl.cli.flag_errors import one_line_errors
from striderl.cli.runs import ENV, TRUST

OptionsT = TypeVar("OptionsT")

Run = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
"""A run on the command line."""
Runs = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN …")]
"""Several of them."""
Env = Annotated[str, tyro.conf.arg(help=ENV)]
"""The env that a run is played in."""
Trust = Annotated[bool, tyro.conf.arg(help=TRUST)]
"""Whether code that the files of a run name is imported."""


def parse(kind: type[OptionsT], words: list[str], *, command: str, description: str) -> OptionsT:
    """Read the words behind a command; a mistake raises UsageError with a suggestion."""
    prog = f"striderl {command}"
    with one_line_errors(prog):
        return tyro.cli(kind, args=words, prog=prog, description=description, config=(tyro.conf.FlagCreatePairsOff,))
