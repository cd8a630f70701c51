"""Looking inside a stateful policy: estimates, decisions, latents, and steps that are split after the encoder."""

from __future__ import annotations

import pytest
import torch
from policy_cases import build, difference, flat, leaves

from striderl.data.actions import BoxSpec
from striderl.data.specs import ObsSpec
from striderl.ops.trajectories import split_and_pad_trajectories
from striderl.policies.encode import Encode
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.presets.base import ActorCritic
from striderl.policies.presets.encoder import (
    EncoderActorCritic,
    EncoderActorCriticRecurrent,
    VisualDeterministicAC,
    VisualDeterministicRecurrent,
)
from striderl.policies.presets.state import (
    EncoderStateAcRecurrent,
    PrivilegeStateAcRecurrent,
    StateAc,
    StateAcRecurrent,
)
from striderl.policies.stages import NormalizeObs


@pytest.mark.parametrize("kind", [StateAc, StateAcRecurrent, EncoderStateAcRecurrent, PrivilegeStateAcRecurrent])
def test_estimated_state(kind):
    model = build(kind)
    obs, critic_obs = flat(4)
    ahead = model.get_estimated_state(obs)
    model.act(obs, critic_observations=critic_obs)
    assert torch.equal(model.get_estimated_state(), ahead) and ahead.shape == (4, 3)
    if kind is PrivilegeStateAcRecurrent:
        assert model.get_estimated_state(stage="Adapt").shape == (4, 2)
    if model.is_recurrent:
        assert difference(model.get_estimated_state(obs), ahead) > 1e-5, "the memory has advanced"
        dones = torch.zeros(3, 4)
        dones[0, 1] = 1.0  # env 1 has two trajectories, so there are five columns
        padded, masks = split_and_pad_trajectories({"obs": flat(3, 4)[0], "critic": flat(3, 4)[1]}, dones)
        model.evaluate(critic_obs)
        hidden = model.get_hidden_states()[:, [0, 1, 1, 2, 3]]
        alone = model.get_estimated_state(padded["obs"], masks, hidden)
        stage_draws = {name: torch.ones(3, 5, dtype=torch.bool) for name in model.policy.stage_draw_spec()}
        model.act(padded["obs"], masks, hidden, critic_observations=padded["critic"], stage_draws=stage_draws)
        assert alone.shape == (3, 4, 3) and torch.equal(model.get_estimated_state(), alone)


def test_a_policy_without_estimator_says_so():
    model = build(ActorCritic)
    with pytest.raises(KeyError, match="no stage 'Estimate'"):
        model.get_estimated_state(flat(4)[0])


def test_inference_is_deterministic_and_leaves_out_what_it_replaces():
    model = build(StateAc)
    obs, _ = flat(4)
    other = obs.clone()
    other[:, 4:7] += 5.0  # the velocity
    assert torch.equal(model.act_inference(obs), model.act_inference(other))


def test_decisions_must_be_repeated():
    model = build(StateAc)
    obs, critic_obs = flat(50)
    model.act(obs)
    stage_draws = model.stage_draws
    replaced = stage_draws["actor/0_Estimate/replace"]
    assert 0 < int(replaced.sum()) < 50
    mean = model.action_mean
    model.evaluate_actions(obs, torch.zeros(50, 2), critic_obs, stage_draws=stage_draws)
    assert torch.equal(model.action_mean, mean)
    with pytest.raises(ValueError, match=r"store model\.memo with every step"):
        model.evaluate_actions(obs, torch.zeros(50, 2), critic_obs)
    recurrent = build(StateAcRecurrent)
    recurrent.start(2)
    hidden = recurrent.get_hidden_states()
    with pytest.raises(ValueError, match="a minibatch must repeat the decisions"):
        recurrent.act(flat(3, 2)[0], hidden_states=hidden)


def test_an_adaptor_that_may_show_the_truth_wants_it():
    model = build(PrivilegeStateAcRecurrent)
    obs, _ = flat(4)
    with pytest.raises(ValueError, match=r"reads \['friction'\].*give critic_observations"):
        model.act(obs)
    assert model.act_inference(obs).shape == (4, 2), "in deployment the prediction stands for it"
    always = build(PrivilegeStateAcRecurrent, privilege_replace_state_prob=1.0)
    assert always.act(obs).shape == (4, 2)


@pytest.mark.parametrize("kind", [VisualDeterministicAC, VisualDeterministicRecurrent, EncoderActorCriticRecurrent])
def test_a_step_can_be_split_where_the_image_has_been_encoded(kind):
    model, other = build(kind), build(kind)
    obs, _ = flat(4)
    embedded = model.embed_visual_latent(obs)
    assert embedded.shape == (4, 4 + 3 + 4), "imu, velocity, and the latent in the image's place"
    assert torch.equal(embedded[:, :7], obs[:, :7])
    assert torch.equal(embedded[:, 7:], model.get_encoder_latent(obs, "scan"))
    for _ in range(3):
        model.act_with_embedded_latent(embedded)
        other.act(obs)
        assert difference(model.action_mean, other.action_mean) <= 1e-6
    if model.is_recurrent:
        assert difference(leaves(model.get_hidden_states())[0], leaves(other.get_hidden_states())[0]) <= 1e-6


def test_embedding_needs_stages_without_memory():
    with pytest.raises(ValueError, match="cannot be embedded ahead of the step: stage '0_Estimate'"):
        build(EncoderStateAcRecurrent).embed_visual_latent(flat(4)[0])


def test_latents_by_name_for_actor_and_critic():
    model = build(EncoderActorCritic, critic_encoder_component_names=["scan"])
    obs, critic_obs = flat(4)
    _, _, acted = model.policy.act(model.policy.obs_spec.select(model.policy.actor_inputs).split(obs), {}, {})
    latent = model.get_encoder_latent(obs, "scan")
    assert latent.shape == (4, 4) and torch.equal(latent, acted["actor/0_Encode/latent/scan"])
    own = model.get_encoder_latent(critic_obs, "scan", critic=True)
    assert own.shape == (4, 4) and difference(own, latent) > 1e-4
    with pytest.raises(KeyError, match=r"the actor has no encoder of component 'imu'.*'scan'"):
        model.get_encoder_latent(obs, "imu")


def test_shared_latents_are_made_by_one_network():
    model = build(EncoderActorCritic, critic_encoder_component_names="shared")
    obs, critic_obs = flat(4)
    critic_obs[:, 9:] = obs[:, 7:]  # the same scan in both
    assert torch.equal(model.get_encoder_latent(obs, "scan"), model.get_encoder_latent(critic_obs, "scan", critic=True))


def test_latents_see_normalised_components():
    config = PolicyConfig(trunk=(NormalizeObs(eps=0.0),), actor=(Encode(components=("obs",), output_size=3),))
    model = StatefulPolicy(Policy(ObsSpec.from_flat(4), BoxSpec(shape=(2,)), config))
    model.policy.update_normalization({"obs": 5.0 + torch.randn(100, 4)})
    obs = torch.randn(6, 4)
    _, _, acted = model.policy.act({"obs": obs}, {}, {})
    assert torch.equal(model.get_encoder_latent(obs, "obs"), acted["actor/0_Encode/latent/obs"])
