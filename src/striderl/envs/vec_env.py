"""The environment contract: N environments as one object, torch in, torch out, on any device.

    obs = env.reset(seed=7)            dict of name -> [N, …]
    step = env.step(actions)           step.obs, step.reward [N], step.terminated [N], step.truncated [N], …

                 step t                          step t + 1
    obs_t ──act──▶ reward_t, terminated_t, truncated_t
                   final_obs_t  = where the episode really ended (rows that are done)
                   obs_{t+1}    = what to act on next; after an end it is the first observation of the next episode

An env resets itself in the step in which an episode ends, so every call of `step` is one real transition for every env:
there are no phantom steps whose action is ignored. `terminated`: the task ended (no future reward),
`truncated`: the time limit did (bootstrap with V(final_obs)); both may be true, and then terminated counts.
An env never changes a tensor it has returned.

Environments with an asynchronous step, so that simulation and inference overlap.

    whole = GymnasiumEnv("CartPole-v1", 64, workers=WorkerConfig(num_workers=4))

    alternating: two halves              asynchronous: whichever is ready
    left, right = whole.split(2)         parts = whole.split(4)
    left.step_async(act_left)            for part in parts: part.step_async(act(obs[part]))
    right.step_async(act_right)          for part in whole.wait_any(parts, timeout=1.0):
    step = left.step_wait()                  step = part.step_wait()
    left.step_async(act(step.obs))           part.step_async(act(step.obs))
    step = right.step_wait()  …

    left   sim ████████ . wait . sim ████████
    right        . wait . sim ████████         the policy acts for one half while the other half is simulated

An env that cannot overlap may still follow this interface: it does its work in `step_wait`, and `is_ready` is true at
once. Every part is a `VecEnv` of its own rows, with the seeds of those rows, so the data does not depend on the split.

Also here: the checks that all built-in envs share: no episode yet, closed, wrong shapes, another task's state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.data.actions import ActionSpec, ActuationSpec
from striderl.data.specs import ObsSpec, TensorSpec

Obs = dict[str, Tensor]
Actions = Tensor | dict[str, Tensor]


class ContractError(Exception):
    """An environment broke the contract; the message names the env, the field, what was wanted and what was found."""


class Step(NamedTuple):
    """The result of one `VecEnv.step`."""

    obs: Obs
    """What to act on next, [N, …] per component; already reset where an episode ended."""
    reward: Tensor
    """float32 [N]."""
    terminated: Tensor
    """bool [N]: the task ended here."""
    truncated: Tensor
    """bool [N]: the time limit or another outside reason ended the episode here."""
    final_obs: Obs | None
    """Where `gives_final_obs`: [N, …] per component, meaningful in rows that are done; otherwise None."""
    info: dict[str, Any]
    """The declared keys as [N, …] tensors, and 'log': a dict from name to number or 0-d tensor, possibly empty."""

    @property
    def done(self) -> Tensor:
        """Whether an episode ended in this step, for whichever reason: bool [N]."""
        return self.terminated | self.truncated


class VecEnv(ABC):
    """N environments that are stepped together. Subclasses set the attributes below in their constructor."""

    num_envs: int
    """How many environments there are."""
    device: torch.device
    """Where observations, rewards and flags live, and where actions are expected."""
    obs_spec: ObsSpec
    """Names, shapes, dtypes and groups of what `reset` and `step` return."""
    action_spec: ActionSpec
    """What `step` takes."""
    info_spec: Mapping[str, TensorSpec]
    """The per-env info keys that every step carries besides 'log'; only these can be stored."""
    gives_final_obs: bool
    """Whether `Step.final_obs` is filled; fixed at construction."""
    max_episode_length: int
    """Steps after which an episode is truncated; 0 when there is no limit."""
    step_dt: float
    """Seconds of simulated time per step; 0 when time has no meaning."""
    render_fps: float = 0.0
    """Steps per second at which the env is shown where `step_dt` is 0; 0 when unknown."""
    actuation: ActuationSpec | None = None
    """How the env processes an action before its actuators, for a run's files and exports; None where unknown."""
    made_as: tuple[str, Mapping[str, Any]] | None = None
    """The task's name and settings, where `make` built the env by a name: by them it can be built again."""
    first_env_index: int = 0
    """The global index of env 0, when several processes each hold a part of the envs; seeds follow it."""

    @abstractmethod
    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env; with a seed, restart all random streams from it."""

    @abstractmethod
    def step(self, actions: Actions) -> Step:
        """Advance every env by one step; an env whose episode ends starts the next one before this returns."""

    @abstractmethod
    def reset_envs(self, mask: Tensor) -> Obs:
        """Abandon the episode of the envs where mask [N] is true, start new ones, and return the observation of all."""

    @property
    @abstractmethod
    def episode_length_buf(self) -> Tensor:
        """Steps taken so far in each env's episode, int64 [N]."""

    @episode_length_buf.setter
    @abstractmethod
    def episode_length_buf(self, value: Tensor) -> None:
        """Set the age of the episodes, so that the first time-outs of many envs are spread."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that a later `load_state_dict` needs to continue bit for bit: tensors, numbers and strings."""
        raise StateUnsupportedError(f"{type(self).__name__} cannot save its state; a resumed run resets it instead")

    def load_state_dict(self, state: Mapping[str, Any]) -> Obs:
        """Continue from a saved state and return the observation that was current then."""
        raise StateUnsupportedError(f"{type(self).__name__} cannot load a state; a resumed run resets it instead")

    def render(self, env_index: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return one env's picture as uint8 [height, width, 3]."""
        raise RuntimeError(f"{type(self).__name__} has no picture: define render(env_index), uint8 [height, width, 3]")

    def pose(self) -> Tensor | None:
        """Return the joint positions of the env's MuJoCo model on the CPU, [N, nq], a copy; None without such a model.

        Traces of faults keep them, so that the last second can be shown again.
        """
        return None

    @property
    def shown_dt(self) -> float:
        """Seconds from one step to the next in a video or a window: `step_dt`, else by `render_fps`; 0 when unknown."""
        return self.step_dt or (1.0 / self.render_fps if self.render_fps else 0.0)

    def metrics(self) -> dict[str, Tensor]:
        """Return running task metrics per env, float [N] each (tracking error, cost of transport, …)."""
        return {}

    def close(self) -> None:  # noqa: B027  (most envs hold nothing that needs closing)
        """Release processes, windows and memory; calling it twice is fine."""

    def __enter__(self) -> VecEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StateUnsupportedError(RuntimeError):
    """The env has no exact state to save; resuming it starts new episodes."""


def env_seed_sequence(seed: int, global_index: int) -> np.random.SeedSequence:
    """Return the random stream of one env: a child of the run's seed, so no two envs or seeds ever share one."""
    return np.random.SeedSequence(seed, spawn_key=(global_index,))


# -- asynchronous steps ------------------------------------------------------------------------------------------------


class AsyncVecEnv(VecEnv):
    """A `VecEnv` whose step is two calls: `step_async` sends the actions, `step_wait` returns the result."""

    runs_ahead: bool = True
    """Whether a step runs between the two calls, or only in `step_wait`."""

    @abstractmethod
    def step_async(self, actions: Actions) -> None:
        """Start one step in every env and return at once; a second call before `step_wait` is an error."""

    @abstractmethod
    def step_wait(self) -> Step:
        """Return the step that `step_async` started, waiting for it if need be; failures of an env are raised here."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether `step_wait` would return, or raise, without waiting."""

    @abstractmethod
    def split(self, num_parts: int) -> list[AsyncVecEnv]:
        """Return consecutive parts of the envs, as even as the back end allows, that can be stepped independently."""

    @abstractmethod
    def wait_any(self, parts: Sequence[AsyncVecEnv], timeout: float | None = None) -> list[AsyncVecEnv]:
        """Wait until one of these parts with a step under way is ready and return all that are, in their order here.

        The list is empty when `timeout` seconds passed first; None waits until a part is ready, has failed or has
        run into its deadline.
        """

    def step(self, actions: Actions) -> Step:
        """Advance every env by one step; an env whose episode ends starts the next one before this returns."""
        self.step_async(actions)
        return self.step_wait()


# -- checks of the built-in envs ---------------------------------------------------------------------------------------


def not_ready(who: object, *, closed: bool) -> RuntimeError:
    """Return the error for a call that needs an episode when there is none, or when the env is closed."""
    if closed:
        return RuntimeError(f"this {type(who).__name__} is closed; build a new one")
    return RuntimeError(f"{type(who).__name__} has no episode yet; call reset() first")


def require_open(who: object, *, closed: bool) -> None:
    """Raise if the env is closed."""
    if closed:
        raise not_ready(who, closed=True)


def check_env_index(env_index: int, num_envs: int) -> None:
    """Raise unless there is an env of this index."""
    if not 0 <= env_index < num_envs:
        raise IndexError(f"render: env_index {env_index} is not in 0 to {num_envs - 1}")


def check_mask(mask: Tensor, num_envs: int) -> None:
    """Raise unless a mask has one flag per env."""
    if tuple(mask.shape) != (num_envs,) or mask.dtype != torch.bool:
        raise ValueError(f"reset_envs wants a bool mask [{num_envs}], found {mask.dtype} {list(mask.shape)}")


def check_ages(ages: Tensor, num_envs: int) -> None:
    """Raise unless there is an episode's length for every env."""
    if tuple(ages.shape) != (num_envs,):
        raise ValueError(f"episode_length_buf wants [{num_envs}] numbers, found {list(ages.shape)}")


def action_array(who: object, actions: object, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a tensor of actions as an array, or raise unless it is one of this shape."""
    if not isinstance(actions, Tensor):
        raise TypeError(f"{type(who).__name__} wants a tensor of actions, found {type(actions).__name__}")
    chosen = actions.detach() if actions.requires_grad else actions
    array: NDArray[Any] = chosen.numpy() if chosen.is_cpu else chosen.cpu().numpy()
    if array.shape != shape:
        raise ValueError(f"{type(who).__name__} wants actions {list(shape)}, found {list(array.shape)}")
    return array


def check_saved_task(state: Mapping[str, Any], task: str) -> None:
    """Raise unless a state was saved from this task."""
    if "task" not in state:
        raise ValueError(f"the state to load into {task!r} does not say which task it was saved from")
    if state["task"] != task:
        raise ValueError(f"the state was saved from task {state['task']!r} and cannot be loaded into {task!r}")
