"""The setup script, without installing anything: what it would run, when, and what it says when it cannot."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYTHON = Path("venv/bin/python")
Result = subprocess.CompletedProcess[str]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A fresh copy of the script that looks at a project folder of its own."""
    spec = importlib.util.spec_from_file_location("striderl_setup", ROOT / "tools" / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "constraints-dev.txt").write_text("numpy==2.0.0\ntorch==2.13.0\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "CONSTRAINTS", tmp_path / "constraints-dev.txt")
    monkeypatch.setattr(module, "install_render_libraries", lambda: None)
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/usr/bin/{name}")
    return module


class Shell:
    """Stands in for subprocess.run: writes commands down and answers by the first matching word, else with success."""

    def __init__(self, **answers: tuple[int, str]) -> None:
        self.commands: list[list[str]] = []
        self.answers = answers

    def __call__(self, command: list[str], **options: Any) -> Result:
        self.commands.append(command)
        text = " ".join(command)
        for word, (code, output) in self.answers.items():
            if word.replace("_", " ") in text:
                if options.get("check") and code:
                    raise subprocess.CalledProcessError(code, command)
                return Result(command, code, stdout=output, stderr="")
        if "-m venv" in text:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()
        return Result(command, 0, stdout="", stderr="")

    def installs(self) -> list[str]:
        """What was installed, in order: all after the program's path."""
        return [
            " ".join(command[1:]) for command in self.commands if "install" in command and "--dry-run" not in command
        ]


def report(*names: str) -> str:
    """What `pip install --dry-run --report -` prints, as far as it is read."""
    return json.dumps({"version": "1", "install": [{"metadata": {"name": name, "version": "1"}} for name in names]})


def use(monkeypatch: pytest.MonkeyPatch, setup: ModuleType, shell: Shell, *, gpu: bool = False) -> None:
    monkeypatch.setattr(setup.subprocess, "run", shell)
    monkeypatch.setattr(setup, "has_gpu", lambda: gpu)


def run_main(monkeypatch: pytest.MonkeyPatch, setup: ModuleType, venv: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["setup.py", "--venv", str(venv)])
    setup.main()


# -- the fingerprint ---------------------------------------------------------------------------------------------------


def test_the_fingerprint_follows_the_files_and_nothing_else(setup: ModuleType, tmp_path: Path):
    first = setup.fingerprint()
    assert first == setup.fingerprint()
    assert first.startswith(sys.version.split()[0] + " ")
    (tmp_path / "README.md").write_text("new")
    assert setup.fingerprint() == first
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = []\n")
    second = setup.fingerprint()
    (tmp_path / "constraints-dev.txt").write_text("torch==2.14.0\n")
    assert len({first, second, setup.fingerprint()}) == 3


def test_the_fingerprint_follows_the_python_version(setup: ModuleType, monkeypatch: pytest.MonkeyPatch):
    first = setup.fingerprint()
    monkeypatch.setattr(sys, "version", "3.99.0 (main)")
    assert setup.fingerprint() != first


# -- which torch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "pulls"),
    [
        (report("torch", "sympy", "networkx"), False),
        (report("torch", "nvidia-cublas-cu12"), True),
        (report("torch", "NVIDIA-nccl"), True),
        (report("torch", "triton"), True),
        (report("torch", "cuda-bindings"), True),
        (report(), False),
        ("", True),  # pip failed: the CPU build is the safe choice
        ("{}", True),
        ("not json", True),
    ],
)
def test_a_pip_report_is_read(setup: ModuleType, monkeypatch: pytest.MonkeyPatch, output: str, pulls: bool):
    shell = Shell(dry=(0, output))
    monkeypatch.setattr(setup.subprocess, "run", shell)
    assert setup.would_pull_cuda(PYTHON, "torch==2.13.0") is pulls
    [command] = shell.commands
    assert command[:3] == [str(PYTHON), "-m", "pip"] and command.index("--dry-run") < command.index("torch==2.13.0")


@pytest.mark.parametrize(
    ("driver", "tool", "found"), [(True, None, True), (False, "/bin/x", True), (False, None, False)]
)
def test_a_gpu_is_known_by_its_driver_or_its_tool(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, driver: bool, tool: str | None, found: bool
):
    monkeypatch.setattr(setup.Path, "exists", lambda path: driver and str(path) == "/proc/driver/nvidia/version")
    monkeypatch.setattr(setup.shutil, "which", lambda name: tool if name == "nvidia-smi" else None)
    assert setup.has_gpu() is found


PIP = "-m pip --disable-pip-version-check install torch==2.13.0 --quiet"
UV = [
    "-m pip --disable-pip-version-check install uv --quiet",
    f"-m uv pip install --quiet --compile-bytecode --python {PYTHON} --torch-backend cpu torch==2.13.0",
]


@pytest.mark.parametrize(
    ("gpu", "packages", "wanted"),
    [
        (True, ("torch", "nvidia-cublas-cu12"), [PIP]),
        (False, ("torch",), [PIP]),
        (False, ("torch", "nvidia-cublas-cu12"), UV),
    ],
)
def test_the_torch_build_follows_the_machine(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, gpu: bool, packages: tuple[str, ...], wanted: list[str]
):
    shell = Shell(import_torch=(1, ""), dry=(0, report(*packages)))
    use(monkeypatch, setup, shell, gpu=gpu)
    setup.install_torch(PYTHON)
    assert shell.installs() == wanted


def test_a_torch_that_is_there_stays(setup: ModuleType, monkeypatch: pytest.MonkeyPatch):
    shell = Shell()
    use(monkeypatch, setup, shell)
    setup.install_torch(PYTHON)
    assert shell.commands == [[str(PYTHON), "-c", "import torch"]]


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_the_second_run_does_nothing(setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    venv = tmp_path / "venv"
    shell = Shell()
    use(monkeypatch, setup, shell)
    run_main(monkeypatch, setup, venv)
    assert [sys.executable, "-m", "venv", str(venv)] in shell.commands
    [editable] = [line for line in shell.installs() if "--editable" in line]
    assert f"{tmp_path}[dev]" in editable and f"--constraint {tmp_path / 'constraints-dev.txt'}" in editable
    shell.commands.clear()
    run_main(monkeypatch, setup, venv)
    assert shell.commands == []
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'changed'\n")
    run_main(monkeypatch, setup, venv)
    assert any("--editable" in line for line in shell.installs())
    assert not any("venv" in command for command in shell.commands), "the environment itself is kept"


def test_the_clients_have_an_environment_of_their_own(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    shell = Shell()
    use(monkeypatch, setup, shell)
    monkeypatch.setattr(setup, "CLIENT_CONSTRAINTS", tmp_path / "constraints-clients.txt")
    monkeypatch.setattr(sys, "argv", ["setup.py", "--clients"])
    setup.main()
    assert [sys.executable, "-m", "venv", str(tmp_path / ".venv-clients")] in shell.commands
    [editable] = [line for line in shell.installs() if "--editable" in line]
    assert "mjlab" in editable and "[dev]" not in editable and "constraints-clients.txt" in editable
    monkeypatch.setattr(setup.subprocess, "run", Shell(mjlab=(1, "")))
    (tmp_path / "constraints-clients.txt").write_text("mjlab==99\n")
    with pytest.raises(subprocess.CalledProcessError):
        setup.main()  # a client that cannot be installed fails loudly


def test_a_failed_install_is_not_taken_for_done(setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    use(monkeypatch, setup, Shell(editable=(1, "")))
    with pytest.raises(subprocess.CalledProcessError):
        run_main(monkeypatch, setup, tmp_path / "venv")
    assert not (tmp_path / "venv" / "striderl-setup.txt").exists()


def test_a_python_without_venv_is_told_how_to_get_it(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    shell = Shell(venv=(1, "ensurepip is not available"))
    use(monkeypatch, setup, shell)
    with pytest.raises(SystemExit) as caught:
        run_main(monkeypatch, setup, tmp_path / "venv")
    message = str(caught.value)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert "ensurepip is not available" in message, "what venv itself said is kept"
    assert f"apt-get install python{version}-venv" in message and "python3-venv" in message
    assert len(shell.commands) == 1 and not (tmp_path / "venv").exists()


def test_a_half_made_environment_is_made_again(setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    # a venv that failed for want of ensurepip leaves a python without pip behind
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    made: list[str] = []
    use(monkeypatch, setup, Shell(**{"pip --version": (1, "")}))
    monkeypatch.setattr(setup, "create_venv", lambda venv: made.append(str(venv)))
    run_main(monkeypatch, setup, tmp_path / "venv")
    assert made == [str(tmp_path / "venv")]


@pytest.mark.parametrize("version", [(3, 10, 4), (3, 15, 0)])
def test_an_unsupported_python_is_named(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: tuple[int, int, int]
):
    shell = Shell()
    use(monkeypatch, setup, shell)
    monkeypatch.setattr(sys, "version_info", version)
    monkeypatch.setattr(sys, "version", ".".join(map(str, version)) + " (main)")
    with pytest.raises(SystemExit, match=rf"needs Python 3\.11 to 3\.14; this is 3\.{version[1]}\.{version[2]}"):
        run_main(monkeypatch, setup, tmp_path / "venv")
    assert shell.commands == []


def test_a_browser_is_installed_where_that_may_be_done(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    shell = Shell()
    use(monkeypatch, setup, shell)
    setup.install_browser()
    assert shell.commands == [], "it is there"
    monkeypatch.setattr(setup.shutil, "which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)
    monkeypatch.setattr(setup.os, "geteuid", lambda: 0)
    setup.install_browser()
    assert shell.commands[-1][:2] == ["apt-get", "install"] and shell.commands[-1][-2:] == [
        "chromium",
        "chromium-driver",
    ]
    monkeypatch.setattr(setup.os, "geteuid", lambda: 1000)
    setup.install_browser()
    assert "sudo apt-get install" in capsys.readouterr().out
