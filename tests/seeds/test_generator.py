"""The document of the Model / Algorithm / Agent / Trainer design: its code executed, its sentences one test each."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Generator
from typing import Any, Optional

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from striderl.compat import generator
from striderl.compat.generator import Agent, Algorithm, BufferSamples, Trainer
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
        list(Trainer(alg=type("Own", (Own,), {"learn": lambda self, data: None, "sync_target": None}), **SMALL)())
