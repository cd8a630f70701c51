"""Random numbers that depend only on (seed, iteration, global env index, name, position).

A part that needs randomness declares it; the numbers are drawn once per rollout as [T, N, …] and passed in as data. The
generator is counter based (Philox 4x32 with ten rounds, Salmon et al. 2011), so there is no state to save or to share:
any number of worker processes, any order of calls and any restart gets the same numbers, and an env that moves to
another worker keeps its stream. The integer arithmetic is the same in numpy and in torch, on any device.

    counter = (position in the draw, env index, iteration, name)      key = seed
        │ ten rounds of multiply and mix
        ▼
    4 x 32 random bits ──▶ uniform in [0, 1)  ──▶ normal (Box and Muller), Gumbel, integers, exponential
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from striderl.data.naming import unknown
from striderl.data.specs import TensorSpec, as_shape, torch_dtype

if TYPE_CHECKING:
    import torch

_WORD = 0xFFFFFFFF
_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_KINDS = ("uniform", "normal", "gumbel", "exponential", "bits")


@dataclass(frozen=True, kw_only=True)
class NoiseSpec:
    """The noise of one part, for every env and step."""

    shape: tuple[int, ...] = ()
    """The shape of one env's draw in one step."""
    kind: str = "normal"
    """'uniform' in [0, 1), 'normal', 'gumbel', 'exponential', or 'bits' (int64 in [0, 2^32))."""
    of_batch: bool = False
    """Whether a gradient step reads one draw for its whole batch; processes that share a batch then draw the same."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", as_shape(self.shape))
        if self.kind not in _KINDS:
            raise ValueError(unknown("kind", self.kind, _KINDS, where="NoiseSpec"))

    @property
    def tensor(self) -> TensorSpec:
        """How one draw is stored when it must be repeated later (a column of stage draws)."""
        return TensorSpec(shape=self.shape, dtype="int64" if self.kind == "bits" else "float32")


def philox(counter: tuple[Any, Any, Any, Any], key: int) -> tuple[Any, Any, Any, Any]:
    """Turn a counter of four 32-bit words into four random ones; words are int64 arrays or tensors that broadcast.

    A product of two 32-bit words fills all 64 bits; int64 wraps, and masking after the shift restores the high word.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key & _WORD, (key >> 32) & _WORD
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLY[0], c2 * _MULTIPLY[1]
        c0, c1, c2, c3 = ((p1 >> 32) & _WORD) ^ c1 ^ k0, p1 & _WORD, ((p0 >> 32) & _WORD) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def positions(count: int, near: torch.Tensor) -> torch.Tensor:
    """Return 0 to count - 1 as words of a counter, int64, on the device of `near`, which holds whole numbers."""
    import torch

    places = torch.arange(count, device=near.device)
    if not torch.compiler.is_compiling():
        return places
    # the compiler for GPUs counts in 32 bits as long as it sees that these are indices; plus a zero that is read, not
    return places + (near.reshape(-1)[:1].to(torch.int64) & 0)


def stream_id(name: str) -> int:
    """Return a fixed 32-bit number for a name, the same in every process and Python version."""
    return zlib.crc32(name.encode())


# what `torch.compiler.assume_constant_result` does, which would have to import torch: names are constants
stream_id._dynamo_marked_constant = True  # type: ignore[attr-defined]


def draw(
    spec: NoiseSpec,
    name: str,
    *,
    seed: int,
    iteration: int | range | torch.Tensor,
    env_index: torch.Tensor,
    num_steps: int,
) -> torch.Tensor:
    """Draw [num_steps, N, *shape] for the envs with these global indices, on the device of `env_index`.

    A range of K iterations gives the numbers of all of them, one after the other, [K · num_steps, N, *shape]; together
    they cost little more than one. A tensor, int64, is for code that is traced once.
    """
    import torch

    count = math.prod(spec.shape)
    blocks = -(-count // 4)
    on_cpu = type(env_index) is torch.Tensor and env_index.device.type == "cpu" and not torch.compiler.is_compiling()
    if isinstance(iteration, torch.Tensor):
        words = _words_torch(name, seed, env_index, iteration, num_steps, blocks)
    else:
        some = range(iteration, iteration + 1) if isinstance(iteration, int) else iteration
        if on_cpu:
            # a hundred operations on a few numbers, which cost half of torch's in numpy; integers, so the same bits
            numbers = np.arange(some.start, some.stop, some.step, dtype=np.int64)
            words = torch.from_numpy(_words_of_steps(name, seed, env_index.numpy(), numbers, num_steps, blocks))
        else:
            occasion = torch.arange(some.start, some.stop, some.step, device=env_index.device)  # nothing to be sent
            words = _words_torch(name, seed, env_index, occasion, num_steps, blocks)
    values = _normal_torch(words) if spec.kind == "normal" else _shape_torch(words, spec.kind)
    wanted = values.flatten(-2)[..., :count].reshape(*words.shape[:2], *spec.shape)
    return wanted.to(torch_dtype(spec.tensor.dtype))


def draw_all(
    specs: Mapping[str, NoiseSpec],
    *,
    seed: int,
    iteration: int | range | torch.Tensor,
    env_index: torch.Tensor,
    num_steps: int,
) -> dict[str, torch.Tensor]:
    """Draw every named noise for one rollout, see `draw`; adding a name never changes the numbers of the others."""
    return {
        name: draw(spec, name, seed=seed, iteration=iteration, env_index=env_index, num_steps=num_steps)
        for name, spec in specs.items()
    }


def uniform(
    name: str, *, seed: int, env_index: np.ndarray[Any, Any], occasion: np.ndarray[Any, Any] | int, count: int
) -> np.ndarray[Any, Any]:
    """Draw float64 [n, count] in [0, 1) with numpy, for env `env_index[i]` at its `occasion[i]`-th call."""
    words = _words_numpy(name, seed, env_index, occasion, count)
    # 53 random bits make a double: 27 of one word, 26 of the other
    numbers = ((words[..., 0] >> 5) * 67108864.0 + (words[..., 1] >> 6)) * (1.0 / 9007199254740992.0)
    return np.asarray(numbers)


def normal(
    name: str, *, seed: int, env_index: np.ndarray[Any, Any], occasion: np.ndarray[Any, Any] | int, count: int
) -> np.ndarray[Any, Any]:
    """Draw float64 [n, count] standard normal numbers with numpy, keyed like `uniform`."""
    pairs = uniform(name, seed=seed, env_index=env_index, occasion=occasion, count=2 * (-(-count // 2)))
    radius, angle = np.sqrt(-2.0 * np.log1p(-pairs[:, 0::2])), 2.0 * math.pi * pairs[:, 1::2]
    both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return np.asarray(both.reshape(len(env_index), pairs.shape[1])[:, :count])


def _words_torch(
    name: str, seed: int, env_index: torch.Tensor, iteration: torch.Tensor, num_steps: int, blocks: int
) -> torch.Tensor:
    """Return int64 words [K · T, N, blocks, 4] for K iterations of T steps, on the device of `env_index`."""
    import torch

    position = positions(num_steps * blocks, env_index).view(1, num_steps, 1, blocks)
    env = env_index.to(torch.int64).view(1, 1, -1, 1)
    occasion = torch.zeros_like(position) + (iteration & _WORD).view(-1, 1, 1, 1)
    bits = philox((position, env, occasion, torch.full_like(position, stream_id(name))), seed)
    shape = (occasion.shape[0], num_steps, env.shape[2], blocks)
    return torch.stack([word.expand(shape) for word in bits], dim=-1).flatten(0, 1)


def _words_of_steps(
    name: str,
    seed: int,
    env_index: np.ndarray[Any, Any],
    iteration: np.ndarray[Any, Any],
    num_steps: int,
    blocks: int,
) -> np.ndarray[Any, Any]:
    """Return the words of `_words_torch`, made with numpy."""
    position = np.arange(num_steps * blocks, dtype=np.int64).reshape(1, num_steps, 1, blocks)
    env = env_index.astype(np.int64).reshape(1, 1, -1, 1)
    occasion = np.zeros_like(position) + (iteration & _WORD).reshape(-1, 1, 1, 1)
    bits = philox((position, env, occasion, np.full_like(position, stream_id(name))), seed)
    shape = (occasion.shape[0], num_steps, env.shape[2], blocks)
    words = np.stack([np.broadcast_to(word, shape) for word in bits], axis=-1)
    return words.reshape(shape[0] * num_steps, *words.shape[2:])


def _words_numpy(
    name: str, seed: int, env_index: np.ndarray[Any, Any], occasion: np.ndarray[Any, Any] | int, pairs: int
) -> np.ndarray[Any, Any]:
    """Return int64 words [n, pairs, 2]; each pair makes one double."""
    blocks = -(-pairs // 2)
    env = np.asarray(env_index, np.int64).reshape(-1, 1)
    position = np.arange(blocks, dtype=np.int64).reshape(1, -1)
    when = np.broadcast_to(np.asarray(occasion, np.int64).reshape(-1, 1) & _WORD, env.shape)
    bits = philox((position, env, when, np.full_like(position, stream_id(name))), seed)
    shape = np.broadcast_shapes(env.shape, position.shape)
    words = np.stack([np.broadcast_to(word, shape) for word in bits], axis=-1)
    return words.reshape(len(env), 2 * blocks, 2)[:, :pairs]


def _shape_torch(words: torch.Tensor, kind: str) -> torch.Tensor:
    """Turn 32-bit words into the wanted distribution; 24 bits are all a float32 in [0, 1) can hold."""
    if kind == "bits":
        return words
    numbers = (words >> 8).float() * 2.0**-24
    if kind == "uniform":
        return numbers
    open_interval = numbers + 2.0**-25  # never 0 and never 1, so both logarithms are finite
    if kind == "exponential":
        return -open_interval.log()
    return -(-open_interval.log()).log()


def _normal_torch(words: torch.Tensor) -> torch.Tensor:
    """Make four normal numbers out of four words, in float64 so that the tails are not cut at 5.8 sigma."""
    import torch

    radius_bits, angle_bits = words[..., 0::2].double(), words[..., 1::2].double()
    radius = (-2.0 * ((radius_bits + 0.5) * 2.0**-32).log()).sqrt()
    angle = angle_bits * (2.0 * math.pi * 2.0**-32)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=-1)
