"""From a rollout [T, N] to minibatches: rows in any order, or whole env columns when the policy has memory.

In mixed precision the policy runs in bfloat16, and its results are float32 again:

    obs ─▶ layers in bfloat16 (autocast) ─▶ distribution's parameters, values ─▶ float32 ─▶ log-probs, KL, losses

bfloat16 has 8 bits: a mean or a value is off by up to 0.4 %. Parameters, gradients and moments stay float32, so small
steps add up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.terms.term import TermList
from striderl.data import tree
from striderl.execution.epochs import ShuffledMinibatches
from striderl.execution.modes import Function
from striderl.networks.memory import Memory
from striderl.ops.trajectories import extra_slots, room_for_trajectories, split_and_pad_trajectories
from striderl.policies.policy import Policy, PolicyOutput


def check_minibatches(
    policy: Policy, terms: TermList, num_mini_batches: int, size: tuple[int, int], *, padded: bool
) -> None:
    """Raise unless a rollout of this size [T, N] can be cut into so many minibatches, all of one shape if `padded`."""
    num_steps, num_envs = size
    if padded and terms.changes_memory:
        raise ValueError(
            "other memories cut a rollout into a varying number of trajectories, which only mode='eager' can take; "
            "leave hidden_state_resample_prob at 0 for updates that are compiled or captured"
        )
    recurrent = bool(policy.state_spec())
    count = num_envs if recurrent else num_steps * num_envs
    if count < num_mini_batches:
        what = f"{num_envs} envs, which a policy with memory takes whole" if recurrent else f"{count} samples"
        raise ValueError(
            f"num_mini_batches={num_mini_batches} cannot be made of {what}; "
            f"set it to {count} or less, or use more {'envs' if recurrent else 'envs or steps'}"
        )


def rollout_minibatches(
    whole: Mapping[str, Any],
    state: dict[str, Tensor],
    terms: TermList,
    *,
    num_mini_batches: int,
    num_epochs: int,
    generator: torch.Generator,
    padded: bool,
    lasting: frozenset[str] = frozenset(),
) -> ShuffledMinibatches:
    """Return minibatches of columns [T, N, …] in a fresh order each epoch; `state` is the memory before the first step.

    Where a term gives trajectories another memory, minibatches are made of trajectories instead of env columns, and
    'other_memory' marks the samples that follow from one. `lasting` are columns that are not moved between updates.
    """
    if state and terms.changes_memory:
        whole, state, there = _trajectories(whole, state)
        state, other = terms.memory(state, generator)
        whole = {**whole, "other_memory": other & there}
    if not state:
        whole = tree.map(lambda leaf: leaf.flatten(0, 1), dict(whole))
    dims = {**dict.fromkeys(whole, int(bool(state))), "state": 0}
    return ShuffledMinibatches(
        {**whole, "state": state},
        dims,
        num_mini_batches=num_mini_batches,
        num_epochs=num_epochs,
        generator=generator,
        padded=padded,
        lasting=lasting,
    )


def _trajectories(
    whole: Mapping[str, Any], state: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor], Tensor]:
    """Cut env columns at resets: (columns [T, n, …], memory before each trajectory [n, …], bool [T, n] what is there).

    The first trajectory of an env continues its memory, the others begin with an empty one. What is not there is
    zero: neither valid nor readable.
    """
    resets: Tensor = whole["resets"]
    ends = torch.cat([resets[1:], torch.ones_like(resets[:1])])
    pieces, there = split_and_pad_trajectories(dict(whole), ends)
    env = torch.arange(resets.shape[1], device=resets.device).repeat_interleave(ends.sum(0))
    is_first = torch.cat([torch.ones_like(env[:1], dtype=torch.bool), env[1:] != env[:-1]])
    begins = {
        name: torch.where(is_first.view(-1, *[1] * (value.dim() - 1)), value[env], torch.zeros_like(value[env]))
        for name, value in state.items()
    }
    return {**pieces, "resets": torch.zeros_like(there)}, begins, there


@dataclass(frozen=True)
class InSlots:
    """A function of minibatches of a recurrent policy, run with one column per trajectory.

    Libraries have one call for a whole window without resets, several times faster than a loop over steps. So every
    trajectory gets a column of its own; how many there are is read once per update, because shapes must be known.
    """

    function: Function
    num_slots: int
    as_written: bool = True
    """Not compiled: the compiler would replace the library's call by a loop."""

    def __call__(self, minibatch: Any) -> Any:
        """Evaluate the function."""
        with room_for_trajectories(self.num_slots):
            return self.function(minibatch)


def in_slots(policy: Policy, function: Function, minibatches: ShuffledMinibatches) -> Function:
    """Return the function with columns for the trajectories of these minibatches; syncs with the device.

    Memory with its own kernels for windows with resets needs none: the function is returned as it is.

    The number of slots is rounded up, so that the same shapes come again.
    """
    if all(part.scans for part in policy.modules() if isinstance(part, Memory)):
        return function
    whole = minibatches.columns
    extra = extra_slots(whole["resets"], whole["readable"])
    rows = list(minibatches.rows())
    most = int(torch.stack([extra.index_select(0, each).sum() for each in rows]).max())
    num_envs = rows[0].shape[0]
    quantum = max(1, num_envs // 8)
    return InSlots(function, num_envs + -(-most // quantum) * quantum)


def run_policy(policy: Policy, minibatch: Mapping[str, Any], *, mixed_precision: bool = False) -> PolicyOutput:
    """Return the policy's present output on a minibatch.

    An invalid sample may still have reached the memory, so it is run if it is readable.
    """
    valid = minibatch["valid"]
    resets = minibatch["resets"] if valid.dim() == 2 else None

    def run() -> PolicyOutput:
        output: PolicyOutput = policy(
            minibatch["obs"], minibatch["state"], minibatch["memo"], resets, minibatch["readable"]
        )
        return output

    return run_in_bfloat16(policy, valid.device.type, run) if mixed_precision else run()


# -- in bfloat16 -------------------------------------------------------------------------------------------------------


def run_in_bfloat16(policy: Policy, device_type: str, run: Callable[[], PolicyOutput]) -> PolicyOutput:
    """Return the output of `run` with matrix products in bfloat16; the result is cast back to float32."""
    with torch.autocast(device_type, dtype=torch.bfloat16):
        output = run()
    parameters = {name: _full(value) for name, value in output.distribution.params().items()}
    return PolicyOutput(
        policy.head.from_params(parameters),
        _full(output.value),
        {name: _full(value) for name, value in output.state.items()},
        {name: _full(value) for name, value in output.aux.items()},
    )


def _full(value: Tensor) -> Any:
    return value.float() if value.dtype == torch.bfloat16 else value
