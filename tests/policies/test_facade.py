"""The stateful facade: old loops get what they expect, and nothing else than what the pure policy says."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_cases import CASES, NUM_CRITIC_OBS, build, difference, flat, leaves

from striderl.data.actions import BoxSpec, DictActionSpec, DiscreteSpec
from striderl.data.specs import ObsSpec
from striderl.ops.trajectories import split_and_pad_trajectories
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.presets.base import ActorCritic, ActorCriticRecurrent, DeterministicPolicy
from striderl.policies.presets.encoder import EncoderActorCritic
from striderl.policies.stages import Remember

RECURRENT = [kind for kind in CASES if "rnn_type" in CASES[kind]]


# -- one step ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(CASES))
def test_a_step_says_what_the_pure_policy_says(kind):
    model = build(kind)
    obs, critic_obs = flat(6)
    named = {**model.policy.critic_inputs.split(critic_obs), **model.policy.actor_inputs.split(obs)}
    actions = model.act(obs, critic_observations=critic_obs)
    values = model.evaluate(critic_obs)
    out = model.policy(named, model.policy.initial_state(6), model.stage_draws)
    assert torch.equal(model.action_mean, out.distribution.mode())
    assert torch.equal(model.action_std, out.distribution.params()["std"])
    assert torch.equal(values, out.value.unsqueeze(-1)) and values.shape == (6, 1)
    assert torch.equal(model.get_actions_log_prob(actions), out.distribution.log_prob(actions))
    assert model.get_actions_log_prob(actions).shape == model.entropy.shape == (6,)
    assert torch.equal(actions, model.action_mean) == ("Deterministic" in kind.__name__)
    assert model.is_recurrent == ("Recurrent" in kind.__name__)


def test_named_components_may_be_given_instead_of_a_flat_vector():
    model = build(EncoderActorCritic)
    obs, critic_obs = flat(4)
    model.act(model.policy.actor_inputs.split(obs))
    mean = model.action_mean
    model.act(obs)
    assert torch.equal(model.action_mean, mean)
    assert torch.equal(model.evaluate(model.policy.critic_inputs.split(critic_obs)), model.evaluate(critic_obs))


def test_a_vector_of_the_wrong_size_is_refused():
    with pytest.raises(ValueError, match="has 31 numbers, the spec wants 32"):
        build(ActorCritic).act(torch.zeros(2, 31))


def test_forward_gives_distribution_and_value():
    model = build(ActorCritic)
    obs, critic_obs = flat(4)
    distribution, value = model(obs, critic_obs)
    assert torch.equal(distribution.mode(), model.act_inference(obs)) and value.shape == (4, 1)
    with pytest.raises(ValueError, match="give critic_observations"):
        model.forward(obs)
    same = ActorCritic(5, None, 2)
    assert same.forward(torch.zeros(3, 5))[1].shape == (3, 1)


def test_samples_depend_on_the_seed_and_on_the_call():
    obs, _ = flat(4)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        model = StatefulPolicy(build(ActorCritic).policy, seed=seed)
        draws.append((model.act(obs), model.act(obs)))
    assert torch.equal(draws[0][0], draws[1][0]) and torch.equal(draws[0][1], draws[1][1])
    assert not torch.equal(draws[0][0], draws[0][1]) and not torch.equal(draws[0][0], draws[2][0])


def test_the_global_seed_governs_a_policy_without_one():
    obs, _ = flat(4)
    one, same, other = build(ActorCritic, seed=3), build(ActorCritic, seed=3), build(ActorCritic, seed=4)
    first = one.act(obs) - one.action_mean
    assert torch.equal(first, same.act(obs) - same.action_mean)
    assert not torch.allclose(first, other.act(obs) - other.action_mean)


def test_samples_spread_as_the_distribution_says():
    model = build(ActorCritic, init_noise_std=0.5)
    noise = model.act(flat(4000)[0]) - model.action_mean
    assert noise.std().item() == pytest.approx(0.5, rel=0.05) and noise.mean().item() == pytest.approx(0.0, abs=0.03)


def test_without_a_call_there_is_no_distribution():
    with pytest.raises(RuntimeError, match="call act first"):
        build(ActorCritic).action_mean  # noqa: B018


def test_evaluate_actions():
    model = build(ActorCritic)
    obs, critic_obs = flat(3, 4)
    actions = torch.randn(3, 4, 2)
    log_prob, entropy, values = model.evaluate_actions(obs, actions, critic_obs)
    assert log_prob.shape == entropy.shape == (3, 4) and values.shape == (3, 4, 1)
    assert torch.equal(log_prob, model.distribution.log_prob(actions))


def test_discrete_and_hybrid_actions():
    choice = ActorCritic(5, None, DiscreteSpec(n=3))
    assert set(choice.act(torch.randn(200, 5)).tolist()) == {0, 1, 2}
    with pytest.raises(TypeError, match="Categorical has no standard deviation"):
        choice.action_std  # noqa: B018
    with pytest.raises(TypeError, match="clip_std wants a Gaussian head"):
        choice.clip_std(min=0.1)
    both = ActorCritic(5, None, DictActionSpec({"gear": DiscreteSpec(n=3), "steer": BoxSpec(shape=(2,))}))
    actions = both.act(torch.randn(7, 5))
    assert actions["gear"].shape == (7,) and actions["steer"].shape == (7, 2)
    assert both.get_actions_log_prob(actions).shape == (7,)


def test_a_deterministic_head_has_no_spread():
    policy = Policy(ObsSpec.from_flat(4), BoxSpec(shape=(2,)), PolicyConfig(head="deterministic"))
    model = StatefulPolicy(policy)
    model.act(torch.randn(3, 4))
    assert (model.action_std == 0).all() and model.action_std.shape == (3, 2)


@pytest.mark.parametrize("kind", [ActorCritic, DeterministicPolicy])
def test_clip_std(kind):
    model = build(kind)
    model.clip_std(min=[2.0, 0.1], max=3.0)
    model.act(flat(2)[0])
    assert model.action_std.tolist() == [[2.0, 1.0]] * 2
    model.clip_std(max=0.5)
    model.act(flat(2)[0])
    assert model.action_std.tolist() == [[0.5, 0.5]] * 2


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("kind", RECURRENT)
def test_dones_of_any_dtype_reset_exactly_the_finished_envs(kind, dtype):
    model = build(kind)
    obs, critic_obs = flat(4)
    model.act(obs, critic_observations=critic_obs)
    model.evaluate(critic_obs)
    before = model.get_hidden_states()
    model.reset(torch.tensor([0, 0, 1, 0]).to(dtype))
    after = model.get_hidden_states()
    for env, same in enumerate([True, True, False, True]):
        for one, other in zip(leaves(before), leaves(after)):
            assert torch.equal(one[:, env], other[:, env]) == same
            assert same or (other[:, env] == 0).all()
    model.reset()
    assert model.get_hidden_states() is None


def test_memory_advances_with_every_step_and_can_be_put_back():
    model = build(ActorCriticRecurrent)
    assert model.get_hidden_states() is None
    obs, critic_obs = flat(4)
    first = model.act_inference(obs)
    kept = model.get_hidden_states()
    second = model.act_inference(obs)
    assert difference(first, second) > 1e-4
    model.set_hidden_states(kept)
    assert torch.equal(model.act_inference(obs), second)
    model.set_hidden_states(None)
    assert torch.equal(model.act_inference(obs), first)
    values = model.evaluate(critic_obs)
    assert difference(values, model.evaluate(critic_obs)) > 1e-4, "the critic's memory advances with evaluate"


def test_a_memory_can_begin_before_the_first_step():
    model, other = build(ActorCriticRecurrent), build(ActorCriticRecurrent)
    model.start(4)
    assert all((leaf == 0).all() and leaf.shape == (1, 4, 5) for leaf in leaves(model.get_hidden_states()))
    assert torch.equal(model.act_inference(flat(4)[0]), other.act_inference(flat(4)[0]))


def test_memory_can_be_cut_off_from_the_graph():
    model = build(ActorCriticRecurrent)
    obs, _ = flat(4)
    model.act(obs)
    assert leaves(model.get_hidden_states())[0].requires_grad
    model.detach_hidden_states()
    assert not any(leaf.requires_grad for leaf in leaves(model.get_hidden_states()))


def test_wrong_uses_of_memory_are_explained():
    model = build(ActorCriticRecurrent)
    obs, critic_obs = flat(4)
    with pytest.raises(ValueError, match="give hidden_states with a minibatch"):
        model.act(flat(3, 4)[0])
    model.act(obs)
    with pytest.raises(ValueError, match=r"holds 4 envs and the observations 2; call reset\(\)"):
        model.act(obs[:2])
    with pytest.raises(ValueError, match="dones has 2 entries for a memory of 4 envs"):
        model.reset(torch.zeros(2))
    with pytest.raises(ValueError, match="wants the hidden_states"):
        model.evaluate_actions(obs, torch.zeros(4, 2), critic_obs)


def test_a_shared_memory_cannot_be_advanced_twice():
    config = PolicyConfig(trunk=(Remember(hidden_size=3),))
    with pytest.raises(ValueError, match="would each advance the trunk's memory"):
        StatefulPolicy(Policy(ObsSpec.from_flat(4), BoxSpec(shape=(2,)), config))


# -- minibatches: padded trajectories and whole columns ----------------------------------------------------------------


@st.composite
def rollouts(draw):
    num_steps, num_envs = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    size = num_steps * num_envs
    dones = torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size))).view(num_steps, num_envs)
    return dones, draw(st.sampled_from(RECURRENT)), draw(st.sampled_from(["lstm", "gru"])), draw(st.integers(0, 99))


@pytest.mark.slow
@given(rollouts())
@settings(max_examples=120 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 50)
def test_padded_trajectories_columns_with_resets_and_the_rollout_agree(rollout):
    dones, kind, rnn_type, seed = rollout
    model = build(kind, rnn_type=rnn_type)
    num_steps, num_envs = dones.shape
    obs, critic_obs = flat(num_steps, num_envs, seed=seed)
    with torch.no_grad():
        model.act(flat(num_envs, seed=seed + 1)[0], critic_observations=critic_obs[0])
        model.evaluate(critic_obs[0])  # the rollout begins in the middle of an episode
        states, memos, actions, means, values = [], [], [], [], []
        for step in range(num_steps):
            states.append(model.get_hidden_states())
            actions.append(model.act(obs[step], critic_observations=critic_obs[step]))
            memos.append(model.stage_draws)
            means.append(model.action_mean)
            values.append(model.evaluate(critic_obs[step]))
            model.reset(dones[step].long())
        stage_draws = {name: torch.stack([one[name] for one in memos]) for name in memos[0]}
        taken = torch.stack(actions)

        resets = torch.cat([torch.zeros_like(dones[:1]), dones[:-1]])
        columns = model.evaluate_actions(
            obs, taken, critic_obs, hidden_states=states[0], resets=resets, stage_draws=stage_draws
        )
        column_means = model.action_mean

        padded, masks = split_and_pad_trajectories({"obs": obs, "critic": critic_obs, "memo": stage_draws}, dones)
        begun = begin_states(states, dones)
        split = model.evaluate_actions(padded["obs"], taken, padded["critic"], masks, begun, stage_draws=padded["memo"])
        split_means = model.action_mean
    assert difference(column_means, torch.stack(means)) <= 1e-6
    assert difference(split_means, torch.stack(means)) <= 1e-6
    for found in (columns, split):
        assert difference(found[2], torch.stack(values)) <= 1e-6
    for one, other, limit in zip(columns, split, (1e-5, 1e-6, 1e-6)):  # a log-probability squares (action - mean) / std
        assert difference(one, other) <= limit


def begin_states(states, dones):
    """Return the hidden states with which each trajectory begins, env by env, as padding orders them."""
    begins = []
    for env in range(dones.shape[1]):
        begins.append(states[0][:, env])
        begins += [states[step + 1][:, env] for step in range(dones.shape[0] - 1) if dones[step, env]]
    return stacked(begins)


def stacked(parts):
    if isinstance(parts[0], torch.Tensor):
        return torch.stack(parts, dim=1)
    return type(parts[0])(*(stacked([tuple(part)[i] for part in parts]) for i in range(len(tuple(parts[0])))))


def test_actions_of_a_minibatch_come_back_unpadded():
    model = build(ActorCriticRecurrent)
    dones = torch.tensor([[0, 1], [1, 0], [0, 0]])
    padded, masks = split_and_pad_trajectories(flat(3, 2)[0], dones)
    hidden = stacked([model_state(model)[:, 0]] * masks.shape[1])
    assert masks.shape == (3, 4)
    assert model.act(padded, masks, hidden.actor).shape == (3, 2, 2), "the actor's part alone is enough"
    assert model.evaluate(torch.randn(3, 4, NUM_CRITIC_OBS), masks.float(), hidden.critic).shape == (3, 2, 1)
    assert model.get_hidden_states() is not None, "a minibatch does not touch the memory of the rollout"


def model_state(model):
    obs, critic_obs = flat(2)
    model.act(obs)
    model.evaluate(critic_obs)
    return model.get_hidden_states()


# -- like a module -----------------------------------------------------------------------------------------------------


def test_it_passes_for_a_module():
    model = build(ActorCriticRecurrent)
    assert {id(p) for p in model.parameters()} == {id(p) for p in model.policy.parameters()}
    assert dict(model.named_parameters()).keys() == dict(model.policy.named_parameters()).keys()
    assert model.eval() is model and not model.policy.training and model.train().policy.training
    assert model.to("cpu") is model and model.device == torch.device("cpu")
    other = build(ActorCriticRecurrent, seed=9)
    other.load_state_dict(model.state_dict())
    obs, _ = flat(3)
    assert torch.equal(model.act_inference(obs), other.act_inference(obs))
