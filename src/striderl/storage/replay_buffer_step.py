"""One step on its way into a `ReplayBuffer`: named parts, float rewards, three flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from striderl.data import leaf
from striderl.data.batch import Batch
from striderl.data.naming import unknown
from striderl.data.transition import ends_of

KEYS = ("obs", "act", "rew", "done", "terminated", "truncated", "obs_next", "info", "policy")


def given_step(
    obs: Any, act: Any, rew: Any, done: Any, obs_next: Any, info: Any, policy: Any, terminated: Any, truncated: Any
) -> dict[str, Any]:
    """Return the parts by name; `obs` may be a Batch or mapping that holds all of them."""
    if act is None and isinstance(obs, (Batch, Mapping)):
        return dict(obs.items())
    given = {"obs": obs, "act": act, "rew": rew, "done": done, "obs_next": obs_next, "info": info}
    return given | {"policy": policy, "terminated": terminated, "truncated": truncated}


def step_of(given: Mapping[str, Any]) -> Batch:
    """Return a step with parsed values, `rew` as float and the three flags as bool, or raise."""
    unexpected = [key for key in given if key not in KEYS]
    if unexpected:
        raise KeyError(unknown("key", unexpected[0], KEYS, where="a step"))
    for key in ("obs", "act", "rew"):
        if given.get(key) is None:
            raise ValueError(f"a step wants {key!r}; found {[name for name in given if given[name] is not None]}")
    terminated, truncated = ends_of(given)
    values = {key: given.get(key) for key in ("obs", "act", "rew", "obs_next", "info", "policy")}
    step = Batch({key: value for key, value in values.items() if value is not None})
    if not leaf.is_numeric(step.rew):
        raise TypeError(f"'rew' is a number or an array of numbers, found {type(step.rew).__name__}")
    rew = step.rew if str(step.rew.dtype).removeprefix("torch.").startswith("float") else _floats(step.rew)
    ordered = {"obs": step.obs, "act": step.act, "rew": rew, "done": terminated | truncated}
    ordered |= {"terminated": terminated, "truncated": truncated}
    ordered |= {"obs_next": step.obs_next} if "obs_next" in step else {}
    return Batch({**ordered, "info": step.get("info", Batch()), "policy": step.get("policy", Batch())})


def _floats(value: Any) -> Any:
    return value.float() if leaf.is_tensor(value) else value.astype(np.float64)
