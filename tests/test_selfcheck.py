"""`make demo` until there is something to train."""

from __future__ import annotations

import pytest

from striderl.cli import selfcheck
from striderl.envs.toy import Counting


def test_a_good_env_holds_and_a_bad_one_is_told():
    contract, speed, spec = selfcheck.look_at(lambda: Counting(4))
    assert contract == "holds" and float(speed.replace(",", "")) > 0 and spec == "3 numbers"

    class Bad(Counting):
        def step(self, actions):
            step = super().step(actions)
            return step._replace(reward=step.reward.unsqueeze(1))

    contract, _, _ = selfcheck.look_at(lambda: Bad(4))
    assert "reward" in contract


def test_the_whole_look(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(selfcheck, "TASKS", ["cartpole", "quadruped"])
    assert selfcheck.main() == 0
    text = capsys.readouterr().out
    assert "cartpole" in text and "Everything works." in text
    assert (tmp_path / selfcheck.PICTURE).exists() or "No picture" in text


def test_failures_are_counted(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(selfcheck, "TASKS", ["cartpole"])
    monkeypatch.setattr(selfcheck, "look_at", lambda build: ("broken", "", ""))
    assert selfcheck.main() == 1


@pytest.mark.parametrize("flag", ["TASKS", "make"])
def test_it_uses_the_table_of_tasks(flag):
    from striderl.envs import tasks

    assert getattr(selfcheck, flag) is getattr(tasks, flag)
