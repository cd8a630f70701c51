"""`OnPolicyRunner`: its calls, its files, its log."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import runner_configs
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "envs"))
from rsl_rl_fakes import GroupsFake, IsaacLabTwoFake, LeggedGymFake

from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.data import tree
from striderl.envs.classic_control.pendulum import Pendulum, PendulumConfig
from striderl.policies.policy import PolicyConfig
from striderl.policies.presets.encoder import EncoderActorCritic
from striderl.policies.stages import NormalizeObs, Remember
from striderl.training.experiment import assembly
from striderl.training.experiment.runner_checkpoints import checkpoint_path, load_state
from striderl.training.experiment.runner_config import RunnerConfig
from striderl.training.rsl_rl import reporting as trials
from striderl.training.rsl_rl.build import build_actor_critic, build_runner
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner
from striderl.training.rsl_rl.reporting import cost_of_transport, repository_of, store_code_state, velocity_rmsd

pytestmark = pytest.mark.filterwarnings("ignore:.*offers no seed:UserWarning")

T, N = 6, 4


class Measured(Pendulum):
    """A pendulum that says how well it follows, and what that costs."""

    def metrics(self) -> dict[str, torch.Tensor]:
        return {"tracking_error": torch.tensor([3.0, 4.0, 0.0, 0.0]), "CoT": torch.tensor([1.0, 2.0, torch.inf, 3.0])}


def make_env(kind: type[Pendulum] = Pendulum) -> Pendulum:
    return kind(N, config=PendulumConfig(max_episode_length=4))


def make_config(memory: bool = True, **settings: Any) -> RunnerConfig:
    stages: tuple[Any, ...] = (NormalizeObs(), Remember(type="gru", hidden_size=5)) if memory else (NormalizeObs(),)
    given = {
        "policy": PolicyConfig(actor=stages, critic=stages, actor_hidden_dims=(8,), critic_hidden_dims=(8,)),
        "algorithm": PPOConfig(num_learning_epochs=2, num_mini_batches=2, schedule="adaptive"),
        "num_steps_per_env": T,
        "seed": 5,
    }
    return RunnerConfig(**{**given, **settings})


def make_runner(log_dir: Any = None, *, env: Any = None, **settings: Any) -> OnPolicyRunner:
    return OnPolicyRunner(env or make_env(), make_config(**settings), log_dir)


def weights_of(runner: OnPolicyRunner) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in runner.alg.policy.state_dict().items()}


def same_training(one: OnPolicyRunner, other: OnPolicyRunner) -> bool:
    return tree.equal(one.alg.state_dict(), other.alg.state_dict())


# -- learning ----------------------------------------------------------------------------------------------------------


def test_the_attributes_that_scripts_read():
    runner = make_runner()
    assert runner.current_learning_iteration == 0 and not runner.is_distributed
    assert (runner.gpu_world_size, runner.gpu_global_rank) == (1, 0)
    assert runner.cfg["num_steps_per_env"] == T and runner.device == torch.device("cpu")
    assert runner.learn(2) == (None, None)
    assert runner.metrics_velrmsd is None and runner.current_learning_iteration == 2
    runner.current_learning_iteration = 7
    assert runner.current_learning_iteration == 7
    given = runner_configs.isaac_lab_two()
    assert OnPolicyRunner(IsaacLabTwoFake(), given).cfg is given


@pytest.mark.slow
@pytest.mark.slow
def test_a_long_training_on_the_cpu_is_compiled_beside_it_and_a_short_one_is_as_written(monkeypatch, tmp_path):
    monkeypatch.setattr(assembly, "switch_iteration", lambda *sizes: 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    long, short, written = (make_runner(memory=False, mode=mode) for mode in ("auto", "auto", "eager"))
    with closing(long.trainer):
        long.learn(3)  # less than three times the iterations before the switch
        assert long.trainer.switch is not None and long.trainer.switch.given_up and not long.trainer.switch.keys
        long.learn(9)
        assert long.trainer.switch.on and long.trainer.switch.at == 6 and long.trainer.switch.keys
    short.learn(6), short.learn(6), written.learn(12)
    compiled, *others = (
        [each.detach() for each in runner.alg.policy.parameters()] for runner in (long, short, written)
    )
    assert tree.equal(*others) and not tree.equal(compiled, others[0])
    for ours, theirs in zip(compiled, others[0]):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_learn_twice_is_learning_once():
    one, other = make_runner(), make_runner()
    one.learn(4)
    other.learn(1)
    other.learn(3)
    assert same_training(one, other)


def test_the_seed_decides_everything_and_the_users_generator_stays():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = make_runner()
    one.learn(1)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    other = make_runner()
    other.learn(1)
    assert same_training(one, other)
    assert not same_training(one, make_runner(seed=6))


def test_without_a_seed_torch_gives_one():
    runners = []
    for number in (1, 1, 2):
        torch.manual_seed(number)
        runners.append(make_runner(seed=None))
    assert runners[0].seed == runners[1].seed != runners[2].seed


def test_metrics_of_the_env_are_returned():
    # velocity: sqrt((9 + 16) / 4) = 2.5; transport: the mean of 1, 2 and 3, without the robot at rest
    runner = make_runner(env=make_env(Measured))
    assert runner.learn(1) == (2.5, 2.0)
    assert (runner.metrics_velrmsd, runner.metrics_CoT) == (2.5, 2.0)
    runner.metric_hooks["envs"] = lambda env: float(env.num_envs)
    assert runner.evaluation()["envs"] == 4.0
    assert velocity_rmsd(make_env()) is None and cost_of_transport(make_env()) is None


def test_metrics_of_an_rsl_rl_env_and_of_the_quadruped():
    class Walking(IsaacLabTwoFake):
        tracking_error, CoT = 0.5, torch.tensor([1.0, 2.0, 3.0])

    runner = OnPolicyRunner(Walking(), runner_configs.isaac_lab_two())
    assert runner.learn(1) == (pytest.approx(0.5), pytest.approx(2.0))


def test_episodes_may_begin_at_random_ages():
    runner = make_runner()
    ages = []
    runner.vec_env.reset(0)
    runner.evaluation = lambda: ages.append(runner.vec_env.episode_length_buf.clone())  # type: ignore[method-assign]
    runner.learn(1, init_at_random_ep_len=True)
    # after 6 steps of episodes of 4, episodes that all began at 0 would all be 2 steps old
    assert len(set(ages[0].tolist())) > 1
    by_hand = make_runner()
    for spelling in (by_hand.init_writer, by_hand.init_writter):
        by_hand.vec_env.reset(0)
        assert len(set(by_hand.vec_env.episode_length_buf.tolist())) == 1
        spelling(True)
        assert len(set(by_hand.vec_env.episode_length_buf.tolist())) > 1
    endless = Pendulum(N, config=PendulumConfig(max_episode_length=0))
    with pytest.raises(ValueError, match="this env has none"):
        make_runner(env=endless).learn(1, init_at_random_ep_len=True)


def test_a_gymnasium_vector_env_is_taken_as_it_is():
    gymnasium = pytest.importorskip("gymnasium", reason="wants gymnasium")
    env = gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="sync")
    runner = OnPolicyRunner(env, make_config())
    runner.learn(2)
    assert runner.get_inference_policy()({"obs": torch.zeros(4, 4)}).shape == (4,)


def test_counts_that_make_no_sense():
    runner = make_runner()
    for wrong in (-1, 2.5, True):
        with pytest.raises(ValueError, match="num_learning_iterations"):
            runner.learn(wrong)
    assert make_runner(max_iterations=2).learn() == (None, None)


# -- by hand -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("memory", [False, True])
def test_steps_by_hand_equal_learn(memory):
    one, other = make_runner(memory=memory), make_runner(memory=memory)
    one.learn(3)
    obs = critic_obs = None
    for iteration in range(2):
        for _ in range(T):
            obs, critic_obs, rewards, dones, infos = other.rollout_step(obs, critic_obs)
        losses, stats = other.learn_from_rollout()
        assert other.current_learning_iteration == iteration + 1
    assert rewards.shape == dones.shape == infos["time_outs"].shape == (N,)
    assert {"value_loss", "surrogate_loss", "entropy"} <= set(losses) and "kl" in stats
    other.learn(1)
    assert same_training(one, other)
    assert one.trainer.env_steps == other.trainer.env_steps and one.trainer.num_updates == other.trainer.num_updates


def test_steps_go_on_from_observations_of_somebody_else():
    runner = make_runner()
    runner.rollout_step()
    elsewhere = runner.vec_env.reset(3)
    stepped = runner.rollout_step(elsewhere)
    assert len(runner.storage) == N  # the rollout begins anew there
    assert torch.equal(runner.storage.data["obs"]["obs"][0], elsewhere["obs"])
    runner.rollout_step(stepped.obs, stepped.critic_obs)
    assert len(runner.storage) == 2 * N
    with pytest.raises(RuntimeError, match="the rollout is not full: 8 of 24"):
        runner.learn_from_rollout()


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_save_load_and_go_on_equals_not_stopping(tmp_path):
    one, other = make_runner(), make_runner(seed=9)
    one.learn(2)
    one.save(tmp_path / "model_2.pt", infos={"level": 3})
    one.learn(2)
    assert other.load(tmp_path / "model_2.pt") == {"level": 3}
    assert other.current_learning_iteration == 2
    other.learn(2)
    assert same_training(one, other)


def test_a_checkpoint_of_another_policy_changes_nothing(tmp_path):
    one, other = make_runner(), make_runner(memory=False)
    one.save(tmp_path / "model_0.pt")
    before = tree.copy(dict(other.alg.policy.state_dict()))
    with pytest.raises(ValueError, match=r"of another policy: .* in it and .* here.*Nothing was loaded"):
        other.load(tmp_path / "model_0.pt")
    for name, value in other.alg.policy.state_dict().items():
        assert torch.equal(value, before[name])


def test_checkpoints_are_written_every_so_often_and_at_the_end(tmp_path):
    runner = make_runner(tmp_path, save_interval=2)
    runner.learn(3)
    runner.learn(2)
    names = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("model"))
    assert names == ["model_0.pt", "model_2.pt", "model_4.pt"]  # rsl_rl counts iterations from 0
    assert load_state(tmp_path / "model_4.pt")["iter"] == 5
    runner.save(tmp_path / "model_4.pt")  # replaces what lies there
    runner.save(tmp_path / "folder")
    runner.save(tmp_path / "folder")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_folder_that_cannot_be_made_is_found_before_training(tmp_path):
    (tmp_path / "taken").write_text("a file")
    runner = make_runner(tmp_path / "taken", logger="none")
    with pytest.raises(FileExistsError, match="taken"):
        runner.learn(1)
    assert runner.current_learning_iteration == 0


def test_weights_without_the_optimiser(tmp_path):
    one, other = make_runner(), make_runner(seed=9)
    one.learn(2)
    one.save(tmp_path / "model")
    fresh = other.alg.updater.state_dict()
    other.load(tmp_path / "model", load_optimizer=False, map_location="cpu")
    assert tree.equal(weights_of(one), weights_of(other)) and other.current_learning_iteration == 2
    assert tree.equal(fresh, other.alg.updater.state_dict())


def test_the_actor_alone(tmp_path):
    one, other = make_runner(), make_runner(seed=9)
    one.learn(1)
    one.save(tmp_path / "model")
    before = weights_of(other)
    other.load(tmp_path / "model", load_cfg={"actor": True}, strict=True, map_location="cpu")
    after, source = weights_of(other), weights_of(one)
    for name in after:
        of_actor = name.partition(".")[0] in ("actor", "actor_body", "head")
        assert torch.equal(after[name], (source if of_actor else before)[name]), name
    assert other.current_learning_iteration == 0
    other.load(tmp_path / "model", {"critic": True, "iteration": True}, strict=False)
    assert tree.equal(weights_of(other), source) and other.current_learning_iteration == 1
    with pytest.raises(KeyError, match="Did you mean 'actor'"):
        other.load(tmp_path / "model", load_cfg={"actr": True})


def test_weights_of_a_loop_by_hand(tmp_path):
    one, other = make_runner(), make_runner(seed=9)
    torch.save({"model_state_dict": one.alg.policy.state_dict()}, tmp_path / "model.pt")
    other.load(tmp_path / "model.pt", load_optimizer=False)
    assert tree.equal(weights_of(one), weights_of(other))
    with pytest.raises(FileNotFoundError, match="nothing_here"):
        other.load(tmp_path / "nothing_here")


def test_weights_that_do_not_fit_are_named_or_left_out(tmp_path):
    wider = PolicyConfig(
        actor=(NormalizeObs(),), critic=(NormalizeObs(),), actor_hidden_dims=(9,), critic_hidden_dims=(8,)
    )
    one, other = make_runner(memory=False), make_runner(policy=wider, seed=9)
    one.save(tmp_path / "model")
    with pytest.raises(ValueError, match="actor_body"):
        other.load(tmp_path / "model", load_optimizer=False)
    other.load(tmp_path / "model", load_optimizer=False, strict=False)
    fitting = [name for name in weights_of(one) if name.startswith("critic_body")]
    assert fitting
    assert all(torch.equal(weights_of(one)[name], weights_of(other)[name]) for name in fitting)


def test_a_manipulator_decides_what_is_loaded(tmp_path):
    config = runner_configs.legged_gym()
    config["runner"] |= {"policy_class_name": "EncoderActorCritic", "ckpt_manipulator": "replace_encoder0"}
    config["policy"] |= {"encoder_component_names": ["obs"], "encoder_output_size": 3}
    one = OnPolicyRunner(LeggedGymFake(), config)
    one.learn(1)
    one.save(tmp_path / "model", infos="walks")
    config["seed"] = 9
    other = OnPolicyRunner(LeggedGymFake(), config, tmp_path / "second")
    before = weights_of(other)
    assert other.load(tmp_path / "model") == "walks"
    after, source = weights_of(other), weights_of(one)
    for name in after:
        assert torch.equal(after[name], (before if "Encode" in name else source)[name]), name
    assert checkpoint_path(tmp_path / "second", 1).is_file() and other.current_learning_iteration == 1
    keep_all = lambda source, own: own  # noqa: E731
    third = OnPolicyRunner(LeggedGymFake(), config)
    kept = weights_of(third)
    third.load(tmp_path / "model", manipulator=keep_all)
    assert tree.equal(kept, weights_of(third))
    with pytest.raises(KeyError, match="Did you mean 'replace_encoder0'"):
        third.load(tmp_path / "model", manipulator="replace_encoder1")


# -- playing -----------------------------------------------------------------------------------------------------------


def test_the_inference_policy_remembers_and_forgets():
    runner = make_runner()
    policy = runner.get_inference_policy(device="cpu")
    assert not runner.alg.policy.training
    obs = torch.randn(N, 3)
    first, second = policy(obs), policy(obs)
    assert not torch.equal(first, second)
    policy.reset(torch.tensor([0, 1, 0, 0]))
    third = policy(obs)
    assert torch.equal(third[1], first[1]) and not torch.equal(third[0], first[0])
    policy.reset()
    assert torch.equal(policy({"obs": obs}), first)
    runner.train_mode()
    assert runner.alg.policy.training


def test_groups_are_cut_into_components():
    class Segmented(GroupsFake):
        obs_segments = {"x": 1, "rest": 3}

    runner = OnPolicyRunner(Segmented(), runner_configs.rsl_rl_four())
    assert runner.alg.policy.actor_inputs.names == ("x", "rest")
    obs = torch.randn(3, 4)
    policy = runner.get_inference_policy()
    assert torch.equal(policy({"policy": obs}), policy(obs))
    with pytest.raises(KeyError, match="has no component 'x'"):
        policy({"critic": torch.zeros(3, 3)})
    with pytest.raises(TypeError, match="found list"):
        policy([1.0])


# -- the log -----------------------------------------------------------------------------------------------------------


def read_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_numbers_have_the_names_that_dashboards_know(tmp_path):
    env = IsaacLabTwoFake(num_envs=4)
    runner = OnPolicyRunner(env, runner_configs.isaac_lab_two(), tmp_path)
    runner.learn(3)
    runner.close()
    events = read_events(tmp_path)
    wanted = {"value", "surrogate", "entropy", "learning_rate"}
    assert {f"Loss/{name}" for name in wanted} <= set(events)
    assert {"Policy/mean_std", "Policy/kl", "Perf/total_fps", "Perf/collection_time", "Perf/learning_time"} <= set(
        events
    )
    # a rollout is 4 envs of 4 steps; learning from it and collecting it have speeds of their own
    for what in ("collection", "learning"):
        speeds = [number for _, number in events[f"Perf/{what}_fps"]]
        seconds = [number for _, number in events[f"Perf/{what}_time"]]
        assert [speed * time for speed, time in zip(speeds, seconds)] == pytest.approx([16.0] * 3, rel=1e-4)
    assert {"Train/mean_reward", "Train/mean_episode_length", "Train/mean_reward/time"} <= set(events)
    assert {"Episode/rew_x", "Episode/level"} <= set(events)
    assert [step for step, _ in events["Loss/value"]] == [1, 2, 3]
    assert events["Episode/level"][0][1] == 0.5


@pytest.mark.slow
def test_log_interval_and_a_runner_without_a_folder(tmp_path, caplog):
    runner = make_runner(tmp_path, log_interval=2)
    runner.learn(5)
    runner.close()
    assert [step for step, _ in read_events(tmp_path)["Loss/value"]] == [2, 4, 5]
    with caplog.at_level(logging.INFO, logger="striderl"):
        make_runner(None).learn(1)
    assert any("Learning iteration 0/1" in message and "Mean value loss" in message for message in caplog.messages)


def test_settings_without_a_meaning_are_listed(caplog):
    with caplog.at_level(logging.INFO, logger="striderl"):
        OnPolicyRunner(IsaacLabTwoFake(), runner_configs.isaac_lab_two())
    assert any("load_run" in message and "experiment_name" in message for message in caplog.messages)


# -- the state of the code ---------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_the_state_of_the_code_is_kept_with_the_run(tmp_path, caplog):
    repository = tmp_path / "walker"
    repository.mkdir()
    git(repository, "init", "-q")
    script = repository / "train.py"
    script.write_text("gain = 1\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "first")
    script.write_text("gain = 2\n")
    (repository / "new.py").write_text("")
    runner = make_runner(tmp_path / "log")
    runner.add_git_repo_to_log(script)
    runner.learn(1)
    text = (tmp_path / "log" / "git" / "walker.diff").read_text()
    head = subprocess.run(["git", "-C", str(repository), "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    assert text.startswith(f"# commit {head.strip()}") and "+gain = 2" in text and "?? new.py" in text
    git(repository, "stash", "-q")
    diff = tmp_path / "log" / "git" / "walker.diff"
    git(repository, "apply", str(diff))
    assert script.read_text() == "gain = 2\n"
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    assert repository_of(outside) is None
    assert store_code_state(tmp_path, [outside]) == [] and "no git repository" in caplog.text


# -- trials ------------------------------------------------------------------------------------------------------------


class FakeTrial:
    def __init__(self, prune_at: int) -> None:
        self.prune_at, self.reports = prune_at, []

    def report(self, value: float, step: int) -> None:
        self.reports.append((value, step))

    def should_prune(self) -> bool:
        return len(self.reports) >= self.prune_at


def test_a_trial_is_told_the_velocity_error_and_may_end_the_run(monkeypatch):
    monkeypatch.setattr(trials.importlib.util, "find_spec", lambda name: None)
    trial, runner = FakeTrial(2), make_runner(env=make_env(Measured))
    assert runner.learn(5, trial=trial) == (2.5, 2.0)
    assert trial.reports == [(2.5, 1), (2.5, 2)] and runner.current_learning_iteration == 2


def test_without_a_metric_the_trial_is_told_the_return():
    trial, runner = FakeTrial(99), make_runner()
    runner.learn(2, trial=trial)
    assert [step for _, step in trial.reports] == [1, 2]
    assert trial.reports[-1][0] == runner.trainer.record.metrics["collect/return_mean"]


def test_optuna_is_told_with_its_own_exception(monkeypatch):
    class TrialPruned(Exception):  # noqa: N818  (Optuna's name)
        pass

    fake = type(sys)("optuna")
    fake.TrialPruned = TrialPruned
    monkeypatch.setitem(sys.modules, "optuna", fake)
    monkeypatch.setattr(trials.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(TrialPruned, match="after iteration 1"):
        make_runner().learn(3, trial=FakeTrial(1))


# -- by name -----------------------------------------------------------------------------------------------------------


def test_runners_and_policies_by_name():
    config = runner_configs.isaac_lab_two()
    runner = build_runner("rsl_rl.runners:OnPolicyRunner", IsaacLabTwoFake(), config)
    assert isinstance(runner, OnPolicyRunner) and runner.log_dir is None
    with pytest.raises(ValueError, match="Did you mean 'OnPolicyRunner'"):
        build_runner("OnPolicyRuner", IsaacLabTwoFake(), config)
    settings = {"class_name": "x", "encoder_component_names": ["obs"], "encoder_output_size": 3}
    model = build_actor_critic(LeggedGymFake(), "EncoderActorCritic", settings)
    assert isinstance(model, EncoderActorCritic)
    assert model.act(torch.zeros(3, 4)).shape == (3, 2) and model.evaluate(torch.zeros(3, 3)).shape == (3, 1)
    with pytest.raises(TypeError, match="Did you mean 'init_noise_std'"):
        build_actor_critic(LeggedGymFake(), "ActorCritic", {"init_nois_std": 1.0})
