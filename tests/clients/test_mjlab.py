"""mjlab itself on the CPU: its own train and play, with our learner in its runner and with our runner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
TASKS = {"hook": "Striderl-Hook-Cartpole", "runner": "Striderl-Cartpole"}
SMALL = ["--env.scene.num-envs", "4", "--gpu-ids", "None", "--agent.max-iterations"]
SECONDS = 300


def environment() -> dict[str, str]:
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "", "WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}


def command(program: str, task: str, *arguments: str) -> list[str]:
    return [sys.executable, str(HERE / "mjlab_programs.py"), program, task, *arguments]


def run(folder: Path, program: str, task: str, *arguments: str) -> str:
    done = subprocess.run(
        command(program, task, *arguments),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def runs(folder: Path) -> list[Path]:
    return sorted((folder / "logs" / "rsl_rl" / "cartpole").iterdir())


@pytest.mark.parametrize("way", TASKS)
def test_train_kill_resume_play_and_load_back(way, tmp_path):
    # train without an end, and kill it when its second checkpoint is there
    process = subprocess.Popen(
        command("train", TASKS[way], *SMALL, "1000"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + SECONDS
        while not list(tmp_path.glob("logs/rsl_rl/cartpole/*/model_1.pt")):
            assert process.poll() is None and time.monotonic() < deadline, "mjlab's train did not get to model_1.pt"
            time.sleep(0.2)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (first,) = runs(tmp_path)
    assert (first / "params" / "agent.yaml").is_file() and (first / "params" / "env.yaml").is_file()
    newest = max(int(path.stem.removeprefix("model_")) for path in first.glob("model_*.pt"))

    time.sleep(1.0)  # mjlab names a run by its second
    printed = run(tmp_path, "train", TASKS[way], *SMALL, "2", "--agent.resume", "True")
    assert f"model_{newest}.pt" in printed and "Learning iteration" in printed
    second = runs(tmp_path)[-1]
    saved = sorted(second.glob("model_*.pt"), key=lambda path: int(path.stem.removeprefix("model_")))
    # rsl_rl counts the loaded iteration once more, this library goes on with the next one
    assert int(saved[-1].stem.removeprefix("model_")) == newest + (1 if way == "hook" else 2)

    printed = run(tmp_path, "play", TASKS[way], "--checkpoint-file", str(saved[-1]), "--num-envs", "2")
    assert f"PLAYED {len(saved)} checkpoints, actions [2, 1]" in printed

    # rsl_rl's own algorithm reads the file, and acts alike
    printed = run(tmp_path, "play", "Mjlab-Cartpole-Balance", "--checkpoint-file", str(saved[-1]), "--num-envs", "2")
    assert "PLAYED" in printed
    content = torch.load(saved[-1], weights_only=False, map_location="cpu")
    assert content["infos"]["env_state"]["common_step_counter"] > 0
    assert {"actor_state_dict", "critic_state_dict", "optimizer_state_dict", "iter"} <= set(content)


def test_our_own_launcher(tmp_path):
    def striderl(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "striderl", *words],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    task = "mjlab:Mjlab-Cartpole-Balance"
    flags = ["--num-envs", "4", "--agent.logger", "tensorboard", "--agent.num-steps-per-env", "8", "--name", "first"]
    printed = striderl("train", task, *flags, "--steps", "64")  # 4 envs, 8 steps of each in an iteration
    assert "Learning iteration 1/2" in printed
    assert printed.count("is valued with V(s_t), not V(final_obs)") == 1  # mjlab gives none, and it is said once
    folder = "runs/mjlab-Mjlab-Cartpole-Balance/first"
    assert f"report: {folder}/report.html" in printed
    for command in ("record", "play"):
        assert f"{folder}/videos/{command}_64.mp4" in striderl(command, folder, "--seconds", "0.1")
    assert "return" in striderl("evaluate", folder, "--episodes", "1")
    assert "from iteration 2" in striderl("resume", folder, "--max-iterations", "3")
    striderl("export", folder, "--output", "bundle", "--formats", "onnx")
    assert (tmp_path / "bundle" / "policy.onnx").is_file()
    # and with another algorithm, whose actions want bounds
    words = [
        "--num-envs",
        "128",
        "--steps",
        "4096",
        "--plan.num-steps-per-env",
        "8",
        "--env.settings.clip_actions",
        "1.0",
    ]
    words += ["--plan.learning-starts", "1024", "--plan.batch-size", "64", "--plan.num-updates-per-round", "1"]
    words += ["--evaluation.every", "0", "--evaluation.at-end", "False"]
    striderl("train", task, "--algorithm", "fast_sac", *words)


def test_a_quadruped_is_exported_with_mjlabs_metadata(tmp_path):
    import onnx

    arguments = ["--env.scene.num-envs", "2", "--gpu-ids", "None", "--agent.max-iterations", "1"]
    arguments += ["--agent.num-steps-per-env", "4", "--agent.logger", "tensorboard"]
    arguments += ["--agent.algorithm.class-name", "striderl.rsl_rl:PPO"]
    printed = run(tmp_path, "train", "Mjlab-Velocity-Flat-Unitree-Go1", *arguments)
    assert "ONNX export failed" not in printed
    (folder,) = (tmp_path / "logs" / "rsl_rl").glob("*/*")
    model = onnx.load(folder / f"{folder.name}.onnx")
    found = {entry.key: entry.value for entry in model.metadata_props}
    theirs = {"run_path", "joint_names", "joint_stiffness", "joint_damping", "default_joint_pos", "command_names"}
    theirs |= {"observation_names", "action_scale", "observation_terms_scale", "observation_terms_clip"}
    assert theirs <= set(found)
    assert [each.name for each in model.graph.input] == ["obs"]

    # the same facts by our own runner
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.rl import RslRlVecEnvWrapper
    from mjlab.tasks.registry import load_env_cfg

    from striderl.training.rsl_rl.client_files import as_text, robot_facts

    cfg = load_env_cfg("Mjlab-Velocity-Flat-Unitree-Go1")
    cfg.scene.num_envs = 2
    env = RslRlVecEnvWrapper(ManagerBasedRlEnv(cfg=cfg, device="cpu"))
    facts = robot_facts(env, "local")
    assert facts is not None
    assert {name: as_text(value) for name, value in facts.items()} == found
    env.close()
