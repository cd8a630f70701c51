"""CSV and JSON lines: what is written can be read, rows are whole, a resumed run repeats none."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from striderl.loggers.file_loggers import CsvLogger, JsonlLogger, LineFile


def json_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def csv_rows(path):
    """The rows as numbers; an empty cell is left out."""
    with path.open(newline="") as file:
        return [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]


KINDS = {"jsonl": (JsonlLogger, json_rows), "csv": (CsvLogger, csv_rows)}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def test_rows_come_back_bit_for_bit(kind, tmp_path):
    make, read = kind
    path = tmp_path / "deep" / "metrics"
    logger = make(path)
    numbers = {"train/kl": 0.1 + 0.2, 'odd, "name"': 1e-300, "count": 3}
    logger.log(32, numbers)
    assert read(path) == [{"step": 32, **numbers}], "on disk before the file is closed"
    logger.close()
    logger.close()
    again = make(path)
    again.log(64, numbers)
    again.close()
    assert [row["step"] for row in read(path)] == [32, 64]


def test_numbers_that_are_not_finite(tmp_path):
    JsonlLogger(tmp_path / "a").log(1, {"a": math.nan, "b": math.inf, "c": 1.0})
    assert json_rows(tmp_path / "a") == [{"step": 1, "a": None, "b": None, "c": 1.0}]
    CsvLogger(tmp_path / "b").log(1, {"a": math.nan, "b": -math.inf, "c": 1.0})
    assert (tmp_path / "b").read_text() == "step,a,b,c\n1,nan,-inf,1.0\n"


def test_columns_may_appear_and_disappear(tmp_path):
    path = tmp_path / "metrics.csv"
    logger = CsvLogger(path)
    logger.log(1, {"a": 1.0})
    logger.log(2, {"b": 2.0, "a": 1.5})
    logger.log(3, {"c": 3.0})
    assert path.read_text() == "step,a,b,c\n1,1.0,,\n2,1.5,2.0,\n3,,,3.0\n"
    logger.close()
    # another process finds the columns in the file, and adds to them
    other = CsvLogger(path)
    other.log(4, {"b": 4.0, "d": 5.0})
    assert path.read_text().splitlines()[0] == "step,a,b,c,d"
    assert csv_rows(path)[-1] == {"step": 4.0, "b": 4.0, "d": 5.0}
    assert os.listdir(tmp_path) == ["metrics.csv"], "no temporary file stays"


@pytest.mark.parametrize("saved", [0, 1, 3, 5, 9])
def test_a_resumed_run_repeats_no_row(kind, tmp_path, saved):
    make, read = kind
    whole, path = tmp_path / "whole", tmp_path / "resumed"
    for target, steps in ((whole, range(1, 9)), (path, range(1, 6))):
        logger = make(target)
        for step in steps:
            logger.log(step, {"a": step / 3, **({"b": 1.0} if step % 2 else {})})
    resumed = make(path)
    resumed.resume_at(saved)
    assert [row["step"] for row in read(path)] == list(range(1, min(saved, 5) + 1))
    for step in range(min(saved, 5) + 1, 9):
        resumed.log(step, {"a": step / 3, **({"b": 1.0} if step % 2 else {})})
    assert read(path) == read(whole)


@pytest.mark.parametrize("resume", [True, False])
def test_a_torn_last_line_is_dropped(kind, tmp_path, resume):
    make, read = kind
    path = tmp_path / "metrics"
    logger = make(path)
    logger.log(1, {"a": 1.0})
    logger.log(2, {"a": 2.0})
    logger.close()
    whole = path.read_bytes()
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        again = make(path)
        if resume:
            again.resume_at(2)
        again.log(3, {"a": 3.0})
        again.close()
        kept = whole[:length].count(b"\n") - (make is CsvLogger)
        assert [row["step"] for row in read(path)] == [*range(1, kept + 1), 3], whole[:length]


def test_resuming_where_nothing_is_makes_nothing(kind, tmp_path):
    make, _ = kind
    make(tmp_path / "none" / "metrics").resume_at(5)
    assert not (tmp_path / "none").exists()


def test_a_line_that_somebody_damaged_does_not_cost_the_others(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nrubbish\n[1]\n{"step": 2}\n{"step": 3}\n')
    JsonlLogger(path).resume_at(2)
    assert path.read_text() == '{"step": 1}\nrubbish\n[1]\n{"step": 2}\n'


def test_a_deleted_folder_is_told_and_begun_anew(kind, tmp_path):
    make, read = kind
    path = tmp_path / "run" / "metrics"
    logger = make(path)
    logger.log(1, {"a": 1.0})
    shutil.rmtree(path.parent)
    with pytest.raises(FileNotFoundError, match="was deleted or replaced"):
        logger.log(2, {"a": 2.0})
    logger.log(3, {"a": 3.0, "b": 4.0})
    logger.log(4, {"a": 3.0, "b": 4.0})
    assert [row["step"] for row in read(path)] == [3, 4]


FULL = """
import resource, signal, sys
from pathlib import Path
from striderl.loggers.{module} import {name}
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
logger = {name}(Path(sys.argv[1]))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
failed = []
for step in range(10, 40):  # rows of one length
    if step == 35:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    try:
        logger.log(step, {{"a": step + 0.25}})
    except OSError:
        failed.append(step)
assert failed == list(range(failed[0], 35)), failed
sys.stdout.write(str(failed[0]))
"""


@pytest.mark.parametrize(("module", "name"), [("jsonl_logger", "JsonlLogger"), ("csv_logger", "CsvLogger")])
def test_a_full_disk_tears_no_line(tmp_path, module, name):
    """Some rows fit into 200 bytes, then each write fails, one of them half-way; later there is room again."""
    path = tmp_path / "metrics"
    program = FULL.format(module=module, name=name)
    result = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    first_lost = int(result.stdout)
    rows = json_rows(path) if name == "JsonlLogger" else csv_rows(path)
    assert [row["step"] for row in rows] == [*range(10, first_lost), *range(35, 40)] and 12 < first_lost < 35
    assert all(row["a"] == row["step"] + 0.25 for row in rows)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=30), max_size=8),
    cut=st.integers(0, 300),
)
def test_line_files_hold_whole_lines_after_any_cut(tmp_path_factory, lines, cut):
    path = tmp_path_factory.mktemp("lines") / "file"
    file = LineFile(path)
    for line in lines:
        file.append(line)
    file.close()
    content = path.read_bytes() if lines else b""
    path.write_bytes(content[:cut])
    again = LineFile(path)
    again.append("next")
    whole = content[:cut].rpartition(b"\n")
    assert path.read_bytes() == whole[0] + whole[1] + b"next\n"


def test_a_long_line_without_end_is_found_backwards(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one\n" + b"x" * 200_000)
    file = LineFile(path)
    file.append("two")
    assert path.read_bytes() == b"one\ntwo\n"
