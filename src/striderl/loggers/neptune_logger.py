"""`NeptuneLogger`: the offline mode of Neptune's client, whose hosted service ended in March 2026.

The client still writes the operations of a run to files below `.neptune/offline` in the working folder (the variable
NEPTUNE_DATA_DIRECTORY moves it), which self-hosted servers can be sent with `neptune sync`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from striderl.data.naming import missing_extra
from striderl.loggers.logger import Logger, flat_settings


class NeptuneLogger(Logger):
    """Writes a run in offline mode; numbers that are not finite are left out, as the client wants it.

    Offline files know nothing of each other: a resumed run begins a new one, with the rows after its checkpoint again.
    """

    def __init__(self, run: str) -> None:
        """Name the run."""
        self.run = run
        self._run: Any = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Append each number to its series."""
        run = self._open()
        for name, value in numbers.items():
            if math.isfinite(value):
                run[name].append(float(value), step=step)

    def text(self, name: str, value: str) -> None:
        """Write a text."""
        self._open()[name] = value

    def config(self, values: Mapping[str, Any]) -> None:
        """Write the settings below 'config'; what is no number, text or switch becomes text."""
        run = self._open()
        for name, value in flat_settings(values).items():
            plain = value if isinstance(value, bool | int | float | str) else str(value)
            run[f"config/{name.replace('.', '/')}"] = plain

    def video(self, step: int, name: str, path: Path) -> None:
        """Note a video for upload; the file stays where it is."""
        self._open()[f"{name}/step_{step}"].upload(str(path))

    def file(self, path: Path) -> None:
        """Note a file for upload below 'files'."""
        self._open()[f"files/{path.stem}"].upload(str(path))

    def close(self) -> None:
        """Stop the run."""
        if self._run is not None:
            run, self._run = self._run, None
            run.stop(seconds=4)

    def _open(self) -> Any:
        if self._run is None:
            try:
                import neptune
            except ImportError as error:
                raise ImportError(missing_extra("neptune", "neptune", purpose="a log for Neptune")) from error
            self._run = neptune.init_run(
                mode="offline",
                name=self.run,
                source_files=[],
                git_ref=False,
                capture_stdout=False,
                capture_stderr=False,
                capture_hardware_metrics=False,
                capture_traceback=False,
            )
        return self._run
