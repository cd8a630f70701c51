"""Learners from replay and from datasets in one process, and the same learners spread over several.

Run as `python replay_rank_cases.py FOLDER` by every process; they find each other through the variables that torchrun
sets, and each writes what it has learned to FOLDER/RANK.pt. Observations and parameters are float64, but for learners
with a memory.

What one process must do to learn the same: sample, for each part of the batch, from the envs of that part's rank alone.
`Strata` does it, with the probabilities and weights written down once more.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.algorithms.actor_critic.sac import SAC, SACConfig
from striderl.algorithms.offline.behaviour_cloning import BehaviourCloning, BehaviourCloningConfig
from striderl.algorithms.offline.iql import IQL, IQLConfig
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.datasets.offline import load_dataset, replay_of, save_dataset
from striderl.envs.toy.base import State, ToyEnv, ToyOutcome
from striderl.envs.vec_env import Actions, Obs
from striderl.execution.background import built_with
from striderl.ops.moments import pooled
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.stages import NormalizeObs
from striderl.policies.value_functions import ChoiceQFunction, QFunction, QFunctionConfig, ValueFunction
from striderl.storage.replay.replay import Replay
from striderl.storage.replay.samplers import Draws, SampledRows
from striderl.storage.replay.sum_tree import SumTree
from striderl.training.callbacks.ranks import learned_tensors
from striderl.training.distributed import Ranks, setup
from striderl.training.plans import OfflinePlan, OffPolicyPlan
from striderl.training.trainer import Trainer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "algorithms"))
import replay_cases
import term_rank_cases
from distributed_cases import AsTraced

ENVS, BATCH = 8, 16
PLAN = OffPolicyPlan(
    num_steps_per_env=6, train_every=2, batch_size=BATCH, learning_starts=32, buffer_size=64, total_iterations=2
)
SPEC = ObsSpec({"obs": ComponentSpec(shape=(3,), dtype="float64")})
SINGLE = ObsSpec({"obs": ComponentSpec(shape=(3,), dtype="float32")})
"""Of learners with a memory, which a replay stores in float32."""
BOX, CHOICE = BoxSpec(shape=(2,), low=-1.0, high=1.0), DiscreteSpec(n=3)
PRIORITIZED = replay_cases.Setting(prioritized=True)
IN_PARTS = replay_cases.Setting(mode="auto")
"""As functions are run after the switch to compiled programs, see `distributed_cases.AsTraced`."""
REPLAY = {
    "sac as usual": ("sac as usual", PRIORITIZED),
    **{name: (name, replay_cases.Setting()) for name in replay_cases.ALL},
    **{
        f"prioritized {name}": (name, PRIORITIZED) for name in ("td3", "sac", "crossq", "discrete sac", "recurrent dqn")
    },
    **{f"{name} in parts": (name, IN_PARTS) for name in ("rainbow", "sac", "crossq", "cql")},
}
OFFLINE = ("bc", "iql", "iql choices", "td3+bc", "cql", "bcq")
CASES = [*REPLAY, *(f"offline {name}" for name in OFFLINE), *term_rank_cases.CASES]
SOME = CASES[::5]
"""The cases of four ranks."""


class Drift(ToyEnv):
    """Points that move by their actions; rewards are 0 and 1, which float32 holds exactly, and NaN in two envs."""

    SAVED_NAME = "Drift"

    def __init__(self, num_envs: int, action_spec: Any, first_env_index: int = 0, spec: ObsSpec = SPEC) -> None:
        super().__init__(
            num_envs,
            "cpu",
            obs_spec=spec,
            action_spec=action_spec,
            max_episode_length=5,
            first_env_index=first_env_index,
            num_words=3,
        )

    def _start(self, words: Tensor) -> State:
        return {"place": words.double() / 2.0**31 - 1.0}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        assert isinstance(actions, Tensor)
        pushed = actions.double().reshape(self.num_envs, -1).sum(1, keepdim=True)
        place = (1.1 * state["place"] + 0.1 * pushed).roll(1, dims=1)
        bad = (self.env_index % 5 == 4) & (state["length"] == 1)
        reward = torch.where(bad, torch.nan, (place[:, 0] > 0.0).float())
        return ToyOutcome({"place": place}, reward, place[:, 1] > 1.0, self._never(), {})

    def _observe(self, state: State) -> Obs:
        return {"obs": state["place"].to(getattr(torch, self.obs_spec["obs"].dtype), copy=True)}


class Strata:
    """Samples each part of a batch from the envs of one rank, with the priorities of all in one table."""

    capturable = False

    def __init__(self, seed: int, num_ranks: int, *, prioritized: bool, alpha: float = 0.6, beta: float = 0.4) -> None:
        self.seed, self.num_ranks, self.prioritized, self.alpha, self.beta = seed, num_ranks, prioritized, alpha, beta
        self._draws = Draws("replay prioritized" if prioritized else "replay uniform", seed=seed)
        self._draw, self._largest = 0, 1.0

    def attach(self, cursor: Any, device: Any) -> None:
        self._cursor, self._leaves = cursor, np.zeros((cursor.rows, cursor.num_envs))

    def written(self, read: Any, first: int, count: int, valid: Any) -> None:
        self._leaves.ravel()[first : first + count] = self._largest * (1.0 if valid is True else np.asarray(valid))

    def opened(self, first: int, count: int) -> None:
        self._leaves.ravel()[first : first + count] = 0.0

    def sample_index(self, read: Any, count: int) -> SampledRows:
        numbers = self._draws.host(self._draw, count).reshape(self.num_ranks, -1)
        self._draw += 1
        num_envs, rows = self._cursor.num_envs, self._cursor.rows
        width, places, chances = num_envs // self.num_ranks, [], []
        for rank, own in enumerate(numbers):
            if self.prioritized:
                leaves = self._leaves[:, rank * width : (rank + 1) * width].ravel()
                chosen, _ = _picked(leaves, own)
                chances.append(leaves[chosen] / leaves.sum() / self.num_ranks)
            else:
                size = self._cursor.size
                chosen = (own * size * width).astype(np.int64) + (self._cursor.total - size) % rows * width
            places.append(chosen // width % rows * num_envs + rank * width + chosen % width)
        index = torch.from_numpy(np.concatenate(places))
        if not self.prioritized:
            return SampledRows(index, None)
        chance = np.concatenate(chances)
        return SampledRows(index, torch.from_numpy(((chance.min() / chance) ** self.beta).astype(np.float32)))

    def update(self, index: Tensor, alive: Tensor | None, error: Tensor) -> None:
        priority = (error.double().abs().numpy() + 1e-6) ** self.alpha
        self._leaves.ravel()[index.numpy()] = priority
        self._largest = max(self._largest, float(priority.max()))

    @property
    def largest(self) -> Tensor:
        return torch.tensor(self._largest, dtype=torch.float64)

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "strata", "leaves": torch.from_numpy(self._leaves.copy()), "largest": self._largest}


def _picked(leaves: Any, numbers: Any) -> Any:
    found = SumTree(len(leaves))
    found.load(torch.from_numpy(leaves.copy()))
    return found.pick_on_cpu(numbers.copy())


# -- learners ----------------------------------------------------------------------------------------------------------


def action_of(name: str) -> Any:
    return BOX if name in replay_cases.NUMBERS or name in ("bc", "iql", "sac as usual") else CHOICE


def algorithm_of(name: str, setting: replay_cases.Setting, env: Drift, ranks: Ranks) -> Any:
    """Build the learner; its temperature is learned, where it has one."""
    torch.manual_seed(1)
    with pooled(ranks.reduce):
        if name in replay_cases.ALL:
            return replay_cases.ALL[name](env, setting)
        stages = (NormalizeObs(),)
        head = "gaussian" if name.endswith("choices") else "squashed_gaussian"
        policy = ActorPolicy(SPEC, env.action_spec, ActorConfig(hidden_dims=(8,), head=head, stages=stages))
        if name == "bc":
            return BehaviourCloning(policy, BehaviourCloningConfig(learning_rate=1e-2))
        settings = QFunctionConfig(hidden_dims=(8,), stages=stages)
        if name == "sac as usual":
            return SAC(policy, QFunction(SPEC, env.action_spec, settings), SACConfig(prioritized=True, n_step=2))
        critics: Any = ChoiceQFunction if name.endswith("choices") else QFunction
        return IQL(policy, critics(SPEC, env.action_spec, settings), ValueFunction(SPEC, settings), IQLConfig())


def trained(trainer: Trainer) -> dict[str, Any]:
    numbers = [dict(record.metrics) for record in trainer]
    state = {name: part for name, part in trainer.algorithm.state_dict().items() if name != "actor"}
    return {"state": state, "numbers": numbers, "env_steps": trainer.env_steps, "num_updates": trainer.num_updates}


def from_replay(case: str, ranks: Ranks, strata: int = 0) -> dict[str, Any]:
    """Train one of the learners from replay; with `strata`, in one process that samples as so many would."""
    name, setting = REPLAY[case]
    count, first = ranks.shard(ENVS)
    single = name.startswith("recurrent")
    torch.set_default_dtype(torch.float32 if single else torch.float64)
    env = Drift(count, action_of(name), first, SINGLE if single else SPEC)
    switch = AsTraced(ranks) if setting is IN_PARTS and ranks.world_size > 1 else None
    with built_with(switch):
        algorithm = algorithm_of(name, setting, env, ranks)
    if strata:
        prioritized = "leaves" in algorithm.sampler(0).state_dict()
        algorithm.sampler = lambda seed: Strata(seed, strata, prioritized=prioritized)
    collector = Collector(env, algorithm.actor(), CollectorConfig(seed=3))
    trainer = Trainer(algorithm, collector, PLAN, seed=3, total_envs=ENVS, ranks=ranks)
    found = trained(trainer)
    ranks.require_equal(learned_tensors(algorithm))
    # a mask of bad rewards in one rank moves sums of crossq: steps in which ranks disagree are taken as written
    assert switch is None or switch.num_runs > 2
    return found


def dataset_in(folder: Path, action_spec: Any) -> None:
    """Save 96 steps of three envs: two ranks share them within an env."""
    generator = torch.Generator().manual_seed(5)
    obs = torch.randn(33, 3, 3, generator=generator, dtype=torch.float64)
    ended = torch.rand(32, 3, generator=generator) < 0.2
    act = 2.0 * torch.rand(32, 3, 2, generator=generator).float() - 1.0
    if action_spec is CHOICE:
        act = torch.randint(0, 3, (32, 3), generator=generator)
    steps = {
        "obs": {"obs": obs[:-1]},
        "act": act,
        "rew": (torch.rand(32, 3, generator=generator) < 0.5).float(),
        "terminated": ended,
        "obs_next": {"obs": torch.where(ended.unsqueeze(-1), -obs[1:], obs[1:])},
    }
    save_dataset(folder, replay_of(steps, SPEC, action_spec), SPEC, action_spec)


class Shards:
    """The sampler of one process with the whole dataset that takes the steps that each of several would take."""

    capturable = False
    largest = None

    def __init__(self, seed: int, num_ranks: int) -> None:
        self._draws, self._draw, self.num_ranks = Draws("replay uniform", seed=seed), 0, num_ranks

    def attach(self, cursor: Any, device: Any) -> None: ...

    def written(self, read: Any, first: int, count: int, valid: Any) -> None: ...

    def opened(self, first: int, count: int) -> None: ...

    def keep(self, alive: Tensor) -> None: ...

    def sample_index(self, read: Any, count: int) -> SampledRows:
        numbers = self._draws.host(self._draw, count).reshape(self.num_ranks, -1)
        self._draw += 1
        every = read.chronological()  # env by env: the shards are pieces of this
        cuts = [len(every) * rank // self.num_ranks for rank in range(self.num_ranks + 1)]
        found = []
        for own, low, high in zip(numbers, cuts, cuts[1:]):
            piece = every[low:high]
            found.append(_in_order_of_places(piece, own, read.num_envs))
        return SampledRows(torch.cat(found), None)

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "uniform", "seed": 0, "draw": self._draw}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._draw = int(state["draw"])


def _in_order_of_places(piece: Tensor, numbers: Any, num_envs: int) -> Tensor:
    """Return steps of a shard for uniform numbers, as a replay with its envs counts them."""
    envs = (piece % num_envs).unique()
    sizes = [int((piece % num_envs == env).sum()) for env in envs]
    chosen = torch.from_numpy((numbers * len(piece)).astype(np.int64))
    if len(set(sizes)) == 1:  # all envs equally far: place by place
        columns = torch.stack([piece[piece % num_envs == env] for env in envs], dim=1)
        return columns.flatten()[chosen]
    return piece[chosen]


def from_dataset(case: str, ranks: Ranks, folder: Path, strata: int = 0) -> dict[str, Any]:
    """Train one of the offline learners on a shard of a dataset."""
    torch.set_default_dtype(torch.float64)
    name = case.removeprefix("offline ")
    env = Drift(1, action_of(name))
    algorithm = algorithm_of(name, replay_cases.Setting(), env, ranks)
    sampler = Shards(3, strata) if strata else algorithm.sampler(3)
    data: Replay = load_dataset(
        folder / ("box" if env.action_spec is BOX else "choice"),
        SPEC,
        env.action_spec,
        sampler=sampler,
        view=algorithm.view(),
        shard=(ranks.rank, ranks.world_size),
    )
    plan = OfflinePlan(num_updates_per_iteration=3, batch_size=BATCH, total_iterations=2)
    found = trained(Trainer(algorithm, data, plan, seed=3, ranks=ranks))
    ranks.require_equal(learned_tensors(algorithm))
    return {**found, "num_steps": len(data)}


def result_of(case: str, ranks: Ranks, folder: Path, strata: int = 0) -> dict[str, Any]:
    if case.startswith("ppo "):
        return term_rank_cases.from_rollouts(case, ranks)
    if case.startswith("offline "):
        return from_dataset(case, ranks, folder, strata)
    return from_replay(case, ranks, strata)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    here = Path(sys.argv[1])
    with setup(device="cpu", timeout=240.0) as joined:
        found = {case: result_of(case, joined, here) for case in (CASES if joined.world_size == 2 else SOME)}
        torch.save(found, here / f"{joined.rank}.pt")
