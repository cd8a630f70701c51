"""rlpyt's runners over several processors: sampling beside learning, and learning in several processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from striderl.compat.rlpyt.agents.dqn.dqn_agent import DqnAgent
from striderl.compat.rlpyt.agents.qpg.sac_v_agent import SacAgent as SacVAgent
from striderl.compat.rlpyt.algos.dqn.dqn import DQN
from striderl.compat.rlpyt.algos.qpg.sac_v import SAC_V
from striderl.compat.rlpyt.envs.gym import make as gym_make
from striderl.compat.rlpyt.replays.non_sequence.uniform import AsyncUniformReplayBuffer, UniformReplayBuffer
from striderl.compat.rlpyt.runners.async_rl import AsyncRl, AsyncRlEval
from striderl.compat.rlpyt.runners.minibatch_rl import MinibatchRl
from striderl.compat.rlpyt.runners.sync_rl import SyncRl, SyncRlEval
from striderl.compat.rlpyt.samplers.async_.serial_sampler import AsyncSerialSampler
from striderl.compat.rlpyt.samplers.serial.sampler import SerialSampler
from striderl.compat.rlpyt.utils.collections import AttrDict
from striderl.compat.rlpyt.utils.logging.context import logger_context
from striderl.compat.rlpyt.utils.seed import set_seed
from torch import nn

AFFINITY = AttrDict(sampler={}, optimizer=[{"cuda_idx": None}])


class Q(nn.Module):
    """One layer of Q-values."""

    def __init__(self, observation_shape: tuple[int, ...], output_size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(observation_shape[0], output_size)

    def forward(self, observation, prev_action, prev_reward):  # type: ignore[no-untyped-def]
        return self.layer(observation)


def settings(**more: object) -> dict[str, object]:
    made = {"EnvCls": gym_make, "env_kwargs": {"id": "CartPole-v1"}, "batch_T": 4, "batch_B": 2}
    return {**made, "max_decorrelation_steps": 0, **more}


EVAL = {"eval_n_envs": 1, "eval_max_steps": 60, "eval_max_trajectories": 2}


def dqn(**more: object) -> DQN:
    return DQN(**{"batch_size": 8, "min_steps_learn": 16, "replay_size": 500, "replay_ratio": 2, **more})


class Watched(DqnAgent):
    """Notes how often weights are sent and taken up."""

    sent = 0

    def send_shared_memory(self) -> None:
        super().send_shared_memory()
        self.sent += 1


# -- sampling beside learning ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_async_rl_learns_beside_its_sampler() -> None:
    algo, agent, sampler = dqn(), Watched(Q), AsyncSerialSampler(**settings())
    before: dict[str, torch.Tensor] = {}

    class Runner(AsyncRl):
        def launch_workers(self, *args: object) -> None:
            before.update({name: value.clone() for name, value in self.agent.model.state_dict().items()})
            super().launch_workers(*args)

    runner = Runner(algo, agent, sampler, n_steps=1600, affinity=AFFINITY, seed=0, log_interval_steps=800)
    runner.train()
    last = runner.diagnostics[-1]
    assert runner.n_itr == 200 and last["SamplerIteration"] == 199 and last["CumSteps"] == 199 * 8
    assert 0 < last["CumUpdates"] == algo.update_counter == agent.sent
    # the optimiser waits for the sampler: 16 samples first, then batch_size / replay_ratio = 4 per update
    assert (algo.update_counter - 1) * 4 <= last["CumSteps"]
    assert sampler.agent is not agent and sampler.agent.model is not agent.model
    sampler.agent.recv_shared_memory()
    for name, value in agent.model.state_dict().items():
        assert not torch.equal(value, before[name])
        assert torch.equal(sampler.agent.model.state_dict()[name], value)
    assert len(algo.replay_buffer) == 500  # what was sampled is in the replay, in the order of time
    assert {"ReplayRatio", "OptThrottle", "NewCompletedTrajs", "StepsInTrajWindow"} <= set(last)


def test_async_rl_eval_evaluates_with_new_weights_at_every_log(tmp_path: Path) -> None:
    algo = dqn(prioritized_replay=True)
    runner = AsyncRlEval(
        algo, DqnAgent(Q), AsyncSerialSampler(**settings(**EVAL)), 64, AFFINITY, seed=0, log_interval_steps=32
    )
    with logger_context(tmp_path, 0, "async", snapshot_mode="last"):
        runner.train()
    rows = runner.diagnostics
    assert rows[0]["CumSteps"] == 0 and rows[0]["TrajsInEval"] >= 1 and "NonEvalSamplesPerSecond" in rows[-1]
    state = torch.load(tmp_path / "run_0" / "params.pkl", weights_only=False)
    assert {"itr", "sampler_itr", "cum_steps", "cum_updates", "agent_state_dict", "optimizer_state_dict"} == set(state)


def test_an_error_of_the_sampler_ends_the_run() -> None:
    class Broken(AsyncSerialSampler):
        def obtain_samples(self, itr: int, db_idx: int):  # type: ignore[no-untyped-def]
            if itr == 3:
                raise ArithmeticError("the env broke")
            return super().obtain_samples(itr, db_idx)

    runner = AsyncRl(dqn(), DqnAgent(Q), Broken(**settings()), n_steps=8000, affinity=AFFINITY, seed=0)
    with pytest.raises(ArithmeticError, match="the env broke"):
        runner.train()


def test_what_async_rl_cannot_run_is_refused() -> None:
    parts = dqn(ReplayBufferCls=UniformReplayBuffer), DqnAgent(Q), AsyncSerialSampler(**settings())
    with pytest.raises(TypeError, match="derive it from AsyncReplayBufferMixin"):
        AsyncRl(*parts, n_steps=80, affinity=AFFINITY).train()
    with pytest.raises(TypeError, match="wants affinity with 'sampler' and 'optimizer'"):
        AsyncRl(*parts, n_steps=80, affinity={})
    with pytest.raises(ValueError, match="learns in one process"):
        AsyncRl(*parts, n_steps=80, affinity={"sampler": {}, "optimizer": [{}, {}]})
    assert AsyncUniformReplayBuffer.async_ and not UniformReplayBuffer.async_


# -- several processes -------------------------------------------------------------------------------------------------


class Written(DqnAgent):
    """Writes its weights and its steps to a folder when it is evaluated or the run ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Q)
        self.folder = folder

    def train_mode(self, itr: int) -> None:
        super().train_mode(itr)
        weights = {name: value.tolist() for name, value in self.model.state_dict().items()}
        (self.folder / f"{os.getpid()}.json").write_text(json.dumps([itr, weights]))


@pytest.mark.parametrize("kind", [SyncRl, SyncRlEval])
def test_sync_rl_learns_the_same_in_all_processes(kind: type[SyncRl], tmp_path: Path) -> None:
    sampler = SerialSampler(**settings(**(EVAL if kind is SyncRlEval else {})))
    runner = kind(dqn(), Written(tmp_path), sampler, n_steps=160, seed=0, affinity=[{}, {}], log_interval_steps=80)
    runner.train()
    seen = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert len(seen) == 2 and seen[0] == seen[1] and seen[0][0] == runner.n_itr - 1
    # 160 steps are 10 iterations of 2 processes with 8 samples each
    assert runner.n_itr == 10 and runner.diagnostics[-1]["CumSteps"] == 160
    assert all(process.exitcode == 0 for process in runner.workers)
    assert not torch.distributed.is_initialized()


def test_sync_rl_wants_a_list_and_minibatch_rl_one_dict() -> None:
    parts = dqn(), DqnAgent(Q), SerialSampler(**settings())
    with pytest.raises(TypeError, match="a list with one dict per process"):
        SyncRl(*parts, n_steps=80, affinity={}).train()
    with pytest.raises(TypeError, match="a list of them is for SyncRl"):
        MinibatchRl(*parts, n_steps=80, affinity=[{}, {}]).train()


# -- further -----------------------------------------------------------------------------------------------------------


def test_sac_with_a_model_of_v() -> None:
    sampler = SerialSampler(**settings(env_kwargs={"id": "Pendulum-v1"}))
    algo = SAC_V(batch_size=8, min_steps_learn=16, replay_size=200, replay_ratio=4)
    agent = SacVAgent(**{f"{name}model_kwargs": {"hidden_sizes": [8]} for name in ("", "q_", "v_")})
    runner = MinibatchRl(algo, agent, sampler, n_steps=48, seed=0, log_interval_steps=48)
    runner.train()
    assert {"vLossAverage", "vGradNormAverage", "qMeanDiffAverage"} <= set(runner.diagnostics[-1])
    batch = algo.replay_buffer.sample_batch(8)
    torch.manual_seed(0)
    (q1_loss, _, v_loss, _), (q1, _, v, _, _) = algo.loss(batch)
    # Q learns r + γ V'(s'), V learns min Q(s, a') - log π(a'), by hand
    with torch.no_grad():
        y = batch.return_ + 0.99 * (1 - batch.done_n.float()) * agent.target_v(*batch.target_inputs)
        torch.manual_seed(0)
        action, log_pi, _ = agent.pi(*batch.agent_inputs)
        target = torch.min(*agent.q(*batch.agent_inputs, action)) - log_pi
    kept = 1 - batch.timeout_n.float()
    torch.testing.assert_close(q1_loss, 0.5 * ((y - q1) ** 2 * kept).sum() / kept.sum())
    torch.testing.assert_close(v_loss, 0.5 * ((v - target) ** 2 * kept).sum() / kept.sum())
    algo.load_optim_state_dict(algo.optim_state_dict())
    assert set(agent.state_dict()) == {"model", "q1_model", "q2_model", "v_model", "target_v_model"}


def test_a_sampler_that_is_initialized_again_begins_anew() -> None:
    sampler, agent = SerialSampler(**settings()), DqnAgent(Q)
    found = []
    for _ in range(2):
        set_seed(0)
        sampler.initialize(agent, seed=0)
        found.append(str(sampler.obtain_samples(0)))
    sampler.shutdown()
    assert found[0] == found[1]
