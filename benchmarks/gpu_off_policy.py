"""FastTD3 and FastSAC on a GPU: milliseconds of a round, which is a step of all envs and a few gradient steps.

    python benchmarks/gpu_off_policy.py                  4,096 envs, batches of 32,768, eager and recorded
    python benchmarks/gpu_off_policy.py --render-only    run nothing; rewrite the table

The env is a table of ready tensors and the replay is on the GPU. No peer with these settings is on PyPI, so there is
none beside it. Every row has a process of its own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness_markdown import splice_file

HERE = Path(__file__).resolve().parent
NAME = "gpu_off_policy"
ROWS = [(kind, mode) for kind in ("td3", "sac") for mode in ("eager", "graphed")]
NUM_ENVS, ROUNDS, KEPT = 4096, 24, 500


def run(kind: str, mode: str) -> dict[str, Any]:
    """Time some iterations of 24 rounds each; the first ones compile, record and fill."""
    import torch
    from gpu_striderl import TableEnv
    from gpu_tasks import GpuTask, set_precision

    from striderl.algorithms.fast_td3 import fast_sac, fast_settings, fast_td3
    from striderl.algorithms.sac import SACConfig
    from striderl.algorithms.td3 import TD3Config
    from striderl.collect.collector import Collector
    from striderl.training.plans import OffPolicyPlan
    from striderl.training.trainer import Trainer

    task = GpuTask(num_envs=NUM_ENVS)
    set_precision(task)
    env = TableEnv(task, bounded=True)
    torch.manual_seed(0)
    if kind == "td3":
        config = TD3Config(gamma=0.97, tau=0.1, actor_every=2, weight_decay=0.1, mode=mode)
        algorithm, _ = fast_td3(env.obs_spec, env.action_spec, num_envs=NUM_ENVS, config=config, device="cuda")
    else:
        settings = SACConfig(gamma=0.97, tau=0.1, init_temperature=0.001, weight_decay=0.1, mode=mode)
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
    return {
        "round_ms": kept[len(kept) // 2],
        "range_ms": [kept[0], kept[-1]],
        "first_s": seen[0] * ROUNDS / 1e3,
        "updates_per_round": fast.num_updates_per_round,
        "batch_size": fast.batch_size,
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows, print the table and write it; returns the exit code."""
    parser = argparse.ArgumentParser(description="Time FastTD3 and FastSAC on a GPU.")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that a row may take")
    parser.add_argument("--render-only", action="store_true", help="run nothing; print and write the table")
    parser.add_argument("--print-only", action="store_true", help="leave README.md as it is")
    parser.add_argument("--results", type=Path, default=HERE / "results" / f"{NAME}.json", help="file of the results")
    parser.add_argument("--readme", type=Path, default=HERE / "README.md", help="file with the markers")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.row:
        print(json.dumps(run(*options.row)))
        return 0
    rows: list[dict[str, Any]] = []
    if options.render_only:
        rows = json.loads(options.results.read_text(encoding="utf-8"))["rows"]
    for kind, mode in [] if options.render_only else ROWS:
        row = {"kind": kind, "mode": mode, "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat()}
        command = [sys.executable, str(Path(__file__).resolve()), "--row", kind, mode]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=options.limit)
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            found = {"failed": last} if done.returncode else json.loads(done.stdout.splitlines()[-1])
            rows.append({**row, **found})
        except subprocess.TimeoutExpired:
            rows.append({**row, "failed": f"took more than {options.limit:g} s"})
        print(rows[-1], flush=True)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps({"name": NAME, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    text = to_markdown(rows)
    print(f"\n{text}")
    if not options.print_only:
        splice_file(options.readme, NAME, text)
    return int(any("failed" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
