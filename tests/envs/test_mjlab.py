"""mjlab itself, on its CPU backend, behind the adapter.

The first run on a machine compiles the simulator's kernels, which takes minutes; later runs find them in a cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("mjlab", reason="mjlab is not installed")

from mjlab.envs import ManagerBasedRlEnv
from mjlab.managers.termination_manager import TerminationTermCfg
from mjlab.rl import RslRlVecEnvWrapper
from mjlab.tasks.cartpole.cartpole_env_cfg import cartpole_balance_env_cfg

from striderl.envs.rsl_rl.env import RslRlEnv

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUM_ENVS = 4
LIMIT = 10
EDGE = 0.4


def off_centre(env: Any) -> Tensor:
    """The cart has left the middle of its rail: a real end, beside the time limit."""
    return env.scene["cartpole"].data.joint_pos[:, 0] > EDGE


def build(*, auto_reset: bool = True, limit: int = LIMIT, falls: bool = False) -> RslRlEnv:
    cfg = cartpole_balance_env_cfg()
    cfg.scene.num_envs = NUM_ENVS
    cfg.seed = 0
    cfg.auto_reset = auto_reset
    cfg.episode_length_s = limit * cfg.sim.mujoco.timestep * cfg.decimation
    if falls:
        cfg.terminations["off_centre"] = TerminationTermCfg(func=off_centre)
    return RslRlEnv(RslRlVecEnvWrapper(ManagerBasedRlEnv(cfg, device="cpu")))


@pytest.fixture(scope="module")
def auto() -> Iterator[RslRlEnv]:
    with build() as env:
        assert isinstance(env, RslRlEnv)
        yield env


@pytest.fixture(scope="module")
def manual() -> Iterator[RslRlEnv]:
    with build(auto_reset=False, falls=True) as env:
        assert isinstance(env, RslRlEnv)
        yield env


def pushes(num_steps: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(num_steps, NUM_ENVS, 1, generator=generator) * 2 - 1


def test_what_the_adapter_finds(auto: RslRlEnv) -> None:
    assert auto.generation == "v4"
    assert (auto.num_envs, auto.max_episode_length, auto.step_dt) == (NUM_ENVS, LIMIT, pytest.approx(0.05))
    assert {name: (part.shape, part.group) for name, part in auto.obs_spec.items()} == {
        "actor": ((5,), "actor"),
        "critic": ((5,), "critic"),
    }
    assert auto.action_spec.shape == (1,)
    assert auto.device == torch.device("cpu")
    assert not auto.gives_final_obs
    assert isinstance(auto.unwrapped, ManagerBasedRlEnv)


def test_steps_time_outs_and_logs(auto: RslRlEnv) -> None:
    auto.reset(seed=3)
    kept = []
    for number, action in enumerate(pushes(2 * LIMIT + 2), start=1):
        step = auto.step(action)
        kept.append((step, {name: value.clone() for name, value in step.obs.items()}))
        assert step.obs["actor"].shape == step.obs["critic"].shape == (NUM_ENVS, 5)
        assert torch.isfinite(step.obs["actor"]).all()
        assert 0.0 < float(step.reward.min()) <= float(step.reward.max()) <= 0.05 + 1e-6  # at most 1, times 0.05 s
        assert step.truncated.tolist() == [number % LIMIT == 0] * NUM_ENVS
        assert not step.terminated.any()
        assert auto.episode_length_buf.tolist() == [number % LIMIT] * NUM_ENVS
        assert bool(step.info["log"]) == (number % LIMIT == 0)  # mjlab logs when episodes end
        assert all(torch.as_tensor(value).ndim == 0 for value in step.info["log"].values())
    assert all(torch.equal(copy[name], step.obs[name]) for step, copy in kept for name in copy)


def test_the_same_seed_gives_the_same_steps(auto: RslRlEnv) -> None:
    def play(seed: int) -> Tensor:
        first = auto.reset(seed)["actor"]
        return torch.stack([first, *(auto.step(action).obs["actor"] for action in pushes(LIMIT + 3))])

    once, again, other = play(5), play(5), play(6)
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


def test_ages_and_single_resets(auto: RslRlEnv) -> None:
    auto.reset(seed=1)
    auto.episode_length_buf = torch.tensor([LIMIT - 1, 0, 4, LIMIT - 2])
    step = auto.step(torch.zeros(NUM_ENVS, 1))
    assert step.truncated.tolist() == [True, False, False, False]
    assert auto.episode_length_buf.tolist() == [0, 1, 5, LIMIT - 1]
    obs = auto.reset_envs(torch.tensor([False, False, True, False]))
    assert auto.episode_length_buf.tolist() == [0, 1, 0, LIMIT - 1]
    running = torch.tensor([0, 1, 3])
    assert torch.equal(obs["actor"][running], step.obs["actor"][running])
    assert not torch.equal(obs["actor"][2], step.obs["actor"][2])
    assert auto.step(torch.zeros(NUM_ENVS, 1)).truncated.tolist() == [False, False, False, True]


def test_manual_resets_show_the_true_last_observation(manual: RslRlEnv) -> None:
    assert manual.gives_final_obs
    actions = pushes(LIMIT + 2)
    with build(limit=1000) as endless:
        # the same seed and actions without a time limit: where the episode would have gone on from
        start, other = manual.reset(seed=9), endless.reset(seed=9)
        assert torch.equal(start["actor"], other["actor"])
        for number, action in enumerate(actions[:LIMIT], start=1):
            step, onward = manual.step(action), endless.step(action)
            assert step.final_obs is not None
            assert torch.allclose(step.final_obs["actor"], onward.obs["actor"], atol=1e-6)
            assert step.truncated.tolist() == [number == LIMIT] * NUM_ENVS
    assert step.final_obs is not None
    assert (step.obs["actor"] - step.final_obs["actor"]).abs().max() > 1e-3
    assert (step.obs["actor"][:, 0].abs() <= 0.1 + 1e-6).all()  # new episodes start within 10 cm of the middle
    assert step.info["log"]["Episode_Termination/time_out"] == NUM_ENVS
    for action in actions[LIMIT:]:  # mjlab refuses to go on where a finished env was not reset
        step = manual.step(action)
        assert not step.done.any()
        assert step.final_obs is not None
        assert torch.equal(step.obs["actor"], step.final_obs["actor"])


def test_falls_are_told_from_time_outs(manual: RslRlEnv) -> None:
    manual.reset(seed=2)
    manual.episode_length_buf = torch.tensor([0, 0, 3, 0])
    ends: dict[int, list[tuple[int, bool, bool]]] = {}
    for number in range(1, 3 * LIMIT):
        # env 0 is pushed to the right as hard as the rail allows, the others not at all
        step = manual.step(torch.tensor([[1.0], [0.0], [0.0], [0.0]]) * 30)
        assert step.final_obs is not None
        for row in step.done.nonzero().flatten().tolist():
            ends.setdefault(row, []).append((number, bool(step.terminated[row]), bool(step.truncated[row])))
            assert (float(step.final_obs["critic"][row, 0]) > EDGE) == bool(step.terminated[row])
    assert ends[0][0][0] < LIMIT
    assert ends[0][0][1:] == (True, False)
    assert ends[1] == [(10, False, True), (20, False, True)]
    assert ends[2] == [(7, False, True), (17, False, True), (27, False, True)]
