"""Run tests under conditions that a quiet machine does not have, and print one line for each.

    python tools/robust_suite.py                                      all conditions, the whole suite
    python tools/robust_suite.py --conditions nohup load -- -q tests/training
    python tools/robust_suite.py --conditions random --seeds 1 2 3 -- -n 2 --dist worksteal

    condition    what the tests meet
    interrupts   a parent that ignores SIGINT, as a script's background job or a CI runner does
    nohup        started by `nohup`: SIGHUP ignored, no terminal
    load         so many busy processes beside them (--load, 6)
    read-only    a repository in which nothing can be written
    random       another order of the tests, once for each of the seeds

What stands after `--` goes to pytest. Exits 1 when the tests fail under one of the conditions; the end of their output
is shown then, and the whole of it is in the folder that the last line names.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CONDITIONS = ("interrupts", "nohup", "load", "read-only", "random")
NOBODY = 65534
"""The user and group ids of `nobody`, who may write nothing but temporary files."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of pytest under one condition."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    """Variables on top of this process's own."""
    ignored: tuple[signal.Signals, ...] = ()
    """Signals that the tests' parent ignores."""
    busy: int = 0
    """How many processes compute beside the tests."""
    folder: Path | None = None
    """Where the tests start; the repository where None."""


def trials(
    conditions: list[str], words: list[str], root: Path, scratch: Path, load: int, seeds: list[int]
) -> list[Trial]:
    """Return the runs that the conditions ask for."""
    pytest = [sys.executable, "-m", "pytest", *words]
    found = []
    for name in conditions:
        if name == "interrupts":
            found.append(Trial(name=name, command=pytest, ignored=(signal.SIGINT,)))
        elif name == "nohup":
            found.append(Trial(name=name, command=["nohup", *pytest]))
        elif name == "load":
            found.append(Trial(name=f"load {load}", command=pytest, busy=load))
        elif name == "read-only":
            found.append(read_only(pytest, root, scratch))
        else:
            seeded = [[*pytest, "-p", "randomly", f"--randomly-seed={seed}"] for seed in seeds]
            found += [Trial(name=f"random {seed}", command=command) for seed, command in zip(seeds, seeded)]
    return found


def read_only(pytest: list[str], root: Path, scratch: Path) -> Trial:
    """Return a run in which the repository cannot be written: a read-only mount, or a copy without that permission.

    Bytecode and pytest's cache go elsewhere, so that what the interpreter keeps for itself costs no time.
    """
    command = [*pytest, "-o", f"cache_dir={scratch / 'cache'}"]
    environment = {"PYTHONPYCACHEPREFIX": str(scratch / "bytecode")}
    mount = f"mount --bind {shlex.quote(str(root))} {shlex.quote(str(root))} && "
    mount += f"mount -o remount,bind,ro {shlex.quote(str(root))}"
    for words in (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]):
        if shutil.which("unshare") and subprocess.run([*words, "sh", "-c", mount], capture_output=True).returncode == 0:
            # entered anew: the shell's own working folder is still the one below the mount
            inside = f"{mount} && cd {shlex.quote(str(root))} && exec {shlex.join(command)}"
            return Trial(name="read-only", command=[*words, "sh", "-c", inside], environment=environment)
    copy = scratch / "copy"
    shutil.copytree(
        root, copy, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache"), symlinks=True
    )
    for path in (copy, *copy.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o555)
    environment["PYTHONPATH"] = str(copy / "src")
    if os.geteuid() == 0:  # permissions do not bind root
        for folder in (scratch, scratch / "cache", scratch / "bytecode"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)
        environment["HOME"] = str(scratch)
        command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]
    return Trial(name="read-only", command=command, environment=environment, folder=copy)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many processes computing."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def run(trial: Trial, root: Path, log: Path) -> tuple[int, str]:
    """Run the tests of a trial; return pytest's exit code and its last line."""

    def ignore() -> None:
        for number in trial.ignored:
            signal.signal(number, signal.SIG_IGN)

    with busy(trial.busy), log.open("w") as output:
        code = subprocess.run(
            trial.command,
            cwd=trial.folder or root,
            env={**os.environ, **trial.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=ignore,  # there is no other way to hand on an ignored signal
            check=False,
        ).returncode
    lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
    return code, lines[-1].strip("= ")


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS), help="which of them")
    parser.add_argument("--load", type=int, default=6, help="busy processes of the condition 'load'")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="orders of the condition 'random'")
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parent.parent, help="the repository")
    parser.add_argument("words", nargs="*", metavar="-- pytest arguments", help="tests and options of pytest")
    arguments = parser.parse_args()
    root, scratch = arguments.tree.resolve(), Path(tempfile.mkdtemp(prefix="striderl-robust-"))
    failed = 0
    for trial in trials(arguments.conditions, arguments.words, root, scratch, arguments.load, arguments.seeds):
        log, began = scratch / f"{trial.name.replace(' ', '_')}.log", time.monotonic()
        code, last = run(trial, root, log)
        failed += code != 0
        print(
            f"{trial.name:<14} {'failed' if code else 'passed':<7} {time.monotonic() - began:6.0f} s   {last}",
            flush=True,
        )
        if code:
            print("\n".join(f"    {line}" for line in log.read_text(errors="replace").splitlines()[-40:]), flush=True)
    print(f"output: {scratch}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
