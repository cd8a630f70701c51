"""The callbacks of a run in their order, with the place where a record has got to."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from striderl.data.naming import saved_name
from striderl.training.callbacks.callback import Callback

_log = logging.getLogger(__name__)


class CallbackList:
    """Hands out the callbacks one after the other; where it stands can be saved."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        """Stand before the first."""
        self.callbacks = tuple(callbacks)
        self.position = 0
        """Which callback is next; 0 when a record has passed all."""

    def rest(self) -> Iterator[Callback]:
        """Yield those that are still to come, each after moving past it: what the last one saves has passed all."""
        for position in range(self.position, len(self.callbacks)):
            self.position = (position + 1) % len(self.callbacks)
            yield self.callbacks[position]

    def step_back(self) -> None:
        """Stand before the callback that was last handed out, which could not finish."""
        self.position = (self.position - 1) % len(self.callbacks)

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the state of every callback by name."""
        states = {name: callback.state_dict() for name, callback in self._named().items()}
        return {"position": self.position, "consumers": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give every callback what the one of its name had; those that are new begin fresh."""
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
