"""Heads: a std that cannot go bad, masks by name, specs that match what comes out, and the table."""

from __future__ import annotations

import math

import pytest
import torch
from head_cases import BOX, MIXED, every_head, noise, observation
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from striderl.data.actions import BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.data.noise import draw
from striderl.networks.distributions.base import Hybrid
from striderl.networks.distributions.beta import BetaDistribution
from striderl.networks.distributions.categorical import Categorical, MultiDiscrete
from striderl.networks.distributions.deterministic import Deterministic, QValues
from striderl.networks.distributions.gaussian import DiagonalGaussian, SquashedGaussian
from striderl.networks.heads.gaussian import STD_TYPES, GaussianHead, SquashedGaussianHead
from striderl.networks.heads.table import BetaHead, CategoricalHead, DeterministicHead, head_for
from striderl.networks.heads.value import QHead, ValueHead


@pytest.mark.parametrize("index", range(len(every_head())))
def test_steps_sequences_specs_and_gradients(index):
    head = every_head()[index]
    for leading in ((7,), (4, 7)):
        features = torch.randn(*leading, 5, requires_grad=True)
        distribution = head(features, observation(*leading))
        assert distribution.noise_spec() == head.noise_spec()
        params = distribution.params()
        assert {name: tuple(value.shape[len(leading) :]) for name, value in params.items()} == {
            name: spec.shape for name, spec in head.params_spec().items()
        }
        action = distribution.sample(noise(head, *leading))
        log_prob = distribution.log_prob(action)
        assert log_prob.shape == leading == distribution.entropy().shape
        rebuilt = head.from_params(params)
        assert type(rebuilt) is type(distribution)
        assert torch.equal(rebuilt.log_prob(action), log_prob)
        assert (distribution.kl(rebuilt) == 0).all()
        mode = distribution.mode()
        outputs = [one for one in (mode.values() if isinstance(mode, dict) else [mode]) if one.is_floating_point()]
        total = (log_prob + distribution.entropy()).sum() + sum(one.sum() for one in outputs)
        if isinstance(distribution, QValues):
            total = distribution.value_of(action).sum()
        total.backward()
        assert features.grad.isfinite().all()
        assert (features.grad != 0).any()


def test_step_and_sequence_agree():
    for head in every_head():
        features, obs = torch.randn(4, 7, 5), observation(4, 7)
        sequence = head(features, obs).params()
        for step in range(4):
            one = head(features[step], {name: value[step] for name, value in obs.items()}).params()
            for name, value in one.items():
                assert torch.allclose(value, sequence[name][step], atol=1e-6)


# -- the standard deviation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("std_type", STD_TYPES)
@pytest.mark.parametrize("state_dependent", [False, True])
def test_it_begins_where_told(std_type, state_dependent):
    head = GaussianHead(5, 2, std_type=std_type, init_std=[0.3, 2.0], state_dependent_std=state_dependent)
    distribution = head(torch.randn(4, 5))
    assert torch.allclose(distribution.std, torch.tensor([0.3, 2.0]).expand(4, 2), atol=1e-6)


BAD = st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0, 1e30, -1e30, 3.4e38, 1e-45])


@given(st.sampled_from(list(STD_TYPES)), BAD, BAD, st.sampled_from([0.0, 0.05]))
def test_it_is_never_negative_zero_infinite_or_nan(std_type, first, second, min_std):
    head = GaussianHead(2, 2, std_type=std_type, min_std=min_std)
    with torch.no_grad():
        head.std_param.copy_(torch.tensor([first, second]))
    features = torch.randn(3, 2)
    std = head(features).std
    assert std.isfinite().all()
    assert (std >= max(min_std, 1e-6) * 0.999).all()
    assert (std <= 1e6 * 1.001).all()
    distribution = head(features)
    (distribution.log_prob(torch.zeros(3, 2)) + distribution.entropy()).sum().backward()
    assert head.std_param.grad.isfinite().all()
    head.clip_std(min=0.1, max=3.0)
    assert head.std_param.isfinite().all()
    assert ((head(features).std >= 0.0999) & (head(features).std <= 3.001)).all()


def test_nan_features_leave_the_state_dependent_std_finite():
    head = GaussianHead(2, 2, std_type="log", state_dependent_std=True, min_std=0.1)
    nn.init.normal_(head.std_layer.weight)
    std = head(torch.full((1, 2), torch.nan)).std
    assert torch.allclose(std, torch.full((1, 2), 0.1))


@pytest.mark.parametrize("std_type", STD_TYPES)
def test_it_comes_back_from_outside(std_type):
    head = GaussianHead(1, 1, std_type=std_type, min_std=0.1)
    with torch.no_grad():
        head.std_param.fill_(-9.0)
    optimizer = torch.optim.Adam([head.std_param], lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        (-head(torch.zeros(1, 1)).entropy().sum()).backward()
        optimizer.step()
    assert head(torch.zeros(1, 1)).std.item() > 0.5


def test_minimum_per_action_and_clip_std():
    head = GaussianHead(2, 3, min_std=[0.1, 0.2, 0.3])
    with torch.no_grad():
        head.std_param.fill_(0.0)
    assert head(torch.zeros(2)).std.tolist() == pytest.approx([0.1, 0.2, 0.3])
    head.clip_std(min=[0.15, 0.05, 0.4])
    assert head.std_param.tolist() == pytest.approx([0.15, 0.2, 0.4])
    head.clip_std(max=0.2)
    assert head(torch.zeros(2)).std[1].item() == pytest.approx(0.2)
    head.clip_std(min=1e-15)  # a floor below the range changes nothing
    assert head.std_param.isfinite().all()


def test_clip_std_of_a_state_dependent_std_is_saved():
    head = GaussianHead(2, 1, std_type="log", state_dependent_std=True)
    head.clip_std(max=0.5)
    assert head(torch.randn(3, 2)).std.max().item() == pytest.approx(0.5)
    other = GaussianHead(2, 1, std_type="log", state_dependent_std=True)
    other.load_state_dict(head.state_dict())
    assert other(torch.randn(3, 2)).std.max().item() == pytest.approx(0.5)


def test_fixed_std_and_mu_activation():
    head = GaussianHead(2, 1, learn_std=False, mu_activation="tanh")
    assert not head.std_param.requires_grad
    assert head(torch.full((4, 2), 1e3)).mean.abs().max() <= 1.0


def test_contradictory_std_settings_raise():
    with pytest.raises(ValueError, match="Did you mean 'scalar'"):
        GaussianHead(2, 1, std_type="scaler")
    with pytest.raises(ValueError, match="init_std"):
        GaussianHead(2, 1, init_std=0.1, min_std=0.2)
    with pytest.raises(ValueError, match="std_range"):
        GaussianHead(2, 1, std_range=(0.0, 1.0))
    with pytest.raises(ValueError, match="learn_std=False has no effect"):
        GaussianHead(2, 1, state_dependent_std=True, learn_std=False)
    with pytest.raises(ValueError, match="min_std has 3 numbers for an action of 2"):
        GaussianHead(2, 2, min_std=[0.1, 0.1, 0.1])


# -- the others ------------------------------------------------------------------------------------------------------


def test_bounded_heads_stay_inside():
    low, high = torch.tensor(BOX.low), torch.tensor(BOX.high)
    for head in (SquashedGaussianHead(5, 3, BOX.low, BOX.high), BetaHead(5, 3, BOX.low, BOX.high)):
        features = torch.randn(500, 5) * 30
        spec = head.noise_spec()
        drawn = draw(spec, "a", seed=0, iteration=0, env_index=torch.arange(500), num_steps=1)[0]
        distribution = head(features)
        for action in (distribution.sample(drawn), distribution.mode()):
            assert ((low <= action) & (action <= high)).all()
    deterministic = DeterministicHead(5, 3, BOX.low, BOX.high)
    value = deterministic(features).mode()
    assert ((low <= value) & (value <= high)).all()


def test_beta_concentrations_stay_in_range():
    head = BetaHead(2, 1)
    with torch.no_grad():
        head.layer.linear.weight.fill_(1.0)
    distribution = head(torch.tensor([[1e9, 1e9], [-1e9, -1e9]]))
    assert distribution.alpha.flatten().tolist() == [1e4, 1.0]
    assert distribution.entropy().isfinite().all()
    with pytest.raises(ValueError, match="min_concentration"):
        BetaHead(2, 1, min_concentration=5.0, max_concentration=5.0)


def test_squashed_head_clips_its_std():
    head = SquashedGaussianHead(2, 1, state_dependent_std=False)
    head.clip_std(max=0.5)
    assert head(torch.randn(3, 2)).std.max().item() == pytest.approx(0.5)


def test_masks_are_read_by_name():
    head = CategoricalHead(2, 3, mask="allowed")
    assert head.mask_components == ("allowed",)
    mask = torch.tensor([[False, True, False]])
    assert head(torch.randn(1, 2), {"allowed": mask}).mode().item() == 1
    with pytest.raises(KeyError, match=r"'allowed'.*'alowed'"):
        head(torch.randn(1, 2), {"alowed": mask})
    assert head_for(MIXED, 5).mask_components == ("gears", "bulbs")
    q_head = QHead(2, 3, mask="allowed")
    assert q_head(torch.randn(1, 2), {"allowed": mask}).mode().item() == 1


def test_dueling_advantages_have_mean_zero():
    head = QHead(2, 3, dueling=True)
    features = torch.randn(4, 2)
    # the mean over the choices is the value alone
    assert torch.allclose(head(features).values.mean(-1), head.layer.layers["value"](features).squeeze(-1), atol=1e-6)


def test_value_head_shapes():
    assert ValueHead(3)(torch.randn(4, 5, 3)).shape == (4, 5)
    assert ValueHead(3, 2)(torch.randn(4, 5, 3)).shape == (4, 5, 2)
    assert ValueHead(3)(torch.randn(4, 1, 3)).shape == (4, 1)  # one env per minibatch is not squeezed away
    with pytest.raises(ValueError, match="at least one value"):
        ValueHead(3, 0)


@pytest.mark.parametrize(
    ("spec", "box", "kind"),
    [
        (BOX, "gaussian", DiagonalGaussian),
        (BOX, "squashed_gaussian", SquashedGaussian),
        (BOX, "beta", BetaDistribution),
        (BOX, "deterministic", Deterministic),
        (BoxSpec(shape=(2,)), "deterministic", Deterministic),
        (BoxSpec(shape=()), "gaussian", DiagonalGaussian),
        (DiscreteSpec(n=3), "gaussian", Categorical),
        (MultiDiscreteSpec(nvec=(2, 3)), "gaussian", MultiDiscrete),
        (MIXED, "beta", Hybrid),
    ],
)
def test_the_table_of_heads(spec, box, kind):
    head = head_for(spec, 5, box=box)
    distribution = head(torch.randn(7, 5), observation(7))
    assert type(distribution) is kind
    action = distribution.mode()
    wanted = spec.tensor
    if isinstance(action, dict):
        assert {name: tuple(value.shape[1:]) for name, value in action.items()} == {
            name: one.shape for name, one in wanted.items()
        }
    else:
        assert tuple(action.shape[1:]) == wanted.shape
        assert str(action.dtype).removeprefix("torch.") == wanted.dtype


def test_parts_may_be_called_like_methods_but_not_with_a_dot():
    head = head_for(DictActionSpec({"type": DiscreteSpec(n=2), "values": BOX}), 5)
    assert list(head(torch.randn(3, 5)).mode()) == ["type", "values"]
    with pytest.raises(ValueError, match="dot"):
        head_for(DictActionSpec({"a.b": DiscreteSpec(n=2)}), 5)


def test_the_table_takes_a_function_and_names_mistakes():
    head = head_for(BOX, 5, box=lambda size, spec: GaussianHead(size, spec.shape, init_std=0.25))
    assert head(torch.randn(2, 5)).std.unique().tolist() == [0.25]
    with pytest.raises(ValueError, match="Did you mean 'gaussian'"):
        head_for(BOX, 5, box="gausian")
    with pytest.raises(ValueError, match="finite bounds"):
        head_for(BoxSpec(shape=(2,)), 5, box="beta")
    with pytest.raises(ValueError, match="both bounds or none"):
        DeterministicHead(5, 3, low=-1.0)


@pytest.mark.parametrize(
    "limits", [{"min": 0.5, "max": 0.1}, {"max": -1.0}, {"max": 0.0}, {"min": float("nan")}, {"max": float("nan")}]
)
@pytest.mark.parametrize("head", [GaussianHead(2, 2), SquashedGaussianHead(2, 2)])
def test_limits_that_cannot_be_met_are_refused(head, limits):
    with pytest.raises(ValueError, match="clip_std wants 0 <= min <= max and max > 0, without NaN"):
        head.clip_std(**limits)
