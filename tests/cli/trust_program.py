"""Runs every command and every public reader on hostile files and prints, as JSON, which of them imported the payload.

python trust_program.py FOLDER          the payload is importable: its folder is on sys.path

The hostile files name `payload_module` wherever a file can name code: as the module of a task, as a function or a class
of a runner's config, as the env of a Minari dataset, as the class of a pickled object in .pt, .npz and .pickle.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import os
import pickle
import re
import shutil
import sys
import traceback
import zipfile
from pathlib import Path

PAYLOAD = "payload_module"
SOURCE = """
import os, pathlib
import gymnasium, numpy

pathlib.Path(os.environ["PAYLOAD_MARK"]).touch()


class Thing:
    pass


def function(*_):
    return None


class Payload(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        return numpy.zeros(2, numpy.float32), 1.0, False, False, {}

    def render(self):
        return numpy.zeros((16, 16, 3), numpy.uint8)


gymnasium.register("Payload-v0", entry_point=Payload, max_episode_steps=5)
"""
TASK = f"gymnasium:{PAYLOAD}:Payload-v0"
TINY = [
    *("--env.num-envs", "2", "--plan.num-steps-per-env", "4", "--plan.total-steps", "16", "--stop.metric", ""),
    *("--evaluation.num-episodes", "1", "--policy.actor-hidden-dims", "4", "--policy.critic-hidden-dims", "4"),
    *("--algorithm.num-mini-batches", "1", "--logging.console", "off"),
]
PACKAGES = ("checkpoint", "policies", "training", "datasets", "export", "loggers", "storage", "collect", "compat")


# -- watching ----------------------------------------------------------------------------------------------------------

seen: list[str] = []


def watch(event, arguments):
    """Note every import, compilation and execution that has to do with the payload."""
    if event == "import" and arguments[0] == PAYLOAD:
        seen.append(event)
    elif event in ("exec", "compile"):
        code = arguments[0] if event == "exec" else arguments[1]
        name = getattr(code, "co_filename", code)
        if isinstance(name, str) and PAYLOAD in name:
            seen.append(event)


def forget_payload():
    import gymnasium

    sys.modules.pop(PAYLOAD, None)
    gymnasium.registry.pop("Payload-v0", None)
    Path(os.environ["PAYLOAD_MARK"]).unlink(missing_ok=True)
    seen.clear()


def imported(call, *arguments):
    """Run something and return whether the payload was imported, here or in a worker, and what was said."""
    forget_payload()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            said.write(f"gave {str(call(*arguments))[:200]}")
        except Exception as error:  # noqa: BLE001  (hostile files may raise what they like; importing is what counts)
            said.write(f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-2)}")
    return {"imported": bool(seen) or Path(os.environ["PAYLOAD_MARK"]).exists(), "said": said.getvalue()[-1500:]}


# -- hostile files -----------------------------------------------------------------------------------------------------


def write_files(files):
    """Write everything that is not a run; the payload is imported for it."""
    import numpy as np
    import torch

    thing = importlib.import_module(PAYLOAD).Thing()
    files.mkdir()
    torch.save({"model_state_dict": {"weight": thing}, "iter": 1}, files / "hostile.pt")
    (files / "raw.pt").write_bytes(pickle.dumps({"model_state_dict": thing}))
    np.savez(files / "hostile.npz", joint_positions=np.array([thing]), header=np.array([thing]))
    (files / "hostile.json").write_text(json.dumps({"LoopMode": "Wrap", "class": f"{PAYLOAD}:Thing", "Frames": [[0]]}))
    old = files / "old" / "trajectory_0"
    old.mkdir(parents=True)
    (old / "traj_000000_000004.pickle").write_bytes(pickle.dumps({"obs": thing}))
    (files / "old" / "metadata.json").write_text(json.dumps({"class_name": f"{PAYLOAD}.Thing"}))
    shutil.copy(files / "hostile.npz", files / "replay.npz")
    with zipfile.ZipFile(files / "replay.npz", "a") as archive:
        archive.writestr("meta.json", json.dumps({"format": f"{PAYLOAD}:Thing", "maxsize": 8}))
    write_datasets(files)
    write_runner_folder(files / "runner", nested=False)
    write_runner_folder(files / "runner_nested", nested=True)
    write_st_rl_folder(files / "st_rl", thing)


def write_datasets(files):
    (files / "minari").mkdir()
    spec = {"id": "Payload-v0", "entry_point": f"{PAYLOAD}:Payload", "additional_wrappers": [], "kwargs": {}}
    names = {"dataset_id": "p-v0", "env_spec": json.dumps(spec), "data_format": "hdf5", "minari_version": "0.5.0"}
    numbers = {"total_episodes": 1, "total_steps": 1, "algorithm_name": PAYLOAD, "code_permalink": ""}
    (files / "minari" / "metadata.json").write_text(json.dumps({**names, **numbers}))
    (files / "lerobot" / "meta").mkdir(parents=True)
    info = {"codebase_version": "v2.1", "robot_type": f"{PAYLOAD}:Thing", "fps": 10, "total_episodes": 1}
    info |= {"features": {"action": {"dtype": f"{PAYLOAD}:Thing", "shape": [1]}}, "data_path": f"{PAYLOAD}.py"}
    (files / "lerobot" / "meta" / "info.json").write_text(json.dumps(info))
    (files / "bundle").mkdir()
    (files / "bundle" / "metadata.json").write_text(json.dumps({"format": f"{PAYLOAD}:Thing"}))
    (files / "bundle" / "policy.onnx").write_bytes(pickle.dumps({"thing": sys.modules[PAYLOAD].Thing()}))
    (files / "recordings").mkdir()
    (files / "recordings" / "metadata.json").write_text(json.dumps({"version": 1, "class": f"{PAYLOAD}:Thing"}))


def write_runner_folder(folder, *, nested):
    """What `TwoStageRunner` leaves: a config with a function by its name, and weights."""
    import torch

    folder.mkdir()
    symmetry = {"use_data_augmentation": True, "data_augmentation_func": f"{PAYLOAD}:function"}
    inside = {"ppo": {"symmetry_cfg": symmetry}} if nested else {"symmetry_cfg": symmetry}
    algorithm = {"class_name": f"{PAYLOAD}:PPO", **inside}
    policy = {"class_name": f"{PAYLOAD}:ActorCritic", "actor_hidden_dims": [4], "critic_hidden_dims": [4]}
    config = {"class_name": f"{PAYLOAD}:OnPolicyRunner", "policy": policy, "algorithm": algorithm}
    (folder / "config.json").write_text(json.dumps({**config, "num_steps_per_env": 4}))
    torch.save({"model_state_dict": {"std": torch.ones(1)}}, folder / "model_1.pt")


def write_st_rl_folder(folder, thing):
    import torch

    folder.mkdir()
    config = {"policy": {"class_name": f"{PAYLOAD}:ActorCritic", "activation": f"{PAYLOAD}:function"}}
    (folder / "config.json").write_text(json.dumps({**config, "control": {"action_scale": 1.0}}))
    torch.save({"model_state_dict": {"weight": thing}}, folder / "model_1.pt")


# -- cases -------------------------------------------------------------------------------------------------------------


def command_cases(run, files, out):
    """Words behind each command, by the name of the command, and whether --trust lets the payload be imported there."""
    teacher = ["quadruped_blind", "--algorithm", "tppo", "--teacher.run", run, "--env.num-envs", "2"]
    recordings = ["cartpole", "--algorithm", "bc", "--dataset", f"{files}/recordings"]
    sweep = ["--space", "algorithm.gamma=0.9:0.99", "--trials", "1"]
    return {
        "train --teacher.run": ([*teacher, "--runs", out], False),
        "train --dataset": ([*recordings, "--runs", out], False),
        "train --resume": (["--resume", run, "--plan.total-steps", "24"], True),
        "resume": ([run, "--plan.total-steps", "24"], True),
        "play": ([run, "--seconds", "0.2", "--output", f"{out}.gif"], True),
        "evaluate": ([run, "--episodes", "1"], True),
        "view": ([run, "--port", "0", "--duration", "0.2"], True),
        "record": ([run, "--seconds", "0.2", "--output", f"{out}.gif"], True),
        "export": ([run, "--output", out, "--formats", "torch"], None),  # builds no env: nothing to import
        "plot": ([run], False),
        "report": ([run, "--output", f"{out}.html"], False),  # read as data, refused parts named on the page
        "compare": ([run], False),
        "diff": ([run, run], False),
        # with a seed of its own: the sweep writes its config, and a config that this user has made is known
        "sweep": (["--config", f"{run}/config.json", "--seed", "3", *sweep, "--sweeps", out], True),
        "doctor": ([run, "--seconds", "0.2", "--num-envs", "2"], True),
        "dataset": ([run, out, "--num-steps", "8", "--num-envs", "2"], True),
        "clips trot": ([f"{out}.npz"], False),
        "clips record": ([run, out], True),
        "clips import": ([f"{files}/hostile.json", f"{out}.npz"], False),
        "clips export": ([f"{files}/hostile.npz", f"{out}.json"], False),
        "clips show": ([f"{files}/hostile.npz"], False),
        "import-trajectories": ([f"{files}/old", out], False),
        "list": ([], False),
    }


def reader_cases(run, files):
    """Every public reader by its package and name."""
    import striderl.checkpoint as checkpoint
    import striderl.datasets as datasets
    import striderl.export as export
    import striderl.loggers as loggers
    import striderl.policies as policies
    import striderl.storage as storage
    import striderl.training as training
    from striderl.envs.tasks import make

    env = make("pendulum", num_envs=2)
    train_cfg = json.loads((files / "runner" / "config.json").read_text())
    train_cfg["algorithm"] = {}

    def mutex(loader=None):
        return policies.ActorCriticFieldMutex(2, None, 2, sub_policy_paths=[str(files / "st_rl")], **(loader or {}))

    def student(folder):
        return training.RunStudents(env)(folder, "")

    def runner_load(kind):
        staged = kind is training.TwoStageRunner
        recorded = {"pretrain_iterations": 1, "pretrain_dataset": {"data_dir": str(files / "recordings")}}
        return kind(env, {**train_cfg, **(recorded if staged else {})}).load(files / "hostile.pt")

    def distillation_load():
        model = {"hidden_dims": [4], "distribution_cfg": {"class_name": "GaussianDistribution"}}
        cfg = {"student": dict(model), "teacher": dict(model), "algorithm": {}, "num_steps_per_env": 4}
        return training.DistillationRunner(env, cfg).load(files / "hostile.pt")

    def resumed():
        config = training.read_run_config(run)
        return training.Run(config, training.RunFolder(run)).restore()

    def generator_load():
        import torch

        from striderl.compat.generator import Algorithm, Trainer

        class Own(Algorithm):
            """The least that a trainer takes."""

            def __init__(self, **kwargs):
                self.model = None

            def predict(self, obs):
                return torch.zeros(len(obs), dtype=torch.int64)

            def learn(self, samples):
                return {}

        return Trainer(alg=Own, env="cartpole").load(run / "checkpoints")

    spec = datasets.AMPLoaderConfig(time_between_frames=0.02)
    return {
        "checkpoint.CheckpointStore": lambda: checkpoint.CheckpointStore(run / "checkpoints").load(),
        "compat.Trainer.load": generator_load,
        "checkpoint.read_rsl_rl": lambda: checkpoint.read_rsl_rl(files / "hostile.pt"),
        "checkpoint.read_rsl_rl raw": lambda: checkpoint.read_rsl_rl(files / "raw.pt"),
        "policies.read_run": lambda: policies.read_run(files / "st_rl"),
        "policies mutex": mutex,
        "training.Agent.load": lambda: training.Agent.load(run),
        "training.OnPolicyRunner.load": lambda: runner_load(training.OnPolicyRunner),
        "training.TwoStageRunner.load": lambda: runner_load(training.TwoStageRunner),
        "training.DistillationRunner.load": distillation_load,
        "training.Run.restore": resumed,
        "training.RunStudents": lambda: student(run),
        "training.RunStudents runner": lambda: student(files / "runner"),
        "training.RunStudents nested": lambda: student(files / "runner_nested"),
        "training.load_run": lambda: training.load_run(run),
        "training.load_sub_policy": lambda: training.load_sub_policy(run),
        "training.load_teacher": lambda: training.load_teacher(run),
        "training.read_faults": lambda: training.read_faults(files / "hostile.json"),
        "training.read_run_config": lambda: training.read_run_config(run),
        "datasets.AMPLoader": lambda: datasets.AMPLoader([files / "hostile.npz"], spec),
        "datasets.LeRobotReader": lambda: list(datasets.LeRobotReader(files / "lerobot")),
        "datasets.MinariReader": lambda: datasets.MinariReader(files / "minari"),
        "datasets.RolloutDataset": lambda: datasets.RolloutDataset(files / "recordings", 1),
        "datasets.TrajectoryStore": lambda: datasets.TrajectoryStore(files / "recordings").metadata,
        "datasets.import_json_clip": lambda: datasets.import_json_clip(files / "hostile.json"),
        "datasets.import_npz_clip": lambda: datasets.import_npz_clip(
            files / "hostile.npz", datasets.NpzLayout(joint_names=("hip",))
        ),
        "datasets.import_old_trajectories": lambda: datasets.import_old_trajectories(files / "old", files / "new"),
        "datasets.load_clip": lambda: datasets.load_clip(files / "hostile.npz"),
        "datasets.load_dataset": lambda: datasets.load_dataset(files / "recordings", env.obs_spec, env.action_spec),
        "export.load_bundle": lambda: export.load_bundle(files / "bundle"),
        "loggers.group_runs": lambda: loggers.group_runs([run]),
        "loggers.plot_runs": lambda: loggers.plot_runs([run], files / "plot.png"),
        "loggers.read_metrics": lambda: loggers.read_metrics(run),
        "storage.ReplayBuffer.restore": lambda: storage.ReplayBuffer(8).restore(files / "replay.npz"),
    }


# -- every name in every file of a run --------------------------------------------------------------------------------


NAMED = f"{PAYLOAD}:function"
NOT_QUITE = (PAYLOAD, f"{PAYLOAD}:fun-ction", f"{PAYLOAD}:")
"""Names that no part has, and that a loader which is not strict would import the module of."""
PLACES = {
    "env.task": TASK,
    "algorithm_name": NAMED,
    "terms": {NAMED: {}},
    "terms.symmetry": {"symmetry": {"function": NAMED}},
    "policy.network": NAMED,
    "policy.actor": [{"stage": NAMED}],
    "callbacks": [NAMED],
    "logging.trackers": [NAMED],
}
"""Where a config can name code, and how."""


def planted_in(content, place, value):
    """Return a config with a name at one of these places."""
    content = json.loads(json.dumps(content))
    if place == "terms.symmetry":
        place = "terms"
    table, _, name = place.partition(".")
    if name:
        content[table][name] = value
    else:
        content[table] = value
    return content


def place_cases(clean, copy):
    """A run whose config.json is harmless, with a name somewhere else: what restores and reads it."""
    from striderl import training
    from striderl.checkpoint import CheckpointStore
    from striderl.cli.main import main as command
    from striderl.training.experiment.run_folder import read_config_file
    from striderl.training.experiment.seal import write_sealed

    config = json.loads((clean / "config.json").read_text())

    def by_checkpoint(hostile):
        """Name it in the config of the checkpoint alone; its layout and seal stay."""
        run = copy(clean)
        store = CheckpointStore(run / "checkpoints")
        newest = store.load("last")
        shutil.rmtree(run / "checkpoints")
        CheckpointStore(run / "checkpoints").save(
            newest.state, step=newest.step, layout=newest.layout, config=hostile, seal=newest.seal
        )
        return run

    def by_seal(hostile):
        """Name it in what was accepted before config.json was edited."""
        run = copy(clean)
        write_sealed(run, "config.json", hostile)
        (run / "config.json").write_text(json.dumps(config))
        return run

    def by_file(hostile):
        file = copy(clean) / "given.json"
        file.write_text(json.dumps(hostile))
        return file

    old = {name: value for name, value in config.items() if name != "schema"}
    found = {}
    for place, value in PLACES.items():
        others = [{"symmetry": {"function": each}} for each in NOT_QUITE] if "symmetry" in place else []
        for number, each in enumerate([value, *others]):
            hostile, name = planted_in(config, place, each), f"{place}{' not quite' * (number > 0)} {number}"
            found[f"checkpoint, load_run: {name}"] = lambda h=hostile: training.load_run(by_checkpoint(h))
            found[f"checkpoint, resume: {name}"] = lambda h=hostile: command(["resume", str(by_checkpoint(h))])
            found[f"seal, resume: {name}"] = lambda h=hostile: command(["resume", str(by_seal(h)), "--accept-changes"])
            found[f"file: {name}"] = lambda h=hostile: read_config_file(by_file(h))
    found["file, old terms"] = lambda: read_config_file(by_file({**old, "terms": [NAMED]}))
    policy = {"class_name": "ActorCritic", "actor_hidden_dims": [4], "critic_hidden_dims": [4]}

    def by_train_cfg(name):
        run = copy(clean)
        symmetry = {"use_data_augmentation": True, "data_augmentation_func": name}
        train_cfg = {"policy": policy, "algorithm": {"symmetry_cfg": symmetry}, "num_steps_per_env": 4}
        write_sealed(run, "config.json", {**config, "runner": "OnPolicyRunner", "train_cfg": train_cfg})
        return run

    for each in (NAMED, *NOT_QUITE):
        name = f"train_cfg{' not quite' * (each != NAMED)}: {each}"
        found[name] = lambda e=each: command(["resume", str(by_train_cfg(e))])
    return found


NO_FILES = {
    "collect.EpisodeStatistics.read": "reads counters in memory",
    "policies.load_misaligned_state_dict": "takes a state dict",
    "policies.load_parts": "takes a state dict",
    "policies.load_rsl_rl": "takes what read_rsl_rl read",
    "storage.ReplayReader": "reads a replay in memory",
    "storage.SumTree.load": "takes a state dict",
}
"""Public names that sound like readers of files, and why they are none."""


def public_readers():
    """Names of the public API that read files, by what they are called."""
    for package in PACKAGES:
        module = importlib.import_module(f"striderl.{package}")
        for name in module.__all__:
            if re.match(r"(load|read|import|open|restore|plot|group)_", name) or re.search(
                r"(Reader|Loader|Dataset|Store|Students)$", name
            ):
                yield f"{package}.{name}"
            elif inspect.isclass(found := getattr(module, name)):
                for method in ("load", "restore", "read"):
                    if method in vars(found):
                        yield f"{package}.{name}.{method}"


def all_commands():
    """Every command and action that there is, out of the tables of the command line."""
    from striderl.cli.clips import ACTIONS
    from striderl.cli.main import COMMANDS

    return {*(set(COMMANDS) - {"clips"}), *(f"clips {action}" for action in ACTIONS)}


def planted(run):
    """A reader as it must not be."""
    from striderl.envs.tasks import make

    return make(json.loads((run / "config.json").read_text())["env"]["task"])


# -- the program -------------------------------------------------------------------------------------------------------


def main(root):
    from striderl.cli.main import main as command_line

    (root / "path").mkdir()
    (root / "path" / f"{PAYLOAD}.py").write_text(SOURCE)
    sys.path.insert(0, str(root / "path"))
    os.environ["PAYLOAD_MARK"] = str(root / "mark")
    os.environ["XDG_STATE_HOME"] = str(root / "home")
    for task, runs in ((TASK, "runs"), ("cartpole", "clean")):
        assert command_line(["train", task, *TINY, "--runs", str(root / runs)]) == 0
    made, clean = (next(next((root / runs).iterdir()).iterdir()) for runs in ("runs", "clean"))
    files, count = root / "files", 0
    write_files(files)

    def copy(run=made):
        nonlocal count
        count += 1
        return shutil.copytree(run, root / f"copy_{count}")

    def command(name, *flags):
        run = copy()
        words, trusting = command_cases(str(run), str(files), f"{run}_out")[name]
        main_words = name.split()[:2] if name.startswith("clips") else name.split()[:1]
        return {**imported(command_line, [*main_words, *words, *flags]), "trusting": trusting}

    sys.addaudithook(watch)
    names = command_cases("", "", "")
    known = {name: command(name) for name in ("evaluate", "resume")}
    os.environ["XDG_STATE_HOME"] = str(root / "home_of_another_user")
    plain = {name: command(name) for name in names}
    trusted = {name: command(name, "--trust") for name, (_, trusting) in names.items() if trusting is not False}
    cases = reader_cases(copy(), files)
    readers = {name: imported(case) for name, case in cases.items()}
    missing = sorted({name.split(" --")[0] for name in names} ^ all_commands())
    missing += [name for name in public_readers() if name not in {**cases, **NO_FILES}]
    trusted |= {"load_run": imported(trusted_env, copy()), "minari": imported(trusted_minari, files / "minari")}
    return {
        "plain": plain,
        "trusted": trusted,
        "known": known,
        "readers": readers,
        "missing": missing,
        "places": {name: imported(case) for name, case in place_cases(clean, copy).items()},
        "planted": imported(planted, copy()),
    }


def trusted_env(run):
    from striderl.envs.tasks import make
    from striderl.training import load_run

    return make(load_run(run, trust=True).config.env.task)


def trusted_minari(folder):
    from striderl.datasets import MinariReader

    return MinariReader(folder, trust=True)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    (target / "result.json").write_text(json.dumps(main(target)))
