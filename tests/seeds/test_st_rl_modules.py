"""st_rl's modules: actor-critics, their mixins and parts, in the words of the document."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

import striderl.compat.st_rl as modules
from striderl.compat.st_rl import (
    ActorCritic,
    AmpActorCritic,
    DeterministicPolicyMixin,
    EmpiricalNormalization,
    EncoderActorCritic,
    EncoderStateAcRecurrent,
    Memory,
    PrivilegeStateAcRecurrent,
    StateAc,
    StateAcRecurrent,
    VisualDeterministicAC,
    get_obs_slice,
    get_subobs_by_components,
    substitute_estimated_state,
    unpad_trajectories,
)
from striderl.networks import (
    Conv2dHeadModel,
    Conv2dModel,
    MlpModel,
    Normalize,
    Normalizer,
    RunningMeanStd,
    conv2d_output_shape,
    get_activation_Cls,
)
from striderl.ops.trajectories import split_and_pad_trajectories
from striderl.policies.facade.memory import ActorCriticHiddenState, EstimatorActorHiddenState, LstmHiddenState

N, T = 3, 4
SEGMENTS = {"proprioception": (4,), "forward_depth": (1, 5, 6), "velocity": (2,)}
CRITIC_SEGMENTS = {**SEGMENTS, "friction": (3,)}
ACTOR, CRITIC, ACT = 36, 39, 2
SMALL = {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}
NAMED = {"obs_segments": SEGMENTS, "critic_obs_segments": CRITIC_SEGMENTS, **SMALL}
ENCODER: dict[str, Any] = {
    "encoder_component_names": ["forward_depth"],
    "encoder_class_name": "Conv2dHeadModel",
    "encoder_kwargs": {"channels": [2], "kernel_sizes": [3], "strides": [1], "hidden_sizes": [6]},
    "encoder_output_size": 7,
}
ESTIMATOR: dict[str, Any] = {
    "estimator_obs_components": ["proprioception"],
    "estimator_target_components": ["velocity"],
    "estimator_kwargs": {"hidden_sizes": [8]},
}
ADAPTOR: dict[str, Any] = {
    "adaptor_obs_components": ["proprioception"],
    "adaptor_target_components": ["friction"],
    "adaptor_kwargs": {"hidden_sizes": [8]},
}
AMP: dict[str, Any] = {"amp_discriminator": {"input_dim": 6, "style_reward_coef": 2.0, "hidden_dims": [8]}}
RNN = {"rnn_hidden_size": 5}
KINDS: dict[str, dict[str, Any]] = {
    "ActorCritic": {},
    "ActorCriticRecurrent": RNN,
    "EncoderActorCritic": ENCODER,
    "EncoderActorCriticRecurrent": {**ENCODER, **RNN},
    "EncoderAmpActorCriticRecurrent": {**ENCODER, **RNN, **AMP},
    "StateAc": ESTIMATOR,
    "StateAcRecurrent": {**ESTIMATOR, **RNN},
    "EncoderStateAc": {**ENCODER, **ESTIMATOR},
    "EncoderStateAcRecurrent": {**ENCODER, **ESTIMATOR, **RNN},
    "PrivilegeStateAcRecurrent": {**ESTIMATOR, **ADAPTOR, **RNN},
    "AmpActorCritic": AMP,
    "AmpActorCriticRecurrent": {**AMP, **RNN},
    "VisualDeterministicAC": {"visual_latent_size": 7},
    "VisualDeterministicRecurrent": {"visual_latent_size": 7, **RNN},
}


def built(name: str, **more: Any) -> Any:
    return getattr(modules, name)(ACTOR, CRITIC, ACT, **{**NAMED, **KINDS[name], **more})


@pytest.mark.described("st_rl", 1014, "ActorCritic wraps actor and critic into one interface.")
@pytest.mark.described("st_rl", 1419, "EncoderStateAc and EncoderStateAcRecurrent combine encoders and estimators.")
@pytest.mark.described("st_rl", 1504, "AmpActorCritic and AmpActorCriticRecurrent have a discriminator.")
@pytest.mark.described("st_rl", 1658, "EncoderActorCritic, its recurrent and its AMP form mix encoders in.")
@pytest.mark.described("st_rl", 1881, "PrivilegeStateAcRecurrent has an adaptor, an estimator and a memory.")
@pytest.mark.described("st_rl", 1974, "StateAc and StateAcRecurrent have an estimator.")
@pytest.mark.described("st_rl", 2085, "VisualDeterministicAC and VisualDeterministicRecurrent encode an image.")
@pytest.mark.parametrize("name", KINDS)
def test_every_actor_critic_is_a_module_with_the_documents_methods(name: str) -> None:
    model = built(name)
    assert isinstance(model, nn.Module) and isinstance(model.std, nn.Parameter)
    obs, critic_obs = torch.randn(N, ACTOR), torch.randn(N, CRITIC)
    actions = model.act(obs)
    assert actions.shape == model.action_mean.shape == model.action_std.shape == (N, ACT)
    assert model.evaluate(critic_obs).shape == (N, 1) and model.get_actions_log_prob(actions).shape == (N,)
    assert (
        model.entropy.shape == (N,) and isinstance(model.actor[0], nn.Linear) and isinstance(model.critic[0], nn.Linear)
    )
    model.reset(torch.tensor([1, 0, 0]))
    fresh = built(name)
    fresh.load_state_dict(model.state_dict())
    model.reset()
    torch.testing.assert_close(fresh.act_inference(obs), model.act_inference(obs))
    assert (model.get_hidden_states() is not None) == model.is_recurrent == ("Recurrent" in name)


@pytest.mark.described("st_rl", 1006, "ActorCritic(obs_dim, act_dim) gives distribution, value, log-probs and entropy.",
                       difference="act returns actions alone")  # fmt: skip
def test_the_small_actor_critic_of_the_document() -> None:
    model = ActorCritic(6, 2)
    obs = torch.randn(N, 6)
    action_dist, value = model(obs)
    actions = model.act(obs)
    log_probs, entropy, values = model.evaluate_actions(obs, actions)
    assert value.shape == values.shape == (N, 1) and log_probs.shape == entropy.shape == (N,)
    torch.testing.assert_close(log_probs, action_dist.log_prob(actions).sum(-1))


@pytest.mark.described("rsl_rl", 25, "actor_critic's constructor defines the hyperparameters.")
def test_unknown_arguments_are_named() -> None:
    with pytest.raises(TypeError, match=r"actor_hidden_dim.*actor_hidden_dims"):
        ActorCritic(4, 4, 2, actor_hidden_dim=[8])
    with pytest.raises(TypeError, match="encoder_component_name"):
        EncoderActorCritic(ACTOR, CRITIC, ACT, **NAMED, **ENCODER, encoder_component_nams=["x"])


# -- overrides ---------------------------------------------------------------------------------------------------------


class Own(ActorCritic):
    """A user's network: another layer, another distribution, another value."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.extra = nn.Linear(4, 4)

    def update_distribution(self, observations: Tensor) -> None:
        mean = self.actor(self.extra(observations))
        self.distribution = Normal(mean, mean * 0.0 + 2.0 * self.std)

    def get_actions_log_prob(self, actions: Tensor) -> Tensor:
        return super().get_actions_log_prob(actions) - 1.0

    def evaluate(self, critic_observations: Tensor, **kwargs: Any) -> Tensor:
        return super().evaluate(critic_observations, **kwargs) + 5.0


def test_overrides_of_a_model_are_used_and_its_layers_are_parameters() -> None:
    model, obs = Own(4, 4, 2, **SMALL), torch.randn(N, 4)
    assert {"extra.weight", "extra.bias", "std", "actor.0.weight", "critic.0.weight"} <= set(model.state_dict())
    assert any(each is model.extra.weight for each in model.parameters())
    actions = model.act(obs)
    torch.testing.assert_close(model.action_std, torch.full((N, 2), 2.0))
    torch.testing.assert_close(model.action_mean, model.actor(model.extra(obs)))
    plain = Normal(model.action_mean, model.action_std).log_prob(actions).sum(-1)
    torch.testing.assert_close(model.get_actions_log_prob(actions), plain - 1.0)
    torch.testing.assert_close(model.evaluate(obs), model.critic(obs) + 5.0)


@pytest.mark.described("st_rl", 1582, "DeterministicPolicyMixin returns the mean in the place of a sample.")
def test_a_mixin_in_front() -> None:
    class Mean(DeterministicPolicyMixin, ActorCritic):
        pass

    model, obs = Mean(4, 4, 2, **SMALL), torch.randn(N, 4)
    assert torch.equal(model.act(obs), model.act_inference(obs))


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.described("st_rl", 1376, "Memory wraps an LSTM or a GRU and keeps its hidden states.")
@pytest.mark.described("rsl_rl", 34, "Memory turns observations into hidden states.")
@pytest.mark.described("rsl_rl", 37, "detach_hidden_states cuts the memory off its graph.")
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_memory(kind: str) -> None:
    memory = Memory(4, type=kind, hidden_size=5)
    assert memory.hidden_states is None
    first = memory(torch.randn(N, 4))
    assert first.shape == (N, 5) and (kind == "gru" or isinstance(memory.hidden_states, LstmHiddenState))
    hidden = memory.hidden_states if kind == "gru" else memory.hidden_states.hidden
    assert hidden.shape == (1, N, 5) and hidden.requires_grad
    memory.detach_hidden_states()
    memory.reset(torch.tensor([0, 1, 0]))  # whole numbers are a mask, not an index
    hidden = memory.hidden_states if kind == "gru" else memory.hidden_states.hidden
    assert not hidden.requires_grad and hidden.abs().sum(-1)[0].bool().tolist() == [True, False, True]


@pytest.mark.described("st_rl", 1331, "reset(dones) resets only the memory of terminated envs.")
@pytest.mark.described("st_rl", 1365, "get_hidden_states returns those of actor and critic.")
@pytest.mark.described("st_rl", 1395, "ActorCriticHiddenState and LstmHiddenState are namedarraytuples.")
@pytest.mark.described("rsl_rl", 29, "The recurrent network takes padded trajectories.")
@pytest.mark.parametrize("name", [name for name in KINDS if "Recurrent" in name])
def test_a_padded_minibatch_repeats_the_rollout(name: str) -> None:
    model = built(name)
    obs, critic = torch.randn(T, N, ACTOR), torch.randn(T, N, CRITIC)
    dones = torch.zeros(T, N)
    dones[1, 1] = 1
    means, values = [], []
    for at in range(T):
        model.act(obs[at])
        means.append(model.action_mean)
        values.append(model.evaluate(critic[at]))
        model.reset(dones[at].long())
    assert isinstance(model.get_hidden_states(), ActorCriticHiddenState)
    padded, masks = split_and_pad_trajectories({"obs": obs, "critic": critic}, dones)
    start = _zero(model.get_hidden_states(), masks.shape[1])
    model.act(padded["obs"], masks=masks, hidden_states=start.actor)
    torch.testing.assert_close(model.action_mean, torch.stack(means))
    found = model.evaluate(padded["critic"], masks=masks, hidden_states=start.critic)
    torch.testing.assert_close(found, torch.stack(values))


def _zero(hidden: Any, count: int) -> Any:
    if isinstance(hidden, Tensor):
        return hidden.new_zeros(hidden.shape[0], count, hidden.shape[2])
    return type(hidden)(*(_zero(each, count) for each in hidden))


# -- encoders ----------------------------------------------------------------------------------------------------------


@pytest.mark.described("st_rl", 1635, "Encoders replace components by latents, in the order of the observation.")
@pytest.mark.described("st_rl", 1642, "get_encoder_latent returns the latent of one component.")
@pytest.mark.described(
    "st_rl", 1672, "critic_encoder_component_names='shared' lets the critic reuse the actor's encoders."
)
@pytest.mark.parametrize("critic", [None, "shared", ["forward_depth"]])
def test_encoders(critic: Any) -> None:
    model = EncoderActorCritic(ACTOR, CRITIC, ACT, **NAMED, **ENCODER, critic_encoder_component_names=critic)
    obs, critic_obs = torch.randn(N, ACTOR), torch.randn(N, CRITIC)
    latent = model.get_encoder_latent(obs, "forward_depth")
    embedded = model.embed_encoders_latent(obs)
    torch.testing.assert_close(embedded, torch.cat([obs[:, :4], latent, obs[:, 34:]], dim=-1))
    torch.testing.assert_close(model.act_inference(obs), model.actor(embedded))
    own = critic_obs if critic is None else model.embed_encoders_latent(critic_obs, critic=True)
    torch.testing.assert_close(model.evaluate(critic_obs), model.critic(own))
    if critic is not None:
        same = model.get_encoder_latent(critic_obs, "forward_depth", critic=True)
        assert torch.equal(same, model.get_encoder_latent(critic_obs, "forward_depth")) == (critic == "shared")
    assert any(name.startswith("encoders.0.conv.") for name in model.state_dict())


@pytest.mark.described("st_rl", 2098, "A VisualDeterministicAC is built with visual_component_name and visual_kwargs.")
@pytest.mark.described("st_rl", 2111, "act_with_embedded_latent skips encoding again.")
def test_the_visual_example() -> None:
    obs_segments = {"state": (8,), "forward_depth": (1, 18, 28)}
    model = VisualDeterministicAC(
        num_actor_obs=512,
        num_critic_obs=512,
        num_actions=12,
        obs_segments=obs_segments,
        visual_component_name="forward_depth",
        visual_kwargs=dict(channels=[32, 64], kernel_sizes=[5, 3], strides=[2, 2]),
        visual_latent_size=128,
    )
    observations = torch.randn(N, 512)
    actions = model.act(observations)
    assert actions.shape == (N, 12) and torch.equal(actions, model.act_inference(observations))
    embedded = model.embed_visual_latent(observations)
    assert embedded.shape == (N, 136)
    model.act_with_embedded_latent(embedded)
    torch.testing.assert_close(model.action_mean, actions)


# -- estimators --------------------------------------------------------------------------------------------------------


@pytest.mark.described("st_rl", 1948, "The estimator reads observation components and predicts others.")
@pytest.mark.described("st_rl", 1964, "get_estimated_state returns the most recent estimate.")
@pytest.mark.described("st_rl", 1969, "replace_state_prob > 0 and use_actor_rnn=True exclude each other.")
def test_the_estimator() -> None:
    obs = torch.randn(200, ACTOR)
    model = StateAc(ACTOR, CRITIC, ACT, **NAMED, **ESTIMATOR, replace_state_prob=0.5)
    model.act(obs)
    estimate, mean = model.get_estimated_state(), model.action_mean
    torch.testing.assert_close(estimate, model.state_estimator(obs[:, :4]))
    replaced = substitute_estimated_state(obs, ["velocity"], estimate, SEGMENTS)
    which = (mean == model.actor(replaced)).all(-1)
    assert 0.3 < float(which.float().mean()) < 0.7, "about half are replaced"
    order = torch.randperm(200)
    model.act(obs[order])
    torch.testing.assert_close(model.action_mean, mean[order], msg="the update repeats the decisions of the rollout")
    torch.testing.assert_close(model.act_inference(obs), model.actor(replaced))
    with pytest.raises(ValueError, match="set replace_state_prob=0"):
        StateAcRecurrent(ACTOR, CRITIC, ACT, **NAMED, **ESTIMATOR, **RNN, use_actor_rnn=True, replace_state_prob=0.5)


@pytest.mark.described("st_rl", 1956, "With use_actor_rnn=True the estimator reads the actor's memory.")
@pytest.mark.described("st_rl", 1936, "EstimatorActorHiddenState holds the hidden states of estimator and actor.")
@pytest.mark.parametrize("use_actor_rnn", [False, True])
@pytest.mark.parametrize("kind", [StateAcRecurrent, EncoderStateAcRecurrent])
def test_the_three_ways_to_estimate(kind: Any, use_actor_rnn: bool) -> None:
    more = {**ENCODER} if kind is EncoderStateAcRecurrent else {}
    model = kind(ACTOR, CRITIC, ACT, **NAMED, **ESTIMATOR, **RNN, **more, use_actor_rnn=use_actor_rnn)
    model.act(torch.randn(N, ACTOR))
    assert model.get_estimated_state().shape == (N, 2)
    assert isinstance(model.get_hidden_states().actor, LstmHiddenState if use_actor_rnn else EstimatorActorHiddenState)
    assert any(name.startswith("memory_s.") for name in model.state_dict()) != use_actor_rnn


@pytest.mark.described("st_rl", 1831, "The adaptor predicts privileged components from available ones.")
def test_the_adaptor() -> None:
    model = PrivilegeStateAcRecurrent(ACTOR, CRITIC, ACT, **NAMED, **ESTIMATOR, **ADAPTOR, **RNN)
    model.act(torch.randn(N, ACTOR))
    assert model.get_adapted_state().shape == (N, 3) and model.get_estimated_state().shape == (N, 2)
    assert type(model.get_hidden_states().actor).__name__ == "AdaptorActorHiddenState"


def test_components_of_a_vector() -> None:
    obs = torch.arange(36.0).unsqueeze(0)
    assert get_obs_slice(SEGMENTS, "forward_depth") == (slice(4, 34), (1, 5, 6))
    found = get_subobs_by_components(obs, component_names=["velocity", "proprioception"], obs_segments=SEGMENTS)
    assert found[0].tolist() == [0, 1, 2, 3, 34, 35], "in the order of the segments"
    assert unpad_trajectories(obs, None) is obs
    with pytest.raises(KeyError, match="velocity"):
        get_obs_slice(SEGMENTS, "velocty")


# -- parts -------------------------------------------------------------------------------------------------------------


@pytest.mark.described("st_rl", 1471, "AMPDiscriminator scores states, with a gradient penalty and a style reward.")
def test_the_discriminator() -> None:
    model = AmpActorCritic(ACTOR, CRITIC, ACT, **NAMED, **AMP)
    state, task = torch.randn(N, 6), torch.ones(N)
    style, task_reward, mixed = model.discriminator.predict_style_reward(state, task)
    expected = 2.0 * (1.0 - 0.25 * (model.discriminator(state) - 1.0) ** 2).clamp(min=0.0)
    torch.testing.assert_close(style, expected.detach())
    assert torch.equal(mixed, style) and torch.equal(task_reward, task), "task_reward_lerp=0.0 is style alone"
    assert model.discriminator.compute_grad_pen(state).item() > 0.0


@pytest.mark.described("st_rl", 1696, "MlpModel has hidden layers and an optional linear output.")
@pytest.mark.described("st_rl", 1537, "Conv2dModel computes its output size for a resolution.")
@pytest.mark.described("st_rl", 1550, "Conv2dHeadModel is convolutions and a fully connected head.")
def test_networks() -> None:
    assert MlpModel(4, [8, 6], None).output_size == 6 and MlpModel(4, 8, 3)(torch.randn(N, 4)).shape == (N, 3)
    assert MlpModel(4, None, 3)(torch.randn(N, 4)).shape == (N, 3) and MlpModel(4, [8], 3, "Tanh").output_size == 3
    conv = Conv2dModel(1, [2, 3], [3, 3], [2, 1])
    height, width = conv.conv_out_resolution(16, 16)
    assert conv.conv_out_size(16, 16) == 3 * height * width
    head = Conv2dHeadModel((1, 16, 16), [2, 3], [3, 3], [2, 1], hidden_sizes=[8], output_size=5)
    assert head(torch.randn(N, 1, 16, 16)).shape == (N, 5) and head.output_size == 5


@pytest.mark.described("st_rl", 2043, "get_activation_Cls returns the class of an activation.",
                       difference="an unknown name raises in place of a printed warning and None")  # fmt: skip
@pytest.mark.described("st_rl", 2050, "conv2d_output_shape computes the output height and width.")
def test_module_functions() -> None:
    act_cls = get_activation_Cls("relu")
    activation = act_cls()
    assert isinstance(activation, nn.ReLU) and get_activation_Cls("lrelu") is nn.LeakyReLU
    assert modules.get_activation_Cls("crelu") is nn.ReLU, "as the document describes"
    with pytest.raises(ValueError, match="'crelu' is ambiguous"):
        get_activation_Cls("crelu")
    h, w = conv2d_output_shape(64, 64, kernel_size=3, stride=2, padding=1)
    assert (h, w) == (32, 32)
    with pytest.raises(ValueError, match="swishh"):
        get_activation_Cls("swishh")


@pytest.mark.described(
    "st_rl", 1750, "EmpiricalNormalization normalises by running statistics, which it learns in training."
)
def test_empirical_normalization_learns_in_train_mode() -> None:
    norm = EmpiricalNormalization(shape=[2], until=1.0e8)
    norm.train()
    torch.manual_seed(0)
    data = 5.0 + 2.0 * torch.randn(4000, 2)
    for part in data.split(500):
        norm(part)
    torch.testing.assert_close(norm.mean, data.mean(0), atol=1e-4, rtol=0.0)
    torch.testing.assert_close(norm.std, data.std(0, unbiased=False), atol=1e-4, rtol=0.0)
    norm.eval()
    normalised = norm(data)
    assert abs(float(normalised.mean())) < 1e-3 and norm.count == 4000
    torch.testing.assert_close(norm.inverse(normalised), data, atol=1e-4, rtol=1e-4)
    short = EmpiricalNormalization(2, until=100)
    for part in data.split(60)[:4]:
        short(part)
    assert short.count == 120


@pytest.mark.described("st_rl", 1768, "Normalize scales vectors to unit length.")
@pytest.mark.described("st_rl", 1780, "RunningMeanStd tracks mean and variance of a stream.")
@pytest.mark.described(
    "st_rl",
    1801,
    "Normalizer clips normalised observations, of numpy and of torch, which it learns from.",
)
def test_the_other_normalizers() -> None:
    assert torch.allclose(Normalize()(torch.randn(N, 4)).norm(dim=-1), torch.ones(N))
    data = torch.randn(50, 4) * 3.0 + 1.0
    running = RunningMeanStd(epsilon=1e-4, shape=(4,))
    running.update(data)
    torch.testing.assert_close(running.mean.float(), data.mean(0), atol=1e-3, rtol=1e-3)
    normalizer = Normalizer(4, clip_obs=1.5)
    normalizer.update(data)
    assert float(normalizer.normalize_torch(data, "cpu").abs().max()) <= 1.5
    assert normalizer.normalize(data.numpy()).shape == (50, 4)
    learning = modules.Normalizer(4, clip_obs=5.0)
    for _ in range(3):
        normalised = learning.normalize_torch(data)
    torch.testing.assert_close(learning.mean.float(), data.mean(0), atol=1e-2, rtol=1e-2)
    assert float(normalised.mean().abs()) < 0.05


@pytest.mark.described("st_rl", 1440, "load_misaligned_state_dict loads a model of other observations.",
                       difference="the document leaves it empty; here components are matched by name")  # fmt: skip
@pytest.mark.parametrize("kind", ["EncoderStateAcRecurrent", "EncoderActorCritic"])
def test_weights_of_other_segments_are_matched_by_name(kind: str) -> None:
    old = built(kind)
    segments = {"velocity": (2,), "terrain": (3,), "forward_depth": (1, 5, 6), "proprioception": (4,)}
    critic = {**CRITIC_SEGMENTS, "terrain": (3,)}
    sizes = {"obs_segments": segments, "critic_obs_segments": critic}
    new = getattr(modules, kind)(39, 42, ACT, **{**SMALL, **KINDS[kind], **sizes})
    assert new.load_misaligned_state_dict(old, SEGMENTS, CRITIC_SEGMENTS) == []
    obs, critic_obs, terrain = torch.randn(N, ACTOR), torch.randn(N, CRITIC), torch.randn(N, 3)
    other = torch.cat([obs[:, 34:], terrain, obs[:, 4:34], obs[:, :4]], dim=1)
    torch.testing.assert_close(new.act_inference(other), old.act_inference(obs))
    torch.testing.assert_close(new.evaluate(torch.cat([critic_obs, terrain], 1)), old.evaluate(critic_obs))


def test_the_presets_of_the_library_name_the_module_that_has_old_parts() -> None:
    import striderl.policies

    model = striderl.policies.ActorCritic(4, 4, 2)
    for name in ("std", "actor", "critic"):
        with pytest.raises(AttributeError, match=r"striderl.compat.st_rl is a plain module that has it"):
            getattr(model, name)
