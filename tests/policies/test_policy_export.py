"""Every class of the older libraries becomes an ONNX file that does the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from policy_cases import CASES, build, random_obs

from striderl.export.bundle import export_policy
from striderl.export.exported_policy import load_bundle
from striderl.export.metadata import ExportMetadata

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="the extra 'export' is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(CASES), ids=lambda kind: kind.__name__)
def test_every_class_exports(kind, tmp_path):
    model = build(kind)
    bundle = export_policy(model.policy, tmp_path / "bundle", metadata=ExportMetadata(dt=0.02), formats=("onnx",))
    assert max(bundle.parity["onnx"].values()) <= 1e-5
    # nothing that only the critic sees is wanted, and nothing that an estimator replaces
    wanted = [part["name"] for part in bundle.metadata["observations"]]
    assert wanted == (["imu", "scan"] if "State" in kind.__name__ else ["imu", "velocity", "scan"])
    runnable = load_bundle(bundle.folder)
    for step in range(3):
        obs = random_obs(model.policy, 4, seed=step)
        with torch.no_grad():
            action = model.act_inference({name: obs[name] for name in model.policy.actor_inputs})
        found = runnable.act({name: obs[name].numpy() for name in wanted})
        np.testing.assert_allclose(found, action.numpy(), atol=1e-5)
