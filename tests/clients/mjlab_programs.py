"""mjlab's own `train` and `play`, with a viewer that ends, and a task whose runner is this library's.

python mjlab_programs.py train TASK --agent.…        mjlab.scripts.train
python mjlab_programs.py play TASK --checkpoint-file …    mjlab.scripts.play, for five steps
"""

from __future__ import annotations

import sys
from typing import Any

import mjlab.tasks
import torch
from mjlab.scripts import play, train
from mjlab.tasks.registry import load_env_cfg, load_rl_cfg, register_mjlab_task

from striderl.training import OnPolicyRunner

OURS = "Striderl-Cartpole"
"""mjlab's cartpole with `runner_cls=OnPolicyRunner` of this library."""
HOOKED = "Striderl-Hook-Cartpole"
"""The same with mjlab's runner and `class_name = "striderl.rsl_rl:PPO"`."""
BALANCE = "Mjlab-Cartpole-Balance"


class ShortViewer:
    """Steps the policy five times, as mjlab's viewers do, and hot-swaps the checkpoint once."""

    def __init__(self, env: Any, policy: Any, checkpoint_manager: Any = None) -> None:
        self.env, self.policy, self.checkpoints = env, policy, checkpoint_manager

    def run(self) -> None:
        obs = self.env.get_observations()
        with torch.inference_mode():
            for _ in range(5):
                obs, _, dones, _ = self.env.step(self.policy(obs))
                self.policy.reset(dones)
        names = [name for name, _ in self.checkpoints.fetch_available()]
        swapped = self.checkpoints.load_checkpoint(names[0])
        print(f"PLAYED {len(names)} checkpoints, actions {list(swapped(obs).shape)}")


def register() -> None:
    """Register both tasks."""
    for task, runner in ((OURS, OnPolicyRunner), (HOOKED, None)):
        agent = load_rl_cfg(BALANCE)
        agent.algorithm.class_name = "PPO" if runner is not None else "striderl.rsl_rl:PPO"
        agent.logger, agent.save_interval, agent.num_steps_per_env = "tensorboard", 1, 8
        register_mjlab_task(task, load_env_cfg(BALANCE), load_env_cfg(BALANCE, play=True), agent, runner)


if __name__ == "__main__":
    assert mjlab.tasks is not None
    register()
    play.NativeMujocoViewer = play.ViserPlayViewer = ShortViewer
    program = {"train": train.main, "play": play.main}[sys.argv.pop(1)]
    program()
