"""rlpyt's collectors: they fill a batch of `Samples` and follow trajectories, over our `Collector`.

reset collector     s a r  s a r  end │ s a r  s a r        the next episode starts at once, in the same batch
wait-reset          s a r  s a r  end │ 0 0 0  0 0 0        zeros, done and not valid until the batch is full;
                                                            the reset comes between two batches

start_envs ─▶ agent_inputs, traj_infos ─▶ collect_batch ─▶ agent_inputs, traj_infos, completed_infos ─▶ …
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from striderl.collect.actors import Actor, RandomActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.sampler_agents import AgentActor, agent_info_specs, as_actor, value_of_next
from striderl.collect.sampler_decorrelation import decorrelate
from striderl.collect.sampler_envs import as_vec_env
from striderl.collect.sampler_samples import (
    AgentInputs,
    SampleStorage,
    flat,
    named_observation,
    valid_from_done,
)
from striderl.collect.sampler_trajectories import transition_steps
from striderl.collect.traj_info import TrajectorySteps, TrajectoryTracker, TrajInfo
from striderl.data import tree
from striderl.data.buffers import torchify_buffer
from striderl.data.named_tuples import ArrayTuple
from striderl.data.transition import Transition


class BaseCollector:
    """Fills batches of samples; subclasses say what happens to an env whose episode ends."""

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
        """Tell the agent which envs it acts for, and let it begin."""
        if isinstance(self.actor, AgentActor):
            self.actor.start(self.global_B, self.env_ranks)

    def collect_batch(
        self, agent_inputs: ArrayTuple, traj_infos: Sequence[TrajInfo], itr: int
    ) -> tuple[ArrayTuple, list[TrajInfo], list[TrajInfo]]:
        """Fill the samples; return agent inputs and infos to go on with, and the infos of trajectories that ended."""
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
        """Do nothing: envs that wait for a reset got it at the end of `collect_batch`, and the inputs show it."""

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _current_inputs(self) -> ArrayTuple:
        obs = self.collector.current_obs
        components = {name: obs[name] for name in self.env.obs_spec}
        return AgentInputs(named_observation(components), obs["prev_action"], obs["prev_reward"])

    @torch.no_grad()
    def _write_bootstrap_value(self) -> None:
        """Store the value of what really followed the last step: of the final observation where an episode ended."""
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
