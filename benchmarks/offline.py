"""Offline learners on datasets that this command makes itself: algorithm × dataset, with seeds and intervals.

    python benchmarks/offline.py                    trains SAC on pendulum, records random, medium, expert and mix,
                                                    trains every learner on each of them, and plays 20 episodes
    python benchmarks/offline.py --seeds 5 --updates 5000 --print-only
    python benchmarks/offline.py --learners CQL     one row again; the others stay if datasets and settings are the same

The datasets are saved to a folder and loaded from there, as a user would. Their returns are in the first row: what the
data itself earned. Results go to results/offline.json and into README.md, after every learner those that are there.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from harness_markdown import splice_file

from striderl.algorithms.offline.behaviour_cloning import BehaviourCloning, BehaviourCloningConfig
from striderl.algorithms.offline.cql import CQL, CQLConfig
from striderl.algorithms.offline.iql import IQL, IQLConfig
from striderl.algorithms.offline.td3_bc import TD3BC, TD3BCConfig
from striderl.collect.actors.policy_actor import GreedyActor
from striderl.data.actions import ActionSpec
from striderl.data.specs import ObsSpec
from striderl.datasets.offline import all_steps, load_dataset, save_dataset
from striderl.envs.tasks import make
from striderl.ops.statistics import confidence_interval, mean
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.stages import NormalizeObs
from striderl.policies.value_functions import QFunction, QFunctionConfig, ValueFunction
from striderl.recipes.offline import KINDS, generate, train_behaviours
from striderl.storage.replay.replay import Replay
from striderl.training.evaluation import evaluate
from striderl.training.plans import OfflinePlan
from striderl.training.trainer import Trainer

TASK = "pendulum"
EPISODE = 200
"""Steps of an episode of the task: returns of a dataset are its mean reward times this."""
HERE = Path(__file__).parent
Specs = tuple[ObsSpec, ActionSpec]
HIDDEN = (64, 64)
RATE = 1e-3
GAMMA, TAU = 0.95, 0.02
"""A swing-up takes a second or two; with a longer horizon or slower targets, values want far more gradient steps."""
CRITIC = QFunctionConfig(hidden_dims=HIDDEN, stages=(NormalizeObs(),))


def _actor(specs: Specs, head: str) -> ActorPolicy:
    return ActorPolicy(*specs, ActorConfig(hidden_dims=HIDDEN, head=head, stages=(NormalizeObs(),)))


def _critic(specs: Specs) -> QFunction:
    return QFunction(*specs, CRITIC)


def _bc(specs: Specs) -> Any:
    return BehaviourCloning(_actor(specs, "squashed_gaussian"), BehaviourCloningConfig(learning_rate=RATE))


def _td3_bc(specs: Specs) -> Any:
    config = TD3BCConfig(gamma=GAMMA, tau=TAU, actor_learning_rate=RATE, critic_learning_rate=RATE)
    return TD3BC(_actor(specs, "deterministic"), _critic(specs), config)


def _cql(specs: Specs) -> Any:
    rates = {"actor_learning_rate": RATE, "critic_learning_rate": RATE, "temperature_learning_rate": RATE}
    config = CQLConfig(gamma=GAMMA, tau=TAU, penalty=5.0, **rates)
    return CQL(_actor(specs, "squashed_gaussian"), _critic(specs), config)


def _iql(specs: Specs) -> Any:
    # rewards of this task are large: a step's advantages are of the size of ten, and their errors too
    config = IQLConfig(gamma=GAMMA, tau=TAU, learning_rate=RATE, expectile=0.9, temperature=0.1)
    return IQL(_actor(specs, "squashed_gaussian"), _critic(specs), ValueFunction(specs[0], CRITIC), config)


LEARNERS: Mapping[str, Callable[[Specs], Any]] = {
    "behaviour cloning": _bc,
    "TD3+BC": _td3_bc,
    "IQL": _iql,
    "CQL": _cql,
}


def returns_of(replay: Replay) -> float:
    """Return what an episode of the data earned on average."""
    return float(all_steps(replay)["rew"].mean()) * EPISODE


def learned(name: str, folder: Path, specs: Specs, seed: int, updates: int) -> float:
    """Train one learner on one dataset and return what its policy earns without chance."""
    torch.manual_seed(seed)
    algorithm = LEARNERS[name](specs)
    replay = load_dataset(folder, *specs, picker=algorithm.picker(seed), view=algorithm.view())
    plan = OfflinePlan(num_updates_per_iteration=updates, batch_size=128, total_iterations=1)
    list(Trainer(algorithm, replay, plan, seed=seed))
    env = make(TASK, num_envs=20)
    result = evaluate(env, GreedyActor(algorithm.policy), 20, seed=999)
    env.close()
    return result.mean


def measure(
    seeds: int, updates: int, num_steps: int, train_steps: int, folder: Path, learners: list[str]
) -> Iterator[dict[str, Any]]:
    """Make the datasets and fill the table, a row per learner; give the report after every row."""
    started = time.perf_counter()
    behaviours = train_behaviours(TASK, total_steps=train_steps, seed=0)
    print("behaviours", {name: round(value) for name, value in behaviours.returns.items()}, flush=True)
    specs = behaviours.specs()
    data: dict[str, float] = {}
    for kind in KINDS:
        replay = generate(behaviours, kind, num_steps, seed=1)
        data[kind] = returns_of(replay)
        save_dataset(folder / kind, replay, *specs, about={"task": TASK, "kind": kind, "seed": 1})
    table: dict[str, dict[str, list[float]]] = {}
    for name in learners:
        table[name] = {
            kind: [learned(name, folder / kind, specs, seed, updates) for seed in range(seeds)] for kind in KINDS
        }
        print(name, {kind: round(mean(values)) for kind, values in table[name].items()}, flush=True)
        yield {
            "date": datetime.date.today().isoformat(),
            "machine": {"system": platform.system(), "python": platform.python_version(), "torch": torch.__version__},
            "task": TASK,
            "settings": {"seeds": seeds, "updates": updates, "num_steps": num_steps, "train_steps": train_steps},
            "behaviours": dict(behaviours.returns),
            "data": data,
            "returns": table,
            "seconds": time.perf_counter() - started,
        }


def to_markdown(report: Mapping[str, Any]) -> str:
    """Return the table with a line about how it was made."""
    settings, machine = report["settings"], report["machine"]
    lines = [["", *KINDS], ["---"] + ["---:"] * len(KINDS)]
    lines.append(["the data itself", *(f"{report['data'][kind]:.0f}" for kind in KINDS)])
    for name, row in report["returns"].items():
        lines.append([name, *(_cell(row[kind]) for kind in KINDS)])
    made = (
        f"{report['date']}; {machine['system']}, Python {machine['python']}, torch {machine['torch']}; "
        f"{report['task']}, {settings['num_steps']:,} steps per dataset, {settings['updates']:,} gradient steps of 128 "
        f"samples, {settings['seeds']} seeds (95 % interval of the mean over seeds), 20 episodes each; "
        f"{report['seconds'] / 60:.0f} min in all."
    )
    return made + "\n\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _beside_earlier(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report with the rows of the last one, if that is of the same datasets and settings."""
    path = HERE / "results" / "offline.json"
    last = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if any(last.get(name) != report[name] for name in ("task", "settings", "behaviours", "data")):
        return report
    rows = {**last["returns"], **report["returns"]}
    return {**report, "returns": {name: rows[name] for name in LEARNERS if name in rows}}


def _cell(values: list[float]) -> str:
    low, high = confidence_interval(values)
    return f"{mean(values):.0f} ({low:.0f} to {high:.0f})" if len(values) > 1 else f"{mean(values):.0f}"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=4_000)
    parser.add_argument("--num-steps", type=int, default=40_000, help="steps per dataset")
    parser.add_argument("--train-steps", type=int, default=6_000, help="env steps of the learner that is recorded")
    parser.add_argument("--folder", type=Path, default=None, help="keep the datasets here")
    parser.add_argument("--learners", nargs="+", choices=list(LEARNERS), default=list(LEARNERS), help="rows")
    parser.add_argument("--print-only", action="store_true", help="write no results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch)
        for report in measure(given.seeds, given.updates, given.num_steps, given.train_steps, folder, given.learners):
            report = _beside_earlier(report)
            text = to_markdown(report)
            if not given.print_only:
                (HERE / "results" / "offline.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
                splice_file(HERE / "README.md", "offline", text)
    print(text)


if __name__ == "__main__":
    main()
