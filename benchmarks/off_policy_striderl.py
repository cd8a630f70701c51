"""striderl in the off-policy benchmarks: `Replay` and the learner that the trainer uses."""

from __future__ import annotations

import torch
from off_policy_tasks import GAMMA, NUM_STEPS, TARGET_EVERY, TAU, Steps, Task, Work, steps_of
from striderl_auto import after_switch, auto

from striderl.algorithms.actor_critic.sac import SAC, SACConfig
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.data.actions import ActionSpec, BoxSpec, DiscreteSpec
from striderl.data.specs import ObsSpec
from striderl.data.transition import Transition, transition_columns
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.value_functions import QFunction, QFunctionConfig
from striderl.storage.replay.replay import Replay
from striderl.training.loops.off_policy import ReplayLearner


def update(task: Task, mode: str = "eager") -> Work:
    """Return some gradient steps; numbers for the log are put together once, as after an iteration."""
    obs_spec = ObsSpec.from_flat(task.obs_size)
    action_spec: ActionSpec = DiscreteSpec(n=task.action_size)
    if task.algorithm == "sac":
        action_spec = BoxSpec(shape=(task.action_size,), low=-1.0, high=1.0)
    make = _dqn if task.algorithm == "dqn" else _sac
    with auto(mode) as switch:
        algorithm = make(task, mode, obs_spec, action_spec)
    replay = Replay(
        transition_columns(obs_spec, action_spec, {}, {}),
        NUM_STEPS,
        1,
        sampler=algorithm.sampler(0),
        view=algorithm.view(),
    )
    _fill(replay, steps_of(task))
    learner = ReplayLearner(algorithm, replay, task.batch_size, seed=0)
    count = 0

    def work() -> None:
        nonlocal count
        for _ in range(task.updates_per_sample):
            learner.step(count)
            count += 1
        learner.finish()

    return after_switch(switch, work)


def _dqn(task: Task, mode: str, obs_spec: ObsSpec, action_spec: ActionSpec) -> DQN:
    policy = q_policy(obs_spec, action_spec, ActorConfig(hidden_dims=task.hidden))
    config = DQNConfig(
        gamma=GAMMA,
        double=False,
        target_every=TARGET_EVERY,
        learning_rate=task.learning_rate,
        max_grad_norm=0.0,
        mode=mode,
    )
    return DQN(policy, config)


def _sac(task: Task, mode: str, obs_spec: ObsSpec, action_spec: ActionSpec) -> SAC:
    policy = ActorPolicy(obs_spec, action_spec, ActorConfig(hidden_dims=task.hidden, head="squashed_gaussian"))
    critic = QFunction(obs_spec, action_spec, QFunctionConfig(hidden_dims=task.hidden))
    config = SACConfig(
        gamma=GAMMA,
        tau=TAU,
        actor_learning_rate=task.learning_rate,
        critic_learning_rate=task.learning_rate,
        temperature_learning_rate=task.learning_rate,
        mode=mode,
    )
    return SAC(policy, critic, config)


def _fill(replay: Replay, steps: Steps) -> None:
    obs, act = torch.from_numpy(steps.obs), torch.from_numpy(steps.act)
    rew, terminated = torch.from_numpy(steps.rew), torch.from_numpy(steps.terminated)
    yes, no = torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.bool)
    for row in range(NUM_STEPS):
        one = slice(row, row + 1)
        following = {"obs": obs[row + 1 : row + 2]}
        replay.add(
            Transition(
                obs={"obs": obs[one]},
                act=act[one],
                rew=rew[one],
                terminated=terminated[one],
                truncated=no,
                valid=yes,
                info={},
                policy={},
                next_obs=following,
                final_obs=following,
                next_state=(),
            )
        )
