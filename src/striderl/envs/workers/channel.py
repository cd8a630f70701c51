"""The wire between the trainer and one worker: whole packets, with open files attached where needed.

    trainer                                        worker
    send(b"s", b"\\x01") ───── one packet ────▶     receive() -> Packet(kind=b"s", body=b"\\x01", files=[])
    receive()            ◀──── one packet ─────    send(b".")

The socket keeps packet borders (SOCK_SEQPACKET), so a packet is there as a whole or not at all: a worker that is
stopped or killed in the middle of an answer cannot leave the trainer waiting for the rest of it. A long body travels
in anonymous memory (memfd) whose descriptor is attached. Nothing here has a name in a file system, so nothing is left
behind after kill -9 of all. Nothing here loads torch.
"""

from __future__ import annotations

import array
import mmap
import os
import pickle
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_LARGEST_BODY = 60_000
_MAX_FILES = 8
_FILES_SPACE = socket.CMSG_SPACE(_MAX_FILES * 4)
_WAIT = socket.MSG_CMSG_CLOEXEC
_NO_WAIT = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
_BODY, _BODY_IN_FILE = b"b", b"f"


class Packet(NamedTuple):
    """One message: a byte for its kind, its content, and the descriptors that came with it."""

    kind: bytes
    body: bytes
    files: list[int]


class ChannelClosed(ConnectionError):  # noqa: N818  (it reads as what happened)
    """The other side is gone."""


class Channel:
    """One end of the wire."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._incoming = bytearray(_LARGEST_BODY + 16)
        self._parts = [self._incoming]

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def send(self, kind: bytes, body: bytes = b"", files: Sequence[int] = ()) -> None:
        """Send one packet; raises `ChannelClosed` when the other end is closed."""
        if not files and len(body) <= _LARGEST_BODY:
            try:
                self._socket.send(_BODY + kind + body, socket.MSG_NOSIGNAL)
            except ConnectionError as error:
                raise ChannelClosed(str(error)) from error
            return
        in_file = len(body) > _LARGEST_BODY
        extra = [file_with(body)] if in_file else []
        attached = [*files, *extra]
        data = (_BODY_IN_FILE + kind) if in_file else (_BODY + kind + body)
        try:
            rights = array.array("i", attached)
            self._socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], socket.MSG_NOSIGNAL)
        except ConnectionError as error:
            raise ChannelClosed(str(error)) from error
        finally:
            for descriptor in extra:
                os.close(descriptor)

    def receive(self, *, wait: bool = True) -> Packet | None:
        """Return the next packet, or None when there is none and `wait` is false."""
        try:
            size, ancillary, _, _ = self._socket.recvmsg_into(self._parts, _FILES_SPACE, _WAIT if wait else _NO_WAIT)
        except BlockingIOError:
            return None
        except ConnectionError as error:
            raise ChannelClosed(str(error)) from error
        if not size:
            raise ChannelClosed("the other side has closed the channel")
        data = bytes(memoryview(self._incoming)[:size])
        files: list[int] = []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found = array.array("i")
                found.frombytes(content[: len(content) - len(content) % found.itemsize])
                files.extend(found)
        if data[:1] == _BODY_IN_FILE:
            return Packet(data[1:2], contents_of(files.pop()), files)
        return Packet(data[1:2], data[2:], files)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a new wire."""
    if not hasattr(socket, "SOCK_SEQPACKET") or not hasattr(os, "pidfd_open") or not hasattr(os, "memfd_create"):
        raise OSError("worker processes need Linux (packet sockets, memfd, pidfd); use num_workers=0 on this system")
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


# -- anonymous memory ------------------------------------------------------------------------------------------------


def anonymous_file(num_bytes: int) -> int:
    """Return the descriptor of a file of zeros that lives in memory and that no directory lists."""
    descriptor = os.memfd_create("striderl", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, num_bytes)
    return descriptor


def file_with(body: bytes) -> int:
    """Return the descriptor of an anonymous file with this content."""
    descriptor = anonymous_file(0)
    view, start = memoryview(body), 0
    while start < len(view):
        start += os.pwrite(descriptor, view[start:], start)
    return descriptor


def contents_of(descriptor: int) -> bytes:
    """Return all that an anonymous file holds, and close it."""
    try:
        return read_all(descriptor)
    finally:
        os.close(descriptor)


def read_all(descriptor: int) -> bytes:
    """Return all that an anonymous file holds, from its start, and leave it open."""
    size, pieces, start = os.fstat(descriptor).st_size, [], 0
    while start < size:
        piece = os.pread(descriptor, min(size - start, 1 << 24), start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


def mapped(descriptor: int, num_bytes: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of an anonymous file as an array shared by all processes that map it."""
    return np.frombuffer(mmap.mmap(descriptor, max(1, num_bytes)), np.uint8)


# -- bodies ----------------------------------------------------------------------------------------------------------


def pack(value: object) -> bytes:
    """Turn a value into a body."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def unpack(body: bytes) -> Any:
    """Turn a body back into its value; both ends belong to one program, so it is not foreign data."""
    return pickle.loads(body)  # noqa: S301  (from our own process, over a private socket)
