"""Saved states of replays, divided and joined: for several processes that have a shard of the experience each.

    dataset of 10 steps      env 0  a b c d e f ┃ env 1  g h i j        env by env in the order of time
    shards of two processes  a b c d e          ┃ f, g h i j            equally many steps, or one more

    replays of two processes        envs 0 1 │ 2 3 ──joined──▶ 0 1 2 3 ──divided──▶ 0 │ 1 │ 2 │ 3      of four

A shard keeps the memory of its own steps alone. Where a shard ends within an episode its last step is followed by the
observation that was there; windows of several steps end there too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_PER_ENV = ("current", "fresh")
"""Tables of episodes with one entry per env; all others have one per row."""


def dataset_shard(state: Mapping[str, Any], rank: int, num_ranks: int) -> dict[str, Any]:
    """Return the state of a dataset with one process's part of the steps, in as little memory as they need."""
    first, sizes = state["first_alive"].tolist(), (state["totals"] - state["first_alive"]).tolist()
    total = sum(sizes)
    if total < num_ranks:
        raise ValueError(f"a dataset of {total} steps cannot be shared by {num_ranks} processes")
    low, high = total * rank // num_ranks, total * (rank + 1) // num_ranks
    envs: list[int] = []
    starts: list[int] = []
    lengths: list[int] = []
    before = 0
    for env, size in enumerate(sizes):
        begin, end = max(low, before), min(high, before + size)
        if begin < end:
            envs.append(env)
            starts.append(first[env] + begin - before)
            lengths.append(end - begin)
        before += size
    return _compact(state, torch.tensor(envs), torch.tensor(starts), torch.tensor(lengths))


def _compact(state: Mapping[str, Any], envs: Tensor, starts: Tensor, lengths: Tensor) -> dict[str, Any]:
    """Return the state with steps `starts` … `starts + lengths - 1` of some envs, from place 0 of a smaller ring on."""
    rows, num_envs = int(state["steps_per_env"]) + 1, int(state["num_envs"])
    longest, count = int(lengths.max()), len(envs)
    after = torch.arange(longest + 1).unsqueeze(1)
    # one row more than steps: the observation that follows the newest; beyond the end of a short env, any row
    place = (starts + torch.minimum(after, lengths)) % rows
    blocks = {
        name: {dtype: block[place.clamp(max=block.shape[0] - 1), envs] for dtype, block in state[name].items()}
        for name in ("steps", "frames")
    }
    where = torch.full((rows, num_envs), -1)
    taken = after < lengths
    where[place[taken], envs.expand_as(place)[taken]] = (after * count + torch.arange(count))[taken]
    finals = state["finals"]
    moved = where.flatten()[finals["rows"]]
    kept = moved >= 0
    return {
        **state,
        "num_envs": count,
        "steps_per_env": longest,
        "totals": lengths.clone(),
        "first_alive": torch.zeros_like(lengths),
        **blocks,
        "finals": {
            "rows": moved[kept],
            "blocks": {dtype: block[kept] for dtype, block in finals["blocks"].items()},
        },
    }


# -- replays of a run, resumed by another number of processes ----------------------------------------------------------


def joined_replays(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of one replay with the envs of several, in their order; the sampler's draws are the first's."""
    main, rows = states[0], int(states[0]["steps_per_env"]) + 1
    if any(state["steps"] is None for state in states):
        raise ValueError("a replay in files is resumed by as many processes as have filled it")
    counts = [int(state["num_envs"]) for state in states]
    total = sum(counts)
    firsts = [sum(counts[:number]) for number in range(len(counts))]
    finals = torch.cat(
        [
            state["finals"]["rows"] // count * total + first + state["finals"]["rows"] % count
            for state, count, first in zip(states, counts, firsts)
        ]
    )
    order, dtypes = finals.argsort(), main["finals"]["blocks"]
    return {
        **main,
        "num_envs": total,
        "totals": torch.cat([state["totals"] for state in states]),
        "first_alive": torch.cat([state["first_alive"] for state in states]),
        "picker": _joined_sampler(states, counts, rows),
        "episodes": _joined_tables([state["episodes"] for state in states], counts, rows),
        "states": _joined_blocks([state["states"] for state in states]),
        "steps": _joined_blocks([state["steps"] for state in states]),
        "frames": _joined_blocks([state["frames"] for state in states]),
        "finals": {
            "rows": finals[order],
            "blocks": {
                dtype: torch.cat([state["finals"]["blocks"][dtype] for state in states])[order] for dtype in dtypes
            },
        },
    }


def replay_of_envs(state: Mapping[str, Any], first: int, count: int) -> dict[str, Any]:
    """Return the state of a replay with `count` of the envs of another one, from env `first` on."""
    rows, total = int(state["steps_per_env"]) + 1, int(state["num_envs"])
    chosen = slice(first, first + count)
    place, env = state["finals"]["rows"] // total, state["finals"]["rows"] % total - first
    kept = (env >= 0) & (env < count)

    def blocks(name: str) -> Any:
        return None if state[name] is None else {dtype: block[:, chosen] for dtype, block in state[name].items()}

    sampler, tables = dict(state["picker"]), state["episodes"]
    if "leaves" in sampler:
        sampler["leaves"] = sampler["leaves"].view(rows, total)[:, chosen].flatten()
    if tables is not None:
        tables = {
            name: table[chosen] if name in _PER_ENV else table.view(rows, total)[:, chosen].flatten()
            for name, table in tables.items()
        }
    return {
        **state,
        "num_envs": count,
        "totals": state["totals"][chosen],
        "first_alive": state["first_alive"][chosen],
        "picker": sampler,
        "episodes": tables,
        **{name: blocks(name) for name in ("states", "steps", "frames")},
        "finals": {
            "rows": (place * count + env)[kept],
            "blocks": {dtype: block[kept] for dtype, block in state["finals"]["blocks"].items()},
        },
    }


def _joined_blocks(parts: Sequence[Mapping[str, Tensor] | None]) -> dict[str, Tensor] | None:
    """Return blocks [rows, envs, …] side by side; rows that only some have used are zeros in the others."""
    given = [part for part in parts if part is not None]
    if not given:
        return None
    return {dtype: torch.cat(_as_long([part[dtype] for part in given]), dim=1) for dtype in given[0]}


def _as_long(blocks: Sequence[Tensor]) -> list[Tensor]:
    longest = max(block.shape[0] for block in blocks)
    return [torch.cat([block, block.new_zeros(longest - block.shape[0], *block.shape[1:])]) for block in blocks]


def _joined_sampler(states: Sequence[Mapping[str, Any]], counts: Sequence[int], rows: int) -> dict[str, Any]:
    found = dict(states[0]["picker"])
    if "leaves" in found:
        found["leaves"] = torch.cat(
            [state["picker"]["leaves"].view(rows, count) for state, count in zip(states, counts)], dim=1
        ).flatten()
        found["largest"] = max(float(state["picker"]["largest"]) for state in states)
    return found


def _joined_tables(
    tables: Sequence[Mapping[str, Tensor] | None], counts: Sequence[int], rows: int
) -> dict[str, Tensor] | None:
    given = [table for table in tables if table is not None]
    if not given:
        return None
    return {
        name: torch.cat([table[name] for table in given])
        if name in _PER_ENV
        else torch.cat([table[name].view(rows, count) for table, count in zip(given, counts)], dim=1).flatten()
        for name in given[0]
    }
