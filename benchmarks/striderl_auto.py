"""Mode 'auto' as it is for most of a run: after its functions have changed to programs compiled beside training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from striderl.execution.background import Switch, built_with


@contextmanager
def auto(mode: str) -> Iterator[Switch | None]:
    """Build what is made in here with a switch before iteration 2, where the mode is 'auto'."""
    switch = Switch(2) if mode == "auto" else None
    with built_with(switch):
        yield switch


def after_switch(switch: Switch | None, work: Callable[[], object]) -> Callable[[], object]:
    """Take the iterations before the switch, wait for the compiler, and return the work."""
    if switch is not None:
        for iteration in range(3):
            switch.before_iteration(iteration)
            work()
        switch.close()
        assert switch.on and switch.keys, "nothing was compiled"
    return work
