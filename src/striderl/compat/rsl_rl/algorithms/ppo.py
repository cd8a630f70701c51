"""`PPO` of rsl_rl 5: an actor, a critic and a storage; a subclass may override every method.

alg = PPO(actor, critic, RolloutStorage("rl", num_envs, 24, obs, [12]))
for _ in range(24):
    obs, rewards, dones, extras = env.step(alg.act(obs))
    alg.process_env_step(obs, rewards, dones, extras)
alg.compute_returns(obs)
losses = alg.update()

update ─▶ minibatches of the storage ─▶ compute_losses(batch) ─▶ gradient_step(loss) ─▶ normalisers
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from striderl.compat.rsl_rl.extensions.rnd import RandomNetworkDistillation, resolve_rnd_config
from striderl.compat.rsl_rl.extensions.symmetry import Symmetry, resolve_symmetry_config
from striderl.compat.rsl_rl.models.mlp_model import MLPModel
from striderl.compat.rsl_rl.storage.rollout_storage import RolloutStorage
from striderl.compat.rsl_rl.utils.utils import (
    compile_model,
    reduce_gradients_in_buckets,
    resolve_class,
    resolve_obs_groups,
    resolve_optimizer,
)
from striderl.ops.returns import gae

_SLOWEST, _FASTEST, _FACTOR = 1e-5, 1e-2, 1.5


class PPO:
    """Proximal policy optimisation; see the top of this module."""

    actor: MLPModel
    critic: MLPModel

    def __init__(
        self,
        actor: MLPModel,
        critic: MLPModel,
        storage: RolloutStorage,
        num_learning_epochs: int = 5,
        num_mini_batches: int = 4,
        clip_param: float = 0.2,
        gamma: float = 0.99,
        lam: float = 0.95,
        value_loss_coef: float = 1.0,
        entropy_coef: float = 0.01,
        learning_rate: float = 0.001,
        max_grad_norm: float = 1.0,
        optimizer: str = "adam",
        use_clipped_value_loss: bool = True,
        schedule: str = "adaptive",
        desired_kl: float | None = 0.01,
        normalize_advantage_per_mini_batch: bool = False,
        use_mixed_precision: bool = False,
        device: torch.device | str = "cpu",
        rnd_cfg: Mapping[str, Any] | None = None,
        symmetry_cfg: Mapping[str, Any] | None = None,
        multi_gpu_cfg: Mapping[str, Any] | None = None,
        grad_reduce_bucket_mb: float = 25,
    ) -> None:
        """Take the parts and the settings; attributes have the names of the arguments and are read at each update.

        schedule: 'adaptive' follows `desired_kl`, any other keeps the learning rate.
        rnd_cfg, symmetry_cfg: the arguments of a RandomNetworkDistillation and of a Symmetry.
        multi_gpu_cfg: 'global_rank' and 'world_size' where several processes learn together.
        """
        if symmetry_cfg is not None and (actor.is_recurrent or critic.is_recurrent):
            raise ValueError("symmetry_cfg: mirrored samples have no trajectories, which a model with a memory wants")
        self.device = device
        self.is_multi_gpu = multi_gpu_cfg is not None
        self.gpu_global_rank = 0 if multi_gpu_cfg is None else int(multi_gpu_cfg["global_rank"])
        self.gpu_world_size = 1 if multi_gpu_cfg is None else int(multi_gpu_cfg["world_size"])
        self.grad_reduce_bucket_mb = grad_reduce_bucket_mb
        self.rnd = RandomNetworkDistillation(device=device, **rnd_cfg) if rnd_cfg else None
        self.intrinsic_rewards: Tensor | None = None
        """The novelty of the last step, weighted."""
        self.symmetry = Symmetry(**symmetry_cfg) if symmetry_cfg else None
        self.actor, self.critic = actor.to(device), critic.to(device)
        self._raw_actor, self._raw_critic = self.actor, self.critic
        self.optimizer: torch.optim.Optimizer = cast(Any, resolve_optimizer(optimizer))(
            self._parameters(), lr=learning_rate
        )
        self.storage = storage
        self.transition = storage.Transition()
        self.clip_param, self.use_clipped_value_loss = clip_param, use_clipped_value_loss
        self.num_learning_epochs, self.num_mini_batches = num_learning_epochs, num_mini_batches
        self.value_loss_coef, self.entropy_coef, self.max_grad_norm = value_loss_coef, entropy_coef, max_grad_norm
        self.gamma, self.lam = gamma, lam
        self.schedule, self.desired_kl, self.learning_rate = schedule, desired_kl, learning_rate
        self.normalize_advantage_per_mini_batch = normalize_advantage_per_mini_batch
        self.use_mixed_precision = use_mixed_precision

    def _parameters(self) -> list[nn.Parameter]:
        """Return the parameters of both models, those of shared encoders once."""
        return list(dict.fromkeys(chain(self.actor.parameters(), self.critic.parameters())))

    # -- the rollout ---------------------------------------------------------------------------------------------------

    def act(self, obs: Any) -> Tensor:
        """Return sampled actions, and note the step in `transition`."""
        step = self.transition
        step.hidden_states = (self.actor.get_hidden_state(), self.critic.get_hidden_state())
        step.actions = self.actor(obs, stochastic_output=True).detach()
        step.values = self.critic(obs).detach()
        step.actions_log_prob = self.actor.get_output_log_prob(step.actions).detach()
        step.distribution_params = tuple(each.detach() for each in self.actor.output_distribution_params)
        step.observations = obs
        return step.actions  # type: ignore[no-any-return]

    def process_env_step(self, obs: Any, rewards: Tensor, dones: Tensor, extras: Mapping[str, Any]) -> None:
        """Store the step; a time-out adds γ·V(s_t), and novelty its own reward."""
        step = self.transition
        step.rewards, step.dones = rewards.clone(), dones
        if self.rnd is not None:
            self.intrinsic_rewards = self.rnd.get_intrinsic_reward(obs)
            step.rewards += self.intrinsic_rewards
        if "time_outs" in extras:
            late = extras["time_outs"].to(self.device).reshape(-1)
            step.rewards += self.gamma * step.values.squeeze(1) * late
        self.storage.add_transition(step)
        step.clear()
        self.actor.reset(dones)
        self.critic.reset(dones)

    def compute_returns(self, obs: Any) -> None:
        """Compute returns and advantages; valuing the last observation does not advance the memory."""
        before = self.critic.get_hidden_state()
        last = self.critic(obs).detach()
        self.critic.reset(hidden_state=before)
        store = self.storage
        values, dones = store.values.squeeze(-1), store.dones.squeeze(-1).bool()
        following = torch.cat([values[1:], last.reshape(1, -1)])
        returns, advantages = gae(
            store.rewards.squeeze(-1),
            values,
            following,
            dones,
            torch.zeros_like(dones),
            gamma=self.gamma,
            lam=self.lam,
        )
        store.returns.copy_(returns.unsqueeze(-1))
        # written in place: a rollout may be in inference mode, whose tensors no update can read
        store.advantages.copy_(advantages.unsqueeze(-1))
        if not self.normalize_advantage_per_mini_batch:
            store.advantages.copy_(_normalised(store.advantages))

    # -- learning ------------------------------------------------------------------------------------------------------

    def update(self) -> dict[str, float]:
        """Learn from the rollout, and return the mean of each loss."""
        sums: dict[str, Tensor | float] = defaultdict(float)
        for batch in self.mini_batches():
            loss, found = self.compute_losses(batch)
            self.gradient_step(loss)
            for name, value in found.items():
                sums[name] = sums[name] + value.detach()
        seen = self.storage.observations.flatten(0, 1)
        self.actor.update_normalization(seen)
        self.critic.update_normalization(seen)
        if self.rnd is not None:
            self.rnd.update_normalization(seen)
        count = self.num_learning_epochs * self.num_mini_batches
        self.storage.clear()
        return {name: float(total) / count for name, total in sums.items()}

    def mini_batches(self) -> Iterator[RolloutStorage.Batch]:
        """Return the minibatches of an update: of whole envs where a model has a memory."""
        recurrent = self.actor.is_recurrent or self.critic.is_recurrent
        generator = self.storage.recurrent_mini_batch_generator if recurrent else self.storage.mini_batch_generator
        return generator(self.num_mini_batches, self.num_learning_epochs)

    def compute_losses(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch, and its parts by name for the log; adapts the learning rate.

        A subclass adds a term: `loss, found = super().compute_losses(batch)`.
        """
        count = batch.observations.batch_size[0]
        if self.normalize_advantage_per_mini_batch:
            batch.advantages = _normalised(batch.advantages)
        if self.symmetry is not None:
            self.symmetry.augment_batch(batch, count)
        kind = torch.device(self.device).type
        with torch.autocast(device_type=kind, enabled=self.use_mixed_precision, dtype=torch.bfloat16):
            memory = batch.hidden_states
            self.actor(batch.observations, masks=batch.masks, hidden_state=memory[0], stochastic_output=True)
            log_prob = self.actor.get_output_log_prob(batch.actions)
            values = self.critic(batch.observations, masks=batch.masks, hidden_state=memory[1])
            params = tuple(each[:count] for each in self.actor.output_distribution_params)
            entropy = self.actor.output_entropy[:count].mean()
            if self.desired_kl is not None and self.schedule == "adaptive":
                with torch.no_grad():
                    kl = self.actor.get_kl_divergence(batch.old_distribution_params, params).mean()
                self.adapt_learning_rate(kl)
            surrogate = self._surrogate(log_prob, batch)
            value_loss = self._value_loss(values, batch)
            loss = surrogate + self.value_loss_coef * value_loss - self.entropy_coef * entropy
            found = {"value": value_loss, "surrogate": surrogate, "entropy": entropy}
            if self.rnd is not None:
                # a term of its own parameters: its gradient is that of a separate backward pass
                found["rnd"] = self.rnd.compute_loss(batch.observations[:count])
                loss = loss + found["rnd"]
            if self.symmetry is not None:
                found["symmetry"] = self.symmetry.compute_loss(self.actor, batch, count)
                if self.symmetry.use_mirror_loss:
                    loss = loss + self.symmetry.mirror_loss_coeff * found["symmetry"]
        return loss, found

    def _surrogate(self, log_prob: Tensor, batch: Any) -> Tensor:
        ratio = torch.exp(log_prob - batch.old_actions_log_prob.squeeze(-1))
        advantages = batch.advantages.squeeze(-1)
        clipped = ratio.clamp(1.0 - self.clip_param, 1.0 + self.clip_param)
        worse: Tensor = torch.max(-advantages * ratio, -advantages * clipped)
        return worse.mean()

    def _value_loss(self, values: Tensor, batch: Any) -> Tensor:
        errors: Tensor = (values - batch.returns).square()
        if self.use_clipped_value_loss:
            near = batch.values + (values - batch.values).clamp(-self.clip_param, self.clip_param)
            errors = torch.max(errors, (near - batch.returns).square())
        return errors.mean()

    def adapt_learning_rate(self, kl: Tensor) -> None:
        """Move the learning rate by the KL of all processes, and give it to the optimiser."""
        if self.is_multi_gpu:
            torch.distributed.all_reduce(kl, op=torch.distributed.ReduceOp.SUM)
            kl = kl / self.gpu_world_size
        assert self.desired_kl is not None
        if kl > self.desired_kl * 2.0:
            self.learning_rate = max(_SLOWEST, self.learning_rate / _FACTOR)
        elif 0.0 < kl < self.desired_kl / 2.0:
            self.learning_rate = min(_FASTEST, self.learning_rate * _FACTOR)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def gradient_step(self, loss: Tensor) -> None:
        """Take one step of each optimiser, with gradients of all processes."""
        self.optimizer.zero_grad()
        if self.rnd is not None:
            self.rnd.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.is_multi_gpu:
            self.reduce_parameters()
        nn.utils.clip_grad_norm_(self.actor.parameters(), self.max_grad_norm)
        nn.utils.clip_grad_norm_(self.critic.parameters(), self.max_grad_norm)
        self.optimizer.step()
        if self.rnd is not None:
            self.rnd.optimizer.step()

    # -- modes and files -----------------------------------------------------------------------------------------------

    def train_mode(self) -> None:
        """Set the models to training."""
        for model in (self.actor, self.critic, self.rnd):
            if model is not None:
                model.train()

    def eval_mode(self) -> None:
        """Set the models to evaluation."""
        for model in (self.actor, self.critic, self.rnd):
            if model is not None:
                model.eval()

    def save(self) -> dict[str, Any]:
        """Return the states of all models and optimisers, for `torch.save`."""
        state = {
            "actor_state_dict": self._raw_actor.state_dict(),
            "critic_state_dict": self._raw_critic.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
        }
        if self.rnd is not None:
            state["rnd_state_dict"] = self.rnd.state_dict()
            state["rnd_optimizer_state_dict"] = self.rnd.optimizer.state_dict()
        return state

    def load(self, loaded_dict: Mapping[str, Any], load_cfg: Mapping[str, bool] | None, strict: bool) -> bool:
        """Load the parts that `load_cfg` names, all without it; return whether the iteration is to be loaded too."""
        wanted = dict.fromkeys(("actor", "critic", "optimizer", "iteration", "rnd"), True)
        wanted = wanted if load_cfg is None else dict(load_cfg)
        if wanted.get("actor"):
            self._raw_actor.load_state_dict(loaded_dict["actor_state_dict"], strict=strict)
        if wanted.get("critic"):
            self._raw_critic.load_state_dict(loaded_dict["critic_state_dict"], strict=strict)
        if wanted.get("optimizer"):
            self.optimizer.load_state_dict(loaded_dict["optimizer_state_dict"])
            self.learning_rate = self.optimizer.param_groups[0]["lr"]
        if wanted.get("rnd") and self.rnd is not None:
            self.rnd.load_state_dict(loaded_dict["rnd_state_dict"], strict=strict)
            self.rnd.optimizer.load_state_dict(loaded_dict["rnd_optimizer_state_dict"])
        return bool(wanted.get("iteration", False))

    def get_policy(self) -> MLPModel:
        """Return the actor, as it is without compiling."""
        return self._raw_actor

    def compile(self, mode: str | None = None) -> None:
        """Compile both models in a mode of torch.compile; without one they stay as they are."""
        self.actor, self.critic = compile_model(self._raw_actor, mode), compile_model(self._raw_critic, mode)

    @staticmethod
    def construct_algorithm(obs: Any, env: Any, cfg: dict[str, Any], device: torch.device | str) -> PPO:
        """Build models, storage and the algorithm that a runner's config names; its obs_groups are filled in."""
        kind, settings = resolve_class(cfg["algorithm"])
        actor_class, of_actor = resolve_class(cfg["actor"])
        critic_class, of_critic = resolve_class(cfg["critic"])
        sets = ["actor", "critic", *(["rnd_state"] if settings.get("rnd_cfg") is not None else [])]
        groups = cfg["obs_groups"] = resolve_obs_groups(obs, cfg["obs_groups"], sets)
        settings = resolve_symmetry_config(resolve_rnd_config(settings, obs, groups, env), env)
        actor = actor_class(obs, groups, "actor", env.num_actions, **of_actor).to(device)
        if settings.pop("share_cnn_encoders", None):
            of_critic["cnns"] = actor.cnns
        critic = critic_class(obs, groups, "critic", 1, **of_critic).to(device)
        storage = RolloutStorage("rl", env.num_envs, cfg["num_steps_per_env"], obs, [env.num_actions], device)
        alg = kind(actor, critic, storage, device=device, **settings, multi_gpu_cfg=cfg.get("multi_gpu"))
        alg.compile(cfg.get("torch_compile_mode"))
        return cast(PPO, alg)

    # -- several processes ---------------------------------------------------------------------------------------------

    def broadcast_parameters(self) -> None:
        """Give every process the weights of the first."""
        models: list[nn.Module] = [self._raw_actor, self._raw_critic]
        models += [] if self.rnd is None else [self.rnd.predictor, self.rnd.target]
        for model in models:
            for tensor in model.state_dict().values():
                torch.distributed.broadcast(tensor, src=0)

    def reduce_parameters(self) -> None:
        """Average the gradients of all processes."""
        params = [*self._parameters(), *([] if self.rnd is None else self.rnd.parameters())]
        reduce_gradients_in_buckets(params, self.gpu_world_size, self.grad_reduce_bucket_mb)


def _normalised(advantages: Tensor) -> Tensor:
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)
