"""The consumers of a run in their order, with the place where a record has got to."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from striderl.data.naming import saved_name
from striderl.training.consumers.consumer import Consumer

_log = logging.getLogger(__name__)


class Chain:
    """Hands out the consumers one after the other; where it stands can be saved."""

    def __init__(self, consumers: Sequence[Consumer]) -> None:
        """Stand before the first."""
        self.consumers = tuple(consumers)
        self.position = 0
        """Which consumer is next; 0 when a record has passed all."""

    def rest(self) -> Iterator[Consumer]:
        """Yield those that are still to come, each after moving past it: what the last one saves has passed all."""
        for position in range(self.position, len(self.consumers)):
            self.position = (position + 1) % len(self.consumers)
            yield self.consumers[position]

    def step_back(self) -> None:
        """Stand before the consumer that was last handed out, which could not finish."""
        self.position = (self.position - 1) % len(self.consumers)

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the state of every consumer by name."""
        states = {name: consumer.state_dict() for name, consumer in self._named().items()}
        return {"position": self.position, "consumers": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give every consumer what the one of its name had; those that are new begin fresh."""
        named = self._named()
        for name, saved in state["consumers"].items():
            if name in named:
                named[name].load_state_dict(saved)
            else:
                _log.warning("the saved run had a consumer %s that this one has not; its state is dropped", name)
        same = list(named) == list(state["consumers"])
        self.position = int(state["position"]) if same else 0

    def close(self) -> None:
        """Close all of them."""
        for consumer in self.consumers:
            consumer.close()

    def _named(self) -> dict[str, Consumer]:
        """Return the consumers by the name they are saved under, with a number from the second of a name on."""
        named: dict[str, Consumer] = {}
        for position, consumer in enumerate(self.consumers):
            kind = saved_name(consumer)
            number = sum(saved_name(other) == kind for other in self.consumers[:position])
            named[f"{kind}_{number + 1}" if number else kind] = consumer
        return named
