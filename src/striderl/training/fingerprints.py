"""Fingerprints of tensors: equal bits give equal numbers, on whichever process or device they are."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def fingerprints(named: Mapping[str, Tensor]) -> Tensor:
    """Return one int64 per tensor, [K]; reads the values on the host."""
    return torch.tensor([_fingerprint(value) for value in named.values()], dtype=torch.int64)


def _fingerprint(value: Tensor) -> int:
    plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.blake2b(plain.numpy().tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def diverging(table: Tensor, names: Sequence[str]) -> list[str]:
    """Return a sentence per rank whose fingerprints [ranks, K] are not those of most; of two, those of rank 0 count."""
    found: list[str] = []
    columns = [[int(value) for value in column] for column in table.t()]
    usual = [_most_common(column) for column in columns]
    for rank in range(table.shape[0]):
        other = [name for name, column, value in zip(names, columns, usual) if column[rank] != value]
        if other:
            found.append(f"rank {rank} has other values in {', '.join(repr(name) for name in other)}")
    return found


def _most_common(values: Sequence[int]) -> int:
    """Return what occurs most often; of several, the first."""
    return max(values, key=lambda value: (Counter(values)[value], -values.index(value)))
