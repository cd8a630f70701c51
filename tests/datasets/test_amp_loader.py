"""AMPLoader: shares by weight, windows uniform in time and inside their clip, mirroring, preloading, exact resume."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from motion_samples import ramp, turning

from striderl.algorithms.terms.expert import Expert, as_expert
from striderl.datasets.motion.amp_loader import AMPLoader, AMPLoaderConfig
from striderl.datasets.motion.clip import ClipError, ClipField, MotionClip
from striderl.datasets.motion.clip_files import save_clip
from striderl.execution.capture import check_capture


def config(**more):
    return AMPLoaderConfig(**{"time_between_frames": 0.05, **more})


def evenly(count):
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def test_a_window_is_two_frames_side_by_side():
    # 0.4 s with a step of 0.05 s: windows begin from 0 to 0.35 s; x = 10 · time
    loader = AMPLoader([ramp()], config())
    found = loader.draw(torch.tensor([0.0, 0.5, 1.0 - 1e-12], dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.5], [1.75, 2.25], [3.5, 4.0]]))
    assert (loader.size, loader.observation_dim, loader.num_motions) == (2, 1, 1)


def test_windows_of_more_frames_and_of_one():
    loader = AMPLoader([ramp()], config(num_frames=3, time_between_frames=0.1))
    torch.testing.assert_close(loader.draw(torch.tensor([0.25]).double()), torch.tensor([[0.5, 1.5, 2.5]]))
    assert AMPLoader([ramp()], config(num_frames=1)).draw(evenly(4)).shape == (4, 1)


def test_clips_are_drawn_by_weight_and_times_evenly():
    # weights 1 and 3: a quarter of the numbers, whatever the lengths; the second clip's x begins at 100
    clips = [ramp(num_frames=50, weight=1.0), ramp(start=100.0, weight=3.0), ramp(start=1000.0, weight=0.0)]
    first = AMPLoader(clips, config()).draw(evenly(4000))[:, 0]
    assert int((first < 100.0).sum()) == 1000 and int((first >= 1000.0).sum()) == 0
    times = (first[first >= 100.0] - 100.0) / 10.0
    # uniform from 0 to 0.35 s: each tenth has as many
    counts = torch.histc(times, bins=10, min=0.0, max=0.35)
    assert int(counts.min()) >= 298 and int(counts.max()) <= 302


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(4, 12), min_size=1, max_size=4),
    st.floats(0.02, 0.15),
    st.integers(1, 3),
    st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=1, max_size=20),
)
def test_windows_never_leave_their_clip(lengths, step, num_frames, numbers):
    # clip c holds 1000 c … 1000 c + frames - 1: a window across an end would jump or leave that range
    clips = [ramp(num_frames=length, start=1000.0 * place) for place, length in enumerate(lengths)]
    loader = AMPLoader(clips, config(num_frames=num_frames, time_between_frames=step))
    found = loader.draw(torch.tensor(numbers, dtype=torch.float64)).double()
    clip = (found[:, 0] / 1000.0).round().long()
    inside = found - 1000.0 * clip.unsqueeze(1)
    last = torch.tensor(lengths)[clip].unsqueeze(1) - 1.0
    assert bool(((inside >= -1e-3) & (inside <= last + 1e-3)).all())
    np.testing.assert_allclose(np.diff(found.numpy(), axis=1), 10.0 * step, atol=1e-3)


def test_a_clip_too_short_for_a_window_is_refused():
    with pytest.raises(ClipError, match=r"'ramp' is 0.4 s long, too short for a window of 0.6 s"):
        AMPLoader([ramp()], config(num_frames=3, time_between_frames=0.3))
    assert AMPLoader([ramp()], config(time_between_frames=0.4)).draw(evenly(2)).tolist() == [[0.0, 4.0]] * 2


def test_a_clip_that_wraps_gives_windows_across_its_end():
    values = {"x": np.array([[0.0], [1.0], [0.0], [-1.0], [0.0]]), "p": np.linspace(0.0, 2.0, 5)[:, None]}
    fields = {"x": ClipField(size=1), "p": ClipField(size=1, kind="position")}
    clip = MotionClip(name="round", frame_duration=0.1, fields=fields, values=values, loop="wrap")
    loader = AMPLoader([clip], config(time_between_frames=0.1))
    # beginning at 7/8 of 0.4 s = 0.35 s; the next frame is at 0.45 s, 0.05 s into the next round
    found = loader.draw(torch.tensor([0.875]).double())
    torch.testing.assert_close(found, torch.tensor([[-0.5, 1.75, 0.5, 2.25]]))


def test_the_table_agrees_with_the_clip():
    clip = turning()
    loader = AMPLoader([clip], config(time_between_frames=0.25))
    found = loader.draw(evenly(7)).reshape(7, 2, 4)
    times = evenly(7).numpy() * 0.75
    for place in range(2):
        wanted = clip.at(times + 0.25 * place)["root_rot"]
        np.testing.assert_allclose(found[:, place].numpy(), wanted, atol=1e-6)


def lopsided() -> MotionClip:
    fields = {"y": ClipField(size=2, of="feet", mirror_index=(1, 0), mirror_sign=(-1.0, -1.0))}
    values = {"y": np.array([[1.0, 2.0], [1.0, 2.0]])}
    return MotionClip(name="lopsided", frame_duration=1.0, fields=fields, values=values, foot_names=("L_f", "R_f"))


def test_mirror_images_are_half_of_what_is_drawn():
    loader = AMPLoader([lopsided()], config(mirror=True, num_frames=1))
    found = loader.draw(evenly(10)).tolist()
    assert found == [[1.0, 2.0]] * 5 + [[-2.0, -1.0]] * 5
    assert loader.mean.tolist() == pytest.approx([-0.5, 0.5]) and loader.var.tolist() == pytest.approx([2.25, 2.25])
    with pytest.raises(ClipError, match="no mirror table"):
        AMPLoader([ramp()], config(mirror=True))


def test_clips_are_brought_to_the_robots_order():
    loader = AMPLoader([lopsided()], config(num_frames=1, foot_names=("R_f", "L_f")))
    assert loader.draw(evenly(1)).tolist() == [[2.0, 1.0]]
    with pytest.raises(ClipError, match="foot names"):
        AMPLoader([lopsided()], config(foot_names=("a", "b")))


def test_fields_are_chosen_ordered_and_derived():
    fields = {"joint_pos": ClipField(size=1, of="joints"), "x": ClipField(size=1)}
    values = {"joint_pos": np.array([[0.0], [1.0], [2.0]]), "x": np.array([[7.0], [7.0], [7.0]])}
    clip = MotionClip(name="c", frame_duration=0.5, fields=fields, values=values, joint_names=("a",))
    loader = AMPLoader([clip], config(fields=("x", "joint_vel", "joint_pos"), num_frames=1))
    torch.testing.assert_close(loader.draw(torch.tensor([0.5]).double()), torch.tensor([[7.0, 2.0, 1.0]]))
    with pytest.raises(ClipError, match="no field 'z'"):
        AMPLoader([clip], config(fields=("z",)))


def test_settings_may_come_from_json():
    assert config(fields=["x"], joint_names=["a"]) == config(fields=("x",), joint_names=("a",))
    with pytest.raises(TypeError, match=r"AMPLoaderConfig has no field 'mirrored'\. Did you mean 'mirror'"):
        config(mirrored=True)


def test_clips_with_other_fields_are_refused():
    other = MotionClip(name="wide", frame_duration=0.1, fields={"x": ClipField(size=2)}, values={"x": np.zeros((9, 2))})
    with pytest.raises(ClipError, match="'ramp' and 'wide' have different fields"):
        AMPLoader([ramp(), other], config())


def test_nothing_to_draw_from_is_refused(tmp_path):
    for nothing in ([], "clip.npz"):
        with pytest.raises(ClipError, match="a list of clips"):
            AMPLoader(nothing, config())
    with pytest.raises(ClipError, match="all clips have weight 0"):
        AMPLoader([ramp(weight=0.0)], config())
    for bad in ({"time_between_frames": 0.0}, {"num_frames": 0}, {"num_preload_transitions": -1}):
        with pytest.raises(ValueError):
            config(**bad)


def test_preloaded_windows_are_those_that_are_drawn(tmp_path):
    path = save_clip(tmp_path / "ramp.npz", ramp())
    plain, preloaded = AMPLoader([path], config()), AMPLoader([path], config(num_preload_transitions=1000))
    assert preloaded.transitions.shape == (1000, 2) and plain.transitions.shape == (0, 2)
    numbers = torch.rand(500, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    # the nearest of a thousand windows over 3.5 units is at most 0.00175 away
    torch.testing.assert_close(preloaded.draw(numbers), plain.draw(numbers), atol=0.0018, rtol=0.0)
    torch.testing.assert_close(preloaded.mean, plain.mean)


def test_moments_are_those_of_a_drawn_window():
    # x is uniform from 0 to 3.5 in the first frame: mean 1.75, variance 3.5² / 12
    loader = AMPLoader([ramp()], config())
    torch.testing.assert_close(loader.mean, torch.tensor([1.75, 2.25]).double(), atol=1e-3, rtol=0.0)
    torch.testing.assert_close(loader.var, torch.full((2,), 3.5**2 / 12.0).double(), atol=1e-3, rtol=0.0)


def test_samples_are_repeated_by_seed_and_go_on_after_a_restart():
    loader, again = AMPLoader([ramp()], config(seed=3)), AMPLoader([ramp()], config(seed=3))
    assert torch.equal(loader.sample(16), again.sample(16))
    assert not torch.equal(loader.sample(16), AMPLoader([ramp()], config(seed=4)).sample(16))
    state = loader.state_dict()
    wanted = [loader.sample(16), loader.sample(5)]
    fresh = AMPLoader([ramp()], config(seed=3))
    fresh.load_state_dict(state)
    assert all(torch.equal(fresh.sample(len(rows)), rows) for rows in wanted)
    with pytest.raises(ValueError, match="other clips or other settings"):
        AMPLoader([ramp(start=1.0)], config(seed=3)).load_state_dict(state)
    with pytest.raises(ValueError, match="other clips or other settings"):
        AMPLoader([ramp()], config(seed=5)).load_state_dict(state)


def test_a_generator_may_be_given():
    loader = AMPLoader([ramp()], config())
    draws = [loader.sample(8, torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(*draws) and loader.state_dict()["draw_number"] == 0


def test_minibatches_come_frame_by_frame():
    batches = list(AMPLoader([ramp()], config()).feed_forward_generator(3, 10))
    assert len(batches) == 3
    for states, next_states in batches:
        assert states.shape == next_states.shape == (10, 1)
        torch.testing.assert_close(next_states - states, torch.full((10, 1), 0.5), atol=1e-5, rtol=0.0)
    assert not torch.equal(batches[0][0], batches[1][0])


def test_it_is_an_expert_for_the_motion_prior():
    loader = AMPLoader([ramp()], config())
    assert isinstance(loader, Expert) and as_expert(loader) is loader
    moved = loader.to("cpu")
    assert torch.equal(moved.draw(evenly(9)), loader.draw(evenly(9)))


@pytest.mark.parametrize("preloaded", [0, 64])
def test_a_draw_can_be_captured(preloaded):
    # no host value, no shape that depends on a number, nothing kept: so it may be part of a captured step
    loader = AMPLoader([ramp(), ramp(start=5.0)], config(num_preload_transitions=preloaded))
    assert check_capture(loader.draw, (evenly(32),)).max_difference == 0.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu_the_same_windows_are_drawn():
    loader = AMPLoader([ramp()], config())
    moved = loader.to("cuda")
    assert moved.device.type == "cuda"
    torch.testing.assert_close(moved.draw(evenly(99).cuda()).cpu(), loader.draw(evenly(99)))
    torch.testing.assert_close(moved.sample(9).cpu(), loader.sample(9))
