"""Random network distillation: hand-worked novelty, schedules, normalisers, and who learns."""

from __future__ import annotations

import pytest
import torch
from ppo_rollouts import ACTION
from term_rollouts import learn, make_env, make_parts, make_policy, make_rnd, no_terms, order, touched

from striderl.algorithms.terms.rnd import RandomNetworkDistillation, RNDConfig
from striderl.algorithms.terms.term import Read
from striderl.data import tree
from striderl.data.specs import ObsSpec
from striderl.envs.toy import Script, Scripted

NAN = float("nan")


def linear_rnd(num_envs: int = 1, **config: object) -> RandomNetworkDistillation:
    """Novelty of x is |3x - x| in both of two outputs that point like (3, 4): 5 · 2 |x| / 5 = 2 |x|."""
    settings = {"predictor_hidden_dims": (), "target_hidden_dims": (), "num_outputs": 2}
    off = {"normalize_obs": False, "normalize_reward": False}
    term = RandomNetworkDistillation(ObsSpec.from_flat(1), num_envs, RNDConfig(**{**settings, **off, **config}))
    with torch.no_grad():
        term.networks.target.model[0].weight.copy_(torch.tensor([[1.8], [2.4]]))
        term.networks.predictor.model[0].weight.copy_(torch.tensor([[0.6], [0.8]]))
        term.networks.target.model[0].bias.zero_()
        term.networks.predictor.model[0].bias.zero_()
    return term


def columns(term: RandomNetworkDistillation, x: list[float], done: list[bool], valid: list[bool] | None = None) -> dict:
    (name,) = term.networks.spec
    ended = torch.tensor(done).unsqueeze(1)
    return {
        "obs": {name: torch.tensor(x).view(-1, 1, 1)},
        "rew": torch.zeros(len(x), 1),
        "terminated": ended,
        "truncated": torch.zeros_like(ended),
        "valid": torch.ones_like(ended) if valid is None else torch.tensor(valid).unsqueeze(1),
    }


def rewards(term: RandomNetworkDistillation, data: dict, last: float) -> list[float]:
    (name,) = term.networks.spec
    found = term.reward(Read(data, {name: torch.tensor([[last]])}))["rnd_reward"]
    return [round(value, 5) for value in found.flatten().tolist()]


# -- the reward --------------------------------------------------------------------------------------------------------


def test_the_reward_is_the_novelty_of_what_followed():
    # novelty 2|x|: states 1, 2, 3, then 4; step 1 ended its episode, so state 3 did not follow it: 2 · 2 stays
    term = linear_rnd()
    data = columns(term, [1.0, 2.0, 3.0], [False, True, False])
    assert rewards(term, data, 4.0) == [4.0, 4.0, 8.0]


def test_weight_and_step_dt_are_applied():
    term = linear_rnd(weight=3.0, step_dt=0.02)
    # 2 · 4 · 3 · 0.02 = 0.48
    assert rewards(term, columns(term, [1.0], [False]), 4.0) == [0.48]


def test_samples_that_cannot_be_read_spoil_nothing():
    # step 1 is not valid: no reward; step 0 was followed by NaN: its own novelty 2 stands in
    term = linear_rnd()
    data = columns(term, [1.0, NAN, 3.0], [False, False, False], [True, False, True])
    assert rewards(term, data, 4.0) == [2.0, 0.0, 8.0]


def test_asking_twice_gives_the_same_and_changes_nothing():
    env = make_env()
    term = make_rnd(env)
    parts = make_parts(env, make_policy(env), lambda env: [term])
    prepared = parts.collect()
    before = term.state_dict()
    read = Read(prepared.columns, parts.collector.current_obs)
    first, second = term.reward(read), term.reward(read)
    assert torch.equal(first["rnd_reward"], second["rnd_reward"]) and float(first["rnd_reward"].min()) > 0.0
    assert tree.equal(before, term.state_dict())


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({}, [4.0, 4.0, 4.0, 4.0, 4.0]),
        ({"weight_schedule": "step", "final_step": 20, "final_weight": 1.0}, [4.0, 4.0, 1.0, 1.0, 1.0]),
        # from 4 at step 10 to 1 at step 30: halfway 2.5
        (
            {"weight_schedule": "linear", "initial_step": 10, "final_step": 30, "final_weight": 1.0},
            [4.0, 4.0, 2.5, 1.0, 1.0],
        ),
    ],
    ids=["constant", "step", "linear"],
)
def test_the_weight_follows_its_schedule(schedule, expected):
    term = linear_rnd(weight=4.0, **schedule)
    found = []
    for _ in expected:
        found.append(float(term.numbers()["rnd_weight"]))
        term.update_normalization(columns(term, [0.0] * 10, [False] * 10))
    assert found == expected


# -- normalisers -------------------------------------------------------------------------------------------------------


def test_the_observations_are_normalised_after_the_first_rollout():
    term = linear_rnd(normalize_obs=True)
    data = columns(term, [1.0, 3.0, NAN], [False] * 3, [True, True, False])
    # before: mean 0, std 1 (+ 0.01)
    assert rewards(term, data, 4.0)[0] == pytest.approx(2 * 3 / 1.01, abs=1e-4)
    term.update_normalization(data)
    # mean 2, std 1 of the two valid states: state 3 reads as 1 / 1.01
    assert rewards(term, data, 4.0)[0] == pytest.approx(2 * 1 / 1.01, abs=1e-4)


def test_the_reward_is_divided_by_the_spread_of_its_discounted_sum():
    term = linear_rnd(normalize_reward=True, gamma=0.5)
    data = columns(term, [1.0, 2.0], [False, False])
    term.update_normalization(data)
    # novelty 2, 4; sums 2 and 0.5 · 2 + 4 = 5: mean 3.5, std 1.5
    assert rewards(term, data, 4.0) == [round(4 / 1.51, 5), round(8 / 1.51, 5)]


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_that_sum_begins_again_with_each_episode_and_goes_on_across_rollouts(end):
    term = linear_rnd(normalize_reward=True, gamma=0.5)
    data = columns(term, [1.0, 2.0], [False, False])
    data[end] = torch.tensor([[True], [False]])
    term.update_normalization(data)
    # novelty 2, 4; the episode of the first ended: sums 2 and 4, mean 3, std 1
    assert rewards(term, columns(term, [0.0], [False]), 3.0) == [round(6 / 1.01, 5)]
    term.update_normalization(columns(term, [1.0], [False]))
    # the second episode goes on: 0.5 · 4 + 2 = 4; of 2, 4, 4 the std is sqrt(8 / 9)
    assert rewards(term, columns(term, [0.0], [False]), 3.0) == [pytest.approx(6 / ((8 / 9) ** 0.5 + 0.01), abs=1e-4)]


# -- learning ----------------------------------------------------------------------------------------------------------


def test_the_loss_is_the_mean_squared_error_of_valid_samples():
    # f - f̂ = (1.2, 1.6) x; mean of squares 2 x²: for x = 1 and 2: 2 and 8, mean 5; NaN does not count
    term = linear_rnd()
    (name,) = term.networks.spec
    obs = {name: torch.tensor([[1.0], [2.0], [NAN]])}
    losses = term.losses({"obs": obs, "valid": torch.tensor([True, True, False])}, None)  # type: ignore[arg-type]
    weight, loss = losses["rnd_loss"]
    assert (weight, loss.item()) == (1.0, pytest.approx(5.0))
    loss.backward()
    # dL/dw_k = mean over samples of -(2 / 2) · d_k x · x: mean(-(1.2) · 1, -(1.2) · 4) = -3 and -4
    gradient = term.groups["rnd"].flat.grad
    assert gradient[:2].tolist() == pytest.approx([-3.0, -4.0])


def test_samples_that_another_term_added_are_not_learned_from():
    # only x = 1 was collected: 2 · 1²
    term = linear_rnd()
    (name,) = term.networks.spec
    minibatch = {
        "obs": {name: torch.tensor([[1.0], [2.0]])},
        "valid": torch.tensor([True, True]),
        "collected": torch.tensor([True, False]),
    }
    assert term.losses(minibatch, None)["rnd_loss"][1].item() == pytest.approx(2.0)  # type: ignore[arg-type]


def test_only_the_predictor_learns():
    env = make_env()
    term, policy = make_rnd(env), make_policy(env)
    parts = make_parts(env, policy, lambda env: [term])
    minibatch = next(iter(parts.ppo.minibatches(parts.collect(), order())))
    losses, _, _ = parts.ppo.compute_losses(minibatch)
    named = {f"policy.{name}": value for name, value in policy.named_parameters()}
    named |= {f"predictor.{name}": value for name, value in term.networks.predictor.named_parameters()}
    assert touched(losses["rnd_loss"][1], named) == {name for name in named if name.startswith("predictor")}
    assert not any(parameter.requires_grad for parameter in term.networks.target.parameters())
    before = tree.copy(dict(term.networks.target.state_dict()))
    predictor = tree.copy(dict(term.networks.predictor.state_dict()))
    parts.ppo.update(parts.prepare({}), order())
    assert not tree.equal(predictor, dict(term.networks.predictor.state_dict()))
    assert tree.equal(before, dict(term.networks.target.state_dict()))


@pytest.mark.slow
def test_what_is_seen_again_and_again_is_no_longer_new():
    env = make_env(32, 4)
    settings = {"normalize_reward": False, "learning_rate": 1e-2, "num_outputs": 1}
    parts = make_parts(
        env, make_policy(env), lambda env: [make_rnd(env, **settings)], num_steps=32, num_learning_epochs=60
    )
    prepared = parts.collect()
    before = float(parts.ppo.update(prepared, order())["rnd_reward"])
    after = float(parts.prepare(prepared.initial_state).numbers["rnd_reward"])
    assert after < 0.5 * before


def test_the_predictor_has_a_learning_rate_and_a_norm_of_its_own():
    env = make_env()
    parts = make_parts(env, make_policy(env), lambda env: [make_rnd(env, learning_rate=0.05, max_grad_norm=0.5)])
    numbers, _ = learn(parts)
    group = parts.ppo.updater.groups["rnd"]
    assert float(group.learning_rate) == pytest.approx(0.05) and group.config.max_grad_norm == 0.5
    assert float(numbers["learning_rate"]) != pytest.approx(0.05)
    assert float(numbers["rnd_grad_norm"]) > 0.0 and float(numbers["rnd_loss"]) > 0.0


def test_a_weight_of_zero_leaves_the_policy_as_it_would_have_been():
    results = []
    for terms in (no_terms, lambda env: [make_rnd(env, weight=0.0)], lambda env: [make_rnd(env, weight=1.0)]):
        env = make_env()
        parts = make_parts(env, make_policy(env), terms)
        results.append(learn(parts)[1])
    without, zero, one = results
    assert all(torch.equal(without[name], zero[name]) for name in without)
    assert not all(torch.equal(without[name], one[name]) for name in without)


def test_the_reward_reaches_the_returns_and_the_stored_reward_stays():
    # one step, weight so that novelty 2 · 4 adds 8; the value head is zeroed, so the return is the reward
    never = torch.zeros(1, 1, dtype=torch.bool)
    script = Script(
        obs={"obs": torch.tensor([[[1.0]], [[4.0]]])},
        reward=torch.full((1, 1), 0.5),
        terminated=never,
        truncated=never,
    )
    env = Scripted(script, action_spec=ACTION)
    policy = make_policy(env)
    with torch.no_grad():
        for parameter in policy.value_head.parameters():
            parameter.zero_()
    parts = make_parts(env, policy, lambda env: [linear_rnd()], num_steps=1, num_mini_batches=1)
    prepared = parts.collect()
    assert prepared.returns.item() == pytest.approx(8.5)
    assert prepared.columns["rew"].item() == 0.5
    assert prepared.numbers["rnd_reward"].item() == pytest.approx(8.0)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"weight_schedule": "liner"}, "Did you mean 'linear'"),
        ({"final_step": 5}, "have no effect"),
        ({"weight_schedule": "step", "final_step": 5, "initial_step": 1}, "no effect"),
        ({"weight_schedule": "linear", "initial_step": 5, "final_step": 5}, "later final_step"),
        ({"num_outputs": 0}, "positive"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        RNDConfig(**settings)


def test_other_envs_than_it_was_made_for_are_refused():
    env = make_env(8, 4)
    with pytest.raises(KeyError, match="Did you mean 'joints'"):
        make_rnd(env, obs_components=("joint",))
    parts = make_parts(env, make_policy(env), lambda env: [RandomNetworkDistillation(env.obs_spec, 3)])
    with pytest.raises(ValueError, match="made for 3 envs, this rollout has 4"):
        parts.collect()
