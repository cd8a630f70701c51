"""Recordings of pickle files are brought over exactly; a pickle that wants more than arrays is refused and not run."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from striderl.cli.main import main
from striderl.datasets.readers.array_pickle import BrokenPickle, read_arrays
from striderl.datasets.readers.old_pickles import import_old_trajectories
from striderl.datasets.trajectories.spec import (
    TrajectoryError,
    TrajectoryMismatch,
    TrajectoryMissing,
    TrajectoryRefused,
)
from striderl.datasets.trajectories.store import TrajectoryStore

SEGMENTS = {"joints": [2], "depth": [1, 2, 2]}


def old_steps(start: int, stop: int, *, mapped: bool, ends: int) -> dict:
    """Steps of an old recording; the episode ends with step `ends` by a time-out."""
    steps = np.arange(start, stop, dtype=np.float32)
    depth = np.repeat((steps % 5 * 51).astype(np.uint8)[:, None], 4, axis=1)
    joints = np.stack([steps, -steps], axis=1)
    done = steps == ends
    content = {
        "privileged_observations": 10 * joints,
        "actions": 0.5 * joints,
        "rewards": steps[:, None],
        "dones": done[:, None].astype(np.uint8),
        "values": np.zeros((len(steps), 1), np.float32),
        "timeouts": done,
    }
    if mapped:
        return {"obs_joints": joints, "obs_depth": depth, **content}
    # the old saver put the whole observation into a tuple of one
    return {"observations": (np.concatenate([joints, depth.astype(np.float32) / 255.0], axis=1),), **content}


def old_recording(folder: Path, *, mapped: bool = True, protocol: int = 4) -> Path:
    """Two trajectories: one of 7 steps in two files, and one of 3 steps whose recording stopped."""
    mapping = {"obs_disassemble_mapping": {"depth": "normalized_image"}} if mapped else {}
    folder.mkdir(parents=True)
    (folder / "metadata.json").write_text(json.dumps({"obs_segments": SEGMENTS, "total_timesteps": 10, **mapping}))
    for number, start, stop, ends in [(0, 0, 4, 6), (0, 4, 7, 6), (12, 0, 3, 99)]:
        place = folder / f"trajectory_{number}"
        place.mkdir(exist_ok=True)
        content = pickle.dumps(old_steps(start, stop, mapped=mapped, ends=ends), protocol=protocol)
        (place / f"traj_{start:06d}_{stop:06d}.pickle").write_bytes(content)
    (folder / "trajectory_13").mkdir()
    return folder


@pytest.mark.parametrize("mapped", [True, False])
def test_a_recording_is_brought_over(tmp_path, mapped):
    done = import_old_trajectories(old_recording(tmp_path / "old", mapped=mapped), tmp_path / "new")
    assert done == (2, 10, ())
    store = TrajectoryStore(tmp_path / "new")
    assert store.lengths() == [7, 3]
    assert {name: (part.shape, part.group) for name, part in store.obs_spec.items()} == {
        "joints": ((2,), "policy"),
        "depth": ((1, 2, 2), "policy"),
        "critic/obs": ((2,), "critic"),
    }
    for index, length in enumerate(store.lengths()):
        steps, count = store.read(index), torch.arange(length).float()
        assert torch.equal(steps["obs"]["joints"], torch.stack([count, -count], dim=1))
        assert torch.equal(steps["obs"]["critic/obs"], 10 * steps["obs"]["joints"])
        assert torch.equal(steps["act"], 0.5 * steps["obs"]["joints"]) and torch.equal(steps["rew"], count)
        assert torch.allclose(steps["obs"]["depth"][:, 0, 0, 0], count % 5 / 5.0, atol=1e-6)
        assert steps["truncated"].tolist() == [False] * (length - 1) + [True], "a time-out; or nobody saw the end"
        assert not steps["terminated"].any() and steps["valid"].all()
    codecs = {column.name: column.codec for column in store.spec.columns}
    assert codecs["obs/depth"] == ("normalized_image" if mapped else "raw")
    assert store.read_about(1) == {"imported_from": "trajectory_12"}


def test_a_fall_is_no_time_out_and_episodes_are_cut_apart(tmp_path):
    folder = old_recording(tmp_path / "old")
    path = folder / "trajectory_12" / "traj_000000_000003.pickle"
    steps = old_steps(0, 3, mapped=True, ends=99)
    steps["dones"] = np.array([[0], [1], [0]], np.uint8)
    del steps["timeouts"], steps["privileged_observations"]
    path.write_bytes(pickle.dumps(steps))
    with pytest.raises(TrajectoryMismatch, match=r"trajectory_12 has other columns.*critic/obs"):
        import_old_trajectories(folder, tmp_path / "mixed")
    assert not (tmp_path / "mixed").exists(), "half an import is in nobody's way"
    steps["privileged_observations"] = np.zeros((3, 2))
    path.write_bytes(pickle.dumps(steps))
    assert import_old_trajectories(folder, tmp_path / "new").num_trajectories == 3
    store = TrajectoryStore(tmp_path / "new")
    assert store.lengths() == [7, 2, 1]
    assert store.read(1)["terminated"].tolist() == [False, True] and not store.read(1)["truncated"].any()
    assert store.read(2)["truncated"].tolist() == [True]


@pytest.mark.parametrize("name", ["timeouts", "timeout", "TimeLimit.truncated"])
def test_a_time_out_under_any_of_its_names_is_no_fall(tmp_path, name):
    folder = old_recording(tmp_path / "old")
    path = folder / "trajectory_12" / "traj_000000_000003.pickle"
    steps = old_steps(0, 3, mapped=True, ends=99)
    del steps["timeouts"]
    steps["dones"], steps[name] = (np.array([[0], [0], [1]], np.uint8) for _ in range(2))
    path.write_bytes(pickle.dumps(steps))
    import_old_trajectories(folder, tmp_path / "new")
    store = TrajectoryStore(tmp_path / "new")
    assert store.read(1)["truncated"].tolist() == [False, False, True] and not store.read(1)["terminated"].any()


def test_what_is_damaged_is_left_out_and_named(tmp_path, capsys):
    folder = old_recording(tmp_path / "old")
    (folder / "metadata.json").write_text('{"config": ')  # as the old saver leaves it when it dies in its last line
    first = folder / "trajectory_0" / "traj_000004_000007.pickle"
    first.write_bytes(first.read_bytes()[:-20])
    assert main(["import-trajectories", str(folder), str(tmp_path / "new")]) == 1
    said = capsys.readouterr()
    assert "3 steps in 1 trajectories" in said.out and "left out trajectory_0: traj_000004_000007.pickle" in said.err
    assert TrajectoryStore(tmp_path / "new").lengths() == [3]
    first.unlink()
    (folder / "trajectory_0" / "traj_000005_000007.pickle").write_bytes(b"")
    done = import_old_trajectories(folder, tmp_path / "newer")
    assert done.left_out == ("trajectory_0: steps 4 to 5 are missing",)


def test_mistakes_have_a_message(tmp_path, capsys):
    assert main(["import-trajectories", str(tmp_path / "nothing"), str(tmp_path / "new")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    with pytest.raises(TrajectoryMissing, match="has no folders trajectory_0"):
        import_old_trajectories(tmp_path, tmp_path / "new")
    empty = tmp_path / "empty" / "trajectory_0"
    empty.mkdir(parents=True)
    (empty.parent / "trajectory_1").write_text("not a folder")
    with pytest.raises(TrajectoryMissing, match=r"its folders hold no traj_000000_000064\.pickle$"):
        import_old_trajectories(empty.parent, tmp_path / "new")
    nothing = old_steps(0, 0, mapped=True, ends=0)
    (empty / "traj_000000_000000.pickle").write_bytes(pickle.dumps(nothing))
    with pytest.raises(TrajectoryMissing, match=r"trajectory_0: it has no steps$"):
        import_old_trajectories(empty.parent, tmp_path / "new")
    folder = old_recording(tmp_path / "old")
    import_old_trajectories(folder, tmp_path / "new")
    with pytest.raises(TrajectoryError, match="holds trajectories already"):
        import_old_trajectories(folder, tmp_path / "new")
    with pytest.raises(TrajectoryError, match="import-trajectories"):
        TrajectoryStore(folder)


# -- pickles -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_of_every_protocol_are_read(tmp_path, protocol):
    arrays = {
        "plain": np.arange(6, dtype=np.float32).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big_endian": np.arange(3, dtype=">i4"),
        "flags": np.array([True, False]),
        "number": np.float64(2.5),
        "empty": np.zeros((0, 4), np.uint8),
        "same": np.ones(2, np.int64),
    }
    arrays["again"] = arrays["same"]
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps({**arrays, "nothing": None, "wrapped": (arrays["plain"],)}, protocol=protocol))
    found = read_arrays(path)
    assert set(found) == {*arrays, "wrapped"}
    for name, wanted in arrays.items():
        assert np.array_equal(found[name], wanted) and found[name].dtype == wanted.dtype, name
    assert np.array_equal(found["wrapped"], arrays["plain"])


class Runs:
    """Pickles as a call."""

    def __init__(self, function, *arguments) -> None:
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def hostile(marker: Path) -> dict[str, bytes]:
    """Programs that would make a file, each in its own way."""
    touch = f"touch {marker}"
    built = b"\x80\x04cnumpy\ndtype\n}(X\x08\x00\x00\x00__dict__}u}b."
    return {
        "posix.system": pickle.dumps({"actions": Runs(os.system, touch)}),
        "subprocess.Popen": pickle.dumps({"actions": Runs(subprocess.Popen, ["touch", str(marker)])}, protocol=2),
        "builtins.eval": pickle.dumps({"a": Runs(eval, f"open({str(marker)!r}, 'w')")}),
        "os.system": b"cos\nsystem\n(S'" + touch.encode() + b"'\ntR.",
        "INST": b"(S'" + touch.encode() + b"'\nios\nsystem\n.",
        "numpy.load": pickle.dumps({"a": Runs(np.load, str(marker))}),
        "dtype 'O'": pickle.dumps({"a": np.array([Runs(os.system, touch)], dtype=object)}),
        "something that is not an array": built,
        "numpy.ndarray by itself": pickle.dumps({"a": Runs(np.ndarray, (2,))}),
        "a list": pickle.dumps([1]),
    }


def test_a_pickle_that_wants_to_run_something_is_refused(tmp_path):
    marker = tmp_path / "was_run"
    for name, content in hostile(marker).items():
        folder = old_recording(tmp_path / name.replace("'", ""))
        path = folder / "trajectory_0" / "traj_000000_000004.pickle"
        path.write_bytes(content)
        with pytest.raises(TrajectoryRefused, match="is refused") as caught:
            import_old_trajectories(folder, tmp_path / "new")
        assert path.name in str(caught.value) and not marker.exists(), name
        if "." in name and " " not in name:
            assert name in str(caught.value), str(caught.value)
        assert len(TrajectoryStore(tmp_path / "new")) == 0


def test_the_payload_is_real(tmp_path):
    """The same program does run where pickles are loaded as usual; otherwise the test above would show nothing."""
    program = hostile(tmp_path / "was_run")["posix.system"]
    pickle.loads(program)
    assert (tmp_path / "was_run").exists()


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_pickles_are_refused_or_read_but_nothing_else(tmp_path_factory, data):
    content = bytearray(pickle.dumps(old_steps(0, 3, mapped=True, ends=1), protocol=data.draw(st.integers(0, 5))))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.pickle"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        found = read_arrays(path)
    except (TrajectoryRefused, BrokenPickle):
        return
    assert all(isinstance(value, np.ndarray) and value.dtype.kind in "biuf" for value in found.values())
