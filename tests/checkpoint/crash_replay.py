"""What a disk may hold after the power went: what was not synced may be lost, whole, in part, or not at all.

    events   mkdir .tmp │ create a │ write a │ sync a │ … │ sync .tmp │ rename .tmp step_1 │ sync folder │ …
                                             ▲ a crash here: the bytes of `a` may be missing, and so may its name

A saved run is recorded once, as operations on numbered files and directories. For a crash after the kth operation each
directory keeps the changes before its last sync and any selection of the later ones, and each file the bytes before its
last sync and any beginning of the later ones. Every such state is put on the disk and must load.
"""

from __future__ import annotations

import logging
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from failing_ops import leftovers
from store_cases import Campaign, run_state, same

from striderl.checkpoint.errors import CheckpointMissing
from striderl.checkpoint.file_ops import FileOps
from striderl.checkpoint.store import CheckpointStore


@dataclass
class Node:
    """A file or directory, which keeps its number when it is renamed."""

    number: int
    is_directory: bool
    names: dict[str, Node] = field(default_factory=dict)


@dataclass
class Event:
    """One operation: on the names of a directory (link, unlink, rename), on the bytes of a file, or a sync."""

    kind: str
    node: Node
    name: str = ""
    other: str = ""
    child: Node | None = None
    content: bytes = b""


class RecordingOps(FileOps):
    """The real file system, with a list of everything that was changed."""

    def __init__(self, root: Path) -> None:
        self.root_path = root
        self.root = Node(0, True)
        self.events: list[Event] = []
        self.open_files: dict[int, Node] = {}
        self.created = 0

    def node(self, path: Path) -> Node:
        found = self.root
        for name in path.relative_to(self.root_path).parts:
            found = found.names[name]
        return found

    def link(self, path: Path, is_directory: bool) -> Node:
        self.created += 1
        child, parent = Node(self.created, is_directory), self.node(path.parent)
        parent.names[path.name] = child
        self.events.append(Event("link", parent, path.name, child=child))
        return child

    def unlink(self, path: Path) -> None:
        parent = self.node(path.parent)
        del parent.names[path.name]
        self.events.append(Event("unlink", parent, path.name))

    def make_directory(self, path: Path) -> None:
        super().make_directory(path)
        self.link(path, True)

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self.open_files[descriptor] = self.link(path, False)
        return descriptor

    def write(self, descriptor: int, content: memoryview) -> None:
        super().write(descriptor, content)
        self.events.append(Event("write", self.open_files[descriptor], content=bytes(content)))

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self.events.append(Event("sync", self.open_files[descriptor]))

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.events.append(Event("sync", self.node(path)))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        assert source.parent == target.parent, "a rename between directories is not atomic everywhere"
        parent = self.node(source.parent)
        parent.names[target.name] = parent.names.pop(source.name)
        self.events.append(Event("rename", parent, source.name, target.name))

    def remove_file(self, path: Path) -> None:
        super().remove_file(path)
        self.unlink(path)

    def remove_directory(self, path: Path) -> None:
        super().remove_directory(path)
        self.unlink(path)


class ForgetfulOps(RecordingOps):
    """The planted bug: files are never synced."""

    def sync(self, descriptor: int) -> None:
        return


class ForgetfulDirectoryOps(RecordingOps):
    """The other planted bug: directories are never synced."""

    def sync_directory(self, path: Path) -> None:
        return


@dataclass
class Recording:
    """A run of several saves."""

    root: Node
    events: list[Event]
    promised: list[tuple[int, int, int]]
    """(after this many events, this step was acknowledged, and this one was the best)."""


def record(folder: Path, ops: RecordingOps, *, keep_last: int) -> Recording:
    """Save six times, among them twice at one step, twice as the best."""
    store = CheckpointStore(folder, keep_last=keep_last, ops=ops)
    promised, best = [(0, -1, -1)], -1
    for step, is_best in ((1, True), (2, False), (3, True), (4, False), (4, False), (5, False)):
        store.save(run_state(step), step=step, best=is_best)
        best = step if is_best else best
        promised.append((len(ops.events), step, best))
    return Recording(ops.root, ops.events, promised)


def crash(recording: Recording, at: int, rng: random.Random) -> tuple[dict[int, dict[str, Node]], dict[int, bytes]]:
    """Return one legal content of directories and files after a crash behind the first `at` events."""
    events = recording.events[:at]
    last_sync = {event.node.number: position for position, event in enumerate(events) if event.kind == "sync"}
    modes = {}
    names: dict[int, dict[str, Node]] = {}
    content: dict[int, bytes] = {}
    for position, event in enumerate(events):
        number = event.node.number
        synced = position < last_sync.get(number, -1)
        mode = modes.setdefault(number, rng.choice(["none", "all", "some", "first"]))
        if event.kind == "write":
            kept = event.content if synced or mode == "all" else _torn(event.content, mode, rng)
            content[number] = content.get(number, b"") + kept
        elif event.kind != "sync":
            if not synced and mode == "first" and rng.random() < 0.3:
                modes[number] = mode = "none"
            if synced or mode in ("all", "first") or (mode == "some" and rng.random() < 0.5):
                _change(names.setdefault(number, {}), event)
    return names, content


def _torn(content: bytes, mode: str, rng: random.Random) -> bytes:
    if mode == "none":
        return b""
    if mode == "some":
        return bytes(len(content))  # the length is there, the bytes are not
    return content[: rng.randrange(len(content) + 1)]


def _change(names: dict[str, Node], event: Event) -> None:
    """Change a directory; what follows from a lost change is lost as well."""
    if event.kind == "link" and event.child is not None:
        names[event.name] = event.child
    elif event.kind == "unlink":
        names.pop(event.name, None)
    elif event.name in names:
        names[event.other] = names.pop(event.name)


def put_on_disk(names: dict[int, dict[str, Node]], content: dict[int, bytes], number: int, folder: Path) -> None:
    """Write one crash state to an empty folder."""
    folder.mkdir()
    for name, node in names.get(number, {}).items():
        if node.is_directory:
            put_on_disk(names, content, node.number, folder / name)
        else:
            (folder / name).write_bytes(content.get(node.number, b""))


def replay(
    folder: Path, count: int, *, ops_class: type[RecordingOps] = RecordingOps, seed: int = 0, every: int = 1
) -> Campaign:
    """Check `count` crash states, spread over all moments of two recorded runs; after every nth one a run goes on."""
    campaign, rng = Campaign("crash states"), random.Random(seed)
    logging.getLogger("striderl.checkpoint").setLevel(logging.ERROR)
    for keep_last in (1, 3):
        where = folder / f"recorded_{keep_last}"
        where.mkdir(parents=True)
        recording = record(where, ops_class(where), keep_last=keep_last)
        for number in range(count // 2):
            at = number % (len(recording.events) + 1)
            state = folder / "state"
            put_on_disk(*crash(recording, at, rng), 0, state)
            campaign.faults += 1
            store = CheckpointStore(state, keep_last=keep_last)
            _judge(campaign, recording, at, store)
            if number % every == 0:
                _save_next(campaign, f"crash after {at} of {len(recording.events)} operations", store)
            shutil.rmtree(state)
    logging.getLogger("striderl.checkpoint").setLevel(logging.NOTSET)
    return campaign


def _judge(campaign: Campaign, recording: Recording, at: int, store: CheckpointStore) -> None:
    what = f"crash after {at} of {len(recording.events)} operations"
    _, step, best = max(promise for promise in recording.promised if promise[0] <= at)
    for which, wanted in (("last", step), ("best", best)):
        try:
            found = store.load(which)
            campaign.note("loaded the acknowledged one" if found.step == wanted else "loaded a newer one")
            if found.step < wanted or not same(found.state, run_state(found.step)):
                campaign.bad.append(f"{what}: {which} is step {found.step}, step {wanted} was acknowledged")
        except CheckpointMissing:
            campaign.note("nothing was acknowledged yet")
            if wanted >= 0:
                campaign.bad.append(f"{what}: {which} is missing, step {wanted} was acknowledged")
        except Exception as error:  # noqa: BLE001  (any other error is what this looks for)
            campaign.bad.append(f"{what}: {which}: {type(error).__name__}: {error}")


def _save_next(campaign: Campaign, what: str, store: CheckpointStore) -> None:
    """Go on after the crash: the next save must work and clear up."""
    store.save(run_state(9), step=9)
    if store.load("last").step != 9:
        campaign.bad.append(f"{what}: the next save is not the last")
    campaign.bad += [f"{what}: {line}" for line in leftovers(store.directory, store)]
