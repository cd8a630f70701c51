"""rlpyt's launcher: processors of a run, variants of a config, and runs that are queued on one machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from striderl.compat.rlpyt.utils.launching.affinity import (
    affinity_from_code,
    decode_affinity,
    encode_affinity,
    get_n_run_slots,
    make_affinity,
    prepend_run_slot,
    quick_affinity_code,
    remove_run_slot,
)
from striderl.compat.rlpyt.utils.launching.exp_launcher import run_experiments
from striderl.compat.rlpyt.utils.launching.variant import VariantLevel, load_variant, make_variants, update_config
from striderl.compat.rlpyt.utils.logging.context import check_progress, get_log_dir

MACHINE = {"hyperthread_offset": 8, "n_socket": 1}


def test_codes_there_and_back() -> None:
    code = encode_affinity(n_cpu_core=4, n_gpu=2, contexts_per_gpu=2, cpu_reserved=1, **MACHINE)
    assert code == "4cpu_2gpu_2cxg_8hto_1res" and get_n_run_slots(code) == 4
    assert decode_affinity(code) == {"cpu": 4, "gpu": 2, "cxg": 2, "hto": 8, "res": 1}
    assert remove_run_slot(prepend_run_slot(3, code)) == (3, code)
    assert encode_affinity(n_cpu_core=8, set_affinity=False, **MACHINE) == "8cpu_0gpu_1cpr_0saf"
    with pytest.raises(ValueError, match="ends in none of"):
        decode_affinity("4cup")
    with pytest.raises(ValueError, match="n_parallel of 1 or more"):
        quick_affinity_code(use_gpu=False)


def test_cores_of_runs_without_a_gpu() -> None:
    # 8 cores, hyperthread of core c is c + 8; runs of 4 cores: the second has 4 to 7
    second = make_affinity(run_slot=0, n_cpu_core=8, cpu_per_run=4, cpu_reserved=2, **MACHINE)
    assert second.master_cpus == (0, 1, 2, 3, 8, 9, 10, 11)
    assert second.workers_cpus == ((2, 10), (3, 11)) and second.master_torch_threads == 4
    code = encode_affinity(n_cpu_core=8, cpu_per_run=4, alternating=True, **MACHINE)
    other = affinity_from_code(prepend_run_slot(1, code))
    assert other.workers_cpus == ((4,), (5,), (6,), (7,), (12,), (13,), (14,), (15,)) and other.alternating
    with pytest.raises(ValueError, match="do not divide into runs of 3"):
        affinity_from_code("0slt_8cpu_0gpu_3cpr")


def test_gpus_of_one_run_and_of_several_processes() -> None:
    one = make_affinity(run_slot=1, n_cpu_core=4, n_gpu=2, **MACHINE)
    assert one.cuda_idx == 1 and one.master_cpus == (2, 3, 10, 11)
    # rlpyt's seventh example: 16 of 24 cores on two sockets, 8 GPUs, 2 per run: 2 cores for each
    several = make_affinity(n_cpu_core=16, n_gpu=8, hyperthread_offset=24, n_socket=2, gpu_per_run=2)
    assert [(part.cuda_idx, part.master_cpus) for part in several] == [(0, (0, 1, 24, 25)), (1, (2, 3, 26, 27))]


def test_a_run_that_samples_beside_learning() -> None:
    found = make_affinity(n_cpu_core=8, n_gpu=2, async_sample=True, sample_gpu_per_run=1, cpu_reserved=1, **MACHINE)
    assert found.optimizer == [{"cpus": (0, 8), "cuda_idx": 0, "torch_threads": 1, "set_affinity": True}]
    (sampler,) = found.sampler
    assert sampler.cuda_idx == 1 and sampler.master_cpus == (*range(1, 8), *range(9, 16))
    assert found.all_cpus == (0, 8, *sampler.master_cpus)
    serial = make_affinity(n_cpu_core=8, n_gpu=2, async_sample=True, cpu_reserved=1, run_slot=1, **MACHINE)
    assert serial.optimizer[0]["cuda_idx"] == 1 and serial.sampler.workers_cpus == ((5, 13), (6, 14), (7, 15))


def test_variants_are_all_combinations() -> None:
    rates = VariantLevel([("algo", "learning_rate"), ("sampler", "batch_B")], [(0.1, 2), (0.2, 4)], ["a", "b"])
    games = VariantLevel([("env", "game")], [("pong",), ("qbert",)], ["pong", "qbert"])
    variants, log_dirs = make_variants(rates, games)
    assert log_dirs == ["a/pong", "a/qbert", "b/pong", "b/qbert"]
    assert variants[1] == {"algo": {"learning_rate": 0.1}, "sampler": {"batch_B": 2}, "env": {"game": "qbert"}}
    default = {"algo": {"learning_rate": 1.0, "discount": 0.9}, "sampler": {"batch_B": 1}, "env": {"game": "x"}}
    config = update_config(default, variants[0])
    assert config["algo"] == {"learning_rate": 0.1, "discount": 0.9} and default["algo"]["learning_rate"] == 1.0
    with pytest.raises(KeyError, match="the variant has 'rate'"):
        update_config(default, {"rate": 1})
    with pytest.raises(TypeError, match="is a dict in only one"):
        update_config(default, {"algo": 1})
    with pytest.raises(ValueError, match="a folder of its own"):
        make_variants(rates._replace(dir_names=["a", "a"]))


SCRIPT = """
import json, os, sys
code, log_dir, run_ID, word = sys.argv[1:]
variant = json.load(open(os.path.join(log_dir, "variant_config.json")))
folder = os.path.join(log_dir, "run_" + run_ID)
os.makedirs(folder)
with open(os.path.join(folder, "progress.csv"), "w") as file:
    file.write("word,b\\n" + word + "," + str(variant["b"]) + "\\n")
with open(os.path.join(folder, "code"), "w") as file:
    json.dump([code, sorted(os.sched_getaffinity(0))], file)
"""


def test_runs_are_queued_on_their_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    import os

    core = min(os.sched_getaffinity(0))
    code = encode_affinity(n_cpu_core=1, cpu_per_run=1, hyperthread_offset=0, n_socket=1)
    if core != 0:
        code += "_0saf"
    variants, log_dirs = make_variants(VariantLevel([("b",)], [(1,), (2,)], ["one", "two"]))
    run_experiments("train.py", code, "title", 2, variants, log_dirs, common_args=("word",))
    root = next((tmp_path / "data" / "local").glob("*/*/title"))
    runs = sorted(root.rglob("progress.csv"))
    assert [path.parent.relative_to(root).as_posix() for path in runs] == [
        "one/run_0", "one/run_1", "two/run_0", "two/run_1",
    ]  # fmt: skip
    assert runs[2].read_text() == "word,b\nword,2\n" and load_variant(root / "two") == {"b": 2}
    assert json.loads((root / "one" / "run_0" / "code").read_text()) == [f"0slt_{code}", [0]]
    assert "4 out of 4" in (root / "num_launched.txt").read_text()
    assert check_progress(root) == dict.fromkeys(runs, 1)
    assert get_log_dir("x", root_log_dir=tmp_path, date=False) == tmp_path / "local" / "x"
