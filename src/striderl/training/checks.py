"""Check that the parts of a trainer fit together, before anything runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.data.naming import unknown
from striderl.envs.vec_env import AsyncVecEnv
from striderl.storage.rollout import RolloutStorage
from striderl.storage.rollout_presets import QueueRolloutStorage
from striderl.training.callbacks.callback import Callback
from striderl.training.callbacks.evaluate import Evaluate
from striderl.training.callbacks.save import Save
from striderl.training.callbacks.video import Video
from striderl.training.plans import OnPolicyPlan
from striderl.training.protocols import OnPolicyAlgorithm, requirements_of

_log = logging.getLogger(__name__)


def check_collector(collector: object) -> None:
    """Raise TypeError for anything but a collector where one is wanted."""
    if not isinstance(collector, Collector):
        raise TypeError(
            f"Trainer wants a Collector, found {type(collector).__name__}; "
            "make one with Collector(env, algorithm.actor())"
        )


def check_callbacks(callbacks: Sequence[Callback], collector: object) -> None:
    """Raise for a non-callback, for anything after Save, and for an evaluation in the training envs."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise TypeError(
                f"a callback has on_iteration, state_dict, load_state_dict and close; {type(callback).__name__} has not"
            )
    kinds = [isinstance(callback, Save) for callback in callbacks]
    late = [callback for position, callback in enumerate(callbacks) if not kinds[position] and any(kinds[:position])]
    if late:
        raise ValueError(
            "Save comes last among the callbacks, so that it sees what all others did; "
            f"move {', '.join(type(callback).__name__ for callback in late)} before it"
        )
    for callback in callbacks:
        if not isinstance(callback, (Evaluate, Video)) or not isinstance(collector, Collector):
            continue
        if callback.env is collector.env:
            name = type(callback).__name__
            raise ValueError(f"{name} would reset the envs that train; give it an env object of its own")


def check_policy(algorithm: OnPolicyAlgorithm, collector: Collector) -> None:
    """Raise unless the policy that learns is the one that acts, and reads what the env gives, where the env is."""
    policy = algorithm.policy
    actor, spec, env = collector.actor, collector.obs_spec, type(collector.env).__name__
    if isinstance(actor, PolicyActor) and actor.policy is not policy:
        raise ValueError("the collector acts with another policy than the algorithm learns; give both the same object")
    for name, component in {**policy.actor_inputs, **policy.critic_inputs}.items():
        if name not in spec:
            raise KeyError(unknown("component", name, spec, where=f"the policy reads what {env} does not give: it"))
        if spec[name].shape != component.shape:
            raise ValueError(
                f"the policy wants component {name!r} of shape {component.shape}, {env} gives {spec[name].shape}"
            )
    stored, wanted = collector.actor.columns(), algorithm.actor().columns()
    for name in wanted:
        if name not in stored:
            where = f"collect with algorithm.actor(): what {type(actor).__name__} stores with each step"
            raise KeyError(unknown("column", name, stored, where=where))
    device = next(policy.parameters()).device
    if not _same_device(device, collector.env.device):
        raise ValueError(f"the policy is on {device}, {env} on {collector.env.device}; move one to the other's device")


def check_queue(storage: RolloutStorage | QueueRolloutStorage, algorithm: OnPolicyAlgorithm) -> None:
    """Raise when an algorithm that needs fresh rollouts would learn from old ones."""
    if storage.keeps_rollouts and not requirements_of(algorithm).takes_old:
        raise ValueError(
            f"{type(algorithm).__name__} learns from fresh rollouts; a QueueRolloutStorage keeps old ones, whose "
            "ratios and returns would be wrong. Use RolloutStorage, or DAgger (TPPO with using_ppo=False)"
        )


def check_storage(storage: RolloutStorage | QueueRolloutStorage, collector: Collector, plan: OnPolicyPlan) -> None:
    """Raise unless the storage has the size of the plan's rollouts and the collector's columns."""
    wanted = (plan.num_steps_per_env, collector.env.num_envs)
    if (storage.num_steps, storage.num_envs) != wanted:
        raise ValueError(
            f"the storage holds [{storage.num_steps}, {storage.num_envs}] steps and envs, but the plan and "
            f"{type(collector.env).__name__} make rollouts of [{wanted[0]}, {wanted[1]}]"
        )
    columns = collector.columns()
    if storage.arena.columns != columns:
        differing = sorted(
            name for name in {*columns, *storage.arena.columns} if columns.get(name) != storage.arena.columns.get(name)
        )
        raise ValueError(f"the storage was made for other columns than the collector gives; {differing} differ")


def check_overlap(
    algorithm: OnPolicyAlgorithm, collector: Collector, storage: RolloutStorage | QueueRolloutStorage
) -> None:
    """Raise unless the next rollout can be simulated during an update, with the policy before it."""
    name, wanted = type(algorithm).__name__, requirements_of(algorithm)
    if not (wanted.one_update_old or wanted.takes_old) or storage.keeps_rollouts:
        raise ValueError(
            f"OnPolicyPlan.overlap gives rollouts of the policy before the last update, which {name} does not correct "
            "for as it is configured; PPO does, without normalize_values"
        )
    actor, env = collector.actor, collector.env
    if type(collector) is not Collector or type(actor) is not PolicyActor or actor.parts or actor.store_state:
        raise ValueError(
            "OnPolicyPlan.overlap acts with a copy of the policy in this process; terms that replace actions, teachers "
            "that act, and workers of Ray do not go together with it"
        )
    if env.device.type != "cpu":
        raise ValueError(f"OnPolicyPlan.overlap simulates on the CPU; the tensors of these envs are on {env.device}")
    if isinstance(env, AsyncVecEnv) and not env.runs_ahead:
        _log.warning(
            "OnPolicyPlan.overlap has no effect on speed: these envs are stepped in this process, when their step is "
            "wanted. Give them worker processes (WorkerConfig(num_workers=2))"
        )


def warn_about_finals(storage: RolloutStorage | QueueRolloutStorage, collector: Collector) -> None:
    """Log once when time-outs cannot be bootstrapped from the final observation; a queue stores no values."""
    if storage.finals is None and not storage.keeps_rollouts:
        reason = "gives no final observations" if not collector.env.gives_final_obs else "has some that are not stored"
        _log.warning(
            "%s %s: a step that the time limit ended is valued with V(s_t), not V(final_obs)",
            type(collector.env).__name__,
            reason,
        )


def _same_device(one: torch.device, two: torch.device) -> bool:
    """Return whether two devices are the same; 'cuda' is the current CUDA device."""
    if one.type != two.type or one.type != "cuda":
        return one.type == two.type
    current = torch.cuda.current_device()
    return (current if one.index is None else one.index) == (current if two.index is None else two.index)


def require_device(name: str) -> None:
    """Raise ValueError when nothing can be computed there; the message names the devices where something can."""
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise ValueError("its tensors have shapes and no numbers")
        if float(torch.ones(1, device=device).sum()) != 1.0:
            raise ValueError("it does not compute")
    # a torch without CUDA asserts; a back end that is a package of its own may be missing
    except (RuntimeError, AssertionError, ValueError, ImportError, TypeError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]  # torch goes on with all its back ends
        if reason.startswith("Expected one of "):  # torch lists twenty
            reason = "torch has no such device; a GPU of NVIDIA is 'cuda'"
        usable = ", ".join(repr(each) for each in usable_devices())
        raise ValueError(f"the device {name!r} cannot be used here: {reason}. Usable: {usable}") from error


def usable_devices() -> list[str]:
    """Return the names of the devices that this machine and this torch have."""
    found = ["cpu"]
    if torch.cuda.is_available():
        found += ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    return [*found, "mps"] if torch.backends.mps.is_available() else found


def use_tf32(device: torch.device) -> None:
    """Let matrix products on a GPU round to TF32, for the whole process."""
    if device.type == "cuda":
        _log.info("matrix products on the GPU round their factors to TF32 (--tf32 False keeps float32)")
        # only the new switches: torch raises for code that reads the old ones once both were used
        torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.fp32_precision = "tf32"
