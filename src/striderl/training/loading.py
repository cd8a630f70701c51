"""A run's policy out of its folder: the config says how it is built, a checkpoint what it has learned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from striderl.checkpoint.errors import CheckpointMissing
from striderl.checkpoint.layout import check_layout
from striderl.checkpoint.store import Checkpoint, CheckpointStore
from striderl.data.actions import ActuationSpec
from striderl.envs.vec_env import VecEnv
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.policy import Policy
from striderl.training.algorithm_table import algorithm_entry
from striderl.training.run_config import RunConfig, check_same_parts, read_run_config
from striderl.training.run_folder import RunFolder
from striderl.training.run_specs import SPECS_FILE, actuation_of, read_plain_specs, run_layout, specs_of
from striderl.training.seal import check_digest


@dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """A policy and where it comes from."""

    config: RunConfig[Any, Any]
    """The settings of the run."""
    folder: RunFolder
    """Its folder."""
    policy: Policy | ActorPolicy
    """What it had learned, in eval mode."""
    step: int
    """After how many env steps; gradient steps, where it learned from a dataset."""
    step_dt: float
    """Seconds per step of the task; 0 where time has no meaning."""
    layout: dict[str, Any]
    """What its observations and actions are made of."""
    actuation: ActuationSpec | None = None
    """What its env does with actions; None where that is unknown."""

    def check_env(self, env: VecEnv) -> None:
        """Raise LayoutMismatch, with every difference by name, for an env that shows or takes something else."""
        normalized = self.config.policy.normalize_obs
        now = run_layout(env.obs_spec, env.action_spec, normalize_obs=normalized)
        check_layout(self.layout, now, where=f"the run {self.folder.path}")


def load_run(folder: str | Path, which: str | int = "best", *, device: str = "cpu", trust: bool = False) -> LoadedRun:
    """Load a run's policy: the 'best' (the last one, where none was saved as the best), the 'last', or of a step.

    Nothing that the folder names is imported here. But the config that is returned may name a module, which is imported
    as soon as its task is built: such a run is refused unless this user made it on this machine, or with `trust`.
    """
    root = RunFolder(folder)
    config = read_run_config(root.path, trust=trust)
    specs = read_plain_specs(root.path)
    obs_spec, action_spec, step_dt = specs_of(specs, root.path / SPECS_FILE)
    checkpoint = _checkpoint(root, which)
    layout = run_layout(obs_spec, action_spec, normalize_obs=config.policy.normalize_obs)
    check_layout(checkpoint.layout, layout, where=str(checkpoint.path))
    check_digest(root.path / SPECS_FILE, specs, checkpoint.seal, checkpoint.path)
    if checkpoint.seal:
        check_same_parts(RunConfig.from_stored(checkpoint.config), config, where=str(root.path))
    entry = algorithm_entry(config.algorithm_name)
    policy = entry.policy(replace(config, device=device), obs_spec, action_spec)
    policy.load_state_dict(entry.weights(checkpoint.state))
    policy.eval()
    return LoadedRun(
        config=config,
        folder=root,
        policy=policy,
        step=checkpoint.step,
        step_dt=step_dt,
        layout=layout,
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
