"""Settings for the whole suite: one torch thread, and hypothesis profiles that fit two shared cores."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci", deadline=None, max_examples=100, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Two pytest workers share two cores; more torch threads would only get in each other's way."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Records of runs that were made here go to a folder of the tests, also those of their processes."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
