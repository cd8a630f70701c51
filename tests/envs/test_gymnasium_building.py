"""Envs that cannot be built from what was given: one line that says what was wanted, found, and what to do."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from faulty_envs import ChainEnv

from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.tasks import make
from striderl.envs.workers.errors import EnvRaised
from striderl.envs.workers.pool import WorkerConfig

HERE = WorkerConfig()
WORKERS = WorkerConfig(num_workers=2, start_method="fork")


def needs_box2d() -> Any:
    raise gymnasium.error.DependencyNotInstalled("Box2D is not installed; pip install swig")


def needs_a_module() -> Any:
    import surely_not_installed  # noqa: F401


def raises_type_error() -> Any:
    return len(3)  # type: ignore[arg-type]


for name, entry_point in (("Box", needs_box2d), ("Module", needs_a_module), ("Broken", raises_type_error)):
    if f"Striderl{name}-v0" not in gymnasium.registry:
        gymnasium.register(f"Striderl{name}-v0", entry_point)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [HERE, WORKERS], ids=["here", "workers"])
@pytest.mark.parametrize(
    ("env", "kwargs", "error", "pattern"),
    [
        ("Nope-v1", {}, ValueError, "no env 'Nope-v1': Environment `Nope` doesn't exist"),
        ("CartPol-v1", {}, ValueError, "Did you mean: `CartPole`"),
        ("CartPole-v9", {}, ValueError, "Environment version `v9` for environment `CartPole` doesn't exist"),
        ("nowhere/CartPole-v1", {}, ValueError, "Namespace nowhere not found"),
        ("Cart Pole!", {}, ValueError, "Malformed environment ID"),
        (
            "CartPole-v1",
            {"nope": 1},
            TypeError,
            r"does not take all of \(nope=1\): .*unexpected keyword argument 'nope'",
        ),
        (
            "StriderlBox-v0",
            {},
            ImportError,
            "'StriderlBox-v0' needs something.*Box2D is not installed; pip install swig",
        ),
        ("StriderlModule-v0", {}, ImportError, "No module named 'surely_not_installed'"),
        ("surely_not:Env-v0", {}, ImportError, "No module named 'surely_not'"),
        (lambda: None, {}, TypeError, "env 0: its builder wants to return a gymnasium.Env, found NoneType"),
        (lambda: ChainEnv, {}, TypeError, "env 0: .*found the class ChainEnv, not an object of it"),
        (lambda level: ChainEnv(level), {"lvel": 1}, TypeError, r"takes \(level\), found \['lvel'\]"),
        (None, {}, TypeError, "env: wanted an id, a spec, a function .*found NoneType None"),
    ],
)
def test_what_cannot_be_built_is_said_in_one_line(
    env: Any, kwargs: dict[str, Any], error: type[Exception], pattern: str, workers: WorkerConfig
):
    with pytest.raises(error, match=pattern) as caught:
        GymnasiumEnv(env, 2, env_kwargs=kwargs, workers=workers)
    assert "Traceback" not in str(caught.value) and "\n" not in str(caught.value)
    shown = caught.value.__cause__ or (None if caught.value.__suppress_context__ else caught.value.__context__)
    assert shown is None, "another traceback is printed before ours"


def test_make_says_the_same():
    with pytest.raises(ValueError, match="Environment `Nope` doesn't exist"):
        make("gymnasium:Nope-v1")
    with pytest.raises(TypeError, match="unexpected keyword argument 'nope'"):
        make("gymnasium:CartPole-v1", settings={"nope": 1})


def test_ids_without_version_and_with_a_module_still_work():
    for name in ("CartPole", "gymnasium:CartPole-v1"):
        with GymnasiumEnv(name, 2) as env:
            assert env.reset(0)["obs"].shape == (2, 4)


@pytest.mark.parametrize("workers", [HERE, WORKERS], ids=["here", "workers"])
def test_errors_of_the_envs_own_code_keep_their_traceback(workers: WorkerConfig):
    with pytest.raises(EnvRaised, match=r"(?s)env 0 .*phase init.*Traceback.*return len\(3\)"):
        GymnasiumEnv("StriderlBroken-v0", 2, workers=workers)


def test_an_env_that_is_already_built_is_refused():
    built = gymnasium.make("CartPole-v1")
    with pytest.raises(TypeError, match=r"env: .*already built .*Give what builds it"):
        GymnasiumEnv(built, 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"env\[1\]: .*already built"):
        GymnasiumEnv([ChainEnv, built])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"env\[0\]: wanted a function that builds an env, found str 'CartPole-v1'"):
        GymnasiumEnv(["CartPole-v1"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"workers": 2}, r"found int 2; write workers=WorkerConfig\(num_workers=2\)"),
        ({"workers": None}, "wanted a WorkerConfig, found NoneType"),
        ({"info_keys": ["a"]}, r"wanted a dict from name to TensorSpec, found list \['a'\]; write info_keys="),
        ({"info_keys": {"a": "float32"}}, "from name to TensorSpec, found dict"),
        ({"env_kwargs": [1]}, "env_kwargs: wanted a dict"),
        ({"num_envs": "2"}, "num_envs: wanted a whole number, found str '2'"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(arguments: dict[str, Any], pattern: str):
    with pytest.raises(TypeError, match=pattern):
        GymnasiumEnv("CartPole-v1", **{"num_envs": 2, **arguments})
