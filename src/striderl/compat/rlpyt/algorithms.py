"""rlpyt's algorithms: ours behind `initialize`, `optimize_agent` and `process_returns`.

    algo = PPO(config=PPOConfig(…))                      made before the agent has a policy
    algo.initialize(agent, n_itr, batch_spec, mid_batch_reset, examples)        takes the agent's policy
    opt_info = algo.optimize_agent(itr, samples)         a named tuple of lists, one number per gradient step
    return_, advantage, valid = algo.process_returns(samples)                   PPO, A2C; [T, B] each

A sampler's batch tells no final observations. So where the clock ended an episode within a batch, PPO and A2C take
V(s_t) for what followed, and DQN and SAC leave the step out: neither takes the time limit for an end of the task.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.algorithms.actor_critic import sac
from striderl.algorithms.on_policy import a2c, ppo
from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.value_based import dqn
from striderl.collect.samplers.samples import valid_from_done
from striderl.compat.parts import check_plain, components, gradient_steps, targets_of
from striderl.compat.rlpyt.agents import DqnAgent, PgAgent, SacAgent, distribution_params
from striderl.data import tree
from striderl.data.arena import Placement
from striderl.data.checked_fields import refuse_assignment, refuse_overrides
from striderl.data.transition import Transition, transition_columns
from striderl.ops.returns import gae
from striderl.storage.replay.replay import Replay
from striderl.training.protocols import UpdateNoise, order_generator

_UPDATE = "the update is that of striderl.algorithms; override optimize_agent, or write an algorithm there"
_REPLAY = "the replay is built by the algorithm's settings; override append_samples or optimize_agent"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("loss", "td_abs_errors", "optim_initialize", "update_itr_hyperparams"), _UPDATE),
    **dict.fromkeys(("initialize_replay_buffer", "samples_to_buffer"), _REPLAY),
}
"""Methods of rlpyt's algorithms that nothing here calls; one that overrides `optimize_agent` may call them itself."""


class RlAlgorithm(ABC):
    """What runners ask of an algorithm."""

    opt_info_fields: ClassVar[tuple[str, ...]] = ()
    """The fields of what `optimize_agent` returns."""
    bootstrap_value: ClassVar[bool] = False
    """Whether samples have to hold the value of what followed their last step."""
    agent_kind: ClassVar[type[Any]] = object
    """Which agents it can train."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.optimize_agent is RlAlgorithm.optimize_agent:
            refuse_overrides(cls, REFUSED)

    def __setattr__(self, name: str, value: Any) -> None:
        config = self.__dict__.get("config")
        settings = [field.name for field in fields(config)] if is_dataclass(config) else ()
        way = "give it in the config" if name in settings or name == "discount" else ""
        refuse_assignment(self, name, parts=("config", "discount"), settings=settings, way=way)
        super().__setattr__(name, value)

    def __init__(self, *, seed: int = 0) -> None:
        """Take note; `initialize` builds the rest."""
        self.seed = seed
        self.update_counter = 0
        self.core: Any = None

    def initialize(
        self,
        agent: Any,
        n_itr: int,
        batch_spec: Any,
        mid_batch_reset: bool = False,
        examples: Any = None,
        world_size: int = 1,
        rank: int = 0,
    ) -> None:
        """Take an agent whose policy is built, and what batches look like; build optimisers and buffers."""
        if not isinstance(agent, self.agent_kind):
            raise TypeError(f"{type(self).__name__} wants a {self.agent_kind.__name__}, found {type(agent).__name__}")
        if not hasattr(agent, "policy"):
            raise RuntimeError("the agent has no policy yet: call sampler.initialize(agent) or agent.initialize first")
        if world_size != 1:
            raise ValueError("several processes train together with striderl.training; here world_size is 1")
        self.agent, self.n_itr, self.batch_spec = agent, n_itr, batch_spec
        self.mid_batch_reset, self.examples, self.world_size, self.rank = mid_batch_reset, examples, world_size, rank
        self.core = self._build(agent)
        agent.attach(self.core)
        self._ready()

    @abstractmethod
    def _build(self, agent: Any) -> Any:
        """Return one of our algorithms for the agent's policy."""

    def _ready(self) -> None:  # noqa: B027  (not every algorithm has something to build)
        """Build what depends on the algorithm and on batches."""

    def optimize_agent(self, itr: int, samples: Any) -> Any:
        """Learn from a batch and return an OptInfo."""
        if self.core is None:
            raise RuntimeError(f"{type(self).__name__}.optimize_agent comes after initialize")
        steps = self._optimize(itr, samples)
        self.update_counter += len(steps)
        fields = self.opt_info_fields
        return namedtuple("OptInfo", fields)(*([step[name] for step in steps] for name in fields))

    @abstractmethod
    def _optimize(self, itr: int, samples: Any) -> list[dict[str, float]]:
        """Learn, and return the fields of every gradient step."""

    def optim_state_dict(self) -> dict[str, Any]:
        """Return all that was learned and all optimisers, as copies."""
        state: dict[str, Any] = self.core.state_dict()
        return state

    def load_optim_state_dict(self, state: Any) -> None:
        """Go on with what was saved."""
        self.core.load_state_dict(state)


# -- replay ------------------------------------------------------------------------------------------------------------


class ReplayRlAlgorithm(RlAlgorithm):
    """Puts batches into a replay and learns from samples of it."""

    def __init__(
        self,
        config: Any,
        *,
        batch_size: int = 128,
        replay_size: int = 100_000,
        min_steps_learn: int = 1000,
        replay_ratio: float = 8.0,
        seed: int = 0,
    ) -> None:
        """Use each env step for `replay_ratio` samples on average, from `min_steps_learn` env steps on."""
        super().__init__(seed=seed)
        self.config, self.batch_size, self.replay_size = config, batch_size, replay_size
        self.min_steps_learn, self.replay_ratio = min_steps_learn, replay_ratio
        self.discount: float = config.gamma

    def _ready(self) -> None:
        policy, device = self.agent.policy, self.agent.device
        self.updates_per_optimize = max(1, round(self.replay_ratio * self.batch_spec.size / self.batch_size))
        self.replay = Replay(
            transition_columns(policy.obs_spec, policy.action_spec, {}, {}),
            self.replay_size,
            self.batch_spec.B,
            placement=Placement(device=str(device)),
            picker=self.core.picker(self.seed),
            view=self.core.view(),
        )
        self._noise = UpdateNoise(self.core.noise(), self.batch_size, self.seed, device)
        self._pending: dict[str, Any] | None = None
        self.cum_steps = 0

    def append_samples(self, samples: Any) -> None:
        """Store a batch; its last row follows with the next one, when it is known what came after it."""
        env, agent, device = samples.env, samples.agent, self.agent.device
        whole = {
            "obs": components(env.observation, self.agent.obs_spec, device, dims=2),
            "act": agent.action.to(device),
            "rew": env.reward.to(device),
            "terminated": env.terminated.to(device),
            "truncated": env.truncated.to(device),
            "valid": env.valid.to(device),
        }
        for t in range(self.batch_spec.T):
            row = tree.index(whole, t)
            if self._pending is not None:
                held = self._pending
                self.replay.add(Transition(**held, info={}, policy={}, next_obs=row["obs"], final_obs=None))
            self._pending = row
        self._pending = tree.copy(self._pending)  # the sampler writes into the same memory
        self.cum_steps += self.batch_spec.size

    def _optimize(self, itr: int, samples: Any) -> list[dict[str, float]]:
        if samples is not None:
            self.append_samples(samples)
        if self.cum_steps < self.min_steps_learn:
            return []
        steps = []
        for number in range(self.updates_per_optimize):
            sample = self.replay.sample(self.batch_size)
            noise = self._noise.at(self.update_counter + number)
            numbers = dict(self.core.update(sample.data, sample.weight, noise))
            if "td_error" in numbers:
                self.replay.update_priorities(sample.ticket, numbers.pop("td_error"))
            steps.append(self._named({name: float(value) for name, value in numbers.items()}))
        self.core.absorb(sample.data)
        return steps

    @abstractmethod
    def _named(self, numbers: dict[str, float]) -> dict[str, float]:
        """Return the fields of the OptInfo."""


class DQN(ReplayRlAlgorithm):
    """DQN in rlpyt's words; double, dueling, n-step and prioritized are settings of `DQNConfig`."""

    opt_info_fields: ClassVar[tuple[str, ...]] = ("loss", "gradNorm", "qValue")
    agent_kind: ClassVar[type[Any]] = DqnAgent

    def __init__(
        self,
        config: dqn.DQNConfig | None = None,
        *,
        batch_size: int = 128,
        replay_size: int = 100_000,
        min_steps_learn: int = 1000,
        replay_ratio: float = 8.0,
        seed: int = 0,
    ) -> None:
        """Take the settings of the core and those of the replay."""
        super().__init__(
            config or dqn.DQNConfig(),
            batch_size=batch_size,
            replay_size=replay_size,
            min_steps_learn=min_steps_learn,
            replay_ratio=replay_ratio,
            seed=seed,
        )

    def _build(self, agent: Any) -> Any:
        return dqn.DQN(agent.policy, self.config)

    def _named(self, numbers: dict[str, float]) -> dict[str, float]:
        return {"loss": numbers["q_loss"], "gradNorm": numbers["grad_norm"], "qValue": numbers["q_value"]}


class SAC(ReplayRlAlgorithm):
    """SAC in rlpyt's words."""

    opt_info_fields: ClassVar[tuple[str, ...]] = ("qLoss", "piLoss", "qGradNorm", "piGradNorm", "qValue", "alpha")
    agent_kind: ClassVar[type[Any]] = SacAgent

    def __init__(
        self,
        config: sac.SACConfig | None = None,
        *,
        batch_size: int = 256,
        replay_size: int = 1_000_000,
        min_steps_learn: int = 1000,
        replay_ratio: float = 256.0,
        seed: int = 0,
    ) -> None:
        """Take the settings of the core and those of the replay."""
        super().__init__(
            config or sac.SACConfig(),
            batch_size=batch_size,
            replay_size=replay_size,
            min_steps_learn=min_steps_learn,
            replay_ratio=replay_ratio,
            seed=seed,
        )

    def _build(self, agent: Any) -> Any:
        return sac.SAC(agent.policy, agent.critic, self.config)

    def _named(self, numbers: dict[str, float]) -> dict[str, float]:
        return {
            "qLoss": numbers["critic_loss"],
            "piLoss": numbers.get("actor_loss", math.nan),  # not in steps in which the actor rests
            "qGradNorm": numbers["critic_grad_norm"],
            "piGradNorm": numbers.get("actor_grad_norm", math.nan),
            "qValue": numbers["q_value"],
            "alpha": numbers["temperature"],
        }


# -- policy gradients --------------------------------------------------------------------------------------------------


class PolicyGradientAlgo(RlAlgorithm):
    """Learns from each batch as a whole, by returns and advantages."""

    opt_info_fields: ClassVar[tuple[str, ...]] = ("loss", "gradNorm", "entropy", "perplexity")
    bootstrap_value: ClassVar[bool] = True
    agent_kind: ClassVar[type[Any]] = PgAgent

    def __init__(self, config: Any, *, seed: int = 0) -> None:
        """Take the settings of the core."""
        super().__init__(seed=seed)
        self.config = config
        self.discount: float = config.gamma

    def _ready(self) -> None:
        check_plain(self.core)
        self.core.check_rollout(self.batch_spec.T, self.batch_spec.B)

    def process_returns(self, samples: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return (return_, advantage, valid), [T, B] each, by GAE; nothing is normalised.

        `valid` is None when every sample counts: with resets within the batch that is the rule. Otherwise it is 1 up
        to and including the first end of each column, and 0 after it.
        """
        env, agent = samples.env, samples.agent
        if "bootstrap_value" not in agent:
            raise ValueError(
                "process_returns wants samples with bootstrap_value: sampler.initialize(bootstrap_value=True)"
            )
        value, counts = agent.agent_info.value, self._counts(samples)
        following = torch.cat([value[1:], agent.bootstrap_value])
        late = (env.truncated & ~env.terminated)[:-1]
        following[:-1] = torch.where(late, value[:-1], following[:-1])
        return_, advantage = gae(
            env.reward,
            value,
            following,
            env.terminated,
            env.truncated,
            gamma=float(self.config.gamma),
            lam=float(self.config.lam),
            valid=counts,
        )
        return return_, advantage, None if bool(counts.all()) and self.mid_batch_reset else counts.float()

    def _counts(self, samples: Any) -> Tensor:
        valid: Tensor = samples.env.valid
        return valid if self.mid_batch_reset else valid & valid_from_done(samples.env.done).bool()

    def _optimize(self, itr: int, samples: Any) -> list[dict[str, float]]:
        return_, advantage, _ = self.process_returns(samples)
        env, info, device = samples.env, samples.agent.agent_info, self.agent.device
        columns = tree.map(
            lambda value: value.to(device),
            {
                "obs": components(env.observation, self.agent.obs_spec, device, dims=2),
                "act": samples.agent.action,
                "rew": env.reward,
                "terminated": env.terminated,
                "truncated": env.truncated,
                "valid": self._counts(samples),
                "policy": {
                    "log_prob": info.log_prob,
                    "value": info.value,
                    "dist": distribution_params(info.dist_info),
                    "memo": {},
                },
            },
        )
        prepared = targets_of(self.core, columns, return_.to(device), advantage.to(device))
        found = list(gradient_steps(self.core, prepared, order_generator(self.seed, itr, device)))
        self.core.absorb(columns)
        return [self._named({name: float(value) for name, value in step.items()}) for step in found]

    def _named(self, numbers: dict[str, float]) -> dict[str, float]:
        entropy = numbers["entropy"]
        gain = numbers["surrogate_loss" if "surrogate_loss" in numbers else "policy_loss"]
        loss = gain + self.config.value_loss_coef * numbers.get("value_loss", 0.0) - self.config.entropy_coef * entropy
        return {"loss": loss, "gradNorm": numbers["grad_norm"], "entropy": entropy, "perplexity": math.exp(entropy)}


class PPO(PolicyGradientAlgo):
    """PPO in rlpyt's words."""

    def __init__(self, config: PPOConfig | None = None, *, seed: int = 0) -> None:
        """Take the settings of the core."""
        super().__init__(config or PPOConfig(), seed=seed)

    def _build(self, agent: Any) -> Any:
        return ppo.PPO(agent.policy, self.config)


class A2C(PolicyGradientAlgo):
    """A2C in rlpyt's words."""

    def __init__(self, config: a2c.A2CConfig | None = None, *, seed: int = 0) -> None:
        """Take the settings of the core."""
        super().__init__(config or a2c.A2CConfig(), seed=seed)

    def _build(self, agent: Any) -> Any:
        return a2c.A2C(agent.policy, self.config)
