from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rsl_rl_fakes import (
    GroupsFake,
    IsaacLabTwoFake,
    LeggedGymFake,
)
from rsl_rl_reference import make, reference, rollout, some_actions, two_parts
from torch import Tensor

from striderl.envs.rsl_rl.env import RslRlEnv
from striderl.envs.vec_env import ContractError

# -- names of components ---------------------------------------------------------------------------------------------


def test_flat_generations_are_called_obs_and_privileged_obs() -> None:
    for fake in (LeggedGymFake(), IsaacLabTwoFake()):
        spec = RslRlEnv(fake).obs_spec
        assert {name: (part.shape, part.group) for name, part in spec.items()} == {
            "obs": ((4,), "policy"),
            "privileged_obs": ((3,), "critic"),
        }


def test_a_v1_env_without_privileged_observations_has_one_component() -> None:
    env = RslRlEnv(LeggedGymFake(privileged=False))
    assert env.obs_spec.names == ("obs",)
    assert [list(step.obs) for step in rollout(env, some_actions()[:2])] == [["obs"], ["obs"]]


def test_further_groups_of_v2_keep_their_names() -> None:
    env = RslRlEnv(IsaacLabTwoFake(teacher=True))
    assert {name: part.group for name, part in env.obs_spec.items()} == {
        "obs": "policy",
        "privileged_obs": "critic",
        "teacher": "teacher",
    }
    step = rollout(env, some_actions()[:1])[0]
    assert torch.equal(step.obs["teacher"][:, 0], step.obs["obs"][:, 0] + 1)


def test_groups_that_are_none_are_no_groups() -> None:
    class NoCritic(IsaacLabTwoFake):
        def _groups(self) -> dict[str, Any]:
            return {"policy": self.simulator.obs, "critic": None}

    env = RslRlEnv(NoCritic())
    assert env.obs_spec.names == ("obs",)
    assert list(rollout(env, some_actions()[:1])[0].obs) == ["obs"]


def test_groups_name_components_and_nested_terms_get_a_path() -> None:
    assert RslRlEnv(make("v4")).obs_spec.names == ("actor", "critic")
    for container in ("dict", "TensorDict"):
        if container == "TensorDict":
            pytest.importorskip("tensordict", reason="the TensorDict form needs tensordict")
        env = RslRlEnv(GroupsFake(nested=True, container=container))
        assert {name: (part.shape, part.group) for name, part in env.obs_spec.items()} == {
            "policy/x": ((1,), "policy"),
            "policy/rest": ((3,), "policy"),
            "critic": ((3,), "critic"),
        }
        actions = some_actions()[:1]
        step = rollout(env, actions)[0]
        joined = torch.cat([step.obs["policy/x"], step.obs["policy/rest"]], dim=1)
        assert joined.tolist() == reference(actions)[0]["obs"]


def test_segments_cut_the_flat_vectors_and_shared_names_get_the_group_in_front() -> None:
    segments, privileged = {"x": 1, "rest": (3, 1)}, {"x": 1, "friction": 2}
    actions = some_actions()[:3]
    for kind in ("v1", "v2", "v3", "v4"):
        env = RslRlEnv(make(kind), obs_segments=segments, privileged_obs_segments=privileged)
        assert env.obs_spec.names == ("x", "rest", "critic/x", "friction")
        assert env.obs_spec["rest"].shape == (3, 1)
        assert env.obs_spec["critic/x"].group == env.obs_spec["friction"].group == "critic"
        for step, row in zip(rollout(env, actions), reference(actions), strict=True):
            obs, privileged_obs = torch.tensor(row["obs"]), torch.tensor(row["privileged"])
            assert torch.equal(step.obs["x"], obs[:, :1])
            assert torch.equal(step.obs["rest"], obs[:, 1:, None])
            assert torch.equal(step.obs["critic/x"], privileged_obs[:, :1])
            assert torch.equal(step.obs["friction"], privileged_obs[:, 1:])


def test_segments_are_found_on_the_env_and_in_its_cfg() -> None:
    on_env = LeggedGymFake()
    on_env.obs_segments = {"x": 1, "rest": 3}  # type: ignore[attr-defined]
    on_env.privileged_obs_segments = None  # type: ignore[attr-defined]
    assert RslRlEnv(on_env).obs_spec.names == ("x", "rest", "privileged_obs")
    in_cfg = LeggedGymFake()
    in_cfg.cfg = SimpleNamespace(env=SimpleNamespace(obs_segments={"x": 2, "y": 2}))  # type: ignore[attr-defined]
    assert RslRlEnv(in_cfg).obs_spec.names == ("x", "y", "privileged_obs")
    in_dict = LeggedGymFake()
    in_dict.cfg = {"privileged_obs_segments": {"a": 1, "b": 2}}  # type: ignore[attr-defined]
    assert RslRlEnv(in_dict).obs_spec.names == ("obs", "a", "b")
    # what a person passes wins over what the env says
    assert RslRlEnv(in_cfg, obs_segments={"obs": 4}).obs_spec.names == ("obs", "privileged_obs")


def test_segments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ContractError, match=r"LeggedGymFake, group 'policy': obs_segments add up to 6 .* has 4"):
        RslRlEnv(LeggedGymFake(), obs_segments={"x": 1, "rest": 5})
    with pytest.raises(ContractError, match=r"segments \['a'\] belong to a flat group called 'critic'"):
        RslRlEnv(LeggedGymFake(privileged=False), privileged_obs_segments={"a": 3})


def test_groups_that_only_step_gives_are_reported_once() -> None:
    class Late(IsaacLabTwoFake):
        def get_observations(self) -> Any:
            return self.simulator.obs, {}

        def reset(self) -> Any:
            self.simulator.restart_all()
            return self.simulator.obs, {}

    env = RslRlEnv(Late())
    assert env.obs_spec.names == ("obs",)
    env.reset()
    with pytest.warns(UserWarning, match=r"groups \['critic'\] in step\(\) but not in get_observations"):
        env.step(some_actions()[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.step(some_actions()[1])


# -- final observations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["v3", "v4", "v4 TensorDict"])
def test_manual_resets_give_true_final_observations(kind: str) -> None:
    fake = make(kind, auto_reset=False)
    env = RslRlEnv(fake)
    assert env.gives_final_obs
    actions = some_actions()
    for step, row in zip(rollout(env, actions), reference(actions), strict=True):
        assert step.final_obs is not None
        final, final_privileged = two_parts(step.final_obs)
        obs, privileged = two_parts(step.obs)
        assert final.tolist() == row["final"]
        assert final_privileged.tolist() == row["final_privileged"]
        # rows that go on keep what step() showed, although the partial reset drew new noise for them
        assert obs.tolist() == row["obs"]
        assert privileged.tolist() == row["privileged"]
        assert float(step.info["log"]["rew_x"]) == pytest.approx(sum(row["reward"]) / 3)
        assert ("resets" in step.info["log"]) == bool(step.done.any())
    assert not fake.unwrapped.pending.any()


def test_manual_resets_need_a_reset_by_index() -> None:
    fake = make("v4", auto_reset=False)
    fake.unwrapped = SimpleNamespace(cfg=fake.cfg, reset=lambda: None)
    with pytest.raises(ContractError, match=r"auto_reset=False, but its reset.* takes no env_ids"):
        RslRlEnv(fake)


@pytest.mark.parametrize("kind", ["v3", "v4 TensorDict"])
def test_final_observations_in_extras_are_read_by_key(kind: str) -> None:
    env = RslRlEnv(make(kind, final_obs=True), final_obs_key="final_obs")
    assert env.gives_final_obs
    actions = some_actions()
    for step, row in zip(rollout(env, actions), reference(actions), strict=True):
        assert step.final_obs is not None
        final, final_privileged = two_parts(step.final_obs)
        assert final.tolist() == row["final"]
        assert final_privileged.tolist() == row["final_privileged"]
        assert two_parts(step.obs)[0].tolist() == row["obs"]


def test_final_observations_may_lie_in_one_place_per_group() -> None:
    class Raw(IsaacLabTwoFake):
        def _groups(self) -> dict[str, Any]:
            final = self.simulator.final or {"policy": self.simulator.obs, "critic": self.simulator.privileged}
            return {**super()._groups(), "raw": {"obs": final["policy"], "critic_obs": final["critic"]}}

    keys = {"policy": "observations/raw/obs", "critic": "observations/raw/critic_obs"}
    env = RslRlEnv(Raw(), final_obs_key=keys)
    assert env.obs_spec.names == ("obs", "privileged_obs")  # 'raw' is where the end is told, no observation
    actions = some_actions()
    for step, row in zip(rollout(env, actions), reference(actions), strict=True):
        assert step.final_obs is not None
        assert step.final_obs["obs"].tolist() == row["final"]
        assert step.final_obs["privileged_obs"].tolist() == row["final_privileged"]


def test_final_observations_of_a_v1_env_may_be_one_tensor() -> None:
    class Terminal(LeggedGymFake):
        def step(self, actions: Tensor) -> Any:
            result = super().step(actions)
            self.extras["terminal_observations"] = self.simulator.final["policy"]
            return result

    env = RslRlEnv(Terminal(privileged=False), final_obs_key="terminal_observations")
    actions = some_actions()
    for step, row in zip(rollout(env, actions), reference(actions), strict=True):
        assert step.final_obs is not None
        assert step.final_obs["obs"].tolist() == row["final"]
    env = RslRlEnv(Terminal(), final_obs_key="terminal_observations")
    with pytest.raises(
        ContractError, match=r"final observation at 'terminal_observations', group 'critic'.*found None"
    ):
        rollout(env, actions[:1])


def test_a_final_obs_key_that_is_not_there_is_an_error() -> None:
    env = RslRlEnv(make("v3"), final_obs_key="final_observation")
    with pytest.raises(ContractError, match=r"no final_obs_key 'final_observation'.*'log'"):
        rollout(env, some_actions()[:1])
