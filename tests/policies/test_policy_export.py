"""Every class of the older libraries becomes an ONNX file that does the same."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from mutex_parts import SEGMENTS, constant, observe, recurrent
from policy_cases import CASES, build, random_obs

from striderl.export.bundle import export_policy
from striderl.export.exported_policy import load_bundle
from striderl.export.greedy_step import plan_layout
from striderl.export.metadata import ExportMetadata
from striderl.policies.mutex.classes import ActorCriticFieldMutex

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="the extra 'export' is not installed")

pytestmark = pytest.mark.usefixtures("one_operator_table")


EVERY = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
FEWER_STAGES = (
    "ActorCriticRecurrent",
    "AmpActorCriticRecurrent",
    "EncoderActorCritic",
    "EncoderActorCriticRecurrent",
    "EncoderStateAcRecurrent",
    "StateAc",
    "StateAcRecurrent",
)
"""Classes whose stages, and every two of them, another class has as well; exported under the deep profile.

An export takes seconds. What each of them wants as its input is looked at below, and what it does when it is traced in
test_policy_capture.py.
"""
EXPORTED = [kind for kind in CASES if EVERY or kind.__name__ not in FEWER_STAGES]


def wanted_by(kind):
    """Nothing that only the critic sees, and nothing that an estimator replaces."""
    return ["imu", "scan"] if "State" in kind.__name__ else ["imu", "velocity", "scan"]


@pytest.mark.parametrize("kind", list(CASES), ids=lambda kind: kind.__name__)
def test_every_class_wants_what_reaches_its_action(kind):
    assert list(plan_layout(build(kind).policy).observations) == wanted_by(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXPORTED, ids=lambda kind: kind.__name__)
def test_every_class_exports(kind, tmp_path):
    model = build(kind)
    bundle = export_policy(model.policy, tmp_path / "bundle", metadata=ExportMetadata(dt=0.02), formats=("onnx",))
    assert max(bundle.parity["onnx"].values()) <= 1e-5
    wanted = [part["name"] for part in bundle.metadata["observations"]]
    assert wanted == wanted_by(kind)
    runnable = load_bundle(bundle.folder)
    for step in range(3):
        obs = random_obs(model.policy, 4, seed=step)
        with torch.no_grad():
            action = model.act_inference({name: obs[name] for name in model.policy.actor_inputs})
        found = runnable.act({name: obs[name].numpy() for name in wanted})
        np.testing.assert_allclose(found, action.numpy(), atol=1e-5)


@pytest.mark.slow
def test_a_mutex_exports_with_the_memory_of_its_policies(tmp_path):
    model = ActorCriticFieldMutex(
        8,
        None,
        2,
        obs_segments=SEGMENTS,
        env_action_scale=1.0,
        sub_policies=[constant(1.0, 2.0), recurrent(0)],
        sub_action_scales=[1.0, 0.5],
        cmd_vel_mapping={1: (0.5, 1.5)},
        cmd_entry=0,
        action_smoothing_buffer_len=2,
    )
    bundle = export_policy(model.policy, tmp_path / "bundle", metadata=ExportMetadata(dt=0.02), formats=("onnx",))
    assert max(bundle.parity["onnx"].values()) <= 1e-5
    runnable, state = load_bundle(bundle.folder), model.policy.initial_state(3)
    for chosen in ((0, 1, 1), (1, 1, 0), (0, 0, -1), (1, 0, 1)):
        obs = observe(*chosen)
        with torch.no_grad():
            distribution, state, _ = model.policy.act(obs, state, model.policy.settled(torch.zeros(3)))
        found = runnable.act({name: value.numpy() for name, value in obs.items()})
        np.testing.assert_allclose(found, distribution.mode().numpy(), atol=1e-5)
