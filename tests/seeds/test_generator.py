"""The document of the Model / Algorithm / Agent / Trainer design: its code executed, its sentences one test each."""

from __future__ import annotations

import ast
import copy
import inspect
import sys
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Optional

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from striderl.compat import generator
from striderl.compat.generator import Agent, Algorithm, BufferSamples, Trainer, logger
from striderl.envs import make

SKELETON = """
class Model(nn.Module):
    def __init__(self, **kwargs) -> None:
        pass

    def value(self, x: torch.Tensor, a: Optional[torch.Tensor] = None) -> tuple[Any]:
        pass

    def action(self, x: torch.Tensor) -> tuple[Any]:
        pass


class Algorithm:
    def __init__(self, **kwargs) -> None:
        self.model = Model(**kwargs)
        pass

    def predict(self, obs: torch.Tensor) -> tuple[Any]:
        pass

    def learn(self, data: BufferSamples) -> dict[str, Any]:
        pass

    def sync_target(self) -> None:
        pass


class Agent:
    def __init__(self, **kwargs) -> None:
        self.alg = Algorithm(**kwargs)
        pass

    def predict(self, obs: np.ndarray) -> np.ndarray:
        pass

    def sample(self, obs: np.ndarray) -> np.ndarray:
        pass

    def learn(self, data: BufferSamples) -> dict[str, Any]:
        pass


class Trainer:
    def __init__(self, **kwargs) -> None:
        self.agent = Agent(**kwargs)
        pass

    def __call__(self) -> Generator[dict[str, Any], None, None]:
        pass

    def _run_collect(self) -> dict[str, Any]:
        pass

    def _run_train(self) -> dict[str, Any]:
        pass


if __name__ == "__main__":
    trainer = Trainer()
    for log_data in trainer():
        print(log_data)
"""
"""The code block of the document, lines 32 to 127, without its comments."""

FILLED = """
class Model(nn.Module):
    def __init__(self, **kwargs) -> None:
        super().__init__()
        self.net = nn.Linear(kwargs["obs_space"].shape[0], kwargs["act_space"].n)

    def value(self, x: torch.Tensor, a: Optional[torch.Tensor] = None) -> tuple[Any]:
        return (self.net(x),)

    def action(self, x: torch.Tensor) -> tuple[Any]:
        return (self.value(x)[0].argmax(-1),)


class Algorithm:
    def __init__(self, **kwargs) -> None:
        self.model = Model(**kwargs)
        self.target_model = copy.deepcopy(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=kwargs["learning_rate"])

    def predict(self, obs: torch.Tensor) -> tuple[Any]:
        return self.model.action(obs)

    def learn(self, data: BufferSamples) -> dict[str, Any]:
        with torch.no_grad():
            best = self.target_model.value(data.next_observations)[0].max(-1).values
            target = data.rewards + 0.98 * (1 - data.dones) * best
        q = self.model.value(data.observations)[0].gather(1, data.actions[:, None])[:, 0]
        loss = (q - target).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item()}

    def sync_target(self) -> None:
        self.target_model.load_state_dict(self.model.state_dict())


class Agent:
    def __init__(self, **kwargs) -> None:
        self.alg = Algorithm(**kwargs)
        self.sample_step, self.learn_step = 0, 0

    def predict(self, obs: np.ndarray) -> np.ndarray:
        return self.alg.predict(torch.as_tensor(obs))[0].cpu().numpy()

    def sample(self, obs: np.ndarray) -> np.ndarray:
        self.sample_step += len(obs)
        best = self.predict(obs)
        return np.where(np.random.random(len(obs)) < 0.2, 1 - best, best)

    def learn(self, data: BufferSamples) -> dict[str, Any]:
        self.learn_step += 1
        if self.learn_step % 8 == 0:
            self.alg.sync_target()
        return self.alg.learn(data.to_tensors())


class Trainer(generator.Trainer):
    def __init__(self, **kwargs) -> None:
        defaults = dict(num_envs=2, total_timesteps=64, learning_starts=16, batch_size=8, learning_rate=1e-2)
        super().__init__(agent=Agent, env="CartPole-v1", **{**defaults, **kwargs})

    def __call__(self) -> Generator[dict[str, Any], None, None]:
        yield from super().__call__()

    def _run_collect(self) -> dict[str, Any]:
        return super()._run_collect()

    def _run_train(self) -> dict[str, Any]:
        return super()._run_train()


if __name__ == "__main__":
    trainer = Trainer()
    for log_data in trainer():
        print(log_data)
"""
"""The same classes and methods with bodies: a DQN; the only class with a base of ours is the trainer."""


def program(source: str, name: str = "users_program") -> dict[str, Any]:
    """Execute a program with the names that it imports."""
    names = {
        "nn": nn,
        "torch": torch,
        "np": np,
        "copy": copy,
        "Any": Any,
        "Optional": Optional,
        "Generator": Generator,
        "BufferSamples": BufferSamples,
        "generator": generator,
        "__name__": name,
    }
    exec(compile(source, f"<{name}>", "exec"), names)
    return names


def signatures(source: str) -> dict[str, str]:
    """Return Class.method → arguments and result."""
    found = {}
    for node in ast.parse(source).body:
        for each in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(each, ast.FunctionDef):
                returned = ast.unparse(each.returns) if each.returns else ""
                found[f"{node.name}.{each.name}"] = f"{ast.unparse(each.args)} -> {returned}"
    return found


@pytest.fixture
def calls() -> Counter[str]:
    return Counter()


def counted(calls: Counter[str], kind: type, *names: str) -> type:
    """Return a subclass whose methods are counted as Class.method."""

    def member(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls[f"{kind.__name__}.{name}"] += 1
            return getattr(super(derived, self), name)(*args, **kwargs)

        return method

    derived = type(kind.__name__, (kind,), {name: member(name) for name in names})
    return derived


class Net(nn.Module):
    """A user's model: Q-values, or a policy and a value."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.net = nn.Linear(kwargs["obs_space"].shape[0], kwargs["act_space"].n)

    def value(self, x: Tensor, a: Tensor | None = None) -> tuple[Any]:
        return (self.net(x),)

    def action(self, x: Tensor) -> tuple[Any]:
        return (torch.distributions.Categorical(logits=self.net(x)),)


class Own:
    """A user's algorithm that is derived from nothing."""

    output = "q"

    def __init__(self, **kwargs: Any) -> None:
        self.model = kwargs.get("model", Net)(**kwargs)
        self.target_model = copy.deepcopy(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=kwargs.get("learning_rate", 0.1))
        self.seen: list[BufferSamples] = []

    def predict(self, obs: Tensor) -> tuple[Any]:
        if self.output == "distribution":
            return self.model.action(obs)
        q = self.model.value(obs)[0]
        return (q,) if self.output == "q" else (q.argmax(-1),)

    def learn(self, data: BufferSamples) -> dict[str, Any]:
        self.seen.append(data)
        with torch.no_grad():
            target = data.rewards + (1 - data.dones) * self.target_model.value(data.next_observations)[0].max(-1).values
        loss = (self.model.value(data.observations)[0].max(-1).values - target).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.sync_target()
        return {"loss": loss}

    def sync_target(self) -> None:
        self.target_model.load_state_dict(self.model.state_dict())


SMALL = {"env": "cartpole", "num_envs": 2, "total_timesteps": 40, "learning_starts": 16, "batch_size": 8}


def spaces() -> dict[str, Any]:
    env = gymnasium.make("CartPole-v1")
    return {"obs_space": env.observation_space, "act_space": env.action_space}


# -- the code block ----------------------------------------------------------------------------------------------------


@pytest.mark.described("generator", 31, "The code block is Python: its four classes can be defined and composed.")
def test_the_skeleton_as_written():
    names = program(SKELETON)
    trainer = names["Trainer"](learning_rate=1.0)
    assert type(trainer.agent.alg.model) is names["Model"]
    assert trainer() is None  # `pass`: the loop of line 126 needs a body


@pytest.mark.described(
    "generator", 125, "Trainer() without arguments, then a loop over trainer() that prints log_data."
)
def test_the_skeleton_with_bodies_runs_as_a_program(capsys):
    assert signatures(FILLED) == signatures(SKELETON)
    program(FILLED, "__main__")
    printed = [ast.literal_eval(line) for line in capsys.readouterr().out.splitlines()]
    assert Counter(each["log_type"] for each in printed) == {"collect": 32, "train": 24}
    assert printed[-1]["sample_step"] == 64 and printed[-1]["logs"]["loss"] >= 0.0


@pytest.mark.described(
    "generator", 3, "An algorithm is four classes, Model, Algorithm, Agent and Trainer, by composition."
)
def test_the_four_classes_hold_each_other():
    trainer = program(FILLED)["Trainer"]()
    parts = [trainer, trainer.agent, trainer.agent.alg, trainer.agent.alg.model]
    assert [type(part).__name__ for part in parts] == ["Trainer", "Agent", "Algorithm", "Model"]
    assert all(type(part).__module__ == "users_program" for part in parts)
    trainer.close()


@pytest.mark.described(
    "generator", 22, "Calls go from the trainer to the agent, the algorithm and the model; data comes back."
)
@pytest.mark.parametrize("on_policy", [False, True])
def test_every_layer_is_called_by_the_one_above(calls, on_policy):
    names = program(FILLED)
    names["Model"] = counted(calls, names["Model"], "value", "action")
    names["Algorithm"] = counted(calls, names["Algorithm"], "predict", "learn", "sync_target")
    agent = counted(calls, names["Agent"], "predict", "sample", "learn")

    class OnRollouts(agent):  # the same losses, with a rollout as one batch
        def learn(self, data: BufferSamples) -> dict[str, Any]:
            return super().learn(data.flat())

    agent = OnRollouts if on_policy else agent
    trainer = counted(calls, Trainer, "_run_collect", "_run_train", "_run_evaluate")
    run = trainer(agent=agent, **SMALL, eval_frequency=20, num_steps=4, learning_rate=0.1, on_policy=on_policy)
    made = Counter(each["log_type"] for each in run())
    assert calls["Trainer._run_collect"] == calls["Agent.sample"] == made["collect"] == 20
    assert calls["Trainer._run_train"] == calls["Agent.learn"] == calls["Algorithm.learn"] == made["train"]
    assert made["train"] == (5 if on_policy else 12) and made["evaluate"] == calls["Trainer._run_evaluate"] == 2
    assert calls["Agent.predict"] > 20 and calls["Algorithm.predict"] == calls["Agent.predict"]
    assert calls["Model.action"] == calls["Algorithm.predict"] and calls["Model.value"] >= 2 * made["train"]
    assert calls["Algorithm.sync_target"] == made["train"] // 8


# -- Model -------------------------------------------------------------------------------------------------------------


@pytest.mark.described("generator", 5, "A model is one or several networks from the state of the env to raw outputs.")
@pytest.mark.described("generator", 33, "A model is made with the settings as keyword arguments.")
def test_a_model_gets_the_settings_and_the_state():
    shown = []

    class Seen(Net):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.width = kwargs["width"]

        def value(self, x: Tensor, a: Tensor | None = None) -> tuple[Any]:
            shown.append(x)
            return super().value(x, a)

    trainer = Trainer(alg=Own, model=Seen, width=7, **SMALL)
    next(trainer())
    assert trainer.agent.alg.model.width == 7
    assert [(tuple(x.shape), x.dtype) for x in shown] == [((2, 4), torch.float32)]
    trainer.close()


@pytest.mark.described("generator", 36, "value(x, a=None) returns the output of one critic, or of several.")
@pytest.mark.described("generator", 40, "action(x) returns actions, or a distribution of them.")
def test_outputs_of_a_model():
    kwargs = spaces()
    model = Net(**kwargs)
    assert model.value(torch.zeros(3, 4))[0].shape == (3, 2)
    assert Agent(Own(**kwargs), act_space=kwargs["act_space"]).predict(np.zeros((3, 4), np.float32)).shape == (3,)
    # ours, with two critics
    from striderl.algorithms.actor_critic.sac import SAC
    from striderl.policies.actor_policy import ActorConfig, ActorPolicy
    from striderl.policies.value_functions import QFunction, QFunctionConfig

    env = make("pendulum", num_envs=1)
    policy = ActorPolicy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(8,), head="squashed_gaussian"))
    critic = QFunction(env.obs_spec, env.action_spec, QFunctionConfig(hidden_dims=(8,)))
    ours = Algorithm(SAC(policy, critic)).model
    assert [value.shape for value in ours.value(torch.zeros(3, 3), torch.zeros(3, 1))] == [(3,), (3,)]
    assert ours.action(torch.zeros(3, 3)).mode().shape == (3, 1)


# -- Algorithm ---------------------------------------------------------------------------------------------------------


@pytest.mark.described(
    "generator", 6, "An algorithm defines how the model is updated, and turns its outputs into choices."
)
@pytest.mark.described("generator", 53, "predict returns actions, a distribution of actions, or Q-values.")
@pytest.mark.parametrize("output", ["actions", "distribution", "q"])
def test_what_predict_may_return(output):
    own = type("Own", (Own,), {"output": output})
    kwargs = spaces()
    agent = Agent(own(**kwargs), act_space=kwargs["act_space"], epsilon=1.0)
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    best = agent.alg.model.value(torch.as_tensor(obs))[0].argmax(-1).numpy()
    assert (agent.predict(obs) == best).all(), "greedy: the mode, the largest Q, the action itself"
    sampled = agent.sample(obs)
    assert sampled.dtype.kind == "i" and set(sampled) <= {0, 1}
    assert ((sampled == best).all()) == (output == "actions"), "a sample of the distribution; epsilon of the Q-values"


@pytest.mark.described("generator", 48, "An algorithm makes the model, the target model and the optimizer.")
@pytest.mark.described(
    "generator", 57, "learn computes targets and losses, steps the model and returns what is logged."
)
def test_learn_moves_the_model_and_its_result_is_the_log():
    trainer = Trainer(alg=Own, **SMALL)
    alg = trainer.agent.alg
    before = alg.model.net.weight.detach().clone()
    train = [each for each in trainer() if each["log_type"] == "train"]
    assert not torch.equal(before, alg.model.net.weight)
    assert all(set(each["logs"]) == {"loss"} and type(each["logs"]["loss"]) is float for each in train)
    assert isinstance(alg.seen[0].observations, Tensor) and alg.seen[0].observations.shape == (8, 4)


@pytest.mark.described("generator", 65, "sync_target makes the target model equal to the model.")
def test_sync_target_is_called_by_learn_or_by_the_agent(calls):
    class Waits(Own):
        def learn(self, data: BufferSamples) -> dict[str, Any]:
            return {}

    waiting = counted(calls, Waits, "sync_target")
    list(Trainer(alg=waiting, **SMALL, target_network_frequency=16)())
    assert calls["Waits.sync_target"] == 2  # at 16 and 32 of 40 env steps
    with pytest.warns(UserWarning, match=r"nothing calls Waits.sync_target: call it in learn, or give target_network"):
        Trainer(alg=Waits, **SMALL)
    # over one of our algorithms it would have no effect
    with pytest.raises(TypeError, match=r"Mine.sync_target would have no effect: .*override learn"):
        type("Mine", (Algorithm,), {"sync_target": lambda self: None, "__module__": "users_program"})


@pytest.mark.described(
    "generator", 45, "An own algorithm is any class with predict and learn; others are refused by name."
)
def test_what_is_no_algorithm_is_named():
    class Half(Algorithm):
        def predict(self, obs: Tensor) -> Tensor:
            return obs

    with pytest.raises(TypeError, match=r"Half lacks learn: .*predict\(obs\) and learn\(data\)"):
        Agent(Half())
    with pytest.raises(TypeError, match="object lacks predict and learn"):
        Agent(object())
    with pytest.raises(TypeError, match=r"Trainer wants an Agent, found Half, which lacks sample"):
        Trainer(agent=type("Half", (), {"predict": None, "learn": print}), **SMALL)
    with pytest.raises(TypeError, match=r"found neither"):
        Trainer(**SMALL)
    kwargs = spaces()
    with pytest.raises(ValueError, match=r"real numbers, which are actions or Q-values; give .*act_space"):
        Agent(Own(**kwargs)).predict(np.zeros((1, 4)))
    wrong = type("Own", (Own,), {"predict": lambda self, obs: "left"})
    with pytest.raises(
        TypeError, match=r"Own.predict must return actions, Q-values \[B, n\] or a distribution, found str"
    ):
        Agent(wrong(**kwargs)).predict(np.zeros((1, 4)))


# -- Agent -------------------------------------------------------------------------------------------------------------


@pytest.mark.described(
    "generator", 7, "An agent stands between the algorithm and the env, and prepares the data to learn from."
)
@pytest.mark.described(
    "generator", 78, "predict: arrays to tensors, Algorithm.predict, the actions back to arrays; for evaluation."
)
@pytest.mark.described("generator", 85, "sample: the same, for training.")
def test_an_agent_turns_arrays_into_tensors_and_back():
    kwargs = spaces()
    given = []

    class Seen(Own):
        def predict(self, obs: Tensor) -> tuple[Any]:
            given.append(obs)
            return super().predict(obs)

    agent = Agent(Seen(**kwargs), act_space=kwargs["act_space"])
    obs = np.zeros((3, 4))  # float64, as some envs give
    for act in (agent.predict(obs), agent.sample(obs)):
        assert isinstance(act, np.ndarray) and act.shape == (3,)
    assert all(isinstance(each, Tensor) and each.dtype == torch.float32 for each in given) and len(given) == 2


@pytest.mark.described("generator", 72, "An agent makes its algorithm, and counts its steps.")
def test_an_agent_with_a_constructor_of_its_own_counts():
    class OwnAgent(Agent):
        def __init__(self, **kwargs: Any) -> None:
            self.alg = Own(**kwargs)
            self.act_space = kwargs["act_space"]

    trainer = Trainer(agent=OwnAgent, **SMALL)
    counts = Counter(each["log_type"] for each in trainer())
    assert trainer.agent.sample_step == 40 == trainer.sample_step
    assert trainer.agent.learn_step == counts["train"] == len(trainer.agent.alg.seen)


@pytest.mark.described("generator", 92, "learn: prepare the data, call Algorithm.learn, return what it returned.")
def test_an_override_of_learn_changes_the_data():
    class Clipped(Agent):
        def learn(self, data: BufferSamples) -> dict[str, Any]:
            assert isinstance(data.rewards, np.ndarray)
            fewer = BufferSamples(**{**vars(data), "rewards": data.rewards * 0.0})
            return {**super().learn(fewer), "seen": len(data)}

    trainer = Trainer(agent=Clipped(Own(**spaces())), **SMALL)
    train = [each["logs"] for each in trainer() if each["log_type"] == "train"]
    assert all(set(logs) == {"loss", "seen"} and logs["seen"] == 8 for logs in train)
    assert not torch.stack([data.rewards for data in trainer.agent.alg.seen]).any()


def test_what_an_agent_returns_is_checked():
    class Triple:
        def __init__(self, **kwargs: Any) -> None: ...

        def sample(self, obs: Any) -> Any:
            return self.result

        predict = learn = sample

    for result, error in (
        ((np.zeros(2, int), 0.0, 0.0), r"Triple.sample must return the actions of 2 envs, found tuple"),
        (np.zeros(3, int), r"Triple.sample: 'act' wants shape \[2\], found \[3\]"),
        (np.zeros(2), r"Triple.sample: 'act' wants whole numbers, found torch.float64"),
        (np.full(2, 9), r"Triple.sample: 'act' wants choices from 0 to 1"),
    ):
        trainer = Trainer(agent=type("Triple", (Triple,), {"result": result}), **SMALL)
        with pytest.raises((TypeError, ValueError), match=error):
            next(trainer())
    with pytest.raises(TypeError, match=r"Own.learn must return a dict of numbers by name, found NoneType"):
        list(Trainer(alg=type("Own", (Own,), {"learn": lambda self, data: None}), **SMALL)())


# -- Trainer -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """A user's config class."""

    total_timesteps: int = 24
    learning_starts: int = 8
    batch_size: int = 4
    learning_rate: float = 0.25


@pytest.mark.described(
    "generator", 99, "Trainer(**kwargs) takes the settings of the run, and hands them on to the agent."
)
@pytest.mark.parametrize(
    "config", [Settings(), Settings, vars(Settings()), None], ids=["dataclass", "class", "dict", "kwargs"]
)
def test_settings_of_a_trainer(config):
    more = vars(Settings()) if config is None else {}
    trainer = Trainer(alg=Own, env="cartpole", config=config, num_envs=3, **more)
    assert trainer.config.total_timesteps == 24 and trainer.config.batch_size == 4
    assert trainer.agent.alg.optimizer.param_groups[0]["lr"] == 0.25
    assert trainer.kwargs["learning_rate"] == 0.25 and trainer.kwargs["num_envs"] == trainer.env.num_envs == 3
    assert isinstance(trainer.kwargs["act_space"], gymnasium.spaces.Discrete)
    trainer.close()


def test_settings_that_nothing_takes_are_named():
    class Exact(Own):
        def __init__(self, obs_space: Any, act_space: Any, learning_rate: float = 0.1) -> None:
            super().__init__(obs_space=obs_space, act_space=act_space, learning_rate=learning_rate)

    list(Trainer(alg=Exact, **SMALL, learning_rate=0.5)())
    with pytest.raises(TypeError, match=r"Exact has no setting 'learning_rat'. Did you mean 'learning_rate'"):
        Trainer(alg=Exact, **SMALL, learning_rat=0.5)
    with pytest.raises(
        TypeError, match=r"Trainer has no setting 'batchsize'. Did you mean 'batch_size'.*is made already"
    ):
        Trainer(agent=Agent(Own(**spaces())), **SMALL, batchsize=4)
    with pytest.raises(TypeError, match=r"OwnTrainer.__init__ must call super\(\).__init__\(agent="):
        list(type("OwnTrainer", (Trainer,), {"__init__": lambda self: None})()())


@pytest.mark.described("generator", 102, "A trainer makes the envs for training and for evaluation.")
@pytest.mark.parametrize("kind", ["name", "gymnasium", "vector", "vec_env", "class"])
def test_envs_of_a_trainer(kind):
    env: Any = {
        "name": lambda: "CartPole-v1",
        "gymnasium": lambda: gymnasium.make("CartPole-v1"),
        "vector": lambda: gymnasium.make_vec("CartPole-v1", 2, "sync"),
        "vec_env": lambda: make("cartpole", num_envs=2),
        "class": lambda: gymnasium.envs.classic_control.CartPoleEnv,
    }[kind]()
    size = 1 if kind == "gymnasium" else 2
    more = {"num_envs": size, "eval_frequency": 16, "num_eval_episodes": 2}
    more |= {} if kind in ("name", "class") else {"eval_env": "cartpole"}
    trainer = Trainer(alg=Own, **{**SMALL, **more, "env": env})
    counts = Counter(each["log_type"] for each in trainer())
    assert counts["collect"] == 40 // size and counts["evaluate"] == 3 and trainer.finished
    assert trainer.eval_env.num_envs == 2


def test_a_wrong_number_of_envs_is_named():
    with pytest.raises(ValueError, match=r"CartPole has 3 envs, wanted num_envs=2"):
        Trainer(alg=Own, **{**SMALL, "env": make("cartpole", num_envs=3)})
    with pytest.raises(TypeError, match="Trainer wants env"):
        Trainer(alg=Own)


@pytest.mark.described(
    "generator", 8, "A trainer holds the course of training and the tools for it, such as the buffer."
)
@pytest.mark.described("generator", 103, "A trainer makes the buffer.")
def test_a_buffer_of_ones_own_is_filled_and_read():
    class Newest:
        def __init__(self) -> None:
            self.rows: list[Any] = []

        def add(self, obs: Any, next_obs: Any, act: Any, rew: Any, done: Any, infos: Any) -> None:
            assert obs.shape == next_obs.shape == (2, 4) and done.dtype == bool and act.shape == rew.shape == (2,)
            self.rows.append((obs, next_obs, act, rew, done))

        def sample(self, batch_size: int) -> BufferSamples:
            obs, next_obs, act, rew, done = (np.concatenate(part)[-batch_size:] for part in zip(*self.rows))
            return BufferSamples(
                observations=obs,
                actions=act,
                rewards=rew,
                next_observations=next_obs,
                dones=done.astype(np.float32),
                truncated=np.zeros_like(done),
                valid=np.ones_like(done),
            )

    trainer = Trainer(alg=Own, buffer=Newest(), **SMALL)
    list(trainer())
    seen, rows = trainer.agent.alg.seen, trainer.buffer.rows
    assert len(rows) == 20 and len(seen) == 12
    np.testing.assert_array_equal(seen[-1].observations[-2:], rows[-1][0])
    with pytest.raises(TypeError, match=r"buffer wants add\(…\) and sample\(batch_size\), found list"):
        Trainer(alg=Own, buffer=[], **SMALL)


@pytest.mark.described(
    "generator", 113, "_run_collect takes one step of the envs into the buffer and returns log_data."
)
@pytest.mark.described(
    "generator", 118, "_run_train takes one batch out of the buffer, trains one step and returns log_data."
)
def test_the_two_methods_of_a_step():
    trainer = Trainer(alg=Own, **SMALL)
    for number in range(1, 9):
        log_data = trainer._run_collect()
        assert log_data["log_type"] == "collect" and log_data["sample_step"] == 2 * number == len(trainer.buffer)
    assert trainer._run_train() == {
        "log_type": "train",
        "sample_step": 16,
        "logs": {"loss": pytest.approx(1.0, abs=2.0)},
    }
    assert len(trainer.agent.alg.seen) == 1 and len(trainer.agent.alg.seen[0]) == 8
    trainer.close()


def test_true_next_observations_and_ends_in_samples_and_rollouts():
    class Watching(Own):
        on_policy = True

        def learn(self, data: BufferSamples) -> dict[str, Any]:
            self.seen.append(data)
            return {}

    env = make("cartpole", num_envs=2, settings={"max_episode_length": 6})
    trainer = Trainer(alg=Watching, env=env, total_timesteps=32, num_steps=8)
    list(trainer())
    first, second = trainer.agent.alg.seen
    assert first.observations.shape == (8, 2, 4) and first.flat().observations.shape == (16, 4)
    # six steps to the time limit: it is no end of the task, and what follows is not the next episode's start
    assert first.truncated[5].all() and not first.dones.any() and first.valid.all()
    going = ~first.truncated[:-1]
    assert torch.equal(first.next_observations[:-1][going], first.observations[1:][going])
    assert (first.next_observations[5] - first.observations[5]).abs().max() < 0.6
    assert first.observations[6].abs().max() <= 0.05 < first.next_observations[5].abs().max()
    assert torch.equal(first.next_observations[-1], second.observations[0])
    pieces = list(first.flat().minibatches(6, torch.arange(16)))
    assert [len(piece) for piece in pieces] == [6, 6, 4]


# -- the generator -----------------------------------------------------------------------------------------------------


@pytest.mark.described("generator", 10, "Trainer.__call__ returns a generator; each step of it gives one log_data.")
@pytest.mark.described("generator", 109, "A log_data is a dict.")
def test_calling_a_trainer_gives_a_generator():
    trainer = Trainer(alg=Own, **SMALL)
    run = trainer()
    assert inspect.isgenerator(run) and trainer.sample_step == 0, "nothing runs before the first next"
    log_data = next(run)
    assert log_data["log_type"] == "collect" and log_data["sample_step"] == trainer.sample_step == 2
    assert set(log_data) <= {"log_type", "sample_step", "logs"}
    trainer.close()


@pytest.mark.described(
    "generator", 10, "The generator keeps the course of training and all its data; exhausting it trains to the end."
)
def test_a_second_generator_continues_where_the_first_was_left():
    def weights(pieces: list[int]) -> tuple[Tensor, list[Any]]:
        torch.manual_seed(0)
        trainer = Trainer(alg=Own, **SMALL)
        found = []
        for size in pieces:
            run = trainer()
            found += [next(run) for _ in range(size)]
        found += list(trainer())
        assert trainer.finished and list(trainer()) == []
        return trainer.agent.alg.model.net.weight, found

    whole, parts = weights([]), weights([3, 11, 1])
    assert torch.equal(whole[0], parts[0]) and whole[1] == parts[1]
    assert Counter(each["log_type"] for each in whole[1]) == {"collect": 20, "train": 12}


OWN_AGENTS = {
    "plain": lambda: program(FILLED)["Agent"],
    "q": lambda: Own,
    "distribution": lambda: type("Own", (Own,), {"output": "distribution", "on_policy": True}),
}


@pytest.mark.described(
    "generator", 10, "All data of a run can be saved, and another process continues it to the same bits."
)
@pytest.mark.parametrize("kind", OWN_AGENTS)
def test_a_saved_trainer_continues_to_the_same_bits(kind, tmp_path):
    part = OWN_AGENTS[kind]()
    where = {"agent": part} if kind == "plain" else {"alg": part}

    def made() -> Trainer:
        return Trainer(**where, **SMALL, num_steps=4, learning_rate=0.1, eval_frequency=20, num_eval_episodes=1)

    def comparable(rest: list[Any], trainer: Trainer) -> Any:
        return repr(rest), trainer.agent.alg.model.state_dict()["net.weight"].tolist()

    torch.manual_seed(0)
    np.random.seed(0)
    trainer = made()
    run = trainer()
    for _ in range(23):
        next(run)
    getattr(trainer.agent.alg, "seen", []).clear()
    path = trainer.save(tmp_path)
    rest = comparable(list(run), trainer)
    torch.manual_seed(77)
    np.random.seed(77)
    again = made()
    assert not torch.equal(again.agent.alg.model.net.weight, trainer.agent.alg.model.net.weight)
    again.load(tmp_path)
    assert comparable(list(again()), again) == rest
    assert sorted(each.name for each in path.iterdir()) == ["manifest.json", "state.json", "tensors.safetensors"]
    trainer.save(tmp_path)  # also when it is over and the envs are closed
    longer = made()
    longer.load(tmp_path)
    assert longer.finished


@pytest.mark.parametrize("which", ["dqn", "ppo"])
def test_our_algorithms_resume_in_this_style_as_well(which, tmp_path):
    from striderl.algorithms.on_policy.ppo import PPO
    from striderl.algorithms.value_based.dqn import DQN, q_policy
    from striderl.policies.policy import Policy

    class Counting(Agent):
        def __init__(self, alg: Any) -> None:
            super().__init__(alg)
            self.odd = 0

        def sample(self, obs: Any) -> Any:
            self.odd += 1
            return super().sample(obs)

    def made() -> Trainer:
        env = make("cartpole", num_envs=2)
        core = (
            DQN(q_policy(env.obs_spec, env.action_spec))
            if which == "dqn"
            else PPO(Policy(env.obs_spec, env.action_spec))
        )
        return Trainer(Counting(Algorithm(core)), **{**SMALL, "env": env}, num_steps=4)

    trainer = made()
    run = trainer()
    for _ in range(17):
        next(run)
    state = trainer.state_dict()
    rest = list(run)
    torch.manual_seed(5)
    again = made()
    again.load_state_dict(state)
    assert list(again()) == rest and again.agent.odd == trainer.agent.odd == 20
    for one, two in zip(again.core.policy.parameters(), trainer.core.policy.parameters()):
        assert torch.equal(one, two)


def test_state_that_cannot_be_saved_is_named_and_other_state_is_whole(tmp_path):
    class Rich(Own):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
            self.returns, self.best, self.betas, self.table = [1.0, 2.0], None, (0.5, 3), {"a": np.ones(2), 1: "x"}
            self.free = nn.Parameter(torch.ones(2))
            self.space, self.generator = kwargs["act_space"], torch.Generator().manual_seed(kwargs["seed"])

    trainer = Trainer(alg=Rich, **SMALL, seed=1)
    alg = trainer.agent.alg
    alg.returns += [3.0]
    alg.best, alg.betas, alg.table = 7, (0.25, 4), {"a": np.zeros(3), "b": True}
    alg.free.data.fill_(4.0)
    alg.optimizer.step()
    alg.schedule.step()
    trainer.save(tmp_path)
    drawn = ([alg.space.sample() for _ in range(9)], torch.rand(3, generator=alg.generator))
    again = Trainer(alg=Rich, **SMALL, seed=2)
    kept = again.agent.alg.free
    again.load(tmp_path)
    found = again.agent.alg
    assert found.free is kept and kept.tolist() == [4.0, 4.0]
    assert (found.returns, found.best, found.betas) == ([1.0, 2.0, 3.0], 7, (0.25, 4))
    assert set(found.table) == {"a", "b"} and found.table["a"].shape == (3,)
    assert found.schedule.last_epoch == 1
    assert [found.space.sample() for _ in range(9)] == drawn[0]
    assert torch.equal(torch.rand(3, generator=found.generator), drawn[1])
    alg.stream = (number for number in range(3))
    with pytest.raises(TypeError, match=r"alg.stream: a generator cannot be saved; define state_dict\(\)"):
        trainer.state_dict()
    for each in (trainer, again):
        each.close()


# -- the logger --------------------------------------------------------------------------------------------------------


@pytest.mark.described("generator", 12, "The logger writes to TensorBoard, as a decorator of Trainer.__call__.")
def test_tensorboard_by_a_decorator(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Logged(Trainer):
        __call__ = logger("tensorboard", "jsonl", folder=tmp_path)(Trainer.__call__)

    trainer = Logged(alg=Own, **SMALL)
    logs = [each for each in trainer() if each["log_type"] == "train"]
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    written = events.Scalars("train/loss")
    assert [row.step for row in written] == [each["sample_step"] for each in logs]
    assert [row.value for row in written] == pytest.approx([each["logs"]["loss"] for each in logs])
    assert (tmp_path / "metrics.jsonl").read_text().count("train/loss") == len(logs)
    assert Trainer.__call__ is not Logged.__call__, "trainers of other classes are not logged"


@pytest.mark.described(
    "generator",
    12,
    "The logger writes to Weights & Biases.",
    difference="offline unless WandbLogger(mode='online') is given",
)
def test_wandb_by_a_decorator(tmp_path, monkeypatch):
    trainer = Trainer(alg=Own, **SMALL)
    monkeypatch.setitem(sys.modules, "wandb", None)  # not installed
    with pytest.raises(ImportError, match=r"needs the package 'wandb', which is not installed. Run: pip install"):
        next(logger("wandb", folder=tmp_path)(Trainer.__call__)(trainer))

    class Fake:
        rows: list[Any] = []
        config: dict[str, Any] = {}

        Settings = dict

        @classmethod
        def init(cls, **kwargs: Any) -> Any:
            cls.mode = kwargs["mode"]
            cls.config = type("Config", (), {"update": lambda self, values, **more: cls.rows.append(values)})()
            return cls

        @classmethod
        def log(cls, row: Any, step: int) -> None:
            cls.rows.append((step, set(row)))

        @classmethod
        def finish(cls) -> None:
            cls.rows.append("finished")

    monkeypatch.setitem(sys.modules, "wandb", Fake)
    list(logger("wandb", folder=tmp_path)(Trainer.__call__)(trainer))
    assert Fake.mode == "offline" and Fake.rows[0]["total_timesteps"] == 40 and Fake.rows[-1] == "finished"
    assert (40, {"train/loss"}) in Fake.rows
    with pytest.raises(KeyError, match="tensorbord"):
        logger("tensorbord")
    with pytest.raises(TypeError, match=r"logger\('tensorboard'\)\(call\)"):
        logger(Trainer.__call__)


@pytest.mark.described(
    "generator", 12, "Any function of a generator function decorates Trainer.__call__, of a plain class as well."
)
def test_a_decorator_of_ones_own_and_a_trainer_of_ones_own(tmp_path, monkeypatch):
    def only_train(call: Any) -> Any:
        def decorated(trainer: Any) -> Any:
            return (log_data for log_data in call(trainer) if log_data["log_type"] == "train")

        return decorated

    class Mine(Trainer):
        pass

    monkeypatch.setattr(Mine, "__call__", only_train(Mine.__call__), raising=False)
    assert {each["log_type"] for each in Mine(alg=Own, **SMALL)()} == {"train"}

    class Plain:  # nothing of ours
        @logger("jsonl", folder=tmp_path)
        def __call__(self) -> Any:
            for step in range(3):
                yield {"log_type": "train", "sample_step": step, "logs": {"loss": torch.tensor(0.5), "all": [1, 2]}}

    assert len(list(Plain()())) == 3
    assert (tmp_path / "metrics.jsonl").read_text().count('"train/loss":0.5') == 3


# -- an algorithm that the library does not have -----------------------------------------------------------------------


class Linear(nn.Module):
    """One linear policy of choices per env, and the mean of all."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(kwargs["act_space"].n, kwargs["obs_space"].shape[0]), requires_grad=False)
        self.std = nn.Parameter(torch.ones_like(self.mean), requires_grad=False)
        self.candidates = nn.Parameter(torch.empty(kwargs["num_envs"], *self.mean.shape), requires_grad=False)

    def action(self, x: Tensor) -> Tensor:
        return (x @ self.mean.T).argmax(-1)

    def candidate_action(self, x: Tensor) -> Tensor:
        return (self.candidates @ x[..., None])[..., 0].argmax(-1)


class CrossEntropy(Algorithm):
    """Cross-entropy method: each env plays a candidate for a rollout, the best quarter makes the next generation."""

    on_policy = True

    def __init__(self, **kwargs: Any) -> None:
        self.model = Linear(**kwargs)
        self.generator = torch.Generator().manual_seed(kwargs["seed"])
        self.sync_target()

    def predict(self, obs: Tensor) -> Tensor:
        return self.model.action(obs)

    def learn(self, data: BufferSamples) -> dict[str, Any]:
        model, ends = self.model, data.dones.sum(0)
        elite = model.candidates[ends.argsort()[: len(ends) // 4]]
        model.mean.copy_(elite.mean(0))
        model.std.copy_(elite.std(0) + 0.05)
        self.sync_target()
        return {"falls": ends.mean()}

    def sync_target(self) -> None:
        noise = torch.randn(self.model.candidates.shape, generator=self.generator)
        self.model.candidates.copy_(self.model.mean + self.model.std * noise)


class Candidates(Agent):
    """Env i is played by candidate i."""

    def __init__(self, **kwargs: Any) -> None:
        self.alg = CrossEntropy(**kwargs)

    def sample(self, obs: np.ndarray) -> np.ndarray:
        self.sample_step += len(obs)
        return self.alg.model.candidate_action(torch.as_tensor(obs)).numpy()


@pytest.mark.described(
    "generator", 3, "An algorithm that the library does not have is written in these four classes, and learns."
)
@pytest.mark.slow
def test_the_cross_entropy_method_balances_cartpole():
    trainer = Trainer(
        agent=Candidates, env="cartpole", num_envs=32, num_steps=200, total_timesteps=96_000, eval_frequency=95_000
    )
    logs = list(trainer())
    falls = [each["logs"]["falls"] for each in logs if each["log_type"] == "train"]
    first, last = (each["logs"]["mean_episodic_return"] for each in logs if each["log_type"] == "evaluate")
    assert first < 60 and last > 300 and falls[-1] < 0.3 * falls[0]
