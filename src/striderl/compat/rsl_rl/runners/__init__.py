"""Runners: an env, an algorithm and a log."""

from striderl.compat.rsl_rl.runners.on_policy_runner import DistillationRunner as DistillationRunner
from striderl.compat.rsl_rl.runners.on_policy_runner import OnPolicyRunner as OnPolicyRunner
