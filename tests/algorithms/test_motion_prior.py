"""Motion priors: numbers by hand, one normaliser for both sides, experts of both kinds, on PPO and on SAC."""

from __future__ import annotations

import pytest
import torch
from motion_cases import STRIDE, Drift, make_appo, make_policy, make_trainer, prior_of, speeds

from striderl.algorithms.actor_critic.sac import SAC, SACConfig
from striderl.algorithms.terms.expert import EnvExpert, Expert
from striderl.algorithms.terms.motion_prior import MotionPrior, MotionPriorConfig
from striderl.algorithms.terms.term import Read
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.specs import ObsSpec
from striderl.datasets.motion.amp_loader import AMPLoader, AMPLoaderConfig
from striderl.datasets.motion.clip import ClipField, MotionClip
from striderl.execution.capture import check_capture
from striderl.execution.updater import Updater
from striderl.networks.discriminator import AMPDiscriminator
from striderl.ops.imitation import squared_slope
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.value_functions import QFunction, QFunctionConfig
from striderl.training.plans import OffPolicyPlan
from striderl.training.trainer import Trainer

PLANE = ObsSpec.from_segments({"motion": 2})


def discriminator(size=2, **settings):
    torch.manual_seed(0)
    return AMPDiscriminator(size, settings.pop("style_reward_coef", 2.0), settings.pop("hidden_dims", [16]), **settings)


def plane_term(expert, network=None, **config):
    """A prior over single frames of a plane."""
    torch.manual_seed(1)
    usual = {"frames": 1, "hidden_dims": (16,), "learning_rate": 1e-2, "replay_size": 0, "gradient_penalty": 0.1}
    return MotionPrior(PLANE, expert, MotionPriorConfig(**{**usual, **config}), network=network)


def plane_rollout(after, reference=None):
    """Steps [1, N] that lead to `after` [N, 2]."""
    count = len(after)
    nowhere = torch.zeros(1, count, dtype=torch.bool)
    info = {} if reference is None else {"ref_motion": reference[None]}
    return {
        "obs": {"motion": torch.zeros(1, count, 2)},
        "obs_next": {"motion": after[None]},
        "act": torch.zeros(1, count, 1),
        "rew": torch.ones(1, count),
        "terminated": nowhere,
        "truncated": nowhere,
        "valid": ~nowhere,
        "info": info,
    }


def minibatch_of(term, columns):
    """All steps as PPO's minibatches have them."""
    labels = term.labels(Read(columns, {}))
    flat = {name: value.flatten(0, 1) for name, value in labels.items()}
    return {
        "obs": {"motion": columns["obs_next"]["motion"].flatten(0, 1)},
        "act": columns["act"].flatten(0, 1),
        "valid": columns["valid"].flatten(),
        "info": {name: value.flatten(0, 1) for name, value in columns["info"].items()},
        "labels": {term.name: flat},
    }


def clouds(count=512, distance=4.0, seed=0):
    """Two clouds that differ by their mean only."""
    policy, expert = torch.randn(2, count, 2, generator=torch.Generator().manual_seed(seed))
    return policy, expert + torch.tensor([distance, 0.0])


# -- what is learned ---------------------------------------------------------------------------------------------------

LOSSES = {
    "least_squares": {"loss": "least_squares"},
    "closed form": {"loss": "least_squares", "network": True},
    "bce": {"loss": "bce", "reward": "minus_log_one_minus_d"},
    "wasserstein": {"loss": "wasserstein", "reward": "difference", "penalty_at": "between", "wanted_slope": 1.0},
    "from replay": {"loss": "least_squares", "replay_size": 512, "replay_share": 1.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("shown_by_env", [False, True], ids=["drawn", "env"])
@pytest.mark.parametrize("settings", LOSSES.values(), ids=LOSSES)
def test_an_expert_that_differs_by_its_mean_only_is_told_apart(settings, shown_by_env):
    # two clouds, whitened each by itself, would be the same: defect 19
    policy, expert = clouds()
    settings = dict(settings)
    network = discriminator() if settings.pop("network", False) else None
    term = plane_term(EnvExpert(shape=(2,)) if shown_by_env else expert, network, **settings)
    updater = Updater(term.groups)
    columns = plane_rollout(policy, expert if shown_by_env else None)
    for _ in range(10):
        term.update_normalization(columns)
        whole = minibatch_of(term, columns)
        for start in range(0, 512, 128):
            part = {
                **{name: whole[name][start : start + 128] for name in ("act", "valid")},
                "obs": {"motion": whole["obs"]["motion"][start : start + 128]},
                "info": {name: value[start : start + 128] for name, value in whole["info"].items()},
                "labels": {
                    term.name: {name: value[start : start + 128] for name, value in whole["labels"][term.name].items()}
                },
            }
            numbers = updater.step(lambda given: (term.losses(given, None), {}), part)
    assert float(numbers["discriminator_accuracy"]) > 0.95  # 2 standard deviations each: the best possible is 0.977
    assert numbers["discriminator_expert_score"] > numbers["discriminator_policy_score"] + 0.5
    fresh_policy, fresh_expert = clouds(seed=9)
    rewards = [
        term.reward(Read(plane_rollout(rows), {}))["style_reward"].mean() for rows in (fresh_policy, fresh_expert)
    ]
    assert rewards[1] > rewards[0] + 0.1


def test_losses_by_hand_with_their_weight():
    # score = relu(x) - relu(-x) = x on the one motion of each side: normalised they are +1 (expert) and -1 (policy)
    network = AMPDiscriminator(1, 1.0, [2])
    with torch.no_grad():
        network.trunk[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        network.trunk[0].bias.zero_()
        network.head.weight.copy_(torch.tensor([[1.0, -1.0]]))
        network.head.bias.fill_(0.5)
    config = MotionPriorConfig(frames=1, gradient_penalty=3.0, loss_weight=2.0, replay_size=0)
    term = MotionPrior(ObsSpec.from_segments({"motion": 1}), torch.full((4, 1), 5.0), config, network=network)
    statistics = term.judge.normalizer.statistics
    statistics.mean.fill_(4.0), statistics.m2.fill_(1.0 - 1e-4), statistics.count.fill_(1.0)
    minibatch = {
        "obs": {"motion": torch.zeros(2, 1)},
        "obs_next": {"motion": torch.full((2, 1), 3.0)},
        "act": torch.zeros(2, 1),
        "valid": torch.ones(2, dtype=torch.bool),
    }
    found = term.losses(minibatch, None)
    # the expert's score is 1.5: ½ (1.5 - 1)² = 0.125; the policy's -0.5: ½ (-0.5 + 1)² = 0.125; the slope is 1
    for name in ("discriminator_expert_loss", "discriminator_policy_loss"):
        assert found[name][0] == 2.0 and found[name][1].item() == pytest.approx(0.125, abs=1e-4)
    assert found["discriminator_gradient_penalty"][0] == 6.0
    assert found["discriminator_gradient_penalty"][1].item() == pytest.approx(1.0, abs=1e-4)
    # 2 · (0.125 + 0.125 + 3 · 1)
    assert found["discriminator_loss"][1].item() == pytest.approx(6.5, abs=1e-3)
    assert found["discriminator_expert_score"][1].item() == pytest.approx(1.5, abs=1e-4)
    assert found["discriminator_accuracy"][1].item() == 1.0
    assert {name for name, (weight, _) in found.items() if weight == 0.0} == {
        "discriminator_loss",
        "discriminator_accuracy",
        "discriminator_expert_score",
        "discriminator_policy_score",
    }


def test_a_weight_of_zero_leaves_the_discriminator_as_it_is():
    # defect 14: the weight is applied, not a mere switch
    _, expert = clouds(count=8)
    term = plane_term(expert, loss_weight=0.0)
    losses = term.losses(minibatch_of(term, plane_rollout(expert)), None)
    grads = torch.autograd.grad(sum(w * loss for w, loss in losses.values()), list(term.judge.network.parameters()))
    assert all(bool((grad == 0).all()) for grad in grads)


@pytest.mark.parametrize("wanted", [0.0, 1.0])
def test_the_slope_written_out_is_autograds(wanted):
    network = discriminator(3, hidden_dims=[8, 5])
    x = torch.randn(6, 3)
    term = MotionPrior(
        ObsSpec.from_segments({"motion": 3}), torch.randn(4, 3), MotionPriorConfig(frames=1), network=network
    )
    one, two = term.judge.slope_penalty(x, wanted), squared_slope(network, x, wanted)
    torch.testing.assert_close(one, two)
    weights = [layer.weight for layer in (*network.trunk, network.head)]
    for mine, theirs in zip(*(torch.autograd.grad(each.sum(), weights) for each in (one, two))):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(("lerp", "coef"), [(0.0, 2.0), (0.3, 1.5), (1.0, 4.0)])
def test_the_mix_is_that_of_the_discriminator(lerp, coef):
    network = discriminator(task_reward_lerp=lerp, style_reward_coef=coef, discriminator_grad_pen=7.0)
    _, expert = clouds(count=16)
    config = MotionPriorConfig(frames=1).of_discriminator(network)
    assert (config.task_weight, config.style_weight) == (lerp, pytest.approx((1.0 - lerp) * coef))
    assert config.gradient_penalty == 7.0
    term = MotionPrior(PLANE, expert, config, network=network)
    columns = plane_rollout(expert)
    added = sum(term.reward(Read(columns, {})).values()) + columns["rew"]
    seen = term.judge.normalizer(columns["obs_next"]["motion"])
    _, _, mixed = network.predict_style_reward(seen, columns["rew"])
    torch.testing.assert_close(added, mixed)


# -- the normaliser ----------------------------------------------------------------------------------------------------


def test_one_normaliser_learns_from_raw_motions_of_both_sides_once_per_iteration():
    policy, expert = clouds(count=64)
    term = plane_term(EnvExpert(shape=(2,)))
    columns = plane_rollout(policy, expert)
    before = {name: value.clone() for name, value in term.state_dict().items()}
    term.reward(Read(columns, {})), term.losses(minibatch_of(term, columns), None)
    assert all(torch.equal(value, before[name]) for name, value in term.state_dict().items()), "reading teaches nothing"
    term.update_normalization(columns)
    both = torch.cat([policy, expert]).double()
    torch.testing.assert_close(term.judge.normalizer.mean, both.mean(0))
    torch.testing.assert_close(term.judge.normalizer.var, both.var(0, correction=0))
    assert any("normalizer" in name for name in term.state_dict()), "it is saved"


def test_neither_side_has_a_gradient_in_the_other_through_ppo():
    env = Drift(4)
    ppo = make_appo(env, make_policy(env))
    trainer = make_trainer(ppo, env, iterations=1)
    while trainer.phase != "prepare":
        trainer.advance()
    storage, collector = trainer.loop.storage, trainer.collector
    prepared = ppo.prepare(storage, initial_state={}, last_obs=collector.current_obs, last_state={})
    minibatch = next(iter(ppo.minibatches(prepared, torch.Generator().manual_seed(0))))
    losses, _, _ = ppo.compute_losses(minibatch)
    theirs = [loss * weight for name, (weight, loss) in losses.items() if name.startswith("discriminator")]
    own = [loss * weight for name, (weight, loss) in losses.items() if not name.startswith("discriminator")]
    judge, policy = list(prior_of(ppo).judge.network.parameters()), list(ppo.policy.parameters())
    of_policy = torch.autograd.grad(sum(own), [*judge, *policy], allow_unused=True, retain_graph=True)
    assert all(grad is None for grad in of_policy[: len(judge)]) and any(grad is not None for grad in of_policy)
    of_judge = torch.autograd.grad(sum(theirs), [*judge, *policy], allow_unused=True)
    assert all(grad is None for grad in of_judge[len(judge) :])
    assert all(bool((grad != 0).any()) for grad in of_judge[:2])


@pytest.mark.slow
def test_the_losses_can_be_captured():
    policy, expert = clouds(count=16)
    term = plane_term(EnvExpert(shape=(2,)), discriminator(), replay_size=8)
    columns = [plane_rollout(rows, expert) for rows in (policy, policy.flip(0) * 0.5)]
    term.update_normalization(columns[0])
    one, two = (minibatch_of(term, each) for each in columns)

    def numbers(given):
        return {name: weight * loss for name, (weight, loss) in term.losses(given, None).items()}

    report = check_capture(numbers, [one], fresh_inputs=[two], atol=1e-5, rtol=1e-5, name="motion prior")
    assert report.backward


# -- experts -----------------------------------------------------------------------------------------------------------


def test_a_loader_of_clips_is_an_expert():
    values = {"motion": torch.arange(10.0).repeat(2, 1).T.numpy()}
    clip = MotionClip(name="line", frame_duration=0.5, fields={"motion": ClipField(size=2)}, values=values)
    loader = AMPLoader([clip], AMPLoaderConfig(time_between_frames=1.0))
    assert isinstance(loader, Expert)
    env = Drift(2)
    term = MotionPrior(env.obs_spec, loader, MotionPriorConfig(hidden_dims=(8,)))
    rows, counts = term.expert_side({}, torch.tensor(3), 6)
    # one second is two frames, and each frame goes on by 1
    torch.testing.assert_close(rows[:, 2:], rows[:, :2] + 2.0)
    assert bool(counts.all()) and len(rows.unique(dim=0)) > 1


def test_the_envs_expert_must_be_declared():
    env = Drift(2)
    env.info_spec = {}
    ppo = make_appo(env, make_policy(env), EnvExpert(shape=(4,)))
    with pytest.raises(KeyError, match="ref_motion"):
        make_trainer(ppo, env, iterations=1)


def test_bad_motions_of_the_envs_expert_do_not_count():
    policy, expert = clouds(count=8)
    expert[3] = torch.nan
    term = plane_term(EnvExpert(shape=(2,)))
    columns = plane_rollout(policy, expert)
    losses = term.losses(minibatch_of(term, columns), None)
    term.update_normalization(columns)
    assert all(bool(loss.isfinite()) for _, loss in losses.values())
    assert float(term.judge.normalizer.statistics.count) == 8 + 7


# -- learning ----------------------------------------------------------------------------------------------------------


def mean_stride(policy) -> list[float]:
    """How far the mode of a policy goes, on average over the plane."""
    place = torch.rand(200, 2, generator=torch.Generator().manual_seed(0)) * 1.4 - 0.4
    with torch.no_grad():
        action = policy.act({"place": place, "motion": place, "speed": place}, {}, {})[0].mode()
    return (0.4 * action.clamp(-1.0, 1.0)).mean(0).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("expert", [speeds(), EnvExpert(shape=(2,), column="ref_speed")], ids=["drawn", "env"])
def test_ppo_goes_like_the_expert_whom_the_task_does_not_pay(expert):
    env = Drift(32)
    policy = make_policy(env, head_settings={"init_std": 0.4})
    quick = {"gradient_penalty": 0.2, "learning_rate": 1e-2, "task_weight": 0.02, "style_weight": 1.0}
    ppo = make_appo(env, policy, expert, {"gamma": 0.5}, components=("speed",), frames=1, **quick)
    assert abs(mean_stride(policy)[0] - STRIDE[0]) > 0.12
    records = list(make_trainer(ppo, env, iterations=20))
    assert mean_stride(policy) == pytest.approx(list(STRIDE), abs=0.07)
    logged = {"loss", "accuracy", "expert_score", "policy_score", "gradient_penalty", "grad_norm"}
    assert {f"train/discriminator_{name}" for name in logged} <= set(records[0].metrics)


def sac_trainer(expert, iterations):
    env = Drift(4)
    torch.manual_seed(0)
    specs = env.obs_spec, env.action_spec
    policy = ActorPolicy(*specs, ActorConfig(hidden_dims=(32,), head="squashed_gaussian", obs=("place",)))
    critic = QFunction(*specs, QFunctionConfig(hidden_dims=(32,), obs=("place",)))
    window = {"components": ("speed",), "frames": 1}
    config = MotionPriorConfig(hidden_dims=(16,), learning_rate=1e-3, task_weight=0.0, replay_size=0, **window)
    term = MotionPrior(env.obs_spec, expert, config)
    rates = dict.fromkeys(("actor_learning_rate", "critic_learning_rate", "temperature_learning_rate"), 3e-3)
    sac = SAC(policy, critic, SACConfig(**rates, init_temperature=0.05, gamma=0.9), terms=[term])
    plan = OffPolicyPlan(
        num_steps_per_env=20, batch_size=64, learning_starts=64, buffer_size=4000, total_iterations=iterations
    )
    return Trainer(sac, Collector(env, sac.actor(), CollectorConfig(seed=0)), plan, seed=0)


@pytest.mark.slow
def test_sac_is_paid_for_style_too():
    trainer = sac_trainer(speeds(), 6)
    before = mean_stride(trainer.algorithm.policy)
    list(trainer)
    stride = mean_stride(trainer.algorithm.policy)
    assert abs(stride[0] - STRIDE[0]) < 0.12 and abs(stride[0] - STRIDE[0]) < abs(before[0] - STRIDE[0])
    assert "train/discriminator_accuracy" in trainer.record.metrics


@pytest.mark.slow
def test_sac_learns_from_the_expert_that_the_env_shows():
    trainer = sac_trainer(EnvExpert(shape=(2,), column="ref_speed"), 2)
    *_, record = trainer
    score = {side: record.metrics[f"train/discriminator_{side}_score"] for side in ("expert", "policy")}
    assert score["expert"] > score["policy"]
    (term,) = trainer.algorithm.terms.terms
    # both sides are in the normaliser, as many of each
    assert float(term.judge.normalizer.statistics.count) == 2 * 64 * int(term.judge.num_absorbed)
