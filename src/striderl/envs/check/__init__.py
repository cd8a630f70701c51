"""Check that an environment keeps the contract, and report what is wrong, in which env, at which step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.envs.check.checker import check_vec_env as check_vec_env
    from striderl.envs.check.values import Report as Report

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "checker": ["check_vec_env"],
        "values": ["Report"],
    },
    unlisted={
        "values": ["Violation"],
    },
)
