"""The module paths of rlpyt, Tianshou and st_rl, below the facades: imports of a program change by their first word.

    from rlpyt.algos.dqn.dqn import DQN        from striderl.compat.rlpyt.algos.dqn.dqn import DQN
    from tianshou.trainer import onpolicy_…    from striderl.compat.tianshou.trainer import onpolicy_…
    from st_rl.algorithms.tppo import TPPO     from striderl.compat.st_rl.algorithms.tppo import TPPO

    import striderl.compat.rlpyt.algos.dqn.dqn  ─▶  OriginalPaths: RLPYT["algos.dqn.dqn"]  ─▶  names of q_algorithms.py
                                                        └─ "OptInfo" there is DqnOptInfo here

Several of their modules are one of ours, and names that are the same in two of theirs differ in ours, so each path is a
line of a table and none is a file. A path that is a string is one of our modules itself, with its state (the logger).
Nothing is imported until a path is.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Names:
    """Where the names of one of their modules are."""

    modules: tuple[str, ...]
    """Our modules in which a name is looked for in this order: below the facade, or with their full path."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Their names that are others here."""


def names(*modules: str, **renamed: str) -> Names:
    """Return where names are: in these modules, or {theirs: ours} in the first of them."""
    return Names(modules, renamed)


RLPYT: dict[str, Names | str] = {
    "agents.base": names("agents", "samplers"),
    "agents.dqn.atari.atari_catdqn_agent": names("q_agents"),
    "agents.dqn.atari.atari_dqn_agent": names("q_agents"),
    "agents.dqn.atari.atari_r2d1_agent": names("q_agents"),
    "agents.dqn.atari.mixin": names("pg_agents"),
    "agents.dqn.catdqn_agent": names("q_agents", AgentInfo="CatDqnAgentInfo"),
    "agents.dqn.dqn_agent": names("q_agents", AgentInfo="DqnAgentInfo"),
    "agents.dqn.epsilon_greedy": names("q_agents"),
    "agents.dqn.r2d1_agent": names("q_agents", AgentInfo="R2d1AgentInfo"),
    "agents.pg.atari": names("pg_agents"),
    "agents.pg.base": names("pg_agents"),
    "agents.pg.categorical": names("pg_agents"),
    "agents.pg.gaussian": names("pg_agents"),
    "agents.pg.mujoco": names("pg_agents"),
    "agents.qpg.ddpg_agent": names("actor_critic_agents", AgentInfo="DdpgAgentInfo"),
    "agents.qpg.sac_agent": names("actor_critic_agents", AgentInfo="SacAgentInfo"),
    "agents.qpg.sac_v_agent": names(
        "actor_critic_agents", AgentInfo="SacAgentInfo", SacAgent="SacVAgent", Models="SacVModels"
    ),
    "agents.qpg.td3_agent": names("actor_critic_agents", AgentInfo="DdpgAgentInfo"),
    "algos.base": names("algorithms"),
    "algos.dqn.cat_dqn": names("q_algorithms"),
    "algos.dqn.dqn": names("q_algorithms", OptInfo="DqnOptInfo"),
    "algos.dqn.r2d1": names("r2d1", OptInfo="R2d1OptInfo"),
    "algos.pg.a2c": names("algorithms"),
    "algos.pg.base": names("algorithms", "pg_agents"),
    "algos.pg.ppo": names("algorithms"),
    "algos.qpg.ddpg": names(
        "actor_critic_algorithms", "q_algorithms", OptInfo="DdpgOptInfo", SamplesToBuffer="SamplesToBufferTl"
    ),
    "algos.qpg.sac": names(
        "actor_critic_algorithms", "q_algorithms", OptInfo="SacOptInfo", SamplesToBuffer="SamplesToBufferTl"
    ),
    "algos.qpg.sac_v": names(
        "actor_critic_algorithms", "q_algorithms", OptInfo="SacVOptInfo", SamplesToBuffer="SamplesToBufferTl"
    ),
    "algos.qpg.td3": names("actor_critic_algorithms", OptInfo="DdpgOptInfo"),
    "algos.utils": names("tensors"),
    "distributions.base": names("distributions"),
    "distributions.categorical": names("distributions"),
    "distributions.discrete": names("distributions"),
    "distributions.epsilon_greedy": names("distributions"),
    "distributions.gaussian": names("distributions", DistInfo="GaussianDistInfo"),
    "envs.atari.atari_env": names("atari", "samplers", EnvInfo="AtariInfo"),
    "envs.base": names("envs"),
    "envs.gym": names("envs"),
    "envs.gym_schema": names("envs"),
    "models.conv2d": names("models"),
    "models.dqn.atari_catdqn_model": names("models"),
    "models.dqn.atari_dqn_model": names("models"),
    "models.dqn.atari_r2d1_model": names("models"),
    "models.dqn.dueling": names("models"),
    "models.mlp": names("models"),
    "models.pg.atari_ff_model": names("models"),
    "models.pg.atari_lstm_model": names("models"),
    "models.pg.mujoco_ff_model": names("vector_models"),
    "models.pg.mujoco_lstm_model": names("vector_models", "models"),
    "models.qpg.mlp": names("vector_models"),
    "models.running_mean_std": names("models"),
    "models.utils": names("models", "tensors"),
    "replays.async_": names("replays"),
    "replays.base": names("replays"),
    "replays.n_step": names("replays"),
    "replays.non_sequence.frame": names("replays"),
    "replays.non_sequence.n_step": names("replays"),
    "replays.non_sequence.prioritized": names("replays"),
    "replays.non_sequence.time_limit": names("replays", SamplesFromReplayTL="SamplesFromReplayTl"),
    "replays.non_sequence.uniform": names("replays"),
    "replays.sequence.frame": names("sequence_replays"),
    "replays.sequence.n_step": names("sequence_replays", SamplesFromReplay="SequencesFromReplay"),
    "replays.sequence.prioritized": names("sequence_replays", SamplesFromReplayPri="SequencesFromReplayPri"),
    "replays.sequence.uniform": names("sequence_replays"),
    "runners.async_rl": names("async_rl"),
    "runners.base": names("runner"),
    "runners.minibatch_rl": names("runner"),
    "runners.sync_rl": names("sync_rl"),
    "samplers.async_.alternating_sampler": names("async_samplers"),
    "samplers.async_.base": names("async_samplers"),
    "samplers.async_.collectors": names("async_samplers"),
    "samplers.async_.cpu_sampler": names("async_samplers"),
    "samplers.async_.gpu_sampler": names("async_samplers"),
    "samplers.async_.serial_sampler": names("async_samplers"),
    "samplers.base": names("samplers"),
    "samplers.buffer": names("samplers"),
    "samplers.collections": names("samplers"),
    "samplers.collectors": names("samplers"),
    "samplers.parallel.base": names("samplers"),
    "samplers.parallel.cpu.collectors": names("samplers"),
    "samplers.parallel.cpu.sampler": names("samplers"),
    "samplers.parallel.gpu.alternating_sampler": names("samplers"),
    "samplers.parallel.gpu.collectors": names("samplers"),
    "samplers.parallel.gpu.sampler": names("samplers"),
    "samplers.serial.collectors": names("samplers"),
    "samplers.serial.sampler": names("samplers"),
    "spaces.base": names("envs"),
    "spaces.composite": names("envs"),
    "spaces.float_box": names("envs"),
    "spaces.gym_wrapper": names("envs"),
    "spaces.gym_wrapper_schema": names("envs"),
    "spaces.int_box": names("envs"),
    "utils.array": names(
        "tensors",
        **{
            name: f"array_{name}"
            for name in ("select_at_indexes", "to_onehot", "from_onehot", "valid_mean", "infer_leading_dims")
        },
    ),
    "utils.buffer": names("samplers"),
    "utils.collections": names("samplers", "tensors"),
    "utils.launching.affinity": names("launching"),
    "utils.launching.exp_launcher": names("launching"),
    "utils.launching.variant": names("launching"),
    "utils.logging.console": names("logger"),
    "utils.logging.context": names("logger"),
    "utils.logging.logger": "logger",
    "utils.misc": names("tensors"),
    "utils.prog_bar": names("runner"),
    "utils.quick_args": names("tensors"),
    "utils.seed": names("tensors"),
    "utils.synchronize": names("synchronize"),
    "utils.tensor": names("tensors"),
}
"""rlpyt's modules, of which those of its own worker processes, vendored packages and projects are left out."""

TIANSHOU: dict[str, Names | str] = {
    "data.batch": names("data"),
    "data.buffer": names("data"),
    "data.collector": names("data"),
    "data.utils.converter": names("data"),
    "data.utils.segtree": names("data"),
    "env.maenv": names("env"),
    "env.utils": names("env"),
    "env.venvs": names("env"),
    "env.worker": names("env"),
    "env.worker.base": names("env"),
    "env.worker.dummy": names("env"),
    "env.worker.ray": names("env"),
    "env.worker.subproc": names("env"),
    "exploration.random": names("exploration"),
    "policy.base": names("policy"),
    "policy.imitation.base": names("policy"),
    "policy.modelbase.psrl": names("policy"),
    "policy.modelfree.a2c": names("policy"),
    "policy.modelfree.ddpg": names("policy"),
    "policy.modelfree.discrete_sac": names("policy"),
    "policy.modelfree.dqn": names("policy"),
    "policy.modelfree.pg": names("policy"),
    "policy.modelfree.ppo": names("policy"),
    "policy.modelfree.sac": names("policy"),
    "policy.modelfree.td3": names("policy"),
    "policy.multiagent.mapolicy": names("policy"),
    "policy.random": names("policy"),
    "trainer": names("trainers"),
    "trainer.offpolicy": names("trainers"),
    "trainer.onpolicy": names("trainers"),
    "trainer.utils": names("trainers"),
    "utils": names("trainers"),
    "utils.config": names("trainers"),
    "utils.moving_average": names("trainers"),
    "utils.net.common": names("net.common"),
    "utils.net.continuous": names("net.continuous"),
    "utils.net.discrete": names("net.discrete"),
}
"""Tianshou 0.3's modules."""

_UTILS = names(
    "modules", "encoders", "striderl.ops.trajectories", "striderl.training.rsl_rl.reporting", "striderl.data.buffers"
)

ST_RL: dict[str, Names | str] = {
    "algorithms.appo": names("relatives"),
    "algorithms.atppo": names("relatives"),
    "algorithms.estimator": names("relatives"),
    "algorithms.ppo": names("algorithms"),
    "algorithms.tppo": names("relatives"),
    "datasets.dagger_saver": names("recordings"),
    "datasets.motion_loader": names("striderl.datasets.motion.amp_loader"),
    "env": names("striderl.compat.rsl_rl.env.vec_env"),
    "env.vec_env": names("striderl.compat.rsl_rl.env.vec_env"),
    "modules.actor_critic": names("modules"),
    "modules.actor_critic_field_mutex": names("striderl.policies"),
    "modules.actor_critic_mutex": names("striderl.policies"),
    "modules.actor_critic_recurrent": names("modules"),
    "modules.all_mixer": names("estimators"),
    "modules.conv2d": names("striderl.compat.rlpyt.models"),
    "modules.deterministic_policy": names("modules"),
    "modules.encoder_actor_critic": names("encoders"),
    "modules.normalizer": names("normalizers"),
    "modules.state_estimator": names("estimators"),
    "modules.visual_actor_critic": names("encoders"),
    "runners.amp_policy_runner": names("runners"),
    "runners.dagger_saver": names("recordings", "striderl.recording"),
    "runners.demonstration": names("striderl.recording"),
    "runners.on_policy_runner": names("runners"),
    "runners.two_stage_runner": names("runners"),
    "storage.rollout_files.rollout_dataset": names("striderl.datasets"),
    "storage.rollout_storage": names("storage"),
    "utils": _UTILS,
    "utils.buffer": names("striderl.data.buffers"),
    "utils.ckpt_manipulator": names("striderl.policies.transfer.parts"),
    "utils.collections": names("striderl.data.named_tuples"),
    "utils.data_compresser": names("striderl.datasets.trajectories.codecs"),
    "utils.utils": _UTILS,
}
"""The modules of st_rl, and of the rsl_rl of parkour and generation 1, whose files have the same names."""

ST_RL_FURTHER = {
    "algorithms": names("relatives"),
    "modules": names("encoders", "estimators", "normalizers", "striderl.policies", "striderl.training"),
    "runners": names("recordings", "striderl.recording", "striderl.training"),
}
"""Names of three packages of theirs that are no names of our modules of the same path."""


class OriginalPaths:
    """Finder and loader of the paths below one facade; those that others lie below are packages."""

    def __init__(self, facade: str, paths: Mapping[str, Names | str]) -> None:
        self.facade, self.paths = facade, paths
        self.packages = {path.rsplit(".", depth)[0] for path in paths for depth in range(1, path.count(".") + 1)}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a path of the table, and for the packages on the way to it that are no module of ours."""
        below = name.removeprefix(f"{self.facade}.")
        if below == name or not (below in self.paths or (below in self.packages and not self._is_ours(below))):
            return None
        return ModuleSpec(name, self, is_package=below in self.packages)  # type: ignore[arg-type]

    def _is_ours(self, below: str) -> bool:
        facade = sys.modules[self.facade]
        return "." not in below and importlib.machinery.PathFinder.find_spec(below, facade.__path__) is not None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return our module itself where the path is one."""
        home = self.paths.get(spec.name.removeprefix(f"{self.facade}."))
        if not isinstance(home, str):
            return None
        module = importlib.import_module(f"{self.facade}.{home}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give our module its own spec back; let any other look its names up."""
        spec = module.__spec__
        assert spec is not None
        if spec.loader_state is not None:
            module.__spec__ = spec.loader_state
            return
        below = spec.name.removeprefix(f"{self.facade}.")
        home = self.paths.get(below)
        module.__doc__ = f"The names of the original's module {below}."
        if isinstance(home, Names):
            module.__dict__["__getattr__"] = self._lookup(below, home)

    def _lookup(self, below: str, home: Names) -> Any:
        return further_names(self.facade, below, home)


def further_names(facade: str, below: str, home: Names) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module below a facade: it looks names up in these homes."""

    def getattr_(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {facade}.{below} has no {name!r}")
        paths = [each if each.startswith("striderl.") else f"{facade}.{each}" for each in home.modules]
        for module in map(importlib.import_module, paths):
            found = home.renamed.get(name, name)
            if hasattr(module, found):
                return getattr(module, found)
        raise AttributeError(f"module {facade}.{below} has no {name!r}; its names are those of {', '.join(paths)}")

    return getattr_


def install(facade: str, paths: Mapping[str, Names | str]) -> None:
    """Let the paths of a table be imported below a facade."""
    if not any(isinstance(finder, OriginalPaths) and finder.facade == facade for finder in sys.meta_path):
        sys.meta_path.insert(0, OriginalPaths(facade, paths))
