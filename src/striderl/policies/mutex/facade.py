"""`StatefulMutex`: a mutex that keeps the state of its last call, for hand-written loops.

    model.act_inference(obs) ─▶ actions [N, A]        model.reset(dones) resets finished envs

Observations are flat [N, num_obs] tensors in the order of the components, or dicts of components. Nothing is learned
here, so no graph is kept. `model.policy` is the pure `MutexPolicy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

from striderl.data.checked_fields import refuse_overrides
from striderl.data.noise import NoiseSpec, draw_all
from striderl.networks.distributions.base import Distribution
from striderl.policies.facade.inputs import Observations, as_dones, lead_of, named
from striderl.policies.facade.memory import actor_hidden_states
from striderl.policies.mutex.policy import MutexPolicy
from striderl.policies.mutex.settings import one_hot
from striderl.policies.stage import inner

if TYPE_CHECKING:
    from typing import Self


REFUSED: Mapping[str, str] = dict.fromkeys(
    (
        "act", "act_inference", "forward", "__call__", "get_policy_selection", "recover_last_action", "device",
        "override_cmd_vel", "distribution", "action_mean", "action_std", "entropy", "get_actions_log_prob",
        "parameters", "named_parameters", "state_dict", "load_state_dict", "is_recurrent",
    ),
    "agents, teachers and savers run model.policy, a MutexPolicy; give it another selection, or wrap the model",
)  # fmt: skip
"""Methods that a subclass may not override."""


class StatefulMutex:
    """A thin wrapper around `MutexPolicy` that keeps memory, drawn commands and the last distribution."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, REFUSED)

    def __init__(self, policy: MutexPolicy, *, seed: int | None = None) -> None:
        """Wrap a mutex; without a seed, torch's global generator gives one, so `torch.manual_seed` controls it."""
        self.policy = policy
        self.state: dict[str, Tensor] = {}
        self._memo: dict[str, Tensor] | None = None
        self._seed = int(torch.randint(2**62, ())) if seed is None else seed
        self._draws = 0
        self._distribution: Distribution[Any] | None = None
        self._aux: dict[str, Tensor] = {}

    # -- acting --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act_inference(self, observations: Observations, policy_selection: Tensor | None = None) -> Tensor:
        """Return the deterministic actions of one step.

        `policy_selection`, an index [N] or one-hot [N, K], replaces the selection by the observation.
        """
        self._act(observations, policy_selection)
        actions: Tensor = self.distribution.mode()
        return actions

    @torch.no_grad()
    def act(self, observations: Observations, policy_selection: Tensor | None = None) -> Tensor:
        """Return sampled actions of one step; they are deterministic unless all sub-policies are Gaussian."""
        self._act(observations, policy_selection)
        mode = self.distribution.mode()
        spec = self.distribution.noise_spec()
        assert isinstance(spec, NoiseSpec)
        actions: Tensor = self.distribution.sample(self._draw({"action": spec}, len(mode))["action"])
        return actions

    forward = act_inference
    __call__ = act_inference

    @torch.no_grad()
    def get_policy_selection(self, observations: Observations) -> Tensor:
        """Return which policy acts, one-hot [N, K]; memory stays."""
        if self.policy.config.selection is None:
            raise ValueError("this mutex does not choose: the policy_selection is given in every call")
        obs = named(observations, self.policy.obs_spec, self.device)
        lead_of(obs, self.policy.obs_spec)
        return self.policy.config.selection.choose(obs, self.policy.num_policies)

    def _act(self, observations: Observations, policy_selection: Tensor | None) -> None:
        obs = named(observations, self.policy.obs_spec, self.device)
        lead = lead_of(obs, self.policy.obs_spec)
        self.state = self.state or self.policy.initial_state(lead[0])
        if len(lead) != 1 or len(self.state["recent"]) != lead[0]:
            raise ValueError(
                f"a mutex takes one step [N, …] at a time and remembers {len(self.state['recent'])} envs, found "
                f"leading shape {lead}; call reset() in between, or use the pure policy for sequences"
            )
        if self._memo is None:  # only envs that begin take new commands, so numbers are drawn after resets alone
            self._memo = self.policy.decide(self._draw(self.policy.noise(), lead[0]))
        chosen = self._one_hot(policy_selection)
        self._distribution, self.state, self._aux = self.policy.act(obs, self.state, self._memo, selection=chosen)

    def _one_hot(self, selection: Tensor | None) -> Tensor | None:
        if selection is None or selection.dim() == 2:
            return selection
        return one_hot(selection.long(), self.policy.num_policies)

    # -- what a sub-policy is shown ------------------------------------------------------------------------------------

    @torch.no_grad()
    def recover_last_action(self, observations: Observations, policy_selection: Tensor) -> Any:
        """Return the observations with the last action in the units of the policy chosen in each env."""
        return self._shown(observations, policy_selection, self.policy.inputs.with_last_action)

    @torch.no_grad()
    def override_cmd_vel(self, observations: Observations, policy_selection: Tensor) -> Any:
        """Return the observations with the velocity command of the policy chosen in each env."""
        if self.policy.inputs.draws and "command" not in self.state:
            raise RuntimeError("velocity commands are drawn at the first step: call act first")

        def shown(index: int, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            num_envs = len(next(iter(obs.values())))
            command = (
                self.state["command"] if self.policy.inputs.draws else self.policy.inputs.fixed.expand(num_envs, -1)
            )
            return self.policy.inputs.with_command(index, obs, command)

        return self._shown(observations, policy_selection, shown)

    def _shown(
        self,
        observations: Observations,
        policy_selection: Tensor,
        show: Callable[[int, Mapping[str, Tensor]], dict[str, Tensor]],
    ) -> Any:
        """Return what each env's policy is shown, as a dict or flat as it was given."""
        spec = self.policy.obs_spec
        obs = named(observations, spec, self.device)
        lead_of(obs, spec)
        chosen = self._one_hot(policy_selection)
        assert chosen is not None
        result = dict(obs)
        for index in range(self.policy.num_policies):
            for name, value in show(index, obs).items():
                here = chosen[:, index].bool().view(-1, *[1] * (value.dim() - 1))
                result[name] = torch.where(here, value, result[name])
        return result if isinstance(observations, Mapping) else spec.flatten(result)

    # -- the last call -------------------------------------------------------------------------------------------------

    @property
    def distribution(self) -> Distribution[Any]:
        """The distribution of the last call."""
        if self._distribution is None:
            raise RuntimeError("there is no distribution yet: call act first")
        return self._distribution

    @property
    def action_mean(self) -> Tensor:
        """The deterministic action of the last call."""
        mean: Tensor = self.distribution.mode()
        return mean

    @property
    def action_std(self) -> Tensor:
        """The standard deviation of the last call; zero unless all sub-policies are Gaussian."""
        params = self.distribution.params()
        return params["std"] if "std" in params else torch.zeros_like(params["value"])

    @property
    def entropy(self) -> Tensor:
        """The entropy [N] of the last call."""
        return self.distribution.entropy()

    def get_actions_log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-probability [N] of actions under the last distribution."""
        return self.distribution.log_prob(actions)

    @property
    def policy_selection(self) -> Tensor:
        """Which policy was chosen in the last call, one-hot [N, K]."""
        return self._seen("selection")

    @property
    def cmd_vel_current(self) -> Tensor:
        """The velocity commands [N, K] of the last call; those of policies without a command are meaningless."""
        return self._seen("command")

    def _seen(self, name: str) -> Tensor:
        if name not in self._aux:
            raise RuntimeError("nothing was chosen yet: call act first")
        return self._aux[name]

    # -- memory --------------------------------------------------------------------------------------------------------

    @property
    def is_recurrent(self) -> bool:
        """Whether any sub-policy has a memory."""
        return any(name.startswith("sub_") for name in self.policy.state_spec())

    def get_hidden_states(self) -> Any:
        """Return the memory of every sub-policy's actor as tuples of [L, N, H], None for one without a memory.

        None as a whole without any memory or before a step.
        """
        if not self.is_recurrent or not self.state:
            return None
        return tuple(
            actor_hidden_states(policy, inner(self.state, f"sub_{index}")) if policy.actor.state_spec() else None
            for index, policy in enumerate(self.policy.policies())
        )

    def reset(self, dones: Any = None) -> None:
        """Reset the envs where `dones` [N], a tensor, an array or a list, is not zero; all without it.

        They lose the memory of all sub-policies and the smoothing, and draw new velocity commands at their next step.
        """
        self._memo = None
        if dones is None:
            self.state = {}
            return
        finished = as_dones(dones)
        for name, value in self.state.items():
            if len(finished) != len(value):
                raise ValueError(f"dones has {len(finished)} entries for a memory of {len(value)} envs")
            mask = finished.to(value.device).view(-1, *[1] * (value.dim() - 1))
            self.state[name] = torch.where(mask, torch.zeros_like(value), value)

    def resample_cmd_vel_current(self, dones: Any = None) -> None:
        """Draw new velocity commands now, for the envs where `dones` is not zero or for all; all else stays."""
        if "command" not in self.state:
            return
        old = self.state["command"]
        new = self.policy.decide(self._draw(self.policy.noise(), len(old)))["command"]
        finished = torch.ones(len(old), dtype=torch.bool) if dones is None else as_dones(dones)
        self.state["command"] = torch.where(finished.to(old.device).unsqueeze(-1), new, old)

    def _draw(self, specs: Mapping[str, NoiseSpec], num_envs: int) -> dict[str, Tensor]:
        """Draw fresh numbers; the same seed and the same calls give the same numbers."""
        self._draws += 1
        rows = torch.arange(num_envs, device=self.device)
        found = draw_all(specs, seed=self._seed, iteration=self._draws, env_index=rows, num_steps=1)
        return {name: value[0] for name, value in found.items()}

    # -- what a mutex does not have ------------------------------------------------------------------------------------

    def evaluate(self, *_given: Any, **_named: Any) -> NoReturn:
        """Raise: there is no critic."""
        raise _refused("evaluate", "it has no critic; use StatefulPolicy(model.submodules[i]).evaluate")

    def evaluate_actions(self, *_given: Any, **_named: Any) -> NoReturn:
        """Raise: nothing is trained here."""
        raise _refused(
            "evaluate_actions",
            "it is not trained and has no critic; use act, then get_actions_log_prob and entropy",
        )

    def get_estimated_state(self, *_given: Any, **_named: Any) -> NoReturn:
        """Raise: every sub-policy has its own."""
        raise _refused(
            "get_estimated_state", "each sub-policy estimates for itself; use StatefulPolicy(model.submodules[i])"
        )

    def get_encoder_latent(self, *_given: Any, **_named: Any) -> NoReturn:
        """Raise: every sub-policy has its own."""
        raise _refused(
            "get_encoder_latent", "each sub-policy encodes for itself; use StatefulPolicy(model.submodules[i])"
        )

    def embed_visual_latent(self, *_given: Any, **_named: Any) -> NoReturn:
        """Raise: every sub-policy has its own."""
        raise _refused(
            "embed_visual_latent", "each sub-policy encodes for itself; use StatefulPolicy(model.submodules[i])"
        )

    def act_with_embedded_latent(self, *_given: Any, **_named: Any) -> NoReturn:
        """Raise: sub-policies read components, not latents of another."""
        raise _refused("act_with_embedded_latent", "sub-policies read components; use act or act_inference")

    def clip_std(
        self, min: float | Sequence[float] | None = None, max: float | Sequence[float] | None = None
    ) -> NoReturn:
        """Raise: every sub-policy has its own."""
        raise _refused(
            "clip_std", "the standard deviation belongs to the sub-policies; use submodules[i].head.clip_std"
        )

    # -- like a module -------------------------------------------------------------------------------------------------

    @property
    def submodules(self) -> nn.ModuleList:
        """The sub-policies."""
        return self.policy.sub_policies

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.policy.action_ratio.device

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters of all sub-policies."""
        return self.policy.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return the parameters of all sub-policies with their names."""
        return self.policy.named_parameters()

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of the pure policy."""
        return self.policy.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load a state dict of the pure policy."""
        return self.policy.load_state_dict(state_dict, strict=strict)

    def train(self, mode: bool = True) -> Self:
        """Set the sub-policies to training mode."""
        self.policy.train(mode)
        return self

    def eval(self) -> Self:
        """Set the sub-policies to evaluation mode."""
        return self.train(False)

    def to(self, device: torch.device | str) -> Self:
        """Move the sub-policies and their memory to a device."""
        self.policy.to(device)
        self.state = {name: value.to(device) for name, value in self.state.items()}
        self._memo = None if self._memo is None else {name: value.to(device) for name, value in self._memo.items()}
        return self


def _refused(method: str, reason: str) -> TypeError:
    return TypeError(f"{method} has no meaning for a mutex: {reason}")
