"""Tests against real clients; they run in an environment of their own: `make test-clients`."""

from __future__ import annotations

import importlib.util

collect_ignore_glob: list[str] = [] if importlib.util.find_spec("mjlab") is not None else ["test_*.py"]
