"""st_rl's algorithms beside PPO: with a teacher, with adversarial motion priors, with a state estimator.

    TPPO                            labels of a teacher, which acts in some episodes: 'distillation_loss'
    APPO, ATPPO                     a discriminator of motions, whose score is a reward: 'discriminator_…_loss'
    EstimatorPPO, EstimatorTPPO     the policy's estimate of what it cannot observe: 'estimator_loss'

`APPOAlgoMixin` and `EstimatorAlgoMixin` go in front of a PPO or a TPPO, also in front of a user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from striderl.compat.st_rl import build
from striderl.compat.st_rl.algorithms import PPO, Losses, outside_autograd
from striderl.compat.st_rl.encoders import get_subobs_by_components
from striderl.compat.st_rl.modules import unpad_trajectories
from striderl.compat.st_rl.normalizers import EmpiricalNormalization
from striderl.compat.st_rl.storage import MINI_BATCH_FIELDS, ActionLabelRollout, AmpRolloutStorage
from striderl.data import tree
from striderl.data.named_tuples import namedarraytuple
from striderl.data.naming import unknown
from striderl.ops.ramps import TeacherSchedule

# -- a teacher ---------------------------------------------------------------------------------------------------------


def GET_PROB_FUNC(option: str, iteration_scale: float) -> Callable[[float], float]:  # noqa: N802 (st_rl's name)
    """Return iteration → probability: 'linear', 'exp' or 'tanh' (see `striderl.ops.ramps`)."""
    schedule = TeacherSchedule(option=option, scale=iteration_scale)
    return lambda iteration: float(schedule(iteration))


class LabelledRollout(ActionLabelRollout):
    """`ActionLabelRollout` that notes where the teacher acted: these samples are not the policy's."""

    MiniBatch = namedarraytuple("MiniBatch", [*MINI_BATCH_FIELDS, "action_labels", "teacher_acted"])


class TPPO(PPO):
    """PPO with a teacher: its actions are labels of a distillation loss, and it acts in some episodes."""

    def __init__(
        self,
        *args: Any,
        ppo: Mapping[str, Any] | None = None,
        teacher_ac_path: str | None = None,
        teacher_policy_class_name: str = "ActorCritic",
        teacher_policy: Any = None,
        label_action_with_critic_obs: bool = True,
        teacher_act_prob: str | float = "exp",
        update_times_scale: float = 100,
        using_ppo: bool = True,
        distillation_loss_coef: float | str = 1.0,
        distill_target: str = "real",
        distill_latent_coef: float = 1.0,
        distill_latent_target: str = "real",
        distill_latent_obs_component_mapping: Mapping[str, str] | None = None,
        buffer_dilation_ratio: float = 1.0,
        lr_scheduler_class_name: str | None = None,
        lr_scheduler: Mapping[str, Any] | None = None,
        hidden_state_resample_prob: float = 0.0,
        action_labels_from_sample: bool = False,
        **kwargs: Any,
    ) -> None:
        """Take PPO's arguments, some of them in `ppo`, and a teacher: a module, or a dict of its class and sizes.

        teacher_policy: {"class_name": …, "teacher_ac_path": …, "num_actor_obs": …, …}; class name and path may be
            given beside it as well. Its checkpoint's own observation normaliser is loaded and applied.
        """
        super().__init__(*args, **{**(ppo or {}), **kwargs})
        if using_ppo and buffer_dilation_ratio != 1.0:
            raise ValueError("buffer_dilation_ratio keeps old rollouts, which PPO cannot use; set using_ppo=False")
        found = build.build_teacher(teacher_policy, teacher_policy_class_name, teacher_ac_path)
        self.teacher_actor_critic: Any = found.model.to(self.device).eval()
        self.teacher_normalizer = found.normalizer.to(self.device).eval()
        for parameter in self.teacher_actor_critic.parameters():
            parameter.requires_grad_(False)
        self.label_action_with_critic_obs, self.using_ppo = label_action_with_critic_obs, using_ppo
        self.teacher_act_prob = _schedule(teacher_act_prob, update_times_scale)
        self.update_times_scale = update_times_scale
        self.distillation_loss_schedule = _schedule(distillation_loss_coef, update_times_scale)
        self.distill_target, self.distill_latent_target = distill_target, distill_latent_target
        self.distill_latent_coef = distill_latent_coef
        self.distill_latent_obs_component_mapping = distill_latent_obs_component_mapping
        self.buffer_dilation_ratio, self.hidden_state_resample_prob = buffer_dilation_ratio, hidden_state_resample_prob
        self.action_labels_from_sample = action_labels_from_sample
        self.use_teacher_act_mask: Any = None
        """bool [N]: in which envs the teacher acts, drawn at the start of each episode."""
        if lr_scheduler_class_name is not None:
            kinds = optim.lr_scheduler
            if not hasattr(kinds, lr_scheduler_class_name):
                raise ValueError(unknown("lr_scheduler_class_name", lr_scheduler_class_name, dir(kinds), where="torch"))
            self.lr_scheduler = getattr(kinds, lr_scheduler_class_name)(self.optimizer, **(lr_scheduler or {}))

    @property
    def distillation_loss_coef(self) -> float:
        """The weight of the distillation loss in the present iteration."""
        return self.distillation_loss_schedule(self.current_learning_iteration)

    def init_storage(self, *args: Any, **kwargs: Any) -> None:
        """Make room for rollouts with labels."""
        self.transition = LabelledRollout.Transition()
        ratio = self.buffer_dilation_ratio
        self.storage = LabelledRollout(*args, **{"device": self.device, "buffer_dilation_ratio": ratio, **kwargs})
        self._init_norm(self.storage.obs_shape, self.storage.privileged_obs_shape)

    def act(self, obs: Tensor, critic_obs: Tensor) -> Tensor:
        """Return sampled actions, and where the teacher acts its own; log-probabilities are of what is executed."""
        actions = super().act(obs, critic_obs)
        with outside_autograd():
            seen = self.teacher_normalizer(critic_obs if self.label_action_with_critic_obs else obs)
            teacher = self.teacher_actor_critic
            labels = (teacher.act(seen) if self.action_labels_from_sample else teacher.act_inference(seen)).detach()
            mask = self._teacher_mask(len(labels))
            self.transition.action_labels, self.transition.teacher_acted = labels, mask
            executed = torch.where(mask.unsqueeze(-1), labels, actions)
            self.transition.actions = executed
            self.transition.actions_log_prob = self.actor_critic.get_actions_log_prob(executed).detach()
        return executed

    def _teacher_mask(self, num_envs: int) -> Tensor:
        if self.use_teacher_act_mask is None:
            probability = self.teacher_act_prob(self.current_learning_iteration)
            self.use_teacher_act_mask = torch.rand(num_envs, device=self.device) < probability
        mask: Tensor = self.use_teacher_act_mask
        return mask

    def process_env_step(
        self,
        rewards: Tensor,
        dones: Tensor,
        infos: Mapping[str, Any] | None = None,
        next_obs: Tensor | None = None,
        next_critic_obs: Tensor | None = None,
    ) -> None:
        """Store the step, reset the teacher's memory, and draw anew who acts where an episode ended."""
        super().process_env_step(rewards, dones, infos, next_obs, next_critic_obs)
        ended = torch.as_tensor(dones, device=self.device).reshape(-1).bool()
        with outside_autograd():
            self.teacher_actor_critic.reset(ended)
            drawn = torch.rand(len(ended), device=self.device) < self.teacher_act_prob(self.current_learning_iteration)
            self.use_teacher_act_mask = torch.where(ended, drawn, self._teacher_mask(len(ended)))

    def collect_transition_from_dataset(self, transition: Any, infos: Mapping[str, Any] | None = None) -> None:
        """Store a recorded step: its action is executed, and is the label."""
        obs, critic = build.flat(transition.observation), transition.privileged_observation
        self.act(obs, obs if critic is None else build.flat(critic))
        action = transition.action.to(self.device)
        self.transition.actions = self.transition.action_labels = action
        with outside_autograd():
            self.transition.actions_log_prob = self.actor_critic.get_actions_log_prob(action).detach()
        self.transition.teacher_acted = torch.ones_like(self._teacher_mask(len(action)))
        PPO.process_env_step(self, transition.reward, transition.done, infos)

    def compute_returns(self, last_critic_obs: Tensor) -> None:
        """Compute returns where PPO uses them."""
        if self.using_ppo:
            super().compute_returns(last_critic_obs)

    def in_surrogate(self, minibatch: Any) -> Tensor | None:
        """Leave out what the teacher did: the ratio compares the policy with itself."""
        # a subclass may store its rollouts in an ActionLabelRollout, which does not note who acted
        acted: Tensor | None = getattr(minibatch, "teacher_acted", None)
        return None if acted is None else ~acted

    def mini_batches(self) -> Iterator[Any]:
        """Return minibatches; with `hidden_state_resample_prob` some trajectories begin with a random memory."""
        for minibatch in super().mini_batches():
            if minibatch.hidden_states is None or self.hidden_state_resample_prob <= 0.0:
                yield minibatch
            else:
                yield minibatch._replace(
                    hidden_states=_resampled(minibatch.hidden_states, self.hidden_state_resample_prob)
                )

    def update(self, current_learning_iteration: int | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Learn from the rollout, then step the learning-rate scheduler."""
        found = super().update(current_learning_iteration)
        if hasattr(self, "lr_scheduler"):
            self.lr_scheduler.step()
            self.learning_rate = float(self.optimizer.param_groups[0]["lr"])
        return found

    def compute_losses(self, minibatch: Any) -> tuple[Losses, dict[str, Tensor], dict[str, Tensor]]:
        """Return PPO's losses, or none without `using_ppo`, and 'distillation_loss'."""
        model, hidden = self.actor_critic, minibatch.hidden_states
        losses: Losses = {}
        inter_vars: dict[str, Tensor] = {}
        stats: dict[str, Tensor] = {}
        if self.using_ppo:
            losses, inter_vars, stats = super().compute_losses(minibatch)
        else:
            model.act(minibatch.obs, masks=minibatch.masks, hidden_states=None if hidden is None else hidden.actor)
        labels = minibatch.action_labels
        if self.distill_target == "max_log_prob":
            distance = -model.get_actions_log_prob(labels)
        else:
            distance = _distance(self.distill_target, model.action_mean, labels)
        losses["distillation_loss"] = distance.mean()
        stats["l1distance"] = (model.action_mean - labels).abs().mean().detach()
        for student, teacher in (self.distill_latent_obs_component_mapping or {}).items():
            own = _any(model).get_encoder_latent(minibatch.obs, student)
            with torch.no_grad():
                seen = self.teacher_normalizer(minibatch.critic_obs)
                target = _any(self.teacher_actor_critic).get_encoder_latent(seen, teacher)
            own, target = (unpad_trajectories(each, minibatch.masks) for each in (own, target))
            losses[f"distill_latent_{student}"] = _distance(self.distill_latent_target, own, target).mean()
        return losses, inter_vars, stats

    def loss_weight(self, name: str) -> float:
        """Return the weight of a loss; that of every latent is `distill_latent_coef`."""
        return self.distill_latent_coef if name.startswith("distill_latent_") else super().loss_weight(name)


# -- motions, estimators -----------------------------------------------------------------------------------------------


class APPOAlgoMixin:
    """Adversarial motion priors for a PPO or a TPPO behind it.

    The discriminator of the actor-critic has an optimiser of its own, and one normaliser sees both kinds of motions.
    """

    def __init__(
        self,
        *args: Any,
        discriminator_loss_coef: float = 1.0,
        mimic_loss_coef: float = 0.0,
        amp_obs_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Make the discriminator's optimiser, with the learning rate that PPO begins with.

        mimic_loss_coef: weight of the distance between the robot's and the expert's motion, subtracted from the reward:
            as a loss of stored tensors it would have no gradient.
        """
        super().__init__(*args, **kwargs)
        owner = _any(self)
        if not hasattr(owner.actor_critic, "discriminator"):
            raise TypeError(
                f"{type(self).__name__} wants an actor-critic with a discriminator, such as AmpActorCritic; found "
                f"{type(owner.actor_critic).__name__}"
            )
        self.discriminator_loss_coef, self.mimic_loss_coef = discriminator_loss_coef, mimic_loss_coef
        self.discriminator = owner.actor_critic.discriminator
        size = self.discriminator.input_dim if amp_obs_dim is None else amp_obs_dim
        self.ref_obs_normalizer = EmpiricalNormalization([size], until=10**8).to(owner.device)
        self.ref_motion_normalizer = self.ref_obs_normalizer
        self.discriminator_optimizer = optim.Adam(
            [
                {"params": self.discriminator.trunk.parameters(), "weight_decay": 1e-3},
                {"params": self.discriminator.head.parameters(), "weight_decay": 1e-1},
            ],
            lr=owner.learning_rate,
        )
        self.reward_sums: dict[str, Tensor] = {}
        """Mean style and task rewards of the rollout, summed over its steps."""

    def policy_parameters(self) -> list[nn.Parameter]:
        """Return what PPO's optimiser learns: everything but the discriminator, which has its own."""
        named = _any(self).actor_critic.named_parameters()
        return [each for name, each in named if not name.startswith("discriminator.")]

    def init_storage(self, *args: Any, **kwargs: Any) -> None:
        """Make room for rollouts with motions; with a teacher, its labels are columns of their own."""
        owner = _any(self)
        _any(super()).init_storage(*args, **kwargs)
        shapes = owner.storage.obs_shape, owner.storage.privileged_obs_shape, owner.storage.actions_shape
        ratio = getattr(owner, "buffer_dilation_ratio", 1.0)
        kind = AmpTeacherRollout if isinstance(self, TPPO) else AmpRolloutStorage
        owner.transition = kind.Transition()
        owner.storage = kind(
            owner.storage.num_envs,
            owner.storage.num_transitions_per_env,
            *shapes,
            owner.device,
            buffer_dilation_ratio=ratio,
        )

    def act(self, obs: Tensor, critic_obs: Tensor) -> Tensor:
        """Return sampled actions; without a teacher each is its own label."""
        owner = _any(self)
        actions: Tensor = _any(super()).act(obs, critic_obs)
        if owner.transition.action_labels is None:
            owner.transition.action_labels = actions
        return actions

    def process_env_step(
        self,
        rewards: Tensor,
        dones: Tensor,
        infos: Mapping[str, Any] | None = None,
        next_obs: Tensor | None = None,
        next_critic_obs: Tensor | None = None,
    ) -> None:
        """Store the step with its motions, rewarded by the discriminator.

        infos["observations"]["ref_obs"] [N, …] is the robot's motion, infos["ref_motion"] [N, …] the expert's. The
        means of style and task reward are written to infos["log"] where infos have a dict there.
        """
        owner, infos = _any(self), infos or {}
        if "ref_obs" not in infos.get("observations", {}) or "ref_motion" not in infos:
            raise KeyError(
                f"Missing ref_obs in infos: wanted infos['observations']['ref_obs'] and infos['ref_motion'], found "
                f"{sorted(infos)}"
            )
        with outside_autograd():
            raw = [
                torch.as_tensor(each).to(owner.device)
                for each in (infos["observations"]["ref_obs"], infos["ref_motion"])
            ]
            ref_obs, ref_motion = (each.reshape(len(each), -1).float() for each in raw)
            if self.ref_obs_normalizer.training:
                self.ref_obs_normalizer.update(torch.cat([ref_obs, ref_motion]))
            ref_obs, ref_motion = (self.ref_obs_normalizer.normalize(each) for each in (ref_obs, ref_motion))
            owner.transition.ref_obs, owner.transition.ref_motion = ref_obs, ref_motion
            task = torch.as_tensor(rewards, dtype=torch.float32, device=owner.device).reshape(-1)
            style, task, mixed = self.discriminator.predict_style_reward(ref_obs, task)
            if self.mimic_loss_coef:
                mixed = mixed - self.mimic_loss_coef * (ref_obs - ref_motion).norm(dim=-1)
            self._note_rewards(style.mean(), task.mean(), infos)
        _any(super()).process_env_step(mixed, dones, infos, next_obs, next_critic_obs)

    def _note_rewards(self, style: Tensor, task: Tensor, infos: Mapping[str, Any]) -> None:
        for name, value in (("style_reward", style), ("task_reward", task)):
            self.reward_sums[name] = self.reward_sums.get(name, torch.zeros_like(value)) + value
            if isinstance(infos.get("log"), dict):
                infos["log"][f"Episode_Reward/{name}"] = value

    def compute_losses(self, minibatch: Any) -> tuple[Losses, dict[str, Tensor], dict[str, Tensor]]:
        """Return the losses of the class behind, and the discriminator's: 1 for the expert, -1 for the robot."""
        losses, inter_vars, stats = _any(super()).compute_losses(minibatch)
        if self.discriminator_loss_coef != 0.0:
            robot, expert = self.discriminator(minibatch.ref_obs), self.discriminator(minibatch.ref_motion)
            losses["discriminator_expert_loss"] = 0.5 * (expert - 1.0).square().mean()
            losses["discriminator_policy_loss"] = 0.5 * (robot + 1.0).square().mean()
            losses["discriminator_grad_pen_loss"] = self.discriminator.compute_grad_pen(minibatch.ref_motion)
        distance = (minibatch.ref_obs - minibatch.ref_motion).norm(dim=-1).mean()
        stats["mimic_distance"] = distance.detach()
        if self.mimic_loss_coef:
            losses["mimic_loss"] = distance
        if getattr(self, "dagger_loss_coef", 0.0):
            mean = _any(self).actor_critic.action_mean
            losses["dagger_loss"] = (mean - minibatch.action_labels).norm(dim=-1).mean()
        return losses, inter_vars, stats

    def loss_weight(self, name: str) -> float:
        """Return the weight of a loss; `discriminator_loss_coef` for each of the discriminator's."""
        if name.startswith("discriminator_"):
            return self.discriminator_loss_coef
        return float(_any(super()).loss_weight(name))

    def gradient_step(self, loss: Tensor) -> None:
        """Take a step of both optimisers; each gradient is clipped on its own."""
        self.discriminator_optimizer.zero_grad()
        _any(super()).gradient_step(loss)
        if self.discriminator_loss_coef != 0.0:
            parameters = list(self.discriminator.parameters())
            _any(self)._step(self.discriminator_optimizer, parameters, _any(self).max_grad_norm)

    def update(self, current_learning_iteration: int | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Learn from the rollout; stats has 'style_reward' and 'task_reward', the means over its steps."""
        steps = max(1, _any(self).storage.num_transitions_per_env)
        losses, stats = _any(super()).update(current_learning_iteration)
        stats |= {name: value / steps for name, value in self.reward_sums.items()}
        self.reward_sums = {}
        return losses, stats

    def train_mode(self) -> None:
        """Set everything to training."""
        _any(super()).train_mode()
        self.ref_obs_normalizer.train()

    def eval_mode(self) -> None:
        """Set everything to evaluation."""
        _any(super()).eval_mode()
        self.ref_obs_normalizer.eval()

    test_mode = eval_mode

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the class behind, with the discriminator's optimiser and normaliser."""
        return {
            **_any(super()).state_dict(),
            "discriminator_optimizer_state_dict": self.discriminator_optimizer.state_dict(),
            "ref_norm_state_dict": self.ref_obs_normalizer.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned."""
        _any(super()).load_state_dict(state_dict)
        if "discriminator_optimizer_state_dict" in state_dict:
            self.discriminator_optimizer.load_state_dict(state_dict["discriminator_optimizer_state_dict"])
        if "ref_norm_state_dict" in state_dict:
            self.ref_obs_normalizer.load_state_dict(state_dict["ref_norm_state_dict"])


class AmpTeacherRollout(AmpRolloutStorage):
    """`AmpRolloutStorage` that notes where the teacher acted."""

    MiniBatch = namedarraytuple(
        "MiniBatch", [*MINI_BATCH_FIELDS, "action_labels", "ref_obs", "ref_motion", "teacher_acted"]
    )


class APPO(APPOAlgoMixin, PPO):
    """Adversarial PPO."""


class ATPPO(APPOAlgoMixin, TPPO):
    """Adversarial teacher PPO: labels are the teacher's, rewards are the task's and the discriminator's."""


class EstimatorAlgoMixin:
    """The loss of a policy's state estimator, for a PPO or a TPPO behind it."""

    def __init__(
        self,
        *args: Any,
        estimator_loss_func: str = "mse_loss",
        estimator_loss_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Name a loss of `torch.nn.functional`, which is summed over components and averaged over samples."""
        super().__init__(*args, **kwargs)
        model = _any(self).actor_critic
        if not hasattr(model, "estimator_target_components"):
            raise TypeError(
                f"{type(self).__name__} wants a policy with an estimator, such as StateAc; found {type(model).__name__}"
            )
        if not hasattr(functional, estimator_loss_func):
            raise ValueError(unknown("estimator_loss_func", estimator_loss_func, dir(functional), where="torch"))
        self.estimator_obs_components = model.estimator_obs_components
        self.estimator_target_obs_components = model.estimator_target_components
        self.estimator_loss_func, self.estimator_loss_kwargs = estimator_loss_func, dict(estimator_loss_kwargs or {})

    def compute_losses(self, minibatch: Any) -> tuple[Losses, dict[str, Tensor], dict[str, Tensor]]:
        """Return the losses of the class behind, and 'estimator_loss' against the critic's observation."""
        losses, inter_vars, stats = _any(super()).compute_losses(minibatch)
        model = _any(self).actor_critic
        segments = model.critic_obs_segments or model.obs_segments
        target = get_subobs_by_components(minibatch.critic_obs, self.estimator_target_obs_components, segments)
        target = unpad_trajectories(target, minibatch.masks)
        estimate = unpad_trajectories(model.get_estimated_state(), minibatch.masks)
        error = getattr(functional, self.estimator_loss_func)(
            estimate, target, **self.estimator_loss_kwargs, reduction="none"
        )
        losses["estimator_loss"] = error.sum(-1).mean()
        return losses, inter_vars, stats


class EstimatorPPO(EstimatorAlgoMixin, PPO):
    """PPO of a policy with an estimator."""


class EstimatorTPPO(EstimatorAlgoMixin, TPPO):
    """Teacher PPO of a policy with an estimator."""


# -- inside ------------------------------------------------------------------------------------------------------------


def _any(value: Any) -> Any:
    """Return a value of a class that a mixin is put in front of."""
    return value


def _schedule(option: str | float, scale: float) -> Callable[[float], float]:
    schedule = TeacherSchedule(option=option, scale=float(scale))
    return lambda iteration: float(schedule(iteration))


def _distance(target: str, found: Tensor, label: Tensor) -> Tensor:
    """Return how far actions or latents are from their labels, [..]."""
    if target == "real":
        distance: Tensor = torch.linalg.vector_norm(found - label, dim=-1)
        return distance
    if target == "mse_sum":
        return (found - label).square().sum(-1)
    if target == "l1":
        return (found - label).abs().sum(-1)
    if target in ("tanh", "scaled_tanh"):
        half, wanted = (((each + 1.0) * 0.5).clamp(0.0, 1.0) for each in (found, label))
        cross = functional.binary_cross_entropy(half, wanted, reduction="none").mean(-1) * 2.0
        return cross if target == "tanh" else cross * (found - label).abs().mean(-1).detach()
    raise ValueError(unknown("distill_target", target, ["real", "mse_sum", "l1", "tanh", "scaled_tanh"], where="TPPO"))


def _resampled(hidden_states: Any, probability: float) -> Any:
    """Return hidden states of which some trajectories have random ones in [-1, 1)."""
    leaf = tree.leaves(hidden_states)[0]
    chosen = (torch.rand(leaf.shape[1], device=leaf.device) < probability).view(1, -1, 1)
    return tree.map(lambda each: torch.where(chosen, torch.rand_like(each) * 2.0 - 1.0, each), hidden_states)
