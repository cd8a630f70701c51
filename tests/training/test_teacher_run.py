"""A run that names the run of its teacher: what fits learns and resumes, and what does not is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from run_cases import folder_at, tiny

from striderl.algorithms.on_policy.ppo import PPOConfig
from striderl.algorithms.on_policy.tppo import TPPOConfig
from striderl.checkpoint.store import CheckpointStore
from striderl.training.experiment.loading import load_run
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_config import EnvSettings, RunConfig, TeacherRun


@pytest.fixture(autouse=True)
def threads():
    """Runs set torch's threads for their process; other tests get theirs back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """The folder of a run of Pendulum, with a memory and a normaliser."""
    path = tmp_path_factory.mktemp("runs") / "teacher"
    config = tiny("pendulum_lstm", 2)
    Run(config, folder_at(path, config)).drive()
    return path


def student(folder, iterations=2, kind="pendulum_lstm", **changes):
    config = tiny(kind, iterations)
    settings = TPPOConfig(
        ppo=PPOConfig(num_learning_epochs=2, num_mini_batches=2), teacher_act_prob=0.5, **changes.pop("algorithm", {})
    )
    return replace(
        config,
        algorithm_name="tppo",
        algorithm=settings,
        teacher=changes.pop("teacher", TeacherRun(run=str(folder))),
        policy=replace(config.policy, kind="mlp", memory_size=256),
        **changes,
    )


@pytest.mark.slow
@pytest.mark.parametrize("using_ppo", [True, False], ids=["tppo", "dagger"])
def test_a_run_learns_from_the_run_of_its_teacher(teacher, tmp_path, using_ppo):
    config = student(teacher, algorithm={"using_ppo": using_ppo})
    assert RunConfig.from_json(config.to_json()) == config
    run = Run(config, folder_at(tmp_path / "student", config))
    outcome = run.drive()
    assert outcome.record is not None
    numbers = outcome.record.metrics
    assert numbers["train/distillation_loss"] > 0.0 and numbers["train/teacher_act_prob"] == 0.5
    assert ("train/surrogate_loss" in numbers) == using_ppo
    # the student is played without its teacher, the teacher is the policy of its run: normaliser and memory included
    loaded = load_run(tmp_path / "student", "last")
    assert not loaded.policy.state_spec()
    theirs = load_run(teacher).policy.state_dict()
    kept = CheckpointStore(tmp_path / "student" / "checkpoints").load("last").state["algorithm"]["terms"]
    saved = next(part["teachers"]["0"] for part in kept.values() if "teachers" in part)
    assert set(saved) == set(theirs) and all(torch.equal(saved[name], value) for name, value in theirs.items())


@pytest.mark.slow
def test_a_student_goes_on_exactly(teacher, tmp_path):
    whole = student(teacher, 4)
    outcome = Run(whole, folder_at(tmp_path / "whole", whole)).drive()
    half = student(teacher, 2)
    folder = folder_at(tmp_path / "half", half)
    Run(half, folder).drive()
    run = Run(whole, folder)
    assert run.restore()
    run.trainer.go_on()
    run.drive()
    assert outcome.record is not None
    one, two = (load_run(tmp_path / name, "last").policy.state_dict() for name in ("whole", "half"))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher": TeacherRun()}, "there is no teacher; name its run: --teacher.run FOLDER"),
        ({"teacher": TeacherRun(run="nowhere")}, "teacher.run: there is no run folder 'nowhere'"),
        ({"kind": "cartpole"}, r"the teacher's actions are BoxSpec.*, the student's DiscreteSpec"),
        ({"env": EnvSettings(task="mountain_car_continuous", num_envs=4)}, "the teacher wants component 'obs' of sh"),
    ],
    ids=["none", "missing", "actions", "observation"],
)
def test_teachers_that_do_not_fit_are_named(teacher, tmp_path, changes, message):
    config = student(teacher, **changes)
    with pytest.raises(ValueError, match=message):
        Run(config, folder_at(tmp_path / "student", config))


def test_a_component_that_the_task_does_not_have(teacher, tmp_path):
    named = TeacherRun(run=str(teacher), components={"obs": "obz"})
    config = student(teacher, teacher=named)
    with pytest.raises(KeyError, match=r"no component 'obz'. Did you mean 'obs'\?"):
        Run(config, folder_at(tmp_path / "student", config))


def test_settings_without_effect_are_refused(teacher):
    with pytest.raises(ValueError, match=r"teacher.run has no effect: ppo has no teacher; choose 'tppo'"):
        tiny(teacher=TeacherRun(run=str(teacher)))
    with pytest.raises(ValueError, match=r"have no effect without teacher.run"):
        TeacherRun(checkpoint="last")
    with pytest.raises(ValueError, match=r"'best', 'last' or a number of env steps, found 'newest'"):
        TeacherRun(run="x", checkpoint="newest")
