"""The env that a runner steps."""

from striderl.compat.rsl_rl.env.vec_env import VecEnv as VecEnv
