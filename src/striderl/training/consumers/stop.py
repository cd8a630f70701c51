"""`Stop`: end a run early, for whichever of its rules has a reason first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from striderl.training.consumers.consumer import Reaction, Run
from striderl.training.consumers.stop_rules import StopRule
from striderl.training.record import Record


class Stop:
    """Asks its rules in order; the trainer finishes the iteration, keeps the reason, and ends."""

    SAVED_NAME: ClassVar[str] = "Stop"

    def __init__(self, *rules: StopRule) -> None:
        """Take rules such as `Budget`, `Threshold`, `Plateau` and `Prune`."""
        for rule in rules:
            if not isinstance(rule, StopRule):
                raise TypeError(
                    f"Stop wants rules with reason(record), such as Budget or Plateau, found {type(rule).__name__}"
                )
        self.rules = rules

    def consume(self, record: Record, run: Run) -> Reaction:
        """Ask every rule, since each may be counting, and give the first reason."""
        reasons = [rule.reason(record) for rule in self.rules]
        return Reaction(stop=next((reason for reason in reasons if reason), ""))

    def state_dict(self) -> dict[str, Any]:
        """Return what the rules have seen."""
        return {"rules": [rule.state_dict() for rule in self.rules]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what the rules had seen."""
        if len(state["rules"]) != len(self.rules):
            raise ValueError(f"Stop has {len(self.rules)} rules; {len(state['rules'])} were saved")
        for rule, saved in zip(self.rules, state["rules"]):
            rule.load_state_dict(saved)

    def close(self) -> None:
        """Do nothing."""
