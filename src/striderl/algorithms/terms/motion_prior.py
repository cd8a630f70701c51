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

from typing import Any, ClassVar

import torch
from torch import nn

from striderl.algorithms.building import DISCRIMINATOR_SEED, BuildContext
from striderl.algorithms.terms.adversarial import AdversarialReward
from striderl.algorithms.terms.motion_expert import ClipFiles, as_expert
from striderl.algorithms.terms.motion_prior_config import MotionPriorConfig
from striderl.algorithms.terms.motion_prior_window import FrameMemory, MotionWindow
from striderl.collect.actors.base import ActingPart
from striderl.data.specs import ObsSpec
from striderl.storage.replay.replay import Replay

__all__ = ["MotionPrior", "MotionPriorConfig", "prior_expert"]


def prior_expert(context: BuildContext, config: MotionPriorConfig) -> Any:
    """Return the run's expert as motions: of a dataset, what was observed before and after each of its steps."""
    given = context.load("expert")
    if not isinstance(given, Replay):
        return given(config.frames) if isinstance(given, ClipFiles) else given
    if config.frames > 2:
        raise ValueError(f"a dataset shows motions of 1 or 2 frames, found frames={config.frames}; use clips for more")
    every = given.read.chronological()
    rows = given.read.rows(every.index_select(0, given.read.valid(every).nonzero().squeeze(1)))
    seen = context.obs_spec.select(config.components)
    frames = [seen.flatten(rows[name]) for name in ("obs", "obs_next")[-config.frames :]]
    return torch.cat(frames, dim=-1).float().to(context.device)


class MotionPrior(AdversarialReward):
    """Rewards motions that look like the expert's; see the picture at the top of this module."""

    Config: ClassVar[type[Any]] = MotionPriorConfig
    summary = "rewards motions that look like an expert's (--expert)"

    @classmethod
    def build(cls, config: MotionPriorConfig, context: BuildContext) -> MotionPrior:
        """Build the term from its config and the run's expert."""
        expert = prior_expert(context, config)
        with context.seeded(DISCRIMINATOR_SEED):
            return cls(context.obs_spec, expert, config, device=context.device)

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
