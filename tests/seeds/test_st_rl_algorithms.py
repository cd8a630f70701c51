"""st_rl's algorithms in hand-written loops: constructors, override points and saved state of the document."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from striderl.compat.st_rl import (
    APPO,
    ATPPO,
    GET_PROB_FUNC,
    PPO,
    TPPO,
    ActionLabelRollout,
    ActorCritic,
    ActorCriticRecurrent,
    AmpActorCritic,
    AmpActorCriticRecurrent,
    AmpRolloutStorage,
    EmpiricalNormalization,
    EncoderActorCritic,
    EstimatorPPO,
    EstimatorTPPO,
    RolloutStorage,
    StateAc,
    StateAcRecurrent,
)

T, N, OBS, CRITIC, ACT, MOTION = 5, 6, 4, 6, 2, 3
SMALL: dict[str, Any] = {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}
AMP: dict[str, Any] = {
    "amp_discriminator": {"input_dim": MOTION, "style_reward_coef": 1.0, "hidden_dims": [8], "task_reward_lerp": 0.5}
}
SEGMENTS = {
    "obs_segments": {"joints": (3,), "speed": (1,)},
    "critic_obs_segments": {"joints": (3,), "speed": (1,), "floor": (2,)},
}
ESTIMATOR = {
    "estimator_obs_components": ["joints"],
    "estimator_target_components": ["speed"],
    "estimator_kwargs": {"hidden_sizes": [8]},
}
TEACHER: dict[str, Any] = {
    "class_name": "ActorCritic",
    "num_actor_obs": CRITIC,
    "num_critic_obs": CRITIC,
    "num_actions": ACT,
    **SMALL,
}
LEARNS: dict[str, Any] = {"num_learning_epochs": 2, "num_mini_batches": 2}


def model(kind: Any = ActorCritic, **more: Any) -> Any:
    torch.manual_seed(0)
    recurrent = {"rnn_hidden_size": 5} if kind.is_recurrent else {}
    return kind(OBS, CRITIC, ACT, **SMALL, **recurrent, **more)


def infos_of(time_outs: Tensor) -> dict[str, Any]:
    return {
        "time_outs": time_outs,
        "observations": {"ref_obs": torch.randn(N, 1, MOTION)},
        "ref_motion": torch.randn(N, MOTION) + 1.0,
        "log": {},
    }


def loop(alg: Any, iterations: int = 2) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run st_rl's loop."""
    if alg.storage is None:
        alg.init_storage(N, T, [OBS], [CRITIC], [ACT])
    alg.train_mode()
    torch.manual_seed(1)
    for it in range(iterations):
        with torch.inference_mode():
            for at in range(T):
                alg.act(torch.randn(N, OBS), torch.randn(N, CRITIC))
                dones = torch.zeros(N)
                dones[at] = 1
                alg.process_env_step(torch.randn(N), dones, infos_of(dones))
            alg.compute_returns(torch.randn(N, CRITIC))
        losses, stats = alg.update(it)
    return losses, stats


KINDS: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any], set[str]]] = {
    "PPO": (PPO, ActorCritic, {}, {}, set()),
    "PPO recurrent": (PPO, ActorCriticRecurrent, {}, {}, set()),
    "TPPO": (TPPO, ActorCritic, {}, {"teacher_policy": TEACHER, "teacher_act_prob": 0.3}, {"distillation_loss"}),
    "TPPO recurrent": (
        TPPO,
        ActorCriticRecurrent,
        {},
        {"teacher_policy": TEACHER, "teacher_act_prob": 0.3},
        {"distillation_loss"},
    ),
    "DAgger": (
        TPPO,
        ActorCritic,
        {},
        {"teacher_policy": TEACHER, "using_ppo": False, "buffer_dilation_ratio": 2.0},
        {"distillation_loss"},
    ),
    "APPO": (
        APPO,
        AmpActorCritic,
        AMP,
        {"amp_obs_dim": MOTION},
        {"discriminator_expert_loss", "discriminator_policy_loss"},
    ),
    "APPO recurrent": (
        APPO,
        AmpActorCriticRecurrent,
        AMP,
        {},
        {"discriminator_expert_loss", "discriminator_grad_pen_loss"},
    ),
    "ATPPO": (
        ATPPO,
        AmpActorCritic,
        AMP,
        {"teacher_policy": TEACHER, "teacher_act_prob": 0.3},
        {"distillation_loss", "discriminator_policy_loss"},
    ),
    "EstimatorPPO": (EstimatorPPO, StateAc, {**SEGMENTS, **ESTIMATOR}, {}, {"estimator_loss"}),
    "EstimatorPPO recurrent": (EstimatorPPO, StateAcRecurrent, {**SEGMENTS, **ESTIMATOR}, {}, {"estimator_loss"}),
    "EstimatorPPO on the actor's memory": (
        EstimatorPPO,
        StateAcRecurrent,
        {**SEGMENTS, **ESTIMATOR, "use_actor_rnn": True},
        {},
        {"estimator_loss"},
    ),
    "EstimatorTPPO": (
        EstimatorTPPO,
        StateAc,
        {**SEGMENTS, **ESTIMATOR, "replace_state_prob": 0.5},
        {"teacher_policy": TEACHER, "teacher_act_prob": 0.3, "estimator_loss_func": "l1_loss"},
        {"estimator_loss", "distillation_loss"},
    ),
}


@pytest.mark.described("st_rl", 228, "update iterates over minibatches and returns average losses and stats.")
@pytest.mark.described("st_rl", 206, "losses has total_loss, the weighted sum of all.")
@pytest.mark.described("st_rl", 646, "APPO combines APPOAlgoMixin and PPO.")
@pytest.mark.described("st_rl", 664, "ATPPO combines APPOAlgoMixin and TPPO.")
@pytest.mark.described("st_rl", 963, "EstimatorPPO runs PPO with an estimation loss.")
@pytest.mark.described("st_rl", 973, "EstimatorTPPO runs TPPO with an estimation loss.")
@pytest.mark.parametrize("name", KINDS)
def test_every_algorithm_learns_in_a_hand_written_loop(name: str) -> None:
    algorithm, kind, settings, more, wanted = KINDS[name]
    alg = algorithm(model(kind, **settings), **LEARNS, **more)
    before = {key: value.clone() for key, value in alg.actor_critic.state_dict().items()}
    losses, stats = loop(alg)
    ppo = set() if name == "DAgger" else {"surrogate_loss", "value_loss", "entropy"}
    assert {*ppo, *wanted, "total_loss"} <= set(losses) and all(bool(torch.isfinite(each)) for each in losses.values())
    parts = {key: alg.loss_weight(key) * value for key, value in losses.items() if key != "total_loss"}
    torch.testing.assert_close(losses["total_loss"], sum(parts.values()), atol=1e-4, rtol=1e-4)
    changed = {key for key, value in alg.actor_critic.state_dict().items() if not torch.equal(value, before[key])}
    idle = (
        {key for key in before if "critic" in key or "memory_c" in key or key == "std"} if name == "DAgger" else set()
    )
    assert changed >= set(before) - idle - {key for key in before if key.startswith("critic_")}
    if isinstance(alg, (APPO, ATPPO)):
        assert {"style_reward", "task_reward"} <= set(stats)
    assert alg.num_skipped_updates == 0


@pytest.mark.described("st_rl", 148, "Acting stores action, value, log-probability, mean and std in the transition.")
@pytest.mark.described("rsl_rl", 11, "act infers actions and values from observations and records them.")
def test_act_fills_the_transition_in() -> None:
    alg = PPO(model(ActorCriticRecurrent))
    alg.init_storage(N, T, [OBS], [CRITIC], [ACT])
    assert isinstance(alg.transition, RolloutStorage.Transition) and isinstance(alg.storage, RolloutStorage)
    obs, critic_obs = torch.randn(N, OBS), torch.randn(N, CRITIC)
    actions = alg.act(obs, critic_obs)
    step = alg.transition
    assert step.actions is actions and step.observations is obs and step.critic_observations is critic_obs
    assert step.values.shape == (N, 1) and step.actions_log_prob.shape == (N,) and step.action_sigma.shape == (N, ACT)
    alg.process_env_step(torch.ones(N), torch.zeros(N), {})
    alg.act(obs, critic_obs)
    assert step.hidden_states.actor.hidden.shape == (1, N, 5), "before the step"


@pytest.mark.described(
    "st_rl",
    170,
    "A time-out adds the discounted value to its reward.",
    difference="the value of the last observation where infos have it, which V(s_t) stands for otherwise",
)
@pytest.mark.described("rsl_rl", 12, "process_env_step adds to the transition.")
@pytest.mark.parametrize("final", [False, True])
def test_time_outs_are_bootstrapped(final: bool) -> None:
    alg = PPO(model(), gamma=0.5)
    alg.init_storage(N, T, [OBS], [CRITIC], [ACT])
    critic_obs, last = torch.randn(N, CRITIC), torch.randn(N, CRITIC)
    alg.act(torch.randn(N, OBS), critic_obs)
    late = torch.tensor([1, 0, 1, 0, 0, 0])
    infos = {"time_outs": late, **({"final_critic_obs": last} if final else {})}
    alg.process_env_step(torch.ones(N), torch.tensor([1, 1, 1, 0, 0, 0]), infos)
    values = alg.actor_critic.evaluate(last if final else critic_obs).squeeze(-1).detach()
    torch.testing.assert_close(alg.storage.rewards[0, :, 0], 1.0 + 0.5 * values * late)
    assert alg.transition.rewards is None and alg.storage.step == 1


@pytest.mark.described("st_rl", 183, "compute_returns bootstraps from the value of the last observation.")
@pytest.mark.described("rsl_rl", 13, "compute_returns computes discounted values.")
def test_valuing_the_last_observation_leaves_the_memory() -> None:
    alg = PPO(model(ActorCriticRecurrent))
    alg.init_storage(N, 1, [OBS], [CRITIC], [ACT])
    alg.act(torch.randn(N, OBS), torch.randn(N, CRITIC))
    alg.process_env_step(torch.ones(N), torch.zeros(N), {})
    before = alg.actor_critic.get_hidden_states().critic.hidden.clone()
    alg.compute_returns(torch.randn(N, CRITIC))
    assert torch.equal(alg.actor_critic.get_hidden_states().critic.hidden, before)


@pytest.mark.described("st_rl", 253, "compute_losses recomputes log-probabilities and values of a minibatch.")
@pytest.mark.described("st_rl", 317, "The surrogate is the larger of the plain and the clipped one.")
@pytest.mark.parametrize("recurrent", [False, True])
def test_the_first_ratio_is_one(recurrent: bool) -> None:
    seen: list[Tensor] = []

    class Watching(PPO):
        def compute_losses(self, minibatch: Any) -> Any:
            losses, inter_vars, stats = super().compute_losses(minibatch)
            seen.append(inter_vars["ratio"].detach())
            assert inter_vars["surrogate"].shape == inter_vars["surrogate_clipped"].shape == inter_vars["ratio"].shape
            return losses, inter_vars, stats

    loop(Watching(model(ActorCriticRecurrent if recurrent else ActorCritic), num_mini_batches=N if recurrent else 3), 1)
    torch.testing.assert_close(seen[0], torch.ones_like(seen[0]), atol=1e-5, rtol=0.0)
    assert seen[0].shape == ((T, 1) if recurrent else (T * N // 3,)), "one env per minibatch stays [T, 1]"


# -- the document's own text as a user's class -------------------------------------------------------------------------


class AsWritten(PPO):
    """`compute_losses` and `update` as the document prints them, with imports changed."""

    def compute_losses(self, minibatch: Any) -> Any:
        self.actor_critic.act(
            minibatch.obs,
            masks=minibatch.masks,
            hidden_states=minibatch.hidden_states.actor if minibatch.hidden_states is not None else None,
        )
        actions_log_prob_batch = self.actor_critic.get_actions_log_prob(minibatch.actions)
        value_batch = self.actor_critic.evaluate(
            minibatch.critic_obs,
            masks=minibatch.masks,
            hidden_states=minibatch.hidden_states.critic if minibatch.hidden_states is not None else None,
        )
        mu_batch = self.actor_critic.action_mean
        sigma_batch = self.actor_critic.action_std
        entropy_batch = self.actor_critic.entropy
        if self.desired_kl != None and self.schedule == "adaptive":  # noqa: E711
            with torch.inference_mode():
                kl = torch.sum(
                    torch.log(sigma_batch / minibatch.old_sigma + 1.0e-5)
                    + (torch.square(minibatch.old_sigma) + torch.square(minibatch.old_mu - mu_batch))
                    / (2.0 * torch.square(sigma_batch))
                    - 0.5,
                    axis=-1,
                )
                kl_mean = torch.mean(kl)
                if kl_mean > self.desired_kl * 2.0:
                    self.learning_rate = max(1e-5, self.learning_rate / 1.5)
                elif kl_mean < self.desired_kl / 2.0 and kl_mean > 0.0:
                    self.learning_rate = min(1e-2, self.learning_rate * 1.5)
                for param_group in self.optimizer.param_groups:
                    param_group["lr"] = self.learning_rate
        ratio = torch.exp(actions_log_prob_batch - torch.squeeze(minibatch.old_actions_log_prob))
        surrogate = -torch.squeeze(minibatch.advantages) * ratio
        surrogate_clipped = -torch.squeeze(minibatch.advantages) * torch.clamp(
            ratio, 1.0 - self.clip_param, 1.0 + self.clip_param
        )
        surrogate_loss = torch.max(surrogate, surrogate_clipped).mean()
        if self.use_clipped_value_loss:
            value_clipped = minibatch.values + (value_batch - minibatch.values).clamp(-self.clip_param, self.clip_param)
            value_losses = (value_batch - minibatch.returns).pow(2)
            value_losses_clipped = (value_clipped - minibatch.returns).pow(2)
            value_loss = torch.max(value_losses, value_losses_clipped).mean()
        else:
            value_loss = (minibatch.returns - value_batch).pow(2).mean()
        return_ = dict(surrogate_loss=surrogate_loss, value_loss=value_loss)
        if entropy_batch is not None:
            return_["entropy"] = -entropy_batch.mean()
        return return_, dict(ratio=ratio), dict()

    def update(self, current_learning_iteration: Any = None) -> Any:
        from collections import defaultdict

        self.current_learning_iteration = current_learning_iteration
        mean_losses: Any = defaultdict(lambda: 0.0)
        average_stats: Any = defaultdict(lambda: 0.0)
        if self.actor_critic.is_recurrent:
            generator = self.storage.reccurent_mini_batch_generator(self.num_mini_batches, self.num_learning_epochs)
        else:
            generator = self.storage.mini_batch_generator(self.num_mini_batches, self.num_learning_epochs)
        for minibatch in generator:
            losses, _, stats = self.compute_losses(minibatch)
            loss: Any = 0.0
            for k, v in losses.items():
                loss += getattr(self, k + "_coef", 1.0) * v
                mean_losses[k] = mean_losses[k] + v.detach()
            mean_losses["total_loss"] = mean_losses["total_loss"] + loss.detach()
            for k, v in stats.items():
                average_stats[k] = average_stats[k] + v.detach()
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.actor_critic.parameters(), self.max_grad_norm)
            self.optimizer.step()
        num_updates = self.num_learning_epochs * self.num_mini_batches
        for k in mean_losses.keys():  # noqa: SIM118
            mean_losses[k] = mean_losses[k] / num_updates
        self.storage.clear()
        if hasattr(self.actor_critic, "clip_std"):
            self.actor_critic.clip_std(min=self.clip_min_std)
        return mean_losses, average_stats


@pytest.mark.described("st_rl", 355, "compute_losses returns losses, intermediate variables and stats.")
@pytest.mark.parametrize("recurrent", [False, True])
def test_the_documents_text_as_a_subclass_equals_the_class(recurrent: bool) -> None:
    found = {}
    for kind in (PPO, AsWritten):
        alg = kind(
            model(ActorCriticRecurrent if recurrent else ActorCritic),
            **LEARNS, entropy_coef=0.01, max_grad_norm=0.5, clip_min_std=[0.2, 0.3],
        )  # fmt: skip
        losses, _ = loop(alg)
        found[kind] = (alg.actor_critic.state_dict(), losses)
    ours, written = found[PPO], found[AsWritten]
    torch.testing.assert_close(dict(ours[1]), dict(written[1]), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(dict(ours[0]), dict(written[0]), atol=1e-5, rtol=1e-4)


@pytest.mark.described("st_rl", 276, "An adaptive schedule follows the KL divergence of old and new policy.")
@pytest.mark.parametrize("kind", [PPO, AsWritten])
@pytest.mark.parametrize(("desired", "rises"), [(10.0, True), (1e-7, False)])
def test_the_learning_rate_follows_the_kl(kind: Any, desired: float, rises: bool) -> None:
    alg = kind(model(), **LEARNS, schedule="adaptive", desired_kl=desired)
    loop(alg, 1)
    assert (alg.learning_rate > 1e-3) == rises and alg.learning_rate != 1e-3
    assert [group["lr"] for group in alg.optimizer.param_groups] == [alg.learning_rate]


def test_overrides_and_attributes_have_an_effect() -> None:
    class Bonus(PPO):
        bonus_coef = 10.0

        def compute_losses(self, minibatch: Any) -> Any:
            losses, inter_vars, stats = super().compute_losses(minibatch)
            losses["bonus"] = (self.actor_critic.action_mean - 3.0).square().mean()
            stats["mine"] = torch.ones(())
            return losses, inter_vars, stats

    alg = Bonus(model(), learning_rate=1e-2, num_learning_epochs=20)
    losses, stats = loop(alg, 3)
    assert float(losses["bonus"]) < 5.0 and float(stats["mine"]) == 1.0, "the mean is drawn to 3"
    alg = PPO(model())
    alg.gamma, alg.clip_param, alg.learning_rate = 0.0, 0.1, 0.0
    alg.optimizer.param_groups[0]["lr"] = 0.0
    before = alg.actor_critic.actor[0].weight.clone()
    loop(alg, 1)
    assert torch.equal(alg.actor_critic.actor[0].weight, before), "the optimiser is the user's to change"


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    class Broken(PPO):
        def compute_losses(self, minibatch: Any) -> Any:
            losses, inter_vars, stats = super().compute_losses(minibatch)
            return {name: value * math.nan for name, value in losses.items()}, inter_vars, stats

    alg = Broken(model(), num_mini_batches=2)
    before = alg.actor_critic.std.clone()
    loop(alg, 1)
    assert alg.num_skipped_updates == 2 and torch.equal(alg.actor_critic.std, before)


# -- normalisers, saving -----------------------------------------------------------------------------------------------


@pytest.mark.described(
    "st_rl",
    103,
    "init_obs_norm makes normalisers, or the identity without empirical_normalization.",
    difference="without normalisation nothing is raised",
)
def test_observation_normalizers() -> None:
    alg = PPO(model())
    alg.init_obs_norm(OBS, CRITIC)
    assert isinstance(alg.obs_normalizer, nn.Identity)
    alg = PPO(model(), empirical_normalization=True)
    alg.init_storage(N, 1, [OBS], [CRITIC], [ACT])
    assert isinstance(alg.obs_normalizer, EmpiricalNormalization) and alg.critic_obs_normalizer.mean.shape == (CRITIC,)
    obs, critic_obs = 4.0 + torch.randn(N, OBS), torch.randn(N, CRITIC)
    alg.act(obs, critic_obs)
    alg.process_env_step(torch.ones(N), torch.zeros(N), {})
    alg.compute_returns(critic_obs)
    with pytest.raises(
        RuntimeError, match=r"obs_normalizer has seen nothing: .*alg.obs_normalizer\(obs\) before alg.act"
    ):
        alg.update(0)
    alg.storage.clear()
    alg.train_mode()
    alg.act(alg.obs_normalizer(obs), alg.critic_obs_normalizer(critic_obs))
    alg.process_env_step(torch.ones(N), torch.zeros(N), {})
    alg.compute_returns(alg.critic_obs_normalizer(critic_obs))
    alg.update(0)
    torch.testing.assert_close(alg.obs_normalizer.mean, obs.mean(0))


@pytest.mark.described("st_rl", 377, "state_dict has the model, the optimiser, the scheduler and the normalisers.")
@pytest.mark.described("st_rl", 403, "load_state_dict restores them, so that training resumes.",
                       difference="the learning rate is restored as well; toggled normalisation raises")  # fmt: skip
@pytest.mark.described("rsl_rl", 151, "state_dict is the model, optimiser and scheduler state, for saving.")
@pytest.mark.described("rsl_rl", 162, "load_state_dict loads a network from a saved state.")
@pytest.mark.parametrize("name", ["PPO", "APPO", "EstimatorPPO recurrent"])
def test_saving_with_torch_and_loading(tmp_path: Path, name: str) -> None:
    algorithm, kind, settings, more, _ = KINDS[name]

    def made() -> Any:
        return algorithm(model(kind, **settings), **LEARNS, **more, schedule="adaptive")

    alg = made()
    loop(alg)
    run_state_dict = alg.state_dict()
    run_state_dict.update({"iter": 2, "infos": None})
    torch.save(run_state_dict, tmp_path / "model_2.pt")
    assert {"model_state_dict", "optimizer_state_dict"} <= set(run_state_dict)
    other = made()
    other.load_state_dict(torch.load(tmp_path / "model_2.pt", weights_only=True))
    assert other.learning_rate == alg.learning_rate != 1e-3
    torch.testing.assert_close(other.actor_critic.state_dict(), alg.actor_critic.state_dict())
    with pytest.raises(ValueError, match="empirical_normalization is True"):
        algorithm(model(kind, **settings), **more, empirical_normalization=True).load_state_dict(run_state_dict)


# -- teachers ----------------------------------------------------------------------------------------------------------


@pytest.mark.described("st_rl", 430, "GET_PROB_FUNC is a schedule: linear, exp or tanh.")
@pytest.mark.parametrize(
    ("option", "at"),
    [("linear", [1.0, 0.5, 0.0, 0.0]), ("exp", [1.0, 0.605, 0.366, 0.134]), ("tanh", [0.881, 0.731, 0.5, 0.119])],
)
def test_schedules(option: str, at: list[float]) -> None:
    schedule = GET_PROB_FUNC(option, 100)
    assert [schedule(x) for x in (0, 50, 100, 200)] == pytest.approx(at, abs=1e-3)


@pytest.mark.described("st_rl", 747, "The teacher is built from a dict with class_name and teacher_ac_path.")
@pytest.mark.described("st_rl", 753, "Without a path a warning says that the teacher is not trained.")
def test_a_teacher_from_a_dict(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(5)
    trained = PPO(ActorCritic(CRITIC, CRITIC, ACT, **SMALL))
    torch.save(trained.state_dict(), tmp_path / "model_9.pt")
    given = {**TEACHER, "teacher_ac_path": str(tmp_path / "model_9.pt")}
    alg = TPPO(model(), teacher_policy=given, teacher_policy_class_name="ActorCritic")
    obs = torch.randn(N, CRITIC)
    torch.testing.assert_close(alg.teacher_actor_critic.act_inference(obs), trained.actor_critic.act_inference(obs))
    assert not alg.teacher_actor_critic.training
    with caplog.at_level(logging.WARNING):
        TPPO(model(), teacher_policy=TEACHER)
    assert "no snapshot is loaded" in caplog.text
    with pytest.raises(ValueError, match="TPPO wants a teacher"):
        TPPO(model())


@pytest.mark.described("st_rl", 776, "TPPO stores rollouts with action labels.")
@pytest.mark.described("st_rl", 792, "The teacher's actions are labels, and replace the student's with a probability.",
                       difference="the stored log-probability is that of the executed action")  # fmt: skip
@pytest.mark.described("st_rl", 807, "Where an episode ended, it is drawn anew who acts.")
def test_the_teacher_labels_and_acts() -> None:
    alg = TPPO(model(), teacher_policy=TEACHER, teacher_act_prob=1.0, ppo={"gamma": 0.9})
    alg.init_storage(N, T, [OBS], [CRITIC], [ACT])
    assert isinstance(alg.storage, ActionLabelRollout) and alg.gamma == 0.9
    critic_obs = torch.randn(N, CRITIC)
    actions = alg.act(torch.randn(N, OBS), critic_obs)
    labels = alg.teacher_actor_critic.act_inference(critic_obs)
    torch.testing.assert_close(actions, labels)
    torch.testing.assert_close(alg.transition.action_labels, labels)
    torch.testing.assert_close(alg.transition.actions_log_prob, alg.actor_critic.get_actions_log_prob(actions))
    alg.teacher_act_prob = lambda iteration: 0.0
    alg.process_env_step(torch.ones(N), torch.tensor([1, 1, 0, 0, 0, 0]), {})
    assert alg.use_teacher_act_mask.tolist() == [False, False, True, True, True, True]


@pytest.mark.described("st_rl", 830, "Distillation targets are real, mse_sum, l1 and tanh.")
@pytest.mark.parametrize("target", ["real", "mse_sum", "l1", "tanh", "scaled_tanh", "max_log_prob"])
def test_the_student_becomes_the_teacher(target: str) -> None:
    torch.manual_seed(3)
    teacher = ActorCritic(OBS, OBS, ACT, **SMALL, mu_activation="tanh")
    alg = TPPO(
        model(mu_activation="tanh"), teacher_policy=teacher, using_ppo=False, distill_target=target, learning_rate=1e-2,
        num_learning_epochs=10, num_mini_batches=2, label_action_with_critic_obs=False,
    )  # fmt: skip
    obs = torch.randn(100, OBS)
    before = (alg.actor_critic.act_inference(obs) - teacher.act_inference(obs)).abs().mean()
    loop(alg, 8)
    assert (alg.actor_critic.act_inference(obs) - teacher.act_inference(obs)).abs().mean() < 0.6 * before


@pytest.mark.described("st_rl", 844, "Latents of the student are drawn to those of the teacher.")
def test_latents_are_distilled() -> None:
    encoder: dict[str, Any] = {
        "encoder_component_names": ["joints"],
        "encoder_kwargs": {"hidden_sizes": [8]},
        "encoder_output_size": 4,
    }
    names = {key: SEGMENTS["critic_obs_segments"] for key in SEGMENTS}
    teacher = EncoderActorCritic(CRITIC, CRITIC, ACT, **SMALL, **names, **encoder)
    alg = TPPO(
        model(EncoderActorCritic, **SEGMENTS, **encoder), teacher_policy=teacher, **LEARNS,
        distill_latent_obs_component_mapping={"joints": "joints"}, distill_latent_coef=0.5,
    )  # fmt: skip
    losses, _ = loop(alg)
    assert float(losses["distill_latent_joints"]) > 0.0 and alg.loss_weight("distill_latent_joints") == 0.5


def test_a_learning_rate_scheduler_and_resampled_memories() -> None:
    alg = TPPO(
        model(ActorCriticRecurrent), teacher_policy=TEACHER, **LEARNS, hidden_state_resample_prob=0.5,
        lr_scheduler_class_name="StepLR", lr_scheduler={"step_size": 1, "gamma": 0.5},
    )  # fmt: skip
    loop(alg, 2)
    assert alg.learning_rate == pytest.approx(2.5e-4) and "lr_scheduler_state_dict" in alg.state_dict()


# -- motions -----------------------------------------------------------------------------------------------------------


@pytest.mark.described("st_rl", 525, "APPO saves its actions as action_labels.")
@pytest.mark.described("st_rl", 552, "process_env_step reads ref_obs and ref_motion and mixes style and task reward.",
                       difference="one normaliser sees both motions, and the log keeps tensors")  # fmt: skip
def test_motions_and_style_rewards() -> None:
    alg = APPO(model(AmpActorCritic, **AMP), discriminator_loss_coef=1.0)
    alg.init_storage(N, T, [OBS], [CRITIC], [ACT])
    assert isinstance(alg.storage, AmpRolloutStorage)
    actions = alg.act(torch.randn(N, OBS), torch.randn(N, CRITIC))
    torch.testing.assert_close(alg.transition.action_labels, actions)
    infos = infos_of(torch.zeros(N))
    alg.process_env_step(torch.ones(N), torch.zeros(N), infos)
    style = infos["log"]["Episode_Reward/style_reward"]
    assert float(infos["log"]["Episode_Reward/task_reward"]) == 1.0
    torch.testing.assert_close(alg.storage.rewards[0].mean(), 0.5 * style + 0.5)
    alg.act(torch.randn(N, OBS), torch.randn(N, CRITIC))
    with pytest.raises(KeyError, match="Missing ref_obs in infos"):
        alg.process_env_step(torch.ones(N), torch.zeros(N), {})


@pytest.mark.described(
    "st_rl", 620, "The discriminator learns 1 for the expert and -1 for the policy, with a gradient penalty."
)
def test_the_discriminator_tells_motions_apart() -> None:
    gentle = {"amp_discriminator": {**AMP["amp_discriminator"], "discriminator_grad_pen": 0.1}}
    alg = APPO(model(AmpActorCritic, **gentle), num_learning_epochs=10, num_mini_batches=2, learning_rate=1e-2)
    assert not any(
        each is alg.discriminator.head.weight for group in alg.optimizer.param_groups for each in group["params"]
    )
    losses, _ = loop(alg, 6)
    robot, expert = torch.randn(400, MOTION), torch.randn(400, MOTION) + 1.0
    scores = [alg.discriminator(alg.ref_obs_normalizer.normalize(each)).mean() for each in (robot, expert)]
    assert scores[1] - scores[0] > 0.2 and float(losses["discriminator_grad_pen_loss"]) > 0.0
    alg.discriminator_loss_coef = 3.0
    assert alg.loss_weight("discriminator_expert_loss") == 3.0


@pytest.mark.described(
    "st_rl",
    595,
    "mimic_loss_coef rewards following the expert's motion.",
    difference="part of the reward as well: the loss of two stored tensors has no gradient",
)
def test_the_mimic_coefficient_changes_the_reward() -> None:
    rewards = []
    for weight in (0.0, 1.0):
        alg = APPO(model(AmpActorCritic, **AMP), mimic_loss_coef=weight)
        alg.init_storage(N, 1, [OBS], [CRITIC], [ACT])
        torch.manual_seed(2)
        alg.act(torch.randn(N, OBS), torch.randn(N, CRITIC))
        alg.process_env_step(torch.ones(N), torch.zeros(N), infos_of(torch.zeros(N)))
        rewards.append(alg.storage.rewards.mean())
    assert rewards[1] < rewards[0] - 0.5


@pytest.mark.described("st_rl", 925, "The estimation loss compares the estimate with the critic's observation.")
def test_the_estimator_learns_its_target() -> None:
    alg = EstimatorPPO(
        model(StateAc, **SEGMENTS, **ESTIMATOR), num_learning_epochs=20, num_mini_batches=2, learning_rate=1e-2
    )
    first = loop(alg, 1)[0]["estimator_loss"]
    torch.manual_seed(7)
    for it in range(6):
        for _ in range(T):
            critic_obs = torch.randn(N, CRITIC)
            critic_obs[:, 3] = critic_obs[:, :3].sum(-1)
            alg.act(critic_obs[:, :4], critic_obs)
            alg.process_env_step(torch.zeros(N), torch.zeros(N), {})
        alg.compute_returns(critic_obs)
        losses, _ = alg.update(it)
    assert losses["estimator_loss"] < 0.5 * first
    with pytest.raises(TypeError, match="a policy with an estimator, such as StateAc"):
        EstimatorPPO(model())


# -- from a config -----------------------------------------------------------------------------------------------------


class MotionEnv:
    """An env of st_rl's kind: observations with extras, and motions in infos."""

    num_envs, num_actions, device = N, ACT, "cpu"

    def get_observations(self) -> tuple[Tensor, dict[str, Any]]:
        return torch.randn(N, OBS), {"observations": {"critic": torch.randn(N, CRITIC)}}


@pytest.mark.described("st_rl", 2265, "algorithms.APPO(cfg, env) builds model, algorithm and storage.")
@pytest.mark.parametrize("form", ["flat", "nested"])
def test_an_algorithm_from_a_config_and_an_env(form: str) -> None:
    policy = {**SMALL, **AMP}
    cfg: dict[str, Any] = {
        "policy": {"class_name": "AmpActorCritic", **policy},
        "algorithm": {"class_name": "APPO", "gamma": 0.9, "discriminator_loss_coef": 2.0},
        "num_steps_per_env": T,
    }
    if form == "nested":
        cfg = {
            "policy": policy,
            "algorithm": {"gamma": 0.9, "discriminator_loss_coef": 2.0},
            "runner": {"policy_class_name": "AmpActorCritic", "algorithm_class_name": "APPO", "num_steps_per_env": T},
        }
    alg = APPO(cfg, MotionEnv())
    assert isinstance(alg.actor_critic, AmpActorCritic) and alg.gamma == 0.9 and alg.discriminator_loss_coef == 2.0
    assert alg.storage.critic_observations.shape == (T, N, CRITIC)
    loop(alg)
    with pytest.raises(TypeError, match=r"gama.*gamma"):
        PPO(model(), gama=0.9)


# -- an algorithm of one's own -----------------------------------------------------------------------------------------


class RewardWeighted(PPO):
    """Reward-weighted regression: likely what turned out well, weighted by exp(advantage)."""

    temperature = 1.0

    def compute_losses(self, minibatch: Any) -> Any:
        self.actor_critic.act(minibatch.obs)
        log_prob = self.actor_critic.get_actions_log_prob(minibatch.actions)
        value = self.actor_critic.evaluate(minibatch.critic_obs)
        weight = torch.exp(minibatch.advantages.squeeze(-1) / self.temperature).clamp(max=20.0)
        losses = dict(regression=-(weight * log_prob).mean(), value_loss=(value - minibatch.returns).pow(2).mean())
        return losses, dict(), dict(weight=weight.mean())


@pytest.mark.slow
@pytest.mark.described("st_rl", 24, "PPO is the foundation that other algorithms extend.")
def test_an_own_algorithm_in_these_words_learns_cartpole() -> None:
    from cart_pole import CartPole

    torch.manual_seed(0)
    env = CartPole(32)
    alg = RewardWeighted(
        ActorCritic(4, 4, 1, actor_hidden_dims=[32], critic_hidden_dims=[32], activation="tanh", init_noise_std=0.5),
        num_learning_epochs=10, num_mini_batches=4, learning_rate=3e-3, gamma=0.99, clip_min_std=0.1,
    )  # fmt: skip
    alg.init_storage(env.num_envs, 32, [4], [None], [1])
    obs, first = env.reset(), None
    for it in range(60):
        for _ in range(32):
            obs, rewards, dones, infos = env.step(alg.act(obs, obs))
            alg.process_env_step(rewards, dones, infos)
        alg.compute_returns(obs)
        alg.update(it)
        first = env.mean_length() if it == 2 else first
    assert first is not None and first < 60.0 and env.mean_length() > 120.0
