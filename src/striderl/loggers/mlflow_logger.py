"""`MlflowLogger`: an MLflow run in a local SQLite file, or at any tracking server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from striderl.data.naming import missing_extra
from striderl.loggers.logger import Logger, flat_settings

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
        """Open the run again and find out how far it had got."""
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
