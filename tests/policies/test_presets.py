"""Every class of the older libraries: builds from its documented arguments, steps, learns, saves and loads."""

from __future__ import annotations

import pytest
import torch
from policy_cases import (
    AMP,
    BASE,
    CASES,
    CRITIC_SEGMENTS,
    NUM_ACTIONS,
    NUM_CRITIC_OBS,
    NUM_OBS,
    build,
    difference,
    random_memo,
    random_obs,
)

from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.policies.encode import Encode
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.presets.amp import AmpActorCritic, EncoderAmpActorCriticRecurrent
from striderl.policies.presets.base import Actor, ActorCritic, ActorCriticRecurrent, Critic
from striderl.policies.presets.encoder import EncoderActorCritic, EncoderActorCriticRecurrent, VisualDeterministicAC
from striderl.policies.presets.state import (
    EncoderStateAc,
    EncoderStateAcRecurrent,
    PrivilegeStateAcRecurrent,
    StateAc,
    StateAcRecurrent,
)
from striderl.policies.stages import Remember

RECURRENT = [kind for kind in CASES if "rnn_type" in CASES[kind]]


def stages(model, part: str) -> list[type]:
    return [type(recipe) for recipe in getattr(model.policy.config, part)]


# -- what each is made of ----------------------------------------------------------------------------------------------

ACTOR_STAGES = {
    "ActorCritic": [],
    "DeterministicPolicy": [],
    "ActorCriticRecurrent": [Remember],
    "EncoderActorCritic": [Encode],
    "EncoderActorCriticRecurrent": [Encode, Remember],
    "StateAc": [Estimate],
    "StateAcRecurrent": [Estimate, Remember],
    "EncoderStateAc": [Estimate, Encode],
    "EncoderStateAcRecurrent": [Estimate, Encode, Remember],
    "PrivilegeStateAcRecurrent": [Adapt, Estimate, Remember],
    "AmpActorCritic": [],
    "AmpActorCriticRecurrent": [Remember],
    "EncoderAmpActorCriticRecurrent": [Encode, Remember],
    "VisualDeterministicAC": [Encode],
    "VisualDeterministicRecurrent": [Encode, Remember],
}


@pytest.mark.parametrize("kind", list(CASES))
def test_stages(kind):
    model = build(kind)
    assert stages(model, "actor") == ACTOR_STAGES[kind.__name__]
    assert stages(model, "critic") == ([Remember] if kind in RECURRENT else [])
    assert stages(model, "trunk") == []
    assert model.policy.config.deterministic == ("Deterministic" in kind.__name__)


@pytest.mark.parametrize("kind", [StateAcRecurrent, EncoderStateAcRecurrent, PrivilegeStateAcRecurrent])
def test_an_estimator_on_the_actors_memory_comes_last(kind):
    model = build(kind, use_actor_rnn=True, replace_state_prob=0.0, estimator_obs_components=[])
    assert stages(model, "actor")[-2:] == [Remember, Estimate]
    obs = random_obs(model.policy, 3)
    assert model.policy.act(obs, model.policy.initial_state(3), random_step_memo(model, 3))[0].mode().shape == (3, 2)


def random_step_memo(model, num_envs: int) -> dict[str, torch.Tensor]:
    return {name: value[0] for name, value in random_memo(model.policy, 1, num_envs).items()}


@pytest.mark.parametrize("kind", [EncoderActorCritic, EncoderActorCriticRecurrent, EncoderStateAc])
def test_encoders_of_the_critic(kind):
    shared = build(kind, critic_encoder_component_names="shared")
    assert stages(shared, "trunk") == [Encode] and Encode not in stages(shared, "critic")
    own = build(kind, critic_encoder_component_names=["scan"])
    assert stages(own, "critic")[0] is Encode and stages(own, "trunk") == []
    assert own.policy.critic.input_spec["critic/scan"].shape == (1, 5, 5)
    count = [sum(p.numel() for p in model.parameters()) for model in (shared, own)]
    assert count[0] < count[1]


# -- steps and learns --------------------------------------------------------------------------------------------------


def outputs(model, num_steps: int = 4, num_envs: int = 6):
    policy = model.policy
    resets = torch.zeros(num_steps, num_envs, dtype=torch.bool)
    resets[2, 1] = True
    obs, memo = random_obs(policy, num_steps, num_envs), random_memo(policy, num_steps, num_envs)
    return policy(obs, policy.initial_state(num_envs), memo, resets)


def reached(model, loss: torch.Tensor) -> set[str]:
    """Name the parameters that a loss has a gradient for."""
    model.policy.zero_grad()
    loss.backward(retain_graph=True)
    return {name for name, p in model.named_parameters() if p.grad is not None and (p.grad != 0).any()}


def named(model, *prefixes: str, without: tuple[str, ...] = ()) -> set[str]:
    return {
        name
        for name, _ in model.named_parameters()
        if name.startswith(prefixes) and not any(part in name for part in without)
    }


@pytest.mark.parametrize("kind", list(CASES))
def test_gradients_reach_exactly_the_parameters_they_should(kind):
    model = build(kind)
    out = outputs(model)
    torch.manual_seed(1)
    surrogate = (out.distribution.log_prob(torch.randn(4, 6, 2)) * torch.randn(4, 6)).mean()
    acting = named(model, "actor", "head", without=("_Estimate", "_Adapt"))
    assert reached(model, surrogate) == acting
    assert reached(model, out.value.square().mean()) == named(model, "critic", "value_head")
    assert reached(model, out.distribution.entropy().mean()) == {name for name in acting if name.endswith("std_param")}
    for stage in ("_Estimate", "_Adapt"):
        keys = [name.removesuffix("/estimate") for name in out.aux if name.endswith(f"{stage}/estimate")]
        for key in keys:
            loss = (out.aux[f"{key}/estimate"] - out.aux[f"{key}/target"]).square().mean()
            assert reached(model, loss) == {name for name, _ in model.named_parameters() if stage in name}
    everything = reached(model, surrogate) | reached(model, out.value.mean())
    predicting = {name for name, _ in model.named_parameters() if "_Estimate" in name or "_Adapt" in name}
    assert everything | predicting == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("kind", [EncoderActorCritic, EncoderActorCriticRecurrent])
def test_shared_encoders_learn_from_both(kind):
    model = build(kind, critic_encoder_component_names="shared")
    out = outputs(model)
    for loss in (out.distribution.mode().sum(), out.value.sum()):
        assert named(model, "trunk") <= reached(model, loss)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(CASES))
def test_one_minibatch_lowers_its_loss(kind):
    model = build(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        out = outputs(model)
        estimates = [
            name.removesuffix("/estimate") for name in out.aux if name.endswith(("Estimate/estimate", "Adapt/estimate"))
        ]
        loss = -out.distribution.log_prob(torch.ones(4, 6, 2)).mean() + (out.value - 1.0).square().mean()
        loss = loss + sum((out.aux[f"{key}/estimate"] - out.aux[f"{key}/target"]).square().mean() for key in estimates)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("kind", list(CASES))
def test_state_dicts_round_trip(kind):
    one, other = build(kind, seed=0), build(kind, seed=1)
    before = outputs(other).value
    other.load_state_dict(one.state_dict())
    assert torch.equal(outputs(one).value, outputs(other).value)
    assert torch.equal(outputs(one).distribution.mode(), outputs(other).distribution.mode())
    assert difference(before, outputs(one).value) > 1e-4, "the two began differently"


# -- defaults ----------------------------------------------------------------------------------------------------------


def test_documented_defaults():
    model = ActorCriticRecurrent(10, 12, 3)
    config = model.policy.config
    assert config.actor_hidden_dims == config.critic_hidden_dims == (256, 256, 256) and config.activation == "elu"
    assert config.actor == config.critic == (Remember(type="lstm", hidden_size=256, num_layers=1),)
    model.act(torch.zeros(2, 10))
    assert model.action_std.tolist() == [[1.0] * 3] * 2


def test_documented_defaults_of_the_visual_encoder():
    segments = {"proprioception": 4, "forward_depth": (1, 8, 8)}
    model = VisualDeterministicAC(68, 4, 2, obs_segments=segments)
    (encode,) = model.policy.config.actor
    assert encode.components == ("forward_depth",) and encode.output_size == 256
    assert encode.settings == {
        "channels": (64, 64),
        "kernel_sizes": (3, 3),
        "strides": (1, 1),
        "hidden_sizes": (256,),
    }


def test_mu_activation_bounds_the_mean():
    model = build(ActorCritic, mu_activation="tanh")
    assert model.act_inference(1000.0 * torch.randn(50, NUM_OBS)).abs().max() <= 1.0


# -- the small ones ----------------------------------------------------------------------------------------------------


def test_actor():
    torch.manual_seed(0)
    actor = Actor(5, 2)
    distribution = actor(torch.randn(7, 5))
    assert distribution.mean.shape == (7, 2) and (distribution.std == 1.0).all()
    assert [p.shape[0] for p in actor.parameters() if p.dim() == 2] == [64, 64, 2]
    distribution.log_prob(torch.zeros(7, 2)).sum().backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in actor.parameters())
    other = Actor(5, 2)
    other.load_state_dict(actor.state_dict())
    x = torch.randn(3, 5)
    assert torch.equal(actor(x).mean, other(x).mean)
    assert (Actor(5, 2, init_noise_std=0.5)(x).std - 0.5).abs().max() <= 1e-6


def test_critic():
    torch.manual_seed(0)
    critic = Critic(5)
    values = critic(torch.randn(7, 5))
    assert values.shape == (7, 1)
    values.sum().backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in critic.parameters())
    other = Critic(5, hidden_dims=[8], activation="relu")
    assert [p.shape[0] for p in other.parameters() if p.dim() == 2] == [8, 1]


# -- discriminators ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AmpActorCritic, EncoderAmpActorCriticRecurrent])
def test_the_discriminator_is_beside_the_policy_and_not_in_it(kind):
    model = build(kind)
    own = {id(p) for p in model.parameters()}
    assert not own & {id(p) for p in model.discriminator.parameters()}
    assert not any("discriminator" in name for name in model.state_dict())
    plain = build(ActorCritic if kind is AmpActorCritic else EncoderActorCriticRecurrent, seed=5)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(outputs(plain).value, outputs(model).value), "weights load where there is no discriminator"
    assert model.discriminator(torch.randn(3, 6)).shape == (3,)
    assert not model.eval().discriminator.training and model.train().discriminator.training


def test_wrong_discriminator_settings_are_named():
    settings = {**AMP["amp_discriminator"], "hiden_dims": [3]}
    with pytest.raises(TypeError, match=r"amp_discriminator has no argument 'hiden_dims'\. Did you mean 'hidden_dims'"):
        build(AmpActorCritic, amp_discriminator=settings)


# -- specs instead of sizes --------------------------------------------------------------------------------------------

SPEC = ObsSpec(
    {
        "imu": ComponentSpec(shape=(4,)),
        "velocity": ComponentSpec(shape=(3,)),
        "scan": ComponentSpec(shape=(1, 5, 5), dtype="uint8"),
        "friction": ComponentSpec(shape=(2,), group="critic"),
    }
)


@pytest.mark.parametrize("kind", list(CASES))
def test_specs_of_an_env_can_be_given_instead_of_sizes(kind):
    torch.manual_seed(0)
    sizes = {name: value for name, value in BASE.items() if "segments" not in name}
    model = kind(SPEC.select(["policy"]), SPEC, BoxSpec(shape=(2,)), **sizes, **CASES[kind])
    assert model.policy.obs_spec == SPEC and model.policy.actor_inputs.names == ("imu", "velocity", "scan")
    assert outputs(model).value.shape == (4, 6)


def test_with_specs_a_shared_component_is_encoded_once():
    model = EncoderActorCritic(
        SPEC.select(["policy"]), SPEC, 2, encoder_component_names=["scan"], critic_encoder_component_names="shared"
    )
    assert model.policy.config.trunk[0].copies == ()
    assert list(outputs(model).aux) == ["trunk/0_Encode/latent/scan"]


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "changes", "error", "message"),
    [
        (ActorCritic, {"num_actor_obs": 33}, ValueError, "obs_segments add up to 32 numbers.*has 33"),
        (ActorCritic, {"num_critic_obs": 3}, ValueError, "critic_obs_segments: .* add up to 34"),
        (ActorCritic, {"num_critic_obs": None}, ValueError, "critic_obs_segments without num_critic_obs"),
        (ActorCritic, {"num_actor_obs": SPEC}, ValueError, "leave obs_segments away"),
        (ActorCritic, {"activation": "elluu"}, ValueError, "Did you mean 'elu'"),
        (ActorCriticRecurrent, {"rnn_type": "grru"}, ValueError, "Did you mean 'gru'"),
        (EncoderActorCritic, {"encoder_component_names": []}, ValueError, "ActorCritic instead of EncoderActorCritic"),
        (EncoderActorCritic, {"encoder_component_names": ["scn"]}, KeyError, "Did you mean 'scan'"),
        (EncoderActorCritic, {"encoder_class_name": "Mlp"}, ValueError, "no encoder 'Mlp'"),
        (EncoderActorCritic, {"critic_encoder_component_names": "share"}, ValueError, "None, 'shared' or a list"),
        (EncoderActorCritic, {"critic_encoder_component_names": ["scn"]}, KeyError, "critic_obs_segments has no"),
        (EncoderActorCritic, {"critic_encoder_kwargs": {}}, ValueError, "have no effect"),
        (StateAc, {"use_actor_rnn": True}, ValueError, "use_actor_rnn"),
        (
            StateAc,
            {"use_actor_rnn": True, "replace_state_prob": 0.0, "estimator_obs_components": []},
            ValueError,
            "a recurrent class such as StateAcRecurrent",
        ),
        (StateAcRecurrent, {"use_actor_rnn": True}, ValueError, "set replace_state_prob=0, or use_actor_rnn=False"),
        (StateAc, {"estimator_target_components": ["friction"]}, ValueError, "use Adapt"),
        (StateAc, {"estimator_obs_components": ["friction"]}, KeyError, "obs_segments has no component 'friction'"),
        (StateAc, {"estimator_target_components": ["speed"]}, KeyError, "obs_segments or critic_obs_segments has no"),
        (StateAc, {"estimator_kwargs": {"hidden_size": [3]}}, TypeError, "Did you mean 'hidden_sizes'"),
        (
            EncoderStateAc,
            {"critic_encoder_component_names": "shared", "estimator_obs_components": ["imu", "scan"]},
            ValueError,
            "give the critic encoders of its own",
        ),
        (PrivilegeStateAcRecurrent, {"adaptor_target_components": ["velocity"]}, ValueError, "both predict"),
        (PrivilegeStateAcRecurrent, {"adaptor_kwargs": {"nonlinear": "elu"}}, TypeError, "Did you mean 'nonlinearity'"),
        (VisualDeterministicAC, {"visual_component_name": "imu"}, ValueError, "wants an image"),
        (VisualDeterministicAC, {"visual_component_name": "depth"}, KeyError, "visual_component_name: obs_segments"),
    ],
)
def test_mistakes_are_found_when_the_policy_is_built(kind, changes, error, message):
    with pytest.raises(error, match=message):
        build(kind, **changes)


def test_the_critics_own_copy_is_the_truth():
    (estimate,) = build(StateAc).policy.config.actor
    assert estimate.target_components == ("velocity",) and estimate.truth_components == ("critic/velocity",)
    lonely = build(StateAc, num_critic_obs=2, critic_obs_segments={"friction": 2})
    assert lonely.policy.config.actor[0].truth_components == ("velocity",)


def test_segments_are_named_as_the_adapter_of_rsl_rl_envs_names_them():
    model = build(ActorCritic)
    assert model.policy.obs_spec.names == (
        "imu",
        "velocity",
        "scan",
        "critic/imu",
        "critic/velocity",
        "friction",
        "critic/scan",
    )
    whole = ActorCritic(NUM_OBS, NUM_CRITIC_OBS, NUM_ACTIONS)
    assert whole.policy.obs_spec.names == ("obs", "privileged_obs")
    assert model.policy.critic_inputs.size == sum(
        part if isinstance(part, int) else 25 for part in CRITIC_SEGMENTS.values()
    )
