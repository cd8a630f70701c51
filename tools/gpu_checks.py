"""Prove on a CUDA device what the suite can only prove on the CPU, and write down what was seen.

    python tools/gpu_checks.py [--out benchmarks/gpu_checks.json]

Needs torch and numpy alone. CI has no GPU; the last results are kept in benchmarks/gpu_checks.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "execution"))

import graph_cases

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.collect.actors.base import RandomActor
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data import tree
from striderl.data.actions import BoxSpec
from striderl.data.arena import Arena, Placement
from striderl.data.noise import NoiseSpec, draw
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.envs.toy import Counting, CountingConfig
from striderl.policies.encode import Encode
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Remember
from striderl.storage.rollout import RolloutStorage

CUDA = torch.device("cuda")
CHECKS: dict[str, Callable[[], str]] = {}


def check(function: Callable[[], str]) -> Callable[[], str]:
    """Register a check; it raises when something is wrong and returns what it saw."""
    CHECKS[function.__name__] = function
    return function


@check
def noise_has_the_same_bits_on_both_devices() -> str:
    """Counter-based integers and uniforms are equal; normals agree to rounding."""
    worst = 0.0
    for kind in ("bits", "uniform", "normal", "gumbel", "exponential"):
        spec = NoiseSpec(shape=(5,), kind=kind)
        one, two = (
            draw(spec, "x", seed=3, iteration=2, env_index=torch.arange(512, device=device), num_steps=8).cpu()
            for device in ("cpu", "cuda")
        )
        if kind in ("bits", "uniform"):
            assert torch.equal(one, two), kind
        worst = max(worst, float((one.double() - two.double()).abs().max()))
    return f"bits and uniforms equal, largest difference {worst:.1e}"


@check
def arenas_hold_the_same_data() -> str:
    """Writes, packed gathers and windows agree with the CPU."""
    columns = {"image": TensorSpec(shape=(1, 8, 8), dtype="uint8"), "act": TensorSpec(shape=(3,)), "rew": TensorSpec()}
    arenas = [Arena(columns, (6, 16), Placement(device=device)) for device in ("cpu", "cuda")]
    for step in range(6):
        row = {
            "image": torch.randint(0, 255, (16, 1, 8, 8), dtype=torch.uint8),
            "act": torch.rand(16, 3),
            "rew": torch.rand(16),
        }
        for arena in arenas:
            arena.write(step, tree.to(row, arena.blocks["float32"].device))
    index = torch.randperm(96)[:20]
    one, two = arenas[0].gather(index), tree.to(arenas[1].gather(index.to(CUDA)), "cpu")
    assert tree.equal(one, two)
    return f"{arenas[1].num_bytes} bytes on the device, gathers equal"


def rollout(device: str, actor_of: Callable[[Counting], Any], *, guard: bool) -> RolloutStorage:
    """Collect with the sync alarm on; the env is on the device too."""
    env = Counting(64, device, config=CountingConfig(max_length=9))
    collector = Collector(env, actor_of(env), CollectorConfig(seed=5))
    storage = RolloutStorage(collector.columns(), 24, 64, placement=Placement(device=device), final_obs=env.obs_spec)
    collector.reset()
    collector.collect(n_step=64 * 24, storage=storage)
    storage.clear()
    if guard:
        torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.no_grad():
            collector._take_steps(collector._begin_steps(64 * 24, storage))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return storage


@check
def a_rollout_never_waits_for_the_device() -> str:
    """Env, actor, storage, quarantine and statistics run under torch's synchronisation alarm and equal the CPU."""
    one = rollout("cpu", lambda env: RandomActor(env.action_spec), guard=False)
    two = rollout("cuda", lambda env: RandomActor(env.action_spec), guard=True)
    for dtype, block in one.arena.blocks.items():
        assert torch.equal(block, two.arena.blocks[dtype].cpu()), dtype
    assert one.finals is not None and two.finals is not None and int(one.finals.count) == int(two.finals.count)
    return "no synchronisation in 24 steps of 64 envs; data equal to the CPU's bit for bit"


def policies() -> dict[str, Policy]:
    """The kinds of policy that are captured."""
    spec = ObsSpec(
        {
            "joints": ComponentSpec(shape=(12,)),
            "image": ComponentSpec(shape=(1, 16, 16), dtype="uint8"),
            "hidden": ComponentSpec(shape=(3,), group="critic"),
        }
    )
    vector = spec.select(["joints", "hidden"])
    conv = Encode(
        components=("image",),
        model="Conv2dHeadModel",
        settings={"channels": [8], "kernel_sizes": [3], "strides": [2]},
        output_size=16,
    )
    action = BoxSpec(shape=(4,))
    gru = Remember(type="gru")
    body = {"actor_hidden_dims": (64, 64), "critic_hidden_dims": (64, 64)}
    return {
        "mlp": Policy(vector, action, PolicyConfig(actor=(NormalizeObs(),), critic=(NormalizeObs(),), **body)),
        "lstm": Policy(vector, action, PolicyConfig(actor=(Remember(),), critic=(Remember(),), **body)),
        "gru": Policy(vector, action, PolicyConfig(actor=(gru,), critic=(gru,), **body)),
        "cnn + lstm": Policy(spec, action, PolicyConfig(actor=(conv, Remember()), critic=(conv,), **body)),
    }


def observation(spec: ObsSpec, *lead: int) -> dict[str, torch.Tensor]:
    """Random components on the device."""
    return {
        name: torch.randint(0, 255, (*lead, *part.shape), dtype=torch.uint8, device=CUDA)
        if part.dtype == "uint8"
        else torch.randn(*lead, *part.shape, device=CUDA)
        for name, part in spec.items()
    }


@check
def policy_steps_are_captured_and_replayed() -> str:
    """One acting step of every kind of policy as a CUDA graph, replayed on fresh inputs, equal to eager."""
    seen = []
    for name, policy in policies().items():
        policy.to(CUDA)
        actor = PolicyActor(policy)
        obs, state = observation(policy.obs_spec, 32), policy.initial_state(32)
        noise = {key: torch.randn(32, *spec.shape, device=CUDA) for key, spec in actor.noise().items()}
        with torch.no_grad():
            graph, acted = graph_cases.captured(lambda: actor.act(obs, state, noise))  # noqa: B023
            for target in (obs, state, noise):
                for value in target.values():
                    value.copy_(torch.rand_like(value.float()) * 2)
            graph.replay()
            wanted = actor.act(obs, state, noise)
        worst = float((acted.actions - wanted.actions).abs().max())
        assert worst < 1e-5, (name, worst)
        seen.append(f"{name} {worst:.0e}")
    return ", ".join(seen)


@check
def updates_are_captured_and_replayed() -> str:
    """Forward, losses, backward, clip and fused optimiser as one CUDA graph; parameters equal eager steps."""
    seen = []
    for name, policy in policies().items():
        results = []
        start = copy.deepcopy(policy.state_dict())
        for graphed in (False, True):
            torch.manual_seed(0)
            policy.load_state_dict(start)
            learner = PPO(copy.deepcopy(policy).to(CUDA), PPOConfig(schedule="adaptive", entropy_coef=0.01))
            minibatch = make_minibatch(learner.policy)

            def step(learner: PPO = learner, minibatch: dict[str, Any] = minibatch) -> None:
                learner.updater.step(learner.compute_losses, minibatch, learner.step_rule)

            begin = copy.deepcopy(learner.state_dict())
            if graphed:
                graph, _ = graph_cases.captured(step)
                learner.load_state_dict(begin)
                for _ in range(5):
                    graph.replay()
            else:
                for _ in range(5):
                    step()
            torch.cuda.synchronize()
            results.append(learner.updater.groups["policy"].flat.flat.clone())
        worst = float((results[0] - results[1]).abs().max())
        assert worst < 1e-4, (name, worst)
        seen.append(f"{name} {worst:.0e}")
    return ", ".join(seen)


@check
def acting_with_an_lstm_is_a_graph() -> str:
    """Twelve acting steps by one graph that carries the memory in static buffers, without a synchronisation."""
    worst = graph_cases.acting_as_a_graph()
    assert max(worst.values()) <= 1e-5, worst
    return _said(worst)


@check
def an_update_of_ppo_rnd_and_lstm_is_a_graph() -> str:
    """Ten gradient steps, learning-rate rule included, by one graph without a synchronisation."""
    worst = graph_cases.update_as_a_graph()
    assert max(worst.values()) <= 1e-5, worst
    graph_cases.broken_update_as_a_graph()
    return f"{_said(worst)}; a gradient that is not finite is skipped inside the graph"


@check
def a_whole_update_never_waits_for_the_device() -> str:
    """PPO.update with its shuffling under torch's synchronisation alarm."""
    return f"no synchronisation in {graph_cases.whole_update_without_waiting()} gradient steps"


def _said(worst: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.0e}" for name, value in worst.items())


def make_minibatch(policy: Policy) -> dict[str, Any]:
    """A minibatch of [T, B] sequences, or of rows, with everything PPO reads."""
    recurrent = bool(policy.state_spec())
    lead = (8, 32) if recurrent else (256,)
    obs = observation(policy.obs_spec, *lead)
    resets = torch.rand(*lead, device=CUDA) < 0.1
    state = policy.initial_state(32) if recurrent else {}
    with torch.no_grad():
        output = policy(obs, state, {}, resets if recurrent else None)
        act = output.distribution.mode() + 0.1
        log_prob = output.distribution.log_prob(act)
    everywhere = torch.ones(*lead, dtype=torch.bool, device=CUDA)
    return {
        "obs": obs,
        "act": act,
        "valid": everywhere,
        "readable": everywhere,
        "resets": resets,
        "state": state,
        "memo": {},
        "info": {},
        "dist": output.distribution.params(),
        "log_prob": log_prob,
        "value": output.value,
        "returns": torch.randn(*lead, device=CUDA),
        "advantage": torch.randn(*lead, device=CUDA),
    }


def main() -> int:
    """Run every check; the exit status is the number that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was checked")
        return 1
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.fp32_precision = "ieee"
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "checks": {}}
    failed = 0
    for name, function in CHECKS.items():
        started = time.perf_counter()
        try:
            results["checks"][name] = {"ok": True, "seen": function()}
        except Exception as error:  # noqa: BLE001  (one failing check must not hide the others)
            failed += 1
            results["checks"][name] = {"ok": False, "seen": f"{type(error).__name__}: {error}"}
        print(name, results["checks"][name], f"{time.perf_counter() - started:.1f} s", flush=True)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
