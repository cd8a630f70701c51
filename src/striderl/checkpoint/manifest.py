"""What a checkpoint consists of: the file that is written last and says what the others must be.

    {"format":"striderl-checkpoint","version":1,"striderl":"0.1.0","torch":"2.13.0","step":1234,"best":false,
     "files":{"tensors.safetensors":{"sha256":"…","size":4816},"state.json":{"sha256":"…","size":912}},
     "seal":{"config.json":"<digest>","specs.json":"<digest>"},
     "checksum":"<sha256 of this text without its checksum>"}

It is accepted only in the spelling in which it is written, so no flipped bit goes unnoticed. The seal has the digests
of what lies beside the checkpoints in the folder of a run; checkpoints that were saved without one have none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import striderl
from striderl.checkpoint.errors import CheckpointCorrupt, CheckpointVersion
from striderl.checkpoint.limits import MAX_MANIFEST_BYTES
from striderl.checkpoint.strict_json import decode, encode

FORMAT = "striderl-checkpoint"
VERSION = 1
"""Counts up when a checkpoint can no longer be read by older versions."""

MANIFEST, TENSORS, STATE = "manifest.json", "tensors.safetensors", "state.json"
MEMBERS = (TENSORS, STATE)
"""The files a manifest vouches for."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """What one file must be."""

    sha256: str
    """Of its bytes, in hexadecimal."""
    size: int
    """In bytes."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint consists of."""

    step: int
    """The step it was saved at."""
    best: bool
    """Whether it was the best so far when it was saved."""
    files: Mapping[str, Member]
    """Every file but the manifest, by name."""
    seal: Mapping[str, str] = field(default_factory=dict)
    """Digests of the run's own files by name, see `striderl.training.seal`; empty where nothing is sealed."""


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return a table as JSON that carries its own checksum."""
    return encode({**content, "checksum": hashlib.sha256(encode(dict(content))).hexdigest()})


def unsealed(text: bytes, path: Path, *, max_bytes: int = MAX_MANIFEST_BYTES) -> dict[str, Any]:
    """Read what `sealed` wrote; anything else is refused."""
    content = decode(text, path, max_bytes=max_bytes)
    if not isinstance(content, dict) or "checksum" not in content:
        raise CheckpointCorrupt(path, "it carries no checksum")
    checksum = content.pop("checksum")
    try:
        spelled = sealed(content)
    except ValueError as error:  # 1e999 is read as infinity, which is never written
        raise CheckpointCorrupt(path, str(error)) from None
    if spelled != text:
        raise CheckpointCorrupt(path, f"its checksum {str(checksum)[:16]!r}… does not fit its content")
    return content


def write_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as bytes."""
    files = {name: {"sha256": member.sha256, "size": member.size} for name, member in manifest.files.items()}
    return sealed(
        {
            "format": FORMAT,
            "version": VERSION,
            "striderl": striderl.__version__,
            "torch": str(torch.__version__),
            "step": manifest.step,
            "best": manifest.best,
            "files": files,
            **({"seal": dict(manifest.seal)} if manifest.seal else {}),
        }
    )


def read_manifest(text: bytes, path: Path) -> Manifest:
    """Read a manifest; one of a newer format is told apart from a damaged one."""
    content = unsealed(text, path)
    if content.get("format") != FORMAT or type(content.get("version")) is not int:
        raise CheckpointCorrupt(path, f"it is not a manifest of the format {FORMAT!r}")
    if content["version"] != VERSION:
        raise CheckpointVersion(
            f"{str(path)!r} has the checkpoint format {content['version']}, written by striderl "
            f"{content.get('striderl')}; this is {striderl.__version__}, which reads format {VERSION}"
        )
    step, best, files = content.get("step"), content.get("best"), content.get("files")
    if type(step) is not int or step < 0 or type(best) is not bool or not isinstance(files, dict):
        raise CheckpointCorrupt(path, "its step, best or files are missing or of another type")
    if tuple(files) != MEMBERS:
        raise CheckpointCorrupt(path, f"it lists the files {list(files)[:5]}, wanted {list(MEMBERS)}")
    seal = content.get("seal", {})
    if not isinstance(seal, dict) or not all(isinstance(digest, str) for digest in seal.values()):
        raise CheckpointCorrupt(path, f"its seal is not a table of digests: {str(seal)[:200]}")
    members = {name: _member(line, path) for name, line in files.items()}
    return Manifest(step=step, best=best, files=members, seal=seal)


def _member(line: Any, path: Path) -> Member:
    fits = isinstance(line, dict) and set(line) == {"sha256", "size"}
    if not fits or type(line["size"]) is not int or line["size"] < 0 or not isinstance(line["sha256"], str):
        raise CheckpointCorrupt(path, f"it has a line that is not a checksum and a size: {str(line)[:200]}")
    return Member(sha256=line["sha256"], size=line["size"])
