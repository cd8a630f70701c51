"""TwoStageRunner: cloning from recordings, the hand-over, exact resume in and across the stages, and refusals."""

from __future__ import annotations

import copy
import json
import logging
from typing import Any

import pytest
import torch
from two_stage_cases import LENGTH, Follow, config, error_of, record

from striderl.algorithms.on_policy.dagger import DAgger
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.terms.distill import Distill, DistillConfig
from striderl.collect.teacher import RecordedTeacher, Sight, Teacher
from striderl.compat.st_rl import ppo as loop
from striderl.datasets.playback.dataset import RolloutDataset
from striderl.storage.rollout_presets import QueueRolloutStorage
from striderl.training.experiment.runner_config import PretrainSettings
from striderl.training.rsl_rl.build import build_runner
from striderl.training.rsl_rl.config_generations import read_train_config
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner
from striderl.training.rsl_rl.reporting import tags_of
from striderl.training.rsl_rl.two_stage_runner import TwoStageRunner

RECURRENT = {"class_name": "ActorCriticRecurrent", "rnn_type": "gru", "rnn_hidden_size": 8}
ON_DISK = {"class_name": "TPPO", "using_ppo": False, "distill_target": "mse_sum"}


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recording") / "demos"
    record(folder, 24)
    return folder


def runner_of(given: dict[str, Any], num_envs: int = 8, **more: Any) -> TwoStageRunner:
    return TwoStageRunner(Follow(num_envs), given, **more)


def weights(runner: TwoStageRunner) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in runner.alg.policy.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


# -- learning ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_cloning_then_ppo(demos):
    given = config(demos, pretrain_iterations=30, policy={"init_noise_std": 0.3})
    runner = runner_of(given, num_envs=16)
    before = error_of(runner.alg.policy)
    runner.learn(30)
    cloned = error_of(runner.alg.policy)
    assert before > 0.3 and cloned < 0.1
    assert runner.stage == "rl" and runner.current_learning_iteration == 30
    runner.learn(8)
    assert runner.current_learning_iteration == 38 and runner.trainer.env_steps == 8 * 4 * 16
    # the demonstrator's six steps earn 1 each; samples with std 0.3 are 0.24 away on average
    assert error_of(runner.alg.policy) < cloned + 0.1
    earned = runner.trainer.record.metrics["collect/return_mean"]
    scratch = OnPolicyRunner(Follow(16), {**given, "pretrain_iterations": None, "pretrain_dataset": None})
    scratch.learn(8)
    assert earned > 6 * 0.68 and earned > scratch.trainer.record.metrics["collect/return_mean"] + 0.3


@pytest.mark.slow
def test_the_critic_learns_what_recordings_earned(demos):
    # V of the demonstrator with γ = 0 is the reward, 1 in every step
    algorithm = {"ppo": {"num_learning_epochs": 4, "num_mini_batches": 2, "learning_rate": 1e-2, "gamma": 0.0}}
    runner = runner_of(config(demos, algorithm=algorithm, pretrain_iterations=-1))
    runner.learn(15)
    policy = runner.alg.policy
    obs = {"target": torch.rand(64, 2) * 2 - 1, "clock": torch.rand(64, 1)}
    value = policy(obs, policy.initial_state(64), policy.settled(torch.zeros(64))).value
    assert float((value.detach() - 1.0).abs().mean()) < 0.2
    assert isinstance(runner.trainer.algorithm, PPO) and runner.trainer.record.metrics["train/surrogate_loss"] == 0.0


def test_what_is_logged_of_recordings(demos):
    runner = runner_of(config(demos))
    written: list[dict[str, float]] = []
    runner.writer.log = lambda step, tags: written.append(dict(tags))
    runner.learn(3)
    tags = written[-1]
    assert tags["Perf/dataset_num_trajs"] == 24.0 and tags["Perf/dataset_num_dataset_looped"] >= 0.0
    assert tags["Perf/dataset_return_mean"] == pytest.approx(LENGTH) and "Train/mean_reward" not in tags
    assert tags["Loss/distillation_loss"] > 0.0
    runner.learn(4)
    assert "Train/mean_reward" in written[-1] and "Perf/dataset_num_trajs" not in written[-1]
    assert "Train/mean_reward" in tags_of(runner.trainer.record)


@pytest.mark.slow
def test_a_recurrent_student_learns_by_dagger_from_disk(demos):
    given = config(demos, policy=RECURRENT, algorithm={**ON_DISK, "buffer_dilation_ratio": 2.0}, pretrain_iterations=-1)
    runner = runner_of(given)
    runner.learn(16)
    assert isinstance(runner.trainer.algorithm, DAgger) and isinstance(runner.storage, QueueRolloutStorage)
    assert runner.stage == "pretrain" and error_of(runner.alg.policy) < 0.15


# -- the hand-over -----------------------------------------------------------------------------------------------------


def test_the_hand_over_keeps_the_policy_and_nothing_else(demos):
    given = config(demos, algorithm={"ppo": {"learning_rate": 5e-3, "normalize_values": True}})
    runner = runner_of(given)
    runner.learn(3)
    first, learned, units = runner.alg, weights(runner), runner.alg.value_normalizer.state_dict()
    moments = first.updater.state_dict()["policy"]
    assert any(float(leaf.abs().sum()) > 0 for leaf in moments.values())
    runner.hand_over()
    assert same(weights(runner), learned)
    assert any("NormalizeObs" in name and float(value.sum()) > 0 for name, value in learned.items() if "count" in name)
    fresh = OnPolicyRunner(Follow(8), {**given, "pretrain_iterations": None, "pretrain_dataset": None})
    now, wanted = (each.alg.updater.state_dict()["policy"] for each in (runner, fresh))
    assert all(torch.equal(now[name], value) for name, value in wanted.items() if name != "parameters")
    assert int(runner.alg.iteration) == 0 and runner.current_learning_iteration == 3
    assert same(dict(runner.alg.value_normalizer.state_dict()), dict(units))
    assert not any(isinstance(term, Distill) for term in runner.alg.terms)
    runner.trainer.collector.ready()
    fresh.trainer.collector.ready()
    seen, begin = runner.trainer.collector.current_obs, fresh.trainer.collector.current_obs
    assert all(torch.equal(seen[name], value) for name, value in begin.items())
    runner.learn(1)


def test_hand_written_steps_across_the_hand_over(demos):
    runner = runner_of(config(demos, pretrain_iterations=1), num_envs=4)
    obs, critic_obs = {"target": torch.full((4, 2), 9.0)}, None
    for _ in range(4):
        obs, critic_obs, rewards, _, infos = runner.rollout_step(obs, critic_obs)
        assert bool((rewards == 1.0).all()) and infos["time_outs"].shape == (4,)
    losses, _ = runner.learn_from_rollout()
    assert "distillation_loss" in losses and runner.stage == "rl"
    # defect 37: what the recording showed last must not be taken for what the env shows
    obs, critic_obs, *_ = runner.rollout_step(obs, critic_obs)
    fresh = Follow(4).reset(3)
    assert torch.equal(obs["target"], fresh["target"])
    for _ in range(3):
        obs, critic_obs, *_ = runner.rollout_step(obs, critic_obs)
    assert "distillation_loss" not in runner.learn_from_rollout()[0]
    assert runner.current_learning_iteration == 2


def test_recordings_that_end_hand_over_early(demos, caplog):
    # 24 trajectories of 6 steps in 8 envs: 18 steps each, five rollouts of 4, two rows of the last not valid
    runner = runner_of(config(demos, pretrain_iterations=50, dataset={"dataset_loops": 1}))
    with caplog.at_level(logging.WARNING):
        runner.learn(7)
    assert runner.stage == "rl" and runner.current_learning_iteration == 7 and runner.trainer.env_steps == 2 * 4 * 8
    assert "the recordings are at their end after 5 iterations" in caplog.text


def test_without_a_second_stage_the_end_is_the_end(demos, tmp_path):
    given = config(demos, algorithm=ON_DISK, pretrain_iterations=-1, dataset={"dataset_loops": 1})
    runner = runner_of(given, log_dir=tmp_path)
    runner.learn(9)
    assert runner.stage == "pretrain" and runner.current_learning_iteration == 5
    # the first weights are there before anything is read: whoever records with this student can begin
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith("model")} == {"model_0.pt", "model_4.pt"}
    assert json.loads((tmp_path / "config.json").read_text())["train_cfg"] == json.loads(json.dumps(given))
    runner.learn(1)
    assert runner.current_learning_iteration == 5
    other = runner_of(given)
    other.load(tmp_path / "model_0.pt", load_optimizer=False)
    assert other.current_learning_iteration == 0


def test_what_others_record_meanwhile_is_learned_from(tmp_path):
    folder = tmp_path / "demos"
    record(folder, 4)
    runner = runner_of(config(folder, algorithm=ON_DISK, pretrain_iterations=-1))
    runner.learn(2)
    record(folder, 3, seed=1)
    runner.learn(4)
    assert runner.rollout_dataset.num_trajs == 7


# -- resuming ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("policy", [{}, RECURRENT])
def test_a_run_resumes_bit_for_bit_in_and_across_the_stages(demos, tmp_path, policy):
    given = config(demos, policy=policy, pretrain_iterations=3, dataset={"starting_frame_range": [0, 3]})
    whole = runner_of(given)
    whole.learn(5)
    begun, learned = runner_of(given), 0
    for first in (1, 3, 4):  # in the first stage, at the hand-over, in the second stage
        resumed = runner_of(given)
        begun.learn(first - learned)
        learned = first
        begun.save(tmp_path / f"at_{first}", infos={"note": first})
        assert resumed.load(tmp_path / f"at_{first}") == {"note": first}
        assert resumed.stage == ("pretrain" if first < 3 else "rl")
        resumed.learn(5 - first)
        assert same(weights(whole), weights(resumed)), first
        assert resumed.trainer.env_steps == whole.trainer.env_steps
    # and back: a runner that is in the second stage goes on in the first
    resumed.load(tmp_path / "at_1")
    resumed.learn(4)
    assert same(weights(whole), weights(resumed))


def test_weights_alone_leave_the_stage_as_it_is(demos, tmp_path):
    given = config(demos)
    begun, other = runner_of(given), runner_of(given)
    begun.learn(5)
    begun.save(tmp_path / "model")
    other.load(tmp_path / "model", load_optimizer=False)
    assert other.stage == "pretrain" and same(weights(begun), weights(other))


# -- hand-written loops ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("policy", [{}, RECURRENT])
def test_a_hand_written_loop_learns_the_same_from_a_dataset(demos, policy):
    given = config(demos, policy=policy, pretrain_iterations=-1, empirical_normalization=False)
    given["pretrain_dataset"]["dataset_loops"] = 1
    runner, other = runner_of(given), runner_of(given)
    other.begin_reading()
    term = next(term for term in other.alg.terms if isinstance(term, Distill))
    alg = loop.PPO(
        copy.deepcopy(other.alg.policy),
        config=other.alg.config,
        terms=[Distill(RecordedTeacher(), term.config)],
        seed=other.seed,
    )
    alg.init_storage(8, 4)
    dataset = RolloutDataset(num_envs=8, seed=other.seed, **given["pretrain_dataset"])
    for iteration in range(4):  # in the fifth rollout the recordings end
        for _ in range(4):
            transition, infos = dataset.get_transition_batch()
            alg.collect_transition_from_dataset(transition, infos)
        following = {**transition.next_observation, **transition.next_privileged_observation}
        alg.compute_returns(following, following)
        losses, _ = alg.update(iteration)
        runner.learn(1)
        assert float(losses["distillation_loss"]) > 0.0
        found = alg.policy.state_dict()
        assert all(torch.equal(found[name], value) for name, value in weights(runner).items())


def test_labels_are_learned_whoever_teaches_and_by_nobody_else(demos):
    dataset = RolloutDataset(demos, 2)
    transition, infos = dataset.get_transition_batch()
    policy = runner_of(config(demos, empirical_normalization=False), 2).alg.policy
    alone = loop.PPO(copy.deepcopy(policy))
    alone.init_storage(2, 4)
    with pytest.raises(ValueError, match="nothing learns labels"):
        alone.collect_transition_from_dataset(transition, infos)
    taught = loop.PPO(copy.deepcopy(policy), terms=[Distill(Teacher(policy), DistillConfig(teacher_act_prob=0.0))])
    taught.init_storage(2, 4)
    taught.collect_transition_from_dataset(transition, {**infos, "valid": torch.tensor([True, False])})
    stored = taught.storage.data
    assert torch.equal(stored["policy"]["distill"]["label"][0], transition.action)
    assert torch.equal(stored["act"][0], transition.action) and bool(stored["policy"]["distill"]["acted"][0].all())
    assert stored["valid"][0].tolist() == [True, False]
    dist, _, _ = taught.policy.act({**transition.observation}, {}, {})
    assert torch.equal(stored["policy"]["log_prob"][0], dist.log_prob(transition.action).detach())


def test_a_teacher_behind_a_recording_gives_its_latents_and_not_its_actions(demos):
    policy = runner_of(config(demos), 2).alg.policy
    sight = Sight(policy.obs_spec, tuple(policy.actor_inputs), False)
    recorded = RecordedTeacher(Teacher(policy))
    bound = recorded.bound(sight, policy.action_spec, torch.device("cpu"))
    recorded.tell(torch.tensor([[1.0, 2.0]]))
    said = bound.label({"target": torch.zeros(1, 2)}, bound.initial_state(1, torch.device("cpu")), {}, sample=False)
    assert said.actions.tolist() == [[1.0, 2.0]] and set(said.params) == {"mean", "std"}
    with pytest.raises(ValueError, match="want the teacher"):
        PPO(copy.deepcopy(policy), terms=[Distill(RecordedTeacher(), DistillConfig(target="kl"))])


# -- what does not fit -------------------------------------------------------------------------------------------------


def test_runners_and_configs_that_do_not_fit(demos):
    assert isinstance(build_runner("TwoStageRunner", Follow(2), config(demos)), TwoStageRunner)
    with pytest.raises(ValueError, match="use TwoStageRunner"):
        OnPolicyRunner(Follow(2), config(demos))
    with pytest.raises(ValueError, match="pretrain_dataset"):
        runner_of({**config(demos), "pretrain_dataset": None})
    with pytest.raises(ValueError, match="use OnPolicyRunner"):
        runner_of({**config(demos), "pretrain_dataset": None, "pretrain_iterations": None})
    with pytest.raises(ValueError, match="data_dir"):
        runner_of({**config(demos), "pretrain_dataset": {"dataset_loops": 1}})
    with pytest.raises(ValueError, match="which the runner knows"):
        runner_of(config(demos, dataset={"num_envs": 4}))
    with pytest.raises(TypeError, match="dataset_loop"):
        runner_of(config(demos, dataset={"dataset_loop": 4}))
    with pytest.raises(ValueError, match="teacher_ac_path"):  # the env wants a teacher in the second stage
        runner_of(config(demos, algorithm=ON_DISK))


def test_the_settings_of_older_configs_reach_their_places(demos):
    flat = config(demos, pretrain_target="l1", pretrain_weight=0.5, pretrain_learning_rate=1e-2)
    nested = {
        "runner": {
            "class_name": "TwoStageRunner",
            "policy_class_name": "ActorCritic",
            "algorithm_class_name": "PPO",
            **{name: value for name, value in flat.items() if name.startswith("pretrain")},
        },
        "policy": {},
        "algorithm": {},
    }
    for given in (flat, nested):
        found = read_train_config(given)
        assert found.runner_class_name == "TwoStageRunner" and found.pretrain == PretrainSettings(
            iterations=4, dataset=flat["pretrain_dataset"], target="l1", weight=0.5, learning_rate=1e-2
        )
    runner = runner_of(flat)
    runner.begin_reading()
    term = next(term for term in runner.alg.terms if isinstance(term, Distill))
    assert (term.config.target, term.config.weight, runner.alg.config.learning_rate) == ("l1", 0.5, 1e-2)
    assert (runner.alg.config.schedule, runner.alg.config.entropy_coef) == ("fixed", 0.0)


def test_a_recording_of_something_else_is_refused(demos, tmp_path):
    record(tmp_path / "blind", 4, without=("target",))
    with pytest.raises(ValueError, match="component 'target' was not recorded"):
        runner_of(config(tmp_path / "blind")).learn(1)


def test_a_recording_without_the_critics_view_trains_the_actor(tmp_path, caplog):
    record(tmp_path / "demos", 4, without=("clock",))
    runner = runner_of(config(tmp_path / "demos"))
    critic = {name: value for name, value in weights(runner).items() if name.startswith("critic_body")}
    with caplog.at_level(logging.WARNING):
        runner.learn(2)
    assert "clock were not recorded" in caplog.text and isinstance(runner.trainer.algorithm, DAgger)
    assert critic and all(torch.equal(weights(runner)[name], value) for name, value in critic.items())
    runner.learn(3)
    assert isinstance(runner.trainer.algorithm, PPO)


def test_a_recorded_teacher_wants_to_be_told(demos):
    runner = runner_of(config(demos, algorithm=ON_DISK, pretrain_iterations=-1))
    teacher = next(term.teacher for term in runner.alg.terms if isinstance(term, Distill))
    assert isinstance(teacher, RecordedTeacher)
    with pytest.raises(RuntimeError, match="tell"):
        runner.trainer.collector.collect(n_step=8)
