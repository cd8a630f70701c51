"""Sweeps: trials, seeds and the best config; joining and resuming; pruning, fronts, populations; early mistakes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

optuna = pytest.importorskip("optuna", reason="sweeps need the extra 'tune'")

from striderl.checkpoint.store import CheckpointStore  # noqa: E402
from striderl.cli.main import main  # noqa: E402
from striderl.data import tree  # noqa: E402
from striderl.recipes.table import recipe  # noqa: E402
from striderl.training.experiment.run_config import read_run_config  # noqa: E402
from striderl.training.experiment.run_folder import read_config_file  # noqa: E402
from striderl.training.population import parent_of, perturbed, sampled  # noqa: E402
from striderl.training.sweep import Sweep, SweepSettings, distributions_of, new_sweep_folder  # noqa: E402

TINY = [
    *("--env.num-envs", "2", "--plan.num-steps-per-env", "8", "--plan.total-steps", "64", "--stop.metric", ""),
    *("--evaluation.num-episodes", "1", "--evaluation.every", "2", "--policy.actor-hidden-dims", "4"),
    *("--policy.critic-hidden-dims", "4", "--algorithm.num-mini-batches", "1", "--algorithm.num-learning-epochs", "1"),
]
RATES = "algorithm.learning-rate=1e-4:1e-2:log"


@pytest.fixture(autouse=True)
def threads():
    """Runs set torch's threads for their process; other tests get theirs back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def command(root: Path, *words: str, space=(RATES,)) -> list[str]:
    return ["sweep", "cartpole", "--space", *space, *TINY, "--sweeps", str(root), "--name", "one", *words]


def study_of(folder: Path):
    """What anyone who has Optuna reads from the folder."""
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "journal.log"))
    return optuna.load_study(study_name=folder.name, storage=optuna.storages.JournalStorage(backend))


def last_row(run: Path) -> dict:
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


def state_of(run: Path):
    return CheckpointStore(run / "checkpoints").load("last").state["algorithm"]


# -- trials ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep of three trials with two seeds each."""
    root = tmp_path_factory.mktemp("sweeps")
    space = (RATES, "algorithm.gamma=0.9,0.99", "algorithm.num-learning-epochs=1:2")
    assert main(command(root, "--trials", "3", "--seeds", "2", space=space)) == 0
    return root / "one"


@pytest.mark.slow
def test_the_value_of_a_trial_is_the_mean_of_its_seeds(swept):
    trials = study_of(swept).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3
    for trial in trials:
        runs = [swept / "trials" / f"{trial.number:04d}" / f"seed_{seed}" for seed in (0, 1)]
        found = [last_row(run)["evaluate/return_mean"] for run in runs]
        assert trial.value == pytest.approx(sum(found) / 2)
        for seed, config in enumerate(map(read_run_config, runs)):
            assert config.seed == seed and config.algorithm.learning_rate == trial.params["algorithm.learning_rate"]
            assert config.algorithm.gamma == trial.params["algorithm.gamma"]
            assert config.algorithm.num_learning_epochs == trial.params["algorithm.num_learning_epochs"]


@pytest.mark.slow
def test_the_best_is_a_config_that_train_accepts(swept, tmp_path):
    best = study_of(swept).best_trial
    config = read_config_file(swept / "best.json")
    assert config.algorithm.learning_rate == best.params["algorithm.learning_rate"]
    assert config.logging.console == recipe("cartpole").logging.console, "only trials are silent"
    words = ["--plan.total-steps", "16", "--runs", str(tmp_path), "--name", "again", "--logging.console", "off"]
    assert main(["train", "--config", str(swept / "best.json"), *words]) == 0
    trained = read_run_config(tmp_path / "cartpole" / "again")
    assert trained.algorithm == config.algorithm and trained.plan.total_steps == 16


@pytest.mark.slow
def test_the_same_command_chooses_the_same_settings(swept, tmp_path):
    # also where it was stopped and resumed in between: settings depend on the seed and the number of the trial
    space = (RATES, "algorithm.gamma=0.9,0.99", "algorithm.num-learning-epochs=1:2")
    assert main(command(tmp_path, "--trials", "1", "--seeds", "2", space=space)) == 0
    assert main(["sweep", "--resume", str(tmp_path / "one"), "--trials", "2"]) == 0
    ours, theirs = study_of(swept).trials[:2], study_of(tmp_path / "one").trials
    assert [trial.params for trial in ours] == [trial.params for trial in theirs]
    assert [trial.value for trial in ours] == [trial.value for trial in theirs]


@pytest.mark.slow
def test_a_front_of_two_metrics(tmp_path):
    words = ["--trials", "4", "--metrics", "evaluate/return_mean:max", "train/entropy:min"]
    assert main(command(tmp_path, *words)) == 0
    trials = study_of(tmp_path / "one").trials
    front = {
        trial.number
        for trial in trials
        if not any(
            other.values != trial.values and other.values[0] >= trial.values[0] and other.values[1] <= trial.values[1]
            for other in trials
        )
    }
    assert {path.name for path in (tmp_path / "one").glob("best*.json")} == {f"best_trial_{n}.json" for n in front}


def test_a_bad_trial_is_pruned_by_its_evaluations(tmp_path):
    settings = SweepSettings(space={"algorithm.gamma": [0.9]}, trials=6)
    base = recipe_of(TINY)
    sweep = Sweep(new_sweep_folder(tmp_path / "one", settings, base), settings, base, lambda params: base)
    for _ in range(5):  # others were at 1000 after 32 steps, where no policy of these few can be
        sweep.study.add_trial(
            optuna.trial.create_trial(
                params={"algorithm.gamma": 0.9},
                distributions=sweep.distributions,
                value=1000.0,
                intermediate_values={32: 1000.0, 64: 1000.0},
            )
        )
    assert sweep.work() == 0
    pruned = study_of(tmp_path / "one").trials[-1]
    assert pruned.state.name == "PRUNED" and list(pruned.intermediate_values) == [32]
    assert last_row(tmp_path / "one" / "trials" / "0005" / "seed_0")["step"] == 32


def recipe_of(words):
    from striderl.cli.train_flags import overridden

    return overridden(recipe("cartpole"), list(words), prog="test")


# -- several processes, and ends ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_processes_take_different_trials_and_orphans(tmp_path):
    settings = SweepSettings(space={"algorithm.gamma": {"low": 0.9, "high": 0.99}}, trials=2)
    base = recipe_of(TINY)
    folder = new_sweep_folder(tmp_path / "one", settings, base)
    one, other = (Sweep(folder, settings, base, lambda params: base) for _ in range(2))
    first, second = one.claim(), other.claim()
    assert {first.trial.number, second.trial.number} == {0, 1}
    assert one.claim() is None and other.claim() is None, "there are as many trials as were asked for"
    first.lock.release()  # as the kernel does when a process ends
    found = other.claim()
    assert found.trial.number == first.trial.number and found.params == first.params


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_that_was_killed_ends_like_one_that_was_not(tmp_path, monkeypatch, number):
    ends = ["--callbacks", "sweep_parts:Ends", "--checkpoints.every", "1", "--trials", "2"]
    marker = tmp_path / "marker"
    monkeypatch.setenv("STRIDERL_TEST_MARKER", str(marker))
    monkeypatch.setenv("STRIDERL_TEST_SIGNAL", str(int(number)))
    marker.touch()
    assert main(command(tmp_path / "whole", *ends)) == 0
    marker.unlink()
    words = command(tmp_path / "killed", *ends)
    if number == signal.SIGKILL:
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path}
        killed = subprocess.run([sys.executable, "-m", "striderl", *words], env=env, capture_output=True, text=True)
        assert killed.returncode == -9, killed.stderr
    else:
        assert main(words) == 143
    assert marker.exists() and study_of(tmp_path / "killed" / "one").trials[0].state.name == "RUNNING"
    assert main(["sweep", "--resume", str(tmp_path / "killed" / "one")]) == 0
    for trial, wanted in zip(*(study_of(tmp_path / name / "one").trials for name in ("killed", "whole")), strict=True):
        assert (trial.params, trial.value, trial.state) == (wanted.params, wanted.value, wanted.state)
    runs = [tmp_path / name / "one" / "trials" / "0000" / "seed_0" for name in ("killed", "whole")]
    assert tree.equal(*(state_of(run) for run in runs)), "the run went on from its checkpoint, bit for bit"


def test_a_sweep_whose_trials_all_fail_ends_with_the_reason(tmp_path, capsys):
    assert main(command(tmp_path, "--trials", "9", "--callbacks", "sweep_parts:Fails")) == 1
    assert "3 trials have failed and none has succeeded; the last one: the simulator" in capsys.readouterr().err
    assert [trial.state.name for trial in study_of(tmp_path / "one").trials] == ["FAIL"] * 3


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "words", "message"),
    [
        (["algorithm.learning-rat=1:2"], [], "Did you mean --algorithm.learning-rate"),
        (["algorithm.gamma=0.9:1.5"], [], "between 0 and 1"),
        (["policy.activation=elu,swosh"], [], "Did you mean 'swish'"),
        (["algorithm.num-mini-batches=1:1000"], [], "cannot be made of 16 samples"),
        (["algorithm.gamma=0.99:0.9"], [], "space: algorithm.gamma"),
        (["algorithm.gamma=0.9:0.99:lgo"], [], "'log' or a step, found 'lgo'"),
        (["nothing.toml"], [], "neither SETTING=RANGE nor a file"),
        ([RATES], ["--metrics", "evaluate/return_mean:mx"], "Did you mean 'max'"),
        ([RATES], ["--metrics", "a", "b", "--pruner", "median"], "no effect with several metrics"),
        ([RATES], ["--scheduler", "pbt", "--trials", "4"], "an interval in env steps"),
        ([RATES], ["--interval", "5"], "no effect without the scheduler 'pbt'"),
        ([RATES], ["--trials", "many"], "--trials is a whole number"),
        ([RATES], ["--jobs", "2"], "--jobs has no effect without --slurm"),
        ([], [], "at least one setting"),
    ],
)
def test_mistakes_are_named_before_the_first_trial(space, words, message, tmp_path, capsys):
    assert main(command(tmp_path, *words, space=space)) == 2
    assert message in capsys.readouterr().err
    assert message.startswith("--jobs") or not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_unknown_metric_ends_the_first_trial_with_a_suggestion(tmp_path, capsys):
    assert main(command(tmp_path, "--metrics", "train/entropi:max", "--trials", "5")) == 1
    assert "Did you mean 'train/entropy'" in capsys.readouterr().err
    assert main(command(tmp_path / "other", "--metrics", "evaluate/return_men:max", "--trials", "5")) == 1
    assert "evaluate/return_mean" in capsys.readouterr().err
    assert not list((tmp_path / "other").rglob("metrics.jsonl")), "found out before anything was trained"


def test_a_space_from_a_file(tmp_path, capsys):
    (tmp_path / "space.toml").write_text(
        'policy.activation = ["elu", "tanh"]\n[algorithm]\ngamma = {low = 0, high = 1}\nlam = "0.9:0.99"\n'
    )
    assert main(command(tmp_path / "sweeps", "--trials", "1", space=(str(tmp_path / "space.toml"),))) == 0
    saved = json.loads((tmp_path / "sweeps" / "one" / "sweep.json").read_text())["space"]
    assert saved["policy.activation"] == ["elu", "tanh"] and saved["algorithm.lam"] == {"low": 0.9, "high": 0.99}
    assert isinstance(saved["algorithm.gamma"]["low"], float), "gamma is a real number, so its range is one of reals"


# -- populations -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    """Four members, three generations of 32 steps."""
    root = tmp_path_factory.mktemp("population")
    words = ["--scheduler", "pbt", "--interval", "32", "--trials", "4", "--plan.total-steps", "96"]
    assert main(command(root, *words)) == 0
    return root / "one"


def run_of(population: Path, number: int) -> Path:
    return population / "trials" / f"{number:04d}" / "seed_0"


@pytest.mark.slow
def test_members_go_on_or_copy_the_best(population):
    trials = study_of(population).trials
    assert [trial.user_attrs["generation"] for trial in trials] == [0] * 4 + [1] * 4 + [2] * 4
    for generation in (1, 2):
        before = {t.user_attrs["member"]: t for t in trials if t.user_attrs["generation"] == generation - 1}
        best = max(before.values(), key=lambda t: (t.value, -t.user_attrs["member"]))
        worst = min(before.values(), key=lambda t: (t.value, -t.user_attrs["member"]))
        for trial in trials[4 * generation : 4 * generation + 4]:
            same = before[trial.user_attrs["member"]]
            copies = same is worst and worst.value != best.value
            parent = best if copies else same
            assert trial.user_attrs["parent"] == parent.number
            assert (trial.params == parent.params) is not copies
            rows = [
                json.loads(line)
                for line in (run_of(population, trial.number) / "metrics.jsonl").read_text().splitlines()
            ]
            assert [row["step"] for row in rows] == list(range(16, 32 * generation + 33, 16)), "with the parent's past"
            rates = {round(row["train/learning_rate"], 9) for row in rows[2 * generation :]}
            assert rates == {round(torch.tensor(trial.params["algorithm.learning_rate"]).item(), 9)}


@pytest.mark.slow
def test_a_member_that_goes_on_is_the_run_that_was_never_cut(population, tmp_path):
    trials = study_of(population).trials
    parents = {trial.number: trial.user_attrs["parent"] for trial in trials}
    straight = next(
        trial
        for trial in trials[8:]
        if trial.params == trials[parents[trial.number]].params == trials[parents[parents[trial.number]]].params
    )
    config = read_run_config(run_of(population, straight.number))
    words = ["--algorithm.learning-rate", repr(config.algorithm.learning_rate), "--plan.total-steps", "96"]
    words += ["--seed", str(straight.user_attrs["seed"]), "--logging.console", "off"]
    assert main(["train", "cartpole", *TINY, *words, "--runs", str(tmp_path), "--name", "whole"]) == 0
    assert tree.equal(state_of(run_of(population, straight.number)), state_of(tmp_path / "cartpole" / "whole"))


@pytest.mark.slow
def test_the_schedule_of_the_best_member_is_written(population):
    found = json.loads((population / "best_schedule.json").read_text())
    assert [part["from_step"] for part in found["schedule"]] == [0, 32, 64]
    best = read_config_file(population / "best.json")
    assert best.algorithm.learning_rate == found["schedule"][-1]["settings"]["algorithm.learning_rate"]
    assert best.plan.total_steps == 96 and Path(found["run"], "checkpoints").is_dir()
    left = CheckpointStore(run_of(population, 0) / "checkpoints").steps()
    assert left == [], "no later segment starts from generation 0"


def test_settings_that_cannot_change_in_a_run_are_refused(tmp_path, capsys):
    words = ["--scheduler", "pbt", "--interval", "32", "--trials", "4"]
    assert main(command(tmp_path, *words, space=("policy.actor-hidden-dims=4,8",))) == 1
    assert "policy.actor_hidden_dims cannot change there" in capsys.readouterr().err


@given(st.integers(0, 2**32), st.floats(1e-4, 1.0), st.integers(1, 50), st.sampled_from("abc"))
def test_perturbed_settings_are_other_ones_in_their_range(seed, rate, count, choice):
    space = {"rate": {"low": 1e-4, "high": 1.0, "log": True}, "count": {"low": 1, "high": 50}, "choice": list("abc")}
    space["grid"] = {"low": 0.0, "high": 1.0, "step": 0.25}
    kinds, chance = distributions_of(space), random.Random(seed)
    params = {"rate": rate, "count": count, "choice": choice, "grid": 0.5}
    for found in (perturbed(params, kinds, chance), {name: sampled(kind, chance) for name, kind in kinds.items()}):
        assert 1e-4 <= found["rate"] <= 1.0 and found["choice"] in "abc"
        assert isinstance(found["count"], int) and 1 <= found["count"] <= 50
        assert found["grid"] in (0.0, 0.25, 0.5, 0.75, 1.0)


def test_the_worst_quarter_copies_the_best_quarter():
    scores = {member: float(member) for member in range(8)}
    chance = random.Random(0)
    assert [parent_of(member, scores, chance) for member in range(2, 8)] == list(range(2, 8))
    assert {parent_of(member, scores, chance) for member in (0, 1) for _ in range(50)} == {6, 7}
    assert parent_of(0, dict.fromkeys(range(4), 1.0), chance) == 0, "nothing is copied where all are equal"


# -- resuming with other settings --------------------------------------------------------------------------------------


def test_a_resumed_run_learns_with_the_rate_that_it_is_given(tmp_path):
    words = ["--runs", str(tmp_path), "--name", "one", "--logging.console", "off", "--algorithm.learning-rate", "1e-3"]
    assert main(["train", "cartpole", *TINY, *words]) == 0
    run = tmp_path / "cartpole" / "one"
    more = ["--plan.total-steps", "96", "--algorithm.learning-rate", "5e-4"]
    assert main(["resume", str(run), *more]) == 0
    rates = [json.loads(line)["train/learning_rate"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rates == pytest.approx([1e-3] * 4 + [5e-4] * 2)


# -- trust -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A module that leaves a mark where it is imported, in a folder of modules, and a home without records."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(str(tmp_path))
    mark = tmp_path / "imported"
    source = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\ndef called():\n    return lambda record: None\n"
    (tmp_path / "planted_by_a_sweep.py").write_text(source)
    yield mark
    sys.modules.pop("planted_by_a_sweep", None)


def small_sweep(root: Path, space) -> Path:
    settings = SweepSettings(space=space, trials=1, metrics=("evaluate/return_mean",), modes=("max",), pruner="none")
    base = read_config_of(TINY)
    return new_sweep_folder(root / "one", settings, base)


def read_config_of(words):
    from striderl.cli.train_flags import overridden

    return overridden(recipe("cartpole", "ppo"), list(words), prog="striderl train cartpole")


@pytest.mark.parametrize(
    "space",
    [
        {"callbacks": ["planted_by_a_sweep:called"]},
        {"terms": ["planted_by_a_sweep:Term"]},
        {"num_threads": ["1 --callbacks planted_by_a_sweep:called"]},
        {"callbacks=planted_by_a_sweep:called": [""]},
    ],
)
def test_a_space_from_elsewhere_imports_nothing_without_trust(planted, tmp_path, capsys, space):
    folder = small_sweep(tmp_path, {"algorithm.gamma": [0.9, 0.95]})
    (folder / "sweep.json").write_text(json.dumps({**json.loads((folder / "sweep.json").read_text()), "space": space}))
    assert main(["sweep", "--resume", str(folder)]) == 2
    said = capsys.readouterr().err
    assert "sweep.json' names the module" in said and "--trust" in said and not planted.exists()
    main(["sweep", "--resume", str(folder), "--trust"])
    assert "not made by this user" not in capsys.readouterr().err


def test_the_space_of_an_own_sweep_needs_no_trust_also_when_it_is_made_longer(planted, tmp_path):
    folder = small_sweep(tmp_path, {"callbacks": ["planted_by_a_sweep:called"]})
    assert main(["sweep", "--resume", str(folder)]) == 0 and planted.exists()
    assert main(["sweep", "--resume", str(folder), "--trials", "2"]) == 0
    assert main(["sweep", "--resume", str(folder)]) == 0


def test_a_file_with_a_space_names_a_module_only_with_trust(planted, tmp_path, capsys):
    file = tmp_path / "space.json"
    file.write_text(json.dumps({"callbacks": ["planted_by_a_sweep:called"], "algorithm": {"gamma": "0.9:0.99"}}))
    words = command(tmp_path / "sweeps", "--trials", "1", space=(str(file),))
    assert main(words) == 2 and not planted.exists()
    said = capsys.readouterr().err
    assert "space.json' names the module 'planted_by_a_sweep'" in said and "--trust" in said and "0.9" not in said
    assert main([*words, "--trust"]) == 0 and planted.exists()


def test_a_journal_with_settings_that_the_space_does_not_have_is_refused(planted, tmp_path, capsys):
    folder = small_sweep(tmp_path, {"algorithm.gamma": [0.9, 0.95]})
    assert main(["sweep", "--resume", str(folder)]) == 0
    kind = optuna.distributions.CategoricalDistribution(("planted_by_a_sweep:called",))
    study_of(folder).add_trial(
        optuna.trial.create_trial(params={"callbacks": kind.choices[0]}, distributions={"callbacks": kind}, value=1e6)
    )
    assert main(["sweep", "--resume", str(folder), "--trials", "3"]) == 1
    assert "has settings that the space of sweep.json does not have" in capsys.readouterr().err and not planted.exists()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_journal_that_is_no_plain_file_is_refused(tmp_path, capsys, kind):
    folder = small_sweep(tmp_path, {"algorithm.gamma": [0.9, 0.95]})
    other = tmp_path / "diary.txt"
    other.write_text("")
    os.mkfifo(folder / "journal.log") if kind == "pipe" else (folder / "journal.log").symlink_to(other)
    assert main(["sweep", "--resume", str(folder)]) == 1
    assert f"journal.log' is refused: it is a {kind}" in capsys.readouterr().err and other.read_text() == ""


def test_forgotten_checkpoints_of_a_population_take_no_other_files_along(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save({"weight": torch.zeros(1)}, step=1)
    noted = store.save({"weight": torch.zeros(1)}, step=2)
    (tmp_path / "checkpoints" / "notes.txt").write_text("mine")
    (noted / "notes.txt").write_text("mine")
    store.delete_all()
    assert store.steps() == [2] and {path.read_text() for path in tmp_path.rglob("notes.txt")} == {"mine"}
    assert len(list(tmp_path.rglob("notes.txt"))) == 2
