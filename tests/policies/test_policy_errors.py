"""Settings that are slightly off: taken as they were meant, or refused with the fix in the message."""

from __future__ import annotations

import pytest
import torch
from mutex_parts import SEGMENTS, constant
from policy_cases import AMP, BASE, build

import striderl.policies
from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.specs import ObsSpec
from striderl.policies.encode import Encode
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.mutex.classes import ActorCriticFieldMutex
from striderl.policies.mutex.settings import MutexConfig
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.presets.amp import AmpActorCritic
from striderl.policies.presets.base import ActorCritic
from striderl.policies.presets.encoder import EncoderActorCritic
from striderl.policies.stages import NormalizeObs, Remember

SPEC = ObsSpec.from_flat(6, {"a": 2, "b": 3, "c": 1})
BOX = BoxSpec(shape=(2,))
MEMORY = Remember(type="gru", hidden_size=4)


# -- taken as meant ----------------------------------------------------------------------------------------------------


def test_hidden_layers_may_be_one_number_or_none():
    model = ActorCritic(5, None, 2, actor_hidden_dims=64, critic_hidden_dims=None)
    assert model.policy.config.actor_hidden_dims == (64,) and model.policy.config.critic_hidden_dims == ()
    assert model.policy.actor_body.output_size == 64 and model.policy.critic_body.output_size == 5
    assert PolicyConfig(actor_hidden_dims=[8, 4]).actor_hidden_dims == (8, 4)
    with pytest.raises(TypeError, match="hidden layers are a whole number"):
        PolicyConfig(actor_hidden_dims="64")


def test_one_name_needs_no_tuple():
    assert build(EncoderActorCritic, encoder_component_names="scan").policy.config.actor[0].components == ("scan",)
    assert PolicyConfig(actor_obs="policy").actor_obs == ("policy",)
    assert Encode(components="a").components == NormalizeObs(components="a").components == ("a",)
    assert Estimate(obs_components="a", target_components="b").target_components == ("b",)
    assert Adapt(obs_components="a", target_components="b").obs_components == ("a",)
    with pytest.raises(TypeError, match=r"Encode.components wants a sequence of names"):
        Encode(components=3)


def test_the_older_name_of_the_critics_segments():
    rest = {name: value for name, value in BASE.items() if name != "critic_obs_segments"}
    older = ActorCritic(32, 34, 2, privileged_obs_segments=BASE["critic_obs_segments"], **rest)
    assert older.policy.obs_spec == build(ActorCritic).policy.obs_spec
    with pytest.raises(ValueError, match="two names of one thing"):
        ActorCritic(32, 34, 2, privileged_obs_segments=BASE["critic_obs_segments"], **BASE)


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(5, None, 2.0), (5, None, True), (5.0, None, 2), (5, "7", 2)])
def test_sizes_are_whole_numbers(sizes):
    with pytest.raises(TypeError, match=r"num_(actions|actor_obs|critic_obs) is a whole number or an"):
        ActorCritic(*sizes)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (MEMORY, "PolicyConfig.actor wants a tuple of stages"),
        ((Remember,), r"PolicyConfig.actor has the class Remember; make a stage of it: Remember\("),
        (("Remember",), "which is no stage"),
    ],
)
def test_stages_come_in_a_tuple(stages, message):
    with pytest.raises(TypeError, match=message):
        PolicyConfig(actor=stages)


def test_missing_settings_of_the_discriminator_are_named():
    with pytest.raises(TypeError, match=r"wants the settings \['input_dim', 'style_reward_coef', 'hidden_dims'\]"):
        build(AmpActorCritic, amp_discriminator={})
    partly = {"input_dim": AMP["amp_discriminator"]["input_dim"]}
    with pytest.raises(TypeError, match=r"\['style_reward_coef', 'hidden_dims'\] as well; found \['input_dim'\]"):
        build(AmpActorCritic, amp_discriminator=partly)


def test_a_state_that_is_missing_or_of_other_envs_is_named():
    policy = Policy(SPEC, BOX, PolicyConfig(actor=(MEMORY,), critic=(MEMORY,)))
    obs = SPEC.split(torch.zeros(3, 6))
    with pytest.raises(KeyError, match=r"no 'actor/0_Remember/hidden'; begin with policy.initial_state\(3\)"):
        policy(obs, {}, {})
    with pytest.raises(ValueError, match=r"'critic/0_Remember/hidden' is \(2, 1, 4\) .* for 3 envs"):
        policy.value(obs, policy.initial_state(2), {})
    with pytest.raises(ValueError, match=r"'actor/0_Remember/hidden' is \(1, 1, 4\) .* for 3 envs"):
        policy.act(SPEC.split(torch.zeros(5, 3, 6)), policy.initial_state(1), {})


def test_an_unknown_name_of_a_package_is_answered_with_the_nearest():
    with pytest.raises(AttributeError, match=r"no attribute 'ActorCritik'. Did you mean 'ActorCritic'\?"):
        _ = striderl.policies.ActorCritik


def test_adaptors_come_before_estimators():
    adapt = Adapt(obs_components="a", target_components="c")
    estimate = Estimate(obs_components="a", target_components="b")
    seen = {"actor_obs": ("a", "b"), "critic_obs": ("a", "b", "c")}
    Policy(SPEC, BOX, PolicyConfig(actor=(adapt, estimate), **seen))
    with pytest.raises(ValueError, match=r"Adapt comes before Estimate .* swap the two"):
        Policy(SPEC, BOX, PolicyConfig(actor=(estimate, adapt), **seen))


def test_a_component_is_encoded_once():
    with pytest.raises(ValueError, match=r"Encode has \['a'\] more than once"):
        Policy(SPEC, BOX, PolicyConfig(actor=(Encode(components=("a", "b", "a")),)))


# -- without effect ----------------------------------------------------------------------------------------------------


def test_settings_of_real_valued_actions_are_refused_for_choices():
    Policy(SPEC, DiscreteSpec(n=3), PolicyConfig())
    with pytest.raises(ValueError, match="head='beta' has no effect"):
        Policy(SPEC, DiscreteSpec(n=3), PolicyConfig(head="beta"))
    with pytest.raises(ValueError, match=r"init_noise_std=0.5 has no effect"):
        ActorCritic(5, None, DiscreteSpec(n=3), init_noise_std=0.5)


def test_scales_of_commands_want_commands():
    settings = {"obs_segments": SEGMENTS, "sub_policies": [constant(1.0, 2.0)], "sub_action_scales": [1.0]}
    with pytest.raises(ValueError, match=r"cmd_scales=2.0 has no effect .* give cmd_vel_mapping"):
        ActorCriticFieldMutex(8, None, 2, cmd_scales=2.0, **settings)
    with pytest.raises(ValueError, match=r"cmd_scales=2.0 has no effect .* give cmd_vel"):
        MutexConfig(cmd_scales=2.0)


@pytest.mark.parametrize("name", ["act", "value", "forward"])
def test_a_method_that_would_count_in_some_places_only_is_refused(name):
    with pytest.raises(TypeError, match=rf"Own\.{name} would have no effect: .*define (forward|act) alike"):
        type("Own", (Policy,), {name: lambda self: None})
    both = type("Own", (Policy,), {"act": lambda self: None, "forward": lambda self: None})
    assert type("Child", (both,), {name: lambda self: None}).__base__ is both
