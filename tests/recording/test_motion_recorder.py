"""The recorder: frames in order, no clip across a reset, final observations, falls, bad numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from striderl.collect.actors.base import ScriptedActor
from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.datasets.motion.clip import ClipError, ClipField
from striderl.envs.vec_env import Step, VecEnv
from striderl.recording.motion import MotionRecorder, MotionRecorderConfig, record_motion


class CountingEnv(VecEnv):
    """Env i ends its episodes after lengths[i] steps; it shows 100 · episode + step, and 1000 · (i + 1) beside it.

    Episodes of env 0 terminate, those of the others are truncated.
    """

    def __init__(self, lengths: tuple[int, ...] = (3, 5), *, final: bool = True, bad_step: int = -1) -> None:
        self.num_envs, self.device, self.lengths = len(lengths), torch.device("cpu"), torch.tensor(lengths)
        self.obs_spec = ObsSpec(
            {
                "position": ComponentSpec(shape=(1,), group="motion"),
                "other": ComponentSpec(shape=(2,)),
                "who": ComponentSpec(shape=(1,), group="motion"),
            }
        )
        self.action_spec = BoxSpec(shape=(1,), low=-1.0, high=1.0)
        self.info_spec = {"valid": TensorSpec(dtype="bool")}
        self.gives_final_obs, self.max_episode_length, self.step_dt = final, 0, 0.1
        self.bad_step, self.total = bad_step, 0

    def _obs(self) -> dict[str, Tensor]:
        who = 1000.0 * (torch.arange(self.num_envs) + 1.0)
        shown = (100.0 * self.episode + self.age).float()
        if self.total == self.bad_step:
            shown[-1] = float("nan")
        return {"position": shown[:, None], "other": torch.full((self.num_envs, 2), 7.0), "who": who[:, None]}

    def reset(self, seed: int | None = None) -> dict[str, Tensor]:
        self.age, self.episode = torch.zeros(self.num_envs), torch.zeros(self.num_envs)
        self.total = 0
        return self._obs()

    def step(self, actions: Any) -> Step:
        self.age += 1
        self.total += 1
        done = self.age >= self.lengths
        final = self._obs()
        self.episode += done
        self.age[done] = 0.0
        terminated = done & (torch.arange(self.num_envs) == 0)
        info = {"valid": torch.ones(self.num_envs, dtype=torch.bool), "log": {}}
        obs = self._obs()
        return Step(
            obs,
            torch.zeros(self.num_envs),
            terminated,
            done & ~terminated,
            final if self.gives_final_obs else None,
            info,
        )

    def reset_envs(self, mask: Tensor) -> dict[str, Tensor]:
        self.episode += mask
        self.age[mask] = 0.0
        return self._obs()

    @property
    def episode_length_buf(self) -> Tensor:
        return self.age.long()

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self.age = value.float()


FIELDS = {"time": ClipField(size=1), "who": ClipField(size=1)}


def config(**more: Any) -> MotionRecorderConfig:
    return MotionRecorderConfig(**{"fields": FIELDS, "min_seconds": 0.0, "keep_falls": True, **more})


def stay(obs: dict[str, Tensor]) -> Tensor:
    return torch.zeros(len(obs["who"]), 1)


def times(clips: list[Any]) -> list[list[float]]:
    return [clip.values["time"][:, 0].tolist() for clip in clips]


def test_clips_are_episodes_with_their_final_observation():
    clips = record_motion(CountingEnv(), stay, 7, config(), name="count")
    # env 0: episodes of 3 steps, 4 frames each with the last one; the third has only its first step so far
    # env 1: 5 steps, then two steps so far, whose second frame is not yet the obs of a step
    assert times(clips) == [
        [0.0, 1.0, 2.0, 3.0],
        [100.0, 101.0, 102.0, 103.0],
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        [100.0, 101.0],
    ]
    assert [clip.values["who"][0, 0] for clip in clips] == [1000.0, 1000.0, 2000.0, 2000.0]
    assert clips[0].frame_duration == 0.1 and clips[1].name == "count 1" and clips[2].about["env_index"] == 1
    # 3, 3, 5 and 1 steps of 12
    assert [round(12 * clip.weight) for clip in clips] == [3, 3, 5, 1]


def test_without_final_observations_a_clip_ends_before_the_reset():
    clips = record_motion(CountingEnv(final=False), stay, 6, config())
    assert times(clips) == [[0.0, 1.0, 2.0], [100.0, 101.0, 102.0], [0.0, 1.0, 2.0, 3.0, 4.0]]


def test_no_clip_ever_jumps():
    # with every length of episode: neighbours differ by exactly one step of one episode of one env
    clips = record_motion(CountingEnv((1, 2, 3, 7, 50)), stay, 60, config())
    assert len(clips) > 50
    for clip in clips:
        assert set(np.diff(clip.values["time"][:, 0])) == {1.0} and set(np.diff(clip.values["who"][:, 0])) == {0.0}


def test_falls_short_pieces_and_beginnings_are_left_out():
    env = CountingEnv()
    assert times(record_motion(env, stay, 7, config(keep_falls=False)))[0] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert times(record_motion(env, stay, 7, config(min_seconds=0.4))) == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]
    assert times(record_motion(env, stay, 7, config(skip_seconds=0.2))) == [
        [2.0, 3.0],
        [102.0, 103.0],
        [2.0, 3.0, 4.0, 5.0],
    ]


def test_a_bad_number_ends_its_clip():
    # env 1's observation after step 2 is NaN: its clip has the frames before, and the env is reset or stays out
    clips = record_motion(CountingEnv((50, 50), bad_step=2), stay, 6, config())
    of_env = {float(clip.values["who"][0, 0]): clip.values["time"][:, 0].tolist() for clip in reversed(clips)}
    assert of_env[1000.0] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert of_env[2000.0] == [0.0, 1.0]


def test_other_components_may_be_recorded_too():
    clips = record_motion(CountingEnv(), stay, 6, config(also={"other": ClipField(size=2)}))
    assert clips[0].values["other"].tolist() == [[7.0, 7.0]] * 4


def test_an_actor_with_memory_is_an_actor():
    clips = record_motion(CountingEnv(), ScriptedActor(stay), 6, config())
    assert len(clips) == 3


def test_what_does_not_fit_is_told():
    env = CountingEnv()
    with pytest.raises(ClipError, match="have 1 numbers, the components"):
        MotionRecorder(env, config(fields={"time": ClipField(size=1)}))
    with pytest.raises(KeyError, match="no component or group 'pose'"):
        MotionRecorder(env, config(components=("pose",)))
    with pytest.raises(ClipError, match="'other' has 2 numbers"):
        MotionRecorder(env, config(also={"other": ClipField(size=3)}))
    with pytest.raises(ValueError, match="it is empty"):
        config(fields={})
    with pytest.raises(ValueError, match="num_steps"):
        record_motion(env, stay, 0, config())
    env.step_dt = 0.0
    with pytest.raises(ClipError, match="has no time"):
        MotionRecorder(env, config())
