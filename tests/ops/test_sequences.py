"""Sequences of replayed steps: where finals are woven in, windows of n steps, priorities; all by hand."""

from __future__ import annotations

import pytest
import torch

from striderl.ops.trajectories import sequence_priority, sequence_windows, weave


def column(*values):
    return torch.tensor(values).unsqueeze(1)


def test_the_final_observation_is_woven_in_before_the_next_episode():
    # step 1 ends an episode (final 21), step 2 begins the next: o0 o1 f o2 n2, and a reset at o2
    obs, following = column(10.0, 11.0, 12.0), column(11.0, 21.0, 13.0)
    found = weave(column(False, True, False), column(False, False, True), column(True, True, True))
    assert found.woven(obs, following)[:, 0].tolist() == [10.0, 11.0, 21.0, 12.0, 13.0]
    assert found.here[:, 0].tolist() == [0, 1, 3]
    assert found.resets[:, 0].tolist() == [False, False, False, True, False]
    assert found.valid.all()


def test_sequences_with_fewer_ends_are_padded():
    ended = torch.tensor([[True, False], [True, False], [False, False]])
    resets = torch.tensor([[False, False], [True, False], [True, False]])
    found = weave(ended, resets, torch.ones_like(ended))
    assert found.source.shape == (6, 2)  # three steps, one after the last, two finals in the first sequence
    assert found.valid[:, 1].tolist() == [True] * 4 + [False] * 2
    obs, following = torch.arange(6.0).view(3, 2), 10.0 + torch.arange(6.0).view(3, 2)
    woven = found.woven(obs, following)
    assert woven[:, 0].tolist() == [0.0, 10.0, 2.0, 12.0, 4.0, 14.0]
    # where nothing ended, what followed a step and the next step are the same observation; the former is read
    assert woven[:4, 1].tolist() == [1.0, 11.0, 13.0, 15.0]


def test_what_followed_the_newest_step_is_known_though_the_next_is_not_there():
    found = weave(column(False, False, True), column(False, False, True), column(True, True, False))
    woven = found.woven(column(10.0, 11.0, float("nan")), column(11.0, 12.0, float("nan")))
    assert woven[:3, 0].tolist() == [10.0, 11.0, 12.0]
    assert found.valid[:3, 0].tolist() == [True, True, True] and not found.valid[3:, 0].any()


def test_windows_stop_at_ends_and_at_the_end_of_the_sequence():
    # rewards 1 2 4 8 16, gamma 1/2, three steps; terminated at 1, truncated at 3
    reward = column(1.0, 2.0, 4.0, 8.0, 16.0)
    terminated, truncated = column(False, True, False, False, False), column(False, False, False, True, False)
    found = sequence_windows(reward, terminated, truncated, torch.ones_like(terminated), gamma=0.5, n=3)
    assert found.reward[:, 0].tolist() == [1 + 1, 2, 4 + 4, 8, 16]
    assert found.discount[:, 0].tolist() == [0.0, 0.0, 0.25, 0.5, 0.5]
    assert found.last[:, 0].tolist() == [1, 1, 3, 3, 4]


def test_windows_do_not_enter_steps_that_do_not_count():
    reward, never = column(1.0, 2.0, 4.0), column(False, False, False)
    found = sequence_windows(reward, never, never, column(True, False, True), gamma=0.5, n=3)
    assert found.reward[:, 0].tolist()[0] == 1.0 and found.discount[0, 0] == 0.5 and found.last[0, 0] == 0


def test_a_long_window_within_a_sequence_is_the_discounted_sum():
    reward, never = torch.rand(6, 4), torch.zeros(6, 4, dtype=torch.bool)
    found = sequence_windows(reward, never, never, ~never, gamma=0.9, n=50)
    for start in range(6):
        wanted = sum(0.9**k * reward[start + k] for k in range(6 - start))
        assert torch.allclose(found.reward[start], wanted)
        assert torch.allclose(found.discount[start], torch.full((4,), 0.9 ** (6 - start)))


def test_priorities_mix_the_largest_and_the_mean():
    # errors 1, 3 and one that does not count: 0.9 · 3 + 0.1 · 2
    found = sequence_priority(column(1.0, -3.0, 100.0), column(True, True, False), 0.9)
    assert found.tolist() == pytest.approx([2.9])
