"""Short seeded trainings whose every bit is kept: what each case trains, and the tensors it has after each update.

    case(scratch) ─▶ yields {name: tensor} after each of 20 updates

Every setting that matters is written out here, so that a changed default moves nothing. A case may be rewritten for a
new interface; its numbers stay. `python tests/fingerprints/fingerprint.py` compares them with the kept ones. The fakes
and configs of older libraries are those of their own tests.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import runner_configs
import test_amp_runner
import torch
import two_stage_cases
from rsl_rl_fakes import GroupsFake, IsaacLabTwoFake, LeggedGymFake, PlaygroundFake
from torch import Tensor, nn

from striderl.algorithms.actor_critic.crossq import CrossQConfig, crossq
from striderl.algorithms.actor_critic.sac import SAC, SACConfig
from striderl.algorithms.actor_critic.td3 import TD3, TD3Config
from striderl.algorithms.offline.iql import IQL, IQLConfig
from striderl.algorithms.on_policy.a2c import A2C, A2CConfig
from striderl.algorithms.on_policy.appo import APPO, APPOConfig
from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.on_policy.tppo import TPPO, TPPOConfig
from striderl.algorithms.terms.adversarial import AdversarialConfig, AdversarialReward
from striderl.algorithms.terms.discriminator import StateAction
from striderl.algorithms.terms.distill import Distill, DistillConfig
from striderl.algorithms.terms.estimation import Estimation
from striderl.algorithms.terms.expert import ExpertRows
from striderl.algorithms.terms.mimic import Mimic, MimicConfig
from striderl.algorithms.terms.motion_prior import MotionPrior, MotionPriorConfig
from striderl.algorithms.terms.rnd import RandomNetworkDistillation, RNDConfig
from striderl.algorithms.terms.symmetry import MirrorTable, Symmetry
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, Means, q_policy
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.samplers.samplers import SerialSampler
from striderl.collect.teacher import Teacher
from striderl.compat.generator.agent import Agent, Algorithm
from striderl.compat.generator.trainer import Trainer as GeneratorTrainer
from striderl.compat.generator.trainer import TrainerConfig
from striderl.compat.rlpyt import PPO as RLPYT_PPO
from striderl.compat.rlpyt import MinibatchRl, PgAgent
from striderl.compat.st_rl.ppo import PPO as LOOP_PPO
from striderl.compat.tianshou.algorithm_policy import AlgorithmPolicy
from striderl.compat.tianshou.collector import Collector as TianshouCollector
from striderl.compat.tianshou.trainers import offpolicy_trainer
from striderl.compat.user_models import dqn_from_model
from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.datasets.offline import replay_of
from striderl.envs.classic_control import CartPole, Pendulum
from striderl.envs.tasks import make
from striderl.envs.toy.base import ToyEnv, ToyOutcome
from striderl.envs.vec_env import VecEnv
from striderl.ops.ramps import Ramp
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.estimate import Estimate
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.presets.base import ActorCritic
from striderl.policies.stages import NormalizeObs, Remember
from striderl.policies.value_functions import QFunction, QFunctionConfig, ValueFunction
from striderl.storage.replay_buffer.kinds import VectorReplayBuffer
from striderl.training.plans import OffPolicyPlan, OnPolicyPlan
from striderl.training.rsl_rl.on_policy_runner import AmpPolicyRunner, OnPolicyRunner
from striderl.training.rsl_rl.two_stage_runner import TwoStageRunner
from striderl.training.trainer import Trainer

UPDATES = 20

State = Mapping[str, Tensor]
Case = Callable[[Path], Iterator[State]]

CASES: dict[str, dict[str, Case]] = {}
"""Family → name → case. The families are run one after the other, each in a process of its own."""

PPO_SETTINGS: dict[str, Any] = {
    "num_learning_epochs": 2,
    "num_mini_batches": 2,
    "clip_param": 0.2,
    "gamma": 0.99,
    "lam": 0.95,
    "value_loss_coef": 1.0,
    "use_clipped_value_loss": True,
    "entropy_coef": 0.01,
    "learning_rate": 1e-3,
    "max_grad_norm": 1.0,
    "schedule": "adaptive",
    "desired_kl": 0.01,
}


def case(family: str) -> Callable[[Case], Case]:
    """Add a function to the cases of a family, under its own name."""

    def add(function: Case) -> Case:
        CASES.setdefault(family, {})[function.__name__] = function
        return function

    return add


# -- on policy ---------------------------------------------------------------------------------------------------------


def trained(trainer: Any, *others: nn.Module, updates: int = UPDATES) -> Iterator[State]:
    """Train for so many iterations; yield the policy's tensors and those of other networks."""
    for _ in range(updates):
        next(trainer)
        found = dict(trainer.algorithm.policy.state_dict())
        for number, other in enumerate(others):
            found |= {f"other{number}.{name}": value for name, value in other.state_dict().items()}
        yield found


def on_policy(algorithm: Any, env: VecEnv, *others: nn.Module, num_steps: int = 8) -> Iterator[State]:
    plan = OnPolicyPlan(num_steps_per_env=num_steps, total_iterations=UPDATES)
    trainer = Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=3)), plan, seed=3)
    return trained(trainer, *others)


def small_policy(env: VecEnv, *stages: Any, **settings: Any) -> Policy:
    config: dict[str, Any] = {
        "actor": stages,
        "critic": stages,
        "actor_hidden_dims": (16,),
        "critic_hidden_dims": (16,),
    }
    return Policy(env.obs_spec, env.action_spec, PolicyConfig(**{**config, **settings}))


@case("on policy")
def ppo(scratch: Path) -> Iterator[State]:
    env = CartPole(4)
    return on_policy(PPO(small_policy(env, NormalizeObs()), PPOConfig(**PPO_SETTINGS)), env)


@case("on policy")
def ppo_gru(scratch: Path) -> Iterator[State]:
    env = Pendulum(4)
    policy = small_policy(env, NormalizeObs(), Remember(type="gru", hidden_size=6))
    return on_policy(PPO(policy, PPOConfig(**PPO_SETTINGS)), env)


@case("on policy")
def a2c(scratch: Path) -> Iterator[State]:
    env = CartPole(4)
    config = A2CConfig(learning_rate=7e-4, gamma=0.99, lam=1.0, entropy_coef=0.01)
    return on_policy(A2C(small_policy(env), config), env)


class Drifting(ToyEnv):
    """A point that is pushed about, with a component for every term.

    'place' and 'speed' are what a policy sees, 'speed' is what it estimates, 'goal' is for critics and teachers,
    'motion' for motion priors; info has the reference of each step.
    """

    def __init__(self, num_envs: int = 4, limit: int = 9) -> None:
        parts = {
            "place": ComponentSpec(shape=(2,)),
            "speed": ComponentSpec(shape=(2,)),
            "goal": ComponentSpec(shape=(2,), group="critic"),
            "motion": ComponentSpec(shape=(2,), group="motion"),
        }
        super().__init__(
            num_envs,
            "cpu",
            obs_spec=ObsSpec(parts),
            action_spec=BoxSpec(shape=(2,), low=-1.0, high=1.0),
            max_episode_length=0,
            first_env_index=0,
            num_words=5,
            info_spec={"ref_motion": TensorSpec(shape=(2,))},
        )
        self.limit, self.step_dt = limit, 0.02

    def _start(self, words: Tensor) -> dict[str, Tensor]:
        numbers = words[:, :4].float() / 2**32 * 2.0 - 1.0
        place, goal = numbers[:, :2], numbers[:, 2:]
        return {"place": place, "goal": goal, "age": words[:, 4] % self.limit, "stride": torch.zeros_like(place)}

    def _advance(self, state: dict[str, Tensor], actions: Any) -> ToyOutcome:
        stride = 0.5 * state["stride"] + 0.25 * actions.clamp(-1.0, 1.0)
        place, age = state["place"] + stride, state["age"] + 1
        moved = {"place": place, "goal": state["goal"], "age": age, "stride": stride}
        reward = 1.0 - (place - state["goal"]).square().sum(dim=-1)
        info = {"ref_motion": state["place"] + 0.1}
        return ToyOutcome(moved, reward, place[:, 0] < -1.5, age >= self.limit, info)

    def _observe(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            "place": state["place"].clone(),
            "speed": 5.0 * state["stride"],
            "goal": state["goal"].clone(),
            "motion": state["place"].clone(),
        }


def expert_windows(count: int = 64, frames: int = 2) -> Tensor:
    """Windows [count, 2 · frames] of a point that goes 0.1 a step."""
    start = torch.rand(count, 1, 2, generator=torch.Generator().manual_seed(5)) * 2.0 - 1.0
    return (start + torch.arange(frames).view(1, -1, 1) * 0.1).flatten(1)


def goal_teacher(env: VecEnv) -> Teacher:
    """A teacher with random weights that sees place and goal."""
    torch.manual_seed(9)
    seen = ("place", "goal")
    settings: dict[str, Any] = {"actor_obs": seen, "critic_obs": seen, "head_settings": {"init_std": 0.1}}
    return Teacher(small_policy(env, **settings))


def prior_config() -> MotionPriorConfig:
    return MotionPriorConfig(hidden_dims=(8,), learning_rate=1e-3, replay_size=64)


def seen_policy(env: VecEnv, *stages: Any) -> Policy:
    torch.manual_seed(0)
    return small_policy(
        env, actor=stages, critic=(), actor_obs=("place", "speed"), critic_obs=("place", "speed", "goal")
    )


@case("on policy")
def ppo_all_terms(scratch: Path) -> Iterator[State]:
    env = Drifting()
    estimate = Estimate(
        obs_components=("place",), target_components=("speed",), hidden_sizes=(5,), replace_state_prob=0.5
    )
    policy = seen_policy(env, estimate)
    torch.manual_seed(1)
    swapped = MirrorTable([1, 0])
    prior = MotionPrior(env.obs_spec, expert_windows(), prior_config())
    rnd = RandomNetworkDistillation(
        env.obs_spec,
        env.num_envs,
        RNDConfig(
            predictor_hidden_dims=(6,), target_hidden_dims=(6,), num_outputs=3, obs_components=("place", "speed")
        ),
    )
    mirrored = {name: swapped for name in ("place", "speed", "goal", "motion")}
    terms = [
        Estimation(),
        rnd,
        Mimic(obs_spec=env.obs_spec, config=MimicConfig(weight=0.5)),
        prior,
        Distill(goal_teacher(env), DistillConfig(weight=0.5, teacher_act_prob=0.25, update_times_scale=100.0)),
        Symmetry(mirror_obs=mirrored, mirror_act=swapped, augment=True, mirror_loss_weight=0.1),
    ]
    networks = [rnd.networks, prior.judge]
    return on_policy(PPO(policy, PPOConfig(**PPO_SETTINGS), terms), env, *networks)


@case("on policy")
def ppo_adversarial(scratch: Path) -> Iterator[State]:
    env = Drifting()
    policy = seen_policy(env)
    torch.manual_seed(1)
    expert = ExpertRows(torch.rand(64, 4, generator=torch.Generator().manual_seed(6)), num_ends=64)
    term = AdversarialReward(
        StateAction(env.obs_spec.select(("place",)), env.action_spec),
        expert,
        AdversarialConfig(hidden_dims=(8,), learning_rate=1e-3, task_weight=1.0, style_weight=0.5),
    )
    return on_policy(PPO(policy, PPOConfig(**PPO_SETTINGS), [term]), env, term.judge)


@case("on policy")
def tppo(scratch: Path) -> Iterator[State]:
    env = Drifting()
    policy = seen_policy(env, Remember(type="gru", hidden_size=6))
    config = TPPOConfig(ppo=PPOConfig(**PPO_SETTINGS), teacher_act_prob="exp", update_times_scale=10.0)
    return on_policy(TPPO(policy, goal_teacher(env), config), env)


@case("on policy")
def tppo_without_ppo(scratch: Path) -> Iterator[State]:
    env = Drifting()
    names = ("num_learning_epochs", "num_mini_batches", "learning_rate", "max_grad_norm")
    settings = {name: PPO_SETTINGS[name] for name in names}
    config = TPPOConfig(ppo=PPOConfig(**settings), using_ppo=False, buffer_dilation_ratio=2.0, teacher_act_prob=0.5)
    return on_policy(TPPO(seen_policy(env), goal_teacher(env), config), env)


@case("on policy")
def appo(scratch: Path) -> Iterator[State]:
    env = Drifting()
    policy = seen_policy(env)
    torch.manual_seed(7)
    algorithm = APPO(policy, expert_windows(), APPOConfig(ppo=PPOConfig(**PPO_SETTINGS), prior=prior_config()))
    prior = next(term for term in algorithm.terms if isinstance(term, MotionPrior))
    return on_policy(algorithm, env, prior.judge)


# -- from replay -------------------------------------------------------------------------------------------------------


def from_replay(algorithm: Any, env: VecEnv, *others: nn.Module) -> Iterator[State]:
    plan = OffPolicyPlan(
        num_steps_per_env=2, batch_size=16, learning_starts=32, buffer_size=256, total_iterations=UPDATES
    )
    trainer = Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=3)), plan, seed=3)
    return trained(trainer, *others)


def dqn_of(env: VecEnv, **changes: Any) -> DQN:
    config: dict[str, Any] = {
        "gamma": 0.99,
        "learning_rate": 1e-3,
        "target_every": 5,
        "double": True,
        "n_step": 1,
        "prioritized": False,
        "epsilon": Ramp(start=1.0, end=0.1, num_steps=100),
    }
    kind = Means()
    network = q_policy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(16,)), kind)
    return DQN(network, DQNConfig(**{**config, **changes}), kind)


@case("replay")
def dqn(scratch: Path) -> Iterator[State]:
    env = CartPole(4)
    return from_replay(dqn_of(env), env)


@case("replay")
def dqn_prioritized(scratch: Path) -> Iterator[State]:
    env = CartPole(4)
    return from_replay(dqn_of(env, prioritized=True, n_step=3), env)


def actor_of(env: VecEnv, head: str) -> ActorPolicy:
    return ActorPolicy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(16,), head=head))


def critic_of(env: VecEnv) -> QFunction:
    return QFunction(env.obs_spec, env.action_spec, QFunctionConfig(hidden_dims=(16,)))


@case("replay")
def sac(scratch: Path) -> Iterator[State]:
    env = Pendulum(4)
    policy, critic = actor_of(env, "squashed_gaussian"), critic_of(env)
    config = SACConfig(
        gamma=0.99,
        tau=0.05,
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        temperature_learning_rate=1e-3,
        init_temperature=0.2,
        learn_temperature=True,
    )
    return from_replay(SAC(policy, critic, config), env, critic)


@case("replay")
def td3(scratch: Path) -> Iterator[State]:
    env = Pendulum(4)
    policy, critic = actor_of(env, "deterministic"), critic_of(env)
    config = TD3Config(
        gamma=0.99,
        tau=0.05,
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        actor_every=2,
        smoothing_std=0.2,
    )
    return from_replay(TD3(policy, critic, config), env, critic)


@case("replay")
def crossq_pendulum(scratch: Path) -> Iterator[State]:
    env = Pendulum(4)
    config = CrossQConfig(gamma=0.99, learning_rate=1e-3, actor_every=3, init_temperature=0.2, learn_temperature=True)
    parts: dict[str, Any] = {
        "actor": ActorConfig(hidden_dims=(16,), head="squashed_gaussian"),
        "critic": QFunctionConfig(hidden_dims=(16,)),
    }
    algorithm = crossq(env.obs_spec, env.action_spec, config=config, **parts)
    return from_replay(algorithm, env, algorithm.critic)


@case("replay")
def iql(scratch: Path) -> Iterator[State]:
    obs, action = ObsSpec.from_flat(2), BoxSpec(shape=(1,), low=-1.0, high=1.0)
    generator = torch.Generator().manual_seed(4)
    shown, act = (torch.rand(1, 128, size, generator=generator) * 2 - 1 for size in (2, 1))
    after = torch.rand(1, 128, 2, generator=generator) * 2 - 1
    ended = torch.rand(1, 128, generator=generator) < 0.3
    steps = {
        "obs": {"obs": shown},
        "act": act,
        "rew": shown[..., 0] * act[..., 0],
        "terminated": ended,
        "truncated": ~ended,
        "valid": torch.ones(1, 128, dtype=torch.bool),
        "obs_next": {"obs": after},
    }
    settings: dict[str, Any] = {"hidden_dims": (16,)}
    policy = ActorPolicy(obs, action, ActorConfig(**settings, head="gaussian"))
    critic, value = QFunction(obs, action, QFunctionConfig(**settings)), ValueFunction(obs, QFunctionConfig(**settings))
    config = IQLConfig(gamma=0.9, tau=0.05, learning_rate=1e-3, expectile=0.7, temperature=3.0)
    algorithm = IQL(policy, critic, value, config)
    replay = replay_of(steps, obs, action, sampler=algorithm.sampler(3), view=algorithm.view())
    for _ in range(UPDATES):
        sample = replay.sample(16)
        algorithm.update(sample.data, sample.weight, {})
        modules = {"policy": policy, "critic": critic, "value": value}
        yield {f"{at}.{name}": t for at, module in modules.items() for name, t in module.state_dict().items()}


# -- runners -----------------------------------------------------------------------------------------------------------


def runner_case(env: Any, config: dict[str, Any]) -> Iterator[State]:
    config.get("runner", config)["mode"] = "eager"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        runner = OnPolicyRunner(env, config)
        for _ in range(UPDATES):
            runner.learn(1)
            yield runner.alg.policy.state_dict()


@case("runners")
def legged_gym(scratch: Path) -> Iterator[State]:
    return runner_case(LeggedGymFake(num_envs=4), runner_configs.legged_gym())


@case("runners")
def isaac_lab_two(scratch: Path) -> Iterator[State]:
    return runner_case(IsaacLabTwoFake(num_envs=4, time_outs="float"), runner_configs.isaac_lab_two())


@case("runners")
def isaac_lab_three(scratch: Path) -> Iterator[State]:
    return runner_case(GroupsFake(num_envs=4, container="tensordict"), runner_configs.isaac_lab_three())


@case("runners")
def rsl_rl_four(scratch: Path) -> Iterator[State]:
    env = GroupsFake(num_envs=4, acting_group="actor", time_outs="absent")
    return runner_case(env, runner_configs.rsl_rl_four("actor"))


@case("runners")
def mjlab(scratch: Path) -> Iterator[State]:
    return runner_case(GroupsFake(num_envs=4, acting_group="actor"), runner_configs.mjlab("actor"))


@case("runners")
def playground(scratch: Path) -> Iterator[State]:
    config = runner_configs.isaac_lab_three("state")
    config["obs_groups"] = {"policy": ["state"], "critic": ["privileged_state"]}
    return runner_case(PlaygroundFake(num_envs=4), config)


@case("runners")
def st_rl(scratch: Path) -> Iterator[State]:
    return runner_case(LeggedGymFake(num_envs=4), {**runner_configs.st_rl(), "seed": 5})


@case("runners")
def st_rl_amp(scratch: Path) -> Iterator[State]:
    config = test_amp_runner.config(algorithm={"ppo": dict(PPO_SETTINGS)}, mode="eager")
    runner = AmpPolicyRunner(test_amp_runner.StRlEnv(), config)
    for _ in range(UPDATES):
        runner.learn(1)
        yield {
            **runner.alg.policy.state_dict(),
            **{f"judge.{n}": t for n, t in runner.prior.judge.state_dict().items()},
        }


@case("runners")
def st_rl_two_stage(scratch: Path) -> Iterator[State]:
    two_stage_cases.record(scratch / "demos", 24)
    config = two_stage_cases.config(
        scratch / "demos", pretrain_iterations=10, algorithm={"ppo": dict(PPO_SETTINGS)}, mode="eager"
    )
    runner = TwoStageRunner(two_stage_cases.Follow(8), config)
    for _ in range(UPDATES):
        runner.learn(1)
        yield runner.alg.policy.state_dict()


# -- facades -----------------------------------------------------------------------------------------------------------


class PiModel(nn.Module):
    """Probabilities and a value, as rlpyt's categorical models give them."""

    def __init__(self, observation_shape: tuple[int, ...], output_size: int) -> None:
        super().__init__()
        self.pi, self.v = nn.Linear(observation_shape[0], output_size), nn.Linear(observation_shape[0], 1)

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any) -> tuple[Tensor, ...]:
        return self.pi(observation).softmax(-1), self.v(observation).squeeze(-1)


@case("facades")
def rlpyt(scratch: Path) -> Iterator[State]:
    sampler = SerialSampler(
        EnvCls=make, env_kwargs={"task": "cartpole"}, batch_T=8, batch_B=4, max_decorrelation_steps=0
    )
    agent = PgAgent(ModelCls=PiModel)
    found: list[State] = []

    class Kept(RLPYT_PPO):
        def optimize_agent(self, *arguments: Any, **named: Any) -> Any:
            result = super().optimize_agent(*arguments, **named)
            found.append({name: value.clone() for name, value in agent.model.state_dict().items()})
            return result

    MinibatchRl(
        algo=Kept(epochs=2, minibatches=2, ratio_clip=0.2, gae_lambda=0.95),
        agent=agent,
        sampler=sampler,
        n_steps=UPDATES * 32,
        seed=3,
        log_interval_steps=320,
    ).train()
    yield from found[:UPDATES]


class QModel(nn.Module):
    """One Q-value per action."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def value(self, x: Tensor, a: Tensor | None = None) -> Tensor:
        return self.net(x)


def model_dqn(model: nn.Module) -> Any:
    config = DQNConfig(
        n_step=2, gamma=0.98, learning_rate=2e-3, target_every=5, epsilon=Ramp(start=1.0, end=0.1, num_steps=200)
    )
    low = torch.tensor([-4.8, -3.4e38, -0.42, -3.4e38])
    spec = ObsSpec({"obs": ComponentSpec(shape=(int(low.shape[0]),))})
    return dqn_from_model(model, spec, DiscreteSpec(n=2), config)


@case("facades")
def generator(scratch: Path) -> Iterator[State]:
    model, env = QModel(), make("cartpole", num_envs=4)
    config = DQNConfig(
        n_step=2, gamma=0.98, learning_rate=2e-3, target_every=5, epsilon=Ramp(start=1.0, end=0.1, num_steps=200)
    )
    algorithm = Algorithm(dqn_from_model(model, env.obs_spec, env.action_spec, config), model=model)
    settings = TrainerConfig(total_timesteps=10_000, learning_starts=32, batch_size=16, seed=3)
    trainer, count = GeneratorTrainer(Agent(algorithm, seed=3), env, settings), 0
    for log_data in trainer():
        if log_data["log_type"] == "train":
            yield model.state_dict()
            count += 1
        if count == UPDATES:
            break
    trainer.close()


@case("facades")
def tianshou(scratch: Path) -> Iterator[State]:
    import gymnasium

    model = QModel()
    found: list[State] = []

    class Kept(AlgorithmPolicy):
        def learn(self, *arguments: Any, **named: Any) -> Any:
            result = super().learn(*arguments, **named)
            found.append({name: value.clone() for name, value in model.state_dict().items()})
            return result

    policy = Kept(model_dqn(model), seed=3)
    envs = [[gymnasium.make("CartPole-v1") for _ in range(number)] for number in (4, 2)]
    train_collector = TianshouCollector(policy, envs[0], VectorReplayBuffer(256, 4, seed=3), seed=3)
    train_collector.collect(n_step=32, random=True)
    offpolicy_trainer(
        policy,
        train_collector,
        TianshouCollector(policy, envs[1], seed=4),
        max_epoch=1,
        step_per_epoch=UPDATES,
        collect_per_step=4,
        episode_per_test=2,
        batch_size=16,
        update_per_step=1,
    )
    yield from found[:UPDATES]


@case("facades")
def hand_written_loop(scratch: Path) -> Iterator[State]:
    env = Pendulum(4)
    actor_critic = ActorCritic(
        num_actor_obs=3, num_critic_obs=3, num_actions=1, actor_hidden_dims=[8], critic_hidden_dims=[8]
    )
    algorithm = LOOP_PPO(actor_critic, config=PPOConfig(**PPO_SETTINGS), seed=5)
    algorithm.init_storage(4, 6, [3], [3], [1])
    obs = next(iter(env.reset(5).values()))
    for _ in range(UPDATES):
        for _ in range(6):
            step = env.step(algorithm.act(obs, obs))
            obs = next(iter(step.obs.values()))
            algorithm.process_env_step(step.reward, step.terminated | step.truncated, {"time_outs": step.truncated})
        algorithm.compute_returns(obs)
        algorithm.update()
        yield actor_critic.state_dict()


# -- the robot ---------------------------------------------------------------------------------------------------------


@case("quadruped")
def quadruped(scratch: Path) -> Iterator[State]:
    env = make("quadruped", num_envs=4)
    policy = small_policy(env, NormalizeObs(), head_settings={"init_std": 1.0})
    algorithm = PPO(policy, PPOConfig(**{**PPO_SETTINGS, "entropy_coef": 0.005}))
    return on_policy(algorithm, env, num_steps=6)
