"""Configs say at once which field has the wrong type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from striderl.data.checked_fields import check_field_types


@dataclass(frozen=True, kw_only=True)
class Config:
    count: int = 1
    rate: float = 1.0
    flag: bool = False
    name: str = ""
    sizes: tuple[int, ...] = ()
    bounds: tuple[float, str] = (0.0, "")
    maybe: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    anything: Any = None

    def __post_init__(self) -> None:
        check_field_types(self)


@pytest.mark.parametrize(
    "good",
    [
        {},
        {"rate": 2, "count": np.int64(3)},
        {"rate": np.float32(0.5)},
        {"sizes": (1, 2, 3), "bounds": (1, "x")},
        {"maybe": 4, "settings": {"a": 1}, "anything": object()},
    ],
)
def test_what_fits_passes(good):
    Config(**good)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"count": 1.0}, "Config.count: wanted int, found float 1.0"),
        ({"count": True}, "Config.count: wanted int, found bool True"),
        ({"rate": "1"}, "Config.rate: wanted float, found str '1'"),
        ({"flag": 0}, "Config.flag: wanted bool, found int 0"),
        ({"name": None}, "Config.name: wanted str, found NoneType None"),
        ({"sizes": [1, 2]}, r"Config.sizes: wanted tuple\[int, ...\], found list \[1, 2\]"),
        ({"sizes": (1, "2")}, "Config.sizes"),
        ({"bounds": (1.0,)}, "Config.bounds"),
        ({"maybe": "x"}, r"Config.maybe: wanted int \| None, found str 'x'"),
        ({"settings": [("a", 1)]}, "Config.settings"),
    ],
)
def test_what_does_not_fit_is_named(bad, message):
    with pytest.raises(TypeError, match=message):
        Config(**bad)
