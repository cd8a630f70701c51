"""A runner's checkpoints: their layout, writing and reading them, and loading parts of one.

    log_dir/
      model_0.pt  model_50.pt  …  a file each, numbered as rsl_rl does: model_0 is the state after the first iteration
      git/striderl.diff           the state of the code, see `rsl_rl/reporting.py`

    model_50.pt    actor_state_dict, critic_state_dict, optimizer_state_dict, iter, infos    read by rsl_rl's loaders
                   striderl_run: tensors and plain values of the whole training, with a checksum          read here
    model_50/      a directory of earlier versions, or of `save` with a name that does not end in .pt

    {"trainer": {…}, "model_state_dict": weights, "iter": 51, "infos": …}         what is in striderl_run
    {"model_state_dict": weights, …}                                              what an older loop may have saved

Tensors that are in both parts of a file are stored once. A checkpoint gets its name after all its bytes are on the
disk. A file of another program is read if it holds nothing but tensors and plain containers. Weights may be loaded
without the optimiser, for the actor alone, or through a manipulator.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.checkpoint.errors import CheckpointCorrupt, CheckpointError, FileRefused, memory_limit
from striderl.checkpoint.file_ops import FileOps, make_directories
from striderl.checkpoint.folder import Payload, check_replaceable, read_checkpoint, remove_checkpoint, write_checkpoint
from striderl.checkpoint.foreign import read_rsl_rl, read_torch_archive
from striderl.checkpoint.safe_files import check_plain, decode_json, replacing
from striderl.checkpoint.state_tree import flatten, unflatten
from striderl.data import tree
from striderl.data.naming import unknown
from striderl.policies.policy import Policy
from striderl.policies.run_reader import WEIGHTS
from striderl.policies.transfer.load import load_exactly
from striderl.policies.transfer.parts import load_parts, part_names, replace_encoder0
from striderl.policies.transfer.rsl_rl_names import load_rsl_rl
from striderl.training.trainer import Trainer

RUN = "striderl_run"
"""The entry of a file with the state of the whole training."""
_MODELS = ("actor_state_dict", "student_state_dict", "model_state_dict")


def checkpoint_path(log_dir: str | Path, num_iterations: int) -> Path:
    """Return the path of the checkpoint after so many iterations; rsl_rl counts them from 0."""
    return Path(log_dir) / f"model_{max(0, num_iterations - 1)}.pt"


def save_file(path: str | Path, models: Mapping[str, Any], state: Mapping[str, Any]) -> Path:
    """Write a file of models with rsl_rl's names and the state of the whole training, whole or not at all.

    A file there is replaced if it is empty or holds models; anything else is refused.
    """
    path = Path(path)
    _check_models_or_nothing(path)
    tensors, plain = flatten(dict(state))
    text = json.dumps(plain, allow_nan=False)
    run = {"tensors": tensors, "plain": text, "sha256": _digest(tensors, text)}
    make_directories(FileOps(), path.parent)
    with replacing(path) as file:
        torch.save({**models, RUN: run}, file)
    return path


def _check_models_or_nothing(path: Path) -> None:
    check_plain(path)
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        content = read_torch_archive(path)
    except CheckpointError as error:
        raise FileRefused(path, f"a save replaces nothing but a checkpoint, and this file is none: {error}") from error
    if not set(content) & {RUN, *_MODELS}:
        raise FileRefused(path, f"a save replaces nothing but a checkpoint, found a file with {sorted(content)[:5]}")


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """Return a checksum of everything that is read back."""
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return found.hexdigest()


def _run_state(content: Mapping[str, Any], path: Path) -> Any:
    """Return the state of the training in a file, or raise CheckpointCorrupt for one that is damaged."""
    run = content[RUN]
    kinds = {"tensors": dict, "plain": str, "sha256": str}
    if not isinstance(run, Mapping) or not all(isinstance(run.get(name), kind) for name, kind in kinds.items()):
        raise CheckpointCorrupt(path, f"its entry {RUN!r} is not what a runner writes")
    if _digest(run["tensors"], run["plain"]) != run["sha256"]:
        raise CheckpointCorrupt(path, "its checksum differs: bytes have changed since it was written")
    return unflatten(run["tensors"], decode_json(run["plain"].encode(), path))


def save_state(path: str | Path, state: Mapping[str, Any], *, iteration: int) -> Path:
    """Write a nested state under a path; a checkpoint there is replaced once the new one is whole, all else refused."""
    path, ops = Path(path), FileOps()
    payload = Payload(dict(state), None, None)
    check_replaceable(ops, path)
    make_directories(ops, path.parent)
    fresh, old = path.with_name(f".tmp_{path.name}"), path.with_name(f".tmp_old_{path.name}")
    for leftover in (fresh, old):
        if os.path.lexists(leftover):
            remove_checkpoint(ops, leftover)
    write_checkpoint(ops, fresh, payload, step=iteration, best=False)
    replaced = ops.is_directory(path)
    if replaced:
        ops.rename(path, old)
    ops.rename(fresh, path)
    ops.sync_directory(path.parent)
    if replaced:
        remove_checkpoint(ops, old)
    return path


def load_state(path: str | Path, map_location: Any = None) -> dict[str, Any]:
    """Read a state; tensors are on the CPU unless a device is given."""
    path = Path(path)
    if path.is_dir():
        state = read_checkpoint(FileOps(), path, max_bytes=memory_limit()).parts["state"]
    elif path.is_file():
        state = read_torch_archive(path)
        if RUN in state:
            state = _run_state(state, path)
    else:
        raise FileNotFoundError(f"there is no checkpoint {str(path)!r}")
    if not isinstance(state, dict):
        raise ValueError(f"{str(path)!r} holds a {type(state).__name__}, wanted the state of a run")
    return state if map_location is None else dict(tree.to(state, device=_device(map_location)))


def _device(map_location: Any) -> torch.device:
    if not isinstance(map_location, (str, torch.device)):
        raise TypeError(f"map_location is a device such as 'cpu' or 'cuda:0', found {map_location!r}")
    return torch.device(map_location)


# -- loading some of it ------------------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)

Manipulator = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
"""manipulator(source checkpoint, own checkpoint) gives the checkpoint that is loaded."""

MANIPULATORS: Mapping[str, Manipulator] = {"replace_encoder0": replace_encoder0}
"""Manipulators that a config may name."""

PARTS = ("actor", "critic", "optimizer", "iteration", "rnd")
"""Keys of rsl_rl 5's load_cfg."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which parts of a checkpoint are loaded."""

    actor: bool = True
    """The actor's weights."""
    critic: bool = True
    """The critic's weights."""
    optimizer: bool = True
    """Optimiser state: moments, learning rate and the like."""
    iteration: bool = True
    """The iteration."""
    rnd: bool = True
    """The state of the terms."""

    @property
    def everything(self) -> bool:
        """Whether everything is loaded, envs and noise included."""
        return self == Wanted()


def wanted_parts(load_optimizer: Any, load_cfg: Any) -> Wanted:
    """Read both forms: st_rl's load_optimizer, and rsl_rl 5's load_cfg, which may take its place."""
    if isinstance(load_optimizer, Mapping):
        load_cfg, load_optimizer = load_optimizer, True
    if load_cfg is None:
        return Wanted(optimizer=bool(load_optimizer))
    for name in load_cfg:
        if name not in PARTS:
            raise KeyError(unknown("part", name, PARTS, where="load_cfg"))
    return Wanted(**{name: bool(load_cfg.get(name, False)) for name in PARTS})


def resolve_manipulator(manipulator: Manipulator | str | None) -> Manipulator | None:
    """Return a function, from the table where a name is given; an empty name is none."""
    if not manipulator:
        return None
    if callable(manipulator):
        return manipulator
    if manipulator not in MANIPULATORS:
        raise KeyError(unknown("manipulator", manipulator, MANIPULATORS, where="the table of manipulators"))
    return MANIPULATORS[manipulator]


def is_foreign(state: Mapping[str, Any], policy: Policy) -> bool:
    """Return whether weights have the names of rsl_rl's modules instead of our policy's."""
    if "trainer" in state:
        return False
    named = state.get(WEIGHTS)
    return not isinstance(named, Mapping) or not set(named) & set(policy.state_dict())


def load_foreign(trainer: Trainer, path: str | Path, wanted: Wanted) -> None:
    """Load weights, normalisers and iteration from a file of rsl_rl 1 to 3."""
    foreign = read_rsl_rl(path)
    if not wanted.actor:
        raise ValueError("a checkpoint of rsl_rl is loaded with its actor; load_cfg={'actor': True, …}")
    load_rsl_rl(trainer.algorithm.policy, foreign, critic=wanted.critic)
    if wanted.iteration:
        trainer.iteration = foreign.iteration
    _log.warning(
        "%s was written by rsl_rl (generation %d): weights, normalisers and iteration %d are taken, the optimiser "
        "starts fresh",
        path,
        foreign.generation,
        foreign.iteration,
    )


def load_some(trainer: Trainer, state: Mapping[str, Any], wanted: Wanted, *, strict: bool) -> None:
    """Load the wanted parts of a checkpoint; the envs and their episodes are unchanged."""
    policy: Policy = trainer.algorithm.policy
    weights = weights_in(state)
    if wanted.actor and wanted.critic:
        load_weights(policy, weights, strict=strict)
    elif wanted.actor or wanted.critic:
        who = "actor" if wanted.actor else "critic"
        if strict:
            take = [part for part in part_names(policy) if part.partition("/")[0] in (who, "trunk")]
            load_parts(policy, weights, take=take)
        else:
            load_weights(policy, {name: v for name, v in weights.items() if _belongs(name, who)}, strict=False)
    saved = state.get("trainer")
    if saved is None and wanted != Wanted(optimizer=False) and (wanted.optimizer or wanted.rnd):
        raise KeyError("this checkpoint holds weights only; load it with load_optimizer=False")
    if saved is not None:
        own = trainer.algorithm.state_dict()
        taken = {name: value for name, value in saved["algorithm"].items() if name != "policy"}
        if not wanted.optimizer:
            taken["updater"] = own["updater"]
        if not wanted.rnd:
            taken["terms"] = own["terms"]
        trainer.algorithm.load_state_dict({**own, **taken})
    if wanted.iteration and "iter" in state:
        trainer.iteration = int(state["iter"])


def weights_in(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the policy's weights of a checkpoint."""
    weights = state.get(WEIGHTS)
    if not isinstance(weights, Mapping):
        raise KeyError(f"a checkpoint has the entry {WEIGHTS!r}, found {sorted(state)}")
    return dict(weights)


def check_weights(policy: Policy, weights: Mapping[str, Tensor]) -> None:
    """Raise, before anything is loaded, when a checkpoint is of a policy with other weights; names the first few."""
    own = {name: tuple(value.shape) for name, value in policy.state_dict().items()}
    saved = {name: tuple(value.shape) for name, value in weights.items()}
    apart = [name for name in {**own, **saved} if own.get(name) != saved.get(name)]
    if not apart:
        return
    said = [f"{name!r} is {_shape(saved.get(name))} in it and {_shape(own.get(name))} here" for name in apart[:3]]
    more = f", and {len(apart) - 3} others differ" if len(apart) > 3 else ""
    raise ValueError(f"this checkpoint is of another policy: {', '.join(said)}{more}. Nothing was loaded")


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(list(shape))


def load_weights(policy: Policy, weights: Mapping[str, Tensor], *, strict: bool) -> None:
    """Load all weights, or only those whose name and shape fit; the others are named in the log."""
    if strict:
        load_exactly(policy, weights)
        return
    own = policy.state_dict()
    fitting = {name: value for name, value in weights.items() if name in own and own[name].shape == value.shape}
    policy.load_state_dict(fitting, strict=False)
    for what, others in (("has no place for", weights), ("keeps its own", own)):
        names = sorted(set(others) - set(fitting))
        if names:
            _log.warning("strict=False: the policy %s %s", what, ", ".join(names))


def _belongs(name: str, who: str) -> bool:
    first = name.partition(".")[0]
    of = {"actor": ("actor", "actor_body", "head"), "critic": ("critic", "critic_body", "value_head")}
    return first in (*of[who], "trunk")
