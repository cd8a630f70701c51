"""A golden trace: 100 steps of the policy's inputs and outputs, stored with the exported model.

    obs/<component> [T, B, …] ─┐                                  ┌─▶ action [T, B, …]
    resets [T, B]             ─┴─▶ the policy, in torch, eager ───┴─▶ next_state/<name> [T, B, …]

State starts at zero and is set to zero where `resets` is true, before that step is taken. Any runtime, in any
language, can be checked with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from striderl.data.specs import torch_dtype
from striderl.export.greedy_step import ExportLayout, probe

Step = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""One step of whatever is checked: inputs in the order of the layout, outputs likewise."""


@dataclass(frozen=True)
class GoldenTrace:
    """Inputs and outputs of a run."""

    obs: dict[str, Tensor]
    """[T, B, …] by component."""
    resets: Tensor
    """Bool [T, B]."""
    outputs: dict[str, Tensor]
    """[T, B, …] by output name."""

    def save(self, path: Path) -> None:
        """Write all tensors to one safetensors file."""
        from safetensors.torch import save_file

        named = {f"obs/{name}": value for name, value in self.obs.items()}
        save_file({**named, "resets": self.resets, **self.outputs}, str(path))


class ParityError(RuntimeError):
    """An exported model's outputs differ from the policy's."""


def random_trace(layout: ExportLayout, num_steps: int, num_envs: int) -> dict[str, Tensor]:
    """Return random observations [T, B, …], the same in every call."""
    generator = torch.Generator().manual_seed(0)
    return {name: probe(part, num_steps, num_envs, generator=generator) for name, part in layout.observations.items()}


def golden_trace(step: Step, layout: ExportLayout, obs: Mapping[str, Tensor]) -> GoldenTrace:
    """Run the policy over observations [T, B, …], with a reset about every twenty steps."""
    layout.observations.require(obs, where="trace_obs")
    used = {name: obs[name].detach().cpu().contiguous() for name in layout.observations}
    first = next(iter(used))
    num_steps, num_envs = used[first].shape[:2]
    resets = torch.rand(num_steps, num_envs, generator=torch.Generator().manual_seed(1)) < 0.05
    return GoldenTrace(used, resets, run_trace(step, layout, used, resets))


def run_trace(step: Step, layout: ExportLayout, obs: Mapping[str, Tensor], resets: Tensor) -> dict[str, Tensor]:
    """Run a step function over a trace, feeding its memory back, and return its outputs [T, B, …] by name."""
    num_steps, num_envs = resets.shape
    state = [torch.zeros(num_envs, *spec.shape, dtype=torch_dtype(spec.dtype)) for spec in layout.states.values()]
    taken: list[Sequence[Tensor]] = []
    for time in range(num_steps):
        state = [torch.where(_column(resets[time], value), torch.zeros_like(value), value) for value in state]
        outputs = step([*(obs[name][time] for name in layout.observations), *state])
        state = list(outputs[len(layout.actions) :])
        taken.append(outputs)
    return {name: torch.stack([outputs[at] for outputs in taken]) for at, name in enumerate(layout.output_names)}


def require_parity(
    found: Mapping[str, Tensor], golden: Mapping[str, Tensor], *, tolerance: float, who: str
) -> dict[str, float]:
    """Return the largest difference of each output; raise ParityError when one is above the tolerance."""
    differences = {name: _difference(who, name, found[name], wanted) for name, wanted in golden.items()}
    worst = max(differences, key=differences.__getitem__)
    if differences[worst] > tolerance:
        listed = ", ".join(f"{name} {value:.3g}" for name, value in differences.items())
        raise ParityError(
            f"{who} differs from the policy by {differences[worst]:.3g} in output {worst!r}; "
            f"allowed are {tolerance:g}. Nothing was written. All outputs: {listed}"
        )
    return differences


def _difference(who: str, name: str, found: Tensor, wanted: Tensor) -> float:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise ParityError(
            f"{who} gives output {name!r} as {found.dtype} {list(found.shape)}, "
            f"the policy as {wanted.dtype} {list(wanted.shape)}. Nothing was written."
        )
    if not bool(torch.isfinite(wanted).all()):
        raise ParityError(f"the policy gives values that are not finite in output {name!r}. Nothing was written.")
    difference = (found.double() - wanted.double()).abs().max()
    return float(difference) if bool(difference.isfinite()) else float("inf")


def _column(mask: Tensor, like: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (like.dim() - 1))
