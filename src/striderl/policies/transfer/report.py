"""What happened to weights that were loaded, and why they could not be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor


class Difference(NamedTuple):
    """One thing that does not fit."""

    what: str
    """The component or parameter."""
    old: str
    """What the source has."""
    new: str
    """What the policy has."""


class TransferError(ValueError):
    """Weights that do not fit a policy; the message is a table of what, old and new. Nothing was changed."""

    def __init__(
        self, differences: Sequence[Difference], hint: str = "", *, columns: tuple[str, str] = ("old", "new")
    ) -> None:
        """Compose the table; `columns` are the words above the second and the third column."""
        self.differences = tuple(differences)
        rows = [Difference("", *columns), *self.differences]
        wide = [max(len(row[column]) for row in rows) for column in range(2)]
        lines = [f"  {row.what:<{wide[0]}}  {row.old:<{wide[1]}}  {row.new}".rstrip() for row in rows]
        super().__init__(
            "the weights do not fit, and nothing was changed:\n" + "\n".join(lines) + (hint and f"\n{hint}")
        )


@dataclass(frozen=True, kw_only=True)
class TransferReport:
    """Where the numbers of a policy come from after a load."""

    copied: tuple[str, ...] = ()
    """Parameters that are as the source had them."""
    rearranged: tuple[str, ...] = ()
    """Parameters whose columns were put where this policy has the components."""
    kept: tuple[str, ...] = ()
    """Parameters that stayed as they were."""
    added: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Components that the source did not have, with the parameters that got columns for them."""
    dropped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Components that this policy does not have, with the parameters whose columns for them were left behind."""
    unused: tuple[str, ...] = ()
    """Parameters of the source that this policy has no place for."""

    def __str__(self) -> str:
        """Return the report as text, a line for everything that is not simply copied."""
        lines = [f"{len(self.copied)} parameters copied"]
        lines += [f"rearranged: {name}" for name in self.rearranged]
        lines += [f"new component {name!r} in {', '.join(where)}" for name, where in self.added.items()]
        lines += [f"dropped component {name!r} of {', '.join(where)}" for name, where in self.dropped.items()]
        lines += [f"kept as it was: {name}" for name in self.kept]
        lines += [f"not used: {name}" for name in self.unused]
        return "\n".join(lines)


def shape_text(value: Tensor | Iterable[int]) -> str:
    """Return a shape as '[256, 45]'."""
    return str([*(value.shape if isinstance(value, Tensor) else value)])
