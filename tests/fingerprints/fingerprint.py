"""Compare short seeded trainings with the kept ones, bit for bit, or keep new ones.

    python tests/fingerprints/fingerprint.py                 compare all; exit 1 if anything moved
    python tests/fingerprints/fingerprint.py ppo sac         compare these
    python tests/fingerprints/fingerprint.py --write         keep what is found, and print what moved

`kept.json` has, for each case, a digest of all tensors after every update and one of each tensor at the end, so a
difference is reported as the first update and the tensors that it is in. The arithmetic is held to what every x86
processor does alike: no vector units in torch's own kernels, the portable code of MKL and oneDNN, one thread.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KEPT = HERE / "kept.json"

PORTABLE = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}

Found = Mapping[str, Any]


def digest(tensors: Mapping[str, Any]) -> str:
    """Return a digest of the values in the order of their names; the names are not in it."""
    whole = hashlib.blake2b(digest_size=8)
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        whole.update(value.reshape(-1).view(_bytes_type()).numpy().tobytes())
    return whole.hexdigest()


def _bytes_type() -> Any:
    import torch

    return torch.uint8


def run_case(family: str, name: str) -> Found:
    """Train one case in this process and return its fingerprint."""
    import torch
    from cases import CASES

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        updates: list[str] = []
        last: dict[str, Any] = {}
        for state in CASES[family][name](Path(scratch)):
            last = {key: value.detach().clone() for key, value in state.items()}
            updates.append(digest(last))
    if len(set(updates)) < 2:
        raise RuntimeError(f"the case {name!r} has not moved a bit in {len(updates)} updates")
    return {"updates": updates, "tensors": {key: digest({key: value}) for key, value in sorted(last.items())}}


def families() -> dict[str, list[str]]:
    """Return the names of all cases by family, without importing torch here."""
    return dict(json.loads(_child("families", "")))


def measure(family: str = "", names: Sequence[str] = ()) -> dict[str, Found]:
    """Train the cases of a family, or all there are, in a process of its own, with portable arithmetic."""
    return dict(json.loads(_child("measure", family, *names)))


def _child(*arguments: str) -> str:
    folders = [ROOT / "src", HERE, HERE.parent / "training", HERE.parent / "envs"]
    result = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--child", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **PORTABLE, "PYTHONPATH": os.pathsep.join(map(str, folders))},
    )
    if result.returncode:
        raise RuntimeError(f"the fingerprint process failed:\n{result.stderr[-4000:]}")
    return result.stdout.strip().splitlines()[-1]


def difference(name: str, kept: Found | None, found: Found) -> str:
    """Return in one sentence how a fingerprint differs from the kept one; '' if it does not."""
    if kept is None:
        return f"{name}: new, {len(found['updates'])} updates"
    if kept == found:
        return ""
    pairs = list(zip(kept["updates"], found["updates"]))
    first = next((number for number, (old, new) in enumerate(pairs, 1) if old != new), None)
    if first is None and len(kept["updates"]) != len(found["updates"]):
        return f"{name}: {len(found['updates'])} updates, {len(kept['updates'])} were kept"
    tensors, now = kept["tensors"], found["tensors"]
    moved = [key for key in tensors if key in now and now[key] != tensors[key]]
    parts = [f"{len(moved)} of {len(tensors)} tensors differ at the end: {_some(moved)}"] if moved else []
    parts += [f"tensors gone: {_some(gone)}"] if (gone := [key for key in tensors if key not in now]) else []
    parts += [f"tensors added: {_some(new)}"] if (new := [key for key in now if key not in tensors]) else []
    start = "same bits under other names" if first is None else f"differs from update {first} of {len(pairs)} on"
    return f"{name}: {start}; {'; '.join(parts)}"


def _some(names: Iterable[str], most: int = 4) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def versions() -> dict[str, str]:
    """Return what the bits depend on besides our code."""
    from importlib import metadata

    return {package: metadata.version(package).partition("+")[0] for package in ("torch", "mujoco")}


def read_kept() -> dict[str, Any]:
    """Return the kept fingerprints, {} if there are none yet."""
    return json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {"versions": {}, "cases": {}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare or write; print a line per case that moved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases to run; all by default")
    parser.add_argument("--write", action="store_true", help="keep what is found")
    options = parser.parse_args(arguments)
    known = families()
    unknown = set(options.names) - {name for names in known.values() for name in names}
    if unknown:
        parser.error(
            f"no cases {sorted(unknown)}; there are {sorted(name for names in known.values() for name in names)}"
        )
    kept = read_kept()
    if kept["versions"] not in ({}, versions()):
        print(f"kept with {kept['versions']}, here are {versions()}: the bits may differ for that reason alone")
    lines = []
    for family, names in known.items():
        wanted = [name for name in names if not options.names or name in options.names]
        if not wanted:
            continue
        found = measure(family, wanted)
        lines += [line for name in wanted if (line := difference(name, kept["cases"].get(name), found[name]))]
        if options.write:
            kept["cases"] |= found
    if options.write:
        every = {name for names in known.values() for name in names}
        lines += [f"{name}: gone" for name in kept["cases"] if name not in every]
        cases = {name: kept["cases"][name] for name in sorted(kept["cases"]) if name in every}
        KEPT.write_text(json.dumps({"versions": versions(), "cases": cases}, indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines) if lines else "nothing has moved")
    return 1 if lines and not options.write else 0


def child(arguments: Sequence[str]) -> int:
    """Work inside the process with portable arithmetic."""
    from cases import CASES

    task, family, *names = arguments
    if task == "families":
        print(json.dumps({family: list(cases) for family, cases in CASES.items()}))
    else:
        chosen = {family: names or CASES[family]} if family else CASES
        print(json.dumps({name: run_case(which, name) for which, cases in chosen.items() for name in cases}))
    return 0


if __name__ == "__main__":
    sys.exit(child(sys.argv[2:]) if sys.argv[1:2] == ["--child"] else main())
