"""RolloutDataset against a reader in plain Python, on real folders, and through loaders with workers."""

from __future__ import annotations

import copy
import logging
import pickle
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_cases import MemoryTrajectories, Reference, observed, spec_of, steps_of
from torch.utils.data import DataLoader

from striderl.data import tree
from striderl.datasets.playback import dataset as rollout_dataset
from striderl.datasets.playback.base import DatasetOver, PlayedTransition, RolloutFileBase
from striderl.datasets.playback.dataset import RolloutDataset
from striderl.datasets.playback.sources import Share
from striderl.datasets.trajectories.spec import TrajectoryMismatch, TrajectoryMissing, TrajectoryTimeout
from striderl.datasets.trajectories.writer import TrajectoryWriter

ENDINGS = ("falls", "time", "cut")


def recorded(lengths: list[int], *, final_obs: bool = True) -> MemoryTrajectories:
    source = MemoryTrajectories(final_obs=final_obs)
    for number, length in enumerate(lengths):
        source.record(length, ENDINGS[number % 3])
    return source


def check_step(found: PlayedTransition, rows: list[Any]) -> None:
    """Compare one step [N, …] with what the reference says of each env."""
    everything = {**found.next_observation, **found.next_privileged_observation}
    for env, row in enumerate(rows):
        assert bool(found.valid[env]) == (row is not None)
        if row is None:
            zeros = [found.observation["place"], found.reward, found.action, everything["place"], found.done]
            assert all(not bool(leaf[env].any()) for leaf in zeros)
            continue
        seen = observed(row.trajectory, row.frame)
        assert torch.equal(found.observation["place"][env], seen["place"])
        assert found.privileged_observation["secret"][env] == seen["secret"]
        assert found.reward[env] == -seen["secret"]
        assert float(found.action[env, 0]) == pytest.approx(row.trajectory + 0.01 * row.frame)
        assert (bool(found.done[env]), bool(found.timeout[env])) == (row.done, row.timeout)
        for place, obs in ((row.following, everything), (row.final, found.final_observation)):
            wanted = observed(*place) if place[0] >= 0 else {"place": torch.zeros(2), "secret": torch.zeros(())}
            assert torch.equal(obs["place"][env], wanted["place"]) and obs["secret"][env] == wanted["secret"]


def sample_index(transition: PlayedTransition, step: int) -> PlayedTransition:
    return PlayedTransition(*tree.index(tuple(transition), step))


settings_of = st.fixed_dictionaries(
    {
        "dataset_loops": st.integers(0, 3),
        "random_shuffle_traj_order": st.booleans(),
        "keep_latest_n_trajs": st.integers(0, 3),
        "starting_frame_range": st.sampled_from([(0, 1), (0, 4), (1, 3), (2, 9)]),
        "seed": st.integers(0, 3),
    }
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.one_of(st.none(), st.integers(1, 5))),
        st.tuples(st.just("reset"), st.sets(st.integers(0, 3), min_size=1)),
        st.tuples(st.just("fill"), st.sets(st.integers(0, 3), min_size=1)),
        st.tuples(st.just("record"), st.integers(1, 5)),
        st.tuples(st.just("save"), st.none()),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 4), settings_of, st.booleans(), events)
def test_it_reads_what_plain_python_reads(lengths, num_envs, chosen, final_obs, script):
    source = recorded(lengths, final_obs=final_obs)

    def made() -> RolloutDataset:
        return RolloutDataset([source], num_envs, refresh_seconds=0.0, cache_bytes=1, **chosen)

    with mock.patch.object(rollout_dataset, "_LONGEST_PAGE", 2):
        dataset = made()
        dataset.reset()
        reference = Reference(source, num_envs, chosen)
        for event, argument in script:
            everybody = range(num_envs)
            if event == "record":
                source.record(argument)
            elif event == "save":
                state = copy.deepcopy(dataset.state_dict())
                dataset = made()
                dataset.load_state_dict(state)
            elif event == "reset":
                some = [env for env in sorted(argument) if env < num_envs]
                dataset.reset(some)
                reference.reset(some)
            elif all(place is None for place in reference.places):
                with pytest.raises(DatasetOver):
                    dataset.get_batch(None if event == "fill" else argument)
            elif event == "fill":
                some = [env for env in sorted(argument) if env < num_envs]
                buffer = dataset.get_buffer()
                dataset.fill_transition(buffer, torch.tensor(some, dtype=torch.int64))
                rows = dict(zip(some, reference.step(some)))
                check_step(buffer, [rows.get(env) for env in everybody])
            elif argument is None:
                check_step(dataset.get_batch(), reference.step(everybody))
            else:
                found = dataset.get_batch(argument)
                assert found.reward.shape == (argument, num_envs)
                for step in range(argument):
                    check_step(sample_index(found, step), reference.step(everybody))


def test_three_short_trajectories_by_hand():
    # lengths 2, 1, 3; two envs. env 0: 0/0 0/1; env 1: 1/0, then the third trajectory: 2/0 2/1 2/2
    dataset = RolloutDataset([recorded([2, 1, 3])], 2)
    found = dataset.get_batch(4)
    assert found.observation["place"][:, 0].tolist() == [[0, 0], [0, 1], [0, 0], [0, 0]]
    assert found.observation["place"][:, 1].tolist() == [[1, 0], [2, 0], [2, 1], [2, 2]]
    assert found.valid[:, 0].tolist() == [True, True, False, False] and bool(found.valid[:, 1].all())
    assert found.done[:, 1].tolist() == [True, False, False, True]
    # trajectory 0 fell, 1 ran out of time, 2 was cut by the recording: both of these are time-outs
    assert found.timeout[:, 1].tolist() == [True, False, False, True] and not bool(found.timeout[:, 0].any())
    assert found.next_observation["place"][0, 1].tolist() == [2, 0]
    assert found.final_observation["place"][0, 1].tolist() == [1, 1]
    assert dataset.num_dataset_looped == 1
    with pytest.raises(DatasetOver):
        dataset.get_batch()


def test_loops_end_and_endless_ones_do_not():
    source = recorded([2, 3])
    assert sum(int(step.valid.sum()) for step in RolloutDataset([source], 3, dataset_loops=4)) == 4 * 5
    dataset = RolloutDataset([source], 3, dataset_loops=0)
    assert bool(dataset.get_batch(50).valid.all()) and dataset.num_dataset_looped >= 20


def test_the_newest_n_and_what_comes_later():
    source = recorded([1] * 5)
    dataset = RolloutDataset([source], 1, dataset_loops=0, keep_latest_n_trajs=2, refresh_seconds=0.0)
    assert dataset.get_batch(4).observation["place"][:, 0, 0].tolist() == [3, 4, 3, 4]
    source.record(1)
    assert dataset.get_batch(4).observation["place"][:, 0, 0].tolist() == [3, 4, 4, 5]


def test_shuffled_passes_are_different_and_repeatable():
    source = recorded([1] * 12)

    def passes(seed: int) -> list[list[float]]:
        dataset = RolloutDataset([source], 1, dataset_loops=3, random_shuffle_traj_order=True, seed=seed)
        return dataset.get_batch(36).observation["place"][:, 0, 0].view(3, 12).tolist()

    first = passes(1)
    assert first == passes(1) and first != passes(2)
    assert first[0] != first[1] and all(sorted(each) == list(range(12)) for each in first)


def test_start_frames_are_spread_over_their_range():
    dataset = RolloutDataset([recorded([10])], 512, dataset_loops=0, starting_frame_range=[2, 6])
    counts = np.bincount(dataset.get_batch().observation["place"][:, 1].long().numpy(), minlength=10)
    assert counts[:2].sum() == 0 and counts[6:].sum() == 0 and (counts[2:6] > 80).all()


def test_infos_are_those_of_an_env():
    dataset = RolloutDataset([recorded([1, 2])], 2)
    transition, infos = dataset.get_transition_batch()
    assert infos["time_outs"].tolist() == [False, False] and transition.done.tolist() == [True, False]
    assert infos["final_obs"]["place"][0].tolist() == [0, 1]
    assert infos["num_trajs"] == 2.0 and infos["num_dataset_looped"] == 1.0
    without = RolloutDataset([recorded([1], final_obs=False)], 1)
    transition, infos = without.get_transition_batch()
    assert "final_obs" not in infos and transition.final_observation["place"][0].tolist() == [0, 0]


def test_frames_are_read_once_while_they_fit():
    source = recorded([7, 5, 6])
    dataset = RolloutDataset([source], 4, dataset_loops=0)
    for _ in range(30):
        dataset.get_batch(3)
    assert source.num_reads == 3
    assert dataset.numbers()["pages_read"] == 3.0


def test_memory_stays_within_its_bounds(caplog):
    source = recorded([64] * 40)
    row = 4 * (3 + 1 + 1) + 2
    with mock.patch.object(rollout_dataset, "_LONGEST_PAGE", 16):
        dataset = RolloutDataset([source], 2, dataset_loops=0, cache_bytes=16 * row * 10)
        for _ in range(100):
            dataset.get_batch(8)
        assert dataset.numbers()["cache_bytes"] <= 16 * row * 10 + row
        assert not caplog.records
        with caplog.at_level(logging.WARNING):
            dataset.get_batch(400)  # 2 envs of 401 frames on pages of 16, five for 65 frames: more than the ten allowed
    assert "cache_bytes" in caplog.text


# -- folders -----------------------------------------------------------------------------------------------------------


def write(folder: Any, lengths: list[int], *, first: int = 0, final_obs: bool = True) -> None:
    with TrajectoryWriter(folder, spec_of(final_obs=final_obs)) as writer:
        for number, length in enumerate(lengths, start=first):
            final = observed(number, [length]) if final_obs else None
            writer.add(steps_of(number, length, ENDINGS[number % 3]), final_obs=final)


def test_a_folder_reads_like_memory(tmp_path):
    lengths = [3, 1, 4, 2, 300]
    write(tmp_path, lengths)
    chosen: dict[str, Any] = {"dataset_loops": 2, "random_shuffle_traj_order": True, "starting_frame_range": (0, 3)}
    disk = RolloutDataset(tmp_path, 3, **chosen)
    memory = RolloutDataset([recorded(lengths)], 3, **chosen)
    for num_steps in (None, 5, 250, 60):
        found, wanted = disk.get_batch(num_steps), memory.get_batch(num_steps)
        assert torch.equal(found.valid, wanted.valid) and torch.equal(found.timeout, wanted.timeout)
        for name, value in wanted.final_observation.items():
            assert torch.equal(found.final_observation[name], value)


def test_several_folders_are_one_dataset(tmp_path):
    write(tmp_path / "a", [2, 2])
    write(tmp_path / "b", [3], first=2)
    dataset = RolloutDataset([str(tmp_path / "a"), tmp_path / "b"], 1)
    assert dataset.get_batch(7).observation["place"][:, 0, 0].tolist() == [0, 0, 1, 1, 2, 2, 2]
    write(tmp_path / "c", [1], final_obs=False)
    with pytest.raises(TrajectoryMismatch, match="final_obs"):
        RolloutDataset([tmp_path / "a", tmp_path / "c"], 1).get_batch()
    # a folder in which others begin to record later, first in the list or not
    late = RolloutDataset([tmp_path / "d", tmp_path / "a"], 1, dataset_loops=0, refresh_seconds=0.0)
    late.get_batch()
    write(tmp_path / "d", [1], final_obs=False)
    with pytest.raises(TrajectoryMismatch, match="final_obs"):
        late.get_batch(8)


def test_trajectories_of_a_writer_at_work_are_picked_up(tmp_path):
    write(tmp_path, [2])
    dataset = RolloutDataset(tmp_path, 1, dataset_loops=0, refresh_seconds=0.0)
    dataset.get_batch(3)  # the third step begins the second pass
    write(tmp_path, [1], first=1)
    assert dataset.get_batch(4).observation["place"][:, 0, 0].tolist() == [0, 0, 0, 1]
    assert dataset.num_trajs == 2


def test_resuming_goes_on_exactly_whatever_was_recorded_since(tmp_path):
    write(tmp_path, [3, 5, 2, 4])
    chosen: dict[str, Any] = {"dataset_loops": 2, "random_shuffle_traj_order": True, "starting_frame_range": (0, 2)}
    dataset = RolloutDataset(tmp_path, 2, **chosen)
    dataset.get_batch(3)
    state = dataset.state_dict()
    wanted = dataset.get_batch(4)  # within the first pass
    write(tmp_path, [1, 1], first=4)
    again = RolloutDataset(tmp_path, 2, **chosen)
    again.load_state_dict(state)
    found = again.get_batch(4)
    assert torch.equal(found.observation["place"], wanted.observation["place"])
    with pytest.raises(ValueError, match="2 cursors were saved"):
        RolloutDataset(tmp_path, 3).load_state_dict(state)
    write(tmp_path / "other", [3])
    with pytest.raises(TrajectoryMissing, match="have gone"):
        RolloutDataset(tmp_path / "other", 2).load_state_dict(state)


def test_a_dataset_that_was_not_used_has_no_state(tmp_path):
    dataset = RolloutDataset(tmp_path, 2)
    assert dataset.state_dict() == {}
    dataset.load_state_dict({})


def test_waiting_has_an_end(tmp_path, caplog):
    dataset = RolloutDataset(tmp_path, 2, wait_timeout=0.11)
    with pytest.raises(TrajectoryTimeout, match="found 0"):
        dataset.get_batch()
    assert caplog.text.count("waiting up to 0.11 s for 1 trajectories in") == 1, "said at once, and once"
    write(tmp_path, [2])
    with pytest.raises(TrajectoryTimeout, match="for 2 trajectories"):
        RolloutDataset(tmp_path, 2, min_trajs=2, wait_timeout=0.0).get_batch()
    assert dataset.read_dataset_directory()
    assert bool(dataset.get_batch().valid[0])


def test_an_end_in_the_middle_is_refused():
    source = recorded([4])
    source.refresh()
    source.steps[0]["terminated"][1] = True
    with pytest.raises(ValueError, match="ends at step 1 of 4"):
        RolloutDataset([source], 1).get_batch()


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_envs": 0},
        {"starting_frame_range": [3, 3]},
        {"keep_latest_n_trajs": -1},
        {"share": (2, 2)},
        {"min_trajs": 0},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError):
        RolloutDataset(**{"data_dir": "nowhere", "num_envs": 1, **wrong})


def test_env_ids_may_be_a_mask_and_must_exist():
    dataset = RolloutDataset([recorded([3, 3, 3])], 2)
    dataset.get_batch()
    dataset.reset(torch.tensor([False, True]))
    assert dataset.get_batch().observation["place"].tolist() == [[0, 1], [2, 0]]
    with pytest.raises(IndexError, match="0 to 1"):
        dataset.reset([2])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_reads_what_the_cpu_reads(tmp_path):
    write(tmp_path, [3, 1, 40, 7, 300, 12])
    chosen: dict[str, Any] = {"dataset_loops": 3, "random_shuffle_traj_order": True, "cache_bytes": 40_000}
    cpu, gpu = RolloutDataset(tmp_path, 5, **chosen), RolloutDataset(tmp_path, 5, device="cuda", **chosen)
    for num_steps in (None, 7, 60, 200, None):
        for (path, wanted), (_, found) in zip(
            tree.items(cpu.get_batch(num_steps)), tree.items(gpu.get_batch(num_steps))
        ):
            assert found.is_cuda and torch.equal(found.cpu(), wanted), path


# -- loaders -----------------------------------------------------------------------------------------------------------


def samples(batches: Any) -> list[tuple[float, float]]:
    found = [step.observation["place"][step.valid] for step in batches]
    return sorted(map(tuple, torch.cat(found).tolist()))


def samples_or_nothing(dataset: RolloutDataset) -> list[tuple[float, float]]:
    steps = list(dataset)
    return samples(steps) if steps else []


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_gives_every_sample_once(tmp_path, num_workers):
    lengths = [3, 1, 4, 2, 6]
    write(tmp_path, lengths[:3])
    write(tmp_path, lengths[3:], first=3)  # a second shard
    dataset = RolloutDataset(tmp_path, 2, random_shuffle_traj_order=True)
    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers)
    wanted = [(float(number), float(frame)) for number, length in enumerate(lengths) for frame in range(length)]
    assert samples(loader) == wanted
    assert samples(loader) == wanted  # a second epoch


def test_a_dataset_can_be_sent_to_another_process(tmp_path):
    write(tmp_path, [2, 2])
    dataset = RolloutDataset(tmp_path, 2)
    dataset.get_batch()
    assert samples(pickle.loads(pickle.dumps(dataset))) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_shares_are_disjoint_and_even(tmp_path):
    write(tmp_path, [1] * 10)
    parts = [samples(RolloutDataset(tmp_path, 3, share=(part, 3))) for part in range(3)]
    assert sorted(sample for part in parts for sample in part) == [(float(number), 0.0) for number in range(10)]
    assert sorted(map(len, parts)) == [3, 3, 4]
    assert Share(1, 2).within(Share(2, 3)) == Share(5, 6)


def test_an_empty_share_is_waited_for_only_by_who_reads_without_end(tmp_path):
    write(tmp_path, [1])
    empty = next(part for part in range(2) if not samples_or_nothing(RolloutDataset(tmp_path, 1, share=(part, 2))))
    with pytest.raises(TrajectoryTimeout, match="for 2 trajectories"):
        RolloutDataset(tmp_path, 1, dataset_loops=0, share=(empty, 2), wait_timeout=0.0).get_batch()


# -- the base class ----------------------------------------------------------------------------------------------------


class Counting(RolloutFileBase):
    """Envs that count; every fourth number ends a trajectory."""

    def reset_all(self) -> None:
        self.count = torch.zeros(self.num_envs)

    def refresh_handlers(self, env_ids: Any) -> None:
        self.count[env_ids] = 0

    def get_buffer(self, num_transitions_per_env: int | None = None) -> PlayedTransition:
        shape = (self.num_envs,) if num_transitions_per_env is None else (num_transitions_per_env, self.num_envs)
        number, flag = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
        return PlayedTransition({"n": number}, {}, number, number.clone(), flag, flag, {}, {}, {}, flag)

    def fill_transition(self, buffer: PlayedTransition, env_ids: Any = None) -> None:
        for row in buffer.reward.view(-1, self.num_envs):
            if bool((self.count >= 4).all()):
                raise DatasetOver
            row.copy_(self.count)
            self.count += 1


def test_four_methods_make_a_dataset():
    dataset = Counting("anywhere", 2)
    assert dataset.get_batch().reward.tolist() == [0, 0]  # the first use resets
    dataset.reset([1])
    assert dataset.get_batch(2).reward.tolist() == [[1, 0], [2, 1]]
    assert [step.reward.tolist() for step in dataset] == [[n, n] for n in range(4)]
    transition, infos = dataset.get_transition_batch() if dataset.reset() is None else (None, None)
    assert infos["time_outs"] is transition.timeout
    with pytest.raises(TypeError, match="abstract"):
        RolloutFileBase("anywhere", 1)
