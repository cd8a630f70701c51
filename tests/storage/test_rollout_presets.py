"""Rollouts with further columns: labels, true next observations, motion priors."""

from __future__ import annotations

import pytest
import torch
from storage_steps import OBS, columns, fill, step

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.data import tree
from striderl.data.actions import BoxSpec
from striderl.data.arena import Placement
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.data.transition import transition_columns
from striderl.envs.classic_control import Pendulum
from striderl.policies.policy import Policy, PolicyConfig
from striderl.storage.minibatches import mini_batch_generator
from striderl.storage.rollout_presets import ActionLabelRollout, AmpRolloutStorage, SarsaRolloutStorage
from striderl.training.plans import OnPolicyPlan
from striderl.training.trainer import Trainer


def negative(transition, envs):
    """A teacher that does the opposite, and adds a tenth of the number of the first env it is asked about."""
    return -transition.act + 0.1 * envs.start


def test_labels_are_asked_for_with_each_step():
    storage = ActionLabelRollout(columns(), 2, 3, label=negative)
    storage.add(step(0, range(3)))
    storage.add(step(1, range(2)), slice(0, 2))
    storage.add(step(1, range(2, 3)), slice(2, 3))
    labels = storage.data["action_labels"]
    assert labels.shape == (2, 3, 1)
    assert labels[0, :, 0].tolist() == [0.0, -1.0, -2.0]
    assert labels[1, :, 0].tolist() == pytest.approx([-10.0, -11.0, -11.8])
    assert storage.batch().action_labels.shape == (2, 3, 1)


def test_a_label_of_the_wrong_shape_leaves_the_rollout_as_it_was():
    storage = ActionLabelRollout(columns(), 2, 3, label=lambda transition, envs: transition.act[:, 0])
    with pytest.raises(ValueError, match="column 'action_labels' wants shape"):
        storage.add(step(0, range(3)))
    assert len(storage) == 0


def test_a_full_rollout_is_refused_before_the_teacher_is_asked():
    asked = []
    storage = ActionLabelRollout(columns(), 1, 1, label=lambda transition, envs: asked.append(envs) or transition.act)
    fill(storage, 1)
    with pytest.raises(IndexError, match="clear it first"):
        fill(storage, 1)
    assert asked == [slice(0, 1)]


def test_what_truly_followed():
    # env 0 falls and env 1 times out in step 0: their final observations are 1000 more; env 2 goes on
    storage = SarsaRolloutStorage(columns(), 2, 3)
    storage.add(step(0, range(3), terminated=[True, False, False], truncated=[False, True, False]))
    storage.add(step(1, range(3)))
    assert storage.data["obs_next"]["obs"][0].tolist() == [[1000.0, 1000.0], [1001.0, 1001.0], [12.0, 12.0]]
    assert storage.data["obs_next"]["obs"][1, :, 0].tolist() == [20.0, 21.0, 22.0]
    # where nothing ended, what followed is the next row
    assert torch.equal(storage.data["obs_next"]["obs"][0, 2], storage.data["obs"]["obs"][1, 2])


def test_a_row_that_only_the_device_knows_has_what_followed_too():
    one, other = SarsaRolloutStorage(columns(), 2, 3), SarsaRolloutStorage(columns(), 2, 3)
    for number, ends in enumerate(([True, False, False], [False, False, False])):
        transition = step(number, range(3), terminated=ends, truncated=[False, False, False])
        one.add(transition)
        other.put(other.pack(transition), torch.tensor([number]))
    assert tree.equal(one.data, other.data) and other.data["obs_next"]["obs"][0, 0, 0] == 1000.0


def test_some_components_are_enough():
    storage = SarsaRolloutStorage(columns(), 2, 3, components=["obs"])
    assert list(fill(storage, 2).data["obs_next"]) == ["obs"]
    with pytest.raises(KeyError, match=r"'obz'.*Did you mean 'obs'"):
        SarsaRolloutStorage(columns(), 2, 3, components=["obz"])


def test_what_truly_followed_is_not_known_without_final_observations():
    storage = SarsaRolloutStorage(columns(), 1, 1)
    with pytest.raises(ValueError, match="gives no final observations"):
        storage.add(step(0, range(1), finals=False))


def test_motion_priors():
    storage = AmpRolloutStorage(columns(info=True), 2, 3, amp_obs_dim=4, label=negative)
    fill(storage, 2, info=True)
    assert storage.data["ref_obs"].shape == (2, 3, 4)
    assert storage.data["ref_obs"][1, 2].tolist() == [12.0] * 4
    assert storage.data["ref_motion"][1, 2].tolist() == [-12.0] * 4
    assert storage.data["action_labels"][1, :, 0].tolist() == [-10.0, -11.0, -12.0]
    alone = fill(AmpRolloutStorage(columns(info=True), 2, 3, amp_obs_dim=4), 2, info=True)
    assert torch.equal(alone.data["action_labels"], alone.data["act"])


def test_motions_among_the_observations_are_those_after_the_step():
    # env 0 falls: its last motion is the final one, 1000 more
    given = step(0, range(2), terminated=[True, False])
    seen = {name: {"ref_obs": value["obs"]} for name, value in given._asdict().items() if name.endswith("obs")}
    given = given._replace(**seen, info={"ref_motion": -given.obs["obs"]})
    spec = ObsSpec({"ref_obs": OBS["obs"]})
    layout = transition_columns(
        spec, BoxSpec(shape=(1,), low=-1.0, high=1.0), {"ref_motion": TensorSpec(shape=(2,))}, {}
    )
    storage = AmpRolloutStorage(layout, 1, 2, amp_obs_dim=2)
    storage.add(given)
    assert storage.data["ref_obs"][0, :, 0].tolist() == [1000.0, 11.0]
    assert storage.data["ref_motion"][0, :, 0].tolist() == [0.0, -1.0]


def test_motion_priors_that_are_missing_or_of_another_size_are_named():
    with pytest.raises(KeyError, match="ref_obs"):
        AmpRolloutStorage(columns(), 1, 1, amp_obs_dim=4).add(step(0, range(1)))
    with pytest.raises(ValueError, match="'ref_obs' has 4 numbers per env, amp_obs_dim is 5"):
        AmpRolloutStorage(columns(info=True), 1, 1, amp_obs_dim=5).add(step(0, range(1), info=True))


def test_saved_and_loaded():
    def storage() -> ActionLabelRollout:
        return ActionLabelRollout(columns(), 2, 2, label=negative, final_obs=OBS)

    one, other = fill(storage(), 2, truncated=[[True, False], [False, False]]), storage()
    saved = one.state_dict()
    one.data["action_labels"].zero_()
    other.load_state_dict(saved)
    assert other.full and other.data["action_labels"][1, 1].item() == -11.0
    assert int(other.finals.count) == 1
    assert tree.equal(other.state_dict(), saved)


def test_extra_columns_have_files_of_their_own(tmp_path):
    storage = fill(SarsaRolloutStorage(columns(), 2, 2, placement=Placement(folder=tmp_path)), 2)
    again = SarsaRolloutStorage(columns(), 2, 2, placement=Placement(folder=tmp_path))
    assert storage.data["rew"].tolist() == again.data["rew"].tolist() == [[0.0, 1.0], [10.0, 11.0]]
    assert again.data["obs_next"]["obs"][..., 0].tolist() == [[10.0, 11.0], [20.0, 21.0]]


def test_the_trainer_accepts_them_and_learns_the_same():
    def weights(labelled: bool) -> dict[str, torch.Tensor]:
        env = Pendulum(3)
        torch.manual_seed(0)
        config = PolicyConfig(actor_hidden_dims=(4,), critic_hidden_dims=(4,))
        policy = Policy(env.obs_spec, env.action_spec, config)
        collector = Collector(env, PolicyActor(policy))
        storage = (
            ActionLabelRollout(collector.columns(), 6, 3, label=negative, final_obs=env.obs_spec) if labelled else None
        )
        ppo = PPO(policy, PPOConfig(num_mini_batches=2, num_learning_epochs=2))
        trainer = Trainer(ppo, collector, OnPolicyPlan(num_steps_per_env=6, total_iterations=2), storage=storage)
        assert len(list(trainer)) == 2
        if storage is not None:
            assert torch.equal(storage.data["action_labels"], -storage.data["act"])
        return dict(policy.state_dict())

    assert tree.equal(weights(True), weights(False))


def test_minibatches_have_the_further_columns():
    storage = fill(ActionLabelRollout(columns(), 4, 3, label=negative), 4)
    for minibatch in mini_batch_generator(storage, 2, 1, torch.Generator().manual_seed(0)):
        assert minibatch.action_labels.shape == (6, 1)
        assert torch.equal(minibatch.action_labels, -minibatch.act)
