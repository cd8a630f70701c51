"""One learner in one process, and the same learner spread over two: what both are given, and what they report.

Run as `python distributed_cases.py FOLDER` by each of two processes that find each other through the variables that
torchrun sets; every process writes what it has learned to FOLDER/RANK.pt. Everything is float64.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from striderl.algorithms.on_policy.a2c import A2C, A2CConfig
from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.terms.rnd import RandomNetworkDistillation, RNDConfig
from striderl.data import tree
from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.execution.background import ProgramRequest, Switch, built_with, graph_key
from striderl.ops.moments import AllReduce
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Remember
from striderl.storage.rollout import RolloutStorage
from striderl.training.distributed import Ranks, setup

STEPS, ENVS = 6, 8
SPEC = ObsSpec({"joints": ComponentSpec(shape=(3,)), "command": ComponentSpec(shape=(2,))})
ACTION = BoxSpec(shape=(2,), low=-1.0, high=1.0)
CASES: dict[str, dict[str, Any]] = {
    "whole batch": {"epochs": 4, "minibatches": 1},
    "minibatches": {"epochs": 2, "minibatches": 2},
    "per minibatch": {"epochs": 2, "minibatches": 2, "per_mini_batch": True},
    "uneven": {"epochs": 3, "minibatches": 2, "holes": True, "per_mini_batch": True},
    "normaliser": {"epochs": 2, "minibatches": 2, "normalise": True, "holes": True},
    "rnd": {"epochs": 2, "minibatches": 2, "normalise": True, "rnd": True, "holes": True},
    "values": {"epochs": 2, "minibatches": 2, "values": True, "holes": True},
    "lstm": {"epochs": 2, "minibatches": 2, "memory": "lstm", "holes": True},
    "a2c": {"a2c": True, "holes": True},
    "broken": {"epochs": 2, "minibatches": 2, "broken": True},
}
CASES |= {f"{name} in parts": {**CASES[name], "parts": True} for name in ("uneven", "rnd", "values", "a2c", "broken")}
"""In parts: as functions are run after the switch, with sums over processes between the parts of a graph."""


class AsTraced(Switch):
    """On from the start and without a compiler: the parts of functions run as they were traced."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(0, everywhere=ranks.everywhere)
        self.on, self.num_runs = True, 0

    def request(self, graph: fx.GraphModule, inputs: Sequence[Tensor]) -> ProgramRequest:
        key = graph_key(graph, inputs)
        self.keys.add(key)
        return NoProgram(self, key)


class NoProgram(ProgramRequest):
    def __init__(self, switch: AsTraced, key: str) -> None:
        super().__init__(switch, key)
        self.switch = switch

    def program(self) -> None:
        self.switch.num_runs += 1


def learner(case: dict[str, Any], num_envs: int, reduce: AllReduce | None) -> PPO | A2C:
    """Build everything, the same in every process."""
    torch.manual_seed(0)
    stages: tuple[Any, ...] = (NormalizeObs(),) if case.get("normalise") else ()
    if case.get("memory"):
        stages = (*stages, Remember(type=case["memory"], hidden_size=4))
    settings = PolicyConfig(actor=stages, critic=stages, actor_hidden_dims=(8,), critic_hidden_dims=(8,))
    policy = Policy(SPEC, ACTION, settings)
    if case.get("a2c"):
        return A2C(policy, A2CConfig(normalize_advantage=True), reduce=reduce, mode="auto")
    terms = [RandomNetworkDistillation(SPEC, num_envs, RNDConfig(num_outputs=3))] if case.get("rnd") else []
    config = PPOConfig(
        num_learning_epochs=case["epochs"],
        num_mini_batches=case["minibatches"],
        schedule="adaptive",
        desired_kl=1e-4,
        entropy_coef=0.01,
        normalize_advantage_per_mini_batch=bool(case.get("per_mini_batch")),
        normalize_values=bool(case.get("values")),
    )
    return PPO(policy, config, terms, reduce=reduce, mode="auto")


class Rollout(NamedTuple):
    storage: RolloutStorage
    initial_state: dict[str, Tensor]
    last_obs: dict[str, Tensor]
    last_state: dict[str, Tensor]


def rollout(case: dict[str, Any], policy: Policy, iteration: int, envs: slice) -> Rollout:
    """Some envs of a rollout that is the same in every process."""
    generator = torch.Generator().manual_seed(iteration)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    obs = {name: random(STEPS + 1, ENVS, *part.shape) for name, part in SPEC.items()}
    ends = random(2, STEPS, ENVS) > 1.2
    valid = torch.ones(STEPS, ENVS, dtype=torch.bool)
    if case.get("holes"):
        valid[:, :3] = random(STEPS, 3) > 0.3  # in the envs of the first process only
        valid[-1] = True
    state = {name: random(ENVS, *part.shape) for name, part in policy.state_spec().items()}
    now = {name: value[:STEPS] for name, value in obs.items()}
    resets = torch.cat([torch.zeros(1, ENVS, dtype=torch.bool), ends.any(0)[:-1]])
    with torch.no_grad():
        output = policy(now, state, {}, resets if state else None, torch.ones_like(valid))
    act = output.distribution.mode() + 0.3 * random(STEPS, ENVS, 2)
    log_prob = output.distribution.log_prob(act).detach()
    if case.get("broken") and iteration == 1:
        log_prob[0, ENVS - 1] = torch.nan  # in an env of the second process only
    columns = {
        "obs": now,
        "act": act,
        "rew": random(STEPS, ENVS),
        "terminated": ends[0],
        "truncated": ends[1],
        "valid": valid,
        "info": {},
        "policy": {"value": output.value, "log_prob": log_prob, "dist": output.distribution.params(), "memo": {}},
    }
    columns = tree.map(lambda leaf: leaf[:, envs].contiguous(), columns)
    storage = RolloutStorage(
        tree.map(lambda leaf: TensorSpec(shape=tuple(leaf.shape[2:]), dtype=str(leaf.dtype)[6:]), columns),
        STEPS,
        columns["rew"].shape[1],
    )
    tree.map(lambda place, leaf: place.copy_(leaf), storage.data, columns)
    return Rollout(
        storage,
        {name: value[envs] for name, value in state.items()},
        {name: value[-1, envs] for name, value in obs.items()},
        {name: value[envs] for name, value in state.items()},
    )


def learn(algorithm: PPO | A2C, case: dict[str, Any], envs: slice) -> dict[str, Any]:
    """Two iterations; return everything learned, and the numbers for the log."""
    numbers = []
    actor = learner(case, ENVS, None).policy  # acts as it was at first, in every process
    for iteration in range(2):
        given = rollout(case, actor, iteration, envs)
        prepared = algorithm.prepare(
            given.storage,
            initial_state=given.initial_state,
            last_obs=given.last_obs,
            last_state=given.last_state,
        )
        order = torch.Generator().manual_seed(100 + iteration)
        numbers.append({name: value.double() for name, value in algorithm.update(prepared, order).items()})
        algorithm.update_normalization(given.storage.data)
    return {"state": algorithm.state_dict(), "numbers": numbers}


def union_of_two(algorithm: PPO) -> None:
    """Let one process take the minibatches that two processes with half the envs each would take together."""
    cut = algorithm.minibatches

    def minibatches(prepared: Any, generator: torch.Generator) -> Iterator[dict[str, Any]]:
        seed = generator.initial_seed()
        dim = 1 if prepared.initial_state else 0

        def half(envs: slice) -> Any:
            kept = {"numbers", "initial_state"}
            sliced = {
                name: tree.map(lambda leaf: leaf[:, envs], value)
                for name, value in prepared._asdict().items()
                if name not in kept
            }
            state = {name: value[envs] for name, value in prepared.initial_state.items()}
            return prepared._replace(**sliced, initial_state=state)

        halves = [half(slice(0, ENVS // 2)), half(slice(ENVS // 2, ENVS))]
        for one, other in zip(*(cut(each, torch.Generator().manual_seed(seed)) for each in halves)):
            state = tree.map(lambda a, b: torch.cat([a, b]), one.pop("state"), other.pop("state"))
            yield {**tree.map(lambda a, b: torch.cat([a, b], dim), one, other), "state": state}

    algorithm.minibatches = minibatches  # type: ignore[method-assign]


def alone(name: str) -> dict[str, Any]:
    """What one process with all envs learns."""
    algorithm = learner(CASES[name], ENVS, None)
    if isinstance(algorithm, PPO):
        union_of_two(algorithm)
    return learn(algorithm, CASES[name], slice(0, ENVS))


def spread(name: str, ranks: Ranks) -> dict[str, Any]:
    """What one of several processes learns."""
    count, first = ranks.shard(ENVS)
    switch = AsTraced(ranks) if CASES[name].get("parts") else None
    with built_with(switch):
        algorithm = learner(CASES[name], count, ranks.reduce)
    if ranks.rank:
        # whatever a process begins with, it is rank 0's parameters that count
        torch.nn.init.ones_(next(algorithm.policy.parameters()))
    ranks.share(algorithm)
    result = learn(algorithm, CASES[name], slice(first, first + count))
    ranks.require_equal({key: group.flat.flat for key, group in algorithm.updater.groups.items()})
    assert switch is None or switch.num_runs > 2
    return result


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    with setup(device="cpu", timeout=240.0) as joined:
        found = {name: spread(name, joined) for name in CASES}
        torch.save(found, Path(sys.argv[1]) / f"{joined.rank}.pt")
