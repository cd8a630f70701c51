"""The three mutex classes: built from run folders or ready policies, used in a loop."""

from __future__ import annotations

import json

import pytest
import torch
from mutex_parts import COMMAND, LAST_0, SEGMENTS, constant, observe, reading, recurrent
from safetensors.torch import save_file

from striderl.policies.mutex.classes import ActorCriticClimbMutex, ActorCriticFieldMutex, ActorCriticMutex
from striderl.policies.presets.base import ActorCritic, ActorCriticRecurrent
from striderl.policies.transfer.load import TransferError

HIDDEN = {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}
SIZES = (8, 6, 2)
CRITIC = {"proprioception": 4, "friction": 2}


def write_run(folder, model, *, policy=None, action_scale=0.25, iteration=10, suffix="pt", **config):
    """Write what a run leaves behind: its config and a model."""
    folder.mkdir(exist_ok=True)
    content = {"policy": HIDDEN if policy is None else policy, "control": {"action_scale": action_scale}, **config}
    (folder / "config.json").write_text(json.dumps(content))
    if suffix == "safetensors":
        save_file(model.state_dict(), folder / f"model_{iteration}.safetensors")
    else:
        torch.save({"model_state_dict": model.state_dict(), "iter": iteration}, folder / f"model_{iteration}.pt")
    return folder


def walker(seed=0):
    torch.manual_seed(seed)
    return ActorCritic(*SIZES, obs_segments=SEGMENTS, critic_obs_segments=CRITIC, **HIDDEN)


def climber(seed=1):
    torch.manual_seed(seed)
    settings = {**HIDDEN, "rnn_type": "gru", "rnn_hidden_size": 5}
    return ActorCriticRecurrent(*SIZES, obs_segments=SEGMENTS, critic_obs_segments=CRITIC, **settings)


def flat(obs):
    return torch.cat([obs["proprioception"], obs["engaging_block"]], dim=-1)


def field(**settings):
    return ActorCriticFieldMutex(
        8, None, 2, obs_segments=SEGMENTS, env_action_scale=1.0, cmd_entry=COMMAND, seed=3, **settings
    )


# -- run folders -------------------------------------------------------------------------------------------------------


def test_two_runs_are_loaded_and_mixed(tmp_path):
    walk, climb = walker(), climber()
    paths = [
        write_run(tmp_path / "walk", walk, action_scale=0.25, suffix="safetensors"),
        write_run(
            tmp_path / "climb",
            climb,
            policy={**HIDDEN, "rnn_type": "gru", "rnn_hidden_size": 5},
            action_scale=[0.5, 1.0],
        ),
    ]
    model = ActorCriticFieldMutex(
        *SIZES, ["ActorCritic", "ActorCriticRecurrent"], paths, SEGMENTS, CRITIC, 0.5, last_action_component=""
    )
    obs = observe(0, 1)
    actions = model.act_inference(flat(obs))
    # in the env's units: 0.25 / 0.5 of what the walker plays, and (0.5, 1) / 0.5 of what the climber plays
    assert torch.allclose(actions[0], 0.5 * walk.act_inference(flat(obs))[0], atol=1e-6)
    assert torch.allclose(actions[1], climb.act_inference(flat(obs))[1] * torch.tensor([1.0, 2.0]), atol=1e-6)
    assert model.is_recurrent and len(model.submodules) == 2


def test_the_newest_model_is_that_with_the_highest_number(tmp_path):
    old, new = walker(0), walker(1)
    write_run(tmp_path / "run", new, iteration=1000)
    write_run(tmp_path / "run", old, iteration=900)
    model = ActorCriticFieldMutex(
        *SIZES, "ActorCritic", [tmp_path / "run"], SEGMENTS, CRITIC, 0.25, last_action_component=""
    )
    assert torch.allclose(model.act_inference(observe(0)), new.act_inference(flat(observe(0))))


def test_a_run_may_say_its_class_itself(tmp_path):
    write_run(tmp_path / "old", walker(), runner={"policy_class_name": "ActorCritic"})
    write_run(tmp_path / "new", walker(), policy={**HIDDEN, "class_name": "ActorCritic"})
    model = ActorCriticMutex(*SIZES, "", [tmp_path / "old", tmp_path / "new"], SEGMENTS, CRITIC)
    assert len(model.submodules) == 2


def test_both_names_of_the_critics_segments_are_taken(tmp_path):
    path = write_run(tmp_path / "run", walker())
    ActorCriticMutex(*SIZES, "ActorCritic", [path], SEGMENTS, privileged_obs_segments=CRITIC)
    with pytest.raises(ValueError, match="two names of one thing"):
        ActorCriticMutex(*SIZES, "ActorCritic", [path], SEGMENTS, CRITIC, privileged_obs_segments=CRITIC)


def test_velocities_are_scaled_as_the_run_says(tmp_path):
    path = write_run(tmp_path / "run", walker(), normalization={"obs_scales": {"lin_vel": 2.0}})
    config = json.loads(json.dumps({"cmd_vel_mapping": {"0": [1.0, 1.0]}}))  # as a config file gives it
    model = ActorCriticFieldMutex(*SIZES, "ActorCritic", [path], SEGMENTS, CRITIC, cmd_entry=COMMAND, **config)
    assert model.policy.config.cmd_scales == (2.0,) and model.policy.config.cmd_vel == {0: (1.0, 1.0)}
    bare = write_run(tmp_path / "bare", walker())
    with pytest.raises(ValueError, match="give cmd_scales"):
        ActorCriticFieldMutex(*SIZES, "ActorCritic", [bare], SEGMENTS, CRITIC, cmd_entry=COMMAND, **config)


@pytest.mark.parametrize(
    ("name", "text"),
    [("ActorCrtic", "Did you mean 'ActorCritic'"), (["ActorCritic"] * 2, "2 sub-policy class names for 1 run folders")],
)
def test_wrong_class_names_are_answered(tmp_path, name, text):
    path = write_run(tmp_path / "run", walker())
    with pytest.raises(ValueError, match=text):
        ActorCriticMutex(*SIZES, name, [path], SEGMENTS, CRITIC)


def test_a_run_that_does_not_fit_is_shown_as_a_table(tmp_path):
    path = write_run(tmp_path / "run", walker(), policy={**HIDDEN, "actor_hidden_dims": [9]})
    with pytest.raises(TransferError, match=r"actor_body\.model\.0\.weight +\[8, 8\] +\[9, 8\]") as error:
        ActorCriticMutex(*SIZES, "ActorCritic", [path], SEGMENTS, CRITIC)
    assert str(path) in str(error.value)


def test_settings_that_a_run_lacks_are_named(tmp_path):
    path = write_run(tmp_path / "run", walker())
    (path / "config.json").write_text(json.dumps({"policy": HIDDEN, "control": {}}))
    with pytest.raises(KeyError, match=r"has no \['control'\]\['action_scale'\]"):
        ActorCriticMutex(*SIZES, "ActorCritic", [path], SEGMENTS, CRITIC)


# -- in a loop ---------------------------------------------------------------------------------------------------------


def test_the_caller_chooses_by_index_or_one_hot():
    model = ActorCriticMutex(
        8,
        None,
        2,
        obs_segments=SEGMENTS,
        sub_policies=[constant(1.0, 1.0), constant(3.0, 3.0)],
        sub_action_scales=[0.5, 0.5],
    )
    assert model.act_inference(observe(0, 0), torch.tensor([1, 0]))[:, 0].tolist() == [3.0, 1.0]
    assert model.act_inference(observe(0, 0), torch.tensor([[1, 0], [0, 1]]))[:, 0].tolist() == [1.0, 3.0]
    with pytest.raises(ValueError, match="does not choose"):
        model.get_policy_selection(observe(0))


@pytest.mark.parametrize("dones", [[0, 1], [False, True], [0.0, 1.0], [[0], [1]]])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_dones_of_any_dtype_reset_exactly_the_finished_envs(dones, dtype):
    model = field(
        sub_policies=[recurrent(0), recurrent(1)], sub_action_scales=[1.0, 1.0], action_smoothing_buffer_len=3
    )
    for chosen in (0, 1):
        model.act_inference(observe(chosen, chosen))
    before = {name: value.clone() for name, value in model.state.items()}
    model.reset(torch.tensor(dones).to(dtype))
    for name, value in model.state.items():
        assert torch.equal(value[0], before[name][0]) and not value[1].any(), name
    model.reset()
    assert model.state == {}


def test_commands_are_drawn_per_env_and_again_at_resets():
    model = field(
        sub_policies=[reading(COMMAND), reading(COMMAND)], sub_action_scales=[1.0, 1.0], cmd_vel_mapping={1: [2.0, 3.0]}
    )
    obs = observe(*[1] * 50)
    first = model.act_inference(obs)[:, 0]
    assert len(set(first.tolist())) > 40 and bool(((first >= 2.0) & (first < 3.0)).all())
    assert torch.equal(model.act_inference(obs)[:, 0], first)
    dones = torch.arange(50) < 10
    model.reset(dones)
    again = model.act_inference(obs)[:, 0]
    assert torch.equal(again[10:], first[10:]) and bool((again[:10] != first[:10]).all())
    model.resample_cmd_vel_current(~dones)
    last = model.act_inference(obs)[:, 0]
    assert torch.equal(last[:10], again[:10]) and bool((last[10:] != again[10:]).all())
    assert torch.equal(model.cmd_vel_current[:, 1], last)


def test_the_same_seed_gives_the_same_numbers():
    def run():
        model = field(sub_policies=[constant(1.0, 2.0)], sub_action_scales=[0.5], cmd_vel_mapping={0: (0.0, 1.0)})
        return [model.act(observe(0, 0)) for _ in range(3)]

    first, second = run(), run()
    assert all(torch.equal(one, two) for one, two in zip(first, second))
    assert not torch.equal(first[0], first[1])


def test_what_the_last_call_gave_can_be_asked_for():
    model = field(sub_policies=[constant(1.0, 2.0), constant(3.0, 4.0)], sub_action_scales=[0.5, 2.0])
    with pytest.raises(RuntimeError, match="call act first"):
        _ = model.action_mean
    actions = model.act(observe(0, 1))
    assert model.action_mean.tolist() == [[0.5, 1.0], [6.0, 8.0]]
    assert model.action_std.tolist() == [[0.5, 0.5], [2.0, 2.0]]
    assert (
        model.policy_selection.tolist()
        == [[1.0, 0.0], [0.0, 1.0]]
        == model.get_policy_selection(observe(0, 1)).tolist()
    )
    normal = torch.distributions.Normal(model.action_mean, model.action_std)
    assert torch.allclose(model.get_actions_log_prob(actions), normal.log_prob(actions).sum(-1))
    assert torch.allclose(model.entropy, normal.entropy().sum(-1))


def test_another_number_of_envs_wants_a_reset():
    model = field(sub_policies=[constant(1.0, 2.0)], sub_action_scales=[0.5])
    model.act_inference(observe(0, 0))
    with pytest.raises(ValueError, match="remembers 2 envs"):
        model.act_inference(observe(0))
    model.reset()
    model.act_inference(observe(0))


def test_a_state_dict_goes_round():
    one = field(sub_policies=[recurrent(0)], sub_action_scales=[0.5])
    two = field(sub_policies=[recurrent(1)], sub_action_scales=[0.5])
    two.load_state_dict(one.state_dict())
    assert torch.equal(one.act_inference(observe(0)), two.act_inference(observe(0)))


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ({"reset_non_selcted": "all"}, "Did you mean 'reset_non_selected'"),
        ({"reset_non_selected": "some"}, "has no reset rule 'some'"),
        ({"cmd_vel_mapping": {0: [1.0]}}, "a number or a range"),
        ({"sub_action_scales": [1.0, 1.0]}, "one scale"),
        ({"last_action_component": "action", "env_action_scale": 3.0}, "Set last_action_component"),
    ],
)
def test_arguments_that_do_not_fit_are_answered(argument, text):
    settings = {"sub_policies": [constant(1.0, 2.0)], "sub_action_scales": [1.0], "env_action_scale": 1.0, **argument}
    with pytest.raises((TypeError, ValueError, KeyError), match=text):
        ActorCriticFieldMutex(8, None, 2, obs_segments=SEGMENTS, cmd_entry=COMMAND, **settings)


@pytest.mark.parametrize(("word", "rule"), [(True, "all"), (False, "none"), ("when_skill", "when_skill")])
def test_the_reset_rule_may_be_a_bool(word, rule):
    model = field(sub_policies=[constant(1.0, 2.0)], sub_action_scales=[1.0], reset_non_selected=word)
    assert model.policy.config.reset_non_selected == rule


def test_the_number_of_actions_must_be_that_of_the_policies():
    with pytest.raises(ValueError, match="num_actions is 3"):
        ActorCriticFieldMutex(
            8, None, 3, obs_segments=SEGMENTS, sub_policies=[constant(1.0, 2.0)], sub_action_scales=[0.5]
        )


# -- jumping up and down -----------------------------------------------------------------------------------------------


def climb_mutex(**settings):
    return ActorCriticClimbMutex(
        8,
        None,
        2,
        obs_segments=SEGMENTS,
        env_action_scale=1.0,
        cmd_entry=COMMAND,
        jump_obstacle_id=1,
        sub_policies=[reading(COMMAND), reading(COMMAND), reading(COMMAND)],
        sub_action_scales=[1.0, 1.0, 2.0],
        last_action_entries=(2, 4),
        seed=0,
        **settings,
    )


def test_the_last_policy_jumps_down():
    model = climb_mutex(cmd_vel_mapping={0: 1.0, 1: 2.0}, jump_down_vel=0.5)
    assert model.get_policy_selection(observe(0, 1, height=0.3)).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert model.get_policy_selection(observe(0, 1, height=-0.3)).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert model.act_inference(observe(0, 1, height=0.3))[:, 0].tolist() == [1.0, 2.0]
    # the policy that jumps down has a scale of its own: 0.5 * 2
    assert model.act_inference(observe(0, 1, height=-0.3))[:, 0].tolist() == [1.0, 1.0]


def test_without_a_velocity_of_its_own_it_takes_that_of_the_jump_up():
    model = climb_mutex(cmd_vel_mapping={1: (2.0, 3.0)})
    up = model.act_inference(observe(1, 1, height=0.3))[:, 0]
    down = model.act_inference(observe(1, 1, height=-0.3))[:, 0]
    assert torch.allclose(down, 2.0 * up) and up[0] != up[1]


def test_a_jump_without_any_velocity_keeps_the_observed_one():
    model = climb_mutex(cmd_vel_mapping={0: 1.0})
    assert model.act_inference(observe(1, height=-0.3))[0, 0].item() == pytest.approx(2.0 * 0.1)


def test_jump_down_comes_from_its_run_folder(tmp_path):
    down = walker(5)
    paths = [write_run(tmp_path / f"run_{index}", walker(index)) for index in range(2)]
    path = write_run(tmp_path / "down", down)
    model = ActorCriticClimbMutex(
        *SIZES,
        "ActorCritic",
        paths,
        SEGMENTS,
        CRITIC,
        0.25,
        jump_down_policy_path=path,
        jump_obstacle_id=1,
        last_action_component="",
    )
    obs = observe(1, height=-0.1)
    assert torch.allclose(model.act_inference(obs), down.act_inference(flat(obs)))
    with pytest.raises(ValueError, match="wants jump_down_policy_path"):
        ActorCriticClimbMutex(*SIZES, "ActorCritic", paths, SEGMENTS, CRITIC)


def test_the_default_jump_is_policy_three():
    assert ActorCriticClimbMutex.JUMP_OBSTACLE_ID == 3
    with pytest.raises(ValueError, match="number 3"):
        ActorCriticClimbMutex(
            8,
            None,
            2,
            obs_segments={"proprioception": 4, "engaging_block": 4},
            sub_policies=[reading(LAST_0)] * 3,
            sub_action_scales=[1.0] * 3,
        )


@pytest.mark.parametrize(
    ("setting", "place", "value"),
    [
        ({"selection_component": "proprioception"}, lambda config: config.selection.field.component, "proprioception"),
        ({"selection_first_entry": 0}, lambda config: config.selection.field.first_entry, 0),
        ({"jump_direction_entry": 0}, lambda config: config.selection.direction_entry, 0),
        ({"cmd_scales": 3.0, "cmd_vel_mapping": {0: 0.5}}, lambda config: config.cmd_scales, 3.0),
        ({"cmd_component": "engaging_block"}, lambda config: config.cmd_component, "engaging_block"),
        ({"action_smoothing_buffer_len": 4}, lambda config: config.smoothing_len, 4),
        ({"reset_non_selected": "when_skill"}, lambda config: config.reset_non_selected, "when_skill"),
        ({"last_action_component": ""}, lambda config: config.last_action_component, ""),
    ],
)
def test_every_setting_arrives(setting, place, value):
    assert place(climb_mutex().policy.config) != value
    assert place(climb_mutex(**setting).policy.config) == value


def test_the_entry_that_says_up_or_down_is_a_setting():
    model = climb_mutex(jump_direction_entry=0)
    obs = observe(1, 1, height=0.3)
    obs["engaging_block"][0, 0] = 0.2  # the distance, read as the direction
    assert model.get_policy_selection(obs).argmax(-1).tolist() == [1, 2]


def test_a_run_may_have_the_older_name_of_the_critics_segments(tmp_path):
    both = {**HIDDEN, "privileged_obs_segments": CRITIC}
    run = write_run(tmp_path / "run", walker(), policy=both)
    rest = {"obs_segments": SEGMENTS, "env_action_scale": 0.25, "last_action_component": ""}
    model = ActorCriticFieldMutex(*SIZES, "ActorCritic", [run], **rest)
    assert torch.allclose(model.act_inference(observe(0)), walker().act_inference(flat(observe(0))))
    assert "friction" in model.submodules[0].obs_spec
    write_run(tmp_path / "run", walker(), policy={**both, "critic_obs_segments": CRITIC})
    with pytest.raises(ValueError, match="two names of one thing"):
        ActorCriticFieldMutex(*SIZES, "ActorCritic", [run], **rest)
