"""Train in several processes, on one machine or many, as if in one: `torchrun --nproc-per-node 2 script.py`.

    rank 0   envs 0 … 31   ─▶ rollout ─▶ gradient ─┐
                                                   ├─ summed ─▶ the same step everywhere ─▶ the same parameters
    rank 1   envs 32 … 63  ─▶ rollout ─▶ gradient ─┘
       └─ log, evaluate and save on rank 0 alone

    ranks = setup()
    num_envs, first = ranks.shard(64)                    # this process's envs; noise follows their global numbers
    algorithm = PPO(policy, config, reduce=ranks.reduce)
    ranks.share(algorithm)                               # begin with rank 0's parameters
    callbacks = [PoolEpisodes(ranks), *(loggers if ranks.is_main else ()), KeepTogether(ranks, algorithm)]

Learners from replay have a shard of it each and sample their part of every batch there; offline learners have a shard
of the dataset. Gradients, means, the KL, the learning rate and the normalisers then agree (`striderl.ops.moments`);
fingerprints of tensors show it, as equal bits give equal numbers on whichever process or device they are. `Run` does
all of this by itself when it is given ranks, and so does `striderl train` under torchrun. On the CPU (gloo) a rank that
is lost is named by the others within the timeout; with NCCL a collective that hangs ends the process from torch's own
watchdog, and torchrun reports which one went first.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from striderl.data import tree
from striderl.ops.moments import AllReduce
from striderl.storage.replay.resharding import joined_replays, replay_of_envs

_log = logging.getLogger(__name__)

ALIVE_SECONDS = 5.0
"""Longest wait of the remaining ranks for the others' heartbeats before they name the missing one."""
_ALIVE_SHARE = 0.2
"""The part of the timeout that is kept for it: a lost rank is named when the timeout is over, not later."""

Result = TypeVar("Result")


class RankLostError(RuntimeError):
    """Another process no longer responds; the message names it."""


class DistributedLearner(Protocol):
    """An algorithm."""

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the learned state."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state."""
        ...


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among those that train together."""

    rank: int = 0
    """Its number."""
    world_size: int = 1
    """How many there are."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """The device of this process."""
    timeout: float = 120.0
    """Seconds after which an unresponsive process is named and given up; longer than an evaluation takes."""

    @property
    def is_main(self) -> bool:
        """Whether this is the process that logs, evaluates and saves."""
        return self.rank == 0

    @property
    def reduce(self) -> AllReduce | None:
        """What an algorithm takes as `reduce`; None when this process is alone."""
        return self.all_reduce_sum if self.world_size > 1 else None

    def shard(self, num_envs: int) -> tuple[int, int]:
        """Return (how many of all envs are this process's, the global number of the first)."""
        if num_envs < self.world_size:
            raise ValueError(f"{num_envs} envs cannot be shared by {self.world_size} processes; use more envs")
        each, left = divmod(num_envs, self.world_size)
        return each + (self.rank < left), self.rank * each + min(self.rank, left)

    def at(self, device: str) -> Ranks:
        """Return these processes with their collective operations on a device: 'cpu', or 'cuda' for a GPU each."""
        return replace(self, device=_place_of(device.startswith("cuda")))

    # -- collective operations: every rank must call them, in the same order -------------------------------------------

    def all_reduce_sum(self, x: Tensor) -> Tensor:
        """Return the sum of x over all processes; x stays as it is."""
        total = x.clone()
        if self.world_size == 1:
            return total
        if torch.compiler.is_compiling():
            dist.all_reduce(total)
            return total
        try:
            dist.all_reduce(total)
        except RuntimeError as error:
            raise self._lost(error) from error
        return total

    def share(self, algorithm: DistributedLearner) -> None:
        """Give all processes rank 0's parameters, optimiser and statistics; what differs in shape stays each one's."""
        if self.world_size == 1:
            return
        state = algorithm.state_dict()
        tensors = {path: leaf for path, leaf in tree.items(state) if isinstance(leaf, Tensor)}
        shapes = {path: (tuple(leaf.shape), str(leaf.dtype)) for path, leaf in tensors.items()}
        everywhere: list[Any] = [None] * self.world_size
        try:
            dist.all_gather_object(everywhere, shapes)
            for path, leaf in tensors.items():
                # what is kept per env has another size where a process has another number of envs
                if all(other.get(path) == shapes[path] for other in everywhere):
                    moved = leaf.to(self.device)
                    dist.broadcast(moved, 0)
                    leaf.copy_(moved)
        except RuntimeError as error:
            raise self._lost(error) from error
        algorithm.load_state_dict(state)

    def require_equal(self, named: Mapping[str, Tensor]) -> None:
        """Raise, in every process and naming the differing one, unless these tensors are the same bits everywhere."""
        found = diverging(self._fingerprints(named), list(named))
        if found:
            raise RuntimeError(
                f"processes have drifted apart: {'; '.join(found)}. Something is drawn or decided differently there; "
                "the seeds of the policy and the terms must be the same, and `reduce` must be given to the algorithm"
            )

    def everywhere(self, flag: bool) -> bool:
        """Return whether the flag of every process is set."""
        return not float(self.all_reduce_sum(torch.tensor(float(not flag), device=self.device)))

    def of_main(self, flag: bool) -> bool:
        """Return rank 0's flag."""
        said = torch.tensor(float(flag and self.is_main), device=self.device)
        return bool(self.all_reduce_sum(said) > 0)

    def largest(self, number: int) -> int:
        """Return the largest of the processes' numbers."""
        if self.world_size == 1:
            return number
        table = torch.zeros(self.world_size, dtype=torch.int64, device=self.device)
        table[self.rank] = number
        return int(self.all_reduce_sum(table).max())

    def from_main(self, function: Callable[[], Result]) -> Result:
        """Call a function in rank 0 and return its result, plain data and tensors of the CPU, in every process.

        What it raises there is raised here as a ValueError with the same text.
        """
        if self.world_size == 1:
            return function()
        answer: list[Any] = [None]
        raised: Exception | None = None
        if self.is_main:
            try:
                answer = [(True, function())]
            except Exception as error:  # noqa: BLE001  (the others wait for an answer, whatever it is)
                raised, answer = error, [(False, str(error.args[0]) if error.args else type(error).__name__)]
        try:
            dist.broadcast_object_list(answer, 0)
        except RuntimeError as error:
            raise self._lost(error) from error
        good, result = answer[0]
        if raised is not None:
            raise raised
        if not good:
            raise ValueError(result)
        found: Result = result
        return found

    def scatter(self, function: Callable[[], Sequence[Result]]) -> Result:
        """Call a function in rank 0 that returns a value for every process, and return this one's; see `from_main`."""
        if self.world_size == 1:
            return function()[0]
        values: list[Sequence[Result]] = []
        self.from_main(lambda: values.append(function()))
        received: list[Any] = [None]
        try:
            dist.scatter_object_list(received, list(values[0]) if self.is_main else None, 0)
        except RuntimeError as error:
            raise self._lost(error) from error
        found: Result = received[0]
        return found

    def gather(self, value: Result) -> list[Result]:
        """Return every process's value, by rank, in rank 0; an empty list in the others."""
        if self.world_size == 1:
            return [value]
        everywhere: list[Any] | None = [None] * self.world_size if self.is_main else None
        try:
            dist.gather_object(value, everywhere, 0)
        except RuntimeError as error:
            raise self._lost(error) from error
        return everywhere or []

    def differing(self, named: Mapping[str, Tensor]) -> list[str]:
        """Return the names of the tensors that are not the same bits in every process."""
        table = self._fingerprints(named)
        return [name for name, column in zip(named, table.t()) if bool((column != column[0]).any())]

    def _fingerprints(self, named: Mapping[str, Tensor]) -> Tensor:
        """Return the fingerprints of all processes, [ranks, K], on the CPU."""
        table = torch.zeros(self.world_size, len(named), dtype=torch.int64, device=self.device)
        table[self.rank] = fingerprints(named).to(self.device)
        return self.all_reduce_sum(table).cpu()

    def close(self) -> None:
        """Leave the group; calling it twice is fine."""
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- a lost process ------------------------------------------------------------------------------------------------

    def _lost(self, error: RuntimeError) -> RankLostError:
        """Return the error that names the processes without a heartbeat."""
        reason = str(error).strip().partition("\n")[0]
        missing = self._silent()
        who = f"rank {' and '.join(map(str, missing))}" if missing else "a process, which one is not known,"
        return RankLostError(
            f"{who} of {self.world_size} no longer answers, says rank {self.rank}; start all of them again from the "
            f"last checkpoint ({reason})"
        )

    def _silent(self) -> list[int]:
        """Return the ranks without a heartbeat, in bounded time.

        The store of heartbeats is in rank 0, or in torchrun; where that is stopped, a request never returns.
        """
        found: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        seconds = _alive_seconds(self.timeout)
        threading.Thread(target=self._ask, args=(found, 0.8 * seconds), daemon=True).start()
        try:
            return found.get(timeout=seconds)
        except queue.Empty:
            return [0]

    def _ask(self, found: queue.SimpleQueue[list[int]], seconds: float) -> None:
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        try:
            store = dist.distributed_c10d._get_default_store()
            store.set(f"striderl/alive/{self.rank}", "1")
            deadline = time.monotonic() + seconds
            while others and time.monotonic() < deadline:
                others = [rank for rank in others if not store.check([f"striderl/alive/{rank}"])]
                time.sleep(0.02)
        except RuntimeError:
            others = [0]
        found.put(others)


def _place_of(on_gpu: bool) -> torch.device:
    """Return the device of this process, the GPU of its local rank or the CPU, and make that GPU current."""
    if not on_gpu:
        return torch.device("cpu")
    where = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if where.index >= torch.cuda.device_count():
        raise RuntimeError(
            f"the process of local rank {where.index} finds {torch.cuda.device_count()} GPUs here, but each process "
            "has one of its own; lower --nproc-per-node"
        )
    torch.cuda.set_device(where)
    return where


def _alive_seconds(timeout: float) -> float:
    return min(ALIVE_SECONDS, _ALIVE_SHARE * timeout)


def setup(*, device: str = "auto", timeout: float = 120.0) -> Ranks:
    """Join the processes that torchrun started, by its environment variables; alone without them.

    `device` 'auto' takes the GPU of the local rank where there is one. NCCL is used on GPUs, gloo on the CPU. A process
    that does not respond for `timeout` seconds is named by the others.
    """
    if not device.startswith(("auto", "cpu", "cuda", "mps")) or not timeout > 0.0:
        raise ValueError(f"setup wants device 'auto', 'cuda' or 'cpu' and timeout above 0, found {device!r}, {timeout}")
    on_gpu = torch.cuda.is_available() if device == "auto" else device.startswith("cuda")
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if on_gpu and not torch.cuda.is_available():
        raise RuntimeError(f"device {device!r} is wanted, but torch finds no GPU here; use device='cpu'")
    where = _place_of(on_gpu)
    if world_size == 1:
        return Ranks(device=where, timeout=timeout)
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise RuntimeError(f"WORLD_SIZE is {world_size}, but {missing} are not set; start the script with torchrun")
    # The tracer imports functions whose defaults are the group of that moment. Imported with one, they keep it: threads
    # of it outlive `close`, and one that releases a tensor while the interpreter ends aborts the process.
    importlib.import_module("torch.distributed.nn")
    rank = int(os.environ["RANK"])
    # what is not a tensor, such as a path or a part of a checkpoint, is exchanged on the CPU
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    limit = timedelta(seconds=timeout - _alive_seconds(timeout))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # torchrun's store outlives processes that it starts again; addresses of the dead must not be read
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        shared = dist.TCPStore(*address, is_master=False, timeout=limit)  # type: ignore[attr-defined]
        store = dist.PrefixStore(f"striderl/attempt_{attempt}", shared)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=limit)
    else:
        dist.init_process_group(backend, timeout=limit)
    ranks = Ranks(rank=rank, world_size=world_size, device=where, timeout=timeout)
    with suppress(RuntimeError):
        dist.distributed_c10d._get_default_store().delete_key(f"striderl/alive/{rank}")
    return ranks


# -- the state of several processes ------------------------------------------------------------------------------------


def joined_state(ranks: Ranks, state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of rank 0's trainer with what is different in the others under 'ranks'; {} in the others.

    What is learned is the same in all, but for what an algorithm keeps per env; it is stored once.
    """
    if ranks.world_size == 1:
        return state
    learned = {path: leaf for path, leaf in tree.items(state["algorithm"]) if isinstance(leaf, Tensor)}
    own = [[path, learned[path]] for path in ranks.differing(learned)]
    part = {} if ranks.is_main else _on_cpu({**state, "algorithm": own})
    parts = ranks.gather(part)
    return {**state, "ranks": parts[1:]} if ranks.is_main else {}


def states_of_ranks(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Split a joined state, one for each process that it was saved by."""
    main = {name: part for name, part in state.items() if name != "ranks"}
    return [main, *(_state_of_other(main, part) for part in state.get("ranks", []))]


def _state_of_other(main: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    own = {path: value for path, value in part["algorithm"]}
    algorithm = tree.map_with_path(lambda path, leaf: own.get(path, leaf), main["algorithm"])
    return {**part, "algorithm": algorithm}


_OF_ALL = ("iteration", "stop_reason", "record", "seed", "env_steps", "num_updates", "faults", "guard")
"""The parts of a trainer's state that are the same for any number of processes."""


_OF_A_ROLLOUT = ("prepare", "update", "absorb")
"""The phases that read a rollout, which is not divided: it is collected again."""


def reshared_state(
    fresh: Mapping[str, Any], states: Sequence[Mapping[str, Any]], shard: tuple[int, int], rank: int
) -> dict[str, Any]:
    """Return one process's state from those of another number of processes; `shard` is (number of envs, the first).

    What was learned and the replay go on; episodes, the window of returns and a rollout under way begin anew. `fresh`
    is the state of the new trainer, whose shapes decide what is kept per env.
    """
    main, (count, first) = states[0], shard
    algorithms = [dict(tree.items(state["algorithm"])) for state in states]

    def leaf_of(path: str, own: Any) -> Any:
        pieces = [leaves[path] for leaves in algorithms]
        if not isinstance(own, Tensor) or all(piece is pieces[0] and piece.shape == own.shape for piece in pieces):
            return pieces[0]
        if own.dim() and own.shape[0] == count and sum(len(piece) for piece in pieces) >= first + count:
            return torch.cat(list(pieces))[first : first + count]
        return pieces[rank % len(pieces)]

    named = main["consumers"]["consumers"]
    found = {
        **fresh,
        **{name: main[name] for name in _OF_ALL},
        "reshared": True,
        "phase": "collect" if main["phase"] in _OF_A_ROLLOUT else main["phase"],
        "consumers": {
            "position": 0,
            "consumers": {name: named.get(name, own) for name, own in fresh["consumers"]["consumers"].items()},
        },
        "algorithm": tree.map_with_path(leaf_of, fresh["algorithm"]),
    }
    if (ahead := fresh.get("execution", {}).get("at")) is not None:  # other shapes want other programs
        found["execution"] = {**fresh["execution"], "at": main["iteration"] + ahead}
    if "collector" in fresh:
        steps = [saved["step"] for saved in main["collector"]["groups"]]
        groups = [{**group, "step": steps[0]} for group in fresh["collector"]["groups"]]
        found["collector"] = {**fresh["collector"], "env": None, "groups": groups}
    if "replay" in fresh:
        found["replay"] = replay_of_envs(joined_replays([state["replay"] for state in states]), first, count)
    if "dataset" in fresh and "leaves" not in main["picker"]:
        found["picker"] = main["picker"]
    return found


def own_state(
    ranks: Ranks,
    load: Callable[[], list[dict[str, Any]]],
    fresh: Callable[[], dict[str, Any]],
    shard: tuple[int, int],
) -> dict[str, Any]:
    """Return this process's part of what rank 0 loads: a state for each process that saved it; {} where it has none."""
    loaded: list[dict[str, Any]] = []

    def load_all() -> int:
        loaded.extend(load())
        return len(loaded)

    count = ranks.from_main(load_all)
    if count == 0:
        return {}
    if count == ranks.world_size:
        return ranks.scatter(lambda: loaded)
    if ranks.is_main:
        _log.warning(
            "the run was trained by %d processes and goes on with %d: what was learned and the replay go on, new "
            "episodes begin, and its bits are not those of a run that was never stopped",
            count,
            ranks.world_size,
        )
    return reshared_state(fresh(), ranks.from_main(lambda: loaded), shard, ranks.rank)


def _on_cpu(state: Any) -> Any:
    return tree.map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, state)


# -- fingerprints ------------------------------------------------------------------------------------------------------


def fingerprints(named: Mapping[str, Tensor]) -> Tensor:
    """Return one int64 per tensor, [K]; reads the values on the host."""
    return torch.tensor([_fingerprint(value) for value in named.values()], dtype=torch.int64)


def _fingerprint(value: Tensor) -> int:
    plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.blake2b(plain.numpy().tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def diverging(table: Tensor, names: Sequence[str]) -> list[str]:
    """Return a sentence per rank whose fingerprints [ranks, K] are not those of most; of two, those of rank 0 count."""
    found: list[str] = []
    columns = [[int(value) for value in column] for column in table.t()]
    usual = [_most_common(column) for column in columns]
    for rank in range(table.shape[0]):
        other = [name for name, column, value in zip(names, columns, usual) if column[rank] != value]
        if other:
            found.append(f"rank {rank} has other values in {', '.join(repr(name) for name in other)}")
    return found


def _most_common(values: Sequence[int]) -> int:
    """Return what occurs most often; of several, the first."""
    return max(values, key=lambda value: (Counter(values)[value], -values.index(value)))


def join_ranks(device: torch.device) -> Ranks:
    """Use the process group that is there, or make the one that torchrun's variables describe; alone without them."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(rank=dist.get_rank(), world_size=dist.get_world_size(), device=device)
    return setup(device=device.type)
