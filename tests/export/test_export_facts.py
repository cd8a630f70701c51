"""An export states what the env states, nothing else, and its output obeys the bounds that it declares."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from striderl.data.actions import ActuationSpec, BoxSpec
from striderl.data.specs import ObsSpec
from striderl.envs.on_device import OnDevice
from striderl.envs.quadruped.base import QuadrupedEnv
from striderl.envs.rsl_rl.control import find_actuation
from striderl.envs.tasks import make
from striderl.export.bundle import export_policy
from striderl.export.exported_policy import load_bundle
from striderl.export.metadata import ExportMetadata
from striderl.policies.policy import Policy, PolicyConfig
from striderl.training.agent import Agent
from striderl.training.experiment.run_folder import SPECS_FILE, actuation_of, read_plain_specs, read_specs, write_specs

ROBOTS = (
    "quadruped",
    "quadruped_rough",
    "quadruped_blind",
    "quadruped_depth",
    "parkour",
)

pytestmark = pytest.mark.usefixtures("one_operator_table")


def wild_policy(env: Any) -> Policy:
    """A policy whose actions are often outside of the bounds."""
    torch.manual_seed(0)
    seen = ("base_ang_vel", "joint_pos")
    config = PolicyConfig(actor_obs=seen, critic_obs=seen, actor_hidden_dims=(8,), critic_hidden_dims=(8,))
    policy = Policy(env.obs_spec, env.action_spec, config)
    with torch.no_grad():
        policy.head.mean_layer.linear.weight.mul_(60.0)
    return policy


@pytest.mark.parametrize("task", ROBOTS)
def test_every_robot_states_what_it_does_with_actions(task):
    with make(task, num_envs=4, settings={"action_scale": 0.3}) as env:
        assert isinstance(env, QuadrupedEnv) and env.actuation is not None
        env.reset(0)
        actions = 8.0 * torch.randn(4, 12, generator=torch.Generator().manual_seed(0))
        env.step(actions)
        stated = env.actuation
        targets = np.asarray(stated.offset) + np.asarray(stated.scale) * actions.clamp(-5.0, 5.0).numpy()
        targets = np.clip(targets, stated.target_low, stated.target_high)
        alive = (env.episode_length_buf > 0).numpy()
        assert alive.any() and np.abs(env.ctrl[alive] - targets[alive]).max() < 1e-6
        servo = env.model.actuator("FL_calf")
        assert stated.joint_stiffness == (float(servo.gainprm[0]),) * 12
        assert stated.joint_damping == (-float(servo.biasprm[2]),) * 12


@pytest.mark.slow
def test_the_robot_is_given_what_the_exported_file_says(tmp_path):
    # what a robot's program does with the file alone: offset + scale · output, within the target's limits
    pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    with make("quadruped", num_envs=4) as env:
        assert isinstance(env, QuadrupedEnv)
        policy = wild_policy(env)
        metadata = ExportMetadata(dt=env.step_dt or None, actuation=env.actuation)
        export_policy(policy, tmp_path / "bundle", metadata=metadata, formats=("onnx",), num_steps=3)
        runnable = load_bundle(tmp_path / "bundle")
        told = runnable.metadata["actions"][0]
        assert told["scale"] == [0.25] * 12 and runnable.metadata["dt"] == pytest.approx(0.02)
        obs = env.reset(0)
        for _ in range(3):
            output = runnable.act({name: obs[name].numpy() for name in runnable.obs_spec})
            targets = np.asarray(told["offset"]) + np.asarray(told["scale"]) * output
            targets = np.clip(targets, told["target_low"], told["target_high"])
            raw, _, _ = policy.act(obs, {}, {})
            obs = env.step(raw.mode().detach()).obs
            # a robot that has fallen was reset, and its servos with it
            alive = (env.episode_length_buf > 0).numpy()
            assert alive.any() and np.abs(env.ctrl[alive] - targets[alive]).max() < 1e-6
        assert np.abs(output).max() == env.action_spec.high  # some actions were beyond the bounds


@pytest.mark.slow
def test_outputs_obey_the_declared_bounds_in_every_format(tmp_path):
    pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    spec = BoxSpec(shape=(2,), low=(-0.5, -float("inf")), high=(float("inf"), 0.25))
    torch.manual_seed(0)
    policy = Policy(ObsSpec.from_flat(3), spec, PolicyConfig(actor_hidden_dims=(8,), critic_hidden_dims=(8,)))
    with torch.no_grad():
        policy.head.mean_layer.linear.bias.copy_(torch.tensor([-9.0, 9.0]))
    bundle = export_policy(policy, tmp_path / "bundle", metadata=ExportMetadata(), num_steps=4)
    from safetensors.torch import load_file

    golden = load_file(bundle.folder / "trace.safetensors")["action"]
    assert (golden[..., 0] == -0.5).all() and (golden[..., 1] == 0.25).all()
    obs = np.zeros((3, 3), np.float32)
    assert load_bundle(bundle.folder).act(obs).tolist() == [[-0.5, 0.25]] * 3
    program = torch.export.load(bundle.files["torch"]).module()
    assert program(torch.from_numpy(obs))[0].tolist() == [[-0.5, 0.25]] * 3
    assert Agent(policy).predict(obs).tolist() == [[-0.5, 0.25]] * 3


@pytest.mark.slow
def test_what_is_not_known_is_null(tmp_path):
    policy = Policy(ObsSpec.from_flat(3), BoxSpec(shape=(2,)), PolicyConfig(actor_hidden_dims=(8,)))
    bundle = export_policy(policy, tmp_path / "b", metadata=ExportMetadata(), formats=("torch",), num_steps=2)
    told = json.loads((bundle.folder / "metadata.json").read_text())
    (action,) = told["actions"]
    unknown = ("scale", "offset", "target", "target_low", "target_high")
    assert all(action[name] is None for name in unknown) and not action["clipped"]
    keys = ("dt", "joint_names", "joint_stiffness", "joint_damping", "default_joint_pos", "action_scale")
    assert all(told[name] is None for name in (*keys, "action_offset", "command_names"))
    assert told["observation_names"] == ["obs"]


def test_a_wrong_number_of_facts_is_refused(tmp_path):
    policy = Policy(ObsSpec.from_flat(3), BoxSpec(shape=(2,)), PolicyConfig(actor_hidden_dims=(8,)))
    meta = ExportMetadata(actuation=ActuationSpec(scale=(1.0, 1.0, 1.0)))
    with pytest.raises(ValueError, match="scale has 3 entries for an action of 2"):
        export_policy(policy, tmp_path / "b", metadata=meta, formats=("torch",))
    with pytest.raises(ValueError, match="one entry per action in every field"):
        ActuationSpec(scale=(1.0,), offset=(0.0, 0.0))
    with pytest.raises(ValueError, match="leave action_scale out"):
        ExportMetadata(actuation=ActuationSpec(scale=(1.0, 1.0)), action_scale=0.5)


def test_the_facts_are_stored_with_a_run_and_old_files_have_none(tmp_path):
    with make("quadruped", num_envs=1) as env:
        write_specs(tmp_path, env.obs_spec, env.action_spec, env.step_dt, env.actuation)
        assert actuation_of(read_plain_specs(tmp_path)) == env.actuation is not None
        assert OnDevice(env, "cpu").actuation is env.actuation
        content = json.loads((tmp_path / SPECS_FILE).read_text())
        del content["actuation"]  # as the version before wrote it, which sealed nothing
        old = tmp_path / "old"
        old.mkdir()
        (old / SPECS_FILE).write_text(json.dumps(content))
        assert actuation_of(read_plain_specs(old)) is None
        assert read_specs(old) == (env.obs_spec, env.action_spec, env.step_dt)


def test_gymnasiums_mujoco_tasks_pass_controls_on():
    with make("hopper", num_envs=1) as env:
        assert env.actuation is not None and env.actuation.target == "control"
        assert env.actuation.scale == (1.0,) * 3 and env.actuation.offset == (0.0,) * 3
        assert env.actuation.joint_names == ("thigh_joint", "leg_joint", "foot_joint")
        assert env.actuation.target_high == (1.0,) * 3 and env.actuation.joint_stiffness is None
    with make("pendulum", num_envs=1) as env:
        assert env.actuation is None


# -- what clients' envs state ------------------------------------------------------------------------------------------


class JointPositionAction:
    """As mjlab's and Isaac Lab's terms keep their numbers."""

    def __init__(self, names: list[str], scale: Any, offset: Any, clip=None, **gains: Any) -> None:
        self.action_dim, self._joint_names, self._scale, self._offset = len(names), names, scale, offset
        data = SimpleNamespace(default_joint_pos=torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 2), **gains)
        self.cfg = SimpleNamespace(clip=clip and "set")
        self._clip = torch.tensor([clip or [[-1.0, 1.0]] * len(names)] * 2)  # [N, A, 2], of targets
        self._asset = SimpleNamespace(joint_names=["a", "b", "c", "d"], data=data)


class RelativeJointPositionAction(JointPositionAction):
    """Adds to the present position: no fixed offset."""


def managed(*terms: Any) -> Any:
    named = {f"term_{number}": term for number, term in enumerate(terms)}
    manager = SimpleNamespace(active_terms=list(named), get_term=named.__getitem__)
    return SimpleNamespace(action_manager=manager, command_manager=SimpleNamespace(active_terms=["twist"]))


def test_joint_terms_of_a_manager_are_read_in_their_order():
    # term 0 drives c and a with a scale per joint, term 1 drives d with one number for all
    first = JointPositionAction(["c", "a"], torch.tensor([[0.5, 0.25]] * 2), torch.tensor([[0.3, 0.1]] * 2))
    found = find_actuation(managed(first, JointPositionAction(["d"], 2.0, 0.0)), 3)
    assert found is not None and found.target == "joint_position"
    assert found.scale == (0.5, 0.25, 2.0)
    assert found.offset == pytest.approx((0.3, 0.1, 0.0))
    assert found.joint_names == ("c", "a", "d")
    assert found.default_joint_pos == pytest.approx((0.3, 0.1, 0.4))
    assert found.joint_stiffness is None and found.command_names == ("twist",)


@pytest.mark.parametrize(
    ("clip", "low", "high"),
    [
        (None, None, None),  # the config sets none
        ([[-1.0, 1.0], [-0.5, 2.0]], (-1.0, -0.5), (1.0, 2.0)),
        ([[-1.0, 1.0], [-0.5, float("inf")]], (-1.0, -0.5), None),
    ],
)
def test_limits_of_a_joint_terms_targets_are_stated(clip, low, high):
    found = find_actuation(managed(JointPositionAction(["a", "b"], 0.5, 0.0, clip)), 2)
    assert found is not None and (found.target_low, found.target_high) == (low, high)


@pytest.mark.parametrize(("stiffness", "found"), [([20.0, 30.0], (20.0, 30.0)), ([20.0, 0.0], None)])
def test_the_simulators_zeros_are_no_gains_of_an_explicit_actuator(stiffness, found):
    # Isaac Lab writes zero drive gains for joints whose torques an actuator model computes itself
    both = torch.tensor([[*stiffness, 9.0, 9.0]] * 2), torch.tensor([[0.5, 0.0, 9.0, 9.0]] * 2)
    term = JointPositionAction(["a", "b"], 0.5, 0.0, joint_stiffness=both[0], joint_damping=both[1])
    stated = find_actuation(managed(term), 2)
    assert stated is not None and stated.joint_stiffness == found
    assert stated.joint_damping == (None if found is None else (0.5, 0.0))


def test_numbers_that_are_no_facts_stay_unknown():
    differs = JointPositionAction(["a"], torch.tensor([[0.5], [0.6]]), 0.0)  # randomised per env
    found = find_actuation(managed(differs), 1)
    assert found is not None and found.scale is None and found.offset == (0.0,)
    other = find_actuation(managed(RelativeJointPositionAction(["a"], 1.0, 0.0)), 1)
    assert other is not None and other.scale is None and other.target is None
    assert find_actuation(SimpleNamespace(), 2) is None


@pytest.mark.parametrize(("kind", "offset"), [("P", (0.1, -0.2)), ("T", (0.0, 0.0)), ("actuator_net", None)])
def test_legged_gyms_numbers(kind, offset):
    env = SimpleNamespace(
        cfg=SimpleNamespace(
            control=SimpleNamespace(action_scale=0.25, control_type=kind),
            normalization=SimpleNamespace(clip_actions=2.0),
        ),
        default_dof_pos=torch.tensor([[0.1, -0.2]], dtype=torch.float64),
        p_gains=torch.tensor([20.0, 30.0]),
        d_gains=torch.tensor([0.5, 1.0]),
        dof_names=["hip", "knee"],
    )
    found = find_actuation(env, 2)
    assert found is not None and found.scale == (0.25, 0.25)
    assert found.offset == offset and found.default_joint_pos == (0.1, -0.2)
    assert found.joint_names == ("hip", "knee")
    assert (found.joint_stiffness, found.joint_damping) == ((20.0, 30.0), (0.5, 1.0))
    # the env clips actions to [-2, 2], which moves targets by 0.25 · 2 at most
    wanted = (None, None) if offset is None else tuple(tuple(at + by for at in offset) for by in (-0.5, 0.5))
    assert (found.target_low, found.target_high) == wanted
