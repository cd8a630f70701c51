"""`Agent`: numpy in, numpy out, around any policy.

    agent = Agent(policy)                             or Agent.load("runs/cartpole/2026-01-31_12-00-00")
    action = agent.predict({"joints": joints})        greedy, for evaluation
    action = agent.sample({"joints": joints})         exploring, for training
    agent.reset(dones)                                reset the state where an episode ended; agent.reset() resets all

One env or many: observations without a batch dimension give an action without one. Real-valued actions are clipped to
the bounds of their spec: they are for an env, not for a storage. The agent keeps the state of a recurrent policy;
apart from that it is a pure function of observation, seed and the number of calls to `sample`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.collect.group import NoiseSource
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec
from striderl.export.array_layout import read_arrays, require_dones
from striderl.networks.distributions.base import Distribution
from striderl.networks.heads.base import ActionClip
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.facade.routed import policy_of
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.mutex.facade import StatefulMutex
from striderl.policies.mutex.policy import MutexPolicy
from striderl.policies.policy import Policy


class Agent:
    """Run a policy on arrays; see the module for its three calls."""

    def __init__(
        self,
        policy: Policy | ActorPolicy | MutexPolicy | StatefulPolicy | StatefulMutex,
        *,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        """Wrap a policy and move it to the device; it is not copied, so later updates take effect at once.

        Of a stateful model (`ActorCritic`, a mutex) the pure policy is used; the model's own recurrent state is not
        touched.

        `seed` is for `sample`: in call k, env i gets the noise that a collector with this seed gives it in step k.
        """
        self.device = torch.device(device)
        self.policy = _pure(policy).to(self.device)
        self.seed = seed
        self.num_samples = 0
        """How often `sample` was called."""
        self.run: Path | None = None
        """The folder of the run that the policy comes from, where it comes from one."""
        self._clip = ActionClip(self.policy.action_spec).to(self.device)
        self._noise = _noise_of(self.policy)
        masks = () if isinstance(self.policy, MutexPolicy) else self.policy.head.mask_components
        self._required = (*self.policy.actor_inputs, *masks)
        self._num_envs: int | None = None
        self._state: dict[str, Tensor] = {}
        self._source = NoiseSource({}, seed=seed, env_index=torch.arange(0))

    @classmethod
    def load(
        cls,
        run: str | Path,
        which: str | int = "best",
        *,
        device: torch.device | str = "cpu",
        seed: int = 0,
        trust: bool = False,
    ) -> Agent:
        """Load the policy of a run's folder: the 'best', the 'last', or that of a number of env steps.

        trust: whether modules of the run's own algorithm or network are imported from a folder that was made elsewhere.
        """
        from striderl.training.experiment.loading import (
            load_run,  # imports all algorithms; an agent alone needs none
        )

        loaded = load_run(run, which, device=str(device), trust=trust, builds_env=False)
        agent = cls(loaded.policy, device=device, seed=seed)
        agent.run = loaded.folder.path
        return agent

    def save(self, folder: str | Path) -> None:
        """Copy the agent's run to a folder that does not exist yet: it can be loaded, resumed, evaluated, exported.

        Pictures and videos are not copied. An agent that was made around a policy has no run: save that with
        `torch.save(policy.state_dict(), …)`, or export it.
        """
        from striderl.training.experiment.run_folder import copy_run

        if self.run is None:
            raise ValueError("this agent was not loaded from a run, so there is nothing to copy; export its policy")
        copy_run(self.run, folder)

    def predict(self, obs: Any) -> Any:
        """Return the greedy actions for a dict of arrays, or a flat array of all components in a row, clipped."""
        tensors, single = self._read(obs)
        like = torch.zeros(self._envs(), device=self.device)
        distribution = self._act(tensors, self.policy.settled(like))
        return _as_arrays(self._clip(distribution.mode()), single)

    def sample(self, obs: Any) -> Any:
        """Return exploring actions, drawn from the policy's distribution and clipped to their bounds."""
        tensors, single = self._read(obs)
        noise = self._source.at(self.num_samples)
        self.num_samples += 1
        distribution = self._act(tensors, self.policy.decide(noise))
        draw: Any = noise.get("action")
        if draw is None:
            draw = {name.removeprefix("action/"): value for name, value in noise.items() if name.startswith("action/")}
        with torch.no_grad():
            actions = self._clip(distribution.sample(draw))
        return _as_arrays(actions, single)

    def reset(self, dones: Any = None) -> None:
        """Reset the recurrent state where `dones` [N], of any dtype, is not zero; without it, of all envs.

        Of a policy with memory, the number of envs may change only after a reset of all.
        """
        if dones is None:
            self._num_envs, self._state = None, {}
        elif self._num_envs is not None:
            done = torch.from_numpy(require_dones(dones, self._num_envs)).to(self.device)
            self._state = {
                name: torch.where(done.view(-1, *[1] * (value.dim() - 1)), torch.zeros_like(value), value)
                for name, value in self._state.items()
            }

    # -- inside --------------------------------------------------------------------------------------------------------

    def _read(self, obs: Any) -> tuple[dict[str, Tensor], bool]:
        parts = {name.partition("/")[0] for name in self.policy.obs_spec}
        if isinstance(obs, tuple) and parts == {str(place) for place in range(len(obs))}:  # a Tuple space
            obs = {str(place): part for place, part in enumerate(obs)}
        read = read_arrays(obs, self._spec_for(obs), required=self._required, where="the observation")
        if self._num_envs is None or (read.num_envs != self._num_envs and not self._state):
            self._begin(read.num_envs)
        elif read.num_envs != self._num_envs:
            raise ValueError(
                f"the agent was playing {self._num_envs} envs and is given {read.num_envs}, and its policy remembers "
                "each; call reset() in between"
            )
        return {name: torch.from_numpy(value).to(self.device) for name, value in read.arrays.items()}, read.single

    def _spec_for(self, obs: Any) -> ObsSpec:
        """Return the spec of an observation: named, or one array in the actor's or the env's layout."""
        if isinstance(obs, Mapping):
            return self.policy.obs_spec
        shape, seen = np.asarray(obs).shape, self.policy.actor_inputs
        only = [part.shape for part in seen.values()] if len(seen) == 1 else []
        fits = shape[-1:] == (seen.size,) or any(shape[len(shape) - len(part) :] == part for part in only)
        whole = shape[-1:] == (self.policy.obs_spec.size,)
        return self.policy.obs_spec if whole and not fits else seen  # the error for neither names the actor's layout

    def _begin(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._state = self.policy.initial_state(num_envs, self.device)
        env_index = torch.arange(num_envs, device=self.device)
        self._source = NoiseSource(self._noise, seed=self.seed, env_index=env_index)

    def _envs(self) -> int:
        assert self._num_envs is not None
        return self._num_envs

    def _act(self, obs: dict[str, Tensor], stage_draws: dict[str, Tensor]) -> Distribution[Any]:
        with torch.no_grad(), _evaluating(self.policy):
            distribution, self._state, _ = self.policy.act(obs, self._state, stage_draws)
        return distribution


def _pure(given: Any) -> Policy | ActorPolicy | MutexPolicy:
    """Return the pure policy of a policy or model."""
    policy = given.policy if isinstance(given, StatefulMutex) else given
    policy = policy_of(given, deterministic=True) if isinstance(given, StatefulPolicy) else policy
    if not isinstance(policy, (Policy, ActorPolicy, MutexPolicy)):
        raise TypeError(
            f"Agent wants a Policy, a MutexPolicy, an ActorPolicy, or a model that has one as its attribute 'policy' "
            f"(ActorCritic and the other classes of striderl.policies), found {type(given).__name__}"
        )
    if isinstance(policy, MutexPolicy) and policy.config.selection is None:
        raise ValueError(
            "this mutex is told in every call which policy acts, which an Agent cannot do; use one that chooses by an "
            "observation component (ActorCriticFieldMutex, ActorCriticClimbMutex), or act_inference(obs, selection)"
        )
    return policy


def _noise_of(policy: Policy | ActorPolicy | MutexPolicy) -> Mapping[str, NoiseSpec]:
    """Return the noise specs of exploration per env and step."""
    if isinstance(policy, MutexPolicy):
        return {**policy.noise(), "action": NoiseSpec(shape=policy.action_spec.shape, kind="normal")}
    spec = policy.head.noise_spec()
    parts = {"action": spec} if isinstance(spec, NoiseSpec) else {f"action/{name}": part for name, part in spec.items()}
    return {**policy.noise(), **parts}


@contextmanager
def _evaluating(policy: Policy | ActorPolicy | MutexPolicy) -> Iterator[None]:
    """Run in eval mode, in which no normaliser is updated, and restore every module's mode."""
    training = [module for module in policy.modules() if module.training]
    policy.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _as_arrays(actions: Any, single: bool) -> Any:
    """Return arrays in place of tensors, without the batch dimension for a single env."""
    if isinstance(actions, Tensor):
        array = actions.cpu().numpy()
        return array[0] if single else array
    return {name: _as_arrays(value, single) for name, value in actions.items()}
