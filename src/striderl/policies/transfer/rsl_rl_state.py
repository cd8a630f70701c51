"""A policy in the state dicts of rsl_rl 5, and back: the names, the order and the shapes of its models.

    rsl_rl                                   here
    actor   distribution.std_param           head.std_param                 or log_std_param
            mlp.0.weight, mlp.2.weight       actor_body.model.0.weight, actor_body.model.2.weight
            mlp.4.weight, the last one       head.mean_layer.linear.weight  and std_layer's rows below it
            rnn.rnn.weight_ih_l0             actor.stages.<n>_Remember.memory.rnn.weight_ih_l0
            cnns.image.0.weight              actor.stages.<n>_Encode.encoders.<image>.conv.conv.0.weight
            obs_normalizer._mean [1, F]      actor.stages.<n>_NormalizeObs.normalizers.<name>.statistics.mean
    critic  the same, without distribution; its last layer is value_head.layer

rsl_rl puts the vectors of a set in the order of its obs_groups and image latents behind them; here components are in
the order of the spec. So the columns of a first layer, and the entries of a normaliser, may be permuted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from striderl.data.specs import ObsSpec
from striderl.networks.conv import Conv2dHeadModel
from striderl.networks.heads.gaussian import GaussianHead
from striderl.networks.heads.table import BetaHead, DeterministicHead
from striderl.networks.mlp import MlpModel
from striderl.policies.encode import EncodeStage
from striderl.policies.policy import Policy
from striderl.policies.stage import Pipeline, Stage
from striderl.policies.stages import NormalizeStage, RememberStage, module_key
from striderl.policies.transfer.load import TransferError, WeightDifference, shape_text

StateDict = dict[str, Tensor]

ACTOR, CRITIC = "actor", "critic"
_STD_NAMES = {"scalar": "distribution.std_param", "log": "distribution.log_std_param"}


class NoCounterpartError(ValueError):
    """A policy has a part that no model of rsl_rl has."""


class WeightPiece(NamedTuple):
    """One parameter of rsl_rl, and the parameters here that it is made of."""

    name: str
    """Its name in rsl_rl's model."""
    ours: tuple[str, ...]
    """Names in the policy's state dict; their rows are stacked."""
    columns: Tensor | None = None
    """Positions of rsl_rl's input columns among ours; None where both orders are the same."""

    def join(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return rsl_rl's tensor from tensors with our names."""
        whole = values[self.ours[0]] if len(self.ours) == 1 else torch.cat([values[name] for name in self.ours])
        return whole if self.columns is None else whole[:, self.columns.to(whole.device)]

    def cut(self, value: Tensor, rows: Sequence[int]) -> StateDict:
        """Return tensors with our names, of so many rows each, from rsl_rl's tensor."""
        if self.columns is not None:
            value = value[:, torch.argsort(self.columns).to(value.device)]
        pieces = (value,) if len(self.ours) == 1 else value.split_with_sizes(list(rows))
        return dict(zip(self.ours, pieces))


class _Normalizer(NamedTuple):
    """The normaliser of one network: where its statistics are, in rsl_rl's order."""

    prefix: str
    names: tuple[str, ...]
    spec: ObsSpec


class RslRlLayout:
    """The pieces of a policy, by network and in the order of rsl_rl's `parameters()`."""

    def __init__(self, policy: Policy, orders: Mapping[str, Sequence[str]] | None = None) -> None:
        """Find the counterpart of every parameter, or raise NoCounterpartError.

        orders: the components of 'actor' and 'critic' in the order of rsl_rl's obs_groups; the spec's own without it.
        """
        self.policy = policy
        given = orders or {}
        self.shares_encoders = bool(policy.trunk.named_stages())
        self.pieces: dict[str, tuple[WeightPiece, ...]] = {}
        self._normalizers: dict[str, _Normalizer | None] = {}
        for who, pipeline, inputs in (
            (ACTOR, policy.actor, policy.actor_inputs),
            (CRITIC, policy.critic, policy.critic_inputs),
        ):
            order = tuple(given.get(who) or inputs)
            self._add_network(who, pipeline, _vectors_first(order, inputs))
        named = {name for pieces in self.pieces.values() for piece in pieces for name in piece.ours}
        left = sorted(name for name, _ in policy.named_parameters() if name not in named)
        if left:
            raise NoCounterpartError(f"rsl_rl's models have no counterpart of {', '.join(left[:4])}")

    # -- both ways -----------------------------------------------------------------------------------------------------

    def state_dict(self, who: str, own: Mapping[str, Tensor] | None = None) -> StateDict:
        """Return the state dict of rsl_rl's actor or critic: of copies, or of a copy `own` of the policy's.

        Tensors that are the same in both are shared with `own`, so that a file holds their bytes once.
        """
        if own is None:
            own = {name: value.detach().clone() for name, value in self.policy.state_dict().items()}
        normalizer = self._normalizers[who]
        found = {} if normalizer is None else _flat_statistics(normalizer, own)
        for piece in self.pieces[who]:
            found[piece.name] = piece.join(own)
        return found

    def load(self, who: str, state: Mapping[str, Tensor], *, strict: bool = True) -> None:
        """Load the state dict of rsl_rl's actor or critic; every difference raises before anything has changed.

        strict: whether a name that only one side has, or another shape, is an error; otherwise it is left out.
        """
        own = self.policy.state_dict()
        found, differences = self._translated(who, state, own)
        if differences and strict:
            raise TransferError(differences, columns=("in the checkpoint", "in the policy"))
        self.policy.load_state_dict({**own, **found})

    def parameters(self, who: str) -> list[tuple[WeightPiece, list[nn.Parameter]]]:
        """Return the pieces of a network with the parameters that each is made of, in rsl_rl's order."""
        own = dict(self.policy.named_parameters())
        return [(piece, [own[name] for name in piece.ours]) for piece in self.pieces[who]]

    def _translated(
        self, who: str, state: Mapping[str, Tensor], own: Mapping[str, Tensor]
    ) -> tuple[StateDict, list[WeightDifference]]:
        found: StateDict = {}
        differences: list[WeightDifference] = []
        normalizer = self._normalizers[who]
        expected: dict[str, Tensor] = {piece.name: piece.join(own) for piece in self.pieces[who]}
        if normalizer is not None:
            expected |= _flat_statistics(normalizer, own)
        for name in [*expected, *(name for name in state if name not in expected)]:
            mine, theirs = expected.get(name), state.get(name)
            if mine is None or theirs is None or mine.shape != theirs.shape:
                there = "not there" if theirs is None else shape_text(theirs)
                differences.append(WeightDifference(name, there, "not there" if mine is None else shape_text(mine)))
        wrong = {difference.what for difference in differences}
        for piece in self.pieces[who]:
            if piece.name not in wrong:
                found |= piece.cut(state[piece.name].to(own[piece.ours[0]].dtype), [len(own[n]) for n in piece.ours])
        if normalizer is not None and not wrong & set(_STATISTICS):
            found |= _cut_statistics(normalizer, state)
        return found, differences

    # -- finding the pieces --------------------------------------------------------------------------------------------

    def _add_network(self, who: str, pipeline: Pipeline, order: tuple[str, ...]) -> None:
        policy = self.policy
        body, body_name = (policy.actor_body, "actor_body") if who == ACTOR else (policy.critic_body, "critic_body")
        encoders, memory, normalizer = self._stages(who, pipeline)
        at_layers = pipeline.output_spec
        rnn: list[WeightPiece] = []
        if memory is not None:
            prefix, stage = memory
            rnn = [
                WeightPiece(
                    f"rnn.rnn.{name}",
                    (f"{prefix}.memory.rnn.{name}",),
                    _permutation(order, stage.input_spec) if name == "weight_ih_l0" else None,
                )
                for name, _ in stage.memory.rnn.named_parameters()
            ]
        columns = None if memory is not None else _permutation(order, at_layers)
        layers = _layers(body, body_name, self._last(who), columns)
        distribution = self._distribution() if who == ACTOR else []
        self.pieces[who] = (*distribution, *layers, *rnn, *encoders)
        self._normalizers[who] = None
        if normalizer is not None:
            prefix, normalize = normalizer
            names = tuple(name for name in order if module_key(name) in normalize.normalizers)
            vectors = [name for name in order if len(normalize.input_spec[name].shape) < 2]
            if list(names) != vectors:
                raise NoCounterpartError(f"rsl_rl normalises all vectors {vectors}; the policy normalises {names}")
            self._normalizers[who] = _Normalizer(prefix, names, normalize.input_spec)

    def _stages(
        self, who: str, pipeline: Pipeline
    ) -> tuple[list[WeightPiece], tuple[str, RememberStage] | None, tuple[str, NormalizeStage] | None]:
        """Return the encoders' pieces, the memory and the normaliser; another stage has no counterpart."""
        encoders: list[WeightPiece] = []
        memory: tuple[str, RememberStage] | None = None
        normalizer: tuple[str, NormalizeStage] | None = None
        shared = [(f"trunk.stages.{name}", stage) for name, stage in self.policy.trunk.named_stages()]
        own = [(f"{who}.stages.{name}", stage) for name, stage in pipeline.named_stages()]
        for prefix, stage in (*shared, *own):
            if isinstance(stage, EncodeStage):
                encoders += _convolutions(prefix, stage)
            elif isinstance(stage, RememberStage) and memory is None:
                memory = prefix, stage
            elif isinstance(stage, NormalizeStage) and normalizer is None and (prefix, stage) in own[:1]:
                normalizer = prefix, stage
            else:
                raise NoCounterpartError(f"rsl_rl's models have no counterpart of the stage {_kind(stage)}")
        return encoders, memory, normalizer

    def _last(self, who: str) -> tuple[str, ...]:
        """Return the names of the linear layers whose rows are the last layer of rsl_rl's mlp."""
        if who == CRITIC:
            return ("value_head.layer",)
        head = self.policy.head
        if isinstance(head, GaussianHead) and isinstance(head.mu_activation, nn.Identity):
            return ("head.mean_layer.linear", *(("head.std_layer",) if head.state_dependent_std else ()))
        if isinstance(head, BetaHead) or (isinstance(head, DeterministicHead) and not head.bounded):
            return ("head.layer.linear",)
        raise NoCounterpartError(f"rsl_rl's models have no counterpart of the head {type(head).__name__}")

    def _distribution(self) -> list[WeightPiece]:
        head = self.policy.head
        if not isinstance(head, GaussianHead) or head.state_dependent_std:
            return []
        if head.std_type not in _STD_NAMES:
            raise NoCounterpartError(
                f"rsl_rl's std_type is one of {sorted(_STD_NAMES)}, the policy's {head.std_type!r}"
            )
        return [WeightPiece(_STD_NAMES[head.std_type], ("head.std_param",))]


def _layers(body: MlpModel, body_name: str, last: tuple[str, ...], columns: Tensor | None) -> list[WeightPiece]:
    """Return the pieces of rsl_rl's mlp: one linear layer at every second place."""
    own = [f"{body_name}.model.{at}" for at, layer in enumerate(body.model) if isinstance(layer, nn.Linear)]
    return [
        WeightPiece(
            f"mlp.{2 * at}.{kind}",
            tuple(f"{name}.{kind}" for name in names),
            columns if at == 0 and kind == "weight" else None,
        )
        for at, names in enumerate([*((name,) for name in own), last])
        for kind in ("weight", "bias")
    ]


def _convolutions(prefix: str, stage: EncodeStage) -> list[WeightPiece]:
    """Return the pieces of rsl_rl's image networks, which have no layers after the convolutions."""
    pieces: list[WeightPiece] = []
    for component in stage.network_of:
        key = module_key(component)
        network = dict(stage.encoders.items()).get(key)
        if (
            not isinstance(network, Conv2dHeadModel)
            or len(network.head.model)
            or stage.network_of[component] != component
        ):
            raise NoCounterpartError(f"rsl_rl encodes images by convolutions alone; {component!r} has another encoder")
        kinds = {type(layer) for layer in network.conv.conv}
        if nn.Conv2d not in kinds or any(issubclass(kind, (nn.MaxPool2d, nn.GroupNorm)) for kind in kinds):
            raise NoCounterpartError(f"the encoder of {component!r} pools or normalises in another way than rsl_rl's")
        pieces += [
            WeightPiece(f"cnns.{component}.{name}", (f"{prefix}.encoders.{key}.conv.conv.{name}",))
            for name, _ in network.conv.conv.named_parameters()
        ]
    return pieces


def _vectors_first(order: tuple[str, ...], spec: ObsSpec) -> tuple[str, ...]:
    """Return the components in the order of rsl_rl's latent: vectors, then images."""
    if sorted(order) != sorted(spec):
        raise ValueError(f"the order of components {list(order)} does not have those of the policy, {list(spec)}")
    images = tuple(name for name in order if len(spec[name].shape) > 1)
    return (*(name for name in order if name not in images), *images)


def _permutation(order: tuple[str, ...], spec: ObsSpec) -> Tensor | None:
    """Return the columns of a layer that reads this spec in the order of these components."""
    places = spec.slices()
    found = torch.cat([torch.arange(places[name].start, places[name].stop) for name in order])
    return None if torch.equal(found, torch.arange(spec.size)) else found


def _kind(stage: Stage) -> str:
    return type(stage).__name__.removesuffix("Stage")


# -- statistics --------------------------------------------------------------------------------------------------------


_STATISTICS = tuple(f"obs_normalizer.{name}" for name in ("_mean", "_var", "_std", "count"))


def _flat_statistics(normalizer: _Normalizer, own: Mapping[str, Tensor]) -> StateDict:
    """Return rsl_rl's statistics of the flat vector; it counts whole samples."""
    parts = [_of_component(normalizer, name, own) for name in normalizer.names]
    count = parts[0]["count"] if parts else torch.zeros((), dtype=torch.float64)
    mean = torch.cat([part["mean"].reshape(-1) for part in parts])
    spread = torch.cat([part["m2"].reshape(-1) for part in parts])
    var = torch.where(count > 0, spread / count.clamp(min=1e-30), torch.ones_like(spread))
    values = (mean.float()[None], var.float()[None], var.sqrt().float()[None], count.round().long())
    return dict(zip(_STATISTICS, values))


def _cut_statistics(normalizer: _Normalizer, state: Mapping[str, Tensor]) -> StateDict:
    """Cut rsl_rl's statistics into those of the components."""
    mean, var, _, count = (torch.as_tensor(state[name]).double() for name in _STATISTICS)
    found: StateDict = {}
    start = 0
    for name in normalizer.names:
        part = normalizer.spec[name]
        place = slice(start, start + part.size)
        start += part.size
        prefix = f"{normalizer.prefix}.normalizers.{module_key(name)}.statistics"
        found[f"{prefix}.mean"] = mean.reshape(-1)[place].reshape(part.shape)
        found[f"{prefix}.m2"] = (var.reshape(-1)[place] * count).reshape(part.shape)
        found[f"{prefix}.count"] = count
    return found


def _of_component(normalizer: _Normalizer, name: str, own: Mapping[str, Tensor]) -> dict[str, Any]:
    prefix = f"{normalizer.prefix}.normalizers.{module_key(name)}.statistics"
    return {key: own[f"{prefix}.{key}"].detach().double() for key in ("mean", "m2", "count")}
