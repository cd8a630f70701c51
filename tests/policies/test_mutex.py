"""`MutexPolicy`: who acts, in which units, what it is shown, and whose memory is kept."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mutex_parts import COMMAND, LAST_0, SPEC, constant, observe, reading, recurrent

from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.specs import ObsSpec
from striderl.execution.capture import check_capture
from striderl.export.greedy_step import GreedyStep, plan_layout
from striderl.networks.distributions.deterministic import Deterministic
from striderl.policies.mutex.policy import MutexPolicy
from striderl.policies.mutex.settings import ClimbSelection, FieldSelection, MutexConfig
from striderl.policies.policy import Policy, PolicyConfig

NOTHING = {}


def mutex(policies, scales=None, **settings):
    config = MutexConfig(**{"env_action_scale": 1.0, "cmd_entry": COMMAND, **settings})
    return MutexPolicy(SPEC, policies, scales or [1.0] * len(policies), config)


def play(policy, *steps, state=None, memo=None, resets=None):
    """Run steps one after the other and return the actions and the last state."""
    num_envs = len(steps[0]["engaging_block"])
    state = policy.initial_state(num_envs) if state is None else state
    actions = []
    for at, obs in enumerate(steps):
        decided = policy.settled(torch.zeros(num_envs)) if memo is None else memo
        distribution, state, _ = policy.act(obs, state, decided, None if resets is None else resets[at])
        actions.append(distribution.mode().detach())
    return actions, state


# -- who acts ----------------------------------------------------------------------------------------------------------


def test_an_entry_chooses_its_policy_and_none_chooses_the_first():
    policy = mutex([constant(1.0, 1.5), constant(3.0, 3.5)])
    (actions,), _ = play(policy, observe(-1, 0, 1))
    assert actions.tolist() == [[1.0, 1.5], [1.0, 1.5], [3.0, 3.5]]


def test_the_largest_of_several_entries_wins_and_nan_counts_as_nothing():
    choose = FieldSelection(component="block", first_entry=1)
    nan = float("nan")
    block = torch.tensor([[9.0, 0.2, 0.7, 0.0], [9.0, -1.0, -2.0, 0.0], [9.0, nan, nan, 0.0], [9.0, nan, 0.0, 0.3]])
    assert choose.choose({"block": block}, 3).argmax(-1).tolist() == [1, 0, 0, 2]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float64])
def test_entries_may_have_any_dtype(dtype):
    block = torch.tensor([[0, 0, 1], [0, 0, 0]]).to(dtype)
    chosen = FieldSelection(component="block").choose({"block": block}, 2)
    assert chosen.tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_the_default_reads_entries_one_to_six_of_engaging_block():
    block = torch.eye(7)[[0, 1, 2, 3, 4, 5, 6]]
    chosen = FieldSelection().choose({"engaging_block": block}, 5).argmax(-1)
    assert chosen.tolist() == [0, 0, 1, 2, 3, 4, 0]


def test_a_jump_goes_up_or_down_by_the_last_entry():
    select = ClimbSelection(field=FieldSelection(component="block", first_entry=0), jump_policy=1)
    # entries: policy 0, policy 1 (up), height; three policies in all, the last jumps down
    block = torch.tensor([[0.0, 1.0, 0.4], [0.0, 1.0, -0.4], [0.0, 1.0, 0.0], [1.0, 0.0, -0.4], [0.0, 0.0, -0.4]])
    assert select.choose({"block": block}, 3).argmax(-1).tolist() == [1, 2, 2, 0, 0]


def test_a_given_selection_takes_the_place_of_the_observed_one():
    policy = mutex([constant(1.0), constant(3.0)])
    obs, state = observe(0, 0), policy.initial_state(2)
    distribution, _, aux = policy.act(obs, state, NOTHING, selection=torch.tensor([[0, 1], [0, 0]]))
    assert distribution.mode().tolist() == [[3.0], [1.0]]
    assert aux["selection"].tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_a_mutex_without_a_selection_asks_for_one():
    policy = mutex([constant(1.0)], selection=None)
    with pytest.raises(ValueError, match="nothing says which policy acts"):
        play(policy, observe(0))


# -- units -------------------------------------------------------------------------------------------------------------


def test_actions_come_in_the_units_of_the_env():
    # policy 1 plays 3 in units of 0.25; the env multiplies by 0.5, so it must be given 3 * 0.25 / 0.5 = 1.5
    policy = mutex([constant(1.0, 1.0), constant(3.0, 3.0)], [0.5, (0.25, 1.0)], env_action_scale=0.5)
    (actions,), _ = play(policy, observe(0, 1))
    assert actions.tolist() == [[1.0, 1.0], [1.5, 6.0]]


def test_the_last_action_is_shown_in_the_policys_units():
    # the env saw 0.3 in units of 0.5, that is 0.6 in units of 0.25; played back it is 0.6 * 0.25 / 0.5 = 0.3 again
    policy = mutex([reading(LAST_0)], [0.25], env_action_scale=0.5)
    seen = policy.inputs.seen_by(0, observe(0), torch.zeros(1, 1))
    assert seen["proprioception"].tolist()[0] == pytest.approx([0.1, 0.2, 0.6, 0.8])
    (actions,), _ = play(policy, observe(0))
    assert actions.tolist()[0] == pytest.approx([0.3, 0.3])


def test_a_vector_of_scales_rescales_entry_by_entry():
    policy = mutex([reading(LAST_0)], [(0.25, 0.1)], env_action_scale=(0.5, 0.2))
    seen = policy.inputs.seen_by(0, observe(0), torch.zeros(1, 1))
    assert seen["proprioception"].tolist()[0] == pytest.approx([0.1, 0.2, 0.3 * 2, 0.4 * 2])


def test_the_place_of_the_last_action_is_a_setting():
    policy = mutex([constant(0.0)], [0.5], last_action_component="engaging_block", last_action_entries=(0, 1))
    obs = {**observe(0), "engaging_block": torch.tensor([[0.7, 1.0, 0.0, 2.0]])}
    seen = policy.inputs.seen_by(0, obs, torch.zeros(1, 1))
    assert seen["engaging_block"].tolist()[0] == pytest.approx([1.4, 1.0, 0.0, 2.0])
    assert torch.equal(seen["proprioception"], obs["proprioception"])


def test_an_observation_without_the_last_action_needs_no_rescaling():
    spec = ObsSpec.from_segments({"proprioception": 4, "engaging_block": 4})
    policy = MutexPolicy(spec, [constant(1.0, 1.0)], [0.25], MutexConfig(last_action_component=""))
    obs = observe(0)
    assert torch.equal(policy.inputs.seen_by(0, obs, torch.zeros(1, 1))["proprioception"], obs["proprioception"])


def test_inputs_are_never_changed():
    policy = mutex([reading(LAST_0), recurrent(0)], [0.25, 0.125], cmd_vel={1: (0.5, 1.0)}, smoothing_len=3)
    obs, state = observe(1, 0), policy.initial_state(2)
    before = {name: value.clone() for name, value in {**obs, **state}.items()}
    policy.act(obs, state, policy.settled(torch.zeros(2)), torch.tensor([True, False]))
    for name, value in {**obs, **state}.items():
        assert torch.equal(value, before[name]), name


# -- commands ----------------------------------------------------------------------------------------------------------


def test_a_fixed_command_takes_the_place_of_the_observed_one():
    # policy 1 is told 1.2 m/s, observed with a factor of 2; policy 0 keeps what the env says
    policy = mutex([reading(COMMAND), reading(COMMAND)], cmd_vel={1: 1.2}, cmd_scales=(1.0, 2.0))
    (actions,), _ = play(policy, observe(0, 1))
    assert actions[:, 0].tolist() == pytest.approx([0.1, 2.4])


def test_a_range_is_drawn_per_env_and_stays_until_that_env_is_reset():
    policy = mutex([reading(COMMAND), reading(COMMAND)], cmd_vel={0: (1.0, 3.0), 1: 7.0})
    first = policy.decide({"command": torch.tensor([[0.0, 0.9], [0.5, 0.9]])})
    second = policy.decide({"command": torch.tensor([[0.75, 0.9], [0.75, 0.9]])})
    (start,), state = play(policy, observe(0, 0), memo=first)
    assert start[:, 0].tolist() == [1.0, 2.0]
    (later,), state = play(policy, observe(0, 1), memo=second, state=state)
    assert later[:, 0].tolist() == [1.0, 7.0]  # env 0 keeps its command, that of policy 1 is fixed
    (again,), state = play(policy, observe(0, 0), memo=second, state=state, resets=[torch.tensor([False, True])])
    assert again[:, 0].tolist() == [1.0, 2.5]  # only env 1 has drawn again: 1 + 2 * 0.75
    assert policy.noise()["command"].shape == (2,) and policy.memo_spec()["command"].shape == (2,)


def test_deterministic_inference_takes_the_middle_of_a_range():
    policy = mutex([reading(COMMAND)], cmd_vel={0: (1.0, 3.0)})
    (actions,), _ = play(policy, observe(0))
    assert actions[:, 0].tolist() == [2.0]


def test_a_policy_may_take_the_command_of_another_with_the_same_draw():
    policy = mutex([reading(COMMAND), reading(COMMAND)], cmd_vel={0: (1.0, 3.0)}, cmd_vel_like={1: 0})
    memo = policy.decide({"command": torch.tensor([[0.25, 0.9]])})
    assert memo["command"].tolist() == [[1.5, 1.5]]


def test_a_range_without_draws_says_what_to_give():
    policy = mutex([reading(COMMAND)], cmd_vel={0: (1.0, 3.0)})
    with pytest.raises(KeyError, match=r"policy\.decide"):
        policy.act(observe(0), policy.initial_state(1), NOTHING)


# -- smoothing ---------------------------------------------------------------------------------------------------------


def test_the_mean_is_taken_over_the_choices_since_the_reset():
    policy = mutex([constant(1.0), constant(3.0)], smoothing_len=4)
    actions, _ = play(policy, *(observe(chosen) for chosen in (0, 1, 1, 1, 1)))
    # 1; (1 + 3) / 2; (1 + 3 + 3) / 3; (1 + 3 + 3 + 3) / 4; then only 3 is left in the last four
    assert [float(action) for action in actions] == pytest.approx([1.0, 2.0, 7 / 3, 2.5, 3.0])


def test_smoothing_is_reset_per_env():
    policy = mutex([constant(1.0), constant(3.0)], smoothing_len=4)
    resets = [None, torch.tensor([False, True])]
    actions, state = play(policy, observe(0, 0), observe(1, 1), resets=resets)
    assert actions[1].flatten().tolist() == [2.0, 3.0]
    assert state["recent"].sum((1, 2)).tolist() == [2.0, 1.0]


def test_a_policy_that_does_not_act_cannot_spoil_the_action():
    policy = mutex([constant(1.0), constant(float("nan"))])
    actions, _ = play(policy, observe(0, 1))
    assert actions[0][0].tolist() == [1.0] and actions[0][1].isnan().all()


def test_spreads_of_gaussians_add_up_as_independent_ones_do():
    # both have a std of 1; in the env's units 0.5 and 2, at equal shares: sqrt((0.5 / 2)^2 + (2 / 2)^2)
    policy = mutex([constant(1.0), constant(3.0)], [0.5, 2.0], smoothing_len=2, last_action_component="")
    _, state = play(policy, observe(0))
    with torch.no_grad():
        distribution, _, _ = policy.act(observe(1), state, NOTHING)
    assert float(distribution.params()["std"]) == pytest.approx((0.25**2 + 1.0) ** 0.5)
    assert float(distribution.mode()) == pytest.approx(0.5 * 0.5 * 1.0 + 0.5 * 2.0 * 3.0)


def test_other_heads_give_a_deterministic_action():
    config = PolicyConfig(actor_obs=("proprioception",), critic_obs=("proprioception",), head="squashed_gaussian")
    policy = mutex([constant(1.0), Policy(SPEC, BoxSpec(shape=(1,), low=-1.0, high=1.0), config)])
    distribution, _, _ = policy.act(observe(0), policy.initial_state(1), NOTHING)
    assert isinstance(distribution, Deterministic) and distribution.mode().tolist() == [[1.0]]


# -- memory ------------------------------------------------------------------------------------------------------------


def remembered(*choices, **settings):
    """Return which sub-policies have a memory after these choices in one env."""
    _, state = play(mutex([recurrent(0), recurrent(1), recurrent(2)], **settings), *choices)
    return [bool(state[f"sub_{index}/actor/0_Remember/hidden"].any()) for index in range(3)]


def observe_three(chosen):
    block = torch.zeros(1, 4)
    block[0, 1 + chosen] = 1.0
    return {**observe(0), "engaging_block": block}


@pytest.mark.parametrize(
    ("rule", "choices", "length", "kept"),
    [
        ("all", [0], 1, [True, False, False]),
        ("all", [1], 1, [False, True, False]),
        ("all", [1, 2], 2, [False, True, True]),  # 1 still has a share in the action
        ("when_skill", [0], 1, [True, True, True]),  # no skill acts: everybody may listen
        ("when_skill", [1], 1, [True, True, False]),  # policy 0 always keeps its memory
        ("none", [1], 1, [True, True, True]),
    ],
)
def test_memories_of_policies_that_do_not_act(rule, choices, length, kept):
    steps = [observe_three(chosen) for chosen in choices]
    assert remembered(*steps, reset_non_selected=rule, smoothing_len=length) == kept


def test_memories_are_reset_per_env():
    policy = mutex([recurrent(0)])
    (first,), state = play(policy, observe(0, 0))
    (again,), _ = play(policy, observe(0, 0), state=state, resets=[torch.tensor([True, False])])
    assert torch.allclose(again[0], first[0]) and not torch.allclose(again[1], first[1])


def test_the_critics_memory_is_no_part_of_the_state():
    names = set(mutex([recurrent(0)]).state_spec())
    assert names == {"recent", "sub_0/actor/0_Remember/hidden"}


@pytest.mark.slow
@settings(max_examples=20)
@given(
    st.lists(st.tuples(*[st.integers(-1, 1)] * 2), min_size=1, max_size=5),
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=5, max_size=5),
    st.sampled_from(["all", "when_skill", "none"]),
    st.integers(1, 3),
)
def test_a_sequence_gives_what_its_steps_give(choices, resets, rule, length):
    policy = mutex(
        [recurrent(0), recurrent(1)],
        [0.5, 2.0],
        smoothing_len=length,
        reset_non_selected=rule,
        cmd_vel={1: (0.0, 1.0)},
    )
    steps = [observe(*pair) for pair in choices]
    begins = torch.tensor(resets[: len(steps)])
    noise = torch.rand(len(steps), 2, 2, generator=torch.Generator().manual_seed(len(steps)))
    memo = policy.decide({"command": noise})
    state = start = policy.initial_state(2)
    wanted = []
    for at, obs in enumerate(steps):
        distribution, state, _ = policy.act(obs, state, {"command": memo["command"][at]}, begins[at])
        wanted.append(distribution.mode())
    whole = {name: torch.stack([obs[name] for obs in steps]) for name in steps[0]}
    distribution, final, _ = policy.act(whole, start, memo, begins)
    assert torch.allclose(distribution.mode(), torch.stack(wanted), atol=1e-6)
    for name in state:
        assert torch.allclose(final[name], state[name], atol=1e-6), name


def test_padding_may_hold_anything_and_leaves_no_trace():
    policy = mutex([recurrent(0), recurrent(1)], smoothing_len=2)
    obs = observe(0, 1)
    obs["proprioception"][1] = float("nan")
    obs["engaging_block"][1] = float("nan")
    _, state = play(policy, observe(1, 1))
    distribution, state, _ = policy.act(obs, state, NOTHING, valid=torch.tensor([True, False]))
    assert distribution.mode().isfinite().all()
    assert all(not value[1].any() for value in state.values())
    assert state["recent"][0].sum() == 2.0


# -- running it fast ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("selection", [FieldSelection(), ClimbSelection(jump_policy=0, field=FieldSelection())])
def test_a_step_can_be_captured(selection):
    policy = mutex(
        [recurrent(0), recurrent(1)], [0.5, 2.0], selection=selection, cmd_vel={1: (0.0, 1.0)}, smoothing_len=2
    )

    def step(obs, state, noise, resets):
        distribution, new_state, _ = policy.act(obs, state, policy.decide(noise), resets)
        return distribution.mode(), new_state

    state = policy.initial_state(3)
    inputs = (observe(0, 1, -1), state, {"command": torch.rand(3, 2)}, torch.tensor([True, False, False]))
    with torch.no_grad():
        _, later = play(policy, observe(0, 1, 1))
    fresh = (observe(1, 1, 0), later, {"command": torch.rand(3, 2)}, torch.tensor([False] * 3))
    report = check_capture(step, inputs, fresh_inputs=fresh, atol=1e-6, name="mutex")
    assert report.max_difference <= 1e-6


@pytest.mark.slow
def test_a_mutex_can_be_exported():
    policy = mutex([recurrent(0), recurrent(1)], [0.5, 2.0], cmd_vel={1: (0.0, 1.0)}, smoothing_len=2)
    layout = plan_layout(policy)
    assert layout.observations.names == SPEC.names and set(layout.states) == set(policy.state_spec())
    step = GreedyStep(policy, layout)
    with torch.no_grad():
        _, state = play(policy, observe(0, 1))
        exported = torch.export.export(step, (*observe(0, 0).values(), *state.values())).module()
        inputs = (*observe(1, -1).values(), *(0.5 * value for value in state.values()))
        for one, two in zip(exported(*inputs), step(*inputs)):
            assert torch.allclose(one, two, atol=1e-6)


# -- settings that do not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (lambda: mutex([]), ValueError, "at least one policy"),
        (lambda: mutex([constant(1.0)], [1.0, 2.0]), ValueError, "1 policies and 2 scales"),
        (lambda: mutex([constant(1.0), constant(1.0, 2.0)]), ValueError, "same number of actions"),
        (lambda: mutex([constant(1.0)], [0.0]), ValueError, "finite and not zero"),
        (lambda: mutex([constant(1.0)], [(1.0, 2.0)]), ValueError, "2 numbers for an action of 1"),
        (lambda: mutex([constant(1.0)], reset_non_selected="when_skil"), ValueError, "Did you mean 'when_skill'"),
        (lambda: mutex([constant(1.0)], smoothing_len=0), ValueError, "1 or more"),
        (lambda: mutex([constant(1.0)] * 4), ValueError, "entries 1:5 of 'engaging_block', which has 4"),
        (lambda: mutex([constant(1.0)], selection=FieldSelection(component="block")), KeyError, "engaging_block"),
        (lambda: mutex([constant(1.0)] * 2, selection=ClimbSelection()), ValueError, "jump_obstacle_id"),
        (lambda: mutex([constant(1.0)], cmd_vel={3: 1.0}), ValueError, "no policy 3"),
        (lambda: mutex([constant(1.0)], cmd_vel={0: (2.0, 1.0)}), ValueError, r"range \(low, high\)"),
        (lambda: mutex([constant(1.0)], cmd_vel={0: 1.0}, cmd_entry=9), ValueError, "set cmd_entry"),
        (lambda: mutex([constant(1.0)], cmd_vel={0: 1.0}, cmd_component="command"), KeyError, "Set cmd_component"),
        (
            lambda: mutex([constant(1.0)], cmd_vel={0: 1.0}, cmd_scales=(1.0, 2.0)),
            ValueError,
            "2 numbers for 1 policies",
        ),
        (lambda: mutex([constant(1.0)], [2.0], last_action_component="action"), KeyError, "Set last_action_component"),
        (lambda: mutex([constant(1.0)], [2.0], last_action_entries=(0, 2)), ValueError, "set last_action_component"),
        (lambda: mutex([constant(1.0)], [2.0], cmd_vel={0: 1.0}, cmd_entry=3), ValueError, "lies in the last action"),
        (lambda: mutex([constant(1.0)], cmd_vel={0: 1.0}, cmd_vel_like={0: 0}), ValueError, "of its own"),
    ],
)
def test_settings_that_do_not_fit_name_the_fix(build, error, text):
    with pytest.raises(error, match=text):
        build()


def test_sub_policies_must_see_what_they_want_and_play_numbers():
    other = ObsSpec.from_segments({"proprioception": 3, "engaging_block": 4})
    with pytest.raises(ValueError, match="sub-policy 0 wants component 'proprioception' of shape"):
        MutexPolicy(other, [constant(1.0)], [1.0])
    with pytest.raises(KeyError, match="proprioception"):
        MutexPolicy(ObsSpec.from_segments({"engaging_block": 4}), [constant(1.0)], [1.0])
    discrete = Policy(SPEC, DiscreteSpec(n=3))
    with pytest.raises(TypeError, match="only real numbers can be scaled"):
        MutexPolicy(SPEC, [discrete], [1.0])
