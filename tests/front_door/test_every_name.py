"""Every algorithm and every term by name: built from a config, one iteration trained, the policy built again alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from striderl.algorithms.building import OFF_POLICY, OFFLINE, facts_of, kind_of_actions
from striderl.algorithms.terms.symmetry import MirrorTable
from striderl.collect import RandomActor, Teacher
from striderl.data.registry import ALGORITHMS, TERMS
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.datasets.offline import load_dataset, save_dataset
from striderl.envs.tasks import make
from striderl.policies.settings import PolicySettings, build_policy
from striderl.recipes.offline import record_steps
from striderl.recipes.table import recipe
from striderl.training.experiment.assembly import build_learner
from striderl.training.experiment.loading import build_run_policy
from striderl.training.experiment.run_config import RunConfig, term_config

SMALL = {"actor_hidden_dims": (8,), "critic_hidden_dims": (8,)}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Random steps of both tasks, as folders."""
    root = tmp_path_factory.mktemp("datasets")
    for task in ("cartpole", "pendulum"):
        env = make(task, num_envs=2)
        save_dataset(root / task, record_steps(env, [RandomActor(env.action_spec)], 60), env.obs_spec, env.action_spec)
    return root


def small(task: str, algorithm: str, datasets, **changes) -> RunConfig:
    """The general recipe, with networks and batches that take no time."""
    config = recipe(f"gymnasium:{task}" if task[0].isupper() else task, algorithm)
    facts = facts_of(algorithm)
    memory = {"memory_size": 8} if config.policy.kind != "mlp" else {}
    plan = replace(config.plan, total_iterations=1)
    if facts.loop == OFF_POLICY:
        plan = replace(
            plan, num_steps_per_env=16, train_every=8, num_updates_per_round=1, batch_size=4, learning_starts=8
        )
        plan = replace(plan, buffer_size=256)
    elif facts.loop == OFFLINE:
        plan = replace(plan, num_updates_per_iteration=1, batch_size=4)
    else:
        plan = replace(plan, num_steps_per_env=8)
    num_envs = 1 if facts.loop == OFFLINE else 2
    dataset = str(datasets / task) if facts.loop == OFFLINE else ""
    return replace(
        config,
        env=replace(config.env, num_envs=num_envs),
        policy=replace(config.policy, **SMALL, **memory),
        plan=plan,
        dataset=dataset,
        **changes,
    )


def with_motions(config: RunConfig) -> RunConfig:
    """Let motion priors look at the one component of these tasks, estimators predict it."""
    algorithm = config.algorithm
    if hasattr(algorithm, "prior"):
        algorithm = replace(algorithm, prior=replace(algorithm.prior, components=("obs",)))
    if hasattr(algorithm, "estimator"):
        estimator = replace(algorithm.estimator, inputs=("obs",), targets=("speed",))
        algorithm = replace(algorithm, estimator=estimator)
    return replace(config, algorithm=algorithm)


ESTIMATED = {"estimation": {"inputs": ("obs",), "targets": ("speed",)}}


def make_env(task: str, num_envs: int, *, speed: bool = False):
    """Build a task; with `speed` it shows its last number as a component of its own too, for estimators."""
    env = make(task, num_envs=num_envs)
    if not speed:
        return env
    reset, step = env.reset, env.step

    def shown(obs):
        return {**obs, "speed": obs["obs"][:, -1:]}

    def stepped(actions):
        found = step(actions)
        final = None if found.final_obs is None else shown(found.final_obs)
        return found._replace(obs=shown(found.obs), final_obs=final)

    env.obs_spec = ObsSpec({**env.obs_spec, "speed": ComponentSpec(shape=(1,))})
    env.reset, env.step = lambda seed=None: shown(reset(seed)), stepped
    return env


def objects_for(env, folder):
    """A teacher, an expert and a mirror that fit an env."""
    torch.manual_seed(0)
    size = env.obs_spec.size
    same = (
        MirrorTable(range(size)),
        MirrorTable(range(env.action_spec.shape[0]))
        if kind_of_actions(env.action_spec) == "box"
        else (lambda action: action),
    )
    return {
        "teacher": Teacher(build_policy(PolicySettings(**SMALL), env.obs_spec, env.action_spec)),
        "expert": load_dataset(folder, make(folder.name).obs_spec, env.action_spec),
        "symmetry": ({"obs": same[0]}, same[1]),
    }


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_every_algorithm_trains_by_its_name_on_a_task_that_it_fits(name, datasets):
    task = "cartpole" if facts_of(name).actions == {"discrete"} else "pendulum"
    config = with_motions(small(task, name, datasets))
    assert RunConfig.from_json(config.to_json()) == config
    env = make_env(task, config.env.num_envs, speed="estimator" in name)
    learner = build_learner(config, env, objects=objects_for(env, datasets / task))
    (record,) = list(learner.trainer([]))
    assert record.iteration == 1
    alone = build_run_policy(config, env.obs_spec, env.action_spec)
    alone.load_state_dict(learner.policy.state_dict())


@pytest.mark.parametrize("name", TERMS.names())
def test_every_term_learns_beside_ppo(name, datasets):
    settings = term_config(name)()
    changes = {"motion_prior": {"components": ("obs",)}, "mimic": {"components": ("obs",)}}
    settings = replace(settings, **changes.get(name, {}), **ESTIMATED.get(name, {}))
    config = small("pendulum", "ppo", datasets, terms={name: settings})
    assert RunConfig.from_json(config.to_json()) == config
    env = make_env("pendulum", 2, speed=name == "estimation")
    objects = objects_for(env, datasets / "pendulum")
    if name == "mimic":  # the env of this term shows a reference; pendulum has none, and is told so
        with pytest.raises((KeyError, ValueError), match="ref_motion"):
            list(build_learner(config, env, objects=objects).trainer([]))
        return
    (record,) = list(build_learner(config, env, objects=objects).trainer([]))
    assert record.iteration == 1


def test_terms_are_built_in_the_order_of_the_config(datasets):
    terms = {"symmetry": term_config("symmetry")(), "rnd": term_config("rnd")()}
    config = small("pendulum", "ppo", datasets, terms=terms)
    assert list(RunConfig.from_json(config.to_json()).terms) == ["symmetry", "rnd"]


@pytest.mark.parametrize(("name", "missing"), [("tppo", "--teacher.run"), ("appo", "expert"), ("gail", "expert")])
def test_what_is_missing_is_named(name, missing, datasets):
    config = with_motions(small("pendulum", name, datasets))
    with pytest.raises((ValueError, FileNotFoundError), match=missing):
        build_learner(config, make("pendulum", num_envs=2))
