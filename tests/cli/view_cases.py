"""Folders of runs for the tests of `striderl view`, and sessions on them."""

from __future__ import annotations

from dataclasses import replace

from striderl.checkpoint.store import CheckpointStore
from striderl.cli.runs import env_of
from striderl.cli.view.session import ViewSession
from striderl.envs.tasks import make
from striderl.recipes.table import recipe
from striderl.training.experiment.loading import build_run_policy
from striderl.training.experiment.run_config import EvaluationSettings, LoggingSettings, StopSettings
from striderl.training.experiment.run_folder import new_run_folder, run_layout, write_specs

STEP = 64


def config_of(task, **settings):
    """A run that would be trained in a second."""
    config = recipe(task, "ppo")
    return replace(
        config,
        env=replace(config.env, num_envs=4, settings=settings),
        policy=replace(config.policy, actor_hidden_dims=(8,), critic_hidden_dims=(8,)),
        plan=replace(config.plan, num_steps_per_env=12, total_steps=0, total_iterations=1),
        evaluation=EvaluationSettings(every=0),
        logging=LoggingSettings(console="off"),
        stop=StopSettings(),
        num_threads=1,
    )


def made(root, task, **settings):
    """The folder of a run with one checkpoint, as a training leaves it."""
    config = config_of(task, **settings)
    folder = new_run_folder(config, root, "x")
    with make(task, num_envs=1, settings=settings) as env:
        write_specs(folder.path, env.obs_spec, env.action_spec, env.step_dt, env.actuation)
        policy = build_run_policy(config, env.obs_spec, env.action_spec)
        layout = run_layout(env.obs_spec, env.action_spec, normalize_obs=config.policy.normalize_obs)
    state = {"algorithm": {"policy": policy.state_dict()}}
    CheckpointStore(folder.checkpoints).save(state, step=STEP, config=config.to_dict(), layout=layout)
    return folder.path


def opened(folder, *, num_envs=2, **settings):
    return ViewSession(folder, lambda f: env_of(f.loaded, num_envs=num_envs, filmed=True), **settings)


def save_next(folder, *, step, best=False):
    """What a training in another process does: one more checkpoint, whose policy takes the other action."""
    store = CheckpointStore(folder / "checkpoints", keep_last=10)
    last = store.load("last")
    for value in last.state["algorithm"]["policy"].values():
        if value.is_floating_point() and value.ndim and len(value) == 2:
            value.copy_(value.flip(0))
    store.save(last.state, step=step, best=best, config=last.config, layout=last.layout, seal=last.seal)
