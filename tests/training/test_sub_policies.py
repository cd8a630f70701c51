"""Run folders as the sub-policies of a mutex: the policies come whole, with the units of their tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from run_cases import folder_at, tiny

from striderl.policies.mutex.classes import ActorCriticMutex
from striderl.recipes.table import recipe
from striderl.training.experiment.loading import _action_scale, load_run, load_sub_policy
from striderl.training.experiment.run import Run


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two runs of Pendulum with normalisers and memories."""
    before, found = torch.get_num_threads(), []
    for seed in (0, 1):
        path = tmp_path_factory.mktemp("runs") / str(seed)
        config = tiny("pendulum_lstm", 1, seed=seed)
        Run(config, folder_at(path, config)).drive()
        found.append(path)
    torch.set_num_threads(before)
    return found


@pytest.mark.slow
def test_a_mutex_plays_the_policies_of_its_run_folders(folders):
    plain = load_run(folders[0]).policy
    model = ActorCriticMutex(
        plain.obs_spec,
        None,
        plain.action_spec,
        sub_policy_paths=folders,
        load_sub_policy=load_sub_policy,
        env_action_scale=2.0,  # the runs' own is 1: what they play counts half here
        last_action_component="",
    )
    obs = {name: torch.full((1, *part.shape), 0.3) for name, part in plain.obs_spec.items()}
    for index, folder in enumerate(folders):
        policy = load_run(folder).policy
        wanted = policy.act(obs, policy.initial_state(1), policy.settled(torch.zeros(1)))[0].mode()
        model.reset()
        assert torch.allclose(model.act_inference(obs, torch.tensor([index])), 0.5 * wanted)
    with pytest.raises(ValueError, match="has no effect with load_sub_policy"):
        ActorCriticMutex(
            plain.obs_spec, None, plain.action_spec, "ActorCritic", folders, load_sub_policy=load_sub_policy
        )


def test_units_are_those_of_the_task(folders):
    parkour = recipe("parkour")
    wide = replace(parkour, env=replace(parkour.env, settings={"action_scale": 0.5}))
    assert [_action_scale(config) for config in (parkour, wide, recipe("cartpole"))] == [0.25, 0.5, 1.0]
    assert load_sub_policy(folders[0]).cmd_scale is None  # a pendulum is not told a velocity
    with pytest.raises(FileNotFoundError, match="there is no run folder 'nowhere'"):
        load_sub_policy("nowhere")
