"""`DaggerSaver`: the newest student acts, and its steps are recorded with the teacher's actions as labels.

    trainer process    ──checkpoints──▶  run folder                         demos/  ◀──reads── RolloutDataset
                                            │ load_latest_training_policy     ▲
    this process       student acts ◀───────┘                                 │
                       teacher labels ────────────────────────────────────────┘  'act' is the label

In some episodes the teacher acts, with a probability that falls with the student's iterations; `TeacherActing`, which
is the part of the `Distill` term, decides it. Before the first checkpoint, the teacher acts everywhere. Recorded
with the label: `policy/executed`, the executed action, and `policy/acted`, whether it was the teacher's.
`striderl.training.demonstrations.RunStudents` reads students from the folder of a run.

The actor is the student together with the teacher; before the first student, the teacher alone.

    obs ──student──▶ action ──TeacherActing──▶ executed: the teacher's in the episodes drawn for it
                                   └────────▶ label: what the teacher would do, in every env

`TeacherActing` is the part that the `Distill` term uses in training. The memory has the same names in both actors, so
that episodes continue when the first student arrives: they stay the teacher's until they end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.collect.actors.base import Actor, ActorOutput, Noise, Obs
from striderl.collect.group import NoiseSource
from striderl.collect.teacher import TeacherActing
from striderl.data.actions import BoxSpec
from striderl.data.arena import Columns
from striderl.data.naming import unknown
from striderl.data.noise import NoiseSpec
from striderl.data.specs import TensorSpec
from striderl.data.transition import Transition, transition_columns
from striderl.envs.vec_env import VecEnv
from striderl.loggers.tensorboard_logger import TensorBoardLogger
from striderl.ops.ramps import TeacherSchedule
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.policy import Policy
from striderl.policies.stage import inner, outer
from striderl.recording.actors import CRITIC, FlatTeacher, as_vec_env, bound_teacher
from striderl.recording.demonstrations import DemonstrationSaver, SaverProgress, reduced

_log = logging.getLogger(__name__)

_KEPT = 10_000
"""Rows of the env's log that are kept until their means are read."""


class DaggerSaver(DemonstrationSaver):
    """Record a student's episodes with a teacher's labels; see the picture at the top of this module."""

    def __init__(
        self,
        env: Any,
        policy: Any,
        save_dir: str | Path,
        rollout_storage_length: int = 64,
        min_timesteps: float = 1e6,
        min_episodes: float = 10000,
        success_traj_only: bool = False,
        use_critic_obs: bool = True,
        obs_disassemble_mapping: Mapping[str, str] | None = None,
        demo_by_sample: bool = False,
        *,
        training_policy_logdir: str | Path,
        load_student: LoadStudent | None = None,
        teacher_act_prob: str | float = "exp",
        update_times_scale: float = 5000,
        action_sample_std: float = 0.0,
        log_to_tensorboard: bool = False,
        seed: int = 0,
        max_trajectory_length: int = 10_000,
        log_interval: int = 10,
        progress: Callable[[SaverProgress], None] | None = None,
    ) -> None:
        """Prepare to record; arguments that `DemonstrationSaver` has mean the same here, for the teacher.

        policy: the teacher: a policy of this library, a model, a Teacher or a TeacherRouter.
        use_critic_obs: give the teacher the critic's components; the student never gets them.
        demo_by_sample: label with samples of the teacher in place of its most likely actions.
        training_policy_logdir: where the student's training saves its checkpoints.
        load_student: loads the newest of them: `striderl.training.RunStudents(env)`, or any `LoadStudent`.
        teacher_act_prob: how often the teacher acts: a number, or 'linear', 'exp', 'tanh' of the student's iteration.
        update_times_scale: iterations in which these schedules fall most of their way.
        action_sample_std: above zero, the student acts with Gaussian noise of this width around its mean, and otherwise
            by samples of its own distribution.
        log_to_tensorboard: write the env's episode numbers to 'tensorboard' in the folder, by the student's iteration.
        """
        env = as_vec_env(env, type(self).__name__)
        if load_student is None:
            raise TypeError(
                "DaggerSaver wants load_student, which reads students from training_policy_logdir; for the folder of a "
                "run or of a runner it is striderl.training.RunStudents(env)"
            )
        if not action_sample_std >= 0.0:
            raise ValueError(f"action_sample_std is not negative, found {action_sample_std}")
        if action_sample_std > 0.0 and not isinstance(env.action_spec, BoxSpec):
            raise TypeError(f"action_sample_std wants real-valued actions, found {type(env.action_spec).__name__}")
        self.training_policy_logdir = Path(training_policy_logdir)
        self.action_sample_std = action_sample_std
        self.teacher_act_prob = TeacherSchedule(teacher_act_prob, update_times_scale)
        self.teacher_act_prob.require_probability("teacher_act_prob")
        self.training_policy_iteration = 0
        """Iteration of the student that acts."""
        self.rollout_episode_infos: list[dict[str, Any]] = []
        """What the env has logged since the last `print_log`."""
        self.episode_means: dict[str, float] = {}
        """Its means at the last `print_log`; largest and smallest for names with '_max' and '_min'."""
        self._load_student = load_student
        self._student: Student | None = None
        self.teacher_part = TeacherActing(
            bound_teacher(policy, env, use_critic_obs=use_critic_obs),
            env.action_spec,
            probability=torch.ones((), device=env.device),
            sample=demo_by_sample,
        )
        super().__init__(
            env,
            policy,
            save_dir,
            rollout_storage_length,
            min_timesteps,
            min_episodes,
            success_traj_only,
            use_critic_obs,
            obs_disassemble_mapping,
            demo_by_sample,
            seed=seed,
            max_trajectory_length=max_trajectory_length,
            log_interval=log_interval,
            progress=progress,
        )
        self._board = TensorBoardLogger(self.save_dir / "tensorboard") if log_to_tensorboard else None

    # -- overrides -----------------------------------------------------------------------------------------------------

    def _make_actor(self) -> Actor:
        return TeacherOnlyActor(self.teacher_part)

    def _columns(self) -> Columns:
        info = {name: spec for name, spec in self.env.info_spec.items() if name != "valid"}
        beside = {"executed": self.env.action_spec.tensor, "acted": TensorSpec(dtype="bool")}
        return transition_columns(self.env.obs_spec, self.env.action_spec, info, beside)

    def _recorded(self, transition: Transition) -> dict[str, Any]:
        said = transition.policy
        beside = {"executed": transition.act, "acted": said["acted"]}
        return {**transition.columns(), "act": said["label"], "policy": beside}

    def _settings(self) -> dict[str, Any]:
        return {
            **super()._settings(),
            "training_policy_logdir": str(self.training_policy_logdir),
            "teacher_act_prob": self.teacher_act_prob.option,
            "update_times_scale": self.teacher_act_prob.scale,
            "action_sample_std": self.action_sample_std,
        }

    def policy_reset(self, dones: Tensor) -> None:
        """Reset the student's state, and that of a teacher that keeps its own, where an episode ended."""
        super().policy_reset(dones)
        if isinstance(self.teacher_part.teacher, FlatTeacher):
            self.teacher_part.teacher.policy.reset(dones)

    # -- the student ---------------------------------------------------------------------------------------------------

    @property
    def training_policy(self) -> Any:
        """The student that acts; None before the first checkpoint."""
        return None if self._student is None else self._student.policy

    @property
    def use_teacher_act_mask(self) -> Tensor:
        """In which envs the teacher acts now, bool [N]; an env is drawn with the first step of its episode."""
        return acting_mask(self._ready().state)

    def build_training_policy(self) -> None:
        """Look for a student for the first time; log when there is none: a folder may be misspelt."""
        self.load_latest_training_policy()
        if self._student is None:
            folder = str(self.training_policy_logdir)
            _log.warning("there is no student in %r yet; until there is one, the teacher acts in all envs", folder)

    def load_latest_training_policy(self) -> bool:
        """Load the newest student if it is not the present one, and return whether it was loaded.

        A checkpoint that is being written, or cannot be read now, is looked at again the next time.
        """
        found = self._load_student(self.training_policy_logdir, "" if self._student is None else self._student.name)
        if found is None:
            return False
        check_student(found.policy, self.env)
        first = self._student is None
        self._student, self.training_policy_iteration = found, found.iteration
        policy = found.policy.to(self.env.device).eval()
        self.teacher_part.probability.copy_(self.teacher_act_prob(float(found.iteration)))
        self._change_actor(StudentActor(policy, self.teacher_part, std=self.action_sample_std), first=first)
        _log.info(
            "student of iteration %d; the teacher acts in %.3g", found.iteration, float(self.teacher_part.probability)
        )
        return True

    def _change_actor(self, actor: StudentActor, *, first: bool) -> None:
        """Switch to another actor; open episodes keep their acting policy and its recurrent state."""
        self._actor = actor
        group = self._group
        if group is None:
            return
        fresh = actor.initial_state(self.env.num_envs, self.env.device)
        shapes = {name: value.shape for name, value in fresh.items()}
        known = {name: value for name, value in group.state.items() if shapes.get(name) == value.shape}
        group.actor, group.fresh_state, group.state = actor, fresh, {**fresh, **known}
        if first:
            index, seed = group.noise.env_index, group.noise.seed
            group.noise = NoiseSource(actor.noise(), seed=seed, env_index=index)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def init_traj_handlers(self, config: Mapping[str, Any] | None = None) -> None:
        """Make the folder, and look for a student."""
        if self.writer is None:
            super().init_traj_handlers(config)
            self.build_training_policy()

    def add_transition(self, step_i: int, infos: Mapping[str, Any] | None = None) -> None:
        """Write the last step into row `step_i` of the buffer, and keep what the env logged."""
        super().add_transition(step_i, infos)
        logged = (infos or {}).get("log") or (infos or {}).get("episode")
        if logged:
            self.rollout_episode_infos.append(dict(logged))
            del self.rollout_episode_infos[:-_KEPT]

    def check_stop(self) -> bool:
        """Load the newest student, and return whether the folder holds enough."""
        self.load_latest_training_policy()
        return super().check_stop()

    def print_log(self) -> SaverProgress:
        """Log progress and the means of what the env logged."""
        self.episode_means, self.rollout_episode_infos = reduced(self.rollout_episode_infos), []
        for name, value in self.episode_means.items():
            _log.info("Episode/%s: %.4g", name, value)
        if self._board is not None and self.episode_means:
            numbers = {f"Episode/{name}": value for name, value in self.episode_means.items()}
            self._board.log(self.training_policy_iteration, numbers)
        return super().print_log()

    def close(self) -> None:
        """Save ended episodes, and release the folder and the event file."""
        super().close()
        if self._board is not None:
            self._board.close()


# -- the student -------------------------------------------------------------------------------------------------------


StudentPolicy = Policy | ActorPolicy
"""Types of a student."""

_PART, _STUDENT, _TEACHER = "distill", "student", "teacher"
_ACTION, _EXPLORE = "action", "explore"


class Student(NamedTuple):
    """A student as it was saved."""

    policy: StudentPolicy
    iteration: int
    """Its training iteration; the schedule of the teacher's acting follows it."""
    name: str
    """Which checkpoint it is; another name means another one."""


LoadStudent = Callable[[Path, str], Student | None]
"""(folder, name of the present student or '') → the newest student; None while there is no newer one to load."""


class StudentActor:
    """Act by a student, by the teacher in some episodes, and store the teacher's action as the label."""

    def __init__(self, policy: StudentPolicy, part: TeacherActing, *, std: float = 0.0) -> None:
        """Sample from the policy, or with `std` above zero, from a Gaussian of that width around its mean."""
        self.policy, self.part, self._std = policy, part, std

    def columns(self) -> Columns:
        """Return the columns of the label and of the acting policy."""
        return self.part.columns()

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of the student's stages and of its sample, and that of the teacher's part."""
        spec = self.policy.head.noise_spec()
        sample = {_ACTION: spec} if isinstance(spec, NoiseSpec) else {f"{_ACTION}/{k}": v for k, v in spec.items()}
        if self._std > 0.0:
            sample = {_EXPLORE: NoiseSpec(shape=_box_shape(self.part))}
        theirs = {f"{_PART}/{name}": each for name, each in self.part.noise().items()}
        return {**self.policy.noise(), **sample, **theirs}

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return the memory of both at the start of an episode."""
        return {
            **outer(self.policy.initial_state(num_envs, device), _STUDENT),
            **outer(self.part.initial_state(num_envs, device), _PART),
        }

    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Act by the student, and by the teacher in its episodes."""
        stage_draws = self.policy.decide(noise)
        distribution, memory, _ = self.policy.act(obs, inner(state, _STUDENT), stage_draws)
        if self._std > 0.0:
            actions = distribution.mode() + self._std * noise[_EXPLORE]
        else:
            actions = distribution.sample(noise[_ACTION] if _ACTION in noise else inner(noise, _ACTION))
        played = self.part(obs, inner(state, _PART), actions, distribution, inner(noise, _PART))
        new_state = {**outer(memory, _STUDENT), **outer(played.state, _PART)}
        return ActorOutput(played.actions, new_state, played.columns)


class TeacherOnlyActor:
    """Act by the teacher in every env, with the columns and the memory of a `StudentActor`."""

    def __init__(self, part: TeacherActing) -> None:
        self.part = part

    def columns(self) -> Columns:
        """Return the columns of the label and of the acting policy."""
        return self.part.columns()

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of the teacher's part."""
        return {f"{_PART}/{name}": each for name, each in self.part.noise().items()}

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return that the teacher acts, and its memory."""
        own = self.part.initial_state(num_envs, device)
        everywhere = torch.ones(num_envs, dtype=torch.bool, device=device)
        return outer({**own, "drawn": everywhere, "acts": everywhere}, _PART)

    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Execute the label."""
        before = inner(state, _PART)
        said = self.part.teacher.label(
            obs, inner(before, _TEACHER), inner(inner(noise, _PART), _TEACHER), sample=self.part.sample
        )
        after = {"drawn": before["drawn"], "acts": before["acts"], **outer(said.state, _TEACHER)}
        return ActorOutput(said.actions, outer(after, _PART), {"label": said.actions, "acted": before["acts"]})


def acting_mask(state: Mapping[str, Tensor]) -> Tensor:
    """Return in which envs the teacher acts, bool [N], from the memory of either actor."""
    return state[f"{_PART}/acts"] & state[f"{_PART}/drawn"]


def check_student(policy: StudentPolicy, env: VecEnv) -> None:
    """Raise unless an env has a student's observations and actions."""
    if not isinstance(policy, (Policy, ActorPolicy)):
        raise TypeError(f"a student is a Policy or an ActorPolicy, found {type(policy).__name__}")
    for name, part in policy.actor_inputs.items():
        if name not in env.obs_spec:
            raise KeyError(
                unknown("component", name, env.obs_spec, where="the student reads what is not there: the env")
            )
        if env.obs_spec[name].shape != part.shape:
            raise ValueError(
                f"the student wants component {name!r} of shape {part.shape}, the env's has {env.obs_spec[name].shape}"
            )
        if env.obs_spec[name].group == CRITIC:
            raise ValueError(f"the student's actor reads {name!r}, which only a critic may see")
    if policy.action_spec.tensor != env.action_spec.tensor:
        raise ValueError(f"the student's actions are {policy.action_spec}, the env's {env.action_spec}")


def _box_shape(part: TeacherActing) -> tuple[int, ...]:
    spec = part.action_spec
    if not isinstance(spec, BoxSpec):
        raise TypeError(f"action_sample_std wants real-valued actions, found {type(spec).__name__}")
    return spec.shape
