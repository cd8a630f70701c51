"""Load hostile files in a process with little memory, and write down everything it did.

python hostile_reader.py FOLDER     reads FOLDER/corpus.json, writes FOLDER/result.json
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from store_cases import run_state, same

from striderl.checkpoint.errors import CheckpointError
from striderl.checkpoint.foreign import read_rsl_rl
from striderl.checkpoint.store import CheckpointStore

MEMORY = 2**30
FORBIDDEN = ("exec", "compile", "import", "subprocess", "os.system", "os.exec", "os.posix_spawn", "os.fork")
FORBIDDEN += ("socket", "pickle.find_class", "ctypes", "os.rename", "os.remove", "os.mkdir", "shutil")
events: list[str] = []
watching = False


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what no reader of a file needs to do."""
    if not watching:
        return
    if event.startswith(FORBIDDEN):
        events.append(f"{event} {str(arguments)[:100]}")
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        events.append(f"open for writing {arguments[0]}")


def load_store(folder: Path) -> str:
    """Load the forged checkpoint by its step, and whatever is last; return what happened."""
    store = CheckpointStore(folder)
    try:
        store.load(2)
        outcome = "loaded"
    except CheckpointError as error:
        outcome = f"{type(error).__name__}: {error}"
    try:
        last = store.load()
        if last.step != 1 or not same(last.state, run_state(1)):
            outcome += "; the last one is not the good one"
    except CheckpointError as error:
        outcome += f"; then {type(error).__name__}"
    return outcome


def load_foreign(path: Path) -> str:
    """Read a foreign file; return what happened."""
    try:
        read_rsl_rl(path)
    except CheckpointError as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"


def main(folder: Path) -> None:
    """Read the corpus under a limit, after everything that is imported lazily has been."""
    global watching
    logging.getLogger("striderl.checkpoint").setLevel(logging.CRITICAL)
    corpus = json.loads((folder / "corpus.json").read_text())
    load_store(Path(corpus["good store"]))
    load_foreign(Path(corpus["good file"]))
    "".encode("cp437")  # zipfile's codec for names that are not UTF-8
    sys.addaudithook(watch)
    virtual = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    # torch alone maps hundreds of megabytes, on some machines more than the limit: then what the file adds counts
    limit = max(MEMORY, virtual + MEMORY // 4)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    results = {"virtual at start": virtual, "limit": limit, "files": []}
    for kind, load in (("stores", load_store), ("files", load_foreign)):
        for name, path in corpus[kind].items():
            events.clear()
            start = time.process_time()  # other work on the machine makes no file slower
            watching = True
            try:
                outcome = load(Path(path))
            except BaseException as error:  # noqa: BLE001  (any other error is what this looks for)
                outcome = f"UNEXPECTED {type(error).__name__}: {error}"
            watching = False
            seconds = time.process_time() - start
            results["files"].append({"name": name, "outcome": outcome, "seconds": seconds, "events": list(events)})
    (folder / "result.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
