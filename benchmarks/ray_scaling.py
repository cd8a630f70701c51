"""Workers of Ray: steps per second and learning against their number, and a model of larger clusters.

    python benchmarks/ray_scaling.py                  measure here: results/ray_scaling.json, then the model
    python benchmarks/ray_scaling.py --model-only     compute the model from results/ray_scaling.json and gpu_ppo.json

Measured: the wall clock of runs without workers and with 1, 2 and 4; the CPU time of learner and worker per env step;
the size of every message as Ray ships it. The model takes these and a network that is assumed, and is no measurement:

    N workers, n envs each, T steps per rollout, on M = ⌈N / 32⌉ machines; network of B bytes per second, latency L
    c_w   CPU seconds of a worker per env step            b   bytes per env step: rollout, and state after it
    c_i   CPU seconds of the learner to take a step in:   W   bytes of the weights, sent once per machine and update
          a + d / n, from the runs with most and least n
    c_u   seconds of the learner to learn from a step     S   env steps per update

    asynchronous    steps/s = min( N / c_w,  1 / (c_i + c_u),  B / b,  B · S / (W · M) )
    synchronous     steps/s = N n T / ( n T c_w + L + W M / B + N n T (b / B + c_i + c_u) )

    G GPUs by torchrun, simulation on the GPU, K gradient steps on g bytes of gradients per iteration of R steps in t s
    steps/s = G R / ( t + K ( 2 (G - 1) / G · g / B + 2 (G - 1) L_g ) )         a ring, nothing hidden behind compute
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import pickle
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness_clock
from harness_markdown import splice_file

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "ray_scaling.json"
TASKS = ("cartpole", "gymnasium:HalfCheetah-v5")
NUM_ENVS, NUM_STEPS = 16, 64
WORKER_ENVS = (4, 64)
"""Envs of a worker: what the model is computed for."""
NETWORK, LATENCY = 3.125e9, 5e-4
"""Assumed: 25 Gbit/s between machines, in bytes per second; half a millisecond for a call of Ray."""
CORES = 32
"""Assumed: workers per machine."""
SLOW = 5e-3
"""Assumed: seconds per env step of a heavy simulator."""
GPU_NETWORK, GPU_LATENCY = 50e9, 1e-5
"""Assumed: 400 Gbit/s per GPU between machines, in bytes per second; ten microseconds per hop of a ring."""


# -- measuring ---------------------------------------------------------------------------------------------------------


def settings(task: str, total: int, workers: int, schedule: str, seed: int) -> Any:
    """Return the config of a run."""
    from striderl.cli.train_flags import overridden
    from striderl.recipes.table import recipe

    words = [
        *("--env.num-envs", str(NUM_ENVS), "--plan.num-steps-per-env", str(NUM_STEPS), "--stop.metric", ""),
        *("--plan.total-steps", str(total), "--evaluation.num-episodes", "10", "--evaluation.every", "1000"),
        *("--logging.console", "off", "--seed", str(seed)),
    ]
    if workers:
        words += ["--workers", "ray", "--num-workers", str(workers), "--workers.schedule", schedule]
    return overridden(recipe(task, "impala"), words, prog="ray_scaling")


def measured_run(task: str, total: int, workers: int, schedule: str, seed: int) -> dict[str, Any]:
    """Train; return the rate and the learner's CPU time by phase, after the first rounds, and the last evaluation."""
    from striderl.training.experiment.run import Run
    from striderl.training.experiment.run_folder import new_run_folder

    with tempfile.TemporaryDirectory() as scratch:
        config = settings(task, total, workers, schedule, seed)
        folder = new_run_folder(config, Path(scratch), "run")
        began = time.perf_counter()
        run = Run(config, folder)
        trainer, cpu = run.trainer, {}
        while trainer.iteration < 3:
            trainer.advance()
        ready, steps, clock = time.perf_counter() - began, trainer.env_steps, time.perf_counter()
        while not trainer.finished and not trainer.ending:
            phase, before = trainer.phase, time.process_time()
            trainer.advance()
            cpu[phase] = cpu.get(phase, 0.0) + time.process_time() - before
        seconds, steps = time.perf_counter() - clock, trainer.env_steps - steps
        run.drive()
        rows = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    found = {name: [row[name] for row in rows if name in row] for name in ("evaluate/return_mean",)}
    return {
        "task": task,
        "workers": workers,
        "schedule": schedule if workers else "none",
        "seed": seed,
        "steps": total,
        "steps_per_second": steps / seconds,
        "start_seconds": ready,
        "collect_cpu": cpu.get("collect", 0.0) / steps,
        "learn_cpu": (sum(cpu.values()) - cpu.get("collect", 0.0)) / steps,
        "staleness": max(row.get("collect/staleness_max", 0) for row in rows),
        "return": found["evaluate/return_mean"][-1],
    }


def messages(task: str, count: int) -> dict[str, float]:
    """Return what a worker of so many envs costs per env step, and what it ships, from a worker in this process."""
    from striderl.training.experiment.rollout_worker import RolloutWorker

    worker = RolloutWorker(settings(task, 4096, 4, "synchronous", 0).to_json(), 0, count)
    policy = {name: leaf.detach() for name, leaf in worker.algorithm.policy.state_dict().items()}
    weights = {"policy": policy, "env_steps": 0, "random": False, "actor": {}}
    times, packing = [], []
    for version in range(8):
        began = time.process_time()
        shipment, state = worker.rollout(weights, version, NUM_STEPS)
        times.append(time.process_time() - began)
        began = time.process_time()
        size, of_state = bytes_of(shipment), bytes_of(state)
        packing.append(time.process_time() - began)
    steps = count * NUM_STEPS
    return {
        "worker_cpu": sorted(times)[len(times) // 2] / steps,
        "packing_cpu": sorted(packing)[len(packing) // 2] / steps,
        "rollout_bytes": size / steps,
        "state_bytes": of_state,
        "weight_bytes": bytes_of(weights),
    }


def bytes_of(value: Any) -> int:
    """Return the size of a message as Ray ships it: a pickle, and buffers beside it."""
    from ray import cloudpickle

    buffers: list[pickle.PickleBuffer] = []
    text = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return len(text) + sum(buffer.raw().nbytes for buffer in buffers)


def measure(numbers: list[int], total: dict[str, int], seeds: int) -> dict[str, Any]:
    """Return the report of all runs."""
    import ray
    import torch

    import striderl

    torch.set_num_threads(1)
    machine = harness_clock.machine()
    cores = max([1, *numbers])
    ray.init("local", num_cpus=cores, include_dashboard=False, log_to_driver=False, object_store_memory=150_000_000)
    rows = []
    for task in TASKS:
        for seed in range(seeds if task == TASKS[0] else 1):
            for workers in [0, *numbers]:
                for schedule in ("synchronous", "asynchronous") if workers else ("none",):
                    rows.append(measured_run(task, total[task], workers, schedule, seed))
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    report = {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": machine,
        "versions": {each.__name__: each.__version__ for each in (striderl, torch, ray)},
        "rows": rows,
        "messages": {task: {str(count): messages(task, count) for count in WORKER_ENVS} for task in TASKS},
    }
    ray.shutdown()
    return report


# -- the model ---------------------------------------------------------------------------------------------------------


def inputs(report: dict[str, Any], task: str, count: int) -> dict[str, float]:
    """Return the model's inputs of a task with so many envs per worker, from messages and synchronous runs."""
    rows = [row for row in report["rows"] if row["task"] == task and row["schedule"] == "synchronous"]
    taken: dict[int, list[float]] = {}
    for row in rows:
        taken.setdefault(NUM_ENVS // row["workers"], []).append(row["collect_cpu"])
    few, many = min(taken), max(taken)
    at = {envs: sum(values) / len(values) for envs, values in taken.items()}
    per_call = (at[few] - at[many]) / (1 / few - 1 / many)
    found = report["messages"][task][str(count)]
    return {
        "n": count,
        "c_w": found["worker_cpu"] + found["packing_cpu"],
        "c_i": at[many] - per_call / many + per_call / count,
        "c_u": sum(row["learn_cpu"] for row in rows) / len(rows),
        "b": found["rollout_bytes"] + found["state_bytes"] / (count * NUM_STEPS),
        "W": found["weight_bytes"],
    }


def asynchronous(found: dict[str, float], workers: int, update_speed: float = 1.0) -> tuple[float, str]:
    """Return steps per second and what limits them; the learner's update may be so many times faster, on a GPU."""
    machines = math.ceil(workers / CORES)
    batch = max(1, workers // 2) * found["n"] * NUM_STEPS
    limits = {
        "workers": workers / found["c_w"],
        "learner": 1.0 / (found["c_i"] + found["c_u"] / update_speed),
        "rollouts in the network": NETWORK / found["b"],
        "weights in the network": NETWORK * batch / (found["W"] * machines),
    }
    least = min(limits, key=lambda name: limits[name])
    return limits[least], least


def synchronous(found: dict[str, float], workers: int) -> float:
    """Return steps per second where the learner waits for all workers, and they for it."""
    each, machines = found["n"] * NUM_STEPS, math.ceil(workers / CORES)
    waits = each * found["c_w"] + LATENCY + found["W"] * machines / NETWORK
    return workers * each / (waits + workers * each * (found["b"] / NETWORK + found["c_i"] + found["c_u"]))


def gpus(count: int, envs: int) -> float:
    """Return steps per second of PPO on so many GPUs, from the measured iteration of one."""
    rows = json.loads((HERE / "results" / "gpu_ppo.json").read_text())["rows"]
    wanted = {"num_envs": envs, "kind": "mlp", "mode": "fused", "precision": "tf32"}
    row = next(
        row
        for row in rows
        if row["library"] == "striderl" and all(row["task"][name] == value for name, value in wanted.items())
    )
    steps, seconds = envs * row["task"]["num_steps"], sum(row["median_ms"].values()) / 1e3
    actor, critic = (48, 512, 256, 128, 12), (60, 512, 256, 128, 1)
    sizes = sum((a + 1) * b for net in (actor, critic) for a, b in itertools.pairwise(net))
    ring = 2 * (count - 1) / count * 4 * sizes / GPU_NETWORK + 2 * (count - 1) * GPU_LATENCY
    return count * steps / (seconds + 20 * ring)  # 5 epochs of 4 minibatches


# -- showing -----------------------------------------------------------------------------------------------------------


def measured_table(report: dict[str, Any]) -> str:
    """Return the measured runs as a table."""
    machine, versions = report["machine"], ", ".join(f"{name} {found}" for name, found in report["versions"].items())
    lines = [
        f"Measured {report['date']}; {machine['cpu']}, {machine['cores']} cores, load before the run "
        f"{machine['load_before']}; Python {machine['python']}, {versions}; {NUM_ENVS} envs, {NUM_STEPS} steps each.",
        "",
        "| task | workers | schedule | steps/s | learner, µs of CPU per step: collect | learn | staleness | return |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in report["rows"]:
        groups.setdefault((row["task"], row["workers"], row["schedule"]), []).append(row)
    for (task, workers, schedule), rows in groups.items():
        mean = {
            name: sum(row[name] for row in rows) / len(rows)
            for name in ("steps_per_second", "collect_cpu", "learn_cpu")
        }
        returns = ", ".join(f"{row['return']:.0f}" for row in rows)
        lines.append(
            f"| {task} | {workers} | {schedule} | {mean['steps_per_second']:,.0f} | {1e6 * mean['collect_cpu']:.0f} | "
            f"{1e6 * mean['learn_cpu']:.0f} | {max(row['staleness'] for row in rows):.0f} | {returns} |"
        )
    lines += ["", "| task | n envs per worker | c_w µs | c_i µs | c_u µs | b bytes per step | W bytes |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for task, count in itertools.product(report["messages"], WORKER_ENVS):
        found = inputs(report, task, count)
        micro = " | ".join(f"{1e6 * found[name]:.0f}" for name in ("c_w", "c_i", "c_u"))
        lines.append(f"| {task} | {count} | {micro} | {found['b']:.0f} | {found['W']:,.0f} |")
    return "\n".join(lines)


def model_table(report: dict[str, Any]) -> str:
    """Return the model as a table."""
    lines = [
        f"**Model, not measured.** Assumed: {NETWORK * 8 / 1e9:g} Gbit/s and {1e3 * LATENCY:g} ms between machines of "
        f"{CORES} workers; {GPU_NETWORK * 8 / 1e9:g} Gbit/s and {1e6 * GPU_LATENCY:g} µs between GPUs.",
        "",
        "| task | n | workers | synchronous, steps/s | asynchronous | limited by | update 50 × faster | limited by |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: | --- |",
    ]
    cases = [(task, inputs(report, task, count)) for task in report["messages"] for count in WORKER_ENVS]
    cases.append((f"assumed: {1e3 * SLOW:g} ms per step, else as above", {**cases[-1][1], "c_w": SLOW}))
    for name, found in cases:
        for workers in (1, 4, 16, 64, 256, 1000):
            rate, limit = asynchronous(found, workers)
            faster, other = asynchronous(found, workers, 50.0)
            lines.append(
                f"| {name} | {found['n']} | {workers:,} | {synchronous(found, workers):,.0f} | {rate:,.0f} | {limit} | "
                f"{faster:,.0f} | {other} |"
            )
    lines += ["", "| GPUs, PPO, 4,096 envs each | steps/s | of ideal | 65,536 envs each | of ideal |"]
    lines += ["| ---: | ---: | ---: | ---: | ---: |"]
    for count in (1, 2, 4, 8, 16, 32, 64):
        rates = {envs: gpus(count, envs) for envs in (4096, 65536)}
        parts = [f"{rate / 1e6:,.1f} M | {rate / gpus(1, envs) / count:.0%}" for envs, rate in rates.items()]
        lines.append(f"| {count} | {' | '.join(parts)} |")
    return "\n".join(lines)


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    numbers = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000]
    for place, task in enumerate(report["messages"]):
        found = inputs(report, task, WORKER_ENVS[-1])
        look = {"color": f"C{place}"}
        left.plot(numbers, [synchronous(found, n) for n in numbers], "--", label=f"{task}, synchronous", **look)
        left.plot(numbers, [asynchronous(found, n)[0] for n in numbers], label=f"{task}, asynchronous", **look)
        left.plot(numbers, [asynchronous(found, n, 50.0)[0] for n in numbers], ":", label="update 50 × faster", **look)
    counts = [1, 2, 4, 8, 16, 32, 64]
    for envs in (4096, 65536):
        right.plot(counts, [gpus(count, envs) for count in counts], marker="o", label=f"{envs:,} envs per GPU")
        right.plot(counts, [count * gpus(1, envs) for count in counts], "k:", linewidth=0.8)
    left.set(xlabel="workers", title=f"workers of {WORKER_ENVS[-1]} envs: model, not measured")
    right.set(xlabel="GPUs", title="PPO by torchrun: model, not measured")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", ylabel="env steps per second")
        axes.grid(True, alpha=0.4)
        axes.legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> int:
    """Measure, model, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, nargs=2, default=[60_000, 20_000], help="of cartpole, of HalfCheetah")
    parser.add_argument("--seeds", type=int, default=3, help="of cartpole")
    parser.add_argument("--model-only", action="store_true", help="measure nothing")
    parser.add_argument("--readme", type=Path, default=HERE / "README.md", help="file with the markers")
    options = parser.parse_args()
    if not options.model_only:
        report = measure(options.workers, dict(zip(TASKS, options.steps)), options.seeds)
        RESULT.write_text(json.dumps(report, indent=1) + "\n")
    report = json.loads(RESULT.read_text())
    text = f"{measured_table(report)}\n\n{model_table(report)}\n"
    print(text)
    splice_file(options.readme, "ray_scaling", text)
    draw(report, HERE / "plots" / "ray_scaling.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
