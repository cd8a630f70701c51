"""DAgger by two processes that meet on the disk: one records with the newest student, one learns from the labels."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from dagger_parts import learner_config, make_env, make_teacher, record

from striderl.datasets.trajectories.store import TrajectoryStore
from striderl.policies.policy import Policy
from striderl.training.experiment.runner_checkpoints import load_state
from striderl.training.rsl_rl.two_stage_runner import TwoStageRunner


def greedy(policy: Policy, obs: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return policy.act(obs, {}, {})[0].mode()


def newest(folder: Path) -> dict[str, Any]:
    store = TrajectoryStore(folder)
    return store.read(len(store) - 1)


class Students:
    """What the learner has saved, to tell which of them has acted."""

    def __init__(self, folder: Path, policy: Policy) -> None:
        self.folder, self.policy = folder, policy

    def actions(self, name: str, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        self.policy.load_state_dict(load_state(self.folder / name)["model_state_dict"])
        return greedy(self.policy, obs)

    def who_acted(self, steps: dict[str, Any]) -> list[str]:
        """The students whose action is that of the trajectory's last step."""
        last = {name: value[-1:] for name, value in steps["obs"].items()}
        names = [path.name for path in self.folder.glob("model_*")]
        done = steps["policy"]["executed"][-1:]
        return [name for name in names if torch.allclose(self.actions(name, last), done, atol=1e-4)]


@pytest.mark.slow
def test_a_recorder_and_a_learner_feed_each_other(tmp_path):
    env = make_env()
    runner = TwoStageRunner(env, learner_config(tmp_path), tmp_path / "learner")
    students = Students(tmp_path / "learner", make_teacher(env))  # of the same shape; its weights are replaced
    recorder = multiprocessing.get_context("spawn").Process(target=record, args=(tmp_path,))
    recorder.start()
    try:
        deadline, acted = time.monotonic() + 240.0, ["model_0.pt"]
        while not acted or acted == ["model_0.pt"]:
            assert time.monotonic() < deadline, "no newer student has acted within four minutes"
            runner.learn(4)  # waits for the first trajectories
            acted = students.who_acted(newest(tmp_path / "demos"))
        near = False
        while not near:  # how much it learns per call depends on how fast the other process records
            assert time.monotonic() < deadline, "the student does not come near the teacher within four minutes"
            runner.learn(24)
            steps = newest(tmp_path / "demos")
            first, last = students.actions("model_0.pt", steps["obs"]), greedy(runner.alg.policy, steps["obs"])
            near = bool((last - steps["act"]).abs().mean() < 0.5 * (first - steps["act"]).abs().mean())
    finally:
        recorder.terminate()
        recorder.join()
        runner.close()

    teacher, steps = make_teacher(env), newest(tmp_path / "demos")
    torch.testing.assert_close(steps["act"], greedy(teacher, steps["obs"]), msg="labels are the teacher's")
    assert not steps["policy"]["acted"].any(), "and what was done is the student's"
