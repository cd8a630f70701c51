"""`striderl doctor`: envs and runs, verdicts, exit codes, mistakes; what the log of a run shows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from striderl.cli.main import main
from striderl.cli.seeing.doctor import log_findings
from striderl.loggers.plots import RunMetrics

TINY = [
    *("--env.num-envs", "4", "--plan.num-steps-per-env", "8", "--plan.total-steps", "64", "--stop.metric", ""),
    *("--evaluation.num-episodes", "1", "--policy.actor-hidden-dims", "8", "--algorithm.num-mini-batches", "2"),
    *("--logging.console", "off"),
]

BROKEN = """
import gymnasium, numpy as np
class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.full(1, self.np_random.uniform(), np.float32), {}
    def step(self, action):
        self.t += 1
        return np.full(1, np.nan if self.t > 3 else self.t + action, np.float32), 1.0, False, self.t > 9, {}
"""


def log(**columns):
    size = len(next(iter(columns.values())))
    names = {name.replace("__", "/"): np.array(values, float) for name, values in columns.items()}
    return RunMetrics(folder=None, steps=np.arange(size, dtype=float), columns=names)


@pytest.mark.parametrize(
    ("metrics", "what"),
    [
        (log(train__kl=[0.01] * 12 + [0.5] * 4), "updates move the policy far"),
        (log(train__clip_fraction=[0.1] * 12 + [0.8] * 4), "most samples are clipped"),
        (log(train__explained_variance=[0.5] * 12 + [-0.4] * 4), "the critic predicts worse than a constant"),
        (log(train__entropy=[0.7] + [0.001] * 15, collect__return_mean=[1.0] * 16), "the entropy has collapsed"),
        (log(train__learning_rate=[1e-3] * 12 + [1e-7] * 4), "the learning rate has vanished"),
        (log(faults__bad_samples=[0.0, 3.0]), "samples were not finite"),
        (log(faults__rollbacks=[1.0]), "updates were not finite"),
    ],
)
def test_what_a_log_shows(metrics, what):
    assert [each.what for each in log_findings(metrics)] == [what]


@pytest.mark.parametrize(
    "metrics",
    [
        log(train__kl=[0.5] * 12 + [0.01] * 4, train__explained_variance=[-1.0] * 10 + [0.9] * 6),
        log(train__entropy=[0.7] + [0.001] * 15, collect__return_mean=range(16)),  # solved
        log(train__kl=[0.5] * 5),  # too few rows
        log(faults__bad_samples=[0.0, 0.0]),
    ],
)
def test_what_a_healthy_log_shows(metrics):
    assert log_findings(metrics) == []


def test_an_env_that_is_fine(capsys):
    assert main(["doctor", "cartpole", "--seconds", "0.2"]) == 0
    speed, verdict = capsys.readouterr().out.splitlines()
    assert "env steps per second in 8 envs" in speed and verdict == "cartpole: nothing is wrong or suspicious"


def test_an_env_that_is_not(tmp_path, monkeypatch, capsys):
    (tmp_path / "doctor_broken_env.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["doctor", "doctor_broken_env:Broken", "--seconds", "0.3", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert any(each["what"] == "observation 'obs' is not finite" and "nan" in each["evidence"] for each in found)


@pytest.mark.slow
def test_a_run(tmp_path, capsys):
    assert main(["train", "pendulum", *TINY, "--runs", str(tmp_path), "--name", "x"]) == 0
    capsys.readouterr()
    code = main(["doctor", str(tmp_path / "pendulum" / "x"), "--seconds", "0.3", "--num-envs", "2"])
    text = capsys.readouterr().out
    assert code == 0 and "wrong:" not in text
    rows = (tmp_path / "pendulum" / "x" / "metrics.jsonl").read_text().splitlines()
    spoiled = {**json.loads(rows[-1]), "faults/bad_samples": 5.0}
    (tmp_path / "pendulum" / "x" / "metrics.jsonl").write_text("\n".join([*rows[:-1], json.dumps(spoiled)]) + "\n")
    assert main(["doctor", str(tmp_path / "pendulum" / "x"), "--seconds", "0.3", "--num-envs", "2"]) == 1
    assert "wrong: samples were not finite" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["cartpol"], "Did you mean 'cartpole'"),
        (["cartpole", "--seconds", "61"], "at most 60"),
        (["cartpole", "--num-envs", "0"], "at least 1"),
        (["no_such_module_x:Env"], "no_such_module_x"),
    ],
)
def test_mistakes(words, hint, capsys):
    assert main(["doctor", *words]) == 2
    assert hint in capsys.readouterr().err
