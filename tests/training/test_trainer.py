"""The trainer: one run however it is cut up, saved and loaded; mistakes are named before anything runs."""

from __future__ import annotations

import logging
from itertools import islice

import pytest
import torch
from training_cases import comparable, make_policy, make_trainer, run, same_state, weights_of, without_times

from striderl.algorithms.on_policy.ppo import PPO
from striderl.collect.actors.base import RandomActor
from striderl.collect.actors.policy_actor import GreedyActor, PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data import tree
from striderl.envs.classic_control import CartPole, Pendulum
from striderl.envs.toy import Counting, ProbeConfig, Script, Scripted, TimeLimit
from striderl.envs.vec_env import StateUnsupportedError
from striderl.loggers.logger import Logger
from striderl.policies.policy import Policy, PolicyConfig
from striderl.storage.rollout import RolloutStorage
from striderl.training.callbacks.evaluate import Evaluate
from striderl.training.callbacks.log import Log
from striderl.training.callbacks.save import Save
from striderl.training.experiment.runner_config import rsl_rl_ppo_config
from striderl.training.plans import OnPolicyPlan
from striderl.training.protocols import order_generator, rollout_storage
from striderl.training.record import Record
from striderl.training.trainer import Trainer

KINDS = ("plain", "gru")
FIVE = {"total_iterations": 5}


# -- one run, however it is cut ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_off_loop_goes_on_where_it_stopped(kind):
    whole, cut = make_trainer(kind, plan=FIVE), make_trainer(kind, plan=FIVE)
    expected = [comparable(record) for record in whole]
    assert len(expected) == 5
    found = []
    for record in cut:
        found.append(comparable(record))
        if record.iteration in (1, 2, 4):
            break
    for _ in range(3):
        for record in cut:
            found.append(comparable(record))
            if record.iteration in (2, 4):
                break
    assert found == expected
    assert same_state(whole, cut)
    assert next(cut, None) is None and iter(cut) is cut


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_and_reload_and_three_are_five(kind):
    whole, first = make_trainer(kind, plan=FIVE), make_trainer(kind, plan=FIVE)
    expected = [comparable(record) for record in whole]
    found = [comparable(record) for record in run(first, 2)]
    saved = first.state_dict()
    kept = tree.copy(saved)
    run(first, 1)  # the old object goes on; what was saved must not change with it
    assert tree.equal(saved, kept)
    second = make_trainer(kind, plan=FIVE, seed=5, weights=9)  # everything that matters comes from the saved state
    second.load_state_dict(saved)
    found += [comparable(record) for record in second]
    assert found == expected
    assert same_state(whole, second)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_may_be_taken_in_the_middle_of_an_iteration(kind):
    # Counting: many episodes, ended by the clock or by themselves, so that final observations have to be saved too
    whole, first = make_trainer(kind, env=Counting(4)), make_trainer(kind, env=Counting(4))
    run(whole, 4)
    run(first, 2)
    for phase in ("prepare", "update", "absorb", "consume"):
        while first.phase != phase:
            first.advance()
        second = make_trainer(kind, env=Counting(4), seed=5, weights=9)
        second.load_state_dict(first.state_dict())
        assert second.phase == phase
        run(second, 2)
        assert same_state(whole, second), phase


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "gru", "lstm"])
def test_every_iteration_starts_with_ratio_one(kind):
    # with memory, the update must begin where the rollout began: in the middle of episodes
    trainer = make_trainer(kind, env=Counting(4), ppo={"learning_rate": 1e-2, "schedule": "fixed"})
    assert all(record.metrics["train/first_ratio_error"] <= 2e-6 for record in run(trainer, 4))


def test_phases_come_in_order():
    trainer = make_trainer(plan={"warmup_steps": 3})
    assert [trainer.advance() for _ in range(7)] == [
        "warmup", "collect", "prepare", "update", "absorb", "consume", "collect",
    ]  # fmt: skip
    assert trainer.iteration == 1 and trainer.env_steps == 4 * (3 + 8 + 8)


@pytest.mark.slow
def test_two_trainers_in_one_loop_do_not_disturb_each_other():
    pairs = list(zip(make_trainer(seed=1, plan=FIVE), make_trainer("gru", seed=2, plan=FIVE)))
    alone = list(make_trainer(seed=1, plan=FIVE)), list(make_trainer("gru", seed=2, plan=FIVE))
    assert [comparable(one) for one, _ in pairs] == [comparable(record) for record in alone[0]]
    assert [comparable(two) for _, two in pairs] == [comparable(record) for record in alone[1]]


def test_different_seeds_differ():
    one, two = make_trainer(seed=1), make_trainer(seed=2)
    run(one, 2), run(two, 2)
    assert not tree.equal(weights_of(one), weights_of(two))


def test_the_minibatch_order_depends_on_seed_and_iteration_alone():
    def order(seed, iteration):
        return tuple(torch.randperm(50, generator=order_generator(seed, iteration)).tolist())

    assert order(0, 3) == order(0, 3)
    assert len({order(seed, iteration) for seed in (0, 1, -1, 2**40) for iteration in (0, 1, 2**33)}) == 12


def test_global_random_numbers_are_not_touched():
    trainer = make_trainer()
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    run(trainer, 2)
    assert torch.equal(torch.rand(3), expected)


def test_global_random_numbers_do_not_matter():
    one, two = make_trainer(), make_trainer()
    torch.manual_seed(1)
    run(one, 3)
    torch.manual_seed(2)
    run(two, 3)
    assert same_state(one, two)


# -- records and log_data ----------------------------------------------------------------------------------------------


EXPECTED = {"kl", "surrogate_loss", "value_loss", "entropy", "learning_rate", "clip_fraction", "explained_variance"}
EXPECTED |= {"grad_norm", "skipped_updates"}


def test_records_count_and_hold_plain_numbers():
    records = run(make_trainer(), 3)
    assert [record.iteration for record in records] == [1, 2, 3]
    assert [record.env_steps for record in records] == [32, 64, 96]
    assert [record.num_updates for record in records] == [4, 8, 12]
    for record in records:
        assert isinstance(record, Record) and record.num_steps == 32
        assert all(type(value) is float for value in record.metrics.values())
        assert {name.removeprefix("train/") for name in record.metrics} >= EXPECTED
        assert record.collection_seconds > 0 and record.learning_seconds > 0 and record.steps_per_second > 0
        assert record.metrics["train/first_ratio_error"] <= 2e-6
    with pytest.raises(AttributeError):
        records[0].iteration = 7


def test_episode_numbers_are_right():
    # TimeLimit: every episode has 5 steps and return 5; in 8 steps each of 4 envs finishes one, in 16 three
    trainer = make_trainer(env=TimeLimit(4, config=ProbeConfig(num_steps=5)))
    first, second = run(trainer, 2)
    assert first.metrics["collect/episodes"] == 4 and second.metrics["collect/episodes"] == 12
    assert second.metrics["collect/return_mean"] == second.metrics["collect/length_mean"] == 5.0
    assert second.metrics["collect/return_std"] == 0.0


def test_before_the_first_episode_there_are_no_episode_numbers():
    trainer = make_trainer(env=TimeLimit(4, config=ProbeConfig(num_steps=50)))
    record = next(trainer)
    assert not [name for name in record.metrics if name.startswith("collect/")]
    collect = next(iter(make_trainer(env=TimeLimit(4, config=ProbeConfig(num_steps=50)))()))
    assert collect == {"log_type": "collect", "sample_step": 32}


def test_log_data_is_the_same_run():
    records = list(make_trainer(plan={"total_iterations": 4}))
    log_data = list(make_trainer(plan={"total_iterations": 4})())
    assert [data["log_type"] for data in log_data] == ["collect", "train"] * 4
    assert [data["sample_step"] for data in log_data] == [32, 32, 64, 64, 96, 96, 128, 128]
    for record, data in zip(records, log_data[1::2]):
        assert data["logs"] == record.logs("train") and "kl" in data["logs"]
    for record, data in zip(records, log_data[0::2]):
        assert data.get("logs", {}) == record.logs("collect")
    assert "return_mean" in log_data[-2]["logs"]


def test_log_data_may_be_broken_off_and_mixed_with_records():
    expected = list(make_trainer(plan={"total_iterations": 4})())
    trainer = make_trainer(plan={"total_iterations": 4})
    found = list(islice(trainer(), 1))
    found += list(islice(trainer(), 2))  # the train record of the first iteration, the collect record of the second
    record = next(trainer)  # finishes the second iteration
    found.append({"log_type": "train", "sample_step": record.env_steps, "logs": record.logs("train")})
    found += list(trainer())
    assert found == expected


def test_evaluation_is_a_log_record():
    def callbacks(policy):
        return [Evaluate(CartPole(2), GreedyActor(policy), every=2, n_episode=2)]

    log_data = list(make_trainer(plan={"total_iterations": 4}, callbacks=callbacks)())
    kinds = [data["log_type"] for data in log_data]
    assert kinds == ["collect", "train", "collect", "train", "evaluate"] * 2
    assert log_data[4]["sample_step"] == 64 and log_data[4]["logs"]["episodes"] == 2.0


# -- plans -------------------------------------------------------------------------------------------------------------


def test_total_steps_end_the_run():
    records = list(make_trainer(plan={"total_iterations": 0, "total_steps": 100}))
    assert [record.env_steps for record in records] == [32, 64, 96, 128]


@pytest.mark.slow
def test_without_a_limit_the_user_owns_the_end():
    trainer = make_trainer(plan={"total_iterations": 0})
    assert trainer.remaining_iterations is None
    assert [record.iteration for record in islice(trainer, 5)][-1] == 5 and not trainer.finished


@pytest.mark.parametrize(
    ("plan", "iteration", "env_steps", "remaining"),
    [
        ({"total_iterations": 7}, 3, 0, 4),
        # 100 steps, 32 each: after 64 there are 36 left, which takes two more
        ({"total_steps": 100}, 2, 64, 2),
        ({"total_steps": 100}, 4, 128, 0),
        ({"total_iterations": 3, "total_steps": 100}, 2, 64, 1),
        ({}, 5, 5, None),
    ],
)
def test_what_remains(plan, iteration, env_steps, remaining):
    found = OnPolicyPlan(num_steps_per_env=8, **plan).remaining_iterations(iteration, env_steps, num_envs=4)
    assert found == remaining


def test_warm_up_fits_the_normalisers_before_the_first_rollout():
    trainer = make_trainer(plan={"warmup_steps": 20})
    before = weights_of(trainer)
    pieces = 0
    while trainer.phase == "warmup":
        trainer.advance()
        pieces += 1
    assert pieces == 3  # 8, 8 and 4 steps
    after = weights_of(trainer)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all("normalizers" in name for name in changed)
    counts = [float(value) for name, value in after.items() if name.endswith("count")]
    assert counts == [80.0] * len(counts) and trainer.env_steps == 80 and trainer.num_updates == 0
    record = next(trainer)
    assert record.metrics["train/first_ratio_error"] <= 2e-6


def test_normalisers_learn_from_every_rollout_once():
    trainer = make_trainer()
    run(trainer, 3)
    counts = [float(value) for name, value in weights_of(trainer).items() if name.endswith("count")]
    assert counts and set(counts) == {96.0}


# -- the end, and after ------------------------------------------------------------------------------------------------


def test_closing_closes_envs_and_callbacks():
    closed = []

    class Closing(CartPole):
        def close(self):
            closed.append("env")

    class Noting(Logger):
        def log(self, step, numbers):
            pass

        def close(self):
            closed.append("logger")

    with make_trainer(env=Closing(4), callbacks=[Log(Noting())]) as trainer:
        next(trainer)
        assert not closed
    assert closed == ["logger", "env"]


def test_an_env_without_state_resumes_with_new_episodes(caplog):
    class Forgetful(CartPole):
        def state_dict(self):
            raise StateUnsupportedError("Forgetful cannot save its state; a resumed run resets it instead")

    first = make_trainer(env=Forgetful(4))
    run(first, 3)
    with caplog.at_level(logging.WARNING):
        saved = first.state_dict()
    assert "Forgetful cannot save its state" in caplog.text
    second = make_trainer(env=Forgetful(4), weights=9)
    second.load_state_dict(saved)
    assert tree.equal(weights_of(first), weights_of(second))
    assert int(second.collector.env.episode_length_buf.sum()) == 0
    start = make_trainer(env=Forgetful(4))
    start.collector.reset()
    assert not torch.equal(second.collector.current_obs["obs"], start.collector.current_obs["obs"])
    assert [record.iteration for record in run(second, 2)] == [4, 5]


def test_a_bad_number_does_not_end_the_run(caplog):
    torch.manual_seed(0)
    obs = torch.randn(25, 2, 4)
    obs[5, 1, 2] = float("nan")
    script = Script(
        obs={"obs": obs},
        reward=torch.randn(24, 2),
        terminated=torch.zeros(24, 2).bool(),
        truncated=torch.zeros(24, 2).bool(),
    )
    with caplog.at_level(logging.WARNING):
        trainer = make_trainer(env=Scripted(script), plan={"total_iterations": 3})
        assert "gives no final observations" in caplog.text
        records = list(trainer)
    assert "obs of env 1 was nan at step 4" in caplog.text
    assert len(records) == 3 and all(value.isfinite().all() for value in weights_of(trainer).values())


def test_a_pool_that_is_too_small_is_said_once(caplog):
    env = TimeLimit(4, config=ProbeConfig(num_steps=2))
    policy = make_policy(env)
    collector = Collector(env, PolicyActor(policy))
    storage = RolloutStorage(collector.columns(), 8, 4, final_obs=env.obs_spec, pool_size=2)
    trainer = Trainer(PPO(policy), collector, OnPolicyPlan(num_steps_per_env=8), storage=storage)
    with caplog.at_level(logging.WARNING):
        records = run(trainer, 2)
    assert caplog.text.count("Give the storage a larger pool_size") == 1
    assert not [name for record in records for name in record.metrics if "dropped" in name]


def test_somebody_else_may_use_the_collector_between_iterations():
    # whole episodes leave the collector in the middle of one; the next rollout starts afresh, and memory with it
    trainer = make_trainer("gru")
    run(trainer, 2)
    trainer.collector.collect(n_episode=3)
    assert next(trainer).metrics["train/first_ratio_error"] <= 2e-6


# -- mistakes ----------------------------------------------------------------------------------------------------------


def parts(num_envs=4, **config):
    env = CartPole(num_envs)
    policy = make_policy(env)
    return env, policy, PPO(policy, rsl_rl_ppo_config(**config)), Collector(env, PolicyActor(policy))


def test_wrong_types_are_named():
    env, policy, ppo, collector = parts()
    plan = OnPolicyPlan()
    with pytest.raises(
        TypeError, match=r"wants a Collector, found CartPole; make one with Collector\(env, algorithm.actor"
    ):
        Trainer(ppo, env, plan)
    with pytest.raises(TypeError, match="on-policy algorithm such as PPO with an OnPolicyPlan, found Policy"):
        Trainer(policy, collector, plan)
    with pytest.raises(TypeError, match="wants a plan, such as OnPolicyPlan, found dict"):
        Trainer(ppo, collector, {"num_steps_per_env": 8})
    with pytest.raises(
        TypeError, match="a callback has on_iteration, state_dict, load_state_dict and close; str has not"
    ):
        Trainer(ppo, collector, plan, callbacks=["log"])


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"num_steps_per_env": 0}, ValueError, "num_steps_per_env is at least 1, found 0"),
        ({"num_steps_per_env": 24.0}, TypeError, "OnPolicyPlan.num_steps_per_env: wanted int, found float 24.0"),
        ({"total_steps": -1}, ValueError, "total_steps is not negative, found -1"),
        ({"total_iterations": "10"}, TypeError, "wanted int, found str '10'"),
    ],
)
def test_bad_plans_are_named(settings, error, message):
    with pytest.raises(error, match=message):
        OnPolicyPlan(**settings)


def test_impossible_minibatches_are_refused_at_construction():
    _, _, ppo, collector = parts(num_mini_batches=9)
    with pytest.raises(ValueError, match=r"num_mini_batches=9 cannot be made of 8 samples; set it to 8 or less"):
        Trainer(ppo, collector, OnPolicyPlan(num_steps_per_env=2))
    with pytest.raises(ValueError, match=r"num_mini_batches=5 cannot be made of 4 envs, which a policy with memory"):
        make_trainer("gru", ppo={"num_mini_batches": 5})


def test_a_storage_of_another_size_is_refused():
    env, policy, ppo, collector = parts()
    with pytest.raises(
        ValueError, match=r"the storage holds \[9, 4\] steps and envs.*CartPole make rollouts of \[8, 4\]"
    ):
        Trainer(ppo, collector, OnPolicyPlan(num_steps_per_env=8), storage=rollout_storage(collector, policy, 9))
    other = Collector(CartPole(3), PolicyActor(policy))
    with pytest.raises(ValueError, match=r"the storage holds \[8, 3\]"):
        Trainer(ppo, collector, OnPolicyPlan(num_steps_per_env=8), storage=rollout_storage(other, policy, 8))
    bare = Collector(env, RandomActor(env.action_spec))
    with pytest.raises(ValueError, match=r"other columns than the collector gives; \['policy'\] differ"):
        Trainer(ppo, collector, OnPolicyPlan(num_steps_per_env=8), storage=RolloutStorage(bare.columns(), 8, 4))


def test_parts_of_different_runs_are_refused():
    env, policy, ppo, _ = parts()
    plan = OnPolicyPlan()
    with pytest.raises(ValueError, match="acts with another policy than the algorithm learns"):
        Trainer(ppo, Collector(env, PolicyActor(make_policy(env))), plan)
    with pytest.raises(KeyError, match="what RandomActor stores with each step has no column 'log_prob'"):
        Trainer(ppo, Collector(env, RandomActor(env.action_spec)), plan)
    pendulum = Pendulum(4)
    with pytest.raises(ValueError, match=r"wants component 'obs' of shape \(4,\), Pendulum gives \(3,\)"):
        Trainer(ppo, Collector(pendulum, PolicyActor(policy)), plan)


def test_a_missing_observation_group_is_named():
    env = CartPole(2)
    with pytest.raises(KeyError, match=r"has no component or group 'height_scan'.*Available: 'obs', 'policy'"):
        Policy(env.obs_spec, env.action_spec, PolicyConfig(actor_obs=("policy", "height_scan")))
    wide = CartPole(2)
    config = CollectorConfig(previous_step=True)
    spec = Collector(wide, RandomActor(wide.action_spec), config).obs_spec
    policy = Policy(spec, wide.action_spec, PolicyConfig(actor_obs=("policy", "previous"), actor_hidden_dims=(4,)))
    with pytest.raises(
        KeyError, match="the policy reads what CartPole does not give: it has no component 'prev_action'"
    ):
        Trainer(PPO(policy), Collector(env, PolicyActor(policy)), OnPolicyPlan())
    trainer = Trainer(PPO(policy), Collector(env, PolicyActor(policy), config), OnPolicyPlan(num_steps_per_env=8))
    assert next(trainer).metrics["train/first_ratio_error"] <= 2e-6


def test_callbacks_in_the_wrong_place_are_refused():
    env, policy, ppo, collector = parts()
    with pytest.raises(ValueError, match=r"Save comes last.*move Log before it"):
        Trainer(ppo, collector, OnPolicyPlan(), callbacks=[Save(lambda state, name: None), Log()])
    with pytest.raises(ValueError, match="would reset the envs that train"):
        Trainer(ppo, collector, OnPolicyPlan(), callbacks=[Evaluate(env, GreedyActor(policy))])


def test_states_are_plain_data():
    trainer = make_trainer("gru")
    run(trainer, 1)
    allowed = (torch.Tensor, int, float, str, bool)
    assert all(isinstance(leaf, allowed) for leaf in tree.leaves(trainer.state_dict()))
    assert without_times({"a": {"b_seconds": 1, "c": 2}}) == {"a": {"c": 2}}
