"""A run is not resumed, played or loaded on observations that have changed places, names or types (promise 6)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from run_cases import folder_at, tiny

from striderl.checkpoint.errors import LayoutMismatch
from striderl.cli.main import main
from striderl.data.specs import ComponentSpec, ObsSpec, torch_dtype
from striderl.envs import tasks
from striderl.envs.vec_env import VecEnv
from striderl.training.agent import Agent
from striderl.training.experiment.loading import load_run
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_folder import RunFolder
from striderl.training.experiment.seal import write_sealed

GOOD = {"place": ("float32", slice(0, 2)), "speed": ("float32", slice(2, 4))}
CHANGED = {
    "swapped": (
        {"speed": GOOD["speed"], "place": GOOD["place"]},
        "observation 'place' is at position 1, was at position 0",
    ),
    "renamed": ({"place": GOOD["place"], "velocity": GOOD["speed"]}, "observation 'speed' is missing"),
    "dtype": ({"place": GOOD["place"], "speed": ("float64", slice(2, 4))}, "dtype is 'float64', was 'float32'"),
}


class Parts(VecEnv):
    """CartPole whose four numbers come as components."""

    def __init__(self, inner, parts):
        self.inner, self.parts = inner, parts
        self.num_envs, self.device, self.action_spec = inner.num_envs, inner.device, inner.action_spec
        self.obs_spec = ObsSpec({name: ComponentSpec(shape=(2,), dtype=dtype) for name, (dtype, _) in parts.items()})
        self.info_spec, self.gives_final_obs = inner.info_spec, inner.gives_final_obs
        self.max_episode_length, self.step_dt = inner.max_episode_length, inner.step_dt

    def cut(self, obs):
        return {name: obs["obs"][:, columns].to(torch_dtype(dtype)) for name, (dtype, columns) in self.parts.items()}

    def reset(self, seed=None):
        return self.cut(self.inner.reset(seed))

    def step(self, actions):
        step = self.inner.step(actions)
        return step._replace(obs=self.cut(step.obs), final_obs=self.cut(step.final_obs))

    def reset_envs(self, mask):
        return self.cut(self.inner.reset_envs(mask))

    @property
    def episode_length_buf(self):
        return self.inner.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value):
        self.inner.episode_length_buf = value

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state):
        return self.cut(self.inner.load_state_dict(state))

    def render(self, env_index=0):
        return self.inner.render(env_index)


@pytest.fixture
def task(monkeypatch):
    """A task 'parts' whose components a test may change."""

    def use(parts):
        def build(num_envs, device, settings, first_env_index):
            return Parts(tasks.make("cartpole", num_envs=num_envs), parts)

        monkeypatch.setitem(tasks.TASKS, "parts", build)

    use(GOOD)
    return use


@pytest.fixture
def run_path(task, tmp_path):
    config = tiny(iterations=2)
    config = replace(config, env=replace(config.env, task="parts"))
    Run(config, folder_at(tmp_path / "run", config)).drive()
    return tmp_path / "run"


@pytest.mark.parametrize("change", CHANGED)
def test_a_changed_env_is_refused_by_name(change, task, run_path, capsys):
    before = {path: path.read_bytes() for path in run_path.rglob("*") if path.is_file() and path.suffix != ".csv"}
    parts, said = CHANGED[change]
    task(parts)
    run = Run(load_run(run_path).config, RunFolder(run_path))
    with pytest.raises(LayoutMismatch) as caught:
        run.restore()
    run.close()
    assert said in str(caught.value)
    for command in (["resume"], ["play", "--output", str(run_path / "video.gif")], ["evaluate"]):
        assert main([command[0], str(run_path), *command[1:]]) == 2
        assert said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before  # nothing was written over
    task(GOOD)
    assert main(["evaluate", str(run_path), "--episodes", "1"]) == 0


@pytest.mark.parametrize("change", ["swapped", "renamed"])
def test_an_agent_does_not_load_what_its_checkpoint_was_not_made_for(change, run_path):
    assert Agent.load(run_path, "last").predict({name: torch.zeros(2).numpy() for name in GOOD}) is not None
    path = run_path / "specs.json"
    specs = json.loads(path.read_text())
    place, speed = specs["observation"]["place"], specs["observation"]["speed"]
    changed = {"speed": speed, "place": place} if change == "swapped" else {"place": place, "velocity": speed}
    write_sealed(run_path, path.name, {**specs, "observation": changed})
    with pytest.raises(LayoutMismatch) as caught:
        Agent.load(run_path, "last")
    assert CHANGED[change][1] in str(caught.value)
