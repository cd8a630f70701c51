"""Every documented argument of every class: changing it changes the built policy, and a misspelt one raises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from policy_cases import CASES, CRITIC_SEGMENTS, OBS_SEGMENTS, SIZES, build, random_obs

from striderl.policies.arguments import argument_names, explicit, require_known
from striderl.policies.presets.base import Actor, Critic
from striderl.policies.presets.state import EncoderStateAc, StateAc

CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # argument: (settings of both policies, settings of the changed one)
    "num_actor_obs": ({}, {"num_actor_obs": 33, "obs_segments": {**OBS_SEGMENTS, "more": 1}}),
    "num_critic_obs": ({}, {"num_critic_obs": 35, "critic_obs_segments": {**CRITIC_SEGMENTS, "more": 1}}),
    "num_actions": ({}, {"num_actions": 3}),
    "obs_segments": ({}, {"obs_segments": {"velocity": 3, "imu": 4, "scan": (1, 5, 5)}}),
    "critic_obs_segments": ({}, {"critic_obs_segments": {**CRITIC_SEGMENTS, "imu": 3, "more": 1}}),
    "actor_hidden_dims": ({}, {"actor_hidden_dims": [9]}),
    "critic_hidden_dims": ({}, {"critic_hidden_dims": [9]}),
    "activation": ({}, {"activation": "tanh"}),
    "init_noise_std": ({}, {"init_noise_std": 0.5}),
    "mu_activation": ({}, {"mu_activation": "tanh"}),
    "rnn_type": ({}, {"rnn_type": "gru"}),
    "rnn_hidden_size": ({}, {"rnn_hidden_size": 6}),
    "rnn_num_layers": ({}, {"rnn_num_layers": 2}),
    "encoder_component_names": ({}, {"encoder_component_names": ["scan", "imu"]}),
    "encoder_class_name": (
        {},
        {
            "encoder_class_name": "Conv2dHeadModel",
            "encoder_kwargs": {"channels": [2], "kernel_sizes": [2], "strides": [1]},
        },
    ),
    "encoder_kwargs": ({}, {"encoder_kwargs": {"hidden_sizes": [7]}}),
    "encoder_output_size": ({}, {"encoder_output_size": 5}),
    "critic_encoder_component_names": ({}, {"critic_encoder_component_names": "shared"}),
    "critic_encoder_class_name": (
        {
            "critic_encoder_component_names": ["scan"],
            "critic_encoder_kwargs": {},
            "encoder_kwargs": {},
        },
        {
            "critic_encoder_class_name": "Conv2dHeadModel",
            "critic_encoder_kwargs": {"channels": [2], "kernel_sizes": [2], "strides": [1]},
        },
    ),
    "critic_encoder_kwargs": (
        {"critic_encoder_component_names": ["scan"]},
        {"critic_encoder_kwargs": {"hidden_sizes": [9]}},
    ),
    "estimator_obs_components": ({}, {"estimator_obs_components": ["imu", "scan"]}),
    "estimator_target_components": ({}, {"estimator_target_components": ["velocity", "scan"]}),
    "estimator_kwargs": ({}, {"estimator_kwargs": {"nonlinearity": "tanh"}}),
    "use_actor_rnn": (
        {"replace_state_prob": 0.0},
        {"use_actor_rnn": True, "estimator_obs_components": []},
    ),
    "replace_state_prob": ({}, {"replace_state_prob": 0.9}),
    "adaptor_obs_components": ({}, {"adaptor_obs_components": ["imu", "scan"]}),
    "adaptor_target_components": ({}, {"adaptor_target_components": ["scan"]}),
    "adaptor_kwargs": ({}, {"adaptor_kwargs": {"hidden_sizes": []}}),
    "privilege_replace_state_prob": ({}, {"privilege_replace_state_prob": 0.9}),
    "amp_discriminator": (
        {},
        {"amp_discriminator": {"input_dim": 6, "style_reward_coef": 2.0, "hidden_dims": [8], "task_reward_lerp": 0.5}},
    ),
    "visual_component_name": (
        {"num_actor_obs": 57, "obs_segments": {**OBS_SEGMENTS, "depth": (1, 5, 5)}},
        {"visual_component_name": "depth"},
    ),
    "visual_kwargs": ({}, {"visual_kwargs": {"channels": [4], "kernel_sizes": [2], "strides": [1]}}),
    "visual_latent_size": ({}, {"visual_latent_size": 5}),
}


def fingerprint(model) -> dict[str, Any]:
    """Describe a built policy without looking at the arguments it was built from."""
    policy = model.policy
    std = policy.head(torch.zeros(1, policy.actor_body.output_size)).params()["std"].tolist()
    with torch.no_grad():
        for parameter in policy.parameters():
            # the same numbers wherever a parameter has the same shape, so that only structure tells two apart
            parameter.copy_(torch.linspace(0.05, 0.4, parameter.numel()).view_as(parameter))
    noise = {name: torch.linspace(0.0, 0.99, 5) for name in policy.noise()}
    out = policy(random_obs(policy, 5), policy.initial_state(5), policy.decide(noise))
    found = {
        "modules": str(policy),
        "shapes": {name: tuple(value.shape) for name, value in policy.state_dict().items()},
        "inputs": (str(policy.actor_inputs), str(policy.critic_inputs)),
        "std": std,
        "mean": out.distribution.mode().tolist(),
        "value": out.value.tolist(),
        "aux": {name: value.flatten().tolist() for name, value in out.aux.items()},
        "state": {name: spec.shape for name, spec in policy.state_spec().items()},
    }
    if hasattr(model, "discriminator"):
        discriminator = model.discriminator
        rewards = discriminator.predict_style_reward(torch.ones(2, 6), torch.full((2,), 3.0))
        found["discriminator"] = (str(discriminator), [round(float(reward[0]), 4) for reward in rewards])
    return found


EVERY = [(kind, name) for kind in CASES for name in argument_names(kind)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), EVERY, ids=[f"{kind.__name__}-{name}" for kind, name in EVERY])
def test_every_argument_changes_what_is_built(kind, name):
    common, change = CHANGES[name]
    if kind in (StateAc, EncoderStateAc) and name == "use_actor_rnn":
        with pytest.raises(ValueError, match="a recurrent class such as StateAcRecurrent"):
            build(kind, **common, **change)
        return
    assert name in change, "the argument itself is what changes"
    before, again = fingerprint(build(kind, **common)), fingerprint(build(kind, **common))
    assert before == again, "the fingerprint itself must not change"
    assert fingerprint(build(kind, **{**common, **change})) != before


def test_the_list_of_changes_has_no_argument_that_nobody_takes():
    taken = {name for kind in CASES for name in argument_names(kind)}
    assert taken == set(CHANGES)


DOCUMENTED = {
    "GaussianActor": ["obs_dim", "act_dim"],
    "Critic": ["obs_dim"],
    "ActorCriticRecurrent": [
        *("num_actor_obs", "num_critic_obs", "num_actions", "actor_hidden_dims", "critic_hidden_dims", "activation"),
        *("rnn_type", "rnn_hidden_size", "rnn_num_layers", "init_noise_std"),
    ],
    "EncoderActorCritic": [
        *("encoder_component_names", "encoder_class_name", "encoder_kwargs", "encoder_output_size"),
        *("critic_encoder_component_names", "critic_encoder_class_name", "critic_encoder_kwargs"),
    ],
    "StateAc": [
        *("estimator_obs_components", "estimator_target_components", "estimator_kwargs", "use_actor_rnn"),
        "replace_state_prob",
    ],
    "PrivilegeStateAcRecurrent": [
        *("adaptor_obs_components", "adaptor_target_components", "adaptor_kwargs", "privilege_replace_state_prob"),
    ],
    "VisualDeterministicAC": ["visual_component_name", "visual_kwargs", "visual_latent_size", "obs_segments"],
    "AmpActorCritic": ["amp_discriminator"],
}
ALL = {kind.__name__: kind for kind in [*CASES, Actor, Critic]}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_arguments_are_taken(name):
    assert set(DOCUMENTED[name]) <= set(argument_names(ALL[name]))


@pytest.mark.parametrize("kind", list(CASES))
def test_an_unknown_argument_raises_with_a_suggestion(kind):
    with pytest.raises(
        TypeError, match=rf"{kind.__name__} has no argument 'actor_hiden_dims'. Did you mean 'actor_hidden_dims'"
    ):
        build(kind, actor_hiden_dims=[3])


@pytest.mark.parametrize("kind", [Actor, Critic])
def test_an_unknown_argument_of_the_small_ones_raises_with_a_suggestion(kind):
    sizes = (3, 2) if kind is Actor else (3,)
    with pytest.raises(TypeError, match="Did you mean 'hidden_dims'"):
        kind(*sizes, hiden_dims=[3])


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Actor, {"obs_dim": 4}),
        (Actor, {"act_dim": 3}),
        (Actor, {"hidden_dims": [5]}),
        (Actor, {"activation": "relu"}),
        (Actor, {"init_noise_std": 0.5}),
        (Critic, {"obs_dim": 4}),
        (Critic, {"hidden_dims": [5]}),
        (Critic, {"activation": "relu"}),
    ],
)
def test_arguments_of_the_small_ones_change_them(kind, change):
    base = {"obs_dim": 3, "act_dim": 2} if kind is Actor else {"obs_dim": 3}

    def describe(model):
        with torch.no_grad():
            values = [p.flatten().tolist() for name, p in model.named_parameters() if name.endswith("std_param")]
        return str(model), [tuple(p.shape) for p in model.parameters()], values

    assert describe(kind(**base)) == describe(kind(**base))
    assert describe(kind(**{**base, **change})) != describe(kind(**base))


def test_missing_sizes_raise():
    with pytest.raises(TypeError, match="num_actions"):
        ALL["ActorCritic"](*list(SIZES.values())[:2])


def test_explicit_keeps_the_signature():
    class Thing:
        @explicit
        def __init__(self, size: int, *, colour: str = "red") -> None:
            self.made = (size, colour)

    assert Thing(3, colour="blue").made == (3, "blue") and argument_names(Thing) == ("size", "colour")
    with pytest.raises(
        TypeError, match=r"Thing has no argument 'color'\. Did you mean 'colour'\? Available: 'size', 'colour'"
    ):
        Thing(3, color="blue")
    require_known(["size"], ("size",), where="here")
