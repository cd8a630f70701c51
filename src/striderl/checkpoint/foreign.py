"""Read checkpoints of rsl_rl, all generations, into one description; nothing in them is run.

    generation 1 to 3   model_state_dict         actor.0.weight, memory_a.rnn.weight_ih_l0, std | log_std,
                                                 critic.0.weight, memory_c.rnn.weight_ih_l0;
                                                 of parkour and st_rl also encoders.0.…, state_estimator.…, memory_s.…
               2      + obs_norm_state_dict      _mean, _std, count; and critic_ or privileged_obs_norm_state_dict
               3      + in model_state_dict      actor_obs_normalizer._mean, critic_obs_normalizer._mean
               4        actor_state_dict         mlp.0.weight, rnn.rnn.weight_ih_l0, obs_normalizer._mean, std | log_std
                        critic_state_dict        the same, without std
               5        as 4, but                distribution.std_param | distribution.log_std_param

Checkpoints of a distilled student are read as well; then the student is the actor and there is no critic. A file of
generation 2 or 3 without normaliser cannot be distinguished from one of generation 1, and means the same.

Open a foreign `.pt` file: check the names in its pickle first, then let torch read its tensors.

    file.pt (zip, stored)      data.pkl        a small program that puts tensors into containers
                               data/0, data/1  the bytes of the tensors
                               version, byteorder, …

`torch.load(weights_only=True)` runs none of the program's calls but a few of its own. Before that the archive's sizes
are checked, and every name in the program must be one that a state dict needs. Our own files are never read this way.

`write_torch_archive` writes such a file for the facades of other libraries, whose programs read it with `torch.load`.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from striderl.checkpoint.errors import (
    MAX_HEADER_BYTES,
    CheckpointCorrupt,
    CheckpointError,
    CheckpointUnreadable,
    FileRefused,
    memory_limit,
)
from striderl.checkpoint.file_ops import FileOps, make_directories
from striderl.checkpoint.safe_files import check_plain, open_read, replacing
from striderl.checkpoint.tensor_file import CHUNK_BYTES

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


FURTHER = (
    "encoders.",
    "critic_encoders.",
    "visual_encoder.",
    "state_estimator.",
    "memory_s.",
    "state_adaptor.",
    "memory_adaptor.",
)
"""How the names of parkour's and st_rl's encoders, estimators and adaptors begin."""


@dataclass(frozen=True, kw_only=True)
class ForeignPolicy:
    """A policy that another library saved, with library-independent names."""

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
    """Normaliser of the actor's observation."""
    critic_normalizer: ForeignNormalizer | None = None
    """Normaliser of the critic's observation."""
    further: Weights = field(default_factory=dict)
    """Weights of parkour's and st_rl's further parts under their own names, such as 'encoders.0.model.0.weight'."""
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
        further={name: value for name, value in model.items() if who == "actor" and name.startswith(FURTHER)},
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


# -- files of torch ----------------------------------------------------------------------------------------------------


MAX_MEMBERS = 100_000
"""Files in an archive."""

MAX_OPERATIONS = 1_000_000
"""Steps of the program that puts the tensors together."""

_STORAGES = ["Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool"]
_NAMES = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    "torch Size",
    "torch device",
    *(f"torch {kind}Storage" for kind in _STORAGES),
}
"""All that a state dict of modules and optimisers refers to."""

_REFUSED = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "NEXT_BUFFER"}
"""Operations that torch never writes and that can name or make anything."""


def read_torch_archive(path: str | Path) -> dict[str, Any]:
    """Read a `.pt` file of tensors and plain containers; what is damaged, too large or needs code is refused."""
    path = Path(path)
    try:
        with open_read(path) as file:
            program, sizes = _opened(file, path)
            _check_program(program, path)
            file.seek(0)
            content = _load(file, path)
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no file {str(path)!r}") from error
    except OSError as error:
        raise CheckpointUnreadable(path, error) from error
    if not isinstance(content, dict):
        raise CheckpointCorrupt(path, f"it wants a state dict, found {type(content).__name__}; wanted a table by name")
    # torch trusts the length in the program; nothing may be read before it is known to exist
    claimed = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in _tensors(content)}
    for size in claimed.values():
        if size and size not in sizes:
            raise CheckpointCorrupt(path, f"a tensor says it has {size} bytes, which no file in the archive has left")
        if size:
            sizes.remove(size)
    return content


def _opened(file: BinaryIO, path: Path) -> tuple[bytes, list[int]]:
    """Check sizes and names of an archive; return its program, not yet checked, and the sizes of its tensors' bytes."""
    total = _check_size(file, path)
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            names = [member.filename for member in members]
            if any(name.endswith("constants.pkl") or "/code/" in name for name in names):
                raise CheckpointCorrupt(path, "it is a TorchScript program, not a state dict; programs are never run")
            if len(set(names)) != len(names) or any(".." in Path(name).parts or name[:1] == "/" for name in names):
                raise CheckpointCorrupt(path, "it names a file twice, or one outside of itself")
            stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
            if not stored or sum(member.file_size for member in members) > total:
                raise CheckpointCorrupt(path, "its files are compressed or larger than the archive")
            programs = [member for member in members if member.filename.endswith("data.pkl")]
            if len(programs) != 1 or programs[0].file_size > MAX_HEADER_BYTES:
                raise CheckpointCorrupt(path, f"it has {len(programs)} tables of tensors, wanted one of moderate size")
            sizes = [member.file_size for member in members if Path(member.filename).parent.name == "data"]
            return archive.read(programs[0]), sizes
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, ValueError) as error:
        raise CheckpointCorrupt(path, f"it is not an archive that torch.save writes ({error})") from None


def write_torch_archive(path: str | Path, content: Any) -> None:
    """Write a `.pt` file with `torch.save`, whole or not at all; its folder is made where it is missing.

    A file there is replaced if it is empty, or if torch wrote it with one of the entries of `content`; all else raises
    FileRefused.
    """
    path = Path(path)
    _check_replaceable(path, content)
    make_directories(FileOps(), path.parent)
    with replacing(path) as file:
        torch.save(content, file)


def _check_replaceable(path: Path, content: Any) -> None:
    check_plain(path)
    if not path.exists() or path.stat().st_size == 0:
        return
    way = "choose another name, or move it away"
    try:
        with open_read(path) as file:
            program, _ = _opened(file, path)
        # text of the program alone: objects of a user's class may be in the file, and nothing of it is run
        words = {argument for _, argument, _ in pickletools.genops(program) if isinstance(argument, str)}
    except (CheckpointCorrupt, ValueError) as error:
        reason = error.reason if isinstance(error, CheckpointCorrupt) else str(error)
        raise FileRefused(path, f"a save replaces nothing but a checkpoint: {reason}; {way}") from error
    names = {name for name in content if isinstance(name, str)} if isinstance(content, Mapping) else set()
    if names and not names & words:
        found = f"found a file with none of its entries {sorted(names)}"
        raise FileRefused(path, f"a save replaces nothing but a checkpoint, {found}; {way}")


def _check_size(file: BinaryIO, path: Path) -> int:
    """Return the size of the file; it must fit into memory and list no absurd number of files."""
    total = file.seek(0, 2)
    if total > memory_limit():
        raise CheckpointCorrupt(path, f"it has {total} bytes, this process can hold {memory_limit()}")
    file.seek(0)
    if file.read(4) != b"PK\x03\x04":
        raise CheckpointCorrupt(
            path,
            "it is not an archive of torch 1.6 or later, and a bare pickle is never run; save it with a newer torch",
        )
    members = 0
    while piece := file.read(CHUNK_BYTES):
        members += piece.count(b"PK\x01\x02")
    if members > MAX_MEMBERS:
        raise CheckpointCorrupt(path, f"it lists {members} files, at most {MAX_MEMBERS} are read")
    return total


def _check_program(program: bytes, path: Path) -> None:
    """Read, without running it, what a program refers to."""
    for position, (operation, argument, _) in enumerate(pickletools.genops(program)):
        if position > MAX_OPERATIONS:
            raise CheckpointCorrupt(path, f"its table of tensors has more than {MAX_OPERATIONS} operations")
        if operation.name in _REFUSED or (operation.name == "GLOBAL" and argument not in _NAMES):
            name = argument if operation.name == "GLOBAL" else operation.name
            raise CheckpointCorrupt(
                path, f"it wants {str(name)[:200]!r}, which a state dict does not need and which is never run"
            )


def _load(file: BinaryIO, path: Path) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes raise whatever they run into
        reason = str(error).partition("\n")[0]
        raise CheckpointCorrupt(path, f"torch cannot read it: {type(error).__name__}: {reason[:300]}") from error


def _tensors(content: Any) -> Iterator[Tensor]:
    """Yield all tensors of nested containers; without recursion, because their depth is not ours."""
    waiting, seen = [content], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (dict, list, tuple, set)) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(value.values() if isinstance(value, dict) else value)
