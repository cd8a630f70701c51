"""`MotionPrior`: adversarial motion priors (Peng et al. 2021), a style reward for moving like recorded clips.

    frames of the env's 'motion' components ─▶ window ─┐
                                                       ├─▶ one normaliser ─▶ discriminator ─▶ style reward, 0 to 1
    clips, or what the env plays (`EnvExpert`) ────────┘
    reward = task_weight · task + style_weight · style

It is the adversarial reward of `adversarial.py` over windows of frames. The motion that an episode ends with is scored,
not the first one of the next episode: the rollout keeps what truly followed each step. Where the env gives no final
observations, the last step is paid like the one before it and teaches the discriminator nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from striderl.algorithms.terms.adversarial import AdversarialReward
from striderl.algorithms.terms.motion_expert import as_expert
from striderl.algorithms.terms.motion_prior_config import MotionPriorConfig
from striderl.algorithms.terms.motion_prior_window import FrameMemory, MotionWindow
from striderl.collect.actors.base import ActingPart
from striderl.data.specs import ObsSpec

__all__ = ["MotionPrior", "MotionPriorConfig"]


class MotionPrior(AdversarialReward):
    """Rewards motions that look like the expert's; see the picture at the top of this module."""

    def __init__(
        self,
        obs_spec: ObsSpec,
        expert: Any,
        config: MotionPriorConfig | None = None,
        *,
        network: nn.Module | None = None,
        device: torch.device | str = "cpu",
        name: str = "motion_prior",
    ) -> None:
        """Take what the env gives and whom to imitate: an Expert, a loader of clips, a tensor [M, F], or an EnvExpert.

        network: a discriminator [..., F] to [...] of one's own, such as that of an `AmpActorCritic`; it must not be
            part of the policy.
        """
        config = config or MotionPriorConfig()
        window = MotionWindow(obs_spec, config.components, config.frames, name)
        found = as_expert(expert)
        if found.size != window.size:
            raise ValueError(
                f"the expert's motions have {found.size} numbers, the env's {window.size}: {config.frames} frames of "
                f"{window.spec.size} ({', '.join(window.spec.names)}); AMPLoaderConfig.fields (in a runner's config "
                "motion_loader['fields']) says which fields of clips are compared, in the env's order"
            )
        super().__init__(window, found, config, network=network, device=device, name=name)
        earlier = window.num_earlier
        self._memory = FrameMemory(window.spec, earlier, name) if earlier else None

    def acting(self) -> ActingPart | None:
        """Return what remembers frames, where more than two are wanted."""
        return self._memory
