"""Seeds that are made of one seed and a purpose, so that no two uses of a seed share their random numbers."""

from __future__ import annotations

import numpy as np

from striderl.data.noise import stream_id


def derived_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Return the seed for a purpose, and for an iteration or rank of it: 31 bits, which every env understands."""
    sequence = np.random.SeedSequence([seed, stream_id(purpose), *numbers])
    return int(sequence.generate_state(1)[0] >> 1)


def fresh_seed() -> int:
    """Return a seed from the operating system's randomness."""
    return int(np.random.SeedSequence().generate_state(1)[0] >> 1)
