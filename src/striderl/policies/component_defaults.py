"""Defaults for images and discrete components that no stage names: a CNN for each image, one-hot for choices.

    {"camera": uint8 [84, 84, 3], "cell": int64 [] of 16, "speed": [2]}
          │ Encode("camera")     a CNN sized to the image; bytes are scaled to [0, 1] inside
          │ OneHot("cell")
    {"camera": [512], "cell": [16], "speed": [2]}  ──▶ flatten ──▶ MLP ──▶ head

The stages are added before the first `Remember`, or at the end of the list, so that your own stages read what the
env gave. A list without such components is unchanged: its parameters keep their names.
`flatten_images=True` and `one_hot=False` leave the components to the layers as plain numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.policies.encode import Encode
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.stage import StageRecipe
from striderl.policies.stages import NormalizeObs, OneHot, Remember

_log = logging.getLogger(__name__)

MIN_IMAGE_SIDE = 3
"""Pixels of the shorter side from which on a component of three axes is an image."""
LARGE_IMAGE_SIDE = 64
"""Pixels of the shorter side from which on the CNN is that of DQN on Atari (Mnih et al., 2015), which needs 36."""


@dataclass(frozen=True, kw_only=True)
class ComponentDefaults:
    """The stages that are added to a list, by component."""

    images: Mapping[str, Encode]
    """The encoder of each image."""
    choices: tuple[str, ...]
    """The components that become one-hot."""
    flattened: tuple[str, ...]
    """Images, and bytes of two or four axes, that go into the layers as they are."""
    spec: ObsSpec
    """The specs of the components before any stage."""
    at_end: bool = True
    """Whether they are added at the end of the list at the latest; a trunk leaves that to the lists after it."""

    def adapted(self, recipe: StageRecipe, spec: ObsSpec) -> StageRecipe | None:
        """Return a normaliser of 'all real numbers' without the images that are encoded; other recipes as they are."""
        if not isinstance(recipe, NormalizeObs) or recipe.components:
            return recipe
        numbers = tuple(name for name, part in spec.items() if part.dtype.startswith("float"))
        kept = tuple(name for name in numbers if name not in self.images)
        if kept == numbers:
            return recipe
        return replace(recipe, components=kept) if kept else None

    def before(self, recipe: StageRecipe | None, spec: ObsSpec) -> tuple[StageRecipe, ...]:
        """Return the stages for components that are still raw, before a memory or at the end."""
        if not isinstance(recipe, Remember) and not (recipe is None and self.at_end):
            return ()
        raw = [name for name, part in spec.items() if self._is_raw(name, part)]
        added: list[StageRecipe] = [self.images[name] for name in raw if name in self.images]
        choices = tuple(name for name in raw if name in self.choices)
        return (*added, OneHot(components=choices)) if choices else tuple(added)

    def _is_raw(self, name: str, part: ComponentSpec) -> bool:
        given = self.spec.get(name)
        return given is not None and (part.shape, part.dtype) == (given.shape, given.dtype)

    def log(self, owner: str) -> None:
        """Log one line per component that is treated by default, and how to change that."""
        for name, recipe in self.images.items():
            part = self.spec[name]
            _log.info(
                "%s: image %r, %s %s, is encoded by a CNN of %d features; flatten_images=True flattens it instead",
                owner,
                name,
                part.dtype,
                list(part.shape),
                recipe.output_size,
            )
        for name in self.choices:
            counts = self.spec[name].num_choices
            what = f"{counts[0]} choices" if len(counts) == 1 else f"{list(counts)} choices"
            _log.info(
                "%s: component %r of %s enters as a one-hot vector of %d; one_hot=False gives the number itself",
                owner,
                name,
                what,
                sum(counts),
            )
        for name in self.flattened:
            shape = list(self.spec[name].shape)
            axes = "" if len(shape) == 3 else "; with three axes, [H, W, C] or [C, H, W], it would be encoded by a CNN"
            _log.info("%s: image %r, %s, is flattened into the layers%s", owner, name, shape, axes)


def component_defaults(
    spec: ObsSpec,
    recipes: Iterable[StageRecipe],
    *,
    flatten_images: bool = False,
    one_hot: bool = True,
    at_end: bool = True,
) -> ComponentDefaults:
    """Return the stages added for the components of `spec` that none of the recipes encodes or predicts."""
    named = _named(recipes)
    left = {name: part for name, part in spec.items() if name not in named and part.group != "action_mask"}
    pictures = [name for name, part in left.items() if is_picture(part)]
    planes = [name for name, part in left.items() if part.dtype == "uint8" and len(part.shape) in (2, 4)]
    return ComponentDefaults(
        images={} if flatten_images else {name: image_encoder(name, left[name]) for name in pictures},
        choices=tuple(name for name, part in left.items() if part.num_choices) if one_hot else (),
        flattened=(*(pictures if flatten_images else ()), *planes),
        spec=spec,
        at_end=at_end,
    )


def _named(recipes: Iterable[StageRecipe]) -> set[str]:
    """Return the components that recipes treat themselves."""
    found: set[str] = set()
    for recipe in recipes:
        if isinstance(recipe, Encode):
            found.update(recipe.components, *recipe.copies)
        elif isinstance(recipe, OneHot):
            found.update(recipe.components)
        elif isinstance(recipe, (Estimate, Adapt)):
            found.update(recipe.target_components, recipe.truth_components)
    return found


def is_picture(part: ComponentSpec) -> bool:
    """Return whether a component is an image: bytes or real numbers with three axes, and at least 3 pixels each way."""
    is_number = part.dtype == "uint8" or part.dtype.startswith("float")
    return is_number and not part.num_choices and len(part.shape) == 3 and min(image_sides(part)) >= MIN_IMAGE_SIDE


def has_channels_last(part: ComponentSpec) -> bool:
    """Return whether an image is [H, W, C], as Gymnasium gives them: the last axis is shorter than the first."""
    return part.shape[-1] < part.shape[0]


def image_sides(part: ComponentSpec) -> tuple[int, int]:
    """Return height and width of an image in either order of axes."""
    return (part.shape[0], part.shape[1]) if has_channels_last(part) else (part.shape[1], part.shape[2])


def image_encoder(name: str, part: ComponentSpec) -> Encode:
    """Return a CNN sized to the image: that of DQN on Atari from 64 pixels on, two small layers below."""
    side = min(image_sides(part))
    settings: dict[str, object] = {"channels_last": has_channels_last(part)}
    if side >= LARGE_IMAGE_SIDE:
        settings |= {"channels": (32, 64, 64), "kernel_sizes": (8, 4, 3), "strides": (4, 2, 1)}
        return Encode(components=(name,), model="Conv2dHeadModel", settings=settings, output_size=512)
    stride = 2 if side >= 16 else 1  # in a grid of few cells every cell counts
    settings |= {"channels": (16, 32), "kernel_sizes": (3, 3), "strides": (stride, stride), "paddings": (1, 1)}
    return Encode(components=(name,), model="Conv2dHeadModel", settings=settings, output_size=128)
