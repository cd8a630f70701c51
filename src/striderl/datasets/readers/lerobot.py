"""`LeRobotReader`: datasets in LeRobot's format (Hugging Face), versions 2.0, 2.1 and 3.0, read from their folder.

    meta/info.json                             features, fps, where files are
    meta/episodes.jsonl │ meta/episodes/…      2.x │ 3.0: length of each episode, and in 3.0 where it is
    data/chunk-000/episode_000007.parquet      2.x: a file per episode
    data/chunk-000/file-000.parquet            3.0: many episodes per file, and so are the videos

    observation.state ─▶ component 'state'     observation.images.top ─▶ 'images.top', uint8 [C, H, W]
    action ─▶ act     next.reward ─▶ rew, else 0
    the last step is terminated where 'next.success' is true (without it, where 'next.done' is), else truncated

Only pyarrow is needed, and imageio for pictures; the package `lerobot` itself is not.

Pictures of LeRobot datasets: PNG in a table, or frames of a video that many episodes share.

file-000.mp4   │ episode 0 │ episode 1 │ episode 2 │ …       read in order, each frame decoded once
"""

from __future__ import annotations

import importlib
import os
import re
import string
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.checkpoint.errors import FileRefused, memory_limit
from striderl.checkpoint.safe_files import check_plain, member, open_read, read_bytes, read_json, read_json_lines
from striderl.data.actions import BoxSpec
from striderl.data.naming import missing_extra, unknown
from striderl.data.specs import ComponentSpec, ObsSpec, torch_dtype
from striderl.datasets.readers.episodes import Episode, closed

VERSIONS = ("v2.0", "v2.1", "v3.0")
"""Versions of the format that are read."""

_SEEN, _ACTION, _REWARD, _DONE, _SUCCESS = "observation.", "action", "next.reward", "next.done", "next.success"
_PICTURES = ("image", "video")
_WIDTH = re.compile(r"0?[0-9]{0,2}d?")
"""How a number is written in a path: a width, perhaps with zeros."""


class LeRobotReader:
    """Read one dataset; iterating reads its episodes in order."""

    has_final_obs = False

    def __init__(
        self, root: str | Path, *, episodes: Collection[int] | None = None, float_images: bool = False
    ) -> None:
        """Open a folder.

        episodes: the numbers of those to read; all unless given.
        float_images: give pictures as float32 in [0, 1] in place of uint8.
        """
        self.root, self.float_images = Path(root), float_images
        self.info = _read_info(self.root)
        """The content of meta/info.json."""
        features: Mapping[str, Any] = self.info["features"]
        self._seen = {key.removeprefix(_SEEN): key for key in features if key.startswith(_SEEN)}
        if not self._seen or _ACTION not in features:
            raise ValueError(
                f"{str(self.root)!r} has features {sorted(features)}; wanted 'observation.…' and 'action' among them"
            )
        self.obs_spec = ObsSpec({name: self._component(features[key]) for name, key in self._seen.items()})
        """Components of the observation."""
        self.action_spec = _action_spec(features[_ACTION])
        """The action spec: real numbers without bounds."""
        found = {int(each["episode_index"]): each for each in _read_episodes(self.root, self.info)}
        chosen = sorted(found) if episodes is None else list(episodes)
        missing = [number for number in chosen if number not in found]
        if missing:
            raise IndexError(f"{str(self.root)!r} has episodes 0 to {max(found, default=-1)}, not {missing[0]}")
        self._episodes = [found[number] for number in chosen]
        self._file, self._owner = Path(), np.zeros(0, np.int64)
        self._table: Any = None
        self._videos = {key: VideoFrames() for key in self._seen.values() if features[key]["dtype"] == "video"}

    @property
    def about(self) -> dict[str, Any]:
        """The folder's name, the version of the format, the robot and the frames per second."""
        kept = {"fps": self.info.get("fps"), "robot_type": self.info.get("robot_type")}
        return {"lerobot": self.root.name, "version": self.info["codebase_version"], **kept}

    def __len__(self) -> int:
        return len(self._episodes)

    def __iter__(self) -> Iterator[Episode]:
        """Read the episodes one after the other."""
        for entry in self._episodes:
            yield self._read(entry)

    # -- one episode ---------------------------------------------------------------------------------------------------

    def _read(self, entry: Mapping[str, Any]) -> Episode:
        number, length = int(entry["episode_index"]), int(entry["length"])
        rows = self._rows(entry)
        if rows.num_rows != length:
            raise ValueError(f"episode {number} of {str(self.root)!r} has {rows.num_rows} rows, its length is {length}")
        terminated, truncated = self._ends(rows, length)
        steps = {
            "obs": {name: self._observed(key, rows, entry) for name, key in self._seen.items()},
            "act": self._numbers(_ACTION, rows),
            "rew": self._rewards(rows, length),
            "terminated": terminated,
            "truncated": closed(terminated, truncated),
        }
        return Episode(steps, None, {"episode": number, "tasks": [str(task) for task in entry.get("tasks", [])]})

    def _rewards(self, rows: Any, length: int) -> Tensor:
        if _REWARD not in rows.column_names:
            return torch.zeros(length)
        return self._numbers(_REWARD, rows).reshape(length).float()

    def _ends(self, rows: Any, length: int) -> tuple[Tensor, Tensor]:
        """Return terminated and truncated: only the last step can be an end."""
        nowhere = torch.zeros(length, dtype=torch.bool)
        column = next((name for name in (_SUCCESS, _DONE) if name in rows.column_names), None)
        terminated = nowhere.clone()
        if column is not None:
            terminated[-1] = bool(self._numbers(column, rows).reshape(length)[-1])
        return terminated, nowhere

    def _observed(self, key: str, rows: Any, entry: Mapping[str, Any]) -> Tensor:
        kind = self.info["features"][key]["dtype"]
        if kind not in _PICTURES:
            return self._numbers(key, rows)
        pictures = (
            decoded_pictures(rows.column(key).to_pylist(), self.root) if kind == "image" else self._film(key, entry)
        )
        return pictures.float() / 255.0 if self.float_images else pictures

    def _numbers(self, key: str, rows: Any) -> Tensor:
        """Return a column of numbers, [T, *shape] by its feature."""
        feature = self.info["features"][key]
        values = np.asarray(rows.column(key).to_pylist())
        wanted = torch_dtype(_narrow(feature["dtype"]))
        return torch.as_tensor(values).to(wanted).reshape(len(values), *feature["shape"])

    def _film(self, key: str, entry: Mapping[str, Any]) -> Tensor:
        """Return the frames of an episode's video; in 3.0 it begins somewhere in a longer one."""
        template, number = str(self.info["video_path"]), int(entry["episode_index"])
        start = 0
        if self._is_new:
            place = {name: int(entry[f"videos/{key}/{name}"]) for name in ("chunk_index", "file_index")}
            path = _place(self.root, template, video_key=key, **place)
            start = round(float(entry[f"videos/{key}/from_timestamp"]) * float(self.info["fps"]))
        else:
            chunk = number // int(self.info["chunks_size"])
            path = _place(self.root, template, video_key=key, episode_chunk=chunk, episode_index=number)
        return self._videos[key].read(path, start, int(entry["length"]))

    # -- tables --------------------------------------------------------------------------------------------------------

    @property
    def _is_new(self) -> bool:
        return str(self.info["codebase_version"]).startswith("v3")

    def _rows(self, entry: Mapping[str, Any]) -> Any:
        """Return the rows of an episode as a table of pyarrow; the file that was read last is kept."""
        template, number = str(self.info["data_path"]), int(entry["episode_index"])
        if self._is_new:
            place = {name: int(entry[f"data/{name}"]) for name in ("chunk_index", "file_index")}
            path = _place(self.root, template, **place)
        else:
            chunk = number // int(self.info["chunks_size"])
            path = _place(self.root, template, episode_chunk=chunk, episode_index=number)
        if self._file != path:
            self._file, self._table = path, read_table(path)
            self._owner = self._table.column("episode_index").to_numpy()
        mine = np.flatnonzero(self._owner == number)
        if len(mine) and mine[-1] - mine[0] + 1 != len(mine):
            raise ValueError(f"the rows of episode {number} are not together in {str(path)!r}")
        return self._table.slice(mine[0] if len(mine) else 0, len(mine))

    def _component(self, feature: Mapping[str, Any]) -> ComponentSpec:
        shape = tuple(int(size) for size in feature["shape"])
        if feature["dtype"] not in _PICTURES:
            return ComponentSpec(shape=shape, dtype=_narrow(feature["dtype"]))
        names = [str(name) for name in feature.get("names") or ()]
        # pictures are described as [height, width, channels] by some recorders and channels first by others
        if not (names and names[0].startswith("channel")):
            shape = (shape[2], shape[0], shape[1])
        return ComponentSpec(shape=shape, dtype="float32" if self.float_images else "uint8")


def _read_info(root: Path) -> dict[str, Any]:
    path = member(root, "meta/info.json")
    if not os.path.lexists(path):
        raise FileNotFoundError(
            f"{str(root)!r} is not a LeRobot dataset: it has no meta/info.json. Fetch one with "
            "'hf download --repo-type dataset NAME --local-dir FOLDER'"
        )
    info = read_json(path)
    if not isinstance(info, dict) or not isinstance(info.get("features"), dict):
        raise ValueError(f"{str(path)!r} is not the description of a LeRobot dataset: it has no table 'features'")
    version = str(info.get("codebase_version"))
    if version not in VERSIONS:
        raise ValueError(unknown("version", version, VERSIONS, where="LeRobotReader"))
    return info


def _read_episodes(root: Path, info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what is known of each episode."""
    if not str(info["codebase_version"]).startswith("v3"):
        return read_json_lines(member(root, "meta/episodes.jsonl"))
    found: list[dict[str, Any]] = []
    paths = sorted((root / "meta" / "episodes").glob("*/*.parquet"))
    if not paths:
        raise FileNotFoundError(f"{str(root)!r} has no table of episodes, meta/episodes/…/….parquet")
    for path in paths:
        found += read_table(member(root, path.relative_to(root).as_posix())).to_pylist()
    return found


def read_table(path: Path) -> Any:
    """Read a table without its columns of statistics; one whose values have no place in memory is FileRefused."""
    with open_read(path, max_bytes=memory_limit()) as file:
        table = _parquet().ParquetFile(file)
        groups = [table.metadata.row_group(number) for number in range(table.num_row_groups)]
        # a value that is repeated takes next to nothing on disk
        count = sum(group.column(number).num_values for group in groups for number in range(group.num_columns))
        if 8 * count > memory_limit():
            raise FileRefused(path, f"it has {count} values, more than there is memory for")
        return table.read([name for name in table.schema_arrow.names if not name.startswith("stats/")])


def _place(root: Path, template: str, **values: int | str) -> Path:
    """Return the file that a template of info.json names; it has plain fields, and stays inside of the dataset."""
    for _, name, spec, conversion in string.Formatter().parse(template):
        if name is not None and (name not in values or conversion or not _WIDTH.fullmatch(spec or "")):
            raise ValueError(
                f"{str(root)!r} has the path {template[:200]!r} in meta/info.json; wanted fields such as "
                f"'{{episode_index:06d}}' of {sorted(values)}"
            )
    return member(root, template.format(**values))


def _action_spec(feature: Mapping[str, Any]) -> BoxSpec:
    shape = tuple(int(size) for size in feature["shape"])
    names = feature.get("names")
    if isinstance(names, Mapping):  # {'motors': ['hip', …]}
        names = next((value for value in names.values() if isinstance(value, (list, tuple))), None)
    listed = tuple(str(name) for name in names or ())
    return BoxSpec(shape=shape, names=listed if len(listed) == int(np.prod(shape)) else ())


def _narrow(dtype: str) -> str:
    """Return the dtype that is kept: float64 becomes float32, as everywhere here."""
    return "float32" if dtype == "float64" else dtype


def _parquet() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(missing_extra("pyarrow", "lerobot", purpose="Reading LeRobot datasets")) from error


# -- pictures ----------------------------------------------------------------------------------------------------------


MAX_PICTURE_BYTES = 256 * 1024 * 1024
"""One picture file."""


def decoded_pictures(cells: list[Any], root: Path) -> Tensor:
    """Return pictures of a table, {'bytes': …, 'path': …} each, as uint8 [T, C, H, W]."""
    imageio = _imageio()
    found = []
    for cell in cells:
        content = cell["bytes"]
        if content is None:
            content = read_bytes(member(root, str(cell["path"])), max_bytes=MAX_PICTURE_BYTES)
        found.append(_channels_first(np.asarray(imageio.imread(content, extension=".png"))))
    return torch.stack(found)


class VideoFrames:
    """Frames of one video after the other; going back in a video reopens it."""

    def __init__(self) -> None:
        self._path = Path()
        self._frames: Iterator[Any] = iter(())
        self._next = 0

    def read(self, path: Path, start: int, count: int) -> Tensor:
        """Return frames [start, start + count) as uint8 [count, C, H, W]."""
        if path != self._path or start < self._next:
            check_plain(path)
            if not path.is_file():
                raise FileNotFoundError(f"the dataset has no video {str(path)!r}")
            # absolute, because a decoder takes 'concat:…' at the beginning of a name for an instruction
            frames = _imageio().imiter(path.absolute(), plugin="FFMPEG")
            self._frames, self._path, self._next = iter(frames), path, 0
        found: list[Tensor] = []
        while len(found) < count:
            try:
                frame = next(self._frames)
            except StopIteration:
                raise ValueError(
                    f"{str(path)!r} has {self._next} frames, wanted frames {start} to {start + count}"
                ) from None
            if self._next >= start:
                found.append(_channels_first(np.asarray(frame)))
            self._next += 1
        return torch.stack(found)


def _channels_first(picture: np.ndarray[Any, Any]) -> Tensor:
    """Return [H, W] or [H, W, C] as [C, H, W]."""
    whole = picture[..., None] if picture.ndim == 2 else picture
    return torch.from_numpy(np.ascontiguousarray(whole.transpose(2, 0, 1)))


def _imageio() -> Any:
    try:
        import imageio.v3 as imageio
    except ImportError as error:
        raise ImportError(missing_extra("imageio", "video", purpose="Reading pictures of a dataset")) from error
    return imageio
