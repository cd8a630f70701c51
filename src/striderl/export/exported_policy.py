"""`load_bundle`: run an exported policy with numpy and onnxruntime, nothing else.

policy = load_bundle("bundle")
policy.reset()
action = policy.act({"joints": joints, "command": command})      one env [12], or many [N, 12]
policy.reset(dones)                                              reset the state where an episode ended

A component that the deterministic policy does not read, because an estimator replaces it, is no input of the model. It
may be given all the same: in a dict, in `layout`, and in flat arrays that have all of the actor's training components
in a row; it is dropped then.

The packages that export needs and the core does not; nothing here loads torch.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from striderl.checkpoint.safe_files import check_plain, read_json
from striderl.data.naming import missing_extra
from striderl.data.specs import ObsSpec
from striderl.export.array_layout import Array, read_arrays, require_dones, require_layout
from striderl.export.metadata import FORMAT, from_properties, spec_of

MODEL_FILE, METADATA_FILE = "policy.onnx", "metadata.json"


class ExportedPolicy:
    """The deterministic policy of a bundle; it keeps the recurrent state of its envs."""

    def __init__(self, session: Any, metadata: Mapping[str, Any]) -> None:
        """Wrap an open onnxruntime session; `load_bundle` does that."""
        self.metadata = dict(metadata)
        self.obs_spec = spec_of(metadata)
        """What is read."""
        self.training_spec = spec_of(metadata, "training_layout") if "training_layout" in metadata else self.obs_spec
        """The actor's training components: those read, and those dropped."""
        self._session = session
        self._outputs = [action["output"] for action in metadata["actions"]]
        self._states = list(metadata["states"])
        self._memory: dict[str, Array] = {}
        self._num_envs: int | None = None

    def act(self, obs: Any) -> Any:
        """Return the actions for one env or many: an array, or a dict of them when the action has named parts.

        `obs` is a dict of arrays, or one array when there is one component or all are given in a row: those that
        are read, or all of the training layout, of which the unused ones are dropped. The number of envs may change
        after `reset()` only, because every env has a memory.
        """
        read = read_arrays(self._without_unused(obs), self.obs_spec, required=self.obs_spec, where="the observation")
        self._begin(read.num_envs)
        feeds = {**read.arrays, **{state["input"]: self._memory[state["name"]] for state in self._states}}
        names = [*self._outputs, *(state["output"] for state in self._states)]
        found = dict(zip(names, self._session.run(names, feeds)))
        self._memory = {state["name"]: found[state["output"]] for state in self._states}
        actions = {name: found[name][0] if read.single else found[name] for name in self._outputs}
        if list(actions) == ["action"]:
            return actions["action"]
        return {name.removeprefix("action/"): value for name, value in actions.items()}

    __call__ = act

    def reset(self, dones: Any = None) -> None:
        """Reset the recurrent state of all envs, or only where `dones` [N], of any dtype, is not zero."""
        if dones is None:
            self._memory, self._num_envs = {}, None
        elif self._num_envs is not None:
            done = require_dones(dones, self._num_envs)
            self._memory = {
                name: np.where(done.reshape(-1, *[1] * (value.ndim - 1)), np.zeros_like(value), value)
                for name, value in self._memory.items()
            }

    def _without_unused(self, obs: Any) -> Any:
        """Return the read components of a flat array in the training layout; anything else is unchanged."""
        if isinstance(obs, Mapping) or self.training_spec.size == self.obs_spec.size:
            return obs
        array = np.asarray(obs)
        if array.ndim not in (1, 2) or array.shape[-1] != self.training_spec.size:
            return obs
        return {name: part for name, part in self.training_spec.split(array).items() if name in self.obs_spec}

    def _begin(self, num_envs: int) -> None:
        if self._num_envs is None:
            self._num_envs = num_envs
            self._memory = {
                state["name"]: np.zeros((num_envs, *state["shape"]), state["dtype"]) for state in self._states
            }
        elif num_envs != self._num_envs:
            raise ValueError(
                f"the policy was acting for {self._num_envs} envs and is given {num_envs}; call reset() in between"
            )


def load_bundle(
    folder: str | Path, *, layout: ObsSpec | Mapping[str, int | Sequence[int]] | None = None
) -> ExportedPolicy:
    """Open a bundle.

    `layout` is what the robot gives, component by component; where a component is missing, in another place or of
    another shape than the policy was trained with, it is named and refused here, before anything moves. Components
    that the description lists as unused may be there or not.
    """
    root = Path(folder)
    if not (root / MODEL_FILE).exists():
        raise FileNotFoundError(f"{root} holds no {MODEL_FILE}; export_policy writes it with formats=('onnx', …)")
    check_plain(root / MODEL_FILE)
    session = onnx_session(root / MODEL_FILE)
    metadata = from_properties(session.get_modelmeta().custom_metadata_map)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{root / MODEL_FILE} has format {metadata.get('format')}; this version reads {FORMAT}")
    _require_same_description(root, metadata)
    policy = ExportedPolicy(session, metadata)
    if layout is not None:
        unused = [name for name in metadata["unused_observations"] if name in layout]
        known = policy.training_spec.select(
            [*policy.obs_spec, *(name for name in unused if name in policy.training_spec)]
        )
        given = {name: part for name, part in layout.items() if name in known or name not in unused}
        require_layout(given, known, where="the robot's layout")
    return policy


def _require_same_description(root: Path, metadata: Mapping[str, Any]) -> None:
    """Raise when the JSON file contradicts the model: they are from two bundles."""
    path = root / METADATA_FILE
    if os.path.lexists(path):
        beside = read_json(path)
        if not isinstance(beside, dict):
            raise ValueError(f"{path} is a {type(beside).__name__}, wanted the description of a bundle")
        differing = [key for key, value in metadata.items() if beside.get(key) != value]
        if differing:
            raise ValueError(f"{path} and {MODEL_FILE} disagree on {differing}: they are not from one export")


# -- packages ----------------------------------------------------------------------------------------------------------


def require_package(name: str, *, purpose: str) -> Any:
    """Return an optional package, or raise ImportError naming the extra that brings it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(missing_extra(name, "export", purpose=purpose)) from error


def onnx_session(path: Path) -> Any:
    """Open an ONNX file with onnxruntime on the CPU."""
    onnxruntime = require_package("onnxruntime", purpose="running an exported policy")
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
