"""Load a run's policy from its folder: built from the config, with the weights of a checkpoint.

    run = load_run("runs/parkour/2026-…", "best")              a `LoadedRun`; a runner's log_dir is read as well
    ActorCriticFieldMutex(env.obs_spec, None, env.action_spec, sub_policy_paths=["runs/parkour/2026-…", …],
                          load_sub_policy=load_sub_policy, env_action_scale=0.25)

`load_sub_policy` returns the policy of a run with its task's action and observation scales.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from striderl.algorithms.building import BuildContext, facts_of, term_class
from striderl.checkpoint.errors import CheckpointError, CheckpointMissing
from striderl.checkpoint.layout import check_layout
from striderl.checkpoint.store import Checkpoint, CheckpointStore
from striderl.collect.teacher import Teacher
from striderl.data.actions import ActionSpec, ActuationSpec
from striderl.data.specs import ObsSpec
from striderl.envs.vec_env import VecEnv
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.mutex.runs import SubPolicy
from striderl.policies.policy import Policy
from striderl.policies.transfer.load import load_exactly
from striderl.training.checks import require_device
from striderl.training.experiment.log_dir import checkpoint_of, is_log_dir
from striderl.training.experiment.run_config import (
    EnvSettings,
    RunConfig,
    TeacherRun,
    check_same_parts,
    read_run_config,
)
from striderl.training.experiment.run_folder import (
    SPECS_FILE,
    RunFolder,
    actuation_of,
    read_plain_specs,
    run_layout,
    specs_of,
)
from striderl.training.experiment.runner_checkpoints import load_state, weights_in
from striderl.training.experiment.seal import check_digest


@dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """A policy and where it comes from."""

    config: RunConfig[Any, Any]
    """All settings of the run."""
    folder: RunFolder
    """Its folder."""
    policy: Policy | ActorPolicy
    """The policy, in eval mode."""
    step: int
    """Env steps of the checkpoint; gradient steps for offline runs."""
    step_dt: float
    """Seconds per step of the task; 0 where time has no meaning."""
    layout: dict[str, Any]
    """Layout of its observations and actions."""
    actuation: ActuationSpec | None = None
    """How its env processes actions; None where that is unknown."""

    @property
    def env(self) -> EnvSettings:
        """Its task."""
        return self.config.env

    def check_env(self, env: VecEnv) -> None:
        """Raise LayoutMismatch, with every difference by name, for an env with other observations or actions."""
        now = run_layout(env.obs_spec, env.action_spec, normalize_obs=self.config.policy.normalize_obs)
        check_layout(self.layout, now, where=f"the run {self.folder.path}")


def build_run_policy(
    config: RunConfig[Any, Any], obs_spec: ObsSpec, action_spec: ActionSpec, *, device: str = "cpu"
) -> Policy | ActorPolicy:
    """Build only the policy of a run, without an env: to load, play, evaluate or export it."""
    facts = facts_of(config.algorithm_name)
    require_device(device)
    context = build_context(replace(config, device=device), obs_spec, action_spec)
    policy: Policy | ActorPolicy = facts.build.build_policy(config.algorithm, context)
    return policy


def build_context(config: RunConfig[Any, Any], obs_spec: ObsSpec, action_spec: ActionSpec) -> BuildContext:
    """Return the build context of algorithm and terms that follows from config and specs."""
    context = BuildContext(
        obs_spec=obs_spec,
        action_spec=action_spec,
        policy=config.policy,
        name=config.algorithm_name,
        device=config.device,
        mode=config.mode,
        seed=config.seed,
    )
    stages: list[Any] = []
    for name, settings in config.terms.items():
        make = getattr(term_class(name), "policy_stages", None)
        stages += make(settings, context) if make is not None else ()
    return context._replace(stages=tuple(stages))


def teacher_of(settings: TeacherRun) -> Teacher:
    """Load and freeze the policy of a teacher's run; an error names what is missing or damaged."""
    if not settings.run:
        raise ValueError("there is no teacher; name its run: --teacher.run FOLDER")
    which = int(settings.checkpoint) if settings.checkpoint.isdigit() else settings.checkpoint
    try:
        policy = load_run(settings.run, which, builds_env=False).policy
    except (OSError, CheckpointError, ValueError) as error:
        raise ValueError(f"teacher.run: {error}") from error
    return Teacher(policy, settings.components)


def load_run(
    folder: str | Path,
    which: str | int = "best",
    *,
    device: str = "cpu",
    trust: bool = False,
    builds_env: bool = True,
) -> LoadedRun:
    """Load a run's policy: the 'best' (the last one, where none was saved as the best), the 'last', or of a step.

    A config that names a module outside the library, which building its parts imports, raises unless this user made the
    run on this machine, or with `trust`. Where no env is built (`builds_env` False), the env's module is not checked.
    The log_dir of a runner is a run as well: its checkpoints are numbered by iterations, and the best is the last.
    """
    root = RunFolder(folder)
    config = read_run_config(root.path, trust=trust, builds_env=builds_env)
    specs = read_plain_specs(root.path)
    obs_spec, action_spec, step_dt = specs_of(specs, root.path / SPECS_FILE)
    layout = run_layout(obs_spec, action_spec, normalize_obs=config.policy.normalize_obs)
    if is_log_dir(root.path):
        state = load_state(checkpoint_of(root.path, which))
        weights, step = weights_in(state), int(state["trainer"]["env_steps"]) if "trainer" in state else 0
    else:
        checkpoint = _checkpoint(root, which)
        check_layout(checkpoint.layout, layout, where=str(checkpoint.path))
        check_digest(root.path / SPECS_FILE, specs, checkpoint.seal, checkpoint.path)
        if checkpoint.seal:
            stored, where = checkpoint.config, checkpoint.path
            saved = RunConfig.from_stored(stored, where, trust=trust, builds_env=builds_env, accepted=config)
            check_same_parts(saved, config, where=str(root.path))
        weights, step = checkpoint.state["algorithm"]["policy"], checkpoint.step
    policy = build_run_policy(config, obs_spec, action_spec, device=device)
    if isinstance(policy, Policy):
        load_exactly(policy, weights)  # names all that differs
    else:
        policy.load_state_dict(weights)
    policy.eval()
    return LoadedRun(
        config=config,
        folder=root,
        policy=policy,
        step=step,
        step_dt=step_dt,
        layout=layout,
        actuation=actuation_of(specs),
    )


def load_untrained(folder: str | Path, *, device: str = "cpu", trust: bool = False) -> LoadedRun:
    """Build the policy of a run that has no checkpoint yet, with the weights that its seed gives a policy built alone.

    Modules that the config names are checked as by `load_run`. A log_dir has no settings before its first checkpoint.
    """
    root = RunFolder(folder)
    config = read_run_config(root.path, trust=trust)
    specs = read_plain_specs(root.path)
    obs_spec, action_spec, step_dt = specs_of(specs, root.path / SPECS_FILE)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        policy = build_run_policy(config, obs_spec, action_spec, device=device)
    policy.eval()
    return LoadedRun(
        config=config,
        folder=root,
        policy=policy,
        step=0,
        step_dt=step_dt,
        layout=run_layout(obs_spec, action_spec, normalize_obs=config.policy.normalize_obs),
        actuation=actuation_of(specs),
    )


def _checkpoint(root: RunFolder, which: str | int) -> Checkpoint:
    store = CheckpointStore(root.checkpoints)
    if which == "best":
        try:
            return store.load("best")
        except CheckpointMissing:
            return store.load("last")
    return store.load(which)


# -- sub-policies of a mutex -------------------------------------------------------------------------------------------


COMMAND = "command"
"""The command component of the quadruped tasks."""


def load_sub_policy(folder: str | Path, which: str | int = "best") -> SubPolicy:
    """Return the policy of a run: the 'best', the 'last', or that of a number of env steps."""
    run = load_run(folder, which, builds_env=False)
    if not isinstance(run.policy, Policy):
        learned = f"learned with {run.config.algorithm_name}"
        raise TypeError(f"the run {str(folder)!r} {learned} has no critic; a mutex joins on-policy runs")
    spec = run.policy.obs_spec
    cmd_scale = float(spec[COMMAND].scale) if COMMAND in spec else None
    return SubPolicy(run.policy, _action_scale(run.env), cmd_scale)


def _action_scale(env: EnvSettings) -> float:
    """Return the action scale of the task; 1 without one."""
    given = env.settings.get("action_scale")
    if given is not None:
        return float(given)
    if not env.task.startswith(("quadruped", "parkour")):
        return 1.0
    from striderl.envs.quadruped.tasks import QUADRUPED_CONFIGS  # only this family scales, and it needs MuJoCo

    return QUADRUPED_CONFIGS[env.task].action_scale
