"""Environments whose step can be started and fetched apart, so that simulation and inference overlap.

    whole = GymnasiumEnv("CartPole-v1", 64, workers=WorkerConfig(num_workers=4))

    alternating: two halves              asynchronous: whichever is ready
    left, right = whole.split(2)         parts = whole.split(4)
    left.step_async(act_left)            for part in parts: part.step_async(act(obs[part]))
    right.step_async(act_right)          for part in whole.wait_any(parts, timeout=1.0):
    step = left.step_wait()                  step = part.step_wait()
    left.step_async(act(step.obs))           part.step_async(act(step.obs))
    step = right.step_wait()  …

    left   sim ████████ . wait . sim ████████
    right        . wait . sim ████████         the policy acts for one half while the other half is simulated

An env that cannot overlap may still follow this interface: it does its work in `step_wait`, and `is_ready` is true at
once. Every part is a `VecEnv` of its own rows, with the seeds of those rows, so the data does not depend on the split.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from striderl.envs.vec_env import Actions, Step, VecEnv


class AsyncVecEnv(VecEnv):
    """A `VecEnv` whose step is two calls: `step_async` hands the actions over, `step_wait` fetches the outcome."""

    runs_ahead: bool = True
    """Whether a step goes on by itself between the two calls, or is taken when it is waited for."""

    @abstractmethod
    def step_async(self, actions: Actions) -> None:
        """Start one step in every env and return at once; a second call before `step_wait` is an error."""

    @abstractmethod
    def step_wait(self) -> Step:
        """Return the step that `step_async` started, waiting for it if need be; failures of an env are raised here."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Tell whether `step_wait` would return, or raise, without waiting."""

    @abstractmethod
    def split(self, num_parts: int) -> list[AsyncVecEnv]:
        """Return consecutive parts of the envs, as even as the back end allows, that can be stepped independently."""

    @abstractmethod
    def wait_any(self, parts: Sequence[AsyncVecEnv], timeout: float | None = None) -> list[AsyncVecEnv]:
        """Wait until one of these parts with a step under way is ready and return all that are, in their order here.

        The list is empty when `timeout` seconds passed first; None waits until a part is ready, has failed or has
        run into its deadline.
        """

    def step(self, actions: Actions) -> Step:
        """Advance every env by one step; an env whose episode ends starts the next one before this returns."""
        self.step_async(actions)
        return self.step_wait()
