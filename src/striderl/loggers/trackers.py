"""Loggers for the trackers people use: Weights & Biases, Trackio, MLflow, Neptune. Each package is imported when used.

    WandbLogger      offline, or online with the variable WANDB_MODE=online
    TrackioLogger    Trackio's local store, shown by `trackio show`; no account, no network
    MlflowLogger     an MLflow run in a local SQLite file, or at any tracking server
    NeptuneLogger    the offline mode of Neptune's client, whose hosted service ended in March 2026

Neptune's client still writes the operations of a run to files below `.neptune/offline` in the working folder (the
variable NEPTUNE_DATA_DIRECTORY moves it), which self-hosted servers can be sent with `neptune sync`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from striderl.data.naming import missing_extra
from striderl.loggers.logger import Logger, flat_settings


class WandbLogger(Logger):
    """Writes a run of Weights & Biases; offline it lies in `<folder>/wandb` until `wandb sync` sends it.

    The run keeps its id when it is resumed. Rows that a resumed run repeats carry steps that the server already has; it
    keeps the first of each.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        project: str = "striderl",
        run_id: str = "",
        mode: Literal["", "offline", "online", "disabled"] = "",
        entity: str = "",
        name: str = "",
    ) -> None:
        """Name folder, project and id (made from the folder's name unless given); mode 'online' needs a log-in.

        mode: without one the variable WANDB_MODE chooses it, and where that is not set nothing is sent: 'offline'.
        entity: the user or the team; the one that is logged in without it.
        name: the name that is shown; the id without one.
        """
        mode = mode or os.environ.get("WANDB_MODE", "") or "offline"  # type: ignore[assignment]
        if mode not in ("offline", "online", "disabled"):
            raise ValueError(f"WandbLogger: mode (or WANDB_MODE) is 'offline' or 'online', found {mode!r}")
        self.folder, self.project, self.mode = Path(folder), project, mode
        self.entity, self.run_id = entity, run_id or run_id_of(self.folder)
        self.run_name = name or self.run_id
        self._run: Any = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write one row."""
        self._open().log(dict(numbers), step=step)

    def text(self, name: str, value: str) -> None:
        """Write a text into the summary of the run."""
        self._open().summary[name] = value

    def config(self, values: Mapping[str, Any]) -> None:
        """Write the settings of the run."""
        self._open().config.update(dict(values), allow_val_change=True)

    def video(self, step: int, name: str, path: Path) -> None:
        """Add a video to the row of this step."""
        run = self._open()
        import wandb

        run.log({name: wandb.Video(str(path))}, step=step)

    def file(self, path: Path) -> None:
        """Keep a copy of a file with the run."""
        self._open().save(str(path), base_path=str(path.parent), policy="now")

    def artifact(self, name: str) -> None:
        """Note that the run has used an artifact of the registry, such as a motion."""
        self._open().use_artifact(name)

    def close(self) -> None:
        """Finish the run."""
        if self._run is not None:
            run, self._run = self._run, None
            run.finish()

    def _open(self) -> Any:
        if self._run is None:
            try:
                import wandb
            except ImportError as error:
                raise ImportError(missing_extra("wandb", "wandb", purpose="a log for Weights & Biases")) from error
            self.folder.mkdir(parents=True, exist_ok=True)
            self._run = wandb.init(
                project=self.project,
                entity=self.entity or None,
                id=self.run_id,
                name=self.run_name,
                dir=str(self.folder),
                mode=self.mode,
                resume="allow",
                settings=wandb.Settings(silent=True, console="off", init_timeout=60),
            )
        return self._run


def run_id_of(folder: Path) -> str:
    """Return 'cartpole-20261115-101500' for '…/cartpole/20261115-101500': the same whenever a run is resumed."""
    absolute = folder.absolute()
    text = f"{absolute.parent.name}-{absolute.name}"
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in text)[-100:].lstrip("-.")


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

    def file(self, path: Path) -> None:
        """Keep a copy of a file as an artifact of the run; a later one of its name is a new version."""
        name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in f"{self.run}-{path.name}")
        self._open().log_artifact(str(path), name=name, type="file")

    def resume_at(self, step: int) -> None:
        """Reopen the run and read its last step."""
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


_MOST_METRICS = 1000
_MOST_PARAMETERS = 100
_LONGEST_PARAMETER = 6000


class MlflowLogger(Logger):
    """Writes metrics, settings and artifacts of one run, found again by its name when it is resumed.

    MLflow cannot take rows back, so a resumed run leaves out those that are there already.
    """

    def __init__(self, folder: str | Path, *, experiment: str, run: str, tracking_uri: str = "") -> None:
        """Name the experiment, usually the task, and the run; without an address, `<folder>/mlflow.db` keeps them."""
        self.folder, self.experiment, self.run = Path(folder), experiment, run
        self.tracking_uri = tracking_uri or f"sqlite:///{self.folder.absolute() / 'mlflow.db'}"
        self._local = not tracking_uri
        self._client: Any = None
        self._run_id = ""
        self._written = -1

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write one metric per name, and the step itself, in one transaction."""
        client = self._open()
        if step <= self._written:
            return
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, float(value), now, step) for name, value in {**numbers, "step": step}.items()]
        for start in range(0, len(metrics), _MOST_METRICS):
            client.log_batch(self._run_id, metrics=metrics[start : start + _MOST_METRICS])

    def text(self, name: str, value: str) -> None:
        """Write a text as a tag of the run."""
        self._open().set_tag(self._run_id, name, value)

    def config(self, values: Mapping[str, Any]) -> None:
        """Write the settings as parameters; those of a resumed run are there already."""
        client = self._open()
        from mlflow.entities import Param

        known = client.get_run(self._run_id).data.params
        flat = {name: str(value)[:_LONGEST_PARAMETER] for name, value in flat_settings(values).items()}
        new = [Param(name, value) for name, value in flat.items() if name not in known]
        for start in range(0, len(new), _MOST_PARAMETERS):
            client.log_batch(self._run_id, params=new[start : start + _MOST_PARAMETERS])

    def video(self, step: int, name: str, path: Path) -> None:
        """Keep a copy of the video under 'videos/'."""
        self._open().log_artifact(self._run_id, str(path), "videos")

    def file(self, path: Path) -> None:
        """Keep a copy of a file under 'files/'."""
        self._open().log_artifact(self._run_id, str(path), "files")

    def resume_at(self, step: int) -> None:
        """Reopen the run and read its last step."""
        self._client = None

    def close(self) -> None:
        """Mark the run as finished; a later row opens it again."""
        if self._client is not None:
            client, self._client = self._client, None
            client.set_terminated(self._run_id)

    def _open(self) -> Any:
        if self._client is None:
            try:
                from mlflow.tracking import MlflowClient
            except ImportError as error:
                raise ImportError(missing_extra("mlflow", "mlflow", purpose="a log for MLflow")) from error
            if self._local:
                self.folder.mkdir(parents=True, exist_ok=True)
            client = MlflowClient(tracking_uri=self.tracking_uri)
            self._run_id = self._find_run(client)
            history = client.get_metric_history(self._run_id, "step")
            self._written = max((metric.step for metric in history), default=-1)
            self._client = client
        return self._client

    def _find_run(self, client: Any) -> str:
        """Return the id of the run of this name, after beginning it where there is none."""
        experiment = client.get_experiment_by_name(self.experiment)
        place = (self.folder.absolute() / "mlflow_artifacts").as_uri() if self._local else None
        number = experiment.experiment_id if experiment else client.create_experiment(self.experiment, place)
        quote = '"' if "'" in self.run else "'"
        wanted = f"attributes.run_name = {quote}{self.run}{quote}"
        found = client.search_runs([number], filter_string=wanted, max_results=1)
        return str((found[0] if found else client.create_run(number, run_name=self.run)).info.run_id)


class NeptuneLogger(Logger):
    """Writes a run in offline mode; numbers that are not finite are left out, as the client requires.

    Offline files are independent: a resumed run begins a new one, with the rows after its checkpoint again.
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
