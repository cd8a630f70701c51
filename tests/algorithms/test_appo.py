"""APPO and ATPPO: who is trained by what, labels that stay the teacher's, and runs that go on bit for bit."""

from __future__ import annotations

import pytest
import torch
from motion_cases import SMALL, Drift, make_appo, make_policy, make_trainer, prior_of, strides

from striderl.algorithms.on_policy.appo import APPO, ATPPO, APPOConfig, ATPPOConfig
from striderl.algorithms.on_policy.estimator_ppo import EstimatorPPO
from striderl.algorithms.on_policy.gail import GAIL
from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.on_policy.tppo import TPPO, EstimatorTPPO, TPPOConfig
from striderl.algorithms.terms.expert import EnvExpert
from striderl.algorithms.terms.mimic import MimicConfig
from striderl.algorithms.terms.motion_prior import MotionPriorConfig
from striderl.collect.teacher import Teacher
from striderl.data import tree
from striderl.policies.presets.amp import AmpActorCritic, AmpActorCriticRecurrent
from striderl.policies.stages import Remember

DISCRIMINATOR = {"input_dim": 4, "style_reward_coef": 2.0, "hidden_dims": [8], "task_reward_lerp": 0.25}


def amp_model(env, kind=AmpActorCritic, **settings):
    torch.manual_seed(0)
    seen = env.obs_spec.select(["place"])
    small = {"actor_hidden_dims": [8], "critic_hidden_dims": [8], "amp_discriminator": DISCRIMINATOR, **settings}
    return kind(seen, num_critic_obs=seen, num_actions=env.action_spec, **small)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(AmpActorCritic, {}), (AmpActorCriticRecurrent, {"rnn_type": "gru", "rnn_hidden_size": 4})],
)
def test_the_discriminator_of_a_policy_is_trained_beside_it(kind, settings):
    env = Drift(4)
    model = amp_model(env, kind, **settings)
    ppo = APPO(
        model.policy,
        strides(),
        APPOConfig(ppo=PPOConfig(num_mini_batches=2, schedule="adaptive"), prior=MotionPriorConfig(replay_size=64)),
        discriminator=model.discriminator,
        obs_spec=env.obs_spec,
    )
    prior, groups = prior_of(ppo), ppo.updater.groups
    assert isinstance(ppo, PPO) and prior.judge.network is model.discriminator
    assert (prior.config.task_weight, prior.config.style_weight, prior.config.gradient_penalty) == (0.25, 1.5, 5.0)
    rate = groups["discriminator"].learning_rate.clone()
    before = tree.copy(dict(model.discriminator.state_dict()))
    (record,) = make_trainer(ppo, env, iterations=1)
    after = model.discriminator.state_dict()
    assert any(not torch.equal(after[name], before[name]) for name in before), "in the very first iteration"
    # defect 20: another optimiser, learning rate, clip; and not in what the policy saves
    assert torch.equal(groups["discriminator"].learning_rate, rate)
    assert {"train/discriminator_grad_norm", "train/grad_norm"} <= set(record.metrics)
    assert not any("discriminator" in name or name == "trunk.0.weight" for name in ppo.policy.state_dict())
    assert any("network" in name for name in ppo.state_dict()["terms"]["motion_prior"])


def test_a_discriminator_inside_the_policy_is_refused():
    env = Drift(2)
    model = amp_model(env)
    model.policy.add_module("inside", model.discriminator)
    with pytest.raises(ValueError, match="a part of the policy"):
        APPO(model.policy, strides(), discriminator=model.discriminator, obs_spec=env.obs_spec)


def test_mimic_is_paid_beside_style():
    env = Drift(4)
    mimic = MimicConfig(components=("speed",), column="ref_speed", weight=0.3)
    config = APPOConfig(ppo=PPOConfig(num_mini_batches=2), prior=MotionPriorConfig(**SMALL), mimic=mimic)
    ppo = APPO(make_policy(env), EnvExpert(shape=(4,)), config)
    trainer = make_trainer(ppo, env, iterations=1)
    (record,) = trainer
    assert set(trainer.loop.storage.data["obs_next"]) == {"motion", "speed"}
    assert 0.0 < record.metrics["train/mimic_reward"] <= 0.3


# -- with a teacher ----------------------------------------------------------------------------------------------------


def test_a_teachers_labels_stay_its_own():
    # defects 16 and 17: motions are columns of their own and take the place of nothing
    env = Drift(4)
    teacher = Teacher(make_policy(env, weights=5))
    tppo = TPPOConfig(ppo=PPOConfig(num_mini_batches=2), teacher_act_prob=0.5, distill_target="mse_sum")
    algorithm = ATPPO(make_policy(env), teacher, strides(), ATPPOConfig(tppo=tppo, prior=MotionPriorConfig(**SMALL)))
    assert {term.name for term in algorithm.terms} == {"motion_prior", "distill"}
    trainer = make_trainer(algorithm, env, iterations=2)
    records = list(trainer)
    data = trainer.loop.storage.data
    wanted, _, _ = teacher.policy.act({name: value.flatten(0, 1) for name, value in data["obs"].items()}, {}, {})
    torch.testing.assert_close(data["policy"]["distill"]["label"].flatten(0, 1), wanted.mode().detach())
    acted = data["policy"]["distill"]["acted"]
    assert not torch.equal(data["act"][~acted], data["policy"]["distill"]["label"][~acted])
    names = {"train/distillation_loss", "train/discriminator_loss", "train/style_reward", "train/surrogate_loss"}
    assert names <= set(records[-1].metrics)


def test_without_ppo_there_is_nobody_to_be_paid():
    with pytest.raises(ValueError, match="using_ppo=False reads no reward"):
        ATPPOConfig(tppo=TPPOConfig(using_ppo=False))


# -- going on ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["two frames", "three frames, memory"])
def test_eight_iterations_are_four_and_four(kind):
    def trainer(seed):
        env = Drift(3)
        stages = {"actor": (Remember(type="gru", hidden_size=4),)} if "memory" in kind else {}
        policy = make_policy(env, weights=seed, **stages)
        frames = 3 if "memory" in kind else 2
        ppo = make_appo(
            env,
            policy,
            strides(frames=frames),
            {"schedule": "adaptive"},
            frames=frames,
            replay_size=40,
            max_grad_norm=0.5,
        )
        with torch.no_grad():
            for parameter in prior_of(ppo).judge.network.parameters():
                parameter.add_(0.1 * seed)
        return make_trainer(ppo, env, iterations=8, num_steps=4, seed=seed)

    whole = trainer(0)
    for _ in range(4):
        next(whole)
    saved = whole.state_dict()
    list(whole)
    again = trainer(3)
    again.load_state_dict(saved)
    assert len(list(again)) == 4
    one, two = (each.state_dict() for each in (whole, again))
    for (path, mine), (_, theirs) in zip(tree.items(one["algorithm"]), tree.items(two["algorithm"])):
        assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs, path
    assert whole.record.metrics == again.record.metrics
    judge = prior_of(again.algorithm).judge
    assert int(judge.num_earlier) > 40 and int(judge.num_absorbed) == 8, "the ring has gone round"


@pytest.mark.parametrize("kind", [APPO, ATPPO, GAIL, TPPO, EstimatorPPO, EstimatorTPPO])
@pytest.mark.parametrize("name", ["compute_losses", "update", "__init__", "own"])
def test_a_method_of_a_class_that_never_has_an_object_is_refused(kind, name):
    with pytest.raises(TypeError, match=rf"Own\.{name} would have no effect: {kind.__name__}.*derive from PPO"):
        type("Own", (kind,), {name: lambda self: None})
