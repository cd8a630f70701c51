"""The output of a sampler: nested tuples of [T, B, …] tensors, in the same memory every time.

    Samples
      .agent  AgentSamples   action, prev_action, agent_info          AgentSamplesBsv: and bootstrap_value [1, B]
      .env    EnvSamples     observation, reward, prev_reward, done, env_info, terminated, truncated, valid

    one array    row 0   row 1   row 2   row 3          [T + 1, B, …] with T = 3
    action               a_0     a_1     a_2            action[t] and prev_action[t + 1] are the same memory;
    prev_action  a_-1    a_0     a_1                    likewise reward and prev_reward

After a reset the agent gets zeros as its previous action and reward. Row 0 has them; in the other rows that memory
holds the action that was taken, so `seen_by_agent(samples)` puts the zeros back for a loss that runs the agent again.
An observation with the one component 'obs' is a tensor; others, and infos, are tuples with the components as fields,
nested where names are like 'arm/joints'. Names that cannot be fields ('0', 'my-key') make a dict. No parts: None.

Seeds that are made of one seed and a purpose, so that no two uses of a seed share their random numbers.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from striderl.collect.group import where_env
from striderl.data import tree
from striderl.data.named_tuples import ArrayTuple, NamedArrayTupleSchema, namedarraytuple
from striderl.data.noise import stream_id
from striderl.data.specs import TensorSpec, torch_dtype
from striderl.data.transition import Transition

Samples = namedarraytuple("Samples", ["agent", "env"])
AgentSamples = namedarraytuple("AgentSamples", ["action", "prev_action", "agent_info"])
AgentSamplesBsv = namedarraytuple("AgentSamplesBsv", ["action", "prev_action", "agent_info", "bootstrap_value"])
EnvSamples = namedarraytuple(
    "EnvSamples",
    ["observation", "reward", "prev_reward", "done", "env_info", "terminated", "truncated", "valid"],
)
AgentInputs = namedarraytuple("AgentInputs", ["observation", "prev_action", "prev_reward"])
_METHODS = ("get", "items", "index", "count")


class BatchSpec(NamedTuple):
    """The size of one batch."""

    T: int
    """Time steps."""
    B: int
    """Envs."""

    @property
    def size(self) -> int:
        """Samples in a batch."""
        return self.T * self.B


def named(typename: str, values: Mapping[str, Any]) -> Any:
    """Nest values with names like 'arm/joints' into tuples with named fields; no values give None."""
    if not values:
        return None
    inner: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        first, _, rest = name.partition("/")
        inner.setdefault(first, {})[rest] = value
    parts = {name: found[""] if list(found) == [""] else named(name, found) for name, found in inner.items()}
    if all(name.isidentifier() and not keyword.iskeyword(name) and name not in _METHODS for name in parts) and not any(
        name.startswith("_") for name in parts
    ):
        return NamedArrayTupleSchema(typename, parts)(*parts.values())
    return parts


def named_observation(values: Mapping[str, Any]) -> Any:
    """Return the one value named 'obs' itself, or nest several by their names."""
    return values["obs"] if list(values) == ["obs"] else named("Observation", values)


def flat(nested: Any, alone: str = "obs") -> dict[str, Any]:
    """Return the leaves of a nested structure by their joined names; a structure that is one leaf gets a name."""
    return {path or alone: leaf for path, leaf in tree.items(nested)}


def make_samples(
    *,
    num_steps: int,
    num_envs: int,
    observation: Any,
    action: TensorSpec,
    agent_info: Any,
    env_info: Any,
    bootstrap_value: bool,
    device: torch.device,
) -> ArrayTuple:
    """Allocate `Samples` of zeros; observation and infos are nested `TensorSpec`s, or None."""

    def zeros(spec: TensorSpec, rows: int = num_steps) -> Tensor:
        return torch.zeros((rows, num_envs, *spec.shape), dtype=torch_dtype(spec.dtype), device=device)

    flag = TensorSpec(dtype="bool")
    actions, rewards = zeros(action, num_steps + 1), zeros(TensorSpec(), num_steps + 1)
    agent: Any = AgentSamples(actions[1:], actions[:-1], tree.map(zeros, agent_info))
    if bootstrap_value:
        agent = AgentSamplesBsv(*agent, zeros(TensorSpec(), 1))
    env = EnvSamples(
        observation=tree.map(zeros, observation),
        reward=rewards[1:],
        prev_reward=rewards[:-1],
        done=zeros(flag),
        env_info=tree.map(zeros, env_info),
        terminated=zeros(flag),
        truncated=zeros(flag),
        valid=zeros(flag),
    )
    return Samples(agent, env)


def valid_from_done(done: Tensor) -> Tensor:
    """Return 1 up to and including the first done of each column, 0 after it; float32 [T, …]."""
    ended = done.float().cumsum(0).clamp(max=1.0)
    return 1.0 - torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])


def seen_by_agent(samples: ArrayTuple) -> ArrayTuple:
    """Return `AgentInputs` [T, B, …] as the agent saw them: zeros as previous action and reward after a reset."""
    done = samples.env.done
    after_reset = torch.cat([torch.zeros_like(done[:1]), done[:-1]])

    def nulled(value: Tensor) -> Tensor:
        return value.masked_fill(after_reset.view(*done.shape, *[1] * (value.ndim - 2)), 0)

    return AgentInputs(samples.env.observation, nulled(samples.agent.prev_action), nulled(samples.env.prev_reward))


class SampleStorage:
    """Writes the collector's transitions into `Samples`, batch after batch into the same memory."""

    balanced = True
    """Every env must have the same number of steps."""

    def __init__(self, samples: ArrayTuple, *, wait_reset: bool, keep_finals: bool) -> None:
        """Write into these samples, which hold tensors; `keep_finals` is needed for `final`."""
        self.samples = samples
        self.wait_reset, self.keep_finals = wait_reset, keep_finals
        self.num_steps, self.num_envs = samples.env.reward.shape
        agent, env = samples.agent, samples.env
        for now, before in ((agent.action, agent.prev_action), (env.reward, env.prev_reward)):
            if self.num_steps > 1 and before[1:].data_ptr() != now.data_ptr():
                raise ValueError("samples want action[t] and prev_action[t + 1], like rewards, to be the same memory")
        self._columns: dict[str, dict[str, Tensor]] = {
            "obs": flat(env.observation),
            "info": flat(env.env_info),
            "policy": flat(agent.agent_info, "agent_info"),
            "": {"act": agent.action, "rew": env.reward, "done": env.done, "valid": env.valid}
            | {"terminated": env.terminated, "truncated": env.truncated},
        }
        self.begin()

    def begin(self) -> None:
        """Start a batch."""
        self._cursors = [0] * self.num_envs
        self._ended = torch.zeros_like(self.samples.env.done[0])
        self._finals: dict[int, list[tuple[slice, dict[str, Tensor]]]] = {}
        self.last: dict[int, Transition] = {}
        """The last transition of each group of envs, by the group's first row."""

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Write the next step of these envs."""
        envs = slice(0, self.num_envs) if envs is None else envs
        step = self._cursors[envs.start]
        if step == 0:
            self.samples.agent.prev_action[0, envs] = transition.obs["prev_action"]
            self.samples.env.prev_reward[0, envs] = transition.obs["prev_reward"]
        row = {
            "obs": transition.obs,
            "info": flat(transition.info),
            "policy": flat(transition.policy),
            "": {"act": transition.act, "rew": transition.rew, "done": transition.done, "valid": transition.valid}
            | {"terminated": transition.terminated, "truncated": transition.truncated},
        }
        if self.wait_reset:
            row = self._blanked(row, transition, envs)
        for part, columns in self._columns.items():
            _write(columns, (step, envs), row[part], part)
        if self.keep_finals and transition.final_obs is not None:
            self._finals.setdefault(step, []).append((envs, transition.final_obs))
        self.last[envs.start] = transition
        self._cursors[envs] = [step + 1] * (envs.stop - envs.start)

    def _blanked(self, row: dict[str, Any], transition: Transition, envs: slice) -> dict[str, Any]:
        """Zero what the collector leaves of envs that wait for their reset: infos, and how a hidden episode ended."""
        waiting = self._ended[envs].clone()
        self._ended[envs] |= transition.done
        infos = {part: row[part] for part in ("info", "policy")}
        infos = where_env(waiting, tree.map(torch.zeros_like, infos), infos)
        return {**row, **infos, "": {**row[""], "truncated": transition.truncated & ~waiting}}

    def final(self, step: int, env: int) -> Any:
        """Return the observation in which an env ended in a step, as arrays; None when the env gives none."""
        for envs, final_obs in self._finals.get(step, []):
            if envs.start <= env < envs.stop:
                components = flat(self.samples.env.observation)
                return tree.to_numpy(
                    named_observation({name: final_obs[name][env - envs.start] for name in components})
                )
        return None


def _write(columns: Mapping[str, Tensor], loc: tuple[int, slice], values: Mapping[str, Any], part: str) -> None:
    targets, sources = [], []
    for name, column in columns.items():
        if name not in values:
            raise KeyError(f"the samples have a place for {part} {name!r}, this step has {sorted(values)}")
        target, source = column[loc], values[name]
        if source.shape != target.shape:
            raise ValueError(
                f"the samples want {part} {name!r} as {list(target.shape)}, this step has {list(source.shape)}"
            )
        targets.append(target)
        sources.append(source)
    if targets:
        torch._foreach_copy_(targets, sources)


# -- seeds -------------------------------------------------------------------------------------------------------------


def derived_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Return the seed for a purpose, and for an iteration or rank of it: 31 bits, which every env accepts."""
    sequence = np.random.SeedSequence([seed, stream_id(purpose), *numbers])
    return int(sequence.generate_state(1)[0] >> 1)


def fresh_seed() -> int:
    """Return a seed from the operating system's randomness."""
    return int(np.random.SeedSequence().generate_state(1)[0] >> 1)
