"""`WandbLogger`: Weights & Biases, online or offline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from striderl.data.naming import missing_extra
from striderl.loggers.logger import Logger


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
        mode: Literal["offline", "online"] = "offline",
    ) -> None:
        """Name folder, project and id (made from the folder's name unless given); mode 'online' wants a log-in."""
        if mode not in ("offline", "online"):
            raise ValueError(f"WandbLogger: mode is 'offline' or 'online', found {mode!r}")
        self.folder, self.project, self.mode = Path(folder), project, mode
        self.run_id = run_id or run_id_of(self.folder)
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
                id=self.run_id,
                name=self.run_id,
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
