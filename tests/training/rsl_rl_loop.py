"""The loop of rsl_rl 5's OnPolicyRunner, call by call, for tests where rsl_rl is not installed.

`Groups` behaves like a TensorDict where the loop uses one: a mapping of tensors with `.to(device)`.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch


class Groups(dict[str, torch.Tensor]):
    """Observation groups by name."""

    def to(self, device: Any) -> Groups:
        return Groups({name: value.to(device) for name, value in self.items()})


class Loop:
    """rsl_rl's runner: it resolves the class, steps the env and calls the algorithm."""

    def __init__(self, env: Any, cfg: dict[str, Any], device: str = "cpu", multi_gpu: Any = None) -> None:
        self.env, self.cfg, self.device = env, cfg, device
        cfg["multi_gpu"] = multi_gpu
        module, _, name = cfg["algorithm"]["class_name"].partition(":")
        kind = getattr(importlib.import_module(module), name)
        self.alg = kind.construct_algorithm(env.get_observations(), env, cfg, device)
        self.current_learning_iteration = 0
        self.losses: list[dict[str, float]] = []
        self.rows: list[dict[str, Any]] = []

    def learn(self, num_learning_iterations: int) -> None:
        obs = self.env.get_observations().to(self.device)
        self.alg.train_mode()
        if self.cfg["multi_gpu"]:
            self.alg.broadcast_parameters()
        first = self.current_learning_iteration
        for it in range(first, first + num_learning_iterations):
            with torch.inference_mode():
                for _ in range(self.cfg["num_steps_per_env"]):
                    actions = self.alg.act(obs)
                    obs, rewards, dones, extras = self.env.step(actions.to(self.device))
                    obs = obs.to(self.device)
                    self.alg.process_env_step(obs, rewards, dones, extras)
                    if self.cfg["algorithm"]["rnd_cfg"]:
                        assert self.alg.intrinsic_rewards.shape == rewards.shape
                self.alg.compute_returns(obs)
            self.losses.append(self.alg.update())
            self.current_learning_iteration = it
            weight = self.alg.rnd.weight if self.cfg["algorithm"]["rnd_cfg"] else None
            std = self.alg.get_policy().output_std.mean().item()
            self.rows.append({"rate": self.alg.learning_rate, "std": std, "rnd_weight": weight})

    def save(self, path: Any) -> None:
        torch.save({**self.alg.save(), "iter": self.current_learning_iteration, "infos": None}, path)

    def load(self, path: Any, load_cfg: dict[str, bool] | None = None, strict: bool = True) -> Any:
        loaded = torch.load(path, weights_only=False)
        if self.alg.load(loaded, load_cfg, strict):
            self.current_learning_iteration = loaded["iter"]
        return loaded["infos"]
