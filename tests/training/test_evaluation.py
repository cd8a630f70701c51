"""Evaluation: exact episodes, right statistics, the env's own metrics."""

from __future__ import annotations

import math

import pytest
import torch

from striderl.collect.actors.base import RandomActor, ScriptedActor
from striderl.envs.toy import Chain, ChainConfig, Counting, CountingConfig, Script, Scripted
from striderl.ops.statistics import confidence_interval, t_quantile
from striderl.training.evaluation import EvaluationResult, evaluate


def right(obs):
    return torch.ones(len(obs["obs"]), dtype=torch.int64)


def test_a_known_return():
    # always right: state 4 is reached with the fourth step, which pays 1 and ends the episode
    result = evaluate(Chain(3, config=ChainConfig(num_states=5)), ScriptedActor(right), 7)
    assert result.returns == (1.0,) * 7 and result.lengths == (4,) * 7
    assert result.mean == 1.0 and result.std == 0.0 and result.interval == (1.0, 1.0)


def test_episodes_follow_from_the_seed_alone():
    env = Counting(3)
    actor = RandomActor(env.action_spec)
    one = evaluate(env, actor, 9, seed=4)
    env.step(torch.zeros(3, dtype=torch.int64))
    two, other = evaluate(env, actor, 9, seed=4), evaluate(env, actor, 9, seed=5)
    assert one == two and one != other
    # an episode of L steps returns 0 + 1 + … + (L - 1)
    assert all(total == length * (length - 1) / 2 for total, length in zip(one.returns, one.lengths))
    # each env gives three; how long they are is known beforehand
    index, number = torch.arange(3).repeat_interleave(3), torch.arange(3).repeat(3)
    assert list(one.lengths) == env.episode(4, index, number).length.tolist()


class Measured(Counting):
    """Counting, with the number of steps as its metric; after the end of an episode still that of the ended one."""

    def step(self, actions):
        before = self.episode_length_buf + 1
        result = super().step(actions)
        self.measured = before.float()
        return result

    def metrics(self):
        return {"steps": self.measured, "index": self.env_index.float()}


def test_metrics_are_taken_when_an_episode_ends():
    env = Measured(3, config=CountingConfig(min_length=2, max_length=9))
    result = evaluate(env, RandomActor(env.action_spec), 8)
    assert result.metrics["steps"] == tuple(float(length) for length in result.lengths)
    assert result.metrics["index"] == (0, 0, 0, 1, 1, 1, 2, 2)
    numbers = result.numbers()
    assert numbers["steps"] == pytest.approx(numbers["length_mean"]) and numbers["episodes"] == 8


def test_spoiled_episodes_do_not_count():
    # env 0: the first episode (steps 0, 1) has a bad reward, the second (steps 2, 3) returns 7
    reward = torch.tensor([[float("nan")], [1.0], [3.0], [4.0]])
    ends = torch.tensor([[False], [True], [False], [True]])
    script = Script(
        obs={"obs": torch.zeros(5, 1, 1)}, reward=reward, terminated=ends, truncated=torch.zeros(4, 1).bool()
    )

    class WithMetrics(Scripted):
        def metrics(self):
            return {"row": torch.tensor([float(self._row)])}

    result = evaluate(WithMetrics(script), ScriptedActor(lambda obs: torch.zeros(1, dtype=torch.int64)), 1)
    assert result.returns == (7.0,) and result.metrics == {"row": (4.0,)}


def test_statistics_by_hand():
    # 1, 2, 3, 4: mean 2.5, variance (2.25 + 0.25 + 0.25 + 2.25) / 3 = 5 / 3, half width 3.182 * 1.291 / 2 = 2.054
    result = EvaluationResult(returns=(1.0, 2.0, 3.0, 4.0), lengths=(1, 1, 2, 2))
    assert result.mean == 2.5 and result.std == pytest.approx(math.sqrt(5 / 3))
    low, high = result.interval
    assert high - 2.5 == pytest.approx(2.054, rel=0.01) and 2.5 - low == pytest.approx(2.054, rel=0.01)
    assert result.numbers()["length_mean"] == 1.5


def test_one_episode_has_no_interval():
    assert confidence_interval((3.0,)) == (-math.inf, math.inf)
    assert EvaluationResult(returns=(3.0,), lengths=(1,)).std == 0.0


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.706), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (9, 2.2622), (19, 2.0930), (100, 1.9840)],
)
def test_student_quantiles(freedom, expected):
    assert t_quantile(freedom) == pytest.approx(expected, rel=0.01)
