"""A save of a facade replaces nothing but a checkpoint, and gives a file its name when it is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from test_rsl_rl_classes import Env, config

from striderl.checkpoint.errors import FileRefused
from striderl.compat import rlpyt, st_rl
from striderl.compat.rlpyt import logger
from striderl.compat.rsl_rl.runners import OnPolicyRunner

Save = Callable[[], Any]


class VectorEnv:
    """Flat observations, as st_rl's envs have them."""

    num_envs, num_actions, num_obs, num_privileged_obs, device, max_episode_length = 2, 2, 4, None, "cpu", 10

    def __init__(self) -> None:
        self.episode_length_buf = torch.zeros(2, dtype=torch.long)

    def get_observations(self) -> torch.Tensor:
        return torch.zeros(2, 4)

    def get_privileged_observations(self) -> None:
        return None


@contextmanager
def saves_of_rsl_rl(folder: Path) -> Iterator[tuple[Path, Save]]:
    runner = OnPolicyRunner(Env(), config())
    yield folder / "model_0.pt", lambda: runner.save(folder / "model_0.pt", {"of": "mine"})


@contextmanager
def saves_of_st_rl(folder: Path) -> Iterator[tuple[Path, Save]]:
    policy = {"class_name": "ActorCritic", "actor_hidden_dims": [8], "critic_hidden_dims": [8]}
    settings = {"num_steps_per_env": 4, "algorithm": {"class_name": "PPO"}, "policy": policy}
    runner = st_rl.OnPolicyRunner(VectorEnv(), settings)
    yield folder / "model_0.pt", lambda: runner.save(folder / "model_0.pt", {"of": "mine"})


@contextmanager
def saves_of_rlpyt(folder: Path) -> Iterator[tuple[Path, Save]]:
    with rlpyt.logger_context(folder, 0, "x", snapshot_mode="last") as run:
        snapshot = {"itr": 0, "agent_state_dict": {"weight": torch.ones(2)}}
        yield run / "params.pkl", lambda: logger.save_itr_params(0, snapshot)


FACADES = {"rsl_rl": saves_of_rsl_rl, "st_rl": saves_of_st_rl, "rlpyt": saves_of_rlpyt}


@pytest.mark.parametrize("facade", FACADES)
def test_a_save_replaces_checkpoints_and_refuses_the_rest(tmp_path: Path, facade: str) -> None:
    with FACADES[facade](tmp_path / "run") as (path, save):
        path.parent.mkdir(exist_ok=True)
        for made in (b"years of work", b"PK\x03\x04 and nothing that torch reads"):
            path.write_bytes(made)
            with pytest.raises(FileRefused, match=rf"{path.name}.*nothing but a checkpoint.*choose another name"):
                save()
            assert path.read_bytes() == made
        torch.save({"measured": torch.ones(2)}, path)
        with pytest.raises(FileRefused, match=r"none of its entries.*choose another name"):
            save()
        assert set(torch.load(path)) == {"measured"}
        path.unlink()
        thesis = tmp_path / "thesis.txt"
        thesis.write_text("years of work")
        path.symlink_to(thesis)
        with pytest.raises(FileRefused, match="a link"):
            save()
        assert thesis.read_text() == "years of work" and path.is_symlink()
        path.unlink()
        path.touch()  # an empty file, as tempfile makes them
        for _ in range(2):  # the second one replaces the first
            save()
            assert len(torch.load(path, weights_only=True)) > 1


@pytest.mark.parametrize("facade", FACADES)
def test_a_save_that_fails_leaves_the_checkpoint_before_it(
    tmp_path: Path, facade: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FACADES[facade](tmp_path / "run") as (path, save):
        save()
        before = path.read_bytes()

        def full(content: Any, file: Any) -> None:
            with open(file, "wb") if isinstance(file, (str, Path)) else file as disk:
                disk.write(b"half of it")
                raise OSError("the disk is full")

        monkeypatch.setattr(torch, "save", full)
        with pytest.raises(OSError, match="full"):
            save()
        assert path.read_bytes() == before


def test_a_state_with_objects_of_a_users_class_is_replaced_too(tmp_path: Path) -> None:
    """Such a file is never loaded here, but its entries are read without running it."""

    class Mine(OnPolicyRunner):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            plain = self.alg.save
            self.alg.save = lambda: {**plain(), "notes": Path("of a user")}

    runner = Mine(Env(), config())
    for _ in range(2):
        runner.save(tmp_path / "model_0.pt")
    assert torch.load(tmp_path / "model_0.pt", weights_only=False)["notes"] == Path("of a user")


@pytest.mark.parametrize("name", ["jit", "onnx"])
def test_an_export_does_not_write_through_a_link(tmp_path: Path, name: str) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work")
    runner = OnPolicyRunner(Env(), config())
    export, filename = {
        "jit": (runner.export_policy_to_jit, "policy.pt"),
        "onnx": (runner.export_policy_to_onnx, "policy.onnx"),
    }[name]
    (tmp_path / filename).symlink_to(thesis)
    with pytest.raises(FileRefused, match="a link"):
        export(tmp_path)
    assert thesis.read_text() == "years of work"
