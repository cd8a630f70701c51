"""A run's config: it survives JSON, and every mistake is named with its place."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest
from run_cases import tiny

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "envs"))
from rsl_rl_fakes import GroupsFake

from striderl.algorithms.on_policy.a2c import A2CConfig
from striderl.algorithms.on_policy.ppo import PPOConfig
from striderl.algorithms.on_policy.tppo import TPPOConfig
from striderl.algorithms.terms.estimation import EstimatorConfig
from striderl.algorithms.terms.rnd import RNDConfig
from striderl.envs.tasks import make
from striderl.envs.wrap_env import wrap_env
from striderl.policies.estimate import Estimate
from striderl.policies.policy import PolicyConfig
from striderl.policies.settings import EncoderSettings, PolicySettings, build_policy
from striderl.policies.stages import NormalizeObs, Remember
from striderl.recipes.table import RECIPES, recipe
from striderl.training.experiment.assembly import build_learner
from striderl.training.experiment.config_json import ConfigError
from striderl.training.experiment.loading import build_context
from striderl.training.experiment.run_config import (
    EnvSettings,
    ExpertSettings,
    LoggingSettings,
    RunConfig,
    read_run_config,
)
from striderl.training.experiment.runner_config import RunnerConfig, TeacherSettings
from striderl.training.rsl_rl.config_generations import read_train_config


@pytest.mark.parametrize("key", [*RECIPES, ("gymnasium:CartPole-v1", "ppo")])
def test_json_round_trip(key):
    config = replace(recipe(*key), seed=5)
    again = RunConfig.from_json(config.to_json())
    assert again == config
    assert type(again.algorithm) is type(config.algorithm)


def test_settings_of_a_task_come_back_as_they_were():
    config = tiny(env=EnvSettings(task="cartpole", settings={"max_episode_length": 7, "start_range": (0.1, 0.2)}))
    again = RunConfig.from_json(config.to_json())
    assert again.env.settings == {"max_episode_length": 7, "start_range": (0.1, 0.2)}


def test_a_policy_stage_by_stage_and_two_terms_of_a_kind_survive_json():
    stages = (NormalizeObs(), Estimate(obs_components=("policy",), target_components=("critic",)), Remember(type="gru"))
    terms = {
        "estimation": EstimatorConfig(stage="Estimate", loss="huber_loss", loss_kwargs={"delta": 0.5}),
        "estimation_2": EstimatorConfig(stage="actor/1_Estimate", weight=0.5),
    }
    config = tiny(policy=PolicyConfig(actor=stages, actor_hidden_dims=(8,)), terms=terms)
    again = RunConfig.from_json(config.to_json())
    assert again == config and again.policy.normalize_obs
    env = wrap_env(GroupsFake(num_envs=2))
    algorithm = build_learner(again, env).algorithm
    assert [(term.stage, term.weight) for term in algorithm.terms] == [("Estimate", 1.0), ("actor/1_Estimate", 0.5)]
    assert algorithm.policy.config == config.policy
    with pytest.raises(ValueError, match="described stage by stage"):
        build_learner(replace(config, terms={"estimation": EstimatorConfig(targets=("critic",))}), env)
    with pytest.raises(ValueError, match="targets have no effect"):
        EstimatorConfig(stage="Estimate", targets=("critic",))
    with pytest.raises(TypeError, match="sac wants PolicySettings"):
        build_learner(tiny("sac", policy=config.policy), make("pendulum", num_envs=1))


def changed(*places, value):
    data = json.loads(tiny().to_json())
    inner = data
    for place in places[:-1]:
        inner = inner[place]
    inner[places[-1]] = value
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed("algoritm", value={}), r"config has no setting 'algoritm'. Did you mean 'algorithm'\?"),
        (changed("algorithm", "clip_parm", value=0.1), r"algorithm has no setting 'clip_parm'. Did you mean 'clip_pa"),
        (changed("algorithm", "gamma", value="0.9"), r"algorithm.gamma: wanted float, found str '0.9'"),
        (changed("seed", value=2**63), r"seed is not negative and below 2\*\*63, found 9223372036854775808"),
        (changed("algorithm", "gamma", value=1.5), r"algorithm: gamma and lam are between 0 and 1"),
        (changed("env", "num_envs", value=2.5), r"config.env.num_envs: wanted int, found float 2.5"),
        (changed("env", "num_envs", value=True), r"config.env.num_envs: wanted int, found bool True"),
        (changed("policy", "kind", value="lstn"), r"config.policy.kind has no choice 'lstn'. Did you mean 'lstm'\?"),
        (changed("policy", "actor_hidden_dims", value=[4, "x"]), r"actor_hidden_dims.1: wanted int, found str 'x'"),
        (changed("plan", value=[1]), r"plan: wanted a table of settings, found list"),
        (changed("algorithm_name", value="pop"), r"striderl has no algorithm 'pop'. Did you mean 'ppo'\?"),
        (changed("logging", "trackers", value=["wandbb"]), r"no tracker 'wandbb'. Did you mean 'wandb'\?"),
        ([], "a config is a table of settings, found list"),
    ],
)
def test_mistakes_are_named(data, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_dict(data)


def test_text_that_is_not_json():
    with pytest.raises(ConfigError, match="not JSON"):
        RunConfig.from_json("{")


def mode_of(config):
    """How the gradient steps of a learner from replay are run."""
    env = make(config.env.task)
    return build_context(config, env.obs_spec, env.action_spec).own_mode(config.algorithm).mode


def test_settings_without_effect_are_refused():
    with pytest.raises(ValueError, match=r"expert.source has no effect: ppo has no expert"):
        tiny(expert=ExpertSettings(source="clips"))
    with pytest.raises(ValueError, match=r"collector.seed=3 has no effect"):
        tiny(collector=replace(tiny().collector, seed=3))
    with pytest.raises(ValueError, match="memory_size and memory_layers have no effect with kind='mlp'"):
        PolicySettings(memory_size=3)
    with pytest.raises(ValueError, match="init_std has no effect with head='beta'"):
        PolicySettings(head="beta", init_std=0.5)
    with pytest.raises(ValueError, match="wants a PPOConfig, found A2CConfig"):
        tiny(algorithm=A2CConfig())
    with pytest.raises(ValueError, match=r"no mode 'compild'. Did you mean 'compiled'\?"):
        tiny(mode="compild")
    with pytest.raises(KeyError, match=r"no term 'rdn'. Did you mean 'rnd'\?"):
        tiny(terms={"rdn": RNDConfig()})
    with pytest.raises(ValueError, match="terms: 'rnd' wants a RNDConfig, found PPOConfig"):
        tiny(terms={"rnd": PPOConfig()})
    with pytest.raises(ValueError, match="console_every >= 1"):
        LoggingSettings(console_every=0)


def test_reading_from_a_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no run folder"):
        read_run_config(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="not the folder of a run"):
        read_run_config(tmp_path)
    (tmp_path / "config.json").write_text('{"env": {"taks": "cartpole"}}')
    with pytest.raises(ConfigError, match=r"config.json: config.env has no setting 'taks'. Did you mean 'task'\?"):
        read_run_config(tmp_path)


def test_policies_are_built_as_told():
    with make("quadruped_rough", num_envs=1) as env:
        scan = EncoderSettings(component="height_scan", hidden_sizes=(8,), output_size=4)
        settings = PolicySettings(kind="gru", memory_size=6, actor_hidden_dims=(5,), encoders=(scan,), init_std=0.5)
        policy = build_policy(settings, env.obs_spec, env.action_spec)
        kinds = [type(stage).__name__ for stage in policy.config.actor]
        assert kinds == ["NormalizeObs", "Encode", "Remember"]
        assert policy.config.actor[2].hidden_size == 6 and policy.config.head_settings == {"init_std": 0.5}
        assert set(policy.critic_inputs) > set(policy.actor_inputs)  # the critic sees more
        wrong = replace(settings, encoders=(replace(scan, component="height_scn"),))
        with pytest.raises(KeyError, match=r"no component 'height_scn'. Did you mean 'height_scan'\?"):
            build_policy(wrong, env.obs_spec, env.action_spec)
    with make("cartpole", num_envs=1) as env, pytest.raises(ValueError, match=r"init_std=0.5 has no effect"):
        build_policy(PolicySettings(init_std=0.5), env.obs_spec, env.action_spec)


# -- no value is changed in silence ------------------------------------------------------------------------------------


def with_modes(run, algorithm):
    config = tiny("sac")
    return replace(config, mode=run, algorithm=replace(config.algorithm, mode=algorithm))


@pytest.mark.parametrize(
    ("run", "algorithm", "wanted"),
    [
        ("auto", "", "auto"),
        ("compiled", "", "compiled"),
        ("auto", "eager", "eager"),  # on a GPU, 'auto' would be another one
        ("auto", "compiled", "compiled"),
        ("eager", "eager", "eager"),
    ],
)
def test_a_mode_that_is_asked_for_is_kept(run, algorithm, wanted):
    assert mode_of(with_modes(run, algorithm)) == wanted


@pytest.mark.parametrize(("run", "algorithm"), [("compiled", "eager"), ("eager", "compiled"), ("graphed", "auto")])
def test_two_modes_that_differ_are_refused_with_both_names(run, algorithm):
    with pytest.raises(ConfigError, match=rf"mode='{run}' and algorithm.mode='{algorithm}'"):
        with_modes(run, algorithm)
    with pytest.raises(ConfigError, match=r"no mode 'eagre'. Did you mean 'eager'\?"):
        with_modes("auto", "eagre")


def test_a_config_of_before_modes_could_be_empty_goes_on_as_it_did(caplog):
    data = json.loads(replace(tiny("sac"), mode="compiled").to_json())
    data["algorithm"]["mode"] = "eager"  # what every such file has
    del data["schema"]
    assert mode_of(RunConfig.from_stored(data, "config.json")) == "compiled"
    assert "gives way to mode='compiled'" in caplog.text


def test_a_runner_has_one_seed_and_one_ppo():
    v1 = {"seed": 1, "runner": {"seed": 2}, "policy": {}, "algorithm": {}}
    with pytest.raises(ValueError, match=r"\['seed'\]=1 and train_cfg\['runner'\]\['seed'\]=2"):
        read_train_config(v1)
    own = TeacherSettings(teacher=object(), config=TPPOConfig(ppo=PPOConfig(gamma=0.5)))
    with pytest.raises(ValueError, match=r"teacher\.config\.ppo has no effect"):
        RunnerConfig(teacher=own)
    assert RunnerConfig(teacher=own, algorithm=PPOConfig(gamma=0.5)).algorithm.gamma == 0.5


# -- numbers that are none ---------------------------------------------------------------------------------------------


def float_settings(config, where=()):
    """Every setting of a config that is a real number, by its place."""
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            yield from float_settings(value, (*where, each.name))
        elif isinstance(value, Mapping):
            for name, part in value.items():
                yield from float_settings(part, (*where, each.name, name)) if is_dataclass(part) else ()
        elif isinstance(value, float):
            yield (*where, each.name)


@pytest.mark.parametrize("kind", ["rnd", "dqn", "sac"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_no_setting_is_nan_or_infinite(kind, number):
    config = tiny(kind)
    places = list(float_settings(config))
    assert ("stop", "value") in places and len(places) > 12
    for place in places:
        data = json.loads(config.to_json())
        inner = data
        for name in place[:-1]:
            inner = inner[name]
        inner[place[-1]] = number
        with pytest.raises(ConfigError) as found:
            RunConfig.from_json(json.dumps(data))
        assert place[-1] in str(found.value) or place[-2] in str(found.value), (place, str(found.value))


def test_settings_in_tables_and_lists_are_looked_at_too():
    with pytest.raises(ValueError, match=r"EnvSettings.settings.start_range.1: wanted a number, found nan"):
        EnvSettings(task="cartpole", settings={"start_range": (0.1, float("nan"))})
    with pytest.raises(ValueError, match=r"RNDConfig.weight: wanted a finite number, found nan"):
        RNDConfig(weight=float("nan"))


def test_a_range_may_be_open_at_one_end():
    open_end = {"healthy_z_range": (0.7, float("inf"))}
    env = make("hopper", num_envs=1, settings=EnvSettings(task="hopper", settings=open_end).settings)
    env.close()
    with pytest.raises(ValueError, match=r"reset_noise_scale: wanted a finite number, found inf"):
        make("hopper", num_envs=1, settings={"reset_noise_scale": float("inf")})
