"""`striderl clips` from beginning to end."""

from __future__ import annotations

import json

import numpy as np
import pytest

from striderl.cli.main import main
from striderl.datasets.motion.clip_files import load_clip


def test_trot_show_export_import(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["clips", "trot", "slow.npz", "--forward", "0.3", "--duty-factor", "0.7"]) == 0
    assert "slow.npz: 401 frames of 0.01 s, weight 1, wrap" in capsys.readouterr().out
    assert main(["clips", "show", "slow.npz"]) == 0
    text = capsys.readouterr().out
    assert "FR_foot: 2.00 Hz, duty factor 0.70, phase 0.50, 7 strides" in text and "joint_vel" in text
    assert main(["clips", "export", "slow.npz", "slow.json"]) == 0
    assert len(json.loads((tmp_path / "slow.json").read_text())["Frames"][0]) == 61
    assert main(["clips", "import", "slow.json", "back.npz", "--loop", "file"]) == 0
    slow, back = load_clip("slow.npz"), load_clip("back.npz")
    assert back.joint_names == slow.joint_names and back.loop == "wrap"
    for name in back.fields:
        np.testing.assert_allclose(back.values[name], slow.values[name], atol=1e-12)
    np.testing.assert_allclose(back.mirrored().values["feet"], slow.mirrored().values["feet"], atol=1e-12)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trott"], "Did you mean 'trot'"),
        (["trot", "x.npz", "--forward", "5"], "out of reach"),
        (["trot", "nowhere/x.npz"], "cannot write 'nowhere/x.npz': there is no folder 'nowhere'"),
        (["import", "zipped.json", "x.npz"], "it is a .npz and not JSON"),
        (["show", "missing.npz"], "there is no file 'missing.npz'."),
        (["show", "emty.json"], "there is no file 'emty.json'. Did you mean 'empty.json'?"),
        (["trot", "x.txt"], "a clip's file ends in .npz, found 'x.txt'"),
        (["show", "empty.json"], "'striderl clips import'"),
        (["import", "empty.json", "x.npz"], "cannot import 'empty.json'"),
        (["record", "no_run", "folder"], "'no_run' does not exist"),
    ],
)
def test_mistakes_are_told_in_a_line(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "zipped.json").write_bytes(b"PK\x03\x04")
    assert main(["clips", *words]) == 2
    text = capsys.readouterr().err
    assert message in text and "Traceback" not in text
    assert not (tmp_path / "x.npz").exists()


@pytest.mark.slow
def test_a_run_is_recorded(tmp_path, capsys):
    tiny = ["--env.num-envs", "2", "--plan.num-steps-per-env", "4", "--plan.total-steps", "8", "--stop.metric", ""]
    small = ["--policy.actor-hidden-dims", "8", "--policy.critic-hidden-dims", "8", "--evaluation.num-episodes", "1"]
    words = ["train", "quadruped", *tiny, *small, "--algorithm.num-mini-batches", "1", "--runs", str(tmp_path / "runs")]
    assert main([*words, "--env.settings.max_episode_length", "40", "--env.settings.observe_motion", "false"]) == 0
    run = str(tmp_path / "runs" / "quadruped")
    record = ["clips", "record", run, str(tmp_path / "clips"), "--seconds", "1.6", "--num-envs", "1"]
    assert main([*record, "--min-seconds", "0.1", "--skip-seconds", "0.2"]) == 0
    files = sorted((tmp_path / "clips").iterdir())
    clips = [load_clip(path) for path in files]
    assert clips and all(clip.num_frames <= 31 for clip in clips)  # 40 steps and the final frame, less ten
    assert clips[0].fields["joint_pos"].mirror_index and "foot_contacts" in clips[0].fields
    capsys.readouterr()
    assert main([*record, "--min-seconds", "100", "--overwrite"]) == 2
    assert "no episode lasted 100.0 s" in capsys.readouterr().err
