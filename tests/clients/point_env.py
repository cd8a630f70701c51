"""A small env for rsl_rl 5: points that are to go to the origin, with groups for actor, critic and an image."""

from __future__ import annotations

from typing import Any

import torch


class PointEnv:
    """N points in a plane; an action is a step, an episode lasts 20 steps, and a point beyond 3 falls."""

    num_actions = 2
    max_episode_length = 20

    def __init__(self, num_envs: int = 8, device: str = "cpu", *, make: Any = dict, image: bool = False) -> None:
        self.num_envs, self.device, self.cfg = num_envs, device, {}
        self.make, self.image = make, image
        self.step_dt = 0.1
        self.generator = torch.Generator().manual_seed(0)
        self.place = torch.randn(num_envs, 2, generator=self.generator)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.num_resets = 0

    @property
    def unwrapped(self) -> PointEnv:
        return self

    def get_observations(self) -> Any:
        groups = {
            "policy": torch.cat([self.place, self.place.norm(dim=1, keepdim=True)], dim=1),
            "critic": torch.cat([self.place, self.episode_length_buf[:, None] / 20], dim=1),
        }
        if self.image:
            groups["image"] = self.place[:, :, None, None].expand(-1, 2, 6, 6).contiguous()
        return self.make(groups, self.num_envs)

    def reset(self) -> Any:
        self.num_resets += 1
        return self.get_observations(), {}

    def step(self, actions: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor, dict[str, Any]]:
        self.place = self.place + 0.1 * actions.clamp(-2, 2)
        self.episode_length_buf += 1
        fallen, late = self.place.norm(dim=1) > 3.0, self.episode_length_buf >= self.max_episode_length
        dones = fallen | late
        reward = -self.place.norm(dim=1)
        self.place = torch.where(dones[:, None], torch.randn(self.num_envs, 2, generator=self.generator), self.place)
        self.episode_length_buf = torch.where(dones, 0, self.episode_length_buf)
        extras = {"time_outs": late & ~fallen, "log": {"Episode_Reward/near": reward.mean()}}
        return self.get_observations(), reward, dones.long(), extras


def config(model: str = "mlp", **algorithm: Any) -> dict[str, Any]:
    """The train_cfg of rsl_rl 5 for it."""
    actor: dict[str, Any] = {"class_name": "MLPModel", "hidden_dims": [16, 16], "activation": "elu"}
    groups = {"actor": ["policy"], "critic": ["policy", "critic"]}
    if model in ("lstm", "gru"):
        actor |= {"class_name": "RNNModel", "rnn_type": model, "rnn_hidden_dim": 8, "rnn_num_layers": 1}
    if model == "cnn":
        actor |= {"class_name": "CNNModel", "cnn_cfg": {"output_channels": [3], "kernel_size": 3, "stride": 2}}
        groups = {"actor": ["image", "policy"], "critic": ["critic", "image"]}
    distribution = {"class_name": "GaussianDistribution", "init_std": 0.8, "std_type": "scalar"}
    return {
        "seed": 5,
        "num_steps_per_env": 8,
        "save_interval": 1,
        "obs_groups": groups,
        "actor": {**actor, "distribution_cfg": distribution},
        "critic": dict(actor),
        "algorithm": {
            "class_name": "striderl.rsl_rl:PPO",
            "num_learning_epochs": 2,
            "num_mini_batches": 2,
            "schedule": "adaptive",
            **algorithm,
        },
    }


def mirrored(env: Any, obs: Any = None, actions: torch.Tensor | None = None, **_: Any) -> tuple[Any, Any]:
    """The points and actions, and behind them their mirror images in the first axis."""
    if obs is not None:
        flip = torch.tensor([-1.0, 1.0, 1.0])
        obs = (
            torch.cat([obs, obs.clone()])
            if not isinstance(obs, dict)
            else {k: torch.cat([v, v]) for k, v in obs.items()}
        )
        half = len(obs["policy"]) // 2
        for group in ("policy", "critic"):
            obs[group] = torch.cat([obs[group][:half], obs[group][:half] * flip])
    if actions is not None:
        actions = torch.cat([actions, actions * torch.tensor([-1.0, 1.0])])
    return obs, actions
