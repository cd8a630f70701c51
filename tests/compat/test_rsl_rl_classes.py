"""rsl_rl 5's own classes in `striderl.compat.rsl_rl`: what a program with changed imports meets first."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

import striderl.training
from striderl.compat.rsl_rl.algorithms import PPO, Distillation
from striderl.compat.rsl_rl.env import VecEnv
from striderl.compat.rsl_rl.models import CNNModel, MLPModel, RNNModel
from striderl.compat.rsl_rl.modules import BetaDistribution, EmpiricalNormalization, GaussianDistribution
from striderl.compat.rsl_rl.runners import DistillationRunner, OnPolicyRunner
from striderl.compat.rsl_rl.storage import RolloutStorage
from striderl.compat.rsl_rl.utils import LogWriter, resolve_callable, resolve_nn_activation, resolve_obs_groups

N, FEATURES, ACTIONS = 4, 5, 2


def observations() -> TensorDict:
    return TensorDict({"policy": torch.randn(N, FEATURES)}, batch_size=[N])


class Env(VecEnv):
    """The reward is -‖action‖²; an episode ends after six steps, half of them by the clock."""

    def __init__(self) -> None:
        self.num_envs, self.num_actions, self.max_episode_length = N, ACTIONS, 6
        self.episode_length_buf = torch.zeros(N, dtype=torch.long)
        self.device, self.cfg = "cpu", {"name": "env"}

    def get_observations(self) -> TensorDict:
        return observations()

    def step(self, actions):
        self.episode_length_buf += 1
        dones = self.episode_length_buf >= self.max_episode_length
        self.episode_length_buf[dones] = 0
        late = dones & (torch.arange(N) % 2 == 0)
        extras = {"time_outs": late.float(), "log": {"Reward/mean": torch.tensor(0.5), "height": 1.0}}
        return observations(), -actions.square().sum(-1), dones.float(), extras


def config(**algorithm: Any) -> dict[str, Any]:
    return {
        "num_steps_per_env": 8,
        "save_interval": 100,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 2, "num_mini_batches": 2, **algorithm},
        "actor": {
            "class_name": "MLPModel",
            "hidden_dims": [16],
            "distribution_cfg": {"class_name": "GaussianDistribution"},
        },
        "critic": {"class_name": "MLPModel", "hidden_dims": [16]},
    }


class Gated(MLPModel):
    """A model with a layer of its own in front of the others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gate = nn.Linear(FEATURES, FEATURES)
        self.calls = 0

    def get_latent(self, obs, masks=None, hidden_state=None):
        self.calls += 1
        latent = super().get_latent(obs, masks, hidden_state)
        return latent * torch.sigmoid(self.gate(latent))


class WithPenalty(PPO):
    """A loss of its own beside those of PPO."""

    def compute_losses(self, batch):
        loss, found = super().compute_losses(batch)
        penalty = self.actor.output_mean.square().mean()
        return loss + 0.1 * penalty, {**found, "penalty": penalty}


class Rows(LogWriter):
    """A writer that keeps everything in a list."""

    made: list[Rows] = []

    def __init__(self, log_dir: str, label: str) -> None:
        self.label, self.rows, self.stopped = label, [], False
        self.models: list[str] = []
        Rows.made.append(self)

    def add_scalar(self, tag, scalar_value, global_step):
        self.rows.append((tag, float(scalar_value), global_step))

    def save_model(self, model_path, it):
        self.models.append(model_path)

    def stop(self):
        self.stopped = True


# -- own classes by the config -----------------------------------------------------------------------------------------


def test_own_model_and_own_loss_by_the_config(tmp_path, capsys):
    """A layer that a model adds is learned and saved; a loss that an algorithm adds is learned and logged."""
    cfg = config(class_name=WithPenalty)
    cfg["actor"]["class_name"] = Gated
    cfg["logger"] = {"class_name": Rows, "label": "mine"}
    runner = OnPolicyRunner(Env(), cfg, str(tmp_path))
    before = runner.alg.actor.gate.weight.clone()
    runner.learn(2, init_at_random_ep_len=True)
    assert not torch.equal(before, runner.alg.actor.gate.weight)
    assert runner.alg.actor.calls == 2 * (8 + 2 * 2)
    writer = Rows.made[-1]
    tags = {tag for tag, _, step in writer.rows if step == 1}
    assert {"Loss/penalty", "Loss/value", "Loss/surrogate", "Train/mean_reward", "Policy/mean_std"} <= tags
    assert {"Reward/mean", "Episode/height", "Perf/total_fps"} <= tags
    assert writer.label == "mine" and writer.stopped
    assert [path.rpartition("/")[2] for path in writer.models] == ["model_0.pt", "model_1.pt"]
    printed = capsys.readouterr().out
    assert "Learning iteration 1/2" in printed and "Mean penalty loss:" in printed and "ETA:" in printed
    stored = torch.load(tmp_path / "model_1.pt", weights_only=True)
    assert {"gate.weight", "mlp.0.weight", "distribution.std_param"} <= set(stored["actor_state_dict"])
    assert stored["iter"] == 1 and stored["infos"] is None


def test_names_of_a_config_are_resolved():
    assert resolve_callable("rsl_rl.algorithms:PPO") is PPO
    assert resolve_callable("striderl.compat.rsl_rl.storage.RolloutStorage.Transition") is RolloutStorage.Transition
    assert resolve_callable("Distillation") is Distillation
    assert isinstance(resolve_nn_activation("crelu"), nn.CELU)
    with pytest.raises(ValueError, match="Could not resolve 'Nothing'"):
        resolve_callable("Nothing")
    with pytest.raises(ImportError, match="surely_missing"):
        resolve_callable("surely_missing.module.Class")
    with pytest.warns(UserWarning, match="'policy' is used"):
        assert resolve_obs_groups(observations(), {"actor": ["policy"]}, ["actor", "critic"])["critic"] == ["policy"]
    with pytest.raises(ValueError, match="names the observation 'camera'"):
        resolve_obs_groups(observations(), {"actor": ["camera"]}, ["actor"])


def test_a_config_of_an_earlier_generation_makes_the_runner_that_takes_it():
    first = {"runner": {"num_steps_per_env": 4}, "algorithm": {"num_mini_batches": 2}, "policy": {}}
    third = {"algorithm": {"class_name": "PPO"}, "policy": {"class_name": "ActorCritic"}, "num_steps_per_env": 4}
    model = {"class_name": "MLPModel", "hidden_dims": [8], "activation": "elu", "stochastic": True}
    fourth = {"algorithm": {"class_name": "PPO"}, "actor": model, "critic": {**model, "stochastic": False}}
    for cfg in (first, third, {**fourth, "num_steps_per_env": 4, "obs_groups": {}}):
        runner = OnPolicyRunner(Env(), cfg, device="cpu")
        assert isinstance(runner, striderl.training.OnPolicyRunner) and runner.config.num_steps_per_env == 4
    assert runner.get_inference_policy("cpu")(observations()).shape == (N, ACTIONS)

    class Mine(OnPolicyRunner):
        """A subclass would not be called from there."""

    with pytest.raises(KeyError, match=r"derive Mine from striderl\.training\.OnPolicyRunner"):
        Mine(Env(), third)


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_resumes_and_loads_in_parts(tmp_path):
    torch.manual_seed(0)
    runner = OnPolicyRunner(Env(), config())
    runner.learn(2)
    runner.save(tmp_path / "model.pt", infos={"note": 7})
    again = OnPolicyRunner(Env(), config())
    assert again.load(tmp_path / "model.pt") == {"note": 7}
    assert again.current_learning_iteration == 1 and again.alg.learning_rate == runner.alg.learning_rate
    for name, value in runner.alg.actor.state_dict().items():
        assert torch.equal(value, again.alg.actor.state_dict()[name])
    part = OnPolicyRunner(Env(), config())
    critic = copy.deepcopy(part.alg.critic.state_dict())
    part.load(tmp_path / "model.pt", load_cfg={"actor": True})
    assert part.current_learning_iteration == 0
    assert all(torch.equal(value, critic[name]) for name, value in part.alg.critic.state_dict().items())
    actions = part.get_inference_policy("cpu")(observations())
    assert actions.shape == (N, ACTIONS) and not part.alg.actor.training


def test_the_runner_of_this_library_reads_the_file(tmp_path):
    from striderl.training import OnPolicyRunner as LibraryRunner

    runner = OnPolicyRunner(Env(), config())
    runner.learn(1)
    runner.save(tmp_path / "model.pt")
    other = LibraryRunner(Env(), config())
    other.load(tmp_path / "model.pt")
    seen = observations()
    assert torch.allclose(runner.get_inference_policy()(seen), other.get_inference_policy()(seen), atol=1e-6)


def test_distillation_wants_its_teacher(tmp_path):
    teacher = OnPolicyRunner(Env(), config())
    teacher.save(tmp_path / "teacher.pt")
    cfg = config()
    cfg["algorithm"] = {"class_name": "Distillation", "gradient_length": 4, "learning_rate": 1e-2}
    cfg |= {"student": cfg.pop("actor"), "obs_groups": {"student": ["policy"], "teacher": ["policy"]}}
    cfg["teacher"] = copy.deepcopy(cfg["student"])
    runner = DistillationRunner(Env(), cfg)
    with pytest.raises(ValueError, match=r"runner\.load"):
        runner.learn(1)
    runner.load(tmp_path / "teacher.pt")
    assert runner.current_learning_iteration == 0
    seen = observations()
    assert torch.equal(runner.alg.teacher(seen), teacher.alg.actor(seen))
    before = (runner.alg.student(seen) - runner.alg.teacher(seen)).square().mean()
    runner.learn(20)
    assert (runner.alg.student(seen) - runner.alg.teacher(seen)).square().mean() < 0.5 * before
    with pytest.raises(ValueError, match="rnd_cfg has no effect"):
        Distillation(runner.alg.student, runner.alg.teacher, runner.alg.storage, rnd_cfg={"weight": 1.0})


# -- models and storage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_recurrent_minibatch_repeats_the_rollout(kind):
    """Padded trajectories with their stored hidden states give the values that the rollout computed."""
    torch.manual_seed(1)
    groups = {"actor": ["policy"], "critic": ["policy"]}
    sizes = {"hidden_dims": [8], "rnn_type": kind, "rnn_hidden_dim": 6}
    gaussian = {"class_name": GaussianDistribution}
    actor = RNNModel(observations(), groups, "actor", ACTIONS, distribution_cfg=gaussian, **sizes)
    critic = RNNModel(observations(), groups, "critic", 1, **sizes)
    alg = PPO(actor, critic, RolloutStorage("rl", N, 8, observations(), [ACTIONS]), num_mini_batches=2)
    env = Env()
    env.episode_length_buf = torch.tensor([0, 2, 4, 5])
    obs = env.get_observations()
    with torch.inference_mode():
        for _ in range(8):
            obs, rewards, dones, extras = env.step(alg.act(obs))
            alg.process_env_step(obs, rewards, dones, extras)
        alg.compute_returns(obs)
    for batch in alg.storage.recurrent_mini_batch_generator(2, 1):
        values = critic(batch.observations, masks=batch.masks, hidden_state=batch.hidden_states[1])
        assert torch.allclose(values, batch.values, atol=1e-6)
    assert set(alg.update()) == {"value", "surrogate", "entropy"}


def test_models_share_their_encoders():
    obs = TensorDict({"policy": torch.randn(N, 3), "image": torch.randn(N, 1, 8, 8)}, batch_size=[N])
    groups = {"actor": ["policy", "image"], "critic": ["image"]}
    actor = CNNModel(obs, groups, "actor", ACTIONS, [8], cnn_cfg={"output_channels": [2], "kernel_size": 3})
    critic = CNNModel(obs, groups, "critic", 1, [8], cnns=actor.cnns)
    critic(obs).sum().backward()
    assert all(weight.grad is not None for weight in actor.cnns.parameters())
    assert actor(obs).shape == (N, ACTIONS)
    scripted = torch.jit.script(actor.as_jit())
    assert torch.allclose(scripted(obs["policy"], [obs["image"]]), actor(obs), atol=1e-6)
    with pytest.raises(ValueError, match="use an MLPModel"):
        CNNModel(obs, {"actor": ["policy"]}, "actor", ACTIONS, cnn_cfg={})
    with pytest.raises(ValueError, match="Use a CNNModel"):
        MLPModel(obs, groups, "actor", ACTIONS)


def test_a_beta_density_integrates_to_one():
    # uniform: alpha = beta = 1 + softplus(-40) = 1 over [0, 4] has the density 1/4 everywhere
    distribution = BetaDistribution(1, action_range=(0.0, 4.0))
    distribution.update(torch.full((1, 2, 1), -40.0))
    assert distribution.log_prob(torch.tensor([[1.0]])).exp().item() == pytest.approx(0.25, abs=1e-5)
    assert distribution.mean.item() == pytest.approx(2.0)


def test_normalisers_learn_by_update_in_train_mode_alone():
    normalizer = EmpiricalNormalization([2], until=6)
    normalizer(torch.ones(4, 2))
    assert int(normalizer.count) == 0
    normalizer.update(torch.tensor([[0.0, 2.0], [2.0, 6.0]]))
    assert normalizer.mean.tolist() == [1.0, 4.0] and normalizer.std.tolist() == [1.0, 2.0]
    normalizer.eval()
    normalizer.update(torch.full((4, 2), 100.0))
    assert normalizer.mean.tolist() == [1.0, 4.0]


def test_settings_are_read_at_each_update():
    """An attribute that is set afterwards counts: no gradient clipping to zero, no learning at a rate of zero."""
    torch.manual_seed(0)
    alg = OnPolicyRunner(Env(), config(schedule="fixed")).alg
    alg.learning_rate = 0.0
    for group in alg.optimizer.param_groups:
        group["lr"] = 0.0
    before = copy.deepcopy(alg.actor.state_dict())
    obs = observations()
    for _ in range(8):
        alg.act(obs)
        alg.process_env_step(obs, torch.ones(N), torch.zeros(N), {})
    alg.compute_returns(obs)
    alg.num_learning_epochs = 1
    alg.update()
    assert all(torch.equal(value, before[name]) for name, value in alg.actor.state_dict().items())
    with pytest.raises(OverflowError, match="8 steps"):
        for _ in range(9):
            alg.act(obs)
            alg.process_env_step(obs, torch.ones(N), torch.zeros(N), {})
