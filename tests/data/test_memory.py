import copy
import math
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap

import numpy as np
import pytest

from striderl.data.memory import SharedArray, SharedBlock, shared_array

START_METHODS = ["fork", "forkserver", "spawn"]


def run_child(method, target, *args):
    process = multiprocessing.get_context(method).Process(target=target, args=args)
    process.start()
    process.join(120)
    assert process.exitcode == 0


def write_block(block):
    block.array((3,), "int64")[:] = [7, 8, 9]
    block.array((2,), "float32", offset=24)[1] = 0.5


def write_array(array, value):
    array[...] = value


def write_both(pair):
    # both arrays lie in one block, and still do after the journey
    pair[0][:] = 3
    assert pair[1].tolist() == [3, 3]


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_a_block_starts_as_zeros_and_its_arrays_are_views_of_the_same_bytes():
    block = SharedBlock(16)
    bytes_ = block.array((16,), "uint8")
    assert block.num_bytes == 16 and not bytes_.any()
    block.array((2,), "<u4", offset=8)[:] = [1, 0x0203]
    assert bytes_.tolist() == [0] * 8 + [1, 0, 0, 0, 3, 2, 0, 0]
    assert type(bytes_) is np.ndarray and bytes_.flags.writeable


@pytest.mark.slow
@pytest.mark.parametrize("method", START_METHODS)
def test_a_child_writes_into_a_block_and_the_parent_sees_it(method):
    block = SharedBlock(32)
    run_child(method, write_block, block)
    assert block.array((3,), "int64").tolist() == [7, 8, 9]
    assert block.array((2,), "float32", offset=24).tolist() == [0.0, 0.5]


def test_an_array_outlives_its_block_and_closing_twice_is_fine():
    block = SharedBlock(8)
    array = block.array((8,), "uint8")
    block.close()
    block.close()
    assert block.closed and "closed" in repr(block)
    array[:] = 5
    assert array.sum() == 40
    with pytest.raises(ValueError, match="8 bytes is closed"):
        block.array((8,), "uint8")


def test_an_empty_block_gives_empty_arrays_only():
    block = SharedBlock(0)
    assert block.num_bytes == 0
    assert block.array((0, 3), "float32").shape == (0, 3)
    with pytest.raises(ValueError, match=r"wants the bytes 0\.\.1, the block has 0\.\.0"):
        block.array((1,), "uint8")


@pytest.mark.parametrize(
    ("shape", "dtype", "offset", "message"),
    [
        ((3,), "int32", 0, r"shape \(3,\) of int32 at offset 0 wants the bytes 0\.\.12, the block has 0\.\.8"),
        ((2,), "int32", 4, r"wants the bytes 4\.\.12"),
        ((1,), "int32", -4, r"offset -4 wants the bytes -4\.\.0"),
        ((-1,), "int32", 0, "no negative sizes"),
    ],
)
def test_an_array_that_does_not_fit_its_block_is_an_error(shape, dtype, offset, message):
    with pytest.raises(ValueError, match=message):
        SharedBlock(8).array(shape, dtype, offset)


def test_python_objects_cannot_be_shared():
    with pytest.raises(TypeError, match="object holds Python objects"):
        SharedBlock(8).array((1,), object)


def test_a_negative_size_is_an_error():
    with pytest.raises(ValueError, match="num_bytes >= 0, found -1"):
        SharedBlock(-1)


def test_a_block_cannot_become_bytes_or_a_copy():
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled to bytes or deep-copied"):
            attempt(SharedBlock(8))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc, which only Linux has")
def test_descriptors_are_given_back_when_blocks_are_dropped_or_closed():
    before = open_descriptors()
    blocks = [SharedBlock(64) for _ in range(5)]
    assert open_descriptors() >= before + 5
    blocks[0].close()
    del blocks
    assert open_descriptors() == before


@pytest.mark.slow
def test_without_memfd_an_unlinked_file_serves(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    block = SharedBlock(32)
    assert os.listdir(tmp_path) == []
    for method in START_METHODS:
        block.array((32,), "uint8")[:] = 0
        run_child(method, write_block, block)
        assert block.array((3,), "int64").tolist() == [7, 8, 9]


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="reads /proc, which only Linux has")
def test_the_memory_has_no_name_anywhere_so_kill_9_of_parent_and_child_leaves_nothing():
    program = """
        import multiprocessing, time
        from striderl.data.memory import shared_array

        def hold(array, ready):
            array[:] = 1
            ready.send("written")
            time.sleep(60)

        array = shared_array((1 << 20,), "uint8")
        ready, other = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=hold, args=(array, other))
        child.start()
        ready.recv()
        print(child.pid, array.sum(), flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    pid, total = parent.stdout.readline().split()
    maps = [line.split(maxsplit=5) for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()]
    shared = [parts[5].strip() for parts in maps if parts[1] == "rw-s"]
    os.kill(parent.pid, signal.SIGKILL)
    os.kill(int(pid), signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert int(total) == 1 << 20  # the memory was really shared while they lived
    assert any("striderl" in name for name in shared)
    # no directory lists it, so the kernel frees it with its last user
    assert all(name.endswith("(deleted)") for name in shared)


# -- arrays that carry their block -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_a_child_writes_into_a_shared_array_and_the_parent_sees_it(method, dtype):
    array = shared_array((2, 3), dtype)
    assert array.dtype == dtype and not array.any()
    run_child(method, write_array, array, 1)
    assert array.tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("method", START_METHODS)
def test_a_worker_can_be_given_its_own_columns(method):
    array = shared_array((2, 4), "int32")
    run_child(method, write_array, array[:, 1:3], [[1, 2], [3, 4]])
    assert array.tolist() == [[0, 1, 2, 0], [0, 3, 4, 0]]
    run_child(method, write_array, array[::-1, ::-2], [[5, 6], [7, 8]])
    # rows backwards, columns 3 and 1 backwards: 5 goes to the last row, last column
    assert array.tolist() == [[0, 8, 2, 7], [0, 6, 4, 5]]


def test_two_arrays_of_one_block_still_share_it_in_the_child():
    array = shared_array((2,), "int32")
    run_child("spawn", write_both, (array, array[:]))
    assert array.tolist() == [3, 3]


def test_a_shared_array_can_be_sent_through_a_queue_to_a_running_process():
    array = shared_array((2,), "int32")
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=write_what_arrives, args=(theirs,))
    process.start()
    ours.send(array)
    assert ours.recv() == "written"
    process.join(120)
    assert array.tolist() == [4, 4]


def write_what_arrives(connection):
    connection.recv()[:] = 4
    connection.send("written")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_arrays_of_size_zero_travel_too(shape, method):
    array = shared_array(shape, "float32")
    assert array.shape == shape and array.size == math.prod(shape)
    run_child(method, write_array, array, 1)


def test_a_single_number_can_be_shared():
    counter = shared_array((), "int64")
    run_child("spawn", write_array, counter, 12)
    assert int(counter) == 12


def same_memory(array):
    return type(array).__name__, array.flags.writeable, array.tolist()


def test_a_read_only_view_stays_read_only():
    array = shared_array((2,), "int32")
    array.flags.writeable = False
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(same_memory, (array,)) == ("SharedArray", False, [0, 0])


def test_copies_and_results_are_ordinary_memory_and_are_sent_by_value():
    array = shared_array((3,), "int32")
    array[:] = [1, 2, 3]
    assert type(array + 1) is np.ndarray and isinstance(array.sum(), np.integer)
    assert isinstance(array[1:], SharedArray)
    array += 1
    assert isinstance(array, SharedArray) and array.tolist() == [2, 3, 4]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(same_memory, (array[[0, 2]],)) == ("ndarray", True, [2, 4])
    stored = pickle.loads(pickle.dumps(array))
    stored[:] = 0
    assert array.tolist() == [2, 3, 4]
    copied = copy.deepcopy(array)
    copied[:] = 0
    assert array.tolist() == [2, 3, 4]


def test_an_array_whose_block_was_closed_is_not_sent():
    block = SharedBlock(4)
    array = block.array((4,), "uint8").view(SharedArray)
    block.close()
    process = multiprocessing.get_context("spawn").Process(target=write_array, args=(array, 1))
    with pytest.raises(ValueError, match="closed, so it cannot be sent"):
        process.start()


def test_importing_the_module_does_not_load_torch():
    program = "import sys, striderl.data.memory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
