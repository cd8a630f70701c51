"""Callbacks: they see every record in order, keep their state, and never change training."""

from __future__ import annotations

import io
import logging
from types import SimpleNamespace

import pytest
from training_cases import make_trainer, run, same_state, weights_of

from striderl.collect.actors.policy_actor import GreedyActor
from striderl.data import tree
from striderl.envs.classic_control import CartPole
from striderl.envs.toy import ProbeConfig, TimeLimit
from striderl.loggers.console_logger import ConsoleLogger
from striderl.loggers.file_loggers import JsonlLogger
from striderl.loggers.logger import Logger
from striderl.training.callbacks.callback import NOTHING, Reaction
from striderl.training.callbacks.evaluate import Evaluate
from striderl.training.callbacks.log import Log
from striderl.training.callbacks.progress import Progress
from striderl.training.callbacks.save import Save
from striderl.training.callbacks.stop import Budget, Plateau, Prune, Stop, Threshold
from striderl.training.record import Record

RUN = SimpleNamespace(ending=False, remaining_iterations=None, state_dict=dict)


def record_of(iteration: int, **metrics: float) -> Record:
    return Record(
        iteration=iteration,
        env_steps=10 * iteration,
        num_updates=4 * iteration,
        num_steps=10,
        metrics=metrics,
        collection_seconds=1.0,
        learning_seconds=1.5,
    )


class Watch:
    """Notes what it is given."""

    def __init__(self, reaction: Reaction = NOTHING) -> None:
        self.seen: list[Record] = []
        self.reaction = reaction

    def on_iteration(self, record, run):
        self.seen.append(record)
        return self.reaction

    def state_dict(self):
        return {"count": len(self.seen)}

    def load_state_dict(self, state):
        self.seen = [None] * state["count"]

    def close(self):
        pass


class Memory(Logger):
    """A logger that keeps everything."""

    patience = 10.0  # a row is here when the iteration is over

    def __init__(self):
        self.rows = []
        self.resumed_at = []

    def log(self, step, numbers):
        self.rows.append((step, dict(numbers)))

    def resume_at(self, step):
        self.resumed_at.append(step)


# -- training does not notice ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "gru"])
def test_callbacks_never_change_training(kind, tmp_path):
    def everything(policy):
        return [
            Evaluate(CartPole(3), GreedyActor(policy), every=1, n_episode=3, seed=4),
            Log(JsonlLogger(tmp_path / "log.jsonl")),
            Progress(lambda report: None),
            Stop(Budget(iterations=100), Plateau("evaluate/return_mean", patience=100)),
            Save(lambda state, name: None, every=1, best="evaluate/return_mean"),
        ]

    bare, watched = make_trainer(kind), make_trainer(kind, callbacks=everything)
    bare_records, watched_records = run(bare, 5), run(watched, 5)
    assert tree.equal(weights_of(bare), weights_of(watched))
    assert tree.equal(bare.collector.state_dict(), watched.collector.state_dict())
    for one, other in zip(bare_records, watched_records):
        assert one.metrics.items() <= other.metrics.items()
        assert {name.split("/")[0] for name in other.metrics.keys() - one.metrics.keys()} == {"evaluate"}


def test_callbacks_are_called_in_order_and_see_what_was_added():
    first, second, third = Watch(), Watch(Reaction(metrics={"evaluate/extra": 7.0})), Watch()
    trainer = make_trainer(callbacks=[first, second, third])
    record = next(trainer)
    assert "evaluate/extra" not in first.seen[0].metrics and "evaluate/extra" not in second.seen[0].metrics
    assert third.seen[0].metrics["evaluate/extra"] == record.metrics["evaluate/extra"] == 7.0
    next(trainer)
    assert [len(watch.seen) for watch in (first, second, third)] == [2, 2, 2]


def test_a_consumer_that_fails_does_not_lose_the_others():
    class Failing(Watch):
        def on_iteration(self, record, run):
            super().on_iteration(record, run)
            if record.iteration == 2:
                raise OSError("disk full")
            return NOTHING

    before, failing, after = Watch(), Failing(), Watch()
    trainer = make_trainer(callbacks=[before, failing, after])
    next(trainer)
    with pytest.raises(OSError, match="disk full"):
        next(trainer)
    assert trainer.iteration == 2 and trainer.phase == "consume"
    assert next(trainer).iteration == 2  # goes on behind the one that failed
    assert [record.iteration for record in after.seen] == [1, 2]
    assert [record.iteration for record in before.seen] == [1, 2]


# -- Evaluate ----------------------------------------------------------------------------------------------------------


def test_evaluate_every_n_and_at_the_end():
    def callbacks(policy):
        return [Evaluate(TimeLimit(2, config=ProbeConfig(num_steps=3)), GreedyActor(policy), every=2, n_episode=4)]

    env = TimeLimit(4, config=ProbeConfig(num_steps=3))
    records = list(make_trainer(env=env, plan={"total_iterations": 5}, callbacks=callbacks))
    found = [record.metrics.get("evaluate/return_mean") for record in records]
    assert found == [None, 3.0, None, 3.0, 3.0]
    assert records[1].metrics["evaluate/episodes"] == 4.0 and records[1].metrics["evaluate/length_mean"] == 3.0


def test_evaluations_of_the_same_policy_are_the_same():
    trainer = make_trainer()
    run(trainer, 2)
    evaluation = Evaluate(CartPole(3), GreedyActor(trainer.algorithm.policy), every=1, n_episode=5, seed=8)
    one, two = (evaluation.on_iteration(record_of(number), RUN).metrics for number in (1, 2))
    assert one == two and len(evaluation.result.returns) == 5
    other = Evaluate(CartPole(3), GreedyActor(trainer.algorithm.policy), every=1, n_episode=5, seed=9)
    assert other.on_iteration(record_of(1), RUN).metrics != one


def test_bad_evaluations_are_refused():
    with pytest.raises(TypeError, match="wants a VecEnv of its own, found str"):
        Evaluate("CartPole-v1", None)
    with pytest.raises(ValueError, match="n_episode is at least 1"):
        Evaluate(CartPole(1), None, n_episode=0)


# -- Log ---------------------------------------------------------------------------------------------------------------


def test_log_hands_every_number_to_every_logger():
    one, two = Memory(), Memory()
    records = list(make_trainer(plan={"total_iterations": 5}, callbacks=[Log(one, two, every=2)]))
    assert one.rows == two.rows and [step for step, _ in one.rows] == [64, 128, 160]
    _, numbers = one.rows[0]
    assert numbers == records[1].numbers()
    assert numbers["progress/iteration"] == 2.0 and numbers["time/steps_per_second"] > 0 and "train/kl" in numbers


def test_a_row_has_the_time_since_the_row_before_and_what_callbacks_took():
    now, rows = iter([10.0, 13.0, 20.0]), Memory()
    log = Log(rows, clock=lambda: next(now))
    for number in (1, 2):
        record = record_of(number).with_seconds({"evaluation": 0.5})
        assert log.on_iteration(record, RUN).metrics == {}, "times are no metrics: those of equal runs are equal"
    log.close()
    assert [numbers["time/iteration_seconds"] for _, numbers in rows.rows] == [3.0, 7.0]
    assert [numbers["time/evaluation_seconds"] for _, numbers in rows.rows] == [0.5, 0.5]


def test_log_tells_its_loggers_where_a_resumed_run_goes_on():
    first = make_trainer(callbacks=[Log(Memory(), every=2)])
    run(first, 3)
    again = Memory()
    second = make_trainer(weights=5, callbacks=[Log(again, every=2)])
    second.load_state_dict(first.state_dict())
    assert again.resumed_at == [96], "the third record counts, although it was not logged"
    run(second, 1)
    assert [step for step, _ in again.rows] == [128]


def test_log_wants_loggers():
    with pytest.raises(TypeError, match=r"Log wants loggers, found str; derive it from striderl.loggers.Logger"):
        Log("file.jsonl")
    with pytest.raises(ValueError, match="every is at least 1"):
        Log(every=0)


# -- Stop --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_stop_ends_the_run_after_the_iteration_and_keeps_the_reason():
    watch = Watch()
    trainer = make_trainer(callbacks=[Stop(Budget(iterations=3)), watch])
    assert len(list(trainer)) == 3 and trainer.finished
    assert trainer.stop_reason == "budget of 3 iterations is used up"
    assert len(watch.seen) == 3, "those behind see the last record too"
    assert list(trainer) == []
    resumed = make_trainer()
    resumed.load_state_dict(trainer.state_dict())
    assert resumed.finished
    resumed.go_on()
    assert len(list(resumed)) == 17


def reasons(rule, values):
    """What the rule says to records whose metric 'm' has these values; None: the record has no such metric."""
    metrics = [{} if value is None else {"m": value} for value in values]
    return [rule.reason(record_of(number, **numbers)) for number, numbers in enumerate(metrics, 1)]


@pytest.mark.parametrize(
    ("limits", "first"),
    # each record: one iteration, 10 env steps, 2.5 seconds
    [({"iterations": 4}, 4), ({"env_steps": 35}, 4), ({"seconds": 7.0}, 3), ({"iterations": 9, "env_steps": 20}, 2)],
)
def test_budget(limits, first):
    found = reasons(Budget(**limits), [None] * 6)
    assert [bool(reason) for reason in found] == [number >= first for number in range(1, 7)]


def test_budget_counts_seconds_of_resumed_parts():
    one, two = Budget(seconds=7.0), Budget(seconds=7.0)
    assert not any(reasons(one, [None, None]))
    two.load_state_dict(one.state_dict())
    assert two.reason(record_of(3))


def test_threshold():
    assert reasons(Threshold("m", 5.0), [1, 4.9, 5.0]) == ["", "", "m = 5 >= 5"]
    assert reasons(Threshold("m", 0.1, mode="min"), [0.2, 0.1]) == ["", "m = 0.1 <= 0.1"]
    # twice in a row, among the records that have it; a NaN is no success
    found = reasons(Threshold("m", 5.0, times=2), [5, 4, 6, None, 7])
    assert [bool(reason) for reason in found] == [False, False, False, False, True]
    assert not any(reasons(Threshold("m", 5.0), [float("nan"), None]))


def test_plateau():
    # best 3 at the third value; then 3 and 2 are no better, and the second of them is one too many
    found = reasons(Plateau("m", patience=2), [1, 2, 3, None, 3, 2])
    assert [bool(reason) for reason in found] == [False] * 5 + [True]
    assert "better than 3" in found[-1]
    found = reasons(Plateau("m", patience=1, min_delta=0.5), [1.0, 1.4])
    assert found[1], "0.4 is not enough"
    found = reasons(Plateau("m", patience=2, mode="min"), [3, 2, 1, float("nan"), 5])
    assert [bool(reason) for reason in found] == [False] * 4 + [True]


def test_rules_go_on_from_saved_state():
    for make in (lambda: Plateau("m", patience=3), lambda: Threshold("m", 1.0, times=3)):
        values = [2, 2, 2, 2, 2]
        whole, first, second = Stop(make()), Stop(make()), Stop(make())
        expected = [whole.on_iteration(record_of(n, m=v), RUN).stop for n, v in enumerate(values, 1)]
        found = [first.on_iteration(record_of(n, m=v), RUN).stop for n, v in enumerate(values[:2], 1)]
        second.load_state_dict(first.state_dict())
        found += [second.on_iteration(record_of(n, m=v), RUN).stop for n, v in enumerate(values[2:], 3)]
        assert found == expected and any(found)


def test_a_trial_is_told_and_may_prune():
    class Trial:
        def __init__(self):
            self.reported = []

        def report(self, value, step):
            self.reported.append((step, value))

        def should_prune(self):
            return len(self.reported) == 3

    trial = Trial()
    trainer = make_trainer(callbacks=[Stop(Prune(trial, "train/kl"))])
    records = list(trainer)
    assert trainer.stop_reason == Prune.REASON and len(records) == 3
    assert trial.reported == [(record.iteration, record.metrics["train/kl"]) for record in records]


def test_bad_rules_are_refused():
    with pytest.raises(TypeError, match="rules with reason"):
        Stop(5)
    with pytest.raises(ValueError, match="at least one positive limit"):
        Budget()
    with pytest.raises(ValueError, match="mode is 'max' or 'min', found 'maximum'"):
        Plateau("m", patience=1, mode="maximum")
    with pytest.raises(ValueError, match="patience >= 1"):
        Plateau("m", patience=0)


# -- Save --------------------------------------------------------------------------------------------------------------


def test_save_every_best_and_last():
    kept = {}
    save = Save(lambda state, name: kept.update({name: state}), every=2, best="train/kl", mode="min")
    records = list(make_trainer(plan={"total_iterations": 5}, callbacks=[save]))
    assert set(kept) == {"iteration_2", "iteration_4", "best", "last"}
    best = min(records, key=lambda record: record.metrics["train/kl"])
    assert kept["best"]["iteration"] == best.iteration and save.best_value == best.metrics["train/kl"]
    assert kept["last"]["iteration"] == 5 and kept["iteration_2"]["phase"] == "collect"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "gru"])
def test_what_was_saved_goes_on_bit_for_bit(kind):
    kept = {}

    def callbacks(policy):
        return [
            Evaluate(CartPole(2), GreedyActor(policy), every=3, n_episode=2),
            Stop(Plateau("train/entropy", patience=9)),
            Save(lambda state, name: kept.setdefault(name, state), every=4, best="evaluate/return_mean"),
        ]

    whole = make_trainer(kind, callbacks=callbacks)
    expected = run(whole, 10)
    resumed = make_trainer(kind, seed=3, weights=5, callbacks=callbacks)
    resumed.load_state_dict(kept["iteration_4"])
    found = run(resumed, 6)
    assert [record.iteration for record in found] == [5, 6, 7, 8, 9, 10]
    assert [dict(record.metrics) for record in found] == [dict(record.metrics) for record in expected[4:]]
    assert same_state(whole, resumed)


def test_last_is_saved_when_a_run_is_stopped():
    kept = []
    save = Save(lambda state, name: kept.append((name, state["iteration"], state["stop_reason"])))
    list(make_trainer(callbacks=[Stop(Budget(iterations=2)), save]))
    assert kept == [("last", 2, "budget of 2 iterations is used up")]


def test_states_of_callbacks_find_their_owners(caplog):
    first = make_trainer(callbacks=[Watch(), Watch(), Stop(Budget(iterations=9))])
    run(first, 3)
    other = [Watch(), Watch()]
    second = make_trainer(callbacks=other)
    with caplog.at_level(logging.WARNING):
        second.load_state_dict(first.state_dict())
    assert [len(watch.seen) for watch in other] == [3, 3]
    assert "had a callback Stop that this one has not" in caplog.text
    assert next(second).iteration == 4


def test_bad_saves_are_refused():
    with pytest.raises(TypeError, match=r"wants a function save\(state, name\), found str"):
        Save("folder")
    with pytest.raises(ValueError, match="mode is 'max' or 'min'"):
        Save(print, mode="best")


# -- Progress ----------------------------------------------------------------------------------------------------------


def test_progress_estimates_what_is_left():
    reports = []
    progress = Progress(reports.append, every=2)
    for number in range(1, 5):
        progress.on_iteration(record_of(number), SimpleNamespace(ending=False, remaining_iterations=10 - number))
    assert [report.iteration for report in reports] == [2, 4]
    # 2.5 seconds each, 6 to go
    assert reports[1].elapsed_seconds == pytest.approx(10.0)
    assert reports[1].remaining_seconds == pytest.approx(15.0)
    assert reports[1].steps_per_second == pytest.approx(4.0)
    resumed = Progress(reports.append)
    resumed.load_state_dict(progress.state_dict())
    resumed.on_iteration(record_of(5), SimpleNamespace(ending=False, remaining_iterations=None))
    assert reports[-1].elapsed_seconds == pytest.approx(12.5) and reports[-1].remaining_seconds is None


def test_progress_goes_to_the_log_and_nowhere_else(caplog, capsys):
    with caplog.at_level(logging.INFO):
        run(make_trainer(callbacks=[Progress()]), 1)
    assert "iteration 1, 32 steps" in caplog.text and "s to go" in caplog.text
    assert capsys.readouterr() == ("", "")


def test_progress_shows_the_time_to_go_on_a_console():
    shown = io.StringIO()
    progress = Progress(ConsoleLogger(title="cartpole", stream=shown), every=2)
    for number in range(1, 5):
        progress.on_iteration(record_of(number), SimpleNamespace(ending=False, remaining_iterations=100 - number))
    progress.close()
    # 2.5 seconds each: 98 to go are 245 s, 96 to go are 240 s
    assert shown.getvalue().splitlines() == [
        "cartpole, iteration 2/100, 20 steps, 4 steps/s, 0:05, 4:05 to go",
        "cartpole, iteration 4/100, 40 steps, 4 steps/s, 0:10, 4:00 to go",
    ]
    with pytest.raises(TypeError, match="a console or a function of a report, found int"):
        Progress(5)


def test_evaluation_by_env_steps():
    evaluation = Evaluate(
        CartPole(1), GreedyActor(make_trainer().algorithm.policy), every_steps=50, n_episode=1, at_end=False
    )
    going_on = SimpleNamespace(ending=False)
    # 32 steps per iteration: 50 are complete after 64, 100 after 128, 150 after 160
    due = [
        steps
        for iteration, steps in enumerate(range(32, 193, 32), start=1)
        if evaluation.on_iteration(
            Record(iteration=iteration, env_steps=steps, num_updates=0, num_steps=32), going_on
        ).metrics
    ]
    assert due == [64, 128, 160]


@pytest.mark.parametrize("rule", [Threshold("evaluate/retrun", 5.0), Plateau("evaluate/retrun", patience=3)])
def test_a_rule_says_once_that_its_metric_does_not_come(rule, caplog):
    for number in range(450):
        assert rule.reason(record_of(number, **{"evaluate/return": 9.0, "train/kl": 0.1})) == ""
        assert len(caplog.records) == (number >= 199)
    assert "has no metric 'evaluate/retrun'. Did you mean 'evaluate/return'?" in caplog.text


@pytest.mark.parametrize("metric", ["m", ""])
def test_a_rule_whose_metric_comes_now_and_then_or_is_none_says_nothing(metric, caplog):
    rule = Threshold(metric, 5.0)
    for number in range(450):
        rule.reason(record_of(number, **({"m": 1.0} if number == 150 else {"other": 2.0})))
    assert not caplog.records
