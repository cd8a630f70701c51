"""Acting and learning as CUDA graphs: PPO with random network distillation and an LSTM, replayed and compared.

    acting    obs, state, noise (static buffers) ─▶ graph ─▶ action, log-prob, state, written back with copy_
    learning  minibatch (static buffers) ─▶ graph: forward, losses, backward, rule, clip, optimiser ─▶ numbers

Everything runs under torch's alarm for synchronisation with the host. Returns what was seen; raises when it is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig, RolloutBatch
from striderl.algorithms.terms.rnd import RandomNetworkDistillation, RNDConfig
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.data import tree
from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Remember

SPEC = ObsSpec({"joints": ComponentSpec(shape=(12,)), "hidden": ComponentSpec(shape=(3,), group="critic")})
ENVS, STEPS = 32, 8


@contextmanager
def no_waiting() -> Iterator[None]:
    """Make every synchronisation with the host an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch TF32 off: eager and captured code may choose other kernels."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def captured(function: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Warm a function up on a side stream and capture it once."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


def make_policy(device: torch.device) -> Policy:
    """An LSTM for the actor and one for the critic, behind normalisers."""
    torch.manual_seed(0)
    stages = (NormalizeObs(), Remember(type="lstm", hidden_size=64))
    settings = PolicyConfig(actor=stages, critic=stages, actor_hidden_dims=(64,), critic_hidden_dims=(64,))
    return Policy(SPEC, BoxSpec(shape=(4,)), settings).to(device)


def make_ppo(device: torch.device) -> PPO:
    """PPO with novelty as a term."""
    policy = make_policy(device)
    novelty = RandomNetworkDistillation(SPEC, ENVS, RNDConfig(num_outputs=8), device)
    return PPO(
        policy, PPOConfig(num_learning_epochs=5, num_mini_batches=4, schedule="adaptive", desired_kl=1e-3), [novelty]
    )


def observation(generator: torch.Generator, *lead: int) -> dict[str, Tensor]:
    """Random components on the generator's device."""
    return {
        name: torch.randn(*lead, *part.shape, generator=generator, device=generator.device)
        for name, part in SPEC.items()
    }


def make_minibatch(policy: Policy, seed: int, device: torch.device) -> dict[str, Any]:
    """Sequences [T, B] with resets and samples that do not count, and everything PPO reads of them."""
    generator = torch.Generator(device).manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    obs = observation(generator, STEPS, ENVS)
    resets, valid = random(STEPS, ENVS) > 1.2, random(STEPS, ENVS) < 1.5
    state = {name: random(ENVS, *part.shape) for name, part in policy.state_spec().items()}
    with torch.no_grad():
        output = policy(obs, state, {}, resets, torch.ones_like(valid))
        act = output.distribution.mode() + 0.1 * random(STEPS, ENVS, 4)
        log_prob = output.distribution.log_prob(act)
    return {
        "obs": obs,
        "act": act,
        "valid": valid,
        "readable": torch.ones_like(valid),
        "resets": resets,
        "state": state,
        "memo": {},
        "info": {},
        "dist": tree.map(torch.clone, output.distribution.params()),
        "log_prob": log_prob,
        "value": output.value.clone(),
        "returns": random(STEPS, ENVS),
        "advantage": random(STEPS, ENVS),
    }


def update_as_a_graph() -> dict[str, float]:
    """Take ten steps on five minibatches, eagerly and by replaying one graph; return the largest differences."""
    device = torch.device("cuda")
    eager, graphed = make_ppo(device), make_ppo(device)
    minibatches = [make_minibatch(eager.policy, seed, device) for seed in range(5)]
    static = tree.map(torch.clone, minibatches[0])

    def step() -> Tensor:
        numbers = graphed.updater.step(graphed.compute_losses, static, graphed.step_rule)
        return torch.stack([value.float() for value in numbers.values()])

    begin = graphed.state_dict()
    graph, result = captured(step)
    graphed.load_state_dict(begin)
    worst = {"numbers": 0.0, "parameters": 0.0, "learning_rate": 0.0}
    for at in range(10):
        given = minibatches[at % 5]
        with no_waiting():
            tree.map(lambda place, value: place.copy_(value), static, given)
            graph.replay()
            numbers = eager.updater.step(eager.compute_losses, given, eager.step_rule)
            wanted = torch.stack([value.float() for value in numbers.values()])
        assert bool(result.isfinite().all())
        worst["numbers"] = max(worst["numbers"], _difference(result, wanted))
    for name, group in eager.updater.groups.items():
        other = graphed.updater.groups[name]
        worst["parameters"] = max(worst["parameters"], _difference(group.flat.flat, other.flat.flat))
        worst["learning_rate"] = max(worst["learning_rate"], _difference(group.learning_rate, other.learning_rate))
    start = make_ppo(device).updater.groups["policy"]
    assert _difference(start.flat.flat, eager.updater.groups["policy"].flat.flat) > 1e-3  # something was learned
    assert float(eager.updater.groups["policy"].learning_rate) != float(start.learning_rate)
    return worst


def broken_update_as_a_graph() -> None:
    """Replay a step whose gradient is not finite: nothing changes but the count."""
    device = torch.device("cuda")
    ppo = make_ppo(device)
    static = make_minibatch(ppo.policy, 0, device)
    graph, _ = captured(lambda: ppo.updater.step(ppo.compute_losses, static, ppo.step_rule))
    before = tree.copy(ppo.updater.state_dict()), ppo.updater.groups["policy"].flat.flat.clone()
    static["returns"].fill_(torch.inf)
    graph.replay()
    after = ppo.updater.state_dict()
    assert torch.equal(ppo.updater.groups["policy"].flat.flat, before[1])
    assert all(torch.equal(after["policy"][key], before[0]["policy"][key]) for key in ("first", "second", "count"))
    assert int(after["policy"]["num_skipped"]) == int(before[0]["policy"]["num_skipped"]) + 1


def acting_as_a_graph() -> dict[str, float]:
    """Act for twelve steps, eagerly and by replaying one graph that carries the memory in static buffers."""
    device = torch.device("cuda")
    policy = make_policy(device)
    actor = PolicyActor(policy)
    generator = torch.Generator(device).manual_seed(1)
    obs, state = observation(generator, ENVS), policy.initial_state(ENVS)
    noise = {name: torch.zeros(ENVS, *part.shape, device=device) for name, part in actor.noise().items()}

    def step() -> tuple[Tensor, Any]:
        acted = actor.act(obs, state, noise)
        for name, place in state.items():
            place.copy_(acted.state[name])
        return acted.actions, acted.columns

    worst = {"actions": 0.0, "columns": 0.0, "state": 0.0}
    with torch.no_grad():
        graph, (actions, columns) = captured(step)
        for place in state.values():
            place.zero_()
        memory = policy.initial_state(ENVS)
        for _ in range(12):
            fresh = observation(generator, ENVS)
            draws = {
                name: torch.randn(value.shape, generator=generator, device=device) for name, value in noise.items()
            }
            with no_waiting():
                tree.map(lambda place, value: place.copy_(value), {"o": obs, "n": noise}, {"o": fresh, "n": draws})
                graph.replay()
                wanted = actor.act(fresh, memory, draws)
            memory = wanted.state
            worst["actions"] = max(worst["actions"], _difference(actions, wanted.actions))
            for one, other in zip(tree.leaves(columns), tree.leaves(wanted.columns)):
                worst["columns"] = max(worst["columns"], _difference(one, other))
            worst["state"] = max(worst["state"], *(_difference(state[name], memory[name]) for name in state))
    return worst


def whole_update_without_waiting() -> int:
    """Run PPO.update, shuffling included, under the alarm; return how many steps it took."""
    device = torch.device("cuda")
    ppo = make_ppo(device)
    given = make_minibatch(ppo.policy, 0, device)
    columns = {
        "obs": given["obs"],
        "valid": given["valid"],
        "policy": {"dist": given["dist"], "memo": given["memo"]},
    }
    names = ("act", "log_prob", "value", "returns", "advantage", "resets", "readable", "info")
    whole = {name: given[name] for name in names}
    prepared = RolloutBatch(
        columns=columns, **whole, raw_returns=given["returns"], parts={}, numbers={}, initial_state=given["state"]
    )
    ppo.update(prepared, torch.Generator().manual_seed(0))
    with no_waiting():
        ppo.update(prepared, torch.Generator().manual_seed(1))
    return ppo.num_updates_per_rollout


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max())
