"""Memory shared by processes, without files to clean up, even after kill -9 of all of them.

    block = SharedBlock(48)                              48 bytes, zeros
    reward = block.array((8,), "float32")                bytes  0..32
    done = block.array((8,), "bool", offset=32)          bytes 32..40, a view of the same block

    parent   block ─┐
                    ├─ one anonymous file (memfd), freed by the kernel with its last user
    worker   block ─┘

A block travels to another process by file descriptor: inherited under fork, handed over when a process is started
under spawn or forkserver, and sent along when it is put into a multiprocessing pipe or queue. `shared_array` gives an
array that carries its block with it; views of that array do so too, so a worker can be started with its own columns.
Windows has no such descriptors; these functions are for Linux and macOS. Nothing here loads torch.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import stat
import tempfile
import weakref
from collections.abc import Sequence
from multiprocessing.reduction import DupFd, ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from striderl.data.specs import as_shape


class SharedBlock:
    """A run of zeroed bytes that child processes share.

    Arrays made from a block keep its memory alive, so closing or dropping the block never pulls it from under them.
    """

    def __init__(self, num_bytes: int) -> None:
        if num_bytes < 0:
            raise ValueError(f"SharedBlock wants num_bytes >= 0, found {num_bytes}")
        # A mapping cannot be empty, so a block of 0 bytes maps one that no array reaches.
        self._attach(_Mapping(_anonymous_file(max(1, num_bytes)), max(1, num_bytes)), int(num_bytes))

    def _attach(self, mapping: _Mapping, num_bytes: int) -> None:
        self._mapping: _Mapping | None = mapping
        self._num_bytes = num_bytes

    @property
    def num_bytes(self) -> int:
        """The requested size."""
        return self._num_bytes

    @property
    def closed(self) -> bool:
        """Whether `close` was called in this process."""
        return self._mapping is None

    def array(self, shape: int | Sequence[int], dtype: npt.DTypeLike, offset: int = 0) -> npt.NDArray[Any]:
        """Return an array over the bytes from offset on; arrays over the same bytes see each other's writes."""
        sizes, kind = as_shape(shape), np.dtype(dtype)
        if kind.hasobject:
            raise TypeError(f"SharedBlock.array: dtype {kind} holds Python objects, which processes cannot share")
        end = offset + math.prod(sizes) * kind.itemsize
        if offset < 0 or end > self._num_bytes:
            raise ValueError(
                f"SharedBlock.array: shape {sizes} of {kind} at offset {offset} wants the bytes {offset}..{end}, "
                f"the block has 0..{self._num_bytes}"
            )
        return np.ndarray(sizes, kind, buffer=self._open_mapping(), offset=offset)

    def close(self) -> None:
        """Release this process's reference; the memory is freed with the last array and the last process."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            mapping.release()

    def _open_mapping(self) -> _Mapping:
        if self._mapping is None:
            raise ValueError(f"this SharedBlock of {self._num_bytes} bytes is closed")
        return self._mapping

    def __reduce__(self) -> Any:
        # Only multiprocessing's own pickler, which has the reducers below, can move a file descriptor.
        raise TypeError("a SharedBlock can be sent to a process, but not pickled to bytes or deep-copied")

    def __repr__(self) -> str:
        return f"SharedBlock({self._num_bytes}{', closed' if self.closed else ''})"


class SharedArray(np.ndarray[Any, np.dtype[Any]]):
    """An array in a `SharedBlock` that stays shared when it, or a view of it, is sent to another process.

    Copies and results of arithmetic are ordinary memory and are sent by value, as any array is. Pickling to bytes and
    deep-copying also take the values.
    """

    def __array_wrap__(self, array: npt.NDArray[Any], context: Any = None, return_scalar: bool = False) -> Any:
        """Return results of arithmetic as ordinary arrays and numbers; an in-place result stays what it is."""
        if array is self:
            return self
        return array[()] if array.shape == () else array.view(np.ndarray)


def mapped_file(path: Path, shape: Sequence[int], dtype: npt.DTypeLike, *, keep: bool = False) -> npt.NDArray[Any]:
    """Map a file of exactly these numbers into memory: zeros, or with `keep` what a file of this size holds.

    Links, pipes and devices are refused: what is written must not land elsewhere.
    """
    wanted = math.prod(shape) * np.dtype(dtype).itemsize
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise ValueError(f"{str(path)!r} is a link, a directory or a device, wanted a plain file") from error
        raise
    with os.fdopen(descriptor, "r+b") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{str(path)!r} is a pipe or a device, wanted a plain file")
        if keep and found.st_size not in (0, wanted):
            raise ValueError(f"{path} has {found.st_size} bytes, wanted {wanted}: it belongs to another arena")
        if not keep:
            file.truncate(0)
        file.truncate(wanted)
        return np.memmap(file, dtype=np.dtype(dtype), mode="r+", shape=tuple(shape))


def shared_array(shape: int | Sequence[int], dtype: npt.DTypeLike) -> SharedArray:
    """Return zeros in a block of their own, shared with every process that the array is sent to."""
    sizes, kind = as_shape(shape), np.dtype(dtype)
    return SharedBlock(math.prod(sizes) * kind.itemsize).array(sizes, kind).view(SharedArray)


class _Mapping(mmap.mmap):
    """The mapped bytes together with the descriptor by which another process can map them too."""

    descriptor: int
    release: weakref.finalize[[int], Any]

    def __new__(cls, descriptor: int, length: int) -> _Mapping:
        try:
            mapping = super().__new__(cls, descriptor, length)
        except BaseException:
            os.close(descriptor)
            raise
        mapping.descriptor = descriptor
        mapping.release = weakref.finalize(mapping, os.close, descriptor)
        return mapping


def _anonymous_file(length: int) -> int:
    """Return the descriptor of a file of zeros that no directory lists."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("striderl", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, length)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _mapping_of(array: npt.NDArray[Any]) -> _Mapping | None:
    """Return the mapping in which this array's memory lies, or None for ordinary memory."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, _Mapping) else None


# -- how blocks and arrays are sent ------------------------------------------------------------------------------------
# The mapping is the unit: pickle remembers it, so arrays of one block that are sent together share one descriptor.


def _send_mapping(mapping: _Mapping) -> tuple[Any, ...]:
    if not mapping.release.alive:
        # The number of a closed descriptor may by now be that of another file.
        raise ValueError(f"the SharedBlock of this array ({len(mapping)} bytes) is closed, so it cannot be sent")
    return _receive_mapping, (DupFd(mapping.descriptor), len(mapping))


def _receive_mapping(handle: Any, length: int) -> _Mapping:
    return _Mapping(handle.detach(), length)


def _send_block(block: SharedBlock) -> tuple[Any, ...]:
    return _receive_block, (block._open_mapping(), block.num_bytes)


def _receive_block(mapping: _Mapping, num_bytes: int) -> SharedBlock:
    block = SharedBlock.__new__(SharedBlock)
    block._attach(mapping, num_bytes)
    return block


def _send_array(array: SharedArray) -> tuple[Any, ...]:
    mapping = _mapping_of(array)
    if mapping is None:
        return np.asarray, (np.asarray(array),)
    start = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
    offset = array.__array_interface__["data"][0] - start if array.size else 0
    return _receive_array, (mapping, array.shape, array.dtype, offset, array.strides, array.flags.writeable)


def _receive_array(
    mapping: _Mapping, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int, strides: tuple[int, ...], write: bool
) -> SharedArray:
    array = np.ndarray(shape, dtype, buffer=mapping, offset=offset, strides=strides).view(SharedArray)
    array.flags.writeable = write
    return array


ForkingPickler.register(_Mapping, _send_mapping)
ForkingPickler.register(SharedBlock, _send_block)
ForkingPickler.register(SharedArray, _send_array)
