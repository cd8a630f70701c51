"""rlpyt's Atari env over `ale_py`, which is installed apart: `pip install ale-py`. Nothing here loads torch.

    raw frames 210 x 160, gray     the larger of the last two of `frame_skip` frames
    ─▶ one row off at both ends, every second row and column: 104 x 80
    ─▶ observation uint8 [num_img_obs, 104, 80], oldest frame first; zeros before an episode

With `episodic_lives` a lost life ends the episode (`done`) but not the game (`env_info.traj_done`): the reset that
follows goes on with the same game. Where the horizon ends the game, `env_info.timeout` is true.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np

from striderl.compat.rlpyt.envs import Env, EnvStep, IntBox

HEIGHT, WIDTH = 104, 80
_WAYS = ("UP", "RIGHT", "LEFT", "DOWN", "UPRIGHT", "UPLEFT", "DOWNRIGHT", "DOWNLEFT")
ACTION_MEANING = dict(enumerate(("NOOP", "FIRE", *_WAYS, *(f"{way}FIRE" for way in _WAYS))))
ACTION_INDEX = {meaning: action for action, meaning in ACTION_MEANING.items()}
FIRE, UP = ACTION_INDEX["FIRE"], ACTION_INDEX["UP"]


class AtariInfo(NamedTuple):
    """The env_info of a step."""

    game_score: Any
    """The score of the step, before clipping."""
    traj_done: bool
    """Whether the game is over."""
    timeout: bool
    """Whether the horizon ended it."""


class AtariEnv(Env):
    """One Atari game."""

    def __init__(
        self,
        game: str = "pong",
        frame_skip: int = 4,
        num_img_obs: int = 4,
        clip_reward: bool = True,
        episodic_lives: bool = True,
        fire_on_reset: bool = False,
        max_start_noops: int = 30,
        repeat_action_probability: float = 0.0,
        horizon: int = 27000,
    ) -> None:
        """Load the game; `horizon` counts steps, of `frame_skip` frames each."""
        if frame_skip < 1 or num_img_obs < 1:
            raise ValueError(f"frame_skip and num_img_obs are at least 1, found {frame_skip} and {num_img_obs}")
        self.game, self.frame_skip, self.num_img_obs = game, frame_skip, num_img_obs
        self.clip_reward, self.episodic_lives, self.fire_on_reset = clip_reward, episodic_lives, fire_on_reset
        self.max_start_noops, self.repeat_action_probability = max_start_noops, repeat_action_probability
        self._horizon = int(horizon)
        self._random = np.random.default_rng()
        self.ale = _load(game, repeat_action_probability)
        # numbers in older versions of ale_py, members of an enum in newer ones
        self._action_set = [int(getattr(action, "value", action)) for action in self.ale.getMinimalActionSet()]
        self._action_space = IntBox(0, len(self._action_set))
        self._observation_space = IntBox(0, 256, (num_img_obs, HEIGHT, WIDTH), "uint8")
        self.reset()

    def seed(self, seed: int | None = None) -> None:
        """Seed the number of idle frames after a reset."""
        self._random = np.random.default_rng(seed)

    def reset(self) -> Any:
        """Start a new game after a random number of idle frames."""
        self.ale.reset_game()
        self._obs = np.zeros((self.num_img_obs, HEIGHT, WIDTH), np.uint8)
        self._leave_lost_life()
        for _ in range(int(self._random.integers(self.max_start_noops + 1))):
            self.ale.act(0)
        if self.fire_on_reset:
            for action in (FIRE, UP):
                if action in self._action_set:
                    self.ale.act(action)
        self._add_frame(np.zeros_like(self._screen()))
        self._steps = 0
        return self._obs.copy()

    def step(self, action: Any) -> EnvStep:
        """Repeat an action for `frame_skip` frames."""
        raw = self._action_set[int(action)]
        score = sum(float(self.ale.act(raw)) for _ in range(self.frame_skip - 1))
        before = self._screen() if self.frame_skip > 1 else np.zeros_like(self._screen())
        score += float(self.ale.act(raw))
        lost_life = 0 < self.ale.lives() < self._lives
        if lost_life:
            self._leave_lost_life()
        if lost_life and self.episodic_lives:
            self._obs[:], before = 0, np.zeros_like(before)
        self._add_frame(before)
        self._steps += 1
        over = bool(self.ale.game_over())
        late = not over and self._steps >= self._horizon
        reward = np.sign(score) if self.clip_reward else score
        done = over or late or (self.episodic_lives and lost_life)
        return EnvStep(self._obs.copy(), np.float32(reward), done, AtariInfo(np.float32(score), over or late, late))

    @property
    def horizon(self) -> int:
        """The most steps of a game."""
        return self._horizon

    def get_obs(self) -> Any:
        """Return the observation of now."""
        return self._obs.copy()

    def get_action_meanings(self) -> list[str]:
        """Return what each action does, in words."""
        return [ACTION_MEANING[action] for action in self._action_set]

    def _leave_lost_life(self) -> None:
        self.ale.act(0)
        self._lives = self.ale.lives()

    def _screen(self) -> Any:
        return np.array(self.ale.getScreenGrayscale(), np.uint8)

    def _add_frame(self, before: Any) -> None:
        frame = np.maximum(before, self._screen())[1:-1:2, ::2]
        self._obs = np.concatenate([self._obs[1:], frame[None]])


def _load(game: str, repeat_action_probability: float) -> Any:
    try:
        ale_py: Any = importlib.import_module("ale_py")
    except ImportError:
        raise ImportError("AtariEnv wants the package ale_py: pip install ale-py") from None
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", repeat_action_probability)
    ale.loadROM(importlib.import_module("ale_py.roms").get_rom_path(game))
    return ale
