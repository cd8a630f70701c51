"""Trajectories on disk: what is written comes back, in parts too, and what does not fit is refused by name."""

from __future__ import annotations

import json
import struct
import tempfile
import threading
import time
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectory_cases import COLUMNS, FLAG, add_numbered, is_numbered, numbered, record, small_spec

from striderl.data import tree
from striderl.data.actions import BoxSpec
from striderl.data.specs import DTYPES, ComponentSpec, ObsSpec, TensorSpec, torch_dtype
from striderl.datasets.trajectories.codecs import (
    CODECS,
    compress_normalized_image,
    decompress_normalized_image,
    pack,
    unpack,
)
from striderl.datasets.trajectories.spec import (
    TrajectoryColumn,
    TrajectoryCorrupt,
    TrajectoryError,
    TrajectoryMismatch,
    TrajectoryMissing,
    TrajectorySpec,
    TrajectoryTimeout,
    TrajectoryVersion,
)
from striderl.datasets.trajectories.store import TrajectoryStore
from striderl.datasets.trajectories.writer import TrajectoryWriter

# -- codecs ------------------------------------------------------------------------------------------------------------


def test_a_normalised_image_is_one_byte_per_pixel():
    # 0.5 · 255 = 127.5, rounded to the even 128; 128 / 255 = 0.50196; outside of [0, 1] is clipped
    image = torch.tensor([0.0, 0.5, 1.0, 1.5, -0.2])
    squeezed = compress_normalized_image(image)
    assert squeezed.tolist() == [0, 128, 255, 255, 0] and squeezed.dtype == torch.uint8
    assert decompress_normalized_image(squeezed).tolist() == pytest.approx([0.0, 0.501961, 1.0, 1.0, 0.0])
    everything = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(compress_normalized_image(decompress_normalized_image(everything)), everything)
    values = torch.linspace(0, 1, 1001)
    assert (decompress_normalized_image(compress_normalized_image(values)) - values).abs().max() <= 1 / 510 + 1e-6


def test_what_a_codec_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="NaN"):
        compress_normalized_image(torch.tensor([0.1, torch.nan]))
    with pytest.raises(ValueError, match="up to 65504, found 70000"):
        CODECS["float16"].squeeze(torch.tensor([1.0, 7e4]))
    with pytest.raises(TypeError, match="floating-point values, found int64"):
        CODECS["normalized_image"].dtype_on_disk("int64")
    assert CODECS["float16"].squeeze(torch.tensor([1.0, torch.inf])).tolist() == [1.0, torch.inf]
    assert CODECS["float16"].squeeze(torch.tensor([1 / 3])).item() == pytest.approx(0.333252, abs=1e-6)


@given(
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(0, 5),
    width=st.integers(0, 3),
    deflate=st.booleans(),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_packing_keeps_every_bit(dtype, rows, width, deflate, data):
    size = rows * width * torch_dtype(dtype).itemsize
    content = data.draw(st.binary(min_size=size, max_size=size))
    if dtype == "bool":
        content = bytes(byte & 1 for byte in content)
    values = unpack(content, (rows, width), dtype, deflate=False)
    again = unpack(pack(values, deflate=deflate), (rows, width), dtype, deflate=deflate)
    assert again.dtype == torch_dtype(dtype) and again.shape == (rows, width)
    assert pack(again, deflate=False) == content, "NaN payloads and signs of zero included"


def test_unpacking_never_makes_more_than_was_promised():
    bomb = zlib.compress(bytes(10_000_000))
    with pytest.raises(ValueError, match="not 8 long"):
        unpack(bomb, (2,), "float32", deflate=True)
    for wrong in (b"", b"abc", zlib.compress(bytes(7)), zlib.compress(bytes(8)) + b"x", zlib.compress(bytes(8))[:-1]):
        with pytest.raises(ValueError):
            unpack(wrong, (2,), "float32", deflate=True)


# -- round trips -------------------------------------------------------------------------------------------------------

NAMES = st.text("abc/ é", min_size=1, max_size=4).filter(lambda name: name.strip("/ ") == name)
PARTS = st.builds(
    TensorSpec,
    shape=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    dtype=st.sampled_from(DTYPES),
)


def values_of(spec: TensorSpec, length: int, generator: torch.Generator) -> torch.Tensor:
    numbers = torch.rand((length, *spec.shape), generator=generator)
    return (numbers > 0.5) if spec.dtype == "bool" else (numbers * 100).to(torch_dtype(spec.dtype))


@pytest.mark.slow
@given(
    obs=st.dictionaries(NAMES, PARTS, min_size=1, max_size=3),
    info=st.dictionaries(NAMES, PARTS, max_size=2),
    act=st.one_of(PARTS, st.dictionaries(NAMES, PARTS, min_size=1, max_size=2)),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    codec=st.sampled_from(["raw", "zlib"]),
    final=st.booleans(),
    chunk=st.integers(1, 8),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_everything_comes_back(obs, info, act, lengths, codec, final, chunk, seed):
    flags = {name: FLAG for name in ("terminated", "truncated", "valid")}
    columns = {"obs": obs, "act": act, "rew": TensorSpec(), **flags, "info": info}
    plain = TrajectorySpec.from_columns(columns, final_obs=final)
    spec = TrajectorySpec(
        columns=tuple(
            TrajectoryColumn(path=c.path, shape=c.shape, dtype=c.dtype, codec=codec, chunk_steps=chunk)
            for c in plain.columns
        ),
        final_obs=final,
    )
    generator = torch.Generator().manual_seed(seed)
    made = []
    with tempfile.TemporaryDirectory() as folder:
        with TrajectoryWriter(folder, spec) as writer:
            for length in lengths:
                steps = tree.map(lambda part: values_of(part, length, generator), columns)  # noqa: B023
                last = tree.map(lambda part: values_of(part, 1, generator), obs) if final else None
                writer.add(steps, final_obs=last)
                made.append((steps, last))
        store = TrajectoryStore(folder)
        assert store.lengths() == lengths and store.spec == spec and store.problems() == []
        for index, (steps, last) in enumerate(made):
            steps = {name: value for name, value in steps.items() if value != {}}
            assert tree.equal(store.read(index), steps)
            assert tree.equal(store.read_final_obs(index), last)
            start, stop = sorted((seed % (lengths[index] + 1), lengths[index] // 2))
            assert tree.equal(store.read(index, start, stop), tree.index(steps, slice(start, stop)))
            ending = last if final else tree.index(steps["obs"], slice(-1, None))
            following = tree.cat([tree.index(steps["obs"], slice(1, None)), ending])
            assert tree.equal(store.read(index, obs_next=True)["obs_next"], following)
            part = store.read(index, start, stop, columns=["rew"], obs_next=True)
            assert set(part) == {"rew", "obs_next"}
            assert tree.equal(part["obs_next"], tree.index(following, slice(start, stop)))


def test_a_slice_reads_only_its_chunks(tmp_path):
    columns = {**COLUMNS, "obs": {"depth": TensorSpec(shape=(1, 64, 64))}}
    with TrajectoryWriter(tmp_path, TrajectorySpec.from_columns(columns, codecs={"depth": "zlib"})) as writer:
        steps, _ = numbered(0, 40)
        writer.add({**steps, "obs": {"depth": torch.rand(40, 1, 64, 64)}})
    store = TrajectoryStore(tmp_path)
    (column,) = store.spec.obs_columns
    assert column.chunk_steps == 4, "64 KiB of 16 KiB frames"
    shard = next(tmp_path.glob("*.trj"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 3] ^= 1  # somewhere in the frames, which take almost all of the file
    shard.write_bytes(content)
    readable = 0
    for start in range(0, 40, 4):
        try:
            store.read(0, start, start + 4)
            readable += 1
        except TrajectoryCorrupt as error:
            assert f"column 'obs/depth', steps {start} to {start + 4}: the checksum is wrong" in str(error)
            assert "shard_000000.trj" in str(error)
    assert readable == 9, "one chunk of ten is damaged"


def test_reading_outside_is_an_index_error(tmp_path):
    record(tmp_path, 2, length=3)
    store = TrajectoryStore(tmp_path)
    for arguments in [(0, 2, 1), (0, -1, 2), (0, 0, 4), (2,), (-1,)]:
        with pytest.raises(IndexError):
            store.read(*arguments)
    with pytest.raises(KeyError, match="Did you mean 'rew'"):
        store.read(0, columns=["reww"])
    assert store.read(0, 3, 3)["rew"].shape == (0,)


def test_what_the_spec_says_of_observations(tmp_path):
    obs = ObsSpec({"b": ComponentSpec(shape=(2,)), "a": ComponentSpec(shape=(3,), group="critic", scale=0.25)})
    columns = {**COLUMNS, "obs": dict(obs.components)}
    spec = TrajectorySpec.from_columns(columns, obs_spec=obs, action_spec=BoxSpec(shape=(2,), high=(1.0, float("inf"))))
    TrajectoryWriter(tmp_path, spec, about={"task": "walk"}).close()
    store = TrajectoryStore(tmp_path)
    assert store.obs_spec == obs and store.spec.obs_segments == {"b": (2,), "a": (3,)}
    assert store.spec.layout["actions"][0]["high"] == [1.0, float("inf")] and store.about == {"task": "walk"}
    assert len(store) == 0 and store.refresh() == 0


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_steps_that_do_not_fit_are_refused_by_name(tmp_path):
    writer = TrajectoryWriter(tmp_path, small_spec())
    steps, final = numbered(3)
    wrong = {
        "missing \\['act'\\]": {name: value for name, value in steps.items() if name != "act"},
        "unexpected \\['speed'\\]": {**steps, "speed": steps["rew"]},
        "column 'rew' wants float32": {**steps, "rew": steps["rew"].double()},
        "column 'act' wants": {**steps, "act": steps["act"][:, :1]},
        "equally long": {**steps, "rew": steps["rew"][:-1]},
        "at least one step": tree.index(steps, slice(0, 0)),
    }
    for message, bad in wrong.items():
        with pytest.raises((ValueError, TypeError), match=message):
            writer.add(bad, final_obs=final)
    with pytest.raises(ValueError, match="wants the observation after the end"):
        writer.add(steps)
    with pytest.raises(KeyError, match="no component 'joints'"):
        writer.add(steps, final_obs={})
    add_numbered(writer, 3)
    writer.close()
    with pytest.raises(TrajectoryError, match="closed"):
        add_numbered(writer, 4)
    store = TrajectoryStore(tmp_path)
    assert len(store) == 1 and is_numbered(store, 0)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({name: part for name, part in COLUMNS.items() if name != "rew"}, "a trajectory has obs, act and rew"),
        ({**COLUMNS, "obs": {}}, "a trajectory has obs, act and rew"),
        ({**COLUMNS, "": FLAG}, "non-empty names"),
    ],
)
def test_specs_that_make_no_trajectory(columns, message):
    with pytest.raises(ValueError, match=message):
        TrajectorySpec.from_columns(columns)


def test_a_codec_for_nothing_is_refused():
    with pytest.raises(KeyError, match="Did you mean 'joints'"):
        TrajectorySpec.from_columns(COLUMNS, codecs={"joint": "zlib"})
    with pytest.raises(ValueError, match="Did you mean 'normalized_image'"):
        TrajectorySpec.from_columns(COLUMNS, codecs={"joints": "normalised_image"})
    spec = TrajectorySpec.from_columns(COLUMNS, codecs={"rew": "float16", "obs/joints": "zlib"})
    assert {column.name: column.codec for column in spec.columns if column.codec != "raw"} == {
        "rew": "float16",
        "obs/joints": "zlib",
    }


def test_a_folder_holds_one_layout(tmp_path):
    record(tmp_path, 1)
    with pytest.raises(TrajectoryMismatch, match="column 'obs/critic/depth': codec is 'zlib', was 'normalized_image'"):
        TrajectoryWriter(tmp_path, small_spec(codecs={"critic/depth": "zlib"}))
    other = {**COLUMNS, "obs": {"joints": TensorSpec(shape=(4,)), "gyro": TensorSpec(shape=(3,))}}
    with pytest.raises(TrajectoryMismatch) as caught:
        TrajectoryWriter(tmp_path, TrajectorySpec.from_columns(other, final_obs=True))
    for line in ["'obs/joints': shape is (4,), was (3,)", "'obs/gyro' is new", "'obs/critic/depth' is missing"]:
        assert line in str(caught.value)
    swapped = {**COLUMNS, "obs": dict(reversed(COLUMNS["obs"].items()))}
    with pytest.raises(TrajectoryMismatch, match="another order"):
        TrajectoryWriter(tmp_path, TrajectorySpec.from_columns(swapped, codecs={"critic/depth": "normalized_image"},
                                                               final_obs=True))  # fmt: skip


def test_a_shard_of_another_layout_is_refused(tmp_path):
    record(tmp_path / "one", 1)
    with TrajectoryWriter(tmp_path / "two", small_spec(final_obs=False)) as writer:
        writer.add(numbered(0)[0])
    (tmp_path / "two" / "shard_000000.trj").rename(tmp_path / "one" / "shard_000007.trj")
    with pytest.raises(TrajectoryMismatch, match=r"shard_000007.trj' was recorded with other columns"):
        TrajectoryStore(tmp_path / "one")


def test_another_version_is_refused(tmp_path):
    shard = record(tmp_path, 1)
    content = shard.read_bytes()
    length = struct.unpack_from("<I", content, 16)[0]
    head = bytearray(content[: 20 + length])
    struct.pack_into("<I", head, 8, 2)
    shard.write_bytes(bytes(head) + struct.pack("<I", zlib.crc32(bytes(head))) + content[24 + length :])
    with pytest.raises(TrajectoryVersion, match=r"shard_000000.trj' is in version 2 .* reads version 1"):
        TrajectoryStore(tmp_path)
    metadata = json.loads((tmp_path / "metadata.json").read_text())
    (tmp_path / "metadata.json").write_text(json.dumps({**metadata, "version": 2}))
    with pytest.raises(TrajectoryVersion, match=r"metadata.json' is in version 2"):
        TrajectoryStore(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", '{"config": {}}', "[1]", '{"format": "striderl trajectories", "version": 1}']
)
def test_metadata_that_is_not_ours_is_refused(tmp_path, text):
    (tmp_path / "metadata.json").write_text(text)
    with pytest.raises(TrajectoryCorrupt, match=r"metadata.json"):
        TrajectoryStore(tmp_path)


# -- many writers, many readers ----------------------------------------------------------------------------------------


def test_writers_share_a_folder_and_a_reader_keeps_its_numbers(tmp_path):
    store = TrajectoryStore(tmp_path / "new")
    assert len(store) == 0
    with pytest.raises(TrajectoryMissing, match=r"no metadata.json"):
        _ = store.spec
    one, two = (TrajectoryWriter(tmp_path / "new", small_spec(), about={"who": who}) for who in "ab")
    add_numbered(one, 0)
    assert store.refresh() == 1
    for number in (1, 2, 3, 4):
        add_numbered(two if number % 2 else one, number)
    first = store.name(0)
    assert store.refresh() == 4 and store.refresh() == 0
    assert [store.read_about(index)["number"] for index in range(5)] == [0, 1, 2, 3, 4], "in the order of time"
    assert store.name(0) == first and store.newest(2) == [3, 4] and store.times() == sorted(store.times())
    assert all(is_numbered(store, index) for index in range(5)) and store.num_steps == 1 + 2 + 3 + 4 + 5
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "metadata.json", "shard_000000.trj", "shard_000001.trj"}  # fmt: skip
    assert store.about == {"who": "a"}, "the first one's"
    one.close(), two.close()


def test_a_writer_goes_on_in_a_new_shard_when_one_is_full(tmp_path):
    with TrajectoryWriter(tmp_path, small_spec(), shard_bytes=1000) as writer:
        for number in range(6):
            add_numbered(writer, number)
        assert (writer.num_trajectories, writer.num_steps) == (6, 16)
    assert len(list(tmp_path.glob("*.trj"))) > 1
    store = TrajectoryStore(tmp_path)
    assert [store.read_about(index)["number"] for index in range(6)] == list(range(6))


def test_a_reader_waits_for_a_writer(tmp_path):
    def write_later():
        time.sleep(0.1)
        record(tmp_path / "demos", 3)

    store = TrajectoryStore(tmp_path / "demos")
    thread = threading.Thread(target=write_later)
    thread.start()
    assert store.wait(3, timeout=200.0) == 3
    thread.join()
    with pytest.raises(TrajectoryTimeout, match=r"waited 0.05 s for 4 trajectories in .*, found 3"):
        store.wait(4, timeout=0.05)
    with pytest.raises(TrajectoryTimeout, match="nobody has begun to record there"):
        TrajectoryStore(tmp_path / "nothing").wait(1, timeout=0.0)


def test_a_shard_that_is_deleted_is_a_message(tmp_path):
    shard = record(tmp_path, 2)
    store = TrajectoryStore(tmp_path)
    shard.unlink()
    with pytest.raises(TrajectoryMissing, match="went away"):
        store.read(0)
    record(tmp_path, 1)
    assert len(TrajectoryStore(tmp_path)) == 1
