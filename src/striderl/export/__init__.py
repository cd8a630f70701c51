"""A trained policy as files that run without striderl."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.export.bundle import export_policy as export_policy
    from striderl.export.exported_policy import load_bundle as load_bundle
    from striderl.export.golden_trace import ParityError as ParityError
    from striderl.export.metadata import ExportMetadata as ExportMetadata

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "bundle": ["export_policy"],
        "exported_policy": ["load_bundle"],
        "golden_trace": ["ParityError"],
        "metadata": ["ExportMetadata"],
    },
    unlisted={
        "bundle": ["Bundle"],
        "exported_policy": ["ExportedPolicy"],
    },
)
