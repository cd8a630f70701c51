"""Learning algorithms."""

from striderl.compat.rsl_rl.algorithms.distillation import Distillation as Distillation
from striderl.compat.rsl_rl.algorithms.ppo import PPO as PPO
