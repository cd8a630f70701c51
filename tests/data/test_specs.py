"""Observation and action specs: built from everything a simulator may offer, and refusing what does not fit."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from striderl.data.actions import BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec, action_spec_from_space
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec, dtype_name, torch_dtype


@pytest.fixture
def spec():
    return ObsSpec.from_segments({"command": 3, "joints": 12, "height_scan": (1, 2, 3)})


def test_segments_are_views_of_the_flat_vector(spec):
    for flat in (np.arange(42.0).reshape(2, 21), torch.arange(42.0).reshape(2, 21)):
        parts = spec.split(flat)
        assert parts["height_scan"].shape == (2, 1, 2, 3)
        assert float(parts["joints"][1, 0]) == 24  # 21 + 3
        parts["height_scan"][0, 0, 0, 0] = -1
        assert float(flat[0, 15]) == -1
        back = spec.flatten(parts)
        assert back.shape == flat.shape and bool((back == flat).all())
    assert spec.slices() == {"command": slice(0, 3), "joints": slice(3, 15), "height_scan": slice(15, 21)}


def test_splitting_keeps_time_and_env_dimensions(spec):
    assert spec.split(torch.zeros(5, 4, 21))["height_scan"].shape == (5, 4, 1, 2, 3)


def test_order_is_the_specs_not_the_askers(spec):
    assert spec.select(["joints", "command"]).names == ("command", "joints")
    obs = {"height_scan": torch.ones(1, 1, 2, 3), "joints": torch.full((1, 12), 2.0), "command": torch.zeros(1, 3)}
    assert spec.flatten(obs)[0, :4].tolist() == [0, 0, 0, 2]


def test_groups():
    spec = ObsSpec(
        {
            "proprio": ComponentSpec(shape=(4,)),
            "friction": ComponentSpec(shape=(1,), group="critic"),
            "scan": ComponentSpec(shape=(9,), group="critic", scale=5.0),
        }
    )
    assert spec.groups == ("policy", "critic")
    assert spec.select(["critic"]).names == ("friction", "scan")
    assert spec.select(["critic", "proprio"]).names == ("proprio", "friction", "scan")
    with pytest.raises(KeyError, match=r"no component or group 'critci'. Did you mean 'critic'"):
        spec.select(["critci"])
    with pytest.raises(KeyError, match="Did you mean 'friction'"):
        spec["fricton"]
    with pytest.raises(ValueError, match="both specs"):
        spec.merged(spec)


def test_from_tensors_and_tensordict():
    tensordict = pytest.importorskip("tensordict")
    obs = {
        "policy": torch.zeros(4, 48),
        "image": torch.zeros(4, 1, 8, 8, dtype=torch.uint8),
        "in": {"a": torch.zeros(4)},
    }
    spec = ObsSpec.from_tensors(obs, groups={"image": "vision"})
    assert spec["image"] == ComponentSpec(shape=(1, 8, 8), dtype="uint8", group="vision")
    assert spec["in/a"].shape == ()
    assert ObsSpec.from_tensors(tensordict.TensorDict(obs, batch_size=[4])).names == spec.names
    assert ObsSpec.from_tensors({"x": np.zeros((4, 2), np.int64)})["x"].dtype == "int64"


def test_from_space():
    box = gym.spaces.Box(-1, 1, (3,), np.float32)
    space = gym.spaces.Dict(b=box, a=gym.spaces.Dict(c=gym.spaces.Discrete(4)), t=gym.spaces.Tuple((box, box)))
    spec = ObsSpec.from_space(space)
    assert set(spec) == {"a/c", "b", "t/0", "t/1"} and spec["a/c"].dtype == "int64"
    assert ObsSpec.from_space(box).names == ("obs",)
    with pytest.raises(TypeError, match="Text"):
        ObsSpec.from_space(gym.spaces.Dict(x=gym.spaces.Text(5)))


def test_flat_size_must_agree_with_the_segments():
    assert ObsSpec.from_flat(48).names == ("obs",)
    with pytest.raises(ValueError, match=r"add up to 5 numbers \(a=2, b=3\), but the observation has 6"):
        ObsSpec.from_flat(6, {"a": 2, "b": 3})


def test_wrong_observations_are_named(spec):
    with pytest.raises(ValueError, match="20 numbers, the spec wants 21"):
        spec.split(torch.zeros(2, 20))
    obs = spec.split(torch.zeros(2, 21))
    with pytest.raises(KeyError, match=r"MyEnv has no component 'joints'. Did you mean 'joint'"):
        spec.require({**{k: v for k, v in obs.items() if k != "joints"}, "joint": 0}, where="MyEnv")
    with pytest.raises(ValueError, match="'joints' wants shape"):
        spec.require({**obs, "joints": torch.zeros(2, 11)})
    with pytest.raises(TypeError, match="non-empty strings"):
        ObsSpec({3: ComponentSpec()})
    with pytest.raises(TypeError, match="wanted a ComponentSpec"):
        ObsSpec({"a": TensorSpec()})
    with pytest.raises(ValueError, match="negative"):
        TensorSpec(shape=(-1,))


def test_dtypes_have_one_name():
    assert dtype_name(torch.float32) == dtype_name(np.float32) == dtype_name("float32") == "float32"
    assert dtype_name(bool) == dtype_name(torch.bool) == "bool" and torch_dtype("bfloat16") is torch.bfloat16
    with pytest.raises(TypeError, match="cannot be stored"):
        dtype_name(np.dtype("U3"))


def test_specs_are_hashable_and_equal_by_value(spec):
    again = ObsSpec.from_segments({"command": 3, "joints": 12, "height_scan": (1, 2, 3)})
    assert spec == again and hash(spec) == hash(again)
    reordered = ObsSpec.from_segments({"joints": 12, "command": 3, "height_scan": (1, 2, 3)})
    assert spec.slices() != reordered.slices() and spec != reordered


def test_action_specs_from_spaces():
    box = action_spec_from_space(gym.spaces.Box(np.array([-1, -2]), np.array([1, 2]), dtype=np.float32))
    assert isinstance(box, BoxSpec) and box.bounds()[1].tolist() == [1, 2]
    assert action_spec_from_space(gym.spaces.Discrete(4), mask="allowed") == DiscreteSpec(n=4, mask="allowed")
    assert action_spec_from_space(gym.spaces.MultiDiscrete([2, 3])) == MultiDiscreteSpec(nvec=(2, 3))
    assert action_spec_from_space(gym.spaces.MultiBinary(3)) == MultiDiscreteSpec(nvec=(2, 2, 2))
    both = action_spec_from_space(gym.spaces.Dict(go=gym.spaces.Discrete(2), how=gym.spaces.Box(0, 1, (2,))))
    assert isinstance(both, DictActionSpec) and both.tensor["how"].shape == (2,) and both.tensor["go"].dtype == "int64"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: BoxSpec(shape=(2,), low=(0.0,)), "1 numbers for an action of 2"),
        (lambda: BoxSpec(shape=(1,), low=2.0, high=1.0), "above high"),
        (lambda: BoxSpec(shape=(2,), names=("hip",)), "1 names for an action of 2"),
        (lambda: DiscreteSpec(n=0), "at least one choice"),
        (lambda: MultiDiscreteSpec(nvec=(2, 0)), "at least one choice"),
        (lambda: DictActionSpec({}), "at least one part"),
        (lambda: action_spec_from_space(gym.spaces.Discrete(3, start=1)), "start=1"),
        (
            lambda: action_spec_from_space(gym.spaces.MultiDiscrete([3, 4], start=[0, 2])),
            r"MultiDiscrete.*start=\[0 2\]",
        ),
        (lambda: action_spec_from_space(gym.spaces.Box(0, 1, (2,)), mask="m"), "no choices to mask"),
    ],
)
def test_bad_action_specs(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_mistakes_in_small_specs_are_named():
    from striderl.data.arena import Arena
    from striderl.data.noise import NoiseSpec

    with pytest.raises(TypeError, match=r"no dtype 'flaot32'.*Did you mean 'float32'"):
        TensorSpec(dtype="flaot32")
    with pytest.raises(ValueError, match="negative"):
        NoiseSpec(shape=(-2,))
    with pytest.raises(ValueError, match="negative"):
        Arena({"a": TensorSpec()}, (-2,))
    with pytest.raises(TypeError, match="found '3'"):
        ObsSpec.from_segments({"a": "3"})
