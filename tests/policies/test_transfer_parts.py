"""Parts of a policy out of other checkpoints, by name."""

from __future__ import annotations

import pytest
import torch

from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.policies.encode import Encode
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import Remember
from striderl.policies.transfer.load import TransferError
from striderl.policies.transfer.parts import load_parts, part_names, replace_encoder0

SPEC = ObsSpec({name: ComponentSpec(shape=(size,)) for name, size in {"joints": 3, "scan": 4, "map": 5}.items()})
ENCODE = Encode(components=("scan", "map"), output_size=3)


def build(seed, output_size=3, **lists):
    torch.manual_seed(seed)
    memory = Remember(type="gru", hidden_size=4)
    encode = Encode(components=("scan", "map"), output_size=output_size)
    stages = lists or {"actor": (encode, memory), "critic": (encode,)}
    return Policy(SPEC, BoxSpec(shape=(2,)), PolicyConfig(actor_hidden_dims=(6,), critic_hidden_dims=(6,), **stages))


def taken(policy, source, before):
    """Return the names that came from the source; all others must be as they were."""
    found = []
    for name, value in policy.state_dict().items():
        if torch.equal(value, before[name]):
            continue
        assert torch.equal(value, source.state_dict()[name]), name
        found.append(name)
    return found


def snapshot(policy):
    return {name: value.clone() for name, value in policy.state_dict().items()}


def test_parts_have_names_without_positions():
    assert part_names(build(0)) == (
        "actor/Encode/scan",
        "actor/Encode/map",
        "actor/Remember",
        "critic/Encode/scan",
        "critic/Encode/map",
        "actor/body",
        "critic/body",
        "actor/head",
        "critic/head",
    )


def test_only_what_is_named_is_taken():
    policy, source = build(0), build(1)
    before = snapshot(policy)
    report = load_parts(policy, source.state_dict(), take=["actor/Encode/scan", "critic"])
    found = taken(policy, source, before)
    prefixes = ("actor.stages.0_Encode.encoders.of_scan.", "critic.stages.", "critic_body.", "value_head.")
    assert found and all(name.startswith(prefixes) for name in found)
    assert set(report.copied) == {name for name in before if name.startswith(prefixes)}
    assert set(report.copied) | set(report.kept) == set(before)


def test_what_is_kept_stays_fresh():
    policy, source = build(0), build(1)
    before = snapshot(policy)
    report = load_parts(policy, source.state_dict(), keep=["actor/Encode"])
    assert all(name.startswith("actor.stages.0_Encode.") for name in report.kept) and report.kept
    assert not any(name in report.kept for name in taken(policy, source, before))


def test_a_part_that_is_not_there_is_answered():
    with pytest.raises(KeyError, match="Did you mean 'actor/Encode/scan'"):
        load_parts(build(0), build(1).state_dict(), take=["actor/Encode/scn"])


def test_parts_that_do_not_fit_change_nothing():
    policy, source = build(0), build(1, output_size=4)
    before = snapshot(policy)
    with pytest.raises(TransferError, match=r"of_scan\.model\.0\.weight +\[4, 4\] +\[3, 4\]"):
        load_parts(policy, source.state_dict(), take=["critic/body", "actor/Encode"])
    assert not taken(policy, policy, before)
    load_parts(policy, source.state_dict(), take=["actor/head"])  # what fits can still be taken


def test_replace_encoder0_keeps_the_actors_first_encoder_fresh():
    policy, source = build(0), build(1)
    checkpoint = {"model_state_dict": source.state_dict(), "optimizer_state_dict": {"a": 1}, "iter": 7, "infos": None}
    result = replace_encoder0(checkpoint, {"model_state_dict": policy.state_dict()})
    assert set(result) == {"model_state_dict", "iter", "infos"} and result["iter"] == 7
    for name, value in result["model_state_dict"].items():
        fresh = name.startswith("actor.stages.0_Encode.encoders.of_scan.")
        assert value is (policy if fresh else source).state_dict()[name] or torch.equal(
            value, (policy if fresh else source).state_dict()[name]
        )
    policy.load_state_dict(result["model_state_dict"])


def test_replace_encoder0_reads_the_older_names_too():
    names = ["encoders.0.weight", "encoders.1.weight", "critic_encoders.0.weight", "actor.0.weight"]
    source = {"model_state_dict": {name: torch.ones(2) for name in names}, "iter": 3}
    own = {"model_state_dict": {name: torch.zeros(2) for name in names}}
    result = replace_encoder0(source, own)["model_state_dict"]
    assert [float(result[name][0]) for name in names] == [0.0, 1.0, 1.0, 1.0]


def test_replace_encoder0_shows_what_does_not_fit():
    policy, source = build(0), build(1, output_size=4)
    with pytest.raises(TransferError, match=r"of_map\.model\.0\.weight +\[4, 5\] +\[3, 5\]"):
        replace_encoder0({"model_state_dict": source.state_dict()}, {"model_state_dict": policy.state_dict()})
    with pytest.raises(KeyError, match="algo_state_dict is a checkpoint"):
        replace_encoder0({"model_state_dict": {}}, policy.state_dict())
