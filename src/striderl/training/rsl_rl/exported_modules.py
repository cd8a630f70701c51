"""Modules to export an actor with: plain layers with copies of its weights, in rsl_rl's order of inputs.

torch.jit.script      ScriptedVector(obs)   ScriptedImages(obs_1d, [images])   ScriptedMemory(obs), memory inside
torch.onnx.export     OnnxActor: obs [1, F] (and images)         ─▶ actions
                                 obs, h_in [L, 1, H] (and c_in)  ─▶ actions, h_out (and c_out)
any other policy      GreedyModule: components, then memory, by their names
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from striderl.export.greedy_step import GreedyStep, plan_layout
from striderl.networks.heads.gaussian import GaussianHead
from striderl.networks.heads.table import BetaHead
from striderl.networks.mlp import resolve_nn_activation
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.policy import Policy
from striderl.policies.transfer.rsl_rl_state import ACTOR, RslRlLayout

# -- plain layers ------------------------------------------------------------------------------------------------------


class PlainActor(nn.Module):
    """Normalise, encode, remember and the layers, with copies of an actor's weights."""

    def __init__(self, layout: RslRlLayout, order: Sequence[str]) -> None:
        super().__init__()
        policy, spec = layout.policy, layout.policy.actor_inputs
        state = {name: value.cpu() for name, value in layout.state_dict(ACTOR).items()}
        vectors = [name for name in order if len(spec[name].shape) < 2]
        self.input_size = sum(spec[name].size for name in vectors)
        self.image_shapes = {name: spec[name].shape for name in order if name not in vectors}
        mean, std = state.get("obs_normalizer._mean"), state.get("obs_normalizer._std")
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", torch.zeros(1, self.input_size) if mean is None else mean)
        self.register_buffer("scale", torch.ones(1, self.input_size) if std is None else std + 1e-2)
        self.cnns = nn.ModuleList([_convolutions(policy, name, state) for name in self.image_shapes])
        self.rnn: nn.LSTM | nn.GRU | None = _memory(state)
        head = policy.head
        self.mlp = _layers(state, policy.config.activation)
        self.output: nn.Module = nn.Identity()
        if isinstance(head, BetaHead):
            self.output = BetaMode(head)
        elif isinstance(head, GaussianHead) and head.state_dependent_std:
            self.output = FirstHalf()


def _layers(state: Mapping[str, Tensor], activation: str) -> nn.Sequential:
    numbers = sorted({int(name.split(".")[1]) for name in state if name.startswith("mlp.")})
    layers: list[nn.Module] = []
    for number in numbers:
        weight = state[f"mlp.{number}.weight"]
        layers += [_linear(weight, state[f"mlp.{number}.bias"]), resolve_nn_activation(activation)]
    return nn.Sequential(*layers[:-1])


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer


def _memory(state: Mapping[str, Tensor]) -> nn.LSTM | nn.GRU | None:
    own = {name.removeprefix("rnn.rnn."): value for name, value in state.items() if name.startswith("rnn.rnn.")}
    if not own:
        return None
    rows, size = own["weight_hh_l0"].shape
    kind = nn.LSTM if rows == 4 * size else nn.GRU
    rnn = kind(own["weight_ih_l0"].shape[1], size, num_layers=sum(name.startswith("weight_hh") for name in own))
    rnn.load_state_dict(own)
    return rnn


def _convolutions(policy: Policy, name: str, state: Mapping[str, Tensor]) -> nn.Sequential:
    """Return a copy of the convolutions of an image, flattened at the end."""
    keys = {key.removeprefix(f"cnns.{name}."): value for key, value in state.items() if key.startswith(f"cnns.{name}.")}
    found = next(
        module for path, module in policy.named_modules() if path.endswith(f"of_{name.replace('.', '__')}.conv.conv")
    )
    layers = copy.deepcopy(found).cpu()
    assert isinstance(layers, nn.Sequential)
    layers.load_state_dict(keys)
    return nn.Sequential(*layers, nn.Flatten(1))


class FirstHalf(nn.Module):
    """The first half of the last dimension: the mean before the standard deviation."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [.., A] of [.., 2 A]."""
        return x[..., : x.shape[-1] // 2]


class BetaMode(nn.Module):
    """The mean of a Beta distribution, stretched to its bounds, as rsl_rl acts."""

    def __init__(self, head: BetaHead) -> None:
        super().__init__()
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", head.low.clone().cpu())
        self.register_buffer("high", head.high.clone().cpu())
        self.lowest = float(head.min_concentration)

    def forward(self, x: Tensor) -> Tensor:
        """Return [.., A] of the raw concentrations [.., 2 A]."""
        half = x.shape[-1] // 2
        alpha = torch.nn.functional.softplus(x[..., :half]) + self.lowest
        beta = torch.nn.functional.softplus(x[..., half:]) + self.lowest
        return self.low + (self.high - self.low) * alpha / (alpha + beta)


class ScriptedVector(nn.Module):
    """forward(obs [B, F]) -> actions."""

    def __init__(self, plain: PlainActor) -> None:
        super().__init__()
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", plain.mean)
        self.register_buffer("scale", plain.scale)
        self.mlp, self.output = plain.mlp, plain.output

    def forward(self, x: Tensor) -> Tensor:
        """Return the actions."""
        return self.output(self.mlp((x - self.mean) / self.scale))  # type: ignore[no-any-return]

    @torch.jit.export
    def reset(self) -> None:
        """Do nothing: there is no memory."""


class ScriptedImages(nn.Module):
    """forward(obs_1d [B, F], obs_2d: a list of images) -> actions."""

    def __init__(self, plain: PlainActor) -> None:
        super().__init__()
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", plain.mean)
        self.register_buffer("scale", plain.scale)
        self.cnns, self.mlp, self.output = plain.cnns, plain.mlp, plain.output

    def forward(self, obs_1d: Tensor, obs_2d: list[Tensor]) -> Tensor:
        """Return the actions."""
        latents = [(obs_1d - self.mean) / self.scale]
        for at, cnn in enumerate(self.cnns):
            latents.append(cnn(obs_2d[at]))
        return self.output(self.mlp(torch.cat(latents, dim=-1)))  # type: ignore[no-any-return]

    @torch.jit.export
    def reset(self) -> None:
        """Do nothing: there is no memory."""


class ScriptedMemory(nn.Module):
    """forward(obs [B, F]) -> actions, with the memory inside; another batch size starts anew."""

    def __init__(self, plain: PlainActor) -> None:
        super().__init__()
        assert plain.rnn is not None
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", plain.mean)
        self.register_buffer("scale", plain.scale)
        self.mlp, self.output = plain.mlp, plain.output
        self.cell = _LstmStep(plain.rnn) if isinstance(plain.rnn, nn.LSTM) else _GruStep(plain.rnn)
        self.hidden_state: Tensor
        self.cell_state: Tensor
        shape = (plain.rnn.num_layers, 1, plain.rnn.hidden_size)
        self.register_buffer("hidden_state", torch.zeros(shape))
        self.register_buffer("cell_state", torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Return the actions, and advance the memory."""
        if self.hidden_state.shape[1] != x.shape[0]:
            self.hidden_state = torch.zeros(
                self.hidden_state.shape[0], x.shape[0], self.hidden_state.shape[2], device=x.device
            )
            self.cell_state = torch.zeros_like(self.hidden_state)
        out, h, c = self.cell(((x - self.mean) / self.scale).unsqueeze(0), self.hidden_state, self.cell_state)
        self.hidden_state = h
        self.cell_state = c
        return self.output(self.mlp(out.squeeze(0)))  # type: ignore[no-any-return]

    @torch.jit.export
    def reset(self) -> None:
        """Start from an empty memory."""
        self.hidden_state = torch.zeros_like(self.hidden_state)
        self.cell_state = torch.zeros_like(self.cell_state)


class _LstmStep(nn.Module):
    def __init__(self, rnn: nn.LSTM) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out, (h, c) = self.rnn(x, (h, c))
        return out, h, c


class _GruStep(nn.Module):
    def __init__(self, rnn: nn.GRU) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out, h = self.rnn(x, h)
        return out, h, c


class OnnxActor(nn.Module):
    """The actor as a pure function, with rsl_rl's names of inputs and outputs."""

    def __init__(self, plain: PlainActor) -> None:
        super().__init__()
        self.plain = plain
        self.input_size = plain.input_size
        self.is_recurrent = plain.rnn is not None

    def forward(self, obs: Tensor, *others: Tensor) -> Any:
        """Return the actions, and behind them the memory; `others` are images, or the memory."""
        plain = self.plain
        x = (obs - plain.mean) / plain.scale
        if isinstance(plain.rnn, nn.LSTM):
            out, (h, c) = plain.rnn(x.unsqueeze(0), (others[0], others[1]))
            return plain.output(plain.mlp(out.squeeze(0))), h, c
        if plain.rnn is not None:
            out, h = plain.rnn(x.unsqueeze(0), others[0])
            return plain.output(plain.mlp(out.squeeze(0))), h
        latents = [x, *(cnn(image) for cnn, image in zip(plain.cnns, others))]
        return plain.output(plain.mlp(torch.cat(latents, dim=-1) if len(latents) > 1 else x))

    def get_dummy_inputs(self) -> tuple[Tensor, ...]:
        """Return inputs of one env."""
        plain = self.plain
        obs = torch.zeros(1, plain.input_size)
        if plain.rnn is not None:
            memory = torch.zeros(plain.rnn.num_layers, 1, plain.rnn.hidden_size)
            return (obs, memory, memory.clone()) if isinstance(plain.rnn, nn.LSTM) else (obs, memory)
        return (obs, *(torch.zeros(1, *shape) for shape in plain.image_shapes.values()))

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in order."""
        return ["obs", *(self._memory("in") or self.plain.image_shapes)]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in order."""
        return ["actions", *self._memory("out")]

    def _memory(self, way: str) -> list[str]:
        if self.plain.rnn is None:
            return []
        return [f"h_{way}", f"c_{way}"] if isinstance(self.plain.rnn, nn.LSTM) else [f"h_{way}"]


# -- policies that rsl_rl has no model of ------------------------------------------------------------------------------


class GreedyModule(nn.Module):
    """Any policy as a pure function: its components, then its memory, by their names."""

    def __init__(self, policy: Policy | ActorPolicy) -> None:
        super().__init__()
        own = copy.deepcopy(policy).cpu().eval()
        self.layout = plan_layout(own)
        self.step = GreedyStep(own, self.layout)
        self.is_recurrent = bool(self.layout.states)
        self.input_size = self.layout.observations.size

    def forward(self, *inputs: Tensor) -> Any:
        """Return the actions, and behind them the memory."""
        outputs = self.step(*inputs)
        return outputs if len(outputs) > 1 else outputs[0]

    def get_dummy_inputs(self) -> tuple[Tensor, ...]:
        """Return inputs of one env."""
        return tuple(torch.zeros(1, *spec.shape) for spec in self.layout.input_specs)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs: 'obs' where there is one vector, else the components and 'state/…'."""
        names = list(self.layout.input_names)
        return ["obs"] if len(names) == 1 else names

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs: 'actions' and 'next_state/…'."""
        names = list(self.layout.output_names)
        return ["actions", *names[1:]] if names[0] == "action" else names


def traced(policy: Policy | ActorPolicy) -> nn.Module:
    """Return a traced function; its memory, if any, goes in and comes out."""
    module = GreedyModule(policy).eval()
    with torch.no_grad():
        traced = torch.jit.trace(module, module.get_dummy_inputs(), check_trace=False)  # type: ignore[no-untyped-call]
    assert isinstance(traced, nn.Module)
    return traced
