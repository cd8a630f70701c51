"""A window that shows frames, with what Python brings along; where there is no display, `NoDisplayError` says so."""

from __future__ import annotations

from typing import Any

import numpy as np


class NoDisplayError(Exception):
    """There is no window system to open a window in."""


class Window:
    """Shows one frame after the other until it is closed."""

    def __init__(self, title: str) -> None:
        """Open the window; the first frame decides its size."""
        try:
            import tkinter
        except ImportError as error:
            raise NoDisplayError("this Python has no tkinter") from error
        try:
            self._root: Any = tkinter.Tk()
        except tkinter.TclError as error:
            raise NoDisplayError(str(error)) from error
        self._tkinter = tkinter
        self._root.title(title)
        self._label: Any = tkinter.Label(self._root)
        self._label.pack()
        self._open = True
        self._root.protocol("WM_DELETE_WINDOW", self._closed)

    def show(self, frame: np.ndarray[Any, np.dtype[np.uint8]]) -> bool:
        """Show a frame uint8 [height, width, 3]; returns whether the window is still open."""
        if self._open:
            self._picture = self._tkinter.PhotoImage(data=portable_pixmap(frame), format="PPM")
            self._label.configure(image=self._picture)
            self._root.update()
        return self._open

    def _closed(self) -> None:
        self._open = False

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_: object) -> None:
        self._root.destroy()


def portable_pixmap(frame: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """Return a frame as a binary PPM file, which needs no library to write or to read."""
    height, width, _ = frame.shape
    return f"P6 {width} {height} 255\n".encode() + np.ascontiguousarray(frame).tobytes()
