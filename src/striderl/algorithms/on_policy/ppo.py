"""Proximal policy optimisation (Schulman et al. 2017), as used on thousands of simulated robots.

    rollout [T, N] ──prepare──▶ next values, GAE ──▶ minibatches ──compute_losses──▶ Updater ─▶ after_update
                                                      │  flat rows, or whole env columns with memory
                                                      └─ ratio of the first minibatch is exactly 1

Read it top to bottom: `prepare` once per rollout, `compute_losses` for each minibatch, `update` ties them together. The
maths is in `striderl.ops`, running a gradient step in `striderl.execution`. Additional rewards and losses (novelty,
estimators, symmetry) are passed as `terms`: their rewards are added in `prepare`, their losses in `compute_losses`.
`RolloutBatch` is the prepared rollout that minibatches are cut from; `StdFloor` keeps the standard deviation
that a policy learns above a lower bound, after each update.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.algorithms.building import ON_POLICY, BuildContext, RolloutData, build_actor_critic
from striderl.algorithms.on_policy.minibatches import check_minibatches, in_slots, rollout_minibatches, run_policy
from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.on_policy.reward_groups import RewardGroups
from striderl.algorithms.on_policy_targets import Losses, check_learner_parts, finite_rows, next_values, zero_where_not
from striderl.algorithms.terms.term import Read, Term, TermList, collected
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.data import tree
from striderl.data.arena import Columns
from striderl.execution.epochs import ShuffledMinibatches
from striderl.execution.modes import ExecutionConfig, Function
from striderl.execution.updater import GroupConfig, ParameterGroup, Updater
from striderl.networks.heads.base import Head, per_entry
from striderl.networks.heads.gaussian import GaussianHead
from striderl.networks.normalizers import ValueNormalizer
from striderl.ops.losses import adapted_learning_rate, clipped_surrogate, largest_of, mean_std, valid_mean, value_loss
from striderl.ops.moments import AllReduce
from striderl.ops.returns import gae
from striderl.ops.schedules import learning_rate_rule
from striderl.policies.parameter_layout import networks_apart, places_apart
from striderl.policies.policy import Policy, PolicyOutput
from striderl.storage.rollout import RolloutStorage

__all__ = ["PPO", "PPOConfig", "RolloutBatch"]

LOWEST_RETURN_STD = 0.01
"""Lower bound of the returns' std: after a long time without rewards, the first one would be scaled up hugely."""

_LASTING = frozenset({"obs", "valid", "dist", "memo"})
"""Columns that minibatches read from the storage itself, at fixed addresses."""
_TARGETS = frozenset({"act", "log_prob", "value", "returns", "advantage", "resets", "readable"})
"""The outputs of `_targets`: at the same addresses each time where it is captured."""


class PPO:
    """Losses, targets and the update of PPO for a policy."""

    Config = PPOConfig
    summary = "proximal policy optimisation, on-policy"
    loop = ON_POLICY
    takes_terms = True
    learns_in_ranks = True

    @classmethod
    def build_policy(cls, config: PPOConfig, context: BuildContext) -> Policy:
        """Build the policy alone; its critic has one value per reward group."""
        return build_actor_critic(context, max(1, len(config.reward_groups)))

    @classmethod
    def build(cls, config: PPOConfig, context: BuildContext, terms: Sequence[Term] = ()) -> PPO:
        """Build PPO from its config."""
        return cls(cls.build_policy(config, context), config, terms, mode=context.mode, reduce=context.reduce)

    def __init__(
        self,
        policy: Policy,
        config: PPOConfig | None = None,
        terms: Sequence[Term] = (),
        *,
        mode: str | ExecutionConfig = "eager",
        reduce: AllReduce | None = None,
    ) -> None:
        """Create the updater of the policy and of the terms.

        `mode` is how gradient steps are run; `reduce` sums a tensor over all processes of a run.
        """
        check_learner_parts("PPO", policy, config, PPOConfig)
        self.policy = policy
        self.terms = TermList(terms, policy)
        self.config = config = config or PPOConfig()
        group = GroupConfig(
            optimizer=config.optimizer_class_name,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
        )
        groups = {**_network_groups(policy, group, apart=config.clip_networks_apart), **self.terms.groups()}
        self._networks = tuple(name for name in (POLICY, CRITIC) if name in groups and name not in self.terms.groups())
        self.updater = Updater(groups, mode=self.terms.possible_mode(mode), reduce=reduce)
        num_values, device = policy.value_head.num_values, groups["policy"].learning_rate.device
        self.reward_groups = RewardGroups(config.reward_groups, config.reward_group_weights, num_values)
        shape = () if num_values == 1 else (num_values,)
        self.value_normalizer = (
            ValueNormalizer(shape, eps=LOWEST_RETURN_STD).to(device) if config.normalize_values else None
        )
        self.iteration = torch.zeros((), dtype=torch.int64, device=device)
        """Number of rollouts learned from: the position of the learning-rate scheduler."""
        self._targets_function: tuple[RolloutStorage, Callable[[dict[str, Any]], dict[str, Any]]] | None = None
        self._memory = tuple(policy.state_spec())
        self.std_floor = StdFloor(policy.head, config.clip_min_std)
        name = config.lr_scheduler_class_name
        self._scheduler = learning_rate_rule(name, config.learning_rate, config.lr_scheduler) if name else None
        self._follow_schedules()

    @property
    def num_updates_per_rollout(self) -> int:
        """Number of gradient steps per rollout."""
        return self.config.num_learning_epochs * self.config.num_mini_batches

    def actor(self) -> PolicyActor:
        """Return the actor that collects: samples of the policy, modified by the acting parts of terms."""
        return PolicyActor(self.policy, self.terms.acting())

    def storage_requirements(self) -> RolloutData:
        """Return what a storage must keep: the components of the next observation that terms read."""
        fixed_units = self.value_normalizer is None  # an update would move the units of stored values
        return RolloutData(next_components=tuple(self.terms.following()), one_update_old=fixed_units)

    def check_rollout(self, num_steps: int, num_envs: int, columns: Columns | None = None) -> None:
        """Raise unless rollouts of this size, and with these columns if given, fit the config."""
        self.terms.check_rollout(num_envs, columns)
        if columns is not None:
            self.reward_groups.check(columns, self.terms.reward_names())
        self._check_minibatches(num_steps, num_envs)

    def _check_minibatches(self, num_steps: int, num_envs: int) -> None:
        padded = self.updater.mode.fixed_shapes
        check_minibatches(self.policy, self.terms, self.config.num_mini_batches, (num_steps, num_envs), padded=padded)

    # -- once per rollout ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare(
        self,
        storage: RolloutStorage,
        *,
        initial_state: dict[str, Tensor],
        last_obs: Mapping[str, Tensor],
        last_state: Mapping[str, Tensor],
    ) -> RolloutBatch:
        """Add the terms' rewards, and compute next values, returns and advantages.

        Where it is captured as a CUDA graph, the next call for this storage overwrites the result.
        """
        data = storage.data
        valid, parts = data["valid"], self.terms.parts(data["policy"])
        info, read = self.terms.info(data), Read(data, last_obs)
        added = self.terms.rewards(read)
        reward = self.reward_groups.rewards(data["rew"], data["info"], added)
        inputs = {
            "reward": reward,
            "counted": self.terms.in_surrogate({"valid": valid, "parts": parts}),
            "last_obs": dict(last_obs),
            "last_state": dict(last_state),
        }

        targets = self._targets_of(storage)
        with self.updater.pooled():
            numbers = {**self.terms.numbers(added, valid), **self.reward_groups.reward_numbers(reward, valid)}
            if added:
                numbers["task_reward"] = valid_mean(data["rew"], valid)
            found = self.updater.mode.play_in_place((self, storage), inputs, targets)
        return RolloutBatch(
            columns=data,
            **found,
            initial_state={name: initial_state[name] for name in self._memory},
            info=info,
            parts=parts,
            numbers=numbers,
            labels=self.terms.labels(read),
        )

    def _targets_of(self, storage: RolloutStorage) -> Callable[[dict[str, Any]], dict[str, Any]]:
        """Return `_targets` of a storage as a function of the rest, compiled or captured where the mode allows it."""
        if self._targets_function is None or self._targets_function[0] is not storage:

            def targets(inputs: dict[str, Any]) -> dict[str, Any]:
                return self._targets(storage, **inputs)

            self._targets_function = (storage, self.updater.mode.fuse(targets))
        return self._targets_function[1]

    @torch.no_grad()
    def _targets(
        self,
        storage: RolloutStorage,
        reward: Tensor,
        counted: Tensor,
        last_obs: Mapping[str, Tensor],
        last_state: Mapping[str, Tensor],
    ) -> dict[str, Any]:
        """Return the tensors of `RolloutBatch` for a stored rollout and these rewards, without a device sync."""
        data = storage.data
        valid, said = data["valid"], data["policy"]["value"]
        following = next_values(self.policy, storage, last_obs, last_state)
        returns, advantage = gae(
            reward if reward.dim() == said.dim() else reward.unsqueeze(-1),
            self._denormalised(said),
            self._denormalised(following),
            data["terminated"],
            data["truncated"],
            gamma=self.config.gamma,
            lam=self.config.lam,
            valid=valid,
        )
        if not self.config.normalize_advantage_per_mini_batch:
            advantage = self.reward_groups.combined(advantage, counted)
        raw_returns = returns = zero_where_not(returns, valid)
        if self.value_normalizer is not None:
            returns = zero_where_not(self.value_normalizer.normalize_ahead(raw_returns, valid), valid)
        done = data["terminated"] | data["truncated"]
        return {
            "act": tree.map(lambda leaf: zero_where_not(leaf, valid), data["act"]),
            "log_prob": zero_where_not(data["policy"]["log_prob"], valid),
            "value": zero_where_not(said, valid),
            "returns": returns,
            "raw_returns": raw_returns,
            "advantage": zero_where_not(advantage, valid),
            "resets": torch.cat([torch.zeros_like(done[:1]), done[:-1]]),
            "readable": valid | finite_rows(data["obs"], valid),
        }

    def _denormalised(self, said: Tensor) -> Tensor:
        """Return values in units of the reward."""
        return said if self.value_normalizer is None else self.value_normalizer.denormalize(said)

    # -- minibatches ---------------------------------------------------------------------------------------------------

    def minibatches(self, prepared: RolloutBatch, generator: torch.Generator) -> ShuffledMinibatches:
        """Return minibatches: rows in a fresh order each epoch, or whole env columns when the policy has memory."""
        self._check_minibatches(*prepared.advantage.shape[:2])
        return rollout_minibatches(
            self._whole(prepared),
            prepared.initial_state,
            self.terms,
            num_mini_batches=self.config.num_mini_batches,
            num_epochs=self.config.num_learning_epochs,
            generator=generator,
            padded=self.updater.mode.fixed_shapes,
            lasting=_LASTING | _TARGETS if self.updater.mode.records else _LASTING,
        )

    @staticmethod
    def _whole(prepared: RolloutBatch) -> dict[str, Any]:
        stored = prepared.columns["policy"]
        return {
            "obs": prepared.columns["obs"],
            "act": prepared.act,
            "valid": prepared.columns["valid"],
            "dist": stored["dist"],
            "memo": stored["memo"],
            "log_prob": prepared.log_prob,
            "value": prepared.value,
            "returns": prepared.returns,
            "advantage": prepared.advantage,
            "resets": prepared.resets,
            "readable": prepared.readable,
            "info": prepared.info,
            "parts": prepared.parts,
            "labels": prepared.labels,
        }

    # -- one minibatch -------------------------------------------------------------------------------------------------

    def value_loss(self, output: PolicyOutput, minibatch: Mapping[str, Any]) -> Tensor:
        """Return the loss of the critic: the mean squared error of its values, clipped where the config asks for it."""
        clip = self.config.clip_param if self.config.use_clipped_value_loss else None
        return value_loss(output.value, minibatch["value"], minibatch["returns"], clip, minibatch["valid"])

    def compute_losses(self, minibatch: dict[str, Any]) -> tuple[Losses, dict[str, Any], dict[str, Tensor]]:
        """Return (losses, inter_vars, stats): name → (weight, loss), their intermediate tensors, metrics.

        The losses of the terms come last. inter_vars has 'minibatch' (with the samples that terms added), 'output' (of
        the policy), 'log_prob', 'ratio' and 'advantage', for subclasses that add losses of their own.
        """
        minibatch = self.terms.extend(minibatch)
        config, valid, counted = self.config, minibatch["valid"], self.terms.in_surrogate(minibatch)
        output = self._run(minibatch)
        advantage = minibatch["advantage"]
        if config.normalize_advantage_per_mini_batch:
            advantage = self.reward_groups.combined(advantage, counted)
        # selected before exp: an overflow in an invalid sample would come back as zero times infinity
        log_prob = torch.where(counted, output.distribution.log_prob(minibatch["act"]), minibatch["log_prob"])
        surrogate, ratio = clipped_surrogate(log_prob, minibatch["log_prob"], advantage, config.clip_param, counted)
        value = self.value_loss(output, minibatch)
        entropy = valid_mean(output.distribution.entropy(), valid)
        losses: Losses = {
            "surrogate_loss": (1.0, surrogate),
            "value_loss": (config.value_loss_coef, value),
            "entropy": (config.entropy_coef, -entropy),
        }
        losses |= self.terms.losses(minibatch, output, losses)
        inter_vars = {
            "minibatch": minibatch,
            "output": output,
            "log_prob": log_prob,
            "ratio": ratio,
            "advantage": advantage,
        }
        stats = {**self._statistics(minibatch, output, ratio, counted), **self.terms.statistics(minibatch, output)}
        total = functools.reduce(operator.add, (weight * loss for weight, loss in losses.values()))
        return losses, inter_vars, {"entropy": entropy.detach(), "total_loss": total.detach(), **stats}

    def _run(self, minibatch: Mapping[str, Any]) -> PolicyOutput:
        """Return the policy's present output on a minibatch.

        In bfloat16 (`use_mixed_precision`) the first ratio is 1 only as far as bfloat16 repeats the float32 of the
        rollout. An error in the mean counts in units of the std: with a std of 1 the worst of some hundred ratios was
        off by less than 0.05, with one of 0.05 by 0.15 to 0.33. So keep `clip_min_std` well above that.
        """
        return run_policy(self.policy, minibatch, mixed_precision=self.config.use_mixed_precision)

    @torch.no_grad()
    def _statistics(
        self, minibatch: Mapping[str, Any], output: PolicyOutput, ratio: Tensor, in_surrogate: Tensor
    ) -> dict[str, Tensor]:
        """Return metrics of policy change and value quality, on collected samples."""
        counted = collected(minibatch)
        compared = counted & in_surrogate
        old = self.policy.head.from_params(minibatch["dist"])
        return {
            "kl": valid_mean(old.kl(output.distribution), counted),
            "clip_fraction": valid_mean(((ratio - 1.0).abs() > self.config.clip_param).float(), compared),
            **self.reward_groups.value_numbers(output.value, minibatch["returns"], counted),
            "ratio_error": largest_of(torch.where(compared, (ratio - 1.0).abs(), 0.0)),
            **mean_std(output.distribution.params(), counted),
        }

    # -- the whole update ----------------------------------------------------------------------------------------------

    def update(self, prepared: RolloutBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """Update from a prepared rollout; return the means over all minibatches, as tensors."""
        self.updater.attach()
        minibatches = self.minibatches(prepared, generator)
        function: Function = self.compute_losses
        if self.updater.mode.records and prepared.initial_state:
            function = in_slots(self.policy, function, minibatches)
        progress = self.updater.run(function, minibatches, self.step_rule)
        groups = self.updater.groups
        numbers = {
            **prepared.numbers,
            **progress.mean,
            "first_ratio_error": progress.first["ratio_error"],
            "learning_rate": groups["policy"].learning_rate.clone(),
            "skipped_updates": torch.stack([each.num_skipped for each in groups.values()]).sum(),
        }
        self.after_update(prepared)
        return numbers

    def step_rule(self, numbers: Mapping[str, Tensor], groups: Mapping[str, ParameterGroup]) -> None:
        """Adapt the policy's learning rate to the desired KL, if configured."""
        if self.config.schedule == "adaptive":
            rate = adapted_learning_rate(groups[POLICY].learning_rate, numbers["kl"], self.config.desired_kl)
            for name in self._networks:
                groups[name].learning_rate.copy_(rate)

    @torch.no_grad()
    def after_update(self, prepared: RolloutBatch) -> None:
        """Finish the update: apply the std floor, update the returns' statistics, step the scheduler.

        `update` calls it last. The values of this rollout were predicted, and read, with the statistics from before it.
        """
        self.std_floor.lift()
        if self.value_normalizer is not None:
            with self.updater.pooled():
                self.value_normalizer.update(prepared.raw_returns, prepared.columns["valid"])
        self.iteration += 1
        self._follow_schedules()

    def _follow_schedules(self) -> None:
        """Set the learning rate of the present iteration, and the terms' schedules."""
        self.terms.at(self.iteration)
        if self._scheduler is not None:
            for name in self._networks:
                self.updater.groups[name].learning_rate.copy_(self._scheduler(self.iteration))

    @torch.no_grad()
    def update_normalization(self, columns: Mapping[str, Any]) -> None:
        """Update the normalisers from stored columns, after the last minibatch: the next first ratio is 1 again."""
        with self.updater.pooled():
            self.policy.update_normalization(columns["obs"], columns["valid"])
            self.terms.update_normalization(columns)

    def state_dict(self) -> dict[str, Any]:
        """Return the policy, the terms and their optimisers, as copies: training goes on without changing them."""
        return {
            "policy": tree.copy(dict(self.policy.state_dict())),
            "updater": self.updater.state_dict(),
            "terms": self.terms.state_dict(),
            "iteration": self.iteration.clone(),
            "value_normalizer": {}
            if self.value_normalizer is None
            else tree.copy(dict(self.value_normalizer.state_dict())),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved policy, terms and optimisers."""
        saved = state["value_normalizer"]
        if bool(saved) != (self.value_normalizer is not None):
            raise ValueError(
                f"the saved PPO has normalize_values={bool(saved)}, this one {self.config.normalize_values}; "
                "its critic speaks in other units"
            )
        self.policy.load_state_dict(state["policy"])
        self.updater.load_state_dict(self._as_grouped_here(state["updater"]))
        self.terms.load_state_dict(state["terms"])
        self.iteration.copy_(state["iteration"])
        self.terms.at(self.iteration)
        if self.value_normalizer is not None:
            self.value_normalizer.load_state_dict(saved)

    def _as_grouped_here(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Return the state of the optimisers with the groups of this PPO: one for the policy, or one per network."""
        block, apart = saved[POLICY], dict(zip((POLICY, CRITIC), places_apart(self.policy)))
        other = block["first"].numel() != sum(len(place) for place in apart.values())
        if CRITIC not in self._networks or CRITIC in saved or other:  # the updater raises for another policy
            return saved
        moments = ("first", "second")
        return saved | {name: block | {key: block[key].cpu()[at] for key in moments} for name, at in apart.items()}


POLICY, CRITIC = "policy", "critic"
"""Groups of parameters: all of the policy, or the actor's, and the critic's."""


def _network_groups(policy: Policy, config: GroupConfig, *, apart: bool) -> dict[str, ParameterGroup]:
    """Return one group of parameters, or with `apart` one for each network; each group is clipped on its own."""
    if not apart:
        return {POLICY: ParameterGroup(policy.parameters(), config)}
    actors, critics = networks_apart(policy)
    return {POLICY: ParameterGroup(actors, config), CRITIC: ParameterGroup(critics, config)}


# -- a rollout, prepared -----------------------------------------------------------------------------------------------


class RolloutBatch(NamedTuple):
    """A rollout with its targets, [T, N, …] each; numbers are zero in samples that are not valid."""

    columns: Mapping[str, Any]
    """The stored columns."""
    act: Any
    """The actions: a tensor, or a dict of them."""
    log_prob: Tensor
    """Log-probabilities of the actions at collection."""
    value: Tensor
    """Values predicted at collection, in the critic's own units: value clipping is relative to them."""
    returns: Tensor
    """The value targets; with `normalize_values` normalised by the statistics used after the update."""
    raw_returns: Tensor
    """The returns in units of the reward, which update the normaliser of values."""
    advantage: Tensor
    """How much better the actions were than expected; normalised, or one per value where minibatches do that."""
    resets: Tensor
    """True where a new episode begins, before that step is processed."""
    readable: Tensor
    """False where a sample is not valid and its observation is not finite: no network may read it."""
    info: dict[str, Tensor]
    """The info columns that terms read."""
    parts: dict[str, Any]
    """The columns stored by the acting parts of terms, by term."""
    numbers: dict[str, Tensor]
    """The terms' metrics of this rollout, such as the mean of each reward they added."""
    initial_state: dict[str, Tensor]
    """The policy's memory before the first step, [N, …] each; empty when it has none."""
    labels: Mapping[str, Any] = {}
    """The terms' `labels` of the whole rollout, by term."""


# -- a lower bound of the standard deviation ---------------------------------------------------------------------------


class StdFloor:
    """Clips the learned std of every Gaussian in a head from below."""

    def __init__(self, head: Head[Any], lowest: float | tuple[float, ...]) -> None:
        """Find the Gaussians; raise for a floor that none of them can have."""
        self._heads = [part for part in head.modules() if isinstance(part, GaussianHead)]
        self._lowest = lowest
        if not self._heads and lowest != PPOConfig.clip_min_std:
            raise ValueError(f"clip_min_std={lowest} has no effect: {type(head).__name__} learns no standard deviation")
        for part in self._heads:
            per_entry(lowest, part.mean_layer.shape, "clip_min_std")

    def lift(self) -> None:
        """Clip the std from below."""
        for part in self._heads:
            part.clip_std(min=self._lowest)
