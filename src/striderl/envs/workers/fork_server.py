"""A small process that forks workers for the trainer: a clean start like spawn, almost as quick as fork.

    trainer ──b"f" + the worker's end of its wire──▶ fork server ──fork──▶ worker
            ◀─b"p" process id + its descriptor─────
    trainer ──b"w" process id of a dead worker────▶  how it ended

It has loaded numpy and gymnasium once, has a single thread, and no torch. The standard library's fork server is not
used because it listens on a socket in a temporary directory, which a killed trainer leaves behind, and because its
children keep it alive. This one belongs to one pool, has no name anywhere, and dies with the trainer; its workers die
with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket

from striderl.envs.workers import child
from striderl.envs.workers.channel import Channel, ChannelClosed, pack, unpack
from striderl.envs.workers.parent_watchdog import hold_on_to_parent

_PRELOAD = ("gymnasium", "gymnasium.wrappers", "cloudpickle")


def main(descriptor: int, trainer_pid: int) -> None:
    """Serve requests until the trainer closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the trainer decides
    hold_on_to_parent(trainer_pid)
    for name in _PRELOAD:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    channel = Channel(socket.socket(fileno=descriptor))
    with contextlib.suppress(ChannelClosed):
        while True:
            packet = channel.receive()
            assert packet is not None
            if packet.kind == b"f":
                _fork_worker(channel, packet.files[0])
            else:
                channel.send(b"e", pack(reap(unpack(packet.body))))
    os._exit(0)


def reap(pid: int) -> int | None:
    """Return how a child ended: its exit code, or minus the signal; None when it has not, or that is unknown."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if found else None


def _fork_worker(channel: Channel, end: int) -> None:
    server_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            channel.close()
            code = child.run(socket.socket(fileno=end), server_pid, ())
        finally:
            os._exit(code)
    os.close(end)
    handle = os.pidfd_open(pid)
    channel.send(b"p", pack(pid), [handle])
    os.close(handle)
