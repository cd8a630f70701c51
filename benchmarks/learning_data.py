"""The experts and datasets of the defaults' table: made once by the library's own functions, kept under runs/.

runs/learning_defaults/
    pendulum_expert/ pendulum.pt     steps of SAC at its best, and its weights
    cartpole_expert/                 steps of a controller written by hand, one in ten at random
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.collect import Teacher
from striderl.collect.actors.behaviours import BehaviourActor, EpsilonGreedy, Greedy
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.datasets.offline import all_steps, load_dataset, save_dataset
from striderl.envs import make
from striderl.envs.vec_env import Step, VecEnv
from striderl.policies import ActorConfig, ActorPolicy
from striderl.recipes.offline import generate, record_steps, train_behaviours
from striderl.storage import Replay

CARTPOLE, PENDULUM = "cartpole", "pendulum"
FOLDER = Path(__file__).resolve().parent.parent / "runs" / "learning_defaults"
NUM_STEPS = 20_000
"""Steps of a dataset."""
TRAINING = 8_000
"""Env steps of the learner whose best policy is recorded."""
EPSILON = 0.1
"""How often the controller of CartPole acts at random in its dataset."""
WEIGHTS = FOLDER / "pendulum.pt"


def make_env(task: str, num_envs: int = 1, device: str = "cpu") -> VecEnv:
    """Build a task; one named '…+speed' shows its last number, a speed, as a component of its own too."""
    name, _, extra = task.partition("+")
    env = make(name, num_envs=num_envs, device=device)
    if not extra:
        return env
    reset, step, reset_envs = env.reset, env.step, env.reset_envs

    def shown(obs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**obs, "speed": obs["obs"][:, -1:]}

    def stepped(actions: Any) -> Step:
        found = step(actions)
        return found._replace(
            obs=shown(found.obs), final_obs=None if found.final_obs is None else shown(found.final_obs)
        )

    env.obs_spec = ObsSpec({**env.obs_spec, "speed": ComponentSpec(shape=(1,))})
    env.reset = lambda seed=None: shown(reset(seed))  # type: ignore[method-assign]
    env.step = stepped  # type: ignore[method-assign]
    env.reset_envs = lambda mask: shown(reset_envs(mask))  # type: ignore[method-assign]
    return env


def dataset_folder(task: str) -> Path:
    """Return the folder of the expert's dataset, which must have been made."""
    folder = FOLDER / f"{task}_expert"
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no dataset {folder}; make_data() makes it")
    return folder


def make_data(tasks: Collection[str]) -> None:
    """Record the experts of these tasks, where that has not been done."""
    for task in sorted(tasks):
        folder = FOLDER / f"{task}_expert"
        if folder.is_dir():
            continue
        FOLDER.mkdir(parents=True, exist_ok=True)
        if task == PENDULUM:
            behaviours = train_behaviours(task, total_steps=TRAINING, seed=0)
            replay, specs = generate(behaviours, "expert", NUM_STEPS, seed=1), behaviours.specs()
            torch.save(dict(behaviours.weights["expert"]), WEIGHTS)
        else:
            policy = balancing_policy()
            specs = (policy.obs_spec, policy.action_spec)
            actor = BehaviourActor(policy, EpsilonGreedy(policy.action_spec, EPSILON))
            replay = record_steps(make(task, num_envs=10), [actor], NUM_STEPS, seed=1)
        save_dataset(folder, replay, *specs, about={"task": task, "kind": "expert"})


def pendulum_teacher(device: str) -> Teacher:
    """Return SAC's best policy as a teacher."""
    env = make(PENDULUM)
    policy = ActorPolicy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(64, 64), head="squashed_gaussian"))
    policy.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    return Teacher(policy.to(device))


def balancing_policy() -> ActorPolicy:
    """Return a controller of CartPole written by hand: push to where the pole falls."""
    env = make(CARTPOLE)
    policy = ActorPolicy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=()))
    with torch.no_grad():
        # x, its speed, the pole's angle, its speed
        policy.head.layer.weight.copy_(torch.tensor([[0.0] * 4, [1.0, 2.0, 30.0, 10.0]]))
        policy.head.layer.bias.zero_()
    return policy


def cartpole_steps(num_steps: int = 2_000) -> Replay:
    """Return steps of that controller."""
    env = make(CARTPOLE, num_envs=4)
    return record_steps(env, [BehaviourActor(balancing_policy(), Greedy())], num_steps)


def expert_windows(task: str, device: str) -> Tensor:
    """Return motions [M, 2 · F] of an expert, for motion priors: what it observes before and after a step."""
    env = make(task)
    if task == CARTPOLE:
        steps = all_steps(cartpole_steps())
    else:
        steps = all_steps(load_dataset(dataset_folder(task), env.obs_spec, env.action_spec))
    return torch.cat([steps["obs"]["obs"], steps["obs_next"]["obs"]], dim=-1).to(device)
