"""`PPO` for people who write the loop themselves, in the words of st_rl and rsl_rl 1.

    alg = PPO(ActorCritic(48, 48, 12), num_learning_epochs=5, num_mini_batches=4, device="cpu")
    alg.init_storage(num_envs, 24, [48], [None], [12])
    for it in range(1000):
        for _ in range(24):
            obs, rewards, dones, infos = env.step(alg.act(obs, obs))
            alg.process_env_step(rewards, dones, infos)
        alg.compute_returns(obs)
        losses, stats = alg.update(it)

Everything is done by the parts that a runner uses: the same seed and the same env give the same weights, bit for bit.

A subclass may override every method. `compute_losses(minibatch)` is run for each minibatch and may add losses of its
own; of the model, `act`, `evaluate`, `reset`, `clip_std`, `train` and `to` are called where a subclass overrides them.
Settings are fixed when the object is made: setting one afterwards raises, because nothing would read it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.on_policy import ppo as core
from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.on_policy_targets import Losses, finite_rows
from striderl.algorithms.terms.term import Term
from striderl.collect.actors.base import ActorOutput, Played
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.group import NoiseSource, where_env
from striderl.compat.st_rl.loop import (
    LoopStorage,
    check_shape,
    final_observations,
    seen_by_critic,
    tell_teacher,
    with_recorded_action,
)
from striderl.data import tree
from striderl.data.arena import Columns
from striderl.data.checked_fields import overridden, refuse_assignment
from striderl.data.episode_ends import split_done
from striderl.data.naming import unknown
from striderl.data.noise import NoiseSpec
from striderl.data.transition import Transition
from striderl.datasets.playback.base import PlayedTransition as RecordedStep
from striderl.networks.distributions.base import Distribution
from striderl.policies.arguments import explicit
from striderl.policies.facade.inputs import Observations, as_dones, critic_view, named
from striderl.policies.facade.memory import to_hidden_states
from striderl.policies.facade.routed import RoutedPolicy, policy_of
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.policy import Policy
from striderl.storage.rollout import RolloutStorage
from striderl.training.experiment.runner_config import rsl_rl_ppo_config
from striderl.training.protocols import order_generator
from striderl.training.rsl_rl.stepping import split_numbers

_log = logging.getLogger(__name__)


class PPO:
    """PPO with a storage and a memory of its own; see the top of this module for the order of calls."""

    @explicit
    def __init__(
        self,
        actor_critic: StatefulPolicy | Policy,
        num_learning_epochs: int | None = None,
        num_mini_batches: int | None = None,
        clip_param: float | None = None,
        gamma: float | None = None,
        lam: float | None = None,
        value_loss_coef: float | None = None,
        entropy_coef: float | None = None,
        learning_rate: float | None = None,
        max_grad_norm: float | None = None,
        use_clipped_value_loss: bool | None = None,
        clip_min_std: float | Sequence[float] | None = None,
        optimizer_class_name: str | None = None,
        schedule: str | None = None,
        desired_kl: float | None = None,
        empirical_normalization: bool = False,
        device: torch.device | str = "cpu",
        *,
        config: PPOConfig | None = None,
        terms: Sequence[Term] = (),
        seed: int = 0,
    ) -> None:
        """Take a policy, or a model that has one.

        Settings that are not given are those of `config`, or without one rsl_rl's defaults.
        `terms` is what is learned beside PPO; `seed` decides noise and the order of samples.
        """
        if empirical_normalization:
            raise ValueError(
                "empirical_normalization is a stage of the policy: build it with NormalizeObs() in PolicyConfig.actor "
                "and .critic, or give the setting to a runner, which does"
            )
        given = {
            "num_learning_epochs": num_learning_epochs,
            "num_mini_batches": num_mini_batches,
            "clip_param": clip_param,
            "gamma": gamma,
            "lam": lam,
            "value_loss_coef": value_loss_coef,
            "entropy_coef": entropy_coef,
            "learning_rate": learning_rate,
            "max_grad_norm": max_grad_norm,
            "use_clipped_value_loss": use_clipped_value_loss,
            "clip_min_std": tuple(clip_min_std) if isinstance(clip_min_std, (list, tuple)) else clip_min_std,
            "optimizer_class_name": optimizer_class_name,
            "schedule": schedule,
            "desired_kl": desired_kl,
        }
        settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self.device, self.seed = torch.device(device), seed
        self.actor_critic = actor_critic.to(self.device)
        self.policy = _pure(actor_critic)
        self.learner = _Learner(self, self.policy, replace(config or rsl_rl_ppo_config(), **settings), terms)
        self.transition = RolloutStorage.Transition()
        """The step that is under way, to look at: what `act` chose, and what `process_env_step` was told."""
        self.storage: LoopStorage | None = None
        self._actor = _actor_of(self.learner)
        self._step = self._iteration = 0
        self._state: dict[str, Tensor] = {}
        self._initial_state: dict[str, Tensor] = {}
        self._obs: dict[str, Tensor] = {}
        self._healthy = torch.ones(0, dtype=torch.bool)
        self._acted: ActorOutput | None = None
        self._prepared: Any = None
        self._told = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, but no setting or part that the update holds already: it would not be read."""
        refuse_assignment(self, name, parts=_PARTS, settings=_SETTINGS)
        super().__setattr__(name, value)

    # -- the calls of a loop -------------------------------------------------------------------------------------------

    def init_storage(
        self,
        num_envs: int,
        num_transitions_per_env: int,
        actor_obs_shape: Sequence[int | None] | None = None,
        critic_obs_shape: Sequence[int | None] | None = None,
        action_shape: Sequence[int | None] | None = None,
    ) -> None:
        """Make room for rollouts of this size; the shapes, where they are given, must be those of the policy."""
        for what, shape, size in (
            ("actor_obs_shape", actor_obs_shape, self.policy.actor_inputs.size),
            ("critic_obs_shape", critic_obs_shape, self.policy.critic_inputs.size),
            ("action_shape", action_shape, _action_size(self.policy)),
        ):
            check_shape(what, shape, size)
        self.learner.check_rollout(num_transitions_per_env, num_envs)
        self.storage = LoopStorage(self._actor, self.policy, num_envs, num_transitions_per_env, str(self.device))
        env_index = torch.arange(num_envs, device=self.device)
        self._noise = NoiseSource(self._actor.noise(), seed=self.seed, env_index=env_index)
        self._fresh_state = self._actor.initial_state(num_envs, self.device)
        self._state = self._fresh_state

    def act(self, obs: Observations, critic_obs: Observations | None = None) -> Any:
        """Return sampled actions for observations [N, …]; a vector is cut in the order of the policy's components."""
        storage = self._ready()
        with _outside_autograd():
            self._obs = self._components(obs, critic_obs)
            if isinstance(self.policy, RoutedPolicy):
                self.policy.flat = not isinstance(obs, Mapping)
            count = len(next(iter(self._obs.values())))
            if count != storage.num_envs:
                raise ValueError(f"init_storage was told {storage.num_envs} envs, the observations are of {count}")
            self._healthy = finite_rows(self._obs, torch.ones(count, dtype=torch.bool, device=self.device))
            self._obs = self._cut_off(self._obs, self._healthy)
            if not len(storage):
                self._initial_state = self._state
            self._acted = self._actor.act(self._obs, self._state, self._noise.at(self._step))
            self._note(obs, critic_obs, self._acted)
            return tree.copy(self._acted.actions)

    def process_env_step(
        self,
        rewards: Tensor,
        dones: Tensor,
        infos: Mapping[str, Any] | None = None,
        next_obs: Observations | None = None,
        next_critic_obs: Observations | None = None,
    ) -> None:
        """Store the step and forget the memory of envs whose episode ended.

        rewards [N], dones [N] of any dtype. infos: 'time_outs' [N], or Gym's 'TimeLimit.truncated' [N] where there
        is none, is true where the clock ended an episode; what was seen then is used where infos have it (see
        `loop.py`), else V(s_t) stands for it.
        next_obs and next_critic_obs are accepted as in older codes; they show the next episode and are not needed.
        """
        if self._acted is None:
            raise RuntimeError("process_env_step comes after act")
        storage, acted, infos = self._ready(), self._acted, infos or {}
        with _outside_autograd():
            reward = torch.as_tensor(rewards, dtype=torch.float32, device=self.device).reshape(-1)
            done = as_dones(dones).to(self.device)
            given = infos.get("time_outs")
            late = (split_done(done, infos)[1] if given is None else as_dones(given)).to(self.device)
            for what, value in (("rewards", reward), ("dones", done), ("infos['time_outs']", late)):
                if len(value) != storage.num_envs:
                    raise ValueError(f"{what} has {len(value)} entries for {storage.num_envs} envs")
            truncated = late & done
            final_obs = final_observations(infos, self.policy, self._obs)
            self._tell(truncated, final_obs)
            sound = torch.isfinite(reward)
            transition = Transition(
                obs=self._obs,
                act=acted.actions,
                rew=torch.where(sound, reward, 0.0),
                terminated=done & ~truncated,
                truncated=truncated,
                valid=sound & self._healthy,
                info={},
                policy=acted.columns,
                next_obs=self._obs,
                final_obs=final_obs,
                next_state=acted.state,
            )
            storage.add(transition)
            self._state = where_env(done, self._fresh_state, acted.state)
        model = self._model_with("reset")
        if model is not None:
            model.reset(dones)
        self._step += 1
        self._acted = None
        self.transition.clear()

    def collect_transition_from_dataset(self, transition: RecordedStep, infos: Mapping[str, Any] | None = None) -> None:
        """Store a recorded step, in place of `act` and `process_env_step`; what was done is what is learned.

        transition: as `RolloutDataset.get_transition_batch` gives it, with these infos. A `Distill` term learns the
        recorded actions, whoever its teacher is.
        """
        infos = infos or {}
        term = tell_teacher(self.learner, transition.action)
        obs = transition.observation
        self.act(obs, seen_by_critic(obs, transition.privileged_observation))
        assert self._acted is not None
        with _outside_autograd():
            self._acted = with_recorded_action(self.learner, term, self._acted, transition.action, self.device)
            if infos.get("valid") is not None:
                self._healthy = self._healthy & as_dones(infos["valid"]).to(self.device)
        self.process_env_step(transition.reward, transition.done, infos)

    def compute_returns(self, last_critic_obs: Observations, last_obs: Observations | None = None) -> None:
        """Work out returns and advantages; `last_obs` is wanted where terms read what only the actor sees.

        The memory stays where it is: valuing the last observation is not a step.
        """
        storage = self._ready()
        if not storage.full:
            raise RuntimeError(
                f"the rollout has {len(storage)} of {storage.num_steps * storage.num_envs} samples; "
                "compute_returns comes when it is full"
            )
        with _outside_autograd():
            last = named(last_critic_obs, self.policy.critic_inputs, self.device)
            if last_obs is not None:
                last |= named(last_obs, self.policy.actor_inputs, self.device)
            missing = [name for name in self.policy.obs_spec if name not in last]
            if missing and len(self.learner.terms):
                raise ValueError(f"terms may read {missing} of what followed; call compute_returns(critic_obs, obs)")
            everybody = torch.ones(storage.num_envs, dtype=torch.bool, device=self.device)
            last = self._cut_off(last, finite_rows(last, everybody))
            self._prepared = self.learner.prepare(
                storage, initial_state=self._initial_state, last_obs=last, last_state=self._state
            )

    def update(self, iteration: int | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Learn from the rollout, and return (losses, stats): the means over all minibatches, as 0-d tensors.

        `iteration` decides the order of samples; updates are counted where it is not given.
        """
        if self._prepared is None:
            raise RuntimeError("update comes after compute_returns")
        storage, prepared = self._ready(), self._prepared
        self._iteration = self._iteration if iteration is None else int(iteration)
        with torch.inference_mode(False):
            numbers = self.learner.update(prepared, order_generator(self.seed, self._iteration, self.device))
            self.learner.update_normalization(storage.data)
            model = self._model_with("clip_std")
            if model is not None:
                model.clip_std(min=self.learner.config.clip_min_std)
        self._iteration += 1
        self._prepared = None
        storage.clear()
        return split_numbers(numbers)

    def compute_losses(self, minibatch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
        """Return (losses, inter_vars, stats) of a minibatch, as `striderl.algorithms.PPO.compute_losses` does.

        A loss is (weight, tensor), or a tensor, whose weight is the attribute `name + "_coef"` of this object, else 1.
        """
        losses, inter_vars, stats = core.PPO.compute_losses(self.learner, minibatch)
        return dict(losses), inter_vars, stats

    # -- modes and saving ----------------------------------------------------------------------------------------------

    def train_mode(self) -> None:
        """Let everything that differs between training and playing train."""
        self.policy.train()
        self.actor_critic.train()

    def eval_mode(self) -> None:
        """Let everything that differs between training and playing play."""
        self.policy.eval()
        self.actor_critic.eval()

    def test_mode(self) -> None:
        """Do the same as `eval_mode`."""
        self.eval_mode()

    @property
    def learning_rate(self) -> float:
        """The present learning rate."""
        return float(self.learner.updater.groups["policy"].learning_rate)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the weights, of the optimiser and all else that is learned, and of where the loop is."""
        state = self.learner.state_dict()
        weights = state.pop("policy")
        loop = {"step": self._step, "iteration": self._iteration, "state": tree.copy(self._state)}
        return {"model_state_dict": weights, "optimizer_state_dict": state, "loop_state_dict": loop}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with what was saved; a checkpoint with weights alone leaves the rest as it is."""
        if "model_state_dict" not in state_dict:
            raise KeyError(unknown("entry", "model_state_dict", state_dict, where="the checkpoint"))
        others = state_dict.get("optimizer_state_dict")
        own = self.learner.state_dict()
        self.learner.load_state_dict({**own, **(others or {}), "policy": state_dict["model_state_dict"]})
        loop = state_dict.get("loop_state_dict")
        if loop is not None:
            self._step, self._iteration = int(loop["step"]), int(loop["iteration"])
            self._state = {name: value.to(self.device).clone() for name, value in loop["state"].items()}

    # -- inside --------------------------------------------------------------------------------------------------------

    def _model_with(self, method: str) -> StatefulPolicy | None:
        """Return the model where its class overrides a method; what the method does is done here otherwise."""
        model = self.actor_critic
        return model if isinstance(model, StatefulPolicy) and overridden(model, StatefulPolicy, method) else None

    def _ready(self) -> LoopStorage:
        if self.storage is None:
            raise RuntimeError("call init_storage(num_envs, num_transitions_per_env, …) first")
        return self.storage

    def _components(self, obs: Observations, critic_obs: Observations | None) -> dict[str, Tensor]:
        """Return all components that the storage keeps, from what actor and critic are given."""
        seen = critic_view(self.policy, obs, critic_obs)
        found = named(seen, self.policy.critic_inputs, self.device)
        found |= named(obs, self.policy.actor_inputs, self.device)
        missing = [name for name in self.policy.obs_spec if name not in found]
        if missing:
            raise KeyError(f"the observations lack {missing}; give them by name, as a dict of components")
        return {name: found[name].to(self.device) for name in self.policy.obs_spec}

    def _cut_off(self, obs: dict[str, Tensor], healthy: Tensor) -> dict[str, Tensor]:
        """Return observations with zeros for bad ones; an episode that turned bad was cut by the step before.

        So that step is valued with V(s_t), as a collector would do, and not with that of zeros or of NaN.
        """
        storage = self._ready()
        before = len(storage) // storage.num_envs - 1
        if before >= 0:
            storage.data["truncated"][before].logical_or_(~healthy & ~storage.data["terminated"][before])
        self._state = where_env(healthy, self._state, self._fresh_state)
        return dict(where_env(healthy, obs, tree.map(torch.zeros_like, obs)))

    def _note(self, obs: Observations, critic_obs: Observations | None, acted: ActorOutput) -> None:
        """Fill the record in, under the old names."""
        record, dist = self.transition, acted.columns["dist"]
        value = acted.columns["value"]
        record.observations, record.critic_observations = obs, obs if critic_obs is None else critic_obs  # type: ignore[assignment]
        record.actions, record.actions_log_prob = acted.actions, acted.columns["log_prob"]
        record.values = value.unsqueeze(-1) if value.dim() == 1 else value
        record.action_mean, record.action_sigma = dist.get("mean"), dist.get("std")
        record.hidden_states = _as_tuples(self.policy, {name: self._state[name] for name in self.policy.state_spec()})

    def _tell(self, truncated: Tensor, final_obs: dict[str, Tensor] | None) -> None:
        """Say once that time-outs are valued with V(s_t); a GPU is not asked whether there was one."""
        if self._told or final_obs is not None or (truncated.is_cpu and not bool(truncated.any())):
            return
        self._told = True
        _log.warning(
            "infos have no final observation for the critic: a step that the time limit ended is valued with V(s_t), "
            "not V(final_obs)"
        )


_SETTINGS = frozenset(field.name for field in fields(PPOConfig))
_PARTS = frozenset({"policy", "actor_critic", "learner", "device", "seed"})


class _Learner(core.PPO):
    """PPO whose losses are those of the object around it, which a user may have subclassed."""

    def __init__(self, owner: PPO, policy: Policy, config: PPOConfig, terms: Sequence[Term]) -> None:
        super().__init__(policy, config, terms=terms)
        self._owner = owner

    def compute_losses(self, minibatch: dict[str, Any]) -> tuple[Losses, dict[str, Any], dict[str, Tensor]]:
        """Return those of the owner, with weights."""
        if not overridden(self._owner, PPO, "compute_losses"):
            return super().compute_losses(minibatch)
        losses, inter_vars, stats = self._owner.compute_losses(minibatch)
        return {name: self._weighted(name, loss) for name, loss in losses.items()}, inter_vars, stats

    def _weighted(self, name: str, loss: Any) -> tuple[float, Tensor]:
        if isinstance(loss, Tensor):
            coefficient = f"{name}_coef"
            return float(getattr(self._owner, coefficient, getattr(self.config, coefficient, 1.0))), loss
        weight, value = loss
        return weight, value


class _ReturnedActions:
    """Executes what a model's own `act` returned, in the place of a sample of its distribution."""

    name = "returned"

    def __init__(self, policy: RoutedPolicy) -> None:
        self._policy = policy

    def columns(self) -> Columns:
        """Return nothing."""
        return {}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing: the model samples."""
        return {}

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return nothing."""
        return {}

    def __call__(
        self, obs: Any, state: Mapping[str, Tensor], actions: Any, distribution: Distribution[Any], noise: Any
    ) -> Played:
        """Return the model's actions."""
        given = self._policy.sampled
        executed = tree.map(lambda own, like: torch.as_tensor(own).detach().to(like), given, actions)
        return Played(executed, {}, {})


def _actor_of(learner: core.PPO) -> PolicyActor:
    """Return the actor of an algorithm; it executes what a model's own `act` returns, where there is one."""
    policy = learner.policy
    if not isinstance(policy, RoutedPolicy) or not overridden(policy.model, StatefulPolicy, "act"):
        return learner.actor()
    return PolicyActor(policy, (_ReturnedActions(policy), *learner.terms.acting()))


@contextmanager
def _outside_autograd() -> Iterator[None]:
    """Make ordinary tensors without gradients, also in a loop that is in inference mode: the update goes backward."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _pure(given: Any) -> Policy:
    policy = policy_of(given) if isinstance(given, StatefulPolicy) else given
    if not isinstance(policy, Policy):
        raise TypeError(
            f"PPO wants a Policy, or a model such as ActorCritic that has one, found {type(given).__name__}"
        )
    return policy


def _as_tuples(policy: Policy, state: Mapping[str, Tensor]) -> Any:
    """Return the memory as older loops know it; one that does not fit these tuples is returned as it is."""
    if not state:
        return None
    try:
        return to_hidden_states(policy, state)
    except ValueError:
        return state


def _action_size(policy: Policy) -> int | None:
    spec = policy.action_spec.tensor
    return None if isinstance(spec, dict) else spec.size
