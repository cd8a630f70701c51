"""What the stateful mutex offers beyond acting, and what it explains that it does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mutex_parts import COMMAND, SEGMENTS, SPEC, constant, observe, recurrent

from striderl.policies.mutex.classes import ActorCriticFieldMutex


def mutex(*policies, scales=None, **settings):
    return ActorCriticFieldMutex(
        8,
        None,
        2,
        obs_segments=SEGMENTS,
        env_action_scale=1.0,
        sub_policies=list(policies),
        sub_action_scales=scales or [1.0] * len(policies),
        cmd_entry=COMMAND,
        seed=3,
        **settings,
    )


def test_hidden_states_are_those_of_the_sub_policies():
    model = mutex(constant(1.0, 2.0), recurrent(0), reset_non_selected="none")
    assert model.get_hidden_states() is None
    model.act_inference(observe(0, 1, 1))
    first, second = model.get_hidden_states()
    assert first is None and second.shape == (1, 3, 3)  # [L, N, H]
    assert torch.equal(second, model.state["sub_1/actor/0_Remember/hidden"].transpose(0, 1))
    assert mutex(constant(1.0, 2.0)).get_hidden_states() is None


@pytest.mark.parametrize("dones", [[1, 0], np.array([True, False])])
def test_dones_may_be_a_list_or_an_array(dones):
    model = mutex(constant(1.0, 2.0))
    model.act_inference(observe(0, 0))
    model.reset(dones)
    assert model.state["recent"].sum((1, 2)).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("evaluate", "it has no critic; use StatefulPolicy"),
        ("evaluate_actions", "it is not trained and has no critic; use act"),
        ("get_estimated_state", "each sub-policy estimates for itself"),
        ("get_encoder_latent", "each sub-policy encodes for itself"),
        ("embed_visual_latent", "each sub-policy encodes for itself"),
        ("act_with_embedded_latent", "use act or act_inference"),
        ("clip_std", r"use submodules\[i\].head.clip_std"),
    ],
)
def test_what_has_no_meaning_is_explained(method, message):
    model = mutex(constant(1.0, 2.0))
    with pytest.raises(TypeError, match=f"{method} has no meaning for a mutex: .*{message}"):
        getattr(model, method)(torch.zeros(2, 8))


def test_the_last_action_in_the_units_of_the_chosen_policy():
    # env scale 1, scales 2 and 0.5: the last action (0.3, 0.4) is (0.15, 0.2) for policy 0 and (0.6, 0.8) for policy 1
    model, obs = mutex(constant(1.0, 2.0), constant(3.0, 4.0), scales=[2.0, 0.5]), observe(0, 1)
    shown = model.recover_last_action(obs, torch.tensor([0, 1]))["proprioception"]
    assert torch.allclose(shown, torch.tensor([[0.1, 0.2, 0.15, 0.2], [0.1, 0.2, 0.6, 0.8]]))
    flat = model.recover_last_action(SPEC.flatten(obs), torch.eye(2))
    assert torch.equal(SPEC.split(flat)["proprioception"], shown)
    assert obs["proprioception"][0, 2].item() == pytest.approx(0.3)


def test_the_command_of_the_chosen_policy():
    # policy 0 has no command and keeps the observed 0.1; policy 1 is told 0.5, times its scale 2
    model = mutex(constant(1.0, 2.0), constant(3.0, 4.0), cmd_vel_mapping={1: 0.5}, cmd_scales=2.0)
    shown = model.override_cmd_vel(observe(0, 1), torch.tensor([0, 1]))["proprioception"]
    assert shown[:, COMMAND].tolist() == pytest.approx([0.1, 1.0])
    drawing = mutex(constant(1.0, 2.0), cmd_vel_mapping={0: (0.5, 1.0)})
    with pytest.raises(RuntimeError, match="call act first"):
        drawing.override_cmd_vel(observe(0, 0), torch.tensor([0, 0]))
    drawing.act_inference(observe(0, 0))
    shown = drawing.override_cmd_vel(observe(0, 0), torch.tensor([0, 0]))["proprioception"]
    assert torch.allclose(shown[:, COMMAND], drawing.cmd_vel_current[:, 0])
