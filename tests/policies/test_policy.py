"""The policy: who sees what, what is shared, what is declared, and mistakes that are found when it is built."""

from __future__ import annotations

import pytest
import torch
from policy_cases import at, difference, random_memo, random_obs

from striderl.data.actions import BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.networks.distributions.deterministic import Deterministic
from striderl.networks.distributions.gaussian import DiagonalGaussian
from striderl.policies.encode import Encode
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.heads import AlwaysMode
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Override, Remember

SPEC = ObsSpec(
    {
        "joints": ComponentSpec(shape=(4,)),
        "command": ComponentSpec(shape=(3,)),
        "friction": ComponentSpec(shape=(2,), group="critic"),
        "label": ComponentSpec(shape=(5,), group="teacher"),
    }
)
ACTION = BoxSpec(shape=(2,))
SMALL = {"actor_hidden_dims": (6,), "critic_hidden_dims": (6,)}


def build(action=ACTION, spec=SPEC, seed=0, **settings) -> Policy:
    torch.manual_seed(seed)
    return Policy(spec, action, PolicyConfig(**{**SMALL, **settings}))


def changed(policy: Policy, component: str) -> tuple[bool, bool]:
    """Tell whether another value of a component changes what the actor does, and what the critic says."""
    obs = random_obs(policy, 3)
    one = policy(obs, policy.initial_state(3), {})
    other = policy({**obs, component: obs[component] + 1.0}, policy.initial_state(3), {})
    same = torch.equal(one.distribution.mode(), other.distribution.mode())
    return not same, not torch.equal(one.value, other.value)


# -- who sees what -----------------------------------------------------------------------------------------------------


def test_groups_say_who_sees_what():
    policy = build()
    assert changed(policy, "joints") == (True, True)
    assert changed(policy, "friction") == (False, True), "the critic is privileged"
    assert changed(policy, "label") == (False, False)


def test_components_can_be_chosen_one_by_one():
    policy = build(actor_obs=("joints", "label"), critic_obs=("command",))
    assert changed(policy, "label") == (True, False)
    assert changed(policy, "command") == (False, True)


def test_the_order_of_choosing_changes_nothing():
    one, other = build(actor_obs=("joints", "command")), build(actor_obs=("command", "joints"))
    obs = random_obs(one, 3)
    assert torch.equal(one(obs, {}, {}).distribution.mode(), other(obs, {}, {}).distribution.mode())


def test_an_env_without_privileged_components_needs_no_other_config():
    spec = SPEC.select(["policy"])
    assert build(spec=spec).critic_inputs == spec
    with pytest.raises(KeyError, match="no component or group 'privileged'"):
        build(critic_obs=("policy", "privileged"))


def test_unknown_components_are_named():
    with pytest.raises(KeyError, match="Did you mean 'joints'"):
        build(actor_obs=("joint",))
    policy = build()
    obs = random_obs(policy, 3)
    del obs["command"]
    with pytest.raises(KeyError, match="given to the actor has no component 'command'"):
        policy(obs, {}, {})


def test_a_trunk_is_shared():
    policy = build(trunk=(Encode(components=("joints",), output_size=3),))
    out = policy(random_obs(policy, 5), {}, {})
    weights = [p for name, p in policy.named_parameters() if name.startswith("trunk.")]
    for loss in (out.distribution.mode().sum(), out.value.sum()):
        grads = torch.autograd.grad(loss, weights, retain_graph=True)
        assert all((grad != 0).any() for grad in grads)
    assert len({id(p) for p in policy.parameters()}) == len(list(policy.parameters()))


def test_a_shared_memory_must_not_carry_privileged_components_to_the_actor():
    with pytest.raises(ValueError, match=r"would show the actor \['friction'\]"):
        build(trunk=(Remember(hidden_size=4),))
    policy = build(trunk=(Remember(hidden_size=4),), critic_obs=("policy",))
    out = policy(random_obs(policy, 5), policy.initial_state(5), {})
    assert out.state["trunk/0_Remember/hidden"].shape == (5, 1, 4)
    assert policy.actor.input_spec.names == policy.critic.input_spec.names == ("memory",)


def test_the_actor_alone_and_the_critic_alone_say_the_same():
    policy = build(actor=(Remember(hidden_size=4),), critic=(Remember(hidden_size=3, type="gru"),))
    obs, state = random_obs(policy, 5), {k: torch.randn(5, *s.shape) for k, s in policy.state_spec().items()}
    both = policy(obs, state, {})
    distribution, after_acting, _ = policy.act(obs, state, {})
    value, after_valuing = policy.value(obs, state, {})
    assert torch.equal(distribution.mode(), both.distribution.mode()) and torch.equal(value, both.value)
    for name in state:
        mine, others = (after_acting, after_valuing) if name.startswith("actor") else (after_valuing, after_acting)
        assert torch.equal(mine[name], both.state[name]) and others[name] is state[name]


def test_the_actor_alone_does_without_the_critics_components():
    policy = build(trunk=(NormalizeObs(), Override(component="friction", values=(0.0, 0.0))))
    obs = random_obs(policy, 5)
    del obs["friction"], obs["label"]
    assert policy.act(obs, {}, {})[0].mode().shape == (5, 2)


# -- what is declared --------------------------------------------------------------------------------------------------


def test_declarations_are_gathered_from_all_lists():
    predict = {"obs_components": ("joints",), "replace_state_prob": 0.5}
    policy = build(
        actor=(
            Adapt(target_components=("friction",), **predict),
            Estimate(target_components=("command",), memory=Remember(hidden_size=3), **predict),
            Remember(hidden_size=4),
        ),
        critic=(Remember(type="gru", hidden_size=5, num_layers=2),),
    )
    assert {name: spec.shape for name, spec in policy.state_spec().items()} == {
        "actor/1_Estimate/hidden": (1, 3),
        "actor/1_Estimate/cell": (1, 3),
        "actor/2_Remember/hidden": (1, 4),
        "actor/2_Remember/cell": (1, 4),
        "critic/0_Remember/hidden": (2, 5),
    }
    assert list(policy.memo_spec()) == list(policy.noise()) == ["actor/0_Adapt/replace", "actor/1_Estimate/replace"]
    decided = policy.decide(
        {"actor/0_Adapt/replace": torch.tensor([0.4]), "actor/1_Estimate/replace": torch.tensor([0.6])}
    )
    assert {name: value.tolist() for name, value in decided.items()} == {
        "actor/0_Adapt/replace": [True],
        "actor/1_Estimate/replace": [False],
    }
    state = policy.initial_state(7)
    assert all((value == 0).all() and value.shape[0] == 7 for value in state.values())


def test_the_policy_keeps_nothing():
    policy = build(actor=(Remember(hidden_size=4),), critic=(Remember(hidden_size=4),))
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    obs, state = random_obs(policy, 5), policy.initial_state(5)
    copies = {name: value.clone() for name, value in {**obs, **state}.items()}
    one, two = policy(obs, state, {}), policy(obs, state, {})
    assert torch.equal(one.value, two.value)
    assert all(torch.equal(value, copies[name]) for name, value in {**obs, **state}.items())
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


# -- normalisation -----------------------------------------------------------------------------------------------------


def test_absorbing_moves_the_output_and_reading_does_not():
    policy = build(trunk=(NormalizeObs(),))
    obs = random_obs(policy, 20, 5)
    before = policy(at(obs, 0), {}, {}).value
    assert torch.equal(policy(at(obs, 0), {}, {}).value, before)
    policy.absorb({name: 3.0 + 2.0 * value for name, value in obs.items()})
    after = policy(at(obs, 0), {}, {}).value
    assert difference(before, after) > 1e-3
    policy.eval()
    policy.absorb({name: value + 100.0 for name, value in obs.items()})
    assert torch.equal(policy(at(obs, 0), {}, {}).value, after), "frozen in evaluation"


def test_a_normaliser_after_the_trunk_is_refused():
    with pytest.raises(ValueError, match="put it first in the trunk"):
        build(trunk=(Encode(components=("joints",)),), actor=(NormalizeObs(),))
    policy = build(actor=(NormalizeObs(),), critic=(NormalizeObs(),))
    policy.absorb(random_obs(policy, 30))
    assert int(policy.state_dict()["critic.stages.0_NormalizeObs.normalizers.of_friction.statistics.count"]) == 30


# -- heads -------------------------------------------------------------------------------------------------------------


def test_several_values_one_per_reward():
    policy = build(num_values=3)
    assert policy(random_obs(policy, 5), {}, {}).value.shape == (5, 3)
    assert build()(random_obs(policy, 5), {}, {}).value.shape == (5,)


@pytest.mark.parametrize(
    ("action", "shape"),
    [
        (DiscreteSpec(n=4), ()),
        (MultiDiscreteSpec(nvec=(2, 3)), (2,)),
        (BoxSpec(shape=(2, 3)), (2, 3)),
    ],
)
def test_kinds_of_actions(action, shape):
    policy = build(action)
    out = policy(random_obs(policy, 5, 4), {}, {})
    assert out.distribution.mode().shape == (5, 4, *shape)
    assert out.distribution.log_prob(out.distribution.mode()).shape == (5, 4)


def test_hybrid_actions_and_masks():
    spec = ObsSpec({**SPEC, "allowed": ComponentSpec(shape=(3,), dtype="bool", group="action_mask")})
    action = DictActionSpec({"gear": DiscreteSpec(n=3, mask="allowed"), "steer": BoxSpec(shape=(2,))})
    policy = build(action, spec)
    obs = {**random_obs(build(), 50), "allowed": torch.tensor([[False, True, False]]).expand(50, 3)}
    mode = policy(obs, {}, {}).distribution.mode()
    assert (mode["gear"] == 1).all() and mode["steer"].shape == (50, 2)
    assert "allowed" not in policy.actor_inputs
    with pytest.raises(KeyError, match="no component 'allowed'"):
        build(action, SPEC)


@pytest.mark.parametrize("name", ["gaussian", "squashed_gaussian", "beta", "deterministic"])
def test_heads_by_name(name):
    policy = build(BoxSpec(shape=(2,), low=-2.0, high=3.0), head=name)
    action = policy(random_obs(policy, 200), {}, {}).distribution.mode()
    assert action.shape == (200, 2)
    if name != "gaussian":
        assert (action > -2.0).all() and (action < 3.0).all()


def test_a_deterministic_head_without_bounds_is_linear():
    policy = build(head="deterministic")
    with torch.no_grad():
        policy.head.layer.linear.bias.fill_(50.0)
    out = policy(random_obs(policy, 3), {}, {}).distribution
    assert isinstance(out, Deterministic) and (out.mode() > 10.0).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head": "gausian"}, "Did you mean 'gaussian'"),
        ({"head_settings": {"init_stdd": 1.0}}, "Did you mean 'init_std'"),
        ({"head_settings": {"action_size": 1}}, "no setting 'action_size'"),
        ({"activation": "eluu"}, "Did you mean 'elu'"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        build(**settings)


def test_settings_without_effect_are_refused():
    with pytest.raises(ValueError, match="no real-valued part"):
        build(DiscreteSpec(n=2), head_settings={"init_std": 0.5})


def test_a_deterministic_policy_samples_its_mode():
    policy, plain = build(deterministic=True), build()
    obs = random_obs(policy, 5)
    out, other = policy(obs, {}, {}).distribution, plain(obs, {}, {}).distribution
    assert isinstance(out, AlwaysMode) and isinstance(other, DiagonalGaussian)
    assert policy.head.noise_spec() == out.noise_spec() == NoiseSpec(shape=(0,), kind="normal")
    action, log_prob = out.sample_with_log_prob(torch.zeros(5, 0))
    assert torch.equal(action, other.mode()) and torch.equal(log_prob, other.log_prob(action))
    assert torch.equal(out.entropy(), other.entropy()) and (out.kl(out) == 0).all()
    stored = policy.head.from_params(out.params())
    assert torch.equal(stored.mode(), action) and policy.head.params_spec() == plain.head.params_spec()
    assert out.reparameterised and torch.equal(out.from_params(out.params()).mode(), action)


# -- images, dtypes, devices -------------------------------------------------------------------------------------------


def test_bytes_of_an_image_count_as_numbers_from_zero_to_one_wherever_they_are_read():
    spec = ObsSpec({"image": ComponentSpec(shape=(1, 3, 3), dtype="uint8")})
    as_float = ObsSpec({"image": ComponentSpec(shape=(1, 3, 3))})
    image = torch.randint(0, 256, (4, 1, 3, 3), dtype=torch.uint8)
    for stages in ((), (Remember(hidden_size=3),), (Encode(components=("image",)),)):
        policy = build(spec=spec, actor=stages)
        other = build(spec=as_float, actor=stages)
        state = policy.initial_state(4)
        one = policy.act({"image": image}, state, {})[0].mode()
        two = other.act({"image": image.float() / 255.0}, state, {})[0].mode()
        assert difference(one, two) <= 1e-6


def test_doubles_and_flags_are_cast_to_the_weights():
    spec = ObsSpec({"x": ComponentSpec(shape=(2,), dtype="float64"), "flag": ComponentSpec(shape=(), dtype="bool")})
    policy = build(spec=spec, actor=(Encode(components=("x",)), Remember(hidden_size=3)))
    obs = {"x": torch.randn(4, 2, dtype=torch.float64), "flag": torch.tensor([True, False, True, True])}
    out = policy(obs, policy.initial_state(4), {})
    assert out.distribution.mode().dtype == out.value.dtype == torch.float32


# -- capture -----------------------------------------------------------------------------------------------------------


def everything() -> Policy:
    predict = {"obs_components": ("joints",), "replace_state_prob": 0.5}
    return build(
        trunk=(NormalizeObs(), Override(component="command", values=(1.0,), entries=(0,))),
        actor=(
            Adapt(target_components=("friction",), memory=Remember(type="gru", hidden_size=3), **predict),
            Estimate(target_components=("command",), memory=Remember(hidden_size=3), **predict),
            Encode(components=("joints",), output_size=3),
            Remember(hidden_size=4),
        ),
        critic=(Remember(type="gru", hidden_size=4),),
    )


@pytest.mark.slow
def test_a_whole_step_and_a_whole_sequence_compile_as_one_graph():
    policy = everything()
    compiled = torch.compile(policy, fullgraph=True, backend="eager", dynamic=False)
    for num_steps in (0, 3):
        lead = (num_steps, 5) if num_steps else (5,)
        obs, state = random_obs(policy, *lead), policy.initial_state(5)
        memo = random_memo(policy, max(num_steps, 1), 5)
        memo = memo if num_steps else at(memo, 0)
        more = (torch.rand(3, 5) < 0.3, torch.rand(3, 5) < 0.8) if num_steps else ()
        one, other = policy(obs, state, memo, *more), compiled(obs, state, memo, *more)
        assert difference(one.distribution.mode(), other.distribution.mode()) <= 1e-6
        assert difference(one.value, other.value) <= 1e-6
        assert one.state.keys() == other.state.keys() and one.aux.keys() == other.aux.keys()


def test_state_dicts_pass_between_equal_policies():
    one, other = everything(), everything()
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.add_(0.1)
    one.absorb(random_obs(one, 30))
    other.load_state_dict(one.state_dict())
    obs, memo = random_obs(one, 5), at(random_memo(one, 1, 5), 0)
    first, second = one(obs, one.initial_state(5), memo), other(obs, other.initial_state(5), memo)
    assert torch.equal(first.value, second.value)
    assert torch.equal(first.distribution.mode(), second.distribution.mode())
