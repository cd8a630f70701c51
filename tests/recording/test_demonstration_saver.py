"""Demonstrations: exactly the episodes that ended, whole; only successes if wanted; nothing twice, nothing lost."""

from __future__ import annotations

import json

import pytest
import torch
from saver_cases import CountingEnv, ended, fails, length_of, script

from striderl.collect.actors.base import RandomActor
from striderl.collect.teacher import Teacher
from striderl.data.actions import BoxSpec
from striderl.datasets.trajectories.spec import TrajectoryError, TrajectoryMismatch
from striderl.datasets.trajectories.store import TrajectoryStore
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.presets.base import ActorCritic
from striderl.policies.stages import Remember
from striderl.recording.demonstrations import DemonstrationSaver
from striderl.training.agent import Agent


def run_for(saver: DemonstrationSaver, num_steps: int) -> TrajectoryStore:
    """Take so many steps of each env, save every `rollout_storage_length` of them, and close."""
    for step in range(num_steps):
        saver.collect_step(step)
        if (step + 1) % saver.rollout_storage_length == 0:
            saver.save_steps()
    saver.close()
    return TrajectoryStore(saver.save_dir)


def found_in(store: TrajectoryStore) -> list[tuple[int, int, int]]:
    """(env, episode, length) of each trajectory, from what was observed."""
    places = [store.read(index, columns=["obs"])["obs"]["place"] for index in range(len(store))]
    return sorted((int(place[0, 0]), int(place[0, 1]), len(place)) for place in places)


@pytest.mark.parametrize("rollout", [1, 4, 7, 64])
def test_every_episode_that_ended_is_there_once(tmp_path, rollout):
    store = run_for(DemonstrationSaver(CountingEnv(), script, tmp_path, rollout), 41)
    assert found_in(store) == ended(3, 41), "whatever the length of a rollout"
    for index in range(len(store)):
        steps = store.read(index, obs_next=True)
        env, episode, _ = steps["obs"]["place"][0].int().tolist()
        length = length_of(env, episode)
        ages = torch.arange(length).float()
        assert torch.equal(steps["obs"]["place"][:, 2], ages) and torch.equal(steps["obs"]["truth"][:, 0], 10 * ages)
        assert torch.equal(steps["act"], torch.stack([ages, 10 * ages], dim=1))
        assert torch.equal(steps["rew"], ages + 1 + 11 * ages)
        assert torch.equal(steps["obs_next"]["place"][:, 2], ages + 1), "behind the end: where the episode ended"
        assert steps["terminated"].tolist() == [False] * (length - 1) + [fails(env, episode)]
        assert steps["truncated"].tolist() == [False] * (length - 1) + [not fails(env, episode)]
        about = store.read_about(index)
        assert about["env"] == env and about["success"] is not fails(env, episode)
        assert about["return"] == pytest.approx(float(steps["rew"].sum()))


def test_without_final_observations_the_last_one_is_repeated(tmp_path):
    store = run_for(DemonstrationSaver(CountingEnv(final_obs=False), script, tmp_path, 8), 30)
    assert found_in(store) == ended(3, 30) and not store.spec.final_obs and store.read_final_obs(0) is None
    following = store.read(0, obs_next=True)["obs_next"]["place"][:, 2].tolist()
    assert following == [*range(1, len(following)), len(following) - 1]


@pytest.mark.parametrize("says", [False, True])
def test_only_successes(tmp_path, says):
    saver = DemonstrationSaver(CountingEnv(success=says), script, tmp_path, 8, success_traj_only=True)
    store = run_for(saver, 60)
    whole = ended(3, 60)
    # with info['success'] an episode went well if the number of the next one is even, whatever the flags say
    good = [each for each in whole if ((each.number + 1) % 2 == 0 if says else not fails(each.env, each.number))]
    assert 0 < len(good) < len(whole) and found_in(store) == good
    assert saver.total_timesteps == sum(each.length for each in good) == store.num_steps
    assert saver.print_log().left_out == len(whole) - len(good)
    assert json.loads((tmp_path / "summary.json").read_text())["total_timesteps"] == store.num_steps
    if says:
        assert store.read(0)["info"]["success"].tolist()[-1] is True


def test_both_thresholds_must_be_reached_and_progress_is_told(tmp_path):
    lines = []
    settings = {"rollout_storage_length": 5, "log_interval": 2, "progress": lines.append}
    env = CountingEnv()
    saver = DemonstrationSaver(env, script, tmp_path, min_timesteps=90, min_episodes=10, **settings)
    done = saver.collect_and_save({"task": "count", "sizes": (1, 2), "limit": float("inf")})
    store = TrajectoryStore(tmp_path)
    assert done.total_timesteps == store.num_steps >= 90 and done.total_trajectories == len(store) >= 10
    before = ended(3, env.num_steps - 5)
    assert len(before) < 10 or sum(each.length for each in before) < 90, "a rollout less would not have been enough"
    assert done.fraction == 1.0 and [line.total_timesteps for line in lines] == sorted(
        line.total_timesteps for line in lines
    )
    assert all(line.steps_per_second >= 0 for line in lines) and str(done).startswith(f"{store.num_steps} steps in")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["config"] == {"task": "count", "sizes": [1, 2], "limit": "inf"}
    assert store.about["env"] == "CountingEnv" and store.about["config"]["task"] == "count"


def test_a_recording_is_continued(tmp_path):
    first = CountingEnv()
    DemonstrationSaver(first, script, tmp_path, 5, min_timesteps=40, min_episodes=1).collect_and_save()
    before = len(TrajectoryStore(tmp_path)), TrajectoryStore(tmp_path).num_steps
    second = CountingEnv()
    saver = DemonstrationSaver(second, script, tmp_path, 5, min_timesteps=80, min_episodes=1)
    assert saver.total_timesteps == before[1] and not saver.check_stop()
    saver.collect_and_save()
    store = TrajectoryStore(tmp_path)
    assert store.num_steps >= 80 and len(store) > before[0]
    assert store.num_steps - before[1] == sum(each.length for each in ended(3, second.num_steps))
    assert first.seeds == [0] and second.seeds[0] not in (0, None), "the same episodes are not recorded again"
    third = CountingEnv()
    DemonstrationSaver(third, script, tmp_path, 5, min_timesteps=80, min_episodes=1).collect_and_save()
    assert third.num_steps == 0, "there is enough"
    fourth = CountingEnv()
    DemonstrationSaver(fourth, script, tmp_path, 5, min_timesteps=120, min_episodes=1).collect_and_save()
    assert fourth.seeds[0] not in (0, None, second.seeds[0])


def test_a_folder_with_other_observations_is_refused(tmp_path):
    run_for(DemonstrationSaver(CountingEnv(), script, tmp_path, 8), 8)
    saver = DemonstrationSaver(CountingEnv(success=True), script, tmp_path, 8)
    with pytest.raises(TrajectoryMismatch, match="column 'info/success' is new"):
        saver.collect_and_save()


def test_components_are_squeezed_as_the_mapping_says(tmp_path):
    mapping = {"depth": "normalized_image", "truth": "float16"}
    saver = DemonstrationSaver(CountingEnv(), script, tmp_path, 8, obs_disassemble_mapping=mapping)
    store = run_for(saver, 30)
    codecs = {column.name: column.codec for column in store.spec.columns}
    assert (codecs["obs/depth"], codecs["obs/truth"], codecs["obs/place"]) == ("normalized_image", "float16", "raw")
    steps = store.read(0)["obs"]
    wanted = (steps["place"][:, 2] % 6 / 5.0)[:, None, None, None].expand(-1, 1, 2, 2)
    assert torch.allclose(steps["depth"], wanted, atol=1 / 510) and steps["depth"].dtype == torch.float32
    assert torch.equal(steps["truth"][:, 0], 10 * steps["place"][:, 2])
    with pytest.raises(KeyError, match="Did you mean 'depth'"):
        DemonstrationSaver(CountingEnv(), script, tmp_path / "x", obs_disassemble_mapping={"depht": "zlib"})


def test_long_episodes_are_written_in_pieces(tmp_path):
    saver = DemonstrationSaver(CountingEnv(2, endless=True), script, tmp_path, 4, max_trajectory_length=6)
    store = run_for(saver, 20)
    assert store.lengths() == [8, 8, 8, 8], "the first multiple of the rollout that is long enough; 4 steps are open"
    for index in (0, 2):
        steps = store.read(index, obs_next=True)
        assert steps["truncated"].tolist() == [False] * 7 + [True] and not steps["terminated"].any()
        assert torch.equal(steps["obs_next"]["place"], steps["obs"]["place"] + torch.tensor([0.0, 0.0, 1.0]))


def test_a_bad_number_ends_its_episode_and_harms_no_other(tmp_path, caplog):
    env = CountingEnv(2)
    env.poison = (9, 0)  # in step 9, the first of its third episode, env 0 shows NaN
    store = run_for(DemonstrationSaver(env, script, tmp_path, 6), 36)
    assert "place of env 0 was nan at step 9" in caplog.text
    for index in range(len(store)):
        steps = store.read(index)
        assert steps["valid"].all() and torch.isfinite(steps["obs"]["place"]).all()
        assert steps["obs"]["place"][:, 2].tolist() == [*range(len(steps["rew"]))], "from its beginning, without a gap"
        env_i, episode = steps["obs"]["place"][0, :2].int().tolist()
        given_up = (env_i, episode) == (0, 2)
        assert store.read_about(index)["success"] is (not given_up and not fails(env_i, episode))
    assert [each for each in found_in(store) if each[0] == 1] == [each for each in ended(2, 36) if each.env == 1]
    mine = [each for each in found_in(store) if each[0] == 0]
    assert mine[:4] == [(0, 0, 2), (0, 1, 7), (0, 2, 1), (0, 3, 3)], "the third was cut, the fourth is a new one"


def test_after_a_full_disk_no_episode_with_a_hole_is_written(tmp_path, monkeypatch):
    saver = DemonstrationSaver(CountingEnv(), script, tmp_path, 6)
    saver.init_traj_handlers()
    write, calls = saver.writer.add_squeezed, []

    def refuse_the_third(*arguments, **settings):
        calls.append(1)
        if len(calls) == 3:
            raise TrajectoryError("No space left on device")
        return write(*arguments, **settings)

    monkeypatch.setattr(saver.writer, "add_squeezed", refuse_the_third)
    with pytest.raises(TrajectoryError, match="No space left"):
        run_for(saver, 12)
    for step in range(6):
        saver.collect_step(step)
    with pytest.raises(TrajectoryError, match="record with a new saver"):
        saver.save_steps()
    assert found_in(TrajectoryStore(tmp_path)) == ended(3, 6), "two ended in the first rollout, the third did not fit"


def test_the_steps_by_hand(tmp_path):
    """The calls of which `collect_step` is made, in the order of the old loop."""
    saver = DemonstrationSaver(CountingEnv(), script, tmp_path, rollout_storage_length=6)
    saver.init_traj_handlers()
    with pytest.raises(RuntimeError, match="get_transition first"):
        saver.add_transition(0)
    for step in range(30):
        assert saver.get_policy_actions().shape == (3, 2)
        actions, rewards, dones, infos, obs, critic_obs = saver.get_transition()
        assert rewards.shape == dones.shape == (3,) and "log" in infos and actions.shape == (3, 2)
        assert set(obs) == {"place", "depth", "truth"} and set(critic_obs) == {"truth"}
        saver.add_transition(step, infos)
        saver.policy_reset(dones)
    saver.save_steps()
    steps = saver.wrap_up_trajectory(1, slice(2, 5))
    assert steps["obs"]["place"].shape == (3, 3) and torch.equal(steps["obs"]["place"][:, 0], torch.ones(3))
    with pytest.raises(ValueError, match="step 6 of the rollout is next, found 0 to 3"):
        saver.dump_to_file(1, slice(0, 3))  # it is there already
    with pytest.raises(ValueError, match="not the last"):
        saver.update_traj_handler(1, slice(0, 3))
    saver.get_transition()
    for too_early in (saver.get_transition, saver.save_steps):
        with pytest.raises(RuntimeError, match="not recorded yet"):
            too_early()
    saver.close()
    assert found_in(TrajectoryStore(tmp_path)) == ended(3, 31), "close records the step that was taken"
    for too_late in (saver.get_transition, saver.save_steps, lambda: saver.collect_step(0)):
        with pytest.raises(RuntimeError, match="this saver is closed"):
            too_late()


# -- who acts ----------------------------------------------------------------------------------------------------------


def recurrent(env: CountingEnv, **settings) -> Policy:
    torch.manual_seed(3)
    config = PolicyConfig(actor_hidden_dims=(8,), critic_hidden_dims=(8,), actor=(Remember(hidden_size=4),), **settings)
    return Policy(env.obs_spec, env.action_spec, config)


def played(policy: Policy, steps) -> torch.Tensor:
    """What a policy does in an episode, step by step, from an empty memory."""
    state, actions = policy.initial_state(1), []
    with torch.no_grad():
        for row in range(len(steps["rew"])):
            obs = {name: value[row : row + 1] for name, value in steps["obs"].items()}
            distribution, state, _ = policy.act(obs, state, policy.settled(torch.zeros(1)))
            actions.append(distribution.mode())
    return torch.cat(actions)


@pytest.mark.parametrize("form", ["policy", "agent", "teacher", "facade"])
def test_a_recurrent_policy_forgets_where_episodes_end(tmp_path, form):
    env = CountingEnv()
    policy = recurrent(env)
    given = {"policy": policy, "agent": Agent(policy), "teacher": Teacher(policy)}.get(form)
    if form == "facade":
        from striderl.policies.facade.stateful import StatefulPolicy

        given = StatefulPolicy(policy, seed=1)
    store = run_for(DemonstrationSaver(env, given, tmp_path, 8), 30)
    assert found_in(store) == ended(3, 30)
    for index in range(len(store)):
        steps = store.read(index)
        assert torch.allclose(steps["act"], played(policy, steps), atol=1e-6)


def test_samples_differ_from_the_mean_and_follow_the_seed(tmp_path):
    actions = {}
    for name, sample, seed in [("mean", False, 0), ("one", True, 1), ("again", True, 1), ("other", True, 2)]:
        env = CountingEnv()
        saver = DemonstrationSaver(env, recurrent(env), tmp_path / name, 8, demo_by_sample=sample, seed=seed)
        actions[name] = run_for(saver, 8).read(0)["act"]
    assert torch.equal(actions["one"], actions["again"])
    assert not torch.equal(actions["one"], actions["mean"]) and not torch.equal(actions["one"], actions["other"])


def test_privileged_policies_say_so(tmp_path):
    env = CountingEnv()
    privileged = recurrent(env, actor_obs=("policy", "critic"))
    with pytest.raises(ValueError, match=r"reads \['truth'\], which only the critic sees; set use_critic_obs=True"):
        DemonstrationSaver(env, privileged, tmp_path)
    store = run_for(DemonstrationSaver(env, privileged, tmp_path, 8, use_critic_obs=True), 16)
    steps = store.read(0)
    assert torch.allclose(steps["act"], played(privileged, steps), atol=1e-6)


class OldStyle:
    """An old-style policy with a memory: acts by the sum of what it saw in the episode."""

    def __init__(self, width: int) -> None:
        self.seen, self.width = torch.zeros(3), width

    def act_inference(self, observations):
        assert observations.shape == (3, self.width)
        self.seen = self.seen + observations[:, -1]
        return self.seen[:, None].expand(-1, 2)

    def act(self, observations):
        return self.act_inference(observations) + 100.0

    def reset(self, dones):
        self.seen = torch.where(dones.bool(), 0.0, self.seen)


def test_long_episodes_by_hand_are_cut_at_the_right_step(tmp_path):
    saver = DemonstrationSaver(CountingEnv(2, endless=True), script, tmp_path, 4, max_trajectory_length=4)
    for step in range(13):  # buffers are saved by get_transition, before the next step is taken
        saver.get_transition()
        saver.add_transition(step)
    saver.close()
    store = TrajectoryStore(tmp_path)
    assert store.lengths() == [4] * 6
    for index in range(6):
        steps = store.read(index, obs_next=True)
        assert torch.equal(steps["obs_next"]["place"], steps["obs"]["place"] + torch.tensor([0.0, 0.0, 1.0]))


@pytest.mark.parametrize(("critic", "sample"), [(False, False), (True, False), (False, True)])
def test_an_old_style_policy_sees_a_flat_vector_and_is_told_of_ends(tmp_path, critic, sample):
    env = CountingEnv()
    policy = OldStyle(1 if critic else 7)
    saver = DemonstrationSaver(env, policy, tmp_path, 8, use_critic_obs=critic, demo_by_sample=sample)
    env.poison = (9, 0)  # an env that is started anew is an end as well
    store = run_for(saver, 24)
    assert len(store) > 6
    for index in range(len(store)):
        steps = store.read(index)
        seen = steps["obs"]["truth"][:, 0] if critic else steps["obs"]["depth"].flatten(1)[:, -1]
        assert torch.allclose(steps["act"][:, 0], seen.cumsum(0) + 100.0 * sample)


def test_actors_functions_and_nonsense(tmp_path):
    env = CountingEnv()
    store = run_for(DemonstrationSaver(env, RandomActor(BoxSpec(shape=(2,))), tmp_path, 8), 16)
    assert len(store) == len(ended(3, 16))
    for setting in ("use_critic_obs", "demo_by_sample"):
        with pytest.raises(ValueError, match=f"{setting} means nothing for a function"):
            DemonstrationSaver(env, script, tmp_path, **{setting: True})
    with pytest.raises(TypeError, match="str cannot act"):
        DemonstrationSaver(env, "policy", tmp_path)
    with pytest.raises(TypeError, match="DemonstrationSaver wants a VecEnv, found str"):
        DemonstrationSaver("env", script, tmp_path)
    with pytest.raises(ValueError, match="rollout_storage_length is at least 1"):
        DemonstrationSaver(env, script, tmp_path, 0)


def test_the_model_classes_of_the_old_library_work(tmp_path):
    env = CountingEnv()
    model = ActorCritic(num_actor_obs=3, num_critic_obs=3, num_actions=2, obs_segments={"place": (3,)})
    store = run_for(DemonstrationSaver(env, model, tmp_path, 8), 16)
    with torch.no_grad():
        assert torch.allclose(store.read(0)["act"], model.act_inference(store.read(0)["obs"]["place"]), atol=1e-6)
