"""`MotionPrior`: adversarial motion priors (Peng et al. 2021), a style reward for moving like recorded clips.

    frames of the env's 'motion' components ─▶ window ─┐
                                                       ├─▶ one normaliser ─▶ discriminator ─▶ style reward, 0 to 1
    clips, or those of the env (`EnvExpert`) ──────────┘
    reward = task_weight · task + style_weight · style

It is the adversarial reward of `adversarial.py` over windows of frames, which never cross a reset:

    t                  0    1    2 ┃  3    4        step 2 ended an episode; 3 frames
    frame before step  a    b    c ┃  p    q
    frame after step   b    c    d ┃  q    r        d is the final observation, not p
    window             –   abc  bcd┃  –   pqr       no window before an episode has enough frames

The last two frames are those before and after a step. Earlier ones are kept while acting, as part of the actor's
memory: so they end with an episode, continue across rollouts, and are saved. The motion that an episode ends
with is scored, not the first one of the next episode: the rollout keeps the true successor of each step. Where the env
gives no final observations, the last step is rewarded like the one before it and is not used for the discriminator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from striderl.algorithms.building import DISCRIMINATOR_SEED, BuildContext
from striderl.algorithms.terms.adversarial import AdversarialReward
from striderl.algorithms.terms.discriminator import AdversarialConfig, Steps, flat_state
from striderl.algorithms.terms.expert import ClipFiles, as_expert
from striderl.collect.actors.base import ActingPart, Noise, Obs, Played
from striderl.data.arena import Columns
from striderl.data.checked_fields import suggests_fields
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.networks.discriminator import AMPDiscriminator
from striderl.networks.distributions.base import Distribution
from striderl.storage.replay.replay import Replay


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class MotionPriorConfig(AdversarialConfig):
    """Settings of a motion prior: those of an adversarial reward, with what is usual for motions."""

    components: tuple[str, ...] = ("motion",)
    """Observation components or groups that make a frame."""
    frames: int = 2
    """Frames of a motion, the last one after the step; 1 where a component holds a whole window itself."""
    task_weight: float = 0.5
    """Weight of the env's own reward; 0 leaves it out."""
    style_weight: float = 0.5
    """Weight of the discriminator's reward."""
    loss: str = "least_squares"
    """'least_squares', 'bce' or 'wasserstein'; see `striderl.ops.imitation`."""
    reward: str = "least_squares"
    """'least_squares' (0 to 1), or the reward that fits another loss."""
    hidden_dims: tuple[int, ...] = (512, 256)
    """Hidden layers of the discriminator."""
    gradient_penalty: float = 5.0
    """Weight of the penalty on the slope of the score at the expert's motions."""
    learning_rate: float = 1e-4
    """Of the discriminator; the algorithm's schedule does not touch it."""
    weight_decay: float = 1e-3
    """Of the discriminator (AdamW)."""
    max_grad_norm: float = 1.0
    """The discriminator's gradient is clipped to this norm; 0 means never."""
    replay_size: int = 100_000
    """So many earlier motions of the policy are kept and drawn from; 0 keeps none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frames < 1 or not self.components:
            raise ValueError(f"a motion has at least one frame of one component, found {self.frames} frames")
        if self.absorbing:
            raise ValueError("a motion prior has no absorbing states: an end has its final motion, which is scored")

    def weighed(self, *, task_reward_lerp: float, style_reward_coef: float) -> MotionPriorConfig:
        """Return the same with st_rl's weights: (1 - w) · c · style + w · task for w = lerp and c = coef."""
        style_weight = (1.0 - task_reward_lerp) * style_reward_coef
        return replace(self, task_weight=task_reward_lerp, style_weight=style_weight)

    def of_discriminator(self, discriminator: AMPDiscriminator) -> MotionPriorConfig:
        """Return the same with the weights and the penalty that a discriminator was made with."""
        mixed = self.weighed(
            task_reward_lerp=discriminator.task_reward_lerp, style_reward_coef=discriminator.style_reward_coef
        )
        return replace(mixed, gradient_penalty=discriminator.grad_pen)


# -- windows -----------------------------------------------------------------------------------------------------------


class MotionWindow:
    """The features of a motion prior: `frames` frames side by side, oldest first; with one, the frame after the step.

    Shape: [..., frames · size of a frame].
    """

    def __init__(self, obs_spec: ObsSpec, components: Sequence[str], frames: int, part: str) -> None:
        """Set the components or groups of a frame; `part` is the acting part that stores earlier frames."""
        self.spec, self.frames, self._part = obs_spec.select(components), frames, part

    @property
    def size(self) -> int:
        """Of all frames."""
        return self.frames * self.spec.size

    @property
    def num_earlier(self) -> int:
        """Number of frames to keep from before the step."""
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
    """The acting part that keeps frames; it leaves actions as they are."""

    def __init__(self, spec: ObsSpec, num_frames: int, name: str) -> None:
        """Keep the last `num_frames` frames before each step."""
        self._spec, self._num_frames, self._name = spec, num_frames, name

    @property
    def name(self) -> str:
        """The name of its columns and memory."""
        return self._name

    def columns(self) -> Columns:
        """Return the frames before the step, oldest first, and how many of them are real."""
        return {"frames": TensorSpec(shape=(self._num_frames, self._spec.size)), "count": TensorSpec(dtype="int64")}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing: nothing is drawn."""
        return {}

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return an empty memory."""
        frames = torch.zeros(num_envs, self._num_frames, self._spec.size, device=device)
        return {"frames": frames, "count": torch.zeros(num_envs, dtype=torch.int64, device=device)}

    def __call__(
        self, obs: Obs, state: Mapping[str, Tensor], actions: Any, distribution: Distribution[Any], noise: Noise
    ) -> Played:
        """Store the kept frames as columns, and append the present frame."""
        now = flat_state(obs, self._spec).unsqueeze(1)
        frames = torch.cat([state["frames"][:, 1:], now], dim=1)
        count = (state["count"] + 1).clamp(max=self._num_frames)
        stored = {"frames": state["frames"], "count": state["count"]}
        return Played(actions, {"frames": frames, "count": count}, stored)


# -- the term ----------------------------------------------------------------------------------------------------------


__all__ = ["MotionPrior", "MotionPriorConfig", "prior_expert"]


def prior_expert(context: BuildContext, config: MotionPriorConfig) -> Any:
    """Return the run's expert as motions: of a dataset, the observations before and after each of its steps."""
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
        """Build the term from its config, the run's expert and, where one was passed in, its discriminator."""
        expert, network = prior_expert(context, config), context.objects.get("discriminator")
        if network is not None:
            config = config.of_discriminator(network)
        with context.seeded(DISCRIMINATOR_SEED):
            return cls(context.obs_spec, expert, config, network=network, device=context.device)

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
        """Set the env's observations and the expert: an Expert, a loader of clips, a tensor [M, F], or an EnvExpert.

        network: a discriminator [..., F] to [...] of your own, such as that of an `AmpActorCritic`; it must not be
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
        """Return the acting part that keeps frames, where more than two are needed."""
        return self._memory
