"""Build algorithm, terms, collector or dataset, and trainer from a config.

    config.algorithm_name ─▶ ALGORITHMS ─▶ class ─▶ build(config.algorithm, context, terms)
    config.terms          ─▶ TERMS      ─▶ classes ─▶ build(settings, context)            ─┐
    config.teacher, config.expert, objects ─▶ context.load("teacher" | "expert" | …)       ├─▶ Trainer
    env ─▶ Collector   or   config.dataset ─▶ Replay                                      ─┘

Whatever follows the protocols of `algorithms/building.py` and `algorithms/terms/term.py` is built here; no algorithm,
term or loop is special-cased by its class.
"""

from __future__ import annotations

import glob
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.building import (
    OFF_POLICY,
    OFFLINE,
    ON_POLICY,
    AlgorithmFacts,
    BuildContext,
    check_actions,
    facts_of,
    term_class,
)
from striderl.algorithms.terms.expert import ClipFiles, EnvExpert
from striderl.algorithms.terms.term import Term
from striderl.collect.actors.base import Actor
from striderl.collect.actors.policy_actor import GreedyActor
from striderl.collect.collector import Collector
from striderl.data import tree
from striderl.data.arena import Placement
from striderl.data.naming import unknown
from striderl.datasets.offline import load_dataset
from striderl.envs.tasks import make
from striderl.envs.vec_env import VecEnv
from striderl.execution.background import TOO_SHORT, Switch, built_with
from striderl.execution.modes import ExecutionConfig
from striderl.ops.moments import pooled
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.policy import Policy
from striderl.storage.replay.replay import Replay
from striderl.training.callbacks.callback import Callback
from striderl.training.callbacks.ranks import together
from striderl.training.distributed import Ranks
from striderl.training.experiment.loading import build_context, teacher_of
from striderl.training.experiment.run_config import RunConfig
from striderl.training.plans import OffPolicyPlan, OnPolicyPlan, Plan
from striderl.training.protocols import ReplayAlgorithm
from striderl.training.trainer import Trainer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Learner:
    """The parts of a run without its callbacks."""

    algorithm: Any
    """The algorithm, with its terms."""
    policy: Policy | ActorPolicy
    """The policy."""
    greedy: Actor
    """The greedy actor for evaluations and videos."""
    trainer: Callable[[Sequence[Callback]], Trainer]
    """Builds the trainer with these callbacks."""


def build_learner(
    config: RunConfig[Any, Any],
    env: VecEnv,
    ranks: Ranks | None = None,
    objects: Mapping[str, Any] | None = None,
    collector: Callable[[VecEnv, Actor], Collector] | None = None,
) -> Learner:
    """Build everything around an env; `objects` are live parts that a config cannot hold, such as a teacher.

    collector: what makes the collector, where it is not the usual one.
    """
    ranks = ranks if ranks is not None else Ranks()
    facts = facts_of(config.algorithm_name)
    switch = None
    if may_switch(config):
        switch = Switch(None, everywhere=ranks.everywhere, beside=torch.device(config.device).type == "cpu")
    elif config.switch_at not in ("auto", "never"):
        _log.warning("switch_at=%r has no effect: %s", config.switch_at, _why_no_switch(config))
    with built_with(switch), pooled(ranks.reduce):  # updaters sum their gradients over processes
        algorithm = build_algorithm(config, env, ranks, objects)
    if facts.loop == OFFLINE:
        source: Any = _dataset(config, env, algorithm, ranks)
    elif collector is not None:
        source = collector(env, algorithm.actor())
    else:
        source = Collector(env, algorithm.actor(), replace(config.collector, seed=config.seed))
    counted = facts.loop == ON_POLICY or (facts.loop == OFF_POLICY and ranks.world_size > 1)
    total_envs = config.env.num_envs if counted and collector is None else 0

    def trainer(callbacks: Sequence[Callback]) -> Trainer:
        with built_with(switch):
            made = Trainer(
                algorithm,
                source,
                config.plan,
                callbacks=together(ranks, algorithm, callbacks),
                seed=config.seed,
                total_envs=total_envs,
                switch=switch,
                ranks=ranks,
            )
        if switch is not None:
            set_switch(switch, config, algorithm, made.remaining_iterations, ranks.world_size)
        return made

    return Learner(algorithm=algorithm, policy=algorithm.policy, greedy=GreedyActor(algorithm.policy), trainer=trainer)


def build_algorithm(
    config: RunConfig[Any, Any],
    env: VecEnv,
    ranks: Ranks,
    objects: Mapping[str, Any] | None = None,
    execution: ExecutionConfig | None = None,
) -> Any:
    """Build the algorithm with its policy and terms; `execution` replaces the config's mode."""
    facts = facts_of(config.algorithm_name)
    check_actions(config.algorithm_name, facts, env.action_spec)
    context = build_context(config, env.obs_spec, env.action_spec)._replace(
        num_envs=env.num_envs,
        reduce=ranks.reduce,
        mode=execution or config.mode,
        load=lambda what: load_object(what, config, env, objects or {}),
        objects=objects or {},
    )
    if facts.loop == OFFLINE:
        _check_offline(config)
    return facts.build.build(config.algorithm, context, build_terms(config, facts, context))


def rescale_learning_rates(
    state: dict[str, Any],
    before: RunConfig[Any, Any],
    now: RunConfig[Any, Any],
    env: VecEnv,
    objects: Mapping[str, Any] | None = None,
) -> None:
    """Change the learning rates of a saved state as much as the settings were changed since it was saved.

    A learning rate is state, because a schedule may have moved it; without this a changed setting would have no effect.
    """
    if (before.algorithm, before.terms) == (now.algorithm, now.terms):
        return
    old, new = (
        dict(_learning_rates(build_algorithm(config, env, Ranks(), objects).state_dict())) for config in (before, now)
    )
    for path, saved in _learning_rates(state["algorithm"]):
        if path in old and path in new and float(old[path]):
            saved.mul_(float(new[path]) / float(old[path]))


def state_on_device(state: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a loaded state with collector and storage tensors moved to the device; envs move their own."""
    if device.type == "cpu" or "collector" not in state:
        return dict(state)

    def moved(part: Any) -> Any:
        return tree.map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, part)

    collector = {**state["collector"], "groups": moved(state["collector"]["groups"])}
    collector["statistics"] = moved(collector["statistics"])
    return {**state, "collector": collector, **{name: moved(state[name]) for name in ("rollout",) if name in state}}


def _learning_rates(state: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for path, leaf in tree.items(state):
        if path.endswith("learning_rate") and isinstance(leaf, Tensor):
            yield path, leaf


# -- compiling beside training -----------------------------------------------------------------------------------------


def may_switch(config: RunConfig[Any, Any]) -> bool:
    """Return whether functions of a run may change to compiled ones, on a GPU after they were captured as written."""
    own = getattr(config.algorithm, "mode", "")  # of off-policy algorithms
    on_gpu = torch.device(config.device).type == "cuda"
    # with 'never' functions on a GPU stay captured as written; without a switch they would be compiled at once
    auto = config.mode == "auto" and own in ("", "auto") and (on_gpu or config.switch_at != "never")
    return auto and (on_gpu or not config.workers.kind)


def _why_no_switch(config: RunConfig[Any, Any]) -> str:
    if config.mode == "auto" and config.workers.kind:
        return f"workers of {config.workers.kind} collect, and functions run as written"
    return f"it is for mode 'auto', and the mode is {getattr(config.algorithm, 'mode', '') or config.mode!r}"


def set_switch(
    switch: Switch, config: RunConfig[Any, Any], algorithm: Any, num_iterations: int | None, num_ranks: int = 1
) -> None:
    """Decide from the config when compiled programs take over; a short run, or one with memory, stays eager."""
    device, switch.chosen = torch.device(config.device), config.switch_at
    if config.switch_at == "never":
        switch.given_up = "switch_at is 'never'"
    elif config.switch_at == "ready":
        switch.at = 1 if device.type == "cuda" else None
    elif config.switch_at != "auto":
        switch.at = int(config.switch_at)
    else:
        plan_switch(switch, config.plan, config.env.num_envs, algorithm, num_iterations, device, num_ranks)


def learner_switch(mode: str | ExecutionConfig, device: torch.device, num_ranks: int = 1) -> Switch | None:
    """Return a switch for a learner with mode 'auto' whose loop is another library's; see `may_switch`.

    On the CPU in one process only: a process group that was made elsewhere may abort an ending process once functions
    were traced (see `distributed.setup`).
    """
    name = mode if isinstance(mode, str) else mode.mode
    on_gpu = device.type == "cuda"
    return Switch(None, beside=not on_gpu) if name == "auto" and (on_gpu or num_ranks == 1) else None


def plan_switch(
    switch: Switch | None,
    plan: Plan,
    num_envs: int,
    algorithm: Any,
    num_iterations: int | None,
    device: torch.device,
    num_ranks: int = 1,
    *,
    first: int = 0,
) -> None:
    """Decide when compiled programs take over, of so many iterations from `first` on; None is without an end.

    A loop that would not gain the time back is not compiled, nor one with memory on the CPU. It follows from sizes
    alone, the same in every process. Once functions are being compiled, it stays as it is.
    """
    if switch is None or switch.on or switch.keys:
        return
    if device.type == "cuda":
        # of several processes updates are eager, and collection alone gains
        num_steps, num_updates, _ = _work_of(plan, 1, algorithm)
        gained = num_steps * _GPU_STEP + (num_updates * _GPU_UPDATE if num_ranks == 1 else 0.0)
        paid_back = math.ceil(_GPU_COMPILING / max(gained, 1e-6))
        iteration, worth_it = max(1, paid_back // 8), 2 * paid_back
    else:
        iteration = switch_iteration(plan, num_envs, algorithm, num_ranks)
        worth_it = _WORTH_IT * iteration
    switch.at, switch.given_up = first + iteration, ""
    if num_iterations is not None and num_iterations < worth_it:
        switch.given_up = TOO_SHORT
    elif device.type == "cpu" and algorithm.policy.state_spec():
        switch.given_up = "recurrent networks run in kernels that compiling does not make faster"


_GPU_STEP, _GPU_UPDATE, _GPU_COMPILING = 1.5e-4, 1e-3, 40.0
"""Seconds that compiling gains in a step of all envs and in a gradient step, and that it takes (an H200, 2026)."""


def switch_iteration(plan: Plan, num_envs: int, algorithm: Any, num_ranks: int = 1) -> int:
    """Return the iteration in which compiling should be over, from sizes alone: the same on every machine and rank.

    An estimate of the seconds that an iteration takes as written on one core; a wrong one costs time, nothing else.
    """
    num_parameters: int = sum(each.numel() for each in algorithm.policy.parameters())
    num_steps, num_updates, batch_size = _work_of(plan, num_envs, algorithm)
    warmup = plan.learning_starts // (num_steps * num_envs) if isinstance(plan, OffPolicyPlan) else 0
    num_envs, batch_size = math.ceil(num_envs / num_ranks), math.ceil(batch_size / num_ranks)
    seconds = num_steps * (_STEP + num_envs * _ENV) + num_updates * (_UPDATE + _SAMPLE * num_parameters * batch_size)
    return warmup + max(3, math.ceil(_COMPILING / seconds))


def _work_of(plan: Plan, num_envs: int, algorithm: Any) -> tuple[int, int, int]:
    """Return the steps of each env, the gradient steps, and the samples of one of them, in an iteration."""
    if isinstance(plan, OnPolicyPlan):
        num_steps = plan.num_steps_per_env
        batch_size = num_steps * num_envs // max(1, getattr(algorithm.config, "num_mini_batches", 1))
        return num_steps, int(algorithm.num_updates_per_rollout), batch_size
    if isinstance(plan, OffPolicyPlan):
        num_steps = plan.num_steps_per_env
        return num_steps, num_steps // plan.train_every * plan.num_updates_per_round, plan.batch_size
    return 0, plan.num_updates_per_iteration, plan.batch_size


_STEP, _ENV, _UPDATE, _SAMPLE = 3e-4, 1e-5, 1.5e-3, 3e-10
"""Seconds of a step of all envs, of one env in it, of a gradient step, and of one parameter for one sample of it."""
_COMPILING = 15.0
"""Seconds that tracing and compiling take, on one core beside training."""
_WORTH_IT = 3
"""A run of fewer than so many times the iterations before the switch stays eager."""


def build_terms(config: RunConfig[Any, Any], facts: AlgorithmFacts, context: BuildContext) -> list[Term]:
    """Build the terms, in the config's order."""
    if config.terms and not facts.takes_terms:
        raise ValueError(f"{config.algorithm_name} takes no terms, found {list(config.terms)}; ppo does")
    return [term_class(name).build(settings, context) for name, settings in config.terms.items()]


class ConfigCheck:
    """Builds what a run of a config would build, without a folder, and trains nothing; it raises what a run would."""

    def __init__(self) -> None:
        self._env: tuple[Any, VecEnv] | None = None

    def __call__(self, config: RunConfig[Any, Any]) -> None:
        """Build the parts; the env of the last config is used again where it is the same."""
        if self._env is None or self._env[0] != config.env:
            self.close()
            settings = config.env.settings
            env = make(config.env.task, num_envs=config.env.num_envs, device=config.device, settings=settings)
            self._env = (config.env, env)
        learner = build_learner(config, self._env[1])
        if isinstance(config.plan, OnPolicyPlan):  # a replay would take its memory
            learner.trainer(())

    def close(self) -> None:
        """Close the env."""
        if self._env is not None:
            self._env[1].close()
        self._env = None

    def __enter__(self) -> ConfigCheck:
        return self

    def __exit__(self, *ending: object) -> None:
        self.close()


# -- what a config refers to -------------------------------------------------------------------------------------------


def load_object(what: str, config: RunConfig[Any, Any], env: VecEnv, objects: Mapping[str, Any]) -> Any:
    """Return an object of a run: one that was passed in, or the one that the config refers to."""
    if what in objects:
        return objects[what]
    if what == "teacher":
        return teacher_of(config.teacher)
    if what == "expert":
        return _expert(config, env)
    raise ValueError(
        f"{config.algorithm_name} with terms {list(config.terms)} wants a {what!r}: hand it over, "
        f"striderl.train(…, objects={{{what!r}: …}}), or name a function of the form 'module:name' in its settings"
    )


def _expert(config: RunConfig[Any, Any], env: VecEnv) -> Any:
    """Return the expert data of a run: a dataset, motion clips, or the env itself."""
    settings = config.expert
    if not settings.source:
        raise ValueError(
            "there is no expert; name one: --expert.source with a folder of 'striderl dataset', files of motion "
            "clips, or 'env'"
        )
    if settings.source == "env":
        found = dict(env.info_spec)
        if settings.column not in found:
            raise ValueError(unknown("info column", settings.column, found, where="expert.column: the env"))
        return EnvExpert(shape=found[settings.column].shape, column=settings.column)
    if Path(settings.source).is_dir() and not list(Path(settings.source).glob("*.npz")):
        return load_dataset(settings.source, env.obs_spec, env.action_spec, placement=Placement(device=config.device))
    pattern = str(Path(settings.source) / "*.npz") if Path(settings.source).is_dir() else settings.source
    files = tuple(sorted(glob.glob(pattern)))
    if not files:
        raise FileNotFoundError(
            f"expert.source={settings.source!r}: there is no such dataset or clip. Name a folder that "
            "'striderl dataset' wrote, files of motion clips, or 'env'"
        )
    if env.step_dt <= 0.0:
        raise ValueError("motion clips have times, which the steps of this task have not; use a dataset as the expert")
    return ClipFiles(files=files, fields=settings.fields, step_dt=env.step_dt, device=config.device)


def _dataset(config: RunConfig[Any, Any], env: VecEnv, algorithm: ReplayAlgorithm, ranks: Ranks) -> Replay:
    """Load the run's dataset for an algorithm, of several processes its shard, or raise with what is wrong with it."""
    how = f"'striderl dataset {config.env.task} FOLDER' makes one"
    if not config.dataset:
        raise ValueError(f"{config.algorithm_name} learns from a dataset: add --dataset FOLDER; {how}")
    if not Path(config.dataset).is_dir():
        raise FileNotFoundError(f"there is no dataset {config.dataset!r}; {how}")
    return load_dataset(
        config.dataset,
        env.obs_spec,
        env.action_spec,
        sampler=algorithm.sampler(config.seed),
        view=algorithm.view(),
        placement=Placement(device=config.device),
        shard=(ranks.rank, ranks.world_size),
    )


# -- checks of configs -------------------------------------------------------------------------------------------------


def _check_offline(config: RunConfig[Any, Any]) -> None:
    """Raise for settings of collecting, which have no effect when nothing is collected."""
    changed = replace(config.collector, seed=0) != type(config.collector)()
    if changed or config.env.num_envs != 1:
        what = "collector" if changed else "env.num_envs"
        raise ValueError(f"{what}: these settings have no effect with {config.algorithm_name}: nothing is collected")


def env_shard(config: RunConfig[Any, Any], ranks: Ranks) -> tuple[int, int]:
    """Return (how many of the run's envs are this process's, the first of them); of an offline run, all are."""
    if facts_of(config.algorithm_name).loop == OFFLINE:
        return config.env.num_envs, 0
    return ranks.shard(config.env.num_envs)


def check_ranks(config: RunConfig[Any, Any], num_ranks: int) -> None:
    """Raise unless this config can be trained by so many processes."""
    if num_ranks == 1:
        return
    facts, num_envs = facts_of(config.algorithm_name), config.env.num_envs
    parts = {config.algorithm_name: facts.build, **{name: term_class(name) for name in config.terms}}
    for name, part in parts.items():
        if not getattr(part, "learns_in_ranks", False):
            raise ValueError(
                f"{name} does not set learns_in_ranks, so it cannot learn in {num_ranks} processes; start it without "
                "torchrun, or set it where every mean is one of striderl.ops"
            )
    if config.device.startswith("cuda:"):
        raise ValueError(f"{num_ranks} processes have a GPU each: write --device cuda, found {config.device!r}")
    if facts.loop != OFFLINE and num_envs < num_ranks:
        raise ValueError(f"{num_envs} envs cannot be shared by {num_ranks} processes; use more envs")
    if facts.loop == ON_POLICY:
        return
    if facts.loop == OFF_POLICY and num_envs % num_ranks:
        raise ValueError(
            f"{num_envs} envs cannot be shared evenly by {num_ranks} processes, and the steps of all shards of a "
            f"replay are to be as likely; use a multiple of {num_ranks}"
        )
    if config.plan.batch_size % num_ranks:
        raise ValueError(
            f"plan.batch_size {config.plan.batch_size} cannot be shared evenly by {num_ranks} processes; use a "
            f"multiple of {num_ranks}"
        )


def check_workers(config: RunConfig[Any, Any], num_ranks: int, objects: Mapping[str, Any]) -> None:
    """Raise unless workers can collect for this config."""
    settings, name = config.workers, config.algorithm_name
    if not settings.kind:
        return
    facts = facts_of(name)
    if facts.loop == OFFLINE or config.terms or facts.objects or objects:
        raise ValueError(
            "workers collect for algorithms without terms, teachers and objects, such as ppo, impala and sac; found "
            f"{name} with terms {list(config.terms)} and objects {sorted({*facts.objects, *objects})}"
        )
    if num_ranks > 1:
        raise ValueError("workers of Ray have one learner; start the run without torchrun")
    if settings.schedule == "asynchronous":
        if facts.loop == ON_POLICY and not facts.corrects_staleness:
            raise ValueError(f"{name} learns from fresh rollouts alone; with the asynchronous schedule use impala")
        if config.env.num_envs % settings.num_workers:
            raise ValueError(
                f"with the asynchronous schedule every worker has as many envs: {config.env.num_envs} envs cannot be "
                f"shared evenly by {settings.num_workers} workers"
            )
    if config.env.num_envs < settings.num_workers:
        raise ValueError(
            f"{config.env.num_envs} envs cannot be shared by {settings.num_workers} workers; use more envs"
        )
    ahead = getattr(config.plan, "overlap", False) or getattr(config.plan, "warmup_steps", 0)
    if config.collector.schedule != "together" or config.logging.video_every or ahead:
        raise ValueError(
            "with workers, collector.schedule is 'together', plan.overlap is off, plan.warmup_steps is 0 and no videos "
            "are made during training"
        )
