"""The shape of the house: imports never point up, packages are lazy, what is optional is asked for by name."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "striderl"

# Top to bottom. A module imports from its own folder and from the rows below it, never from its own row or above.
ROWS = [
    ["cli", "compat"],
    ["recipes"],
    ["training"],
    ["recording"],
    ["algorithms"],
    ["collect"],
    ["execution"],
    ["envs", "policies", "datasets", "loggers", "export"],
    ["storage", "networks"],
    ["checkpoint", "ops"],
    ["data"],
]
ROW_OF = {folder: row for row, folders in enumerate(ROWS) for folder in folders}


def folder_of(module: str) -> str:
    """The folder a module 'striderl.envs.workers.child' is in; '' for what lies directly under the roof."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROW_OF else ""


def imports_of(path: Path) -> set[str]:
    """Every striderl module that a file imports anywhere, also inside functions and for type checkers."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name.split(".")[0] == "striderl")
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "striderl":
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{path}: relative imports hide their direction; write the whole name")
    return found


def violations(path: Path, own: str) -> list[str]:
    bad = []
    for module in imports_of(path):
        other = folder_of(module)
        if other and other != own and ROW_OF[other] <= ROW_OF[own]:
            bad.append(f"{path} imports {module}")
    return bad


def modules() -> list[tuple[Path, str]]:
    return [(path, path.relative_to(SOURCE).parts[0]) for path in SOURCE.rglob("*.py") if path.parent != SOURCE]


def test_every_folder_has_its_row():
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= set(ROW_OF), f"folders without a row in the picture: {folders - set(ROW_OF)}"


def test_imports_never_point_up():
    bad = [line for path, own in modules() for line in violations(path, own)]
    assert not bad, "\n".join(bad)


def test_the_direction_test_catches_a_wrong_import(tmp_path):
    wrong = tmp_path / "planted.py"
    wrong.write_text("def f():\n    from striderl.envs.vec_env import VecEnv\n    return VecEnv\n")
    assert violations(wrong, "data")
    assert not violations(wrong, "collect")  # from further up the import points down


def packages() -> list[str]:
    return [
        ".".join(path.parent.relative_to(SOURCE.parent).parts)
        for path in SOURCE.rglob("__init__.py")
        if "__all__" in path.read_text()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", packages())
def test_lazy_names_and_type_checker_names_are_the_same(name):
    package = importlib.import_module(name)
    block = next(
        node
        for node in ast.parse(Path(package.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    typed = {alias.asname for node in block.body for alias in node.names}
    assert typed == set(package.__all__)
    for public in package.__all__:
        assert getattr(package, public) is not None
    assert dir(package) == sorted(package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'surely_not'"):
        package.surely_not  # noqa: B018
    for former in former_names(name):
        assert former not in package.__all__
        with pytest.warns(DeprecationWarning, match=f"no longer offers {former}; import it from {name}"):
            assert getattr(package, former) is not None


def former_names(name: str) -> list[str]:
    """Return the names that the table of a package lists as no longer offered."""
    syntax = ast.parse(SOURCE.joinpath(*name.split(".")[1:], "__init__.py").read_text())
    tables = [node.value for node in ast.walk(syntax) if isinstance(node, ast.keyword) and node.arg == "unlisted"]
    return [former for table in tables for names in ast.literal_eval(table).values() for former in names]


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize(
    "module",
    [
        "striderl",
        "striderl.envs",
        "striderl.envs.workers.child",
        "striderl.envs.workers.fork_server",
        "striderl.envs.workers.pool",
        "striderl.collect.samplers.env_adapter",
        "striderl.export.exported_policy",
        "striderl.data",
        "striderl.data.batch",
        "striderl.data.tree",
    ],
)
def test_importing_loads_no_torch(module):
    result = run(f"import sys, {module}; assert 'torch' not in sys.modules, 'torch was loaded'")
    assert result.returncode == 0, result.stderr


# hides packages as if they were not installed: looking for one finds nothing, importing it raises
BLOCK = """
import sys
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {names!r} else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""
OPTIONAL = {"gymnasium", "tyro", "rich", "safetensors", "tensorboard", "mujoco", "tensordict", "imageio", "hypothesis"}


@pytest.mark.slow
def test_the_core_works_with_torch_and_numpy_alone():
    program = (
        BLOCK.format(names=OPTIONAL) + "import striderl, torch\n"
        "from striderl import Batch\n"
        "import striderl.data.arena, striderl.data.named_tuples, striderl.envs.vec_env, striderl.envs.toy\n"
        "assert Batch(a=[1, 2]).to_torch().a.sum() == 3\n"
    )
    result = run(program)
    assert result.returncode == 0, result.stderr


EXPORT = (
    "from striderl.export.bundle import export_policy\n"
    "from striderl.export.metadata import ExportMetadata\n"
    "export_policy(None, 'nowhere', metadata=ExportMetadata(dt=0.02))"
)
SESSION = "from striderl.export.exported_policy import onnx_session; onnx_session('nowhere.onnx')"
PLOT = (
    "from pathlib import Path; from striderl.loggers.file_loggers import JsonlLogger as L; "
    "from striderl.loggers.plots import plot_runs; import tempfile; d = Path(tempfile.mkdtemp()); "
    "l = L(d / 'metrics.jsonl'); l.log(0, {'collect/return_mean': 1.0}); l.close(); plot_runs([d], d / 'x.png')"
)
MISSING = [
    ("mujoco", "from striderl.envs.mujoco.gym_tasks import TASKS; list(TASKS.values())[0](num_envs=1)", "mujoco"),
    ("mujoco", "from striderl.envs.tasks import make; make('ant')", "mujoco"),
    ("mujoco", "from striderl.envs.tasks import make; make('quadruped')", "mujoco"),
    (
        "imageio",
        "from striderl.training.video import record_video; from striderl.envs.tasks import make; "
        "from striderl.collect.actors import RandomActor; env = make('cartpole', num_envs=1); "
        "record_video(env, RandomActor(env.action_spec), 'x.mp4', num_steps=2)",
        "video",
    ),
    ("viser", "from striderl.cli.view.server import open_server; open_server('127.0.0.1', 0, None)", "view"),
    ("mjviser", "from striderl.cli.view.scene import MujocoScene; MujocoScene(None, [])", "view"),
    ("onnx", EXPORT, "export"),
    ("onnxscript", EXPORT, "export"),
    ("onnxruntime", EXPORT, "export"),
    ("onnxruntime", SESSION, "export"),
    ("matplotlib", PLOT, "plot"),
    ("wandb", "from striderl.loggers.trackers import WandbLogger as L; L('x').log(0, {})", "wandb"),
    ("trackio", "from striderl.loggers.trackers import TrackioLogger as L; L('p', 'r').log(0, {})", "trackio"),
    (
        "mlflow",
        "from striderl.loggers.trackers import MlflowLogger as L; L('x', experiment='e', run='r').log(0, {})",
        "mlflow",
    ),
    ("minari", "from striderl.datasets.readers.minari import MinariReader; MinariReader('x')", "minari"),
    ("pyarrow", "from striderl.datasets.readers.lerobot import _parquet; _parquet()", "lerobot"),
    ("optuna", "from striderl.training.sweep import import_optuna; import_optuna()", "tune"),
    ("submitit", "from striderl.cli.launch import import_submitit; import_submitit()", "slurm"),
    (
        "ray",
        "from striderl.training.experiment.worker_fleet import connect; "
        "from striderl.collect.schedules import WorkerSettings; connect(WorkerSettings(kind='ray', num_workers=1))",
        "ray",
    ),
    (
        "tensordict",
        "from striderl.compat.rsl_rl.storage import RolloutStorage; RolloutStorage('rl', 2, 4, {}, [1])",
        "tensordict",
    ),
    ("neptune", "from striderl.loggers.trackers import NeptuneLogger as L; L('r').log(0, {})", "neptune"),
]


# torch, which takes most of the time, is imported once; every program has a process of its own that begins with it
EACH_ALONE = """
import json, os, sys, tempfile, traceback
import torch
ends = []
for program in json.load(sys.stdin):
    errors = tempfile.TemporaryFile("w+")
    child = os.fork()
    if child == 0:
        os.dup2(errors.fileno(), 2)
        code = 1
        try:
            exec(program, {"__name__": "__main__"})
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    errors.seek(0)
    ends.append((code, errors.read()))
print(json.dumps(ends))
"""


@pytest.fixture(scope="module")
def ends_without(tmp_path_factory):
    """How each of the programs ends where its package is missing: (exit code, errors)."""
    programs = [BLOCK.format(names={package}) + program for package, program, _ in MISSING]
    words, place = [sys.executable, "-c", EACH_ALONE], tmp_path_factory.mktemp("without")
    done = subprocess.run(words, input=json.dumps(programs), cwd=place, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(MISSING)), ids=lambda index: "-".join(MISSING[index][::2]))
def test_a_missing_extra_is_named(index, ends_without):
    (package, _, extra), (code, errors) = MISSING[index], ends_without[index]
    assert code == 1
    last_line = errors.strip().splitlines()[-1]
    assert last_line.startswith("ImportError: ") and f"the package '{package}" in last_line, errors
    assert f"pip install -e '{ROOT}[{extra}]'" in last_line, errors  # what works here: the suite runs in a clone


@pytest.mark.slow
def test_every_extra_that_the_source_asks_for_is_tried_above_and_exists():
    asked = {
        ast.literal_eval(node.args[1])
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "missing_extra"
    }
    assert asked == {extra for _, _, extra in MISSING}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package, _, extra in MISSING:
        assert any(line.startswith(package) for line in extras[extra]), f"{package} is not in the extra {extra!r}"


def test_dependencies_are_as_promised():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    torch = next(line for line in project["dependencies"] if line.startswith("torch"))
    assert torch == "torch>=2.11", "users choose their own build: no pin and no upper bound here"
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert not any("torch" in line for line in build)
    assert "torch==" in (ROOT / "constraints-dev.txt").read_text()
    assert (SOURCE / "py.typed").exists() and (ROOT / "LICENSE").read_text().startswith("MIT License")


def test_versions_agree():
    import striderl

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert striderl.__version__ == project["version"]


# -- what may only fall ------------------------------------------------------------------------------------------------


@functools.cache
def counted():
    """The counters of `tools/house.py`, without those that start a process."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import house
    finally:
        sys.path.remove(str(ROOT / "tools"))
    return house, house.read_house(SOURCE)


@pytest.mark.slow
def test_nothing_imports_itself_in_a_circle():
    house, found = counted()
    assert house.module_cycles(found) == []
    assert house.folder_cycles(found) == []


def test_the_house_does_not_grow():
    house, found = counted()
    limits = tomllib.loads((ROOT / "tools" / "house.toml").read_text())
    assert len(found.modules) <= limits["at_most"]["files"]
    assert house.own_lines(found) <= limits["at_most"]["code_lines_without_compat"]
    assert len(house.duplicate_classes(found)) <= limits["at_most"]["duplicate_class_names"]
    names = {each.name: importlib.import_module(each.name) for each in found.modules.values() if each.is_package}
    own = house.own_names({name: getattr(package, "__all__", []) for name, package in names.items()})
    assert len(own) <= limits["at_most"]["public_names_without_compat"]
    touched = house.private_touches(ROOT / "tests", SOURCE)
    assert len(touched) <= limits["at_most"]["private_attributes_touched_by_tests"], touched
    long = [str(each.path.relative_to(SOURCE)) for each in found.modules.values() if each.lines > 500]
    assert set(long) <= set(limits["long_files"]), "a file has at most 500 lines, or a reason in tools/house.toml"
    wide = {folder.partition(".")[2].replace(".", "/") for folder in house.wide_folders(found)}
    assert wide == set(limits["wide_folders"]), "a folder has at most 15 files, or a reason in tools/house.toml"
