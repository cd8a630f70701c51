"""st_rl's savers with its arguments, and its file format: recordings of this library written as pickles.

    DaggerSaver(env, policy, "demos", training_policy_logdir="logs/student")      students of run folders of either kind

    demos/shard_000000.trj   ──export_old_trajectories──▶   old/metadata.json
                                                            old/trajectory_0/traj_000000_000064.pickle, …

`striderl.datasets.import_old_trajectories` is the way back; it runs no code of the files.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.checkpoint import safe_files
from striderl.compat.st_rl.build import LoadedPolicy, build_teacher
from striderl.datasets.trajectories.codecs import compress_normalized_image
from striderl.datasets.trajectories.spec import TrajectoryError
from striderl.datasets.trajectories.store import TrajectoryStore
from striderl.envs.vec_env import VecEnv
from striderl.envs.wrap_env import wrap_env
from striderl.recording.dagger import DaggerSaver as CoreDaggerSaver
from striderl.recording.dagger import LoadStudent
from striderl.training.demonstrations import RunStudents

CRITIC = "critic"
IMAGE = "normalized_image"


class DaggerSaver(CoreDaggerSaver):
    """Record a student's episodes with a teacher's labels; students come from run folders unless a reader is given."""

    def __init__(
        self,
        env: Any,
        policy: Any = None,
        save_dir: str | Path | None = None,
        *args: Any,
        training_policy_logdir: str | Path,
        load_student: LoadStudent | None = None,
        **settings: Any,
    ) -> None:
        """Take the arguments of `striderl.recording.DaggerSaver`; an env of any rsl_rl generation is wrapped.

        policy: the teacher; without one it is the teacher that the student's config.json names,
            config["algorithm"]["teacher_policy"].
        """
        if save_dir is None:
            raise TypeError("DaggerSaver wants save_dir, the folder of its recordings")
        policy = teacher_of_run(training_policy_logdir) if policy is None else policy
        wrapped = env if isinstance(env, VecEnv) else wrap_env(env, device=getattr(env, "device", None) or "cpu")
        super().__init__(
            wrapped,
            policy,
            save_dir,
            *args,
            training_policy_logdir=training_policy_logdir,
            load_student=RunStudents(wrapped) if load_student is None else load_student,
            **settings,
        )


class RunTeacher:
    """The teacher of a student's run: it labels by the critic's observation, or by the actor's."""

    def __init__(self, found: LoadedPolicy, *, sees_critic: bool) -> None:
        """Take a model and the normaliser of its observations."""
        self.model, self.normalizer, self.sees_critic = found.model.eval(), found.normalizer.eval(), sees_critic

    def _seen(self, obs: Tensor, critic_obs: Tensor | None) -> Tensor:
        seen: Tensor = self.normalizer(critic_obs if self.sees_critic and critic_obs is not None else obs)
        return seen

    @torch.no_grad()
    def act(self, obs: Tensor, critic_obs: Tensor | None = None) -> Any:
        """Return sampled actions."""
        return self.model.act(self._seen(obs, critic_obs))

    @torch.no_grad()
    def act_inference(self, obs: Tensor, critic_obs: Tensor | None = None) -> Any:
        """Return the mean."""
        return self.model.act_inference(self._seen(obs, critic_obs))

    def reset(self, dones: Tensor | None = None) -> None:
        """Reset the memory where an episode ended."""
        self.model.reset(dones)


def teacher_of_run(folder: str | Path) -> RunTeacher:
    """Build the teacher that the config.json of a student's run folder names, with its weights."""
    algorithm = safe_files.read_json(Path(folder) / "config.json").get("algorithm", {})
    teacher = algorithm.get("teacher_policy")
    if not teacher:
        raise ValueError(
            f"DaggerSaver wants a teacher: give policy, or a student whose config.json in {str(folder)!r} has "
            "algorithm.teacher_policy"
        )
    name = algorithm.get("teacher_policy_class_name", "ActorCritic")
    found = build_teacher(teacher, name, algorithm.get("teacher_ac_path"))
    return RunTeacher(found, sees_critic=bool(algorithm.get("label_action_with_critic_obs", True)))


def export_old_trajectories(folder: str | Path, save_dir: str | Path, *, chunk_length: int = 64) -> int:
    """Write the trajectories of a folder as st_rl and parkour write them, and return how many there are.

    chunk_length: steps per file. Images that the recording keeps as bytes stay bytes: 'normalized_image'.
    """
    store, target = TrajectoryStore(folder), Path(save_dir)
    if target.exists() and any(target.iterdir()):
        raise TrajectoryError(f"{str(target)!r} is not empty; export into a new folder")
    spec = store.obs_spec
    images = [column.name.removeprefix("obs/") for column in store.spec.columns if column.codec == IMAGE]
    actor = {name: list(part.shape) for name, part in spec.items() if part.group != CRITIC}
    critic = {name.removeprefix("critic/"): list(part.shape) for name, part in spec.items() if part.group == CRITIC}
    target.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {
        **store.about,
        "total_timesteps": store.num_steps,
        "total_trajectories": len(store),
        "obs_segments": actor,
        "obs_disassemble_mapping": dict.fromkeys(images, IMAGE),
        **({"privileged_obs_segments": critic} if critic else {}),
    }
    safe_files.write_text(target / "metadata.json", json.dumps(about))
    for index, length in enumerate(store.lengths()):
        place = target / f"trajectory_{index}"
        place.mkdir()
        steps = _old_columns(store.read(index), list(actor), [n for n in spec if spec[n].group == CRITIC], images)
        for start in range(0, length, chunk_length):
            stop = min(start + chunk_length, length)
            content = {name: value[start:stop] for name, value in steps.items()}
            safe_files.write_bytes(place / f"traj_{start:06d}_{stop:06d}.pickle", pickle.dumps(content, protocol=4))
    return len(store)


def _old_columns(
    steps: Mapping[str, Any], actor: list[str], critic: list[str], images: list[str]
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a trajectory under the old names."""
    obs, done = steps["obs"], steps["terminated"] | steps["truncated"]
    flat = {name: obs[name].flatten(1) for name in (*actor, *critic)}
    found: dict[str, Tensor] = {}
    if images:
        for name in actor:
            found[f"obs_{name}"] = compress_normalized_image(flat[name]) if name in images else flat[name]
    else:
        found["observations"] = torch.cat([flat[name].float() for name in actor], dim=1)
    if critic:
        found["privileged_observations"] = torch.cat([flat[name].float() for name in critic], dim=1)
    found |= {
        "actions": steps["act"],
        "rewards": steps["rew"].unsqueeze(1),
        "dones": done.unsqueeze(1).to(torch.uint8),
        "values": torch.zeros(len(done), 1),
        "timeouts": steps["truncated"] & ~steps["terminated"],
    }
    return {name: value.cpu().numpy() for name, value in found.items()}
