"""Every code block of the documents that describe rlpyt, the generator design and Tianshou, executed as it is written.

    blocks of a document ─▶ statements and what is printed after them ─▶ run in order, in one namespace per document

Names of the original's package are replaced by those of the facade, and a preamble gives the names that a document
takes as known. A block that no program can run has its reason in `PSEUDO`; what is printed otherwise on purpose is in
`PRINTED`.
The documents lie beside the checkout; where they do not, there is nothing to run.
"""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import os
import re
import sys
import textwrap
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from striderl.compat import generator
from striderl.compat.rlpyt import AgentInputs, CategoricalPgAgent, EnvSpaces, FloatBox, IntBox
from striderl.compat.tianshou.data import Batch, ReplayBuffer
from striderl.compat.tianshou.policy import BasePolicy, DQNPolicy

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("STRIDERL_DOCUMENTS", ROOT.parent / "shared" / "reference" / "seeds"))
PSEUDO = {
    "s = env.reset()\nbuffer = Buffer(size=10000)": "training without Tianshou: compute_2_step_return is left open",
    "# pseudocode, cannot work": "its first line; each line is run by test_tianshou_collector.py::test_the_pseudocode",
}
"""The start of a block, and why no program can run it."""
PRINTED = {
    "print(data)": "a number is a 0-d array, as in every release since 0.2.5: a: array(4)",
    "buf.obs": "the dtype of what is added is kept: integers are printed without a point",
    "buf2.obs": "likewise",
    "buf.update(buf2)": "update returns the indices that were written; the document shows buf.obs",
    "print(buf)": "likewise; obs comes first, done is printed as booleans, and terminated and truncated beside it",
    "print(buf.get(index, 'obs').id)": "likewise",
    "print(buf[:].obs_next.id)": "likewise",
}
"""A statement whose printed result differs on purpose."""
OTHER_NUMBERS = ("buf.update(buf2)", "print(buf)")
"""Those of them that print other numbers too; all others print the document's."""


def document(number: str) -> str:
    found = sorted(FOLDER.glob(f"{number}_*.txt"))
    if not found:
        pytest.skip(f"the documents are not in {FOLDER}")
    return found[0].read_text()


def fenced(text: str) -> list[str]:
    """Return the blocks between fences of Markdown."""
    return [textwrap.dedent(block) for block in re.findall(r"^ *```python[^\n]*\n(.*?)^ *```", text, re.M | re.S)]


def indented(text: str) -> list[str]:
    """Return the blocks after a line of `::` in reStructuredText."""
    blocks = re.findall(r"^::\n\n((?:    [^\n]*\n|\s*\n)+)", text, re.M)
    return [textwrap.dedent(block).strip() + "\n" for block in blocks]


def reason(block: str) -> str | None:
    return next((why for start, why in PSEUDO.items() if block.startswith(start)), None)


# -- rlpyt -------------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """Probabilities and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, observation: Any, prev_action: Any, prev_reward: Any) -> Any:
        out = self.layer(observation)
        return out[..., :2].softmax(-1), out[..., 2]


def test_the_blocks_of_rlpyt() -> None:
    blocks = fenced(document("001"))
    assert len(blocks) == 2
    agent = CategoricalPgAgent(Layer)
    agent.initialize(EnvSpaces(FloatBox(-1, 1, (3,)), IntBox(0, 2)))
    inputs = AgentInputs(torch.zeros(5, 3), torch.zeros(5, dtype=torch.long), torch.zeros(5))
    names: dict[str, Any] = {"self": SimpleNamespace(agent=agent), "agent_inputs": inputs}
    exec("from collections import namedtuple", names)
    for block in blocks:
        exec(block, names)
    from striderl.compat.rlpyt.agents.pg.base import AgentTrain
    from striderl.compat.rlpyt.algos.pg.base import OptInfo

    assert names["OptInfo"]._fields == OptInfo._fields and names["AgentTrain"]._fields == AgentTrain._fields
    assert names["value"].shape == (5,) and names["value"].requires_grad
    assert names["dist"].entropy(names["dist_info"]).shape == (5,)


# -- the generator design ----------------------------------------------------------------------------------------------


def test_the_block_of_the_generator_design() -> None:
    (block,) = fenced(document("002"))
    names: dict[str, Any] = {"nn": nn, "torch": torch, "np": np, "Optional": Optional, "Any": Any, "__name__": "block"}
    names |= {"Generator": Generator, "BufferSamples": generator.BufferSamples}
    exec(block, names)  # the program at its end is for bodies: those of the document are comments
    for kind in ("Model", "Algorithm", "Agent", "Trainer"):
        theirs = {name for name, value in vars(names[kind]).items() if inspect.isfunction(value)}
        missing = {name for name in theirs if not hasattr(getattr(generator, kind, nn.Module), name)}
        assert kind == "Model" or not missing, (kind, missing)
    assert isinstance(names["Trainer"](), names["Trainer"])
    with pytest.raises(TypeError, match="NoneType"):
        exec(block, {**names, "__name__": "__main__"})


# -- Tianshou ----------------------------------------------------------------------------------------------------------


class OldGym:
    """A Gymnasium env with the results of older Gym, as the document's loop takes them."""

    def __init__(self) -> None:
        self.env = gymnasium.make("CartPole-v1")

    def reset(self) -> Any:
        return self.env.reset(seed=0)[0]

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, info


class Table(nn.Module):
    """Q-values of observations."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
        return self.layer(torch.as_tensor(np.asarray(obs), dtype=torch.float32)), state


def numbers(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"(?<![\w.])-?\d+\.?\d*", text)]


def faults(block: str, names: dict[str, Any]) -> list[str]:
    """Run the examples of a block; return those that print something else than the document."""
    block = re.sub(r"^# .*\n", "", block, flags=re.M)  # remarks among what is printed
    checker, wrong = doctest.OutputChecker(), []
    for example in doctest.DocTestParser().get_examples(block):
        source = example.source
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(source, "block", "single"), names)
        text = printed.getvalue()
        key = source.partition("#")[0].strip()
        if not example.want or checker.check_output(example.want, text, doctest.NORMALIZE_WHITESPACE):
            continue
        if key not in PRINTED or (key not in OTHER_NUMBERS and sorted(numbers(example.want)) != sorted(numbers(text))):
            wrong.append(f"{key}\nwanted {example.want}\nfound {text}")
    return wrong


def test_the_blocks_of_tianshou(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the document writes buf.pkl
    monkeypatch.setattr(sys, "displayhook", lambda value: None if value is None else sys.stdout.write(f"{value!r}\n"))
    blocks = [block.replace("tianshou.", "striderl.compat.tianshou.") for block in indented(document("003"))]
    assert len(blocks) == 7 and sum(reason(block) is not None for block in blocks) == 2
    policy = DQNPolicy(Table(), None, 0.9)
    names: dict[str, Any] = {"env": OldGym(), "policy": policy.eval(), "Batch": Batch, "BasePolicy": BasePolicy}
    for block in blocks:
        if reason(block) is not None:
            continue
        if block.startswith(">>>"):
            assert faults(block, names) == []
        else:
            exec(block, names)
    assert names["done"] and isinstance(names["obs"], np.ndarray)  # the loop of one episode went to its end
    assert np.asarray(names["buf"].obs.id).tolist() == [9, 10, 11, 12, 13, 14, 15, 7, 8]

    assert names["buf"].done.astype(int).tolist() == [0, 1, 0, 0, 0, 0, 1, 0, 0]

    class Mine(names["DQN_2step"]):  # type: ignore[misc,name-defined]
        _gamma = 0.9

        def forward(self, batch: Batch, state: Any = None, eps: float = 0) -> Any:
            """Return what the block takes for Q-values: `max` of a dimension is an array."""
            return SimpleNamespace(max=lambda dim: np.full(len(batch.obs), 10.0))

        def learn(self, batch: Batch, **kwargs: Any) -> dict[str, Any]:
            return {}

    buffer = ReplayBuffer(size=6)
    for step in range(6):
        buffer.add(obs=np.zeros(4), act=0, rew=float(step), done=False, obs_next=np.zeros(4), info={})
    batch, indice = buffer.sample(0)
    # the first: 0 + 0.9 * 1 + 0.81 * 10 = 9
    found = Mine().process_fn(batch, buffer, indice).returns
    assert found[indice.tolist().index(0)] == pytest.approx(9.0)
