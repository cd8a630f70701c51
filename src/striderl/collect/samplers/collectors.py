"""rlpyt's collectors: they fill a batch of `Samples` and follow trajectories, over our `Collector`.

reset collector     s a r  s a r  end │ s a r  s a r        the next episode starts at once, in the same batch
wait-reset          s a r  s a r  end │ 0 0 0  0 0 0        zeros, done and not valid until the batch is full;
                                                            the reset comes between two batches

start_envs ─▶ agent_inputs, traj_infos ─▶ collect_batch ─▶ agent_inputs, traj_infos, completed_infos ─▶ …

Evaluation of an agent: whole trajectories on envs of their own, of which only the infos are kept.

Random steps before the first batch, a different number in each env, so that episodes do not end together.

Env b shall have taken n_b = 1 + floor(U_b * max) random steps since a fresh start. The envs of a `VecEnv` are stepped
together, so those with few steps to take start later:

    step       0   1   2   3   4       max = 5
    n_b = 5    s   ·   ·   ·   ·       s: starts fresh, ·: goes on
    n_b = 2    –   –   –   s   ·       –: is stepped along, and reset before its first step that counts
    n_b = 1    –   –   –   –   s

How many steps an env takes, and which, depends on the seed and its own index alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from striderl.collect.actors.base import Actor, RandomActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.group import NoiseSource, where_env
from striderl.collect.samplers.agents import AgentActor, agent_info_specs, as_actor, value_of_next
from striderl.collect.samplers.envs import as_vec_env
from striderl.collect.samplers.samples import (
    AgentInputs,
    SampleStorage,
    derived_seed,
    flat,
    named,
    named_observation,
    valid_from_done,
)
from striderl.collect.samplers.traj_info import TrajectorySteps, TrajectoryTracker, TrajInfo, transition_steps
from striderl.data import tree
from striderl.data.buffers import torchify_buffer
from striderl.data.named_tuples import ArrayTuple
from striderl.data.noise import uniform
from striderl.data.transition import Transition
from striderl.envs.vec_env import Obs, VecEnv


class BaseCollector:
    """Fills batches of samples; subclasses decide what happens when an episode ends."""

    mid_batch_reset: ClassVar[bool] = True
    """Whether the next episode starts in the same batch."""

    def __init__(
        self,
        rank: int,
        envs: Any,
        samples_np: Any,
        batch_T: int,
        TrajInfoCls: Callable[[], TrajInfo] = TrajInfo,
        agent: Any = None,
        sync: None = None,
        step_buffer_np: None = None,
        global_B: int = 1,
        env_ranks: Sequence[int] | None = None,
        *,
        seed: int = 0,
        schedule: str = "together",
    ) -> None:
        """Prepare; nothing is reset before `start_envs`.

        Args:
            rank: the number of this process among several.
            envs: a `VecEnv`, or a list of single envs.
            samples_np: `Samples` of arrays or tensors [T, B, …], where every batch is written.
            batch_T: the number of time steps of a batch.
            TrajInfoCls: makes a trajectory info; a class or a function without arguments.
            agent: an agent of rlpyt's kind or one of our actors; None takes random actions.
            sync: for rlpyt's own worker processes, which are not used here: None.
            step_buffer_np: likewise None.
            global_B: the number of envs in all processes.
            env_ranks: the numbers of these envs among them.
            seed: the seed of resets, of decorrelation and of an actor's noise.
            schedule: in which order groups of envs are stepped, see `CollectorConfig`.
        """
        if sync is not None or step_buffer_np is not None:
            raise ValueError("sync and step_buffer_np have no use here: worker processes belong to the env")
        self.rank, self.batch_T, self.agent, self.seed = rank, batch_T, agent, seed
        self.env = as_vec_env(envs)
        num_envs = self.env.num_envs
        self.global_B = global_B
        self.env_ranks = list(range(num_envs)) if env_ranks is None else list(env_ranks)
        self.samples_np, self.samples = samples_np, torchify_buffer(samples_np)
        found = tuple(self.samples.env.reward.shape)
        if found != (batch_T, num_envs):
            raise ValueError(f"samples_np: wanted [{batch_T}, {num_envs}] for batch_T and envs, found {list(found)}")
        self.actor = self._make_actor(alternating=schedule == "alternating")
        self.collector = Collector(
            self.env,
            self.actor,
            CollectorConfig(seed=seed, schedule=schedule, wait_reset=not self.mid_batch_reset, previous_step=True),
        )
        self._tracker = TrajectoryTracker(TrajInfoCls, num_envs)
        wants_finals = self._tracker.wants_finals
        self._storage = SampleStorage(self.samples, wait_reset=not self.mid_batch_reset, keep_finals=wants_finals)
        self._agent_inputs: ArrayTuple | None = None

    def _make_actor(self, *, alternating: bool) -> Actor:
        if self.agent is None:
            return RandomActor(self.env.action_spec)
        agent_info = agent_info_specs(tree.map(lambda value: value[0], self.samples.agent.agent_info))
        return as_actor(
            self.agent, self.env.obs_spec, self.env.num_envs, agent_info=agent_info, alternating=alternating
        )

    # -- rlpyt's calls -------------------------------------------------------------------------------------------------

    def start_envs(self, max_decorrelation_steps: int = 0) -> tuple[ArrayTuple, list[TrajInfo]]:
        """Reset every env, take 1 + floor(U * max) random steps in each, and return agent inputs and infos."""
        self._tracker.restart(range(self.env.num_envs))
        if max_decorrelation_steps > 0:
            obs = decorrelate(self.env, max_decorrelation_steps, self.seed, self._follow)
            self.collector.start_from(obs, seed=self.seed)
        else:
            self.collector.reset(self.seed)
        self._agent_inputs = self._current_inputs()
        return self._agent_inputs, list(self._tracker.infos)

    def start_agent(self) -> None:
        """Pass the agent its env indices and start it."""
        if isinstance(self.actor, AgentActor):
            self.actor.start(self.global_B, self.env_ranks)

    def collect_batch(
        self, agent_inputs: ArrayTuple, traj_infos: Sequence[TrajInfo], itr: int = 0
    ) -> tuple[ArrayTuple, list[TrajInfo], list[TrajInfo]]:
        """Fill the samples; return agent inputs and infos for the next call, and the infos of ended trajectories."""
        if self._agent_inputs is None or agent_inputs is not self._agent_inputs:
            raise ValueError("collect_batch goes on where the envs stand: pass the agent_inputs that came last")
        if isinstance(self.actor, AgentActor):
            self.actor.sample_mode(itr)
        self._tracker.resume(traj_infos)
        self._storage.begin()
        self.collector.collect(n_step=self.batch_T * self.env.num_envs, storage=self._storage)
        if "bootstrap_value" in self.samples.agent:
            self._write_bootstrap_value()
        completed = [info for _, info in self._tracker.advance(self._steps())]
        self._tracker.restart(self._abandoned())
        self._agent_inputs = self._current_inputs()
        return self._agent_inputs, list(self._tracker.infos), completed

    def reset_if_needed(self, agent_inputs: ArrayTuple) -> None:
        """Do nothing: waiting envs were reset at the end of `collect_batch`."""

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _current_inputs(self) -> ArrayTuple:
        obs = self.collector.current_obs
        components = {name: obs[name] for name in self.env.obs_spec}
        return AgentInputs(named_observation(components), obs["prev_action"], obs["prev_reward"])

    @torch.no_grad()
    def _write_bootstrap_value(self) -> None:
        """Store the value after the last step: of the final observation where an episode ended."""
        for start, transition in self._storage.last.items():
            value = value_of_next(self.actor, transition)
            self.samples.agent.bootstrap_value[0, start : start + len(value)] = value

    def _follow(self, transition: Transition, counted: Tensor) -> None:
        self._tracker.advance(transition_steps(transition, counted, lambda _: None))

    def _steps(self) -> TrajectorySteps:
        env, agent = tree.to_numpy(self.samples.env), tree.to_numpy(self.samples.agent)
        done: Any = env.done
        waits = not self.mid_batch_reset
        return TrajectorySteps(
            observation=env.observation,
            action=agent.action,
            reward=env.reward,
            done=done,
            ended=flat(env.env_info).get("traj_done", done),
            valid=env.valid,
            counted=valid_from_done(self.samples.env.done).bool().cpu().numpy() if waits else np.ones_like(done),
            agent_info=agent.agent_info,
            env_info=env.env_info,
            final=self._storage.final,
        )

    def _abandoned(self) -> list[int]:
        """Return the envs that were reset after the batch: those that waited, and those in quarantine."""
        env = self.samples.env
        reset = ~env.valid[-1] & (self.collector.statistics.running_length == 0)
        if not self.mid_batch_reset:
            reset = reset | env.done.any(0)
        found: list[int] = reset.nonzero().flatten().tolist()
        return found


class ResetCollector(BaseCollector):
    """Starts the next episode at once."""

    mid_batch_reset: ClassVar[bool] = True


class WaitResetCollector(BaseCollector):
    """Starts the next episode between batches; until then its column holds zeros, done and not valid."""

    mid_batch_reset: ClassVar[bool] = False


CpuResetCollector = GpuResetCollector = ResetCollector
CpuWaitResetCollector = GpuWaitResetCollector = WaitResetCollector


# -- evaluation --------------------------------------------------------------------------------------------------------


class EvalCollector:
    """Runs whole trajectories from fresh starts on envs of its own, and keeps their infos only.

    With `max_trajectories` each env runs its share of them, so short episodes are not preferred. Trajectories that
    are in progress when `max_T` is reached do not count.
    """

    def __init__(
        self,
        envs: Any,
        agent: Any,
        TrajInfoCls: Callable[[], TrajInfo] = TrajInfo,
        max_T: int | None = None,
        max_trajectories: int | None = None,
        *,
        seed: int = 0,
    ) -> None:
        """Prepare; evaluation `itr` uses the seed that belongs to (seed, itr)."""
        if max_T is None and max_trajectories is None:
            raise ValueError("an evaluation wants max_T, max_trajectories or both; with neither it would not end")
        self.env = as_vec_env(envs)
        self.TrajInfoCls, self.max_T, self.max_trajectories, self.seed = TrajInfoCls, max_T, max_trajectories, seed
        num_envs = self.env.num_envs
        self.actor = as_actor(agent, self.env.obs_spec, num_envs, agent_info=None, alternating=False)
        self.collector = Collector(self.env, self.actor, CollectorConfig(seed=seed, previous_step=True))
        self._everyone = torch.ones(num_envs, dtype=torch.bool)

    def collect_evaluation(self, itr: int) -> list[TrajInfo]:
        """Return the infos of the trajectories in the order in which they ended."""
        if isinstance(self.actor, AgentActor):
            self.actor.eval_mode(itr)
            self.actor.reset()
        self.collector.reset(derived_seed(self.seed, "evaluation", itr))
        tracker = TrajectoryTracker(self.TrajInfoCls, self.env.num_envs)
        missing = self._shares()
        completed = []
        for _ in itertools.count() if self.max_T is None else range(self.max_T):
            if not any(missing):
                break
            last = _LastStep()
            self.collector.collect(n_step=self.env.num_envs, storage=last)
            for env, info in tracker.advance(transition_steps(last.transition, self._everyone, self._agent_info)):
                if missing[env]:
                    missing[env] -= 1
                    completed.append(info)
        return completed

    def _agent_info(self, columns: dict[str, Any]) -> Any:
        return self.actor.agent_info(columns) if isinstance(self.actor, AgentActor) else named("AgentInfo", columns)

    def _shares(self) -> list[float]:
        """Return the number of trajectories for each env."""
        if self.max_trajectories is None:
            return [float("inf")] * self.env.num_envs
        each, rest = divmod(self.max_trajectories, self.env.num_envs)
        return [each + (env < rest) for env in range(self.env.num_envs)]


class _LastStep:
    """A storage that keeps one step."""

    balanced = True
    transition: Transition

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        self.transition = transition


# -- decorrelation -----------------------------------------------------------------------------------------------------


def decorrelation_lengths(env: VecEnv, max_steps: int, seed: int) -> Tensor:
    """Return n_b for each env, int64 [N] in 1 to max_steps."""
    index = env.first_env_index + torch.arange(env.num_envs).numpy()
    numbers = uniform("decorrelation", seed=seed, env_index=index, occasion=0, count=1)[:, 0]
    return 1 + torch.as_tensor(numbers * max_steps).long().to(env.device)


@torch.no_grad()
def decorrelate(env: VecEnv, max_steps: int, seed: int, follow: Callable[[Transition, Tensor], None]) -> Obs:
    """Reset, take the random steps and return the observations, with 'prev_action' and 'prev_reward'.

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
