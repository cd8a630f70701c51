"""A small task with a secret: the teacher sees the goal, the student is shown it once and must remember it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.algorithms.on_policy.dagger import DAgger, Gathered
from striderl.algorithms.on_policy.ppo import PPO, PPOConfig, RolloutBatch
from striderl.collect.actors.policy_actor import GreedyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.teacher import Teacher
from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.toy.base import State, ToyEnv, ToyOutcome
from striderl.envs.vec_env import Actions, Obs, VecEnv
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import Remember
from striderl.storage.rollout import RolloutStorage
from striderl.storage.rollout_presets import QueueRolloutStorage
from striderl.training.protocols import storage_for

LENGTH = 8


class HiddenGoal(ToyEnv):
    """Name a goal in [-1, 1]² for eight steps; each step pays 1 less the mean distance.

    'cue' shows the goal in the first step only, 'first' says which step that is; 'goal' shows it always, to the critic
    and to teachers.
    """

    def __init__(self, num_envs: int, first_env_index: int = 0) -> None:
        parts = {
            "cue": ComponentSpec(shape=(2,)),
            "first": ComponentSpec(shape=(1,)),
            "goal": ComponentSpec(shape=(2,), group="critic"),
        }
        super().__init__(
            num_envs,
            "cpu",
            obs_spec=ObsSpec(parts),
            action_spec=BoxSpec(shape=(2,)),
            max_episode_length=0,
            first_env_index=first_env_index,
            num_words=2,
        )

    def _start(self, words: Tensor) -> State:
        return {"goal": words.float() * 2.0**-31 - 1.0}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        assert isinstance(actions, Tensor)
        reward = 1.0 - (actions - state["goal"]).abs().mean(dim=1)
        return ToyOutcome({}, reward, state["length"] + 1 >= LENGTH, self._never(), {})

    def _observe(self, state: State) -> Obs:
        first = (state["length"] == 0).float()[:, None]
        return {"cue": state["goal"] * first, "first": first, "goal": state["goal"]}


def goal_teacher(std: float = 0.1, components: dict[str, str] | None = None, name: str = "goal") -> Teacher:
    """A teacher that does what the goal says; it knows nothing but the goal."""
    spec = ObsSpec({name: ComponentSpec(shape=(2,), group="critic")})
    config = PolicyConfig(
        actor_obs=(name,),
        critic_obs=(name,),
        actor_hidden_dims=(),
        critic_hidden_dims=(),
        head_settings={"init_std": std},
    )
    policy = Policy(spec, BoxSpec(shape=(2,)), config)
    with torch.no_grad():
        policy.head.mean_layer.linear.weight.copy_(torch.eye(2))
        policy.head.mean_layer.linear.bias.zero_()
    return Teacher(policy, components)


def student(env: VecEnv, memory: str = "gru", size: int = 16, **more: Any) -> Policy:
    """A policy that sees the cue; with a memory it can do what the teacher does."""
    torch.manual_seed(0)
    stages = () if memory == "" else (Remember(type=memory, hidden_size=size),)
    settings: dict[str, Any] = {
        "actor_obs": ("cue", "first"),
        "critic_obs": ("cue", "first", "goal"),
        "actor": stages,
        "actor_hidden_dims": (16,),
        "critic_hidden_dims": (16,),
        "head_settings": {"init_std": 0.3},
    }
    return Policy(env.obs_spec, env.action_spec, PolicyConfig(**{**settings, **more}))


class Loop(NamedTuple):
    """An algorithm with its collector and storage, to be stepped by hand."""

    algorithm: PPO | DAgger
    collector: Collector
    storage: RolloutStorage | QueueRolloutStorage

    def collect(self) -> RolloutBatch | Gathered:
        """Collect one rollout and prepare it."""
        self.storage.clear()
        self.collector.ready()
        initial = self.collector.current_state
        self.collector.collect(n_step=self.storage.num_envs * self.storage.num_steps, storage=self.storage)
        return self.algorithm.prepare(
            self.storage,
            initial_state=initial,
            last_obs=self.collector.current_obs,
            last_state=self.collector.current_state,
        )

    def learn(self, seed: int = 0) -> dict[str, Tensor]:
        """Collect and update once."""
        return self.algorithm.update(self.collect(), torch.Generator().manual_seed(seed))


def loop(algorithm: PPO | DAgger, env: VecEnv, num_steps: int = 8, seed: int = 3) -> Loop:
    collector = Collector(env, algorithm.actor(), CollectorConfig(seed=seed))
    return Loop(algorithm, collector, storage_for(algorithm, collector, num_steps))


def greedy_return(policy: Policy, num_envs: int = 64) -> float:
    """The mean return of the most likely actions."""
    collector = Collector(HiddenGoal(num_envs, first_env_index=10_000), GreedyActor(policy), CollectorConfig(seed=7))
    returns = collector.collect(n_episode=num_envs).returns
    return sum(returns) / len(returns)


SMALL = PPOConfig(num_learning_epochs=2, num_mini_batches=2, learning_rate=1e-2, gamma=0.9)
"""Settings for tests of a step or two."""
