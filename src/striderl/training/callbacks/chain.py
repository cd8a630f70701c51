"""The callbacks of a run in order, with the position of the present record."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from striderl.data.naming import saved_name
from striderl.training.callbacks.callback import Callback

_log = logging.getLogger(__name__)


class CallbackList:
    """Iterate over the callbacks; the position can be saved."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        """Start before the first callback."""
        self.callbacks = tuple(callbacks)
        self.position = 0
        """Which callback is next; 0 when a record has passed all."""

    def rest(self) -> Iterator[Callback]:
        """Yield the remaining callbacks, each after moving past it: the last one saves a finished position."""
        for position in range(self.position, len(self.callbacks)):
            self.position = (position + 1) % len(self.callbacks)
            yield self.callbacks[position]

    def step_back(self) -> None:
        """Move back before the last callback, which could not finish."""
        self.position = (self.position - 1) % len(self.callbacks)

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the state of every callback by name."""
        states = {name: callback.state_dict() for name, callback in self._named().items()}
        return {"position": self.position, "consumers": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of every callback by name; new ones start fresh."""
        named = self._named()
        for name, saved in state["consumers"].items():
            if name in named:
                named[name].load_state_dict(saved)
            else:
                _log.warning("the saved run had a callback %s that this one has not; its state is dropped", name)
        same = list(named) == list(state["consumers"])
        self.position = int(state["position"]) if same else 0

    def close(self) -> None:
        """Close all of them."""
        for callback in self.callbacks:
            callback.close()

    def _named(self) -> dict[str, Callback]:
        """Return the callbacks by the name they are saved under, with a number from the second of a name on."""
        named: dict[str, Callback] = {}
        for position, callback in enumerate(self.callbacks):
            kind = saved_name(callback)
            number = sum(saved_name(other) == kind for other in self.callbacks[:position])
            named[f"{kind}_{number + 1}" if number else kind] = callback
        return named
