"""Weights move between policies by the names of components."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.policies.encode import Encode
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.presets.state import EncoderStateAcRecurrent
from striderl.policies.spaces import make_spaces
from striderl.policies.stages import NormalizeObs, Override, Remember
from striderl.policies.transfer.load import (
    TransferError,
    input_columns,
    load_exactly,
    load_from_segments,
    load_misaligned_state_dict,
)

ACTIONS = BoxSpec(shape=(2,))
SMALL = {"actor_hidden_dims": (6,), "critic_hidden_dims": (5,)}
MEMORY = Remember(type="gru", hidden_size=4)


def spec(**sizes):
    """Components by name and size; 'friction' is privileged."""
    return ObsSpec(
        {
            name: ComponentSpec(
                shape=size if isinstance(size, tuple) else (size,), group="critic" if name == "friction" else "policy"
            )
            for name, size in sizes.items()
        }
    )


OLD = spec(joints=3, command=2, imu=2, friction=1)
REORDERED = spec(friction=1, imu=2, joints=3, command=2)
GROWN = spec(scan=4, joints=3, command=2, imu=2, friction=1)
SHRUNK = spec(imu=2, joints=3, friction=1)

ESTIMATE = Estimate(obs_components=("joints", "imu"), target_components=("command", "friction"), hidden_sizes=(3,))
KINDS = {
    "plain": {},
    "linear": {"actor_hidden_dims": (), "critic_hidden_dims": ()},
    "normalised": {"trunk": (NormalizeObs(),)},
    "gru": {"actor": (MEMORY,), "critic": (MEMORY,)},
    "lstm": {"actor": (replace(MEMORY, type="lstm", num_layers=2),)},
    "encoded": {"actor": (Encode(components=("joints",), output_size=3), MEMORY)},
    "shared": {"trunk": (Encode(components=("joints", "imu"), output_size=3),)},
    "estimated": {"actor": (ESTIMATE, MEMORY)},
    "estimated linearly": {"actor": (replace(ESTIMATE, hidden_sizes=()),)},
    "estimated with memory": {"actor": (replace(ESTIMATE, memory=MEMORY),)},
    "adapted": {"actor": (Adapt(obs_components=("joints", "imu"), target_components=("friction",)), MEMORY)},
    "overridden": {"actor": (Override(component="imu", values=(1.0, 2.0)),)},
    "everything": {
        "trunk": (NormalizeObs(),),
        "actor": (ESTIMATE, Encode(components=("joints",), output_size=3), MEMORY),
        "critic": (Encode(components=("imu",), output_size=3), MEMORY),
    },
}


def build(obs_spec, kind="plain", seed=0, **settings):
    torch.manual_seed(seed)
    policy = Policy(obs_spec, ACTIONS, PolicyConfig(**{**SMALL, **KINDS[kind], **settings}))
    policy.update_normalization({name: 2.0 + 3.0 * torch.randn(50, *part.shape) for name, part in obs_spec.items()})
    return policy


def observe(obs_spec, seed=7, num_envs=4):
    """The same numbers for the same name, whatever else is observed."""
    return {
        name: torch.randn(num_envs, *part.shape, generator=torch.Generator().manual_seed(seed + sum(name.encode())))
        for name, part in obs_spec.items()
    }


def run(policy, obs):
    """Two steps: actions, values and estimates."""
    state = policy.initial_state(4)
    found = []
    with torch.no_grad():
        for scale in (1.0, -0.5):
            seen = {name: scale * value for name, value in obs.items()}
            output = policy(seen, state, policy.settled(torch.zeros(4)))
            state = output.state
            estimates = [value for key, value in sorted(output.aux.items()) if "estimate/" in key]
            found += [output.distribution.mode(), output.value, *estimates]
    return found


def assert_equal(found, wanted):
    assert len(found) == len(wanted)
    for one, two in zip(found, wanted):
        assert torch.allclose(one, two, atol=1e-6), (one - two).abs().max()


def snapshot(policy):
    return {name: value.clone() for name, value in policy.state_dict().items()}


def assert_unchanged(policy, before):
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


# -- which columns read what -------------------------------------------------------------------------------------------


def test_columns_of_a_plain_policy_can_be_written_down():
    columns = input_columns(build(OLD))
    actor = {"joints": slice(0, 3), "command": slice(3, 5), "imu": slice(5, 7)}
    assert columns == {
        "actor_body.model.0.weight": actor,
        "critic_body.model.0.weight": {**actor, "friction": slice(7, 8)},
    }


def test_columns_of_stages_can_be_written_down():
    columns = input_columns(build(OLD, "everything"))
    assert columns["actor.stages.0_Estimate.network.model.0.weight"] == {"joints": slice(0, 3), "imu": slice(3, 5)}
    assert columns["actor.stages.1_Encode.encoders.of_joints.model.0.weight"] == {"joints": slice(0, 3)}
    assert columns["actor.stages.2_Remember.memory.rnn.weight_ih_l0"] == {
        "joints": slice(0, 3),
        "command": slice(3, 5),
        "imu": slice(5, 7),
    }
    assert columns["actor_body.model.0.weight"] == {"memory": slice(0, 4)}
    assert columns["trunk.stages.0_NormalizeObs.normalizers.of_imu.statistics.mean"] == {"imu": slice(0, 2)}


def test_columns_of_images_are_channels():
    image = {"model": "Conv2dHeadModel", "settings": {"channels": [4], "kernel_sizes": [3], "strides": [1]}}
    policy = build(spec(joints=3, eye=(2, 6, 6)), actor=(Encode(components=("eye",), output_size=3, **image),))
    columns = input_columns(policy)
    assert columns["actor.stages.0_Encode.encoders.of_eye.conv.conv.0.weight"] == {"eye": slice(0, 2)}
    assert columns["actor_body.model.0.weight"] == {"joints": slice(0, 3), "eye": slice(3, 6)}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "normalised"])
def test_without_its_columns_a_component_is_not_read(kind):
    policy = build(OLD, kind)
    with torch.no_grad():
        for name, columns in input_columns(policy).items():
            if "imu" in columns and "statistics" not in name:
                policy.state_dict()[name][:, columns["imu"]] = 0.0
    obs = observe(OLD)
    assert_equal(run(policy, {**obs, "imu": torch.full((4, 2), 9.0)}), run(policy, obs))


# -- other observations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["spec", "policy", "spec and config"])
def test_reordering_components_changes_nothing(kind, how):
    old, new = build(OLD, kind, seed=0), build(REORDERED, kind, seed=1)
    source = {"spec": OLD, "policy": old, "spec and config": (OLD, old.config)}[how]
    report = load_misaligned_state_dict(new, old.state_dict(), source)
    assert_equal(run(new, observe(REORDERED)), run(old, observe(OLD)))
    assert report.rearranged and not report.kept and not report.added and not report.dropped


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_component_begins_without_effect(kind):
    old, new = build(OLD, kind, seed=0), build(GROWN, kind, seed=1)
    report = load_misaligned_state_dict(new, old.state_dict(), OLD)
    assert_equal(run(new, observe(GROWN)), run(old, observe(OLD)))
    assert list(report.added) == ["scan"] and not report.dropped
    assert "new component 'scan'" in str(report)


@pytest.mark.parametrize("kind", ["plain", "linear", "gru", "encoded", "shared", "overridden"])
def test_a_dropped_component_is_as_if_it_were_zero(kind):
    old, new = build(OLD, kind, seed=0), build(SHRUNK, kind, seed=1)
    report = load_misaligned_state_dict(new, old.state_dict(), OLD)
    zeroed = {**observe(OLD), "command": torch.zeros(4, 2)}
    assert_equal(run(new, observe(SHRUNK)), run(old, zeroed))
    assert list(report.dropped) == ["command"] and "dropped component 'command'" in str(report)


def test_a_new_component_may_have_an_encoder_and_shift_the_stages():
    old = build(OLD, "gru", seed=0)
    encode = Encode(components=("scan",), output_size=3, settings={"hidden_sizes": [5]})
    new = build(GROWN, seed=1, actor=(NormalizeObs(components=("scan",)), encode, MEMORY), critic=(MEMORY,))
    before = snapshot(new)
    report = load_misaligned_state_dict(new, old.state_dict(), OLD)
    grown, before_obs = observe(GROWN), observe(OLD)
    state = new.initial_state(4)
    mode = new.act(grown, state, {})[0].mode()
    assert torch.allclose(mode, old.act(before_obs, old.initial_state(4), {})[0].mode(), atol=1e-6)
    assert "actor.stages.1_Encode.encoders.of_scan.model.0.weight" in report.kept
    assert all(torch.equal(new.state_dict()[name], before[name]) for name in report.kept)


def test_an_encoded_component_can_be_dropped_when_the_source_is_known():
    encode = Encode(components=("scan",), output_size=3)
    old = build(GROWN, seed=0, actor=(encode, MEMORY), critic=(MEMORY,))
    new = build(OLD, "gru", seed=1)
    with pytest.raises(TransferError, match="Give the policy that saved these weights"):
        load_misaligned_state_dict(new, old.state_dict(), GROWN)
    report = load_misaligned_state_dict(new, old.state_dict(), (GROWN, old.config))
    assert any("of_scan" in name for name in report.unused)
    wanted = old.act(observe(GROWN), old.initial_state(4), {})[0].mode()
    found = new.act(observe(OLD), new.initial_state(4), {})[0].mode()
    assert not torch.allclose(found, wanted)  # the latent of zeros is not zero, so the scan did say something
    muted = snapshot(old)
    place = input_columns(old)["actor.stages.1_Remember.memory.rnn.weight_ih_l0"]["scan"]
    muted["actor.stages.1_Remember.memory.rnn.weight_ih_l0"][:, place] = 0.0
    old.load_state_dict(muted)
    wanted = old.act(observe(GROWN), old.initial_state(4), {})[0].mode()
    assert torch.allclose(found, wanted, atol=1e-6)


def test_swapped_components_of_equal_width_are_told_apart_by_name():
    old, new = build(spec(a=2, b=2), seed=0), build(spec(b=2, a=2), seed=1)
    obs = observe(spec(a=2, b=2))
    new.load_state_dict(old.state_dict())  # fits, and is wrong
    assert not torch.allclose(run(new, obs)[0], run(old, obs)[0])
    load_misaligned_state_dict(new, old.state_dict(), spec(a=2, b=2))
    assert_equal(run(new, obs), run(old, obs))


def test_new_columns_may_be_kept():
    old, new = build(OLD, seed=0), build(GROWN, seed=1)
    place = input_columns(new)["actor_body.model.0.weight"]["scan"]
    before = new.actor_body.model[0].weight[:, place].clone()
    load_misaligned_state_dict(new, old.state_dict(), OLD, new="keep")
    assert torch.equal(new.actor_body.model[0].weight[:, place], before) and before.abs().sum() > 0
    with pytest.raises(ValueError, match="'zero', 'keep'"):
        load_misaligned_state_dict(new, old.state_dict(), OLD, new="zeros")


def test_predictions_follow_their_components():
    old, new = build(OLD, "estimated", seed=0), build(REORDERED, "estimated", seed=1)
    load_misaligned_state_dict(new, old.state_dict(), OLD)
    # command [2] then friction [1] in the old policy, friction first in the new one
    last = "actor.stages.0_Estimate.network.model.2.weight"
    assert torch.equal(new.state_dict()[last], old.state_dict()[last][[2, 0, 1]])


def test_policies_with_choices_move_too():
    torch.manual_seed(0)
    config = PolicyConfig(actor_hidden_dims=(), critic_hidden_dims=())
    old = Policy(OLD, DiscreteSpec(n=3), config)
    new = Policy(REORDERED, DiscreteSpec(n=3), config)
    load_misaligned_state_dict(new, old.state_dict(), OLD)
    one, two = (policy.act(observe(policy.obs_spec), {}, {})[0].params() for policy in (old, new))
    assert all(torch.allclose(one[name], two[name], atol=1e-6) for name in one)


@pytest.mark.parametrize("by", ["spaces", "segments"])
def test_sizes_and_segments_describe_a_source_too(by):
    settings = {
        "encoder_component_names": ["scan"],
        "estimator_obs_components": ["joints"],
        "estimator_target_components": ["velocity"],
        "critic_encoder_component_names": ["scan"],
        "rnn_hidden_size": 4,
        "actor_hidden_dims": [6],
        "critic_hidden_dims": [6],
    }
    actor, critic = {"joints": 3, "velocity": 2, "scan": 5}, {"velocity": 2, "scan": 5, "mass": 1}
    grown, critic_grown = {"scan": 5, "joints": 3, "clock": 2, "velocity": 2}, {"mass": 1, "velocity": 2, "scan": 5}
    old = EncoderStateAcRecurrent(10, 8, 2, obs_segments=actor, critic_obs_segments=critic, **settings)
    new = EncoderStateAcRecurrent(12, 8, 2, obs_segments=grown, critic_obs_segments=critic_grown, **settings)
    if by == "spaces":
        load_misaligned_state_dict(new.policy, old.state_dict(), make_spaces(10, 8, 2, actor, critic))
    else:
        load_from_segments(new.policy, old, actor, critic)
    obs = observe(new.policy.obs_spec)
    for _ in range(2):
        assert torch.allclose(new.act_inference(obs), old.act_inference(obs), atol=1e-6)
        assert torch.allclose(new.evaluate(obs), old.evaluate(obs), atol=1e-6)


def test_random_numbers_of_others_stay_as_they_are():
    old, new = build(OLD), build(GROWN)
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    load_misaligned_state_dict(new, old.state_dict(), OLD)
    assert torch.equal(torch.rand(3), wanted)


# -- what does not fit -------------------------------------------------------------------------------------------------


def test_a_component_of_another_width_is_shown_with_both():
    old, new = build(OLD), build(spec(joints=4, command=2, imu=2, friction=1))
    before = snapshot(new)
    with pytest.raises(TransferError) as error:
        load_misaligned_state_dict(new, old.state_dict(), OLD)
    lines = [line.split() for line in str(error.value).splitlines()]
    assert ["component", "'joints'", "[3]", "[4]"] in lines and ["old", "new"] in lines
    assert "nothing was changed" in str(error.value)
    assert_unchanged(new, before)


def test_other_hidden_layers_are_shown_with_both_shapes():
    old, new = build(OLD), build(GROWN, actor_hidden_dims=(7,))
    before = snapshot(new)
    with pytest.raises(TransferError, match=r"actor_body\.model\.0\.bias +\[6\] +\[7\]"):
        load_misaligned_state_dict(new, old.state_dict(), old)
    assert_unchanged(new, before)


def test_another_memory_in_between_does_not_fit():
    old, new = build(OLD), build(OLD, "gru")
    before = snapshot(new)
    with pytest.raises(TransferError, match=r"joints, command, imu +memory"):
        load_misaligned_state_dict(new, old.state_dict(), old)
    with pytest.raises(TransferError, match=r"memory +joints, command, imu"):
        load_misaligned_state_dict(old, new.state_dict(), new)
    assert_unchanged(new, before)


def test_an_encoder_where_there_was_none_does_not_fit():
    old, new = build(OLD), build(OLD, actor=(Encode(components=("joints",), output_size=5),))
    with pytest.raises(
        TransferError, match=r"component 'joints' in actor_body\.model\.0\.weight +3 columns +5 columns"
    ):
        load_misaligned_state_dict(new, old.state_dict(), old)


def test_missing_and_superfluous_weights_are_named():
    old, new = build(OLD), build(GROWN)
    weights = snapshot(old)
    weights["head.extra"] = weights.pop("head.std_param")
    before = snapshot(new)
    with pytest.raises(TransferError, match=r"head\.std_param +missing +\[2\](.|\n)*head\.extra +\[2\] +not there"):
        load_misaligned_state_dict(new, weights, OLD)
    assert_unchanged(new, before)


def test_a_source_that_is_not_the_source_is_found_out():
    old, new = build(OLD), build(GROWN)
    with pytest.raises(TransferError, match=r"in the source\n.*\[6, 7\] +\[6, 5\] \(imu 2, joints 3\)"):
        load_misaligned_state_dict(new, old.state_dict(), SHRUNK)


def test_deeper_policies_do_not_fit():
    old, new = build(OLD), build(OLD, actor_hidden_dims=(6, 6))
    with pytest.raises(TransferError, match=r"actor_body\.model\.2\.weight +not there +\[6, 6\]"):
        load_misaligned_state_dict(new, old.state_dict(), old)
    with pytest.raises(TransferError, match=r"actor_body\.model\.2\.weight +there +not there"):
        load_misaligned_state_dict(old, new.state_dict(), new)


def test_an_exact_load_is_all_or_nothing():
    old, new = build(OLD, seed=0), build(OLD, seed=1)
    assert load_exactly(new, old.state_dict()).copied == tuple(old.state_dict())
    assert_unchanged(new, snapshot(old))
    other = build(GROWN)
    before = snapshot(other)
    with pytest.raises(TransferError, match=r"\[6, 7\] +\[6, 11\] \(scan 4, joints 3, command 2, imu 2\)"):
        load_exactly(other, old.state_dict())
    assert_unchanged(other, before)


def test_the_facade_and_the_policy_offer_it_as_methods():
    from striderl.policies import EncoderStateAcRecurrent

    def build(segments):
        size = sum(segments.values())
        return EncoderStateAcRecurrent(
            size,
            size,
            2,
            obs_segments=segments,
            encoder_component_names=["scan"],
            estimator_obs_components=["joints"],
            estimator_target_components=["velocity"],
            rnn_hidden_size=8,
        )

    old_segments = {"velocity": 2, "joints": 3, "scan": 4}
    old, new = build(old_segments), build({"joints": 3, "scan": 4, "velocity": 2})
    new.load_misaligned_state_dict(old, old_segments)
    parts = {name: torch.randn(5, size) for name, size in old_segments.items()}
    before = old.act_inference(torch.cat([parts["velocity"], parts["joints"], parts["scan"]], dim=-1))
    after = new.act_inference(torch.cat([parts["joints"], parts["scan"], parts["velocity"]], dim=-1))
    assert torch.allclose(before, after, atol=1e-6)
    columns = new.policy.input_columns()
    assert any("joints" in components for components in columns.values())


def test_components_are_compared_before_the_source_is_built():
    # a Conv2dHeadModel cannot even be built for the vector that the scan once was; the table says so, not the stage
    settings = {"channels": [2], "kernel_sizes": [2], "strides": [1]}
    conv = Encode(components=("scan",), model="Conv2dHeadModel", settings=settings)
    new = Policy(ObsSpec.from_segments({"scan": (1, 4, 4)}), ACTIONS, PolicyConfig(actor=(conv,), **SMALL))
    old = ObsSpec.from_segments({"scan": 16})
    with pytest.raises(TransferError, match=r"component 'scan' +\[16\] +\[1, 4, 4\]"):
        load_misaligned_state_dict(new, {}, old)
