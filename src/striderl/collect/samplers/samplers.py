"""rlpyt's samplers as presets over `Collector`: where the envs run, and in which order they are stepped.

    SerialSampler        all envs in this process
    CpuSampler           envs in worker processes, the agent here acts for all of them at once
    GpuSampler           the same, with observations on the agent's GPU
    AlternatingSampler   the same in two halves: one is simulated while the agent acts for the other

    sampler = SerialSampler(EnvCls="CartPole-v1", env_kwargs={}, batch_T=16, batch_B=8)
    examples = sampler.initialize(agent, seed=1)
    samples, traj_infos = sampler.obtain_samples(itr)        samples are the same memory every time
    sampler.shutdown()

All give every env the same experience for the same seed. Differences from rlpyt: samples are tensors that also
have `terminated`, `truncated` and `valid`; envs need not be rlpyt's, and agents may be actors of ours.

One step of everything, so that memory of the right shapes can be made before the first batch.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from striderl.collect.actors.base import RandomActor
from striderl.collect.group import NoiseSource
from striderl.collect.samplers.agents import AgentActor, AgentStep, SamplerAgent, agent_info_specs, is_actor
from striderl.collect.samplers.collectors import (
    BaseCollector,
    CpuResetCollector,
    CpuWaitResetCollector,
    EvalCollector,
    GpuResetCollector,
    GpuWaitResetCollector,
    ResetCollector,
    WaitResetCollector,
)
from striderl.collect.samplers.envs import EnvPlan, EnvSpaces, action_tensor, info_specs, make_sampler_env
from striderl.collect.samplers.samples import (
    AgentInputs,
    AgentSamples,
    AgentSamplesBsv,
    BatchSpec,
    EnvSamples,
    Samples,
    derived_seed,
    fresh_seed,
    make_samples,
    named,
    named_observation,
    seen_by_agent,
    valid_from_done,
)
from striderl.collect.samplers.traj_info import TrajInfo, TrajInfoFactory
from striderl.data import tree
from striderl.data.checked_fields import refuse_overrides
from striderl.data.named_tuples import ArrayTuple
from striderl.envs.vec_env import VecEnv
from striderl.envs.workers.pool import WorkerConfig

__all__ = [
    "AgentActor",
    "AgentInputs",
    "AgentSamples",
    "AgentSamplesBsv",
    "AgentStep",
    "AlternatingSampler",
    "BaseCollector",
    "BaseSampler",
    "BatchSpec",
    "CpuResetCollector",
    "CpuSampler",
    "CpuWaitResetCollector",
    "EnvSamples",
    "EnvSpaces",
    "EvalCollector",
    "GpuResetCollector",
    "GpuSampler",
    "GpuWaitResetCollector",
    "ResetCollector",
    "SamplerAgent",
    "Samples",
    "SerialSampler",
    "TrajInfo",
    "WaitResetCollector",
    "seen_by_agent",
    "valid_from_done",
]


class BaseSampler:
    """Makes envs and a collector from a description, and returns batches of samples."""

    schedule: ClassVar[str] = "together"
    """In which order groups of envs are stepped, see `CollectorConfig`."""
    min_workers: ClassVar[int] = 0
    """How many worker processes there are at least; 0 for none at all."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, {"evaluate_agents": "runners call evaluate_agent; override that"})

    def __init__(
        self,
        EnvCls: Any,
        env_kwargs: Mapping[str, Any],
        batch_T: int,
        batch_B: int,
        CollectorCls: type[BaseCollector] = ResetCollector,
        max_decorrelation_steps: int = 100,
        TrajInfoCls: Callable[[], TrajInfo] = TrajInfo,
        eval_n_envs: int = 0,
        eval_CollectorCls: Callable[..., Any] | None = None,
        eval_env_kwargs: Mapping[str, Any] | None = None,
        eval_max_steps: int | None = None,
        eval_max_trajectories: int | None = None,
        *,
        workers: WorkerConfig | None = None,
    ) -> None:
        """Store the settings; envs are built by `initialize`.

        Args:
            EnvCls: a `VecEnv` class or a function that takes num_envs; or what makes a single env: a Gymnasium id,
                class or function, or a class or function of rlpyt's kind.
            env_kwargs: passed to `EnvCls`.
            batch_T: time steps per batch.
            batch_B: envs.
            CollectorCls: what happens when an episode ends: `ResetCollector` or `WaitResetCollector`.
            max_decorrelation_steps: random steps before the first batch, 1 to this many per env; 0 for none.
            TrajInfoCls: what is counted per trajectory.
            eval_n_envs: envs of their own for `evaluate_agent`; 0 when there is no evaluation.
            eval_CollectorCls: takes the place of `EvalCollector`.
            eval_env_kwargs: passed to `EnvCls` for them; `env_kwargs` when left out.
            eval_max_steps: steps per evaluation, of all its envs together.
            eval_max_trajectories: trajectories per evaluation.
            workers: how worker processes are started and watched; for the samplers that have them.
        """
        if batch_T < 1 or batch_B < 1:
            raise ValueError(f"a batch has at least one step and one env, found batch_T={batch_T}, batch_B={batch_B}")
        if workers is not None and not self.min_workers:
            raise ValueError(f"{type(self).__name__} has no worker processes; use CpuSampler with workers=…")
        if eval_n_envs and eval_max_steps is None and eval_max_trajectories is None:
            raise ValueError("eval_n_envs wants eval_max_steps, eval_max_trajectories or both")
        if eval_n_envs and eval_max_steps is not None and eval_max_steps < eval_n_envs:
            raise ValueError(f"eval_max_steps={eval_max_steps} is not one step for each of {eval_n_envs} eval envs")
        self.EnvCls, self.env_kwargs = EnvCls, dict(env_kwargs)
        self.batch_spec = BatchSpec(batch_T, batch_B)
        self.CollectorCls, self.TrajInfoCls = CollectorCls, TrajInfoCls
        self.max_decorrelation_steps = max_decorrelation_steps
        self.eval_n_envs, self.eval_CollectorCls = eval_n_envs, eval_CollectorCls or EvalCollector
        self.eval_env_kwargs = self.env_kwargs if eval_env_kwargs is None else dict(eval_env_kwargs)
        self.eval_max_steps = None if eval_max_steps is None else int(eval_max_steps)
        self.eval_max_trajectories = None if eval_max_trajectories is None else int(eval_max_trajectories)
        self.workers = workers
        self.samples_pyt: ArrayTuple
        self.agent_inputs: ArrayTuple
        self.traj_infos: list[TrajInfo]
        self._envs: list[VecEnv] = []
        self.collector: BaseCollector | None = None
        self.eval_collector: Any = None

    @property
    def batch_size(self) -> int:
        """Samples in a batch."""
        return self.batch_spec.size

    @property
    def mid_batch_reset(self) -> bool:
        """Whether the next episode starts in the same batch."""
        return self.CollectorCls.mid_batch_reset

    # -- life ----------------------------------------------------------------------------------------------------------

    def initialize(
        self,
        agent: Any,
        affinity: Mapping[str, Any] | None = None,
        seed: int | None = None,
        bootstrap_value: bool = False,
        traj_info_kwargs: Mapping[str, Any] | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> dict[str, Any]:
        """Build the envs, initialize the agent, take the decorrelation steps, and return examples of all data.

        Called again it begins anew, with other envs.

        Args:
            agent: an agent of rlpyt's kind, or one of our actors.
            affinity: 'workers_cpus', a list with the processors of each worker, sets the number of workers and
                ties them to these; 'cuda_idx' is where a `GpuSampler` puts observations. Other entries are not ours.
            seed: everything random follows from it; None draws one, which is then in `self.seed`.
            bootstrap_value: keep the agent's value of what followed the last step, as `AgentSamplesBsv`.
            traj_info_kwargs: set as fields of every trajectory info, with an underscore: {"discount": 0.99}.
            rank: the number of this process among several that each have a sampler.
            world_size: how many these are.
        """
        self.shutdown()
        self.seed = fresh_seed() if seed is None else seed
        try:
            return self._build(agent, affinity or {}, bootstrap_value, traj_info_kwargs or {}, rank, world_size)
        except BaseException:
            self.shutdown()
            raise

    def obtain_samples(self, itr: int) -> tuple[ArrayTuple, list[TrajInfo]]:
        """Collect one batch; return the samples, in the same memory every time, and the trajectories that ended."""
        if self.collector is None:
            raise RuntimeError("call initialize first")
        self.agent_inputs, self.traj_infos, completed = self.collector.collect_batch(
            self.agent_inputs, self.traj_infos, itr
        )
        self.collector.reset_if_needed(self.agent_inputs)
        return self.samples_pyt, completed

    def evaluate_agent(self, itr: int) -> list[TrajInfo]:
        """Evaluate on the evaluation envs, from starts that depend on the seed and `itr`, and return the infos."""
        if self.eval_collector is None:
            raise RuntimeError("evaluate_agent wants eval_n_envs of 1 or more, and initialize to be called first")
        traj_infos: list[TrajInfo] = self.eval_collector.collect_evaluation(itr)
        return traj_infos

    def evaluate_agents(self, itr: int) -> list[TrajInfo]:
        """Do the same as `evaluate_agent`."""
        return self.evaluate_agent(itr)

    def shutdown(self) -> None:
        """Close all envs and their processes; calling it twice is fine."""
        envs, self._envs = self._envs, []
        self.collector = self.eval_collector = None
        for env in envs:
            env.close()

    # -- building ------------------------------------------------------------------------------------------------------

    def _build(
        self,
        agent: Any,
        affinity: Mapping[str, Any],
        bootstrap_value: bool,
        traj_info_kwargs: Mapping[str, Any],
        rank: int,
        world_size: int,
    ) -> dict[str, Any]:
        B = self.batch_spec.B
        env, spaces = self._make_env(self.env_kwargs, self._plan(B, affinity, rank * B))
        action_tensor(env)  # raises for dict actions before anything else is built
        seed = self.seed if env.first_env_index == rank * B else derived_seed(self.seed, "rank", rank)
        env_ranks = list(range(rank * B, (rank + 1) * B))
        self._initialize_agent(agent, spaces, B * world_size, env_ranks)
        examples, agent_info = example_outputs(
            env, agent, seed, agent_rows=max(1, B // 2) if self.schedule == "alternating" else B
        )
        self.samples_pyt = self._allocate(env, agent_info, bootstrap_value)
        self.samples_np = tree.to_numpy(self.samples_pyt) if env.device.type == "cpu" else self.samples_pyt
        make_info = TrajInfoFactory(self.TrajInfoCls, dict(traj_info_kwargs))
        self.collector = self.CollectorCls(
            rank=rank,
            envs=env,
            samples_np=self.samples_np,
            batch_T=self.batch_spec.T,
            TrajInfoCls=make_info,
            agent=agent,
            global_B=B * world_size,
            env_ranks=env_ranks,
            seed=seed,
            schedule=self.schedule,
        )
        if self.eval_n_envs:
            self.eval_collector = self._make_eval_collector(agent, affinity, make_info, rank)
        self.agent_inputs, self.traj_infos = self.collector.start_envs(self.max_decorrelation_steps)
        self.collector.start_agent()
        return examples

    def _initialize_agent(self, agent: Any, spaces: EnvSpaces, global_B: int, env_ranks: list[int]) -> None:
        if not is_actor(agent) and hasattr(agent, "initialize"):
            agent.initialize(spaces, share_memory=False, global_B=global_B, env_ranks=env_ranks)

    def _allocate(self, env: VecEnv, agent_info: Any, bootstrap_value: bool) -> ArrayTuple:
        return make_samples(
            num_steps=self.batch_spec.T,
            num_envs=self.batch_spec.B,
            observation=named_observation(dict(env.obs_spec)),
            action=action_tensor(env),
            agent_info=agent_info,
            env_info=named("EnvInfo", info_specs(env)),
            bootstrap_value=bootstrap_value,
            device=env.device,
        )

    def _make_eval_collector(
        self, agent: Any, affinity: Mapping[str, Any], make_info: Callable[[], TrajInfo], rank: int
    ) -> Any:
        count = self.eval_n_envs
        env, _ = self._make_env(self.eval_env_kwargs, self._plan(count, affinity, rank * count))
        return self.eval_CollectorCls(
            envs=env,
            agent=agent,
            TrajInfoCls=make_info,
            max_T=None if self.eval_max_steps is None else self.eval_max_steps // count,
            max_trajectories=self.eval_max_trajectories,
            seed=derived_seed(self.seed, "evaluation", rank),
        )

    def _make_env(self, env_kwargs: Mapping[str, Any], plan: EnvPlan) -> tuple[VecEnv, EnvSpaces]:
        env, spaces = make_sampler_env(self.EnvCls, env_kwargs, plan)
        self._envs.append(env)
        return env, spaces

    def _plan(self, num_envs: int, affinity: Mapping[str, Any], first_env_index: int) -> EnvPlan:
        """Return where these envs run."""
        if not self.min_workers:
            return EnvPlan(num_envs=num_envs, first_env_index=first_env_index)
        cpus = [_cpus(entry) for entry in affinity.get("workers_cpus", ())]
        settings = self.workers or WorkerConfig(num_workers=os.cpu_count() or 1)
        count = min(max(len(cpus) or settings.num_workers, self.min_workers), num_envs)
        return EnvPlan(
            num_envs=num_envs,
            first_env_index=first_env_index,
            workers=dataclasses.replace(settings, num_workers=count),
            worker_cpus=tuple(cpus[worker % len(cpus)] for worker in range(count)) if cpus else (),
            device=self._device(affinity),
        )

    def _device(self, affinity: Mapping[str, Any]) -> str:
        """Return where observations of worker processes are put."""
        return "cpu"


class SerialSampler(BaseSampler):
    """Steps all envs in this process."""


class CpuSampler(BaseSampler):
    """Steps single envs in worker processes; the agent acts here, for all of them at once."""

    min_workers: ClassVar[int] = 1


class GpuSampler(CpuSampler):
    """Steps single envs in worker processes; observations and samples are on the GPU 'cuda_idx' of the affinity."""

    def _device(self, affinity: Mapping[str, Any]) -> str:
        index = affinity.get("cuda_idx")
        return "cpu" if index is None else f"cuda:{index}"


class AlternatingSampler(GpuSampler):
    """Steps one half of the envs in worker processes while the agent acts for the other half."""

    schedule: ClassVar[str] = "alternating"
    min_workers: ClassVar[int] = 2


def _cpus(entry: int | Sequence[int]) -> tuple[int, ...]:
    """Return the processors of one worker, given as one number or several."""
    return (entry,) if isinstance(entry, int) else tuple(entry)


# -- one step of everything --------------------------------------------------------------------------------------------


@torch.no_grad()
def example_outputs(env: VecEnv, agent: Any, seed: int, agent_rows: int) -> tuple[dict[str, Any], Any]:
    """Take one random step; return examples of one env's data, and the specs of the agent_info, nested, or None.

    The env is reset for it. The agent is called with as many envs as it acts for at once, and its episodes are reset
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
    _, agent_info = agent.step(*actor.inputs(obs))  # by fields: a namedarraytuple has rows at [1]
    actor.reset()
    specs = agent_info_specs(agent_info)
    return None if specs is None else tree.map(lambda leaf: tree.to_numpy(leaf)[0], agent_info), specs
