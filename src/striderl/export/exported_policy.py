"""`load_bundle`: run an exported policy with numpy and onnxruntime, nothing else.

policy = load_bundle("bundle")
policy.reset()
action = policy.act({"joints": joints, "command": command})      one env [12], or many [N, 12]
policy.reset(dones)                                              forget where an episode ended
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from striderl.data.specs import ObsSpec
from striderl.export.array_layout import Array, read_arrays, require_dones, require_layout
from striderl.export.metadata import FORMAT, from_properties, spec_of
from striderl.export.packages import onnx_session

MODEL_FILE, METADATA_FILE = "policy.onnx", "metadata.json"


class ExportedPolicy:
    """The deterministic policy of a bundle; it keeps the memory of the envs it is asked for."""

    def __init__(self, session: Any, metadata: Mapping[str, Any]) -> None:
        """Wrap an open onnxruntime session; `load_bundle` does that."""
        self.metadata = dict(metadata)
        self.obs_spec = spec_of(metadata)
        self._session = session
        self._outputs = [action["output"] for action in metadata["actions"]]
        self._states = list(metadata["states"])
        self._memory: dict[str, Array] = {}
        self._num_envs: int | None = None

    def act(self, obs: Any) -> Any:
        """Return the actions for one env or many: an array, or a dict of them when the action has named parts.

        `obs` is a dict of arrays, or one array when there is one component or all are given in a row. The number of
        envs may change after `reset()` only, because every env has a memory.
        """
        read = read_arrays(obs, self.obs_spec, required=self.obs_spec, where="the observation")
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
        """Forget everything, or only the envs where `dones` [N], of any dtype, is not zero."""
        if dones is None:
            self._memory, self._num_envs = {}, None
        elif self._num_envs is not None:
            done = require_dones(dones, self._num_envs)
            self._memory = {
                name: np.where(done.reshape(-1, *[1] * (value.ndim - 1)), np.zeros_like(value), value)
                for name, value in self._memory.items()
            }

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
    another shape than the policy was trained with, it is named and refused here, before anything moves.
    """
    root = Path(folder)
    if not (root / MODEL_FILE).exists():
        raise FileNotFoundError(f"{root} holds no {MODEL_FILE}; export_policy writes it with formats=('onnx', …)")
    session = onnx_session(root / MODEL_FILE)
    metadata = from_properties(session.get_modelmeta().custom_metadata_map)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{root / MODEL_FILE} has format {metadata.get('format')}; this version reads {FORMAT}")
    _require_same_description(root, metadata)
    policy = ExportedPolicy(session, metadata)
    if layout is not None:
        require_layout(layout, policy.obs_spec, where="the robot's layout")
    return policy


def _require_same_description(root: Path, metadata: Mapping[str, Any]) -> None:
    """Raise when the JSON file tells something else than the model: they are from two bundles."""
    path = root / METADATA_FILE
    if path.exists():
        beside = json.loads(path.read_text())
        differing = [key for key, value in metadata.items() if beside.get(key) != value]
        if differing:
            raise ValueError(f"{path} and {MODEL_FILE} disagree on {differing}: they are not from one export")
