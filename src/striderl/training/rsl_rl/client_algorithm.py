"""A learner with the interface of rsl_rl's algorithms: models, checkpoints and optimiser by rsl_rl's names.

    alg.actor, alg.critic, alg.get_policy()     models with rsl_rl's names (`models.py`); alg.actor_critic of rsl_rl 1
    alg.learning_rate, alg.optimizer            of the policy
    alg.save()  ─▶ {"actor_state_dict", "critic_state_dict", "optimizer_state_dict", "rnd_state_dict", …,
                    "striderl": what only this library has}
    alg.load(dict, load_cfg, strict)            such a dict, or rsl_rl's own

rsl_rl ignores the entry 'striderl'; here it makes a resumed training exact. A dict without it is rsl_rl's: weights,
normalisers, moments and learning rate are taken. Everything that is not rsl_rl's is the learner's: `alg.terms`, ….
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from striderl.algorithms.terms.rnd import RandomNetworkDistillation
from striderl.algorithms.terms.term import TermList
from striderl.data import tree
from striderl.data.naming import unknown
from striderl.execution.parameter_groups import ParameterGroup
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.policy import Policy
from striderl.policies.transfer.rsl_rl_state import ACTOR, CRITIC, RslRlLayout
from striderl.training.rsl_rl.models import ActorCriticModel, ActorModel, CriticModel, layout_of

_log = logging.getLogger(__name__)

EXACT = "striderl"
"""The entry of a checkpoint that only this library reads."""
PARTS = ("actor", "critic", "optimizer", "iteration", "rnd")
"""Keys of rsl_rl's load_cfg."""
_OPTIMIZERS: Mapping[str, type[torch.optim.Optimizer]] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "SGD": torch.optim.SGD,
    "RMSprop": torch.optim.RMSprop,
}


class ClientAlgorithm:
    """A learner as a client of rsl_rl sees it; see the top of this module."""

    def __init__(self, learner: Any, orders: Mapping[str, Sequence[str]] | None = None) -> None:
        """Wrap a learner; `orders` are the components of 'actor' and 'critic' in the order of rsl_rl's obs_groups."""
        self.learner = learner
        policy: Policy | ActorPolicy = learner.policy
        inputs = {ACTOR: policy.actor_inputs, CRITIC: policy.critic_inputs}
        # one with further components, such as action masks, has the spec's order
        kept = {who: names for who, names in (orders or {}).items() if sorted(names) == sorted(inputs[who])}
        self.layout: RslRlLayout | None = layout_of(policy, kept)
        self.actor = ActorModel(policy, self.layout, kept.get(ACTOR, ()))
        self.critic = CriticModel(policy, self.layout) if isinstance(policy, Policy) else None

    def __getattr__(self, name: str) -> Any:
        """Return what the learner has: `policy`, `terms`, `config`, `updater`, …."""
        if name == "learner":
            raise AttributeError(name)
        return getattr(self.learner, name)

    # -- models --------------------------------------------------------------------------------------------------------

    def get_policy(self) -> ActorModel:
        """Return the model that acts."""
        return self.actor

    @property
    def actor_critic(self) -> ActorCriticModel:
        """Actor and critic as one object, as rsl_rl 1 to 3 has them."""
        return ActorCriticModel(self.actor, self.critic)

    def train_mode(self) -> None:
        """Set train mode."""
        self.learner.policy.train()

    def eval_mode(self) -> None:
        """Set eval mode."""
        self.learner.policy.eval()

    # -- the optimiser -------------------------------------------------------------------------------------------------

    @property
    def learning_rate(self) -> float:
        """The present learning rate of the policy."""
        groups = self._policy_groups()
        return float(next(iter(groups)).learning_rate) if groups else float(self.learner.config.actor_learning_rate)

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        if not self._policy_groups():
            raise AttributeError(f"the learning rates of {type(self.learner).__name__} are fixed by its config")
        for group in self._policy_groups():
            group.learning_rate.fill_(float(value))

    @property
    def optimizer(self) -> OptimizerView:
        """The policy's optimiser as torch has it."""
        return OptimizerView(self)

    def _policy_groups(self) -> list[ParameterGroup]:
        updater = getattr(self.learner, "updater", None)
        found = {} if updater is None else updater.groups
        return [found[name] for name in ("policy", "critic") if name in found]

    # -- novelty -------------------------------------------------------------------------------------------------------

    @property
    def rnd(self) -> RndView | None:
        """The reward for novelty; None without one."""
        terms = getattr(self.learner, "terms", None)
        found = terms if isinstance(terms, TermList) else ()
        term = next((each for each in found if isinstance(each, RandomNetworkDistillation)), None)
        return None if term is None else RndView(term)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save(self, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return everything that is learned, with rsl_rl's names and our own; as copies.

        state: a `state_dict` of the learner that was taken already; tensors that are the same are shared with it.
        """
        state = self.learner.state_dict() if state is None else state
        found: dict[str, Any] = {}
        if self.layout is not None:
            own = state["policy"]
            found = {f"{who}_state_dict": self.layout.state_dict(who, own) for who in (ACTOR, CRITIC)}
            found["optimizer_state_dict"] = _torch_optimizer(self.layout, self._policy_groups(), state["updater"])
        else:
            found = {"actor_state_dict": dict(state["policy"]), "critic_state_dict": {}, "optimizer_state_dict": {}}
        if self.rnd is not None:
            found |= self.rnd.save()
        return {**found, EXACT: {"algorithm": state, **self.further_state()}}

    def load(self, loaded_dict: Mapping[str, Any], load_cfg: Mapping[str, bool] | None, strict: bool = True) -> bool:
        """Load a dict that `save` or rsl_rl returned, or parts of it; return whether the iteration is to be taken."""
        for name in load_cfg or ():
            if name not in PARTS:
                raise KeyError(unknown("part", name, PARTS, where="load_cfg"))
        wanted = dict.fromkeys(PARTS, True) if load_cfg is None else load_cfg
        exact = loaded_dict.get(EXACT)
        if load_cfg is None and strict and exact is not None:
            self.learner.load_state_dict(exact["algorithm"])
            self.load_further_state(exact)
            return True
        if self.layout is None:
            self._load_own(loaded_dict, exact, wanted)
            return bool(wanted.get("iteration", False))
        for who in (ACTOR, CRITIC):
            if wanted.get(who):
                self.layout.load(who, _newest_names(_required(loaded_dict, f"{who}_state_dict")), strict=strict)
                if exact is not None:
                    self._load_statistics(exact["algorithm"]["policy"], who)
        if wanted.get("optimizer"):
            self.optimizer.load_state_dict(_required(loaded_dict, "optimizer_state_dict"))
        if wanted.get("rnd") and self.rnd is not None and "rnd_state_dict" in loaded_dict:
            self.rnd.load(loaded_dict)
        return bool(wanted.get("iteration", False))

    def further_state(self) -> dict[str, Any]:
        """Return further entries for an exact resume; none here."""
        return {}

    def load_further_state(self, state: Mapping[str, Any]) -> None:
        """Load what `further_state` returned."""

    def _load_statistics(self, saved: Mapping[str, Tensor], who: str) -> None:
        """Take the normalisers of our own file bit for bit: rsl_rl keeps them in single precision."""
        own = self.learner.policy.state_dict()
        taken = {
            name: value
            for name, value in saved.items()
            if ".statistics." in name and name.startswith(f"{who}.") and name in own and own[name].shape == value.shape
        }
        self.learner.policy.load_state_dict({**own, **taken})

    def _load_own(self, loaded: Mapping[str, Any], exact: Any, wanted: Mapping[str, bool]) -> None:
        """Load a policy that rsl_rl has no model of: from our own file."""
        if exact is None:
            raise ValueError(
                f"{type(self.learner).__name__}'s policy has no counterpart in rsl_rl; load a file of this library"
            )
        if wanted.get("critic") and wanted.get("optimizer"):
            self.learner.load_state_dict(exact["algorithm"])
        elif wanted.get("actor"):
            self.learner.policy.load_state_dict(exact["algorithm"]["policy"])

    # -- several processes ---------------------------------------------------------------------------------------------

    def broadcast_parameters(self) -> None:
        """Give every process the parameters of the first; one process has nothing to do."""

    def reduce_parameters(self) -> None:
        """Do nothing: gradients are summed over processes inside each step of the update."""


def _newest_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of rsl_rl 4 with the names of rsl_rl 5; that of 5 as it is."""
    return {_RENAMED.get(name, name): value for name, value in state.items()}


_RENAMED = {"std": "distribution.std_param", "log_std": "distribution.log_std_param"}


def _required(loaded: Mapping[str, Any], name: str) -> Any:
    if name not in loaded:
        raise KeyError(f"the checkpoint has no {name!r}; it has {sorted(map(str, loaded))}. Choose parts by load_cfg")
    return loaded[name]


# -- the optimiser as torch has it -------------------------------------------------------------------------------------


class OptimizerView:
    """The policy's optimiser with torch's interface: learning rate and state dict."""

    def __init__(self, algorithm: ClientAlgorithm) -> None:
        self._algorithm = algorithm

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameters and their learning rate; changing an entry here has no effect, set `alg.learning_rate`."""
        parameters = [each for group in self._algorithm._policy_groups() for each in group.flat.parameters]
        return [{"params": parameters, "lr": self._algorithm.learning_rate}]

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch's optimiser of rsl_rl's parameters has it."""
        algorithm = self._algorithm
        if algorithm.layout is None:
            return dict(algorithm.learner.state_dict().get("updater", {}))
        state = algorithm.learner.updater.state_dict()
        return _torch_optimizer(algorithm.layout, algorithm._policy_groups(), state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state of torch's optimiser of rsl_rl's parameters: moments, step count and learning rate."""
        layout = self._algorithm.layout
        if layout is None:
            raise ValueError("this policy has no counterpart in rsl_rl, so its optimiser has none either")
        _load_torch_optimizer(layout, self._algorithm._policy_groups(), state_dict)


def _pieces(layout: RslRlLayout) -> list[tuple[Any, list[nn.Parameter]]]:
    return [found for who in (ACTOR, CRITIC) for found in layout.parameters(who)]


def _torch_optimizer(
    layout: RslRlLayout, groups: Sequence[ParameterGroup], saved: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Any]:
    """Return the state dict of torch's optimiser over rsl_rl's parameters, actor first."""
    config, pieces = groups[0].config, _pieces(layout)
    settings: dict[str, Any] = {"lr": 0.0, "weight_decay": config.weight_decay}
    if config.optimizer in ("Adam", "AdamW"):
        settings |= {"betas": config.betas, "eps": config.eps}
    blank = _OPTIMIZERS[config.optimizer]([nn.Parameter(torch.empty(0)) for _ in pieces], **settings).state_dict()
    blocks = [saved[name] for name in ("policy", "critic") if name in saved]
    blank["param_groups"][0]["lr"] = float(blocks[0]["learning_rate"])
    moments = _moments(groups, blocks)
    state: dict[int, dict[str, Tensor]] = {}
    for number, (piece, parameters) in enumerate(pieces):
        if not all(id(parameter) in moments for parameter in parameters) or config.optimizer == "SGD":
            continue
        names = dict(zip(piece.ours, parameters))
        first = piece.join({name: moments[id(parameter)][0] for name, parameter in names.items()})
        second = piece.join({name: moments[id(parameter)][1] for name, parameter in names.items()})
        count = moments[id(parameters[0])][2]
        if not float(count):
            continue
        if config.optimizer == "RMSprop":
            state[number] = {"step": count.cpu().clone(), "square_avg": second}
        else:
            state[number] = {"step": count.cpu().clone(), "exp_avg": first, "exp_avg_sq": second}
    blank["state"] = state
    return dict(blank)


def _moments(
    groups: Sequence[ParameterGroup], blocks: Sequence[Mapping[str, Tensor]]
) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
    """Return first and second moment and step count by parameter; views of the blocks."""
    found: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
    for group, block in zip(groups, blocks):
        sizes = [parameter.numel() for parameter in group.flat.parameters]
        pieces = zip(block["first"].split_with_sizes(sizes), block["second"].split_with_sizes(sizes))
        for parameter, (first, second) in zip(group.flat.parameters, pieces):
            found[id(parameter)] = (first.view_as(parameter), second.view_as(parameter), block["count"])
    return found


@torch.no_grad()
def _load_torch_optimizer(layout: RslRlLayout, groups: Sequence[ParameterGroup], state_dict: Mapping[str, Any]) -> None:
    pieces = _pieces(layout)
    given = [number for part in state_dict["param_groups"] for number in part["params"]]
    if len(given) != len(pieces):
        raise ValueError(
            f"the saved optimiser has {len(given)} parameters, rsl_rl's models of this policy {len(pieces)}"
        )
    blocks = [tree.copy(group.state_dict()) for group in groups]
    moments = _moments(groups, blocks)
    counts: dict[int, float] = {}
    for number, (piece, parameters) in zip(given, pieces):
        entry = state_dict["state"].get(number)
        if entry is None or not all(id(parameter) in moments for parameter in parameters):
            continue
        names = dict(zip(piece.ours, parameters))
        rows = [len(parameter) for parameter in parameters]
        for at, key in ((0, "exp_avg"), (1, "exp_avg_sq" if "exp_avg_sq" in entry else "square_avg")):
            if key in entry:
                for name, value in piece.cut(entry[key], rows).items():
                    moments[id(names[name])][at].copy_(value)
        for parameter in parameters:
            counts[id(parameter)] = float(entry["step"])
    rate = float(state_dict["param_groups"][0]["lr"])
    for group, block in zip(groups, blocks):
        block["count"].fill_(max((counts.get(id(each), 0.0) for each in group.flat.parameters), default=0.0))
        block["learning_rate"].fill_(rate)
        group.load_state_dict(block)


# -- novelty -----------------------------------------------------------------------------------------------------------


class RndView:
    """The novelty term with the attributes of rsl_rl's."""

    def __init__(self, term: RandomNetworkDistillation) -> None:
        self.term = term

    @property
    def weight(self) -> float:
        """The present weight of the reward, the time per step included."""
        return float(self.term.weight) * self.term.config.step_dt

    def save(self) -> dict[str, Any]:
        """Return networks, normalisers and optimiser with rsl_rl's names."""
        own = self.term.state_dict()
        found = {
            f"{part}.{name.removeprefix(f'{part}.model.')}": value
            for part in ("predictor", "target")
            for name, value in own.items()
            if name.startswith(f"{part}.model.")
        }
        for prefix, ours, names in _RND_STATISTICS:
            if f"{ours}.count" in own:
                found |= {f"{prefix}.{key}": value for key, value in zip(names, _as_rsl_rl(own, ours))}
        block = self.group.state_dict()
        parameters = [nn.Parameter(torch.empty(0)) for _ in self.group.flat.parameters]
        optimizer = torch.optim.Adam(parameters, lr=float(block["learning_rate"])).state_dict()
        sizes = [parameter.numel() for parameter in self.group.flat.parameters]
        if float(block["count"]):
            pieces = zip(block["first"].split_with_sizes(sizes), block["second"].split_with_sizes(sizes))
            optimizer["state"] = {
                number: {
                    "step": block["count"].cpu().clone(),
                    "exp_avg": first.view_as(like),
                    "exp_avg_sq": second.view_as(like),
                }
                for number, (like, (first, second)) in enumerate(zip(self.group.flat.parameters, pieces))
            }
        return {"rnd_state_dict": found, "rnd_optimizer_state_dict": optimizer}

    @torch.no_grad()
    def load(self, loaded: Mapping[str, Any]) -> None:
        """Load networks, normalisers and optimiser that have rsl_rl's names."""
        theirs, own = loaded["rnd_state_dict"], dict(self.term.state_dict())
        for part in ("predictor", "target"):
            own |= {
                f"{part}.model.{name.removeprefix(f'{part}.')}": v
                for name, v in theirs.items()
                if name.startswith(f"{part}.")
            }
        for prefix, ours, names in _RND_STATISTICS:
            if f"{ours}.count" in own and f"{prefix}.count" in theirs:
                mean, var, _, count = (torch.as_tensor(theirs[f"{prefix}.{key}"]).double() for key in names)
                own[f"{ours}.mean"] = mean.reshape(own[f"{ours}.mean"].shape)
                own[f"{ours}.m2"] = var.reshape(own[f"{ours}.m2"].shape) * count
                own[f"{ours}.count"] = count
        self.term.load_state_dict(own)
        saved = loaded.get("rnd_optimizer_state_dict", {}).get("state", {})
        block = tree.copy(self.group.state_dict())
        for key, name in (("first", "exp_avg"), ("second", "exp_avg_sq")):
            if len(saved) == len(self.group.flat.parameters):
                block[key].copy_(torch.cat([saved[number][name].reshape(-1) for number in sorted(saved)]))
        if saved:
            block["count"].fill_(float(saved[min(saved)]["step"]))
        self.group.load_state_dict(block)

    @property
    def group(self) -> ParameterGroup:
        """The predictor's parameters and optimiser."""
        return self.term.groups["rnd"]


_OF_NORMALIZER = ("_mean", "_var", "_std", "count")
_RND_STATISTICS = (
    ("state_normalizer", "obs_normalizer.statistics", _OF_NORMALIZER),
    ("reward_normalizer.emp_norm", "reward_normalizer.statistics", _OF_NORMALIZER),
)


def _as_rsl_rl(own: Mapping[str, Tensor], prefix: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    count, mean, m2 = (own[f"{prefix}.{key}"].double() for key in ("count", "mean", "m2"))
    var = torch.where(count > 0, m2 / count.clamp(min=1e-30), torch.ones_like(m2))
    return mean.float()[None], var.float()[None], var.sqrt().float()[None], count.round().long()
