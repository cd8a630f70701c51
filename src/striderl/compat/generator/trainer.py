"""`Trainer`: training as a generator of log_data, with envs and buffer behind two methods.

    trainer = Trainer(agent, env, TrainerConfig(total_timesteps=50_000))
    for log_data in trainer():
        print(log_data)          {"log_type": "collect" | "train" | "evaluate", "sample_step": 128, "logs": {…}}

    replay      learning_starts steps of collect, then: train_frequency × collect, 1 × train, and so on
    rollouts    collect until num_steps of every env are there, 1 × train, and so on; a last part is not trained on

One collect is one step of all envs. 'logs' is left out when there is nothing to tell: no episode ended. Where the run
is lies on the object: a loop may stop anywhere, and a second one goes on there. The envs are closed at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.delivery import Cuts
from striderl.compat.generator.agent import Agent, AgentActor, Rollout
from striderl.data.checked_fields import check_field_types, overridden, refuse_assignment
from striderl.data.transition import Transition
from striderl.envs.vec_env import VecEnv
from striderl.training.evaluation import evaluate
from striderl.training.protocols import replay_for, rollout_storage


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How long, how often, how much."""

    total_timesteps: int = 50_000
    """Env steps of the run, over all envs."""
    learning_starts: int = 1000
    """Replay: env steps that are collected at random before the first training step."""
    train_frequency: int = 1
    """Replay: steps of all envs between two training steps."""
    batch_size: int = 128
    """Replay: samples of a training step."""
    buffer_size: int = 100_000
    """Replay: how many env steps are kept."""
    num_steps: int = 128
    """Rollouts: steps of each env that one training step learns from."""
    eval_frequency: int = 0
    """Env steps between two evaluations; 0 for none."""
    num_eval_episodes: int = 10
    """Episodes of an evaluation."""
    seed: int = 0
    """Of envs, exploration and samples."""

    def __post_init__(self) -> None:
        check_field_types(self)
        for name, value in (
            ("total_timesteps", self.total_timesteps),
            ("train_frequency", self.train_frequency),
            ("batch_size", self.batch_size),
            ("buffer_size", self.buffer_size),
            ("num_steps", self.num_steps),
            ("num_eval_episodes", self.num_eval_episodes),
        ):
            if value < 1:
                raise ValueError(f"TrainerConfig.{name} is at least 1, found {value}")


class Trainer:
    """Collects and trains, one log_data at a time; see the top of this module."""

    def __init__(
        self, agent: Agent, env: VecEnv, config: TrainerConfig | None = None, *, eval_env: VecEnv | None = None
    ) -> None:
        """Put the parts together and make the buffer; nothing is run yet."""
        if not isinstance(agent, Agent):
            raise TypeError(f"Trainer wants an Agent, found {type(agent).__name__}")
        self.agent, self.env, self.eval_env = agent, env, eval_env
        self.config = config = config or TrainerConfig()
        if bool(config.eval_frequency) != (eval_env is not None):
            raise ValueError("an evaluation wants both eval_env and TrainerConfig.eval_frequency")
        self.core = agent.alg.core
        explorer: Any = agent.player.explorer
        if overridden(agent, Agent, "sample"):
            explorer = AgentActor(agent, explorer, exploring=True)
        self.collector = Collector(env, explorer, CollectorConfig(seed=config.seed))
        self.buffer: Any = (
            rollout_storage(self.collector, self.core.policy, config.num_steps)
            if agent.alg.on_policy
            else replay_for(self.collector, self.core, config.buffer_size, config.seed)
        )
        if agent.alg.on_policy:
            self.core.check_rollout(config.num_steps, env.num_envs)
        self._episodes = _Episodes(self.buffer, env.num_envs)
        self._initial_state: dict[str, Any] = {}
        self._since_train = 0
        self._next_eval = 0
        self._closed = False

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_assignment(self, name, parts=("agent", "env", "eval_env", "config", "core", "collector", "buffer"))
        super().__setattr__(name, value)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def __call__(self) -> Iterator[dict[str, Any]]:
        """Yield log_data until the run is over; a second call goes on where the first was left."""
        while not self.finished:
            yield self._advance()
        self.close()

    @property
    def sample_step(self) -> int:
        """Env steps so far."""
        return self.agent.sample_step

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to collect or to train."""
        return self.sample_step >= self.config.total_timesteps and not self._train_is_due

    @property
    def _train_is_due(self) -> bool:
        if self.agent.alg.on_policy:
            return bool(self.buffer.full)
        return self.sample_step >= self.config.learning_starts and self._since_train >= self.config.train_frequency

    def _advance(self) -> dict[str, Any]:
        if self._train_is_due:
            return self._run_train()
        if self.eval_env is not None and self.sample_step >= self._next_eval:
            self._next_eval += self.config.eval_frequency
            return self._run_evaluate(self.eval_env)
        return self._run_collect()

    def _run_collect(self) -> dict[str, Any]:
        """Take one step in all envs into the buffer."""
        if not self.sample_step:
            self.agent.reset()
        warm = self.agent.alg.on_policy or self.sample_step >= self.config.learning_starts
        if not self.agent.alg.on_policy:
            self.core.explore(self.sample_step, random=not warm)
        elif len(self.buffer) == 0:
            self.collector.ready()
            self._initial_state = self.collector.current_state
        elif self.buffer.full:
            raise RuntimeError("the rollout is full: _run_train comes next")
        self._episodes.begin()
        self.collector.collect(n_step=self.env.num_envs, storage=self._episodes)
        self.agent.sample_step += self.env.num_envs
        self.agent.player.env_step = self.agent.sample_step
        self._since_train += int(warm)
        return self._log_data("collect", self._episodes.logs())

    def _run_train(self) -> dict[str, Any]:
        """Learn from one sample of the replay, or from the full rollout."""
        if not self.agent.alg.on_policy:
            sample = self.buffer.sample(self.config.batch_size)
            logs = self.agent.learn(sample)
            error = logs.pop("td_error", None)
            if error is not None:
                self.buffer.update_priorities(sample.ticket, sample.weight.new_tensor(error))
            self._since_train = 0
            return self._log_data("train", logs)
        if not self.buffer.full:
            raise RuntimeError(f"the rollout has {len(self.buffer)} samples; _run_collect until it is full")
        rollout = Rollout(self.buffer, self._initial_state, self.collector.current_obs, self.collector.current_state)
        logs = self.agent.learn(rollout)
        self.buffer.clear()
        return self._log_data("train", logs)

    def _run_evaluate(self, env: VecEnv) -> dict[str, Any]:
        """Play whole episodes greedily on the envs for it."""
        player: Any = self.agent.player.greedy
        if overridden(self.agent, Agent, "predict"):
            player = AgentActor(self.agent, player, exploring=False)
        result = evaluate(env, player, self.config.num_eval_episodes, seed=self.config.seed + 1)
        logs = {"mean_episodic_return": result.mean, "std_episodic_return": result.std}
        return self._log_data("evaluate", {**logs, "mean_episodic_length": result.numbers()["length_mean"]})

    def _log_data(self, log_type: str, logs: dict[str, Any]) -> dict[str, Any]:
        log_data: dict[str, Any] = {"log_type": log_type, "sample_step": self.sample_step}
        return {**log_data, "logs": logs} if logs else log_data

    def close(self) -> None:
        """Close the envs; calling it twice is fine."""
        if not self._closed:
            self._closed = True
            self.env.close()
            if self.eval_env is not None:
                self.eval_env.close()


class _Episodes:
    """A storage in front of another that notes returns and lengths of the episodes that end."""

    def __init__(self, storage: Any, num_envs: int) -> None:
        self.storage, self.balanced = storage, storage.balanced
        self._running = [(0.0, 0, True)] * num_envs
        self.begin()

    def begin(self) -> None:
        self._ended: list[tuple[float, int]] = []

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        self.storage.add(transition, envs)
        first = 0 if envs is None else int(envs.start)
        rows = zip(transition.rew.tolist(), transition.done.tolist(), transition.valid.tolist())
        for env, (reward, done, valid) in enumerate(rows, first):
            total, length, good = self._running[env]
            total, length, good = total + reward, length + 1, good and valid
            self._running[env] = (0.0, 0, True) if done else (total, length, good)
            if done and good:
                self._ended.append((total, length))

    def cut(self) -> None:
        """End the episodes under way: what comes next does not follow them."""
        self._running = [(0.0, 0, True)] * len(self._running)
        if isinstance(self.storage, Cuts):
            self.storage.cut()

    def logs(self) -> dict[str, Any]:
        """Return the means over all episodes that have just ended, and how many these were."""
        if not self._ended:
            return {}
        count = len(self._ended)
        return {
            "episodic_return": sum(total for total, _ in self._ended) / count,
            "episodic_length": sum(length for _, length in self._ended) / count,
            "num_episodes": count,
        }
