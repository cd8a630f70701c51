"""Films: what is recorded, at which speed; a film that cannot be made costs one warning and changes no weight."""

from __future__ import annotations

import logging
import math

import gymnasium
import numpy as np
import pytest
from training_cases import make_trainer, run, weights_of

from striderl.collect.actors.base import ScriptedActor
from striderl.collect.actors.policy_actor import GreedyActor, PolicyActor
from striderl.data import tree
from striderl.envs.classic_control import CartPole, Pendulum
from striderl.envs.gymnasium import GymnasiumEnv
from striderl.envs.tasks import make
from striderl.envs.toy import ProbeConfig, TimeLimit
from striderl.loggers.logger import Logger
from striderl.training.callbacks.log import Log
from striderl.training.callbacks.video import Video
from striderl.training.experiment.run import num_video_steps
from striderl.training.video import record_video

imageio = pytest.importorskip("imageio.v3", reason="a video needs imageio")


class Watching(Logger):
    patience = 20.0

    def __init__(self):
        self.films = []

    def log(self, step, numbers):
        pass

    def video(self, step, name, path):
        self.films.append((step, name, path))


class Striped(TimeLimit):
    """Draws the age of its episode as a grey picture with odd sides."""

    def render(self, env_index=0):
        return np.full((33, 47, 3), 40 * int(self.episode_length_buf[env_index]), np.uint8)


def pushes(obs):
    return next(iter(obs.values()))[:, 0].long() * 0


def test_a_film_shows_every_step_of_an_episode(tmp_path):
    # four steps, the env has no clock: a picture before the first step and one after each but the last,
    # after which the env shows the next episode
    env = Striped(2, config=ProbeConfig(num_steps=4))
    film = record_video(env, ScriptedActor(pushes), tmp_path / "deep" / "a.mp4", 100, whole_episode=True)
    assert (film.num_steps, film.num_frames, film.episodes, film.fps) == (4, 4, 1, 25.0)
    frames = imageio.imread(film.path)
    assert frames.shape == (4, 34, 48, 3), "odd sides are made even by repeating the edge"
    assert np.abs(frames.astype(int) - 40 * np.arange(4)[:, None, None, None]).max() <= 6
    assert [path.name for path in film.path.parent.iterdir()] == ["a.mp4"]


def test_a_film_may_go_on_over_episodes_and_ends_after_its_steps(tmp_path):
    env = Striped(1, config=ProbeConfig(num_steps=4))
    film = record_video(env, ScriptedActor(pushes), tmp_path / "a.gif", 10)
    assert (film.num_steps, film.num_frames, film.episodes, film.total_reward) == (10, 11, 2, 10.0)
    assert len(imageio.imread(film.path)) >= 5  # the format joins equal neighbours


@pytest.mark.slow
class Shown(gymnasium.Env):
    """A Gymnasium env that is to be shown with ten pictures a second."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, False, False, {}

    def render(self):
        return np.zeros((32, 32, 3), np.uint8)


def test_render_fps_of_a_gymnasium_env_is_the_speed_it_is_shown_at(tmp_path):
    with make(Shown, num_envs=1, filmed=True) as env:
        assert (env.step_dt, env.render_fps, env.shown_dt) == (0.0, 10.0, pytest.approx(0.1))
        assert num_video_steps(3.0, env.shown_dt) == 30
        film = record_video(env, ScriptedActor(pushes), tmp_path / "a.mp4", 8)
        assert film.num_frames == 9 and film.fps == pytest.approx(10.0)
        assert imageio.immeta(film.path)["fps"] == pytest.approx(10.0)
    assert GymnasiumEnv(gymnasium.make_vec("CartPole-v1", 2, "sync")).render_fps == 50.0
    assert GymnasiumEnv(type("Silent", (Shown,), {"metadata": {}}), 1).shown_dt == 0.0


def test_a_film_runs_at_the_speed_of_the_env(tmp_path):
    env = CartPole(1)
    assert env.step_dt == pytest.approx(0.02)
    # 50 steps are a second: 25 pictures of it, every second step
    film = record_video(env, ScriptedActor(pushes), tmp_path / "a.mp4", 8)
    assert film.num_frames == 5 and film.fps == pytest.approx(25.0)
    assert imageio.immeta(film.path)["fps"] == pytest.approx(25.0)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_film(tmp_path):
    trainer = make_trainer()
    run(trainer, 1)
    policy = trainer.algorithm.policy
    one, two, other = (
        record_video(CartPole(1), PolicyActor(policy), tmp_path / f"{name}.mp4", 10, seed)
        for name, seed in (("one", 5), ("two", 5), ("other", 6))
    )
    assert one.path.read_bytes() == two.path.read_bytes() != other.path.read_bytes()


def test_bad_films_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"writes \.mp4 and \.gif, found 'a.webm'"):
        record_video(CartPole(1), ScriptedActor(pushes), tmp_path / "a.webm", 5)
    with pytest.raises(ValueError, match="num_steps is at least 1"):
        record_video(CartPole(1), ScriptedActor(pushes), tmp_path / "a.mp4", 0)
    with pytest.raises(RuntimeError, match="has no picture: define render"):
        record_video(TimeLimit(1), ScriptedActor(pushes), tmp_path / "a.mp4", 5)
    assert list(tmp_path.iterdir()) == [], "nothing half-made is left"
    with pytest.raises(TypeError, match="wants a VecEnv of its own, found str"):
        Video("CartPole-v1", None, tmp_path)
    with pytest.raises(ValueError, match="not negative"):
        Video(CartPole(1), None, tmp_path, every=-1)


def test_a_picture_of_the_wrong_kind_is_named(tmp_path):
    class Floating(CartPole):
        def render(self, env_index=0):
            return np.zeros((4, 4), np.float32)

    with pytest.raises(ValueError, match=r"Floating.render: wanted uint8 \[height, width, 3\], found float32 \[4, 4\]"):
        record_video(Floating(1), ScriptedActor(pushes), tmp_path / "a.mp4", 5)


# -- the callback ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "gru"])
def test_films_reach_the_loggers_and_change_no_weight(kind, tmp_path):
    watching = Watching()

    def callbacks(policy):
        log = Log(watching)
        return [log, Video(CartPole(1), GreedyActor(policy), tmp_path, loggers=log.loggers, every=2, num_steps=6)]

    bare, filmed = (
        make_trainer(kind, plan={"total_iterations": 3}),
        make_trainer(kind, plan={"total_iterations": 3}, callbacks=callbacks),
    )
    list(bare)
    list(filmed)
    filmed.close()
    assert tree.equal(weights_of(bare), weights_of(filmed))
    wanted = [(step, "video/episode", tmp_path / f"step_{step}.mp4") for step in (64, 96)]
    assert watching.films == wanted, "every second iteration, and the end"
    for _, _, path in wanted:
        assert imageio.imread(path).ndim == 4


def test_how_long_a_film_may_be(tmp_path):
    assert Video(CartPole(1), None, tmp_path).num_steps == CartPole(1).max_episode_length
    assert Video(Pendulum(1), None, tmp_path, num_steps=7).num_steps == 7


def test_a_film_that_cannot_be_made_is_one_warning(tmp_path, caplog):
    class Blind(CartPole):
        def render(self, env_index=0):
            raise RuntimeError("no display and no EGL")

    watching = Watching()

    def callbacks(policy):
        return [Video(Blind(1), GreedyActor(policy), tmp_path / "films", loggers=[watching], every=1)]

    bare, filmed = make_trainer(), make_trainer(callbacks=callbacks)
    with caplog.at_level(logging.WARNING):
        run(bare, 4)
        run(filmed, 4)
    filmed.close()
    assert tree.equal(weights_of(bare), weights_of(filmed))
    warnings = [record.getMessage() for record in caplog.records if "video" in record.getMessage()]
    assert warnings == ["no video of step 32: RuntimeError: no display and no EGL. Training goes on"]
    assert not watching.films and not (tmp_path / "films").exists()


def test_a_full_disk_costs_the_film_only(tmp_path, caplog):
    (tmp_path / "films").write_text("a file stands where the folder should be")

    def callbacks(policy):
        return [Video(CartPole(1), GreedyActor(policy), tmp_path / "films", every=1, num_steps=3)]

    trainer = make_trainer(callbacks=callbacks)
    with caplog.at_level(logging.WARNING):
        records = run(trainer, 2)
    assert caplog.text.count("Training goes on") == 1
    assert not any(math.isnan(value) for record in records for value in record.metrics.values())
