"""rlpyt's launcher: which processors a run gets, variants of a config, and many runs on one machine.

    code = encode_affinity(n_cpu_core=8, n_gpu=2)          "8cpu_2gpu_16hto", for the command line of a training script
    slot_code = prepend_run_slot(1, code)                  the second of its run slots, "1slt_8cpu_2gpu_16hto"
    affinity_from_code(slot_code)                          master_cpus, workers_cpus, cuda_idx, … for a runner

    machine      core 0 1 2 3 4 5 6 7      hyperthread of core c: c + hyperthread_offset
    run slot 0        m m m m              m: master_cpus; workers_cpus leaves the first cpu_reserved out
    run slot 1                m m m m

    variants, log_dirs = make_variants(VariantLevel(keys, values, dir_names), …)      every combination of the levels
    run_experiments(script, code, "title", 2, variants, log_dirs)            python script slot_code log_dir run_ID

One GPU per run gives one such dict, several a list of them (`SyncRl`), and `async_sample` one with 'optimizer' and
'sampler' (`AsyncRl`).
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from striderl.checkpoint.safe_files import read_json, write_text
from striderl.compat.rlpyt.logger import get_log_dir, log
from striderl.compat.rlpyt.tensors import AttrDict

N_GPU, CONTEXTS_PER_GPU, GPU_PER_RUN = "gpu", "cxg", "gpr"
N_CPU_CORE, HYPERTHREAD_OFFSET, N_SOCKET = "cpu", "hto", "skt"
RUN_SLOT, CPU_PER_WORKER, CPU_PER_RUN, CPU_RESERVED = "slt", "cpw", "cpr", "res"
ASYNC_SAMPLE, SAMPLE_GPU_PER_RUN, OPTIM_SAMPLE_SHARE_GPU = "ass", "sgr", "oss"
ALTERNATING, SET_AFFINITY = "alt", "saf"
ABBREVS = [N_GPU, CONTEXTS_PER_GPU, GPU_PER_RUN, N_CPU_CORE, HYPERTHREAD_OFFSET, N_SOCKET, CPU_PER_RUN, CPU_PER_WORKER]
ABBREVS += [CPU_RESERVED, ASYNC_SAMPLE, SAMPLE_GPU_PER_RUN, OPTIM_SAMPLE_SHARE_GPU, ALTERNATING, SET_AFFINITY]

VARIANT = "variant_config.json"
SLOT_SECONDS = 0.5
"""How often `run_experiments` looks for a run slot that became free."""


def _require(right: bool, text: str) -> None:
    if not right:
        raise ValueError(text)


# -- codes -------------------------------------------------------------------------------------------------------------


def quick_affinity_code(n_parallel: int | None = None, use_gpu: bool = True, contexts_per_gpu: int = 1) -> str:
    """Return a code that divides this machine evenly: a run per GPU, or `n_parallel` runs without them."""
    n_gpu = torch.cuda.device_count() if use_gpu else 0
    cores = max(1, (os.cpu_count() or 2) // 2)
    if n_gpu > 0:
        n_gpu = n_gpu if n_parallel is None else min(n_parallel, n_gpu)
        runs = n_gpu * contexts_per_gpu
        return encode_affinity(cores // runs * runs, n_gpu, contexts_per_gpu)
    if not n_parallel:
        raise ValueError("quick_affinity_code wants n_parallel of 1 or more where no GPU is used or found")
    runs = min(n_parallel, cores)
    return encode_affinity(cores // runs * runs, n_gpu=0, cpu_per_run=cores // runs)


def encode_affinity(
    n_cpu_core: int = 1,
    n_gpu: int = 0,
    contexts_per_gpu: int = 1,
    gpu_per_run: int = 1,
    cpu_per_run: int = 1,
    cpu_per_worker: int = 1,
    cpu_reserved: int = 0,
    hyperthread_offset: int | None = None,
    n_socket: int | None = None,
    run_slot: int | None = None,
    async_sample: bool = False,
    sample_gpu_per_run: int = 0,
    optim_sample_share_gpu: bool = False,
    alternating: bool = False,
    set_affinity: bool = True,
) -> str:
    """Return the code of a machine and of what a run gets of it.

    Args:
        n_cpu_core: cores, without hyperthreads, for all runs together.
        n_gpu: GPUs for all runs together.
        contexts_per_gpu: runs that share a GPU.
        gpu_per_run: GPUs of one run, for `SyncRl`.
        cpu_per_run: cores of one run, without GPUs.
        cpu_per_worker: cores of one worker process; 1 unless the env has threads.
        cpu_reserved: cores of a run, or of a GPU of `AsyncRl`, that workers do not get.
        hyperthread_offset: the number of the first hyperthread; 0 for none, None to find it out.
        n_socket: processors with their own half of the GPUs; None to find it out.
        run_slot: the place of a run; None in the program that launches them.
        async_sample: whether runs sample and learn at once.
        sample_gpu_per_run: GPUs of one such run for sampling.
        optim_sample_share_gpu: whether it samples on the GPUs on which it learns.
        alternating: whether samplers alternate, which doubles the workers.
        set_affinity: whether processes are tied to their processors.
    """
    offset = get_hyperthread_offset() if hyperthread_offset is None else hyperthread_offset
    sockets = get_n_socket() if n_socket is None else n_socket
    parts = [
        (run_slot, RUN_SLOT, run_slot is not None),
        (n_cpu_core, N_CPU_CORE, True),
        (n_gpu, N_GPU, True),
        (contexts_per_gpu, CONTEXTS_PER_GPU, contexts_per_gpu > 1),
        (gpu_per_run, GPU_PER_RUN, gpu_per_run > 1),
        (cpu_per_run, CPU_PER_RUN, n_gpu == 0),
        (cpu_per_worker, CPU_PER_WORKER, cpu_per_worker > 1),
        (offset, HYPERTHREAD_OFFSET, offset != n_cpu_core),
        (sockets, N_SOCKET, sockets > 1),
        (cpu_reserved, CPU_RESERVED, cpu_reserved > 0),
        (1, ASYNC_SAMPLE, async_sample),
        (sample_gpu_per_run, SAMPLE_GPU_PER_RUN, sample_gpu_per_run > 0),
        (1, OPTIM_SAMPLE_SHARE_GPU, optim_sample_share_gpu),
        (1, ALTERNATING, alternating),
        (0, SET_AFFINITY, not set_affinity),
    ]
    slots = n_gpu * contexts_per_gpu // gpu_per_run
    _require(run_slot is None or run_slot <= slots, f"run_slot is at most {slots} on {n_gpu} GPUs, found {run_slot}")
    return "_".join(f"{value}{name}" for value, name, wanted in parts if wanted)


def prepend_run_slot(run_slot: int, affinity_code: str) -> str:
    """Return the code of one run slot of a machine."""
    return f"{run_slot}{RUN_SLOT}_{affinity_code}"


def remove_run_slot(run_slot_affinity_code: str) -> tuple[int, str]:
    """Return the run slot of a code, and the code without it."""
    slot, _, code = run_slot_affinity_code.partition("_")
    _require(slot.endswith(RUN_SLOT), f"a run slot comes first, as in '0slt_…'; found {run_slot_affinity_code!r}")
    return int(slot.removesuffix(RUN_SLOT)), code


def decode_affinity(affinity_code: str) -> dict[str, int]:
    """Return the numbers of a code by their abbreviations."""
    parts = affinity_code.split("_")
    for part in parts:
        _require(part[-3:] in ABBREVS, f"{part!r} of {affinity_code!r} ends in none of {', '.join(ABBREVS)}")
    return {part[-3:]: int(part[:-3]) for part in parts}


def get_n_run_slots(affinity_code: str) -> int:
    """Return how many runs fit on the machine of a code at once."""
    given = decode_affinity(affinity_code)
    if given.get(ASYNC_SAMPLE, 0):
        sampling = 0 if given.get(OPTIM_SAMPLE_SHARE_GPU, 0) else given.get(SAMPLE_GPU_PER_RUN, 0)
        return given[N_GPU] // (given.get(GPU_PER_RUN, 1) + sampling)
    if given.get(N_GPU, 0):
        return given[N_GPU] * given.get(CONTEXTS_PER_GPU, 1) // given.get(GPU_PER_RUN, 1)
    return given[N_CPU_CORE] // given[CPU_PER_RUN]


def affinity_from_code(run_slot_affinity_code: str) -> Any:
    """Return the processors of a run slot, for a runner; a list of them where the run has several GPUs."""
    slot, code = remove_run_slot(run_slot_affinity_code)
    given = decode_affinity(code)
    if not given.get(N_GPU, 0):
        return build_cpu_affinity(slot, **given)
    if given.pop(ASYNC_SAMPLE, 0):
        return build_async_affinity(slot, **given)
    return (build_multigpu_affinity if given.get(GPU_PER_RUN, 1) > 1 else build_gpu_affinity)(slot, **given)


def make_affinity(run_slot: int = 0, **kwargs: Any) -> Any:
    """Return the processors of a run slot; the arguments are those of `encode_affinity`."""
    return affinity_from_code(encode_affinity(run_slot=run_slot, **kwargs))


def _cpuinfo(*keys: str) -> set[tuple[str, ...]]:
    """Return the different values of these lines of /proc/cpuinfo; none where there is no such file."""
    try:
        blocks = Path("/proc/cpuinfo").read_text().split("\n\n")
    except OSError:
        return set()
    found = [dict(re.findall(r"^(.*?)\s*:\s*(.*)$", block, re.M)) for block in blocks]
    return {tuple(block[key] for key in keys) for block in found if all(key in block for key in keys)}


def get_n_socket() -> int:
    """Return the number of processors of this machine, each with many cores."""
    return max(1, len(_cpuinfo("physical id")))


def get_hyperthread_offset() -> int:
    """Return the number of the first hyperthread of this machine; 0 where there seem to be none."""
    threads = os.cpu_count() or 1
    cores = len(_cpuinfo("physical id", "core id")) or threads
    return threads // 2 if threads != cores and threads % 2 == 0 else 0


# -- processors --------------------------------------------------------------------------------------------------------


def get_master_cpus(cores: Sequence[int], hto: int) -> tuple[int, ...]:
    """Return cores and their hyperthreads."""
    return (*cores, *(core + hto for core in cores if hto > 0))


def get_workers_cpus(cores: Sequence[int], cpw: int, hto: int, alt: int) -> tuple[tuple[int, ...], ...]:
    """Return the processors of each worker: `cpw` cores and their hyperthreads; alternating, one or the other."""
    groups = [tuple(cores[start : start + cpw]) for start in range(0, len(cores) // cpw * cpw, cpw)]
    threads = [tuple(core + hto for core in group) for group in groups]
    if alt:
        return (*groups, *(threads if hto > 0 else groups))
    return tuple(group + more for group, more in zip(groups, threads)) if hto > 0 else tuple(groups)


def _processors(cores: Sequence[int], for_workers: Sequence[int], cpw: int, hto: int, alt: int, saf: int) -> AttrDict:
    master = get_master_cpus(cores, hto)
    return AttrDict(
        all_cpus=master,
        master_cpus=master,
        workers_cpus=get_workers_cpus(for_workers, cpw, hto, alt),
        master_torch_threads=len(cores),
        worker_torch_threads=cpw,
        alternating=bool(alt),
        set_affinity=bool(saf),
    )


def build_cpu_affinity(
    slt: int,
    cpu: int,
    cpr: int,
    cpw: int = 1,
    hto: int | None = None,
    res: int = 0,
    skt: int = 1,
    gpu: int = 0,
    alt: int = 0,
    saf: int = 1,
) -> AttrDict:
    """Return the processors of a run without GPU."""
    hto = cpu if hto is None else hto
    slots, span = cpu // cpr, max(cpu, hto) // skt
    _require(gpu == 0 and cpu % cpr == 0, f"{cpu} cores do not divide into runs of {cpr}, or there are GPUs ({gpu})")
    _require((hto - cpu) % skt == 0, f"{hto} - {cpu} cores are not the same on {skt} sockets")
    _require(slt <= slots, f"the run slot is at most {slots}, found {slt}")
    if slots >= skt:
        socket, place = divmod(slt, slots // skt)
        first = socket * span + place * cpr
        cores = list(range(first, first + cpr))
    else:  # a run has several sockets
        each = skt // slots
        starts = [(slt * each + socket) * span for socket in range(each)]
        cores = [core for start in starts for core in range(start, start + cpr // each)]
    _require(len(cores[res:]) % cpw == 0, f"{len(cores[res:])} cores do not divide into workers of {cpw}")
    return _processors(cores, cores[res:], cpw, hto, alt, saf)


def build_gpu_affinity(
    slt: int,
    gpu: int,
    cpu: int,
    cxg: int = 1,
    cpw: int = 1,
    hto: int | None = None,
    res: int = 0,
    skt: int = 1,
    alt: int = 0,
    saf: int = 1,
) -> AttrDict:
    """Return the processors and the GPU of a run with one; cores are divided evenly."""
    contexts = gpu * cxg
    _require(slt < contexts, f"{contexts} runs fit on {gpu} GPUs, found the run slot {slt}")
    _require(cpu % contexts == 0, f"{cpu} cores do not divide among {contexts} runs")
    slt = slt % gpu * cxg + slt // gpu if cxg > 1 else slt  # runs go to free GPUs first
    found = build_cpu_affinity(slt, cpu, cpu // contexts, cpw, hto, res, skt, 0, alt, saf)
    found["cuda_idx"] = slt // cxg
    return found


def build_multigpu_affinity(
    run_slot: int,
    gpu: int,
    cpu: int,
    gpr: int = 1,
    cpw: int = 1,
    hto: int | None = None,
    res: int = 0,
    skt: int = 1,
    alt: int = 0,
    saf: int = 1,
) -> list[AttrDict]:
    """Return the processors and the GPU of each process of a run."""
    slots = range(run_slot * gpr, (run_slot + 1) * gpr)
    return [build_gpu_affinity(slot, gpu, cpu, 1, cpw, hto, res, skt, alt, saf) for slot in slots]


def build_async_affinity(
    run_slot: int,
    gpu: int,
    cpu: int,
    gpr: int = 1,
    sgr: int = 0,
    oss: int = 0,
    cpw: int = 1,
    hto: int | None = None,
    res: int = 1,
    skt: int = 1,
    alt: int = 0,
    saf: int = 1,
) -> AttrDict:
    """Return the processors and GPUs of a run that samples and learns at once: 'optimizer', a list, and 'sampler'.

    Each GPU that learns has `res` cores, on its own socket; the rest of the run's cores are for sampling.
    """
    sgr, own = (gpr, 0) if oss else (sgr, sgr)
    slots = gpu // (gpr + own)
    _require(run_slot < slots, f"{slots} runs fit on {gpu} GPUs, found the run slot {run_slot}")
    hto = cpu if hto is None else hto
    per_run, gpus, span = cpu // slots, gpu // skt, max(cpu, hto) // skt
    spread = gpr + own > gpus  # over several sockets
    if spread:
        each = skt // slots
        _require(
            gpr % each == 0 == sgr % each, f"{gpr} and {sgr} GPUs do not divide among {each} sockets; try n_socket=1"
        )
        sockets, place = [run_slot * each + socket for socket in range(each)], 0
    else:
        _require(slots % skt == 0, f"{slots} runs do not divide among {skt} sockets")
        (socket, place), each = divmod(run_slot, slots // skt), 1
        sockets = [socket]
    starts = [socket * gpus + place * (gpr + own) for socket in sockets]
    learning = [start + number for start in starts for number in range(gpr // each)]
    sampling = learning if oss else [start + gpr // each + number for start in starts for number in range(sgr // each)]
    optimizer = []
    for number, index in enumerate(learning):
        socket, within = divmod(index, gpus)
        first = socket * span + place * per_run + (within if spread else number) * res
        cpus = get_master_cpus(range(first, first + res), hto)
        optimizer.append({"cpus": cpus, "cuda_idx": index, "torch_threads": res, "set_affinity": bool(saf)})
    left = (per_run - res * gpr) // cpw * cpw
    samplers: list[AttrDict] = []
    for number, index in enumerate(sampling):
        socket, within = divmod(index, gpus)
        count = left // sgr
        first = socket * span + place * per_run + gpr // each * res
        first += (within - gpr // each if spread else number) * count
        cores = range(first, first + count)
        samplers.append(AttrDict(_processors(cores, cores, cpw, hto, alt, saf), cuda_idx=index))
    sampler: Any = samplers
    if not samplers:
        used = (gpr // gpus if spread else gpr) * res
        firsts = [socket * span + place * per_run + used for socket in sockets]
        line = [core for first in firsts for core in range(first, first + left // each)]
        sampler = AttrDict(_processors(line, line, cpw, hto, alt, saf), cuda_idx=None)
        samplers = [sampler]
    everything = [cpu for part in optimizer for cpu in part["cpus"]]  # type: ignore[attr-defined]
    everything += [cpu for part in samplers for cpu in part["all_cpus"]]
    return AttrDict(all_cpus=tuple(everything), optimizer=optimizer, sampler=sampler, set_affinity=bool(saf))


# -- variants ----------------------------------------------------------------------------------------------------------


class VariantLevel(NamedTuple):
    """Settings that change together."""

    keys: Sequence[Sequence[str]]
    """Paths into the config, such as ("algo", "learning_rate")."""
    values: Sequence[Sequence[Any]]
    """One row per variant, with a value for each key."""
    dir_names: Sequence[str]
    """The folder of each variant."""


def make_variants(*variant_levels: VariantLevel) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the variants of all combinations of the levels, and their folders."""
    variants, log_dirs = [dict[str, Any]()], [""]
    for keys, values, dir_names in variant_levels:
        _require(len(values) == len(dir_names), f"{len(values)} rows of values want as many folders, found {dir_names}")
        for row in values:
            _require(len(row) == len(keys), f"a row of values has one for each of {list(keys)}, found {list(row)}")
        log_dirs = [os.path.join(before, name) for before in log_dirs for name in dir_names]
        _require(len(set(log_dirs)) == len(log_dirs), f"every variant wants a folder of its own, found {log_dirs}")
        variants = [_with_values(before, keys, row) for before in variants for row in values]
    return variants, log_dirs


def _with_values(variant: Mapping[str, Any], keys: Sequence[Sequence[str]], values: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = copy.deepcopy(dict(variant))
    for path, value in zip(keys, values):
        inner = found
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value
    return found


def load_variant(log_dir: str | Path) -> Any:
    """Return the variant of a folder."""
    return read_json(Path(log_dir) / VARIANT)


def save_variant(variant: Mapping[str, Any], log_dir: str | Path) -> None:
    """Write the variant of a folder."""
    write_text(Path(log_dir) / VARIANT, json.dumps(variant))


def update_config(default: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the values of a variant; what the config does not have raises."""
    new = dict(default)
    for key, value in variant.items():
        if key not in new:
            raise KeyError(f"the variant has {key!r}, the config has {', '.join(map(repr, new))}")
        if isinstance(value, dict) != isinstance(new[key], dict):
            raise TypeError(f"{key!r} is a dict in only one of variant and config: {value!r} and {new[key]!r}")
        new[key] = update_config(new[key], value) if isinstance(value, dict) else value
    return new


# -- runs --------------------------------------------------------------------------------------------------------------


def log_exps_tree(exp_dir: str | Path, log_dirs: Sequence[str], runs_per_setting: int) -> None:
    """Write the folders of all runs to experiments_tree.txt."""
    Path(exp_dir).mkdir(parents=True, exist_ok=True)
    head = f"Experiment manager process ID: {os.getpid()}.\nNumber of settings (experiments) to run: {len(log_dirs)}"
    lines = [f"{head}  ({runs_per_setting * len(log_dirs)}).\n", *log_dirs, ""]
    write_text(Path(exp_dir) / "experiments_tree.txt", "\n".join(lines))


def log_num_launched(exp_dir: str | Path, n: int, total: int) -> None:
    """Write how many runs were launched to num_launched.txt."""
    write_text(Path(exp_dir) / "num_launched.txt", f"Experiments launched so far: {n} out of {total}.\n")


def launch_experiment(
    script: str,
    run_slot: int,
    affinity_code: str,
    log_dir: str | Path,
    variant: Mapping[str, Any],
    run_ID: int,
    args: Sequence[Any],
    python_executable: str | None = None,
    set_egl_device: bool = False,
) -> subprocess.Popen[bytes]:
    """Write the variant and start `python script slot_affinity_code log_dir run_ID *args` on its processors alone."""
    code = prepend_run_slot(run_slot, affinity_code)
    affinity = affinity_from_code(code)
    parts = affinity if isinstance(affinity, list) else [affinity]
    cpus = ",".join(str(cpu) for part in parts for cpu in part.get("all_cpus", ()))
    call = ["taskset", "-c", cpus] if cpus else []
    call += [python_executable or sys.executable, script, code, str(log_dir), str(run_ID), *map(str, args)]
    save_variant(variant, log_dir)
    log(f"call string: {' '.join(call)}")
    env = dict(os.environ)
    if set_egl_device and parts[0].get("cuda_idx") is not None:
        env["EGL_DEVICE_ID"] = str(parts[0]["cuda_idx"])
    return subprocess.Popen(call, env=env)


def run_experiments(
    script: str,
    affinity_code: str,
    experiment_title: str,
    runs_per_setting: int,
    variants: Sequence[Mapping[str, Any]],
    log_dirs: Sequence[str],
    common_args: Sequence[Any] | None = None,
    runs_args: Sequence[Sequence[Any]] | None = None,
    set_egl_device: bool = False,
) -> None:
    """Run every variant `runs_per_setting` times, as many at once as the machine has run slots; wait for the last."""
    more = [()] * len(variants) if runs_args is None else runs_args
    _require(len(variants) == len(log_dirs) == len(more), "variants, log_dirs and runs_args have one entry per setting")
    exp_dir = get_log_dir(experiment_title)
    slots: list[subprocess.Popen[bytes] | None] = [None] * get_n_run_slots(affinity_code)
    log_exps_tree(exp_dir, log_dirs, runs_per_setting)
    runs = [(run_ID, *setting) for run_ID in range(runs_per_setting) for setting in zip(variants, log_dirs, more)]
    for number, (run_ID, variant, name, run_args) in enumerate(runs, 1):
        log_dir = Path(exp_dir) / name
        log_dir.mkdir(parents=True, exist_ok=True)
        slot = _free_slot(slots)
        args = (*(common_args or ()), *run_args)
        run = (script, slot, affinity_code, log_dir, variant, run_ID, args)
        slots[slot] = launch_experiment(*run, set_egl_device=set_egl_device)
        log_num_launched(exp_dir, number, len(runs))
    for process in filter(None, slots):
        process.wait()


def _free_slot(slots: Sequence[subprocess.Popen[bytes] | None]) -> int:
    """Return the first run slot whose run has ended, when there is one."""
    while not (free := [slot for slot, process in enumerate(slots) if process is None or process.poll() is not None]):
        time.sleep(SLOT_SECONDS)
    return free[0]
