"""Compiling beside training: when functions switch to programs, what they compute then, and what goes wrong."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.collect.collector import Collector
from striderl.envs import make
from striderl.execution import background
from striderl.execution.background import MOST_PROGRAMS, ProgramRequest, Switch, built_with, cache_folder, graph_key
from striderl.execution.modes import Eager, Switching, mode_of
from striderl.policies.policy import Policy, PolicyConfig
from striderl.training.experiment.assembly import learner_switch, plan_switch, switch_iteration
from striderl.training.plans import OfflinePlan, OffPolicyPlan, OnPolicyPlan
from striderl.training.trainer import Trainer

PLAN = OnPolicyPlan(num_steps_per_env=8)


def trainer(switch=None, **settings):
    env = make("cartpole", num_envs=4)
    torch.manual_seed(0)
    policy = Policy(
        env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(32, 32), critic_hidden_dims=(32, 32))
    )
    with built_with(switch):
        algorithm = PPO(policy, PPOConfig(num_learning_epochs=1, num_mini_batches=2, **settings), mode="auto")
        return Trainer(algorithm, Collector(env, algorithm.actor()), PLAN, switch=switch)


def weights(made, iterations):
    """The weights after each of so many more iterations."""
    found = []
    for _ in range(iterations):
        next(made)
        found.append(torch.cat([each.detach().flatten() for each in made.algorithm.policy.parameters()]).clone())
    return found


def same(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other))


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The folder of two programs, compiled once for all tests of this module, and the weights of that run."""
    folder = tmp_path_factory.mktemp("programs")
    switch = Switch(3, folder)
    made = trainer(switch)
    found = weights(made, 6)
    made.close()
    assert switch.on and len(list(folder.glob("*.pt2"))) == len(switch.keys) == 2
    return folder, found


# -- the switch --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_until_the_switch_a_run_is_eager_and_then_it_is_compiled_to_rounding(programs):
    _, found = programs
    eager = weights(trainer(), 6)
    assert same(found[:3], eager[:3]) and not torch.equal(found[-1], eager[-1])
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(found, eager))


@pytest.mark.slow
def test_with_programs_of_an_earlier_run_the_bits_are_the_same(programs):
    folder, found = programs
    assert same(weights(trainer(Switch(3, folder)), 6), found)
    assert not same(weights(trainer(Switch(5, folder)), 6), found)  # the iteration of the switch decides


@pytest.mark.slow
@pytest.mark.parametrize("saved_at", [1, 2, 3, 5])
def test_a_run_that_is_resumed_before_or_after_the_switch_has_the_same_bits(programs, saved_at):
    folder, found = programs
    one, other = trainer(Switch(3, folder)), trainer(Switch(99, folder))
    before = weights(one, saved_at)
    other.load_state_dict(one.state_dict())
    assert same(before + weights(other, 6 - saved_at), found)
    assert other.switch.at == 3


def kill_at(place):
    """Let this process, which is a program of its own, end by SIGKILL when it comes to a place of the switch."""

    def killed(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    if place == "requested":  # one function is traced and sent to the compiler, the other is not
        ProgramRequest.start = killed
    elif place == "waiting":  # it is iteration 3, and the compiler is at work
        ProgramRequest.wait = killed
    elif place == "half loaded":  # acting is a program already, the update is not
        load, loaded = background.load_program, []

        def load_one(path):
            if loaded:
                killed()
            loaded.append(path)
            return load(path)

        background.load_program = load_one


def drive(folder, saved, place):
    """Run six iterations, saved after each; go on where a run before this one was killed."""
    kill_at(place)
    made, found = trainer(Switch(3, folder)), []
    if saved.exists():
        state, found = torch.load(saved)
        made.load_state_dict(state)
    while len(found) < 6:
        found += weights(made, 1)
        if place == "switched" and made.switch.on:
            os.kill(os.getpid(), signal.SIGKILL)  # compiled, and not saved
        torch.save((made.state_dict(), found), saved.with_suffix(".new"))
        saved.with_suffix(".new").replace(saved)
    made.close()


def drive_killed(folder, saved, place):
    """Drive in a new interpreter, which is killed; a fork of one with threads may block in torch."""
    words = [str(folder), str(saved), place, str(torch.get_num_threads())]
    return subprocess.run([sys.executable, __file__, *words], timeout=250).returncode


@pytest.mark.slow
@pytest.mark.parametrize("place", ["requested", "waiting", "half loaded", "switched"])
def test_a_run_killed_in_the_middle_of_the_switch_resumes_to_the_same_bits(programs, place, tmp_path):
    folder, found = programs
    own, saved = tmp_path / "programs", tmp_path / "state"
    shutil.copytree(folder, own)
    if place == "waiting":  # one program is still to be compiled
        max(own.glob("*.pt2")).unlink()
    assert drive_killed(own, saved, place) == -signal.SIGKILL
    assert len(torch.load(saved)[1]) == {"requested": 1}.get(place, 3)  # iterations that were saved before
    drive(own, saved, "")
    assert same(torch.load(saved)[1], found)


@pytest.mark.slow
def test_a_resumed_run_whose_programs_are_gone_compiles_them_again(programs, tmp_path):
    folder, found = programs
    one, other = trainer(Switch(3, folder)), trainer(Switch(3, tmp_path))
    before = weights(one, 4)
    for each in folder.glob("*.pt2"):  # one is there, the other is compiled
        shutil.copy(each, tmp_path)
    next(iter(tmp_path.glob("*.pt2"))).unlink()
    other.load_state_dict(one.state_dict())
    assert same(before + weights(other, 2), found)
    assert len(list(tmp_path.glob("*.pt2"))) == 2
    other.close()


@pytest.mark.slow
def test_when_ready_is_when_all_programs_are(programs):
    folder, _ = programs
    switch = Switch(None, folder)
    made = trainer(switch)
    seen = []
    for _ in range(4):
        next(made)
        seen.append(switch.on)
    assert seen == [False, False, True, True]  # traced in the second, compiled before


def test_a_run_without_a_switch_is_eager():
    assert isinstance(mode_of("auto"), Eager)
    with built_with(Switch(3)):
        assert isinstance(mode_of("auto"), Switching) and isinstance(mode_of("eager"), Eager)
        assert isinstance(mode_of("auto", alone=False), Switching)  # processes that learn together switch together
    assert isinstance(mode_of("auto"), Eager)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


class Ended:
    """Stands in for a worker that has died."""

    alive = False

    def compile(self, graph, inputs, path):
        return path.with_suffix(".error")

    def close(self):
        pass


class Failing(Ended):
    """Stands in for a machine without a compiler."""

    def compile(self, graph, inputs, path):
        error = path.with_suffix(".error")
        error.write_text("InvalidCxxCompiler: no working C++ compiler\nmore")
        return error


@pytest.mark.parametrize(
    ("worker", "reason"), [(Ended, "the compiler's process has ended"), (Failing, "no working C++ compiler")]
)
def test_without_a_compiler_a_run_stays_eager_and_one_line_per_function_names_the_reason(
    worker, reason, monkeypatch, tmp_path, caplog
):
    monkeypatch.setattr(background, "CompileWorker", worker)
    found = weights(trainer(Switch(3, tmp_path)), 5)
    assert same(found, weights(trainer(), 5))
    lines = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert len(lines) == 2 and all(reason in line and "\n" not in line for line in lines)


def test_a_damaged_program_is_deleted_and_the_function_stays_as_written(tmp_path, monkeypatch, caplog):
    class Damaging(Ended):
        alive = True

        def compile(self, graph, inputs, path):
            path.write_bytes(b"no program")
            return path.with_suffix(".error")

    monkeypatch.setattr(background, "CompileWorker", Damaging)
    assert same(weights(trainer(Switch(3, tmp_path)), 5), weights(trainer(), 5))
    assert not list(tmp_path.glob("*.pt2")) and "compiling it failed" in caplog.text


def test_an_interrupt_ends_the_wait_for_the_compiler(tmp_path, monkeypatch):
    class Slow(Ended):
        @property
        def alive(self):  # asked for while the trainer waits
            os.kill(os.getpid(), signal.SIGINT)
            return True

    monkeypatch.setattr(background, "CompileWorker", Slow)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    made = trainer(Switch(2, tmp_path))
    try:
        weights(made, 2)
        with pytest.raises(KeyboardInterrupt):
            next(made)
    finally:
        signal.signal(signal.SIGINT, before)
    assert made.iteration == 2 and not made.switch.on


def test_a_run_whose_inputs_change_their_layout_all_the_time_is_not_switched(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "CompileWorker", Ended)
    switch = Switch(2, tmp_path)
    switch.before_iteration(1)
    for size in range(MOST_PROGRAMS + 1):
        graph = torch.fx.symbolic_trace(torch.nn.Identity())
        assert switch.request(graph, [torch.zeros(size)]).program() is None
    assert switch.idle
    switch.before_iteration(2)
    assert switch.given_up and not switch.on


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "striderl" / "programs"
    (tmp_path / "striderl" / "programs").chmod(0o777)
    other = cache_folder()
    assert other != tmp_path / "striderl" / "programs" and "other users" in caplog.text
    other.rmdir()


@pytest.mark.slow
def test_the_worker_ends_with_the_process_that_started_it(tmp_path):
    program = (
        "import time\nfrom striderl.execution.background import CompileWorker\n"
        "worker = CompileWorker()\nprint(worker._process.pid, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    assert ends(pid)


def ends(pid, seconds=30.0):
    from time import monotonic, sleep

    last = monotonic() + seconds
    while monotonic() < last:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        state = Path(f"/proc/{pid}/stat")
        if state.exists() and ") Z" in state.read_text():
            return True
        sleep(0.1)
    return False


# -- when --------------------------------------------------------------------------------------------------------------


def test_the_iteration_of_the_switch_follows_from_sizes():
    small = trainer().algorithm
    assert switch_iteration(OnPolicyPlan(num_steps_per_env=8), 4, small) > 100
    assert switch_iteration(OnPolicyPlan(num_steps_per_env=100_000), 4, small) == 3
    first = switch_iteration(OffPolicyPlan(num_steps_per_env=100, learning_starts=0), 1, small)
    assert switch_iteration(OffPolicyPlan(num_steps_per_env=100, learning_starts=1000), 1, small) == first + 10
    assert switch_iteration(OfflinePlan(num_updates_per_iteration=1000), 1, small) == 9


def test_every_worker_has_a_folder_of_its_own_for_what_the_compiler_writes(monkeypatch):
    # its files are named by what is in them: of two workers with one graph, one packed what the other had just emptied
    started = []
    process = SimpleNamespace(stdin=None, wait=lambda seconds=None: 0)
    monkeypatch.setattr(subprocess, "Popen", lambda words, **named: started.append(named["env"]) or process)
    workers = [background.CompileWorker(), background.CompileWorker()]
    folders = {environment["TORCHINDUCTOR_CACHE_DIR"] for environment in started}
    assert len(folders) == 2 and os.environ.get("TORCHINDUCTOR_CACHE_DIR") not in folders
    for each in workers:
        each.close()
    assert not any(Path(folder).parent.exists() for folder in folders)


def test_a_switch_waits_until_something_was_traced():
    one, captured = Switch(1), Switch(1, beside=False)
    for iteration in (0, 1, 2):
        one.before_iteration(iteration), captured.before_iteration(iteration)
        assert not one.on and captured.on == (iteration >= 1)
    one.keys.add("a graph")
    one.before_iteration(3)
    assert one.on


def test_a_run_that_is_resumed_with_another_setting_decides_anew():
    def resumed(saved, chosen="auto", at=50, given_up=""):
        switch = Switch(at)
        switch.chosen, switch.given_up = chosen, given_up
        switch.set_iteration(300)
        switch.load_state_dict({"at": 50, "on": False, "given_up": "", "keys": ["a graph"], "chosen": "auto", **saved})
        return switch.at, switch.on, switch.given_up

    assert resumed({"on": True}) == (50, True, "")
    assert resumed({"on": True}, "never", given_up="switch_at is 'never'") == (50, False, "switch_at is 'never'")
    assert resumed({"on": True}, "400", at=400) == (400, False, "")
    assert resumed({"chosen": "never", "given_up": "switch_at is 'never'"}) == (350, False, "")
    # more steps than before; and no more
    assert resumed({"given_up": background.TOO_SHORT}) == (350, False, "")
    assert resumed({"given_up": background.TOO_SHORT}, given_up=background.TOO_SHORT)[2] == background.TOO_SHORT


def test_loops_of_other_libraries_switch_once_counted_from_where_they_begin():
    learner, cpu = trainer().algorithm, torch.device("cpu")
    later = switch_iteration(PLAN, 4, learner)

    def planned(switch, num_iterations, first=0):
        plan_switch(switch, PLAN, 4, learner, num_iterations, cpu, first=first)
        return switch.at, bool(switch.given_up)

    switch = learner_switch("auto", cpu)
    assert planned(switch, 3 * later - 1) == (later, True)
    assert planned(switch, 3 * later) == (later, False)
    assert planned(switch, None, first=1500) == (1500 + later, False)  # a loaded file: programs come after that
    switch.keys.add("a graph")
    assert planned(switch, 5) == (1500 + later, False)  # compiling has begun


def test_the_key_of_a_graph_is_that_of_its_code_and_layout():
    graph = torch.fx.symbolic_trace(torch.nn.Identity())
    assert graph_key(graph, [torch.zeros(3)]) == graph_key(graph, [torch.ones(3)])
    assert graph_key(graph, [torch.zeros(3)]) != graph_key(graph, [torch.zeros(4)])
    assert graph_key(graph, [torch.zeros(3, 2)]) != graph_key(graph, [torch.zeros(2, 3).T])


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[4]))
    drive(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
