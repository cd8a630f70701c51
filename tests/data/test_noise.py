"""Counter-based random numbers: the published test vectors, and independence of who shares the work."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from striderl.data.noise import NoiseSpec, draw, draw_all, normal, philox, stream_id, uniform

# Known answers for philox4x32-10 from the Random123 distribution (kat_vectors): counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, 0xFFFFFFFFFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_published_vectors_in_numpy_and_torch(counter, key, result):
    arrays = tuple(np.array([word], np.int64) for word in counter)
    tensors = tuple(torch.tensor([word], dtype=torch.int64) for word in counter)
    assert tuple(int(word[0]) for word in philox(arrays, key)) == result
    assert tuple(int(word[0]) for word in philox(tensors, key)) == result


@pytest.mark.parametrize("kind", ["uniform", "normal", "gumbel", "exponential", "bits"])
def test_an_env_keeps_its_numbers_wherever_it_runs(kind):
    spec = NoiseSpec(shape=(3,), kind=kind)
    whole = draw(spec, "x", seed=9, iteration=4, env_index=torch.arange(8), num_steps=5)
    assert whole.shape == (5, 8, 3)
    for part in ([0, 1, 2, 3], [4, 5, 6, 7], [7, 2], [5]):
        some = draw(spec, "x", seed=9, iteration=4, env_index=torch.tensor(part), num_steps=5)
        assert torch.equal(some, whole[:, part])


def test_every_part_of_the_key_matters():
    spec = NoiseSpec(shape=(4,))
    base = {"seed": 1, "iteration": 2, "env_index": torch.arange(3), "num_steps": 2}
    reference = draw(spec, "a", **base)
    for change in ({"seed": 2}, {"seed": 1 + 2**40}, {"iteration": 3}, {"env_index": torch.arange(3) + 3}):
        assert not (draw(spec, "a", **{**base, **change}) == reference).any()
    assert not (draw(spec, "b", **base) == reference).any()
    assert stream_id("a") != stream_id("b")


def test_adding_a_name_changes_no_other():
    few = draw_all({"a": NoiseSpec()}, seed=0, iteration=0, env_index=torch.arange(2), num_steps=3)
    more = draw_all({"b": NoiseSpec(), "a": NoiseSpec()}, seed=0, iteration=0, env_index=torch.arange(2), num_steps=3)
    assert torch.equal(few["a"], more["a"])


@pytest.mark.parametrize(
    ("kind", "mean", "std"),
    [("uniform", 0.5, 12**-0.5), ("normal", 0.0, 1.0), ("gumbel", 0.5772, 1.2825), ("exponential", 1.0, 1.0)],
)
def test_moments(kind, mean, std):
    x = draw(NoiseSpec(shape=(5,), kind=kind), "m", seed=3, iteration=1, env_index=torch.arange(1000), num_steps=40)
    count = x.numel()
    # five standard errors; the std's error needs the fourth moment, at most 5.4 std^4 for these four
    assert abs(float(x.mean()) - mean) < 5 * std / count**0.5
    assert abs(float(x.std()) - std) < 5 * 1.1 * std / count**0.5 * 1.5
    assert bool(torch.isfinite(x).all())


def test_normal_numbers_are_uncorrelated_and_reach_the_tails():
    x = draw(NoiseSpec(shape=(4,)), "t", seed=5, iteration=0, env_index=torch.arange(4096), num_steps=64)
    flat = x.reshape(-1, 4).double()
    correlation = torch.corrcoef(flat.T) - torch.eye(4)
    assert float(correlation.abs().max()) < 5 / len(flat) ** 0.5
    assert float((x[1:] * x[:-1]).mean().abs()) < 5 / x.numel() ** 0.5
    assert 4.5 < float(x.abs().max()) < 7.0


def test_numpy_draws_are_keyed_by_env_and_occasion():
    envs = np.arange(6)
    occasion = np.array([0, 3, 3, 1, 0, 7])
    whole = uniform("reset", seed=2, env_index=envs, occasion=occasion, count=5)
    assert whole.shape == (6, 5) and (whole >= 0).all() and (whole < 1).all()
    for env in envs:
        alone = uniform("reset", seed=2, env_index=np.array([env]), occasion=int(occasion[env]), count=5)
        np.testing.assert_array_equal(alone[0], whole[env])
    assert len(np.unique(whole)) == whole.size
    many = normal("n", seed=2, env_index=np.arange(20_000), occasion=0, count=3)
    assert abs(many.mean()) < 0.02 and abs(many.std() - 1) < 0.02


def test_odd_shapes_and_unknown_kinds():
    assert draw(NoiseSpec(), "s", seed=0, iteration=0, env_index=torch.arange(2), num_steps=1).shape == (1, 2)
    assert draw(NoiseSpec(shape=(2, 3)), "s", seed=0, iteration=0, env_index=torch.arange(2), num_steps=1).shape == (
        1,
        2,
        2,
        3,
    )
    assert NoiseSpec(kind="bits").tensor.dtype == "int64"
    with pytest.raises(ValueError, match=r"no kind 'normall'. Did you mean 'normal'"):
        NoiseSpec(kind="normall")


@pytest.mark.parametrize("kind", ["uniform", "normal", "gumbel", "exponential", "bits"])
@pytest.mark.parametrize("shape", [(), (2,), (3, 3), (0,)])
def test_iterations_drawn_together_are_those_drawn_apart(kind, shape):
    spec, env, first = NoiseSpec(shape=shape, kind=kind), torch.tensor([4, 0, 9]), 2**32 - 2
    apart = [
        draw(spec, "x", seed=3, iteration=iteration, env_index=env, num_steps=5)
        for iteration in range(first, first + 3)
    ]
    together = draw(spec, "x", seed=3, iteration=range(first, first + 3), env_index=env, num_steps=5)
    assert torch.equal(together, torch.cat(apart)) and together.shape == (15, 3, *shape)
    # by torch, as on a GPU, what the CPU does with numpy
    numbers = torch.arange(first, first + 3)
    assert torch.equal(draw(spec, "x", seed=3, iteration=numbers, env_index=env, num_steps=5), together)
