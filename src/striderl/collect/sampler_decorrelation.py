"""Random steps before the first batch, a different number in each env, so that episodes do not end together.

Env b shall have taken n_b = 1 + floor(U_b * max) random steps since a fresh start. The envs of a `VecEnv` are stepped
together, so those with few steps to take start later:

    step       0   1   2   3   4       max = 5
    n_b = 5    s   ·   ·   ·   ·       s: starts fresh, ·: goes on
    n_b = 2    –   –   –   s   ·       –: is stepped along, and reset before its first step that counts
    n_b = 1    –   –   –   –   s

How many steps an env takes, and which, depends on the seed and its own index alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from striderl.collect.actors import RandomActor
from striderl.collect.group import where_env
from striderl.collect.noise_source import NoiseSource
from striderl.collect.sampler_seeds import derived_seed
from striderl.data import tree
from striderl.data.noise import uniform
from striderl.data.transition import Transition
from striderl.envs.vec_env import Obs, VecEnv


def decorrelation_lengths(env: VecEnv, max_steps: int, seed: int) -> Tensor:
    """Return n_b for each env, int64 [N] in 1 to max_steps."""
    index = env.first_env_index + torch.arange(env.num_envs).numpy()
    numbers = uniform("decorrelation", seed=seed, env_index=index, occasion=0, count=1)[:, 0]
    return 1 + torch.as_tensor(numbers * max_steps).long().to(env.device)


@torch.no_grad()
def decorrelate(env: VecEnv, max_steps: int, seed: int, follow: Callable[[Transition, Tensor], None]) -> Obs:
    """Reset, take the random steps and return what is seen then, with 'prev_action' and 'prev_reward'.

    `follow` is called after each step with the transition and with the envs for which it counts, bool [N].
    """
    lengths = decorrelation_lengths(env, max_steps, seed)
    actor = RandomActor(env.action_spec)
    index = env.first_env_index + torch.arange(env.num_envs, device=env.device)
    noise = NoiseSource(actor.noise(), seed=derived_seed(seed, "decorrelation"), env_index=index)
    obs, previous = env.reset(seed), {}
    for number in range(max_steps):
        left = max_steps - number
        if number > 0 and bool((lengths == left).any()):
            obs = env.reset_envs(lengths == left)
        action = actor.act(obs, (), noise.at(number)).actions
        step = env.step(tree.copy(action))
        valid = step.info["valid"] if "valid" in step.info else torch.ones_like(step.done)
        transition = Transition(
            obs=obs,
            act=action,
            rew=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            valid=valid & torch.isfinite(step.reward),
            info={name: step.info[name] for name in env.info_spec if name != "valid"},
            policy={},
            next_obs=step.obs,
            final_obs=step.final_obs,
        )
        follow(transition, lengths >= left)
        kept = {"prev_action": action, "prev_reward": step.reward}
        previous = where_env(step.done, tree.map(torch.zeros_like, kept), kept)
        obs = step.obs
    return {**obs, **previous}
