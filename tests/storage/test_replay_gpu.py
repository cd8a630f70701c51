"""On a GPU: the same samples as on the CPU, and no call that waits for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from replay_model import COLUMNS, ModelReplay, transition

from striderl.data import tree
from striderl.data.arena import Placement
from striderl.data.specs import TensorSpec
from striderl.storage.replay.replay import Replay
from striderl.storage.replay.samplers import Prioritized, Uniform
from striderl.storage.replay.views import FrameStack, NStep, OneStep, SequenceView

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
VIEWS: list[Any] = [OneStep(), NStep(3, gamma=0.9), FrameStack(3), SequenceView(3, burn_in=1)]


def on_gpu(value: Any) -> Any:
    return value.cuda() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: type(view).__name__)
def test_a_gpu_gives_the_samples_of_the_cpu_without_waiting(view: Any, prioritized: bool) -> None:
    def made(device: str) -> Replay:
        sampler = Prioritized(seed=3) if prioritized else Uniform(seed=3)
        place = Placement(device=device)
        state = {"h": TensorSpec(shape=(1,))}
        return Replay(COLUMNS, 60, 3, placement=place, sampler=sampler, view=view, state=state, episodes=True)

    cpu, gpu, model = made("cpu"), made("cuda"), ModelReplay(3, 20)
    flags = torch.rand(70, 3, 3, generator=torch.Generator().manual_seed(0)) < torch.tensor([0.1, 0.1, 0.9])
    for t in range(70):
        steps = [model.new_step(e, bool(f[0]), bool(f[1]), bool(f[2])) for e, f in enumerate(flags[t])]
        step = transition(steps)
        moved = type(step)(*tree.map(on_gpu, tuple(step)))
        cpu.add(step)
        if t > 2:
            gpu.sample(32)  # builds what is made once
            cpu.sample(32)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            gpu.add(moved)
            one = gpu.sample(32)
            if prioritized:
                gpu.update_priorities(one.handle, one.data["rew"].flatten()[:32])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        two = cpu.sample(32)
        if prioritized:
            cpu.update_priorities(two.handle, two.data["rew"].flatten()[:32])
        assert torch.equal(one.index.cpu(), two.index)
        for (path, left), (_, right) in zip(tree.items(one.data), tree.items(two.data)):
            assert torch.allclose(left.cpu().double(), right.double(), rtol=1e-5, equal_nan=True), path
