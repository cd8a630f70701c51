"""The examples run; short versions of what they do by default."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import runpy
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from striderl.data.registry import TERMS

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@contextlib.contextmanager
def as_a_program(name: str, *arguments: str) -> Iterator[io.StringIO]:
    """Give this process the words and the paths of an example's own; most of what it takes in another is the imports.

    Yields what is printed meanwhile.
    """
    argv, path, threads = sys.argv, list(sys.path), torch.get_num_threads()
    sys.argv = [name, *arguments]
    sys.path.insert(0, str(EXAMPLES))  # where the processes that it starts look as well
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            yield said
    finally:
        sys.argv, sys.path[:] = argv, path
        torch.set_num_threads(threads)


def run(name: str, *arguments: str) -> str:
    """Run an example from its first line to its last, as `python examples/NAME` does."""
    with as_a_program(name, *arguments) as said:
        try:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        except SystemExit as end:
            assert not end.code
    return said.getvalue()


@pytest.mark.slow
def test_cartpole_is_solved():
    text = run("train_cartpole.py", "--seed", "6")  # which takes two evaluations
    assert float(text.strip().splitlines()[-1].split()[-1]) >= 475


@pytest.mark.slow
def test_the_quadruped_example_runs(monkeypatch):
    # 26 iterations of 2 x 24 steps: one line on the way, after 25 of them, and the one at the end
    with as_a_program("train_quadruped.py", "--steps", "1210", "--num-envs", "2", "--episodes", "2") as said:
        example = importlib.import_module("train_quadruped")
        # episodes of two seconds, and fewer steps than the 999 that let the first of them end at different times
        monkeypatch.setattr(example, "make", partial(example.make, settings={"max_episode_length": 100}))
        settings = example.CollectorConfig
        monkeypatch.setattr(example, "CollectorConfig", lambda **given: settings(**{**given, "decorrelation_steps": 9}))
        example.main()
    on_the_way, end = said.getvalue().splitlines()
    assert on_the_way.split()[:2] == ["1200", "steps"] and "tracking error" in end and "over 2 episodes" in end


@pytest.mark.slow
def test_parts_of_ones_own_are_trained_with(monkeypatch):
    monkeypatch.setattr(TERMS, "registered", {})  # where the example puts its term, and gymnasium its variable
    monkeypatch.setenv("PYGAME_HIDE_SUPPORT_PROMPT", "hide")
    # any return is enough: the callback stops the run after the first rollout, which has the term's reward in it
    text = run("own_parts.py", "--enough", "-1000", "--bonus", "1.0")
    assert text.startswith("best mean return while collecting: -") and text.count("the policy acts [") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps", "wanted"), [("rlpyt_recurrent.py", "4000", 0.9), ("rlpyt_images.py", "4500", 0.8)]
)
def test_programs_in_rlpyts_words_learn(name, steps, wanted):
    text = run(name, "--steps", steps)  # chance is 0.5 for the first, and -0.6 for the second
    assert float(text.strip().splitlines()[-1].split()[-1]) >= wanted


# -- learning from more than reward: a few steps of each, which learn nothing ----------------------------------------

QUICK = ("teacher_student.py", "visual_student.py", "estimator.py", "two_skills.py", "motion_prior.py", "two_stage.py")


def rows(text: str) -> dict[str, list[float]]:
    """The numbers of a printed table by the words before them."""
    found = {}
    for line in text.splitlines():
        words = [word for word in line.split() if word != "to"]
        numbers = [word for word in words if word.lstrip("-").replace(".", "").isdigit()]
        if numbers and words[-len(numbers) :] == numbers:
            found[" ".join(words[: -len(numbers)])] = [float(number) for number in numbers]
    return {name: numbers for name, numbers in found.items() if not name.endswith(":")}  # iterations of a runner


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Where the first of the examples has left its runs, and what it printed."""
    folder = tmp_path_factory.mktemp("teacher_student")
    return folder, quick("teacher_student", "--folder", str(folder))


def quick(name: str, *arguments: str) -> str:
    """Run an example in small."""
    with as_a_program(f"{name}.py", "--quick", "--num-threads", "1", *arguments) as said:
        importlib.import_module(name).main()
    return said.getvalue()


@pytest.mark.slow
def test_students_learn_from_a_run(teacher):
    folder, text = teacher
    table = rows(text)
    assert table["teacher, PPO"][-1] == 1.0
    assert all(len(table[name]) == 6 for name in ("student, TPPO", "student, DAgger"))
    config = json.loads((folder / "student" / "config.json").read_text())
    assert config["algorithm_name"] == "tppo" and config["teacher"]["run"] == str(folder / "teacher")
    assert any((folder / "dagger").glob("model_*.pt")) and any((folder / "demos").iterdir())


@pytest.mark.slow
def test_a_student_learns_to_see(teacher, tmp_path):
    text = quick("visual_student", "--folder", str(tmp_path), "--teacher", str(teacher[0] / "teacher"))
    table = rows(text)
    assert table["teacher"][-1] == 1.0 and len(table["visual student"]) == 5
    written = next(line for line in text.splitlines() if line.startswith("recorded"))
    _, small, large = (int(word.strip("(")) for word in written.split() if word.strip("(").isdigit())
    assert 0 < small < large  # compressed pictures


@pytest.mark.slow
def test_an_estimate_is_compared_with_the_truth(tmp_path):
    table = rows(quick("estimator", "--folder", str(tmp_path)))
    assert list(table) == ["estimator", "zero", "mean velocity", "the command"]
    assert table["estimator"][0] != table["zero"][0] and all(numbers[0] > 0.0 for numbers in table.values())


@pytest.mark.slow
def test_two_skills_are_joined(tmp_path):
    table = rows(quick("two_skills", "--folder", str(tmp_path)))
    assert {"walk alone", "crawl alone", "jump alone", "mutex of both"} <= set(table)
    assert all(len(table[name]) == 6 for name in ("crawl alone", "jump alone", "mutex of both"))
    assert all((tmp_path / name / "specs.json").is_file() for name in ("walk", "crawl", "jump"))


@pytest.mark.slow
def test_a_prior_is_compared_with_ppo_and_with_the_clip(tmp_path):
    text = quick("motion_prior", "--folder", str(tmp_path))
    clip, amp, ppo = (line.split() for line in text.splitlines()[-3:])
    assert clip[:3] == ["clip", "2.00", "0.60"] and (amp[0], ppo[0]) == ("AMP", "PPO")
    logged = {name: json.loads((tmp_path / f"{name}_progress.json").read_text()) for name in ("amp", "ppo")}
    assert [row["steps"] for row in logged["amp"]] == [row["steps"] for row in logged["ppo"]] == [192, 384]
    assert all(0.0 < row["accuracy"] < 1.0 and row["style_reward"] > 0.0 for row in logged["amp"])
    assert quick("motion_prior", "--folder", str(tmp_path)).splitlines() == text.splitlines()[-4:]  # nothing is left


@pytest.mark.slow
def test_a_clone_goes_on_by_ppo(tmp_path):
    arguments = ("--folder", str(tmp_path), "--seeds", "0")
    text = quick("two_stage", *arguments)
    table = rows(text)
    assert list(table) == ["expert", "cloned", "fine-tuned", "from scratch", "from scratch, longer"]
    recorded = json.loads((tmp_path / "recorded.json").read_text())["steps"]
    assert recorded >= 96
    # seed, recorded steps, env steps: two rollouts of 8 x 8 steps for each of the two, none for the clone
    assert [table[name][:3] for name in list(table)[1:4]] == [[0, recorded, 0], [0, recorded, 128], [0, 0, 128]]
    assert table["from scratch, longer"][2] >= 128 + recorded
    # what each plays is its own: fine-tuning has moved the clone
    assert table["cloned"][3:] != table["fine-tuned"][3:]
    again = quick("two_stage", *arguments).splitlines()  # nothing is left to train: the table alone
    assert len(again) == 6 and again == [line for line in text.splitlines() if line in again]


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in QUICK))
def test_every_example_explains_itself(name):
    text = run(name, "--help")
    assert "usage:" in text and "python examples/" in text


@pytest.mark.parametrize("name", QUICK)
def test_examples_that_ran_say_how(name):
    said = ast.get_docstring(ast.parse((EXAMPLES / name).read_text(encoding="utf-8")))
    assert said is not None and f"python examples/{name}" in said
