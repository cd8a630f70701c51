"""`TrackioLogger`: Trackio's local store, shown by `trackio show`; no account, no network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from striderl.data.naming import missing_extra
from striderl.loggers.logger import Logger, flat_settings


class TrackioLogger(Logger):
    """Writes a run into the SQLite file of its project, in Trackio's own folder (the variable TRACKIO_DIR moves it).

    Trackio cannot take rows back, so a resumed run leaves out those that are there already.
    """

    def __init__(self, project: str, run: str) -> None:
        """Name the project, usually the task, and the run."""
        self.project, self.run = project, run
        self._run: Any = None
        self._settings: dict[str, Any] = {}
        self._written = -1

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write one row."""
        run = self._open()
        if step > self._written:
            run.log({name: float(value) for name, value in numbers.items()}, step=step)

    def text(self, name: str, value: str) -> None:
        """Write a text."""
        run = self._open()
        import trackio

        run.log({name: trackio.Markdown(value)}, step=max(self._written, 0))

    def config(self, values: Mapping[str, Any]) -> None:
        """Keep the settings for the beginning of the run: Trackio takes them there and nowhere else."""
        self._settings = {name.lstrip("_"): value for name, value in flat_settings(values).items()}

    def video(self, step: int, name: str, path: Path) -> None:
        """Write a video; Trackio keeps a copy."""
        run = self._open()
        if step > self._written:
            import trackio

            run.log({name: trackio.Video(str(path), caption=name)}, step=step)

    def resume_at(self, step: int) -> None:
        """Open the run again and find out how far it had got."""
        self.close()

    def close(self) -> None:
        """Finish the run; a later row opens it again."""
        if self._run is not None:
            run, self._run = self._run, None
            run.finish()

    def _open(self) -> Any:
        if self._run is None:
            try:
                import trackio
                from trackio.sqlite_storage import SQLiteStorage
            except ImportError as error:
                raise ImportError(missing_extra("trackio", "trackio", purpose="a log for Trackio")) from error
            found = SQLiteStorage.get_last_step(self.project, self.run)
            self._written = -1 if found is None else int(found)
            self._run = trackio.init(
                project=self.project,
                name=self.run,
                config=self._settings,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return self._run
