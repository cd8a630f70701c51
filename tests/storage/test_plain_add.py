"""The short way of ordinary steps into a replay stores what the long way stores, and leaves alone what does not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from striderl.data import tree
from striderl.data.specs import TensorSpec
from striderl.data.transition import Transition
from striderl.storage.replay.reader import ReplayReader
from striderl.storage.replay.replay import Replay
from striderl.storage.replay.samplers import Prioritized
from striderl.storage.replay.views import NStep

FLAG = TensorSpec(dtype="bool")
VECTORS: Any = {
    "obs": {"a": TensorSpec(shape=(3,)), "b": TensorSpec(shape=(2,))},
    "act": TensorSpec(shape=(2,)),
    "rew": TensorSpec(),
    **dict.fromkeys(("terminated", "truncated", "valid"), FLAG),
    "info": {"good": FLAG, "tag": TensorSpec(dtype="int64")},
    "policy": {"log_prob": TensorSpec()},
}
DEEP: Any = {**VECTORS, "policy": {"dist": {"mean": TensorSpec(shape=(2,))}}}
IMAGES: Any = {
    **VECTORS,
    "obs": {"image": TensorSpec(shape=(3, 4, 4), dtype="uint8")},
    "act": TensorSpec(dtype="int64"),
}


def random_values(spec: Any, count: int, generator: torch.Generator) -> Any:
    if not isinstance(spec, TensorSpec):
        return {name: random_values(part, count, generator) for name, part in spec.items()}
    dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        return torch.randn(count, *spec.shape, generator=generator)
    return torch.randint(0, 2, (count, *spec.shape), generator=generator).to(dtype)


def step(columns: Any, count: int, generator: torch.Generator, ends: float = 0.0) -> Transition:
    terminated, truncated = (torch.rand(2, count, generator=generator) < ends).unbind()
    parts = {name: random_values(columns[name], count, generator) for name in ("act", "rew", "info", "policy")}
    obs = {name: random_values(columns["obs"], count, generator) for name in ("obs", "next_obs", "final_obs")}
    return Transition(terminated=terminated, truncated=truncated, valid=~truncated, **obs, **parts)


def refused(*_: Any) -> None:
    raise AssertionError("this step should have taken the short way")


@pytest.mark.parametrize("columns", [VECTORS, DEEP, IMAGES], ids=["vectors", "deep", "images"])
@pytest.mark.parametrize("num_envs", [1, 3, 20])
def test_both_ways_store_the_same(columns: Any, num_envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = (Replay(columns, 5 * num_envs, num_envs, sampler=Prioritized()) for _ in range(2))
    monkeypatch.setattr(short.writer, "add", refused)
    monkeypatch.setattr(long, "plain_writer", None)
    generator = torch.Generator().manual_seed(1)
    for _ in range(13):
        taken = step(columns, num_envs, generator)
        short.add(taken)
        long.add(taken)
    assert len(short) == 5 * num_envs
    assert tree.equal(short.state_dict(), long.state_dict())
    assert tree.equal(short.sample(30).data, long.sample(30).data)


@pytest.mark.parametrize("columns", [VECTORS, IMAGES], ids=["vectors", "images"])
def test_steps_of_arrays_are_stored_as_those_of_tensors(columns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    by_array, by_tensor = (Replay(columns, 8, 2) for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    for ends in (0.0, 0.0, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0):
        taken = step(columns, 2, generator, ends)
        with monkeypatch.context() as patched:
            if not (taken.done | ~taken.valid).any():
                patched.setattr(by_array.writer, "add", refused)
            by_array.add(tree.to_numpy(taken))
        by_tensor.add(taken)
    assert tree.equal(by_array.state_dict(), by_tensor.state_dict())
    bad = tree.to_numpy(taken)
    with pytest.raises(ValueError, match=r"'terminated'.* want bool"):
        by_array.add(bad._replace(terminated=bad.terminated.astype("int8")))
    with pytest.raises(ValueError, match="'rew' wants shape"):
        by_array.add(bad._replace(rew=bad.rew[:1]))


def test_what_can_be_converted_is_converted_alike() -> None:
    short, long = (Replay(VECTORS, 4, 2) for _ in range(2))
    long.plain_writer = None
    plain = step(VECTORS, 2, torch.Generator().manual_seed(2))
    for other in (
        plain._replace(rew=plain.rew.double() / 3.0),
        plain._replace(rew=torch.tensor([3, 5])),
        plain._replace(act=plain.act.half()),
        plain._replace(act=plain.act.clone().requires_grad_()),
        plain._replace(obs={"a": plain.obs["a"].numpy(), "b": plain.obs["b"]}),
        plain._replace(next_obs={**plain.next_obs, "b": plain.next_obs["a"].T[:2].T}),
    ):
        short.add(other)
        long.add(other)
        assert tree.equal(short.state_dict(), long.state_dict())


def test_an_ordinary_step_that_does_not_fit_changes_nothing() -> None:
    replay = Replay(VECTORS, 4, 2)
    good = step(VECTORS, 2, torch.Generator().manual_seed(3))
    replay.add(good)
    before = replay.state_dict()
    a, b = good.obs["a"], good.obs["b"]
    wrong: list[tuple[Transition, type[Exception], str]] = [
        (good._replace(act=torch.zeros(2, 3)), ValueError, "'act' wants shape"),
        # together as wide as they should be
        (good._replace(obs={"a": b, "b": a}), ValueError, "'a' wants shape"),
        (good._replace(next_obs={"a": a, "b": b[:1]}), ValueError, "'b' wants shape"),
        (good._replace(rew=torch.zeros(2, 1)), ValueError, "'rew' wants shape"),
        (good._replace(rew=torch.zeros(2, dtype=torch.complex64)), TypeError, "'rew' holds"),
        (good._replace(info={"good": good.info["good"]}), KeyError, "info/tag"),
        (good._replace(info={**good.info, "tag": torch.zeros(2)}), TypeError, "'info/tag' holds torch.int64"),
        (good._replace(info={**good.info, "tag": good.info["tag"][:1]}), ValueError, "'info/tag' wants shape"),
        (good._replace(terminated=torch.zeros(2)), ValueError, "'terminated'.* want bool"),
        (good._replace(valid=torch.ones(3, dtype=torch.bool)), ValueError, r"want shape \[2\]"),
    ]
    for bad, kind, text in wrong:
        with pytest.raises(kind, match=text):
            replay.add(bad)
        assert tree.equal({**before, "generation": 0}, {**replay.state_dict(), "generation": 0})


@pytest.mark.slow
@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("ends", [0.0, 0.04])
def test_windows_by_numpy_are_windows_by_torch(num_envs: int, ends: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a ring of 61 places that goes round twice, the newest step at every place; also for batches at the seam."""
    replay, view = Replay(VECTORS, 60 * num_envs, num_envs), NStep(3, gamma=0.9)
    generator = torch.Generator().manual_seed(4)
    for _ in range(60):
        replay.add(step(VECTORS, num_envs, generator, ends))
    for _ in range(62):
        replay.add(step(VECTORS, num_envs, generator, ends))
        every = replay.read.chronological()
        batches = [every, every[: 20 * num_envs], every[-6:], every[every < 5], every[every > 55 * num_envs]]
        by_numpy = [view(replay.read, index) for index in batches]
        with monkeypatch.context() as patched:
            patched.setattr(ReplayReader, "fast", False)
            by_torch = [view(replay.read, index) for index in batches]
        for one, other in zip(by_numpy, by_torch):
            assert torch.allclose(one.pop("rew"), other.pop("rew"), rtol=1e-5, atol=1e-6)
            assert tree.equal(one, other)
