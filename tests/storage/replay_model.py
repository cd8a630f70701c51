"""A replay as plain Python lists: slow, and short enough to be checked by eye."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from striderl.data.actions import BoxSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.data.transition import Transition, transition_columns
from striderl.storage.replay.replay import Replay

COLUMNS = transition_columns(
    ObsSpec.from_segments({"a": 1, "b": (2, 1)}),
    BoxSpec(shape=(1,), low=-1e9, high=1e9),
    {"tag": TensorSpec(dtype="int64")},
    {"log_prob": TensorSpec()},
)


@dataclass
class ModelStep:
    """One step of one env; every number tells where it comes from."""

    number: int
    obs: float
    next_obs: float
    final_obs: float
    rew: float
    terminated: bool
    truncated: bool
    valid: bool

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    @property
    def obs_next(self) -> float:
        return self.final_obs if self.done else self.next_obs


@dataclass
class ModelReplay:
    """All steps that were ever added, env by env; the newest `capacity` of them are alive."""

    num_envs: int
    capacity: int
    steps: list[list[ModelStep]] = field(default_factory=list)
    clock: float = 1.0

    def __post_init__(self) -> None:
        self.steps = [[] for _ in range(self.num_envs)]

    def alive(self, env: int) -> list[ModelStep]:
        return self.steps[env][-self.capacity :]

    def new_step(self, env: int, terminated: bool, truncated: bool, valid: bool) -> ModelStep:
        """Continue the env: an episode goes on with the observation that followed, or with a fresh one after an end."""
        past = self.steps[env]
        self.clock += 4.0
        start = self.clock if not past or past[-1].done else past[-1].next_obs
        if past and past[-1].done:
            start = past[-1].next_obs
        step = ModelStep(
            len(past), start, self.clock + 1.0, self.clock + 2.0, self.clock / 7.0, terminated, truncated, valid
        )
        past.append(step)
        return step


def transition(steps: list[ModelStep], *, finals: bool = True) -> Transition:
    """Turn one step of each env into tensors."""

    def obs(values: list[float]) -> dict[str, torch.Tensor]:
        a = torch.tensor(values)[:, None]
        return {"a": a, "b": torch.stack([a, -a], dim=1)}

    return Transition(
        obs=obs([s.obs for s in steps]),
        act=torch.tensor([[s.obs + 0.5] for s in steps]),
        rew=torch.tensor([s.rew for s in steps]),
        terminated=torch.tensor([s.terminated for s in steps]),
        truncated=torch.tensor([s.truncated for s in steps]),
        valid=torch.tensor([s.valid for s in steps]),
        info={"tag": torch.tensor([s.number for s in steps])},
        policy={"log_prob": torch.tensor([-s.rew for s in steps])},
        next_obs=obs([s.next_obs for s in steps]),
        final_obs=obs([s.final_obs for s in steps]) if finals else None,
        next_state={"h": torch.tensor([[s.next_obs * 10.0] for s in steps])},
    )


def locate(replay: Any, model: ModelReplay, index: torch.Tensor) -> list[tuple[int, int]]:
    """Return (env, position among the steps alive) of rows."""
    env = (index % model.num_envs).tolist()
    return list(zip(env, replay.read.position(index).tolist()))


FLAGS = st.tuples(
    st.sampled_from([(False, False), (False, False), (True, False), (False, True), (True, True)]),
    st.sampled_from([True, True, True, False]),
)


@st.composite
def histories(draw: Any) -> tuple[int, int, list[tuple[slice | None, list[Any]]]]:
    """Return (envs, steps per env, adds): each add is a range of envs and the flags of each of them."""
    num_envs, capacity = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    adds = []
    for _ in range(draw(st.integers(1, 14))):
        if draw(st.booleans()):
            envs, count = None, num_envs
        else:
            start = draw(st.integers(0, num_envs - 1))
            stop = draw(st.integers(start + 1, num_envs))
            envs, count = slice(start, stop), stop - start
        adds.append((envs, draw(st.lists(FLAGS, min_size=count, max_size=count))))
    return num_envs, capacity, adds


def build(history: Any, **options: Any) -> tuple[Replay, ModelReplay]:
    num_envs, capacity, adds = history
    replay, model = Replay(COLUMNS, capacity * num_envs, num_envs, **options), ModelReplay(num_envs, capacity)
    play(replay, model, adds)
    return replay, model


def play(replay: Replay, model: ModelReplay, adds: Any) -> None:
    for envs, flags in adds:
        first = 0 if envs is None else envs.start
        steps = [model.new_step(first + i, *ends, valid) for i, (ends, valid) in enumerate(flags)]
        replay.add(transition(steps), envs)
