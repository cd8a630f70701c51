"""Interfaces of algorithms for the trainer, and the storages of both.

OnPolicyAlgorithm    learns from fresh rollouts: targets, gradient steps, statistics
ReplayAlgorithm      learns from samples of a replay or a dataset, one gradient step of each of its parts at a time
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from striderl.algorithms.building import RolloutData
from striderl.algorithms.sequence_learning import ReplayState
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.data.arena import Columns, Placement
from striderl.data.noise import NoiseSpec, draw, philox, stream_id
from striderl.execution.updater import Updater
from striderl.policies.policy import Policy
from striderl.storage.replay.replay import Replay, View
from striderl.storage.replay.samplers import Sampler
from striderl.storage.rollout import RolloutStorage
from striderl.storage.rollout_presets import QueueRolloutStorage, SarsaRolloutStorage

# -- fresh rollouts ----------------------------------------------------------------------------------------------------


@runtime_checkable
class OnPolicyAlgorithm(Protocol):
    """Learn from a rollout in three calls: targets, gradient steps, statistics."""

    policy: Policy
    """The policy."""
    updater: Updater
    """The updater that takes the gradient steps."""

    @property
    def num_updates_per_rollout(self) -> int:
        """How many gradient steps one rollout is used for."""
        ...

    def actor(self) -> PolicyActor:
        """Return the actor that collects."""
        ...

    def check_rollout(self, num_steps: int, num_envs: int, columns: Columns | None = None) -> None:
        """Raise when rollouts of this size, with these columns, cannot be used."""
        ...

    def prepare(
        self,
        storage: Any,
        *,
        initial_state: dict[str, Tensor],
        last_obs: Mapping[str, Tensor],
        last_state: Mapping[str, Tensor],
    ) -> Any:
        """Compute the targets of a full storage."""
        ...

    def update(self, prepared: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Take all gradient steps and return metrics as 0-d tensors; the generator shuffles the samples."""
        ...

    def update_normalization(self, columns: Mapping[str, Any]) -> None:
        """Update the normalisers from stored columns [T, N, …]."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the learned state."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state."""
        ...


def rollout_storage(
    collector: Collector, policy: Policy, num_steps: int, following: Sequence[str] = ()
) -> RolloutStorage:
    """Make the storage for rollouts of this length; final observations are kept where the env gives them.

    So are the true next observations of the components in `following`; without final observations they are unknown.
    """
    placement = Placement(device=str(collector.env.device))
    columns, num_envs = collector.columns(), collector.env.num_envs
    if not collector.env.gives_final_obs:
        return RolloutStorage(columns, num_steps, num_envs, placement=placement)
    spec, state = collector.obs_spec, policy.state_spec()
    if not following:
        return RolloutStorage(columns, num_steps, num_envs, placement=placement, final_obs=spec, final_state=state)
    return SarsaRolloutStorage(
        columns,
        num_steps,
        num_envs,
        placement=placement,
        final_obs=spec,
        final_state=state,
        components=following,
    )


def storage_for(
    algorithm: OnPolicyAlgorithm, collector: Collector, num_steps: int
) -> RolloutStorage | QueueRolloutStorage:
    """Make the storage that an algorithm learns from: one rollout, or the newest few."""
    wanted = requirements_of(algorithm)
    if wanted.num_rollouts == 1.0:
        return rollout_storage(collector, algorithm.policy, num_steps, wanted.next_components)
    return QueueRolloutStorage(
        collector.columns(),
        num_steps,
        collector.env.num_envs,
        buffer_dilation_ratio=wanted.num_rollouts,
        placement=Placement(device=str(collector.env.device)),
    )


def requirements_of(algorithm: object) -> RolloutData:
    """Return what an algorithm needs stored; one without `storage_requirements` needs a plain rollout."""
    found: RolloutData = getattr(algorithm, "storage_requirements", RolloutData)()
    return found


def order_generator(seed: int, iteration: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the generator of one iteration's minibatch order: it depends on two numbers, nothing has to be saved.

    A GPU draws its own orders, unlike the CPU's: a transfer takes longer than a gradient step.
    """
    high, low, _, _ = philox((iteration & 0xFFFFFFFF, iteration >> 32, 0, stream_id("minibatch order")), seed)
    return torch.Generator(device).manual_seed(int(high) << 32 | int(low))


# -- replayed samples --------------------------------------------------------------------------------------------------


@runtime_checkable
class ReplayAlgorithm(Protocol):
    """Learn from samples of a `Replay`, one gradient step of each of its parts at a time."""

    policy: Any
    """The policy that acts and is evaluated."""
    config: Any
    """Its settings; `mode` is how gradient steps are run, and on a GPU how steps of the envs are."""

    def view(self) -> View:
        """Return how samples are read: single steps, n steps, sequences."""
        ...

    def sampler(self, seed: int) -> Sampler:
        """Return the sampler: uniform, or by priority."""
        ...

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise specs of one sample in one gradient step."""
        ...

    def explore(self, env_steps: int, *, random: bool) -> None:
        """Set the exploration schedules for this point of the run; `random` before learning starts."""
        ...

    def update(
        self, sample: Mapping[str, Any], weight: Tensor | None, noise: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Take one gradient step and return 0-d metrics; 'td_error' [B], if present, becomes the priority."""
        ...

    def update_normalization(self, columns: Mapping[str, Any]) -> None:
        """Update the normalisers from samples."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the learned state, targets and counters included."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state."""
        ...


@runtime_checkable
class LearnsSequences(Protocol):
    """An algorithm whose replay stores the actor's recurrent state."""

    def replay_state(self) -> ReplayState:
        """Return which part of it is stored, and how often."""
        ...


def replay_for(collector: Collector, algorithm: ReplayAlgorithm, capacity: int, seed: int) -> Replay:
    """Make the replay for a collector and an algorithm, on the envs' device."""
    kept = algorithm.replay_state() if isinstance(algorithm, LearnsSequences) else None
    return Replay(
        collector.columns(),
        capacity,
        collector.env.num_envs,
        placement=Placement(device=str(collector.env.device)),
        sampler=algorithm.sampler(seed),
        view=algorithm.view(),
        state=None if kept is None else kept.columns,
        state_every=1 if kept is None else kept.every,
    )


class UpdateNoise:
    """The noise of gradient steps: it depends on seed and step number, so nothing has to be saved.

    Several steps are drawn at once, because a draw of any size costs the same handful of small operations.
    """

    def __init__(
        self,
        specs: Mapping[str, NoiseSpec],
        batch_size: int,
        seed: int,
        device: torch.device,
        block: int = 32,
        *,
        first: int = 0,
    ) -> None:
        """Prepare to draw [B, …] for each of the specs; `first` is the number of the first sample in the batch."""
        # a prefix of its own: the collector draws from the same seed
        self._specs = {f"update/{name}": spec for name, spec in specs.items()}
        self._index = torch.arange(first, first + batch_size, device=device)
        self._seed, self._block, self._number = seed, block, -1
        self._drawn: dict[str, Tensor] = {}

    def at(self, update: int) -> dict[str, Tensor]:
        """Return the noise of this gradient step."""
        if not self._specs:
            return {}
        _, drawn, row = self.block(update)
        return {name: values[row] for name, values in drawn.items()}

    def block(self, update: int) -> tuple[int, dict[str, Tensor], int]:
        """Return the number of the block that has this gradient step, the block [K, B, …], and the step's row in it."""
        number, row = divmod(update, self._block)
        if number != self._number:
            self._drawn = {}
            for name, spec in self._specs.items():
                # what is drawn for a whole batch is the same in the processes that share it
                index = torch.zeros_like(self._index) if spec.of_batch else self._index
                drawn = draw(spec, name, seed=self._seed, iteration=number, env_index=index, num_steps=self._block)
                self._drawn[name.removeprefix("update/")] = drawn
            self._number = number
        return number, self._drawn, row


def lacking(algorithm: object, protocol: type) -> str:
    """Return which members of a protocol an algorithm lacks, as the end of an error; empty where it lacks them all."""
    wanted = [name for name in (*protocol.__annotations__, *vars(protocol)) if not name.startswith("_")]
    missing = [name for name in wanted if not hasattr(algorithm, name)]
    if len(missing) == len(wanted):
        return ""
    return f", which lacks {', '.join(missing)}; see striderl/training/protocols.py"
