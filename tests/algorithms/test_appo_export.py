"""A policy that was trained with a discriminator is exported without it."""

from __future__ import annotations

import pytest
import torch
from motion_cases import Drift, make_trainer, strides

from striderl.algorithms.on_policy.appo import APPO, APPOConfig
from striderl.algorithms.on_policy.ppo import PPOConfig
from striderl.algorithms.terms.motion_prior import MotionPriorConfig
from striderl.export.bundle import export_policy
from striderl.export.metadata import ExportMetadata
from striderl.policies.presets.amp import AmpActorCritic

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="the extra 'export' is not installed")

pytestmark = pytest.mark.usefixtures("one_operator_table")


@pytest.mark.slow
def test_the_discriminator_is_not_in_the_export(tmp_path):
    import onnx

    env = Drift(4)
    seen = env.obs_spec.select(["place"])
    torch.manual_seed(0)
    model = AmpActorCritic(
        seen,
        num_critic_obs=seen,
        num_actions=env.action_spec,
        actor_hidden_dims=[8],
        critic_hidden_dims=[6],
        amp_discriminator={"input_dim": 4, "style_reward_coef": 2.0, "hidden_dims": [7]},
    )
    config = APPOConfig(ppo=PPOConfig(num_mini_batches=2), prior=MotionPriorConfig(replay_size=64))
    algorithm = APPO(model.policy, strides(), config, discriminator=model.discriminator, obs_spec=env.obs_spec)
    list(make_trainer(algorithm, env, iterations=1))

    bundle = export_policy(algorithm.policy, tmp_path / "bundle", metadata=ExportMetadata(dt=0.02), num_steps=5)

    assert [part["name"] for part in bundle.metadata["observations"]] == ["place"], "nothing of what it judges"
    program = torch.export.load(bundle.files["torch"])
    graph = onnx.load(bundle.files["onnx"]).graph
    inside = [value.shape for value in program.state_dict.values()], [weight.dims for weight in graph.initializer]
    # the actor is 2 -> 8 -> 2; the discriminator, 4 -> 7 -> 1, and the critic, 2 -> 6 -> 1, have sizes of their own
    assert {(7, 4), (1, 7)} <= {tuple(value.shape) for value in model.discriminator.parameters()}
    for shapes in inside:
        sizes = {size for shape in shapes for size in shape}
        assert 8 in sizes and not sizes & {6, 7}
