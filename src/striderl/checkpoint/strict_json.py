"""JSON in one spelling (keys as given, no spaces, ASCII), read with limits on its size and number of values."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from striderl.checkpoint.errors import MAX_JSON_DEPTH, MAX_JSON_NODES, CheckpointCorrupt


def encode(value: Any) -> bytes:
    """Return the one spelling of a JSON value; NaN and infinities are not JSON and raise ValueError."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def decode(
    text: bytes,
    path: str | Path,
    *,
    max_bytes: int,
    max_depth: int = MAX_JSON_DEPTH,
    constant: Callable[[str], Any] | None = None,
) -> Any:
    """Read a JSON text; one that is too large, too deep, ambiguous or not JSON is refused by name."""
    if len(text) > max_bytes:
        raise CheckpointCorrupt(path, f"the JSON text has {len(text)} bytes, at most {max_bytes} are read")
    nodes = count_nodes(text)
    if nodes > MAX_JSON_NODES:
        raise CheckpointCorrupt(path, f"the JSON text has about {nodes} values, at most {MAX_JSON_NODES} are read")
    too_deep = f"the JSON text is nested too deeply, at most {max_depth} levels are read"
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=constant or refuse_constant)
    except RecursionError:
        raise CheckpointCorrupt(path, too_deep) from None
    except UnicodeDecodeError as error:
        raise CheckpointCorrupt(path, f"byte {error.start} is not UTF-8 text") from None
    except (ValueError, MemoryError) as error:
        raise CheckpointCorrupt(path, f"it is not JSON, or not the JSON that is read here ({error})") from None
    if text.count(b"[") + text.count(b"{") > max_depth and not is_small(value, max_depth):
        raise CheckpointCorrupt(path, too_deep)
    return value


def count_nodes(text: bytes) -> int:
    """Return at least the number of values in a JSON text, without parsing it."""
    return 1 + text.count(b",") + text.count(b"[") + text.count(b"{") + text.count(b":")


def is_small(value: Any, max_depth: int) -> bool:
    """Return whether a value has at most so many levels of tables and lists, and not too many values in one of them.

    Lists that are in several places count in each, and one that is in itself has no end.
    """
    level = [value]
    for _ in range(max_depth + 1):
        inner = [item for item in level if isinstance(item, (dict, list))]
        if not inner:
            return True
        items = (item for outer in inner for item in (outer.values() if isinstance(outer, dict) else outer))
        level = list(islice(items, MAX_JSON_NODES + 1))
        if len(level) > MAX_JSON_NODES:
            return False
    return False


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a table names one key twice")
    return table


def refuse_constant(name: str) -> Any:
    """Raise for NaN, Infinity and -Infinity, which are not JSON."""
    raise ValueError(f"{name} is not a JSON number")
