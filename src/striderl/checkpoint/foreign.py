"""Read checkpoints of rsl_rl, all generations, into one description; nothing in them is run.

    generation 1 to 3   model_state_dict         actor.0.weight, memory_a.rnn.weight_ih_l0, std | log_std,
                                                 critic.0.weight, memory_c.rnn.weight_ih_l0
               2      + obs_norm_state_dict      _mean, _std, count; and critic_ or privileged_obs_norm_state_dict
               3      + in model_state_dict      actor_obs_normalizer._mean, critic_obs_normalizer._mean
               4        actor_state_dict         mlp.0.weight, rnn.rnn.weight_ih_l0, obs_normalizer._mean, std | log_std
                        critic_state_dict        the same, without std
               5        as 4, but                distribution.std_param | distribution.log_std_param

Checkpoints of a distilled student are read as well; then the student is the actor and there is no critic. A file of
generation 2 or 3 without normaliser cannot be told from one of generation 1, and means the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.checkpoint.errors import CheckpointCorrupt
from striderl.checkpoint.torch_archive import read_torch_archive

Weights = Mapping[str, Tensor]

EPSILON = 1e-2
"""What rsl_rl adds to the std of its normalisers, in every generation."""


@dataclass(frozen=True, kw_only=True)
class ForeignNormalizer:
    """Statistics of a flat observation."""

    mean: Tensor
    """[size]."""
    std: Tensor
    """[size], without epsilon."""
    count: int
    """How many samples they are from."""


@dataclass(frozen=True, kw_only=True)
class ForeignPolicy:
    """A policy that another library saved, in names of no library."""

    generation: int
    """Of rsl_rl's checkpoint format, 1 to 5."""
    actor: Weights
    """'mlp.0.weight' … and, with a memory, 'rnn.weight_ih_l0' …"""
    critic: Weights
    """The same of the critic; empty for a student."""
    std: Tensor | None
    """The standard deviations of the actions, [actions]; None when they depend on the observation or are not there."""
    std_type: str
    """'scalar' or 'log': in which form it was learned."""
    actor_normalizer: ForeignNormalizer | None = None
    """What the actor's observation passes first."""
    critic_normalizer: ForeignNormalizer | None = None
    """What the critic's observation passes first."""
    optimizer: Mapping[str, Any] | None = None
    """The optimiser's state dict as it was; its parameters are numbered in the order of the source."""
    iteration: int = 0
    """How many iterations were counted."""
    left_out: tuple[str, ...] = field(default=())
    """Names of entries that mean nothing here, such as those of a curiosity network."""


def read_rsl_rl(path: str | Path) -> ForeignPolicy:
    """Read a `.pt` checkpoint of any generation of rsl_rl."""
    content = read_torch_archive(path)
    if "model_state_dict" in content:
        return _one_module(content, Path(path))
    if "actor_state_dict" in content or "student_state_dict" in content:
        return _two_modules(content, Path(path))
    raise CheckpointCorrupt(
        path,
        "it has neither 'model_state_dict' nor 'actor_state_dict' nor 'student_state_dict'; "
        f"it has {sorted(map(str, content))[:20]}",
    )


def _one_module(content: Mapping[str, Any], path: Path) -> ForeignPolicy:
    """Read generations 1 to 3, which keep actor and critic in one module."""
    model = _weights(content["model_state_dict"], path, "model_state_dict")
    who, memory = (
        ("student", "memory_s") if any(name.startswith("student.") for name in model) else ("actor", "memory_a")
    )
    _refuse_images(model, path)
    std, std_type = _std(model)
    outside = {
        "actor": content.get("obs_norm_state_dict"),
        "critic": content.get("privileged_obs_norm_state_dict", content.get("critic_obs_norm_state_dict")),
    }
    inside = {"actor": _part(model, f"{who}_obs_normalizer."), "critic": _part(model, "critic_obs_normalizer.")}
    generation = 3 if any(inside.values()) else 2 if any(outside.values()) or "log_std" in model else 1
    return ForeignPolicy(
        generation=generation,
        actor=_required({**_part(model, f"{who}.", "mlp."), **_memory(model, memory)}, path, f"{who}.*"),
        critic={**_part(model, "critic.", "mlp."), **_memory(model, "memory_c")},
        std=std,
        std_type=std_type,
        actor_normalizer=_normalizer(inside["actor"] or outside["actor"], path),
        critic_normalizer=_normalizer(inside["critic"] or (outside["critic"] if who == "actor" else None), path),
        optimizer=content.get("optimizer_state_dict"),
        iteration=_iteration(content),
        left_out=_others(content),
    )


def _two_modules(content: Mapping[str, Any], path: Path) -> ForeignPolicy:
    """Read generations 4 and 5, which keep a module each."""
    who = "actor_state_dict" if "actor_state_dict" in content else "student_state_dict"
    actor = _weights(content[who], path, who)
    critic = _weights(content.get("critic_state_dict", {}), path, "critic_state_dict")
    _refuse_images({**actor, **critic}, path)
    newer = {
        name.removeprefix("distribution.").removesuffix("_param"): value
        for name, value in actor.items()
        if name in ("distribution.std_param", "distribution.log_std_param")
    }
    std, std_type = _std(newer or actor)
    return ForeignPolicy(
        generation=4 if "std" in actor or "log_std" in actor else 5,
        actor=_required({**_part(actor, "mlp.", "mlp."), **_memory(actor, "rnn")}, path, "mlp.*"),
        critic={**_part(critic, "mlp.", "mlp."), **_memory(critic, "rnn")},
        std=std,
        std_type=std_type,
        actor_normalizer=_normalizer(_part(actor, "obs_normalizer."), path),
        critic_normalizer=_normalizer(_part(critic, "obs_normalizer."), path),
        optimizer=content.get("optimizer_state_dict"),
        iteration=_iteration(content),
        left_out=_others(content),
    )


def _weights(value: Any, path: Path, name: str) -> dict[str, Tensor]:
    if not isinstance(value, Mapping) or not all(isinstance(item, Tensor) for item in value.values()):
        raise CheckpointCorrupt(path, f"{name!r} is not a table of tensors")
    return {str(key): item.detach() for key, item in value.items()}


def _part(weights: Weights, prefix: str, new: str = "") -> dict[str, Tensor]:
    return {new + name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _memory(weights: Weights, name: str) -> dict[str, Tensor]:
    return _part(weights, f"{name}.rnn.", "rnn.")


def _required(weights: dict[str, Tensor], path: Path, wanted: str) -> dict[str, Tensor]:
    if not weights:
        raise CheckpointCorrupt(path, f"it has no weights {wanted!r} of an actor")
    return weights


def _std(weights: Weights) -> tuple[Tensor | None, str]:
    if "std" in weights:
        return weights["std"], "scalar"
    if "log_std" in weights:
        return weights["log_std"].exp(), "log"
    return None, "scalar"


def _refuse_images(weights: Weights, path: Path) -> None:
    found = sorted({name.partition(".")[0] for name in weights if "cnn" in name.partition(".")[0]})
    if found:
        raise CheckpointCorrupt(path, f"it has image networks {found}, which have no counterpart in the plain policies")


def _normalizer(state: Any, path: Path) -> ForeignNormalizer | None:
    if not state:
        return None
    if not isinstance(state, Mapping) or not {"_mean", "_std", "count"} <= set(state):
        raise CheckpointCorrupt(
            path, f"a normaliser wants '_mean', '_std' and 'count', found {sorted(map(str, state))}"
        )
    return ForeignNormalizer(
        mean=torch.as_tensor(state["_mean"]).reshape(-1),
        std=torch.as_tensor(state["_std"]).reshape(-1),
        count=int(state["count"]),
    )


def _iteration(content: Mapping[str, Any]) -> int:
    found = content.get("iter", 0)
    return found if type(found) is int else 0


def _others(content: Mapping[str, Any]) -> tuple[str, ...]:
    known = ("model", "actor", "critic", "student", "optimizer", "obs_norm", "privileged_obs_norm", "critic_obs_norm")
    return tuple(str(name) for name in content if name not in {"iter", *(f"{part}_state_dict" for part in known)})
