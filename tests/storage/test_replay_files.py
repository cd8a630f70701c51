"""Files of replay buffers that somebody made to do harm: nothing is written outside, nothing large is allocated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from striderl.storage.replay.replay import Mark
from striderl.storage.replay_buffer.buffer import ReplayBuffer

SIZE = 8


def saved(path: Path) -> dict[str, bytes]:
    """The members of a good file."""
    buffer = ReplayBuffer(SIZE)
    for step in range(4):
        buffer.add(obs=step, act=0, rew=0.0, done=False, obs_next=step + 1)
    buffer.save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewritten(path: Path, members: list[tuple[str, bytes]], kind: int = zipfile.ZIP_STORED) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", kind) as archive:
        warnings.simplefilter("ignore")  # about a name that is there twice
        for name, content in members:
            archive.writestr(name, content)
    return path


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "name", ["/ABSOLUTE/x", "../../x", "obs/../../../x", "..", "", ".", "obs..x", "obs\\..\\x", "inside/link/x"]
)
def test_a_column_outside_of_the_folder_is_refused_before_anything_is_written(tmp_path, name):
    members = saved(tmp_path / "good")
    folder = tmp_path / "rows" / "of" / "this"
    (folder / "inside").mkdir(parents=True)
    (folder / "inside" / "link").symlink_to(tmp_path)
    evil = name.replace("ABSOLUTE", str(tmp_path / "elsewhere").strip("/"))
    path = rewritten(tmp_path / "evil", [*members.items(), (f"column/{evil}.npy", members["column/obs.npy"])])
    before = everything(tmp_path)
    with pytest.raises(ValueError, match="evil"):
        ReplayBuffer(SIZE, folder=folder).restore(path)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "directory"])
def test_a_column_whose_file_is_a_link_is_refused_and_the_target_untouched(tmp_path, kind):
    saved(tmp_path / "good")
    folder, target = tmp_path / "rows", tmp_path / "target"
    folder.mkdir()
    target.write_text("untouched")
    place = folder / "obs.bin"
    {
        "link": lambda: place.symlink_to(target),
        "dangling": lambda: place.symlink_to(tmp_path / "nowhere"),
        "pipe": lambda: os.mkfifo(place),
        "directory": place.mkdir,
    }[kind]()
    buffer = ReplayBuffer(SIZE, folder=folder)
    with pytest.raises(ValueError, match=r"obs\.bin"):
        buffer.restore(tmp_path / "good")
    with pytest.raises(ValueError, match=r"obs\.bin"):
        buffer.add(obs=0, act=0, rew=0.0, done=False, obs_next=1)
    assert target.read_text() == "untouched" and not (tmp_path / "nowhere").exists()


def npy(shape: str, content: bytes = b"", descr: str = "<f4") -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda found: [*found.items(), ("column/obs.npy", found["column/obs.npy"])], "names an array twice"),
        (lambda found: [*found.items(), ("column/big.npy", npy("(8, 99999999999)"))], "but has 0 bytes"),
        (lambda found: [*found.items(), ("column/big.npy", npy("(8,)", bytes(64)))], "but has 64 bytes"),
        (lambda found: [*found.items(), ("column/none.npy", npy("()", bytes(4)))], "wanted 8 rows"),
        (lambda found: [*found.items(), ("column/object.npy", npy("(8,)", bytes(64), "|O"))], "pickled"),
        (lambda found: [*found.items(), ("readme.txt", b"hello")], "not an array"),
        (lambda found: [*({**found, "meta.json": b"[" * 100_000}).items()], "nested too deeply"),
        (lambda found: [*({**found, "meta.json": b'{"keys":1,"keys":2}'}).items()], "one key twice"),
        (lambda found: [*({**found, "meta.json": b"\xff"}).items()], "not UTF-8"),
        (lambda found: [(name, text) for name, text in found.items() if name != "meta.json"], "no meta.json"),
        (lambda found: [*({**found, "meta.json": changed_meta(found, keys=None)}).items()], "complete"),
        (lambda found: [*({**found, "meta.json": changed_meta(found, draw="x")}).items()], "complete"),
    ],
)
def test_members_that_are_not_what_they_declare_are_refused_and_change_nothing(tmp_path, change, reason):
    path = rewritten(tmp_path / "evil", change(saved(tmp_path / "good")))
    buffer = ReplayBuffer(SIZE)
    buffer.add(obs=7, act=0, rew=0.0, done=False, obs_next=8)
    with pytest.raises(ValueError, match=reason):
        buffer.restore(path)
    assert len(buffer) == 1 and buffer.obs[0] == 7


def changed_meta(found: dict[str, bytes], **changes: Any) -> bytes:
    return json.dumps({**json.loads(found["meta.json"]), **changes}).encode()


BOMB = """
import resource, sys
from striderl.storage.replay_buffer import ReplayBuffer
buffer = ReplayBuffer(8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    buffer.restore(sys.argv[1])
except ValueError as error:
    assert "bytes" in str(error), error
else:
    raise SystemExit("was read")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_compressed_bomb_is_refused_before_it_is_unpacked(tmp_path):
    members = saved(tmp_path / "good")
    # an eighth of a gigabyte of zeros, one byte short of its shape; it would be seen below
    content = npy("(4, 8388608)", bytes(4 * 8388608 * 4 - 1))
    path = rewritten(tmp_path / "bomb", [*members.items(), ("column/big.npy", content)], zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 500_000
    del content
    result = subprocess.run([sys.executable, "-c", BOMB, path], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 100_000, "kilobytes"


def test_a_save_replaces_a_replay_buffer_and_no_other_file(tmp_path):
    saved(tmp_path / "buffer")
    saved(tmp_path / "buffer")
    thesis = tmp_path / "thesis.pdf"
    thesis.write_bytes(b"%PDF years of work")
    for kind in ("file", "link", "directory"):
        path = {"file": thesis, "link": tmp_path / "link", "directory": tmp_path / "folder"}[kind]
        if kind == "link":
            path.symlink_to(thesis)
        elif kind == "directory":
            path.mkdir()
        with pytest.raises(ValueError, match=path.name):
            saved(path)
    assert thesis.read_bytes() == b"%PDF years of work"
    assert sorted(os.listdir(tmp_path)) == ["buffer", "folder", "link", "thesis.pdf"]


def test_the_mark_of_a_replay_in_files_is_not_written_through_a_link(tmp_path):
    target, folder = tmp_path / "target", tmp_path / "rows"
    folder.mkdir()
    np.zeros(4, np.int64).tofile(target)
    (folder / "written.bin").symlink_to(target)
    with pytest.raises(ValueError, match=r"written\.bin.*link"):
        Mark(folder, 4)
