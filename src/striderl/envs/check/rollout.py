"""Check a long run: values, tensors that must not change later, episode lengths, time limits, final observations."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from striderl.envs.check.probe import Probe, different_rows, handed_out
from striderl.envs.check.values import Recorder, ended
from striderl.envs.vec_env import Obs, Step

KEPT_STEPS = 4
"""How many steps back handed-out tensors are watched."""


def check_rollout(probe: Probe) -> None:
    """Walk with random actions and check every step."""
    generator = torch.Generator().manual_seed(probe.seed)
    obs = probe.reset(probe.seed)
    watch, endings, clock = Watch(probe.recorder), Endings(probe), EpisodeClock(probe)
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


class Watch:
    """Keep tensors that were handed out, with clones, and look whether they still say the same."""

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
    """Judge whether `final_obs` is the end of the old episode and `obs` the start of the new one."""

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
        """Say what the endings of the whole run show; return whether there were any."""
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
