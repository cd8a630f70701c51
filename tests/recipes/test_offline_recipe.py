"""Datasets that the project makes itself: who acts in them, how much, and that what followed a step is true."""

from __future__ import annotations

import pytest
import torch

from striderl.datasets.offline import all_steps, load_dataset, save_dataset
from striderl.envs.toy.bandits import HybridActions
from striderl.recipes.offline import KINDS, Behaviours, _chosen, _learner, generate, train_behaviours


@pytest.fixture(scope="module")
def behaviours() -> Behaviours:
    return train_behaviours("pendulum", total_steps=760, seed=0)


@pytest.mark.parametrize(("kind", "num_steps", "wanted"), [("random", 450, 450), ("mix", 100, 120), ("expert", 31, 40)])
def test_there_are_at_least_so_many_steps_and_none_is_an_end(behaviours, kind, num_steps, wanted):
    replay = generate(behaviours, kind, num_steps, seed=1)
    steps = all_steps(replay)
    assert len(replay) == wanted and len(steps["rew"]) == wanted
    # the pendulum never terminates; every env's last step of each actor is cut, and the clock ends episodes of 200
    assert not bool(steps["terminated"].any())
    actors = 3 if kind == "mix" else 1
    assert int(steps["truncated"].sum()) == 10 * actors
    assert bool(steps["valid"].all())


@pytest.mark.slow
def test_what_followed_a_step_is_what_the_pendulum_does(behaviours):
    steps = all_steps(generate(behaviours, "mix", 6300, seed=1))
    speed, after = steps["obs"]["obs"][:, 2], steps["obs_next"]["obs"][:, 2]
    sine, torque = steps["obs"]["obs"][:, 1], steps["act"][:, 0]
    # 3 g / (2 l) sin + 3 / (m l²) u, over 0.05 s, cut at 8: also where an episode was cut, or ended by the clock
    wanted = (speed + 0.05 * (15.0 * sine + 3.0 * torque.clamp(-2.0, 2.0))).clamp(-8.0, 8.0)
    assert int(steps["truncated"].sum()) > 30
    torch.testing.assert_close(after, wanted, atol=1e-4, rtol=0.0)


def test_seeds_decide(behaviours):
    one, two, other = (all_steps(generate(behaviours, "medium", 60, seed=seed))["act"] for seed in (1, 1, 2))
    assert torch.equal(one, two) and not torch.equal(one, other)


def test_datasets_are_saved_and_loaded(behaviours, tmp_path):
    replay = generate(behaviours, "random", 50)
    save_dataset(tmp_path, replay, *behaviours.specs(), about={"kind": "random"})
    again = load_dataset(tmp_path, *behaviours.specs())
    assert torch.equal(all_steps(replay)["obs_next"]["obs"], all_steps(again)["obs_next"]["obs"])


def test_medium_is_nearest_to_half_way(behaviours):
    seen = [(float(value), {"number": torch.tensor(value)}) for value in (-1000, -650, -300, -100, -200)]
    found = _chosen("pendulum", behaviours.policy, seen, random=-1100.0)
    assert found.returns == {"random": -1100.0, "medium": -650.0, "expert": -100.0}
    assert int(found.weights["medium"]["number"]) == -650


@pytest.mark.slow
def test_choices_are_recorded_with_some_at_random():
    cartpole = train_behaviours("cartpole", total_steps=760, seed=0)
    steps = all_steps(generate(cartpole, "expert", 400, seed=1))
    with torch.no_grad():
        policy = cartpole.actors("expert")[0].policy
        greedy = policy.act(steps["obs"], {}, {})[0].mode()
    # one in ten is drawn at random, and half of those are what the policy wanted anyway
    assert float((greedy == steps["act"]).float().mean()) == pytest.approx(0.95, abs=0.04)
    assert bool((steps["act"] < 2).all()) and not bool(steps["terminated"].all())


def test_actions_that_neither_learner_has_are_refused():
    with pytest.raises(ValueError, match="real-valued actions or one choice, found DictActionSpec"):
        _learner(HybridActions(1))


@pytest.mark.slow
def test_an_unknown_kind_gets_a_suggestion(behaviours):
    assert KINDS == ("random", "medium", "expert", "mix")
    with pytest.raises(ValueError, match="Did you mean 'medium'"):
        generate(behaviours, "meduim", 10)
    with pytest.raises(ValueError, match="at least one step"):
        generate(behaviours, "random", 0)
