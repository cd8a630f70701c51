"""st_rl's mutex policies, from run folders with its own weights: numbers that can be worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import striderl.compat.st_rl as st_rl
from striderl.policies import ActorCriticClimbMutex, ActorCriticFieldMutex, ActorCriticMutex

SEGMENTS = {"proprioception": (4,), "engaging_block": (4,)}
"""proprioception: command, speed, last action (2); engaging_block: distance, walk, jump, up or down"""
SETTINGS: dict[str, Any] = {"actor_hidden_dims": [], "critic_hidden_dims": []}


def run_folder(folder: Path, entry: int | None, offset: float, scale: Any, *, rnn: bool = False) -> Path:
    """Write a run whose policy plays an entry of its observation plus a number, in both actions."""
    folder.mkdir()
    kind = st_rl.ActorCriticRecurrent if rnn else st_rl.ActorCritic
    settings = {**SETTINGS, **({"rnn_hidden_size": 3, "rnn_type": "gru"} if rnn else {})}
    model = kind(8, 8, 2, **settings)
    if not rnn:
        with torch.no_grad():
            for parameter in model.actor.parameters():
                parameter.zero_()
            model.actor[0].bias.fill_(offset)
            if entry is not None:
                model.actor[0].weight[:, entry] = 1.0
    torch.save(st_rl.PPO(model).state_dict(), folder / "model_100.pt")
    content = {
        "policy": settings,
        "runner": {"policy_class_name": kind.__name__},
        "control": {"action_scale": scale},
        "normalization": {"obs_scales": {"lin_vel": 2.0}},
    }
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def observation(*skills: int, height: float = 0.3) -> Tensor:
    """Return one row per env: walking (0), jumping (1), or neither (-1)."""
    rows = [[0.1, 0.0, 0.3, 0.4, 1.0, float(skill == 0), float(skill == 1), height] for skill in skills]
    return torch.tensor(rows)


def field(folder: Path, **more: Any) -> Any:
    paths = [run_folder(folder / "walk", 0, 0.0, 0.5), run_folder(folder / "jump", 0, 0.0, [0.25, 0.25])]
    settings: dict[str, Any] = {"cmd_entry": 0, "last_action_entries": (2, 4), "seed": 0, **more}
    return ActorCriticFieldMutex(8, 8, 2, "ActorCritic", paths, SEGMENTS, SEGMENTS, 0.5, **settings)


@pytest.mark.described("st_rl", 1126, "get_policy_selection returns the engaged obstacle as a one-hot policy.")
@pytest.mark.described("st_rl", 1127, "Without an obstacle the first policy is chosen.")
def test_the_selection(tmp_path: Path) -> None:
    assert field(tmp_path).get_policy_selection(observation(0, 1, -1)).tolist() == [[1, 0], [0, 1], [1, 0]]


@pytest.mark.described("st_rl", 1134, "Velocity commands are overridden in the proprioception, times cmd_scales.")
@pytest.mark.described("st_rl", 1102, "cmd_scales are loaded from the runs of the sub-policies.")
@pytest.mark.described("st_rl", 1145, "Outputs are combined with the scales of the runs.")
def test_commands_and_scales(tmp_path: Path) -> None:
    model = field(tmp_path, cmd_vel_mapping={1: 1.5})
    obs = observation(0, 1)
    shown = model.override_cmd_vel(obs, model.get_policy_selection(obs))
    assert shown[:, 0].tolist() == pytest.approx([0.1, 3.0]), "1.5 times the run's lin_vel scale of 2"
    # walking plays the observed command in the env's units, jumping plays 3 times 0.25 / 0.5
    assert model.act_inference(obs)[:, 0].tolist() == pytest.approx([0.1, 1.5])
    assert obs[1, 0].item() == pytest.approx(0.1), "the observation is not changed"


@pytest.mark.described("st_rl", 1118, "The last action is recovered in the units of the chosen policy.")
def test_the_last_action(tmp_path: Path) -> None:
    model, obs = field(tmp_path), observation(0, 1)
    shown = model.recover_last_action(obs, model.get_policy_selection(obs))
    torch.testing.assert_close(shown[:, 2:4], torch.tensor([[0.3, 0.4], [0.6, 0.8]]))


@pytest.mark.described("st_rl", 1109, "Velocities are resampled at resets, of the finished envs alone.")
@pytest.mark.described("st_rl", 1154, "reset resamples velocity commands.")
def test_velocities_of_a_range_are_drawn_again(tmp_path: Path) -> None:
    model = field(tmp_path, cmd_vel_mapping={1: (1.0, 2.0)})
    model.act_inference(observation(1, 1))
    before = model.cmd_vel_current.clone()
    model.reset(torch.tensor([1, 0]))
    model.act_inference(observation(1, 1))
    after = model.cmd_vel_current
    assert before[0].tolist() != after[0].tolist() and before[1].tolist() == after[1].tolist()
    model.resample_cmd_vel_current()
    model.act_inference(observation(1, 1))
    assert model.cmd_vel_current[1].tolist() != after[1].tolist()


@pytest.mark.described("st_rl", 1144, "A buffer smooths the selection of policies.",
                       difference="it begins with the first selection, not with zeros")  # fmt: skip
def test_smoothing(tmp_path: Path) -> None:
    model = field(tmp_path, action_smoothing_buffer_len=2, cmd_vel_mapping={0: 1.0, 1: 4.0})
    # commands 2 and 8 as the runs see them; jumping counts half in the env's units: 2 and 4
    assert model.act_inference(observation(0))[0, 0].item() == pytest.approx(2.0)
    assert model.act_inference(observation(1))[0, 0].item() == pytest.approx(3.0)
    assert model.act_inference(observation(1))[0, 0].item() == pytest.approx(4.0)


@pytest.mark.described("st_rl", 1146, "Sub-policies that are not chosen are reset.")
@pytest.mark.described("st_rl", 1243, "is_recurrent is true if any sub-policy has a memory.")
@pytest.mark.described("st_rl", 1253, "reset resets all sub-policies, of the finished envs.")
def test_memories_of_policies_that_are_not_chosen(tmp_path: Path) -> None:
    paths = [run_folder(tmp_path / name, None, 0.0, 0.5, rnn=True) for name in ("walk", "jump")]
    settings: dict[str, Any] = {"cmd_entry": 0, "last_action_entries": (2, 4), "reset_non_selected": "all"}
    model = ActorCriticFieldMutex(8, 8, 2, "ActorCriticRecurrent", paths, SEGMENTS, SEGMENTS, 0.5, **settings)
    assert model.is_recurrent
    first = model.act_inference(observation(1))
    assert not torch.allclose(model.act_inference(observation(1)), first), "it remembers"
    model.act_inference(observation(0))
    torch.testing.assert_close(model.act_inference(observation(1)), first)
    model.reset(torch.tensor([True]))
    torch.testing.assert_close(model.act_inference(observation(1)), first)


@pytest.mark.described("st_rl", 1167, "The climbing variant has a policy for jumping down, which is the last one.")
@pytest.mark.described("st_rl", 1185, "engaging_block decides between jumping up and down.")
@pytest.mark.described("st_rl", 1176, "The policy that jumps down has a velocity of its own, fixed or from a range.")
def test_jumping_down(tmp_path: Path) -> None:
    paths = [run_folder(tmp_path / name, 0, 0.0, 0.5) for name in ("walk", "up", "down")]
    assert ActorCriticClimbMutex.JUMP_OBSTACLE_ID == 3
    model = ActorCriticClimbMutex(
        8, 8, 2, "ActorCritic", paths[:2], SEGMENTS, SEGMENTS, 0.5, jump_down_policy_path=paths[2], jump_down_vel=0.5,
        jump_obstacle_id=1, cmd_vel_mapping={1: 2.0}, cmd_entry=0, last_action_entries=(2, 4),
    )  # fmt: skip
    up, down = observation(1, height=0.3), observation(1, height=-0.3)
    assert model.get_policy_selection(up).tolist() == [[0, 1, 0]]
    assert model.get_policy_selection(down).tolist() == [[0, 0, 1]]
    assert model.act_inference(up)[0, 0].item() == pytest.approx(4.0)
    assert model.act_inference(down)[0, 0].item() == pytest.approx(1.0)


@pytest.mark.described("st_rl", 1285, "ActorCriticMutex itself does not choose.",
                       difference="it plays what the caller chooses, and raises without a choice")  # fmt: skip
@pytest.mark.described("st_rl", 1220, "Sub-policies are made from sub_policy_paths.")
def test_the_base_class_wants_a_choice(tmp_path: Path) -> None:
    paths = [run_folder(tmp_path / str(number), None, float(number), 0.5) for number in (1, 2)]
    model = ActorCriticMutex(8, 8, 2, "ActorCritic", paths, SEGMENTS, SEGMENTS, 0.5, last_action_entries=(2, 4))
    assert len(model.submodules) == 2
    assert model.act_inference(observation(0, 0), torch.tensor([0, 1]))[:, 0].tolist() == [1.0, 2.0]
    with pytest.raises((ValueError, TypeError), match="nothing says which policy acts"):
        model.act_inference(observation(0, 0))
