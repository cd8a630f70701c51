"""Random actions that are valid: within bounds, and only choices that the observation's mask allows."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec, PlainActionSpec
from striderl.envs.vec_env import Actions, Obs


def sample_actions(action_spec: ActionSpec, obs: Obs, generator: torch.Generator) -> Actions:
    """Draw one random action per env, on the observation's device.

    Choices are uniform over those allowed; numbers are uniform between finite bounds, exponential beyond a single one
    and normal without any. The numbers come from the generator's device, so a CPU generator gives the same actions to
    an env on any device. A mask that allows nothing is an error on the CPU; elsewhere looking would wait for the
    device, and choice 0 is taken.
    """
    if isinstance(action_spec, DictActionSpec):
        return {name: _sample(part, obs, generator) for name, part in action_spec.parts.items()}
    return _sample(action_spec, obs, generator)


def _sample(spec: PlainActionSpec, obs: Obs, generator: torch.Generator) -> Tensor:
    first = next(iter(obs.values()))
    if isinstance(spec, BoxSpec):
        return _numbers(spec, len(first), generator).to(first.device)
    sizes = (spec.n,) if isinstance(spec, DiscreteSpec) else spec.nvec
    allowed = _allowed(spec, obs)
    # the largest of independent uniform numbers is at each allowed place with the same probability
    scores = torch.rand(len(first), sum(sizes), generator=generator, device=generator.device).to(first.device)
    if allowed is not None:
        scores = torch.where(allowed, scores, -1.0)
    entries = []
    for entry, last in enumerate(accumulate(sizes)):
        piece = scores[:, last - sizes[entry] : last]
        if allowed is not None and piece.is_cpu:
            _require_a_choice(piece, entry, spec.mask)
        entries.append(piece.argmax(dim=1))
    return entries[0] if isinstance(spec, DiscreteSpec) else torch.stack(entries, dim=1)


def _allowed(spec: DiscreteSpec | MultiDiscreteSpec, obs: Obs) -> Tensor | None:
    return obs[spec.mask].bool() if spec.mask else None


def _require_a_choice(scores: Tensor, entry: int, mask: str) -> None:
    none_left = (scores < 0).all(dim=1)
    if none_left.any():
        row = int(none_left.int().argmax())
        raise ValueError(f"mask {mask!r} allows no choice for action entry {entry} in env {row}; allow at least one")


def _numbers(spec: BoxSpec, num_envs: int, generator: torch.Generator) -> Tensor:
    """Draw float32 [num_envs, *shape] by the kind of each entry's bounds."""
    shape, device = (num_envs, *spec.shape), generator.device
    low, high = (torch.from_numpy(bound).to(device) for bound in spec.bounds())
    uniform = torch.rand(shape, generator=generator, device=device)
    normal = torch.randn(shape, generator=generator, device=device)
    tail = -torch.log1p(-uniform)
    has_low, has_high = low.isfinite(), high.isfinite()
    safe_low, safe_high = torch.where(has_low, low, 0.0), torch.where(has_high, high, 0.0)
    between = torch.lerp(safe_low.expand(shape), safe_high.expand(shape), uniform)
    one_sided = torch.where(has_low, safe_low + tail, safe_high - tail)
    return torch.where(has_low & has_high, between, torch.where(has_low | has_high, one_sided, normal))
