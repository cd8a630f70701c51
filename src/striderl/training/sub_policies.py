"""Sub-policies of a mutex out of the folders of runs, with the units that their tasks act and observe in.

ActorCriticFieldMutex(env.obs_spec, None, env.action_spec, sub_policy_paths=["runs/parkour/2026-…", "runs/parkour/…"],
                      load_sub_policy=load_sub_policy, env_action_scale=0.25)
"""

from __future__ import annotations

from pathlib import Path

from striderl.policies.mutex.runs import SubPolicy
from striderl.policies.policy import Policy
from striderl.training.loading import load_run
from striderl.training.run_config import EnvSettings

COMMAND = "command"
"""The component in which the quadruped tasks show what is asked for."""


def load_sub_policy(folder: str | Path, which: str | int = "best") -> SubPolicy:
    """Return the policy of a run: the 'best', the 'last', or that of a number of env steps."""
    run = load_run(folder, which, builds_env=False)
    if not isinstance(run.policy, Policy):
        learned = "" if run.config is None else f" learned with {run.config.algorithm_name}"
        raise TypeError(f"the run {str(folder)!r}{learned} has no critic; a mutex joins on-policy runs")
    spec = run.policy.obs_spec
    cmd_scale = float(spec[COMMAND].scale) if COMMAND in spec else None
    return SubPolicy(run.policy, _action_scale(run.env), cmd_scale)


def _action_scale(env: EnvSettings) -> float:
    """Return what the task multiplies actions by; 1 where it takes them as they are."""
    given = env.settings.get("action_scale")
    if given is not None:
        return float(given)
    if not env.task.startswith(("quadruped", "parkour")):
        return 1.0
    from striderl.envs.quadruped.tasks import QUADRUPED_CONFIGS  # only this family scales, and it wants MuJoCo

    return QUADRUPED_CONFIGS[env.task].action_scale
