"""`StatefulPolicy`: a policy that keeps the state of its last call, for hand-written loops.

    model.act(obs) ─▶ actions            keeps distribution, memory and decisions of the step
    model.get_actions_log_prob(actions), model.action_mean, model.action_std, model.entropy      of that distribution
    model.evaluate(critic_obs) ─▶ values [.., 1]
    model.reset(dones)                   resets the memory of finished envs

Observations are flat [.., num_obs] tensors in the order of the policy's components, or dicts of components. A call is a
step, and advances the memory, unless `hidden_states` are given: then it is a minibatch, either of padded trajectories
(`masks`, results come back unpadded) or of whole columns with `resets` inside. `model.policy` is the pure policy, which
the algorithms of this library use.

A subclass may override `act` and `evaluate`: algorithms then run through them (routed.py). Modules and parameters that
are set as attributes become parts of `model.policy`: they are learned, saved and moved with it. Overrides and
attributes that would have no effect raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from striderl.data.checked_fields import refuse_overrides
from striderl.networks.distributions.base import Distribution
from striderl.networks.heads.gaussian import GaussianHead, SquashedGaussianHead
from striderl.ops.trajectories import unpad_trajectories
from striderl.policies.facade import memory as tuples
from striderl.policies.facade.inputs import (
    Observations,
    act_embedded,
    as_mask,
    check_truths,
    critic_view,
    embed,
    embedded_spec,
    encoder_latent,
    estimates,
    lead_of,
    named,
)
from striderl.policies.facade.memory import FacadeMemory
from striderl.policies.heads import ModeHead
from striderl.policies.policy import Policy

if TYPE_CHECKING:
    from typing import Self

    from striderl.policies.transfer.load import TransferReport


_LAST_CALL = "algorithms read the distribution that `act` leaves behind; override act, or give the policy another head"
_WEIGHTS = (
    "optimisers and checkpoints hold model.policy; set modules and parameters as attributes, they become part of it"
)
_MEMORY = "the memory is that of the policy's stages; use another stage, or override act and evaluate"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("distribution", "action_mean", "action_std", "entropy", "get_actions_log_prob"), _LAST_CALL),
    **dict.fromkeys(("update_distribution", "__call__"), "nothing calls it; override act, evaluate or forward"),
    **dict.fromkeys(("parameters", "named_parameters", "state_dict", "load_state_dict"), _WEIGHTS),
    **dict.fromkeys(("is_recurrent", "get_hidden_states", "set_hidden_states", "detach_hidden_states"), _MEMORY),
    "device": "it is where the policy's parameters are; move the model with to(device)",
}
"""Methods that a subclass may not override, with the reason and the alternative."""
_OLD_PARTS = ("std", "log_std", "memory_a", "memory_c")
"""Parts of rsl_rl's classes that have another place here."""


class StatefulPolicy:
    """A thin wrapper around a pure policy that keeps the outputs of the last call."""

    policy: Policy

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, REFUSED)

    def __init__(self, policy: Policy, *, seed: int | None = None, companions: Sequence[nn.Module] = ()) -> None:
        """Wrap a policy; without a seed, torch's global generator gives one, so `torch.manual_seed` controls it.

        Companions are moved and set to training along with the policy, and are no part of it otherwise.
        """
        if policy.trunk.state_spec() or policy.trunk.stage_draw_spec():
            raise ValueError(
                "act and evaluate would each advance the trunk's memory; give actor and critic stages of their own, "
                "or use the pure policy, which runs both at once"
            )
        self._companions = tuple(companions)
        self.policy = policy
        self.stage_draws: dict[str, Tensor] = {}
        self._memory = FacadeMemory(policy, int(torch.randint(2**62, ())) if seed is None else seed)
        self._distribution: Distribution[Any] | None = None
        self._aux: dict[str, Tensor] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; modules and parameters become parts of the policy, under the same name."""
        policy = self.__dict__.get("policy")
        if name == "policy" and policy is not None:
            raise AttributeError(
                f"{type(self).__name__}.policy is built already; algorithms hold it. Build another model"
            )
        companion = any(value is each for each in self.__dict__.get("_companions", ()))
        learned = isinstance(value, (nn.Module, nn.Parameter)) and name != "policy" and not companion
        if policy is None:
            if learned:
                raise AttributeError(
                    f"call {type(self).__name__}'s super().__init__() before setting the module {name!r}"
                )
        elif name in policy._modules and (not learned or policy._modules[name] is not self.__dict__.get(name)):
            raise AttributeError(
                f"{name!r} is a part of model.policy, and setting it on the model would have no effect; override act "
                "or evaluate, or build the model from another policy"
            )
        elif name in _OLD_PARTS:
            raise AttributeError(
                f"{type(self).__name__} has no {name!r} that is read: the standard deviation is in model.policy.head "
                "(init_noise_std, clip_std), memories are stages of model.policy"
            )
        if learned and policy is not None:
            setattr(policy, name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in (*_OLD_PARTS, "actor", "critic"):
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}: its parts are those of model.policy. The class of this name "
                "in striderl.compat.st_rl is a plain module that has it"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        found = self.__dict__.get(name)
        super().__delattr__(name)
        if found is not None and (
            self.policy._modules.get(name) is found or self.policy._parameters.get(name) is found
        ):
            delattr(self.policy, name)

    # -- acting --------------------------------------------------------------------------------------------------------

    def forward(
        self, observations: Observations, critic_observations: Observations | None = None
    ) -> tuple[Distribution[Any], Tensor]:
        """Return the distribution of actions and the values of one step."""
        seen = critic_view(self.policy, observations, critic_observations)
        self._act(observations, critic_observations)
        return self.distribution, self.evaluate(seen)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`."""
        return self.forward(*args, **kwargs)

    def act(
        self,
        observations: Observations,
        masks: Tensor | None = None,
        hidden_states: Any = None,
        *,
        critic_observations: Observations | None = None,
        resets: Tensor | None = None,
        stage_draws: Mapping[str, Tensor] | None = None,
    ) -> Any:
        """Return sampled actions.

        `stage_draws` are the decisions to repeat (`model.stage_draws` of the step), `critic_observations` are needed by
        adaptors whose actor may read the truth.
        """
        self._act(observations, critic_observations, masks, hidden_states, resets=resets, stage_draws=stage_draws)
        return self._sample()

    def act_inference(self, observations: Observations, critic_observations: Observations | None = None) -> Any:
        """Return the deterministic actions of one step."""
        self._act(observations, critic_observations, greedy=True)
        return self.distribution.mode()

    def evaluate(
        self,
        critic_observations: Observations,
        masks: Tensor | None = None,
        hidden_states: Any = None,
        *,
        resets: Tensor | None = None,
        stage_draws: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Return values [.., 1], or [.., V] of a critic with several.

        A critic whose stages decide repeats the decisions in `stage_draws`; without it those of the last `act`, which
        must be of the same envs, and before the first `act` those of deterministic inference.
        """
        obs = named(critic_observations, self.policy.critic_inputs, self.device)
        lead = lead_of(obs, self.policy.critic_inputs)
        state = self._memory.at("critic", hidden_states, masks, resets, lead)
        decided = self._critic_decided(stage_draws, lead, hidden_states)
        values, new_state = self.policy.value(obs, state, decided, resets, as_mask(masks))
        if hidden_states is None:
            self._memory.state = new_state
        if masks is not None:
            values = unpad_trajectories(values, masks)
        return values.unsqueeze(-1) if self.policy.value_head.num_values == 1 else values

    def evaluate_actions(
        self,
        observations: Observations,
        actions: Any,
        critic_observations: Observations | None = None,
        masks: Tensor | None = None,
        hidden_states: Any = None,
        *,
        resets: Tensor | None = None,
        stage_draws: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (log-probability [..], entropy [..], values [.., 1]) of actions that were taken; memory stays."""
        if self.is_recurrent and hidden_states is None:
            raise ValueError("evaluate_actions of a recurrent policy wants the hidden_states its minibatch begins with")
        if stage_draws is None and self.policy.stage_draw_spec():
            raise ValueError(_must_repeat(self.policy.stage_draw_spec()))
        seen = critic_view(self.policy, observations, critic_observations)
        self._act(observations, critic_observations, masks, hidden_states, resets=resets, stage_draws=stage_draws)
        values = self.evaluate(seen, masks, hidden_states, resets=resets, stage_draws=stage_draws)
        return self.get_actions_log_prob(actions), self.entropy, values

    # -- the last distribution -----------------------------------------------------------------------------------------

    @property
    def distribution(self) -> Distribution[Any]:
        """The distribution of the last call."""
        if self._distribution is None:
            raise RuntimeError("there is no distribution yet: call act first")
        return self._distribution

    @property
    def action_mean(self) -> Any:
        """The deterministic action of the last call: the mean of a Gaussian."""
        return self.distribution.mode()

    @property
    def action_std(self) -> Tensor:
        """The standard deviation of the last call; zero for a deterministic head."""
        params = self.distribution.params()
        if "std" in params:
            return params["std"]
        if "value" in params:
            return torch.zeros_like(params["value"])
        raise TypeError(f"{type(self.distribution).__name__} has no standard deviation, it has {sorted(params)}")

    @property
    def entropy(self) -> Tensor:
        """The entropy [..] of the last call."""
        return self.distribution.entropy()

    def get_actions_log_prob(self, actions: Any) -> Tensor:
        """Return the log-probability [..] of actions under the last distribution."""
        return self.distribution.log_prob(actions)

    def clip_std(self, min: float | Sequence[float] | None = None, max: float | Sequence[float] | None = None) -> None:
        """Clip the learned standard deviation to [min, max], one number or one per action."""
        head = self.policy.head.inner if isinstance(self.policy.head, ModeHead) else self.policy.head
        if not isinstance(head, (GaussianHead, SquashedGaussianHead)):
            raise TypeError(f"clip_std wants a Gaussian head; a {type(head).__name__} has no standard deviation")
        head.clip_std(min, max)

    # -- inside --------------------------------------------------------------------------------------------------------

    def get_encoder_latent(self, observations: Observations, obs_component: str, critic: bool = False) -> Tensor:
        """Return the latent [.., size] of a component, by the actor's encoder or by the critic's."""
        spec = self.policy.critic_inputs if critic else self.policy.actor_inputs
        own = f"critic/{obs_component}"
        name = own if critic and own in spec else obs_component
        return encoder_latent(self.policy, named(observations, spec, self.device), name, critic=critic)

    def get_estimated_state(
        self,
        observations: Observations | None = None,
        masks: Tensor | None = None,
        hidden_states: Any = None,
        *,
        stage: str = "Estimate",
    ) -> Tensor:
        """Return the flat estimate [.., K], of the last call or of given observations; memory stays.

        `stage="Adapt"` returns that of the privilege adaptor.
        """
        if observations is None:
            return estimates(self._aux, stage)
        obs = named(observations, self.policy.actor_inputs, self.device)
        lead = lead_of(obs, self.policy.actor_inputs)
        state = self._memory.at("actor", hidden_states, masks, None, lead)
        stage_draws = self.policy.settled(torch.zeros(lead, device=self.device))
        _, _, aux = self.policy.act(obs, state, stage_draws, None, as_mask(masks))
        estimate = estimates(aux, stage)
        if masks is None:
            return estimate
        unpadded: Tensor = unpad_trajectories(estimate, masks)
        return unpadded

    def embed_visual_latent(self, observations: Observations) -> Tensor:
        """Return the flat observation with latents in the place of what the actor encodes."""
        embedded = embed(self.policy, named(observations, self.policy.actor_inputs, self.device))
        flat: Tensor = embedded_spec(self.policy).flatten(embedded)
        return flat

    def act_with_embedded_latent(
        self,
        observations: Observations,
        masks: Tensor | None = None,
        hidden_states: Any = None,
        *,
        resets: Tensor | None = None,
    ) -> Any:
        """Return sampled actions for what `embed_visual_latent` returned."""
        spec = embedded_spec(self.policy)
        obs = named(observations, spec, self.device)
        lead = lead_of(obs, spec)
        state = self._memory.at("actor", hidden_states, masks, resets, lead)
        stage_draws = self._decided(None, lead, hidden_states, greedy=False)
        distribution, new_state = act_embedded(self.policy, obs, state, stage_draws, resets, as_mask(masks))
        self._keep(distribution, new_state, {}, stage_draws, masks, hidden_states)
        return self._sample()

    # -- memory --------------------------------------------------------------------------------------------------------

    @property
    def is_recurrent(self) -> bool:
        """Whether the policy has a memory."""
        return bool(self.policy.state_spec())

    def start(self, num_envs: int) -> None:
        """Create an empty memory for this number of envs; otherwise the first step does."""
        self._memory.state = self.policy.initial_state(num_envs)

    def reset(self, dones: Any = None) -> None:
        """Reset the envs where `dones` [N], a tensor, an array or a list, is not zero; all without it."""
        self._memory.reset(dones)

    def get_hidden_states(self) -> Any:
        """Return the memory as an `ActorCriticHiddenState` of [L, N, H]; None without a memory or before a step."""
        return tuples.to_hidden_states(self.policy, self._memory.state) if self._memory.state else None

    def set_hidden_states(self, hidden_states: Any) -> None:
        """Restore a memory that `get_hidden_states` returned; None resets everything."""
        self._memory.state = {} if hidden_states is None else tuples.from_hidden_states(self.policy, hidden_states)

    def detach_hidden_states(self) -> None:
        """Detach the memory from its autograd graph."""
        self._memory.state = {name: value.detach() for name, value in self._memory.state.items()}

    # -- like a module -------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.policy.parameters()).device

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters of the policy."""
        return self.policy.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return the parameters of the policy with their names."""
        return self.policy.named_parameters()

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of the pure policy."""
        return self.policy.state_dict()

    def load_misaligned_state_dict(
        self,
        module: Any,
        obs_segments: Mapping[str, int | Sequence[int]],
        critic_obs_segments: Mapping[str, int | Sequence[int]] | None = None,
    ) -> TransferReport:
        """Load the weights of a module, or a state dict, built for flat vectors with these other segments, by name."""
        from striderl.policies.transfer.load import load_from_segments  # transfer reads policies, not the other way

        return load_from_segments(self.policy, module, obs_segments, critic_obs_segments)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load a state dict of the pure policy; what does not fit is shown as a table, and then nothing is changed."""
        if not strict:
            return self.policy.load_state_dict(state_dict, strict=False)
        from striderl.policies.transfer.load import load_exactly  # transfer reads policies, not the other way

        return load_exactly(self.policy, state_dict)

    def train(self, mode: bool = True) -> Self:
        """Set the policy to training mode."""
        for module in (self.policy, *self._companions):
            module.train(mode)
        return self

    def eval(self) -> Self:
        """Set the policy to evaluation mode."""
        return self.train(False)

    def to(self, device: torch.device | str) -> Self:
        """Move the policy and its memory to a device."""
        for module in (self.policy, *self._companions):
            module.to(device)
        self._memory.state = {name: value.to(device) for name, value in self._memory.state.items()}
        return self

    # -- one call ------------------------------------------------------------------------------------------------------

    def _act(
        self,
        observations: Observations,
        critic_observations: Observations | None = None,
        masks: Tensor | None = None,
        hidden_states: Any = None,
        *,
        resets: Tensor | None = None,
        stage_draws: Mapping[str, Tensor] | None = None,
        greedy: bool = False,
    ) -> None:
        """Run the actor and keep its outputs."""
        obs = named(observations, self.policy.actor_inputs, self.device)
        lead = lead_of(obs, self.policy.actor_inputs)
        if critic_observations is not None:
            obs = {**named(critic_observations, self.policy.critic_inputs, self.device), **obs}
        if not greedy:
            check_truths(self.policy, obs)
        state = self._memory.at("actor", hidden_states, masks, resets, lead)
        stage_draws = self._decided(stage_draws, lead, hidden_states, greedy=greedy)
        distribution, new_state, aux = self.policy.act(obs, state, stage_draws, resets, as_mask(masks))
        self._keep(distribution, new_state, aux, stage_draws, masks, hidden_states)

    def _decided(
        self, stage_draws: Mapping[str, Tensor] | None, lead: tuple[int, ...], hidden_states: Any, *, greedy: bool
    ) -> Mapping[str, Tensor]:
        """Return the decisions of a call: given ones, settled ones, or for a step drawn ones."""
        if stage_draws is not None:
            return stage_draws
        if greedy or not self.policy.stage_draw_spec():
            return self.policy.settled(torch.zeros(lead, device=self.device))
        if hidden_states is not None:
            raise ValueError(_must_repeat(self.policy.stage_draw_spec()))
        return self.policy.decide(self._memory.draw(self.policy.noise(), lead, self.device))

    def _critic_decided(
        self, stage_draws: Mapping[str, Tensor] | None, lead: tuple[int, ...], hidden_states: Any
    ) -> Mapping[str, Tensor]:
        """Return the critic's decisions of a call: given ones, those of the step, or settled before the first."""
        names = [name for name in self.policy.stage_draw_spec() if name.startswith("critic/")]
        if stage_draws is not None or not names:
            return stage_draws or {}
        if hidden_states is not None or any(
            self.stage_draws[name].shape != lead for name in names if name in self.stage_draws
        ):
            raise ValueError(_must_repeat(names))
        return self.stage_draws or self.policy.settled(torch.zeros(lead, device=self.device))

    def _keep(
        self,
        distribution: Distribution[Any],
        state: dict[str, Tensor],
        aux: dict[str, Tensor],
        stage_draws: Mapping[str, Tensor],
        masks: Tensor | None,
        hidden_states: Any,
    ) -> None:
        if hidden_states is None:
            self._memory.state = state
        self.stage_draws = dict(stage_draws)
        self._distribution = distribution if masks is None else unpad_trajectories(distribution, masks)
        self._aux = aux if masks is None else unpad_trajectories(aux, masks)

    def _sample(self) -> Any:
        """Sample from the last distribution."""
        head, params = self.policy.head, self.distribution.params()
        name, spec = next(iter(head.params_spec().items()))
        lead = tuple(params[name].shape[: params[name].dim() - len(spec.shape)])
        wanted = head.noise_spec()
        if isinstance(wanted, dict):
            return self.distribution.sample(self._memory.draw(wanted, lead, self.device))
        return self.distribution.sample(self._memory.draw({"action": wanted}, lead, self.device)["action"])


def _must_repeat(names: Iterable[str]) -> str:
    return f"a minibatch must repeat the decisions {list(names)}: store model.memo with every step and give it as memo"
