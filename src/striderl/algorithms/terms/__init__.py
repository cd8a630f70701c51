"""Terms: additional rewards and losses of an algorithm, passed as a list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.algorithms.terms.estimation import Estimation as Estimation
    from striderl.algorithms.terms.rnd import RandomNetworkDistillation as RandomNetworkDistillation
    from striderl.algorithms.terms.rnd import RNDConfig as RNDConfig
    from striderl.algorithms.terms.symmetry import MirrorTable as MirrorTable
    from striderl.algorithms.terms.symmetry import Symmetry as Symmetry
    from striderl.algorithms.terms.term import Read as Read
    from striderl.algorithms.terms.term import Term as Term
    from striderl.algorithms.terms.term import TermList as TermList

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "estimation": ["Estimation"],
        "rnd": ["RNDConfig", "RandomNetworkDistillation"],
        "symmetry": ["MirrorTable", "Symmetry"],
        "term": ["Read", "Term", "TermList"],
    },
)
