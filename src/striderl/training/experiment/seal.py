"""The seal of a run: detects changes to `config.json` and `specs.json` and names them.

    config.json  specs.json        what people read, and may edit
    seal.json                      the accepted content, with a checksum of its own
    checkpoints/…/manifest.json    digests of both at the time of the save

    read_sealed ──▶ content ──▶ equal to the seal?  ──▶ fine
                                    └── RunChangedError: "algorithm.gamma: 0.99 → 0.9"

Contents are compared, not bytes: other spaces are the same settings, keys in another order are not. Where `seal.json`
is missing, the newest checkpoint's digests count; a run that was made before there were seals has neither, and is read
as it is. While a file is replaced the seal holds its old and its new content, so a process that is killed in between
leaves a good pair, and a reader at any moment finds one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from striderl.checkpoint.errors import MAX_JSON_BYTES, CheckpointCorrupt, CheckpointError, FileRefused
from striderl.checkpoint.folder import sealed, unsealed
from striderl.checkpoint.safe_files import decode_json, read_bytes, read_json, write_bytes, write_text
from striderl.checkpoint.store import CheckpointStore
from striderl.checkpoint.trust import content_digest
from striderl.training.experiment.config_json import ConfigError

SEAL_FILE = "seal.json"
"""The file's name."""
CHECKPOINTS = "checkpoints"
"""The folder of checkpoints next to it."""

_SHOWN = 12
_ABSENT = "not there"


class RunChangedError(ConfigError):
    """A file of a run's folder is not as the run left it."""

    def __init__(self, path: Path, differences: list[str]) -> None:
        """List what differs; `differences` are sentences such as 'seed: 0 → 1'."""
        listed = "; ".join([*differences[:_SHOWN], *(["…"] if len(differences) > _SHOWN else [])])
        super().__init__(
            f"{path} is not as the run left it: {listed}. Put it back, or 'striderl resume {path.parent} "
            "--accept-changes' goes on with what is there"
        )
        self.path, self.differences = path, tuple(differences)


def read_sealed(folder: Path, name: str) -> Any:
    """Read a JSON file of a run; one that is damaged or was changed raises ConfigError with the reason."""
    content = read_plain(folder, name)
    differences = _differences_from_seal(folder, name, content)
    if differences:
        again = read_plain(folder, name)  # the run may have replaced it between the two reads
        if differences := _differences_from_seal(folder, name, again):
            raise RunChangedError(folder / name, differences)
        content = again
    return content


def read_plain(folder: Path, name: str) -> Any:
    """Read a JSON file of a run, whatever the seal is; one that is damaged raises ConfigError."""
    try:
        return read_json(folder / name, constant=float)
    except FileRefused as error:
        raise ConfigError(str(error)) from error


def write_sealed(folder: Path, name: str, content: Any) -> None:
    """Write a JSON file of a run and seal it, so that at every moment the file fits the seal."""
    accepted = _accepted_for_writing(folder)
    before = accepted.get(name) or _as_it_is(folder, name)
    _write_seal(folder, {**accepted, name: [*before[-1:], content]})
    write_text(folder / name, json.dumps(content, indent=2) + "\n")
    _write_seal(folder, {**accepted, name: [content]})


def changes(folder: Path, name: str) -> list[str]:
    """Return how a file differs from its accepted content, as 'setting: was → is'; empty where it does not."""
    try:
        read_sealed(folder, name)
    except RunChangedError as error:
        return list(error.differences)
    return []


def accepted_content(folder: Path, name: str) -> Any:
    """Return the last accepted content; None where that is not stored."""
    try:
        found = _read_seal(folder)
    except RunChangedError:
        found = None
    if found is not None and found.get(name):
        return found[name][-1]
    return _config_of_checkpoint(folder) if name == "config.json" else None


def check_digest(path: Path, content: Any, seal: Mapping[str, str], checkpoint: Path) -> None:
    """Raise RunChangedError for a file that is not the one that a checkpoint was saved with."""
    wanted = seal.get(path.name)
    if wanted is not None and wanted != content_digest(content):
        raise RunChangedError(path, [f"it is not the file that {checkpoint.name} was saved with"])


def differences(before: Any, now: Any) -> list[str]:
    """Return 'setting: was → is' for every setting that two tables do not share."""
    was, found = dict(_flat(before)), dict(_flat(now))
    names = dict.fromkeys([*was, *found])
    # 1, 1.0 and True are equal in Python, but not in a config
    return [
        f"{name or 'content'}: {was.get(name, _ABSENT)} → {found.get(name, _ABSENT)}"
        for name in names
        if was.get(name) != found.get(name)
    ]


# -- inside ------------------------------------------------------------------------------------------------------------


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, part in value.items():
            yield from _flat(part, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, repr(value)


def _differences_from_seal(folder: Path, name: str, content: Any) -> list[str]:
    """Return how content differs from every accepted one; empty where it is accepted, or nothing is sealed."""
    found = _read_seal(folder)
    if found is not None and name in found:
        if any(content_digest(content) == content_digest(each) for each in found[name]):
            return []
        return differences(found[name][-1], content) or ["its keys are in another order"]
    wanted = _seal_of_checkpoints(folder).get(name)
    if wanted is None or wanted == content_digest(content):
        return []
    before = _config_of_checkpoint(folder) if name == "config.json" else None
    listed = differences(before, content) if before is not None else []
    return listed or ["it is not the file that the newest checkpoint was saved with"]


def _read_seal(folder: Path) -> dict[str, list[Any]] | None:
    """Read the accepted contents; None where there is no seal."""
    path = folder / SEAL_FILE
    try:
        content = unsealed(read_bytes(path, max_bytes=MAX_JSON_BYTES), path, max_bytes=MAX_JSON_BYTES)
        return {name: _contents(texts, path) for name, texts in content.items()}
    except FileNotFoundError:
        return None
    except CheckpointCorrupt as error:
        raise RunChangedError(path, [error.reason]) from None


def _contents(texts: Any, path: Path) -> list[Any]:
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise CheckpointCorrupt(path, "it is not a table of accepted contents")
    return [decode_json(text.encode("utf-8", "replace"), path, constant=float) for text in texts]


def _accepted_for_writing(folder: Path) -> dict[str, list[Any]]:
    """Return the accepted contents; a damaged seal starts empty, because writing accepts the present content."""
    try:
        return _read_seal(folder) or {}
    except RunChangedError:
        return {}


def _as_it_is(folder: Path, name: str) -> list[Any]:
    """Return the content of a file without a seal; nothing where it is missing or damaged."""
    try:
        return [read_plain(folder, name)]
    except (OSError, ConfigError):
        return []


def _write_seal(folder: Path, accepted: Mapping[str, list[Any]]) -> None:
    # texts, because a setting may be infinite, which the seal's own JSON has no number for
    texts = {name: [json.dumps(content) for content in contents] for name, contents in accepted.items()}
    write_bytes(folder / SEAL_FILE, sealed(texts))


def _seal_of_checkpoints(folder: Path) -> Mapping[str, str]:
    try:
        return CheckpointStore(folder / CHECKPOINTS).seal()
    except CheckpointError:
        return {}


def _config_of_checkpoint(folder: Path) -> Any:
    try:
        return CheckpointStore(folder / CHECKPOINTS).load("last").config
    except CheckpointError:
        return None
