"""Files of lines do not grow without bound: parts are set aside at a size, read in order, and cut by a resume."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from striderl.checkpoint.errors import FileRefused
from striderl.loggers.file_loggers import PART_BYTES, CsvLogger, JsonlLogger, LineFile, parts_of
from striderl.loggers.plots import read_metrics

KINDS = {"metrics.jsonl": JsonlLogger, "metrics.csv": CsvLogger}


def numbers(step: int) -> dict[str, float]:
    return {"a": step / 3, **({"b": float(step)} if step % 3 == 0 else {})}


def write(path: Path, first: int, last: int, **limits: int) -> None:
    logger = KINDS[path.name](path, **limits)
    for step in range(first, last + 1):
        logger.log(step, numbers(step))
    logger.close()


@pytest.mark.parametrize("name", KINDS)
def test_csv_and_jsonl_do_not_grow_without_bound_and_lose_no_row(tmp_path, name):
    path = tmp_path / name
    write(path, 1, 100, max_bytes=400)
    parts = parts_of(path)
    assert len(parts) > 3 and parts[-1] == path
    assert [part.name for part in parts[:2]] == [name.replace(".", ".part1."), name.replace(".", ".part2.")]
    assert all(part.stat().st_size <= 400 for part in parts)
    run = read_metrics(tmp_path)
    assert run.steps.tolist() == list(range(1, 101))
    assert run.columns["a"].tolist() == [step / 3 for step in range(1, 101)]
    assert run.curve("b")[0].tolist() == [step for step in range(1, 101) if step % 3 == 0]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("saved", [0, 1, 17, 50, 99, 100, 200])
def test_an_exact_resume_cuts_the_rows_after_the_checkpoint_across_parts(tmp_path, name, saved):
    whole, path = tmp_path / "whole" / name, tmp_path / "resumed" / name
    write(whole, 1, 120, max_bytes=400)
    write(path, 1, 100, max_bytes=400)
    with path.open("ab") as file:
        file.write(b"3,torn")
    resumed = KINDS[name](path, max_bytes=400)
    resumed.resume_at(saved)
    kept = min(saved, 100)
    assert read_metrics(path.parent).steps.tolist() == list(range(1, kept + 1))
    for step in range(kept + 1, 121):
        resumed.log(step, numbers(step))
    one, other = read_metrics(whole.parent), read_metrics(path.parent)
    assert one.steps.tolist() == other.steps.tolist()
    assert str(dict(one.columns)) == str(dict(other.columns))


def test_a_cut_that_was_killed_half_way_is_finished_by_the_next(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, 1, 100, max_bytes=400)
    parts = parts_of(path)
    for part in parts[: len(parts) // 2 : -1]:  # the newest went first, then the process died
        part.unlink()
    JsonlLogger(path, max_bytes=400).resume_at(20)
    assert read_metrics(tmp_path).steps.tolist() == list(range(1, 21))


def test_only_the_newest_parts_stay_where_that_is_wanted(tmp_path):
    path = tmp_path / "metrics.csv"
    write(path, 1, 100, max_bytes=400, max_parts=2)
    assert len(parts_of(path)) == 3
    steps = read_metrics(tmp_path).steps.tolist()
    assert steps == list(range(int(steps[0]), 101))


def test_a_part_of_a_table_begins_with_the_header(tmp_path):
    write(tmp_path / "metrics.csv", 1, 100, max_bytes=400)
    for part in parts_of(tmp_path / "metrics.csv"):
        assert part.read_text().splitlines()[0] == "step,a,b"


def test_without_a_size_a_file_goes_on_to_64_megabytes(tmp_path):
    assert PART_BYTES == 64 * 1024 * 1024
    file = LineFile(tmp_path / "lines")
    for _ in range(3):
        file.append("x" * 1_000_000)
    assert parts_of(tmp_path / "lines") == [tmp_path / "lines"]


def test_files_beside_it_that_are_no_parts_are_left_alone(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for name in ("metrics.part0.jsonl", "metrics.partx.jsonl", "metrics.part1.jsonl.bak", "other.part1.jsonl"):
        (tmp_path / name).write_text("mine")
    write(path, 1, 60, max_bytes=400)
    JsonlLogger(path).resume_at(0)
    assert read_metrics(tmp_path).steps.tolist() == []
    assert sum("mine" in (tmp_path / name).read_text() for name in os.listdir(tmp_path)) == 4
    assert len(os.listdir(tmp_path)) == 5


# -- links -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("place", ["newest", "part"])
@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_a_log_is_not_written_or_cut_through_a_link(tmp_path, name, place, kind):
    target, run = tmp_path / "target", tmp_path / "run"
    run.mkdir()
    target.write_text('{"step":1}\n{"step":9}\n')
    path = run / name
    taken = path if place == "newest" else run / name.replace(".", ".part1.")
    {"link": lambda: taken.symlink_to(target), "pipe": lambda: os.mkfifo(taken), "directory": taken.mkdir}[kind]()
    with pytest.raises(FileRefused, match=f"{taken.name}' is refused: it is a {kind}"):
        KINDS[name](path).resume_at(2)
    if place == "newest":
        with pytest.raises(FileRefused, match=f"it is a {kind}"):
            KINDS[name](path).log(2, {"a": 1.0})
    else:
        with pytest.raises(FileRefused, match=f"it is a {kind}"):
            read_metrics(run)
    assert target.read_text() == '{"step":1}\n{"step":9}\n'


def test_a_log_that_becomes_a_link_while_it_is_written_is_noticed(tmp_path):
    target, path = tmp_path / "target", tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    logger.log(1, {"a": 1.0})
    path.rename(target)
    path.symlink_to(target)
    with pytest.raises(FileNotFoundError, match="was deleted or replaced"):
        logger.log(2, {"a": 1.0})
    with pytest.raises(FileRefused, match="it is a link"):
        logger.log(3, {"a": 1.0})
    assert target.read_text() == '{"step":1,"a":1.0}\n'


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"step":' + "[" * 100_000, '{"step": 1e999}', '{"step": 1, "a": [1]}']
)
def test_a_deep_or_senseless_row_is_left_out_and_never_a_recursion_error(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + line + '\n{"step": 2}\n{"step": 3}\n')
    JsonlLogger(path).resume_at(2)
    assert read_metrics(tmp_path).steps.tolist() == [1, 2]
