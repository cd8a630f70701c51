"""DAgger (Ross et al. 2011): collect with student and teacher, learn the teacher's labels; no rewards, no returns.

    rollout [T, N] ──prepare──▶ masks, memory ──▶ minibatches ──losses of the terms──▶ Updater ──▶ next iteration
         └ the newest, or with `buffer_dilation_ratio` the newest few: labels stay valid, unlike ratios

The losses are those of the terms: `DAgger(policy, config, terms=[Distill(teacher), Estimation()])`. The critic stays as
it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.algorithms.building import ON_POLICY, BuildContext, RolloutData, build_actor_critic
from striderl.algorithms.on_policy.minibatches import check_minibatches, rollout_minibatches, run_policy
from striderl.algorithms.on_policy_targets import Losses, finite_rows, zero_where_not
from striderl.algorithms.terms.distill import Distill
from striderl.algorithms.terms.term import Read, Term, TermList
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.data import tree
from striderl.data.arena import Columns
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown
from striderl.execution.epochs import ShuffledMinibatches
from striderl.execution.modes import ExecutionConfig
from striderl.execution.parameter_groups import OPTIMIZERS
from striderl.execution.updater import GroupConfig, ParameterGroup, Updater
from striderl.ops.losses import mean_std, valid_mean
from striderl.ops.moments import AllReduce
from striderl.ops.schedules import learning_rate_rule
from striderl.policies.policy import Policy
from striderl.storage.rollout import RolloutStorage
from striderl.storage.rollout_presets import QueueRolloutStorage


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class DAggerConfig:
    """Settings of DAgger; those that PPO has too mean the same."""

    num_learning_epochs: int = 10
    """Passes over what is stored after each rollout."""
    num_mini_batches: int = 4
    """Minibatches per pass."""
    learning_rate: float = 1e-3
    """The first learning rate; a scheduler moves it."""
    max_grad_norm: float = 1.0
    """The gradient is clipped to this norm; 0 means never."""
    optimizer_class_name: str = "Adam"
    """'Adam', 'AdamW', 'SGD' or 'RMSprop'."""
    lr_scheduler_class_name: str | None = None
    """How the learning rate changes from update to update, such as 'CosineAnnealingLR'; see `ops.schedules.RULES`."""
    lr_scheduler: Mapping[str, Any] = field(default_factory=dict)
    """Settings of that scheduler by torch's names; its unit is the update of one rollout."""
    use_mixed_precision: bool = False
    """Run the networks of the update in bfloat16."""
    buffer_dilation_ratio: float = 1.0
    """Number of rollouts to learn from, 1 for the newest alone."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.num_mini_batches < 1 or self.num_learning_epochs < 1:
            raise ValueError(
                "num_mini_batches and num_learning_epochs are at least 1, "
                f"found {self.num_mini_batches} and {self.num_learning_epochs}"
            )
        if self.learning_rate <= 0.0 or self.buffer_dilation_ratio < 1.0:
            raise ValueError(
                "learning_rate is positive and buffer_dilation_ratio at least 1, found "
                f"{self.learning_rate} and {self.buffer_dilation_ratio}"
            )
        if self.optimizer_class_name not in OPTIMIZERS:
            raise ValueError(unknown("optimizer", self.optimizer_class_name, OPTIMIZERS, where="DAggerConfig"))
        if self.lr_scheduler_class_name:
            learning_rate_rule(self.lr_scheduler_class_name, self.learning_rate, self.lr_scheduler)
        elif self.lr_scheduler:
            raise ValueError("lr_scheduler has no effect without lr_scheduler_class_name; name one")


class Gathered(NamedTuple):
    """The stored rollouts, ready to be cut into minibatches, [rows, N, …] each."""

    columns: Mapping[str, Any]
    """As they were stored."""
    whole: dict[str, Any]
    """The columns of minibatches."""
    initial_state: dict[str, Tensor]
    """The student's memory before the first row."""
    numbers: dict[str, Tensor]
    """The metrics of the terms."""


class DAgger:
    """Learns the losses of its terms from rollouts, old ones included, and nothing else."""

    Config = DAggerConfig
    summary = "imitation of a teacher on the states that the student visits, on-policy"
    loop = ON_POLICY
    learns_in_ranks = True
    takes_terms = True
    objects = ("teacher",)

    @classmethod
    def build_policy(cls, config: DAggerConfig, context: BuildContext) -> Policy:
        """Build the policy alone."""
        return build_actor_critic(context)

    @classmethod
    def build(cls, config: DAggerConfig, context: BuildContext, terms: Sequence[Term] = ()) -> DAgger:
        """Build DAgger with the run's teacher; a 'distill' among the terms has other settings of the imitation."""
        if not any(isinstance(term, Distill) for term in terms):
            terms = [*terms, Distill(context.load("teacher"))]
        policy = cls.build_policy(config, context)
        return cls(policy, config, terms, mode=context.mode, reduce=context.reduce)

    def __init__(
        self,
        policy: Policy,
        config: DAggerConfig | None = None,
        terms: Sequence[Term] = (),
        *,
        mode: str | ExecutionConfig = "eager",
        reduce: AllReduce | None = None,
    ) -> None:
        """Create the updater of the policy and of the terms; the arguments are those of PPO."""
        if not terms:
            raise ValueError("DAgger learns what its terms say; give it terms=[Distill(teacher)]")
        self.policy, self.config = policy, config or DAggerConfig()
        self.terms = TermList(terms, policy)
        config = self.config
        group = GroupConfig(
            optimizer=config.optimizer_class_name,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
        )
        groups = {"policy": ParameterGroup(policy.parameters(), group), **self.terms.groups()}
        self.updater = Updater(groups, mode=self.terms.possible_mode(mode), reduce=reduce)
        self.iteration = torch.zeros((), dtype=torch.int64, device=groups["policy"].learning_rate.device)
        """Number of rollouts learned from: the position of schedules."""
        name = config.lr_scheduler_class_name
        self._scheduler = learning_rate_rule(name, config.learning_rate, config.lr_scheduler) if name else None
        self._follow_schedules()

    @property
    def num_updates_per_rollout(self) -> int:
        """Number of gradient steps are taken after each rollout."""
        return self.config.num_learning_epochs * self.config.num_mini_batches

    @property
    def buffer_dilation_ratio(self) -> float:
        """Number of rollouts the storage should keep."""
        return self.config.buffer_dilation_ratio

    def actor(self) -> PolicyActor:
        """Return the actor that collects; memories are stored where old rollouts, cut at the start, need them."""
        return PolicyActor(self.policy, self.terms.acting(), store_state=self.config.buffer_dilation_ratio > 1.0)

    def storage_requirements(self) -> RolloutData:
        """Return what a storage must keep: the newest few rollouts, as labels stay valid."""
        return RolloutData(num_rollouts=self.config.buffer_dilation_ratio, takes_old=True, one_update_old=True)

    def check_rollout(self, num_steps: int, num_envs: int, columns: Columns | None = None) -> None:
        """Raise unless rollouts of this size can be cut into minibatches; any columns are accepted."""
        padded = self.updater.mode.fixed_shapes
        check_minibatches(self.policy, self.terms, self.config.num_mini_batches, (num_steps, num_envs), padded=padded)

    # -- once per rollout ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare(
        self,
        storage: RolloutStorage | QueueRolloutStorage,
        *,
        initial_state: dict[str, Tensor],
        last_obs: Mapping[str, Tensor],
        last_state: Mapping[str, Tensor],
    ) -> Gathered:
        """Order the stored rows; there are no targets to compute."""
        state = {name: initial_state[name] for name in self.policy.state_spec()}
        if isinstance(storage, QueueRolloutStorage):
            storage.untie_buffer_loop()
            if state and storage.max_rows > storage.num_steps:
                state = {name: storage.data["policy"]["state"][name][0].clone() for name in state}
        data = storage.data
        valid, done = data["valid"], data["terminated"] | data["truncated"]
        whole = {
            "obs": data["obs"],
            "act": tree.map(lambda leaf: zero_where_not(leaf, valid), data["act"]),
            "valid": valid,
            "memo": data["policy"]["memo"],
            "resets": torch.cat([torch.zeros_like(done[:1]), done[:-1]]),
            "readable": valid | finite_rows(data["obs"], valid),
            "info": self.terms.info(data),
            "parts": self.terms.parts(data["policy"]),
            "labels": self.terms.labels(Read(data, last_obs)),
        }
        return Gathered(data, whole, state, self.terms.numbers({}, valid))

    def minibatches(self, prepared: Gathered, generator: torch.Generator) -> ShuffledMinibatches:
        """Return minibatches: rows in a fresh order each epoch, or whole env columns when the policy has memory."""
        self.check_rollout(*prepared.whole["valid"].shape)
        return rollout_minibatches(
            prepared.whole,
            prepared.initial_state,
            self.terms,
            num_mini_batches=self.config.num_mini_batches,
            num_epochs=self.config.num_learning_epochs,
            generator=generator,
            padded=self.updater.mode.fixed_shapes,
        )

    def compute_losses(self, minibatch: dict[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return the terms' losses, name → (weight, loss), and metrics."""
        minibatch = self.terms.extend(minibatch)
        output = run_policy(self.policy, minibatch, mixed_precision=self.config.use_mixed_precision)
        losses = self.terms.losses(minibatch, output, {})
        with torch.no_grad():
            entropy = valid_mean(output.distribution.entropy(), minibatch["valid"])
            spread = mean_std(output.distribution.params(), minibatch["valid"])
        return losses, {"entropy": entropy, **spread, **self.terms.statistics(minibatch, output)}

    # -- the whole update ----------------------------------------------------------------------------------------------

    def update(self, prepared: Gathered, generator: torch.Generator) -> dict[str, Tensor]:
        """Update from the stored rollouts; return the means over all minibatches, as tensors."""
        self.updater.attach()
        progress = self.updater.run(self.compute_losses, self.minibatches(prepared, generator))
        groups = self.updater.groups
        numbers = {
            **prepared.numbers,
            **progress.mean,
            "learning_rate": groups["policy"].learning_rate.clone(),
            "skipped_updates": torch.stack([each.num_skipped for each in groups.values()]).sum(),
        }
        self.iteration += 1
        self._follow_schedules()
        return numbers

    @torch.no_grad()
    def _follow_schedules(self) -> None:
        self.terms.at(self.iteration)
        if self._scheduler is not None:
            self.updater.groups["policy"].learning_rate.copy_(self._scheduler(self.iteration))

    @torch.no_grad()
    def update_normalization(self, columns: Mapping[str, Any]) -> None:
        """Update the normalisers from stored columns, after the last minibatch."""
        with self.updater.pooled():
            self.policy.update_normalization(columns["obs"], columns["valid"])
            self.terms.update_normalization(columns)

    def state_dict(self) -> dict[str, Any]:
        """Return the policy, the terms and their optimisers, as copies."""
        return {
            "policy": tree.copy(dict(self.policy.state_dict())),
            "updater": self.updater.state_dict(),
            "terms": self.terms.state_dict(),
            "iteration": self.iteration.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved policy, terms and optimisers."""
        self.policy.load_state_dict(state["policy"])
        self.updater.load_state_dict(state["updater"])
        self.terms.load_state_dict(state["terms"])
        self.iteration.copy_(state["iteration"])
        self._follow_schedules()
