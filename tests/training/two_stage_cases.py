"""A task whose answer is known, a demonstrator that knows it, and configs that learn it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.data.transition import transition_columns
from striderl.datasets.trajectories.spec import TrajectorySpec
from striderl.datasets.trajectories.writer import TrajectoryWriter
from striderl.envs.toy.base import State, ToyEnv, ToyOutcome
from striderl.envs.vec_env import Actions, Obs

LENGTH = 6


class Follow(ToyEnv):
    """Answer a shown number pair with a known function of it; six steps, then time is up. The critic sees the clock."""

    def __init__(self, num_envs: int, first_env_index: int = 0) -> None:
        parts = {"target": ComponentSpec(shape=(2,)), "clock": ComponentSpec(shape=(1,), group="critic")}
        super().__init__(
            num_envs,
            "cpu",
            obs_spec=ObsSpec(parts),
            action_spec=BoxSpec(shape=(2,)),
            max_episode_length=LENGTH,
            first_env_index=first_env_index,
            num_words=2,
        )

    def _start(self, words: Tensor) -> State:
        return {"target": words.float() * 2.0**-31 - 1.0}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        assert isinstance(actions, Tensor)
        reward = 1.0 - (actions - answer(state["target"])).abs().mean(dim=1)
        return ToyOutcome({}, reward, self._never(), self._never(), {})

    def _observe(self, state: State) -> Obs:
        return {"target": state["target"].clone(), "clock": state["length"].float()[:, None] / LENGTH}


def answer(target: Tensor) -> Tensor:
    """What earns most: 1 in each step."""
    return 0.5 * target.flip(-1) + 0.3


def record(folder: Path, num_trajectories: int, *, seed: int = 0, without: tuple[str, ...] = ()) -> None:
    """Record a demonstrator that answers right."""
    env = Follow(num_trajectories)
    kept = ObsSpec({name: part for name, part in env.obs_spec.items() if name not in without})
    columns = {name: spec for name, spec in transition_columns(kept, env.action_spec, {}, {}).items()}
    chosen = {name: columns[name] for name in ("obs", "act", "rew", "terminated", "truncated")}
    spec = TrajectorySpec.from_columns(chosen, final_obs=True, obs_spec=kept, action_spec=env.action_spec)
    obs, rows = env.reset(seed), []
    for _ in range(LENGTH):
        act = answer(obs["target"])
        step = env.step(act)
        seen = {name: obs[name] for name in kept}
        rows.append((seen, act, step.reward, step.terminated, step.truncated))
        obs, final = step.obs, step.final_obs
    with TrajectoryWriter(folder, spec) as writer:
        for env_index in range(num_trajectories):
            values = [torch.stack([row[column][env_index] for row in rows]) for column in range(1, 5)]
            seen = {name: torch.stack([row[0][name][env_index] for row in rows]) for name in kept}
            last = {name: final[name][env_index : env_index + 1] for name in kept}
            writer.add(dict(zip(chosen, [seen, *values])), final_obs=last)


def config(data_dir: Path, **more: Any) -> dict[str, Any]:
    """A small config of st_rl."""
    policy = more.pop("policy", {})
    algorithm = more.pop("algorithm", {})
    dataset = more.pop("dataset", {})
    return {
        "class_name": "TwoStageRunner",
        "num_steps_per_env": 4,
        "save_interval": 0,
        "logger": "none",
        "seed": 3,
        "empirical_normalization": True,
        "policy": {"class_name": "ActorCritic", "actor_hidden_dims": [16], "critic_hidden_dims": [16], **policy},
        "algorithm": {
            "class_name": "PPO",
            "ppo": {"num_learning_epochs": 2, "num_mini_batches": 2, "learning_rate": 5e-3, "schedule": "adaptive"},
            **algorithm,
        },
        "obs_groups": {"actor": ["policy"], "critic": ["policy", "critic"]},
        "pretrain_iterations": 4,
        "pretrain_dataset": {
            "data_dir": str(data_dir),
            "dataset_loops": 0,
            "random_shuffle_traj_order": True,
            "refresh_seconds": 0.0,
            "wait_timeout": 0.0,
            **dataset,
        },
        **more,
    }


def error_of(policy: Any) -> float:
    """How far the most likely actions are from right, on average."""
    target = torch.rand(256, 2, generator=torch.Generator().manual_seed(1)) * 2 - 1
    dist, _, _ = policy.act({"target": target}, policy.initial_state(256), policy.settled(torch.zeros(256)))
    return float((dist.mode() - answer(target)).detach().abs().mean())
