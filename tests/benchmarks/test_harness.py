"""The benchmark harness: statistics, tables and processes. Nothing here asserts how long anything takes."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import gpu_learning  # noqa: E402
import gpu_off_policy  # noqa: E402
import gpu_ppo  # noqa: E402
import gpu_startup  # noqa: E402
import harness_clock  # noqa: E402
import harness_markdown  # noqa: E402
import learning  # noqa: E402
import learning_defaults  # noqa: E402, F401  (its rows, while it can be found)
import learning_trials  # noqa: E402
import offline  # noqa: E402
import ray_scaling  # noqa: E402
import startup  # noqa: E402
from harness import Benchmark, main  # noqa: E402
from harness_report import Contender, Report, Result, Table, load, paired_ratio, save  # noqa: E402

sys.path.remove(str(BENCHMARKS))  # or `import data` would find a benchmark

MICRO = 1e-6


def make_report(results: dict[str, Result], rows: tuple[str, ...] = ("index",)) -> Report:
    contenders = {
        "ours": Contender(name="Ours", needs=("striderl",), role="subject"),
        "quick": Contender(name="Quick", needs=("quick",)),
        "slow": Contender(name="Slow", needs=("slow",)),
        "other": Contender(name="Other", needs=("striderl",), role="information"),
    }
    table = Table(title="Small", rows=rows, contenders=tuple(results))
    return Report(
        name="small",
        date="2026-01-02",
        machine={"cpu": "Some CPU", "cores": 2, "system": "Linux", "python": "3.11.7", "load_before": 0.5},
        versions={"ours": {"striderl": "1.0"}, "quick": {"quick": "2.1", "striderl": "1.0"}},
        contenders=contenders,
        tables=[table],
        results={"Small": {row: results for row in rows}},
    )


def result(*microseconds: float, reason: str = "") -> Result:
    return Result(reason, [value * MICRO for value in microseconds], [2 * value * MICRO for value in microseconds])


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_the_ratio_is_paired_by_round():
    # in round 2 the machine was four times as slow for both; each round says 3, 2, 4 -> median 3
    assert paired_ratio([3.0, 8.0, 4.0], [1.0, 4.0, 1.0]) == pytest.approx(3.0)
    with pytest.raises(ValueError, match="found 2 and 1"):
        paired_ratio([1.0, 2.0], [1.0])


def test_the_best_peer_counts_and_information_does_not():
    report = make_report(
        {"ours": result(2, 2, 2), "quick": result(5, 5, 5), "slow": result(9, 9, 9), "other": result(1, 1, 1)}
    )
    assert report.ratio(report.tables[0], "index", "cpu") == pytest.approx(2.5)


def test_a_missing_peer_leaves_no_ratio():
    report = make_report({"ours": result(2, 2), "quick": result(reason="not installed")})
    assert report.ratio(report.tables[0], "index", "cpu") is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.50"), (9.994, "9.99"), (12.34, "12.3"), (99.5, "99.5"), (123.4, "123"), (14321.0, "14,300")],
)
def test_numbers_have_about_three_digits(value: float, text: str):
    assert harness_markdown.number(value) == text


# -- text --------------------------------------------------------------------------------------------------------------


def test_a_table_shows_median_range_ratio_and_what_is_missing():
    report = make_report({"ours": result(2, 3, 1), "quick": result(4, 6, 2), "slow": result(reason="not installed")})
    text = harness_markdown.to_markdown(report)
    assert "| index | 2.00 (1.00–3.00) | 4.00 (2.00–6.00) | not installed | **2.00** |" in text
    assert "quick 2.1, striderl 1.0" in text
    assert "Some CPU, 2 cores" in text
    assert "Ours is faster than the best of Quick and Slow in 1 of 1 rows, 2.0 times." in text


def test_peak_memory_has_a_table_of_its_own_where_it_is_asked_for(tmp_path: Path):
    report = make_report({"ours": result(2), "quick": result(4), "slow": result(reason="not installed")})
    report.results["Small"]["index"]["ours"].peak = 300.0 * 2**20
    assert "peak" not in harness_markdown.to_markdown(report)
    report.tables[0] = Table(title="Small", rows=("index",), contenders=("ours", "quick", "slow"), memory=True)
    assert "| index | 300 | – | not installed |" in harness_markdown.to_markdown(report)
    save(report, tmp_path / "small.json")
    assert load(tmp_path / "small.json") == report


@pytest.mark.skipif(not harness_clock.reset_peak_memory(), reason="this system does not count peaks from a moment on")
def pages(size):
    """Return memory of its own that is in use: what the allocator keeps for later would blur the numbers."""
    block = mmap.mmap(-1, size)
    for place in range(0, size, mmap.PAGESIZE):
        block[place] = 1
    return block


def test_peak_memory_is_that_since_the_row_was_prepared():
    harness_clock.reset_peak_memory()
    with pages(64 * 2**20):
        high = harness_clock.peak_memory()
    harness_clock.reset_peak_memory()
    assert 0.0 < harness_clock.peak_memory() < high - 32 * 2**20
    with pages(64 * 2**20):
        assert harness_clock.peak_memory() > high - 32 * 2**20


def test_the_sentence_names_rows_in_which_we_are_not_faster():
    report = make_report({"ours": result(2), "quick": result(8)}, rows=("a", "b", "c"))
    report.results["Small"]["b"] = {"ours": result(100), "quick": result(98)}
    report.results["Small"]["c"] = {"ours": result(10), "quick": result(5)}
    sentence = harness_markdown.sentence(report, report.tables[0], "cpu")
    assert sentence == "Ours is faster than Quick in 1 of 3 rows, 4.0 times; level in 'b' (0.98); slower in 'c' (0.50)."


def test_the_sentence_invents_nothing_without_peers():
    report = make_report({"ours": result(2), "quick": result(reason="not installed")})
    assert "nothing to compare" in harness_markdown.sentence(report, report.tables[0], "cpu")


def test_rates_are_shown_as_rates():
    report = make_report({"ours": result(100), "quick": result(200)})
    report.tables[0] = Table(title="Small", rows=("index",), contenders=("ours", "quick"), unit="steps/s")
    # 100 µs per step are 10,000 steps per second, twice as many as with 200 µs
    assert "| index | 10,000 (10,000–10,000) | 5,000 (5,000–5,000) | **2.00** |" in harness_markdown.to_markdown(report)


def test_splice_replaces_one_block_and_nothing_else():
    text = "head\n<!-- a: begin -->\nold\n<!-- a: end -->\nmiddle\n<!-- b: begin -->\nkeep\n<!-- b: end -->\n"
    spliced = harness_markdown.splice(text, "a", "new\n")
    assert spliced == text.replace("old", "new")
    assert harness_markdown.splice(spliced, "a", "new\n") == spliced
    with pytest.raises(ValueError, match="c: begin"):
        harness_markdown.splice(text, "c", "new\n")


# -- files -------------------------------------------------------------------------------------------------------------


def test_json_round_trip(tmp_path: Path):
    report = make_report({"ours": result(2, 3), "quick": result(4, 6), "slow": result(reason="not installed")})
    path = tmp_path / "deep" / "small.json"
    save(report, path)
    assert load(path) == report
    row = json.loads(path.read_text())["results"]["Small"]["index"]
    assert row["ratio"] == {"cpu": 2.0, "wall": 2.0}
    assert row["contenders"]["ours"]["median"] == {"cpu": 2.5e-6, "wall": 5e-6}
    assert row["contenders"]["slow"] == {"reason": "not installed"}


def test_the_machine_is_described_without_its_name():
    machine = harness_clock.machine()
    assert set(machine) == {"cpu", "cores", "system", "python", "load_before"}
    assert machine["cores"] >= 1


def rendered(path: Path) -> str:
    """The table of a results file, by the command that writes it."""
    if path.stem == "learning":  # runs with seeds, not contenders beside each other
        return learning.to_markdown(learning.load_runs(path))
    if path.stem == "learning_defaults":
        return learning_trials.to_markdown(learning.load_runs(path))
    found = json.loads(path.read_text(encoding="utf-8"))
    modules = (gpu_ppo, gpu_off_policy, gpu_learning, gpu_startup, startup)
    of_rows = {module.__name__: module for module in modules}
    if path.stem in of_rows:
        return of_rows[path.stem].to_markdown(found["rows"])
    if path.stem == "ray_scaling":
        return ray_scaling.to_markdown(found)
    return offline.to_markdown(found) if path.stem == "offline" else harness_markdown.to_markdown(load(path))


def test_the_readme_has_a_place_for_every_result():
    readme = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    for path in sorted((BENCHMARKS / "results").glob("*.json")):
        if path.stem.startswith(("examples_", "scaling_", "worker_kills")):  # told in words, and drawn
            assert path.name in readme
            continue
        assert harness_markdown.splice(readme, path.stem, rendered(path)) == readme, (
            f"README.md does not show {path.name}; run the benchmark's command with --render-only"
        )


def test_kernels_that_overlap_are_drawn_in_lanes_of_their_own():
    spans = [("forward", 0.0, 4.0), ("forward", 1.0, 2.0), ("the rest", 2.0, 3.0), ("the rest", 4.0, 5.0)]
    assert gpu_startup.lanes_of(spans) == [0, 1, 1, 0]
    names = ["_layer", "_layer_backward", "void cutlass::Kernel2<s1688gemm>", "triton_poi_fused_0"]
    assert [gpu_startup.kind_of(name) for name in names] == list(gpu_startup.KINDS)


def test_a_speed_is_reached_when_three_iterations_in_a_row_have_it():
    # the first iteration ends after 5 s; then 10, 10, 50, 10, 60, 60, 100, 100, 100, 100 steps per second
    speeds = [10, 10, 50, 10, 60, 60, 100, 100, 100, 100]
    ends = [5.0]
    for speed in speeds:
        ends.append(ends[-1] + 600 / speed)
    found = startup.reached(ends, [600] * len(ends))
    assert found["speed"] == pytest.approx(100.0) and found["first"] == 5.0
    assert found["half"] == pytest.approx(ends[4])  # the single 50 does not count
    assert found["full"] == pytest.approx(ends[6])
    assert "Not measured" in startup.to_markdown([])


# -- clocks ------------------------------------------------------------------------------------------------------------


def test_samples_are_per_operation():
    calls: list[int] = []
    take = harness_clock.repeated(lambda: calls.append(1), seconds=0.001)
    before = len(calls)
    sample = take()
    assert len(calls) > before
    assert sample.cpu > 0.0
    assert sample.wall > 0.0


@pytest.mark.skipif(
    not harness_clock.can_see_workers(), reason="this system does not show the CPU time of other processes"
)
def test_cpu_time_of_a_worker_process_counts():
    script = "import sys, time\nfor line in sys.stdin:\n    end = time.process_time() + 0.05\n"
    script += "    while time.process_time() < end: pass\n    print(flush=True)\n"
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1) as worker:
        assert worker.stdin is not None and worker.stdout is not None

        def block() -> None:
            worker.stdin.write(b"go\n")
            worker.stdin.flush()
            worker.stdout.readline()

        before = time.process_time()
        sample = harness_clock.timed_block(block, operations=1)
        own = time.process_time() - before
        worker.stdin.close()
    # the worker burns 50 ms while this process waits
    assert sample.cpu >= 0.05
    assert own < sample.cpu


# -- a whole run -------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
from contextlib import contextmanager
sys.path.insert(0, {folder!r})
from harness import Benchmark, main
from harness_process import UnavailableError
from harness_report import Contender, Table
from harness_clock import Sample

@contextmanager
def prepare(contender, table, row):
    print("libraries may print", flush=True)
    if (contender, row) == ("peer", "only ours"):
        raise UnavailableError("–")
    if (contender, row) == ("broken", "sum"):
        raise RuntimeError("planted")
    seconds = {{"ours": 1e-6, "peer": 3e-6, "broken": 2e-6}}[contender]
    yield lambda: Sample(seconds, seconds)

TINY = Benchmark(
    name="tiny",
    contenders={{
        "ours": Contender(name="Ours", needs=("pytest",), role="subject"),
        "peer": Contender(name="Peer", needs=("pytest",)),
        "broken": Contender(name="Broken", needs=("pytest",)),
        "absent": Contender(name="Absent", needs=("no-such-distribution",)),
    }},
    tables=[Table(title="T", rows=("sum", "only ours"), contenders=("ours", "peer", "broken", "absent"))],
    prepare=prepare,
    rounds=3,
    starts=2,
)
if __name__ == "__main__":
    sys.exit(main([TINY], __file__))
"""


@pytest.mark.slow
def test_a_run_gives_every_contender_its_process_and_reports_what_failed(tmp_path: Path):
    script, readme = tmp_path / "tiny.py", tmp_path / "README.md"
    script.write_text(textwrap.dedent(SCRIPT).format(folder=str(BENCHMARKS)))
    readme.write_text("<!-- tiny: begin -->\n<!-- tiny: end -->\n")
    run = subprocess.run(
        [sys.executable, str(script), "--results", str(tmp_path), "--readme", str(readme)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 1, run.stderr  # one contender failed
    assert "planted" in run.stderr
    report = load(tmp_path / "tiny.json")
    found = report.results["T"]["sum"]
    assert found["ours"].cpu == [1e-6] * 6  # three rounds, two starts
    assert (found["ours"].peak > 0.0) == harness_clock.reset_peak_memory()
    assert found["broken"] == Result("failed")
    assert found["absent"] == Result("not installed")
    assert report.ratio(report.tables[0], "sum", "cpu") == pytest.approx(3.0)
    assert report.results["T"]["only ours"]["peer"].reason == "–"
    assert report.results["T"]["only ours"]["broken"].cpu == [2e-6] * 6  # it failed in the other row only
    assert "| sum | 1.00 (1.00–1.00) | 3.00 (3.00–3.00) | failed | not installed | **3.00** |" in readme.read_text()
    assert str(tmp_path) not in (tmp_path / "tiny.json").read_text()


def test_python_for_wants_a_known_contender(capsys: pytest.CaptureFixture[str]):
    benchmark = Benchmark(name="b", contenders={"ours": Contender(name="O", needs=())}, tables=[], prepare=None)
    with pytest.raises(SystemExit):
        main([benchmark], "script.py", ["--python-for", "theirs=/bin/python"])
    assert "theirs=/bin/python" in capsys.readouterr().err
