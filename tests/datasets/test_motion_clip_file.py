"""Clip files: what was saved comes back bit for bit, in all formats; hostile files are refused and run nothing."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from motion_samples import ramp

from striderl.checkpoint.strict_json import encode
from striderl.datasets.motion.clip import ClipError, MotionClip, left_right, standard_fields
from striderl.datasets.motion.clip_files import (
    NpzLayout,
    import_npz_clip,
    load_clip,
    read_arrays,
    save_clip,
    write_arrays,
)
from striderl.datasets.motion.json_clips import JsonLayout, export_json_clip, import_json_clip

LAYOUT = JsonLayout()


def whole_clip(num_frames: int = 4, dtype: Any = np.float64) -> MotionClip:
    """Every field of the JSON layout, with numbers that differ everywhere."""
    names = tuple(LAYOUT.columns(61))
    mirror = left_right(LAYOUT.joint_names)
    fields = standard_fields(names, joint_names=LAYOUT.joint_names, foot_names=LAYOUT.foot_names, mirror=mirror)
    rng = np.random.default_rng(0)
    values = {name: rng.normal(size=(num_frames, kind.size)).astype(dtype) for name, kind in fields.items()}
    rotation = values["root_rot"]
    values["root_rot"] = (rotation / np.linalg.norm(rotation, axis=1, keepdims=True)).astype(dtype)
    return MotionClip(
        name="whole",
        frame_duration=0.02,
        fields=fields,
        values=values,
        weight=0.5,
        joint_names=LAYOUT.joint_names,
        foot_names=LAYOUT.foot_names,
        about={"from": "a test"},
    )


def assert_equal(one: MotionClip, two: MotionClip) -> None:
    for name in ("frame_duration", "weight", "loop", "joint_names", "foot_names", "fields"):
        assert getattr(one, name) == getattr(two, name), name
    for name, value in one.values.items():
        assert two.values[name].dtype == value.dtype
        np.testing.assert_array_equal(two.values[name], value)


# -- our own format ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_clip_comes_back_bit_for_bit(tmp_path, dtype):
    clip = whole_clip(dtype=dtype)
    found = load_clip(save_clip(tmp_path / "whole.npz", clip))
    assert_equal(clip, found)
    assert list(found.fields) == list(clip.fields) and found.name == "whole" and found.about == {"from": "a test"}


def test_numpy_reads_it_and_equal_clips_are_equal_files(tmp_path):
    paths = [save_clip(tmp_path / name, whole_clip()) for name in ("a.npz", "b.npz")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with np.load(paths[0], allow_pickle=False) as file:
        np.testing.assert_array_equal(file["joint_pos"], whole_clip().values["joint_pos"])
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.npz", "b.npz"]


def changed(path: Path, change: Any) -> Path:
    """Rewrite a clip's header."""
    arrays = read_arrays(path)
    header = json.loads(arrays["header"].tobytes())
    change(header)
    return write_arrays(path, {**arrays, "header": np.frombuffer(encode(header), np.uint8)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header.update(version=2), "has version 2 of the format, this reader knows 1"),
        (lambda header: header.update(format="other"), "not one of a motion clip"),
        (lambda header: header.pop("weight"), "not complete"),
        (lambda header: header.update(weight=True), "where a number belongs"),
        (lambda header: header.update(weight="1"), "where a number belongs"),
        (lambda header: header.update(frame_duration=-1), "positive frame duration"),
        (lambda header: header.update(joint_names=[1, 2]), "where a text belongs"),
        (lambda header: header["fields"].pop(), "has fields"),
        (lambda header: header["fields"].append(header["fields"][0]), "twice"),
        (lambda header: header["fields"][0].update(size=7), "found"),
        (lambda header: header["fields"][0].update(size=1.5), "whole number"),
        (lambda header: header["fields"][0].update(kind="spline"), "no kind 'spline'"),
        (lambda header: header["fields"][0].update(mirror_index=["a"]), "mirror"),
        (lambda header: header.update(fields=None), "not complete"),
        (lambda header: header.update(about=[]), "not a table"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path, change, message):
    path = changed(save_clip(tmp_path / "clip.npz", whole_clip()), change)
    with pytest.raises(ClipError, match=message) as error:
        load_clip(path)
    assert "clip.npz" in str(error.value)


def test_a_file_cut_at_any_place_is_refused(tmp_path):
    path = save_clip(tmp_path / "clip.npz", ramp())
    content = path.read_bytes()
    for end in range(0, len(content), 37):
        path.write_bytes(content[:end])
        with pytest.raises(ClipError):
            load_clip(path)


def test_a_flipped_bit_is_refused_or_harmless(tmp_path):
    clip = ramp()
    path = save_clip(tmp_path / "clip.npz", clip)
    content = path.read_bytes()
    for place in range(0, len(content), 11):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        try:
            found = load_clip(path)
        except ClipError:
            continue
        assert_equal(clip, found)


class Bomb:
    """Says so when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("exploded"),))


def test_pickles_are_never_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("objects.npz", joint_pos=np.array([Bomb()], dtype=object), fps=np.array(50))
    for read in (load_clip, lambda path: import_npz_clip(path, NpzLayout(joint_names=("a",)))):
        with pytest.raises(ClipError, match="pickled Python objects, which are never read"):
            read("objects.npz")
    Path("pickle.npz").write_bytes(pickle.dumps(Bomb()))
    for read in (load_clip, import_json_clip):
        with pytest.raises(ClipError):
            read("pickle.npz")
    assert not Path("exploded").exists()


def zipped(path: Path, name: str, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return path


def npy(shape: str, content: bytes = b"", descr: str = "<f4") -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.npy", npy("(99999999999, 12)"), "but has 0 bytes"),
        ("x.npy", npy("(-1,)"), "readable header|but has"),
        ("x.npy", npy("(1,)", b"1234", "V4"), "which no clip needs"),
        ("x.npy", npy("(__import__('os').getcwd(),)"), "no readable header"),
        ("x.npy", npy("(1,)", b"1234")[:20], "no readable header"),
        ("x.npy", b"", "no readable header"),
        ("x.txt", b"hello", "which is not an array"),
    ],
)
def test_hostile_arrays_are_refused_before_anything_is_allocated(tmp_path, name, content, message):
    with pytest.raises(ClipError, match=message):
        read_arrays(zipped(tmp_path / "bad.npz", name, content))


def test_a_file_that_would_unpack_to_too_much_is_refused(tmp_path, monkeypatch):
    path = zipped(tmp_path / "bomb.npz", "x.npy", npy("(262144,)", bytes(1 << 20)))
    assert path.stat().st_size < 10_000
    monkeypatch.setattr("striderl.datasets.motion.clip_files.MAX_BYTES", 1 << 20)
    with pytest.raises(ClipError, match="at most 256 of 1048576"):
        read_arrays(path)


def test_a_file_that_lies_about_its_size_is_refused(tmp_path):
    path = zipped(tmp_path / "liar.npz", "x.npy", npy("(262144,)", bytes(1 << 20)))
    content = path.read_bytes()
    size = (len(npy("(262144,)")) + (1 << 20)).to_bytes(4, "little")
    assert content.count(size) == 2  # in front of the array, and in the list at the end
    path.write_bytes(content.replace(size, (100).to_bytes(4, "little")))
    with pytest.raises(ClipError, match=r"does not have the 100 bytes|not a readable"):
        read_arrays(path)


# -- JSON --------------------------------------------------------------------------------------------------------------


def test_json_there_and_back(tmp_path):
    clip = whole_clip()
    path = export_json_clip(tmp_path / "whole.json", clip)
    content = json.loads(path.read_text())
    assert [len(frame) for frame in content["Frames"]] == [61] * 4
    assert content["Frames"][0][3:7] == [*clip.values["root_rot"][0, 1:], clip.values["root_rot"][0, 0]]
    assert (content["LoopMode"], content["FrameDuration"], content["MotionWeight"]) == ("Clamp", 0.02, 0.5)
    layout = JsonLayout(mirror=left_right(LAYOUT.joint_names))
    assert_equal(clip, import_json_clip(path, layout))
    other = export_json_clip(tmp_path / "wxyz.json", clip, quaternion="wxyz")
    assert_equal(clip, import_json_clip(other, JsonLayout(quaternion="wxyz", mirror=layout.mirror)))


def test_a_frame_has_the_documented_columns(tmp_path):
    # the numbers of a frame are their own column; x y z w is 3 4 5 6, brought to length 1
    frame = [float(column) for column in range(61)]
    frame[3:7] = [0.0, 0.6, 0.0, 0.8]
    path = tmp_path / "columns.txt"
    path.write_text(json.dumps({"Frames": [frame, frame], "FrameDuration": 0.021, "LoopMode": "Wrap"}))
    clip = import_json_clip(path, loop="file")
    first = {name: value[0] for name, value in clip.values.items()}
    np.testing.assert_allclose(first["root_rot"], [0.8, 0.0, 0.6, 0.0])
    starts = {"root_pos": 0, "joint_pos": 7, "feet": 19, "base_lin_vel": 31, "base_ang_vel": 34, "joint_vel": 37}
    for name, start in {**starts, "feet_vel": 49}.items():
        assert first[name].tolist() == [float(start + offset) for offset in range(clip.fields[name].size)], name
    assert clip.joint_names[:3] == ("FR_hip_joint", "FR_thigh_joint", "FR_calf_joint")
    assert (clip.loop, clip.weight, clip.name) == ("wrap", 1.0, "columns")
    # brought to the order FL FR RL RR, the first leg is the file's second: columns 10 to 12
    joints = sorted(clip.joint_names, key=lambda name: name[:2])
    assert clip.ordered(joints).values["joint_pos"][0, :3].tolist() == [10.0, 11.0, 12.0]


def test_poses_alone_are_read_and_written(tmp_path):
    clip = whole_clip().select(("root_pos", "root_rot", "joint_pos"))
    path = export_json_clip(tmp_path / "pose.json", clip)
    assert len(json.loads(path.read_text())["Frames"][0]) == 19
    found = import_json_clip(path)
    np.testing.assert_array_equal(found.values["joint_pos"], clip.values["joint_pos"])


def good_json(**more: Any) -> dict[str, Any]:
    frame = [0.0] * 6 + [1.0] + [0.0] * 12
    return {"Frames": [frame, frame], "FrameDuration": 0.02, **more}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (good_json(Frames=[[0.0] * 20] * 2), r"frames have 20 numbers; 12 joints and 4 feet make 19 \(pose\) or 61"),
        (good_json(Frames=[[0.0] * 19, [0.0] * 18]), "frame 1 has 18 numbers, frame 0 has 19"),
        (good_json(Frames=[[0.0] * 19] * 2), "wants length 1 in 'root_rot'"),
        (good_json(Frames=[["1"] * 19] * 2), "not a number"),
        (good_json(Frames=[[True] * 19] * 2), "not a number"),
        (good_json(Frames=good_json()["Frames"][:1]), "at least 2"),
        (good_json(Frames=[]), "not a list of frames"),
        (good_json(Frames={"a": 1}), "not a list of frames"),
        (good_json(FrameDuration=0), "positive frame duration"),
        (good_json(FrameDuration="fast"), "'FrameDuration' is not a number but 'fast'"),
        (good_json(MotionWeight=-1), "weight that is not negative"),
        ({"Frames": good_json()["Frames"]}, "'FrameDuration' is not a number"),
        ([1, 2], "not a table"),
    ],
)
def test_broken_json_is_refused(tmp_path, content, message):
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ClipError, match=message) as error:
        import_json_clip(path)
    assert "broken.json" in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"Frames": [[NaN]], "FrameDuration": 1}', "NaN is not a JSON number"),
        ('{"Frames": [[1e999]], "FrameDuration": 1}', "1 numbers"),
        ("[" * 100_000, "nested too deeply"),
        ('{"Frames": 1, "Frames": 2}', "one key twice"),
        ("import os", "not the JSON"),
        ("", "not the JSON"),
    ],
)
def test_text_that_is_no_clip_is_refused(tmp_path, text, message):
    path = tmp_path / "text.json"
    path.write_text(text)
    with pytest.raises(ClipError, match=message):
        import_json_clip(path)


def test_an_infinite_number_is_refused(tmp_path):
    path = tmp_path / "infinite.json"
    path.write_text(json.dumps(good_json()).replace("1.0", "1e999", 1))
    with pytest.raises(ClipError, match="not finite"):
        import_json_clip(path)


def test_what_the_file_says_about_looping_is_asked_for(tmp_path):
    path = tmp_path / "loop.json"
    path.write_text(json.dumps(good_json(LoopMode="Wrap")))
    assert import_json_clip(path).loop == "clamp" and import_json_clip(path, loop="file").loop == "wrap"
    path.write_text(json.dumps(good_json(LoopMode="Sometimes")))
    with pytest.raises(ClipError, match="no LoopMode 'Sometimes'"):
        import_json_clip(path, loop="file")


# -- other .npz --------------------------------------------------------------------------------------------------------


def test_arrays_of_others_by_name_and_body(tmp_path):
    rotation = np.zeros((3, 2, 4), np.float32)
    rotation[:, 0, 1], rotation[:, 1, 3] = 1.0, 1.0  # body 1 is not turned, in x y z w
    path = tmp_path / "other.npz"
    np.savez(
        path,
        fps=np.array(50),
        dof_positions=np.arange(6, dtype=np.float32).reshape(3, 2),
        body_positions=np.arange(18, dtype=np.float64).reshape(3, 2, 3),
        body_rotations=rotation,
        dof_names=np.array(["a", "b"]),
    )
    arrays = {"joint_pos": "dof_positions", "root_pos": "body_positions", "root_rot": "body_rotations"}
    layout = NpzLayout(joint_names=("a", "b"), arrays=arrays, quaternion="xyzw", body=1)
    clip = import_npz_clip(path, layout, weight=2.0)
    assert clip.frame_duration == pytest.approx(0.02) and clip.weight == 2.0
    assert clip.values["root_pos"][0].tolist() == [3.0, 4.0, 5.0]
    assert clip.values["root_rot"][0].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert clip.values["joint_pos"][:, 1].tolist() == [1.0, 3.0, 5.0]
    with pytest.raises(ClipError, match="no body 2"):
        import_npz_clip(path, NpzLayout(joint_names=("a", "b"), arrays=arrays, body=2))
    with pytest.raises(ClipError, match=r"no array 'dof_position'\. Did you mean 'dof_positions'"):
        import_npz_clip(path, NpzLayout(joint_names=("a", "b"), arrays={"joint_pos": "dof_position"}))
    with pytest.raises(ClipError, match="no array is called like a usual field"):
        import_npz_clip(path, NpzLayout(joint_names=("a", "b")))


def test_unequal_times_are_made_equal(tmp_path):
    # joint_pos is 10 t at t = 0, 0.1, 0.2, 0.4: frames 0.1 s apart are 0 1 2 3 4
    path = tmp_path / "times.npz"
    times = np.array([0.0, 0.1, 0.2, 0.4])
    np.savez(path, times=times, joint_pos=10.0 * times[:, None])
    clip = import_npz_clip(path, NpzLayout(joint_names=("a",)))
    assert clip.frame_duration == pytest.approx(0.1)
    np.testing.assert_allclose(clip.values["joint_pos"][:, 0], [0.0, 1.0, 2.0, 3.0, 4.0], atol=1e-12)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"times": [0.0, 0.2, 0.1]}, "do not increase: 0.2 is followed by 0.1"),
        ({"times": [0.0, 0.0, 0.1]}, "do not increase"),
        ({"times": [0.0, np.nan, 0.1]}, "do not increase"),
        ({"times": [0.0, 0.1]}, "2 times for frames of lengths"),
        ({}, "nothing says when"),
        ({"fps": [30, 60]}, "nothing says when"),
        ({"fps": 0.0}, "which is no rate"),
        ({"dt": -0.1}, "which is no rate"),
    ],
)
def test_times_must_make_sense(tmp_path, arrays, message):
    path = tmp_path / "times.npz"
    np.savez(path, joint_pos=np.zeros((3, 1)), **{name: np.array(value) for name, value in arrays.items()})
    with pytest.raises(ClipError, match=message):
        import_npz_clip(path, NpzLayout(joint_names=("a",)))


def test_our_own_reader_says_who_reads_other_files(tmp_path):
    stream = io.BytesIO()
    np.savez(stream, joint_pos=np.zeros((3, 1)))
    (tmp_path / "other.npz").write_bytes(stream.getvalue())
    with pytest.raises(ClipError, match="import_npz_clip reads other"):
        load_clip(tmp_path / "other.npz")
