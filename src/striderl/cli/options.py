"""Parse flags of a dataclass of options with help, and report a mistake in one line instead of a box.

    ╭─ Unrecognized options ───────────────────╮
    │ Unrecognized options: --secnds, 3        │
    │ ──────────────────────────────────────── │          there is no flag --secnds. Did you mean --seconds?
    │ Perhaps you meant:                       │   ─▶     'striderl play --help' explains the flags.
    │     --seconds FLOAT                      │
    │         How long, in seconds …           │
    ╰──────────────────────────────────────────╯

`train` puts its own flags together (`train_flags.py`); every other command takes those of its dataclass.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated, TypeVar

import tyro

from striderl.cli.runs import ENV, TRUST
from striderl.cli.terminal import UsageError
from striderl.data.naming import suggestion

OptionsT = TypeVar("OptionsT")

Run = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
"""A run on the command line."""
Runs = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN …")]
"""Several of them."""
Env = Annotated[str, tyro.conf.arg(help=ENV)]
"""The env that a run is played in."""
Trust = Annotated[bool, tyro.conf.arg(help=TRUST)]
"""Whether code that the files of a run name is imported."""
Overwrite = Annotated[bool, tyro.conf.arg(help="Replace a file of that name.")]
"""Whether a file that the user names may be lost."""


def output_path(given: str, usual: Path | None = None, *, overwrite: bool) -> Path:
    """Return where a command writes: to its usual place in a run's folder, or to a file that must not be there yet.

    A file that the user names is replaced only with --overwrite: it need not be one of this library.
    """
    if not given and usual is not None:
        return usual
    if os.path.lexists(given) and not overwrite:
        raise UsageError(f"{given} exists; choose another name, or --overwrite it")
    return Path(given)


def parse(kind: type[OptionsT], words: list[str], *, command: str, description: str) -> OptionsT:
    """Read the words behind a command; a mistake raises UsageError with a suggestion."""
    prog = f"striderl {command}"
    with one_line_errors(prog):
        return tyro.cli(kind, args=words, prog=prog, description=description, config=(tyro.conf.FlagCreatePairsOff,))


# -- mistakes ----------------------------------------------------------------------------------------------------------


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_RULE = re.compile(r"[\s\-─━╭╮╰╯├┤]*")


@contextlib.contextmanager
def one_line_errors(prog: str) -> Iterator[None]:
    """Turn the end of the program with a box on the standard error into a UsageError with a line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except SystemExit as ending:
        if not ending.code:  # --help
            raise
        raise UsageError(f"{one_line(said.getvalue())} '{prog} --help' explains the flags.") from None
    else:
        sys.stderr.write(said.getvalue())  # warnings, which are no mistakes


def one_line(box: str) -> str:
    """Return the sentences of a box with the error and the suggestion."""
    sections = _sections(box)
    if not sections:
        return "the command line cannot be read."
    first = sections[0]
    text = " ".join(line.strip() for line in first)
    for title in ("Unrecognized options: ", "Unrecognized argument: "):
        if text.startswith(title):
            wrong = text.removeprefix(title).split(", ")[0]
            kind = "flag" if wrong.startswith("-") else "argument"
            return f"there is no {kind} {wrong}.{_meant(wrong, sections[1:])}"
    if text.startswith("Missing from") and len(first) > 1:
        names = [line.split()[0].rstrip(",") for line in first[1:] if _indent(line) == _indent(first[1])]
        return f"{first[0].strip().replace('Missing from', 'missing from')} {', '.join(names)}."
    chosen = re.match(r"invalid choice '(.*?)' for argument '(.*?)'\. Expected one of \((.*)\)", text)
    if chosen:
        word, flag, choices = chosen.groups()
        near = suggestion(word, re.findall(r"'(.*?)'", choices))
        return f"{flag} cannot be {word!r}. {near}Available: {choices}."
    number = re.match(
        r"Error parsing (-[\w.-]+): (?:invalid literal for int|could not convert string to float).*: '(.*)'", text
    )
    if number:
        wanted = "a whole number" if "int()" in text else "a number"
        return f"{number[1]} wants {wanted}, found {number[2]!r}."
    # the name of the part of the config is no help; that of a flag is
    text = re.sub(r"^Error parsing (?!-)[\w.]+: ", "", text).replace("Error parsing ", "", 1)
    return text if text.endswith((".", "?")) else f"{text}."


def _sections(box: str) -> list[list[str]]:
    """Return the lines between the rules, without the frame, the title and the way to the help."""
    plain = _COLOURS.sub("", box).strip("\n")
    found: list[list[str]] = [[]]
    for line in plain.splitlines()[1:]:  # the title
        bare = line.strip("│┃").rstrip()
        if not _RULE.fullmatch(bare):
            found[-1].append(bare)
        elif found[-1]:
            found.append([])
    return [section for section in found if section and "For full helptext" not in section[0]]


def _meant(wrong: str, sections: list[list[str]]) -> str:
    """Return the nearest of the flags that the parser proposes, which it orders by the words they share."""
    for section in sections:
        if section[0].strip().startswith(("Perhaps you meant", "Similar")):
            flags = [line.split()[0].rstrip(",") for line in section[1:] if line.strip().startswith("--")]
            nearest = max(flags, key=lambda flag: SequenceMatcher(None, wrong, flag).ratio(), default="")
            return f" Did you mean {nearest}?" if nearest else ""
    return ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
