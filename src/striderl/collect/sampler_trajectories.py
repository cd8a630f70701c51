"""Transitions of the collector in the form that trajectory infos follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from striderl.collect.sampler_samples import flat, named, named_observation
from striderl.collect.traj_info import TrajectorySteps
from striderl.data import tree
from striderl.data.transition import Transition


def transition_steps(
    transition: Transition, counted: Tensor, agent_info: Callable[[dict[str, Any]], Any]
) -> TrajectorySteps:
    """Return one transition [B, …] as steps [1, B, …].

    `counted` [B] says for which envs it belongs to a trajectory, `agent_info` puts the actor's columns into its form.
    """
    components = [name for name in transition.obs if name not in ("prev_action", "prev_reward")]
    arrays: Transition = tree.map(lambda leaf: tree.to_numpy(leaf)[None], transition._replace(next_state=()))
    final_obs = arrays.final_obs
    done: Any = arrays.done

    def final(_: int, env: int) -> Any:
        if final_obs is None:
            return None
        return named_observation({name: final_obs[name][0, env] for name in components})

    return TrajectorySteps(
        observation=named_observation({name: arrays.obs[name] for name in components}),
        action=arrays.act,
        reward=np.asarray(arrays.rew),
        done=done,
        ended=arrays.info.get("traj_done", done),
        valid=np.asarray(arrays.valid),
        counted=counted[None].cpu().numpy(),
        agent_info=agent_info(flat(arrays.policy)),
        env_info=named("EnvInfo", flat(arrays.info)),
        final=final,
    )
