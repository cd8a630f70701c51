"""Pictures of LeRobot datasets: PNG in a table, or frames of a video that many episodes share.

file-000.mp4   │ episode 0 │ episode 1 │ episode 2 │ …       read in order, each frame decoded once
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.checkpoint.safe_files import check_plain, member, read_bytes
from striderl.data.naming import missing_extra

MAX_PICTURE_BYTES = 256 * 1024 * 1024
"""One picture file."""


def decoded_pictures(cells: list[Any], root: Path) -> Tensor:
    """Return pictures of a table, {'bytes': …, 'path': …} each, as uint8 [T, C, H, W]."""
    imageio = _imageio()
    found = []
    for cell in cells:
        content = cell["bytes"]
        if content is None:
            content = read_bytes(member(root, str(cell["path"])), max_bytes=MAX_PICTURE_BYTES)
        found.append(_channels_first(np.asarray(imageio.imread(content, extension=".png"))))
    return torch.stack(found)


class VideoFrames:
    """Frames of one video after the other; going back in a video opens it anew."""

    def __init__(self) -> None:
        self._path = Path()
        self._frames: Iterator[Any] = iter(())
        self._next = 0

    def read(self, path: Path, start: int, count: int) -> Tensor:
        """Return frames [start, start + count) as uint8 [count, C, H, W]."""
        if path != self._path or start < self._next:
            check_plain(path)
            if not path.is_file():
                raise FileNotFoundError(f"the dataset has no video {str(path)!r}")
            # absolute, because a decoder takes 'concat:…' at the beginning of a name for an instruction
            frames = _imageio().imiter(path.absolute(), plugin="FFMPEG")
            self._frames, self._path, self._next = iter(frames), path, 0
        found: list[Tensor] = []
        while len(found) < count:
            try:
                frame = next(self._frames)
            except StopIteration:
                raise ValueError(
                    f"{str(path)!r} has {self._next} frames, wanted frames {start} to {start + count}"
                ) from None
            if self._next >= start:
                found.append(_channels_first(np.asarray(frame)))
            self._next += 1
        return torch.stack(found)


def _channels_first(picture: np.ndarray[Any, Any]) -> Tensor:
    """Return [H, W] or [H, W, C] as [C, H, W]."""
    whole = picture[..., None] if picture.ndim == 2 else picture
    return torch.from_numpy(np.ascontiguousarray(whole.transpose(2, 0, 1)))


def _imageio() -> Any:
    try:
        import imageio.v3 as imageio
    except ImportError as error:
        raise ImportError(missing_extra("imageio", "video", purpose="Reading pictures of a dataset")) from error
    return imageio
