"""What an rsl_rl env does with actions, read from where its simulator keeps it; what is not there stays unknown.

    mjlab, Isaac Lab   action_manager ▸ joint terms ▸ scale, offset, names; the asset's default pose; actuators' gains
    legged_gym         cfg.control.action_scale, control_type; default_dof_pos, p_gains, d_gains, dof_names

Several joint terms in a row are read one after the other. A term of another kind, or a number that is not the same in
all envs, makes the field unknown for all of them: an export states facts or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.data.actions import ActuationSpec
from striderl.envs.rsl_rl.control import innermost, setting

_TARGETS = {
    "JointPosition": "joint_position",
    "JointVelocity": "joint_velocity",
    "JointEffort": "torque",
}
"""How the classes of joint terms begin, and what they set; 'Relative…' and limit-scaled terms are none of them."""

Numbers = tuple[float, ...]


def find_actuation(env: Any, num_actions: int) -> ActuationSpec | None:
    """Return what the env states about its actions; None where it states nothing that is understood."""
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
    """Return gains of the asset's data (Isaac Lab), else of the MuJoCo model's position servos (mjlab)."""
    found = _joint_data(term, name)
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
    names = _names(getattr(env, "dof_names", None))
    return ActuationSpec(
        target=target,
        scale=scale,
        offset=pose if target == "joint_position" else nothing,
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
