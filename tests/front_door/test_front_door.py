"""The front door: `striderl.train`, `load`, `register`, `make`; parts of one's own from Python and the command line."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "envs"))
from rsl_rl_fakes import GroupsFake, IsaacLabTwoFake, LeggedGymFake

import striderl
from striderl.cli.main import main
from striderl.data.registry import ALGORITHMS, CALLBACKS, ENVS, LOGGERS, NETWORKS, TERMS
from striderl.envs.tasks import make
from striderl.envs.vec_env import VecEnv

HERE = Path(__file__).resolve().parent
QUIET = {"logging.console": "off", "evaluation.num_episodes": 2, "evaluation.num_envs": 2, "evaluation.every": 0}
FLAGS = ["--logging.console", "off", "--evaluation.num-episodes", "2", "--evaluation.every", "0"]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A working folder with a file of the user's own parts; what was imported from it is forgotten afterwards."""
    (tmp_path / "my_parts.py").write_text((HERE / "one_file.py").read_text())
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_parts", None)


def numbers(run: Path) -> set[str]:
    with (run / "metrics.csv").open() as file:
        return set(next(csv.reader(file)))


def last_step(run: Path) -> int:
    return int((run / "lines.txt").read_text().splitlines()[-1].split()[0])


def only_run(folder: Path) -> Path:
    (found,) = [path.parent for path in folder.glob("runs/*/*/config.json")]
    return found


# -- Python ------------------------------------------------------------------------------------------------------------


def test_train_save_and_load_are_three_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    agent = striderl.train("ppo", env="cartpole", steps=1024, num_envs=4, seed=3, settings=QUIET)
    action = agent.predict(np.zeros(4, np.float32))
    agent.save("mine")
    again = striderl.load("mine")
    assert again.predict(np.zeros(4, np.float32)) == action
    assert agent.run is not None and json.loads((agent.run / "config.json").read_text())["seed"] == 3
    with pytest.raises(FileExistsError, match="'mine' exists"):
        agent.save("mine")
    assert main(["evaluate", "mine", "--episodes", "2"]) == 0, "a saved agent is a run"


def envs_of(mine):
    import my_parts

    return {
        "task": "pendulum",
        "gymnasium id": "Pendulum-v1",
        "module:Class": "my_parts:PointRobot",
        "module:function": "my_parts:make_points",
        "gymnasium class by name": "my_parts:GymPoint",
        "class": my_parts.PointRobot,
        "gymnasium class": my_parts.GymPoint,
        "function": my_parts.make_points,
        "lambda": lambda: my_parts.GymPoint(size=0.5),
        "VecEnv": my_parts.PointRobot(num_envs=2),
        "gymnasium env": my_parts.GymPoint(),
        "vector env": gymnasium.vector.SyncVectorEnv([my_parts.GymPoint] * 2),
    }


@pytest.mark.parametrize("form", ["task", "gymnasium id", "module:Class", "module:function", "gymnasium class by name"])
def test_an_env_by_name(form, mine, monkeypatch):
    monkeypatch.syspath_prepend(str(mine))
    env = striderl.make(envs_of(mine)[form], num_envs=2)
    assert isinstance(env, VecEnv) and env.num_envs == 2 and len(next(iter(env.reset(0).values()))) == 2
    env.close()


@pytest.mark.parametrize(
    "form", ["module:Class", "class", "gymnasium class", "function", "lambda", "VecEnv", "gymnasium env", "vector env"]
)
def test_training_on_every_form_of_env(form, mine, monkeypatch):
    monkeypatch.syspath_prepend(str(mine))
    agent = striderl.train("ppo", env=envs_of(mine)[form], steps=200, settings=QUIET)
    assert agent.predict(np.zeros(2, np.float32)).shape == (2,)
    assert (only_run(mine) / "checkpoints").is_dir()


@pytest.mark.filterwarnings("ignore:.*offers no seed")
@pytest.mark.parametrize("generation", [LeggedGymFake, IsaacLabTwoFake, GroupsFake])
def test_an_env_of_any_rsl_rl_is_an_env(generation, mine):
    agent = striderl.train("ppo", env=generation(), steps=200, settings=QUIET)
    assert agent.run is not None and agent.run.is_dir()


def test_an_object_is_handed_over_again_on_resume(mine, monkeypatch):
    monkeypatch.syspath_prepend(str(mine))
    import my_parts

    first = striderl.train("ppo", env=my_parts.PointRobot(num_envs=2), steps=256, settings=QUIET)
    with pytest.raises(KeyError, match="handed over as an object"):
        striderl.train(resume=first.run, steps=512)
    again = striderl.train(resume=first.run, env=my_parts.PointRobot(num_envs=2), steps=512)
    assert again.run == first.run and len((first.run / "metrics.jsonl").read_text().splitlines()) >= 2


def test_mistakes_are_sentences(mine):
    with pytest.raises(TypeError, match="wants an env"):
        striderl.train("ppo")
    with pytest.raises(KeyError, match=r"no algorithm 'pop'. Did you mean 'ppo'\?"):
        striderl.train("pop", env="cartpole")
    with pytest.raises(KeyError, match=r"no task 'cartpol'. Did you mean 'cartpole'\?"):
        striderl.train("ppo", env="cartpol")
    with pytest.raises(ValueError, match=r"algorithm has no setting 'learning_rat'. Did you mean 'learning_rate'\?"):
        striderl.train("ppo", env="cartpole", settings={"algorithm.learning_rat": 1e-3})
    with pytest.raises(ValueError, match=r"no setting 'gamma'. Did you mean settings=\{'algorithm.gamma': 0.9\}\?"):
        striderl.train("ppo", env="cartpole", settings={"gamma": 0.9})
    with pytest.raises(ValueError, match="total_steps=500 are over before learning begins, after learning_starts=1000"):
        striderl.train("SAC", env="Pendulum-v1", steps=5e2)  # the names and numbers that other libraries write
    for given, words in {
        "learning_rate": r"Did you mean settings=\{'algorithm.learning_rate': 7\}\?",
        "learning_rat": r"Did you mean settings=\{'algorithm.learning_rate': 7\}\?",
        "total_steps": r"Did you mean steps=7\?",
        "setting": r"Did you mean 'settings'\?",
        "quux": r"It has algorithm, env, steps, .*settings=\{'algorithm.learning_rate': 1e-3\}",
    }.items():
        with pytest.raises(TypeError, match=rf"striderl.train has no argument '{given}'. {words}"):
            striderl.train("ppo", env="cartpole", **{given: 7})
    with pytest.raises(TypeError, match=r"no argument 'step'. Did you mean 'steps'"):
        striderl.train("ppo", env="cartpol", step=7)  # another mistake hides none
    with pytest.raises(KeyError, match="no module 'nothing'"):
        striderl.make("nothing:Env")
    with pytest.raises(KeyError, match=r"no name 'PointRobt'. Did you mean 'PointRobot'\?"):
        striderl.make("my_parts:PointRobt")
    with pytest.raises(KeyError, match=r"no kind of parts 'algorithm'. Did you mean 'algorithms'\?"):
        striderl.register("algorithm", "x", object)
    with pytest.raises(ValueError, match="sac learns real-valued actions; this task has one choice"):
        striderl.train("sac", env="cartpole", settings=QUIET)


def test_a_registered_name_is_a_name_everywhere(mine, monkeypatch):
    monkeypatch.syspath_prepend(str(mine))
    import my_parts

    for registry in (ALGORITHMS, ENVS):
        monkeypatch.setattr(registry, "registered", {})
    striderl.register("envs", "point", my_parts.PointRobot)
    striderl.register("algorithms", "signed", my_parts.SignedPPO)
    striderl.train("signed", env="point", steps=100, settings=QUIET)
    assert "train/signature" in numbers(only_run(mine))
    with pytest.raises(ValueError, match="envs has a 'point' already"):
        striderl.register("envs", "point", my_parts.GymPoint)


# -- the command line --------------------------------------------------------------------------------------------------


def test_one_file_outside_the_library_trains_from_the_command_line(mine):
    """An env, an algorithm, a term, a network, a logger and a callback, each by 'module:Class'; then every command."""
    words = ["train", "my_parts:PointRobot", "--algorithm", "my_parts:SignedPPO", "--terms", "my_parts:Bonus"]
    words += ["--policy.network", "my_parts:Wide", "--logging.trackers", "my_parts:LineLogger"]
    words += [
        "--callbacks",
        "my_parts:EveryRecord",
        "--steps",
        "256",
        "--num-envs",
        "2",
        "--seed",
        "1",
        "--name",
        "one",
    ]
    words += ["--algorithm.rounds", "7", "--terms.my-parts-Bonus.amount", "0.25", "--env.weights.effort", "0.3"]
    assert main([*words, *FLAGS]) == 0
    run = mine / "runs" / "my_parts_PointRobot" / "one"
    config = json.loads((run / "config.json").read_text())
    assert config["env"]["settings"] == {"weights": {"distance": 1.0, "effort": 0.3}}, "one weight, the other stays"
    assert config["terms"] == {"my_parts:Bonus": {"amount": 0.25}}
    assert {"train/signature", "mine/doubled"} <= numbers(run)
    assert last_step(run) >= 256
    for command in (["evaluate", str(run), "--episodes", "2"], ["export", str(run)], ["plot", str(run)]):
        assert main(command) == 0, command
    assert main(["resume", str(run), "--steps", "512"]) == 0
    assert last_step(run) >= 512


def test_a_run_that_names_a_module_is_not_imported_elsewhere(mine, monkeypatch):
    assert main(["train", "my_parts:PointRobot", "--algorithm", "my_parts:SignedPPO", "--steps", "96", *FLAGS]) == 0
    run = only_run(mine)
    striderl.load(run)
    monkeypatch.setenv("XDG_STATE_HOME", str(mine / "another user"))
    sys.modules.pop("my_parts")
    with pytest.raises(ValueError, match="names the module 'my_parts'"):
        striderl.load(run)
    assert "my_parts" not in sys.modules
    striderl.load(run, trust=True)


def test_every_term_shows_its_settings(capsys):
    assert main(["train", "quadruped", "--terms", *TERMS.names(), "--help"]) == 0
    shown = capsys.readouterr().out
    for flag in ("--terms.rnd.weight", "--terms.motion-prior.frames", "--terms.estimation.targets"):
        assert flag in shown
    for flag in (
        "--terms.symmetry.augment",
        "--terms.distill.target",
        "--terms.mimic.kind",
        "--terms.adversarial.loss",
    ):
        assert flag in shown
    assert "--env.reward-weights." in shown and "--algorithm.clip-param" in shown


def test_a_weight_of_a_task_changes_alone(mine):
    from striderl.cli.train_flags import overridden
    from striderl.recipes.table import recipe

    config = recipe("quadruped")
    before = make("quadruped").config.reward_weights
    name = next(iter(before))
    found = overridden(config, [f"--env.reward-weights.{name.replace('_', '-')}", "2.5"], prog="striderl train")
    env = make("quadruped", settings=found.env.settings)
    assert env.config.reward_weights == {**before, name: 2.5}
    assert overridden(config, [], prog="striderl train") == config


# -- the registries ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("registry", [ALGORITHMS, TERMS, LOGGERS], ids=lambda each: each.kind)
def test_every_line_resolves_within_its_row(registry):
    rows = {"algorithms": "striderl.algorithms.", "terms": "striderl.algorithms.terms.", "loggers": "striderl.loggers."}
    for name in registry.names():
        part = registry.get(name)
        assert part.__module__.startswith(rows[registry.kind]), name
        assert registry.name_of(part) == name
        if registry is not LOGGERS:
            assert part.summary and part.Config(), "its defaults are a config"


def test_a_name_has_one_config():
    configs = [ALGORITHMS.get(name).Config for name in ALGORITHMS.names()]
    assert len(set(configs)) == len(configs)


def test_parts_that_a_user_brings_have_no_built_in_names():
    assert ENVS.names() == CALLBACKS.names() == NETWORKS.names() == ()
