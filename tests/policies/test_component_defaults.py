"""Images get a CNN and discrete components become one-hot, unless a stage or a setting says otherwise."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.component_defaults import component_defaults, is_picture
from striderl.policies.encode import Encode
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, OneHot, Remember
from striderl.policies.value_functions import ChoiceQFunction, QFunction, QFunctionConfig, ValueFunction

BOX, CHOICE = BoxSpec(shape=(2,), low=-1.0, high=1.0), DiscreteSpec(n=2)
SMALL = {"actor_hidden_dims": (8,), "critic_hidden_dims": (8,)}
CAMERA = ComponentSpec(shape=(12, 10, 3), dtype="uint8")
CELL = ComponentSpec(dtype="int64", num_choices=(4,))
MIXED = ObsSpec({"camera": CAMERA, "cell": CELL, "speed": ComponentSpec(shape=(2,))})


def build(spec: ObsSpec, action: Any = CHOICE, **settings: Any) -> Policy:
    torch.manual_seed(0)
    return Policy(spec, action, PolicyConfig(**{**SMALL, **settings}))


def observe(*lead: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "camera": torch.randint(0, 256, (*lead, 12, 10, 3), generator=generator, dtype=torch.uint8),
        "cell": torch.randint(0, 4, lead, generator=generator),
        "speed": torch.randn(*lead, 2, generator=generator),
    }


# -- choices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "value", "wanted"),
    [
        (gymnasium.spaces.Discrete(3), 1, [0, 1, 0]),
        (gymnasium.spaces.Discrete(3, start=5), 7, [0, 0, 1]),
        (gymnasium.spaces.Discrete(2, start=-1), -1, [1, 0]),
        (gymnasium.spaces.MultiDiscrete([3, 2]), [2, 0], [0, 0, 1, 1, 0]),
        (gymnasium.spaces.MultiDiscrete([[2, 2], [1, 3]]), [[0, 1], [0, 2]], [1, 0, 0, 1, 1, 0, 0, 1]),
    ],
)
def test_one_hot_by_hand(space, value, wanted):
    spec = ObsSpec.from_space(space)
    policy = build(spec)
    assert policy.actor.output_spec["obs"].shape == (len(wanted),)
    for lead in ((2,), (3, 2)):
        obs = torch.as_tensor(np.asarray(value, space.dtype)).expand(*lead, *space.shape)
        passed = policy.actor.stages["0_OneHot"](_flow({"obs": obs}))
        assert passed.obs["obs"].tolist() == torch.tensor(wanted, dtype=torch.float32).expand(*lead, -1).tolist()


def _flow(obs: dict[str, torch.Tensor]) -> Any:
    from striderl.policies.stage import StageInput

    return StageInput(obs, {}, {})


def test_a_value_that_there_is_not_is_all_zeros():
    stage = OneHot(components=("obs",)).build(ObsSpec({"obs": CELL}), ObsSpec({"obs": CELL}))
    assert stage(_flow({"obs": torch.tensor([4, -1])})).obs["obs"].tolist() == [[0.0] * 4] * 2


def test_components_without_choices_are_refused_by_name():
    spec = ObsSpec.from_flat(3)
    with pytest.raises(ValueError, match=r"num_choices.*'obs'"):
        OneHot(components=("obs",)).build(spec, spec)
    with pytest.raises(ValueError, match="for each of the 2 entries"):
        ComponentSpec(shape=(2,), dtype="int64", num_choices=(3,))


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "wanted"),
    [
        ((84, 84, 3), "uint8", True),
        ((4, 84, 84), "uint8", True),
        ((7, 7, 3), "uint8", True),
        ((3, 64, 64), "float32", True),
        ((1, 2, 3), "float32", False),  # no image has two rows
        ((84, 84), "uint8", False),
        ((84, 84, 3), "int64", False),
        ((84, 84, 3), "bool", False),
    ],
)
def test_what_is_an_image(shape, dtype, wanted):
    assert is_picture(ComponentSpec(shape=shape, dtype=dtype)) is wanted


@pytest.mark.parametrize(
    ("shape", "first", "features"),
    [
        ((84, 84, 3), (32, 3, 8, 8), 512),
        ((4, 84, 96), (32, 4, 8, 8), 512),
        ((64, 64, 1), (32, 1, 8, 8), 512),
        ((40, 40, 3), (16, 3, 3, 3), 128),
        ((5, 5, 2), (16, 2, 3, 3), 128),
    ],
)
def test_the_cnn_is_sized_to_the_image(shape, first, features):
    policy = build(ObsSpec({"obs": ComponentSpec(shape=shape, dtype="uint8")}))
    for part in (policy.actor, policy.critic):
        assert part.output_spec["obs"].shape == (features,)
        assert part.stages["0_Encode"].encoders["of_obs"].conv.conv[0].weight.shape == first
    output = policy({"obs": torch.zeros(2, *shape, dtype=torch.uint8)}, {}, {})
    assert output.value.shape == (2,)


def test_both_orders_of_axes_are_one_image():
    last, first = (build(ObsSpec({"obs": ComponentSpec(shape=s, dtype="uint8")})) for s in ((9, 8, 3), (3, 9, 8)))
    first.load_state_dict(last.state_dict())
    image = torch.randint(0, 256, (5, 9, 8, 3), dtype=torch.uint8)
    one, other = last({"obs": image}, {}, {}), first({"obs": image.permute(0, 3, 1, 2)}, {}, {})
    torch.testing.assert_close(one.value, other.value)


def test_bytes_are_scaled_inside_the_policy():
    spec = {"shape": (8, 8, 1)}
    of_bytes = build(ObsSpec({"obs": ComponentSpec(**spec, dtype="uint8")}))
    of_floats = build(ObsSpec({"obs": ComponentSpec(**spec)}))
    image = torch.randint(0, 256, (4, 8, 8, 1), dtype=torch.uint8)
    one, other = of_bytes({"obs": image}, {}, {}), of_floats({"obs": image / 255.0}, {}, {})
    torch.testing.assert_close(one.value, other.value)


# -- what is left alone ------------------------------------------------------------------------------------------------


def test_vectors_are_untouched():
    spec = ObsSpec.from_segments({"joints": 4, "scan": (2, 3), "tiny": (1, 2, 3)})
    policy = build(spec, BOX, actor=(NormalizeObs(),))
    off = build(spec, BOX, actor=(NormalizeObs(),), flatten_images=True, one_hot=False)
    assert list(policy.state_dict()) == list(off.state_dict())
    assert all(torch.equal(one, off.state_dict()[name]) for name, one in policy.state_dict().items())
    assert list(policy.actor.stages) == ["0_NormalizeObs"] and not policy.critic.stages
    assert not build(spec, BOX).has_stages


def test_settings_turn_each_off():
    policy = build(MIXED, flatten_images=True, one_hot=False)
    assert not policy.actor.stages and policy.actor_body.model[0].weight.shape[1] == 12 * 10 * 3 + 1 + 2
    assert list(build(MIXED, one_hot=False).actor.stages) == ["0_Encode"]
    assert list(build(MIXED, flatten_images=True).actor.stages) == ["0_OneHot"]


def test_a_stage_that_names_the_component_is_what_counts():
    own = Encode(components=("camera",), output_size=5)
    policy = build(MIXED, actor=(own,))
    assert list(policy.actor.stages) == ["0_Encode", "1_OneHot"]
    assert policy.actor.output_spec["camera"].shape == (5,)


def test_a_memory_reads_what_was_encoded():
    policy = build(MIXED, actor=(NormalizeObs(), Remember(type="gru", hidden_size=6)))
    assert list(policy.actor.stages) == ["0_NormalizeObs", "1_Encode", "2_OneHot", "3_Remember"]
    assert policy.actor.stages["3_Remember"].input_spec.size == 128 + 4 + 2
    output = policy(observe(7, 3), policy.initial_state(3), {})
    assert output.value.shape == (7, 3)


def test_a_trunk_with_a_memory_encodes_before_it():
    policy = build(MIXED, trunk=(Remember(type="gru", hidden_size=6),))
    assert list(policy.trunk.stages) == ["0_Encode", "1_OneHot", "2_Remember"]
    assert not policy.actor.stages
    without = build(MIXED, trunk=(NormalizeObs(),))
    assert list(without.trunk.stages) == ["0_NormalizeObs"] and list(without.actor.stages) == ["0_Encode", "1_OneHot"]


def test_running_statistics_skip_images_and_choices():
    spec = ObsSpec({"camera": ComponentSpec(shape=(8, 8, 1)), "cell": CELL, "speed": ComponentSpec(shape=(2,))})
    policy = build(spec, actor=(NormalizeObs(),), critic=(NormalizeObs(),))
    assert list(policy.actor.stages["0_NormalizeObs"].normalizers) == ["of_speed"]
    only_image = build(ObsSpec({"camera": spec["camera"]}), actor=(NormalizeObs(),))
    assert list(only_image.actor.stages) == ["0_Encode"]  # nothing is left to normalise
    own = Encode(components=("camera",), output_size=4)
    explicit = build(spec, actor=(NormalizeObs(), own))
    assert "of_camera" in explicit.actor.stages["0_NormalizeObs"].normalizers  # as it always was


# -- all kinds of policies ---------------------------------------------------------------------------------------------


def test_actors_and_critics_without_a_policy():
    obs, size = observe(3), 128 + 4 + 2
    actor = ActorPolicy(MIXED, BOX, ActorConfig(hidden_dims=(8,), stages=(NormalizeObs(),)))
    assert actor.actor.output_spec.size == size and actor.act(obs, {}, {})[0].mode().shape == (3, 2)
    config = QFunctionConfig(hidden_dims=(8,))
    assert QFunction(MIXED, BOX, config)(obs, torch.zeros(3, 2)).shape == (2, 3)
    assert ChoiceQFunction(MIXED, CHOICE, config)(obs).shape == (2, 3, 2)
    assert ValueFunction(MIXED, config)(obs).shape == (3,)
    off = QFunction(MIXED, BOX, QFunctionConfig(hidden_dims=(8,), flatten_images=True, one_hot=False))
    assert off.pipeline.output_spec.size == 12 * 10 * 3 + 1 + 2


def test_one_line_per_component_states_it(caplog):
    with caplog.at_level(logging.INFO, logger="striderl.policies"):
        build(MIXED)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "image 'camera', uint8 [12, 10, 3], is encoded by a CNN of 128 features; flatten_images=True" in lines[0]
    assert "component 'cell' of 4 choices enters as a one-hot vector of 4; one_hot=False" in lines[1]
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="striderl.policies"):
        build(MIXED, flatten_images=True, one_hot=False)
        build(ObsSpec.from_flat(3))
    assert [record.getMessage() for record in caplog.records] == [
        "policy: image 'camera', [12, 10, 3], is flattened into the layers"
    ]
    caplog.clear()
    planes = {
        "gray": ComponentSpec(shape=(8, 8), dtype="uint8"),
        "film": ComponentSpec(shape=(2, 8, 8, 3), dtype="uint8"),
    }
    with caplog.at_level(logging.INFO, logger="striderl.policies"):
        build(ObsSpec(planes))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 and all("flattened into the layers; with three axes" in line for line in lines)


def test_masks_are_no_observations():
    spec = ObsSpec({"allowed": ComponentSpec(shape=(3, 3, 3), dtype="uint8", group="action_mask")})
    found = component_defaults(spec, ())
    assert not found.images and not found.choices
