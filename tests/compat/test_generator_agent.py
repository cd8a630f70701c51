"""Model, Algorithm, Agent and Trainer of seed 002 on DQN, SAC and PPO, with our networks and with a user's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from striderl.algorithms.actor_critic.sac import SAC
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.compat.generator.agent import Agent, Algorithm
from striderl.compat.generator.trainer import Trainer, TrainerConfig
from striderl.compat.user_models import dqn_from_model, ppo_from_model, sac_from_model
from striderl.envs.tasks import make
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.value_functions import QFunction, QFunctionConfig


class Net(nn.Module):
    """A user's model for everything: choices or real numbers, values of states or of actions."""

    def __init__(self, size: int, outputs: int, *, box: bool = False, critics: int = 2) -> None:
        super().__init__()
        self.pi, self.log_std = nn.Linear(size, outputs), nn.Parameter(torch.zeros(outputs))
        self.v = nn.Linear(size, 1)
        self.q = nn.ModuleList(nn.Linear(size + outputs, 1) for _ in range(critics))
        self.box = box

    def value(self, x: Tensor, a: Tensor | None = None) -> Any:
        return self.v(x) if a is None else tuple(q(torch.cat([x, a], -1)) for q in self.q)

    def action(self, x: Tensor) -> Any:
        return (self.pi(x), self.log_std) if self.box else self.pi(x)


class QNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 2)

    def value(self, x: Tensor, a: Tensor | None = None) -> Tensor:
        return self.net(x)


def build(which: str) -> tuple[Any, Any]:
    """Return one of the algorithms with a task that fits."""
    torch.manual_seed(0)
    env = make("cartpole" if which in ("dqn", "ppo") else "pendulum", num_envs=2)
    obs, act = env.obs_spec, env.action_spec
    if which == "dqn":
        return DQN(q_policy(obs, act, ActorConfig(hidden_dims=(8,))), DQNConfig(target_every=1000)), env
    if which == "sac":
        policy = ActorPolicy(obs, act, ActorConfig(hidden_dims=(8,), head="squashed_gaussian"))
        return SAC(policy, QFunction(obs, act, QFunctionConfig(hidden_dims=(8,)))), env
    config = PolicyConfig(actor_hidden_dims=(8,), critic_hidden_dims=(8,))
    return PPO(Policy(obs, act, config), PPOConfig(num_mini_batches=2)), env


@pytest.mark.parametrize("which", ["dqn", "sac", "ppo"])
def test_the_four_classes_on_each_algorithm(which):
    core, env = build(which)
    algorithm = Algorithm(core)
    agent = Agent(algorithm)
    x = torch.randn(3, env.obs_spec.size)
    values = algorithm.model.value(x, torch.zeros(3, 1) if which == "sac" else None)
    assert [tuple(value.shape) for value in values] == {"dqn": [(3, 2)], "sac": [(3,), (3,)], "ppo": [(3,)]}[which]
    greedy = algorithm.model.action(x).mode()
    predicted = algorithm.predict(x)
    best = predicted.argmax(-1) if which == "dqn" else predicted.mode()
    torch.testing.assert_close(best, greedy)
    np.testing.assert_allclose(agent.predict(x.numpy()), greedy.detach().numpy(), atol=1e-6)
    assert agent.predict(x[0].numpy()).shape == greedy[0].shape
    assert agent.sample_step == 0
    assert len(agent.sample(x.numpy())) == 3 and agent.sample_step == 3


def test_actions_of_an_agent_are_within_the_bounds_of_the_env():
    env = make("pendulum", num_envs=2)
    policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(head_settings={"init_std": 9.0}))
    found = Agent(Algorithm(PPO(policy, PPOConfig(num_mini_batches=2)))).sample(np.zeros((64, 3), np.float32))
    assert np.abs(found).max() == 2.0


def test_sync_target_copies_the_model():
    core, _ = build("dqn")
    with torch.no_grad():
        for parameter in core.policy.parameters():
            parameter.add_(1.0)
    Algorithm(core).sync_target()
    for one, two in zip(core.policy.parameters(), core.target.network.parameters()):
        torch.testing.assert_close(one, two)
    Algorithm(build("ppo")[0]).sync_target()  # has none: nothing to do


def test_an_agent_learns_from_arrays():
    core, _ = build("dqn")
    agent = Agent(Algorithm(core))
    random = np.random.default_rng(0)
    data = {
        "obs": random.normal(size=(8, 4)),
        "obs_next": random.normal(size=(8, 4)),
        "act": np.zeros(8, np.int64),
        "rew": np.ones(8),
        "done": np.ones(8),
    }
    losses = [agent.learn(data)["q_loss"] for _ in range(60)]
    assert losses[-1] < losses[0] and agent.learn_step == 60
    assert all(isinstance(loss, float) for loss in losses)
    # the clock is no end of the task: what followed counts as if the episode went on
    late = {**data, "info": [{"TimeLimit.truncated": True}] * 8}
    truncated, one_step = (agent._columns({**late, **more}) for more in ({}, {"done": np.zeros(8), "info": None}))
    assert truncated["truncated"].all() and not truncated["terminated"].any()
    torch.testing.assert_close(truncated["discount"], one_step["discount"])
    assert not agent._columns(data)["discount"].any()
    with pytest.raises(KeyError, match=r"missing .'rew'"):
        agent.learn({**data, "rew": None})
    with pytest.raises(TypeError, match="wanted a Rollout"):
        Agent(Algorithm(build("ppo")[0])).learn(data)


def test_replay_order_of_log_data_and_a_second_loop():
    core, env = build("dqn")
    config = TrainerConfig(total_timesteps=40, learning_starts=8, train_frequency=2, batch_size=4)
    trainer = Trainer(Agent(Algorithm(core)), env, config)
    first = []
    for log_data in trainer():
        first.append(log_data["log_type"])
        if len(first) == 9:
            break
    rest = [log_data["log_type"] for log_data in trainer()]
    # 8 steps of 2 envs: four collects; then two collects and a train, again and again
    assert first == ["collect"] * 4 + ["collect", "collect", "train"] + ["collect", "collect"]
    assert (first + rest).count("collect") == 20 and (first + rest).count("train") == 8
    assert rest[0] == "train" and trainer.finished and list(trainer()) == []


def test_rollout_order_and_what_is_logged():
    core, env = build("ppo")
    trainer = Trainer(Agent(Algorithm(core)), env, TrainerConfig(total_timesteps=90, num_steps=16))
    logs = list(trainer())
    # 32 samples make a rollout: two of them in 90 steps, and 26 samples that are not trained on
    assert [each["log_type"] for each in logs[:17]] == ["collect"] * 16 + ["train"]
    assert Counter(each["log_type"] for each in logs) == {"collect": 45, "train": 2}
    assert logs[-1]["sample_step"] == 90
    with_episodes = [each["logs"] for each in logs if each["log_type"] == "collect" and "logs" in each]
    assert with_episodes and set(with_episodes[0]) == {"episodic_return", "episodic_length", "num_episodes"}
    assert any("logs" not in each for each in logs)
    train = next(each["logs"] for each in logs if each["log_type"] == "train")
    assert all(isinstance(value, float) for value in train.values())


def test_evaluations_come_before_the_collect_that_is_due():
    core, env = build("dqn")
    config = TrainerConfig(total_timesteps=8, learning_starts=100, eval_frequency=4, num_eval_episodes=2)
    logs = list(Trainer(Agent(Algorithm(core)), env, config, eval_env=make("cartpole", num_envs=2))())
    assert [each["log_type"][0] + str(each["sample_step"]) for each in logs] == ["e0", "c2", "c4", "e4", "c6", "c8"]
    assert logs[0]["logs"]["mean_episodic_return"] > 0


def test_run_train_says_what_comes_first():
    core, env = build("ppo")
    trainer = Trainer(Agent(Algorithm(core)), env, TrainerConfig(num_steps=4))
    with pytest.raises(RuntimeError, match="_run_collect until it is full"):
        trainer._run_train()
    for _ in range(4):
        trainer._run_collect()
    with pytest.raises(RuntimeError, match="_run_train comes next"):
        trainer._run_collect()
    assert trainer._run_train()["log_type"] == "train"
    with pytest.raises(ValueError, match="wants both eval_env"):
        Trainer(Agent(Algorithm(core)), env, TrainerConfig(eval_frequency=5))
    with pytest.raises(TypeError, match="wrap it"):
        Agent(core)
    with pytest.raises(ValueError, match="those of PPO are in its config"):
        Agent(Algorithm(core), epsilon=0.3)
    with pytest.raises(ValueError, match="on_policy=False has no effect: PPO has on_policy=True"):
        Trainer(Agent(Algorithm(core)), env, TrainerConfig(on_policy=False))


# -- a user's model ----------------------------------------------------------------------------------------------------


def changed(model: nn.Module, before: dict[str, Tensor]) -> set[str]:
    return {name.split(".")[0] for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


@pytest.mark.parametrize(
    ("which", "learned"), [("ppo", {"pi", "v"}), ("sac", {"pi", "q", "log_std"}), ("dqn", {"net"})]
)
def test_a_users_model_is_what_learns(which, learned):
    torch.manual_seed(0)
    env = make("pendulum" if which == "sac" else "cartpole", num_envs=2)
    size = env.obs_spec.size
    model = {"ppo": lambda: Net(size, 2), "sac": lambda: Net(size, 1, box=True), "dqn": QNet}[which]()
    build_core = {"ppo": ppo_from_model, "sac": sac_from_model, "dqn": dqn_from_model}[which]
    core = build_core(model, env.obs_spec, env.action_spec)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = TrainerConfig(total_timesteps=80, learning_starts=20, batch_size=8, num_steps=16)
    algorithm = Algorithm(core, model=model)
    for _ in Trainer(Agent(algorithm), env, config)():
        pass
    assert changed(model, before) == learned
    assert algorithm.model is model
    x = torch.randn(3, size)
    said = model.value(x, torch.zeros(3, 1)) if which == "sac" else (model.value(x),)
    for mine, theirs in zip(said, algorithm.view.value(x, torch.zeros(3, 1))):
        torch.testing.assert_close(mine.reshape(theirs.shape), theirs)


def test_the_target_is_a_copy_of_the_users_model():
    env = make("cartpole", num_envs=1)
    model = QNet()
    core = dqn_from_model(model, env.obs_spec, env.action_spec)
    with torch.no_grad():
        model.net.bias.add_(5.0)
    obs = {name: torch.zeros(1, 4) for name in env.obs_spec}
    now, target = (net.act(obs, {}, {})[0].values for net in (core.policy, core.target.network))
    torch.testing.assert_close(now, target + 5.0)


def test_wrong_models_are_named():
    env, pendulum = make("cartpole", num_envs=1), make("pendulum", num_envs=1)
    with pytest.raises(TypeError, match="Linear lacks the method value"):
        dqn_from_model(nn.Linear(4, 2), env.obs_spec, env.action_spec)
    with pytest.raises(ValueError, match=r"Net.value\(x\) wants \[2, 2\] for 2 rows, found \[2, 1\]"):
        dqn_from_model(Net(4, 2), env.obs_spec, env.action_spec)
    with pytest.raises(TypeError, match=r"Net.action\(x\) wants \(mean, log_std\), found Tensor"):
        sac_from_model(Net(3, 1), pendulum.obs_spec, pendulum.action_spec)
    with pytest.raises(ValueError, match=r"Net.action\(x\) wants \[2, 2\]"):
        ppo_from_model(Net(4, 3), env.obs_spec, env.action_spec)
    with pytest.raises(TypeError, match="DQN wants one discrete action"):
        dqn_from_model(QNet(), pendulum.obs_spec, pendulum.action_spec)

    class Shared(Net):
        def value(self, x: Tensor, a: Tensor | None = None) -> Any:
            return tuple(q(torch.cat([x, self.pi(x) + a], -1)) for q in self.q)

    with pytest.raises(ValueError, match=r"share .'pi.weight', 'pi.bias'"):
        sac_from_model(Shared(3, 1, box=True), pendulum.obs_spec, pendulum.action_spec)
