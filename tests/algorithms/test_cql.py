"""CQL: the penalty by hand and in closed form, for numbers and for choices."""

from __future__ import annotations

import math

import pytest
import torch
from offline_sets import BOX, dataset, greedy, learner, q_values, rare_best, steps_of, train

from striderl.algorithms.offline.cql import CQL, Conservative, CQLConfig
from striderl.algorithms.value_based.dqn import Judged
from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.specs import ObsSpec
from striderl.envs.toy import Chain, ChainConfig
from striderl.networks.distributions.categorical import FORBIDDEN
from striderl.networks.distributions.deterministic import QValues
from striderl.ops.td import conservative_gap
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.value_functions import QFunction, QFunctionConfig

SPEC = ObsSpec.from_flat(1)


def test_the_gap_by_hand():
    # two actions of densities 1 and 2: log((e¹ / 1 + e³ / 2) / 2) - 0.5
    values, density = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [math.log(2.0)]])
    found = conservative_gap(values, density, torch.tensor([0.5]))
    assert float(found) == pytest.approx(math.log((math.e + math.e**3 / 2.0) / 2.0) - 0.5)


def with_slopes(first, second, num_actions=4, **more):
    """Critics Q_k = slope · a, and a policy that is the same everywhere."""
    torch.manual_seed(0)
    policy = ActorPolicy(SPEC, BOX, ActorConfig(hidden_dims=(), head="squashed_gaussian"))
    critic = QFunction(SPEC, BOX, QFunctionConfig(hidden_dims=()))
    with torch.no_grad():
        (layer,) = critic.members.model
        layer.weight.copy_(torch.tensor([[[0.0], [first]], [[0.0], [second]]]))
        layer.bias.zero_()
    return CQL(policy, critic, CQLConfig(num_actions=num_actions, **more))


def sample(count=1, act=0.25):
    return {
        "obs": {"obs": torch.ones(count, 1)},
        "obs_next": {"obs": torch.full((count, 1), -1.0)},
        "act": torch.full((count, 1), act),
        "rew": torch.ones(count),
        "discount": torch.full((count,), 0.5),
        "valid": torch.ones(count, dtype=torch.bool),
        "weight": None,
    }


def drawn(algorithm, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(count, *spec.shape, generator=generator)
        if spec.kind == "uniform"
        else torch.randn(count, *spec.shape, generator=generator)
        for name, spec in algorithm.noise().items()
    }


def test_the_penalty_is_the_soft_maximum_over_all_actions():
    # Q = w a on [-1, 1]: log ∫ exp(w a) da = log(2 sinh(w) / w); at the taken action 0.25 that is too much by
    algorithm = with_slopes(2.0, -1.0, num_actions=20_000)
    losses, _ = algorithm.critic_losses({**sample(), "noise": drawn(algorithm, 1)})
    weight, loss = losses["conservative_loss"]
    wanted = math.log(2.0 * math.sinh(2.0) / 2.0) - 0.5 + math.log(2.0 * math.sinh(1.0)) + 0.25
    assert weight == 5.0 and float(loss.detach()) == pytest.approx(wanted, abs=0.02)


def test_the_penalty_action_by_action():
    algorithm = with_slopes(2.0, -1.0)
    given = {**sample(3), "noise": drawn(algorithm, 3)}
    losses, _ = algorithm.critic_losses(given)
    noise, total = given["noise"], 0.0
    for b in range(3):
        actions = [(-1.0 + 2.0 * u, -math.log(2.0)) for u in noise["random_actions"][b].flatten().tolist()]
        for state, name in ((1.0, "policy_actions"), (-1.0, "next_policy_actions")):
            distribution, _, _ = algorithm.policy.act({"obs": torch.full((1, 1), state)}, {}, {})
            for number in noise[name][b]:
                action, density = distribution.sample_with_log_prob(number.view(1, 1))
                actions.append((float(action), float(density)))
        for slope in (2.0, -1.0):
            summed = sum(math.exp(slope * action - density) for action, density in actions)
            total += math.log(summed / len(actions)) - slope * 0.25
    assert float(losses["conservative_loss"][1].detach()) == pytest.approx(total / 3, rel=1e-4)


@pytest.mark.parametrize("with_entropy", [False, True])
def test_targets_have_the_entropy_only_when_asked(with_entropy):
    algorithm = with_slopes(2.0, 2.0, init_temperature=0.5, entropy_in_target=with_entropy)
    given = {**sample(), "noise": drawn(algorithm, 1)}
    distribution, _, _ = algorithm.policy.act(given["obs_next"], {}, {})
    action, density = distribution.sample_with_log_prob(given["noise"]["next_action"])
    wanted = 1.0 + 0.5 * (2.0 * action[:, 0] - (0.5 * density if with_entropy else 0.0))
    torch.testing.assert_close(algorithm.targets(given), wanted.detach())


def test_the_penalty_moves_no_policy_and_no_temperature():
    algorithm = with_slopes(2.0, -1.0)
    losses, _ = algorithm.critic_losses({**sample(), "noise": drawn(algorithm, 1)})
    parameters = [*algorithm.policy.parameters(), *algorithm.temperature.parameters()]
    grads = torch.autograd.grad(losses["conservative_loss"][1], parameters, allow_unused=True)
    assert all(grad is None for grad in grads)


@pytest.mark.slow
def test_it_finds_what_is_rare_but_better():
    algorithm = learner("cql", penalty=0.05)
    train(algorithm, dataset(algorithm, rare_best()), 400)
    chosen = float(greedy(algorithm, {"obs": torch.ones(1, 1)}))
    assert 0.2 < chosen < 0.9


@pytest.mark.slow
def test_actions_that_the_data_does_not_have_are_promised_less():
    # all do something near -0.5 and earn nothing: 0.5 is worth less, the more so the larger the penalty
    act = -0.5 + 0.1 * torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    found = []
    for penalty in (0.0, 1.0):
        algorithm = learner("cql", penalty=penalty)
        train(algorithm, dataset(algorithm, steps_of(torch.ones(200, 1), act, torch.zeros(200))), 150)
        pair = q_values(algorithm, torch.ones(2, 1), torch.tensor([[-0.5], [0.5]]))
        found.append(float(pair[0] - pair[1]))
    assert found[1] > found[0] + 0.5


def test_what_it_cannot_do_is_said():
    wide = BoxSpec(shape=(1,))
    policy = ActorPolicy(SPEC, BOX, ActorConfig(head="squashed_gaussian"))
    with pytest.raises(ValueError, match="num_outputs=3"):
        CQL(policy, QFunction(SPEC, BOX, QFunctionConfig(num_outputs=3)))
    with pytest.raises(ValueError, match="penalty >= 0"):
        CQLConfig(penalty=-1.0)
    with pytest.raises(ValueError, match="wants bounds"):
        CQL(ActorPolicy(SPEC, wide, ActorConfig(head="gaussian")), QFunction(SPEC, wide))


# -- choices -----------------------------------------------------------------------------------------------------------


def judged(kind, values, act, target) -> Judged:
    return kind.judge(lambda extra=None: QValues(values), {"act": act, "target": target})


def test_the_penalty_of_choices_by_hand():
    values = torch.tensor([[0.0, math.log(3.0)], [1.0, FORBIDDEN]])
    found = judged(Conservative(penalty=2.0), values, torch.tensor([0, 0]), torch.tensor([0.5, 1.0]))
    # log(1 + 3) - 0, and the second has one choice only, which it took
    torch.testing.assert_close(found.loss, torch.tensor([0.125 + 2.0 * math.log(4.0), 0.0]))
    torch.testing.assert_close(found.error, torch.tensor([0.5, 0.0]))
    torch.testing.assert_close(found.value, torch.tensor([0.0, 1.0]))


@pytest.mark.slow
def test_the_values_of_a_bandit_are_lower_by_the_penalty():
    # where loss and penalty balance: Q(a) = r(a) - penalty · (softmax(a) / share(a) - 1)
    share, reward = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.0, 0.2, 1.0])
    act = torch.tensor([0] * 7 + [1] * 2 + [2]).repeat(20)
    spec = DiscreteSpec(n=3)
    algorithm = learner("cql choices", hidden=(), action_spec=spec, penalty=0.1, rate=1e-2)
    train(algorithm, dataset(algorithm, steps_of(torch.ones(200, 1), act, reward[act])), 750, batch_size=200)
    with torch.no_grad():
        values = algorithm.policy.act({"obs": torch.ones(1, 1)}, {}, {})[0].values[0]
    wanted = reward - 0.1 * (values.softmax(-1) / share - 1.0)
    torch.testing.assert_close(values, wanted, atol=0.06, rtol=0.0)
    assert int(values.argmax()) == 2 and float(values[2]) < 0.9


@pytest.mark.slow
def test_a_chain_is_walked_to_its_end_from_random_walks():
    env = Chain(1, config=ChainConfig(num_states=5))
    algorithm = learner("cql choices", 5, hidden=(32,), gamma=0.9, penalty=0.02, tau=0.2)
    place = torch.arange(400) % 4
    act = (torch.arange(400) // 4) % 2
    after = (place + 2 * act - 1).clamp(min=0)
    steps = steps_of(
        torch.eye(5)[place], act, (after == 4).float(), terminated=after == 4, obs_next=torch.eye(5)[after]
    )
    train(algorithm, dataset(algorithm, steps), 400)
    states = torch.eye(5)[:4]
    assert greedy(algorithm, {"obs": states}).tolist() == [1, 1, 1, 1]
    found = q_values(algorithm, states, torch.ones(4, dtype=torch.int64))
    torch.testing.assert_close(found, env.value(0.9)[:4].float(), atol=0.12, rtol=0.0)
