"""Programs written for Tianshou 0.3: its names at its paths.

    import tianshou as ts                              import striderl.compat.tianshou as ts
    from tianshou.data import Batch, Collector         from striderl.compat.tianshou.data import Batch, Collector
    from tianshou.utils.net.common import Net          from striderl.compat.tianshou.utils.net.common import Net

`ts.policy.DQNPolicy`, `ts.trainer.offpolicy_trainer` and the like are found as in Tianshou, whose modules are
`SUBMODULES` and those below them.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from striderl.compat import original_paths

SUBMODULES = ("data", "env", "exploration", "policy", "trainer", "utils")
"""What `import tianshou` makes available as attributes."""

original_paths.install(__name__, original_paths.TIANSHOU)


def __getattr__(name: str) -> ModuleType:
    if name in SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__} has no {name!r}; it has {', '.join(SUBMODULES)}")
