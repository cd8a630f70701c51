"""Tensors that several processes read and write: anonymous memory on the CPU, CUDA IPC on a GPU.

    specs = {"action": TensorSpec(shape=(12,)), "reward": TensorSpec()}         one entry per tensor, without the envs

    trainer    shared = SharedMemory.allocate(num_bytes(specs, 4096), "cuda:0")
               tensors_in(shared.memory, specs, 4096)["reward"]                     [4096]
                        │ handle() and files, over the wire
    worker     shared = SharedMemory.attach(handle, files)
               tensors_in(shared.memory, specs, 4096)["reward"][1024:2048]          the same bytes

The trainer's process owns the memory and must outlive the workers, which it does: they end with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.data.specs import TensorSpec, torch_dtype
from striderl.envs.workers.channel import anonymous_file, mapped, pack, unpack

_ALIGNMENT = 256
"""Tensors begin at multiples of this, as CUDA's own allocations do."""


class SharedMemory(NamedTuple):
    """One run of bytes that other processes can attach to."""

    memory: Tensor
    """uint8, all of it."""
    files: list[int]
    """Descriptors to send along; empty on a GPU."""

    @classmethod
    def allocate(cls, size: int, device: torch.device) -> SharedMemory:
        """Reserve zeros on a device."""
        if device.type == "cpu":
            descriptor = anonymous_file(size)
            return cls(torch.from_numpy(mapped(descriptor, size)), [descriptor])
        if device.type != "cuda":
            raise ValueError(f"tensors are shared between processes on 'cpu' and 'cuda', found {str(device)!r}")
        return cls(torch.zeros(size, dtype=torch.uint8, device=device), [])

    def handle(self) -> bytes:
        """Return what one process needs to attach, besides the files; each wants its own: torch counts releases."""
        if self.files:
            return pack(self.memory.numel())
        from torch.multiprocessing.reductions import reduce_tensor

        return pack(reduce_tensor(self.memory))  # type: ignore[no-untyped-call]

    @classmethod
    def attach(cls, handle: bytes, files: Sequence[int]) -> SharedMemory:
        """Return the memory that another process has allocated."""
        content = unpack(handle)
        if files:
            return cls(torch.from_numpy(mapped(files[0], content)), list(files))
        rebuild, arguments = content
        return cls(rebuild(*arguments), [])


def num_bytes(specs: Mapping[str, TensorSpec], num_envs: int) -> int:
    """Return how much memory the tensors of so many envs take."""
    return sum(_padded(spec, num_envs) for spec in specs.values())


def tensors_in(memory: Tensor, specs: Mapping[str, TensorSpec], num_envs: int) -> dict[str, Tensor]:
    """Return the tensors [num_envs, …] that lie one after the other in a run of bytes."""
    found, offset = {}, 0
    for name, spec in specs.items():
        piece = memory[offset : offset + _size(spec, num_envs)]
        found[name] = piece.view(torch_dtype(spec.dtype)).view(num_envs, *spec.shape)
        offset += _padded(spec, num_envs)
    return found


def wait_for_device(device: torch.device) -> None:
    """Wait until what was started on a device is done: another process does not see this one's order of kernels."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _size(spec: TensorSpec, num_envs: int) -> int:
    width: Any = torch_dtype(spec.dtype).itemsize
    return int(num_envs * math.prod(spec.shape) * width)


def _padded(spec: TensorSpec, num_envs: int) -> int:
    return max(_ALIGNMENT, -(-_size(spec, num_envs) // _ALIGNMENT) * _ALIGNMENT)
