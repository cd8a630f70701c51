"""Files made to do harm: each is put where a checkpoint, or a foreign checkpoint, is expected.

A forged checkpoint carries right checksums: an attacker can compute them too. In every folder lies a good checkpoint of
step 1; the forged one has step 2.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from store_cases import run_state

from striderl.checkpoint.folder import sealed
from striderl.checkpoint.store import CheckpointStore

EMPTY_TENSORS = (2).to_bytes(8, "little") + b"{}"
NO_STATE = b'{"state":{},"config":null,"layout":null}'


class Payload:
    """Would make a file, were it ever unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.canary}",)


def forge(folder: Path, *, state: bytes = NO_STATE, tensors: bytes = EMPTY_TENSORS, **changes: Any) -> Path:
    """Write a checkpoint of step 2 with these files and a manifest that fits them."""
    path = folder / "step_000000000002"
    path.mkdir()
    files = {}
    for name, content in (("tensors.safetensors", tensors), ("state.json", state)):
        (path / name).write_bytes(content)
        files[name] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    fields = {"format": "striderl-checkpoint", "version": 1, "striderl": "x", "torch": "x", "step": 2, "best": False}
    (path / "manifest.json").write_bytes(sealed({**fields, "files": files, **changes}))
    return path


def header(table: Any, data: bytes = b"") -> bytes:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data


def line(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def state(node: Any) -> bytes:
    return json.dumps({"state": node, "config": None, "layout": None}).encode()


def npy(canary: Path) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Payload(canary)], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def torch_file(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def script() -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), buffer)
    return buffer.getvalue()


def tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("../../evil")
        archive.addfile(info, io.BytesIO(b""))
    return buffer.getvalue()


def claims_more() -> bytes:
    """A tensor of four numbers whose program says it has a thousand."""
    good = torch_file({"model_state_dict": {"actor.0.weight": torch.arange(4.0)}})
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    program = members["archive/data.pkl"]
    changed = program.replace(b"K\x04tq", b"M\xe8\x03tq")
    assert changed != program
    return zipped({**members, "archive/data.pkl": changed})


def laughs() -> bytes:
    """A table whose lists hold each other twice: small on disk, endless to walk through."""
    value: Any = [1]
    for _ in range(200):
        value = [value, value]
    return torch_file({"model_state_dict": value})


def program(operations: bytes) -> bytes:
    return zipped({"archive/data.pkl": b"\x80\x02" + operations + b".", "archive/version": b"3\n"})


def checkpoints(canary: Path) -> dict[str, Callable[[Path], object]]:
    """Return forged checkpoints by name, as functions that write them into a folder."""
    pickled = pickle.dumps(Payload(canary))
    deep, many = 200_000, 1_200_000
    tensors: dict[str, bytes] = {
        "pickle as tensors": pickled,
        "pt as tensors": torch_file({"a": Payload(canary)}),
        "npy as tensors": npy(canary),
        "zip bomb as tensors": zipped({"a": bytes(10_000_000)}, zipfile.ZIP_DEFLATED),
        "yaml as tensors": b"!!python/object/apply:os.system ['true']",
        "header of 2^63 bytes": (2**63).to_bytes(8, "little") + b"{}",
        "header longer than the file": (4096).to_bytes(8, "little") + b"{}",
        "no header": b"",
        "shape of 2^62 x 2^62": header({"a": line(shape=[2**62, 2**62], offsets=[0, 4])}, bytes(4)),
        "shape of 2^62 with its offsets": header({"a": line(shape=[2**62], offsets=[0, 2**64])}),
        "empty with 2^62 rows": header({"a": line(shape=[2**62, 2**62, 0], offsets=[0, 0])}),
        "negative shape": header({"a": line(shape=[-1, -1], offsets=[0, 4])}, bytes(4)),
        "shape of floats": header({"a": line(shape=[1.0], offsets=[0, 4])}, bytes(4)),
        "shape of bools": header({"a": line(shape=[True], offsets=[0, 4])}, bytes(4)),
        "a thousand dimensions": header({"a": line(shape=[1] * 1000, offsets=[0, 4])}, bytes(4)),
        "overlap": header({"a": line(), "b": line()}, bytes(4)),
        "gap": header({"a": line(), "b": line(offsets=[8, 12])}, bytes(12)),
        "unknown dtype": header({"a": line(dtype="PICKLE")}, bytes(4)),
        "dtype that is a list": header({"a": line(dtype=["F32"])}, bytes(4)),
        "metadata with a target": header({"__metadata__": {"_target_": "os.system"}}),
        "a million tensors": header(b"{" + b",".join(b'"%d":[]' % at for at in range(many)) + b"}"),
        "deep header": header(b'{"a":' * deep + b"1" + b"}" * deep),
        "complex of wrong pairs": header({"/a~complex128": line(shape=[1], offsets=[0, 4])}, bytes(4)),
    }
    states: dict[str, bytes] = {
        "pickle as state": pickled,
        "deep lists": b"[" * deep + b"]" * deep,
        "deep tables": b'{"a":' * deep + b"1" + b"}" * deep,
        "deep within limits": state(json.loads("[" * 400 + "]" * 400)),
        "four million lists": b"[" + b"[]," * 4_000_000 + b"[]]",
        "number of a million digits": b'{"state":' + b"9" * 1_000_000 + b',"config":null,"layout":null}',
        "not a number": b'{"state":NaN,"config":null,"layout":null}',
        "key twice": b'{"state":1,"state":2,"config":null,"layout":null}',
        "not utf-8": b'{"state":"\xff\xfe","config":null,"layout":null}',
        "not a table": b"[1,2,3]",
        "missing parts": b'{"state":1}',
        "tensor outside": state({"$tensor": "../../../etc/passwd"}),
        "tensor twice": state([{"$tensor": "/a"}, {"$tensor": "/a"}]),
        "class to be made": state({"$class": "os.system", "args": ["true"]}),
        "mark with company": state({"$tuple": [1], "x": 2}),
        "object number": state({"$number": ["object", "00" * 8]}),
        "array without tensor": state({"$array": ["float32", "/nothing"]}),
        "float of three bytes": state({"$float": "000000"}),
        "hexadecimal that is not": state({"$int": "zz"}),
        "pairs that are not": state({"$dict": [[1, 2, 3]]}),
        "key that is a list": state({"$dict": [[[1], 2]]}),
        "key pair twice": state({"$dict": [["a", 1], ["a", 2]]}),
    }
    found: dict[str, Callable[[Path], object]] = {}
    found |= {name: lambda folder, content=content: forge(folder, tensors=content) for name, content in tensors.items()}
    found |= {name: lambda folder, content=content: forge(folder, state=content) for name, content in states.items()}
    found |= {
        "file list with a path": lambda folder: forge(folder, files={"../../etc/passwd": {"sha256": "", "size": 1}}),
        "no files": lambda folder: forge(folder, files={}),
        "files that are a list": lambda folder: forge(folder, files=["tensors.safetensors"]),
        "step that is another": lambda folder: forge(folder, step=7),
        "step that is text": lambda folder: forge(folder, step="2"),
        "newer version": lambda folder: forge(folder, version=99),
        "manifest with infinity": lambda folder: (forge(folder) / "manifest.json").write_bytes(
            b'{"a":1e999,"checksum":""}'
        ),
        "pickle as manifest": lambda folder: (forge(folder) / "manifest.json").write_bytes(pickled),
        "sparse manifest of a gigabyte": lambda folder: os.truncate(forge(folder) / "manifest.json", 2**30),
        "link to a device": lambda folder: _replace(forge(folder) / "tensors.safetensors").symlink_to("/dev/zero"),
        "link to a file": lambda folder: _replace(forge(folder) / "state.json").symlink_to("/etc/passwd"),
        "pipe": lambda folder: os.mkfifo(_replace(forge(folder) / "state.json")),
        "directory for a file": lambda folder: _replace(forge(folder) / "manifest.json").mkdir(),
        "sparse tensors of a tebibyte": _sparse,
        "link to a directory": _linked,
    }
    return found


def _replace(path: Path) -> Path:
    path.unlink()
    return path


def _sparse(folder: Path) -> None:
    entry = {"sha256": "0" * 64, "size": 2**40}
    state_entry = {"sha256": hashlib.sha256(NO_STATE).hexdigest(), "size": len(NO_STATE)}
    path = forge(folder, files={"tensors.safetensors": entry, "state.json": state_entry})
    os.truncate(path / "tensors.safetensors", 2**40)


def _linked(folder: Path) -> None:
    outside = folder.parent / f"{folder.name} outside"
    outside.mkdir()
    forge(outside)
    (folder / "step_000000000002").symlink_to(outside / "step_000000000002")


def foreign(canary: Path) -> dict[str, bytes]:
    """Return hostile `.pt` files by name."""
    payload = Payload(canary)
    return {
        "pickle": pickle.dumps({"model_state_dict": payload}),
        "payload in an archive": torch_file({"model_state_dict": payload}),
        "payload by its name": program(b"cposix\nsystem\n(X\x04\x00\x00\x00truetR"),
        "payload by stacked names": program(b"\x8c\x05posix\x8c\x06system\x93(X\x04\x00\x00\x00truetR"),
        "terabyte of zeros": program(b"c__builtin__\nbytearray\n\x8a\x06\x00\x00\x00\x00\x00\x01\x85R"),
        "instance": program(b"(X\x04\x00\x00\x00trueiposix\nsystem\n"),
        "endless program": program(b"]" + b"K\x01a" * 600_000),
        "script": script(),
        "compressed bomb": zipped(
            {"archive/data.pkl": b".", "archive/data/0": bytes(10_000_000)}, zipfile.ZIP_DEFLATED
        ),
        "path outside": zipped({"archive/data.pkl": b"\x80\x02}.", "../../evil": b""}),
        "two programs": zipped({"a/data.pkl": b"\x80\x02}.", "b/data.pkl": b"\x80\x02}."}),
        "no program": zipped({"archive/version": b"3"}),
        "half a million members": zipped({}) + b"PK\x01\x02" * 500_000,
        "many members": b"PK\x03\x04" + b"PK\x01\x02" * 500_000,
        "claims more than it has": claims_more(),
        "lists in lists": laughs(),
        "npy": npy(canary),
        "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(512),
        "yaml": b"!!python/object/apply:os.system ['true']\n",
        "tar": tar(),
        "metadata of a distributed checkpoint": pickle.dumps(payload, protocol=4),
        "empty": b"",
    }


def build(folder: Path, canary: Path) -> tuple[dict[str, Path], dict[str, Path]]:
    """Write the whole corpus; returns the folders of forged checkpoints and the foreign files."""
    stores, files = {}, {}
    good = CheckpointStore(folder / "good")
    good.save(run_state(1), step=1)
    for name, write in checkpoints(canary).items():
        stores[name] = folder / "stores" / name.replace("/", " ")
        stores[name].mkdir(parents=True)
        (stores[name] / "step_000000000001").mkdir()
        for path in (folder / "good" / "step_000000000001").iterdir():
            (stores[name] / "step_000000000001" / path.name).write_bytes(path.read_bytes())
        write(stores[name])
    for name, content in foreign(canary).items():
        files[name] = folder / f"{name}.pt"
        files[name].write_bytes(content)
    return stores, files
