"""`striderl report`: the page shows what the folder has, hostile content stays text, its command repeats the run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from striderl.checkpoint.folder import sealed, unsealed
from striderl.cli.main import main
from striderl.cli.runs import find_run
from striderl.cli.seeing.report import page_of
from striderl.cli.seeing.report_run import seconds_of
from striderl.cli.terminal import UsageError
from striderl.cli.train_flags import command_of, overridden, take
from striderl.collect.trace import SUFFIX, EnvTrace, read_trace, write_trace
from striderl.export.metadata import uncommitted_files
from striderl.loggers.console_logger import short_number
from striderl.loggers.plots import read_metrics
from striderl.recipes.table import recipe
from striderl.training.experiment.run_config import RunConfig, term_config
from striderl.training.experiment.seal import write_sealed

TINY = [
    *("--env.num-envs", "4", "--plan.num-steps-per-env", "8", "--plan.total-steps", "128", "--stop.metric", ""),
    *("--evaluation.num-episodes", "2", "--evaluation.every", "2", "--policy.actor-hidden-dims", "8"),
    *("--algorithm.num-mini-batches", "2", "--logging.console", "off"),
]


class Page(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, content):
        super().__init__()
        self.elements, self.words = [], []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def has(self, tag):
        return any(found == tag for found, _ in self.elements)


def check_alone(content):
    """Raise unless the page needs nothing but itself and holds nothing that could run."""
    page = Page(content)
    for tag, attributes in page.elements:
        assert tag not in ("script", "iframe", "object", "embed", "link", "base", "form", "foreignobject"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "srcset", "action", "data", "xlink:href"):
                assert value.startswith(("data:image/", "data:video/", "#")), (tag, name, value[:60])
    policies = [each["content"] for tag, each in page.elements if each.get("http-equiv") == "Content-Security-Policy"]
    assert policies and "default-src 'none'" in policies[0] and "script-src" not in policies[0]
    assert not re.search(r"@import|url\(", content)
    return page


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds and one other setting, the first with a video, trained from the command line."""
    root = tmp_path_factory.mktemp("runs")
    words = ["train", "cartpole", *TINY, "--runs", str(root)]
    assert main([*words, "--name", "one", "--logging.video-every", "99", "--logging.video-seconds", "0.4"]) == 0
    assert main([*words, "--name", "two", "--seed", "1"]) == 0
    assert main([*words, "--name", "three", "--algorithm.gamma", "0.9"]) == 0
    return [root / "cartpole" / name for name in ("one", "two", "three")]


@pytest.fixture
def copy(runs, tmp_path):
    """A copy of the first run, to be spoiled."""
    return shutil.copytree(runs[0], tmp_path / "cartpole" / "copied")


def test_every_run_ends_with_a_report_in_its_last_line(tmp_path, capsys):
    assert main(["train", "cartpole", *TINY, "--runs", str(tmp_path), "--name", "x"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"report: {tmp_path / 'cartpole' / 'x' / 'report.html'}"
    page = check_alone((tmp_path / "cartpole" / "x" / "report.html").read_text())
    assert "Learning curves" in page.text and "128 env steps" in page.text


def test_the_numbers_are_those_of_the_log(runs):
    page, metrics = check_alone(page_of(runs[:1])), read_metrics(runs[0])
    for name in ("evaluate/return_mean", "collect/return_mean"):
        assert short_number(metrics.curve(name)[1][-1]) in page.text
    # under the pointer stands every logged value of a short run
    for value in metrics.curve("train/value_loss")[1]:
        assert short_number(value) in page.text


def test_what_the_page_has(runs):
    page = check_alone(page_of(runs[:1]))
    for title in (
        "Videos",
        "Episodes",
        "Time",
        "Faults and quarantine",
        "Settings",
        "Checkpoints",
        "Versions",
        "Repeat it",
    ):
        assert title in page.text
    assert page.has("video") and "best" in page.text and "every number was finite" in page.text
    assert f"torch {torch.__version__}" in page.text
    assert "env.num_envs 8 4" in page.text  # the recipe's and this run's
    assert page.text.count("striderl train cartpole --algorithm ppo") == 1


def test_runs_are_grouped_and_their_differences_listed(runs):
    page = check_alone(page_of([*runs, runs[0]]))
    assert "3 runs: cartpole" in page.text
    assert "algorithm.gamma=0.98 (mean of 2 seeds, 95 % interval)" in page.text
    assert "not distinguishable (2 and 1 seeds are too few" in page.text
    assert "algorithm.gamma 0.98 0.98 0.9" in page.text
    assert any(tag == "path" and "band" in each.get("class", "") for tag, each in page.elements)


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


def test_a_hostile_folder_stays_text(runs, copy, tmp_path):
    config = json.loads((copy / "config.json").read_text())
    config["env"]["settings"] = {HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE]}}
    config["env"]["task"] = config["algorithm_name"] = config["seed"] = HOSTILE
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "versions.json").write_text(json.dumps({HOSTILE: HOSTILE}))
    (copy / "labels.json").write_text(json.dumps({"tags": [HOSTILE], "group": HOSTILE, "command": HOSTILE}))
    (copy / "faults.jsonl").write_text(json.dumps({"component": HOSTILE, "env": HOSTILE, "count": HOSTILE}) + "\n")
    (copy / "export").mkdir()
    (copy / "export" / "metadata.json").write_text(json.dumps({"parity": {HOSTILE: {HOSTILE: 0.5}}}))
    rows = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    (copy / "metrics.jsonl").write_text("".join(json.dumps({**row, HOSTILE: 1.0}) + "\n" for row in rows))
    trace = EnvTrace(
        obs={HOSTILE.replace("/", "_"): np.zeros((3, 2), np.float32)},
        actions={"action": np.zeros(3)},
        reward=np.zeros(3),
        done=np.zeros(3, bool),
        facts={"component": HOSTILE},
    )
    write_trace(copy / "faults" / f"x{SUFFIX}", trace)
    hostile_name = copy.rename(tmp_path / "cartpole" / "<script>alert(3)")
    page = check_alone(page_of([hostile_name]))
    assert "<script>alert(1)" in page.text and "<script>alert(3)" in page.text
    page = check_alone(page_of([hostile_name, runs[1]]))
    assert "<script>alert(1)" in page.text and "<script>alert(3)" in page.text


@pytest.mark.parametrize(
    "name", ["versions.json", "labels.json", "faults.jsonl", "metrics.jsonl", "export/metadata.json"]
)
@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b"{}", b'{"parity": 3}', b'{"step": 1e999}\n'])
def test_a_damaged_file_costs_its_section_alone(copy, name, content):
    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).write_bytes(content)
    page = check_alone(page_of([copy]))
    assert "Repeat it" in page.text and "Checkpoints" in page.text


def test_links_and_strange_videos_are_not_shown(copy, tmp_path):
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(b"xxxxftypsecret")
    for video in (copy / "videos").iterdir():
        video.unlink()
    (copy / "videos" / "link.mp4").symlink_to(secret)
    page = check_alone(page_of([copy]))
    assert not page.has("video") and "link.mp4 is not shown here" in page.text
    (copy / "videos" / "link.mp4").unlink()
    (copy / "videos" / "text.mp4").write_bytes(b"<script>")
    assert "it is not a .mp4 file" in check_alone(page_of([copy])).text


def test_a_config_that_names_a_module_is_shown_and_not_imported(copy, tmp_path, monkeypatch):
    (tmp_path / "planted_module.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = json.loads((copy / "config.json").read_text())
    config["env"]["task"] = "planted_module:Env"
    (copy / "config.json").write_text(json.dumps(config))
    for name in ("seal.json", "checkpoints"):
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    page = check_alone(page_of([copy]))
    assert "not compared with a recipe" in page.text and not (tmp_path / "imported").exists()


def test_the_command_of_the_page_gives_the_same_config(runs):
    for folder in runs:
        page = Page(page_of([folder]))
        (line,) = (word for word in page.words if word.startswith("striderl train"))
        words, given = take(shlex.split(line)[2:], "--algorithm")
        usual = recipe(words[0], given["--algorithm"])
        found = overridden(usual, words[1:], prog="striderl train")
        assert found.to_dict() == RunConfig.from_json((folder / "config.json").read_text()).to_dict()


@pytest.mark.parametrize("task", ["cartpole", "quadruped", "gymnasium:CartPole-v1"])
def test_the_counts_of_envs_and_processes_are_flags_of_every_task(task):
    usual = recipe(task, "ppo")
    wanted = replace(usual, env=replace(usual.env, num_envs=6, num_processes=2))
    words = shlex.split(command_of(wanted, usual))[5:]
    assert words == ["--env.num-envs", "6", "--env.num-processes", "2"]
    assert overridden(usual, words, prog="striderl train") == wanted
    with pytest.raises((UsageError, SystemExit)):
        overridden(usual, ["--env.processes", "2"], prog="striderl train")


@pytest.mark.parametrize("case", ["terms", "settings", "tables", "lists", "words"])
def test_every_kind_of_setting_is_repeated(case):
    usual = recipe("cartpole", "ppo")
    changed = {
        "terms": lambda c: replace(c, terms={"rnd": replace(term_config("rnd")(), weight=0.25)}),
        "settings": lambda c: replace(
            c, env=replace(c.env, settings={"max_episode_length": 7, "sutton_barto_reward": True})
        ),
        "tables": lambda c: replace(
            c, env=replace(c.env, task="quadruped", settings={"reward_weights": {"alive": 0.5}})
        ),
        "lists": lambda c: replace(c, logging=replace(c.logging, trackers=("tensorboard", "mlflow"))),
        "words": lambda c: replace(
            c, dataset="", checkpoints=replace(c.checkpoints, best=""), device="cuda:1", tf32=True
        ),
    }[case]
    if case == "tables":
        usual = recipe("quadruped", "ppo")
    wanted = changed(usual)
    words, given = take(shlex.split(command_of(wanted, usual))[2:], "--algorithm")
    found = overridden(recipe(words[0], given["--algorithm"]), words[1:], prog="striderl train")
    if case == "tables":  # one weight of the table; the others are the task's own
        assert found.env.settings["reward_weights"]["alive"] == 0.5
    else:
        assert found == wanted


def test_a_video_has_its_steps_beside_it(runs):
    (path,) = (runs[0] / "videos").glob(f"*{SUFFIX}")
    trace = read_trace(path)
    assert trace.obs["obs"].shape == (len(trace.reward), 4) and trace.actions["action"].shape == (len(trace.reward),)
    assert trace.facts["total_reward"] == trace.reward.sum()


def test_a_gait_is_drawn_from_foot_contacts(copy):
    feet = np.tile(np.array([[1.0, 0.0, 0.0, 1.0]] * 5 + [[0.0, 1.0, 1.0, 0.0]] * 5, np.float32), (3, 1))
    trace = EnvTrace(
        obs={"foot_contacts": feet}, actions={}, reward=np.zeros(30), done=np.zeros(30, bool), facts={"step_dt": 0.02}
    )
    write_trace(copy / "videos" / f"zz{SUFFIX}", trace)
    page = check_alone(page_of([copy]))
    assert "Gait: feet on the ground" in page.text and "0.6 s" in page.text
    bars = [each for tag, each in page.elements if tag == "rect" and "band" in each.get("class", "")]
    assert len(bars) == 12  # four feet with three stances each


def test_the_newest_run_of_a_folder_and_no_run(runs, tmp_path, capsys):
    assert main(["report", str(runs[0].parent), "--output", str(tmp_path / "deep" / "page.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "deep" / "page.html")
    assert find_run(runs[0].parent).name in (tmp_path / "deep" / "page.html").read_text()
    assert main(["report"]) == 2
    assert main(["report", str(tmp_path / "nothing")]) == 2


def test_a_folder_of_seeds_is_one_page_beside_them(runs, tmp_path, capsys):
    group = tmp_path / "cartpole" / "group"
    for seed in range(2):
        shutil.copytree(runs[seed], group / f"seed_{seed}")
    assert main(["report", str(group)]) == 0
    assert capsys.readouterr().out.strip() == str(group / "report.html")
    assert "2 runs: cartpole" in check_alone((group / "report.html").read_text()).text
    assert main(["report", str(group / "seed_1")]) == 0  # one that is named is one
    assert capsys.readouterr().out.strip() == str(group / "seed_1" / "report.html")
    assert "2 runs" not in (group / "seed_1" / "report.html").read_text()


def test_a_page_of_several_runs_replaces_none_of_theirs(runs, tmp_path, capsys):
    both = [shutil.copytree(run, tmp_path / run.name) for run in runs[:2]]
    before = [(run / "report.html").read_text() for run in both]
    assert main(["report", *map(str, both)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert [(run / "report.html").read_text() for run in both] == before


def test_the_parts_of_the_time_are_the_whole(runs):
    metrics = read_metrics(runs[0])
    found = seconds_of(metrics)
    assert list(found) == ["collecting", "learning", "evaluating", "videos", "saving, logging and the rest"]
    assert sum(found.values()) == pytest.approx(metrics.curve("time/iteration_seconds")[1].sum())
    assert found["videos"] > 0.0 and found["evaluating"] > 0.0


def test_an_old_log_without_whole_iterations_shows_what_it_has(tmp_path):
    row = {"step": 1, "time/collection_seconds": 2.0, "time/learning_seconds": 1.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert seconds_of(read_metrics(tmp_path)) == {"collecting": 2.0, "learning": 1.0}


def test_a_run_without_a_video_shows_an_episode_of_its_evaluation(runs):
    trace = read_trace(runs[1] / f"evaluation{SUFFIX}")
    assert trace.obs["obs"].shape == (len(trace.reward), 4) and trace.done.tolist()[-1] and trace.done.sum() == 1
    page = check_alone(page_of([runs[1]]))
    length = len(trace.reward)
    assert f"the first episode of the last evaluation: {length} steps, return {length}" in page.text


def test_the_page_is_made_again_when_a_command_adds_to_the_folder(copy, capsys):
    assert main(["record", str(copy), "--seconds", "0.1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {copy / 'report.html'}"
    (video,) = (copy / "videos").glob("record_*.mp4")
    assert video.name in Page((copy / "report.html").read_text()).text


def newer_config(folder):
    content = json.loads((folder / "config.json").read_text())
    write_sealed(folder, "config.json", {**content, "schema": 99, "from_the_future": {"x": 1}})


def newer_checkpoints(folder):
    for manifest in (folder / "checkpoints").glob("*/manifest.json"):
        content = unsealed(manifest.read_bytes(), manifest)
        manifest.write_bytes(sealed({**content, "version": 99, "striderl": "9.9"}))


def damaged_config(folder):
    (folder / "config.json").write_text('{"schema": 2, "env')


def no_checkpoints(folder):
    shutil.rmtree(folder / "checkpoints")


def no_log(folder):
    for name in ("metrics.csv", "metrics.jsonl"):
        (folder / name).unlink()


def deleted(folder):
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("spoil", "reason", "whole"),
    [
        (newer_config, "the config has schema 99, this striderl reads up to 2; update it", True),
        (newer_checkpoints, "format 99, written by striderl 9.9", True),
        (damaged_config, "config.json' is refused", True),
        (no_checkpoints, "there is no checkpoint", True),
        (no_log, "", True),
        (deleted, "does not exist", False),
    ],
)
def test_a_run_that_is_newer_damaged_or_gone(copy, spoil, reason, whole, capsys):
    spoil(copy)
    code = main(["evaluate", str(copy), "--episodes", "1"])
    said = capsys.readouterr().err
    assert (code, "Traceback" in said) == ((2, False) if reason else (0, False)) and reason in said
    assert main(["report", str(copy)]) == (0 if whole else 2)
    assert "Traceback" not in capsys.readouterr().err
    if whole:
        page = check_alone((copy / "report.html").read_text())
        assert "Versions" in page.text and "started as: striderl train cartpole" in page.text
        assert not reason or (reason in page.text) == (spoil in (newer_config, damaged_config))


def test_long_logs_are_thinned_and_keep_their_evaluations(tmp_path):
    rows = []
    for step in range(1, 5001):
        row = {"step": step, "time/collection_seconds": 0.5}
        rows.append(json.dumps({**row, "evaluate/return_mean": float(step)} if step % 1000 == 7 else row))
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    found = read_metrics(tmp_path, max_rows=100)
    assert len(found.steps) == 105 and found.curve("evaluate/return_mean")[0].tolist() == [7, 1007, 2007, 3007, 4007]
    assert found.curve("time/collection_seconds")[1].sum() / found.share == pytest.approx(2500.0)


def test_the_state_of_the_checkout_is_kept(tmp_path):
    def git(*words):
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@y", *words], check=True)

    assert uncommitted_files(tmp_path) is None
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "one")
    (tmp_path / "new").write_text("2")  # not tracked: no part of the commit
    assert uncommitted_files(tmp_path) == 0
    (tmp_path / "a").write_text("3")
    assert uncommitted_files(tmp_path) == 1
