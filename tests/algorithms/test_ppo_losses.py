"""The losses of one minibatch by hand, every kind of action, and everything that is logged."""

from __future__ import annotations

import math

import pytest
import torch
from hand_worked import order
from ppo_rollouts import USUAL, build, endings, scripted, whole_minibatch

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data import tree
from striderl.data.actions import BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.toy import HybridActions, HybridActionsConfig, Script, Scripted
from striderl.policies.policy import Policy, PolicyConfig
from striderl.storage.rollout import RolloutStorage

LOGGED = {
    "surrogate_loss",
    "value_loss",
    "entropy",
    "kl",
    "clip_fraction",
    "explained_variance",
    "grad_norm",
    "learning_rate",
    "skipped_updates",
    "first_ratio_error",
    "ratio_error",
}


def even(num_actions: int = 2) -> Policy:
    """Chooses evenly and says 0, whatever it sees."""
    policy = Policy(
        ObsSpec.from_flat(1), DiscreteSpec(n=num_actions), PolicyConfig(actor_hidden_dims=(), critic_hidden_dims=())
    )
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    return policy


def minibatch_of(**columns: list[float]) -> dict[str, object]:
    count = len(columns["advantage"])
    table = {name: torch.tensor(column) for name, column in columns.items()}
    everywhere = torch.ones(count, dtype=torch.bool)
    return {
        "obs": {"obs": torch.zeros(count, 1)},
        "state": {},
        "memo": {},
        "info": {},
        "dist": {"log_probs": torch.full((count, 2), math.log(0.5))},
        "value": torch.zeros(count),
        "valid": everywhere,
        "resets": ~everywhere,
        "readable": everywhere,
        **table,
    }


def test_losses_by_hand():
    # the policy gives each action 1/2; when they were chosen it gave 1/2, 2/5 and 1/4: ratios 1, 1.25 and 2
    minibatch = minibatch_of(
        act=[0, 1, 1],
        log_prob=[math.log(0.5), math.log(0.4), math.log(0.25)],
        advantage=[1.0, 2.0, -1.0],
        returns=[1.0, -2.0, 0.1],
    )
    ppo = PPO(even(), PPOConfig(value_loss_coef=0.5, entropy_coef=0.01))
    losses, inter_vars, stats = ppo.compute_losses(minibatch)
    # min(1, 1), min(2.5, 2.4), min(-2, -1.2): the mean of 1, 2.4 and -2 is 1.4 / 3
    assert losses["surrogate_loss"][1].item() == pytest.approx(-1.4 / 3.0)
    assert losses["value_loss"][1].item() == pytest.approx((1.0 + 4.0 + 0.01) / 3.0)
    assert losses["entropy"][1].item() == pytest.approx(-math.log(2.0))
    assert {name: weight for name, (weight, _) in losses.items()} == {
        "surrogate_loss": 1.0,
        "value_loss": 0.5,
        "entropy": 0.01,
    }
    assert inter_vars["ratio"].tolist() == pytest.approx([1.0, 1.25, 2.0])
    assert set(inter_vars) == {"minibatch", "output", "log_prob", "ratio", "advantage"}
    assert stats["clip_fraction"].item() == pytest.approx(2.0 / 3.0)
    assert stats["ratio_error"].item() == pytest.approx(1.0)
    # the stored distribution was even too
    assert stats["kl"].item() == pytest.approx(0.0, abs=1e-7)
    assert stats["explained_variance"].item() == pytest.approx(0.0, abs=1e-6)


def test_the_kl_is_that_of_the_stored_distribution():
    minibatch = minibatch_of(act=[0], log_prob=[math.log(0.8)], advantage=[1.0], returns=[0.0])
    minibatch["dist"] = {"log_probs": torch.tensor([[0.8, 0.2]]).log()}
    _, _, stats = PPO(even()).compute_losses(minibatch)
    # KL(old || new) = 0.8 ln(0.8 / 0.5) + 0.2 ln(0.2 / 0.5)
    assert stats["kl"].item() == pytest.approx(0.8 * math.log(1.6) + 0.2 * math.log(0.4))


def test_samples_that_do_not_count_are_in_no_number():
    table = {
        "act": [0, 1, 1],
        "log_prob": [math.log(0.5), math.log(0.4), math.log(0.01)],
        "advantage": [1.0, 2.0, -50.0],
        "returns": [1.0, -2.0, 70.0],
    }
    three = {**minibatch_of(**table), "valid": torch.tensor([True, True, False])}
    two = minibatch_of(**{name: column[:2] for name, column in table.items()})
    for ours, theirs in zip(PPO(even()).compute_losses(three), PPO(even()).compute_losses(two)):
        for name, found in ours.items():
            if name in ("minibatch", "output", "log_prob", "ratio", "advantage"):
                continue
            wanted = theirs[name]
            found, wanted = (found[1], wanted[1]) if isinstance(found, tuple) else (found, wanted)
            assert found.item() == pytest.approx(wanted.item(), abs=1e-6), name


def test_the_std_is_that_of_samples_that_count():
    # a std that depends on what is seen: the sample that does not count must not be in the mean
    env = scripted(*endings(4, 2))
    settings = PolicyConfig(
        actor_hidden_dims=(4,), critic_hidden_dims=(4,), head_settings={"state_dependent_std": True, "std_type": "log"}
    )
    torch.manual_seed(0)
    policy = Policy(env.obs_spec, env.action_spec, settings)
    with torch.no_grad():
        policy.head.std_layer.weight.normal_()
    collector = Collector(env, PolicyActor(policy))
    storage = RolloutStorage(collector.columns(), 4, 2, final_obs=env.obs_spec)
    collector.collect(n_step=8, storage=storage)
    ppo = PPO(policy)
    prepared = ppo.prepare(storage, initial_state={}, last_obs=collector.current_obs, last_state={})
    minibatch = whole_minibatch(ppo, prepared)
    minibatch["valid"][3:] = False
    _, inter_vars, stats = ppo.compute_losses(minibatch)
    std = inter_vars["output"].distribution.params()["std"]
    assert stats["std"].item() == pytest.approx(std[:3].mean().item())
    assert stats["std"].item() != pytest.approx(std.mean().item(), rel=1e-3)


# -- kinds of actions --------------------------------------------------------------------------------------------------

MASKED = {"look": ComponentSpec(shape=(3,)), "allowed": ComponentSpec(shape=(5,), dtype="bool", group="action_mask")}


def masked_env(action: DiscreteSpec | MultiDiscreteSpec, steps: int = 12, envs: int = 6) -> Scripted:
    """Random observations; about a half of the choices is allowed, always the first of each kind."""
    draws = torch.Generator().manual_seed(0)
    allowed = torch.rand(steps + 1, envs, 5, generator=draws) < 0.5
    allowed[..., 0] = allowed[..., 2] = True
    terminated, truncated = endings(steps, envs)
    script = Script(
        obs={"look": torch.randn(steps + 1, envs, 3, generator=draws), "allowed": allowed},
        reward=torch.randn(steps, envs, generator=draws),
        terminated=terminated,
        truncated=truncated,
    )
    env = Scripted(script, action_spec=action)
    env.obs_spec = ObsSpec(MASKED)
    return env


def allowed_only(act: torch.Tensor, mask: torch.Tensor, starts: list[int]) -> bool:
    """Whether every choice, the i-th counted from starts[i], is allowed."""
    choices = act.reshape(*mask.shape[:-1], -1) + torch.tensor(starts)
    return bool(mask.gather(-1, choices).all())


@pytest.mark.parametrize(
    ("action", "starts"),
    [(DiscreteSpec(n=5, mask="allowed"), [0]), (MultiDiscreteSpec(nvec=(2, 3), mask="allowed"), [0, 2])],
    ids=["one choice", "several choices"],
)
def test_masked_choices_are_learned(action, starts):
    env = masked_env(action)
    torch.manual_seed(0)
    policy = Policy(env.obs_spec, action, PolicyConfig(actor_hidden_dims=(8,), critic_hidden_dims=(8,)))
    collector = Collector(env, PolicyActor(policy))
    storage = RolloutStorage(collector.columns(), 12, 6)
    collector.collect(n_step=72, storage=storage)
    assert allowed_only(storage.data["act"], storage.data["obs"]["allowed"], starts)
    ppo = PPO(policy, PPOConfig(**USUAL))
    prepared = ppo.prepare(storage, initial_state={}, last_obs=collector.current_obs, last_state={})
    numbers = ppo.update(prepared, order())
    assert numbers.keys() >= LOGGED and all(bool(value.isfinite()) for value in numbers.values())
    assert float(numbers["first_ratio_error"]) < 1e-5 < float(numbers["ratio_error"])
    assert float(numbers["kl"]) > 0.0 and int(numbers["skipped_updates"]) == 0
    assert all(bool(parameter.isfinite().all()) for parameter in policy.parameters())


@pytest.mark.slow
def test_hybrid_actions_are_learned():
    # 1 per step for the right choice, less the squared distance of the amounts: guessing earns far less than 0
    env = HybridActions(16, config=HybridActionsConfig(masked=True))
    assert isinstance(env.action_spec, DictActionSpec)
    torch.manual_seed(0)
    policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(32,), critic_hidden_dims=(32,)))
    collector = Collector(env, PolicyActor(policy), CollectorConfig(seed=1))
    storage = RolloutStorage(collector.columns(), 16, 16, final_obs=env.obs_spec)
    ppo = PPO(policy, PPOConfig(**{**USUAL, "gamma": 0.5, "entropy_coef": 0.0}))
    earned = []
    for iteration in range(30):
        storage.clear()
        collector.collect(n_step=256, storage=storage)
        prepared = ppo.prepare(storage, initial_state={}, last_obs=collector.current_obs, last_state={})
        numbers = ppo.update(prepared, order(iteration))
        assert float(numbers["first_ratio_error"]) < 1e-4
        earned.append(float(storage.data["rew"].mean()))
    assert numbers.keys() >= LOGGED | {"std"}
    assert allowed_only(storage.data["act"]["choice"], storage.data["obs"]["choice_mask"], [0])
    assert earned[0] < -1.0 and earned[-1] > 0.0, earned


@pytest.mark.parametrize("head", ["gaussian", "squashed_gaussian", "beta"])
def test_every_head_for_numbers_logs_everything(head):
    env = scripted(*endings(8, 4))
    torch.manual_seed(0)
    settings = PolicyConfig(head=head, actor_hidden_dims=(8,), critic_hidden_dims=(8,))
    policy = Policy(env.obs_spec, BoxSpec(shape=(2,), low=-1.0, high=1.0), settings)
    collector = Collector(env, PolicyActor(policy))
    storage = RolloutStorage(collector.columns(), 8, 4, final_obs=env.obs_spec)
    collector.collect(n_step=32, storage=storage)
    ppo = PPO(policy, PPOConfig(**USUAL))
    numbers = ppo.update(ppo.prepare(storage, initial_state={}, last_obs=collector.current_obs, last_state={}), order())
    assert numbers.keys() >= LOGGED and ("std" in numbers) == (head != "beta")
    assert float(numbers["first_ratio_error"]) < 1e-5 and float(numbers["grad_norm"]) > 0.0


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits():
    def run(seed: int) -> dict[str, object]:
        parts = build(scripted(*endings(24, 4)), 8, "lstm", normalise=True, normalize_values=True)
        for _ in range(2):
            prepared = parts.collect()
            parts.ppo.update(prepared, order(seed))
            parts.ppo.update_normalization(prepared.columns)
        return parts.ppo.state_dict()

    first = run(0)
    assert tree.equal(first, run(0))
    assert not tree.equal(first, run(1))
