"""Writing rows into a `Batch`: batch[loc] = value, all leaves or none.

Everything is checked before anything is written, so a write that fails changes nothing. Two planners share the work:
`plain_rows` knows only the common case (the same keys, leaves that fit exactly) and is as fast as writing without a
check; whatever it does not know goes to `plan_rows`, which fills gaps, converts, and finds the words for an error.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from striderl.data import leaf
from striderl.data.batch_ops import MISSING, from_store, is_gap, missing_key

if TYPE_CHECKING:
    from striderl.data.batch import Batch

_ndarray = np.ndarray


def write_rows(batch: Batch, loc: Any, value: Batch) -> None:
    """Do batch[loc] = value."""
    direct: list[tuple[Any, Any]] = []
    views: list[Any] = []
    sources: list[Any] = []
    basic = loc.__class__ is int or loc.__class__ is slice
    prefix = () if basic else _row_prefix(loc)
    if prefix is not None and plain_rows(batch, loc, value, prefix, basic, direct, views, sources):
        try:
            if views:
                sys.modules["torch"]._foreach_copy_(views, sources)
        except RuntimeError:
            plan_rows(batch, loc, value, "", [])  # finds the words: a tensor that wants its gradient, say
            raise
        if basic:
            for own, new in direct:
                own[loc] = new
            return
    else:
        direct = []
        plan_rows(batch, loc, value, "", direct)
    try:
        _scatter(direct, loc)
    except IndexError:
        plan_rows(batch, loc, value, "", [])  # raises the same error with the key in it
        raise


def _scatter(writes: list[tuple[Any, Any]], loc: Any) -> None:
    """Write under any index, which is brought into the form of arrays and of tensors at most once."""
    array_loc = loc if loc.__class__ is _ndarray else None
    places = (loc,) if leaf.is_tensor(loc) else None
    for own, new in writes:
        if own.__class__ is _ndarray:
            if array_loc is None:
                array_loc = leaf.index_for(own, loc)
            own[array_loc] = new
        elif places is None:
            leaf.write(own, leaf.index_for(own, loc), new)
        else:
            try:
                own.index_put_(places, new)
            except RuntimeError:  # the value lies in the same memory: nothing is written yet
                leaf.write(own, loc, new)


def _row_prefix(loc: Any) -> tuple[int, ...] | None:
    """Return the leading shape that an index array selects, or None when `plan_rows` should look at it."""
    if loc.__class__ is _ndarray:
        return loc.shape if loc.ndim and loc.dtype.kind in "iu" else None
    if leaf.is_tensor(loc) and loc.ndim and loc.dtype.itemsize > 1:  # neither a mask nor its old form as uint8
        return tuple(loc.shape)
    return None


def plain_rows(
    batch: Batch,
    loc: Any,
    value: Batch,
    prefix: tuple[int, ...],
    basic: bool,
    direct: list[tuple[Any, Any]],
    views: list[Any],
    sources: list[Any],
    rows: int = -1,
) -> bool:
    """Plan the common case; return False as soon as anything is not that plain.

    Tensors under a basic index are views already, to be copied in one call. Under an index array all leaves must have
    the same number of rows: then the first write fails if any would.
    """
    kind = batch.__class__
    store, given = batch.__dict__, value.__dict__
    if list(store) != list(given):
        return False
    known: Any = None
    target: Any = None
    try:
        for own, new in zip(store.values(), given.values()):
            own_kind = own.__class__
            if own_kind is _ndarray or (not basic and own_kind is not kind):
                shape = own.shape
                if shape != known:
                    if not basic and rows not in (-1, shape[0]):
                        return False
                    known, rows = shape, shape[0]
                    target = own[loc].shape if basic else (*prefix, *shape[1:])
                if new.shape != target or own.dtype is not new.dtype:
                    return False
                # an expanded tensor is not contiguous; writing one of its rows would change them all
                if not own.flags.writeable if own_kind is _ndarray else own.requires_grad or not own.is_contiguous():
                    return False
                direct.append((own, new))
            elif own_kind is kind:
                if new.__class__ is not kind:
                    return False
                if not plain_rows(own, loc, new, prefix, basic, direct, views, sources, rows):
                    return False
            else:
                view = own[loc]
                if view.dtype is not new.dtype or not view.is_same_size(new):
                    return False
                if not own.is_contiguous():  # expanded, perhaps: writing one row would change them all
                    return False
                views.append(view)
                sources.append(new)
    except (AttributeError, IndexError, TypeError, ValueError):
        return False
    return True


def plan_rows(batch: Batch, loc: Any, value: Batch, path: str, writes: list[tuple[Any, Any]]) -> None:
    """Plan any row write, or raise an error that names the key."""
    kind = batch.__class__
    store, given = batch.__dict__, value.__dict__
    for key in given:
        if key not in store:
            raise KeyError(f"{missing_key(batch, key)} A row assignment cannot add keys.")
    for key, own in store.items():
        new = given.get(key, MISSING)
        if own.__class__ is kind:
            if new is not MISSING and new.__class__ is not kind:
                raise ValueError(f"{path + key!r} is a Batch; wanted a mapping there, found {type(new).__name__}")
            plan_rows(own, loc, from_store(kind, {}) if new is MISSING else new, f"{path}{key}.", writes)
        elif own is not None or not (new is None or is_gap(new, kind)):
            target = leaf.selected_shape(own, loc, repr(path + key))
            if new is None and leaf.is_numeric(own):
                raise TypeError(
                    f"{path + key!r} holds {own.dtype} and cannot hold None; leave the key out to write 0 there"
                )
            if is_gap(new, kind):
                new = np.zeros((), np.bool_) if leaf.is_numeric(own) else None
            writes.append((own, leaf.checked(new, target, own, repr(path + key))))
