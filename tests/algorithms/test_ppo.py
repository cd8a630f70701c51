"""PPO: the ratio starts at 1, memory repeats the rollout, time-outs are valued right, bad samples do nothing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ppo_rollouts import ACTION, USUAL, build, endings, gradients, scripted, whole_minibatch

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.data import tree
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.classic_control import CartPole, Pendulum
from striderl.envs.toy import Chain, ChainConfig, ProbeConfig, Script, Scripted, Terminator, TimeLimit
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Remember
from striderl.storage.rollout import RolloutStorage
from striderl.training.experiment.runner_config import rsl_rl_ppo_config

NAN = float("nan")
KINDS = ("plain", "lstm", "gru")


def order(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -- the ratio starts at 1 ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda: CartPole(6), lambda: Pendulum(6)], ids=["discrete", "continuous"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_minibatch_has_ratio_one(kind, make):
    parts = build(make(), 40, kind, normalise=True, num_mini_batches=3, num_learning_epochs=2, learning_rate=3e-3)
    for _ in range(4):
        prepared = parts.collect()
        stats = parts.ppo.update(prepared, order())
        # float32 over batches of another size: the last bits of a matrix product may differ
        assert float(stats["first_ratio_error"]) <= 2e-6
        assert float(stats["ratio_error"]) > 1e-3, "later minibatches have moved, so the test could fail"
        parts.ppo.update_normalization(prepared.columns)


def test_absorbing_before_the_update_would_move_the_ratio():
    parts = build(Pendulum(4), 20, normalise=True)
    prepared = parts.collect()
    parts.ppo.update_normalization(prepared.columns)
    assert float(parts.ppo.update(prepared, order())["first_ratio_error"]) > 1e-3


# -- memory repeats the rollout ----------------------------------------------------------------------------------------


@st.composite
def patterns(draw):
    """Endings and invalid samples [T, N]: anything may happen at any step."""
    steps, envs = draw(st.integers(1, 7)), draw(st.integers(1, 5))
    flags = st.lists(st.integers(0, 5), min_size=steps * envs, max_size=steps * envs)
    codes = torch.tensor(draw(flags)).view(steps, envs)
    holes = torch.tensor(draw(flags)).view(steps, envs) == 0
    return codes == 1, codes == 2, ~holes


@pytest.mark.slow
@given(pattern=patterns(), data=st.data())
@settings(max_examples=40)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_minibatches_repeat_the_rollout(kind, pattern, data):
    terminated, truncated, valid = pattern
    envs = terminated.shape[1]
    count = data.draw(st.integers(1, envs), label="minibatches")
    env = scripted(terminated, truncated, valid)
    parts = build(env, len(terminated), kind, num_mini_batches=count, num_learning_epochs=1)
    prepared = parts.collect()
    seen = 0
    for minibatch in parts.ppo.minibatches(prepared, order()):
        seen += minibatch["valid"].shape[1]
        output = parts.ppo.policy(
            minibatch["obs"], minibatch["state"], minibatch["memo"], minibatch["resets"], minibatch["readable"]
        )
        kept = minibatch["valid"]
        torch.testing.assert_close(
            output.distribution.log_prob(minibatch["act"])[kept], minibatch["log_prob"][kept], rtol=0, atol=1e-5
        )
        torch.testing.assert_close(output.value[kept], minibatch["value"][kept], rtol=0, atol=1e-5)
    assert seen == envs


def test_memory_goes_on_across_rollouts():
    # no episode ends, so the second rollout starts with what the first left behind
    never = torch.zeros(12, 3, dtype=torch.bool)
    parts = build(scripted(never, never), 6, "lstm", num_mini_batches=1)
    parts.collect()
    prepared = parts.collect()
    assert all(float(value.abs().sum()) > 0.1 for value in prepared.initial_state.values())
    _, _, stats = parts.ppo.compute_losses(whole_minibatch(parts.ppo, prepared))
    assert float(stats["ratio_error"]) < 1e-6
    forgotten = prepared._replace(initial_state=tree.map(torch.zeros_like, prepared.initial_state))
    _, _, stats = parts.ppo.compute_losses(whole_minibatch(parts.ppo, forgotten))
    assert float(stats["ratio_error"]) > 1e-4


def test_a_bad_reward_in_the_middle_leaves_the_memory_alone():
    # only the reward of env 0, step 2 is bad: the sample does not count, but the robot saw what it saw
    never = torch.zeros(6, 2, dtype=torch.bool)
    env = scripted(never, never)
    env.script.reward[2, 0] = NAN
    parts = build(env, 6, "gru", num_mini_batches=1)
    prepared = parts.collect()
    assert prepared.columns["valid"].logical_not().nonzero().tolist() == [[2, 0]]
    _, _, stats = parts.ppo.compute_losses(whole_minibatch(parts.ppo, prepared))
    assert float(stats["ratio_error"]) < 1e-6


# -- what followed a step ----------------------------------------------------------------------------------------------


def valued_by_obs(env: Scripted, num_steps: int, **config) -> tuple[PPO, Collector, RolloutStorage]:
    """PPO whose critic says V(obs) = obs: no hidden layer, weight 1, bias 0."""
    policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(4,), critic_hidden_dims=()))
    with torch.no_grad():
        policy.value_head.layer.weight.fill_(1.0)
        policy.value_head.layer.bias.zero_()
    collector = Collector(env, PolicyActor(policy))
    finals = env.obs_spec if env.gives_final_obs else None
    storage = RolloutStorage(collector.columns(), num_steps, env.num_envs, final_obs=finals, pool_size=4)
    return PPO(policy, rsl_rl_ppo_config(**config)), collector, storage


def one_env(values, rewards, terminated, truncated, finals) -> Scripted:
    column = torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)
    return Scripted(
        Script(
            obs={"obs": column},
            reward=torch.tensor(rewards, dtype=torch.float32).view(-1, 1),
            terminated=torch.tensor(terminated).bool().view(-1, 1),
            truncated=torch.tensor(truncated).bool().view(-1, 1),
            final_obs=None if finals is None else {"obs": torch.tensor(finals, dtype=torch.float32).view(-1, 1, 1)},
        ),
        action_spec=ACTION,
    )


@pytest.mark.parametrize(
    ("terminated", "truncated", "finals", "expected"),
    [
        # V(s0) = 10, V(s1) = 20, V(s2) = 30, gamma 0.5, lambda 0: R_t = r_t + 0.5 V(next)
        ([0, 0], [0, 0], [7, 9], [1 + 0.5 * 20, 2 + 0.5 * 30]),
        # the clock ends the first step where the value is 7; s1 belongs to the next episode
        ([0, 0], [1, 0], [7, 9], [1 + 0.5 * 7, 2 + 0.5 * 30]),
        ([0, 0], [1, 1], [7, 9], [1 + 0.5 * 7, 2 + 0.5 * 9]),
        # a real end has no future, also when the clock strikes at the same time
        ([1, 0], [0, 0], [7, 9], [1, 2 + 0.5 * 30]),
        ([1, 0], [1, 0], [7, 9], [1, 2 + 0.5 * 30]),
        # no final observation: the value of where the step began is the best guess
        ([0, 0], [1, 0], None, [1 + 0.5 * 10, 2 + 0.5 * 30]),
    ],
)
def test_targets_by_hand(terminated, truncated, finals, expected):
    env = one_env([10, 20, 30], [1, 2], terminated, truncated, finals)
    ppo, collector, storage = valued_by_obs(env, 2, gamma=0.5, lam=0.0)
    collector.collect(n_step=2, storage=storage)
    prepared = ppo.prepare(storage, initial_state={}, last_obs=collector.current_obs, last_state={})
    assert prepared.returns[:, 0].tolist() == expected


def test_advantages_by_hand():
    # gamma = lambda = 0.5, no endings: delta_1 = 2 + 15 - 20 = -3, delta_0 = 1 + 10 - 10 = 1, A_0 = 1 - 0.25 * 3 = 0.25
    env = one_env([10, 20, 30], [1, 2], [0, 0], [0, 0], [7, 9])
    ppo, collector, storage = valued_by_obs(env, 2, gamma=0.5, lam=0.5)
    collector.collect(n_step=2, storage=storage)
    prepared = ppo.prepare(storage, initial_state={}, last_obs=collector.current_obs, last_state={})
    assert prepared.returns[:, 0].tolist() == [10.25, 17.0]
    # normalised over the rollout: (0.25, -3) has mean -1.375 and std 1.625
    assert prepared.advantage[:, 0].tolist() == pytest.approx([1.0, -1.0])


def test_a_pool_that_is_too_small_falls_back_for_the_rest():
    env = one_env([10, 20, 30], [1, 2], [0, 0], [1, 1], [7, 9])
    ppo, collector, _ = valued_by_obs(env, 2, gamma=0.5, lam=0.0)
    storage = RolloutStorage(collector.columns(), 2, 1, final_obs=env.obs_spec, pool_size=1)
    collector.collect(n_step=2, storage=storage)
    prepared = ppo.prepare(storage, initial_state={}, last_obs=collector.current_obs, last_state={})
    assert prepared.returns[:, 0].tolist() == [1 + 0.5 * 7, 2 + 0.5 * 20]


def test_final_observations_are_valued_with_the_memory_of_their_episode():
    # the critic's memory at the final observation is the one after step t, not the fresh one of the next episode
    terminated, truncated = torch.zeros(5, 2).bool(), torch.zeros(5, 2).bool()
    truncated[2, 1] = True
    parts = build(scripted(terminated, truncated), 5, "lstm", gamma=1.0, lam=0.0)
    prepared = parts.collect()
    policy, script = parts.ppo.policy, parts.collector.env.script
    state = policy.initial_state(1)
    for step in range(3):
        obs = {name: value[step, 1:] for name, value in script.obs.items()}
        state = policy(obs, state, {}).state
    final, _ = policy.value({name: value[2, 1:] for name, value in script.final_obs.items()}, state, {})
    expected = script.reward[2, 1] + final[0]
    torch.testing.assert_close(prepared.returns[2, 1], expected, rtol=0, atol=1e-6)


# -- samples that do not count -----------------------------------------------------------------------------------------


def test_invalid_rows_leave_losses_and_gradients_as_if_they_were_not_there():
    terminated, truncated = endings(8, 4)
    valid = torch.rand(8, 4, generator=order(5)) < 0.7
    parts = build(scripted(terminated, truncated, valid), 8, normalize_advantage_per_mini_batch=True)
    minibatch = whole_minibatch(parts.ppo, parts.collect())
    losses, gradient = gradients(parts.ppo, minibatch)
    kept = minibatch["valid"]
    fewer = tree.map(lambda leaf: leaf[kept], {name: value for name, value in minibatch.items() if name != "state"})
    expected_losses, expected = gradients(parts.ppo, {**fewer, "state": {}})
    assert losses == pytest.approx(expected_losses, abs=1e-6)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("poison", [NAN, math.inf, 1e30])
@pytest.mark.parametrize("head", ["gaussian", "squashed_gaussian", "beta"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_in_an_invalid_sample_reaches_the_gradient(kind, head, poison):
    # env 1 is broken from step 3 on; as quarantine has it, step 2 was cut and its successors do not count
    terminated = torch.zeros(6, 3, dtype=torch.bool)
    truncated = torch.zeros(6, 3, dtype=torch.bool)
    truncated[2, 1] = True
    valid = torch.ones(6, 3, dtype=torch.bool)
    valid[3:, 1] = False
    env = scripted(terminated, truncated, valid)
    torch.manual_seed(0)
    recipe = () if kind == "plain" else (Remember(type=kind, hidden_size=6),)
    config = PolicyConfig(head=head, actor=recipe, critic=recipe, actor_hidden_dims=(8,), critic_hidden_dims=(8,))
    policy = Policy(env.obs_spec, env.action_spec, config)
    collector = Collector(env, PolicyActor(policy))
    storage = RolloutStorage(collector.columns(), 6, 3, final_obs=env.obs_spec, final_state=policy.state_spec())
    collector.ready()
    initial = collector.current_state
    collector.collect(n_step=18, storage=storage)
    ppo = PPO(policy, PPOConfig(**USUAL))

    def results():
        prepared = ppo.prepare(
            storage, initial_state=initial, last_obs=collector.current_obs, last_state=collector.current_state
        )
        minibatch = whole_minibatch(ppo, prepared)
        return (*gradients(ppo, minibatch), ppo.compute_losses(minibatch)[2])

    losses, gradient, stats = results()
    assert gradient.isfinite().all() and gradient.abs().sum() > 0
    for column in tree.leaves({name: storage.data[name] for name in ("obs", "act", "rew", "policy")}):
        column[3:, 1] = poison
    poisoned_losses, poisoned_gradient, poisoned_stats = results()
    # a memory cuts its sequences elsewhere when a step cannot be read, which moves the last bits
    rounding = {"rel": 0.0, "abs": 0.0} if kind == "plain" else {"rel": 1e-5, "abs": 1e-6}
    assert poisoned_losses == pytest.approx(losses, **rounding)
    torch.testing.assert_close(poisoned_gradient, gradient, rtol=rounding["rel"], atol=rounding["abs"])
    assert {name: float(value) for name, value in poisoned_stats.items()} == pytest.approx(
        {name: float(value) for name, value in stats.items()}, **rounding
    )


def test_a_rollout_without_a_valid_sample_changes_nothing_but_does_not_break():
    never = torch.zeros(4, 2, dtype=torch.bool)
    parts = build(scripted(never, never, never), 4, num_mini_batches=2, num_learning_epochs=1, entropy_coef=0.0)
    before = [parameter.clone() for parameter in parts.ppo.policy.parameters()]
    stats = parts.ppo.update(parts.collect(), order())
    assert all(torch.equal(one, other) for one, other in zip(before, parts.ppo.policy.parameters()))
    assert all(math.isfinite(float(value)) for value in stats.values())


def test_a_broken_update_is_skipped_and_counted():
    parts = build(Pendulum(2), 8, num_mini_batches=2, num_learning_epochs=1)
    prepared = parts.collect()
    broken = prepared._replace(returns=torch.full_like(prepared.returns, NAN))
    before = parts.ppo.state_dict()
    stats = parts.ppo.update(broken, order())
    after = parts.ppo.state_dict()
    assert int(stats["skipped_updates"]) == 2
    assert tree.equal(after["policy"], before["policy"])
    assert tree.equal(after["updater"]["policy"]["first"], before["updater"]["policy"]["first"])


# -- minibatches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "count"), [("plain", 1), ("plain", 5), ("plain", 24), ("gru", 1), ("gru", 3), ("gru", 4)]
)
def test_every_sample_is_used_once_per_epoch(kind, count):
    parts = build(scripted(*endings(6, 4)), 6, kind, num_mini_batches=count, num_learning_epochs=3)
    prepared = parts.collect()
    # 24 samples; in whole-env minibatches of 4 envs the parts may differ in size, but nobody is left out
    number = torch.arange(24.0).view(6, 4)
    numbered = prepared._replace(returns=number)
    orders = []
    minibatches = list(parts.ppo.minibatches(numbered, order()))
    assert len(minibatches) == 3 * count == parts.ppo.num_updates_per_rollout
    for epoch in range(3):
        part = minibatches[epoch * count : (epoch + 1) * count]
        used = torch.cat([minibatch["returns"].flatten() for minibatch in part])
        assert sorted(used.tolist()) == list(range(24))
        orders.append(tuple(used.tolist()))
    assert count == 1 or kind == "gru" or len(set(orders)) == 3, "each epoch has an order of its own"


@pytest.mark.parametrize(("kind", "steps", "envs"), [("plain", 2, 2), ("lstm", 20, 4)])
def test_impossible_minibatches_are_refused(kind, steps, envs):
    parts = build(scripted(*endings(steps, envs)), steps, kind, num_mini_batches=5)
    with pytest.raises(ValueError, match=r"num_mini_batches=5 cannot be made of 4 (samples|envs)"):
        parts.ppo.check_rollout(steps, envs)
    with pytest.raises(ValueError, match="set it to 4 or less"):
        parts.ppo.update(parts.collect(), order())


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_envs_does_not_matter(kind):
    parts = build(scripted(*endings(7, 5)), 7, kind)
    prepared = parts.collect()
    shuffled = torch.tensor([3, 0, 4, 1, 2])
    columns = {name: value for name, value in prepared._asdict().items() if name != "initial_state"}
    moved = prepared._replace(
        **tree.map(lambda leaf: leaf[:, shuffled], columns),
        initial_state=tree.map(lambda leaf: leaf[shuffled], prepared.initial_state),
    )
    losses, gradient = gradients(parts.ppo, whole_minibatch(parts.ppo, prepared))
    moved_losses, moved_gradient = gradients(parts.ppo, whole_minibatch(parts.ppo, moved))
    assert moved_losses == pytest.approx(losses, abs=1e-6)
    torch.testing.assert_close(moved_gradient, gradient, rtol=1e-4, atol=1e-6)


# -- names and order of components -------------------------------------------------------------------------------------


def trained(env: Scripted, policy: Policy) -> dict[str, torch.Tensor]:
    """The policy's weights after one update on the env's script."""
    collector = Collector(env, PolicyActor(policy))
    storage = RolloutStorage(collector.columns(), 8, 4, final_obs=env.obs_spec)
    ppo = PPO(policy, PPOConfig(**{**USUAL, "num_mini_batches": 2, "num_learning_epochs": 2}))
    collector.collect(n_step=32, storage=storage)
    prepared = ppo.prepare(storage, initial_state={}, last_obs=collector.current_obs, last_state={})
    ppo.update(prepared, order())
    ppo.update_normalization(prepared.columns)
    return {name: value.clone() for name, value in policy.state_dict().items()}


def with_components(env: Scripted, names: dict[str, str]) -> Scripted:
    """The same script with its components under other names, in the order of `names`."""
    script, ends = env.script, {"terminated": env.script.terminated, "truncated": env.script.truncated}
    obs = {new: script.obs[old] for old, new in names.items()}
    final = {new: script.final_obs[old] for old, new in names.items()}
    return Scripted(Script(obs=obs, reward=script.reward, final_obs=final, **ends), action_spec=ACTION)


def plain_policy(env: Scripted) -> Policy:
    torch.manual_seed(0)
    config = PolicyConfig(
        actor=(NormalizeObs(),), critic=(NormalizeObs(),), actor_hidden_dims=(8,), critic_hidden_dims=(8,)
    )
    return Policy(env.obs_spec, env.action_spec, config)


def test_renaming_components_changes_nothing():
    env = scripted(*endings(8, 4))
    renamed = with_components(env, {"joints": "zz", "command": "aa"})
    one, two = trained(env, plain_policy(env)), trained(renamed, plain_policy(renamed))
    assert [value.shape for value in one.values()] == [value.shape for value in two.values()]
    assert all(torch.equal(a, b) for a, b in zip(one.values(), two.values()))


def test_the_order_in_which_an_env_hands_components_out_changes_nothing():
    env = scripted(*endings(8, 4))
    swapped = with_components(env, {"command": "command", "joints": "joints"})
    swapped.obs_spec = env.obs_spec
    one, two = trained(env, plain_policy(env)), trained(swapped, plain_policy(env))
    assert all(torch.equal(a, b) for a, b in zip(one.values(), two.values()))


def test_reordering_the_spec_only_moves_columns():
    env = scripted(*endings(8, 4))
    swapped = with_components(env, {"command": "command", "joints": "joints"})
    assert swapped.obs_spec.names == ("command", "joints")
    first, second = plain_policy(env), plain_policy(swapped)
    # spec (joints 3, command 2) against (command 2, joints 3): columns 3, 4 come first
    moved = [3, 4, 0, 1, 2]
    start = dict(first.state_dict())
    layers = [name for name, value in start.items() if value.dim() == 2 and value.shape[1] == 5]
    assert len(layers) == 2, "the first layers of actor and critic"
    second.load_state_dict({name: value[:, moved] if name in layers else value for name, value in start.items()})
    one, two = trained(env, first), trained(swapped, second)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value[:, moved] if name in layers else value, rtol=1e-4, atol=1e-5)


def test_a_privileged_component_reaches_the_critic_alone():
    spec = ObsSpec({"joints": ComponentSpec(shape=(3,)), "command": ComponentSpec(shape=(2,), group="critic")})
    env = scripted(*endings(6, 3))
    env.obs_spec = spec
    policy = Policy(spec, ACTION, PolicyConfig(actor_hidden_dims=(4,), critic_hidden_dims=(4,)))
    assert policy.actor_inputs.names == ("joints",) and policy.critic_inputs.names == ("joints", "command")
    collector = Collector(env, PolicyActor(policy))
    storage = RolloutStorage(collector.columns(), 6, 3, final_obs=spec)
    collector.collect(n_step=18, storage=storage)
    ppo = PPO(policy)
    prepared = ppo.prepare(storage, initial_state={}, last_obs=collector.current_obs, last_state={})
    assert float(ppo.update(prepared, order())["first_ratio_error"]) < 1e-6


# -- values in closed form ---------------------------------------------------------------------------------------------


def learned_values(
    env, states: torch.Tensor, *, gamma: float, iterations: int, steps: int, learning_rate: float = 0.03
) -> torch.Tensor:
    torch.manual_seed(0)
    policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(16,), critic_hidden_dims=()))
    collector = Collector(env, PolicyActor(policy))
    storage = RolloutStorage(
        collector.columns(), steps, env.num_envs, final_obs=env.obs_spec, pool_size=steps * env.num_envs
    )
    config = PPOConfig(
        gamma=gamma, lam=0.9, learning_rate=learning_rate, schedule="fixed", entropy_coef=0.0,
        use_clipped_value_loss=False, max_grad_norm=0.0, num_learning_epochs=4, num_mini_batches=2,
    )  # fmt: skip
    ppo = PPO(policy, config)
    for iteration in range(iterations):
        storage.clear()
        collector.collect(n_step=steps * env.num_envs, storage=storage)
        prepared = ppo.prepare(storage, initial_state={}, last_obs=collector.current_obs, last_state={})
        ppo.update(prepared, order(iteration))
    with torch.no_grad():
        values, _ = policy.value({"obs": states}, {}, {})
    return values.double()


@pytest.mark.slow
def test_time_outs_are_worth_what_would_have_followed():
    # reward 1 for ever, cut every 5 steps: V = 1 / (1 - 0.9) = 10; taking the cut for an end would give 4.1 at most
    env = TimeLimit(8, config=ProbeConfig(num_steps=5))
    value = learned_values(env, torch.ones(1, 1), gamma=0.9, iterations=20, steps=20, learning_rate=0.2)
    assert value.item() == pytest.approx(env.value(0.9), rel=0.02)


@pytest.mark.slow
def test_ends_are_worth_nothing_more():
    env = Terminator(8, config=ProbeConfig(num_steps=5))
    values = learned_values(env, torch.eye(5), gamma=0.9, iterations=20, steps=20, learning_rate=0.2)
    torch.testing.assert_close(values, env.value(0.9), rtol=0.03, atol=0.03)


@pytest.mark.slow
def test_a_chain_is_walked_and_valued():
    env = Chain(8, config=ChainConfig(num_states=4, max_episode_length=30))
    values = learned_values(env, torch.eye(4), gamma=0.8, iterations=30, steps=20)
    # 'always right' is worth 0.64, 0.8, 1; the last state is never looked at
    torch.testing.assert_close(values[:3], env.value(0.8)[:3], rtol=0.0, atol=0.05)


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_the_learning_rate_follows_the_kl():
    parts = build(Pendulum(4), 16, schedule="adaptive", desired_kl=1e-9, num_mini_batches=2, num_learning_epochs=4)
    stats = parts.ppo.update(parts.collect(), order())
    # every minibatch after the first overshoots such a small KL; the rate is divided by 1.5 each time
    assert float(stats["learning_rate"]) < 1e-3 / 1.5**5
    fixed = build(Pendulum(4), 16, schedule="fixed", desired_kl=1e-9)
    assert float(fixed.ppo.update(fixed.collect(), order())["learning_rate"]) == pytest.approx(1e-3)


def test_saved_state_is_a_copy():
    parts = build(Pendulum(2), 8)
    saved = parts.ppo.state_dict()
    kept = tree.copy(saved)
    parts.ppo.update(parts.collect(), order())
    assert tree.equal(saved, kept)
    parts.ppo.load_state_dict(saved)
    assert tree.equal(parts.ppo.state_dict(), kept)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"num_mini_batches": 0, "num_learning_epochs": 1}, ValueError, "are at least 1, found 0 and 1"),
        ({"num_mini_batches": 2.5}, TypeError, r"PPOConfig.num_mini_batches: wanted int, found float 2.5"),
        ({"clip_param": "0.2"}, TypeError, r"PPOConfig.clip_param: wanted float, found str '0.2'"),
        ({"use_clipped_value_loss": 1}, TypeError, r"wanted bool, found int 1"),
        ({"learning_rate": True}, TypeError, r"wanted float, found bool True"),
        ({"schedule": "adaptiv"}, ValueError, "Did you mean 'adaptive'"),
        ({"gamma": 1.5}, ValueError, "between 0 and 1"),
        ({"learning_rate": -1.0}, ValueError, "positive"),
    ],
)
def test_bad_settings_are_named(settings, error, message):
    with pytest.raises(error, match=message):
        PPOConfig(**settings)
