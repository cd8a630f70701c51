"""An exported policy does what the policy does, says what it wants, and is not written when it does something else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from striderl import __version__
from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec, torch_dtype
from striderl.export.bundle import Bundle, describe, export_policy
from striderl.export.exported_policy import ExportedPolicy, load_bundle
from striderl.export.golden_trace import ParityError
from striderl.export.greedy_step import plan_layout
from striderl.export.metadata import ExportMetadata, current_commit
from striderl.policies.encode import Encode
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Override, Remember

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="the extra 'export' is not installed")

pytestmark = pytest.mark.usefixtures("one_operator_table")

OBS = ObsSpec(
    {
        "command": ComponentSpec(shape=(3,), scale=2.0),
        "joints": ComponentSpec(shape=(6,), scale=0.25),
        "image": ComponentSpec(shape=(1, 10, 12), dtype="uint8"),
        "scan": ComponentSpec(shape=(2, 4)),
        "allowed": ComponentSpec(shape=(5,), dtype="bool", group="action_mask"),
        "velocity": ComponentSpec(shape=(2,), group="critic"),
    }
)
BOX = BoxSpec(shape=(3,), low=(-1.0, -float("inf"), 0.0), high=1.0, names=("hip", "knee", "foot"))
FINITE = BoxSpec(shape=(2,), low=-1.0, high=2.0)
META = ExportMetadata(dt=0.02, action_scale=(0.25, 0.5, 1.0), commit="0123abc", extra={"robot": "test"})

BODY = {"actor_hidden_dims": (16,), "critic_hidden_dims": (8,), "critic_obs": ("command", "joints", "velocity")}
SEEN = {**BODY, "actor_obs": ("command", "joints")}
IMAGE = Encode(
    components=("image",),
    model="Conv2dHeadModel",
    settings={"channels": (4, 4), "kernel_sizes": (3, 3), "strides": (2, 1)},
    output_size=5,
)
SCAN = Encode(components=("scan",), settings={"hidden_sizes": (8,)}, output_size=4)
LSTM = Remember(type="lstm", hidden_size=8)
ESTIMATE = Estimate(
    obs_components=("joints",),
    target_components=("command",),
    hidden_sizes=(8,),
    memory=Remember(type="gru", hidden_size=6),
    replace_state_prob=0.5,
)
ADAPT = Adapt(obs_components=("joints",), target_components=("velocity",), hidden_sizes=(8,), replace_state_prob=0.5)

POLICIES: dict[str, tuple[PolicyConfig, ActionSpec]] = {
    "mlp": (PolicyConfig(actor=(NormalizeObs(),), **SEEN), BOX),
    "cnn": (PolicyConfig(actor=(IMAGE,), actor_obs=("command", "image"), **BODY), BOX),
    "gru": (PolicyConfig(actor=(Remember(type="gru", hidden_size=8, num_layers=2),), **SEEN), BOX),
    "lstm": (PolicyConfig(actor=(NormalizeObs(), LSTM), critic=(LSTM,), **SEEN), BOX),
    "encoder": (PolicyConfig(actor=(SCAN, LSTM), actor_obs=("joints", "scan"), **BODY), BOX),
    "encoder and estimator": (
        PolicyConfig(actor=(SCAN, ADAPT, ESTIMATE, LSTM), actor_obs=("command", "joints", "scan"), **BODY),
        BOX,
    ),
    "discrete": (PolicyConfig(**SEEN), DiscreteSpec(n=5, mask="allowed")),
    "hybrid": (
        PolicyConfig(head="squashed_gaussian", **SEEN),
        DictActionSpec({"arm": FINITE, "gears": MultiDiscreteSpec(nvec=(2, 3), mask="allowed")}),
    ),
}
INPUTS = {
    "mlp": ["command", "joints"],
    "cnn": ["command", "image"],
    "gru": ["command", "joints"],
    "lstm": ["command", "joints"],
    "encoder": ["joints", "scan"],
    # the estimator always replaces the command in deterministic inference, so a robot need not give it
    "encoder and estimator": ["joints", "scan"],
    "discrete": ["command", "joints", "allowed"],
    "hybrid": ["command", "joints", "allowed"],
}


def random_obs(lead: tuple[int, ...], seed: int) -> dict[str, np.ndarray]:
    """Observations that resemble nothing: normal numbers, bytes, masks that allow at least one choice."""
    rng = np.random.default_rng(seed)
    obs: dict[str, np.ndarray] = {}
    for name, part in OBS.items():
        shape = (*lead, *part.shape)
        if part.dtype == "float32":
            obs[name] = rng.normal(size=shape).astype(np.float32)
        elif part.dtype == "uint8":
            obs[name] = rng.integers(0, 256, shape).astype(np.uint8)
        else:
            obs[name] = rng.random(shape) < 0.6
            obs[name][..., :1] = obs[name][..., 4:] = True
    return obs


def tensors(obs: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in obs.items()}


def build(name: str) -> Policy:
    torch.manual_seed(3)
    policy = Policy(OBS, POLICIES[name][1], POLICIES[name][0])
    with torch.no_grad():
        for parameter in policy.parameters():  # spread out, so that actions are of the size that robots see
            parameter.mul_(1.5)
    policy.actor.update_normalization(
        {key: 0.5 + 2.0 * value.float() for key, value in tensors(random_obs((50, 4), 0)).items()}
    )
    return policy


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Callable[[str], tuple[Policy, Bundle]]:
    """Every policy is exported once."""
    root, done = tmp_path_factory.mktemp("bundles"), {}

    def get(name: str) -> tuple[Policy, Bundle]:
        if name not in done:
            policy = build(name)
            meta = META if POLICIES[name][1] is BOX else ExportMetadata(dt=0.01)
            done[name] = policy, export_policy(policy, root / name.replace(" ", "_"), metadata=meta)
        return done[name]

    return get


def greedy(policy: Policy, obs: dict[str, np.ndarray], state: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    """The reference: the pure policy, one step, deterministic, clipped to the bounds that the bundle declares."""
    with torch.no_grad():
        stage_draws = policy.settled(torch.zeros(len(obs["joints"])))
        distribution, state, _ = policy.act(tensors(obs), state, stage_draws)
    mode = distribution.mode()
    if isinstance(policy.action_spec, BoxSpec):
        low, high = (torch.from_numpy(bound) for bound in policy.action_spec.bounds())
        mode = mode.clamp(low, high)
    return mode, state


def difference(found: Any, wanted: Any) -> float:
    if isinstance(wanted, dict):
        return max(difference(found[name], wanted[name]) for name in wanted)
    assert found.shape == tuple(wanted.shape) and torch_dtype(found.dtype) == wanted.dtype
    return float(np.abs(found.astype(np.float64) - wanted.double().numpy()).max())


# -- parity ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize("name", POLICIES)
def test_a_hundred_steps_with_resets_are_the_policys_own(name, batch, exported):
    policy, bundle = exported(name)
    runnable = load_bundle(bundle.folder)
    rng = np.random.default_rng(batch)
    state = policy.initial_state(batch)
    worst = 0.0
    for step in range(100):
        obs = random_obs((batch,), 1000 * batch + step)
        wanted, state = greedy(policy, obs, state)
        worst = max(worst, difference(runnable.act(obs), wanted))
        dones = rng.random(batch) < 0.1
        runnable.reset(dones)
        done = torch.from_numpy(dones).view(-1, 1, 1)
        state = {key: torch.where(done, 0.0, value) for key, value in state.items()}
    assert worst <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_only_what_reaches_the_action_is_an_input(name, exported):
    _, bundle = exported(name)
    found = [part["name"] for part in bundle.metadata["observations"]]
    assert found == INPUTS[name]
    assert sorted([*found, *bundle.metadata["unused_observations"]]) == sorted(OBS)
    assert max(value for outputs in bundle.parity.values() for value in outputs.values()) <= 1e-5


@pytest.mark.slow
def test_memory_matters(exported):
    # A recurrent policy that forgot would still pass a one-step check.
    _, bundle = exported("lstm")
    runnable = load_bundle(bundle.folder)
    obs = random_obs((2,), 5)
    first, second = runnable.act(obs), runnable.act(obs)
    assert np.abs(first - second).max() > 1e-3
    runnable.reset([0, 1])
    third = runnable.act(obs)
    np.testing.assert_allclose(third[1], first[1], atol=1e-6)
    assert np.abs(third[0] - first[0]).max() > 1e-3
    runnable.reset()
    np.testing.assert_allclose(runnable.act(obs), first, atol=1e-6)


@pytest.mark.slow
def test_the_torch_file_runs_without_the_policy(exported):
    policy, bundle = exported("lstm")
    module = torch.export.load(bundle.files["torch"]).module()
    obs, state = random_obs((7,), 2), policy.initial_state(7)
    wanted, new_state = greedy(policy, obs, state)
    inputs = [torch.from_numpy(obs[name]) for name in INPUTS["lstm"]]
    outputs = module(*inputs, *(state[part["name"]] for part in bundle.metadata["states"]))
    torch.testing.assert_close(outputs[0], wanted, atol=1e-6, rtol=0)
    for found, part in zip(outputs[1:], bundle.metadata["states"]):
        torch.testing.assert_close(found, new_state[part["name"]], atol=1e-6, rtol=0)


ALONE = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("striderl", "torch"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
import json
import numpy as np, onnxruntime
from safetensors.numpy import load_file
folder = sys.argv[1]
session = onnxruntime.InferenceSession(folder + "/policy.onnx", providers=["CPUExecutionProvider"])
told = {key: json.loads(text) for key, text in session.get_modelmeta().custom_metadata_map.items()}
trace = load_file(folder + "/trace.safetensors")
resets = trace["resets"]
state = {s["input"]: np.zeros((resets.shape[1], *s["shape"]), s["dtype"]) for s in told["states"]}
outputs = [a["output"] for a in told["actions"]] + [s["output"] for s in told["states"]]
worst = 0.0
for t in range(len(resets)):
    state = {k: np.where(resets[t].reshape(-1, 1, 1), 0, v).astype(v.dtype) for k, v in state.items()}
    feeds = {o["name"]: trace["obs/" + o["name"]][t] for o in told["observations"]}
    found = dict(zip(outputs, session.run(outputs, {**feeds, **state})))
    worst = max([worst] + [float(np.abs(found[name] - trace[name][t]).max()) for name in outputs])
    state = {s["input"]: found[s["output"]] for s in told["states"]}
print(json.dumps({"worst": worst, "steps": len(resets), "resets": int(resets.sum()), "dt": told["dt"]}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "encoder and estimator"])
def test_a_bundle_runs_where_neither_striderl_nor_torch_is(name, exported):
    _, bundle = exported(name)
    result = subprocess.run(
        [sys.executable, "-c", ALONE, str(bundle.folder)], capture_output=True, text=True, timeout=280
    )
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    assert seen["worst"] <= 1e-5 and seen["steps"] == 100 and seen["resets"] > 3 and seen["dt"] == 0.02


@pytest.mark.slow
def test_loading_a_bundle_needs_no_torch(exported):
    _, bundle = exported("gru")
    program = (
        "import sys; from striderl.export.exported_policy import load_bundle; import numpy as np\n"
        "policy = load_bundle(sys.argv[1])\n"
        "action = policy.act({'command': np.zeros(3), 'joints': np.zeros(6)})\n"
        "assert action.shape == (3,) and 'torch' not in sys.modules\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(bundle.folder)], capture_output=True, text=True, timeout=280
    )
    assert result.returncode == 0, result.stderr


# -- refusals ----------------------------------------------------------------------------------------------------------


class Liar(Policy):
    """Does something else while it is traced."""

    def act(self, *args: Any, **kwargs: Any) -> Any:
        distribution, state, aux = super().act(*args, **kwargs)
        if torch.compiler.is_compiling():
            distribution = distribution.from_params({**distribution.params(), "mean": distribution.mean + 1e-3})
        return distribution, state, aux

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("formats", [("onnx",), ("torch",)])
def test_a_mismatch_is_refused_and_nothing_is_written(tmp_path, formats):
    liar = Liar(OBS, BOX, POLICIES["mlp"][0])
    with pytest.raises(ParityError, match=r"policy\.(onnx|pt2) .* by 0\.001 in output 'action'.*1e-05.*Nothing was wr"):
        export_policy(liar, tmp_path / "bundle", metadata=META, formats=formats)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_failed_export_leaves_the_old_bundle_alone(tmp_path, exported):
    old = tmp_path / "bundle"
    old.mkdir()
    (old / "policy.onnx").write_text("old")
    (old / "metadata.json").write_text("{}")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        export_policy(build("mlp"), old, metadata=META)
    with pytest.raises(ParityError):
        export_policy(
            Liar(OBS, BOX, POLICIES["mlp"][0]), old, metadata=META, formats=("torch",), num_steps=2, overwrite=True
        )
    assert (old / "policy.onnx").read_text() == "old"
    bundle = export_policy(build("mlp"), old, metadata=META, formats=("torch",), num_steps=2, overwrite=True)
    assert sorted(path.name for path in old.iterdir()) == ["metadata.json", "policy.pt2", "trace.safetensors"]
    assert list(tmp_path.iterdir()) == [bundle.folder]
    with pytest.raises(FileNotFoundError, match=r"holds no policy\.onnx"):
        load_bundle(old)


def test_only_a_bundle_is_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="something else than a bundle"):
        export_policy(build("mlp"), tmp_path, metadata=META, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("kind", ["a model of somebody else", "file", "link", "link to nowhere"])
def test_what_is_no_bundle_of_ours_is_not_overwritten(tmp_path, kind):
    target, other = tmp_path / "bundle", tmp_path / "other"
    other.mkdir()
    if kind == "a model of somebody else":
        target.mkdir()
        (target / "policy.onnx").write_text("years of work")
    elif kind == "file":
        target.write_text("years of work")
    else:
        target.symlink_to(other if kind == "link" else tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is a file or a link, or has something else than a bundle"):
        export_policy(build("mlp"), target, metadata=META, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "other"]


@pytest.mark.slow
def test_a_policy_that_gives_nan_is_refused(tmp_path):
    policy = build("mlp")
    with torch.no_grad():
        next(policy.actor_body.parameters())[0, 0] = torch.nan
    with pytest.raises(ParityError, match="not finite in output 'action'"):
        export_policy(policy, tmp_path / "bundle", metadata=META, formats=("torch",), num_steps=2)


class BakesIn(Policy):
    """Takes the number of envs for a constant."""

    def act(self, obs: Any, *args: Any) -> Any:
        return super().act({**obs, "joints": obs["joints"] + torch.zeros(len(obs["joints"]), 1)}, *args)

    def forward(self, *args: Any) -> Any:
        return super().forward(*args)


@pytest.mark.slow
def test_a_fixed_number_of_envs_is_refused(tmp_path):
    policy = BakesIn(OBS, BOX, POLICIES["mlp"][0])
    with pytest.raises(ValueError, match=r"cannot be traced for any number of envs.*write tensor\.shape\[0\]"):
        export_policy(policy, tmp_path / "bundle", metadata=META, formats=("torch",))
    assert list(tmp_path.iterdir()) == []


def test_the_pure_policy_is_wanted(tmp_path):
    with pytest.raises(TypeError, match=r"wants the pure policy.*found StatefulPolicy.*attribute 'policy'"):
        export_policy(StatefulPolicy(build("mlp")), tmp_path / "bundle", metadata=META)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_names_the_extra(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"'{package}'.*pip install -e '.*\[export\]'"):
        export_policy(build("mlp"), tmp_path / "bundle", metadata=META)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("formats", ["onnx", (), ("onxx",)])
def test_unknown_formats_are_named(formats, tmp_path):
    with pytest.raises(ValueError, match="onnx"):
        export_policy(build("mlp"), tmp_path / "bundle", metadata=META, formats=formats)


def test_metadata_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ValueError, match="action_scale has 2 numbers for an action of 3"):
        export_policy(build("mlp"), tmp_path / "b", metadata=ExportMetadata(dt=0.02, action_scale=(1.0, 2.0)))
    with pytest.raises(ValueError, match="dt is the time between two actions"):
        ExportMetadata(dt=0.0)
    with pytest.raises(TypeError, match="not JSON serializable"):
        export_policy(build("mlp"), tmp_path / "b", metadata=ExportMetadata(dt=0.02, extra={"gains": torch.ones(2)}))
    assert list(tmp_path.iterdir()) == []


# -- what a bundle tells -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_metadata_is_inside_and_beside(exported):
    onnx = pytest.importorskip("onnx")
    _, bundle = exported("lstm")
    beside = json.loads((bundle.folder / "metadata.json").read_text())
    assert beside.pop("parity") == bundle.parity
    inside = {prop.key: json.loads(prop.value) for prop in onnx.load(bundle.files["onnx"]).metadata_props}
    assert inside == beside == bundle.metadata
    assert inside["observations"] == [
        {"name": "command", "shape": [3], "dtype": "float32", "scale": 2.0, "group": "policy"},
        {"name": "joints", "shape": [6], "dtype": "float32", "scale": 0.25, "group": "policy"},
    ]
    assert inside["actions"] == [
        {
            "output": "action",
            "shape": [3],
            "dtype": "float32",
            "kind": "box",
            "names": ["hip", "knee", "foot"],
            "low": [-1.0, None, 0.0],
            "high": [1.0, 1.0, 1.0],
            "clipped": True,
            "target": None,
            "scale": [0.25, 0.5, 1.0],
            "offset": None,
            "target_low": None,
            "target_high": None,
        }
    ]
    assert [part["name"] for part in inside["states"]] == ["actor/1_Remember/hidden", "actor/1_Remember/cell"]
    assert (inside["dt"], inside["commit"], inside["striderl"]) == (0.02, "0123abc", __version__)
    assert inside["extra"] == {"robot": "test"}


@pytest.mark.slow
def test_the_critic_stays_at_home(exported):
    onnx = pytest.importorskip("onnx")
    _, bundle = exported("lstm")
    weights = [weight.name for weight in onnx.load(bundle.files["onnx"]).graph.initializer]
    assert any("actor_body" in name for name in weights)
    assert not any("critic" in name or "value" in name for name in weights)
    program = torch.export.load(bundle.files["torch"])
    assert not any("critic" in name or "value_head" in name for name in program.state_dict)


@pytest.mark.slow
def test_images_stay_bytes_and_the_batch_is_free(exported):
    onnx = pytest.importorskip("onnx")
    _, bundle = exported("cnn")
    graph = onnx.load(bundle.files["onnx"]).graph
    image = next(value for value in graph.input if value.name == "image").type.tensor_type
    assert image.elem_type == onnx.TensorProto.UINT8
    assert [dim.dim_param or dim.dim_value for dim in image.shape.dim] == ["batch", 1, 10, 12]


@pytest.mark.slow
def test_exporting_changes_nothing_in_the_policy(tmp_path):
    policy = build("encoder and estimator").train()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    export_policy(policy, tmp_path / "bundle", metadata=META, formats=("torch",), num_steps=2)
    assert policy.training and all(parameter.requires_grad for parameter in policy.parameters())
    after = policy.state_dict()
    assert list(after) == list(before) and all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.slow
def test_a_real_rollout_can_be_the_trace(tmp_path):
    policy = build("mlp")
    obs = {
        name: value * 3 if value.is_floating_point() else value
        for name, value in tensors(random_obs((9, 4), 1)).items()
    }
    bundle = export_policy(policy, tmp_path / "b", metadata=META, formats=("torch",), trace_obs=obs)
    from safetensors.torch import load_file

    trace = load_file(bundle.folder / "trace.safetensors")
    torch.testing.assert_close(trace["obs/joints"], obs["joints"])
    wanted, _ = greedy(policy, {name: value[8].numpy() for name, value in obs.items()}, {})
    torch.testing.assert_close(trace["action"][8], wanted)
    with pytest.raises(KeyError, match="joints"):
        export_policy(policy, tmp_path / "c", metadata=META, formats=("torch",), trace_obs={"command": obs["command"]})


@pytest.mark.slow
def test_an_overridden_command_is_no_input(tmp_path):
    policy = Policy(OBS, BOX, PolicyConfig(actor=(Override(component="command", values=(1.0, 0.0, 0.0)),), **SEEN))
    bundle = export_policy(policy, tmp_path / "b", metadata=META, formats=("torch",), num_steps=2)
    assert [part["name"] for part in bundle.metadata["observations"]] == ["joints"]
    partly = Override(component="command", values=(1.0,), entries=(0,))
    bundle = export_policy(
        Policy(OBS, BOX, PolicyConfig(actor=(partly,), **SEEN)),
        tmp_path / "c",
        metadata=META,
        formats=("torch",),
        num_steps=2,
    )
    assert [part["name"] for part in bundle.metadata["observations"]] == ["command", "joints"]


# -- what a bundle refuses ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "error", "message"),
    [
        ({"command": 3}, KeyError, "has no component 'joints'"),
        ({"joints": 6, "command": 3}, ValueError, "'joints' at position 0, where the policy wants 'command'"),
        ({"command": 3, "joints": 12}, ValueError, r"'joints' wants shape \(6,\), found \(12,\)"),
        ({"command": 3, "joints": 6, "height": 4}, KeyError, "'height', which the policy does not take"),
    ],
)
def test_a_wrong_layout_is_refused_by_name(layout, error, message, exported):
    _, bundle = exported("mlp")
    with pytest.raises(error, match=message):
        load_bundle(bundle.folder, layout=layout)
    assert load_bundle(bundle.folder, layout=OBS.select(["joints", "command"])).obs_spec.names == ("command", "joints")


@pytest.mark.slow
def test_a_wrong_observation_is_refused_by_name(exported):
    runnable: ExportedPolicy = load_bundle(exported("cnn")[1].folder)
    obs = {"command": np.zeros((2, 3)), "image": np.zeros((2, 1, 10, 12), np.uint8)}
    assert runnable.act(obs).shape == (2, 3)
    with pytest.raises(KeyError, match=r"has no component 'image'. Did you mean 'imagine'"):
        runnable.act({"command": obs["command"], "imagine": obs["image"]})
    with pytest.raises(ValueError, match=r"'image' wants shape \(1, 10, 12\)"):
        runnable.act({**obs, "image": obs["image"].transpose(0, 1, 3, 2)})
    with pytest.raises(TypeError, match="'image' wants uint8, found float64"):
        runnable.act({**obs, "image": obs["image"] / 255.0})
    with pytest.raises(ValueError, match=r"'image' is for 2 envs, component 'command' for 3 envs"):
        runnable.act({**obs, "command": np.zeros((3, 3))})
    with pytest.raises(ValueError, match=r"acting for 2 envs and is given 3; call reset\(\) in between"):
        runnable.act(random_obs((3,), 0))
    with pytest.raises(ValueError, match="dones has 3 entries for 2 envs"):
        runnable.reset([0, 0, 1])
    runnable.reset()
    assert runnable.act(random_obs((3,), 0)).shape == (3, 3)


@pytest.mark.slow
def test_one_env_flat_arrays_and_named_parts(exported):
    runnable = load_bundle(exported("mlp")[1].folder)
    obs = random_obs((2,), 4)
    both = runnable.act(obs)
    flat = np.concatenate([obs["command"], obs["joints"]], axis=-1)
    np.testing.assert_array_equal(runnable.act(flat), both)
    runnable.reset()
    one = runnable.act({name: value[1] for name, value in obs.items()})
    assert one.shape == (3,)
    np.testing.assert_allclose(one, both[1], atol=1e-6)
    with pytest.raises(ValueError, match=r"flat array \[9\] or \[N, 9\] with command=3, joints=6"):
        runnable.act(flat[:, :8])
    hybrid = load_bundle(exported("hybrid")[1].folder).act(obs)
    assert list(hybrid) == ["arm", "gears"] and hybrid["gears"].dtype == np.int64


@pytest.mark.slow
def test_files_of_two_bundles_do_not_mix(tmp_path, exported):
    _, bundle = exported("mlp")
    for path in bundle.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    told = json.loads((tmp_path / "metadata.json").read_text())
    (tmp_path / "metadata.json").write_text(json.dumps({**told, "dt": 0.01}))
    with pytest.raises(ValueError, match=r"disagree on \['dt'\]"):
        load_bundle(Path(tmp_path))


# -- what an estimator replaces ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_training_layout_is_taken_and_what_is_unused_is_dropped(exported):
    # trained with command, joints and scan; the command is always replaced, so the model wants joints and scan only
    policy, bundle = exported("encoder and estimator")
    trained = policy.actor_inputs
    assert (
        [part["name"] for part in bundle.metadata["training_layout"]] == list(trained) == ["command", "joints", "scan"]
    )
    assert "command" in bundle.metadata["unused_observations"]
    obs = random_obs((2,), 5)
    wanted = load_bundle(bundle.folder).act({"joints": obs["joints"], "scan": obs["scan"]})
    flat = np.concatenate([obs["command"], obs["joints"], obs["scan"].reshape(2, 8)], axis=-1)
    for given in (flat, flat[:, 3:], obs):
        np.testing.assert_array_equal(load_bundle(bundle.folder, layout=trained).act(given), wanted)
    load_bundle(bundle.folder, layout={"joints": 6, "scan": (2, 4)})
    load_bundle(bundle.folder, layout={"command": 3, "joints": 6, "scan": (2, 4), "velocity": 2})
    with pytest.raises(ValueError, match=r"'command' wants shape \(3,\), found \(4,\)"):
        load_bundle(bundle.folder, layout={"command": 4, "joints": 6, "scan": (2, 4)})
    with pytest.raises(ValueError, match="'joints' at position 0, where the policy wants 'command'"):
        load_bundle(bundle.folder, layout={"joints": 6, "command": 3, "scan": (2, 4)})
    with pytest.raises(ValueError, match=r"flat array \[14\]"):
        load_bundle(bundle.folder).act(flat[:, 1:])


# -- the commit --------------------------------------------------------------------------------------------------------


def test_the_commit_is_that_of_the_checkout_one_works_in(tmp_path, monkeypatch):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    monkeypatch.chdir(tmp_path)
    assert current_commit() == ""  # no checkout
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert len(commit) == 40 and current_commit() == commit
    layout = plan_layout(build("mlp"))
    assert describe(layout, ExportMetadata(dt=0.02))["commit"] == commit
    assert describe(layout, ExportMetadata(dt=0.02, commit="abc"))["commit"] == "abc"
    monkeypatch.setenv("PATH", "")
    assert current_commit() == ""  # no git
