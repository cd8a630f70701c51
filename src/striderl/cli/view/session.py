"""`ViewSession`: a run that is watched, without any browser: env, policy, controls, and a ring of the last seconds.

    run folder ──CheckpointFollower──▶ policy ─┐
                                               ├─▶ Track 'A'      step, step, step, …
                env of its own, seeded ────────┘
    another checkpoint, an env of the same seed ──▶ Track 'B'     stepped together with A: side by side

One thread calls everything here; between two steps `poll` may exchange a policy (hot swap), which the episode and the
policy's memory survive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from striderl.cli.terminal import UsageError, message_of
from striderl.cli.view.controls import Array, EnvControls, controls_of
from striderl.cli.view.follow import CheckpointFollower
from striderl.cli.view.track import FALLBACK_DT, Abilities, Moment, Picture, Track
from striderl.collect.actors.policy_actor import GreedyActor
from striderl.collect.group import where_env
from striderl.envs.vec_env import ContractError, Step, VecEnv

RENDER_ERRORS = (RuntimeError, ImportError, OSError, ValueError, ContractError, AttributeError)
"""What an env without a picture may raise."""


class LiveTrack(Track):
    """An env that a followed policy acts in."""

    def __init__(
        self, label: str, env: VecEnv, follower: CheckpointFollower, *, seed: int, seconds: float, with_pictures: bool
    ) -> None:
        """Start an episode in every env; the ring has `seconds` of the task's time."""
        self.env, self.controls, self.follower = env, controls_of(env), follower
        dt = env.shown_dt or FALLBACK_DT
        super().__init__(label, dt=dt, model=self.controls.model, max_moments=max(2, round(seconds / dt)))
        self.problem = ""
        self._with_pictures = with_pictures and self.model is None
        self._actor = GreedyActor(follower.loaded.policy)
        self._fresh = self._state = self._actor.initial_state(env.num_envs, env.device)
        self._obs = env.reset(seed=seed)
        self._returned = np.zeros(env.num_envs)
        self._time = 0.0
        self._add_start(0)

    def swap(self) -> None:
        """Act with the policy that was loaded last; episode and memory go on."""
        self._actor = GreedyActor(self.follower.loaded.policy)

    def step(self, env_index: int) -> None:
        """Act in all envs; the picture is that of one."""
        with torch.no_grad():
            acted = self._actor.act(self._obs, self._state, {})
            actions = acted.actions if isinstance(acted.actions, Mapping) else {"action": acted.actions}
            kept = {name: _array(value) for name, value in actions.items()}
            step = self.env.step(acted.actions)
        self._obs = step.obs
        self._state = where_env(step.done, self._fresh, acted.state)
        self._time += self.dt
        self._returned = self._returned + _array(step.reward)
        self._add(step, kept, env_index)
        self._returned = np.where(_array(step.done), 0.0, self._returned)

    def restart(self, env_index: int) -> None:
        """Abandon the episode of one env."""
        mask = torch.zeros(self.env.num_envs, dtype=torch.bool, device=self.env.device)
        mask[env_index] = True
        self._obs = self.env.reset_envs(mask)
        self._state = where_env(mask, self._fresh, self._state)
        self._returned[env_index] = 0.0
        self._add_start(env_index)

    def _add(self, step: Step, actions: Mapping[str, Array], env_index: int) -> None:
        self.add(
            Moment(
                time=self._time,
                checkpoint=self.follower.loaded.step,
                obs={name: _array(value) for name, value in step.obs.items()},
                actions=actions,
                terms=self.controls.reward_terms(step),
                reward=_array(step.reward),
                returned=self._returned.copy(),
                done=_array(step.done),
                pose=self.controls.pose(),
                picture=self._picture(env_index),
            )
        )

    def _add_start(self, env_index: int) -> None:
        """Show where an episode begins."""
        zeros = np.zeros(self.env.num_envs)
        self.add(
            Moment(
                time=self._time,
                checkpoint=self.follower.loaded.step,
                obs={name: _array(value) for name, value in self._obs.items()},
                actions={},
                terms={},
                reward=zeros,
                returned=self._returned.copy(),
                done=zeros > 0.0,
                pose=self.controls.pose(),
                picture=self._picture(env_index),
            )
        )

    def _picture(self, env_index: int) -> Picture | None:
        if not self._with_pictures:
            return None
        try:
            return Picture(np.asarray(self.env.render(env_index), np.uint8))
        except RENDER_ERRORS as error:
            self._with_pictures, self.problem = False, f"no picture: {message_of(error)}"
            return None


class ViewSession:
    """A run's policy in envs of its own, stepped on demand."""

    def __init__(
        self,
        folder: Path,
        build_env: Callable[[CheckpointFollower], VecEnv],
        *,
        checkpoint: str = "best",
        compare: str = "",
        seed: int = 7,
        seconds: float = 10.0,
        trust: bool = False,
        with_pictures: bool = True,
    ) -> None:
        """Load the policy and start; `compare` names a checkpoint to show beside it."""
        self.folder, self._seed, self._seconds, self._trust = folder, seed, seconds, trust
        self._with_pictures = with_pictures
        self._build_env = build_env
        follower = CheckpointFollower(folder, checkpoint, trust=trust)
        self.title = follower.loaded.env.task
        self.tracks: list[Track] = []
        self._live: list[LiveTrack] = []
        self.env_index, self.paused, self.back = 0, False, 0
        self._held_command: Array | None = None
        self._held_level: int | None = None
        self._own_problem = ""
        try:
            self._begin(follower)
            if compare:
                self.compare(compare)
        except BaseException:
            self.close()
            raise
        controls = self._live[0].controls
        self.num_envs = self._live[0].env.num_envs
        self.abilities = Abilities(
            live=True,
            can_push=controls.can_push,
            commands=controls.command_entries,
            num_levels=controls.num_levels,
        )

    @property
    def controls(self) -> EnvControls:
        """The controls of the first env."""
        return self._live[0].controls

    @property
    def followers(self) -> list[CheckpointFollower]:
        """What is followed, of each track."""
        return [track.follower for track in self._live]

    @property
    def problem(self) -> str:
        """What went wrong last."""
        found = [self._own_problem, *(text for track in self._live for text in (track.follower.problem, track.problem))]
        return "; ".join(dict.fromkeys(text for text in found if text))

    def facts(self) -> list[tuple[str, str]]:
        """Return checkpoint, time and return of the env that is shown."""
        found = []
        for track in self._live:
            moment = track.at(self.back)
            name = f"policy {track.label}" if len(self._live) > 1 else "policy"
            # what acts next, or what acted then
            step = moment.checkpoint if self.back else track.follower.loaded.step
            found.append((name, f"{track.follower.which}, of step {step:,}"))
        for track in self._live:
            moment = track.at(self.back)
            name = f"return {track.label}" if len(self._live) > 1 else "return"
            found.append((name, f"{float(moment.returned[self.env_index]):.4g} in this episode"))
        first = self._live[0].at(self.back)
        found.append(("time", f"{first.time:.2f} s"))
        if self.abilities.commands:
            text = ", ".join(f"{value:.2f}" for value in self.controls.command(self.env_index))
            found.append(("command", text))
        if self.abilities.num_levels:
            found.append(("terrain level", str(self.controls.level(self.env_index))))
        return found

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Step every track, unless paused."""
        if not self.paused:
            self.advance()

    def step_once(self) -> None:
        """Step every track once, and pause."""
        self.paused = True
        self.advance()

    def advance(self) -> None:
        """Step every track from the newest moment; an env that raises pauses the session."""
        self.back = 0
        try:
            for track in self._live:
                if self._held_command is not None:
                    track.controls.set_command(self.env_index, self._held_command)
                track.step(self.env_index)
                self._keep_level(track)
        except (RuntimeError, ContractError, ValueError) as error:
            self.paused, self._own_problem = True, f"the env failed: {message_of(error)}"

    def poll(self) -> bool:
        """Exchange the policies whose checkpoints have changed; returns whether one was."""
        swapped = [track for track in self._live if track.follower.poll()]
        for track in swapped:
            track.swap()
        return bool(swapped)

    # -- controls ------------------------------------------------------------------------------------------------------

    def follow(self, which: str, track: int = 0) -> None:
        """Follow another checkpoint in a track."""
        if self._live[track].follower.follow(which):
            self._live[track].swap()

    def compare(self, which: str) -> None:
        """Show a second checkpoint beside the first, both from the start of the same episodes; '' shows one again."""
        if not which:
            for track in self._live[1:]:
                track.env.close()
            del self._live[1:], self.tracks[1:]
            return
        if len(self._live) == 2:
            self.follow(which, 1)
            return
        first = self._live[0]
        follower = CheckpointFollower(self.folder, which, trust=self._trust)
        self._begin(follower)
        self._live[0] = self.tracks[0] = self._track("A", first.env, first.follower)
        self._hold()

    def pick(self, env_index: int) -> None:
        """Show another env."""
        if not 0 <= env_index < self.num_envs:
            raise UsageError(f"env {env_index} is not in 0 to {self.num_envs - 1}")
        self.env_index = env_index
        self._hold()

    def restart(self) -> None:
        """Begin a new episode in the env that is shown."""
        self.back = 0
        for track in self._live:
            track.restart(self.env_index)

    def push(self, forward: float, left: float) -> None:
        """Push the robot that is shown, m/s."""
        for track in self._live:
            track.controls.push(self.env_index, forward, left)

    def hold_command(self, values: Array | None) -> None:
        """Command this in the env that is shown, from the next step on; None lets the env draw its own."""
        self._held_command = None if values is None else np.asarray(values, np.float64)
        self._hold()

    def set_level(self, level: int) -> None:
        """Begin a new episode at a terrain level, and stay there."""
        if not 0 <= level < self.abilities.num_levels:
            raise UsageError(f"terrain level {level} is not in 0 to {self.abilities.num_levels - 1}")
        self._held_level = level
        self.back = 0
        for track in self._live:
            track.controls.set_level(self.env_index, level)
            track.restart(self.env_index)

    def close(self) -> None:
        """Close the envs."""
        for track in self._live:
            track.env.close()

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _begin(self, follower: CheckpointFollower) -> None:
        track = self._track("AB"[len(self._live)], self._build_env(follower), follower)
        self._live.append(track)
        self.tracks.append(track)

    def _track(self, label: str, env: VecEnv, follower: CheckpointFollower) -> LiveTrack:
        return LiveTrack(
            label, env, follower, seed=self._seed, seconds=self._seconds, with_pictures=self._with_pictures
        )

    def _hold(self) -> None:
        if self._held_command is not None:
            for track in self._live:
                track.controls.set_command(self.env_index, self._held_command)

    def _keep_level(self, track: LiveTrack) -> None:
        """Undo what the curriculum did to a level that was chosen by hand."""
        if self._held_level is not None and track.controls.level(self.env_index) != self._held_level:
            track.controls.set_level(self.env_index, self._held_level)
            track.restart(self.env_index)


def _array(value: Tensor) -> Array:
    found: Array = value.detach().cpu().numpy()
    return found
