"""The second half of the Model / Algorithm / Agent / Trainer document: the trainer, its generator and its loggers."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from test_generator import FILLED, SMALL, Own, program, spaces
from torch import Tensor, nn

from striderl.compat.generator import Agent, Algorithm, BufferSamples, Trainer, logger
from striderl.envs import make

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
        "class": lambda: CartPoleEnv,
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


class Named(gymnasium.Env):
    """Two named observations, real-valued actions."""

    observation_space = gymnasium.spaces.Dict(
        {"far": gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32), "near": gymnasium.spaces.Discrete(3)}
    )
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return {"far": np.zeros(2, np.float32), "near": 0}, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return {"far": np.full(2, action[0], np.float32), "near": self.count % 3}, 1.0, self.count == 5, False, {}


def test_named_observations_are_dicts_in_every_layer():
    class Far(Algorithm):
        def __init__(self, **kwargs: Any) -> None:
            assert kwargs["obs_space"] == Named.observation_space and kwargs["act_space"] == Named.action_space

        def predict(self, obs: dict[str, Tensor]) -> Tensor:
            return obs["far"][:, :1] + 0.25

        def learn(self, data: BufferSamples) -> dict[str, Any]:
            ahead = data.next_observations["far"][:, :1]
            assert torch.equal(ahead, data.actions) and data.observations["near"].dtype == torch.int64
            return {"ends": data.dones.sum()}

    logs = list(Trainer(alg=Far, **{**SMALL, "env": Named})())
    assert sum(each["logs"]["ends"] for each in logs if each["log_type"] == "train") > 0
    assert {"episodic_return": 5.0, "episodic_length": 5.0, "num_episodes": 2} in [each.get("logs") for each in logs]


def test_a_rollout_wants_final_observations():
    env = make("cartpole", num_envs=2)
    env.gives_final_obs = False
    with pytest.raises(ValueError, match=r"CartPole gives no final observations .*Agent\(Algorithm\(PPO"):
        Trainer(alg=Own, **{**SMALL, "env": env}, on_policy=True)


def test_true_next_observations_and_ends_in_samples_and_rollouts():
    class Watching(Own):
        on_policy, sync_target = True, None

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

    class Halving(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.share = 1.0

        def _run_train(self) -> dict[str, Any]:
            self.share /= 2
            return super()._run_train()

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
        return Halving(Counting(Algorithm(core)), **{**SMALL, "env": env}, num_steps=4)

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
    assert again.share == trainer.share < 1.0, "attributes of a subclass are saved as well"
    for one, two in zip(again.core.policy.parameters(), trainer.core.policy.parameters()):
        assert torch.equal(one, two)


def test_envs_without_a_state_begin_new_episodes_after_a_load(tmp_path):
    def made() -> Trainer:
        return Trainer(alg=Own, **{**SMALL, "env": "CartPole-v1"})

    trainer = made()
    run = trainer()
    for _ in range(19):
        next(run)
    trainer.save(tmp_path)
    again = made()
    again.load(tmp_path)
    assert again.sample_step == trainer.sample_step and len(again.buffer) == len(trainer.buffer)
    assert [each["log_type"] for each in again()] == [each["log_type"] for each in run]


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
    alg.later = {"number": 3}  # made while it ran
    trainer.save(tmp_path)
    drawn = ([alg.space.sample() for _ in range(9)], torch.rand(3, generator=alg.generator))
    again = Trainer(alg=Rich, **SMALL, seed=2)
    kept = again.agent.alg.free
    again.load(tmp_path)
    found = again.agent.alg
    assert found.free is kept and kept.tolist() == [4.0, 4.0]
    assert (found.returns, found.best, found.betas) == ([1.0, 2.0, 3.0], 7, (0.25, 4))
    assert set(found.table) == {"a", "b"} and found.table["a"].shape == (3,)
    assert found.schedule.last_epoch == 1 and found.later == {"number": 3}
    assert [found.space.sample() for _ in range(9)] == drawn[0]
    assert torch.equal(torch.rand(3, generator=found.generator), drawn[1])
    state = trainer.state_dict()
    del found.schedule
    with pytest.raises(KeyError, match=r"the saved state has \['schedule'\], which this object lacks"):
        again.load_state_dict(state)
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
    assert first < 60 and last > 300 and min(falls) < 0.2 * falls[0]
