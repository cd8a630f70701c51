"""`MinariReader`: datasets of Minari (Farama's offline datasets), episode by episode.

reader = MinariReader("D4RL/pen/human-v2", download=True)        by id, as `minari.load_dataset` takes it
reader = MinariReader("data/my_dataset")                          by folder
reader = MinariReader(dataset.filter_episodes(…))                 an object of Minari's

observations [T + 1] ─▶ obs [T], final_obs [1]       names: 'outer/inner' of Dict and Tuple spaces, else 'obs'
float64 ─▶ float32                                   as GymnasiumEnv does, so that policies fit both
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.checkpoint.errors import FileRefused, memory_limit
from striderl.checkpoint.safe_files import check_plain, decode_json, member, read_json
from striderl.checkpoint.trust import require_trust
from striderl.data.actions import ActionSpec, DictActionSpec, action_spec_from_space
from striderl.data.naming import missing_extra
from striderl.data.specs import ObsSpec, torch_dtype
from striderl.datasets.readers.episodes import Episode, closed


class MinariReader:
    """Read one dataset; iterating reads its episodes in order."""

    has_final_obs = True

    def __init__(
        self, dataset: Any, *, download: bool = False, keep_float64: bool = False, trust: bool = False
    ) -> None:
        """Open a dataset by id or folder, or take one that is open.

        download: whether a dataset that is not here may be fetched.
        keep_float64: keep float64 observations instead of storing them as float32.
        trust: whether a dataset without spaces may name the env that has them; building it imports its module.
        """
        self.dataset = _opened(dataset, download, trust) if isinstance(dataset, (str, Path)) else dataset
        spec = ObsSpec.from_space(self.dataset.observation_space)
        narrow = {
            name: part if keep_float64 or part.dtype != "float64" else replace(part, dtype="float32")
            for name, part in spec.items()
        }
        self.obs_spec = ObsSpec(narrow)
        """Components of the observation."""
        self.action_spec: ActionSpec = action_spec_from_space(self.dataset.action_space)
        """The action spec."""

    @property
    def about(self) -> dict[str, Any]:
        """The dataset's id and Minari's version."""
        return {"minari": str(self.dataset.id), "minari_version": str(self.dataset.spec.minari_version)}

    def __len__(self) -> int:
        return int(self.dataset.total_episodes)

    def __iter__(self) -> Iterator[Episode]:
        """Read the episodes one after the other."""
        for episode in self.dataset.iterate_episodes():
            yield self._converted(episode)

    def _converted(self, episode: Any) -> Episode:
        terminated = torch.as_tensor(np.asarray(episode.terminations, bool))
        truncated = torch.as_tensor(np.asarray(episode.truncations, bool))
        seen = {name: self._component(name, value) for name, value in _leaves(episode.observations)}
        count = len(terminated)
        for name, value in seen.items():
            if len(value) != count + 1:
                raise ValueError(
                    f"episode {episode.id} of {self.about['minari']!r} has {len(value)} observations {name!r} for "
                    f"{count} steps; wanted one more than steps"
                )
        steps = {
            "obs": {name: value[:-1] for name, value in seen.items()},
            "act": self._actions(episode.actions),
            "rew": torch.as_tensor(np.asarray(episode.rewards, np.float32)),
            "terminated": terminated,
            "truncated": closed(terminated, truncated),
        }
        return Episode(steps, {name: value[-1:] for name, value in seen.items()}, {"episode": int(episode.id)})

    def _component(self, name: str, value: Any) -> Tensor:
        return torch.as_tensor(np.asarray(value)).to(torch_dtype(self.obs_spec[name].dtype))

    def _actions(self, value: Any) -> Any:
        if isinstance(self.action_spec, DictActionSpec):
            parts = self.action_spec.tensor
            return {name: _as_tensor(value[name], parts[name].dtype) for name in parts}
        return _as_tensor(value, self.action_spec.tensor.dtype)


def _opened(dataset: str | Path, download: bool, trust: bool) -> Any:
    try:
        minari = importlib.import_module("minari")
    except ImportError as error:
        raise ImportError(missing_extra("minari", "minari", purpose="Reading Minari datasets")) from error
    path = Path(dataset)
    for folder in (path, path / "data"):
        if (folder / "metadata.json").is_file():
            _check_files(folder, trust)
            return minari.MinariDataset(folder)
    here = Path(importlib.import_module("minari.storage.datasets_root_dir").get_dataset_path(str(dataset))) / "data"
    if download and not here.exists():
        minari.download_dataset(str(dataset))
    if (here / "metadata.json").is_file():
        _check_files(here, trust)
    return minari.load_dataset(str(dataset))


def _check_files(folder: Path, trust: bool) -> None:
    """Raise FileRefused for what leads out of the folder of a dataset, and UntrustedFile for what it would import."""
    _require_trust(folder, trust)
    for path in folder.rglob("*"):
        found = member(folder, path.relative_to(folder).as_posix())
        if not found.is_dir():
            check_plain(found)
        if found.suffix in (".hdf5", ".h5"):
            _check_hdf5(found)


def _check_hdf5(path: Path) -> None:
    """Raise FileRefused for arrays that are in other files, or larger than memory: an empty one is small on disk."""
    h5py = importlib.import_module("h5py")

    def wrong_link(name: str, link: Any) -> str | None:
        return f"its part {name[:100]!r} is in another file" if isinstance(link, h5py.ExternalLink) else None

    def wrong_array(name: str, part: Any) -> str | None:
        if not isinstance(part, h5py.Dataset):
            return None
        if part.external or part.is_virtual:
            return f"its array {name[:100]!r} is in another file"
        return f"its array {name[:100]!r} has {part.nbytes} bytes" if part.nbytes > memory_limit() else None

    with h5py.File(path) as file:  # a visit ends with what is returned
        reason = file.visititems_links(wrong_link) or file.visititems(wrong_array)
    if reason:
        raise FileRefused(path, reason)


def _require_trust(folder: Path, trust: bool) -> None:
    """Raise UntrustedFile where Minari would build the env that the metadata names, to read its spaces."""
    path = folder / "metadata.json"
    metadata = read_json(path, constant=float)  # Minari reads it again, without limits
    if not isinstance(metadata, dict):
        raise FileRefused(path, f"it holds {type(metadata).__name__}, wanted a table")
    if "env_spec" in metadata and not {"observation_space", "action_space"} <= set(metadata):
        named = decode_json(str(metadata["env_spec"]).encode(), path)
        # its wrappers are imported as well, so that there is something to trust whatever the entry point is
        module = named.get("entry_point") if isinstance(named, dict) else named
        require_trust(path, metadata, [str(module)[:200]], trust=trust)


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ('outer/inner', array) as `ObsSpec.from_space` names them."""
    if isinstance(value, (Mapping, tuple)):
        inner = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in inner:
            yield from _leaves(part, f"{prefix}/{key}" if prefix else str(key))
    else:
        yield prefix or "obs", value


def _as_tensor(value: Any, dtype: str) -> Tensor:
    return torch.as_tensor(np.asarray(value)).to(torch_dtype(dtype))
