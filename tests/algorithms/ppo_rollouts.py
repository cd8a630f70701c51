"""Rollouts for PPO tests: a policy, an env, and what PPO makes of their data."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig, Prepared
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.actions import BoxSpec
from striderl.envs.toy import Script, Scripted
from striderl.envs.vec_env import VecEnv
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Remember
from striderl.storage.rollout import RolloutStorage

USUAL = {
    "num_learning_epochs": 5,
    "num_mini_batches": 4,
    "entropy_coef": 0.01,
    "schedule": "adaptive",
    "gamma": 0.99,
    "value_loss_coef": 1.0,
    "learning_rate": 1e-3,
    "max_grad_norm": 1.0,
    "use_clipped_value_loss": True,
}
"""What most people train with."""
ACTION = BoxSpec(shape=(2,), low=-1.0, high=1.0)


class Parts(NamedTuple):
    ppo: PPO
    collector: Collector
    storage: RolloutStorage

    def collect(self) -> Prepared:
        """Collect one rollout and prepare it."""
        self.storage.clear()
        self.collector.ready()
        initial = self.collector.current_state
        envs, steps = self.storage.num_envs, self.storage.num_steps
        self.collector.collect(n_step=envs * steps, storage=self.storage)
        return self.prepare(initial)

    def prepare(self, initial: dict[str, torch.Tensor]) -> Prepared:
        return self.ppo.prepare(
            self.storage,
            initial_state=initial,
            last_obs=self.collector.current_obs,
            last_state=self.collector.current_state,
        )


def stages(kind: str, normalise: bool = False) -> tuple[Any, ...]:
    first = (NormalizeObs(),) if normalise else ()
    return first if kind == "plain" else (*first, Remember(type=kind, hidden_size=6))


def build(env: VecEnv, num_steps: int, kind: str = "plain", normalise: bool = False, **config: Any) -> Parts:
    torch.manual_seed(0)
    recipe = stages(kind, normalise)
    settings = PolicyConfig(actor=recipe, critic=recipe, actor_hidden_dims=(8,), critic_hidden_dims=(8,))
    policy = Policy(env.obs_spec, env.action_spec, settings)
    collector = Collector(env, PolicyActor(policy), CollectorConfig(seed=3))
    finals = env.gives_final_obs
    storage = RolloutStorage(
        collector.columns(),
        num_steps,
        env.num_envs,
        final_obs=env.obs_spec if finals else None,
        final_state=policy.state_spec() if finals else None,
        pool_size=num_steps * env.num_envs,
    )
    return Parts(PPO(policy, PPOConfig(**{**USUAL, **config})), collector, storage)


def scripted(
    terminated: torch.Tensor, truncated: torch.Tensor, valid: torch.Tensor | None = None, *, seed: int = 0
) -> Scripted:
    """An env with these endings and random observations in two components."""
    steps, envs = terminated.shape
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    script = Script(
        obs={"joints": random(steps + 1, envs, 3), "command": random(steps + 1, envs, 2)},
        reward=random(steps, envs),
        terminated=terminated,
        truncated=truncated,
        final_obs={"joints": random(steps, envs, 3), "command": random(steps, envs, 2)},
        info=None if valid is None else {"valid": valid},
    )
    return Scripted(script, action_spec=ACTION)


def endings(steps: int, envs: int, *, seed: int = 0, rate: float = 0.2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.rand(steps, envs, generator=generator) < rate,
        torch.rand(steps, envs, generator=generator) < rate,
    )


def whole_minibatch(ppo: PPO, prepared: Prepared) -> dict[str, Any]:
    """The minibatch that holds everything, in some order."""
    one = PPO(ppo.policy, dataclasses.replace(ppo.config, num_learning_epochs=1, num_mini_batches=1))
    return next(iter(one.minibatches(prepared, torch.Generator().manual_seed(0))))


def gradients(ppo: PPO, minibatch: dict[str, Any]) -> tuple[dict[str, float], torch.Tensor]:
    """Every loss, and the gradient of their weighted sum."""
    losses, _, _ = ppo.compute_losses(minibatch)
    total = torch.stack([weight * loss for weight, loss in losses.values()]).sum()
    grads = torch.autograd.grad(total, list(ppo.policy.parameters()))
    return {name: float(loss.detach()) for name, (_, loss) in losses.items()}, torch.cat(
        [grad.flatten() for grad in grads]
    )
