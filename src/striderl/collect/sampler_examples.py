"""One step of everything, so that memory of the right shapes can be made before the first batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from striderl.collect.actors import RandomActor
from striderl.collect.noise_source import NoiseSource
from striderl.collect.sampler_agents import AgentActor, agent_info_specs, is_actor
from striderl.collect.sampler_envs import info_specs
from striderl.collect.sampler_samples import named, named_observation
from striderl.collect.sampler_seeds import derived_seed
from striderl.data import tree
from striderl.envs.vec_env import VecEnv


@torch.no_grad()
def example_outputs(env: VecEnv, agent: Any, seed: int, agent_rows: int) -> tuple[dict[str, Any], Any]:
    """Take one random step; return examples of one env's data, and the specs of the agent_info, nested, or None.

    The env is reset for it. An agent is asked for as many envs as it will act for at once, and forgets its episodes
    before and after.
    """
    obs = env.reset(seed)
    random = RandomActor(env.action_spec)
    index = env.first_env_index + torch.arange(env.num_envs, device=env.device)
    noise = NoiseSource(random.noise(), seed=derived_seed(seed, "example"), env_index=index, block=1)
    action = random.act(obs, (), noise.at(0)).actions
    previous = {"prev_action": torch.zeros_like(action), "prev_reward": torch.zeros(env.num_envs, device=env.device)}
    example_info, agent_info = _agent_info(env, agent, tree.index({**obs, **previous}, slice(0, agent_rows)))
    step = env.step(tree.copy(action))
    one: Any = {
        "observation": named_observation({name: value[0] for name, value in step.obs.items()}),
        "reward": step.reward[0],
        "done": step.done[0],
        "env_info": named("EnvInfo", {name: step.info[name][0] for name in info_specs(env)}),
        "action": action[0],
    }
    return {**tree.to_numpy(one), "agent_info": example_info}, agent_info


def _agent_info(env: VecEnv, agent: Any, obs: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    """Return an example of one env's agent_info, and its specs; both None when there is nothing in it."""
    if is_actor(agent):
        specs = named("AgentInfo", dict(tree.items(agent.columns())))
        return tree.map(lambda spec: np.zeros(spec.shape, spec.dtype), specs), specs
    actor = AgentActor(agent, env.obs_spec, env.num_envs, columns={}, alternating=False)
    actor.reset()
    agent_info = agent.step(*actor.inputs(obs))[1]
    actor.reset()
    specs = agent_info_specs(agent_info)
    return None if specs is None else tree.map(lambda leaf: tree.to_numpy(leaf)[0], agent_info), specs
