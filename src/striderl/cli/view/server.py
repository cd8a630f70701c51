"""The web server of `striderl view`: viser's, on a local address, with a check of every request.

    127.0.0.1       anyone on this machine; a page of another site is refused by its Host and Origin
    elsewhere       the address carries a token; the first request with it sets a cookie, all others need the cookie

viser serves its page and the websocket with one call of `websockets.asyncio.server.serve`, whose `process_request` it
sets itself and offers no hook for. `_checked_serve` stands in for that call while the server starts, and puts the check
in front of it; where viser no longer makes that call, `open_server` raises instead of serving without a check.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import http
import io
import ipaddress
import logging
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from striderl.data.naming import missing_extra

PARAMETER = "token"
"""The part of the address that carries the token."""
_REFUSED = "this view wants its token: open the address that 'striderl view' printed, with ?token=…\n"
_FOREIGN = "this view is open to pages of its own address only\n"


class PortTakenError(OSError):
    """The port is in use by another program."""


def is_local(host: str) -> bool:
    """Return whether an address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class RequestCheck:
    """Decide which requests are served."""

    def __init__(self, host: str) -> None:
        """Make a token for an address that other machines reach."""
        self.token = "" if is_local(host) else secrets.token_urlsafe(24)
        """What a request has to carry; empty on a local address."""
        self._cookie = f"striderl_view_{secrets.token_hex(4)}"

    def refusal(self, path: str, headers: Any) -> str:
        """Return why a request is refused, or an empty text."""
        host, origin = headers.get("Host", ""), headers.get("Origin")
        # a name that was made to point here, and a page of another site that opens a websocket to here
        if not self.token and not is_local(urlsplit(f"//{host}").hostname or ""):
            return _FOREIGN
        if origin is not None and urlsplit(origin).netloc != host:
            return _FOREIGN
        return "" if not self.token or self._brings_token(path) or self._brings_cookie(headers) else _REFUSED

    def cookie(self, path: str) -> str:
        """Return the cookie to set after a request whose address carries the token; else an empty text."""
        if not self.token or not self._brings_token(path):
            return ""
        return f"{self._cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"

    def _brings_token(self, path: str) -> bool:
        given = parse_qs(urlsplit(path).query).get(PARAMETER, [])
        return any(self._is_token(value) for value in given)

    def _brings_cookie(self, headers: Any) -> bool:
        for text in headers.get_all("Cookie"):
            try:
                found = SimpleCookie(text).get(self._cookie)
            except CookieError:
                continue
            if found is not None and self._is_token(found.value):
                return True
        return False

    def _is_token(self, value: str) -> bool:
        return hmac.compare_digest(value.encode("utf-8", "replace"), self.token.encode())


def open_server(host: str, port: int, check: RequestCheck) -> Any:
    """Start a `viser.ViserServer` whose requests are checked; a port that is taken raises PortTakenError."""
    try:
        import viser
    except ImportError as error:
        raise ImportError(missing_extra("viser", "view", purpose="The view in the browser")) from error

    class LocalServer(viser.ViserServer):  # type: ignore[misc]
        """A server that is never published: viser can put a page on the internet through a relay at a click."""

        def request_share_url(self, verbose: bool = True) -> str | None:
            """Refuse."""
            del verbose
            return None

    _check_address(host, port)
    with _checked_serve(check) as used, _quiet():
        server: Any = LocalServer(host=host, port=port, verbose=False)
    if not used:
        close_server(server)
        raise RuntimeError("this version of viser cannot check its requests; install viser 1.1")
    if port and server.get_port() != port:  # viser takes the next one that is free, silently
        close_server(server)
        raise _taken(host, port)
    return server


def _check_address(host: str, port: int) -> None:
    """Raise unless this machine can listen there; viser would wait without end on a host that is not its own."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _taken(host, port) from error
        raise OSError(f"cannot listen on --host {host} --port {port}: {error.strerror or error}") from error


def _taken(host: str, port: int) -> PortTakenError:
    return PortTakenError(
        f"port {port} of {host} is taken; choose another one with --port N, or any free one: --port 0"
    )


def close_server(server: Any) -> None:
    """Stop a server, without its farewell on the terminal."""
    with _quiet():
        server.stop()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what viser prints while it starts and ends: the address it prints has no token."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
    sys.stdout.flush()


@contextlib.contextmanager
def _checked_serve(check: RequestCheck) -> Iterator[list[bool]]:
    """Let the server that is started inside ask `check` first; yields a list that is filled when it does."""
    from websockets.asyncio import server as module
    from websockets.datastructures import Headers
    from websockets.http11 import Response

    logging.getLogger("websockets.server").setLevel(logging.CRITICAL)  # a refused request is no error here
    original, used = module.serve, list[bool]()

    def checked(inner: Callable[[Any, Any], Any] | None) -> Callable[[Any, Any], Any]:
        def process_request(connection: Any, request: Any) -> Any:
            reason = check.refusal(request.path, request.headers)
            if reason:
                plain = Headers(
                    {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(reason.encode()))}
                )
                return Response(http.HTTPStatus.FORBIDDEN, "Forbidden", plain, reason.encode())
            response = inner(connection, request) if inner is not None else None
            cookie = check.cookie(request.path)
            if response is not None:
                response.headers["Referrer-Policy"] = "no-referrer"
                if cookie:
                    response.headers["Set-Cookie"] = cookie
            return response

        return process_request

    def serve(*arguments: Any, **settings: Any) -> Any:
        settings["process_request"] = checked(settings.get("process_request"))
        used.append(True)
        return original(*arguments, **settings)

    module.serve = serve
    try:
        yield used
    finally:
        module.serve = original
