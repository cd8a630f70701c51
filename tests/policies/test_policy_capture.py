"""Every stage and every class can be captured: traced once, no host reads, replayed on fresh inputs, equal to eager."""

from __future__ import annotations

import shutil

import pytest
import torch
from policy_cases import CASES, NUM_CRITIC_OBS, NUM_OBS, at, build, random_memo, random_obs

from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.execution.capture import check_capture
from striderl.networks.discriminator import AMPDiscriminator
from striderl.policies.encode import Encode
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.presets.state import PrivilegeStateAcRecurrent
from striderl.policies.stage import StageInput
from striderl.policies.stages import NormalizeObs, Override, Remember

SPEC = ObsSpec(
    {
        "imu": ComponentSpec(shape=(4,)),
        "velocity": ComponentSpec(shape=(3,)),
        "image": ComponentSpec(shape=(1, 4, 4), dtype="uint8"),
    }
)
WHOLE = SPEC.merged(ObsSpec({"friction": ComponentSpec(shape=(2,), group="critic")}))
PREDICT = {"obs_components": ("imu",), "replace_state_prob": 0.5, "memory": Remember(type="gru", hidden_size=3)}
STAGES = [
    NormalizeObs(),
    Override(component="velocity", values=(1.0,), entries=(0,)),
    Encode(
        components=("image",), model="Conv2dHeadModel", settings={"channels": [2], "kernel_sizes": [2], "strides": [1]}
    ),
    Remember(hidden_size=4, num_layers=2),
    Estimate(target_components=("velocity",), **PREDICT),
    Adapt(target_components=("friction",), **PREDICT),
]


def observation(num_steps: int, num_envs: int) -> dict[str, torch.Tensor]:
    return {
        name: torch.randint(0, 256, (num_steps, num_envs, *part.shape), dtype=torch.uint8)
        if part.dtype == "uint8"
        else torch.randn(num_steps, num_envs, *part.shape)
        for name, part in WHOLE.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("recipe", STAGES, ids=lambda recipe: type(recipe).__name__)
def test_stages_can_be_captured_over_a_sequence(recipe):
    torch.manual_seed(0)
    stage = recipe.build(SPEC, WHOLE)

    def run(obs, state, stage_draws, resets, valid):
        seen = {name: obs[name] for name in SPEC}
        passed = stage(StageInput(seen, state, stage_draws, resets, valid, obs))
        return {"obs": passed.obs, "state": passed.state, "aux": passed.aux}

    def inputs():
        return (
            observation(3, 4),
            {name: torch.randn(4, *spec.shape) for name, spec in stage.state_spec().items()},
            {name: torch.rand(3, 4) < 0.5 for name in stage.stage_draw_spec()},
            torch.rand(3, 4) < 0.3,
            torch.rand(3, 4) < 0.8,
        )

    report = check_capture(run, inputs(), fresh_inputs=inputs(), atol=1e-6)
    assert report.max_difference <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(CASES), ids=lambda kind: kind.__name__)
def test_a_step_of_every_class_can_be_captured(kind):
    policy = build(kind).policy

    def inputs(seed):
        generator = torch.Generator().manual_seed(seed)
        state = {name: torch.randn(4, *spec.shape, generator=generator) for name, spec in policy.state_spec().items()}
        return random_obs(policy, 4, seed=seed), state, at(random_memo(policy, 1, 4, seed=seed), 0)

    report = check_capture(policy, inputs(0), fresh_inputs=inputs(1), atol=1e-6)
    assert report.max_difference <= 1e-6 and report.backward


@pytest.mark.slow
def test_the_gradient_penalty_and_the_rewards_can_be_captured():
    torch.manual_seed(0)
    discriminator = AMPDiscriminator(6, 2.0, [8, 4], task_reward_lerp=0.5)
    valid = torch.rand(5, 3) < 0.8
    penalty = check_capture(discriminator.compute_grad_pen, (torch.randn(5, 3, 6), valid), atol=1e-6)
    assert penalty.backward
    check_capture(discriminator.predict_style_reward, (torch.randn(5, 6), torch.randn(5)), atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor wants a C++ compiler")
def test_inductor_agrees_on_a_whole_policy():
    policy = build(PrivilegeStateAcRecurrent).policy
    compiled = torch.compile(policy, fullgraph=True)
    obs, stage_draws = random_obs(policy, 4), at(random_memo(policy, 1, 4), 0)
    with torch.no_grad():
        one, other = (
            policy(obs, policy.initial_state(4), stage_draws),
            compiled(obs, policy.initial_state(4), stage_draws),
        )
    assert (one.value - other.value).abs().max() <= 1e-5
    assert (one.distribution.mode() - other.distribution.mode()).abs().max() <= 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", list(CASES), ids=lambda kind: kind.__name__)
def test_a_step_of_every_class_becomes_a_cuda_graph(kind):
    model = build(kind).to("cuda")
    policy = model.policy

    def inputs(seed):
        state = {name: torch.randn(4, *spec.shape) for name, spec in policy.state_spec().items()}
        given = (random_obs(policy, 4, seed=seed), state, at(random_memo(policy, 1, 4, seed=seed), 0))
        return tuple({name: value.cuda() for name, value in part.items()} for part in given)

    report = check_capture(policy, inputs(0), fresh_inputs=inputs(1), atol=1e-5)
    assert report.cuda_graph
    obs, critic_obs = torch.randn(6, NUM_OBS, device="cuda"), torch.randn(6, NUM_CRITIC_OBS, device="cuda")
    assert model.act(obs, critic_observations=critic_obs).is_cuda and model.evaluate(critic_obs).is_cuda
    model.reset(torch.tensor([0, 1, 0, 0, 0, 1]))
