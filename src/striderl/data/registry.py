"""Names of parts, one table per kind: what a config, a file or a command line may call an algorithm, a term, an env.

    ALGORITHMS.get("ppo")                       a line below, imported on first use
    ALGORITHMS.get("my_pkg.trpo:TRPO")          a class of one's own by module and name
    ALGORITHMS.register("trpo", TRPO)           … or under a name, in this process
    entry point in the group 'striderl.algorithms'     … or under a name, wherever the package is installed

A line holds a string, so listing names imports nothing. Names from files on disk pass `checkpoint/trust.py` first:
a file that names a module raises unless the user trusts it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from striderl.data.naming import unknown

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class Registry:
    """Name → part, for one kind of part."""

    def __init__(self, kind: str, lines: Mapping[str, str]) -> None:
        """Take the kind, in the plural, and the built-in names with the place of each, 'module:name'."""
        self.kind = kind
        self._lines = dict(lines)
        self.registered: dict[str, Any] = {}

    def names(self) -> tuple[str, ...]:
        """Return every name: built-in, registered in this process, declared by installed packages."""
        return tuple(dict.fromkeys([*self._lines, *self.registered, *self._entry_points()]))

    def register(self, name: str, part: Any) -> None:
        """Give a part, an object or 'module:name', a name; one that another part has raises."""
        if not re.fullmatch(r"[A-Za-z_][\w.\-]*", name):
            raise ValueError(f"a name in {self.kind} has letters, digits, '_', '.' and '-', found {name!r}")
        known = self.registered.get(name, self._lines.get(name))
        if known is not None and known is not part and known != part:
            raise ValueError(f"{self.kind} has a {name!r} already: {known!r}; choose another name")
        self.registered[name] = part

    def get(self, name: str) -> Any:
        """Return the part of a name, or of 'module:name'; KeyError with a suggestion for an unknown one."""
        found = self.registered.get(name, self._lines.get(name))
        if found is None:
            points = self._entry_points()
            if name in points:
                return points[name].load()
            if not is_reference(name):
                kind = self.kind.removesuffix("s") if self.kind != "policies" else "policy"
                raise KeyError(unknown(kind, name, self.names(), where="striderl") + colon_hint(name))
            found = name
        return load_reference(found) if isinstance(found, str) else found

    def spelled(self, name: str) -> str:
        """Return the name of this table that differs in case, '_' and '-' alone: 'PPO', 'FastTD3', 'td3-bc'."""
        names = self.names()
        alike = [each for each in names if _letters(each) == _letters(name)]
        return alike[0] if name not in names and len(alike) == 1 else name

    def name_of(self, part: Any) -> str:
        """Return the name of a part, or 'module:name' where it has none; lines are not imported for this."""
        place = f"{part.__module__}:{part.__qualname__}"
        for name, known in {**self._lines, **self.registered}.items():
            if known is part or known == place:
                return name
        return place

    def parent_of(self, name: str) -> str:
        """Return the built-in name of the class that a part from outside is derived from; '' where there is none."""
        if name in self._lines:
            return ""
        places = {place: known for known, place in self._lines.items()}
        for base in getattr(self.get(name), "__mro__", ())[1:]:
            if found := places.get(f"{base.__module__}:{base.__qualname__}"):
                return found
        return ""

    def _entry_points(self) -> dict[str, importlib.metadata.EntryPoint]:
        return {point.name: point for point in importlib.metadata.entry_points(group=f"striderl.{self.kind}")}


def _letters(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def is_reference(text: str) -> bool:
    """Return whether a text has the form 'module:name'."""
    return bool(_REFERENCE.fullmatch(text))


def colon_hint(name: str) -> str:
    """Return how a part of one's own is written, for the end of an error, where a name has a dot and no colon."""
    module, dot, last = name.rpartition(".")
    return f" A part of your own is written 'module:name': {f'{module}:{last}'!r}" if dot and module and last else ""


def task_hint(name: str) -> str:
    """Return what else can be trained besides the names that an error lists."""
    more = " Also an id of Gymnasium ('gymnasium:LunarLander-v3') and an env of your own ('my_pkg.envs:MyEnv')."
    return colon_hint(name) or more


def load_reference(reference: str) -> Any:
    """Import 'module:name' and return the object; modules of the working folder are found, as by `python -m`.

    Nothing else is imported: what a file may import is looked for by this form (`config_json.modules_in`).
    """
    if not is_reference(reference):
        raise KeyError(f"wanted 'module:name', found {reference!r}")
    module, _, name = reference.partition(":")
    place = os.getcwd()
    added = [] if place in sys.path else [place]
    sys.path[len(sys.path) :] = added
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise KeyError(
            f"there is no module {error.name!r} for {reference!r}; modules are looked for in the working folder "
            f"{place} and among what is installed"
        ) from error
    finally:
        for each in added:
            sys.path.remove(each)
    for part in name.split("."):
        if not hasattr(found, part):
            public = [each for each in vars(found) if not each.startswith("_")]
            raise KeyError(unknown("name", part, public, where=f"the module {module!r}"))
        found = getattr(found, part)
    return found


GYMNASIUM = "gymnasium:"
"""How the name of a task of Gymnasium begins."""
OBJECT = "object:"
"""How the name of an env begins that was handed over and that no file can name: it must be handed over again."""


def full_name(task: str) -> str:
    """Return the name of a task as runs store it: an id of Gymnasium gets its 'gymnasium:'."""
    return f"{GYMNASIUM}{task}" if re.fullmatch(r"[\w./-]+-v\d+", task) and task not in ENVS.names() else task


def folder_name(task: str) -> str:
    """Return the name of the folder of a task's runs: without what a shell reads as its own."""
    return re.sub(r"[^\w.-]+", "_", task).rstrip("_")


ALGORITHMS = Registry(
    "algorithms",
    {
        "ppo": "striderl.algorithms.on_policy.ppo:PPO",
        "a2c": "striderl.algorithms.on_policy.a2c:A2C",
        "reinforce": "striderl.algorithms.on_policy.reinforce:REINFORCE",
        "impala": "striderl.algorithms.on_policy.impala:IMPALA",
        "tppo": "striderl.algorithms.on_policy.tppo:TPPO",
        "estimator_ppo": "striderl.algorithms.on_policy.estimator_ppo:EstimatorPPO",
        "estimator_tppo": "striderl.algorithms.on_policy.tppo:EstimatorTPPO",
        "appo": "striderl.algorithms.on_policy.appo:APPO",
        "atppo": "striderl.algorithms.on_policy.appo:ATPPO",
        "gail": "striderl.algorithms.on_policy.gail:GAIL",
        "dagger": "striderl.algorithms.on_policy.dagger:DAgger",
        "dqn": "striderl.algorithms.value_based.dqn:DQN",
        "c51": "striderl.algorithms.value_based.distributional:C51",
        "qrdqn": "striderl.algorithms.value_based.distributional:QRDQN",
        "iqn": "striderl.algorithms.value_based.distributional:IQN",
        "rainbow": "striderl.algorithms.value_based.distributional:Rainbow",
        "r2d2": "striderl.algorithms.value_based.recurrent_dqn:R2D2",
        "discrete_sac": "striderl.algorithms.actor_critic.sac_discrete:DiscreteSAC",
        "ddpg": "striderl.algorithms.actor_critic.td3:DDPG",
        "td3": "striderl.algorithms.actor_critic.td3:TD3",
        "sac": "striderl.algorithms.actor_critic.sac:SAC",
        "recurrent_sac": "striderl.algorithms.actor_critic.recurrent_sac:RecurrentSAC",
        "redq": "striderl.algorithms.actor_critic.sac:REDQ",
        "tqc": "striderl.algorithms.actor_critic.sac:TQC",
        "crossq": "striderl.algorithms.actor_critic.crossq:CrossQ",
        "fast_td3": "striderl.algorithms.actor_critic.fast_td3:FastTD3",
        "fast_sac": "striderl.algorithms.actor_critic.fast_td3:FastSAC",
        "bc": "striderl.algorithms.offline.behaviour_cloning:BehaviourCloning",
        "td3_bc": "striderl.algorithms.offline.td3_bc:TD3BC",
        "cql": "striderl.algorithms.offline.cql:CQL",
        "iql": "striderl.algorithms.offline.iql:IQL",
        "bcq": "striderl.algorithms.offline.bcq:BCQ",
    },
)
"""Classes with `Config`, `summary`, `loop`, `build_policy` and `build`; see `algorithms/building.py`."""

TERMS = Registry(
    "terms",
    {
        "rnd": "striderl.algorithms.terms.rnd:RandomNetworkDistillation",
        "distill": "striderl.algorithms.terms.distill:Distill",
        "estimation": "striderl.algorithms.terms.estimation:Estimation",
        "symmetry": "striderl.algorithms.terms.symmetry:Symmetry",
        "mimic": "striderl.algorithms.terms.mimic:Mimic",
        "motion_prior": "striderl.algorithms.terms.motion_prior:MotionPrior",
        "adversarial": "striderl.algorithms.terms.adversarial:AdversarialReward",
    },
)
"""Classes of `Term` with `Config`, `summary` and `build`."""

ENVS = Registry("envs", {})
"""Envs of one's own by name: a `VecEnv` class, a function that returns one, or a Gymnasium env class."""

LOGGERS = Registry(
    "loggers",
    {
        "console": "striderl.loggers.table:make_console",
        "csv": "striderl.loggers.table:make_csv",
        "jsonl": "striderl.loggers.table:make_jsonl",
        "tensorboard": "striderl.loggers.table:make_tensorboard",
        "wandb": "striderl.loggers.table:make_wandb",
        "trackio": "striderl.loggers.table:make_trackio",
        "mlflow": "striderl.loggers.table:make_mlflow",
        "neptune": "striderl.loggers.table:make_neptune",
    },
)
"""Functions or classes that take a run's folder and return a `Logger`."""

CALLBACKS = Registry("callbacks", {})
"""Classes or functions without arguments that return a callback of the training loop."""

NETWORKS = Registry("networks", {})
"""`nn.Module` classes that take the number of inputs and have `output_size`: `--policy.network NAME`."""

REGISTRIES = {registry.kind: registry for registry in (ALGORITHMS, TERMS, ENVS, LOGGERS, CALLBACKS, NETWORKS)}
"""Every registry by its kind; `striderl.register(kind, name, part)` writes to them."""
