"""The one opener of files: links, pipes, sizes, text and JSON are refused by name, and nothing is left half."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from striderl.checkpoint import safe_files
from striderl.checkpoint.errors import MAX_DEPTH, CheckpointError, FileRefused


def something_else(kind: str, path: Path, target: Path) -> None:
    """Put what is not a plain file under a name."""
    if kind == "link":
        path.symlink_to(target)
    elif kind == "dangling link":
        path.symlink_to(target.with_name("nowhere"))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(str(path))


KINDS = ["link", "dangling link", "pipe", "directory", "device", "socket"]
OPENERS = {
    "read": lambda path: safe_files.read_bytes(path, max_bytes=100),
    "lines": lambda path: list(safe_files.read_lines(path)),
    "json lines": safe_files.read_json_lines,
    "append": safe_files.open_append,
    "replace": lambda path: safe_files.write_text(path, "new"),
}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("kind", KINDS)
def test_only_plain_files_are_opened(tmp_path, kind, opener):
    target = tmp_path / "target"
    target.write_text("untouched")
    path = tmp_path / "name"
    something_else(kind, path, target)
    with pytest.raises(FileRefused, match=r"name' is refused: it is (a|not)") as caught:
        OPENERS[opener](path)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, CheckpointError)
    assert target.read_text() == "untouched" and not (tmp_path / "nowhere").exists()
    assert sorted(os.listdir(tmp_path)) == ["name", "target"]


def test_a_link_above_the_file_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "real")
    safe_files.write_text(tmp_path / "runs" / "file", "hello")
    assert safe_files.read_text(tmp_path / "runs" / "file") == "hello"


def test_what_the_system_refuses_stays_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError):
        safe_files.read_text(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        safe_files.write_text(tmp_path / "nowhere" / "file", "")


def test_a_large_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**40)  # a terabyte without a byte on the disk
    with pytest.raises(FileRefused, match="1099511627776 bytes, at most 67108864"):
        safe_files.read_text(path)
    with pytest.raises(FileRefused, match="a line of more than"):
        next(iter(safe_files.read_lines(path)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested too deeply"),
        (b'{"a":1,"a":2}', "one key twice"),
        (b"[NaN]", "NaN is not"),
        (b"[" + b"0," * 1_000_001 + b"0]", "values, at most"),
        (b"{", "not the JSON"),
        (b"", "not the JSON"),
    ],
)
def test_json_is_strict_and_its_errors_name_the_file(tmp_path, text, reason):
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(FileRefused, match=reason) as caught:
        safe_files.read_json(path)
    assert "config.json" in str(caught.value)


def test_json_of_the_deepest_allowed_level_is_read(tmp_path):
    value: object = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    path = safe_files.write_json(tmp_path / "deep.json", value)
    assert safe_files.read_json(path) == value
    assert safe_files.write_text(path, json.dumps({"wide": [[1]] * 500})) == path
    assert len(safe_files.read_json(path)["wide"]) == 500


def test_json_lines_name_the_damaged_line(tmp_path):
    path = tmp_path / "episodes.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n')
    assert safe_files.read_json_lines(path) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(FileRefused, match=r"episodes.jsonl, line 2"):
        safe_files.read_json_lines(path)


def test_a_replacement_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), safe_files.replacing(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["file"] and path.read_text() == "old"


def test_a_leftover_of_a_killed_writer_is_replaced_and_a_planted_link_is_not_followed(tmp_path):
    path, target = tmp_path / "file", tmp_path / "target"
    target.write_text("untouched")
    (tmp_path / ".new.file").write_text("half")
    safe_files.write_text(path, "new")
    assert path.read_text() == "new"
    (tmp_path / ".new.file").symlink_to(target)
    with pytest.raises(FileRefused, match="it is a link"):
        safe_files.write_text(path, "newer")
    assert target.read_text() == "untouched" and path.read_text() == "new"


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "", ".", "a\\b", "a\0b", "out/x", "out"])
def test_a_member_does_not_leave_its_folder(tmp_path, name):
    root = tmp_path / "root"
    root.mkdir()
    (root / "out").symlink_to(tmp_path)
    with pytest.raises(FileRefused):
        safe_files.member(root, name)


def test_a_member_may_lie_deep_inside_and_behind_a_link_that_stays_inside(tmp_path):
    (tmp_path / "data" / "chunk").mkdir(parents=True)
    (tmp_path / "newest").symlink_to(tmp_path / "data")
    assert safe_files.member(tmp_path, "data/chunk/file.npy") == tmp_path / "data" / "chunk" / "file.npy"
    assert safe_files.member(tmp_path, "newest/chunk/file.npy") == tmp_path / "newest" / "chunk" / "file.npy"
