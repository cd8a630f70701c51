"""`make demo` in small: everything it promises is there at the end."""

from __future__ import annotations

from dataclasses import replace

import imageio.v3 as imageio
import pytest
import torch

from striderl.cli import demo as demo_module
from striderl.cli.demo import demo
from striderl.recipes.quadruped import quadruped_demo

pytest.importorskip("mujoco", reason="the quadruped is simulated by MuJoCo")


@pytest.fixture(autouse=True)
def short_episodes(monkeypatch, one_operator_table):
    """Episodes of a second at most, and torch's threads as they were afterwards."""
    config = quadruped_demo()
    short = replace(
        config,
        env=replace(config.env, settings={"max_episode_length": 20}),
        collector=replace(config.collector, decorrelation_steps=10),
        num_threads=1,
    )
    monkeypatch.setattr("striderl.recipes.quadruped.quadruped_demo", lambda: short)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_the_demo_leaves_a_video_a_plot_and_a_policy(tmp_path, capsys):
    words = ["--steps", "768", "--envs", "16", "--episodes", "2", "--video-seconds", "0.2", "--runs", str(tmp_path)]
    assert demo(words) == 0
    text = capsys.readouterr().out
    (folder,) = (tmp_path / "quadruped").iterdir()
    assert "tracking error" in text and "onnxruntime differs by" in text and "all of it took" in text
    assert (folder / "export" / "policy.onnx").stat().st_size > 10_000
    assert (folder / "checkpoints").is_dir() and (folder / "metrics.csv").is_file()
    assert imageio.imread(folder / "plots" / "curves.png").std() > 1
    if "video:              not here" not in text:  # without an OpenGL library there is no picture, and it is told
        assert len(imageio.imread(folder / "videos" / "walk.mp4")) > 3


@pytest.mark.slow
def test_what_cannot_be_made_is_told_and_the_rest_goes_on(tmp_path, capsys, monkeypatch):
    def broken(loaded, seconds):
        raise RuntimeError("no OpenGL library is installed")

    monkeypatch.setattr(demo_module, "_video", broken)
    monkeypatch.setattr(demo_module, "_exported", lambda loaded: "exported last")
    assert demo(["--steps", "384", "--envs", "16", "--episodes", "1", "--runs", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "not here: no OpenGL library" in text and "exported last" in text
