"""rlpyt's samplers for `AsyncRl`: they collect beside learning, with an agent of their own, into two buffers in turn.

    double_buffer, examples = sampler.async_initialize(agent)     one env for the shapes; the agent gets a shared model
    sampler.initialize(affinity)                                  in the thread that samples: all envs
    traj_infos = sampler.obtain_samples(itr, db_idx)              agent.recv_shared_memory, then a batch into a buffer

    AsyncSerialSampler       envs in the sampling thread
    AsyncCpuSampler          envs in worker processes
    AsyncGpuSampler          the same, and the agent on the GPU of the sampler's affinity
    AsyncAlternatingSampler  the same in two halves

rlpyt samples in a process of its own; here it is a thread, with envs in worker processes where the sampler has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from striderl.collect.samplers.collectors import ResetCollector, WaitResetCollector
from striderl.collect.samplers.envs import EnvPlan
from striderl.collect.samplers.samplers import (
    AlternatingSampler,
    BaseSampler,
    CpuSampler,
    GpuSampler,
    SerialSampler,
    example_outputs,
)
from striderl.collect.samplers.samples import fresh_seed
from striderl.collect.samplers.traj_info import TrajInfo

DbCpuResetCollector = DbGpuResetCollector = ResetCollector
DbCpuWaitResetCollector = DbGpuWaitResetCollector = WaitResetCollector


class AsyncSamplerMixin(BaseSampler):
    """What a sampler needs for `AsyncRl`: `class Mine(AsyncSamplerMixin, MySampler)`."""

    agent: Any

    def async_initialize(
        self,
        agent: Any,
        bootstrap_value: bool = False,
        traj_info_kwargs: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> tuple[tuple[Any, Any], dict[str, Any]]:
        """Build the agent's model in shared memory, and two buffers; return these, and examples of all data."""
        self.seed = fresh_seed() if seed is None else seed
        self._bootstrap_value, self._traj_info_kwargs = bootstrap_value, dict(traj_info_kwargs or {})
        B = self.batch_spec.B
        env, spaces = self._make_env(self.env_kwargs, EnvPlan(num_envs=1, first_env_index=0))
        agent.initialize(spaces, share_memory=True, global_B=B, env_ranks=list(range(B)))
        examples, agent_info = example_outputs(env, agent, self.seed, agent_rows=1)
        first, second = (self._allocate(env, agent_info, bootstrap_value) for _ in range(2))
        self.double_buffer, self.examples, self.agent = (first, second), examples, agent
        self.shutdown()
        return self.double_buffer, examples

    def initialize(self, affinity: Mapping[str, Any] | Sequence[Any]) -> None:  # type: ignore[override]
        """Build the envs and let the agent have a model of its own; the sampling thread calls this."""
        given = _joined(affinity)
        self.agent.to_device(given.get("cuda_idx"))
        self.agent.async_cpu(share_memory=False)
        super().initialize(
            self.agent,
            affinity=given,
            seed=self.seed,
            bootstrap_value=self._bootstrap_value,
            traj_info_kwargs=self._traj_info_kwargs,
        )

    def _initialize_agent(self, agent: Any, spaces: Any, global_B: int, env_ranks: list[int]) -> None:
        """Leave the agent as it is: `async_initialize` has built it, ε per env comes with `collector_initialize`."""

    def obtain_samples(self, itr: int, db_idx: int) -> list[TrajInfo]:  # type: ignore[override]
        """Take up new weights, collect a batch into one of the buffers, and return the trajectories that ended."""
        self.agent.recv_shared_memory()
        samples, completed = super().obtain_samples(itr)
        self.double_buffer[db_idx][:] = samples
        return completed

    def evaluate_agent(self, itr: int) -> list[TrajInfo]:
        """Take up new weights and evaluate."""
        self.agent.recv_shared_memory()
        return super().evaluate_agent(itr)


AsyncParallelSamplerMixin = AsyncSamplerMixin


class AsyncSerialSampler(AsyncSamplerMixin, SerialSampler):
    """Steps all envs in the sampling thread."""


class AsyncCpuSampler(AsyncSamplerMixin, CpuSampler):
    """Steps single envs in worker processes."""


class AsyncGpuSampler(AsyncSamplerMixin, GpuSampler):
    """Steps single envs in worker processes; observations and the agent are on the GPU of the sampler's affinity."""


class AsyncAlternatingSampler(AsyncSamplerMixin, AlternatingSampler):
    """Steps one half of the envs while the agent acts for the other half."""


AsyncGpuSamplerBase = AsyncGpuSampler
AsyncAlternatingSamplerBase = AsyncNoOverlapAlternatingSampler = AsyncAlternatingSampler


def _joined(affinity: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """Return one affinity of several, which rlpyt makes for several GPUs: all workers, and the first GPU."""
    if isinstance(affinity, Mapping):
        return dict(affinity)
    cpus = [worker for part in affinity for worker in part.get("workers_cpus", ())]
    return {**affinity[0], "workers_cpus": cpus}
