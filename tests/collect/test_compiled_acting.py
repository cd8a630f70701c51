"""Acting as a program, where gradient steps are compiled: the rollout is the eager one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.collect import graphed_rollout as compiled_acting
from striderl.collect.actors.base import RandomActor
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.envs.classic_control import CartPole, Pendulum
from striderl.execution.modes import Compiled, Eager, Graphed
from striderl.execution.traced import PureFunction
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import Remember
from striderl.storage.rollout import RolloutStorage


@pytest.fixture(autouse=True)
def not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run graphs operation by operation: what is tested is that acting becomes one, not the compiler."""

    def function(what: str, act: Any, switch: Any = None, strict: bool = False) -> PureFunction:
        return PureFunction(what, act, lambda graph, inputs: graph, switch, strict=strict)

    monkeypatch.setattr(compiled_acting, "PureFunction", function)


class Counted(PolicyActor):
    """A policy as an actor that counts how often Python acted."""

    num_acted = 0

    def act(self, obs: Any, state: Any, noise: Any) -> Any:
        self.num_acted += 1
        return super().act(obs, state, noise)


def rollout(env: Any, stages: tuple[Any, ...], mode: Any) -> tuple[RolloutStorage, Counted, Collector]:
    torch.manual_seed(0)
    config = PolicyConfig(actor=stages, critic=stages, actor_hidden_dims=(8,), critic_hidden_dims=(8,))
    actor = Counted(Policy(env.obs_spec, env.action_spec, config))
    collector = Collector(env, actor)
    storage = RolloutStorage(collector.columns(), 40, env.num_envs)
    collector.mode = mode
    for _ in range(2):
        storage.clear()
        collector.collect(n_step=40 * env.num_envs, storage=storage)
        with torch.no_grad():  # as an update does: in place
            for parameter in actor.policy.parameters():
                parameter.mul_(1.01)
    return storage, actor, collector


@pytest.mark.slow
@pytest.mark.parametrize("stages", [(), (Remember(type="lstm", hidden_size=4),)], ids=["plain", "memory"])
@pytest.mark.parametrize("make", [lambda: CartPole(3), lambda: Pendulum(3)], ids=["discrete", "continuous"])
def test_a_program_collects_the_same(make: Any, stages: tuple[Any, ...]) -> None:
    found, actor, _ = rollout(make(), stages, Compiled())
    wanted, python, _ = rollout(make(), stages, Eager())
    assert python.num_acted == 80 and actor.num_acted == 8
    # once for the form of what it says, once traced, and compared after 2, 4, … 64 runs
    for dtype, block in wanted.arena.blocks.items():
        torch.testing.assert_close(found.arena.blocks[dtype], block, rtol=1e-6, atol=1e-6)


def test_a_saved_collector_goes_on_bit_for_bit() -> None:
    env = CartPole(3)
    _, actor, collector = rollout(env, (), Compiled())
    state = collector.state_dict()
    storages = []
    for again in (collector, Collector(CartPole(3), actor)):
        again.mode = Compiled()
        again.load_state_dict(state)
        storages.append(RolloutStorage(again.columns(), 10, 3))
        again.collect(n_step=30, storage=storages[-1])
    for dtype, block in storages[0].arena.blocks.items():
        assert torch.equal(storages[1].arena.blocks[dtype], block)


def test_a_schedule_goes_on_in_a_program() -> None:
    env = CartPole(4)
    algorithm = DQN(q_policy(env.obs_spec, env.action_spec), DQNConfig())
    collector = Collector(env, algorithm.actor())
    collector.mode = Compiled()
    collector.reset()
    (group,) = collector.groups

    def actions(env_steps: int, random: bool) -> Tensor:
        algorithm.explore(env_steps, random=random)
        with torch.no_grad():
            found = group.compiled(group.obs, group.state, group.noise.at(0)).actions
            assert torch.equal(found, group.actor.act(group.obs, group.state, group.noise.at(0)).actions)
        return found

    # all at random, ε = 1 at first and 0.05 at the end: the same noise leads to other actions
    seen = {tuple(actions(env_steps, random).tolist()) for env_steps, random in [(0, True), (0, False), (10**6, False)]}
    assert len(seen) > 1


@pytest.mark.parametrize("mode", [Eager(), Graphed(), Compiled(backend="aot_eager")])
def test_other_modes_act_as_it_is_written(mode: Any) -> None:
    env = CartPole(2)
    collector = Collector(env, RandomActor(env.action_spec))
    for actor in (collector.actor, PolicyActor(Policy(env.obs_spec, env.action_spec, PolicyConfig()))):
        assert compiled_acting.compiled_acting(actor, mode, env.device) is None
    assert compiled_acting.compiled_acting(collector.actor, Compiled(), env.device) is None  # it cannot be recorded


def test_a_group_that_is_there_takes_the_mode() -> None:
    env = CartPole(2)
    collector = Collector(env, PolicyActor(Policy(env.obs_spec, env.action_spec, PolicyConfig())))
    collector.reset()
    assert collector.groups[0].compiled is None
    collector.mode = Compiled()
    assert collector.groups[0].compiled is not None
    collector.mode = Eager()
    assert collector.groups[0].compiled is None
