"""PPO and its relatives as st_rl has them: every method and attribute may be used, set and overridden.

    alg = PPO(ActorCritic(48, 48, 12), num_learning_epochs=5, num_mini_batches=4, device="cpu")
    alg.init_storage(num_envs, 24, [48], [None], [12])
    for it in range(1000):
        for _ in range(24):
            obs, rewards, dones, infos = env.step(alg.act(obs, obs))
            alg.process_env_step(rewards, dones, infos)
        alg.compute_returns(obs)
        losses, stats = alg.update(it)

    act ─▶ transition ─▶ process_env_step ─▶ storage ─▶ compute_returns ─▶ update ─▶ compute_losses per minibatch

A loss named `x` has the weight `self.x_coef`, 1 without one. What differs from the original text, and why, is in
docs/defects.md. `striderl.compat.PPO` has the same calls and runs on the parts that `striderl.training` uses.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from striderl.compat.st_rl import build
from striderl.compat.st_rl.mixins import get_subobs_by_components
from striderl.compat.st_rl.modules import ActorCritic, EmpiricalNormalization, argument_names, unpad_trajectories
from striderl.compat.st_rl.storage import MINI_BATCH_FIELDS, ActionLabelRollout, AmpRolloutStorage, RolloutStorage
from striderl.data import tree
from striderl.data.named_tuples import namedarraytuple
from striderl.data.naming import unknown
from striderl.ops.ramps import TeacherSchedule

_log = logging.getLogger(__name__)

Losses = dict[str, Tensor]
FINAL_CRITIC_KEYS = ("final_critic_obs", "final_obs", "final_observation", "terminal_observation")
"""Where `infos` may have what the critic saw last, [N, …]; the first that is there is taken."""


class _FromConfig(type):
    """Build an algorithm from its arguments, or from a train config and an env: `APPO(cfg, env)`."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not args or not isinstance(args[0], Mapping):
            return super().__call__(*args, **kwargs)
        if len(args) != 2:
            raise TypeError(f"{cls.__name__}(cfg, env) takes a train config and an env, found {len(args)} arguments")
        found = build.parts_of(args[0], args[1])
        algorithm = super().__call__(found.model, **{**found.settings, **kwargs})
        algorithm.init_storage(*found.storage)
        return algorithm


class PPO(metaclass=_FromConfig):
    """Proximal policy optimisation; see the top of this module for the order of calls."""

    actor_critic: ActorCritic

    def __init__(
        self,
        actor_critic: Any,
        num_learning_epochs: int = 1,
        num_mini_batches: int = 1,
        clip_param: float = 0.2,
        gamma: float = 0.998,
        lam: float = 0.95,
        value_loss_coef: float = 1.0,
        entropy_coef: float = 0.0,
        learning_rate: float = 1e-3,
        max_grad_norm: float = 1.0,
        use_clipped_value_loss: bool = True,
        clip_min_std: float | Sequence[float] = 1e-15,
        optimizer_class_name: str = "Adam",
        schedule: str = "fixed",
        desired_kl: float | None = 0.01,
        device: torch.device | str = "cpu",
        empirical_normalization: bool = False,
        **unused: Any,
    ) -> None:
        """Take an actor-critic, which is moved to the device, and make its optimiser."""
        if unused:
            raise TypeError(
                unknown("argument", next(iter(unused)), argument_names(type(self)), where=type(self).__name__)
            )
        self.device = torch.device(device)
        self.actor_critic = actor_critic.to(self.device)
        self.num_learning_epochs, self.num_mini_batches = num_learning_epochs, num_mini_batches
        self.clip_param, self.gamma, self.lam = clip_param, gamma, lam
        self.value_loss_coef, self.entropy_coef = value_loss_coef, entropy_coef
        self.learning_rate, self.max_grad_norm = learning_rate, max_grad_norm
        self.use_clipped_value_loss, self.clip_min_std = use_clipped_value_loss, clip_min_std
        self.schedule, self.desired_kl = schedule, desired_kl
        self.empirical_normalization = empirical_normalization
        self.optimizer: optim.Optimizer = _optimizer(optimizer_class_name)(self.policy_parameters(), lr=learning_rate)
        self.transition: Any = RolloutStorage.Transition()
        self.storage: Any = None
        self.obs_normalizer: nn.Module = nn.Identity()
        self.critic_obs_normalizer: nn.Module = nn.Identity()
        self.current_learning_iteration = 0
        self.num_skipped_updates = 0
        """Gradient steps that were skipped because the gradient was not finite."""

    def policy_parameters(self) -> list[nn.Parameter]:
        """Return what `optimizer` learns: all parameters of the actor-critic but a discriminator's."""
        named = self.actor_critic.named_parameters()
        return [each for name, each in named if not name.startswith("discriminator.")]

    # -- the calls of a loop -------------------------------------------------------------------------------------------

    def init_obs_norm(self, num_obs: int, num_critic_obs: int) -> None:
        """Make the normalisers that the loop calls on observations before `act`; the identity without them.

        In train mode they learn with each call; what is stored is normalised already, so the update reads the same.
        """
        self.obs_normalizer, self.critic_obs_normalizer = nn.Identity(), nn.Identity()
        if self.empirical_normalization:
            self.obs_normalizer = EmpiricalNormalization([num_obs], until=10**8).to(self.device)
            self.critic_obs_normalizer = EmpiricalNormalization([num_critic_obs], until=10**8).to(self.device)

    def init_storage(
        self,
        num_envs: int,
        num_transitions_per_env: int,
        actor_obs_shape: Sequence[int],
        critic_obs_shape: Sequence[int | None] | None,
        action_shape: Sequence[int],
        **kwargs: Any,
    ) -> None:
        """Make room for rollouts, and the normalisers where there are none yet."""
        self.transition = RolloutStorage.Transition()
        shapes = (actor_obs_shape, critic_obs_shape, action_shape)
        self.storage = RolloutStorage(num_envs, num_transitions_per_env, *shapes, self.device, **kwargs)
        self._init_norm(actor_obs_shape, critic_obs_shape)

    def _init_norm(self, actor_obs_shape: Sequence[int], critic_obs_shape: Sequence[int | None] | None) -> None:
        if self.empirical_normalization and isinstance(self.obs_normalizer, nn.Identity):
            critic = actor_obs_shape if critic_obs_shape is None or None in critic_obs_shape else critic_obs_shape
            self.init_obs_norm(math.prod(actor_obs_shape), math.prod(size or 0 for size in critic))

    def act(self, obs: Tensor, critic_obs: Tensor) -> Tensor:
        """Return sampled actions, and note the step in `transition`."""
        with _outside_autograd():
            model, step = self.actor_critic, self.transition
            if model.is_recurrent:
                step.hidden_states = model.get_hidden_states()
            step.actions = model.act(obs).detach()
            step.values = model.evaluate(critic_obs).detach()
            step.actions_log_prob = model.get_actions_log_prob(step.actions).detach()
            step.action_mean, step.action_sigma = model.action_mean.detach(), model.action_std.detach()
            step.observations, step.critic_observations = obs, critic_obs
            actions: Tensor = step.actions
        return actions

    def process_env_step(
        self,
        rewards: Tensor,
        dones: Tensor,
        infos: Mapping[str, Any] | None = None,
        next_obs: Tensor | None = None,
        next_critic_obs: Tensor | None = None,
    ) -> None:
        """Store the step, and reset the memory of envs whose episode ended.

        A time-out (`infos["time_outs"]` [N]) adds γ times the value of what the critic saw last, where `infos` have it
        (see FINAL_CRITIC_KEYS), else of the step's own observation. `next_obs` is accepted as in parkour's loops.
        """
        infos = infos or {}
        with _outside_autograd():
            self.transition.rewards = torch.as_tensor(rewards, dtype=torch.float32, device=self.device).clone()
            self.transition.dones = torch.as_tensor(dones, device=self.device).reshape(-1).bool()
            if infos.get("time_outs") is not None:
                late = (
                    torch.as_tensor(infos["time_outs"], device=self.device).reshape(-1).bool() & self.transition.dones
                )
                values = self._last_values(infos)
                self.transition.rewards += self.gamma * values.reshape(-1) * late
            self.storage.add_transitions(self.transition)
            self.transition.clear()
            self.actor_critic.reset(dones)

    def _last_values(self, infos: Mapping[str, Any]) -> Tensor:
        """Return the values [N, 1] of the last observations, or of the step itself where they are not given."""
        found = next((infos[key] for key in FINAL_CRITIC_KEYS if isinstance(infos.get(key), Tensor)), None)
        values: Tensor = self.transition.values
        if found is None or found.shape[-1] != self.transition.critic_observations.shape[-1]:
            return values
        return self._evaluate_aside(found)

    def _evaluate_aside(self, critic_obs: Tensor) -> Tensor:
        """Return values of an observation that is no step: the memory stays where it is."""
        before = self.actor_critic.get_hidden_states() if self.actor_critic.is_recurrent else None
        values = self.actor_critic.evaluate(critic_obs).detach()
        if before is not None:
            self.actor_critic.set_hidden_states(before)
        return values

    def compute_returns(self, last_critic_obs: Tensor) -> None:
        """Compute returns and advantages; valuing the last observation does not advance the memory."""
        with _outside_autograd():
            self.storage.compute_returns(self._evaluate_aside(last_critic_obs), self.gamma, self.lam)

    # -- learning ------------------------------------------------------------------------------------------------------

    def update(self, current_learning_iteration: int | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Learn from the rollout; return (losses, stats), the means over all minibatches.

        losses has 'total_loss', the weighted sum, beside each loss without its weight.
        """
        if current_learning_iteration is not None:
            self.current_learning_iteration = current_learning_iteration
        self._check_normalizers()
        mean_losses: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=self.device))
        average_stats: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=self.device))
        count = 0
        with torch.inference_mode(False), torch.enable_grad():
            for minibatch in self.mini_batches():
                losses, _, stats = self.compute_losses(minibatch)
                loss = self._total(losses)
                for name, value in losses.items():
                    mean_losses[name] = mean_losses[name] + value.detach()
                mean_losses["total_loss"] = mean_losses["total_loss"] + loss.detach()
                for name, value in stats.items():
                    average_stats[name] = average_stats[name] + torch.as_tensor(value, device=self.device).detach()
                self.gradient_step(loss)
                count += 1
        self.storage.clear()
        if hasattr(self.actor_critic, "clip_std"):
            self.actor_critic.clip_std(min=self.clip_min_std)
        if current_learning_iteration is None:
            self.current_learning_iteration += 1
        return (
            {name: value / max(count, 1) for name, value in mean_losses.items()},
            {name: value / max(count, 1) for name, value in average_stats.items()},
        )

    def mini_batches(self) -> Iterator[Any]:
        """Return the minibatches of an update: padded trajectories of whole envs where the policy has a memory."""
        generator = (
            self.storage.reccurent_mini_batch_generator
            if self.actor_critic.is_recurrent
            else self.storage.mini_batch_generator
        )
        return generator(self.num_mini_batches, self.num_learning_epochs)  # type: ignore[no-any-return]

    def loss_weight(self, name: str) -> float:
        """Return the weight of a loss: the attribute `name + "_coef"`, 1 without one."""
        return float(getattr(self, f"{name}_coef", 1.0))

    def _total(self, losses: Mapping[str, Tensor]) -> Tensor:
        if not losses:
            raise ValueError(f"{type(self).__name__}.compute_losses returned no losses; there is nothing to learn")
        return sum(
            (self.loss_weight(name) * value for name, value in losses.items()), torch.zeros((), device=self.device)
        )

    def gradient_step(self, loss: Tensor) -> None:
        """Take one step of the optimiser; a gradient that is not finite is counted and changes nothing."""
        self.optimizer.zero_grad()
        loss.backward()
        self._step(self.optimizer, self.policy_parameters(), self.max_grad_norm)

    def _step(self, optimizer: optim.Optimizer, parameters: list[nn.Parameter], max_grad_norm: float) -> None:
        norm = nn.utils.clip_grad_norm_(parameters, max_grad_norm)
        if bool(torch.isfinite(norm)):
            optimizer.step()
        else:
            self.num_skipped_updates += 1

    def compute_losses(self, minibatch: Any) -> tuple[Losses, dict[str, Tensor], dict[str, Tensor]]:
        """Return (losses, inter_vars, stats) of a minibatch, and adapt the learning rate where the schedule does."""
        model, hidden = self.actor_critic, minibatch.hidden_states
        model.act(minibatch.obs, masks=minibatch.masks, hidden_states=None if hidden is None else hidden.actor)
        log_prob = model.get_actions_log_prob(minibatch.actions)
        value = model.evaluate(
            minibatch.critic_obs, masks=minibatch.masks, hidden_states=None if hidden is None else hidden.critic
        )
        kl = _gaussian_kl(minibatch.old_mu, minibatch.old_sigma, model.action_mean, model.action_std)
        self._adapt_learning_rate(kl)
        ratio = torch.exp(log_prob - minibatch.old_actions_log_prob.squeeze(-1))
        advantages = minibatch.advantages.squeeze(-1)
        surrogate = -advantages * ratio
        surrogate_clipped = -advantages * ratio.clamp(1.0 - self.clip_param, 1.0 + self.clip_param)
        worse, counted = torch.max(surrogate, surrogate_clipped), self.in_surrogate(minibatch)
        if counted is not None:
            worse = torch.where(counted, worse, 0.0) * (counted.numel() / counted.sum().clamp(min=1))
        inter_vars = {"ratio": ratio, "surrogate": surrogate, "surrogate_clipped": surrogate_clipped, "kl": kl}
        errors = (value - minibatch.returns).square()
        if self.use_clipped_value_loss:
            near = minibatch.values + (value - minibatch.values).clamp(-self.clip_param, self.clip_param)
            errors = torch.max(errors, (near - minibatch.returns).square())
            inter_vars["value_clipped"] = near
        losses = {"surrogate_loss": worse.mean(), "value_loss": errors.mean(), "entropy": -model.entropy.mean()}
        return losses, inter_vars, {}

    def in_surrogate(self, minibatch: Any) -> Tensor | None:
        """Return bool [..] where a sample counts in the surrogate; None for everywhere."""
        return None

    @torch.no_grad()
    def _adapt_learning_rate(self, kl: Tensor) -> None:
        if self.desired_kl is None or self.schedule != "adaptive":
            return
        mean = float(kl.mean())
        if mean > self.desired_kl * 2.0:
            self.learning_rate = max(1e-5, self.learning_rate / 1.5)
        elif 0.0 < mean < self.desired_kl / 2.0:
            self.learning_rate = min(1e-2, self.learning_rate * 1.5)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def _check_normalizers(self) -> None:
        for name in ("obs_normalizer", "critic_obs_normalizer"):
            normalizer = vars(self)[name]
            if isinstance(normalizer, EmpiricalNormalization) and not bool(normalizer.count > 0):
                raise RuntimeError(
                    f"empirical_normalization=True, but {name} has seen nothing: call alg.train_mode() and pass "
                    f"observations through alg.{name}(obs) before alg.act, or set empirical_normalization=False"
                )

    # -- modes and saving ----------------------------------------------------------------------------------------------

    def train_mode(self) -> None:
        """Set the model and the normalisers to training."""
        for module in (self.actor_critic, self.obs_normalizer, self.critic_obs_normalizer):
            module.train()

    def eval_mode(self) -> None:
        """Set the model and the normalisers to evaluation: statistics stay as they are."""
        for module in (self.actor_critic, self.obs_normalizer, self.critic_obs_normalizer):
            module.eval()

    test_mode = eval_mode

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimiser, scheduler and normalisers, for `torch.save`."""
        state: dict[str, Any] = {
            "model_state_dict": self.actor_critic.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
        }
        if hasattr(self, "lr_scheduler"):
            state["lr_scheduler_state_dict"] = self.lr_scheduler.state_dict()
        if self.empirical_normalization:
            state["obs_norm_state_dict"] = self.obs_normalizer.state_dict()
            state["critic_obs_norm_state_dict"] = self.critic_obs_normalizer.state_dict()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned, of this or an older library; parts that are missing stay as they are."""
        if "model_state_dict" not in state_dict:
            raise KeyError(unknown("entry", "model_state_dict", state_dict, where="the checkpoint"))
        self.actor_critic.load_state_dict(state_dict["model_state_dict"])
        if "optimizer_state_dict" in state_dict:
            self.optimizer.load_state_dict(state_dict["optimizer_state_dict"])
            self.learning_rate = float(self.optimizer.param_groups[0]["lr"])
        for key, name in (
            ("obs_norm_state_dict", "obs_normalizer"),
            ("critic_obs_norm_state_dict", "critic_obs_normalizer"),
        ):
            if (key in state_dict) != self.empirical_normalization:
                raise ValueError(
                    f"the checkpoint has {'a' if key in state_dict else 'no'} {key}, and empirical_normalization is "
                    f"{self.empirical_normalization}: the policy would read other numbers; set it alike"
                )
            if key in state_dict:
                vars(self)[name].load_state_dict(state_dict[key])
        if hasattr(self, "lr_scheduler") and "lr_scheduler_state_dict" in state_dict:
            self.lr_scheduler.load_state_dict(state_dict["lr_scheduler_state_dict"])
        elif "lr_scheduler_state_dict" in state_dict:
            _log.warning("the checkpoint has the state of a learning-rate scheduler, and there is none here; ignored")


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
        self.teacher_actor_critic, self.teacher_normalizer = (part.to(self.device).eval() for part in found)
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
        self.storage = LabelledRollout(*args, device=self.device, buffer_dilation_ratio=ratio, **kwargs)
        self._init_norm(self.storage.obs_shape, self.storage.privileged_obs_shape)

    def act(self, obs: Tensor, critic_obs: Tensor) -> Tensor:
        """Return sampled actions, and where the teacher acts its own; log-probabilities are of what is executed."""
        actions = super().act(obs, critic_obs)
        with _outside_autograd():
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
        with _outside_autograd():
            self.teacher_actor_critic.reset(ended)
            drawn = torch.rand(len(ended), device=self.device) < self.teacher_act_prob(self.current_learning_iteration)
            self.use_teacher_act_mask = torch.where(ended, drawn, self._teacher_mask(len(ended)))

    def collect_transition_from_dataset(self, transition: Any, infos: Mapping[str, Any] | None = None) -> None:
        """Store a recorded step: its action is executed, and is the label."""
        obs, critic = build.flat(transition.observation), transition.privileged_observation
        self.act(obs, obs if critic is None else build.flat(critic))
        action = transition.action.to(self.device)
        self.transition.actions = self.transition.action_labels = action
        with _outside_autograd():
            self.transition.actions_log_prob = self.actor_critic.get_actions_log_prob(action).detach()
        self.transition.teacher_acted = torch.ones_like(self._teacher_mask(len(action)))
        PPO.process_env_step(self, transition.reward, transition.done, infos)

    def compute_returns(self, last_critic_obs: Tensor) -> None:
        """Compute returns where PPO uses them."""
        if self.using_ppo:
            super().compute_returns(last_critic_obs)

    def in_surrogate(self, minibatch: Any) -> Tensor | None:
        """Leave out what the teacher did: the ratio compares the policy with itself."""
        acted: Tensor = minibatch.teacher_acted
        return ~acted

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
        infos: Mapping[str, Any],
        next_obs: Tensor | None = None,
        next_critic_obs: Tensor | None = None,
    ) -> None:
        """Store the step with its motions, rewarded by the discriminator.

        infos["observations"]["ref_obs"] [N, …] is the robot's motion, infos["ref_motion"] [N, …] the expert's. The
        means of style and task reward are written to infos["log"] where infos have a dict there.
        """
        owner = _any(self)
        if "ref_obs" not in infos.get("observations", {}) or "ref_motion" not in infos:
            raise KeyError(
                f"Missing ref_obs in infos: wanted infos['observations']['ref_obs'] and infos['ref_motion'], found "
                f"{sorted(infos)}"
            )
        with _outside_autograd():
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
            losses["discriminator_grad_len_loss"] = self.discriminator.compute_grad_pen(minibatch.ref_motion)
        distance = (minibatch.ref_obs - minibatch.ref_motion).norm(dim=-1).mean()
        stats["mimic_distance"] = distance.detach()
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


@contextmanager
def _outside_autograd() -> Iterator[None]:
    """Make ordinary tensors without gradients, also in a loop that is in inference mode: the update goes backward."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _any(value: Any) -> Any:
    """Return a value of a class that a mixin is put in front of."""
    return value


def _optimizer(name: str) -> Callable[..., optim.Optimizer]:
    known = {
        each: kind for each, kind in vars(optim).items() if isinstance(kind, type) and issubclass(kind, optim.Optimizer)
    }
    if name not in known:
        raise ValueError(unknown("optimizer_class_name", name, known, where="torch.optim"))
    return known[name]


def _schedule(option: str | float, scale: float) -> Callable[[float], float]:
    schedule = TeacherSchedule(option=option, scale=float(scale))
    return lambda iteration: float(schedule(iteration))


def _gaussian_kl(old_mu: Tensor, old_sigma: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    """Return KL(old ‖ new) [..] of diagonal Gaussians."""
    spread = (old_sigma.square() + (old_mu - mu).square()) / (2.0 * sigma.square())
    return (torch.log(sigma / old_sigma) + spread - 0.5).sum(-1).detach()


def _distance(target: str, found: Tensor, label: Tensor) -> Tensor:
    """Return how far actions or latents are from their labels, [..]."""
    if target == "real":
        return torch.linalg.vector_norm(found - label, dim=-1)
    if target == "mse_sum":
        return (found - label).square().sum(-1)
    if target == "l1":
        return (found - label).abs().sum(-1)
    if target in ("tanh", "scaled_tanh"):
        halves = [((each + 1.0) * 0.5).clamp(0.0, 1.0) for each in (found, label)]
        cross = functional.binary_cross_entropy(*halves, reduction="none").mean(-1) * 2.0
        return cross if target == "tanh" else cross * (found - label).abs().mean(-1).detach()
    raise ValueError(unknown("distill_target", target, ["real", "mse_sum", "l1", "tanh", "scaled_tanh"], where="TPPO"))


def _resampled(hidden_states: Any, probability: float) -> Any:
    """Return hidden states of which some trajectories have random ones in [-1, 1)."""
    leaf = tree.leaves(hidden_states)[0]
    chosen = (torch.rand(leaf.shape[1], device=leaf.device) < probability).view(1, -1, 1)
    return tree.map(lambda each: torch.where(chosen, torch.rand_like(each) * 2.0 - 1.0, each), hidden_states)
