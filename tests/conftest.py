"""Settings and guards for the whole suite: what a test finds, and what it must leave as it was.

    found       one torch thread, random numbers of one fixed seed, signals at their defaults, hypothesis profiles
    guarded     torch's modes, environment variables, working folder, signal handlers, logging, paths, gym's registry
                and ours
    the tree    nothing in the repository is written; in CI a changed file fails the run

The order of the tests is random (pytest-randomly; the seed is printed first and last, `--randomly-seed=N` repeats it).
The numbers are not: every test and every shared fixture starts from the same seed, whatever ran before.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import logging
import os
import random
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, configuration, settings

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it for its own process, once
# The code round compiled kernels, not theirs, is compiled without optimising: a second less for every program.
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")

ROOT = Path(__file__).resolve().parent.parent
SEED = int(os.environ.get("STRIDERL_TEST_SEED", "0"))
"""Every test starts from these random numbers; another seed shows which tests hold for one seed only."""

# Hypothesis keeps what it learned about the source, and the examples of the deep profile, outside the source tree.
configuration.set_hypothesis_home_dir(Path(tempfile.gettempdir()) / f"striderl-hypothesis-{os.getuid()}")
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=100,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("deep", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Two pytest workers share two cores; more torch threads would only get in each other's way."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Records of runs that were made here go to a folder of the tests, also those of their processes."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def one_operator_table() -> Iterator[None]:
    """Let torch build its table of ONNX operators once: it does so for every export, a second each time."""
    if importlib.util.find_spec("onnxscript") is None:
        yield
        return
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        yield


# -- signals -----------------------------------------------------------------------------------------------------------


def catch_ignored_signals() -> None:
    """Undo what a parent like `nohup` or a script's background job left ignored, for the processes that tests start.

    Ignored signals stay ignored across exec, caught ones go back to their defaults. What was ignored is caught here:
    SIGINT by Python's usual handler, the others by one that does nothing, so the suite lives on as its parent wanted.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _let_pass)


def _let_pass(number: int, frame: object) -> None:
    """Do nothing at a signal."""


# -- random numbers and order ------------------------------------------------------------------------------------------


def seed_everything() -> None:
    """Start the global random numbers of Python, numpy and torch from the suite's seed."""
    import torch

    random.seed(SEED)
    np.random.seed(SEED)
    if torch.cuda.is_available():
        torch.manual_seed(SEED)
    else:  # the same for the CPU, without a note, with its stack, for each kind of device that may still be found
        torch.default_generator.manual_seed(SEED)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[Any]:
    """Build what several tests share from the same random numbers, whichever of them comes first."""
    if fixturedef.scope != "function":
        seed_everything()
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Prepare signals, random numbers and the picture of the tree."""
    catch_ignored_signals()
    gc.disable()  # until everything is collected: what is imported and collected stays
    config.option.randomly_reset_seed = False  # seeds belong to `seed_everything`; the plugin shuffles
    if not hasattr(config, "workerinput"):
        config.stash[TREE] = tree()


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of the garbage collector's rounds, and let it come less often.

    It would look at a million objects that stay, again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


# -- what a test must leave as it was ----------------------------------------------------------------------------------


def _torch_modes() -> dict[str, tuple[Any, Callable[[Any], object]]]:
    import torch

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "torch's gradient mode": (torch.is_grad_enabled(), torch.set_grad_enabled),
        "torch's number of threads": (torch.get_num_threads(), torch.set_num_threads),
        "torch's default dtype": (torch.get_default_dtype(), torch.set_default_dtype),
        "torch's default device": (torch.get_default_device(), torch.set_default_device),
        "torch's anomaly detection": (torch.is_anomaly_enabled(), torch.autograd.set_detect_anomaly),
        "torch's deterministic mode": (
            torch.get_deterministic_debug_mode(),
            torch.set_deterministic_debug_mode,
        ),
        "cudnn.deterministic": (cudnn.deterministic, lambda value: setattr(cudnn, "deterministic", value)),
        "cudnn.benchmark": (cudnn.benchmark, lambda value: setattr(cudnn, "benchmark", value)),
        # by the new switches alone: torch raises where the old ones are read after the new ones were set
        **{
            f"the float32 precision of {name}": (
                # torch 2.11's compiler leaves the default, 'none', as 'ieee', which is the same
                "ieee" if name == "products" and part.fp32_precision == "none" else part.fp32_precision,
                lambda value, part=part: setattr(part, "fp32_precision", value),
            )
            for name, part in (("cudnn", cudnn), ("conv", cudnn.conv), ("rnn", cudnn.rnn), ("products", matmul))
        },
    }


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}


def _set_environment(before: dict[str, str]) -> None:
    for name in set(_environment()) - set(before):
        del os.environ[name]
    os.environ.update(before)


def _set_handlers(before: dict[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


def _set_list(target: list[Any]) -> Callable[[list[Any]], None]:
    def put_back(before: list[Any]) -> None:
        target[:] = before

    return put_back


def _own_path() -> list[str]:
    """Return where modules are looked for, without the places that installed packages add to it."""
    return [place for place in sys.path if "site-packages" not in place]


def _set_path(before: list[str]) -> None:
    sys.path[:] = before + [place for place in sys.path if "site-packages" in place]


def _set_registry(before: set[str]) -> None:
    import gymnasium

    for name in set(gymnasium.registry) - before:
        del gymnasium.registry[name]


def _registered() -> dict[str, dict[str, Any]]:
    """Return the parts that were registered in this process, by kind."""
    from striderl.data.registry import REGISTRIES

    return {kind: dict(each.registered) for kind, each in REGISTRIES.items()}


def _set_registered(before: dict[str, dict[str, Any]]) -> None:
    from striderl.data.registry import REGISTRIES

    for kind, each in REGISTRIES.items():
        each.registered = before[kind]


CATCHABLE = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD})
"""The signals whose handlers are guarded; torch's DataLoader keeps one for SIGCHLD."""
OTHERS = (
    "PYTEST_",
    "TORCHINDUCTOR_",
    "_TORCHINDUCTOR_",
    "TRITON_CACHE_DIR",
    "TRITON_PTXAS_PATH",
    "PYGAME_HIDE_SUPPORT_PROMPT",
    "PYOPENGL_PLATFORM",
    "WANDB_SERVICE",
)
"""How environment variables begin that pytest and optional packages set by themselves when they are used."""


def global_state() -> dict[str, tuple[Any, Callable[[Any], object]]]:
    """Return every guarded part of the process: its value now, and the function that puts a value back."""
    root, library = logging.getLogger(), logging.getLogger("striderl")
    state: dict[str, tuple[Any, Callable[[Any], object]]] = {
        "os.environ": (_environment(), _set_environment),
        "the working folder": (_working_folder(), os.chdir),
        "signal handlers": ({number: signal.getsignal(number) for number in CATCHABLE}, _set_handlers),
        "sys.argv": (list(sys.argv), _set_list(sys.argv)),
        "sys.path": (_own_path(), _set_path),
        "sys.excepthook": (sys.excepthook, lambda value: setattr(sys, "excepthook", value)),
        "logging.disable": (root.manager.disable, logging.disable),
        "the level of the root logger": (root.level, root.setLevel),
        "the level of the logger 'striderl'": (library.level, library.setLevel),
        "the handlers of the logger 'striderl'": (list(library.handlers), _set_list(library.handlers)),
        **_torch_modes(),
    }
    if "gymnasium" in sys.modules:
        state["gymnasium's registry"] = (set(sys.modules["gymnasium"].registry), _set_registry)
    if "striderl.data.registry" in sys.modules:
        state["striderl's registries"] = (_registered(), _set_registered)
    return state


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "a folder that is gone"


def _difference(before: Any, after: Any) -> str:
    if isinstance(before, dict):
        keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        return "; ".join(f"{key!s}: {before.get(key)!r} became {after.get(key)!r}" for key in keys)
    if isinstance(before, set):
        return f"added {sorted(after - before)}, removed {sorted(before - after)}"
    return f"{before!r} became {after!r}"


def changes_since(before: dict[str, tuple[Any, Callable[[Any], object]]]) -> list[str]:
    """Describe each guarded part that has changed, and put it back, so that one leak fails one test."""
    found = []
    after = global_state()
    for name, (value, put_back) in before.items():
        if after[name][0] != value:
            found.append(f"{name}: {_difference(value, after[name][0])}")
            put_back(value)
    return found


def _guard(owner: str, before: dict[str, tuple[Any, Callable[[Any], object]]]) -> None:
    changed = changes_since(before)
    if changed:
        lines = "\n  ".join(changed)
        pytest.fail(
            f"{owner} left the process changed; the tests after it would depend on it:\n  {lines}\n"
            "Change it through monkeypatch, a context manager, or a fixture that puts it back (tests/conftest.py).",
            pytrace=False,
        )


@pytest.fixture(scope="module", autouse=True)
def guarded_module(request: pytest.FixtureRequest, one_torch_thread: None) -> Iterator[None]:
    """Fail in a module whose shared fixtures leave global state changed."""
    before = global_state()
    yield
    _guard(f"a shared fixture of {request.node.name}", before)


@pytest.fixture(autouse=True)
def guarded_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start a test from the suite's random numbers, and fail it when it leaves global state changed."""
    seed_everything()
    before = global_state()
    yield
    _guard(request.node.nodeid, before)


# -- the tree ----------------------------------------------------------------------------------------------------------

TREE = pytest.StashKey[dict[str, tuple[int, int]]]()
NOT_SOURCE = {".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"}
"""What tools keep in the tree; Python and pytest do without where they may not write."""


def tree(root: Path = ROOT) -> dict[str, tuple[int, int]]:
    """Return size and time of change of every file of the repository."""
    found: dict[str, tuple[int, int]] = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in NOT_SOURCE and not name.startswith(".venv")]
        for name in names:
            path = os.path.join(folder, name)
            try:
                status = os.lstat(path)
            except FileNotFoundError:  # an editor's
                continue
            found[os.path.relpath(path, root)] = (status.st_size, status.st_mtime_ns)
    return found


def tree_changes(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> list[str]:
    """Describe the files that were added, removed or written in between."""
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [
        f"{name} {'was removed' if name not in after else 'was written' if name in before else 'is new'}"
        for name in names
    ]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Look at the tree again; in CI, where nobody edits meanwhile, a changed file fails the run."""
    before = session.config.stash.get(TREE, None)
    if before is None:
        return
    session.config.stash[CHANGES] = tree_changes(before, tree())
    if session.config.stash[CHANGES] and os.environ.get("CI") and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


CHANGES = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name the seed of the order again, where a reader of a failure looks, and the files that were changed."""
    changes = config.stash.get(CHANGES, [])
    if changes:
        terminalreporter.section("the repository was written to while the tests ran", red=True)
        for line in changes:
            terminalreporter.line(line)
        terminalreporter.line("A test writes into tmp_path only. (CI fails here; an edit of your own is no fault.)")
    seed = getattr(config.option, "randomly_seed", None)
    if isinstance(seed, int):
        terminalreporter.line(f"order of the tests: --randomly-seed={seed}")
