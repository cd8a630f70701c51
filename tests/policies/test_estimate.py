"""Estimate and Adapt: who is replaced and when, what learns from what, and which settings contradict each other."""

from __future__ import annotations

import pytest
import torch
from policy_cases import at, difference, random_memo, random_obs

from striderl.data.actions import BoxSpec
from striderl.data.noise import draw_all
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.policies.encode import Encode
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stage import StageInput
from striderl.policies.stages import NormalizeObs, Remember

SPEC = ObsSpec(
    {
        "imu": ComponentSpec(shape=(4,)),
        "velocity": ComponentSpec(shape=(3,)),
        "gait": ComponentSpec(shape=(2, 2)),
        "friction": ComponentSpec(shape=(2,), group="critic"),
        "clean_velocity": ComponentSpec(shape=(3,), group="critic"),
    }
)
ACTOR = SPEC.select(["policy"])


def estimate(**settings) -> Estimate:
    return Estimate(**{"obs_components": ("imu",), "target_components": ("velocity",), **settings})


def adapt(**settings) -> Adapt:
    return Adapt(**{"obs_components": ("imu",), "target_components": ("friction",), **settings})


def observation(*lead: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(*lead, *part.shape, generator=generator) for name, part in SPEC.items()}


def run(recipe, obs=None, stage_draws=None, spec=ACTOR, lead=(5,)):
    torch.manual_seed(0)
    stage = recipe.build(spec, SPEC)
    obs = observation(*lead) if obs is None else obs
    seen = {name: obs[name] for name in spec}
    return stage, stage(StageInput(seen, {}, stage_draws or {}, whole=obs)), obs


def policy_with(*actor, critic=(), trunk=(), **settings) -> Policy:
    torch.manual_seed(0)
    config = PolicyConfig(trunk=trunk, actor=actor, critic=critic, actor_hidden_dims=(8,), critic_hidden_dims=(8,))
    return Policy(SPEC, BoxSpec(shape=(2,)), config)


# -- what goes out -----------------------------------------------------------------------------------------------------


def test_an_estimate_without_replacement_only_shows_itself():
    stage, passed, obs = run(estimate(target_components=("velocity", "friction")))
    assert passed.aux["estimate"].shape == (5, 5) and passed.aux["estimate/friction"].shape == (5, 2)
    assert torch.equal(passed.aux["target"], torch.cat([obs["velocity"], obs["friction"]], dim=-1))
    assert passed.obs.keys() == set(ACTOR) and all(passed.obs[name] is obs[name] for name in ACTOR)
    assert stage.output_spec == ACTOR and not stage.noise() and not stage.stage_draw_spec()


def test_the_estimate_replaces_where_the_memo_says():
    stage_draws = {"replace": torch.tensor([True, False, True, False, False])}
    stage, passed, obs = run(
        estimate(target_components=("velocity", "gait"), replace_state_prob=0.5), stage_draws=stage_draws
    )
    for name in ("velocity", "gait"):
        part = passed.aux[f"estimate/{name}"]
        assert torch.equal(passed.obs[name][[0, 2]], part[[0, 2]])
        assert torch.equal(passed.obs[name][[1, 3, 4]], obs[name][[1, 3, 4]])
        assert not passed.obs[name].requires_grad, "what replaces is cut off"
    assert passed.aux["estimate"].requires_grad and passed.obs["imu"] is obs["imu"]
    assert stage.stage_draw_spec()["replace"].dtype == "bool"


def test_certain_replacement_decides_and_stores_nothing():
    stage, passed, _ = run(estimate(replace_state_prob=1.0))
    assert torch.equal(passed.obs["velocity"], passed.aux["estimate/velocity"])
    assert not stage.noise() and not stage.stage_draw_spec() and stage.settled(torch.zeros(5)) == {}


def test_targets_follow_the_observation_and_not_the_setting():
    one = run(estimate(target_components=("velocity", "gait")))[1]
    other = run(estimate(target_components=("gait", "velocity"), truth_components=("gait", "clean_velocity")))
    assert torch.equal(one.aux["estimate"], other[1].aux["estimate"])
    obs = other[2]
    assert torch.equal(other[1].aux["target"], torch.cat([obs["clean_velocity"], obs["gait"].flatten(1)], dim=-1))


def test_the_truth_may_be_a_clean_copy_of_something_that_is_read():
    recipe = estimate(obs_components=("imu", "velocity"), truth_components=("clean_velocity",), replace_state_prob=0.5)
    _, passed, obs = run(recipe, stage_draws={"replace": torch.zeros(5, dtype=torch.bool)})
    assert torch.equal(passed.aux["target"], obs["clean_velocity"])
    assert torch.equal(passed.obs["velocity"], obs["velocity"]), "what the actor sees stays its own noisy value"


def test_without_the_truth_there_is_no_target():
    obs = {name: value for name, value in observation(5).items() if name != "friction"}
    _, passed, _ = run(estimate(target_components=("friction",)), obs=obs)
    assert "target" not in passed.aux and "estimate" in passed.aux


def test_adapt_adds_the_privileged_component():
    stage_draws = {"replace": torch.tensor([True, False, True, False, False])}
    stage, passed, obs = run(adapt(replace_state_prob=0.5), stage_draws=stage_draws)
    assert stage.output_spec.names == (*ACTOR.names, "friction")
    assert torch.equal(passed.obs["friction"][[0, 2]], passed.aux["estimate/friction"][[0, 2]])
    assert torch.equal(passed.obs["friction"][[1, 3, 4]], obs["friction"][[1, 3, 4]])
    assert stage.wanted_truths == ("friction",)


def test_adapt_replaces_a_component_that_the_actor_has():
    stage, passed, _ = run(adapt(target_components=("velocity",)))
    assert stage.output_spec.names == ACTOR.names
    assert torch.equal(passed.obs["velocity"], passed.aux["estimate/velocity"])
    assert stage.wanted_truths == ()


@pytest.mark.parametrize("probability", [0.5, 1.0])
def test_on_a_robot_the_prediction_stands_for_what_is_not_there(probability):
    obs = {name: value for name, value in observation(5).items() if name != "friction"}
    _, passed, _ = run(adapt(replace_state_prob=probability), obs=obs)
    assert torch.equal(passed.obs["friction"], passed.aux["estimate/friction"])


def test_an_adaptor_that_never_replaces_needs_the_truth():
    _, passed, obs = run(adapt(replace_state_prob=0.0))
    assert torch.equal(passed.obs["friction"], obs["friction"])
    with pytest.raises(KeyError, match="let the prediction replace it"):
        run(adapt(replace_state_prob=0.0), obs={name: obs[name] for name in ACTOR})


# -- decisions ---------------------------------------------------------------------------------------------------------


def test_decisions_follow_the_probability():
    stage = estimate(replace_state_prob=0.3).build(ACTOR, SPEC)
    noise = draw_all(stage.noise(), seed=3, iteration=0, env_index=torch.arange(4000), num_steps=1)
    decided = stage.decide({"replace": noise["replace"][0]})["replace"]
    # 4000 draws: the standard deviation of the mean is sqrt(0.3 * 0.7 / 4000) = 0.007
    assert decided.dtype == torch.bool and decided.float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert stage.settled(torch.zeros(2, 3))["replace"].tolist() == [[True] * 3] * 2


def test_a_missing_decision_is_an_error_that_says_what_to_give():
    with pytest.raises(KeyError, match=r"policy\.decide\(noise\) while collecting"):
        run(estimate(replace_state_prob=0.5))


def test_repeating_the_decisions_makes_the_ratio_one():
    policy = policy_with(adapt(replace_state_prob=0.5), estimate(replace_state_prob=0.5))
    obs, stage_draws = random_obs(policy, 6, 7), random_memo(policy, 6, 7)
    assert 0 < sum(int(value.sum()) for value in stage_draws.values()) < 2 * 42
    actions = torch.randn(6, 7, 2)
    rollout = [policy(at(obs, t), {}, at(stage_draws, t)).distribution.log_prob(actions[t]) for t in range(6)]
    again = [policy(at(obs, t), {}, at(stage_draws, t)).distribution.log_prob(actions[t]) for t in range(6)]
    assert all(torch.equal(one, other) for one, other in zip(rollout, again)), "same rows, same decisions: same bits"
    update = policy(obs, {}, stage_draws).distribution.log_prob(actions)
    assert (update - torch.stack(rollout)).exp().sub(1.0).abs().max() <= 1e-6
    redrawn = policy(obs, {}, random_memo(policy, 6, 7, seed=1)).distribution.log_prob(actions)
    assert (redrawn - torch.stack(rollout)).abs().max() > 1e-3, "drawing again would not have been enough"


def test_deterministic_inference_does_not_depend_on_what_it_replaces():
    policy = policy_with(estimate(replace_state_prob=0.2))
    obs = random_obs(policy, 5)
    stage_draws = policy.settled(torch.zeros(5))
    one = policy.act(obs, {}, stage_draws)[0].mode()
    assert torch.equal(one, policy.act(obs, {}, stage_draws)[0].mode())
    other = policy.act({**obs, "velocity": torch.full((5, 3), 7.0)}, {}, stage_draws)[0].mode()
    assert torch.equal(one, other)
    never = policy_with(estimate(replace_state_prob=0.0))
    changed = never.act({**obs, "velocity": torch.full((5, 3), 7.0)}, {}, {})[0].mode()
    assert difference(never.act(obs, {}, {})[0].mode(), changed) > 1e-3


# -- learning ----------------------------------------------------------------------------------------------------------


def touched(policy: Policy, loss: torch.Tensor) -> set[str]:
    policy.zero_grad()
    loss.backward()
    return {name for name, p in policy.named_parameters() if p.grad is not None and (p.grad != 0).any()}


def test_the_estimator_learns_from_its_own_loss_only():
    policy = policy_with(adapt(replace_state_prob=0.5), estimate(replace_state_prob=0.5))
    obs, stage_draws = random_obs(policy, 9), at(random_memo(policy, 1, 9), 0)
    aux = policy(obs, {}, stage_draws).aux
    loss = (aux["actor/1_Estimate/estimate"] - aux["actor/1_Estimate/target"]).square().mean()
    names = {name for name, _ in policy.named_parameters() if "1_Estimate" in name}
    assert touched(policy, loss) == names and len(names) == 6
    acting = touched(policy, policy(obs, {}, stage_draws).distribution.log_prob(torch.randn(9, 2)).sum())
    assert acting and not any("Estimate" in name or "Adapt" in name for name in acting)


def test_with_the_actors_memory_the_loss_reaches_the_memory():
    policy = policy_with(Remember(hidden_size=4), estimate(obs_components=(), use_actor_rnn=True))
    out = policy(random_obs(policy, 3, 4), policy.initial_state(4), {}, torch.zeros(3, 4, dtype=torch.bool))
    names = touched(policy, (out.aux["actor/1_Estimate/estimate"] - out.aux["actor/1_Estimate/target"]).square().mean())
    assert names == {name for name, _ in policy.named_parameters() if name.startswith("actor.")}


@pytest.mark.parametrize("in_trunk", [True, False])
def test_the_target_has_the_units_of_what_is_replaced(in_trunk):
    # velocities 1 and 3 are absorbed: mean 2 and std 1, so the actor sees 5 as (5 - 2) / 1, and so must the estimator
    normalize, predict = NormalizeObs(eps=0.0), estimate(replace_state_prob=1.0)
    policy = policy_with(predict, trunk=(normalize,)) if in_trunk else policy_with(normalize, predict)
    raw = {name: torch.stack([torch.ones(part.shape), 3 * torch.ones(part.shape)]) for name, part in SPEC.items()}
    policy.update_normalization(raw)
    out = policy({name: torch.full((1, *part.shape), 5.0) for name, part in SPEC.items()}, {}, {})
    (target,) = [value for name, value in out.aux.items() if name.endswith("/target")]
    assert target.tolist() == [[3.0, 3.0, 3.0]]


# -- contradictions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "error", "message"),
    [
        (estimate(target_components=()), ValueError, "predicts nothing: name its target components"),
        (estimate(obs_components=()), ValueError, "reads nothing: name its observation components"),
        (estimate(replace_state_prob=1.5), ValueError, "a probability from 0 to 1"),
        (estimate(obs_components=("imi",)), KeyError, "Did you mean 'imu'"),
        (estimate(target_components=("velocty",)), KeyError, "Did you mean 'velocity'"),
        (estimate(target_components=("friction",), replace_state_prob=0.5), ValueError, "use Adapt, which adds"),
        (estimate(obs_components=("imu", "velocity")), ValueError, "would learn to copy"),
        (estimate(truth_components=("friction",)), ValueError, "must be the same quantity"),
        (estimate(truth_components=("velocity", "gait")), ValueError, "one per target, or none"),
        (estimate(truth_components=("clean",)), KeyError, "no component 'clean'"),
        (estimate(use_actor_rnn=True, obs_components=()), ValueError, "put the stage after Remember"),
        (estimate(use_actor_rnn=True), ValueError, "leave obs_components and memory away"),
        (
            estimate(use_actor_rnn=True, obs_components=(), replace_state_prob=0.5),
            ValueError,
            "set replace_state_prob=0, or use_actor_rnn=False",
        ),
        (adapt(target_components=("frction",)), KeyError, "Did you mean 'friction'"),
        (adapt(replace_state_prob=-0.1), ValueError, "a probability from 0 to 1"),
        (adapt(obs_components=("friction",)), KeyError, "no component 'friction'"),
    ],
)
def test_contradictory_settings_name_the_fix(recipe, error, message):
    with pytest.raises(error, match=message):
        recipe.build(ACTOR, SPEC)


def test_order_matters_and_is_explained():
    with pytest.raises(KeyError, match="put the stage before Remember"):
        policy_with(Remember(hidden_size=4), estimate())
    with pytest.raises(ValueError, match="put Estimate before Encode"):
        policy_with(Encode(components=("velocity",), output_size=5), estimate(replace_state_prob=0.5))
    after = policy_with(Encode(components=("imu",), output_size=5), estimate())
    assert after(random_obs(after, 3), {}, {}).aux["actor/1_Estimate/estimate"].shape == (3, 3)
