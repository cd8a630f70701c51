"""rlpyt's functions on tensors: leading dimensions, masks, returns, minibatch indexes, target weights, seeds.

    observation [T, B, 4] or [B, 4] or [4]
      lead_dim, T, B, shape = infer_leading_dims(observation, 1)        2, T, B   or   1, 1, B   or   0, 1, 1
      q = layers(observation.reshape(T * B, *shape))                    [T * B, n]
      q = restore_leading_dims(q, lead_dim, T, B)                       [T, B, n] or [B, n] or [n]

Functions on rewards are time-major: [T], [T, B], … as tensors or arrays; `return_dest` and the like are written in
place when they are given.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from striderl.collect.samplers.samples import fresh_seed
from striderl.collect.samplers.samples import valid_from_done as valid_from_done

# -- leading dimensions ------------------------------------------------------------------------------------------------


def infer_leading_dims(tensor: Tensor, dim: int) -> tuple[int, int, int, torch.Size]:
    """Return (number of leading dimensions, T, B, shape of the data), where the data has `dim` dimensions."""
    lead_dim = tensor.dim() - dim
    if lead_dim not in (0, 1, 2):
        raise ValueError(f"wanted [T, B], [B] or nothing before data of {dim} dimensions, found {list(tensor.shape)}")
    shape = tensor.shape[lead_dim:]
    lead = (1, 1, *tensor.shape[:lead_dim])[-2:]
    return lead_dim, lead[0], lead[1], shape


def restore_leading_dims(tensors: Any, lead_dim: int, T: int = 1, B: int = 1) -> Any:
    """Return [T * B, …] tensors, one or several, as [T, B, …], [B, …] or […]."""
    if isinstance(tensors, (tuple, list)):
        return tuple(restore_leading_dims(each, lead_dim, T, B) for each in tensors)
    if lead_dim == 2:
        return tensors.reshape(T, B, *tensors.shape[1:])
    if lead_dim == 0 and tensors.shape[0] != 1:
        raise ValueError(f"restore_leading_dims wants one row for data without leading dimensions, found {B}")
    return tensors.squeeze(0) if lead_dim == 0 else tensors


def select_at_indexes(indexes: Tensor, tensor: Tensor) -> Tensor:
    """Return tensor[…, indexes[…], …]: one entry per index, of the dimension that follows the leading ones."""
    dim = indexes.dim()
    if indexes.shape != tensor.shape[:dim]:
        raise ValueError(
            f"select_at_indexes wants the same leading dimensions, found {list(indexes.shape)} for {list(tensor.shape)}"
        )
    index = indexes.long().reshape(*indexes.shape, *[1] * (tensor.dim() - dim))
    return tensor.gather(dim, index.expand(*indexes.shape, 1, *tensor.shape[dim + 1 :])).squeeze(dim)


def to_onehot(indexes: Tensor, num: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return whole numbers [...] as one-hot rows [..., num], in the dtype of the indexes unless another is given."""
    onehot = torch.zeros(*indexes.shape, num, dtype=dtype or indexes.dtype, device=indexes.device)
    return onehot.scatter_(-1, indexes.unsqueeze(-1).long(), 1)


def from_onehot(onehot: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """Return the index of the largest entry along a dimension."""
    indexes = onehot.argmax(dim)
    return indexes if dtype is None else indexes.to(dtype)


def valid_mean(tensor: Tensor, valid: Tensor | None = None, dim: int | None = None) -> Tensor:
    """Return the mean over the entries that count, of all or along a dimension; 0 where none does."""
    over = () if dim is None else dim
    if valid is None:
        return tensor.mean(dim=over)
    counts = valid.to(tensor.dtype)
    # `where`: an entry that does not count may be NaN
    kept = torch.where(counts > 0, tensor, torch.zeros_like(tensor))
    return (kept * counts).sum(dim=over) / counts.sum(dim=over).clamp(min=1e-8)


# -- the same for arrays -----------------------------------------------------------------------------------------------


def array_select_at_indexes(indexes: Any, array: Any) -> Any:
    """Return array[…, indexes[…], …]; rlpyt's `utils.array.select_at_indexes`."""
    return select_at_indexes(torch.as_tensor(indexes), torch.as_tensor(array)).numpy()


def array_to_onehot(indexes: Any, dim: int, dtype: Any = None) -> Any:
    """Return whole numbers [...] as one-hot rows [..., dim], in the dtype of the indexes unless another is given."""
    onehot = to_onehot(torch.as_tensor(indexes), dim).numpy()
    return onehot if dtype is None else onehot.astype(dtype)


def array_from_onehot(onehot: Any, dtype: Any = None) -> Any:
    """Return the index of the largest entry of rows."""
    indexes = np.argmax(onehot, axis=-1)
    return indexes if dtype is None else indexes.astype(dtype)


def array_valid_mean(array: Any, valid: Any = None, axis: Any = None) -> Any:
    """Return the mean over the entries that count, of all or along an axis."""
    if valid is None:
        return np.mean(array, axis=axis)
    counts = np.asarray(valid, array.dtype)
    return (array * counts).sum(axis=axis) / counts.sum(axis=axis)


def array_infer_leading_dims(array: Any, dim: int) -> tuple[int, int, int, tuple[int, ...]]:
    """Return (number of leading dimensions, T, B, shape of the data), where the data has `dim` dimensions."""
    lead_dim, T, B, shape = infer_leading_dims(torch.as_tensor(array), dim)
    return lead_dim, T, B, tuple(shape)


# -- returns -----------------------------------------------------------------------------------------------------------


def _alive(done: Any, like: Any) -> Any:
    return 1 - (done.to(like.dtype) if isinstance(done, Tensor) else np.asarray(done, like.dtype))


def _zeros(shape: Sequence[int], like: Any) -> Any:
    return like.new_zeros(tuple(shape)) if isinstance(like, Tensor) else np.zeros(tuple(shape), like.dtype)


def discount_return(
    reward: Any, done: Any, bootstrap_value: Any, discount: float, return_dest: Any = None, *, late: Any = None
) -> Any:
    """Return r_t + γ r_{t+1} + …, up to the end of an episode or of the batch, where the bootstrap value follows.

    `late` is (timeout, value): where the clock ended an episode before the last step, its value is its return.
    """
    return_ = _zeros(reward.shape, reward) if return_dest is None else return_dest
    alive = _alive(done, reward)
    following = bootstrap_value[0] if np.ndim(bootstrap_value) == np.ndim(reward) else bootstrap_value
    for t in reversed(range(len(reward))):
        return_[t] = reward[t] + discount * following * alive[t]
        if late is not None and t < len(reward) - 1:
            return_[t][late[0][t]] = late[1][t][late[0][t]]
        following = return_[t]
    return return_


def discount_return_tl(
    reward: Any, done: Any, bootstrap_value: Any, discount: float, timeout: Any, value: Any, return_dest: Any = None
) -> Any:
    """Return the same where `timeout`, bool, marks ends by the clock; leave these steps out of losses."""
    _require_ended(done, timeout)
    return discount_return(reward, done, bootstrap_value, discount, return_dest, late=(timeout, value))


def _require_ended(done: Any, timeout: Any) -> None:
    if not bool(done[timeout].all()):
        raise ValueError("timeout marks steps that end an episode; some of them are not done")


def generalized_advantage_estimation(
    reward: Any,
    value: Any,
    done: Any,
    bootstrap_value: Any,
    discount: float,
    gae_lambda: float,
    advantage_dest: Any = None,
    return_dest: Any = None,
    *,
    timeout: Any = None,
) -> tuple[Any, Any]:
    """Return (advantage, return_): in this order, the opposite of `striderl.ops.returns.gae`.

    Before a step with `timeout` the value of that step takes the place of what follows.
    """
    advantage = _zeros(reward.shape, reward) if advantage_dest is None else advantage_dest
    return_ = _zeros(reward.shape, reward) if return_dest is None else return_dest
    alive = _alive(done, reward)
    next_value = bootstrap_value[0] if np.ndim(bootstrap_value) == np.ndim(reward) else bootstrap_value
    carried: Any = 0.0
    for t in reversed(range(len(reward))):
        delta = reward[t] + discount * next_value * alive[t] - value[t]
        advantage[t] = delta + discount * gae_lambda * alive[t] * carried
        if timeout is not None and t < len(reward) - 1:
            late = timeout[t + 1]
            advantage[t][late] = (reward[t] + discount * next_value - value[t])[late]
        carried, next_value = advantage[t], value[t]
    return_[:] = advantage + value
    return advantage, return_


def generalized_advantage_estimation_tl(
    reward: Any,
    value: Any,
    done: Any,
    bootstrap_value: Any,
    discount: float,
    gae_lambda: float,
    timeout: Any,
    advantage_dest: Any = None,
    return_dest: Any = None,
) -> tuple[Any, Any]:
    """Return the same where `timeout`, bool, marks ends by the clock; leave these steps out of losses."""
    _require_ended(done, timeout)
    found = (reward, value, done, bootstrap_value, discount, gae_lambda, advantage_dest, return_dest)
    return generalized_advantage_estimation(*found, timeout=timeout)


def discount_return_n_step(
    reward: Any,
    done: Any,
    n_step: int,
    discount: float,
    return_dest: Any = None,
    done_n_dest: Any = None,
    do_truncated: bool = False,
) -> tuple[Any, Any]:
    """Return (r_t + … + γ^(n-1) r_{t+n-1}, whether an episode ended among these steps).

    Only for the steps with n rewards, the first T - n + 1; with `do_truncated` for all, with fewer rewards at the end.
    """
    length = len(reward) if do_truncated else len(reward) - n_step + 1
    if length < 1:
        raise ValueError(f"{n_step}-step returns want at least {n_step} rewards, found {len(reward)}")
    return_ = _zeros((length, *reward.shape[1:]), reward) if return_dest is None else return_dest
    done_n = _zeros((length, *done.shape[1:]), done) if done_n_dest is None else done_n_dest
    return_[:] = reward[:length]
    ended = 1 - _alive(done[:length], reward)
    for n in range(1, min(n_step, len(reward))):
        count = min(length, len(reward) - n)
        return_[:count] = return_[:count] + discount**n * reward[n : n + count] * (1 - ended[:count])
        late = 1 - _alive(done[n : n + count], reward)
        ended[:count] = ended[:count] + late * (1 - ended[:count])
    done_n[:] = ended.to(done.dtype) if isinstance(ended, Tensor) else ended.astype(done.dtype)
    return return_, done_n


# -- arrays, indexes, seeds --------------------------------------------------------------------------------------------


def zeros(shape: Sequence[int], dtype: Any) -> Any:
    """Return zeros as a tensor for a dtype of torch, and as an array for one of numpy."""
    return torch.zeros(*shape, dtype=dtype) if isinstance(dtype, torch.dtype) else np.zeros(tuple(shape), dtype)


def empty(shape: Sequence[int], dtype: Any) -> Any:
    """Return memory that is not written yet, as a tensor or an array, likewise."""
    return torch.empty(*shape, dtype=dtype) if isinstance(dtype, torch.dtype) else np.empty(tuple(shape), dtype)


def iterate_mb_idxs(data_length: int, minibatch_size: int, shuffle: bool = False) -> Iterator[Any]:
    """Yield the indexes of minibatches of one size; what is left at the end is dropped. Slices unless shuffled."""
    if not 1 <= minibatch_size <= data_length:
        raise ValueError(f"a minibatch has 1 to {data_length} samples here, found {minibatch_size}")
    order = torch.randperm(data_length).numpy() if shuffle else None
    for start in range(0, data_length - minibatch_size + 1, minibatch_size):
        part = slice(start, start + minibatch_size)
        yield part if order is None else order[part]


def extract_sequences(array_or_tensor: Any, T_idxs: Any, B_idxs: Any, T: int) -> Any:
    """Return sequences [T, len(B_idxs), …] of a ring [size, B, …] that start at these rows; rows wrap at both ends."""
    rows = (np.asarray(T_idxs)[None, :] + np.arange(T)[:, None]) % len(array_or_tensor)
    return array_or_tensor[rows, np.asarray(B_idxs)[None, :]]


def save__init__args(
    values: Mapping[str, Any], underscore: bool = False, overwrite: bool = False, subclass_only: bool = False
) -> None:
    """Set the arguments of a constructor as attributes: `save__init__args(locals())` as a statement of `__init__`."""
    owner = values["self"]
    kinds = type(owner).mro()[: 1 if subclass_only else None]
    for kind in kinds:
        if "__init__" not in vars(kind) or kind is object:
            continue
        for name in inspect.signature(vars(kind)["__init__"]).parameters:
            attribute = f"_{name}" if underscore else name
            if name != "self" and name in values and (overwrite or not hasattr(owner, attribute)):
                setattr(owner, attribute, values[name])


def set_seed(seed: int) -> None:
    """Seed the random numbers of Python, numpy and torch; the agents of this package draw from torch's."""
    _last_seed["seed"] = seed
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def get_seed() -> int | None:
    """Return the seed of the last `set_seed`; None before it."""
    return _last_seed.get("seed")


_last_seed: dict[str, int] = {}


def set_envs_seeds(envs: Sequence[Any], seed: int | None) -> None:
    """Seed envs and their spaces, each with another seed, where they can be seeded."""
    for number, env in enumerate(envs if seed is not None else ()):
        for part in (env, getattr(env, "action_space", None), getattr(env, "observation_space", None)):
            if hasattr(part, "seed"):
                part.seed(seed + number)


def make_seed() -> int:
    """Return a seed from the operating system's randomness."""
    return fresh_seed()


# -- weights -----------------------------------------------------------------------------------------------------------


def strip_ddp_state_dict(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights without the 'module.' that DistributedDataParallel puts before every name."""
    return {name.removeprefix("module."): value for name, value in state_dict.items()}


@torch.no_grad()
def update_state_dict(model: nn.Module, state_dict: Mapping[str, Any], tau: float = 1, strip_ddp: bool = True) -> None:
    """Move a model's weights to others: tau · new + (1 - tau) · old; whole numbers, such as counts, are copied."""
    if strip_ddp:
        state_dict = strip_ddp_state_dict(state_dict)
    if tau == 1:
        model.load_state_dict(state_dict)
        return
    for name, old in model.state_dict().items():
        new = state_dict[name].to(old.device)
        old.copy_(torch.lerp(old, new, tau) if old.is_floating_point() else new)


class AttrDict(dict[str, Any]):
    """A dict whose entries are attributes as well."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__ = self

    def copy(self) -> AttrDict:
        """Return a copy; what it holds is shared."""
        return type(self)(**self)
