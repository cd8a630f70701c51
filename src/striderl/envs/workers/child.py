"""The program of a worker process: build some envs, then execute the trainer's commands, one at a time.

    trainer                                                  worker
    b"u" set-up: rows, import path + files ────────▶         builds its envs
                                           ◀────────  b"d"   their description (spaces, limits)
    b"b" bind: layout + shared memory      ────────▶
                                           ◀────────  b"."   done
    b"s" step, slot                        ────────▶         reads actions, writes rows
                                           ◀────────  b"."   done, or b"!" with a report of what went wrong
    b"q" quit                              ────────▶         closes its envs and ends

Commands: u set-up, b bind, r reset, m masked reset, s step, v render, g get_attr, q quit.
This module loads numpy and gymnasium, never torch: a worker is ready in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence

import numpy as np

from striderl.envs.workers.block import PHASES, EnvBlock
from striderl.envs.workers.channel import Channel, ChannelClosed, Packet, contents_of, mapped, pack, unpack
from striderl.envs.workers.convert import EnvFactory
from striderl.envs.workers.errors import ContractViolation, shortened, traceback_text
from striderl.envs.workers.layout import Array, Layout
from striderl.envs.workers.parent_watchdog import fork_worker, watch_trainer

CONTROL_BYTES = 24
"""Shared with the trainer: three int64, the phase, the global index of the env at work, and the worker's process id."""
STACK_SIGNAL = signal.SIGUSR1
"""Makes the worker write its Python stack into a file that the trainer can read."""


def main(descriptor: int, parent_pid: int) -> None:
    """Run a spawned worker with this descriptor as its channel."""
    sys.exit(run(socket.socket(fileno=descriptor), parent_pid, ()))


def run(
    end: socket.socket, parent_pid: int, factories: Sequence[EnvFactory], worker_class: type[Worker] | None = None
) -> int:
    """Serve the trainer until it sends quit or ends, and return the exit code, in a child process.

    `factories` are given under fork, where nothing needs to be pickled; else they come with the set-up. The commands
    are those of `Worker`, unless another class is given.
    """
    fork_worker(parent_pid)
    _take_over_signals()
    channel = Channel(end)
    try:
        packet = channel.receive()
        assert packet is not None and packet.kind == b"u"
        setup = unpack(packet.body)
        watch_trainer(setup["trainer_pid"])
        control_file, stack_file, *payload = packet.files
        faulthandler.register(STACK_SIGNAL, file=stack_file, all_threads=True)
        control = mapped(control_file, CONTROL_BYTES).view(np.int64)
        control[2] = os.getpid()
        sys.path[:] = setup["path"]
        worker = (worker_class or Worker)(channel, control[:2])
        if not worker.build(setup["first_index"], factories, payload):
            return 1
        worker.serve()
    except ChannelClosed:
        return 0  # the trainer is gone, or has dropped this worker
    return 0


class Worker:
    """Execute the trainer's commands, and report whatever the envs raise."""

    def __init__(self, channel: Channel, control: Array) -> None:
        self._channel = channel
        self._control = control
        self._commands: dict[bytes, Callable[[Packet], Packet]] = {
            b"b": self._bind,
            b"r": self._reset,
            b"m": self._reset_masked,
            b"v": self._render,
            b"g": self._get_attr,
        }

    def build(self, first_index: int, factories: Sequence[EnvFactory], payload: Sequence[int]) -> bool:
        """Build the envs and describe them to the trainer; false when that failed."""
        self._control[:] = PHASES.index("init"), first_index
        try:
            made = factories or unpack(contents_of(payload[0]))
            self._block = EnvBlock(made, first_index, self._control)
            description = pack(self._block.description)
        except BaseException as error:  # noqa: BLE001  (whatever an env raises, KeyboardInterrupt too, arrives as text)
            self._report(error)
            return False
        self._num_envs = len(made)
        self._channel.send(b"d", description)
        return True

    def serve(self) -> None:
        """Answer commands until quit."""
        channel = self._channel
        while True:
            packet = channel.receive()
            assert packet is not None
            try:
                if packet.kind == b"s":
                    self._block.step(packet.body[0], 0, self._num_envs)
                    answer = DONE
                elif packet.kind == b"q":
                    self._quit()
                    return
                else:
                    answer = self._commands[packet.kind](packet)
            except BaseException as error:  # noqa: BLE001  (see above)
                self._report(error)
                continue
            channel.send(answer.kind, answer.body)

    def _bind(self, packet: Packet) -> Packet:
        layout: Layout
        layout, start, stop = unpack(packet.body)
        memory = mapped(packet.files[0], layout.num_bytes)
        os.close(packet.files[0])
        self._block.bind(layout, layout.buffers(memory).rows(start, stop))
        return DONE

    def _reset(self, packet: Packet) -> Packet:
        slot, seeded = packet.body
        self._block.reset(slot, 0, self._num_envs, seeded=bool(seeded))
        return DONE

    def _reset_masked(self, packet: Packet) -> Packet:
        old_slot, slot = packet.body
        self._block.reset_masked(old_slot, slot, 0, self._num_envs)
        return DONE

    def _render(self, packet: Packet) -> Packet:
        return Packet(b"p", pack(self._block.render(unpack(packet.body))), [])

    def _get_attr(self, packet: Packet) -> Packet:
        values = self._block.get_attr(unpack(packet.body))
        self._control[0] = PHASES.index("get_attr")  # what cannot be pickled is the attribute's fault
        body = pack(values)
        self._control[0] = 0
        return Packet(b"p", body, [])

    def _close(self) -> list[str]:
        """Close the envs and return what they raised."""
        return self._block.close(pass_on_interrupt=False)

    def _quit(self) -> None:
        texts = self._close()
        with contextlib.suppress(ChannelClosed):
            self._channel.send(b"c", pack(texts))

    def _report(self, error: BaseException) -> None:
        """Send the trainer what was raised, as text: an exception object may not be picklable."""
        kind = "contract" if isinstance(error, ContractViolation) else "raised"
        text = shortened(str(error)) if kind == "contract" else traceback_text(error)
        report = {"kind": kind, "type": type(error).__name__, "text": text, "place": self._control.tolist()}
        self._control[0] = 0
        self._channel.send(b"!", pack(report))


DONE = Packet(b".", b"", [])
"""The reply to a command that returns nothing."""


def _take_over_signals() -> None:
    """Give up what a forked worker inherits: the trainer's handlers, its terminal input and its garbage."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the trainer decides
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    gc.freeze()  # objects of the trainer's process are never finalised here
