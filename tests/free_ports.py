"""A port for processes that are about to find each other."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that the kernel gives to nobody for the next minute, though a server may listen there.

    The port of a connection that was closed here is kept back: between this and the rank that listens lies its start.
    """
    with socket.socket() as server, socket.socket() as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = int(server.getsockname()[1])
        client.connect(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first waits; it is the one of this port
        client.recv(1)
    return port
