"""The policy's part of a config: one dict with a class name (v1 to v3), or one dict per network (v4, v5).

    {"class_name": "ActorCritic", "actor_hidden_dims": [256, 128], …}                                       v1 to v3
    "actor": {"class_name": "MLPModel", …},  "critic": {…}                                                  v4, v5

Dicts of settings are read key by key (`Keys`), so that unused keys are found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from striderl.data.naming import suggestion, unknown
from striderl.policies.stages import Remember
from striderl.training.experiment.runner_config import ModelPair, ModelSettings, PresetSettings

# -- keys --------------------------------------------------------------------------------------------------------------


class Keys:
    """One dict of a config; unused keys raise at the end."""

    def __init__(self, given: Any, where: str) -> None:
        """Take a copy; anything but a mapping with text keys is an error that names the place."""
        if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
            raise TypeError(f"{where}: wanted a dict of settings, found {type(given).__name__} {given!r}")
        self.where = where
        self._left = dict(given)
        self._known: list[str] = []

    def __contains__(self, name: str) -> bool:
        return self._left.get(name) is not None

    def peek(self, name: str) -> Any:
        """Return a setting without marking it as used; None when it is missing."""
        return self._left.get(name)

    def take(self, name: str, default: Any = None) -> Any:
        """Return a setting and mark it as used; None, which config exporters write for 'not set', is the default."""
        self._known.append(name)
        value = self._left.pop(name, None)
        return default if value is None else value

    def take_all(self, names: Collection[str]) -> dict[str, Any]:
        """Return those of several settings that are set."""
        found = {name: self.take(name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def part(self, name: str) -> Keys:
        """Return a nested dict, empty when it is missing."""
        return Keys(self.take(name, {}), f"{self.where}[{name!r}]")

    def rest(self) -> dict[str, Any]:
        """Return all remaining settings, which the caller checks."""
        found = {name: value for name, value in self._left.items() if value is not None}
        self._left = {}
        return found

    def finish(self, irrelevant: Collection[str] = ()) -> tuple[str, ...]:
        """Return the remaining settings that are known to have no effect here; any other raises."""
        listed = tuple(name for name in self._left if name in irrelevant)
        for name, value in self._left.items():
            if name in irrelevant or value is None:
                continue
            known = sorted({*self._known, *irrelevant})
            raise KeyError(
                f"{self.where} has a setting {name!r} that no generation knows. {suggestion(name, known)}"
                f"Known: {', '.join(known)}."
            )
        return listed


def as_tuple(value: Any, where: str) -> tuple[Any, ...]:
    """Return a list or tuple as a tuple; one number or name stands for itself."""
    if isinstance(value, (list, tuple)):
        return tuple(value)
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return (value,)
    raise TypeError(f"{where}: wanted a list, found {type(value).__name__} {value!r}")


def bare_class_name(name: Any, where: str) -> str:
    """Return 'PPO' for 'PPO', 'rsl_rl.algorithms.PPO' and 'rsl_rl.algorithms:PPO'."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"{where}: wanted the name of a class, found {name!r}")
    return name.rpartition(":")[2].rpartition(".")[2]


# -- policy ------------------------------------------------------------------------------------------------------------


MODELS = ("MLPModel", "RNNModel", "CNNModel")
"""The networks that rsl_rl 4 and 5 describe an actor or a critic with."""

DISTRIBUTIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "GaussianDistribution": ("gaussian", {}),
    "HeteroscedasticGaussianDistribution": ("gaussian", {"state_dependent_std": True}),
    "BetaDistribution": ("beta", {}),
}
"""The heads that stand for rsl_rl's distributions."""

_OF_THE_HEAD = {
    "noise_std_type": "std_type",
    "std_type": "std_type",
    "state_dependent_std": "state_dependent_std",
}
_POOLS = (None, "none", "None")


def read_preset(given: Any, where: str, *, class_name: str = "", normalize: bool = False) -> PresetSettings:
    """Read the dict of a v1, v2 or v3 policy; the class checks its own arguments when it is built."""
    keys = Keys(given, where)
    name = bare_class_name(keys.take("class_name", class_name or "ActorCritic"), f"{where}['class_name']")
    head = {new: keys.take(old) for old, new in _OF_THE_HEAD.items() if old in keys}
    actor_norm = keys.take("actor_obs_normalization", normalize)
    critic_norm = keys.take("critic_obs_normalization", normalize)
    settings = keys.rest()
    if "rnn_hidden_dim" in settings:
        settings["rnn_hidden_size"] = settings.pop("rnn_hidden_dim")
    return PresetSettings(
        class_name=name,
        settings=settings,
        head_settings=head,
        normalize_actor_obs=actor_norm,
        normalize_critic_obs=critic_norm,
    )


def read_models(actor: Any, critic: Any, *, share_encoders: bool) -> ModelPair:
    """Read the dicts of a v4 or v5 actor and critic."""
    own = Keys(actor, "actor")
    head, head_settings = _head(own)
    other = Keys(critic, "critic")
    for name in ("distribution_cfg", "stochastic", "init_noise_std", "init_std", *_OF_THE_HEAD):
        other.take(name)  # exporters of configs repeat the actor's fields here; values have no distribution
    return ModelPair(
        actor=_model(own),
        critic=_model(other),
        head=head,
        head_settings=head_settings,
        share_encoders=share_encoders,
    )


def read_model(given: Any, where: str) -> tuple[ModelSettings, str, dict[str, Any]]:
    """Read the dict of one v4 or v5 network that acts: its layers, its head and the head's settings."""
    keys = Keys(given, where)
    if keys.peek("distribution_cfg") is None and "stochastic" not in keys and "init_noise_std" not in keys:
        return _model(keys), "deterministic", {}
    head, head_settings = _head(keys)
    return _model(keys), head, head_settings


def _head(keys: Keys) -> tuple[str, dict[str, Any]]:
    """Read rsl_rl 5's distribution_cfg, or the settings that rsl_rl 4 keeps with the layers."""
    settings = {new: keys.take(old) for old, new in _OF_THE_HEAD.items() if old in keys}
    init_std, stochastic = keys.take("init_noise_std", keys.take("init_std")), keys.take("stochastic", True)
    if init_std is not None:
        settings["init_std"] = init_std
    if stochastic is False:
        return "deterministic", {}
    if "distribution_cfg" not in keys:
        return "gaussian", settings
    inside = keys.part("distribution_cfg")
    name = bare_class_name(inside.take("class_name", "GaussianDistribution"), f"{inside.where}['class_name']")
    if name not in DISTRIBUTIONS:
        raise ValueError(unknown("distribution", name, DISTRIBUTIONS, where=inside.where))
    head, fixed = DISTRIBUTIONS[name]
    if head == "beta":
        low, high = as_tuple(inside.take("action_range", (-1.0, 1.0)), f"{inside.where}['action_range']")
        inside.finish(("init_std", "std_type", "std_range", "learn_std"))
        return head, {"low": low, "high": high}
    found = inside.take_all(("init_std", "std_type", "std_range", "learn_std"))
    if "std_range" in found:
        found["std_range"] = as_tuple(found["std_range"], f"{inside.where}['std_range']")
    if fixed:
        found.pop("learn_std", None)
    inside.finish()
    return head, {**settings, **found, **fixed}


def _model(keys: Keys) -> ModelSettings:
    name = bare_class_name(keys.take("class_name", "MLPModel"), f"{keys.where}['class_name']")
    if name not in MODELS:
        raise ValueError(unknown("network", name, MODELS, where=keys.where))
    memory, cnn = _memory(keys), keys.take("cnn_cfg")
    if cnn is not None and name == "RNNModel":
        raise ValueError(f"{keys.where}: cnn_cfg has no effect on an RNNModel; use a CNNModel")
    if name == "CNNModel" and cnn is None:
        raise ValueError(f"{keys.where}: a CNNModel wants cnn_cfg")
    settings = ModelSettings(
        hidden_dims=as_tuple(keys.take("hidden_dims", (256, 256, 256)), f"{keys.where}['hidden_dims']"),
        activation=keys.take("activation", "elu"),
        obs_normalization=keys.take("obs_normalization", False),
        memory=memory if name == "RNNModel" else None,
        encoder=None if cnn is None or name != "CNNModel" else _image_networks(cnn, f"{keys.where}['cnn_cfg']"),
    )
    keys.finish()
    return settings


def _memory(keys: Keys) -> Remember:
    return Remember(
        type=keys.take("rnn_type", "lstm"),
        hidden_size=keys.take("rnn_hidden_dim", keys.take("rnn_hidden_size", 256)),
        num_layers=keys.take("rnn_num_layers", 1),
    )


def _image_networks(given: Any, where: str) -> dict[str, Any]:
    """Translate rsl_rl's settings of convolutions: one dict for all images, or one for each by its group."""
    if isinstance(given, Mapping) and given and all(isinstance(each, Mapping) for each in given.values()):
        return {str(name): _convolutions(each, f"{where}[{name!r}]") for name, each in given.items()}
    return _convolutions(given, where)


def _convolutions(given: Any, where: str) -> dict[str, Any]:
    """Translate rsl_rl's settings of convolutions."""
    keys = Keys(given, where)
    channels = as_tuple(keys.take("output_channels", ()), f"{where}['output_channels']")
    if not channels:
        raise ValueError(f"{where} wants output_channels, a list with the channels of each layer")

    def each(name: str, default: Any) -> tuple[Any, ...]:
        value = keys.take(name, default)
        return tuple(value) if isinstance(value, (list, tuple)) else (value,) * len(channels)

    kernels, strides, dilations = each("kernel_size", 3), each("stride", 1), each("dilation", 1)
    padding, norms = keys.take("padding", "none"), each("norm", "none")
    settings: dict[str, Any] = {
        "channels": channels,
        "kernel_sizes": kernels,
        "strides": strides,
        "nonlinearity": keys.take("activation", "elu"),
        "use_maxpool": any(each("max_pool", False)),
    }
    if padding not in _POOLS:
        settings["paddings"] = tuple(int(kernel) // 2 for kernel in kernels)
    if set(norms) - {None, "none"}:
        settings["normlayer"] = norms[0]
    if any(dilation != 1 for dilation in dilations) or keys.take("global_pool", "none") not in _POOLS:
        raise ValueError(f"{where}: convolutions have no dilation and no global_pool here; leave them away")
    keys.finish(("flatten",))
    return settings
