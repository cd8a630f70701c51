"""A model with an overridden `act` or `evaluate`, as the pure policy that algorithms run.

    class Mine(ActorCritic):
        def act(self, observations, **kwargs):                 policy_of(Mine(…)) ─▶ RoutedPolicy
            return super().act(self.extra(observations), **kwargs)

    RoutedPolicy.act(obs, state, …)   ─▶ model.act(flat observations)      its distribution, memory and sample
    RoutedPolicy.value(obs, state, …) ─▶ model.evaluate(flat observations)

It has the same modules under the same names as `model.policy`. What is not overridden runs as it does there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from striderl.data.checked_fields import overridden
from striderl.data.specs import ObsSpec
from striderl.networks.distributions.base import Distribution
from striderl.policies.estimate import PredictStage
from striderl.policies.facade import memory as tuples
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.policy import Policy, PolicyOutput, masked

if TYPE_CHECKING:
    from typing import Self


def policy_of(model: StatefulPolicy, *, deterministic: bool = False) -> Policy:
    """Return the policy of a model, routed through the methods that its class overrides.

    With `deterministic` for callers that use the mode of the distribution, which would not call `act_inference`.
    """
    if deterministic and overridden(model, StatefulPolicy, "act_inference"):
        raise TypeError(
            f"{type(model).__name__}.act_inference would have no effect here: the mode of the distribution of `act` is "
            "played. Override act, or call the model yourself"
        )
    return RoutedPolicy(model) if overridden(model, StatefulPolicy, "act", "evaluate") else model.policy


class RoutedPolicy(Policy):
    """The policy of a model, run through its own `act` and `evaluate`; see the top of this module."""

    def __init__(self, model: StatefulPolicy) -> None:
        """Share all modules of the model's policy."""
        nn.Module.__init__(self)
        self.__dict__.update(model.policy.__dict__)
        self._routed = (model,)  # in a tuple: the model holds the modules that are registered here already
        self._acts = overridden(model, StatefulPolicy, "act")
        self._evaluates = overridden(model, StatefulPolicy, "evaluate")
        self.flat = True
        """Whether the model is given flat vectors, or dicts of components."""
        self.sampled: Any = None
        """The last output of the model's `act`."""

    @property
    def model(self) -> StatefulPolicy:
        """The model whose methods are run."""
        return self._routed[0]

    def forward(
        self,
        obs: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        stage_draws: Mapping[str, Tensor],
        resets: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> PolicyOutput:
        """Run actor and critic, one after the other."""
        distribution, after_actor, aux = self.act(obs, state, stage_draws, resets, valid)
        value, after_critic = self.value(obs, state, stage_draws, resets, valid)
        critic = {name: each for name, each in after_critic.items() if name.startswith("critic/")}
        return PolicyOutput(distribution, value, {**after_actor, **critic}, aux)

    def act(
        self,
        obs: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        stage_draws: Mapping[str, Tensor],
        resets: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> tuple[Distribution[Any], dict[str, Tensor], dict[str, Tensor]]:
        """Run the model's `act`; keep its sample."""
        if not self._acts:
            return super().act(obs, state, stage_draws, resets, valid)
        seen, model, more = masked(obs, valid), self.model, self._decisions(stage_draws)
        if any(isinstance(stage, PredictStage) and stage.wanted_truths for _, stage in self.actor.named_stages()):
            more["critic_observations"] = self._given(seen, self.critic_inputs)
        with self._memory(state) as kept:
            if state and resets is not None:
                more["hidden_states"], more["resets"] = tuples.to_hidden_states(self, state), resets
            self.sampled = model.act(self._given(seen, self.actor_inputs), **more)
            return model.distribution, dict(kept.state), dict(model._aux)

    def value(
        self,
        obs: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        stage_draws: Mapping[str, Tensor],
        resets: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run the model's `evaluate`."""
        if not self._evaluates:
            return super().value(obs, state, stage_draws, resets, valid)
        seen, more = masked(obs, valid), self._decisions(stage_draws)
        with self._memory(state) as kept:
            if state and resets is not None:
                more["hidden_states"], more["resets"] = tuples.to_hidden_states(self, state), resets
            values = self.model.evaluate(self._given(seen, self.critic_inputs), **more)
            return values.squeeze(-1) if self.value_head.num_values == 1 else values, dict(kept.state)

    def train(self, mode: bool = True) -> Self:
        """Set the model to training mode."""
        super().train(mode)
        self.model.policy.training = mode
        return self

    def _given(self, obs: Mapping[str, Tensor], spec: ObsSpec) -> Any:
        """Return the components of a spec as the model is given them."""
        own = {name: obs[name] for name in spec}
        return spec.flatten(own) if self.flat else own

    def _decisions(self, stage_draws: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the decisions to repeat, where the policy has any: an override need not take them otherwise."""
        return {"memo": stage_draws} if self.stage_draw_spec() else {}

    @contextmanager
    def _memory(self, state: Mapping[str, Tensor]) -> Iterator[Any]:
        """Set the model's state inside this context, and restore it afterwards."""
        memory = self.model._memory
        before, memory.state = memory.state, dict(state)
        try:
            yield memory
        finally:
            memory.state = before
