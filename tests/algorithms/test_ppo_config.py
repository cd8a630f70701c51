"""Settings of PPO: the defaults people know, and what is done between updates: schedulers and the floor of the std."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from ppo_rollouts import build, endings, scripted
from term_rollouts import make_env, make_parts, make_policy, make_rnd, order

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.data import tree
from striderl.data.actions import BoxSpec, DictActionSpec, DiscreteSpec
from striderl.data.specs import ObsSpec
from striderl.envs.classic_control import CartPole, Pendulum
from striderl.policies.policy import Policy, PolicyConfig

KNOWN = {
    "num_learning_epochs": 10,
    "num_mini_batches": 4,
    "clip_param": 0.2,
    "gamma": 0.99,
    "lam": 0.95,
    "value_loss_coef": 0.5,
    "entropy_coef": 0.0,
    "learning_rate": 3e-4,
    "max_grad_norm": 0.5,
    "use_clipped_value_loss": False,
    "clip_min_std": 1e-15,
    "optimizer_class_name": "Adam",
    "schedule": "fixed",
    "desired_kl": 0.01,
}


def test_names_are_the_known_ones_and_defaults_those_of_stable_baselines():
    found = dataclasses.asdict(PPOConfig())
    assert {name: found[name] for name in KNOWN} == KNOWN
    # what is new does nothing unless it is asked for
    new = {name: value for name, value in found.items() if name not in KNOWN}
    assert not any(new.values()), new


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "RMSprop"])
def test_every_optimiser_learns(name):
    parts = build(Pendulum(2), 8, optimizer_class_name=name, num_mini_batches=1, num_learning_epochs=1)
    before = tree.copy(dict(parts.ppo.policy.state_dict()))
    parts.ppo.update(parts.collect(), order())
    assert not tree.equal(before, dict(parts.ppo.policy.state_dict()))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"optimizer_class_name": "Adan"}, ValueError, "Did you mean 'Adam'"),
        ({"clip_min_std": -0.1}, ValueError, "clip_min_std is finite and not negative"),
        ({"clip_min_std": [0.1, float("inf")]}, ValueError, "clip_min_std.1: wanted a finite number, found inf"),
        ({"clip_min_std": "small"}, TypeError, "clip_min_std"),
        ({"lr_scheduler": {"gamma": 0.9}}, ValueError, "has no effect without lr_scheduler_class_name"),
        ({"lr_scheduler_class_name": "StepLr"}, ValueError, "Did you mean 'StepLR'"),
        ({"lr_scheduler_class_name": "StepLR"}, ValueError, "wants .'step_size'. too"),
        (
            {"lr_scheduler_class_name": "ExponentialLR", "lr_scheduler": {"gamma": 0.9}, "schedule": "adaptive"},
            ValueError,
            "would both move the learning rate",
        ),
        ({"reward_groups": {"task": 3}}, TypeError, "wants a sequence of names"),
        ({"reward_group_weights": {"task": 1.0}}, ValueError, "no reward group 'task'"),
        ({"reward_groups": {"task": ["env"]}, "reward_group_weights": {"task": "1"}}, TypeError, "wanted float"),
    ],
)
def test_mistakes_are_named(settings, error, message):
    with pytest.raises(error, match=message):
        PPOConfig(**settings)


def test_lists_of_files_are_taken():
    config = PPOConfig(clip_min_std=[0.1, 0.2], reward_groups={"task": ["env"]})
    assert config.clip_min_std == (0.1, 0.2) and config.reward_groups == {"task": ("env",)}
    assert PPOConfig(reward_groups={"task": "env"}).reward_groups == {"task": ("env",)}


# -- schedulers --------------------------------------------------------------------------------------------------------

STEPS = {"lr_scheduler_class_name": "StepLR", "lr_scheduler": {"step_size": 2, "gamma": 0.5}, "schedule": "fixed"}


def test_a_scheduler_moves_once_per_update():
    parts = build(Pendulum(2), 8, learning_rate=0.4, **STEPS)
    rates = [float(parts.ppo.update(parts.collect(), order())["learning_rate"]) for _ in range(5)]
    # five epochs of four minibatches are one step of the scheduler; what is logged is what was used
    assert rates == pytest.approx([0.4, 0.4, 0.2, 0.2, 0.1])
    assert int(parts.ppo.iteration) == 5


def test_the_first_rate_is_the_schedulers():
    parts = build(Pendulum(2), 8, schedule="fixed", learning_rate=0.3, lr_scheduler_class_name="LinearLR")
    # torch's default begins with a third
    assert float(parts.ppo.update(parts.collect(), order())["learning_rate"]) == pytest.approx(0.1)


def test_a_scheduler_goes_on_after_loading():
    one, other = (build(Pendulum(2), 8, learning_rate=0.4, **STEPS) for _ in range(2))
    for _ in range(3):
        one.ppo.update(one.collect(), order())
    other.ppo.load_state_dict(one.ppo.state_dict())
    rates = [float(other.ppo.update(other.collect(), order())["learning_rate"]) for _ in range(2)]
    assert rates == pytest.approx([0.2, 0.1])


def test_a_scheduler_leaves_the_rates_of_terms_alone():
    env = make_env(16, 4)
    parts = make_parts(env, make_policy(env), lambda env: [make_rnd(env)], learning_rate=1e-3, **STEPS)
    for _ in range(2):
        parts.ppo.update(parts.collect(), order())
    rates = {name: float(group.learning_rate) for name, group in parts.ppo.updater.groups.items()}
    assert rates == pytest.approx({"policy": 5e-4, "rnd": 1e-3})


# -- the floor of the std ----------------------------------------------------------------------------------------------


def shrunk(**config) -> torch.Tensor:
    """The std of two actions after an update, when it was 0.01 and 0.5 before; the update hardly moves it."""
    parts = build(scripted(*endings(6, 3)), 6, learning_rate=1e-9, num_learning_epochs=1, **config)
    with torch.no_grad():
        parts.ppo.policy.head.std_param.copy_(torch.tensor([0.01, 0.5]))
    parts.ppo.update(parts.collect(), order())
    return parts.ppo.policy.head.std_param.detach()


def test_the_std_is_lifted_after_an_update():
    assert shrunk().tolist() == pytest.approx([0.01, 0.5], rel=1e-4)
    assert shrunk(clip_min_std=0.1).tolist() == pytest.approx([0.1, 0.5])
    assert shrunk(clip_min_std=(0.2, 0.7)).tolist() == pytest.approx([0.2, 0.7])


def test_a_floor_that_fits_no_head_is_refused():
    env = CartPole(2)
    policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(4,)))
    PPO(policy)
    with pytest.raises(ValueError, match=r"clip_min_std=0\.1 has no effect: CategoricalHead learns no standard"):
        PPO(policy, PPOConfig(clip_min_std=0.1))
    pendulum = Pendulum(2)
    policy = Policy(pendulum.obs_spec, pendulum.action_spec, PolicyConfig(actor_hidden_dims=(4,)))
    with pytest.raises(ValueError, match="clip_min_std has 3 numbers for an action of 1"):
        PPO(policy, PPOConfig(clip_min_std=[0.1, 0.1, 0.1]))


def test_the_gaussian_part_of_a_hybrid_is_lifted():
    action = DictActionSpec({"gear": DiscreteSpec(n=3), "steer": BoxSpec(shape=(2,), low=-1.0, high=1.0)})
    policy = Policy(ObsSpec.from_flat(3), action, PolicyConfig(actor_hidden_dims=(4,), critic_hidden_dims=(4,)))
    ppo = PPO(policy, PPOConfig(clip_min_std=2.0))
    (std,) = (value for name, value in policy.named_parameters() if name.endswith("std_param"))
    assert std.tolist() == [1.0, 1.0]
    ppo.std_floor.lift()
    assert std.tolist() == [2.0, 2.0]
