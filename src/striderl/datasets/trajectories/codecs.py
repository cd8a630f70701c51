"""How the values of one column are kept on disk: as they are, as fewer bits, compressed.

    values float32 [T, 1, 64, 64] ──squeeze──▶ uint8 ──pack──▶ bytes on disk ──unpack──▶ uint8 ──restore──▶ float32
    'normalized_image'              x · 255, rounded   deflate                                   x / 255

`squeeze` and `restore` work on whole tensors with any leading dimensions; `pack` and `unpack` on a chunk of some steps.
'raw' and 'zlib' give back every bit, NaN included; the others are for values whose range is known.

    [0.0, 0.5, 1.0, 1.5] ─normalized_image─▶ [0, 128, 255, 255] ─▶ [0.0, 0.50196, 1.0, 1.0]
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from striderl.data.naming import unknown
from striderl.data.specs import torch_dtype

ImageT = TypeVar("ImageT", Tensor, np.ndarray[Any, Any])

_LEVEL = 1
"""Of deflate: higher ones take several times as long for a few percent."""


@dataclass(frozen=True, kw_only=True)
class Codec:
    """One way to keep values."""

    name: str
    """How it is called in specs and in metadata.json."""
    summary: str
    """What it does, in a line."""
    squeeze: Callable[[Tensor], Tensor]
    """Turns values into what is stored."""
    restore: Callable[[Tensor, str], Tensor]
    """Turns what was stored into values of a dtype."""
    stored_dtype: str = ""
    """The dtype that is stored; empty: that of the values."""
    floats_only: bool = False
    """Whether it is for floating-point values only."""
    deflate: bool = False
    """Whether the bytes are compressed."""

    def dtype_on_disk(self, dtype: str) -> str:
        """Return the dtype that is stored for values of a dtype; raises where the codec does not fit."""
        if self.floats_only and "float" not in dtype:
            raise TypeError(f"codec {self.name!r} is for floating-point values, found {dtype}; use 'raw' or 'zlib'")
        return self.stored_dtype or dtype


def compress_normalized_image(image: ImageT) -> ImageT:
    """Return a picture of numbers in [0, 1] as uint8; what is outside is clipped, what is no number is an error.

    Two neighbours are 1/255 apart, so a value comes back to within 1/510.
    """
    if isinstance(image, np.ndarray):
        return compress_normalized_image(torch.from_numpy(np.asarray(image))).numpy()
    if not bool(torch.isfinite(image).all()):
        raise ValueError("a normalised image holds numbers in [0, 1], found NaN or infinity")
    return (image.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8)


def decompress_normalized_image(image: ImageT, dtype: str = "float32") -> ImageT:
    """Return the picture that `compress_normalized_image` made uint8 of."""
    if isinstance(image, np.ndarray):
        return decompress_normalized_image(torch.from_numpy(np.asarray(image)), dtype).numpy()
    return (image.to(torch.float32) / 255.0).to(torch_dtype(dtype))


def _half(values: Tensor) -> Tensor:
    halves = values.to(torch.float16)
    lost = torch.isfinite(values) & ~torch.isfinite(halves)
    if bool(lost.any()):
        largest = float(values[lost].abs().max())
        raise ValueError(f"float16 holds numbers up to 65504, found {largest:.6g}; use 'raw' or 'zlib'")
    return halves


def _same(values: Tensor) -> Tensor:
    return values


def _as_dtype(values: Tensor, dtype: str) -> Tensor:
    return values.to(torch_dtype(dtype))


_ALL = (
    Codec(name="raw", summary="every bit, as it is", squeeze=_same, restore=_as_dtype),
    Codec(name="zlib", summary="every bit, compressed", squeeze=_same, restore=_as_dtype, deflate=True),
    Codec(
        name="float16",
        summary="eleven significant bits, up to 65504",
        squeeze=_half,
        restore=_as_dtype,
        stored_dtype="float16",
        floats_only=True,
    ),
    Codec(
        name="normalized_image",
        summary="numbers in [0, 1] as one byte each, compressed",
        squeeze=compress_normalized_image,
        restore=decompress_normalized_image,
        stored_dtype="uint8",
        floats_only=True,
        deflate=True,
    ),
)

CODECS: Mapping[str, Codec] = {codec.name: codec for codec in _ALL}
"""Every codec by its name."""


def codec_named(name: str) -> Codec:
    """Return a codec, or raise with the choices."""
    if name not in CODECS:
        raise ValueError(unknown("codec", name, CODECS, where="the trajectory format"))
    return CODECS[name]


def pack(stored: Tensor, *, deflate: bool) -> bytes:
    """Return the bytes of some steps [n, …] of a column, little-endian, compressed or not."""
    flat = as_bytes(stored)
    if not deflate:
        return flat.tobytes()
    width = stored.element_size()
    # bytes of the same significance beside each other: exponents repeat, mantissas do not
    grouped = flat.reshape(-1, width).T.tobytes() if width > 1 else flat.tobytes()
    return zlib.compress(grouped, _LEVEL)


def unpack(content: bytes | memoryview, shape: tuple[int, ...], dtype: str, *, deflate: bool) -> Tensor:
    """Return the values [n, …] whose bytes `pack` made; raises ValueError for bytes of another length."""
    width = torch_dtype(dtype).itemsize
    size = math.prod(shape) * width
    if deflate:
        content = _inflate(content, size)
        if width > 1:
            content = np.frombuffer(content, np.uint8).reshape(width, -1).T.tobytes()
    if len(content) != size:
        raise ValueError(f"{len(content)} bytes for {size} of {dtype} {list(shape)}")
    if not size:
        return torch.zeros(shape, dtype=torch_dtype(dtype))
    return torch.frombuffer(bytearray(content), dtype=torch_dtype(dtype)).reshape(shape)


def as_bytes(values: Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return the bytes of a tensor as a flat array; memory is shared where the tensor is contiguous."""
    flat = values.detach().to("cpu").contiguous().reshape(-1)
    found: np.ndarray[tuple[int], np.dtype[np.uint8]] = flat.view(torch.uint8).numpy()
    return found


def _inflate(content: bytes | memoryview, size: int) -> bytes:
    """Decompress, never to more than was promised: a few bytes can stand for gigabytes."""
    machine = zlib.decompressobj()
    try:
        found = machine.decompress(content, size + 1)
    except zlib.error as error:
        raise ValueError(f"not compressed bytes ({error})") from None
    if len(found) != size or not machine.eof or machine.unused_data:
        raise ValueError(f"compressed bytes that are not {size} long")
    return found
