"""FastTD3 and FastSAC on a GPU: milliseconds of a round, which is a step of all envs and a few gradient steps.

    python benchmarks/gpu_off_policy.py                  4,096 envs, batches of 32,768
    python benchmarks/gpu_off_policy.py --render-only    run nothing; rewrite the table

The env is a table of ready tensors and the replay is on the GPU. No peer with these settings is on PyPI, so there is
none beside it. Every row has a process of its own.

    eager       Python as it is written
    graphed     gradient steps as recordings, sampling included, and steps of the envs likewise; as they are written
    fused       the same, compiled first
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

from harness_rows import answer, read_rows, show, started, table_parser, today, write_rows

NAME = "gpu_off_policy"
ROWS = [(kind, mode) for kind in ("td3", "sac") for mode in ("eager", "graphed", "fused")]
NUM_ENVS, ROUNDS, KEPT = 4096, 24, 500


def run(kind: str, mode: str) -> dict[str, Any]:
    """Time some iterations of 24 rounds each; the first ones compile, record and fill."""
    import torch
    from gpu_striderl import table_env
    from gpu_tasks import GpuTask, set_precision

    from striderl.algorithms.actor_critic.fast_td3 import fast_sac, fast_settings, fast_td3
    from striderl.algorithms.actor_critic.sac import SACConfig
    from striderl.algorithms.actor_critic.td3 import TD3Config
    from striderl.collect.collector import Collector
    from striderl.training.plans import OffPolicyPlan
    from striderl.training.trainer import Trainer

    if mode == "graphed":
        # a mode of a name compiles wherever Triton is
        mock.patch("striderl.execution.modes.has_triton", return_value=False).start()
    chosen = "eager" if mode == "eager" else "graphed"
    task = GpuTask(num_envs=NUM_ENVS)
    set_precision(task)
    env = table_env(task, bounded=True)
    torch.manual_seed(0)
    algorithm: Any
    if kind == "td3":
        config = TD3Config(gamma=0.97, tau=0.1, actor_every=2, weight_decay=0.1, mode=chosen)
        algorithm, _ = fast_td3(env.obs_spec, env.action_spec, num_envs=NUM_ENVS, config=config, device="cuda")
    else:
        settings = SACConfig(gamma=0.97, tau=0.1, init_temperature=0.001, weight_decay=0.1, mode=chosen)
        algorithm, _ = fast_sac(env.obs_spec, env.action_spec, num_envs=NUM_ENVS, config=settings, device="cuda")
    fast = fast_settings(NUM_ENVS, steps_kept_per_env=KEPT)._replace(num_steps_per_env=ROUNDS)
    trainer = Trainer(
        algorithm, Collector(env, algorithm.actor()), OffPolicyPlan(**fast._asdict(), total_iterations=10**6)
    )
    seen = []
    for _ in range(9):
        torch.cuda.synchronize()
        started = time.perf_counter()
        while trainer.advance() != "consume":
            pass
        torch.cuda.synchronize()
        seen.append(1e3 * (time.perf_counter() - started) / ROUNDS)
    kept = sorted(seen[3:])
    loop: Any = trainer.loop
    recorded = loop.learner.recorded
    return {
        "round_ms": kept[len(kept) // 2],
        "range_ms": [kept[0], kept[-1]],
        "first_s": seen[0] * ROUNDS / 1e3,
        "updates_per_round": fast.num_updates_per_round,
        "batch_size": fast.batch_size,
        "recordings": 0 if recorded is None else recorded.num_recordings,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def to_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table."""
    good = [row for row in rows if "failed" not in row]
    if not good:
        return "No row is recorded.\n"
    head = (
        "| learner | mode | gradient steps per round | batch | round ms | env steps per s | gradient steps per s |\n"
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    )
    lines = []
    for row in rows:
        if "failed" in row:
            lines.append(f"| Fast{row['kind'].upper()} | {row['mode']} | {row['failed'][:90]} | | | | |")
            continue
        low, high = row["range_ms"]
        lines.append(
            f"| Fast{row['kind'].upper()} | {row['mode']} | {row['updates_per_round']} | {row['batch_size']:,} | "
            f"{row['round_ms']:.2f} ({low:.2f}–{high:.2f}) | {NUM_ENVS / row['round_ms'] * 1e3:,.0f} | "
            f"{row['updates_per_round'] / row['round_ms'] * 1e3:,.0f} |"
        )
    conditions = f"{rows[0]['date']}; {good[0]['device']}; torch {good[0]['torch']}; {NUM_ENVS:,} envs."
    return "\n\n".join([conditions, "\n".join([head, *lines])]) + "\n"


def _in_order(rows: dict[tuple[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    return [rows[name] for name in ROWS if name in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows, print the table and write it; returns the exit code."""
    parser = table_parser("Time FastTD3 and FastSAC on a GPU.", NAME)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds that a row may take")
    parser.add_argument("--only", nargs="+", default=[], help="the learner (td3, sac) or the mode, or both")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.row:
        print(json.dumps(run(*options.row)))
        return 0
    rows = {(row["kind"], row["mode"]): row for row in read_rows(options.results)}
    for kind, mode in [] if options.render_only else ROWS:
        if all(word in (kind, mode) for word in options.only):
            found = answer(started(__file__, ["--row", kind, mode]), options.limit)
            rows[kind, mode] = {"kind": kind, "mode": mode, "date": today(), **found}
            write_rows(options.results, NAME, _in_order(rows))
            print(rows[kind, mode], flush=True)
    show(to_markdown(_in_order(rows)), NAME, options)
    return int(any("failed" in row for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
