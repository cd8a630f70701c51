"""Workers of Ray: what they collect equals one process, dead ones are replaced, staleness is bounded, errors are plain.

Most tests run the learner's side with a Ray in one process (`fake_ray.py`), where deaths are planned. The last one runs
a cluster of several nodes of Ray itself (`ray_cluster_program.py`), with the parts of `tools/worker_kills.py`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_ray import FakeRay, ObjectStoreFullError

from striderl.checkpoint.store import CheckpointStore
from striderl.cli.main import main
from striderl.cli.train_flags import overridden
from striderl.collect.schedules import WorkerSettings
from striderl.data import tree
from striderl.recipes.table import recipe
from striderl.training.experiment import worker_fleet as fleet_module
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_folder import RunFolder, new_run_folder
from striderl.training.experiment.worker_fleet import WorkersError, explained

ON_POLICY = [
    *("--env.num-envs", "4", "--plan.num-steps-per-env", "8", "--plan.total-steps", "192", "--stop.metric", ""),
    *("--evaluation.num-episodes", "2", "--evaluation.every", "3", "--policy.actor-hidden-dims", "4"),
    *("--policy.critic-hidden-dims", "4", "--logging.console", "off", "--checkpoints.every", "2"),
]
REPLAY = [
    *("--env.num-envs", "4", "--plan.num-steps-per-env", "8", "--plan.train-every", "4", "--plan.total-steps", "256"),
    *("--plan.learning-starts", "64", "--plan.batch-size", "8", "--plan.buffer-size", "400", "--stop.metric", ""),
    *("--evaluation.num-episodes", "2", "--evaluation.every", "3", "--policy.critic-hidden-dims", "4"),
    *("--logging.console", "off", "--checkpoints.every", "2"),
]
RAY = ["--workers", "ray", "--num-workers", "2"]
AHEAD = [*RAY, "--workers.schedule", "asynchronous"]


@pytest.fixture(autouse=True)
def threads():
    """Runs set torch's threads for their process; other tests get theirs back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def config_of(algorithm: str, words: list[str]):
    words = [*(REPLAY if algorithm == "dqn" else ON_POLICY), *words]
    return overridden(recipe("cartpole", algorithm), words, prog="test")


def train(root: Path, name: str, config, monkeypatch, ray: FakeRay | None = None, stop_after: int = 0) -> Path:
    """Train a config with this Ray, or with none; returns the run's folder."""
    monkeypatch.setattr(fleet_module, "connect", lambda settings: (ray, False))
    folder = new_run_folder(config, root, name)
    run = Run(config, folder)
    if stop_after:
        while run.trainer.iteration < stop_after:
            run.trainer.advance()
        run.save()
        run.close()
    else:
        assert run.drive().exit_code == 0
    return folder.path


def resume(folder: Path, config, monkeypatch, ray: FakeRay) -> None:
    monkeypatch.setattr(fleet_module, "connect", lambda settings: (ray, False))
    run = Run(config, RunFolder(folder))
    assert run.restore()
    assert run.drive().exit_code == 0


def state_of(run: Path):
    return CheckpointStore(run / "checkpoints").load("last").state


def rows_of(run: Path) -> list[dict]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    own = ("time/", "collect/stale", "collect/workers")
    return [{name: value for name, value in row.items() if not name.startswith(own)} for row in rows]


# -- the synchronous schedule ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("ppo", []),
        ("ppo", ["--policy.kind", "gru", "--policy.memory-size", "4", "--policy.normalize-obs", "True"]),
        ("impala", []),
        ("dqn", []),
    ],
    ids=["ppo", "gru", "impala", "dqn"],
)
def test_workers_collect_what_one_process_collects(algorithm, words, tmp_path, monkeypatch):
    config = config_of(algorithm, words)
    local = train(tmp_path, "local", config, monkeypatch)
    shared = train(tmp_path, "ray", config_of(algorithm, [*words, *RAY]), monkeypatch, FakeRay())
    if "gru" in words:  # products of fewer rows differ in the last bits, as in every library
        close(shared, local)
        return
    assert tree.equal(state_of(shared)["algorithm"], state_of(local)["algorithm"])
    assert rows_of(shared) == rows_of(local), "metrics of episodes and evaluations too"
    if algorithm == "dqn":
        assert tree.equal(state_of(shared)["replay"], state_of(local)["replay"])


def close(shared: Path, local: Path) -> None:
    found = dict(tree.items(state_of(shared)["algorithm"]["policy"]))
    for path, wanted in tree.items(state_of(local)["algorithm"]["policy"]):
        torch.testing.assert_close(found[path], wanted, rtol=1e-3, atol=1e-4, msg=lambda text, path=path: path + text)


def dies_at(*calls):
    """Return a plan in which actors die in these rollouts, counted over all workers."""
    count = iter(range(10_000))

    def dies(actor, name):
        return name == "rollout" and next(count) in calls

    return dies


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_dead_worker_is_replaced_and_no_bit_differs(algorithm, tmp_path, monkeypatch):
    local = train(tmp_path, "local", config_of(algorithm, []), monkeypatch)
    ray = FakeRay(dies_at(0, 3, 4, 9))
    shared = train(tmp_path, "ray", config_of(algorithm, RAY), monkeypatch, ray)
    assert tree.equal(state_of(shared)["algorithm"], state_of(local)["algorithm"])
    assert rows_of(shared) == rows_of(local)
    last = json.loads((shared / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["collect/workers_replaced"] == 4


def test_a_worker_whose_nodes_die_again_and_again_is_not_to_blame(tmp_path, monkeypatch):
    def dies(actor, name):
        ray.lost_nodes += (found := plan(actor, name))
        return found

    plan, ray = dies_at(2, 4, 5, 6, 7), FakeRay(lambda actor, name: dies(actor, name))
    run = train(tmp_path, "ray", config_of("ppo", RAY), monkeypatch, ray)
    assert state_of(run)["env_steps"] == 192 and ray.lost_nodes == 5


@pytest.mark.slow
def test_a_run_with_workers_is_resumed_exactly(tmp_path, monkeypatch):
    config = config_of("ppo", RAY)
    whole = train(tmp_path, "whole", config, monkeypatch, FakeRay())
    stopped = train(tmp_path, "stopped", config, monkeypatch, FakeRay(), stop_after=3)
    resume(stopped, config, monkeypatch, FakeRay())
    assert tree.equal(state_of(stopped)["algorithm"], state_of(whole)["algorithm"])
    other = replace(config, workers=replace(config.workers, num_workers=4))
    with pytest.raises(ValueError, match="saved with 2 workers, found 4"):
        resume(stopped, other, monkeypatch, FakeRay())


def test_envs_that_do_not_divide_are_shared_as_evenly_as_possible(tmp_path, monkeypatch):
    local = train(tmp_path, "local", config_of("ppo", []), monkeypatch)
    shared = train(
        tmp_path, "ray", config_of("ppo", ["--workers", "ray", "--num-workers", "3"]), monkeypatch, FakeRay()
    )
    close(shared, local)


# -- the asynchronous schedule -----------------------------------------------------------------------------------------


def last_first(refs):
    return refs[::-1]


@pytest.mark.parametrize("dies", [dies_at(), dies_at(1, 2, 7)], ids=["alive", "dying"])
def test_impala_learns_from_workers_that_run_ahead(dies, tmp_path, monkeypatch):
    ray = FakeRay(dies)
    run = train(tmp_path, "ray", config_of("impala", [*AHEAD, "--plan.total-steps", "160"]), monkeypatch, ray)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # a batch is the rollout of one worker: 8 steps of 2 envs
    assert [row["step"] for row in rows] == list(range(16, 161, 16))
    assert max(row["collect/staleness_max"] for row in rows) >= 1, "workers act with older weights"
    assert any(row["train/ratio_mean"] != 1.0 for row in rows), "which V-trace corrects for"
    assert all(row["faults/skipped_updates"] == 0 for row in rows)


def test_rollouts_that_are_too_old_are_dropped_and_counted(tmp_path, monkeypatch):
    # three workers, of which Ray always returns the newest order first: one of them starves and gets old
    words = ["--workers", "ray", "--num-workers", "4", "--workers.schedule", "asynchronous"]
    words += ["--workers.batch-workers", "1", "--workers.max-staleness", "2"]
    turn = iter(range(1000))

    def order(refs):
        return refs[::-1] if next(turn) % 8 else refs

    run = train(tmp_path, "ray", config_of("impala", words), monkeypatch, FakeRay(order=order))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(row["collect/staleness_max"] for row in rows) <= 2
    assert rows[-1]["collect/stale_dropped"] > 0


def test_a_worker_that_finds_no_core_keeps_nobody_waiting(tmp_path, monkeypatch):
    # worker 0 dies in its first rollout; the one in its place, actor 2, gets no core: Ray never returns its calls
    def order(refs):
        return sorted(refs, key=lambda ref: ref.actor.number == 2)

    ray = FakeRay(dies_at(0), order=order)
    run = train(tmp_path, "ray", config_of("impala", AHEAD), monkeypatch, ray)
    assert state_of(run)["env_steps"] == 192
    assert not [name for number, name in ray.calls if number == 2], "rollouts and evaluations are those of worker 1"


def test_a_worker_that_dies_in_an_evaluation_is_replaced_once(tmp_path, monkeypatch):
    # its rollout, which was under way, is lost with it: that is no second death
    deaths = iter([True])
    ray = FakeRay(lambda actor, name: name == "evaluate" and next(deaths, False))
    run = train(tmp_path, "ray", config_of("impala", AHEAD), monkeypatch, ray)
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["collect/workers_replaced"] == 1 and state_of(run)["env_steps"] == 192


def test_no_worker_has_more_than_one_rollout_under_way(tmp_path, monkeypatch):
    seen = []
    ray = FakeRay(order=lambda refs: seen.append(len(refs)) or refs)
    train(tmp_path, "ray", config_of("impala", AHEAD), monkeypatch, ray)
    assert max(seen) == 2, "two workers, so at most two rollouts wait: that bounds memory and staleness"


@pytest.mark.parametrize("dies", [dies_at(), dies_at(5, 9)], ids=["alive", "dying"])
def test_replay_is_filled_by_workers_that_run_ahead(dies, tmp_path, monkeypatch):
    ray = FakeRay(dies, order=last_first)
    run = train(tmp_path, "ray", config_of("dqn", AHEAD), monkeypatch, ray)
    state = state_of(run)
    assert state["env_steps"] == 256 and int(state["replay"]["totals"].sum()) == 256


def test_a_worker_whose_state_is_lost_begins_new_episodes_and_the_replay_is_cut(tmp_path, monkeypatch):
    config = config_of("dqn", [*AHEAD, "--plan.total-steps", "160"])
    run = train(tmp_path, "ray", config, monkeypatch, FakeRay(), stop_after=2)
    # where workers run ahead their state is not saved: each begins anew, and its columns are cut there
    resume(run, config, monkeypatch, FakeRay())
    assert state_of(run)["env_steps"] >= 160


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "words", "message"),
    [
        ("ppo", AHEAD, "with the asynchronous schedule use impala"),
        ("impala", [*AHEAD, "--num-workers", "3"], "cannot be shared evenly by 3 workers"),
        ("ppo", [*RAY, "--num-workers", "9"], "4 envs cannot be shared by 9 workers"),
        ("ppo", [*RAY, "--terms", "rnd"], "without terms"),
        ("ppo", [*RAY, "--logging.video-every", "5"], "no videos"),
    ],
)
def test_what_workers_cannot_do_is_refused_before_they_start(algorithm, words, message, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=message):
        train(tmp_path, "ray", config_of(algorithm, words), monkeypatch)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-workers", "2"], "no effect without workers.kind"),
        (["--workers", "ray"], "num_workers is at least 1"),
        (["--workers", "rai", "--num-workers", "2"], "--workers.kind"),
        ([*RAY, "--workers.batch-workers", "1"], "no effect with the synchronous schedule"),
    ],
)
def test_mistakes_on_the_command_line(words, message, tmp_path, capsys):
    assert main(["train", "cartpole", *ON_POLICY, *words, "--runs", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "what"), [("striderl", "the source of striderl"), ("python", "Python")])
def test_a_worker_with_other_code_is_named(name, what, tmp_path, monkeypatch):
    here = {**fleet_module.running_code(), name: "another", "node": "here"}
    monkeypatch.setattr(fleet_module, "running_code", lambda: here)
    with pytest.raises(WorkersError, match=rf"worker 0 on .* another version of {what} .* install the same"):
        train(tmp_path, "ray", config_of("ppo", RAY), monkeypatch, FakeRay())


def test_a_worker_that_cannot_be_built_is_not_tried_again(tmp_path, monkeypatch):
    config = config_of("ppo", RAY)
    config = replace(config, env=replace(config.env, task="no_such_module:Env"))
    ray = FakeRay()
    with pytest.raises(WorkersError, match=r"worker 0 has failed: KeyError.*no_such_module"):
        train(tmp_path, "ray", config, monkeypatch, ray)
    assert ray.calls == [(0, "about")]


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_ends_the_run_which_can_be_resumed(tmp_path, monkeypatch):
    config = config_of("ppo", RAY)
    whole = train(tmp_path, "whole", config, monkeypatch, FakeRay())
    broken = FakeRay(dies_at(*range(8, 1000)))
    monkeypatch.setattr(fleet_module, "connect", lambda settings: (broken, False))
    folder = new_run_folder(config, tmp_path, "broken")
    outcome = Run(config, folder).drive()
    assert outcome.exit_code == 1 and outcome.saved and "worker 0 has failed: The actor died" in outcome.reason
    resume(folder.path, config, monkeypatch, FakeRay())
    assert tree.equal(state_of(folder.path)["algorithm"], state_of(whole)["algorithm"])


def test_a_ray_that_is_slow_to_start_is_started_once_more_and_then_named(monkeypatch, caplog):
    tried = []

    def init(**options):
        tried.append(options["num_cpus"])
        raise Exception("The current node timed out\nduring startup.")  # as Ray does, with no kind of its own

    slow = SimpleNamespace(init=init, is_initialized=lambda: False, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", slow)
    with pytest.raises(WorkersError, match="cannot start Ray on this machine: The current node timed out during"):
        fleet_module.connect(WorkerSettings(kind="ray", num_workers=2))
    assert tried == [2, 2] and "trying once more" in caplog.text


def test_a_full_object_store_names_what_to_change():
    said = explained(3, ObjectStoreFullError("The local object store is full"))
    assert "worker 3: Ray's object store is full" in said and "--object-store-memory" in said


def test_too_few_cores_are_a_warning(tmp_path, monkeypatch, caplog):
    train(tmp_path, "ray", config_of("ppo", RAY), monkeypatch, FakeRay(cores=1))
    assert "1 cores for 2 workers" in caplog.text


# -- with Ray itself ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_with_ray_itself_nodes_are_killed_and_join_and_bad_input_is_named():
    program = Path(__file__).parent / "ray_cluster_program.py"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["nodes"] == 1 and found["joined"] == 1 and found["replaced"] >= 1, found
    assert found["same"], "a node was lost, another one joined, and no bit differs"
    assert found["workers"] == 2 and not found["planted_same"], "a bug that was planted is found by the comparison"
    assert "lacks something that the run needs: FileNotFoundError" in found["dataset"], found["dataset"]
    assert re.search(r"worker \d on [\w.]+ ", found["dataset"]) and "nowhere" in found["dataset"]
    assert not found["imported_here"], "the learner does not import the simulator"
    assert "another version of the source of striderl" in found["code"], found["code"]
    assert "the learner: Ray's object store is full" in found["full"], found["full"]
