"""Minari and LeRobot datasets: made here, in their own formats, and brought over."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from striderl.checkpoint.errors import FileRefused
from striderl.data.actions import BoxSpec, DictActionSpec
from striderl.datasets.playback.dataset import RolloutDataset
from striderl.datasets.readers.episodes import replay_of_episodes, store_episodes
from striderl.datasets.readers.lerobot import LeRobotReader, decoded_pictures
from striderl.datasets.readers.minari import MinariReader

LENGTHS = (5, 3, 4)

# -- Minari ------------------------------------------------------------------------------------------------------------


class FakeMinari:
    """What a reader asks of a MinariDataset; episodes are as Minari's EpisodeData."""

    id, total_episodes = "toy/pair-v0", len(LENGTHS)
    spec = SimpleNamespace(minari_version="0.5.4")
    observation_space = spaces.Dict(
        {"arm": spaces.Box(-1, 1, (2,), np.float64), "hand": spaces.Tuple((spaces.Discrete(5),))}
    )
    action_space = spaces.Dict({"grip": spaces.Discrete(3), "move": spaces.Box(-1, 1, (2,), np.float64)})

    def iterate_episodes(self) -> Iterator[Any]:
        for number, length in enumerate(LENGTHS):
            last = np.arange(length) == length - 1
            frame = np.arange(length + 1)
            yield SimpleNamespace(
                id=number,
                observations={"arm": np.stack([frame / 10, frame + number], 1), "hand": (frame % 5,)},
                actions={"grip": frame[:-1] % 3, "move": np.full((length, 2), number / 2)},
                rewards=np.full(length, number + 0.5),
                terminations=last & (number == 0),
                truncations=last & (number == 1),
                infos={},
            )


def test_minari_episodes_have_our_names_and_types():
    reader = MinariReader(FakeMinari())
    assert {name: (part.shape, part.dtype) for name, part in reader.obs_spec.items()} == {
        "arm": ((2,), "float32"),
        "hand/0": ((), "int64"),
    }
    assert isinstance(reader.action_spec, DictActionSpec) and len(reader) == 3
    episodes = list(reader)
    steps = episodes[1].steps
    assert steps["obs"]["arm"].dtype == torch.float32 and steps["obs"]["arm"].tolist()[2] == pytest.approx([0.2, 3.0])
    assert steps["act"]["grip"].tolist() == [0, 1, 2] and steps["act"]["move"].dtype == torch.float32
    assert episodes[1].final_obs["arm"][0].tolist() == pytest.approx([0.3, 4.0]) and steps["rew"].tolist() == [1.5] * 3
    # the first fell, the second ran out of time, the third was only cut: that is a time-out too
    assert [bool(each.steps["terminated"][-1]) for each in episodes] == [True, False, False]
    assert [each.steps["truncated"].tolist()[-1] for each in episodes] == [False, True, True]
    assert MinariReader(FakeMinari(), keep_float64=True).obs_spec["arm"].dtype == "float64"


def test_minari_becomes_a_folder_and_a_replay(tmp_path):
    reader = MinariReader(FakeMinari())
    store = store_episodes(reader, tmp_path, codecs={"arm": "zlib"})
    assert store.lengths() == list(LENGTHS) and store.about["minari"] == "toy/pair-v0"
    assert store.read_about(2) == {"episode": 2}
    found = RolloutDataset(tmp_path, 1).get_batch(12)
    assert found.timeout[:, 0].nonzero().flatten().tolist() == [7, 11] and int(found.done.sum()) == 3
    assert found.final_observation["arm"][4, 0].tolist() == pytest.approx([0.5, 5.0])
    replay = replay_of_episodes(reader)
    rows = replay.read.rows(replay.read.chronological())
    assert len(replay) == 12 and torch.equal(rows["obs"]["arm"], found.observation["arm"][:, 0])
    assert torch.equal(rows["obs_next"]["arm"], found.final_observation["arm"][:, 0])
    assert rows["terminated"].nonzero().flatten().tolist() == [4]


def test_observations_that_do_not_fit_their_steps_are_refused():
    class Short(FakeMinari):
        def iterate_episodes(self) -> Iterator[Any]:
            for episode in super().iterate_episodes():
                episode.rewards, episode.terminations = episode.rewards[1:], episode.terminations[1:]
                yield episode

    with pytest.raises(ValueError, match="one more than steps"):
        list(MinariReader(Short()))


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ImportError, match=r"pip install -e .*\[minari\]"):
        MinariReader("toy/pair-v0")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    (tmp_path / "meta" / "episodes" / "chunk-000" / "file-000.parquet").touch()
    (tmp_path / "meta" / "info.json").write_text(json.dumps(info_of("v3.0", "image")))
    with pytest.raises(ImportError, match=r"pip install -e .*\[lerobot\]"):
        LeRobotReader(tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning")  # about author, algorithm and env, which a toy has not
def test_a_dataset_of_the_real_package(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari", reason="minari is not installed")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    buffer = []
    for number, length in enumerate(LENGTHS):
        last = np.arange(length) == length - 1
        buffer.append(
            minari.data_collector.EpisodeBuffer(
                observations=list(np.arange(2 * length + 2, dtype=np.float64).reshape(-1, 2) + number),
                actions=list(np.full((length, 1), number, np.float32)),
                rewards=[float(number)] * length,
                terminations=list(last),
                truncations=[False] * length,
            )
        )
    box = {"low": -100.0, "high": 100.0}
    minari.create_dataset_from_buffers(
        "toy/line-v0",
        buffer,
        observation_space=spaces.Box(shape=(2,), dtype=np.float64, **box),
        action_space=spaces.Box(shape=(1,), dtype=np.float32, **box),
    )
    for given in ("toy/line-v0", tmp_path / "toy" / "line-v0"):
        episodes = list(MinariReader(given))
        assert [len(each.steps["rew"]) for each in episodes] == list(LENGTHS)
        assert episodes[1].steps["obs"]["obs"].tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
        assert episodes[1].final_obs["obs"].tolist() == [[7.0, 8.0]] and bool(episodes[1].steps["terminated"][-1])


# -- LeRobot -----------------------------------------------------------------------------------------------------------


def info_of(version: str, pictures: str) -> dict[str, Any]:
    number = {"dtype": "float32", "shape": [1], "names": None}
    new = version.startswith("v3")
    return {
        "codebase_version": version,
        "robot_type": "toy",
        "fps": 10,
        "chunks_size": 2,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
        if new
        else "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        if new
        else "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": {
            "observation.state": {"dtype": "float64", "shape": [2], "names": ["a", "b"]},
            "observation.images.top": {
                "dtype": pictures,
                "shape": [32, 48, 3],
                "names": ["height", "width", "channels"],
            },
            "action": {"dtype": "float32", "shape": [2], "names": {"motors": ["hip", "knee"]}},
            "next.reward": number,
            "next.success": {"dtype": "bool", "shape": [1], "names": None},
            "episode_index": {"dtype": "int64", "shape": [1], "names": None},
        },
    }


def picture(number: int, frame: int) -> np.ndarray:
    """Large even areas, which survive the compression of a video."""
    image = np.full((32, 48, 3), 20, np.uint8)
    image[:, :24, 0], image[:, 24:, 1] = 60 * number + 40, 40 * frame + 40
    return image


def make_lerobot(root: Path, version: str, pictures: str) -> Path:
    """Write a dataset as the format is described, with pyarrow and imageio alone."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    imageio = pytest.importorskip("imageio.v3", reason="imageio is not installed")
    new, tables, entries, films, first = version.startswith("v3"), [], [], [], 0
    for number, length in enumerate(LENGTHS):
        frames = [picture(number, frame) for frame in range(length)]
        columns: dict[str, Any] = {
            "observation.state": [[float(number), float(frame)] for frame in range(length)],
            "action": [[number + 0.5, float(frame)] for frame in range(length)],
            "next.reward": [float(frame) for frame in range(length)],
            "next.success": [frame == length - 1 and number != 1 for frame in range(length)],
            "episode_index": [number] * length,
        }
        if pictures == "image":
            columns["observation.images.top"] = [
                {"bytes": imageio.imwrite("<bytes>", frame, extension=".png"), "path": ""} for frame in frames
            ]
        tables.append(pa.table(columns))
        films.append(frames)
        entry = {"episode_index": number, "length": length, "tasks": ["pick"]}
        place = {"chunk_index": 0, "file_index": 0}
        entry |= {f"data/{name}": value for name, value in place.items()} if new else {}
        if new:
            entry |= {f"videos/observation.images.top/{name}": value for name, value in place.items()}
            entry["videos/observation.images.top/from_timestamp"] = first / 10
        entries.append(entry)
        first += length
    (root / "meta").mkdir(parents=True)
    (root / "meta" / "info.json").write_text(json.dumps(info_of(version, pictures)))

    def write_film(path: Path, frames: list[np.ndarray]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        settings = {"fps": 10, "macro_block_size": 16, "quality": 10}
        imageio.imwrite(path, np.stack(frames), plugin="FFMPEG", **settings)

    def write_table(path: Path, table: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, path)

    if new:
        write_table(root / "data/chunk-000/file-000.parquet", pa.concat_tables(tables))
        write_table(root / "meta/episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(entries))
        if pictures == "video":
            write_film(root / "videos/observation.images.top/chunk-000/file-000.mp4", sum(films, []))  # noqa: RUF017
        return root
    (root / "meta" / "episodes.jsonl").write_text("\n".join(json.dumps(entry) for entry in entries) + "\n")
    for number, table in enumerate(tables):
        write_table(root / f"data/chunk-{number // 2:03d}/episode_{number:06d}.parquet", table)
        if pictures == "video":
            chunk = f"videos/chunk-{number // 2:03d}/observation.images.top"
            write_film(root / chunk / f"episode_{number:06d}.mp4", films[number])
    return root


@pytest.mark.slow
@pytest.mark.parametrize(("version", "pictures"), [("v2.1", "video"), ("v3.0", "video"), ("v3.0", "image")])
def test_lerobot_episodes_have_our_names_and_types(tmp_path, version, pictures):
    reader = LeRobotReader(make_lerobot(tmp_path / "toy", version, pictures))
    assert {name: (part.shape, part.dtype) for name, part in reader.obs_spec.items()} == {
        "state": ((2,), "float32"),
        "images.top": ((3, 32, 48), "uint8"),
    }
    assert reader.action_spec == BoxSpec(shape=(2,), names=("hip", "knee"))
    episodes = list(reader)
    assert [len(each.steps["rew"]) for each in episodes] == list(LENGTHS)
    for number, episode in enumerate(episodes):
        steps = episode.steps
        assert steps["obs"]["state"][:, 0].tolist() == [number] * LENGTHS[number] and episode.final_obs is None
        assert steps["act"][-1].tolist() == [number + 0.5, LENGTHS[number] - 1] and steps["rew"].tolist()[1] == 1.0
        # only the second was no success
        assert (bool(steps["terminated"][-1]), bool(steps["truncated"][-1])) == (number != 1, number == 1)
        wanted = np.stack([picture(number, frame) for frame in range(LENGTHS[number])]).transpose(0, 3, 1, 2)
        middle = np.s_[:, :, 4:-4, [12, 36]]  # away from the edge between the areas
        error = np.abs(steps["obs"]["images.top"].numpy()[middle].astype(int) - wanted[middle])
        assert error.max() <= (0 if pictures == "image" else 12), error.max()
    assert episodes[0].about == {"episode": 0, "tasks": ["pick"]}


def test_some_episodes_as_a_folder(tmp_path):
    root = make_lerobot(tmp_path / "toy", "v3.0", "image")
    reader = LeRobotReader(root, episodes=[2, 0], float_images=True)
    store = store_episodes(reader, tmp_path / "demos", codecs={"images.top": "normalized_image"})
    assert store.lengths() == [4, 5] and store.about == {
        "lerobot": "toy",
        "version": "v3.0",
        "fps": 10,
        "robot_type": "toy",
    }
    top = store.read(1)["obs"]["images.top"]
    assert top.dtype == torch.float32 and top[2, 0, 0, 0] == pytest.approx(40 / 255)
    with pytest.raises(IndexError, match="not 3"):
        LeRobotReader(root, episodes=[3])


def test_what_is_no_lerobot_dataset_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"meta/info\.json"):
        LeRobotReader(tmp_path)
    root = make_lerobot(tmp_path / "toy", "v3.0", "image")
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps({**info, "codebase_version": "v1.6"}))
    with pytest.raises(ValueError, match=r"v1\.6"):
        LeRobotReader(root)
    del info["features"]["action"]
    path.write_text(json.dumps(info))
    with pytest.raises(ValueError, match="'action'"):
        LeRobotReader(root)


# -- datasets that somebody made to do harm ----------------------------------------------------------------------------


def changed_info(root: Path, **changes: Any) -> Path:
    path = root / "meta" / "info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return root


@pytest.mark.slow
@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("/etc/passwd", "inside this folder"),
        ("../outside.parquet", "inside this folder"),
        ("data/../../outside.parquet", "inside this folder"),
        ("link/outside.parquet", "leads out of the folder"),
        ("", "inside this folder"),
        ("{root}/x", "wanted fields such as"),
        ("data/{0.__class__}", "wanted fields such as"),
        ("data/{NUMBER:999999999999d}", "wanted fields such as"),
        ("data/{NUMBER!r}", "wanted fields such as"),
    ],
)
def test_lerobot_paths_that_leave_the_dataset_are_refused(tmp_path, version, template, reason):
    root = make_lerobot(tmp_path / "toy", version, "video")
    number = "file_index" if version == "v3.0" else "episode_index"
    table = next((root / "data").rglob("*.parquet"))
    (tmp_path / "outside.parquet").write_bytes(table.read_bytes())
    (root / "link").symlink_to(tmp_path)
    for entry in ("data_path", "video_path"):
        original = (root / "meta" / "info.json").read_text()
        changed_info(root, **{entry: template.replace("NUMBER", number)})
        with pytest.raises(ValueError, match=reason):
            list(LeRobotReader(root))
        (root / "meta" / "info.json").write_text(original)


@pytest.mark.parametrize("name", ["data", "meta/episodes", "video"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_in_a_lerobot_dataset_are_refused(tmp_path, name, kind):
    root = make_lerobot(tmp_path / "toy", "v3.0", "video")
    path = next((root / "videos").rglob("*.mp4")) if name == "video" else next((root / name).rglob("*.parquet"))
    outside = tmp_path / path.name
    path.rename(outside)
    path.symlink_to(outside) if kind == "link" else os.mkfifo(path)
    with pytest.raises(ValueError, match=f"{path.name}' is refused"):
        list(LeRobotReader(root))


@pytest.mark.parametrize("place", ["/etc/hostname", "../secret.png", "link.png"])
def test_pictures_outside_of_a_lerobot_dataset_are_refused(tmp_path, place):
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(FileRefused):
        decoded_pictures([{"bytes": None, "path": place}], tmp_path / "toy")


@pytest.mark.parametrize("name", ["meta/info.json", "meta/episodes.jsonl"])
@pytest.mark.parametrize("text", [b"[" * 100_000, b"\xff", b"{", b'{"a": 1, "a": 2}'])
def test_deep_or_damaged_json_of_a_lerobot_dataset_is_a_named_error(tmp_path, name, text):
    root = make_lerobot(tmp_path / "toy", "v2.1", "image")
    (root / name).write_bytes(text)
    with pytest.raises(FileRefused, match=Path(name).name):
        LeRobotReader(root)


def test_deep_json_and_links_of_a_minari_dataset_are_named_errors(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(MinariDataset=lambda folder: FakeMinari()))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "metadata.json").write_text("{}")
    assert len(MinariReader(tmp_path / "toy")) == 3
    (tmp_path / "outside.hdf5").touch()
    (tmp_path / "toy" / "main_data.hdf5").symlink_to(tmp_path / "outside.hdf5")
    with pytest.raises(FileRefused, match="main_data"):
        MinariReader(tmp_path / "toy")
    (tmp_path / "toy" / "metadata.json").write_text("[" * 100_000)
    with pytest.raises(FileRefused, match="metadata"):
        MinariReader(tmp_path / "toy")


@pytest.mark.parametrize("kind", ["link", "storage", "virtual", "huge", "pipe"])
def test_arrays_of_a_minari_dataset_that_are_elsewhere_or_nowhere_are_refused(tmp_path, monkeypatch, kind):
    import h5py

    monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(MinariDataset=lambda folder: FakeMinari()))
    folder, diary = tmp_path / "toy", tmp_path / "diary.h5"
    folder.mkdir()
    (folder / "metadata.json").write_text("{}")
    with h5py.File(diary, "w") as file:
        file["x"] = np.arange(4.0)
    if kind == "pipe":
        os.mkfifo(folder / "main_data.hdf5")
    else:
        with h5py.File(folder / "main_data.hdf5", "w") as file:
            file["episode_0/rewards"] = np.arange(4.0)
        assert len(MinariReader(folder)) == 3
        with h5py.File(folder / "main_data.hdf5", "a") as file:
            if kind == "link":
                file["episode_0/seen"] = h5py.ExternalLink(str(diary), "/x")
            elif kind == "storage":
                file.create_dataset("episode_0/seen", (4,), "f8", external=[(str(diary), 0, h5py.h5f.UNLIMITED)])
            elif kind == "virtual":
                layout = h5py.VirtualLayout((4,), "f8")
                layout[:] = h5py.VirtualSource(str(diary), "x", (4,))
                file.create_virtual_dataset("episode_0/seen", layout)
            else:
                file.create_dataset("episode_0/seen", (10**14,), "f8", chunks=(1024,))
    with pytest.raises(FileRefused, match="main_data"):
        MinariReader(folder)


def test_a_table_of_lerobot_with_more_values_than_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    import pyarrow
    from pyarrow import parquet

    from striderl.datasets.readers import lerobot

    path = tmp_path / "file.parquet"
    parquet.write_table(pyarrow.table({"stats/x": np.zeros(3000), "length": np.zeros(3000)}), path)
    assert lerobot.read_table(path).column_names == ["length"] and path.stat().st_size < 8 * 6000
    monkeypatch.setattr(lerobot, "memory_limit", lambda: 8 * 5999)
    with pytest.raises(FileRefused, match="6000 values"):
        lerobot.read_table(path)
