"""Write a MuJoCo task as a few functions over [N, …] arrays; the base class does the stepping, resets and bookkeeping.

    class Balance(MujocoEnv):
        def __init__(self, config: MujocoConfig, randomize: Sequence[Randomization] = ()) -> None:
            model = mujoco.MjModel.from_xml_string(XML)
            obs_spec = ObsSpec({"joints": ComponentSpec(shape=(4,)), "tip": ComponentSpec(shape=(3,), group="critic")})
            super().__init__(
                model, config, obs_spec=obs_spec, reward_weights={"upright": 1.0, "effort": -0.01}, randomize=randomize
            )
            self.tip = self.bind("site_xpos")[:, 0]                  # derived field: a live, read-only [N, 3] view

        def reset_state(self, ids):                                  # write qpos and qvel of these envs
            self.qpos[ids] = self.uniform("qpos", ids, 2, low=-0.1, high=0.1)

        def apply_action(self, actions):                             # float64 [N, A], before each step
            self.ctrl[:] = 0.5 * actions

        def observe(self, rows):                                     # rows: slice(None), or the ids just reset
            return {"joints": np.hstack([self.qpos[rows], self.qvel[rows]]), "tip": self.tip[rows]}

        def terminated(self):
            return np.abs(self.qpos[:, 1]) > 0.5

        def rewards(self):                                           # after terminated(); self.fell holds its result
            return {"upright": np.cos(self.qpos[:, 1]), "effort": np.square(self.actions).sum(axis=1)}

What happens in one step, for all envs at once:

    actions ─▶ latency ─▶ apply_action ─▶ pushes ─▶ physics × frame_skip ─▶ after_physics ─▶ terminated, rewards, info
                                                       │ failed: invalid                       │
            obs ◀─ observe(ids) ◀─ reset_state(ids) ◀─ done? ◀─ final_obs ◀─ noise, delay ◀─ observe(all rows)

Memory of a task beyond MuJoCo's state (commands, feet in the air, positions a step ago) lives in arrays made with
`state_array`, written in place, so that it is saved and restored with the rest. Derived fields (`xpos`, `cvel`, …)
describe the state one substep ago unless the task sets `stage=mjSTAGE_VEL`; with `persistent=True` that is free.
Sums over columns are fine, but a matrix product over envs may round differently for another number of envs.

Reward terms by name: weighted, summed per env, and logged as means per step and sums per episode.

weights = {"forward": 1.0, "ctrl": -0.1}

values  [terms, N]   forward   1.2   0.8        ──▶ reward [N]           sum down the column
                     ctrl     -0.1  -0.3        ──▶ log "reward/ctrl"    mean along the row
sums    [terms, N]   the same, added up since the episode began

Observations are converted to the declared shapes and dtypes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from striderl.data.actions import BoxSpec
from striderl.data.naming import saved_name, unknown
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.envs.mujoco.randomize import LiveTerms, Randomization, Scene
from striderl.envs.mujoco.rendering import FrameRenderer
from striderl.envs.mujoco.simulation import (
    Arrays,
    Bool,
    Float,
    Int,
    MujocoConfig,
    Simulation,
    control_spec,
    load_arrays,
    saved,
)
from striderl.envs.mujoco.streams import Streams
from striderl.envs.vec_env import (
    Actions,
    Obs,
    Step,
    VecEnv,
    action_array,
    check_ages,
    check_env_index,
    check_mask,
    check_saved_task,
    not_ready,
    require_open,
)

__all__ = ["Arrays", "Bool", "Float", "Int", "MujocoConfig", "MujocoEnv", "Rows"]

Rows = slice | Int
"""Rows of envs: all of them, `slice(None)`, or sorted indices."""
_ALL = slice(None)
_NOBODY = np.zeros(0, np.int64)


class MujocoEnv(VecEnv):
    """N envs of one MuJoCo model; a task fills in `reset_state`, `apply_action`, `observe`, `terminated`, `rewards`."""

    def __init__(
        self,
        model: Any,
        config: MujocoConfig,
        *,
        obs_spec: ObsSpec,
        reward_weights: Mapping[str, float],
        action_spec: BoxSpec | None = None,
        info_spec: Mapping[str, TensorSpec] | None = None,
        randomize: Sequence[Randomization] = (),
        stage: int = 0,
        persistent: bool = False,
    ) -> None:
        """Build the simulations; without `action_spec` an action is the controls within their ranges.

        `stage` (an mjtStage) is the stage up to which derived fields are current after a step; see the text above.
        """
        self.model, self.config = model, config
        self.num_envs, self.device = config.num_envs, torch.device(config.device)
        self.obs_spec, self.action_spec = obs_spec, action_spec or control_spec(model)
        self.info_spec = {"valid": TensorSpec(dtype="bool"), **(info_spec or {})}
        self.gives_final_obs = True
        self.max_episode_length = config.max_episode_length
        self.step_dt = float(model.opt.timestep) * config.frame_skip
        self.first_env_index = config.first_env_index
        self.simulation = Simulation(model, self.num_envs, num_threads=config.num_threads, persistent=persistent)
        self.streams = Streams(self.num_envs, config.first_env_index)
        self.qpos, self.qvel, self.ctrl = self.simulation.qpos, self.simulation.qvel, self.simulation.ctrl
        self.step_count = 0
        """Steps since the last seeding, the same for all envs."""
        self.num_failed = 0
        """How many simulations have failed so far."""
        self._stage = int(stage)
        self._on_cpu = self.device.type == "cpu"
        self._memory: Arrays = {}
        self.episode_length: Int = self.state_array("episode_length", dtype=np.int64)
        self.actions: Float = self.state_array("actions", self.action_spec.shape)
        """What the policy chose in this step, float64 [N, …]; with latency, what is applied is older."""
        self.fell: Bool = self.state_array("fell", dtype=np.bool_)
        """The result of `terminated` in this step."""
        self.reward_terms = RewardComponents(reward_weights, self.num_envs)
        self._terms = LiveTerms(randomize, Scene(self.simulation, self.streams, obs_spec, self.actions))
        self._obs: Arrays = {}
        self._renderer: FrameRenderer | None = None
        self._closed = False

    # -- what a task fills in ------------------------------------------------------------------------------------------

    @abstractmethod
    def reset_state(self, ids: Int) -> None:
        """Write the first state of a new episode into rows `ids`, which hold the model's default state."""

    @abstractmethod
    def apply_action(self, actions: Float) -> None:
        """Turn actions [N, …] into `self.ctrl` [N, nu]."""

    @abstractmethod
    def observe(self, rows: Rows) -> Arrays:
        """Return every observation component for these rows, from the state as it is; must not change anything."""

    @abstractmethod
    def terminated(self) -> Bool:
        """Return which tasks have ended, bool [N]."""

    @abstractmethod
    def rewards(self) -> Mapping[str, NDArray[Any]]:
        """Return every reward term by name, [N] each, not yet weighted."""

    def truncated(self) -> Bool:
        """Return which episodes end for another reason, bool [N]: time is over, unless a task overrides it."""
        if not self.max_episode_length:
            return np.zeros(self.num_envs, np.bool_)
        return np.asarray(self.episode_length >= self.max_episode_length)

    def after_physics(self) -> None:
        """Update the task's state after the physics, before rewards and terminations (air times, new commands, …)."""

    def episode_ended(self, ids: Int) -> Mapping[str, float]:
        """Process episodes that have just ended, before they are reset (curricula); return metrics for the log."""
        return {}

    def info(self) -> Mapping[str, NDArray[Any]]:
        """Return the info keys the task has declared, [N, …] each."""
        return {}

    # -- what a task can use -------------------------------------------------------------------------------------------

    def bind(self, name: str) -> Any:
        """Return a live [N, …] view of an MjData field ('xpos', 'sensordata', 'cvel', …)."""
        return self.simulation.bind(name)

    def state_array(self, name: str, shape: tuple[int, ...] = (), dtype: DTypeLike = np.float64) -> Any:
        """Make an array [N, *shape] of zeros that is saved with the env; write to it in place."""
        if name in self._memory:
            raise ValueError(f"{type(self).__name__} has two state arrays named {name!r}")
        self._memory[name] = np.zeros((self.num_envs, *shape), dtype)
        return self._memory[name]

    def uniform(
        self, name: str, ids: Int, count: int, *, low: Any = 0.0, high: Any = 1.0, occasion: Int | int | None = None
    ) -> Float:
        """Draw [len(ids), count] uniform numbers, the same again for the same name, env and occasion (its episode)."""
        return self.streams.uniform(name, ids, count, low=low, high=high, occasion=occasion)

    def normal(self, name: str, ids: Int, count: int, *, occasion: Int | int | None = None) -> Float:
        """Draw [len(ids), count] standard normal numbers, keyed like `uniform`."""
        return self.streams.normal(name, ids, count, occasion=occasion)

    @property
    def randomized(self) -> Mapping[str, Float]:
        """What each randomisation term has drawn, by the term's name, [N, …]: privileged observations read it here."""
        return self._terms.values()

    # -- the contract --------------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env; the first time without a seed means seed 0."""
        require_open(self, closed=self._closed)
        everyone = np.arange(self.num_envs)
        if seed is not None or not self._obs:
            self.streams.restart(0 if seed is None else seed)
            self.step_count = 0
        else:
            self.streams.episode += 1
        self._begin(everyone)
        self._obs = self._observed(_ALL, begun=True)
        return self._tensors(self._obs)

    def step(self, actions: Actions) -> Step:
        """Advance every env by `frame_skip` substeps; an env whose simulation fails is ended, reset and not valid."""
        failed = self._simulate(self._checked(actions))
        self.episode_length += 1
        self.step_count += 1
        self.after_physics()
        self.fell[:] = self.terminated()
        truncated = self.truncated()
        before, self._obs = self._obs, self._observed(_ALL, begun=False)
        reward = self.reward_terms.add(self.rewards())
        info: dict[str, Any] = {name: self._tensor(np.array(value)) for name, value in self.info().items()}
        terminated = self.fell.copy()
        info["valid"] = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        if len(failed):
            self._mark_failed(failed, before, reward, terminated, truncated)
            info["valid"][torch.from_numpy(failed)] = False
        info["log"] = log = self.reward_terms.settle()
        final_obs = self._tensors(self._obs)
        obs = dict(final_obs)
        done = terminated | truncated
        if np.count_nonzero(done):
            obs = self._next_episodes(np.flatnonzero(done), log)
        return Step(
            obs,
            self._tensor(reward.astype(np.float32)),
            self._tensor(terminated),
            self._tensor(truncated),
            final_obs,
            info,
        )

    def reset_envs(self, mask: Tensor) -> Obs:
        """Abandon the masked episodes, start new ones, and return the observation of all envs."""
        self._require_reset()
        check_mask(mask, self.num_envs)
        ids = np.flatnonzero(mask.cpu().numpy())
        return self._restart(ids) if len(ids) else self._tensors(self._obs)

    @property
    def episode_length_buf(self) -> Tensor:
        """Steps taken so far in each env's episode, int64 [N]; a copy."""
        return self._tensor(self.episode_length.copy())

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        check_ages(value, self.num_envs)
        self.episode_length[:] = value.cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        """Return physics, task state, randomisation, observations, and the position in the random streams."""
        self._require_reset()
        return {
            "task": saved_name(self),
            "seed": self.streams.seed,
            "step_count": self.step_count,
            "num_failed": self.num_failed,
            "episode": torch.from_numpy(self.streams.episode.copy()),
            "simulation": self.simulation.state_dict(),
            "memory": saved(self._memory),
            "terms": self._terms.state_dict(),
            "episode_sums": torch.from_numpy(self.reward_terms.sums.copy()),
            "obs": saved(self._obs),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Obs:
        """Continue bit for bit from the state of an env that was built alike."""
        require_open(self, closed=self._closed)
        check_saved_task(state, saved_name(self))
        self.simulation.load_state_dict(state["simulation"])
        self.streams.restart(state["seed"])
        self.streams.episode[:] = state["episode"].cpu().numpy()
        self.step_count, self.num_failed = int(state["step_count"]), int(state["num_failed"])
        load_arrays(self._memory, state["memory"], where=type(self).__name__)
        self._terms.load_state_dict(state["terms"], where=f"{type(self).__name__}'s randomisation")
        self.reward_terms.sums[:] = state["episode_sums"].cpu().numpy()
        self._obs = {name: value.cpu().numpy().copy() for name, value in state["obs"].items()}
        return self._tensors(self._obs)

    def render(self, env_index: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw one env as it is now, uint8 [render_height, render_width, 3]; no display is needed."""
        check_env_index(env_index, self.num_envs)
        self._require_reset()
        if self._renderer is None:
            size = (self.config.render_height, self.config.render_width)
            self._renderer = FrameRenderer(self.model, size=size, camera=self.config.camera)
        return self._renderer.frame(self.simulation.batch, env_index)

    def pose(self) -> Tensor:
        """Return the joint positions as they are now, float64 [N, nq] on the CPU; a copy."""
        return torch.from_numpy(self.qpos.copy())

    def close(self) -> None:
        """Free the rendering context, if there is one; later calls raise."""
        self._obs, self._closed = {}, True
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    # -- the parts of a step -------------------------------------------------------------------------------------------

    def _simulate(self, actions: NDArray[Any]) -> Int:
        """Apply the actions and run the physics; return which envs failed, which then stand in the default state."""
        self.actions[:] = actions
        refused = self._refused(actions)
        self.apply_action(self._terms.filter_action(self.actions))
        self._terms.disturb(self.episode_length)
        failed = self.simulation.step(self.config.frame_skip, self._stage)
        if len(refused):
            failed = np.union1d(failed, refused)
        if len(failed):
            # the task's functions read all rows, so a failed row gets valid numbers
            self.simulation.restart(failed)
            self.simulation.forward(failed)
            self.num_failed += len(failed)
        return failed

    def _refused(self, actions: NDArray[Any]) -> Int:
        """Return the envs with a non-finite action, and zero their actions."""
        finite = np.isfinite(actions)
        if np.count_nonzero(finite) == finite.size:
            return _NOBODY
        refused = np.flatnonzero(~finite.reshape(self.num_envs, -1).all(axis=1))
        self.actions[refused] = 0.0
        return refused

    def _mark_failed(self, failed: Int, before: Arrays, reward: Float, terminated: Bool, truncated: Bool) -> None:
        """Set failed rows to zero reward, ended, with the last valid observation."""
        self.reward_terms.forget(failed)
        reward[failed] = 0.0
        terminated[failed] = True
        truncated[failed] = False
        for name, value in self._obs.items():
            value[failed] = before[name][failed]

    def _next_episodes(self, ids: Int, log: dict[str, float]) -> Obs:
        """Log the episodes that ended, start the next ones, and return the next observation."""
        log.update(self.reward_terms.episode_log(ids))
        log["episode/length"] = float(self.episode_length[ids].mean())
        log["simulation/failed"] = float(self.num_failed)
        log.update(self.episode_ended(ids))
        return self._restart(ids)

    def _restart(self, ids: Int) -> Obs:
        self.streams.episode[ids] += 1
        self._begin(ids)
        begun = self._observed(ids, begun=True)
        self._obs = {name: value.copy() for name, value in self._obs.items()}
        for name, value in begun.items():
            self._obs[name][ids] = value
        return self._tensors(self._obs)

    def _begin(self, ids: Int) -> None:
        """Put these envs at the start of the episode of their counters."""
        self.simulation.restart(ids)
        self.episode_length[ids] = 0
        self.actions[ids] = 0.0
        self.fell[ids] = False
        self.reward_terms.sums[:, ids] = 0.0
        self._terms.begin(ids)
        self.reset_state(ids)
        self.simulation.forward(ids)

    def _observed(self, rows: Rows, *, begun: bool) -> Arrays:
        """Observe, add noise and delay, and return new arrays of the declared shapes and dtypes."""
        found = self._terms.filter_obs(self.observe(rows), rows, begun=begun, step_count=self.step_count)
        count = self.num_envs if isinstance(rows, slice) else len(rows)
        return fitted(found, self.obs_spec, count, where=f"{type(self).__name__}.observe")

    def _checked(self, actions: Actions) -> NDArray[Any]:
        self._require_reset()
        return action_array(self, actions, self.actions.shape)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._on_cpu else tensor.to(self.device)

    def _tensors(self, arrays: Arrays) -> Obs:
        return {name: self._tensor(value) for name, value in arrays.items()}

    def _require_reset(self) -> None:
        if not self._obs:
            raise not_ready(self, closed=self._closed)


# -- rewards -----------------------------------------------------------------------------------------------------------


class RewardComponents:
    """The weights of a task's reward terms and their values in this step and episode."""

    def __init__(self, weights: Mapping[str, float], num_envs: int) -> None:
        if not weights:
            raise ValueError("a task wants at least one reward term in reward_weights")
        self.weights = dict(weights)
        self.values: Float = np.zeros((len(weights), num_envs))
        """Weighted terms of the last step, [terms, N], in the order of the weights."""
        self.sums: Float = np.zeros((len(weights), num_envs))
        """Weighted terms added up since each env's episode began, [terms, N]."""
        self._step_names = [f"reward/{name}" for name in weights]
        self._episode_names = [f"episode/reward/{name}" for name in weights]

    def add(self, terms: Mapping[str, NDArray[Any]]) -> Float:
        """Weight this step's terms and return the reward, float64 [N]."""
        if len(terms) != len(self.weights):
            self._complain(terms)
        for row, (name, weight) in enumerate(self.weights.items()):
            if name not in terms:
                self._complain(terms)
            np.multiply(terms[name], weight, out=self.values[row])
        # adding whole rows, not a matrix product: the rounding of one env does not depend on how many there are
        return np.asarray(np.add.reduce(self.values, axis=0))

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Remove this step's terms of these envs."""
        self.values[:, rows] = 0.0

    def settle(self) -> dict[str, float]:
        """Add this step's terms to the episodes and return the mean of each over the envs."""
        self.sums += self.values
        means = np.add.reduce(self.values, axis=1) / self.values.shape[1]
        return dict(zip(self._step_names, means.tolist()))

    def episode_log(self, ids: NDArray[np.int64]) -> dict[str, float]:
        """Return the mean over these envs of each term's sum over the episode, and of the whole return."""
        means = self.sums[:, ids].mean(axis=1).tolist()
        return {**dict(zip(self._episode_names, means)), "episode/return": sum(means)}

    def _complain(self, terms: Mapping[str, Any]) -> None:
        for name in terms:
            if name not in self.weights:
                raise KeyError(unknown("weight", name, self.weights, where="reward_weights"))
        for name in self.weights:
            if name not in terms:
                raise KeyError(unknown("term", name, terms, where="rewards()"))


# -- observations ------------------------------------------------------------------------------------------------------


def fitted(found: Mapping[str, NDArray[Any]], spec: ObsSpec, count: int, *, where: str) -> Arrays:
    """Return new arrays [count, …] of every component, or raise for one that is missing or has another shape."""
    result: Arrays = {}
    for name, component in spec.items():
        if name not in found:
            raise KeyError(unknown("component", name, found, where=where))
        value = np.array(found[name], component.dtype)
        if value.shape != (count, *component.shape):
            raise ValueError(f"{where}: {name!r} wants {[count, *component.shape]}, found {list(value.shape)}")
        result[name] = value
    return result
