"""Watch one eager run of a part and raise for whatever could not be captured, at the line where it happens.

    part(inputs) ── Python call ──▶ FunctionWatch ── torch op ──▶ DispatchWatch ──▶ kernel
                    .cpu(), .numpy(), .tolist(),       host reads, shapes that depend on values, random numbers,
                    if tensor: …                       tensors made from host data, writes to what it was given

The upper mode catches what a CPU run never turns into a torch op (`.numpy()`), the lower one ops of library code below
the Python call. Both stop at the first error, so the error can show the source line.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from striderl.data import tree

HOST_CALLS = ("item", "tolist", "numpy", "cpu", "__array__", "__float__", "__int__", "__index__", "__format__")
"""Methods of tensors that bring values to the host; some of them are invisible below Python on the CPU."""

HOST_READ = "reads values on the host, which waits for the device; keep them in tensors"
BRANCH = "is a Python branch on a tensor's value; compute both sides and choose with torch.where"
SHAPE = "has a result whose shape depends on values; use a mask with torch.where, or a fixed size"
RANDOM = "draws random numbers inside; declare them as noise and take them as an input"
HOST_DATA = "makes a tensor from host data on every call, a copy that waits; make it once and keep it as a buffer"
TRANSFER = "copies between host and device; keep everything on one device"


class CaptureError(RuntimeError):
    """A part that cannot be captured; the message names the part, the operation, the reason and the place."""

    def __init__(self, part: str, op: str, reason: str, place: str = "") -> None:
        """Compose the message; `place` is the source line where it is known."""
        super().__init__(f"{part}: {op} {reason}." + (f"\n  at {place}" if place else ""))
        self.part, self.op, self.reason, self.place = part, op, reason, place


class CaptureWatch:
    """The tensors of an eager run: the tensors it was given, those it found elsewhere and those it made."""

    def __init__(self, part: str, inputs: Any, modules: Sequence[nn.Module] = ()) -> None:
        """Store inputs, parameters and buffers by name, to detect writes to them."""
        self.part = part
        self.num_ops = 0
        self.inside = ""
        """The call on the Python side that is running; empty between calls."""
        named = [(f"input {path!r}", leaf) for path, leaf in tree.items(inputs)]
        for root in modules:
            named += [(f"parameter {path!r}", leaf) for path, leaf in root.named_parameters()]
            named += [(f"buffer {path!r}", leaf) for path, leaf in root.named_buffers()]
        self._names = {_storage(leaf): name for name, leaf in named if _is_tensor(leaf)}
        self._made: set[int] = set()
        self._found: dict[int, tuple[Tensor, Tensor]] = {}
        for leaf in tree.leaves(inputs):
            if _is_tensor(leaf):
                self._remember(leaf)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch everything that happens inside the block."""
        with FunctionWatch(self), DispatchWatch(self):
            yield

    def parameters(self) -> list[Tensor]:
        """Return the tensors from outside, inputs included, that gradients may flow to."""
        return [found for found, _ in self._found.values() if found.requires_grad and found.is_leaf]

    def require_unchanged(self) -> None:
        """Raise for tensors from outside with changed values; some kernels write without declaring it."""
        for key, (found, before) in self._found.items():
            if not same_values(found, before):
                self.refuse("it", f"changes {self._describe(key, found)} in place; give the new value back instead")

    def refuse(self, op: str, reason: str) -> NoReturn:
        """Raise CaptureError with the innermost source line outside torch and outside this package."""
        raise CaptureError(self.part, op, reason, user_place())

    # -- what the two modes report -------------------------------------------------------------------------------------

    def before_call(self, name: str, args: tuple[Any, ...]) -> None:
        """Check a call on the Python side before it runs."""
        if name == "__bool__":
            self.refuse("'if', 'and' or 'while'", BRANCH)
        if name in HOST_CALLS:
            self.refuse(f"Tensor.{name}()", HOST_READ)
        if name == "to" and "cpu" in [argument for argument in args if isinstance(argument, str)]:
            self.refuse("Tensor.to('cpu')", HOST_READ)

    def before_op(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Check a torch operation before it runs."""
        self.num_ops += 1
        if torch.Tag.data_dependent_output in op.tags:
            self.refuse(str(op), HOST_READ)
        if torch.Tag.nondeterministic_seeded in op.tags and _draws(op, args, kwargs):
            self.refuse(str(op), RANDOM)
        if _shape_depends_on_values(op, args):
            self.refuse(str(op), SHAPE)
        if op is torch.ops.aten.lift_fresh.default and self.inside != "__setitem__":
            # an assignment of a number, x[i] = 0.0, passes here too; on a device it is a fill, not a copy
            self.refuse(f"torch.{self.inside}" if self.inside in ("tensor", "as_tensor") else str(op), HOST_DATA)
        if _changes_device(op, args, kwargs):
            self.refuse(str(op), TRANSFER)
        for value in tree_leaves((list(args), kwargs)):
            if _is_tensor(value) and _storage(value) not in self._made:
                self._remember(value)
        for written in _written(op, args, kwargs):
            key = _storage(written)
            if key not in self._made:
                reason = f"changes {self._describe(key, written)} in place; work on a copy and give it back"
                self.refuse(str(op), reason)

    def after_op(self, result: Any) -> None:
        """Store the outputs of the operation; a view of something from outside is not new."""
        for value in tree_leaves(result):
            if _is_tensor(value) and _storage(value) not in self._found:
                self._made.add(_storage(value))

    def _remember(self, value: Tensor) -> None:
        key = _storage(value)
        if key not in self._found:
            self._found[key] = (value, value.detach().clone())

    def _describe(self, key: int, value: Tensor) -> str:
        shape = list(value.shape)
        return self._names.get(key, f"a tensor {shape} that it was not given")


class FunctionWatch(TorchFunctionMode):
    """Reports calls on tensors before torch handles them."""

    def __init__(self, watch: CaptureWatch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Report and pass on."""
        kwargs = kwargs or {}
        name = str(getattr(func, "__name__", func))
        self.watch.before_call(name, (*args, *kwargs.values()))
        outer, self.watch.inside = self.watch.inside, name
        try:
            return func(*args, **kwargs)
        finally:
            self.watch.inside = outer


class DispatchWatch(TorchDispatchMode):
    """Reports operations before and after they run."""

    def __init__(self, watch: CaptureWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Report, run, report."""
        kwargs = kwargs or {}
        self.watch.before_op(func, args, kwargs)
        result = func(*args, **kwargs)
        self.watch.after_op(result)
        return result


def same_values(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same values; NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def user_place() -> str:
    """Return 'file:line in function: code' of the innermost frame that is neither torch's nor the checker's."""
    ours, torchs = Path(__file__).parent, Path(torch.__file__).parent
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if torchs not in path.parents and not (path.parent == ours and path.name.startswith("capture")):
            return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return ""


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _storage(value: Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _draws(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a tagged op draws: recurrent and attention kernels have the tag for a dropout, often zero."""
    given = {**{spec.name: value for spec, value in zip(op._schema.arguments, args)}, **kwargs}
    dropouts = [given[name] for name in ("dropout", "dropout_p") if name in given]
    return not dropouts or float(dropouts[0]) > 0.0


def _shape_depends_on_values(op: Any, args: Sequence[Any]) -> bool:
    if op is torch.ops.aten.index.Tensor:
        # the tag is there for masks only; whole numbers as indices give a fixed shape
        return any(_is_mask(index) for index in args[1])
    if op in (torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default):
        return any(_is_mask(index) for index in args[1]) and bool(args[2].numel() != 1)
    return bool(torch.Tag.dynamic_output_shape in op.tags)


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _changes_device(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    if op is torch.ops.aten._to_copy.default:
        return bool(torch.device(kwargs.get("device") or args[0].device).type != args[0].device.type)
    if op is torch.ops.aten.copy_.default:
        return bool(args[1].dim() > 0 and args[0].device.type != args[1].device.type)
    return False


def _written(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that an op declares to write to."""
    found: list[Tensor] = []
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return found
