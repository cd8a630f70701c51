"""Check that an environment keeps the contract of `VecEnv`, and say what is wrong, in which env and at which step.

    report = check_vec_env(MyEnv(8))          raises ContractError at the first fault
    report = check_vec_env(MyEnv(8), collect=True)
    print(report)                             all faults, warnings, and what could not be checked

A message names the field, the env, the step, what was wanted and what was found:

    MyEnv: obs['joints'] (env 3, at step 17): wanted finite numbers, found nan at entry 5.
"""

from __future__ import annotations

from striderl.envs.check.behaviour import (
    check_close,
    check_episode_lengths,
    check_refusals,
    check_reset_envs,
    check_seeds,
    check_state,
)
from striderl.envs.check.probe import Probe, Stopped
from striderl.envs.check.report import Recorder, Report, Violation
from striderl.envs.check.rollout import check_rollout
from striderl.envs.check.values import check_declarations
from striderl.envs.vec_env import ContractError, VecEnv

__all__ = ["ContractError", "Report", "Violation", "check_vec_env"]

_PARTS = {
    "a run with random actions": check_rollout,
    "episode_length_buf": check_episode_lengths,
    "reset_envs": check_reset_envs,
    "seeds": check_seeds,
    "saved state": check_state,
    "too few actions": check_refusals,
}


def check_vec_env(
    env: VecEnv, *, num_steps: int = 100, seed: int = 0, collect: bool = False, close: bool = False
) -> Report:
    """Run an env through every rule of the contract.

    Args:
        env: The env; it is reset many times and left freshly reset with `seed`.
        num_steps: Steps of the longest run. A fault that shows later is not found: give more for rare ones.
        seed: What the env is reset with, and what the random actions follow.
        collect: Go on after a violation and list all in the report, instead of raising `ContractError`.
        close: Also close the env, twice, at the end.
    """
    if num_steps < 1:
        raise ValueError(f"check_vec_env wants at least one step, found num_steps={num_steps}")
    recorder = Recorder(type(env).__name__, collect=collect)
    probe = Probe(env, recorder, seed=seed, num_steps=num_steps)
    if check_declarations(env, recorder):
        parts = {**_PARTS, "close": check_close if close else _leave_open}
        for name, part in parts.items():
            try:
                part(probe)
            except Stopped:
                recorder.skipped(f"the rest of '{name}', because of what is wrong above")
    return recorder.report


def _leave_open(probe: Probe) -> None:
    probe.reset(probe.seed)
    probe.recorder.skipped("close: pass close=True")
