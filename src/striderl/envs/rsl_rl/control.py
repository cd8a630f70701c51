"""Find the handles that rsl_rl envs offer beyond `step`: seeds, partial resets, clocks, segments.

None of these is part of rsl_rl's own contract, so each simulator has its own name. They are looked up once, at
construction; a missing one is None, and the adapter raises when it is needed.

Also here: how an rsl_rl env processes actions, read from its simulator; missing fields stay unknown.

    mjlab, Isaac Lab   action_manager ▸ joint terms ▸ scale, offset, names; the asset's default pose; actuators' gains
    legged_gym         cfg.control.action_scale, control_type; default_dof_pos, p_gains, d_gains, dof_names

Several joint terms in a row are read one after the other. A term of another kind, or a number that is not the same in
all envs, makes the field unknown for all of them: an export states facts or nothing.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.data.actions import ActuationSpec
from striderl.envs.rsl_rl.obs import Segments, is_mapping
from striderl.envs.vec_env import ContractError, VecEnv


@dataclass(frozen=True, kw_only=True)
class PartialReset:
    """How a simulator restarts some of its envs."""

    restart: Callable[[Tensor], Any]
    """Restarts the envs with these int64 indices; returns an observation in any form, or None when there is none."""
    refreshes: bool
    """Whether the observation is known to be up to date afterwards, not only after the next step."""


def require_rsl_rl(env: Any) -> None:
    """Raise ContractError, naming what is missing, unless the object can be an rsl_rl env."""
    name = type(env).__name__
    if isinstance(env, VecEnv):
        raise ContractError(f"{name} is a VecEnv already; use it as it is")
    missing = [f"{method}()" for method in ("step", "get_observations") if not callable(getattr(env, method, None))]
    counts = {"num_envs": getattr(env, "num_envs", None), "num_actions": getattr(env, "num_actions", None)}
    missing += [count for count, value in counts.items() if not isinstance(value, (int, np.integer))]
    if missing:
        raise ContractError(
            f"{name} is no rsl_rl env: it lacks {', '.join(missing)}. Wrap it in its simulator's rsl_rl wrapper first "
            "(RslRlVecEnvWrapper in mjlab and Isaac Lab), or use the Gymnasium adapter for a Gymnasium env."
        )


def innermost(env: Any) -> Any:
    """Return the simulator's own env below its rsl_rl wrapper, or the env itself."""
    inner = getattr(env, "unwrapped", None)
    return env if inner is None else inner


def find_seed(env: Any) -> Callable[[int], Any] | None:
    """Return the function that seeds the simulator; Playground's `seed` is a number and cannot be called."""
    for holder in (env, innermost(env)):
        seed = getattr(holder, "seed", None)
        if callable(seed):
            return seed  # type: ignore[no-any-return]
    return None


def find_reset(env: Any) -> Callable[[], Any] | None:
    """Return the function that restarts all envs; Isaac Lab's wrapper since 2.2 has none, but the env below it has."""
    for holder in (env, innermost(env)):
        reset = getattr(holder, "reset", None)
        if callable(reset):
            return reset  # type: ignore[no-any-return]
    return None


def find_partial_reset(env: Any) -> PartialReset | None:
    """Return how to restart some of the envs, or None when the simulator has no way."""
    inner = innermost(env)
    if takes_env_ids(getattr(inner, "reset", None)):
        return PartialReset(restart=lambda ids: inner.reset(env_ids=ids), refreshes=True)
    for holder in (env, inner):
        if callable(getattr(holder, "reset_idx", None)):
            return _row_reset(holder, holder.reset_idx)
    if callable(getattr(inner, "_reset_idx", None)):
        return _row_reset(inner, inner._reset_idx)
    return None


def resets_by_hand(env: Any) -> bool:
    """Return whether the caller resets the env (mjlab's `auto_reset=False`), after its final observation."""
    if setting(getattr(innermost(env), "cfg", None), "auto_reset") is not False:
        return False
    if not takes_env_ids(getattr(innermost(env), "reset", None)):
        raise ContractError(
            f"{type(env).__name__} is configured with auto_reset=False, but its reset() takes no env_ids, so finished "
            "envs cannot be restarted; set auto_reset=True"
        )
    return True


def takes_env_ids(reset: Any) -> bool:
    """Return whether a reset function has a parameter called env_ids."""
    if not callable(reset):
        return False
    try:
        return "env_ids" in inspect.signature(reset).parameters
    except (TypeError, ValueError):  # compiled functions have no signature
        return False


def find_segments(env: Any, name: str) -> Segments | None:
    """Return `obs_segments` or `privileged_obs_segments` of the env, of its simulator, or of their configuration."""
    config = getattr(env, "cfg", None)
    for holder in (env, innermost(env), config, setting(config, "env")):
        found = setting(holder, name)
        if is_mapping(found):
            return found
    return None


def setting(config: Any, name: str) -> Any:
    """Read one entry of a configuration that is an object or a dict; None when it is not there."""
    if isinstance(config, Mapping):
        return config.get(name)
    return getattr(config, name, None)


def episode_limit(env: Any) -> int:
    """Return after how many steps episodes end: the longest where each env has its own limit, 0 where there is none."""
    limit = getattr(env, "max_episode_length", None)
    if limit is None:
        limit = getattr(innermost(env), "max_episode_length", None)
    if limit is None:
        return 0
    number = float(limit.max()) if isinstance(limit, Tensor) else float(limit)
    return int(number) if math.isfinite(number) else 0


def step_seconds(env: Any) -> float:
    """Return the simulated time per step: Isaac Lab and mjlab call it step_dt, legged_gym dt; 0 when unknown."""
    for seconds in (getattr(innermost(env), "step_dt", None), getattr(env, "dt", None)):
        if isinstance(seconds, (int, float)):
            return float(seconds)
    return 0.0


def length_holder(env: Any) -> Any:
    """Return the object whose episode_length_buf is a tensor, or None (Playground has none)."""
    for holder in (env, innermost(env)):
        if isinstance(getattr(holder, "episode_length_buf", None), Tensor):
            return holder
    return None


def action_device(env: Any, default: torch.device) -> torch.device:
    """Return the device for actions: the env's string or torch.device, or that of its tensors."""
    device = getattr(env, "device", None)
    return default if device is None else torch.device(device)


def _row_reset(holder: Any, reset: Callable[[Tensor], Any]) -> PartialReset:
    """Follow a bare row reset by what brings the simulator (Isaac Lab) or the observation (legged_gym) up to date."""
    scene, simulator = getattr(holder, "scene", None), getattr(holder, "sim", None)
    updates = [
        update
        for update in (
            getattr(scene, "write_data_to_sim", None),
            getattr(simulator, "forward", None),
            getattr(holder, "compute_observations", None),
        )
        if callable(update)
    ]

    def restart(ids: Tensor) -> None:
        reset(ids)
        for update in updates:
            update()

    return PartialReset(restart=restart, refreshes=bool(updates))


# -- actuation ---------------------------------------------------------------------------------------------------------


_TARGETS = {
    "JointPosition": "joint_position",
    "JointVelocity": "joint_velocity",
    "JointEffort": "torque",
}
"""How the classes of joint terms begin, and what they set; 'Relative…' and limit-scaled terms are none of them."""

Numbers = tuple[float, ...]


def find_actuation(env: Any, num_actions: int) -> ActuationSpec | None:
    """Return how the env processes actions; None where that cannot be read."""
    inner = innermost(env)
    for read in (_from_managers, _from_legged_gym):
        found = read(inner, num_actions)
        if found is not None:
            return found
    return None


# -- mjlab and Isaac Lab -----------------------------------------------------------------------------------------------


def _from_managers(env: Any, num_actions: int) -> ActuationSpec | None:
    manager = getattr(env, "action_manager", None)
    names, get = getattr(manager, "active_terms", None), getattr(manager, "get_term", None)
    if not isinstance(names, Sequence) or not callable(get):
        return None
    commands = _names(getattr(getattr(env, "command_manager", None), "active_terms", None))
    terms = [get(name) for name in names]
    kinds = {_target(term) for term in terms}
    if len(kinds) != 1 or None in kinds or sum(int(term.action_dim) for term in terms) != num_actions:
        return ActuationSpec(command_names=commands)

    def joined(read: Callable[[Any], Sequence[Any] | None]) -> tuple[Any, ...] | None:
        found = [read(term) for term in terms]
        parts = [part for part in found if part is not None]
        return tuple(entry for part in parts for entry in part) if len(parts) == len(found) else None

    return ActuationSpec(
        target=kinds.pop(),
        scale=joined(lambda term: _per_action(_of(term, "_scale", "scale"), int(term.action_dim))),
        offset=joined(lambda term: _per_action(_of(term, "_offset", "offset"), int(term.action_dim))),
        target_low=joined(lambda term: _limits(term, 0)),
        target_high=joined(lambda term: _limits(term, 1)),
        joint_names=joined(_joint_names),
        default_joint_pos=joined(lambda term: _joint_data(term, "default_joint_pos")),
        joint_stiffness=joined(lambda term: _gains(term, env, "joint_stiffness")),
        joint_damping=joined(lambda term: _gains(term, env, "joint_damping")),
        command_names=commands,
    )


def _target(term: Any) -> str | None:
    """Return what a term sets, by the name of its class or of a class it derives from."""
    names = [kind.__name__ for kind in type(term).__mro__]
    if any(name.startswith("Relative") or "ToLimits" in name for name in names):
        return None
    return next((word for start, word in _TARGETS.items() if any(name.startswith(start) for name in names)), None)


def _of(term: Any, *names: str) -> Any:
    """Return the first of these attributes that the term has."""
    return next((getattr(term, name) for name in names if hasattr(term, name)), None)


def _limits(term: Any, side: int) -> Numbers | None:
    """Return the lower or upper limits of a joint term's targets, `_clip` [N, A, 2], where its config sets them."""
    limits = getattr(term, "_clip", None)
    if getattr(getattr(term, "cfg", None), "clip", None) is None or not isinstance(limits, Tensor) or limits.dim() != 3:
        return None
    found = _per_action(limits[..., side], int(term.action_dim))
    return found if found is not None and all(map(math.isfinite, found)) else None


def _joint_names(term: Any) -> tuple[str, ...] | None:
    for name in ("_joint_names", "_target_names", "target_names", "_actuator_names"):
        found = _names(getattr(term, name, None))
        if found is not None and len(found) == int(term.action_dim):
            return found
    return None


def _asset(term: Any) -> Any:
    return getattr(term, "_asset", getattr(term, "_entity", None))


def _joint_data(term: Any, name: str) -> Numbers | None:
    """Return a field [N, joints] of the asset's data for the joints of a term, found by their names."""
    asset, wanted = _asset(term), _joint_names(term)
    known = _names(getattr(asset, "joint_names", None))
    values = getattr(getattr(asset, "data", None), name, None)
    if wanted is None or known is None or not isinstance(values, Tensor) or values.shape[-1] != len(known):
        return None
    if any(joint not in known for joint in wanted):
        return None
    return _per_action(values[..., [known.index(joint) for joint in wanted]], len(wanted))


def _gains(term: Any, env: Any, name: str) -> Numbers | None:
    """Return gains of the asset's data (Isaac Lab), else of the MuJoCo model's position servos (mjlab).

    In Isaac Lab's data they are those of the simulator's own drives: zero where an explicit actuator drives the joint.
    """
    drives = _joint_data(term, "joint_stiffness")
    found = _joint_data(term, name) if drives is not None and 0.0 not in drives else None
    model, joints = getattr(getattr(env, "sim", None), "mj_model", None), _joint_names(term)
    if found is not None or model is None or joints is None:
        return found
    gains: list[float] = []
    for joint in joints:
        servos = [index for index in range(model.nu) if _drives(model, index, joint)]
        if len(servos) != 1:
            return None
        stiffness, bias = float(model.actuator_gainprm[servos[0], 0]), model.actuator_biasprm[servos[0]]
        if not np.isclose(-bias[1], stiffness):  # no position servo: force = kp · target - kp · q - kd · dq/dt
            return None
        gains.append(stiffness if name == "joint_stiffness" else -float(bias[2]))
    return tuple(gains)


def _drives(model: Any, actuator: int, joint: str) -> bool:
    is_joint = int(model.actuator_trntype[actuator]) == 0
    name = model.joint(int(model.actuator_trnid[actuator, 0])).name if is_joint else ""
    return bool(name == joint or name.endswith(f"/{joint}"))


# -- legged_gym and its descendants ------------------------------------------------------------------------------------


def _from_legged_gym(env: Any, num_actions: int) -> ActuationSpec | None:
    control = setting(getattr(env, "cfg", None), "control")
    scale = _per_action(setting(control, "action_scale"), num_actions)
    if scale is None:
        return None
    kind = setting(control, "control_type")
    target = {"P": "joint_position", "V": "joint_velocity", "T": "torque"}.get(kind if isinstance(kind, str) else "")
    pose = _per_action(getattr(env, "default_dof_pos", None), num_actions)
    nothing = (0.0,) * num_actions if target in ("joint_velocity", "torque") else None
    offset = pose if target == "joint_position" else nothing
    names = _names(getattr(env, "dof_names", None))
    largest = _per_action(setting(setting(getattr(env, "cfg", None), "normalization"), "clip_actions"), num_actions)
    reach = [abs(each) * most for each, most in zip(scale, largest)] if largest is not None else []
    return ActuationSpec(
        target=target,
        scale=scale,
        offset=offset,
        target_low=tuple(at - most for at, most in zip(offset, reach)) if offset and reach else None,
        target_high=tuple(at + most for at, most in zip(offset, reach)) if offset and reach else None,
        joint_names=names if names is not None and len(names) == num_actions else None,
        default_joint_pos=pose,
        joint_stiffness=_per_action(getattr(env, "p_gains", None), num_actions),
        joint_damping=_per_action(getattr(env, "d_gains", None), num_actions),
    )


# -- values ------------------------------------------------------------------------------------------------------------


def _per_action(value: Any, size: int) -> Numbers | None:
    """Return one number per action from a number, [A], [1, A] or [N, A] with equal rows; else None."""
    if isinstance(value, bool) or value is None or isinstance(value, (str, Mapping)):
        return None
    try:
        numbers = torch.as_tensor(value).detach().cpu().double()
    except (TypeError, ValueError, RuntimeError):  # an object of the simulator's own, which states no number
        return None
    if numbers.dim() == 0:
        return (float(numbers),) * size
    rows = numbers.reshape(-1, numbers.shape[-1])
    if rows.shape[-1] != size or len(rows) == 0 or not bool((rows == rows[:1]).all()):
        return None
    return tuple(float(number) for number in rows[0])


def _names(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, Mapping) or not isinstance(value, Sequence) or isinstance(value, str):
        return None
    return tuple(value) if all(isinstance(name, str) for name in value) else None
