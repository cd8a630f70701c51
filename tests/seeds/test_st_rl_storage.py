"""st_rl's storages: the lines of the document, with imports changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from striderl.compat.st_rl import (
    ActionLabelRollout,
    ActorCritic,
    ActorCriticRecurrent,
    AmpRolloutStorage,
    QueueRolloutStorage,
    RolloutStorage,
    SarsaRolloutStorage,
)
from striderl.data.named_tuples import namedarraytuple
from striderl.storage import StatePairBuffer
from striderl.storage.rollout import RolloutStorage as CoreStorage

T, N, OBS, CRITIC, ACT = 4, 3, 5, 7, 2
OLD_ORDER = "obs critic_obs actions values advantages returns old_actions_log_prob old_mu old_sigma hidden_states masks"


def step(transition: Any, at: int, *, done: Any = None, **more: Any) -> Any:
    """Fill a transition with numbers that name the step and the env."""
    number = 10.0 * at + torch.arange(N, dtype=torch.float32)
    transition.observations = number.unsqueeze(1).repeat(1, OBS)
    transition.critic_observations = number.unsqueeze(1).repeat(1, CRITIC)
    transition.actions = transition.action_mean = number.unsqueeze(1).repeat(1, ACT)
    transition.action_sigma = torch.ones(N, ACT)
    transition.rewards, transition.values = torch.ones(N), torch.zeros(N, 1)
    transition.actions_log_prob = number
    transition.dones = torch.zeros(N) if done is None else torch.as_tensor(done)
    for name, value in more.items():
        setattr(transition, name, value)
    return transition


def filled(kind: type = RolloutStorage, dones: Tensor | None = None, **more: Any) -> Any:
    storage = kind(N, T, [OBS], [CRITIC], [ACT], "cpu")
    for at in range(T):
        given = {name: value[at] if name == "hidden_states" else value for name, value in more.items()}
        storage.add_transitions(step(kind.Transition(), at, done=None if dones is None else dones[at], **given))
    return storage


@pytest.mark.described(
    "st_rl", 122, "RolloutStorage(num_envs, num_transitions_per_env, shapes, device) holds trajectories."
)
@pytest.mark.described("rsl_rl", 132, "Observations have the shape [num_transitions_per_env, num_envs, obs_shape].")
def test_the_storage_is_made_of_shapes() -> None:
    storage = RolloutStorage(N, T, [OBS], [CRITIC], [ACT], "cpu")
    assert storage.observations.shape == (T, N, OBS)
    assert storage.critic_observations.shape == storage.privileged_observations.shape == (T, N, CRITIC)
    assert storage.actions.shape == storage.mu.shape == storage.sigma.shape == (T, N, ACT)
    assert {
        tuple(getattr(storage, name).shape) for name in ("rewards", "values", "returns", "advantages", "dones")
    } == {(T, N, 1)}
    assert RolloutStorage(N, T, [OBS], [None], [ACT], "cpu").critic_observations is None


def test_the_core_storage_names_this_one() -> None:
    with pytest.raises(TypeError, match=r"striderl.compat.st_rl.RolloutStorage"):
        CoreStorage(N, T, [OBS], [CRITIC], [ACT], "cpu")  # type: ignore[misc, arg-type, call-arg]


@pytest.mark.described("rsl_rl", 58, "Transition has ten fields, which clear sets to None.")
def test_a_transition_is_cleared() -> None:
    transition = RolloutStorage.Transition()
    names = "observations critic_observations actions rewards dones values actions_log_prob action_mean action_sigma"
    assert set(vars(transition)) == {*names.split(), "hidden_states"}
    step(transition, 0, note="mine").clear()
    assert set(vars(transition)) == {*names.split(), "hidden_states"} and not any(vars(transition).values())


@pytest.mark.described("st_rl", 2839, "add_transitions adds one step of data.")
@pytest.mark.described("rsl_rl", 56, "add_transitions updates the buffer with data from a Transition.")
def test_add_transitions_writes_one_step() -> None:
    storage = filled()
    assert storage.step == T and storage.observations[2, 1, 0] == 21.0 and storage.rewards.sum() == T * N
    with pytest.raises(OverflowError, match="Rollout buffer overflow: 4 steps"):
        storage.add_transitions(step(RolloutStorage.Transition(), 4))
    storage.clear()
    with pytest.raises(ValueError, match="the transition has no actions; set it before"):
        storage.add_transitions(step(RolloutStorage.Transition(), 0, actions=None))


@pytest.mark.described("st_rl", 2840, "compute_returns calculates generalized advantage estimation.")
@pytest.mark.described("rsl_rl", 75, "compute_returns computes generalized advantage estimation.")
def test_compute_returns_is_gae() -> None:
    # reward 1, values 0, gamma 0.5, lam 1; env 1 is done in step 1: its first two returns see nothing behind
    dones = torch.zeros(T, N)
    dones[1, 1] = 1
    storage = filled(dones=dones)
    storage.compute_returns(torch.full((N, 1), 8.0), 0.5, 1.0)
    assert storage.returns[:, 0, 0].tolist() == [1.875 + 0.5, 1.75 + 1.0, 1.5 + 2.0, 1.0 + 4.0]
    assert storage.returns[:2, 1, 0].tolist() == [1.5, 1.0]
    assert abs(float(storage.advantages.mean())) < 1e-6 and float(storage.advantages.std()) == pytest.approx(
        1.0, abs=1e-5
    )


@pytest.mark.described("st_rl", 2843, "get_statistics gives the average episode length and the average reward.")
@pytest.mark.described("rsl_rl", 76, "get_statistics returns trajectory length and rewards.")
def test_get_statistics() -> None:
    dones = torch.zeros(T, N)
    dones[1, 1] = 1  # pieces of 4, 2, 2 and 4 steps
    length, reward = filled(dones=dones).get_statistics()
    assert float(length) == 3.0 and float(reward) == 1.0


@pytest.mark.described("st_rl", 2841, "mini_batch_generator shuffles and samples minibatches.")
@pytest.mark.described("rsl_rl", 77, "mini_batch_generator produces a batch-like dataset from the buffers.")
def test_minibatches_have_the_old_names_in_the_old_order() -> None:
    storage = filled()
    storage.compute_returns(torch.zeros(N, 1), 0.99, 0.95)
    seen = []
    for minibatch in storage.mini_batch_generator(3, 2):
        assert minibatch._fields == tuple(OLD_ORDER.split())
        obs, critic_obs, actions, *_, sigma, hidden_states, masks = minibatch  # as rsl_rl 1 unpacks it
        assert obs is minibatch.obs and hidden_states is None and masks is None and "old_mu" in minibatch
        assert obs.shape == (4, OBS) and critic_obs.shape == (4, CRITIC) and sigma.shape == actions.shape == (4, ACT)
        assert minibatch.old_actions_log_prob.shape == minibatch.advantages.shape == (4, 1)
        torch.testing.assert_close(minibatch.old_actions_log_prob[:, 0], obs[:, 0])
        seen += obs[:, 0].tolist()
    every = sorted(storage.observations[..., 0].flatten().tolist())
    assert sorted(seen[:12]) == sorted(seen[12:]) == every, "each epoch uses every sample once"
    assert seen[:12] != seen[12:], "in another order"


@pytest.mark.described("st_rl", 2842, "reccurent_mini_batch_generator makes batches for recurrent networks.")
@pytest.mark.described("rsl_rl", 133, "_save_hidden_states keeps the hidden states of each step.")
@pytest.mark.described("rsl_rl", 137, "With padded_B_slice a minibatch has hidden states and masks.")
@pytest.mark.parametrize("name", ["reccurent_mini_batch_generator", "recurrent_mini_batch_generator"])
def test_sequences_begin_with_their_hidden_states(name: str) -> None:
    dones = torch.zeros(T, N)
    dones[1, 1] = 1
    memory = [10.0 * at + torch.arange(N, dtype=torch.float32).view(1, N, 1).repeat(1, 1, 2) for at in range(T)]
    storage = filled(dones=dones, hidden_states=memory)
    storage.compute_returns(torch.zeros(N, 1), 0.99, 0.95)
    one, two = getattr(storage, name)(2, 1)
    assert one.obs.shape == (T, 3, OBS) and two.obs.shape == (T, 1, OBS), "envs 0 and 1 have three trajectories"
    assert one.masks[:, :].sum(0).tolist() == [4, 2, 2] and one.actions.shape == (T, 2, ACT)
    assert one.hidden_states[0, :, 0].tolist() == [0.0, 1.0, 21.0] and two.hidden_states[0, :, 0].tolist() == [2.0]
    by_hand = storage.get_minibatch_from_indices(slice(0, T), slice(0, 2), slice(0, 3))
    torch.testing.assert_close(by_hand.hidden_states, one.hidden_states)
    assert storage.get_minibatch_from_indices(torch.tensor([1]), torch.tensor([2])).obs[0, 0] == 12.0


@pytest.mark.described("st_rl", 2849, "QueueRolloutStorage expands, then loops over its buffer.")
@pytest.mark.described("st_rl", 2851, "untie_buffer_loop reorders the buffer so that the latest data is continuous.")
def test_the_queue_keeps_older_rollouts() -> None:
    storage = QueueRolloutStorage(N, 2, [OBS], [CRITIC], [ACT], "cpu", buffer_dilation_ratio=2.5)
    found = []
    for at in range(8):
        storage.add_transitions(step(RolloutStorage.Transition(), at))
        if at % 2:
            storage.untie_buffer_loop()
            found.append((storage.observations[: storage.num_rows, 0, 0] / 10).tolist())
            storage.clear()
    assert found == [[0, 1], [0, 1, 2, 3], [1, 2, 3, 4, 5], [3, 4, 5, 6, 7]]
    assert sum(len(each.obs) for each in storage.mini_batch_generator(2, 1)) == 5 * N


@pytest.mark.described("st_rl", 2858, "ActionLabelRollout also stores action labels.")
@pytest.mark.described("st_rl", 513, "AmpRolloutStorage also stores reference motions and observations.")
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (ActionLabelRollout, {"action_labels": torch.ones(N, ACT)}),
        (AmpRolloutStorage, {name: torch.ones(N, 6) for name in ("action_labels", "ref_obs", "ref_motion")}),
    ],
)
def test_further_columns_come_with_the_minibatch(kind: type, more: dict[str, Tensor]) -> None:
    storage = filled(kind, **more)
    minibatch = next(storage.mini_batch_generator(1, 1))
    assert {name: tuple(getattr(minibatch, name).shape) for name in more} == {
        name: (T * N, *value.shape[1:]) for name, value in more.items()
    }


@pytest.mark.described(
    "st_rl",
    2866,
    "SarsaRolloutStorage aligns each step with the observation that follows.",
    difference="what follows is a column of its own: the next row is another episode's where one ended",
)
def test_sarsa_storage_aligns_what_follows() -> None:
    storage = SarsaRolloutStorage(N, T, [OBS], [CRITIC], [ACT], "cpu")
    for at in range(T):
        following = step(RolloutStorage.Transition(), at + 1)
        storage.add_transitions(
            step(
                SarsaRolloutStorage.Transition(),
                at,
                next_observations=following.observations,
                next_critic_observations=following.critic_observations,
            )
        )
    minibatch = next(storage.mini_batch_generator(1, 1))
    torch.testing.assert_close(minibatch.next_obs, minibatch.obs + 10.0)
    torch.testing.assert_close(minibatch.next_critic_obs, minibatch.critic_obs + 10.0)


def test_a_users_storage_adds_a_column_in_these_words() -> None:
    class Contacts(RolloutStorage):
        MiniBatch = namedarraytuple("MiniBatch", [*RolloutStorage.MiniBatch._fields, "contacts"])

    storage = filled(Contacts, contacts=torch.tensor([1, 0, 1]))
    minibatch = next(storage.mini_batch_generator(1, 1))
    assert minibatch.contacts.dtype == torch.int64 and minibatch.contacts.sum() == 2 * T
    with pytest.raises(ValueError, match="the transition has no contacts"):
        filled(Contacts)


def test_a_storage_without_a_memory_and_one_with_agree() -> None:
    plain, recurrent = ActorCritic(OBS, CRITIC, ACT), ActorCriticRecurrent(OBS, CRITIC, ACT, rnn_hidden_size=3)
    assert plain.get_hidden_states() is None and not plain.is_recurrent and recurrent.is_recurrent


# -- reply_buffer.py ---------------------------------------------------------------------------------------------------


@pytest.mark.described("st_rl", 2753, "ReplayBuffer(obs_dim, buffer_size, device) is a ring of states and next states.")
@pytest.mark.described("st_rl", 2795, "insert splits what exceeds the buffer and wraps around.")
@pytest.mark.described("st_rl", 2823, "feed_forward_generator yields random minibatches of pairs.")
@pytest.mark.described("rsl_rl", 81, "The replay buffer keeps states [buffer_size, obs_dim] and samples from them.")
def test_the_ring_of_state_pairs() -> None:
    buffer = StatePairBuffer(2, 5, "cpu")
    states = torch.arange(8.0).view(4, 2)
    buffer.insert(states, states + 0.5)
    buffer.insert(states + 100.0, states + 100.5)
    assert len(buffer) == 5
    pairs = list(buffer.feed_forward_generator(3, 10))
    assert len(pairs) == 3
    for now, following in pairs:
        assert now.shape == (10, 2)
        torch.testing.assert_close(following, now + 0.5)


def test_an_override_under_either_spelling_is_used() -> None:
    from striderl.compat.st_rl import PPO, OnPolicyRunner

    class Old(RolloutStorage):
        def reccurent_mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Any:
            return iter(())

    class New(RolloutStorage):
        def recurrent_mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Any:
            return iter(())

    for kind in (Old, New):
        storage = filled(kind)
        assert list(storage.recurrent_mini_batch_generator(1)) == list(storage.reccurent_mini_batch_generator(1)) == []
    alg = PPO(ActorCriticRecurrent(OBS, CRITIC, ACT, rnn_hidden_size=3))
    alg.storage = filled(Old)
    assert list(alg.mini_batches()) == []

    class Runner(OnPolicyRunner):
        def init_writter(self, init_at_random_ep_len: bool) -> None:
            self.told = init_at_random_ep_len

    assert Runner.init_writer is Runner.init_writter
