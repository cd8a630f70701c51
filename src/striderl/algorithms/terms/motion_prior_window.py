"""Windows of motion frames that never cross a reset.

    t                  0    1    2 ┃  3    4        step 2 ended an episode; 3 frames
    frame before step  a    b    c ┃  p    q
    frame after step   b    c    d ┃  q    r        d is the final observation, not p
    window             –   abc  bcd┃  –   pqr       a step whose episode has not had enough frames has none

The last two frames are those before and after a step. Earlier ones are remembered while acting, as part of the actor's
memory: so they end with an episode, go on from one rollout to the next, and are saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.terms.adversarial_features import Steps, flat_state
from striderl.collect.actors.base import Noise, Obs, Played
from striderl.data.arena import Columns
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.networks.distributions.base import Distribution


class MotionWindow:
    """The features of a motion prior: `frames` frames side by side, oldest first; with one, the frame after the step.

    Shape: [..., frames · size of a frame].
    """

    def __init__(self, obs_spec: ObsSpec, components: Sequence[str], frames: int, part: str) -> None:
        """Take which components or groups make a frame; `part` is who remembers earlier frames."""
        self.spec, self.frames, self._part = obs_spec.select(components), frames, part

    @property
    def size(self) -> int:
        """Of all frames."""
        return self.frames * self.spec.size

    @property
    def num_earlier(self) -> int:
        """How many frames must be remembered from before the step."""
        return max(self.frames - 2, 0)

    @property
    def following(self) -> tuple[str, ...]:
        """All components of a frame."""
        return self.spec.names

    def columns(self) -> Mapping[str, TensorSpec]:
        """Read none."""
        return {}

    def known(self, steps: Steps) -> Tensor:
        """Return where the whole window lies in one episode."""
        known = steps.valid & steps.follows
        return known & (self._remembered(steps)["count"] >= self.num_earlier) if self.num_earlier else known

    def __call__(self, steps: Steps) -> Tensor:
        """Return [frame t-1 | frame t | frame after t], or as many as there are."""
        assert steps.following is not None, "the caller has looked"
        after = flat_state(steps.following, self.spec)
        if self.frames == 1:
            return after
        two = torch.cat([flat_state(steps.obs, self.spec), after], dim=-1)
        return torch.cat([self._remembered(steps)["frames"].flatten(-2), two], dim=-1) if self.num_earlier else two

    def _remembered(self, steps: Steps) -> Mapping[str, Tensor]:
        if self._part not in steps.parts:
            raise ValueError(
                f"a motion of {self.frames} frames wants the frames before a step, which are remembered while acting: "
                "collect with algorithm.actor()"
            )
        found: Mapping[str, Tensor] = steps.parts[self._part]
        return found


class FrameMemory:
    """The acting part that remembers frames; it leaves actions as they are."""

    def __init__(self, spec: ObsSpec, num_frames: int, name: str) -> None:
        """Remember the last `num_frames` frames before each step."""
        self._spec, self._num_frames, self._name = spec, num_frames, name

    @property
    def name(self) -> str:
        """Under which columns and memory are kept."""
        return self._name

    def columns(self) -> Columns:
        """Return the frames before the step, oldest first, and how many of them there really were."""
        return {"frames": TensorSpec(shape=(self._num_frames, self._spec.size)), "count": TensorSpec(dtype="int64")}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing: nothing is drawn."""
        return {}

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return that no frame was seen yet."""
        frames = torch.zeros(num_envs, self._num_frames, self._spec.size, device=device)
        return {"frames": frames, "count": torch.zeros(num_envs, dtype=torch.int64, device=device)}

    def __call__(
        self, obs: Obs, state: Mapping[str, Tensor], actions: Any, distribution: Distribution[Any], noise: Noise
    ) -> Played:
        """Store what is remembered, and remember the present frame."""
        now = flat_state(obs, self._spec).unsqueeze(1)
        frames = torch.cat([state["frames"][:, 1:], now], dim=1)
        count = (state["count"] + 1).clamp(max=self._num_frames)
        stored = {"frames": state["frames"], "count": state["count"]}
        return Played(actions, {"frames": frames, "count": count}, stored)
