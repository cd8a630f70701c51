"""Every recipe builds, learns for four small iterations and is compiled after two; the table says where each one is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from striderl.algorithms.building import OFFLINE, facts_of
from striderl.collect.actors.base import RandomActor
from striderl.data.registry import ALGORITHMS
from striderl.datasets.offline import save_dataset
from striderl.envs.tasks import TASKS, make
from striderl.execution import background, joint_program, traced
from striderl.recipes.offline import record_steps
from striderl.recipes.quadruped import quadruped_demo, quadruped_teacher
from striderl.recipes.table import RECIPES, algorithms_for, recipe, task_names
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_config import EvaluationSettings, LoggingSettings, TeacherRun
from striderl.training.experiment.run_folder import RunFolder
from striderl.training.plans import OfflinePlan, OffPolicyPlan

CHOICES = ("c51", "qrdqn", "iqn", "rainbow", "r2d2", "discrete_sac")
REAL_VALUED = ("a2c", "reinforce", "impala", "ddpg", "recurrent_sac", "redq", "tqc", "crossq", "fast_td3", "fast_sac")
GENERAL = [
    ("gymnasium:CartPole-v1", "ppo"),
    *(("cartpole", name) for name in CHOICES),
    *(("pendulum", name) for name in REAL_VALUED),
]
"""Pairs without a recipe of their own."""


@pytest.fixture(autouse=True)
def threads():
    """Runs set torch's threads for their process; other tests get theirs back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class NoCompiler:
    """Stands in for the compiler's process: the traced graph itself is the program."""

    alive = True

    def __init__(self):
        self.graphs = {}
        self.num_runs = 0

    def compile(self, graph, inputs, path):
        self.graphs[path] = graph
        path.touch()
        return path.with_suffix(".error")

    def load(self, path):
        def run(inputs):
            self.num_runs += 1
            return self.graphs[path](*inputs)

        return run

    def close(self):
        """End nothing."""


@pytest.fixture
def programs(monkeypatch, tmp_path):
    """Compile nothing: a program is the traced graph, its runs are counted and each result is compared."""
    compiler = NoCompiler()
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setattr(background, "CompileWorker", lambda: compiler)
    monkeypatch.setattr(background, "cache_folder", lambda: folder)
    monkeypatch.setattr(background, "load_program", compiler.load)
    for module in (traced, joint_program):
        monkeypatch.setattr(module, "is_due", lambda number: True)
    return compiler


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """A folder with a few random steps of each task that there are offline recipes for."""
    root = tmp_path_factory.mktemp("datasets")
    for task in {task for task, name in RECIPES if facts_of(name).loop == OFFLINE}:
        env = make(task, num_envs=2)
        replay = record_steps(env, [RandomActor(env.action_spec)], 40)
        save_dataset(root / task, replay, env.obs_spec, env.action_spec)
    return root


def small(config):
    """The same networks and settings on few envs, four short rollouts, and one evaluation of one step's episodes."""
    algorithm = config.algorithm
    if hasattr(algorithm, "num_mini_batches"):
        algorithm = replace(algorithm, num_learning_epochs=1, num_mini_batches=2)
    elif config.algorithm_name == "tppo":
        algorithm = replace(algorithm, ppo=replace(algorithm.ppo, num_learning_epochs=1, num_mini_batches=2))
    num_envs = 1 if isinstance(config.plan, OfflinePlan) else 2
    settings = {} if config.env.task.startswith("gymnasium:") else {"max_episode_length": 3}
    return replace(
        config,
        env=replace(config.env, num_envs=num_envs, settings={**config.env.settings, **settings}),
        algorithm=algorithm,
        collector=replace(config.collector, decorrelation_steps=min(config.collector.decorrelation_steps, 2)),
        plan=short(config.plan),
        evaluation=EvaluationSettings(every=0, num_episodes=1, num_envs=1),
        stop=replace(config.stop, metric=""),
        logging=LoggingSettings(console="off"),
        num_threads=1,
        switch_at="2",
    )


def short(plan):
    if isinstance(plan, OfflinePlan):
        return replace(plan, num_updates_per_iteration=2, total_iterations=4, batch_size=4)
    if isinstance(plan, OffPolicyPlan):
        return replace(plan, num_steps_per_env=4, total_steps=0, total_iterations=4, learning_starts=8, batch_size=4)
    return replace(plan, num_steps_per_env=4, total_steps=0, total_iterations=4, warmup_steps=1)


def trained_teacher(path):
    config = small(quadruped_teacher())
    path.mkdir()
    RunFolder(path).write_config(config)
    Run(config, RunFolder(path)).drive()
    return path


@pytest.mark.slow
@pytest.mark.parametrize("key", [*RECIPES, *GENERAL], ids="-".join)
def test_every_recipe_trains_and_is_compiled(key, tmp_path, datasets, programs, caplog):
    config = recipe(*key)
    if isinstance(config.plan, OfflinePlan):
        config = replace(config, dataset=str(datasets / key[0]))
    assert config.env.task == key[0] and config.algorithm_name == key[1]
    config = small(config)
    if key[1] == "tppo":
        config = replace(config, teacher=TeacherRun(run=str(trained_teacher(tmp_path / "teacher"))))
    run = Run(config, RunFolder(tmp_path))
    before = [parameter.clone() for parameter in run.learner.policy.parameters()]
    outcome = run.drive()
    assert outcome.record is not None and outcome.record.iteration == 4
    assert programs.num_runs and not [each for each in caplog.messages if "strict=True" in each]
    assert "evaluate/return_mean" in outcome.record.metrics
    after = list(run.learner.policy.parameters())
    assert any(not torch.equal(one, two) for one, two in zip(before, after))
    assert all(bool(parameter.isfinite().all()) for parameter in after)


def test_the_tables_agree():
    for key, family in RECIPES.items():
        assert key in family(), f"{key} is not in its family's own table"
    assert {key for family in set(RECIPES.values()) for key in family()} == set(RECIPES)
    assert {task for task, _ in RECIPES} == set(TASKS), "every built-in task has a recipe"
    assert {algorithm for _, algorithm in RECIPES} <= set(ALGORITHMS.names())


def test_names_and_mistakes():
    assert algorithms_for("cartpole")[0] == "ppo" and task_names()[0] == "cartpole"
    assert recipe("cartpole").algorithm_name == "ppo"
    with pytest.raises(KeyError, match=r"no task 'cartpol'. Did you mean 'cartpole'\?"):
        recipe("cartpol")
    assert recipe("CartPole-v1").env.task == "gymnasium:CartPole-v1", "an id of Gymnasium needs no prefix"
    with pytest.raises(KeyError, match=r"no algorithm 'ppp'. Did you mean 'ppo'\?"):
        recipe("pendulum", "ppp")


def test_the_demo_is_the_quadruped_in_short():
    demo, full = quadruped_demo(), recipe("quadruped")
    assert demo.plan.total_steps < full.plan.total_steps
    assert (demo.stop.metric, demo.stop.mode) == ("evaluate/tracking_error", "min") and demo.evaluation.every
    assert replace(demo, plan=full.plan, stop=full.stop, switch_at=full.switch_at) == full
