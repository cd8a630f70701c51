"""Every public method of `compat.rsl_rl` and `compat.st_rl`: an override is called by the loops, or is a user's own.

The loops do what a user's program does with an object of the class; `test_overrides.py` has them for the other facades.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from test_overrides import derive, overridable, silent_overrides
from test_rsl_rl_classes import ACTIONS, Env, N, Rows, config, observations

from striderl.compat import st_rl
from striderl.compat.rsl_rl import runners
from striderl.compat.rsl_rl.algorithms import PPO, Distillation
from striderl.compat.rsl_rl.extensions import RandomNetworkDistillation, Symmetry
from striderl.compat.rsl_rl.models import CNNModel, MLPModel, RNNModel
from striderl.compat.rsl_rl.modules import (
    BetaDistribution,
    EmpiricalNormalization,
    GaussianDistribution,
    HeteroscedasticGaussianDistribution,
)
from striderl.compat.rsl_rl.storage import RolloutStorage
from striderl.compat.rsl_rl.utils.logger import Logger, LogWriter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "seeds"))
from test_st_rl_runners import AMP_CONFIG, SMALL, MotionEnv

# -- rsl_rl ------------------------------------------------------------------------------------------------------------

ACTOR, CRITIC, LEARNS = (config()[name] for name in ("actor", "critic", "algorithm"))
MEMORY = {"class_name": "RNNModel", "rnn_type": "gru", "rnn_hidden_dim": 6}
GROUPS = {"actor": ["policy"], "critic": ["policy"], "student": ["policy"], "teacher": ["policy"]}


def rsl_rl_loop(runner: Any = runners.OnPolicyRunner, ready: Callable[[Any], Any] | None = None, **parts: Any) -> None:
    """Train, save, load, play and export with rsl_rl 5's runner; `parts` are entries of its config."""
    cfg = {**config(), "save_interval": 1, "logger": {"class_name": Rows, "label": "x"}, **copy.deepcopy(parts)}
    with tempfile.TemporaryDirectory() as folder:
        made = runner(Env(), cfg, folder)
        if ready is not None:
            ready(made)
        made.learn(2, init_at_random_ep_len=True)
        made.save(f"{folder}/mine.pt")
        made.load(f"{folder}/mine.pt")
        with torch.inference_mode():
            made.get_inference_policy()(observations())
        made.export_policy_to_jit(folder)


def distillation_loop(runner: Any = runners.DistillationRunner, student: Any = ACTOR, kind: Any = Distillation) -> None:
    def give_weights(made: Any) -> None:
        made.alg.teacher_loaded = True

    algorithm = {"class_name": kind, "gradient_length": 4}
    rsl_rl_loop(runner, give_weights, algorithm=algorithm, student=student, teacher=ACTOR, obs_groups=GROUPS)


def model_loop(kind: type) -> None:
    """The model acts and values; a student's hidden state is cut off its graph."""
    more = {name: value for name, value in MEMORY.items() if issubclass(kind, RNNModel)} | {"class_name": kind}
    rsl_rl_loop(actor={**ACTOR, **more}, critic={**CRITIC, **more})
    distillation_loop(student={**ACTOR, **more})


def image_loop(kind: Any) -> None:
    """CNNModel in a loop by hand."""
    seen = TensorDict({"policy": torch.randn(N, 3), "image": torch.randn(N, 1, 8, 8)}, batch_size=[N])
    groups = {"actor": ["policy", "image"], "critic": ["policy", "image"]}
    settings = {"hidden_dims": [8], "cnn_cfg": {"output_channels": [2], "kernel_size": 3}}
    actor = kind(seen, groups, "actor", ACTIONS, distribution_cfg=ACTOR["distribution_cfg"], **settings)
    critic = kind(seen, groups, "critic", 1, **settings)
    steps_by_hand(PPO(actor, critic, RolloutStorage("rl", N, 4, seen, [ACTIONS]), num_mini_batches=1), seen)
    torch.jit.script(actor.as_jit())


def steps_by_hand(alg: Any, seen: Any) -> None:
    for _ in range(2):
        with torch.inference_mode():
            for step in range(4):
                alg.act(seen)
                alg.process_env_step(seen, torch.ones(N), torch.full((N,), float(step == 1)), {})
            alg.compute_returns(seen)
        alg.update()


def storage_loop(kind: Any) -> None:
    """A storage is handed to an algorithm: of one without memory, of one with, of a student."""
    seen = observations()
    gaussian = {"class_name": GaussianDistribution}
    sizes = {"hidden_dims": [8], "rnn_type": "gru", "rnn_hidden_dim": 6}
    for model, more in ((MLPModel, {"hidden_dims": [8]}), (RNNModel, sizes)):
        actor = model(seen, GROUPS, "actor", ACTIONS, distribution_cfg=gaussian, **more)
        critic = model(seen, GROUPS, "critic", 1, **more)
        steps_by_hand(PPO(actor, critic, kind("rl", N, 4, seen, [ACTIONS]), num_mini_batches=1), seen)
    student, teacher = (MLPModel(seen, GROUPS, name, ACTIONS, [8]) for name in ("student", "teacher"))
    steps_by_hand(Distillation(student, teacher, kind("distillation", N, 4, seen, [ACTIONS]), gradient_length=2), seen)


def novelty_loop(kind: Any) -> None:
    groups = {"rnd_state": ["policy"]}

    def give(made: Any) -> None:
        made.alg.rnd = kind(5, groups, 2, [8], [8], state_normalization=True, weight=1.0)

    rsl_rl_loop(ready=give)


def mirrored(env: Any, obs: Any, actions: Any) -> Any:
    both = None if obs is None else torch.cat([obs, obs.apply(torch.neg)])
    return both, None if actions is None else torch.cat([actions, -actions])


def symmetry_loop(kind: Any) -> None:
    def give(made: Any) -> None:
        made.alg.symmetry = kind(made.env, mirrored, use_data_augmentation=True, use_mirror_loss=True)

    rsl_rl_loop(ready=give)


def normalizer_loop(kind: Any) -> None:
    def give(made: Any) -> None:
        made.alg.actor.obs_normalizer = kind([5])

    rsl_rl_loop(ready=give)


def logger_loop(kind: Any) -> None:
    def give(made: Any) -> None:
        made.logger = kind(made.logger.log_dir, made.cfg, None, N, False, 1, 0, "cpu")

    rsl_rl_loop(ready=give)


RSL_RL: dict[type, Callable[[Any], Any]] = {
    runners.OnPolicyRunner: rsl_rl_loop,
    runners.DistillationRunner: distillation_loop,
    PPO: lambda kind: rsl_rl_loop(algorithm={**LEARNS, "class_name": kind}),
    Distillation: lambda kind: distillation_loop(kind=kind),
    MLPModel: model_loop,
    RNNModel: model_loop,
    CNNModel: image_loop,
    RolloutStorage: storage_loop,
    RandomNetworkDistillation: novelty_loop,
    Symmetry: symmetry_loop,
    EmpiricalNormalization: normalizer_loop,
    Logger: logger_loop,
    Rows: lambda kind: rsl_rl_loop(logger={"class_name": kind, "label": "x"}),
    **dict.fromkeys(
        (GaussianDistribution, HeteroscedasticGaussianDistribution, BetaDistribution),
        lambda kind: rsl_rl_loop(actor={**ACTOR, "distribution_cfg": {"class_name": kind}}),
    ),
}

# -- st_rl -------------------------------------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {"class_name": "ActorCritic", **SMALL}
ESTIMATOR: dict[str, Any] = {
    "estimator_obs_components": ["joints"],
    "estimator_target_components": ["scan"],
    "estimator_kwargs": {"hidden_sizes": [8]},
}
ENCODERS: dict[str, Any] = {
    "encoder_component_names": ["scan"],
    "encoder_kwargs": {"hidden_sizes": [8]},
    "encoder_output_size": 3,
    "critic_encoder_component_names": "shared",
}
AMP = AMP_CONFIG["policy"]
CELLS = {"rnn_hidden_size": 5}


def st_rl_loop(
    algorithm: Any = "PPO", policy: Any = PLAIN, runner: Any = st_rl.OnPolicyRunner, ready: Any = None, **more: Any
) -> None:
    """Train, save, load and play with st_rl's runner."""
    settings = {"class_name": algorithm, "num_learning_epochs": 1, **more}
    cfg = {**AMP_CONFIG, "save_interval": 1, "policy": policy, "algorithm": settings, "empirical_normalization": True}
    with tempfile.TemporaryDirectory() as folder:
        made = runner(MotionEnv(), cfg, folder)
        if ready is not None:
            ready(made)
        made.learn(2, init_at_random_ep_len=True)
        made.save(f"{folder}/mine.pt")
        made.load(f"{folder}/mine.pt")
        made.get_inference_policy()(torch.randn(N, 6))


def teacher() -> dict[str, Any]:
    return {"teacher_policy": st_rl.ActorCritic(8, 8, 2, actor_hidden_dims=[8], critic_hidden_dims=[8])}


def st_rl_storage_loop(kind: Any) -> None:
    """A storage in the place of the algorithm's own, of a policy without memory and of one with."""

    def give(made: Any) -> None:
        own = made.alg.storage
        shapes = own.obs_shape, own.privileged_obs_shape, own.actions_shape
        made.alg.storage = kind(own.num_envs, own.num_transitions_per_env, *shapes)
        made.alg.transition = kind.Transition()

    queue = issubclass(kind, st_rl.ActionLabelRollout)
    for policy in ({**PLAIN}, {**PLAIN, **CELLS, "class_name": "ActorCriticRecurrent"}):
        algorithm, more = ("TPPO", teacher()) if queue else ("PPO", {})
        st_rl_loop(algorithm, policy, ready=give, **more)


def st_rl_normalizer_loop(kind: Any) -> None:
    def give(made: Any) -> None:
        made.alg.obs_normalizer, made.alg.critic_obs_normalizer = kind([6]), kind([8])

    st_rl_loop(ready=give)


def st_rl_model_loop(algorithm: str, **settings: Any) -> Callable[[Any], Any]:
    return lambda kind: st_rl_loop(algorithm, {**SMALL, "class_name": kind, **settings})


ST_RL: dict[type, Callable[[Any], Any]] = {
    st_rl.OnPolicyRunner: lambda kind: st_rl_loop(runner=kind),
    st_rl.AmpPolicyRunner: lambda kind: st_rl_loop("APPO", AMP, runner=kind),
    st_rl.PPO: st_rl_loop,
    st_rl.TPPO: lambda kind: st_rl_loop(kind, **teacher()),
    st_rl.APPO: lambda kind: st_rl_loop(kind, AMP),
    st_rl.ATPPO: lambda kind: st_rl_loop(kind, AMP, **teacher()),
    st_rl.EstimatorPPO: lambda kind: st_rl_loop(kind, {**PLAIN, "class_name": "StateAc", **ESTIMATOR}),
    st_rl.EstimatorTPPO: lambda kind: st_rl_loop(kind, {**PLAIN, "class_name": "StateAc", **ESTIMATOR}, **teacher()),
    st_rl.ActorCritic: st_rl_model_loop("PPO"),
    st_rl.ActorCriticRecurrent: st_rl_model_loop("PPO", **CELLS),
    st_rl.AmpActorCritic: st_rl_model_loop("APPO", amp_discriminator=AMP["amp_discriminator"]),
    st_rl.EncoderActorCritic: st_rl_model_loop("PPO", **ENCODERS),
    st_rl.EncoderActorCriticRecurrent: st_rl_model_loop("PPO", **ENCODERS, **CELLS),
    st_rl.StateAc: st_rl_model_loop("EstimatorPPO", **ESTIMATOR),
    st_rl.StateAcRecurrent: st_rl_model_loop("EstimatorPPO", **ESTIMATOR, **CELLS),
    st_rl.RolloutStorage: st_rl_storage_loop,
    st_rl.ActionLabelRollout: st_rl_storage_loop,
    st_rl.EmpiricalNormalization: st_rl_normalizer_loop,
}

# -- the check ---------------------------------------------------------------------------------------------------------

LOOKED_AT: dict[type, str] = {
    # a user's program exports, and names the repositories whose state is kept
    runners.OnPolicyRunner: "export_policy_to_onnx add_git_repo_to_log",
    st_rl.OnPolicyRunner: "add_git_repo_to_log init_writter",  # the older name: see the test of both
    # called where several processes learn together
    PPO: "broadcast_parameters reduce_parameters",
    Distillation: "broadcast_parameters reduce_parameters",
    MLPModel: "as_onnx output_mean",
    CNNModel: "detach_hidden_state output_std",  # of a student; for the runner's log
    BetaDistribution: "mean",  # what output_mean reads
    RandomNetworkDistillation: "forward",  # raises: get_intrinsic_reward and compute_loss are what is called
    Logger: "logger_type",
    LogWriter: "save_file save_video",  # where there are states of repositories, and films
    # statistics for a user's program; what normalises reads the buffers, which are saved
    EmpiricalNormalization: "mean std inverse",
    st_rl.EmpiricalNormalization: "mean std inverse",
    st_rl.PPO: "test_mode",  # the older name: see the test of both
    st_rl.TPPO: "collect_transition_from_dataset",  # of TwoStageRunner, see tests/seeds/test_st_rl_runners.py
    # for a user's program; load_misaligned_state_dict asks for input_size_of
    st_rl.ActorCritic: "forward evaluate_actions load_misaligned_state_dict input_size_of",
    # of TPPO with labels of encoders, see tests/seeds/test_st_rl_algorithms.py
    st_rl.EncoderActorCriticMixin: "get_encoder_latent",
    st_rl.RolloutStorage: "get_statistics reccurent_mini_batch_generator",  # the older name: see the test of both
}
"""What nothing but a user's program calls, in addition to what the loops above do: its override is its own business."""

WITHOUT_MEMORY = (st_rl.ActorCritic, st_rl.AmpActorCritic, st_rl.EncoderActorCritic, st_rl.StateAc)
"""Models that are not asked for hidden states: a subclass with a memory sets `is_recurrent`."""

LOOPS = {**RSL_RL, **ST_RL}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOOPS, ids=lambda kind: f"{kind.__module__.split('.')[-1]}.{kind.__name__}")
def test_an_override_is_called_or_refused(kind: type, capsys: pytest.CaptureFixture[str]) -> None:
    memory = ("get_hidden_states", "set_hidden_states") if kind in WITHOUT_MEMORY else ()
    names = [name for name in overridable(kind, LOOKED_AT) if name not in memory]
    assert silent_overrides(kind, names, LOOPS[kind]) == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (st_rl.PPO, "test_mode"),
        (st_rl.PPO, "eval_mode"),
        (st_rl.OnPolicyRunner, "init_writter"),
        (st_rl.OnPolicyRunner, "init_writer"),
        (st_rl.RolloutStorage, "reccurent_mini_batch_generator"),
        (st_rl.RolloutStorage, "recurrent_mini_batch_generator"),
    ],
)
def test_an_override_under_the_older_or_the_newer_name_is_called(
    kind: type, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert silent_overrides(kind, [name], LOOPS[kind]) == []


def test_the_older_name_of_a_mode_sets_everything() -> None:
    class Mine(st_rl.APPO):
        def test_mode(self) -> None:
            super().test_mode()
            self.seen = True

    for kind, call in ((st_rl.APPO, "test_mode"), (Mine, "test_mode"), (Mine, "eval_mode")):
        alg = kind({**AMP_CONFIG, "empirical_normalization": True}, MotionEnv())
        alg.train_mode()
        modules = [alg.actor_critic, alg.obs_normalizer, alg.critic_obs_normalizer, alg.ref_obs_normalizer]
        assert all(module.training for module in modules)
        getattr(alg, call)()
        assert not any(module.training for module in modules)
        assert kind is st_rl.APPO or alg.seen


def test_other_names_of_what_is_read_cannot_be_overridden() -> None:
    for kind, name, way in (
        (st_rl.ActorCritic, "privileged_obs_segments", "give critic_obs_segments to the constructor"),
        (st_rl.StateAcRecurrent, "privileged_obs_segments", "give critic_obs_segments to the constructor"),
        (st_rl.RolloutStorage, "privileged_observations", "set critic_observations"),
    ):
        with pytest.raises(TypeError, match=rf"Mine{kind.__name__}.{name} would have no effect: .*{way}"):
            derive(kind, {name: property(lambda self: None)})
