"""Two programs as users of legged_gym and of parkour write them: only the imports are ours."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from striderl.compat.st_rl import PPO, TPPO, ActorCritic, ActorCriticRecurrent, OnPolicyRunner, RolloutStorage

N, T, OBS, PRIVILEGED, ACT = 6, 8, 5, 7, 2


class LeggedEnv:
    """An env of legged_gym: step returns five values, privileged observations are a buffer."""

    def __init__(self) -> None:
        self.num_envs, self.num_obs, self.num_privileged_obs, self.num_actions = N, OBS, PRIVILEGED, ACT
        self.max_episode_length, self.device = 10, "cpu"
        self.episode_length_buf = torch.zeros(N, dtype=torch.long)
        self.reset()

    def reset(self) -> tuple[Tensor, Tensor]:
        self.place = torch.randn(N, OBS)
        return self.get_observations(), self.get_privileged_observations()

    def get_observations(self) -> Tensor:
        return self.place

    def get_privileged_observations(self) -> Tensor:
        return torch.cat([self.place, self.place[:, :2].square()], dim=1)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        self.place = 0.9 * self.place
        self.place[:, :ACT] += 0.3 * actions
        self.episode_length_buf += 1
        dones = self.episode_length_buf >= self.max_episode_length
        rewards = -self.place[:, :ACT].square().sum(1)
        self.place[dones] = torch.randn(int(dones.sum()), OBS)
        self.episode_length_buf[dones] = 0
        infos = {"time_outs": dones.clone(), "episode": {"rew_tracking": rewards.mean()}}
        return self.get_observations(), self.get_privileged_observations(), rewards, dones, infos


# -- a legged_gym user: an own model, an own runner --------------------------------------------------------------------


class GatedActorCritic(ActorCritic):
    """A layer of its own before the actor; bounded actions."""

    def __init__(self, num_actor_obs: int, num_critic_obs: int, num_actions: int, **kwargs: Any) -> None:
        super().__init__(num_actor_obs, num_critic_obs, num_actions, **kwargs)
        self.gate = nn.Linear(num_actor_obs, num_actor_obs)
        self.num_acts = 0

    def update_distribution(self, observations: Tensor) -> None:
        super().update_distribution(observations * torch.sigmoid(self.gate(observations)))

    def act(self, observations: Tensor, **kwargs: Any) -> Tensor:
        self.num_acts += 1
        return super().act(observations, **kwargs).clamp(-2.0, 2.0)

    def act_inference(self, observations: Tensor) -> Tensor:
        return super().act_inference(observations * torch.sigmoid(self.gate(observations)))


class QuietRunner(OnPolicyRunner):
    """Logs one line per iteration, and saves the best model beside the others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lines: list[str] = []
        self.best = float("-inf")

    def log(self, locs: Any, width: int = 80, pad: int = 35) -> None:
        mean = sum(locs["rewbuffer"]) / max(len(locs["rewbuffer"]), 1)
        self.lines.append(f"{locs['it']}/{locs['tot_iter']} {mean:.2f} {float(locs['losses']['value_loss']):.3f}")
        if mean > self.best and self.log_dir is not None:
            self.best = mean
            self.save(os.path.join(self.log_dir, "best.pt"), infos={"reward": mean})

    def save(self, path: Any, infos: Any = None) -> None:
        super().save(path, {**(infos or {}), "by": "QuietRunner"})


def test_a_legged_gym_user(tmp_path: Path) -> None:
    train_cfg = {
        "runner": {"policy_class_name": "ActorCritic", "num_steps_per_env": T, "save_interval": 5},
        "num_steps_per_env": T, "save_interval": 5, "logger": "none",
        "policy": {"class_name": GatedActorCritic, "actor_hidden_dims": [16], "critic_hidden_dims": [16]},
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 2, "num_mini_batches": 2, "schedule": "adaptive"},
    }  # fmt: skip
    torch.manual_seed(0)
    runner = QuietRunner(LeggedEnv(), train_cfg, str(tmp_path), device="cpu")
    before = runner.alg.actor_critic.gate.weight.clone()
    runner.learn(num_learning_iterations=6, init_at_random_ep_len=True)
    model = runner.alg.actor_critic
    assert not torch.equal(before, model.gate.weight) and model.num_acts == 6 * (T + 4)
    assert len(runner.lines) == 6 and runner.lines[-1].startswith("5/6 ")
    loaded = torch.load(tmp_path / "best.pt", weights_only=True)
    assert loaded["infos"]["by"] == "QuietRunner" and "gate.weight" in loaded["model_state_dict"]
    again = QuietRunner(LeggedEnv(), train_cfg)
    assert again.load(tmp_path / "model_6.pt")["by"] == "QuietRunner"
    obs = torch.randn(N, OBS)
    torch.testing.assert_close(again.get_inference_policy()(obs), runner.get_inference_policy()(obs))
    scripted = torch.jit.script(model.actor)
    torch.testing.assert_close(scripted(obs), model.actor(obs))
    model.std.data.fill_(0.25)
    model.act(obs)
    assert model.action_std.eq(0.25).all()


# -- a parkour user: a loop by hand, then a student of the teacher -----------------------------------------------------


def train_by_hand(alg: Any, env: Any, iterations: int) -> list[float]:
    alg.init_storage(env.num_envs, T, [OBS], [PRIVILEGED], [ACT])
    obs, critic_obs = env.get_observations(), env.get_privileged_observations()
    rewards_seen: deque[float] = deque(maxlen=T)
    curve = []
    for it in range(iterations):
        with torch.inference_mode():
            for _ in range(T):
                actions = alg.act(obs, critic_obs)
                obs, critic_obs, rewards, dones, infos = env.step(actions)
                alg.process_env_step(rewards, dones, infos)
                rewards_seen.append(float(rewards.mean()))
            alg.compute_returns(critic_obs)
        losses, _ = alg.update(it)
        assert torch.isfinite(losses["total_loss"])
        curve.append(sum(rewards_seen) / len(rewards_seen))
    return curve


@pytest.mark.parametrize("words", ["class_name", "teacher_policy_class_name", "both"])
def test_a_parkour_user(words: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    small = {"actor_hidden_dims": [16], "critic_hidden_dims": [16]}
    teacher = ActorCritic(PRIVILEGED, PRIVILEGED, ACT, **small)
    torch.save({"model_state_dict": teacher.state_dict(), "iter": 3, "infos": None}, tmp_path / "model_3.pt")
    sizes = {"num_actor_obs": PRIVILEGED, "num_critic_obs": PRIVILEGED, "num_actions": ACT, **small}
    given: dict[str, Any] = {"teacher_policy": {**sizes, "teacher_ac_path": str(tmp_path / "model_3.pt")}}
    if words != "teacher_policy_class_name":
        given["teacher_policy"]["class_name"] = "ActorCritic"
    if words != "class_name":
        given["teacher_policy_class_name"] = "ActorCritic"
    student = ActorCriticRecurrent(OBS, PRIVILEGED, ACT, **small, rnn_type="gru", rnn_hidden_size=16)
    alg = TPPO(
        student, num_learning_epochs=4, num_mini_batches=2, learning_rate=1e-2, using_ppo=False,
        distill_target="l1", label_action_with_critic_obs=True, teacher_act_prob="exp", update_times_scale=5, **given,
    )  # fmt: skip
    env = LeggedEnv()
    train_by_hand(alg, env, 1)
    first = distance(alg)
    train_by_hand(alg, env, 40)
    assert distance(alg) < 0.7 * first
    assert torch.equal(alg.teacher_actor_critic.actor[0].weight, teacher.actor[0].weight)


def distance(alg: Any) -> float:
    """Return how far the labels of the last rollout are from the student's means."""
    labels, means = alg.storage.extra["action_labels"], alg.storage.mu
    return float((labels - means).abs().mean())


class Clipped(RolloutStorage):
    """Rewards are clipped when they are stored."""

    def add_transitions(self, transition: Any) -> None:
        transition.rewards = transition.rewards.clamp(-1.0, 1.0)
        super().add_transitions(transition)


def test_a_storage_of_ones_own_in_a_loop_by_hand() -> None:
    class WithClipped(PPO):
        def init_storage(self, *args: Any, **kwargs: Any) -> None:
            self.transition = Clipped.Transition()
            self.storage = Clipped(*args, self.device, **kwargs)

    torch.manual_seed(0)
    small = {"actor_hidden_dims": [16], "critic_hidden_dims": [16]}
    alg = WithClipped(ActorCritic(OBS, PRIVILEGED, ACT, **small), 4, 2, learning_rate=3e-3, gamma=0.9)
    curve = train_by_hand(alg, LeggedEnv(), 20)
    assert float(alg.storage.rewards.min()) >= -1.0 and curve[-1] > curve[0]
