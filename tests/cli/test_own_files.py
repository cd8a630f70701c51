"""A command replaces no file of the user's: a name that is taken wants --overwrite, its own places do not."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from striderl.cli.main import main
from striderl.cli.terminal import complain, say
from striderl.datasets.motion.clip_files import load_clip

TINY = [
    *("--env.num-envs", "2", "--plan.num-steps-per-env", "4", "--plan.total-steps", "16", "--stop.metric", ""),
    *("--evaluation.num-episodes", "1", "--policy.actor-hidden-dims", "4", "--policy.critic-hidden-dims", "4"),
    *("--algorithm.num-mini-batches", "1", "--logging.console", "off"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root, before = tmp_path_factory.mktemp("own_files"), torch.get_num_threads()
    assert main(["train", "cartpole", *TINY, "--runs", str(root), "--name", "one"]) == 0
    torch.set_num_threads(before)
    return root / "cartpole" / "one"


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """A working folder with two runs, for the user's own things beside them."""
    before = torch.get_num_threads()
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        shutil.copytree(made, tmp_path / name)
    yield tmp_path
    torch.set_num_threads(before)


MINE = b"<!doctype html>\n<html>years of work</html>"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["plot", "one", "--output", "mine.png"], "mine.png"),
        (["record", "one", "--seconds", "0.1", "--output", "mine.gif"], "mine.gif"),
        (["play", "one", "--seconds", "0.1", "--output", "mine.gif"], "mine.gif"),
        (["report", "one", "--output", "mine.html"], "mine.html"),
        (["report", "one", "two"], "report.html"),
    ],
)
def test_a_file_of_the_users_is_replaced_only_with_the_flag(here, words, name, capsys):
    (here / name).write_bytes(MINE)
    assert main(words) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("striderl: ")]
    assert name in line and "--overwrite" in line and (here / name).read_bytes() == MINE
    assert main([*words, "--overwrite"]) == 0
    assert (here / name).read_bytes() != MINE


def test_a_link_is_not_followed_with_the_flag_either(here, capsys):
    (here / "diary.txt").write_bytes(MINE)
    for words in (["plot", "one", "--output"], ["report", "one", "--output"]):
        (here / "mine.png").symlink_to(here / "diary.txt")
        assert main([*words, "mine.png"]) == 2
        assert main([*words, "mine.png", "--overwrite"]) == 2
        assert "it is a link" in capsys.readouterr().err and (here / "diary.txt").read_bytes() == MINE
        (here / "mine.png").unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["report", "one"], ["report", "one", "two"], ["plot", "one"], ["plot", "one", "two"]]
)
def test_what_a_command_wrote_to_its_own_place_it_writes_again(here, words):
    assert main(words) == 0 and main(words) == 0


@pytest.mark.slow
def test_a_page_of_the_library_is_replaced_wherever_it_is_and_a_video_in_the_run(here):
    for _ in range(2):
        assert main(["report", "one", "--output", "page.html"]) == 0
        assert main(["record", "one", "--seconds", "0.1"]) == 0


def test_the_end_of_a_training_keeps_a_report_of_the_users(here, caplog):
    (here / "one" / "report.html").write_bytes(MINE)
    assert main(["resume", "one", "--plan.total-steps", "24"]) == 0
    assert (here / "one" / "report.html").read_bytes() == MINE and "no report of" in caplog.text


def test_clips_replace_no_archive_and_no_json_of_another_program(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", precious=np.arange(3))
    (tmp_path / "package.json").write_text(json.dumps({"name": "mine"}))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(["clips", "trot", "trot.npz"]) == 0 and main(["clips", "export", "trot.npz", "trot.json"]) == 0
    for words in (["trot", "mine.npz"], ["import", "trot.json", "mine.npz"], ["export", "trot.npz", "package.json"]):
        assert main(["clips", *words]) == 2
        assert f"{words[-1]} exists; choose another name, or --overwrite it" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
    assert main(["clips", "trot", "mine.npz", "--overwrite"]) == 0 and load_clip("mine.npz").num_frames == 401
    (tmp_path / "clip_000.npz").write_bytes(b"PK mine")
    assert main(["clips", "record", "no_run", "."]) == 2
    assert "clip_000.npz exists" in capsys.readouterr().err


def test_names_from_elsewhere_do_not_steer_the_terminal(here, capsys):
    config = here / "one" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "\x1b]0;title\x07": "\u202e"}))
    for words in (["diff", "one", "two"], ["evaluate", "one"], ["resume", "one"]):
        main(words)
        said = "".join(capsys.readouterr())
        assert "?]0;title?" in said and not {"\x1b", "\x07", "\u202e"} & set(said), words


def test_lines_and_columns_of_an_output_stay(capsys):
    say("a\tb\nc – 95 % ✓")
    complain("d\ne")
    assert capsys.readouterr() == ("a\tb\nc – 95 % ✓\n", "striderl: d\ne\n")
