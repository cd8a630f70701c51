"""`TensorBoardLogger`: event files for TensorBoard; its package is enough, TensorFlow is not needed.

Also here: a small animated picture of a video, for trackers without videos.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from striderl.data.naming import missing_extra
from striderl.loggers.logger import Logger


class TensorBoardLogger(Logger):
    """Write scalars, texts, and videos as animated pictures.

    A resumed run begins a new event file, which invalidates later steps of older files.
    """

    def __init__(self, folder: str | Path) -> None:
        """Name the folder of the event files; the file is begun with the first row."""
        self.folder = Path(folder).absolute()  # it is opened later, perhaps in another working directory
        self._writer: Any = None
        self._void_from: int | None = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write one scalar per name."""
        self._add(step, [{"tag": name, "simple_value": float(value)} for name, value in numbers.items()])

    def text(self, name: str, value: str) -> None:
        """Write a text."""
        from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype="DT_STRING", string_val=[value.encode()], tensor_shape=shape)
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        self._add(0, [{"tag": name, "metadata": metadata, "tensor": tensor}])

    def config(self, values: Mapping[str, Any]) -> None:
        """Write the settings as a text 'config'; four spaces make it a block in Markdown."""
        lines = json.dumps(dict(values), indent=2, default=str).splitlines()
        self.text("config", "\n".join(f"    {line}" for line in lines))

    def video(self, step: int, name: str, path: Path) -> None:
        """Write a smaller copy as an animated picture, which is how TensorBoard shows videos."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        animation = animation_of(path)
        picture = Summary.Image(
            height=animation.height, width=animation.width, colorspace=3, encoded_image_string=animation.gif
        )
        self._add(step, [{"tag": name, "image": picture}])

    def file(self, path: Path) -> None:
        """Write where a file is as a text 'files/NAME': event files hold no others."""
        self.text(f"files/{path.name}", str(path.absolute()))

    def resume_at(self, step: int) -> None:
        """Begin a new file that invalidates later steps of the older ones."""
        self.close()
        self._void_from = step + 1

    def close(self) -> None:
        """Close the file; a later row begins another."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def _add(self, step: int, values: list[dict[str, Any]]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        writer = self._open()
        summary = Summary(value=[Summary.Value(**value) for value in values])
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        writer.flush()

    def _open(self) -> Any:
        if self._writer is not None and not self.folder.exists():
            # events in the deleted file would be lost
            self.close()
            raise FileNotFoundError(f"{self.folder} was deleted while the run was writing to it")
        if self._writer is None:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self._writer = EventFileWriter(str(self.folder))
            if self._void_from is not None:
                start = SessionLog(status=SessionLog.START)
                self._writer.add_event(Event(wall_time=time.time(), step=self._void_from, session_log=start))
                self._void_from = None
        return self._writer


# -- videos ------------------------------------------------------------------------------------------------------------


_MOST_FRAMES = 80
_MOST_ROWS = 240


class Animation(NamedTuple):
    """An animated picture."""

    gif: bytes
    """The file."""
    height: int
    """Rows."""
    width: int
    """Columns."""


def animation_of(path: Path) -> Animation:
    """Read a video and return it with at most 80 frames of at most 240 rows, at its own speed."""
    try:
        import imageio.v3 as imageio
    except ImportError as error:
        raise ImportError(missing_extra("imageio", "video", purpose="a video in TensorBoard")) from error
    frames = imageio.imread(path)
    fps = float(imageio.immeta(path).get("fps", 25.0))
    every = -(-len(frames) // _MOST_FRAMES)
    coarse = -(-frames.shape[1] // _MOST_ROWS)
    small = frames[::every, ::coarse, ::coarse]
    buffer = io.BytesIO()
    imageio.imwrite(buffer, small, extension=".gif", duration=1000.0 * every / fps, loop=0)
    return Animation(buffer.getvalue(), small.shape[1], small.shape[2])
