"""Terms: additional rewards and losses of an algorithm, passed as a list; `striderl.algorithms` offers their names."""

from __future__ import annotations

from striderl._lazy import lazy

__getattr__ = lazy(
    __name__,
    {
        "estimation": ["Estimation"],
        "rnd": ["RNDConfig", "RandomNetworkDistillation"],
        "symmetry": ["MirrorTable", "Symmetry"],
        "term": ["Read", "Term", "TermList"],
    },
)[0]
