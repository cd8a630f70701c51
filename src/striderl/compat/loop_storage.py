"""The storage behind a hand-written loop, which learns only step by step whether final observations are given."""

from __future__ import annotations

from striderl.collect.actors.policy_actor import PolicyActor
from striderl.data.arena import Placement
from striderl.data.transition import Transition, transition_columns
from striderl.policies.policy import Policy
from striderl.storage.rollout import FinalPool, RolloutStorage


class LoopStorage(RolloutStorage):
    """A rollout whose pool of final observations is made when the first one comes.

    A step that the clock ended and that has none is valued with V(s_t).
    """

    def __init__(self, actor: PolicyActor, policy: Policy, num_envs: int, num_steps: int, device: str) -> None:
        """Allocate what the policy's update reads back, and what the actor's parts store beside it."""
        columns = transition_columns(policy.obs_spec, policy.action_spec, {}, actor.columns())
        super().__init__(columns, num_steps, num_envs, placement=Placement(device=device))
        self._policy, self._placement = policy, Placement(device=device)

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Write the next step; its final observations are kept where it has some."""
        if transition.final_obs is not None and self.finals is None:
            size = max(self.num_envs, self.num_steps * self.num_envs // 4)
            self.finals = FinalPool(self._policy.obs_spec, self._policy.state_spec(), size, self._placement)
        pool = self.finals
        self.finals = pool if transition.final_obs is not None else None
        try:
            super().add(transition, envs)
        finally:
            self.finals = pool
