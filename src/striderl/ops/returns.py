"""Returns and advantages over time-major experience, with terminated and truncated apart.

    t             0       1        2         3
    reward        r0      r1       r2        r3
    ends          –       –        truncated –
    next_value    V(s1)   V(s2)    V(final)  V(s4)        value after step t; V(final_obs) where truncated

    delta_t = r_t + gamma · next_value_t · (not terminated_t) - V(s_t)
    A_t     = delta_t + gamma · lam · (not done_t) · A_{t+1}              R_t = A_t + V(s_t)

An invalid sample has advantage 0 and propagates nothing. Arrays are [T, N], or [T, N, V] for several values.
`vtrace` is the same for experience of another policy (Espeholt et al. 2018): every delta is weighted by a clipped ratio
of the two policies' probabilities.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]

_PLAIN_DTYPES = (torch.float32, torch.float64)
_ZERO = np.zeros((), np.float32)
"""For masked writes: an array, because a Python number is made one in every call."""
_FALSE = b"\x00"
"""A false bool in memory: looking for it in bytes takes less than counting."""


def has_triton() -> bool:
    """Return whether Triton kernels are available; without them torch's own are used, step by step."""
    return importlib.util.find_spec("triton") is not None


_scan_kernel: Callable[[Tensor, Tensor], Tensor] | None = None
if torch.cuda.is_available() and has_triton():
    from striderl.ops.kernels.columns import backward_scan_kernel

    _scan_kernel = backward_scan_kernel


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float | Tensor,
    lam: float | Tensor,
    valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (returns, advantages) by generalised advantage estimation (Schulman et al. 2016)."""
    if isinstance(gamma, float) and isinstance(lam, float) and _plain(reward, value, next_value):
        returns, advantages = _gae_arrays(
            reward.numpy(),
            value.numpy(),
            next_value.numpy(),
            _side_stream(terminated, value).numpy(),
            _side_stream(truncated, value).numpy(),
            None if valid is None else _side_stream(valid, value).numpy(),
            gamma=gamma,
            lam=lam,
        )
        return torch.from_numpy(returns), torch.from_numpy(advantages)
    alive, going = _like(~terminated, value), _like(~(terminated | truncated), value)
    delta = reward + gamma * next_value * alive - value
    carry = gamma * lam * going
    if valid is not None:
        counts = _like(valid, value)
        # `where`, not a product: an invalid sample may hold NaN
        delta, carry = torch.where(counts > 0, delta, 0.0), carry * counts
    advantage = backward_scan(delta, carry)
    return advantage + value, advantage


@np.errstate(invalid="ignore", over="ignore")  # invalid samples may hold anything, as with tensors
def _gae_arrays(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array | None,
    *,
    gamma: float,
    lam: float,
) -> tuple[Array, Array]:
    """Compute `gae` with numpy: on the CPU its masked writes are several times faster than torch's."""
    delta = gamma * next_value
    np.copyto(delta, _ZERO, where=terminated)
    delta += reward
    delta -= value
    stops = terminated | truncated
    if valid is not None and _FALSE in valid.tobytes():
        np.copyto(delta, _ZERO, where=~valid)
        stops |= ~valid
    carry = np.empty_like(delta)
    carry.fill(gamma * lam)
    np.copyto(carry, _ZERO, where=stops)
    advantage = _scanned(delta, carry)
    return advantage + value, advantage


class VTrace(NamedTuple):
    """Targets of V-trace; 0 in samples that are not valid."""

    returns: Tensor
    """The value targets v_t."""
    advantage: Tensor
    """r_t + gamma · v_{t+1} - V(s_t), without a ratio in front."""
    rho: Tensor
    """The clipped ratio min(rho_bar, π / μ) that weights the policy gradient, [T, N]."""


def vtrace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    log_ratio: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float | Tensor,
    lam: float | Tensor = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    valid: Tensor | None = None,
) -> VTrace:
    """Return the V-trace targets of a policy π from experience of a policy μ (Espeholt et al. 2018, equation 1).

        rho_t = min(rho_bar, π/μ)   c_t = lam · min(c_bar, π/μ)   delta_t = rho_t · (r_t + gamma · V(s_{t+1}) - V(s_t))
        v_t   = V(s_t) + delta_t + gamma · c_t · (v_{t+1} - V(s_{t+1}))

    `log_ratio` is log π(a|s) - log μ(a|s), [T, N]. Where π = μ the returns are those of `gae`, and with `lam` = 1 the
    advantages too.
    After an end, the end of the data or before an invalid sample v_{t+1} is `next_value`: V(final_obs) where truncated.
    """
    counts = torch.ones_like(terminated) if valid is None else valid
    ratio = torch.where(counts, log_ratio, 0.0).exp()
    counts, rho = _side_stream(counts, value), ratio.clamp(max=rho_bar)
    going = _like(~(terminated | truncated), value)
    one_step = reward + gamma * next_value * _like(~terminated, value) - value
    # `where`, not a product: an invalid sample may hold NaN
    delta = torch.where(counts, _side_stream(rho, value) * one_step, 0.0)
    carry = torch.where(counts, gamma * lam * _side_stream(ratio.clamp(max=c_bar), value) * going, 0.0)
    correction = backward_scan(delta, carry)
    following = torch.cat([correction[1:], torch.zeros_like(correction[:1])]) * going
    advantage = torch.where(counts, one_step + gamma * following, 0.0)
    return VTrace(torch.where(counts, value + correction, 0.0), advantage, rho)


def discounted_returns(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float | Tensor,
) -> Tensor:
    """Return R_t = r_t + gamma · R_{t+1}, with next_value for R_{t+1} where an episode was cut or the data ends."""
    alive, going = _like(~terminated, reward), _like(~(terminated | truncated), reward)
    cut = 1.0 - going
    cut = torch.cat([cut[:-1], torch.ones_like(cut[-1:])])
    first = reward + gamma * next_value * alive * cut
    return backward_scan(first, gamma * going * (1.0 - cut))


def backward_scan(first: Tensor, carry: Tensor) -> Tensor:
    """Return x with x_t = first_t + carry_t · x_{t+1} and x_T = 0, along the first dimension.

    Long and narrow data is scanned by doubling, log2(T) rounds of whole-array work; short or wide data step by step.
    """
    if _plain(first, carry):
        return torch.from_numpy(_scanned(first.numpy().copy(), carry.numpy()))
    if _scan_kernel is not None and first.is_cuda and not first.requires_grad:
        return _scan_kernel(first, carry)
    num_steps = first.shape[0]
    if first[0].numel() * num_steps.bit_length() < 40 * num_steps:
        return _scan_by_doubling(first, carry)
    result = torch.empty_like(first)
    running = torch.zeros_like(first[0])
    for step in range(num_steps - 1, -1, -1):
        running = torch.addcmul(first[step], carry[step], running)
        result[step] = running
    return result


def _scan_by_doubling(first: Tensor, carry: Tensor) -> Tensor:
    """Hillis and Steele's scan: after round k, x_t holds the sum over the next 2^k steps and c_t the product."""
    x, c = first, carry
    reach = 1
    while reach < x.shape[0]:
        x = torch.cat([torch.addcmul(x[:-reach], c[:-reach], x[reach:]), x[-reach:]])
        reach_c = torch.cat([c[:-reach] * c[reach:], torch.zeros_like(c[-reach:])])
        c = reach_c
        reach *= 2
    return x


def _plain(*tensors: Tensor) -> bool:
    """Return whether these are CPU tensors of one dtype, without gradients and outside of a compiler."""
    dtype = tensors[0].dtype
    if dtype not in _PLAIN_DTYPES or torch.compiler.is_compiling():
        return False
    for x in tensors:  # noqa: SIM110  (a generator takes longer than the checks)
        if type(x) is not Tensor or not x.is_cpu or x.dtype is not dtype or x.requires_grad:
            return False
    return True


def _scanned(x: Array, carry: Array) -> Array:
    """Compute `backward_scan(x, carry)` in place with numpy, whose calls cost less than torch's: rows are small."""
    num_steps = len(x)
    if x[0].size * num_steps.bit_length() < 1500:
        return _scanned_by_doubling(x, carry)
    return _scanned_step_by_step(x, carry)


def _scanned_step_by_step(x: Array, carry: Array) -> Array:
    carried = np.empty_like(x[0])
    running = x[-1]
    for step in range(len(x) - 2, -1, -1):
        np.multiply(carry[step], running, carried)
        running = x[step]
        np.add(running, carried, running)
    return x


def _scanned_by_doubling(x: Array, carry: Array) -> Array:
    """Compute `_scan_by_doubling` in place with numpy; products of windows that reach past the end are left out."""
    carry, reach = carry[:-1], 1
    while reach < len(x):
        head = x[:-reach]
        np.add(head, carry * x[reach:], head)
        if 2 * reach < len(x):
            carry = carry[:-reach] * carry[reach:]
        reach *= 2
    return x


def n_step_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float, n: int
) -> Tensor:
    """Return the n-step targets: rewards up to the first end within n steps, then the value of the next observation.

    `next_value[t]` is the value after step t (V(final_obs) where truncated).
    """
    alive, going = _like(~terminated, reward), _like(~(terminated | truncated), reward)
    target = reward + gamma * next_value * alive
    result = target
    for _ in range(n - 1):
        # one step more: where the episode goes on and there is data, look one step further ahead
        further = torch.cat([reward[:-1] + gamma * result[1:], target[-1:]])
        open_end = torch.cat([going[:-1], torch.zeros_like(going[-1:])])
        result = torch.where(open_end > 0, further, target)
    return result


def _side_stream(mask: Tensor, values: Tensor) -> Tensor:
    """Return a mask, or a number per step, with a last dimension more when the values have one."""
    return mask.unsqueeze(-1) if values.dim() > mask.dim() else mask


def _like(mask: Tensor, values: Tensor) -> Tensor:
    """Return a mask as numbers of the values' dtype, with a last dimension more when the values have one."""
    numbers = mask.to(values.dtype)
    return numbers.unsqueeze(-1) if values.dim() > mask.dim() else numbers
