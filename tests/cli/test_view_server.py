"""The server of `striderl view`: who may connect, ports that are taken, mistakes of the command line."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("viser", reason="viser is not installed")

from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from striderl.cli.main import COMMANDS, main
from striderl.cli.view.server import PortTakenError, RequestCheck, close_server, is_local, open_server


@pytest.fixture(scope="module")
def local():
    server = open_server("127.0.0.1", 0, RequestCheck("127.0.0.1"))
    yield server.get_port()
    close_server(server)


@pytest.fixture(scope="module")
def guarded():
    """A server that other machines reach, and its token."""
    check = RequestCheck("0.0.0.0")
    server = open_server("0.0.0.0", 0, check)
    yield server.get_port(), check.token
    close_server(server)


def get(port, path="/", **headers):
    """Ask for a page; returns the status, the headers and the beginning of the text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read(200)
    connection.close()
    return found


def opens(port, path="", **headers):
    """Whether a websocket is opened; the status where it is not."""
    import viser

    given = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with connect(
            f"ws://127.0.0.1:{port}/{path}",
            additional_headers=given,
            subprotocols=[f"viser-v{viser.__version__}"],
            open_timeout=30,
        ) as socket_:
            return isinstance(socket_.recv(timeout=30), bytes)
    except InvalidStatus as error:
        return error.response.status_code


def test_the_usual_address_is_this_machine_alone(local):
    assert [name for name in ("127.0.0.1", "localhost", "::1", "127.0.0.9") if not is_local(name)] == []
    assert [
        name for name in ("0.0.0.0", "::", "192.168.0.3", "robot.lan", "", "127.0.0.1.evil.org") if is_local(name)
    ] == []
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    (found,) = re.findall(rf"([0-9A-F]+):{local:04X} 0+:0000 0A", listening)
    assert found == "0100007F"


def test_a_local_page_is_served_without_a_token(local):
    status, _, text = get(local)
    assert status == 200 and b"html" in text
    assert opens(local) is True
    assert opens(local, Origin=f"http://127.0.0.1:{local}") is True


def test_pages_of_other_sites_are_refused(local):
    assert get(local, Host="evil.example.org")[0] == 403  # a name that was made to point to this machine
    assert get(local, Host="localhost:9000")[0] == 200  # a port that ssh forwards
    assert opens(local, Origin="http://evil.example.org") == 403
    assert opens(local, Origin="null") == 403


def test_elsewhere_a_request_without_the_token_is_refused(guarded):
    port, token = guarded
    assert len(token) >= 32
    for path in ("/", "/?token=", "/?token=wrong", "/?token=" + token[:-1], "/index.html", "/?tokens=" + token):
        status, headers, text = get(port, path)
        assert status == 403 and "Set-Cookie" not in headers and b"token" in text, path
    assert opens(port) == 403
    assert opens(port, Cookie="striderl_view=wrong") == 403
    assert opens(port, "?token=wrong") == 403


def test_elsewhere_the_token_opens_the_page_and_its_cookie_the_rest(guarded):
    port, token = guarded
    status, headers, _ = get(port, f"/?token={token}")
    assert status == 200
    assert "HttpOnly" in headers["Set-Cookie"] and "SameSite=Strict" in headers["Set-Cookie"]
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert get(port, "/", Cookie=f"other=1; {cookie}")[0] == 200
    assert opens(port, Cookie=cookie) is True
    assert opens(port, f"?token={token}") is True
    assert opens(port, Cookie=cookie, Origin="http://evil.example.org") == 403


def test_two_views_have_two_tokens():
    assert RequestCheck("0.0.0.0").token != RequestCheck("0.0.0.0").token
    assert RequestCheck("127.0.0.1").token == ""


def test_a_port_that_is_taken_is_named(capfd):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTakenError, match=rf"port {port} .* taken.*--port"):
            open_server("127.0.0.1", port, RequestCheck("127.0.0.1"))
    with pytest.raises(OSError, match=r"--host 192\.0\.2\.1"):  # an address of no machine
        open_server("192.0.2.1", 0, RequestCheck("192.0.2.1"))
    assert capfd.readouterr().out == ""


def test_the_relay_that_publishes_a_page_is_off(local):
    server = open_server("127.0.0.1", 0, RequestCheck("127.0.0.1"))
    assert server.request_share_url() is None
    close_server(server)


def test_mistakes_of_the_command_line(tmp_path, capsys):
    assert "view" in COMMANDS
    for words, named in [
        ([str(tmp_path / "none")], "does not exist"),
        ([str(tmp_path), "--port", "70000"], "--port is 0 to 65535, found 70000"),
        ([str(tmp_path), "--num-envs", "0"], "--num-envs is positive"),
        ([str(tmp_path), "--fault", "-1"], "--fault"),
        ([str(tmp_path), "--fault", "1", "--compare", "best"], "--compare has no effect with --fault"),
        ([str(tmp_path), "--seconds", "nan"], "--seconds is positive"),
        ([str(tmp_path), "--prt", "1"], "Did you mean --port"),
    ]:
        assert main(["view", *words]) == 2, words
        assert named in capsys.readouterr().err, words
    for words in (["cartpole", "--view", "--seeds", "2"], ["mjlab:Some-Task", "--view"]):
        assert main(["train", *words]) == 2
        assert "'striderl view RUN' opens a view of any other" in capsys.readouterr().err


def test_without_viser_the_extra_is_named(tmp_path):
    program = (
        "import sys; sys.modules['viser'] = None\n"
        "from striderl.cli.view.server import RequestCheck, open_server\n"
        "try: open_server('127.0.0.1', 0, RequestCheck('127.0.0.1'))\n"
        "except ImportError as error: print(error)\n"
        "from striderl.cli.main import main\n"
        "print(main(['train', 'cartpole', '--view']))\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "needs the package 'viser'" in found.stdout and "view]" in found.stdout, found.stderr
    assert found.stdout.endswith("2\n") and "needs the package 'viser'" in found.stderr


@pytest.mark.slow
def test_a_training_opens_a_view_of_itself_and_takes_it_along_when_it_ends(tmp_path, capfd):
    """The view answers while the training goes on; after Ctrl-C, and after kill -9, its process is gone."""
    tiny = ["--env.num-envs", "4", "--plan.num-steps-per-env", "8", "--checkpoints.every", "50", "--num-threads", "1"]
    quiet = ["--evaluation.every", "0", "--logging.console", "off", "--stop.metric", "", "--steps", "100000000"]
    quiet += ["--switch-at", "never"]
    words = ["train", "cartpole", *tiny, *quiet, "--runs", str(tmp_path), "--view"]
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        training = subprocess.Popen([sys.executable, "-m", "striderl", *words], stdout=subprocess.PIPE, text=True)
        lines = iter(training.stdout.readline, "")
        port = int(next(found[1] for line in lines if (found := re.search(r"view: http://localhost:(\d+)", line))))
        assert wait_until(lambda port=port: answers(port), training)
        training.send_signal(number)
        assert training.wait(timeout=60) == code
        assert wait_until(lambda port=port: not answers(port))
        training.stdout.close()


def answers(port):
    try:
        return get(port)[0] == 200
    except OSError:
        return False


def wait_until(true, process=None):
    """Whether it becomes true within two minutes, and before a process ends."""
    end = time.monotonic() + 120
    while time.monotonic() < end and (process is None or process.poll() is None):
        if true():
            return True
        time.sleep(0.1)
    return False
