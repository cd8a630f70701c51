"""`Trainer`: training as a generator of log_data, with envs and buffer behind two methods.

    trainer = Trainer(agent, env, TrainerConfig(total_timesteps=50_000))
    trainer = Trainer(agent=OwnAgent, env="CartPole-v1", num_envs=4, total_timesteps=50_000, learning_rate=1e-3)
    trainer = Trainer(alg=OwnAlgorithm, env=env, total_timesteps=50_000, learning_rate=1e-3)
    for log_data in trainer():
        print(log_data)          {"log_type": "collect" | "train" | "evaluate", "sample_step": 128, "logs": {…}}

    replay      learning_starts steps of collect, then: train_frequency × collect, 1 × train, and so on
    rollouts    collect until num_steps of every env are there, 1 × train, and so on; a last part is not trained on

    Trainer ──┬─ _run_collect ─▶ Agent.sample(obs) ─▶ Algorithm.predict ─▶ Model.value | Model.action
              ├─ _run_train ─▶ Agent.learn(BufferSamples) ─▶ Algorithm.learn ─▶ Model
              └─ _run_evaluate ─▶ Agent.predict(obs) ─▶ Algorithm.predict ─▶ Model

One collect is one step of all envs. 'logs' is left out when there is nothing to report: no episode ended. The position
of the run lies on the object: a loop may stop anywhere, and a second one continues there. The envs are closed at the
end. `state_dict`, or `save(folder)`, holds all that another trainer, built in the same way, needs to continue to the
same bits; with envs that cannot save their state (Gymnasium's) new episodes begin.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from striderl.checkpoint.store import CheckpointStore
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.surplus import Cuts
from striderl.compat.generator.agent import Agent, AgentActor, OwnActor
from striderl.compat.generator.algorithm import Rollout, built, core_of, warn_of_unused_sync
from striderl.compat.generator.own_state import global_generators, load_global_generators, load_state, state_of
from striderl.compat.generator.samples import OwnBuffer, OwnStorage, logged_numbers, replay_of, rollout_of, samples_of
from striderl.compat.parts import gymnasium_spaces
from striderl.data.checked_fields import check_field_types, overridden, refuse_assignment
from striderl.data.naming import unknown
from striderl.data.transition import Transition
from striderl.envs.tasks import make
from striderl.envs.vec_env import VecEnv
from striderl.training.evaluation import evaluate
from striderl.training.protocols import replay_for, rollout_storage


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How long, how often, how much."""

    total_timesteps: int = 50_000
    """Env steps of the run, over all envs."""
    learning_starts: int = 1000
    """Replay: env steps before the first training step; our algorithms act at random in them."""
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
    num_envs: int = 0
    """How many envs are made of a name or a class, 0 for one; of an env object, how many it must have, 0 for any."""
    device: str = "cpu"
    """Where the tensors of envs that are made here live."""
    on_policy: bool | None = None
    """Whether an own algorithm learns from rollouts; None: its attribute `on_policy`, and where it has none, no."""

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


_FIELDS = tuple(field.name for field in dataclasses.fields(TrainerConfig))
_PARTS = ("agent", "env", "eval_env", "config", "core", "collector", "buffer")
_COUNTERS = ("_sample_step", "_since_train", "_next_eval", "_closed", "_initial_state", "_episodes", "_last")
_AGENT_SETTINGS = ("epsilon", "target_network_frequency")


class Trainer:
    """Collects and trains, one log_data at a time; see the top of this module."""

    def __init__(
        self,
        agent: Any = None,
        env: Any = None,
        config: Any = None,
        *,
        alg: Any = None,
        eval_env: Any = None,
        buffer: OwnBuffer | None = None,
        **kwargs: Any,
    ) -> None:
        """Put the parts together and make the buffer; nothing is run yet.

        agent: an Agent, any object with `sample`, `predict` and `learn`, or its class, which gets all settings, and
            obs_space, act_space, num_envs and device.
        env: a VecEnv, a Gymnasium env or vector env, or a name, a class or a function that makes one.
        config: a TrainerConfig, or any dataclass or dict with such fields and others; `kwargs` come before it.
        alg: in place of an agent, an own Algorithm or its class, which gets the same settings.
        eval_env: like `env`; where that is made here and evaluations are wanted, it is made as well.
        buffer: an own replay with `add` and `sample`; see samples.py.
        """
        if (agent is None) == (alg is None):
            raise TypeError(
                "Trainer wants either agent, an object with sample, predict and learn or its class, or alg, an own "
                f"Algorithm or its class; found {'neither' if agent is None else 'both'}"
            )
        settings = {**_table(config), **kwargs}
        self.config = TrainerConfig(**{name: settings[name] for name in _FIELDS if name in settings})
        others = {name: value for name, value in settings.items() if name not in _FIELDS}
        self.env = made_env(env, self.config)
        self.eval_env = self._evaluated_in(env, eval_env)
        self.kwargs = self._settings(others)
        """All settings by name, with what the class of an agent gets."""
        self.agent = self._agent(agent, alg, others, [name for name in kwargs if name in others])
        self.core: Any = core_of(self.agent.alg) if isinstance(self.agent, Agent) else None
        self.on_policy = self._learns_from_rollouts()
        """Whether a training step learns from a rollout."""
        self.collector = Collector(self.env, self._actor(exploring=True), CollectorConfig(seed=self.config.seed))
        self.buffer: Any = self._buffer(buffer)
        storage = OwnStorage(self.buffer) if buffer is not None else self.buffer
        self._episodes = _Episodes(storage, self.env.num_envs)
        self._initial_state: dict[str, Any] = {}
        self._sample_step = 0
        self._since_train = 0
        self._next_eval = 0
        self._closed = False
        self._last: dict[str, Any] | None = None
        """The state of the envs when the run was over."""
        if self.core is None:
            warn_of_unused_sync(self.agent, type(self))

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_assignment(self, name, parts=_PARTS)
        super().__setattr__(name, value)

    # -- the parts -----------------------------------------------------------------------------------------------------

    def _settings(self, others: Mapping[str, Any]) -> dict[str, Any]:
        obs_space, act_space = gymnasium_spaces(self.env)
        act_space.seed(self.config.seed)
        made = {"obs_space": obs_space, "act_space": act_space, "num_envs": self.env.num_envs}
        return {**dataclasses.asdict(self.config), **others, **made, "device": str(self.env.device)}

    def _evaluated_in(self, env: Any, eval_env: Any) -> VecEnv | None:
        wanted = bool(self.config.eval_frequency)
        if eval_env is None and wanted and (inspect.isclass(env) or not hasattr(env, "step")):
            eval_env = env
        if wanted != (eval_env is not None):
            raise ValueError("an evaluation wants both eval_env and TrainerConfig.eval_frequency")
        if eval_env is None:
            return None
        return made_env(eval_env, dataclasses.replace(self.config, num_envs=0), self.config.num_eval_episodes)

    def _agent(self, agent: Any, alg: Any, others: Mapping[str, Any], given: Sequence[str]) -> Any:
        """Return the agent, made of a class where one is given."""
        if alg is not None:
            used = {name: others[name] for name in _AGENT_SETTINGS if name in others}
            rest = [name for name in given if name not in used]
            alg = built(alg, self.kwargs, rest) if inspect.isclass(alg) else _complete(alg, rest)
            return Agent(alg, seed=self.config.seed, act_space=self.kwargs["act_space"], **used)
        made = built(agent, self.kwargs, given) if inspect.isclass(agent) else _complete(agent, given)
        missing = [name for name in ("sample", "predict", "learn") if not callable(getattr(made, name, None))]
        if missing:
            raise TypeError(
                f"Trainer wants an Agent, found {type(made).__name__}, which lacks {' and '.join(missing)}; an own "
                "Algorithm goes in as alg"
            )
        if isinstance(made, Agent) and made.act_space is None:
            made.act_space = self.kwargs["act_space"]
        return made

    def _learns_from_rollouts(self) -> bool:
        wanted = self.config.on_policy
        alg = getattr(self.agent, "alg", None)
        found = bool(getattr(alg, "on_policy", getattr(self.agent, "on_policy", False)))
        if self.core is not None and wanted not in (None, found):
            raise ValueError(f"on_policy={wanted} has no effect: {type(self.core).__name__} has on_policy={found}")
        return found if wanted is None else wanted

    def _actor(self, *, exploring: bool) -> Any:
        """Return the actor that calls `Agent.sample` or `Agent.predict`."""
        if self.core is None:
            return OwnActor(self.agent, self.env.action_spec, exploring=exploring)
        player = self.agent.player
        actor: Any = player.explorer if exploring else player.greedy
        if overridden(self.agent, Agent, "sample" if exploring else "predict"):
            return AgentActor(self.agent, actor, exploring=exploring)
        return actor

    def _buffer(self, buffer: OwnBuffer | None) -> Any:
        config = self.config
        if buffer is not None:
            if self.core is not None or self.on_policy:
                raise ValueError("an own buffer is the replay of an own algorithm, not of ours and not of rollouts")
            if not isinstance(buffer, OwnBuffer):
                raise TypeError(f"buffer wants add(…) and sample(batch_size), found {type(buffer).__name__}")
            return buffer
        if self.core is None:
            if self.on_policy:
                return rollout_of(self.collector, config.num_steps)
            return replay_of(self.collector, config.buffer_size, config.seed)
        if not self.on_policy:
            return replay_for(self.collector, self.core, config.buffer_size, config.seed)
        self.core.check_rollout(config.num_steps, self.env.num_envs)
        return rollout_storage(self.collector, self.core.policy, config.num_steps)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def __call__(self) -> Generator[dict[str, Any], None, None]:
        """Yield log_data until the run is over; a second call continues where the first was left."""
        if "collector" not in self.__dict__:
            raise TypeError(
                f"{type(self).__name__}.__init__ must call super().__init__(agent=…, env=…, **kwargs), or define "
                "__call__ as well"
            )
        while not self.finished:
            yield self._advance()
        if not self._closed:
            if type(self.env).state_dict is not VecEnv.state_dict:
                self._last = self.collector.state_dict()  # closed envs have none, and the run may still be saved
            self.close()

    @property
    def sample_step(self) -> int:
        """Env steps so far."""
        return self._sample_step if self.core is None else int(self.agent.sample_step)

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to collect or to train."""
        return self.sample_step >= self.config.total_timesteps and not self._train_is_due

    @property
    def _train_is_due(self) -> bool:
        if self.on_policy:
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
        warm = self.on_policy or self.sample_step >= self.config.learning_starts
        if self.core is not None:
            self._prepare_core(warm=warm)
        if self.on_policy and self.buffer.full:
            raise RuntimeError("the rollout is full: _run_train comes next")
        self._episodes.begin()
        self.collector.collect(n_step=self.env.num_envs, storage=self._episodes)
        self._sample_step += self.env.num_envs
        if self.core is not None:
            self.agent.sample_step += self.env.num_envs
            self.agent.player.env_step = self.agent.sample_step
        self._since_train += int(warm)
        return self._log_data("collect", self._episodes.logs())

    def _prepare_core(self, *, warm: bool) -> None:
        if not self.sample_step:
            self.agent.reset()
        if not self.on_policy:
            self.core.explore(self.sample_step, random=not warm)
        elif len(self.buffer) == 0:
            self.collector.ready()
            self._initial_state = self.collector.current_state

    def _run_train(self) -> dict[str, Any]:
        """Learn from one sample of the replay, or from the full rollout."""
        if self.on_policy and not self.buffer.full:
            raise RuntimeError(f"the rollout has {len(self.buffer)} samples; _run_collect until it is full")
        logs = self._learn_own() if self.core is None else self._learn_core()
        self._since_train = 0
        if self.on_policy:
            self.buffer.clear()
        return self._log_data("train", logs)

    def _learn_core(self) -> dict[str, Any]:
        if self.on_policy:
            collector = self.collector
            found: dict[str, Any] = self.agent.learn(
                Rollout(self.buffer, self._initial_state, collector.current_obs, collector.current_state)
            )
            return found
        sample = self.buffer.sample(self.config.batch_size)
        logs: dict[str, Any] = self.agent.learn(sample)
        error = logs.pop("td_error", None)
        if error is not None:
            self.buffer.update_priorities(sample.handle, sample.weight.new_tensor(error))
        return logs

    def _learn_own(self) -> dict[str, Any]:
        if self.on_policy:
            data: Any = samples_of(self.buffer.data)
        elif isinstance(self._episodes.storage, OwnStorage):
            data = self.buffer.sample(self.config.batch_size)
        else:
            data = samples_of(self.buffer.sample(self.config.batch_size).data)
            if not data.valid.any():  # an env spoiled all of them
                return {}
            data = data if data.valid.all() else data[data.valid]
        return logged_numbers(self.agent.learn(data), f"{type(self.agent).__name__}.learn")

    def _run_evaluate(self, env: VecEnv) -> dict[str, Any]:
        """Play whole episodes greedily on the envs for it."""
        result = evaluate(env, self._actor(exploring=False), self.config.num_eval_episodes, seed=self.config.seed + 1)
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

    # -- saving --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all that a trainer built in the same way needs to continue to the same bits.

        The random generators of the process (`random`, numpy, torch) are part of it. An agent or a buffer of one's own
        is saved by its `state_dict`, or without one by its attributes; so is what a subclass adds to the trainer.
        """
        return {
            "sample_step": self._sample_step,
            "since_train": self._since_train,
            "next_eval": self._next_eval,
            "initial_state": self._initial_state,
            "episodes": self._episodes.state_dict(),
            "collector": self._last or self.collector.state_dict(),
            "parts": state_of(self._held(), name="Trainer"),
            "own": state_of(self, without=(*_PARTS, *_COUNTERS, "kwargs", "on_policy")),
            "generators": global_generators(),
        }

    def _held(self) -> types.SimpleNamespace:
        """Return the parts with a state of any class, the user's own included."""
        return types.SimpleNamespace(agent=self.agent, buffer=self.buffer, act_space=self.kwargs["act_space"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of a trainer that was built in the same way."""
        self.collector.load_state_dict(state["collector"])
        load_state(self._held(), state["parts"], name="Trainer")
        load_state(self, state["own"])
        self._episodes.load_state_dict(state["episodes"])
        self._initial_state = dict(state["initial_state"])
        self._sample_step, self._since_train = int(state["sample_step"]), int(state["since_train"])
        self._next_eval = int(state["next_eval"])
        load_global_generators(state["generators"])

    def save(self, folder: str | Path) -> Path:
        """Write a checkpoint into a folder, whole or not at all, and return its directory; the last three are kept."""
        return CheckpointStore(folder).save(self.state_dict(), step=self.sample_step)

    def load(self, folder: str | Path) -> None:
        """Continue from the newest checkpoint of a folder; files hold tensors and numbers, nothing of them is run."""
        self.load_state_dict(CheckpointStore(folder).load().state)


def _table(config: Any) -> dict[str, Any]:
    """Return a config as settings by name: a dataclass, a dict, or any object with attributes."""
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return dict(config)
    if dataclasses.is_dataclass(config) and not inspect.isclass(config):
        return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if inspect.isclass(config):  # settings as class attributes
        names = [name for name in dir(config) if not name.startswith("_") and not callable(getattr(config, name))]
        return {name: getattr(config, name) for name in names}
    return dict(vars(config))


def _complete(part: Any, given: Sequence[str]) -> Any:
    """Return a part that is made already, or raise for settings that it cannot take any more."""
    if given:
        raise TypeError(
            unknown("setting", given[0], [*_FIELDS, *_AGENT_SETTINGS], where="Trainer")
            + f" {type(part).__name__} is made already; hand over its class for settings of its own"
        )
    return part


def made_env(env: Any, config: TrainerConfig, num_envs: int = 1) -> VecEnv:
    """Return a VecEnv of whatever is given as one."""
    if env is None:
        raise TypeError("Trainer wants env: a VecEnv, a Gymnasium env or vector env, or a name or class of one")
    found = make(env, num_envs=config.num_envs or num_envs, device=config.device)
    if config.num_envs and found.num_envs != config.num_envs:
        raise ValueError(f"{type(env).__name__} has {found.num_envs} envs, wanted num_envs={config.num_envs}")
    return found


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

    def state_dict(self) -> list[tuple[float, int, bool]]:
        """Return the episodes under way."""
        return list(self._running)

    def load_state_dict(self, state: Sequence[Sequence[Any]]) -> None:
        """Continue the episodes of a saved state."""
        self._running = [(float(total), int(length), bool(good)) for total, length, good in state]

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
