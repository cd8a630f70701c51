"""The module paths of rlpyt, Tianshou and st_rl: names, arguments and methods of their programs are found there."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
LINES = (HERE / "original_names.txt").read_text().splitlines()
"""Library, module, name(arguments), and members method(arguments) or property, as the originals define them."""


def faults(line: str) -> list[str]:
    """Return what of one line is not found, or does not take its arguments."""
    library, module, first, *members = line.split("\t")
    found = importlib.import_module(".".join(filter(None, ("striderl.compat", library, module))))
    name, _, arguments = first.partition("(")
    kind = getattr(found, name)
    wrong = [] if not arguments or takes(kind, arguments) else [first]
    for member in members:
        method, _, given = member.partition("(")
        owner = kind if method == "__init__" else getattr(kind, method, None)
        if owner is None or (given and not takes(owner, given)):
            wrong.append(f"{module}.{name}.{member}")
    return wrong


def takes(function: object, arguments: str) -> bool:
    names = arguments.rstrip(")").split()
    try:
        inspect.signature(function).bind_partial(**dict.fromkeys(names))  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("library", ["rlpyt", "tianshou"])
def test_every_name_is_at_its_path_with_its_arguments(library: str) -> None:
    lines = [line for line in LINES if line.startswith(f"{library}\t")]
    assert len(lines) > 50
    assert [wrong for line in lines for wrong in faults(line)] == []


@pytest.mark.described("st_rl", 460, "Programs import st_rl.modules as a module, and names from the modules of st_rl.")
def test_the_modules_of_st_rl_and_of_the_first_rsl_rl() -> None:
    from striderl.compat.st_rl.env import VecEnv
    from striderl.compat.st_rl.modules.actor_critic_recurrent import ActorCriticRecurrent, Memory
    from striderl.compat.st_rl.modules.normalizer import Normalizer
    from striderl.compat.st_rl.utils.utils import get_subobs_by_components, split_and_pad_trajectories

    import striderl.compat.st_rl.algorithms as algorithms
    import striderl.compat.st_rl.modules as modules
    from striderl.compat import original_paths, st_rl
    from striderl.compat.st_rl.runners import DemonstrationSaver, build_runner

    for path in original_paths.ST_RL:
        package, _, last = path.rpartition(".")
        found = importlib.import_module(f"striderl.compat.st_rl.{path}")
        if package:  # the module is an attribute of its package, and hides no name of ours
            assert getattr(importlib.import_module(f"striderl.compat.st_rl.{package}"), last) is found
            assert inspect.ismodule(found)
    assert modules.ActorCritic(3, 3, 1).act(torch.zeros(2, 3)).shape == (2, 1)
    assert algorithms.APPO is st_rl.APPO and modules.StateAc is st_rl.StateAc and Normalizer is st_rl.Normalizer
    assert (ActorCriticRecurrent, Memory) == (st_rl.ActorCriticRecurrent, st_rl.Memory)
    assert inspect.isabstract(VecEnv) and callable(build_runner) and inspect.isclass(DemonstrationSaver)
    assert callable(get_subobs_by_components) and callable(split_and_pad_trajectories)
    with pytest.raises(AttributeError, match="has no 'NoSuchModel'"):
        _ = modules.NoSuchModel


def test_names_that_are_the_same_in_two_modules_are_apart() -> None:
    from striderl.compat.rlpyt.algos.dqn.dqn import OptInfo as DqnOptInfo
    from striderl.compat.rlpyt.algos.pg.base import OptInfo
    from striderl.compat.rlpyt.distributions.categorical import DistInfo
    from striderl.compat.rlpyt.distributions.gaussian import DistInfo as GaussianDistInfo
    from striderl.compat.rlpyt.utils.array import to_onehot as of_arrays
    from striderl.compat.rlpyt.utils.tensor import to_onehot as of_tensors

    assert OptInfo._fields == ("loss", "gradNorm", "entropy", "perplexity")
    assert DqnOptInfo._fields == ("loss", "gradNorm", "tdAbsErr")
    assert DistInfo._fields == ("prob",) and GaussianDistInfo._fields == ("mean",)
    assert of_arrays is not of_tensors


def test_a_path_with_state_is_our_module_itself() -> None:
    from striderl.compat.rlpyt.utils.logging import logger as theirs

    from striderl.compat.rlpyt import logger

    assert theirs is logger and logger.__spec__.name == "striderl.compat.rlpyt.logger"


def test_a_name_or_path_that_the_original_lacks_is_refused() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        from striderl.compat.rlpyt.algos.dqn.dqn import Nothing  # noqa: F401
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("striderl.compat.rlpyt.algos.dqn.nothing")
    with pytest.raises(AttributeError, match="it has data, env"):
        importlib.import_module("striderl.compat.tianshou").nothing  # noqa: B018


@pytest.mark.slow
def test_tianshou_as_one_module() -> None:
    program = (
        "import striderl.compat.tianshou as ts\n"
        "assert ts.policy.DQNPolicy and ts.trainer.offpolicy_trainer and ts.env.DummyVectorEnv\n"
        "assert ts.data.Batch(a=[1]).a[0] == 1 and ts.utils.MovAvg and ts.exploration.GaussianNoise\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
