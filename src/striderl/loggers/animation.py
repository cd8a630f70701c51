"""A small animated picture of a video, for trackers that show pictures but no films."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

from striderl.data.naming import missing_extra

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
