"""Every public method of a class that users derive from: an override is called by the loops, or cannot be defined."""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from test_base_policy import Counter, Fixed
from test_generator_agent import build
from torch import Tensor, nn

from striderl.algorithms.on_policy import ppo as core_ppo
from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.terms.term import Term
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.collect.collector import Collector as CoreCollector
from striderl.collect.collector import CollectorConfig
from striderl.collect.samplers.samplers import ResetCollector, SerialSampler, TrajInfo
from striderl.collect.teacher import Teacher
from striderl.compat import (
    PPO,
    Agent,
    Algorithm,
    AlgorithmPolicy,
    BasePolicy,
    Collector,
    DqnAgent,
    MinibatchRl,
    MinibatchRlEval,
    Model,
    PgAgent,
    SacAgent,
    Trainer,
    TrainerConfig,
    offpolicy_trainer,
    rlpyt,
)
from striderl.compat.rlpyt import logger_context
from striderl.data.batch import Batch
from striderl.envs.classic_control.pendulum import Pendulum, PendulumConfig
from striderl.envs.tasks import make
from striderl.policies import ActorCritic, ActorCriticRecurrent
from striderl.policies.actor_policy import ActorConfig
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.policy import Policy, PolicyConfig
from striderl.recording.actors import demonstrator
from striderl.storage.replay_buffer.buffer import ReplayBuffer
from striderl.storage.replay_buffer.kinds import PrioritizedReplayBuffer, VectorReplayBuffer
from striderl.training.agent import Agent as PolicyAgent
from striderl.training.callbacks.callback import NOTHING
from striderl.training.experiment.runner_config import RunnerConfig
from striderl.training.plans import OnPolicyPlan
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner
from striderl.training.trainer import Trainer as CoreTrainer

SMALL = PolicyConfig(actor_hidden_dims=(8,), critic_hidden_dims=(8,))
TINY = ActorConfig(hidden_dims=(8,))
N, T = 2, 4


# -- the loops: what a user's program does with an object of the class -------------------------------------------------


def hand_loop(model: Any, kind: type[PPO] = PPO) -> PPO:
    alg = kind(model, num_mini_batches=1, num_learning_epochs=1, clip_min_std=0.01)
    alg.init_storage(N, T, [4], [4], [2])
    alg.train_mode()
    for _ in range(2):
        for step in range(T):
            alg.act(torch.randn(N, 4), torch.randn(N, 4))
            alg.process_env_step(torch.ones(N), torch.tensor([step == 1, False]), {})
        alg.compute_returns(torch.randn(N, 4))
        alg.update()
    return alg


def ppo_loop(kind: Any) -> None:
    alg = hand_loop(ActorCritic(4, 4, 2, actor_hidden_dims=[8], critic_hidden_dims=[8]), kind)
    alg.eval_mode()
    alg.load_state_dict(alg.state_dict())
    assert alg.learning_rate > 0.0


def model_loop(kind: Any) -> None:
    recurrent = {"rnn_hidden_size": 5} if issubclass(kind, ActorCriticRecurrent) else {}
    model = kind(4, 4, 2, actor_hidden_dims=[8], critic_hidden_dims=[8], **recurrent)
    hand_loop(model).eval_mode()


def generator_loop(
    agent: Any = Agent, algorithm: Any = Algorithm, trainer: Any = Trainer, model: Any = None, which: str = "dqn"
) -> None:
    core, env = build(which)
    config = TrainerConfig(
        total_timesteps=40, learning_starts=8, num_steps=8, batch_size=4, eval_frequency=16, num_eval_episodes=1
    )
    made = algorithm(core, model=None if model is None else model(core))
    trained = trainer(agent(made), env, config, eval_env=build(which)[1])
    for number, _ in enumerate(trained()):
        if number == 10:
            with tempfile.TemporaryDirectory() as folder:
                trained.save(folder)
                trained.load(folder)


def rlpyt_loop(agent: Any, algo: Any, sampler: Any = SerialSampler, runner: Any = MinibatchRlEval, **more: Any) -> None:
    task = "cartpole" if isinstance(agent, (PgAgent, DqnAgent)) else "pendulum"
    made = sampler(
        make,
        {"task": task},
        T,
        N,
        max_decorrelation_steps=2,
        eval_n_envs=1,
        eval_max_trajectories=1,
        eval_max_steps=100,
        **more,
    )
    with tempfile.TemporaryDirectory() as folder, logger_context(folder, 0, "x", snapshot_mode="last"):
        runner(algo, agent, made, n_steps=32, log_interval_steps=16, seed=0).train()
    agent.load_state_dict(agent.state_dict())
    algo.load_optim_state_dict(algo.optim_state_dict())


def async_loop(agent: Any = None, sampler: Any = None, runner: Any = None) -> None:
    made = (sampler or rlpyt.AsyncSerialSampler)(
        make, {"task": "cartpole"}, T, N, max_decorrelation_steps=2, eval_n_envs=1, eval_max_steps=20
    )
    affinity = {"sampler": {}, "optimizer": [{}]}
    parts = rlpyt.DQN(**REPLAY), agent or DqnAgent(**Q), made
    with tempfile.TemporaryDirectory() as folder, logger_context(folder, 0, "x", snapshot_mode="last"):
        (runner or rlpyt.AsyncRlEval)(*parts, n_steps=800, affinity=affinity, log_interval_steps=400, seed=0).train()


REPLAY: dict[str, Any] = {"batch_size": 4, "min_steps_learn": 8, "replay_size": 64, "replay_ratio": 1.0}
REPLAY |= {"target_update_interval": 1}


def tianshou_loop(policy: Any = None, collector: Any = Collector, buffer: Any = None) -> None:
    policy = Fixed() if policy is None else policy
    buffer = ReplayBuffer(50) if buffer is None else buffer
    train, test = collector(policy, Counter(1), buffer), collector(policy, Counter(1))
    train.collect(n_step=8, random=True)
    train.reset_env()
    train.collect(n_step=4, whole_episodes=True)
    offpolicy_trainer(policy, train, test, 1, 4, 2, 1, 4, verbose=False)
    train.reset()
    train.close()


class Weighing(Fixed):
    """Two-step targets, and priorities where the buffer has them."""

    def process_fn(self, batch: Batch, buffer: ReplayBuffer, indices: Any) -> Batch:
        return self.compute_nstep_return(batch, buffer, indices, lambda buf, last: torch.zeros(len(last)), n_step=2)

    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, Any]:
        batch.weight = np.ones(len(batch.rew))
        return {"loss": 0.0}


def buffer_loop(kind: Any) -> None:
    if issubclass(kind, PrioritizedReplayBuffer):
        tianshou_loop(Weighing(), buffer=kind(50, 0.6, 0.4, stack_num=2))
    elif issubclass(kind, VectorReplayBuffer):
        buffer = kind(40, 2, stack_num=2)
        collector = Collector(Weighing(), Counter(2), buffer)
        for _ in range(2):
            collector.collect(n_step=12)
            collector.policy.update(4, buffer)
            collector.reset_env()
        collector.reset()
    else:
        tianshou_loop(Weighing(), buffer=kind(50, stack_num=2, ignore_obs_next=True))


def runner_loop(kind: Any) -> None:
    config = RunnerConfig(policy=SMALL, algorithm=PPOConfig(num_mini_batches=1), num_steps_per_env=T, save_interval=1)
    with tempfile.TemporaryDirectory() as folder:
        runner = kind(Pendulum(N, config=PendulumConfig(max_episode_length=4)), config, folder)
        runner.learn(2)
        runner.get_inference_policy()
        runner.close()


class Watching(Term):
    """A term that adds nothing."""

    @property
    def name(self) -> str:
        return "watching"


class Watcher:
    """A callback that only watches."""

    def on_iteration(self, record: Any, run: Any) -> Any:
        return NOTHING

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None: ...

    def close(self) -> None: ...


def core_loop(*, terms: Any = (), callbacks: Any = ()) -> None:
    env = make("cartpole", num_envs=N)
    policy = Policy(env.obs_spec, env.action_spec, SMALL)
    ppo = core_ppo.PPO(policy, PPOConfig(num_mini_batches=1), terms=terms)
    collector = CoreCollector(env, ppo.actor(), CollectorConfig(seed=0))
    trainer = CoreTrainer(
        ppo, collector, OnPolicyPlan(num_steps_per_env=T, total_iterations=2), callbacks=list(callbacks)
    )
    for _ in trainer:
        pass
    trainer.load_state_dict(trainer.state_dict())
    trainer.close()


def term_loop(kind: Any) -> None:
    core_loop(terms=[kind()])
    env = make("cartpole", num_envs=N)
    DQN(q_policy(env.obs_spec, env.action_spec, TINY), DQNConfig(), terms=[kind()])


class PiAndValue(nn.Module):
    """rlpyt's model of a policy."""

    def __init__(self, observation_shape: tuple[int, ...], output_size: int) -> None:
        super().__init__()
        self.pi, self.v = nn.Linear(*observation_shape, output_size), nn.Linear(*observation_shape, 1)

    def forward(self, observation: Tensor, prev_action: Tensor, prev_reward: Tensor) -> tuple[Tensor, ...]:
        return self.pi(observation).softmax(-1), self.v(observation).squeeze(-1)


class PiValueAndState(PiAndValue):
    """The same with a state that counts steps."""

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any, state: Any) -> tuple[Any, ...]:
        first = torch.zeros(1, observation.shape[-2], 1) if state is None else state.h
        next_state = rlpyt.RnnState(first + 1, first)
        return *super().forward(observation, prev_action, prev_reward), next_state


class QValues(PiAndValue):
    """rlpyt's model of Q-values."""

    def forward(self, observation: Tensor, prev_action: Tensor, prev_reward: Tensor) -> Tensor:
        return self.pi(observation)


class QValuesAndState(PiValueAndState):
    """The same with a state."""

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any, state: Any) -> tuple[Any, ...]:
        q, _, next_state = super().forward(observation, prev_action, prev_reward, state)
        return q, next_state


class AtomsOfQValues(nn.Module):
    """rlpyt's model of distributions of Q-values."""

    def __init__(self, observation_shape: tuple[int, ...], output_size: int, n_atoms: int) -> None:
        super().__init__()
        self.head = rlpyt.DistributionalHeadModel(observation_shape[0], [4], output_size, n_atoms)

    def forward(self, observation: Tensor, prev_action: Tensor, prev_reward: Tensor) -> Tensor:
        return self.head(observation).softmax(-1)


PG = {"ModelCls": PiAndValue}
Q = {"ModelCls": QValues}
AC = {"model_kwargs": {"hidden_sizes": [8]}, "q_model_kwargs": {"hidden_sizes": [8]}}
SEQUENCES = {"batch_T": 4, "batch_B": 2, "warmup_T": 4, "store_rnn_state_interval": 4, "n_step_return": 1}
SEQUENCES |= {"min_steps_learn": 24, "replay_size": 64, "target_update_interval": 1}
LOOPS: dict[type, Callable[[Any], Any]] = {
    PPO: ppo_loop,
    ActorCritic: model_loop,
    ActorCriticRecurrent: model_loop,
    Model: lambda kind: [generator_loop(model=kind, which=which) for which in ("dqn", "ppo")],
    Algorithm: lambda kind: generator_loop(algorithm=kind),
    Agent: lambda kind: generator_loop(agent=kind),
    Trainer: lambda kind: generator_loop(trainer=kind),
    DqnAgent: lambda kind: rlpyt_loop(kind(**Q), rlpyt.DQN(**REPLAY)),
    PgAgent: lambda kind: rlpyt_loop(kind(**PG), rlpyt.PPO()),
    rlpyt.RecurrentCategoricalPgAgent: lambda kind: rlpyt_loop(kind(PiValueAndState), rlpyt.A2C()),
    rlpyt.CatDqnAgent: lambda kind: rlpyt_loop(kind(ModelCls=AtomsOfQValues), rlpyt.CategoricalDQN(**REPLAY)),
    rlpyt.R2d1Agent: lambda kind: rlpyt_loop(kind(QValuesAndState), rlpyt.R2D1(**SEQUENCES)),
    SacAgent: lambda kind: rlpyt_loop(kind(**AC), rlpyt.SAC(**REPLAY)),
    rlpyt.Td3Agent: lambda kind: rlpyt_loop(kind(**AC), rlpyt.TD3(**REPLAY, policy_update_interval=1)),
    rlpyt.DdpgAgent: lambda kind: rlpyt_loop(kind(**AC), rlpyt.DDPG(**REPLAY)),
    rlpyt.DQN: lambda kind: rlpyt_loop(DqnAgent(**Q), kind(**REPLAY, prioritized_replay=True)),
    rlpyt.CategoricalDQN: lambda kind: rlpyt_loop(
        rlpyt.CatDqnAgent(ModelCls=AtomsOfQValues), kind(**REPLAY, prioritized_replay=True)
    ),
    rlpyt.R2D1: lambda kind: rlpyt_loop(rlpyt.R2d1Agent(QValuesAndState), kind(**SEQUENCES)),
    rlpyt.SAC: lambda kind: rlpyt_loop(SacAgent(**AC), kind(**REPLAY)),
    rlpyt.TD3: lambda kind: rlpyt_loop(rlpyt.Td3Agent(**AC), kind(**REPLAY, policy_update_interval=1)),
    rlpyt.DDPG: lambda kind: rlpyt_loop(rlpyt.DdpgAgent(**AC), kind(**REPLAY)),
    rlpyt.PPO: lambda kind: rlpyt_loop(PgAgent(**PG), kind()),
    rlpyt.A2C: lambda kind: rlpyt_loop(PgAgent(**PG), kind()),
    MinibatchRl: lambda kind: rlpyt_loop(PgAgent(**PG), rlpyt.PPO(), runner=kind),
    MinibatchRlEval: lambda kind: rlpyt_loop(PgAgent(**PG), rlpyt.PPO(), runner=kind),
    rlpyt.SacVAgent: lambda kind: rlpyt_loop(kind(**AC), rlpyt.SAC_V(**REPLAY)),
    rlpyt.SAC_V: lambda kind: rlpyt_loop(rlpyt.SacVAgent(**AC), kind(**REPLAY)),
    rlpyt.UniformReplayBuffer: lambda kind: rlpyt_loop(DqnAgent(**Q), rlpyt.DQN(**REPLAY, ReplayBufferCls=kind)),
    rlpyt.PrioritizedReplayBuffer: lambda kind: rlpyt_loop(
        DqnAgent(**Q), rlpyt.DQN(**REPLAY, prioritized_replay=True, ReplayBufferCls=kind)
    ),
    rlpyt.UniformSequenceReplayBuffer: lambda kind: rlpyt_loop(
        rlpyt.R2d1Agent(QValuesAndState), rlpyt.R2D1(**SEQUENCES, prioritized_replay=False, ReplayBufferCls=kind)
    ),
    rlpyt.AsyncRl: lambda kind: async_loop(runner=kind),
    rlpyt.AsyncRlEval: lambda kind: async_loop(runner=kind),
    rlpyt.AsyncSerialSampler: lambda kind: async_loop(sampler=kind),
    SerialSampler: lambda kind: rlpyt_loop(PgAgent(**PG), rlpyt.PPO(), sampler=kind),
    ResetCollector: lambda kind: rlpyt_loop(PgAgent(**PG), rlpyt.PPO(), CollectorCls=kind),
    TrajInfo: lambda kind: rlpyt_loop(PgAgent(**PG), rlpyt.PPO(), TrajInfoCls=kind),
    Fixed: lambda kind: tianshou_loop(kind()),
    AlgorithmPolicy: lambda kind: tianshou_loop(kind(DQN(q_policy(Counter(1).obs_spec, Counter(1).action_spec, TINY)))),
    Collector: lambda kind: tianshou_loop(collector=kind),
    ReplayBuffer: buffer_loop,
    VectorReplayBuffer: buffer_loop,
    PrioritizedReplayBuffer: buffer_loop,
    Batch: lambda kind: None,
    OnPolicyRunner: runner_loop,
    Watching: term_loop,
    Watcher: lambda kind: core_loop(callbacks=[kind()]),
}
SPECIAL = ("__call__", "__getitem__", "_run_collect", "_run_train", "_run_evaluate")
LOOKED_AT = {
    StatefulPolicy: """act_inference forward evaluate_actions get_encoder_latent get_estimated_state start
        embed_visual_latent act_with_embedded_latent load_misaligned_state_dict""",
    PPO: "collect_transition_from_dataset test_mode",
    OnPolicyRunner: """add_git_repo_to_log load current_learning_iteration tot_timesteps tot_time export_policy_to_jit
        export_policy_to_onnx""",
    ReplayBuffer: "save restore update extend export_rows update_weight with_rew",
    BasePolicy: "set_agent_id",  # of several agents
    PrioritizedReplayBuffer: "weight",
    Fixed: "compute_nstep_return compute_episodic_return",
    Collector: "seed render data",
    AlgorithmPolicy: "env_step",
    # called for an alternating sampler, by SyncRl and by AsyncRl: see the tests of them
    rlpyt.BaseAgent: """toggle_alt data_parallel async_cpu sync_shared_memory send_shared_memory recv_shared_memory
        sampling_agent""",
    rlpyt.RecurrentAgentMixin: "get_alt",
    rlpyt.RlAlgorithm: "async_initialize optim_initialize",  # of AsyncRl; optim_initialize of a replay by all
    SacAgent: "models parameters __call__",  # its algorithm calls pi, q and target_q, and their parameters
    rlpyt.SacVAgent: "models parameters __call__",
    rlpyt.UniformSequenceReplayBuffer: "set_batch_T",
    rlpyt.DdpgAgent: "parameters __call__ set_target_noise",
    Term: "in_surrogate memory",  # asked of terms that act, or change memory: see the test of them
}
"""What nothing but a user's program calls, in addition to what the loops above do: its override is its own business."""


def overridable(kind: type, looked_at: Mapping[type, str] = LOOKED_AT) -> list[str]:
    """Return the public methods and properties that a class and its bases in this library define."""
    ours = [base for base in kind.__mro__ if not base.__module__.startswith(("torch", "builtins", "abc", "typing"))]
    names = {
        name: None
        for base in ours
        for name, value in base.__dict__.items()
        if (not name.startswith("_") or name in SPECIAL)
        and (inspect.isfunction(value) or isinstance(value, (property, staticmethod, classmethod)))
    }
    skipped = {name for base in kind.__mro__ for name in looked_at.get(base, "").split()}
    return [name for name in names if name not in skipped]


def counting(kind: type, name: str, calls: dict[str, int]) -> Any:
    """Return the method or property of a class, with its calls counted."""
    static = inspect.getattr_static(kind, name)

    def counted(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return wrapper

    if isinstance(static, property):
        return property(counted(static.fget), static.fset)
    if isinstance(static, (staticmethod, classmethod)):
        return type(static)(counted(static.__func__))
    return counted(static)


def derive(kind: type, members: dict[str, Any]) -> type:
    """Derive from a class as a user's program does."""
    return type(f"Mine{kind.__name__}", (kind,), {**members, "__module__": "users_program"})


def silent_overrides(kind: type, names: list[str], loop: Callable[[Any], Any]) -> list[str]:
    """Return the methods whose override can be defined and is not called by the loop."""
    calls: dict[str, int] = {}
    members: dict[str, Any] = {}
    for name in names:
        member = counting(kind, name, calls)
        try:
            derive(kind, {name: member})
        except TypeError as refusal:
            assert "no effect" in str(refusal) and ";" in str(refusal), "says why, and what to do instead"
        else:
            calls[name], members[name] = 0, member
    if members:
        torch.manual_seed(0)
        loop(derive(kind, members))
    return [name for name, count in calls.items() if not count]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOOPS, ids=lambda kind: f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}")
def test_an_override_is_called_or_refused(kind: type) -> None:
    assert silent_overrides(kind, overridable(kind), LOOPS[kind]) == []


def test_a_silent_override_is_caught() -> None:
    class Silent:
        def used(self) -> None: ...

        def never_called(self) -> None: ...

    assert overridable(Silent) == ["used", "never_called"]
    assert silent_overrides(Silent, overridable(Silent), lambda kind: kind().used()) == ["never_called"]


# -- what an override does ---------------------------------------------------------------------------------------------


def scaled(kind: type, **settings: Any) -> Any:
    """Return a model of a class that derives from this one and puts a layer of its own before the actor."""

    class Scaled(kind):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__(4, 4, 2, actor_hidden_dims=[8], critic_hidden_dims=[8], **settings)
            self.extra = nn.Linear(4, 4)
            self.gain = nn.Parameter(torch.ones(()))
            self.acted = 0

        def act(self, observations: Any, *args: Any, **kwargs: Any) -> Any:
            self.acted += 1
            return super().act(self.gain * self.extra(observations), *args, **kwargs)

    torch.manual_seed(0)
    return Scaled()


@pytest.mark.parametrize(("kind", "settings"), [(ActorCritic, {}), (ActorCriticRecurrent, {"rnn_hidden_size": 5})])
def test_a_layer_of_a_users_actor_critic_is_learned(kind: type, settings: dict[str, Any]) -> None:
    model = scaled(kind, **settings)
    names = {"extra.weight", "extra.bias", "gain"}
    assert names <= set(model.state_dict()) and names <= {name for name, _ in model.named_parameters()}
    assert {id(each) for each in model.extra.parameters()} <= {id(each) for each in model.parameters()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    alg = PPO(model, num_mini_batches=1, num_learning_epochs=2)
    alg.init_storage(N, T, [4], [4], [2])
    for _ in range(2):
        for step in range(T):
            alg.act(torch.randn(N, 4))
            alg.process_env_step(torch.randn(N), torch.tensor([step == 1, False]), {})
        alg.compute_returns(torch.randn(N, 4))
        _, stats = alg.update()
        assert float(stats["first_ratio_error"]) < 1e-5  # what is learned from is what has acted
    assert model.acted == 2 * (T + 2)  # once a step, once a minibatch
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert names <= changed
    saved = alg.state_dict()["model_state_dict"]
    other = scaled(kind, **settings)
    with torch.no_grad():
        other.extra.weight.zero_()
    PPO(other, num_mini_batches=1).load_state_dict({"model_state_dict": saved})
    assert torch.equal(other.extra.weight, model.extra.weight)


@pytest.mark.parametrize("kind", [ActorCritic, ActorCriticRecurrent])
def test_an_override_that_changes_nothing_learns_the_same(kind: type) -> None:
    class Same(kind):  # type: ignore[misc, valid-type]
        def act(self, observations: Any, **kwargs: Any) -> Any:
            super().act(observations, **kwargs)
            return torch.full((len(observations), 2), 0.25)

        def evaluate(self, observations: Any, **kwargs: Any) -> Any:
            return super().evaluate(observations, **kwargs)

    more = {"rnn_hidden_size": 5} if kind is ActorCriticRecurrent else {}

    def learned(make: Any) -> tuple[Tensor, dict[str, Any]]:
        torch.manual_seed(0)
        model = make(4, 4, 2, actor_hidden_dims=[8], critic_hidden_dims=[8], **more)
        alg = PPO(model, num_mini_batches=1, num_learning_epochs=1)
        alg.init_storage(N, T, [4], [4], [2])
        for step in range(T):
            actions = alg.act(torch.full((N, 4), 0.1 * step))
            alg.process_env_step(torch.tensor([1.0, float(step)]), torch.tensor([step == 1, False]), {})
        alg.compute_returns(torch.zeros(N, 4))
        return actions, {"data": alg.storage.data, **alg.update()[1]}  # type: ignore[union-attr]

    _, plain = learned(kind)
    actions, routed = learned(Same)
    assert bool((actions == 0.25).all()), "what act returns is executed"
    for name in ("dist", "value"):
        ours, theirs = routed["data"]["policy"][name], plain["data"]["policy"][name]
        for one, two in zip(*(list(each.values()) if isinstance(each, dict) else [each] for each in (ours, theirs))):
            torch.testing.assert_close(one, two)
    assert float(routed["first_ratio_error"]) < 1e-5, "the log-probability is that of what was executed"


def test_losses_of_a_subclass_are_weighed_and_learned() -> None:
    class Mine(PPO):
        far_loss_coef = 3.0

        def compute_losses(self, minibatch: dict[str, Any]) -> Any:
            losses, inter_vars, stats = super().compute_losses(minibatch)
            mean = inter_vars["output"].distribution.mode()
            losses["far_loss"] = (mean - 5.0).square().mean()  # weighed by far_loss_coef
            losses["near_loss"] = (0.0, mean.square().mean())
            return losses, inter_vars, {**stats, "mean": mean.detach().mean()}

    torch.manual_seed(0)
    model = ActorCritic(4, 4, 2, actor_hidden_dims=[8], critic_hidden_dims=[8])
    alg = Mine(model, num_mini_batches=1, num_learning_epochs=20, learning_rate=0.01, schedule="fixed")
    alg.init_storage(N, T, [4], [4], [2])
    for _ in range(3):
        for _ in range(T):
            alg.act(torch.ones(N, 4))
            alg.process_env_step(torch.zeros(N), torch.zeros(N), {})
        alg.compute_returns(torch.ones(N, 4))
        losses, stats = alg.update()
    assert {"far_loss", "near_loss", "surrogate_loss"} <= set(losses) and float(stats["mean"]) > 1.0
    weighed = alg.learner.compute_losses(next(iter_minibatch(alg)))[0]
    assert weighed["far_loss"][0] == 3.0 and weighed["near_loss"][0] == 0.0


def iter_minibatch(alg: PPO) -> Any:
    for _ in range(T):
        alg.act(torch.ones(N, 4))
        alg.process_env_step(torch.zeros(N), torch.zeros(N), {})
    alg.compute_returns(torch.ones(N, 4))
    return iter(alg.learner.minibatches(alg._prepared, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("which", ["dqn", "ppo"])
def test_what_an_agents_sample_returns_is_executed_and_stored(which: str) -> None:
    class Always(Agent):
        def sample(self, obs: Any) -> Any:
            return np.ones(len(obs), np.int64)

    core, env = build(which)
    trainer = Trainer(Always(Algorithm(core)), env, TrainerConfig(total_timesteps=16, num_steps=8, batch_size=4))
    for _ in range(8):
        trainer._run_collect()
    stored = trainer.buffer.sample(64).data if which == "dqn" else trainer.buffer.data
    assert bool((stored["act"] == 1).all())
    if which == "ppo":
        policy = stored["policy"]
        torch.testing.assert_close(policy["log_prob"], policy["dist"]["log_probs"][..., 1])


def test_an_algorithms_predict_decides_what_is_played() -> None:
    class Second(Algorithm):
        def predict(self, obs: Any) -> Tensor:
            return torch.tensor([0.0, 1.0]).expand(len(obs), 2)

    class Wrong(Algorithm):
        def predict(self, obs: Any) -> str:
            return "left"

    core, _ = build("dqn")
    agent = Agent(Second(core))
    assert agent.predict(np.random.default_rng(0).normal(size=(50, 4))).tolist() == [1] * 50
    core, _ = build("dqn")
    with pytest.raises(TypeError, match=r"Wrong.predict must return Q-values \[B, n\] or a distribution, found str"):
        Agent(Wrong(core)).predict(np.zeros((1, 4)))


def test_refusals_name_the_method_and_the_way() -> None:
    with pytest.raises(TypeError, match=r"MineAlgorithm.sync_target would have no effect: .*override learn"):
        derive(Algorithm, {"sync_target": lambda self: None})
    with pytest.raises(TypeError, match=r"MineActorCritic.update_distribution would have no effect: .*override act"):
        derive(ActorCritic, {"update_distribution": lambda self, obs: None})
    with pytest.raises(TypeError, match=r"MineFixed.exploration_noise would have no effect"):
        derive(Fixed, {"exploration_noise": lambda self, act, batch: act})
    with pytest.raises(TypeError, match=r"MineBatch cannot derive from Batch"):
        derive(Batch, {})
    for name, text in (("in_surrogate", "acting.. stores"), ("memory", "changes_memory = True")):
        with pytest.raises(TypeError, match=rf"MineWatching.{name} would have no effect: .*{text}"):
            core_loop(terms=[derive(Watching, {name: lambda *args: None})()])


def test_attributes_that_nothing_would_read_cannot_be_set() -> None:
    model = ActorCritic(4, 4, 2)
    alg = PPO(model)
    core, env = build("dqn")
    agent = Agent(Algorithm(core))
    trainer = Trainer(agent, env, TrainerConfig())
    collector = Collector(Fixed(), Counter(1), ReplayBuffer(5))
    for owner, name in [
        (alg, "gamma"), (alg, "clip_param"), (alg, "entropy_coef"), (alg, "policy"), (alg, "actor_critic"),
        (agent, "alg"), (agent.alg, "core"), (trainer, "config"), (trainer, "agent"),
        (collector, "policy"), (collector, "buffer"),
        (AlgorithmPolicy(core), "algorithm"),
    ]:  # fmt: skip
        with pytest.raises(AttributeError, match=rf"setting \w+.{name} would have no effect: it is fixed when"):
            setattr(owner, name, 0)
    for name, value, text in [
        ("actor", nn.Linear(1, 1), "is a part of model.policy"),
        ("policy", model.policy, "is built already"),
        ("std", torch.ones(2), "standard deviation is in model.policy.head"),
    ]:
        with pytest.raises(AttributeError, match=text):
            setattr(model, name, value)
    model.extra = nn.Linear(2, 2)
    model.extra = nn.Linear(3, 3)
    assert model.state_dict()["extra.weight"].shape == (3, 3)
    del model.extra
    assert "extra.weight" not in model.state_dict()

    class Early(ActorCritic):
        def __init__(self) -> None:
            self.extra = nn.Linear(1, 1)
            super().__init__(4, 4, 2)

    with pytest.raises(AttributeError, match=r"call Early's super\(\).__init__\(\) before setting the module 'extra'"):
        Early()


def test_act_inference_of_a_subclass_is_played_or_refused() -> None:
    class Mine(ActorCritic):
        def act_inference(self, observations: Any, critic_observations: Any = None) -> Any:
            return torch.full((len(observations), 1), 0.5)

    env = make("pendulum", num_envs=2)
    model = Mine(3, 3, 1)
    with pytest.raises(TypeError, match=r"Mine.act_inference would have no effect here"):
        PolicyAgent(model)
    actor = demonstrator(model, env, use_critic_obs=False, sample=False)
    assert actor.act(env.reset(), (), {}).actions.tolist() == [[0.5], [0.5]]
    with pytest.raises(TypeError, match="no effect here"):
        Teacher(model)
