"""Rows and a small film for the tests of the trackers, and a reader for the offline files of Weights & Biases."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import numpy as np

ROWS = {32: {"train/kl": 0.25, "collect/return_mean": 20.0}, 64: {"train/kl": 0.125, "evaluate/return_mean": 195.5}}
CONFIG = {"task": "cartpole", "seed": 3, "ppo": {"clip": 0.2}}


def film(path: Path) -> Path:
    """Write a video of 12 pictures."""
    import imageio.v2 as imageio

    frames = np.random.default_rng(0).integers(0, 255, (12, 64, 96, 3), dtype=np.uint8)
    with imageio.get_writer(path, fps=25, macro_block_size=1, ffmpeg_log_level="error") as writer:
        for frame in frames:
            writer.append_data(frame)
    return path


def wandb_records(path: Path) -> list:
    """The records of a '.wandb' file: a head of 7 bytes, then blocks of 32 KiB with pieces of records.

    A piece is checksum (4 bytes), length (2), kind (1: whole, 2: first, 3: middle, 4: last) and content.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, record, records = path.read_bytes(), 7, b"", []
    assert content[:4] == b":W&B"
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        piece = content[position + 7 : position + 7 + length]
        position += 7 + length
        record = piece if kind in (1, 2) else record + piece
        if kind in (1, 4):
            parsed = Record()
            parsed.ParseFromString(record)
            records.append(parsed)
    return records


def _finished(path: Path, seconds: float = 100.0) -> list:
    """The records, once the last one is there: the service of W&B writes the file some time after `finish`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        records = wandb_records(path)
        if any(record.HasField("exit") for record in records):
            return records
        time.sleep(0.05)
    raise AssertionError(f"{path} was not finished after {seconds} s")


def wandb_rows(folder: Path) -> tuple[dict[int, dict], dict, dict]:
    """The rows by step, the settings and the summary texts of all offline runs below a folder."""
    rows, settings, summary = {}, {}, {}
    for path in sorted(folder.rglob("*.wandb")):
        for record in _finished(path):
            values = {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
            }
            if values:
                step = record.history.step.num or values.get("_step", 0)
                rows.setdefault(step, {}).update({k: v for k, v in values.items() if not k.startswith("_")})
            for item in (*record.config.update, *record.run.config.update):
                settings["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
            for item in record.summary.update:
                summary["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    return rows, settings, summary
