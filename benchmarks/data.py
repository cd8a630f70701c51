"""Nested arrays: `striderl.Batch` beside Tianshou's `Batch` and TensorDict, operation by operation.

    8 leaves                              2 levels
    k0 … k7: float32 [64, 8]              obs:  k0 … k3: float32 [64, 8]
                                          info: k0, k1:  float32 [64, 8]
                                          act: float32 [64, 3], rew: float32 [64]

With numpy leaves striderl is compared with Tianshou alone, because TensorDict turns arrays into tensors. The column
`namedarraytuple` (striderl's tuples with fixed fields) is information: there is no peer to install beside it.

    python benchmarks/data.py
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from harness import Benchmark, main
from harness_clock import Sample, repeated
from harness_report import Contender, Table

ROWS = 64
OPERATIONS = (
    "construct from a dict",
    "index one row",
    "slice 16 rows",
    "index array, 16 rows",
    "assign one row",
    "assign a slice, 16 rows",
    "assign by index array, 16 rows",
    "stack 8 rows",
    "cat 4 parts of 16 rows",
)
STRUCTURES = ("8 leaves", "2 levels")


@dataclass(frozen=True, kw_only=True)
class Library:
    """How one library builds and joins its structure; indexing and assigning are spelled alike everywhere."""

    construct: Callable[[Any], Any]
    stack: Callable[[Sequence[Any]], Any]
    cat: Callable[[Sequence[Any]], Any]


def load_striderl() -> Library:
    from striderl import Batch

    return Library(construct=Batch, stack=Batch.stack, cat=Batch.cat)


def load_namedarraytuple() -> Library:
    from striderl.data import tree
    from striderl.data.named_tuples import namedarraytuple

    flat = namedarraytuple("Flat", [f"k{i}" for i in range(8)])
    obs = namedarraytuple("Obs", [f"k{i}" for i in range(4)])
    info = namedarraytuple("Info", ["k0", "k1"])
    nested = namedarraytuple("Nested", ["obs", "info", "act", "rew"])

    def construct(data: dict[str, Any]) -> Any:
        if "obs" not in data:
            return flat(**data)
        return nested(obs=obs(**data["obs"]), info=info(**data["info"]), act=data["act"], rew=data["rew"])

    return Library(construct=construct, stack=tree.stack, cat=tree.cat)


def load_tianshou() -> Library:
    from tianshou.data import Batch

    return Library(construct=Batch, stack=Batch.stack, cat=Batch.cat)


def load_tensordict() -> Library:
    from tensordict import TensorDict

    return Library(
        construct=lambda data: TensorDict(data, batch_size=[ROWS]), stack=TensorDict.stack, cat=TensorDict.cat
    )


LIBRARIES = {
    "striderl": load_striderl,
    "tianshou": load_tianshou,
    "tensordict": load_tensordict,
    "namedarraytuple": load_namedarraytuple,
}


def make_data(structure: str, leaves: str) -> dict[str, Any]:
    """Return a dict of random leaves."""
    import numpy as np
    import torch

    generator = np.random.default_rng(0)

    def leaf(*shape: int) -> Any:
        array = generator.random((ROWS, *shape), np.float32)
        return array if leaves == "numpy" else torch.from_numpy(array)

    if structure == "8 leaves":
        return {f"k{i}": leaf(8) for i in range(8)}
    return {
        "obs": {f"k{i}": leaf(8) for i in range(4)},
        "info": {f"k{i}": leaf(8) for i in range(2)},
        "act": leaf(3),
        "rew": leaf(),
    }


def operation(library: Library, data: dict[str, Any], leaves: str, name: str) -> Callable[[], Any]:
    """Return the operation as a call without arguments."""
    import numpy as np
    import torch

    batch = library.construct(data)
    row, part = copy.deepcopy(batch[0]), copy.deepcopy(batch[0:16])
    rows, parts = [batch[i] for i in range(8)], [batch[i : i + 16] for i in range(0, ROWS, 16)]
    order: Any = np.random.default_rng(1).permutation(ROWS)[:16]
    order = order if leaves == "numpy" else torch.from_numpy(order)

    def assign(loc: Any, value: Any) -> Callable[[], None]:
        def write() -> None:
            batch[loc] = value

        return write

    calls: dict[str, Callable[[], Any]] = {
        "construct from a dict": lambda: library.construct(data),
        "index one row": lambda: batch[3],
        "slice 16 rows": lambda: batch[16:32],
        "index array, 16 rows": lambda: batch[order],
        "assign one row": assign(3, row),
        "assign a slice, 16 rows": assign(slice(16, 32), part),
        "assign by index array, 16 rows": assign(order, part),
        "stack 8 rows": lambda: library.stack(rows),
        "cat 4 parts of 16 rows": lambda: library.cat(parts),
    }
    return calls[name]


@contextmanager
def prepare(contender: str, table: str, row: str) -> Iterator[Callable[[], Sample]]:
    """Build the structure and the operation of one row."""
    structure, leaves = next(key for key, title in TITLES.items() if title == table)
    yield repeated(operation(LIBRARIES[contender](), make_data(structure, leaves), leaves, row))


TITLES = {(s, leaves): f"{s}, {leaves}" for leaves in ("numpy", "torch") for s in STRUCTURES}
PEERS = {"numpy": ("tianshou",), "torch": ("tianshou", "tensordict")}

DATA = Benchmark(
    name="data",
    contenders={
        "striderl": Contender(name="striderl Batch", needs=("striderl", "torch", "numpy"), role="subject"),
        "tianshou": Contender(name="Tianshou Batch", needs=("tianshou", "torch", "numpy")),
        "tensordict": Contender(name="TensorDict", needs=("tensordict", "torch", "numpy")),
        "namedarraytuple": Contender(
            name="striderl namedarraytuple", needs=("striderl", "torch", "numpy"), role="information"
        ),
    },
    tables=[
        Table(title=title, rows=OPERATIONS, contenders=("striderl", *PEERS[leaves], "namedarraytuple"))
        for (_, leaves), title in TITLES.items()
    ],
    prepare=prepare,
)

if __name__ == "__main__":
    sys.exit(main([DATA], __file__))
