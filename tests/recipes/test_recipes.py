"""Every recipe builds and learns for two small iterations; the table says where each one is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from striderl.envs.tasks import TASKS
from striderl.recipes.quadruped import quadruped_demo
from striderl.recipes.table import RECIPES, algorithms_for, recipe, task_names
from striderl.training.algorithm_table import ALGORITHMS
from striderl.training.plans import OffPolicyPlan
from striderl.training.run import Run
from striderl.training.run_config import EvaluationSettings, LoggingSettings
from striderl.training.run_folder import RunFolder


@pytest.fixture(autouse=True)
def threads():
    """Runs set torch's threads for their process; other tests get theirs back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def small(config):
    """The same networks and settings on few envs, two short rollouts, and one evaluation of one step's episodes."""
    algorithm = config.algorithm
    if hasattr(algorithm, "num_learning_epochs"):
        algorithm = replace(algorithm, num_learning_epochs=1, num_mini_batches=2)
    settings = {} if config.env.task.startswith("gymnasium:") else {"max_episode_length": 3}
    return replace(
        config,
        env=replace(config.env, num_envs=2, settings={**config.env.settings, **settings}),
        algorithm=algorithm,
        collector=replace(config.collector, decorrelation_steps=min(config.collector.decorrelation_steps, 2)),
        plan=short(config.plan),
        evaluation=EvaluationSettings(every=0, num_episodes=1, num_envs=1),
        stop=replace(config.stop, metric=""),
        logging=LoggingSettings(console="off"),
        num_threads=1,
    )


def short(plan):
    if isinstance(plan, OffPolicyPlan):
        return replace(plan, num_steps_per_env=4, total_steps=0, total_iterations=2, learning_starts=8, batch_size=4)
    return replace(plan, num_steps_per_env=4, total_steps=0, total_iterations=2, warmup_steps=1)


@pytest.mark.parametrize("key", [*RECIPES, ("gymnasium:CartPole-v1", "ppo")], ids="-".join)
def test_every_recipe_trains(key, tmp_path):
    config = recipe(*key)
    assert config.env.task == key[0] and config.algorithm_name == key[1]
    run = Run(small(config), RunFolder(tmp_path))
    before = [parameter.clone() for parameter in run.learner.policy.parameters()]
    outcome = run.drive()
    assert outcome.record is not None and outcome.record.iteration == 2
    assert "evaluate/return_mean" in outcome.record.metrics
    after = list(run.learner.policy.parameters())
    assert any(not torch.equal(one, two) for one, two in zip(before, after))
    assert all(bool(parameter.isfinite().all()) for parameter in after)


def test_the_tables_agree():
    for key, family in RECIPES.items():
        assert key in family(), f"{key} is not in its family's own table"
    assert {key for family in set(RECIPES.values()) for key in family()} == set(RECIPES)
    assert {task for task, _ in RECIPES} == set(TASKS), "every built-in task has a recipe"
    assert {algorithm for _, algorithm in RECIPES} <= set(ALGORITHMS)


def test_names_and_mistakes():
    assert algorithms_for("cartpole")[0] == "ppo" and task_names()[0] == "cartpole"
    assert recipe("cartpole").algorithm_name == "ppo"
    with pytest.raises(KeyError, match=r"no task 'cartpol'. Did you mean 'cartpole'\?"):
        recipe("cartpol")
    with pytest.raises(KeyError, match="Write 'gymnasium:CartPole-v1' for Gymnasium's env, or 'cartpole'"):
        recipe("CartPole-v1")
    with pytest.raises(KeyError, match=r"'pendulum' has no recipe with the algorithm 'ppp'. Did you mean 'ppo'\?"):
        recipe("pendulum", "ppp")


def test_the_demo_is_the_quadruped_in_short():
    demo, full = quadruped_demo(), recipe("quadruped")
    assert demo.plan.total_steps < full.plan.total_steps
    assert replace(demo, plan=full.plan, checkpoints=full.checkpoints, evaluation=full.evaluation) == full
