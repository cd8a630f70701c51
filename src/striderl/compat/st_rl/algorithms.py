"""PPO as st_rl has it: every method and attribute may be used, set and overridden.

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

from striderl.compat import original_paths
from striderl.compat.st_rl import build
from striderl.compat.st_rl.modules import ActorCritic, argument_names
from striderl.compat.st_rl.normalizers import EmpiricalNormalization
from striderl.compat.st_rl.storage import RolloutStorage, follow_aliases
from striderl.data.naming import unknown

__path__: list[str] = []  # the modules algorithms.… of st_rl and rsl_rl 1 are below, see compat/original_paths.py
__getattr__ = original_paths.further_names(
    "striderl.compat.st_rl", "algorithms", original_paths.ST_RL_FURTHER["algorithms"]
)

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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        follow_aliases(cls, PPO)

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
        self.rnd: Any = None
        """A reward for novelty, of a subclass that has one."""
        self.num_skipped_updates = 0
        """Gradient steps that were skipped because the gradient was not finite."""

    def policy_parameters(self) -> list[nn.Parameter]:
        """Return what `optimizer` learns: all parameters of the actor-critic."""
        return list(self.actor_critic.parameters())

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
        with outside_autograd():
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
        with outside_autograd():
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
        with outside_autograd():
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
            self.storage.recurrent_mini_batch_generator
            if self.actor_critic.is_recurrent
            else self.storage.mini_batch_generator
        )
        return generator(self.num_mini_batches, self.num_learning_epochs)  # type: ignore[no-any-return]

    def loss_weight(self, name: str) -> float:
        """Return the weight of a loss: the attribute `name + "_coef"`, 1 without one."""
        coefficient = f"{name}_coef"
        return float(getattr(self, coefficient, 1.0))

    def _total(self, losses: Mapping[str, Tensor]) -> Tensor:
        if not losses:
            raise ValueError(f"{type(self).__name__}.compute_losses returned no losses; there is nothing to learn")
        return sum(
            (self.loss_weight(name) * value for name, value in losses.items()), torch.zeros((), device=self.device)
        )

    def gradient_step(self, loss: Tensor) -> None:
        """Take one step of the optimiser; a gradient that is not finite is counted and changes nothing."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
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


# -- inside ------------------------------------------------------------------------------------------------------------


@contextmanager
def outside_autograd() -> Iterator[None]:
    """Make ordinary tensors without gradients, also in a loop that is in inference mode: the update goes backward."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _optimizer(name: str) -> Callable[..., optim.Optimizer]:
    known = {
        each: kind for each, kind in vars(optim).items() if isinstance(kind, type) and issubclass(kind, optim.Optimizer)
    }
    if name not in known:
        raise ValueError(unknown("optimizer_class_name", name, known, where="torch.optim"))
    return known[name]


def _gaussian_kl(old_mu: Tensor, old_sigma: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    """Return KL(old ‖ new) [..] of diagonal Gaussians, with st_rl's small number inside the logarithm.

    It gives equal policies a KL just above zero, by which an adaptive schedule begins to raise the learning rate.
    """
    spread = (old_sigma.square() + (old_mu - mu).square()) / (2.0 * sigma.square())
    return (torch.log(sigma / old_sigma + 1e-5) + spread - 0.5).sum(-1).detach()
