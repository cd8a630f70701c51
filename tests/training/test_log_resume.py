"""A run that was killed and goes on from its last checkpoint has the log of a run that was not."""

from __future__ import annotations

import random

import pytest
from training_cases import make_trainer, run

from striderl.loggers.file_loggers import CsvLogger, JsonlLogger
from striderl.loggers.plots import read_metrics
from striderl.training.callbacks.log import Log
from striderl.training.callbacks.save import Save

KINDS = {"metrics.jsonl": JsonlLogger, "metrics.csv": CsvLogger}


def rows_of(folder):
    """Everything but the times, as text, so that nan equals nan."""
    run = read_metrics(folder)
    columns = {name: values.tolist() for name, values in run.columns.items() if not name.startswith("time/")}
    return run.steps.tolist(), str(sorted(columns.items()))


def callbacks_for(path, kept):
    def keep(state, name):
        # what is on disk at this moment is all that a killed run is sure to have
        kept[name] = (state, path.read_bytes())

    return [Log(KINDS[path.name](path)), Save(keep, every=1)]


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_killed_at_any_byte(name, tmp_path):
    whole = make_trainer(callbacks=callbacks_for(tmp_path / "whole" / name, {}))
    run(whole, 5)
    path, kept = tmp_path / "killed" / name, {}
    first = make_trainer(callbacks=callbacks_for(path, kept))
    run(first, 4)
    end = path.read_bytes()
    generator = random.Random(0)
    for _ in range(5):
        saved = generator.randint(1, 3)
        state, on_disk = kept[f"iteration_{saved}"]
        assert on_disk.count(b"\n") == saved + (name == "metrics.csv"), "the rows before a checkpoint are on disk"
        # killed some time after the checkpoint, perhaps in the middle of a line
        path.write_bytes(end[: generator.randint(len(on_disk) if end.startswith(on_disk) else len(end), len(end))])
        resumed = make_trainer(weights=7, callbacks=callbacks_for(path, {}))
        resumed.load_state_dict(state)
        run(resumed, 5 - saved)
        resumed.close()
        assert rows_of(path.parent) == rows_of(tmp_path / "whole")
        assert path.read_bytes().count(b"\n") == 5 + (name == "metrics.csv"), "no row is there twice"


def test_a_run_that_begins_anew_in_an_old_folder_has_one_log(tmp_path):
    path = tmp_path / "metrics.jsonl"
    run(make_trainer(callbacks=[Log(JsonlLogger(path))]), 3)
    again = Log(JsonlLogger(path))
    again.resume_at(0)
    run(make_trainer(callbacks=[again]), 2)
    assert read_metrics(tmp_path).steps.tolist() == [32, 64]
