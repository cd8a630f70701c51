"""Acting and learning are captured as CUDA graphs and equal eager runs; nothing waits for the device."""

from __future__ import annotations

import pytest
import torch

if torch.cuda.is_available():
    import graph_cases

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_acting_with_an_lstm_is_a_graph():
    with graph_cases.full_precision():
        assert max(graph_cases.acting_as_a_graph().values()) <= 1e-5


def test_an_update_of_ppo_with_rnd_and_an_lstm_is_a_graph():
    with graph_cases.full_precision():
        assert max(graph_cases.update_as_a_graph().values()) <= 1e-5


def test_a_broken_gradient_is_skipped_inside_a_graph():
    graph_cases.broken_update_as_a_graph()


def test_a_whole_update_never_waits_for_the_device():
    assert graph_cases.whole_update_without_waiting() == 20
