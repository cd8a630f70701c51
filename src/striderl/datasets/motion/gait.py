"""Gait out of contacts: how often each foot steps, how long it stands, and in which order the feet follow each other.

    contact   1 1 1 0 0 1 1 1 0 0 1 …        dt = 0.1 s
              ·         ▲         ▲          touchdowns: the foot was in the air a frame ago
                        └─ stride ┘          5 frames: frequency 1 / 0.5 s = 2 Hz, duty factor 3 / 5 = 0.6

Only whole strides count, from touchdown to touchdown, so where a recording begins and ends has no effect. Several
recordings (`[T, feet]` each) are measured on their own and pooled: no stride goes from one into the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from striderl.datasets.motion.clip import MotionClip

Contacts = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Gait:
    """What was measured, one number per foot; NaN where a foot made no whole stride."""

    frequency: NDArray[np.float64]
    """Strides per second."""
    duty_factor: NDArray[np.float64]
    """Share of a stride that the foot stands."""
    phase: NDArray[np.float64]
    """When the foot lands, as a share of the first foot's stride, from 0 to 1; a trot has 0, 0.5, 0.5, 0."""
    num_strides: NDArray[np.int64]
    """Over how many strides."""

    @property
    def mean_frequency(self) -> float:
        """Strides per second, over the feet that made one; NaN if none did."""
        return _mean(self.frequency, self.num_strides)

    @property
    def mean_duty_factor(self) -> float:
        """Share of standing, over the feet that made a stride; NaN if none did."""
        return _mean(self.duty_factor, self.num_strides)


def measure_gait(
    contact: NDArray[Any] | Sequence[NDArray[Any]], frame_duration: float, *, shortest: float = 0.0
) -> Gait:
    """Measure contacts [T, feet], or a list of such recordings, of frames that are `frame_duration` seconds apart.

    A flight or a stance of less than `shortest` seconds is taken for a bounce or a scuff and filled in.
    """
    if not frame_duration > 0.0:
        raise ValueError(f"frame_duration is positive, found {frame_duration}")
    recordings = [contact] if isinstance(contact, np.ndarray) else list(contact)
    if not recordings or any(each.ndim != 2 or each.shape[1] != recordings[0].shape[1] for each in recordings):
        raise ValueError(
            f"contacts are [T, feet] with the same feet, found {[list(each.shape) for each in recordings]}"
        )
    frames = int(np.ceil(shortest / frame_duration - 1e-9))
    cleaned = [_without_short(each > 0.5, frames) for each in recordings]
    num_feet = cleaned[0].shape[1]
    strides, length, standing = np.zeros(num_feet, np.int64), np.zeros(num_feet), np.zeros(num_feet)
    turning = np.zeros(num_feet, np.complex128)
    for each in cleaned:
        landings = [touchdowns(each[:, foot]) for foot in range(num_feet)]
        for foot, landing in enumerate(landings):
            if len(landing) > 1:
                strides[foot] += len(landing) - 1
                length[foot] += landing[-1] - landing[0]
                standing[foot] += each[landing[0] : landing[-1], foot].sum()
            turning[foot] += _phases(landings[0], landing)
    with np.errstate(invalid="ignore", divide="ignore"):
        return Gait(
            frequency=strides / (length * frame_duration),
            duty_factor=standing / length,
            phase=np.where(np.abs(turning) > 0.0, (np.angle(turning) / (2.0 * np.pi)) % 1.0, np.nan),
            num_strides=strides,
        )


def touchdowns(contact: Contacts) -> NDArray[np.int64]:
    """Return the frames at which a foot lands, given its contacts [T]."""
    return np.flatnonzero(contact[1:] & ~contact[:-1]) + 1


def foot_heights(clip: MotionClip, foot_radius: float = 0.0) -> NDArray[np.float64]:
    """Return how high the feet are over level ground, [T, feet], of a clip with base_height, gravity and feet."""
    clip.require(["base_height", "projected_gravity", "feet"])
    values = {name: value.astype(np.float64) for name, value in clip.values.items()}
    feet = values["feet"].reshape(clip.num_frames, -1, 3)
    # gravity points down, so what a foot has along it, it is lower than the trunk
    below = (feet * values["projected_gravity"][:, None]).sum(axis=2)
    return np.asarray(values["base_height"] - below - foot_radius)


def contacts_from_heights(height: NDArray[Any], threshold: float = 0.01) -> Contacts:
    """Return where feet [T, feet] are lower than a threshold, m; a swing's first and last frames count as standing."""
    return np.asarray(height < threshold)


def clip_contacts(clip: MotionClip, *, foot_radius: float = 0.0, threshold: float = 0.01) -> Contacts:
    """Return the contacts [T, feet] of a clip: its field 'foot_contacts', or from the heights of its feet."""
    if "foot_contacts" in clip.fields:
        return np.asarray(clip.values["foot_contacts"] > 0.5)
    return contacts_from_heights(foot_heights(clip, foot_radius), threshold)


def _without_short(contact: Contacts, frames: int) -> Contacts:
    """Fill flights, then drop stances, of fewer frames than these; what touches an end of the recording stays."""
    result = contact.copy()
    for foot in range(contact.shape[1]):
        for value in (False, True):
            column = result[:, foot]
            edges = np.flatnonzero(column[1:] != column[:-1]) + 1
            for start, stop in pairwise(edges):
                if column[start] == value and stop - start < frames:
                    result[start:stop, foot] = not value
    return result


def _phases(first: NDArray[np.int64], landing: NDArray[np.int64]) -> complex:
    """Return the sum of unit vectors that point where in the first foot's stride these landings lie."""
    inside = landing[(landing >= first[0]) & (landing < first[-1])] if len(first) > 1 else landing[:0]
    if not len(inside):
        return 0j
    stride = np.searchsorted(first, inside, side="right") - 1
    share = (inside - first[stride]) / (first[stride + 1] - first[stride])
    return complex(np.exp(2j * np.pi * share).sum())


def _mean(value: NDArray[np.float64], count: NDArray[np.int64]) -> float:
    known = count > 0
    return float(value[known].mean()) if known.any() else float("nan")
