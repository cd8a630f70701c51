"""Whether steps are played back from recordings: who can be recorded, and what happens when it does not work."""

from __future__ import annotations

import logging

from striderl.collect.delivery import Storage
from striderl.collect.group import EnvGroup
from striderl.collect.recorded_steps import RecordedActor, RecordedSteps, RecordedStorage
from striderl.collect.statistics import EpisodeStatistics
from striderl.execution.modes import Graphed, Mode

_log = logging.getLogger(__name__)


class Recorder:
    """Keeps the recordings of one collector: those of the group and storage that came last."""

    def __init__(self) -> None:
        """Record nothing yet."""
        self._steps: RecordedSteps | None = None
        self._given_up = False

    def play(
        self, mode: Mode, group: EnvGroup, statistics: EpisodeStatistics, storage: Storage | None, num_steps: int
    ) -> bool:
        """Take so many steps of all envs by recordings and return True, or False when they must be taken one by one."""
        if self._given_up or not isinstance(mode, Graphed) or group.env.device.type != "cuda":
            return False
        if not isinstance(group.actor, RecordedActor):
            return False
        if storage is not None and not (isinstance(storage, RecordedStorage) and num_steps <= storage.room()):
            return False
        steps = self._steps
        if steps is None or steps.group is not group or steps.storage is not storage:
            steps = self._steps = RecordedSteps(group, statistics, storage, mode)
        if not steps.is_prepared and not self.prepared(steps, strict=mode.strict):
            return False
        steps.run(num_steps)
        return True

    def prepared(self, steps: RecordedSteps, *, strict: bool) -> bool:
        """Make the recordings, or say once why there are none; steps one by one give the same."""
        try:
            steps.prepare()
        except RuntimeError as error:
            if strict:
                raise
            reason = str(error).partition("\n")[0]
            _log.warning("steps of the envs cannot be recorded, so they are taken one by one: %s", reason)
            self._given_up, self._steps = True, None
            return False
        return True

    def let_go(self) -> None:
        """Give the group memory of its own: what was recorded goes on in memory that the next rollout overwrites."""
        if self._steps is not None:
            self._steps.let_go()
