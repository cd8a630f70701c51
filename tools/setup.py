"""Set striderl up for work: a virtual environment with everything in it, and the libraries that rendering needs.

Standard library only, because this runs before anything is installed. Run it as often as you like: when nothing has
changed since the last time, it looks at one file and ends.

    python3 tools/setup.py [--venv .venv]
    python3 tools/setup.py --clients        .venv-clients: the simulators that tests/clients run against, on the CPU
"""

from __future__ import annotations

import argparse
import ctypes.util
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints-dev.txt"
CLIENT_CONSTRAINTS = ROOT / "constraints-clients.txt"
CLIENTS = ["mjlab", "rsl-rl-lib", "onnx", "onnxruntime", "pytest>=8", "pytest-timeout>=2.3"]
RENDER_PACKAGES = ["libegl1", "libegl-mesa0", "libgl1", "libosmesa6"]
BROWSER_PACKAGES = ["chromium", "chromium-driver"]


def main() -> None:
    """Create the environment if it is missing or out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=None, help="where the virtual environment goes")
    parser.add_argument("--clients", action="store_true", help="the environment of `make test-clients`")
    given = parser.parse_args()
    venv = given.venv or ROOT / (".venv-clients" if given.clients else ".venv")
    if not (3, 11) <= sys.version_info[:2] <= (3, 14):
        sys.exit(f"striderl needs Python 3.11 to 3.14; this is {sys.version.split()[0]} ({sys.executable})")
    stamp = venv / "striderl-setup.txt"
    wanted = fingerprint()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    python = venv / "bin" / "python"
    if not has_pip(python):
        say(f"creating {venv}")
        create_venv(venv)
    install_torch(python)
    if given.clients:
        say("installing striderl with the clients that it is tried in")
        pins = ["--constraint", str(CONSTRAINTS), "--constraint", str(CLIENT_CONSTRAINTS)]
        pip(python, "install", *pins, *CLIENTS, "--editable", str(ROOT))
    else:
        say("installing striderl with its development tools")
        pip(python, "install", "--constraint", str(CONSTRAINTS), "--editable", f"{ROOT}[dev]")
    install_render_libraries()
    if not given.clients:
        install_browser()
    stamp.write_text(wanted)
    say(f"ready: {venv}")


def has_pip(python: Path) -> bool:
    """Tell whether there is an environment that things can be installed in; a half-made one has no pip."""
    return (
        python.exists() and subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True).returncode == 0
    )


def create_venv(venv: Path) -> None:
    """Make the virtual environment, or end with the way to what it takes: Debian and Ubuntu leave it out of Python."""
    made = subprocess.run([sys.executable, "-m", "venv", str(venv)], text=True, capture_output=True)
    if made.returncode == 0:
        return
    version = ".".join(map(str, sys.version_info[:2]))
    sys.exit(
        f"{made.stdout}{made.stderr}\nsetup: '{sys.executable} -m venv {venv}' failed. Where Python comes without its "
        f"venv module, install it (Debian and Ubuntu: sudo apt-get install python{version}-venv, or python3-venv), or "
        f"use a Python that has it, and run tools/setup.py again."
    )


def fingerprint() -> str:
    """Return a text that changes when the environment would have to be made anew."""
    paths = (ROOT / "pyproject.toml", CONSTRAINTS, CLIENT_CONSTRAINTS, Path(__file__))
    contents = b"".join(path.read_bytes() for path in paths if path.exists())
    return f"{sys.version.split()[0]} {hashlib.sha256(contents).hexdigest()}"


def pip(python: Path, *arguments: str, capture: bool = False) -> subprocess.CompletedProcess[str]:
    """Run pip in the environment, quietly."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments, "--quiet"]
    return subprocess.run(command, check=not capture, text=True, capture_output=capture)


def install_torch(python: Path) -> None:
    """Install torch first: the CPU build where there is no GPU, so that nobody waits for gigabytes of CUDA."""
    if subprocess.run([str(python), "-c", "import torch"], capture_output=True).returncode == 0:
        return
    requirement = next(line.strip() for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
    if has_gpu() or not would_pull_cuda(python, requirement):
        say(f"installing {requirement}")
        pip(python, "install", requirement)
        return
    # pip has no word for "the CPU build"; uv has
    say(f"installing {requirement}, CPU build")
    pip(python, "install", "uv")
    command = [str(python), "-m", "uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
    subprocess.run([*command, "--torch-backend", "cpu", requirement], check=True)


def has_gpu() -> bool:
    """Tell whether this machine has an NVIDIA GPU."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def would_pull_cuda(python: Path, requirement: str) -> bool:
    """Ask pip what it would install; True when CUDA packages are among it, or when pip cannot tell."""
    report = pip(python, "install", "--dry-run", "--report", "-", requirement, capture=True)
    try:
        found = json.loads(report.stdout)["install"]
    except (json.JSONDecodeError, KeyError):
        return True
    names = [item["metadata"]["name"].lower() for item in found]
    return any(name.startswith(("nvidia", "cuda", "triton")) for name in names)


def install_render_libraries() -> None:
    """Get the GL libraries for rendering without a display, or say how to get them."""
    if ctypes.util.find_library("EGL") or ctypes.util.find_library("OSMesa"):
        return
    if not apt_installs(RENDER_PACKAGES, "libraries for rendering without a display"):
        say(
            "no GL library found: videos and rendered frames will not work, everything else will. "
            f"On Debian or Ubuntu: sudo {' '.join(apt_command(RENDER_PACKAGES))}"
        )


def install_browser() -> None:
    """Get the browser that the tests of `striderl view` drive, or say how to get it."""
    if shutil.which("chromium") and shutil.which("chromedriver"):
        return
    if not apt_installs(BROWSER_PACKAGES, "a browser for the tests of the view"):
        say(
            "no chromium and chromedriver found: the tests of 'striderl view' in a browser are skipped. "
            f"On Debian: sudo {' '.join(apt_command(BROWSER_PACKAGES))}"
        )


def apt_command(packages: list[str]) -> list[str]:
    """Return the command that installs packages of Debian or Ubuntu."""
    return ["apt-get", "install", "-y", "--no-install-recommends", *packages]


def apt_installs(packages: list[str], what: str) -> bool:
    """Install packages where this may be done; returns whether they are there."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return False
    say(f"installing {what}")
    subprocess.run(["apt-get", "update"], capture_output=True, check=False)
    return subprocess.run(apt_command(packages), capture_output=True, check=False).returncode == 0


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"setup: {text}", flush=True)


if __name__ == "__main__":
    main()
