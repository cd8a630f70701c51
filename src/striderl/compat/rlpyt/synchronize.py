"""rlpyt's means for several processes or threads: a lock, queues, ports, weights and gradients of several ranks.

RWLock              many readers (`with lock:`) or one writer (`with lock.write_lock:`)
drain_queue         everything that is in a queue
find_port           a port of this machine that nobody listens on
average_gradients   after every `backward` the gradients of a model are the mean over all ranks
"""

from __future__ import annotations

import multiprocessing
import queue
import socket
from typing import Any

import torch
from torch import Tensor, nn


class RWLock:
    """Many readers at once, or one writer; of several threads or of several processes that are forked after it."""

    def __init__(self) -> None:
        self.write_lock = multiprocessing.Lock()
        self._count_lock = multiprocessing.Lock()
        self._readers = multiprocessing.RawValue("i", 0)

    def __enter__(self) -> None:
        self.acquire_read()

    def __exit__(self, *exception: object) -> None:
        self.release_read()

    def acquire_write(self) -> None:
        """Wait until nobody reads or writes."""
        self.write_lock.acquire()

    def release_write(self) -> None:
        """Let others read or write."""
        self.write_lock.release()

    def acquire_read(self) -> None:
        """Wait until nobody writes."""
        with self._count_lock:
            if self._readers.value == 0:
                self.write_lock.acquire()
            self._readers.value += 1

    def release_read(self) -> None:
        """End reading; the last reader lets writers go on."""
        with self._count_lock:
            self._readers.value -= 1
            if self._readers.value == 0:
                self.write_lock.release()


def drain_queue(queue_obj: Any, n_sentinel: int = 0, guard_sentinel: bool = False) -> list[Any]:
    """Return what is in a queue.

    With `n_sentinel`, wait for as many None as this, each the end of what one process put in. Otherwise wait for
    nothing; with `guard_sentinel` a None stays in the queue and ends the list, without it None is dropped.
    """
    contents: list[Any] = []
    while n_sentinel > 0:
        entry = queue_obj.get()
        if entry is None:
            n_sentinel -= 1
            if n_sentinel == 0:
                return contents
        else:
            contents.append(entry)
    while True:
        try:
            entry = queue_obj.get(block=False)
        except queue.Empty:
            return contents
        if entry is not None:
            contents.append(entry)
        elif guard_sentinel:
            queue_obj.put(None)
            return contents


def find_port(offset: int) -> int:
    """Return a free port of this machine: the first of 29500 + offset, 29600 + offset, … that can be listened on."""
    if not 0 <= offset < 100:
        raise ValueError(f"find_port wants an offset of 0 to 99, found {offset}")
    for port in range(29500 + offset, 65000, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no port 29500 + {offset}, 29600 + {offset}, … is free on this machine")


def average_gradients(model: nn.Module) -> None:
    """Start from the weights of rank 0, and let every `backward` leave the mean gradients of all ranks.

    Unlike DistributedDataParallel the model stays itself: its attributes and the names of its weights are the same, and
    it may be called any number of times before `backward`. Every rank must go through the same parameters.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        torch.distributed.broadcast(tensor.data, src=0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(average_gradient)


def average_gradient(parameter: Tensor) -> None:
    """Replace the gradient of a parameter by the mean over all ranks; a hook of parameters after `backward`."""
    assert parameter.grad is not None
    torch.distributed.all_reduce(parameter.grad)
    parameter.grad /= torch.distributed.get_world_size()
