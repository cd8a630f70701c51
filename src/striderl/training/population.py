"""Population-based training (Jaderberg et al. 2017) on the folder of a sweep, by exact checkpoints.

    generation 0          generation 1           generation 2
    member 0  ─ 310 ────▶ goes on     ─ 420 ──┬▶ goes on      ─ …      most go on as they are, bit for bit
    member 1  ─ 180 ────▶ goes on     ─ 260 ──┼▶ goes on      ─ …
    member 2  ─  40 ──✗   copy of 0   ─ 330 ──┼▶ goes on      ─ …      the worst quarter copies the checkpoint of one of
    member 3  ─  95 ────▶ goes on     ─ 100 ──✗└ copy of 0    ─ …      the best quarter, with perturbed settings

Each segment is a trial of the journal and a run folder of its own, a copy of its parent's: weights, optimiser,
normalisers, envs and random streams go on exactly. All members of a generation are compared when all have trained for
`interval` steps, so the result does not depend on how many processes there are or which of them was killed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from striderl.checkpoint.safe_files import write_json
from striderl.checkpoint.store import CheckpointStore
from striderl.training.experiment.run_folder import RunFolder
from striderl.training.sweep import PRUNED, Claim, Params, Sweep, SweepError, TrialWatch, import_optuna

FACTORS = (0.8, 1.25)
"""A perturbed number is multiplied with one of these."""
RESAMPLED = 0.25
"""How often a perturbed setting is drawn anew from its range instead."""
SCHEDULE_FILE = "best_schedule.json"
"""Which settings the best member and its ancestors had, by env steps: no single config has them all."""
_TURN_SECONDS = 0.2


class Population(Sweep):
    """One process of population-based training; the trials are the segments of its members."""

    def __init__(self, *args: Any, **named: Any) -> None:
        """Open the folder as `Sweep` does; raise for settings that cannot change in the middle of a run."""
        super().__init__(*args, **named)
        total = int(getattr(self.base.plan, "total_steps", 0))
        if not total:
            raise ValueError("the scheduler 'pbt' wants a plan with total_steps: --steps N")
        self.num_generations = -(-total // self.settings.interval)
        for name in self.settings.space:
            if not name.startswith(("algorithm.", "terms.")):
                raise ValueError(
                    f"the scheduler 'pbt' changes settings in the middle of a run; {name} cannot change there, only "
                    "settings of the algorithm and of terms can"
                )

    # -- which segment is next -----------------------------------------------------------------------------------------

    def claim(self) -> Claim | None:
        """Return the next segment for this process; waits while others train the rest of a generation."""
        while not self.signals.received:
            with self.turn():
                found = self._orphan() or self._next()
            if found is None or isinstance(found, Claim):
                return found
            time.sleep(_TURN_SECONDS)
        return None

    def _next(self) -> Claim | bool | None:
        """Return a segment, None when all are trained, or False while there is none that can begin yet."""
        states = import_optuna().trial.TrialState
        trials = self.study.get_trials(deepcopy=False)
        if not any(trial.state == states.WAITING for trial in trials):
            generation = max((trial.user_attrs["generation"] for trial in trials), default=0)
            count = len(self._segments(generation))
            if count == self.settings.trials:
                if any(trial.state == states.RUNNING for trial in trials):
                    return False
                if generation + 1 == self.num_generations:
                    return None
                generation, count = generation + 1, 0
            self._enqueue(generation, count)
        return self._claimed(self.study.ask())

    def _segments(self, generation: int) -> dict[int, Any]:
        """Return member → trial of a generation."""
        trials = self.study.get_trials(deepcopy=False)
        return {t.user_attrs["member"]: t for t in trials if t.user_attrs["generation"] == generation}

    def _enqueue(self, generation: int, member: int) -> None:
        """Add a segment to the journal: what it starts from and its settings follow from the generation before."""
        chance = random.Random(f"{self.settings.seed} {generation} {member}")
        about: dict[str, Any] = {"generation": generation, "member": member}
        if generation == 0:
            params: Params = {name: sampled(kind, chance) for name, kind in self.distributions.items()}
            about |= {"parent": -1, "seed": self.base.seed + member}
        else:
            if member == 0 and generation > 1:
                self._forget(generation - 2)
            before = self._segments(generation - 1)
            parent = before[parent_of(member, self._scores(before), chance)]
            params = dict(parent.params)
            if parent.user_attrs["member"] != member:
                params = perturbed(params, self.distributions, chance)
            about |= {"parent": parent.number, "seed": parent.user_attrs["seed"]}
        self.study.enqueue_trial(dict(params), user_attrs=about)

    def _scores(self, segments: Mapping[int, Any]) -> dict[int, float]:
        """Return member → score, the more the better; a member that failed has the worst."""
        sign = 1.0 if self.settings.modes[0] == "max" else -1.0
        scores = {m: sign * t.value if t.value is not None else float("-inf") for m, t in segments.items()}
        if max(scores.values()) == float("-inf"):
            raise SweepError("all members of the population have failed; the lines above have the reasons")
        return scores

    def _forget(self, generation: int) -> None:
        """Remove checkpoints that no segment can start from any more; the metrics stay."""
        for trial in self._segments(generation).values():
            CheckpointStore(RunFolder(self.run_of(trial.number)).checkpoints).delete_all()

    def run_of(self, number: int) -> Path:
        """Return the run folder of a segment."""
        return self.place(number) / "seed_0"

    # -- one segment ---------------------------------------------------------------------------------------------------

    def train_seed(self, claim: Claim, number: int, done: list[list[float]]) -> list[float] | str:
        """Train a segment from its parent's checkpoint."""
        about = claim.trial.user_attrs
        total = min(self.base.plan.total_steps, (about["generation"] + 1) * self.settings.interval)
        config = self.trial_config(claim.params, seed=about["seed"])
        # by the length of a run it is decided when compiled programs take over, and a segment is no run of its own
        config = replace(config, plan=replace(config.plan, total_steps=total), switch_at="never")
        watch = TrialWatch(self, claim.trial, number, done)
        parent = None if about["parent"] < 0 else self.run_of(about["parent"])
        outcome = self.train_run(config, self.run_of(claim.trial.number), watch, parent=parent)
        return outcome.reason if outcome.exit_code or outcome.reason == PRUNED else watch.values(outcome.record)

    # -- results -------------------------------------------------------------------------------------------------------

    def best_trials(self) -> list[Any]:
        """Return the best segment of the newest generation that has one."""
        done = self.completed()
        if not done:
            return []
        newest = max(trial.user_attrs["generation"] for trial in done)
        segments = {t.user_attrs["member"]: t for t in done if t.user_attrs["generation"] == newest}
        scores = self._scores(segments)
        return [segments[max(scores, key=lambda member: (scores[member], -member))]]

    def write_best(self, best: list[Any]) -> None:
        """Write the present settings of the best member, and those that it and its ancestors had before."""
        super().write_best(best)
        trials = self.study.get_trials(deepcopy=False)
        for trial in best:
            lineage = [trial]
            while lineage[0].user_attrs["parent"] >= 0:
                lineage.insert(0, trials[lineage[0].user_attrs["parent"]])
            schedule = [
                {"from_step": each.user_attrs["generation"] * self.settings.interval, "settings": dict(each.params)}
                for each in lineage
            ]
            write_json(self.folder / SCHEDULE_FILE, {"run": str(self.run_of(trial.number)), "schedule": schedule})

    def name_of(self, trial: Any) -> str:
        """Return the member and its generation."""
        return f"member {trial.user_attrs['member']} of generation {trial.user_attrs['generation']}"


def parent_of(member: int, scores: Mapping[int, float], chance: random.Random) -> int:
    """Return which member of the last generation one goes on from: itself, or one of the best if it is of the worst."""
    order = sorted(scores, key=lambda each: (-scores[each], each))
    quarter = max(1, len(order) // 4)
    if member not in order[-quarter:] or scores[member] == scores[order[0]]:
        return member
    return chance.choice(order[:quarter])


def perturbed(params: Params, distributions: Mapping[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return settings near others: numbers times 0.8 or 1.25, the neighbour of a choice, now and then a new draw."""
    found = {}
    for name, kind in distributions.items():
        value = params[name]
        if chance.random() < RESAMPLED:
            found[name] = sampled(kind, chance)
        elif hasattr(kind, "choices"):
            place = kind.choices.index(value) + chance.choice((-1, 1))
            found[name] = kind.choices[min(max(place, 0), len(kind.choices) - 1)]
        else:
            found[name] = _near(kind, value, value * chance.choice(FACTORS))
    return found


def sampled(kind: Any, chance: random.Random) -> Any:
    """Return a value of a distribution, uniform in its range or in the logarithm of it."""
    if hasattr(kind, "choices"):
        return chance.choice(kind.choices)
    if kind.log:
        return _fitted(kind, kind.low * (kind.high / kind.low) ** chance.random())
    return _fitted(kind, kind.low + (kind.high - kind.low) * chance.random())


def _near(kind: Any, value: float, wanted: float) -> Any:
    """Return a number of the range that is at least one step of its grid away from the last one, within the bounds."""
    found, step = _fitted(kind, wanted), kind.step or 0
    return found if found != value else _fitted(kind, value + step * (1 if wanted > value else -1))


def _fitted(kind: Any, value: float) -> Any:
    """Return a number as the range has it: within its bounds, on its grid, and an integer where it is one."""
    if kind.step:
        value = kind.low + round((value - kind.low) / kind.step) * kind.step
    return min(max(value, kind.low), kind.high)
