"""One bad number never reaches the weights (promise 11); `tools/run_faults.py` injects more of them."""

from __future__ import annotations

import itertools
import json
import logging
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from poison import (
    DENORMAL,
    ITERATIONS,
    VALUES,
    break_parameters,
    config_of,
    denormal,
    poison_envs,
    poison_gradients,
)
from poisoned_envs import Injection, Poisoned
from run_cases import folder_at, tiny

from striderl.algorithms import PPO, PPOConfig
from striderl.cli.seeing.report import page_of
from striderl.collect.collector import Collector
from striderl.collect.quarantine import Fault, Healthy, Outcome, Quarantine
from striderl.collect.trace import SUFFIX, EnvTrace, read_trace
from striderl.envs import tasks
from striderl.execution import parameter_groups
from striderl.policies.policy import Policy, PolicyConfig
from striderl.training import OnPolicyRunner
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_folder import RunFolder
from striderl.training.experiment.runner_config import RunnerConfig
from striderl.training.guard import MAX_TRACES, DivergedError, FaultReport, Guard, read_faults
from striderl.training.plans import OnPolicyPlan
from striderl.training.trainer import Trainer

SMALL = PolicyConfig(actor_hidden_dims=(8,), critic_hidden_dims=(8,))


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# -- injections --------------------------------------------------------------------------------------------------------

# each value somewhere, each place with each kind of learner: about forty injections
SPREAD = [
    (kind, place, VALUES[number % 5], VALUES[(number + 2) % 5])
    for number, (kind, place) in enumerate(
        itertools.product(("cartpole", "dqn", "sac"), ("obs", "final_obs", "reward"))
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "place", "one", "other"), SPREAD)
def test_a_bad_number_of_an_env_changes_nothing(kind, place, one, other):
    wrong = list(poison_envs(kind, place, env=1, step=10, values=(one, other)))
    assert wrong == ["", ""]


@pytest.mark.slow
def test_a_bad_first_observation_with_memory():
    assert list(poison_envs("pendulum_lstm", "start", env=2, step=0, values=(math.nan, 1e30))) == ["", ""]
    assert list(poison_envs("pendulum_lstm", "obs", env=0, step=9, values=(-math.inf,))) == [""]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cartpole", "sac"])
def test_a_bad_gradient_is_one_step_less(kind):
    assert list(poison_gradients(kind, 5)) == [""] * 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cartpole", "dqn"])
def test_an_update_that_breaks_parameters_or_moments_is_taken_back(kind):
    assert list(break_parameters(kind, 6)) == [""] * 4


def test_a_tiny_number_is_not_bad():
    assert denormal("cartpole", "obs", 1, 5) == "" and denormal("sac", "reward", 2, 9) == ""


def test_the_harness_notices_a_collector_without_quarantine(monkeypatch):
    monkeypatch.setattr(Quarantine, "check", lambda self, previous, outcome, step: _as_it_is(outcome))
    monkeypatch.setattr(Quarantine, "all_fine", lambda self, reward, obs: False)
    assert all(poison_envs("cartpole", "reward", env=1, step=10, values=(math.nan, 1e30)))


@pytest.mark.slow
def test_the_harness_notices_an_optimiser_that_steps_anyway(monkeypatch):
    monkeypatch.setattr(parameter_groups, "is_broken", lambda length: False)
    assert all(poison_gradients("cartpole", 5, values=(math.nan, math.inf)))


def _as_it_is(outcome):
    return Healthy(outcome.reward, outcome.valid, outcome.truncated, outcome.obs, outcome.final_obs)


# -- quarantine --------------------------------------------------------------------------------------------------------


def test_two_bad_numbers_do_not_cancel_out():
    # the sum of these is 2, and so it was taken for fine
    quarantine = Quarantine(3, torch.device("cpu"))
    reward = torch.tensor([1e30, -1e30, 2.0])
    assert not quarantine.all_fine(reward, {"obs": torch.zeros(3, 1)})
    assert not quarantine.all_fine(torch.zeros(3), {"obs": reward.view(3, 1)})
    still = torch.zeros(3, dtype=torch.bool)
    obs = {"obs": torch.zeros(3, 1)}
    found = quarantine.check(obs, Outcome(reward, still, still, ~still, obs, None), 4)
    assert found.valid.tolist() == [False, False, True] and found.reward.tolist() == [0.0, 0.0, 2.0]
    assert quarantine.faults() == [Fault("reward", env, 4, pytest.approx(1e30), 1) for env in (0, 1)]


def test_an_env_that_is_sick_when_a_run_is_saved_is_sick_when_it_goes_on():
    # the observation of the reset is bad as well: zeros are shown, which do not tell that the env is sick
    def collector():
        env = Poisoned(tasks.make("cartpole", num_envs=4), Injection("start", 1, 0))
        made = Collector(env, config_actor(env))
        made.reset()
        return made

    one, two = collector(), collector()
    assert one.groups[0].quarantine.sick.tolist() == [False, True, False, False]
    two.env.done = True  # another process does not see the bad number again
    two.load_state_dict(one.state_dict())
    assert two.groups[0].quarantine.sick.tolist() == [False, True, False, False]


def config_actor(env):
    from striderl.collect.actors.base import RandomActor

    return RandomActor(env.action_spec)


# -- the report --------------------------------------------------------------------------------------------------------


def poisoned_run(path, monkeypatch, injection=None, iterations=ITERATIONS, **changes):
    """A run whose training env gives one bad number; evaluations have other envs."""

    def build(num_envs, device, settings, first_env_index):
        env = tasks.make("cartpole", num_envs=num_envs, settings=settings)
        return Poisoned(env, injection) if injection is not None and num_envs == 4 else env

    monkeypatch.setitem(tasks.TASKS, "poisoned", build)
    config = config_of("cartpole")
    plan = replace(config.plan, total_iterations=iterations)
    config = replace(config, env=replace(config.env, task="poisoned"), plan=plan, **changes)
    return Run(config, folder_at(path, config))


def test_a_run_reports_component_env_step_and_value(tmp_path, monkeypatch, caplog):
    with caplog.at_level(logging.WARNING):
        poisoned_run(tmp_path / "run", monkeypatch, Injection("obs", 2, 13, math.inf)).drive()
    assert read_faults(tmp_path / "run" / "faults.jsonl") == [
        {"env_steps": 64, "num_updates": 4, "component": "obs", "env": 2, "step": 13, "value": "inf", "count": 1}
    ]
    assert caplog.text.count("bad number, left out: obs of env 2 was inf at step 13") == 1
    rows = [json.loads(line) for line in RunFolder(tmp_path / "run").json_lines.read_text().splitlines()]
    assert [row["faults/bad_samples"] for row in rows] == [0.0, 1.0, 1.0, 1.0]
    assert [row["faults/rollbacks"] for row in rows] == [0.0] * 4


@pytest.mark.parametrize(("place", "value"), [("obs", math.inf), ("reward", math.nan)])
def test_the_last_second_before_a_fault_is_kept(tmp_path, monkeypatch, place, value):
    run = poisoned_run(tmp_path / "run", monkeypatch, Injection(place, 2, 13, value))
    run.drive()
    (path,) = (tmp_path / "run" / "faults").iterdir()
    assert path.name == f"{place}_env2_step13{SUFFIX}"
    trace = read_trace(path)
    # the bad number came in the 14th step of the env; what followed it is not in the trace
    assert trace.obs["obs"].shape == (14, 4) and trace.actions["action"].shape == (14,)
    last = trace.obs["obs"][-1, 0] if place == "obs" else trace.reward[-1]
    assert str(last) == str(value)
    assert np.isfinite(trace.obs["obs"][:-1]).all() and np.isfinite(trace.reward[:-1]).all()
    assert {name: trace.facts[name] for name in ("component", "env", "step", "value")} == {
        "component": place,
        "env": 2,
        "step": 13,
        "value": str(value),
    }
    page = page_of([tmp_path / "run"])
    assert f"before the fault: component {place}, env 2, step 13" in page


def test_traces_are_few_and_the_oldest_make_place(tmp_path):
    report = FaultReport()
    report.write_to(tmp_path / "faults.jsonl")
    trace = EnvTrace(obs={}, actions={}, reward=np.zeros(3), done=np.zeros(3, bool))
    for step in range(MAX_TRACES + 5):
        report.add([Fault("../obs", 0, step, math.nan, 1, trace)], env_steps=step, num_updates=0)
    names = {path.name for path in (tmp_path / "faults").iterdir()}
    assert len(names) == MAX_TRACES and f".._obs_env0_step{MAX_TRACES + 4}{SUFFIX}" in names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["faults", "faults.jsonl"]


def test_an_env_that_is_always_bad_costs_few_traces():
    env = tasks.make("cartpole", num_envs=8)

    class AlwaysBad(Poisoned):
        def after(self, step):
            step.reward[:] = math.nan

    bad = AlwaysBad(env, Injection("start", 0, 0, 0.0))
    collected = Collector(bad, config_actor(env)).collect(n_step=400)
    assert len(collected.faults) == 8 and sum(fault.trace is not None for fault in collected.faults) == 4


def test_a_run_without_faults_has_no_report(tmp_path, monkeypatch):
    poisoned_run(tmp_path / "run", monkeypatch, Injection("obs", 2, 13, DENORMAL)).drive()
    assert not (tmp_path / "run" / "faults.jsonl").exists() and read_faults(tmp_path / "run" / "faults.jsonl") == []


def test_a_resumed_run_reports_nothing_twice(tmp_path, monkeypatch):
    injection = Injection("reward", 1, 20, math.nan)
    poisoned_run(tmp_path / "run", monkeypatch, injection, iterations=2).drive()
    assert read_faults(tmp_path / "run" / "faults.jsonl") == []
    with (tmp_path / "run" / "faults.jsonl").open("w") as file:  # what a killed process had found after its last save
        file.write('{"env_steps": 96, "num_updates": 8, "component": "reward", "env": 1, "step": 20, "value": "nan"}\n')
    again = poisoned_run(tmp_path / "run", monkeypatch, injection)
    assert again.restore()
    again.drive()
    lines = read_faults(tmp_path / "run" / "faults.jsonl")
    assert [(line["component"], line["env"], line["step"], line["count"]) for line in lines] == [("reward", 1, 20, 1)]


def test_a_report_that_cannot_be_written_is_said_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    report = FaultReport()
    report.write_to(tmp_path / "file" / "faults.jsonl")
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            report.add([Fault("obs", 0, step, math.nan, 2)], env_steps=step, num_updates=0)
    assert report.num_bad_samples == 6
    assert caplog.text.count("cannot be written") == 1 and caplog.text.count("bad number") == 1


# -- the guard ---------------------------------------------------------------------------------------------------------


class Breaking:
    """An algorithm with two numbers and an optimiser's counts."""

    def __init__(self):
        self.state = {"weight": torch.zeros(2), "always": torch.tensor(math.inf), "names": "x"}
        self.group = {"num_skipped": torch.tensor(0), "count": torch.tensor(0.0)}

    def state_dict(self):
        group = {name: value.clone() for name, value in self.group.items()}
        return {**self.state, "weight": self.state["weight"].clone(), "updater": {"policy": group}}

    def load_state_dict(self, state):
        self.state["weight"], self.group = state["weight"].clone(), dict(state["updater"]["policy"])


def iterate(guard, algorithm, *, weight=1.0, taken=1, skipped=0, number=1):
    guard.before()
    algorithm.state["weight"] = torch.tensor([0.5, weight])
    algorithm.group = {
        "num_skipped": algorithm.group["num_skipped"] + skipped,
        "count": algorithm.group["count"] + taken,
    }
    return guard.after(FaultReport(), env_steps=number, num_updates=number)


def test_the_guard_takes_back_what_is_not_finite():
    algorithm = Breaking()
    guard = Guard(algorithm)
    assert not iterate(guard, algorithm, weight=2.0)  # 'always' was not finite before: not of this update
    assert iterate(guard, algorithm, weight=math.nan)
    assert algorithm.state["weight"].tolist() == [0.5, 2.0] and guard.num_rollbacks == 1
    assert not iterate(guard, algorithm, weight=3.0) and guard.num_fruitless == 0
    assert iterate(guard, algorithm, weight=-math.inf)
    other = Guard(algorithm)
    other.load_state_dict(guard.state_dict())
    assert other.counts() == {"skipped_updates": 0, "rollbacks": 2} and other.num_fruitless == 1


def test_patience_counts_iterations_in_a_row_without_any_step():
    algorithm = Breaking()
    guard = Guard(algorithm, patience=3)
    for taken in (0, 0, 1, 0, 0, 0):  # the third takes a step: counting begins anew
        iterate(guard, algorithm, taken=taken, skipped=2)
    assert guard.num_skipped == 12
    with pytest.raises(DivergedError, match="nothing was learned in 3 iterations in a row"):
        guard.before()
    guard.before()  # who goes on all the same may


def test_a_learning_rate_that_overflows_ends_the_run_with_a_reason(tmp_path, caplog):
    config = tiny(iterations=40)
    algorithm = replace(
        config.algorithm, optimizer_class_name="SGD", learning_rate=1e39, schedule="fixed", max_grad_norm=0.0
    )
    config = replace(config, algorithm=algorithm, stop=replace(config.stop, bad_iterations=5))
    run = Run(config, folder_at(tmp_path / "run", config))
    weights = {name: value.clone() for name, value in run.learner.policy.named_parameters()}
    outcome = run.drive()
    assert outcome.exit_code == 1 and "nothing was learned in 5 iterations in a row" in outcome.reason and outcome.saved
    # the weights are those of the beginning, and saved
    for name, value in run.learner.policy.named_parameters():
        assert torch.equal(value, weights[name]), name
    lines = read_faults(tmp_path / "run" / "faults.jsonl")
    assert [line["component"] for line in lines if line["component"] == "parameters"] == ["parameters"] * 5
    assert caplog.text.count("are taken back") == 1


# -- nothing to learn from ---------------------------------------------------------------------------------------------


class Sick(Poisoned):
    """Gives a bad reward in every step of some envs, and in the others never."""

    def __init__(self, inner, envs):
        super().__init__(inner, Injection("reward", 0, -1))
        self.envs = list(envs)

    def after(self, step):
        step.reward[self.envs] = math.nan


def sick_run(path, monkeypatch, kind="cartpole", envs=range(4), iterations=6, **stop):
    config = config_of(kind)
    task = config.env.task

    def build(num_envs, device, settings, first_env_index):
        env = tasks.make(task, num_envs=num_envs, settings=settings)
        return Sick(env, envs) if num_envs == 4 else env

    monkeypatch.setitem(tasks.TASKS, "sick", build)
    plan = replace(config.plan, total_iterations=iterations)
    stop = replace(config.stop, **{"bad_iterations": 3, **stop})
    config = replace(config, env=replace(config.env, task="sick"), plan=plan, stop=stop)
    return Run(config, folder_at(path, config))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cartpole", "pendulum_lstm", "dqn", "sac"])
@pytest.mark.parametrize("iterations", [2, 6])
def test_a_run_without_valid_samples_is_no_success(tmp_path, monkeypatch, kind, iterations):
    # with a patience of 3 the longer one is ended, and of the shorter one all iterations were fruitless
    run = sick_run(tmp_path / "run", monkeypatch, kind, iterations=iterations)
    outcome, count = run.drive(), min(3, iterations)
    assert outcome.exit_code == 1 and outcome.saved
    # four envs, eight steps an iteration
    assert f"nothing was learned in {count} iterations in a row: 0 of {32 * count} samples were valid" in outcome.reason
    assert "most often bad: reward of env 0 (" in outcome.reason and "3 more envs were bad too" in outcome.reason
    assert str(tmp_path / "run" / "faults.jsonl") in outcome.reason
    assert run.trainer.iteration == count and run.store.load("last").state["iteration"] == count


@pytest.mark.slow
def test_what_is_left_of_a_run_without_valid_samples_is_no_success_either(tmp_path, monkeypatch):
    # ended after 3 of 5 iterations; each resume has its whole patience, but the 2 that are left do not use it up
    run = sick_run(tmp_path / "run", monkeypatch, iterations=5)
    for count in (3, 5, 5):
        outcome = run.drive()
        assert outcome.exit_code == 1 and run.trainer.iteration == count
        assert f"nothing was learned in {count} iterations in a row: 0 of {32 * count} samples" in outcome.reason
        run = Run(run.config, run.folder)
        assert run.restore()
    run.close()


def sick_trainer(envs, iterations=5):
    env = Sick(tasks.make("cartpole", num_envs=4), envs)
    algorithm = PPO(Policy(env.obs_spec, env.action_spec, SMALL), PPOConfig(num_mini_batches=1))
    plan = OnPolicyPlan(num_steps_per_env=4, total_iterations=iterations)
    return Trainer(algorithm, Collector(env, algorithm.actor()), plan), env


@pytest.mark.parametrize("way", ["records", "log_data"])
def test_the_end_of_a_trainer_without_valid_samples_is_an_error(way):
    trainer, env = sick_trainer(range(4))
    seen = []
    with pytest.raises(DivergedError, match="nothing was learned in 5 iterations in a row: 0 of 80 samples were valid"):
        seen.extend(trainer if way == "records" else trainer())
    assert trainer.iteration == 5 and len(seen) >= 5, "every record comes first"
    assert list(trainer) == [], "the error is raised once"
    for envs in (range(3), ()):  # an env with valid samples is enough
        trainer, _ = sick_trainer(envs)
        assert len(list(trainer)) == 5
    trainer, env = sick_trainer(range(4))
    next(trainer)
    env.envs = []  # the env recovers
    assert len(list(trainer)) == 4


def test_a_piece_of_learn_without_valid_samples_is_an_error(tmp_path):
    env = Sick(tasks.make("cartpole", num_envs=4), range(4))
    runner = OnPolicyRunner(env, RunnerConfig(policy=SMALL, num_steps_per_env=4, seed=1), tmp_path)
    for done in (3, 4):
        with pytest.raises(DivergedError, match=r"in \d iterations in a row: 0 of \d+ samples were valid"):
            runner.learn(done - runner.current_learning_iteration)
        assert runner.current_learning_iteration == done and (tmp_path / f"model_{done - 1}.pt").exists()
    env.envs = [0, 1, 2]
    runner.learn(2)
    env.envs = [0, 1, 2, 3]
    with pytest.raises(DivergedError, match="in 2 iterations in a row: 0 of 32 samples"):
        runner.learn(2)
    runner.learn(0)
    env.envs = []
    runner.learn(1)
    runner.close()


def test_a_piece_of_learn_whose_gradients_were_not_finite_is_no_error():
    # a piece of one iteration may be followed by others, which learn; its samples were valid
    guard = Guard(Breaking())
    guard.before()
    guard.algorithm.group["num_skipped"] = torch.tensor(2)
    guard.after(FaultReport(), env_steps=4, num_updates=2, valid=torch.tensor(4), num_samples=4)
    guard.check_piece(1)
    barren = Guard(Breaking())
    barren.before()
    barren.after(FaultReport(), env_steps=4, num_updates=2, valid=torch.tensor(0), num_samples=4)
    barren.check_piece(0)  # of a learn(0)
    with pytest.raises(DivergedError, match="gradients were not finite"):
        guard.check_end(1)


@pytest.mark.parametrize(("envs", "min_valid", "code"), [(range(3), 0.01, 0), (range(3), 0.3, 1), ((), 0.3, 0)])
def test_how_few_valid_samples_are_too_few_is_a_setting(tmp_path, monkeypatch, envs, min_valid, code):
    # three of four envs are bad, so a quarter of the samples is valid
    outcome = sick_run(tmp_path / "run", monkeypatch, envs=envs, min_valid=min_valid).drive()
    assert outcome.exit_code == code
    assert ("24 of 96 samples were valid" in outcome.reason) == bool(code)


def test_few_valid_samples_without_bad_numbers_are_how_the_env_is():
    algorithm, report = Breaking(), FaultReport()
    guard = Guard(algorithm, patience=1)
    for valid, fruitless in ((1, 0), (0, 1)):  # of a thousand; such as with `wait_reset`
        guard.before()
        guard.after(report, env_steps=0, num_updates=0, valid=torch.tensor(valid), num_samples=1000)
        assert guard.num_fruitless == fruitless
    with pytest.raises(DivergedError, match=r"0 of 1000 samples were valid; the envs, or the dataset, mark"):
        guard.before()


def test_every_env_that_was_bad_is_named(tmp_path, monkeypatch):
    sick_run(tmp_path / "run", monkeypatch, envs=(1, 2, 3), min_valid=0.0).drive()
    lines = read_faults(tmp_path / "run" / "faults.jsonl")
    # the first iteration names each of them, later ones pool those that have a line
    assert [(line["env"], line["step"], line["count"]) for line in lines[:3]] == [(1, 0, 8), (2, 0, 8), (3, 0, 8)]
    assert [(line["env"], line["count"]) for line in lines[3:]] == [(1, 24)] * 5


def test_a_resumed_run_names_envs_that_had_no_line_yet_and_no_other(tmp_path, monkeypatch):
    sick_run(tmp_path / "run", monkeypatch, envs=(1, 2), iterations=2, min_valid=0.0).drive()
    again = sick_run(tmp_path / "run", monkeypatch, envs=(1, 2, 3), iterations=4, min_valid=0.0)
    assert again.restore()
    again.drive()
    named = [line["env"] for line in read_faults(tmp_path / "run" / "faults.jsonl")]
    assert named == [1, 2, 1, 3, 1, 1]
