"""Check that an environment keeps the contract of `VecEnv`, and report what is wrong, where and at which step.

    report = check_vec_env(MyEnv(8))          raises ContractError at the first fault
    report = check_vec_env(MyEnv(8), collect=True)
    print(report)                             all faults, warnings, and what could not be checked

A message names the field, the env, the step, what was wanted and what was found:

    MyEnv: obs['joints'] (env 3, at step 17): wanted finite numbers, found nan at entry 5.

Checks of single calls: settable clocks, partial resets, seeds, saved states, refusals, closing.

Checks of a long run: values, tensors that must not change later, episode lengths, time limits, final observations.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.envs.check.probe import Probe, Recording, Stopped, different_rows, first_difference, handed_out, named
from striderl.envs.check.values import Recorder, Report, Violation, check_declarations, check_obs, ended
from striderl.envs.vec_env import Actions, ContractError, Obs, StateUnsupportedError, Step, VecEnv

# -- a long run --------------------------------------------------------------------------------------------------------


KEPT_STEPS = 4
"""How many steps back handed-out tensors are watched."""


def check_rollout(probe: Probe) -> None:
    """Walk with random actions and check every step."""
    generator = torch.Generator().manual_seed(probe.seed)
    obs = probe.reset(probe.seed)
    watch, endings, clock = EnvWatch(probe.recorder), Endings(probe), EpisodeClock(probe)
    watch.keep({f"obs[{name!r}]": value for name, value in obs.items()}, 0)
    previous: Step | None = None
    for number in range(1, probe.num_steps + 1):
        step = probe.step(probe.sample(obs, generator, number), number)
        watch.look(number)
        watch.keep(handed_out(step), number)
        _check_containers(probe.recorder, previous, step, number)
        clock.tick(step, number)
        endings.see(obs, step, number)
        obs, previous = step.obs, step
    if not endings.conclude() and not probe.env.max_episode_length:
        probe.recorder.skipped(f"endings: no episode ended within {probe.num_steps} steps; give more num_steps")
    _check_metrics(probe)
    for rule in (
        "values of every step",
        "nothing handed out is changed later",
        "episode lengths",
        "final observations",
    ):
        probe.recorder.checked(rule)


class EnvWatch:
    """Keep returned tensors, with clones, and check that they have not changed."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._kept: deque[tuple[int, dict[str, tuple[Tensor, Tensor]]]] = deque(maxlen=KEPT_STEPS)

    def keep(self, tensors: dict[str, Tensor], step: int) -> None:
        """Remember the tensors of one step."""
        self._kept.append((step, {name: (value, value.clone()) for name, value in tensors.items()}))

    def look(self, now: int, *, culprit: str = "") -> None:
        """Compare everything that is remembered with its clone."""
        for step, tensors in self._kept:
            for name, (value, clone) in tensors.items():
                rows = different_rows(value, clone)
                if rows:
                    self._recorder.wrong(
                        name,
                        wanted="a tensor that stays as it was handed out",
                        found=f"it was changed by {culprit or f'step {now}'}",
                        env=rows[0],
                        step=step,
                        advice="The env hands out a buffer that it writes to again; return a clone.",
                    )


class EpisodeClock:
    """Follow `episode_length_buf`: one more per step, 0 after an end, and no older than the limit."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self.expected = probe.lengths(0)

    def require_zero(self) -> None:
        """Check that all episodes are new."""
        rows = self.expected.nonzero().flatten().tolist()
        if rows:
            found = str(int(self.expected[rows[0]]))
            self._probe.recorder.wrong("episode_length_buf", wanted="0 after a reset", found=found, env=rows[0], step=0)

    def tick(self, step: Step, number: int) -> None:
        """Compare the lengths after a step with what they must be."""
        recorder, limit = self._probe.recorder, self._probe.env.max_episode_length
        found, done, older = self._probe.lengths(number), ended(step), self.expected + 1
        for row in (done & (found != 0)).nonzero().flatten().tolist()[:1]:
            wanted, seen = "0 after the episode ended", str(int(found[row]))
            advice = "Reset in the step in which an episode ends; a step that only resets is a phantom transition."
            recorder.wrong("episode_length_buf", wanted=wanted, found=seen, env=row, step=number, advice=advice)
        for row in (~done & (found != older)).nonzero().flatten().tolist()[:1]:
            wanted, seen = "one more than before the step", f"{int(found[row])} after {int(self.expected[row])}"
            advice = "Every call of step is one real transition of every env; a step that does not count is a phantom."
            recorder.wrong("episode_length_buf", wanted=wanted, found=seen, env=row, step=number, advice=advice)
        late = ~done & (older >= limit) if limit else torch.zeros_like(done)
        for row in late.nonzero().flatten().tolist()[:1]:
            wanted = f"true for an episode of max_episode_length={limit} steps"
            seen = f"false for one of {int(older[row])} steps"
            recorder.wrong("truncated", wanted=wanted, found=seen, env=row, step=number)
        self.expected = found


class Endings:
    """Check that `final_obs` is the end of the old episode and `obs` the start of the new one."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._ends: list[tuple[int, int]] = []
        self._all_same, self._moves = True, False
        self._starts: set[bytes] = set()

    def see(self, before: Obs, step: Step, number: int) -> None:
        """Take one step into account."""
        done = ended(step)
        if step.final_obs is None:
            return
        same = torch.ones_like(done)
        still = torch.ones_like(done)
        for name in self._probe.env.obs_spec:
            same[different_rows(step.obs[name], step.final_obs[name])] = False
            still[different_rows(step.obs[name], before[name])] = False
        self._moves |= bool((~done & ~still).any())
        self._all_same &= bool(same[done].all())
        for row in done.nonzero().flatten().tolist():
            self._ends.append((number, row))
            self._starts.add(b"".join(value[row].cpu().numpy().tobytes() for value in step.obs.values()))

    def conclude(self) -> bool:
        """Report what the endings of the whole run show; return whether there were any."""
        if self._ends and self._all_same and self._moves:
            number, row = self._ends[0]
            wanted = "the last observation of the old episode there, the first of the new one in obs"
            found = f"the two equal in all {len(self._ends)} endings"
            # random starts cannot be where the old episodes ended; a fixed start could be
            if len(self._starts) > 1:
                advice = "Either final_obs was taken after the reset, or obs before it."
                self._probe.recorder.wrong("final_obs", wanted=wanted, found=found, env=row, step=number, advice=advice)
            else:
                self._probe.recorder.warn(f"final_obs (env {row}, at step {number}): wanted {wanted}, found {found}")
        return bool(self._ends)


def _check_containers(recorder: Recorder, previous: Step | None, step: Step, number: int) -> None:
    """Check that dicts are new in every step, so that an earlier step keeps its own."""
    if previous is None:
        return
    pairs = {"obs": (previous.obs, step.obs), "info": (previous.info, step.info)}
    pairs["final_obs"] = (previous.final_obs or {}, step.final_obs or {})
    for name, (old, new) in pairs.items():
        if old is new:
            wanted, found = "a new dict in every step", "the same object as in the step before"
            recorder.wrong(name, wanted=wanted, found=found, step=number, advice="Copy the dict before returning it.")


def _check_metrics(probe: Probe) -> None:
    metrics = probe.attempt("metrics()", probe.env.metrics, step=probe.num_steps)
    for name, value in metrics.items():
        good = isinstance(value, Tensor) and list(value.shape) == [probe.env.num_envs] and value.is_floating_point()
        if not good:
            found = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            probe.recorder.wrong(f"metrics()[{name!r}]", wanted=f"float [{probe.env.num_envs}]", found=found)


# -- single calls ------------------------------------------------------------------------------------------------------


REPLAY_STEPS = 24
"""How many steps are compared when a run is repeated."""
NUM_STARTS = 8
"""How many episode starts are compared to distinguish random streams."""


def check_episode_lengths(probe: Probe) -> None:
    """Check that the lengths start at 0, can be set, and that a set length runs into the time limit."""
    generator = torch.Generator().manual_seed(probe.seed)
    obs = probe.reset(probe.seed)
    EpisodeClock(probe).require_zero()
    limit, rows = probe.env.max_episode_length, torch.arange(probe.env.num_envs, device=probe.env.device)
    _set_lengths(probe, rows % max(1, limit or 10))
    clock = EpisodeClock(probe)
    step = probe.step(probe.sample(obs, generator, 1), 1)
    clock.tick(step, 1)
    probe.recorder.checked("episode_length_buf can be set")
    if not limit:
        probe.recorder.skipped("time limit: max_episode_length is 0")
        return
    obs = probe.reset(probe.seed)
    _set_lengths(probe, (limit - 1 - rows % 3).clamp(min=0))
    clock, endings = EpisodeClock(probe), Endings(probe)
    for number in range(1, 4):
        step = probe.step(probe.sample(obs, generator, number), number)
        clock.tick(step, number)
        endings.see(obs, step, number)
        obs = step.obs
    endings.conclude()
    probe.recorder.checked("time limit")


def _set_lengths(probe: Probe, value: Tensor) -> None:
    """Set the lengths and check that they are kept, as a copy."""
    given = value.clone()

    def assign() -> None:
        probe.env.episode_length_buf = given

    probe.attempt("episode_length_buf = …", assign, step=0)
    for text, disturb in (("what was set", 0), ("a copy of what was set", 1)):
        given += disturb
        found = probe.lengths(0)
        rows = different_rows(found, value)
        if rows:
            seen = f"{int(found[rows[0]])} instead of {int(value[rows[0]])}"
            probe.recorder.wrong("episode_length_buf", wanted=text, found=seen, env=rows[0], step=0)


def check_reset_envs(probe: Probe) -> None:
    """Check that a partial reset starts the masked episodes and leaves the others as they were."""
    generator = torch.Generator().manual_seed(probe.seed)
    obs, num_envs = probe.reset(probe.seed), probe.env.num_envs
    number = 3
    for count in range(1, number + 1):
        obs = probe.step(probe.sample(obs, generator, count), count).obs
    nobody = torch.zeros(num_envs, dtype=torch.bool, device=probe.env.device)
    every_other = torch.arange(num_envs, device=probe.env.device) % 2 == 0
    for mask in (nobody, every_other):
        watch = EnvWatch(probe.recorder)
        watch.keep({f"obs[{name!r}]": value for name, value in obs.items()}, number)
        lengths, before = probe.lengths(number), {name: value.clone() for name, value in obs.items()}
        after = _reset_envs(probe, mask, number)
        watch.look(number, culprit="reset_envs")
        _compare_untouched(probe, before, after, mask, number)
        _compare_lengths(probe, lengths, mask, number)
        obs = after
    probe.step(probe.sample(obs, generator, number + 1), number + 1)
    probe.recorder.checked("reset_envs")


def _reset_envs(probe: Probe, mask: Tensor, number: int) -> Obs:
    after = probe.attempt("reset_envs", lambda: probe.env.reset_envs(mask.clone()), step=number)
    if not check_obs(probe.env, after, probe.recorder, step=number, field="reset_envs(mask)"):
        raise Stopped
    return after


def _compare_untouched(probe: Probe, before: Obs, after: Obs, mask: Tensor, number: int) -> None:
    for name in probe.env.obs_spec:
        touched = [row for row in different_rows(before[name], after[name]) if not mask[row]]
        if touched:
            wanted = f"obs[{name!r}] of envs outside the mask as it was"
            found = f"another one in envs {touched}"
            probe.recorder.wrong("reset_envs", wanted=wanted, found=found, env=touched[0], step=number)


def _compare_lengths(probe: Probe, lengths: Tensor, mask: Tensor, number: int) -> None:
    found = probe.lengths(number)
    expected = torch.where(mask, torch.zeros_like(lengths), lengths)
    for row in different_rows(found, expected)[:1]:
        wanted = "episode_length_buf 0 in the mask and unchanged outside it"
        seen = f"{int(found[row])} where {int(expected[row])} was due"
        probe.recorder.wrong("reset_envs", wanted=wanted, found=seen, env=row, step=number)


def check_seeds(probe: Probe) -> None:
    """Check that a seed repeats everything, that seeds differ, and that envs have streams of their own."""
    steps, seed = min(REPLAY_STEPS, probe.num_steps), probe.seed
    first = probe.record(seed, steps)
    again = probe.record(seed, steps, first.actions)
    difference = first_difference(first, again)
    if difference is not None:
        step, name, rows = difference
        found = f"another {name} in envs {rows}"
        if step == 0:
            wanted, advice = "the same first observation from the same seed", "These envs ignore their seed."
        else:
            wanted, advice = "the same data from the same seed and actions", "Some randomness does not follow the seed."
        probe.recorder.wrong(f"reset(seed={seed})", wanted=wanted, found=found, env=rows[0], step=step, advice=advice)
    probe.recorder.checked("seeds")
    _compare_streams(probe, first, probe.record(seed + 1, steps))


def _compare_streams(probe: Probe, first: Recording, other: Recording) -> None:
    """Warn about envs or seeds that show the same starts; a deterministic task is no fault."""
    seed, recorder = probe.seed, probe.recorder
    mine, theirs = _starts(probe, seed), _starts(probe, seed + 1)
    unmoved = [row for row, start in enumerate(mine) if start == theirs[row]]
    if len(unmoved) == len(mine):
        if first_difference(first, other) is None:
            recorder.warn(f"seeds {seed} and {seed + 1} give the same data: a deterministic task, or an ignored seed")
    else:
        if unmoved:
            recorder.warn(
                f"envs {unmoved} start the same under seeds {seed} and {seed + 1}, others do not: ignored seeds"
            )
        for twins in _twins(mine):
            recorder.warn(f"envs {twins} always start the same: ignored seeds, or one random stream shared by them")
    recorder.checked("random streams")


def _starts(probe: Probe, seed: int) -> list[bytes]:
    """Return the first observations of several episodes of every env, as bytes to compare."""
    rows = [b""] * probe.env.num_envs
    for episode in range(NUM_STARTS):
        obs = probe.reset(seed if episode == 0 else None)
        for value in named(obs).values():
            array = value.cpu().numpy()
            rows = [row + array[index].tobytes() for index, row in enumerate(rows)]
    return rows


def _twins(starts: list[bytes]) -> list[list[int]]:
    groups: dict[bytes, list[int]] = {}
    for row, start in enumerate(starts):
        groups.setdefault(start, []).append(row)
    return [rows for rows in groups.values() if len(rows) > 1]


def check_state(probe: Probe) -> None:
    """Check that a saved state continues bit for bit, where the env can save one."""
    generator = torch.Generator().manual_seed(probe.seed)
    before, steps = Recording(), min(REPLAY_STEPS, probe.num_steps)
    obs = probe.go_on(before, probe.reset(probe.seed), 3, generator)
    saved = probe.attempt("state_dict()", lambda: _state_or_reason(probe), step=3)
    if isinstance(saved, StateUnsupportedError):
        probe.recorder.skipped(f"saved state: {saved}")
        return
    _check_plain(probe, saved, "state_dict()")
    kept, last_obs, lengths = copy.deepcopy(saved), named(obs), probe.lengths(3)
    first = Recording(fields=[last_obs])
    probe.go_on(first, obs, steps, generator, taken=3)
    loaded = probe.attempt("load_state_dict", lambda: probe.env.load_state_dict(saved), step=3)
    if not check_obs(probe.env, loaded, probe.recorder, step=3, field="load_state_dict(state)"):
        raise Stopped
    rows = different_rows(probe.lengths(3), lengths)
    again = Recording(fields=[named(loaded)])
    probe.go_on(again, loaded, steps, generator, first.actions, taken=3)
    difference = first_difference(first, again)
    if difference is not None:
        step, name, rows = difference
        wanted, found = "the same data after loading a state", f"another {name} in envs {rows}"
        probe.recorder.wrong("load_state_dict", wanted=wanted, found=found, env=rows[0], step=3 + step)
    elif rows:
        wanted, found = "the episode lengths of the saved state", "others"
        probe.recorder.wrong("load_state_dict", wanted=wanted, found=found, env=rows[0], step=3)
    _check_unchanged(probe, kept, saved)
    probe.recorder.checked("saved state")


def _state_or_reason(probe: Probe) -> dict[str, Any] | StateUnsupportedError:
    try:
        return probe.env.state_dict()
    except StateUnsupportedError as reason:
        return reason


def _check_plain(probe: Probe, value: Any, path: str) -> None:
    """Check that a state is made of tensors, numbers and strings, which can be stored without running code."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_plain(probe, inner, f"{path}[{name!r}]")
    elif isinstance(value, (list, tuple)):
        for position, inner in enumerate(value):
            _check_plain(probe, inner, f"{path}[{position}]")
    elif not isinstance(value, (Tensor, int, float, str)):
        wanted = "tensors, numbers and strings, in dicts or lists"
        probe.recorder.wrong(path, wanted=wanted, found=type(value).__name__)


def _check_unchanged(probe: Probe, kept: Any, saved: Any, path: str = "state_dict()") -> None:
    """Check that the saved state is a copy: the env went on, the state must not have."""
    if isinstance(saved, Mapping):
        for name, inner in saved.items():
            _check_unchanged(probe, kept[name], inner, f"{path}[{name!r}]")
    elif isinstance(saved, Tensor) and not torch.equal(saved, kept):
        found = "it changed while the env went on"
        probe.recorder.wrong(path, wanted="a copy that stays as it was saved", found=found, advice="Clone it.")


def check_refusals(probe: Probe) -> None:
    """Warn when actions for too few envs are accepted silently."""
    num_envs = probe.env.num_envs
    if num_envs < 2:
        probe.recorder.skipped("too few actions: there is only one env")
        return
    obs = probe.reset(probe.seed)
    actions = probe.sample(obs, torch.Generator().manual_seed(probe.seed), 1)
    short: Actions = {name: part[:-1] for name, part in actions.items()} if isinstance(actions, dict) else actions[:-1]
    try:
        probe.env.step(short)
    except Exception:  # noqa: BLE001  (any refusal will do)
        probe.recorder.checked("too few actions are refused")
    else:
        probe.recorder.warn(f"step took actions for {num_envs - 1} of {num_envs} envs; refuse them with a ValueError")
    probe.reset(probe.seed)


def check_close(probe: Probe) -> None:
    """Close the env twice."""
    probe.attempt("close()", probe.env.close, step=-1)
    probe.attempt("close() for the second time", probe.env.close, step=-1)
    probe.recorder.checked("close")


__all__ = ["ContractError", "Report", "Violation", "check_vec_env"]

_PARTS = {
    "a run with random actions": check_rollout,
    "episode_length_buf": check_episode_lengths,
    "reset_envs": check_reset_envs,
    "seeds": check_seeds,
    "saved state": check_state,
    "too few actions": check_refusals,
}


def check_vec_env(
    env: VecEnv, *, num_steps: int = 100, seed: int = 0, collect: bool = False, close: bool = False
) -> Report:
    """Run an env through every rule of the contract.

    Args:
        env: The env; it is reset many times and left freshly reset with `seed`.
        num_steps: Steps of the longest run. A fault that shows later is not found: give more for rare ones.
        seed: What the env is reset with, and what the random actions follow.
        collect: Go on after a violation and list all in the report, instead of raising `ContractError`.
        close: Also close the env, twice, at the end.
    """
    if num_steps < 1:
        raise ValueError(f"check_vec_env wants at least one step, found num_steps={num_steps}")
    recorder = Recorder(type(env).__name__, collect=collect)
    probe = Probe(env, recorder, seed=seed, num_steps=num_steps)
    if check_declarations(env, recorder):
        parts = {**_PARTS, "close": check_close if close else _leave_open}
        for name, part in parts.items():
            try:
                part(probe)
            except Stopped:
                recorder.skipped(f"the rest of '{name}', because of what is wrong above")
    return recorder.report


def _leave_open(probe: Probe) -> None:
    probe.reset(probe.seed)
    probe.recorder.skipped("close: pass close=True")
