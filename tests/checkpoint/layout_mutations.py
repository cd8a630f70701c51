"""Thirty ways in which an env can differ from the one a policy was trained in, and what must be said about each."""

from __future__ import annotations

import math
from dataclasses import replace

from store_cases import Campaign

from striderl.checkpoint.errors import LayoutMismatch
from striderl.checkpoint.layout import check_layout, describe
from striderl.data.actions import BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec

PARTS = {
    "joint_position": ComponentSpec(shape=(12,)),
    "joint_velocity": ComponentSpec(shape=(12,), scale=0.05),
    "command": ComponentSpec(shape=(3,)),
    "height_scan": ComponentSpec(shape=(1, 4, 5), group="critic"),
}
ACTION = BoxSpec(shape=(3,), low=-1.0, high=(1.0, 1.0, 2.0), names=("hip", "thigh", "calf"))
BASE = {
    "history": {"joint_position": 3},
    "normalized": ["joint_position", "critic"],
    "bounds": {"command": (-1.0, 1.0)},
    "action_scale": 0.25,
}


def layout(parts=None, action=ACTION, **changes):
    return describe(ObsSpec(parts if parts is not None else PARTS), action, **{**BASE, **changes})


def with_part(name, **changes):
    return {key: replace(part, **changes) if key == name else part for key, part in PARTS.items()}


def renamed(old, new):
    return {new if key == old else key: part for key, part in PARTS.items()}


def in_order(*names):
    return {name: PARTS[name] for name in names}


SWAPPED = in_order("joint_velocity", "joint_position", "command", "height_scan")
HYBRID = DictActionSpec({"gait": DiscreteSpec(n=3), "joints": BoxSpec(shape=(2,))})
HYBRID_SWAPPED = DictActionSpec({"joints": BoxSpec(shape=(2,)), "gait": DiscreteSpec(n=3)})
MUTATIONS = [
    ("two of equal width swapped", layout(SWAPPED), "'joint_position' is at position 1, was at position 0"),
    ("rotated", layout(in_order("command", "joint_position", "joint_velocity", "height_scan")), "'command' is at pos"),
    ("renamed", layout(renamed("joint_velocity", "joint_velocities")), "Did you mean 'joint_velocities'"),
    ("renamed to nothing like it", layout(renamed("command", "zzz"), bounds={}), "'zzz' is new"),
    ("missing", layout(in_order("joint_position", "joint_velocity", "height_scan"), bounds={}), "'command' is missing"),
    ("added", layout({**PARTS, "friction": ComponentSpec(shape=(1,))}), "'friction' is new"),
    ("other width", layout(with_part("command", shape=(4,))), "'command': shape is [4], was [3]"),
    ("same size, other shape", layout(with_part("height_scan", shape=(1, 5, 4))), "shape is [1, 5, 4]"),
    ("flattened", layout(with_part("height_scan", shape=(20,))), "shape is [20], was [1, 4, 5]"),
    ("other dtype", layout(with_part("command", dtype="float64")), "dtype is 'float64', was 'float32'"),
    ("integers", layout(with_part("command", dtype="int64")), "dtype is 'int64'"),
    ("other group", layout(with_part("command", group="critic"), normalized=["joint_position"]), "group is 'critic'"),
    ("other scale", layout(with_part("joint_velocity", scale=0.1)), "scale is 0.1, was 0.05"),
    ("radians to degrees", layout(with_part("joint_position", scale=180 / math.pi)), "'joint_position': scale is"),
    ("history longer", layout(history={"joint_position": 5}), "'joint_position': history is 5, was 3"),
    ("history gone", layout(history=1), "history is 1, was 3"),
    ("history everywhere", layout(history=3), "'command': history is 3, was 1"),
    ("normaliser missing", layout(normalized=["critic"]), "'joint_position' is not normalised, was"),
    ("normaliser of a group missing", layout(normalized=["joint_position"]), "'height_scan' is not normalised"),
    ("normaliser too many", layout(normalized=["policy", "critic"]), "'command' is normalised, was not"),
    ("bounds wider", layout(bounds={"command": (-2.0, 2.0)}), "'command': low is -2.0, was -1.0"),
    ("bounds gone", layout(bounds={}), "'command': high is None, was 1.0"),
    ("bounds per entry", layout(bounds={"command": (-1.0, (1.0, 1.0, 3.0))}), "high is [1.0, 1.0, 3.0]"),
    ("joints in another order", layout(action=replace(ACTION, names=("thigh", "hip", "calf"))), "in another order"),
    ("joint renamed", layout(action=replace(ACTION, names=("hip", "thigh", "knee"))), "names is"),
    ("joint names gone", layout(action=replace(ACTION, names=())), "names is []"),
    ("action bounds", layout(action=replace(ACTION, low=-2.0)), "action: low is -2.0, was -1.0"),
    ("action bounds reordered", layout(action=replace(ACTION, high=(2.0, 1.0, 1.0))), "high is [2.0, 1.0, 1.0]"),
    ("more actions", layout(action=BoxSpec(shape=(4,))), "action: shape is [4], was [3]"),
    ("action scale", layout(action_scale=0.5), "scale is 0.5, was 0.25"),
    ("action scale gone", layout(action_scale=None), "scale is None, was 0.25"),
    ("choices for numbers", layout(action=DiscreteSpec(n=3)), "kind is 'discrete', was 'box'"),
    ("several choices", layout(action=MultiDiscreteSpec(nvec=(2, 2, 2))), "kind is 'multi_discrete'"),
    ("hybrid", layout(action=HYBRID), "action 'gait' is new"),
]


def mutate_layouts() -> Campaign:
    """Offer every mutated layout to a checkpoint of the original one."""
    campaign = Campaign("layout mutations")
    for name, mutated, sentence in MUTATIONS:
        campaign.faults += 1
        try:
            check_layout(layout(), mutated)
            campaign.bad.append(f"{name}: accepted")
        except LayoutMismatch as error:
            if sentence not in str(error):
                campaign.bad.append(f"{name}: wanted {sentence!r} in {error}")
    return campaign
