"""Files and entries that clients of rsl_rl expect of a runner: exported policies, the facts of mjlab, its env state.

    exported/policy.pt, exported/policy.onnx            `export_policy_to_jit`, `export_policy_to_onnx`
    {log_dir}/{log_dir.name}.onnx                       beside each checkpoint of an mjlab env, with its metadata:
        run_path, joint_names, joint_stiffness, joint_damping, default_joint_pos, command_names, observation_names,
        observation_terms_scale, observation_terms_flatten_history_dim, observation_terms_history_length,
        observation_terms_clip, action_scale            lists are 'a,b,c', a list in a list is 'a;b'
    infos["env_state"]["common_step_counter"]           saved and restored, so that curricula go on

The facts are read from the env's managers by their names; mjlab itself is not imported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.checkpoint.safe_files import replacing_path
from striderl.data.naming import missing_extra
from striderl.envs.rsl_rl.control import find_actuation, innermost
from striderl.training.rsl_rl.models import ActorModel

_log = logging.getLogger(__name__)

_STATE, _COUNTER = "env_state", "common_step_counter"
OPSET = 18
"""The version of ONNX's operators that rsl_rl writes."""


# -- the env's state ---------------------------------------------------------------------------------------------------


def with_env_state(env: Any, infos: Any) -> Any:
    """Return infos with the step counter of an env that has one (mjlab, Isaac Lab); as they are otherwise."""
    counter = getattr(innermost(env), _COUNTER, None)
    if not isinstance(counter, int) or not (infos is None or isinstance(infos, Mapping)):
        return infos
    return {**(infos or {}), _STATE: {_COUNTER: counter}}


def restore_env_state(env: Any, infos: Any) -> None:
    """Set the step counter of an env from the infos of a checkpoint, where both have one."""
    state = infos.get(_STATE) if isinstance(infos, Mapping) else None
    if isinstance(state, Mapping) and _COUNTER in state and hasattr(innermost(env), _COUNTER):
        innermost(env).common_step_counter = int(state[_COUNTER])


# -- exports -----------------------------------------------------------------------------------------------------------


def write_jit(actor: ActorModel, path: Path) -> None:
    """Write a TorchScript program, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    program = torch.jit.script(actor.as_jit().eval())
    with replacing_path(path) as place:
        program.save(str(place))  # type: ignore[no-untyped-call]


def write_onnx(actor: ActorModel, path: Path, metadata: Mapping[str, Any], *, verbose: bool = False) -> None:
    """Write an ONNX file with rsl_rl's names of inputs and outputs, and metadata as text, whole or not at all."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError(missing_extra("onnx", "export", purpose="an ONNX file")) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    module = actor.as_onnx(verbose=verbose).eval()
    with replacing_path(path) as place, torch.no_grad():
        torch.onnx.export(
            module,
            module.get_dummy_inputs(),  # type: ignore[operator]
            str(place),
            opset_version=OPSET,
            verbose=verbose,
            input_names=module.input_names,  # type: ignore[arg-type]
            output_names=module.output_names,  # type: ignore[arg-type]
            dynamo=False,
        )
        model = onnx.load(str(place))
        for name, value in metadata.items():
            entry = model.metadata_props.add()
            entry.key, entry.value = name, as_text(value)
        onnx.save(model, str(place))


def export_beside(actor: ActorModel, env: Any, checkpoint: Path, run_name: str) -> Path | None:
    """Write '{folder}/{folder.name}.onnx' beside a checkpoint where the env has mjlab's facts; return its path."""
    facts = robot_facts(env, run_name)
    if facts is None:
        return None
    path = checkpoint.parent / f"{checkpoint.resolve().parent.name}.onnx"
    try:
        write_onnx(actor, path, facts)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        _log.warning("%s was not exported, training continues: %s", path, error)
        return None
    return path


def as_text(value: Any) -> str:
    """Return a value as mjlab writes it: numbers with three decimals, lists with commas, lists in them with ';'."""
    if isinstance(value, (list, tuple)):
        return ",".join(
            ";".join(map(_number, each)) if isinstance(each, (list, tuple)) else _number(each) for each in value
        )
    return str(value)


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) else str(value)


# -- mjlab's facts -----------------------------------------------------------------------------------------------------


def robot_facts(env: Any, run_path: str) -> dict[str, Any] | None:
    """Return mjlab's metadata of a policy, or None for an env that does not have its managers."""
    inner: Any = innermost(env)
    observations: Any = getattr(inner, "observation_manager", None)
    actions: Any = getattr(inner, "action_manager", None)
    terms = getattr(observations, "active_terms", None)
    if not hasattr(getattr(inner, "sim", None), "mj_model") or not isinstance(terms, Mapping) or "actor" not in terms:
        return None
    num_actions = int(getattr(actions, "total_action_dim", 0))
    actuation = find_actuation(env, num_actions)
    if actuation is None or actuation.target != "joint_position":
        return None
    settings = [observations.get_term_cfg("actor", name) for name in terms["actor"]]
    return {
        "run_path": run_path,
        "joint_names": list(actuation.joint_names or ()),
        "joint_stiffness": list(actuation.joint_stiffness or ()),
        "joint_damping": list(actuation.joint_damping or ()),
        "default_joint_pos": list(actuation.default_joint_pos or ()),
        "command_names": list(actuation.command_names or ()),
        "observation_names": list(terms["actor"]),
        "observation_terms_scale": [1.0 if each.scale is None else _plain(each.scale) for each in settings],
        "observation_terms_flatten_history_dim": [each.flatten_history_dim for each in settings],
        "observation_terms_history_length": [each.history_length for each in settings],
        "observation_terms_clip": [
            [float("-inf"), float("inf")] if each.clip is None else list(each.clip) for each in settings
        ],
        "action_scale": list(actuation.scale or ()),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu().tolist()
    return list(value) if isinstance(value, Sequence) else value
