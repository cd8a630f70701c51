"""`Distillation` of rsl_rl 5: a student learns the actions of a teacher where the student itself goes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from striderl.compat.rsl_rl.models.mlp_model import MLPModel
from striderl.compat.rsl_rl.storage.rollout_storage import RolloutStorage
from striderl.compat.rsl_rl.utils.utils import (
    compile_model,
    reduce_gradients_in_buckets,
    resolve_class,
    resolve_obs_groups,
    resolve_optimizer,
)
from striderl.data.naming import unknown

_LOSSES = {"mse": nn.functional.mse_loss, "huber": nn.functional.huber_loss}


class Distillation:
    """Behaviour cloning on the student's own rollouts, through `gradient_length` steps at a time."""

    student: MLPModel
    teacher: MLPModel
    teacher_loaded: bool = False
    """Whether the teacher's weights came from a file; a DistillationRunner wants that."""

    def __init__(
        self,
        student: MLPModel,
        teacher: MLPModel,
        storage: RolloutStorage,
        num_learning_epochs: int = 1,
        gradient_length: int = 15,
        learning_rate: float = 1e-3,
        max_grad_norm: float | None = None,
        loss_type: str = "mse",
        optimizer: str = "adam",
        use_mixed_precision: bool = False,
        device: torch.device | str = "cpu",
        multi_gpu_cfg: Mapping[str, Any] | None = None,
        grad_reduce_bucket_mb: float = 25,
        rnd_cfg: None = None,
        symmetry_cfg: None = None,
    ) -> None:
        """Take the models and the settings; loss_type is 'mse' or 'huber'."""
        if loss_type not in _LOSSES:
            raise ValueError(f"Unknown loss type: {unknown('loss_type', loss_type, _LOSSES, where='Distillation')}")
        for name, given in (("rnd_cfg", rnd_cfg), ("symmetry_cfg", symmetry_cfg)):
            if given is not None:
                raise ValueError(f"{name} has no effect on Distillation, which learns no reward; remove it")
        self.device = device
        self.is_multi_gpu = multi_gpu_cfg is not None
        self.gpu_global_rank = 0 if multi_gpu_cfg is None else int(multi_gpu_cfg["global_rank"])
        self.gpu_world_size = 1 if multi_gpu_cfg is None else int(multi_gpu_cfg["world_size"])
        self.grad_reduce_bucket_mb = grad_reduce_bucket_mb
        self.student, self.teacher = student.to(device), teacher.to(device)
        self._raw_student, self._raw_teacher = self.student, self.teacher
        self.optimizer: torch.optim.Optimizer = cast(Any, resolve_optimizer(optimizer))(
            self.student.parameters(), lr=learning_rate
        )
        self.storage, self.transition = storage, storage.Transition()
        self.last_hidden_states: tuple[Any, Any] = (None, None)
        self.num_learning_epochs, self.gradient_length = num_learning_epochs, gradient_length
        self.learning_rate, self.max_grad_norm = learning_rate, max_grad_norm
        self.use_mixed_precision = use_mixed_precision
        self.loss_fn: Any = _LOSSES[loss_type]
        self.num_updates = 0
        self.rnd: None = None
        left = num_learning_epochs * storage.num_transitions_per_env % gradient_length
        if left:
            warnings.warn(
                f"the last {left} steps of an update are not learned: gradient_length={gradient_length} does not "
                f"divide {num_learning_epochs} epochs of {storage.num_transitions_per_env} steps",
                stacklevel=2,
            )

    def act(self, obs: Any) -> Tensor:
        """Return the student's actions, and note the teacher's."""
        step = self.transition
        step.actions = self.student(obs, stochastic_output=True).detach()
        step.privileged_actions = self.teacher(obs).detach()
        step.observations = obs
        return step.actions  # type: ignore[no-any-return]

    def process_env_step(self, obs: Any, rewards: Tensor, dones: Tensor, extras: Mapping[str, Any]) -> None:
        """Store the step, and reset the memories of envs whose episode ended."""
        self.transition.rewards, self.transition.dones = rewards, dones
        self.storage.add_transition(self.transition)
        self.transition.clear()
        self.student.reset(dones)
        self.teacher.reset(dones)

    def compute_returns(self, obs: Any) -> None:
        """Do nothing: there are no returns."""

    def update(self) -> dict[str, float]:
        """Learn from the rollout, and return the mean loss."""
        self.num_updates += 1
        total = torch.zeros((), device=self.device)
        pending: Tensor | None = None
        count = 0
        for _ in range(self.num_learning_epochs):
            self.student.reset(hidden_state=self.last_hidden_states[0])
            self.teacher.reset(hidden_state=self.last_hidden_states[1])
            self.student.detach_hidden_state()
            for batch in self.storage.generator():
                loss = self.compute_loss(batch)
                pending = loss if pending is None else pending + loss
                total = total + loss.detach()
                count += 1
                if count % self.gradient_length == 0:
                    self.gradient_step(pending)
                    self.student.detach_hidden_state()
                    pending = None
                dones = batch.dones.view(-1)
                self.student.reset(dones)
                self.teacher.reset(dones)
                self.student.detach_hidden_state(dones)
        self.student.detach_hidden_state()
        self.last_hidden_states = (self.student.get_hidden_state(), self.teacher.get_hidden_state())
        self.student.update_normalization(self.storage.observations.flatten(0, 1))
        self.storage.clear()
        return {"behavior": float(total) / max(count, 1)}

    def compute_loss(self, batch: Any) -> Tensor:
        """Return the loss of one step of all envs."""
        kind = torch.device(self.device).type
        with torch.autocast(device_type=kind, enabled=self.use_mixed_precision, dtype=torch.bfloat16):
            actions = self.student(batch.observations)
            return self.loss_fn(actions, batch.privileged_actions)  # type: ignore[no-any-return]

    def gradient_step(self, loss: Tensor) -> None:
        """Take one step of the optimiser, with gradients of all processes."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.is_multi_gpu:
            self.reduce_parameters()
        if self.max_grad_norm:
            nn.utils.clip_grad_norm_(self.student.parameters(), self.max_grad_norm)
        self.optimizer.step()

    def train_mode(self) -> None:
        """Set the student to training; the teacher stays in evaluation."""
        self.student.train()
        self.teacher.eval()

    def eval_mode(self) -> None:
        """Set both to evaluation."""
        self.student.eval()
        self.teacher.eval()

    def save(self) -> dict[str, Any]:
        """Return the states of both models and the optimiser, for `torch.save`."""
        return {
            "student_state_dict": self._raw_student.state_dict(),
            "teacher_state_dict": self._raw_teacher.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
        }

    def load(self, loaded_dict: Mapping[str, Any], load_cfg: Mapping[str, bool] | None, strict: bool) -> bool:
        """Load the parts that `load_cfg` names; without it the actor of a PPO as teacher, or all of a distillation."""
        of_ppo = "actor_state_dict" in loaded_dict
        wanted = {"teacher": True} if of_ppo else dict.fromkeys(("student", "teacher", "optimizer", "iteration"), True)
        wanted = wanted if load_cfg is None else dict(load_cfg)
        if wanted.get("student"):
            self._raw_student.load_state_dict(loaded_dict["student_state_dict"], strict=strict)
        if wanted.get("teacher"):
            of_teacher = loaded_dict.get("teacher_state_dict") or loaded_dict["actor_state_dict"]
            self._raw_teacher.load_state_dict(of_teacher, strict=strict)
            self.teacher_loaded = True
        if wanted.get("optimizer"):
            self.optimizer.load_state_dict(loaded_dict["optimizer_state_dict"])
            self.learning_rate = self.optimizer.param_groups[0]["lr"]
        return bool(wanted.get("iteration", False))

    def get_policy(self) -> MLPModel:
        """Return the student, as it is without compiling."""
        return self._raw_student

    def compile(self, mode: str | None = None) -> None:
        """Compile both models in a mode of torch.compile; without one they stay as they are."""
        self.student, self.teacher = compile_model(self._raw_student, mode), compile_model(self._raw_teacher, mode)

    @staticmethod
    def construct_algorithm(obs: Any, env: Any, cfg: dict[str, Any], device: torch.device | str) -> Distillation:
        """Build models, storage and the algorithm that a runner's config names; its obs_groups are filled in."""
        kind, settings = resolve_class(cfg["algorithm"])
        student_class, of_student = resolve_class(cfg["student"])
        teacher_class, of_teacher = resolve_class(cfg["teacher"])
        groups = cfg["obs_groups"] = resolve_obs_groups(obs, cfg["obs_groups"], ["student", "teacher"])
        student = student_class(obs, groups, "student", env.num_actions, **of_student).to(device)
        teacher = teacher_class(obs, groups, "teacher", env.num_actions, **of_teacher).to(device)
        size = (env.num_envs, cfg["num_steps_per_env"])
        storage = RolloutStorage("distillation", *size, obs, [env.num_actions], device)
        alg = kind(student, teacher, storage, device=device, **settings, multi_gpu_cfg=cfg.get("multi_gpu"))
        alg.compile(cfg.get("torch_compile_mode"))
        return cast(Distillation, alg)

    def broadcast_parameters(self) -> None:
        """Give every process the weights of the first."""
        for model in (self._raw_student, self._raw_teacher):
            for tensor in model.state_dict().values():
                torch.distributed.broadcast(tensor, src=0)

    def reduce_parameters(self) -> None:
        """Average the gradients of all processes."""
        reduce_gradients_in_buckets(self.student.parameters(), self.gpu_world_size, self.grad_reduce_bucket_mb)
