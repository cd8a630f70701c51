"""A runner one step at a time: loops that are written by hand, and a policy for playing.

    for _ in range(num_steps_per_env):
        obs, critic_obs, rewards, dones, infos = runner.rollout_step(obs, critic_obs)
    losses, stats = runner.learn_from_rollout()

    policy = runner.get_inference_policy(device="cpu")
    actions = policy(obs)            a flat tensor [N, …], a dict of components or groups, or a TensorDict
    policy.reset(dones)              reset the recurrent state where an episode ended; no effect without one

Both use the trainer's own parts, so that hand-written iterations and `learn` may follow each other. A policy for
playing takes observations in any form of any generation, and gives deterministic actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.collect.collector import Collector
from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec, flatten_names
from striderl.data.transition import Transition
from striderl.envs.rsl_rl.handed import HandedSteps
from striderl.envs.vec_env import Obs
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.facade.inputs import Observations, named
from striderl.policies.policy import Policy
from striderl.storage.rollout import RolloutStorage
from striderl.storage.rollout_presets import QueueRolloutStorage
from striderl.training.protocols import order_generator
from striderl.training.trainer import Trainer

# -- training ----------------------------------------------------------------------------------------------------------


class Stepped(NamedTuple):
    """One step of all envs."""

    obs: Obs
    """The actor's next observation, [N, …] per component."""
    critic_obs: Obs
    """The critic's next observation."""
    rewards: Tensor
    """[N]."""
    dones: Tensor
    """bool [N]."""
    infos: dict[str, Any]
    """'time_outs' bool [N], 'final_obs' where the env gives it, and the declared info of the env."""


class _Tap:
    """Keep the last step on its way from collector to storage."""

    balanced = True

    def __init__(self, storage: RolloutStorage | QueueRolloutStorage) -> None:
        self.storage = storage
        self.last: Transition | None = None

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        self.storage.add(transition, envs)
        self.last = transition


class ManualRollout:
    """Fill the trainer's storage step by step and update the algorithm from it."""

    def __init__(self, trainer: Trainer, storage: RolloutStorage | QueueRolloutStorage) -> None:
        self.trainer, self.storage = trainer, storage
        self._initial_state: dict[str, Tensor] = {}
        self._given: Obs | None = None
        self._num_starts = 0
        self._mine = False

    def step(self, obs: Observations | None, critic_obs: Observations | None) -> Stepped:
        """Step all envs once; observations other than those of the last step begin new episodes in the collector."""
        collector, storage = self.trainer.collector, self.storage
        collector.ready()
        self._follow(obs, critic_obs)
        if self.trainer.switch is not None:
            self.trainer.switch.set_iteration(self.trainer.iteration)  # a loaded file may have another
        if storage.full or not self._mine or not len(storage):
            storage.clear()
            self._mine, self._initial_state = True, collector.current_state
        tap = _Tap(storage)
        collector.collect(n_step=collector.env.num_envs, storage=tap)
        assert tap.last is not None
        self.trainer.loop.counters.env_steps += collector.env.num_envs
        return self._stepped(tap.last)

    def learn(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Learn from a full rollout and return (losses, stats) as 0-d tensors."""
        if not (self._mine and self.storage.full):
            raise RuntimeError(
                f"the rollout is not full: {len(self.storage)} of {self.storage.num_steps * self.storage.num_envs} "
                "samples are there; call rollout_step until it is"
            )
        trainer, algorithm = self.trainer, self.trainer.algorithm
        prepared = algorithm.prepare(
            self.storage,
            initial_state=self._initial_state,
            last_obs=trainer.collector.current_obs,
            last_state=trainer.collector.current_state,
        )
        order = order_generator(trainer.seed, trainer.iteration, trainer.collector.env.device)
        numbers = algorithm.update(prepared, order)
        algorithm.update_normalization(self.storage.newest)
        trainer.iteration += 1
        trainer.loop.counters.num_updates += algorithm.num_updates_per_rollout
        if trainer.switch is not None:
            trainer.switch.before_iteration(trainer.iteration)
        self._mine = False
        return split_numbers(numbers)

    def _follow(self, obs: Observations | None, critic_obs: Observations | None) -> None:
        """Continue from observations of another source, a dataset or a manual reset."""
        if obs is None or obs is self._given:
            return
        policy, collector = self.trainer.algorithm.policy, self.trainer.collector
        given = named(obs, policy.actor_inputs, collector.env.device)
        if critic_obs is not None:
            given = {**named(critic_obs, policy.critic_inputs, collector.env.device), **given}
        current = collector.current_obs
        if all(torch.equal(value, current[name]) for name, value in given.items() if name in current):
            return
        self._num_starts += 1
        # another seed, because noise is counted from each start
        collector.start_from({**current, **given}, seed=collector.seed + self._num_starts)
        self._mine = False

    def _stepped(self, transition: Transition) -> Stepped:
        policy, now = self.trainer.algorithm.policy, self.trainer.collector.current_obs
        infos: dict[str, Any] = {**transition.info, "time_outs": transition.truncated & ~transition.terminated}
        if transition.final_obs is not None:
            infos["final_obs"] = transition.final_obs
        self._given = {name: now[name] for name in policy.actor_inputs}
        critic = {name: now[name] for name in policy.critic_inputs}
        return Stepped(self._given, critic, transition.rew, transition.done, infos)


class HandedRollout:
    """The client's steps through a collector: actions out, what came of them in."""

    def __init__(self, steps: HandedSteps, collector: Collector) -> None:
        self.steps, self.collector = steps, collector
        self.seed = collector.seed
        self._seen: Any = None
        """The observation that the last step ended with."""
        self._num_starts = 0

    def act(self, obs: Any) -> Tensor:
        """Return the actions for an observation; one that does not follow the last step continues from there."""
        collector = self.collector
        self.steps.see(obs)
        if self._seen is None:
            collector.reset(self.seed)
        elif obs is not self._seen and not collector.schedule.busy:
            self._continue_from()
        self._seen = obs
        actions: Tensor = collector.launch(ahead=False)
        return actions

    def give(self, obs: Any, rewards: Any, dones: Any, extras: Any) -> None:
        """Hand over what came of the actions; the next call of `collect` stores it."""
        self.steps.give(obs, rewards, dones, extras)
        self._seen = obs

    def begin_anew(self, seed: int) -> None:
        """Start with other noise at the next action: another training has been loaded."""
        self.seed, self._seen = seed, None

    def _continue_from(self) -> None:
        """Follow the client, which has reset its env or asked it for another observation."""
        current = self.collector.current_obs
        given = self.collector.env.reset()
        if all(torch.equal(value, current[name]) for name, value in given.items()):
            return
        self._num_starts += 1
        self.collector.start_from({**current, **given}, seed=self.seed + self._num_starts)


def split_numbers(numbers: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Separate losses, entropy included, from statistics."""
    losses = {name: value for name, value in numbers.items() if name.endswith("_loss") or name == "entropy"}
    return losses, {name: value for name, value in numbers.items() if name not in losses}


# -- playing -----------------------------------------------------------------------------------------------------------


class InferencePolicy:
    """Act by the mode of a policy's distribution and keep its recurrent state; updates take effect at once."""

    def __init__(self, policy: Policy | ActorPolicy) -> None:
        self.policy = policy
        self._state: dict[str, Tensor] = {}
        self._num_envs = 0

    @property
    def device(self) -> torch.device:
        """Where actions are computed."""
        return next(self.policy.parameters()).device

    @torch.no_grad()
    def __call__(self, obs: Any) -> Any:
        """Return the actions for observations [N, …]."""
        named = named_components(obs, self.policy, self.device)
        count = len(next(iter(named.values())))
        if count != self._num_envs:
            self._num_envs, self._state = count, self.policy.initial_state(count, self.device)
        stage_draws = self.policy.settled(torch.zeros(count, device=self.device))
        distribution, self._state, _ = self.policy.act(named, self._state, stage_draws)
        return distribution.mode()

    def reset(self, dones: Any = None) -> None:
        """Reset the recurrent state where `dones` [N], of any dtype, is not zero; of all envs without it."""
        if dones is None:
            self._num_envs, self._state = 0, {}
            return
        done = torch.as_tensor(dones, device=self.device).reshape(-1) != 0
        for name, value in self._state.items():
            if len(done) != len(value):
                raise ValueError(f"dones has {len(done)} entries for a memory of {len(value)} envs")
            self._state[name] = torch.where(done.view(-1, *[1] * (value.dim() - 1)), torch.zeros_like(value), value)


def named_components(
    obs: Any, policy: Policy | ActorPolicy, device: torch.device, inputs: ObsSpec | None = None
) -> dict[str, Tensor]:
    """Return the actor's observation by component, from a flat vector, components, groups or a TensorDict.

    inputs: the components that are wanted, where they are not the actor's.
    """
    wanted = policy.actor_inputs if inputs is None else inputs
    if isinstance(obs, Tensor):
        return dict(wanted.split(obs.to(device)))
    if not (isinstance(obs, Mapping) or (hasattr(obs, "items") and hasattr(obs, "keys"))):
        raise TypeError(f"observations are a tensor, a dict of tensors or a TensorDict, found {type(obs).__name__}")
    found = {name: torch.as_tensor(value).to(device) for name, value in flatten_names(obs)}
    for group in wanted.groups:
        found |= _cut_group(group, found, policy.obs_spec)
    for name in (*wanted, *policy.head.mask_components):
        if name not in found:
            raise KeyError(unknown("component", name, found, where="the observation"))
    return found


def _cut_group(group: str, found: Mapping[str, Tensor], spec: ObsSpec) -> dict[str, Tensor]:
    """Cut a group that came as one vector into its components."""
    parts = spec.select([group])
    if group not in found or group in parts or found[group].shape[-1] != parts.size:
        return {}
    return dict(parts.split(found[group]))


def age_episodes(trainer: Trainer, seed: int) -> None:
    """Give every episode a random age below the time limit."""
    env = trainer.collector.env
    if not env.max_episode_length:
        raise ValueError("init_at_random_ep_len ages episodes towards their time limit, but this env has none")
    trainer.collector.ready()
    generator = torch.Generator().manual_seed(seed + trainer.iteration)
    env.episode_length_buf = torch.randint(0, env.max_episode_length, (env.num_envs,), generator=generator).to(
        env.device
    )
